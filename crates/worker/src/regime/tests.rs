//! The stopwatch on a clock that the test advances.

use std::cell::Cell;
use std::rc::Rc;

use super::*;

/// Nanoseconds that a reading itself takes.
const READING_NS: u64 = 20;

/// A poll of an empty queue.
const EMPTY_POLL_NS: u64 = 40;

#[derive(Clone, Default)]
struct Hand {
    now_ns: Rc<Cell<u64>>,
    readings: Rc<Cell<u64>>,
}

impl Hand {
    fn pass(&self, ns: u64) {
        self.now_ns.set(self.now_ns.get() + ns);
    }
}

impl Clock for Hand {
    fn now_ns(&mut self) -> u64 {
        self.pass(READING_NS);
        self.readings.set(self.readings.get() + 1);
        self.now_ns.get()
    }
}

/// A loop whose stages take as long as the test wants.
struct Loop {
    hand: Hand,
    watch: Stopwatch<Hand>,
    counters: RegimeCounters,
    details: DetailCounters,
    truth: [u64; 4],
    begun_ns: u64,
}

impl Loop {
    fn new() -> Self {
        let hand = Hand::default();
        let watch = Stopwatch::new(hand.clone());
        hand.readings.set(0);
        let begun_ns = hand.now_ns.get() + READING_NS;
        let (counters, details) = (RegimeCounters::default(), DetailCounters::default());
        Self { hand, watch, counters, details, truth: [0; 4], begun_ns }
    }

    fn spend(&mut self, regime: Regime, ns: u64) {
        self.truth[regime as usize] += ns;
        self.hand.pass(ns);
    }

    fn empty(&mut self, ns: u64) {
        self.watch.begin(&self.counters);
        self.spend(Regime::Idle, EMPTY_POLL_NS);
        self.watch.polled(0, &self.counters);
        self.watch.stage(Regime::Classify);
        self.watch.received_nothing(false, &self.counters);
        self.watch.stage(Regime::Sink);
        assert_eq!(self.watch.end(&self.counters, &self.details), None);
        // The pause between two iterations.
        self.spend(Regime::Idle, ns - EMPTY_POLL_NS);
    }

    /// Receives nothing, but a sink has work.
    fn sink_only(&mut self, [poll, sink, post]: [u64; 3]) {
        self.watch.begin(&self.counters);
        self.spend(Regime::Poll, poll);
        self.watch.polled(0, &self.counters);
        self.watch.stage(Regime::Classify);
        self.spend(Regime::Sink, sink);
        self.watch.received_nothing(true, &self.counters);
        self.watch.stage(Regime::Sink);
        self.spend(Regime::Poll, post);
        self.watch.end(&self.counters, &self.details);
    }

    fn busy(&mut self, completions: usize, [poll, classify, sink, post]: [u64; 4]) {
        self.watch.begin(&self.counters);
        self.spend(Regime::Poll, poll);
        self.watch.polled(completions, &self.counters);
        self.spend(Regime::Classify, classify);
        self.watch.stage(Regime::Classify);
        self.spend(Regime::Sink, sink);
        self.watch.stage(Regime::Sink);
        self.spend(Regime::Poll, post);
        self.watch.end(&self.counters, &self.details);
    }

    /// Counted nanoseconds; they must be the whole time.
    fn counted(&mut self) -> [u64; 4] {
        let now = self.watch.close(&self.counters);
        let counted: [u64; 4] = std::array::from_fn(|index| self.counters[index].read());
        assert_eq!(counted.iter().sum::<u64>(), now - self.begun_ns, "{counted:?}");
        counted
    }

    #[allow(clippy::cast_precision_loss)]
    fn is_near_the_truth(&mut self, percent: f64) {
        let (counted, truth) = (self.counted(), self.truth);
        let whole: u64 = truth.iter().sum();
        for (regime, (counted, truth)) in Regime::ALL.iter().zip(counted.iter().zip(&truth)) {
            let off = (*counted as f64 - *truth as f64).abs() / whole as f64 * 100.0;
            assert!(off < percent, "{regime:?}: {counted} instead of {truth}, {off} %");
        }
    }
}

#[test]
fn a_worker_without_packets_is_idle() {
    let mut run = Loop::new();
    (0..10_000).for_each(|_| run.empty(300));
    let readings = run.hand.readings.get();
    assert!(readings <= 10_000 / u64::from(GAP_LEAST) + 1, "{readings} readings");
    let [idle, busy @ ..] = run.counted();
    assert!(idle >= 3_000_000 && busy == [0; 3], "{idle} {busy:?}");
}

#[test]
fn a_saturated_worker_reads_the_clock_in_one_iteration_of_64() {
    let mut run = Loop::new();
    (0..64_000).for_each(|_| run.busy(64, [500, 300, 150, 50]));
    let readings = run.hand.readings.get();
    assert!((3500..=5500).contains(&readings), "{readings} readings");
    run.is_near_the_truth(1.0);
}

/// A queue that is empty every other time, bursts with long pauses, single packets: whatever the pattern, the
/// regimes add up and each is near the truth.
#[test]
fn regimes_are_near_the_truth_for_any_pattern() {
    type Pattern = fn(&mut Loop, u64);
    let patterns: [(&str, Pattern); 7] = [
        ("alternating", |run, _| {
            run.busy(8, [400, 900, 2000, 100]);
            run.empty(1000);
        }),
        ("period of 64", |run, round| match round % 64 {
            0 => run.busy(32, [900, 4000, 500, 100]),
            _ => run.empty(700),
        }),
        ("bursts", |run, round| match round % 300 {
            0..100 => run.busy(64, [1000, 1000, 3000, 200]),
            _ => run.empty(2000),
        }),
        ("single packets", |run, round| match round % 20 {
            0 => run.busy(1, [600, 300, 600, 60]),
            _ => run.empty(50_000),
        }),
        ("sinks alone", |run, _| run.sink_only([20, 920, 60])),
        ("sinks at times", |run, round| match round % 50 {
            0 => run.sink_only([40, 5000, 60]),
            _ => run.empty(1000),
        }),
        ("packets and sinks", |run, round| match round % 8 {
            0 => run.busy(32, [400, 900, 2000, 100]),
            1 => run.sink_only([40, 1200, 60]),
            _ => run.empty(700),
        }),
    ];
    for (name, pattern) in patterns {
        let mut run = Loop::new();
        (0..40_000).for_each(|round| pattern(&mut run, round));
        println!("{name}");
        run.is_near_the_truth(3.0);
    }
}

#[test]
fn regimes_are_divided_by_stage_and_by_the_kind_of_sinks() {
    let mut run = Loop::new();
    run.watch.time_sinks();
    let [count, capture] = [0, 2].map(KindIndex);
    for round in 0..20_000 {
        if round % 2 == 0 {
            run.empty(1000);
            continue;
        }
        run.watch.begin(&run.counters);
        run.spend(Regime::Poll, 300);
        run.watch.polled(8, &run.counters);
        run.spend(Regime::Classify, 500);
        run.watch.stage(Regime::Classify);
        for (kind, ns) in [(count, 200), (capture, 600)] {
            run.spend(Regime::Sink, ns);
            run.watch.sink(kind);
        }
        run.spend(Regime::Sink, 100);
        run.watch.stage(Regime::Sink);
        run.spend(Regime::Poll, 100);
        run.watch.end(&run.counters, &run.details);
    }
    let counted = run.counted();
    let WorkerProfile { stages, timed } = run.details.divide(&run.counters);
    assert!((100..400).contains(&timed), "{timed}");
    assert_eq!(
        stages.iter().map(|(_, ns)| ns).sum::<u64>(),
        counted.iter().sum::<u64>(),
        "the whole, to the nanosecond"
    );
    let expected = [
        ("poll", 300),
        ("classify", 500),
        ("sinks", 100),
        ("sink count", 200),
        ("sink capture", 600),
        ("repost", 100),
        ("idle", 1000),
    ];
    for ((stage, ns), (name, each)) in stages.iter().zip(expected) {
        assert_eq!(stage, name);
        let each_ns = *ns / 10_000;
        assert!(each_ns.abs_diff(each) <= each / 10 + READING_NS, "{stage}: {each_ns} instead of {each}");
    }
}

#[test]
fn a_timed_iteration_has_a_duration() {
    let mut run = Loop::new();
    let mut durations = Vec::new();
    for _ in 0..1000 {
        run.watch.begin(&run.counters);
        run.hand.pass(1000);
        run.watch.polled(4, &run.counters);
        durations.extend(run.watch.end(&run.counters, &run.details));
    }
    assert!((10..=31).contains(&durations.len()), "{}", durations.len());
    assert!(durations.iter().all(|ns| *ns == 1000 + 2 * READING_NS), "{durations:?}");
}
