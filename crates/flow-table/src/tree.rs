//! The trapping rules about the outer packet: decision trees, and a tuple space for what they have no room
//! for.
//!
//! [`super::port::PortTable`] owns one [`Trees`] per port and direction. Rules are in three families, those
//! for IPv4, for IPv6 and for any frame, which a frame's layers choose between. A family looks only at the
//! bytes of the image that its rules mask ([`view`]) and has up to four trees, by whether a rule masks much
//! of the source and of the destination address: rules that leave an address open would otherwise be copied
//! into most leaves. Each tree leads a frame by a few bits at a time to a leaf of at most eight rules in most
//! cases, which are compared together ([`search`], [`build`]).
//!
//! # Changes
//! A rule is added to and removed from every leaf that it belongs to; a leaf that overflows is split where it
//! is ([`update`]). A tree that grew by a quarter this way is built anew from the rules in its leaves: each
//! by itself, because policies install rules about both addresses first, and those that leave them open last,
//! when a family as a whole grows little. A family that has four times as many rules as when it was built, or
//! too many in its tuple space, is built anew from the [`Directory`]. Both take some 2 us for each rule. The
//! caller of the last change waits for it twice, because there are two copies ([`crate::LeftRight`]), and so
//! do other changes meanwhile; no lookup does.
//!
//! # What is not in the trees
//! Masks that have nothing in common make leaves that nothing splits. A leaf has at most 64 rules, a rule
//! added later at most [`update::MAX_COPIES`] leaves, and a family a limited number of blocks; what exceeds
//! this is in the tuple space of the family, and so are rules that look at a byte which the family does not
//! keep yet, until it is built anew.

mod build;
mod machine;
mod pool;
mod search;
#[cfg(test)]
mod tests;
mod update;
mod view;

use arrayvec::ArrayVec;
use packet::cube::{DST_IPV4, DST_MAC, HAS_IPV4, HAS_IPV6, SRC_IPV4, SRC_MAC};

use super::directory::Directory;
use super::key::MatchKey;
use super::shape::Ranked;
use super::space::Space;
use build::Builder;
use machine::Processor;
use pool::{Entry, Pool};
use search::TREES;
pub(super) use search::{BURST, Winners};
use view::{Bytes, View};

/// Rules for IPv4, for IPv6, and for any frame.
const FAMILIES: usize = 3;
const IPV4: usize = 0;
const IPV6: usize = 1;
const ANY: usize = 2;

/// Address bits from which on a rule is about an address.
const ADDRESS_BITS: u32 = 12;

/// Changes that do not make it worth while to build anew.
const FEW: usize = 64;

/// Rules of a class that are not worth a tree.
const SMALL: usize = 32;

/// The word of the layers.
const LAYERS: usize = HAS_IPV4.word();
const HAS_V4: u64 = 1 << HAS_IPV4.shift();
const HAS_V6: u64 = 1 << HAS_IPV6.shift();

/// The trapping rules about the outer packet of one port and direction.
#[derive(Debug, Default)]
pub(super) struct Trees {
    processor: Processor,
    directory: Directory,
    families: [Family; FAMILIES],
}

/// Rules by how much of the two addresses they mask.
type Class = u8;

/// One tree.
#[derive(Clone, Copy, Debug)]
struct Tree {
    class: Class,
    /// The root node of the tree.
    root: u32,
    /// The steps from there to the farthest leaf.
    depth: usize,
    /// Rules.
    len: usize,
    /// Rules when it was built.
    built: usize,
    /// The cost that changes have added since it was built.
    debt: usize,
}

impl Tree {
    /// Whether it would be faster if it were built anew. Rules that replace others do less harm than those
    /// that are added, and it is they that come fast for a long time.
    fn wants_rebuild(&self) -> bool {
        let grown = self.len > FEW + self.built + self.built / 4;
        grown || self.debt > FEW + self.built / 2
    }
}

/// The rules of one family.
#[derive(Debug)]
struct Family {
    view: View,
    pool: Pool,
    /// The trees; those of rules about both addresses come first.
    trees: ArrayVec<Tree, TREES>,
    /// Which class has the tree of each class.
    tree_of_class: [Class; TREES],
    /// Rules of each class that has no tree of its own.
    guests: [usize; TREES],
    /// The greatest depth.
    depth: usize,
    overflow: Space<MatchKey>,
    /// Rules, those in the tuple space included.
    len: usize,
    /// Rules when it was built.
    built: usize,
    /// The cost that has been added since the build, apart from changes of its trees.
    debt: usize,
}

/// A match and its first group.
type Rule = (MatchKey, MatchKey, Ranked);

/// The family of rules with this mask: every layer that a mask has is asked for.
fn family_of(mask: &MatchKey) -> usize {
    let layers = mask.0[LAYERS];
    if layers & HAS_V4 != 0 {
        IPV4
    } else if layers & HAS_V6 != 0 {
        IPV6
    } else {
        ANY
    }
}

/// The tree of rules with this mask.
fn class_of(family: usize, mask: &MatchKey) -> Class {
    let bits = |word: usize, shift: u32| (mask.0[word] >> shift).count_ones();
    let (src, dst, least) = match family {
        IPV4 => {
            (bits(SRC_IPV4.word(), SRC_IPV4.shift()), bits(DST_IPV4.word(), DST_IPV4.shift()), ADDRESS_BITS)
        }
        // Most addresses share the first bits.
        IPV6 => (bits(SRC_IPV4.word(), 0), bits(DST_IPV4.word(), 0), 2 * ADDRESS_BITS),
        _ => (bits(SRC_MAC.word(), SRC_MAC.shift()), bits(DST_MAC.word(), DST_MAC.shift()), ADDRESS_BITS),
    };
    u8::from(src >= least) << 1 | u8::from(dst >= least)
}

impl Trees {
    /// How many different masks there are.
    pub(super) fn masks(&self) -> usize {
        self.directory.masks()
    }

    pub(super) fn has_mask(&self, mask: &MatchKey) -> bool {
        self.directory.has_mask(mask)
    }

    pub(super) fn relevant(&self) -> &MatchKey {
        self.directory.relevant()
    }

    /// The group with this match at this kind and priority.
    pub(super) fn group_at(&self, value: &MatchKey, mask: &MatchKey, level: u64) -> Option<Ranked> {
        self.directory.group_at(value, mask, level)
    }

    /// The group that decides over an image.
    #[inline]
    pub(super) fn search(&self, image: &MatchKey) -> Option<Ranked> {
        self.search_on(self.processor, image)
    }

    #[inline]
    fn search_on(&self, processor: Processor, image: &MatchKey) -> Option<Ranked> {
        let mut winner = None;
        let layers = image.0[LAYERS];
        for (family, present) in self.families.iter().zip([layers & HAS_V4 != 0, layers & HAS_V6 != 0, true])
        {
            if present && !family.trees.is_empty() {
                winner = family.search_one(processor, image, winner);
            }
        }
        self.search_overflow(image, winner)
    }

    /// The groups that decide over up to [`BURST`] images.
    #[inline]
    pub(super) fn search_burst(&self, images: &[MatchKey], winners: &mut Winners) {
        self.search_burst_on(self.processor, images, winners);
    }

    #[inline]
    fn search_burst_on(&self, processor: Processor, images: &[MatchKey], winners: &mut Winners) {
        *winners = Winners::NONE;
        let images = &images[..images.len().min(BURST)];
        for (family, layer) in self.families.iter().zip([HAS_V4, HAS_V6, 0]) {
            if family.trees.is_empty() {
                continue;
            }
            if images.iter().fold(layer, |all, image| all & image.0[LAYERS]) == layer {
                family.search_burst(processor, images, winners);
            } else {
                search_some(processor, family, layer, images, winners);
            }
        }
        if self.families.iter().any(|family| family.overflow.len() > 0) {
            for (at, image) in images.iter().enumerate() {
                winners.set(at, self.search_overflow(image, winners.ranked(at)));
            }
        }
    }

    /// Searches the rules that are in no tree.
    #[inline]
    fn search_overflow(&self, image: &MatchKey, mut winner: Option<Ranked>) -> Option<Ranked> {
        for family in &self.families {
            if family.overflow.len() > 0 {
                winner = family.overflow.search(image, winner).0;
            }
        }
        winner
    }

    pub(super) fn add(&mut self, value: &MatchKey, mask: &MatchKey, ranked: Ranked) {
        let before = self.directory.best(value, mask);
        self.directory.add(value, mask, ranked);
        self.follow(value, mask, before);
    }

    pub(super) fn remove(&mut self, value: &MatchKey, mask: &MatchKey, ranked: Ranked) {
        let before = self.directory.best(value, mask);
        self.directory.remove(value, mask, ranked);
        self.follow(value, mask, before);
    }

    /// Puts the first group of a match, which was `before`, where frames are looked up.
    fn follow(&mut self, value: &MatchKey, mask: &MatchKey, before: Option<Ranked>) {
        let after = self.directory.best(value, mask);
        if before == after {
            return;
        }
        let number = family_of(mask);
        let family = &mut self.families[number];
        let class = class_of(number, mask);
        if let Some(before) = before {
            family.remove(class, &(*value, *mask, before));
        }
        if let Some(after) = after {
            family.insert(class, &(*value, *mask, after));
        }
        if family.wants_rebuild() {
            self.rebuild(number);
        } else {
            family.rebuild_tree(class);
        }
    }

    /// Builds the trees of a family anew.
    fn rebuild(&mut self, family: usize) {
        let of_family = self.directory.iter().filter(|(_, mask, _)| family_of(mask) == family);
        let rules = of_family.map(|(value, mask, ranked)| (*value, *mask, ranked)).collect();
        self.families[family] = Family::build(family, rules);
    }
}

/// In one family, for those of up to [`BURST`] images that have its layer.
#[inline(never)]
fn search_some(
    processor: Processor,
    family: &Family,
    layer: u64,
    images: &[MatchKey],
    winners: &mut Winners,
) {
    let (mut some, mut chosen, mut count) = ([MatchKey::default(); BURST], [0; BURST], 0);
    for (at, image) in images.iter().enumerate() {
        (some[count], chosen[count]) = (*image, at);
        count += usize::from(image.0[LAYERS] & layer == layer);
    }
    let chosen = &chosen[..count];
    let mut found = Winners::NONE;
    for (place, at) in chosen.iter().enumerate() {
        found.set(place, winners.ranked(*at));
    }
    family.search_burst(processor, &some[..count], &mut found);
    for (place, at) in chosen.iter().enumerate() {
        winners.set(*at, found.ranked(place));
    }
}

impl Default for Family {
    fn default() -> Self {
        Self::with_view(View::default())
    }
}

impl Family {
    /// Blocks of a family with this many rules.
    const fn max_blocks(rules: usize) -> usize {
        2 * rules + 1024
    }

    fn with_view(view: View) -> Self {
        Self {
            pool: Pool::new(view.words()),
            view,
            trees: ArrayVec::new(),
            tree_of_class: [0; TREES],
            guests: [0; TREES],
            depth: 0,
            overflow: Space::default(),
            len: 0,
            built: 0,
            debt: 0,
        }
    }

    fn build(family: usize, mut rules: Vec<Rule>) -> Self {
        rules.sort_unstable_by_key(|(_, _, ranked)| *ranked);
        let bytes = rules.iter().fold(Bytes::default(), |all, (_, mask, _)| all.union(Bytes::of(mask)));
        let mut built = Self::with_view(View::new(bytes));
        built.tree_of_class = [0, 1, 2, 3];
        let entries: Vec<Entry> = rules.iter().map(|rule| built.entry(rule)).collect();
        let mut classes: [Vec<u32>; TREES] = Default::default();
        for (number, (_, mask, _)) in (0u32..).zip(&rules) {
            classes[usize::from(class_of(family, mask))].push(number);
        }
        built.merge_small(&mut classes);
        (built.len, built.built) = (rules.len(), rules.len());
        let max_blocks = Self::max_blocks(rules.len());
        for (class, list) in (0u8..).zip(classes) {
            if list.is_empty() {
                continue;
            }
            let len = list.len();
            let root = built.pool.take_nodes(0);
            let mut builder = Builder::new(&entries, &mut built.pool, max_blocks);
            builder.build(root, list, 0);
            let (mut evicted, depth) = (builder.evicted, builder.depth);
            built.trees.insert(0, Tree { class, root, depth, len, built: len, debt: 0 });
            built.depth = built.depth.max(depth);
            evicted.sort_unstable();
            evicted.dedup();
            built.trees[0].len -= evicted.len();
            for number in evicted {
                let (value, mask, ranked) = &rules[number as usize];
                built.cut_out(class, &entries[number as usize]);
                built.overflow.add(value, mask, *ranked);
            }
        }
        built
    }

    /// Few rules are not worth a tree: they get into that of the rules which leave both addresses open.
    fn merge_small(&mut self, classes: &mut [Vec<u32>; TREES]) {
        for class in 1..TREES {
            if classes[class].len() < SMALL {
                let moved = std::mem::take(&mut classes[class]);
                self.guests[class] = moved.len();
                classes[0].extend(moved);
                self.tree_of_class[class] = 0;
            }
        }
        classes[0].sort_unstable();
    }

    fn entry(&self, (value, mask, ranked): &Rule) -> Entry {
        Entry { value: self.view.cut(value), mask: self.view.cut(mask), ranked: *ranked }
    }

    /// Whether it would be faster if all of it were built anew.
    fn wants_rebuild(&self) -> bool {
        let overflows = self.debt > FEW + self.built / 2;
        let grown = self.len > FEW + 4 * self.built;
        let shrunk = self.len + FEW < self.built / 4;
        let is_crowded = self.guests.iter().any(|guests| *guests > SMALL);
        // A tree that is built by itself takes more blocks of the pool, which all of them share.
        let is_full = self.pool.blocks() > Self::max_blocks(self.len);
        overflows || grown || shrunk || is_crowded || is_full && self.trees.iter().any(Tree::wants_rebuild)
    }
}
