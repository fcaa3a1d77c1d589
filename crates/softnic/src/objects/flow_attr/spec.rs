//! The encoding of header fields in the structures of verbs.h.
//!
//! [`LAYOUTS`] describes the filters of flow specs, a row per field: its place in the structure and its place
//! in the packed image (`packet::cube`). [`Spec::read`] makes the checks that the library and the kernel make
//! before a driver sees a spec; `filter` decides what the spec matches. Other files do not name the members
//! of these structures.

use std::mem::offset_of;

use arrayvec::ArrayVec;
use device_model::Feature;
use ibverbs_sys::{
    IBV_FLOW_SPEC_ACTION_COUNT, IBV_FLOW_SPEC_ACTION_DROP, IBV_FLOW_SPEC_ACTION_HANDLE,
    IBV_FLOW_SPEC_ACTION_TAG, IBV_FLOW_SPEC_ESP, IBV_FLOW_SPEC_ETH, IBV_FLOW_SPEC_GRE, IBV_FLOW_SPEC_INNER,
    IBV_FLOW_SPEC_IPV4, IBV_FLOW_SPEC_IPV4_EXT, IBV_FLOW_SPEC_IPV6, IBV_FLOW_SPEC_MPLS, IBV_FLOW_SPEC_TCP,
    IBV_FLOW_SPEC_UDP, IBV_FLOW_SPEC_VXLAN_TUNNEL, ibv_counters, ibv_flow_esp_filter, ibv_flow_eth_filter,
    ibv_flow_gre_filter, ibv_flow_ipv4_ext_filter, ibv_flow_ipv4_filter, ibv_flow_ipv6_filter,
    ibv_flow_mpls_filter, ibv_flow_spec_action_drop, ibv_flow_spec_action_handle, ibv_flow_spec_action_tag,
    ibv_flow_spec_counter_action, ibv_flow_spec_esp, ibv_flow_spec_eth, ibv_flow_spec_gre,
    ibv_flow_spec_ipv4, ibv_flow_spec_mpls, ibv_flow_spec_tcp_udp, ibv_flow_spec_type,
    ibv_flow_tcp_udp_filter, ibv_flow_tunnel_filter, ibv_global_route,
};
use packet::cube::{self, Slot};

use crate::errno::{EINVAL, EOPNOTSUPP, Verb};

/// `type` and `size`, as every spec begins, with the padding that follows.
const SPEC_HEADER_BYTES: usize = size_of::<ibv_flow_spec_action_drop>();
/// The most fields of one structure.
const MAX_FIELDS: usize = 6;
/// The flags of an IPv4 filter (`enum ib_ipv4_flags` in include/rdma/ib_verbs.h of the kernel; the manual is
/// silent).
const SPEC_DONT_FRAGMENT: u128 = 1 << 1;
const SPEC_MORE_FRAGMENTS: u128 = 1 << 2;

/// The header that a filter is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header {
    Ethernet,
    Ipv4,
    Ipv6,
    Tcp,
    Udp,
    Esp,
    Vxlan,
    Gre,
    Mpls,
}

/// A field of a filter structure. All are in network order.
struct Row {
    offset: usize,
    bytes: usize,
    /// The place in the packed image, the most significant slot first.
    slots: &'static [Slot],
    /// The feature by which a device may refuse the field.
    feature: Option<Feature>,
}

/// A filter structure.
struct Layout {
    kind: ibv_flow_spec_type,
    header: Header,
    /// Where the value is in a spec.
    start: usize,
    /// Bytes of the structure that are known.
    bytes: usize,
    /// Whether specs may be longer ([`extended_bytes`]).
    is_extensible: bool,
    rows: &'static [Row],
}

macro_rules! rows {
    ($filter:ty: $($field:ident, $bytes:literal, [$($slot:ident),+], $feature:expr;)*) => {
        &[$(Row { offset: offset_of!($filter, $field), bytes: $bytes, slots: &[$(cube::$slot),+], feature: $feature },)*]
    };
}

const PORTS: &[Row] = rows! { ibv_flow_tcp_udp_filter:
    dst_port, 2, [DST_PORT], None;
    src_port, 2, [SRC_PORT], None;
};

const fn fixed<Spec, Filter>(
    kind: ibv_flow_spec_type,
    header: Header,
    start: usize,
    rows: &'static [Row],
) -> Layout {
    assert!(size_of::<Spec>() == (start + 2 * size_of::<Filter>()).next_multiple_of(align_of::<Spec>()));
    Layout { kind, header, start, bytes: size_of::<Filter>(), is_extensible: false, rows }
}

const fn extensible(kind: ibv_flow_spec_type, header: Header, bytes: usize, rows: &'static [Row]) -> Layout {
    Layout { kind, header, start: SPEC_HEADER_BYTES, bytes, is_extensible: true, rows }
}

static LAYOUTS: [Layout; 10] = [
    fixed::<ibv_flow_spec_eth, ibv_flow_eth_filter>(
        IBV_FLOW_SPEC_ETH,
        Header::Ethernet,
        offset_of!(ibv_flow_spec_eth, val),
        rows! { ibv_flow_eth_filter:
            dst_mac, 6, [DST_MAC], None;
            src_mac, 6, [SRC_MAC], Some(Feature::SrcMac);
            ether_type, 2, [ETHER_TYPE], Some(Feature::EtherType);
            vlan_tag, 2, [VLAN_TCI], Some(Feature::Vlan);
        },
    ),
    fixed::<ibv_flow_spec_ipv4, ibv_flow_ipv4_filter>(
        IBV_FLOW_SPEC_IPV4,
        Header::Ipv4,
        offset_of!(ibv_flow_spec_ipv4, val),
        rows! { ibv_flow_ipv4_filter:
            src_ip, 4, [SRC_IPV4], None;
            dst_ip, 4, [DST_IPV4], None;
        },
    ),
    extensible(
        IBV_FLOW_SPEC_IPV4_EXT,
        Header::Ipv4,
        size_of::<ibv_flow_ipv4_ext_filter>(),
        rows! { ibv_flow_ipv4_ext_filter:
            src_ip, 4, [SRC_IPV4], None;
            dst_ip, 4, [DST_IPV4], None;
            proto, 1, [PROTOCOL], Some(Feature::Protocol);
            tos, 1, [TOS], Some(Feature::Tos);
            ttl, 1, [TTL], Some(Feature::Ttl);
            flags, 1, [IP_FLAGS], Some(Feature::IpFlags);
        },
    ),
    extensible(
        IBV_FLOW_SPEC_IPV6,
        Header::Ipv6,
        offset_of!(ibv_flow_ipv6_filter, hop_limit) + 1,
        rows! { ibv_flow_ipv6_filter:
            src_ip, 16, [SRC_HIGH, SRC_LOW], None;
            dst_ip, 16, [DST_HIGH, DST_LOW], None;
            flow_label, 4, [FLOW_LABEL], Some(Feature::FlowLabel);
            next_hdr, 1, [PROTOCOL], Some(Feature::Protocol);
            traffic_class, 1, [TOS], Some(Feature::Tos);
            hop_limit, 1, [TTL], Some(Feature::HopLimit);
        },
    ),
    fixed::<ibv_flow_spec_tcp_udp, ibv_flow_tcp_udp_filter>(
        IBV_FLOW_SPEC_TCP,
        Header::Tcp,
        offset_of!(ibv_flow_spec_tcp_udp, val),
        PORTS,
    ),
    fixed::<ibv_flow_spec_tcp_udp, ibv_flow_tcp_udp_filter>(
        IBV_FLOW_SPEC_UDP,
        Header::Udp,
        offset_of!(ibv_flow_spec_tcp_udp, val),
        PORTS,
    ),
    fixed::<ibv_flow_spec_esp, ibv_flow_esp_filter>(
        IBV_FLOW_SPEC_ESP,
        Header::Esp,
        offset_of!(ibv_flow_spec_esp, val),
        rows! { ibv_flow_esp_filter:
            spi, 4, [ESP_SPI], None;
            seq, 4, [ESP_SEQ], Some(Feature::EspSeq);
        },
    ),
    extensible(
        IBV_FLOW_SPEC_VXLAN_TUNNEL,
        Header::Vxlan,
        size_of::<ibv_flow_tunnel_filter>(),
        rows! { ibv_flow_tunnel_filter:
            tunnel_id, 4, [VXLAN_VNI], None;
        },
    ),
    fixed::<ibv_flow_spec_gre, ibv_flow_gre_filter>(
        IBV_FLOW_SPEC_GRE,
        Header::Gre,
        offset_of!(ibv_flow_spec_gre, val),
        rows! { ibv_flow_gre_filter:
            c_ks_res0_ver, 2, [GRE_FLAGS, GRE_RESERVED], Some(Feature::GreFlags);
            protocol, 2, [GRE_PROTOCOL], None;
            key, 4, [GRE_KEY], None;
        },
    ),
    fixed::<ibv_flow_spec_mpls, ibv_flow_mpls_filter>(
        IBV_FLOW_SPEC_MPLS,
        Header::Mpls,
        offset_of!(ibv_flow_spec_mpls, val),
        rows! { ibv_flow_mpls_filter:
            label, 4, [MPLS_TOP], None;
        },
    ),
];

/// A field of a filter, with its value and mask as the structure has them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(super) slots: &'static [Slot],
    pub(super) feature: Option<Feature>,
    value: u128,
    pub(super) mask: u128,
}

impl Field {
    /// Value and mask as the packed image has them. Of the flags of IPv4, "more fragments" is the lowest
    /// there (RFC 791).
    pub(super) fn in_image(&self) -> (u128, u128) {
        if self.slots != [cube::IP_FLAGS] {
            return (self.value, self.mask);
        }
        let renumbered = |flags: u128| flags & SPEC_DONT_FRAGMENT | (flags & SPEC_MORE_FRAGMENTS) >> 2;
        (renumbered(self.value), renumbered(self.mask))
    }

    /// Whether the mask has flags of IPv4 that the filter has no names for.
    pub(super) fn has_unknown_flags(&self) -> bool {
        self.slots == [cube::IP_FLAGS] && self.mask & !(SPEC_DONT_FRAGMENT | SPEC_MORE_FRAGMENTS) != 0
    }

    /// Whether the value has bits outside its mask, of those values that mlx5 passes on: a VLAN tag or
    /// protocol only with a mask (kernel fs.c, `parse_flow_attr` and `set_proto`).
    pub(super) fn exceeds_its_mask(&self) -> bool {
        let needs_mask = [[cube::VLAN_TCI], [cube::PROTOCOL]].iter().any(|slots| self.slots == slots);
        self.value & !self.mask != 0 && (self.mask != 0 || !needs_mask)
    }
}

/// A filter, and of which packet.
#[derive(Clone, Debug)]
pub(super) struct Filter {
    pub(super) inner: bool,
    pub(super) header: Header,
    pub(super) fields: ArrayVec<Field, MAX_FIELDS>,
}

impl Filter {
    /// The value and mask of a field; zero if it is not of this filter.
    pub(super) fn get(&self, slot: Slot) -> (u128, u128) {
        let field = self.fields.iter().find(|field| field.slots == [slot]);
        field.map_or((0, 0), |field| (field.value, field.mask))
    }

    /// Whether all masks are zero.
    pub(super) fn is_open(&self) -> bool {
        self.fields.iter().all(|field| field.mask == 0)
    }

    /// The feature that a device may ignore where [all masks are zero](Self::is_open). An Ethernet header
    /// inside follows the VXLAN header.
    pub(super) fn presence(&self) -> Option<Feature> {
        match self.header {
            Header::Ethernet if self.inner => Some(Feature::AnyVxlan),
            Header::Ethernet | Header::Ipv4 | Header::Ipv6 => None,
            Header::Tcp | Header::Udp => Some(Feature::AnyPorts),
            Header::Esp => Some(Feature::AnyEsp),
            Header::Vxlan => Some(Feature::AnyVxlan),
            Header::Gre => Some(Feature::AnyGre),
            Header::Mpls => Some(Feature::AnyMpls),
        }
    }

    /// Returns whether the spec is on multicast alone as mlx5 sees it: of an IPv4 filter only the value
    /// counts.
    pub(super) fn is_multicast_only(&self) -> bool {
        let (dst_mac, mask) = self.get(cube::DST_MAC);
        let (dst_ipv4, _) = self.get(cube::DST_IPV4);
        !self.inner && (dst_mac & mask & super::GROUP_BIT != 0 || dst_ipv4 >> 28 == 0xe)
    }
}

/// An action.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Tag(u32),
    Drop,
    Count(*mut ibv_counters),
    Handle,
}

/// One spec of a block.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "at most ten live during one call, on its stack")]
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
    let layout = LAYOUTS.iter().find(|layout| layout.kind == kind).ok_or(EINVAL)?;
    // The library rejects both of them inside a tunnel.
    if inner && matches!(layout.header, Header::Vxlan | Header::Gre) {
        return Err(EINVAL);
    }
    let filter_bytes =
        if layout.is_extensible { extended_bytes(bytes, layout)? } else { fixed_bytes(bytes, layout)? };
    let values = bytes.get(layout.start..).ok_or(EINVAL)?;
    let (values, masks) = values.split_at_checked(filter_bytes).ok_or(EINVAL)?;
    let mut fields = ArrayVec::new();
    for row in layout.rows {
        let number = |filter: &[u8]| -> Verb<u128> {
            let bytes = filter.get(row.offset..row.offset + row.bytes).ok_or(EINVAL)?;
            Ok(bytes.iter().fold(0, |number, byte| number << 8 | u128::from(*byte)))
        };
        let (value, mask) = (number(values)?, number(masks)?);
        let field = Field { slots: row.slots, feature: row.feature, value, mask };
        // A flow label has 20 bits and a VXLAN network identifier 24. Flags are looked at by the driver.
        let bits: u32 = row.slots.iter().map(|slot| slot.bits()).sum();
        if row.slots != [cube::IP_FLAGS] && bits < u128::BITS && (value | mask) >> bits != 0 {
            return Err(EINVAL);
        }
        fields.push(field);
    }
    Ok(Filter { inner, header: layout.header, fields })
}

/// The flow label for the GRH of datagrams. Higher bits of the attribute are ignored, as by mlx5
/// (`IB_GRH_FLOWLABEL_MASK`).
#[must_use]
pub fn grh_flow(grh: &ibv_global_route) -> u32 {
    grh.flow_label & ((1 << cube::FLOW_LABEL.bits()) - 1)
}

/// The bytes of value and of mask in a spec of the layout's own size.
fn fixed_bytes(spec: &[u8], layout: &Layout) -> Verb<usize> {
    let spec_bytes =
        (layout.start + 2 * layout.bytes).next_multiple_of(align_of::<ibv_flow_spec_action_drop>());
    if spec.len() == spec_bytes { Ok(layout.bytes) } else { Err(EINVAL) }
}

/// The bytes of a spec that may have grown: value and mask take half of it each, and a mask beyond what is
/// known must be zero (libibverbs/cmd.c, `get_filters_size`; drivers/infiniband/core/uverbs_cmd.c,
/// `spec_filter_size`).
fn extended_bytes(spec: &[u8], layout: &Layout) -> Verb<usize> {
    let filters = spec.get(SPEC_HEADER_BYTES..).ok_or(EINVAL)?;
    let filter_bytes = filters.len() / 2;
    if filter_bytes < layout.bytes {
        return Err(EINVAL);
    }
    let mask = &filters[filter_bytes..];
    if mask.iter().take(filter_bytes).skip(layout.bytes).any(|byte| *byte != 0) {
        return Err(EOPNOTSUPP);
    }
    Ok(filter_bytes)
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
// SAFETY: integers.
unsafe impl Pod for ibv_flow_spec_action_tag {}
// SAFETY: as above.
unsafe impl Pod for ibv_flow_spec_action_drop {}
// SAFETY: integers and a raw pointer.
unsafe impl Pod for ibv_flow_spec_action_handle {}
// SAFETY: as above.
unsafe impl Pod for ibv_flow_spec_counter_action {}
