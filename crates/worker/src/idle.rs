//! What a worker does while there is no work: it polls for some time, then it sleeps. It does not call
//! sched_yield(2): Linux gives up the rest of a thread's turn for each call, and many calls keep all threads
//! of the core waiting for seconds (kernel/sched/fair.c, `yield_task_fair`).
//!
//! It wakes when the device reports a completion (the event channel of its queue), when a handle has
//! something for it ([`Wakeup`]), when a sink wants to be polled ([`crate::Sink::poll_interval`]), and after
//! [`HEARTBEAT`], so that its count of iterations shows that it is alive. Without an event channel, and where
//! only polls have the device work, it sleeps for short times at most, which become longer the longer nothing
//! arrives.
//!
//! Nothing is missed. Before it sleeps the worker arms the queue, announces the sleep, and runs one more
//! iteration. A completion that came before the queue was armed is found by that iteration, and one that came
//! after raises an event, which stays in the channel until it is read (ibv_get_cq_event(3)). For what handles
//! publish see [`Wakeup`].

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking::{HEARTBEAT, Wakeup, nap};
use rustix::event::{PollFd, PollFlags};
use verbs::{CompletionChannel, Receive, ReceivePath};

/// The behaviour of a worker on iterations that have no work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Polls again at once: least latency, a whole core.
    Spin,
    /// Polls for some time, and then sleeps until there is work. The time is a sixteenth while work keeps
    /// coming later than that, such as in bursts of a port that lets frames gather.
    Adaptive {
        /// Microseconds without work after which it sleeps.
        idle_us: u32,
    },
}

impl Default for Idle {
    fn default() -> Self {
        Self::Adaptive { idle_us: 100 }
    }
}

/// Spin-loop hints in an idle iteration: each poll of an empty queue takes from the device the cache line
/// that it writes next, so a short pause between polls leaves the line to the device.
const SPIN_HINTS: u32 = 4;
/// After so many sleeps in a row that a whole time of polling did not spare, polls are short: for this part
/// of the time.
const WASTED_MAX: u32 = 8;
const SHORT_PART: u32 = 16;
/// After so many sleeps behind short polls there is a long one, to see whether work comes within it again.
const SHORT_POLLS: u32 = 32;
/// The clock is read in one of so many idle iterations.
const ITERATIONS_PER_READING: u32 = 8;

/// The state of an idle worker between polling and sleeping.
#[derive(Debug)]
pub(crate) struct Backoff {
    idle: Idle,
    /// Iterations without work.
    iterations: u32,
    /// When the first of them was seen.
    since: Option<Instant>,
    sleeps: u32,
    /// The worker has polled for longer than a short poll.
    is_long: bool,
    /// Pauses that ended after a sleep, since work last came late in a long poll; from [`WASTED_MAX`] on
    /// polls are short.
    wasted: u32,
}

/// The action of the next idle iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    Spin,
    /// After so many other sleeps.
    Sleep(u32),
}

impl Pause {
    /// Does it, unless it is a sleep, whose number is returned.
    #[inline]
    pub(crate) fn take(self) -> Option<u32> {
        match self {
            Self::Spin => (0..SPIN_HINTS).for_each(|_| std::hint::spin_loop()),
            Self::Sleep(sleeps) => return Some(sleeps),
        }
        None
    }
}

impl Backoff {
    pub(crate) fn new(idle: Idle) -> Self {
        Self { idle, iterations: 0, since: None, sleeps: 0, is_long: false, wasted: 0 }
    }

    /// There was work.
    #[inline]
    pub(crate) fn reset(&mut self) {
        if self.iterations > 0 {
            *self = Self { wasted: self.wasted_then(), ..Self::new(self.idle) };
        }
    }

    /// The value of [`Self::wasted`] once there is work again.
    fn wasted_then(&self) -> u32 {
        match self.wasted {
            // Only a poll for longer than a short one has spared a sleep that a short one would not.
            _ if self.sleeps == 0 && self.is_long => 0,
            wasted if self.sleeps == 0 => wasted,
            wasted if wasted < WASTED_MAX + SHORT_POLLS => wasted + 1,
            // The next poll is long; if it is wasted too, short ones follow at once.
            _ => WASTED_MAX - 1,
        }
    }

    /// The pause after an iteration without work.
    #[inline]
    pub(crate) fn next(&mut self, now: impl FnOnce() -> Instant) -> Pause {
        let Idle::Adaptive { idle_us } = self.idle else { return Pause::Spin };
        self.iterations = self.iterations.wrapping_add(1).max(1);
        if self.sleeps > 0 {
            return self.sleep();
        }
        if self.iterations.is_multiple_of(ITERATIONS_PER_READING) {
            let now = now();
            let idle = now.saturating_duration_since(*self.since.get_or_insert(now));
            let long = Duration::from_micros(idle_us.into());
            let short = long / SHORT_PART;
            self.is_long |= idle > short;
            let limit = if self.wasted < WASTED_MAX { long } else { short };
            if idle >= limit {
                return self.sleep();
            }
        }
        Pause::Spin
    }

    fn sleep(&mut self) -> Pause {
        let pause = Pause::Sleep(self.sleeps);
        self.sleeps = self.sleeps.saturating_add(1);
        pause
    }
}

/// The event channel of a worker's completion queue.
pub(crate) struct Events {
    channel: Arc<CompletionChannel>,
    /// The device owes an event, or it is in the channel.
    is_armed: bool,
}

impl Events {
    pub(crate) fn new(channel: Arc<CompletionChannel>) -> Self {
        Self { channel, is_armed: false }
    }

    /// Has the device report the next completion. False: it refuses now.
    fn arm(&mut self, path: &mut ReceivePath) -> bool {
        if !self.is_armed {
            self.is_armed = path.request_notification().is_ok();
        }
        self.is_armed
    }

    /// Takes the events out of the channel.
    fn take(&mut self) {
        while let Ok(Some(_)) = self.channel.event() {
            self.is_armed = false;
        }
    }
}

/// The limits on the time of a sleep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SleepLimits {
    /// How soon a sink wants to be polled.
    pub(crate) interval: Option<Duration>,
    /// The sleeps before this one without work between them.
    pub(crate) sleeps: u32,
    /// See [`crate::WorkerConfig::polls_drive_device`].
    pub(crate) polls_drive_device: bool,
}

/// Prepares a sleep: returns its longest time. What happens after this ends [`wait`].
pub(crate) fn prepare(
    events: Option<&mut Events>,
    path: &mut ReceivePath,
    wakeup: Option<&Wakeup>,
    wishes: SleepLimits,
) -> Duration {
    let is_armed = events.is_some_and(|events| events.arm(path));
    if let Some(wakeup) = wakeup {
        wakeup.announce_sleep();
    }
    let is_woken = is_armed && wakeup.is_some() && !wishes.polls_drive_device;
    let longest = if is_woken { HEARTBEAT } else { nap(wishes.sleeps) };
    wishes.interval.map_or(longest, |interval| interval.min(longest))
}

/// Sleeps until an event, a wake-up or the end of `longest`.
pub(crate) fn wait(events: Option<&mut Events>, wakeup: Option<&Wakeup>, longest: Duration) {
    match (events, wakeup) {
        (Some(events), Some(wakeup)) => {
            let channel = events.channel.as_fd();
            let ready = wakeup.sleep([PollFd::new(&channel, PollFlags::IN)], longest);
            if ready.iter().any(|flags| !flags.is_empty()) {
                events.take();
            }
        }
        (None, Some(wakeup)) => drop(wakeup.sleep([], longest)),
        (events, None) => {
            std::thread::sleep(longest);
            events.into_iter().for_each(Events::take);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adaptive_worker_spins_then_sleeps_and_starts_over() {
        let mut backoff = Backoff::new(Idle::Adaptive { idle_us: 100 });
        let begun = Instant::now();
        let at = |us: u64, backoff: &mut Backoff| {
            let now = begun + Duration::from_micros(us);
            (0..ITERATIONS_PER_READING).map(|_| backoff.next(|| now)).last()
        };
        assert_eq!(at(0, &mut backoff), Some(Pause::Spin));
        assert_eq!(at(49, &mut backoff), Some(Pause::Spin));
        assert_eq!(at(99, &mut backoff), Some(Pause::Spin));
        assert_eq!(at(100, &mut backoff), Some(Pause::Sleep(0)));
        assert_eq!(backoff.next(|| unreachable!("it sleeps on")), Pause::Sleep(1));
        backoff.reset();
        assert_eq!(at(200, &mut backoff), Some(Pause::Spin));
        let mut spinning = Backoff::new(Idle::Spin);
        assert!((0..100).all(|_| spinning.next(|| unreachable!("no clock")) == Pause::Spin));
    }

    /// Polls until it sleeps, a microsecond for each iteration, and then there is work. Returns the
    /// microseconds.
    fn polls(backoff: &mut Backoff) -> u64 {
        let (begun, mut us) = (Instant::now(), 0);
        while !matches!(backoff.next(|| begun + Duration::from_micros(us)), Pause::Sleep(_)) {
            us += 1;
        }
        backoff.reset();
        us
    }

    /// Work comes after so many microseconds, in which it does not sleep.
    fn work_after(us: u64, backoff: &mut Backoff) {
        let begun = Instant::now();
        for us in 0..us {
            let pause = backoff.next(|| begun + Duration::from_micros(us));
            assert!(!matches!(pause, Pause::Sleep(_)), "after {us} us");
        }
        backoff.reset();
    }

    #[test]
    fn polls_that_spare_no_sleep_become_short() {
        let mut backoff = Backoff::new(Idle::Adaptive { idle_us: 320 });
        assert!((0..WASTED_MAX).all(|_| polls(&mut backoff) >= 320));
        for _ in 0..3 {
            assert!((0..=SHORT_POLLS).all(|_| polls(&mut backoff) < 320 / 4));
            assert!(polls(&mut backoff) >= 320, "now and then a long one");
        }
        // Work within a burst shows nothing.
        for _ in 0..1000 {
            work_after(10, &mut backoff);
        }
        assert!(polls(&mut backoff) < 320 / 4);
    }

    #[test]
    fn polls_become_long_again_when_they_spare_a_sleep() {
        let mut backoff = Backoff::new(Idle::Adaptive { idle_us: 320 });
        (0..WASTED_MAX + SHORT_POLLS + 1).for_each(|_| assert!(polls(&mut backoff) > 0));
        work_after(200, &mut backoff);
        assert!((1..WASTED_MAX).all(|_| polls(&mut backoff) >= 320));
        // A few sleeps between do not make them short.
        for _ in 0..100 {
            work_after(200, &mut backoff);
            (1..WASTED_MAX).for_each(|_| assert!(polls(&mut backoff) >= 320));
        }
    }
}
