//! Flows. Once `ibv_create_flow` returned, the next frame meets the flow; once `ibv_destroy_flow` did, none
//! does.

use std::ffi::c_int;

use ibverbs_sys::{ibv_flow, ibv_flow_attr, ibv_qp};
use softnic::errno::{EINVAL, Verb};
use softnic::objects::flows::{self, FlowRequest, NewFlow};

use super::Object;
use super::answer::{answer_handle, answer_status};
use super::counters::SoftCounters;
use super::qp::SoftQp;
use crate::soft_context::SoftContext;

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
        flows::check_privilege(soft.nic())?;
        // kernel core/uverbs_cmd.c, `ib_uverbs_ex_create_flow`, lets datagram queue pairs pass, but mlx5 then
        // names the receive side of a raw packet queue pair that is not there (fs.c, `mlx5_ib_create_flow`:
        // `raw_packet_qp.rq.tirn`), and here datagrams do not come by flows: refused, not accepted without
        // effect.
        if qp.datagram {
            return Err(EINVAL);
        }
        // SAFETY: NULL or a block of the size it names, by the verb's contract.
        let request = unsafe { flows::read(soft.nic(), attr) }?;
        let counter = counter(&request, qp)?;
        let flow = NewFlow { owner: soft.slot, qp: qp.slot, counter, points: Vec::new() };
        let slot = flows::insert(soft.nic(), &request, |_| Ok(flow))?;
        let flow = ibv_flow { comp_mask: 0, context: qp.context(), handle: slot };
        Ok(SoftFlow { flow, slot }.into_native())
    })
}

/// The slot of the counters that a COUNT action names.
fn counter(request: &FlowRequest, qp: &SoftQp) -> Verb<Option<u32>> {
    let Some(counters) = request.counters() else { return Ok(None) };
    // SAFETY: NULL or a set of this provider, by the verb's contract.
    let counters = unsafe { SoftCounters::of(counters) }?;
    if counters.context() == qp.context() { Ok(Some(counters.slot)) } else { Err(EINVAL) }
}

pub(crate) unsafe extern "C" fn destroy_flow(flow: *mut ibv_flow) -> c_int {
    answer_status(|| {
        // SAFETY: NULL or a flow of this provider, by the verb's contract.
        let object = unsafe { SoftFlow::of(flow) }?;
        // SAFETY: the flow keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.flow.context) }?;
        flows::remove(soft.nic(), object.slot, soft.slot).ok_or(EINVAL)?;
        // SAFETY: the library drops the handle; `object` is not used any more.
        drop(unsafe { SoftFlow::take(flow) });
        Ok(())
    })
}
