//! Workers come into service and leave it while the daemon runs: a spare one is pinned to a core and gets its
//! part of the groups' tables, or one in service gives its part to the others and becomes spare.
//!
//! A change compiles the policy in force for the other workers and installs it like a reload, so only the
//! queue pairs and flows of groups whose tables change are made anew, and no packet meets half of it. A
//! worker that has left goes on polling: it takes what is in its queue, and its sinks finish what they have.
//! The lock of the rules at run time is held over each change, so none meets another, a reload or a change of
//! rules.

use std::sync::Arc;
use std::time::{Duration, Instant};

use control::FlowChanges;
use device_model::DeviceModel;
use policy::{Diagnostics, Policy, Severity};
use program::WorkerId;

use crate::api::model::{ChangedFlows, WorkerList, WorkerRow, WorkersChanged};
use crate::api::request::{Refused, WorkerChange};
use crate::daemon::cores;
use crate::daemon::dataplane::{Cause, LATE_PACKET_GRACE};
use crate::daemon::health::Part;
use crate::daemon::observer::Observer;
use crate::daemon::reload::Parts;
use crate::daemon::rules::{Rules, TrialStage};
use crate::daemon::worker_set::WorkerSet;
use crate::message::chain;
use crate::policy_file::{self, Compiled, Counters, Running};
use crate::terminal::numbers::counted;

/// The beginning of errors about the core of a worker that is to be added.
const ADD: &str = "worker add";

/// How long after a refusal the tables stay as they are, unless other workers stall.
const STALL_REST: Duration = Duration::from_secs(30);

/// All workers, with the groups that each serves.
pub(super) fn list(observer: &Observer) -> WorkerList {
    let published = observer.board.read();
    let groups = |worker: WorkerId| {
        let groups = published.policy.program.groups.iter().filter(|group| group.table.contains(&worker));
        groups.map(|group| group.name.clone()).collect()
    };
    let row = |worker: WorkerId| WorkerRow {
        worker: worker.0,
        place: published.workers.place(worker),
        groups: groups(worker),
        received_packets: observer.workers[worker.index()].control.progress().received_packets,
    };
    WorkerList { workers: published.workers.ids().map(row).collect() }
}

/// Makes a change of the workers in service. All or nothing: after an error everything is as before.
///
/// # Errors
/// The worker or the core cannot be had, or the policy in force cannot be had without the worker; with the
/// remedy.
pub(super) fn change(parts: &Parts, change: WorkerChange, by: &str) -> Result<WorkersChanged, Refused> {
    let begun = Instant::now();
    let mut rules = parts.rules.lock_soon()?;
    let set = Arc::clone(&parts.observer.board.read().workers);
    let (worker, flows) = match change {
        WorkerChange::Add { core } => add(parts, &mut rules, &set, core)?,
        WorkerChange::Drain { worker } => drain(parts, &mut rules, &set, WorkerId(worker))?,
    };
    let FlowChanges { installed, removed, kept } = flows;
    let changed = WorkersChanged {
        worker: worker.0,
        place: parts.observer.board.read().workers.place(worker),
        flows: ChangedFlows { installed, removed, kept },
        milliseconds: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
    };
    tracing::info!("{changed}, by {by}");
    Ok(changed)
}

/// Brings a worker to each of these cores of the settings, or leaves all as it was.
///
/// # Errors
/// There are too few workers, or a core cannot be had; with the remedy.
pub(super) fn follow_cores(parts: &Parts, wanted: &[usize]) -> Result<(), Refused> {
    let available = cores::available();
    if let Some(core) = wanted.iter().find(|core| !available.contains(core)) {
        return Err(conflict(cores::missing("the settings", *core, &available)));
    }
    let mut rules = parts.rules.lock();
    let set = Arc::clone(&parts.observer.board.read().workers);
    let on_cores = set.on_cores(wanted).ok_or_else(|| {
        let (cores, workers) = (wanted.len(), set.ids().count());
        conflict(format!(
            "{cores} cores need as many workers, and there are {workers} (hint: workers.spare makes more at a restart)"
        ))
    })?;
    apply(parts, &mut rules, &set, &on_cores)?;
    tracing::info!(
        "workers.cores: workers serve on {} of the settings",
        counted(wanted.len() as u64, "core", "cores")
    );
    Ok(())
}

/// Takes workers out of the tables of groups that make no progress, and brings them back.
pub(super) struct StallWatch {
    parts: Parts,
    refused: Option<RefusedStall>,
}

/// The stalled workers without which the policy could not be put in force.
struct RefusedStall {
    stalled: Vec<WorkerId>,
    /// When it is tried again.
    next: Instant,
}

impl StallWatch {
    pub(super) fn new(parts: Parts) -> Self {
        Self { parts, refused: None }
    }

    /// To be called about once a second. Waits for the device and the workers, but for no stalled one.
    pub(super) fn tick(&mut self) {
        let observer = &self.parts.observer;
        let all = observer.health.stalled();
        let is_stalled = |worker: &WorkerId| all.contains(&Part::Worker(worker.0));
        let stalled: Vec<WorkerId> = observer.board.read().workers.ids().filter(is_stalled).collect();
        let wanted = |set: &WorkerSet| set.with_stalled(&stalled).filter(|wanted| wanted != set);
        let is_refused = |refused: &RefusedStall| refused.stalled == stalled && Instant::now() < refused.next;
        if self.refused.as_ref().is_some_and(is_refused) || wanted(&observer.board.read().workers).is_none() {
            return;
        }
        self.refused = None;
        // It is tried again a second later.
        let Ok(mut rules) = self.parts.rules.lock_soon() else { return };
        let Some(wanted) = wanted(&observer.board.read().workers) else { return };
        let numbers: Vec<String> = stalled.iter().map(|worker| worker.0.to_string()).collect();
        let numbers = if numbers.is_empty() { "none".to_owned() } else { numbers.join(", ") };
        match install(&self.parts, &mut rules, &wanted) {
            Ok(flows) => {
                let FlowChanges { installed, removed, kept } = flows;
                let flows = ChangedFlows { installed, removed, kept };
                tracing::warn!("groups do without stalled workers, now {numbers}: {flows}");
            }
            Err(refused) => {
                tracing::error!("groups keep their stalled workers, now {numbers}: {}", refused.why);
                self.refused = Some(RefusedStall { stalled, next: Instant::now() + STALL_REST });
            }
        }
    }
}

type Changed = Result<(WorkerId, FlowChanges), Refused>;

fn add(parts: &Parts, rules: &mut Rules, set: &WorkerSet, core: Option<usize>) -> Changed {
    let Some(worker) = set.spare().first().copied() else {
        return Err(conflict(
            "no worker is spare (hint: `steerd worker drain N` makes one spare; workers.spare in the settings is how many \
             there are from the start)",
        ));
    };
    let available = cores::available();
    if let Some(core) = core {
        if !available.contains(&core) {
            return Err(conflict(cores::missing(ADD, core, &available)));
        }
        if let Some(other) = set.serving().find(|other| set.place(*other).core == Some(core)) {
            return Err(conflict(format!(
                "{ADD}: core {core} is that of worker {} (hint: choose another one)",
                other.0
            )));
        }
    }
    Ok((worker, apply(parts, rules, set, &set.with(worker, core))?))
}

fn drain(parts: &Parts, rules: &mut Rules, set: &WorkerSet, worker: WorkerId) -> Changed {
    if !set.contains(worker) {
        let count = set.ids().count();
        let why =
            format!("there is no worker {} (hint: they are 0 to {})", worker.0, count.saturating_sub(1));
        return Err(Refused::new(404, why));
    }
    if set.is_spare(worker) {
        return Err(conflict(format!("worker {} is spare already (hint: `steerd worker list`)", worker.0)));
    }
    if set.serving().count() == 1 {
        return Err(conflict(format!(
            "worker {} is the only one in service (hint: `steerd worker add CORE` first)",
            worker.0
        )));
    }
    Ok((worker, apply(parts, rules, set, &set.without(worker))?))
}

/// Brings other workers into service than those of `set`. They are on their cores before they get packets,
/// and those that leave lose their cores after that.
fn apply(
    parts: &Parts,
    rules: &mut Rules,
    set: &WorkerSet,
    wanted: &WorkerSet,
) -> Result<FlowChanges, Refused> {
    let leaves = |worker: &WorkerId| wanted.is_spare(*worker) && !set.is_spare(*worker);
    if parts.worker_settings.is_spinning()
        && let Some(worker) = wanted.ids().find(leaves)
    {
        return Err(conflict(format!(
            "worker {} cannot be spare: with workers.idle = \"spin\" it would keep a core of others busy (hint: set \
             workers.idle = \"adaptive\" and restart)",
            worker.0
        )));
    }
    let moved = |worker: &WorkerId| wanted.place(*worker).core != set.place(*worker).core;
    let moved: Vec<WorkerId> = wanted.ids().filter(moved).collect();
    let (pinned, unpinned): (Vec<WorkerId>, Vec<WorkerId>) =
        moved.into_iter().partition(|worker| wanted.place(*worker).core.is_some());
    let done = pinned.iter().try_for_each(|worker| pin(parts, *worker, wanted));
    match done.and_then(|()| install(parts, rules, wanted)) {
        Ok(flows) => {
            pin_all(parts, &unpinned, wanted);
            Ok(flows)
        }
        Err(why) => {
            pin_all(parts, &pinned, set);
            Err(why)
        }
    }
}

fn pin(parts: &Parts, worker: WorkerId, set: &WorkerSet) -> Result<(), Refused> {
    let core = set.place(worker).core;
    let cores = core.map_or_else(cores::available, |core| vec![core]);
    let pinned = parts.observer.workers[worker.index()].control.pin(&cores);
    pinned
        .map_err(|error| conflict(format!("worker {} cannot run on the cores {cores:?}: {error}", worker.0)))
}

fn pin_all(parts: &Parts, workers: &[WorkerId], set: &WorkerSet) {
    for worker in workers {
        if let Err(refused) = pin(parts, *worker, set) {
            tracing::warn!("{}", refused.why);
        }
    }
}

/// Puts the policy in force on the device for other workers, and publishes them.
fn install(parts: &Parts, rules: &mut Rules, set: &WorkerSet) -> Result<FlowChanges, Refused> {
    let observer = &parts.observer;
    let profile = observer.opened.profile(observer.worker_count());
    let flows = match attempt(parts, rules, set, &profile) {
        // Half of the priorities are free beside any program that has the other half.
        Err(Failed::NoRoom(_)) => {
            let half = profile.with_half_of_the_priorities();
            let flows = attempt(parts, rules, set, &half)?;
            // Packets on their way may still come by flows of before.
            std::thread::sleep(LATE_PACKET_GRACE);
            attempt(parts, rules, set, &profile).map_or_else(
                |failed| {
                    let why = Refused::from(failed).why;
                    tracing::warn!("the policy has half of the device's priorities until a reload: {why}");
                    flows
                },
                |second| flows.then(second),
            )
        }
        flows => flows?,
    };
    observer.board.update(|published| {
        published.workers = Arc::new(set.clone());
        published.changes += 1;
    });
    Ok(flows)
}

enum Failed {
    /// Beside what is installed; each alone has room.
    NoRoom(String),
    Refused(String),
}

impl From<Failed> for Refused {
    fn from(failed: Failed) -> Self {
        let (Failed::NoRoom(why) | Failed::Refused(why)) = failed;
        conflict(why)
    }
}

fn attempt(
    parts: &Parts,
    rules: &mut Rules,
    set: &WorkerSet,
    profile: &DeviceModel,
) -> Result<FlowChanges, Failed> {
    let Parts { observer, commands, rules: live, .. } = parts;
    let now = Arc::clone(&observer.board.read().policy);
    let unread =
        "the text of the policy in force cannot be read again (hint: change the settings and restart)";
    let read = policy_file::load_inputs(&now.inputs).and_then(Result::ok);
    let mut read = read.ok_or_else(|| Failed::Refused(unread.to_owned()))?;
    read.inputs = Arc::clone(&now.inputs);
    let choice = rules.choose(&read.policy, &now.program, None);
    let weights = Counters::of_weights(now.weights.clone()).weights(&read.policy);
    let device_rules = |_: &Policy| choice.rules().to_vec();
    let running = Running {
        program: &now.program,
        absent: &set.absent(),
        counters: None,
        device_rules: &device_rules,
        proves_room: false,
    };
    let compiled =
        policy_file::compile_weighted(read, weights.as_ref(), profile, Some(set.known()), Some(&running));
    let compiled = compiled.and_then(Compiled::into_installable);
    let compiled = compiled.map_err(|diagnostics| Failed::Refused(first_error(&diagnostics)))?;
    if let Some(obstacle) = compiler::reload_conflict(&now.program, &compiled.program, profile) {
        return Err(Failed::Refused(format!(
            "{}: {} (hint: {})",
            obstacle.reason, obstacle.limit, obstacle.remedy
        )));
    }
    let flows = commands.install(compiled, Cause::Workers).map_err(|error| match error {
        error if error.is_for_room() => Failed::NoRoom(chain(&error)),
        error => Failed::Refused(chain(&error)),
    })?;
    rules.note_open(&choice);
    live.follow_policy(rules, &choice.left_out, &now.program, TrialStage::None);
    Ok(flows)
}

fn first_error(diagnostics: &Diagnostics) -> String {
    let first = diagnostics.list.iter().find(|one| one.severity == Severity::Error);
    first.map_or_else(|| policy_file::error_count(diagnostics), ToString::to_string)
}

fn conflict(why: impl Into<String>) -> Refused {
    Refused::new(409, why)
}
