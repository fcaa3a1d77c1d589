//! Reading an `ibv_flow_attr` with its specs: every size, count, type, order and flag, as the kernel does
//! (drivers/infiniband/core/uverbs_cmd.c, `ib_uverbs_ex_create_flow` and `kern_spec_to_ib_spec`).

use ibverbs_sys::{
    IBV_FLOW_ATTR_ALL_DEFAULT, IBV_FLOW_ATTR_FLAGS_DONT_TRAP, IBV_FLOW_ATTR_FLAGS_EGRESS,
    IBV_FLOW_ATTR_MC_DEFAULT, IBV_FLOW_ATTR_NORMAL, IBV_FLOW_ATTR_SNIFFER, IBV_FLOW_SPEC_ACTION_COUNT,
    IBV_FLOW_SPEC_ACTION_DROP, IBV_FLOW_SPEC_ACTION_HANDLE, IBV_FLOW_SPEC_ACTION_TAG, IBV_FLOW_SPEC_ESP,
    IBV_FLOW_SPEC_ETH, IBV_FLOW_SPEC_GRE, IBV_FLOW_SPEC_INNER, IBV_FLOW_SPEC_IPV4, IBV_FLOW_SPEC_IPV4_EXT,
    IBV_FLOW_SPEC_IPV6, IBV_FLOW_SPEC_MPLS, IBV_FLOW_SPEC_TCP, IBV_FLOW_SPEC_UDP, IBV_FLOW_SPEC_VXLAN_TUNNEL,
    ibv_counters, ibv_flow_attr, ibv_flow_spec_action_drop, ibv_flow_spec_action_tag,
    ibv_flow_spec_counter_action, ibv_flow_spec_eth, ibv_flow_spec_ipv4, ibv_flow_spec_ipv4_ext,
    ibv_flow_spec_ipv6, ibv_flow_spec_tcp_udp, ibv_flow_spec_type,
};
use packet::{IpProtocol, Layers};

use super::answer::{EINVAL, EOPNOTSUPP, Verb, known_bits};
use crate::flow::{FlowKind, Matcher};
use crate::limits::MAX_SPECS;

/// A flow label has 20 bits.
const FLOW_LABELS: u32 = 1 << 20;
/// The flags of an IPv4 filter (`enum ib_ipv4_flags` in include/rdma/ib_verbs.h of the kernel; the manual is silent).
const SPEC_DONT_FRAGMENT: u8 = 1 << 1;
const SPEC_MORE_FRAGMENTS: u8 = 1 << 2;
/// The same flags in the header, down from the reserved bit (RFC 791, 3.1).
const HEADER_DONT_FRAGMENT: u8 = 1 << 1;
const HEADER_MORE_FRAGMENTS: u8 = 1 << 0;
/// `type` and `size`, as every spec begins.
const SPEC_HEADER_BYTES: usize = size_of::<ibv_flow_spec_action_drop>();

/// What an attribute block asks for.
#[derive(Debug)]
pub(crate) struct FlowRequest {
    pub(crate) kind: FlowKind,
    pub(crate) port: u8,
    pub(crate) priority: u16,
    pub(crate) dont_trap: bool,
    pub(crate) matcher: Matcher,
    pub(crate) tag: Option<u32>,
    pub(crate) drop: bool,
    pub(crate) counters: Option<*mut ibv_counters>,
}

/// How far up the stack the specs have come: they must be in the order of the headers, one per layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Layer {
    None,
    Ethernet,
    Network,
    Transport,
}

/// Reads a block.
///
/// # Safety
/// `attr` is NULL or the start of a block of `attr.size` bytes, or of an `ibv_flow_attr` if that is more.
pub(crate) unsafe fn read(attr: *const ibv_flow_attr) -> Verb<FlowRequest> {
    if attr.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: an `ibv_flow_attr`, by the contract; not necessarily aligned.
    let head = unsafe { attr.read_unaligned() };
    known_bits(head.comp_mask, 0, EINVAL)?;
    let header_bytes = size_of::<ibv_flow_attr>();
    let spec_bytes = usize::from(head.size).checked_sub(header_bytes).ok_or(EINVAL)?;
    // SAFETY: the block has `size` bytes, by the contract, which is at least the header.
    let specs = unsafe { attr.cast::<u8>().add(header_bytes) };
    // SAFETY: as above.
    let specs = unsafe { std::slice::from_raw_parts(specs, spec_bytes) };
    let mut request = read_head(&head)?;
    read_specs(&mut request, specs, head.num_of_specs)?;
    Ok(request)
}

fn read_head(head: &ibv_flow_attr) -> Verb<FlowRequest> {
    let kind = match head.type_ {
        IBV_FLOW_ATTR_NORMAL => FlowKind::Normal,
        IBV_FLOW_ATTR_ALL_DEFAULT => FlowKind::AllDefault,
        IBV_FLOW_ATTR_MC_DEFAULT => FlowKind::MulticastDefault,
        IBV_FLOW_ATTR_SNIFFER => FlowKind::Sniffer,
        _ => return Err(EINVAL),
    };
    known_bits(head.flags, IBV_FLOW_ATTR_FLAGS_DONT_TRAP | IBV_FLOW_ATTR_FLAGS_EGRESS, EINVAL)?;
    let dont_trap = head.flags & IBV_FLOW_ATTR_FLAGS_DONT_TRAP != 0;
    if dont_trap && kind != FlowKind::Normal {
        return Err(EINVAL);
    }
    if head.flags & IBV_FLOW_ATTR_FLAGS_EGRESS != 0 {
        return Err(EOPNOTSUPP);
    }
    if head.num_of_specs > MAX_SPECS {
        return Err(EINVAL);
    }
    Ok(FlowRequest {
        kind,
        port: head.port,
        priority: head.priority,
        dont_trap,
        matcher: Matcher::any(),
        tag: None,
        drop: false,
        counters: None,
    })
}

fn read_specs(request: &mut FlowRequest, mut specs: &[u8], count: u8) -> Verb<()> {
    let mut layer = Layer::None;
    let mut protocol = None;
    for _ in 0..count {
        let header = specs.get(..SPEC_HEADER_BYTES).ok_or(EINVAL)?;
        let header: ibv_flow_spec_action_drop = pod(header)?;
        let (spec, rest) = specs.split_at_checked(usize::from(header.size)).ok_or(EINVAL)?;
        if spec.len() < SPEC_HEADER_BYTES {
            return Err(EINVAL);
        }
        specs = rest;
        match header.type_ {
            IBV_FLOW_SPEC_ACTION_TAG..=IBV_FLOW_SPEC_ACTION_COUNT => action(request, header.type_, spec)?,
            kind => {
                let reached = filter(request, kind, spec, &mut protocol)?;
                if reached <= layer {
                    return Err(EINVAL);
                }
                layer = reached;
            }
        }
    }
    // As the kernel: what is not a spec is not part of the block.
    let leftover = !specs.is_empty();
    // Defaults and sniffers take whole classes of frames; specs on them would be silently ignored by hardware.
    let useless = layer != Layer::None && request.kind != FlowKind::Normal;
    // What is to go on to later flows cannot be dropped: neither a copy nor a verdict would be left of such a flow.
    let pointless = request.drop && (request.kind == FlowKind::Sniffer || request.dont_trap);
    if leftover || useless || pointless || request.matcher.is_contradictory() {
        return Err(EINVAL);
    }
    Ok(())
}

/// Plain old data out of exactly its own number of bytes.
fn pod<T: Pod>(bytes: &[u8]) -> Verb<T> {
    if bytes.len() != size_of::<T>() {
        return Err(EINVAL);
    }
    // SAFETY: enough bytes, and every pattern of them is a `T` (`Pod`).
    Ok(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// # Safety
/// Every pattern of bytes is a value.
unsafe trait Pod: Copy {}
// SAFETY: integers and arrays of integers.
unsafe impl Pod for ibv_flow_spec_eth {}
// SAFETY: as above.
unsafe impl Pod for ibv_flow_spec_ipv4 {}
// SAFETY: as above.
unsafe impl Pod for ibv_flow_spec_ipv4_ext {}
// SAFETY: as above.
unsafe impl Pod for ibv_flow_spec_ipv6 {}
// SAFETY: as above.
unsafe impl Pod for ibv_flow_spec_tcp_udp {}
// SAFETY: as above.
unsafe impl Pod for ibv_flow_spec_action_tag {}
// SAFETY: as above.
unsafe impl Pod for ibv_flow_spec_action_drop {}
// SAFETY: integers and a raw pointer.
unsafe impl Pod for ibv_flow_spec_counter_action {}

fn action(request: &mut FlowRequest, kind: ibv_flow_spec_type, spec: &[u8]) -> Verb<()> {
    match kind {
        IBV_FLOW_SPEC_ACTION_TAG => {
            let tag: ibv_flow_spec_action_tag = pod(spec)?;
            set_once(&mut request.tag, tag.tag_id)
        }
        IBV_FLOW_SPEC_ACTION_DROP => {
            pod::<ibv_flow_spec_action_drop>(spec)?;
            if request.drop {
                return Err(EINVAL);
            }
            request.drop = true;
            Ok(())
        }
        IBV_FLOW_SPEC_ACTION_COUNT => {
            let count: ibv_flow_spec_counter_action = pod(spec)?;
            set_once(&mut request.counters, count.counters)
        }
        // ESP offload, gone from the kernel (facts/hardware.md).
        IBV_FLOW_SPEC_ACTION_HANDLE => Err(EOPNOTSUPP),
        _ => Err(EINVAL),
    }
}

fn set_once<T>(place: &mut Option<T>, value: T) -> Verb<()> {
    if place.is_some() {
        return Err(EINVAL);
    }
    *place = Some(value);
    Ok(())
}

/// Narrows the match by one filter; answers its layer. `protocol` is what an IPv4 or IPv6 filter asked for exactly.
fn filter(
    request: &mut FlowRequest,
    kind: ibv_flow_spec_type,
    spec: &[u8],
    protocol: &mut Option<u8>,
) -> Verb<Layer> {
    let matcher = &mut request.matcher;
    match kind {
        IBV_FLOW_SPEC_ETH => {
            ethernet(matcher, spec)?;
            Ok(Layer::Ethernet)
        }
        IBV_FLOW_SPEC_IPV4 => {
            let ibv_flow_spec_ipv4 { val: value, mask, .. } = pod(spec)?;
            matcher
                .require(Layers::IPV4)
                .src_ipv4(value.src_ip.to_ne_bytes(), mask.src_ip.to_ne_bytes())
                .dst_ipv4(value.dst_ip.to_ne_bytes(), mask.dst_ip.to_ne_bytes());
            Ok(Layer::Network)
        }
        IBV_FLOW_SPEC_IPV4_EXT => {
            *protocol = ipv4(matcher, spec)?;
            Ok(Layer::Network)
        }
        IBV_FLOW_SPEC_IPV6 => {
            *protocol = ipv6(matcher, spec)?;
            Ok(Layer::Network)
        }
        IBV_FLOW_SPEC_TCP => transport(matcher, spec, (Layers::TCP, IpProtocol::TCP), *protocol),
        IBV_FLOW_SPEC_UDP => transport(matcher, spec, (Layers::UDP, IpProtocol::UDP), *protocol),
        IBV_FLOW_SPEC_ESP | IBV_FLOW_SPEC_VXLAN_TUNNEL | IBV_FLOW_SPEC_GRE | IBV_FLOW_SPEC_MPLS => {
            Err(EOPNOTSUPP)
        }
        inner if inner & IBV_FLOW_SPEC_INNER != 0 => Err(EOPNOTSUPP),
        _ => Err(EINVAL),
    }
}

fn ethernet(matcher: &mut Matcher, spec: &[u8]) -> Verb<()> {
    let ibv_flow_spec_eth { val: value, mask, .. } = pod(spec)?;
    matcher
        .dst_mac(value.dst_mac, mask.dst_mac)
        .src_mac(value.src_mac, mask.src_mac)
        .ether_type(u16::from_be(value.ether_type), u16::from_be(mask.ether_type))
        .vlan_tag(u16::from_be(value.vlan_tag), u16::from_be(mask.vlan_tag));
    Ok(())
}

fn ipv4(matcher: &mut Matcher, spec: &[u8]) -> Verb<Option<u8>> {
    let ibv_flow_spec_ipv4_ext { val: value, mask, .. } = pod(spec)?;
    known_bits(mask.flags.into(), (SPEC_DONT_FRAGMENT | SPEC_MORE_FRAGMENTS).into(), EOPNOTSUPP)?;
    matcher
        .require(Layers::IPV4)
        .src_ipv4(value.src_ip.to_ne_bytes(), mask.src_ip.to_ne_bytes())
        .dst_ipv4(value.dst_ip.to_ne_bytes(), mask.dst_ip.to_ne_bytes())
        .protocol(value.proto, mask.proto)
        .tos(value.tos, mask.tos)
        .ttl(value.ttl, mask.ttl)
        .ip_flags(header_flags(value.flags), header_flags(mask.flags));
    Ok((mask.proto == u8::MAX).then_some(value.proto))
}

/// The flags of an IPv4 filter as the three bits of the header have them, where "more fragments" is the lowest.
fn header_flags(spec: u8) -> u8 {
    let bit = |spec_bit, header_bit| if spec & spec_bit != 0 { header_bit } else { 0 };
    bit(SPEC_DONT_FRAGMENT, HEADER_DONT_FRAGMENT) | bit(SPEC_MORE_FRAGMENTS, HEADER_MORE_FRAGMENTS)
}

fn ipv6(matcher: &mut Matcher, spec: &[u8]) -> Verb<Option<u8>> {
    let ibv_flow_spec_ipv6 { val: value, mask, .. } = pod(spec)?;
    let (label, label_mask) = (u32::from_be(value.flow_label), u32::from_be(mask.flow_label));
    if label >= FLOW_LABELS || label_mask >= FLOW_LABELS {
        return Err(EINVAL);
    }
    matcher
        .require(Layers::IPV6)
        .src_ipv6(value.src_ip, mask.src_ip)
        .dst_ipv6(value.dst_ip, mask.dst_ip)
        .flow_label(label, label_mask)
        .protocol(value.next_hdr, mask.next_hdr)
        .tos(value.traffic_class, mask.traffic_class)
        .ttl(value.hop_limit, mask.hop_limit);
    Ok((mask.next_hdr == u8::MAX).then_some(value.next_hdr))
}

fn transport(
    matcher: &mut Matcher,
    spec: &[u8],
    (layer, own): (Layers, IpProtocol),
    protocol: Option<u8>,
) -> Verb<Layer> {
    // As mlx5: a protocol beside a transport filter must be that transport's.
    if protocol.is_some_and(|protocol| protocol != own.0) {
        return Err(EINVAL);
    }
    let ibv_flow_spec_tcp_udp { val: value, mask, .. } = pod(spec)?;
    matcher
        .require(layer)
        .src_port(u16::from_be(value.src_port), u16::from_be(mask.src_port))
        .dst_port(u16::from_be(value.dst_port), u16::from_be(mask.dst_port));
    Ok(Layer::Transport)
}

#[cfg(test)]
mod tests;
