//! The worker's side: puts the packets of a batch into the rings of clients. What clients send is taken by [`Taker`].
//!
//! The work is by client: one lock, one index store and one addition to each counter per batch and client. A packet is
//! delivered if at least one client got it; otherwise the last reason counts, and without clients `no_client`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use program::AppMode;
use shm::memif::ring::Put;

use super::client::{Client, ThreadWakeup, add};
use super::roster::{Roster, RosterSlot};
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
    /// In this iteration packets were put into rings, and in an earlier one.
    is_delivering: bool,
    is_unconfirmed: bool,
    taker: Taker,
}

impl Endpoint {
    pub(super) fn new(
        (worker, workers): (usize, usize),
        mode: AppMode,
        slot: Arc<RosterSlot>,
        wakeup: Arc<ThreadWakeup>,
        transmit: Option<Transmit>,
    ) -> Self {
        let (targets, outcomes) = (Vec::with_capacity(BATCH_MAX), Vec::with_capacity(BATCH_MAX));
        Self {
            worker,
            mode,
            slot,
            wakeup,
            counters: Arc::default(),
            roster: None,
            targets,
            outcomes,
            is_delivering: false,
            is_unconfirmed: false,
            taker: Taker::new((worker, workers), transmit),
        }
    }

    /// Delivers a batch.
    #[inline]
    pub(super) fn deliver(&mut self, frames: &impl Frames) {
        self.slot.refresh(&mut self.roster);
        self.is_delivering = true;
        let roster = self.roster.as_deref().filter(|roster| !roster.clients.is_empty());
        let mut tally = Tally::default();
        match roster.map(|roster| &roster.clients[..]) {
            // Every packet is its: one visit of each is enough.
            Some([client]) if self.mode == AppMode::Copy && client.is_sound() => {
                let report = |_, frame: &[u8], outcome| tally.add(frame, outcome);
                put(frames, (client, self.worker), &self.wakeup, |_| true, report);
            }
            _ => self.deliver_to_several(frames, &mut tally),
        }
        let Tally { delivered, delivered_bytes, dropped, dropped_bytes } = tally;
        let packets = delivered + dropped.iter().sum::<u64>();
        self.counters.offered(packets, delivered_bytes + dropped_bytes);
        if delivered > 0 {
            self.counters.worker.delivered(delivered, delivered_bytes);
        }
        self.counters.worker.all_dropped(&dropped);
    }

    /// Delivers a batch to any number of clients.
    fn deliver_to_several(&mut self, frames: &impl Frames, tally: &mut Tally) {
        let Self { worker, mode, wakeup, roster, targets, outcomes, .. } = self;
        outcomes.clear();
        targets.clear();
        let roster = roster.as_deref().filter(|roster| !roster.clients.is_empty());
        let shared = roster.filter(|_| *mode == AppMode::Share);
        frames.each(|frame| {
            outcomes.push(Some(SinkDrop::NoClient));
            targets.push(shared.map_or(EVERY, |roster| roster.client_of(frame)));
        });
        let clients = roster.map_or(&[][..], |roster| &roster.clients);
        for (number, client) in clients.iter().enumerate() {
            let number = number as u8;
            let is_used = shared.is_none() || targets.contains(&number);
            if is_used && client.is_sound() {
                let is_mine = |index| targets.get(index).is_some_and(|&mine| mine == EVERY || mine == number);
                put(frames, (client, *worker), wakeup, is_mine, |index, _, outcome| {
                    if let Some(place) = outcomes.get_mut(index) {
                        note(place, outcome);
                    }
                });
            }
        }
        let mut outcomes = outcomes.iter();
        frames.each(|frame| tally.add(frame, outcomes.next().copied().flatten()));
    }

    /// After the last packets for now: wakes clients that began to wait while the packets were put into their rings. As long as
    /// packets follow each other, each batch has another look at the clients of the one before.
    fn confirm(&mut self) {
        if std::mem::take(&mut self.is_delivering) {
            self.is_unconfirmed = true;
        } else if std::mem::take(&mut self.is_unconfirmed) {
            let clients = self.roster.as_deref().map_or(&[][..], |roster| &roster.clients);
            for client in clients.iter().filter(|client| client.is_sound()) {
                match client.sender(self.worker) {
                    Some((ring, mut sender)) => {
                        if sender.confirm() && client.want_interrupt(ring) {
                            self.wakeup.wake();
                        }
                    }
                    // Another worker uses it now.
                    None => self.is_unconfirmed = true,
                }
            }
        }
    }

    /// Takes what clients have sent. Returns whether there was anything.
    pub(super) fn take(&mut self) -> bool {
        self.slot.refresh(&mut self.roster);
        self.confirm();
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

/// What became of the packets of a batch.
#[derive(Default)]
struct Tally {
    delivered: u64,
    delivered_bytes: u64,
    dropped: [u64; SinkDrop::ALL.len()],
    dropped_bytes: u64,
}

impl Tally {
    #[inline]
    fn add(&mut self, frame: &[u8], outcome: Option<SinkDrop>) {
        let bytes = frame.len() as u64;
        match outcome {
            None => {
                self.delivered += 1;
                self.delivered_bytes += bytes;
            }
            Some(reason) => {
                self.dropped[reason as usize] += 1;
                self.dropped_bytes += bytes;
            }
        }
    }
}

/// Puts those packets of a batch into the ring of a client that are its, by their indices. Passes the index, the packet, and why
/// the client does not get it to `report`; `None` if it does.
#[inline]
fn put(
    frames: &impl Frames,
    (client, worker): (&Client, usize),
    wakeup: &ThreadWakeup,
    is_mine: impl Fn(usize) -> bool,
    mut report: impl FnMut(usize, &[u8], Option<SinkDrop>),
) {
    let mut index = 0;
    let Some((ring, mut sender)) = client.sender(worker) else {
        let mut contended = 0;
        frames.each(|frame| {
            if is_mine(index) {
                report(index, frame, Some(SinkDrop::Contended));
                contended += 1;
            }
            index += 1;
        });
        add(&client.counters.contended, contended);
        return;
    };
    let (mut delivered, mut bytes, mut full, mut too_long) = (0, 0, 0, 0);
    let mut broken = None;
    frames.each(|frame| {
        let place = index;
        index += 1;
        if !is_mine(place) {
            return;
        }
        if broken.is_some() {
            return report(place, frame, Some(SinkDrop::Closed));
        }
        let outcome = match sender.put(frame) {
            Ok(Put::Done) => {
                delivered += 1;
                bytes += frame.len() as u64;
                None
            }
            Ok(Put::Full) => {
                full += 1;
                Some(SinkDrop::RingFull)
            }
            Ok(Put::TooLong) => {
                too_long += 1;
                Some(SinkDrop::TooLong)
            }
            Err(violation) => {
                broken = Some(violation);
                Some(SinkDrop::Closed)
            }
        };
        report(place, frame, outcome);
    });
    if sender.publish_unfenced() && client.want_interrupt(ring) {
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

/// What came of a packet at one client; another one may have got it.
#[inline]
fn note(place: &mut Option<SinkDrop>, outcome: Option<SinkDrop>) {
    if place.is_some() {
        *place = outcome;
    }
}

/// The sum of a counter over clients.
pub(super) fn sum<'c>(
    clients: impl Iterator<Item = &'c Arc<Client>>,
    counter: impl Fn(&Client) -> &std::sync::atomic::AtomicU64,
) -> u64 {
    clients.map(|client| counter(client).load(Ordering::Relaxed)).sum()
}
