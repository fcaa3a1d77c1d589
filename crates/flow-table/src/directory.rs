//! The matches that trapping rules about the outer packet have, by value and mask: which groups have a match,
//! and which of them comes first.
//!
//! [`super::tree::Trees`] asks it whether a match is known and builds its trees from it; frames are never
//! looked up here.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use super::key::{DigestHasher, Image, LANES, MatchKey};
use super::shape::{Bucket, Ranked};

/// Values with the number of their mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Match {
    value: MatchKey,
    mask: u32,
}

impl Match {
    fn digest(&self) -> u64 {
        self.value.digest() ^ (u64::from(self.mask) + 1).wrapping_mul(LANES[0])
    }
}

impl Hash for Match {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.digest());
    }
}

/// A mask, and how many matches have it.
#[derive(Debug)]
struct Mask {
    mask: MatchKey,
    matches: u32,
}

/// All matches with their groups.
#[derive(Debug, Default)]
pub(super) struct Directory {
    masks: HashMap<MatchKey, u32, BuildHasherDefault<DigestHasher>>,
    /// The masks by number; those without matches are in `vacant`.
    by_number: Vec<Mask>,
    vacant: Vec<u32>,
    matches: HashMap<Match, Bucket, BuildHasherDefault<DigestHasher>>,
    /// Every bit that some mask has.
    relevant: MatchKey,
}

impl Directory {
    /// How many different masks there are.
    pub(super) fn masks(&self) -> usize {
        self.masks.len()
    }

    pub(super) fn has_mask(&self, mask: &MatchKey) -> bool {
        self.masks.contains_key(mask)
    }

    pub(super) fn relevant(&self) -> &MatchKey {
        &self.relevant
    }

    /// The groups with a match, best precedence first.
    fn groups(&self, value: &MatchKey, mask: &MatchKey) -> Option<&Bucket> {
        let found = Match { value: *value, mask: *self.masks.get(mask)? };
        self.matches.get(&found)
    }

    /// The group with this match at this kind and priority.
    pub(super) fn group_at(&self, value: &MatchKey, mask: &MatchKey, level: u64) -> Option<Ranked> {
        self.groups(value, mask)?.iter().find(|ranked| ranked.precedence.level() == level).copied()
    }

    /// The first group with a match.
    pub(super) fn best(&self, value: &MatchKey, mask: &MatchKey) -> Option<Ranked> {
        self.groups(value, mask).map(Bucket::best)
    }

    pub(super) fn add(&mut self, value: &MatchKey, mask: &MatchKey, ranked: Ranked) {
        let number = self.masks.get(mask).copied().unwrap_or_else(|| self.add_mask(mask));
        let added = Match { value: *value, mask: number };
        let matches = &mut self.by_number[number as usize].matches;
        self.matches.entry(added).and_modify(|bucket| bucket.add(ranked)).or_insert_with(|| {
            *matches += 1;
            Bucket::new(ranked)
        });
    }

    pub(super) fn remove(&mut self, value: &MatchKey, mask: &MatchKey, ranked: Ranked) {
        let Some(number) = self.masks.get(mask).copied() else { return };
        let removed = Match { value: *value, mask: number };
        if self.matches.get_mut(&removed).is_some_and(|bucket| bucket.remove(ranked)) {
            self.matches.remove(&removed);
            let matches = &mut self.by_number[number as usize].matches;
            *matches -= 1;
            if *matches == 0 {
                self.masks.remove(mask);
                self.vacant.push(number);
                self.relevant = self.masks.keys().fold(MatchKey::default(), |all, mask| all.union(mask));
            }
        }
    }

    /// Every match and its first group.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&MatchKey, &MatchKey, Ranked)> {
        self.matches
            .iter()
            .map(|(found, bucket)| (&found.value, &self.by_number[found.mask as usize].mask, bucket.best()))
    }

    fn add_mask(&mut self, mask: &MatchKey) -> u32 {
        let entry = Mask { mask: *mask, matches: 0 };
        let number = match self.vacant.pop() {
            Some(number) => {
                self.by_number[number as usize] = entry;
                number
            }
            None => {
                self.by_number.push(entry);
                // Masks are limited to MAX_SHAPES.
                (self.by_number.len() - 1) as u32
            }
        };
        self.masks.insert(*mask, number);
        self.relevant = self.relevant.union(mask);
        number
    }
}
