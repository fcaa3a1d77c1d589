//! What the filters of a flow ask of a frame and its tunnel, taken together.
//!
//! `interpret` calls [`matchers`] with filters whose sizes and values the kernel would let pass. Filters may
//! come in any order unless one is about MPLS, whose place in the stack follows only from the order
//! (`ibv_create_flow(3)`, "Rules definition ordering"). Each header of a packet can be filtered once.

use device_model::Feature;
use flow_table::{Matcher, Presence, TunnelMatcher};
use packet::cube;
use packet::{EtherType, IpProtocol, Layers, MAX_MPLS_LABELS};

use super::spec::{Field, Filter, Header, Spec};
use crate::errno::{EINVAL, EOPNOTSUPP, Verb};
use crate::personality::FlowRules;

/// The conditions on one packet so far, which later filters must agree with.
#[derive(Default)]
struct Packet {
    ethernet: bool,
    /// A value and a mask of the EtherType, if there is a mask.
    ether_type: Option<(u128, u128)>,
    network: Option<EtherType>,
    /// The condition on the protocol.
    protocol: Option<(u128, u128)>,
    /// The one protocol that a filter behind the IP header implies.
    implied: Option<IpProtocol>,
    /// TCP, UDP, ESP or GRE.
    transport: bool,
}

/// Reads filters one by one.
struct Reader<'r> {
    rules: &'r FlowRules,
    outer: Packet,
    inner: Packet,
    matcher: Matcher,
    tunnel: TunnelMatcher,
    /// Whether IP filters without INNER are about the packet behind labels, because those are behind
    /// Ethernet.
    behind_labels: bool,
    vxlan: bool,
    labels: usize,
    inner_label: bool,
}

/// The matchers of a flow; they may contradict themselves.
pub(super) fn matchers(filters: &[Filter], rules: &FlowRules) -> Verb<(Matcher, TunnelMatcher)> {
    let has_labels = filters.iter().any(|filter| filter.header == Header::Mpls);
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
    // Values of fields that the device cannot match are not passed on.
    let exceeds = |field: &Field| field.exceeds_its_mask() && !rules.refuses(field.feature);
    if rules.emulation.values_within_masks && filters.iter().flat_map(|filter| &filter.fields).any(exceeds) {
        return Err(EINVAL);
    }
    Ok((reader.matcher, reader.tunnel))
}

/// How far into a frame a header is, of frames without labels behind Ethernet.
fn depth(filter: &Filter) -> u8 {
    let within = match filter.header {
        Header::Ethernet => 0,
        Header::Ipv4 | Header::Ipv6 => 2,
        Header::Tcp | Header::Udp | Header::Esp => 3,
        Header::Gre | Header::Vxlan => 4,
        // Known from the header before it; see `is_in_order`.
        Header::Mpls => 1,
    };
    within + if filter.inner { 8 } else { 0 }
}

/// Whether `b` may directly follow `a` in a flow about labels.
fn is_in_order(filters: &[Filter], a: &Filter, b: &Filter) -> bool {
    let is_label = |filter: &Filter| filter.header == Header::Mpls;
    match (is_label(a), is_label(b)) {
        (true, true) => a.inner == b.inner,
        // Behind what labels can follow, in the same packet or at the start of the inner one.
        (false, true) if a.inner == b.inner => {
            matches!(a.header, Header::Ethernet) || !b.inner && matches!(a.header, Header::Udp | Header::Gre)
        }
        (false, true) => b.inner && matches!(a.header, Header::Vxlan | Header::Gre),
        (true, false) if a.inner == b.inner => {
            !matches!(b.header, Header::Ethernet) && (a.inner || labels_follow_ethernet(filters))
        }
        (true, false) => b.inner,
        (false, false) => depth(a) < depth(b),
    }
}

/// Whether the first label of a flow is behind Ethernet: behind its filter, or behind none.
fn labels_follow_ethernet(filters: &[Filter]) -> bool {
    let first = filters.iter().position(|filter| !filter.inner && filter.header == Header::Mpls);
    first.is_some_and(|first| match first.checked_sub(1).and_then(|before| filters.get(before)) {
        None => true,
        Some(before) => matches!(before.header, Header::Ethernet),
    })
}

/// Whether an outer Ethernet filter asks for labels to follow.
fn names_labels(filter: &Filter) -> bool {
    let (value, mask) = filter.get(cube::ETHER_TYPE);
    let is_label = [EtherType::MPLS, EtherType::MPLS_MULTICAST].iter().any(|label| value == label.0.into());
    !filter.inner && mask == u16::MAX.into() && is_label
}

impl Reader<'_> {
    fn filter(&mut self, filter: &Filter, before: Option<&Filter>) -> Verb<()> {
        self.check_support(filter)?;
        if filter.inner && !self.asks_for_nothing(filter) {
            self.tunnel.require(Presence::INNER);
        }
        match filter.header {
            Header::Ethernet => self.ethernet(filter),
            Header::Ipv4 => self.network(filter, EtherType::IPV4, Layers::IPV4),
            Header::Ipv6 => self.network(filter, EtherType::IPV6, Layers::IPV6),
            Header::Tcp => self.ports(filter, Layers::TCP, IpProtocol::TCP),
            Header::Udp => self.ports(filter, Layers::UDP, IpProtocol::UDP),
            // The index of a packet inside is not read.
            Header::Esp if filter.inner => Err(EOPNOTSUPP),
            Header::Esp => {
                once(&mut self.outer.transport)?;
                self.tunnel_header(filter, Presence::ESP)
            }
            Header::Vxlan => {
                once(&mut self.vxlan)?;
                self.tunnel_header(filter, Presence::VXLAN)
            }
            Header::Gre => {
                once(&mut self.outer.transport)?;
                self.outer.implied = Some(IpProtocol::GRE);
                self.tunnel_header(filter, Presence::GRE)
            }
            Header::Mpls => self.label(filter, before),
        }
    }

    /// Refuses headers and fields that the device cannot match.
    fn check_support(&self, filter: &Filter) -> Verb<()> {
        let header = match filter.header {
            Header::Ipv6 => Some(Feature::Ipv6),
            Header::Esp => Some(Feature::Esp),
            Header::Vxlan => Some(Feature::Vxlan),
            Header::Gre => Some(Feature::Gre),
            Header::Mpls => Some(Feature::Mpls),
            Header::Ethernet | Header::Ipv4 | Header::Tcp | Header::Udp => None,
        };
        let inner = filter.inner.then_some(Feature::Inner);
        let masked = filter.fields.iter().filter(|field| field.mask != 0);
        let fields = masked.filter_map(|field| field.feature);
        let presence = filter.presence().filter(|_| filter.is_open());
        inner
            .into_iter()
            .chain(header)
            .chain(presence)
            .chain(fields)
            .try_for_each(|feature| self.rules.check(feature))?;
        if filter.fields.iter().any(Field::has_unknown_flags) { Err(EOPNOTSUPP) } else { Ok(()) }
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

    fn ethernet(&mut self, filter: &Filter) -> Verb<()> {
        let rules = self.rules;
        let (matcher, packet) = if filter.inner {
            if !self.asks_for_nothing(filter) {
                self.tunnel.require(Presence::INNER_ETHERNET);
            }
            (&mut self.tunnel.inner, &mut self.inner)
        } else {
            (&mut self.matcher, &mut self.outer)
        };
        once(&mut packet.ethernet)?;
        let asked = filter.fields.iter().filter(|field| !rules.ignores(field.feature));
        ask(matcher, asked.clone());
        let mut ether_type = asked.filter(|field| field.slots == [cube::ETHER_TYPE]).map(Field::in_image);
        packet.ether_type = ether_type.next().filter(|(_, mask)| *mask != 0);
        Ok(())
    }

    fn network(&mut self, filter: &Filter, ether_type: EtherType, layer: Layers) -> Verb<()> {
        let (matcher, packet) = self.packet(filter.inner);
        set(&mut packet.network, ether_type)?;
        packet.protocol = Some(filter.get(cube::PROTOCOL)).filter(|(_, mask)| *mask != 0);
        ask(matcher.require(layer), &filter.fields);
        Ok(())
    }

    fn ports(&mut self, filter: &Filter, layer: Layers, protocol: IpProtocol) -> Verb<()> {
        let asked = self.asks_for_header(filter);
        let (matcher, packet) = self.packet(filter.inner);
        once(&mut packet.transport)?;
        packet.implied = Some(protocol);
        ask(matcher.require(if asked { layer } else { Layers::empty() }), &filter.fields);
        Ok(())
    }

    fn tunnel_header(&mut self, filter: &Filter, presence: Presence) -> Verb<()> {
        self.require(presence, filter);
        for field in &filter.fields {
            let (value, mask) = field.in_image();
            self.tunnel.field(field.slots, value, mask);
        }
        Ok(())
    }

    fn label(&mut self, filter: &Filter, before: Option<&Filter>) -> Verb<()> {
        let (value, mask) = filter.get(cube::MPLS_TOP);
        let (value, mask) = (value as u32, mask as u32);
        if filter.inner {
            // One label of the packet inside is read.
            if std::mem::replace(&mut self.inner_label, true) {
                return Err(EOPNOTSUPP);
            }
            self.require(Presence::INNER_MPLS, filter);
            self.tunnel.inner_label(value, mask);
            return Ok(());
        }
        let presence = match before.map(|before| before.header) {
            None | Some(Header::Ethernet) => Presence::MPLS_OVER_ETHERNET,
            Some(Header::Udp) => Presence::MPLS_OVER_UDP,
            Some(Header::Gre) => Presence::MPLS_OVER_GRE,
            // The first of them has asked for it.
            Some(Header::Mpls) => Presence::empty(),
            Some(_) => return Err(EINVAL),
        };
        if self.labels == usize::from(self.rules.emulation.max_labels).min(MAX_MPLS_LABELS) {
            return Err(EOPNOTSUPP);
        }
        self.require(presence, filter);
        self.tunnel.label(self.labels, value, mask);
        self.labels += 1;
        Ok(())
    }

    /// Asks for a header, if the device does.
    fn require(&mut self, presence: Presence, filter: &Filter) {
        if self.asks_for_header(filter) {
            self.tunnel.require(presence);
        }
    }

    /// Whether the device asks for the header of a filter.
    fn asks_for_header(&self, filter: &Filter) -> bool {
        !filter.is_open() || !self.rules.ignores(filter.presence())
    }

    /// Whether a filter about the packet inside does not even ask for one: IP versions and protocols do.
    fn asks_for_nothing(&self, filter: &Filter) -> bool {
        matches!(filter.header, Header::Ethernet | Header::Mpls) && !self.asks_for_header(filter)
    }

    /// Holds what was asked of each packet against itself.
    fn check(&mut self) -> Verb<()> {
        // Behind the labels of the packet inside nothing is read.
        if self.inner_label && (self.inner.network.is_some() || self.inner.transport) {
            return Err(EOPNOTSUPP);
        }
        for (packet, matcher) in [(&self.outer, &mut self.matcher), (&self.inner, &mut self.tunnel.inner)] {
            if let Some(implied) = packet.implied {
                let whole =
                    packet.protocol.is_none_or(|protocol| protocol == (implied.0.into(), u8::MAX.into()));
                if self.rules.emulation.whole_protocol_beside_transport && !whole {
                    return Err(EINVAL);
                }
                // A transport and another protocol contradict each other.
                matcher.field(&[cube::PROTOCOL], implied.0.into(), u8::MAX.into());
            }
            let (Some((ether_type, mask)), Some(network)) = (packet.ether_type, packet.network) else {
                continue;
            };
            if self.rules.emulation.whole_ether_type_beside_ip
                && (ether_type, mask) != (network.0.into(), u16::MAX.into())
            {
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
    let Spec::Filter(filter) = spec else { return Err(EINVAL) };
    let (_, mask) = filter.get(cube::DST_MAC);
    let is_ethernet = filter.header == Header::Ethernet && !filter.inner;
    if is_ethernet && [0, super::GROUP_BIT].contains(&mask) { Ok(()) } else { Err(EINVAL) }
}

/// Writes fields of one packet's headers into its matcher.
fn ask<'f>(matcher: &mut Matcher, fields: impl IntoIterator<Item = &'f Field>) {
    for field in fields {
        let (value, mask) = field.in_image();
        matcher.field(field.slots, value, mask);
    }
}

fn once(done: &mut bool) -> Verb<()> {
    if std::mem::replace(done, true) { Err(EINVAL) } else { Ok(()) }
}

fn set<T>(place: &mut Option<T>, value: T) -> Verb<()> {
    if place.replace(value).is_some() { Err(EINVAL) } else { Ok(()) }
}
