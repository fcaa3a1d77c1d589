//! Reload on SIGHUP: the policy is read again and replaces the one in force, all or nothing.
//!
//! The run loop starts it and goes on; reading, compiling and installing may take long and run on a thread of their
//! own. A policy with errors, or one that the device refuses, changes nothing but a counter, the log and the service
//! status.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crossbeam::channel::{self, Receiver};
use policy::Severity;

use crate::daemon::notify;
use crate::daemon::runtime::{LATE_PACKET_GRACE, Runtime};
use crate::error::chain;
use crate::policy_file;

/// Runs one reload at a time; at most one more waits.
pub(crate) struct Reloader {
    runtime: Arc<Runtime>,
    running: Option<Receiver<()>>,
    /// The file may have changed since the running one read it.
    again: bool,
}

impl Reloader {
    pub(crate) fn new(runtime: Arc<Runtime>) -> Self {
        Self { runtime, running: None, again: false }
    }

    pub(crate) fn begin(&mut self) {
        if self.running.is_some() {
            self.again = true;
            return;
        }
        notify::reloading();
        // The sender is dropped with the thread, however the thread ends.
        let (done, running) = channel::bounded(1);
        let runtime = Arc::clone(&self.runtime);
        let thread = std::thread::Builder::new().name("reload".into()).spawn(move || {
            run(&runtime);
            let _ = done.send(());
            free_previous(runtime);
        });
        match thread {
            Ok(_) => self.running = Some(running),
            Err(error) => failed(&self.runtime, &format!("no thread can be started: {error}")),
        }
    }

    /// Becomes ready once the running reload is over; then `ended` must be called.
    pub(crate) fn over(&self) -> Receiver<()> {
        self.running.clone().unwrap_or_else(channel::never)
    }

    /// `completed`: the thread has not panicked.
    pub(crate) fn ended(&mut self, completed: bool) {
        self.running = None;
        if !completed {
            failed(&self.runtime, "the reload thread panicked");
        }
        if std::mem::take(&mut self.again) {
            self.begin();
        }
    }
}

fn run(runtime: &Runtime) {
    let begun = Instant::now();
    let source = runtime.policy_source();
    match replace(runtime) {
        Ok(()) => {
            runtime.reload_succeeded();
            tracing::info!("reload: {source} is in force after {} ms", begun.elapsed().as_millis());
            notify::ready(&format!("reloaded {source}"));
        }
        // The daemon is ending.
        Err(_) if runtime.stopping.load(Ordering::Acquire) => {}
        Err(error) => failed(runtime, &error),
    }
}

/// After the grace time, unless the daemon has ended.
fn free_previous(runtime: Arc<Runtime>) {
    let generation = runtime.generation();
    let later = Arc::downgrade(&runtime);
    drop(runtime);
    std::thread::sleep(LATE_PACKET_GRACE);
    if let Some(runtime) = later.upgrade() {
        runtime.free_previous(generation);
    }
}

fn failed(runtime: &Runtime, error: &str) {
    let source = runtime.policy_source();
    runtime.reload_failed(error);
    tracing::error!("reload: {error}");
    tracing::error!("reload: {source} is refused, the previous policy stays in force");
    notify::ready(&format!("reload of {source} failed, the previous policy stays in force"));
}

fn replace(runtime: &Runtime) -> Result<(), String> {
    let source = runtime.policy_source();
    let workers = runtime.worker_count();
    let profile = runtime.opened().device.profile(workers);
    let before = runtime.program();
    let compiled = policy_file::compile(&source, &profile, Some(workers), Some(&before))
        .and_then(policy_file::Compiled::into_installable)
        .map_err(|diagnostics| {
            // Errors first: they are why the policy is refused, and only the first lines are logged.
            let (errors, warnings): (Vec<_>, Vec<_>) =
                diagnostics.list.iter().cloned().partition(|one| one.severity == Severity::Error);
            policy_file::log(&[errors.as_slice(), &warnings].concat(), diagnostics.omitted);
            let first = errors.first();
            let first = first.map_or_else(String::new, |diagnostic| format!(", the first: {diagnostic}"));
            format!("{} in {source}{first}", policy_file::error_count(&diagnostics))
        })?;
    policy_file::log(&compiled.warnings, 0);
    if let Some(obstacle) = compiler::reload_conflict(&before, &compiled.program, &profile) {
        let errno = obstacle.errno.map_or_else(String::new, |errno| format!(" ({errno})"));
        let compiler::Obstacle { reason, limit, remedy, .. } = obstacle;
        return Err(format!("{source}: {reason}: {limit}{errno} (hint: {remedy})"));
    }
    runtime.install(compiled).map_err(|error| chain(&error))
}
