//! The setting `policy.watch`: the policy is reloaded when its file, or a file that it names, has changed.
//!
//! A thread waits for the kernel's reports (inotify(7)) on the folders through which the paths lead
//! ([`folders`]). When the files have been quiet for a while ([`settle`]) it reads them, and passes on what
//! it has read if that differs from what it passed on before. The reload uses this reading: files that change
//! again meanwhile are read when they are quiet, and never half.
//!
//! Where the kernel reports nothing, as on network file systems, the files are compared every
//! [`Patience::poll`] as well, which is logged.

mod folders;
mod settle;

use std::ffi::OsStr;
use std::io::{self, PipeReader, PipeWriter};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam::channel::{self, Receiver, Sender};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::daemon::Error;
use crate::message::NoThread;
use crate::policy_file::{ExaminedPolicy, examine};
use crate::settings::{PolicySource, PolicyText, Settings};
use crate::terminal::numbers::counted;
use folders::{Fingerprint, Folders};
use settle::{Pending, Step};

/// The message that changes are not noticed any more.
pub(super) const ENDED: &str = "policy.watch: the thread exited unexpectedly (hint: changes of the policy need SIGHUP or `steerd reload`; a \
                                restart of the daemon watches again)";
/// The most rounds in which the folders are found anew because they change while the policy is read.
const ROUNDS: usize = 8;

/// The times that the thread waits for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// The time without changes after which files are read.
    settle: Duration,
    /// The time without changes after which a policy that cannot be used is passed on: it may be written in
    /// parts.
    broken: Duration,
    /// The time without a write after which a file is read that somebody has written to and not closed.
    open: Duration,
    /// The time from the first change after which files are read if other changes follow without a pause.
    longest: Duration,
    /// The time between two comparisons of files whose changes are not reported.
    poll: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            settle: Duration::from_millis(500),
            broken: Duration::from_secs(2),
            open: Duration::from_secs(10),
            longest: Duration::from_secs(10),
            poll: Duration::from_secs(10),
        }
    }
}

/// A policy whose files have changed, as it was read.
pub(super) type ChangedPolicy = Arc<ExaminedPolicy>;

/// The watched files, before the policy is read to be put in force: what changes from then on is a change.
pub(super) struct WatchedFiles {
    watcher: Watcher,
    stop: PipeReader,
    handle: PolicyWatch,
}

/// The changed policies. The thread ends when this is dropped.
pub(super) struct PolicyWatch {
    changes: Receiver<ChangedPolicy>,
    passed: Passed,
    _running: PipeWriter,
}

/// The hash of the policy that was passed on last, at first of the one that was there when the watch began.
type Passed = Arc<Mutex<String>>;

impl WatchedFiles {
    /// Begins to watch the files of the policy. `None`: the setting is off, or the policy has no file.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub(super) fn of(settings: &Settings, source: &PolicySource) -> Result<Option<Self>, Error> {
        if !settings.policy.watch {
            return Ok(None);
        }
        if !matches!(source.text, PolicyText::File(_)) {
            tracing::warn!("policy.watch: {source} has no file that could change");
            return Ok(None);
        }
        Self::with(source, Patience::default(), Folders::open()).map(Some).map_err(Error::Watch)
    }

    fn with(source: &PolicySource, patience: Patience, folders: Folders) -> io::Result<Self> {
        let (stop, running) = io::pipe()?;
        // One is enough: a later one takes the place of an earlier one.
        let (sender, changes) = channel::bounded(1);
        let mut watcher = Watcher {
            source: source.clone(),
            patience,
            folders,
            examined: Examined::default(),
            passed: Passed::default(),
            pending: None,
            fault: None,
            sender,
            replaced: changes.clone(),
        };
        let passed = Arc::clone(&watcher.passed);
        *locked(&passed) = watcher.look().sha256;
        Ok(Self { watcher, stop, handle: PolicyWatch { changes, passed, _running: running } })
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// The system starts none.
    pub(super) fn start(self) -> Result<PolicyWatch, NoThread> {
        let Self { watcher, stop, handle } = self;
        let files = watcher.examined.files.len() as u64;
        tracing::info!(
            "policy.watch: {} of the policy: a change is a reload",
            counted(files, "file", "files")
        );
        let thread = std::thread::Builder::new().name("watch".into());
        thread.spawn(move || watcher.run(&stop)).map_err(NoThread)?;
        Ok(handle)
    }
}

impl PolicyWatch {
    /// Receives a policy when its files have changed. It is disconnected if the thread has ended
    /// unexpectedly.
    pub(super) fn changes(&self) -> &Receiver<ChangedPolicy> {
        &self.changes
    }

    /// Notes that somebody else changes the policy in force: after the next change of the files the policy is
    /// passed on, even if it is the one that was passed on last.
    pub(super) fn forget(&self) {
        locked(&self.passed).clear();
    }
}

fn locked(passed: &Mutex<String>) -> MutexGuard<'_, String> {
    passed.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Logs why changes of the policy's files are not reported, if they are not.
pub(super) fn check(settings: &Settings) {
    if !settings.policy.watch {
        return;
    }
    let source = PolicySource::file(settings.policy.file.clone(), settings.policy.variables.clone());
    let mut folders = Folders::open();
    if let Some(fault) = folders.watch(&examine(&source).files) {
        log_fault(&fault, Patience::default().poll);
    }
}

fn log_fault(fault: &str, period: Duration) {
    tracing::warn!(
        "policy.watch: {fault}: the files of the policy are compared every {} s instead",
        period.as_secs_f64()
    );
}

/// Logs that a file is written to for so long that no change of the policy is read.
fn log_open(file: &OsStr, patience: &Patience) {
    tracing::warn!(
        "policy.watch: {}: somebody has written to the file for more than {} s without closing it: no change of the \
         policy is read until it is closed, or {} s after the last write (hint: write another file and rename it)",
        file.to_string_lossy(),
        patience.longest.as_secs_f64(),
        patience.open.as_secs_f64()
    );
}

/// The last reading of the files.
#[derive(Debug, Default)]
struct Examined {
    files: Vec<PathBuf>,
    fingerprint: Fingerprint,
}

/// The thread's state.
struct Watcher {
    source: PolicySource,
    patience: Patience,
    folders: Folders,
    examined: Examined,
    passed: Passed,
    pending: Option<Pending>,
    /// The reason why files are compared; `None`: all changes are reported.
    fault: Option<String>,
    sender: Sender<ChangedPolicy>,
    /// The receiving side, to take back what nobody has received yet.
    replaced: Receiver<ChangedPolicy>,
}

impl Watcher {
    fn run(mut self, stop: &PipeReader) {
        let mut compared = Instant::now();
        loop {
            let now = Instant::now();
            let next = match (&self.pending, &self.fault) {
                (Some(pending), _) => Some(pending.due(&self.patience)),
                (None, Some(_)) => Some(compared + self.patience.poll),
                (None, None) => None,
            };
            let wait = next.map(|next| next.saturating_duration_since(now));
            if !self.folders.wait(stop, wait) {
                return;
            }
            let reports = self.folders.reports();
            let now = Instant::now();
            // Once until they are read: others may cause more in a folder that is not ours.
            if reports.has_lost_some && self.pending.is_none() {
                tracing::warn!("policy.watch: more changes than the kernel lists: all files are read again");
            }
            if reports.has_changes || reports.has_lost_some {
                self.pending.get_or_insert_with(|| Pending::new(now)).note(now);
                // A folder that was replaced is another one.
                let fault = self.folders.watch(&self.examined.files);
                self.note_fault(fault);
            }
            if let Some(pending) = &mut self.pending {
                let written = self.folders.written();
                pending.is_written = written.is_some();
                if pending.due(&self.patience) <= now {
                    self.settle(now);
                } else if let Some(file) = written
                    && pending.begins_to_warn(now, &self.patience)
                {
                    log_open(file, &self.patience);
                }
            } else if self.fault.is_some() && compared + self.patience.poll <= now {
                compared = now;
                self.compare(now);
            }
        }
    }

    /// Looks for a change that was not reported.
    fn compare(&mut self, now: Instant) {
        let has_changed = Fingerprint::of(&self.examined.files) != self.examined.fingerprint;
        if has_changed {
            self.pending = Some(Pending::new(now));
        } else {
            let fault = self.folders.watch(&self.examined.files);
            self.note_fault(fault);
        }
    }

    /// Reads files that have been quiet, and passes the policy on if it is another one.
    fn settle(&mut self, now: Instant) {
        let examined = self.look();
        let Some(pending) = &mut self.pending else { return };
        // Without reports two readings have to be the same.
        let is_sure = self.fault.is_none();
        let has_changed = examined.sha256 != *locked(&self.passed);
        match pending.judge(now, &examined, has_changed, is_sure, &self.patience) {
            Step::Wait => {}
            Step::Nothing => self.pending = None,
            Step::Pass => {
                self.pending = None;
                // Before it is passed on: a change of the policy in force that comes later is noted.
                locked(&self.passed).clone_from(&examined.sha256);
                // What nobody has received is outdated. An error means that the daemon ends.
                let _ = self.replaced.try_recv();
                let _ = self.sender.try_send(Arc::new(examined));
            }
        }
    }

    /// Reads the policy behind watches on all folders that lead to its files: a change during the reading, or
    /// later, is reported.
    fn look(&mut self) -> ExaminedPolicy {
        let mut rounds = 0;
        loop {
            let fault = self.folders.watch(&self.examined.files);
            let fingerprint = Fingerprint::of(&self.examined.files);
            let examined = examine(&self.source);
            let is_same = examined.files == self.examined.files && self.folders.are_current(&examined.files);
            self.examined.files.clone_from(&examined.files);
            self.examined.fingerprint = fingerprint;
            rounds += 1;
            // Files that keep changing are reported, and read again.
            if is_same || rounds == ROUNDS {
                self.note_fault(fault);
                return examined;
            }
        }
    }

    fn note_fault(&mut self, fault: Option<String>) {
        if fault == self.fault {
            return;
        }
        match &fault {
            Some(fault) => log_fault(fault, self.patience.poll),
            None => tracing::info!("policy.watch: changes of the policy's files are reported again"),
        }
        self.fault = fault;
    }
}

/// Waits for one of two descriptors. Returns `false` if the writer of `stop` is closed.
fn wait_for(stop: &PipeReader, other: Option<&rustix::fd::OwnedFd>, timeout: Option<Duration>) -> bool {
    let mut descriptors = vec![PollFd::new(stop, PollFlags::IN)];
    descriptors.extend(other.map(|other| PollFd::new(other, PollFlags::IN)));
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    // After a signal the caller finds out whether the time is over.
    let _ = poll(&mut descriptors, timeout.as_ref());
    descriptors[0].revents().is_empty()
}

#[cfg(test)]
mod tests;
