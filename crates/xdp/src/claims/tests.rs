use std::collections::HashSet;

use packet::cube::LEVEL_WORDS;
use proptest::prelude::*;

use super::*;
use crate::drops::DROP_WORDS;
use crate::memory::SharedWords;
use crate::tree::tests::{claim, trees};

/// Three of them have a purpose.
const SLOTS: usize = 5;

fn table(claims: usize) -> ClaimTable {
    let drops = DropMemory::new(SharedWords::own(SLOTS * DROP_WORDS), SLOTS);
    ClaimTable::new(trees(4 * claims, claims).0, drops, claims as u32)
}

type Added = (Claim, u32, ClaimAction);

/// The effect of a claim that drops, or of one that does not, as the documentation of this module has it.
fn expected(added: &[Added], (claim, drops): &(Claim, bool)) -> Effect {
    let own = || added.iter().filter(|(one, _, action)| one == claim && (action.slot() != 0) == *drops);
    let precedence = own().map(|(_, precedence, _)| *precedence).min().expect("it was added");
    let slots: HashSet<u32> =
        own().filter(|(_, of, _)| *of == precedence).map(|(.., action)| action.slot()).collect();
    Effect { precedence, slot: if slots.len() == 1 { slots.into_iter().sum() } else { 0 } }
}

fn check(table: &ClaimTable, added: &[Added]) {
    let keys: HashSet<(Claim, bool)> =
        added.iter().map(|(claim, _, action)| (*claim, action.slot() != 0)).collect();
    assert_eq!(table.claims.keys().copied().collect::<HashSet<_>>(), keys);
    for key in keys {
        let effect = table.trees.effect_of(table.claims[&key].rule);
        assert_eq!(effect, expected(added, &key), "{key:x?} of {added:x?}");
    }
}

proptest! {
    #[test]
    fn a_claim_has_the_effect_of_its_lowest_precedence(
        steps in prop::collection::vec(
            (claim(), 0..4usize, prop::option::weighted(0.3, any::<prop::sample::Index>()), 0..3u32), 1..40),
    ) {
        let mut table = table(64);
        let counters: Vec<DropCounter> = (2..SLOTS).map(|_| table.drop_counter().unwrap()).collect();
        prop_assert!(table.drop_counter().is_none());
        let mut added: Vec<Added> = Vec::new();
        for (mut claim, action, which, precedence) in steps {
            match which {
                Some(which) if !added.is_empty() && action > 0 => {
                    let (claim, precedence, action) = added.swap_remove(which.index(added.len()));
                    prop_assert!(table.remove(&claim, precedence, &action));
                }
                _ => {
                    // Some are added again.
                    if let Some(which) = which.filter(|_| !added.is_empty()) {
                        claim = added[which.index(added.len())].0;
                    }
                    let counter = counters.get(action).cloned();
                    let action = counter.map_or(ClaimAction::Redirect, ClaimAction::Drop);
                    table.add(&claim, precedence, action.clone()).unwrap();
                    added.push((claim, precedence, action));
                }
            }
            check(&table, &added);
        }
        while let Some((claim, precedence, action)) = added.pop() {
            prop_assert!(table.remove(&claim, precedence, &action));
            check(&table, &added);
        }
        prop_assert_eq!(table.report(), ClaimReport { claims: 0, dropping: 0, widened: 0 });
        prop_assert!(table.claims.is_empty());
    }
}

#[test]
fn a_refused_claim_changes_nothing() {
    let mut table = table(1);
    let counter = table.drop_counter().expect("free");
    let everything = Claim::new([0; LEVEL_WORDS], [0; LEVEL_WORDS]);
    let some = Claim::new([1, 0, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]);
    let drops = ClaimAction::Drop(counter);
    table.add(&some, 0, drops.clone()).expect("there is room");
    assert!(matches!(table.add(&everything, 0, ClaimAction::Redirect), Err(XdpError::Full { limit: 1 })));
    check(&table, &[(some, 0, drops)]);
    assert_eq!(table.report(), ClaimReport { claims: 1, dropping: 1, widened: 0 });
}
