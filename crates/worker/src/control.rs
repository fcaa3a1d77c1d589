//! The handle by which other threads reach a worker: they publish programs, wait for the acknowledgement, and
//! read its counters. Cheap to clone; never touches the worker's queues.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use parking::Wakeup;
use program::{ChangeStage, RETIRED_RULES, RUNTIME_RULES, RuntimeChange, RuntimeEntry, SinkKind, WorkerId};

use crate::class_map::{ClassMap, TABLES_MAX};
use crate::class_table::{ClassTable, PublishedStage, SharedStage};
use crate::latency::{ClockRelation, SharedClock};
use crate::mailbox::{Mailbox, Publication};
use crate::regime::KindIndex;
use crate::runtime_rules::RuntimeFeed;
use crate::sink::{Changes, Sink, Slot};
use crate::stats::Stats;
use crate::stats::{ReceiveQueueHealth, RuleSnapshot, WorkerSnapshot};
use crate::thread_activity::{ThreadActivity, WorkerThread};
use crate::{Disposition, Traffic, Warning};

/// How long [`WorkerControl::wait`] sleeps between checks at first, and after [`PROMPT`], when it also looks
/// at what the worker does.
const WAIT_STEP: Duration = Duration::from_micros(50);
const LATE_STEP: Duration = Duration::from_millis(5);
const PROMPT: Duration = Duration::from_millis(100);
/// A longer step counts as this one: the waiting thread did not run, so the whole machine may have been busy
/// or stopped.
const LONGEST_STEP: Duration = Duration::from_millis(10);
/// A wait ends after so many times the patience in any case.
const MOST_PATIENCE: u32 = 12;

/// A handle to one worker.
#[derive(Clone, Debug)]
pub struct WorkerControl {
    shared: Arc<Shared>,
}

/// The progress of a worker; see [`WorkerControl::progress`]. None of the counts ever decreases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerProgress {
    /// Iterations of the loop.
    pub iterations: u64,
    /// Packets taken from the queue.
    pub received_packets: u64,
    /// Polls that the device refused.
    pub poll_errors: u64,
}

/// The state that a worker and its handles share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) id: WorkerId,
    pub(crate) stats: Stats,
    pub(crate) mailbox: Mailbox,
    pub(crate) sinks: Changes,
    pub(crate) clock: SharedClock,
    /// Wakes the worker; `None` without a file descriptor left, and then it sleeps for short times only.
    pub(crate) wakeup: Option<Arc<Wakeup>>,
    pub(crate) thread: WorkerThread,
    ledger: Mutex<Ledger>,
    runtime: Mutex<RuntimeFeed>,
    warnings: Mutex<Vec<Warning>>,
}

/// The maps in use, and the sums of the tables that the worker has released.
#[derive(Debug, Default)]
struct Ledger {
    programs: Programs,
    maps: Vec<Entry>,
    retired: Totals,
}

/// The programs of the next map.
#[derive(Debug, Default)]
struct Programs {
    before: Option<Arc<ClassTable>>,
    after: Option<Arc<ClassTable>>,
    /// Whether the one after counts.
    is_changed: bool,
}

type Totals = BTreeMap<(String, Disposition), Traffic>;

#[derive(Debug)]
struct Entry {
    map: Arc<ClassMap>,
    /// The publication that brings it to the worker.
    publication: Publication,
    /// The publication that replaces it.
    retired_by: Option<Publication>,
}

/// Maps that can be in use at once: the worker's, one whose predecessor is being drained, and one that waits.
const MAPS_MAX: usize = 3;

impl Programs {
    /// The table of the program in force, and the other one.
    fn in_order(&self) -> [Option<Arc<ClassTable>>; TABLES_MAX] {
        let Self { before, after, is_changed } = self;
        if *is_changed { [after.clone(), before.clone()] } else { [before.clone(), after.clone()] }
    }

    /// Adds a program beside the one in force.
    fn begin(&mut self, table: ClassTable) {
        let [in_force, _] = self.in_order();
        *self = Self { before: in_force, after: Some(Arc::new(table)), is_changed: false };
    }

    /// Leaves only the program in force.
    fn release(&mut self) {
        let [in_force, _] = self.in_order();
        *self = Self { before: in_force, after: None, is_changed: false };
    }
}

/// The tables of maps, each once.
fn tables(maps: &[Entry]) -> Vec<&Arc<ClassTable>> {
    let mut tables: Vec<&Arc<ClassTable>> = Vec::new();
    for table in maps.iter().flat_map(|entry| entry.map.present()) {
        if !tables.iter().any(|known| Arc::ptr_eq(known, table)) {
            tables.push(table);
        }
    }
    tables
}

impl Ledger {
    /// Adds the tables that the worker has released to the totals.
    fn settle(&mut self, acknowledged: Publication) {
        let is_settled =
            |entry: &mut Entry| entry.retired_by.is_some_and(|publication| publication <= acknowledged);
        let released: Vec<Entry> = self.maps.extract_if(.., is_settled).collect();
        let in_use = tables(&self.maps);
        for table in tables(&released) {
            if in_use.iter().any(|known| Arc::ptr_eq(known, table)) {
                continue;
            }
            // What nothing was counted for needs no memory.
            table
                .rows()
                .filter(|(.., traffic)| traffic.packets > 0)
                .for_each(|(name, disposition, traffic)| add(&mut self.retired, name, disposition, traffic));
        }
    }

    /// Sums up the totals of all names that are not in `keep` under one; returns them. A rule that a table
    /// still has is kept too: its total would go backwards.
    fn retire(&mut self, keep: &HashSet<&str>) -> Vec<RuleSnapshot> {
        let rules = tables(&self.maps).into_iter().flat_map(|table| &table.program().rules);
        let live: HashSet<&str> = rules.map(|rule| rule.name.as_str()).collect();
        let mut sums = [Traffic::default(); Disposition::ALL.len()];
        let mut gone = Vec::new();
        self.retired.retain(|(name, disposition), traffic| {
            let is_sum = name == RETIRED_RULES || name == RUNTIME_RULES;
            let kept = is_sum || keep.contains(name.as_str()) || live.contains(name.as_str());
            if !kept {
                sums[*disposition as usize] += *traffic;
                let (name, disposition, traffic) = (name.clone(), *disposition, *traffic);
                gone.push(RuleSnapshot { name, disposition, traffic });
            }
            kept
        });
        for (disposition, traffic) in Disposition::ALL.into_iter().zip(sums) {
            if traffic.packets > 0 {
                add(&mut self.retired, RETIRED_RULES, disposition, traffic);
            }
        }
        gone
    }
}

fn add(totals: &mut Totals, name: &str, disposition: Disposition, traffic: Traffic) {
    *totals.entry((name.to_owned(), disposition)).or_default() += traffic;
}

impl WorkerControl {
    pub(crate) fn new(id: WorkerId, runtime: RuntimeFeed) -> Self {
        let shared = Shared {
            id,
            stats: Stats::default(),
            mailbox: Mailbox::default(),
            sinks: Changes::default(),
            clock: SharedClock::default(),
            wakeup: Wakeup::new().map(Arc::new).ok(),
            thread: WorkerThread::default(),
            ledger: Mutex::default(),
            runtime: Mutex::new(runtime),
            warnings: Mutex::default(),
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

    /// Leaves a stage of a change of programs for the worker, which drains what it replaces: it takes every
    /// completion that was waiting when it saw the stage before it follows. A stage that the worker has not
    /// yet seen is skipped.
    pub fn publish(&self, stage: &ChangeStage) -> Publication {
        self.publish_shared(&SharedStage::without_sinks(stage))
    }

    /// Publishes as [`WorkerControl::publish`] does, with sinks. All workers share the stage.
    pub fn publish_shared(&self, SharedStage(stage): &SharedStage) -> Publication {
        match stage {
            PublishedStage::Begin(published) => {
                let table = ClassTable::new(Arc::clone(published), self.shared.id);
                self.push(|programs| programs.begin(table))
            }
            PublishedStage::Enforce => self.push(|programs| programs.is_changed = true),
            PublishedStage::GoBack => self.push(|programs| programs.is_changed = false),
        }
    }

    /// Puts a sink in a place, or removes the one that is there. It is freed by
    /// [`WorkerControl::free_sinks`], or with the worker.
    pub fn place_sink(&self, slot: Slot, sink: Option<Box<dyn Sink>>) -> SinkChange {
        self.change_sink(slot, KindIndex::OTHER, sink)
    }

    /// Like [`WorkerControl::place_sink`], of a kind by which its time is measured
    /// ([`crate::WorkerProfile`]).
    pub fn place_sink_of(&self, kind: &SinkKind, slot: Slot, sink: Box<dyn Sink>) -> SinkChange {
        self.change_sink(slot, KindIndex::of(kind), Some(sink))
    }

    fn change_sink(&self, slot: Slot, kind: KindIndex, sink: Option<Box<dyn Sink>>) -> SinkChange {
        let change = SinkChange(self.shared.sinks.push(slot, kind, sink));
        self.wake();
        change
    }

    /// Waits at most `patience` until the worker has applied `change`.
    #[must_use]
    pub fn wait_for_sink(&self, change: SinkChange, patience: Duration) -> bool {
        self.wait_until(patience, || self.shared.sinks.is_applied(change.0))
    }

    /// Gives the worker these rules at run time and room for `capacity` of them, in place of those that it
    /// has. Returns once the worker has them.
    ///
    /// # Errors
    /// The worker has not taken them within `patience`: it may have them later, or not at all.
    pub fn replace_runtime_rules(
        &self,
        capacity: u32,
        entries: impl Iterator<Item = RuntimeEntry>,
        patience: Duration,
    ) -> Result<(), WorkerIsLate> {
        let mut feed = self.runtime();
        // A worker that is late must not get one table after the other.
        let is_sent = self.wait_until(patience, || feed.is_applied()) && feed.replace(capacity, entries);
        self.wake();
        if is_sent && self.wait_until(patience, || feed.is_applied()) {
            return Ok(());
        }
        Err(WorkerIsLate(self.shared.id))
    }

    /// Changes the worker's rules at run time, in this order. Returns once the worker acts by all of them.
    ///
    /// # Errors
    /// The worker has not taken them within `patience`: it may have some of them, and needs
    /// [`WorkerControl::replace_runtime_rules`].
    pub fn change_runtime_rules(
        &self,
        changes: &[RuntimeChange],
        patience: Duration,
    ) -> Result<(), WorkerIsLate> {
        let mut feed = self.runtime();
        let mut left = changes;
        while !left.is_empty() {
            left = &left[feed.send(left)..];
            self.wake();
            if !self.wait_until(patience, || feed.is_applied()) {
                return Err(WorkerIsLate(self.shared.id));
            }
        }
        Ok(())
    }

    /// The packets of this worker that all rules at run time which were in these slots have decided. No
    /// number ever decreases.
    pub fn runtime_traffic(&self, slots: impl Iterator<Item = u32>) -> Vec<Traffic> {
        let feed = self.runtime();
        slots.map(|slot| feed.traffic(slot)).collect()
    }

    fn runtime(&self) -> MutexGuard<'_, RuntimeFeed> {
        self.shared.runtime.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the worker convert the device's timestamps: to be called about once a second, with a new reading.
    /// Workers with timestamps begin with one of their own.
    pub fn set_clock(&self, relation: ClockRelation) {
        self.shared.clock.set(relation);
    }

    /// Waits until no sink that was removed has frames of the worker. False: one still has at the end of that
    /// time.
    #[must_use]
    pub fn wait_for_frames(&self, patience: Duration) -> bool {
        self.wait_until(patience, || self.shared.sinks.leaving() == 0)
    }

    /// Frees the sinks that the worker has removed.
    pub fn free_sinks(&self) {
        self.shared.sinks.free_returned();
    }

    /// Leaves the worker only the program in force, in the same way. To be called when no packet can arrive
    /// any more with a tag of the other one, whose memory is freed by the first call on this handle after the
    /// acknowledgement.
    pub fn release(&self) -> Publication {
        self.push(Programs::release)
    }

    fn push(&self, change: impl FnOnce(&mut Programs)) -> Publication {
        let mut ledger = self.ledger();
        ledger.settle(self.shared.mailbox.acknowledged());
        change(&mut ledger.programs);
        let map = Arc::new(ClassMap::new(ledger.programs.in_order()));
        let (publication, void) = self.shared.mailbox.push(Arc::clone(&map));
        ledger.maps.retain(|entry| Some(entry.publication) != void);
        for entry in &mut ledger.maps {
            if entry.retired_by.is_none() || entry.retired_by == void {
                entry.retired_by = Some(publication);
            }
        }
        ledger.maps.push(Entry { map, publication, retired_by: None });
        debug_assert!(ledger.maps.len() <= MAPS_MAX);
        drop(ledger);
        self.wake();
        publication
    }

    /// Ends the worker's sleep, if it sleeps.
    pub(crate) fn wake(&self) {
        if let Some(wakeup) = &self.shared.wakeup {
            wakeup.notify();
        }
    }

    /// Sums up what rules have counted that are neither in `keep` nor in a published program, under the name
    /// [`RETIRED_RULES`] by disposition, and returns it. Totals by name stay in memory until this is called.
    pub fn retire_rules(&self, keep: &HashSet<&str>) -> Vec<RuleSnapshot> {
        let mut ledger = self.ledger();
        ledger.settle(self.shared.mailbox.acknowledged());
        ledger.retire(keep)
    }

    /// Whether the worker has applied `publication` or a later one.
    #[must_use]
    pub fn acknowledged(&self, publication: Publication) -> bool {
        self.shared.mailbox.acknowledged() >= publication
    }

    /// Waits at most `patience` until [`WorkerControl::acknowledged`]. Time in which the worker would run but
    /// gets no core does not count, nor does most of the time in which this thread gets none; but the wait
    /// ends after twelve times `patience`.
    #[must_use]
    pub fn wait(&self, publication: Publication, patience: Duration) -> bool {
        self.wait_until(patience, || self.acknowledged(publication))
    }

    fn wait_until(&self, patience: Duration, is_done: impl Fn() -> bool) -> bool {
        let begun = Instant::now();
        let (mut last, mut activity, mut waited) = (begun, None, Duration::ZERO);
        while !is_done() {
            if waited >= patience || last - begun >= patience * MOST_PATIENCE {
                return false;
            }
            let is_prompt = last - begun < PROMPT;
            std::thread::sleep(if is_prompt { WAIT_STEP } else { LATE_STEP });
            let now = Instant::now();
            let next = if is_prompt { None } else { self.shared.thread.activity() };
            waited += counted(now - last, activity, next);
            (last, activity) = (now, next);
        }
        true
    }

    /// The state of the worker's receive queue. While it is in its error state, packets that indirection
    /// tables spread to it are lost; the worker still takes what was received before, and then makes the
    /// queue ready anew.
    #[must_use]
    pub fn receive_queue(&self) -> ReceiveQueueHealth {
        self.shared.stats.receive_queue()
    }

    /// Has the worker make its receive queue ready anew: the device has reported that it failed, which
    /// completions need not show.
    pub fn report_queue_failure(&self) {
        self.shared.stats.report_queue_failure();
        self.wake();
    }

    /// Where the worker differs from its configuration, with remedies.
    #[must_use]
    pub fn warnings(&self) -> Vec<Warning> {
        self.shared.warnings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn warn(&self, warning: Warning) {
        tracing::warn!(worker = self.shared.id.0, "{warning}");
        self.shared.warnings.lock().unwrap_or_else(PoisonError::into_inner).push(warning);
    }

    /// Lets the worker's thread run on these cores only. Its memory stays where it is.
    ///
    /// # Errors
    /// The thread does not run, or the kernel allows it none of these cores.
    pub fn pin(&self, cores: &[usize]) -> std::io::Result<()> {
        self.shared.thread.pin(cores)
    }

    /// The activity of the worker's thread by the kernel's account, from two files of /proc. After the end of
    /// the thread the last values stay. `None`: it has not begun, or the kernel does not show it.
    #[must_use]
    pub fn thread_activity(&self) -> Option<ThreadActivity> {
        self.shared.thread.activity()
    }

    /// The worker's progress, without a lock or a copy, for watchdogs.
    #[must_use]
    pub fn progress(&self) -> WorkerProgress {
        let stats = &self.shared.stats;
        WorkerProgress {
            iterations: stats.iterations.read(),
            received_packets: stats.received.read().packets,
            poll_errors: stats.poll_errors.read(),
        }
    }

    /// The worker's counters, read while it runs: at slightly different instants, so they add up exactly only
    /// when it is idle. No total ever decreases.
    #[must_use]
    pub fn snapshot(&self) -> WorkerSnapshot {
        let rules = {
            let mut ledger = self.ledger();
            ledger.settle(self.shared.mailbox.acknowledged());
            let mut totals = ledger.retired.clone();
            for table in tables(&ledger.maps) {
                table
                    .rows()
                    .for_each(|(name, disposition, traffic)| add(&mut totals, name, disposition, traffic));
            }
            totals
        };
        let rules = rules
            .into_iter()
            .map(|((name, disposition), traffic)| RuleSnapshot { name, disposition, traffic })
            .collect();
        WorkerSnapshot::read(self.shared.id, &self.shared.stats, rules, self.shared.clock.is_set())
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.shared.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How much of the patience a step uses that took so long, between these two activities of the worker.
fn counted(step: Duration, before: Option<ThreadActivity>, after: Option<ThreadActivity>) -> Duration {
    match (before, after) {
        // It waits for a core, or is on one.
        (Some(before), Some(after)) if after.is_runnable => after.cpu.saturating_sub(before.cpu).min(step),
        _ => step.min(LONGEST_STEP),
    }
}

/// A worker has not taken a change of the rules at run time in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("worker {0} does not take changes of rules")]
pub struct WorkerIsLate(pub WorkerId);

/// Counts the changes of one worker's sinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SinkChange(u64);

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::runtime_rules::runtime_rules;

    #[test]
    fn only_a_starved_wait_is_prolonged() {
        let ms = Duration::from_millis;
        let activity = |is_runnable, cpu_ms| {
            Some(ThreadActivity { is_runnable, cpu: ms(cpu_ms), cpu_wait: Duration::ZERO })
        };
        let us = Duration::from_micros;
        assert_eq!(counted(us(120), None, None), us(120), "nothing is known of the worker");
        assert_eq!(counted(ms(400), None, None), LONGEST_STEP, "this thread got no core");
        assert_eq!(counted(ms(5), activity(true, 7), activity(true, 7)), ms(0), "the worker got no core");
        assert_eq!(
            counted(ms(5), activity(true, 7), activity(true, 12)),
            ms(5),
            "it runs and does not answer"
        );
        assert_eq!(
            counted(ms(5), activity(true, 7), activity(false, 7)),
            ms(5),
            "it sleeps and does not answer"
        );
        let control = WorkerControl::new(WorkerId(0), runtime_rules().0);
        assert!(!control.wait_until(ms(5), || false), "a worker without a thread");
        let (asleep, end) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let (shared, (begun, has_begun)) = (control.shared(), std::sync::mpsc::channel());
            scope.spawn(move || {
                shared.thread.begin();
                begun.send(()).unwrap();
                assert!(end.recv().is_err());
            });
            has_begun.recv().unwrap();
            assert!(
                !control.wait_until(PROMPT + ms(50), || false),
                "a worker that sleeps and does not answer"
            );
            drop(asleep);
        });
    }

    /// Two threads on one core: one never sleeps, the other is the worker.
    #[test]
    fn the_activity_of_a_thread_is_its_own() {
        let (running, stop) = (WorkerThread::default(), std::sync::atomic::AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                running.begin();
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let begun = Instant::now();
            let ran =
                |activity: &ThreadActivity| activity.is_runnable && activity.cpu > Duration::from_millis(20);
            while running.activity().as_ref().is_none_or(|activity| !ran(activity)) {
                assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", running.activity());
                std::thread::sleep(Duration::from_millis(1));
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(WorkerThread::default().activity(), None, "no thread has begun");
    }
}
