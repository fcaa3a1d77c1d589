//! What the engine spends its time on, by stage ([`crate::OwnedNic::profile`]).
//!
//! Of the passes one in 33 to 96 is timed, at random, so that no pattern of traffic can keep in step with it:
//! the clock is read at the border of each stage. The time after a timed pass, to the next one, is idle, as
//! is all of a pass without frames. Nothing is timed before [`Totals::start`]; then a pass that is not timed
//! costs a branch per border.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::clock;

/// A stage of the engine's pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EngineStage {
    /// Taking frames from the wires.
    Receive,
    /// Parsing their headers.
    Parse,
    /// Finding the flow of each frame.
    Lookup,
    /// Waiting for the device's state, counting frames for flows, and choosing their queues (RSS).
    Spread,
    /// Copying frames into buffers, and completions.
    Deliver,
    /// Sending what was posted.
    Send,
    /// Passes without frames, and the pauses and sleeps of the engine's own thread.
    Idle,
}

/// The number of stages.
const STAGES: usize = EngineStage::ALL.len();

impl EngineStage {
    /// All of them, in the order of a pass.
    pub const ALL: [Self; 7] =
        [Self::Receive, Self::Parse, Self::Lookup, Self::Spread, Self::Deliver, Self::Send, Self::Idle];

    /// The name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Receive => "receive",
            Self::Parse => "parse",
            Self::Lookup => "lookup",
            Self::Spread => "rss",
            Self::Deliver => "deliver",
            Self::Send => "send",
            Self::Idle => "idle",
        }
    }
}

/// The time of the engine by stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineProfile {
    /// Nanoseconds in the timed passes.
    pub stages: [(EngineStage, u64); STAGES],
    /// Frames that were received and sent in the timed passes.
    pub received: u64,
    /// See [`EngineProfile::received`].
    pub sent: u64,
    /// Timed passes.
    pub timed: u64,
    /// All passes since the start of the profile.
    pub passes: u64,
}

/// The sums, which any thread reads; written by the holder of the engine.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    is_on: AtomicBool,
    stages: [AtomicU64; STAGES],
    received: AtomicU64,
    sent: AtomicU64,
    timed: AtomicU64,
    passes: AtomicU64,
}

impl Totals {
    pub(crate) fn start(&self) {
        self.is_on.store(true, Relaxed);
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// `None` before [`Totals::start`].
    pub(crate) fn read(&self) -> Option<EngineProfile> {
        self.is_on().then(|| EngineProfile {
            stages: std::array::from_fn(|index| (EngineStage::ALL[index], self.stages[index].load(Relaxed))),
            received: self.received.load(Relaxed),
            sent: self.sent.load(Relaxed),
            timed: self.timed.load(Relaxed),
            passes: self.passes.load(Relaxed),
        })
    }
}

fn add(total: &AtomicU64, more: u64) {
    total.store(total.load(Relaxed).wrapping_add(more), Relaxed);
}

/// A pass is timed after 32 to 95 others.
const GAP_LEAST: u32 = 33;
const GAP_MASK: u32 = 63;
/// Readings that show what one costs.
const COST_READINGS: usize = 32;

/// The engine's side.
#[derive(Debug)]
pub(super) struct Probe {
    /// Passes until one is timed.
    left: u32,
    random: u32,
    /// The time that a reading of the clock adds to each stage; measured before the first.
    reading_ns: Option<u64>,
    /// The sample of a pass that is timed.
    sample: Option<Sample>,
    /// The end of a timed pass.
    rest_from_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    last_ns: u64,
    reading_ns: u64,
    stages: [u64; STAGES],
}

impl Default for Probe {
    fn default() -> Self {
        Self { left: 1, random: 0x9e37_79b9, reading_ns: None, sample: None, rest_from_ns: None }
    }
}

impl Probe {
    /// A pass begins.
    #[inline]
    pub(super) fn begin(&mut self, totals: &Totals) {
        if totals.is_on() {
            self.count_down(totals);
        }
    }

    fn count_down(&mut self, totals: &Totals) {
        self.rest_from_ns = None;
        add(&totals.passes, 1);
        self.left -= 1;
        if self.left == 0 {
            // Marsaglia, "Xorshift RNGs", 2003.
            self.random ^= self.random << 13;
            self.random ^= self.random >> 17;
            self.random ^= self.random << 5;
            self.left = GAP_LEAST + (self.random & GAP_MASK);
            let reading_ns = *self.reading_ns.get_or_insert_with(reading_ns);
            self.sample = Some(Sample { last_ns: clock::steady_ns(), reading_ns, stages: [0; STAGES] });
        }
    }

    /// Counts the time since the last border for this stage.
    #[inline]
    pub(super) fn mark(&mut self, stage: EngineStage) {
        if let Some(sample) = &mut self.sample {
            sample.mark(stage, clock::steady_ns());
        }
    }

    /// A pass ends that received and sent so many frames.
    #[inline]
    pub(super) fn end(&mut self, received: usize, sent: usize, totals: &Totals) {
        if let Some(sample) = self.sample.take() {
            self.rest_from_ns = Some(sample.last_ns);
            sample.publish(received as u64, sent as u64, totals);
        }
    }

    /// The engine's own thread has rested after the pass.
    pub(super) fn rested(&mut self, totals: &Totals) {
        if let Some(from_ns) = self.rest_from_ns.take() {
            add(&totals.stages[EngineStage::Idle as usize], clock::steady_ns().saturating_sub(from_ns));
        }
    }
}

impl Sample {
    #[cold]
    fn mark(&mut self, stage: EngineStage, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.last_ns);
        self.stages[stage as usize] += elapsed_ns.saturating_sub(self.reading_ns);
        self.last_ns = now_ns;
    }

    #[cold]
    fn publish(&self, received: u64, sent: u64, totals: &Totals) {
        if received + sent == 0 {
            add(&totals.stages[EngineStage::Idle as usize], self.stages.iter().sum());
        } else {
            totals.stages.iter().zip(self.stages).for_each(|(total, ns)| add(total, ns));
        }
        add(&totals.received, received);
        add(&totals.sent, sent);
        add(&totals.timed, 1);
    }
}

/// The cost of a reading of the clock: the least of some.
fn reading_ns() -> u64 {
    let mut last_ns = clock::steady_ns();
    let readings = (0..COST_READINGS).map(|_| {
        let now_ns = clock::steady_ns();
        now_ns.saturating_sub(std::mem::replace(&mut last_ns, now_ns))
    });
    readings.min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_timed_before_the_start() {
        let (mut probe, totals) = (Probe::default(), Totals::default());
        for _ in 0..1000 {
            probe.begin(&totals);
            assert!(probe.sample.is_none());
            probe.end(1, 0, &totals);
        }
        assert_eq!(totals.read(), None);
    }

    #[test]
    fn about_one_pass_in_64_is_timed() {
        let (mut probe, totals) = (Probe::default(), Totals::default());
        totals.start();
        const PASSES: u64 = 64_000;
        for _ in 0..PASSES {
            probe.begin(&totals);
            probe.mark(EngineStage::Receive);
            probe.end(2, 1, &totals);
        }
        let profile = totals.read().expect("it was started");
        assert_eq!(profile.passes, PASSES);
        assert!((900..1100).contains(&profile.timed), "{profile:?}");
        assert_eq!((profile.received, profile.sent), (2 * profile.timed, profile.timed));
    }

    #[test]
    fn all_of_a_pass_without_frames_is_idle() {
        let totals = Totals::default();
        totals.start();
        let mut sample = Sample { last_ns: 1000, reading_ns: 10, stages: [0; STAGES] };
        sample.mark(EngineStage::Receive, 1110);
        sample.mark(EngineStage::Send, 1160);
        sample.publish(0, 0, &totals);
        let stages = totals.read().expect("it was started").stages;
        assert_eq!(stages.iter().map(|(_, ns)| ns).sum::<u64>(), 140);
        assert_eq!(stages[EngineStage::Idle as usize], (EngineStage::Idle, 140));
        sample.publish(1, 0, &totals);
        let stages = totals.read().expect("it was started").stages;
        assert_eq!(stages[EngineStage::Receive as usize].1, 100);
        assert_eq!(stages[EngineStage::Send as usize].1, 40);
    }
}
