//! Reload on SIGHUP or by the API: the policy is read again and replaces the one in force, all or nothing.
//!
//! The run loop starts it and goes on; reading and compiling may take long and run on a thread of their own,
//! which has the thread of the dataplane install the result. A policy with errors, or one that the device
//! refuses, changes nothing but a counter, the log and the service status. Clients of the API wait for the
//! [`Verdict`] of the first reload that begins after they asked.

use std::sync::Arc;
use std::time::Instant;

use control::FlowChanges;
use crossbeam::channel::{self, Receiver};
use policy::{Diagnostic, Diagnostics, Policy, Severity};

use crate::api::Waiter;
use crate::api::model::{ChangedFlows, Verdict};
use crate::daemon::dataplane::{Cause, Commands};
use crate::daemon::observer::Observer;
use crate::daemon::rules::LiveRules;
use crate::daemon::{Error, notify};
use crate::message::{NoThread, chain};
use crate::policy_file::{self, Counters, Running};
use crate::settings::{PolicySource, Traffic};

/// The most clients that can wait for a reload to begin.
pub(crate) const WAITERS_MAX: usize = 64;

/// Runs one reload at a time; at most one more waits.
pub(crate) struct Reloader {
    observer: Arc<Observer>,
    commands: Commands,
    rules: Arc<LiveRules>,
    running: Option<Receiver<Verdict>>,
    /// The callers that wait for the running reload.
    waiting: Vec<Waiter>,
    /// The file may have changed since the running one read it; with those who wait for the next one.
    next: Option<Vec<Waiter>>,
}

impl Reloader {
    pub(crate) fn new(observer: Arc<Observer>, commands: Commands, rules: Arc<LiveRules>) -> Self {
        Self { observer, commands, rules, running: None, waiting: Vec::new(), next: None }
    }

    /// Begins a reload, or notes that another one is needed after the running one. `waiter` gets its verdict.
    pub(crate) fn begin(&mut self, waiter: Option<Waiter>) {
        if self.running.is_some() {
            self.next.get_or_insert_default().extend(waiter);
            return;
        }
        self.waiting.extend(waiter);
        notify::reloading();
        // The sender is dropped with the thread, however the thread ends.
        let (done, running) = channel::bounded(1);
        let (observer, commands) = (Arc::clone(&self.observer), self.commands.clone());
        let rules = Arc::clone(&self.rules);
        let thread = std::thread::Builder::new().name("reload".into()).spawn(move || {
            let _ = done.send(run(&observer, &commands, &rules));
        });
        match thread {
            Ok(_) => self.running = Some(running),
            Err(error) => {
                // Not here: the run loop must not wait for it.
                let refused = Refused::because(NoThread(error).to_string());
                self.answer(&failed(&self.observer, refused, Instant::now()));
            }
        }
    }

    /// Becomes ready once the running reload is over; then `ended` must be called.
    pub(crate) fn over(&self) -> Receiver<Verdict> {
        self.running.clone().unwrap_or_else(channel::never)
    }

    /// `verdict`: `None` if the thread has panicked.
    pub(crate) fn ended(&mut self, verdict: Option<Verdict>) {
        self.running = None;
        let verdict = verdict.unwrap_or_else(|| {
            failed(&self.observer, Refused::because("the reload thread panicked".to_owned()), Instant::now())
        });
        self.answer(&verdict);
        if let Some(waiters) = self.next.take() {
            self.waiting = waiters;
            self.begin(None);
        }
    }

    fn answer(&mut self, verdict: &Verdict) {
        for waiter in self.waiting.drain(..) {
            // An error means that the client has gone.
            let _ = waiter.send(verdict.clone());
        }
    }
}

fn run(observer: &Observer, commands: &Commands, rules: &LiveRules) -> Verdict {
    let begun = Instant::now();
    let source = observer.board.read().policy.source.clone();
    match replace(observer, &source, commands, rules) {
        Ok((changes, warnings)) => {
            observer.board.reload_succeeded();
            let FlowChanges { installed, removed, kept } = changes;
            let flows = ChangedFlows { installed, removed, kept };
            let milliseconds = begun.elapsed().as_millis();
            tracing::info!("reload: {source} is in force after {milliseconds} ms ({flows})");
            notify::ready(&format!("reloaded {source}"));
            Verdict { flows: Some(flows), ..verdict(observer, begun, None, warnings.into()) }
        }
        Err(refused) if refused.is_stopping => {
            verdict(observer, begun, Some(refused.why), refused.diagnostics)
        }
        Err(refused) => failed(observer, refused, begun),
    }
}

/// Why a policy is refused.
struct Refused {
    /// In one line.
    why: String,
    diagnostics: Diagnostics,
    /// The daemon is ending.
    is_stopping: bool,
}

impl Refused {
    fn because(why: String) -> Self {
        Self { why, diagnostics: Diagnostics::default(), is_stopping: false }
    }
}

fn failed(observer: &Observer, refused: Refused, begun: Instant) -> Verdict {
    let source = &observer.board.read().policy.source;
    let Refused { why, diagnostics, .. } = refused;
    observer.board.reload_failed(&why);
    tracing::error!("reload: {why}");
    tracing::error!("reload: {source} is refused, the previous policy stays in force");
    notify::ready(&format!("reload of {source} failed, the previous policy stays in force"));
    verdict(observer, begun, Some(why), diagnostics)
}

/// `error`: why the policy is refused.
fn verdict(observer: &Observer, begun: Instant, error: Option<String>, diagnostics: Diagnostics) -> Verdict {
    let in_force = observer.board.read().policy.for_api();
    Verdict {
        accepted: error.is_none(),
        source: in_force.source,
        generation: in_force.generation,
        sha256: in_force.inputs.sha256.clone(),
        milliseconds: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        flows: None,
        error,
        text: diagnostics.to_string(),
        excerpts: diagnostics.excerpts(),
        omitted_diagnostics: diagnostics.omitted,
        diagnostics: serde_json::to_value(diagnostics.list).unwrap_or_default(),
    }
}

/// Returns the flows that have changed, and the warnings about the new policy.
fn replace(
    observer: &Observer,
    source: &PolicySource,
    commands: &Commands,
    rules: &LiveRules,
) -> Result<(FlowChanges, Vec<Diagnostic>), Refused> {
    let workers = observer.worker_count();
    let profile = observer.opened.profile(workers);
    // Held until the policy is in force: nobody changes rules at run time meanwhile.
    let mut at_run_time = rules.lock();
    let before = Arc::clone(&observer.board.read().policy);
    let counters = (source.traffic == Some(Traffic::Counters))
        .then(|| Counters::of_state(&observer.state(), before.weights.clone()));
    let device_rules = |policy: &Policy| at_run_time.for_device(policy, &before.program);
    let running = Running { program: &before.program, counters, device_rules: &device_rules };
    let compiled = policy_file::compile(source, &profile, Some(workers), Some(&running))
        .and_then(policy_file::Compiled::into_installable)
        .map_err(|diagnostics| {
            // Errors first: they are why the policy is refused, and only the first lines are logged.
            let (errors, warnings): (Vec<_>, Vec<_>) =
                diagnostics.list.iter().cloned().partition(|one| one.severity == Severity::Error);
            policy_file::log(&[errors.as_slice(), &warnings].concat(), diagnostics.omitted);
            let first = errors.first();
            let first = first.map_or_else(String::new, |diagnostic| format!(", the first: {diagnostic}"));
            let why = format!("{} in {source}{first}", policy_file::error_count(&diagnostics));
            Refused { diagnostics, ..Refused::because(why) }
        })?;
    policy_file::log(&compiled.warnings, 0);
    let warnings = compiled.warnings.clone();
    let refused = |why| Refused { diagnostics: warnings.clone().into(), ..Refused::because(why) };
    if let Some(obstacle) = compiler::reload_conflict(&before.program, &compiled.program, &profile) {
        let errno = obstacle.errno.map_or_else(String::new, |errno| format!(" ({errno})"));
        let compiler::Obstacle { reason, limit, remedy, .. } = obstacle;
        return Err(refused(format!("{source}: {reason}: {limit}{errno} (hint: {remedy})")));
    }
    let changes = commands.install(compiled, Cause::Policy).map_err(|error| {
        let is_stopping = matches!(error, Error::Stopping);
        Refused { is_stopping, ..refused(chain(&error)) }
    })?;
    rules.follow_policy(&mut at_run_time);
    Ok((changes, warnings))
}
