//! The way back: what the host sends by the TAP interface is read into frames of the thread's own and sent by the port.
//! While all frames are in flight nothing is read, so that the queue of the interface (`txqueuelen`) fills and the
//! kernel counts what does not fit as dropped there.

use std::sync::Arc;
use std::time::Duration;

use verbs::{Context, PortAttributes};

use super::tap::{MTU_DEFAULT, Queue};
use crate::sink::SinkCounters;
use crate::sinks::outgoing::{Filled, Outgoing};
use crate::sinks::{Failure, port};

/// Frames that are read before the rings of the workers have their turn.
const BATCH: usize = 64;

/// Sends frames of one queue by a port.
pub(super) struct Back(Outgoing);

impl Back {
    /// Frames for the smaller MTU of interface and port, and a queue pair.
    pub(super) fn open(
        context: &Arc<Context>,
        number: u8,
        attributes: &PortAttributes,
        mtu: u16,
        label: &str,
    ) -> Result<Self, Failure> {
        let mtu_bytes = usize::from(mtu.max(MTU_DEFAULT)).min(port::mtu_bytes(attributes));
        Ok(Self(Outgoing::open(context, &port::domain(context)?, number, mtu_bytes, label)?))
    }

    /// What it has counted.
    pub(super) fn counters(&self) -> &Arc<SinkCounters> {
        &self.0.counters
    }

    /// Whether a frame of the host could be sent now.
    pub(super) fn has_room(&self) -> bool {
        self.0.has_room()
    }

    /// How soon completions are to be looked for, because nothing reports them.
    pub(super) fn next_look(&self) -> Option<Duration> {
        self.0.next_look()
    }

    /// Sends what the host has queued, as far as there is room; returns whether there was something.
    pub(super) fn run(&mut self, queue: &Queue) -> bool {
        let Self(outgoing) = self;
        outgoing.reap();
        if outgoing.is_broken()
            && let Some(transmitter) = &mut outgoing.transmitter
        {
            // A refusal leaves it failed; the next call tries again.
            let _ = transmitter.recover();
        }
        let mut read = 0;
        let mut is_empty = false;
        while read < BATCH && !is_empty && outgoing.has_room() {
            let queued = outgoing.queue(None, |room| match queue.read(room) {
                None => Filled::Nothing,
                Some(bytes) if bytes == room.len() => Filled::TooLong(bytes),
                Some(bytes) => Filled::Packet(bytes),
            });
            is_empty = queued.is_none();
            read += usize::from(!is_empty);
        }
        outgoing.flush();
        read > 0
    }
}
