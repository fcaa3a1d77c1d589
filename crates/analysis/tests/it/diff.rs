//! The results of `diff` compared with the linear reference matcher: regions by their witnesses and by
//! packets in them, packets that are treated differently by the regions, and printed matches by parsing them.

use std::collections::BTreeSet;

use analysis::{Change, Detail, Diff, Effect, PairSummary, analyse, diff, diff_in_detail, match_text};
use packet::{DeepKey, Field};
use policy::policy::{Action, Direction};
use policy::{NoFiles, Policy, Source};
use program::{GroupId, Match, Predicate, RangeSet};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::analysis_support::packets::frame;
use crate::analysis_support::{action, fate, matches, policy, rules, treatment};

type Rules = Vec<(Match, Action, Direction)>;

/// Packets that are not compared in time are not taken for equal.
#[test]
fn a_comparison_without_time_decides_nothing() {
    let parse = |action: &str| {
        let text = format!(
            "version = 1\ndefault = \"kernel\"\n[[rules]]\nname = \"a\"\nmatch = {{ dst_port = 53, protocol = \"udp\" }}\naction = \"{action}\"\n"
        );
        policy::parse(&Source::new("p.toml", text), &NoFiles).expect("a policy").0
    };
    let (old, new) = (parse("drop"), parse("kernel"));
    let within = |time| diff_in_detail(&old, &new, Detail { time, ..Detail::SHORT }, &mut |_| {});
    let late = within(Some(std::time::Duration::ZERO));
    assert!(!late.is_whole(), "{late:?}");
    assert!(late.stopped.is_some_and(|why| why.contains("takes more than 0 s")));
    let whole = within(Some(std::time::Duration::from_secs(600)));
    assert!(whole.is_whole() && whole.pairs.len() == 1, "{whole:?}");
}

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

/// Makes the rules legal: what leaves the host is dropped, or let pass as an exception.
fn legal(mut rules: Rules) -> Rules {
    for (_, action, direction) in &mut rules {
        if matches!((&action, &direction), (Action::Steer(_) | Action::Kernel, Direction::Egress)) {
            *action = Action::Pass;
        }
    }
    rules
}

fn two() -> impl Strategy<Value = (Policy, Policy)> {
    let defaults = prop_oneof![4 => fate().prop_map(|one| (one, one)), 1 => (fate(), fate())];
    (rules(7).prop_flat_map(|rules| (near(rules.clone()), Just(rules))), defaults)
        .prop_map(|((new, old), defaults)| (policy(legal(old), defaults.0), policy(legal(new), defaults.1)))
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

/// Frames, and packets that come to the rules of either policy.
fn keys(old: &Policy, new: &Policy, frames: Vec<Vec<u8>>) -> Vec<DeepKey> {
    let mut keys: Vec<DeepKey> = frames.into_iter().map(|frame| DeepKey::of(&frame)).collect();
    for policy in [old, new] {
        let analysis = analyse(policy, &mut |_| {});
        keys.extend(analysis.rules.iter().filter_map(|rule| match &rule.reach {
            analysis::Reach::Reached(witness) => Some(witness.key()),
            _ => None,
        }));
    }
    keys
}

/// Whether a packet is treated differently, sniff rules aside for packets that the host sends: these are
/// reported once, with what the port receives.
fn differs_in_itself(old: &Policy, new: &Policy, direction: Direction, key: &DeepKey) -> bool {
    let of = |policy: &Policy| {
        let mut treatment = treatment(policy, direction, key, None);
        if direction == Direction::Egress {
            treatment.copies.retain(|copy| copy.starts_with("copy"));
        }
        treatment
    };
    of(old) != of(new)
}

/// Whether the rule of an effect, if there is one but the default, has the packet.
fn is_of_rule(policy: &Policy, effect: &Effect, key: &DeepKey) -> bool {
    let rule = effect.rule.and_then(|id| policy.rules.get(id.index()));
    rule.is_none_or(|rule| holds(&rule.matches, key))
}

/// Whether a rule of that name has the packet, on either side.
fn is_of(policy: &Policy, name: &str, key: &DeepKey) -> bool {
    policy.rules.iter().any(|rule| rule.name == name && holds(&rule.matches, key))
}

const DIRECTIONS: [Direction; 2] = [Direction::Ingress, Direction::Egress];

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
        let mut listed = BTreeSet::new();
        for change in &found.regions {
            let whole = (change.direction == Direction::Egress, &change.before, &change.after, change.region.to_string());
            prop_assert!(change.region.only.is_some() || listed.insert(whole), "{} is listed twice", change.region);
            let key = change.witness.key();
            prop_assert!(holds(&change.region.matches, &key), "{} is not of {}", change.witness, change.region);
            prop_assert!(differs(&old, &new, change.direction, &key), "{} in {}", change.witness, change.region);
        }
        let mut keys = keys(&old, &new, frames);
        keys.extend(found.regions.iter().map(|change| change.witness.key()));
        for (key, direction) in keys.iter().flat_map(|key| DIRECTIONS.map(|direction| (key, direction))) {
            let of = |change: &&Change| change.direction == direction && holds(&change.region.matches, key);
            let is_exact = found.regions.iter().any(|change| of(&change) && change.region.only.is_none());
            let maybe = found.regions.iter().any(|change| of(&change));
            prop_assert!(!is_exact || differs(&old, &new, direction, key), "{key:?} is in a region and treated alike");
            let differs = differs_in_itself(&old, &new, direction, key);
            prop_assert!(maybe || !differs, "{key:?} is treated differently and in no region");
        }
    }

    /// The packets that two rules share change hands, but for those that the rules that are named take first.
    #[test]
    fn pairs_are_what_they_share_but_for_what_others_take(
        (old, new) in two(),
        frames in prop::collection::vec(frame(), 48),
    ) {
        let found = same(&old, &new);
        for pair in &found.pairs {
            prop_assert!(differs(&old, &new, pair.direction, &pair.witness.key()), "{}", pair.witness);
            prop_assert!(!pair.within.is_empty() && pair.regions + pair.rest > 0);
            prop_assert_eq!(pair.but_for.count, pair.but_for.listed.len());
        }
        for (key, direction) in keys(&old, &new, frames).iter().flat_map(|key| DIRECTIONS.map(|direction| (key, direction))) {
            let has = |pair: &&PairSummary| {
                pair.direction == direction && pair.within.iter().any(|within| holds(&within.matches, key))
            };
            let differs_here = differs_in_itself(&old, &new, direction, key);
            prop_assert!(!differs_here || found.pairs.iter().any(|pair| has(&pair)), "{key:?} is in no pair");
            for pair in found.pairs.iter().filter(has) {
                let is_taken = pair.but_for.listed.iter().any(|name| is_of(&old, name, key) || is_of(&new, name, key));
                let is_whole = pair.within.iter().all(|within| within.only.is_none());
                let is_shared = is_of_rule(&old, &pair.before, key) && is_of_rule(&new, &pair.after, key);
                prop_assert!(is_shared || !is_whole, "{key:?} is not of both rules of {pair:?}");
                let differs = differs(&old, &new, direction, key);
                prop_assert!(is_taken || !is_whole || differs, "{key:?} stays, though {pair:?}");
            }
        }
    }

    /// All regions are the same packets as the few, and no fewer regions.
    #[test]
    fn all_regions_hold_what_a_few_hold((old, new) in two(), frames in prop::collection::vec(frame(), 48)) {
        let few = diff_in_detail(&old, &new, Detail { regions_per_pair: 2, ..Detail::SHORT }, &mut |_| {});
        let all = diff_in_detail(&old, &new, Detail::FULL, &mut |_| {});
        prop_assert_eq!(few.pairs.len(), all.pairs.len());
        for (few, all) in few.pairs.iter().zip(&all.pairs) {
            prop_assert_eq!((&few.before, &few.after), (&all.before, &all.after));
            prop_assert_eq!((all.more, all.rest), (0, 0));
            prop_assert!(few.is_open || few.regions + few.more == all.regions, "{few:?}");
        }
        for (key, direction) in keys(&old, &new, frames).iter().flat_map(|key| DIRECTIONS.map(|direction| (key, direction))) {
            let of = |change: &&Change| change.direction == direction && holds(&change.region.matches, key);
            let may_be_within = few.regions.iter().any(|change| of(&change));
            let is_within = all.regions.iter().any(|change| of(&change) && change.region.only.is_none());
            prop_assert!(may_be_within || !is_within, "{key:?}");
        }
    }

    /// Neither the names nor the order of groups make a difference.
    #[test]
    fn groups_by_other_names_are_the_same(rules in rules(7), default in fate(), turn in 0u32..3) {
        let old = policy(rules, default);
        let mut new = old.clone();
        let turned = |action: Action| match action {
            Action::Steer(group) => Action::Steer(GroupId((group.0 + turn) % 3)),
            Action::Copy(group) => Action::Copy(GroupId((group.0 + turn) % 3)),
            Action::Sniff(group) => Action::Sniff(GroupId((group.0 + turn) % 3)),
            other => other,
        };
        new.groups.rotate_right(turn as usize);
        for rule in &mut new.rules {
            rule.action = turned(rule.action);
        }
        new.default = turned(new.default);
        prop_assert!(same(&old, &new).is_empty());
        // Groups with the same content are distinguished by their names, of which one may be new.
        new.groups[0].name = "renamed".to_owned();
        prop_assert!(same(&old, &new).is_empty());
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

    /// Splitting a rule in two by a port changes nothing, and neither does moving a rule past one it does not
    /// meet.
    #[test]
    fn other_words_for_the_same_are_the_same(rules in rules(6).prop_filter("some", |rules| !rules.is_empty()), at in any::<Index>(), port in select(vec![1u32, 53, 1024])) {
        let mut rules = rules;
        let at = at.index(rules.len());
        rules[at].0.require(Field::DstPort);
        let ports = rules[at].0.get(Field::DstPort).expect("it was set").clone();
        let mut split = rules.clone();
        let mut lower = split[at].clone();
        lower.0.set(Field::DstPort, ports.intersect(&RangeSet::of(vec![(0, port)])));
        split[at].0.set(Field::DstPort, ports.intersect(&RangeSet::of(vec![(port, 0xffff)])));
        split.insert(at, lower);
        let found = same(&policy(rules, Action::Kernel), &policy(split, Action::Kernel));
        prop_assert!(found.is_empty(), "{:?}", found.regions.iter().map(|c| c.region.to_string()).collect::<Vec<_>>());
    }
}
