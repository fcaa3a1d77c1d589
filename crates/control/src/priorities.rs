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
    WorkQueue, accepted_priorities,
};

use crate::{Device, DeviceRefusal};

/// A MAC address that is locally administered and not in use, for flows that take no packet of others. It is
/// not that of test frames (the conformance suite, hardware reports), which another process may be sending.
const TRIAL_MAC: MacAddr = MacAddr([0x02, 0x73, 0x74, 0x65, 0x65, 0x70]);

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

/// The number of a device's flow priorities was not found, and that of its model stays; displayed as a
/// warning.
#[derive(Debug, thiserror::Error)]
#[error(
    "the flow priorities of {device} were not found by trying, and its model ({model}) has {of_model}: {reason}"
)]
pub struct UntriedPriorities {
    /// The name of the device.
    pub device: String,
    /// The name of the model.
    pub model: String,
    /// The priorities of the model.
    pub of_model: u32,
    /// The reason.
    pub reason: UntriedReason,
}

/// The reason why a trial of flow priorities found no number.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UntriedReason {
    /// The device has refused a queue pair for the trial.
    #[error("no queue pair for a trial: {0}")]
    QueuePair(DeviceRefusal),
    /// A flow was refused for another reason than its priority.
    #[error("a flow for a trial was refused: {}", .0.flow_message())]
    Flow(DeviceRefusal),
    /// A flow was refused at priority 0 as well.
    #[error(
        "the device refuses the flow of the trial at every priority (hint: `steerd devices --probe` finds what it accepts)"
    )]
    EveryPriority,
    /// Only priority 0 is accepted.
    #[error(
        "the device accepts only priority 0, and a reload needs two (hint: `steerd devices --probe` finds what it accepts)"
    )]
    OnlyOne,
    /// A priority was refused once and accepted later.
    #[error(
        "priority {0} was refused once and then accepted (hint: another program may have used up the device meanwhile; a \
         new start tries again)"
    )]
    Contradiction(u32),
}

/// The answer of a device to a flow of one priority.
#[derive(Debug)]
enum PriorityAnswer {
    Accepted,
    Refused,
    /// The refusal is not about the priority.
    Unknown(DeviceRefusal),
}

/// Returns whether the priorities of devices of this kernel driver can be tried: a queue pair of the trial
/// takes no packet before it has a flow. With other drivers it may take all of them (`mana`).
#[must_use]
pub fn can_try_priorities(driver: &str) -> bool {
    // A sub-function's driver is `mlx5_core.sf`.
    matches!(driver.split('.').next(), Some("mlx5_core" | "mlx4_core"))
}

impl Device {
    /// Tries the last flow priority of the model on a port, and fewer if the device refuses that. Returns the
    /// difference, if there is one, and keeps the number that was found in the model. One flow is created
    /// where the model is right.
    ///
    /// Only devices of a provider and of a driver that [`can_try_priorities`] are to be tried.
    ///
    /// # Errors
    /// The number was not found, and that of the model stays.
    pub fn try_priorities(&mut self, port: u8) -> Result<Option<FewerPriorities>, UntriedPriorities> {
        let of_model = self.model().profile.priorities;
        if !self.model().profile.can_steer() {
            return Ok(None);
        }
        let (device, model) = (self.name().to_owned(), self.model().profile.name.clone());
        let found = unused_target(self.context())
            .map_err(|error| UntriedReason::QueuePair(error.into()))
            .and_then(|target| usable(of_model, |priority| answer(&target, PortNumber(port), priority)));
        match found {
            Ok(found) if found < of_model => {
                self.set_priorities(found);
                Ok(Some(FewerPriorities { device, model, of_model, found }))
            }
            Ok(_) => Ok(None),
            Err(reason) => Err(UntriedPriorities { device, model, of_model, reason }),
        }
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
        value: EthernetMatch { dst_mac: TRIAL_MAC.0, ..EthernetMatch::default() },
        mask: EthernetMatch { dst_mac: [0xff; 6], ..EthernetMatch::default() },
    };
    let attr = FlowAttr::new(FlowKind::Normal, port).spec(ethernet).priority(priority);
    match FlowHandle::create(target, &attr) {
        Ok(_) => PriorityAnswer::Accepted,
        Err(error) => match error.errno().and_then(|errno| VerbsErrno(errno).name()) {
            // The kernel of mlx5 answers ENOMEM (hw/mlx5/fs.c, mlx5_ib_create_flow), that of mlx4 EINVAL.
            Some("ENOMEM" | "EINVAL" | "EOPNOTSUPP") => PriorityAnswer::Refused,
            _ => PriorityAnswer::Unknown(error.into()),
        },
    }
}

/// The number of priorities up to `most` that a device accepts.
///
/// The answers are about priorities only if one is accepted. A refusal may be of the moment (ENOMEM), so the
/// first refused priority is tried twice.
///
/// # Errors
/// The answers do not show the number.
fn usable(most: u32, mut try_one: impl FnMut(u16) -> PriorityAnswer) -> Result<u32, UntriedReason> {
    let mut is_accepted = |priority| match try_one(priority) {
        PriorityAnswer::Accepted => Ok(true),
        PriorityAnswer::Refused => Ok(false),
        PriorityAnswer::Unknown(refusal) => Err(UntriedReason::Flow(refusal)),
    };
    let found = accepted_priorities(most, &mut is_accepted)?;
    if found == 1 && !is_accepted(0)? {
        return Err(UntriedReason::EveryPriority);
    }
    if found >= most {
        return Ok(most);
    }
    match u16::try_from(found).map(is_accepted).unwrap_or(Ok(false))? {
        true if found + 1 == most => Ok(most),
        true => Err(UntriedReason::Contradiction(found)),
        false if found == 1 => Err(UntriedReason::OnlyOne),
        false => Ok(found),
    }
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

    fn not_permitted() -> PriorityAnswer {
        let VerbsErrno(errno) = VerbsErrno::EPERM;
        PriorityAnswer::Unknown(DeviceRefusal { errno: Some(errno), source: "refused".into() })
    }

    /// A device with `limit` priorities that refuses the first flow at `once` whatever it has.
    fn refusing_once(limit: u32, once: u16) -> impl FnMut(u16) -> PriorityAnswer {
        let (mut answer, mut once) = (below(limit), Some(once));
        move |priority| match once.take_if(|once| *once == priority) {
            Some(_) => PriorityAnswer::Refused,
            None => answer(priority),
        }
    }

    proptest! {
        #[test]
        fn the_number_of_priorities_is_found(most in 2u32..=1 << 16, limit in 2u32..=1 << 16) {
            prop_assert_eq!(usable(most, below(limit)).ok(), Some(most.min(limit)));
        }

        /// The number that is found after one refusal of the moment is the right one, or none is.
        #[test]
        fn one_wrong_refusal_finds_no_wrong_number(most in 2u32..=64, limit in 2u32..=64, once in 0u16..64) {
            if let Ok(found) = usable(most, refusing_once(limit, once)) {
                prop_assert_eq!(found, most.min(limit));
            }
        }
    }

    #[test]
    fn a_right_model_costs_one_flow() {
        let mut tried = Vec::new();
        let found = usable(16, |priority| {
            tried.push(priority);
            PriorityAnswer::Accepted
        });
        assert_eq!((found.ok(), tried), (Some(16), vec![15]));
    }

    #[test]
    fn a_refusal_of_the_moment_is_tried_again() {
        assert_eq!(usable(16, refusing_once(16, 15)).ok(), Some(16), "the model is right");
        let reason = usable(16, refusing_once(12, 8)).expect_err("8 is accepted later");
        assert!(matches!(reason, UntriedReason::Contradiction(8)), "{reason}");
    }

    #[test]
    fn other_refusals_leave_the_model() {
        let reason = usable(16, |_| not_permitted()).expect_err("no privilege");
        assert!(reason.to_string().contains("CAP_NET_RAW"), "{reason}");
        let reason = usable(16, |_| PriorityAnswer::Refused).expect_err("the flow itself is refused");
        assert!(matches!(reason, UntriedReason::EveryPriority), "{reason}");
        let reason = usable(16, below(1)).expect_err("a reload needs two");
        assert!(matches!(reason, UntriedReason::OnlyOne), "{reason}");
        let full = |priority| match priority {
            0 => PriorityAnswer::Accepted,
            15 => PriorityAnswer::Refused,
            _ => not_permitted(),
        };
        assert!(matches!(usable(16, full), Err(UntriedReason::Flow(_))));
    }

    #[test]
    fn only_drivers_without_implicit_packets_are_tried() {
        for driver in ["mlx5_core", "mlx5_core.sf", "mlx4_core"] {
            assert!(can_try_priorities(driver), "{driver}");
        }
        for driver in ["mana", "bnxt_en", "irdma", "mlx5_corex", ""] {
            assert!(!can_try_priorities(driver), "{driver}");
        }
    }
}
