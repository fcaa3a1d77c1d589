//! Two random policies: the witness packets confirm the analysis of each and their difference, within a
//! bounded time.
#![no_main]

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use analysis::{Region, analyse, diff};
use libfuzzer_sys::arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use policy::{NoFiles, Policy, Source};
use program::Predicate;

/// The time limit for so few rules, with sanitizers and on a busy machine.
const SPACE_TIME: Duration = Duration::from_secs(20);
/// The most rules of one policy.
const MAX_RULES: usize = 8;

/// Conditions with a placeholder for a small number, so that many overlap.
const CONDITIONS: [&str; 26] = [
    "protocol = \"tcp\"",
    "protocol = \"udp\"",
    "protocol = [\"tcp\", #]",
    "family = \"ipv4\"",
    "family = \"ipv6\"",
    "src = \"10.0.0.#/30\"",
    "src = \"10.0.0.0-10.0.0.#\"",
    "dst = [\"192.0.2.#\", \"192.0.2.64/26\"]",
    "dst = { not = \"10.#.0.0/16\" }",
    "src = \"2001:db8::#\"",
    "src_port = \"#-1000\"",
    "dst_port = [#, 443]",
    "dst_port = { not = [#, \"100-200\"] }",
    "vlan = #",
    "vlan = \"none\"",
    "vlan_priority = \"0-#\"",
    "dscp = #",
    "tcp_flags = [\"syn,!ack\", \"rst\"]",
    "fragment = \"later\"",
    "src_mac = \"02:00:00:00:00:0#/ff:ff:ff:ff:ff:0f\"",
    "dst_mac = [\"broadcast\", \"multicast\"]",
    "dst_mac = { not = [\"0#:00:00:00:00:00/0f:00:00:00:00:f0\", \"00:00:00:00:00:0#/00:00:00:00:ff:0f\"] }",
    "inner = { dst_port = # }",
    "ethertype = [\"arp\", \"0-15##\"]",
    "ttl = \"#-64\"",
    "vxlan_vni = #",
];
const ACTIONS: [&str; 6] = [
    "\"drop\"",
    "{ steer = \"one\" }",
    "{ steer = \"all\" }",
    "\"kernel\"",
    "{ copy = \"one\" }",
    "\"drop\"",
];

/// One rule; `None` at the end of the bytes.
fn rule(u: &mut Unstructured<'_>, number: usize, text: &mut String) -> Option<()> {
    let conditions = 1 + usize::from(u.arbitrary::<u8>().ok()? % 3);
    let mut matches: Vec<String> = Vec::new();
    for _ in 0..conditions {
        let condition = *u.choose(&CONDITIONS).ok()?;
        let value = (u.arbitrary::<u8>().ok()? % 8).to_string();
        let key = condition.split(' ').next();
        if matches.iter().all(|known| known.split(' ').next() != key) {
            matches.push(condition.replace('#', &value));
        }
    }
    let action = u.choose(&ACTIONS).ok()?;
    let matches = matches.join(", ");
    writeln!(text, "[[rules]]\nname = \"r{number}\"\nmatch = {{ {matches} }}\naction = {action}").ok()
}

/// A policy, if the rules parse together.
fn policy(u: &mut Unstructured<'_>) -> Option<Policy> {
    let default = u.choose(&["kernel", "drop", "all"]).ok()?;
    let mut text = format!(
        "version = 1\ndefault = \"{default}\"\n[groups.all]\nworkers = \"all\"\n[groups.one]\nworkers = [0]\n"
    );
    for number in 0..usize::from(u.arbitrary::<u8>().ok()?) % (MAX_RULES + 1) {
        rule(u, number, &mut text)?;
    }
    Some(policy::parse(&Source::new("fuzz.toml", text), &NoFiles).ok()?.0)
}

fuzz_target!(|data: &[u8]| {
    let mut u = Unstructured::new(data);
    let (Some(old), Some(new)) = (policy(&mut u), policy(&mut u)) else { return };
    let started = Instant::now();
    assert!(diff(&old, &old, &mut |_| {}).is_empty(), "a policy does not differ from itself");
    let forth = diff(&old, &new, &mut |_| {});
    let back = diff(&new, &old, &mut |_| {});
    assert_eq!(forth.is_empty(), back.is_empty(), "a difference has two sides");
    for (policy, analysis) in [(&old, analyse(&old, &mut |_| {})), (&new, analyse(&new, &mut |_| {}))] {
        assert_eq!(analysis.rules.len(), policy.rules.len());
    }
    assert!(started.elapsed() < SPACE_TIME, "{:?}", started.elapsed());
    for change in &forth.regions {
        // The witness is in the region and matches both rules, unless they are the default.
        let key = change.witness.key();
        assert!(Predicate::of(&change.region.matches).matches_deep(&key), "{}", change.region);
        for (policy, effect) in [(&old, &change.before), (&new, &change.after)] {
            if let Some(rule) = effect.rule.and_then(|rule| policy.rules.get(rule.index())) {
                assert!(Predicate::of(&rule.matches).matches_deep(&key), "{}", effect.name);
            }
        }
    }
    for pair in &forth.pairs {
        let key = pair.witness.key();
        let is_of = |within: &Region| Predicate::of(&within.matches).matches_deep(&key);
        assert!(pair.within.is_empty() || pair.within.iter().any(is_of), "{}", pair.witness);
    }
});
