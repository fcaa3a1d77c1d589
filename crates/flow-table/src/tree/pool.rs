//! The memory of the trees of one family: nodes, and blocks of rules for the leaves.
//!
//! A node is 16 bytes. An inner node names a word of the cut image, up to [`MAX_BITS`] of its bits, and the
//! first of its children, which are consecutive. A leaf has no bits and is its own child, so that a search
//! takes the same number of steps for every frame; it refers to a run of 1 to [`MAX_BLOCKS`] blocks.
//!
//! A block holds up to [`LANES`] rules, best precedence first: for each word of the view a column of masks
//! and one of values, then precedence and group of each rule. A lane without a rule has a value outside its
//! mask, which no image equals. Several leaves may refer to one run; the run with no rules is shared by all
//! empty leaves. The precedence of the first rule of each block is also kept apart, so that a search passes
//! over blocks that cannot win.
//!
//! Runs that are not in use any more are kept for others of the same size, and so are the children of nodes
//! of a tree that is built anew.

use std::collections::HashSet;

use super::super::shape::Ranked;
use super::build::MAX_DEPTH;
use super::update::MAX_COPIES;
use super::view::{WORDS, Words};

/// Rules of one block, which are compared together.
pub(super) const LANES: usize = 8;
/// The most blocks of one leaf.
pub(super) const MAX_BLOCKS: usize = 8;
/// The most bits that one node looks at.
pub(super) const MAX_BITS: usize = 12;

/// Bits of [`Node::more`] for the word of the image, and for a number of blocks.
const WORD_BITS: u32 = 8;
const COUNT_BITS: u32 = 3;
const MAX_COUNT: u32 = (1 << COUNT_BITS) - 1;
const _: () = assert!(WORDS <= 1 << WORD_BITS && MAX_BLOCKS - 1 <= MAX_COUNT as usize, "both fit");
/// The blocks that one pool can have, so that a node can name the first of a run.
const CAPACITY: usize = 1 << (u32::BITS - WORD_BITS - COUNT_BITS);
/// The most blocks by which a split exceeds what its tree may have. They are counted before a node gets its
/// children; when there are enough, the children of the nodes on the way from the root that are still to be
/// made become leaves.
const MAX_OVERSHOOT: usize = (MAX_DEPTH * MAX_BLOCKS) << MAX_BITS;
/// The runs that insertions of rules make of them. What a removal leaves of a run may take another, shorter
/// one, which comes on top until the trees are built anew; so [`Pool::take_run`] checks each run.
const _: () = assert!(
    2 * super::Family::max_blocks(crate::MAX_FLOWS) + MAX_OVERSHOOT + MAX_COPIES * MAX_BLOCKS <= CAPACITY
);

/// One node of a tree.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Node {
    /// The bits of the word that choose the child; none for a leaf.
    pub(super) mask: u64,
    /// The first child; a leaf itself.
    pub(super) base: u32,
    /// In the lowest byte the word, which is 0 for a leaf. Above that, for a leaf, the number of blocks of
    /// the run less one and the first of them.
    more: u32,
}

impl Node {
    pub(super) fn inner(word: usize, mask: u64, base: u32) -> Self {
        debug_assert!(word < WORDS && mask != 0, "a word of the image, and bits of it");
        Self { mask, base, more: word as u32 }
    }

    /// A leaf; its base depends on where it is put.
    pub(super) fn leaf(run: Run) -> Self {
        let run = run.first << COUNT_BITS | (run.blocks - 1);
        Self { mask: 0, base: 0, more: run << WORD_BITS }
    }

    pub(super) fn is_leaf(&self) -> bool {
        self.mask == 0
    }

    /// The word of an inner node. Of a leaf it is some word: its mask takes nothing out of it.
    #[inline(always)]
    pub(super) fn word(&self) -> usize {
        usize::from(self.more as u8)
    }

    #[inline(always)]
    pub(super) fn run(&self) -> Run {
        let run = self.more >> WORD_BITS;
        Run { first: run >> COUNT_BITS, blocks: (run & MAX_COUNT) + 1 }
    }
}

/// Consecutive blocks of one leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Run {
    pub(super) first: u32,
    pub(super) blocks: u32,
}

impl Run {
    /// The run without rules.
    pub(super) const EMPTY: Self = Self { first: 0, blocks: 1 };
}

/// One rule as the tree has it: values and masks cut down to the view.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) value: Words,
    pub(super) mask: Words,
    pub(super) ranked: Ranked,
}

impl Entry {
    /// Whether both are about the same frames, and so are the same entry.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.value == other.value && self.mask == other.mask
    }
}

/// Masks and values of one word of all rules of a block; or what comes of a match with each rule.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Column([[u64; LANES]; 2]);

impl Column {
    /// A word that no image equals.
    const VACANT: Self = Self([[0; LANES], [u64::MAX; LANES]]);
    /// The precedence that loses to all.
    const VACANT_RANKS: Self = Self([[u64::MAX; LANES]; 2]);

    /// The masks of one word.
    #[inline(always)]
    pub(super) fn masks(&self) -> &[u64; LANES] {
        &self.0[0]
    }

    /// The values of one word.
    #[inline(always)]
    pub(super) fn values(&self) -> &[u64; LANES] {
        &self.0[1]
    }

    fn set(&mut self, lane: usize, mask: u64, value: u64) {
        (self.0[0][lane], self.0[1][lane]) = (mask, value);
    }

    /// Precedence and group of a rule: side by side, so that they are in one cache line.
    #[inline(always)]
    pub(super) fn rank(&self, lane: usize) -> (u64, u64) {
        let half = &self.0[lane / (LANES / 2) % 2];
        let at = 2 * (lane % (LANES / 2));
        (half[at], half[at + 1])
    }

    fn set_rank(&mut self, lane: usize, ranked: Ranked) {
        let (precedence, group) = ranked.to_words();
        let half = &mut self.0[lane / (LANES / 2)];
        let at = 2 * (lane % (LANES / 2));
        (half[at], half[at + 1]) = (precedence, group);
    }
}

/// The memory of the trees of one family.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    pub(super) nodes: Vec<Node>,
    /// Blocks of `words + 1` columns.
    pub(super) columns: Vec<Column>,
    /// The precedence of the first rule of each block.
    pub(super) bests: Vec<u64>,
    /// How many leaves refer to a run, by its first block.
    users: Vec<u32>,
    /// Vacant runs of blocks, by their number less one.
    vacant_runs: [Vec<u32>; MAX_BLOCKS],
    /// Vacant nodes for the children of one, by the number of its bits.
    vacant_nodes: [Vec<u32>; MAX_BITS + 1],
    words: usize,
}

impl Pool {
    pub(super) fn new(words: usize) -> Self {
        let mut pool = Self {
            nodes: Vec::new(),
            columns: Vec::new(),
            bests: Vec::new(),
            users: Vec::new(),
            vacant_runs: Default::default(),
            vacant_nodes: Default::default(),
            words,
        };
        let empty = pool.take_run(1);
        debug_assert_eq!(empty, Run::EMPTY, "the run without rules is the first");
        // It is never given back.
        pool.users[0] = 1;
        pool
    }

    /// Columns of one block.
    #[inline(always)]
    pub(super) fn stride(&self) -> usize {
        self.words + 1
    }

    pub(super) fn words(&self) -> usize {
        self.words
    }

    /// Blocks that were ever in use.
    pub(super) fn blocks(&self) -> usize {
        self.users.len()
    }

    /// Bytes of nodes and blocks.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let blocks = size_of_val(&self.columns[..]) + size_of_val(&self.bests[..]);
        size_of_val(&self.nodes[..]) + blocks + size_of_val(&self.users[..])
    }

    /// Room for the children of a node that looks at so many bits.
    pub(super) fn take_nodes(&mut self, bits: usize) -> u32 {
        self.vacant_nodes[bits].pop().unwrap_or_else(|| {
            let first = self.nodes.len();
            self.nodes.resize(first + (1 << bits), Node::default());
            first as u32
        })
    }

    /// Gives the nodes of a tree back except its root, which becomes a leaf without rules that is not counted
    /// as a user of its run, and the runs. Returns the entries, best precedence first.
    pub(super) fn take_tree(&mut self, root: u32) -> Vec<Entry> {
        let (mut entries, mut of_run) = (Vec::new(), Vec::new());
        let (mut open, mut runs) = (vec![root], HashSet::new());
        while let Some(at) = open.pop() {
            let node = self.nodes[at as usize];
            if node.is_leaf() {
                if runs.insert(node.run()) {
                    self.read(node.run(), &mut of_run);
                    entries.append(&mut of_run);
                }
                self.leave(node.run());
            } else {
                let bits = node.mask.count_ones() as usize;
                open.extend(node.base..node.base + (1 << bits));
                self.vacant_nodes[bits].push(node.base);
            }
        }
        self.place(root, Node::leaf(Run::EMPTY));
        entries.sort_unstable_by_key(|entry| entry.ranked);
        entries.dedup_by_key(|entry| entry.ranked);
        entries
    }

    /// The child of a node that an image belongs to; `extract` takes the bits of a mask out of a word.
    ///
    /// # Safety
    /// `at` is the root of a tree of this pool, or what this function returned for one of its nodes.
    #[inline(always)]
    pub(super) unsafe fn child(&self, at: u32, words: &Words, extract: impl Fn(u64, u64) -> u64) -> u32 {
        debug_assert!((at as usize) < self.nodes.len(), "nodes stay, and have all their children");
        // SAFETY: roots and children were made by `take_nodes`, and nodes stay as long as the pool. An inner
        // node has as many children as its bits have values (`Builder::inner`), and a leaf is its own.
        let node = unsafe { self.nodes.get_unchecked(at as usize) };
        debug_assert!(node.word() < WORDS, "checked by `Node::inner`");
        // SAFETY: words of inner nodes are words of the view; that of leaves is 0.
        let word = unsafe { *words.get_unchecked(node.word()) };
        node.base + extract(word, node.mask) as u32
    }

    /// The run of a leaf, and the precedence of its first rule.
    ///
    /// # Safety
    /// As for [`child`](Self::child).
    #[inline(always)]
    pub(super) unsafe fn leaf(&self, at: u32) -> (Run, u64) {
        debug_assert!((at as usize) < self.nodes.len(), "nodes stay");
        // SAFETY: by the contract of this function, as in `child`.
        let run = unsafe { self.nodes.get_unchecked(at as usize) }.run();
        debug_assert!((run.first as usize) < self.bests.len(), "blocks stay");
        // SAFETY: the nodes of a pool name runs that `take_run` made, which has an element for each block;
        // blocks stay.
        let best = unsafe { *self.bests.get_unchecked(run.first as usize) };
        (run, best)
    }

    /// The columns of a block.
    ///
    /// # Safety
    /// The block is one of a [`Run`] of this pool, and `stride` is [`Pool::stride`].
    #[inline(always)]
    pub(super) unsafe fn block(&self, block: u32, stride: usize) -> &[Column] {
        debug_assert_eq!(stride, self.stride(), "known when the search was compiled");
        let first = block as usize * stride;
        debug_assert!(first + stride <= self.columns.len(), "blocks stay");
        // SAFETY: `take_run` made the columns of all blocks, and blocks stay.
        unsafe { self.columns.get_unchecked(first..first + stride) }
    }

    /// Puts a node into its place.
    pub(super) fn place(&mut self, at: u32, node: Node) {
        let base = if node.is_leaf() { at } else { node.base };
        self.nodes[at as usize] = Node { base, ..node };
    }

    /// A run for these entries, best precedence first, which has one user.
    pub(super) fn new_run(&mut self, entries: &[Entry]) -> Run {
        if entries.is_empty() {
            self.share(Run::EMPTY);
            return Run::EMPTY;
        }
        let run = self.take_run(entries.len().div_ceil(LANES));
        self.users[run.first as usize] = 1;
        self.write(run, entries);
        run
    }

    /// Another leaf refers to a run.
    pub(super) fn share(&mut self, run: Run) {
        self.users[run.first as usize] += 1;
    }

    pub(super) fn is_shared(&self, run: Run) -> bool {
        self.users[run.first as usize] > 1
    }

    /// A leaf refers to a run no longer.
    pub(super) fn leave(&mut self, run: Run) {
        let users = &mut self.users[run.first as usize];
        *users -= 1;
        if *users == 0 {
            self.vacant_runs[run.blocks as usize - 1].push(run.first);
        }
    }

    /// The entries of a run, best precedence first.
    pub(super) fn read(&self, run: Run, entries: &mut Vec<Entry>) {
        entries.clear();
        let (first, stride) = (run.first as usize, self.stride());
        for block in self.columns[first * stride..][..run.blocks as usize * stride].chunks_exact(stride) {
            let (ranks, columns) = (&block[self.words], &block[..self.words]);
            for lane in 0..LANES {
                let (precedence, group) = ranks.rank(lane);
                let Some(ranked) = Ranked::from_words(precedence, group) else { return };
                let mut entry = Entry { value: [0; WORDS], mask: [0; WORDS], ranked };
                for (word, column) in columns.iter().enumerate() {
                    (entry.mask[word], entry.value[word]) = (column.masks()[lane], column.values()[lane]);
                }
                entries.push(entry);
            }
        }
    }

    /// Puts entries, best precedence first, into a run that has room for them.
    pub(super) fn write(&mut self, run: Run, entries: &[Entry]) {
        let (words, stride) = (self.words, self.stride());
        let first = run.first as usize;
        let blocks = &mut self.columns[first * stride..][..run.blocks as usize * stride];
        for (at, (block, best)) in blocks.chunks_exact_mut(stride).zip(&mut self.bests[first..]).enumerate() {
            block[..words].fill(Column::VACANT);
            block[words] = Column::VACANT_RANKS;
            *best = entries.get(at * LANES).map_or(u64::MAX, |entry| entry.ranked.to_words().0);
            for (lane, entry) in entries.iter().skip(at * LANES).take(LANES).enumerate() {
                for (word, column) in block[..words].iter_mut().enumerate() {
                    column.set(lane, entry.mask[word], entry.value[word]);
                }
                block[words].set_rank(lane, entry.ranked);
            }
        }
    }

    fn take_run(&mut self, blocks: usize) -> Run {
        let first = self.vacant_runs[blocks - 1].pop().unwrap_or_else(|| {
            let first = self.users.len();
            assert!(first + blocks <= CAPACITY, "no node can name a block beyond {CAPACITY}");
            self.users.resize(first + blocks, 0);
            self.bests.resize(first + blocks, u64::MAX);
            self.columns.resize((first + blocks) * self.stride(), Column::VACANT);
            for block in first..first + blocks {
                self.columns[block * (self.words + 1) + self.words] = Column::VACANT_RANKS;
            }
            first as u32
        });
        Run { first, blocks: blocks as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::FlowKind;
    use super::super::super::shape::Precedence;
    use super::*;

    fn entry(number: u32) -> Entry {
        let word = |of: u32| std::array::from_fn(|at| if at < 3 { u64::from(of + at as u32) } else { 0 });
        let precedence = Precedence::new(FlowKind::Normal, 0, number.into());
        Entry { value: word(number), mask: word(100), ranked: Ranked { precedence, group: number } }
    }

    #[test]
    fn runs_hold_what_was_written_and_are_used_again() {
        let mut pool = Pool::new(3);
        let mut read = Vec::new();
        for count in [0, 1, 7, 8, 9, 32] {
            let entries: Vec<Entry> = (0..count).map(entry).collect();
            let run = pool.new_run(&entries);
            pool.read(run, &mut read);
            assert_eq!(read.len(), entries.len());
            assert!(read.iter().zip(&entries).all(|(a, b)| a.is_like(b) && a.ranked == b.ranked));
            assert_eq!(run == Run::EMPTY, count == 0);
            let blocks = pool.blocks();
            pool.leave(run);
            let again = pool.new_run(&entries);
            assert_eq!((again, pool.blocks()), (run, blocks));
        }
        assert!(pool.is_shared(Run::EMPTY));
    }
}
