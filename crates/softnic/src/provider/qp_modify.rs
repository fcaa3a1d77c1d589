//! The states of a plain queue pair, by the kernel's table (`qp_state_table` in drivers/infiniband/core/verbs.c).

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use ibverbs_sys::ibv_qp_state::{
    IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE,
};
use ibverbs_sys::{ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state};

use super::Object;
use super::answer::{EINVAL, EOPNOTSUPP, Verb, answer_status, known_bits};
use super::qp::SoftQp;
use crate::device::SoftContext;
use crate::state::{QpKind, State};

const STATE: u32 = ibv_qp_attr_mask::IBV_QP_STATE.0;
const CUR_STATE: u32 = ibv_qp_attr_mask::IBV_QP_CUR_STATE.0;
const PORT: u32 = ibv_qp_attr_mask::IBV_QP_PORT.0;

/// The attributes a raw packet queue pair must and may be given for a transition; `None` if there is no such one.
fn transition(from: ibv_qp_state::Type, to: ibv_qp_state::Type) -> Option<(u32, u32)> {
    match (from, to) {
        (IBV_QPS_RESET..=IBV_QPS_ERR, IBV_QPS_RESET | IBV_QPS_ERR) => Some((0, 0)),
        (IBV_QPS_RESET, IBV_QPS_INIT) => Some((PORT, 0)),
        (IBV_QPS_INIT, IBV_QPS_INIT) => Some((0, PORT)),
        (IBV_QPS_INIT, IBV_QPS_RTR)
        | (IBV_QPS_RTR | IBV_QPS_RTS | IBV_QPS_SQD | IBV_QPS_SQE, IBV_QPS_RTS)
        | (IBV_QPS_RTS | IBV_QPS_SQD, IBV_QPS_SQD) => Some((0, 0)),
        _ => None,
    }
}

pub(crate) unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    answer_status(|| {
        // SAFETY: NULL or a queue pair of this provider, by the verb's contract.
        let object = unsafe { SoftQp::of(qp) }?;
        // SAFETY: NULL or the application's struct.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        if object.plain.is_none() {
            // As mlx5: the work queues of an RSS queue pair are what has states.
            return Err(EOPNOTSUPP);
        }
        // SAFETY: the queue pair keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.context()) }?;
        let mask = mask.cast_unsigned();
        let mut state = soft.nic().control();
        let from = object.state.load(Ordering::Relaxed);
        if mask & CUR_STATE != 0 && attr.cur_qp_state != from {
            return Err(EINVAL);
        }
        let to = if mask & STATE == 0 { from } else { attr.qp_state };
        let (required, optional) = transition(from, to).ok_or(EINVAL)?;
        known_bits(mask, STATE | CUR_STATE | required | optional, EINVAL)?;
        if mask & required != required {
            return Err(EINVAL);
        }
        if mask & PORT != 0 {
            soft.nic().port(attr.port_num).ok_or(EINVAL)?;
            state.qps.get_mut(object.slot).ok_or(EINVAL)?.port = attr.port_num;
        }
        enter(&mut state, object, to)
    })
}

fn enter(state: &mut State, object: &SoftQp, to: ibv_qp_state::Type) -> Verb<()> {
    let slot = object.slot;
    let qp = state.qps.get_mut(slot).ok_or(EINVAL)?;
    let QpKind::Raw { queue, send } = &mut qp.kind else { return Err(EOPNOTSUPP) };
    let queue = *queue;
    if to == IBV_QPS_RESET {
        send.consumer.discard();
        qp.port = 0;
    }
    object.state.store(to, Ordering::Relaxed);
    if let Some(receives) = state.queues.get_mut(queue) {
        receives.ready = matches!(to, IBV_QPS_RTR | IBV_QPS_RTS | IBV_QPS_SQD | IBV_QPS_SQE);
        if to == IBV_QPS_RESET {
            receives.consumer.discard();
        }
    }
    state.senders.retain(|sender| *sender != slot);
    state.failed_queues.retain(|failed| *failed != queue);
    match to {
        IBV_QPS_RTS => state.senders.push(slot),
        IBV_QPS_ERR => {
            state.failed_queues.push(queue);
            state.flush_queue(queue);
            state.flush_sends(slot);
            state.publish();
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_up_needs_the_port_once() {
        assert_eq!(transition(IBV_QPS_RESET, IBV_QPS_INIT), Some((PORT, 0)));
        assert_eq!(transition(IBV_QPS_INIT, IBV_QPS_RTR), Some((0, 0)));
        assert_eq!(transition(IBV_QPS_RTR, IBV_QPS_RTS), Some((0, 0)));
    }

    #[test]
    fn steps_cannot_be_skipped_nor_states_invented() {
        assert_eq!(transition(IBV_QPS_RESET, IBV_QPS_RTS), None);
        assert_eq!(transition(IBV_QPS_RESET, IBV_QPS_RTR), None);
        assert_eq!(transition(IBV_QPS_INIT, IBV_QPS_RTS), None);
        assert_eq!(transition(IBV_QPS_ERR, IBV_QPS_RTS), None);
        assert_eq!(transition(IBV_QPS_RTS, IBV_QPS_INIT), None);
        assert_eq!(transition(IBV_QPS_RTS, 17), None);
        assert_eq!(transition(IBV_QPS_RTS, IBV_QPS_ERR), Some((0, 0)));
        assert_eq!(transition(IBV_QPS_ERR, IBV_QPS_RESET), Some((0, 0)));
    }
}
