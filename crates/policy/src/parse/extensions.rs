//! `ipv6_extensions = "skip"`: rules on protocols, ports and types of messages that also match behind IPv6
//! extension headers. Such a rule becomes two: the rule itself, which devices can match, and one with the
//! same conditions on the fields behind extension headers, which workers decide. No packet matches both, so
//! their order does not matter.

use std::ops::Range;

use packet::{EtherType, Field, Header, IpProtocol};
use program::{Family, Match, RangeSet};

use crate::policy::{Action, Direction, RuleDefinition};

use super::conflicts;
use super::matches;
use super::reader::{Reader, Value};

/// The key of a policy and of a rule.
pub(super) const KEY: &str = "ipv6_extensions";

/// Ends the names of rules on what follows extension headers. Names in a policy cannot contain a tilde.
const EXTENSIONS_SUFFIX: &str = "~extensions";
/// Ends the name of a rule on IPv6 packets without extension headers.
const IPV6_SUFFIX: &str = "~ipv6";

/// Reads the key: whether to skip extension headers.
pub(super) fn read(reader: &mut Reader, value: &Value<'_>) -> Option<bool> {
    matches::word(reader, value, KEY, &[("stop", false), ("skip", true)])
}

/// The key of one rule: whether it skips extension headers, unless the value is wrong, and its place.
pub(super) type Own = Option<(Option<bool>, Range<usize>)>;

/// Reads the key of a rule.
pub(super) fn of_rule(reader: &mut Reader, rule: &Value<'_>) -> Own {
    let value = rule.get_ref().as_table()?.get(KEY)?;
    Some((read(reader, value), value.span()))
}

/// The rules that a rule of the policy becomes; `skips`: the policy's `ipv6_extensions`, which the rule's own
/// overrides.
pub(super) fn rules(reader: &mut Reader, rule: RuleDefinition, own: Own, skips: bool) -> Vec<RuleDefinition> {
    if !own.as_ref().map_or(skips, |(own, _)| *own == Some(true)) {
        return vec![rule];
    }
    let Some((reason, hint)) = obstacle(&rule) else { return split(rule) };
    if let Some((_, span)) = own {
        let place = reader.place(span);
        let message = format!("`{KEY}` has no effect: {reason}");
        reader.push(place.warning(message, "skips no headers").hint(hint));
    }
    vec![rule]
}

/// Why a rule matches nothing behind extension headers, and what to do.
fn obstacle(rule: &RuleDefinition) -> Option<(&'static str, &'static str)> {
    let matches = &rule.matches;
    let conditions = matches.values().filter(|(field, _)| field.behind_extension_headers().is_some());
    let mut conditions = conditions.filter(|(field, values)| *field != Field::Protocol || !is_any(values));
    let protocols = matches.get(Field::Protocol);
    if rule.direction == Direction::Egress {
        let hint = "remove it: only the fields that a device can match decide on sent packets";
        return Some(("a worker looks behind extension headers, and it does not get sent packets", hint));
    }
    if matches!(rule.action, Action::Sniff(_)) {
        return Some(("a sniffer gets all packets", "remove it"));
    }
    if !may_be_ipv6(matches) {
        return Some(("the rule matches IPv4 packets only", "remove it, or add IPv6 addresses"));
    }
    if matches.needs_extended() || matches.needs_tunnel() {
        let hint = "write a rule of its own with keys such as `ext_protocol` and `ext_dst_port`";
        return Some((
            "the match is on extension headers or on a tunnel, which is not read behind them",
            hint,
        ));
    }
    if matches.needs_header(Header::Sctp) {
        let hint = "write a rule of its own with ext_protocol = \"sctp\", or remove it";
        return Some(("the ports of SCTP are not read behind extension headers", hint));
    }
    if conditions.next().is_none() {
        let hint = "add `protocol`, `dst_port` or the like, or remove it";
        return Some(("no condition is on what follows extension headers", hint));
    }
    if protocols.is_some_and(|protocols| without_extensions(protocols).is_empty()) {
        return Some(("the protocols of the match are extension headers themselves", "remove it"));
    }
    None
}

fn is_any(protocols: &RangeSet<u32>) -> bool {
    protocols.ranges() == [(0, u8::MAX.into())]
}

fn may_be_ipv4(matches: &Match) -> bool {
    let (ipv4, _) = conflicts::possible(matches);
    ipv4 && may_have_type(matches, EtherType::IPV4)
}

fn may_be_ipv6(matches: &Match) -> bool {
    let (_, ipv6) = conflicts::possible(matches);
    ipv6 && may_have_type(matches, EtherType::IPV6)
}

fn may_have_type(matches: &Match, ether_type: EtherType) -> bool {
    matches.get(Field::EtherType).is_none_or(|types| types.contains(ether_type.0.into()))
}

/// The protocols that are no extension headers.
fn without_extensions(protocols: &RangeSet<u32>) -> RangeSet<u32> {
    let headers = RangeSet::each(IpProtocol::EXTENSION_HEADERS.map(|header| header.0.into()));
    protocols.intersect(&headers.complement(u8::MAX.into()))
}

/// The rule without extension headers, and what it matches behind them.
fn split(rule: RuleDefinition) -> Vec<RuleDefinition> {
    let named = |suffix: &str, matches: Match| RuleDefinition {
        name: format!("{}{suffix}", rule.name),
        matches,
        ..rule.clone()
    };
    let behind = named(EXTENSIONS_SUFFIX, behind(&rule.matches));
    // The number of an extension header is a protocol of IPv4 packets only.
    let narrower = rule.matches.get(Field::Protocol).filter(|protocols| !is_any(protocols));
    let narrower = narrower.map(|protocols| (protocols, without_extensions(protocols)));
    let Some((_, others)) = narrower.filter(|(protocols, others)| *protocols != others) else {
        return vec![rule, behind];
    };
    let ipv6 = Match { family: Some(Family::V6), ..rule.matches.clone() }.with(Field::Protocol, others);
    if !may_be_ipv4(&rule.matches) {
        return vec![named("", ipv6), behind];
    }
    let ipv4 = Match { family: Some(Family::V4), ..rule.matches.clone() };
    vec![named("", ipv4), named(IPV6_SUFFIX, ipv6), behind]
}

/// Returns the match with the conditions on the fields behind extension headers. The number of such a header
/// stays a value of the protocol there: it is that of packets whose headers cannot be read to their end.
fn behind(matches: &Match) -> Match {
    let mut behind = matches.clone();
    for (field, values) in matches.values() {
        if let Some(extended) = field.behind_extension_headers() {
            behind.remove(&[field]);
            match field {
                Field::Protocol if is_any(values) => {}
                _ => behind.set(extended, values.clone()),
            }
        }
    }
    behind
}
