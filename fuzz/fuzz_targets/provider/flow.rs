//! Flows from raw attribute blocks, and counters. A block is exactly as long as the interface lets the
//! library read.

use ibverbs_sys::*;

use crate::c;
use crate::dice::Dice;
use crate::world::World;

const HEADER_BYTES: usize = size_of::<ibv_flow_attr>();
/// The offsets of a spec's type, size and, in a COUNT or HANDLE action, pointer.
const SIZE_AT: usize = 4;
const POINTER_AT: usize = 8;
/// The length of a block whose `size` does not count its specs: ten of the longest spec.
const WALKED_BYTES: usize = 10 * 256;

/// Types of specs and their right sizes.
const SPECS: [(u32, u16); 14] = [
    (IBV_FLOW_SPEC_ETH, 40),
    (IBV_FLOW_SPEC_IPV4, 24),
    (IBV_FLOW_SPEC_IPV4_EXT, 32),
    (IBV_FLOW_SPEC_IPV6, 88),
    (IBV_FLOW_SPEC_ESP, 24),
    (IBV_FLOW_SPEC_TCP, 16),
    (IBV_FLOW_SPEC_UDP, 16),
    (IBV_FLOW_SPEC_VXLAN_TUNNEL, 16),
    (IBV_FLOW_SPEC_GRE, 24),
    (IBV_FLOW_SPEC_MPLS, 16),
    (IBV_FLOW_SPEC_ACTION_TAG, 12),
    (IBV_FLOW_SPEC_ACTION_DROP, 8),
    (IBV_FLOW_SPEC_ACTION_HANDLE, 16),
    (IBV_FLOW_SPEC_ACTION_COUNT, 16),
];

pub fn counters(world: &mut World, dice: &mut Dice<'_>) {
    let mut attr = ibv_counters_init_attr { comp_mask: dice.bits(0) as u32 };
    let counters = c::inline_create_counters(world.context(dice), &raw mut attr);
    if world.counters.keep(counters) && dice.coin() {
        attach(counters, std::ptr::null_mut(), dice);
    }
}

fn attach(counters: *mut ibv_counters, flow: *mut ibv_flow, dice: &mut Dice<'_>) {
    let mut attr = ibv_counter_attach_attr {
        counter_desc: if dice.rarely() { dice.any() } else { dice.below(2) as u32 },
        index: dice.size(),
        comp_mask: dice.bits(0) as u32,
    };
    c::inline_attach_counters_point_flow(counters, &raw mut attr, flow);
}

pub fn use_counters(world: &mut World, dice: &mut Dice<'_>) {
    let Some(counters) = world.counters.some(dice) else { return };
    if dice.coin() {
        let flow = if dice.rarely() { world.flows.or_null(dice) } else { std::ptr::null_mut() };
        return attach(counters, flow, dice);
    }
    let mut values = vec![0; dice.below(40)];
    let count = values.len() as u32;
    c::inline_read_counters(counters, values.as_mut_ptr(), count, dice.bits(1) as u32);
}

pub fn flow(world: &mut World, dice: &mut Dice<'_>) {
    let Some(qp) = world.qps.some(dice) else { return };
    let mut block = vec![0; HEADER_BYTES];
    let specs = dice.below(5) as u8;
    for _ in 0..specs {
        spec(&mut block, dice);
    }
    let head = ibv_flow_attr {
        comp_mask: dice.bits(0) as u32,
        type_: if dice.rarely() { dice.any() } else { dice.of(&[0, 0, 0, 0, 1, 2, 3]) },
        size: match dice.any::<u8>() {
            0xf8.. => dice.any(),
            0xe0.. => HEADER_BYTES as u16,
            _ => block.len() as u16,
        },
        priority: if dice.rarely() { dice.any() } else { dice.below(4) as u16 },
        num_of_specs: if dice.rarely() { dice.any() } else { specs },
        port: if dice.rarely() { dice.any() } else { 1 },
        flags: dice.bits(6) as u32,
    };
    let size = usize::from(head.size);
    // The claimed length, or the longest possible one if it does not count the specs.
    block.resize(if size <= HEADER_BYTES { HEADER_BYTES + WALKED_BYTES } else { size }, 0);
    patch_pointers(&mut block, world, dice);
    // A new allocation of exactly that length, for the sanitizer.
    let mut block = block.into_boxed_slice();
    let attr = block.as_mut_ptr().cast::<ibv_flow_attr>();
    // SAFETY: the block is at least a header long.
    unsafe { attr.write_unaligned(head) };
    world.flows.keep(c::inline_create_flow(qp, attr));
}

/// Appends a spec: mostly of the right size, with few bits in its mask.
fn spec(block: &mut Vec<u8>, dice: &mut Dice<'_>) {
    let (mut kind, right_size) = dice.of(&SPECS);
    if dice.rarely() {
        kind = dice.any();
    } else if kind < IBV_FLOW_SPEC_ACTION_TAG && dice.any::<u8>() >= 0xc0 {
        kind |= IBV_FLOW_SPEC_INNER;
    }
    let size = if dice.rarely() { dice.any::<u16>() % 300 } else { right_size };
    let length = if dice.rarely() { dice.below(300) } else { usize::from(size) };
    let start = block.len();
    block.extend(kind.to_ne_bytes());
    block.extend(size.to_ne_bytes());
    let mut body = if dice.coin() { dice.bytes(length.saturating_sub(6)) } else { Vec::new() };
    if body.len() > 2 && !dice.rarely() {
        // Whole bytes or none, so that something matches.
        body.iter_mut().skip(2).for_each(|byte| *byte = if *byte & 1 == 0 { 0 } else { 0xff });
    }
    block.extend(body);
    block.resize((start + length).max(start + 6), 0);
}

/// Walks the block as the library does, and makes actions refer to handles.
fn patch_pointers(block: &mut [u8], world: &World, dice: &mut Dice<'_>) {
    let mut at = HEADER_BYTES;
    while let Some(head) = block.get(at..at + SIZE_AT + 2) {
        let kind = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]);
        let size = usize::from(u16::from_ne_bytes([head[4], head[5]]));
        if matches!(kind, IBV_FLOW_SPEC_ACTION_COUNT | IBV_FLOW_SPEC_ACTION_HANDLE)
            && let Some(place) = block.get_mut(at + POINTER_AT..at + POINTER_AT + 8)
        {
            let pointer = world.counters.or_null(dice);
            place.copy_from_slice(&pointer.expose_provenance().to_ne_bytes());
        }
        if size == 0 {
            break;
        }
        at += size;
    }
}
