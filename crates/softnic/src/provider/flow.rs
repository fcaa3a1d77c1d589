//! Flows. Once `ibv_create_flow` returned, the next frame meets the flow; once `ibv_destroy_flow` did, none
//! does.

use std::ffi::c_int;
use std::sync::Arc;

use device_model::Limit;
use flow_table::{Actions, CounterId, FlowError, FlowId, FlowRule, QpSlot};
use ibverbs_sys::{ibv_flow, ibv_flow_attr, ibv_qp};

use super::Object;
use super::answer::{answer_handle, answer_status};
use crate::errno::{EEXIST, EINVAL, EPERM, Errno, Verb};
use rustix::thread::CapabilitySet;

use super::counters::SoftCounters;
use super::flow_attr::{self, FlowRequest};
use super::has_capability;
use super::qp::SoftQp;
use crate::nic::Nic;
use crate::personality::FlowRules;
use crate::soft_context::SoftContext;
use crate::state::{CounterPoint, FlowState, State, owned};

/// A flow.
#[repr(C)]
struct SoftFlow {
    flow: ibv_flow,
    slot: u32,
}

// SAFETY: `repr(C)` with `ibv_flow` first; handed out by `into_native` only.
unsafe impl Object for SoftFlow {
    type Native = ibv_flow;
}

pub(crate) unsafe extern "C" fn create_flow(qp: *mut ibv_qp, attr: *mut ibv_flow_attr) -> *mut ibv_flow {
    answer_handle(|| {
        // SAFETY: NULL or a queue pair of this provider, by the verb's contract.
        let qp = unsafe { SoftQp::of(qp) }?;
        // SAFETY: the queue pair keeps the context it was made with.
        let soft = unsafe { SoftContext::of(qp.context()) }?;
        let rules = &soft.nic().rules().flow;
        if rules.emulation.needs_net_raw && !has_capability(CapabilitySet::NET_RAW) {
            return Err(EPERM);
        }
        // kernel core/uverbs_cmd.c, `ib_uverbs_ex_create_flow`, lets datagram queue pairs pass, but mlx5 then
        // names the receive side of a raw packet queue pair that is not there (fs.c, `mlx5_ib_create_flow`:
        // `raw_packet_qp.rq.tirn`), and here datagrams do not come by flows: refused, not accepted without
        // effect.
        if qp.datagram {
            return Err(EINVAL);
        }
        // SAFETY: NULL or a block of the size it names, by the verb's contract.
        let request = unsafe { flow_attr::read(attr, rules) }?;
        soft.nic().port(request.port).ok_or(EINVAL)?;
        let counter = counter(&request, qp)?;
        let flow = FlowState { owner: soft.slot, qp: qp.slot, counter };
        let slot = insert(soft.nic(), &request, |_| Ok((flow, Vec::new())))?;
        let flow = ibv_flow { comp_mask: 0, context: qp.context(), handle: slot };
        Ok(SoftFlow { flow, slot }.into_native())
    })
}

/// The slot of the counters that a COUNT action names.
fn counter(request: &FlowRequest, qp: &SoftQp) -> Verb<Option<u32>> {
    let Some(counters) = request.counters else { return Ok(None) };
    // SAFETY: NULL or a set of this provider, by the verb's contract.
    let counters = unsafe { SoftCounters::of(counters) }?;
    if counters.context() == qp.context() { Ok(Some(counters.slot)) } else { Err(EINVAL) }
}

/// Puts a flow, which `prepare` describes, into use of its queue pair and counters and into the table;
/// returns its slot. The points that it brings become those of its counters if these are not bound yet. If it
/// is refused, nothing changes.
pub(crate) fn insert(
    nic: &Nic,
    request: &FlowRequest,
    prepare: impl FnOnce(&State) -> Verb<(FlowState, Vec<(u32, CounterPoint)>)>,
) -> Verb<u32> {
    let rules = &nic.rules().flow;
    nic.flow_pace.wait();
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
    nic.flow_pace.wait();
    let mut flows = nic.flow_writer();
    nic.control_without_wakeup().flow_objects.get(slot).filter(|flow| flow.owner == owner)?;
    flows.change(|table| table.remove(FlowId(slot)));
    nic.control().remove_flow(slot);
    Some(())
}

/// Takes away a context and all that it owns, flows first.
pub(crate) fn remove_owned(nic: &Nic, owner: u32) {
    let mut flows = nic.flow_writer();
    let slots = owned(&nic.control_without_wakeup().flow_objects, |flow| flow.owner == owner);
    flows.change(|table| {
        for slot in &slots {
            table.remove(FlowId(*slot));
        }
    });
    let mut state = nic.control();
    slots.into_iter().for_each(|slot| state.remove_flow(slot));
    state.remove_owned(owner);
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

pub(crate) unsafe extern "C" fn destroy_flow(flow: *mut ibv_flow) -> c_int {
    answer_status(|| {
        // SAFETY: NULL or a flow of this provider, by the verb's contract.
        let object = unsafe { SoftFlow::of(flow) }?;
        // SAFETY: the flow keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.flow.context) }?;
        remove(soft.nic(), object.slot, soft.slot).ok_or(EINVAL)?;
        // SAFETY: the library drops the handle; `object` is not used any more.
        drop(unsafe { SoftFlow::take(flow) });
        Ok(())
    })
}
