//! A program as one worker sees it: its classes, and this worker's own counters for its rules.
//! Made by a worker's handle for each program, read and counted into by the worker's loop, folded into
//! totals once the worker has let go of it. Never shared between workers.

use std::sync::Arc;

use program::{Class, ClassId, Decide, Outcome, Program, Verdict};

use crate::counter::{Tally, TallyRow, Traffic};

/// What became of a packet, without where it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Disposition {
    /// Delivered to a group.
    Delivered,
    /// Dropped by a rule, in software.
    Dropped,
    /// The policy leaves it to the kernel, but the worker has it and cannot give it back: it is lost.
    LostException,
    /// A copy of a packet that its rule does not match, discarded.
    Filtered,
}

impl Disposition {
    /// All of them, in the order of their indices.
    pub const ALL: [Self; 4] = [Self::Delivered, Self::Dropped, Self::LostException, Self::Filtered];

    /// As a metric label.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Dropped => "dropped",
            Self::LostException => "lost_exception",
            Self::Filtered => "filtered",
        }
    }
}

impl From<Verdict> for Disposition {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Deliver(_) => Self::Delivered,
            Verdict::Drop => Self::Dropped,
            Verdict::Kernel => Self::LostException,
            Verdict::Filtered => Self::Filtered,
        }
    }
}

/// The classes of a program with one worker's counters, for one band.
#[derive(Debug)]
pub(crate) struct ClassTable {
    program: Arc<Program>,
    /// Which classes ask about tunnels; the others are spared the look into them.
    deep: Box<[bool]>,
    /// The dispositions that a rule can come to by its classes, by rule: they are shown from the start.
    possible: Box<[[bool; Disposition::ALL.len()]]>,
    /// One tally per rule and disposition: `rule * Disposition::ALL.len() + disposition`.
    tallies: TallyRow,
}

impl ClassTable {
    /// A table for `program` with all counters at zero.
    pub(crate) fn new(program: Arc<Program>) -> Self {
        let tallies = TallyRow::new(program.rules.len() * Disposition::ALL.len());
        let is_deep = |class: &Option<Class>| class.as_ref().is_some_and(Class::needs_tunnel);
        let deep = program.classes.iter().map(is_deep).collect();
        let possible = possible(&program);
        Self { program, deep, possible, tallies }
    }

    /// The program it was made from.
    pub(crate) fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// The class with that id, and whether it asks about tunnels; `None` if the program has no such class.
    #[inline]
    pub(crate) fn class(&self, id: ClassId) -> Option<(&Class, bool)> {
        Some((self.program.class(id)?, *self.deep.get(id.index())?))
    }

    /// The class of packets without a tag, if the program has any.
    #[inline]
    pub(crate) fn untagged(&self) -> Option<ClassId> {
        self.program.untagged
    }

    /// Where packets with this outcome are counted; `None` for a rule beyond the program.
    #[inline]
    pub(crate) fn tally(&self, outcome: &Outcome) -> Option<&Tally> {
        let row = outcome.rule.0 as usize * Disposition::ALL.len();
        self.tallies.at(row + Disposition::from(outcome.verdict) as usize)
    }

    /// Every rule with each disposition its classes can come to, or that was counted.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (&str, Disposition, Traffic)> {
        self.program.rules.iter().enumerate().zip(&self.possible).flat_map(
            move |((index, rule), possible)| {
                Disposition::ALL.into_iter().filter_map(move |disposition| {
                    let place = index * Disposition::ALL.len() + disposition as usize;
                    let traffic = self.tallies.at(place).map(Tally::read).unwrap_or_default();
                    let shown = possible[disposition as usize] || traffic.packets > 0;
                    shown.then_some((rule.name.as_str(), disposition, traffic))
                })
            },
        )
    }
}

fn possible(program: &Program) -> Box<[[bool; Disposition::ALL.len()]]> {
    let mut possible = vec![[false; Disposition::ALL.len()]; program.rules.len()];
    for class in program.classes.iter().flatten() {
        each_outcome(&class.decide, &mut |outcome| {
            if let Some(rule) = possible.get_mut(outcome.rule.0 as usize) {
                rule[Disposition::from(outcome.verdict) as usize] = true;
            }
        });
    }
    possible.into_boxed_slice()
}

fn each_outcome(decide: &Decide, visit: &mut dyn FnMut(&Outcome)) {
    match decide {
        Decide::Exact(outcome) => visit(outcome),
        Decide::Software(steps, otherwise) => {
            steps.iter().for_each(|step| visit(&step.outcome));
            visit(otherwise);
        }
    }
}
