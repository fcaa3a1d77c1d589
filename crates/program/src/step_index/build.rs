//! Making an index: which field a node asks for, and which steps are worth a copy in every part.

use std::collections::HashMap;

use super::outline::{Outline, columns};
use super::{Child, END, LIST_MAX, Node, Starts, StepIndex};
use crate::outcome::Step;
use crate::question::{Question, Ranges};

/// The most divisions on the way to a leaf.
const DEPTH_MAX: u32 = 16;
/// The places of a list that an index may have for each range of a step, on average.
const COPIES: f64 = 16.0;
/// The limit on copies by one division, unless none is worth it otherwise.
const COPIES_OF_DIVISION: f64 = 3.0;
/// A division that leaves more than this part of its steps (in percent) is not worth its search.
const GAIN_PERCENT: usize = 85;
/// One that applies to less than this part of the steps is not worth the search of two subtrees.
const SHARE_MIN: f64 = 1.0 / 24.0;
/// How many steps are looked at to choose a question.
const SAMPLE: usize = 512;

/// Bits that a guide tells apart, at most.
const GUIDE_BITS_MAX: u32 = 12;

/// The effect of a question on some steps.
struct Division {
    question: Question,
    /// The expected cost of a search, in comparisons.
    cost: f64,
}

struct Builder {
    index: StepIndex,
    /// For each step the questions that it tests, with the values that pass.
    tests: Vec<Vec<(Question, Ranges)>>,
    /// Subtrees with the same steps are one.
    known: HashMap<Vec<u32>, Child>,
}

impl StepIndex {
    pub(crate) fn build(steps: &[Step]) -> Self {
        let tests: Vec<Vec<(Question, Ranges)>> =
            steps.iter().map(|step| step.predicate.ranges().collect()).collect();
        let columns = columns(tests.iter().flatten());
        let with_tests = steps.iter().zip(&tests);
        let outlines =
            with_tests.map(|(step, tests)| Outline::of(&step.predicate, tests, &columns)).collect();
        let index = Self {
            columns,
            outlines,
            nodes: Vec::new(),
            lists: Vec::new(),
            children: Vec::new(),
            words: Vec::new(),
            halves: Vec::new(),
            wide: Vec::new(),
            root: Child(Child::LIST),
        };
        let mut builder = Builder { index, tests, known: HashMap::new() };
        // A program has at most 2^16 rules, and a list each of them once.
        let all = (0..steps.len() as u32).collect();
        builder.index.root = builder.node(all, 0, COPIES);
        builder.index
    }
}

/// The part of a value.
fn part_of(starts: &[u128], value: u128) -> usize {
    starts.partition_point(|start| *start <= value)
}

/// Where parts begin if each is to have the same steps for all its values.
fn starts_of<'r>(ranges: impl Iterator<Item = &'r (u128, u128)>) -> Vec<u128> {
    let mut starts = Vec::new();
    for (low, high) in ranges {
        starts.push(*low);
        starts.extend(high.checked_add(1));
    }
    starts.sort_unstable();
    starts.dedup();
    if starts.first() == Some(&0) {
        starts.remove(0);
    }
    starts
}

/// The expected cost of looking for the first match among so many steps.
fn cost_of(steps: f64) -> f64 {
    if steps <= 8.0 { steps } else { 8.0 + 2.0 * (steps / 8.0).log2() }
}

impl Builder {
    fn tests(&self, question: Question, step: u32) -> Option<&Ranges> {
        let tests = self.tests.get(step as usize)?;
        tests.iter().find(|(tested, _)| *tested == question).map(|(_, ranges)| ranges)
    }

    fn push(&mut self, node: Node) -> Child {
        self.index.nodes.push(node);
        // Fewer nodes than places, of which there are a few for each range of a step.
        Child(self.index.nodes.len() as u32 - 1)
    }

    fn list(&mut self, steps: &[u32]) -> Child {
        if let [step] = steps {
            return Child(Child::STEP | step);
        }
        let at = self.index.lists.len() as u32;
        self.index.lists.extend_from_slice(steps);
        self.index.lists.push(END);
        Child(Child::LIST | at)
    }

    /// The subtree of steps that may still be copied so many times.
    fn node(&mut self, steps: Vec<u32>, depth: u32, copies: f64) -> Child {
        if let Some(known) = self.known.get(&steps) {
            return *known;
        }
        let may_divide = steps.len() > LIST_MAX && depth < DEPTH_MAX;
        let limits = [copies.min(COPIES_OF_DIVISION), copies];
        let division = limits
            .into_iter()
            .filter(|_| may_divide)
            .find_map(|limit| Some((self.best_division(&steps, limit)?, limit)));
        let node = match division {
            Some((question, limit)) => self.divide(question, &steps, depth, copies, limit),
            None => self.list(&steps),
        };
        self.known.insert(steps, node);
        node
    }

    /// The question by which a search costs least, if it is worth asking.
    fn best_division(&self, steps: &[u32], copies: f64) -> Option<Question> {
        let stride = steps.len().div_ceil(SAMPLE);
        let sample: Vec<u32> = steps.iter().copied().step_by(stride).collect();
        let mut questions: Vec<Question> = Vec::new();
        for step in &sample {
            for (question, _) in self.tests.get(*step as usize).into_iter().flatten() {
                if !questions.contains(question) {
                    questions.push(*question);
                }
            }
        }
        questions.sort_unstable();
        let divisions =
            questions.into_iter().filter_map(|question| self.rate(question, &sample, stride, copies));
        divisions.min_by(|one, other| one.cost.total_cmp(&other.cost)).map(|division| division.question)
    }

    /// The steps that get a place in every part that they can match, and the others. Those with the fewest
    /// copies come first, as long as there are not too many copies on average.
    fn chosen(
        &self,
        question: Question,
        steps: &[u32],
        starts: &[u128],
        copies: f64,
    ) -> (Vec<u32>, Vec<u32>, f64) {
        let mut by_copies: Vec<(f64, u32, usize, usize)> = steps
            .iter()
            .map(|step| {
                let (places, ranges) = match self.tests(question, *step) {
                    Some(ranges) => {
                        let covered =
                            |(low, high): &(u128, u128)| part_of(starts, *high) - part_of(starts, *low) + 1;
                        (ranges.iter().map(covered).sum(), ranges.len().max(1))
                    }
                    None => (starts.len() + 1, 1),
                };
                (places as f64 / ranges as f64, *step, places, ranges)
            })
            .collect();
        by_copies.sort_unstable_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        let (mut places, mut ranges, mut count) = (0, 0, 0);
        for (_, _, own_places, own_ranges) in &by_copies {
            if (places + own_places) as f64 > copies * (ranges + own_ranges) as f64 {
                break;
            }
            places += own_places;
            ranges += own_ranges;
            count += 1;
        }
        let mut chosen: Vec<u32> = by_copies.iter().map(|(_, step, ..)| *step).collect();
        let mut others = chosen.split_off(count);
        chosen.sort_unstable();
        others.sort_unstable();
        (chosen, others, places as f64 / ranges.max(1) as f64)
    }

    /// How well a question divides the steps, by a sample of them: one of every `stride`.
    fn rate(&self, question: Question, sample: &[u32], stride: usize, copies: f64) -> Option<Division> {
        let starts = starts_of(sample.iter().filter_map(|step| self.tests(question, *step)).flatten());
        let (chosen, _, _) = self.chosen(question, sample, &starts, copies);
        let mut sizes = vec![0i64; starts.len() + 2];
        for step in &chosen {
            let everywhere = [(0, u128::MAX)];
            let ranges = self.tests(question, *step).map_or(&everywhere[..], Vec::as_slice);
            for (low, high) in ranges {
                sizes[part_of(&starts, *low)] += 1;
                sizes[part_of(&starts, *high) + 1] -= 1;
            }
        }
        let (mut size, mut places, mut squares) = (0i64, 0i64, 0i64);
        for change in sizes {
            size += change;
            places += size;
            squares += size * size;
        }
        let share = chosen.len() as f64 / sample.len().max(1) as f64;
        let left = squares as f64 / places.max(1) as f64;
        if share < SHARE_MIN || 100.0 * left > (GAIN_PERCENT * chosen.len()) as f64 {
            return None;
        }
        let left = if stride == 1 { left } else { 1.0 + (left - 1.0) * stride as f64 };
        Some(Division { question, cost: (3.0 + cost_of(left)) / share })
    }

    /// Divides steps that may be copied so many times in all, and in this division.
    fn divide(&mut self, question: Question, steps: &[u32], depth: u32, copies: f64, limit: f64) -> Child {
        let starts = starts_of(steps.iter().filter_map(|step| self.tests(question, *step)).flatten());
        let (chosen, others, copied) = self.chosen(question, steps, &starts, limit);
        let one = self.parts(question, &chosen, depth, copies / copied.max(1.0));
        let Some(first) = others.first().copied() else { return one };
        let other = self.node(others, depth + 1, copies);
        self.push(Node::Both { one, other, first })
    }

    fn parts(&mut self, question: Question, steps: &[u32], depth: u32, copies: f64) -> Child {
        let starts = starts_of(steps.iter().filter_map(|step| self.tests(question, *step)).flatten());
        let everywhere = [(0, u128::MAX)];
        let mut parts: Vec<Vec<u32>> = vec![Vec::new(); starts.len() + 1];
        for step in steps {
            let ranges = self.tests(question, *step).map_or(&everywhere[..], Vec::as_slice);
            for (low, high) in ranges {
                let covered = part_of(&starts, *low)..=part_of(&starts, *high);
                parts[covered].iter_mut().for_each(|part| part.push(*step));
            }
        }
        let nodes: Vec<Child> = parts.into_iter().map(|part| self.node(part, depth + 1, copies)).collect();
        let children = self.index.children.len() as u32;
        self.index.children.extend(nodes);
        let starts = self.starts(&starts);
        self.push(Node::Parts { question, starts, children })
    }

    /// Stores starts with as few bits as tell them apart.
    fn starts(&mut self, starts: &[u128]) -> Starts {
        let zeros = starts.iter().map(|start| start.trailing_zeros()).min().unwrap_or(u128::BITS);
        let StepIndex { words, halves, wide, .. } = &mut self.index;
        let len = starts.len() as u32;
        if zeros >= u128::BITS - u32::BITS {
            let guide = words.len() as u32;
            let bits = starts.len().checked_ilog2().unwrap_or(0).min(GUIDE_BITS_MAX);
            let slots = (0..1u128 << bits).map(|slot| slot << (u128::BITS - 1 - bits) << 1);
            words.extend(slots.map(|first| starts.partition_point(|start| *start < first) as u32));
            words.push(len);
            words.extend(starts.iter().map(|start| (start >> (u128::BITS - u32::BITS)) as u32));
            Starts::Words { guide, bits }
        } else if zeros >= u64::BITS {
            let at = halves.len() as u32;
            halves.extend(starts.iter().map(|start| (start >> u64::BITS) as u64));
            Starts::Halves { at, len }
        } else {
            let at = wide.len() as u32;
            wide.extend_from_slice(starts);
            Starts::Wide { at, len }
        }
    }
}
