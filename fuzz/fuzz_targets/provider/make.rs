//! Calls that create, modify and destroy objects.

use std::ffi::{c_int, c_void};

use ibverbs_sys::*;
use verbs::Provider as _;

use crate::c;
use crate::dice::Dice;
use crate::domain::{Allocator, Mood, allocate, free};
use crate::world::{ARENA_BYTES, Range, World, not_blocking};

/// An opaque value of the caller: never dereferenced.
fn token(dice: &mut Dice<'_>) -> *mut c_void {
    std::ptr::without_provenance_mut(usize::from(dice.any::<u16>()))
}

pub fn domain(world: &mut World, dice: &mut Dice<'_>) {
    let context = world.context(dice);
    world.pds.keep(c::ibv_alloc_pd(context));
}

pub fn thread_domain(world: &mut World, dice: &mut Dice<'_>) {
    let mut attr = ibv_td_init_attr { comp_mask: dice.bits(0) as u32 };
    world.tds.keep(c::inline_alloc_td(world.context(dice), &raw mut attr));
}

pub fn parent_domain(world: &mut World, dice: &mut Dice<'_>) {
    let mood = match dice.below(6) {
        0 => Mood::Null,
        1 => Mood::Default,
        2 => Mood::Misaligned,
        3 => Mood::SomeMemory(dice.any::<u8>() % 6),
        _ => Mood::Memory,
    };
    let allocator = Allocator::new(mood);
    let mut attr = ibv_parent_domain_init_attr {
        pd: world.pds.or_null(dice),
        td: if dice.coin() { world.tds.or_null(dice) } else { std::ptr::null_mut() },
        comp_mask: dice.bits(3) as u32,
        alloc: (!dice.rarely()).then_some(allocate as _),
        free: (!dice.rarely()).then_some(free as _),
        pd_context: std::ptr::from_ref(&*allocator).cast_mut().cast(),
    };
    world.allocators.push(allocator);
    world.pds.keep(c::inline_alloc_parent_domain(world.context(dice), &raw mut attr));
}

/// Access flags: mostly with local write, rarely arbitrary.
fn access(dice: &mut Dice<'_>) -> c_int {
    if dice.rarely() { dice.any() } else { 1 | c_int::from(dice.any::<u8>() & 0x0f) }
}

/// Part of the memory.
fn piece(world: &World, dice: &mut Dice<'_>) -> (*mut c_void, usize) {
    let offset = dice.below(ARENA_BYTES);
    let bytes = dice.below(ARENA_BYTES - offset + 1);
    (world.arena.cast::<u8>().wrapping_add(offset).cast(), bytes)
}

pub fn region(world: &mut World, dice: &mut Dice<'_>) {
    let Some(pd) = world.pds.some(dice) else { return };
    let (address, bytes) = piece(world, dice);
    let iova = if dice.coin() { address.addr() as u64 } else { dice.any() };
    let mr = c::ibv_reg_mr_iova(pd, address, bytes, iova, access(dice));
    if world.mrs.keep(mr) {
        // SAFETY: a live region.
        let key = unsafe { (*mr).lkey };
        world.ranges.push(Range { key, address: iova, bytes });
    }
}

pub fn change_region(world: &mut World, dice: &mut Dice<'_>) {
    let Some(mr) = world.mrs.some(dice) else { return };
    let (address, bytes) = piece(world, dice);
    let pd = world.pds.or_null(dice);
    let flags = dice.bits(7) as c_int;
    if c::ibv_rereg_mr(mr, flags, pd, address, bytes, access(dice)) == 0 && flags & 1 != 0 {
        // SAFETY: the call succeeded, so the region lives.
        let key = unsafe { (*mr).lkey };
        world.ranges.push(Range { key, address: address.addr() as u64, bytes });
    }
}

pub fn channel(world: &mut World, dice: &mut Dice<'_>) {
    let make = world.nic.channel_maker().expect("softnic makes channels");
    // SAFETY: a live context of this provider.
    let channel = unsafe { make(world.context(dice)) };
    if !channel.is_null() {
        // SAFETY: a live channel.
        not_blocking(unsafe { (*channel).fd });
        world.channels.push(channel);
    }
}

fn channel_or_null(world: &World, dice: &mut Dice<'_>) -> *mut ibv_comp_channel {
    if world.channels.is_empty() || dice.coin() {
        return std::ptr::null_mut();
    }
    world.channels[dice.below(world.channels.len())]
}

pub fn completion_queue(world: &mut World, dice: &mut Dice<'_>) {
    let context = world.context(dice);
    let channel = channel_or_null(world, dice);
    let vector = if dice.rarely() { dice.any() } else { c_int::from(dice.any::<u8>() % 8) };
    if dice.rarely() {
        let entries = dice.size().cast_signed();
        world.cqs.keep(c::ibv_create_cq(context, entries, token(dice), channel, vector));
        return;
    }
    let mut attr = ibv_cq_init_attr_ex {
        cqe: dice.size(),
        cq_context: token(dice),
        channel,
        comp_vector: vector.cast_unsigned(),
        wc_flags: if dice.coin() { 0x1 } else { dice.bits(0xfff) },
        comp_mask: dice.bits(3) as u32,
        flags: dice.bits(3) as u32,
        parent_domain: world.pds.or_null(dice),
    };
    let cq = c::inline_create_cq_ex(context, &raw mut attr);
    if !cq.is_null() {
        let cq = c::inline_cq_ex_to_cq(cq);
        world.cqs.keep(cq);
        world.extended.retain(|extended| *extended != cq);
        world.extended.push(cq);
    }
}

pub fn change_cq(world: &mut World, dice: &mut Dice<'_>) {
    let Some(cq) = world.cqs.some(dice) else { return };
    match dice.below(3) {
        0 => _ = c::ibv_resize_cq(cq, dice.size().cast_signed()),
        1 => _ = c::inline_req_notify_cq(cq, dice.any::<u8>().into()),
        _ => {
            let moderate = ibv_moderate_cq { cq_count: dice.any(), cq_period: dice.any() };
            let mut attr = ibv_modify_cq_attr { attr_mask: dice.bits(1) as u32, moderate };
            c::inline_modify_cq(cq, &raw mut attr);
        }
    }
}

pub fn work_queue(world: &mut World, dice: &mut Dice<'_>) {
    let mut attr = ibv_wq_init_attr {
        wq_context: token(dice),
        wq_type: if dice.rarely() { dice.any() } else { IBV_WQT_RQ },
        max_wr: dice.size(),
        max_sge: if dice.rarely() { dice.size() } else { 1 + u32::from(dice.any::<u8>() % 4) },
        pd: world.pds.or_null(dice),
        cq: world.cqs.or_null(dice),
        comp_mask: dice.bits(1) as u32,
        create_flags: dice.bits(0xf) as u32,
    };
    let wq = c::inline_create_wq(world.context(dice), &raw mut attr);
    if world.wqs.keep(wq) && !dice.rarely() {
        let mut attr =
            ibv_wq_attr { attr_mask: IBV_WQ_ATTR_STATE, wq_state: IBV_WQS_RDY, ..ibv_wq_attr::default() };
        assert_eq!(c::inline_modify_wq(wq, &raw mut attr), 0);
    }
}

pub fn change_wq(world: &mut World, dice: &mut Dice<'_>) {
    let Some(wq) = world.wqs.some(dice) else { return };
    let mut attr = ibv_wq_attr {
        attr_mask: dice.bits(7) as u32,
        wq_state: dice.size(),
        curr_wq_state: dice.size(),
        flags: dice.bits(0xf) as u32,
        flags_mask: dice.bits(0xf) as u32,
    };
    c::inline_modify_wq(wq, &raw mut attr);
}

pub fn table(world: &mut World, dice: &mut Dice<'_>) {
    let log = if dice.rarely() { dice.any() } else { u32::from(dice.any::<u8>() % 4) };
    // Sizes above the device's limit are refused before the array is read.
    let length = if log <= 12 { 1usize << log } else { 1 };
    let mut entries: Vec<_> = (0..length.min(64)).map(|_| world.wqs.or_null(dice)).collect();
    entries.resize(length, entries[0]);
    let mut attr = ibv_rwq_ind_table_init_attr {
        log_ind_tbl_size: log,
        ind_tbl: entries.as_mut_ptr(),
        comp_mask: dice.bits(0) as u32,
    };
    world.tables.keep(c::inline_create_rwq_ind_table(world.context(dice), &raw mut attr));
}

fn cap(dice: &mut Dice<'_>) -> ibv_qp_cap {
    let parts =
        |dice: &mut Dice<'_>| if dice.rarely() { dice.size() } else { u32::from(dice.any::<u8>() % 5) };
    ibv_qp_cap {
        max_send_wr: dice.size(),
        max_recv_wr: dice.size(),
        max_send_sge: parts(dice),
        max_recv_sge: parts(dice),
        max_inline_data: if dice.coin() { 64 } else { dice.size() },
    }
}

fn qp_type(dice: &mut Dice<'_>) -> ibv_qp_type::Type {
    if dice.rarely() {
        dice.of(&[ibv_qp_type::IBV_QPT_UD, ibv_qp_type::IBV_QPT_RC, 0, 0xff, u32::MAX])
    } else {
        ibv_qp_type::IBV_QPT_RAW_PACKET
    }
}

pub fn plain_queue_pair(world: &mut World, dice: &mut Dice<'_>) {
    let Some(pd) = world.pds.some(dice) else { return };
    let mut attr = ibv_qp_init_attr {
        qp_context: token(dice),
        send_cq: world.cqs.or_null(dice),
        recv_cq: world.cqs.or_null(dice),
        srq: std::ptr::null_mut(),
        cap: cap(dice),
        qp_type: qp_type(dice),
        sq_sig_all: dice.any::<u8>().into(),
    };
    let qp = c::ibv_create_qp(pd, &raw mut attr);
    if world.qps.keep(qp) && !dice.rarely() {
        bring_up(qp);
    }
}

pub fn queue_pair(world: &mut World, dice: &mut Dice<'_>) {
    let is_rss = dice.coin();
    let key_bytes = if dice.rarely() { dice.any::<u8>().into() } else { 40 };
    let mut key = dice.bytes(key_bytes);
    let known_fields = if dice.coin() { 0x33 } else { 0x8000_01ff };
    let rss_mask = IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
    let no_cq = is_rss && !dice.rarely();
    let mut attr = ibv_qp_init_attr_ex {
        qp_context: token(dice),
        send_cq: if no_cq { std::ptr::null_mut() } else { world.cqs.or_null(dice) },
        recv_cq: if no_cq { std::ptr::null_mut() } else { world.cqs.or_null(dice) },
        srq: if dice.rarely() { std::ptr::without_provenance_mut(8) } else { std::ptr::null_mut() },
        cap: if no_cq { ibv_qp_cap::default() } else { cap(dice) },
        qp_type: qp_type(dice),
        sq_sig_all: dice.any::<u8>().into(),
        comp_mask: IBV_QP_INIT_ATTR_PD
            | if is_rss { rss_mask } else { 0 }
            | dice.bits(u64::from(
                IBV_QP_INIT_ATTR_CREATE_FLAGS
                    | IBV_QP_INIT_ATTR_MAX_TSO_HEADER
                    | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            )) as u32,
        pd: world.pds.or_null(dice),
        create_flags: dice.bits(u64::from(
            IBV_QP_CREATE_CVLAN_STRIPPING | IBV_QP_CREATE_SCATTER_FCS | IBV_QP_CREATE_PCI_WRITE_END_PADDING,
        )) as u32,
        max_tso_header: if dice.rarely() { dice.any() } else { 64 },
        rwq_ind_tbl: world.tables.or_null(dice),
        rx_hash_conf: ibv_rx_hash_conf {
            rx_hash_function: if dice.rarely() { dice.any() } else { 1 },
            rx_hash_key_len: key.len() as u8,
            rx_hash_key: if dice.rarely() { std::ptr::null_mut() } else { key.as_mut_ptr() },
            rx_hash_fields_mask: dice.bits(known_fields),
        },
        source_qpn: dice.any(),
        send_ops_flags: dice.bits(1 << 4 | 1 << 10),
        ..ibv_qp_init_attr_ex::default()
    };
    if attr.comp_mask == IBV_QP_INIT_ATTR_PD && attr.pd.is_null() {
        // The inline function calls `ibv_create_qp` for these attributes, which dereferences the domain.
        return;
    }
    let qp = c::inline_create_qp_ex(world.context(dice), &raw mut attr);
    if world.qps.keep(qp) && !is_rss && !dice.rarely() {
        bring_up(qp);
    }
}

/// Tries to bring a queue pair to RTS.
fn bring_up(qp: *mut ibv_qp) {
    for (state, mask) in [(1, 1 | 32), (2, 1), (3, 1)] {
        let mut attr = ibv_qp_attr { qp_state: state, port_num: 1, ..ibv_qp_attr::default() };
        c::ibv_modify_qp(qp, &raw mut attr, mask);
    }
}

pub fn change_qp(world: &mut World, dice: &mut Dice<'_>) {
    let Some(qp) = world.qps.some(dice) else { return };
    match dice.below(4) {
        0 => {
            let mut attr = ibv_qp_rate_limit_attr {
                rate_limit: dice.any(),
                max_burst_sz: dice.any(),
                typical_pkt_sz: dice.any(),
                comp_mask: dice.bits(0) as u32,
            };
            c::inline_modify_qp_rate_limit(qp, &raw mut attr);
        }
        1 => {
            let mut attr = ibv_qp_attr::default();
            let mut init = ibv_qp_init_attr::default();
            c::ibv_query_qp(qp, &raw mut attr, dice.any(), &raw mut init);
        }
        2 => bring_up(qp),
        _ => {
            let mut attr = ibv_qp_attr {
                qp_state: dice.size(),
                cur_qp_state: dice.size(),
                port_num: dice.any::<u8>() % 3,
                qkey: dice.any(),
                rate_limit: dice.any(),
                pkey_index: dice.any(),
                ..ibv_qp_attr::default()
            };
            c::ibv_modify_qp(qp, &raw mut attr, dice.bits(0x0200_003f | 1 << 6 | 1 << 16) as c_int);
        }
    }
}

pub fn query(world: &mut World, dice: &mut Dice<'_>) {
    let context = world.context(dice);
    let input = ibv_query_device_ex_input { comp_mask: dice.bits(0) as u32 };
    let mut attr = Box::<ibv_device_attr_ex>::default();
    c::inline_query_device_ex(context, &raw const input, &raw mut *attr);
    let mut port = Box::<ibv_port_attr>::default();
    c::inline_query_port(context, dice.any::<u8>() % 3, &raw mut *port);
    let mut values =
        ibv_values_ex { comp_mask: dice.bits(1) as u32, raw_clock: timespec { tv_sec: 0, tv_nsec: 0 } };
    c::inline_query_rt_values_ex(context, &raw mut values);
}

pub fn destroy(world: &mut World, dice: &mut Dice<'_>) {
    // Destroying an object waits until its events are acknowledged.
    world.acknowledge();
    macro_rules! end {
        ($pool:ident, $destroy:expr) => {
            if let Some(handle) = world.$pool.some(dice) {
                world.$pool.end(handle, $destroy);
            }
        };
    }
    match dice.below(11) {
        0 => end!(pds, |pd| c::ibv_dealloc_pd(pd)),
        1 => end!(tds, |td| c::inline_dealloc_td(td)),
        2 => end!(mrs, |mr| c::ibv_dereg_mr(mr)),
        3 => end!(cqs, |cq| c::ibv_destroy_cq(cq)),
        4 => end!(wqs, |wq| c::inline_destroy_wq(wq)),
        5 => end!(tables, |table| c::inline_destroy_rwq_ind_table(table)),
        6 => end!(qps, |qp| c::ibv_destroy_qp(qp)),
        7 | 8 => end!(flows, |flow| c::inline_destroy_flow(flow)),
        9 => end!(counters, |counters| c::inline_destroy_counters(counters)),
        _ if world.channels.is_empty() => {}
        _ => {
            let index = dice.below(world.channels.len());
            if c::ibv_destroy_comp_channel(world.channels[index]) == 0 {
                world.channels.swap_remove(index);
            }
        }
    }
}
