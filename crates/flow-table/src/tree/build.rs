//! Which bits each node looks at, and which rules each leaf gets.
//!
//! A node takes bits of one word, one after the other, always the bit that makes the children cheapest; a
//! rule that does not mask a bit goes to both sides. What a child costs grows with the square of its rules,
//! but up to [`LANES`] rules are one block and cost the same each: so splitting a part that fits a block
//! never pays, and copies of rules do cost.
//!
//! Why a search finds every rule that matches: a rule is put into each child whose bits agree with its value
//! wherever it masks them, and a frame that matches has exactly such bits, so at each node it turns to a
//! child that has the rule.

use std::collections::HashMap;

use super::pool::{Entry, LANES, MAX_BITS, MAX_BLOCKS, Node, Pool, Run};

/// Rules of a node that the choice of its bits is made by, at most.
const SAMPLE: usize = 512;
const _: () = assert!(SAMPLE <= u16::MAX as usize, "`costs_of_bits` counts them");
/// A bit has to make the children cheaper by one part in so many.
const LEAST_GAIN: u64 = 64;
/// Steps from the root from which on leaves of up to [`MAX_DEEP_LEAF`] rules are not split: every frame takes
/// as many steps as the farthest leaf has.
const DEPTH: usize = 4;
const MAX_DEEP_LEAF: usize = 4 * LANES;
/// The most steps from the root of a tree to a leaf.
pub(super) const MAX_DEPTH: usize = 8;
/// The most bits of a node whose children get most of its rules, and the most copies of each.
const MAX_COPYING_BITS: usize = 6;
const MAX_GROWTH: usize = 16;
/// The most entries of one leaf.
pub(super) const MAX_LEAF: usize = LANES * MAX_BLOCKS;

/// Builds trees from entries that are sorted, best precedence first.
pub(super) struct Builder<'b> {
    entries: &'b [Entry],
    pool: &'b mut Pool,
    /// The blocks that the pool may have; at most this many, nodes are not split any more.
    max_blocks: usize,
    /// Leaves with the same rules share a run.
    runs: HashMap<Vec<u32>, Run>,
    /// Entries that some leaf has no room for.
    pub(super) evicted: Vec<u32>,
    /// The most steps to a leaf.
    pub(super) depth: usize,
}

impl<'b> Builder<'b> {
    pub(super) fn new(entries: &'b [Entry], pool: &'b mut Pool, max_blocks: usize) -> Self {
        Self { entries, pool, max_blocks, runs: HashMap::new(), evicted: Vec::new(), depth: 0 }
    }

    /// Puts the tree of some entries, by number, at a node that is `depth` steps from the root.
    pub(super) fn build(&mut self, at: u32, list: Vec<u32>, depth: usize) {
        self.depth = self.depth.max(depth);
        match if self.may_split(list.len(), depth) { self.choose(&list) } else { None } {
            None => self.leaf(at, list),
            Some((word, mask)) => self.inner(at, &list, word, mask, depth),
        }
    }

    /// Makes an inner node of a leaf with these entries, which fit into one; false, and nothing has changed,
    /// if no bits pay. At most [`MAX_LEAF`] and one more: bits are chosen so that no child has all of the
    /// entries, so each child has room for its own.
    pub(super) fn split(&mut self, at: u32, list: &[u32], depth: usize) -> bool {
        match if self.may_split(list.len(), depth) { self.choose(list) } else { None } {
            None => false,
            Some((word, mask)) => {
                self.inner(at, list, word, mask, depth);
                debug_assert!(self.evicted.is_empty(), "every leaf has an entry or none has");
                true
            }
        }
    }

    fn may_split(&self, rules: usize, depth: usize) -> bool {
        let worth = if depth < DEPTH { LANES } else { MAX_DEEP_LEAF };
        rules > worth && depth < MAX_DEPTH && self.pool.blocks() < self.max_blocks
    }

    fn inner(&mut self, at: u32, list: &[u32], word: usize, mask: u64, depth: usize) {
        let base = self.pool.take_nodes(mask.count_ones() as usize);
        self.pool.place(at, Node::inner(word, mask, base));
        for (child, list) in (base..).zip(self.distribute(list, word, mask)) {
            self.build(child, list, depth + 1);
        }
    }

    fn leaf(&mut self, at: u32, mut list: Vec<u32>) {
        if list.len() > MAX_LEAF {
            self.evicted.extend(list.drain(MAX_LEAF..));
        }
        let run = match self.runs.get(&list) {
            Some(run) => {
                self.pool.share(*run);
                *run
            }
            None => {
                let entries: Vec<Entry> = list.iter().map(|entry| self.entries[*entry as usize]).collect();
                let run = self.pool.new_run(&entries);
                self.runs.insert(list, run);
                run
            }
        };
        self.pool.place(at, Node::leaf(run));
    }

    /// The entries of each child; they stay sorted.
    fn distribute(&self, list: &[u32], word: usize, mask: u64) -> Vec<Vec<u32>> {
        let mut children = vec![Vec::new(); 1 << mask.count_ones()];
        for number in list {
            let entry = &self.entries[*number as usize];
            for child in agreeing(entry.value[word], entry.mask[word], mask) {
                children[child].push(*number);
            }
        }
        children
    }

    /// The word and the bits for a node with these entries; `None` if no bit pays.
    fn choose(&self, list: &[u32]) -> Option<(usize, u64)> {
        let step = list.len().div_ceil(SAMPLE);
        let sample: Vec<u32> = list.iter().copied().step_by(step).collect();
        let most_bits = (list.len().ilog2() as usize + 2).min(MAX_BITS);
        let whole = cost(sample.len() as u64, step as u64);
        let words = 0..self.pool.words();
        let cheapest = words
            .clone()
            .filter_map(|word| {
                let (mask, cost) = self.bits_of(word, &sample, step as u64, most_bits);
                (cost < whole).then_some((cost, word, mask))
            })
            .min();
        if let Some((_, word, mask)) = cheapest {
            return Some((word, mask));
        }
        if list.len() <= 2 * LANES {
            return None;
        }
        // Few rules mask any one bit, so each bit copies most rules; still a leaf of many blocks costs more.
        words
            .filter_map(|word| {
                let (copies, mask) = self.copying_bits_of(word, &sample)?;
                Some((copies, word, mask))
            })
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(_, word, mask)| (word, mask))
    }

    /// The bits of one word that leave the fewest rules to a child, and how many these are on average; `None`
    /// if that takes too many copies, or leaves all rules to some child. No child that lacks a rule of the
    /// sample gets all rules.
    fn copying_bits_of(&self, word: usize, sample: &[u32]) -> Option<(f64, u64)> {
        let mut parts = vec![self.pairs(word, sample)];
        let useful = separating(&parts[0]);
        let (mut chosen, mut best) = (0u64, None);
        for bits in 1..=MAX_COPYING_BITS {
            let costs = costs_of_bits(&parts, 1);
            let candidates = (0..64).filter(|bit| useful & !chosen & 1 << bit != 0);
            let Some(bit) = candidates.min_by_key(|bit| costs[*bit]) else { break };
            chosen |= 1 << bit;
            parts = parts.iter().flat_map(|part| halves(part, bit)).collect();
            let copies: usize = parts.iter().map(Vec::len).sum();
            let average = copies as f64 / f64::from(1 << bits);
            if copies > MAX_GROWTH * sample.len() {
                break;
            }
            let is_smaller = parts.iter().all(|part| part.len() < sample.len());
            if is_smaller && average < 0.75 * sample.len() as f64 {
                best = Some((average, chosen));
            }
        }
        best
    }

    /// Values and masks of one word.
    fn pairs(&self, word: usize, list: &[u32]) -> Vec<(u64, u64)> {
        let pair = |number: &u32| {
            let entry = &self.entries[*number as usize];
            (entry.value[word], entry.mask[word])
        };
        list.iter().map(pair).collect()
    }

    /// The bits of one word that make the children cheapest, and what these cost.
    fn bits_of(&self, word: usize, sample: &[u32], scale: u64, most_bits: usize) -> (u64, u64) {
        let mut parts = vec![self.pairs(word, sample)];
        let masked = parts[0].iter().fold(0, |all, (_, mask)| all | mask);
        let mut chosen = 0u64;
        let mut total = cost(sample.len() as u64, scale);
        while (chosen.count_ones() as usize) < most_bits {
            let costs = costs_of_bits(&parts, scale);
            let candidates = (0..64).filter(|bit| masked & !chosen & 1 << bit != 0);
            let Some(best) = candidates.min_by_key(|bit| costs[*bit]) else { break };
            if costs[best] + total / LEAST_GAIN >= total {
                break;
            }
            (total, chosen) = (costs[best], chosen | 1 << best);
            parts =
                parts.iter().flat_map(|part| halves(part, best)).filter(|part| !part.is_empty()).collect();
        }
        (chosen, total)
    }
}

/// The bits that some pair masks, without those that all mask with the same value, which separate nothing.
fn separating(pairs: &[(u64, u64)]) -> u64 {
    let (mut some, mut every, mut ones, mut zeros) = (0, u64::MAX, u64::MAX, u64::MAX);
    for (value, mask) in pairs {
        some |= mask;
        every &= mask;
        ones &= value;
        zeros &= !value;
    }
    some & !(every & (ones | zeros))
}

/// The cost of a part with `rules` rules of the sample.
fn cost(rules: u64, scale: u64) -> u64 {
    let rules = rules * scale;
    rules * rules.max(LANES as u64)
}

/// The costs of the parts of a sample after each bit, if that were the next.
fn costs_of_bits(parts: &[Vec<(u64, u64)>], scale: u64) -> [u64; 64] {
    let mut costs = [0; 64];
    for part in parts {
        debug_assert!(part.len() <= SAMPLE, "the counters have room for a sample");
        let (mut zeros, mut ones) = ([0u16; 64], [0u16; 64]);
        for (value, mask) in part {
            for bit in 0..64 {
                let (value, free) = ((value >> bit & 1) as u16, (!mask >> bit & 1) as u16);
                ones[bit] += value | free;
                zeros[bit] += (value ^ 1) | free;
            }
        }
        for ((sum, zeros), ones) in costs.iter_mut().zip(zeros).zip(ones) {
            *sum += cost(zeros.into(), scale) + cost(ones.into(), scale);
        }
    }
    costs
}

/// The entries that a bit may be 0 for, and those that it may be 1 for.
fn halves(part: &[(u64, u64)], bit: usize) -> [Vec<(u64, u64)>; 2] {
    [0, 1].map(|side| {
        let agrees = |(value, mask): &&(u64, u64)| (value ^ side << bit) & mask & 1 << bit == 0;
        part.iter().filter(agrees).copied().collect()
    })
}

/// The children of a node that agree with a value under a mask.
pub(super) fn agreeing(value: u64, mask: u64, bits: u64) -> impl Iterator<Item = usize> {
    let fixed = extract(value & mask, bits) as usize;
    let free = extract(!mask, bits) as usize;
    let mut next = Some(0usize);
    std::iter::from_fn(move || {
        let part = next?;
        // Counts through the subsets of the free bits.
        next = (part != free).then_some(part.wrapping_sub(free) & free);
        Some(fixed | part)
    })
}

/// The bits of a word that a mask names, next to each other, lowest first.
#[inline]
pub(super) fn extract(word: u64, mask: u64) -> u64 {
    let (mut rest, mut bits, mut place) = (mask, 0, 0);
    while rest != 0 {
        bits |= (word >> rest.trailing_zeros() & 1) << place;
        rest &= rest - 1;
        place += 1;
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_in_each_child_that_its_mask_leaves_open() {
        let children = |value, mask, bits| agreeing(value, mask, bits).collect::<Vec<_>>();
        assert_eq!(children(0b1000, 0b1000, 0b1010), [2, 3]);
        assert_eq!(children(0, 0, 0b1010), [0, 1, 2, 3]);
        assert_eq!(children(0b0010, 0b1010, 0b1010), [1]);
        assert_eq!(children(0, 0, 0), [0]);
    }

    #[test]
    fn bits_with_one_value_separate_nothing() {
        assert_eq!(separating(&[(0b1001, 0b1111), (0b1000, 0b1101)]), 0b0011);
        assert_eq!(separating(&[(0b01, 0b11), (0b01, 0b11)]), 0);
    }

    #[test]
    fn bits_are_extracted_lowest_first() {
        assert_eq!(extract(0x8000_0000_0000_0005, 0x8000_0000_0000_000f), 0b10101);
        assert_eq!(extract(u64::MAX, 0), 0);
    }
}
