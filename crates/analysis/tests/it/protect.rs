//! Whether protected packets reach the host: by kind, and on random policies against the linear reference
//! matcher.

use analysis::{Protected, protection, unreachable_kinds};
use packet::DeepKey;
use policy::policy::{Action, Direction};
use policy::protect::ProtectedMatch;
use policy::{NoFiles, Place, Policy, Source};
use program::{Match, Predicate};
use proptest::prelude::*;

use crate::analysis_support::packets::frame;
use crate::analysis_support::{fate, matches, policy, reached, rules};

fn parsed(text: &str) -> Policy {
    let text = format!("version = 1\n{text}\n[groups.g]\nworkers = 'all'\n");
    let parsed = policy::parse(&Source::new("protect.toml", &text), &NoFiles);
    parsed.unwrap_or_else(|problems| panic!("{problems}\n{text}")).0
}

fn rule(name: &str, matches: &str, action: &str) -> String {
    format!("[[rules]]\nname = '{name}'\nmatch = {{ {matches} }}\naction = '{action}'\n")
}

/// Whether a rule takes the packet from the host.
fn is_taken(policy: &Policy, key: &DeepKey) -> bool {
    let last = reached(policy, Direction::Ingress, key).last().map(|rule| policy.rules[*rule].action);
    let decides = last.filter(|action| !matches!(action, Action::Copy(_) | Action::Sniff(_)));
    decides.unwrap_or(policy.default) != Action::Kernel
}

/// The protected matches of which a packet is taken, each with the rule that takes it; every witness is
/// checked.
fn missed(policy: &Policy) -> Vec<(String, String)> {
    let found = protection(policy);
    let protected = policy.protect.as_deref().expect("[protect]");
    assert_eq!(found.len(), protected.len());
    let missed = protected.iter().zip(&found).filter_map(|(protected, found)| {
        let Protected::Missed(missed) = found else { return None };
        let key = missed.witness.key();
        assert!(Predicate::of(&protected.matches).matches_deep(&key), "{}", missed.witness);
        assert!(is_taken(policy, &key), "{}", missed.witness);
        let rule = policy.rules.get(missed.taken_by.index()).map_or("default", |rule| &rule.name);
        Some((protected.name.clone(), rule.to_owned()))
    });
    missed.collect()
}

/// Each kind is found to miss the host where a rule takes it, and only then.
#[test]
fn each_protocol_is_protected_from_the_rule_that_takes_it() {
    for (protocol, taking, leaving) in [
        ("arp", "ethertype = 'arp'", "ethertype = 'ipv4'"),
        ("nd", "icmpv6_type = 135", "icmpv6_type = [134, 137]"),
        ("nd", "icmpv6_type = 136", "protocol = 'icmp'"),
        ("ra", "protocol = 'icmpv6', src = 'fe80::/10'", "icmpv6_type = 128"),
        ("dhcp", "protocol = 'udp', dst_port = 68, family = 'ipv4'", "dst_port = 67"),
        ("dhcp", "family = 'ipv6', dst_port = '500-600'", "protocol = 'tcp'"),
        ("ssh", "dst = '192.0.2.0/24'", "protocol = 'udp'"),
        ("bfd", "dst_port = 4784", "dst_port = 3786"),
        ("icmp", "icmp_type = 8", "protocol = 'icmpv6'"),
        ("igmp", "dst = '224.0.0.0/4'", "family = 'ipv6'"),
        ("ospf", "protocol = 'ospf'", "protocol = 'vrrp'"),
        ("lldp", "ethertype = 0x88cc", "ethertype = 'arp'"),
        ("103", "protocol = 103", "protocol = 104"),
        ("0x9000", "ethertype = 0x9000", "ethertype = 0x9001"),
    ] {
        let head = format!("[protect]\nprotocols = ['{protocol}']");
        for (matches, is_missed) in [(taking, true), (leaving, false)] {
            let policy = parsed(&format!("{head}\n{}", rule("taker", matches, "steer g")));
            let wanted = [(protocol.to_owned(), "taker".to_owned())];
            assert_eq!(missed(&policy), wanted[..usize::from(is_missed)], "{protocol}: {matches}");
            // An exception before it leaves them all to the host.
            let kept =
                format!("{head}\n{}{}", rule("kept", taking, "kernel"), rule("taker", matches, "drop"));
            assert_eq!(missed(&parsed(&kept)), [], "{protocol}: {matches}");
        }
    }
}

#[test]
fn ports_are_protected_by_direction_protocol_address_source_and_tag() {
    for (protect, taking, leaving) in [
        ("ports = '22/tcp'", "protocol = 'tcp', dst_port = 22", "protocol = 'udp', dst_port = 22"),
        ("ports = 22", "protocol = 'udp', dst_port = 22", "src_port = 22, dst_port = 23"),
        (
            "ports = ['22/tcp', '53/udp']",
            "protocol = 'udp', dst_port = 53",
            "protocol = 'tcp', dst_port = 53",
        ),
        ("ports = { not = 80 }", "dst_port = 81", "dst_port = 80"),
        ("remote_ports = ['443/tcp']", "protocol = 'tcp', src_port = 443", "dst_port = 443, src_port = 80"),
        ("ports = 22\naddresses = '192.0.2.1'", "dst = '192.0.2.0/24'", "dst = '192.0.2.2'"),
        ("ports = 22\nsources = '10.0.0.0/8'", "src = '10.1.0.0/16'", "src = '11.0.0.0/8'"),
        (
            "addresses = ['192.0.2.1', '2001:db8::1']",
            "protocol = 'ospf', family = 'ipv6'",
            "ethertype = 'arp'",
        ),
        ("ports = 22\nvlan = 'none'", "vlan = 'none'", "vlan = 42"),
        ("ports = 22\nvlan = 7", "vlan = '1-9'", "vlan = 8"),
        (
            "matches = [{ dst_mac = '02:00:00:00:00:01', tcp_flags = 'syn' }]",
            "tcp_flags = 'syn,ack'",
            "tcp_flags = '!syn'",
        ),
    ] {
        let policy = |matches: &str| {
            parsed(&format!("[protect]\nprotocols = []\n{protect}\n{}", rule("taker", matches, "drop")))
        };
        assert_eq!(missed(&policy(taking)).len(), 1, "{protect}: {taking}");
        assert_eq!(missed(&policy(leaving)), [], "{protect}: {leaving}");
    }
}

/// Copies, sniffers and egress rules take nothing; the order of the rules decides.
#[test]
fn only_rules_that_decide_received_packets_take_them() {
    let head = "[protect]\nports = ['22/tcp']\n";
    for others in [
        rule("copied", "any = true", "copy g"),
        rule("sniffed", "any = true", "sniff g"),
        rule("sent", "any = true", "drop").replace("action", "direction = 'egress'\naction"),
        rule("first", "any = true", "kernel") + &rule("late", "any = true", "drop"),
    ] {
        assert_eq!(missed(&parsed(&format!("{head}{others}"))), [], "{others}");
    }
    let late = rule("taker", "dst_port = 22", "drop") + &rule("late", "any = true", "kernel");
    assert_eq!(missed(&parsed(&format!("{head}{late}"))), [("ports".to_owned(), "taker".to_owned())]);
    // With a default that takes all else, each protected kind is missed.
    let all = missed(&parsed(&format!("default = 'drop'\n{head}")));
    let names: Vec<&str> =
        all.iter().map(|(name, rule)| (rule == "default").then_some(name.as_str()).expect("it")).collect();
    assert_eq!(names, ["arp", "nd", "ra", "ports"]);
}

/// A sink returns packets to the host, but a rule with a limit may drop any of them first.
#[test]
fn a_rule_with_a_limit_protects_nothing() {
    let text = |keys: &str| {
        let host = "[sinks.host]\nkind = 'kernel'\ninterface = 'host0'\n[protect]\nports = ['22/tcp']\nprotocols = []\n";
        let rule = rule("taker", "dst_port = 22", "steer g");
        format!("{host}{rule}sinks = 'host'\n{keys}")
    };
    let misses = |keys: &str| {
        let found = protection(&parsed(&text(keys)));
        found.iter().any(|found| matches!(found, Protected::Missed(_)))
    };
    assert!(!misses("") && misses("limit = '1G/s'") && misses("sample = 2"));
}

#[test]
fn kinds_that_no_rule_leaves_to_the_host_are_found() {
    let dead = |text: &str| -> Vec<&str> {
        unreachable_kinds(&parsed(text)).into_iter().map(|found| found.kind.name).collect()
    };
    assert_eq!(dead("default = 'drop'"), ["arp", "nd", "ra", "dhcp", "ssh"]);
    assert_eq!(dead("default = 'g'"), ["arp", "nd", "ra", "dhcp", "ssh"]);
    assert_eq!(dead(""), [""; 0]);
    let some = rule("ssh", "dst_port = 22, src = '10.0.0.0/8'", "kernel")
        + &rule("v6", "protocol = 'icmpv6'", "kernel");
    assert_eq!(dead(&format!("default = 'drop'\n{some}")), ["arp", "dhcp"]);
    let late = rule("all", "any = true", "drop") + &rule("ssh", "dst_port = 22", "kernel");
    assert_eq!(dead(&late), ["arp", "nd", "ra", "dhcp", "ssh"]);
    // A rule takes them under any default, but for those that it names.
    let wide = rule("rest", "ethertype = { not = ['ipv4', 'ipv6'] }", "steer g");
    assert_eq!(dead(&wide), ["arp"]);
    let named = rule("no-ra", "family = 'ipv6', icmpv6_type = 134, src = 'fe80::/10'", "drop");
    assert_eq!(dead(&named), [""; 0]);
    let both = named + &rule("no-icmpv6", "protocol = 'icmpv6'", "drop");
    let found = unreachable_kinds(&parsed(&both));
    assert!(
        found.iter().all(|found| found.kind.name == "nd" && found.missed.taken_by.index() == 1),
        "{found:?}"
    );
}

/// A policy that protects these packets.
fn protecting(policy: Policy, protected: Vec<Match>) -> Policy {
    let place = Place::new(&policy.source, 0..0);
    let protected = protected.into_iter().enumerate().map(|(index, matches)| ProtectedMatch {
        name: format!("p{index}"),
        matches,
        place: place.clone(),
    });
    Policy { protect: Some(protected.collect()), ..policy }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Every witness is a protected packet that a rule takes, and no packet of a match that is called safe is
    /// taken.
    #[test]
    fn protected_packets_are_missed_exactly_if_one_is_taken(
        rules in rules(8),
        default in fate(),
        protected in prop::collection::vec(matches(), 1..4),
        frames in prop::collection::vec(frame(), 48),
    ) {
        let policy = protecting(policy(rules, default), protected);
        let found = protection(&policy);
        let keys: Vec<DeepKey> = frames.iter().map(|frame| DeepKey::of(frame)).collect();
        for (protected, found) in policy.protect.iter().flatten().zip(found) {
            let predicate = Predicate::of(&protected.matches);
            match found {
                Protected::NotDecided(why) => prop_assert!(false, "{}", why),
                Protected::Missed(missed) => {
                    let key = missed.witness.key();
                    prop_assert!(predicate.matches_deep(&key) && is_taken(&policy, &key), "{}", missed.witness);
                    let decides = reached(&policy, Direction::Ingress, &key).last().copied();
                    let decides = decides.filter(|rule| !matches!(policy.rules[*rule].action, Action::Copy(_) | Action::Sniff(_)));
                    prop_assert_eq!(missed.taken_by.index(), decides.unwrap_or(policy.rules.len()));
                }
                Protected::Safe => {
                    for key in keys.iter().filter(|key| predicate.matches_deep(key)) {
                        prop_assert!(!is_taken(&policy, key), "{} is taken", key.describe());
                    }
                }
            }
        }
    }
}
