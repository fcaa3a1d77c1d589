//! Classes with an index of their steps, as workers look packets up.

use std::sync::Arc;

use packet::{DeepKey, FlowKey};

use crate::outcome::Outcome;
use crate::predicate::Predicate;
use crate::program::{Class, Decide};
use crate::question::Question;
use crate::step_index::LIST_MAX;
use crate::steps::StepList;

/// A class as a worker looks it up.
#[derive(Clone, Debug)]
pub struct ClassIndex {
    pub(crate) list: Arc<StepList>,
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
                let is_member = |place| steps.contains(place);
                let found = index.search(self.list.steps(), key, is_member, &answer, &matches);
                found.map_or(*otherwise, |step| step.outcome)
            }
        }
    }
}
