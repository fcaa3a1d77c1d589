//! The handle by which everybody else speaks with a worker: publish programs, see them
//! acknowledged, read its books. Cheap to clone; never touches the worker's queues.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use program::{Band, Program, RETIRED_RULES, WorkerId};

use crate::mailbox::{COMMANDS_MAX, Mailbox, Publication};
use crate::snapshot::{RuleSnapshot, WorkerSnapshot};
use crate::stats::Stats;
use crate::table::ClassTable;
use crate::{Disposition, Traffic, Warning};

/// How long [`WorkerControl::wait`] rests between looks.
const WAIT_STEP: Duration = Duration::from_micros(50);

/// A handle on one worker.
#[derive(Clone, Debug)]
pub struct WorkerControl {
    shared: Arc<Shared>,
}

/// Whether a worker is alive and well; see [`WorkerControl::pulse`]. None of it ever goes backwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pulse {
    /// Turns of the loop.
    pub turns: u64,
    /// Packets taken from the queue.
    pub received_packets: u64,
    /// Polls that the device refused.
    pub poll_errors: u64,
}

/// What a worker and its handles share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) id: WorkerId,
    pub(crate) stats: Stats,
    pub(crate) mailbox: Mailbox,
    ledger: Mutex<Ledger>,
    warnings: Mutex<Vec<Warning>>,
}

/// Tables that still count, and the sums of those that no longer do.
#[derive(Debug, Default)]
struct Ledger {
    tables: Vec<Entry>,
    retired: Totals,
}

type Totals = BTreeMap<(String, Disposition), Traffic>;

#[derive(Debug)]
struct Entry {
    band: Band,
    table: Arc<ClassTable>,
    /// The publication that brings it to the worker.
    publication: Publication,
    /// The one that takes it away again.
    retired_by: Option<Publication>,
}

/// Tables that can be in use at once: those in the bands, one whose place is being drained, and those
/// that wait.
const TABLES_MAX: usize = Band::ALL.len() + 1 + COMMANDS_MAX;

impl Ledger {
    /// Folds the tables that the worker has let go of into the totals.
    fn settle(&mut self, acknowledged: Publication) {
        let retired = &mut self.retired;
        self.tables.retain(|entry| {
            let settled = entry.retired_by.is_some_and(|publication| publication <= acknowledged);
            if settled {
                // What nothing was counted for needs no memory.
                entry
                    .table
                    .rows()
                    .filter(|(.., traffic)| traffic.packets > 0)
                    .for_each(|row| add(retired, row));
            }
            !settled
        });
    }

    /// Sums up the totals of all names that are not in `keep` under one. A rule that a table still has is kept too:
    /// its total would go backwards.
    fn retire(&mut self, keep: &HashSet<&str>) {
        let rules = self.tables.iter().flat_map(|entry| &entry.table.program().rules);
        let live: HashSet<&str> = rules.map(|rule| rule.name.as_str()).collect();
        let mut sums = [Traffic::default(); Disposition::ALL.len()];
        self.retired.retain(|(name, disposition), traffic| {
            let kept = name == RETIRED_RULES || keep.contains(name.as_str()) || live.contains(name.as_str());
            if !kept {
                sums[*disposition as usize] += *traffic;
            }
            kept
        });
        for (disposition, traffic) in Disposition::ALL.into_iter().zip(sums) {
            if traffic.packets > 0 {
                add(&mut self.retired, (RETIRED_RULES, disposition, traffic));
            }
        }
    }
}

fn add(totals: &mut Totals, (name, disposition, traffic): (&str, Disposition, Traffic)) {
    *totals.entry((name.to_owned(), disposition)).or_default() += traffic;
}

impl WorkerControl {
    pub(crate) fn new(id: WorkerId, warnings: Vec<Warning>) -> Self {
        let shared = Shared {
            id,
            stats: Stats::default(),
            mailbox: Mailbox::default(),
            ledger: Mutex::default(),
            warnings: Mutex::new(warnings),
        };
        Self { shared: Arc::new(shared) }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Which worker this is.
    #[must_use]
    pub fn id(&self) -> WorkerId {
        self.shared.id
    }

    /// Puts `program` in `band`, where it stays until the next one for that band. A program that stands
    /// there is first drained: the worker takes every completion that was waiting when it saw the
    /// command, and then lets go. One that it has not yet looked at is passed over.
    pub fn publish(&self, band: Band, program: Arc<Program>) -> Publication {
        self.push(band, Some(Arc::new(ClassTable::new(program))))
    }

    /// Empties `band`, in the same way: to be called once no packet can come any more with a tag of the program
    /// that stands there. Its memory is free after the acknowledgement and the next call of this handle.
    pub fn clear(&self, band: Band) -> Publication {
        self.push(band, None)
    }

    fn push(&self, band: Band, table: Option<Arc<ClassTable>>) -> Publication {
        let mut ledger = self.ledger();
        ledger.settle(self.shared.mailbox.acknowledged());
        let (publication, void) = self.shared.mailbox.push(band, table.clone());
        ledger.tables.retain(|entry| Some(entry.publication) != void);
        for entry in ledger.tables.iter_mut().filter(|entry| entry.band == band) {
            if entry.retired_by.is_none() || entry.retired_by == void {
                entry.retired_by = Some(publication);
            }
        }
        ledger.tables.extend(table.map(|table| Entry { band, table, publication, retired_by: None }));
        debug_assert!(ledger.tables.len() <= TABLES_MAX);
        publication
    }

    /// Sums up what rules have counted that are neither in `keep` nor in a published program, under the name
    /// [`RETIRED_RULES`] by disposition. Totals by name stay in memory until this is called.
    pub fn retire_rules(&self, keep: &HashSet<&str>) {
        let mut ledger = self.ledger();
        ledger.settle(self.shared.mailbox.acknowledged());
        ledger.retire(keep);
    }

    /// Whether the worker judges packets by what was published as `publication`, or by a later one.
    #[must_use]
    pub fn acknowledged(&self, publication: Publication) -> bool {
        self.shared.mailbox.acknowledged() >= publication
    }

    /// Waits at most `patience` for [`WorkerControl::acknowledged`].
    #[must_use]
    pub fn wait(&self, publication: Publication, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while !self.acknowledged(publication) {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(WAIT_STEP);
        }
        true
    }

    /// Whether the worker's receive queue has failed, for good: it receives nothing any more, and what
    /// its groups' tables give it is lost. The worker goes on taking what was received before.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.shared.stats.queue_failed()
    }

    /// What was not as asked for, with the remedies.
    #[must_use]
    pub fn warnings(&self) -> Vec<Warning> {
        self.shared.warnings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn warn(&self, warning: Warning) {
        tracing::warn!(worker = self.shared.id.0, "{warning}");
        self.shared.warnings.lock().unwrap_or_else(PoisonError::into_inner).push(warning);
    }

    /// A look that locks nothing and copies nothing, for watchdogs.
    #[must_use]
    pub fn pulse(&self) -> Pulse {
        let stats = &self.shared.stats;
        Pulse {
            turns: stats.turns.read(),
            received_packets: stats.received.read().packets,
            poll_errors: stats.poll_errors.read(),
        }
    }

    /// The worker's books, read while it runs: the figures are as of slightly different instants, so
    /// they balance exactly only when it is idle. No total ever goes backwards.
    #[must_use]
    pub fn snapshot(&self) -> WorkerSnapshot {
        let rules = {
            let mut ledger = self.ledger();
            ledger.settle(self.shared.mailbox.acknowledged());
            let mut totals = ledger.retired.clone();
            for entry in &ledger.tables {
                entry.table.rows().for_each(|row| add(&mut totals, row));
            }
            totals
        };
        let rules = rules
            .into_iter()
            .map(|((name, disposition), traffic)| RuleSnapshot { name, disposition, traffic })
            .collect();
        WorkerSnapshot::read(self.shared.id, &self.shared.stats, rules)
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.shared.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
