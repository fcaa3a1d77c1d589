//! A copy of a program that shares no memory with it.
//!
//! A clone shares the tests of predicates. The daemon keeps a program for long, and frees what the compiler worked with;
//! memory that both have in common would keep the pages around it.

use std::collections::HashMap;
use std::sync::Arc;

use crate::predicate::Predicate;
use crate::program::{Class, Decide, Program};
use crate::steps::{StepList, Steps};

impl Program {
    /// A copy in memory of its own. Predicates that share their tests do so in the copy, and classes their list of steps.
    #[must_use]
    pub fn copied(&self) -> Self {
        let mut copies = Copies::default();
        let mut copy = self.clone();
        copy.exceptions.iter_mut().for_each(|exception| copies.replace(&mut exception.predicate));
        for Class { decide, .. } in copy.classes.iter_mut().flatten() {
            if let Decide::Software(steps, _) = decide {
                copies.replace_list(steps);
            }
        }
        copy
    }
}

/// What was copied, by its place. The program that is copied keeps these places in use.
#[derive(Default)]
struct Copies {
    /// By the places of their tests.
    predicates: HashMap<[usize; 3], Predicate>,
    lists: HashMap<usize, Arc<StepList>>,
}

impl Copies {
    fn replace(&mut self, predicate: &mut Predicate) {
        let copy = self.predicates.entry(predicate.places()).or_insert_with(|| predicate.copied());
        *predicate = copy.clone();
    }

    fn replace_list(&mut self, steps: &mut Steps) {
        let place = Arc::as_ptr(steps.list()).addr();
        if !self.lists.contains_key(&place) {
            let mut copied = steps.list().steps().to_vec();
            copied.iter_mut().for_each(|step| self.replace(&mut step.predicate));
            self.lists.insert(place, Arc::new(StepList::new(copied)));
        }
        *steps = steps.of_copy(&self.lists[&place]);
    }
}

impl Predicate {
    /// Where its tests are.
    fn places(&self) -> [usize; 3] {
        [
            Arc::as_ptr(&self.outer).cast::<u8>().addr(),
            Arc::as_ptr(&self.tunnel).cast::<u8>().addr(),
            Arc::as_ptr(&self.inner).cast::<u8>().addr(),
        ]
    }

    fn copied(&self) -> Self {
        Self {
            outer: self.outer.to_vec().into(),
            tunnel: self.tunnel.to_vec().into(),
            inner: self.inner.to_vec().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use packet::Field;

    use super::*;
    use crate::matching::Match;
    use crate::program::{Outcome, Step, Verdict};
    use crate::{RangeSet, RuleId};

    #[test]
    fn a_copy_is_equal_and_shares_no_tests_with_the_original() {
        let predicate = Predicate::of(&Match::default().with(Field::DstPort, RangeSet::of(vec![(80, 443)])));
        let outcome = Outcome { rule: RuleId(0), verdict: Verdict::Drop };
        let step = Step { rule: RuleId(0), predicate, outcome };
        let decide = Decide::Software(vec![step.clone(), step].into(), outcome);
        let program = Program {
            rules: Vec::new(),
            groups: Vec::new(),
            sinks: Vec::new(),
            queues: Vec::new(),
            flows: Vec::new(),
            classes: vec![None, Some(Class { rule: RuleId(0), decide })],
            untagged: None,
            exceptions: Vec::new(),
            default: Verdict::Kernel,
            priorities_used: 0,
        };
        let places = |program: &Program| match &program.classes[1].as_ref().expect("a class").decide {
            Decide::Software(steps, _) => {
                steps.iter().map(|step| step.predicate.places()).collect::<Vec<_>>()
            }
            Decide::Exact(_) => panic!("a software class"),
        };
        let copy = program.copied();
        assert_eq!(copy, program);
        assert_eq!(places(&copy)[0], places(&copy)[1], "steps of the copy share their tests");
        assert_ne!(places(&copy)[0][0], places(&program)[0][0]);
    }
}
