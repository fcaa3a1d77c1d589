//! A predicate in words, as printed programs and `explain` show it. Nothing reads this back.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use packet::{EtherType, IpProtocol, Layers, MacAddr, TunnelLayers};

use crate::byte_set::ByteSet;
use crate::matching::{Addresses, Fragments, Macs, MaskedMac, MplsEntry};
use crate::ranges::RangeSet;

use super::{Predicate, Test, TunnelTest};

impl fmt::Display for Predicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outer = self.outer.iter().map(ToString::to_string);
        let tunnel = self.tunnel.iter().map(ToString::to_string);
        let inner = self.inner.iter().map(|test| format!("inner {test}"));
        let tests: Vec<String> = outer.chain(tunnel).chain(inner).collect();
        if tests.is_empty() {
            return f.write_str("any");
        }
        f.write_str(&tests.join(" and "))
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Has(layers) => write!(f, "{}", layer_names(*layers, "+")),
            Self::HasAny(layers) => write!(f, "{}", layer_names(*layers, "|")),
            Self::Lacks(layers) => write!(f, "not {}", layer_names(*layers, "|")),
            Self::Fragment(set) => write!(f, "fragment {set}"),
            Self::TcpFlags(flags) => write!(f, "tcp_flags {}", flag_patterns(flags)),
            Self::Protocol(protocols) => match protocols.only() {
                Some(protocol) => write!(f, "protocol {}", IpProtocol(protocol)),
                None => write!(f, "protocol {protocols}"),
            },
            Self::Tos(values) => write!(f, "tos {values}"),
            Self::Ttl(values) => write!(f, "ttl {values}"),
            Self::IpFlags(flags) => write!(f, "ip_flags {}", flags.ranges()),
            Self::FlowLabel(labels) => write!(f, "flow_label {labels}"),
            Self::EtherType(types) => write!(f, "ethertype {}", ether_types(types)),
            Self::VlanTpid(tpids) => write!(f, "vlan_tpid {}", ether_types(tpids)),
            Self::VlanId(ids) => write!(f, "vlan {ids}"),
            Self::VlanPriority(priorities) => write!(f, "vlan_priority {priorities}"),
            Self::InnerVlanTpid(tpids) => write!(f, "inner_vlan_tpid {}", ether_types(tpids)),
            Self::InnerVlanId(ids) => write!(f, "inner_vlan {ids}"),
            Self::SrcPort(ports) => write!(f, "src_port {ports}"),
            Self::DstPort(ports) => write!(f, "dst_port {ports}"),
            Self::PortsIfAny(ports) => {
                let [src, dst] = &**ports;
                for (name, ports) in [("src_port", src), ("dst_port", dst)] {
                    if let Some(ports) = ports {
                        write!(f, "{name} {ports} ")?;
                    }
                }
                f.write_str("or no ports")
            }
            Self::SrcMac(macs) => write!(f, "src_mac {macs}"),
            Self::DstMac(macs) => write!(f, "dst_mac {macs}"),
            Self::Src(addresses) => write!(f, "src {addresses}"),
            Self::Dst(addresses) => write!(f, "dst {addresses}"),
        }
    }
}

impl fmt::Display for TunnelTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Has(layers) => write!(f, "{}", tunnel_names(*layers)),
            Self::EspSpi(values) => write!(f, "esp_spi {values}"),
            Self::EspSeq(values) => write!(f, "esp_seq {values}"),
            Self::VxlanVni(values) => write!(f, "vxlan_vni {values}"),
            Self::GreProtocol(types) => write!(f, "gre_protocol {}", ether_types(types)),
            Self::GreKey(keys) => write!(f, "gre_key {keys}"),
            Self::GreFlags(flags) => write!(f, "gre_flags {flags}"),
            Self::Mpls(stack) => {
                let entries: Vec<String> = stack.iter().map(ToString::to_string).collect();
                write!(f, "mpls [{}]", entries.join(", "))
            }
            Self::InnerMpls(entry) => match &**entry {
                Some(entry) => write!(f, "inner mpls [{entry}]"),
                None => f.write_str("inner mpls"),
            },
        }
    }
}

/// `tcp_flags & 0x12 = 0x02` was the usual way to show one pattern, and stays it.
fn flag_patterns(flags: &ByteSet) -> String {
    match &*flags.patterns(u8::BITS) {
        [(value, mask)] => format!("& {mask:#04x} = {value:#04x}"),
        _ => flags.to_string(),
    }
}

/// `100`, or `{label 100, tc 3}`; an entry that may be anything is `any`.
impl fmt::Display for MplsEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        parts.extend(self.label.as_ref().map(|set| format!("label {set}")));
        parts.extend(self.tc.as_ref().map(|set| format!("tc {set}")));
        parts.extend(self.bottom.map(|bottom| format!("bottom {bottom}")));
        parts.extend(self.ttl.as_ref().map(|set| format!("ttl {set}")));
        match (&*parts, &self.label) {
            ([], _) => f.write_str("any"),
            ([_], Some(label)) => write!(f, "{label}"),
            _ => write!(f, "{{{}}}", parts.join(", ")),
        }
    }
}

impl fmt::Display for Fragments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [(Self::WHOLE, "none"), (Self::FIRST, "first"), (Self::LATER, "later")];
        let names: Vec<&str> =
            names.iter().filter(|(one, _)| self.contains(*one)).map(|(_, name)| *name).collect();
        f.write_str(&names.join("|"))
    }
}

fn layer_names(layers: Layers, joint: &str) -> String {
    let names: Vec<String> = layers.iter_names().map(|(name, _)| name.to_lowercase()).collect();
    names.join(joint)
}

fn tunnel_names(layers: TunnelLayers) -> String {
    let names: Vec<String> = layers.iter_names().map(|(name, _)| name.to_lowercase()).collect();
    names.join("+")
}

fn ether_types(types: &RangeSet<u16>) -> String {
    let name = |(low, high): &(u16, u16)| match low == high {
        true => EtherType(*low).to_string(),
        false => format!("{low:#06x}-{high:#06x}"),
    };
    types.ranges().iter().map(name).collect::<Vec<_>>().join(",")
}

impl fmt::Display for Macs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&mac_list(&self.any_of))?;
        match &*self.none_of {
            [] => Ok(()),
            excluded => write!(f, " but not {}", mac_list(excluded)),
        }
    }
}

fn mac_list(macs: &[MaskedMac]) -> String {
    let name = |mac: &MaskedMac| match mac.mask {
        MacAddr::BROADCAST => mac.value.to_string(),
        _ if *mac == MaskedMac::ANY => "any".to_owned(),
        mask => format!("{}/{mask}", mac.value),
    };
    macs.iter().map(name).collect::<Vec<_>>().join(",")
}

/// Prefixes; long lists are cut short with their number.
impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        let v4 = self.v4.prefixes(32);
        let v6 = self.v6.prefixes(128);
        let v4_names = v4.iter().map(|(net, mask)| format!("{}/{}", Ipv4Addr::from(*net), mask.count_ones()));
        let v6_names = v6.iter().map(|(net, mask)| format!("{}/{}", Ipv6Addr::from(*net), mask.count_ones()));
        let shown: Vec<String> = v4_names.chain(v6_names).take(SHOWN).collect();
        f.write_str(&shown.join(","))?;
        match v4.len() + v6.len() {
            total if total > SHOWN => write!(f, ",... {total} prefixes"),
            _ => Ok(()),
        }
    }
}
