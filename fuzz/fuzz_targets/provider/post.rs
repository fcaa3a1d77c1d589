//! The data path: posting, polling, events and frames.

use ibverbs_sys::*;
use packet::EtherType;
use packet::build::FrameBuilder;

use crate::c;
use crate::dice::Dice;
use crate::world::{ARENA_BYTES, World};

/// A scatter/gather element: mostly within a live or destroyed region, sometimes beyond it, rarely arbitrary.
fn element(world: &World, dice: &mut Dice<'_>) -> ibv_sge {
    if world.ranges.is_empty() || dice.rarely() {
        return ibv_sge { addr: dice.any(), length: dice.any(), lkey: dice.any() };
    }
    let range = world.ranges[dice.below(world.ranges.len())];
    let offset = dice.below(range.bytes.max(1)) as u64;
    let length = match dice.any::<u8>() {
        0xf8.. => dice.any(),
        0xc0.. => (range.bytes as u64 - offset.min(range.bytes as u64)) as u32,
        _ => dice.below(600) as u32,
    };
    ibv_sge { addr: range.address.wrapping_add(offset), length, lkey: range.key }
}

/// A list and its claimed length, which may be wrong if it is larger than any queue allows.
fn list(world: &World, dice: &mut Dice<'_>) -> (Box<[ibv_sge]>, i32) {
    let list: Box<[ibv_sge]> = (0..dice.below(5)).map(|_| element(world, dice)).collect();
    let said = match dice.any::<u8>() {
        0xfc.. => i32::MAX,
        0xf8.. => 5 + i32::from(dice.any::<u8>()),
        0xf0.. => -i32::from(dice.any::<u8>()),
        _ => list.len() as i32,
    };
    (list, said)
}

pub fn receive(world: &mut World, dice: &mut Dice<'_>) {
    let lists: Vec<_> = (0..dice.below(8)).map(|_| list(world, dice)).collect();
    let mut requests: Vec<ibv_recv_wr> = lists
        .iter()
        .map(|(list, said)| ibv_recv_wr {
            wr_id: dice.any(),
            next: std::ptr::null_mut(),
            sg_list: if dice.rarely() { std::ptr::null_mut() } else { list.as_ptr().cast_mut() },
            num_sge: *said,
        })
        .collect();
    let base = requests.as_mut_ptr();
    for index in 1..requests.len() {
        requests[index - 1].next = base.wrapping_add(index);
    }
    let first = if requests.is_empty() { std::ptr::null_mut() } else { base };
    let mut bad = std::ptr::null_mut();
    let bad = &raw mut bad;
    if dice.coin() {
        let Some(wq) = world.wqs.some(dice) else { return };
        c::inline_post_wq_recv(wq, first, bad);
    } else {
        let Some(qp) = world.qps.some(dice) else { return };
        c::inline_post_recv(qp, first, bad);
    }
}

/// Headers of segments or arbitrary bytes, allocated with exactly their claimed length.
fn headers(dice: &mut Dice<'_>) -> Box<[u8]> {
    let mut frame = packet(dice);
    frame.truncate(if dice.rarely() { dice.below(700) } else { 54 });
    frame.into_boxed_slice()
}

pub fn send(world: &mut World, dice: &mut Dice<'_>) {
    let Some(qp) = world.qps.some(dice) else { return };
    let headers = headers(dice);
    let lists: Vec<_> = (0..dice.below(6))
        .map(|_| {
            let flags = dice.bits(0x1f) as u32;
            let (mut list, said) = list(world, dice);
            if flags & ibv_send_flags::IBV_SEND_INLINE.0 != 0 {
                // Inline data is read at once, so the memory must be valid, unless its length is refused.
                list.iter_mut().for_each(|sge| *sge = own(world, dice));
                return (list.clone(), said.min(list.len() as i32), flags);
            }
            (list, said, flags)
        })
        .collect();
    let mut requests: Vec<ibv_send_wr> = lists
        .iter()
        .map(|(list, said, flags)| {
            let mut wr = ibv_send_wr {
                wr_id: dice.any(),
                sg_list: if dice.rarely() { std::ptr::null_mut() } else { list.as_ptr().cast_mut() },
                num_sge: *said,
                opcode: if dice.rarely() { dice.size() } else { ibv_wr_opcode::IBV_WR_SEND },
                send_flags: *flags,
                ..ibv_send_wr::default()
            };
            if dice.coin() {
                wr.opcode = ibv_wr_opcode::IBV_WR_TSO;
            }
            wr.__bindgen_anon_2.tso = ibv_send_wr__bindgen_ty_4__bindgen_ty_2 {
                hdr: headers.as_ptr().cast_mut().cast(),
                hdr_sz: headers.len() as u16,
                mss: if dice.rarely() { dice.any() } else { 1 + dice.below(1500) as u16 },
            };
            wr
        })
        .collect();
    let base = requests.as_mut_ptr();
    for index in 1..requests.len() {
        requests[index - 1].next = base.wrapping_add(index);
    }
    let first = if requests.is_empty() { std::ptr::null_mut() } else { base };
    let mut bad = std::ptr::null_mut();
    c::inline_post_send(qp, first, &raw mut bad);
}

/// Inline data; lengths that no queue allows may be wrong.
fn own(world: &World, dice: &mut Dice<'_>) -> ibv_sge {
    let offset = dice.below(ARENA_BYTES);
    let length =
        if dice.rarely() { dice.size().max(257) } else { dice.below(300.min(ARENA_BYTES - offset)) as u32 };
    let addr = world.arena.cast::<u8>().wrapping_add(offset).expose_provenance() as u64;
    ibv_sge { addr, length, lkey: dice.any() }
}

pub fn batch(world: &mut World, dice: &mut Dice<'_>) {
    let Some(qp) = world.qps.some(dice) else { return };
    let extended = c::ibv_qp_to_qp_ex(qp);
    if extended.is_null() {
        return;
    }
    let headers = headers(dice);
    c::inline_wr_start(extended);
    for _ in 0..dice.below(12) {
        // SAFETY: fields of the live handle that the application writes.
        unsafe { ((*extended).wr_id, (*extended).wr_flags) = (dice.any(), dice.bits(0x1f) as u32) };
        let tso_bytes = 1 + dice.below(1500) as u16;
        match dice.below(8) {
            0 | 1 => c::inline_wr_send(extended),
            2 => c::inline_wr_send_tso(
                extended,
                headers.as_ptr().cast_mut().cast(),
                headers.len() as u16,
                if dice.rarely() { 0 } else { tso_bytes },
            ),
            3 | 4 => {
                let sge = element(world, dice);
                c::inline_wr_set_sge(extended, sge.lkey, sge.addr, sge.length);
            }
            5 => {
                let (list, said) = list(world, dice);
                c::inline_wr_set_sge_list(extended, said as usize, list.as_ptr());
            }
            6 => {
                let sge = own(world, dice);
                let address = std::ptr::with_exposed_provenance_mut(sge.addr as usize);
                c::inline_wr_set_inline_data(extended, address, sge.length as usize);
            }
            _ if dice.rarely() => c::inline_wr_send_imm(extended, dice.any()),
            _ if dice.rarely() => {
                world.acknowledge();
                world.qps.end(qp, |qp| c::ibv_destroy_qp(qp));
            }
            _ => {}
        }
    }
    if dice.rarely() {
        c::inline_wr_abort(extended);
    } else {
        c::inline_wr_complete(extended);
    }
}

pub fn poll(world: &mut World, dice: &mut Dice<'_>) {
    let Some(cq) = world.cqs.some(dice) else { return };
    if !world.extended.contains(&cq) || dice.coin() {
        let count = dice.below(20);
        /// `sizeof(struct ibv_wc)`.
        const WC_WORDS: usize = 6;
        let mut completions = vec![0u64; count * WC_WORDS].into_boxed_slice();
        let polled = c::inline_poll_cq(cq, count as i32, completions.as_mut_ptr().cast());
        assert!(polled <= count as i32);
        return;
    }
    let extended = cq.cast::<ibv_cq_ex>();
    let mut attr = ibv_poll_cq_attr { comp_mask: dice.bits(0) as u32 };
    if c::inline_start_poll(extended, &raw mut attr) != 0 {
        return;
    }
    for _ in 0..dice.below(12) {
        std::hint::black_box(c::inline_read_all(extended));
        if dice.rarely() {
            world.acknowledge();
            world.cqs.end(cq, |cq| c::ibv_destroy_cq(cq));
        }
        if c::inline_next_poll(extended) != 0 {
            break;
        }
    }
    c::inline_end_poll(extended);
}

/// A plausible frame: valid headers, with bytes changed sometimes.
fn packet(dice: &mut Dice<'_>) -> Vec<u8> {
    use std::net::Ipv4Addr;
    let (src, dst) = (Ipv4Addr::from(dice.any::<u32>()), Ipv4Addr::new(10, 0, 0, dice.any::<u8>() % 4));
    let mut frame = FrameBuilder::new();
    if dice.rarely() {
        frame = frame.vlan(EtherType(0x8100), dice.any());
    }
    let frame = frame.ipv4(src, dst);
    let ports = (u16::from(dice.any::<u8>() % 4), u16::from(dice.any::<u8>() % 4));
    let payload = vec![0x5a; dice.below(1800)];
    let mut frame = if dice.coin() {
        frame.udp(ports.0, ports.1).payload(&payload).build()
    } else {
        frame.tcp(ports.0, ports.1, 0x10).payload(&payload).build()
    };
    if dice.rarely() && !frame.is_empty() {
        let at = dice.below(frame.len());
        frame[at] = dice.any();
    }
    frame
}

pub fn frames(world: &mut World, dice: &mut Dice<'_>) {
    for _ in 0..dice.below(20) {
        let frame = if dice.rarely() {
            let length = dice.below(200);
            dice.bytes(length)
        } else {
            packet(dice)
        };
        world.inbox.lock().expect("one thread").push_back(frame);
    }
    world.pump();
}
