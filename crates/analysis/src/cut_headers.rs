//! Frames in which a header that another one announces is missing: it is cut off or malformed in every frame
//! with these header fields, and no host can use such a packet. A header that is missing because the
//! announcement means something else (a later fragment, GRE of another version, UDP to the port of VXLAN
//! without its flag, or to the port of MPLS without a label) is no such case. Neither is a header that
//! continues in the next fragment: an IPv4 host reassembles the packet first. An IPv6 host refuses first
//! fragments without all headers (RFC 7112), so there they count as cut.

use packet::stack::{
    Coordinate, FRAGMENT_CODES, HeaderStack, Level, MAX_TAGS, Network, PacketHeaders, Transport, Tunnel,
    ValueRanges,
};
use packet::{BRIDGED_ETHERNET, EtherType, Field, Header, IpProtocol, MAX_MPLS_LABELS};
use program::Match;

use crate::dimensions::Dimensions;
use crate::product::Product;
use crate::stack_set::StackSet;

const TAGS: [u16; 3] = [EtherType::VLAN.0, EtherType::SVLAN.0, EtherType::QINQ.0];
const NETWORKS: [u16; 4] =
    [EtherType::IPV4.0, EtherType::IPV6.0, EtherType::MPLS.0, EtherType::MPLS_MULTICAST.0];
/// The protocols in GRE, as far as they are read.
const IN_GRE: [u16; 5] = [
    EtherType::IPV4.0,
    EtherType::IPV6.0,
    EtherType::MPLS.0,
    EtherType::MPLS_MULTICAST.0,
    BRIDGED_ETHERNET.0,
];
/// The headers that are read behind an outer IP header beside transport headers and messages.
const TUNNELS: [IpProtocol; 3] = [IpProtocol::ESP, IpProtocol::IPV4, IpProtocol::IPV6];
/// The headers of at most eight bytes, which the first fragment of a packet contains (RFC 791, 3.1).
const SHORT: [IpProtocol; 3] = [IpProtocol::UDP, IpProtocol::ICMP, IpProtocol::ESP];

/// Frames of some stacks in which these numbers have these values: a header of all of them is missing.
pub(super) struct CutHeader {
    stacks: StackSet,
    ranges: Vec<(Coordinate, ValueRanges)>,
}

impl CutHeader {
    fn new(stacks: StackSet, ranges: impl Into<Vec<(Coordinate, ValueRanges)>>) -> Self {
        Self { stacks, ranges: ranges.into() }
    }

    /// Those of the frames that have these values of one more number, or do not have the number.
    fn with(mut self, range: (Coordinate, ValueRanges)) -> Self {
        self.ranges.push(range);
        self
    }

    /// All of them, as far as some match distinguishes packets with such a header from others.
    pub(super) fn all<'m>(mut matches: impl Iterator<Item = &'m Match> + Clone) -> Vec<Self> {
        // Without such a condition no set of packets contains these alone.
        let is_sctp = |matches: &Match| matches.needs_header(Header::Sctp);
        let has_sctp =
            matches.clone().any(|matches| is_sctp(matches) || matches.inner.as_deref().is_some_and(is_sctp));
        let mut all = in_packet(Level::Outer, has_sctp);
        if matches.clone().any(Match::needs_extended) {
            all.extend(behind_extension_headers());
        }
        if matches.any(Match::needs_tunnel) {
            // A packet in the first fragment of the outer one continues in the next.
            let in_tunnels = in_packet(Level::Inner, has_sctp).into_iter().chain(in_tunnel());
            all.extend(in_tunnels.map(|cut| cut.with(before(FRAGMENT_CODES[1], Level::Outer))));
        }
        all
    }

    /// The numbers that decide whether a header is missing, with their values.
    pub(super) fn ranges(all: &[Self]) -> Vec<(Coordinate, ValueRanges)> {
        all.iter().flat_map(|cut| cut.ranges.iter().cloned()).collect()
    }

    /// The frames, in dimensions that have the [ranges](Self::ranges).
    pub(super) fn product(&self, dimensions: &Dimensions) -> Product {
        let mut product = dimensions.everything();
        product.stacks = self.stacks;
        for (coordinate, values) in &self.ranges {
            if let Some(index) = dimensions.position(*coordinate, 0) {
                product.sets[index] = product.sets[index].and(&dimensions.list[index].set(values));
            }
        }
        product.close(dimensions);
        product
    }
}

/// Headers that the headers of one packet announce: a tag, a network header, a transport header, which is
/// that of SCTP only with `has_sctp`.
fn in_packet(level: Level, has_sctp: bool) -> Vec<CutHeader> {
    let of = |holds: &dyn Fn(&HeaderStack, PacketHeaders) -> bool| {
        StackSet::of_stacks(|stack| {
            // What a tunnel header announces is not of this packet.
            let is_plain = level == Level::Inner || stack.tunnel == Tunnel::None && stack.labels.is_none();
            is_plain && stack.headers(level).is_some_and(|headers| holds(stack, headers))
        })
    };
    let has_label = |stack: &HeaderStack| stack.inner.is_some_and(|inner| inner.label.is_some());
    let link =
        of(&|stack, headers| headers == PacketHeaders::NONE && (level == Level::Outer || !has_label(stack)));
    let ip = |network| {
        of(&move |_, headers| {
            headers.network == network && headers.transport == Transport::None && headers.extended.is_none()
        })
    };
    let ether_type = field(Field::EtherType, level);
    let protocol = |message: IpProtocol, is_wanted: fn(IpProtocol) -> bool| {
        let tunnels = TUNNELS.into_iter().filter(|_| level == Level::Outer);
        let sctp = has_sctp.then_some(IpProtocol::SCTP);
        let all = [IpProtocol::TCP, IpProtocol::UDP, message].into_iter().chain(sctp).chain(tunnels);
        let all = all.filter(|one| is_wanted(*one)).map(|one| one.0.into());
        (field(Field::Protocol, level), each(all))
    };
    let short = protocol(IpProtocol::ICMP, |one| SHORT.contains(&one));
    let long = protocol(IpProtocol::ICMP, |one| !SHORT.contains(&one));
    let room_for_tags = StackSet::tags(level, |tags| tags < MAX_TAGS);
    vec![
        CutHeader::new(link, [(ether_type, each(NETWORKS))]),
        CutHeader::new(link.and(&room_for_tags), [(ether_type, each(TAGS))]),
        CutHeader::new(ip(Network::V4), [short, before(FRAGMENT_CODES[2], level)]),
        CutHeader::new(ip(Network::V4), [long, before(FRAGMENT_CODES[1], level)]),
        CutHeader::new(ip(Network::V6), [protocol(IpProtocol::ICMPV6, |_| true)]),
    ]
}

/// Headers that IPv6 extension headers announce.
fn behind_extension_headers() -> [CutHeader; 2] {
    let of = |network| {
        StackSet::of_stacks(|stack| {
            stack.outer.network == network && stack.outer.extended == Some(Transport::None)
        })
    };
    let protocol = || {
        let all = [IpProtocol::TCP, IpProtocol::UDP, IpProtocol::ICMPV6];
        (field(Field::ExtProtocol, Level::Outer), each(all.map(|one| one.0.into())))
    };
    let not_later = (Coordinate::Fragment6(Level::Outer), vec![(0, 0)]);
    [
        CutHeader::new(of(Network::V6), [protocol()]),
        CutHeader::new(of(Network::V6Fragment), [protocol(), not_later]),
    ]
}

/// Packets that tunnel headers announce, and labels behind one that is not the last.
fn in_tunnel() -> [CutHeader; 3] {
    let without_packet = |holds: fn(&HeaderStack) -> bool| {
        StackSet::of_stacks(|stack| stack.labels.is_none() && stack.inner.is_none() && holds(stack))
    };
    let gre = without_packet(|stack| matches!(stack.tunnel, Tunnel::Gre { .. }));
    let labels = StackSet::of_stacks(|stack| {
        stack.labels.is_some_and(|labels| !labels.bottom && usize::from(labels.depth) < MAX_MPLS_LABELS)
    });
    [
        CutHeader::new(without_packet(|stack| stack.tunnel == Tunnel::Vxlan), []),
        CutHeader::new(gre, [(field(Field::GreProtocol, Level::Outer), each(IN_GRE))]),
        CutHeader::new(labels, []),
    ]
}

/// The IPv4 packets with a smaller fragment code: whole ones, and with the code of later fragments the first
/// fragments as well.
fn before(code: u8, level: Level) -> (Coordinate, ValueRanges) {
    (Coordinate::FlagsAndFragment(level), vec![(0, u128::from(code) - 1)])
}

const fn field(field: Field, level: Level) -> Coordinate {
    Coordinate::Field(field, level)
}

/// These values, in rising order.
fn each(values: impl IntoIterator<Item = u16>) -> ValueRanges {
    let mut values: ValueRanges = values.into_iter().map(|value| (value.into(), value.into())).collect();
    values.sort_unstable();
    values
}
