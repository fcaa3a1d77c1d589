//! The sinks as the thread of the dataplane last published them. Any thread may read their counts and call
//! their hubs; a hub is gone once its sink is closed.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use program::SinkSpec;
use worker::sinks::{ExportStatistics, Hub, PacketSizes, Ports, RecorderReader, SinkStatus, TopFlow};
use worker::{SinkCounters, SinkTraffic};

use super::AttachedTo;
use crate::daemon::sink_health::SinkProgress;

/// How long the end of a hub waits for the calls of it that are running, and how often it looks.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);
const CALL_STEP: Duration = Duration::from_millis(1);

/// One sink for each name, in the order of the policy in force, attached ones last.
#[derive(Debug, Default)]
pub(crate) struct SinkList(Vec<ShownSink>);

#[derive(Debug)]
pub(super) struct ShownSink {
    pub(super) definition: SinkSpec,
    pub(super) attached_to: Option<AttachedTo>,
    pub(super) hub: SharedHub,
    /// The hub's totals at the end of the workers.
    pub(super) last: Measured,
    /// The counters of all open sinks of this name.
    pub(super) counters: Vec<OpenCounters>,
    /// The totals of closed sinks of this name.
    pub(super) past: Counted,
}

/// The hub of a sink until its end, by the thread of the dataplane or, if that hangs, by the shutdown.
#[derive(Clone)]
pub(crate) struct SharedHub(Arc<Mutex<HubPlace>>);

/// A call holds the hub; `None` after the end.
type HubPlace = Option<Arc<Box<dyn Hub>>>;

impl fmt::Debug for SharedHub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.place().is_some() { "SharedHub" } else { "SharedHub(ended)" })
    }
}

impl SharedHub {
    pub(super) fn new(hub: Box<dyn Hub>) -> Self {
        Self(Arc::new(Mutex::new(Some(Arc::new(hub)))))
    }

    /// Calls the hub, without a lock; `None` after its end.
    pub(super) fn with<T>(&self, call: impl FnOnce(&dyn Hub) -> T) -> Option<T> {
        let hub = self.place().clone();
        hub.map(|hub| call(&**hub))
    }

    /// Drops the hub, which writes and counts what it still has. One that hangs in a call is dropped when
    /// that returns.
    pub(crate) fn end(&self) {
        let Some(mut hub) = self.place().take() else { return };
        let deadline = Instant::now() + CALL_TIMEOUT;
        while let Err(shared) = Arc::try_unwrap(hub) {
            if Instant::now() >= deadline {
                return;
            }
            hub = shared;
            std::thread::sleep(CALL_STEP);
        }
    }

    fn place(&self) -> MutexGuard<'_, HubPlace> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The counters of a sink that is open.
#[derive(Clone, Debug)]
pub(super) struct OpenCounters {
    pub(super) traffic: Vec<Arc<SinkCounters>>,
    /// The counters of what the sink sends by a port for others.
    pub(super) transmit: Vec<Arc<SinkCounters>>,
}

/// The counts of a sink.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counted {
    /// The totals by worker.
    pub(crate) traffic: Vec<SinkTraffic>,
    /// The totals of what the sink sends by a port for others, by thread; empty if it does not.
    pub(crate) transmit: Vec<SinkTraffic>,
}

/// The values that a hub measures beside the sink's counters.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    deleted_files: Option<u64>,
    export: Option<ExportStatistics>,
    sizes: Option<PacketSizes>,
    top_flows: Option<Vec<TopFlow>>,
}

/// A sink with its counters, for the state.
pub(crate) struct SinkView {
    pub(crate) definition: SinkSpec,
    /// `None`: a policy names it.
    pub(crate) attached_to: Option<AttachedTo>,
    pub(crate) counted: Counted,
    pub(crate) status: SinkStatus,
    pub(crate) deleted_files: Option<u64>,
    pub(crate) export: Option<ExportStatistics>,
    pub(crate) sizes: Option<PacketSizes>,
    /// The flows with most packets first.
    pub(crate) top_flows: Option<Vec<TopFlow>>,
}

impl SinkView {
    /// The name of its kind.
    pub(crate) fn kind(&self) -> &'static str {
        match self.attached_to {
            Some(AttachedTo::Recorded(_)) => "recorder",
            _ => self.definition.kind.name(),
        }
    }
}

impl SinkList {
    pub(super) fn new(sinks: Vec<ShownSink>) -> Self {
        Self(sinks)
    }

    /// To be called about once a second. A hub may query a device, which may block; no other hub is held
    /// meanwhile, so that their sinks can be closed.
    pub(crate) fn tick(&self, ports: &Ports<'_>) {
        for sink in &self.0 {
            sink.hub.with(|hub| hub.tick(ports));
        }
    }

    /// Ends the threads of the sinks, in place of the thread of the dataplane.
    pub(crate) fn end(&self) {
        self.0.iter().for_each(|sink| sink.hub.end());
    }

    /// The recorder of the policy in force, if it has one.
    pub(crate) fn recorder(&self) -> Option<RecorderReader> {
        self.0.iter().find_map(|sink| sink.hub.with(|hub| hub.recorder()).flatten())
    }

    pub(crate) fn view(&self) -> Vec<SinkView> {
        self.0.iter().map(ShownSink::view).collect()
    }

    /// The packets that the sinks of the policy have passed on and lost so far.
    pub(crate) fn progress(&self) -> Vec<SinkProgress> {
        let of_policy = self.0.iter().filter(|sink| sink.attached_to.is_none());
        of_policy.map(|sink| SinkProgress::of(&sink.definition.name, &sink.counted().traffic)).collect()
    }
}

impl ShownSink {
    fn counted(&self) -> Counted {
        let mut sum = self.past.clone();
        self.counters.iter().for_each(|counters| sum.add(&counters.read()));
        sum
    }

    fn view(&self) -> SinkView {
        let measured = self.hub.with(|hub| (Measured::of(hub), hub.status()));
        let (measured, status) = measured.unwrap_or_else(|| (self.last.clone(), SinkStatus::default()));
        let Measured { deleted_files, export, sizes, top_flows } = measured;
        SinkView {
            definition: self.definition.clone(),
            attached_to: self.attached_to.clone(),
            counted: self.counted(),
            status,
            deleted_files,
            export,
            sizes,
            top_flows,
        }
    }
}

impl OpenCounters {
    pub(super) fn read(&self) -> Counted {
        let read = |counters: &[Arc<SinkCounters>]| counters.iter().map(|counters| counters.read()).collect();
        Counted { traffic: read(&self.traffic), transmit: read(&self.transmit) }
    }
}

impl Counted {
    pub(super) fn add(&mut self, other: &Self) {
        let add = |sums: &mut Vec<SinkTraffic>, more: &[SinkTraffic]| {
            sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
            sums.extend(more.iter().skip(sums.len()).cloned());
        };
        add(&mut self.traffic, &other.traffic);
        add(&mut self.transmit, &other.transmit);
    }
}

impl Measured {
    pub(super) fn of(hub: &dyn Hub) -> Self {
        let (sizes, top_flows) = (hub.packet_sizes(), hub.top_flows());
        Self { deleted_files: hub.deleted_files(), export: hub.export(), sizes, top_flows }
    }
}
