//! A packet as text, and the key that policies match: by fields ("src=10.0.0.1,protocol=udp,dst_port=53"), in
//! the short notation of `short`, or in hexadecimal. `explain` and the tests of a policy read them, and each
//! packet that is printed is in one of them.
//!
//! The fields are the rows of [`FIELDS`]. A frame with the headers that they need is built and parsed; a
//! field that is not in the parsed packet contradicts the others and is an error. The fields of tunnels are
//! in `tunnel`.

mod short;
mod tunnel;

pub use short::short_packet;
pub(crate) use short::short_packet_with_macs;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packet::build::FrameBuilder;
use packet::{
    DeepKey, EtherType, FIELDS, Field, Flag, FlowKey, Form, Header, IpProtocol, Layers, Row, mac_number,
};

/// For experiments (RFC 3692).
const DEFAULT_PROTOCOL: IpProtocol = IpProtocol(253);
/// Options without effect (RFC 791, No Operation).
const IP_OPTIONS: [u8; 4] = [1; 4];
/// The largest frame that `--hex` takes: an IP packet of full length behind two tags.
const MAX_FRAME_BYTES: usize = 65_535 + 22;

/// The names in IPv6 of fields that IPv4 has, too.
const IPV6_NAMES: [(&str, &str); 2] = [("ttl", "hop_limit"), ("tos", "traffic_class")];
/// The two parts of the type of service, the width of each and its lowest bit.
const SERVICE_PARTS: [(&str, u32, u32); 2] = [("dscp", 6, 2), ("ecn", 2, 0)];
/// The flag in an IPv4 header (RFC 791).
const MORE_FRAGMENTS: u128 = 1;
/// Properties of a packet that are not fields of the table.
const FAMILY: &str = "family";
const FRAGMENT: &str = "fragment";
const OPTIONS: &str = "ip_options";
/// The value of flags of which none is set.
const NO_FLAGS: &str = "none";

/// The rows of a packet's own headers.
fn packet_rows() -> impl Iterator<Item = &'static Row> {
    FIELDS.iter().filter(|row| !row.header.is_tunnel())
}

/// All names of a packet's own fields.
fn packet_names() -> Vec<&'static str> {
    let mut names: Vec<&str> = packet_rows().map(|row| row.name).collect();
    // Addresses have a row for each IP version.
    names.dedup();
    names.extend(IPV6_NAMES.map(|(_, name)| name));
    names.extend(SERVICE_PARTS.map(|(name, ..)| name));
    names.extend([FAMILY, FRAGMENT, OPTIONS]);
    names
}

/// The names of fields whose rows satisfy `is_wanted`, apart from addresses.
fn names_of(is_wanted: impl Fn(Header) -> bool) -> Vec<&'static str> {
    let rows = packet_rows().filter(|row| row.form != Form::Address && is_wanted(row.header));
    rows.map(|row| row.name).collect()
}

/// Fields that exist in IPv6 only, under these names.
fn ipv6_names() -> Vec<&'static str> {
    let mut names = names_of(|header| header.version() == Some(Layers::IPV6));
    names.extend(IPV6_NAMES.map(|(_, name)| name));
    names
}

/// Fields that need an IP header.
fn ip_names() -> Vec<&'static str> {
    let mut names = names_of(Header::needs_ip);
    names.extend(IPV6_NAMES.map(|(_, name)| name));
    names.extend(SERVICE_PARTS.map(|(name, ..)| name));
    names.extend([FRAGMENT, OPTIONS]);
    names
}

/// The given fields and their texts, each at most once.
#[derive(Clone, Default)]
struct Given<'t>(Vec<(&'t str, &'t str)>);

impl<'t> Given<'t> {
    fn read(text: &'t str) -> Result<Self, String> {
        let names = packet_names();
        let mut given = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) =
                part.split_once('=').ok_or_else(|| format!("\"{part}\" is not of the form field=value"))?;
            let (name, value) = (name.trim(), value.trim());
            let is_inner = name.strip_prefix(tunnel::INNER).is_some_and(|name| names.contains(&name));
            if !is_inner && !names.contains(&name) && !tunnel::is_field(name) {
                let hint = crate::parse::meant_field(name, names.iter().copied().chain(tunnel::names())).unwrap_or_else(|| {
                    format!(
                        "{}; of tunnels {}; of the inner packet those of a packet with \"inner.\" before them",
                        names.join(", "),
                        tunnel::names().join(", ")
                    )
                });
                return Err(format!("there is no field \"{name}\" (hint: {hint})"));
            }
            if given.text(name).is_some() {
                return Err(format!("{name} is given twice"));
            }
            given.0.push((name, value));
        }
        Ok(given)
    }

    fn text(&self, name: &str) -> Option<&'t str> {
        self.0.iter().find(|(given, _)| *given == name).map(|(_, value)| *value)
    }

    fn value<T: std::str::FromStr>(&self, name: &str, expected: &str) -> Result<Option<T>, String> {
        let parse = |text: &str| text.parse().map_err(|_| format!("{name}: \"{text}\" is not {expected}"));
        self.text(name).map(parse).transpose()
    }

    /// A number as in the language, possibly hexadecimal.
    fn number(&self, name: &str, most: u32) -> Result<Option<u32>, String> {
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

    fn ether_type(&self, name: &str) -> Result<Option<EtherType>, String> {
        self.value(name, "an ethertype such as arp or 0x88cc")
    }

    /// Flag names joined by +, their sum, or [`NO_FLAGS`].
    fn flags(&self, name: &str, known: &[Flag]) -> Result<Option<u8>, String> {
        let Some(text) = self.text(name) else { return Ok(None) };
        if text == NO_FLAGS {
            return Ok(Some(0));
        }
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            let most = known.iter().map(|(_, bit)| u32::from(*bit)).sum();
            return Ok(self.number(name, most)?.and_then(|number| u8::try_from(number).ok()));
        }
        let flag = |flags: u8, flag: &str| {
            let bit = known.iter().find(|(known, _)| *known == flag).map(|(_, bit)| bit);
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            bit.map(|bit| flags | bit)
                .ok_or_else(|| format!("{name}: \"{flag}\" is none of {} (joined by +)", names.join(", ")))
        };
        text.split('+').filter(|flag| !flag.is_empty()).try_fold(0, flag).map(Some)
    }

    fn any<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        names.iter().copied().find(|name| self.text(name).is_some())
    }

    /// The value of a field under this name.
    fn field(&self, field: Field, name: &str) -> Result<Option<u128>, String> {
        Ok(match field.row().form {
            Form::EtherType => self.ether_type(name)?.map(|value| value.0.into()),
            Form::Protocol => self
                .value::<IpProtocol>(name, "a protocol such as udp or a number")?
                .map(|value| value.0.into()),
            Form::Flags(known) => self.flags(name, known)?.map(Into::into),
            Form::Mac => self.value(name, "a MAC address")?.map(mac_number),
            Form::Address => self.value(name, "an IP address")?.map(|address| match address {
                IpAddr::V4(address) => u32::from(address).into(),
                IpAddr::V6(address) => address.into(),
            }),
            _ => {
                let most = u32::try_from(field.max()).unwrap_or(u32::MAX);
                self.number(name, most)?.map(Into::into)
            }
        })
    }

    /// All given fields of the packet's own headers with their names and values.
    fn fields(&self, version: Option<IpVersion>) -> Result<Vec<(Field, &'static str, u128)>, String> {
        let mut values = Vec::new();
        let of_version =
            |row: &&Row| row.form != Form::Address || Some(row.header) == version.map(Into::into);
        for row in packet_rows().filter(of_version) {
            let other = IPV6_NAMES.iter().find(|(name, _)| *name == row.name).map(|(_, other)| *other);
            let mut names = [Some(row.name), other].into_iter().flatten();
            let Some(name) = names.find(|name| self.text(name).is_some()) else { continue };
            if let Some(second) = names.find(|name| self.text(name).is_some()) {
                return Err(format!("{second}: {name} is the same field, give one of them"));
            }
            values.extend(self.field(row.field, name)?.map(|value| (row.field, name, value)));
        }
        let mut service = None;
        for (name, bits, shift) in SERVICE_PARTS {
            if let Some(part) = self.number(name, (1 << bits) - 1)? {
                service = Some((name, service.map_or(0, |(_, value)| value) | u128::from(part) << shift));
            }
        }
        if let Some((part, value)) = service {
            if let Some((_, whole, _)) = values.iter().find(|(field, ..)| *field == Field::Tos) {
                return Err(format!("{part}: {whole} is all of that field, give one of them"));
            }
            values.push((Field::Tos, part, value));
        }
        Ok(values)
    }
}

/// The key of the packet that `text` describes, by its fields or in the short notation.
///
/// ```
/// let key = policy::key_of_text("dst=192.0.2.53,protocol=udp,dst_port=53")?;
/// assert_eq!(key.outer.dst_port, 53);
/// assert_eq!(policy::key_of_text("0.0.0.0:0 > 192.0.2.53:53 udp")?, key);
/// assert!(policy::key_of_text("protocol=arp").is_err());
/// # Ok::<(), String>(())
/// ```
///
/// # Errors
/// The text is no packet, in one line with a hint where there is one.
pub fn key_of_text(text: &str) -> Result<DeepKey, String> {
    if short::is_short(text) {
        return tunnel::deep_key(&Given::read(&short::fields(text)?)?);
    }
    tunnel::deep_key(&Given::read(text)?)
}

/// The key of one packet without its tunnel.
fn packet_key(given: &Given<'_>) -> Result<FlowKey, String> {
    let version = ip_version(given)?;
    let fields = given.fields(version)?;
    let value = |wanted: Field| fields.iter().find(|(field, ..)| *field == wanted).map(|(.., value)| *value);
    let mut frame = FrameBuilder::new();
    for (field, name, value) in &fields {
        let row = field.row();
        let is_tag = u16::try_from(*value).is_ok_and(|value| EtherType(value).is_vlan_tag());
        match (row.form, row.header) {
            (Form::VlanId, _) => frame = frame.vlan(EtherType::VLAN, 0),
            (Form::EtherType, Header::Vlan | Header::InnerVlan) if !is_tag => {
                return Err(format!("{name}: {} is not a VLAN tag", field.text(*value)));
            }
            (Form::EtherType, Header::Ethernet) if is_tag => {
                let text = field.text(*value);
                return Err(format!("{name}: {text} is a VLAN tag, give vlan and the ethertype after it"));
            }
            _ => {}
        }
    }
    let protocols = [Field::Protocol, Field::ExtProtocol].map(value);
    match version {
        Some(version) => frame = network(frame, given, version, protocols)?,
        None if value(Field::EtherType).is_none() => {
            return Err("an ethertype, an address or a protocol is needed".into());
        }
        None => {}
    }
    let has_more = value(Field::IpFlags).is_some_and(|flags| flags & MORE_FRAGMENTS != 0);
    if has_more && given.text(FRAGMENT).is_none_or(|text| text == "none") {
        let name = Field::IpFlags.name();
        return Err(format!("{name}: only fragments have \"more fragments\": add fragment=first"));
    }
    let frame = fields.iter().fold(frame, |frame, (field, _, value)| {
        // The transport header implies the protocol.
        let is_implied = matches!(field, Field::Protocol | Field::ExtProtocol);
        if is_implied { frame } else { frame.set(*field, *value) }
    });
    let key = FlowKey::of(&frame.build());
    if given.text(FRAGMENT).is_some_and(|text| text != "none") && !key.layers.contains(Layers::FRAGMENT) {
        return Err(format!("{FRAGMENT}: behind another extension header the fragment header is not read"));
    }
    let is_ipv6_fragment = version == Some(IpVersion::V6) && key.protocol == IpProtocol::FRAGMENT.0;
    for (field, name, value) in &fields {
        // A fragment has the flag "more fragments" in addition to the given ones.
        let is_value = |found| found == *value || is_flags(*field) && found & value == *value;
        let is_present = key.fields(true).any(|(present, found)| present == *field && is_value(found));
        // The first next header of an IPv6 fragment is the fragment header.
        let is_hidden = *field == Field::Protocol && is_ipv6_fragment;
        if !is_present && !is_hidden {
            return Err(format!("{name}: the packet has no {}", header_name(field.row().header)));
        }
    }
    Ok(key)
}

fn is_flags(field: Field) -> bool {
    matches!(field.row().form, Form::Flags(_))
}

fn header_name(header: Header) -> String {
    match header {
        Header::Vlan => "VLAN tag (give vlan)".to_owned(),
        Header::InnerVlan => "second VLAN tag (give vlan and inner_vlan)".to_owned(),
        header if header.is_tunnel() => "tunnel header".to_owned(),
        header if header.is_extended() => {
            format!(
                "such header behind IPv6 extension headers (give protocol and {})",
                Field::ExtProtocol.name()
            )
        }
        header => format!("{} header", header.name()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IpVersion {
    V4,
    V6,
}

impl From<IpVersion> for Header {
    fn from(version: IpVersion) -> Self {
        match version {
            IpVersion::V4 => Self::Ipv4,
            IpVersion::V6 => Self::Ipv6,
        }
    }
}

/// From the addresses, the family or the ethertype, which must agree; IPv4 if only a protocol is given.
fn ip_version(given: &Given<'_>) -> Result<Option<IpVersion>, String> {
    let mut versions = Vec::new();
    for row in packet_rows().filter(|row| row.form == Form::Address) {
        let address = given.value::<IpAddr>(row.name, "an IP address")?;
        versions.extend(address.map(|it| if it.is_ipv4() { IpVersion::V4 } else { IpVersion::V6 }));
    }
    match given.text(FAMILY) {
        None => {}
        Some("ipv4") => versions.push(IpVersion::V4),
        Some("ipv6") => versions.push(IpVersion::V6),
        Some(other) => return Err(format!("{FAMILY}: \"{other}\" is neither ipv4 nor ipv6")),
    }
    let ether_type = given.ether_type(Field::EtherType.name())?;
    match ether_type {
        None => {}
        Some(EtherType::IPV4) => versions.push(IpVersion::V4),
        Some(EtherType::IPV6) => versions.push(IpVersion::V6),
        Some(other) if !versions.is_empty() => return Err(format!("ethertype {other} has no IP addresses")),
        Some(_) => {}
    }
    match (versions.first(), given.any(&ip_names()), ether_type) {
        (Some(first), _, _) if versions.iter().any(|version| version != first) => {
            Err("the fields mix IPv4 and IPv6".into())
        }
        (Some(first), _, _) => Ok(Some(*first)),
        (None, Some(name), Some(ether_type)) => Err(format!("{name} needs IP, not ethertype {ether_type}")),
        (None, Some(_), None) if given.any(&ipv6_names()).is_some() => Ok(Some(IpVersion::V6)),
        (None, Some(_), None) => Ok(Some(IpVersion::V4)),
        (None, None, _) => Ok(None),
    }
}

/// Adds the IP header and the transport header of the protocol.
fn network(
    frame: FrameBuilder,
    given: &Given<'_>,
    version: IpVersion,
    [protocol, behind]: [Option<u128>; 2],
) -> Result<FrameBuilder, String> {
    if let Some(name) = given.any(&ipv6_names()).filter(|_| version == IpVersion::V4) {
        return Err(format!("{name} needs IPv6"));
    }
    let (frame, default) = match version {
        IpVersion::V4 => (frame.ipv4(Ipv4Addr::UNSPECIFIED, Ipv4Addr::UNSPECIFIED), DEFAULT_PROTOCOL),
        IpVersion::V6 => {
            (frame.ipv6(Ipv6Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED), IpProtocol::NO_NEXT_HEADER)
        }
    };
    // The number of the header that the fields are of: behind an extension header, `behind`.
    let (extension, protocol) = match (protocol.map(|number| IpProtocol(number as u8)), behind) {
        (Some(header), Some(behind)) if header.is_extension_header() => (Some(header), Some(behind)),
        _ => (None, protocol),
    };
    let frame = extension.into_iter().fold(frame, FrameBuilder::extension);
    let mut behind_ip = packet_rows().filter(|row| row.header.is_behind_ip());
    let frame = match (protocol, behind_ip.find(|row| given.text(row.name).is_some())) {
        (None, Some(row)) => {
            let protocols = row.header.protocols().iter().map(|protocol| format!("protocol={protocol}"));
            let protocols = protocols.collect::<Vec<_>>().join(" or ");
            return Err(format!("{} needs {protocols}", row.name));
        }
        (None, None) => frame.protocol(default),
        (Some(number), _) => match (IpProtocol(u8::try_from(number).unwrap_or(u8::MAX)), version) {
            (IpProtocol::TCP, _) => frame.tcp(0, 0, short::USUAL_TCP_FLAGS),
            (IpProtocol::UDP, _) => frame.udp(0, 0),
            (IpProtocol::SCTP, _) => frame.sctp(0, 0),
            (IpProtocol::ICMP, IpVersion::V4) | (IpProtocol::ICMPV6, IpVersion::V6) => frame.icmp_echo(0, 0),
            (other, _) => frame.protocol(other),
        },
    };
    let frame = match (given.value::<bool>(OPTIONS, "true or false")?, version) {
        (Some(true), IpVersion::V6) => return Err(format!("{OPTIONS} needs IPv4")),
        (Some(true), IpVersion::V4) => frame.ip_options(&IP_OPTIONS),
        _ => frame,
    };
    match given.text(FRAGMENT) {
        None | Some("none") => Ok(frame),
        Some("first") => Ok(frame.fragment(0, true)),
        Some("later") => Ok(frame.fragment(1, false)),
        Some(other) => Err(format!("{FRAGMENT}: \"{other}\" is not none, first or later")),
    }
}

/// A frame written in hexadecimal; blanks, colons and dashes between digits are ignored.
///
/// # Errors
/// The text is no frame.
pub fn frame_of_hex(text: &str) -> Result<Vec<u8>, String> {
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
