//! What an engine's thread does while there is no work: it polls for some time, then it sleeps.
//!
//! It wakes when a wire of its ports has a frame (the descriptors and times of [`SleepHint`]), when a send is
//! posted there or a control call is made ([`crate::doorbell`]), and after [`HEARTBEAT`], so that its count
//! of passes shows that it is alive. A wire that cannot announce its frames is asked again after naps, which
//! become longer the longer nothing arrives; and so is a send queue in a client's memory, whose doorbell is
//! not seen: a send after a pause waits for at most a nap.

use std::time::Duration;

use wire::SleepHint;

use super::{Engine, EngineCell};
use crate::clock;
use crate::doorbell::{Descriptors, Doorbell};
use crate::shared::NicShared;
use crate::state::{QpKind, QpState, State};

/// Passes without work after which the thread sleeps. It does not call sched_yield(2), which in a loop keeps
/// all threads of the core waiting (Linux kernel/sched/fair.c, `yield_task_fair`).
const SPIN_PASSES: u32 = 256;
/// The shortest nap. At 64 frames per burst this still keeps up with about a million frames a second.
const SHORTEST_NAP: Duration = Duration::from_micros(50);
/// The longest one: how late a frame of a wire that has to be polled may be after a pause.
const LONGEST_NAP: Duration = Duration::from_millis(4);
/// Naps of one length; each next length is twice the one before.
const NAPS_PER_LENGTH: u32 = 16;
/// The longest sleep.
const HEARTBEAT: Duration = Duration::from_millis(20);

/// Counts the passes of an engine without work.
pub(super) struct Rest<'n> {
    nic: &'n NicShared,
    index: usize,
    cell: &'n EngineCell,
    doorbell: &'n Doorbell,
    passes: u32,
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
        Self { nic, index, cell, doorbell: &nic.doorbells[index], passes: 0 }
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
                let prospect = self.cell.lock().prospect(naps);
                self.sleep(&prospect.descriptors, prospect.longest, naps);
            }
        }
    }

    /// Sleeps, unless there is something to do.
    fn sleep(&self, descriptors: &Descriptors, longest: Duration, naps: u32) {
        self.doorbell.announce_sleep();
        let is_own = |port| self.nic.engine_of(port) == self.index;
        let state_allows = patience(&mut self.nic.burst(), is_own, naps);
        // The clock that clients read stands still meanwhile.
        let longest = if self.nic.clock_pages.get().is_some() { longest.min(LONGEST_NAP) } else { longest };
        if let Some(patience) = state_allows
            && !self.nic.stopping.load(std::sync::atomic::Ordering::Relaxed)
        {
            self.doorbell.wait(descriptors, longest.min(patience));
        }
        self.doorbell.end_sleep();
    }
}

/// The length of the nap after so many others.
fn nap(naps: u32) -> Duration {
    let doublings = (naps / NAPS_PER_LENGTH).min(u32::BITS - 1);
    SHORTEST_NAP.saturating_mul(1 << doublings).min(LONGEST_NAP)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naps_become_longer_up_to_a_limit() {
        assert_eq!(nap(0), SHORTEST_NAP);
        assert_eq!(nap(NAPS_PER_LENGTH), SHORTEST_NAP * 2);
        assert_eq!(nap(u32::MAX), LONGEST_NAP);
        let all = (0..1000).map(nap).collect::<Vec<_>>();
        assert!(all.is_sorted());
    }
}
