//! The hand-over of packets from a worker to the thread of a sink: a byte ring with one producer and one
//! consumer ([`rtrb`]), allocated when it is made, and a [`Wakeup`] that costs a system call only if the
//! consumer sleeps.
//!
//! The worker opens a [`Batch`] once per iteration, copies its packets into it, and makes them visible with
//! one store at the end ([`Batch::finish`]). A packet that does not fit is not copied.
//!
//! Layout: records of a header of `HEADER_BYTES` and the packet's bytes, padded to `ALIGN`. Capacity, records
//! and therefore all positions are multiples of `ALIGN`. A record is contiguous: where it would cross the end
//! of the ring, a word that starts with `PADDING` fills the ring up to its end, and the record starts at the
//! beginning. That costs at most one record's size of room per round, instead of a second copy of a packet
//! that would be in two parts.

use std::sync::Arc;

use parking::Wakeup;
use rtrb::chunks::{ReadChunk, WriteChunk};

/// All positions in the ring are multiples of this.
const ALIGN: usize = 8;
/// The octets of a record before the packet's bytes: the length of these.
const HEADER_BYTES: usize = 8;
/// In place of a length: the rest of the ring up to its end is unused.
const PADDING: u32 = u32::MAX;
/// The largest ring: lengths stay below `PADDING`.
pub const CAPACITY_MAX: usize = 1 << 30;
/// The longest packet that a ring takes; longer ones are truncated by the caller. GRO makes frames of up to
/// 64 KiB and their headers.
pub const PACKET_BYTES_MAX: usize = 1 << 17;

/// The room that a packet of `bytes` stored bytes needs in a ring.
#[must_use]
pub const fn record_bytes(bytes: usize) -> usize {
    HEADER_BYTES + bytes.next_multiple_of(ALIGN)
}

/// Makes a ring of at least `capacity` bytes, raised to twice the room of the longest packet (`packet_bytes`,
/// at most [`PACKET_BYTES_MAX`]), so that an empty ring takes every packet wherever its positions are; at
/// most [`CAPACITY_MAX`]. `wakeup` belongs to the thread that reads; several rings can share it.
#[must_use]
pub fn ring(capacity: usize, packet_bytes: usize, wakeup: &Arc<Wakeup>) -> (Producer, Consumer) {
    let longest = record_bytes(packet_bytes.min(PACKET_BYTES_MAX));
    let capacity = capacity.min(CAPACITY_MAX).max(2 * longest).next_multiple_of(ALIGN);
    let (producer, consumer) = rtrb::RingBuffer::new(capacity);
    let producer = Producer { ring: producer, position: 0, longest, wakeup: WakeAtEnd(Arc::clone(wakeup)) };
    // The pages of the ring exist from now on: writing zeroes over its whole length touches them.
    let (mut producer, mut consumer) = (producer, Consumer { ring: consumer });
    if let Ok(chunk) = producer.ring.write_chunk(capacity) {
        chunk.commit_all();
    }
    consumer.discard();
    (producer, consumer)
}

/// The worker's end.
#[derive(Debug)]
pub struct Producer {
    ring: rtrb::Producer<u8>,
    /// The offset at which the next chunk starts.
    position: usize,
    /// The room of the longest packet.
    longest: usize,
    /// Dropped after `ring`, so that the consumer then sees the end.
    wakeup: WakeAtEnd,
}

/// Wakes the consumer when the producer has ended.
#[derive(Debug)]
pub(super) struct WakeAtEnd(pub(super) Arc<Wakeup>);

impl Drop for WakeAtEnd {
    fn drop(&mut self) {
        self.0.wake();
    }
}

impl Producer {
    /// Starts a batch of packets that need at most `bytes` in sum, each as in [`record_bytes`]; what exceeds
    /// it is lost as if the ring were full. Nothing is visible to the consumer before [`Batch::finish`].
    #[inline]
    pub fn batch(&mut self, bytes: usize) -> Batch<'_> {
        let capacity = self.ring.buffer().capacity();
        let mut wanted = bytes.min(capacity);
        if wanted > capacity - self.position {
            // A record can leave less than its own room unused at the end of the ring.
            wanted = wanted.saturating_add(self.longest).min(capacity);
        }
        wanted = wanted.next_multiple_of(ALIGN).min(capacity);
        if wanted > self.ring.cached_slots() {
            wanted = wanted.min(self.ring.slots());
        }
        let chunk = self.ring.write_chunk(wanted).expect("only this side takes the room that was seen");
        let Self { position, longest, wakeup, .. } = self;
        Batch {
            chunk,
            at: 0,
            capacity,
            longest: *longest,
            position,
            wakeup: &wakeup.0,
            pushed: Pushed::default(),
        }
    }

    /// Whether the consumer no longer exists.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.ring.is_abandoned()
    }
}

/// How many packets a batch took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pushed {
    /// Packets that the consumer gets.
    pub packets: u64,
    /// Packets that did not fit.
    pub full: u64,
}

/// The packets of one iteration on their way into the ring.
#[derive(Debug)]
#[must_use = "packets are visible to the consumer only after `finish`"]
pub struct Batch<'p> {
    chunk: WriteChunk<'p, u8>,
    /// Octets of the chunk that are used, padding included.
    at: usize,
    capacity: usize,
    longest: usize,
    position: &'p mut usize,
    wakeup: &'p Wakeup,
    pushed: Pushed,
}

impl Batch<'_> {
    /// Copies a packet; false if it does not fit. `bytes` are truncated to the longest packet of the ring.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        let bytes = bytes.get(..self.longest - HEADER_BYTES).unwrap_or(bytes);
        let Some(room) = self.room(record_bytes(bytes.len())) else {
            self.pushed.full += 1;
            return false;
        };
        let (header, rest) = room.split_at_mut(HEADER_BYTES);
        header[..4].copy_from_slice(&(bytes.len() as u32).to_ne_bytes());
        // The padding behind the bytes keeps what was there: the consumer does not read it.
        if let Some(place) = rest.get_mut(..bytes.len()) {
            place.copy_from_slice(bytes);
        }
        self.pushed.packets += 1;
        true
    }

    /// Makes the packets visible to the consumer and wakes it if it sleeps.
    #[inline]
    pub fn finish(self) -> Pushed {
        if self.at > 0 {
            *self.position = (*self.position + self.at) % self.capacity;
            self.chunk.commit(self.at);
            self.wakeup.notify();
        }
        self.pushed
    }

    /// Contiguous room of `wanted` octets, with padding before it if the rest of the ring is shorter.
    #[inline]
    fn room(&mut self, wanted: usize) -> Option<&mut [u8]> {
        let (first, second) = self.chunk.as_mut_slices();
        let start = if self.at < first.len() {
            let rest = &mut first[self.at..];
            if rest.len() < wanted {
                if second.len() < wanted {
                    return None;
                }
                rest[..4].copy_from_slice(&PADDING.to_ne_bytes());
                self.at = first.len();
            }
            self.at
        } else {
            self.at
        };
        self.at += wanted;
        let room = match start.checked_sub(first.len()) {
            None => first.get_mut(start..start + wanted),
            Some(start) => second.get_mut(start..start + wanted),
        };
        if room.is_none() {
            self.at = start;
        }
        room
    }
}

/// The sink's end.
#[derive(Debug)]
pub struct Consumer {
    ring: rtrb::Consumer<u8>,
}

impl Consumer {
    /// The records that are in the ring now. The room is given back by [`Records::release`].
    #[must_use]
    pub fn read(&mut self) -> Records<'_> {
        let bytes = self.ring.slots();
        Records { chunk: self.ring.read_chunk(bytes).expect("only this side takes what was seen") }
    }

    /// Whether nothing is in the ring.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Whether the producer no longer exists. What it left can still be read: ask this first, then read.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.ring.is_abandoned()
    }

    /// Empties the ring without a look at the records.
    pub fn discard(&mut self) {
        self.read().release();
    }
}

/// The records that a consumer has found.
#[derive(Debug)]
pub struct Records<'c> {
    chunk: ReadChunk<'c, u8>,
}

impl Records<'_> {
    /// In the order in which they were pushed.
    pub fn iter(&self) -> Iter<'_> {
        let (first, second) = self.chunk.as_slices();
        Iter { rest: first, second, position: 0 }
    }

    /// Gives the room of all of them back to the producer.
    pub fn release(self) {
        self.chunk.commit_all();
    }

    /// Gives the room of those before [`Iter::position`] back; the others are read again.
    pub fn release_to(self, position: usize) {
        let position = position.min(self.chunk.len());
        self.chunk.commit(position);
    }
}

/// Iterates over [`Records`].
#[derive(Clone, Debug)]
pub struct Iter<'r> {
    rest: &'r [u8],
    second: &'r [u8],
    position: usize,
}

impl Iter<'_> {
    /// The position behind the last item, for [`Records::release_to`].
    #[must_use]
    pub fn position(&self) -> usize {
        self.position
    }
}

impl<'r> Iterator for Iter<'r> {
    type Item = &'r [u8];

    #[inline]
    fn next(&mut self) -> Option<&'r [u8]> {
        if self.rest.is_empty() || word(self.rest) == Some(PADDING) {
            self.position += self.rest.len();
            self.rest = std::mem::take(&mut self.second);
        }
        let stored = word(self.rest)? as usize;
        let bytes = self.rest.get(HEADER_BYTES..HEADER_BYTES + stored)?;
        let taken = record_bytes(stored);
        self.rest = self.rest.get(taken..)?;
        self.position += taken;
        Some(bytes)
    }
}

#[inline]
fn word(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().copied().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests;
