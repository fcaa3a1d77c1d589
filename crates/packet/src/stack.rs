//! Header stacks: which headers can follow which in a frame, as [`parse`](crate::parse()) and
//! [`parse_tunnel`](crate::parse_tunnel()) read them; which values a stack implies for each number in its
//! headers; and a frame of a stack. The analysis computes with sets of stacks, and every frame that is shown
//! to a user as an example is built here.
//!
//! A frame has exactly one stack and zero, one or two outer VLAN tags. Within one stack every number is
//! independent of the others: what one header implies about another (IPv4 about the EtherType, VXLAN about
//! the UDP port) is in the domain of the number.

use std::sync::LazyLock;

use crate::tunnel::BRIDGED_ETHERNET;
use crate::{
    EtherType, Field, GRE_HAS_KEY, Header, IpProtocol, MAX_MPLS_LABELS, MPLS_UDP_PORT, VXLAN_UDP_PORT,
};

mod frame;

/// The packet itself, or the packet inside its first tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// The packet itself.
    Outer,
    /// The packet inside.
    Inner,
}

impl Level {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Outer, Self::Inner];
}

/// A number in the headers of a packet: a header field, or what is not in the table of fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Coordinate {
    /// A header field, but for the IPv4 flags; fields of tunnel headers are of the outer packet.
    Field(Field, Level),
    /// IPv4: eight times 0 (whole), 1 (first fragment) or 2 (later fragment), plus the three flag bits. One
    /// number, because the lowest flag bit (more fragments) is not independent of the fragmentation.
    FlagsAndFragment(Level),
    /// IPv6 behind a fragment header: 0 the first fragment, 1 a later one.
    Fragment6(Level),
    /// Whether an IPv4 header has options.
    Options(Level),
    /// Part of an MPLS label stack entry, counted from the top; the packet inside has entry 0 only.
    Label(LabelPart, Level, u8),
}

/// Part of an MPLS label stack entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LabelPart {
    /// The label, 20 bits.
    Label,
    /// The traffic class, 3 bits.
    Class,
    /// The time to live, 8 bits.
    Ttl,
}

/// The code of [`Coordinate::FlagsAndFragment`] for an unfragmented packet, the first fragment, a later one.
pub const FRAGMENT_CODES: [u8; 3] = [0, 8, 16];

/// The network header that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Neither IPv4 nor IPv6.
    None,
    /// IPv4.
    V4,
    /// IPv6.
    V6,
    /// IPv6 with the fragment header of a real fragment.
    V6Fragment,
}

/// The transport header that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// None of these.
    None,
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP; not behind IPv6 extension headers.
    Sctp,
    /// ICMP behind IPv4, ICMPv6 behind IPv6.
    Icmp,
}

/// The headers of one packet behind Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketHeaders {
    /// The network header.
    pub network: Network,
    /// The transport header.
    pub transport: Transport,
    /// The transport header behind IPv6 extension headers; `None`: there are none, or they are inside a
    /// tunnel. Then `transport` is none.
    pub extended: Option<Transport>,
}

impl PacketHeaders {
    /// No header that is read.
    pub const NONE: Self = Self::of(Network::None, Transport::None);

    /// The headers of a packet without extension headers.
    const fn of(network: Network, transport: Transport) -> Self {
        Self { network, transport, extended: None }
    }

    /// Whether there is a TCP or UDP header.
    pub const fn has_ports(self) -> bool {
        matches!(self.transport, Transport::Tcp | Transport::Udp)
    }

    const fn is_v4(self) -> bool {
        matches!(self.network, Network::V4)
    }

    const fn is_v6(self) -> bool {
        matches!(self.network, Network::V6 | Network::V6Fragment)
    }
}

/// The header that makes a tunnel, label stacks apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tunnel {
    /// No tunnel, or a label stack alone.
    None,
    /// ESP.
    Esp,
    /// GRE.
    Gre {
        /// Whether it has a key.
        key: bool,
    },
    /// VXLAN.
    Vxlan,
    /// IP in IP.
    IpInIp,
}

/// An MPLS label stack, as far as it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelStack {
    /// How many entries are read.
    pub depth: u8,
    /// Whether the last entry that is read is the last of the stack.
    pub bottom: bool,
}

/// The label behind an inner Ethernet header. [`TunnelKey`](crate::TunnelKey) marks its absence by an entry
/// of 0, so the ways of not being 0 are distinguished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InnerLabel {
    /// The bottom bit is set.
    Bottom,
    /// The packet is not, and the TTL is not 0.
    Ttl,
    /// Neither, and the label is not 0.
    Label,
    /// None of them, and the traffic class is not 0.
    Class,
}

/// The packet inside a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InnerPacket {
    /// How many VLAN tags its Ethernet header has; `None`: there is no Ethernet header.
    pub tags: Option<u8>,
    /// The headers of the packet.
    pub headers: PacketHeaders,
    /// The label behind its Ethernet header.
    pub label: Option<InnerLabel>,
}

/// All headers of a frame, but for the VLAN tags of the outer Ethernet header, which are independent of all
/// others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderStack {
    /// The headers of the packet itself.
    pub outer: PacketHeaders,
    /// The tunnel header.
    pub tunnel: Tunnel,
    /// The label stack.
    pub labels: Option<LabelStack>,
    /// The packet inside.
    pub inner: Option<InnerPacket>,
}

/// The most VLAN tags that are read.
pub const MAX_TAGS: u8 = 2;

/// Inclusive ranges of values, sorted.
pub type ValueRanges = Vec<(u128, u128)>;

/// The numbers of IPv6 extension headers.
static EXTENSIONS: LazyLock<ValueRanges> =
    LazyLock::new(|| these(&IpProtocol::EXTENSION_HEADERS.map(|header| header.0.into())));
/// The other numbers of IPv6 headers.
static NO_EXTENSIONS: LazyLock<ValueRanges> = LazyLock::new(|| {
    let mut others: ValueRanges = Vec::new();
    for protocol in (0..=u8::MAX).filter(|protocol| !IpProtocol(*protocol).is_extension_header()) {
        let protocol = u128::from(protocol);
        match others.last_mut() {
            Some((_, last)) if *last + 1 == protocol => *last = protocol,
            _ => others.push((protocol, protocol)),
        }
    }
    others
});

const MPLS_TYPES: [u128; 2] = [EtherType::MPLS.0 as u128, EtherType::MPLS_MULTICAST.0 as u128];
const TAG_TYPES: [u128; 3] =
    [EtherType::VLAN.0 as u128, EtherType::SVLAN.0 as u128, EtherType::QINQ.0 as u128];

impl Coordinate {
    /// Every coordinate.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for level in Level::ALL {
            let fields = Field::all().filter(|field| {
                *field != Field::IpFlags && (level == Level::Outer || field.row().header.is_inside_tunnels())
            });
            all.extend(fields.map(|field| Self::Field(field, level)));
            all.extend([Self::FlagsAndFragment(level), Self::Fragment6(level), Self::Options(level)]);
            let labels = if level == Level::Outer { MAX_MPLS_LABELS as u8 } else { 1 };
            for part in [LabelPart::Label, LabelPart::Class, LabelPart::Ttl] {
                all.extend((0..labels).map(|entry| Self::Label(part, level, entry)));
            }
        }
        all
    }

    /// The largest value that fits its bits.
    pub const fn max(self) -> u128 {
        match self {
            Self::Field(field, _) => field.max(),
            Self::FlagsAndFragment(_) => 0x1f,
            Self::Fragment6(_) | Self::Options(_) => 1,
            Self::Label(LabelPart::Label, ..) => 0xf_ffff,
            Self::Label(LabelPart::Class, ..) => 7,
            Self::Label(LabelPart::Ttl, ..) => 0xff,
        }
    }

    /// Whether it is in a VLAN tag of the outer frame.
    pub const fn is_in_outer_tag(self) -> bool {
        match self {
            Self::Field(field, Level::Outer) => {
                matches!(field.row().header, Header::Vlan | Header::InnerVlan)
            }
            _ => false,
        }
    }

    /// A value that is common in packets, or reserved for examples (addresses: RFC 5737 and 3849).
    pub const fn usual(self) -> u128 {
        match self {
            Self::Field(field, _) => usual(field),
            Self::Label(LabelPart::Label, ..) => 16,
            Self::Label(LabelPart::Ttl, ..) => 64,
            _ => 0,
        }
    }
}

const fn usual(field: Field) -> u128 {
    match field {
        Field::SrcV4 => 0xc000_0201,
        Field::DstV4 => 0xc633_6401,
        Field::SrcV6 => 0x2001_0db8 << 96 | 1,
        Field::DstV6 => 0x2001_0db8 << 96 | 2,
        Field::SrcPort | Field::SctpSrcPort | Field::ExtSrcPort => 49_152,
        Field::DstPort | Field::SctpDstPort | Field::ExtDstPort => 9,
        Field::SrcMac => 0x0200_0000_0001,
        Field::DstMac => 0x0200_0000_0002,
        // For experiments: IEEE 802 local, RFC 3692.
        Field::EtherType | Field::GreProtocol => 0x88b5,
        Field::Protocol | Field::ExtProtocol => 253,
        Field::VlanTpid | Field::InnerVlanTpid => EtherType::VLAN.0 as u128,
        Field::VlanId | Field::InnerVlanId => 1,
        Field::Ttl => 64,
        Field::TcpFlags | Field::ExtTcpFlags => 0x10,
        _ => 0,
    }
}

/// All stacks, plain ones first, so that the first of a set makes the plainest packet.
static STACKS: LazyLock<Vec<HeaderStack>> = LazyLock::new(|| {
    let mut stacks: Vec<HeaderStack> = Vec::new();
    let plain = |outer| HeaderStack { outer, tunnel: Tunnel::None, labels: None, inner: None };
    let (v4, v6) = (ip_packets(&[Network::V4]), ip_packets(&[Network::V6]));
    stacks.extend(v4.iter().chain(&v6).chain([&PacketHeaders::NONE]).map(|headers| plain(*headers)));
    for network in [Network::V6, Network::V6Fragment] {
        let behind = TRANSPORTS.into_iter().filter(|behind| *behind != Transport::Sctp);
        let extended = behind.map(|behind| PacketHeaders {
            extended: Some(behind),
            ..PacketHeaders::of(network, Transport::None)
        });
        stacks.extend(extended.map(plain));
    }
    for network in [Network::V4, Network::V6] {
        let raw = plain(PacketHeaders::of(network, Transport::None));
        let udp = plain(PacketHeaders::of(network, Transport::Udp));
        stacks.push(HeaderStack { tunnel: Tunnel::Esp, ..raw });
        let vxlan = HeaderStack { tunnel: Tunnel::Vxlan, ..udp };
        stacks.extend(ethernet_insides().map(|inner| HeaderStack { inner: Some(inner), ..vxlan }));
        stacks.push(vxlan);
        for key in [false, true] {
            let gre = HeaderStack { tunnel: Tunnel::Gre { key }, ..raw };
            stacks.push(gre);
            let insides = ip_insides().chain(ethernet_insides());
            stacks.extend(insides.map(|inner| HeaderStack { inner: Some(inner), ..gre }));
            stacks.extend(labelled(gre));
        }
        let in_ip = HeaderStack { tunnel: Tunnel::IpInIp, ..raw };
        stacks.extend(ip_insides().map(|inner| HeaderStack { inner: Some(inner), ..in_ip }));
        stacks.extend(labelled(udp));
    }
    stacks.extend(labelled(plain(PacketHeaders::NONE)));
    stacks
});

const TRANSPORTS: [Transport; 5] =
    [Transport::Tcp, Transport::Udp, Transport::Icmp, Transport::None, Transport::Sctp];

fn ip_packets(networks: &[Network]) -> Vec<PacketHeaders> {
    let mut packets = Vec::new();
    for transport in TRANSPORTS {
        for network in networks.iter().copied() {
            // What is behind a fragment header inside a tunnel is not read.
            if network != Network::V6Fragment || transport == Transport::None {
                packets.push(PacketHeaders::of(network, transport));
            }
        }
    }
    packets
}

/// Packets inside that begin with an IP header.
fn ip_insides() -> impl Iterator<Item = InnerPacket> {
    let packets = ip_packets(&[Network::V4, Network::V6, Network::V6Fragment]);
    packets.into_iter().map(|headers| InnerPacket { tags: None, headers, label: None })
}

/// Packets inside that begin with an Ethernet header.
fn ethernet_insides() -> impl Iterator<Item = InnerPacket> {
    let labels = [
        None,
        Some(InnerLabel::Bottom),
        Some(InnerLabel::Ttl),
        Some(InnerLabel::Label),
        Some(InnerLabel::Class),
    ];
    let bare = labels.map(|label| InnerPacket { tags: None, headers: PacketHeaders::NONE, label });
    let untagged: Vec<InnerPacket> = ip_insides().chain(bare).collect();
    (0..=MAX_TAGS).flat_map(move |tags| {
        untagged.clone().into_iter().map(move |inner| InnerPacket { tags: Some(tags), ..inner })
    })
}

/// The stacks that continue with MPLS labels.
fn labelled(stack: HeaderStack) -> Vec<HeaderStack> {
    let mut stacks = Vec::new();
    for depth in 1..=MAX_MPLS_LABELS as u8 {
        let with = |bottom| HeaderStack { labels: Some(LabelStack { depth, bottom }), ..stack };
        stacks.extend(ip_insides().map(|inner| HeaderStack { inner: Some(inner), ..with(true) }));
        stacks.extend([with(true), with(false)]);
    }
    stacks
}

fn these(values: &[u128]) -> ValueRanges {
    values.iter().map(|value| (*value, *value)).collect()
}

impl HeaderStack {
    /// All stacks, plain ones first.
    pub fn all() -> &'static [Self] {
        &STACKS
    }

    /// The headers of the packet at a level.
    pub fn headers(&self, level: Level) -> Option<PacketHeaders> {
        match level {
            Level::Outer => Some(self.outer),
            Level::Inner => self.inner.map(|inner| inner.headers),
        }
    }

    /// Whether a frame of this stack with so many outer tags has a header.
    pub fn has(&self, outer_tags: u8, header: Header, level: Level) -> bool {
        let Some(headers) = self.headers(level) else { return false };
        let tags = match level {
            Level::Outer => Some(outer_tags),
            Level::Inner => self.inner.and_then(|inner| inner.tags),
        };
        match header {
            Header::Ethernet => tags.is_some(),
            Header::Vlan => tags.is_some_and(|tags| tags > 0),
            Header::InnerVlan => tags.is_some_and(|tags| tags > 1),
            Header::Ip => headers.network != Network::None,
            Header::Ipv4 => headers.is_v4(),
            Header::Ipv6 => headers.is_v6(),
            Header::Ports => headers.has_ports(),
            Header::Tcp => headers.transport == Transport::Tcp,
            Header::Sctp => headers.transport == Transport::Sctp,
            Header::Icmp => headers.transport == Transport::Icmp && headers.is_v4(),
            Header::Icmpv6 => headers.transport == Transport::Icmp && headers.is_v6(),
            Header::Extended => headers.extended.is_some(),
            Header::ExtendedPorts => matches!(headers.extended, Some(Transport::Tcp | Transport::Udp)),
            Header::ExtendedTcp => headers.extended == Some(Transport::Tcp),
            Header::ExtendedIcmpv6 => headers.extended == Some(Transport::Icmp),
            Header::Esp => level == Level::Outer && self.tunnel == Tunnel::Esp,
            Header::Vxlan => level == Level::Outer && self.tunnel == Tunnel::Vxlan,
            Header::Gre => level == Level::Outer && matches!(self.tunnel, Tunnel::Gre { .. }),
            Header::GreKey => level == Level::Outer && self.tunnel == Tunnel::Gre { key: true },
        }
    }

    /// The values that a number can have in frames of this stack with so many outer tags, or `None` if they
    /// have no such number.
    pub fn domain(&self, outer_tags: u8, coordinate: Coordinate) -> Option<ValueRanges> {
        let all = || vec![(0, coordinate.max())];
        match coordinate {
            Coordinate::Field(field, level) => {
                let header = field.row().header;
                self.has(outer_tags, header, level).then(|| self.implied(field, level).unwrap_or_else(all))
            }
            Coordinate::FlagsAndFragment(level) => {
                let headers = self.headers(level).filter(|headers| headers.is_v4())?;
                // A later fragment has nothing that could be read behind its IP header.
                let is_plain = headers.transport == Transport::None
                    && (level == Level::Inner || self.tunnel == Tunnel::None);
                let codes = if is_plain { 0..24u128 } else { 0..16 };
                let is_possible = |code: &u128| match code / 8 {
                    0 => code.is_multiple_of(2),
                    1 => code % 2 == 1,
                    _ => true,
                };
                Some(codes.filter(is_possible).map(|code| (code, code)).collect())
            }
            Coordinate::Fragment6(level) => {
                let headers = self.headers(level).filter(|headers| headers.network == Network::V6Fragment)?;
                // A later fragment has no transport header.
                let is_first = headers.extended.is_some_and(|behind| behind != Transport::None);
                Some(if is_first { these(&[0]) } else { all() })
            }
            Coordinate::Options(level) => self.headers(level)?.is_v4().then(all),
            Coordinate::Label(_, Level::Outer, entry) => {
                self.labels.is_some_and(|labels| entry < labels.depth).then(all)
            }
            Coordinate::Label(part, Level::Inner, entry) => {
                let label = self.inner?.label.filter(|_| entry == 0)?;
                let not_zero = || vec![(1, coordinate.max())];
                Some(match (label, part) {
                    (InnerLabel::Bottom, _) => all(),
                    (InnerLabel::Ttl, LabelPart::Ttl)
                    | (InnerLabel::Label, LabelPart::Label)
                    | (InnerLabel::Class, LabelPart::Class) => not_zero(),
                    (InnerLabel::Label, LabelPart::Ttl) | (InnerLabel::Class, _) => these(&[0]),
                    (InnerLabel::Ttl | InnerLabel::Label, _) => all(),
                })
            }
        }
    }

    /// The values that the other headers imply for a field whose header is there; `None`: any.
    fn implied(&self, field: Field, level: Level) -> Option<ValueRanges> {
        let headers = self.headers(level)?;
        match field {
            Field::EtherType => match headers.network {
                Network::V4 => Some(these(&[EtherType::IPV4.0.into()])),
                Network::V6 | Network::V6Fragment => Some(these(&[EtherType::IPV6.0.into()])),
                Network::None => {
                    let has_label = match level {
                        Level::Outer => self.labels.is_some(),
                        Level::Inner => self.inner?.label.is_some(),
                    };
                    has_label.then(|| these(&MPLS_TYPES))
                }
            },
            Field::VlanTpid | Field::InnerVlanTpid => Some(these(&TAG_TYPES)),
            Field::Protocol => match self.protocol(headers, level) {
                Some(protocol) => Some(these(&[protocol.0.into()])),
                None if headers.extended.is_some() => Some(EXTENSIONS.clone()),
                None if level == Level::Outer && headers.is_v6() => Some(NO_EXTENSIONS.clone()),
                None => None,
            },
            Field::ExtProtocol => match headers.extended? {
                Transport::Tcp => Some(these(&[IpProtocol::TCP.0.into()])),
                Transport::Udp => Some(these(&[IpProtocol::UDP.0.into()])),
                Transport::Icmp => Some(these(&[IpProtocol::ICMPV6.0.into()])),
                // Any, since headers may be cut off.
                Transport::None | Transport::Sctp => None,
            },
            Field::DstPort if level == Level::Outer => match (self.tunnel, self.labels) {
                (Tunnel::Vxlan, _) => Some(these(&[VXLAN_UDP_PORT.into()])),
                (Tunnel::None, Some(_)) => Some(these(&[MPLS_UDP_PORT.into()])),
                _ => None,
            },
            // Without source routing (RFC 2784), and with the key bit according to the key.
            Field::GreFlags => {
                let key =
                    if self.tunnel == (Tunnel::Gre { key: true }) { u128::from(GRE_HAS_KEY) } else { 0 };
                Some([key, key | 0x80].map(|low| (low, low | 0x1f)).to_vec())
            }
            Field::GreProtocol => match (self.labels, self.inner) {
                (Some(_), _) => Some(these(&MPLS_TYPES)),
                // The type says what should be inside; it may be cut off.
                (None, None) => None,
                (None, Some(inner)) if inner.tags.is_some() => Some(these(&[BRIDGED_ETHERNET.0.into()])),
                (None, Some(inner)) if inner.headers.is_v4() => Some(these(&[EtherType::IPV4.0.into()])),
                (None, Some(_)) => Some(these(&[EtherType::IPV6.0.into()])),
            },
            _ => None,
        }
    }

    fn protocol(&self, headers: PacketHeaders, level: Level) -> Option<IpProtocol> {
        let tunnel = if level == Level::Outer { self.tunnel } else { Tunnel::None };
        match (headers.network, headers.transport, tunnel) {
            (Network::V6Fragment, ..) => Some(IpProtocol::FRAGMENT),
            (_, Transport::Tcp, _) => Some(IpProtocol::TCP),
            (_, Transport::Udp, _) => Some(IpProtocol::UDP),
            (_, Transport::Sctp, _) => Some(IpProtocol::SCTP),
            (Network::V4, Transport::Icmp, _) => Some(IpProtocol::ICMP),
            (_, Transport::Icmp, _) => Some(IpProtocol::ICMPV6),
            (_, _, Tunnel::Esp) => Some(IpProtocol::ESP),
            (_, _, Tunnel::Gre { .. }) => Some(IpProtocol::GRE),
            (_, _, Tunnel::IpInIp) if self.inner.is_some_and(|inner| inner.headers.is_v4()) => {
                Some(IpProtocol::IPV4)
            }
            (_, _, Tunnel::IpInIp) => Some(IpProtocol::IPV6),
            // A transport header that is cut off is not read, so even 6, 17 and 132 are possible here.
            _ => None,
        }
    }

    /// The usual value of a number in frames of this stack, or the least possible one.
    pub fn usual(&self, outer_tags: u8, coordinate: Coordinate) -> u128 {
        let domain = self.domain(outer_tags, coordinate).unwrap_or_default();
        pick(&domain, &[(0, coordinate.max())], coordinate.usual())
    }
}

/// The least value that is in both sets of ranges, but `usual` if that is in both; 0 if none is.
pub fn pick(domain: &[(u128, u128)], values: &[(u128, u128)], usual: u128) -> u128 {
    let mut least = None;
    for (low, high) in domain {
        for (from, to) in values {
            let both = (*low.max(from), *high.min(to));
            if both.0 <= both.1 {
                if (both.0..=both.1).contains(&usual) {
                    return usual;
                }
                least = Some(least.map_or(both.0, |least: u128| least.min(both.0)));
            }
        }
    }
    least.unwrap_or(0)
}

#[cfg(test)]
mod tests;
