//! Combinations of keys that no packet can match. Those found here are mistakes of the operator and refused;
//! other matches that no packet meets (those with an empty set, for example) get a warning from the compiler.

use std::sync::LazyLock;

use packet::{EtherType, FIELDS, Field, Form, Header, IpProtocol, Layers, Row};
use program::{Family, Fragments, Match, RangeSet};

use crate::hint::ProblemHint;

use super::matches::Spans;
use super::reader::Reader;

/// A finding: the key that it points at, the message, the hint.
type Finding = (&'static str, String, ProblemHint);

/// The findings of one match.
#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn push(&mut self, (key, message, hint): (&'static str, String, &'static str)) {
        self.0.push((key, message, hint.into()));
    }

    /// A finding about two keys that no packet has together. `is_only_pair`: no further key contradicts one
    /// of them. With one, a rule for each key would leave a rule with the further key alone, which matches
    /// too much.
    fn push_pair(
        &mut self,
        [one, other]: [&'static str; 2],
        is_only_pair: bool,
        message: String,
        hint: &'static str,
    ) {
        let hint = match is_only_pair {
            true => ProblemHint::rule_for_each(hint, one, other),
            false => hint.into(),
        };
        self.0.push((other, message, hint));
    }
}

/// Reports the conflicts of a match whose keys are valid one by one.
pub(super) fn check(reader: &mut Reader, matches: &Match, spans: &Spans) {
    let mut findings = Findings::default();
    tag_protocols(matches, &mut findings);
    vlans(matches, &mut findings);
    families(matches, spans, &mut findings);
    protocols(matches, Field::Protocol, |row| row.header.is_behind_ip().then_some(row.header), &mut findings);
    let extended = |row: &Row| Some(row.field.without_extension_headers()?.row().header);
    protocols(
        matches,
        Field::ExtProtocol,
        |row| extended(row).filter(|header| header.is_behind_ip()),
        &mut findings,
    );
    tunnels(matches, &mut findings);
    fragments(matches, &mut findings);
    for (key, message, hint) in findings.0 {
        let span = spans.get(key).cloned().unwrap_or(0..0);
        reader.error_with(span, message, "contradicts the rest of the match", hint);
    }
}

/// Warns of values that packets may have but should not.
pub(super) fn warn(reader: &mut Reader, matches: &Match, spans: &Spans) {
    let mut warn = |key: &str, message: &str, label: &str, hint: &str| {
        let place = reader.place(spans.get(key).cloned().unwrap_or(0..0));
        reader.push(place.warning(message, label).hint(hint));
    };
    let reserved = RangeSet::single(RESERVED_VLAN);
    for field in [Field::VlanId, Field::InnerVlanId] {
        let key = field.name();
        if matches.get(field) == Some(&reserved) {
            let message = "no frame should have VLAN 4095: the id is reserved";
            warn(
                key,
                message,
                "reserved by IEEE 802.1Q",
                "ids are 1 to 4094; 0 marks a frame with a priority and no VLAN",
            );
        }
    }
    if let Some(types) = matches.get(Field::EtherType)
        && let Some(tag) = TAG_PROTOCOLS.into_iter().find(|tag| *types == RangeSet::single(*tag))
    {
        let message =
            format!("ethertype {tag:#06x} marks a VLAN tag, and `ethertype` matches the type after the tags");
        warn(
            "ethertype",
            &message,
            "occurs there only after two tags",
            "write vlan = \"any\", or `vlan_tpid`",
        );
    }
}

/// The reserved VLAN id (IEEE 802.1Q, table 9-2).
const RESERVED_VLAN: u32 = 0x0fff;

/// The tag protocols that `packet` parses as VLAN tags; any other is an ethertype.
const TAG_PROTOCOLS: [u32; 3] = [0x8100, 0x88a8, 0x9100];

fn tag_protocols(matches: &Match, findings: &mut Findings) {
    for field in [Field::VlanTpid, Field::InnerVlanTpid] {
        let key = field.name();
        let Some(tpids) = matches.get(field).filter(|tpids| !tpids.is_empty()) else { continue };
        if !TAG_PROTOCOLS.into_iter().any(|tpid| tpids.contains(tpid)) {
            let message = format!("`{key}` is not the protocol of a recognised VLAN tag");
            findings.push((
                key,
                message,
                "write 0x8100, 0x88a8 or 0x9100; match other types with `ethertype`",
            ));
        }
    }
}

fn vlans(matches: &Match, findings: &mut Findings) {
    let key_of = |header: Header| {
        let mut keys = matches.values().map(|(field, _)| field.row()).filter(|row| row.header == header);
        keys.next().map(|row| row.name)
    };
    let second = || key_of(Header::InnerVlan).or((matches.inner_vlan == Some(true)).then_some("inner_vlan"));
    if matches.vlan == Some(false) {
        let Some(key) = key_of(Header::Vlan).or_else(second) else { return };
        let message = format!("`{key}` needs a tag, and `vlan = \"none\"` excludes it");
        findings.push((key, message, "remove one of them"));
    } else if matches.inner_vlan == Some(false)
        && let Some(key) = key_of(Header::InnerVlan)
    {
        let message = format!("`{key}` needs a second tag, and `inner_vlan = \"none\"` excludes it");
        findings.push((key, message, "remove one of them"));
    }
}

/// Whether the match can match IPv4 packets, and IPv6 packets.
pub(super) fn possible(matches: &Match) -> (bool, bool) {
    let implied = matches.implied_family();
    let mut v4 = implied != Some(Family::V6) && matches.family != Some(Family::V6);
    let mut v6 = implied != Some(Family::V4) && matches.family != Some(Family::V4);
    for addresses in [&matches.src, &matches.dst].into_iter().flatten() {
        // An empty set is a warning, not a conflict.
        if !addresses.is_empty() {
            v4 &= !addresses.v4.is_empty();
            v6 &= !addresses.v6.is_empty();
        }
    }
    (v4, v6)
}

/// The keys that belong to one IP version only, but for `src` and `dst`, which are keys of both.
static VERSION_KEYS: LazyLock<[(Layers, Vec<&str>); 2]> = LazyLock::new(|| {
    let keys = |version, others: &[&'static str]| {
        let rows =
            FIELDS.iter().filter(|row| row.form != Form::Address && row.header.version() == Some(version));
        (version, others.iter().copied().chain(rows.map(|row| row.name)).collect())
    };
    [keys(Layers::IPV4, &["ip_options"]), keys(Layers::IPV6, &["hop_limit", "traffic_class"])]
});

/// The keys of the match that belong to this IP version only.
fn keys_of(spans: &Spans, version: Layers) -> impl Iterator<Item = &'static str> {
    let keys = VERSION_KEYS.iter().filter(move |(of, _)| *of == version);
    keys.flat_map(|(_, keys)| keys.iter().copied()).filter(move |key| spans.contains_key(key))
}

/// The first key that belongs to this IP version only, `ip_options` before others.
fn first_of(spans: &Spans, version: Layers) -> Option<&'static str> {
    keys_of(spans, version).min_by_key(|key| (*key != "ip_options", *key))
}

/// Sets the IP version of a match with a key that belongs to IPv6 only.
pub(super) fn imply_family(matches: &mut Match, spans: &Spans) {
    if matches.family.is_none() && first_of(spans, Layers::IPV6).is_some() {
        matches.family = Some(Family::V6);
    }
}

/// Finds keys of one IP version in combination with keys of the other.
fn versions(matches: &Match, spans: &Spans, findings: &mut Findings) {
    let (v4_key, v6_key) = (first_of(spans, Layers::IPV4), first_of(spans, Layers::IPV6));
    match (v4_key, v6_key, matches.family) {
        (Some("ip_options"), _, Some(Family::V6)) => {
            let message = "`ip_options` is an IPv4 field, but `family` is ipv6".to_owned();
            findings.push(("ip_options", message, "IPv6 has extension headers: see `protocol`"));
        }
        (Some(key), _, Some(Family::V6)) => {
            findings.push((
                key,
                format!("`{key}` is an IPv4 field, but `family` is ipv6"),
                "remove one of them",
            ));
        }
        (_, Some(key), Some(Family::V4)) => {
            findings.push((
                key,
                format!("`{key}` is an IPv6 field, but `family` is ipv4"),
                "remove one of them",
            ));
        }
        (Some(v4_key), Some(v6_key), _) => {
            let message = format!("`{v4_key}` is an IPv4 field and `{v6_key}` an IPv6 field");
            let is_alone = |version| keys_of(spans, version).count() == 1;
            let is_only_pair = is_alone(Layers::IPV4) && is_alone(Layers::IPV6);
            let hint = "write a rule for each version";
            findings.push_pair([v4_key, v6_key], is_only_pair, message, hint);
        }
        (_, Some(v6_key), None) => {
            for (key, addresses) in [("src", &matches.src), ("dst", &matches.dst)] {
                if addresses.as_ref().is_some_and(|set| set.v6.is_empty() && !set.v4.is_empty()) {
                    let message = format!("`{v6_key}` is an IPv6 field, but `{key}` has IPv4 addresses only");
                    findings.push((key, message, "remove one of them"));
                }
            }
        }
        _ => {}
    }
}

fn families(matches: &Match, spans: &Spans, findings: &mut Findings) {
    versions(matches, spans, findings);
    if !findings.0.is_empty() {
        return;
    }
    let (v4, v6) = possible(matches);
    if !v4 && !v6 {
        for (key, addresses) in [("src", &matches.src), ("dst", &matches.dst)] {
            let Some(addresses) = addresses else { continue };
            let v4_key = first_of(spans, Layers::IPV4);
            let other = match (matches.family, v4_key) {
                (Some(Family::V4), _) if addresses.v4.is_empty() => {
                    "`family` is ipv4, but `KEY` has IPv6 addresses only"
                }
                (Some(Family::V6), _) if addresses.v6.is_empty() => {
                    "`family` is ipv6, but `KEY` has IPv4 addresses only"
                }
                (_, Some(v4_key)) if addresses.v4.is_empty() => {
                    let message = format!("`{v4_key}` is an IPv4 field, but `{key}` has IPv6 addresses only");
                    return findings.push((key, message, "remove one of them"));
                }
                _ => continue,
            };
            return findings.push((key, other.replace("KEY", key), "remove one of them"));
        }
        let message = "`src` and `dst` have no IP version in common".to_owned();
        return findings.push(("dst", message, "write a rule for each version"));
    }
    let Some(types) = matches.get(Field::EtherType).filter(|_| matches.needs_ip()) else { return };
    let v4 = v4 && types.contains(EtherType::IPV4.0.into());
    let v6 = v6 && types.contains(EtherType::IPV6.0.into());
    if !v4 && !v6 && !types.is_empty() {
        let message = "`ethertype` excludes the IP packets that the other keys require".to_owned();
        findings.push(("ethertype", message, "remove it: IP keys imply the ethertype"));
    }
}

/// Conflicts of the keys behind an IP header, or behind extension headers, with each other and with the key
/// of the protocol there. `header_of` gives their headers.
fn protocols(
    matches: &Match,
    key: Field,
    header_of: impl Fn(&Row) -> Option<Header>,
    findings: &mut Findings,
) {
    let rows = || {
        let rows = matches.values().map(|(field, _)| field.row());
        rows.filter_map(|row| Some((row.name, header_of(row)?)))
    };
    let disjoint =
        |one: Header, other: Header| !one.protocols().iter().any(|own| other.protocols().contains(own));
    let pairs = rows().flat_map(|one| rows().map(move |other| (one, other)));
    // Fields of two IP versions are another conflict.
    let have_two_versions = |one: Header, other: Header| {
        one.version().zip(other.version()).is_some_and(|(one, other)| one != other)
    };
    let mut pairs = pairs.filter(|((_, one), (_, other))| !have_two_versions(*one, *other));
    let found = pairs.find(|((_, header), (_, other_header))| disjoint(*header, *other_header));
    if let Some(((one, header), (other, other_header))) = found {
        let message = format!(
            "`{one}` is a field of {} and `{other}` of {}: no packet has both",
            header.name(),
            other_header.name()
        );
        let is_contrary = |own: Header| disjoint(own, header) || disjoint(own, other_header);
        let is_only_pair = rows().filter(|(_, own)| is_contrary(*own)).count() == 2;
        return findings.push_pair([one, other], is_only_pair, message, "write a rule for each");
    }
    let Some(protocols) = matches.get(key).filter(|protocols| !protocols.is_empty()) else {
        return;
    };
    let excluded = |header: Header| !header.protocols().iter().any(|own| protocols.contains(own.0.into()));
    // The last of the keys that need the fewest protocols: flags rather than ports.
    let without = rows().filter(|(_, header)| excluded(*header));
    let Some((first, header)) = without.min_by_key(|(_, header)| header.protocols().len()) else { return };
    let name = rows().filter(|(_, other)| *other == header).map(|(name, _)| name).last().unwrap_or(first);
    let (which, hint) = match (header, key) {
        (Header::Ports, Field::Protocol) if protocols.contains(IpProtocol::SCTP.0.into()) => {
            ("both", "write `sctp_src_port` and `sctp_dst_port` for SCTP, in a rule of their own")
        }
        (Header::Ports, Field::Protocol) => {
            ("both", "write protocol = \"tcp\" or \"udp\", or leave it out for both")
        }
        (Header::Ports, _) => ("both", "write ext_protocol = \"tcp\" or \"udp\", or leave it out for both"),
        (_, Field::Protocol) => ("it", "leave `protocol` out: the key implies it"),
        _ => ("it", "leave `ext_protocol` out: the key implies it"),
    };
    let message = format!("`{name}` needs {}, and `{}` excludes {which}", header.name(), key.name());
    findings.push((name, message, hint));
}

/// Whether a header behind IPv6 extension headers is needed.
fn needs_header_behind(matches: &Match) -> bool {
    let mut headers = matches.values().map(|(field, _)| field.row().header);
    headers.any(|header| header.is_extended() && header != Header::Extended)
}

/// The headers of tunnels that have keys.
const TUNNELS: [Header; 3] = [Header::Esp, Header::Vxlan, Header::Gre];

fn tunnels(matches: &Match, findings: &mut Findings) {
    let mut rows = matches.values().map(|(field, _)| field.row());
    if let Some(row) = rows.find(|row| row.header.is_extended()).filter(|_| matches.needs_tunnel()) {
        let message = format!("`{}` cannot be combined with a tunnel", row.name);
        findings.push((
            row.name,
            message,
            "tunnels behind extension headers are not read: remove one of them",
        ));
    }
    let mut named: Option<(&str, &str)> = None;
    for header in TUNNELS {
        let mut rows = matches.values().map(|(field, _)| field.row());
        let Some(key) =
            rows.find(|row| row.header.tunnel_layer() == header.tunnel_layer()).map(|row| row.name)
        else {
            continue;
        };
        let name = header.name();
        if let Some((other_key, other)) = named {
            let message =
                format!("`{other_key}` is a field of {other} and `{key}` of {name}: no packet has both");
            let of_tunnels = matches.values().filter(|(field, _)| field.row().header.is_tunnel());
            let is_only_pair = of_tunnels.count() == 2;
            return findings.push_pair([other_key, key], is_only_pair, message, "write a rule for each");
        }
        named = Some((key, name));
        if matches.get(Field::Protocol).is_some_and(|set| {
            !set.is_empty() && !header.protocols().iter().any(|own| set.contains(own.0.into()))
        }) {
            let message = format!("`{key}` is a field of {name}, but `protocol` excludes it");
            return findings.push(("protocol", message, "remove it: the other key implies it"));
        }
        let ports = matches.get(Field::DstPort).filter(|ports| !ports.is_empty());
        match header.udp_port() {
            Some(port) if ports.is_some_and(|ports| !ports.contains(port.into())) => {
                let message =
                    format!("`{key}` is a field of {name}, but `dst_port` excludes its UDP port {port}");
                return findings.push(("dst_port", message, "remove it: the other key implies it"));
            }
            None if matches.needs_transport() => {
                let message = format!("`{key}` is a field of {name}, which has neither ports nor TCP flags");
                return findings.push((key, message, "match those of the inner packet in `inner`"));
            }
            _ => {}
        }
        if matches.get(Field::EtherType).is_some_and(|types| {
            !types.is_empty()
                && !types.contains(EtherType::IPV4.0.into())
                && !types.contains(EtherType::IPV6.0.into())
        }) {
            let message = format!("`{key}` is a field of {name}, but `ethertype` excludes IP");
            return findings.push(("ethertype", message, "remove it: the other key implies it"));
        }
        if header == Header::Esp && matches.inner.is_some() {
            let message = "the payload of ESP is encrypted".to_owned();
            return findings.push(("inner", message, "match the SPI alone"));
        }
        if header != Header::Gre && matches.mpls.is_some() {
            let message = format!("`mpls` cannot be combined with fields of {name}");
            return findings.push((
                "mpls",
                message,
                "match labels after an inner Ethernet header in `inner`",
            ));
        }
    }
    if matches.needs_tunnel() && matches.fragment == Some(Fragments::LATER) {
        let message = "later fragments have no tunnel header".to_owned();
        findings.push(("fragment", message, "match them by address and protocol, in a rule of their own"));
    }
}

fn fragments(matches: &Match, findings: &mut Findings) {
    let Some(fragment) = matches.fragment else { return };
    if fragment == Fragments::LATER && (matches.needs_payload() || needs_header_behind(matches)) {
        let message = "later fragments have no TCP, UDP, SCTP or ICMP header".to_owned();
        let hint = "match them by address and protocol, in a rule of their own";
        return findings.push(("fragment", message, hint));
    }
    let only_v6 = possible(matches) == (false, true);
    if !only_v6 || fragment.contains(Fragments::WHOLE) {
        return;
    }
    // The first next header of an IPv6 fragment is the fragment header; headers after it are not parsed.
    let excludes_header =
        matches.get(Field::Protocol).is_some_and(|set| !set.contains(IpProtocol::FRAGMENT.0.into()));
    if excludes_header || matches.needs_payload() {
        let message = "IPv6 fragments have no protocol but `fragment` (44), and no ports".to_owned();
        findings.push(("fragment", message, "match them by address alone"));
    }
}
