//! The parts of the running dataplane that any thread may look at: counters in shared memory, the device's
//! ports, and what the [`Board`] shows. Nothing on the device is changed through them.

mod snapshot;
mod stage_times;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use control::{ChangeProgress, ControlError, DropTotals};
use softnic::{OwnedNic, PortStats};
use worker::{ClockRelation, ReceiveKind, ReceiveQueueHealth, Traffic, WorkerControl};

use crate::api::model;
use crate::daemon::board::{Board, Published};
use crate::daemon::dataplane::DropReader;
use crate::daemon::device::{OpenDevice, OutOfBuffer, Soft};
use crate::daemon::device_events::EventCounts;
use crate::daemon::health::{DownPort, Health, Part, Progress};
use crate::daemon::libmlx5::PreloadedNic;
use crate::daemon::records::RecordTotals;
use crate::daemon::trace::TraceTotals;
use crate::state::{RuleState, State};
use crate::telemetry::logging::Log;
pub(super) use snapshot::{Moment, dropped, sent_dropped};

pub(crate) struct Observer {
    pub(crate) opened: OpenDevice,
    pub(super) workers: Vec<WorkerEntry>,
    pub(crate) board: Board,
    pub(crate) health: Arc<Health>,
    pub(super) change: Arc<ChangeProgress>,
    pub(super) drops: DropReader,
    pub(super) out_of_buffer: OutOfBuffer,
    pub(super) started: Instant,
    pub(super) started_at_seconds: f64,
    /// The frames of all workers.
    pub(super) frames: u64,
    pub(super) log: Log,
    pub(super) traces: Arc<TraceTotals>,
    pub(super) records: Arc<RecordTotals>,
    /// The counts of asynchronous events that the device has reported.
    pub(super) events: EventCounts,
    /// The traffic of rules at run time, by their names in programs, that was counted in the device until
    /// they left it, and that nobody has taken.
    pub(super) left_device: Mutex<HashMap<String, Traffic>>,
}

/// A worker that was found by its receive queue.
pub(super) struct WorkerOfQueue<'o> {
    pub(super) index: usize,
    pub(super) control: &'o WorkerControl,
}

pub(super) struct WorkerEntry {
    pub(super) control: WorkerControl,
    /// The number of its work queue.
    pub(super) queue: u32,
    pub(super) receive: ReceiveKind,
}

impl Observer {
    /// The number of all workers, with spare ones.
    pub(crate) fn worker_count(&self) -> usize {
        self.workers.len()
    }

    /// Takes the traffic that rules at run time had in the device which they have left.
    pub(super) fn take_left_device(&self) -> HashMap<String, Traffic> {
        std::mem::take(&mut *self.left_device.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes traffic that a rule at run time had in the device.
    pub(super) fn note_left_device(&self, name: String, traffic: Traffic) {
        let mut left = self.left_device.lock().unwrap_or_else(PoisonError::into_inner);
        *left.entry(name).or_default() += traffic;
    }

    pub(super) fn soft_nic(&self) -> Option<&OwnedNic> {
        self.opened.soft.as_ref().map(|soft| &*soft.nic)
    }

    /// The ports' counters; `None` for a device without them.
    pub(super) fn port_stats(&self) -> Option<Vec<PortStats>> {
        let of_port = |port: &u8| match (self.soft_nic(), &self.opened.preloaded) {
            (Some(nic), _) => Some(nic.port_stats(*port)),
            // It has one port.
            (None, Some(preloaded)) => Some(preloaded.port_stats()),
            (None, None) => None,
        };
        self.opened.ports.iter().map(of_port).collect()
    }

    /// The iterations of each worker's loop and of each engine thread's. Never blocks.
    pub(crate) fn progress(&self) -> Vec<Progress> {
        let workers = self
            .workers
            .iter()
            .map(|entry| (Part::Worker(entry.control.id().0), entry.control.progress().iterations));
        let engines = self.opened.soft_nics().flat_map(Soft::progress);
        workers.chain(engines).chain(self.opened.preloaded.as_ref().map(PreloadedNic::progress)).collect()
    }

    /// The ports whose link is down. Queries the device, which may block.
    pub(crate) fn ports_down(&self) -> Vec<DownPort> {
        let is_down =
            |port: &&u8| matches!(self.opened.device.check_port(**port), Err(ControlError::PortDown { .. }));
        let down = self.opened.ports.iter().filter(is_down);
        down.map(|port| DownPort { port: *port, wire: self.opened.wire_name(*port) }).collect()
    }

    /// The number of failed polls of each worker.
    pub(crate) fn poll_errors(&self) -> Vec<u64> {
        self.workers.iter().map(|entry| entry.control.progress().poll_errors).collect()
    }

    /// The state of each worker's receive queue.
    pub(super) fn receive_queues(&self) -> impl Iterator<Item = (u32, ReceiveQueueHealth)> {
        self.workers.iter().map(|entry| (entry.control.id().0, entry.control.receive_queue()))
    }

    /// The worker whose receive queue has this number.
    pub(super) fn worker_of_queue(&self, number: u32) -> Option<WorkerOfQueue<'_>> {
        let index = self.workers.iter().position(|entry| entry.queue == number)?;
        Some(WorkerOfQueue { index, control: &self.workers[index].control })
    }

    /// Gives workers the relation by which they convert timestamps.
    pub(crate) fn set_clock(&self, relation: ClockRelation) {
        self.workers.iter().for_each(|entry| entry.control.set_clock(relation));
    }

    /// Whether every port of the workers' soft NIC has received its last frame and all frames have been
    /// handed over. Other soft NICs only send.
    pub(crate) fn wires_finished(&self) -> bool {
        self.soft_nic().is_some_and(OwnedNic::wires_finished)
            || self.opened.preloaded.as_ref().is_some_and(PreloadedNic::is_finished)
    }

    /// The soft NIC whose engine's thread has died.
    pub(crate) fn dead_engine(&self) -> Option<String> {
        let soft = self.opened.soft_nics().find(|soft| soft.nic.engine_died()).map(|soft| &soft.name);
        let preloaded =
            self.opened.preloaded.as_ref().filter(|preloaded| preloaded.has_died()).map(PreloadedNic::name);
        soft.or(preloaded).map(ToString::to_string)
    }

    /// The state without counters: nothing here asks the device.
    pub(crate) fn status(&self) -> model::Status {
        snapshot::status(self)
    }

    /// The rules of a publication, without counts: nothing here asks the device.
    pub(super) fn rules(&self, published: &Published) -> Vec<RuleState> {
        snapshot::rules(self, published)
    }

    /// The state now. Queries the device, which may block.
    pub(crate) fn state(&self) -> State {
        snapshot::of(self, None, Moment::Running)
    }

    /// The state at the end. `drops`: the counters of drop rules, read after the last flow.
    pub(super) fn last_state(&self, drops: Arc<[DropTotals]>, moment: Moment) -> State {
        snapshot::of(self, Some(drops), moment)
    }

    /// The counters of drop rules, if they were ever read; `false`: read earlier, as the device is being
    /// changed now.
    fn drop_totals(&self) -> (Option<Arc<[DropTotals]>>, bool) {
        // A soft device answers between two bursts of its engine: if the engine is stalled, never.
        let is_stalled = self.opened.engine_stalled(&self.health.stalled()) == Some(true);
        match (!is_stalled).then(|| self.drops.read()).flatten() {
            Some(now) => (Some(now), true),
            None => (self.board.read().drops.clone(), false),
        }
    }
}

pub(super) fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
