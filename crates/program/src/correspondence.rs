//! What one program has in common with another, whatever numbers they give to rules, groups, sinks and
//! queues: for `control`, which replaces one by the other on a device.

use std::collections::HashMap;
use std::sync::Arc;

use packet::{HashFields, RssKey};

use crate::ids::{GroupId, QueueId, RuleId, WorkerId};
use crate::outcome::{Outcome, Verdict};
use crate::program::{Class, Decide, Flow, FlowAction, FlowKind, Program, Rule};
use crate::sink::SinkSpec;

/// The parts of two programs that mean the same.
#[derive(Debug)]
pub struct Correspondence<'p> {
    old: &'p Program,
    new: &'p Program,
    names: Arc<SameNames>,
}

/// The rules and queue pairs that two programs have in common. It does not depend on the numbers of classes.
#[derive(Debug, PartialEq, Eq)]
pub struct SameNames {
    /// By rule of the new program, the old one of the same name, and whether workers do the same with the
    /// packets of both.
    rules: Vec<Option<(RuleId, bool)>>,
    /// By queue pair of either program, a number for each different one.
    queues: [Vec<Option<usize>>; 2],
    /// Whether workers return the kernel's packets in the same way.
    same_kernel: bool,
}

impl SameNames {
    /// Compares two programs.
    #[must_use]
    pub fn of(old: &Program, new: &Program) -> Self {
        let rules = same_rules(old, new);
        let kernel = |program: &Program| program.kernel_sink().and_then(|sink| program.sink(sink)).cloned();
        let mut known = Vec::new();
        let queues = [old, new].map(|program| {
            let numbers = (0..program.queues.len()).map(|queue| {
                let content = queue_content(program, QueueId::of(queue))?;
                let number = known.iter().position(|other| *other == content);
                Some(number.unwrap_or_else(|| {
                    known.push(content);
                    known.len() - 1
                }))
            });
            numbers.collect()
        });
        Self { rules, queues, same_kernel: kernel(old) == kernel(new) }
    }
}

impl<'p> Correspondence<'p> {
    /// Compares two programs.
    #[must_use]
    pub fn of(old: &'p Program, new: &'p Program) -> Self {
        Self::with(old, new, Arc::new(SameNames::of(old, new)))
    }

    /// Compares two programs whose names were compared before; classes may have other numbers since.
    #[must_use]
    pub fn with(old: &'p Program, new: &'p Program, names: Arc<SameNames>) -> Self {
        Self { old, new, names }
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

    /// Whether workers do the same with the packets of two rules, the first of the old program.
    #[must_use]
    pub fn is_same_rule(&self, old: RuleId, new: RuleId) -> bool {
        self.names.rules.get(new.index()).copied().flatten() == Some((old, true))
    }

    /// Whether the device does the same for two flows of one match: it puts packets into an equal queue pair
    /// with the same number of a class, if it tags them, or drops, or passes, and counts them for a rule of
    /// the same name. `old` is of the old program.
    #[must_use]
    pub fn is_same_action(&self, old: &Flow, new: &Flow) -> bool {
        match (old.action, new.action) {
            (
                FlowAction::Steer { queue: old_queue, class: old_class },
                FlowAction::Steer { queue: new_queue, class: new_class },
            ) => {
                let tag = |program: &Program, flow: &Flow, class| {
                    Some(class).filter(|_| program.untagged != Some(class) && flow.kind != FlowKind::Sniffer)
                };
                tag(self.old, old, old_class) == tag(self.new, new, new_class)
                    && self.is_same_queue(old_queue, new_queue)
            }
            (FlowAction::Drop, FlowAction::Drop) | (FlowAction::Pass, FlowAction::Pass) => {
                let named = self.names.rules.get(new.rule.index()).copied().flatten();
                named.is_some_and(|(rule, _)| rule == old.rule)
            }
            _ => false,
        }
    }

    /// Whether two queue pairs spread the same packets over the same workers.
    #[must_use]
    pub fn is_same_queue(&self, old: QueueId, new: QueueId) -> bool {
        let [of_old, of_new] = &self.names.queues;
        let number =
            |numbers: &[Option<usize>], queue: QueueId| numbers.get(queue.index()).copied().flatten();
        number(of_old, old).is_some() && number(of_old, old) == number(of_new, new)
    }

    fn is_same_outcome(&self, old: &Outcome, new: &Outcome) -> bool {
        self.is_same_rule(old.rule, new.rule)
            && match (old.verdict, new.verdict) {
                (Verdict::Deliver(old), Verdict::Deliver(new)) => {
                    group_name(self.old, old) == group_name(self.new, new)
                }
                (Verdict::Kernel, Verdict::Kernel) => self.names.same_kernel,
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

/// The old rule with the same name for each new rule, and whether workers do the same with the packets of
/// both. Names are unique, so only those between the rules that begin both programs and those that end both
/// have to be looked up. Those that begin both are read once, as thousands of them are not in the cache.
fn same_rules(old: &Program, new: &Program) -> Vec<Option<(RuleId, bool)>> {
    let does_same = |before: &Rule, after: &Rule| {
        before.policing == after.policing && sinks(old, before).eq(sinks(new, after))
    };
    let pair = |before: usize, after: &Rule| (RuleId::of(before), does_same(&old.rules[before], after));
    let same_name = |(index, after): (usize, &Rule)| {
        let has_name = old.rules.get(index).is_some_and(|before| before.name == after.name);
        has_name.then(|| Some(pair(index, after)))
    };
    let mut rules: Vec<Option<(RuleId, bool)>> = Vec::with_capacity(new.rules.len());
    rules.extend(new.rules.iter().enumerate().map_while(same_name));
    let start = rules.len();
    let (olds, news) = (&old.rules[start..], &new.rules[start..]);
    let ends = olds.iter().rev().zip(news.iter().rev());
    let end = ends.take_while(|(before, after)| before.name == after.name).count();
    let (between, ending) = news.split_at(news.len() - end);
    let names = olds[..olds.len() - end].iter().enumerate();
    let by_name: HashMap<&str, usize> =
        names.map(|(index, rule)| (rule.name.as_str(), start + index)).collect();
    rules.extend(between.iter().map(|rule| Some(pair(*by_name.get(rule.name.as_str())?, rule))));
    rules.extend(ending.iter().zip(old.rules.len() - end..).map(|(rule, index)| Some(pair(index, rule))));
    rules
}

/// The parts of a queue pair by which it spreads packets.
fn queue_content(program: &Program, queue: QueueId) -> Option<(&[WorkerId], HashFields, RssKey)> {
    let queue = program.queues.get(queue.index())?;
    let group = program.groups.get(queue.group.index())?;
    Some((&queue.table, queue.fields, group.key))
}
