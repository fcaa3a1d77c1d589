//! The kinds of packets: every combination of headers that `packet` can find in a frame, in one list. Within
//! one kind each field is free of the others, so that a set of packets is a product; what one header implies
//! about another (an IPv4 header about the ethertype, a VXLAN header about the port) is in the field's domain.
//! The tags of the outer frame are free of all the rest and have alternatives of their own.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use packet::{EtherType, IpProtocol, MAX_MPLS_LABELS, MPLS_UDP_PORT, VXLAN_UDP_PORT};

use crate::byte_set::ByteSet;

use super::field::{Field, Level};

/// The network header that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Network {
    None,
    V4,
    V6,
    /// IPv6 with the fragment header of a real fragment.
    V6Fragment,
}

/// The transport header that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    None,
    Tcp,
    Udp,
}

/// The headers of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) network: Network,
    pub(super) transport: Transport,
}

/// The header that makes a tunnel, label stacks apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tunnel {
    None,
    Esp,
    Gre { key: bool },
    Vxlan,
    IpInIp,
}

/// A label stack, as far as it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stack {
    pub(super) depth: u8,
    /// Whether the last entry that is read is the last of the stack.
    pub(super) bottom: bool,
}

/// The label behind an inner Ethernet header. `packet` knows that there is one by its not being 0 whole, so
/// the ways of not being 0 are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TopLabel {
    /// The bottom bit is set.
    Bottom,
    /// It is not, and the TTL is not 0.
    Ttl,
    /// Neither, and the label is not 0.
    Label,
    /// None of them, and the traffic class is not 0.
    Class,
}

/// The packet inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inside {
    /// How many tags its Ethernet header has; `None`: there is no Ethernet header.
    pub(super) tags: Option<u8>,
    pub(super) packet: Packet,
    pub(super) label: Option<TopLabel>,
}

/// One kind of packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) packet: Packet,
    pub(super) tunnel: Tunnel,
    pub(super) stack: Option<Stack>,
    pub(super) inside: Option<Inside>,
}

const WORDS: usize = 9;
/// Where the alternatives of the outer tags begin: none, one, two.
const TAGS: usize = 64 * WORDS - 3;
const TAG_BITS: u64 = 0b111 << 61;

/// A set of kinds and of tag counts; it holds the packets that have one of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Structure {
    words: [u64; WORDS],
}

impl Structure {
    pub(super) const NONE: Self = Self { words: [0; WORDS] };

    /// Those kinds, with any tags.
    pub(super) fn kinds(holds: impl Fn(&Kind) -> bool) -> Self {
        let mut structure = Self::NONE;
        for (index, kind) in KINDS.iter().enumerate() {
            if holds(kind) {
                structure.words[index / 64] |= 1 << (index % 64);
            }
        }
        structure.words[WORDS - 1] |= TAG_BITS;
        structure
    }

    /// Those counts of tags, with any kind where it is the outer frame's.
    pub(super) fn tags(level: Level, holds: impl Fn(u8) -> bool) -> Self {
        if level == Level::Inner {
            return Self::kinds(|kind| kind.inside.and_then(|inside| inside.tags).is_some_and(&holds));
        }
        let mut structure = *ANY;
        structure.words[WORDS - 1] &= !TAG_BITS;
        for tags in (0..3).filter(|tags| holds(*tags)) {
            structure.words[WORDS - 1] |= 1 << (61 + tags);
        }
        structure
    }

    #[inline]
    pub(super) fn and(&self, other: &Self) -> Self {
        Self { words: std::array::from_fn(|i| self.words[i] & other.words[i]) }
    }

    pub(super) fn or(&self, other: &Self) -> Self {
        Self { words: std::array::from_fn(|i| self.words[i] | other.words[i]) }
    }

    /// Without those alternatives, whatever they are of.
    #[inline]
    pub(super) fn without(&self, other: &Self) -> Self {
        Self { words: std::array::from_fn(|i| self.words[i] & !other.words[i]) }
    }

    /// Whether no packet is in it.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        let last = self.words[WORDS - 1];
        let kinds = self.words[..WORDS - 1].iter().fold(last & !TAG_BITS, |all, word| all | word);
        kinds == 0 || last & TAG_BITS == 0
    }

    /// Whether some packet is in both.
    #[inline]
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        !self.and(other).is_empty()
    }

    /// Whether some alternative is in both.
    #[inline]
    pub(super) fn meets(&self, other: &Self) -> bool {
        (0..WORDS).any(|i| self.words[i] & other.words[i] != 0)
    }

    /// Whether every alternative of `other` is in `self`.
    #[inline]
    pub(super) fn contains(&self, other: &Self) -> bool {
        (0..WORDS).all(|i| other.words[i] & !self.words[i] == 0)
    }

    /// What is in `self` and not in `other`, as disjoint parts: other kinds, and the same with other tags.
    pub(super) fn minus(&self, other: &Self) -> impl Iterator<Item = Self> + use<> {
        let mut other_kinds = self.without(other);
        other_kinds.words[WORDS - 1] |= self.words[WORDS - 1] & TAG_BITS;
        let mut other_tags = self.and(other);
        other_tags.words[WORDS - 1] &= !TAG_BITS;
        other_tags.words[WORDS - 1] |= self.words[WORDS - 1] & !other.words[WORDS - 1] & TAG_BITS;
        [other_kinds, other_tags].into_iter().filter(|part| !part.is_empty())
    }

    /// The alternatives in it, the plainest kinds first, then the tag counts.
    pub(super) fn alternatives(&self) -> impl Iterator<Item = usize> + use<> {
        let structure = *self;
        (0..KINDS.len()).chain(TAGS..TAGS + 3).filter(move |index| structure.has(*index))
    }

    /// Whether the alternative is in it.
    #[inline]
    pub(super) const fn has(&self, alternative: usize) -> bool {
        self.words[alternative / 64] >> (alternative % 64) & 1 == 1
    }

    /// Only the plainest kind, with the fewest tags.
    pub(super) fn plainest(&self) -> Self {
        let mut one = Self::NONE;
        let kind = (0..KINDS.len()).find(|index| self.has(*index));
        let tags = (TAGS..TAGS + 3).find(|index| self.has(*index));
        for index in kind.into_iter().chain(tags) {
            one.words[index / 64] |= 1 << (index % 64);
        }
        one
    }

    /// The plainest kind in it, and the fewest tags.
    pub(super) fn first(&self) -> Option<(Kind, u8)> {
        let kind = (0..KINDS.len()).find(|index| self.has(*index)).and_then(|index| KINDS.get(index))?;
        let tags = (0..3u8).find(|tags| self.has(TAGS + usize::from(*tags)))?;
        Some((*kind, tags))
    }
}

/// Bits for sets of alternatives, not packets: no tag count is implied.
pub(super) fn alternatives(holds: impl Fn(usize) -> bool) -> Structure {
    let mut structure = Structure::NONE;
    for index in (0..KINDS.len()).chain(TAGS..TAGS + 3).filter(|index| holds(*index)) {
        structure.words[index / 64] |= 1 << (index % 64);
    }
    structure
}

/// Every packet.
pub(super) static ANY: LazyLock<Structure> = LazyLock::new(|| Structure::kinds(|_| true));

/// For each field the packets that have it.
static PRESENT: LazyLock<BTreeMap<Field, Structure>> = LazyLock::new(|| {
    let present = |field: Field| {
        let mut has = alternatives(|alternative| domain(alternative, field).is_some());
        // A field of a kind does not care for tags, and a field of a tag not for kinds.
        if is_of_tags(field) {
            has = has.or(&alternatives(|alternative| alternative < TAGS));
        } else {
            has.words[WORDS - 1] |= TAG_BITS;
        }
        (field, has)
    };
    Field::all().into_iter().map(present).collect()
});

/// The packets that have the field.
pub(super) fn present(field: Field) -> Structure {
    PRESENT.get(&field).copied().unwrap_or(Structure::NONE)
}

/// Whether the field is of the outer frame's tags.
pub(super) const fn is_of_tags(field: Field) -> bool {
    matches!(
        field,
        Field::VlanId(Level::Outer)
            | Field::VlanPriority(Level::Outer)
            | Field::VlanTpid(Level::Outer)
            | Field::SecondId(Level::Outer)
            | Field::SecondTpid(Level::Outer)
    )
}

/// All kinds, plain ones first, so that the first kind of a set makes the plainest packet.
static KINDS: LazyLock<Vec<Kind>> = LazyLock::new(|| {
    let mut kinds: Vec<Kind> = Vec::new();
    let plain = |packet| Kind { packet, tunnel: Tunnel::None, stack: None, inside: None };
    let none = Packet { network: Network::None, transport: Transport::None };
    let (v4, v6) = (ip_packets(&[Network::V4]), ip_packets(&[Network::V6, Network::V6Fragment]));
    kinds.extend(v4.iter().chain(&v6).chain([&none]).map(|packet| plain(*packet)));
    for network in [Network::V4, Network::V6] {
        let raw = plain(Packet { network, transport: Transport::None });
        let udp = plain(Packet { network, transport: Transport::Udp });
        kinds.push(Kind { tunnel: Tunnel::Esp, ..raw });
        let vxlan = Kind { tunnel: Tunnel::Vxlan, ..udp };
        kinds.extend(ethernet_insides().map(|inside| Kind { inside: Some(inside), ..vxlan }));
        kinds.push(vxlan);
        for key in [false, true] {
            let gre = Kind { tunnel: Tunnel::Gre { key }, ..raw };
            kinds.push(gre);
            let insides = ip_insides().chain(ethernet_insides());
            kinds.extend(insides.map(|inside| Kind { inside: Some(inside), ..gre }));
            kinds.extend(stacks(gre));
        }
        let in_ip = Kind { tunnel: Tunnel::IpInIp, ..raw };
        kinds.extend(ip_insides().map(|inside| Kind { inside: Some(inside), ..in_ip }));
        kinds.extend(stacks(udp));
    }
    kinds.extend(stacks(plain(none)));
    assert!(kinds.len() <= TAGS, "there is room for all kinds");
    kinds
});

fn ip_packets(networks: &[Network]) -> Vec<Packet> {
    let mut packets = Vec::new();
    for transport in [Transport::Tcp, Transport::Udp, Transport::None] {
        for network in networks.iter().copied() {
            // What is behind a fragment header is not read.
            if network != Network::V6Fragment || transport == Transport::None {
                packets.push(Packet { network, transport });
            }
        }
    }
    packets
}

/// Packets inside that begin with an IP header.
fn ip_insides() -> impl Iterator<Item = Inside> {
    let packets = ip_packets(&[Network::V4, Network::V6, Network::V6Fragment]);
    packets.into_iter().map(|packet| Inside { tags: None, packet, label: None })
}

/// Packets inside that begin with an Ethernet header.
fn ethernet_insides() -> impl Iterator<Item = Inside> {
    let none = Packet { network: Network::None, transport: Transport::None };
    let labels =
        [None, Some(TopLabel::Bottom), Some(TopLabel::Ttl), Some(TopLabel::Label), Some(TopLabel::Class)];
    let bare = labels.map(|label| Inside { tags: None, packet: none, label });
    let untagged: Vec<Inside> = ip_insides().chain(bare).collect();
    (0..3).flat_map(move |tags| {
        untagged.clone().into_iter().map(move |inside| Inside { tags: Some(tags), ..inside })
    })
}

/// What a label stack can make of a kind.
fn stacks(kind: Kind) -> Vec<Kind> {
    let mut kinds = Vec::new();
    for depth in 1..=MAX_MPLS_LABELS as u8 {
        let stacked = |bottom| Kind { stack: Some(Stack { depth, bottom }), ..kind };
        kinds.extend(ip_insides().map(|inside| Kind { inside: Some(inside), ..stacked(true) }));
        kinds.extend([stacked(true), stacked(false)]);
    }
    kinds
}

impl Kind {
    /// The packet at a level, with the tags of an inner Ethernet header.
    fn at(&self, level: Level) -> Option<(Packet, Option<u8>)> {
        match level {
            Level::Outer => Some((self.packet, None)),
            Level::Inner => self.inside.map(|inside| (inside.packet, inside.tags)),
        }
    }
}

type Ranges = Vec<(u128, u128)>;

fn these(values: &[u128]) -> Option<Ranges> {
    Some(values.iter().map(|value| (*value, *value)).collect())
}

fn up_to(most: u128) -> Option<Ranges> {
    Some(vec![(0, most)])
}

const MPLS_TYPES: [u128; 2] = [EtherType::MPLS.0 as u128, EtherType::MPLS_MULTICAST.0 as u128];
const TAG_TYPES: [u128; 3] =
    [EtherType::VLAN.0 as u128, EtherType::SVLAN.0 as u128, EtherType::QINQ.0 as u128];

/// The values that the field can have in an alternative, or `None` if it has no such field.
pub(super) fn domain(alternative: usize, field: Field) -> Option<Ranges> {
    if alternative >= TAGS {
        return is_of_tags(field).then(|| tag_domain((alternative - TAGS) as u8, field)).flatten();
    }
    KINDS.get(alternative).and_then(|kind| kind_domain(kind, field))
}

/// The values that the field can have in packets of a kind with so many outer tags.
pub(super) fn domain_of(kind: &Kind, tags: u8, field: Field) -> Option<Ranges> {
    if is_of_tags(field) { tag_domain(tags, field) } else { kind_domain(kind, field) }
}

fn kind_domain(kind: &Kind, field: Field) -> Option<Ranges> {
    match field {
        _ if is_of_tags(field) => None,
        Field::EspSpi | Field::EspSeq => (kind.tunnel == Tunnel::Esp).then(|| vec![(0, field.most())]),
        Field::Vni => (kind.tunnel == Tunnel::Vxlan).then(|| vec![(0, field.most())]),
        Field::GreKey => (kind.tunnel == Tunnel::Gre { key: true }).then(|| vec![(0, field.most())]),
        Field::GreFlags => match kind.tunnel {
            Tunnel::Gre { key } => gre_flags(key),
            _ => None,
        },
        Field::GreProtocol => match kind.tunnel {
            Tunnel::Gre { .. } => gre_protocol(kind),
            _ => None,
        },
        Field::Label(level, entry) | Field::LabelClass(level, entry) | Field::LabelTtl(level, entry) => {
            label_domain(kind, level, entry, field)
        }
        Field::Dst4(level)
        | Field::Src4(level)
        | Field::DstPort(level)
        | Field::SrcPort(level)
        | Field::Protocol(level)
        | Field::Dst6(level)
        | Field::Src6(level)
        | Field::DstMac(level)
        | Field::SrcMac(level)
        | Field::EtherType(level)
        | Field::VlanId(level)
        | Field::VlanPriority(level)
        | Field::VlanTpid(level)
        | Field::SecondId(level)
        | Field::SecondTpid(level)
        | Field::Tos(level)
        | Field::Ttl(level)
        | Field::FlowLabel(level)
        | Field::FlagsAndFragment(level)
        | Field::Fragment6(level)
        | Field::Options(level)
        | Field::TcpFlags(level) => packet_domain(kind, level, field),
    }
}

fn packet_domain(kind: &Kind, level: Level, field: Field) -> Option<Ranges> {
    let (packet, tags) = kind.at(level)?;
    let has_ethernet = level == Level::Outer || tags.is_some();
    let is_v4 = packet.network == Network::V4;
    let is_v6 = matches!(packet.network, Network::V6 | Network::V6Fragment);
    let free = || vec![(0, field.most())];
    match field {
        Field::DstMac(_) | Field::SrcMac(_) => has_ethernet.then(free),
        Field::EtherType(_) if has_ethernet => ether_types(kind, level, packet),
        Field::VlanId(_)
        | Field::VlanPriority(_)
        | Field::VlanTpid(_)
        | Field::SecondId(_)
        | Field::SecondTpid(_) => tag_domain(tags?, field),
        Field::Dst4(_) | Field::Src4(_) | Field::Options(_) => is_v4.then(free),
        Field::Dst6(_) | Field::Src6(_) | Field::FlowLabel(_) => is_v6.then(free),
        Field::Tos(_) | Field::Ttl(_) => (is_v4 || is_v6).then(free),
        Field::Protocol(_) if is_v4 || is_v6 => protocols(kind, level, packet),
        Field::FlagsAndFragment(_) if is_v4 => {
            // A later fragment has nothing that could be read behind its IP header.
            let is_plain =
                packet.transport == Transport::None && (level == Level::Inner || kind.tunnel == Tunnel::None);
            let codes = if is_plain { 0..24u128 } else { 0..16 };
            let fits = |code: &u128| match code / 8 {
                0 => code.is_multiple_of(2),
                1 => code % 2 == 1,
                _ => true,
            };
            Some(codes.filter(fits).map(|code| (code, code)).collect())
        }
        Field::Fragment6(_) => (packet.network == Network::V6Fragment).then(free),
        Field::TcpFlags(_) => (packet.transport == Transport::Tcp).then(free),
        Field::SrcPort(_) => (packet.transport != Transport::None).then(free),
        Field::DstPort(_) if packet.transport != Transport::None => match (level, kind.tunnel, kind.stack) {
            (Level::Outer, Tunnel::Vxlan, _) => these(&[VXLAN_UDP_PORT.into()]),
            (Level::Outer, Tunnel::None, Some(_)) => these(&[MPLS_UDP_PORT.into()]),
            _ => Some(free()),
        },
        _ => None,
    }
}

fn tag_domain(tags: u8, field: Field) -> Option<Ranges> {
    let needed = if matches!(field, Field::SecondId(_) | Field::SecondTpid(_)) { 2 } else { 1 };
    match field {
        _ if tags < needed => None,
        Field::VlanTpid(_) | Field::SecondTpid(_) => these(&TAG_TYPES),
        _ => up_to(field.most()),
    }
}

fn ether_types(kind: &Kind, level: Level, packet: Packet) -> Option<Ranges> {
    let has_label = match level {
        Level::Outer => kind.stack.is_some(),
        Level::Inner => kind.inside.is_some_and(|inside| inside.label.is_some()),
    };
    match packet.network {
        Network::None if has_label => these(&MPLS_TYPES),
        Network::None => up_to(u16::MAX.into()),
        Network::V4 => these(&[EtherType::IPV4.0.into()]),
        Network::V6 | Network::V6Fragment => these(&[EtherType::IPV6.0.into()]),
    }
}

fn protocols(kind: &Kind, level: Level, packet: Packet) -> Option<Ranges> {
    let inside = kind.inside.map(|inside| inside.packet.network);
    let tunnel = if level == Level::Outer { kind.tunnel } else { Tunnel::None };
    let protocol = match (packet.network, packet.transport, tunnel) {
        (Network::V6Fragment, ..) => IpProtocol::FRAGMENT,
        (_, Transport::Tcp, _) => IpProtocol::TCP,
        (_, Transport::Udp, _) => IpProtocol::UDP,
        (_, _, Tunnel::Esp) => IpProtocol::ESP,
        (_, _, Tunnel::Gre { .. }) => IpProtocol::GRE,
        (_, _, Tunnel::IpInIp) if inside == Some(Network::V4) => IpProtocol::IPV4,
        (_, _, Tunnel::IpInIp) => IpProtocol::IPV6,
        // A transport header that is cut off is none, so even 6 and 17 can stand here.
        _ => return up_to(u8::MAX.into()),
    };
    these(&[protocol.0.into()])
}

/// RFC 2784: without source routing (0x40), which `packet` refuses, and with the key bit telling the truth.
fn gre_flags(key: bool) -> Option<Ranges> {
    let flags = ByteSet::pattern(if key { 0x20 } else { 0 }, 0x60).ranges();
    Some(flags.ranges().iter().map(|(low, high)| ((*low).into(), (*high).into())).collect())
}

/// Transparent Ethernet bridging.
const BRIDGED_ETHERNET: u128 = 0x6558;

fn gre_protocol(kind: &Kind) -> Option<Ranges> {
    match (kind.stack, kind.inside) {
        (Some(_), _) => these(&MPLS_TYPES),
        // The type says what should be inside; it may be cut off.
        (None, None) => up_to(u16::MAX.into()),
        (None, Some(inside)) if inside.tags.is_some() => these(&[BRIDGED_ETHERNET]),
        (None, Some(inside)) if inside.packet.network == Network::V4 => these(&[EtherType::IPV4.0.into()]),
        (None, Some(_)) => these(&[EtherType::IPV6.0.into()]),
    }
}

fn label_domain(kind: &Kind, level: Level, entry: u8, field: Field) -> Option<Ranges> {
    if level == Level::Outer {
        return kind.stack.filter(|stack| entry < stack.depth).and_then(|_| up_to(field.most()));
    }
    let top = kind.inside?.label.filter(|_| entry == 0)?;
    let not_zero = Some(vec![(1, field.most())]);
    match (top, field) {
        (TopLabel::Bottom, _) => up_to(field.most()),
        (TopLabel::Ttl, Field::LabelTtl(..)) => not_zero,
        (TopLabel::Ttl, _) => up_to(field.most()),
        (TopLabel::Label, Field::Label(..)) => not_zero,
        (TopLabel::Label, Field::LabelTtl(..)) => these(&[0]),
        (TopLabel::Label, _) => up_to(field.most()),
        (TopLabel::Class, Field::LabelClass(..)) => not_zero,
        (TopLabel::Class, _) => these(&[0]),
    }
}
