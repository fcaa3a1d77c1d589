//! What a device can be asked to match: the specs of verbs.h as plain values and masks, host byte
//! order. `control` translates them one to one; `Spec::matches_deep` is their meaning on a parsed packet,
//! used by `explain` and never on the packet path.

use std::net::{Ipv4Addr, Ipv6Addr};

use packet::{DeepKey, FlowKey, Layers, MacAddr, TunnelKey, TunnelLayers};

use crate::matching::C_TAG;

/// One `ibv_flow_spec_*`; a set bit of the mask must agree with the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Spec {
    /// `ibv_flow_spec_eth`.
    #[allow(missing_docs)]
    Ethernet { value: EthernetMatch, mask: EthernetMatch },
    /// `ibv_flow_spec_ipv4_ext`; a masked-out tail fits the plain `ibv_flow_spec_ipv4` too.
    #[allow(missing_docs)]
    Ipv4 { value: Ipv4Match, mask: Ipv4Match },
    /// `ibv_flow_spec_ipv6`.
    #[allow(missing_docs)]
    Ipv6 { value: Ipv6Match, mask: Ipv6Match },
    /// `ibv_flow_spec_tcp_udp` with type TCP.
    #[allow(missing_docs)]
    Tcp { value: PortMatch, mask: PortMatch },
    /// `ibv_flow_spec_tcp_udp` with type UDP.
    #[allow(missing_docs)]
    Udp { value: PortMatch, mask: PortMatch },
    /// `ibv_flow_spec_esp`.
    #[allow(missing_docs)]
    Esp { value: EspMatch, mask: EspMatch },
    /// `ibv_flow_spec_tunnel` with type VXLAN_TUNNEL.
    #[allow(missing_docs)]
    Vxlan { value: VxlanMatch, mask: VxlanMatch },
    /// `ibv_flow_spec_gre`.
    #[allow(missing_docs)]
    Gre { value: GreMatch, mask: GreMatch },
    /// `ibv_flow_spec_mpls`.
    #[allow(missing_docs)]
    Mpls { value: MplsMatch, mask: MplsMatch },
}

/// Fields of an Ethernet spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct EthernetMatch {
    /// Destination.
    pub dst_mac: MacAddr,
    /// Source.
    pub src_mac: MacAddr,
    /// The type after any VLAN tags.
    pub ether_type: u16,
    /// The TCI of the outermost tag; a mask here demands a C-tag (0x8100).
    pub vlan_tag: u16,
}

/// Fields of an IPv4 spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ipv4Match {
    /// Source.
    pub src: Ipv4Addr,
    /// Destination.
    pub dst: Ipv4Addr,
    /// Protocol number.
    pub proto: u8,
    /// Type of service.
    pub tos: u8,
    /// Time to live.
    pub ttl: u8,
    /// The three flag bits.
    pub flags: u8,
}

/// Fields of an IPv6 spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ipv6Match {
    /// Source.
    pub src: Ipv6Addr,
    /// Destination.
    pub dst: Ipv6Addr,
    /// 20 bits.
    pub flow_label: u32,
    /// The first next header.
    pub next_hdr: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
}

/// Fields of a TCP or UDP spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct PortMatch {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
}

/// Fields of an ESP spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct EspMatch {
    /// Security parameters index.
    pub spi: u32,
    /// Sequence number.
    pub seq: u32,
}

/// Fields of a VXLAN spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct VxlanMatch {
    /// Network identifier, 24 bits.
    pub vni: u32,
}

/// Fields of a GRE spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct GreMatch {
    /// The first word: C, K and S bits, reserved bits, version.
    pub c_ks_res0_ver: u16,
    /// EtherType of what it carries.
    pub protocol: u16,
    /// The key.
    pub key: u32,
}

/// Fields of an MPLS spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct MplsMatch {
    /// The whole entry on top of the stack: label 20 bits, traffic class 3, bottom 1, TTL 8.
    pub label: u32,
}

impl Ipv4Match {
    /// All zero: as a mask, any IPv4 packet.
    pub const ZERO: Self =
        Self { src: Ipv4Addr::UNSPECIFIED, dst: Ipv4Addr::UNSPECIFIED, proto: 0, tos: 0, ttl: 0, flags: 0 };
}

impl Ipv6Match {
    /// All zero: as a mask, any IPv6 packet.
    pub const ZERO: Self = Self {
        src: Ipv6Addr::UNSPECIFIED,
        dst: Ipv6Addr::UNSPECIFIED,
        flow_label: 0,
        next_hdr: 0,
        traffic_class: 0,
        hop_limit: 0,
    };
}

impl Default for Ipv4Match {
    fn default() -> Self {
        Self::ZERO
    }
}

impl Default for Ipv6Match {
    fn default() -> Self {
        Self::ZERO
    }
}

impl Spec {
    /// Whether the packet has the layer and agrees with every masked bit. Specs on tunnels match nothing:
    /// they need [`matches_deep`](Self::matches_deep).
    #[must_use]
    pub fn matches(&self, key: &FlowKey) -> bool {
        match self {
            Self::Ethernet { value, mask } => ethernet_matches(value, mask, key),
            Self::Ipv4 { value, mask } => key.layers.contains(Layers::IPV4) && ipv4_matches(value, mask, key),
            Self::Ipv6 { value, mask } => key.layers.contains(Layers::IPV6) && ipv6_matches(value, mask, key),
            Self::Tcp { value, mask } => key.layers.contains(Layers::TCP) && ports_match(value, mask, key),
            Self::Udp { value, mask } => key.layers.contains(Layers::UDP) && ports_match(value, mask, key),
            Self::Esp { .. } | Self::Vxlan { .. } | Self::Gre { .. } | Self::Mpls { .. } => false,
        }
    }

    /// The same for all specs; `inside`: whether it is about the packet in the tunnel.
    #[must_use]
    pub fn matches_deep(&self, key: &DeepKey, inside: bool) -> bool {
        let tunnel = &key.tunnel;
        match self {
            Self::Esp { .. } | Self::Vxlan { .. } | Self::Gre { .. } | Self::Mpls { .. } => {
                self.matches_tunnel(tunnel)
            }
            _ if inside => tunnel.layers.contains(TunnelLayers::INNER) && self.matches(&tunnel.inner),
            _ => self.matches(&key.outer),
        }
    }

    fn matches_tunnel(&self, tunnel: &TunnelKey) -> bool {
        let has = |layer| tunnel.layers.contains(layer);
        match self {
            Self::Esp { value, mask } => {
                has(TunnelLayers::ESP)
                    && (value.spi ^ tunnel.esp_spi) & mask.spi == 0
                    && (value.seq ^ tunnel.esp_seq) & mask.seq == 0
            }
            Self::Vxlan { value, mask } => {
                has(TunnelLayers::VXLAN) && (value.vni ^ tunnel.vxlan_vni) & mask.vni == 0
            }
            Self::Gre { value, mask } => {
                has(TunnelLayers::GRE)
                    && (value.c_ks_res0_ver ^ tunnel.gre_flags) & mask.c_ks_res0_ver == 0
                    && (value.protocol ^ tunnel.gre_protocol) & mask.protocol == 0
                    && (mask.key == 0 || has(TunnelLayers::GRE_KEY))
                    && (value.key ^ tunnel.gre_key) & mask.key == 0
            }
            Self::Mpls { value, mask } => {
                has(TunnelLayers::MPLS) && (value.label ^ tunnel.mpls[0]) & mask.label == 0
            }
            _ => false,
        }
    }

    /// The mask alone, which devices store flows by.
    #[must_use]
    pub fn shape(&self) -> Self {
        match *self {
            Self::Ethernet { mask, .. } => Self::Ethernet { value: EthernetMatch::default(), mask },
            Self::Ipv4 { mask, .. } => Self::Ipv4 { value: Ipv4Match::ZERO, mask },
            Self::Ipv6 { mask, .. } => Self::Ipv6 { value: Ipv6Match::ZERO, mask },
            Self::Tcp { mask, .. } => Self::Tcp { value: PortMatch::default(), mask },
            Self::Udp { mask, .. } => Self::Udp { value: PortMatch::default(), mask },
            Self::Esp { mask, .. } => Self::Esp { value: EspMatch::default(), mask },
            Self::Vxlan { mask, .. } => Self::Vxlan { value: VxlanMatch::default(), mask },
            Self::Gre { mask, .. } => Self::Gre { value: GreMatch::default(), mask },
            Self::Mpls { mask, .. } => Self::Mpls { value: MplsMatch::default(), mask },
        }
    }
}

fn bytes_match<const N: usize>(value: [u8; N], mask: [u8; N], actual: [u8; N]) -> bool {
    (0..N).all(|i| (value[i] ^ actual[i]) & mask[i] == 0)
}

fn ethernet_matches(value: &EthernetMatch, mask: &EthernetMatch, key: &FlowKey) -> bool {
    let c_tagged = key.layers.contains(Layers::VLAN) && key.vlan_tpid == C_TAG;
    bytes_match(value.dst_mac.0, mask.dst_mac.0, key.dst_mac.0)
        && bytes_match(value.src_mac.0, mask.src_mac.0, key.src_mac.0)
        && (value.ether_type ^ key.ether_type) & mask.ether_type == 0
        && (mask.vlan_tag == 0 || (c_tagged && (value.vlan_tag ^ key.vlan_tci) & mask.vlan_tag == 0))
}

fn ipv4_matches(value: &Ipv4Match, mask: &Ipv4Match, key: &FlowKey) -> bool {
    let first_four = |ip: [u8; 16]| [ip[0], ip[1], ip[2], ip[3]];
    bytes_match(value.src.octets(), mask.src.octets(), first_four(key.src_ip))
        && bytes_match(value.dst.octets(), mask.dst.octets(), first_four(key.dst_ip))
        && (value.proto ^ key.protocol) & mask.proto == 0
        && (value.tos ^ key.tos) & mask.tos == 0
        && (value.ttl ^ key.ttl) & mask.ttl == 0
        && (value.flags ^ key.ip_flags) & mask.flags == 0
}

fn ipv6_matches(value: &Ipv6Match, mask: &Ipv6Match, key: &FlowKey) -> bool {
    bytes_match(value.src.octets(), mask.src.octets(), key.src_ip)
        && bytes_match(value.dst.octets(), mask.dst.octets(), key.dst_ip)
        && (value.flow_label ^ key.flow_label) & mask.flow_label == 0
        && (value.next_hdr ^ key.protocol) & mask.next_hdr == 0
        && (value.traffic_class ^ key.tos) & mask.traffic_class == 0
        && (value.hop_limit ^ key.ttl) & mask.hop_limit == 0
}

fn ports_match(value: &PortMatch, mask: &PortMatch, key: &FlowKey) -> bool {
    (value.src_port ^ key.src_port) & mask.src_port == 0
        && (value.dst_port ^ key.dst_port) & mask.dst_port == 0
}
