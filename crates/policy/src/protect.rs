//! Protected packets: those that must reach the host under every rule of a policy. The parser of `[protect]`
//! reads names of [`KINDS`], and `check` looks for the kinds that a default other than "kernel" leaves to
//! nobody.

use packet::{EtherType, Field, IpProtocol};
use program::{Addresses, Family, Match, RangeSet};

use crate::diagnostics::Place;

/// The kinds that `[protect]` protects unless its `protocols` lists others.
pub(crate) const DEFAULT_KINDS: [&str; 3] = ["arp", "nd", "ra"];

/// Packets that must reach the host.
#[derive(Clone, Debug)]
pub struct ProtectedMatch {
    /// The name in `[protect]`: that of a protocol, or the key.
    pub name: String,
    /// The packets.
    pub matches: Match,
    /// The place in the text that protects them.
    pub place: Place,
}

/// A kind of packet that hosts need and that is not one protocol number.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The name under `protocols`.
    pub name: &'static str,
    /// The name in messages.
    pub title: &'static str,
    /// The description, in one line.
    pub doc: &'static str,
    /// Whether a host needs only those to its own addresses and their groups.
    pub(crate) is_to_own_addresses: bool,
    matches: fn() -> Match,
}

impl Kind {
    /// The packets of the protocol.
    #[must_use]
    pub fn matches(&self) -> Match {
        (self.matches)()
    }

    /// The kind of that name.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        KINDS.iter().find(|kind| kind.name == name)
    }
}

/// The kinds that have names of their own.
pub static KINDS: [Kind; 6] = [
    Kind {
        name: "arp",
        title: "ARP",
        doc: "address resolution of IPv4",
        is_to_own_addresses: false,
        matches: || Match::default().with(Field::EtherType, RangeSet::single(EtherType::ARP.0.into())),
    },
    Kind {
        name: "nd",
        title: "IPv6 neighbour discovery",
        doc: "neighbour solicitations and advertisements of IPv6 (RFC 4861, types 135 and 136)",
        is_to_own_addresses: true,
        matches: || icmpv6(135, 136),
    },
    Kind {
        name: "ra",
        title: "IPv6 router advertisements",
        doc: "router advertisements of IPv6 (RFC 4861, type 134), which have a link-local source address",
        is_to_own_addresses: true,
        matches: || Match { src: Some(link_local()), ..icmpv6(134, 134) },
    },
    Kind {
        name: "dhcp",
        title: "DHCP",
        doc: "answers to DHCP clients: UDP to the ports 68 (RFC 2131) and 546 (RFC 8415)",
        is_to_own_addresses: false,
        matches: || to_ports(IpProtocol::UDP, vec![(68, 68), (546, 546)]),
    },
    Kind {
        name: "ssh",
        title: "SSH",
        doc: "TCP to port 22",
        is_to_own_addresses: false,
        matches: || to_ports(IpProtocol::TCP, vec![(22, 22)]),
    },
    Kind {
        name: "bfd",
        title: "BFD",
        doc: "bidirectional forwarding detection: UDP to the ports 3784, 3785 and 4784 (RFC 5881, RFC 5883)",
        is_to_own_addresses: false,
        matches: || to_ports(IpProtocol::UDP, vec![(3784, 3785), (4784, 4784)]),
    },
];

/// The kinds that `check` looks for under a default other than "kernel": without them an operator loses the
/// host.
pub fn needed_by_hosts() -> impl Iterator<Item = &'static Kind> {
    KINDS.iter().filter(|kind| kind.name != "bfd")
}

/// The destinations of neighbour discovery that a host with these addresses needs: the addresses themselves,
/// their solicited-node groups ff02::1:ff00:0/104 (RFC 4291, 2.7.1) and the group of all nodes.
pub(crate) fn destinations_of_host(own: &RangeSet<u128>) -> Addresses {
    const ALL_NODES: u128 = 0xff02 << 112 | 1;
    const SOLICITED: u128 = (ALL_NODES - 1) | 0x1_ff00_0000;
    const LOW_BITS: u128 = 0xff_ffff;
    let mut v6 = vec![(ALL_NODES, ALL_NODES)];
    for (first, last) in own.ranges() {
        let (low, high) = (first & LOW_BITS, last & LOW_BITS);
        let groups = match last - first >= LOW_BITS {
            true => vec![(0, LOW_BITS)],
            false if low <= high => vec![(low, high)],
            false => vec![(low, LOW_BITS), (0, high)],
        };
        v6.push((*first, *last));
        v6.extend(groups.into_iter().map(|(low, high)| (SOLICITED | low, SOLICITED | high)));
    }
    Addresses { v4: RangeSet::default(), v6: RangeSet::of(v6) }
}

/// fe80::/10, the source addresses of valid router advertisements (RFC 4861, 6.1.2).
fn link_local() -> Addresses {
    let (first, last) = (0xfe80 << 112, (0xfec0 << 112) - 1);
    Addresses { v4: RangeSet::default(), v6: RangeSet::of(vec![(first, last)]) }
}

fn icmpv6(low: u32, high: u32) -> Match {
    let matches = Match { family: Some(Family::V6), ..Match::default() };
    matches.with(Field::Icmpv6Type, RangeSet::of(vec![(low, high)]))
}

fn to_ports(protocol: IpProtocol, ports: Vec<(u32, u32)>) -> Match {
    Match::default()
        .with(Field::Protocol, RangeSet::single(protocol.0.into()))
        .with(Field::DstPort, RangeSet::of(ports))
}
