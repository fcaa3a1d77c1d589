//! The path of packets from a worker to the thread of the capture: the worker writes finished blocks into a
//! ring of bytes, and the thread passes regions of that ring to the kernel, so that nobody copies a packet a
//! second time.
//!
//! Beside the bytes there is a ring of [`Run`]s. A run describes consecutive blocks of one rule and one
//! iteration, so the thread counts packets without a look at the blocks. What the worker left out is a run
//! without blocks, before the next packet. The thread gives room back when it has written a region; until
//! then it is not overwritten.
//!
//! Layout of the bytes: a run is contiguous. A block that would cross the end of the ring begins at its
//! start; the rest before the end is counted in [`Run::padding`]. The worker commits the bytes before the
//! runs, so whoever sees a run sees its blocks.
//!
//! The worker writes the number of the interface into each block. Only the thread knows the numbers of the
//! current file, and publishes them in [`Numbers`]. These may be late: a run carries the number that its
//! blocks have, and the thread corrects blocks that have another one than the file demands.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use parking::Wakeup;
use rtrb::chunks::{ReadChunk, WriteChunk};

use super::losses::{Loss, Losses};
use super::pcapng::{self, Packet, packet_block_bytes};
use crate::sinks::handoff::{CAPACITY_MAX, PACKET_BYTES_MAX, WakeAtEnd};

/// All positions in the ring are multiples of this.
const ALIGN: usize = 4;
/// There is a run for so many octets of the ring. If the rules of successive packets differ and blocks are
/// shorter than this, the ring is full before its octets are used.
const BYTES_PER_RUN: usize = 128;
/// The fewest runs: those of some iterations.
const RUNS_MIN: usize = 1024;

/// Consecutive blocks of one rule, or packets that are not in the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Run {
    /// The program that `rule` belongs to.
    pub(super) generation: u64,
    /// The index of the rule in that program.
    pub(super) rule: u32,
    /// The number of the interface that the blocks have.
    pub(super) interface: u32,
    /// The times of the first and the last block. 0 without blocks.
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
    pub(super) blocks: Blocks,
    /// Octets without use before the blocks.
    padding: u32,
    /// Packets that did not fit, and that the worker left out on purpose, if there are no blocks.
    pub(super) full: u32,
    pub(super) skipped: u32,
}

/// The first blocks of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Blocks {
    pub(super) packets: u32,
    /// Octets in the ring.
    pub(super) bytes: u32,
    /// Octets of the packets on the wire.
    pub(super) original_bytes: u64,
}

/// The record that a ring keeps of a packet beside its bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Captured {
    pub(super) generation: u64,
    pub(super) rule: u32,
    pub(super) timestamp_ns: u64,
    pub(super) original_bytes: u32,
}

/// The numbers of the interfaces in the current file, by rule: what the thread used last.
#[derive(Debug)]
pub(super) struct Numbers([AtomicU64; Self::COUNT]);

impl Default for Numbers {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; Self::COUNT])
    }
}

impl Numbers {
    /// Rules whose indices differ by a multiple of this share a place, which is slower and as correct.
    const COUNT: usize = 256;

    pub(super) fn set(&self, rule: u32, number: u32) {
        self.0[rule as usize % Self::COUNT].store(u64::from(rule) << 32 | u64::from(number), Relaxed);
    }

    /// The likely number.
    fn of(&self, rule: u32) -> u32 {
        let entry = self.0[rule as usize % Self::COUNT].load(Relaxed);
        if (entry >> 32) as u32 == rule { entry as u32 } else { 0 }
    }
}

/// Makes a ring of at least `capacity` bytes, raised to twice the room of the longest packet (`snap_bytes`,
/// at most [`PACKET_BYTES_MAX`]), so that an empty ring takes every packet wherever its positions are; at
/// most [`CAPACITY_MAX`]. `wakeup` belongs to the thread that reads; several rings can share it.
pub(super) fn ring(
    capacity: usize,
    snap_bytes: usize,
    wakeup: &Arc<Wakeup>,
    numbers: &Arc<Numbers>,
) -> (Producer, Consumer) {
    let snap_bytes = snap_bytes.min(PACKET_BYTES_MAX);
    let longest = packet_block_bytes(snap_bytes);
    let capacity = capacity.min(CAPACITY_MAX).max(2 * longest).next_multiple_of(ALIGN);
    let (bytes, bytes_end) = touched(capacity);
    let (runs, runs_end) = touched((capacity / BYTES_PER_RUN).max(RUNS_MIN));
    let producer = Producer {
        bytes,
        runs,
        position: 0,
        snap_bytes,
        losses: Losses::default(),
        numbers: Arc::clone(numbers),
        wakeup: WakeAtEnd(Arc::clone(wakeup)),
    };
    (producer, Consumer { bytes: bytes_end, runs: runs_end, head: None, taken: 0 })
}

/// A ring whose pages exist: its whole length has been written once.
fn touched<T: Copy + Default>(capacity: usize) -> (rtrb::Producer<T>, rtrb::Consumer<T>) {
    let (mut producer, mut consumer) = rtrb::RingBuffer::new(capacity);
    if let Ok(chunk) = producer.write_chunk(capacity) {
        chunk.commit_all();
    }
    if let Ok(chunk) = consumer.read_chunk(capacity) {
        chunk.commit_all();
    }
    (producer, consumer)
}

/// The worker's end.
#[derive(Debug)]
pub(super) struct Producer {
    bytes: rtrb::Producer<u8>,
    runs: rtrb::Producer<Run>,
    /// The offset at which the next chunk of bytes starts.
    position: usize,
    snap_bytes: usize,
    losses: Losses,
    numbers: Arc<Numbers>,
    /// Dropped last, so that the thread then sees the end.
    wakeup: WakeAtEnd,
}

impl Producer {
    /// Starts a batch of at most so many packets, whose blocks need at most `bytes` in sum
    /// ([`packet_block_bytes`]); what exceeds it is lost as if the ring were full. Nothing is visible to the
    /// thread before [`Batch::finish`].
    #[inline]
    pub(super) fn batch(&mut self, packets: usize, bytes: usize) -> Batch<'_> {
        let capacity = self.bytes.buffer().capacity();
        let mut wanted = bytes.min(capacity);
        if wanted > capacity - self.position {
            // A block can leave less than its own room unused at the end of the ring.
            wanted = wanted.saturating_add(packet_block_bytes(self.snap_bytes)).min(capacity);
        }
        if wanted > self.bytes.cached_slots() {
            wanted = wanted.min(self.bytes.slots());
        }
        // In the worst case each packet is a run; one more begins where the ring does.
        let mut runs = packets + self.losses.len() + 1;
        if runs > self.runs.cached_slots() {
            runs = runs.min(self.runs.slots());
        }
        let Self { bytes, runs: run_ring, position, snap_bytes, losses, numbers, wakeup } = self;
        let mut batch = Batch {
            bytes: bytes.write_chunk(wanted).expect("only this side takes the room that was seen"),
            runs: run_ring.write_chunk(runs).expect("only this side takes the room that was seen"),
            at: 0,
            runs_used: 0,
            run: Run::default(),
            capacity,
            position,
            snap_bytes: *snap_bytes,
            losses,
            numbers,
            wakeup: &wakeup.0,
            full: 0,
        };
        batch.report_losses();
        batch
    }

    /// Counts a packet that the worker leaves out on purpose. The thread learns it with the next packet.
    #[inline]
    pub(super) fn skip(&mut self, generation: u64, rule: u32) {
        self.losses.skip(generation, rule);
    }

    /// Whether the thread no longer exists.
    pub(super) fn is_abandoned(&self) -> bool {
        self.runs.is_abandoned()
    }
}

impl Drop for Producer {
    /// Leaves the last losses to the thread, if there is room.
    fn drop(&mut self) {
        let _ = self.batch(0, 0).finish();
    }
}

/// The packets of one iteration on their way into the ring.
#[must_use = "packets are visible to the thread only after `finish`"]
pub(super) struct Batch<'p> {
    bytes: WriteChunk<'p, u8>,
    runs: WriteChunk<'p, Run>,
    /// Octets of the chunk that are used, padding included.
    at: usize,
    /// Runs of the chunk that are used, without `run`.
    runs_used: usize,
    /// The run that the next packet may continue; none without packets.
    run: Run,
    capacity: usize,
    position: &'p mut usize,
    snap_bytes: usize,
    losses: &'p mut Losses,
    numbers: &'p Numbers,
    wakeup: &'p Wakeup,
    full: u64,
}

impl Batch<'_> {
    /// Writes the block of a packet, whose bytes are truncated to the snap length. If it does not fit, the
    /// loss is counted and false returned.
    #[inline]
    pub(super) fn push(&mut self, packet: &Captured, bytes: &[u8]) -> bool {
        let bytes = bytes.get(..self.snap_bytes).unwrap_or(bytes);
        let wanted = packet_block_bytes(bytes.len());
        let Captured { generation, rule, timestamp_ns, original_bytes } = *packet;
        let Some(padding) = self.padding(wanted).filter(|padding| self.begin_run(packet, *padding)) else {
            self.full += 1;
            self.losses.full(generation, rule);
            return false;
        };
        let start = self.at + padding;
        self.at = start + wanted;
        let (first, second) = self.bytes.as_mut_slices();
        let place = match start.checked_sub(first.len()) {
            None => &mut first[start..start + wanted],
            Some(start) => &mut second[start..start + wanted],
        };
        let interface = self.run.interface;
        pcapng::write_packet(place, &Packet { interface, timestamp_ns, original_bytes }, bytes);
        self.run.last_ns = timestamp_ns;
        self.run.blocks.packets += 1;
        self.run.blocks.bytes += wanted as u32;
        self.run.blocks.original_bytes += u64::from(original_bytes);
        true
    }

    /// Makes the packets visible to the thread and wakes it if it sleeps; returns how many did not fit.
    #[inline]
    pub(super) fn finish(mut self) -> u64 {
        self.close_run();
        if self.runs_used > 0 {
            *self.position = (*self.position + self.at) % self.capacity;
            self.bytes.commit(self.at);
            self.runs.commit(self.runs_used);
            self.wakeup.notify();
        }
        self.full
    }

    /// The octets to leave out before contiguous room of `wanted` octets; `None` if there is no such room.
    #[inline]
    fn padding(&mut self, wanted: usize) -> Option<usize> {
        let total = self.bytes.len();
        let first = self.bytes.as_mut_slices().0.len();
        let rest = if self.at < first { first } else { total } - self.at;
        if rest >= wanted {
            return Some(0);
        }
        (self.at < first && total - first >= wanted).then_some(rest)
    }

    /// Begins a run unless the current one can be continued; false if there is no room for one.
    #[inline]
    fn begin_run(&mut self, packet: &Captured, padding: usize) -> bool {
        let Captured { generation, rule, timestamp_ns, .. } = *packet;
        let is_start = *self.position + self.at + padding == self.capacity;
        let continues = (self.run.generation, self.run.rule) == (generation, rule) && !is_start;
        if self.run.blocks.packets > 0 {
            if continues {
                return true;
            }
            if self.runs_used + 1 >= self.runs.len() {
                return false;
            }
            self.close_run();
        } else if self.runs_used >= self.runs.len() {
            return false;
        }
        let (interface, padding) = (self.numbers.of(rule), padding as u32);
        self.run = Run { generation, rule, interface, first_ns: timestamp_ns, padding, ..Run::default() };
        true
    }

    #[inline]
    fn close_run(&mut self) {
        if self.run.blocks.packets > 0 {
            let run = std::mem::take(&mut self.run);
            self.add_run(run);
        }
    }

    #[inline]
    fn add_run(&mut self, run: Run) {
        let (first, second) = self.runs.as_mut_slices();
        let place = match self.runs_used.checked_sub(first.len()) {
            None => &mut first[self.runs_used],
            Some(place) => &mut second[place],
        };
        *place = run;
        self.runs_used += 1;
    }

    /// The counts of what was lost before, as far as there is room.
    fn report_losses(&mut self) {
        while let Some(Loss { generation, rule, full, skipped }) = self.losses.first() {
            if self.runs_used == self.runs.len() {
                return;
            }
            self.add_run(Run { generation, rule, full, skipped, ..Run::default() });
            self.losses.remove_first();
        }
    }
}

/// The thread's end. It takes blocks in order, and gives the room of all that were taken back at once.
#[derive(Debug)]
pub(super) struct Consumer {
    bytes: rtrb::Consumer<u8>,
    runs: rtrb::Consumer<Run>,
    /// The rest of the run that was read last.
    head: Option<Run>,
    /// Octets of the ring that were taken and not given back, padding included.
    taken: usize,
}

impl Consumer {
    /// The next blocks or losses.
    #[inline]
    pub(super) fn head(&mut self) -> Option<&Run> {
        if self.head.is_none() {
            self.head = self.runs.pop().ok();
        }
        self.head.as_ref()
    }

    /// The largest first part of the head whose blocks have together at most `bytes` octets, and times up to
    /// `last_ns`; at least one block.
    #[inline]
    pub(super) fn first_blocks(&mut self, bytes: u64, last_ns: u64) -> Blocks {
        let Some(head) = self.head else { return Blocks::default() };
        if u64::from(head.blocks.bytes) <= bytes && head.last_ns <= last_ns {
            return head.blocks;
        }
        let mut part = Blocks::default();
        let chunk = self.blocks(head.blocks);
        let blocks = contiguous(&chunk, chunk.len() - head.blocks.bytes as usize);
        while let Some((packet, length)) = pcapng::read_packet(&blocks[part.bytes as usize..]) {
            let end = part.bytes + length as u32;
            let is_beyond = u64::from(end) > bytes || packet.timestamp_ns > last_ns;
            if part.packets > 0 && (is_beyond || end > head.blocks.bytes) {
                break;
            }
            part.packets += 1;
            part.bytes = end;
            part.original_bytes += u64::from(packet.original_bytes);
        }
        part
    }

    /// Gives the blocks of a part of the head the number of an interface.
    #[cold]
    pub(super) fn set_interface(&mut self, part: Blocks, interface: u32) {
        let mut chunk = self.blocks(part);
        let start = chunk.len() - part.bytes as usize;
        let (first, second) = chunk.as_mut_slices();
        let mut blocks = match start.checked_sub(first.len()) {
            None => &mut first[start..],
            Some(start) => &mut second[start..],
        };
        while let Some((_, length)) = pcapng::read_packet(blocks) {
            pcapng::set_interface(blocks, interface);
            blocks = &mut std::mem::take(&mut blocks)[length..];
        }
    }

    /// Takes a part of the head; returns the offset of its blocks, for [`Taken::slices`].
    #[inline]
    pub(super) fn take(&mut self, part: Blocks) -> usize {
        let Some(mut head) = self.head.take() else { return self.taken };
        let start = self.taken + head.padding as usize;
        self.taken = start + part.bytes as usize;
        if part.packets < head.blocks.packets {
            head.padding = 0;
            head.blocks.packets -= part.packets;
            head.blocks.bytes -= part.bytes;
            head.blocks.original_bytes -= part.original_bytes;
            self.head = Some(head);
            let next = {
                let chunk = self.blocks(head.blocks);
                let offset = chunk.len() - head.blocks.bytes as usize;
                pcapng::read_packet(contiguous(&chunk, offset))
            };
            if let (Some(head), Some((packet, _))) = (&mut self.head, next) {
                head.first_ns = packet.timestamp_ns;
            }
        }
        start
    }

    /// The blocks that were taken and the blocks of the head up to the end of `part`.
    fn blocks(&mut self, part: Blocks) -> ReadChunk<'_, u8> {
        let padding = self.head.map_or(0, |head| head.padding as usize);
        self.bytes
            .read_chunk(self.taken + padding + part.bytes as usize)
            .expect("a run comes after its blocks")
    }

    /// The bytes that were taken and not given back.
    pub(super) fn taken(&mut self) -> Taken<'_> {
        Taken(self.bytes.read_chunk(self.taken).expect("they are not given back"))
    }

    /// How many octets were taken and not given back.
    pub(super) fn taken_bytes(&self) -> usize {
        self.taken
    }

    /// Gives all that was taken back to the worker.
    pub(super) fn release(&mut self) {
        self.taken().0.commit_all();
        self.taken = 0;
    }

    pub(super) fn capacity(&self) -> usize {
        self.bytes.buffer().capacity()
    }

    /// Whether there is nothing to take.
    pub(super) fn is_empty(&self) -> bool {
        self.head.is_none() && self.runs.is_empty()
    }

    /// Whether the producer no longer exists. What it left can still be read: ask this first, then read.
    pub(super) fn is_abandoned(&self) -> bool {
        self.runs.is_abandoned()
    }
}

/// The bytes that a consumer has taken.
pub(super) struct Taken<'c>(ReadChunk<'c, u8>);

impl Taken<'_> {
    /// Octets by their offsets from [`Consumer::take`]; in two slices if they go on at the start of the ring.
    pub(super) fn slices(&self, start: usize, end: usize) -> [&[u8]; 2] {
        let (first, second) = self.0.as_slices();
        let split = first.len();
        if end <= split {
            [&first[start..end], &[]]
        } else if start >= split {
            [&second[start - split..end - split], &[]]
        } else {
            [&first[start..], &second[..end - split]]
        }
    }

    /// Octets of one run, which are in one piece.
    pub(super) fn contiguous(&self, start: usize, end: usize) -> &[u8] {
        &contiguous(&self.0, start)[..end - start]
    }
}

/// The octets of a chunk from an offset up to the end of the piece that it is in.
#[inline]
fn contiguous<'c>(chunk: &'c ReadChunk<'_, u8>, start: usize) -> &'c [u8] {
    let (first, second) = chunk.as_slices();
    match start.checked_sub(first.len()) {
        None => &first[start..],
        Some(start) => second.get(start..).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
