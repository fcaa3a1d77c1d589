//! From a flow tag to an outcome, by the map of classes, and the replacement of one map by the next. Only the
//! worker's loop calls the classifier. Packets of hybrid classes are parsed, packets of exact classes never,
//! so anomalies are seen in hybrid classes only.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use packet::DeepKey;
use program::{ClassId, Decide, Outcome, RuntimeHeader};
use verbs::FramePool;

use crate::batch::{Batch, Decision, Packet};
use crate::class_map::{ClassMap, TABLES_MAX};
use crate::class_table::{ClassTable, Entry};
use crate::counter::Tally;
use crate::mailbox::{Command, Mailbox, Publication};
use crate::policer::PolicedPacket;
use crate::runtime_rules::{GROUP, RuntimeLookups, RuntimeTable, Undecided, WaitingPackets};
use crate::stats::{DropReason, Stats};

/// The classes that packets may still have.
#[derive(Debug)]
pub(crate) struct Classifier {
    map: Option<Arc<ClassMap>>,
    /// Every command up to this one is applied.
    seen: Publication,
    draining: Option<Draining>,
    /// Completions that can be waiting at once.
    outstanding_max: u64,
}

/// A command for which completions may wait that the map before it classifies. Completions come in
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
            map: None,
            seen: Publication::default(),
            draining: None,
            outstanding_max: u64::from(outstanding_max),
        }
    }

    /// Takes published maps. Costs one atomic read per iteration if there is none.
    #[inline]
    pub(crate) fn refresh(&mut self, mailbox: &Mailbox, last: &Batch) {
        if mailbox.newer_than(self.seen) {
            self.take_commands(mailbox, last);
        }
    }

    /// The packets that wait, if they can be of two programs.
    pub(crate) fn packets_of_two_programs(&self, last: &Batch) -> Option<WaitingPackets> {
        let two = self.map.as_ref().filter(|map| map.present().count() > 1);
        two.map(|_| WaitingPackets {
            most: self.outstanding_max,
            taken: last.completions as u64,
            are_none: last.drained,
        })
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
            if self.map.is_some() {
                self.draining = Some(Draining { command, left: self.outstanding_max });
                return;
            }
            self.apply(command, mailbox);
        }
    }

    /// Releases the old map before the acknowledgement, so that the publisher frees it, never this thread.
    fn apply(&mut self, command: Command, mailbox: &Mailbox) {
        self.map = Some(command.map);
        self.seen = command.publication;
        mailbox.acknowledge(command.publication);
    }

    /// Finds the outcome of every packet of the batch and counts it, under its rule or with a reason. Packets
    /// that a sink gets, or all that have an outcome if `all`, have a decision afterwards.
    ///
    /// Packets of exact classes of rules that let all packets through take one look at a table. For all
    /// others [`Classifier::resolve`] is called. `now` reads the clock once at most. `rules`: the rules at
    /// run time, if there are any.
    pub(crate) fn classify(
        &self,
        batch: &mut Batch,
        pool: &FramePool,
        all: bool,
        stats: &Stats,
        now: &mut dyn FnMut() -> u64,
        rules: Option<&RuntimeTable>,
    ) {
        if let Some(rules) = rules
            && self.map.as_ref().is_some_and(|map| map.allows_rules_at_run_time)
        {
            return self.classify_by_rules_at_run_time(rules, batch, pool, all, stats, now);
        }
        let (entries, views) = match &self.map {
            Some(map) => (map.entries(), map.tables().map(View::of)),
            None => (&[][..], [View::of(None); TABLES_MAX]),
        };
        let in_force = views[0];
        // Out of the batch for the loop, which adds to the batch.
        let packets = std::mem::take(&mut batch.packets);
        for (index, packet) in packets.iter().enumerate() {
            if let Some((entry, tally)) = find(entries, &in_force, packet.tag) {
                in_force.count_and_decide(entry, tally, index, packet.bytes, all, batch);
            } else if let Some((table, entry)) = self.resolve(packet, batch, pool, stats, now) {
                let view = &views[table];
                match view.tallies.get(entry.tally as usize) {
                    Some(tally) => view.count_and_decide(&entry, tally, index, packet.bytes, all, batch),
                    None => stats.dropped(DropReason::UnknownClass),
                }
            }
        }
        batch.packets = packets;
    }

    /// The same where rules at run time may decide packets: they come between the decision of the class and
    /// the limits of its rule.
    #[inline(never)]
    fn classify_by_rules_at_run_time(
        &self,
        rules: &RuntimeTable,
        batch: &mut Batch,
        pool: &FramePool,
        all: bool,
        stats: &Stats,
        now: &mut dyn FnMut() -> u64,
    ) {
        let Some(map) = &self.map else { return };
        let views = map.tables().map(View::of);
        let packets = std::mem::take(&mut batch.packets);
        let RuntimeLookups { mut probes, mut undecided } = std::mem::take(&mut batch.lookups);
        for (first, group) in packets.chunks(GROUP).enumerate() {
            for packet in group {
                let found = self.outcome(packet, batch, pool, stats);
                if let Some((_, table, outcome)) = &found {
                    let header = || RuntimeHeader::of(&packet::parse(batch.data(packet, pool)).key);
                    table.probe(outcome, header, rules, &mut probes);
                }
                let outcome = found.map(|(place, _, outcome)| (place, outcome));
                undecided.push(Undecided { outcome, probes_end: probes.len() });
            }
            rules.begin_all(&mut probes);
            let mut begin = 0;
            for (index, (packet, Undecided { outcome, probes_end })) in
                group.iter().zip(&undecided).enumerate()
            {
                let own = &probes[std::mem::replace(&mut begin, *probes_end)..*probes_end];
                let Some((place, outcome)) = *outcome else { continue };
                let (view, Some(table)) = (&views[place], map.tables()[place]) else { continue };
                let at_run_time = table.decide_at_run_time(own, rules, packet.bytes);
                let entry = at_run_time.unwrap_or_else(|| {
                    let frame = || PolicedPacket { bytes: packet.bytes, frame: batch.data(packet, pool) };
                    table.police(outcome, frame, now)
                });
                match view.tallies.get(entry.tally as usize) {
                    Some(tally) => {
                        let index = first * GROUP + index;
                        view.count_and_decide(&entry, tally, index, packet.bytes, all, batch);
                    }
                    None => stats.dropped(DropReason::UnknownClass),
                }
            }
            probes.clear();
            undecided.clear();
        }
        batch.lookups = RuntimeLookups { probes, undecided };
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
    ) -> Option<(usize, Entry)> {
        let (place, table, outcome) = self.outcome(packet, batch, pool, stats)?;
        let frame = || PolicedPacket { bytes: packet.bytes, frame: batch.data(packet, pool) };
        Some((place, table.police(outcome, frame, now)))
    }

    /// The outcome of a packet by its class, before the limits of its rule, and the table that it is of.
    /// Counts a packet for which there is none.
    #[inline]
    fn outcome(
        &self,
        packet: &Packet,
        batch: &Batch,
        pool: &FramePool,
        stats: &Stats,
    ) -> Option<(usize, &ClassTable, Outcome)> {
        let (place, table, class) = self.class_of(packet.tag, stats)?;
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
        Some((place, table, outcome))
    }

    /// The class of a tag, its table, and the place of that in the map. Counts a packet for which there is
    /// none.
    fn class_of(&self, tag: u32, stats: &Stats) -> Option<(usize, &ClassTable, ClassId)> {
        let map = self.map.as_ref();
        let found = match ClassId::of_tag(tag) {
            Some(class) => map.map(|map| {
                map.table_of(class)
                    .map(|(place, table)| (place, table, class))
                    .ok_or(DropReason::UnknownClass)
            }),
            None if tag == 0 => map.and_then(|map| map.untagged()).map(Ok),
            None => None,
        };
        found.unwrap_or(Err(DropReason::UnknownTag)).map_err(|reason| stats.dropped(reason)).ok()
    }

    /// The map by which packets are classified.
    #[cfg(test)]
    pub(crate) fn map(&self) -> Option<&ClassMap> {
        self.map.as_deref()
    }

    /// The programs by which packets are classified, the one in force first.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &Arc<ClassTable>> {
        self.map.iter().flat_map(|map| map.present())
    }
}

/// The tables of a program that the packets of exact classes need, for one batch.
#[derive(Clone, Copy)]
struct View<'t> {
    tallies: &'t [Tally],
    sinks: &'t [AtomicU64],
    generation: u64,
}

impl<'t> View<'t> {
    fn of(table: Option<&'t ClassTable>) -> Self {
        let Some(table) = table else {
            return View { tallies: &[], sinks: &[], generation: 0 };
        };
        Self {
            tallies: table.tallies.all(),
            sinks: table.sinks().bits(),
            generation: table.sinks().generation(),
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
fn find<'t>(entries: &'t [Entry], view: &View<'t>, tag: u32) -> Option<(&'t Entry, &'t Tally)> {
    // Of no tag, 0, and of one that is not ours the class is beyond all entries.
    let entry = entries.get(tag.wrapping_sub(1) as usize)?;
    Some((entry, view.tallies.get(entry.tally as usize)?))
}
