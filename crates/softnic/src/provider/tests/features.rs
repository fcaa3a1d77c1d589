//! What queue pairs and work queues can be made to do, and what each personality refuses.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use ibverbs_sys::{
    IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, IBV_QP_CREATE_CVLAN_STRIPPING, IBV_QP_CREATE_PCI_WRITE_END_PADDING,
    IBV_QP_CREATE_SCATTER_FCS, IBV_QP_CREATE_SOURCE_QPN, IBV_QP_INIT_ATTR_CREATE_FLAGS,
    IBV_QP_INIT_ATTR_IND_TABLE, IBV_QP_INIT_ATTR_MAX_TSO_HEADER, IBV_QP_INIT_ATTR_RX_HASH,
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_RX_HASH_FUNC_TOEPLITZ, IBV_WQ_ATTR_FLAGS, IBV_WQ_ATTR_STATE,
    IBV_WQ_FLAGS_CVLAN_STRIPPING, IBV_WQ_FLAGS_DELAY_DROP, IBV_WQ_FLAGS_PCI_WRITE_END_PADDING,
    IBV_WQ_FLAGS_SCATTER_FCS, IBV_WQ_INIT_ATTR_FLAGS, IBV_WQS_ERR, IBV_WQS_RDY, IBV_WQS_RESET, IBV_WQT_RQ,
    ibv_modify_qp, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr, ibv_qp_rate_limit_attr,
    ibv_qp_state, ibv_qp_type, ibv_query_qp, ibv_recv_wr, ibv_rwq_ind_table_init_attr, ibv_rx_hash_conf,
    ibv_send_wr, ibv_sge, ibv_wc_status, ibv_wq, ibv_wq_attr, ibv_wq_init_attr, ibv_wr_opcode,
};
use packet::EtherType;
use packet::build::FrameBuilder;

use super::super::{flow, qp_modify, table, wq};
use super::{LOCAL_WRITE, Memory, Raw, bring_up, create_qp_ex, default_flow, udp};
use crate::Personality;

const ALL: [Personality; 3] = Personality::ALL;
const STATE: u32 = ibv_qp_attr_mask::IBV_QP_STATE.0;

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

fn with_flags(raw: &Raw, flags: u32) -> Result<*mut ibv_qp, c_int> {
    create_qp_ex(raw, |attr| {
        attr.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
        attr.create_flags = flags;
    })
}

/// Posts one receive by a queue pair's op.
fn receive(raw: &Raw, qp: *mut ibv_qp, memory: &Memory) {
    let mut element = memory.element(0, 2048);
    let mut wr = ibv_recv_wr { wr_id: 1, next: null_mut(), sg_list: &raw mut element, num_sge: 1 };
    // SAFETY: a live context.
    let post = unsafe { (*raw.context).ops.post_recv }.unwrap();
    let mut bad = null_mut();
    // SAFETY: a live queue pair and a chain of one request.
    assert_eq!(unsafe { post(qp, &raw mut wr, &raw mut bad) }, 0);
}

fn tagged(payload: usize) -> Vec<u8> {
    let frame = udp(payload);
    let mut tagged = frame.clone();
    tagged.splice(12..12, [0x81, 0x00, 0x60, 0x64]);
    tagged
}

/// CRC-32 of IEEE 802.3, bit by bit.
fn check_sequence(frame: &[u8]) -> [u8; 4] {
    let mut crc = u32::MAX;
    for byte in frame {
        for bit in 0..8 {
            let feedback = (crc ^ u32::from(byte >> bit)) & 1;
            crc = (crc >> 1) ^ (feedback * 0xedb8_8320);
        }
    }
    (!crc).to_le_bytes()
}

#[test]
fn frames_are_stripped_and_checked_as_the_queue_pair_wants_it() {
    for (flags, strips, appends) in [
        (0, false, false),
        (IBV_QP_CREATE_CVLAN_STRIPPING, true, false),
        (IBV_QP_CREATE_SCATTER_FCS, false, true),
        (IBV_QP_CREATE_CVLAN_STRIPPING | IBV_QP_CREATE_SCATTER_FCS, true, true),
    ] {
        let raw = Raw::new();
        // SAFETY: the flow of the first queue pair, destroyed once.
        assert_eq!(unsafe { flow::destroy_flow(raw.flow) }, 0);
        let qp = with_flags(&raw, flags | IBV_QP_CREATE_PCI_WRITE_END_PADDING).unwrap();
        bring_up(qp);
        default_flow(qp);
        let memory = raw.register(2048, LOCAL_WRITE);
        let service = FrameBuilder::new().vlan(EtherType(0x88a8), 5).payload(&[7; 80]).build();
        for (frame, is_tagged) in [(tagged(90), true), (udp(90), false), (service, false)] {
            receive(&raw, qp, &memory);
            raw.deliver([frame.clone()]);
            let mut wanted = frame.clone();
            if strips && is_tagged {
                wanted.drain(12..16);
            }
            if appends {
                wanted.extend(check_sequence(&frame));
            }
            let completions = raw.poll();
            assert_eq!(completions.len(), 1);
            assert_eq!(completions[0].byte_len as usize, wanted.len());
            assert_eq!(memory.read(0, wanted.len()), wanted, "flags {flags:#x}");
        }
        assert_eq!(raw.stats().delivered, 3);
    }
}

#[test]
fn flags_are_refused_as_by_the_device() {
    let known = [
        IBV_QP_CREATE_BLOCK_SELF_MCAST_LB,
        IBV_QP_CREATE_SCATTER_FCS,
        IBV_QP_CREATE_CVLAN_STRIPPING,
        IBV_QP_CREATE_PCI_WRITE_END_PADDING,
    ];
    for personality in ALL {
        let raw = Raw::with(personality, 64);
        for flag in known {
            let old = personality == Personality::Mlx4 && flag != IBV_QP_CREATE_BLOCK_SELF_MCAST_LB;
            let refusal = old.then_some(libc::EOPNOTSUPP);
            assert_eq!(with_flags(&raw, flag).err(), refusal, "{personality} {flag:#x}");
        }
        assert_eq!(with_flags(&raw, IBV_QP_CREATE_SOURCE_QPN).err(), Some(libc::EINVAL), "{personality}");
        assert_eq!(with_flags(&raw, 1).err(), Some(libc::EINVAL), "{personality}: no such flag");
        let tso = |bytes| {
            create_qp_ex(&raw, |attr| {
                attr.comp_mask |= IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
                attr.max_tso_header = bytes;
            })
        };
        assert_eq!(tso(512).err(), None, "{personality}");
        assert_eq!(tso(513).err(), Some(libc::EINVAL), "{personality}");
    }
}

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
    let mut attr = ibv_rwq_ind_table_init_attr {
        log_ind_tbl_size: queues.len().ilog2(),
        ind_tbl: queues.as_mut_ptr(),
        comp_mask: 0,
    };
    // SAFETY: a live context and a whole struct, with a list of as many queues as it says.
    let table = unsafe { table::create_rwq_ind_table(raw.context, &raw mut attr) };
    if table.is_null() {
        return Err(errno());
    }
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
        attr.send_cq = null_mut();
        attr.cap = ibverbs_sys::ibv_qp_cap::default();
        attr.rwq_ind_tbl = table;
        attr.rx_hash_conf = conf;
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
        let raw = Raw::with(personality, 64);
        let old = personality == Personality::Mlx4;
        for (flag, refused) in [
            (IBV_WQ_FLAGS_CVLAN_STRIPPING, old),
            (IBV_WQ_FLAGS_SCATTER_FCS, false),
            (IBV_WQ_FLAGS_DELAY_DROP, true),
            (IBV_WQ_FLAGS_PCI_WRITE_END_PADDING, old),
            (1 << 9, true),
        ] {
            let refusal = refused.then_some(libc::EOPNOTSUPP);
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
    let cases: [(&str, Change, [c_int; 3]); 10] = [
        ("IPv4", |_| (), [0, 0, 0]),
        ("both families", |conf| conf.rx_hash_fields_mask = 0xf, [0, libc::EINVAL, 0]),
        ("both transports", |conf| conf.rx_hash_fields_mask = 0xf3, [0, libc::EINVAL, 0]),
        ("source only", |conf| conf.rx_hash_fields_mask = 1, [0, 0, n]),
        ("ports only", |conf| conf.rx_hash_fields_mask = 0x30, [0, 0, n]),
        ("no fields", |conf| conf.rx_hash_fields_mask = 0, [libc::EINVAL; 3]),
        ("unknown fields", |conf| conf.rx_hash_fields_mask = 1 << 20, [n; 3]),
        ("another function", |conf| conf.rx_hash_function = 2, [libc::EINVAL, n, n]),
        ("a short key", |conf| conf.rx_hash_key_len = 39, [libc::EINVAL, libc::EINVAL, n]),
        ("no key", |conf| conf.rx_hash_key = null_mut(), [libc::EINVAL; 3]),
    ];
    for (personality, index) in ALL.into_iter().zip(0..) {
        for (what, change, answers) in cases {
            let raw = Raw::with(personality, 64);
            let mut queues = [create_wq(&raw, 0).unwrap(), create_wq(&raw, 0).unwrap()];
            let answer = create_rss(&raw, &mut queues, change).err().unwrap_or(0);
            assert_eq!(answer, answers[index], "{personality}: {what}");
        }
    }
}

#[test]
fn rss_queue_pairs_have_the_number_and_states_of_the_device() {
    for personality in ALL {
        let raw = Raw::with(personality, 64);
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
        let flagged = create_qp_ex(&raw, |attr| attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | 16 | 32);
        assert!(flagged.is_err(), "an RSS queue pair that sends");
    }
}

#[test]
fn datagram_queue_pairs_are_a_form() {
    let datagram = |raw: &Raw| create_qp_ex(raw, |attr| attr.qp_type = ibv_qp_type::IBV_QPT_UD);
    assert_eq!(datagram(&Raw::new()).err(), Some(libc::EOPNOTSUPP));
    let raw = Raw::with(Personality::Mlx5, 64);
    let qp = datagram(&raw).unwrap();
    let modify = |state, qkey, mask: u32| {
        let mut attr =
            ibv_qp_attr { qp_state: state, port_num: 1, qkey, sq_psn: 0x45, ..ibv_qp_attr::default() };
        // SAFETY: a live queue pair and a whole struct.
        unsafe { ibv_modify_qp(qp, &raw mut attr, (mask | STATE) as c_int) }
    };
    let mask = |bits: &[ibv_qp_attr_mask]| bits.iter().fold(0, |mask, bit| mask | bit.0);
    let (port, qkey) = (ibv_qp_attr_mask::IBV_QP_PORT, ibv_qp_attr_mask::IBV_QP_QKEY);
    let init = mask(&[port, qkey, ibv_qp_attr_mask::IBV_QP_PKEY_INDEX]);
    assert_eq!(modify(ibv_qp_state::IBV_QPS_INIT, 0, mask(&[port])), libc::EINVAL, "no Q_Key");
    assert_eq!(modify(ibv_qp_state::IBV_QPS_INIT, 0x123, init), 0);
    assert_eq!(modify(ibv_qp_state::IBV_QPS_RTR, 0, 0), 0);
    assert_eq!(modify(ibv_qp_state::IBV_QPS_RTS, 0, 0), libc::EINVAL, "no SQ_PSN");
    assert_eq!(modify(ibv_qp_state::IBV_QPS_RTS, 0, ibv_qp_attr_mask::IBV_QP_SQ_PSN.0), 0);
    let (mut attr, mut init_attr) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
    // SAFETY: a live queue pair and whole structs.
    assert_eq!(unsafe { ibv_query_qp(qp, &raw mut attr, STATE as c_int, &raw mut init_attr) }, 0);
    assert_eq!((attr.qp_state, attr.qkey, attr.sq_psn), (ibv_qp_state::IBV_QPS_RTS, 0x123, 0x45));
    assert_eq!(init_attr.qp_type, ibv_qp_type::IBV_QPT_UD);
    let mut wr = ibv_send_wr { opcode: ibv_wr_opcode::IBV_WR_SEND, ..ibv_send_wr::default() };
    let (mut bad, mut bad_receive) = (null_mut(), null_mut());
    // SAFETY: a live context.
    let post = unsafe { (*raw.context).ops.post_send }.unwrap();
    // SAFETY: a live queue pair and a chain of one request.
    assert_eq!(unsafe { post(qp, &raw mut wr, &raw mut bad) }, libc::EOPNOTSUPP);
    assert_eq!(bad, &raw mut wr);
    let mut wr = ibv_recv_wr { wr_id: 1, next: null_mut(), sg_list: null_mut(), num_sge: 0 };
    // SAFETY: a live context.
    let post = unsafe { (*raw.context).ops.post_recv }.unwrap();
    // SAFETY: a live queue pair and a chain of one request.
    assert_eq!(unsafe { post(qp, &raw mut wr, &raw mut bad_receive) }, libc::EOPNOTSUPP);
}

#[test]
fn a_queue_pair_keeps_to_its_rate() {
    let raw = Raw::new();
    let memory = raw.register(2048, 0);
    let limit = |rate_limit, max_burst_sz| {
        let mut attr = ibv_qp_rate_limit_attr { rate_limit, max_burst_sz, typical_pkt_sz: 0, comp_mask: 0 };
        // SAFETY: a live queue pair and a whole struct.
        unsafe { qp_modify::modify_qp_rate_limit(raw.qp, &raw mut attr) }
    };
    assert_eq!(limit(u32::MAX, 0), libc::EINVAL);
    // A megabyte in a second: a frame of 1000 bytes takes a millisecond.
    assert_eq!(limit(8_000, 1), 0);
    let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
    // SAFETY: a live queue pair and whole structs.
    assert_eq!(unsafe { ibv_query_qp(raw.qp, &raw mut attr, 0, &raw mut init) }, 0);
    assert_eq!(attr.rate_limit, 8_000);
    let post = |frames: usize| {
        let mut element: ibv_sge = memory.element(0, 1000);
        let mut wr = ibv_send_wr {
            sg_list: &raw mut element,
            num_sge: 1,
            opcode: ibv_wr_opcode::IBV_WR_SEND,
            ..ibv_send_wr::default()
        };
        // SAFETY: a live context.
        let post = unsafe { (*raw.context).ops.post_send }.unwrap();
        for _ in 0..frames {
            let mut bad = null_mut();
            // SAFETY: a live queue pair and a chain of one request.
            assert_eq!(unsafe { post(raw.qp, &raw mut wr, &raw mut bad) }, 0);
        }
    };
    let start = Instant::now();
    post(11);
    while raw.sent.lock().unwrap().len() < 11 {
        raw.nic.pump(64);
        assert!(start.elapsed() < Duration::from_secs(20), "the rate is far too low");
    }
    assert!(start.elapsed() >= Duration::from_millis(9), "ten frames after the first take ten milliseconds");
    assert_eq!(limit(0, 0), 0);
    post(16);
    assert_eq!(raw.nic.pump(64), 16, "no limit any more");
    let old = Raw::with(Personality::Mlx4, 64);
    let mut attr = ibv_qp_attr { rate_limit: 5, ..ibv_qp_attr::default() };
    let mask = ibv_qp_attr_mask::IBV_QP_RATE_LIMIT.0 as c_int;
    // SAFETY: a live queue pair and a whole struct.
    assert_eq!(unsafe { ibv_modify_qp(old.qp, &raw mut attr, mask) }, libc::EOPNOTSUPP);
    // SAFETY: as above.
    assert_eq!(unsafe { ibv_modify_qp(raw.qp, &raw mut attr, mask) }, 0);
}

#[test]
fn transitions_need_exactly_their_attributes() {
    for personality in ALL {
        let raw = Raw::with(personality, 64);
        let refused = |state, mask| raw.modify(state, mask);
        let current = ibv_qp_attr_mask::IBV_QP_CUR_STATE.0;
        assert_eq!(refused(ibv_qp_state::IBV_QPS_RTS, STATE | current), libc::EINVAL, "not of raw packets");
        assert_eq!(refused(ibv_qp_state::IBV_QPS_INIT, STATE), libc::EINVAL);
        let drains = personality != Personality::Mlx5;
        let drained = refused(ibv_qp_state::IBV_QPS_SQD, STATE);
        assert_eq!(drained, if drains { 0 } else { libc::EINVAL }, "{personality}");
        assert_eq!(refused(ibv_qp_state::IBV_QPS_RESET, STATE), 0);
        let port = ibv_qp_attr_mask::IBV_QP_PORT.0;
        assert_eq!(refused(ibv_qp_state::IBV_QPS_INIT, STATE), libc::EINVAL, "no port");
        let more = port | ibv_qp_attr_mask::IBV_QP_QKEY.0;
        assert_eq!(refused(ibv_qp_state::IBV_QPS_INIT, STATE | more), libc::EINVAL, "a Q_Key");
        assert_eq!(refused(ibv_qp_state::IBV_QPS_INIT, STATE | port), 0);
        assert_eq!(refused(ibv_qp_state::IBV_QPS_ERR, STATE), 0);
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
