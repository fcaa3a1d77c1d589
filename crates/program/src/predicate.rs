//! A whole match as a software matcher: what workers run for classes that the device cannot decide, and
//! what explains such classes to people. Built once per rule by `compiler`; matching never allocates.

use std::sync::Arc;

use packet::{DeepKey, FlowKey, IpProtocol, Layers, TunnelKey, TunnelLayers};

use crate::byte_set::ByteSet;
use crate::matching::{Addresses, Family, Fragments, Macs, Match, MplsEntry, VlanMatch};
use crate::ranges::RangeSet;

mod show;

/// A conjunction of tests. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Predicate {
    /// On the packet itself.
    outer: Arc<[Test]>,
    /// On its tunnel.
    tunnel: Arc<[TunnelTest]>,
    /// On the packet inside.
    inner: Arc<[Test]>,
}

/// One test of a packet's own headers; the cheap and telling ones come first.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    /// All of these layers.
    Has(Layers),
    /// At least one of these layers.
    HasAny(Layers),
    /// None of these layers.
    Lacks(Layers),
    Fragment(Fragments),
    TcpFlags(ByteSet),
    Protocol(RangeSet<u8>),
    Tos(ByteSet),
    Ttl(RangeSet<u8>),
    IpFlags(ByteSet),
    FlowLabel(RangeSet<u32>),
    EtherType(RangeSet<u16>),
    VlanTpid(RangeSet<u16>),
    VlanId(RangeSet<u16>),
    VlanPriority(RangeSet<u8>),
    InnerVlanTpid(RangeSet<u16>),
    InnerVlanId(RangeSet<u16>),
    SrcPort(RangeSet<u16>),
    DstPort(RangeSet<u16>),
    /// These ports, or a TCP or UDP packet without a readable header.
    PortsIfAny(Box<[Option<RangeSet<u16>>; 2]>),
    SrcMac(Box<Macs>),
    DstMac(Box<Macs>),
    Src(Box<Addresses>),
    Dst(Box<Addresses>),
}

/// One test of a tunnel's headers.
#[derive(Clone, Debug, PartialEq, Eq)]
enum TunnelTest {
    /// All of these layers.
    Has(TunnelLayers),
    EspSpi(RangeSet<u32>),
    EspSeq(RangeSet<u32>),
    VxlanVni(RangeSet<u32>),
    GreProtocol(RangeSet<u16>),
    GreKey(RangeSet<u32>),
    /// Of the upper byte of the first word.
    GreFlags(ByteSet),
    /// From the top.
    Mpls(Box<[MplsEntry]>),
    /// Behind the inner Ethernet header; `None`: any label.
    InnerMpls(Box<Option<MplsEntry>>),
}

impl Predicate {
    /// The predicate of a match.
    #[must_use]
    pub fn of(matches: &Match) -> Self {
        let mut inner = Vec::new();
        let mut tunnel = Vec::new();
        tunnel_tests(matches, &mut tunnel);
        if let Some(matches) = &matches.inner {
            inner = tests(matches);
            tunnel.extend(matches.mpls.as_ref().map(|stack| {
                // The parser of the language allows one entry here: no more is read.
                TunnelTest::InnerMpls(Box::new(stack.first().cloned()))
            }));
        }
        Self { outer: tests(matches).into(), tunnel: tunnel.into(), inner: inner.into() }
    }

    /// Whether the packet meets every test; one that needs the tunnel is not met.
    #[must_use]
    #[inline]
    pub fn matches(&self, key: &FlowKey) -> bool {
        !self.needs_tunnel() && self.outer.iter().all(|test| test.passes(key))
    }

    /// Whether the packet and its tunnel meet every test.
    #[must_use]
    #[inline]
    pub fn matches_deep(&self, key: &DeepKey) -> bool {
        self.outer.iter().all(|test| test.passes(&key.outer))
            && self.tunnel.iter().all(|test| test.passes(&key.tunnel))
            && self.inner.iter().all(|test| test.passes(&key.tunnel.inner))
    }

    /// Whether something behind the outer packet is asked for, so that only `matches_deep` can tell.
    #[must_use]
    #[inline]
    pub fn needs_tunnel(&self) -> bool {
        !self.tunnel.is_empty()
    }
}

/// The tests of one packet's own headers.
fn tests(matches: &Match) -> Vec<Test> {
    let mut tests = Vec::new();
    ip_tests(matches, &mut tests);
    vlan_tests(matches, &mut tests);
    let mut push = |test: Option<Test>| tests.extend(test);
    push(matches.tcp_flags.map(Test::TcpFlags));
    push(matches.protocol.clone().map(Test::Protocol));
    push(matches.tos.map(Test::Tos));
    push(matches.ttl.clone().map(Test::Ttl));
    push(matches.ip_flags.map(Test::IpFlags));
    push(matches.flow_label.clone().map(Test::FlowLabel));
    push(matches.ethertype.clone().map(Test::EtherType));
    if matches.or_no_ports {
        push(Some(Test::PortsIfAny(Box::new([matches.src_port.clone(), matches.dst_port.clone()]))));
    } else {
        push(matches.src_port.clone().map(Test::SrcPort));
        push(matches.dst_port.clone().map(Test::DstPort));
    }
    push(matches.src_mac.clone().map(|macs| Test::SrcMac(Box::new(macs))));
    push(matches.dst_mac.clone().map(|macs| Test::DstMac(Box::new(macs))));
    push(matches.src.clone().map(|addresses| Test::Src(Box::new(addresses))));
    push(matches.dst.clone().map(|addresses| Test::Dst(Box::new(addresses))));
    tests
}

/// The layers that an IP or transport match needs.
fn ip_tests(matches: &Match, tests: &mut Vec<Test>) {
    let mut has = Layers::empty();
    let mut lacks = Layers::empty();
    let mut either = None;
    if matches.family.is_some() {
        has |= family_layer(matches.family);
    }
    has |= family_layer(matches.implied_family());
    match matches.ip_options {
        // Whatever `family` says, only IPv4 has options.
        Some(true) => has |= Layers::IPV4 | Layers::IP_OPTIONS,
        Some(false) => {
            has |= Layers::IPV4;
            lacks |= Layers::IP_OPTIONS;
        }
        None => {}
    }
    if matches.ip_flags.is_some() {
        has |= Layers::IPV4;
    }
    if matches.flow_label.is_some() {
        has |= Layers::IPV6;
    }
    match matches.fragment {
        Some(Fragments::PIECES) => has |= Layers::FRAGMENT,
        Some(Fragments::WHOLE) => lacks |= Layers::FRAGMENT,
        Some(Fragments::FIRST) => {
            has |= Layers::FRAGMENT;
            lacks |= Layers::LATER_FRAGMENT;
        }
        Some(Fragments::LATER) => has |= Layers::LATER_FRAGMENT,
        other => either = other.filter(|set| !set.is_all()),
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
    if matches.needs_transport() && !matches.or_no_ports && !has.contains(Layers::TCP) {
        tests.push(Test::HasAny(Layers::TCP | Layers::UDP));
    } else if matches.needs_ip() && !has.intersects(Layers::IPV4 | Layers::IPV6 | Layers::TCP) {
        tests.push(Test::HasAny(Layers::IPV4 | Layers::IPV6));
    }
    tests.extend(either.map(Test::Fragment));
}

fn family_layer(family: Option<Family>) -> Layers {
    match family {
        Some(Family::V4) => Layers::IPV4,
        Some(Family::V6) => Layers::IPV6,
        None => Layers::empty(),
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

/// The tests of a tunnel's headers; those of the packet inside are not among them.
fn tunnel_tests(matches: &Match, tests: &mut Vec<TunnelTest>) {
    let mut has = TunnelLayers::empty();
    let needed = [
        (TunnelLayers::ESP, matches.esp_spi.is_some() || matches.esp_seq.is_some()),
        (TunnelLayers::VXLAN, matches.vxlan_vni.is_some()),
        (TunnelLayers::GRE, matches.gre_protocol.is_some() || matches.gre_flags.is_some()),
        (TunnelLayers::GRE | TunnelLayers::GRE_KEY, matches.gre_key.is_some()),
        (TunnelLayers::MPLS, matches.mpls.is_some()),
        (TunnelLayers::INNER, matches.inner.is_some()),
        (
            TunnelLayers::INNER_ETHERNET,
            matches.inner.as_ref().is_some_and(|inner| inner.needs_ethernet() || inner.mpls.is_some()),
        ),
    ];
    for (layers, _) in needed.into_iter().filter(|(_, is_needed)| *is_needed) {
        has |= layers;
    }
    if !has.is_empty() {
        tests.push(TunnelTest::Has(has));
    }
    tests.extend(matches.esp_spi.clone().map(TunnelTest::EspSpi));
    tests.extend(matches.esp_seq.clone().map(TunnelTest::EspSeq));
    tests.extend(matches.vxlan_vni.clone().map(TunnelTest::VxlanVni));
    tests.extend(matches.gre_protocol.clone().map(TunnelTest::GreProtocol));
    tests.extend(matches.gre_key.clone().map(TunnelTest::GreKey));
    tests.extend(matches.gre_flags.map(TunnelTest::GreFlags));
    let stack = matches.mpls.as_ref().filter(|stack| !stack.is_empty());
    tests.extend(stack.map(|stack| TunnelTest::Mpls(stack.as_slice().into())));
}

impl Test {
    #[inline]
    fn passes(&self, key: &FlowKey) -> bool {
        match self {
            Self::Has(layers) => key.layers.contains(*layers),
            Self::HasAny(layers) => key.layers.intersects(*layers),
            Self::Lacks(layers) => !key.layers.intersects(*layers),
            Self::Fragment(set) => set.contains(fragment_of(key.layers)),
            Self::TcpFlags(flags) => flags.contains(key.tcp_flags),
            Self::Protocol(protocols) => protocols.contains(key.protocol),
            Self::Tos(values) => values.contains(key.tos),
            Self::Ttl(values) => values.contains(key.ttl),
            Self::IpFlags(values) => values.contains(key.ip_flags),
            Self::FlowLabel(labels) => labels.contains(key.flow_label),
            Self::EtherType(types) => types.contains(key.ether_type),
            Self::VlanTpid(tpids) => tpids.contains(key.vlan_tpid),
            Self::VlanId(ids) => ids.contains(key.vlan_tci & 0x0fff),
            Self::VlanPriority(priorities) => priorities.contains((key.vlan_tci >> 13) as u8),
            Self::InnerVlanTpid(tpids) => tpids.contains(key.inner_vlan_tpid),
            Self::InnerVlanId(ids) => ids.contains(key.inner_vlan_tci & 0x0fff),
            Self::SrcPort(ports) => ports.contains(key.src_port),
            Self::DstPort(ports) => ports.contains(key.dst_port),
            Self::PortsIfAny(ports) => ports_if_any(ports, key),
            Self::SrcMac(macs) => macs.contains(key.src_mac),
            Self::DstMac(macs) => macs.contains(key.dst_mac),
            Self::Src(addresses) => key.src_addr().is_some_and(|address| addresses.contains(address)),
            Self::Dst(addresses) => key.dst_addr().is_some_and(|address| addresses.contains(address)),
        }
    }
}

/// Whether the ports are these, or there should be ports and none can be read.
fn ports_if_any([src, dst]: &[Option<RangeSet<u16>>; 2], key: &FlowKey) -> bool {
    if !key.layers.intersects(Layers::TCP | Layers::UDP) {
        return matches!(IpProtocol(key.protocol), IpProtocol::TCP | IpProtocol::UDP);
    }
    let holds = |ports: &Option<RangeSet<u16>>, port| ports.as_ref().is_none_or(|ports| ports.contains(port));
    holds(src, key.src_port) && holds(dst, key.dst_port)
}

/// Which of the three a packet is.
fn fragment_of(layers: Layers) -> Fragments {
    match layers {
        _ if layers.contains(Layers::LATER_FRAGMENT) => Fragments::LATER,
        _ if layers.contains(Layers::FRAGMENT) => Fragments::FIRST,
        _ => Fragments::WHOLE,
    }
}

impl TunnelTest {
    #[inline]
    fn passes(&self, key: &TunnelKey) -> bool {
        match self {
            Self::Has(layers) => key.layers.contains(*layers),
            Self::EspSpi(values) => values.contains(key.esp_spi),
            Self::EspSeq(values) => values.contains(key.esp_seq),
            Self::VxlanVni(values) => values.contains(key.vxlan_vni),
            Self::GreProtocol(types) => types.contains(key.gre_protocol),
            Self::GreKey(keys) => keys.contains(key.gre_key),
            Self::GreFlags(flags) => flags.contains((key.gre_flags >> 8) as u8),
            Self::Mpls(stack) => {
                let depth = usize::from(key.mpls_depth).min(key.mpls.len());
                stack.len() <= depth
                    && stack.iter().zip(&key.mpls).all(|(wanted, entry)| wanted.matches(*entry))
            }
            Self::InnerMpls(wanted) => {
                key.inner_mpls != 0
                    && wanted.as_ref().as_ref().is_none_or(|entry| entry.matches(key.inner_mpls))
            }
        }
    }
}

impl MplsEntry {
    /// Whether a whole stack entry (label 20 bits, traffic class 3, bottom 1, TTL 8) is meant.
    #[must_use]
    #[inline]
    pub fn matches(&self, entry: u32) -> bool {
        self.label.as_ref().is_none_or(|labels| labels.contains(entry >> 12))
            && self.tc.as_ref().is_none_or(|classes| classes.contains((entry >> 9 & 7) as u8))
            && self.bottom.is_none_or(|bottom| bottom == (entry >> 8 & 1 == 1))
            && self.ttl.as_ref().is_none_or(|values| values.contains(entry as u8))
    }
}
