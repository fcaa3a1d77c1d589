//! The way back: what the host sends by the TAP interface is read into frames of the thread's own and sent by
//! the port. With offloads, checksums are completed here, and streams of up to 64 KiB are cut into segments
//! ([`Cutter`]), each of which is sent and counted as a packet. While all frames are in flight nothing is
//! read, so that the queue of the interface (`txqueuelen`) fills and the kernel counts what does not fit as
//! dropped there.

use std::sync::Arc;
use std::time::Duration;

use packet::offload::{Merged, Offload, Split, Unsplittable};
use verbs::{Context, PortAttributes};

use super::tap::{MTU_DEFAULT, Queue};
use crate::sink::{SinkCounters, SinkDrop};
use crate::sinks::Failure;
use crate::sinks::outgoing::{Filled, Outgoing};
use crate::sinks::port::{self, ETHERNET_BYTES, TAGS_BYTES};

/// Frames that are read before the rings of the workers have their turn.
const BATCH: usize = 64;

/// The longest frame that the host passes: an IP packet behind an Ethernet header with tags.
const MERGED_BYTES: usize = 65_535 + ETHERNET_BYTES + TAGS_BYTES;

/// Sends frames of one queue by a port.
pub(super) struct Back {
    pub(super) outgoing: Outgoing,
    pub(super) cutter: Cutter,
}

/// Makes packets that the port can send of what the host passes. Allocates nothing once it is made.
pub(super) struct Cutter {
    /// The frame that is being cut.
    frame: Box<[u8]>,
    /// How, and the number of the next segment.
    rest: Option<(Split, usize)>,
    /// The longest segment.
    segment_bytes: usize,
}

impl Cutter {
    /// For a port of this MTU.
    pub(super) fn new(mtu_bytes: usize) -> Self {
        let segment_bytes = mtu_bytes + ETHERNET_BYTES + TAGS_BYTES;
        Self { frame: vec![0; MERGED_BYTES + 1].into_boxed_slice(), rest: None, segment_bytes }
    }

    /// The next packet, put into `room`. `read` puts a frame into two places, one behind the other, as
    /// [`Queue::read`] does.
    pub(super) fn next(
        &mut self,
        room: &mut [u8],
        read: impl FnOnce(&mut [u8], &mut [u8]) -> Option<(Offload, usize)>,
    ) -> Filled {
        if self.rest.is_some() {
            return self.segment(room);
        }
        let overflow = self.frame.get_mut(room.len()..).unwrap_or_default();
        match read(room, overflow) {
            None => Filled::Nothing,
            Some((Offload { merged: Some(merged), .. }, bytes)) => self.begin(&merged, bytes, room),
            // One that fills the room may be longer.
            Some((_, bytes)) if bytes >= room.len() => Filled::Refused(bytes, SinkDrop::TooLong),
            Some((offload, bytes)) => {
                let is_finished =
                    offload.unfinished.is_none() || offload.complete_checksum(&mut room[..bytes]);
                if is_finished { Filled::Packet(bytes) } else { Filled::Refused(bytes, SinkDrop::Malformed) }
            }
        }
    }

    /// A merged frame, of which `room` has the beginning.
    fn begin(&mut self, merged: &Merged, bytes: usize, room: &mut [u8]) -> Filled {
        if bytes >= self.frame.len() {
            return Filled::Refused(bytes, SinkDrop::TooLong);
        }
        let first = room.len().min(bytes);
        self.frame[..first].copy_from_slice(&room[..first]);
        match Split::of(&self.frame[..bytes], merged, self.segment_bytes.min(room.len())) {
            Ok(split) => {
                self.rest = Some((split, 0));
                self.segment(room)
            }
            Err(Unsplittable::SegmentTooLong) => Filled::Refused(bytes, SinkDrop::TooLong),
            Err(Unsplittable::Kind | Unsplittable::Headers) => Filled::Refused(bytes, SinkDrop::Malformed),
        }
    }

    fn segment(&mut self, room: &mut [u8]) -> Filled {
        let Some((split, number)) = self.rest.take() else { return Filled::Nothing };
        let bytes = split.write(&self.frame, number, room);
        self.rest = (number + 1 < split.segments()).then_some((split, number + 1));
        Filled::Packet(bytes)
    }

    /// Gives up the segments that are left of the frame; returns their number and bytes.
    pub(super) fn abandon(&mut self) -> (u64, u64) {
        let mut room = vec![0; self.segment_bytes];
        let (mut packets, mut bytes) = (0, 0);
        while let Filled::Packet(segment_bytes) = self.segment(&mut room) {
            packets += 1;
            bytes += segment_bytes as u64;
        }
        (packets, bytes)
    }
}

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
        let outgoing = Outgoing::open(context, &port::domain(context)?, number, mtu_bytes, label)?;
        Ok(Self { outgoing, cutter: Cutter::new(mtu_bytes) })
    }

    /// The longest MTU that its frames have room for.
    pub(super) fn mtu_max(&self) -> u16 {
        let bytes = self.cutter.segment_bytes - ETHERNET_BYTES - TAGS_BYTES;
        u16::try_from(bytes).unwrap_or(u16::MAX)
    }

    /// The counters of this direction.
    pub(super) fn counters(&self) -> &Arc<SinkCounters> {
        &self.outgoing.counters
    }

    /// Whether a frame of the host could be sent now.
    pub(super) fn has_room(&self) -> bool {
        self.outgoing.has_room()
    }

    /// How soon completions are to be looked for, because nothing reports them.
    pub(super) fn next_look(&self) -> Option<Duration> {
        self.outgoing.next_look()
    }

    /// Sends what the host has queued, as far as there is room; returns whether there was something.
    pub(super) fn run(&mut self, queue: &Queue) -> bool {
        let Self { outgoing, cutter } = self;
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
            let read_one = |room: &mut [u8], rest: &mut [u8]| queue.read(room, rest);
            let queued = outgoing.queue(None, |room| cutter.next(room, read_one));
            is_empty = queued.is_none();
            read += usize::from(!is_empty);
        }
        outgoing.flush();
        read > 0
    }
}

impl Drop for Back {
    /// The host has passed the whole frame, so its last segments are counted, too.
    fn drop(&mut self) {
        let (packets, bytes) = self.cutter.abandon();
        if packets > 0 {
            let counters = self.counters();
            counters.offered(packets, bytes);
            counters.worker.dropped(SinkDrop::Closed, packets);
        }
    }
}
