//! Rings of descriptors, and the four ways to use one: each direction from either side.
//!
//! A ring belongs to one direction. Its memory, in bytes: a magic number (0), flags (4), `head` (6), `tail`
//! (64), and from 128 on the descriptors of 16 bytes: flags (0), region (2), length (4), offset in the region
//! (8), metadata (12). In both directions the client writes `head` and the server writes `tail`:
//! - client to server: the client fills descriptors at `head`, the server reads them at `tail`;
//! - server to client: the client posts empty buffers at `head`, the server fills them at `tail`.
//!
//! The other process may be dead, broken or hostile. So:
//! - The own index is private; the copy in shared memory is only written.
//! - Each word of the other side is read once, checked, and used from the copy. The indices run freely modulo
//!   2^16 and a ring has at most 2^15 descriptors, so `head - tail` is the number of descriptors between them
//!   for any values, and more than the ring holds is a [`Violation`].
//! - Every copy of a frame is checked against the mapping by [`Memory`].
//!
//! The cursors of the crate `ring-cursor` do not fit: a sender reads the buffers ahead of its index before it
//! knows whether the frame fits, an index has 16 bits, and a client's bound is what it has posted.
//!
//! A peer that breaks a rule can therefore damage its own frames only. Why the order is right: an index is
//! stored with release order after the descriptors and frames before it, and loaded with acquire order by the
//! other side.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering, fence};

use super::message::AddRing;
use crate::Memory;

/// The magic number in front of each ring.
pub(super) const COOKIE: u32 = 0x3e3_1f20;
/// The largest ring, as binary logarithm, so that 16-bit indices tell a full ring from an empty one.
pub const LOG2_RING_SIZE_MAX: u8 = 14;
/// The smallest buffer that a client may post. A frame is spread over as many buffers as it needs, so tiny
/// ones cost time.
pub const BUFFER_BYTES_MIN: u32 = 64;
/// The most descriptors of one frame: as many as 64 KiB need in the smallest buffers.
pub const CHAIN_MAX: u16 = (0x1_0000 / BUFFER_BYTES_MIN) as u16;

const COOKIE_OFFSET: usize = 0;
const FLAGS_OFFSET: usize = 4;
const HEAD_OFFSET: usize = 6;
const TAIL_OFFSET: usize = 64;
const DESCRIPTORS_OFFSET: usize = 128;
const DESCRIPTOR_BYTES: usize = 16;

/// In the flags of a ring: the reader polls and wants no interrupts.
const MASK_INTERRUPT: u16 = 1;
/// In the flags of a descriptor: the frame continues in the next one.
const NEXT: u16 = 1;

/// The bytes of a ring of `1 << log2_size` descriptors, which follow each other in the memory of this crate's
/// client.
#[must_use]
pub const fn ring_bytes(log2_size: u8) -> usize {
    DESCRIPTORS_OFFSET + (DESCRIPTOR_BYTES << log2_size)
}

/// A rule of the protocol that the other process has broken. The connection must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// An index of a ring is further ahead than the ring is long.
    #[error("an index is outside of the ring")]
    Index,
    /// A descriptor names a region that does not exist.
    #[error("a descriptor names an unknown region")]
    Region,
    /// A buffer is not inside its region.
    #[error("a buffer is outside of its region")]
    Offset,
    /// A buffer is shorter than [`BUFFER_BYTES_MIN`], or a piece of a frame is empty.
    #[error("a length is too small")]
    Length,
    /// The last descriptor of a frame announces another one, or a frame has more than [`CHAIN_MAX`]
    /// descriptors.
    #[error("a chain of descriptors has no end or is too long")]
    Chain,
}

impl Violation {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Index, Self::Region, Self::Offset, Self::Length, Self::Chain];
}

/// The regions of a connection.
#[derive(Clone, Debug)]
pub(super) struct Regions(pub(super) Arc<[Memory]>);

impl Regions {
    fn get(&self, region: u16) -> Result<&Memory, Violation> {
        self.0.get(usize::from(region)).ok_or(Violation::Region)
    }
}

/// A descriptor, copied out of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Descriptor {
    flags: u16,
    region: u16,
    length: u32,
    offset: u32,
}

impl Descriptor {
    fn first_word(self) -> u64 {
        let ([a, b], [c, d]) = (self.flags.to_ne_bytes(), self.region.to_ne_bytes());
        let [e, f, g, h] = self.length.to_ne_bytes();
        u64::from_ne_bytes([a, b, c, d, e, f, g, h])
    }

    fn second_word(self) -> u64 {
        let [a, b, c, d] = self.offset.to_ne_bytes();
        u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0])
    }

    fn of(first: u64, second: u64) -> Self {
        let [a, b, c, d, e, f, g, h] = first.to_ne_bytes();
        let [i, j, k, l, ..] = second.to_ne_bytes();
        Self {
            flags: u16::from_ne_bytes([a, b]),
            region: u16::from_ne_bytes([c, d]),
            length: u32::from_ne_bytes([e, f, g, h]),
            offset: u32::from_ne_bytes([i, j, k, l]),
        }
    }
}

/// A ring in shared memory. `new` has checked that all of it is inside its region, so the words below exist;
/// where the type system cannot know that, a missing word is treated as a violation.
#[derive(Debug)]
struct Ring {
    regions: Regions,
    region: u16,
    offset: usize,
    /// The number of descriptors.
    size: u16,
}

impl Ring {
    fn new(regions: Regions, place: &AddRing) -> Result<Self, Violation> {
        if place.log2_size > LOG2_RING_SIZE_MAX {
            return Err(Violation::Index);
        }
        let offset = place.offset as usize;
        let end = offset.checked_add(ring_bytes(place.log2_size)).ok_or(Violation::Offset)?;
        let aligned = offset.is_multiple_of(DESCRIPTOR_BYTES);
        if end > regions.get(place.region)?.bytes() || !aligned {
            return Err(Violation::Offset);
        }
        Ok(Self { regions, region: place.region, offset, size: 1 << place.log2_size })
    }

    #[inline]
    fn memory(&self) -> Result<&Memory, Violation> {
        self.regions.get(self.region)
    }

    #[inline]
    fn word(&self, at: usize) -> Result<&AtomicU16, Violation> {
        self.memory()?.u16_at(self.offset + at).ok_or(Violation::Offset)
    }

    fn has_cookie(&self) -> bool {
        let cookie = self.memory().ok().and_then(|memory| memory.u32_at(self.offset + COOKIE_OFFSET));
        cookie.is_some_and(|cookie| cookie.load(Ordering::Relaxed) == COOKIE)
    }

    fn write_cookie(&self) {
        if let Some(cookie) = self.memory().ok().and_then(|memory| memory.u32_at(self.offset + COOKIE_OFFSET))
        {
            cookie.store(COOKIE, Ordering::Relaxed);
        }
    }

    #[inline]
    fn load(&self, at: usize) -> Result<u16, Violation> {
        Ok(self.word(at)?.load(Ordering::Acquire))
    }

    #[inline]
    fn store(&self, at: usize, value: u16) {
        if let Ok(word) = self.word(at) {
            word.store(value, Ordering::Release);
        }
    }

    /// Whether the reader wants an interrupt. To be called after an index was stored: a reader clears the
    /// mask and then looks at the index, with a fence between them as here, so at least one of the two sees
    /// what the other wrote.
    #[inline]
    fn wants_interrupt(&self) -> bool {
        fence(Ordering::SeqCst);
        self.word(FLAGS_OFFSET).is_ok_and(|flags| flags.load(Ordering::Relaxed) & MASK_INTERRUPT == 0)
    }

    fn set_interrupt_mask(&self, masked: bool) {
        if let Ok(flags) = self.word(FLAGS_OFFSET) {
            flags.store(if masked { MASK_INTERRUPT } else { 0 }, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    #[inline]
    fn slot(&self, index: u16) -> usize {
        self.offset + DESCRIPTORS_OFFSET + DESCRIPTOR_BYTES * usize::from(index & (self.size - 1))
    }

    /// The only read of this descriptor.
    #[inline]
    fn descriptor(&self, index: u16) -> Result<Descriptor, Violation> {
        let (memory, slot) = (self.memory()?, self.slot(index));
        let first = memory.u64_at(slot).ok_or(Violation::Offset)?.load(Ordering::Relaxed);
        let second = memory.u64_at(slot + 8).ok_or(Violation::Offset)?.load(Ordering::Relaxed);
        Ok(Descriptor::of(first, second))
    }

    /// Writes flags, region and length; the offset stays.
    #[inline]
    fn write_first_word(&self, index: u16, descriptor: Descriptor) -> Result<(), Violation> {
        let word = self.memory()?.u64_at(self.slot(index)).ok_or(Violation::Offset)?;
        word.store(descriptor.first_word(), Ordering::Relaxed);
        Ok(())
    }

    fn write_descriptor(&self, index: u16, descriptor: Descriptor) -> Result<(), Violation> {
        self.write_first_word(index, descriptor)?;
        let word = self.memory()?.u64_at(self.slot(index) + 8).ok_or(Violation::Offset)?;
        word.store(descriptor.second_word(), Ordering::Relaxed);
        Ok(())
    }
}

/// The result of putting a frame into the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The frame is in the ring; the other side sees it after `publish`.
    Done,
    /// The ring has no room for it now.
    Full,
    /// The frame does not fit into an empty ring.
    TooLong,
}

/// The result of `take`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakenFrame {
    /// Nothing.
    Empty,
    /// A frame of so many bytes, at the beginning of the buffer.
    Frame(usize),
    /// A frame of so many bytes, longer than the buffer; it was skipped.
    TooLong(usize),
}

/// The number of descriptors from `own` to `other`, the index of the other side.
#[inline]
fn distance(other: u16, own: u16, size: u16) -> Result<u16, Violation> {
    let distance = other.wrapping_sub(own);
    if distance > size { Err(Violation::Index) } else { Ok(distance) }
}

/// Reads one frame from the descriptors that begin at `start`, of which `filled` are filled. `place` returns
/// where the buffer of a descriptor is, after checking it. Returns the number of descriptors used.
#[inline]
fn read_chain(
    ring: &Ring,
    start: u16,
    filled: u16,
    to: &mut [u8],
    place: impl Fn(u16, Descriptor) -> Result<(u16, usize), Violation>,
) -> Result<(u16, TakenFrame), Violation> {
    let (mut used, mut total, mut copied) = (0u16, 0usize, 0usize);
    loop {
        if used == filled.min(CHAIN_MAX) {
            return Err(Violation::Chain);
        }
        let index = start.wrapping_add(used);
        let descriptor = ring.descriptor(index)?;
        let (region, offset) = place(index, descriptor)?;
        let length = descriptor.length as usize;
        if length == 0 {
            return Err(Violation::Length);
        }
        let memory = ring.regions.get(region)?;
        if offset > memory.bytes() || length > memory.bytes() - offset {
            return Err(Violation::Offset);
        }
        if let Some(to) = to.get_mut(copied..copied + length) {
            if !memory.read(offset, to) {
                return Err(Violation::Offset);
            }
            copied += length;
        }
        // At most 2^10 lengths below 2^32: no overflow.
        total += length;
        used += 1;
        if descriptor.flags & NEXT == 0 {
            break;
        }
    }
    Ok((used, if total == copied { TakenFrame::Frame(total) } else { TakenFrame::TooLong(total) }))
}

/// The server's side of a ring to the client.
#[derive(Debug)]
pub struct ServerSender {
    ring: Ring,
    tail: u16,
    head: u16,
    published: u16,
}

impl ServerSender {
    pub(super) fn new(regions: Regions, place: &AddRing) -> Result<Self, Violation> {
        let ring = Ring::new(regions, place)?;
        ring.store(TAIL_OFFSET, 0);
        Ok(Self { ring, tail: 0, head: 0, published: 0 })
    }

    pub(super) fn has_cookie(&self) -> bool {
        self.ring.has_cookie()
    }

    /// The number of descriptors.
    #[must_use]
    pub fn size(&self) -> u16 {
        self.ring.size
    }

    /// Puts a frame into the next buffers that the client has posted; the client sees it after
    /// [`ServerSender::publish`].
    ///
    /// # Errors
    /// The client broke a rule; its connection must end.
    #[inline]
    pub fn put(&mut self, frame: &[u8]) -> Result<Put, Violation> {
        let (mut slot, mut rest) = (self.tail, frame);
        loop {
            if slot == self.head {
                self.head = self.ring.load(HEAD_OFFSET)?;
                let posted = distance(self.head, self.tail, self.ring.size)?;
                let used = slot.wrapping_sub(self.tail);
                if used == self.ring.size {
                    return Ok(Put::TooLong);
                }
                if used >= posted {
                    // A head that went back is as good as none that advanced.
                    self.head = slot;
                    return Ok(Put::Full);
                }
            }
            let mut descriptor = self.ring.descriptor(slot)?;
            if descriptor.length < BUFFER_BYTES_MIN {
                return Err(Violation::Length);
            }
            let (now, later) = rest.split_at(rest.len().min(descriptor.length as usize));
            let (region, offset) = (self.ring.regions.get(descriptor.region)?, descriptor.offset as usize);
            if offset + descriptor.length as usize > region.bytes() || !region.write(offset, now) {
                return Err(Violation::Offset);
            }
            descriptor.length = now.len() as u32;
            descriptor.flags = if later.is_empty() { 0 } else { NEXT };
            self.ring.write_first_word(slot, descriptor)?;
            slot = slot.wrapping_add(1);
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        self.tail = slot;
        Ok(Put::Done)
    }

    /// Makes every frame since the last call visible to the client, with one store. Returns whether the
    /// client waits for an interrupt.
    #[inline]
    #[must_use]
    pub fn publish(&mut self) -> bool {
        if self.published == self.tail {
            return false;
        }
        self.published = self.tail;
        self.ring.store(TAIL_OFFSET, self.tail);
        self.ring.wants_interrupt()
    }
}

/// The server's side of a ring to the server.
#[derive(Debug)]
pub struct ServerReceiver {
    ring: Ring,
    tail: u16,
    head: u16,
}

impl ServerReceiver {
    pub(super) fn new(regions: Regions, place: &AddRing) -> Result<Self, Violation> {
        let ring = Ring::new(regions, place)?;
        ring.store(TAIL_OFFSET, 0);
        // The server polls.
        ring.set_interrupt_mask(true);
        Ok(Self { ring, tail: 0, head: 0 })
    }

    pub(super) fn has_cookie(&self) -> bool {
        self.ring.has_cookie()
    }

    /// Copies the next frame to the beginning of `to`. Its descriptors go back to the client with
    /// [`ServerReceiver::publish`].
    ///
    /// # Errors
    /// The client broke a rule; its connection must end.
    #[inline]
    pub fn take(&mut self, to: &mut [u8]) -> Result<TakenFrame, Violation> {
        if self.head == self.tail {
            self.head = self.ring.load(HEAD_OFFSET)?;
            if distance(self.head, self.tail, self.ring.size)? == 0 {
                return Ok(TakenFrame::Empty);
            }
        }
        let filled = self.head.wrapping_sub(self.tail);
        let place = |_, descriptor: Descriptor| Ok((descriptor.region, descriptor.offset as usize));
        let (used, taken) = read_chain(&self.ring, self.tail, filled, to, place)?;
        self.tail = self.tail.wrapping_add(used);
        Ok(taken)
    }

    /// Counts the descriptors of taken frames, modulo 2^16.
    #[inline]
    #[must_use]
    pub fn position(&self) -> u16 {
        self.tail
    }

    /// Gives the descriptors of taken frames back to the client.
    #[inline]
    pub fn publish(&mut self) {
        self.ring.store(TAIL_OFFSET, self.tail);
    }
}

/// The buffers of one ring: one after the other in a region, one for each descriptor. The client uses these
/// places and never those in shared memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffers {
    pub(super) region: u16,
    pub(super) offset: u32,
    pub(super) buffer_bytes: u32,
}

impl Buffers {
    #[inline]
    fn place(self, index: u16, size: u16) -> u32 {
        self.offset + u32::from(index & (size - 1)) * self.buffer_bytes
    }
}

/// The client's side of a ring to the server.
#[derive(Debug)]
pub struct ClientSender {
    ring: Ring,
    buffers: Buffers,
    head: u16,
    tail: u16,
}

impl ClientSender {
    pub(super) fn new(regions: Regions, place: &AddRing, buffers: Buffers) -> Result<Self, Violation> {
        let ring = Ring::new(regions, place)?;
        ring.write_cookie();
        Ok(Self { ring, buffers, head: 0, tail: 0 })
    }

    /// Puts a frame into the ring; the server sees it after [`ClientSender::publish`].
    ///
    /// # Errors
    /// The server broke a rule; the connection must end.
    pub fn put(&mut self, frame: &[u8]) -> Result<Put, Violation> {
        let size = self.ring.size;
        let chunk = self.buffers.buffer_bytes as usize;
        let wanted = frame.len().div_ceil(chunk).max(1);
        if wanted > usize::from(size) || frame.is_empty() {
            return Ok(Put::TooLong);
        }
        if usize::from(size - distance(self.head, self.tail, size)?) < wanted {
            self.tail = self.ring.load(TAIL_OFFSET)?;
            if usize::from(size - distance(self.head, self.tail, size)?) < wanted {
                return Ok(Put::Full);
            }
        }
        let mut rest = frame;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(chunk));
            let offset = self.buffers.place(self.head, size);
            if !self.ring.regions.get(self.buffers.region)?.write(offset as usize, now) {
                return Err(Violation::Offset);
            }
            let flags = if later.is_empty() { 0 } else { NEXT };
            let (region, length) = (self.buffers.region, now.len() as u32);
            self.ring.write_descriptor(self.head, Descriptor { flags, region, length, offset })?;
            self.head = self.head.wrapping_add(1);
            rest = later;
        }
        Ok(Put::Done)
    }

    /// Makes the frames visible to the server. Returns whether the server waits for an interrupt.
    #[must_use]
    pub fn publish(&mut self) -> bool {
        self.ring.store(HEAD_OFFSET, self.head);
        self.ring.wants_interrupt()
    }
}

/// The client's side of a ring to the client.
#[derive(Debug)]
pub struct ClientReceiver {
    ring: Ring,
    buffers: Buffers,
    /// Up to here frames were taken.
    taken: u16,
    /// Up to here buffers are posted.
    head: u16,
    tail: u16,
}

impl ClientReceiver {
    pub(super) fn new(regions: Regions, place: &AddRing, buffers: Buffers) -> Result<Self, Violation> {
        let ring = Ring::new(regions, place)?;
        ring.write_cookie();
        ring.set_interrupt_mask(true);
        Ok(Self { ring, buffers, taken: 0, head: 0, tail: 0 })
    }

    /// Posts every buffer that is free. The first call, after the connection is established, opens the ring.
    ///
    /// # Errors
    /// Does not happen with a ring that was created whole.
    pub fn publish(&mut self) -> Result<(), Violation> {
        let size = self.ring.size;
        let (region, length) = (self.buffers.region, self.buffers.buffer_bytes);
        while self.head.wrapping_sub(self.taken) < size {
            let offset = self.buffers.place(self.head, size);
            self.ring.write_descriptor(self.head, Descriptor { flags: 0, region, length, offset })?;
            self.head = self.head.wrapping_add(1);
        }
        self.ring.store(HEAD_OFFSET, self.head);
        Ok(())
    }

    /// Copies the next frame to the beginning of `to`. Its buffers are posted again by
    /// [`ClientReceiver::publish`].
    ///
    /// # Errors
    /// The server broke a rule; the connection must end.
    pub fn take(&mut self, to: &mut [u8]) -> Result<TakenFrame, Violation> {
        if self.tail == self.taken && !self.refresh()? {
            return Ok(TakenFrame::Empty);
        }
        let (size, buffers) = (self.ring.size, self.buffers);
        let place = |index, descriptor: Descriptor| {
            if descriptor.length > buffers.buffer_bytes {
                return Err(Violation::Offset);
            }
            Ok((buffers.region, buffers.place(index, size) as usize))
        };
        let filled = self.tail.wrapping_sub(self.taken);
        let (used, taken) = read_chain(&self.ring, self.taken, filled, to, place)?;
        self.taken = self.taken.wrapping_add(used);
        Ok(taken)
    }

    fn refresh(&mut self) -> Result<bool, Violation> {
        let tail = self.ring.load(TAIL_OFFSET)?;
        let posted = self.head.wrapping_sub(self.taken);
        let filled = distance(tail, self.taken, posted)?;
        self.tail = tail;
        Ok(filled > 0)
    }

    /// Asks for an interrupt at the next frame. Returns whether there is already one, so that nobody must
    /// wait.
    ///
    /// # Errors
    /// The server broke a rule; the connection must end.
    pub fn arm(&mut self) -> Result<bool, Violation> {
        self.ring.set_interrupt_mask(false);
        Ok(self.tail != self.taken || self.refresh()?)
    }

    /// Ends the request of [`ClientReceiver::arm`].
    pub fn disarm(&self) {
        self.ring.set_interrupt_mask(true);
    }
}

#[cfg(test)]
mod tests;
