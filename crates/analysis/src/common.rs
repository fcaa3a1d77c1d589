//! Which rules two policies have in common, in one order. What they do differently lies within the other
//! rules: were a packet to come to none of those, the common ones would decide it alike on both sides.

use std::collections::{BTreeSet, HashMap};

use policy::Policy;

use super::cell::Cell;
use super::lane::{Entry, Lane, Role, by_rule};
use super::text::match_text;

/// The rules on each side that the other has not, or not in its place.
pub(super) struct Changed {
    pub(super) old: BTreeSet<u32>,
    pub(super) new: BTreeSet<u32>,
}

/// What a rule's parts are, and its match where those are rough.
type Meaning<'e> = (Vec<(Role, &'e Cell)>, Option<String>);

/// Compares rules by what they mean, not by how they are written or called.
pub(super) fn changed(old: (&Policy, &Lane), new: (&Policy, &Lane)) -> Changed {
    let (old, new) = (by_meaning(old.0, &old.1.entries), by_meaning(new.0, &new.1.entries));
    let mut places: HashMap<&Meaning<'_>, Vec<usize>> = HashMap::new();
    for (place, (_, meaning)) in new.iter().enumerate().rev() {
        places.entry(meaning).or_default().push(place);
    }
    // The n-th of some meaning goes with the n-th of the other side.
    let mut matched: Vec<(usize, usize)> = Vec::new();
    for (place, (_, meaning)) in old.iter().enumerate() {
        if let Some(other) = places.get_mut(meaning).and_then(Vec::pop) {
            matched.push((place, other));
        }
    }
    let kept = longest_rising(&matched);
    let rules = |side: &[(u32, Meaning<'_>)], kept: &BTreeSet<usize>| {
        side.iter()
            .enumerate()
            .filter(|(place, _)| !kept.contains(place))
            .map(|(_, (rule, _))| *rule)
            .collect()
    };
    Changed {
        old: rules(&old, &kept.iter().map(|pair| pair.0).collect()),
        new: rules(&new, &kept.iter().map(|pair| pair.1).collect()),
    }
}

fn by_meaning<'e>(policy: &Policy, entries: &'e [Entry]) -> Vec<(u32, Meaning<'e>)> {
    let meaning = |(rule, parts): (u32, Vec<&'e Entry>)| {
        let is_rough = parts.iter().any(|part| part.cell.is_rough);
        let text = policy.rules.get(rule as usize).filter(|_| is_rough).map(|rule| match_text(&rule.matches));
        (rule, (parts.into_iter().map(|part| (part.role, &part.cell)).collect(), text))
    };
    by_rule(entries).into_iter().map(meaning).collect()
}

/// The most pairs, which rise on the first side, that rise on the second as well.
fn longest_rising(pairs: &[(usize, usize)]) -> Vec<(usize, usize)> {
    // By length, the pair with the least end that such a sequence can have; and for each pair the one before.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(pairs.len());
    for (index, pair) in pairs.iter().enumerate() {
        let length = ends.partition_point(|end| pairs[*end].1 < pair.1);
        before.push(length.checked_sub(1).map(|shorter| ends[shorter]));
        if length == ends.len() {
            ends.push(index);
        } else {
            ends[length] = index;
        }
    }
    let mut rising = Vec::new();
    let mut next = ends.last().copied();
    while let Some(index) = next {
        rising.push(pairs[index]);
        next = before[index];
    }
    rising.reverse();
    rising
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_rising_part_is_kept() {
        let pairs: Vec<(usize, usize)> = [3, 0, 1, 4, 2].into_iter().enumerate().collect();
        assert_eq!(longest_rising(&pairs), [(1, 0), (2, 1), (4, 2)]);
        assert_eq!(longest_rising(&[]), []);
    }
}
