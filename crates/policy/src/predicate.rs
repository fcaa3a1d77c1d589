//! A whole match as a software matcher: what workers run for classes that the device cannot decide, and
//! what explains such classes to people. Built once per rule by `compile`; matching never allocates.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use packet::{EtherType, FlowKey, IpProtocol, Layers, MacAddr};

use crate::policy::{Addresses, Family, Fragment, MaskedMac, Match, TcpFlags, VlanMatch};
use crate::ranges::RangeSet;

/// A conjunction of tests. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Predicate {
    tests: Arc<[Test]>,
}

/// One test; the cheap and telling ones come first.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    /// All of these layers.
    Has(Layers),
    /// At least one of these layers.
    HasAny(Layers),
    /// None of these layers.
    Lacks(Layers),
    TcpFlags(TcpFlags),
    Protocol(RangeSet<u8>),
    Tos(RangeSet<u8>),
    EtherType(RangeSet<u16>),
    VlanTpid(RangeSet<u16>),
    VlanId(RangeSet<u16>),
    VlanPriority(RangeSet<u8>),
    InnerVlanTpid(RangeSet<u16>),
    InnerVlanId(RangeSet<u16>),
    SrcPort(RangeSet<u16>),
    DstPort(RangeSet<u16>),
    SrcMac(Box<[MaskedMac]>),
    DstMac(Box<[MaskedMac]>),
    Src(Box<Addresses>),
    Dst(Box<Addresses>),
}

impl Predicate {
    /// The predicate of a match.
    #[must_use]
    pub fn of(matches: &Match) -> Self {
        let mut tests = Vec::new();
        ip_tests(matches, &mut tests);
        vlan_tests(matches, &mut tests);
        let mut push = |test: Option<Test>| tests.extend(test);
        push(matches.tcp_flags.map(Test::TcpFlags));
        push(matches.protocol.clone().map(Test::Protocol));
        push(matches.tos.clone().map(Test::Tos));
        push(matches.ethertype.clone().map(Test::EtherType));
        push(matches.src_port.clone().map(Test::SrcPort));
        push(matches.dst_port.clone().map(Test::DstPort));
        push(matches.src_mac.clone().map(|macs| Test::SrcMac(macs.into())));
        push(matches.dst_mac.clone().map(|macs| Test::DstMac(macs.into())));
        push(matches.src.clone().map(|addresses| Test::Src(Box::new(addresses))));
        push(matches.dst.clone().map(|addresses| Test::Dst(Box::new(addresses))));
        Self { tests: tests.into() }
    }

    /// Whether the packet meets every test.
    #[must_use]
    #[inline]
    pub fn matches(&self, key: &FlowKey) -> bool {
        self.tests.iter().all(|test| test.passes(key))
    }
}

/// The layers that an IP or transport match needs.
fn ip_tests(matches: &Match, tests: &mut Vec<Test>) {
    let mut has = Layers::empty();
    let mut lacks = Layers::empty();
    match matches.family {
        Some(Family::V4) => has |= Layers::IPV4,
        Some(Family::V6) => has |= Layers::IPV6,
        None => {}
    }
    match matches.ip_options {
        Some(true) => has |= Layers::IPV4 | Layers::IP_OPTIONS,
        Some(false) => {
            has |= Layers::IPV4;
            lacks |= Layers::IP_OPTIONS;
        }
        None => {}
    }
    match matches.fragment {
        Some(Fragment::Any) => has |= Layers::FRAGMENT,
        Some(Fragment::None) => lacks |= Layers::FRAGMENT,
        Some(Fragment::First) => {
            has |= Layers::FRAGMENT;
            lacks |= Layers::LATER_FRAGMENT;
        }
        Some(Fragment::Later) => has |= Layers::LATER_FRAGMENT,
        None => {}
    }
    if matches.tcp_flags.is_some() {
        has |= Layers::TCP;
    }
    if !has.is_empty() {
        tests.push(Test::Has(has));
    }
    if !lacks.is_empty() {
        tests.push(Test::Lacks(lacks));
    }
    if matches.needs_transport() && !has.contains(Layers::TCP) {
        tests.push(Test::HasAny(Layers::TCP | Layers::UDP));
    } else if matches.needs_ip() && !has.intersects(Layers::IPV4 | Layers::IPV6 | Layers::TCP) {
        tests.push(Test::HasAny(Layers::IPV4 | Layers::IPV6));
    }
}

fn vlan_tests(matches: &Match, tests: &mut Vec<Test>) {
    let outer_tpid = matches.outer_tpid();
    if matches.vlan == Some(VlanMatch::None) {
        tests.push(Test::Lacks(Layers::VLAN));
    } else if matches.vlan.is_some() || outer_tpid.is_some() {
        tests.push(Test::Has(Layers::VLAN));
    }
    tests.extend(outer_tpid.map(Test::VlanTpid));
    if let Some(VlanMatch::Ids(ids)) = &matches.vlan {
        tests.push(Test::VlanId(ids.clone()));
    }
    tests.extend(matches.vlan_priority.clone().map(Test::VlanPriority));

    let inner_tpid = matches.inner_tpid();
    if matches.inner_vlan == Some(VlanMatch::None) {
        tests.push(Test::Lacks(Layers::INNER_VLAN));
    } else if matches.inner_vlan.is_some() || inner_tpid.is_some() {
        tests.push(Test::Has(Layers::INNER_VLAN));
    }
    tests.extend(inner_tpid.map(Test::InnerVlanTpid));
    if let Some(VlanMatch::Ids(ids)) = &matches.inner_vlan {
        tests.push(Test::InnerVlanId(ids.clone()));
    }
}

impl Test {
    #[inline]
    fn passes(&self, key: &FlowKey) -> bool {
        match self {
            Self::Has(layers) => key.layers.contains(*layers),
            Self::HasAny(layers) => key.layers.intersects(*layers),
            Self::Lacks(layers) => !key.layers.intersects(*layers),
            Self::TcpFlags(flags) => key.tcp_flags & flags.mask == flags.value,
            Self::Protocol(protocols) => protocols.contains(key.protocol),
            Self::Tos(values) => values.contains(key.tos),
            Self::EtherType(types) => types.contains(key.ether_type),
            Self::VlanTpid(tpids) => tpids.contains(key.vlan_tpid),
            Self::VlanId(ids) => ids.contains(key.vlan_tci & 0x0fff),
            Self::VlanPriority(priorities) => priorities.contains((key.vlan_tci >> 13) as u8),
            Self::InnerVlanTpid(tpids) => tpids.contains(key.inner_vlan_tpid),
            Self::InnerVlanId(ids) => ids.contains(key.inner_vlan_tci & 0x0fff),
            Self::SrcPort(ports) => ports.contains(key.src_port),
            Self::DstPort(ports) => ports.contains(key.dst_port),
            Self::SrcMac(macs) => macs.iter().any(|mac| mac.matches(key.src_mac)),
            Self::DstMac(macs) => macs.iter().any(|mac| mac.matches(key.dst_mac)),
            Self::Src(addresses) => key.src_addr().is_some_and(|address| addresses.contains(address)),
            Self::Dst(addresses) => key.dst_addr().is_some_and(|address| addresses.contains(address)),
        }
    }
}

impl MaskedMac {
    /// Whether the address agrees with the value under the mask.
    #[must_use]
    #[inline]
    pub fn matches(&self, address: MacAddr) -> bool {
        (0..6).all(|i| (address.0[i] ^ self.value.0[i]) & self.mask.0[i] == 0)
    }
}

impl fmt::Display for Predicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tests.is_empty() {
            return f.write_str("any");
        }
        for (index, test) in self.tests.iter().enumerate() {
            if index > 0 {
                f.write_str(" and ")?;
            }
            write!(f, "{test}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Has(layers) => write!(f, "{}", layer_names(*layers, "+")),
            Self::HasAny(layers) => write!(f, "{}", layer_names(*layers, "|")),
            Self::Lacks(layers) => write!(f, "not {}", layer_names(*layers, "|")),
            Self::TcpFlags(flags) => write!(f, "tcp_flags & {:#04x} = {:#04x}", flags.mask, flags.value),
            Self::Protocol(protocols) => match protocols.only() {
                Some(protocol) => write!(f, "protocol {}", IpProtocol(protocol)),
                None => write!(f, "protocol {protocols}"),
            },
            Self::Tos(values) => write!(f, "tos {values}"),
            Self::EtherType(types) => write!(f, "ethertype {}", ether_types(types)),
            Self::VlanTpid(tpids) => write!(f, "vlan_tpid {}", ether_types(tpids)),
            Self::VlanId(ids) => write!(f, "vlan {ids}"),
            Self::VlanPriority(priorities) => write!(f, "vlan_priority {priorities}"),
            Self::InnerVlanTpid(tpids) => write!(f, "inner_vlan_tpid {}", ether_types(tpids)),
            Self::InnerVlanId(ids) => write!(f, "inner_vlan {ids}"),
            Self::SrcPort(ports) => write!(f, "src_port {ports}"),
            Self::DstPort(ports) => write!(f, "dst_port {ports}"),
            Self::SrcMac(macs) => write!(f, "src_mac {}", mac_list(macs)),
            Self::DstMac(macs) => write!(f, "dst_mac {}", mac_list(macs)),
            Self::Src(addresses) => write!(f, "src {addresses}"),
            Self::Dst(addresses) => write!(f, "dst {addresses}"),
        }
    }
}

fn layer_names(layers: Layers, joint: &str) -> String {
    let names: Vec<String> = layers.iter_names().map(|(name, _)| name.to_lowercase()).collect();
    names.join(joint)
}

fn ether_types(types: &RangeSet<u16>) -> String {
    let name = |(low, high): &(u16, u16)| match low == high {
        true => EtherType(*low).to_string(),
        false => format!("{low:#06x}-{high:#06x}"),
    };
    types.ranges().iter().map(name).collect::<Vec<_>>().join(",")
}

fn mac_list(macs: &[MaskedMac]) -> String {
    let name = |mac: &MaskedMac| match mac.mask == MacAddr::BROADCAST {
        true => mac.value.to_string(),
        false => format!("{}/{}", mac.value, mac.mask),
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
