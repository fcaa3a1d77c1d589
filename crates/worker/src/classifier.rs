//! From a flow tag to an outcome: the class tables of the two bands of programs, the counters of their rules,
//! and the replacement of one program by the next. Only the worker's loop calls the classifier. Packets of
//! hybrid classes are parsed, packets of exact classes never, so anomalies are seen in hybrid classes only.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use packet::{DeepKey, FlowKey};
use program::{
    Band, Class, ClassId, ClassIndex, ClassTag, Decide, Outcome, Policing, Program, RuleId, StepList,
    Verdict, WorkerId,
};
use verbs::FramePool;

use crate::batch::{Batch, Decision, Packet};
use crate::control::{Command, Mailbox, Publication};
use crate::counter::{Tally, TallyRow, Traffic};
use crate::disposition::Disposition;
use crate::policer::Policers;
use crate::sink::SinkMap;
use crate::stats::{DropReason, Stats};

/// The programs whose tags packets may still carry.
#[derive(Debug)]
pub(crate) struct Classifier {
    bands: [Option<Arc<ClassTable>>; 2],
    /// The band that was published last.
    latest: Band,
    /// Every command up to this one is applied.
    seen: Publication,
    draining: Option<Draining>,
    /// Completions that can be waiting at once.
    outstanding_max: u64,
}

/// A command whose band still has a table that waiting completions may need. Completions come in
/// order, so once the queue was seen empty, or as many were taken as it can hold, all that were
/// waiting when the command was seen have been classified.
#[derive(Debug)]
struct Draining {
    command: Command,
    left: u64,
}

impl Classifier {
    pub(crate) fn new(outstanding_max: u32) -> Self {
        Self {
            bands: [None, None],
            latest: Band::A,
            seen: Publication::default(),
            draining: None,
            outstanding_max: u64::from(outstanding_max),
        }
    }

    /// Takes published programs. Costs one atomic read per iteration if there is none.
    #[inline]
    pub(crate) fn refresh(&mut self, mailbox: &Mailbox, last: &Batch) {
        if mailbox.newer_than(self.seen) {
            self.take_commands(mailbox, last);
        }
    }

    /// Whether there are commands that were not applied.
    pub(crate) fn is_behind(&self, mailbox: &Mailbox) -> bool {
        mailbox.newer_than(self.seen)
    }

    #[cold]
    fn take_commands(&mut self, mailbox: &Mailbox, last: &Batch) {
        if let Some(mut draining) = self.draining.take() {
            draining.left = draining.left.saturating_sub(last.completions as u64);
            if draining.left > 0 && !last.drained {
                self.draining = Some(draining);
                return;
            }
            self.apply(draining.command, mailbox);
        }
        while let Some(command) = mailbox.take() {
            if self.bands[command.band.index()].is_some() {
                self.draining = Some(Draining { command, left: self.outstanding_max });
                return;
            }
            self.apply(command, mailbox);
        }
    }

    /// Releases the old table before the acknowledgement, so that the publisher frees it, never this thread.
    fn apply(&mut self, command: Command, mailbox: &Mailbox) {
        if command.table.is_some() {
            self.latest = command.band;
        }
        self.bands[command.band.index()] = command.table;
        self.seen = command.publication;
        mailbox.acknowledge(command.publication);
    }

    /// Finds the outcome of every packet of the batch and counts it, under its rule or with a reason. Packets
    /// that a sink gets, or all that have an outcome if `all`, have a decision afterwards.
    ///
    /// Packets of exact classes of rules that let all packets through take one look at a table. For all
    /// others [`Classifier::resolve`] is called. `now` reads the clock once at most.
    pub(crate) fn classify(
        &self,
        batch: &mut Batch,
        pool: &FramePool,
        all: bool,
        stats: &Stats,
        now: &mut dyn FnMut() -> u64,
    ) {
        let views = Band::ALL.map(|band| View::of(self.bands[band.index()].as_deref()));
        // Out of the batch for the loop, which adds to the batch.
        let packets = std::mem::take(&mut batch.packets);
        for (index, packet) in packets.iter().enumerate() {
            if let Some((view, entry, tally)) = find(&views, packet.tag) {
                view.count_and_decide(entry, tally, (index, packet.bytes), (all, batch));
            } else if let Some((band, entry)) = self.resolve(packet, batch, pool, stats, now) {
                let view = &views[band.index()];
                match view.tallies.get(entry.tally as usize) {
                    Some(tally) => view.count_and_decide(&entry, tally, (index, packet.bytes), (all, batch)),
                    None => stats.dropped(DropReason::UnknownClass),
                }
            }
        }
        batch.packets = packets;
    }

    /// Decides a packet whose class is not exact, that has no tag, or whose rule is policed. Counts a packet
    /// for which there is none.
    #[inline(never)]
    fn resolve(
        &self,
        packet: &Packet,
        batch: &Batch,
        pool: &FramePool,
        stats: &Stats,
        now: &mut dyn FnMut() -> u64,
    ) -> Option<(Band, Entry)> {
        let (band, table, class) = self.class_of(packet.tag, stats)?;
        let Some((class, lookup)) = table.class(class) else {
            stats.dropped(DropReason::UnknownClass);
            return None;
        };
        let outcome = match &class.decide {
            Decide::Exact(outcome) => *outcome,
            Decide::Software(..) => {
                let frame = batch.data(packet, pool);
                let parsed = packet::parse(frame);
                if let Some(anomaly) = parsed.anomaly {
                    stats.anomaly(anomaly);
                }
                if lookup.is_deep {
                    let tunnel = packet::parse_tunnel(frame, &parsed);
                    lookup.resolve_deep(class, &DeepKey { outer: parsed.key, tunnel })
                } else {
                    lookup.resolve(class, &parsed.key)
                }
            }
        };
        Some((band, table.police(outcome, now)))
    }

    /// The class of a tag, and its program.
    fn class_of(&self, tag: u32, stats: &Stats) -> Option<(Band, &ClassTable, ClassId)> {
        let known = match ClassTag::decode(tag) {
            Some(tag) => Some((tag.band, tag.class)),
            None if tag == 0 => self.untagged(),
            None => None,
        };
        let found = known.and_then(|(band, class)| Some((band, &**self.table(band)?, class)));
        if found.is_none() {
            stats.dropped(DropReason::UnknownTag);
        }
        found
    }

    /// The class of packets without a tag, by the latest program that has one. Such packets do not carry the
    /// band of their flow's program, so while one program replaces another the new one classifies them.
    fn untagged(&self) -> Option<(Band, ClassId)> {
        let bands = [self.latest, self.latest.other()];
        bands.into_iter().find_map(|band| Some((band, self.table(band)?.untagged()?)))
    }

    /// The program of a band.
    pub(crate) fn table(&self, band: Band) -> Option<&Arc<ClassTable>> {
        self.bands[band.index()].as_ref()
    }
}

/// The tables of a program that the packets of exact classes need, for one batch.
#[derive(Clone, Copy)]
// A power of two in size, for the address of the second.
#[repr(align(64))]
struct View<'t> {
    entries: &'t [Entry],
    tallies: &'t [Tally],
    sinks: &'t [AtomicU64],
    generation: u64,
}

impl<'t> View<'t> {
    fn of(table: Option<&'t ClassTable>) -> Self {
        let Some(table) = table else {
            return View { entries: &[], tallies: &[], sinks: &[], generation: 0 };
        };
        Self {
            entries: &table.entries,
            tallies: table.tallies.all(),
            sinks: table.sinks.bits(),
            generation: table.sinks.generation(),
        }
    }

    /// Counts a packet, with its index and length, and adds its decision to the batch if a sink gets it, or
    /// if `all` have one.
    #[inline]
    fn count_and_decide(
        &self,
        entry: &Entry,
        tally: &Tally,
        (index, bytes): (usize, u32),
        (all, batch): (bool, &mut Batch),
    ) {
        tally.add(1, u64::from(bytes));
        let sinks = self.sinks.get(entry.sinks as usize).map_or(0, |bits| bits.load(Relaxed));
        if sinks != 0 || all {
            batch.sinks |= sinks;
            let (outcome, generation) = (entry.outcome, self.generation);
            // At most one per packet, and a batch has fewer than 2^32.
            batch.decisions.push(Decision { packet: index as u32, outcome, sinks, generation });
        }
    }
}

/// Finds the decision on packets of an exact class, and where they are counted.
#[inline]
fn find<'v, 't>(views: &'v [View<'t>; 2], tag: u32) -> Option<(&'v View<'t>, &'t Entry, &'t Tally)> {
    let (band, class) = ClassTag::indices(tag);
    let view = views.get(band)?;
    let entry = view.entries.get(class)?;
    Some((view, entry, view.tallies.get(entry.tally as usize)?))
}

/// How the outcome of a class is found.
#[derive(Debug, Default)]
struct Lookup {
    /// The tunnel headers must be parsed.
    is_deep: bool,
    /// The index of a class with many steps.
    index: Option<ClassIndex>,
}

impl Lookup {
    fn of(class: Option<&Class>) -> Self {
        let of = |class: &Class| Self { is_deep: class.needs_tunnel(), index: ClassIndex::of(class) };
        class.map(of).unwrap_or_default()
    }

    #[inline]
    fn resolve(&self, class: &Class, key: &FlowKey) -> Outcome {
        match &self.index {
            Some(index) => index.resolve(class, key),
            None => class.resolve(key),
        }
    }

    #[inline]
    fn resolve_deep(&self, class: &Class, key: &DeepKey) -> Outcome {
        match &self.index {
            Some(index) => index.resolve_deep(class, key),
            None => class.resolve_deep(key),
        }
    }
}

/// The decision on packets of an exact class or with an outcome.
#[derive(Clone, Copy, Debug)]
struct Entry {
    outcome: Outcome,
    /// Index of their tally; beyond the row for classes that are not exact or whose rule is policed.
    tally: u32,
    /// Index of their sinks ([`SinkMap::place`]).
    sinks: u32,
}

/// Beyond every row.
const NONE: u32 = u32::MAX;
/// In entries of classes that are not exact.
const NO_OUTCOME: Outcome = Outcome { rule: RuleId(u32::MAX), verdict: Verdict::Drop };

/// The classes of a program with one worker's counters, for one band.
#[derive(Debug)]
pub(crate) struct ClassTable {
    program: Arc<Program>,
    sinks: Arc<SinkMap>,
    /// The entries, by class.
    entries: Box<[Entry]>,
    /// The lookups, by class.
    lookups: Box<[Lookup]>,
    /// The dispositions that a rule's classes can have, by rule: snapshots have them even at zero.
    possible: Box<[[bool; Disposition::ALL.len()]]>,
    policers: Policers,
    /// One tally per rule and disposition: `rule * Disposition::ALL.len() + disposition`.
    tallies: TallyRow,
}

impl ClassTable {
    /// A table of a worker for `program` with all counters at zero.
    pub(crate) fn new(program: Arc<Program>, sinks: Arc<SinkMap>, worker: WorkerId) -> Self {
        let tallies = TallyRow::new(program.rules.len() * Disposition::ALL.len());
        let lookups = program.classes.iter().map(|class| Lookup::of(class.as_ref())).collect();
        let policers = Policers::of(&program, worker);
        let possible = possible(&program, sinks.returns());
        let rules = program.rules.len();
        let exact = |class: &Option<Class>| match class.as_ref().map(|class| &class.decide) {
            Some(Decide::Exact(outcome)) if policers.of_outcome(outcome).is_none() => {
                entry(rules, &sinks, outcome)
            }
            _ => Entry { outcome: NO_OUTCOME, tally: NONE, sinks: NONE },
        };
        let entries = program.classes.iter().map(exact).collect();
        Self { program, sinks, entries, lookups, possible, policers, tallies }
    }

    /// The decision on packets with this outcome that are let through.
    fn entry(&self, outcome: &Outcome) -> Entry {
        entry(self.possible.len(), &self.sinks, outcome)
    }

    /// The decision on a packet with this outcome, which may be one that its rule does not let through.
    fn police(&self, outcome: Outcome, now: &mut dyn FnMut() -> u64) -> Entry {
        let refused = self.policers.of_outcome(&outcome).and_then(|policer| policer.refuses(now));
        match refused {
            None => self.entry(&outcome),
            Some(disposition) => {
                let outcome = Outcome { verdict: Verdict::Drop, ..outcome };
                entry_of(self.possible.len(), &self.sinks, &outcome, disposition)
            }
        }
    }

    /// The program it was made from.
    pub(crate) fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// The class with that id; `None` if the program has no such class.
    #[inline]
    fn class(&self, id: ClassId) -> Option<(&Class, &Lookup)> {
        Some((self.program.class(id)?, self.lookups.get(id.index())?))
    }

    /// The class of packets without a tag, if the program has any.
    #[inline]
    pub(crate) fn untagged(&self) -> Option<ClassId> {
        self.program.untagged
    }

    /// Where packets with this outcome are counted; `None` for a rule beyond the program.
    #[cfg(test)]
    pub(crate) fn tally(&self, outcome: &Outcome) -> Option<&Tally> {
        self.tallies.at(self.entry(outcome).tally as usize)
    }

    /// Every rule with each disposition that its classes can have or that was counted.
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
    Entry { outcome: *outcome, tally: tally.unwrap_or(NONE), sinks }
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
