//! Whether rules at run time take protected packets: the index of a policy gives the answer that a policy
//! with the rule in its place gives.

use analysis::{Protected, RuntimeProtection, protection_from_rule};
use policy::policy::{Action, RuntimeDefinition};
use policy::protect::ProtectedMatch;
use policy::{NoFiles, Place, Policy, Source};
use program::{Match, RuntimeMatch};
use proptest::prelude::*;

use crate::analysis_support::{fate, matches, policy, rules};

fn parsed(text: &str) -> Policy {
    let text = format!("version = 1\n{text}");
    let parsed = policy::parse(&Source::new("protect.toml", &text), &NoFiles);
    parsed.unwrap_or_else(|problems| panic!("{problems}\n{text}")).0
}

fn on(src: Option<&str>, dst_port: Option<u16>) -> RuntimeMatch {
    let src = src.map(|src| src.parse().expect("a prefix"));
    RuntimeMatch { src, dst_port, ..RuntimeMatch::default() }
}

#[test]
fn rules_are_compared_by_their_values() {
    let policy = parsed(
        "[protect]\nports = '22/tcp'\nprotocols = []\n[runtime]\nmatches = ['src', 'dst_port']\nactions = ['drop']\n\
         before = 'rest'\n[[rules]]\nname = 'far'\nmatch = { dst_port = 22, src = '10.0.0.0/8' }\naction = 'kernel'\n\
         [[rules]]\nname = 'rest'\nmatch = { family = 'ipv4' }\naction = 'kernel'\n",
    );
    let index = RuntimeProtection::of(&policy).expect("[protect] and [runtime]");
    assert_eq!(index.taken_by(&on(Some("10.3.0.1"), None)), None, "the rule `far` has its protected packets");
    assert_eq!(index.taken_by(&on(Some("11.0.0.0"), None)), Some(0));
    assert_eq!(index.taken_by(&on(None, Some(80))), None);
    assert_eq!(index.taken_by(&on(None, Some(22))), Some(0));
    let [v4, v6] = ["10.3.0.1", "2001:db8::1"].map(|src| on(Some(src), None).fields().expect("fields"));
    assert!(!index.is_safe_form(&v4) && !index.is_safe_form(&v6));
    // All protected packets are decided before.
    let policy = parsed(
        "[protect]\nports = '22/tcp'\nprotocols = []\n[runtime]\nmatches = ['src']\nactions = ['drop']\n\
         [[rules]]\nname = 'ssh'\nmatch = { dst_port = 22, protocol = 'tcp' }\naction = 'kernel'\n",
    );
    assert!(RuntimeProtection::of(&policy).expect("both").is_safe_form(&v4));
}

/// Values at and beside the boundaries of those in the random policies.
fn runtime_match() -> impl Strategy<Value = RuntimeMatch> {
    let sources = prop::option::of(prop::sample::select(vec![
        "10.0.0.0",
        "10.0.0.1",
        "10.0.0.255",
        "10.1.2.3",
        "10.0.0.0/24",
        "192.168.0.1",
        "0.0.0.0/1",
        "2001:db8::1",
        "2001:db8::/64",
        "::1",
    ]));
    let ports = || prop::option::of(prop::sample::select(vec![0u16, 22, 53, 54, 80, 443, 1024, 4789, 65535]));
    let protocols = prop::option::of(prop::sample::select(vec![1u8, 6, 17, 47, 58, 99]));
    (sources, ports(), ports(), protocols).prop_filter_map(
        "it has a field",
        |(src, src_port, dst_port, protocol)| {
            let protocol = protocol.map(program::ProtocolNumber);
            let rule = RuntimeMatch { src_port, protocol, ..on(src, dst_port) };
            rule.fields().is_ok().then_some(rule)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn the_index_answers_as_the_whole_policy(
        rules in rules(6),
        default in fate(),
        protected in prop::collection::vec(matches(), 1..3),
        asked in prop::collection::vec(runtime_match(), 1..8),
        before in 0usize..7,
    ) {
        // The whole policy blames earlier rules that take protected packets too, so they take none here.
        let rules = rules.into_iter().map(|(matches, action, direction)| match action {
            Action::Copy(_) | Action::Sniff(_) => (matches, action, direction),
            _ => (matches, Action::Kernel, direction),
        });
        let plain = policy(rules.collect(), default);
        let place = Place::new(&plain.source, 0..0);
        let protect = |matches: Match| ProtectedMatch { name: "p".to_owned(), matches, place: place.clone() };
        let mut forms: Vec<_> = asked.iter().map(|rule| rule.fields().expect("fields")).collect();
        forms.dedup();
        let runtime = RuntimeDefinition { before: before.min(plain.rules.len()), forms, ..empty() };
        let protect = Some(protected.into_iter().map(protect).collect());
        let policy = Policy { protect, runtime: Some(runtime), ..plain };
        let index = RuntimeProtection::of(&policy).expect("it protects packets");
        for rule in &asked {
            let found = protection_from_rule(&policy, rule.to_match());
            let wanted = found.iter().position(|found| *found != Protected::Safe);
            prop_assert_eq!(index.taken_by(rule), wanted, "{} before {}", rule, before);
        }
    }
}

fn empty() -> RuntimeDefinition {
    parsed("[runtime]\nmatches = ['src']\nactions = ['drop']\n").runtime.expect("[runtime]")
}
