//! One packet under one policy, received or sent: the reference matcher, `explain` and the soft NIC must
//! agree. Used by the trial of the personalities.

use packet::{DeepKey, Toeplitz};
use policy::Policy;
use policy::policy::{Action, Direction};
use program::{
    ClassId, Decide, Explanation, FlowAction, FlowKind, Outcome, Program, RuleId, SentExplanation, Verdict,
    WorkerId,
};

use super::reference::{Meaning, leaves, meaning};
use super::rig::{Arrival, Departure};
use crate::support::notebook::Seen;

/// A packet with the policy and the program that decide it.
pub(crate) struct Case<'c> {
    pub(crate) policy: &'c Policy,
    pub(crate) program: &'c Program,
    pub(crate) key: DeepKey,
    pub(crate) frame: &'c [u8],
    pub(crate) text: &'c str,
}

impl Case<'_> {
    /// Checks the outcome of the received packet; returns the explanation.
    pub(crate) fn received(&self, arrival: &Arrival) -> Explanation {
        let meant = meaning(self.policy, Direction::Ingress, &self.key);
        let explained = self.program.explain_deep(&self.key);
        let fail = |what: &str| self.fail(what, &meant, &explained, arrival);
        if self.told(&explained) != self.wanted(&meant) {
            fail("explain does not say what the policy means");
        }
        if self.arrived(arrival, &explained) != self.wanted(&meant) {
            fail("what happened is not what the policy means");
        }
        if let Err(what) = self.deliveries(arrival, &explained) {
            fail(what);
        }
        explained
    }

    /// Explains a packet that the host sends.
    pub(crate) fn sent(&self, departure: &Departure) -> SentExplanation {
        let meant = meaning(self.policy, Direction::Egress, &self.key);
        let explained = self.program.explain_sent(&self.key);
        let fail = |what: &str| self.fail(what, &meant, &explained, departure);
        let rule = meant.last.map(RuleId::of);
        let copies_meant: Vec<RuleId> = meant.copies.iter().map(|index| RuleId::of(*index)).collect();
        let wanted = (rule, leaves(self.policy, &meant), copies_meant);
        let told = copies(explained.copies.iter().map(|copy| copy.outcome));
        if (explained.rule, explained.leaves, told) != wanted {
            fail("explain does not say what the policy means of a sent packet");
        }
        let counted = departure.counted_by.as_deref().map(|name| self.rule(name));
        let heard = copies(departure.seen.iter().map(|seen| seen.outcome));
        let out: &[Vec<u8>] = if wanted.1 { &[self.frame.to_vec()] } else { &[] };
        if (counted, heard) != (wanted.0, wanted.2) || departure.out != out {
            fail("what happened to a sent packet is not what the policy means");
        }
        let told: Vec<_> = self.told_copies(&explained.copies).collect();
        if let Err(what) = self.compare(told, &departure.seen) {
            fail(what);
        }
        explained
    }

    fn fail<M: std::fmt::Debug, E: std::fmt::Debug, R: std::fmt::Debug>(
        &self,
        what: &str,
        meant: &M,
        explained: &E,
        real: &R,
    ) -> ! {
        panic!(
            "{what}\nframe {:02x?}\nkey {:?}\nmeant {meant:?}\nexplained {explained:?}\nhappened {real:?}\n{}\n{}",
            self.frame, self.key, self.text, self.program
        )
    }

    fn rule(&self, name: &str) -> RuleId {
        RuleId::of(self.program.rules.iter().position(|rule| rule.name == name).expect("its rule"))
    }

    /// The reference's result as rules and verdicts: copies by rule, then the outcome.
    fn wanted(&self, meant: &Meaning) -> (Vec<RuleId>, Outcome) {
        let verdict = |action: Action| match action {
            Action::Steer(group) | Action::Copy(group) | Action::Sniff(group) => Verdict::Deliver(group),
            Action::Drop => Verdict::Drop,
            Action::Kernel | Action::Pass => Verdict::Kernel,
        };
        let last = meant.last.map_or(self.policy.default, |index| self.policy.rules[index].action);
        let rule = RuleId::of(meant.last.unwrap_or(self.policy.rules.len()));
        let copies = meant.copies.iter().map(|index| RuleId::of(*index)).collect();
        (copies, Outcome { rule, verdict: verdict(last) })
    }

    fn told(&self, explained: &Explanation) -> (Vec<RuleId>, Outcome) {
        let outcomes = explained.copies.iter().map(|copy| copy.outcome);
        (copies(outcomes), explained.outcome)
    }

    /// The result from the soft NIC. It names no rule for a packet left to the kernel; the rule comes from
    /// `explain`.
    fn arrived(&self, arrival: &Arrival, explained: &Explanation) -> (Vec<RuleId>, Outcome) {
        let is_copy = |outcome: &Outcome| {
            let rule = self.policy.rules.get(outcome.rule.index());
            rule.is_some_and(|rule| matches!(rule.action, Action::Copy(_) | Action::Sniff(_)))
        };
        let outcomes = arrival.seen.iter().map(|seen| seen.outcome);
        let (heard, ends): (Vec<Outcome>, Vec<Outcome>) = outcomes.partition(is_copy);
        let by_device = arrival.dropped_by.as_deref();
        let by_device = by_device.map(|name| Outcome { rule: self.rule(name), verdict: Verdict::Drop });
        let ends: Vec<Outcome> = ends.into_iter().chain(by_device).collect();
        assert!(ends.len() <= 1, "a packet ends once: {arrival:?}\n{}", self.text);
        let left = Outcome { rule: explained.outcome.rule, verdict: Verdict::Kernel };
        (copies(heard.into_iter()), ends.first().copied().unwrap_or(left))
    }

    /// Checks worker, tag and bytes of each delivery.
    fn deliveries(&self, arrival: &Arrival, explained: &Explanation) -> Result<(), &'static str> {
        let told = explained.worker.map(|worker| (worker, explained.class, explained.outcome));
        let told = told.into_iter().chain(self.told_copies(&explained.copies)).collect();
        self.compare(told, &arrival.seen)?;
        if arrival.unmatched > 0 && explained.flow.is_some() {
            return Err("it was left to the kernel and taken");
        }
        self.spreading(explained)
    }

    /// A sniffer's copies have no tag.
    fn told_copies<'s>(&'s self, copied: &'s [program::Copied]) -> impl Iterator<Item = Delivered> + 's {
        copied.iter().filter_map(|copy| {
            let hears = self.program.flows[copy.flow].kind == FlowKind::Sniffer;
            Some((copy.worker?, copy.class.filter(|_| !hears), copy.outcome))
        })
    }

    fn compare(&self, told: Vec<Delivered>, seen: &[Seen]) -> Result<(), &'static str> {
        let tag = |seen: &Seen| ClassId::of_tag(seen.tag);
        let mut told: Vec<_> = told.into_iter().map(order).collect();
        let mut real: Vec<_> =
            seen.iter().map(|seen| order((seen.worker, tag(seen), seen.outcome))).collect();
        if self.program.untagged.is_some() && real.iter().all(|(_, class, _)| class.is_none()) {
            told.iter_mut().for_each(|told| told.1 = None);
        }
        told.sort_unstable();
        real.sort_unstable();
        if told != real {
            return Err("workers, tags or copies are not as explained");
        }
        if seen.iter().any(|seen| seen.bytes != self.frame) {
            return Err("a packet changed on its way");
        }
        Ok(())
    }

    /// The queues of a group distribute packets as one queue with all hash fields would.
    fn spreading(&self, explained: &Explanation) -> Result<(), &'static str> {
        let Some(flow) = explained.flow.map(|flow| &self.program.flows[flow]) else { return Ok(()) };
        let FlowAction::Steer { queue, class } = flow.action else { return Ok(()) };
        let group_id = self.program.queues[queue.index()].group;
        let group = &self.program.groups[group_id.index()];
        let hash = Toeplitz::new(&group.key).hash_deep(&self.key, group.fields);
        if explained.worker != Some(group.table[hash as usize % group.table.len()]) {
            return Err("the worker is not its group's choice");
        }
        let is_exact = matches!(self.program.class(class).map(|class| &class.decide), Some(Decide::Exact(_)));
        match explained.outcome.verdict {
            Verdict::Deliver(wanted) if is_exact && wanted != group_id => {
                Err("a group got what another was meant to get")
            }
            _ => Ok(()),
        }
    }
}

/// The rules of copies that are not filtered out.
fn copies(outcomes: impl Iterator<Item = Outcome>) -> Vec<RuleId> {
    let wanted = outcomes.filter(|outcome| matches!(outcome.verdict, Verdict::Deliver(_)));
    let mut rules: Vec<_> = wanted.map(|outcome| outcome.rule).collect();
    rules.sort_unstable();
    rules
}

type Delivered = (WorkerId, Option<program::ClassId>, Outcome);

/// A sort key.
fn order((worker, class, outcome): Delivered) -> (WorkerId, Option<program::ClassId>, (RuleId, String)) {
    (worker, class, (outcome.rule, format!("{:?}", outcome.verdict)))
}
