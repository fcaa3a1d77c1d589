//! An index of steps, so that a packet is compared with few of them however many there are.
//!
//! The index is a tree. A node divides the values of one field into parts, and each part has the steps that a
//! packet with such a value can match; a leaf is a short list of steps. The right result is the first step
//! that matches:
//! - The field of a node is one that steps test. A packet that passes the test of a step has a value in the
//!   step's ranges, so the step is in the part of the value, and by induction in the leaf that the packet is
//!   led to. A step that would be in too many parts, such as one without a test of the field, is in every
//!   part or in a subtree of its own, which is searched as well.
//! - Leaves keep the order of the steps. [`Outline`] excludes only steps that cannot match, and what remains
//!   is compared as a whole. So the index leaves out only steps that cannot match.
//!
//! Values are aligned to the left, whatever the width of their field: where ranges begin at multiples of a
//! large power of two, as prefixes and ports do, nodes compare 32 bits only.
//!
//! One index serves all classes that take their steps from one list: a step that is no member is passed over.
//! Built when a program is published, with memory in proportion to the number of steps; a search
//! does not allocate.

mod build;
mod outline;

use packet::FlowKey;

use crate::outcome::Step;
use crate::predicate::Predicate;
use crate::question::Question;
use outline::{Columns, Outline, OutlineKey};

/// Lists up to this length are not divided: comparing is as fast.
pub(crate) const LIST_MAX: usize = 8;

/// The index of a list of steps.
#[derive(Debug)]
pub(crate) struct StepIndex {
    columns: Columns,
    /// The outlines, by step.
    outlines: Vec<Outline>,
    nodes: Vec<Node>,
    /// The steps of all leaves, the children of all divisions, and the first values of their parts by width.
    lists: Vec<u32>,
    children: Vec<Child>,
    words: Vec<u32>,
    halves: Vec<u64>,
    wide: Vec<u128>,
    root: Child,
}

#[derive(Clone, Copy, Debug)]
enum Node {
    /// A value is in the part with the number of starts that are not above it.
    Parts { question: Question, starts: Starts, children: u32 },
    /// The steps of both, and the first step of the other.
    Both { one: Child, other: Child, first: u32 },
}

/// Where the first values of parts are, except that of the first part; all are zero beyond so many bits from
/// the left.
#[derive(Clone, Copy, Debug)]
enum Starts {
    /// In `words`, after the guide: the number of starts that are below each value of the first `bits` bits,
    /// and that of all.
    Words {
        guide: u32,
        bits: u32,
    },
    Halves {
        at: u32,
        len: u32,
    },
    Wide {
        at: u32,
        len: u32,
    },
}

/// A node, a list of steps, or one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Child(u32);

impl Child {
    const LIST: u32 = 1 << 31;
    const STEP: u32 = 3 << 30;
}

/// The end of a list.
const END: u32 = u32::MAX;

impl StepIndex {
    /// The first step of the list that is a member and matches.
    #[inline]
    pub(crate) fn search<'s>(
        &self,
        list: &'s [Step],
        key: &FlowKey,
        is_member: impl Fn(u32) -> bool,
        answer: &impl Fn(Question) -> u128,
        matches: &impl Fn(&Predicate) -> bool,
    ) -> Option<&'s Step> {
        let sight = OutlineKey::of(key, &self.columns);
        let matches = |step: u32| {
            self.outlines.get(step as usize).is_some_and(|outline| {
                outline.may_match(&sight)
                    && is_member(step)
                    && (outline.is_exact
                        || list.get(step as usize).is_some_and(|step| matches(&step.predicate)))
            })
        };
        list.get(self.first(self.root, END, answer, &matches) as usize)
    }

    /// The first step of a subtree that matches, if it is before `limit`; else `limit`.
    fn first(
        &self,
        mut child: Child,
        mut limit: u32,
        answer: &impl Fn(Question) -> u128,
        matches: &impl Fn(u32) -> bool,
    ) -> u32 {
        loop {
            if child.0 >= Child::STEP {
                let step = child.0 & !Child::STEP;
                return if step < limit && matches(step) { step } else { limit };
            }
            if child.0 >= Child::LIST {
                let steps = self.lists.get((child.0 & !Child::LIST) as usize..).unwrap_or_default();
                // The end of the list is not before any limit.
                let mut before = steps.iter().copied().take_while(|step| *step < limit);
                return before.find(|step| matches(*step)).unwrap_or(limit);
            }
            match self.nodes.get(child.0 as usize) {
                Some(Node::Parts { question, starts, children }) => {
                    let part = self.part(*starts, answer(*question));
                    let Some(next) = self.children.get(*children as usize + part) else { return limit };
                    child = *next;
                }
                // At most as deep as there are divisions.
                Some(Node::Both { one, other, first }) => {
                    limit = self.first(*one, limit, answer, matches);
                    if *first >= limit {
                        return limit;
                    }
                    child = *other;
                }
                None => return limit,
            }
        }
    }

    /// The part of a value. Starts are zero beyond their width, so that comparing the upper bits is enough.
    #[inline]
    fn part(&self, starts: Starts, value: u128) -> usize {
        let within = |at: u32, len: u32| at as usize..(at + len) as usize;
        match starts {
            Starts::Words { guide, bits } => {
                let value = (value >> (u128::BITS - u32::BITS)) as u32;
                let slot = (u64::from(value) << bits >> u32::BITS) as usize;
                let slots = (1usize << bits) + 1;
                let guide = self.words.get(guide as usize..).unwrap_or_default();
                let (Some(from), Some(to)) = (guide.get(slot), guide.get(slot + 1)) else { return 0 };
                let some = guide.get(slots + *from as usize..slots + *to as usize).unwrap_or_default();
                *from as usize + some.partition_point(|start| *start <= value)
            }
            Starts::Halves { at, len } => {
                let value = (value >> u64::BITS) as u64;
                let starts = self.halves.get(within(at, len)).unwrap_or_default();
                starts.partition_point(|start| *start <= value)
            }
            Starts::Wide { at, len } => {
                let starts = self.wide.get(within(at, len)).unwrap_or_default();
                starts.partition_point(|start| *start <= value)
            }
        }
    }
}

#[cfg(test)]
mod tests;
