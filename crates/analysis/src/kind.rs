//! The kinds of packets: every combination of headers that `packet` can find in a frame, in one list. Within
//! one kind each field is free of the others, so that a set of packets is a product; what one header implies
//! about another (an IPv4 header about the ethertype, a VXLAN header about the port) is in the field's domain.
//! The tags of the outer frame are free of all the rest and have alternatives of their own.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use packet::MAX_MPLS_LABELS;

use super::domain::{domain, is_of_tags};
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
pub(super) const TAGS: usize = 64 * WORDS - 3;
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

    /// How many kinds with their tags are in it.
    pub(super) fn len(&self) -> u32 {
        let last = self.words[WORDS - 1];
        let kinds = self.words[..WORDS - 1]
            .iter()
            .fold((last & !TAG_BITS).count_ones(), |all, word| all + word.count_ones());
        kinds * (last & TAG_BITS).count_ones()
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

/// All kinds, plain ones first, so that the first kind of a set makes the plainest packet.
pub(super) static KINDS: LazyLock<Vec<Kind>> = LazyLock::new(|| {
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
    pub(super) fn at(&self, level: Level) -> Option<(Packet, Option<u8>)> {
        match level {
            Level::Outer => Some((self.packet, None)),
            Level::Inner => self.inside.map(|inside| (inside.packet, inside.tags)),
        }
    }
}
