//! A packet described by its fields ("src=10.0.0.1,protocol=udp,dst_port=53") or in hexadecimal, as the
//! key that policies match. Only `explain` uses it; what is contradictory is an error, never guessed. The
//! fields of tunnels are in `tunnel`.

use std::net::IpAddr;

use packet::{DeepKey, EtherType, FlowKey, IpProtocol, Layers, MacAddr};

use super::tunnel;

/// Who the packet is for when nobody says: a locally administered address.
const DEFAULT_DST_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const DEFAULT_SRC_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const DEFAULT_TTL: u8 = 64;
/// A segment within a connection.
const DEFAULT_TCP_FLAGS: u8 = 0x10;
const MORE_FRAGMENTS: u8 = 1;
/// The largest frame that `--hex` takes: an IP packet of full length behind two tags.
const MAX_FRAME_BYTES: usize = 65_535 + 22;

const FIELDS: &[&str] = &[
    "src",
    "dst",
    "family",
    "protocol",
    "src_port",
    "dst_port",
    "tcp_flags",
    "tos",
    "dscp",
    "ttl",
    "flow_label",
    "ip_flags",
    "fragment",
    "ip_options",
    "vlan",
    "vlan_priority",
    "vlan_tpid",
    "inner_vlan",
    "src_mac",
    "dst_mac",
    "ethertype",
];
const TCP_FLAGS: [(&str, u8); 8] =
    [("fin", 1), ("syn", 2), ("rst", 4), ("psh", 8), ("ack", 16), ("urg", 32), ("ece", 64), ("cwr", 128)];
const IP_FLAGS: [(&str, u8); 3] = [("mf", MORE_FRAGMENTS), ("df", 2), ("reserved", 4)];

/// The fields as they were given, each at most once.
#[derive(Clone, Default)]
pub(super) struct Given<'t>(pub(super) Vec<(&'t str, &'t str)>);

impl<'t> Given<'t> {
    fn read(text: &'t str) -> Result<Self, String> {
        let mut given = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) =
                part.split_once('=').ok_or_else(|| format!("\"{part}\" is not of the form field=value"))?;
            let (name, value) = (name.trim(), value.trim());
            let inside = name.strip_prefix(tunnel::INNER).is_some_and(|name| FIELDS.contains(&name));
            if !inside && !FIELDS.contains(&name) && !tunnel::FIELDS.contains(&name) {
                return Err(format!(
                    "there is no field \"{name}\" (hint: {}; of tunnels {}; of the packet inside those of a packet \
                     with \"inner.\" before them)",
                    FIELDS.join(", "),
                    tunnel::FIELDS.join(", ")
                ));
            }
            if given.text(name).is_some() {
                return Err(format!("{name} is given twice"));
            }
            given.0.push((name, value));
        }
        Ok(given)
    }

    pub(super) fn text(&self, name: &str) -> Option<&'t str> {
        self.0.iter().find(|(given, _)| *given == name).map(|(_, value)| *value)
    }

    fn value<T: std::str::FromStr>(&self, name: &str, expected: &str) -> Result<Option<T>, String> {
        let parse = |text: &str| text.parse().map_err(|_| format!("{name}: \"{text}\" is not {expected}"));
        self.text(name).map(parse).transpose()
    }

    /// A number as the language writes it, hexadecimal ones too.
    pub(super) fn number(&self, name: &str, most: u32) -> Result<Option<u32>, String> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let number = match text.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        };
        match number.filter(|number| *number <= most) {
            Some(number) => Ok(Some(number)),
            None => Err(format!("{name}: \"{text}\" is not a number from 0 to {most}")),
        }
    }

    fn short(&self, name: &str, most: u16) -> Result<Option<u16>, String> {
        Ok(self.number(name, most.into())?.map(|number| u16::try_from(number).unwrap_or(u16::MAX)))
    }

    fn byte(&self, name: &str, most: u8) -> Result<Option<u8>, String> {
        Ok(self.number(name, most.into())?.map(|number| u8::try_from(number).unwrap_or(u8::MAX)))
    }

    pub(super) fn ether_type(&self, name: &str) -> Result<Option<EtherType>, String> {
        self.value(name, "an ethertype such as arp or 0x88cc")
    }

    /// Names of bits joined by +, or their sum.
    pub(super) fn flags(&self, name: &str, known: &[(&str, u8)]) -> Result<Option<u8>, String> {
        let Some(text) = self.text(name) else { return Ok(None) };
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            return self.byte(name, known.iter().map(|(_, bit)| bit).sum());
        }
        let flag = |flags: u8, flag: &str| {
            let bit = known.iter().find(|(known, _)| *known == flag).map(|(_, bit)| bit);
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            bit.map(|bit| flags | bit)
                .ok_or_else(|| format!("{name}: \"{flag}\" is none of {} (joined by +)", names.join(", ")))
        };
        text.split('+').filter(|flag| !flag.is_empty()).try_fold(0, flag).map(Some)
    }

    pub(super) fn any(&self, names: &[&'static str]) -> Option<&'static str> {
        names.iter().copied().find(|name| self.text(name).is_some())
    }
}

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
            key.ether_type = ether_type.ok_or("an ethertype, an address or a protocol is needed")?.0;
        }
    }
    Ok(key)
}

fn tags(given: &Given<'_>, key: &mut FlowKey) -> Result<(), String> {
    let Some(id) = given.short("vlan", 4095)? else {
        return match given.any(&["vlan_priority", "vlan_tpid", "inner_vlan"]) {
            Some(name) => Err(format!("{name} needs vlan")),
            None => Ok(()),
        };
    };
    let priority = given.short("vlan_priority", 7)?.unwrap_or(0);
    key.layers |= Layers::VLAN;
    key.vlan_tci = priority << 13 | id;
    let tpid = given.ether_type("vlan_tpid")?;
    key.vlan_tpid = tpid.unwrap_or(EtherType::VLAN).0;
    if let Some(inner) = given.short("inner_vlan", 4095)? {
        key.layers |= Layers::INNER_VLAN;
        key.inner_vlan_tci = inner;
        key.inner_vlan_tpid = EtherType::VLAN.0;
    }
    Ok(())
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
    let ip_only = [
        "protocol",
        "src_port",
        "dst_port",
        "tcp_flags",
        "tos",
        "dscp",
        "ttl",
        "flow_label",
        "ip_flags",
        "fragment",
        "ip_options",
    ];
    match (versions.first(), given.any(&ip_only), ether_type) {
        (Some(first), _, _) if versions.iter().any(|version| version != first) => {
            Err("the fields mix IPv4 and IPv6".into())
        }
        (Some(first), _, _) => Ok(Some(*first)),
        (None, Some(name), Some(ether_type)) => Err(format!("{name} needs IP, not ethertype {ether_type}")),
        (None, Some("flow_label"), None) => Ok(Some(IpVersion::V6)),
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
    if let Some(name) = ["tos", "dscp"].iter().find(|_| given.text("tos").and(given.text("dscp")).is_some()) {
        return Err(format!("{name}: tos and dscp are one field, give one of them"));
    }
    let dscp = given.byte("dscp", 63)?.map(|dscp| dscp << 2);
    key.tos = given.byte("tos", 255)?.or(dscp).unwrap_or(0);
    key.ttl = given.byte("ttl", 255)?.unwrap_or(DEFAULT_TTL);
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

/// What one of the versions has alone.
fn own_flags(given: &Given<'_>, version: IpVersion, key: &mut FlowKey) -> Result<(), String> {
    match given.number("flow_label", 0xf_ffff)? {
        Some(_) if version == IpVersion::V4 => return Err("flow_label is IPv6's".into()),
        label => key.flow_label = label.unwrap_or(0),
    }
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
