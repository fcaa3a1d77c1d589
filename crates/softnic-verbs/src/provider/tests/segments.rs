//! TCP segmentation: every segment against one that is put together here.

use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr};

use ibverbs_sys::{
    IBV_QP_EX_WITH_TSO, IBV_QP_INIT_ATTR_MAX_TSO_HEADER, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, ibv_send_flags,
    ibv_send_wr, ibv_send_wr__bindgen_ty_4, ibv_send_wr__bindgen_ty_4__bindgen_ty_2, ibv_sge, ibv_wc_opcode,
    ibv_wc_status, ibv_wr_opcode,
};
use packet::build::FrameBuilder;
use packet::checksum::{ChecksumStatus, fill, verify_ip, verify_l4};
use packet::{EtherType, parse};

use super::extended::Extended;
use super::{Memory, Raw, bring_up, create_qp_ex};

const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
/// CWR, ACK, PSH and FIN, some of which are only in the first or the last segment.
const FLAGS: u8 = 0x80 | 0x10 | 0x08 | 0x01;
const SEQUENCE: u32 = 0xffff_ff00;
const IPV4_ID: u16 = 0xfffe;

fn sender(raw: &Raw, max_header: u16) -> Extended {
    let qp = create_qp_ex(raw, |attr| {
        attr.comp_mask |= IBV_QP_INIT_ATTR_MAX_TSO_HEADER | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        attr.max_tso_header = max_header;
        attr.send_ops_flags = IBV_QP_EX_WITH_TSO.into();
    })
    .unwrap();
    bring_up(qp);
    Extended::new(qp)
}

/// Headers with numbers that wrap, wrong lengths and wrong checksums: all that is the device's to set.
fn headers(ipv4: bool, tagged: bool) -> Vec<u8> {
    let v6 = |last| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last);
    let mut builder = FrameBuilder::new();
    if tagged {
        builder = builder.vlan(EtherType(0x8100), 0x6064);
    }
    let builder = if ipv4 {
        builder.ipv4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(192, 0, 2, 9))
    } else {
        builder.ipv6(v6(1), v6(2))
    };
    let mut headers = builder.tcp(40_000, 443, FLAGS).build();
    let (l3, l4) = places(ipv4, tagged);
    assert_eq!(headers.len(), l4 + 20);
    if ipv4 {
        headers[l3 + 2..l3 + 6].copy_from_slice(&[0, 0, (IPV4_ID >> 8) as u8, IPV4_ID as u8]);
        headers[l3 + 10..l3 + 12].fill(0xaa);
    } else {
        headers[l3 + 4..l3 + 6].fill(0xaa);
    }
    headers[l4 + 4..l4 + 8].copy_from_slice(&SEQUENCE.to_be_bytes());
    headers[l4 + 16..l4 + 18].fill(0xaa);
    headers
}

fn places(ipv4: bool, tagged: bool) -> (usize, usize) {
    let l3 = if tagged { 18 } else { 14 };
    (l3, l3 + if ipv4 { 20 } else { 40 })
}

/// The frames that the wire must carry.
fn expected(headers: &[u8], stream: &[u8], mss: usize, (ipv4, tagged): (bool, bool)) -> Vec<Vec<u8>> {
    let (l3, l4) = places(ipv4, tagged);
    let count = stream.len().div_ceil(mss).max(1);
    (0..count)
        .map(|index| {
            let part = &stream[index * mss..stream.len().min((index + 1) * mss)];
            let mut frame = [headers, part].concat();
            let ip_bytes = (frame.len() - l3) as u16;
            if ipv4 {
                frame[l3 + 2..l3 + 4].copy_from_slice(&ip_bytes.to_be_bytes());
                let id = IPV4_ID.wrapping_add(index as u16);
                frame[l3 + 4..l3 + 6].copy_from_slice(&id.to_be_bytes());
            } else {
                frame[l3 + 4..l3 + 6].copy_from_slice(&(ip_bytes - 40).to_be_bytes());
            }
            let sequence = SEQUENCE.wrapping_add((index * mss) as u32);
            frame[l4 + 4..l4 + 8].copy_from_slice(&sequence.to_be_bytes());
            frame[l4 + 13] = match (index == 0, index + 1 == count) {
                (true, true) => 0x99,
                (true, false) => 0x90,
                (false, false) => 0x10,
                (false, true) => 0x19,
            };
            let parsed = parse(&frame);
            fill(&mut frame, &parsed);
            frame
        })
        .collect()
}

/// Posts a request by `ibv_post_send`.
fn post(raw: &Raw, qp: &Extended, headers: &mut [u8], mss: u16, list: &mut [ibv_sge], flags: u32) -> c_int {
    let tso = ibv_send_wr__bindgen_ty_4__bindgen_ty_2 {
        hdr: headers.as_mut_ptr().cast(),
        hdr_sz: headers.len() as u16,
        mss,
    };
    let mut wr = ibv_send_wr {
        wr_id: 7,
        sg_list: list.as_mut_ptr(),
        num_sge: list.len() as c_int,
        opcode: ibv_wr_opcode::IBV_WR_TSO,
        send_flags: flags,
        __bindgen_anon_2: ibv_send_wr__bindgen_ty_4 { tso },
        ..ibv_send_wr::default()
    };
    let mut bad = std::ptr::null_mut();
    // SAFETY: a live context.
    let post = unsafe { (*raw.context).ops.post_send }.unwrap();
    // SAFETY: a live queue pair and a chain of one request.
    unsafe { post(qp.qp, &raw mut wr, &raw mut bad) }
}

fn stream(memory: &Memory, bytes: usize) -> Vec<u8> {
    let stream: Vec<u8> = (0..bytes).map(|index| (index * 7 + index / 251) as u8).collect();
    memory.write(0, &stream);
    stream
}

#[test]
fn segments_equal_frames_that_were_built_one_by_one() {
    let raw = Raw::new();
    let qp = sender(&raw, 128);
    let memory = raw.register(1 << 16, 0);
    for (ipv4, tagged) in [(true, false), (true, true), (false, false), (false, true)] {
        for (bytes, mss) in [(5000, 1400), (4200, 1400), (1, 1400), (1400, 1), (0, 536), (65_000, 1440)] {
            let stream = stream(&memory, bytes);
            let mut headers = headers(ipv4, tagged);
            let wanted = expected(&headers, &stream, mss, (ipv4, tagged));
            // Two elements, so that a segment spans them.
            let first = bytes / 3;
            let list =
                [memory.element(0, first as u32), memory.element(first as u64, (bytes - first) as u32)];
            assert_eq!(post(&raw, &qp, &mut headers, mss as u16, &mut list.clone(), SIGNALED), 0);
            let by_post = raw.sent();
            qp.wr_start();
            qp.members(8, SIGNALED);
            qp.wr_send_tso(headers.as_mut_ptr().cast(), headers.len() as u16, mss as u16);
            qp.wr_set_sge_list(list.len(), list.as_ptr());
            headers.fill(0);
            assert_eq!(qp.wr_complete(), 0);
            let by_call = raw.sent();
            let what = format!("{bytes} bytes in {mss}, IPv4 {ipv4}, tagged {tagged}");
            assert_eq!(by_post.len(), wanted.len(), "{what}");
            assert!(by_post == wanted && by_call == wanted, "{what}");
            for frame in &by_post {
                let parsed = parse(frame);
                assert_eq!(verify_l4(frame, &parsed), ChecksumStatus::Good, "{what}");
                assert_eq!(
                    verify_ip(frame, &parsed),
                    if ipv4 { ChecksumStatus::Good } else { ChecksumStatus::Absent }
                );
            }
            let completions = raw.poll();
            let outcome: Vec<_> = completions.iter().map(|wc| (wc.wr_id, wc.status, wc.opcode)).collect();
            let (ok, tso) = (ibv_wc_status::IBV_WC_SUCCESS, ibv_wc_opcode::IBV_WC_TSO);
            assert_eq!(outcome, [(7, ok, tso), (8, ok, tso)], "one completion each: {what}");
        }
    }
}

#[test]
fn requests_that_make_no_sense_are_not_taken() {
    let raw = Raw::new();
    let qp = sender(&raw, 54);
    let memory = raw.register(1 << 16, 0);
    let list = || [memory.element(0, 3000)];
    let mut whole = headers(true, false);
    let inline = ibv_send_flags::IBV_SEND_INLINE.0;
    assert_eq!(
        post(&raw, &qp, &mut headers(true, true), 1000, &mut list(), 0),
        libc::EINVAL,
        "max_tso_header"
    );
    assert_eq!(post(&raw, &qp, &mut whole[..13], 1000, &mut list(), 0), libc::EINVAL, "less than Ethernet");
    assert_eq!(post(&raw, &qp, &mut whole, 0, &mut list(), 0), libc::EINVAL, "segments of nothing");
    assert_eq!(
        post(&raw, &qp, &mut whole, 1000, &mut [memory.element(0, 60)], inline),
        libc::EINVAL,
        "inline"
    );
    let long = [memory.element(0, 1 << 17), memory.element(0, 1 << 17), memory.element(0, 1)];
    assert_eq!(post(&raw, &qp, &mut whole, 1000, &mut long.clone(), 0), libc::EINVAL, "max_tso");
    assert_eq!(
        post(&raw, &qp, &mut whole, 1, &mut [memory.element(0, 4097)], 0),
        libc::EINVAL,
        "4097 segments"
    );
    let plain = sender(&raw, 0);
    assert_eq!(post(&raw, &plain, &mut whole, 1000, &mut list(), 0), libc::EINVAL, "no max_tso_header");
    assert!(raw.sent().is_empty());
    assert_eq!(post(&raw, &qp, &mut whole, 1000, &mut list(), 0), 0, "and the ring is as it was");
    assert_eq!(raw.sent().len(), 3);
}

#[test]
fn a_stream_that_cannot_be_sent_whole_is_not_sent_at_all() {
    type Spoil = fn(&mut Vec<u8>, &mut u16, &mut ibv_sge);
    let cases: [(&str, Spoil, u32); 5] = [
        ("no TCP", |headers, _, _| headers[23] = 17, ibv_wc_status::IBV_WC_LOC_QP_OP_ERR),
        ("headers that end early", |headers, _, _| headers.truncate(53), ibv_wc_status::IBV_WC_LOC_QP_OP_ERR),
        ("segments beyond the MTU", |_, mss, _| *mss = 1480, ibv_wc_status::IBV_WC_LOC_LEN_ERR),
        ("another's memory", |_, _, sge| sge.lkey ^= 0x100, ibv_wc_status::IBV_WC_LOC_PROT_ERR),
        ("beyond the region", |_, _, sge| sge.length = 1 << 16, ibv_wc_status::IBV_WC_LOC_PROT_ERR),
    ];
    for (what, spoil, status) in cases {
        let raw = Raw::new();
        let qp = sender(&raw, 128);
        let memory = raw.register(4096, 0);
        let (mut headers, mut mss, mut element) = (headers(true, false), 1000, memory.element(0, 4096));
        spoil(&mut headers, &mut mss, &mut element);
        assert_eq!(post(&raw, &qp, &mut headers, mss, &mut [element], 0), 0);
        assert!(raw.sent().is_empty(), "{what}");
        let outcome: Vec<_> = raw.poll().iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(outcome, [(7, status)], "{what}");
    }
}
