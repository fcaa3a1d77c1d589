//! Whether sinks pass packets on: one that loses every packet for [`LOSING_AFTER`] is *losing*, until it
//! passes on more than it loses, or some of its packets for as long, or has no packets for [`IDLE_AFTER`].
//! Steering goes on without it, so readiness does not depend on it: the daemon is *degraded*.
//!
//! Pure: the caller reads the counts and writes the log.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use worker::{SinkDrop, SinkTraffic};

/// How long a sink must have passed nothing on: longer than a client takes to connect again, or a disk to be
/// tidied.
const LOSING_AFTER: Duration = Duration::from_secs(5);
/// How long a sink must have had no packets until it is named no more.
const IDLE_AFTER: Duration = Duration::from_secs(60);

/// The packets that a sink has passed on and lost so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SinkProgress {
    pub(crate) name: String,
    pub(crate) delivered: u64,
    /// Without packets that its options leave out.
    pub(crate) lost: u64,
    /// The losses by reason, in the order of [`SinkDrop::ALL`].
    by_reason: Vec<u64>,
}

impl SinkProgress {
    pub(crate) fn of(name: &str, workers: &[SinkTraffic]) -> Self {
        let lost = |reason: SinkDrop| -> u64 {
            let by_worker = workers.iter().flat_map(|traffic| &traffic.dropped);
            by_worker
                .filter(|(of, _)| *of == reason && !reason.is_intended())
                .map(|(_, packets)| packets)
                .sum()
        };
        let by_reason: Vec<u64> = SinkDrop::ALL.iter().map(|reason| lost(*reason)).collect();
        Self {
            name: name.to_owned(),
            delivered: workers.iter().map(|traffic| traffic.delivered.packets).sum(),
            lost: by_reason.iter().sum(),
            by_reason,
        }
    }
}

/// A sink that loses all its packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LosingSink {
    pub(crate) name: String,
    /// The reason of most of these losses.
    pub(crate) reason: &'static str,
}

impl fmt::Display for LosingSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sink `{}` loses all its packets ({})", self.name, self.reason)
    }
}

/// Finds losing sinks by their counts.
#[derive(Debug, Default)]
pub(crate) struct SinkMonitor {
    watched: HashMap<String, Watched>,
}

#[derive(Debug)]
struct Watched {
    last: SinkProgress,
    /// When it last passed on or lost packets, or was opened.
    active_at: Instant,
    /// When it lost the first packet since it passed one on.
    since: Option<Instant>,
    /// When it passed the first packet on since it lost all of them.
    passing_since: Option<Instant>,
    reason: Option<&'static str>,
}

impl SinkMonitor {
    /// Compares the counts with those of the last update; to be called about once a second.
    pub(crate) fn update(&mut self, now: Instant, sinks: Vec<SinkProgress>) -> Vec<LosingSink> {
        self.watched.retain(|name, _| sinks.iter().any(|sink| sink.name == *name));
        let mut losing = Vec::new();
        for sink in sinks {
            let (name, first) = (sink.name.clone(), sink.clone());
            let watched = self.watched.entry(name);
            let watched = watched.or_insert_with(|| Watched::new(now, first));
            watched.note(now, sink);
            losing
                .extend(watched.reason.map(|reason| LosingSink { name: watched.last.name.clone(), reason }));
        }
        losing.sort_by(|one, other| one.name.cmp(&other.name));
        losing
    }
}

impl Watched {
    fn new(now: Instant, last: SinkProgress) -> Self {
        Self { last, active_at: now, since: None, passing_since: None, reason: None }
    }

    fn note(&mut self, now: Instant, sink: SinkProgress) {
        let delivered = sink.delivered.saturating_sub(self.last.delivered);
        let lost = sink.lost.saturating_sub(self.last.lost);
        if delivered > 0 || lost > 0 {
            self.active_at = now;
        } else if now.saturating_duration_since(self.active_at) >= IDLE_AFTER {
            // Its losses so far still count when the next packet is lost: packets may come more rarely.
            (self.passing_since, self.reason) = (None, None);
        }
        let is_long_ago = |since: Instant| now.saturating_duration_since(since) >= LOSING_AFTER;
        if delivered > 0 {
            self.since = None;
            let passing_since = *self.passing_since.get_or_insert(now);
            if delivered > lost || is_long_ago(passing_since) {
                self.reason = None;
            }
        } else if lost > 0 {
            self.passing_since = None;
            let since = *self.since.get_or_insert(now);
            if is_long_ago(since) {
                let grown = sink.by_reason.iter().zip(&self.last.by_reason);
                let grown = grown.map(|(now, before)| now.saturating_sub(*before));
                let most = SinkDrop::ALL.iter().zip(grown).max_by_key(|(_, packets)| *packets);
                self.reason = most.map(|(reason, _)| reason.name());
            }
        }
        self.last = sink;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(delivered: u64, no_client: u64, sampled: u64) -> SinkProgress {
        let mut traffic = worker::SinkCounters::default().read();
        traffic.delivered.packets = delivered;
        for (reason, packets) in &mut traffic.dropped {
            match reason {
                SinkDrop::NoClient => *packets = no_client,
                SinkDrop::Sampled => *packets = sampled,
                _ => {}
            }
        }
        SinkProgress::of("dns", &[traffic])
    }

    /// Counts at some second, and whether the sink is losing then.
    fn check(steps: &[(u64, SinkProgress, bool)]) {
        let (begun, mut monitor) = (Instant::now(), SinkMonitor::default());
        for (seconds, sink, expected) in steps {
            let losing = monitor.update(begun + Duration::from_secs(*seconds), vec![sink.clone()]);
            let expected: Vec<LosingSink> = expected
                .then(|| LosingSink { name: "dns".into(), reason: "no_client" })
                .into_iter()
                .collect();
            assert_eq!(losing, expected, "after {seconds} s");
        }
    }

    #[test]
    fn a_sink_that_loses_everything_is_named_until_it_passes_packets_on() {
        check(&[
            (0, progress(10, 0, 0), false),
            (1, progress(10, 5, 0), false),
            (5, progress(10, 9, 0), false),
            (6, progress(10, 12, 0), true),
            // No packets come.
            (60, progress(10, 12, 0), true),
            // One in ten is passed on: it is not well yet.
            (61, progress(11, 21, 0), true),
            (62, progress(20, 22, 0), false),
            (63, progress(20, 30, 0), false),
            (69, progress(21, 40, 0), false),
            (70, progress(21, 50, 0), false),
            (75, progress(21, 60, 0), true),
            // Half of them, for 5 s.
            (76, progress(22, 61, 0), true),
            (81, progress(32, 71, 0), false),
        ]);
    }

    #[test]
    fn an_idle_sink_is_no_longer_losing() {
        check(&[
            (0, progress(0, 0, 0), false),
            (1, progress(0, 5, 0), false),
            (6, progress(0, 10, 0), true),
            (65, progress(0, 10, 0), true),
            (66, progress(0, 10, 0), false),
            (70, progress(0, 11, 0), true),
            (74, progress(1, 11, 0), false),
            (75, progress(1, 12, 0), false),
        ]);
    }

    #[test]
    fn rare_packets_that_are_all_lost_are_named() {
        check(&[
            (0, progress(0, 0, 0), false),
            (1, progress(0, 1, 0), false),
            (71, progress(0, 2, 0), true),
            (130, progress(0, 2, 0), true),
            (131, progress(0, 2, 0), false),
            (141, progress(0, 3, 0), true),
        ]);
    }

    #[test]
    fn packets_that_the_options_leave_out_are_not_lost() {
        check(&[
            (0, progress(0, 0, 0), false),
            (1, progress(0, 0, 5), false),
            (9, progress(0, 0, 50), false),
        ]);
    }

    #[test]
    fn a_sink_that_is_closed_is_forgotten() {
        let (begun, mut monitor) = (Instant::now(), SinkMonitor::default());
        for seconds in [0, 1, 7] {
            monitor.update(begun + Duration::from_secs(seconds), vec![progress(0, seconds, 0)]);
        }
        let later = begun + Duration::from_secs(8);
        assert_eq!(monitor.update(later, Vec::new()), []);
        assert_eq!(monitor.update(later, vec![progress(0, 9, 0)]), []);
    }
}
