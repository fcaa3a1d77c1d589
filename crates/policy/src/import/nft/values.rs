//! What nft compares as a key of the language, and values of nft as sets of numbers, which are written in
//! TOML again.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use packet::{EtherType, Field, IpProtocol, MacAddr, TCP_FLAGS, flag_pattern};
use program::RangeSet;
use serde_json::Value;

use super::super::quoted;
use crate::parse::mapped_range;

/// The most ranges of a set that is computed, not listed.
const MAX_COMPUTED: usize = 4096;
/// The most combinations of flags that are listed.
const MAX_COMBINATIONS: usize = 32;

/// The values that a key may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// 4 and 6.
    Family,
    V4,
    V6,
    Mac,
    Number(u128),
    Protocol,
    EtherType,
    IcmpType,
    Icmpv6Type,
    Dscp,
    TcpFlags,
    /// 0: whole, 1: first, 2: later.
    Fragment,
}

/// A condition on a key.
#[derive(Clone, Debug)]
pub(super) struct Constraint {
    pub(super) kind: Kind,
    pub(super) values: Arc<RangeSet<u128>>,
    /// In TOML.
    pub(super) shown: Arc<str>,
    /// The named set that it refers to.
    pub(super) set: Option<String>,
}

/// Constraints on one key are equal if they hold for the same values.
impl PartialEq for Constraint {
    fn eq(&self, other: &Self) -> bool {
        self.values == other.values
    }
}

impl Eq for Constraint {}

impl Constraint {
    pub(super) fn of(kind: Kind, values: RangeSet<u128>) -> Self {
        let shown = match kind.items(&values).as_slice() {
            [one] => one.clone(),
            items => format!("[{}]", items.join(", ")),
        };
        Self { kind, values: Arc::new(values), shown: shown.into(), set: None }
    }

    /// Any values but these.
    pub(super) fn not_in(kind: Kind, values: &RangeSet<u128>, set: Option<String>) -> Self {
        // The language does not negate versions.
        if kind == Kind::Family {
            let versions = [4, 6].into_iter().filter(|version| !values.contains(*version));
            return Self::of(kind, RangeSet::each(versions));
        }
        let without = match &set {
            Some(name) => format!("\"{name}\""),
            None => Self::of(kind, values.clone()).shown.to_string(),
        };
        let values = Arc::new(values.complement(kind.most()));
        Self { kind, values, shown: format!("{{ not = {without} }}").into(), set }
    }

    pub(super) fn in_set(kind: Kind, values: Arc<RangeSet<u128>>, name: String) -> Self {
        Self { kind, values, shown: format!("\"{name}\"").into(), set: Some(name) }
    }

    /// Values that were computed from others, if the language can list them.
    pub(super) fn computed(kind: Kind, values: RangeSet<u128>) -> Option<Self> {
        let combinations: u128 =
            values.ranges().iter().map(|(low, high)| (high - low).saturating_add(1)).sum();
        let is_listed = match kind {
            Kind::Mac => combinations <= MAX_COMPUTED as u128,
            Kind::TcpFlags => combinations <= MAX_COMBINATIONS as u128,
            _ => values.ranges().len() <= MAX_COMPUTED,
        };
        is_listed.then(|| Self::of(kind, values))
    }

    fn flags(shown: String, matches: impl Fn(u8) -> bool) -> Self {
        let values = RangeSet::each((0..=u8::MAX).filter(|flags| matches(*flags)).map(u128::from));
        Self { kind: Kind::TcpFlags, values: Arc::new(values), shown: shown.into(), set: None }
    }
}

impl Kind {
    /// The highest value.
    pub(super) fn most(self) -> u128 {
        match self {
            Self::Family => 6,
            Self::V4 => u32::MAX.into(),
            Self::V6 => u128::MAX,
            Self::Mac => (1 << 48) - 1,
            Self::Number(most) => most,
            Self::EtherType => u16::MAX.into(),
            Self::Protocol | Self::IcmpType | Self::Icmpv6Type | Self::TcpFlags => u8::MAX.into(),
            Self::Dscp => 63,
            Self::Fragment => 2,
        }
    }

    /// The values in TOML.
    pub(super) fn items(self, values: &RangeSet<u128>) -> Vec<String> {
        let each = || values.ranges().iter().flat_map(|(low, high)| *low..=*high);
        match self {
            Self::Family => each()
                .filter(|version| matches!(version, 4 | 6))
                .map(|version| format!("\"ipv{version}\""))
                .collect(),
            Self::Fragment => {
                let names = ["\"none\"", "\"first\"", "\"later\""];
                each()
                    .filter_map(|kind| names.get(usize::try_from(kind).ok()?))
                    .map(|&name| name.to_owned())
                    .collect()
            }
            Self::TcpFlags => {
                let pattern = |flags: u128| {
                    format!(
                        "\"{}\"",
                        flag_pattern(&TCP_FLAGS, u8::try_from(flags).unwrap_or(u8::MAX), u8::MAX)
                    )
                };
                each().map(pattern).collect()
            }
            // The language has no ranges of them.
            Self::Mac if values.ranges().iter().all(|(low, high)| high - low < MAX_COMPUTED as u128) => {
                each().map(|mac| self.item(mac, mac)).collect()
            }
            _ => values.ranges().iter().map(|(low, high)| self.item(*low, *high)).collect(),
        }
    }

    fn item(self, low: u128, high: u128) -> String {
        let one = |number: u128| match self {
            Self::V4 => Ipv4Addr::from(u32::try_from(number).unwrap_or(u32::MAX)).to_string(),
            Self::V6 => Ipv6Addr::from(number).to_string(),
            Self::Mac => {
                let [_, _, _, _, _, _, _, _, _, _, octets @ ..] = number.to_be_bytes();
                MacAddr(octets).to_string()
            }
            Self::Protocol => IpProtocol(u8::try_from(number).unwrap_or(u8::MAX)).to_string(),
            Self::EtherType => EtherType(u16::try_from(number).unwrap_or(u16::MAX)).to_string(),
            _ => number.to_string(),
        };
        let bits = match self {
            Self::V4 => 32,
            Self::V6 => 128,
            _ => 0,
        };
        let is_text = matches!(self, Self::V4 | Self::V6 | Self::Mac | Self::Protocol | Self::EtherType);
        let free = (low ^ high).count_ones();
        let is_prefix = bits > 0 && (low ^ high).trailing_ones() == free && low.trailing_zeros() >= free;
        match low == high {
            true if is_text => format!("\"{}\"", one(low)),
            true => one(low),
            false if is_prefix => format!("\"{}/{}\"", one(low), bits - free),
            false if bits > 0 => format!("\"{}-{}\"", one(low), one(high)),
            false => format!("\"{low}-{high}\""),
        }
    }

    /// A single value of nft.
    fn number(self, value: &Value) -> Option<u128> {
        let named = |names: &[(&str, u8)]| {
            let name = value.as_str()?;
            names.iter().find(|(known, _)| *known == name).map(|(_, number)| u128::from(*number))
        };
        let number = || value.as_u64().map(u128::from).filter(|number| *number <= self.most());
        match self {
            Self::V4 => value.as_str()?.parse::<Ipv4Addr>().ok().map(|address| u32::from(address).into()),
            Self::V6 => value.as_str()?.parse::<Ipv6Addr>().ok().map(u128::from),
            Self::Mac => {
                let mac = value.as_str()?.parse::<MacAddr>().ok()?;
                Some(mac.0.iter().fold(0, |number, octet| number << 8 | u128::from(*octet)))
            }
            Self::Protocol => match value.as_str() {
                Some("ipv6-icmp") => Some(IpProtocol::ICMPV6.0.into()),
                Some(name) => name.parse::<IpProtocol>().ok().map(|protocol| protocol.0.into()),
                None => number(),
            },
            Self::EtherType => match value.as_str() {
                Some("ip") => Some(EtherType::IPV4.0.into()),
                Some("ip6") => Some(EtherType::IPV6.0.into()),
                Some(name) => name.parse::<EtherType>().ok().map(|known| known.0.into()),
                None => number(),
            },
            Self::IcmpType => named(&ICMP_TYPES).or_else(number),
            Self::Icmpv6Type => named(&ICMPV6_TYPES).or_else(number),
            Self::Dscp => value.as_str().map_or_else(number, dscp),
            Self::Family => version(value.as_str()?),
            Self::Number(_) | Self::TcpFlags | Self::Fragment => number(),
        }
    }
}

/// A key for what nft compares.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) key: &'static str,
    pub(super) kind: Kind,
    /// The key of SCTP, for a port of any protocol; `key` is that of TCP and UDP.
    pub(super) sctp_key: Option<&'static str>,
}

impl Left {
    /// All of these values but IPv4-mapped addresses, which no packet has and the language refuses.
    pub(super) fn items<'v>(
        &self,
        values: impl IntoIterator<Item = &'v Value>,
    ) -> Result<RangeSet<u128>, String> {
        let address = |number: u128| IpAddr::V6(number.into());
        let is_mapped = |(low, high): &(u128, u128)| {
            self.kind == Kind::V6 && mapped_range(address(*low), address(*high)).is_some()
        };
        let mut ranges = values.into_iter().map(|value| self.range(value)).collect::<Result<Vec<_>, _>>()?;
        ranges.retain(|range| !is_mapped(range));
        Ok(RangeSet::of(ranges))
    }

    /// A value, a prefix or a range, as the first and the last number.
    fn range(&self, value: &Value) -> Result<(u128, u128), String> {
        // Elements with a timeout or a counter.
        let value = value.pointer("/elem/val").unwrap_or(value);
        let wrong =
            || format!("`{}` has a value that is not supported: {}", self.key, quoted(&value.to_string()));
        if let Some(prefix) = value.get("prefix") {
            let bits: u32 = match self.kind {
                Kind::V4 => 32,
                Kind::V6 => 128,
                _ => return Err(wrong()),
            };
            let address = prefix.get("addr").and_then(|address| self.kind.number(address));
            let length =
                prefix.get("len").and_then(Value::as_u64).and_then(|length| u32::try_from(length).ok());
            let (Some(address), Some(length)) = (address, length.filter(|length| *length <= bits)) else {
                return Err(wrong());
            };
            let free = self.kind.most().checked_shr(length).unwrap_or(0);
            return Ok((address & !free, address | free));
        }
        if let Some(range) = value.get("range") {
            let end = |index: usize| range.get(index).and_then(|end| self.kind.number(end));
            return match (end(0), end(1)) {
                (Some(low), Some(high)) if low <= high => Ok((low, high)),
                _ => Err(wrong()),
            };
        }
        let number = self.kind.number(value).ok_or_else(wrong)?;
        Ok((number, number))
    }
}

/// Names of message types in nft, of ICMP and of ICMPv6.
const ICMP_TYPES: [(&str, u8); 14] = [
    ("echo-reply", 0),
    ("destination-unreachable", 3),
    ("source-quench", 4),
    ("redirect", 5),
    ("echo-request", 8),
    ("router-advertisement", 9),
    ("router-solicitation", 10),
    ("time-exceeded", 11),
    ("parameter-problem", 12),
    ("timestamp-request", 13),
    ("timestamp-reply", 14),
    ("info-request", 15),
    ("address-mask-request", 17),
    ("address-mask-reply", 18),
];
const ICMPV6_TYPES: [(&str, u8); 20] = [
    ("destination-unreachable", 1),
    ("packet-too-big", 2),
    ("time-exceeded", 3),
    ("parameter-problem", 4),
    ("echo-request", 128),
    ("echo-reply", 129),
    ("mld-listener-query", 130),
    ("mld-listener-report", 131),
    ("mld-listener-done", 132),
    ("mld-listener-reduction", 132),
    ("nd-router-solicit", 133),
    ("nd-router-advert", 134),
    ("nd-neighbor-solicit", 135),
    ("nd-neighbor-advert", 136),
    ("nd-redirect", 137),
    ("router-renumbering", 138),
    ("ind-neighbor-solicit", 141),
    ("ind-neighbor-advert", 142),
    ("mld2-listener-report", 143),
    ("mld2-listener-query", 130),
];

/// A code point by its name (RFC 2474, RFC 2597, RFC 3246, RFC 5865, RFC 8622).
fn dscp(name: &str) -> Option<u128> {
    let digit =
        |text: &str, most: u128| text.parse::<u128>().ok().filter(|number| (1..=most).contains(number));
    match name {
        "be" | "cs0" => Some(0),
        "lephb" | "le" => Some(1),
        "va" => Some(44),
        "ef" => Some(46),
        _ if name.starts_with("cs") => digit(&name[2..], 7).map(|class| class * 8),
        _ if name.starts_with("af") && name.len() == 4 => {
            Some(digit(name.get(2..3)?, 4)? * 8 + digit(name.get(3..4)?, 3)? * 2)
        }
        _ => None,
    }
}

/// The payload that an expression is about.
pub(super) fn payload(left: &Value) -> Option<(&str, &str)> {
    let payload = left.get("payload")?;
    Some((payload.get("protocol")?.as_str()?, payload.get("field")?.as_str()?))
}

/// Whether a field is the transport protocol or behind the IP header.
pub(super) fn is_on_transport(left: &Value) -> bool {
    let meta = left.pointer("/meta/key").and_then(Value::as_str);
    let subject = masked(left).map_or(left, |(subject, _)| subject);
    meta == Some("l4proto")
        || payload(subject)
            .is_some_and(|(protocol, _)| !matches!(protocol, "ip" | "ip6" | "ether" | "vlan" | "arp"))
}

/// An expression under a mask.
fn masked(left: &Value) -> Option<(&Value, &Value)> {
    match left.get("&")?.as_array()?.as_slice() {
        [subject, mask] => Some((subject, mask)),
        _ => None,
    }
}

/// TCP flags: under a mask, any or none of several, or one of several combinations. `None`: not about them.
pub(super) fn flags_of(op: &str, left: &Value, right: &Value) -> Option<Result<Constraint, String>> {
    let (subject, mask) = masked(left).map_or((left, None), |(subject, mask)| (subject, Some(mask)));
    (payload(subject) == Some(("tcp", "flags"))).then(|| flags_constraint(op, mask, right))
}

fn flags_constraint(op: &str, mask: Option<&Value>, right: &Value) -> Result<Constraint, String> {
    let is_masked = mask.is_some();
    let mask = mask.map_or(Ok(u8::MAX), flags)?;
    let refused = || format!("the comparison `{}` of TCP flags", quoted(op));
    if mask == 0 {
        return Err(refused());
    }
    match (op, right.get("set").and_then(Value::as_array)) {
        // The flags are one of these combinations; a list of names is one combination.
        ("==" | "in", Some(choices)) if !choices.is_empty() => {
            let choices: Vec<u8> = choices.iter().map(flags).collect::<Result<_, _>>()?;
            if choices.iter().any(|choice| choice & !mask != 0) {
                return Err(refused());
            }
            let shown: Vec<String> = choices.iter().map(|choice| quoted_flags(mask, *choice)).collect();
            Ok(Constraint::flags(format!("[{}]", shown.join(", ")), |flags| {
                choices.contains(&(flags & mask))
            }))
        }
        (_, Some(_)) => Err(refused()),
        ("==", None) if flags(right)? & !mask == 0 => Ok(flags_equal(mask, flags(right)?)),
        ("!=", None) if flags(right)? & !mask == 0 => Ok(flags_other(mask, flags(right)?)),
        ("in", None) if !is_masked && flags(right)? != 0 => Ok(flags_other(flags(right)?, 0)),
        ("!", None) if !is_masked && flags(right)? != 0 => Ok(flags_equal(flags(right)?, 0)),
        _ => Err(refused()),
    }
}

/// A pattern of flags in TOML.
fn quoted_flags(mask: u8, value: u8) -> String {
    format!("\"{}\"", flag_pattern(&TCP_FLAGS, value, mask))
}

/// The flags that equal a value under a mask.
pub(super) fn flags_equal(mask: u8, value: u8) -> Constraint {
    Constraint::flags(quoted_flags(mask, value), |flags| flags & mask == value)
}

/// The flags of which at least one under the mask differs from a value.
pub(super) fn flags_other(mask: u8, value: u8) -> Constraint {
    let bits = TCP_FLAGS.iter().filter(|(_, bit)| mask & bit != 0);
    let patterns: Vec<String> = bits.map(|(_, bit)| quoted_flags(*bit, !value & bit)).collect();
    Constraint::flags(format!("[{}]", patterns.join(", ")), |flags| flags & mask != value)
}

/// A name, a number, or a list of names of flags that are all set.
fn flags(value: &Value) -> Result<u8, String> {
    if let Value::Array(list) = value.get("|").unwrap_or(value) {
        return list.iter().try_fold(0, |all, value| Ok(all | flags(value)?));
    }
    let name = value.as_str().map(|name| if name == "ecn" { "ece" } else { name });
    let named = name.and_then(|name| TCP_FLAGS.iter().find(|(known, _)| *known == name));
    let number = || value.as_u64().and_then(|number| u8::try_from(number).ok());
    named
        .map(|(_, bit)| *bit)
        .or_else(number)
        .ok_or_else(|| format!("not TCP flags: {}", quoted(&value.to_string())))
}

/// `ip frag-off & 0x1fff`, the offset of a fragment, compared with 0.
pub(super) fn fragments_of(op: &str, left: &Value, right: &Value) -> Option<Constraint> {
    let (subject, mask) = masked(left)?;
    let is_offset = payload(subject) == Some(("ip", "frag-off")) && mask.as_u64() == Some(0x1fff);
    let kinds: &[u128] = match op {
        "==" => &[0, 1],
        "!=" | ">" => &[2],
        _ => return None,
    };
    (is_offset && right.as_u64() == Some(0))
        .then(|| Constraint::of(Kind::Fragment, RangeSet::each(kinds.iter().copied())))
}

type Implied = Vec<(&'static str, Constraint)>;

/// The key for what is compared, and what the comparison implies in any case.
pub(super) fn left_of(left: &Value) -> (Result<Left, String>, Implied) {
    let of = |key, kind| Ok(Left { key, kind, sctp_key: None });
    let subject = masked(left).map_or(left, |(subject, _)| subject);
    let Some((protocol, field)) = payload(subject) else {
        let key = left.pointer("/meta/key").and_then(Value::as_str);
        let what = left.as_object().and_then(|left| left.keys().next()).map_or("this", String::as_str);
        let found = match key {
            Some("l4proto") => of("protocol", Kind::Protocol),
            Some("nfproto") => of("family", Kind::Family),
            Some("protocol") => of("ethertype", Kind::EtherType),
            Some(other) => Err(format!("`meta {}` cannot be matched", quoted(other))),
            None => Err(format!("`{}` cannot be matched", quoted(what))),
        };
        return (found, Vec::new());
    };
    let implied = implied_by(protocol);
    if !std::ptr::eq(subject, left) {
        return (Err(format!("`{} {}` under a mask", quoted(protocol), quoted(field))), implied);
    }
    let port = Kind::Number(u16::MAX.into());
    let byte = Kind::Number(u8::MAX.into());
    let sctp = Field::ports_of(IpProtocol::SCTP).map(Field::name);
    let found = match (protocol, field) {
        ("ip", "saddr") => of("src", Kind::V4),
        ("ip", "daddr") => of("dst", Kind::V4),
        ("ip6", "saddr") => of("src", Kind::V6),
        ("ip6", "daddr") => of("dst", Kind::V6),
        ("ip", "protocol") | ("ip6", "nexthdr") => of("protocol", Kind::Protocol),
        ("ip", "ttl") => of("ttl", byte),
        ("ip6", "hoplimit") => of("hop_limit", byte),
        ("ip" | "ip6", "dscp") => of("dscp", Kind::Dscp),
        ("tcp" | "udp", "sport") => of("src_port", port),
        ("tcp" | "udp", "dport") => of("dst_port", port),
        ("sctp", "sport") => of(sctp[0], port),
        ("sctp", "dport") => of(sctp[1], port),
        ("th", "sport") => Ok(Left { key: "src_port", kind: port, sctp_key: Some(sctp[0]) }),
        ("th", "dport") => Ok(Left { key: "dst_port", kind: port, sctp_key: Some(sctp[1]) }),
        ("icmp", "type") => of("icmp_type", Kind::IcmpType),
        ("icmp", "code") => of("icmp_code", byte),
        ("icmpv6", "type") => of("icmpv6_type", Kind::Icmpv6Type),
        ("icmpv6", "code") => of("icmpv6_code", byte),
        ("ether", "saddr") => of("src_mac", Kind::Mac),
        ("ether", "daddr") => of("dst_mac", Kind::Mac),
        ("ether", "type") => of("ethertype", Kind::EtherType),
        ("vlan", "id") => of("vlan", Kind::Number(4095)),
        _ => Err(format!("`{} {}` cannot be matched", quoted(protocol), quoted(field))),
    };
    (found, implied)
}

/// The IP version and the protocol of packets with such a header.
fn implied_by(protocol: &str) -> Implied {
    let (version, number) = match protocol {
        "ip" => (Some(4), None),
        "ip6" => (Some(6), None),
        "icmp" => (Some(4), Some(IpProtocol::ICMP)),
        "igmp" => (Some(4), Some(IpProtocol(2))),
        "icmpv6" => (Some(6), Some(IpProtocol::ICMPV6)),
        "tcp" => (None, Some(IpProtocol::TCP)),
        "udp" => (None, Some(IpProtocol::UDP)),
        "dccp" => (None, Some(IpProtocol(33))),
        "sctp" => (None, Some(IpProtocol::SCTP)),
        "udplite" => (None, Some(IpProtocol(136))),
        _ => (None, None),
    };
    let family = version.map(|version| ("family", Constraint::of(Kind::Family, RangeSet::single(version))));
    let protocol =
        number.map(|number| ("protocol", Constraint::of(Kind::Protocol, RangeSet::single(number.0.into()))));
    family.into_iter().chain(protocol).collect()
}

/// An IP version that nft names.
pub(super) fn version(name: &str) -> Option<u128> {
    match name {
        "ipv4" | "ip" => Some(4),
        "ipv6" | "ip6" => Some(6),
        _ => None,
    }
}
