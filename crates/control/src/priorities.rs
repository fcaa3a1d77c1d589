//! How many flow priorities a device has. The model says it by the driver, and kernels differ: those of mlx5
//! have 16, older ones 8 (DPDK, drivers/net/mlx5/mlx5_flow_verbs.c, tries both in
//! `flow_verbs_discover_priorities`). A program for 16 would be refused on the others at its ninth priority.
//!
//! Flows of the trial match one MAC address that no station has, and each is destroyed before the next.

use std::fmt;
use std::sync::Arc;

use packet::MacAddr;
use verbs::{
    CompletionQueue, Context, Domain, EthernetMatch, FlowAttr, FlowHandle, FlowKind, FlowSpec, FlowTarget,
    HashConfig, HashFields, IndirectionTable, PortNumber, ProtectionDomain, RssQueuePair, VerbsErrno,
    WorkQueue,
};

use crate::Device;

/// A MAC address that is locally administered and not in use, for flows that take no packet of others. The
/// cases of the conformance suite have the same.
pub const UNUSED_MAC: MacAddr = MacAddr([0x02, 0x73, 0x74, 0x65, 0x65, 0x72]);

/// The receives of the queue that no packet reaches.
const RECEIVES: u32 = 64;
/// The key of its queue pair; nothing is hashed with it.
const KEY: [u8; 40] = [0x6d; 40];

/// A device has fewer flow priorities than its model; displayed as a warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FewerPriorities {
    /// The name of the device.
    pub device: String,
    /// The name of the model.
    pub model: String,
    /// The priorities of the model.
    pub of_model: u32,
    /// The priorities that the device accepts.
    pub found: u32,
}

impl fmt::Display for FewerPriorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, model, of_model, found } = self;
        write!(
            f,
            "{device} has {found} flow priorities and its model ({model}) {of_model}: policies are compiled for {found} \
             (hint: a later kernel may have more; priorities = {found} in a model file, which `steerd devices --probe \
             {device}` writes, says so to `check` as well)"
        )
    }
}

/// The answer of a device to a flow of one priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PriorityAnswer {
    Accepted,
    Refused,
    /// The refusal is not about the priority.
    Unknown,
}

impl Device {
    /// Tries the last flow priority of the model on a port, and fewer if the device refuses that. Returns the
    /// difference, if there is one, and keeps the number that was found in the model. One flow is created
    /// where the model is right.
    pub fn try_priorities(&mut self, port: u8) -> Option<FewerPriorities> {
        let of_model = self.model().profile.priorities;
        if !self.model().profile.can_steer() {
            return None;
        }
        let target = unused_target(self.context())
            .inspect_err(|error| tracing::debug!("flow priorities are not tried: {error}"))
            .ok()?;
        let try_one = |priority: u16| answer(&target, PortNumber(port), priority);
        let found = usable(of_model, try_one).filter(|found| *found < of_model)?;
        let fewer = FewerPriorities {
            device: self.name().to_owned(),
            model: self.model().profile.name.clone(),
            of_model,
            found,
        };
        self.set_priorities(found);
        Some(fewer)
    }
}

/// A queue pair behind an indirection table of one queue that no packet reaches, for flows that take none.
///
/// # Errors
/// The device refuses one of the objects.
pub fn unused_target(context: &Arc<Context>) -> verbs::Result<FlowTarget> {
    let domain = Domain::from(ProtectionDomain::new(context)?);
    let completions = CompletionQueue::builder(context, RECEIVES).build()?;
    let (queue, _) = WorkQueue::builder(&domain, &completions.handle()).max_receives(RECEIVES).build()?;
    queue.ready()?;
    let table = IndirectionTable::new(context, &[queue])?;
    let hash = HashConfig { key: KEY, fields: HashFields::empty() };
    Ok(RssQueuePair::new(&domain, &table, &hash)?.into())
}

/// Creates and destroys a flow of this priority.
fn answer(target: &FlowTarget, port: PortNumber, priority: u16) -> PriorityAnswer {
    let ethernet = FlowSpec::Ethernet {
        value: EthernetMatch { dst_mac: UNUSED_MAC.0, ..EthernetMatch::default() },
        mask: EthernetMatch { dst_mac: [0xff; 6], ..EthernetMatch::default() },
    };
    let attr = FlowAttr::new(FlowKind::Normal, port).spec(ethernet).priority(priority);
    match FlowHandle::create(target, &attr) {
        Ok(_) => PriorityAnswer::Accepted,
        Err(error) => match error.errno().and_then(|errno| VerbsErrno(errno).name()) {
            // The kernel of mlx5 answers ENOMEM (hw/mlx5/fs.c, mlx5_ib_create_flow), that of mlx4 EINVAL.
            Some("ENOMEM" | "EINVAL" | "EOPNOTSUPP") => PriorityAnswer::Refused,
            _ => PriorityAnswer::Unknown,
        },
    }
}

/// The number of priorities up to `most` that a device accepts; `None` where its answers do not show it.
///
/// The search needs that a device accepts all priorities below one that it accepts. It is about priorities
/// only if priority 0 is accepted.
fn usable(most: u32, mut try_one: impl FnMut(u16) -> PriorityAnswer) -> Option<u32> {
    let mut try_number =
        |priority: u32| u16::try_from(priority).map_or(PriorityAnswer::Unknown, &mut try_one);
    let last = most.checked_sub(1)?;
    match try_number(last) {
        PriorityAnswer::Accepted => return Some(most),
        PriorityAnswer::Unknown => return None,
        PriorityAnswer::Refused => {}
    }
    if try_number(0) != PriorityAnswer::Accepted {
        return None;
    }
    // The first refused one is in `least..=first_refused`.
    let (mut least, mut first_refused) = (1, last);
    while least < first_refused {
        let next = least.midpoint(first_refused);
        match try_number(next) {
            PriorityAnswer::Accepted => least = next + 1,
            PriorityAnswer::Refused => first_refused = next,
            PriorityAnswer::Unknown => return None,
        }
    }
    // A reload needs two.
    (least >= 2).then_some(least)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn below(limit: u32) -> impl FnMut(u16) -> PriorityAnswer {
        move |priority| match u32::from(priority) < limit {
            true => PriorityAnswer::Accepted,
            false => PriorityAnswer::Refused,
        }
    }

    proptest! {
        #[test]
        fn the_number_of_priorities_is_found(most in 2u32..=1 << 16, limit in 2u32..=1 << 16) {
            prop_assert_eq!(usable(most, below(limit)), Some(most.min(limit)));
        }
    }

    #[test]
    fn a_right_model_costs_one_flow() {
        let mut tried = Vec::new();
        let found = usable(16, |priority| {
            tried.push(priority);
            PriorityAnswer::Accepted
        });
        assert_eq!((found, tried), (Some(16), vec![15]));
    }

    #[test]
    fn other_refusals_leave_the_model() {
        assert_eq!(usable(16, |_| PriorityAnswer::Unknown), None, "no privilege");
        assert_eq!(usable(16, |_| PriorityAnswer::Refused), None, "the flow itself is refused");
        assert_eq!(usable(16, below(1)), None, "a reload needs two");
        let full = |priority| match priority {
            0 => PriorityAnswer::Accepted,
            15 => PriorityAnswer::Refused,
            _ => PriorityAnswer::Unknown,
        };
        assert_eq!(usable(16, full), None);
    }
}
