//! Flows: in the flow table, and in use of their queue pair and counters.

use std::sync::Arc;

use device_model::Limit;
use flow_table::{Actions, CounterId, FlowError, FlowId, FlowRule, QpSlot};

use super::flow_attr::FlowRequest;
use crate::errno::{EEXIST, EINVAL, Errno, Verb};
use crate::nic::Nic;
use crate::personality::FlowRules;
use crate::state::{CounterPoint, FlowState, State};

/// Puts a flow, which `prepare` describes, into use of its queue pair and counters and into the table;
/// returns its slot. The points that it brings become those of its counters if these are not bound yet. If it
/// is refused, nothing changes.
pub(crate) fn insert(
    nic: &Nic,
    request: &FlowRequest,
    prepare: impl FnOnce(&State) -> Verb<(FlowState, Vec<(u32, CounterPoint)>)>,
) -> Verb<u32> {
    let rules = &nic.rules().flow;
    let mut flows = nic.flow_writer();
    let mut state = nic.control();
    let (flow, points) = prepare(&state)?;
    let (counter, qp) = (flow.counter, flow.qp);
    let order = state.flow_order();
    let State { qps, counters, flow_objects, .. } = &mut *state;
    let used = qps.get_mut(qp).ok_or(EINVAL)?;
    let set = counter.map(|counter| counters.get_mut(counter).ok_or(EINVAL)).transpose()?;
    let points = set.as_ref().filter(|set| !set.bound && !points.is_empty()).map(|_| points);
    // As mlx5: a set without points counts nothing, which is surely a mistake.
    if points.is_none() && set.as_ref().is_some_and(|set| set.points.is_empty()) {
        return Err(EINVAL);
    }
    let slot = flow_objects.insert(flow).ok_or(rules.limits.of(Limit::Flows))?;
    used.users += 1;
    let before = set.map(|set| {
        set.users += 1;
        let points = points.map(|points| std::mem::replace(&mut set.points, points));
        (std::mem::replace(&mut set.bound, true), points)
    });
    let rule = rule(request, slot, order, counter, qp);
    drop(state);
    let added =
        rule.checked().map(Arc::new).and_then(|rule| flows.change(|table| table.add(Arc::clone(&rule))));
    added.map_err(|error| {
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
    Ok(slot)
}

/// Takes a flow of a context out of the table and out of use of its queue pair and counters; `None` if there
/// is no such flow.
pub(crate) fn remove(nic: &Nic, slot: u32, owner: u32) -> Option<()> {
    let mut flows = nic.flow_writer();
    nic.control_without_wakeup().flow_objects.get(slot).filter(|flow| flow.owner == owner)?;
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

fn errno(error: &FlowError, rules: &FlowRules) -> Errno {
    match error {
        FlowError::DuplicateId(_) | FlowError::Conflict(_) => EEXIST,
        FlowError::Contradiction | FlowError::DontTrapKind => EINVAL,
        FlowError::Full { of, .. } => rules.limits.of(*of),
        FlowError::NoSpace => rules.limits.of(Limit::PriorityTable),
    }
}
