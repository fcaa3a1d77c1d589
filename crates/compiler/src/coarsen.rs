//! Wider cubes where the device has too few flows or masks for the exact ones: flows of different rules become
//! equal, and a worker decides their packets. It is tried in steps until the program fits, from the end of the policy: a wide
//! cube takes packets of later rules to a worker, and none of earlier ones. With the last step all rules together need
//! one mask and one flow for each hash variant.

use program::{UndecidedKey, UndecidedReason};

use super::cover::{CoveredRule, everything};
use super::cube::{Cube, DST_HIGH, DST_IPV4, DST_LOW, HAS_IPV4, HAS_IPV6, SRC_HIGH, SRC_IPV4, SRC_LOW, Slot};

/// What is left of the cubes of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// IP addresses and the version.
    Addresses,
    /// The IP version.
    Family,
    Nothing,
}

/// What is widened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Coarse {
    left: Left,
    /// Whether the first half of the policy stays as it is.
    second_half: bool,
}

impl Coarse {
    /// In the order in which they are tried.
    pub(super) const STEPS: [Self; 5] = [
        Self { left: Left::Addresses, second_half: true },
        Self { left: Left::Addresses, second_half: false },
        Self { left: Left::Family, second_half: true },
        Self { left: Left::Family, second_half: false },
        Self { left: Left::Nothing, second_half: false },
    ];
}

/// Widens the rules that decide received packets.
pub(super) fn coarsen(rules: &mut [CoveredRule], coarse: Option<Coarse>) {
    let Some(Coarse { left, second_half }) = coarse else { return };
    let first = if second_half { rules.len() / 2 } else { 0 };
    for rule in rules[first..].iter_mut().filter(|rule| rule.decides() && !rule.expansion.cubes.is_empty()) {
        let note = UndecidedKey { key: "match".to_owned(), why: UndecidedReason::NoCapacity };
        rule.widen(note, |cube| widened(cube, left));
    }
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
