//! Flows. Once `ibv_create_flow` returned, the next frame meets the flow; once `ibv_destroy_flow` did, none does.

use std::ffi::c_int;

use ibverbs_sys::{ibv_flow, ibv_flow_attr, ibv_qp};

use super::Object;
use super::answer::{EEXIST, EINVAL, ENOMEM, ENOSPC, EPERM, Errno, Verb, answer_handle, answer_status};
use rustix::thread::CapabilitySet;

use super::counters::SoftCounters;
use super::flow_attr::{self, FlowRequest};
use super::has_capability;
use super::qp::SoftQp;
use crate::device::SoftContext;
use crate::flow::{Actions, CounterId, FlowError, FlowId, FlowRule, FlowTable, QpSlot, TableRebuild};
use crate::nic::Nic;
use crate::state::{FlowState, State};

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
        // kernel core/uverbs_cmd.c, `ib_uverbs_ex_create_flow`, lets datagram queue pairs pass, but mlx5 then names the
        // receive side of a raw packet queue pair that is not there (fs.c, `mlx5_ib_create_flow`: `raw_packet_qp.rq.tirn`),
        // and here datagrams do not come by flows: refused, not accepted without effect.
        if qp.datagram {
            return Err(EINVAL);
        }
        // SAFETY: NULL or a block of the size it names, by the verb's contract.
        let request = unsafe { flow_attr::read(attr, rules) }?;
        soft.nic().port(request.port).ok_or(EINVAL)?;
        let counter = counter(&request, qp)?;
        let (mut flows, mut state) = soft.nic().control_flows();
        let flow = FlowState { owner: soft.slot, qp: qp.slot, counter };
        let slot = insert((&mut flows, &mut state), flow, &request)?;
        drop(state);
        let rebuild = flows.start_rebuild();
        drop(flows);
        rebuild_flows(soft.nic(), rebuild);
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

/// Puts a flow into the table and into use of its queue pair and counters.
pub(crate) fn insert(
    (flows, state): (&mut FlowTable, &mut State),
    flow: FlowState,
    request: &FlowRequest,
) -> Verb<u32> {
    let FlowState { qp, counter, .. } = flow;
    state.qps.get(qp).ok_or(EINVAL)?;
    if let Some(counter) = counter {
        let set = state.counters.get(counter).ok_or(EINVAL)?;
        // As mlx5: a set without points counts nothing, which is surely a mistake.
        if set.points.is_empty() {
            return Err(EINVAL);
        }
    }
    let order = state.flow_order();
    let slot = state.flow_objects.insert(flow).ok_or(ENOMEM)?;
    let rule = FlowRule {
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
    };
    if let Err(error) = flows.insert(rule) {
        state.flow_objects.remove(slot);
        tracing::debug!(%error, "a flow was refused");
        return Err(errno(&error));
    }
    if let Some(qp) = state.qps.get_mut(qp) {
        qp.users += 1;
    }
    if let Some(set) = counter.and_then(|counter| state.counters.get_mut(counter)) {
        set.users += 1;
        set.bound = true;
    }
    Ok(slot)
}

/// Builds the trees of the flow table anew where that pays. The engine goes on meanwhile; this caller waits.
pub(crate) fn rebuild_flows(nic: &Nic, mut rebuild: Option<TableRebuild>) {
    while let Some(mut started) = rebuild {
        while nic.flows().copy_rules(&mut started) {}
        let mut rebuilt = started.build();
        while nic.change_flows().finish_rebuild(&mut rebuilt) {}
        rebuild = nic.change_flows().start_rebuild();
    }
}

fn errno(error: &FlowError) -> Errno {
    match error {
        FlowError::DuplicateId(_) | FlowError::Conflict(_) => EEXIST,
        FlowError::Contradiction | FlowError::DontTrapKind => EINVAL,
        FlowError::Full { .. } => ENOMEM,
        FlowError::NoSpace => ENOSPC,
    }
}

pub(crate) unsafe extern "C" fn destroy_flow(flow: *mut ibv_flow) -> c_int {
    answer_status(|| {
        // SAFETY: NULL or a flow of this provider, by the verb's contract.
        let object = unsafe { SoftFlow::of(flow) }?;
        // SAFETY: the flow keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.flow.context) }?;
        let (mut flows, mut state) = soft.nic().control_flows();
        if !state.remove_flow(&mut flows, object.slot) {
            return Err(EINVAL);
        }
        drop(state);
        let rebuild = flows.start_rebuild();
        drop(flows);
        rebuild_flows(soft.nic(), rebuild);
        // SAFETY: the library drops the handle; `object` is not used any more.
        drop(unsafe { SoftFlow::take(flow) });
        Ok(())
    })
}
