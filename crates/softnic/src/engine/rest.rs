//! What an engine's thread does while there is no work: it polls for some time, then it sleeps.
//!
//! It wakes when a wire of its ports has a frame (the descriptors and times of [`SleepHint`]), when a send is
//! posted there or a control call is made ([`crate::send_bell`]), and after [`HEARTBEAT`], so that its count
//! of passes shows that it is alive. A wire that cannot announce its frames is asked again after naps, which
//! become longer the longer nothing arrives; and so is a send queue in a client's memory, whose doorbell is
//! not seen: a send after a pause waits for at most a nap.

use std::os::fd::{BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use parking::{HEARTBEAT, LONGEST_NAP, SHORTEST_NAP, Wakeup, nap};
use rustix::event::{PollFd, PollFlags};
use wire::SleepHint;

use super::{Engine, EngineCell};
use crate::clock;
use crate::limits::MAX_PORTS;
use crate::shared::NicShared;
use crate::state::{QpKind, QpState, State};

/// Passes without work after which the thread sleeps. It does not call sched_yield(2), which in a loop keeps
/// all threads of the core waiting (Linux kernel/sched/fair.c, `yield_task_fair`).
const SPIN_PASSES: u32 = 256;
/// The time between two readings of the wires' counters, of an engine that sleeps.
const COUNTER_INTERVAL: Duration = Duration::from_millis(100);
/// Descriptors of wires that the engine waits for: one for each port.
type Descriptors = ArrayVec<RawFd, MAX_PORTS>;
const _: () = assert!(MAX_PORTS <= Wakeup::MAX_OTHERS);

/// Counts the passes of an engine without work.
pub(super) struct Rest<'n> {
    nic: &'n NicShared,
    index: usize,
    cell: &'n EngineCell,
    wakeup: &'n Wakeup,
    passes: u32,
    /// When the counters of the wires were read last before a sleep.
    counters_read: Instant,
}

/// When the wires want to be asked again.
#[derive(Debug)]
struct Prospect {
    descriptors: Descriptors,
    longest: Duration,
    /// For how long the frames of all wires may gather; `None` if one is to be polled.
    gather: Option<Duration>,
}

impl<'n> Rest<'n> {
    /// For the thread of the engine with this index.
    pub(super) fn new(nic: &'n NicShared, cell: &'n EngineCell, index: usize) -> Self {
        Self { nic, index, cell, wakeup: &nic.wakeups[index], passes: 0, counters_read: Instant::now() }
    }

    /// To be called after each pass, with the frames that it has handled.
    #[inline]
    pub(super) fn after(&mut self, frames: usize) {
        if frames > 0 {
            self.passes = 0;
        } else {
            self.idle();
        }
    }

    fn idle(&mut self) {
        self.passes = self.passes.saturating_add(1);
        // A statement of its own: the engine is not locked during the sleep.
        let gather = if self.passes == 1 { self.cell.lock().prospect(0).gather } else { None };
        if let Some(gather) = gather {
            if !gather.is_zero() {
                self.sleep(&Descriptors::new(), gather, 0);
            }
            // If nothing has come by then, the next pass without work sleeps.
            self.passes = SPIN_PASSES;
            return;
        }
        match self.passes {
            0..SPIN_PASSES => std::hint::spin_loop(),
            SPIN_PASSES.. => {
                let naps = self.passes - SPIN_PASSES;
                let prospect = {
                    let mut engine = self.cell.lock();
                    // An engine that sleeps makes few passes, so their number is no measure of time.
                    if self.counters_read.elapsed() >= COUNTER_INTERVAL {
                        self.counters_read = Instant::now();
                        engine.read_wire_counters(self.nic);
                    }
                    engine.prospect(naps)
                };
                self.sleep(&prospect.descriptors, prospect.longest, naps);
            }
        }
    }

    /// Sleeps, unless there is something to do.
    fn sleep(&self, descriptors: &Descriptors, longest: Duration, naps: u32) {
        self.wakeup.announce_sleep();
        let is_own = |port| self.nic.engine_of(port) == self.index;
        let state_allows = patience(&mut self.nic.burst(), is_own, naps);
        // The clock that clients read stands still meanwhile.
        let longest = if self.nic.clock_view.get().is_some() { longest.min(LONGEST_NAP) } else { longest };
        if let Some(patience) = state_allows
            && !self.nic.stopping.load(std::sync::atomic::Ordering::Relaxed)
        {
            // SAFETY: a wire keeps the descriptor of its hint open until its next call, and only the engine,
            // which is here, calls wires that receive. A wrong descriptor would make this return early or
            // late, nothing else.
            let wires = descriptors.iter().map(|wire| unsafe { BorrowedFd::borrow_raw(*wire) });
            self.wakeup.sleep(
                wires.map(|wire| PollFd::from_borrowed_fd(wire, PollFlags::IN)),
                longest.min(patience),
            );
        }
        self.wakeup.end_sleep();
    }
}

impl Engine {
    /// Asks the wires, after `naps` naps.
    fn prospect(&mut self, naps: u32) -> Prospect {
        let mut prospect =
            Prospect { descriptors: Descriptors::new(), longest: HEARTBEAT, gather: Some(Duration::ZERO) };
        for port in &mut self.ports {
            let (longest, gather) = match port.wire.sleep_hint() {
                SleepHint::Poll => (nap(naps), None),
                // The clock of the wire and that of the sleep may differ a little; and a sleep takes some
                // time itself.
                SleepHint::Within(time) => (time.max(SHORTEST_NAP), None),
                SleepHint::Readable { descriptor, within, gather } => {
                    prospect.descriptors.push(descriptor);
                    (within, gather)
                }
            };
            prospect.longest = prospect.longest.min(longest);
            prospect.gather = prospect.gather.zip(gather).map(|(one, other)| one.max(other));
        }
        prospect
    }
}

/// How long an engine may sleep after `naps` naps for all that the state knows; `None`: not at all. Each
/// engine looks after what belongs to no port, as another one may be held up by its wire.
fn patience(state: &mut State, is_own: impl Fn(u8) -> bool, naps: u32) -> Option<Duration> {
    let State { senders, qps, failed_queues, waiting_cqs, watched_cqs, .. } = state;
    let mut patience = HEARTBEAT;
    if !failed_queues.is_empty() || !watched_cqs.is_empty() {
        // Receive buffers that are posted to failed queues are flushed, and queues in a client's memory are
        // armed there; neither wakes the engine.
        patience = LONGEST_NAP;
    }
    if !waiting_cqs.is_empty() {
        patience = SHORTEST_NAP;
    }
    for sender in senders.iter() {
        let Some(QpState { kind: QpKind::Raw { send, .. }, port, .. }) = qps.get_mut(*sender) else {
            continue;
        };
        if !is_own(*port) {
            continue;
        }
        if send.consumer.has_next() {
            if !send.pace.is_limited() || send.pace.is_due(clock::steady_ns()) {
                return None;
            }
            patience = SHORTEST_NAP;
        } else if send.consumer.is_polled() {
            // A post to a client's memory does not wake the engine either. As with a wire that has to be
            // polled, a sender that pauses is looked at ever more rarely.
            patience = patience.min(nap(naps));
        }
    }
    Some(patience)
}
