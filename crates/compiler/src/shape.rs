//! The kept candidates of one mask, for questions that must not cost a look at each of them: is there one of
//! this value, and which of them meet a cube. Called by `priority`, `exceptions` and `covers`. Values are found
//! by a hash of the words that the mask touches, and verified.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::cube::{Cube, Image, WORDS};

/// From so many entries on an index may pay.
const SCANNED: usize = 32;
/// An index is made once so many times its cost went into scans.
const SCANS_PER_INDEX: usize = 4;
/// The most entries of all indices of one shape, in multiples of its entries.
const MAX_INDICES: usize = 64;

/// The words that tell most come first.
const WORD_ORDER: [usize; WORDS] = [1, 2, 0, 5, 6, 3, 4, 7, 16, 17, 18, 19, 9, 10, 8, 13, 14, 11, 12, 15];

/// Of a cube, or of all cubes of a shape, the words that tell most: the bits that are asked, and what they
/// are. Kept side by side, the fronts of many shapes are looked through at once.
#[derive(Clone, Copy)]
pub(super) struct Front {
    bits: [u64; FRONT],
    values: [u64; FRONT],
}

pub(super) const FRONT: usize = 4;

impl Front {
    pub(super) fn of(cube: &Cube) -> Self {
        let word = |place: usize| WORD_ORDER[place];
        Self {
            bits: std::array::from_fn(|place| cube.mask[word(place)]),
            values: std::array::from_fn(|place| cube.value[word(place)]),
        }
    }

    /// The same words of a mask.
    pub(super) fn mask(mask: &Image) -> [u64; FRONT] {
        std::array::from_fn(|place| mask[WORD_ORDER[place]])
    }

    /// Whether both ask for a bit that is not alike.
    #[inline]
    pub(super) fn differs(&self, other: &Self) -> bool {
        let differ =
            |place: usize| (self.values[place] ^ other.values[place]) & self.bits[place] & other.bits[place];
        (0..FRONT).fold(0, |all, place| all | differ(place)) != 0
    }

    /// Leaves what is alike in a cube, which asks for all that is asked here.
    fn agree_on(&mut self, cube: &Cube) {
        for (place, word) in WORD_ORDER.into_iter().take(FRONT).enumerate() {
            self.bits[place] &= !(self.values[place] ^ cube.value[word]);
            self.values[place] &= self.bits[place];
        }
    }
}

/// The kept candidates of one mask.
pub(super) struct Shape {
    pub(super) traps: bool,
    front: Front,
    /// The words that the mask touches, and the mask there.
    words: Vec<(usize, u64)>,
    /// For each of these words the values of all entries there.
    columns: Vec<Vec<u64>>,
    entries: Vec<Entry>,
    deepest: u32,
    /// For each of these words the bits on which all entries agree, and what they are: most shapes are told
    /// apart from a cube by these alone.
    common: Vec<(u64, u64)>,
    /// The last entry by the hash of its value.
    exact: Map<u32>,
    /// Entries whose place there another value has taken.
    collided: Vec<u32>,
    /// By the part of the mask that a cube shares with it.
    joints: HashMap<Vec<u64>, Joint, BuildHasherDefault<Hashed>>,
}

#[derive(Clone, Copy)]
struct Entry {
    candidate: u32,
    rank: u32,
}

/// The entries by their value under a part of the mask.
#[derive(Default)]
struct Joint {
    /// Entries looked at for want of an index.
    scanned: usize,
    /// The last entry of each value.
    index: Option<Map<u32>>,
    /// For each indexed entry the one before it of the same value.
    before: Vec<Option<u32>>,
}

type Map<V> = HashMap<u64, V, BuildHasherDefault<Hashed>>;

/// A map by masks: nobody outside chooses them to collide, but for the time of his own compiler.
pub(crate) type ByMask<K, V> = HashMap<K, V, BuildHasherDefault<Hashed>>;

/// Mixes words; takes a single one for a hash already.
#[derive(Default)]
pub(crate) struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        self.0 = hash_of(words.iter().map(|word| u64::from_ne_bytes(*word))).wrapping_add(self.0);
        self.0 = rest.iter().fold(self.0, |hash, byte| mix(hash, u64::from(*byte)));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

fn mix(hash: u64, word: u64) -> u64 {
    // The multiplier of FxHash; the final rotation brings the good upper bits down.
    ((hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95)).rotate_left(26)
}

fn hash_of(words: impl Iterator<Item = u64>) -> u64 {
    words.fold(0, mix)
}

impl Shape {
    pub(super) fn new(cube: &Cube, traps: bool) -> Self {
        let touched = WORD_ORDER.into_iter().map(|word| (word, cube.mask[word]));
        let words: Vec<(usize, u64)> = touched.filter(|(_, mask)| *mask != 0).collect();
        Self {
            traps,
            front: Front::of(cube),
            columns: vec![Vec::new(); words.len()],
            common: words.iter().map(|(word, mask)| (*mask, cube.value[*word])).collect(),
            words,
            entries: Vec::new(),
            deepest: 0,
            exact: Map::default(),
            collided: Vec::new(),
            joints: HashMap::default(),
        }
    }

    pub(super) fn add(&mut self, cube: &Cube, candidate: usize, rank: u32) {
        for ((bits, value), (word, _)) in self.common.iter_mut().zip(&self.words) {
            *bits &= !(*value ^ cube.value[*word]);
            *value &= *bits;
        }
        self.front.agree_on(cube);
        self.deepest = self.deepest.max(rank);
        for (column, (word, _)) in self.columns.iter_mut().zip(&self.words) {
            column.push(cube.value[*word]);
        }
        // Flows are far fewer than 2^32.
        let (entry, candidate) = (self.entries.len() as u32, u32::try_from(candidate).unwrap_or(u32::MAX));
        self.entries.push(Entry { candidate, rank });
        let before = self.exact.insert(self.hash(cube), entry);
        self.collided.extend(before.filter(|other| !self.has_value(*other, cube)));
    }

    /// The greatest rank of an entry.
    pub(super) fn deepest(&self) -> u32 {
        self.deepest
    }

    /// Whether every bit of the mask is one of the other's.
    pub(super) fn asks_no_more_than(&self, mask: &Image) -> bool {
        self.words.iter().all(|(word, bits)| bits & !mask[*word] == 0)
    }

    /// Whether the cube agrees with what all entries have in common.
    pub(super) fn may_meet(&self, cube: &Cube) -> bool {
        let mut common = self.words.iter().zip(&self.common);
        common.all(|((word, _), (bits, value))| (cube.value[*word] ^ value) & cube.mask[*word] & bits == 0)
    }

    /// What tells most of it.
    pub(super) fn front(&self) -> &Front {
        &self.front
    }

    /// What tells most of its mask.
    pub(super) fn front_mask(&self) -> [u64; FRONT] {
        std::array::from_fn(|place| {
            let asked = self.words.iter().find(|(word, _)| *word == WORD_ORDER[place]);
            asked.map_or(0, |(_, mask)| *mask)
        })
    }

    /// The candidate that has the cube's value under the mask. There is one at most: another would be covered.
    #[inline]
    pub(super) fn find(&self, cube: &Cube) -> Option<usize> {
        if self.front.differs(&Front::of(cube)) { None } else { self.find_value(cube) }
    }

    fn find_value(&self, cube: &Cube) -> Option<usize> {
        let first = self.exact.get(&self.hash(cube))?;
        let mut entries = [first].into_iter().chain(&self.collided);
        let entry = entries.find(|entry| self.has_value(**entry, cube))?;
        Some(self.entries[*entry as usize].candidate as usize)
    }

    fn has_value(&self, entry: u32, cube: &Cube) -> bool {
        let mut words = self.words.iter().zip(&self.columns);
        words.all(|((word, mask), column)| column[entry as usize] == cube.value[*word] & mask)
    }

    fn hash(&self, cube: &Cube) -> u64 {
        hash_of(self.words.iter().map(|(word, mask)| cube.value[*word] & mask))
    }

    /// Adds the candidates and ranks of the entries that meet the cube and rank at least so deep. Returns at how
    /// many entries it has looked.
    pub(super) fn entries_that_meet(&mut self, cube: &Cube, rank: u32, met: &mut Vec<(usize, u32)>) -> usize {
        if self.entries.len() < SCANNED {
            return self.scan(cube, rank, met);
        }
        let masks: Vec<u64> = self.words.iter().map(|(word, mask)| mask & cube.mask[*word]).collect();
        let room = self.joints.len() < MAX_INDICES;
        let Some(joint) = self.joints.get_mut(&masks) else {
            if room {
                self.joints.insert(masks, Joint { scanned: self.entries.len(), ..Joint::default() });
            }
            return self.scan(cube, rank, met);
        };
        if joint.index.is_none() {
            joint.scanned += self.entries.len();
            if joint.scanned < SCANS_PER_INDEX * self.entries.len() {
                return self.scan(cube, rank, met);
            }
        }
        let index = joint.index.get_or_insert_default();
        for entry in joint.before.len()..self.entries.len() {
            let hash = hash_of(self.columns.iter().zip(&masks).map(|(column, mask)| column[entry] & mask));
            // Flows are far fewer than 2^32.
            joint.before.push(index.insert(hash, entry as u32));
        }
        let hash = hash_of(self.words.iter().zip(&masks).map(|((word, _), mask)| cube.value[*word] & mask));
        let mut found = index.get(&hash).copied();
        let mut looked_at = 0;
        while let Some(entry) = found.map(|entry| entry as usize) {
            looked_at += 1;
            let Entry { candidate, rank: own } = self.entries[entry];
            if own >= rank && meets(&self.words, &self.columns, entry, cube) {
                met.push((candidate as usize, own));
            }
            found = joint.before[entry];
        }
        looked_at
    }

    fn scan(&self, cube: &Cube, rank: u32, met: &mut Vec<(usize, u32)>) -> usize {
        let deep = self.entries.iter().enumerate().filter(|(_, entry)| entry.rank >= rank);
        let asked = self.words.iter().map(|(word, mask)| (*word, mask & cube.mask[*word]));
        // Most entries differ already in the word of which most bits are asked.
        let telling = asked.zip(&self.columns).max_by_key(|((_, mask), _)| mask.count_ones());
        let Some(((word, mask), column)) = telling.filter(|((_, mask), _)| *mask != 0) else {
            met.extend(deep.map(|(_, entry)| (entry.candidate as usize, entry.rank)));
            return self.entries.len();
        };
        let value = cube.value[word] & mask;
        for (entry, _) in column.iter().enumerate().filter(|(_, own)| *own & mask == value) {
            let Entry { candidate, rank: own } = self.entries[entry];
            if own >= rank && meets(&self.words, &self.columns, entry, cube) {
                met.push((candidate as usize, own));
            }
        }
        self.entries.len()
    }
}

/// Whether an entry's values agree with the cube where both ask.
fn meets(words: &[(usize, u64)], columns: &[Vec<u64>], entry: usize, cube: &Cube) -> bool {
    let mut pairs = words.iter().zip(columns);
    pairs.all(|((word, mask), column)| (column[entry] ^ cube.value[*word]) & mask & cube.mask[*word] == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cube::{DST_HIGH, SRC_HIGH};

    #[test]
    fn values_of_one_hash_are_told_apart() {
        let cube = |dst: u64, src: u64| {
            let cube = Cube::ANY.with(DST_HIGH, dst, u64::MAX);
            cube.and_then(|cube| cube.with(SRC_HIGH, src, u64::MAX)).expect("two fields")
        };
        // The second word makes up for what the first one changes.
        let makes_up = |dst: u64| mix(0, dst).rotate_left(5);
        let (one, other) = (cube(1, 7), cube(2, 7 ^ makes_up(1) ^ makes_up(2)));
        let mut shape = Shape::new(&one, true);
        assert_eq!(shape.hash(&one), shape.hash(&other));
        shape.add(&one, 5, 0);
        assert_eq!((shape.find(&one), shape.find(&other)), (Some(5), None));
        shape.add(&other, 6, 0);
        assert_eq!((shape.find(&one), shape.find(&other)), (Some(5), Some(6)));
    }
}
