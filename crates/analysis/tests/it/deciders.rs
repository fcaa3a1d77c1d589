//! The rules that decide the packets of a match, on random policies against the linear reference matcher.

use analysis::{Deciders, EveryPacket};
use packet::DeepKey;
use policy::Policy;
use policy::policy::{Action, Direction};
use program::{Predicate, RuleId};
use proptest::prelude::*;

use crate::analysis_support::packets::frame;
use crate::analysis_support::{fate, matches, policy, reached, rules};

/// The rule that decides a packet, the number of rules for the default.
fn decides(policy: &Policy, direction: Direction, key: &DeepKey) -> usize {
    let last = reached(policy, direction, key).last().copied();
    let is_final = |rule: &usize| !matches!(policy.rules[*rule].action, Action::Copy(_) | Action::Sniff(_));
    last.filter(is_final).unwrap_or(policy.rules.len())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// A set is accepted exactly if no packet of it is decided by another rule, and each counterexample is
    /// one.
    #[test]
    fn a_set_is_accepted_exactly_if_each_of_its_packets_is(
        rules in rules(8),
        default in fate(),
        every in matches(),
        accepted in prop::collection::vec(any::<bool>(), 9),
        is_sent in any::<bool>(),
        frames in prop::collection::vec(frame(), 48),
    ) {
        let policy = policy(rules, default);
        let direction = if is_sent { Direction::Egress } else { Direction::Ingress };
        let accepted = accepted[..=policy.rules.len()].to_vec();
        let predicate = Predicate::of(&every);
        let mut deciders = Deciders::of(&policy, direction, [&every].into_iter());
        let found = deciders.of_match(&every);
        prop_assert!(!found.is_open);
        for (rule, witness) in &found.rules {
            let key = witness.key();
            prop_assert!(predicate.matches_deep(&key), "{}", witness);
            prop_assert_eq!(RuleId::of(decides(&policy, direction, &key)), *rule);
        }
        let is_accepted = match deciders.every_packet(&every, accepted.clone()) {
            EveryPacket::NotDecided(why) => return Err(TestCaseError::fail(why)),
            EveryPacket::Except(other) => {
                let key = other.witness.key();
                let rule = decides(&policy, direction, &key);
                prop_assert!(predicate.matches_deep(&key) && !accepted[rule], "{}", other.witness);
                prop_assert_eq!(other.taken_by.index(), rule);
                false
            }
            EveryPacket::NoPacket => {
                prop_assert!(found.rules.is_empty());
                true
            }
            EveryPacket::Accepted => {
                prop_assert!(!found.rules.is_empty());
                true
            }
        };
        prop_assert_eq!(is_accepted, found.rules.keys().all(|rule| accepted[rule.index()]));
        for key in frames.iter().map(|frame| DeepKey::of(frame)).filter(|key| predicate.matches_deep(key)) {
            let rule = decides(&policy, direction, &key);
            prop_assert!(found.rules.contains_key(&RuleId::of(rule)), "{} is decided by {}", key.describe(), rule);
            prop_assert!(!is_accepted || accepted[rule], "{} is decided by {}", key.describe(), rule);
        }
        for rule in 0..=policy.rules.len() {
            if let Some(witness) = deciders.example(rule) {
                prop_assert_eq!(decides(&policy, direction, &witness.key()), rule);
            }
            let of_rule = |frame: &Vec<u8>| decides(&policy, direction, &DeepKey::of(frame)) == rule;
            if deciders.are_all_in(rule, &[&every]) == Some(true) {
                let outside = frames.iter().find(|frame| of_rule(frame) && !predicate.matches_deep(&DeepKey::of(frame)));
                prop_assert!(outside.is_none(), "{:02x?}", outside);
            }
        }
    }
}
