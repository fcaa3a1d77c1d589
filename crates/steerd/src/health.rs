//! Whether steerd does its work: the progress of every worker, of the soft NIC's engine and of the run loop itself,
//! and which ports are down.
//!
//! The run loop has [`Monitor`] look at the counters at every tick; /readyz, /healthz, the state and the metrics read
//! the result, a [`Health`], from other threads. Nothing here asks the device or waits for a lock that somebody keeps
//! while calling it, so that the answer comes even while the device does not answer.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A look that comes later than this after the last one counts as this much: when the whole process was stopped
/// (SIGSTOP, a suspended virtual machine), nobody had the chance to make progress meanwhile.
const LONGEST_GAP: Duration = Duration::from_secs(2);

/// Whose progress is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Worker(u32),
    Engine,
    RunLoop,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Worker(number) => write!(f, "worker {number}"),
            Self::Engine => f.write_str("the soft NIC's engine"),
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

/// What the last look has found; shared by the run loop and whoever asks.
#[derive(Debug, Default)]
pub(crate) struct Health(Mutex<Found>);

#[derive(Debug, Default)]
struct Found {
    /// The policy is on the device and the end has not begun.
    steering: bool,
    stalled: Vec<Part>,
    ports_down: Vec<DownPort>,
    /// When the run loop looked last, and when it must have looked again. `None`: nobody looks yet.
    due: Option<Instant>,
}

impl Health {
    /// The policy is on the device, or is being taken from it.
    pub(crate) fn set_steering(&self, steering: bool) {
        let mut found = self.found();
        found.steering = steering;
        if !steering {
            found.due = None;
        }
    }

    /// # Errors
    /// Why packets are not steered as they should be, in one line.
    pub(crate) fn ready(&self) -> Result<(), String> {
        if !self.found().steering {
            return Err("not ready".into());
        }
        let stalled = self.stalled();
        let ports = self.found().ports_down.clone();
        let mut reasons: Vec<String> = stalled.iter().map(|part| format!("{part} is stalled")).collect();
        reasons.extend(ports.iter().map(|port| format!("{port} is down")));
        if reasons.is_empty() { Ok(()) } else { Err(format!("not ready: {}", reasons.join(", "))) }
    }

    /// # Errors
    /// Who makes no progress, in one line: what only a restart can mend.
    pub(crate) fn alive(&self) -> Result<(), String> {
        let reasons: Vec<String> = self.stalled().iter().map(|part| format!("{part} is stalled")).collect();
        if reasons.is_empty() { Ok(()) } else { Err(reasons.join(", ")) }
    }

    /// Everybody who makes no progress now.
    pub(crate) fn stalled(&self) -> Vec<Part> {
        let found = self.found();
        let mut stalled = found.stalled.clone();
        if found.due.is_some_and(|due| Instant::now() > due) {
            stalled.push(Part::RunLoop);
        }
        stalled
    }

    fn found(&self) -> MutexGuard<'_, Found> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks at the counters and decides; owned by the run loop.
#[derive(Debug)]
pub(crate) struct Monitor {
    /// A part whose count has not grown for this long is stalled.
    limit: Duration,
    watched: Vec<Watched>,
    ports_down: Vec<DownPort>,
    looked: Option<Instant>,
}

#[derive(Debug)]
struct Watched {
    part: Part,
    count: u64,
    /// For how long the count has stood still.
    still: Duration,
    stalled: bool,
}

/// What has changed since the look before, a line of the log each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Stalled(Part, Duration),
    Recovered(Part, Duration),
    Down(DownPort),
    Up(DownPort),
}

impl Change {
    pub(crate) fn log(&self) {
        match self {
            Self::Stalled(part, still) => {
                tracing::error!("{part} has made no progress for {}: it is stalled", Seconds(*still));
            }
            Self::Recovered(part, still) => {
                tracing::warn!("{part} makes progress again, after {}", Seconds(*still));
            }
            Self::Down(port) => tracing::warn!("{port} is down: nothing is received there"),
            Self::Up(port) => tracing::info!("{port} is up again"),
        }
    }
}

struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} s", self.0.as_secs_f64())
    }
}

impl Monitor {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, watched: Vec::new(), ports_down: Vec::new(), looked: None }
    }

    /// Compares the counts with those of the look before, and tells `health` what it has found.
    pub(crate) fn look(
        &mut self,
        now: Instant,
        progress: &[Progress],
        ports_down: Vec<DownPort>,
        health: &Health,
    ) -> Vec<Change> {
        let passed = self.looked.map_or(Duration::ZERO, |looked| now.saturating_duration_since(looked));
        self.looked = Some(now);
        let passed = passed.min(LONGEST_GAP);
        let mut changes = Vec::new();
        for &(part, count) in progress {
            changes.extend(self.note(part, count, passed));
        }
        let is_new = |port: &&DownPort, others: &[DownPort]| !others.contains(port);
        let before = std::mem::replace(&mut self.ports_down, ports_down);
        let down = self.ports_down.iter().filter(|port| is_new(port, &before));
        changes.extend(down.cloned().map(Change::Down));
        let up = before.iter().filter(|port| is_new(port, &self.ports_down));
        changes.extend(up.cloned().map(Change::Up));

        let mut found = health.found();
        found.stalled = self.watched.iter().filter(|one| one.stalled).map(|one| one.part).collect();
        found.ports_down.clone_from(&self.ports_down);
        found.due = Some(now + self.limit + LONGEST_GAP);
        changes
    }

    fn note(&mut self, part: Part, count: u64, passed: Duration) -> Option<Change> {
        let Some(one) = self.watched.iter_mut().find(|one| one.part == part) else {
            self.watched.push(Watched { part, count, still: Duration::ZERO, stalled: false });
            return None;
        };
        if one.count == count {
            one.still += passed;
            let stalls = !one.stalled && one.still >= self.limit;
            one.stalled |= stalls;
            return stalls.then_some(Change::Stalled(part, one.still));
        }
        one.count = count;
        let still = std::mem::take(&mut one.still);
        std::mem::take(&mut one.stalled).then_some(Change::Recovered(part, still))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);
    const WORKER: Part = Part::Worker(1);

    /// Looks once a second at what `count` gives.
    fn watch(
        monitor: &mut Monitor,
        health: &Health,
        begun: Instant,
        counts: impl IntoIterator<Item = u64>,
    ) -> Vec<Change> {
        let seconds = (0..).map(Duration::from_secs);
        let looks = seconds.zip(counts);
        looks
            .flat_map(|(at, count)| {
                monitor.look(begun + at, &[(Part::Worker(0), at.as_secs()), (WORKER, count)], vec![], health)
            })
            .collect()
    }

    #[test]
    fn a_count_that_stands_still_is_a_stall_once_and_a_recovery_once() {
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
    fn a_process_that_was_stopped_as_a_whole_has_nobody_stalled() {
        let (mut monitor, health) = (Monitor::new(LIMIT), Health::default());
        let begun = Instant::now();
        let progress = [(WORKER, 1), (Part::Engine, 1)];
        assert_eq!(monitor.look(begun, &progress, vec![], &health), []);
        assert_eq!(monitor.look(begun + Duration::from_secs(60), &progress, vec![], &health), []);
    }

    #[test]
    fn a_run_loop_that_does_not_look_is_stalled() {
        let (mut monitor, health) = (Monitor::new(Duration::ZERO), Health::default());
        assert_eq!(health.stalled(), [], "before it has begun");
        let long_ago = Instant::now().checked_sub(LONGEST_GAP * 2).expect("the machine runs longer");
        monitor.look(long_ago, &[], vec![], &health);
        assert_eq!(health.alive(), Err("the run loop is stalled".into()));
        health.set_steering(false);
        assert_eq!(health.stalled(), [], "the end has begun: it looks no more");
    }

    #[test]
    fn a_port_without_a_link_is_not_ready_and_yet_alive() {
        let (mut monitor, health) = (Monitor::new(LIMIT), Health::default());
        health.set_steering(true);
        let port = DownPort { port: 2, wire: "eth0".into() };
        let now = Instant::now();
        let down = vec![port.clone()];
        assert_eq!(monitor.look(now, &[], down.clone(), &health), [Change::Down(port.clone())]);
        assert_eq!(monitor.look(now, &[], down, &health), []);
        assert_eq!(health.ready(), Err("not ready: port 2 (eth0) is down".into()));
        assert_eq!(health.alive(), Ok(()));
        assert_eq!(monitor.look(now, &[], vec![], &health), [Change::Up(port)]);
        assert_eq!(health.ready(), Ok(()));
    }
}
