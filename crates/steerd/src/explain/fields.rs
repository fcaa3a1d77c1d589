//! A packet described by its fields ("src=10.0.0.1,protocol=udp,dst_port=53") or in hexadecimal, as the
//! key that policies match. Only `explain` uses it; what is contradictory is an error, never guessed. The
//! fields of tunnels are in `tunnel`.

use std::net::IpAddr;

use packet::{DeepKey, EtherType, FlowKey, IP_FLAGS, IpProtocol, Layers, MacAddr, TCP_FLAGS};

use super::given::{Given, IP_FIELDS, IPV6_FIELDS};
use super::tunnel;

/// Who the packet is for when nobody says: a locally administered address.
const DEFAULT_DST_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const DEFAULT_SRC_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const DEFAULT_TTL: u8 = 64;
/// A segment within a connection.
const DEFAULT_TCP_FLAGS: u8 = 0x10;
const MORE_FRAGMENTS: u8 = 1;
const TAG_PROTOCOLS: [EtherType; 3] = [EtherType::VLAN, EtherType::SVLAN, EtherType::QINQ];
/// The largest frame that `--hex` takes: an IP packet of full length behind two tags.
const MAX_FRAME_BYTES: usize = 65_535 + 22;

/// The key of the packet that `text` describes.
pub(super) fn key_of_fields(text: &str) -> Result<DeepKey, String> {
    tunnel::deep_key(&Given::read(text)?)
}

/// The key of one packet, as far as its own headers go.
pub(super) fn packet_key(given: &Given<'_>) -> Result<FlowKey, String> {
    let mut key = FlowKey {
        dst_mac: given.value("dst_mac", "a MAC address")?.unwrap_or(DEFAULT_DST_MAC),
        src_mac: given.value("src_mac", "a MAC address")?.unwrap_or(DEFAULT_SRC_MAC),
        ..FlowKey::default()
    };
    tags(given, &mut key)?;
    match ip_version(given)? {
        Some(version) => network(given, version, &mut key)?,
        None => {
            let ether_type = given.ether_type("ethertype")?;
            let ether_type = ether_type.ok_or("an ethertype, an address or a protocol is needed")?;
            if TAG_PROTOCOLS.contains(&ether_type) {
                return Err(format!(
                    "ethertype: {ether_type} is a VLAN tag, write vlan and what is behind it"
                ));
            }
            key.ether_type = ether_type.0;
        }
    }
    Ok(key)
}

fn tags(given: &Given<'_>, key: &mut FlowKey) -> Result<(), String> {
    let Some(id) = given.short("vlan", 4095)? else {
        return match given.any(&["vlan_priority", "vlan_tpid", "inner_vlan", "inner_vlan_tpid"]) {
            Some(name) => Err(format!("{name} needs vlan")),
            None => Ok(()),
        };
    };
    let priority = given.short("vlan_priority", 7)?.unwrap_or(0);
    key.layers |= Layers::VLAN;
    key.vlan_tci = priority << 13 | id;
    key.vlan_tpid = tag_protocol(given, "vlan_tpid")?.unwrap_or(EtherType::VLAN).0;
    let inner_tpid = tag_protocol(given, "inner_vlan_tpid")?;
    if let Some(inner) = given.short("inner_vlan", 4095)? {
        key.layers |= Layers::INNER_VLAN;
        key.inner_vlan_tci = inner;
        key.inner_vlan_tpid = inner_tpid.unwrap_or(EtherType::VLAN).0;
    } else if inner_tpid.is_some() {
        return Err("inner_vlan_tpid needs inner_vlan".into());
    }
    Ok(())
}

/// Of the types that are read as tags.
fn tag_protocol(given: &Given<'_>, name: &str) -> Result<Option<EtherType>, String> {
    match given.ether_type(name)? {
        Some(other) if !TAG_PROTOCOLS.contains(&other) => {
            Err(format!("{name}: {other} is of no VLAN tag (hint: 0x8100, 0x88a8 or 0x9100)"))
        }
        known => Ok(known),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IpVersion {
    V4,
    V6,
}

impl IpVersion {
    fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// From the addresses, the family or the ethertype, which must agree; IPv4 if only a protocol is given.
fn ip_version(given: &Given<'_>) -> Result<Option<IpVersion>, String> {
    let mut versions = Vec::new();
    for name in ["src", "dst"] {
        versions.extend(given.value::<IpAddr>(name, "an IP address")?.map(IpVersion::of));
    }
    match given.text("family") {
        None => {}
        Some("ipv4") => versions.push(IpVersion::V4),
        Some("ipv6") => versions.push(IpVersion::V6),
        Some(other) => return Err(format!("family: \"{other}\" is neither ipv4 nor ipv6")),
    }
    let ether_type = given.ether_type("ethertype")?;
    match ether_type {
        None => {}
        Some(EtherType::IPV4) => versions.push(IpVersion::V4),
        Some(EtherType::IPV6) => versions.push(IpVersion::V6),
        Some(other) if !versions.is_empty() => return Err(format!("ethertype {other} has no IP addresses")),
        Some(_) => {}
    }
    match (versions.first(), given.any(IP_FIELDS), ether_type) {
        (Some(first), _, _) if versions.iter().any(|version| version != first) => {
            Err("the fields mix IPv4 and IPv6".into())
        }
        (Some(first), _, _) => Ok(Some(*first)),
        (None, Some(name), Some(ether_type)) => Err(format!("{name} needs IP, not ethertype {ether_type}")),
        (None, Some(_), None) if given.any(IPV6_FIELDS).is_some() => Ok(Some(IpVersion::V6)),
        (None, Some(_), None) => Ok(Some(IpVersion::V4)),
        (None, None, _) => Ok(None),
    }
}

fn network(given: &Given<'_>, version: IpVersion, key: &mut FlowKey) -> Result<(), String> {
    let (layer, ether_type) = match version {
        IpVersion::V4 => (Layers::IPV4, EtherType::IPV4),
        IpVersion::V6 => (Layers::IPV6, EtherType::IPV6),
    };
    key.layers |= layer;
    key.ether_type = ether_type.0;
    for (name, place) in [("src", &mut key.src_ip), ("dst", &mut key.dst_ip)] {
        match given.value::<IpAddr>(name, "an IP address")? {
            Some(IpAddr::V4(address)) => place[..4].copy_from_slice(&address.octets()),
            Some(IpAddr::V6(address)) => *place = address.octets(),
            None => {}
        }
    }
    if let Some(name) = given.any(IPV6_FIELDS).filter(|_| version == IpVersion::V4) {
        return Err(format!("{name} is IPv6's"));
    }
    key.tos = service(given)?;
    let limit = one_of(given, &["ttl", "hop_limit"])?;
    key.ttl = limit.map(|name| given.byte(name, 255)).transpose()?.flatten().unwrap_or(DEFAULT_TTL);
    own_flags(given, version, key)?;
    let protocol = given.value::<IpProtocol>("protocol", "a protocol such as udp or a number")?;
    let protocol = match (protocol, given.any(&["src_port", "dst_port", "tcp_flags"])) {
        (None, Some(name)) => return Err(format!("{name} needs protocol=tcp or protocol=udp")),
        (protocol, _) => protocol.unwrap_or(if version == IpVersion::V4 {
            IpProtocol(253)
        } else {
            IpProtocol::NO_NEXT_HEADER
        }),
    };
    key.protocol = protocol.0;
    if given.value::<bool>("ip_options", "true or false")? == Some(true) {
        if version == IpVersion::V6 {
            return Err("ip_options is IPv4's".into());
        }
        key.layers |= Layers::IP_OPTIONS;
    }
    if fragment(given, version, key)? { transport(given, protocol, key) } else { no_ports(given) }
}

/// The name that is given of several for one field.
fn one_of(given: &Given<'_>, names: &[&'static str]) -> Result<Option<&'static str>, String> {
    let mut named = names.iter().copied().filter(|name| given.text(name).is_some());
    match (named.next(), named.next()) {
        (Some(first), Some(second)) => Err(format!("{second}: {first} is the same field, give one of them")),
        (first, _) => Ok(first),
    }
}

/// Type of service or traffic class, whole or in its two parts.
fn service(given: &Given<'_>) -> Result<u8, String> {
    let whole = one_of(given, &["tos", "traffic_class"])?;
    let parts = given.any(&["dscp", "ecn"]);
    match (whole, parts) {
        (Some(whole), Some(part)) => Err(format!("{part}: {whole} is all of that field, give one of them")),
        (Some(whole), None) => Ok(given.byte(whole, 255)?.unwrap_or(0)),
        _ => Ok(given.byte("dscp", 63)?.unwrap_or(0) << 2 | given.byte("ecn", 3)?.unwrap_or(0)),
    }
}

/// What one of the versions has alone.
fn own_flags(given: &Given<'_>, version: IpVersion, key: &mut FlowKey) -> Result<(), String> {
    key.flow_label = given.number("flow_label", 0xf_ffff)?.unwrap_or(0);
    match given.flags("ip_flags", &IP_FLAGS)? {
        Some(_) if version == IpVersion::V6 => return Err("ip_flags is IPv4's".into()),
        Some(flags)
            if flags & MORE_FRAGMENTS != 0 && given.text("fragment").is_none_or(|is| is == "none") =>
        {
            return Err("ip_flags: more fragments follow a fragment only: add fragment=first".into());
        }
        flags => key.ip_flags = flags.unwrap_or(0),
    }
    Ok(())
}

/// Whether the packet still has its transport header.
fn fragment(given: &Given<'_>, version: IpVersion, key: &mut FlowKey) -> Result<bool, String> {
    let later = match given.text("fragment") {
        None | Some("none") => return Ok(true),
        Some("first") => false,
        Some("later") => true,
        Some(other) => return Err(format!("fragment: \"{other}\" is not none, first or later")),
    };
    key.layers |= if later { Layers::FRAGMENT | Layers::LATER_FRAGMENT } else { Layers::FRAGMENT };
    if version == IpVersion::V6 {
        // The first next header is the fragment header: ports are behind it, out of a parser's sight.
        key.protocol = IpProtocol::FRAGMENT.0;
        return Ok(false);
    }
    if !later {
        key.ip_flags |= MORE_FRAGMENTS;
    }
    Ok(!later)
}

fn transport(given: &Given<'_>, protocol: IpProtocol, key: &mut FlowKey) -> Result<(), String> {
    key.layers |= match protocol {
        IpProtocol::TCP => Layers::TCP,
        IpProtocol::UDP => Layers::UDP,
        _ => return no_ports(given),
    };
    key.src_port = given.short("src_port", u16::MAX)?.unwrap_or(0);
    key.dst_port = given.short("dst_port", u16::MAX)?.unwrap_or(0);
    match given.text("tcp_flags") {
        Some(_) if protocol != IpProtocol::TCP => return Err("tcp_flags needs protocol=tcp".into()),
        Some(_) => key.tcp_flags = given.flags("tcp_flags", &TCP_FLAGS)?.unwrap_or(0),
        None if protocol == IpProtocol::TCP => key.tcp_flags = DEFAULT_TCP_FLAGS,
        None => {}
    }
    Ok(())
}

fn no_ports(given: &Given<'_>) -> Result<(), String> {
    match given.any(&["src_port", "dst_port", "tcp_flags"]) {
        Some(name) => Err(format!("{name}: such a packet has no TCP or UDP header")),
        None => Ok(()),
    }
}

/// A frame written in hexadecimal; blanks, colons and dashes between digits are ignored.
pub(super) fn frame_of_hex(text: &str) -> Result<Vec<u8>, String> {
    let mut digits = Vec::new();
    for c in text.chars().filter(|c| !c.is_whitespace() && !matches!(c, ':' | '-')) {
        let digit = c.to_digit(16).ok_or_else(|| format!("'{c}' is not a hexadecimal digit"))?;
        digits.push(u8::try_from(digit).unwrap_or(0));
    }
    if digits.len() % 2 == 1 {
        return Err("an odd number of hexadecimal digits".into());
    }
    let frame: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    match frame.len() {
        0 => Err("the frame is empty".into()),
        bytes if bytes > MAX_FRAME_BYTES => {
            Err(format!("{bytes} bytes are more than the {MAX_FRAME_BYTES} a frame can have"))
        }
        _ => Ok(frame),
    }
}

#[cfg(test)]
mod tests;
