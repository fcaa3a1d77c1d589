//! What one program has in common with another, whatever numbers they give to rules, groups, sinks and
//! queues: for `control`, which replaces one by the other on a device.

use packet::{HashFields, RssKey};

use crate::ids::{GroupId, QueueId, RuleId, WorkerId};
use crate::outcome::{Outcome, Verdict};
use crate::program::{Class, Decide, Flow, FlowAction, Program, Rule};
use crate::sink::SinkSpec;

/// The parts of two programs that mean the same.
#[derive(Clone, Copy, Debug)]
pub struct Correspondence<'p> {
    old: &'p Program,
    new: &'p Program,
}

impl<'p> Correspondence<'p> {
    /// Compares two programs.
    #[must_use]
    pub fn of(old: &'p Program, new: &'p Program) -> Self {
        Self { old, new }
    }

    /// Whether a class of the new program decides every packet as one of the old program does.
    #[must_use]
    pub fn is_same_class(&self, old: &Class, new: &Class) -> bool {
        self.is_same_rule(old.rule, new.rule)
            && match (&old.decide, &new.decide) {
                (Decide::Exact(old), Decide::Exact(new)) => self.is_same_outcome(old, new),
                (Decide::Software(old, old_rest), Decide::Software(new, new_rest)) => {
                    old.len() == new.len()
                        && self.is_same_outcome(old_rest, new_rest)
                        && old.iter().zip(new.iter()).all(|(old, new)| {
                            old.predicate == new.predicate && self.is_same_outcome(&old.outcome, &new.outcome)
                        })
                }
                (Decide::Exact(_), Decide::Software(..)) | (Decide::Software(..), Decide::Exact(_)) => false,
            }
    }

    /// Whether the classes of two flows decide alike; `old` is of the old program.
    #[must_use]
    pub fn is_same_class_of(&self, old: &Flow, new: &Flow) -> bool {
        match (old.action, new.action) {
            (FlowAction::Steer { class: old, .. }, FlowAction::Steer { class: new, .. }) => {
                let classes = self.old.class(old).zip(self.new.class(new));
                classes.is_some_and(|(old, new)| self.is_same_class(old, new))
            }
            _ => false,
        }
    }

    /// Whether two rules have one name, and workers do the same with their packets; the first is of the old
    /// program.
    #[must_use]
    pub fn is_same_rule(&self, old: RuleId, new: RuleId) -> bool {
        let rules = self.old.rules.get(old.index()).zip(self.new.rules.get(new.index()));
        rules.is_some_and(|(old, new)| {
            old.name == new.name
                && old.policing == new.policing
                && sinks(self.old, old).eq(sinks(self.new, new))
        })
    }

    /// Whether the device does the same for two flows of one match: it puts packets into an equal queue pair
    /// with the same number of a class, if it tags them, or drops, or passes, and counts them for a rule of
    /// the same name. `old` is of the old program.
    #[must_use]
    pub fn is_same_action(&self, old: &Flow, new: &Flow) -> bool {
        match (old.action, new.action) {
            (FlowAction::Steer { queue: of_old, .. }, FlowAction::Steer { queue: of_new, .. }) => {
                self.old.tagged_class(old) == self.new.tagged_class(new) && self.is_same_queue(of_old, of_new)
            }
            (FlowAction::Drop, FlowAction::Drop) | (FlowAction::Pass, FlowAction::Pass) => {
                let name = |program: &'p Program, rule: RuleId| Some(&program.rules.get(rule.index())?.name);
                name(self.old, old.rule).is_some_and(|old| Some(old) == name(self.new, new.rule))
            }
            _ => false,
        }
    }

    /// Whether two queue pairs spread the same packets over the same workers.
    #[must_use]
    pub fn is_same_queue(&self, old: QueueId, new: QueueId) -> bool {
        let [old, new] = [(self.old, old), (self.new, new)].map(|(program, queue)| program.spreading(queue));
        old.is_some() && old == new
    }

    fn is_same_outcome(&self, old: &Outcome, new: &Outcome) -> bool {
        self.is_same_rule(old.rule, new.rule)
            && match (old.verdict, new.verdict) {
                (Verdict::Deliver(old), Verdict::Deliver(new)) => {
                    group_name(self.old, old) == group_name(self.new, new)
                }
                (Verdict::Kernel, Verdict::Kernel) => kernel_sink(self.old) == kernel_sink(self.new),
                (old, new) => old == new,
            }
    }
}

fn sinks<'p>(program: &'p Program, rule: &'p Rule) -> impl Iterator<Item = Option<&'p SinkSpec>> {
    rule.sinks.iter().map(|sink| program.sink(*sink))
}

fn group_name(program: &Program, group: GroupId) -> Option<&str> {
    program.groups.get(group.index()).map(|group| group.name.as_str())
}

fn kernel_sink(program: &Program) -> Option<&SinkSpec> {
    program.kernel_sink().and_then(|sink| program.sink(sink))
}

impl Program {
    /// The parts of a queue pair by which it spreads packets: the table, the hashed fields and the key.
    pub(crate) fn spreading(&self, queue: QueueId) -> Option<(&[WorkerId], HashFields, RssKey)> {
        let queue = self.queues.get(queue.index())?;
        let group = self.groups.get(queue.group.index())?;
        Some((&queue.table, queue.fields, group.key))
    }
}
