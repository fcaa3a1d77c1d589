//! From the policy's specs to the verbs' specs, one to one, and to words for errors and plans.

use std::fmt::{self, Display, Formatter};

use program::{FlowKind, Spec};
use verbs::FlowSpec;

/// The verbs' spec for a policy's. IPv4 takes the plain spec unless a field needs the extended one,
/// because some devices have only the plain (facts, mlx4).
pub(crate) fn flow_spec(spec: &Spec) -> FlowSpec {
    match *spec {
        Spec::Ethernet { value, mask } => FlowSpec::Ethernet { value: ethernet(value), mask: ethernet(mask) },
        Spec::Ipv4 { value, mask } if (mask.proto | mask.tos | mask.ttl | mask.flags) == 0 => {
            let plain = |m: program::Ipv4Match| verbs::Ipv4Match { src: m.src.into(), dst: m.dst.into() };
            FlowSpec::Ipv4 { value: plain(value), mask: plain(mask) }
        }
        Spec::Ipv4 { value, mask } => FlowSpec::Ipv4Ext { value: ipv4_ext(value), mask: ipv4_ext(mask) },
        Spec::Ipv6 { value, mask } => FlowSpec::Ipv6 { value: ipv6(value), mask: ipv6(mask) },
        Spec::Tcp { value, mask } => FlowSpec::Tcp { value: ports(value), mask: ports(mask) },
        Spec::Udp { value, mask } => FlowSpec::Udp { value: ports(value), mask: ports(mask) },
        Spec::Esp { value, mask } => {
            let esp = |m: program::EspMatch| verbs::EspMatch { spi: m.spi, seq: m.seq };
            FlowSpec::Esp { value: esp(value), mask: esp(mask) }
        }
        Spec::Vxlan { value, mask } => {
            let vxlan = |m: program::VxlanMatch| verbs::VxlanMatch { vni: m.vni };
            FlowSpec::VxlanTunnel { value: vxlan(value), mask: vxlan(mask) }
        }
        Spec::Gre { value, mask } => {
            let gre = |m: program::GreMatch| verbs::GreMatch {
                c_ks_res0_ver: m.c_ks_res0_ver,
                protocol: m.protocol,
                key: m.key,
            };
            FlowSpec::Gre { value: gre(value), mask: gre(mask) }
        }
        Spec::Mpls { value, mask } => {
            let mpls = |m: program::MplsMatch| verbs::MplsMatch { label: m.label };
            FlowSpec::Mpls { value: mpls(value), mask: mpls(mask) }
        }
    }
}

/// The flag bits as `enum ib_ipv4_flags` numbers them (rdma/ib_verbs.h: DF 2, MF 4), which is not the order
/// of the header (reserved 4, DF 2, MF 1). The reserved bit has no name there; devices refuse it.
fn ip_flags(header: u8) -> u8 {
    header & 2 | (header & 1) << 2 | (header & 4) >> 2
}

fn ethernet(m: program::EthernetMatch) -> verbs::EthernetMatch {
    verbs::EthernetMatch {
        dst_mac: m.dst_mac.0,
        src_mac: m.src_mac.0,
        ether_type: m.ether_type,
        vlan_tag: m.vlan_tag,
    }
}

fn ipv4_ext(m: program::Ipv4Match) -> verbs::Ipv4ExtMatch {
    verbs::Ipv4ExtMatch {
        src: m.src.into(),
        dst: m.dst.into(),
        proto: m.proto,
        tos: m.tos,
        ttl: m.ttl,
        flags: ip_flags(m.flags),
    }
}

fn ipv6(m: program::Ipv6Match) -> verbs::Ipv6Match {
    verbs::Ipv6Match {
        src: m.src.octets(),
        dst: m.dst.octets(),
        flow_label: m.flow_label,
        next_hdr: m.next_hdr,
        traffic_class: m.traffic_class,
        hop_limit: m.hop_limit,
    }
}

fn ports(m: program::PortMatch) -> verbs::PortMatch {
    verbs::PortMatch { src_port: m.src_port, dst_port: m.dst_port }
}

/// A spec chain with its actions in one line: `ipv4 dst 192.0.2.0/255.255.255.0 | udp dst_port 53 | tag 7`.
#[derive(Clone, Copy, Debug)]
pub struct SpecChain<'s> {
    /// What the flow takes.
    pub kind: FlowKind,
    /// The matches.
    pub specs: &'s [Spec],
    /// Where those about the packet inside a tunnel begin.
    pub inner_from: usize,
    /// The flow tag, if it sets one.
    pub tag: Option<u32>,
    /// Whether it drops.
    pub drop: bool,
}

impl Display for SpecChain<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            FlowKind::Normal => "",
            FlowKind::Copy => "copy",
            FlowKind::Sniffer => "sniffer",
            FlowKind::Egress => "egress",
        };
        f.write_str(kind)?;
        for (index, spec) in self.specs.iter().enumerate() {
            f.write_str(if index == 0 && kind.is_empty() { "" } else { " | " })?;
            f.write_str(if index >= self.inner_from { "inner " } else { "" })?;
            write_spec(f, spec)?;
        }
        if let Some(tag) = self.tag {
            write!(f, " | tag {tag}")?;
        }
        f.write_str(if self.drop { " | drop" } else { "" })
    }
}

fn write_spec(f: &mut Formatter<'_>, spec: &Spec) -> fmt::Result {
    match spec {
        Spec::Ethernet { value: v, mask: m } => {
            f.write_str("eth")?;
            field(f, "dst", v.dst_mac, m.dst_mac, m.dst_mac.0 == [0; 6], m.dst_mac.0 == [0xff; 6])?;
            field(f, "src", v.src_mac, m.src_mac, m.src_mac.0 == [0; 6], m.src_mac.0 == [0xff; 6])?;
            hex(f, "type", v.ether_type, m.ether_type)?;
            hex(f, "vlan_tci", v.vlan_tag, m.vlan_tag)
        }
        Spec::Ipv4 { value: v, mask: m } => {
            f.write_str("ipv4")?;
            field(f, "src", v.src, m.src, m.src.is_unspecified(), m.src.is_broadcast())?;
            field(f, "dst", v.dst, m.dst, m.dst.is_unspecified(), m.dst.is_broadcast())?;
            byte(f, "proto", v.proto, m.proto)?;
            byte(f, "tos", v.tos, m.tos)?;
            byte(f, "ttl", v.ttl, m.ttl)?;
            field(f, "flags", v.flags, m.flags, m.flags == 0, m.flags == 7)
        }
        Spec::Ipv6 { value: v, mask: m } => {
            f.write_str("ipv6")?;
            field(f, "src", v.src, m.src, m.src.is_unspecified(), m.src.to_bits() == u128::MAX)?;
            field(f, "dst", v.dst, m.dst, m.dst.is_unspecified(), m.dst.to_bits() == u128::MAX)?;
            field(f, "label", v.flow_label, m.flow_label, m.flow_label == 0, m.flow_label == 0xf_ffff)?;
            byte(f, "next", v.next_hdr, m.next_hdr)?;
            byte(f, "class", v.traffic_class, m.traffic_class)?;
            byte(f, "hops", v.hop_limit, m.hop_limit)
        }
        Spec::Tcp { value: v, mask: m } => write_ports(f, "tcp", v, m),
        Spec::Udp { value: v, mask: m } => write_ports(f, "udp", v, m),
        Spec::Esp { value: v, mask: m } => {
            f.write_str("esp")?;
            word(f, "spi", v.spi, m.spi)?;
            word(f, "seq", v.seq, m.seq)
        }
        Spec::Vxlan { value: v, mask: m } => {
            f.write_str("vxlan")?;
            field(f, "vni", v.vni, m.vni, m.vni == 0, m.vni == 0xff_ffff)
        }
        Spec::Gre { value: v, mask: m } => {
            f.write_str("gre")?;
            hex(f, "flags", v.c_ks_res0_ver, m.c_ks_res0_ver)?;
            hex(f, "protocol", v.protocol, m.protocol)?;
            word(f, "key", v.key, m.key)
        }
        Spec::Mpls { value: v, mask: m } => {
            f.write_str("mpls")?;
            word(f, "entry", v.label, m.label)
        }
    }
}

fn word(f: &mut Formatter<'_>, name: &str, value: u32, mask: u32) -> fmt::Result {
    match mask {
        0 => Ok(()),
        u32::MAX => write!(f, " {name} {value:#010x}"),
        _ => write!(f, " {name} {value:#010x}/{mask:#010x}"),
    }
}

fn write_ports(
    f: &mut Formatter<'_>,
    name: &str,
    v: &program::PortMatch,
    m: &program::PortMatch,
) -> fmt::Result {
    f.write_str(name)?;
    port(f, "src_port", v.src_port, m.src_port)?;
    port(f, "dst_port", v.dst_port, m.dst_port)
}

fn port(f: &mut Formatter<'_>, name: &str, value: u16, mask: u16) -> fmt::Result {
    match mask {
        0 => Ok(()),
        u16::MAX => write!(f, " {name} {value}"),
        _ => write!(f, " {name} {value}/{mask:#06x}"),
    }
}

fn hex(f: &mut Formatter<'_>, name: &str, value: u16, mask: u16) -> fmt::Result {
    match mask {
        0 => Ok(()),
        u16::MAX => write!(f, " {name} {value:#06x}"),
        _ => write!(f, " {name} {value:#06x}/{mask:#06x}"),
    }
}

fn byte(f: &mut Formatter<'_>, name: &str, value: u8, mask: u8) -> fmt::Result {
    match mask {
        0 => Ok(()),
        u8::MAX => write!(f, " {name} {value}"),
        _ => write!(f, " {name} {value}/{mask:#04x}"),
    }
}

fn field<T: Display>(
    f: &mut Formatter<'_>,
    name: &str,
    value: T,
    mask: T,
    none: bool,
    all: bool,
) -> fmt::Result {
    if none {
        Ok(())
    } else if all {
        write!(f, " {name} {value}")
    } else {
        write!(f, " {name} {value}/{mask}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use program::{EthernetMatch, Ipv4Match, PortMatch};

    #[test]
    fn a_chain_reads_as_one_line() {
        let mut dst = Ipv4Match::ZERO;
        let mut dst_mask = Ipv4Match::ZERO;
        dst.dst = [192, 0, 2, 0].into();
        dst_mask.dst = [255, 255, 255, 0].into();
        let tci = |vlan_tag| EthernetMatch { vlan_tag, ..EthernetMatch::default() };
        let specs = [
            Spec::Ethernet { value: tci(5), mask: tci(0xfff) },
            Spec::Ipv4 { value: dst, mask: dst_mask },
            Spec::Udp {
                value: PortMatch { src_port: 0, dst_port: 53 },
                mask: PortMatch { src_port: 0, dst_port: u16::MAX },
            },
        ];
        let chain =
            SpecChain { kind: FlowKind::Normal, specs: &specs, inner_from: 3, tag: Some(7), drop: false };
        assert_eq!(
            chain.to_string(),
            "eth vlan_tci 0x0005/0x0fff | ipv4 dst 192.0.2.0/255.255.255.0 | udp dst_port 53 | tag 7"
        );
    }

    #[test]
    fn flags_are_numbered_as_verbs_does() {
        let mut mask = Ipv4Match::ZERO;
        mask.flags = 3;
        let spec = flow_spec(&Spec::Ipv4 { value: Ipv4Match { flags: 1, ..Ipv4Match::ZERO }, mask });
        let FlowSpec::Ipv4Ext { value, mask } = spec else { panic!("{spec:?}") };
        assert_eq!((value.flags, mask.flags), (4, 6));
    }

    #[test]
    fn ipv4_is_extended_only_where_it_must_be() {
        let mut mask = Ipv4Match::ZERO;
        mask.src = [255; 4].into();
        assert!(matches!(flow_spec(&Spec::Ipv4 { value: Ipv4Match::ZERO, mask }), FlowSpec::Ipv4 { .. }));
        mask.flags = 4;
        assert!(matches!(flow_spec(&Spec::Ipv4 { value: Ipv4Match::ZERO, mask }), FlowSpec::Ipv4Ext { .. }));
    }
}
