//! The end: every step is limited in time; parts that hang are named and left to the end of the process.

use std::fmt::Display;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use control::Controller;
use worker::{Worker, WorkerHandle};

use super::start::{Owner, WorkerThreads};
use super::{Dataplane, Steering, change_device, read_drops};
use crate::daemon::device::Soft;
use crate::daemon::health::Part;
use crate::daemon::observer::{Moment, Observer};
use crate::daemon::shutdown::within;
use crate::daemon::sinks::Sinks;
use crate::daemon::{Error, notify};
use crate::state::{DeviceCondition, State};

/// How long the shutdown waits for each of its steps. Together with the limits in `shutdown` they stay below
/// TimeoutStopSec= of systemd/steerd.service, so that parts that hang are named before the service is killed.
const CLEAR_TIMEOUT: Duration = Duration::from_secs(7);
const WORKER_TIMEOUT: Duration = Duration::from_secs(5);
const ENGINE_TIMEOUT: Duration = Duration::from_secs(3);
const SINKS_TIMEOUT: Duration = Duration::from_secs(3);
const STATE_TIMEOUT: Duration = Duration::from_secs(3);

/// How long the removal of all flows may take: longer where the device's model says that it does, and then
/// the service manager is told.
fn clear_timeout(observer: &Observer) -> Duration {
    let model = observer.opened.profile(observer.worker_count());
    let flows = observer.board.read().policy.program.flows.len() * observer.opened.ports.len();
    let Some(rate) = model.flows_per_second else { return CLEAR_TIMEOUT };
    let predicted = Duration::from_secs_f64(flows as f64 / f64::from(rate.max(1)));
    if predicted > Duration::from_secs(1) {
        tracing::info!("removing {flows} flows takes about {:.1} s", predicted.as_secs_f64());
        notify::extend_timeout(predicted * 2 + CLEAR_TIMEOUT * 3);
    }
    CLEAR_TIMEOUT + predicted * 2
}

/// The result of a shutdown.
pub(crate) struct Stopped {
    /// The last state, if the device still answered.
    pub(crate) state: Option<State>,
    pub(crate) ran_for: Duration,
    pub(crate) errors: Vec<Error>,
    /// The parts that did not end in time. They still use the device, so what remains must not be dropped.
    pub(crate) hung: Vec<String>,
    /// The device has failed for good. It refuses to release objects one by one, and the kernel releases them
    /// with the process: what remains need not be dropped.
    pub(crate) is_device_lost: bool,
    pub(crate) remains: Remains,
}

/// The parts that have ended, in the order in which they may be dropped.
pub(crate) struct Remains {
    _controller: Option<Controller>,
    _sinks: Option<Sinks>,
    _workers: Vec<Worker>,
    _observer: Arc<Observer>,
}

/// Why the thread does not give the dataplane back.
enum Lost {
    Hung,
    Panicked,
}

/// A shutdown in progress.
struct Ending {
    observer: Arc<Observer>,
    errors: Vec<Error>,
    hung: Vec<String>,
    is_device_lost: bool,
}

impl Steering {
    /// Removes the flows, so that no packet arrives any more, lets the workers process what has arrived, and
    /// reads the final counters.
    pub(crate) fn stop(self) -> Stopped {
        let Self { owner, mut threads, observer } = self;
        let ran_for = observer.started.elapsed();
        observer.health.set_steering(false);
        observer.opened.close_wires();
        let is_device_lost = observer.health.device() != DeviceCondition::Working;
        let mut ending = Ending { observer, errors: Vec::new(), hung: Vec::new(), is_device_lost };
        let (controller, sinks) = ending.clear(owner);
        let (workers, failed) = threads.join();
        let (sinks, workers) = ending.end_sinks(sinks, workers);
        for error in failed {
            match error {
                worker::Error::StillRunning { worker } => ending.hang(Part::Worker(worker.0)),
                error => ending.errors.push(Error::Worker(error)),
            }
        }
        stop_engines(&ending.observer).into_iter().for_each(|engine| ending.hang(engine));
        let (state, controller) = ending.read_state(controller);
        let Ending { observer, errors, hung, .. } = ending;
        let remains =
            Remains { _controller: controller, _sinks: sinks, _workers: workers, _observer: observer };
        Stopped { state, ran_for, errors, hung, is_device_lost, remains }
    }
}

impl Ending {
    fn hang(&mut self, part: impl Display) {
        self.hung.push(part.to_string());
    }

    /// Takes the dataplane from its thread, and removes the flows.
    fn clear(&mut self, mut owner: Owner) -> (Option<Controller>, Option<Sinks>) {
        let timeout = clear_timeout(&self.observer);
        let deadline = Instant::now() + timeout;
        let Dataplane { mut nic_drops, mut controller, sinks, .. } = match owner.end(timeout) {
            Ok(dataplane) => dataplane,
            Err(Lost::Hung) => {
                self.hang("the thread of the dataplane");
                return (None, None);
            }
            Err(Lost::Panicked) => {
                self.errors.push(Error::DataplaneDied);
                return (None, None);
            }
        };
        let observer = Arc::clone(&self.observer);
        let is_device_lost = self.is_device_lost;
        let clear = move || {
            let of_filters = nic_drops.end();
            let of_flows = match is_device_lost {
                true => Ok(()),
                false => change_device(&mut controller, &observer, Controller::clear),
            };
            (controller, of_filters, of_flows.map_err(Error::Install))
        };
        let cleared = within("clear", deadline.saturating_duration_since(Instant::now()), clear);
        let Some((controller, of_filters, of_flows)) = cleared else {
            self.hang("the removal of the flows");
            return (None, Some(sinks));
        };
        self.errors.extend(of_filters.err().into_iter().chain(of_flows.err()));
        (Some(controller), Some(sinks))
    }

    /// `sinks`: `None` if the thread of the dataplane keeps them; those that it has published end anyway, so
    /// that captures have their last packets.
    fn end_sinks(
        &mut self,
        mut sinks: Option<Sinks>,
        mut workers: Vec<Worker>,
    ) -> (Option<Sinks>, Vec<Worker>) {
        let published = self.observer.board.read();
        let end = move || {
            match &mut sinks {
                Some(sinks) => sinks.end(),
                None => published.sinks.end(),
            }
            // After their hubs, which end the sends in flight.
            workers.iter_mut().for_each(Worker::free_sinks);
            (sinks, workers)
        };
        let Some((sinks, workers)) = within("sinks", SINKS_TIMEOUT, end) else {
            self.hang("the sinks");
            return (None, Vec::new());
        };
        if let Some(sinks) = &sinks {
            let list = Arc::new(sinks.list());
            self.observer.board.update(|published| published.sinks = list);
        }
        (sinks, workers)
    }

    /// Reads the last state, which is exact if every part has ended.
    fn read_state(&mut self, controller: Option<Controller>) -> (Option<State>, Option<Controller>) {
        let observer = Arc::clone(&self.observer);
        let is_exact = self.hung.is_empty() && !self.is_device_lost;
        let moment = if is_exact { Moment::Ended } else { Moment::Running };
        let is_device_lost = self.is_device_lost;
        let read = move || match controller {
            // The counters of a lost device cannot be read, and the controller is not dropped here.
            controller if is_device_lost => (observer.state(), controller),
            Some(mut controller) => {
                let drops = read_drops(&mut controller, &observer);
                (observer.last_state(drops, moment), Some(controller))
            }
            None => (observer.state(), None),
        };
        let Some((state, controller)) = within("state", STATE_TIMEOUT, read) else {
            self.hang("the final read of the counters");
            return (None, None);
        };
        (Some(state), controller)
    }
}

impl Owner {
    /// Whether the thread has exited unexpectedly.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Takes the dataplane from its thread. One that hangs keeps it until the process ends.
    fn end(&mut self, timeout: Duration) -> Result<Dataplane, Lost> {
        let deadline = Instant::now() + timeout;
        let thread = self.thread.take().ok_or(Lost::Hung)?;
        if !self.commands.stop(timeout) {
            return Err(Lost::Hung);
        }
        match parking::join_within(thread, deadline.saturating_duration_since(Instant::now())) {
            Some(Ok(dataplane)) => Ok(dataplane),
            Some(Err(_)) => Err(Lost::Panicked),
            None => Err(Lost::Hung),
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.thread.is_some() {
            let _ = self.end(CLEAR_TIMEOUT);
        }
    }
}

/// Ends the engines, all at the same time; returns those that are still running after the timeout.
fn stop_engines(observer: &Observer) -> Vec<Part> {
    let stop = |soft: &Soft| (!soft.nic.stop_within(ENGINE_TIMEOUT)).then(|| soft.engine());
    std::thread::scope(|scope| {
        let begin = |soft| {
            let thread = std::thread::Builder::new().name("stop".to_owned());
            thread.spawn_scoped(scope, move || stop(soft)).map_err(|_| soft)
        };
        let begun: Vec<_> = observer.opened.soft_nics().map(begin).collect();
        // Without a thread: one after the other.
        let ended = begun.into_iter().filter_map(|begun| match begun {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(soft) => stop(soft),
        });
        ended.collect()
    })
}

impl WorkerThreads {
    /// A worker whose thread has exited unexpectedly.
    pub(crate) fn dead(&self) -> Option<u32> {
        self.0.iter().find(|handle| handle.is_finished()).map(|handle| handle.id().0)
    }

    fn join(&mut self) -> (Vec<Worker>, Vec<worker::Error>) {
        self.0.iter().for_each(WorkerHandle::stop);
        let deadline = Instant::now() + WORKER_TIMEOUT;
        let (mut stopped, mut failed) = (Vec::new(), Vec::new());
        for handle in std::mem::take(&mut self.0) {
            match handle.join_by(deadline) {
                Ok(worker) => stopped.push(worker),
                Err(error) => failed.push(error),
            }
        }
        (stopped, failed)
    }
}

impl Drop for WorkerThreads {
    fn drop(&mut self) {
        for error in self.join().1 {
            tracing::error!("{error}");
        }
    }
}
