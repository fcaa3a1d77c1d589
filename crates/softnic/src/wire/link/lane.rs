//! One direction of a link: a ring of records in memory that both processes map.
//!
//! The other process may be dead, broken or hostile. So nothing is read twice, no index or length is used before it is
//! found to lie in the ring, frames are copied out before anybody looks at them, and the memory is sealed so that it
//! cannot shrink under a reader. A side that lies ends the session; it can harm nothing but its own frames.
//!
//! A record is 8 bytes (length, zero) and the frame, rounded up to 16. One that would cross the end of the ring starts
//! at its beginning again, behind a record of length [`SKIP`]. Indices count bytes and wrap at 2^32.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use arrayvec::ArrayVec;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::limits::ETHERNET_BYTES;
use crate::wire::{BURST_FRAMES, MAX_FRAME_BYTES};

/// Bytes of one direction's ring: some 400 of the longest frames, 50000 of the shortest.
pub(super) const RING_BYTES: u32 = 4 << 20;
/// What both directions take in memory: their indices in a page, then their rings.
pub(super) const MEMORY_BYTES: usize = PAGE_BYTES + 2 * RING_BYTES as usize;

const PAGE_BYTES: usize = 4096;
/// Indices of one direction: each alone in the pair of lines that x86 prefetches together.
const INDICES_BYTES: usize = 256;
const CONSUMED_OFFSET: usize = 128;
const TAKEN_OFFSET: usize = 132;

const HEADER_BYTES: u32 = 8;
const RECORD_ALIGN: u32 = 16;
/// What the memory is sealed against (fcntl(2), F_ADD_SEALS): nobody can take it from under a mapping.
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
pub(super) struct SharedMemory {
    base: NonNull<u8>,
}

// SAFETY: the mapping belongs to this value; what lies in it is only touched through atomics and copies, which expect
// that somebody else writes to it at any time.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// New memory, all zero, and the file it is of: what another process can map.
    pub(super) fn create(name: &str) -> rustix::io::Result<(Self, OwnedFd)> {
        let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, MEMORY_BYTES as u64)?;
        fcntl_add_seals(&file, SEALS)?;
        Ok((Self::map(&file)?, file))
    }

    /// Maps a file of at least [`MEMORY_BYTES`] that is sealed against shrinking.
    pub(super) fn map(file: impl AsFd) -> rustix::io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at a place of the kernel's choice.
        let base =
            unsafe { mmap(std::ptr::null_mut(), MEMORY_BYTES, protection, MapFlags::SHARED, file, 0) }?;
        NonNull::new(base.cast()).map(|base| Self { base }).ok_or(rustix::io::Errno::NOMEM)
    }

    fn index(&self, lane: usize, offset: usize) -> &AtomicU32 {
        let at = self.base.as_ptr().wrapping_add((lane & 1) * INDICES_BYTES + offset);
        // SAFETY: inside the first page of the mapping, aligned to 4, alive as long as `self`, and no side ever touches
        // it but by atomic operations; another process that does can only change its value.
        unsafe { AtomicU32::from_ptr(at.cast()) }
    }

    /// The word that a record begins with; `index` is a multiple of [`RECORD_ALIGN`].
    fn header(&self, lane: usize, index: u32) -> &AtomicU64 {
        let at = self.place(lane, index & !(RECORD_ALIGN - 1));
        // SAFETY: inside a ring of the mapping, aligned to 16, alive as long as `self`. This process writes frames elsewhere
        // than where it looks for headers at the same time, see the indices; another one can only change the value.
        unsafe { AtomicU64::from_ptr(at.cast()) }
    }

    /// The place of a ring that `index` counts to.
    fn place(&self, lane: usize, index: u32) -> *mut u8 {
        let offset = PAGE_BYTES + (lane & 1) * RING_BYTES as usize + (index & (RING_BYTES - 1)) as usize;
        self.base.as_ptr().wrapping_add(offset)
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length; nobody holds a reference into it any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), MEMORY_BYTES) };
    }
}

/// What a peer has written makes no sense: nothing it says is believed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lie;

/// The end of a lane that frames are put into.
#[derive(Debug)]
pub(super) struct LaneSender {
    memory: Arc<SharedMemory>,
    lane: usize,
    next: u32,
    consumed: u32,
    /// Frames put in, modulo 2^32.
    put: u32,
}

impl LaneSender {
    pub(super) fn new(memory: Arc<SharedMemory>, lane: usize) -> Self {
        Self { memory, lane, next: 0, consumed: 0, put: 0 }
    }

    /// Puts a frame of at most [`MAX_FRAME_BYTES`] in; the peer sees it after [`LaneSender::publish`]. Answers whether
    /// there was room.
    pub(super) fn put(&mut self, frame: &[u8]) -> Result<bool, Lie> {
        let frame_bytes = u32::try_from(frame.len()).unwrap_or(RING_BYTES);
        if frame.len() > MAX_FRAME_BYTES {
            return Ok(false);
        }
        let wanted = record_bytes(frame_bytes);
        let to_end = RING_BYTES - (self.next & (RING_BYTES - 1));
        let skipped = if wanted > to_end { to_end } else { 0 };
        if !self.has_room(skipped + wanted)? {
            return Ok(false);
        }
        if skipped > 0 {
            self.write_header(SKIP);
            self.next = self.next.wrapping_add(skipped);
        }
        self.write_header(frame_bytes);
        let to = self.memory.place(self.lane, self.next.wrapping_add(HEADER_BYTES));
        // SAFETY: the record is inside the ring (it does not cross its end), and its bytes are this side's until they
        // are published; the frame is memory of this process's own.
        unsafe { to.copy_from_nonoverlapping(frame.as_ptr(), frame.len()) };
        self.next = self.next.wrapping_add(wanted);
        self.put = self.put.wrapping_add(1);
        Ok(true)
    }

    fn has_room(&mut self, wanted: u32) -> Result<bool, Lie> {
        let fits = |consumed: u32| self.next.wrapping_sub(consumed).saturating_add(wanted) <= RING_BYTES;
        if fits(self.consumed) {
            return Ok(true);
        }
        let consumed = self.memory.index(self.lane, CONSUMED_OFFSET).load(Ordering::Acquire);
        let advanced = consumed.wrapping_sub(self.consumed);
        if advanced > self.next.wrapping_sub(self.consumed) {
            return Err(Lie);
        }
        let fits = fits(consumed);
        self.consumed = consumed;
        Ok(fits)
    }

    fn write_header(&mut self, length: u32) {
        // Published by the index, later.
        self.memory.header(self.lane, self.next).store(u64::from(length), Ordering::Relaxed);
    }

    /// Shows every frame to the peer.
    pub(super) fn publish(&self) {
        self.memory.index(self.lane, 0).store(self.next, Ordering::Release);
    }

    /// Frames that were put in and that the peer has not taken, as far as it can be believed.
    pub(super) fn untaken(&self) -> u64 {
        let taken = self.memory.index(self.lane, TAKEN_OFFSET).load(Ordering::Acquire);
        // At most what fits: more can only be a lie.
        u64::from(self.put.wrapping_sub(taken).min(self.put).min(RING_BYTES / record_bytes(1)))
    }
}

/// Where the frames of a burst are.
pub(super) type Places = ArrayVec<Range<usize>, BURST_FRAMES>;

/// The end of a lane that frames are taken from.
#[derive(Debug)]
pub(super) struct LaneReceiver {
    memory: Arc<SharedMemory>,
    lane: usize,
    next: u32,
    produced: u32,
    taken: u32,
}

impl LaneReceiver {
    pub(super) fn new(memory: Arc<SharedMemory>, lane: usize) -> Self {
        Self { memory, lane, next: 0, produced: 0, taken: 0 }
    }

    /// Copies up to `room` frames to `frames`, one after the other, which must have room for [`BURST_FRAMES`] of the
    /// longest, and gives their places in the ring back. Answers where they are, and whether the peer lied behind them.
    pub(super) fn take_burst(&mut self, frames: &mut [u8], room: usize) -> (Places, Result<(), Lie>) {
        let (mut places, mut start, mut told) = (Places::new(), 0, Ok(()));
        while places.len() < room.min(BURST_FRAMES) {
            match self.take(&mut frames[start..]) {
                Ok(Some(bytes)) => {
                    places.push(start..start + bytes);
                    start += bytes;
                }
                Ok(None) => break,
                Err(lie) => {
                    told = Err(lie);
                    break;
                }
            }
        }
        if !places.is_empty() {
            self.publish();
        }
        (places, told)
    }

    /// Copies the next frame to the beginning of `to`, which must have room for [`MAX_FRAME_BYTES`]; answers its length,
    /// or `None` if there is none.
    pub(super) fn take(&mut self, to: &mut [u8]) -> Result<Option<usize>, Lie> {
        if self.next == self.produced && !self.refresh()? {
            return Ok(None);
        }
        let mut length = self.length()?;
        if length == SKIP {
            // Once: a peer that goes on skipping would keep this side from ever coming back.
            self.skip()?;
            length = self.length()?;
        }
        let bytes = length as usize;
        if !(ETHERNET_BYTES..=MAX_FRAME_BYTES).contains(&bytes) {
            return Err(Lie);
        }
        let record = record_bytes(length);
        if record > self.published().min(self.to_end()) {
            return Err(Lie);
        }
        let to = to.get_mut(..bytes).ok_or(Lie)?;
        let frame = self.memory.place(self.lane, self.next).wrapping_add(HEADER_BYTES as usize);
        // SAFETY: the record was found to lie in the ring, and `to` is memory of this process's own. The peer may
        // change the bytes meanwhile: whatever is copied is the frame, and nothing was decided by them before.
        unsafe { to.as_mut_ptr().copy_from_nonoverlapping(frame, to.len()) };
        self.next = self.next.wrapping_add(record);
        self.taken = self.taken.wrapping_add(1);
        Ok(Some(bytes))
    }

    /// The length of the next record. The word may change at any time; each call is a new look.
    fn length(&self) -> Result<u32, Lie> {
        let header = self.memory.header(self.lane, self.next).load(Ordering::Relaxed);
        u32::try_from(header).map_err(|_| Lie)
    }

    /// Goes on to the beginning of the ring, where the record stands that was published with the skipped one.
    fn skip(&mut self) -> Result<(), Lie> {
        if self.to_end() >= self.published() {
            return Err(Lie);
        }
        self.next = self.next.wrapping_add(self.to_end());
        Ok(())
    }

    /// Bytes up to the end of the ring.
    fn to_end(&self) -> u32 {
        RING_BYTES - (self.next & (RING_BYTES - 1))
    }

    /// Bytes that are known to be published and not taken.
    fn published(&self) -> u32 {
        self.produced.wrapping_sub(self.next)
    }

    /// Looks at the peer's index; answers whether there is something to take.
    fn refresh(&mut self) -> Result<bool, Lie> {
        let produced = self.memory.index(self.lane, 0).load(Ordering::Acquire);
        let published = produced.wrapping_sub(self.next);
        if published > RING_BYTES || !produced.is_multiple_of(RECORD_ALIGN) {
            return Err(Lie);
        }
        self.produced = produced;
        Ok(published > 0)
    }

    /// Gives the room of what was taken back to the peer.
    pub(super) fn publish(&self) {
        self.memory.index(self.lane, TAKEN_OFFSET).store(self.taken, Ordering::Relaxed);
        self.memory.index(self.lane, CONSUMED_OFFSET).store(self.next, Ordering::Release);
    }
}

#[cfg(test)]
pub(super) mod testing {
    //! What a lying peer would do.

    use super::*;

    impl SharedMemory {
        pub(in crate::wire::link) fn lie_produced(&self, lane: usize, value: u32) {
            self.index(lane, 0).store(value, Ordering::Release);
        }

        pub(in crate::wire::link) fn lie_consumed(&self, lane: usize, value: u32) {
            self.index(lane, CONSUMED_OFFSET).store(value, Ordering::Release);
        }

        pub(in crate::wire::link) fn lie_taken(&self, lane: usize, value: u32) {
            self.index(lane, TAKEN_OFFSET).store(value, Ordering::Release);
        }

        pub(in crate::wire::link) fn lie_header(&self, lane: usize, index: u32, value: u64) {
            self.header(lane, index).store(value, Ordering::Relaxed);
        }
    }
}
