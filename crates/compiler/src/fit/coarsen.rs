//! Wider cubes where the device has too few flows or masks for the exact ones: flows of different rules
//! become equal, and a worker decides their packets. It is tried in steps until the program fits. A wide cube
//! takes packets of later rules to a worker, and none of earlier ones, so that the rules at the end of the
//! policy are the first to be widened. With [`Weights`] the rules with fewest packets are tried as well, and
//! the program that decides more packets in hardware is taken. With the last step all rules together need one
//! mask and one flow for each hash variant.

use std::cmp::Reverse;

use program::{RuleId, UndecidedKey, UndecidedReason};

use crate::cover::{CoveredRule, everything};
use crate::cube::{Cube, DST_HIGH, DST_IPV4, DST_LOW, HAS_IPV4, HAS_IPV6, SRC_HIGH, SRC_IPV4, SRC_LOW, Slot};
use crate::traffic::weights::Weights;

/// The part of the cubes of rules that is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// IP addresses and the version.
    Addresses,
    /// The IP version.
    Family,
    Nothing,
}

/// Which rules are widened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Widened {
    /// The second half of the policy.
    Last,
    /// The half with fewest packets, of equal ones the last.
    Lightest,
    All,
}

/// The cubes to be widened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Coarse {
    left: Left,
    widened: Widened,
}

impl Coarse {
    /// In the order in which they are tried. Of the alternatives of a step, the one that decides most packets
    /// in hardware is taken.
    const STEPS: [&[Self]; 5] = [
        &[
            Self { left: Left::Addresses, widened: Widened::Last },
            Self { left: Left::Addresses, widened: Widened::Lightest },
        ],
        &[Self { left: Left::Addresses, widened: Widened::All }],
        &[
            Self { left: Left::Family, widened: Widened::Last },
            Self { left: Left::Family, widened: Widened::Lightest },
        ],
        &[Self { left: Left::Family, widened: Widened::All }],
        &[Self { left: Left::Nothing, widened: Widened::All }],
    ];

    /// The alternatives of each step. Without weights no rule is lighter than another.
    pub(crate) fn steps(is_weighted: bool) -> impl Iterator<Item = impl Iterator<Item = Self>> {
        let is_known = move |coarse: &Self| is_weighted || coarse.widened != Widened::Lightest;
        Self::STEPS.into_iter().map(move |step| step.iter().copied().filter(is_known))
    }
}

/// Widens rules that decide received packets.
pub(crate) fn coarsen(
    mut rules: Vec<CoveredRule>,
    coarse: Option<Coarse>,
    weights: Option<&Weights>,
) -> Vec<CoveredRule> {
    let Some(Coarse { left, widened: which }) = coarse else { return rules };
    let mut order: Vec<usize> = (0..rules.len()).collect();
    let count = match which {
        Widened::All => rules.len(),
        Widened::Last | Widened::Lightest => rules.len().div_ceil(2),
    };
    let weight = |rule: usize| match which {
        Widened::Lightest => weights.map_or(0, |weights| weights.of(RuleId::of(rule))),
        Widened::Last | Widened::All => 0,
    };
    order.sort_by_key(|rule| (weight(*rule), Reverse(*rule)));
    for index in order.into_iter().take(count) {
        let rule = &mut rules[index];
        if rule.decides() && !rule.expansion.cubes.is_empty() {
            let note = UndecidedKey { key: "match".to_owned(), why: UndecidedReason::NoCapacity };
            rule.widen(note, |cube| widened(cube, left));
        }
    }
    rules
}

fn widened(cube: &Cube, left: Left) -> Cube {
    let any = everything().unwrap_or(Cube::ANY);
    let v4: &[Slot] = &[SRC_IPV4, DST_IPV4];
    let v6: &[Slot] = &[SRC_HIGH, SRC_LOW, DST_HIGH, DST_LOW];
    let family = [(HAS_IPV4, v4), (HAS_IPV6, v6)].into_iter().find(|(layer, _)| cube.has(*layer));
    let Some((layer, addresses)) = family.filter(|_| left != Left::Nothing) else { return any };
    let kept = addresses.iter().filter(|_| left == Left::Addresses);
    let with = |wide: Cube, slot: &Slot| wide.with(*slot, cube.value_of(*slot), cube.mask_of(*slot));
    let wide = any.layer(layer, true).and_then(|wide| kept.clone().try_fold(wide, with));
    wide.and_then(Cube::closed).unwrap_or(any)
}
