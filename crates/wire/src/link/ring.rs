//! One direction of a link: a ring of records in memory that both processes map.
//!
//! The other process may be dead, broken or hostile. So no word is read twice, every index and length is
//! checked to lie in the ring before it is used, frames are copied out before they are parsed, and the memory
//! is sealed so that it cannot shrink under a reader. Invalid data ends the session; a peer can damage
//! nothing but its own frames.
//!
//! The indices are those of [`ring_cursor`], where each place is a byte: only the sender writes the produced
//! index and only the receiver the consumed index.
//!
//! A record is 8 bytes (length, zero) and the frame, rounded up to 16. One that would cross the end of the
//! ring starts at its beginning again, behind a record of length [`SKIP`]. Indices count bytes and wrap at
//! 2^32.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use arrayvec::ArrayVec;
use ring_cursor::{ConsumerCursor, OutsideRing, ProducerCursor};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::{BURST_FRAMES, ETHERNET_BYTES, MAX_FRAME_BYTES};

/// Bytes of one direction's ring: some 400 of the longest frames, 50000 of the shortest.
pub(crate) const RING_BYTES: u32 = 4 << 20;
/// The memory of both directions: their indices in a page, then their rings.
pub(crate) const MEMORY_BYTES: usize = PAGE_BYTES + 2 * RING_BYTES as usize;

const PAGE_BYTES: usize = 4096;
/// Indices of one direction: each alone in the pair of lines that x86 prefetches together.
const INDICES_BYTES: usize = 256;
const PRODUCED_OFFSET: usize = 0;
const CONSUMED_OFFSET: usize = 128;
const TAKEN_OFFSET: usize = 132;

const HEADER_BYTES: u32 = 8;
const RECORD_ALIGN: u32 = 16;
/// The seals of the memory (fcntl(2), F_ADD_SEALS): its size cannot change under a mapping.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
/// The length of a record that only fills the ring up to its end.
const SKIP: u32 = u32::MAX;

const _: () = assert!(RING_BYTES.is_power_of_two() && RING_BYTES.is_multiple_of(RECORD_ALIGN));
const _: () = assert!(4 * record_bytes(MAX_FRAME_BYTES as u32) < RING_BYTES);

const fn record_bytes(frame_bytes: u32) -> u32 {
    (HEADER_BYTES + frame_bytes).next_multiple_of(RECORD_ALIGN)
}

/// The memory of a link, mapped.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    base: NonNull<u8>,
}

// SAFETY: this value owns the mapping; its contents are only accessed through atomics and raw copies, which
// allow concurrent writes by another process.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// New memory, all zero, and its file, which another process can map.
    pub(crate) fn create(name: &str) -> rustix::io::Result<(Self, OwnedFd)> {
        let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, MEMORY_BYTES as u64)?;
        fcntl_add_seals(&file, SEALS)?;
        Ok((Self::map(&file)?, file))
    }

    /// Maps a file of at least [`MEMORY_BYTES`] that is sealed against shrinking.
    pub(crate) fn map(file: impl AsFd) -> rustix::io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base =
            unsafe { mmap(std::ptr::null_mut(), MEMORY_BYTES, protection, MapFlags::SHARED, file, 0) }?;
        NonNull::new(base.cast()).map(|base| Self { base }).ok_or(rustix::io::Errno::NOMEM)
    }

    fn index(&self, ring: usize, offset: usize) -> &AtomicU32 {
        let at = self.base.as_ptr().wrapping_add((ring & 1) * INDICES_BYTES + offset);
        // SAFETY: inside the first page of the mapping, aligned to 4, alive as long as `self`, and this
        // process only accesses it by atomic operations; another process can only change its value.
        unsafe { AtomicU32::from_ptr(at.cast()) }
    }

    /// The first word of a record; `index` is a multiple of [`RECORD_ALIGN`].
    fn header(&self, ring: usize, index: u32) -> &AtomicU64 {
        let at = self.place(ring, index & !(RECORD_ALIGN - 1));
        // SAFETY: inside a ring of the mapping, aligned to 16, alive as long as `self`. The indices keep the
        // frames that this process writes apart from the headers that it reads; another process can only
        // change the value.
        unsafe { AtomicU64::from_ptr(at.cast()) }
    }

    /// The address of byte `index` of a ring.
    fn place(&self, ring: usize, index: u32) -> *mut u8 {
        let offset = PAGE_BYTES + (ring & 1) * RING_BYTES as usize + (index & (RING_BYTES - 1)) as usize;
        self.base.as_ptr().wrapping_add(offset)
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length; no reference into it is left.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), MEMORY_BYTES) };
    }
}

/// The peer wrote an invalid index or length; the session must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Invalid;

impl From<OutsideRing> for Invalid {
    fn from(_: OutsideRing) -> Self {
        Self
    }
}

/// The producer's end of a ring.
#[derive(Debug)]
pub(crate) struct RingSender {
    memory: Arc<SharedMemory>,
    ring: usize,
    cursor: ProducerCursor,
    /// Frames appended, modulo 2^32.
    put: u32,
}

impl RingSender {
    pub(crate) fn new(memory: Arc<SharedMemory>, ring: usize) -> Self {
        Self { memory, ring, cursor: ProducerCursor::new(RING_BYTES), put: 0 }
    }

    /// Appends a frame of at most [`MAX_FRAME_BYTES`]; the peer sees it after [`RingSender::publish`].
    /// Returns whether there was space.
    pub(crate) fn put(&mut self, frame: &[u8]) -> Result<bool, Invalid> {
        let frame_bytes = u32::try_from(frame.len()).unwrap_or(RING_BYTES);
        if frame.len() > MAX_FRAME_BYTES {
            return Ok(false);
        }
        let wanted = record_bytes(frame_bytes);
        let to_end = RING_BYTES - self.cursor.place();
        let skipped = if wanted > to_end { to_end } else { 0 };
        if !self.has_room(skipped + wanted)? {
            return Ok(false);
        }
        if skipped > 0 {
            self.write_header(SKIP);
            self.cursor.advance_by(skipped);
        }
        self.write_header(frame_bytes);
        let to = self.memory.place(self.ring, self.cursor.position().wrapping_add(HEADER_BYTES));
        // SAFETY: the record is inside the ring (it does not cross its end), and its bytes belong to this
        // side until they are published; the frame is private memory of this process.
        unsafe { to.copy_from_nonoverlapping(frame.as_ptr(), frame.len()) };
        self.cursor.advance_by(wanted);
        self.put = self.put.wrapping_add(1);
        Ok(true)
    }

    /// Whether the longest frame finds room, also if it does not fit before the end of the ring.
    pub(crate) fn takes_longest(&mut self) -> Result<bool, Invalid> {
        self.has_room(2 * record_bytes(MAX_FRAME_BYTES as u32))
    }

    fn has_room(&mut self, wanted: u32) -> Result<bool, Invalid> {
        if self.cursor.room() < wanted {
            self.cursor.look(self.memory.index(self.ring, CONSUMED_OFFSET))?;
        }
        Ok(self.cursor.room() >= wanted)
    }

    fn write_header(&mut self, length: u32) {
        // Published by the index, later.
        self.memory.header(self.ring, self.cursor.position()).store(u64::from(length), Ordering::Relaxed);
    }

    /// Makes every appended frame visible to the peer.
    pub(crate) fn publish(&self) {
        self.cursor.publish(self.memory.index(self.ring, PRODUCED_OFFSET));
    }

    /// Frames that the peer has not received, bounded by what the ring can hold.
    pub(crate) fn untaken(&self) -> u64 {
        let taken = self.memory.index(self.ring, TAKEN_OFFSET).load(Ordering::Acquire);
        // More than fit into the ring cannot be right.
        u64::from(self.put.wrapping_sub(taken).min(self.put).min(RING_BYTES / record_bytes(1)))
    }
}

/// The positions of the frames of a burst.
pub(crate) type Places = ArrayVec<Range<usize>, BURST_FRAMES>;

/// The consumer's end of a ring.
#[derive(Debug)]
pub(crate) struct RingReceiver {
    memory: Arc<SharedMemory>,
    ring: usize,
    cursor: ConsumerCursor,
    taken: u32,
}

impl RingReceiver {
    pub(crate) fn new(memory: Arc<SharedMemory>, ring: usize) -> Self {
        Self { memory, ring, cursor: ConsumerCursor::new(RING_BYTES), taken: 0 }
    }

    /// Copies up to `limit` frames to `frames`, one after the other, which must hold [`BURST_FRAMES`] of the
    /// longest, and frees their records in the ring. Returns their positions, and whether invalid data
    /// follows them.
    pub(crate) fn take_burst(&mut self, frames: &mut [u8], limit: usize) -> (Places, Result<(), Invalid>) {
        let (mut places, mut start, mut result) = (Places::new(), 0, Ok(()));
        while places.len() < limit.min(BURST_FRAMES) {
            match self.take(&mut frames[start..]) {
                Ok(Some(bytes)) => {
                    places.push(start..start + bytes);
                    start += bytes;
                }
                Ok(None) => break,
                Err(invalid) => {
                    result = Err(invalid);
                    break;
                }
            }
        }
        if !places.is_empty() {
            self.publish();
        }
        (places, result)
    }

    /// Copies the next frame to the beginning of `to`, which must hold [`MAX_FRAME_BYTES`]; returns its
    /// length, or `None` if there is none.
    pub(crate) fn take(&mut self, to: &mut [u8]) -> Result<Option<usize>, Invalid> {
        if self.cursor.published() == 0 && !self.refresh()? {
            return Ok(None);
        }
        let mut length = self.length()?;
        if length == SKIP {
            // Once: otherwise a peer could keep this side in a loop.
            self.skip()?;
            length = self.length()?;
        }
        let bytes = length as usize;
        if !(ETHERNET_BYTES..=MAX_FRAME_BYTES).contains(&bytes) {
            return Err(Invalid);
        }
        let record = record_bytes(length);
        if record > self.cursor.published().min(self.cursor.to_end()) {
            return Err(Invalid);
        }
        let to = to.get_mut(..bytes).ok_or(Invalid)?;
        let frame = self.memory.place(self.ring, self.cursor.position()).wrapping_add(HEADER_BYTES as usize);
        // SAFETY: the record was checked to lie in the ring, and `to` is private memory of this process. The
        // peer may change the bytes meanwhile; the copy is the frame, and nothing was decided from the
        // original.
        unsafe { to.as_mut_ptr().copy_from_nonoverlapping(frame, to.len()) };
        self.cursor.advance_by(record);
        self.taken = self.taken.wrapping_add(1);
        Ok(Some(bytes))
    }

    /// The length of the next record. The peer may change the word at any time.
    fn length(&self) -> Result<u32, Invalid> {
        let header = self.memory.header(self.ring, self.cursor.position()).load(Ordering::Relaxed);
        u32::try_from(header).map_err(|_| Invalid)
    }

    /// Continues at the beginning of the ring, where the record is that was published with the skipped one.
    fn skip(&mut self) -> Result<(), Invalid> {
        let to_end = self.cursor.to_end();
        if to_end >= self.cursor.published() {
            return Err(Invalid);
        }
        self.cursor.advance_by(to_end);
        Ok(())
    }

    /// Reads the peer's index; returns whether there is a record.
    fn refresh(&mut self) -> Result<bool, Invalid> {
        self.cursor.look(self.memory.index(self.ring, PRODUCED_OFFSET))?;
        // Records begin and end at multiples of it, and so does this side. After an error the session ends,
        // and the index that the cursor has taken over is not used.
        if !self.cursor.published().is_multiple_of(RECORD_ALIGN) {
            return Err(Invalid);
        }
        Ok(self.cursor.published() > 0)
    }

    /// Gives the space of the received records back to the peer.
    pub(crate) fn publish(&self) {
        self.memory.index(self.ring, TAKEN_OFFSET).store(self.taken, Ordering::Relaxed);
        self.cursor.publish(self.memory.index(self.ring, CONSUMED_OFFSET));
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! Writes what an invalid peer could write.

    use super::*;

    impl SharedMemory {
        pub(in crate::link) fn set_produced(&self, ring: usize, value: u32) {
            self.index(ring, PRODUCED_OFFSET).store(value, Ordering::Release);
        }

        pub(in crate::link) fn set_consumed(&self, ring: usize, value: u32) {
            self.index(ring, CONSUMED_OFFSET).store(value, Ordering::Release);
        }

        pub(in crate::link) fn set_taken(&self, ring: usize, value: u32) {
            self.index(ring, TAKEN_OFFSET).store(value, Ordering::Release);
        }

        pub(in crate::link) fn set_header(&self, ring: usize, index: u32, value: u64) {
            self.header(ring, index).store(value, Ordering::Relaxed);
        }
    }
}
