//! SIGHUP: the policy is read again and takes the old one's place, all or nothing.
//!
//! The run loop starts it and goes on looking after the workers; reading, compiling and installing,
//! which may take long, run on a thread of their own. A policy with errors, or one that the device
//! refuses, changes nothing but a counter and the log; there is no state in between.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crossbeam::channel::{self, Receiver};
use policy::Severity;

use crate::error::chain;
use crate::plant::{LATE_PACKETS, Plant};
use crate::{notify, policy_file};

/// At most one reload at a time, and at most one that waits for it.
pub(crate) struct Reloader {
    plant: Arc<Plant>,
    running: Option<Receiver<()>>,
    /// The file may have changed since the running one read it.
    again: bool,
}

impl Reloader {
    pub(crate) fn new(plant: Arc<Plant>) -> Self {
        Self { plant, running: None, again: false }
    }

    pub(crate) fn begin(&mut self) {
        if self.running.is_some() {
            self.again = true;
            return;
        }
        notify::reloading();
        // Its other end goes with the thread, however that ends.
        let (done, running) = channel::bounded(1);
        let plant = Arc::clone(&self.plant);
        let thread = std::thread::Builder::new().name("reload".into()).spawn(move || {
            run(&plant);
            let _ = done.send(());
            free_previous(plant);
        });
        match thread {
            Ok(_) => self.running = Some(running),
            Err(error) => failed(&self.plant, &format!("no thread can be started: {error}")),
        }
    }

    /// Ready once the running reload is over; then `ended` is to be called.
    pub(crate) fn over(&self) -> Receiver<()> {
        self.running.clone().unwrap_or_else(channel::never)
    }

    /// `whole`: it has come to its end, whatever that was.
    pub(crate) fn ended(&mut self, whole: bool) {
        self.running = None;
        if !whole {
            failed(&self.plant, "its thread has panicked");
        }
        if std::mem::take(&mut self.again) {
            self.begin();
        }
    }
}

fn run(plant: &Plant) {
    let begun = Instant::now();
    let source = plant.policy_source();
    match replace(plant) {
        Ok(()) => {
            plant.reload_succeeded();
            tracing::info!("reload: {source} is in force after {} ms", begun.elapsed().as_millis());
            notify::ready(&format!("reloaded {source}"));
        }
        // What it was meant for is ending.
        Err(_) if plant.stopping.load(Ordering::Acquire) => {}
        Err(error) => failed(plant, &error),
    }
}

/// Later, and not if it has ended meanwhile.
fn free_previous(plant: Arc<Plant>) {
    let generation = plant.generation();
    let later = Arc::downgrade(&plant);
    drop(plant);
    std::thread::sleep(LATE_PACKETS);
    if let Some(plant) = later.upgrade() {
        plant.free_previous(generation);
    }
}

fn failed(plant: &Plant, error: &str) {
    let source = plant.policy_source();
    plant.reload_failed(error);
    tracing::error!("reload: {error}");
    tracing::error!("reload: {source} is not taken, the policy before stays in force");
    notify::ready(&format!("reload of {source} failed, the policy before stays in force"));
}

fn replace(plant: &Plant) -> Result<(), String> {
    let source = plant.policy_source();
    let workers = plant.worker_count();
    let profile = plant.opened().device.profile(workers);
    let before = plant.program();
    let compiled = policy_file::compile(&source, &profile, Some(workers), Some(&before))
        .and_then(policy_file::Compiled::into_installable)
        .map_err(|diagnostics| {
            // Errors first: they are why the policy is refused, and few lines are logged.
            let (errors, warnings): (Vec<_>, Vec<_>) =
                diagnostics.list.iter().cloned().partition(|one| one.severity == Severity::Error);
            policy_file::log(&[errors.as_slice(), &warnings].concat(), diagnostics.omitted);
            let first = errors.first();
            let first = first.map_or_else(String::new, |diagnostic| format!(", the first: {diagnostic}"));
            format!("{} in {source}{first}", policy_file::error_count(&diagnostics))
        })?;
    policy_file::log(&compiled.warnings, 0);
    if let Some(obstacle) = compiler::together(&before, &compiled.program, &profile) {
        let errno = obstacle.errno.map_or_else(String::new, |errno| format!(" ({errno})"));
        let compiler::Obstacle { reason, limit, remedy, .. } = obstacle;
        return Err(format!("{source}: {reason}: {limit}{errno} (hint: {remedy})"));
    }
    plant.install(compiled).map_err(|error| chain(&error))
}
