//! The thread of one queue of the TAP interface: writes what workers have put into their rings, and passes on
//! what the host sends. An interface that is removed is attached to again, or created again, with a pause
//! that grows.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use parking::Wakeup;
use rustix::event::{PollFd, PollFlags};

use super::back::Back;
use super::tap::{Interface, Queue, Refreshed, TapError, Wanted, Written};
use crate::sink::{SinkCounters, SinkDrop};
use crate::sinks::handoff::Consumer;

/// Packets after which a ring gets room back.
const PORTION: usize = 64;
/// Portions of a ring after which the other rings and the way back have their turn.
const PORTIONS_MAX: usize = 16;
/// How often the state of the interface is asked for.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The first and the longest pause between two attempts to attach to the interface.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How long the end may take to write what is in the rings; then the rest is dropped.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// The interface as one thread sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Up {
        mtu: u16,
        /// Queues of other processes, which get a part of what the host sends.
        others: usize,
    },
    Down,
    /// Why it cannot be attached to.
    Closed(String),
}

/// The report of one thread.
#[derive(Debug)]
pub(super) struct Report {
    condition: Mutex<Condition>,
}

impl Default for Report {
    fn default() -> Self {
        Self { condition: Mutex::new(Condition::Down) }
    }
}

impl Report {
    pub(super) fn condition(&self) -> Condition {
        self.condition.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The state that the threads share with the hub.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) stopping: AtomicBool,
    pub(super) reports: Box<[Report]>,
}

impl Shared {
    pub(super) fn new(threads: usize) -> Arc<Self> {
        let reports = (0..threads).map(|_| Report::default()).collect();
        Arc::new(Self { stopping: AtomicBool::new(false), reports })
    }

    pub(super) fn stop(&self) {
        self.stopping.store(true, Release);
    }
}

/// All that the thread owns.
pub(super) struct Pump {
    pub(super) sink: String,
    pub(super) interface: Arc<Interface>,
    pub(super) multi_queue: bool,
    pub(super) shared: Arc<Shared>,
    /// The place of its report.
    pub(super) index: usize,
    /// `None` while the interface does not exist.
    pub(super) queue: Option<Queue>,
    pub(super) rings: Vec<(Consumer, Arc<SinkCounters>)>,
    pub(super) wakeup: Arc<Wakeup>,
    /// `None`: what the host sends is not sent.
    pub(super) back: Option<Back>,
    /// The address and MTU that the interface was given last.
    pub(super) given: Wanted,
    /// Why the interface does not have those of the port, as it was logged last.
    pub(super) refusal: Option<String>,
    pub(super) others: OtherQueues,
}

/// The queues that other processes hold, as found by one look after the other.
#[derive(Debug, Default)]
pub(super) struct OtherQueues {
    /// The number of all queues when there were no others.
    all_own: Option<usize>,
    /// Found by the last look.
    found: usize,
}

impl OtherQueues {
    /// How many of them two successive looks have found: a queue that this process closes is counted for a
    /// moment.
    pub(super) fn confirmed(&mut self, look: impl FnOnce(&mut Option<usize>) -> usize) -> usize {
        let found = look(&mut self.all_own);
        found.min(std::mem::replace(&mut self.found, found))
    }
}

/// When the interface is to be looked at, or attached to.
struct Schedule {
    next: Instant,
    pause: Duration,
}

impl Pump {
    /// Runs until [`Shared::stop`]; then empties the rings.
    pub(super) fn run(mut self) {
        let mut schedule = Schedule { next: Instant::now(), pause: RETRY.0 };
        loop {
            // Read before the rings: what was pushed before the stop is found in them.
            let stops = self.shared.stopping.load(Acquire);
            let wrote = self.write();
            if stops {
                return self.end();
            }
            let sent = self.send();
            self.look(&mut schedule);
            if !wrote && !sent {
                self.sleep(&schedule);
            }
        }
    }

    /// Writes what the rings hold; returns whether there was something.
    fn write(&mut self) -> bool {
        let Self { queue, rings, .. } = self;
        let mut wrote = false;
        for (ring, counters) in rings {
            for _ in 0..PORTIONS_MAX {
                let records = ring.read();
                let mut items = records.iter();
                let taken = items.by_ref().take(PORTION).map(|item| write_one(queue, item, counters)).count();
                let position = items.position();
                records.release_to(position);
                wrote |= taken > 0;
                if taken < PORTION {
                    break;
                }
            }
        }
        wrote
    }

    fn send(&mut self) -> bool {
        match (&mut self.back, &self.queue) {
            (Some(back), Some(queue)) => back.run(queue),
            _ => false,
        }
    }

    fn look(&mut self, schedule: &mut Schedule) {
        let lost = self.queue.is_none() && self.is_attached();
        let now = Instant::now();
        if lost {
            self.note(Condition::Closed("the interface was removed".to_owned()));
            *schedule = Schedule { next: now + RETRY.0, pause: RETRY.0 };
        }
        if now < schedule.next {
            return;
        }
        schedule.next = now + LOOK_INTERVAL;
        self.follow();
        let Some(queue) = &mut self.queue else { return self.attach(schedule, now) };
        match queue.refresh() {
            Refreshed::Same if queue.is_up() => {
                let mtu = queue.mtu();
                let Self { others, interface, .. } = self;
                // One thread looks for all.
                let others = match self.index {
                    0 => others.confirmed(|all_own| interface.queues_of_others(all_own)),
                    _ => 0,
                };
                self.note(Condition::Up { mtu, others });
            }
            Refreshed::Same => self.note(Condition::Down),
            Refreshed::OtherHeader => {
                let reason = "another process has changed the header before each frame";
                self.note(Condition::Closed(reason.to_owned()));
                self.queue = None;
                schedule.next = now;
            }
            // The next pass notes it.
            Refreshed::Gone => self.queue = None,
        }
    }

    /// Gives the interface the address and MTU of the port when these have changed, again until it takes
    /// them. What others have changed at the interface itself stays.
    fn follow(&mut self) {
        let Self { sink, interface, queue, given, refusal, index, .. } = self;
        let wanted = interface.wanted();
        let Some(queue) = queue.as_mut().filter(|_| *index == 0 && wanted != *given) else { return };
        let before = *given;
        let mac = Wanted { mac: wanted.mac.filter(|_| wanted.mac != given.mac), mtu: None };
        let mtu = Wanted { mac: None, mtu: wanted.mtu.filter(|_| wanted.mtu != given.mtu) };
        // Each on its own, so that one that was taken is not given again with the other.
        let mac = queue.configure(interface, mac).map(|()| given.mac = wanted.mac);
        let mtu = queue.configure(interface, mtu).map(|()| given.mtu = wanted.mtu);
        let name = &interface.name;
        if *given != before {
            let mac = given.mac.filter(|_| given.mac != before.mac).map(|mac| format!(" address {mac}"));
            let mtu = given.mtu.filter(|_| given.mtu != before.mtu).map(|mtu| format!(" mtu {mtu}"));
            let (mac, mtu) = (mac.unwrap_or_default(), mtu.unwrap_or_default());
            tracing::info!("sink `{sink}`: {name} follows its port:{mac}{mtu}");
        }
        let refused = mac.and(mtu).err().map(|error| sentence(&error));
        if let Some(text) = refused.as_ref().filter(|_| refused != *refusal) {
            tracing::warn!("sink `{sink}`: {name} does not follow its port: {text}");
        }
        *refusal = refused;
    }

    fn attach(&mut self, schedule: &mut Schedule, now: Instant) {
        let wanted = self.interface.wanted();
        match self.interface.attach(self.multi_queue) {
            Ok(queue) => {
                (self.given, self.refusal) = (wanted, None);
                *schedule = Schedule { next: now, pause: RETRY.0 };
                self.queue = Some(queue);
            }
            Err(error) => {
                self.note(Condition::Closed(sentence(&error)));
                schedule.next = now + schedule.pause;
                schedule.pause = (schedule.pause * 2).min(RETRY.1);
            }
        }
    }

    fn is_attached(&self) -> bool {
        !matches!(self.shared.reports[self.index].condition(), Condition::Closed(_))
    }

    /// Keeps the state for the status, and logs it once per change; all threads of a sink see the same, so
    /// the first one reports.
    fn note(&self, condition: Condition) {
        let report = &self.shared.reports[self.index];
        let before = report.condition();
        if before == condition {
            return;
        }
        if self.index == 0 {
            let Self { sink, interface, .. } = self;
            let name = &interface.name;
            match (&before, &condition) {
                (_, Condition::Closed(reason)) => {
                    tracing::warn!(
                        "sink `{sink}`: {name}: {reason}; packets for the host are dropped until it can be used"
                    );
                }
                (_, Condition::Down) => {
                    tracing::warn!(
                        "sink `{sink}`: {name} is down; packets for the host are dropped (hint: ip link set dev {name} up)"
                    );
                }
                (Condition::Up { others: before, .. }, Condition::Up { others, .. }) if before != others => {
                    if *others > 0 {
                        let holder = tap::other_holder(name);
                        let holder = holder.as_deref().unwrap_or("another process");
                        tracing::warn!(
                            "sink `{sink}`: {holder} has attached to {name} and gets a part of what the host sends \
                             (hint: end it)"
                        );
                    } else {
                        tracing::info!("sink `{sink}`: no other process has queues of {name} any more");
                    }
                }
                (Condition::Up { .. }, Condition::Up { mtu, .. }) => {
                    tracing::info!("sink `{sink}`: {name} has the MTU {mtu}");
                }
                (_, Condition::Up { mtu, .. }) => tracing::info!("sink `{sink}`: {name} is up, MTU {mtu}"),
            }
        }
        *report.condition.lock().unwrap_or_else(PoisonError::into_inner) = condition;
    }

    /// Until a worker has packets, the host sends, the interface is removed, or the schedule has something to
    /// do.
    fn sleep(&mut self, schedule: &Schedule) {
        let Self { queue, rings, wakeup, back, .. } = self;
        let mut timeout = schedule.next.saturating_duration_since(Instant::now());
        let mut events = PollFlags::empty();
        if let Some(back) = back {
            events.set(PollFlags::IN, back.has_room());
            timeout = back.next_look().map_or(timeout, |look| timeout.min(look));
        }
        let mut is_gone = false;
        wakeup.announce_sleep();
        if rings.iter().all(|(ring, _)| ring.is_empty()) {
            let events = wakeup.sleep(queue.as_ref().map(|queue| PollFd::new(queue, events)), timeout);
            // What a queue without an interface answers (`tun_chr_poll`).
            is_gone = events.first().is_some_and(|events| events.contains(PollFlags::ERR));
        }
        wakeup.end_sleep();
        if is_gone {
            *queue = None;
        }
    }

    /// Writes the rest, as long as it is permitted to take; what is left then counts as dropped.
    fn end(mut self) {
        let deadline = Instant::now() + END_TIMEOUT;
        while self.write() {
            if Instant::now() > deadline {
                self.queue = None;
            }
        }
    }
}

/// Passes a packet to the host and counts it. What did not fit into the ring is counted by the worker.
fn write_one(queue: &mut Option<Queue>, bytes: &[u8], counters: &SinkCounters) {
    let written = queue.as_ref().map_or(Written::Gone, |queue| queue.write(bytes));
    let reason = match written {
        Written::Yes => return counters.thread.delivered(1, bytes.len() as u64),
        Written::TooLong => SinkDrop::TooLong,
        Written::Down => SinkDrop::Down,
        Written::Failed => SinkDrop::WriteFailed,
        Written::Gone => {
            *queue = None;
            SinkDrop::Closed
        }
    };
    counters.thread.dropped(reason, 1);
}

/// An error with its causes.
fn sentence(error: &TapError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
