//! The results of `analyse` compared with the linear reference matcher: every positive result by its example
//! packet, every negative result by packets at the edges of the rules.

use analysis::{Analysis, Need, Reach, Relation, analyse};
use packet::DeepKey;
use policy::Policy;
use policy::policy::{Action, Direction};
use program::Predicate;
use proptest::prelude::*;

use crate::analysis_support::packets::frame;
use crate::analysis_support::{fate, policy, reached, rules, treatment};

const DIRECTIONS: [Direction; 2] = [Direction::Ingress, Direction::Egress];

fn matches(policy: &Policy, rule: usize, key: &DeepKey) -> bool {
    Predicate::of(&policy.rules[rule].matches).matches_deep(key)
}

/// Checks every result of an analysis with its witness.
fn witnesses_show_it(policy: &Policy) -> Result<(), TestCaseError> {
    let analysis = analyse(policy, &mut |_| {});
    prop_assert_eq!(analysis.not_decided, 0);
    for (index, (rule, found)) in policy.rules.iter().zip(&analysis.rules).enumerate() {
        let comes_to = |key: &DeepKey| reached(policy, rule.direction, key);
        if let Reach::Reached(witness) = &found.reach {
            let comes = comes_to(&witness.key()).contains(&index);
            let sniffs = matches!(rule.action, Action::Sniff(_)) && matches(policy, index, &witness.key());
            prop_assert!(comes || sniffs, "{} does not reach r{index}", witness);
        }
        if let Need::Needed(witness) = &found.need {
            let with = treatment(policy, rule.direction, &witness.key(), None);
            let without = treatment(policy, rule.direction, &witness.key(), Some(index));
            prop_assert_ne!(with, without, "{} is treated alike without r{}", witness, index);
        }
        for (pairs, same) in [(&found.conflicts, false), (&found.overlaps, true)] {
            prop_assert!(pairs.listed.len() <= pairs.count);
            for pair in &pairs.listed {
                let key = pair.witness.key();
                prop_assert!(matches(policy, index, &key), "{} is not of r{index}", pair.witness);
                prop_assert!(comes_to(&key).contains(&pair.earlier.index()), "{}", pair.witness);
                prop_assert_eq!(policy.rules[pair.earlier.index()].action == rule.action, same);
            }
        }
    }
    Ok(())
}

/// Holds the numbers of earlier rules that share packets with a rule to one packet.
fn shared_packets_are_counted(
    policy: &Policy,
    analysis: &Analysis,
    direction: Direction,
    key: &DeepKey,
) -> Result<(), TestCaseError> {
    let sniffs = |index: usize| matches!(policy.rules[index].action, Action::Sniff(_));
    let meets = |index: &usize| {
        policy.rules[*index].direction == direction && !sniffs(*index) && matches(policy, *index, key)
    };
    let met: Vec<usize> = (0..policy.rules.len()).filter(meets).collect();
    for (place, index) in met.iter().enumerate() {
        let action = |index: &usize| policy.rules[*index].action;
        let same = met[..place].iter().filter(|earlier| action(earlier) == action(index)).count();
        let other = met[..place].iter().filter(|earlier| {
            action(earlier) != action(index) && !matches!(action(earlier), Action::Copy(_))
        });
        let found = &analysis.rules[*index];
        prop_assert!(same <= found.overlaps.count, "r{index}: {same} of {:?}", found.overlaps);
        prop_assert!(other.count() <= found.conflicts.count, "r{index}: {:?}", found.conflicts);
    }
    Ok(())
}

/// Holds every "never" to packets.
fn packets_agree(policy: &Policy, frames: &[Vec<u8>]) -> Result<(), TestCaseError> {
    let analysis = analyse(policy, &mut |_| {});
    let witnesses = analysis.rules.iter().filter_map(|rule| match &rule.reach {
        Reach::Reached(witness) => Some(witness.frame.clone()),
        _ => None,
    });
    let keys: Vec<DeepKey> =
        frames.iter().cloned().chain(witnesses).map(|frame| DeepKey::of(&frame)).collect();
    for (key, direction) in keys.iter().flat_map(|key| DIRECTIONS.map(|direction| (key, direction))) {
        let comes_to = reached(policy, direction, key);
        let whole = treatment(policy, direction, key, None);
        for (index, (rule, found)) in policy.rules.iter().zip(&analysis.rules).enumerate() {
            if rule.direction == direction {
                prop_assert!(!(found.is_dead() && comes_to.contains(&index)), "r{index}: {:?}", found.reach);
            }
            if found.need == Need::Redundant {
                let without = treatment(policy, direction, key, Some(index));
                prop_assert_eq!(&without, &whole, "r{} makes a difference", index);
            }
            if let Reach::Shadowed(takers) = &found.reach
                && rule.direction == direction
                && matches(policy, index, key)
            {
                let taken = takers.iter().any(|taker| matches(policy, taker.index(), key));
                prop_assert!(taken, "r{index} is not taken by {takers:?}");
            }
            for pair in &found.conflicts.listed {
                let (theirs, ours) =
                    (matches(policy, pair.earlier.index(), key), matches(policy, index, key));
                match pair.relation {
                    Relation::Exception => prop_assert!(!theirs || ours),
                    Relation::Shadow => prop_assert!(!ours || theirs),
                    Relation::Same => prop_assert_eq!(ours, theirs),
                    Relation::Correlation => {}
                }
            }
        }
        shared_packets_are_counted(policy, &analysis, direction, key)?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn every_claim_has_a_packet_that_shows_it(rules in rules(8), default in fate()) {
        witnesses_show_it(&policy(rules, default))?;
    }

    #[test]
    fn no_packet_shows_the_contrary(
        rules in rules(8),
        default in fate(),
        frames in prop::collection::vec(frame(), 48),
    ) {
        packets_agree(&policy(rules, default), &frames)?;
    }
}
