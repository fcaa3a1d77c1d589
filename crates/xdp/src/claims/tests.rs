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

/// The slot by which a claim drops, as the documentation of this module has it.
fn expected(added: &[Added], claim: &Claim) -> u64 {
    let own: Vec<&Added> = added.iter().filter(|(one, ..)| one == claim).collect();
    let [(_, precedence, ClaimAction::Drop(counter))] = *own else { return 0 };
    let others: Vec<&Added> = added.iter().filter(|(one, ..)| one != claim && one.overlaps(claim)).collect();
    let is_alone = |one: &Claim| added.iter().filter(|(other, ..)| other == one).count() == 1;
    let agrees = |(one, of_other, action): &&&Added| {
        of_other > precedence || is_alone(one) && *action == ClaimAction::Drop(counter.clone())
    };
    if others.iter().all(|other| agrees(&other)) { counter.slot() } else { 0 }
}

fn check(table: &mut ClaimTable, added: &[Added]) {
    for (claim, ..) in added {
        let rule = table.state(claim).expect("it was added").rule;
        assert_eq!(table.trees.drop_of(rule), expected(added, claim), "{claim:x?} of {added:x?}");
    }
}

proptest! {
    #[test]
    fn a_claim_drops_if_and_only_if_nothing_disputes_it(
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
            check(&mut table, &added);
        }
        while let Some((claim, precedence, action)) = added.pop() {
            prop_assert!(table.remove(&claim, precedence, &action));
            check(&mut table, &added);
        }
        prop_assert_eq!(table.report(), ClaimReport { claims: 0, dropping: 0, widened: 0 });
        prop_assert!(table.groups.is_empty());
    }
}

/// A claim that does not fit changes nothing.
#[test]
fn a_refused_claim_disputes_nothing() {
    let mut table = table(1);
    let counter = table.drop_counter().expect("free");
    let everything = Claim::new([0; LEVEL_WORDS], [0; LEVEL_WORDS]);
    let some = Claim::new([1, 0, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]);
    let drops = ClaimAction::Drop(counter);
    table.add(&some, 0, drops.clone()).expect("there is room");
    assert!(matches!(table.add(&everything, 0, ClaimAction::Redirect), Err(XdpError::Full { limit: 1 })));
    check(&mut table, &[(some, 0, drops)]);
    assert_eq!(table.report(), ClaimReport { claims: 1, dropping: 1, widened: 0 });
}
