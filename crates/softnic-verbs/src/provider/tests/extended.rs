//! `ibv_qp_ex`: batches of sends by function calls, whole or not at all.

use std::ffi::{c_int, c_void};

use ibverbs_sys::{
    IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_TSO, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
    ibv_data_buf, ibv_qp, ibv_qp_attr_mask, ibv_qp_ex, ibv_qp_state, ibv_qp_to_qp_ex, ibv_send_flags,
    ibv_wc_status,
};
use softnic::Personality;

use super::{Memory, Raw, bring_up, create_qp_ex, modify, udp};

const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;

/// A queue pair's functions, called as the inline functions of verbs.h call them.
#[derive(Clone, Copy)]
pub(super) struct Extended {
    pub(super) qp: *mut ibv_qp,
    ex: *mut ibv_qp_ex,
}

macro_rules! calls {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $answer:ty)?;)*) => {
        $(pub(super) fn $name(&self, $($argument: $type),*) $(-> $answer)? {
            // SAFETY: a live, extended queue pair.
            let function = unsafe { (*self.ex).$name }.unwrap();
            // SAFETY: as above; what the arguments point to is the test's.
            unsafe { function(self.ex, $($argument),*) }
        })*
    };
}

impl Extended {
    pub(super) fn new(qp: *mut ibv_qp) -> Self {
        // SAFETY: a live queue pair.
        let ex = unsafe { ibv_qp_to_qp_ex(qp) };
        assert!(!ex.is_null(), "an extended queue pair");
        Self { qp, ex }
    }

    calls! {
        wr_start();
        wr_complete() -> c_int;
        wr_abort();
        wr_send();
        wr_send_tso(headers: *mut c_void, bytes: u16, segment_bytes: u16);
        wr_set_sge(key: u32, address: u64, bytes: u32);
        wr_set_sge_list(count: usize, list: *const ibverbs_sys::ibv_sge);
        wr_set_inline_data(address: *mut c_void, bytes: usize);
        wr_set_inline_data_list(count: usize, list: *const ibv_data_buf);
        wr_rdma_write(key: u32, address: u64);
        wr_send_imm(immediate: u32);
        wr_set_ud_addr(ah: *mut ibverbs_sys::ibv_ah, number: u32, key: u32);
        wr_atomic_write(key: u32, address: u64, value: *const c_void);
    }

    /// Sets the id and the flags of the next request.
    pub(super) fn members(&self, wr_id: u64, flags: u32) {
        // SAFETY: a live queue pair, used by this thread alone.
        unsafe { (*self.ex).wr_id = wr_id };
        // SAFETY: as above.
        unsafe { (*self.ex).wr_flags = flags };
    }

    fn send(&self, memory: &Memory, wr_id: u64, bytes: usize) {
        self.members(wr_id, SIGNALED);
        self.wr_send();
        self.wr_set_sge(memory.key(), memory.address(), bytes as u32);
    }
}

fn extended(raw: &Raw, operations: u32) -> Result<Extended, c_int> {
    let qp = create_qp_ex(raw, |attr| {
        attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        attr.send_ops_flags = operations.into();
    })?;
    bring_up(qp);
    Ok(Extended::new(qp))
}

/// Ids and statuses.
fn completed(raw: &Raw) -> Vec<(u64, u32)> {
    raw.poll().iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

#[test]
fn every_setter_names_the_bytes_of_its_request() {
    let raw = Raw::new();
    let qp = extended(&raw, IBV_QP_EX_WITH_SEND).unwrap();
    let memory = raw.register(2048, 0);
    let frame = udp(60);
    memory.write(0, &frame);
    let bytes = frame.len();
    qp.wr_start();
    qp.send(&memory, 1, bytes);
    qp.members(2, 0);
    qp.wr_send();
    let list = [memory.element(0, 20), memory.element(20, bytes as u32 - 20)];
    qp.wr_set_sge_list(list.len(), list.as_ptr());
    qp.members(3, SIGNALED);
    qp.wr_send();
    let mut own = frame.clone();
    own[0] ^= 3;
    qp.wr_set_inline_data(own.as_mut_ptr().cast(), bytes);
    let (first, second) = own.split_at_mut(33);
    let pieces =
        [first, second].map(|piece| ibv_data_buf { addr: piece.as_mut_ptr().cast(), length: piece.len() });
    qp.members(4, SIGNALED);
    qp.wr_send();
    qp.wr_set_inline_data_list(pieces.len(), pieces.as_ptr());
    let other = own.clone();
    own.fill(0);
    assert!(raw.sent().is_empty(), "nothing is sent before the batch is complete");
    assert_eq!(qp.wr_complete(), 0);
    assert_eq!(raw.sent(), [frame.clone(), frame, other.clone(), other]);
    let ok = ibv_wc_status::IBV_WC_SUCCESS;
    assert_eq!(completed(&raw), [(1, ok), (3, ok), (4, ok)]);
}

#[test]
fn an_aborted_batch_was_never_there() {
    let raw = Raw::new();
    let qp = extended(&raw, IBV_QP_EX_WITH_SEND).unwrap();
    let memory = raw.register(2048, 0);
    memory.write(0, &udp(60));
    for round in 0..40 {
        qp.wr_start();
        for wr_id in 0..16 {
            qp.send(&memory, wr_id, 80);
        }
        qp.wr_abort();
        assert!(raw.sent().is_empty(), "round {round}");
    }
    qp.wr_start();
    qp.send(&memory, 99, 80);
    assert_eq!(qp.wr_complete(), 0);
    assert_eq!(raw.sent().len(), 1);
    assert_eq!(completed(&raw), [(99, ibv_wc_status::IBV_WC_SUCCESS)]);
}

#[test]
fn a_full_ring_refuses_the_whole_batch() {
    let raw = Raw::new();
    let qp = extended(&raw, IBV_QP_EX_WITH_SEND).unwrap();
    let memory = raw.register(2048, 0);
    for requests in [16, 17, 30, 1] {
        qp.wr_start();
        for wr_id in 0..requests {
            qp.send(&memory, wr_id, 80);
        }
        let fits = requests <= 16;
        assert_eq!(qp.wr_complete(), if fits { 0 } else { libc::ENOMEM }, "{requests} requests");
        assert_eq!(raw.sent().len(), if fits { requests as usize } else { 0 });
        completed(&raw);
    }
}

type Mistake = fn(&Extended, &Memory);

/// The mistakes that can be made in a batch, each with its result.
#[allow(clippy::too_many_lines, reason = "a table, a row per mistake")]
fn mistakes() -> [(&'static str, Mistake, c_int); 15] {
    [
        ("no data", |qp, _| qp.wr_send(), libc::EINVAL),
        (
            "no data before the next",
            |qp, memory| {
                qp.wr_send();
                qp.send(memory, 1, 80);
            },
            libc::EINVAL,
        ),
        (
            "data without a request",
            |qp, memory| qp.wr_set_sge(memory.key(), memory.address(), 80),
            libc::EINVAL,
        ),
        (
            "data twice",
            |qp, memory| {
                qp.send(memory, 1, 80);
                qp.wr_set_sge(1, 1, 1);
            },
            libc::EINVAL,
        ),
        (
            "five elements",
            |qp, memory| {
                qp.wr_send();
                qp.wr_set_sge_list(5, [memory.element(0, 20); 5].as_ptr());
            },
            libc::EINVAL,
        ),
        (
            "a list of 2^32 elements",
            |qp, _| {
                qp.wr_send();
                qp.wr_set_sge_list(1 << 32, std::ptr::null());
            },
            libc::EINVAL,
        ),
        (
            "a list that is NULL",
            |qp, _| {
                qp.wr_send();
                qp.wr_set_sge_list(1, std::ptr::null());
            },
            libc::EINVAL,
        ),
        (
            "inline data that are NULL",
            |qp, _| {
                qp.wr_send();
                qp.wr_set_inline_data(std::ptr::null_mut(), 60);
            },
            libc::EINVAL,
        ),
        (
            "more than max_inline_data",
            |qp, _| {
                qp.wr_send();
                qp.wr_set_inline_data([0u8; 129].as_mut_ptr().cast(), 129);
            },
            libc::ENOMEM,
        ),
        (
            "an unknown flag",
            |qp, _| {
                qp.members(1, 1 << 9);
                qp.wr_send();
            },
            libc::EINVAL,
        ),
        ("another operation", |qp, _| qp.wr_rdma_write(1, 2), libc::EOPNOTSUPP),
        (
            "two mistakes",
            |qp, memory| {
                qp.wr_atomic_write(1, 2, std::ptr::null());
                qp.wr_set_sge(memory.key(), memory.address(), 80);
            },
            libc::EOPNOTSUPP,
        ),
        (
            "a mistake and then a request",
            |qp, memory| {
                qp.wr_send_imm(1);
                qp.send(memory, 1, 80);
            },
            libc::EOPNOTSUPP,
        ),
        ("a send with immediate data", |qp, _| qp.wr_send_imm(7), libc::EOPNOTSUPP),
        (
            "segments without max_tso_header",
            |qp, _| {
                qp.wr_send_tso([0u8; 54].as_mut_ptr().cast(), 54, 1000);
            },
            libc::EINVAL,
        ),
    ]
}

#[test]
fn complete_returns_the_first_error() {
    let raw = Raw::new();
    let qp = extended(&raw, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO).unwrap();
    let memory = raw.register(2048, 0);
    for (what, mistake, errno) in mistakes() {
        qp.wr_start();
        qp.members(1, 0);
        qp.send(&memory, 0, 80);
        mistake(&qp, &memory);
        assert_eq!(qp.wr_complete(), errno, "{what}");
        assert!(raw.sent().is_empty(), "{what}");
    }
    assert_eq!(qp.wr_complete(), libc::EINVAL, "no batch is open");
    qp.wr_abort();
    qp.wr_send();
    qp.wr_start();
    assert_eq!(qp.wr_complete(), 0, "an empty batch");
}

#[test]
fn a_queue_pair_that_cannot_send_takes_no_batch() {
    let raw = Raw::new();
    let qp = extended(&raw, IBV_QP_EX_WITH_SEND).unwrap();
    let memory = raw.register(2048, 0);
    let state = ibv_qp_attr_mask::IBV_QP_STATE.0;
    let post = || {
        qp.wr_start();
        qp.send(&memory, 5, 80);
        qp.wr_complete()
    };
    assert_eq!(modify(qp.qp, ibv_qp_state::IBV_QPS_SQD, state), 0);
    assert_eq!(post(), 0);
    assert!(raw.sent().is_empty(), "a drained queue keeps what is posted");
    assert_eq!(modify(qp.qp, ibv_qp_state::IBV_QPS_RTS, state), 0);
    assert_eq!(raw.sent().len(), 1);
    assert_eq!(modify(qp.qp, ibv_qp_state::IBV_QPS_ERR, state), 0);
    assert_eq!(post(), 0);
    raw.deliver([]);
    assert_eq!(completed(&raw), [(5, 0), (5, ibv_wc_status::IBV_WC_WR_FLUSH_ERR)]);
    assert_eq!(modify(qp.qp, ibv_qp_state::IBV_QPS_RESET, state), 0);
    assert_eq!(post(), libc::EINVAL);
}

#[test]
fn only_the_operations_of_raw_packets_can_be_asked_for() {
    let raw = Raw::new();
    assert_eq!(extended(&raw, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE).err(), Some(libc::EOPNOTSUPP));
    // SAFETY: a live queue pair.
    assert!(unsafe { ibv_qp_to_qp_ex(raw.qp) }.is_null(), "nobody asked for it");
    let old = Raw::with_personality(Personality::Mlx4);
    assert_eq!(extended(&old, IBV_QP_EX_WITH_SEND).err(), Some(libc::EOPNOTSUPP));
    let new = Raw::with_personality(Personality::Mlx5);
    assert!(extended(&new, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO).is_ok());
}
