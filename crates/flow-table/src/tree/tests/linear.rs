//! Trees beside a list of the same rules.

use super::super::super::FlowKind;
use super::super::super::key::{Image, MatchKey, Matcher};
use super::super::super::shape::{Precedence, Ranked};
use super::super::machine::Processor;
use super::super::{BURST, FAMILIES, Trees, Winners};

/// Both.
#[derive(Default)]
pub(super) struct Linear {
    pub(super) trees: Trees,
    rules: Vec<(Matcher, Ranked)>,
    next: u32,
}

impl Linear {
    pub(super) fn len(&self) -> usize {
        self.rules.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Adds a rule, unless there is one with this match and priority: that would be a group of two.
    pub(super) fn add(&mut self, matcher: &Matcher, priority: u16) {
        if matcher.is_contradictory() {
            return;
        }
        let precedence = Precedence::new(FlowKind::Normal, priority, self.next.into());
        let ranked = Ranked { precedence, group: self.next };
        self.next += 1;
        let same = |(other, at): &&(Matcher, Ranked)| {
            other == matcher && at.precedence.level() == precedence.level()
        };
        let present = self.rules.iter().find(same).map(|(_, ranked)| *ranked);
        let (value, mask) = (matcher.value(), matcher.mask());
        assert_eq!(self.trees.group_at(value, mask, precedence.level()), present);
        if present.is_none() {
            self.trees.add(value, mask, ranked);
            self.rules.push((*matcher, ranked));
        }
    }

    pub(super) fn remove(&mut self, at: usize) {
        let (matcher, ranked) = self.rules.swap_remove(at);
        self.trees.remove(matcher.value(), matcher.mask(), ranked);
    }

    /// Builds everything anew.
    pub(super) fn rebuild(&mut self) {
        (0..FAMILIES).for_each(|family| self.trees.rebuild(family));
    }

    fn expected(&self, image: &MatchKey) -> Option<Ranked> {
        let matching = self.rules.iter().filter(|(matcher, _)| matcher.matches(image));
        matching.map(|(_, ranked)| *ranked).min()
    }

    /// Looks up images that meet each rule, one bit beside it, and those of `noise` as far as a rule leaves
    /// them open.
    pub(super) fn check(&self, noise: &[[u64; 8]]) {
        let mut images: Vec<MatchKey> = noise.iter().map(|words| MatchKey(*words)).collect();
        for (number, (matcher, _)) in self.rules.iter().enumerate() {
            let (value, mask) = (matcher.value(), matcher.mask());
            let with = |words: &[u64; 8]| {
                let free = MatchKey(std::array::from_fn(|word| !mask.0[word]));
                MatchKey(*words).masked(&free).union(value)
            };
            let filled = noise.get(number % noise.len().max(1)).map_or(*value, with);
            let mut beside = filled;
            beside.0[number % 7] ^= 1 << (number * 13 % 64);
            images.extend([*value, filled, beside]);
        }
        let processors = Processor::all();
        for images in images.chunks(BURST) {
            let expected: Vec<_> = images.iter().map(|image| self.expected(image)).collect();
            for processor in &processors {
                let mut together = Winners::NONE;
                self.trees.search_burst_on(*processor, images, &mut together);
                for (at, (image, expected)) in images.iter().zip(&expected).enumerate() {
                    let alone = self.trees.search_on(*processor, image);
                    assert_eq!(alone, *expected, "{image:x?} on {processor:?}");
                    assert_eq!(together.ranked(at), *expected, "{image:x?} in a burst on {processor:?}");
                }
            }
        }
    }
}
