//! The memory of the trees: rules, blocks of references, and which of them are free.
//!
//! A reference is a word of 32 bits: its kind in the upper two, then what the kind needs.
//!
//! | kind | bits 29..22 | bits 21..0 | meaning |
//! |---|---|---|---|
//! | 0 | 0 | 0, 1 | constant: nothing is claimed, or everything ([`Reference::Everything`]) |
//! | 1 | 0 | rule | claimed if the rule matches |
//! | 2 | more (bit 26), count (4 bits) | block | claimed if one of the first `count` entries, which are rules, matches; else, with `more`, what the last entry refers to decides |
//! | 3 | nibble of the image (7 bits) | block | the entry that the nibble selects decides |
//!
//! Why a reader never meets memory in use for something else: a rule or block is written while no reference
//! leads to it, and a reference to it is stored with release order afterwards, in one store. The program
//! loads the reference and uses the address that depends on it. A block or rule that is no longer referred to
//! is *retired*, and is free only after a grace period that began later: then every program that may have
//! loaded a reference to it has ended. Only one word of a rule, its effect, changes while references lead to
//! it ([`crate::drops`]).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use packet::cube::LEVEL_WORDS;

use crate::grace::GracePeriod;
use crate::memory::SharedWords;
use crate::tree::Claim;

/// Trees, each with a root.
pub(crate) const ROOTS: usize = 8;
/// Words of the roots: a reference and the first precedence of each tree, and the number of changes, each of
/// which is counted before it is made.
pub(crate) const ROOT_WORDS: usize = 2 * ROOTS + 1;
const CHANGES: usize = 2 * ROOTS;
/// References of a block: as many as a nibble has values.
pub(crate) const BLOCK_ENTRIES: usize = 16;
/// Rules of a list; the last entry leads on.
pub(crate) const LIST_RULES: usize = BLOCK_ENTRIES - 1;
/// Words of a rule, three cache lines: value and mask of the first [`NEAR_WORDS`] words of the image, the
/// effect, whether the others have a condition, and value and mask of these. Most comparisons need the first
/// line only.
pub(crate) const RULE_WORDS: usize = 24;
/// The words of the image with the protocol, ports, and IPv4 addresses or the upper halves of IPv6 addresses.
const NEAR_WORDS: usize = 3;
const RULE_EFFECT: usize = 2 * NEAR_WORDS;
const RULE_HAS_FAR: usize = RULE_EFFECT + 1;
const RULE_FAR: usize = RULE_HAS_FAR + 1;
const _: () =
    assert!(RULE_FAR + 2 * (LEVEL_WORDS - NEAR_WORDS) <= RULE_WORDS && RULE_WORDS.is_multiple_of(8));
/// The most blocks, and rules, that a reference can name.
pub(crate) const MAX_PLACES: u32 = 1 << PLACE_BITS;

/// Blocks for each claim that there may be. As many claims need up to 1.3 each while they change, and a tree
/// that is built anew has its blocks beside the old ones. Where there are fewer claims, each gets more.
pub(crate) const BLOCKS_PER_CLAIM: u32 = 4;

const PLACE_BITS: u32 = 22;
const COUNT_SHIFT: u32 = PLACE_BITS;
const MORE: u32 = 1 << 26;
const NIBBLE_SHIFT: u32 = PLACE_BITS;
const KIND_SHIFT: u32 = 30;

/// The place in a rule of the value for a word of the image; its mask comes next.
fn value_place(word: usize) -> usize {
    2 * word + if word < NEAR_WORDS { 0 } else { RULE_FAR - 2 * NEAR_WORDS }
}

/// The number of a rule in the shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RulePlace(pub(crate) u32);

/// The fate of the packets that a rule matches. Of several rules the one of the lowest precedence decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effect {
    pub(crate) precedence: u32,
    /// The slot where they are counted when they are dropped; 0: they are redirected.
    pub(crate) slot: u32,
}

/// The number of a block in the shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockPlace(u32);

/// Four bits of the image, counted from the lowest of the first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nibble(u32);

impl Nibble {
    /// All of them.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..(LEVEL_WORDS * 16) as u32).map(Self)
    }

    /// The bits of an image that it compares.
    pub(crate) fn of(self, image: &[u64; LEVEL_WORDS]) -> usize {
        (image[self.0 as usize / 16] >> (self.0 % 16 * 4) & 15) as usize
    }
}

/// The parts of the trees that a reference leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reference {
    Nothing,
    /// Beyond the bounds of the trees.
    Everything,
    Rule(RulePlace),
    List {
        block: BlockPlace,
        count: usize,
        goes_on: bool,
    },
    Inner {
        block: BlockPlace,
        nibble: Nibble,
    },
}

impl Reference {
    fn encoded(self) -> u32 {
        match self {
            Self::Nothing => 0,
            Self::Everything => 1,
            Self::Rule(rule) => 1 << KIND_SHIFT | rule.0,
            Self::List { block, count, goes_on } => {
                let more = if goes_on { MORE } else { 0 };
                2 << KIND_SHIFT | more | (count as u32) << COUNT_SHIFT | block.0
            }
            Self::Inner { block, nibble } => 3 << KIND_SHIFT | nibble.0 << NIBBLE_SHIFT | block.0,
        }
    }

    fn decoded(word: u32) -> Self {
        let place = word & (MAX_PLACES - 1);
        match word >> KIND_SHIFT {
            0 if word == 0 => Self::Nothing,
            0 => Self::Everything,
            1 => Self::Rule(RulePlace(place)),
            2 => Self::List {
                block: BlockPlace(place),
                count: (word >> COUNT_SHIFT & 15) as usize,
                goes_on: word & MORE != 0,
            },
            _ => Self::Inner { block: BlockPlace(place), nibble: Nibble(word >> NIBBLE_SHIFT & 127) },
        }
    }
}

/// A word that has a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReferencePlace {
    Root(usize),
    Entry(BlockPlace, usize),
}

/// The rule that no packet matches: it is in the entries of lists that are not in use.
pub(crate) const NEVER: RulePlace = RulePlace(0);

/// There is no free block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoBlock;

/// Places that are free, and places that are free after a grace period.
#[derive(Debug)]
struct Places {
    free: Vec<u32>,
    retired: Vec<u32>,
}

impl Places {
    fn new(places: std::ops::Range<u32>) -> Self {
        Self { free: places.rev().collect(), retired: Vec::new() }
    }
}

/// Roots, blocks and rules.
pub(crate) struct TreeMemory {
    roots: SharedWords<AtomicU32>,
    blocks: SharedWords<AtomicU32>,
    rules: SharedWords<AtomicU64>,
    free_blocks: Places,
    free_rules: Places,
    grace: Box<dyn GracePeriod>,
}

impl std::fmt::Debug for TreeMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (blocks, rules) = (&self.free_blocks, &self.free_rules);
        f.debug_struct("TreeMemory").field("blocks", blocks).field("rules", rules).finish_non_exhaustive()
    }
}

impl TreeMemory {
    /// Takes memory in which no reference leads anywhere.
    pub(crate) fn new(
        roots: SharedWords<AtomicU32>,
        blocks: SharedWords<AtomicU32>,
        rules: SharedWords<AtomicU64>,
        grace: Box<dyn GracePeriod>,
    ) -> Self {
        assert_eq!(roots.len(), ROOT_WORDS);
        let block_count = (blocks.len() / BLOCK_ENTRIES) as u32;
        let rule_count = (rules.len() / RULE_WORDS) as u32;
        assert!(block_count <= MAX_PLACES && rule_count <= MAX_PLACES);
        // `NEVER`: a bit that the mask does not have.
        rules[0].store(1, Ordering::Relaxed);
        let (free_blocks, free_rules) = (Places::new(0..block_count), Places::new(1..rule_count));
        Self { roots, blocks, rules, free_blocks, free_rules, grace }
    }

    fn word(&self, place: ReferencePlace) -> &AtomicU32 {
        match place {
            ReferencePlace::Root(root) => &self.roots[root],
            ReferencePlace::Entry(block, entry) => &self.blocks[block.0 as usize * BLOCK_ENTRIES + entry],
        }
    }

    pub(crate) fn load(&self, place: ReferencePlace) -> Reference {
        // This thread is the only writer.
        Reference::decoded(self.word(place).load(Ordering::Relaxed))
    }

    /// Replaces a reference that the program may read. What it leads to must have been written.
    pub(crate) fn publish(&mut self, place: ReferencePlace, reference: Reference) {
        self.word(place).store(reference.encoded(), Ordering::Release);
    }

    /// Returns after all that was published is visible to programs that start now.
    pub(crate) fn settle(&self) {
        fence(Ordering::SeqCst);
    }

    /// Takes a place for a rule and writes it.
    pub(crate) fn new_rule(&mut self, claim: &Claim, effect: Effect) -> Option<RulePlace> {
        if self.free_rules.free.is_empty() {
            self.reclaim();
        }
        let rule = RulePlace(self.free_rules.free.pop()?);
        let words = &self.rules[rule.0 as usize * RULE_WORDS..][..RULE_WORDS];
        for (word, (value, mask)) in claim.value().iter().zip(claim.mask()).enumerate() {
            words[value_place(word)].store(*value, Ordering::Relaxed);
            words[value_place(word) + 1].store(*mask, Ordering::Relaxed);
        }
        let has_far = claim.mask()[NEAR_WORDS..].iter().any(|mask| *mask != 0);
        words[RULE_HAS_FAR].store(has_far.into(), Ordering::Relaxed);
        self.set_effect(rule, effect);
        Some(rule)
    }

    /// Gives a rule that the program may read another effect, in one store.
    pub(crate) fn set_effect(&mut self, rule: RulePlace, effect: Effect) {
        let word = u64::from(effect.precedence) << 32 | u64::from(effect.slot);
        self.rules[rule.0 as usize * RULE_WORDS + RULE_EFFECT].store(word, Ordering::SeqCst);
    }

    /// Sets the lower bound of the precedences of a tree. It is lowered before a rule with a lower one can be
    /// found.
    pub(crate) fn set_first(&self, root: usize, precedence: u32) {
        self.roots[ROOTS + root].store(precedence, Ordering::SeqCst);
    }

    /// Counts a change. The caller calls this before it adds or removes a claim, or changes an effect.
    pub(crate) fn note_change(&self) {
        self.roots[CHANGES].fetch_add(1, Ordering::SeqCst);
    }

    /// The effect of a rule.
    pub(crate) fn effect_of(&self, rule: RulePlace) -> Effect {
        let word = self.rules[rule.0 as usize * RULE_WORDS + RULE_EFFECT].load(Ordering::Relaxed);
        Effect { precedence: (word >> 32) as u32, slot: word as u32 }
    }

    /// No reference leads to this rule any more.
    pub(crate) fn retire_rule(&mut self, rule: RulePlace) {
        self.free_rules.retired.push(rule.0);
    }

    /// Takes a block for [`list`](Self::list) or [`inner`](Self::inner).
    pub(crate) fn new_block(&mut self) -> Result<BlockPlace, NoBlock> {
        if self.free_blocks.free.is_empty() {
            self.reclaim();
        }
        self.free_blocks.free.pop().map(BlockPlace).ok_or(NoBlock)
    }

    /// No reference leads to this block any more.
    pub(crate) fn retire_block(&mut self, block: BlockPlace) {
        self.free_blocks.retired.push(block.0);
    }

    /// Writes a list of up to [`LIST_RULES`] rules, and of what decides if none matches.
    pub(crate) fn list(
        &mut self,
        block: BlockPlace,
        rules: impl ExactSizeIterator<Item = RulePlace>,
        then: Reference,
    ) -> Reference {
        let count = rules.len();
        assert!(count <= LIST_RULES, "the rules of a list fit into a block");
        for (entry, rule) in rules.enumerate() {
            self.word(ReferencePlace::Entry(block, entry)).store(rule.0, Ordering::Relaxed);
        }
        let last = self.word(ReferencePlace::Entry(block, LIST_RULES));
        last.store(then.encoded(), Ordering::Relaxed);
        Reference::List { block, count, goes_on: then != Reference::Nothing }
    }

    /// Writes an inner node.
    pub(crate) fn inner(
        &mut self,
        block: BlockPlace,
        nibble: Nibble,
        entries: &[Reference; BLOCK_ENTRIES],
    ) -> Reference {
        for (entry, reference) in entries.iter().enumerate() {
            self.word(ReferencePlace::Entry(block, entry)).store(reference.encoded(), Ordering::Relaxed);
        }
        Reference::Inner { block, nibble }
    }

    /// The rules of a list.
    pub(crate) fn list_rules(&self, block: BlockPlace, count: usize) -> impl Iterator<Item = RulePlace> {
        let entry = move |entry| self.word(ReferencePlace::Entry(block, entry));
        (0..count).map(move |at| RulePlace(entry(at).load(Ordering::Relaxed)))
    }

    /// Writes an entry of a list that the program may read. It must be [`NEVER`], or not counted, before or
    /// after. So no rule that stays is ever elsewhere in its list, and no reader misses it between two
    /// places.
    pub(crate) fn write_list_rule(&mut self, block: BlockPlace, entry: usize, rule: RulePlace) {
        self.word(ReferencePlace::Entry(block, entry)).store(rule.0, Ordering::Release);
    }

    /// Blocks that are not in use, now or after a grace period.
    pub(crate) fn spare_blocks(&self) -> usize {
        self.free_blocks.free.len() + self.free_blocks.retired.len()
    }

    /// Blocks in use.
    pub(crate) fn used_blocks(&self) -> usize {
        self.blocks.len() / BLOCK_ENTRIES - self.spare_blocks()
    }

    /// Frees what was retired, after a grace period.
    fn reclaim(&mut self) {
        let nothing = self.free_blocks.retired.is_empty() && self.free_rules.retired.is_empty();
        if nothing || !self.grace.wait() {
            return;
        }
        for places in [&mut self.free_blocks, &mut self.free_rules] {
            places.free.append(&mut places.retired);
        }
    }
}

#[cfg(test)]
impl TreeMemory {
    /// Decides over an image as the program does, on its words alone.
    pub(crate) fn decide(&self, image: &[u64; LEVEL_WORDS]) -> Option<bool> {
        (0..ROOTS).map(|root| self.search(image, ReferencePlace::Root(root))).max().flatten()
    }

    fn search(&self, image: &[u64; LEVEL_WORDS], mut at: ReferencePlace) -> Option<bool> {
        // `Some(false)`: claimed by a rule; `Some(true)`: beyond the bounds; `None`: not claimed.
        for _ in 0..crate::tree::MAX_STEPS {
            match self.load(at) {
                Reference::Nothing => return None,
                Reference::Everything => return Some(true),
                Reference::Rule(rule) => return self.matches(image, rule).then_some(false),
                Reference::Inner { block, nibble } => at = ReferencePlace::Entry(block, nibble.of(image)),
                Reference::List { block, count, goes_on } => {
                    if self.list_rules(block, count).into_iter().any(|rule| self.matches(image, rule)) {
                        return Some(false);
                    }
                    if !goes_on {
                        return None;
                    }
                    at = ReferencePlace::Entry(block, LIST_RULES);
                }
            }
        }
        Some(true)
    }

    /// The rules that an image is compared with if none of them matches.
    pub(crate) fn compared(&self, image: &[u64; LEVEL_WORDS]) -> usize {
        (0..ROOTS).map(|root| self.compared_at(image, ReferencePlace::Root(root))).sum()
    }

    fn compared_at(&self, image: &[u64; LEVEL_WORDS], at: ReferencePlace) -> usize {
        match self.load(at) {
            Reference::Nothing | Reference::Everything => 0,
            Reference::Rule(_) => 1,
            Reference::Inner { block, nibble } => {
                self.compared_at(image, ReferencePlace::Entry(block, nibble.of(image)))
            }
            Reference::List { count, goes_on: false, .. } => count,
            Reference::List { block, count, .. } => {
                count + self.compared_at(image, ReferencePlace::Entry(block, LIST_RULES))
            }
        }
    }

    fn matches(&self, image: &[u64; LEVEL_WORDS], rule: RulePlace) -> bool {
        let words = &self.rules[rule.0 as usize * RULE_WORDS..][..RULE_WORDS];
        let load = |place: usize| words[place].load(Ordering::Relaxed);
        let compared = if load(RULE_HAS_FAR) == 0 { NEAR_WORDS } else { LEVEL_WORDS };
        (0..compared).all(|word| image[word] & load(value_place(word) + 1) == load(value_place(word)))
    }

    /// Blocks and rules in use: none is lost once everything is removed.
    pub(crate) fn used(&self) -> (usize, usize) {
        let rules = &self.free_rules;
        (self.used_blocks(), self.rules.len() / RULE_WORDS - rules.free.len() - rules.retired.len() - 1)
    }
}
