//! Whether the daemon works: the progress of every worker, of the engines of soft NICs and of the run loop,
//! and which ports are down.
//!
//! The run loop compares the progress counts at every tick with [`Monitor`]; a thread of its own asks the
//! device for its ports. /readyz, /healthz, the state and the metrics read the result, [`Health`], from other
//! threads. Nothing here asks the device or takes a lock that is held during such a call, so the answer comes
//! even while the device does not respond.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::daemon::sink_health::LosingSink;
use crate::state::DeviceCondition;
use crate::telemetry::http::Probes;

/// A longer gap between two updates counts as this much: if the whole process was stopped (SIGSTOP, a
/// suspended virtual machine), no part could make progress.
const LONGEST_GAP: Duration = Duration::from_secs(2);

/// A part whose progress is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Worker(u32),
    /// The engine of the soft NIC of this name; of several threads, the number from 1.
    Engine(Arc<str>, Option<usize>),
    RunLoop,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Worker(number) => write!(f, "worker {number}"),
            Self::Engine(nic, None) => write!(f, "the engine of {nic}"),
            Self::Engine(nic, Some(thread)) => write!(f, "engine thread {thread} of {nic}"),
            Self::RunLoop => f.write_str("the run loop"),
        }
    }
}

/// A part and a count that grows while it works.
pub(crate) type Progress = (Part, u64);

/// A port that is down, and what it is connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DownPort {
    pub(crate) port: u8,
    pub(crate) wire: String,
}

impl fmt::Display for DownPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {}", self.port)?;
        if self.wire.is_empty() { Ok(()) } else { write!(f, " ({})", self.wire) }
    }
}

/// The last result, shared by those who make it and those who read it.
#[derive(Debug, Default)]
pub(crate) struct Health(Mutex<Status>);

/// Whether the daemon steers packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SteeringPhase {
    #[default]
    Starting,
    /// The policy is on the device, all servers answer, and the shutdown has not begun.
    Steering,
    Ending,
}

#[derive(Debug, Default)]
struct Status {
    phase: SteeringPhase,
    stalled: Vec<Part>,
    ports_down: Vec<DownPort>,
    device: DeviceCondition,
    /// The workers whose receive queues are in their error state.
    failed_queues: Vec<u32>,
    losing_sinks: Vec<LosingSink>,
    /// Why rules at run time do not act as they should.
    rules_fault: Option<String>,
    /// Why filters of a NIC may drop packets that the policy does not drop.
    filters_fault: Option<String>,
    /// When the run loop must have made its next update. `None`: it does not run yet, or no more.
    due: Option<Instant>,
}

impl Health {
    /// `true` once the policy is on the device and all servers answer, `false` when the shutdown begins.
    pub(crate) fn set_steering(&self, steering: bool) {
        let mut status = self.status();
        status.phase = if steering { SteeringPhase::Steering } else { SteeringPhase::Ending };
        if !steering {
            status.due = None;
        }
    }

    /// Replaces the ports that are down; returns those that went down or came up.
    pub(crate) fn set_ports_down(&self, now: Vec<DownPort>) -> Vec<Change> {
        let mut status = self.status();
        let before = std::mem::replace(&mut status.ports_down, now);
        let now = &status.ports_down;
        let down = now.iter().filter(|port| !before.contains(port)).cloned().map(Change::Down);
        let up = before.iter().filter(|port| !now.contains(port)).cloned().map(Change::Up);
        down.chain(up).collect()
    }

    /// Notes that the device has failed.
    pub(crate) fn set_device(&self, condition: DeviceCondition) {
        self.status().device = condition;
    }

    /// The condition of the device, as far as its events show it.
    pub(crate) fn device(&self) -> DeviceCondition {
        self.status().device
    }

    /// Replaces the workers whose receive queues are in their error state; returns those that are new.
    pub(crate) fn set_failed_queues(&self, now: Vec<u32>) -> Vec<Change> {
        let mut status = self.status();
        let before = std::mem::replace(&mut status.failed_queues, now);
        let new = status.failed_queues.iter().filter(|worker| !before.contains(worker));
        new.map(|worker| Change::QueueFailed(*worker)).collect()
    }

    /// Replaces the sinks that lose all their packets; returns those that began or ceased to.
    pub(crate) fn set_losing_sinks(&self, now: Vec<LosingSink>) -> Vec<Change> {
        let mut status = self.status();
        let before = std::mem::replace(&mut status.losing_sinks, now);
        let now = &status.losing_sinks;
        let is_in = |list: &[LosingSink], sink: &LosingSink| list.iter().any(|other| other.name == sink.name);
        let began = now.iter().filter(|sink| !is_in(&before, sink)).cloned().map(Change::Losing);
        let ceased = before.iter().filter(|sink| !is_in(now, sink)).cloned().map(Change::Passing);
        began.chain(ceased).collect()
    }

    /// Notes why rules at run time do not act as they should, if they do not.
    pub(crate) fn set_rules_fault(&self, fault: Option<String>) {
        self.status().rules_fault = fault;
    }

    /// Notes why filters of a NIC may drop packets that the policy does not drop, if they may.
    pub(crate) fn set_filters_fault(&self, fault: Option<String>) {
        self.status().filters_fault = fault;
    }

    /// The reason why the sink of this name loses all its packets, if it does.
    pub(crate) fn loses(&self, sink: &str) -> Option<&'static str> {
        self.status().losing_sinks.iter().find(|losing| losing.name == sink).map(|losing| losing.reason)
    }

    /// All parts that make no progress now.
    pub(crate) fn stalled(&self) -> Vec<Part> {
        let status = self.status();
        let mut stalled = status.stalled.clone();
        if status.due.is_some_and(|due| Instant::now() > due) {
            stalled.push(Part::RunLoop);
        }
        stalled
    }

    fn status(&self) -> MutexGuard<'_, Status> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Probes for Health {
    fn degraded(&self) -> Option<String> {
        let status = self.status();
        let mut reasons: Vec<String> = status.losing_sinks.iter().map(ToString::to_string).collect();
        reasons.extend(status.rules_fault.iter().chain(&status.filters_fault).cloned());
        (!reasons.is_empty()).then(|| format!("degraded: {}", reasons.join(", ")))
    }

    fn ready(&self) -> Result<(), String> {
        if let Some(fault) = self.device().fault() {
            return Err(format!("not ready: {fault}"));
        }
        let phase = self.status().phase;
        match phase {
            SteeringPhase::Starting => return Err("not ready: the daemon is starting".into()),
            SteeringPhase::Steering => {}
            SteeringPhase::Ending => return Err("not ready: the daemon is ending".into()),
        }
        let stalled = self.stalled();
        let (ports, queues) = {
            let status = self.status();
            (status.ports_down.clone(), status.failed_queues.clone())
        };
        let mut reasons: Vec<String> = stalled.iter().map(|part| format!("{part} is stalled")).collect();
        reasons
            .extend(queues.iter().map(|worker| format!("the receive queue of worker {worker} has failed")));
        reasons.extend(ports.iter().map(|port| format!("{port} is down")));
        if reasons.is_empty() { Ok(()) } else { Err(format!("not ready: {}", reasons.join(", "))) }
    }

    fn alive(&self) -> Result<(), String> {
        let reasons: Vec<String> = self.stalled().iter().map(|part| format!("{part} is stalled")).collect();
        if reasons.is_empty() { Ok(()) } else { Err(reasons.join(", ")) }
    }
}

/// Finds stalled parts by their progress counts; owned by the run loop.
#[derive(Debug)]
pub(crate) struct Monitor {
    /// A part whose count has not grown for this long is stalled.
    limit: Duration,
    watched: Vec<Watched>,
    updated: Option<Instant>,
}

#[derive(Debug)]
struct Watched {
    part: Part,
    count: u64,
    /// For how long the count has not grown.
    idle: Duration,
    stalled: bool,
}

/// A change of health, a line of the log each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Stalled(Part, Duration),
    Recovered(Part, Duration),
    Down(DownPort),
    Up(DownPort),
    QueueFailed(u32),
    Losing(LosingSink),
    Passing(LosingSink),
}

impl Change {
    pub(crate) fn log(&self) {
        match self {
            Self::Stalled(part, idle) => {
                tracepoints::stall_begin(&part.to_string(), *idle);
                tracing::error!("{part} has made no progress for {:.1} s: it is stalled", idle.as_secs_f64());
            }
            Self::Recovered(part, idle) => {
                tracepoints::stall_end(&part.to_string(), *idle);
                tracing::warn!("{part} makes progress again, after {:.1} s", idle.as_secs_f64());
            }
            Self::Down(port) => tracing::warn!("{port} is down: nothing is received there"),
            Self::Up(port) => tracing::info!("{port} is up again"),
            Self::QueueFailed(worker) => {
                tracing::warn!("the receive queue of worker {worker} has failed and is being recovered");
            }
            Self::Losing(sink) => tracing::warn!("{sink}"),
            Self::Passing(sink) => tracing::info!("sink `{}` passes packets on again", sink.name),
        }
    }
}

impl Monitor {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, watched: Vec::new(), updated: None }
    }

    /// Compares the counts with those of the last update and writes the result to `health`.
    pub(crate) fn update(&mut self, now: Instant, progress: &[Progress], health: &Health) -> Vec<Change> {
        let passed = self.updated.map_or(Duration::ZERO, |updated| now.saturating_duration_since(updated));
        self.updated = Some(now);
        let passed = passed.min(LONGEST_GAP);
        let mut changes = Vec::new();
        for (part, count) in progress {
            changes.extend(self.note(part, *count, passed));
        }
        let mut status = health.status();
        status.stalled = self.watched.iter().filter(|one| one.stalled).map(|one| one.part.clone()).collect();
        status.due = Some(now + self.limit + LONGEST_GAP);
        changes
    }

    fn note(&mut self, part: &Part, count: u64, passed: Duration) -> Option<Change> {
        let Some(one) = self.watched.iter_mut().find(|one| one.part == *part) else {
            let part = part.clone();
            self.watched.push(Watched { part, count, idle: Duration::ZERO, stalled: false });
            return None;
        };
        if one.count == count {
            one.idle += passed;
            let stalls = !one.stalled && one.idle >= self.limit;
            one.stalled |= stalls;
            return stalls.then(|| Change::Stalled(part.clone(), one.idle));
        }
        one.count = count;
        let idle = std::mem::take(&mut one.idle);
        std::mem::take(&mut one.stalled).then(|| Change::Recovered(part.clone(), idle))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);
    const WORKER: Part = Part::Worker(1);

    /// Updates once a second with the given counts of worker 1, while worker 0 makes progress.
    fn watch(
        monitor: &mut Monitor,
        health: &Health,
        begun: Instant,
        counts: impl IntoIterator<Item = u64>,
    ) -> Vec<Change> {
        let seconds = (0..).map(Duration::from_secs);
        let updates = seconds.zip(counts);
        updates
            .flat_map(|(at, count)| {
                monitor.update(begun + at, &[(Part::Worker(0), at.as_secs()), (WORKER, count)], health)
            })
            .collect()
    }

    #[test]
    fn a_stall_and_a_recovery_are_reported_once() {
        let (mut monitor, health) = (Monitor::new(LIMIT), Health::default());
        health.set_steering(true);
        let begun = Instant::now();
        assert_eq!(watch(&mut monitor, &health, begun, [1, 1, 1, 1, 1]), [], "not for 4 s");
        assert_eq!((health.ready(), health.alive()), (Ok(()), Ok(())));
        let begun = begun + Duration::from_secs(5);
        assert_eq!(watch(&mut monitor, &health, begun, [1, 1, 1]), [Change::Stalled(WORKER, LIMIT)]);
        assert_eq!(health.alive(), Err("worker 1 is stalled".into()));
        assert_eq!(health.ready(), Err("not ready: worker 1 is stalled".into()));
        let begun = begun + Duration::from_secs(3);
        let still = Duration::from_secs(7);
        assert_eq!(watch(&mut monitor, &health, begun, [2, 3]), [Change::Recovered(WORKER, still)]);
        assert_eq!((health.ready(), health.alive()), (Ok(()), Ok(())));
    }

    #[test]
    fn stopping_the_whole_process_is_not_a_stall() {
        let (mut monitor, health) = (Monitor::new(LIMIT), Health::default());
        let begun = Instant::now();
        let progress = [(WORKER, 1), (Part::Engine("softnic0".into(), None), 1)];
        assert_eq!(monitor.update(begun, &progress, &health), []);
        assert_eq!(monitor.update(begun + Duration::from_secs(60), &progress, &health), []);
    }

    #[test]
    fn each_engine_is_watched_on_its_own() {
        let (mut monitor, health) = (Monitor::new(LONGEST_GAP), Health::default());
        let engine = |name: &str| Part::Engine(name.into(), None);
        let begun = Instant::now();
        for at in 0..4 {
            let progress = [(engine("softnic0"), u64::from(at)), (engine("softnic1"), 7)];
            monitor.update(begun + LONGEST_GAP * at, &progress, &health);
        }
        assert_eq!(health.alive(), Err("the engine of softnic1 is stalled".into()));
    }

    #[test]
    fn a_run_loop_without_updates_is_stalled() {
        let (mut monitor, health) = (Monitor::new(Duration::ZERO), Health::default());
        assert_eq!(health.stalled(), [], "before the first update");
        let long_ago = Instant::now().checked_sub(LONGEST_GAP * 2).expect("the machine runs longer");
        monitor.update(long_ago, &[], &health);
        assert_eq!(health.alive(), Err("the run loop is stalled".into()));
        health.set_steering(false);
        assert_eq!(health.stalled(), [], "no updates are due during the shutdown");
    }

    #[test]
    fn a_port_without_a_link_is_alive_but_not_ready() {
        let health = Health::default();
        health.set_steering(true);
        let port = DownPort { port: 2, wire: "eth0".into() };
        let down = vec![port.clone()];
        assert_eq!(health.set_ports_down(down.clone()), [Change::Down(port.clone())]);
        assert_eq!(health.set_ports_down(down), []);
        assert_eq!(health.ready(), Err("not ready: port 2 (eth0) is down".into()));
        assert_eq!(health.alive(), Ok(()));
        assert_eq!(health.set_ports_down(vec![]), [Change::Up(port)]);
        assert_eq!(health.ready(), Ok(()));
    }

    #[test]
    fn a_daemon_that_starts_or_ends_is_not_ready() {
        let health = Health::default();
        assert_eq!(health.ready(), Err("not ready: the daemon is starting".into()));
        health.set_steering(true);
        assert_eq!(health.ready(), Ok(()));
        health.set_steering(false);
        assert_eq!(health.ready(), Err("not ready: the daemon is ending".into()));
    }

    #[test]
    fn a_failed_queue_or_device_is_not_ready() {
        let health = Health::default();
        health.set_steering(true);
        assert_eq!(health.set_failed_queues(vec![2]), [Change::QueueFailed(2)]);
        assert_eq!(health.set_failed_queues(vec![2]), [], "still");
        assert_eq!(health.ready(), Err("not ready: the receive queue of worker 2 has failed".into()));
        assert_eq!(health.set_failed_queues(vec![]), []);
        assert_eq!((health.ready(), health.alive()), (Ok(()), Ok(())));
        health.set_device(DeviceCondition::Gone);
        health.set_steering(false);
        assert_eq!(health.ready(), Err("not ready: the device is gone".into()));
    }

    #[test]
    fn a_sink_that_loses_all_packets_degrades_a_ready_daemon() {
        let health = Health::default();
        health.set_steering(true);
        let sink = |reason| LosingSink { name: "files".into(), reason };
        assert_eq!(health.set_losing_sinks(vec![sink("disk_full")]), [Change::Losing(sink("disk_full"))]);
        assert_eq!(health.set_losing_sinks(vec![sink("ring_full")]), [], "still");
        assert_eq!((health.ready(), health.alive()), (Ok(()), Ok(())));
        let degraded = "degraded: sink `files` loses all its packets (ring_full)";
        assert_eq!(health.degraded().as_deref(), Some(degraded));
        assert_eq!((health.loses("files"), health.loses("other")), (Some("ring_full"), None));
        assert_eq!(health.set_losing_sinks(vec![]), [Change::Passing(sink("ring_full"))]);
        assert_eq!(health.degraded(), None);
    }

    #[test]
    fn filters_that_may_drop_packets_of_other_rules_degrade_a_ready_daemon() {
        let health = Health::default();
        health.set_steering(true);
        health.set_filters_fault(Some("1 filter of eth0".to_owned()));
        assert_eq!(
            (health.ready(), health.degraded()),
            (Ok(()), Some("degraded: 1 filter of eth0".to_owned()))
        );
        health.set_filters_fault(None);
        assert_eq!(health.degraded(), None);
    }
}
