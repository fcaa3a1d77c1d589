//! The decision trees of the claims: how they are built and changed while the program reads them.
//!
//! There is a tree for each class of claims ([`class_of`]), by whether they may drop packets, and by whether
//! a claim masks much of the destination address, of the source address and of the ports: claims that leave
//! one open would otherwise be copied into most leaves of a tree that divides by it. An inner node divides by
//! four bits of the image. Claims that do not mask these bits are compared before it, in a *list*, if they
//! are few, and otherwise copied to all of its entries. A leaf is a list. Where neither helps, because the
//! claims have no bits in common, up to [`MAX_CHAIN`] lists follow each other; beyond that, and where there
//! are no more blocks, the place is *widened*: everything that gets there is redirected.
//!
//! # Why no claimed packet is passed
//! Every path by which an image that the claim matches can go ends in the claim's rule or in a widened place:
//! [`Trees::add`] follows all entries that agree with the claim, and a place that is replaced by others keeps
//! its rules, in the replacement, which is complete before its reference is published. A program that started
//! earlier follows the old reference, and the packet arrived before `add` returned. That memory is not
//! written while such programs run is the argument of [`crate::blocks`].
//!
//! # Why a decision never mixes two states of the claims
//! The trees are searched one after the other, and one claim may take the place of another: it is added, and
//! then the other is removed. A program could search the tree of the new claim before the claim is added, and
//! the tree of the old one after it is removed. So changes are counted, each before it is made, and a program
//! that would pass or drop a packet searches again if there was one meanwhile. After some searches it
//! redirects the packet: the receiver decides. Of a single change a program sees all or nothing, as it
//! follows one path in each tree. The argument needs a processor that keeps the order of loads and of stores
//! (x86); it does not hold on ARM.
//!
//! # Why there is a second builder beside that of `flow-table`
//! The trees of `flow-table` answer which claim comes first, by leaves that AVX-512 compares at once, over
//! the bytes that a family of rules looks at. They are changed in place in one of two copies, which readers
//! have left. The program needs the first of the claims that may drop, and whether one of the others comes
//! before it; it cannot use vectors, reads single words, and cannot be made to leave: it needs nodes that are
//! changed only by one store of a whole entry where they can be read. What both could share is the choice of
//! the bits that divide best, which is some thirty lines here.

use std::collections::HashMap;

use packet::cube::{
    DST_IPV4, DST_MAC, DST_PORT, HAS_IPV4, HAS_IPV6, LEVEL_WORDS, SRC_IPV4, SRC_MAC, SRC_PORT,
};

use crate::blocks::{BLOCK_ENTRIES, BlockPlace, Effect, LIST_RULES, NEVER, Nibble, ROOTS, Reference};
use crate::blocks::{ReferencePlace, RulePlace, TreeMemory};

/// References that the program follows at most for each tree.
#[cfg(test)]
pub(crate) const MAX_STEPS: usize = 24;
/// Rules that are not worth an inner node.
const LEAF_RULES: usize = 8;
/// Inner nodes and lists of a path when a tree is built. With a chain of lists and a last reference there are
/// fewer than `MAX_STEPS`; lists that are added later may exceed it, and then widen their path.
const MAX_DEPTH: usize = 16;
/// Lists that follow each other in a leaf.
const MAX_CHAIN: usize = 4;
/// Rules that are compared before an inner node rather than copied to its entries.
const MAX_BEFORE: usize = 2 * LIST_RULES;
/// Entries that a rule is copied to on average when an inner node divides.
const MAX_COPIED: usize = 2;
/// Rules that the choice of an inner node looks at.
const SAMPLE_RULES: usize = 128;
/// A tree is built anew after this many changes, and twice the claims that it was built of.
const FEW_CHANGES: usize = 256;
/// Address bits from which on a claim is about an address, for IPv6 twice as many.
const ADDRESS_BITS: u32 = 12;
/// Port bits from which on a claim is about ports.
const PORT_BITS: u32 = 8;

pub(crate) type Image = [u64; LEVEL_WORDS];

/// The packets whose image equals a value under a mask: the packed image of the outer headers
/// ([`packet::cube`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// Zero outside the mask.
    value: Image,
    mask: Image,
}

impl Claim {
    /// A claim; the value is taken under the mask.
    #[must_use]
    pub fn new(value: Image, mask: Image) -> Self {
        Self { value: std::array::from_fn(|word| value[word] & mask[word]), mask }
    }

    /// The value, zero outside the mask.
    #[must_use]
    pub fn value(&self) -> &Image {
        &self.value
    }

    /// The bits that are compared.
    #[must_use]
    pub fn mask(&self) -> &Image {
        &self.mask
    }

    /// Returns whether a packet with this image is claimed.
    #[must_use]
    pub fn matches(&self, image: &Image) -> bool {
        (0..LEVEL_WORDS).all(|word| image[word] & self.mask[word] == self.value[word])
    }

    /// Returns whether some image matches both claims.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let differs =
            |word: usize| (self.value[word] ^ other.value[word]) & self.mask[word] & other.mask[word] != 0;
        !(0..LEVEL_WORDS).any(differs)
    }

    /// The entries of an inner node that an image of the claim may select.
    fn entries(&self, nibble: Nibble) -> impl Iterator<Item = usize> + use<> {
        let (value, mask) = (nibble.of(&self.value), nibble.of(&self.mask));
        (0..BLOCK_ENTRIES).filter(move |entry| entry & mask == value)
    }
}

/// The classes of claims that may drop, and of others.
const CLASSES: usize = ROOTS / 2;

/// The class of a claim among those that may drop, or among the others.
fn class_of(claim: &Claim) -> usize {
    let mask = &claim.mask;
    let layers = mask[HAS_IPV4.word()];
    let is_v6 = layers >> HAS_IPV6.shift() & 1 == 1;
    let (dst, src, least) = if is_v6 || layers >> HAS_IPV4.shift() & 1 == 1 {
        (mask[DST_IPV4.word()], mask[SRC_IPV4.word()], if is_v6 { 2 * ADDRESS_BITS } else { ADDRESS_BITS })
    } else {
        (mask[DST_MAC.word()] >> DST_MAC.shift(), mask[SRC_MAC.word()] >> SRC_MAC.shift(), ADDRESS_BITS)
    };
    let ports = mask[SRC_PORT.word()] & (SRC_PORT.ones() << SRC_PORT.shift() | DST_PORT.ones());
    usize::from(dst.count_ones() >= least)
        | usize::from(src.count_ones() >= least) << 1
        | usize::from(ports.count_ones() >= PORT_BITS) << 2
}

/// The state of one tree.
#[derive(Clone, Copy, Debug)]
struct TreeState {
    /// No claim has a lower precedence.
    first: u32,
    /// The claims that it was built of.
    built: usize,
    /// Changes since then.
    changes: usize,
}

impl TreeState {
    /// A tree of so many claims, just built.
    fn built(claims: usize, first: u32) -> Self {
        Self { first, built: claims, changes: 0 }
    }
}

/// The trees, and the claims in them.
#[derive(Debug)]
pub(crate) struct Trees {
    memory: TreeMemory,
    /// The claim of each rule, with the number of its tree.
    claims: HashMap<RulePlace, (Claim, usize)>,
    states: [TreeState; ROOTS],
}

/// There is no place for a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRule;

impl Trees {
    /// Empty trees in memory that no reference leads into.
    pub(crate) fn new(memory: TreeMemory) -> Self {
        Self { memory, claims: HashMap::new(), states: [TreeState::built(0, u32::MAX); ROOTS] }
    }

    /// Lowers the first precedence of a tree to this one, if it is higher.
    fn lower_first(&mut self, class: usize, precedence: u32) {
        let first = &mut self.states[class].first;
        *first = precedence.min(*first);
        self.memory.set_first(class, *first);
    }

    /// Adds a claim: packets that it matches are not passed any more when this returns. With a slot it goes
    /// to the trees of claims that may drop, and stays there.
    pub(crate) fn add(&mut self, claim: &Claim, effect: Effect) -> Result<RulePlace, NoRule> {
        let rule = self.memory.new_rule(claim, effect).ok_or(NoRule)?;
        // The program searches the trees of claims that may drop first.
        let class = class_of(claim) + if effect.slot == 0 { CLASSES } else { 0 };
        self.claims.insert(rule, (*claim, class));
        self.memory.note_change();
        self.lower_first(class, effect.precedence);
        if !self.follow_changes(class) {
            self.add_at(ReferencePlace::Root(class), rule, 0);
        }
        self.memory.settle();
        Ok(rule)
    }

    /// Gives the rule of a claim another effect, which has a slot only if it may drop. Programs that started
    /// earlier may still do as before.
    pub(crate) fn set_effect(&mut self, rule: RulePlace, effect: Effect) {
        let Some(&(_, class)) = self.claims.get(&rule) else { return };
        self.memory.note_change();
        self.lower_first(class, effect.precedence);
        self.memory.set_effect(rule, effect);
    }

    /// Removes a claim: no packet that arrives when this has returned is redirected for it.
    pub(crate) fn remove(&mut self, rule: RulePlace) {
        let Some((claim, class)) = self.claims.remove(&rule) else { return };
        self.memory.note_change();
        if !self.follow_changes(class) {
            self.remove_at(ReferencePlace::Root(class), rule, &claim);
        }
        self.memory.settle();
        self.memory.retire_rule(rule);
    }

    /// The number of places where everything is redirected. Walks through all trees.
    pub(crate) fn widened(&self) -> usize {
        (0..ROOTS).map(|class| self.widened_at(ReferencePlace::Root(class))).sum()
    }

    fn widened_at(&self, at: ReferencePlace) -> usize {
        match self.memory.load(at) {
            Reference::Everything => 1,
            Reference::Nothing | Reference::Rule(_) | Reference::List { goes_on: false, .. } => 0,
            Reference::List { block, .. } => self.widened_at(ReferencePlace::Entry(block, LIST_RULES)),
            Reference::Inner { block, .. } => {
                (0..BLOCK_ENTRIES).map(|entry| self.widened_at(ReferencePlace::Entry(block, entry))).sum()
            }
        }
    }

    /// Counts a change of a tree, and builds it anew of its claims if it has changed enough. Returns whether
    /// it did.
    fn follow_changes(&mut self, class: usize) -> bool {
        let state = &mut self.states[class];
        state.changes += 1;
        let is_due = state.changes > FEW_CHANGES + 2 * state.built;
        if is_due {
            self.rebuild(class);
        }
        is_due
    }

    fn rebuild(&mut self, class: usize) {
        let root = ReferencePlace::Root(class);
        let of_tree = self.claims.iter().filter(|(_, (_, tree))| *tree == class);
        let mut rules: Vec<RulePlace> = of_tree.map(|(rule, _)| *rule).collect();
        // The same claims make the same tree.
        rules.sort_unstable();
        if self.memory.spare_blocks() < rules.len() {
            // There may be no room for the old and the new tree together.
            self.replace(root, Reference::Everything);
        }
        let tree = self.build(&rules, 0);
        self.replace(root, tree);
        let precedences = rules.iter().map(|rule| self.memory.effect_of(*rule).precedence);
        self.states[class] = TreeState::built(rules.len(), precedences.min().unwrap_or(u32::MAX));
        self.memory.set_first(class, self.states[class].first);
    }

    /// Publishes a reference, and retires all blocks that the old one leads to. The new one leads to none of
    /// them.
    fn replace(&mut self, at: ReferencePlace, reference: Reference) {
        let old = self.memory.load(at);
        self.memory.publish(at, reference);
        self.retire(old);
    }

    fn retire(&mut self, reference: Reference) {
        let (block, entries) = match reference {
            Reference::Nothing | Reference::Everything | Reference::Rule(_) => return,
            Reference::List { block, goes_on, .. } => (block, LIST_RULES..LIST_RULES + usize::from(goes_on)),
            Reference::Inner { block, .. } => (block, 0..BLOCK_ENTRIES),
        };
        for entry in entries {
            let below = self.memory.load(ReferencePlace::Entry(block, entry));
            self.retire(below);
        }
        self.memory.retire_block(block);
    }

    /// Adds a rule below a reference. `lists` is the number of lists right before it.
    fn add_at(&mut self, at: ReferencePlace, rule: RulePlace, lists: usize) {
        let claim = self.claims[&rule].0;
        match self.memory.load(at) {
            Reference::Everything => {}
            Reference::Nothing => self.memory.publish(at, Reference::Rule(rule)),
            Reference::Rule(other) => {
                let leaf = self.leaf(&[other, rule]);
                self.memory.publish(at, leaf);
            }
            Reference::List { block, count, goes_on: false } => {
                if !self.put_into(at, block, count, false, LEAF_RULES, rule) {
                    let mut rules: Vec<RulePlace> = self.memory.list_rules(block, count).collect();
                    rules.push(rule);
                    // Its depth does not matter to what it decides.
                    let subtree = self.build(&rules, MAX_DEPTH / 2);
                    self.replace(at, subtree);
                }
            }
            Reference::List { block, count, goes_on: true } => {
                let then = ReferencePlace::Entry(block, LIST_RULES);
                let is_before = match self.memory.load(then) {
                    Reference::Inner { nibble, .. } => nibble.of(&claim.mask) == 0,
                    _ => false,
                };
                if !is_before || !self.put_into(at, block, count, true, LIST_RULES, rule) {
                    self.add_at(then, rule, lists + 1);
                }
            }
            Reference::Inner { block, nibble } => {
                if nibble.of(&claim.mask) == 0 && lists < MAX_BEFORE / LIST_RULES {
                    return self.put_before(at, rule);
                }
                for entry in claim.entries(nibble) {
                    self.add_at(ReferencePlace::Entry(block, entry), rule, 0);
                }
            }
        }
    }

    /// Puts a list of one rule before what a reference leads to.
    fn put_before(&mut self, at: ReferencePlace, rule: RulePlace) {
        let then = self.memory.load(at);
        match self.memory.new_block() {
            Ok(block) => {
                let list = self.memory.list(block, &[rule], then);
                self.memory.publish(at, list);
            }
            Err(_) => self.replace(at, Reference::Everything),
        }
    }

    /// Puts a rule into a list of up to `most` that the program may read, into an entry that is not in use.
    /// Returns whether there was one.
    fn put_into(
        &mut self,
        at: ReferencePlace,
        block: BlockPlace,
        count: usize,
        goes_on: bool,
        most: usize,
        rule: RulePlace,
    ) -> bool {
        let unused = self.memory.list_rules(block, count).position(|other| other == NEVER);
        if let Some(entry) = unused {
            self.memory.write_list_rule(block, entry, rule);
        } else if count < most {
            self.memory.write_list_rule(block, count, rule);
            self.memory.publish(at, Reference::List { block, count: count + 1, goes_on });
        }
        unused.is_some() || count < most
    }

    /// Removes a rule below a reference.
    fn remove_at(&mut self, at: ReferencePlace, rule: RulePlace, claim: &Claim) {
        match self.memory.load(at) {
            Reference::Nothing | Reference::Everything => {}
            Reference::Rule(other) => {
                if other == rule {
                    self.memory.publish(at, Reference::Nothing);
                }
            }
            Reference::List { block, count, goes_on } => {
                let then = ReferencePlace::Entry(block, LIST_RULES);
                let rules: Vec<RulePlace> = self.memory.list_rules(block, count).collect();
                let Some(entry) = rules.iter().position(|other| *other == rule) else {
                    if goes_on {
                        self.remove_at(then, rule, claim);
                    }
                    return;
                };
                if rules.iter().any(|other| ![rule, NEVER].contains(other)) {
                    self.memory.write_list_rule(block, entry, NEVER);
                } else {
                    let then = if goes_on { self.memory.load(then) } else { Reference::Nothing };
                    self.memory.publish(at, then);
                    self.memory.retire_block(block);
                }
            }
            Reference::Inner { block, nibble } => {
                for entry in claim.entries(nibble) {
                    self.remove_at(ReferencePlace::Entry(block, entry), rule, claim);
                }
                let is_empty = (0..BLOCK_ENTRIES)
                    .all(|entry| self.memory.load(ReferencePlace::Entry(block, entry)) == Reference::Nothing);
                if is_empty {
                    self.memory.publish(at, Reference::Nothing);
                    self.memory.retire_block(block);
                }
            }
        }
    }

    /// Builds what decides over some rules. The result is not published yet.
    fn build(&mut self, rules: &[RulePlace], depth: usize) -> Reference {
        if rules.len() <= LEAF_RULES || depth >= MAX_DEPTH {
            return self.leaf(rules);
        }
        let Some(nibble) = self.best_nibble(rules) else { return self.leaf(rules) };
        let (before, divided): (Vec<RulePlace>, Vec<RulePlace>) =
            rules.iter().partition(|rule| nibble.of(&self.claims[rule].0.mask) == 0);
        let (before, divided) =
            if before.len() <= MAX_BEFORE { (before, divided) } else { (Vec::new(), rules.to_vec()) };
        let lists = before.chunks(LIST_RULES);
        let Ok(block) = self.memory.new_block() else { return Reference::Everything };
        let depth = depth + lists.len() + 1;
        let mut entries = [Reference::Nothing; BLOCK_ENTRIES];
        for (entry, reference) in entries.iter_mut().enumerate() {
            let is_there = |rule: &&RulePlace| {
                let claim = &self.claims[*rule].0;
                entry & nibble.of(&claim.mask) == nibble.of(&claim.value)
            };
            let below: Vec<RulePlace> = divided.iter().filter(is_there).copied().collect();
            *reference = self.build(&below, depth);
        }
        let inner = self.memory.inner(block, nibble, &entries);
        self.lists(&before, inner)
    }

    /// Lists of rules that are compared before what `then` refers to.
    fn lists(&mut self, rules: &[RulePlace], then: Reference) -> Reference {
        rules.chunks(LIST_RULES).rev().fold(then, |then, rules| match self.memory.new_block() {
            Ok(block) => self.memory.list(block, rules, then),
            Err(_) => {
                // No program has seen it.
                self.retire(then);
                Reference::Everything
            }
        })
    }

    /// A chain of lists, as long as it is not too long.
    fn leaf(&mut self, rules: &[RulePlace]) -> Reference {
        match rules {
            [] => Reference::Nothing,
            [rule] => Reference::Rule(*rule),
            rules if rules.len() > MAX_CHAIN * LIST_RULES => Reference::Everything,
            rules => self.lists(rules, Reference::Nothing),
        }
    }

    /// The nibble that divides the rules best: for which the fewest of them are left to compare on average,
    /// those before the node included. `None` if none helps.
    fn best_nibble(&self, rules: &[RulePlace]) -> Option<Nibble> {
        let step = rules.len().div_ceil(SAMPLE_RULES);
        let sample: Vec<Claim> = rules.iter().step_by(step).map(|rule| self.claims[rule].0).collect();
        let cost = |nibble: Nibble| {
            let mut below = [0usize; BLOCK_ENTRIES];
            let mut open = 0;
            for claim in &sample {
                let (value, mask) = (nibble.of(&claim.value), nibble.of(&claim.mask));
                match mask {
                    0 => open += 1,
                    15 => below[value] += 1,
                    _ => claim.entries(nibble).for_each(|entry| below[entry] += 1),
                }
            }
            if step * open > MAX_BEFORE {
                below.iter_mut().for_each(|count| *count += open);
                open = 0;
            }
            let copies: usize = below.iter().sum();
            let divided = sample.len() - open;
            if divided == 0 || copies > MAX_COPIED * divided {
                return None;
            }
            // A packet of a claim meets, on average, so many claims, in 16ths.
            let met = below.iter().map(|count| count * count).sum::<usize>() * 16 / copies;
            Some(met + 16 * open + 4 * (copies - divided))
        };
        let (nibble, cost) =
            Nibble::all().filter_map(|nibble| Some((nibble, cost(nibble)?))).min_by_key(|(_, cost)| *cost)?;
        (cost < sample.len() * 15).then_some(nibble)
    }
}

#[cfg(test)]
impl Trees {
    /// The effect of a rule.
    pub(crate) fn effect_of(&self, rule: RulePlace) -> Effect {
        self.memory.effect_of(rule)
    }
}

#[cfg(test)]
pub(crate) mod tests;
