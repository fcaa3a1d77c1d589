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
use crate::policer::{PolicedPacket, Policers};
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
}

/// Beyond every row and every map.
const NONE: u32 = u32::MAX;
/// In entries of classes that are not exact.
const NO_OUTCOME: Outcome = Outcome { rule: RuleId(u32::MAX), verdict: Verdict::Drop };

impl Entry {
    /// The entry of a class that the program does not have, or that is not exact.
    const NONE: Self = Self { outcome: NO_OUTCOME, tally: NONE, sinks: NONE };
}

/// Where the tallies of a rule are in a row: side by side, one for each disposition that its packets can
/// have.
#[derive(Clone, Copy, Debug, Default)]
struct RuleTallies {
    first: u32,
    /// One bit for each disposition.
    dispositions: u8,
}

impl RuleTallies {
    fn bit(disposition: Disposition) -> u8 {
        const { assert!(Disposition::ALL.len() <= u8::BITS as usize, "a bit for each") };
        1 << disposition as u8
    }

    fn add(&mut self, disposition: Disposition) {
        self.dispositions |= Self::bit(disposition);
    }

    fn place(self, disposition: Disposition) -> Option<u32> {
        let bit = Self::bit(disposition);
        let before = (self.dispositions & (bit - 1)).count_ones();
        (self.dispositions & bit != 0).then_some(self.first + before)
    }

    /// The dispositions with their places.
    fn places(self) -> impl Iterator<Item = (Disposition, usize)> {
        let has = move |disposition: &Disposition| self.dispositions & Self::bit(*disposition) != 0;
        Disposition::ALL.into_iter().filter(has).zip(self.first as usize..)
    }
}

/// The places of all tallies of a program.
#[derive(Debug)]
struct TallyPlaces {
    /// The tallies by rule; behind them, those of all rules at run time.
    rules: Box<[RuleTallies]>,
    /// How many there are.
    len: usize,
}

impl TallyPlaces {
    /// Gives each rule its places; `rules` has the dispositions.
    fn new(mut rules: Vec<RuleTallies>) -> Self {
        let mut len = 0;
        for tallies in &mut rules {
            tallies.first = len;
            len += tallies.dispositions.count_ones();
        }
        Self { rules: rules.into(), len: len as usize }
    }

    /// The place for a rule beyond all, or for a disposition that the rule cannot have, is beyond every row.
    fn of(&self, rule: RuleId, disposition: Disposition) -> u32 {
        self.rules.get(rule.index()).and_then(|tallies| tallies.place(disposition)).unwrap_or(NONE)
    }
}

/// A program as workers get it: its decisions on classes, and its sinks. It is made once for all workers.
#[derive(Debug)]
pub(crate) struct PublishedProgram {
    program: Arc<Program>,
    sinks: Arc<SinkMap>,
    /// The entries, by class.
    entries: Box<[Entry]>,
    /// The lookups, by class.
    lookups: Box<[Lookup]>,
    places: TallyPlaces,
    /// By number of the action, the decision on packets that a rule at run time with that action decides.
    runtime: Box<[Option<Entry>]>,
    /// Whether a class has a rule of which not all packets are let through.
    has_policed_rules: bool,
}

impl PublishedProgram {
    fn new(program: Arc<Program>, sinks: Arc<SinkMap>) -> Self {
        program.make_indexes();
        let (tallies, has_policed_rules) = rule_tallies(&program, sinks.returns());
        let places = TallyPlaces::new(tallies);
        let of_class = |class: &Option<Class>| {
            let exact = class.as_ref().and_then(|class| match &class.decide {
                Decide::Exact(outcome) => Some(outcome),
                Decide::Software(..) => None,
            });
            let exact = exact.filter(|outcome| !(has_policed_rules && program.is_policed(outcome)));
            let entry = exact.map_or(Entry::NONE, |outcome| entry(&places, &sinks, outcome));
            (entry, Lookup::of(class.as_ref()))
        };
        let (entries, lookups): (Vec<Entry>, Vec<Lookup>) = program.classes.iter().map(of_class).unzip();
        let runtime = runtime_entries(&program, &places, &sinks);
        let (entries, lookups) = (entries.into(), lookups.into());
        Self { program, sinks, entries, lookups, places, runtime, has_policed_rules }
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
    /// The tallies, by [`TallyPlaces`].
    pub(crate) tallies: TallyRow,
}

impl ClassTable {
    /// A table of a worker for a program with all counters at zero.
    pub(crate) fn new(published: Arc<PublishedProgram>, worker: WorkerId) -> Self {
        let tallies = TallyRow::new(published.places.len);
        let policers = match published.has_policed_rules {
            true => Policers::of(&published.program, worker),
            false => Policers::default(),
        };
        Self { published, policers, tallies }
    }

    /// The entries of exact classes whose rules let all packets through, by class.
    #[inline]
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.published.entries
    }

    /// Whether the program has the class.
    pub(crate) fn has(&self, class: ClassId) -> bool {
        self.published.program.class(class).is_some()
    }

    /// The sinks of the program.
    pub(crate) fn sinks(&self) -> &SinkMap {
        &self.published.sinks
    }

    /// The decision on packets with this outcome that are let through.
    fn entry(&self, outcome: &Outcome) -> Entry {
        entry(&self.published.places, self.sinks(), outcome)
    }

    /// The decision on a packet with this outcome, which may be one that its rule does not let through;
    /// `packet` is called only if the rule may not.
    pub(crate) fn police<'p>(
        &self,
        outcome: Outcome,
        packet: impl FnOnce() -> PolicedPacket<'p>,
        now: &mut dyn FnMut() -> u64,
    ) -> Entry {
        let policer = self.policers.of_outcome(&outcome);
        let refused = policer.and_then(|policer| policer.refuses(&packet(), now));
        match refused {
            None => self.entry(&outcome),
            Some(disposition) => {
                let outcome = Outcome { verdict: Verdict::Drop, ..outcome };
                entry_of(&self.published.places, self.sinks(), &outcome, disposition)
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

    /// Every rule with each disposition that its classes can have, and what was counted for rules at run
    /// time.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (&str, Disposition, Traffic)> {
        let PublishedProgram { program, places, .. } = &*self.published;
        let names = program.rules.iter().map(|rule| rule.name.as_str()).chain([RUNTIME_RULES]);
        names.zip(&places.rules).flat_map(move |(name, tallies)| {
            tallies.places().filter_map(move |(disposition, place)| {
                let traffic = self.tallies.at(place).map(Tally::read)?;
                (name != RUNTIME_RULES || traffic.packets > 0).then_some((name, disposition, traffic))
            })
        })
    }
}

/// The decisions of rules at run time, by the number of their action.
fn runtime_entries(program: &Program, places: &TallyPlaces, sinks: &SinkMap) -> Box<[Option<Entry>]> {
    let rule = RuleId::of(program.rules.len());
    let actions = program.runtime.iter().flat_map(|RuntimeRules { actions, .. }| actions).enumerate();
    let entries = actions.map(|(number, action)| {
        let outcome = Outcome { rule, verdict: action.as_ref()?.verdict };
        let tally = places.of(rule, Disposition::of(outcome.verdict, sinks.returns()));
        let sinks = u32::try_from(sinks.place_of_action(number, outcome.verdict)).ok()?;
        Some(Entry { outcome, tally, sinks })
    });
    entries.collect()
}

/// The decision on packets with this outcome that are let through.
fn entry(places: &TallyPlaces, sinks: &SinkMap, outcome: &Outcome) -> Entry {
    entry_of(places, sinks, outcome, Disposition::of(outcome.verdict, sinks.returns()))
}

#[inline]
fn entry_of(places: &TallyPlaces, sinks: &SinkMap, outcome: &Outcome, disposition: Disposition) -> Entry {
    let tally = places.of(outcome.rule, disposition);
    let sinks = u32::try_from(sinks.place(outcome)).unwrap_or(NONE);
    Entry { outcome: *outcome, tally, sinks }
}

/// The tallies of each rule: those of the dispositions that its classes can have, which snapshots have even
/// at zero. The steps of many classes are of one list, which is read once. The second value is whether a
/// class has a rule of which not all packets are let through.
fn rule_tallies(program: &Program, returns: bool) -> (Vec<RuleTallies>, bool) {
    let mut tallies = vec![RuleTallies::default(); program.rules.len()];
    let mut has_policed_rules = false;
    let mut note = |outcome: &Outcome| {
        if let Some(rule) = tallies.get_mut(outcome.rule.index()) {
            rule.add(Disposition::of(outcome.verdict, returns));
            let policing = match outcome.verdict {
                Verdict::Deliver(_) => program.rules[outcome.rule.index()].policing,
                _ => Policing::default(),
            };
            has_policed_rules |= !policing.passes_all();
            if policing.limit.is_some() {
                rule.add(Disposition::RateLimited);
            }
            if policing.per_source().is_some() {
                rule.add(Disposition::SourceOverflow);
            }
            if policing.sample > 1 {
                rule.add(Disposition::NotSampled);
            }
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
    let mut at_run_time = RuleTallies::default();
    Disposition::ALL.into_iter().for_each(|disposition| at_run_time.add(disposition));
    tallies.push(at_run_time);
    (tallies, has_policed_rules)
}
