//! Clauses of random matches, each with its text and its meaning. Values come from small pools that the
//! packets share, so that rules overlap and packets fall on their boundaries.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use packet::{DeepKey, FlowKey, Layers, TunnelKey};
use proptest::prelude::*;

use super::tunnels;

/// One key of a match.
#[derive(Clone)]
pub(crate) struct Clause {
    pub(crate) text: String,
    pub(crate) meaning: Meaning,
    /// Whether it asks for an Ethernet header, which a packet inside a tunnel may lack.
    pub(crate) is_link: bool,
}

/// The subject of a clause: a packet's own headers, or its tunnel.
#[derive(Clone)]
pub(crate) enum Meaning {
    Packet(Arc<dyn Fn(&FlowKey) -> bool + Send + Sync>),
    Tunnel(Arc<dyn Fn(&TunnelKey) -> bool + Send + Sync>),
}

impl Clause {
    pub(crate) fn is_about_ports(&self) -> bool {
        self.text.starts_with("dst_port") || self.text.starts_with("src_port")
    }

    pub(crate) fn holds(&self, key: &DeepKey) -> bool {
        match &self.meaning {
            Meaning::Packet(holds) => holds(&key.outer),
            Meaning::Tunnel(holds) => holds(&key.tunnel),
        }
    }
}

impl fmt::Debug for Clause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn clause(text: impl Into<String>, holds: impl Fn(&FlowKey) -> bool + Send + Sync + 'static) -> Clause {
    Clause { text: text.into(), meaning: Meaning::Packet(Arc::new(holds)), is_link: false }
}

fn has(key: &FlowKey, layers: Layers) -> bool {
    key.layers.contains(layers)
}

fn ip(key: &FlowKey) -> bool {
    has(key, Layers::IPV4) || has(key, Layers::IPV6)
}

fn transport(key: &FlowKey) -> bool {
    has(key, Layers::TCP) || has(key, Layers::UDP)
}

/// A random match: at most one clause per key.
pub(crate) fn clauses() -> impl Strategy<Value = Vec<Clause>> {
    let tunnel = prop::option::weighted(0.2, tunnels::clause());
    (packet_clauses(), tunnel).prop_map(|(packet, tunnel)| packet.into_iter().chain(tunnel).collect())
}

/// Clauses on a packet's own headers.
pub(crate) fn packet_clauses() -> impl Strategy<Value = Vec<Clause>> {
    let link = (maybe(mac()), maybe(ether_type()), maybe(tag()), maybe(inner_tag()));
    let network = (maybe(family()), often(address()), often(protocol()), maybe(service()), maybe(fragment()));
    let transport = (often(ports()), maybe(flags()), maybe(options()));
    (link, network, transport).prop_map(
        |((mac, ty, tag, inner), (family, address, protocol, tos, fragment), rest)| {
            let (ports, flags, options) = rest;
            let mut link = [mac, ty, tag, inner];
            link.iter_mut().flatten().flatten().for_each(|clause| clause.is_link = true);
            let others = [family, address, protocol, tos, fragment, ports, flags, options];
            link.into_iter().chain(others).flatten().flatten().collect()
        },
    )
}

/// Few values that every device knows: for rules whose packets no worker sees, or for each of whose masks a
/// device has little room.
pub(crate) fn plain_clauses() -> impl Strategy<Value = Vec<Clause>> {
    let port = (50u16..60).prop_map(|port| {
        vec![clause(format!("dst_port = {port}"), move |key| transport(key) && key.dst_port == port)]
    });
    let link = one_of(vec![
        clause("src_mac = \"02:00:00:00:00:00/ff:ff:ff:ff:ff:fc\"", |key| {
            matches!(key.src_mac.0, [2, 0, 0, 0, 0, 0..=3])
        }),
        clause("dst_mac = \"multicast\"", |key| key.dst_mac.0[0] & 1 == 1),
        clause("vlan = 5", |key| {
            has(key, Layers::VLAN) && key.vlan_tpid == 0x8100 && key.vlan_tci & 0x0fff == 5
        }),
    ]);
    let network = one_of(vec![
        clause("dst = [\"10.0.0.4\", \"2001:db8::/32\"]", |key| match key.dst_addr() {
            Some(IpAddr::V4(v4)) => v4.octets() == [10, 0, 0, 4],
            Some(IpAddr::V6(v6)) => v6.segments()[..2] == [0x2001, 0xdb8],
            None => false,
        }),
        clause(
            "src = \"10.0.0.0/29\"",
            |key| matches!(key.src_addr(), Some(IpAddr::V4(v4)) if matches!(v4.octets(), [10, 0, 0, 0..=7])),
        ),
        clause("family = \"ipv6\"", |key| has(key, Layers::IPV6)),
        clause("dscp = \"ef\"", |key| ip(key) && key.tos >> 2 == 46),
    ]);
    let transport = one_of(vec![
        clause("protocol = \"udp\"", |key| ip(key) && key.protocol == 17),
        clause("protocol = \"tcp\"", |key| ip(key) && key.protocol == 6),
    ]);
    (often(link), often(network), often(transport), often(port)).prop_map(
        |(link, network, transport, port)| {
            [link, network, transport, port].into_iter().flatten().flatten().collect()
        },
    )
}

fn maybe(clauses: impl Strategy<Value = Vec<Clause>>) -> impl Strategy<Value = Option<Vec<Clause>>> {
    prop::option::weighted(0.12, clauses)
}

fn often(clauses: impl Strategy<Value = Vec<Clause>>) -> impl Strategy<Value = Option<Vec<Clause>>> {
    prop::option::weighted(0.45, clauses)
}

fn one_of(clauses: Vec<Clause>) -> impl Strategy<Value = Vec<Clause>> {
    prop::sample::select(clauses).prop_map(|clause| vec![clause])
}

fn mac() -> impl Strategy<Value = Vec<Clause>> {
    one_of(vec![
        clause("dst_mac = \"multicast\"", |key| key.dst_mac.0[0] & 1 == 1),
        clause("dst_mac = { not = \"multicast\" }", |key| key.dst_mac.0[0] & 1 == 0),
        clause(
            "src_mac = [\"02:00:00:00:00:00/ff:ff:ff:ff:ff:fc\", { not = \"02:00:00:00:00:02\" }]",
            |key| matches!(key.src_mac.0, [2, 0, 0, 0, 0, 0 | 1 | 3]),
        ),
        clause("dst_mac = \"broadcast\"", |key| key.dst_mac.0 == [0xff; 6]),
        clause("src_mac = [\"02:00:00:00:00:01\", \"02:00:00:00:00:02\"]", |key| {
            matches!(key.src_mac.0, [2, 0, 0, 0, 0, 1 | 2])
        }),
        clause("src_mac = \"02:00:00:00:00:00/ff:ff:ff:ff:ff:fc\"", |key| {
            matches!(key.src_mac.0, [2, 0, 0, 0, 0, 0..=3])
        }),
    ])
}

fn ether_type() -> impl Strategy<Value = Vec<Clause>> {
    one_of(vec![
        clause("ethertype = \"arp\"", |key| key.ether_type == 0x0806),
        clause("ethertype = { not = [\"arp\", \"0x0800-0x08ff\"] }", |key| {
            !(0x0800..=0x08ff).contains(&key.ether_type)
        }),
        clause("ethertype = \"ipv4\"", |key| key.ether_type == 0x0800),
        clause("ethertype = [\"ipv6\", 0x0806]", |key| matches!(key.ether_type, 0x86dd | 0x0806)),
        clause("ethertype = \"0-1500\"", |key| key.ether_type <= 1500),
        clause("ethertype = \"0x0600-0x07ff\"", |key| (0x0600..=0x07ff).contains(&key.ether_type)),
        clause("ethertype = \"0x0700-0x08ff\"", |key| (0x0700..=0x08ff).contains(&key.ether_type)),
    ])
}

fn tag() -> impl Strategy<Value = Vec<Clause>> {
    let outer = |key: &FlowKey, tpid: u16| has(key, Layers::VLAN) && key.vlan_tpid == tpid;
    let id = |key: &FlowKey| key.vlan_tci & 0x0fff;
    let priority = |key: &FlowKey| key.vlan_tci >> 13;
    one_of(vec![
        clause("vlan = \"none\"", |key| !has(key, Layers::VLAN)),
        clause("vlan = \"any\"", |key| has(key, Layers::VLAN)),
        clause("vlan = 5", move |key| outer(key, 0x8100) && id(key) == 5),
        clause("vlan = [0, \"5-7\"]", move |key| outer(key, 0x8100) && matches!(id(key), 0 | 5..=7)),
        clause("vlan = { not = \"5-6\" }", move |key| outer(key, 0x8100) && !matches!(id(key), 5 | 6)),
        clause("vlan = \"0-4095\"", move |key| outer(key, 0x8100)),
        clause("vlan_tpid = 0x8100", move |key| outer(key, 0x8100)),
        clause("vlan_tpid = \"svlan\"", move |key| outer(key, 0x88a8)),
        clause("vlan = \"5-6\", vlan_tpid = [0x8100, 0x88a8]", move |key| {
            (outer(key, 0x8100) || outer(key, 0x88a8)) && matches!(id(key), 5 | 6)
        }),
        clause("vlan_priority = \"3-6\"", move |key| outer(key, 0x8100) && (3..=6).contains(&priority(key))),
        clause("vlan = 5, vlan_priority = [0, 7]", move |key| {
            outer(key, 0x8100) && id(key) == 5 && matches!(priority(key), 0 | 7)
        }),
        clause("vlan = \"any\", vlan_tpid = 0x88a8, vlan_priority = 0", move |key| {
            outer(key, 0x88a8) && priority(key) == 0
        }),
    ])
}

fn inner_tag() -> impl Strategy<Value = Vec<Clause>> {
    let inner = |key: &FlowKey, tpid: u16| has(key, Layers::INNER_VLAN) && key.inner_vlan_tpid == tpid;
    one_of(vec![
        clause("inner_vlan = \"none\"", |key| !has(key, Layers::INNER_VLAN)),
        clause("inner_vlan = \"any\"", |key| has(key, Layers::INNER_VLAN)),
        clause("inner_vlan = \"5-6\"", move |key| {
            inner(key, 0x8100) && matches!(key.inner_vlan_tci & 0x0fff, 5 | 6)
        }),
        clause("inner_vlan_tpid = 0x88a8", move |key| inner(key, 0x88a8)),
    ])
}

fn family() -> impl Strategy<Value = Vec<Clause>> {
    one_of(vec![
        clause("family = \"ipv4\"", |key| has(key, Layers::IPV4)),
        clause("family = \"ipv6\"", |key| has(key, Layers::IPV6)),
    ])
}

fn address() -> impl Strategy<Value = Vec<Clause>> {
    let range = |lists: bool, key: &FlowKey, source: bool| {
        let address = if source { key.src_addr() } else { key.dst_addr() };
        match address {
            Some(IpAddr::V4(v4)) => (Ipv4Addr::new(10, 0, 0, 3)..=Ipv4Addr::new(10, 0, 0, 6)).contains(&v4),
            Some(IpAddr::V6(v6)) => lists && v6.segments()[..2] == [0x2001, 0xdb8],
            None => false,
        }
    };
    let in_ten = |address: Option<IpAddr>| matches!(address, Some(IpAddr::V4(v4)) if v4.octets()[0] == 10);
    one_of(vec![
        clause("src = \"10.0.0.3-10.0.0.6\"", move |key| range(false, key, true)),
        clause("dst = [\"10.0.0.3-10.0.0.6\", \"2001:db8::/32\"]", move |key| range(true, key, false)),
        clause("src = { not = \"10.0.0.0/8\" }", move |key| ip(key) && !in_ten(key.src_addr())),
        clause("dst = [\"10.0.0.0/8\", { not = \"10.0.0.3-10.0.0.6\" }]", move |key| {
            in_ten(key.dst_addr()) && !range(false, key, false)
        }),
        clause("src = \"10.0.0.0/8\"", move |key| in_ten(key.src_addr())),
        clause("src = \"10.0.0.0/8\", dst = \"10.0.0.3-10.0.0.6\"", move |key| {
            in_ten(key.src_addr()) && range(false, key, false)
        }),
        clause("dst = \"0.0.0.0/0\"", |key| has(key, Layers::IPV4)),
        clause("dst = \"::/0\"", |key| has(key, Layers::IPV6)),
        clause("src = [\"2001:db8::1-2001:db8::3\"]", |key| match key.src_addr() {
            Some(IpAddr::V6(v6)) => matches!(v6.segments(), [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1..=3]),
            _ => false,
        }),
        clause(
            "dst = [\"10.0.0.4\", \"10.0.0.5\", \"10.0.0.5/32\"]",
            |key| matches!(key.dst_addr(), Some(IpAddr::V4(v4)) if matches!(v4.octets(), [10, 0, 0, 4 | 5])),
        ),
    ])
}

fn protocol() -> impl Strategy<Value = Vec<Clause>> {
    one_of(vec![
        clause("protocol = \"tcp\"", |key| ip(key) && key.protocol == 6),
        clause("protocol = \"udp\"", |key| ip(key) && key.protocol == 17),
        clause("protocol = [\"udp\", \"tcp\"]", |key| ip(key) && matches!(key.protocol, 6 | 17)),
        clause("protocol = { not = \"tcp\" }", |key| ip(key) && key.protocol != 6),
        clause("protocol = [\"0-17\", { not = [\"tcp\", 1] }]", |key| {
            ip(key) && key.protocol <= 17 && !matches!(key.protocol, 6 | 1)
        }),
        clause("protocol = \"icmp\"", |key| ip(key) && key.protocol == 1),
        clause("protocol = \"0-16\"", |key| ip(key) && key.protocol <= 16),
        clause("protocol = [\"fragment\", 6]", |key| ip(key) && matches!(key.protocol, 44 | 6)),
    ])
}

fn service() -> impl Strategy<Value = Vec<Clause>> {
    one_of(vec![
        clause("tos = 0", |key| ip(key) && key.tos == 0),
        clause("tos = \"1-0xb8\"", |key| ip(key) && (1..=0xb8).contains(&key.tos)),
        clause("dscp = \"ef\"", |key| ip(key) && key.tos >> 2 == 46),
        clause("dscp = [\"cs0\", \"af11-ef\"]", |key| ip(key) && matches!(key.tos >> 2, 0 | 10..=46)),
        clause("tos = { not = [0, \"0xb8-0xbb\"] }", |key| ip(key) && !matches!(key.tos, 0 | 0xb8..=0xbb)),
        clause("ecn = \"ce\"", |key| ip(key) && key.tos & 3 == 3),
        clause("dscp = \"ef\", ecn = { not = \"not_ect\" }", |key| {
            ip(key) && key.tos >> 2 == 46 && key.tos & 3 != 0
        }),
        clause("traffic_class = \"0-0xbb\"", |key| has(key, Layers::IPV6) && key.tos <= 0xbb),
        clause("ttl = \"1-64\"", |key| ip(key) && (1..=64).contains(&key.ttl)),
        clause("ttl = { not = 64 }", |key| ip(key) && key.ttl != 64),
        clause("hop_limit = \"32-255\"", |key| has(key, Layers::IPV6) && key.ttl >= 32),
        clause("flow_label = 0", |key| has(key, Layers::IPV6) && key.flow_label == 0),
        clause("ip_flags = \"!mf\"", |key| has(key, Layers::IPV4) && key.ip_flags & 1 == 0),
    ])
}

fn fragment() -> impl Strategy<Value = Vec<Clause>> {
    one_of(vec![
        clause("fragment = \"any\"", |key| has(key, Layers::FRAGMENT)),
        clause("fragment = [\"none\", \"first\"]", |key| ip(key) && !has(key, Layers::LATER_FRAGMENT)),
        clause("fragment = { not = \"first\" }", |key| {
            ip(key) && (!has(key, Layers::FRAGMENT) || has(key, Layers::LATER_FRAGMENT))
        }),
        clause("fragment = \"none\"", |key| ip(key) && !has(key, Layers::FRAGMENT)),
        clause("fragment = \"first\"", |key| has(key, Layers::FRAGMENT) && !has(key, Layers::LATER_FRAGMENT)),
        clause("fragment = \"later\"", |key| has(key, Layers::LATER_FRAGMENT)),
    ])
}

/// Ports have random ranges, since their masks are where covers go wrong; of the widest one in a match, since
/// two take more masks than a device has.
fn ports() -> impl Strategy<Value = Vec<Clause>> {
    let near = || prop_oneof![(50u16..60, 50u16..60), (50u16..60).prop_map(|p| (p, p))];
    let wide = || prop_oneof![3 => near(), 1 => (0u16..4, 65530u16..)];
    prop_oneof![
        wide().prop_map(|ends| vec![dst_ports(ends)]),
        (wide(), near()).prop_map(|(one, two)| vec![src_ports(one, two)]),
        (near(), near(), near()).prop_map(|(one, two, dst)| vec![src_ports(one, two), dst_ports(dst)]),
    ]
}

fn dst_ports((a, b): (u16, u16)) -> Clause {
    let (low, high) = (a.min(b), a.max(b));
    clause(format!("dst_port = \"{low}-{high}\""), move |key| {
        transport(key) && (low..=high).contains(&key.dst_port)
    })
}

fn src_ports(one: (u16, u16), two: (u16, u16)) -> Clause {
    let [(a, b), (c, d)] = [one, two].map(|(a, b)| (a.min(b), a.max(b)));
    clause(format!("src_port = [\"{a}-{b}\", \"{c}-{d}\"]"), move |key| {
        transport(key) && ((a..=b).contains(&key.src_port) || (c..=d).contains(&key.src_port))
    })
}

fn flags() -> impl Strategy<Value = Vec<Clause>> {
    one_of(vec![
        clause("tcp_flags = \"syn,!ack\"", |key| has(key, Layers::TCP) && key.tcp_flags & 0x12 == 0x02),
        clause("tcp_flags = { not = [\"syn\", \"fin\"] }", |key| {
            has(key, Layers::TCP) && key.tcp_flags & 3 == 0
        }),
        clause("tcp_flags = \"fin\"", |key| has(key, Layers::TCP) && key.tcp_flags & 1 == 1),
        clause("icmp_type = 8", |key| has(key, Layers::ICMP) && key.icmp_type == 8),
        clause("icmp_type = [\"3-12\", { not = \"4-8\" }], icmp_code = \"0-1\"", |key| {
            has(key, Layers::ICMP) && matches!(key.icmp_type, 3 | 9..=12) && key.icmp_code <= 1
        }),
        clause("icmpv6_type = 128, icmpv6_code = { not = 0 }", |key| {
            has(key, Layers::ICMPV6) && key.icmp_type == 128 && key.icmp_code != 0
        }),
    ])
}

fn options() -> impl Strategy<Value = Vec<Clause>> {
    one_of(vec![
        clause("ip_options = true", |key| has(key, Layers::IPV4 | Layers::IP_OPTIONS)),
        clause("ip_options = false", |key| has(key, Layers::IPV4) && !has(key, Layers::IP_OPTIONS)),
    ])
}
