//! One filter as data: the packets that it matches and where they go.
//!
//! A match is a kind, which names the headers, and masked fields, which are rows of the field table of
//! `packet`. It is in a normal form: each field once, in the order of the table, with a mask that is not zero
//! and no value outside the mask. So equal filters are equal data, whatever a driver writes into the bits
//! that it does not compare.

use std::fmt;

use packet::cube::{Cube, HAS_IPV4, HAS_IPV6, HAS_TCP, HAS_UDP, PROTOCOL, Slot};
use packet::{Field, FlowKey, IpProtocol, Layers, mac_address};
use serde::{Deserialize, Serialize};

/// The headers of a filter, as ethtool(8) names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FilterKind {
    /// Any Ethernet frame (`ETHER_FLOW`).
    Ether,
    /// IPv4 (`IPV4_USER_FLOW`).
    Ip4,
    /// IPv6 (`IPV6_USER_FLOW`).
    Ip6,
    /// TCP in IPv4 (`TCP_V4_FLOW`).
    Tcp4,
    /// UDP in IPv4 (`UDP_V4_FLOW`).
    Udp4,
    /// TCP in IPv6 (`TCP_V6_FLOW`).
    Tcp6,
    /// UDP in IPv6 (`UDP_V6_FLOW`).
    Udp6,
}

impl FilterKind {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Ether, Self::Ip4, Self::Ip6, Self::Tcp4, Self::Udp4, Self::Tcp6, Self::Udp6];

    /// The name, as ethtool(8) writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ether => "ether",
            Self::Ip4 => "ip4",
            Self::Ip6 => "ip6",
            Self::Tcp4 => "tcp4",
            Self::Udp4 => "udp4",
            Self::Tcp6 => "tcp6",
            Self::Udp6 => "udp6",
        }
    }

    /// The transport protocol, and the layer that a packet with its header has.
    pub(crate) const fn transport(self) -> Option<Transport> {
        match self {
            Self::Tcp4 | Self::Tcp6 => {
                Some(Transport { protocol: IpProtocol::TCP, layer: Layers::TCP, slot: HAS_TCP })
            }
            Self::Udp4 | Self::Udp6 => {
                Some(Transport { protocol: IpProtocol::UDP, layer: Layers::UDP, slot: HAS_UDP })
            }
            Self::Ether | Self::Ip4 | Self::Ip6 => None,
        }
    }

    /// The IP version.
    pub(crate) const fn version(self) -> Option<(Layers, Slot)> {
        match self {
            Self::Ip4 | Self::Tcp4 | Self::Udp4 => Some((Layers::IPV4, HAS_IPV4)),
            Self::Ip6 | Self::Tcp6 | Self::Udp6 => Some((Layers::IPV6, HAS_IPV6)),
            Self::Ether => None,
        }
    }
}

/// A transport protocol.
pub(crate) struct Transport {
    pub(crate) protocol: IpProtocol,
    pub(crate) layer: Layers,
    pub(crate) slot: Slot,
}

/// A field with the bits that a packet's field must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FieldBits {
    /// The field.
    pub field: Field,
    /// The value, zero outside the mask.
    pub value: u128,
    /// The bits that count, at least one.
    pub mask: u128,
}

impl FieldBits {
    /// Returns whether the whole field is compared.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.mask == self.field.max()
    }

    /// Returns whether the mask is that of a prefix.
    #[must_use]
    pub fn is_prefix(&self) -> bool {
        let wildcards = self.field.max() ^ self.mask;
        wildcards & wildcards.wrapping_add(1) == 0
    }
}

/// The masks of a filter, on a NIC whose filters must all have the same: TCP and UDP count as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SharedMasks {
    has_transport: bool,
    masks: Vec<(Field, u128)>,
}

/// The packets that a filter matches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FilterMatch {
    kind: FilterKind,
    fields: Vec<FieldBits>,
}

impl FilterMatch {
    /// A match of this kind; fields without a mask are left out.
    #[must_use]
    pub fn new(kind: FilterKind, fields: impl IntoIterator<Item = FieldBits>) -> Self {
        let mut fields: Vec<FieldBits> = fields
            .into_iter()
            .map(|FieldBits { field, value, mask }| {
                let mask = mask & field.max();
                FieldBits { field, value: value & mask, mask }
            })
            .filter(|bits| bits.mask != 0)
            .collect();
        fields.sort_by_key(|bits| bits.field);
        Self { kind, fields }
    }

    /// The headers.
    #[must_use]
    pub fn kind(&self) -> FilterKind {
        self.kind
    }

    /// The fields that are compared, in the order of the field table.
    #[must_use]
    pub fn fields(&self) -> &[FieldBits] {
        &self.fields
    }

    /// Returns this match with other bits of one of its fields.
    #[must_use]
    pub fn with(&self, bits: FieldBits) -> Self {
        let others = self.fields.iter().filter(|other| other.field != bits.field).copied();
        Self::new(self.kind, others.chain([bits]))
    }

    /// The masks that all filters of some NICs have in common.
    pub(crate) fn shared_masks(&self) -> SharedMasks {
        SharedMasks {
            has_transport: self.kind.transport().is_some(),
            masks: self.fields.iter().map(|bits| (bits.field, bits.mask)).collect(),
        }
    }

    /// The packets as a cube; `None` if there are none.
    ///
    /// A match on a transport protocol alone is about the number in the IP header, which later fragments
    /// have as well; one on ports is about the header.
    #[must_use]
    pub fn cube(&self) -> Option<Cube> {
        let mut cube = Cube::ANY;
        if let Some((_, slot)) = self.kind.version() {
            cube = cube.layer(slot, true)?;
        }
        if let Some(transport) = self.kind.transport() {
            cube = cube.with(PROTOCOL, transport.protocol.0.into(), u64::from(u8::MAX))?;
            if self.has_ports() {
                cube = cube.layer(transport.slot, true)?;
            }
        }
        for FieldBits { field, value, mask } in &self.fields {
            let mut left = field.row().bits;
            for slot in field.row().slots {
                left -= slot.bits();
                cube = cube.with(*slot, (value >> left) as u64, (mask >> left) as u64)?;
            }
        }
        cube.closed()
    }

    /// Returns whether a packet matches.
    #[must_use]
    pub fn matches(&self, key: &FlowKey) -> bool {
        let has = |layer| key.layers.contains(layer);
        self.kind.version().is_none_or(|(layer, _)| has(layer))
            && self.kind.transport().is_none_or(|transport| {
                key.protocol == transport.protocol.0 && (!self.has_ports() || has(transport.layer))
            })
            && self.fields.iter().all(|FieldBits { field, value, mask }| {
                (!is_of_tag(*field) || is_tagged(key)) && (field.in_packet(key) ^ value) & mask == 0
            })
    }

    fn has_ports(&self) -> bool {
        self.fields.iter().any(|bits| matches!(bits.field, Field::SrcPort | Field::DstPort))
    }
}

/// Returns whether the field is in the VLAN tag.
pub(crate) fn is_of_tag(field: Field) -> bool {
    field.row().header == packet::Header::Vlan
}

/// Returns whether the outermost tag is an 802.1Q tag.
fn is_tagged(key: &FlowKey) -> bool {
    key.layers.contains(Layers::VLAN) && key.vlan_tpid == packet::EtherType::VLAN.0
}

/// The text that ethtool(8) takes, but with masks of the bits that count: `udp4 dst 192.0.2.0/24 dst_port
/// 53`.
impl fmt::Display for FilterMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        for bits in &self.fields {
            let FieldBits { field, value, mask } = *bits;
            write!(f, " {} {}", field.name(), field.text(value))?;
            match field.row().form {
                _ if bits.is_whole() => {}
                packet::Form::Address if bits.is_prefix() => write!(f, "/{}", mask.count_ones())?,
                packet::Form::Mac => write!(f, "/{}", mac_address(mask as u64))?,
                _ => write!(f, "/{mask:#x}")?,
            }
        }
        Ok(())
    }
}

/// The destination of the packets of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Destination {
    /// Nowhere.
    Drop,
    /// A receive queue of the interface.
    Queue(u32),
    /// The queues of an RSS context.
    Context(u32),
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drop => f.write_str("drop"),
            Self::Queue(queue) => write!(f, "queue {queue}"),
            Self::Context(context) => write!(f, "RSS context {context}"),
        }
    }
}

/// A filter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Filter {
    /// The packets.
    pub matches: FilterMatch,
    /// The destination.
    pub destination: Destination,
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.matches, self.destination)
    }
}
