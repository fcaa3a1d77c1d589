//! The thread that checks policies. It waits until the documents have been the same for a moment, checks the
//! policies that a change is about, and gives a check up when a newer change arrives.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, unbounded};

use crate::checker::{CheckedPolicy, OpenPolicy, PolicyChecker, ServerSettings};
use crate::workspace::OpenTexts;

/// The time for which the documents must be the same before a check.
const QUIET_TIME: Duration = Duration::from_millis(150);
/// The longest time that a check waits while somebody types.
const MAX_DELAY: Duration = Duration::from_secs(1);

/// Work for the thread.
pub(crate) enum WorkOrder {
    /// The settings, and the folder of relative names in them.
    Configure(Box<ServerSettings>, Option<PathBuf>),
    Check(Snapshot),
}

/// The documents at one moment.
pub(crate) struct Snapshot {
    /// The policies to check.
    pub(crate) policies: Vec<PathBuf>,
    pub(crate) texts: OpenTexts,
    pub(crate) revisions: BTreeMap<PathBuf, u64>,
    /// Whether files outside of the editor may have changed.
    pub(crate) is_forced: bool,
}

/// A result of the thread.
pub(crate) enum WorkResult {
    Checked {
        path: PathBuf,
        /// The revisions of the documents that the result was made from.
        revisions: BTreeMap<PathBuf, u64>,
        policy: Box<CheckedPolicy>,
        /// Whether nothing follows for this revision.
        is_last: bool,
    },
    /// The settings that are in force now, or the problem for which the former ones stay.
    Settings(Result<Box<ServerSettings>, String>),
}

/// The thread, its orders and its results.
pub(crate) struct CheckThread {
    pub(crate) orders: Sender<WorkOrder>,
    /// The orders that the thread has not taken yet.
    waiting: Receiver<WorkOrder>,
    pub(crate) results: Receiver<WorkResult>,
}

impl CheckThread {
    /// # Errors
    /// There can be no further thread.
    pub(crate) fn start(checker: impl PolicyChecker) -> io::Result<Self> {
        let (orders, received) = unbounded();
        let (sender, results) = unbounded();
        let waiting = received.clone();
        let mut worker = Worker { checker, orders: received, results: sender, checked: BTreeMap::new() };
        std::thread::Builder::new().name("policy-check".to_owned()).spawn(move || worker.run())?;
        Ok(Self { orders, waiting, results })
    }

    /// Orders a check in the place of those that wait, so that only one set of texts is kept.
    pub(crate) fn check(&self, mut snapshot: Snapshot) {
        let mut kept = Vec::new();
        for order in self.waiting.try_iter() {
            match order {
                WorkOrder::Check(older) => snapshot.is_forced |= older.is_forced,
                WorkOrder::Configure(..) => kept.push(order),
            }
        }
        for order in kept.into_iter().chain([WorkOrder::Check(snapshot)]) {
            // A thread that has ended is noticed by its results.
            let _ = self.orders.send(order);
        }
    }
}

struct Worker<C> {
    checker: C,
    orders: Receiver<WorkOrder>,
    results: Sender<WorkResult>,
    /// The revisions of the documents that the result of each policy was made from.
    checked: BTreeMap<PathBuf, CheckedState>,
}

/// The documents that a result is of.
struct CheckedState {
    files: BTreeSet<PathBuf>,
    revisions: BTreeMap<PathBuf, u64>,
}

impl CheckedState {
    /// Whether the policy and its files are the same in other documents.
    fn is_of(&self, policy: &PathBuf, revisions: &BTreeMap<PathBuf, u64>) -> bool {
        let mut paths = self.files.iter().chain([policy]);
        paths.all(|path| self.revisions.get(path) == revisions.get(path))
    }
}

impl<C: PolicyChecker> Worker<C> {
    fn run(&mut self) {
        while let Ok(order) = self.orders.recv() {
            let Some(mut snapshot) = self.take(order) else { continue };
            let begun = Instant::now();
            while begun.elapsed() < MAX_DELAY {
                match self.orders.recv_timeout(QUIET_TIME) {
                    Ok(order) => snapshot = self.take(order).unwrap_or(snapshot),
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
            self.check(&snapshot);
        }
    }

    /// Carries out what need not wait.
    fn take(&mut self, order: WorkOrder) -> Option<Snapshot> {
        match order {
            WorkOrder::Configure(settings, folder) => {
                let configured = self.checker.configure(&settings, folder.as_deref());
                // The server has ended if nobody takes it.
                let _ = self.results.send(WorkResult::Settings(configured.map(|()| settings)));
                self.checked.clear();
                None
            }
            WorkOrder::Check(snapshot) => {
                if snapshot.is_forced {
                    self.checked.clear();
                }
                Some(snapshot)
            }
        }
    }

    fn check(&mut self, snapshot: &Snapshot) {
        self.checked.retain(|path, _| snapshot.policies.contains(path));
        for path in &snapshot.policies {
            let is_known = self.checked.get(path).is_some_and(|state| state.is_of(path, &snapshot.revisions));
            let Some(text) = snapshot.texts.get(path).filter(|_| !is_known) else { continue };
            let policy = OpenPolicy { path: path.clone(), text: text.clone(), open: snapshot.texts.clone() };
            let Self { checker, orders, results, .. } = self;
            let send = |policy: CheckedPolicy, is_last| {
                let (revisions, policy) = (snapshot.revisions.clone(), Box::new(policy));
                let _ = results.send(WorkResult::Checked { path: path.clone(), revisions, policy, is_last });
            };
            let checked = checker.check(&policy, &|| orders.is_empty(), &mut |partial| send(partial, false));
            // The order that is waiting has the documents as they are now.
            let Some(checked) = checked else { return };
            let (files, revisions) = (checked.files.clone(), snapshot.revisions.clone());
            send(checked, true);
            self.checked.insert(path.clone(), CheckedState { files, revisions });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Notes the texts that it is given; while the text is "slow" it waits to be given up.
    struct Noting(Arc<AtomicU32>);

    impl PolicyChecker for Noting {
        fn configure(&mut self, settings: &ServerSettings, _folder: Option<&Path>) -> Result<(), String> {
            settings.model.as_ref().map_or(Ok(()), |model| Err(format!("no {model}")))
        }

        fn check(
            &mut self,
            policy: &OpenPolicy,
            is_current: &dyn Fn() -> bool,
            _publish: &mut dyn FnMut(CheckedPolicy),
        ) -> Option<CheckedPolicy> {
            self.0.fetch_add(1, Ordering::Relaxed);
            if &*policy.text == "slow" {
                while is_current() {
                    std::thread::yield_now();
                }
                return None;
            }
            let files = BTreeSet::from([PathBuf::from("/set.txt")]);
            Some(CheckedPolicy { files, ..CheckedPolicy::default() })
        }
    }

    fn snapshot(revision: u64, text: &str, of_set: u64) -> WorkOrder {
        let path = PathBuf::from("/p.toml");
        WorkOrder::Check(Snapshot {
            policies: vec![path.clone()],
            texts: Arc::new(BTreeMap::from([(path.clone(), Arc::from(text))])),
            revisions: BTreeMap::from([(path, revision), (PathBuf::from("/set.txt"), of_set)]),
            is_forced: false,
        })
    }

    /// The revision of the next result.
    fn next(thread: &CheckThread) -> Option<u64> {
        match thread.results.recv_timeout(Duration::from_secs(30)).expect("a result") {
            WorkResult::Checked { path, revisions, .. } => revisions.get(&path).copied(),
            WorkResult::Settings(settings) => panic!("{settings:?}"),
        }
    }

    #[test]
    fn newer_documents_end_a_check() {
        let checks = Arc::new(AtomicU32::new(0));
        let thread = CheckThread::start(Noting(Arc::clone(&checks))).expect("a thread");
        thread.orders.send(snapshot(1, "slow", 1)).expect("sent");
        while checks.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        thread.orders.send(snapshot(2, "fast", 1)).expect("sent");
        assert_eq!(next(&thread), Some(2));
        // A change of a file of the policy is one of the policy.
        thread.orders.send(snapshot(2, "fast", 2)).expect("sent");
        assert_eq!((next(&thread), checks.load(Ordering::Relaxed)), (Some(2), 3));
    }

    #[test]
    fn one_check_waits() {
        let ((orders, waiting), (_sender, results)) = (unbounded(), unbounded());
        let thread = CheckThread { orders, waiting, results };
        for (revision, is_forced) in [(1, false), (2, true), (3, false)] {
            let WorkOrder::Check(snapshot) = snapshot(revision, "", 1) else { panic!("no check") };
            thread.check(Snapshot { is_forced, ..snapshot });
        }
        let waiting: Vec<WorkOrder> = thread.waiting.try_iter().collect();
        let [WorkOrder::Check(snapshot)] = &waiting[..] else { panic!("{} orders wait", waiting.len()) };
        assert_eq!((snapshot.revisions.get(Path::new("/p.toml")), snapshot.is_forced), (Some(&3), true));
    }

    #[test]
    fn wrong_settings_are_reported() {
        let thread = CheckThread::start(Noting(Arc::default())).expect("a thread");
        let settings = ServerSettings { model: Some("x".to_owned()), ..ServerSettings::default() };
        thread.orders.send(WorkOrder::Configure(Box::new(settings), None)).expect("sent");
        let result = thread.results.recv_timeout(Duration::from_secs(30)).expect("a result");
        assert!(matches!(result, WorkResult::Settings(Err(problem)) if problem == "no x"));
    }
}
