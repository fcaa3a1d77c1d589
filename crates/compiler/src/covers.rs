//! Who takes the packets of a rule that gets none, as far as single rules do. Called by `check`, which warns of
//! such rules; nothing is compiled by it.

use device_model::DeviceProfile;
use policy::Policy;
use policy::policy::{Action, RuleDefinition};

use super::cube::{Cube, Image};
use super::expand::{Expansion, expand};
use super::shape::{ByMask, Shape};

/// Up to so many cubes of one rule are compared one by one.
const FEW_CUBES: usize = 32;
/// The most lookups for the takers of one rule. With more masks than that allows it is not said who they are.
const MAX_LOOKUPS: usize = 1 << 24;

/// Why a rule gets no packets.
pub(crate) enum Taken {
    /// No packet meets it.
    Impossible,
    /// Earlier rules take them all, these among them.
    By(Vec<usize>),
}

/// The covers of a policy's rules, to find who takes whose packets; slow, for diagnostics only.
pub(crate) struct Covers(Vec<(Expansion, bool)>);

impl Covers {
    /// Covers every rule of a policy that compiles.
    pub(crate) fn of(policy: &Policy) -> Self {
        let ideal = DeviceProfile::ideal();
        let cover = |rule: &RuleDefinition| {
            let expansion = expand(&rule.matches, rule.direction, &ideal).unwrap_or(Expansion::NOTHING);
            let claims = !matches!(rule.action, Action::Copy(_) | Action::Sniff(_));
            (expansion, claims)
        };
        Self(policy.rules.iter().map(cover).collect())
    }

    /// Which earlier rules take the packets of a rule that gets none. A hybrid rule takes for certain only
    /// what its other keys leave open, so none of those is named.
    pub(crate) fn taken_by(&self, rule: usize) -> Taken {
        let mut left = self.0.get(rule).map(|(expansion, _)| expansion.cubes.clone()).unwrap_or_default();
        if left.is_empty() {
            return Taken::Impossible;
        }
        let mut takers = Vec::new();
        let mut lookups_left = MAX_LOOKUPS;
        let claiming = self.0.iter().enumerate().take(rule);
        let claiming = claiming.filter(|(_, (other, claims))| *claims && other.software.is_empty());
        for (earlier, (expansion, _)) in claiming {
            let before = left.len();
            take(&mut left, &expansion.cubes, &mut lookups_left);
            if left.len() < before {
                takers.push(earlier);
            }
            if left.is_empty() {
                break;
            }
        }
        Taken::By(takers)
    }
}

/// Removes the cubes that lie within one of the takers.
fn take(left: &mut Vec<Cube>, takers: &[Cube], lookups_left: &mut usize) {
    if takers.len() <= FEW_CUBES {
        left.retain(|cube| !takers.iter().any(|taker| taker.contains(cube)));
        return;
    }
    let mut shapes: ByMask<Image, Shape> = ByMask::default();
    for (index, taker) in takers.iter().enumerate() {
        shapes.entry(taker.mask).or_insert_with(|| Shape::new(taker, true)).add(taker, index, 0);
    }
    let lookups = shapes.len().saturating_mul(left.len());
    if lookups > *lookups_left {
        return;
    }
    *lookups_left -= lookups;
    left.retain(|cube| {
        let mut known = shapes.values().filter(|shape| shape.asks_no_more_than(&cube.mask));
        !known.any(|shape| shape.find(cube).is_some())
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cube::{SRC_HIGH, SRC_MAC};

    #[test]
    fn many_takers_are_found_as_few_are() {
        let hosts = |from: u64, count: u64| -> Vec<Cube> {
            let cube = |host| Cube::ANY.with(SRC_HIGH, host, u64::MAX).expect("no other field");
            (from..from + count).map(cube).collect()
        };
        let net = Cube::ANY.with(SRC_HIGH, 0x100, !0xff).expect("no other field");
        for takers in [hosts(0x1f0, 20), [hosts(0x300, 100), vec![net], hosts(0x1f0, 100)].concat()] {
            let left = [hosts(0x80, 0x400), vec![net, Cube::ANY], hosts(0x1f8, 1)].concat();
            let narrowed = |cube: &Cube| cube.with(SRC_MAC, 7, 0xff);
            let left: Vec<Cube> =
                left.iter().chain(&left.iter().filter_map(narrowed).collect::<Vec<_>>()).copied().collect();
            let wanted: Vec<Cube> = left
                .iter()
                .filter(|cube| !takers.iter().any(|taker| taker.contains(cube)))
                .copied()
                .collect();
            let mut taken = left.clone();
            take(&mut taken, &takers, &mut MAX_LOOKUPS.clone());
            assert!(taken == wanted && wanted.len() < left.len());
            let mut untouched = left.clone();
            take(&mut untouched, &takers, &mut 0);
            assert!(untouched == if takers.len() > FEW_CUBES { left } else { wanted });
        }
    }
}
