//! Classes with many steps as workers look packets up: by the index of the list from which the steps are
//! taken.

use packet::{DeepKey, FlowKey};

use crate::outcome::Outcome;
use crate::predicate::Predicate;
use crate::program::{Class, Decide};
use crate::question::Question;
use crate::step_index::LIST_MAX;

impl Class {
    /// Returns whether the index finds the outcome faster than comparing the packet with all steps: there are
    /// more than a few.
    #[must_use]
    pub fn has_index(&self) -> bool {
        matches!(&self.decide, Decide::Software(steps, _) if steps.len() > LIST_MAX)
    }

    /// Makes the index for [`Class::resolve_by_index`], unless another class of the same list has made it.
    /// Thousands of steps take tens of milliseconds.
    pub fn make_index(&self) {
        if let Decide::Software(steps, _) = &self.decide {
            steps.list().index();
        }
    }

    /// Resolves a packet as [`Class::resolve`] does. The first call for a list makes its index.
    #[must_use]
    #[inline]
    pub fn resolve_by_index(&self, key: &FlowKey) -> Outcome {
        let answer = |question: Question| question.answer(key, None);
        self.first_by_index(key, answer, |predicate| predicate.matches(key))
    }

    /// Resolves a packet as [`Class::resolve_deep`] does. The first call for a list makes its index.
    #[must_use]
    #[inline]
    pub fn resolve_deep_by_index(&self, key: &DeepKey) -> Outcome {
        let DeepKey { outer, tunnel } = key;
        let answer = |question: Question| question.answer(outer, Some(tunnel));
        self.first_by_index(outer, answer, |predicate| predicate.matches_deep(key))
    }

    #[inline]
    fn first_by_index(
        &self,
        key: &FlowKey,
        answer: impl Fn(Question) -> u128,
        matches: impl Fn(&Predicate) -> bool,
    ) -> Outcome {
        match &self.decide {
            Decide::Exact(outcome) => *outcome,
            Decide::Software(steps, otherwise) => {
                let list = steps.list();
                let is_member = |place| steps.contains(place);
                let found = list.index().search(list.steps(), key, is_member, &answer, &matches);
                found.map_or(*otherwise, |step| step.outcome)
            }
        }
    }
}
