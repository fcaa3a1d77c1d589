//! Handles of objects that were destroyed: an errno from every verb, control and data path.

use std::ffi::c_int;
use std::ptr::null_mut;

use ibverbs_sys::{
    IBV_WQ_ATTR_STATE, IBV_WQS_RDY, IBV_WQT_RQ, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_dealloc_pd,
    ibv_dereg_mr, ibv_destroy_cq, ibv_destroy_qp, ibv_flow_attr, ibv_moderate_cq, ibv_modify_cq_attr,
    ibv_modify_qp, ibv_pd, ibv_poll_cq_attr, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr,
    ibv_qp_to_qp_ex, ibv_query_qp, ibv_recv_wr, ibv_reg_mr, ibv_resize_cq, ibv_rwq_ind_table_init_attr,
    ibv_send_wr, ibv_td_init_attr, ibv_wq, ibv_wq_attr, ibv_wq_init_attr,
};

use super::super::{counters, cq, flow, mr, pd, wq};
use super::features::errno;
use super::{Raw, bring_up, create_qp_ex, default_flow};

const EINVAL: c_int = libc::EINVAL;

fn work_queue(raw: &Raw, pd: *mut ibv_pd, cq: *mut ibv_cq) -> *mut ibv_wq {
    let mut attr =
        ibv_wq_init_attr { wq_type: IBV_WQT_RQ, max_wr: 2, max_sge: 1, pd, cq, ..Default::default() };
    // SAFETY: a live context, and handles that live or are kept.
    unsafe { wq::create_wq(raw.context, &raw mut attr) }
}

fn queue_pair(raw: &Raw, pd: *mut ibv_pd, cq: *mut ibv_cq) -> Result<*mut ibv_qp, c_int> {
    create_qp_ex(raw, |attr| (attr.pd, attr.send_cq, attr.recv_cq) = (pd, cq, cq))
}

/// A queue pair that can be posted to by function calls.
fn extended(raw: &Raw) -> (*mut ibv_qp, *mut ibv_qp_ex) {
    let qp = create_qp_ex(raw, |attr| {
        attr.comp_mask |= ibverbs_sys::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        attr.send_ops_flags = u64::from(ibverbs_sys::IBV_QP_EX_WITH_SEND);
    })
    .unwrap();
    bring_up(qp);
    // SAFETY: a live queue pair.
    (qp, unsafe { ibv_qp_to_qp_ex(qp) })
}

#[test]
fn domains_and_regions() {
    let raw = Raw::new();
    let mut bytes = [0u8; 64];
    // SAFETY: a live context.
    let gone = unsafe { pd::alloc_pd(raw.context) };
    // SAFETY: a live domain; the memory outlives the region.
    let region = unsafe { ibv_reg_mr(raw.pd, bytes.as_mut_ptr().cast(), 64, 1) };
    // SAFETY: a live region.
    assert_eq!(unsafe { ibv_dereg_mr(region) }, 0);
    // SAFETY: destroyed, and kept.
    assert_eq!(unsafe { ibv_dereg_mr(region) }, EINVAL);
    // SAFETY: as above.
    assert_eq!(unsafe { mr::rereg_mr(region.cast(), 4, raw.pd, null_mut(), 0, 1) }, EINVAL);
    // SAFETY: a live domain.
    assert_eq!(unsafe { ibv_dealloc_pd(gone) }, 0);
    // SAFETY: destroyed, and kept.
    assert_eq!(unsafe { ibv_dealloc_pd(gone) }, EINVAL);
    // SAFETY: as above.
    assert!(unsafe { ibv_reg_mr(gone, bytes.as_mut_ptr().cast(), 64, 1) }.is_null());
    assert_eq!(errno(), EINVAL);
    assert!(work_queue(&raw, gone, raw.cq).is_null());
    assert_eq!(errno(), EINVAL);
    assert_eq!(queue_pair(&raw, gone, raw.cq), Err(EINVAL));
    let mut attr = ibv_td_init_attr { comp_mask: 0 };
    // SAFETY: a live context and a whole struct.
    let thread = unsafe { pd::alloc_td(raw.context, &raw mut attr) };
    // SAFETY: a live thread domain.
    assert_eq!(unsafe { pd::dealloc_td(thread) }, 0);
    // SAFETY: destroyed, and kept.
    assert_eq!(unsafe { pd::dealloc_td(thread) }, EINVAL);
}

#[test]
fn completion_queues() {
    let raw = Raw::new();
    let mut attr = ibv_cq_init_attr_ex { cqe: 8, ..Default::default() };
    // SAFETY: a live context and a whole struct.
    let extended: *mut ibv_cq_ex = unsafe { cq::create_cq_ex(raw.context, &raw mut attr) };
    let gone: *mut ibv_cq = extended.cast();
    // SAFETY: a live queue.
    assert_eq!(unsafe { ibv_destroy_cq(gone) }, 0);
    // SAFETY: destroyed, and kept; so in the rest of this test.
    assert_eq!(unsafe { ibv_destroy_cq(gone) }, EINVAL);
    // SAFETY: as above.
    assert_eq!(unsafe { ibv_resize_cq(gone, 16) }, EINVAL);
    // SAFETY: as above.
    assert_eq!(unsafe { cq::req_notify_cq(gone, 0) }, EINVAL);
    let mut moderation =
        ibv_modify_cq_attr { attr_mask: 1, moderate: ibv_moderate_cq { cq_count: 1, cq_period: 1 } };
    // SAFETY: as above.
    assert_eq!(unsafe { cq::modify_cq(gone, &raw mut moderation) }, EINVAL);
    // SAFETY: as above.
    let native = unsafe { &*extended };
    let (start, next) = (native.start_poll, native.next_poll);
    let mut poll = ibv_poll_cq_attr { comp_mask: 0 };
    // SAFETY: as above.
    assert_eq!(unsafe { start.unwrap()(extended, &raw mut poll) }, EINVAL);
    // SAFETY: as above.
    assert_eq!(unsafe { next.unwrap()(extended) }, EINVAL);
    // SAFETY: a live context.
    let poll_cq = unsafe { (*raw.context).ops.poll_cq }.unwrap();
    let mut completion = crate::abi::WorkCompletion::default();
    // SAFETY: destroyed, and kept.
    assert_eq!(unsafe { poll_cq(gone, 1, (&raw mut completion).cast()) }, -1);
    assert!(work_queue(&raw, raw.pd, gone).is_null());
    assert_eq!(errno(), EINVAL);
    assert_eq!(queue_pair(&raw, raw.pd, gone), Err(EINVAL));
}

#[test]
fn work_queues_and_tables() {
    let raw = Raw::new();
    let gone = work_queue(&raw, raw.pd, raw.cq);
    let mut attr = ibv_wq_attr { attr_mask: IBV_WQ_ATTR_STATE, wq_state: IBV_WQS_RDY, ..Default::default() };
    // SAFETY: a live queue and a whole struct.
    assert_eq!(unsafe { wq::modify_wq(gone, &raw mut attr) }, 0);
    // SAFETY: a live queue.
    assert_eq!(unsafe { wq::destroy_wq(gone) }, 0);
    // SAFETY: destroyed, and kept; so in the rest of this test.
    assert_eq!(unsafe { wq::destroy_wq(gone) }, EINVAL);
    // SAFETY: as above.
    assert_eq!(unsafe { wq::modify_wq(gone, &raw mut attr) }, EINVAL);
    // SAFETY: as above.
    let post = unsafe { (*gone).post_recv }.unwrap();
    let (mut request, mut bad) = (ibv_recv_wr::default(), null_mut());
    // SAFETY: as above.
    assert_eq!(unsafe { post(gone, &raw mut request, &raw mut bad) }, EINVAL);
    let mut queues = [gone];
    let mut attr =
        ibv_rwq_ind_table_init_attr { log_ind_tbl_size: 0, ind_tbl: queues.as_mut_ptr(), comp_mask: 0 };
    // SAFETY: as above, and a list as long as it says.
    assert!(unsafe { wq::create_rwq_ind_table(raw.context, &raw mut attr) }.is_null());
    assert_eq!(errno(), EINVAL);
    let mut queues = [work_queue(&raw, raw.pd, raw.cq)];
    attr.ind_tbl = queues.as_mut_ptr();
    // SAFETY: a live queue.
    let table = unsafe { wq::create_rwq_ind_table(raw.context, &raw mut attr) };
    // SAFETY: a live table.
    assert_eq!(unsafe { wq::destroy_rwq_ind_table(table) }, 0);
    // SAFETY: destroyed, and kept.
    assert_eq!(unsafe { wq::destroy_rwq_ind_table(table) }, EINVAL);
}

#[test]
fn queue_pairs() {
    let raw = Raw::new();
    let (gone, extended) = extended(&raw);
    // SAFETY: a live queue pair.
    assert_eq!(unsafe { ibv_destroy_qp(gone) }, 0);
    // SAFETY: destroyed, and kept; so in the rest of this test.
    assert_eq!(unsafe { ibv_destroy_qp(gone) }, EINVAL);
    let (mut attr, mut init) =
        (ibv_qp_attr { qp_state: 6, ..Default::default() }, ibv_qp_init_attr::default());
    // SAFETY: as above.
    assert_eq!(unsafe { ibv_modify_qp(gone, &raw mut attr, 1) }, EINVAL);
    // SAFETY: as above.
    assert_eq!(unsafe { ibv_query_qp(gone, &raw mut attr, 0, &raw mut init) }, EINVAL);
    // SAFETY: a live context.
    let ops = unsafe { (*raw.context).ops };
    let (mut receive, mut bad) = (ibv_recv_wr::default(), null_mut());
    // SAFETY: as above.
    assert_eq!(unsafe { ops.post_recv.unwrap()(gone, &raw mut receive, &raw mut bad) }, EINVAL);
    let (mut send, mut bad) = (ibv_send_wr::default(), null_mut());
    // SAFETY: as above.
    assert_eq!(unsafe { ops.post_send.unwrap()(gone, &raw mut send, &raw mut bad) }, EINVAL);
    // SAFETY: as above.
    let native = unsafe { &*extended };
    let (start, complete) = (native.wr_start, native.wr_complete);
    // SAFETY: as above.
    unsafe { start.unwrap()(extended) };
    // SAFETY: as above.
    assert_eq!(unsafe { complete.unwrap()(extended) }, EINVAL);
    let mut block = ibv_flow_attr { size: size_of::<ibv_flow_attr>() as u16, port: 1, ..Default::default() };
    // SAFETY: as above, and a block of its own size.
    assert!(unsafe { flow::create_flow(gone, &raw mut block) }.is_null());
    assert_eq!(errno(), EINVAL);
}

#[test]
fn a_batch_may_lose_its_queue_pair() {
    let raw = Raw::new();
    let (qp, extended) = extended(&raw);
    // SAFETY: a live queue pair; its functions do not change.
    let native = unsafe { &*extended };
    let (start, send, complete) = (native.wr_start, native.wr_send, native.wr_complete);
    // SAFETY: as above.
    unsafe { start.unwrap()(extended) };
    // SAFETY: as above.
    assert_eq!(unsafe { ibv_destroy_qp(qp) }, 0);
    // SAFETY: destroyed, and kept.
    unsafe { send.unwrap()(extended) };
    // SAFETY: as above.
    assert_eq!(unsafe { complete.unwrap()(extended) }, EINVAL);
}

#[test]
fn flows_and_counters() {
    let raw = Raw::new();
    let gone = default_flow(raw.qp);
    // SAFETY: a live flow.
    assert_eq!(unsafe { flow::destroy_flow(gone) }, 0);
    // SAFETY: destroyed, and kept.
    assert_eq!(unsafe { flow::destroy_flow(gone) }, EINVAL);
    let mut attr = ibverbs_sys::ibv_counters_init_attr { comp_mask: 0 };
    // SAFETY: a live context and a whole struct.
    let set = unsafe { counters::create_counters(raw.context, &raw mut attr) };
    // SAFETY: a live set.
    assert_eq!(unsafe { counters::destroy_counters(set) }, 0);
    // SAFETY: destroyed, and kept; so in the rest of this test.
    assert_eq!(unsafe { counters::destroy_counters(set) }, EINVAL);
    let mut point = ibverbs_sys::ibv_counter_attach_attr { counter_desc: 0, index: 0, comp_mask: 0 };
    // SAFETY: as above.
    assert_eq!(unsafe { counters::attach_counters_point_flow(set, &raw mut point, null_mut()) }, EINVAL);
    let mut value = 0;
    // SAFETY: as above.
    assert_eq!(unsafe { counters::read_counters(set, &raw mut value, 1, 0) }, EINVAL);
}
