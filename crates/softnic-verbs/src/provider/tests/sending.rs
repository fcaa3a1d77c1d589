//! Sends: gathering, inline data, checksums, what is refused and what fails.

use std::ffi::c_int;

use ibverbs_sys::{
    IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL, ibv_qp_attr_mask, ibv_qp_state, ibv_send_flags, ibv_send_wr,
    ibv_sge, ibv_wc_opcode, ibv_wc_status, ibv_wr_opcode,
};

use super::{Raw, udp};

const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;
const CHECKSUM: u32 = ibv_send_flags::IBV_SEND_IP_CSUM.0;

fn post(raw: &Raw, wr_id: u64, elements: &mut [ibv_sge], flags: u32) -> c_int {
    post_opcode(raw, wr_id, elements, flags, ibv_wr_opcode::IBV_WR_SEND)
}

fn post_opcode(
    raw: &Raw,
    wr_id: u64,
    elements: &mut [ibv_sge],
    flags: u32,
    opcode: ibv_wr_opcode::Type,
) -> c_int {
    let mut wr = ibv_send_wr {
        wr_id,
        sg_list: elements.as_mut_ptr(),
        num_sge: elements.len() as c_int,
        opcode,
        send_flags: flags,
        ..ibv_send_wr::default()
    };
    let mut bad = std::ptr::null_mut();
    // SAFETY: a live context.
    let post = unsafe { (*raw.context).ops.post_send }.unwrap();
    // SAFETY: a live queue pair and a chain of one request.
    let errno = unsafe { post(raw.qp, &raw mut wr, &raw mut bad) };
    assert_eq!(errno != 0, bad == &raw mut wr);
    errno
}

#[test]
fn elements_are_gathered_in_order_and_only_signaled_sends_complete() {
    let raw = Raw::new();
    let memory = raw.register(2048, 0);
    let frame = udp(100);
    memory.write(10, &frame);
    let split = [memory.element(10, 20), memory.element(30, 1), memory.element(31, frame.len() as u32 - 21)];
    assert_eq!(post(&raw, 1, &mut split.clone(), 0), 0);
    assert_eq!(post(&raw, 2, &mut split.clone(), SIGNALED), 0);
    assert_eq!(raw.sent(), [frame.clone(), frame.clone()]);
    let completions = raw.poll();
    assert_eq!(completions.len(), 1);
    let wc = completions[0];
    assert_eq!(
        (wc.wr_id, wc.status, wc.opcode),
        (2, ibv_wc_status::IBV_WC_SUCCESS, ibv_wc_opcode::IBV_WC_SEND)
    );
    let stats = raw.stats();
    assert_eq!((stats.tx_frames, stats.tx_bytes, stats.tx_errors), (2, 2 * frame.len() as u64, 0));
}

#[test]
fn a_queue_pair_that_fails_with_its_completion_queue_sends_no_more() {
    let raw = Raw::with_cq(4);
    let memory = raw.register(2048, 0);
    let frame = udp(100);
    memory.write(0, &frame);
    for wr_id in 0..8 {
        assert_eq!(post(&raw, wr_id, &mut [memory.element(0, frame.len() as u32)], SIGNALED), 0);
    }
    assert_eq!(raw.sent().len(), 5, "four completed, and the one whose completion found no room");
    assert_eq!(raw.stats().tx_frames, 5);
    assert_eq!((raw.event(), raw.event()), (IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL));
    let completed: Vec<_> = raw.poll().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(completed, [0, 1, 2, 3].map(|wr_id| (wr_id, ibv_wc_status::IBV_WC_SUCCESS)));
    assert!(raw.sent().is_empty());
}

#[test]
fn inline_bytes_are_taken_at_once_and_need_no_key() {
    let raw = Raw::new();
    let mut frame = udp(20);
    frame.truncate(62);
    let element = |bytes: &[u8]| ibv_sge {
        addr: bytes.as_ptr().expose_provenance() as u64,
        length: bytes.len() as u32,
        lkey: 0,
    };
    let mut copy = frame.clone();
    assert_eq!(post(&raw, 1, &mut [element(&copy[..30]), element(&copy[30..])], INLINE), 0);
    copy.fill(0);
    assert_eq!(raw.sent(), [frame]);
    let long = [0u8; 65];
    assert_eq!(post(&raw, 2, &mut [element(&long)], INLINE), libc::ENOMEM, "max_inline_data is 64");
}

#[test]
fn checksums_are_filled_in_on_request() {
    let raw = Raw::new();
    let memory = raw.register(2048, 0);
    let frame = udp(33);
    let mut blank = frame.clone();
    blank[24..26].fill(0xee);
    blank[40..42].fill(0xee);
    memory.write(0, &blank);
    assert_eq!(post(&raw, 1, &mut [memory.element(0, frame.len() as u32)], CHECKSUM), 0);
    assert_eq!(raw.sent(), [frame]);
}

#[test]
fn other_operations_than_sends_are_refused() {
    let raw = Raw::new();
    let memory = raw.register(2048, 0);
    let list = || [memory.element(0, 100)];
    assert_eq!(post_opcode(&raw, 1, &mut list(), 0, ibv_wr_opcode::IBV_WR_RDMA_WRITE), libc::EINVAL);
    assert_eq!(post(&raw, 1, &mut list(), 1 << 30), libc::EINVAL, "an unknown flag");
    assert_eq!(post(&raw, 1, &mut [memory.element(0, 10); 5], 0), libc::EINVAL, "max_send_sge is 4");
    for index in 0..16 {
        assert_eq!(post(&raw, index, &mut list(), 0), 0);
    }
    assert_eq!(post(&raw, 16, &mut list(), 0), libc::ENOMEM);
    assert_eq!(raw.sent().len(), 16);
    let state = ibv_qp_attr_mask::IBV_QP_STATE.0;
    assert_eq!(raw.modify(ibv_qp_state::IBV_QPS_RESET, state), 0);
    assert_eq!(post(&raw, 1, &mut list(), 0), libc::EINVAL, "not in RTS");
}

#[test]
fn a_bad_send_completes_with_its_error_and_the_rest_is_flushed() {
    type Spoil = fn(ibv_sge) -> ibv_sge;
    let cases: [(Spoil, u32); 4] = [
        (|sge| ibv_sge { lkey: sge.lkey ^ 0x100, ..sge }, ibv_wc_status::IBV_WC_LOC_PROT_ERR),
        (|sge| ibv_sge { addr: sge.addr + 2000, ..sge }, ibv_wc_status::IBV_WC_LOC_PROT_ERR),
        (|sge| ibv_sge { length: 13, ..sge }, ibv_wc_status::IBV_WC_LOC_LEN_ERR),
        (|sge| ibv_sge { length: 1523, ..sge }, ibv_wc_status::IBV_WC_LOC_LEN_ERR),
    ];
    for (spoil, status) in cases {
        let raw = Raw::new();
        let memory = raw.register(2048, 0);
        assert_eq!(post(&raw, 1, &mut [spoil(memory.element(0, 100))], 0), 0);
        assert_eq!(post(&raw, 2, &mut [memory.element(0, 100)], 0), 0);
        assert!(raw.sent().is_empty());
        raw.deliver([]);
        let outcome: Vec<_> = raw.poll().iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(outcome, [(1, status), (2, ibv_wc_status::IBV_WC_WR_FLUSH_ERR)]);
        assert_eq!(raw.event(), IBV_EVENT_QP_FATAL);
        assert_eq!(raw.stats().tx_errors, 1);
    }
}
