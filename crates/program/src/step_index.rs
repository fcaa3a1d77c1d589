//! An index of the steps of a class, so that a packet is compared with few of them however many there are.
//!
//! The index is a tree. A node divides the values of one field into parts, and each part has the steps that a packet
//! with such a value can match; a leaf is a short list of steps. The right result is the first step that matches:
//! - The field of a node is one that steps test. A packet that passes the test of a step has a value in the step's
//!   ranges, so the step is in the part of the value, and by induction in the leaf that the packet is led to. A step
//!   without a test of the field is in every part, or in a subtree of its own, which is searched as well.
//! - Leaves keep the order of the steps, and compare the packet with the whole predicate of each. So the index leaves
//!   out only steps that cannot match.
//!
//! Built when a program is published, with memory in proportion to the number of steps; a search does not allocate.

use std::collections::{BTreeSet, HashMap};

use packet::{DeepKey, Field, FlowKey, TunnelKey};

use crate::predicate::Predicate;
use crate::program::{Class, Decide, Outcome, Step};

/// Lists up to this length are not divided: comparing is as fast.
const LIST_MAX: usize = 4;
/// The most divisions on the way to a leaf.
const DEPTH_MAX: u32 = 8;
/// The places that a node may make for a step, on average.
const COPIES: usize = 16;
/// A division that leaves more than this part of the steps (in percent) is not worth its search.
const GAIN_PERCENT: usize = 75;

/// What a node asks of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Question {
    Packet(Value),
    Tunnel(Field),
    /// Of the packet inside the tunnel.
    Inner(Value),
}

/// A value of a packet's own headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Value {
    Field(Field),
    Src,
    Dst,
}

/// Ranges of values, both ends included; sorted and disjoint.
pub(crate) type Ranges = Vec<(u128, u128)>;

impl Value {
    #[inline]
    fn of(self, key: &FlowKey) -> u128 {
        match self {
            Self::Field(field) => field.in_packet(key),
            Self::Src => address(key.src_addr()),
            Self::Dst => address(key.dst_addr()),
        }
    }
}

impl Question {
    /// The value of a packet. Without a tunnel those of the tunnel are 0: no step that tests them matches.
    #[inline]
    fn answer(self, key: &FlowKey, tunnel: Option<&TunnelKey>) -> u128 {
        match self {
            Self::Packet(value) => value.of(key),
            Self::Tunnel(field) => tunnel.map_or(0, |tunnel| field.in_tunnel(tunnel)),
            Self::Inner(value) => tunnel.map_or(0, |tunnel| value.of(&tunnel.inner)),
        }
    }
}

/// Addresses of both versions share numbers: the predicate distinguishes them.
#[inline]
fn address(address: Option<std::net::IpAddr>) -> u128 {
    match address {
        Some(std::net::IpAddr::V4(address)) => address.to_bits().into(),
        Some(std::net::IpAddr::V6(address)) => address.to_bits(),
        None => 0,
    }
}

/// The index of one class.
#[derive(Clone, Debug)]
pub struct StepIndex {
    nodes: Vec<Node>,
    root: u32,
}

#[derive(Clone, Debug)]
enum Node {
    /// Steps in their order.
    List(Box<[u32]>),
    /// Part `n` begins with the value `starts[n]`; the first one with 0.
    Parts { question: Question, starts: Starts, children: Box<[u32]> },
    /// The steps of both.
    Both(u32, u32),
}

/// The first values of parts, without that of the first part.
#[derive(Clone, Debug)]
enum Starts {
    Words(Box<[u32]>),
    Wide(Box<[u128]>),
}

impl Starts {
    fn of(starts: &[u128]) -> Self {
        match starts.iter().map(|start| u32::try_from(*start)).collect::<Result<_, _>>() {
            Ok(words) => Self::Words(words),
            Err(_) => Self::Wide(starts.into()),
        }
    }

    /// The part that a value is in. A value beyond 32 bits is in the last part, if all parts begin below.
    #[inline]
    fn part(&self, value: u128) -> usize {
        match self {
            Self::Words(starts) => {
                let value = u32::try_from(value).unwrap_or(u32::MAX);
                starts.partition_point(|start| *start <= value)
            }
            Self::Wide(starts) => starts.partition_point(|start| *start <= value),
        }
    }
}

impl StepIndex {
    /// The index of a class; `None` if it has so few steps that comparing the packet with all of them is as fast.
    #[must_use]
    pub fn of(class: &Class) -> Option<Self> {
        let Decide::Software(steps, _) = &class.decide else { return None };
        if steps.len() <= 2 * LIST_MAX {
            return None;
        }
        Builder::new(steps).index()
    }

    /// As [`Class::resolve`], of the class that it was made of.
    #[must_use]
    #[inline]
    pub fn resolve(&self, class: &Class, key: &FlowKey) -> Outcome {
        self.first(class, |question| question.answer(key, None), |predicate| predicate.matches(key))
    }

    /// As [`Class::resolve_deep`], of the class that it was made of.
    #[must_use]
    #[inline]
    pub fn resolve_deep(&self, class: &Class, key: &DeepKey) -> Outcome {
        let DeepKey { outer, tunnel } = key;
        let answer = |question: Question| question.answer(outer, Some(tunnel));
        self.first(class, answer, |predicate| predicate.matches_deep(key))
    }

    #[inline]
    fn first(
        &self,
        class: &Class,
        answer: impl Fn(Question) -> u128,
        matches: impl Fn(&Predicate) -> bool,
    ) -> Outcome {
        match &class.decide {
            Decide::Exact(outcome) => *outcome,
            Decide::Software(steps, otherwise) => {
                let matches =
                    |step: u32| steps.get(step as usize).is_some_and(|step| matches(&step.predicate));
                let found = self.search(self.root, u32::MAX, &answer, &matches);
                steps.get(found as usize).map_or(*otherwise, |step| step.outcome)
            }
        }
    }

    /// The first step of a subtree that matches, if it is before `limit`; else `limit`.
    fn search(
        &self,
        mut node: u32,
        mut limit: u32,
        answer: &impl Fn(Question) -> u128,
        matches: &impl Fn(u32) -> bool,
    ) -> u32 {
        loop {
            match self.nodes.get(node as usize) {
                Some(Node::List(steps)) => {
                    let mut before = steps.iter().copied().take_while(|step| *step < limit);
                    return before.find(|step| matches(*step)).unwrap_or(limit);
                }
                Some(Node::Parts { question, starts, children }) => {
                    let Some(child) = children.get(starts.part(answer(*question))) else { return limit };
                    node = *child;
                }
                // At most as deep as there are divisions.
                Some(Node::Both(one, other)) => {
                    limit = self.search(*one, limit, answer, matches);
                    node = *other;
                }
                None => return limit,
            }
        }
    }
}

/// The parts of a question for some steps.
struct Division {
    question: Question,
    /// The number of steps that test it.
    testing: usize,
    parts: usize,
    /// The steps of all parts together.
    places: usize,
    /// The steps that remain for a packet: the average over the places.
    remaining: usize,
}

struct Builder {
    nodes: Vec<Node>,
    /// For each step the questions that it tests, with the values that pass.
    tests: Vec<HashMap<Question, Ranges>>,
    /// Leaves with the same steps are one.
    lists: HashMap<Vec<u32>, u32>,
    /// The places that may still be made.
    places_left: usize,
}

impl Builder {
    fn new(steps: &[Step]) -> Self {
        let tests = steps.iter().map(|step| step.predicate.ranges().collect()).collect();
        let places_left = 2 * COPIES * steps.len();
        Self { nodes: Vec::new(), tests, lists: HashMap::new(), places_left }
    }

    fn index(mut self) -> Option<StepIndex> {
        let all = 0..u32::try_from(self.tests.len()).ok()?;
        let root = self.node(all.collect(), 0);
        Some(StepIndex { nodes: self.nodes, root })
    }

    fn push(&mut self, node: Node) -> u32 {
        self.nodes.push(node);
        // Fewer nodes than places, of which there are a few for each of at most 2^20 steps.
        self.nodes.len() as u32 - 1
    }

    fn list(&mut self, steps: Vec<u32>) -> u32 {
        if let Some(known) = self.lists.get(&steps) {
            return *known;
        }
        let node = self.push(Node::List(steps.as_slice().into()));
        self.lists.insert(steps, node);
        node
    }

    fn node(&mut self, steps: Vec<u32>, depth: u32) -> u32 {
        if steps.len() <= LIST_MAX || depth == DEPTH_MAX {
            return self.list(steps);
        }
        let Some(division) = self.best_division(&steps) else { return self.list(steps) };
        let Division { question, testing, parts, places, .. } = division;
        let others = steps.len() - testing;
        let copies = parts * others;
        if others == 0 || places + copies <= COPIES * steps.len() {
            return self.parts(question, &steps, places + copies, depth);
        }
        let (with, without): (Vec<u32>, Vec<u32>) =
            steps.into_iter().partition(|step| self.tests[*step as usize].contains_key(&question));
        let with = self.parts(question, &with, places, depth);
        let without = self.node(without, depth + 1);
        self.push(Node::Both(with, without))
    }

    /// The question that leaves fewest steps, if it is worth asking and there is memory for it.
    fn best_division(&self, steps: &[u32]) -> Option<Division> {
        let tests = steps.iter().filter_map(|step| self.tests.get(*step as usize));
        let questions: BTreeSet<Question> = tests.flat_map(|tests| tests.keys().copied()).collect();
        let divisions = questions.into_iter().filter_map(|question| self.division(question, steps));
        let worth = divisions.filter(|division| {
            let places_max = self.places_left.min(COPIES * division.testing);
            division.places <= places_max && 100 * division.remaining <= GAIN_PERCENT * steps.len()
        });
        worth.min_by_key(|division| division.remaining)
    }

    fn division(&self, question: Question, steps: &[u32]) -> Option<Division> {
        let mut changes: Vec<(u128, i32)> = Vec::new();
        let mut testing = 0;
        for ranges in steps.iter().filter_map(|step| self.tests.get(*step as usize)?.get(&question)) {
            testing += 1;
            for (low, high) in ranges {
                changes.push((*low, 1));
                changes.extend(high.checked_add(1).map(|after| (after, -1)));
            }
        }
        if testing < 2 {
            return None;
        }
        changes.sort_unstable();
        let (mut parts, mut places, mut squares, mut now) = (1, 0, 0, 0i64);
        for same in changes.chunk_by(|one, other| one.0 == other.0) {
            now += same.iter().map(|(_, change)| i64::from(*change)).sum::<i64>();
            let size = usize::try_from(now).unwrap_or_default();
            parts += 1;
            places += size;
            squares += size * size;
        }
        let remaining = squares.div_ceil(places.max(1)) + (steps.len() - testing);
        Some(Division { question, testing, parts, places, remaining })
    }

    /// Divides `steps` by a question.
    fn parts(&mut self, question: Question, steps: &[u32], places: usize, depth: u32) -> u32 {
        self.places_left = self.places_left.saturating_sub(places);
        let everywhere = [(0, u128::MAX)];
        let ranges = |step: &u32| {
            let tests = self.tests.get(*step as usize).and_then(|tests| tests.get(&question));
            tests.map_or(&everywhere[..], Vec::as_slice)
        };
        let mut starts = BTreeSet::new();
        // By part, as its first value, the steps that it has.
        for (low, high) in steps.iter().flat_map(&ranges) {
            starts.insert(*low);
            starts.extend(high.checked_add(1));
        }
        starts.remove(&0);
        let starts: Vec<u128> = starts.into_iter().collect();
        let mut parts = vec![Vec::new(); starts.len() + 1];
        let part_of = |value: u128| starts.partition_point(|start| *start <= value);
        for step in steps {
            for (low, high) in ranges(step) {
                parts[part_of(*low)..=part_of(*high)].iter_mut().for_each(|part| part.push(*step));
            }
        }
        let children = parts.into_iter().map(|part| self.node(part, depth + 1)).collect();
        self.push(Node::Parts { question, starts: Starts::of(&starts), children })
    }
}

#[cfg(test)]
mod tests;
