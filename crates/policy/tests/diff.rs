//! What `space::diff` claims, held to the linear reader: every region by its witness and by packets in it, every
//! packet that is treated differently by the regions, and what is printed by reading it back.

mod analysis_support;

use packet::DeepKey;
use policy::policy::{Action, Direction, Match};
use policy::space::{Diff, analyse, diff, match_text};
use policy::{GroupId, NoFiles, Policy, Predicate, Source};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use analysis_support::packets::frame;
use analysis_support::{action, fate, matches, policy, rules, treatment};

type Rules = Vec<(Match, Action, Direction)>;

/// Another policy that is near: rules swapped, left out, changed, added.
fn near(rules: Rules) -> impl Strategy<Value = Rules> {
    let change = (0u8..5, any::<Index>(), any::<Index>(), matches(), action());
    prop::collection::vec(change, 0..4).prop_map(move |changes| {
        let mut near = rules.clone();
        for (what, one, other, matches, action) in changes {
            if near.is_empty() {
                continue;
            }
            let (one, other) = (one.index(near.len()), other.index(near.len()));
            match what {
                0 => near.swap(one, other),
                1 => _ = near.remove(one),
                2 => near[one].1 = action,
                3 => near[one].0 = matches,
                _ => near.insert(one, (matches, action, near[other].2)),
            }
        }
        near
    })
}

fn two() -> impl Strategy<Value = (Policy, Policy)> {
    let defaults = prop_oneof![4 => fate().prop_map(|one| (one, one)), 1 => (fate(), fate())];
    (rules(7).prop_flat_map(|rules| (near(rules.clone()), Just(rules))), defaults)
        .prop_map(|((new, old), defaults)| (policy(old, defaults.0), policy(new, defaults.1)))
}

fn holds(matches: &Match, key: &DeepKey) -> bool {
    Predicate::of(matches).matches_deep(key)
}

fn differs(old: &Policy, new: &Policy, direction: Direction, key: &DeepKey) -> bool {
    treatment(old, direction, key, None) != treatment(new, direction, key, None)
}

fn parse(text: &str) -> Result<Policy, String> {
    policy::parse(&Source::new("printed.toml", text), &NoFiles)
        .map(|(policy, _)| policy)
        .map_err(|e| e.to_string())
}

/// A policy of one rule that drops, as text.
fn text_of(matches: &Match) -> String {
    format!("version = 1\n[[rules]]\nname = 'r0'\nmatch = {}\naction = 'drop'\n", match_text(matches))
}

fn same(one: &Policy, other: &Policy) -> Diff {
    diff(one, other, &mut |_| {})
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn regions_are_what_is_treated_differently(
        (old, new) in two(),
        frames in prop::collection::vec(frame(), 48),
    ) {
        let found = same(&old, &new);
        prop_assert_eq!(found.not_decided, 0);
        prop_assert_eq!(found.is_empty(), found.regions.is_empty());
        for change in &found.regions {
            let key = change.witness.key();
            prop_assert!(holds(&change.region.matches, &key), "{} is not of {}", change.witness, change.region);
            prop_assert!(differs(&old, &new, change.direction, &key), "{} in {}", change.witness, change.region);
        }
        let witnesses = found.regions.iter().map(|change| change.witness.frame.clone());
        let mut keys: Vec<DeepKey> = frames.into_iter().chain(witnesses).map(|frame| DeepKey::of(&frame)).collect();
        for policy in [&old, &new] {
            let analysis = analyse(policy, &mut |_| {});
            keys.extend(analysis.rules.iter().filter_map(|rule| match &rule.reach {
                policy::space::Reach::Reached(witness) => Some(witness.key()),
                _ => None,
            }));
        }
        for (key, direction) in keys.iter().flat_map(|key| [(key, Direction::Ingress), (key, Direction::Egress)]) {
            let differs = differs(&old, &new, direction, key);
            let of = |change: &&policy::space::Change| change.direction == direction && holds(&change.region.matches, key);
            let told = found.regions.iter().any(|change| of(&change) && change.region.only.is_none());
            let maybe = found.regions.iter().any(|change| of(&change));
            prop_assert!(!told || differs, "{key:?} is told of and treated alike");
            // What is sniffed is told of once, with what comes in.
            let sniffed_only = direction == Direction::Egress && {
                let fate = |policy: &Policy| {
                    let mut treatment = treatment(policy, direction, key, None);
                    treatment.copies.retain(|copy| copy.starts_with("copy"));
                    treatment
                };
                fate(&old) == fate(&new)
            };
            prop_assert!(maybe || !differs || sniffed_only, "{key:?} is treated differently and not told of");
        }
    }

    #[test]
    fn what_is_printed_reads_back(matches in matches(), (old, new) in two()) {
        let changes = same(&old, &new).regions;
        let exact = changes.iter().filter(|change| change.region.only.is_none());
        let regions = exact.map(|change| (&change.region.matches, true)).chain([(&matches, false)]);
        for (matches, must_parse) in regions {
            let text = text_of(matches);
            match parse(&text) {
                Ok(read) => {
                    let mut made = policy(vec![(matches.clone(), Action::Drop, Direction::Ingress)], read.default);
                    made.groups.clear();
                    let found = same(&made, &read);
                    prop_assert!(found.is_empty(), "{text}\n{:?}", found.regions.iter().map(|c| c.region.to_string()).collect::<Vec<_>>());
                }
                Err(problems) => prop_assert!(!must_parse || problems.contains("met together"), "{text}\n{problems}"),
            }
        }
    }

    #[test]
    fn a_policy_is_itself(rules in rules(9), default in fate()) {
        let policy = policy(rules, default);
        prop_assert!(same(&policy, &policy).is_empty());
    }

    /// Splitting a rule in two by a port changes nothing, and neither does moving a rule past one it does not meet.
    #[test]
    fn other_words_for_the_same_are_the_same(rules in rules(6).prop_filter("some", |rules| !rules.is_empty()), at in any::<Index>(), port in select(vec![1u16, 53, 1024])) {
        let mut rules = rules;
        let at = at.index(rules.len());
        let whole = policy::RangeSet::of(vec![(0, u16::MAX)]);
        let ports = rules[at].0.dst_port.get_or_insert(whole).clone();
        let mut split = rules.clone();
        let mut lower = split[at].clone();
        lower.0.dst_port = Some(ports.intersect(&policy::RangeSet::of(vec![(0, port)])));
        split[at].0.dst_port = Some(ports.intersect(&policy::RangeSet::of(vec![(port, u16::MAX)])));
        split.insert(at, lower);
        let found = same(&policy(rules, Action::Kernel), &policy(split, Action::Kernel));
        prop_assert!(found.is_empty(), "{:?}", found.regions.iter().map(|c| c.region.to_string()).collect::<Vec<_>>());
    }
}

fn read(text: &str) -> Policy {
    parse(&format!(
        "version = 1\ndefault = 'kernel'\n[groups.a]\nworkers = [0]\n[groups.b]\nworkers = [1]\n{text}"
    ))
    .expect("it parses")
}

fn changes(old: &str, new: &str) -> Vec<String> {
    let found = same(&read(old), &read(new));
    let line = |change: &policy::space::Change| {
        format!("{}: {} -> {}", change.region, change.before.action, change.after.action)
    };
    found.regions.iter().map(line).collect()
}

const WEB: &str =
    "[[rules]]\nname = 'web'\nmatch = { protocol = 'tcp', dst_port = [80, 443] }\naction = { steer = 'a' }\n";

#[test]
fn a_hole_is_one_not() {
    let office = format!(
        "[[rules]]\nname = 'office'\nmatch = {{ src = '10.0.0.0/8', protocol = 'tcp', dst_port = [80, 443] }}\naction = {{ steer = 'b' }}\n{WEB}"
    );
    assert_eq!(
        changes(WEB, &office),
        ["{ src = \"10.0.0.0/8\", protocol = \"tcp\", dst_port = [80, 443] }: steer to a -> steer to b"]
    );
    let moved = WEB.replace("443", "8443");
    assert_eq!(
        changes(WEB, &moved),
        [
            "{ protocol = \"tcp\", dst_port = 8443 }: kernel -> steer to a",
            "{ protocol = \"tcp\", dst_port = 443 }: steer to a -> kernel"
        ]
    );
    let before =
        format!("[[rules]]\nname = 'lab'\nmatch = {{ src = '10.1.0.0/16' }}\naction = 'drop'\n{WEB}");
    let after = before.replace("steer = 'a'", "steer = 'b'");
    assert_eq!(
        changes(&before, &after),
        [
            "{ src = { not = \"10.1.0.0/16\" }, protocol = \"tcp\", dst_port = [80, 443] }: steer to a -> steer to b"
        ]
    );
    assert_eq!(
        changes(&before, ""),
        [
            "{ src = \"10.1.0.0/16\" }: drop -> kernel",
            "{ src = { not = \"10.1.0.0/16\" }, protocol = \"tcp\", dst_port = [80, 443] }: steer to a -> kernel"
        ]
    );
}

#[test]
fn a_group_with_other_workers_is_another_group() {
    let old = read(WEB);
    let new = parse(&format!(
        "version = 1\ndefault = 'kernel'\n[groups.a]\nworkers = [0, 1]\n[groups.b]\nworkers = [1]\n{WEB}"
    ))
    .unwrap();
    assert_eq!(same(&old, &new).pairs.len(), 1);
    let renumbered = parse(&format!(
        "version = 1\ndefault = 'kernel'\n[groups.b]\nworkers = [1]\n[groups.a]\nworkers = [0]\n{WEB}"
    ))
    .unwrap();
    assert_eq!(renumbered.rules[0].action, Action::Steer(GroupId(1)));
    assert!(same(&old, &renumbered).is_empty());
}
