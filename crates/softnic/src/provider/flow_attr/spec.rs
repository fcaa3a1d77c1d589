//! One spec at a time, from bytes to values: what the library and the kernel check before any driver sees it.
//!
//! Values stay in network order, as they are in the structs. What a spec means is not looked at here.

use ibverbs_sys::{
    IBV_FLOW_SPEC_ACTION_COUNT, IBV_FLOW_SPEC_ACTION_DROP, IBV_FLOW_SPEC_ACTION_HANDLE,
    IBV_FLOW_SPEC_ACTION_TAG, IBV_FLOW_SPEC_ESP, IBV_FLOW_SPEC_ETH, IBV_FLOW_SPEC_GRE, IBV_FLOW_SPEC_INNER,
    IBV_FLOW_SPEC_IPV4, IBV_FLOW_SPEC_IPV4_EXT, IBV_FLOW_SPEC_IPV6, IBV_FLOW_SPEC_MPLS, IBV_FLOW_SPEC_TCP,
    IBV_FLOW_SPEC_UDP, IBV_FLOW_SPEC_VXLAN_TUNNEL, ibv_counters, ibv_flow_eth_filter,
    ibv_flow_ipv4_ext_filter, ibv_flow_ipv6_filter, ibv_flow_spec_action_drop, ibv_flow_spec_action_handle,
    ibv_flow_spec_action_tag, ibv_flow_spec_counter_action, ibv_flow_spec_esp, ibv_flow_spec_eth,
    ibv_flow_spec_gre, ibv_flow_spec_ipv4, ibv_flow_spec_mpls, ibv_flow_spec_tcp_udp, ibv_flow_spec_type,
    ibv_flow_tunnel_filter,
};

use crate::provider::answer::{EINVAL, EOPNOTSUPP, Verb};

/// A flow label has 20 bits.
const FLOW_LABELS: u32 = 1 << 20;
/// A VXLAN network identifier has 24 bits.
const NETWORKS: u32 = 1 << 24;
/// `type` and `size`, as every spec begins, with the padding that follows.
const SPEC_HEADER_BYTES: usize = size_of::<ibv_flow_spec_action_drop>();

/// A value and a mask.
#[derive(Clone, Copy, Debug)]
pub(super) struct Masked<F> {
    pub(super) value: F,
    pub(super) mask: F,
}

/// What a filter is about.
#[derive(Clone, Copy, Debug)]
pub(super) enum Header {
    Ethernet(Masked<ibv_flow_eth_filter>),
    /// Also what a plain IPV4 spec asks for.
    Ipv4(Masked<ibv_flow_ipv4_ext_filter>),
    Ipv6(Masked<ibv_flow_ipv6_filter>),
    Tcp(ibv_flow_spec_tcp_udp),
    Udp(ibv_flow_spec_tcp_udp),
    Esp(ibv_flow_spec_esp),
    Vxlan(Masked<u32>),
    Gre(ibv_flow_spec_gre),
    Mpls(Masked<u32>),
}

/// A filter, and of which packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filter {
    /// Its type without INNER.
    pub(super) kind: ibv_flow_spec_type,
    pub(super) inner: bool,
    pub(super) header: Header,
}

impl Filter {
    /// As mlx5 sees it: of an IPv4 filter only the value counts.
    pub(super) fn is_multicast_only(&self) -> bool {
        match &self.header {
            _ if self.inner => false,
            Header::Ethernet(Masked { value, mask }) => value.dst_mac[0] & mask.dst_mac[0] & 1 != 0,
            Header::Ipv4(Masked { value, .. }) => value.dst_ip.to_ne_bytes()[0] & 0xf0 == 0xe0,
            _ => false,
        }
    }

    /// Whether a value has bits that its mask leaves out, of those values that mlx5 hands on: not of fields that it cannot
    /// match, and a VLAN tag or protocol only with a mask (kernel fs.c, `parse_flow_attr` and `set_proto`).
    pub(super) fn exceeds_its_mask(&self) -> bool {
        match &self.header {
            Header::Ethernet(Masked { value, mask }) => {
                bytes_exceed(value.dst_mac, mask.dst_mac)
                    || bytes_exceed(value.src_mac, mask.src_mac)
                    || exceeds(value.ether_type, mask.ether_type)
                    || mask.vlan_tag != 0 && exceeds(value.vlan_tag, mask.vlan_tag)
            }
            Header::Ipv4(Masked { value, mask }) => {
                exceeds(value.src_ip, mask.src_ip)
                    || exceeds(value.dst_ip, mask.dst_ip)
                    || exceeds(value.tos, mask.tos)
                    || mask.proto != 0 && exceeds(value.proto, mask.proto)
            }
            Header::Ipv6(Masked { value, mask }) => {
                bytes_exceed(value.src_ip, mask.src_ip)
                    || bytes_exceed(value.dst_ip, mask.dst_ip)
                    || exceeds(value.flow_label, mask.flow_label)
                    || exceeds(value.traffic_class, mask.traffic_class)
                    || mask.next_hdr != 0 && exceeds(value.next_hdr, mask.next_hdr)
            }
            Header::Tcp(ports) | Header::Udp(ports) => {
                exceeds(ports.val.src_port, ports.mask.src_port)
                    || exceeds(ports.val.dst_port, ports.mask.dst_port)
            }
            Header::Esp(esp) => exceeds(esp.val.spi, esp.mask.spi),
            Header::Gre(gre) => {
                exceeds(gre.val.protocol, gre.mask.protocol) || exceeds(gre.val.key, gre.mask.key)
            }
            Header::Vxlan(number) | Header::Mpls(number) => exceeds(number.value, number.mask),
        }
    }
}

fn exceeds<F: Into<u32>>(value: F, mask: F) -> bool {
    value.into() & !mask.into() != 0
}

fn bytes_exceed<const N: usize>(value: [u8; N], mask: [u8; N]) -> bool {
    value.into_iter().zip(mask).any(|(value, mask)| exceeds(value, mask))
}

/// An action.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Tag(u32),
    Drop,
    Count(*mut ibv_counters),
    Handle,
}

impl Action {
    pub(super) fn kind(self) -> ibv_flow_spec_type {
        match self {
            Self::Tag(_) => IBV_FLOW_SPEC_ACTION_TAG,
            Self::Drop => IBV_FLOW_SPEC_ACTION_DROP,
            Self::Count(_) => IBV_FLOW_SPEC_ACTION_COUNT,
            Self::Handle => IBV_FLOW_SPEC_ACTION_HANDLE,
        }
    }
}

/// One spec of a block.
#[derive(Clone, Copy, Debug)]
pub(super) enum Spec {
    Filter(Filter),
    Action(Action),
}

/// The first spec of what is left of a block, and the rest.
pub(super) fn split(block: &[u8]) -> Verb<(&[u8], &[u8])> {
    let header = header(block)?;
    let (spec, rest) = block.split_at_checked(usize::from(header.size)).ok_or(EINVAL)?;
    if spec.len() < SPEC_HEADER_BYTES { Err(EINVAL) } else { Ok((spec, rest)) }
}

fn header(block: &[u8]) -> Verb<ibv_flow_spec_action_drop> {
    pod(block.get(..SPEC_HEADER_BYTES).ok_or(EINVAL)?)
}

impl Spec {
    /// Reads a spec of exactly these bytes.
    pub(super) fn read(bytes: &[u8]) -> Verb<Self> {
        let kind = header(bytes)?.type_;
        let action = match kind {
            IBV_FLOW_SPEC_ACTION_TAG => Action::Tag(pod::<ibv_flow_spec_action_tag>(bytes)?.tag_id),
            IBV_FLOW_SPEC_ACTION_DROP => pod::<ibv_flow_spec_action_drop>(bytes).map(|_| Action::Drop)?,
            IBV_FLOW_SPEC_ACTION_COUNT => Action::Count(pod::<ibv_flow_spec_counter_action>(bytes)?.counters),
            IBV_FLOW_SPEC_ACTION_HANDLE => {
                pod::<ibv_flow_spec_action_handle>(bytes).map(|_| Action::Handle)?
            }
            _ => return read_filter(kind, bytes).map(Self::Filter),
        };
        Ok(Self::Action(action))
    }
}

fn read_filter(kind: ibv_flow_spec_type, bytes: &[u8]) -> Verb<Filter> {
    let inner = kind & IBV_FLOW_SPEC_INNER != 0;
    let kind = kind & !IBV_FLOW_SPEC_INNER;
    let header = match kind {
        IBV_FLOW_SPEC_ETH => {
            let ibv_flow_spec_eth { val: value, mask, .. } = pod(bytes)?;
            Header::Ethernet(Masked { value, mask })
        }
        IBV_FLOW_SPEC_IPV4 => {
            let spec: ibv_flow_spec_ipv4 = pod(bytes)?;
            let extended = |src_ip, dst_ip| ibv_flow_ipv4_ext_filter { src_ip, dst_ip, ..Default::default() };
            Header::Ipv4(Masked {
                value: extended(spec.val.src_ip, spec.val.dst_ip),
                mask: extended(spec.mask.src_ip, spec.mask.dst_ip),
            })
        }
        IBV_FLOW_SPEC_IPV4_EXT => Header::Ipv4(extensible(bytes, size_of::<ibv_flow_ipv4_ext_filter>())?),
        IBV_FLOW_SPEC_IPV6 => {
            let known_bytes = std::mem::offset_of!(ibv_flow_ipv6_filter, hop_limit) + 1;
            let filter: Masked<ibv_flow_ipv6_filter> = extensible(bytes, known_bytes)?;
            below(FLOW_LABELS, [filter.value.flow_label, filter.mask.flow_label])?;
            Header::Ipv6(filter)
        }
        IBV_FLOW_SPEC_TCP => Header::Tcp(pod(bytes)?),
        IBV_FLOW_SPEC_UDP => Header::Udp(pod(bytes)?),
        IBV_FLOW_SPEC_ESP => Header::Esp(pod(bytes)?),
        IBV_FLOW_SPEC_MPLS => {
            let spec: ibv_flow_spec_mpls = pod(bytes)?;
            Header::Mpls(Masked { value: spec.val.label, mask: spec.mask.label })
        }
        // The library knows neither of them inside a tunnel.
        IBV_FLOW_SPEC_VXLAN_TUNNEL | IBV_FLOW_SPEC_GRE if inner => return Err(EINVAL),
        IBV_FLOW_SPEC_VXLAN_TUNNEL => {
            let known_bytes = size_of::<ibv_flow_tunnel_filter>();
            let filter: Masked<ibv_flow_tunnel_filter> = extensible(bytes, known_bytes)?;
            let (value, mask) = (filter.value.tunnel_id, filter.mask.tunnel_id);
            below(NETWORKS, [value, mask])?;
            Header::Vxlan(Masked { value, mask })
        }
        IBV_FLOW_SPEC_GRE => Header::Gre(pod(bytes)?),
        _ => return Err(EINVAL),
    };
    Ok(Filter { kind, inner, header })
}

/// Whether both numbers, which are in network order, are below a limit.
fn below(limit: u32, numbers: [u32; 2]) -> Verb<()> {
    if numbers.iter().all(|number| u32::from_be(*number) < limit) { Ok(()) } else { Err(EINVAL) }
}

/// A spec that may have grown: value and mask take half of it each, and a mask beyond what is known must be zero
/// (libibverbs/cmd.c, `get_filters_size`; drivers/infiniband/core/uverbs_cmd.c, `spec_filter_size`).
fn extensible<F: Pod + Default>(spec: &[u8], known_bytes: usize) -> Verb<Masked<F>> {
    let filters = spec.get(SPEC_HEADER_BYTES..).ok_or(EINVAL)?;
    let filter_bytes = filters.len() / 2;
    if filter_bytes < known_bytes {
        return Err(EINVAL);
    }
    let (value, mask) = filters.split_at(filter_bytes);
    if mask.iter().take(filter_bytes).skip(known_bytes).any(|byte| *byte != 0) {
        return Err(EOPNOTSUPP);
    }
    Ok(Masked { value: prefix(value, known_bytes), mask: prefix(mask, known_bytes) })
}

/// A value whose first bytes are given, and whose other ones are zero.
fn prefix<F: Pod + Default>(bytes: &[u8], known_bytes: usize) -> F {
    let mut value = F::default();
    let count = bytes.len().min(known_bytes).min(size_of::<F>());
    // SAFETY: as many bytes as both have; every pattern of them is an `F` (`Pod`), whose place cannot overlap the block.
    unsafe { (&raw mut value).cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), count) };
    value
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
unsafe impl Pod for ibv_flow_ipv4_ext_filter {}
// SAFETY: as above.
unsafe impl Pod for ibv_flow_ipv6_filter {}
// SAFETY: as above.
unsafe impl Pod for ibv_flow_tunnel_filter {}
// SAFETY: as above.
unsafe impl Pod for ibv_flow_spec_tcp_udp {}
// SAFETY: as above.
unsafe impl Pod for ibv_flow_spec_esp {}
// SAFETY: as above.
unsafe impl Pod for ibv_flow_spec_gre {}
// SAFETY: as above.
unsafe impl Pod for ibv_flow_spec_mpls {}
// SAFETY: as above.
unsafe impl Pod for ibv_flow_spec_action_tag {}
// SAFETY: as above.
unsafe impl Pod for ibv_flow_spec_action_drop {}
// SAFETY: integers and a raw pointer.
unsafe impl Pod for ibv_flow_spec_action_handle {}
// SAFETY: integers and a raw pointer.
unsafe impl Pod for ibv_flow_spec_counter_action {}
