//! Takes the frames that clients send, and sends them by a port where the sink's options ask for it;
//! otherwise they are checked and counted only.
//!
//! Each iteration takes a bounded amount. Every client has the same share of it, however many rings it has;
//! what is left goes to those that have more, and another client is the first in each iteration. While the
//! port has no room, frames stay in the rings of the clients.

use std::sync::Arc;
use std::time::Duration;

use shm::memif::ring::{CHAIN_MAX, ServerReceiver, TakenFrame, Violation};

use super::client::{Client, ThreadWakeup, add};
use super::roster::{CLIENTS_MAX, Roster, WorkerPosition};
use crate::sink::SinkDrop;
use crate::sinks::outgoing::{Attempt, Filled, Outgoing};
use crate::sinks::port::Link;

/// The most bytes that a worker takes from all clients together per iteration, so that they cannot keep it
/// busy. The last frame may exceed it, by [`CHAIN_MAX`] descriptors and [`FRAME_BYTES_MAX`] bytes at most. A
/// ring that is looked at counts as a descriptor.
const TAKE: Budget = Budget { descriptors: 256, bytes: 128 << 10 };
/// The longest frame that a client can send.
pub(super) const FRAME_BYTES_MAX: usize = 16 << 10;

/// How much may still be taken from clients.
#[derive(Clone, Copy)]
struct Budget {
    descriptors: usize,
    bytes: usize,
}

impl Budget {
    /// The share of each of so many.
    #[inline]
    fn share(self, count: usize) -> Self {
        Self { descriptors: (self.descriptors / count).max(1), bytes: (self.bytes / count).max(1) }
    }

    #[inline]
    fn min(self, other: Self) -> Self {
        Self { descriptors: self.descriptors.min(other.descriptors), bytes: self.bytes.min(other.bytes) }
    }

    #[inline]
    fn spend(&mut self, descriptors: usize, bytes: usize) {
        self.descriptors = self.descriptors.saturating_sub(descriptors);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    #[inline]
    fn is_spent(self) -> bool {
        self.descriptors == 0 || self.bytes == 0
    }
}

/// The result of looking at the rings of a client.
#[derive(Default)]
struct Visit {
    /// There was a frame.
    worked: bool,
    /// There may be more frames than the budget allowed.
    wants_more: bool,
}

/// Sends what clients of one worker send.
pub(super) struct Transmit {
    pub(super) outgoing: Outgoing,
    pub(super) link: Arc<Link>,
}

/// Where the frames of clients go.
enum Egress {
    Port(Box<Transmit>),
    /// Nowhere; a frame is copied here.
    Count(Box<[u8]>),
}

/// The frames of one worker's clients.
pub(super) struct Taker {
    position: WorkerPosition,
    egress: Egress,
    /// The index of the client that is first in the next iteration.
    first_client: usize,
    /// For each client the ring that is first, among those of this worker.
    first_rings: [u8; CLIENTS_MAX],
    /// Nothing more is taken.
    is_retired: bool,
}

impl Taker {
    pub(super) fn new(position: WorkerPosition, transmit: Option<Transmit>) -> Self {
        let egress = match transmit {
            Some(transmit) => Egress::Port(Box::new(transmit)),
            None => Egress::Count(vec![0; FRAME_BYTES_MAX].into_boxed_slice()),
        };
        Self { position, egress, first_client: 0, first_rings: [0; CLIENTS_MAX], is_retired: false }
    }

    /// One iteration. Returns whether there was a frame.
    #[inline]
    pub(super) fn take(&mut self, roster: Option<&Roster>, wakeup: &ThreadWakeup) -> bool {
        self.egress.begin();
        let worked = match roster.filter(|roster| !roster.clients.is_empty()) {
            Some(roster) if !self.is_retired => self.take_from_clients(roster, wakeup),
            _ => false,
        };
        self.egress.end();
        worked
    }

    /// From now on only completions are taken.
    pub(super) fn retire(&mut self) {
        self.is_retired = true;
    }

    /// How soon completed sends are to be looked for; `None` if there are no sends.
    pub(super) fn next_look(&self) -> Option<Duration> {
        match &self.egress {
            Egress::Port(transmit) => transmit.outgoing.next_look(),
            Egress::Count(_) => None,
        }
    }

    /// Whether sends are in flight.
    pub(super) fn is_busy(&self) -> bool {
        matches!(&self.egress, Egress::Port(transmit) if transmit.outgoing.is_busy())
    }

    fn take_from_clients(&mut self, roster: &Roster, wakeup: &ThreadWakeup) -> bool {
        let clients = roster.clients.len();
        let first = self.first_client % clients;
        let mut left = TAKE;
        let mut served = 0;
        let mut worked = false;
        for share in [TAKE.share(clients), TAKE] {
            let mut wants_more = false;
            for number in 0..clients {
                if left.is_spent() || !self.egress.has_room() {
                    break;
                }
                let mut budget = share.min(left);
                let before = budget;
                let visit = self.visit(roster, (first + number) % clients, &mut budget, wakeup);
                wants_more |= visit.wants_more;
                worked |= visit.worked;
                left.spend(before.descriptors - budget.descriptors, before.bytes - budget.bytes);
                served += 1;
            }
            if !wants_more {
                break;
            }
        }
        // Those that had no turn are the first in the next iteration.
        self.first_client = first + if served < clients { served } else { 1 };
        worked
    }

    /// Takes frames from the rings of a client.
    #[inline]
    fn visit(&mut self, roster: &Roster, index: usize, budget: &mut Budget, wakeup: &ThreadWakeup) -> Visit {
        let mut visit = Visit::default();
        let (Some(client), Some(first)) = (roster.clients.get(index), self.first_rings.get_mut(index)) else {
            return visit;
        };
        let mut rings = roster.rings_of(index, self.position, usize::from(*first));
        if !client.is_sound() || rings.len() == 0 {
            return visit;
        }
        *first = first.wrapping_add(1);
        for ring in rings.by_ref() {
            budget.spend(1, 0);
            let Some(mut ring) = client.receiver(ring) else { continue };
            // Every frame takes a descriptor at least.
            let before = budget.descriptors;
            let taken = self.egress.take_from(&mut ring, client, budget);
            visit.worked |= budget.descriptors != before;
            if let Err(violation) = taken {
                client.note_violation(violation);
                wakeup.wake();
                return visit;
            }
            if budget.is_spent() {
                visit.wants_more = true;
                return visit;
            }
        }
        visit
    }
}

impl Egress {
    /// Takes back what has been sent.
    #[inline]
    fn begin(&mut self) {
        let Self::Port(transmit) = self else { return };
        let Transmit { outgoing, link } = &mut **transmit;
        outgoing.reap();
        if outgoing.transmitter.is_none() {
            link.take_repaired(&mut outgoing.transmitter);
        } else if outgoing.is_broken() {
            link.give_to_repair(&mut outgoing.transmitter);
        }
    }

    /// Whether a frame can be taken.
    #[inline]
    fn has_room(&self) -> bool {
        match self {
            Self::Port(transmit) => transmit.outgoing.has_room(),
            Self::Count(_) => true,
        }
    }

    /// Sends what was taken.
    #[inline]
    fn end(&mut self) {
        if let Self::Port(transmit) = self {
            transmit.outgoing.flush();
        }
    }

    /// Takes frames from one ring of a client, as long as the budget has something left.
    fn take_from(
        &mut self,
        ring: &mut ServerReceiver,
        client: &Client,
        budget: &mut Budget,
    ) -> Result<(), Violation> {
        let (mut frames, mut bytes, mut too_long) = (0, 0, 0);
        let mut result = Ok(());
        while !budget.is_spent() && self.has_room() {
            let before = ring.position();
            match self.take_one(ring) {
                Ok(Some(Attempt { dropped: Some(SinkDrop::TooLong), .. })) => {
                    too_long += 1;
                    budget.spend(ring.position().wrapping_sub(before).into(), FRAME_BYTES_MAX);
                }
                Ok(Some(frame)) => {
                    frames += 1;
                    bytes += frame.bytes as u64;
                    budget.spend(ring.position().wrapping_sub(before).into(), frame.bytes);
                }
                Ok(None) => break,
                Err(violation) => {
                    budget.spend(CHAIN_MAX.into(), FRAME_BYTES_MAX);
                    result = Err(violation);
                    break;
                }
            }
        }
        if frames + too_long > 0 {
            ring.publish();
        }
        let counters = &client.counters;
        add(&counters.returned, frames);
        add(&counters.returned_bytes, bytes);
        add(&counters.returned_too_long, too_long);
        result
    }

    /// Takes the next frame, if there is one.
    #[inline]
    fn take_one(&mut self, ring: &mut ServerReceiver) -> Result<Option<Attempt>, Violation> {
        match self {
            Self::Count(room) => Ok(match ring.take(room)? {
                TakenFrame::Frame(bytes) => Some(Attempt { bytes, dropped: None }),
                TakenFrame::TooLong(bytes) => Some(Attempt { bytes, dropped: Some(SinkDrop::TooLong) }),
                TakenFrame::Empty => None,
            }),
            Self::Port(transmit) => {
                let Transmit { outgoing, link } = &mut **transmit;
                let refused = link.is_down().then_some(SinkDrop::Down);
                let mut result = Ok(());
                let queued = outgoing.queue(refused, |room| match ring.take(room) {
                    Ok(TakenFrame::Frame(bytes)) => Filled::Packet(bytes),
                    Ok(TakenFrame::TooLong(bytes)) => Filled::Refused(bytes, SinkDrop::TooLong),
                    Ok(TakenFrame::Empty) => Filled::Nothing,
                    Err(violation) => {
                        result = Err(violation);
                        Filled::Nothing
                    }
                });
                result.map(|()| queued)
            }
        }
    }
}
