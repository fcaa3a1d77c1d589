//! A program as workers get it, with the decision on the packets of each class; and the class table that one
//! worker has of it, with the counters of the rules.

use std::collections::HashMap;
use std::sync::Arc;

use packet::{DeepKey, FlowKey};
use program::{
    ChangeStage, Class, ClassId, Decide, Outcome, Policing, Program, RUNTIME_RULES, RuleId, RuntimeHeader,
    RuntimeRules, StepList, Verdict, WorkerId,
};

use crate::counter::{Tally, TallyRow, Traffic};
use crate::disposition::Disposition;
use crate::policer::Policers;
use crate::runtime_rules::{RuntimeProbe, RuntimeTable};
use crate::sink::SinkMap;

/// How the outcome of a class is found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lookup {
    /// The tunnel headers must be parsed.
    pub(crate) is_deep: bool,
    has_index: bool,
}

impl Lookup {
    fn of(class: Option<&Class>) -> Self {
        let of = |class: &Class| Self { is_deep: class.needs_tunnel(), has_index: class.has_index() };
        class.map(of).unwrap_or_default()
    }

    #[inline]
    pub(crate) fn resolve(&self, class: &Class, key: &FlowKey) -> Outcome {
        if self.has_index { class.resolve_by_index(key) } else { class.resolve(key) }
    }

    #[inline]
    pub(crate) fn resolve_deep(&self, class: &Class, key: &DeepKey) -> Outcome {
        if self.has_index { class.resolve_deep_by_index(key) } else { class.resolve_deep(key) }
    }
}

/// The decision on packets of an exact class or with an outcome.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) outcome: Outcome,
    /// Index of their tally; beyond the row for classes that are not exact or whose rule is policed.
    pub(crate) tally: u32,
    /// Index of their sinks ([`SinkMap::place`]).
    pub(crate) sinks: u32,
    /// The place of their table in a [`ClassMap`](crate::class_map::ClassMap).
    pub(crate) table: u32,
}

/// Beyond every row and every map.
const NONE: u32 = u32::MAX;
/// In entries of classes that are not exact.
const NO_OUTCOME: Outcome = Outcome { rule: RuleId(u32::MAX), verdict: Verdict::Drop };

impl Entry {
    /// Of a class that no table has.
    pub(crate) const NONE: Self = Self { outcome: NO_OUTCOME, tally: NONE, sinks: NONE, table: NONE };
}

/// A program as workers get it: its decisions on classes, and its sinks. It is made once for all workers.
#[derive(Debug)]
pub(crate) struct PublishedProgram {
    program: Arc<Program>,
    sinks: Arc<SinkMap>,
    /// The entries, by class; `None`: the program has no such class.
    entries: Box<[Option<Entry>]>,
    /// The lookups, by class.
    lookups: Box<[Lookup]>,
    /// The dispositions that a rule's classes can have, by rule: snapshots have them even at zero.
    possible: Box<[[bool; Disposition::ALL.len()]]>,
    /// By number of the action, the decision on packets that a rule at run time with that action decides.
    runtime: Box<[Option<Entry>]>,
}

impl PublishedProgram {
    fn new(program: Arc<Program>, sinks: Arc<SinkMap>) -> Self {
        program.make_indexes();
        let lookups = program.classes.iter().map(|class| Lookup::of(class.as_ref())).collect();
        let possible = possible(&program, sinks.returns());
        let rules = program.rules.len();
        let of_class = |class: &Class| match &class.decide {
            Decide::Exact(outcome) if !program.is_policed(outcome) => entry(rules, &sinks, outcome),
            _ => Entry::NONE,
        };
        let entries = program.classes.iter().map(|class| class.as_ref().map(of_class)).collect();
        let runtime = runtime_entries(&program, &sinks);
        Self { program, sinks, entries, lookups, possible, runtime }
    }
}

/// A stage of a change of programs, made once for all workers ([`WorkerControl::publish_shared`]).
///
/// [`WorkerControl::publish_shared`]: crate::WorkerControl::publish_shared
#[derive(Clone, Debug)]
pub struct SharedStage(pub(crate) PublishedStage);

/// A [`ChangeStage`] with the program as workers get it.
#[derive(Clone, Debug)]
pub(crate) enum PublishedStage {
    Begin(Arc<PublishedProgram>),
    Enforce,
    GoBack,
}

impl SharedStage {
    /// A stage with the sinks of the program that the change begins with, which are in place before
    /// ([`WorkerControl::place_sink`](crate::WorkerControl::place_sink)).
    #[must_use]
    pub fn new(stage: &ChangeStage, sinks: &Arc<SinkMap>) -> Self {
        Self::with(stage, |_program| Arc::clone(sinks))
    }

    /// A stage of a change to a program without sinks.
    pub(crate) fn without_sinks(stage: &ChangeStage) -> Self {
        Self::with(stage, |program| Arc::new(SinkMap::none(program)))
    }

    fn with(stage: &ChangeStage, sinks: impl FnOnce(&Program) -> Arc<SinkMap>) -> Self {
        Self(match stage {
            ChangeStage::Begin(program) => {
                let published = PublishedProgram::new(Arc::clone(program), sinks(program));
                PublishedStage::Begin(Arc::new(published))
            }
            ChangeStage::Enforce => PublishedStage::Enforce,
            ChangeStage::GoBack => PublishedStage::GoBack,
        })
    }
}

/// A published program with one worker's counters.
#[derive(Debug)]
pub(crate) struct ClassTable {
    published: Arc<PublishedProgram>,
    policers: Policers,
    /// One tally per rule and disposition: `rule * Disposition::ALL.len() + disposition`; behind the rules
    /// those of all rules at run time.
    pub(crate) tallies: TallyRow,
}

impl ClassTable {
    /// A table of a worker for a program with all counters at zero.
    pub(crate) fn new(published: Arc<PublishedProgram>, worker: WorkerId) -> Self {
        let program = &published.program;
        let tallies = TallyRow::new((program.rules.len() + 1) * Disposition::ALL.len());
        let policers = Policers::of(program, worker);
        Self { published, policers, tallies }
    }

    /// The entries, by class; `None`: the program has no such class.
    pub(crate) fn entries(&self) -> &[Option<Entry>] {
        &self.published.entries
    }

    /// The sinks of the program.
    pub(crate) fn sinks(&self) -> &SinkMap {
        &self.published.sinks
    }

    /// The decision on packets with this outcome that are let through.
    fn entry(&self, outcome: &Outcome) -> Entry {
        entry(self.published.possible.len(), self.sinks(), outcome)
    }

    /// The decision on a packet with this outcome, which may be one that its rule does not let through.
    pub(crate) fn police(&self, outcome: Outcome, now: &mut dyn FnMut() -> u64) -> Entry {
        let refused = self.policers.of_outcome(&outcome).and_then(|policer| policer.refuses(now));
        match refused {
            None => self.entry(&outcome),
            Some(disposition) => {
                let outcome = Outcome { verdict: Verdict::Drop, ..outcome };
                entry_of(self.published.possible.len(), self.sinks(), &outcome, disposition)
            }
        }
    }

    /// Adds the searches for rules at run time that may decide a packet which the policy has this outcome
    /// for. `header`: reads the packet.
    #[inline]
    pub(crate) fn probe(
        &self,
        outcome: &Outcome,
        header: impl FnOnce() -> RuntimeHeader,
        rules: &RuntimeTable,
        probes: &mut Vec<RuntimeProbe>,
    ) {
        let Some(allowed) = &self.published.program.runtime else { return };
        if allowed.subject.get(outcome.rule.index()) == Some(&true) {
            let header = header();
            let keys = allowed.forms.iter().filter_map(|form| form.key(&header));
            probes.extend(keys.map(|key| RuntimeProbe::of(key, rules)));
        }
    }

    /// The decision of the first rule at run time that is found; counts the packet for that rule.
    #[inline]
    pub(crate) fn decide_at_run_time(
        &self,
        probes: &[RuntimeProbe],
        rules: &RuntimeTable,
        bytes: u32,
    ) -> Option<Entry> {
        let is_allowed = |action: u8| self.published.runtime.get(usize::from(action)).copied().flatten();
        probes.iter().find_map(|probe| rules.find(probe, bytes).and_then(is_allowed))
    }

    /// Whether rules at run time may decide packets.
    pub(crate) fn allows_rules_at_run_time(&self) -> bool {
        !self.published.runtime.is_empty()
    }

    /// The program it was made from.
    pub(crate) fn program(&self) -> &Arc<Program> {
        &self.published.program
    }

    /// The class with that id; `None` if the program has no such class.
    #[inline]
    pub(crate) fn class(&self, id: ClassId) -> Option<(&Class, &Lookup)> {
        let PublishedProgram { program, lookups, .. } = &*self.published;
        Some((program.class(id)?, lookups.get(id.index())?))
    }

    /// Where packets with this outcome are counted; `None` for a rule beyond the program.
    #[cfg(test)]
    pub(crate) fn tally(&self, outcome: &Outcome) -> Option<&Tally> {
        self.tallies.at(self.entry(outcome).tally as usize)
    }

    /// Every rule with each disposition that its classes can have or that was counted.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (&str, Disposition, Traffic)> {
        const NONE: [bool; Disposition::ALL.len()] = [false; Disposition::ALL.len()];
        let PublishedProgram { program, possible, .. } = &*self.published;
        let names = program.rules.iter().map(|rule| rule.name.as_str());
        let rules = names.zip(possible).chain([(RUNTIME_RULES, &NONE)]);
        rules.enumerate().flat_map(move |(index, (name, possible))| {
            Disposition::ALL.into_iter().filter_map(move |disposition| {
                let place = index * Disposition::ALL.len() + disposition as usize;
                let traffic = self.tallies.at(place).map(Tally::read).unwrap_or_default();
                let shown = possible[disposition as usize] || traffic.packets > 0;
                shown.then_some((name, disposition, traffic))
            })
        })
    }
}

/// The decisions of rules at run time, by the number of their action.
fn runtime_entries(program: &Program, sinks: &SinkMap) -> Box<[Option<Entry>]> {
    let rules = program.rules.len();
    let actions = program.runtime.iter().flat_map(|RuntimeRules { actions, .. }| actions).enumerate();
    let entries = actions.map(|(number, action)| {
        let outcome = Outcome { rule: RuleId::of(rules), verdict: action.as_ref()?.verdict };
        let disposition = Disposition::of(outcome.verdict, sinks.returns());
        let tally = u32::try_from(rules * Disposition::ALL.len() + disposition as usize).ok()?;
        let sinks = u32::try_from(sinks.place_of_action(number, outcome.verdict)).ok()?;
        Some(Entry { outcome, tally, sinks, ..Entry::NONE })
    });
    entries.collect()
}

/// The decision on packets with this outcome, of a program with this many rules.
fn entry(rules: usize, sinks: &SinkMap, outcome: &Outcome) -> Entry {
    entry_of(rules, sinks, outcome, Disposition::of(outcome.verdict, sinks.returns()))
}

#[inline]
fn entry_of(rules: usize, sinks: &SinkMap, outcome: &Outcome, disposition: Disposition) -> Entry {
    let rule = Some(outcome.rule.index()).filter(|&rule| rule < rules);
    let place = |rule| rule * Disposition::ALL.len() + disposition as usize;
    let tally = rule.and_then(|rule| u32::try_from(place(rule)).ok());
    let sinks = u32::try_from(sinks.place(outcome)).unwrap_or(NONE);
    Entry { outcome: *outcome, tally: tally.unwrap_or(NONE), sinks, ..Entry::NONE }
}

/// The dispositions that each rule's classes can have. The steps of many classes are of one list, which is
/// read once.
fn possible(program: &Program, returns: bool) -> Box<[[bool; Disposition::ALL.len()]]> {
    let mut possible = vec![[false; Disposition::ALL.len()]; program.rules.len()];
    let mut note = |outcome: &Outcome| {
        if let Some(rule) = possible.get_mut(outcome.rule.0 as usize) {
            rule[Disposition::of(outcome.verdict, returns) as usize] = true;
            let policing = match outcome.verdict {
                Verdict::Deliver(_) => program.rules[outcome.rule.index()].policing,
                _ => Policing::default(),
            };
            rule[Disposition::RateLimited as usize] |= policing.limit.is_some();
            rule[Disposition::NotSampled as usize] |= policing.sample > 1;
        }
    };
    // By list, the places of the steps that some class has.
    let mut lists: HashMap<*const StepList, (&StepList, Vec<u64>)> = HashMap::new();
    for class in program.classes.iter().flatten() {
        match &class.decide {
            Decide::Exact(outcome) => note(outcome),
            Decide::Software(steps, otherwise) => {
                note(otherwise);
                let list = steps.list();
                let (_, places) = lists.entry(Arc::as_ptr(list)).or_insert_with(|| (&**list, Vec::new()));
                steps.add_places(places);
            }
        }
    }
    for (list, places) in lists.values() {
        let has = |place: usize| places.get(place / 64).is_some_and(|word| word >> (place % 64) & 1 != 0);
        let steps = list.steps().iter().enumerate().filter(|(place, _)| has(*place));
        steps.for_each(|(_, step)| note(&step.outcome));
    }
    possible.into_boxed_slice()
}
