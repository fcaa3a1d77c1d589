//! Flows: the kernel's specs are turned into those of verbs.h, which all fronts share the rules for.

use ibverbs_sys::{
    IBV_FLOW_SPEC_ACTION_COUNT, IBV_FLOW_SPEC_ACTION_DROP, IBV_FLOW_SPEC_ACTION_HANDLE,
    IBV_FLOW_SPEC_ACTION_TAG, IBV_FLOW_SPEC_ETH, IBV_FLOW_SPEC_INNER, IBV_FLOW_SPEC_IPV4,
    IBV_FLOW_SPEC_IPV4_EXT, IBV_FLOW_SPEC_TCP, IBV_FLOW_SPEC_UDP, ibv_flow_attr, ibv_flow_eth_filter,
    ibv_flow_ipv4_ext_filter, ibv_flow_ipv4_filter, ibv_flow_spec_eth, ibv_flow_spec_tcp_udp,
    ibv_flow_tcp_udp_filter,
};
use softnic::errno::{EINVAL, EOPNOTSUPP, Verb};
use softnic::limits::MAX_SPECS;
use softnic::objects::flows::{self, NewFlow};
use softnic::objects::queue_pairs;

use super::{Call, ENOENT};
use crate::block::Block;
use crate::context::Context;
use crate::counters;

/// Where the specs begin, behind `struct ib_uverbs_create_flow`.
const SPECS: usize = 24;
/// Bytes of `struct ib_uverbs_flow_spec_hdr`, and of what verbs.h has in its place.
const HEADER_BYTES: usize = 8;
/// In both: the type and the size.
const TYPE_BYTES: usize = 4;

/// CREATE_FLOW (kernel core/uverbs_cmd.c, `ib_uverbs_ex_create_flow`).
pub(super) fn create(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    let (owner, core) = (context.slot()?, call.core);
    if core.u32(0) != 0 {
        return Err(EINVAL);
    }
    flows::check_privilege(&context.nic)?;
    let block = attributes(core)?;
    // SAFETY: the block begins with the attributes, whose size is that of the block.
    let request = unsafe { flows::read(&context.nic, block.as_ptr().cast()) }?;
    let points = counters::points(call.driver)?;
    let qp = core.u32(4);
    let slot = flows::insert(&context.nic, &request, |state| {
        if !queue_pairs::is_owned(state, owner, qp) {
            return Err(EINVAL);
        }
        // In a flow of this front the pointer is the handle.
        let counter = request.counters().map(|set| counters::find(state, owner, set.addr() as u64, EINVAL));
        Ok(NewFlow { owner, qp, counter: counter.transpose()?, points })
    })?;
    call.reply.put_u32(4, slot);
    Ok(())
}

/// DESTROY_FLOW.
pub(super) fn destroy(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    let (owner, slot) = (context.slot()?, call.core.u32(4));
    if call.core.u32(0) != 0 {
        return Err(EINVAL);
    }
    flows::remove(&context.nic, slot, owner).ok_or(ENOENT)
}

/// Turns `struct ib_uverbs_flow_attr` with its specs into a block that begins with an `ibv_flow_attr`.
fn attributes(core: Block<'_>) -> Verb<Vec<u8>> {
    let (size, count) = (usize::from(core.u16(12)), core.u8(16));
    if core.u16(17) != 0 || count > MAX_SPECS {
        return Err(EINVAL);
    }
    // Behind the specs may be the padding to 8 bytes, and nothing else.
    let specs = core.0.get(SPECS..).ok_or(EINVAL)?;
    let specs = specs.get(..size).ok_or(EINVAL)?;
    core.known(SPECS + size)?;
    let mut converted = Vec::new();
    let mut rest = specs;
    for _ in 0..count {
        let (spec, others) = split(rest)?;
        convert(spec, &mut converted)?;
        rest = others;
    }
    if !rest.is_empty() {
        return Err(EINVAL);
    }
    let bytes = size_of::<ibv_flow_attr>() + converted.len();
    let head = ibv_flow_attr {
        comp_mask: 0,
        type_: core.u32(8),
        size: u16::try_from(bytes).map_err(|_| EINVAL)?,
        priority: core.u16(14),
        num_of_specs: count,
        port: core.u8(19),
        flags: core.u32(20),
    };
    let mut block = vec![0; size_of::<ibv_flow_attr>()];
    // SAFETY: the block has the bytes of the attributes, and any alignment will do.
    unsafe { block.as_mut_ptr().cast::<ibv_flow_attr>().write_unaligned(head) };
    block.append(&mut converted);
    Ok(block)
}

/// The first spec of some, and the others.
fn split(specs: &[u8]) -> Verb<(Block<'_>, &[u8])> {
    let size = usize::from(Block(specs).u16(TYPE_BYTES));
    if size < HEADER_BYTES {
        return Err(EINVAL);
    }
    let (spec, others) = specs.split_at_checked(size).ok_or(EINVAL)?;
    Ok((Block(spec), others))
}

/// Appends a spec of the kernel as verbs.h has it: filters begin where their alignment allows, an IPv4 filter
/// with more than addresses has another type, and the header has no reserved field.
fn convert(spec: Block<'_>, into: &mut Vec<u8>) -> Verb<()> {
    let kind = spec.u32(0);
    if spec.u16(TYPE_BYTES + 2) != 0 {
        return Err(EINVAL);
    }
    let body = spec.0.get(HEADER_BYTES..).ok_or(EINVAL)?;
    match kind & !IBV_FLOW_SPEC_INNER {
        IBV_FLOW_SPEC_ACTION_TAG | IBV_FLOW_SPEC_ACTION_COUNT | IBV_FLOW_SPEC_ACTION_HANDLE => {
            convert_action(spec, into)
        }
        IBV_FLOW_SPEC_ACTION_DROP if body.is_empty() => {
            append(kind, HEADER_BYTES, HEADER_BYTES, &[], into);
            Ok(())
        }
        IBV_FLOW_SPEC_ETH if body.len() == 2 * size_of::<ibv_flow_eth_filter>() => {
            let start = std::mem::offset_of!(ibv_flow_spec_eth, val);
            append(kind, start, size_of::<ibv_flow_spec_eth>(), body, into);
            Ok(())
        }
        IBV_FLOW_SPEC_TCP | IBV_FLOW_SPEC_UDP if body.len() == 2 * size_of::<ibv_flow_tcp_udp_filter>() => {
            let start = std::mem::offset_of!(ibv_flow_spec_tcp_udp, val);
            append(kind, start, size_of::<ibv_flow_spec_tcp_udp>(), body, into);
            Ok(())
        }
        IBV_FLOW_SPEC_ETH | IBV_FLOW_SPEC_TCP | IBV_FLOW_SPEC_UDP => Err(EINVAL),
        IBV_FLOW_SPEC_IPV4 if body.len() == 2 * size_of::<ibv_flow_ipv4_ext_filter>() => {
            let kind = IBV_FLOW_SPEC_IPV4_EXT | kind & IBV_FLOW_SPEC_INNER;
            append(kind, HEADER_BYTES, HEADER_BYTES + body.len(), body, into);
            Ok(())
        }
        IBV_FLOW_SPEC_IPV4 if body.len() != 2 * size_of::<ibv_flow_ipv4_filter>() => Err(EINVAL),
        // A type of the library's only, which it turns into the former.
        IBV_FLOW_SPEC_IPV4_EXT => Err(EINVAL),
        _ => {
            append(kind, HEADER_BYTES, HEADER_BYTES + body.len(), body, into);
            Ok(())
        }
    }
}

/// A tag is a number in both; the handle of counters becomes their pointer, which nothing follows.
fn convert_action(spec: Block<'_>, into: &mut Vec<u8>) -> Verb<()> {
    /// The kernel's action with a number and a reserved field.
    const BYTES: usize = HEADER_BYTES + 8;
    let (kind, number) = (spec.u32(0), spec.u32(HEADER_BYTES));
    if spec.len() != BYTES || spec.u32(HEADER_BYTES + 4) != 0 {
        return Err(EINVAL);
    }
    match kind {
        IBV_FLOW_SPEC_ACTION_TAG => {
            append(kind, HEADER_BYTES, HEADER_BYTES + 4, &number.to_ne_bytes(), into);
        }
        IBV_FLOW_SPEC_ACTION_COUNT => {
            append(kind, HEADER_BYTES, BYTES, &u64::from(number).to_ne_bytes(), into);
        }
        // No kernel has any for raw packets since ESP offload was removed from mlx5.
        _ => return Err(EOPNOTSUPP),
    }
    Ok(())
}

/// Appends a spec of `bytes` whose body starts at `start`.
fn append(kind: u32, start: usize, bytes: usize, body: &[u8], into: &mut Vec<u8>) {
    let begin = into.len();
    into.resize(begin + bytes, 0);
    let size = u16::try_from(bytes).unwrap_or(u16::MAX);
    let parts = [(0, &kind.to_ne_bytes()[..]), (TYPE_BYTES, &size.to_ne_bytes()[..]), (start, body)];
    for (at, part) in parts {
        for (to, from) in into.iter_mut().skip(begin + at).zip(part) {
            *to = *from;
        }
    }
}
