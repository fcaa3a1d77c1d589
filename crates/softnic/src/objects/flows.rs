//! Flows: in the flow table, and in use of their queue pair and counters.

use std::sync::Arc;

use device_model::Limit;
use flow_table::{Actions, CounterId, FlowError, FlowId, FlowRule, QpSlot};
use ibverbs_sys::ibv_flow_attr;
use rustix::thread::CapabilitySet;
use xdp::XdpError;

pub use super::flow_attr::FlowRequest;
pub use super::flow_attr::grh_flow;
use super::{flow_attr, has_capability};
use crate::errno::{EEXIST, EINVAL, EPERM, Verb, VerbErrno};
use crate::nic::Nic;
use crate::personality::FlowRules;
use crate::state::{CounterPoint, FlowState, State};

/// Refuses a thread that may not make flows.
///
/// # Errors
/// EPERM if the device demands a capability that the calling thread lacks.
pub fn check_privilege(nic: &Nic) -> Verb<()> {
    if nic.rules().flow.emulation.needs_net_raw && !has_capability(CapabilitySet::NET_RAW) {
        return Err(EPERM);
    }
    Ok(())
}

/// Reads what a flow's attributes ask for.
///
/// # Errors
/// EINVAL for a block that makes no sense or a port that there is not, or the errno with which the device
/// refuses such a flow.
///
/// # Safety
/// `attr` is NULL or the start of a block of `attr.size` bytes; if that is not more than an `ibv_flow_attr`,
/// of one and as many specs behind it as it states, each of the size that it states.
pub unsafe fn read(nic: &Nic, attr: *const ibv_flow_attr) -> Verb<FlowRequest> {
    // SAFETY: by the contract of this function.
    let request = unsafe { flow_attr::read(attr, &nic.rules().flow) }?;
    nic.port(request.port).ok_or(EINVAL)?;
    Ok(request)
}

/// A flow's place among the objects.
#[derive(Clone, Debug)]
pub struct NewFlow {
    /// The context.
    pub owner: u32,
    /// The queue pair.
    pub qp: u32,
    /// The counter set.
    pub counter: Option<u32>,
    /// The points that the flow brings for its counter set, each with its index in the application's array.
    pub points: Vec<(u32, CounterPoint)>,
}

/// Puts a flow, which `prepare` describes, into use of its queue pair and counters and into the table;
/// returns its slot. The points that it brings become those of its counters if these are not bound yet. If it
/// is refused, nothing changes.
///
/// # Errors
/// The error of `prepare`, EINVAL if there is no such object, EEXIST for a flow that is there already, or the
/// errno of the device for one that it has no room for.
pub fn insert(nic: &Nic, request: &FlowRequest, prepare: impl FnOnce(&State) -> Verb<NewFlow>) -> Verb<u32> {
    let rules = &nic.rules().flow;
    nic.flow_pace.wait();
    let mut flows = nic.flow_writer();
    let mut state = nic.control();
    let NewFlow { owner, qp, counter, points } = prepare(&state)?;
    let order = state.flow_order();
    let State { qps, counters, flow_objects, .. } = &mut *state;
    let used = qps.get_mut(qp).ok_or(EINVAL)?;
    let set = counter.map(|counter| counters.get_mut(counter).ok_or(EINVAL)).transpose()?;
    let points = set.as_ref().filter(|set| !set.bound && !points.is_empty()).map(|_| points);
    // As mlx5: a set without points counts nothing, which is surely a mistake.
    if points.is_none() && set.as_ref().is_some_and(|set| set.points.is_empty()) {
        return Err(EINVAL);
    }
    let slot = flow_objects.insert(FlowState { owner, qp, counter }).ok_or(rules.limits.of(Limit::Flows))?;
    used.users += 1;
    let of_wire = set.as_ref().and_then(|set| {
        let of_port = set.of_wires.iter().find(|(port, _)| *port == request.port);
        of_port.map(|(_, counter)| counter.clone())
    });
    let is_known = of_wire.is_some();
    let before = set.map(|set| {
        set.users += 1;
        let points = points.map(|points| std::mem::replace(&mut set.points, points));
        (std::mem::replace(&mut set.bound, true), points)
    });
    let rule = rule(request, slot, order, counter, qp);
    drop(state);
    let added = rule.checked().map(Arc::new).and_then(|rule| {
        flows.change(|table| table.add(Arc::clone(&rule)))?;
        let claimed = nic.port(rule.port).map_or(Ok(None), |port| port.claims.claim(&rule, of_wire));
        claimed.map_err(|error| {
            tracing::warn!(%error, "a flow was refused, because its packets cannot be taken from the interface");
            flows.change(|table| table.remove(rule.id));
            let limit = match error {
                XdpError::Full { limit } => limit as usize,
                _ => nic.rules().flow.table.max_flows,
            };
            FlowError::Full { what: "claims", limit, of: Limit::Flows }
        })
    });
    let of_wire = added.map_err(|error| {
        let mut state = nic.control();
        state.remove_flow(slot);
        let set = counter.and_then(|counter| state.counters.get_mut(counter));
        if let (Some(set), Some((was_bound, points))) = (set, before) {
            set.bound = was_bound;
            if let Some(points) = points {
                set.points = points;
            }
        }
        tracing::debug!(%error, "a flow was refused");
        errno(&error, rules)
    })?;
    if let Some((of_wire, counter)) = of_wire.zip(counter).filter(|_| !is_known)
        && let Some(set) = nic.control_without_wakeup().counters.get_mut(counter)
    {
        set.of_wires.push((request.port, of_wire));
    }
    Ok(slot)
}

/// Takes a flow of a context out of the table and out of use of its queue pair and counters; `None` if there
/// is no such flow.
#[must_use]
pub fn remove(nic: &Nic, slot: u32, owner: u32) -> Option<()> {
    nic.flow_pace.wait();
    let mut flows = nic.flow_writer();
    nic.control_without_wakeup().flow_objects.get(slot).filter(|flow| flow.owner == owner)?;
    nic.withdraw_claims(FlowId(slot));
    flows.change(|table| table.remove(FlowId(slot)));
    nic.control().remove_flow(slot);
    Some(())
}

fn rule(request: &FlowRequest, slot: u32, order: u64, counter: Option<u32>, qp: u32) -> FlowRule {
    FlowRule {
        id: FlowId(slot),
        kind: request.kind,
        port: request.port,
        egress: request.egress,
        priority: request.priority,
        dont_trap: request.dont_trap,
        order,
        matcher: request.matcher,
        tunnel: request.tunnel.clone(),
        actions: Actions {
            tag: request.tag,
            drop: request.drop,
            counter: counter.map(CounterId),
            target: QpSlot(qp),
        },
    }
}

fn errno(error: &FlowError, rules: &FlowRules) -> VerbErrno {
    match error {
        FlowError::DuplicateId(_) | FlowError::Conflict(_) => EEXIST,
        FlowError::Contradiction | FlowError::DontTrapKind => EINVAL,
        FlowError::Full { of, .. } => rules.limits.of(*of),
        FlowError::NoSpace => rules.limits.of(Limit::PriorityTable),
    }
}
