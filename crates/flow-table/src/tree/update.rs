//! Adding a rule to built trees and removing it.
//!
//! Every leaf that frames of the rule can reach has the rule, or no leaf has and it is in the tuple space. A
//! run that several leaves refer to is never written to: leaves that change alike come to share another one.

use std::collections::HashMap;

use super::build::{Builder, MAX_LEAF, agreeing};
use super::pool::{Entry, LANES, Node, Run};
use super::search::TREES;
use super::view::{Bytes, View};
use super::{Class, Family, Rule, Tree};

/// The most leaves that a rule is added to.
pub(super) const MAX_COPIES: usize = 2048;

/// The most that one rule adds to what a tree owes for leaves that it has made longer.
const MAX_DEBT: usize = 8;

/// A leaf: its node, and the steps from the root.
type Leaf = (u32, usize);

impl Family {
    /// Adds a match that it does not have.
    pub(super) fn insert(&mut self, class: Class, rule: &Rule) {
        let (value, mask, ranked) = rule;
        self.len += 1;
        let bytes = Bytes::of(mask);
        if !self.view.bytes().contains(bytes) {
            if self.len > 1 {
                self.count_guest(class);
                // Nothing short of building anew makes the view wider; until then each frame pays for this
                // rule.
                self.debt += self.built + super::FEW;
                self.overflow.add(value, mask, *ranked);
                return;
            }
            *self = Self { len: 1, ..Self::with_view(View::new(bytes)) };
        }
        self.count_guest(class);
        let host = self.tree_of_class[usize::from(class)];
        let entry = self.entry(rule);
        if !self.add_to_leaves(host, &entry) {
            self.debt += 2;
            self.overflow.add(value, mask, *ranked);
        }
    }

    fn count_guest(&mut self, class: Class) {
        let host = self.tree_of_class[usize::from(class)];
        self.guests[usize::from(class)] += usize::from(host != class);
    }

    /// Removes a match and its first group.
    pub(super) fn remove(&mut self, class: Class, rule: &Rule) {
        let (value, mask, ranked) = rule;
        self.len -= 1;
        let host = self.tree_of_class[usize::from(class)];
        let guests = &mut self.guests[usize::from(class)];
        *guests = guests.saturating_sub(usize::from(host != class));
        if self.overflow.group_at(value, mask, ranked.precedence.level()).is_some() {
            self.overflow.remove(value, mask, *ranked);
        } else {
            self.cut_out(host, &self.entry(rule));
            if let Some(tree) = self.tree_mut(host) {
                tree.len -= 1;
            }
        }
    }

    /// Puts an entry into all leaves of its tree that it belongs to; false, and nothing has changed, if one
    /// has no room.
    fn add_to_leaves(&mut self, class: Class, entry: &Entry) -> bool {
        if !self.trees.iter().any(|tree| tree.class == class) {
            if self.trees.len() == TREES {
                return false;
            }
            let root = self.pool.take_nodes(0);
            self.pool.share(Run::EMPTY);
            self.pool.place(root, Node::leaf(Run::EMPTY));
            let place = self.trees.partition_point(|tree| tree.class > class);
            self.trees.insert(place, Tree { class, root, depth: 0, len: 0, built: 0, debt: 0 });
        }
        let leaves = self.leaves(class, entry, MAX_COPIES + 1);
        if leaves.len() > MAX_COPIES || self.pool.blocks() + leaves.len() > 2 * Self::max_blocks(self.len) {
            return false;
        }
        let mut replaced = HashMap::new();
        let debt = self.tree_mut(class).map(|tree| tree.debt);
        for leaf in leaves {
            if !self.add_to_leaf(class, leaf, entry, &mut replaced) {
                self.cut_out(class, entry);
                return false;
            }
        }
        if let (Some(tree), Some(before)) = (self.tree_mut(class), debt) {
            tree.len += 1;
            // A rule in very many leaves counts as a few changes: building anew does not put it into fewer.
            tree.debt = tree.debt.min(before + MAX_DEBT) + 1;
        }
        true
    }

    fn tree_mut(&mut self, class: Class) -> Option<&mut Tree> {
        self.trees.iter_mut().find(|tree| tree.class == class)
    }

    fn add_to_leaf(
        &mut self,
        class: Class,
        (leaf, depth): Leaf,
        entry: &Entry,
        replaced: &mut HashMap<Run, Run>,
    ) -> bool {
        let old = self.pool.nodes[leaf as usize].run();
        if let Some(new) = replaced.get(&old) {
            self.pool.share(*new);
            self.refer(leaf, old, *new);
            return true;
        }
        let mut entries = Vec::with_capacity(MAX_LEAF + 1);
        self.pool.read(old, &mut entries);
        entries.insert(entries.partition_point(|other| other.ranked < entry.ranked), *entry);
        let is_shared = self.pool.is_shared(old);
        if entries.len() > LANES && !is_shared && self.split(class, (leaf, depth), &entries) {
            return true;
        }
        if entries.len() > MAX_LEAF {
            return false;
        }
        if entries.len() > LANES
            && let Some(tree) = self.tree_mut(class)
        {
            tree.debt += 1;
        }
        if !is_shared && entries.len() <= old.blocks as usize * LANES {
            self.pool.write(old, &entries);
            return true;
        }
        let new = self.pool.new_run(&entries);
        self.refer(leaf, old, new);
        if is_shared {
            replaced.insert(old, new);
        }
        true
    }

    /// Makes an inner node of a leaf with these entries, if some bits tell them apart.
    fn split(&mut self, class: Class, (leaf, depth): Leaf, entries: &[Entry]) -> bool {
        let old = self.pool.nodes[leaf as usize];
        let numbers: Vec<u32> = (0..).take(entries.len()).collect();
        let max_blocks = 2 * Self::max_blocks(self.len);
        let mut builder = Builder::new(entries, &mut self.pool, max_blocks);
        if !builder.split(leaf, &numbers, depth) {
            return false;
        }
        let reached = builder.depth;
        self.pool.leave(old.run());
        self.depth = self.depth.max(reached);
        if let Some(tree) = self.tree_mut(class) {
            tree.depth = tree.depth.max(reached);
        }
        true
    }

    /// Builds the tree of a class anew, from the entries in its leaves, if that makes it faster.
    pub(super) fn rebuild_tree(&mut self, class: Class) {
        let class = self.tree_of_class[usize::from(class)];
        let Some(at) = self.trees.iter().position(|tree| tree.class == class && tree.wants_rebuild()) else {
            return;
        };
        let root = self.trees[at].root;
        let entries = self.pool.take_tree(root);
        let max_blocks = 2 * Self::max_blocks(self.len);
        let mut builder = Builder::new(&entries, &mut self.pool, max_blocks);
        builder.build(root, (0..entries.len() as u32).collect(), 0);
        let (mut evicted, depth) = (builder.evicted, builder.depth);
        let len = entries.len();
        self.trees[at] = Tree { class, root, depth, len, built: len, debt: 0 };
        self.depth = self.trees.iter().map(|tree| tree.depth).max().unwrap_or(0);
        evicted.sort_unstable();
        evicted.dedup();
        for number in evicted {
            let entry = &entries[number as usize];
            self.cut_out(class, entry);
            self.trees[at].len -= 1;
            self.overflow.add(
                &self.view.restored(&entry.value),
                &self.view.restored(&entry.mask),
                entry.ranked,
            );
        }
    }

    /// Removes an entry from all leaves that have it.
    pub(super) fn cut_out(&mut self, class: Class, entry: &Entry) {
        let mut replaced = HashMap::new();
        let mut entries = Vec::new();
        for (leaf, _) in self.leaves(class, entry, usize::MAX) {
            let old = self.pool.nodes[leaf as usize].run();
            if let Some(new) = replaced.get(&old) {
                self.pool.share(*new);
                self.refer(leaf, old, *new);
                continue;
            }
            self.pool.read(old, &mut entries);
            let Some(at) = entries.iter().position(|other| other.is_like(entry)) else { continue };
            entries.remove(at);
            let new = self.pool.new_run(&entries);
            if self.pool.is_shared(old) {
                replaced.insert(old, new);
            }
            self.refer(leaf, old, new);
        }
    }

    /// Has a leaf refer to another run, in which it is counted already.
    fn refer(&mut self, leaf: u32, old: Run, new: Run) {
        self.pool.place(leaf, Node::leaf(new));
        self.pool.leave(old);
    }

    /// The first leaves that an entry belongs to.
    fn leaves(&self, class: Class, entry: &Entry, most: usize) -> Vec<Leaf> {
        let mut leaves = Vec::new();
        let Some(tree) = self.trees.iter().find(|tree| tree.class == class) else { return leaves };
        let mut open = vec![(tree.root, 0)];
        while let Some((at, depth)) = open.pop() {
            let node = self.pool.nodes[at as usize];
            if node.is_leaf() {
                leaves.push((at, depth));
                if leaves.len() == most {
                    break;
                }
                continue;
            }
            let word = node.word();
            let children = agreeing(entry.value[word], entry.mask[word], node.mask);
            open.extend(children.map(|child| (node.base + child as u32, depth + 1)));
        }
        leaves
    }
}
