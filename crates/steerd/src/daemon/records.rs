//! Records that the daemon writes by itself: when a trigger of the policy's recorder fires, or on SIGUSR1.
//!
//! A trigger fires once while its condition holds, and at most one record is written in [`INTERVAL`]: a
//! condition that begins earlier is counted as suppressed, and is recorded then if it still holds. The folder
//! keeps the last records ([`FILES_MAX`], [`BYTES_MAX`]).

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use program::RecorderTrigger;
use worker::sinks::RecorderReader;
use worker::sinks::recorder::RecordFilter;

use crate::daemon::health::Part;
use crate::daemon::observer::{Observer, unix_seconds};
use crate::terminal::numbers::counted;
use crate::whole_file::WholeFile;

/// The least time between two records that triggers write.
const INTERVAL: Duration = Duration::from_secs(60);
/// The least time between two measurements of triggers. A signal asks for a tick at any moment, and a rate
/// over the milliseconds since the tick before it is not that of a second.
const MEASURE_INTERVAL: Duration = Duration::from_millis(500);
/// The most records that are kept, and their most bytes together; the last one is kept in any case.
const FILES_MAX: usize = 16;
const BYTES_MAX: u64 = 4 << 30;
/// The beginning and the end of the name of a record.
const NAME: (&str, &str) = ("record-", ".pcapng");

/// The counts of the records of this daemon since the start.
#[derive(Debug, Default)]
pub(crate) struct RecordTotals {
    written: AtomicU64,
    suppressed: AtomicU64,
    failed: AtomicU64,
    last: Mutex<Option<PathBuf>>,
    /// A record is asked for by a signal.
    is_asked: AtomicBool,
}

impl RecordTotals {
    /// Asks for a record, which is written at the next tick.
    pub(crate) fn ask(&self) {
        self.is_asked.store(true, Relaxed);
    }

    /// The number of records that were written.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }

    /// How often a condition began too early after the last record.
    pub(crate) fn suppressed(&self) -> u64 {
        self.suppressed.load(Relaxed)
    }

    /// The number of records that could not be written.
    pub(crate) fn failed(&self) -> u64 {
        self.failed.load(Relaxed)
    }

    /// The file of the last record.
    pub(crate) fn last_file(&self) -> Option<String> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().map(|path| path.display().to_string())
    }
}

/// The text of a condition.
fn words(trigger: &RecorderTrigger) -> String {
    match trigger {
        RecorderTrigger::SinkDrops { sink, per_second } => {
            format!("sink {sink} drops {per_second} packets per second or more")
        }
        RecorderTrigger::RulePackets { rule, per_second } => {
            format!("rule {rule} decides {per_second} packets per second or more")
        }
        RecorderTrigger::WorkerStalls => "a worker makes no progress".to_owned(),
    }
}

/// A measured value that a trigger looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measured {
    /// Packets since the start.
    Count(u64),
    Holds(bool),
}

/// Decides which triggers fire. Pure: the caller measures.
#[derive(Debug, Default)]
struct TriggerMonitor {
    counts: HashMap<RecorderTrigger, CountAt>,
    /// The triggers whose condition holds, and was recorded.
    recorded: HashSet<RecorderTrigger>,
    /// The triggers whose condition holds, and was counted as suppressed.
    suppressed: HashSet<RecorderTrigger>,
    /// The time of the last update that counted.
    measured_at: Option<Instant>,
    last_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct CountAt {
    count: u64,
    at: Instant,
}

/// The triggers of one update.
#[derive(Debug, Default, PartialEq, Eq)]
struct FiredTriggers {
    /// The conditions that a record is to be written for; empty: none.
    recorded: Vec<RecorderTrigger>,
    /// How many began too early.
    suppressed: u64,
}

impl TriggerMonitor {
    fn update(&mut self, now: Instant, measured: &[(RecorderTrigger, Measured)]) -> FiredTriggers {
        if self.measured_at.is_some_and(|last| now.duration_since(last) < MEASURE_INTERVAL) {
            return FiredTriggers::default();
        }
        self.measured_at = Some(now);
        let is_listed = |trigger: &RecorderTrigger| measured.iter().any(|(listed, _)| listed == trigger);
        self.counts.retain(|trigger, _| is_listed(trigger));
        let mut holding = HashSet::new();
        for (trigger, measured) in measured {
            if self.holds(now, trigger, *measured) {
                holding.insert(trigger.clone());
            }
        }
        self.recorded.retain(|trigger| holding.contains(trigger));
        self.suppressed.retain(|trigger| holding.contains(trigger));
        let is_new = |trigger: &&RecorderTrigger| !self.recorded.contains(trigger);
        let new: Vec<RecorderTrigger> = holding.iter().filter(is_new).cloned().collect();
        let is_early = self.last_at.is_some_and(|last| now.duration_since(last) < INTERVAL);
        if new.is_empty() || is_early {
            let suppressed = new.into_iter().filter(|trigger| self.suppressed.insert(trigger.clone()));
            return FiredTriggers { recorded: Vec::new(), suppressed: suppressed.count() as u64 };
        }
        self.last_at = Some(now);
        self.recorded = holding;
        FiredTriggers { recorded: new, suppressed: 0 }
    }

    /// Whether the condition holds; that on a rate from the second measurement on.
    fn holds(&mut self, now: Instant, trigger: &RecorderTrigger, measured: Measured) -> bool {
        let count = match measured {
            Measured::Holds(holds) => return holds,
            Measured::Count(count) => count,
        };
        let before = self.counts.insert(trigger.clone(), CountAt { count, at: now });
        let (RecorderTrigger::SinkDrops { per_second, .. } | RecorderTrigger::RulePackets { per_second, .. }) =
            trigger
        else {
            return false;
        };
        before.is_some_and(|before| {
            let more = u128::from(count.saturating_sub(before.count));
            let elapsed_ns = now.duration_since(before.at).as_nanos().max(1);
            more * 1_000_000_000 >= u128::from(*per_second) * elapsed_ns
        })
    }
}

/// Writes records into the folder of the daemon's state.
pub(super) struct RecordKeeper {
    observer: Arc<Observer>,
    /// `None`: the daemon has no folder for its state.
    folder: Option<PathBuf>,
    triggers: TriggerMonitor,
    /// The last policy without a folder that was warned of.
    warned: Option<u64>,
}

impl RecordKeeper {
    pub(super) fn new(observer: &Arc<Observer>, state: Option<PathBuf>) -> Self {
        let folder = state.map(|state| state.join("records"));
        Self { observer: Arc::clone(observer), folder, triggers: TriggerMonitor::default(), warned: None }
    }

    /// To be called about once a second.
    pub(super) fn tick(&mut self) {
        let totals = Arc::clone(&self.observer.records);
        let is_asked = totals.is_asked.swap(false, Relaxed);
        let (triggers, recorder, generation) = {
            let published = self.observer.board.read();
            let program = &published.policy.program;
            let triggers = program.recorder.as_ref().map(|recorder| recorder.triggers.clone());
            (triggers.unwrap_or_default(), published.sinks.recorder(), published.policy.generation)
        };
        let Some(recorder) = recorder else {
            if is_asked {
                tracing::warn!("SIGUSR1: no record is written: the policy in force has no [recorder]");
            }
            return;
        };
        let Some(folder) = self.folder.clone() else {
            let is_new = !triggers.is_empty() && self.warned.replace(generation) != Some(generation);
            if is_asked || is_new {
                let reason = if is_asked { "SIGUSR1" } else { "recorder.triggers" };
                tracing::warn!(
                    "{reason}: no record is written: the daemon keeps no state (hint: set state.folder)"
                );
            }
            return;
        };
        let measured = self.measure(triggers);
        let FiredTriggers { recorded, suppressed } = self.triggers.update(Instant::now(), &measured);
        totals.suppressed.fetch_add(suppressed, Relaxed);
        let signal = is_asked.then(|| "SIGUSR1".to_owned());
        let reasons: Vec<String> = recorded.iter().map(words).chain(signal).collect();
        if !reasons.is_empty() {
            self.write(&recorder, &folder, &reasons.join("; "));
        }
    }

    /// Measures what the triggers look at. The counts of rules are those of the state, which takes time for
    /// many rules: they are read only if a trigger needs them.
    fn measure(&self, triggers: Vec<RecorderTrigger>) -> Vec<(RecorderTrigger, Measured)> {
        let is_of_rule = |trigger: &RecorderTrigger| matches!(trigger, RecorderTrigger::RulePackets { .. });
        let rules = if triggers.iter().any(is_of_rule) { self.observer.state().rules } else { Vec::new() };
        let sinks = Arc::clone(&self.observer.board.read().sinks).progress();
        let is_stalled = self.observer.health.stalled().iter().any(|part| matches!(part, Part::Worker(_)));
        let value = |trigger: &RecorderTrigger| match trigger {
            RecorderTrigger::SinkDrops { sink, .. } => {
                let found = sinks.iter().find(|progress| progress.name == *sink);
                found.map(|progress| Measured::Count(progress.lost))
            }
            RecorderTrigger::RulePackets { rule, .. } => {
                let found = rules.iter().find(|state| state.current && state.name == *rule);
                found.map(|state| Measured::Count(state.packets()))
            }
            RecorderTrigger::WorkerStalls => Some(Measured::Holds(is_stalled)),
        };
        triggers.into_iter().filter_map(|trigger| value(&trigger).map(|value| (trigger, value))).collect()
    }

    fn write(&self, recorder: &RecorderReader, folder: &Path, reason: &str) {
        let totals = &self.observer.records;
        match write(recorder, folder, reason, unix_seconds() as u64) {
            Ok(WrittenRecord { file, packets }) => {
                let packets = counted(packets, "packet", "packets");
                tracing::warn!("recorder: {reason}: {packets} written to {}", file.display());
                totals.written.fetch_add(1, Relaxed);
                *totals.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
            }
            Err(error) => {
                tracing::error!(
                    "recorder: {reason}: the record cannot be written to {}: {error}",
                    folder.display()
                );
                totals.failed.fetch_add(1, Relaxed);
            }
        }
    }
}

/// A record that was written.
struct WrittenRecord {
    file: PathBuf,
    packets: u64,
}

fn write(
    recorder: &RecorderReader,
    folder: &Path,
    reason: &str,
    now_seconds: u64,
) -> io::Result<WrittenRecord> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let record = recorder.copy(&RecordFilter::default())?;
    let (before, after) = NAME;
    // Two records of one second have different names.
    let mut names = (now_seconds..).map(|second| folder.join(format!("{before}{second:010}{after}")));
    let path = names.find(|path| !path.exists()).unwrap_or_default();
    let mut file = WholeFile::create(&path)?;
    record.write(reason, &mut file)?;
    file.finish()?;
    if let Err(error) = remove_old(folder, path.file_name().unwrap_or_default(), FILES_MAX, BYTES_MAX) {
        tracing::warn!("recorder: old records in {} cannot be removed: {error}", folder.display());
    }
    Ok(WrittenRecord { file: path, packets: record.packets() })
}

/// Removes the oldest records beyond so many files and bytes, but not the last one. Other files stay.
fn remove_old(folder: &Path, last: &OsStr, files_max: usize, bytes_max: u64) -> io::Result<()> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_record = name.to_str().is_some_and(|name| {
            // One that a daemon which was killed has not finished counts as well.
            let name = name.strip_suffix(".partial").unwrap_or(name);
            let number = name.strip_prefix(NAME.0).and_then(|rest| rest.strip_suffix(NAME.1));
            number
                .is_some_and(|number| number.len() >= 10 && number.bytes().all(|byte| byte.is_ascii_digit()))
        });
        if is_record {
            files.push((name, entry.metadata()?.len()));
        }
    }
    // By time; after a clock was set back, the last one does not have the last name.
    files.sort_unstable_by(|(one, _), (other, _)| {
        (one.as_os_str() == last, one).cmp(&(other.as_os_str() == last, other))
    });
    let mut bytes: u64 = 0;
    for (index, (name, length)) in files.iter().rev().enumerate() {
        bytes = bytes.saturating_add(*length);
        if index > 0 && (index >= files_max || bytes > bytes_max) {
            fs::remove_file(folder.join(name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drops(per_second: u32) -> RecorderTrigger {
        RecorderTrigger::SinkDrops { sink: "s".into(), per_second }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_rate_fires_once_while_it_holds() {
        let (mut triggers, begin) = (TriggerMonitor::default(), Instant::now());
        let mut fired = |seconds: u32, count| {
            let measured = [(drops(10), Measured::Count(count))];
            triggers.update(begin + SECOND * seconds, &measured)
        };
        assert_eq!(fired(0, 1000), FiredTriggers::default(), "the rate is not known yet");
        assert_eq!(fired(1, 1009), FiredTriggers::default(), "9 per second");
        assert_eq!(fired(2, 1019).recorded, [drops(10)]);
        for second in 3..200 {
            assert_eq!(fired(second, 1000 * u64::from(second)), FiredTriggers::default(), "it still holds");
        }
    }

    #[test]
    fn a_tick_between_two_seconds_measures_no_rate() {
        let (mut triggers, begin) = (TriggerMonitor::default(), Instant::now());
        for (milliseconds, count) in [(0, 0), (1000, 5), (1001, 6), (2000, 10)] {
            let measured = [(drops(10), Measured::Count(count))];
            let fired = triggers.update(begin + Duration::from_millis(milliseconds), &measured);
            assert_eq!(fired, FiredTriggers::default(), "5 per second, after {milliseconds} ms");
        }
    }

    #[test]
    fn an_early_condition_is_recorded_later_if_it_holds() {
        let (mut triggers, begin) = (TriggerMonitor::default(), Instant::now());
        let stalls = RecorderTrigger::WorkerStalls;
        let mut fired = |seconds: u32, holds| {
            triggers
                .update(begin + SECOND * seconds, &[(RecorderTrigger::WorkerStalls, Measured::Holds(holds))])
        };
        assert_eq!(fired(0, true).recorded, std::slice::from_ref(&stalls));
        assert_eq!(fired(1, false), FiredTriggers::default());
        assert_eq!(fired(2, true), FiredTriggers { recorded: Vec::new(), suppressed: 1 });
        assert_eq!(fired(3, true), FiredTriggers::default(), "counted once");
        assert_eq!(fired(59, true), FiredTriggers::default());
        assert_eq!(fired(60, true).recorded, [stalls]);
    }

    #[test]
    fn a_trigger_of_every_second_is_bounded() {
        let (mut triggers, begin) = (TriggerMonitor::default(), Instant::now());
        let (mut recorded, mut suppressed) = (0, 0);
        for second in 0..600 {
            let measured = [(RecorderTrigger::WorkerStalls, Measured::Holds(second % 2 == 0))];
            let fired = triggers.update(begin + SECOND * second, &measured);
            recorded += fired.recorded.len();
            suppressed += fired.suppressed;
        }
        assert_eq!((recorded, suppressed), (10, 290));
    }

    #[test]
    fn the_oldest_records_make_room() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, bytes: usize| {
            fs::write(folder.path().join(name), vec![0; bytes]).expect("written");
        };
        let names = || {
            let entries = fs::read_dir(folder.path()).expect("a folder");
            let mut names: Vec<String> = entries
                .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
                .collect();
            names.sort_unstable();
            names
        };
        (0..5).for_each(|second| write(&format!("record-000000000{second}.pcapng"), 100));
        write("record-mine.pcapng", 5000);
        let remove = |last: &str, files_max, bytes_max| {
            remove_old(folder.path(), OsStr::new(last), files_max, bytes_max).expect("removed");
        };
        let last = "record-0000000004.pcapng";
        remove(last, 3, 1000);
        let left = ["record-0000000002.pcapng", "record-0000000003.pcapng", "record-0000000004.pcapng"];
        assert_eq!(names(), [&left[..], &["record-mine.pcapng"]].concat());
        remove(last, 3, 250);
        assert_eq!(names(), [&left[1..], &["record-mine.pcapng"]].concat());
        remove(last, 3, 10);
        assert_eq!(names(), [&left[2..], &["record-mine.pcapng"]].concat(), "the last one stays");
        let back = "record-0000000001.pcapng";
        write(back, 100);
        remove(back, 1, 1000);
        assert_eq!(names(), [back, "record-mine.pcapng"], "the clock was set back");
    }
}
