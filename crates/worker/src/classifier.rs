//! From a flow tag to an outcome, by the class tables of the two bands of programs, and the replacement of
//! one program by the next. Only the worker's loop calls the classifier. Packets of hybrid classes are
//! parsed, packets of exact classes never, so anomalies are seen in hybrid classes only.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use packet::DeepKey;
use program::{Band, ClassId, ClassTag, Decide};
use verbs::FramePool;

use crate::batch::{Batch, Decision, Packet};
use crate::class_table::{ClassTable, Entry};
use crate::counter::Tally;
use crate::mailbox::{Command, Mailbox, Publication};
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
                view.count_and_decide(entry, tally, index, packet.bytes, all, batch);
            } else if let Some((band, entry)) = self.resolve(packet, batch, pool, stats, now) {
                let view = &views[band.index()];
                match view.tallies.get(entry.tally as usize) {
                    Some(tally) => view.count_and_decide(&entry, tally, index, packet.bytes, all, batch),
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
        index: usize,
        bytes: u32,
        all: bool,
        batch: &mut Batch,
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
