//! Flow specs: the header fields that `ibv_create_flow(3)` can match, as values and masks in host byte order.
//!
//! The compiler makes a [`FlowSpec`] from a packed image ([`FlowSpec::from_image`]), `verbs` writes it into
//! an `ibv_flow_attr` ([`FlowSpec::encode`]), and programs print it. All of them use the rows below, one for
//! each field of each C structure. A field that devices can match is added here and nowhere else.
//!
//! ```
//! use flow_spec::{FlowSpec, PortMatch};
//! use packet::{FlowKey, build::FrameBuilder};
//!
//! let dns = FlowSpec::Udp {
//!     value: PortMatch { dst_port: 53, ..PortMatch::default() },
//!     mask: PortMatch { dst_port: u16::MAX, ..PortMatch::default() },
//! };
//! assert_eq!(dns.to_string(), "udp dport=53");
//! let frame = FrameBuilder::new().ipv4([192, 0, 2, 1].into(), [192, 0, 2, 2].into()).udp(1024, 53).build();
//! assert!(dns.matches(&FlowKey::of(&frame)));
//! ```
#![forbid(unsafe_code)]

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use packet::cube::{self, Slot};
use packet::{
    DeepKey, EtherType, FlowKey, Form, IP_FLAGS, IpProtocol, Layers, TunnelKey, TunnelLayers, mac_address,
};

/// Bytes of the longest filter, `ibv_flow_ipv6_filter`.
pub const MAX_FILTER_BYTES: usize = 40;

/// One field of a C filter structure.
struct SpecField {
    /// The name in the text of a spec.
    name: &'static str,
    /// The offset in the C structure.
    offset: usize,
    /// The bytes it takes there.
    bytes: usize,
    /// The bits of them that are in use, the low ones.
    bits: u32,
    /// How its values are written. `Bits` always shows the mask; `Flags` is the IPv4 flags alone.
    form: Form,
    /// The place of the field in the packed image. If that is narrower than the field, it holds the upper
    /// bits.
    slots: &'static [Slot],
    /// The value in a packet; `None` if the packet lacks the field.
    read: Read,
}

#[derive(Clone, Copy)]
enum Read {
    Packet(fn(&FlowKey) -> Option<u128>),
    Tunnel(fn(&TunnelKey) -> Option<u128>),
}

impl SpecField {
    /// Converts the IPv4 flags between the order of the header (reserved 4, DF 2, MF 1; RFC 791) and that of
    /// `enum ib_ipv4_flags` (MF 4, DF 2; include/rdma/ib_verbs.h of the kernel), either way. The reserved bit
    /// has no name there; devices refuse it. Other fields stay as they are.
    fn renumber(&self, number: u128) -> u128 {
        match self.form {
            Form::Flags(_) => number & 2 | (number & 1) << 2 | (number & 4) >> 2,
            _ => number,
        }
    }

    /// Reads the value from the words of a packed image.
    fn gather(&self, word: impl Fn(Slot) -> u64) -> u128 {
        let (bits, number) = self.slots.iter().fold((0, 0), |(bits, number), slot| {
            (bits + slot.bits(), number << slot.bits() | u128::from(word(*slot)))
        });
        self.renumber(number << (self.bits - bits))
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, value: u128, mask: u128) -> fmt::Result {
        let is_exact = mask == u128::MAX >> (u128::BITS - self.bits);
        write!(f, " {}=", self.name)?;
        match self.form {
            Form::Mac if is_exact => write!(f, "{}", mac_address(value as u64)),
            Form::Mac => write!(f, "{}/{}", mac_address(value as u64), mac_address(mask as u64)),
            Form::Address if self.bits == Ipv4Addr::BITS => {
                write!(f, "{}/{}", Ipv4Addr::from_bits(value as u32), mask.count_ones())
            }
            Form::Address => write!(f, "{}/{}", Ipv6Addr::from_bits(value), mask.count_ones()),
            Form::EtherType if is_exact => write!(f, "{}", EtherType(value as u16)),
            Form::EtherType => write!(f, "{value:#06x}/{mask:#06x}"),
            Form::Protocol if is_exact => write!(f, "{}", IpProtocol(value as u8)),
            Form::Port if is_exact => write!(f, "{value}"),
            Form::Number if is_exact => write!(f, "{value:#x}"),
            _ => write!(f, "{value:#x}/{mask:#x}"),
        }
    }
}

/// A field's value as a number and back.
trait Number {
    fn number(&self) -> u128;
    /// Stores the low bits of `number`.
    fn store(&mut self, number: u128);
}

macro_rules! numbers {
    ($($type:ident)*) => {$(
        impl Number for $type {
            fn number(&self) -> u128 {
                u128::from(*self)
            }

            fn store(&mut self, number: u128) {
                *self = number as $type;
            }
        }
    )*};
}
numbers!(u8 u16 u32);

impl<const N: usize> Number for [u8; N] {
    fn number(&self) -> u128 {
        self.iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
    }

    fn store(&mut self, number: u128) {
        self.copy_from_slice(&number.to_be_bytes()[size_of::<u128>() - N..]);
    }
}

/// The fields of one filter structure, by index into its rows.
trait Filter {
    fn rows(&self) -> &'static [SpecField];
    fn number(&self, index: usize) -> u128;
    fn store(&mut self, index: usize, number: u128);
}

/// The filter structures with the rows of their fields.
macro_rules! filters {
    ($(
        $(#[$doc:meta])*
        $filter:ident {
            $($(#[$about:meta])* $field:ident: $type:ty = $name:literal, $offset:literal, $bits:literal, $form:expr,
                [$($slot:ident),*], $read:expr;)*
        }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $filter {
            $($(#[$about])* pub $field: $type,)*
        }

        impl Filter for $filter {
            fn rows(&self) -> &'static [SpecField] {
                const ROWS: &[SpecField] = &[$(SpecField {
                    name: $name,
                    offset: $offset,
                    bytes: size_of::<$type>(),
                    bits: $bits,
                    form: $form,
                    slots: &[$(cube::$slot),*],
                    read: $read,
                }),*];
                ROWS
            }

            fn number(&self, index: usize) -> u128 {
                let mut indices = 0..;
                $(if indices.next() == Some(index) {
                    return self.$field.number();
                })*
                0
            }

            fn store(&mut self, index: usize, number: u128) {
                let mut indices = 0..;
                $(if indices.next() == Some(index) {
                    self.$field.store(number);
                })*
            }
        }
    )*};
}

const FLAGS: Form = Form::Flags(&IP_FLAGS);

// Each row: name, offset in the C structure, bits, form, place in the packed image, value in a packet.
// In the order in which the fields are written.
filters! {
    /// Fields of an Ethernet header, as values or as a mask (`ibv_flow_eth_filter`).
    EthernetMatch {
        /// Destination address.
        dst_mac: [u8; 6] = "dst", 0, 48, Form::Mac, [DST_MAC], Read::Packet(|key| Some(key.dst_mac.0.number()));
        /// Source address.
        src_mac: [u8; 6] = "src", 6, 48, Form::Mac, [SRC_MAC], Read::Packet(|key| Some(key.src_mac.0.number()));
        /// The type behind the VLAN tags.
        ether_type: u16 = "type", 12, 16, Form::EtherType, [ETHER_TYPE], Read::Packet(|key| Some(key.ether_type.into()));
        /// Tag control information of the outermost tag: priority 3 bits, DEI 1, VLAN id 12. Any mask asks
        /// for an 802.1Q tag (0x8100).
        vlan_tag: u16 = "vlan", 14, 16, Form::Bits, [VLAN_TCI], Read::Packet(|key| {
            let is_c_tag = key.layers.contains(Layers::VLAN) && key.vlan_tpid == EtherType::VLAN.0;
            is_c_tag.then(|| key.vlan_tci.into())
        });
    }
    /// The addresses of an IPv4 header, as values or as masks (`ibv_flow_ipv4_filter`).
    Ipv4Match {
        /// Source address.
        src: u32 = "src", 0, 32, Form::Address, [SRC_IPV4], Read::Packet(ipv4_src);
        /// Destination address.
        dst: u32 = "dst", 4, 32, Form::Address, [DST_IPV4], Read::Packet(ipv4_dst);
    }
    /// Fields of an IPv4 header, as values or as a mask (`ibv_flow_ipv4_ext_filter`).
    Ipv4ExtMatch {
        /// Source address.
        src: u32 = "src", 0, 32, Form::Address, [SRC_IPV4], Read::Packet(ipv4_src);
        /// Destination address.
        dst: u32 = "dst", 4, 32, Form::Address, [DST_IPV4], Read::Packet(ipv4_dst);
        /// Protocol number.
        proto: u8 = "proto", 8, 8, Form::Protocol, [PROTOCOL], Read::Packet(|key| Some(key.protocol.into()));
        /// Type of service.
        tos: u8 = "tos", 9, 8, Form::Bits, [TOS], Read::Packet(|key| Some(key.tos.into()));
        /// Time to live.
        ttl: u8 = "ttl", 10, 8, Form::Bits, [TTL], Read::Packet(|key| Some(key.ttl.into()));
        /// Don't fragment 2, more fragments 4: the numbers of `enum ib_ipv4_flags` (include/rdma/ib_verbs.h
        /// of the kernel), which are not those of the header and lack its reserved bit. Text has the header's
        /// numbers.
        flags: u8 = "flags", 11, 3, FLAGS, [IP_FLAGS], Read::Packet(|key| Some(key.ip_flags.into()));
    }
    /// Fields of an IPv6 header, as values or as a mask (`ibv_flow_ipv6_filter`).
    Ipv6Match {
        /// Source address.
        src: [u8; 16] = "src", 0, 128, Form::Address, [SRC_HIGH, SRC_LOW], Read::Packet(|key| Some(key.src_ip.number()));
        /// Destination address.
        dst: [u8; 16] = "dst", 16, 128, Form::Address, [DST_HIGH, DST_LOW], Read::Packet(|key| Some(key.dst_ip.number()));
        /// The first next header.
        next_hdr: u8 = "proto", 36, 8, Form::Protocol, [PROTOCOL], Read::Packet(|key| Some(key.protocol.into()));
        /// Traffic class.
        traffic_class: u8 = "tc", 37, 8, Form::Bits, [TOS], Read::Packet(|key| Some(key.tos.into()));
        /// Hop limit.
        hop_limit: u8 = "hops", 38, 8, Form::Bits, [TTL], Read::Packet(|key| Some(key.ttl.into()));
        /// Flow label, 20 bits.
        flow_label: u32 = "label", 32, 20, Form::Bits, [FLOW_LABEL], Read::Packet(|key| Some(key.flow_label.into()));
    }
    /// TCP or UDP ports, as values or as masks (`ibv_flow_tcp_udp_filter`).
    PortMatch {
        /// Source port.
        src_port: u16 = "sport", 2, 16, Form::Port, [SRC_PORT], Read::Packet(|key| Some(key.src_port.into()));
        /// Destination port.
        dst_port: u16 = "dport", 0, 16, Form::Port, [DST_PORT], Read::Packet(|key| Some(key.dst_port.into()));
    }
    /// Fields of an ESP header (RFC 4303), as values or as a mask (`ibv_flow_esp_filter`). IP protocol 50 is
    /// for the flow to ask for.
    EspMatch {
        /// Security parameters index.
        spi: u32 = "spi", 0, 32, Form::Number, [ESP_SPI], Read::Tunnel(|key| Some(key.esp_spi.into()));
        /// Sequence number. mlx5 cannot match it (drivers/infiniband/hw/mlx5/fs.c).
        seq: u32 = "seq", 4, 32, Form::Number, [ESP_SEQ], Read::Tunnel(|key| Some(key.esp_seq.into()));
    }
    /// The network identifier of a VXLAN header (RFC 7348), as a value or as a mask
    /// (`ibv_flow_tunnel_filter`). UDP port 4789 is for the flow to ask for.
    VxlanMatch {
        /// 24 bits; the kernel refuses more with EINVAL (uverbs_cmd.c).
        vni: u32 = "vni", 0, 24, Form::Number, [VXLAN_VNI], Read::Tunnel(|key| Some(key.vxlan_vni.into()));
    }
    /// Fields of a GRE header (RFC 2784, RFC 2890), as values or as a mask (`ibv_flow_gre_filter`).
    GreMatch {
        /// The first 16 bits: checksum, key and sequence flags, reserved bits, version.
        c_ks_res0_ver: u16 = "flags", 0, 16, Form::Bits, [GRE_FLAGS], Read::Tunnel(|key| Some(key.gre_flags.into()));
        /// EtherType of the payload.
        protocol: u16 = "proto", 2, 16, Form::Bits, [GRE_PROTOCOL], Read::Tunnel(|key| Some(key.gre_protocol.into()));
        /// The key, where the header has one.
        key: u32 = "key", 4, 32, Form::Number, [GRE_KEY], Read::Tunnel(|key| {
            key.layers.contains(TunnelLayers::GRE_KEY).then(|| key.gre_key.into())
        });
    }
    /// The top entry of an MPLS label stack (RFC 3032), as a value or as a mask (`ibv_flow_mpls_filter`).
    MplsMatch {
        /// The whole entry: label 20 bits, traffic class 3, bottom of stack 1, time to live 8.
        label: u32 = "top", 0, 32, Form::Number, [MPLS_TOP], Read::Tunnel(|key| Some(key.mpls[0].into()));
    }
}

fn ipv4_src(key: &FlowKey) -> Option<u128> {
    Some(key.src_ip[..4].iter().fold(0, |number, byte| number << 8 | u128::from(*byte)))
}

fn ipv4_dst(key: &FlowKey) -> Option<u128> {
    Some(key.dst_ip[..4].iter().fold(0, |number, byte| number << 8 | u128::from(*byte)))
}

/// The specs with their filter structures and their names in text.
macro_rules! specs {
    ($($(#[$doc:meta])* $kind:ident($filter:ident) = $name:literal,)*) => {
        /// A header that a packet must have, and bits that its fields must have. A bit counts where the mask
        /// has it; where the mask does not have it, the value must be 0 on mlx5 (EINVAL;
        /// drivers/net/ethernet/mellanox/mlx5/core/fs_core.c, `check_valid_spec`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs)] // `value` and `mask`
        pub enum FlowSpec {
            $($(#[$doc])* $kind { value: $filter, mask: $filter },)*
        }

        /// The type of a spec (`ibv_flow_spec_type`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum SpecKind {
            $($(#[$doc])* $kind,)*
        }

        impl SpecKind {
            /// The header's name in the text of a spec.
            const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }
        }

        impl FlowSpec {
            /// The spec that every packet with the header matches.
            #[must_use]
            pub fn any(kind: SpecKind) -> Self {
                match kind {
                    $(SpecKind::$kind => Self::$kind { value: $filter::default(), mask: $filter::default() },)*
                }
            }

            /// The type of the spec.
            #[must_use]
            pub const fn kind(&self) -> SpecKind {
                match self {
                    $(Self::$kind { .. } => SpecKind::$kind,)*
                }
            }

            fn halves(&self) -> (&dyn Filter, &dyn Filter) {
                match self {
                    $(Self::$kind { value, mask } => (value, mask),)*
                }
            }

            fn halves_mut(&mut self) -> (&mut dyn Filter, &mut dyn Filter) {
                match self {
                    $(Self::$kind { value, mask } => (value, mask),)*
                }
            }
        }
    };
}

specs! {
    /// Ethernet.
    Ethernet(EthernetMatch) = "eth",
    /// IPv4, its addresses.
    Ipv4(Ipv4Match) = "ipv4",
    /// IPv4, all its fields.
    Ipv4Ext(Ipv4ExtMatch) = "ipv4",
    /// IPv6.
    Ipv6(Ipv6Match) = "ipv6",
    /// TCP.
    Tcp(PortMatch) = "tcp",
    /// UDP.
    Udp(PortMatch) = "udp",
    /// ESP.
    Esp(EspMatch) = "esp",
    /// VXLAN; specs of the encapsulated packet are inner ones.
    VxlanTunnel(VxlanMatch) = "vxlan",
    /// GRE; specs of the encapsulated packet are inner ones.
    Gre(GreMatch) = "gre",
    /// An MPLS label, at its place among the specs; inner specs follow it.
    Mpls(MplsMatch) = "mpls",
}

impl SpecKind {
    /// Whether the spec is about the header of a tunnel, which no other spec describes.
    #[must_use]
    pub const fn is_tunnel(self) -> bool {
        matches!(self, Self::Esp | Self::VxlanTunnel | Self::Gre | Self::Mpls)
    }

    const fn layers(self) -> Layers {
        match self {
            Self::Ipv4 | Self::Ipv4Ext => Layers::IPV4,
            Self::Ipv6 => Layers::IPV6,
            Self::Tcp => Layers::TCP,
            Self::Udp => Layers::UDP,
            _ => Layers::empty(),
        }
    }

    const fn tunnel_layers(self) -> TunnelLayers {
        match self {
            Self::Esp => TunnelLayers::ESP,
            Self::VxlanTunnel => TunnelLayers::VXLAN,
            Self::Gre => TunnelLayers::GRE,
            Self::Mpls => TunnelLayers::MPLS,
            _ => TunnelLayers::empty(),
        }
    }
}

/// A field of a spec with the bits that a packet's field must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskedField {
    /// The place in the packed image, the most significant word first. If that is narrower than the field, it
    /// is the place of the upper bits.
    pub slots: &'static [Slot],
    /// The width of the field.
    pub bits: u32,
    /// The value.
    pub value: u128,
    /// The bits that count, at least one.
    pub mask: u128,
}

impl FlowSpec {
    /// The fields with masks; IPv4 flags in the order of the header.
    pub fn masked_fields(&self) -> impl Iterator<Item = MaskedField> {
        let masked = self.fields().filter(|(_, _, mask)| *mask != 0);
        masked.map(|(row, value, mask)| MaskedField { slots: row.slots, bits: row.bits, value, mask })
    }

    /// The spec whose fields have the values and masks of a packed image, which `field` returns by place.
    ///
    /// Of IPv4, some devices (mlx4) have the plain spec only: [`SpecKind::Ipv4Ext`] gives [`FlowSpec::Ipv4`]
    /// unless a field beyond the addresses is masked.
    #[must_use]
    pub fn from_image(kind: SpecKind, field: impl Fn(Slot) -> (u64, u64)) -> Self {
        let mut spec = Self::any(kind);
        let (value, mask) = spec.halves_mut();
        for (index, row) in value.rows().iter().enumerate() {
            value.store(index, row.gather(|slot| field(slot).0));
            mask.store(index, row.gather(|slot| field(slot).1));
        }
        let plain_fields = Ipv4Match::default().rows().len();
        match kind {
            SpecKind::Ipv4Ext if spec.fields().skip(plain_fields).all(|(_, _, mask)| mask == 0) => {
                Self::from_image(SpecKind::Ipv4, field)
            }
            _ => spec,
        }
    }

    /// Every field with its value and its mask; IPv4 flags in the order of the header.
    fn fields(&self) -> impl Iterator<Item = (&'static SpecField, u128, u128)> {
        let (value, mask) = self.halves();
        value.rows().iter().enumerate().map(move |(index, row)| {
            (row, row.renumber(value.number(index)), row.renumber(mask.number(index)))
        })
    }

    /// The value and the mask as the C filter structure has them: in network byte order, padding zero. Bytes
    /// behind the structure are zero.
    #[must_use]
    pub fn encode(&self) -> ([u8; MAX_FILTER_BYTES], [u8; MAX_FILTER_BYTES]) {
        let encode = |filter: &dyn Filter| {
            let mut out = [0; MAX_FILTER_BYTES];
            for (index, row) in filter.rows().iter().enumerate() {
                let bytes = filter.number(index).to_be_bytes();
                out[row.offset..row.offset + row.bytes].copy_from_slice(&bytes[bytes.len() - row.bytes..]);
            }
            out
        };
        let (value, mask) = self.halves();
        (encode(value), encode(mask))
    }

    /// Returns the spec with its mask and a value of zeros: devices store flows by it.
    #[must_use]
    pub fn shape(&self) -> Self {
        let mut shape = *self;
        let (value, _) = shape.halves_mut();
        for index in 0..value.rows().len() {
            value.store(index, 0);
        }
        shape
    }

    /// Whether the packet has the header and agrees with every masked bit. Specs of tunnel headers match
    /// nothing: they need [`matches_deep`](Self::matches_deep).
    #[must_use]
    pub fn matches(&self, key: &FlowKey) -> bool {
        let kind = self.kind();
        !kind.is_tunnel()
            && key.layers.contains(kind.layers())
            && self.agrees(|read| match read {
                Read::Packet(read) => read(key),
                Read::Tunnel(_) => None,
            })
    }

    /// Returns whether all specs match; `inside`: whether the spec is about the packet in the tunnel.
    #[must_use]
    pub fn matches_deep(&self, key: &DeepKey, inside: bool) -> bool {
        let (kind, tunnel) = (self.kind(), &key.tunnel);
        match inside {
            _ if kind.is_tunnel() => {
                tunnel.layers.contains(kind.tunnel_layers())
                    && self.agrees(|read| match read {
                        Read::Packet(_) => None,
                        Read::Tunnel(read) => read(tunnel),
                    })
            }
            true => tunnel.layers.contains(TunnelLayers::INNER) && self.matches(&tunnel.inner),
            false => self.matches(&key.outer),
        }
    }

    fn agrees(&self, read: impl Fn(Read) -> Option<u128>) -> bool {
        let (value, mask) = self.halves();
        value.rows().iter().enumerate().all(|(index, row)| {
            let mask = row.renumber(mask.number(index));
            mask == 0
                || read(row.read)
                    .is_some_and(|actual| (row.renumber(value.number(index)) ^ actual) & mask == 0)
        })
    }
}

/// The header and its masked fields: `ipv4 dst=192.0.2.0/24`.
impl fmt::Display for FlowSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind().name())?;
        let masked = self.fields().filter(|(_, _, mask)| *mask != 0);
        masked.into_iter().try_for_each(|(row, value, mask)| row.write(f, value, mask))
    }
}

#[cfg(test)]
mod tests;
