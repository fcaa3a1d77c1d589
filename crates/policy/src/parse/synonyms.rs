//! The names that other tools (ethtool, nft, tc, switches) use for keys and words of the language, for hints.

use super::reader::nearest;
use crate::hint::ProblemHint;

/// The kind of table, the names, and the hint.
type Row = (&'static str, &'static [&'static str], &'static str);

const KEYS: [Row; 42] = [
    (
        "a match",
        &["src_ip", "src_ip4", "src_ip6", "src_addr", "saddr", "sip", "source", "from"],
        "write `src`",
    ),
    (
        "a match",
        &["dst_ip", "dst_ip4", "dst_ip6", "dst_addr", "daddr", "dip", "dest", "destination", "to"],
        "write `dst`",
    ),
    ("a match", &["sport", "source_port", "tcp_src", "udp_src"], "write `src_port`"),
    ("a match", &["dport", "dest_port", "destination_port", "tcp_dst", "udp_dst"], "write `dst_port`"),
    ("a match", &["port", "ports"], "write `src_port` or `dst_port`"),
    (
        "a match",
        &["sctp", "sctp_port", "sctp_src", "sctp_dst", "sctp_sport", "sctp_dport"],
        "write `sctp_src_port` or `sctp_dst_port`",
    ),
    ("a match", &["proto", "ip_proto", "l4proto", "nexthdr", "next_header"], "write `protocol`"),
    ("a match", &["vid", "vlan_id", "vlans", "dot1q"], "write `vlan`"),
    ("a match", &["pcp", "vlan_pcp", "vlan_prio"], "write `vlan_priority`"),
    ("a match", &["smac", "eth_src", "ether_src", "source_mac"], "write `src_mac`"),
    ("a match", &["dmac", "eth_dst", "ether_dst", "dest_mac", "destination_mac"], "write `dst_mac`"),
    ("a match", &["mac", "ether"], "write `src_mac` or `dst_mac`"),
    ("a match", &["type", "eth_type", "ether_type", "etype"], "write `ethertype`"),
    ("a match", &["ip", "ip_version", "version", "af"], "write `family`, or `src` and `dst`"),
    ("a match", &["icmp", "icmp6", "icmpv6"], "write protocol = \"icmp\", or `icmp_type` and `icmpv6_type`"),
    ("a match", &["vni", "vxlan"], "write `vxlan_vni`"),
    ("a match", &["spi"], "write `esp_spi`"),
    ("a match", &["gre"], "write protocol = \"gre\", or `gre_key` and `gre_protocol`"),
    ("a match", &["label", "mpls_label"], "write `mpls`"),
    ("a match", &["flags"], "write `tcp_flags` or `ip_flags`"),
    ("a match", &["tclass", "class"], "write `traffic_class`"),
    ("a match", &["hlim", "hoplimit"], "write `hop_limit`"),
    ("a match", &["frag", "fragments", "is_fragment"], "write `fragment`"),
    (
        "a match",
        &["interface", "iif", "iifname", "in_port", "dev"],
        "a policy applies to one port: remove this key",
    ),
    (
        "a match",
        &["user_def", "user-def", "raw"],
        "only header fields can be matched, not bytes at an offset",
    ),
    ("a rule", &["prio", "order", "seq", "loc"], "write `priority`"),
    ("a rule", &["then", "verdict", "target", "do"], "write `action`"),
    ("a rule", &["if", "when", "filter"], "write `match`"),
    (
        "a rule",
        &["queue", "group", "steer", "copy", "sniff"],
        "write action = { steer = \"GROUP\" }, or copy, or sniff",
    ),
    ("a rule", &["drop", "kernel", "pass"], "write action = \"drop\", \"kernel\" or \"pass\""),
    ("a rule", &["dir", "chain", "hook"], "write `direction`"),
    ("a rule", &["counter", "counters"], "write `count`"),
    ("a rule", &["rate", "police", "policer", "meter", "pps"], "write limit = \"10k/s\""),
    (
        "a rule",
        &["bps", "bandwidth", "bit_limit", "bits_per_second", "mbit"],
        "write limit = \"100Mbit/s\", for bits of frames per second",
    ),
    ("a rule", &["per_source", "by_source", "each"], "write per = \"source\", beside `limit`"),
    ("a rule", &["one_in", "sampling", "sample_rate"], "write sample = 100, for one packet in 100"),
    ("a rule", &["comment", "note", "doc", "summary", "title"], "write `description`, or a comment after #"),
    ("a rule", &["enabled", "disabled"], "to disable a rule, put # before each of its lines"),
    ("a group", &["comment", "note", "doc", "summary", "title"], "write `description`, or a comment after #"),
    ("a group", &["cores", "cpus", "members"], "write `workers`"),
    ("a group", &["fields", "hash_fields", "rss"], "write `hash`"),
    ("an action", &["group", "queue", "forward", "to"], "write { steer = \"GROUP\" }"),
];

/// Names of actions.
const ACTIONS: [Row; 4] = [
    ("an action", &["deny", "reject", "discard", "block", "blackhole"], "write \"drop\""),
    (
        "an action",
        &["accept", "allow", "permit", "host", "ignore", "return"],
        "write \"kernel\": it stays with the host",
    ),
    ("an action", &["mirror", "tee", "duplicate", "span"], "write { copy = \"GROUP\" }"),
    ("an action", &["queue", "forward", "redirect", "goto", "jump"], "write { steer = \"GROUP\" }"),
];

/// Other names for values, and the value.
const WORDS: [(&str, &str); 12] = [
    ("in", "ingress"),
    ("input", "ingress"),
    ("rx", "ingress"),
    ("out", "egress"),
    ("output", "egress"),
    ("tx", "egress"),
    ("4", "ipv4"),
    ("ip", "ipv4"),
    ("ip4", "ipv4"),
    ("inet", "ipv4"),
    ("6", "ipv6"),
    ("inet6", "ipv6"),
];

/// A hint for an unknown key of a table.
pub(super) fn of_key(of: &str, name: &str) -> Option<ProblemHint> {
    let hint = hint(KEYS.iter().filter(|(table, ..)| *table == of), name)?;
    // A row whose hint names one key is the name of that key in another tool.
    let key = hint.strip_prefix("write `").and_then(|rest| rest.strip_suffix('`'));
    Some(
        key.filter(|key| !key.contains('`'))
            .map_or_else(|| hint.into(), |key| ProblemHint::word(hint, name, key)),
    )
}

/// A hint for an unknown field of a packet: the key of a match that has this name in another tool, or the
/// nearest of the fields.
pub(crate) fn meant_field<'k>(name: &str, fields: impl Iterator<Item = &'k str>) -> Option<String> {
    let key = of_key("a match", name).map(|hint| hint.text().to_owned());
    key.filter(|hint| hint.starts_with("write `"))
        .or_else(|| nearest(name, fields).map(|near| format!("did you mean `{near}`?")))
}

/// A hint for an unknown action.
pub(super) fn of_action(text: &str) -> Option<&'static str> {
    let word = text.split_whitespace().next()?.to_ascii_lowercase();
    hint(ACTIONS.iter(), &word)
}

fn hint<'r>(mut rows: impl Iterator<Item = &'r Row>, name: &str) -> Option<&'static str> {
    rows.find(|(_, words, _)| words.contains(&name)).map(|(.., hint)| *hint)
}

/// The known word that another one means.
pub(super) fn of_word<'k>(text: &str, known: &[&'k str]) -> Option<&'k str> {
    let text = text.trim().to_ascii_lowercase();
    let meant = WORDS.iter().find(|(word, _)| *word == text).map(|(_, meant)| *meant);
    let meant = meant.and_then(|meant| known.iter().find(|word| **word == meant).copied());
    meant.or_else(|| nearest(&text, known.iter().copied()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys;

    /// A name that is a key needs no hint.
    #[test]
    fn no_synonym_is_a_key() {
        let tables = [
            ("a match", keys::MATCH.as_slice()),
            ("a rule", keys::RULE),
            ("a group", keys::GROUP),
            ("an action", keys::ACTION),
        ];
        for (of, words, _) in KEYS {
            let (_, known) = tables.iter().find(|(table, _)| *table == of).expect(of);
            for word in words {
                assert!(!known.iter().any(|key| key.name == *word), "{of}: {word}");
            }
        }
    }

    #[test]
    fn names_of_other_tools_are_recognised() {
        assert_eq!(of_key("a match", "vlan_id"), Some(ProblemHint::word("write `vlan`", "vlan_id", "vlan")));
        assert_eq!(of_key("a rule", "vlan_id"), None);
        assert_eq!(of_action("Reject with icmp"), Some("write \"drop\""));
        assert_eq!(of_word("RX", &["ingress", "egress"]), Some("ingress"));
        assert_eq!(of_word("IPv6", &["ipv4", "ipv6"]), Some("ipv6"));
        assert_eq!(of_word("inet", &["ingress", "egress"]), None);
    }
}
