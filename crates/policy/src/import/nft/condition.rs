//! The matches of a rule of nftables as keys of a match.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use packet::{EtherType, IpProtocol, MacAddr, TCP_FLAGS, flag_pattern};
use serde_json::Value;

use super::super::{Keys, quoted};

/// The values of a set for one key, in TOML.
pub(super) type Values = Arc<[String]>;

/// The named sets of a table, and those that were converted, by their name in the policy.
#[derive(Default)]
pub(super) struct Sets<'v> {
    pub(super) elements: BTreeMap<&'v str, &'v [Value]>,
    /// With the name in nftables.
    pub(super) known: RefCell<BTreeMap<String, (String, Values)>>,
}

impl Sets<'_> {
    /// The name of a set in the policy, for values of a key.
    fn named(&self, set: &str, left: &Left) -> Result<String, String> {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let word = |text: &str| text.chars().map(plain).take(24).collect::<String>();
        let name = format!("nft-{}-{}", word(&left.key), word(set));
        let mut known = self.known.borrow_mut();
        if let Some((other, _)) = known.get(&name) {
            return if other == set {
                Ok(name)
            } else {
                Err(format!("the name of the set {} is not unique", quoted(set)))
            };
        }
        let elements = self.elements.get(set).ok_or_else(|| format!("there is no set {}", quoted(set)))?;
        let values: Values = elements.iter().map(|item| left.item(item)).collect::<Result<_, _>>()?;
        if values.is_empty() {
            return Err(format!("the set {} is empty", quoted(set)));
        }
        known.insert(name.clone(), (set.to_owned(), values));
        Ok(name)
    }
}

/// All matches of a rule, and of those that lead to its chain.
#[derive(Clone, Default)]
pub(super) struct Condition {
    /// Values in TOML by key.
    keys: BTreeMap<String, String>,
    /// Named sets that they refer to.
    sets: BTreeSet<String>,
    /// Whether one is on the transport protocol or its header, which nft finds behind IPv6 extension headers.
    pub(super) is_on_transport: bool,
    /// Whether one is on ports of any protocol.
    pub(super) is_on_any_ports: bool,
}

/// What values of a key are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Address,
    Mac,
    Number(u64),
    Protocol,
    EtherType,
    MessageType,
    Dscp,
}

/// A key for what nft compares, and what the comparison implies.
struct Left {
    key: String,
    kind: Kind,
    family: Option<&'static str>,
    protocol: Option<u8>,
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
const ICMPV6_TYPES: [(&str, u8); 17] = [
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
    ("mld2-listener-report", 143),
];

const ICMP: u8 = IpProtocol::ICMP.0;
const ICMPV6: u8 = IpProtocol::ICMPV6.0;

impl Condition {
    /// The packets that tables of a family see.
    pub(super) fn of_family(family: &str) -> Result<Self, String> {
        let mut condition = Self::default();
        match family {
            "ip" => condition.set("family", "\"ipv4\"".to_owned())?,
            "ip6" => condition.set("family", "\"ipv6\"".to_owned())?,
            "inet" => condition.set("family", "[\"ipv4\", \"ipv6\"]".to_owned())?,
            "netdev" | "bridge" => {}
            other => return Err(format!("tables of the family {} are not supported", quoted(other))),
        }
        Ok(condition)
    }

    /// The match, and the sets that it names.
    pub(super) fn keys(&self) -> (Keys, &BTreeSet<String>) {
        let mut keys = Keys::default();
        self.keys.iter().for_each(|(key, value)| keys.push(key, value));
        (keys, &self.sets)
    }

    /// Adds a key; what a rule tests twice must be the same.
    fn set(&mut self, key: &str, value: String) -> Result<(), String> {
        match self.keys.get(key) {
            Some(before) if *before == value => Ok(()),
            // Both versions and one of them.
            Some(before) if key == "family" && before.starts_with('[') => {
                self.keys.insert(key.to_owned(), value);
                Ok(())
            }
            Some(_) => Err(format!("it tests `{key}` in two ways")),
            None => {
                self.keys.insert(key.to_owned(), value);
                Ok(())
            }
        }
    }

    /// Adds a `match` statement.
    pub(super) fn add(&mut self, body: &Value, sets: &Sets<'_>) -> Result<(), String> {
        let (Some(left), Some(right)) = (body.get("left"), body.get("right")) else {
            return Err("an incomplete match".to_owned());
        };
        self.compare(body.get("op").and_then(Value::as_str).unwrap_or("=="), left, right, sets)
    }

    /// Adds a comparison.
    pub(super) fn compare(
        &mut self,
        op: &str,
        left: &Value,
        right: &Value,
        sets: &Sets<'_>,
    ) -> Result<(), String> {
        if let Some(pattern) = flags_of(op, left, right)? {
            self.is_on_transport = true;
            self.set("protocol", protocol(IpProtocol::TCP.0))?;
            return self.set(&pattern.0, pattern.1);
        }
        if let Some((family, word)) = version_of(left, right) {
            let other = if family == "ipv4" { "ipv6" } else { "ipv4" };
            return match op {
                "==" => self.set("family", format!("\"{family}\"")),
                "!=" if word == "nfproto" => self.set("family", format!("\"{other}\"")),
                _ => Err(format!("the comparison `{}` of an IP version", quoted(op))),
            };
        }
        self.is_on_transport |= is_on_transport(left);
        self.is_on_any_ports |= payload(left).is_some_and(|(protocol, _)| protocol == "th");
        let left = left_of(left)?;
        if let Some(family) = left.family {
            self.set("family", format!("\"{family}\""))?;
        }
        if let Some(number) = left.protocol {
            self.set("protocol", protocol(number))?;
        }
        let values = self.values(op, &left, right, sets)?;
        let value = match (op, &left.kind) {
            ("!=", _) => format!("{{ not = {values} }}"),
            ("==" | "in", _) | ("<" | ">" | "<=" | ">=", Kind::Number(_)) => values,
            (op, _) => return Err(format!("the comparison `{}` of `{}`", quoted(op), left.key)),
        };
        self.set(&left.key, value)
    }

    /// The right side in TOML.
    fn values(&mut self, op: &str, left: &Left, right: &Value, sets: &Sets<'_>) -> Result<String, String> {
        if let (Kind::Number(most), "<" | ">" | "<=" | ">=") = (left.kind, op) {
            let number = right.as_u64().filter(|number| number <= &most).ok_or("not a number")?;
            let (low, high) = match op {
                "<" => (0, number.checked_sub(1).ok_or("it matches nothing")?),
                "<=" => (0, number),
                ">" => (number + 1, most),
                _ => (number, most),
            };
            return if low <= high {
                Ok(format!("\"{low}-{high}\""))
            } else {
                Err("it matches nothing".to_owned())
            };
        }
        if let Some(set) = right.as_str().and_then(|text| text.strip_prefix('@')) {
            let name = sets.named(set, left)?;
            let value = format!("\"{name}\"");
            self.sets.insert(name);
            return Ok(value);
        }
        match right.get("set").and_then(Value::as_array) {
            Some(items) if items.is_empty() => Err("it matches nothing".to_owned()),
            Some(items) => {
                let items: Vec<String> =
                    items.iter().map(|item| left.item(item)).collect::<Result<_, _>>()?;
                Ok(format!("[{}]", items.join(", ")))
            }
            None => left.item(right),
        }
    }
}

/// A protocol as the language writes it.
fn protocol(number: u8) -> String {
    format!("\"{}\"", IpProtocol(number))
}

/// `meta nfproto ipv4` and `meta protocol ip`, with the key of `meta`.
fn version_of<'v>(left: &'v Value, right: &Value) -> Option<(&'static str, &'v str)> {
    let key = left.pointer("/meta/key")?.as_str()?;
    let family = match (key, right.as_str()?) {
        ("nfproto", "ipv4") | ("protocol", "ip") => "ipv4",
        ("nfproto", "ipv6") | ("protocol", "ip6") => "ipv6",
        _ => return None,
    };
    Some((family, key))
}

/// The payload that an expression is about.
fn payload(left: &Value) -> Option<(&str, &str)> {
    let payload = left.get("payload")?;
    Some((payload.get("protocol")?.as_str()?, payload.get("field")?.as_str()?))
}

/// Whether a field is the transport protocol or behind the IP header.
fn is_on_transport(left: &Value) -> bool {
    let meta = left.pointer("/meta/key").and_then(Value::as_str);
    meta == Some("l4proto")
        || payload(left)
            .is_some_and(|(protocol, _)| matches!(protocol, "tcp" | "udp" | "th" | "icmp" | "icmpv6"))
}

/// TCP flags: under a mask, any or none of several, or one of several combinations. The key, and the pattern in TOML.
fn flags_of(op: &str, left: &Value, right: &Value) -> Result<Option<(String, String)>, String> {
    let masked = left.get("&").and_then(Value::as_array);
    let subject = masked.and_then(|both| both.first()).unwrap_or(left);
    let Some((protocol @ "tcp", field @ "flags")) = payload(subject) else { return Ok(None) };
    let mask = match masked.and_then(|both| both.get(1)) {
        Some(mask) => flags(mask)?,
        None => u8::MAX,
    };
    let refused = || format!("the comparison `{}` of TCP flags", quoted(op));
    let exactly = |value: &Value| match flags(value)? {
        value if value & !mask == 0 && mask != 0 => {
            Ok(format!("\"{}\"", flag_pattern(&TCP_FLAGS, value, mask)))
        }
        _ => Err(refused()),
    };
    let any = |of: u8| {
        let set = TCP_FLAGS.iter().filter(|(_, bit)| of & bit != 0);
        format!("[{}]", set.map(|(name, _)| format!("\"{name}\"")).collect::<Vec<_>>().join(", "))
    };
    let pattern = match (op, masked.is_some()) {
        ("==", _) => match right.get("set").and_then(Value::as_array) {
            // The flags are one of these combinations; a list of names is one combination.
            Some(choices) if !choices.is_empty() => {
                let choices: Vec<String> = choices.iter().map(exactly).collect::<Result<_, _>>()?;
                format!("[{}]", choices.join(", "))
            }
            _ => exactly(right)?,
        },
        ("in", false) if flags(right)? != 0 => any(flags(right)?),
        ("!", false) if flags(right)? != 0 => {
            format!("\"{}\"", flag_pattern(&TCP_FLAGS, 0, flags(right)?))
        }
        // `flags & (syn | ack) != 0`
        ("!=", true) if flags(right)? == 0 && mask != 0 => any(mask),
        _ => return Err(refused()),
    };
    Ok(Some((format!("{protocol}_{field}"), pattern)))
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

/// The key for what is compared.
fn left_of(left: &Value) -> Result<Left, String> {
    let of = |key: &str, kind, family, protocol| Ok(Left { key: key.to_owned(), kind, family, protocol });
    let port = Kind::Number(u16::MAX.into());
    if let Some(key) = left.pointer("/meta/key").and_then(Value::as_str) {
        return match key {
            "l4proto" => of("protocol", Kind::Protocol, None, None),
            "protocol" => of("ethertype", Kind::EtherType, None, None),
            "iif" | "iifname" => {
                Err("the policy is that of one port, whatever its interface is called".to_owned())
            }
            other => Err(format!("`meta {}` cannot be matched", quoted(other))),
        };
    }
    let Some((protocol, field)) = payload(left) else {
        let what = left.as_object().and_then(|left| left.keys().next()).map_or("this", String::as_str);
        let why = if what == "ct" { ": a policy does not know the state of connections" } else { "" };
        return Err(format!("`{}` cannot be matched{why}", quoted(what)));
    };
    let (v4, v6) = (Some("ipv4"), Some("ipv6"));
    let byte = Kind::Number(u8::MAX.into());
    match (protocol, field) {
        ("ip", "saddr") => of("src", Kind::Address, v4, None),
        ("ip", "daddr") => of("dst", Kind::Address, v4, None),
        ("ip", "protocol") => of("protocol", Kind::Protocol, v4, None),
        ("ip", "ttl") => of("ttl", byte, v4, None),
        ("ip", "dscp") => of("dscp", Kind::Dscp, v4, None),
        ("ip6", "saddr") => of("src", Kind::Address, v6, None),
        ("ip6", "daddr") => of("dst", Kind::Address, v6, None),
        ("ip6", "nexthdr") => of("protocol", Kind::Protocol, v6, None),
        ("ip6", "hoplimit") => of("hop_limit", byte, v6, None),
        ("ip6", "dscp") => of("dscp", Kind::Dscp, v6, None),
        ("tcp", "sport") => of("src_port", port, None, Some(IpProtocol::TCP.0)),
        ("tcp", "dport") => of("dst_port", port, None, Some(IpProtocol::TCP.0)),
        ("udp", "sport") => of("src_port", port, None, Some(IpProtocol::UDP.0)),
        ("udp", "dport") => of("dst_port", port, None, Some(IpProtocol::UDP.0)),
        ("th", "sport") => of("src_port", port, None, None),
        ("th", "dport") => of("dst_port", port, None, None),
        ("icmp", "type") => of(&format!("{protocol}_{field}"), Kind::MessageType, v4, Some(ICMP)),
        ("icmp", "code") => of(&format!("{protocol}_{field}"), byte, v4, Some(ICMP)),
        ("icmpv6", "type") => of(&format!("{protocol}_{field}"), Kind::MessageType, v6, Some(ICMPV6)),
        ("icmpv6", "code") => of(&format!("{protocol}_{field}"), byte, v6, Some(ICMPV6)),
        ("ether", "saddr") => of("src_mac", Kind::Mac, None, None),
        ("ether", "daddr") => of("dst_mac", Kind::Mac, None, None),
        ("ether", "type") => of("ethertype", Kind::EtherType, None, None),
        ("vlan", "id") => of("vlan", Kind::Number(4095), None, None),
        _ => Err(format!("`{} {}` cannot be matched", quoted(protocol), quoted(field))),
    }
}

impl Left {
    /// One value in TOML: a value, a prefix or a range.
    fn item(&self, value: &Value) -> Result<String, String> {
        // Elements with a timeout or a counter.
        let value = value.pointer("/elem/val").unwrap_or(value);
        let wrong =
            || format!("`{}` has a value that is not supported: {}", self.key, quoted(&value.to_string()));
        if let Some(prefix) = value.get("prefix") {
            let address =
                prefix.get("addr").and_then(Value::as_str).and_then(|text| text.parse::<IpAddr>().ok());
            let (Some(address), Some(length)) = (address, prefix.get("len").and_then(Value::as_u64)) else {
                return Err(wrong());
            };
            return if self.kind == Kind::Address {
                Ok(format!("\"{address}/{length}\""))
            } else {
                Err(wrong())
            };
        }
        if let Some(range) = value.get("range") {
            let end = |index: usize| range.get(index).and_then(|end| self.text(end));
            let is_range = matches!(self.kind, Kind::Address | Kind::Number(_));
            return match (end(0), end(1)) {
                (Some(low), Some(high)) if is_range => Ok(format!("\"{low}-{high}\"")),
                _ => Err(wrong()),
            };
        }
        let text = self.text(value).ok_or_else(wrong)?;
        match self.kind {
            Kind::Number(_) | Kind::MessageType => Ok(text),
            _ => Ok(format!("\"{text}\"")),
        }
    }

    /// A single value, if it is one of the key.
    fn text(&self, value: &Value) -> Option<String> {
        let number =
            |most: u64| value.as_u64().filter(|number| *number <= most).map(|number| number.to_string());
        match self.kind {
            Kind::Address => value.as_str()?.parse::<IpAddr>().ok().map(|address| address.to_string()),
            Kind::Mac => value.as_str()?.parse::<MacAddr>().ok().map(|mac| mac.to_string()),
            Kind::Number(most) => number(most),
            Kind::Protocol => match value.as_str() {
                Some("ipv6-icmp") => Some(IpProtocol::ICMPV6.to_string()),
                Some(name) => name.parse::<IpProtocol>().ok().map(|protocol| protocol.to_string()),
                None => number(u8::MAX.into()),
            },
            Kind::EtherType => match value.as_str() {
                Some("ip") => Some(EtherType::IPV4.to_string()),
                Some("ip6") => Some(EtherType::IPV6.to_string()),
                Some(name) => name.parse::<EtherType>().ok().map(|known| known.to_string()),
                None => number(u16::MAX.into()),
            },
            Kind::MessageType => {
                let known: &[(&str, u8)] =
                    if self.protocol == Some(ICMP) { &ICMP_TYPES } else { &ICMPV6_TYPES };
                let named = value.as_str().and_then(|name| known.iter().find(|(known, _)| *known == name));
                named.map(|(_, kind)| kind.to_string()).or_else(|| number(u8::MAX.into()))
            }
            Kind::Dscp => match value.as_str() {
                Some(name) if name.chars().all(|c| c.is_ascii_alphanumeric()) => Some(name.to_owned()),
                Some(_) => None,
                None => number(63),
            },
        }
    }
}
