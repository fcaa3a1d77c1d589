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
//! One index serves all classes that take their steps from one list: a step that a class does not have is
//! passed over. Built when a program is published, with memory in proportion to the number of steps; a search
//! does not allocate.

mod build;
mod outline;

use std::sync::Arc;

use packet::{DeepKey, FlowKey};

use crate::outcome::{Outcome, Step};
use crate::predicate::Predicate;
use crate::program::{Class, Decide};
use crate::question::Question;
use crate::steps::{StepList, Steps};
use outline::{Columns, Outline, OutlineKey};

/// Lists up to this length are not divided: comparing is as fast.
const LIST_MAX: usize = 8;

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

/// A class as a worker looks it up.
#[derive(Clone, Debug)]
pub struct ClassIndex {
    list: Arc<StepList>,
}

impl ClassIndex {
    /// The index of a class, which it shares with the other classes of its list; `None` if it has so few
    /// steps that comparing the packet with all of them is as fast. The first call for a list makes its
    /// index.
    #[must_use]
    pub fn of(class: &Class) -> Option<Self> {
        let Decide::Software(steps, _) = &class.decide else { return None };
        if !Self::serves(class) {
            return None;
        }
        steps.list().index();
        Some(Self { list: Arc::clone(steps.list()) })
    }

    /// Whether there is an index for a class: it has more than a few steps.
    #[must_use]
    pub fn serves(class: &Class) -> bool {
        matches!(&class.decide, Decide::Software(steps, _) if steps.len() > LIST_MAX)
    }

    /// Resolves a packet as [`Class::resolve`] does, for the class that the index was made of.
    #[must_use]
    #[inline]
    pub fn resolve(&self, class: &Class, key: &FlowKey) -> Outcome {
        let answer = |question: Question| question.answer(key, None);
        self.first(class, key, answer, |predicate| predicate.matches(key))
    }

    /// Resolves a packet as [`Class::resolve_deep`] does, for the class that the index was made of.
    #[must_use]
    #[inline]
    pub fn resolve_deep(&self, class: &Class, key: &DeepKey) -> Outcome {
        let DeepKey { outer, tunnel } = key;
        let answer = |question: Question| question.answer(outer, Some(tunnel));
        self.first(class, outer, answer, |predicate| predicate.matches_deep(key))
    }

    #[inline]
    fn first(
        &self,
        class: &Class,
        key: &FlowKey,
        answer: impl Fn(Question) -> u128,
        matches: impl Fn(&Predicate) -> bool,
    ) -> Outcome {
        match &class.decide {
            Decide::Exact(outcome) => *outcome,
            Decide::Software(steps, otherwise) => {
                let index = self.list.index();
                let found = index.search(self.list.steps(), steps, key, &answer, &matches);
                found.map_or(*otherwise, |step| step.outcome)
            }
        }
    }
}

impl StepIndex {
    /// The first of the class's steps that matches.
    #[inline]
    fn search<'s>(
        &self,
        list: &'s [Step],
        class: &Steps,
        key: &FlowKey,
        answer: &impl Fn(Question) -> u128,
        matches: &impl Fn(&Predicate) -> bool,
    ) -> Option<&'s Step> {
        let sight = OutlineKey::of(key, &self.columns);
        let matches = |step: u32| {
            self.outlines.get(step as usize).is_some_and(|outline| {
                outline.may_match(&sight)
                    && class.contains(step)
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
