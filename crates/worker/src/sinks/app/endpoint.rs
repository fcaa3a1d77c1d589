//! The worker's side: puts the packets of a batch into the rings of clients. What clients send is taken by
//! [`Taker`].
//!
//! The work is by client: one lock, one index store and one addition to each counter per batch and client. A
//! packet is delivered if at least one client got it; otherwise the last reason counts, and without clients
//! `no_client`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use program::AppMode;
use shm::memif::ring::Put;

use super::client::{Client, ThreadWakeup, add};
use super::roster::{Roster, RosterSlot, WorkerPosition};
use super::taker::{Taker, Transmit};
use crate::BATCH_MAX;
use crate::sink::{Deliveries, FramesBack, POLL_INTERVAL, Sink, SinkCounters, SinkDrop};

/// In [`Endpoint::targets`] in mode `copy`: every client.
const EVERY: u8 = u8::MAX;

/// The packets of a batch, which are visited once per client.
pub(super) trait Frames {
    fn each(&self, visit: impl FnMut(&[u8]));
}

impl Frames for Deliveries<'_> {
    #[inline]
    fn each(&self, mut visit: impl FnMut(&[u8])) {
        self.iter().for_each(|delivery| visit(delivery.bytes));
    }
}

/// One worker's side of the sink.
pub(super) struct Endpoint {
    worker: usize,
    mode: AppMode,
    slot: Arc<RosterSlot>,
    wakeup: Arc<ThreadWakeup>,
    pub(super) counters: Arc<SinkCounters>,
    roster: Option<Arc<Roster>>,
    /// For each packet of the batch its client.
    targets: Vec<u8>,
    /// For each packet of the batch why it is not delivered; `None` if it is.
    outcomes: Vec<Option<SinkDrop>>,
    taker: Taker,
}

impl Endpoint {
    pub(super) fn new(
        position: WorkerPosition,
        mode: AppMode,
        slot: Arc<RosterSlot>,
        wakeup: Arc<ThreadWakeup>,
        transmit: Option<Transmit>,
    ) -> Self {
        let (targets, outcomes) = (Vec::with_capacity(BATCH_MAX), Vec::with_capacity(BATCH_MAX));
        Self {
            worker: position.index,
            mode,
            slot,
            wakeup,
            counters: Arc::default(),
            roster: None,
            targets,
            outcomes,
            taker: Taker::new(position, transmit),
        }
    }

    /// Delivers a batch.
    #[inline]
    pub(super) fn deliver(&mut self, frames: &impl Frames) {
        self.slot.refresh(&mut self.roster);
        self.outcomes.clear();
        self.targets.clear();
        let roster = self.roster.as_deref().filter(|roster| !roster.clients.is_empty());
        let shared = roster.filter(|_| self.mode == AppMode::Share);
        frames.each(|frame| {
            self.outcomes.push(Some(SinkDrop::NoClient));
            self.targets.push(shared.map_or(EVERY, |roster| roster.client_of(frame)));
        });
        if let Some(roster) = roster {
            for (number, client) in roster.clients.iter().enumerate() {
                let number = number as u8;
                let is_used = shared.is_none() || self.targets.contains(&number);
                if is_used && client.is_sound() {
                    let batch = Batch { number, targets: &self.targets, outcomes: &mut self.outcomes };
                    batch.put(frames, client, self.worker, &self.wakeup);
                }
            }
        }
        self.count(frames);
    }

    fn count(&self, frames: &impl Frames) {
        let (mut delivered, mut delivered_bytes, mut offered_bytes) = (0, 0, 0);
        let mut dropped = [0; SinkDrop::ALL.len()];
        let mut outcomes = self.outcomes.iter();
        frames.each(|frame| {
            let bytes = frame.len() as u64;
            offered_bytes += bytes;
            match outcomes.next() {
                Some(Some(reason)) => dropped[*reason as usize] += 1,
                _ => {
                    delivered += 1;
                    delivered_bytes += bytes;
                }
            }
        });
        self.counters.offered(self.outcomes.len() as u64, offered_bytes);
        if delivered > 0 {
            self.counters.worker.delivered(delivered, delivered_bytes);
        }
        self.counters.worker.all_dropped(&dropped);
    }

    /// Takes what clients have sent. Returns whether there was anything.
    pub(super) fn take(&mut self) -> bool {
        self.slot.refresh(&mut self.roster);
        self.taker.take(self.roster.as_deref(), &self.wakeup)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.slot.give_back(self.roster.take());
    }
}

impl Sink for Endpoint {
    fn run(&mut self, packets: &mut Deliveries<'_>) {
        self.deliver(packets);
    }

    fn poll(&mut self, _frames: &mut FramesBack<'_>) -> bool {
        self.take()
    }

    /// Neither clients that send nor completed sends wake a worker.
    fn poll_interval(&self) -> Option<Duration> {
        let has_clients = self.roster.as_deref().is_some_and(|roster| !roster.clients.is_empty());
        self.taker.next_look().or(has_clients.then_some(POLL_INTERVAL))
    }

    fn holds_frames(&self) -> bool {
        self.taker.is_busy()
    }

    fn retire(&mut self) {
        self.taker.retire();
    }

    /// Also without packets: clients send, and clients that have gone must be given up.
    fn needs_poll(&self) -> bool {
        true
    }
}

/// The packets of a batch that are for one client.
struct Batch<'b> {
    number: u8,
    targets: &'b [u8],
    outcomes: &'b mut [Option<SinkDrop>],
}

impl Batch<'_> {
    #[inline]
    fn put(self, frames: &impl Frames, client: &Client, worker: usize, wakeup: &ThreadWakeup) {
        let Self { number, targets, outcomes } = self;
        let is_mine = |target: u8| target == EVERY || target == number;
        let Some((ring, mut sender)) = client.sender(worker) else {
            let mine = outcomes.iter_mut().zip(targets).filter(|(_, target)| is_mine(**target));
            let mut contended = 0;
            for (outcome, _) in mine {
                note(outcome, SinkDrop::Contended);
                contended += 1;
            }
            add(&client.counters.contended, contended);
            return;
        };
        let (mut delivered, mut bytes, mut full, mut too_long) = (0, 0, 0, 0);
        let mut broken = None;
        let mut packets = outcomes.iter_mut().zip(targets);
        frames.each(|frame| {
            let Some((outcome, target)) = packets.next() else { return };
            if !is_mine(*target) {
                return;
            }
            if broken.is_some() {
                note(outcome, SinkDrop::Closed);
                return;
            }
            match sender.put(frame) {
                Ok(Put::Done) => {
                    *outcome = None;
                    delivered += 1;
                    bytes += frame.len() as u64;
                }
                Ok(Put::Full) => {
                    note(outcome, SinkDrop::RingFull);
                    full += 1;
                }
                Ok(Put::TooLong) => {
                    note(outcome, SinkDrop::TooLong);
                    too_long += 1;
                }
                Err(violation) => {
                    note(outcome, SinkDrop::Closed);
                    broken = Some(violation);
                }
            }
        });
        if sender.publish() && client.want_interrupt(ring) {
            wakeup.wake();
        }
        drop(sender);
        if let Some(violation) = broken {
            client.note_violation(violation);
            wakeup.wake();
        }
        let counters = &client.counters;
        add(&counters.delivered, delivered);
        add(&counters.delivered_bytes, bytes);
        add(&counters.ring_full, full);
        add(&counters.too_long, too_long);
    }
}

/// A client did not get the packet; another one may have.
#[inline]
fn note(outcome: &mut Option<SinkDrop>, reason: SinkDrop) {
    if outcome.is_some() {
        *outcome = Some(reason);
    }
}

/// The sum of a counter over clients.
pub(super) fn sum<'c>(
    clients: impl Iterator<Item = &'c Arc<Client>>,
    counter: impl Fn(&Client) -> &std::sync::atomic::AtomicU64,
) -> u64 {
    clients.map(|client| counter(client).load(Ordering::Relaxed)).sum()
}
