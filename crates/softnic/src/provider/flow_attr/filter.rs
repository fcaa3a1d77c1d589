//! What the filters of a flow ask of a frame and its tunnel, taken together.
//!
//! `interpret` calls [`matchers`] with filters whose sizes and values the kernel would let pass. Filters may come in any
//! order unless one is about MPLS, whose place in the stack only the order tells (`ibv_create_flow(3)`, "Rules definition
//! ordering"). Each header of a packet can be filtered once.

use ibverbs_sys::{
    ibv_flow_eth_filter, ibv_flow_ipv4_ext_filter, ibv_flow_ipv6_filter, ibv_flow_spec_esp,
    ibv_flow_spec_gre, ibv_flow_spec_tcp_udp,
};
use packet::{EtherType, IpProtocol, Layers, MacAddr};

use super::spec::{Filter, Header, Masked, Spec};
use crate::flow::{Matcher, Presence, TunnelMatcher};
use crate::personality::FilterRules;
use crate::provider::answer::{EINVAL, EOPNOTSUPP, Verb, known_bits};

/// The flags of an IPv4 filter (`enum ib_ipv4_flags` in include/rdma/ib_verbs.h of the kernel; the manual is silent).
const SPEC_DONT_FRAGMENT: u8 = 1 << 1;
const SPEC_MORE_FRAGMENTS: u8 = 1 << 2;
/// The same flags in the header, down from the reserved bit (RFC 791, 3.1).
const HEADER_DONT_FRAGMENT: u8 = 1 << 1;
const HEADER_MORE_FRAGMENTS: u8 = 1 << 0;

/// What was asked of one packet so far: to hold later filters to it.
#[derive(Default)]
struct Packet {
    ethernet: bool,
    ether_type: Option<(u16, u16)>,
    network: Option<EtherType>,
    /// A mask and a value of the protocol.
    protocol: Option<(u8, u8)>,
    /// The one protocol that a filter behind the IP header implies.
    implied: Option<IpProtocol>,
    /// TCP, UDP, ESP or GRE.
    transport: bool,
}

/// Reads filters one by one.
struct Reader<'r> {
    rules: &'r FilterRules,
    outer: Packet,
    inner: Packet,
    matcher: Matcher,
    tunnel: TunnelMatcher,
    /// Whether IP filters without INNER are about the packet behind labels, because those stand behind Ethernet.
    behind_labels: bool,
    vxlan: bool,
    labels: usize,
    inner_label: bool,
}

/// The matchers of a flow; they may contradict themselves.
pub(super) fn matchers(filters: &[Filter], rules: &FilterRules) -> Verb<(Matcher, TunnelMatcher)> {
    let has_labels = filters.iter().any(|filter| matches!(filter.header, Header::Mpls(_)));
    if has_labels && !filters.is_sorted_by(|a, b| is_in_order(filters, a, b)) {
        return Err(EINVAL);
    }
    let mut reader = Reader {
        rules,
        outer: Packet::default(),
        inner: Packet::default(),
        matcher: Matcher::any(),
        tunnel: TunnelMatcher::default(),
        behind_labels: filters.iter().any(names_labels) || labels_follow_ethernet(filters),
        vxlan: false,
        labels: 0,
        inner_label: false,
    };
    for (place, filter) in filters.iter().enumerate() {
        let before = place.checked_sub(1).and_then(|place| filters.get(place));
        reader.filter(filter, before)?;
    }
    reader.check()?;
    if rules.values_within_masks && filters.iter().any(Filter::exceeds_its_mask) {
        return Err(EINVAL);
    }
    Ok((reader.matcher, reader.tunnel))
}

/// How far into a frame a header stands, of frames without labels behind Ethernet.
fn depth(filter: &Filter) -> u8 {
    let within = match filter.header {
        Header::Ethernet(_) => 0,
        Header::Ipv4(_) | Header::Ipv6(_) => 2,
        Header::Tcp(_) | Header::Udp(_) | Header::Esp(_) => 3,
        Header::Gre(_) | Header::Vxlan(_) => 4,
        // Told by what stands before; see `is_in_order`.
        Header::Mpls(_) => 1,
    };
    within + if filter.inner { 8 } else { 0 }
}

/// Whether `b` may directly follow `a` in a flow about labels.
fn is_in_order(filters: &[Filter], a: &Filter, b: &Filter) -> bool {
    let is_label = |filter: &Filter| matches!(filter.header, Header::Mpls(_));
    match (is_label(a), is_label(b)) {
        (true, true) => a.inner == b.inner,
        // Behind what labels can stand behind, in the same packet or at the start of the inner one.
        (false, true) if a.inner == b.inner => {
            matches!(a.header, Header::Ethernet(_))
                || !b.inner && matches!(a.header, Header::Udp(_) | Header::Gre(_))
        }
        (false, true) => b.inner && matches!(a.header, Header::Vxlan(_) | Header::Gre(_)),
        (true, false) if a.inner == b.inner => {
            !matches!(b.header, Header::Ethernet(_)) && (a.inner || labels_follow_ethernet(filters))
        }
        (true, false) => b.inner,
        (false, false) => depth(a) < depth(b),
    }
}

/// Whether the first label of a flow stands behind Ethernet: behind its filter, or behind none.
fn labels_follow_ethernet(filters: &[Filter]) -> bool {
    let first = filters.iter().position(|filter| !filter.inner && matches!(filter.header, Header::Mpls(_)));
    first.is_some_and(|first| match first.checked_sub(1).and_then(|before| filters.get(before)) {
        None => true,
        Some(before) => matches!(before.header, Header::Ethernet(_)),
    })
}

/// Whether an outer Ethernet filter asks for labels to follow.
fn names_labels(filter: &Filter) -> bool {
    let Header::Ethernet(Masked { value, mask }) = &filter.header else { return false };
    let ether_type = EtherType(u16::from_be(value.ether_type));
    !filter.inner
        && mask.ether_type == u16::MAX
        && matches!(ether_type, EtherType::MPLS | EtherType::MPLS_MULTICAST)
}

impl Reader<'_> {
    fn filter(&mut self, filter: &Filter, before: Option<&Filter>) -> Verb<()> {
        if !self.rules.types.contains(&filter.kind) || (filter.inner && !self.rules.inner) {
            return Err(self.rules.type_refusal);
        }
        if filter.inner && !self.asks_for_nothing(&filter.header) {
            self.tunnel.require(Presence::INNER);
        }
        match &filter.header {
            Header::Ethernet(ethernet) => self.ethernet(filter.inner, ethernet),
            Header::Ipv4(ipv4) => self.ipv4(filter, ipv4),
            Header::Ipv6(ipv6) => self.ipv6(filter.inner, ipv6),
            Header::Tcp(ports) => self.ports(filter.inner, (Layers::TCP, IpProtocol::TCP), ports),
            Header::Udp(ports) => self.ports(filter.inner, (Layers::UDP, IpProtocol::UDP), ports),
            // The index of a packet inside is not read.
            Header::Esp(_) if filter.inner => Err(EOPNOTSUPP),
            Header::Esp(esp) => self.esp(esp),
            Header::Vxlan(vni) => self.vxlan(*vni),
            Header::Gre(gre) => self.gre(gre),
            Header::Mpls(label) => self.label(filter, *label, before),
        }
    }

    /// The packet that a filter is about: its matcher, and what was asked of it.
    fn packet(&mut self, inner: bool) -> (&mut Matcher, &mut Packet) {
        if inner || self.behind_labels {
            self.tunnel.require(Presence::INNER);
            (&mut self.tunnel.inner, &mut self.inner)
        } else {
            (&mut self.matcher, &mut self.outer)
        }
    }

    fn ethernet(&mut self, inner: bool, filter: &Masked<ibv_flow_eth_filter>) -> Verb<()> {
        let Masked { value, mask } = filter;
        let reduced = self.rules.ethernet_is_destination;
        let (matcher, packet) = if inner {
            if !self.asks_for_nothing(&Header::Ethernet(*filter)) {
                self.tunnel.require(Presence::INNER_ETHERNET);
            }
            (&mut self.tunnel.inner, &mut self.inner)
        } else {
            (&mut self.matcher, &mut self.outer)
        };
        once(&mut packet.ethernet)?;
        matcher
            .dst_mac(value.dst_mac, mask.dst_mac)
            .vlan_tag(u16::from_be(value.vlan_tag), u16::from_be(mask.vlan_tag));
        if reduced {
            return Ok(());
        }
        let (ether_type, type_mask) = (u16::from_be(value.ether_type), u16::from_be(mask.ether_type));
        matcher.src_mac(value.src_mac, mask.src_mac).ether_type(ether_type, type_mask);
        packet.ether_type = (type_mask != 0).then_some((ether_type, type_mask));
        Ok(())
    }

    fn ipv4(&mut self, filter: &Filter, fields: &Masked<ibv_flow_ipv4_ext_filter>) -> Verb<()> {
        let Masked { value, mask } = fields;
        let can = self.rules.fields;
        let refused = (mask.ttl != 0 && !can.ipv4_ttl)
            || (mask.flags != 0 && !can.ipv4_flags)
            || ((mask.proto | mask.tos) != 0 && !can.ipv4_protocol_and_tos);
        if refused {
            return Err(self.rules.field_refusal);
        }
        known_bits(mask.flags.into(), (SPEC_DONT_FRAGMENT | SPEC_MORE_FRAGMENTS).into(), EOPNOTSUPP)?;
        let (matcher, packet) = self.packet(filter.inner);
        set(&mut packet.network, EtherType::IPV4)?;
        packet.protocol = (mask.proto != 0).then_some((value.proto, mask.proto));
        matcher
            .require(Layers::IPV4)
            .src_ipv4(value.src_ip.to_ne_bytes(), mask.src_ip.to_ne_bytes())
            .dst_ipv4(value.dst_ip.to_ne_bytes(), mask.dst_ip.to_ne_bytes())
            .protocol(value.proto, mask.proto)
            .tos(value.tos, mask.tos)
            .ttl(value.ttl, mask.ttl)
            .ip_flags(header_flags(value.flags), header_flags(mask.flags));
        Ok(())
    }

    fn ipv6(&mut self, inner: bool, filter: &Masked<ibv_flow_ipv6_filter>) -> Verb<()> {
        let Masked { value, mask } = filter;
        if mask.hop_limit != 0 && !self.rules.fields.ipv6_hop_limit {
            return Err(self.rules.field_refusal);
        }
        let (matcher, packet) = self.packet(inner);
        set(&mut packet.network, EtherType::IPV6)?;
        packet.protocol = (mask.next_hdr != 0).then_some((value.next_hdr, mask.next_hdr));
        matcher
            .require(Layers::IPV6)
            .src_ipv6(value.src_ip, mask.src_ip)
            .dst_ipv6(value.dst_ip, mask.dst_ip)
            .flow_label(u32::from_be(value.flow_label), u32::from_be(mask.flow_label))
            .protocol(value.next_hdr, mask.next_hdr)
            .tos(value.traffic_class, mask.traffic_class)
            .ttl(value.hop_limit, mask.hop_limit);
        Ok(())
    }

    fn ports(
        &mut self,
        inner: bool,
        (layer, protocol): (Layers, IpProtocol),
        spec: &ibv_flow_spec_tcp_udp,
    ) -> Verb<()> {
        let ibv_flow_spec_tcp_udp { val: value, mask, .. } = spec;
        let asked = self.asks_for_header((mask.src_port | mask.dst_port).into());
        let (matcher, packet) = self.packet(inner);
        once(&mut packet.transport)?;
        packet.implied = Some(protocol);
        matcher
            .require(if asked { layer } else { Layers::empty() })
            .src_port(u16::from_be(value.src_port), u16::from_be(mask.src_port))
            .dst_port(u16::from_be(value.dst_port), u16::from_be(mask.dst_port));
        Ok(())
    }

    fn esp(&mut self, spec: &ibv_flow_spec_esp) -> Verb<()> {
        let ibv_flow_spec_esp { val: value, mask, .. } = spec;
        if mask.seq != 0 && !self.rules.fields.esp_sequence {
            return Err(self.rules.field_refusal);
        }
        once(&mut self.outer.transport)?;
        self.require(Presence::ESP, mask.spi | mask.seq);
        let pair = |value, mask| (u32::from_be(value), u32::from_be(mask));
        self.tunnel.esp(pair(value.spi, mask.spi), pair(value.seq, mask.seq));
        Ok(())
    }

    fn vxlan(&mut self, vni: Masked<u32>) -> Verb<()> {
        once(&mut self.vxlan)?;
        self.require(Presence::VXLAN, vni.mask);
        self.tunnel.vxlan_vni(u32::from_be(vni.value), u32::from_be(vni.mask));
        Ok(())
    }

    fn gre(&mut self, spec: &ibv_flow_spec_gre) -> Verb<()> {
        let ibv_flow_spec_gre { val: value, mask, .. } = spec;
        if mask.c_ks_res0_ver != 0 && !self.rules.fields.gre_flags {
            return Err(self.rules.field_refusal);
        }
        once(&mut self.outer.transport)?;
        self.outer.implied = Some(IpProtocol::GRE);
        self.require(Presence::GRE, u32::from(mask.c_ks_res0_ver | mask.protocol) | mask.key);
        self.tunnel
            .gre_flags(u16::from_be(value.c_ks_res0_ver), u16::from_be(mask.c_ks_res0_ver))
            .gre_protocol(u16::from_be(value.protocol), u16::from_be(mask.protocol))
            .gre_key(u32::from_be(value.key), u32::from_be(mask.key));
        Ok(())
    }

    fn label(&mut self, filter: &Filter, label: Masked<u32>, before: Option<&Filter>) -> Verb<()> {
        let (value, mask) = (u32::from_be(label.value), u32::from_be(label.mask));
        if filter.inner {
            // One label of the packet inside is read.
            if std::mem::replace(&mut self.inner_label, true) {
                return Err(EOPNOTSUPP);
            }
            self.require(Presence::INNER_MPLS, mask);
            self.tunnel.inner_label(value, mask);
            return Ok(());
        }
        let presence = match before.map(|before| &before.header) {
            None | Some(Header::Ethernet(_)) => Presence::MPLS_OVER_ETHERNET,
            Some(Header::Udp(_)) => Presence::MPLS_OVER_UDP,
            Some(Header::Gre(_)) => Presence::MPLS_OVER_GRE,
            // What the first of them asked for stands.
            Some(Header::Mpls(_)) => Presence::empty(),
            Some(_) => return Err(EINVAL),
        };
        if self.labels == self.rules.max_labels {
            return Err(EOPNOTSUPP);
        }
        self.require(presence, mask);
        self.tunnel.label(self.labels, value, mask);
        self.labels += 1;
        Ok(())
    }

    /// Asks for a header, if the device does.
    fn require(&mut self, presence: Presence, mask: u32) {
        if self.asks_for_header(mask) {
            self.tunnel.require(presence);
        }
    }

    /// Whether the device asks for a header whose fields have these bits in their masks.
    fn asks_for_header(&self, mask: u32) -> bool {
        mask != 0 || !self.rules.empty_masks_ask_for_no_header
    }

    /// Whether a filter about the packet inside does not even ask for one: IP versions and protocols do.
    fn asks_for_nothing(&self, header: &Header) -> bool {
        let is_open = match header {
            Header::Ethernet(Masked { mask, .. }) => {
                [mask.dst_mac, mask.src_mac] == [[0; 6]; 2] && mask.ether_type | mask.vlan_tag == 0
            }
            Header::Mpls(label) => label.mask == 0,
            _ => false,
        };
        is_open && self.rules.empty_masks_ask_for_no_header
    }

    /// Holds what was asked of each packet against itself.
    fn check(&mut self) -> Verb<()> {
        // Behind the labels of the packet inside nothing is read.
        if self.inner_label && (self.inner.network.is_some() || self.inner.transport) {
            return Err(EOPNOTSUPP);
        }
        for (packet, matcher) in [(&self.outer, &mut self.matcher), (&self.inner, &mut self.tunnel.inner)] {
            if let Some(implied) = packet.implied {
                let whole = packet.protocol.is_none_or(|protocol| protocol == (implied.0, u8::MAX));
                if self.rules.whole_protocol_beside_transport && !whole {
                    return Err(EINVAL);
                }
                // A transport and another protocol contradict each other.
                matcher.protocol(implied.0, u8::MAX);
            }
            let (Some((ether_type, mask)), Some(network)) = (packet.ether_type, packet.network) else {
                continue;
            };
            if self.rules.whole_ether_type_beside_ip && (mask, EtherType(ether_type)) != (u16::MAX, network) {
                return Err(EINVAL);
            }
        }
        Ok(())
    }
}

/// The one shape that a DONT_TRAP flow of a device with promiscuous modes for them may have.
pub(super) fn check_promiscuous(specs: &[Spec], priority: u16) -> Verb<()> {
    let spec = match specs {
        _ if priority != 0 => return Err(EOPNOTSUPP),
        [] => return Ok(()),
        [spec] => spec,
        _ => return Err(EOPNOTSUPP),
    };
    let Spec::Filter(Filter { inner: false, header: Header::Ethernet(Masked { mask, .. }), .. }) = spec
    else {
        return Err(EINVAL);
    };
    let group_bit = MacAddr([1, 0, 0, 0, 0, 0]);
    if [MacAddr::default(), group_bit].contains(&MacAddr(mask.dst_mac)) { Ok(()) } else { Err(EINVAL) }
}

/// The flags of an IPv4 filter as the three bits of the header have them, where "more fragments" is the lowest.
fn header_flags(spec: u8) -> u8 {
    let bit = |spec_bit, header_bit| if spec & spec_bit != 0 { header_bit } else { 0 };
    bit(SPEC_DONT_FRAGMENT, HEADER_DONT_FRAGMENT) | bit(SPEC_MORE_FRAGMENTS, HEADER_MORE_FRAGMENTS)
}

fn once(done: &mut bool) -> Verb<()> {
    if std::mem::replace(done, true) { Err(EINVAL) } else { Ok(()) }
}

fn set<T>(place: &mut Option<T>, value: T) -> Verb<()> {
    if place.replace(value).is_some() { Err(EINVAL) } else { Ok(()) }
}
