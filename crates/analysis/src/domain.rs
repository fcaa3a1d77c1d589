//! The values that each field can have in each kind of packet: what one header implies about another. `axes` cuts
//! by them and `witness` picks from them; what kinds there are is said in `kind`.

use packet::{EtherType, IpProtocol, MPLS_UDP_PORT, VXLAN_UDP_PORT};
use program::ByteSet;

use super::field::{Field, Level};
use super::kind::{KINDS, Kind, Network, Packet, TAGS, TopLabel, Transport, Tunnel};

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

pub(super) type Ranges = Vec<(u128, u128)>;

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
