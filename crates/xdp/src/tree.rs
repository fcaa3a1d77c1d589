//! The decision trees of the claims: how they are built and changed while the program reads them.
//!
//! There is a tree for each class of claims ([`class_of`]), by whether they may drop packets, and by whether
//! a claim masks much of the destination address and of the source address: claims that leave one open would
//! otherwise be copied into most leaves of a tree that divides by it. Trees of claims that mask both are
//! searched first: rule sets usually have specific rules before general ones, and trees whose claims all
//! come after the one that was found are skipped.
//!
//! An inner node divides by four bits of the image. Claims that do not mask these bits are copied to all of
//! its entries, or, if they are few, compared before it, in a *list*. A leaf is a list. Where neither helps,
//! because the claims have no bits in common, up to [`MAX_CHAIN`] lists follow each other; beyond that, and
//! where there are no more blocks, the place is *widened*: everything that gets there is redirected.
//!
//! Copies save comparisons and cost blocks. So a tree is built with a number of blocks that it may take: each
//! node chooses the division by which the fewest rules are left to compare, among those for which the leaves
//! below it have blocks, and divides what is left over by the rules that its entries get.
//!
//! A claim that is added is put into the tree that is there, which gets worse by it. Building the tree anew
//! takes some microseconds for each claim, so it is left to [`Trees::improve`], when no more claims come. A
//! tree that has changed much is built anew at once, of few blocks ([`HASTY_BLOCKS_PER_RULE`]).
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
//! follows one path in each tree. The search must load the count before and after everything else. x86 keeps
//! the order of loads; elsewhere a barrier follows the first load of the count and precedes the second. The
//! process counts a change before it stores it: all stores to memory that a reference leads to have release
//! order.
//!
//! # Why there is a second builder beside that of `flow-table`
//! The trees of `flow-table` answer which claim comes first, by leaves that AVX-512 compares at once, over
//! the bytes that a family of rules looks at. They are changed in place in one of two copies, which readers
//! have left. The program needs the first of the claims that may drop, and whether one of the others comes
//! before it; it cannot use vectors, reads single words, and cannot be made to leave: it needs nodes that are
//! changed only by one store of a whole entry where they can be read. What both could share is the choice of
//! the bits that divide best, which is some thirty lines here.

use std::collections::HashMap;

use packet::cube::{DST_IPV4, DST_MAC, HAS_IPV4, HAS_IPV6, LEVEL_WORDS, SRC_IPV4, SRC_MAC};

use crate::blocks::{BLOCK_ENTRIES, BlockPlace, Effect, LIST_RULES, NEVER, Nibble, ROOTS, Reference};
use crate::blocks::{ReferencePlace, RulePlace, TreeMemory};

/// References that the program follows at most for each tree: inner nodes, each with a list before it, and a
/// chain of lists with a last reference.
pub(crate) const MAX_STEPS: usize = 2 * MAX_DEPTH + MAX_CHAIN + 1;
/// Rules that are not worth an inner node.
const LEAF_RULES: usize = 2;
/// Rules of a leaf that a later one makes an inner node of.
const LEAF_RULES_MAX: usize = 8;
/// Blocks for each rule that a tree may have when it is built, if there are so many.
const BLOCKS_PER_RULE: usize = 8;
/// Blocks for each rule of a tree that is built while claims are added: with fewer it is built sooner.
const HASTY_BLOCKS_PER_RULE: usize = 1;
/// Inner nodes of a path.
const MAX_DEPTH: usize = 16;
/// Lists that follow each other in a leaf when it is built. Those of rules that are added later may follow
/// them; where the program cannot follow them all it redirects.
const MAX_CHAIN: usize = 4;
/// The most rules of a leaf when it is built.
const LEAF_MAX: usize = MAX_CHAIN * LIST_RULES;
/// Rules that may be compared before an inner node rather than copied to its entries, when a tree is built.
const MAX_BEFORE: usize = LIST_RULES;
/// Rules that may be compared before an inner node when one of them is added to a tree.
const ADDED_BEFORE: usize = 4;
/// Entries that a rule is copied to on average when rules are divided without blocks for their leaves.
const MAX_COPIED: usize = 2;
/// Rules that the choice of an inner node looks at.
const SAMPLE_RULES: usize = 128;
/// A tree is built anew at once after this many changes, and twice the claims that it was built of: others
/// may have made it large. A claim that is added changes a tree in every place that it is put.
const MANY_CHANGES: usize = 256;
/// A tree is worth building anew when nothing else is to be done after this many changes, and an eighth of
/// the claims that it was built of.
const FEW_CHANGES: usize = 8;
/// Address bits from which on a claim is about an address, for IPv6 twice as many.
const ADDRESS_BITS: u32 = 12;

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

/// The class of a claim among those that may drop, or among the others, in the order of their search.
fn class_of(claim: &Claim) -> usize {
    let mask = &claim.mask;
    let layers = mask[HAS_IPV4.word()];
    let is_v6 = layers >> HAS_IPV6.shift() & 1 == 1;
    let (dst, src, least) = if is_v6 || layers >> HAS_IPV4.shift() & 1 == 1 {
        (mask[DST_IPV4.word()], mask[SRC_IPV4.word()], if is_v6 { 2 * ADDRESS_BITS } else { ADDRESS_BITS })
    } else {
        (mask[DST_MAC.word()] >> DST_MAC.shift(), mask[SRC_MAC.word()] >> SRC_MAC.shift(), ADDRESS_BITS)
    };
    usize::from(dst.count_ones() < least) | usize::from(src.count_ones() < least) << 1
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
    /// The tree was built while claims were added, of few blocks.
    is_hasty: bool,
}

impl TreeState {
    /// A tree of so many claims, just built.
    fn built(claims: usize, first: u32) -> Self {
        Self { first, built: claims, changes: 0, is_hasty: false }
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
        if !self.is_rebuilt(class) {
            self.states[class].changes += self.add_at(ReferencePlace::Root(class), rule, 0);
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
        self.states[class].changes += 1;
        if !self.is_rebuilt(class) {
            self.remove_at(ReferencePlace::Root(class), rule, &claim);
        }
        self.memory.settle();
        self.memory.retire_rule(rule);
    }

    /// The number of places where everything is redirected. Walks through all trees.
    pub(crate) fn widened(&self) -> usize {
        (0..ROOTS).map(|class| self.widened_below(self.memory.load(ReferencePlace::Root(class)), 1)).sum()
    }

    /// The blocks of all trees.
    pub(crate) fn blocks(&self) -> usize {
        self.memory.used_blocks()
    }

    /// The widened places that a reference leads to, which is the `step`-th of its path.
    fn widened_below(&self, reference: Reference, step: usize) -> usize {
        let (block, entries) = match reference {
            Reference::Nothing => return 0,
            // The program does not follow it.
            _ if step > MAX_STEPS => return 1,
            Reference::Everything => return 1,
            Reference::Rule(_) | Reference::List { goes_on: false, .. } => return 0,
            Reference::List { block, .. } => (block, LIST_RULES..BLOCK_ENTRIES),
            Reference::Inner { block, .. } => (block, 0..BLOCK_ENTRIES),
        };
        let below = entries.map(|entry| self.memory.load(ReferencePlace::Entry(block, entry)));
        below.map(|reference| self.widened_below(reference, step + 1)).sum()
    }

    /// Returns whether some tree leads an image to a place where everything is redirected, unless another
    /// tree decides before.
    pub(crate) fn leads_beyond(&self, image: &Image) -> bool {
        (0..ROOTS).any(|class| {
            let mut at = ReferencePlace::Root(class);
            for _ in 0..MAX_STEPS {
                at = match self.memory.load(at) {
                    Reference::Everything => return true,
                    Reference::Nothing | Reference::Rule(_) | Reference::List { goes_on: false, .. } => {
                        return false;
                    }
                    Reference::List { block, .. } => ReferencePlace::Entry(block, LIST_RULES),
                    Reference::Inner { block, nibble } => ReferencePlace::Entry(block, nibble.of(image)),
                }
            }
            true
        })
    }

    /// Builds a tree anew of its claims if it has changed enough. Returns whether it did.
    fn is_rebuilt(&mut self, class: usize) -> bool {
        let TreeState { changes, built, .. } = self.states[class];
        let is_due = changes > MANY_CHANGES + 2 * built;
        if is_due {
            self.rebuild(class, HASTY_BLOCKS_PER_RULE);
            self.states[class].is_hasty = true;
        }
        is_due
    }

    fn rebuild(&mut self, class: usize, blocks_per_rule: usize) {
        let root = ReferencePlace::Root(class);
        let rules = self.rules_of(class);
        if self.memory.spare_blocks() < rules.len() {
            // There may be no room for the old and the new tree together.
            self.replace(root, Reference::Everything);
        }
        let room = (self.memory.spare_blocks() / 2).min(blocks_per_rule * rules.len());
        let tree = self.build(&rules, 0, room);
        self.replace(root, tree);
        self.note_built(class, &rules);
    }

    fn rules_of(&self, class: usize) -> Vec<ClaimedRule> {
        let of_tree = self.claims.iter().filter(|(_, (_, tree))| *tree == class);
        let mut rules: Vec<ClaimedRule> =
            of_tree.map(|(rule, (claim, _))| ClaimedRule { rule: *rule, claim: *claim }).collect();
        // The same claims make the same tree.
        rules.sort_unstable_by_key(|rule| rule.rule);
        rules
    }

    fn note_built(&mut self, class: usize, rules: &[ClaimedRule]) {
        let precedences = rules.iter().map(|rule| self.memory.effect_of(rule.rule).precedence);
        self.states[class] = TreeState::built(rules.len(), precedences.min().unwrap_or(u32::MAX));
        self.memory.set_first(class, self.states[class].first);
    }

    /// The first tree that has changed since it was built, or was built of few blocks.
    fn changed_tree(&self) -> Option<usize> {
        let has_changed = |state: &TreeState| state.is_hasty || state.changes > FEW_CHANGES + state.built / 8;
        self.states.iter().position(has_changed)
    }

    /// Returns whether [`Trees::improve`] has something to do.
    pub(crate) fn can_improve(&self) -> bool {
        self.changed_tree().is_some()
    }

    /// Builds a tree anew that has changed since it was built, so that the program compares fewer rules.
    /// Leaves it as it is if the new one does not fit beside it or is not as exact. Returns whether there was
    /// one.
    pub(crate) fn improve(&mut self) -> bool {
        let Some(class) = self.changed_tree() else { return false };
        let root = ReferencePlace::Root(class);
        let rules = self.rules_of(class);
        // A block for each claim that is there stays free for claims to come.
        let spare = self.memory.spare_blocks().saturating_sub(self.claims.len());
        let room = spare.min(BLOCKS_PER_RULE * rules.len());
        let old = self.memory.load(root);
        let tree = if room < rules.len() { Reference::Everything } else { self.build(&rules, 0, room) };
        if self.widened_below(tree, 1) > self.widened_below(old, 1) {
            // No program has seen it.
            self.retire(tree);
            let first = self.states[class].first;
            self.states[class] = TreeState::built(rules.len(), first);
        } else {
            self.replace(root, tree);
            self.note_built(class, &rules);
        }
        true
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

    /// Adds a rule below a reference that `depth` inner nodes lead to. Returns the number of places where it
    /// is then.
    fn add_at(&mut self, at: ReferencePlace, rule: RulePlace, depth: usize) -> usize {
        let claim = self.claims[&rule].0;
        match self.memory.load(at) {
            Reference::Everything => {}
            Reference::Nothing => self.memory.publish(at, Reference::Rule(rule)),
            Reference::Rule(other) => {
                let leaf = self.leaf(&[other, rule].map(|rule| self.claimed(rule)));
                self.memory.publish(at, leaf);
            }
            Reference::List { block, count, goes_on: false } => {
                if !self.put_into(at, block, count, false, LEAF_RULES_MAX, rule) {
                    let others = self.memory.list_rules(block, count).chain([rule]);
                    let rules: Vec<_> = others.map(|rule| self.claimed(rule)).collect();
                    let subtree = self.build(&rules, depth, HASTY_BLOCKS_PER_RULE * rules.len());
                    self.replace(at, subtree);
                }
            }
            Reference::List { block, count, goes_on: true } => {
                let then = ReferencePlace::Entry(block, LIST_RULES);
                let most = if self.is_open(then, &claim) { ADDED_BEFORE } else { 0 };
                if !self.put_into(at, block, count, true, most, rule) {
                    return self.add_below(then, rule, depth);
                }
            }
            Reference::Inner { .. } if self.is_open(at, &claim) => self.put_before(at, rule),
            Reference::Inner { .. } => return self.add_below(at, rule, depth),
        }
        1
    }

    /// Adds a rule to the entries of an inner node that it may select, without a list before it.
    fn add_below(&mut self, at: ReferencePlace, rule: RulePlace, depth: usize) -> usize {
        let Reference::Inner { block, nibble } = self.memory.load(at) else {
            return self.add_at(at, rule, depth);
        };
        let entries = self.claims[&rule].0.entries(nibble);
        entries.map(|entry| self.add_at(ReferencePlace::Entry(block, entry), rule, depth + 1)).sum()
    }

    /// Returns whether an inner node divides by bits that a claim does not mask.
    fn is_open(&self, at: ReferencePlace, claim: &Claim) -> bool {
        matches!(self.memory.load(at), Reference::Inner { nibble, .. } if nibble.of(&claim.mask) == 0)
    }

    /// Puts a list of one rule before what a reference leads to.
    fn put_before(&mut self, at: ReferencePlace, rule: RulePlace) {
        let then = self.memory.load(at);
        match self.memory.new_block() {
            Ok(block) => {
                let list = self.memory.list(block, [rule].into_iter(), then);
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

    /// Builds what decides over some rules, of as many blocks if that can be. The result is not published.
    fn build(&mut self, rules: &[ClaimedRule], depth: usize, room: usize) -> Reference {
        if rules.len() <= LEAF_RULES || depth >= MAX_DEPTH {
            return self.leaf(rules);
        }
        let Some(Division { nibble, has_open_before }) = best_division(rules, room) else {
            return self.leaf(rules);
        };
        let (mut before, mut below) = (Vec::new(), [const { Vec::new() }; BLOCK_ENTRIES]);
        for rule in rules {
            if has_open_before && nibble.of(&rule.claim.mask) == 0 {
                before.push(*rule);
            } else {
                rule.claim.entries(nibble).for_each(|entry| below[entry].push(*rule));
            }
        }
        let Ok(block) = self.memory.new_block() else { return Reference::Everything };
        let lists = before.len().div_ceil(LIST_RULES);
        let least: usize = below.iter().map(|rules| leaf_blocks(rules.len())).sum();
        let copies: usize = below.iter().map(Vec::len).sum();
        let spare = room.saturating_sub(1 + lists + least);
        let entries = below.map(|rules| {
            let room = leaf_blocks(rules.len()) + spare * rules.len() / copies.max(1);
            self.build(&rules, depth + 1, room)
        });
        let inner = self.memory.inner(block, nibble, &entries);
        self.lists(&before, inner)
    }

    /// Lists of rules that are compared before what `then` refers to.
    fn lists(&mut self, rules: &[ClaimedRule], then: Reference) -> Reference {
        rules.chunks(LIST_RULES).rev().fold(then, |then, rules| match self.memory.new_block() {
            Ok(block) => self.memory.list(block, rules.iter().map(|rule| rule.rule), then),
            Err(_) => {
                // No program has seen it.
                self.retire(then);
                Reference::Everything
            }
        })
    }

    /// A chain of lists, as long as it is not too long.
    fn leaf(&mut self, rules: &[ClaimedRule]) -> Reference {
        match rules {
            [] => Reference::Nothing,
            [rule] => Reference::Rule(rule.rule),
            rules if rules.len() > LEAF_MAX => Reference::Everything,
            rules => self.lists(rules, Reference::Nothing),
        }
    }

    /// A rule that is in the trees.
    fn claimed(&self, rule: RulePlace) -> ClaimedRule {
        ClaimedRule { rule, claim: self.claims[&rule].0 }
    }
}

/// A rule with its claim, to build trees of.
#[derive(Clone, Copy, Debug)]
struct ClaimedRule {
    rule: RulePlace,
    claim: Claim,
}

/// The division after which the fewest rules are left to compare on average, those before the node included,
/// of those for which the blocks suffice; or, of rules that are too many for a leaf, that copy few. `None` if
/// none helps.
fn best_division(rules: &[ClaimedRule], room: usize) -> Option<Division> {
    let step = rules.len().div_ceil(SAMPLE_RULES);
    let sample = || rules.iter().step_by(step).map(|rule| &rule.claim);
    let mut masked = [0; LEVEL_WORDS];
    for claim in sample() {
        masked.iter_mut().zip(claim.mask).for_each(|(word, mask)| *word |= mask);
    }
    let is_leaf = rules.len() <= LEAF_MAX;
    let most_copies = if is_leaf { 0 } else { MAX_COPIED * rules.len() };
    let divisions = Nibble::all().filter(|nibble| nibble.of(&masked) != 0).flat_map(|nibble| {
        let entries = Entries::of(sample(), nibble, step);
        let variants = if entries.open == 0 { &[false][..] } else { &[true, false] };
        variants.iter().filter_map(move |&has_open_before| {
            Some((Division { nibble, has_open_before }, entries.cost(has_open_before, room, most_copies)?))
        })
    });
    let (division, cost) = divisions.min_by_key(|(_, cost)| *cost)?;
    (cost < rules.len() * if is_leaf { 15 } else { 16 }).then_some(division)
}

/// How an inner node divides rules.
#[derive(Clone, Copy, Debug)]
struct Division {
    nibble: Nibble,
    /// Rules that mask no bit of it are compared before it, and not copied to all of its entries.
    has_open_before: bool,
}

/// How many rules each entry of an inner node would get.
#[derive(Clone, Copy, Debug)]
struct Entries {
    rules: [usize; BLOCK_ENTRIES],
    /// Rules that mask no bit of the nibble, which are not among them.
    open: usize,
}

impl Entries {
    /// Estimates the entries from a sample, which has each `step`-th rule.
    fn of<'c>(sample: impl Iterator<Item = &'c Claim>, nibble: Nibble, step: usize) -> Self {
        let mut entries = Self { rules: [0; BLOCK_ENTRIES], open: 0 };
        for claim in sample {
            match nibble.of(&claim.mask) {
                0 => entries.open += step,
                15 => entries.rules[nibble.of(&claim.value)] += step,
                _ => claim.entries(nibble).for_each(|entry| entries.rules[entry] += step),
            }
        }
        entries
    }

    /// The cost of the division, in 16ths of a comparison: the rules that a packet of one of them is compared
    /// with on average, half as much again for those before the node. `None` if there may not
    /// be so many before the node, or if their leaves need more blocks than there are and there are more
    /// copies than that.
    fn cost(&self, has_open_before: bool, room: usize, most_copies: usize) -> Option<usize> {
        let (before, copied) = if has_open_before { (self.open, 0) } else { (0, self.open) };
        let below = self.rules.map(|rules| rules + copied);
        let blocks = 1 + before.div_ceil(LIST_RULES) + below.map(leaf_blocks).iter().sum::<usize>();
        let copies: usize = below.iter().sum();
        if before > MAX_BEFORE || (blocks > room && copies > most_copies) {
            return None;
        }
        let met = below.iter().map(|count| count * count).sum::<usize>() * 16 / copies.max(1);
        // Those before it are not divided any further.
        Some(met + 24 * before)
    }
}

/// The blocks of a leaf of so many rules.
fn leaf_blocks(rules: usize) -> usize {
    if rules <= 1 { 0 } else { rules.div_ceil(LIST_RULES) }
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
