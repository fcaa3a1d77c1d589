//! The packets of a trace, each decided by the old and by the new program, counted by what changes for it.
//! The decision of the daemon is in the trace, and a packet that the old program decides otherwise is not
//! compared.

use std::collections::BTreeMap;
use std::time::Duration;

use analysis::{Effect, MetRules, PacketComparison};
use packet::DeepKey;
use policy::Policy;
use program::{Program, Verdict, WorkerId};
use reports::{Amount, Decision, Decisions};

use crate::api::model::TraceLine;
use crate::policy_file;

/// The effects before and after of packets that change.
pub(super) type ChangeKey = [Effect; 2];

/// The packets of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ChangedPackets {
    pub(super) amount: Amount,
    /// The packets that a worker receives before and another one after.
    pub(super) other_worker: u64,
    /// The first of them in the short notation; empty if there is none.
    pub(super) example: String,
}

/// The packets that a worker receives under one program, copies included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WorkerLoad {
    pub(super) packets: u64,
    /// The time for them, by the compiler's model of costs.
    pub(super) picoseconds: u64,
}

/// The packets of a generation. Pairs are before and after.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// The packets that were compared.
    pub(super) all: Amount,
    /// The packets for which something changes.
    pub(super) moved: Amount,
    pub(super) changes: BTreeMap<ChangeKey, ChangedPackets>,
    pub(super) workers: BTreeMap<WorkerId, [WorkerLoad; 2]>,
    /// The packets that a worker compares with rules.
    pub(super) by_workers: [u64; 2],
    /// The packets that rules at run time decide, which are not compared.
    pub(super) at_run_time: u64,
    /// The frames without an Ethernet header, or with headers beyond the bytes of a trace; not compared.
    pub(super) unreadable: u64,
    /// The packets that the daemon decides by another rule than the old program; not compared.
    pub(super) differing: u64,
}

/// The packets of a sample.
pub(super) struct Tally<'p> {
    comparison: PacketComparison<'p>,
    programs: [&'p Program; 2],
    old: Decisions<'p>,
    new: Decisions<'p>,
    /// The generation of the old policy.
    generation: u64,
    /// The packets of that generation.
    pub(super) own: Counts,
    /// The packets of later ones.
    pub(super) later: Counts,
    /// The time of the first of these, after the begin of the sample.
    pub(super) later_since: Option<Duration>,
    /// All lines of the trace.
    pub(super) lines: u64,
    /// The lines of copies. A copy is a packet of its own to a worker; the packet itself is compared.
    pub(super) copies: u64,
    /// The most packets that should have been in the sample and are not.
    pub(super) left_out: u64,
}

impl<'p> Tally<'p> {
    /// An empty tally for two policies and their programs, of which the first is of this generation.
    pub(super) fn new(policies: [&'p Policy; 2], programs: [&'p Program; 2], generation: u64) -> Self {
        let [old, new] = programs.map(Decisions::new);
        Self {
            comparison: PacketComparison::of(policies[0], policies[1]),
            programs,
            old,
            new,
            generation,
            own: Counts::default(),
            later: Counts::default(),
            later_since: None,
            lines: 0,
            copies: 0,
            left_out: 0,
        }
    }

    /// Adds a line of the trace that came this long after the begin.
    pub(super) fn add(&mut self, line: &TraceLine, at: Duration) {
        self.lines += 1;
        self.left_out += line.left_out;
        if line.is_copy {
            self.copies += 1;
            return;
        }
        let counts = if line.generation == self.generation {
            &mut self.own
        } else {
            self.later_since.get_or_insert(at);
            &mut self.later
        };
        if policy_file::is_quoted(&line.rule) {
            counts.at_run_time += 1;
            return;
        }
        let key = reports::key_of_hex(&line.head).ok();
        let Some(key) = key.filter(|key| policy::short_packet(key) == line.packet) else {
            counts.unreadable += 1;
            return;
        };
        let decisions = [self.old.of(&key), self.new.of(&key)];
        let decided = decisions[0].explained.outcome.rule;
        if self.programs[0].rules.get(decided.index()).is_none_or(|rule| *rule.name != *line.rule) {
            counts.differing += 1;
            return;
        }
        counts.add(&self.comparison, self.programs, decisions, &key, line);
    }

    /// Counts the packets of later generations as those of the first: their policy is the same.
    pub(super) fn merge_later(&mut self) {
        self.own.merge(std::mem::take(&mut self.later));
        self.later_since = None;
    }
}

impl Counts {
    fn add(
        &mut self,
        comparison: &PacketComparison<'_>,
        programs: [&Program; 2],
        decisions: [&Decision; 2],
        key: &DeepKey,
        line: &TraceLine,
    ) {
        let bytes = line.bytes.into();
        self.all.add(bytes);
        let [before, after] = decisions;
        let changes = comparison.changes(&met(before), &met(after));
        if !changes.is_empty() {
            self.moved.add(bytes);
        }
        let workers = [before, after].map(|decision| decision.explained.worker);
        let is_other_worker = workers[0] != workers[1] && workers.iter().all(Option::is_some);
        for change in changes {
            let changed = self.changes.entry(change).or_default();
            changed.amount.add(bytes);
            changed.other_worker += u64::from(is_other_worker);
            if changed.example.is_empty() {
                changed.example.clone_from(&line.packet);
            }
        }
        for (side, (program, decision)) in programs.into_iter().zip(decisions).enumerate() {
            self.by_workers[side] += u64::from(decision.comparisons.is_some());
            for (worker, picoseconds) in decision.worker_times(program, key) {
                let load = &mut self.workers.entry(worker).or_default()[side];
                load.packets += 1;
                load.picoseconds += picoseconds;
            }
        }
    }

    fn merge(&mut self, other: Self) {
        let Self { all, moved, changes, workers, by_workers, at_run_time, unreadable, differing } = other;
        for (sum, more) in [(&mut self.all, all), (&mut self.moved, moved)] {
            sum.packets += more.packets;
            sum.bytes += more.bytes;
        }
        for (change, more) in changes {
            let sum = self.changes.entry(change).or_default();
            sum.amount.packets += more.amount.packets;
            sum.amount.bytes += more.amount.bytes;
            sum.other_worker += more.other_worker;
            if sum.example.is_empty() {
                sum.example = more.example;
            }
        }
        for (worker, more) in workers {
            for (sum, more) in self.workers.entry(worker).or_default().iter_mut().zip(more) {
                sum.packets += more.packets;
                sum.picoseconds += more.picoseconds;
            }
        }
        for (sum, more) in self.by_workers.iter_mut().zip(by_workers) {
            *sum += more;
        }
        self.at_run_time += at_run_time;
        self.unreadable += unreadable;
        self.differing += differing;
    }
}

/// The rules that a packet meets, by the decision on it.
pub(super) fn met(decision: &Decision) -> MetRules {
    let explained = &decision.explained;
    let copies = explained.copies.iter().map(|copied| copied.outcome);
    let copies = copies.filter(|outcome| matches!(outcome.verdict, Verdict::Deliver(_)));
    MetRules { decides: explained.outcome.rule, copies: copies.map(|outcome| outcome.rule).collect() }
}
