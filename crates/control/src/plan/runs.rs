//! Grouping of a program's flows by a key that flows side by side mostly share.

use std::collections::BTreeMap;
use std::ops::Range;

/// The indices of each key, as ranges in ascending order, and those that were added; indices without a key
/// are in none.
pub(super) struct Runs<K>(BTreeMap<K, Vec<Range<usize>>>);

impl<K: Ord + Copy> Runs<K> {
    /// Groups indices from 0 by their keys.
    pub(super) fn of(keys: impl Iterator<Item = Option<K>>) -> Self {
        let mut groups: BTreeMap<K, Vec<Range<usize>>> = BTreeMap::new();
        let mut run: Option<(K, Range<usize>)> = None;
        for (index, key) in keys.enumerate() {
            match (&mut run, key) {
                (Some((of_run, range)), Some(key)) if *of_run == key => range.end = index + 1,
                _ => {
                    let next = key.map(|key| (key, index..index + 1));
                    if let Some((key, range)) = std::mem::replace(&mut run, next) {
                        groups.entry(key).or_default().push(range);
                    }
                }
            }
        }
        run.into_iter().for_each(|(key, range)| groups.entry(key).or_default().push(range));
        Self(groups)
    }

    /// The keys in ascending order.
    pub(super) fn keys(&self) -> Vec<K> {
        self.0.keys().copied().collect()
    }

    /// Adds an index to a key, behind those that the key has.
    pub(super) fn add(&mut self, key: K, index: usize) {
        self.0.entry(key).or_default().push(index..index + 1);
    }

    /// The indices of a key in ascending order, and behind them those that were added.
    pub(super) fn of_key(&self, key: K) -> impl Iterator<Item = usize> + Clone {
        self.0.get(&key).into_iter().flatten().cloned().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All sequences of six keys out of two, or none.
    #[test]
    fn the_groups_are_those_of_a_list() {
        for number in 0..3usize.pow(6) {
            let key = |place: u32| Some(number / 3usize.pow(place) % 3).filter(|key| *key < 2);
            let keys: Vec<Option<usize>> = (0..6).map(key).collect();
            let runs = Runs::of(keys.iter().copied());
            let listed =
                |key: usize| (0..6).filter(|index| keys[*index] == Some(key)).collect::<Vec<usize>>();
            assert_eq!(runs.keys(), (0..2).filter(|key| !listed(*key).is_empty()).collect::<Vec<_>>());
            (0..3).for_each(|key| assert_eq!(runs.of_key(key).collect::<Vec<_>>(), listed(key), "{keys:?}"));
        }
    }
}
