//! From the policy's specs to the verbs' specs, one to one, and to words for errors and plans.

use std::fmt::{self, Display, Formatter};

use policy::Spec;
use verbs::FlowSpec;

/// The verbs' spec for a policy's. IPv4 takes the plain spec unless a field needs the extended one,
/// because some devices have only the plain (facts, mlx4).
pub(crate) fn flow_spec(spec: &Spec) -> FlowSpec {
    match *spec {
        Spec::Ethernet { value, mask } => FlowSpec::Ethernet { value: ethernet(value), mask: ethernet(mask) },
        Spec::Ipv4 { value, mask } if (mask.proto | mask.tos | mask.ttl | mask.flags) == 0 => {
            let plain = |m: policy::Ipv4Match| verbs::Ipv4Match { src: m.src.into(), dst: m.dst.into() };
            FlowSpec::Ipv4 { value: plain(value), mask: plain(mask) }
        }
        Spec::Ipv4 { value, mask } => FlowSpec::Ipv4Ext { value: ipv4_ext(value), mask: ipv4_ext(mask) },
        Spec::Ipv6 { value, mask } => FlowSpec::Ipv6 { value: ipv6(value), mask: ipv6(mask) },
        Spec::Tcp { value, mask } => FlowSpec::Tcp { value: ports(value), mask: ports(mask) },
        Spec::Udp { value, mask } => FlowSpec::Udp { value: ports(value), mask: ports(mask) },
    }
}

fn ethernet(m: policy::EthernetMatch) -> verbs::EthernetMatch {
    verbs::EthernetMatch {
        dst_mac: m.dst_mac.0,
        src_mac: m.src_mac.0,
        ether_type: m.ether_type,
        vlan_tag: m.vlan_tag,
    }
}

fn ipv4_ext(m: policy::Ipv4Match) -> verbs::Ipv4ExtMatch {
    verbs::Ipv4ExtMatch {
        src: m.src.into(),
        dst: m.dst.into(),
        proto: m.proto,
        tos: m.tos,
        ttl: m.ttl,
        flags: m.flags,
    }
}

fn ipv6(m: policy::Ipv6Match) -> verbs::Ipv6Match {
    verbs::Ipv6Match {
        src: m.src.octets(),
        dst: m.dst.octets(),
        flow_label: m.flow_label,
        next_hdr: m.next_hdr,
        traffic_class: m.traffic_class,
        hop_limit: m.hop_limit,
    }
}

fn ports(m: policy::PortMatch) -> verbs::PortMatch {
    verbs::PortMatch { src_port: m.src_port, dst_port: m.dst_port }
}

/// A spec chain with its actions in one line: `ipv4 dst 192.0.2.0/255.255.255.0 | udp dst_port 53 | tag 7`.
#[derive(Clone, Copy, Debug)]
pub struct SpecChain<'s> {
    /// The matches.
    pub specs: &'s [Spec],
    /// The flow tag, if it sets one.
    pub tag: Option<u32>,
    /// Whether it drops.
    pub drop: bool,
}

impl Display for SpecChain<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (index, spec) in self.specs.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { " | " })?;
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
    }
}

fn write_ports(
    f: &mut Formatter<'_>,
    name: &str,
    v: &policy::PortMatch,
    m: &policy::PortMatch,
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
    use policy::{EthernetMatch, Ipv4Match, PortMatch};

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
        let chain = SpecChain { specs: &specs, tag: Some(7), drop: false };
        assert_eq!(
            chain.to_string(),
            "eth vlan_tci 0x0005/0x0fff | ipv4 dst 192.0.2.0/255.255.255.0 | udp dst_port 53 | tag 7"
        );
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
