//! What queue pairs can be made to do, and what each personality refuses.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use ibverbs_sys::{
    IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, IBV_QP_CREATE_CVLAN_STRIPPING, IBV_QP_CREATE_PCI_WRITE_END_PADDING,
    IBV_QP_CREATE_SCATTER_FCS, IBV_QP_CREATE_SOURCE_QPN, IBV_QP_INIT_ATTR_CREATE_FLAGS,
    IBV_QP_INIT_ATTR_MAX_TSO_HEADER, ibv_attach_mcast, ibv_detach_mcast, ibv_ece, ibv_gid, ibv_modify_qp,
    ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr, ibv_qp_rate_limit_attr, ibv_qp_state,
    ibv_qp_type, ibv_query_ece, ibv_query_qp, ibv_query_qp_data_in_order, ibv_recv_wr, ibv_send_wr,
    ibv_set_ece, ibv_sge, ibv_wr_opcode,
};
use packet::EtherType;
use packet::build::FrameBuilder;
use softnic::Personality;

use super::super::{flow, qp};
use super::{LOCAL_WRITE, Memory, Raw, bring_up, create_qp_ex, default_flow, udp};

pub(super) const ALL: [Personality; 3] = Personality::ALL;
pub(super) const STATE: u32 = ibv_qp_attr_mask::IBV_QP_STATE.0;

pub(super) fn errno() -> c_int {
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

pub(super) fn tagged(payload: usize) -> Vec<u8> {
    let frame = udp(payload);
    let mut tagged = frame.clone();
    tagged.splice(12..12, [0x81, 0x00, 0x60, 0x64]);
    tagged
}

/// CRC-32 of IEEE 802.3, bit by bit.
pub(super) fn check_sequence(frame: &[u8]) -> [u8; 4] {
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
        // Tags that the frame ends in or right behind are not told by the completion, and stay; a short frame
        // can have one.
        let ends = [14, 15, 16, 17].map(|bytes| (tagged(90)[..bytes].to_vec(), false));
        let short = tagged(90)[..18].to_vec();
        let whole = [(tagged(90), true), (udp(90), false), (service, false), (short, true)];
        for (frame, is_tagged) in whole.into_iter().chain(ends) {
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
        assert_eq!(raw.stats().delivered, 8);
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
        let raw = Raw::with_personality(personality);
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

#[test]
fn datagram_queue_pairs_have_attributes_of_their_own() {
    let raw = Raw::new();
    let qp = create_qp_ex(&raw, |attr| attr.qp_type = ibv_qp_type::IBV_QPT_UD).unwrap();
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
}

#[test]
fn a_queue_pair_keeps_to_its_rate() {
    let raw = Raw::new();
    let memory = raw.register(2048, 0);
    let limit = |rate_limit, max_burst_sz| {
        let mut attr = ibv_qp_rate_limit_attr { rate_limit, max_burst_sz, typical_pkt_sz: 0, comp_mask: 0 };
        // SAFETY: a live queue pair and a whole struct.
        unsafe { qp::modify_qp_rate_limit(raw.qp, &raw mut attr) }
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
    let old = Raw::with_personality(Personality::Mlx4);
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
        let raw = Raw::with_personality(personality);
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
fn what_only_other_networks_have_is_refused_by_the_library() {
    let raw = Raw::new();
    let mut ece = ibv_ece { vendor_id: 1, options: 1, comp_mask: 0 };
    // SAFETY: a live queue pair and a whole struct.
    assert_eq!(unsafe { ibv_query_ece(raw.qp, &raw mut ece) }, libc::EOPNOTSUPP);
    // SAFETY: as above.
    assert_eq!(unsafe { ibv_set_ece(raw.qp, &raw mut ece) }, libc::EOPNOTSUPP);
    let group = ibv_gid::default();
    // SAFETY: as above.
    assert_eq!(unsafe { ibv_attach_mcast(raw.qp, &raw const group, 0) }, libc::EOPNOTSUPP);
    // SAFETY: as above.
    assert_eq!(unsafe { ibv_detach_mcast(raw.qp, &raw const group, 0) }, libc::EOPNOTSUPP);
    // SAFETY: a live queue pair.
    let in_order = unsafe { ibv_query_qp_data_in_order(raw.qp, ibv_wr_opcode::IBV_WR_SEND, 0) };
    assert_eq!(in_order, 0, "nobody promises it");
}
