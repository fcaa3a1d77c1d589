//! An index of cubes by mask, for the passes that compare many cubes. Cubes of one mask are stored together,
//! so that a query costs one lookup per mask instead of one comparison per cube (tuple space search:
//! Srinivasan, Suri, Varghese, "Packet Classification using Tuple Space Search", SIGCOMM 1999). It finds the
//! cubes that overlap a cube, and whether one cube contains it. Hashes only select entries; every entry that
//! is returned has been compared.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::cube::{Cube, Image, WORDS};

/// The position of a mask in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MaskId(u32);

#[derive(Default)]
pub(super) struct MaskIndex {
    shapes: Vec<Shape>,
    /// The ids by mask, and whether its cubes trap packets.
    ids: ByMask<(Image, bool), MaskId>,
    /// Side by side, because every query reads all of them.
    heads: Vec<Head>,
    /// The words of each mask that differ most.
    fronts: Vec<[u64; FRONT]>,
    containing: Containing,
}

/// The part of a mask that suffices to rule most masks out.
#[derive(Clone, Copy)]
struct Head {
    front: Front,
    /// The greatest rank of its entries.
    deepest: u32,
}

impl MaskId {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

impl MaskIndex {
    pub(super) fn len(&self) -> usize {
        self.shapes.len()
    }

    /// Adds an entry, with a rank for [`Self::overlapping_from`]. Returns its mask, and the greatest rank
    /// that the mask had before; `None`: the mask is new.
    pub(super) fn add(&mut self, cube: &Cube, traps: bool, entry: usize, rank: u32) -> (MaskId, Option<u32>) {
        let known = self.shapes.len();
        let Self { shapes, ids, heads, fronts, .. } = self;
        let id = *ids.entry((cube.mask, traps)).or_insert_with(|| {
            shapes.push(Shape::new(cube, traps));
            heads.push(Head { front: Front::of(cube), deepest: 0 });
            fronts.push(Front::mask(&cube.mask));
            // Masks are no more than cubes, which are far fewer than 2^32.
            MaskId((shapes.len() - 1) as u32)
        });
        let (shape, head) = (&mut shapes[id.index()], &mut heads[id.index()]);
        let deepest_before = (id.index() < known).then_some(head.deepest);
        shape.add(cube, entry, rank);
        *head = Head { front: *shape.front(), deepest: shape.deepest() };
        (id, deepest_before)
    }

    /// Adds a trapping entry, or lowers the rank of the entry with the same cube if this one is less.
    pub(super) fn add_lowest(&mut self, cube: &Cube, entry: usize, rank: u32) {
        let mask = self.ids.get(&(cube.mask, true));
        let known = mask.and_then(|mask| self.shapes[mask.index()].find_mut(cube));
        match known {
            Some(known) => known.rank = known.rank.min(rank),
            None => _ = self.add(cube, true, entry, rank),
        }
    }

    /// Whether the cubes of a mask trap packets.
    pub(super) fn traps(&self, mask: MaskId) -> bool {
        self.shapes[mask.index()].traps
    }

    /// The greatest rank of a mask's entries.
    pub(super) fn deepest(&self, mask: MaskId) -> u32 {
        self.heads[mask.index()].deepest
    }

    /// Whether all entries of a mask differ from a cube with this front.
    pub(super) fn differs(&self, mask: MaskId, front: &Front) -> bool {
        self.heads[mask.index()].front.differs(front)
    }

    /// Whether the cube agrees with what all entries of a mask have in common.
    pub(super) fn may_overlap(&self, mask: MaskId, cube: &Cube) -> bool {
        self.shapes[mask.index()].may_overlap(cube)
    }

    /// Adds the entries of one mask that overlap the cube and have at least this rank, with their ranks.
    pub(super) fn overlapping_from(
        &mut self,
        mask: MaskId,
        cube: &Cube,
        rank: u32,
        found: &mut Vec<(usize, u32)>,
    ) {
        self.shapes[mask.index()].overlapping_entries(cube, rank, found);
    }

    /// Adds the entries of all masks that overlap the cube, in an order that depends on nothing but what was
    /// added. Returns how many masks and entries it has compared.
    pub(super) fn overlapping(&mut self, cube: &Cube, found: &mut Vec<usize>) -> usize {
        let (front, mut met) = (Front::of(cube), Vec::new());
        let mut compared = self.shapes.len();
        for (head, shape) in self.heads.iter().zip(&mut self.shapes) {
            if !head.front.differs(&front) && shape.may_overlap(cube) {
                compared += shape.overlapping_entries(cube, 0, &mut met);
                found.extend(met.drain(..).map(|(entry, _)| entry));
            }
        }
        compared
    }

    /// Whether one of the entries that overlap the cube is wanted.
    pub(super) fn any_overlapping(&mut self, cube: &Cube, wanted: impl Fn(usize) -> bool) -> bool {
        let (front, mut met) = (Front::of(cube), Vec::new());
        self.heads.iter().zip(&mut self.shapes).any(|(head, shape)| {
            if head.front.differs(&front) || !shape.may_overlap(cube) {
                return false;
            }
            shape.overlapping_entries(cube, 0, &mut met);
            met.drain(..).any(|(entry, _)| wanted(entry))
        })
    }

    /// The rank of the trapping entry with this cube.
    pub(super) fn lowest(&self, cube: &Cube) -> Option<u32> {
        let mask = self.ids.get(&(cube.mask, true))?;
        self.shapes[mask.index()].find(cube).map(|entry| entry.rank)
    }

    /// Whether the entries of a mask trap packets and every bit of it is one of this mask: such an entry
    /// contains a cube of this mask, or shares no packet with it.
    pub(super) fn contains_or_differs(&self, mask: MaskId, other: &Image) -> bool {
        let shape = &self.shapes[mask.index()];
        shape.traps && shape.is_subset_of(other)
    }

    /// Whether one trapping entry before `limit` contains the cube; `cost` is lowered by the masks compared
    /// and looked up.
    pub(super) fn is_contained(&mut self, cube: &Cube, limit: usize, cost: &mut usize) -> bool {
        let masks = self.containing.of(&cube.mask, &self.shapes, &self.fronts, cost);
        *cost = cost.saturating_sub(masks.len());
        let found = masks.iter().filter_map(|mask| self.shapes[mask.index()].find(cube));
        found.map(|entry| entry.candidate as usize).any(|entry| entry < limit)
    }

    /// Returns whether a cube is contained whose mask is hardly queried again: the masks that are subsets of
    /// it are not kept.
    pub(super) fn is_contained_once(&self, cube: &Cube, limit: usize, cost: &mut usize) -> bool {
        self.any_containing(cube, cost, |entry| (entry.candidate as usize) < limit)
    }

    /// Returns whether the cube is contained in an entry of a rank before this one.
    pub(super) fn is_contained_above(&self, cube: &Cube, rank: u32, cost: &mut usize) -> bool {
        self.any_containing(cube, cost, |entry| entry.rank < rank)
    }

    fn any_containing(&self, cube: &Cube, cost: &mut usize, wanted: impl Fn(Entry) -> bool) -> bool {
        *cost = cost.saturating_sub(self.shapes.len());
        let (asked, front) = (Front::mask(&cube.mask), Front::of(cube));
        let subsets = self.fronts.iter().zip(&self.heads).enumerate();
        let subsets =
            subsets.filter(|(_, (own, head))| is_subset(own, &asked) && !head.front.differs(&front));
        let shapes = subsets.map(|(index, _)| &self.shapes[index]);
        let shapes = shapes.filter(|shape| shape.traps && shape.is_subset_of(&cube.mask));
        shapes.filter_map(|shape| shape.find_value(cube)).any(wanted)
    }
}

/// Whether every bit of the first part of a mask is one of the second's.
#[inline]
fn is_subset(one: &[u64; FRONT], other: &[u64; FRONT]) -> bool {
    (0..FRONT).fold(0, |all, place| all | one[place] & !other[place]) == 0
}

/// For each queried mask, the masks of the index that are subsets of it. Masks repeat, so each pair is
/// compared once.
#[derive(Default)]
struct Containing {
    of: ByMask<Image, Known>,
}

/// The entries and joints of one mask.
#[derive(Default)]
struct Known {
    masks: Vec<MaskId>,
    /// How many masks of the index have been compared.
    compared: usize,
}

impl Containing {
    /// `cost` is lowered by the masks that are compared.
    fn of(&mut self, mask: &Image, shapes: &[Shape], fronts: &[[u64; FRONT]], cost: &mut usize) -> &[MaskId] {
        let known = self.of.entry(*mask).or_default();
        let asked = Front::mask(mask);
        *cost = cost.saturating_sub(shapes.len() - known.compared);
        let new = fronts.iter().enumerate().skip(known.compared);
        for (index, _) in new.filter(|(_, front)| is_subset(front, &asked)) {
            let shape = &shapes[index];
            if shape.traps && shape.is_subset_of(mask) {
                known.masks.push(MaskId(index as u32));
            }
        }
        known.compared = shapes.len();
        &known.masks
    }
}

/// The fewest entries for which an index is made.
const SCANNED: usize = 32;
/// An index is made after this many scans with the same part of the mask.
const SCANS_PER_INDEX: usize = 4;
/// The most entries of all indices of one shape, in multiples of its entries.
const MAX_INDICES: usize = 64;

/// Words that differ most between cubes come first.
const WORD_ORDER: [usize; WORDS] = [1, 2, 0, 5, 6, 3, 4, 7, 16, 17, 18, 19, 9, 10, 8, 13, 14, 11, 12, 15];

/// The first words of a cube, or of the bits that all cubes of a shape have in common, in [`WORD_ORDER`]. The
/// fronts of all shapes are in one array, so that most shapes are excluded by reading it in sequence.
#[derive(Clone, Copy)]
pub(super) struct Front {
    bits: [u64; FRONT],
    values: [u64; FRONT],
}

const FRONT: usize = 4;

impl Front {
    pub(super) fn of(cube: &Cube) -> Self {
        let word = |place: usize| WORD_ORDER[place];
        Self {
            bits: std::array::from_fn(|place| cube.mask[word(place)]),
            values: std::array::from_fn(|place| cube.value[word(place)]),
        }
    }

    /// The head's words of a mask.
    fn mask(mask: &Image) -> [u64; FRONT] {
        std::array::from_fn(|place| mask[WORD_ORDER[place]])
    }

    /// Whether both have a condition on a bit, with different values.
    #[inline]
    pub(super) fn differs(&self, other: &Self) -> bool {
        let differ =
            |place: usize| (self.values[place] ^ other.values[place]) & self.bits[place] & other.bits[place];
        (0..FRONT).fold(0, |all, place| all | differ(place)) != 0
    }

    /// Keeps the bits that agree with a cube, whose mask contains all of them.
    fn agree_on(&mut self, cube: &Cube) {
        for (place, word) in WORD_ORDER.into_iter().take(FRONT).enumerate() {
            self.bits[place] &= !(self.values[place] ^ cube.value[word]);
            self.values[place] &= self.bits[place];
        }
    }
}

/// The kept candidates of one mask.
struct Shape {
    traps: bool,
    front: Front,
    /// The words that the mask touches, and the mask there.
    words: Vec<(usize, u64)>,
    /// For each of these words the values of all entries there.
    columns: Vec<Vec<u64>>,
    entries: Vec<Entry>,
    deepest: u32,
    /// For each of these words the bits on which all entries agree, and their values: they exclude most
    /// shapes.
    common: Vec<(u64, u64)>,
    /// The last entry by the hash of its value.
    exact: Map<u32>,
    /// Entries that another value with the same hash has replaced there.
    collided: Vec<u32>,
    /// The joints, by the part of the mask that a cube shares with it.
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
    /// Entries compared so far without an index.
    scanned: usize,
    /// The last entry of each value.
    index: Option<Map<u32>>,
    /// For each indexed entry the one before it of the same value.
    before: Vec<Option<u32>>,
}

type Map<V> = HashMap<u64, V, BuildHasherDefault<Hashed>>;

/// A map by masks. The hash resists no attacker; who writes a policy could slow down only its own
/// compilation.
pub(super) type ByMask<K, V> = HashMap<K, V, BuildHasherDefault<Hashed>>;

/// Mixes words; a single word is used as the hash.
#[derive(Default)]
pub(super) struct Hashed(u64);

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
    fn new(cube: &Cube, traps: bool) -> Self {
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

    fn add(&mut self, cube: &Cube, candidate: usize, rank: u32) {
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
    fn deepest(&self) -> u32 {
        self.deepest
    }

    /// Whether every bit of the mask is one of the other's.
    fn is_subset_of(&self, mask: &Image) -> bool {
        self.words.iter().all(|(word, bits)| bits & !mask[*word] == 0)
    }

    /// Whether the cube agrees with what all entries have in common.
    fn may_overlap(&self, cube: &Cube) -> bool {
        let mut common = self.words.iter().zip(&self.common);
        common.all(|((word, _), (bits, value))| (cube.value[*word] ^ value) & cube.mask[*word] & bits == 0)
    }

    /// The words of it that differ most between shapes.
    fn front(&self) -> &Front {
        &self.front
    }

    /// The entry that has the cube's value under the mask. There is one at most: another would be covered.
    #[inline]
    fn find(&self, cube: &Cube) -> Option<Entry> {
        if self.front.differs(&Front::of(cube)) { None } else { self.find_value(cube) }
    }

    fn find_value(&self, cube: &Cube) -> Option<Entry> {
        self.place_of(cube).map(|place| self.entries[place])
    }

    fn find_mut(&mut self, cube: &Cube) -> Option<&mut Entry> {
        self.place_of(cube).map(|place| &mut self.entries[place])
    }

    fn place_of(&self, cube: &Cube) -> Option<usize> {
        let first = self.exact.get(&self.hash(cube))?;
        let mut entries = [first].into_iter().chain(&self.collided);
        entries.find(|entry| self.has_value(**entry, cube)).map(|entry| *entry as usize)
    }

    fn has_value(&self, entry: u32, cube: &Cube) -> bool {
        let mut words = self.words.iter().zip(&self.columns);
        words.all(|((word, mask), column)| column[entry as usize] == cube.value[*word] & mask)
    }

    fn hash(&self, cube: &Cube) -> u64 {
        hash_of(self.words.iter().map(|(word, mask)| cube.value[*word] & mask))
    }

    /// Adds the candidates and ranks of the entries that overlap the cube and have at least this rank.
    /// Returns how many entries were compared.
    fn overlapping_entries(&mut self, cube: &Cube, rank: u32, met: &mut Vec<(usize, u32)>) -> usize {
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
            if own >= rank && overlaps(&self.words, &self.columns, entry, cube) {
                met.push((candidate as usize, own));
            }
            found = joint.before[entry];
        }
        looked_at
    }

    fn scan(&self, cube: &Cube, rank: u32, met: &mut Vec<(usize, u32)>) -> usize {
        let deep = self.entries.iter().enumerate().filter(|(_, entry)| entry.rank >= rank);
        let asked = self.words.iter().map(|(word, mask)| (*word, mask & cube.mask[*word]));
        // Most entries differ in the word with the most common mask bits.
        let telling = asked.zip(&self.columns).max_by_key(|((_, mask), _)| mask.count_ones());
        let Some(((word, mask), column)) = telling.filter(|((_, mask), _)| *mask != 0) else {
            met.extend(deep.map(|(_, entry)| (entry.candidate as usize, entry.rank)));
            return self.entries.len();
        };
        let value = cube.value[word] & mask;
        for (entry, _) in column.iter().enumerate().filter(|(_, own)| *own & mask == value) {
            let Entry { candidate, rank: own } = self.entries[entry];
            if own >= rank && overlaps(&self.words, &self.columns, entry, cube) {
                met.push((candidate as usize, own));
            }
        }
        self.entries.len()
    }
}

/// Whether an entry's values agree with the cube under both masks.
fn overlaps(words: &[(usize, u64)], columns: &[Vec<u64>], entry: usize, cube: &Cube) -> bool {
    let mut pairs = words.iter().zip(columns);
    pairs.all(|((word, mask), column)| (column[entry] ^ cube.value[*word]) & mask & cube.mask[*word] == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cube::{DST_HIGH, SRC_HIGH};

    #[test]
    fn values_with_equal_hashes_are_distinguished() {
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
        let found = |shape: &Shape, cube: &Cube| shape.find(cube).map(|entry| entry.candidate);
        assert_eq!((found(&shape, &one), found(&shape, &other)), (Some(5), None));
        shape.add(&other, 6, 0);
        assert_eq!((found(&shape, &one), found(&shape, &other)), (Some(5), Some(6)));
    }
}
