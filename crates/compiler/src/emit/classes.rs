//! Software classes: what a worker does with packets that the device cannot decide. A class starts with its
//! hybrid rule and continues with the later rules that may share packets with it, up to one that matches all
//! of them.
//!
//! The steps of all classes are taken from one list of the rules that decide packets, in their order: workers
//! hold it, and its index, once.

use std::sync::Arc;

use program::{Decide, Outcome, RuleId, StepList, Steps, Verdict};

use crate::cover::CoveredRule;
use crate::except::overlaps::{Later, Overlaps};

/// The rules that decide packets, as steps of classes.
pub(crate) struct Deciding {
    list: Arc<StepList>,
    /// The place of each rule in the list; rules that decide nothing have the place of the next one.
    places: Vec<u32>,
}

impl Deciding {
    pub(crate) fn of(rules: &[CoveredRule]) -> Self {
        let (mut steps, mut places) = (Vec::new(), Vec::with_capacity(rules.len()));
        for (index, rule) in rules.iter().enumerate() {
            // At most 2^16 rules.
            places.push(steps.len() as u32);
            if rule.decides() {
                steps.push(rule.step(RuleId::of(index)));
            }
        }
        Self { list: Arc::new(StepList::new(steps)), places }
    }

    /// The steps of these rules, all of which decide packets.
    fn steps(&self, rules: impl Iterator<Item = RuleId>) -> Steps {
        Steps::of(&self.list, rules.filter_map(|rule| self.places.get(rule.index()).copied()).collect())
    }

    /// How packets are decided on a device without flow tags, where a worker knows nothing of them: by the
    /// whole policy.
    pub(crate) fn decide_all(&self, default: Outcome) -> Decide {
        let steps = Steps::all(&self.list);
        if steps.is_empty() { Decide::Exact(default) } else { Decide::Software(steps, default) }
    }
}

/// How the packets of the flows of a rule are decided; `default` is for unmatched packets. Packets may belong
/// to the `earlier` rules, if there are some.
pub(crate) fn decide(
    rules: &[CoveredRule],
    deciding: &Deciding,
    overlaps: &mut Overlaps,
    id: RuleId,
    earlier: Option<&Vec<RuleId>>,
    default: Outcome,
) -> Decide {
    let (own, otherwise) = match rules.get(id.index()) {
        None => (Vec::new(), default),
        Some(rule) if !rule.is_hybrid() => (Vec::new(), rule.outcome(id)),
        Some(rule) if !rule.decides() => {
            let excess = Outcome { rule: id, verdict: Verdict::Filtered };
            return Decide::Software(vec![rule.step(id)].into(), excess);
        }
        Some(_) => {
            let Later { rules: later, otherwise } = overlaps.after(rules, id);
            let otherwise = otherwise.map_or(default, |id| rules[id.index()].outcome(id));
            ([id].into_iter().chain(later).collect(), otherwise)
        }
    };
    let earlier = earlier.filter(|earlier| !earlier.is_empty());
    let before = earlier.into_iter().flat_map(|earlier| with_following(rules, earlier, id));
    let steps = deciding.steps(before.chain(own));
    if steps.is_empty() { Decide::Exact(otherwise) } else { Decide::Software(steps, otherwise) }
}

/// The earlier rules, with those that follow a hybrid one of them: the cubes of that one cover packets which
/// may belong to these.
fn with_following<'r>(
    rules: &'r [CoveredRule],
    earlier: &'r [RuleId],
    id: RuleId,
) -> impl Iterator<Item = RuleId> + 'r {
    let hybrid = earlier.iter().find(|rule| rules[rule.index()].is_hybrid()).copied().unwrap_or(id);
    let meets = move |other: &CoveredRule| {
        other.decides() && rules.get(id.index()).is_none_or(|rule| rule.may_overlap_with(other))
    };
    let following = (hybrid.index()..id.index()).filter(move |index| meets(&rules[*index])).map(RuleId::of);
    earlier.iter().copied().take_while(move |rule| *rule < hybrid).chain(following)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::except::overlaps::tests::rules;

    #[test]
    fn classes_share_one_list_of_steps() {
        let rules = rules();
        let (deciding, mut overlaps) = (Deciding::of(&rules), Overlaps::of(&rules));
        let default = Outcome { rule: RuleId::of(rules.len()), verdict: Verdict::Kernel };
        for id in (0..rules.len()).map(RuleId::of).filter(|id| rules[id.index()].is_hybrid()) {
            let Decide::Software(steps, _) = decide(&rules, &deciding, &mut overlaps, id, None, default)
            else {
                panic!("{id}: a hybrid rule is decided by the device");
            };
            assert!(Arc::ptr_eq(steps.list(), &deciding.list), "{id}");
            let later = overlaps.after(&rules, id).rules;
            assert!(steps.iter().map(|step| step.rule).eq([id].into_iter().chain(later)), "{id}");
        }
    }
}
