//! Changes of the policy in force: a reload on SIGHUP, by the API or after a change of the policy's files,
//! and the way back to an earlier policy. A change is made as a whole or not at all.
//!
//! The run loop starts it and goes on; reading and compiling may take long and run on a thread of their own,
//! which has the thread of the dataplane install the result. A policy with errors, or one that the device
//! refuses, changes nothing but a counter, the log and the service status. Clients of the API wait for the
//! [`Verdict`]; those that ask for the same plain reload share the first one that begins after they asked.

mod change;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam::channel::{self, Receiver};

use crate::api::model::Verdict;
use crate::api::request::{ReloadBody, RollbackBody};
use crate::api::{ReloadRequest, Waiter, Wanted};
use crate::daemon::dataplane::Commands;
use crate::daemon::history::{History, PastPolicy};
use crate::daemon::notify;
use crate::daemon::observer::Observer;
use crate::daemon::rules::LiveRules;
use crate::daemon::watch::ChangedPolicy;
use crate::daemon::worker_settings::WorkerSettings;
use crate::message::NoThread;
use crate::policy_file::Inputs;
use change::{Refused, Work, failed, refused_at_once};
pub(super) use change::{changed_too_much, plan};

/// How long after a failure the policy before a trial is tried again.
const AGAIN: Duration = Duration::from_secs(5);
/// The most clients that can wait for a reload to begin.
pub(crate) const WAITERS_MAX: usize = 64;

/// The parts of the daemon that a reload uses.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) observer: Arc<Observer>,
    pub(crate) commands: Commands,
    pub(crate) rules: Arc<LiveRules>,
    pub(crate) history: Arc<History>,
    pub(crate) worker_settings: Arc<WorkerSettings>,
}

/// A policy that is in force on trial.
#[derive(Clone, Debug)]
struct Trial {
    ends: Instant,
    /// For how long it is.
    time: Duration,
    /// The policy that comes back.
    before: PastPolicy,
    /// Nobody has confirmed it in time: the policy before is to come back, until that succeeds.
    is_over: bool,
}

/// The source of a policy that is to be in force.
#[derive(Clone, Debug)]
enum Origin {
    /// The file, read again.
    File(ReloadBody),
    /// The files, as they were read after they had changed.
    Changed(ChangedPolicy),
    Past(PastPolicy),
}

/// The end of a change: the verdict, and the trial that begins with it.
#[derive(Debug)]
pub(crate) struct Done {
    verdict: Verdict,
    trial: Option<Trial>,
    /// Whether the trial before is over.
    ends_trial: bool,
}

/// A change that is being made, or tried.
struct RunningChange {
    done: Receiver<Done>,
    /// Whether the request changes nothing. A thread of its own sends the verdict of such a request, and a
    /// policy on trial can be taken back meanwhile.
    is_dry_run: bool,
    /// The policy in force before, if a policy of the history comes back.
    rolled_back: Option<Arc<Inputs>>,
}

/// Makes one change at a time; others wait.
pub(crate) struct Reloader {
    parts: Parts,
    running: Option<RunningChange>,
    /// The callers that wait for the running change.
    waiting: Vec<Waiter>,
    /// The changes that wait. The file may have changed since the running one read it.
    next: VecDeque<ReloadRequest>,
    trial: Option<Trial>,
    /// The policy that the last change has replaced, if that was a way back.
    rolled_back: Option<Arc<Inputs>>,
}

impl Reloader {
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            parts,
            running: None,
            waiting: Vec::new(),
            next: VecDeque::new(),
            trial: None,
            rolled_back: None,
        }
    }

    /// Begins a change, or notes that it is to follow the running one.
    pub(crate) fn ask(&mut self, mut request: ReloadRequest) {
        // It means the policies as they are now, not as they are when it begins.
        if let Wanted::Back(RollbackBody { in_force, .. }) = &mut request.wanted {
            *in_force = in_force.or_else(|| self.parts.history.number());
        }
        if self.running.is_some() {
            // One reload more is enough for all signals: nobody waits for its verdict.
            let is_signal = request.waiter.is_none();
            if !is_signal || self.next.iter().all(|waiting| waiting.waiter.is_some()) {
                self.next.push_back(request);
            }
            return;
        }
        self.begin(request);
    }

    /// Whether a change of the policy's files can be taken: no other change is made, and no policy is on
    /// trial.
    pub(crate) fn is_free(&self) -> bool {
        self.running.is_none() && self.trial.is_none()
    }

    /// Puts a policy in force whose files have changed, unless somebody has done that already, or has decided
    /// against it: by a rollback from it, or by leaving it unconfirmed on trial.
    pub(crate) fn changed(&mut self, changed: ChangedPolicy) {
        let board = self.parts.observer.board.read();
        if let Ok(read) = &changed.read {
            let in_force = &board.policy;
            let is_last = in_force.past.is_none() && board.reloads.last_successful;
            if is_last && read.inputs.have_texts_of(&in_force.inputs) {
                return;
            }
            let replaced = self.rolled_back.as_ref();
            // If the rollback was to another text, a set file that changes does not bring the policy back.
            let is_other_text = !read.inputs.have_main_text_of(&in_force.inputs);
            let is_rolled_back = replaced.is_some_and(|replaced| {
                replaced.have_texts_of(&read.inputs)
                    || is_other_text && replaced.have_main_text_of(&read.inputs)
            });
            // As at a start.
            let against = if self.parts.history.is_unconfirmed(&read.inputs) {
                Some("was on trial and nobody confirmed it")
            } else {
                is_rolled_back.then_some("is the one that a rollback has replaced")
            };
            if let Some(against) = against {
                tracing::warn!(
                    "policy.watch: {}: the policy {against}: the one in force stays (hint: `steerd reload` puts the policy \
                     of the file in force)",
                    in_force.source
                );
                return;
            }
        }
        self.start(Origin::Changed(changed), "watch".to_owned());
    }

    fn begin(&mut self, request: ReloadRequest) {
        let ReloadRequest { wanted, by, waiter } = request;
        self.waiting.extend(waiter);
        match self.origin(&wanted) {
            Ok(Some(origin)) => self.start(origin, by),
            Ok(None) => self.confirm(&by),
            Err(why) => {
                let verdict = refused_at_once(&self.parts.observer, why);
                self.answer(&verdict);
            }
        }
    }

    /// Where the policy comes from; `None`: the one in force is confirmed.
    fn origin(&self, wanted: &Wanted) -> Result<Option<Origin>, String> {
        match wanted {
            Wanted::Reload(asked) => match &self.trial {
                Some(_) if !asked.dry_run => Err(
                    "the last reload waits for its confirmation (hint: `steerd confirm`, or `steerd rollback`)".to_owned(),
                ),
                _ => Ok(Some(Origin::File(*asked))),
            },
            Wanted::Back(wanted) => self.past(*wanted).map(|policy| Some(Origin::Past(policy))),
            Wanted::Confirm => match &self.trial {
                Some(_) => Ok(None),
                None => Err("no reload waits for its confirmation".to_owned()),
            },
        }
    }

    /// The policy of the history that is to come back.
    fn past(&self, wanted: RollbackBody) -> Result<PastPolicy, String> {
        let history = &self.parts.history;
        if wanted.in_force != history.number() {
            let why =
                "another policy is in force than when the rollback was asked for (hint: `steerd history`)";
            return Err(why.to_owned());
        }
        let back = wanted.back.unwrap_or(1);
        match history.back(back) {
            _ if back == 0 => Err("the policy 0 of the history is the one in force".to_owned()),
            None => Err(format!(
                "the history has no policy {back} (hint: `steerd history` lists those that there are)"
            )),
            Some(policy) if policy.is_unconfirmed && wanted.back.is_none() => Err(format!(
                "policy {} of the history was not confirmed, and the one before it is in force again (hint: \
                 `steerd rollback 1` brings it back all the same)",
                policy.number
            )),
            Some(policy) => Ok(policy),
        }
    }

    fn confirm(&mut self, by: &str) {
        self.trial = None;
        self.parts.rules.confirm();
        self.parts.history.confirm();
        tracing::info!("the policy in force is confirmed by {by}");
        notify::ready("the policy is confirmed");
        let policy = Arc::clone(&self.parts.observer.board.read().policy);
        let waiting = Arc::new(Mutex::new(std::mem::take(&mut self.waiting)));
        let confirmed = move |saved: &Result<(), String>| {
            let waiting = std::mem::take(&mut *waiting.lock().unwrap_or_else(PoisonError::into_inner));
            answer(waiting, &change::confirmed(&policy, saved));
        };
        let (history, on_thread) = (Arc::clone(&self.parts.history), confirmed.clone());
        // Not here: the run loop must not wait for the disk.
        let thread = std::thread::Builder::new().name("confirm".into());
        if let Err(error) = thread.spawn(move || on_thread(&history.save())) {
            confirmed(&Err(NoThread(error).to_string()));
        }
    }

    fn start(&mut self, origin: Origin, by: String) {
        notify::reloading();
        // The sender is dropped with the thread, however the thread ends.
        let (sender, done) = channel::bounded(1);
        let is_on_trial = self.trial.is_some();
        let is_dry_run = matches!(origin, Origin::File(ReloadBody { dry_run: true, .. }));
        let is_way_back = matches!(origin, Origin::Past(_));
        let in_force = || Arc::clone(&self.parts.observer.board.read().policy.inputs);
        let rolled_back = is_way_back.then(in_force);
        let waiting = if is_dry_run { std::mem::take(&mut self.waiting) } else { Vec::new() };
        let work = Work { parts: self.parts.clone(), origin, by, is_on_trial };
        let thread = std::thread::Builder::new().name("reload".into()).spawn(move || {
            let begun = Instant::now();
            tracepoints::reload_begin(work.parts.observer.board.read().policy.generation);
            let done = work.run();
            tracepoints::reload_end(done.verdict.generation, done.verdict.accepted, begun.elapsed());
            answer(waiting, &done.verdict);
            let _ = sender.send(done);
        });
        match thread {
            Ok(_) => self.running = Some(RunningChange { done, is_dry_run, rolled_back }),
            Err(error) => {
                // Not here: the run loop must not wait for it.
                let refused = Refused::because(NoThread(error).to_string());
                self.answer(&failed(&self.parts.observer, refused, Instant::now()));
            }
        }
    }

    /// Becomes ready once the running change is over; then [`Reloader::ended`] must be called.
    pub(crate) fn over(&self) -> Receiver<Done> {
        self.running.as_ref().map_or_else(channel::never, |running| running.done.clone())
    }

    /// `done`: `None` if the thread has panicked.
    pub(crate) fn ended(&mut self, done: Option<Done>) {
        let running = self.running.take();
        let done = done.unwrap_or_else(|| {
            let refused = Refused::because("the reload thread panicked".to_owned());
            let verdict = failed(&self.parts.observer, refused, Instant::now());
            Done { verdict, trial: None, ends_trial: false }
        });
        if done.ends_trial || done.trial.is_some() {
            self.trial = done.trial;
        }
        if let Some(running) = running.filter(|running| done.verdict.accepted && !running.is_dry_run) {
            self.rolled_back = running.rolled_back;
        }
        if let Some(trial) = self.trial.as_mut().filter(|trial| trial.is_over) {
            trial.ends = Instant::now() + AGAIN;
            tracing::error!(
                "the policy before the trial is not back: it is tried again in {} s",
                AGAIN.as_secs()
            );
        }
        self.answer(&done.verdict);
        while self.running.is_none()
            && let Some(mut request) = self.next.pop_front()
        {
            self.share(&mut request);
            self.begin(request);
        }
    }

    /// Lets all that wait for the same plain reload wait for this one.
    fn share(&mut self, request: &mut ReloadRequest) {
        let plain = Wanted::Reload(ReloadBody::default());
        if request.wanted != plain {
            return;
        }
        let (same, others): (VecDeque<_>, VecDeque<_>) =
            self.next.drain(..).partition(|other| other.wanted == plain);
        self.next = others;
        self.waiting.extend(same.into_iter().filter_map(|other| other.waiter));
    }

    /// Becomes ready when a trial is over that nobody has confirmed; then [`Reloader::go_back`] must be
    /// called.
    pub(crate) fn trial_over(&self) -> Receiver<Instant> {
        match &self.trial {
            Some(trial) if self.running.as_ref().is_none_or(|running| running.is_dry_run) => {
                channel::at(trial.ends)
            }
            _ => channel::never(),
        }
    }

    /// Brings the policy before the trial back. The trial is over only when that has succeeded. A dry run
    /// goes on beside it.
    pub(crate) fn go_back(&mut self) {
        let Some(trial) = &mut self.trial else { return };
        let by = format!("not confirmed within {} s", trial.time.as_secs_f64());
        if !trial.is_over {
            tracing::warn!("the policy in force was {by}: the one before comes back");
        }
        trial.is_over = true;
        trial.ends = Instant::now() + AGAIN;
        let before = trial.before.clone();
        self.start(Origin::Past(before), by);
    }

    fn answer(&mut self, verdict: &Verdict) {
        answer(std::mem::take(&mut self.waiting), verdict);
    }
}

fn answer(waiting: Vec<Waiter>, verdict: &Verdict) {
    for waiter in waiting {
        // An error means that the client has gone.
        let _ = waiter.send(verdict.clone());
    }
}
