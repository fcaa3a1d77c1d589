//! Work queues, indirection tables and RSS queue pairs: flags, states, and what each personality refuses.

use std::ffi::c_int;
use std::ptr::null_mut;

use ibverbs_sys::{
    IBV_QP_INIT_ATTR_IND_TABLE, IBV_QP_INIT_ATTR_RX_HASH, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
    IBV_RX_HASH_FUNC_TOEPLITZ, IBV_WQ_ATTR_FLAGS, IBV_WQ_ATTR_STATE, IBV_WQ_FLAGS_CVLAN_STRIPPING,
    IBV_WQ_FLAGS_DELAY_DROP, IBV_WQ_FLAGS_PCI_WRITE_END_PADDING, IBV_WQ_FLAGS_SCATTER_FCS,
    IBV_WQ_INIT_ATTR_FLAGS, IBV_WQS_ERR, IBV_WQS_RDY, IBV_WQS_RESET, IBV_WQT_RQ, ibv_modify_qp, ibv_qp,
    ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr_ex, ibv_qp_state, ibv_recv_wr, ibv_rwq_ind_table,
    ibv_rwq_ind_table_init_attr, ibv_rx_hash_conf, ibv_wc_status, ibv_wq, ibv_wq_attr, ibv_wq_init_attr,
};
use rustix::thread::CapabilitySet;
use softnic::Personality;
use softnic::objects::has_capability;

use super::super::{flow, wq};
use super::features::{ALL, STATE, check_sequence, errno, tagged};
use super::{LOCAL_WRITE, Raw, create_qp_ex, default_flow};

/// A work queue of two receives; the errno if it is refused.
fn create_wq(raw: &Raw, flags: u32) -> Result<*mut ibv_wq, c_int> {
    let mut attr = ibv_wq_init_attr {
        wq_context: null_mut(),
        wq_type: IBV_WQT_RQ,
        max_wr: 2,
        max_sge: 1,
        pd: raw.pd,
        cq: raw.cq,
        comp_mask: if flags == 0 { 0 } else { IBV_WQ_INIT_ATTR_FLAGS },
        create_flags: flags,
    };
    // SAFETY: a live context and a whole struct.
    let wq = unsafe { wq::create_wq(raw.context, &raw mut attr) };
    if wq.is_null() { Err(errno()) } else { Ok(wq) }
}

fn modify_wq(wq: *mut ibv_wq, change: impl FnOnce(&mut ibv_wq_attr)) -> c_int {
    let mut attr = ibv_wq_attr { attr_mask: 0, wq_state: 0, curr_wq_state: 0, flags: 0, flags_mask: 0 };
    change(&mut attr);
    // SAFETY: a live queue and a whole struct.
    unsafe { wq::modify_wq(wq, &raw mut attr) }
}

fn to_state(wq: *mut ibv_wq, state: u32) -> c_int {
    modify_wq(wq, |attr| (attr.attr_mask, attr.wq_state) = (IBV_WQ_ATTR_STATE, state))
}

/// An RSS queue pair over the queues.
fn create_rss(
    raw: &Raw,
    queues: &mut [*mut ibv_wq],
    change: impl FnOnce(&mut ibv_rx_hash_conf),
) -> Result<*mut ibv_qp, c_int> {
    create_rss_over(raw, create_table(raw, queues)?, change, |_| ())
}

fn create_table(raw: &Raw, queues: &mut [*mut ibv_wq]) -> Result<*mut ibv_rwq_ind_table, c_int> {
    let mut attr = ibv_rwq_ind_table_init_attr {
        log_ind_tbl_size: queues.len().ilog2(),
        ind_tbl: queues.as_mut_ptr(),
        comp_mask: 0,
    };
    // SAFETY: a live context and a whole struct, with a list of as many queues as it says.
    let table = unsafe { wq::create_rwq_ind_table(raw.context, &raw mut attr) };
    if table.is_null() { Err(errno()) } else { Ok(table) }
}

fn create_rss_over(
    raw: &Raw,
    table: *mut ibv_rwq_ind_table,
    change: impl FnOnce(&mut ibv_rx_hash_conf),
    change_pair: impl FnOnce(&mut ibv_qp_init_attr_ex),
) -> Result<*mut ibv_qp, c_int> {
    let mut key = [1u8; 40];
    let mut conf = ibv_rx_hash_conf {
        rx_hash_function: IBV_RX_HASH_FUNC_TOEPLITZ as u8,
        rx_hash_key_len: 40,
        rx_hash_key: key.as_mut_ptr(),
        rx_hash_fields_mask: 3,
    };
    change(&mut conf);
    create_qp_ex(raw, |attr| {
        attr.comp_mask |= IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
        (attr.send_cq, attr.recv_cq) = (null_mut(), null_mut());
        attr.cap = ibverbs_sys::ibv_qp_cap::default();
        attr.rwq_ind_tbl = table;
        attr.rx_hash_conf = conf;
        change_pair(attr);
    })
}

#[test]
fn stripping_can_be_switched_while_frames_come() {
    let raw = Raw::new();
    // SAFETY: the flow of the first queue pair, destroyed once.
    assert_eq!(unsafe { flow::destroy_flow(raw.flow) }, 0);
    let wq = create_wq(&raw, IBV_WQ_FLAGS_SCATTER_FCS).unwrap();
    assert_eq!(to_state(wq, IBV_WQS_RDY), 0);
    default_flow(create_rss(&raw, &mut [wq], |conf| conf.rx_hash_fields_mask = 0).unwrap());
    let memory = raw.register(2048, LOCAL_WRITE);
    for (mask, flags, strips) in [
        (0, 0, false),
        (IBV_WQ_FLAGS_CVLAN_STRIPPING, IBV_WQ_FLAGS_CVLAN_STRIPPING, true),
        (0, 0, true),
        (IBV_WQ_FLAGS_CVLAN_STRIPPING, 0, false),
    ] {
        assert_eq!(
            modify_wq(wq, |attr| {
                (attr.attr_mask, attr.flags_mask, attr.flags) = (IBV_WQ_ATTR_FLAGS, mask, flags);
            }),
            0
        );
        let mut element = memory.element(0, 2048);
        let mut wr = ibv_recv_wr { wr_id: 1, next: null_mut(), sg_list: &raw mut element, num_sge: 1 };
        let mut bad = null_mut();
        // SAFETY: a live queue.
        let post = unsafe { (*wq).post_recv }.unwrap();
        // SAFETY: a live queue and a chain of one request.
        assert_eq!(unsafe { post(wq, &raw mut wr, &raw mut bad) }, 0);
        let frame = tagged(50);
        raw.deliver([frame.clone()]);
        let wanted = if strips { frame.len() } else { frame.len() + 4 };
        assert_eq!(raw.poll()[0].byte_len as usize, wanted);
        assert_eq!(memory.read(wanted - 4, 4), check_sequence(&frame));
    }
}

#[test]
fn work_queues_have_the_flags_and_states_of_the_device() {
    for personality in ALL {
        let raw = Raw::with_personality(personality);
        let old = personality == Personality::Mlx4;
        for (flag, refused) in [
            (IBV_WQ_FLAGS_CVLAN_STRIPPING, old),
            (IBV_WQ_FLAGS_SCATTER_FCS, false),
            (IBV_WQ_FLAGS_DELAY_DROP, true),
            (IBV_WQ_FLAGS_PCI_WRITE_END_PADDING, old),
            (1 << 9, true),
        ] {
            let raw_io = has_capability(CapabilitySet::SYS_RAWIO);
            let refusal = match (personality, flag) {
                (Personality::Mlx5, IBV_WQ_FLAGS_DELAY_DROP) if !raw_io => Some(libc::EPERM),
                _ => refused.then_some(libc::EOPNOTSUPP),
            };
            assert_eq!(create_wq(&raw, flag).err(), refusal, "{personality} {flag:#x}");
        }
        let wq = create_wq(&raw, 0).unwrap();
        let flags =
            |mask| modify_wq(wq, |attr| (attr.attr_mask, attr.flags_mask) = (IBV_WQ_ATTR_FLAGS, mask));
        assert_eq!(
            flags(IBV_WQ_FLAGS_CVLAN_STRIPPING),
            if old { libc::EOPNOTSUPP } else { 0 },
            "{personality}"
        );
        assert_eq!(flags(IBV_WQ_FLAGS_PCI_WRITE_END_PADDING), libc::EOPNOTSUPP, "{personality}");
        // mlx5 does not look at it (kernel qp.c, `mlx5_ib_modify_wq`).
        let ignored = personality == Personality::Mlx5;
        assert_eq!(
            flags(IBV_WQ_FLAGS_SCATTER_FCS),
            if ignored { 0 } else { libc::EOPNOTSUPP },
            "{personality}"
        );
        assert_eq!(modify_wq(wq, |_| ()), libc::EINVAL, "nothing is asked for");
        assert_eq!(to_state(wq, IBV_WQS_ERR), if old { libc::EINVAL } else { 0 }, "{personality}");
        assert_eq!(to_state(wq, IBV_WQS_RESET), 0);
        assert_eq!(to_state(wq, IBV_WQS_RDY), 0);
        assert_eq!(to_state(wq, IBV_WQS_ERR), 0);
        assert_eq!(to_state(wq, IBV_WQS_RDY), libc::EINVAL);
        assert_eq!(to_state(wq, 7), libc::EINVAL);
    }
}

#[test]
fn rss_is_refused_as_by_the_device() {
    type Change = fn(&mut ibv_rx_hash_conf);
    let n = libc::EOPNOTSUPP;
    // Ideal, mlx5, mlx4.
    let cases: [(&str, Change, [c_int; 3]); 12] = [
        ("IPv4", |_| (), [0, 0, 0]),
        ("both families", |conf| conf.rx_hash_fields_mask = 0xf, [0, libc::EINVAL, 0]),
        ("both transports", |conf| conf.rx_hash_fields_mask = 0xf3, [0, libc::EINVAL, 0]),
        ("source only", |conf| conf.rx_hash_fields_mask = 1, [0, 0, n]),
        ("ports only", |conf| conf.rx_hash_fields_mask = 0x30, [0, 0, n]),
        ("no fields", |conf| conf.rx_hash_fields_mask = 0, [libc::EINVAL; 3]),
        ("the inner packet", |conf| conf.rx_hash_fields_mask = 1 << 31 | 3, [0, n, n]),
        ("the SPI", |conf| conf.rx_hash_fields_mask = 1 << 8 | 3, [0, n, n]),
        ("unknown fields", |conf| conf.rx_hash_fields_mask = 1 << 20, [n; 3]),
        ("another function", |conf| conf.rx_hash_function = 2, [libc::EINVAL, n, n]),
        ("a short key", |conf| conf.rx_hash_key_len = 39, [libc::EINVAL, libc::EINVAL, n]),
        ("no key", |conf| conf.rx_hash_key = null_mut(), [libc::EINVAL; 3]),
    ];
    for (personality, index) in ALL.into_iter().zip(0..) {
        for (what, change, answers) in cases {
            let raw = Raw::with_personality(personality);
            let mut queues = [create_wq(&raw, 0).unwrap(), create_wq(&raw, 0).unwrap()];
            let answer = create_rss(&raw, &mut queues, change).err().unwrap_or(0);
            assert_eq!(answer, answers[index], "{personality}: {what}");
        }
    }
}

#[test]
fn rss_queue_pairs_have_the_number_and_states_of_the_device() {
    for personality in ALL {
        let raw = Raw::with_personality(personality);
        let (first, second) = (create_wq(&raw, 0).unwrap(), create_wq(&raw, 0).unwrap());
        let qp = create_rss(&raw, &mut [first, second], |_| ()).unwrap();
        // SAFETY: a live queue pair.
        let number = unsafe { (*qp).qp_num };
        assert_eq!(number == 0, personality == Personality::Mlx5, "{personality}");
        let mut attr =
            ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_INIT, port_num: 1, ..ibv_qp_attr::default() };
        // SAFETY: a live queue pair and a whole struct.
        let status =
            unsafe { ibv_modify_qp(qp, &raw mut attr, (STATE | ibv_qp_attr_mask::IBV_QP_PORT.0) as c_int) };
        assert_eq!(status, if personality == Personality::Mlx4 { 0 } else { libc::EOPNOTSUPP });
        let doubled = create_rss(&raw, &mut [first, second, first, second], |_| ());
        assert_eq!(
            doubled.err(),
            (personality == Personality::Mlx4).then_some(libc::EINVAL),
            "{personality}"
        );
        let table = create_table(&raw, &mut [first, second]).unwrap();
        let sending = |sends| {
            create_rss_over(&raw, table, |_| (), |attr| attr.cap.max_send_wr = sends).err().unwrap_or(0)
        };
        let refusal = match personality {
            Personality::Mlx5 => libc::EINVAL,
            Personality::Mlx4 => libc::EOPNOTSUPP,
            _ => 0,
        };
        assert_eq!((sending(0), sending(1)), (0, refusal), "{personality}");
        let flagged = create_qp_ex(&raw, |attr| attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | 16 | 32);
        assert!(flagged.is_err(), "an RSS queue pair that sends");
    }
}

#[test]
fn rss_queue_pairs_receive_through_their_tables_alone() {
    type Change = fn(&Raw, &mut ibv_qp_init_attr_ex);
    let cases: [(&str, Change); 4] = [
        ("a completion queue", |raw, attr| attr.recv_cq = raw.cq),
        ("requests", |_, attr| attr.cap.max_recv_wr = 1),
        ("pieces of a request", |_, attr| attr.cap.max_recv_sge = 1),
        ("a shared queue", |_, attr| attr.srq = std::ptr::without_provenance_mut(8)),
    ];
    for personality in ALL {
        let raw = Raw::with_personality(personality);
        let table = create_table(&raw, &mut [create_wq(&raw, 0).unwrap()]).unwrap();
        for (what, change) in cases {
            let made = create_rss_over(&raw, table, |_| (), |attr| change(&raw, attr));
            assert_eq!(made.err(), Some(libc::EINVAL), "{personality}: {what}");
        }
        assert!(create_rss_over(&raw, table, |_| (), |_| ()).is_ok(), "{personality}");
    }
}

#[test]
fn a_failed_work_queue_flushes_what_is_posted() {
    let raw = Raw::new();
    let wq = create_wq(&raw, 0).unwrap();
    assert_eq!(to_state(wq, IBV_WQS_RDY), 0);
    let post = |wr_id| {
        let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: null_mut(), num_sge: 0 };
        let mut bad = null_mut();
        // SAFETY: a live queue.
        let post = unsafe { (*wq).post_recv }.unwrap();
        // SAFETY: a live queue and a chain of one request.
        unsafe { post(wq, &raw mut wr, &raw mut bad) }
    };
    assert_eq!((post(1), post(2), post(3)), (0, 0, libc::ENOMEM));
    assert_eq!(to_state(wq, IBV_WQS_ERR), 0);
    assert_eq!(post(4), 0);
    raw.deliver([]);
    let flushed = ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
    let outcome: Vec<_> = raw.poll().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(outcome, [(1, flushed), (2, flushed), (4, flushed)]);
    assert_eq!(to_state(wq, IBV_WQS_RESET), 0);
    assert_eq!(post(5), libc::EINVAL, "a queue in RESET takes nothing");
}
