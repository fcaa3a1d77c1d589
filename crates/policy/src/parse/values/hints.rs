//! Hints for texts that are not values: the notations of other tools, and misspelt words. They are made only
//! for problems that are listed, so they may take time.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packet::{Flag, IpProtocol, MacAddr};

use super::super::reader::nearest;
use super::super::sets::shortened;
use crate::hint::ProblemHint;

/// Words for any value in other tools.
const ANYTHING: [&str; 5] = ["any", "all", "*", "0/0", "anywhere"];

/// Well-known services and their ports, as in /etc/services.
const SERVICES: [(&str, u16); 22] = [
    ("ssh", 22),
    ("telnet", 23),
    ("smtp", 25),
    ("domain", 53),
    ("dns", 53),
    ("bootps", 67),
    ("dhcp", 67),
    ("tftp", 69),
    ("http", 80),
    ("www", 80),
    ("ntp", 123),
    ("snmp", 161),
    ("bgp", 179),
    ("ldap", 389),
    ("https", 443),
    ("syslog", 514),
    ("submission", 587),
    ("ldaps", 636),
    ("nfs", 2049),
    ("mysql", 3306),
    ("rdp", 3389),
    ("vxlan", 4789),
];

/// The named ethertypes except VLAN tags.
pub(crate) const ETHER_TYPES: [&str; 14] = [
    "ipv4",
    "arp",
    "ipv6",
    "flow_control",
    "slow",
    "mpls",
    "mpls_multicast",
    "pppoe_discovery",
    "pppoe_session",
    "eapol",
    "lldp",
    "macsec",
    "ptp",
    "roce",
];

/// Hints for mistakes that are possible with every key.
pub(in crate::parse) fn of_any_kind(text: &str, is_of_a_file: bool) -> Option<ProblemHint> {
    if text.is_empty() {
        return Some("the text is empty: write a value, or leave the key out".into());
    }
    if text.contains('\0') && is_of_a_file {
        return Some("it contains a NUL byte: this is not a text file".into());
    }
    if text.contains(|c: char| c.is_control() && c != '\t') {
        return Some("remove the control character".into());
    }
    if is_of_a_file {
        return of_a_file(text);
    }
    if ANYTHING.contains(&text) {
        return Some("leave the key out to match any value".into());
    }
    if let Some(excluded) = text.strip_prefix('!') {
        return Some(format!("write {{ not = \"{}\" }}", shortened(excluded.trim())).into());
    }
    if let Some(name) = text.strip_prefix(['@', '$']) {
        let plain = name.trim_matches(['{', '}']);
        return Some(format!("write a set as \"{0}\", a variable as \"${{{0}}}\"", shortened(plain)).into());
    }
    if let Some(name) = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) {
        let right = format!("${{{}}}", shortened(name.trim()));
        return Some(ProblemHint::word(format!("a variable is written \"{right}\""), text, &right));
    }
    None
}

/// A hint for several values in one text.
pub(in crate::parse) fn several(text: &str) -> Option<ProblemHint> {
    let parts: Vec<&str> = text.split([',', ';']).map(str::trim).collect();
    (parts.len() > 1 && parts.iter().all(|part| !part.is_empty()))
        .then(|| format!("write a list: [\"{}\"]", shortened(&parts.join("\", \""))).into())
}

fn of_a_file(text: &str) -> Option<ProblemHint> {
    if text.starts_with([';', '%']) || text.starts_with("//") || text.starts_with("--") {
        return Some("a comment begins with #".into());
    }
    if text.starts_with(['"', '\'']) {
        return Some("values in a file are written without quotes".into());
    }
    text.contains([',', ';', ' ', '\t']).then(|| "a file has one value per line".into())
}

/// A hint for ranges and bounds in the notation of other tools; `most` is the largest number of the field.
pub(super) fn number(text: &str, most: u128) -> Option<ProblemHint> {
    let digits = |text: &str| {
        let text = text.trim();
        (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))
            .then(|| text.parse::<u128>().ok())?
    };
    for sign in ["..=", "...", "..", ":", "–"] {
        if let Some((low, high)) = text.split_once(sign)
            && let (Some(low), Some(high)) = (digits(low), digits(high))
        {
            return Some(ProblemHint::write(text, &format!("{low}-{high}")));
        }
    }
    let above = |low: u128| (low <= most).then(|| ProblemHint::write(text, &format!("{low}-{most}")));
    if let Some(low) = text.strip_prefix(">=").and_then(digits).or_else(|| digits(text.strip_suffix('-')?)) {
        return above(low);
    }
    if let Some(low) = text.strip_prefix('>').and_then(digits) {
        return above(low.checked_add(1)?);
    }
    let below = |high: u128| ProblemHint::write(text, &format!("0-{high}"));
    if let Some(high) = text.strip_prefix("<=").and_then(digits) {
        return Some(below(high));
    }
    if let Some(high) = text.strip_prefix('<').and_then(digits) {
        return Some(below(high.saturating_sub(1)));
    }
    let hexadecimal = text.strip_prefix("0X")?;
    Some(ProblemHint::write(text, &format!("0x{}", shortened(&hexadecimal.to_ascii_lowercase()))))
}

pub(in crate::parse) fn port(text: &str) -> Option<ProblemHint> {
    let port = service(text)?.to_string();
    let words = format!("ports are numbers: {} is {port}", text.to_ascii_lowercase());
    Some(ProblemHint::word(words, text, &port))
}

/// The port of a service, if it is a well-known one.
pub(in crate::parse) fn service(text: &str) -> Option<u16> {
    SERVICES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, port)| *port)
}

pub(super) fn vlan(text: &str) -> Option<ProblemHint> {
    match text {
        "untagged" | "native" => Some(ProblemHint::write(text, "none")),
        "tagged" => Some(ProblemHint::write(text, "any")),
        _ => None,
    }
}

pub(in crate::parse) fn ether_type(text: &str) -> Option<ProblemHint> {
    match text {
        "ip" => return Some(ProblemHint::meant(text, "ipv4")),
        "vlan" | "802.1q" | "dot1q" => {
            return Some("`ethertype` does not match VLAN tags: write vlan = \"any\"".into());
        }
        _ => {}
    }
    if text.len() == 4 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Some(ProblemHint::write(text, &format!("0x{}", text.to_ascii_lowercase())));
    }
    one_of(text, &ETHER_TYPES)
}

pub(in crate::parse) fn protocol(text: &str) -> Option<ProblemHint> {
    if text.eq_ignore_ascii_case("ip") || text.eq_ignore_ascii_case("inet") {
        return Some("leave the key out to match every IP packet, or write family = \"ipv4\"".into());
    }
    if matches!(text, "icmp6" | "ipv6-icmp" | "icmp-v6") {
        return Some(ProblemHint::meant(text, "icmpv6"));
    }
    let parts: Vec<&str> = text.split(['/', '|', '+', '&']).map(str::trim).collect();
    if parts.len() > 1 && parts.iter().all(|part| part.parse::<IpProtocol>().is_ok()) {
        return Some(format!("write a list: [\"{}\"]", parts.join("\", \"")).into());
    }
    let names = protocols();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    one_of(text, &names)
}

/// The names of IP protocols.
pub(crate) fn protocols() -> Vec<String> {
    // Protocols without a name print as a number.
    let names = (0..=u8::MAX).map(|number| IpProtocol(number).to_string());
    names.filter(|name| name.starts_with(|c: char| c.is_ascii_alphabetic())).collect()
}

fn one_of(text: &str, words: &[&str]) -> Option<ProblemHint> {
    let near = nearest(&text.to_ascii_lowercase(), words.iter().copied())?;
    Some(ProblemHint::meant(text, near))
}

pub(super) fn dscp(text: &str) -> Option<ProblemHint> {
    match text.to_ascii_lowercase().as_str() {
        "be" | "df" | "default" => Some(ProblemHint::write(text, "cs0")),
        _ => number(text, 63),
    }
}

pub(super) fn ecn(text: &str) -> Option<ProblemHint> {
    match text.to_ascii_lowercase().as_str() {
        "ect" => Some("write [\"ect0\", \"ect1\"]".into()),
        _ => one_of(text, &["not_ect", "ect1", "ect0", "ce"]),
    }
}

pub(super) fn fragment(text: &str) -> Option<ProblemHint> {
    match text {
        "yes" | "true" | "is-fragment" => Some(ProblemHint::write(text, "any")),
        "no" | "false" => Some(ProblemHint::write(text, "none")),
        _ => one_of(text, &["any", "none", "first", "later"]),
    }
}

pub(super) fn flags(text: &str, known: &[Flag]) -> Option<ProblemHint> {
    let known: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
    let (written, text) = (text, text.to_ascii_lowercase());
    let is_known = |word: &str| known.contains(&word.trim_start_matches('!'));
    if let Some(name) = text.strip_prefix("not ").map(str::trim).filter(|name| is_known(name)) {
        return Some(ProblemHint::write(written, &format!("!{name}")));
    }
    // nft writes `SET/MASK`.
    if let Some((set, mask)) = text.split_once('/') {
        let set: Vec<&str> = set.split([',', '|']).map(str::trim).collect();
        let mask: Vec<&str> = mask.split([',', '|']).map(str::trim).collect();
        if set.iter().chain(&mask).all(|name| is_known(name)) {
            let flags = mask.iter().map(|name| match set.contains(name) {
                true => (*name).to_owned(),
                false => format!("!{name}"),
            });
            return Some(ProblemHint::write(written, &flags.collect::<Vec<_>>().join(",")));
        }
    }
    let words: Vec<&str> = text.split(['+', '|', ' ', '&', '-']).filter(|word| !word.is_empty()).collect();
    if words.len() > 1 && words.iter().all(|word| is_known(word)) {
        return Some(ProblemHint::write(written, &words.join(",")));
    }
    let mut parts = text.split(',').map(str::trim);
    let wrong = parts.find(|part| !is_known(part))?;
    one_of(wrong.trim_start_matches('!'), &known)
        .or_else(|| text.contains(',').then(|| format!("the flags are {}", known.join(", ")).into()))
}

pub(super) fn mac(text: &str) -> Option<ProblemHint> {
    if let Some((address, length)) = text.split_once('/')
        && address.parse::<MacAddr>().is_ok()
        && let Some(length) = length.parse::<u32>().ok().filter(|length| *length <= 48)
    {
        let ones = !(u64::MAX.checked_shr(16 + length).unwrap_or(0)) << 16;
        let [a, b, c, d, e, f, _, _] = ones.to_be_bytes();
        let right = format!("{address}/{}", MacAddr([a, b, c, d, e, f]));
        return Some(ProblemHint::word(format!("write the mask in full: {right}"), text, &right));
    }
    let digits: String = text.chars().filter(|c| !matches!(c, '.' | ':' | '-' | ' ')).collect();
    if digits.len() == 12 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let octets: Vec<&str> = (0..6).map(|octet| &digits[2 * octet..2 * octet + 2]).collect();
        return Some(ProblemHint::write(text, &octets.join(":").to_ascii_lowercase()));
    }
    match text {
        "unicast" => Some("write { not = \"multicast\" }".into()),
        _ => one_of(text, &["multicast", "broadcast"]),
    }
}

pub(super) fn address(text: &str) -> Option<ProblemHint> {
    if let Some((address, rest)) = text.split_once('/') {
        return address_with_mask(address, rest);
    }
    if let Some((low, high)) = text.split_once('-')
        && let (Ok(low), Ok(last)) = (low.trim().parse::<Ipv4Addr>(), high.trim().parse::<u8>())
    {
        let [a, b, c, _] = low.octets();
        return Some(ProblemHint::write(text, &format!("{low}-{}", Ipv4Addr::new(a, b, c, last))));
    }
    if let Some((address, zone)) = text.split_once('%')
        && address.parse::<Ipv6Addr>().is_ok()
    {
        let zone = shortened(zone);
        let words =
            format!("write {address}: a policy applies to one port; the zone `{zone}` is not supported");
        return Some(words.into());
    }
    let inside = text.strip_prefix('[').and_then(|text| text.split_once(']'));
    if let Some((address, _)) = inside.filter(|(address, _)| address.parse::<Ipv6Addr>().is_ok()) {
        return Some(format!("write {address}; match ports with `src_port` and `dst_port`").into());
    }
    if let Some((address, port)) = text.split_once(':')
        && address.parse::<Ipv4Addr>().is_ok()
        && port.parse::<u16>().is_ok()
    {
        return Some(format!("write {address}; match ports with `src_port` and `dst_port`").into());
    }
    dotted(text)
}

/// A hint for netmasks, wildcard masks, and prefixes with fewer than four octets.
fn address_with_mask(address: &str, rest: &str) -> Option<ProblemHint> {
    if let (Ok(address), Ok(mask)) = (address.parse::<Ipv4Addr>(), rest.parse::<Ipv4Addr>()) {
        let bits = u32::from(mask);
        if bits.leading_ones() + bits.trailing_zeros() < 32 {
            return Some("a mask must be a prefix: write prefixes or ranges".into());
        }
        let first = Ipv4Addr::from(u32::from(address) & bits);
        return Some(ProblemHint::write(
            &format!("{address}/{rest}"),
            &format!("{first}/{}", bits.leading_ones()),
        ));
    }
    let octets: Vec<u8> = address.split('.').map(|octet| octet.parse().ok()).collect::<Option<_>>()?;
    let length = rest.parse::<u8>().ok().filter(|length| *length <= 32)?;
    let mut whole = [0u8; 4];
    (octets.len() < 4).then_some(())?;
    whole[..octets.len()].copy_from_slice(&octets);
    let right = format!("{}/{length}", Ipv4Addr::from(whole));
    Some(ProblemHint::word(format!("write all four octets: {right}"), &format!("{address}/{rest}"), &right))
}

/// A hint for wildcards, leading zeros, and host names.
fn dotted(text: &str) -> Option<ProblemHint> {
    let parts: Vec<&str> = text.split('.').collect();
    if let [fixed @ .., "*"] = &*parts
        && let Some(fixed) = fixed.iter().map(|part| part.parse::<u8>().ok()).collect::<Option<Vec<u8>>>()
        && (1..4).contains(&fixed.len())
    {
        let mut whole = [0u8; 4];
        whole[..fixed.len()].copy_from_slice(&fixed);
        return Some(ProblemHint::write(text, &format!("{}/{}", Ipv4Addr::from(whole), fixed.len() * 8)));
    }
    let octets: Option<Vec<u32>> = parts.iter().map(|part| part.parse().ok()).collect();
    match octets.as_deref() {
        Some([a, b, c, d]) if [a, b, c, d].iter().all(|octet| **octet < 256) => {
            let plain: Vec<String> = [a, b, c, d].iter().map(ToString::to_string).collect();
            let address = plain.join(".").parse::<IpAddr>().ok()?;
            let words = format!("octets have no leading zeros: write {address}");
            Some(ProblemHint::word(words, text, &address.to_string()))
        }
        Some([_, _, _, _]) => Some("an octet is at most 255".into()),
        _ => {
            let is_host =
                parts.len() > 1 && text.contains(|c: char| c.is_ascii_alphabetic()) && !text.contains(':');
            is_host.then(|| "host names are not resolved: write addresses".into())
        }
    }
}
