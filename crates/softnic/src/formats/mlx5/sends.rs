//! mlx5's send queues, as the device sees them: in the client's memory.
//!
//! A send queue is a cyclic array of blocks of 64 bytes. A request (WQE) takes one block or more, can go on
//! at the start of the array, and is made of units of 16 bytes: a control segment with the operation and the
//! number of units, an Ethernet segment with the offloads and the headers that are in the request, and
//! segments of data, by address or in the request. The doorbell record counts the posted blocks modulo 2^16
//! (rdma-core providers/mlx5/{mlx5dv.h,qp.c}; ConnectX Programmer's Reference Manual, "Send WQE
//! Construction"). The write to the doorbell page that follows is not seen: the engine polls the records.
//!
//! This module reads units and counts blocks; what they mean is `engine::transmit::mlx5`'s. No count of the
//! client's is believed: a request ends with the posted blocks, and an index wraps by the size of the array.

use crate::formats::ClientRing;
use std::sync::atomic::Ordering;

use super::{ClientMemory, Doorbell, INDEX_MASK};
use crate::errno::{EINVAL, Verb};

/// `MLX5_SEND_WQE_BB`.
const BLOCK_BYTES: usize = 64;
/// The most blocks of a queue (`max_send_wqebb`): half of the range of the doorbell's counter, so that a
/// counter that went backwards is not taken for one that ran ahead.
pub(crate) const MAX_BLOCKS: u32 = 1 << 15;
/// A unit, by which the control segment counts.
pub(crate) const UNIT_BYTES: usize = 16;
const UNITS_PER_BLOCK: u32 = (BLOCK_BYTES / UNIT_BYTES) as u32;
/// The bits of a request's length in units, and the longest one: 1024 bytes, as the device states
/// (`max_sq_desc_sz`).
const UNITS_MASK: u32 = 0x7f;
pub(crate) const MAX_UNITS: u32 = 64;

/// The operations that a raw packet queue pair has (mlx5dv.h, `MLX5_OPCODE_SEND` and `_TSO`).
pub(crate) const SEND: u8 = 0x0a;
pub(crate) const SEGMENTS: u8 = 0x0e;

/// The layout of a send queue to be made: fields of `struct mlx5_ib_create_qp`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendLayout {
    pub(crate) buffer: u64,
    pub(crate) doorbell: u64,
    /// A power of two.
    pub(crate) blocks: u32,
    /// The number by which completions name the queue pair.
    pub(crate) user_index: u32,
}

/// A send queue.
#[derive(Debug)]
pub(crate) struct SendRing {
    buffer: ClientMemory,
    doorbell: Doorbell,
    blocks: u32,
    user_index: u32,
    /// Consumed blocks, and the posted ones by the last look; both count modulo 2^32.
    next: u32,
    posted: u32,
    /// The doorbell counted more blocks than the queue has.
    is_corrupt: bool,
}

/// The next request: its control segment, and the units behind it.
pub(crate) struct Request<'r> {
    pub(crate) operation: u8,
    pub(crate) is_signaled: bool,
    /// Blocks to be consumed with it.
    pub(crate) blocks: u32,
    /// The length makes no sense: it is none, or ends behind what is posted.
    pub(crate) is_malformed: bool,
    pub(crate) units: Units<'r>,
}

/// The units of a request that were not taken yet.
pub(crate) struct Units<'r> {
    ring: &'r SendRing,
    /// The place of the next request, in bytes; it wraps.
    place: usize,
    left: u32,
}

impl SendRing {
    pub(crate) fn new(layout: &SendLayout) -> Verb<Self> {
        let SendLayout { buffer, doorbell, blocks, user_index } = *layout;
        if !blocks.is_power_of_two() || blocks > MAX_BLOCKS {
            return Err(EINVAL);
        }
        Ok(Self {
            buffer: ClientMemory::pin(buffer, blocks as usize * BLOCK_BYTES, BLOCK_BYTES)?,
            doorbell: Doorbell::pin(doorbell)?,
            blocks,
            user_index: user_index & INDEX_MASK,
            next: 0,
            posted: 0,
            is_corrupt: false,
        })
    }

    fn published(&self) -> u32 {
        self.posted.wrapping_sub(self.next)
    }

    /// Whether there is a posted request; looks at the doorbell record only if none is known. A queue whose
    /// record makes no sense has one more, which is malformed.
    #[inline]
    pub(crate) fn has_next(&mut self) -> bool {
        if self.published() == 0 && !self.is_corrupt {
            let counter = self.doorbell.load(Doorbell::SECOND) as u16;
            let ahead = u32::from(counter.wrapping_sub(self.next as u16));
            self.is_corrupt = ahead > self.blocks;
            if !self.is_corrupt {
                self.posted = self.next.wrapping_add(ahead);
            }
        }
        self.published() > 0 || self.is_corrupt
    }

    /// The next request; there must be one.
    pub(crate) fn request(&self) -> Request<'_> {
        /// The words of the control segment: opcode; units; when to complete, of which 2 and 3 are always
        /// (`MLX5_WQE_CTRL_CQ_UPDATE`).
        const OPERATION: usize = 3;
        const COUNT: usize = 7;
        const FLAGS: usize = 11;
        const ALWAYS: u8 = 2 << 2;
        let place = self.next as usize * BLOCK_BYTES;
        let control = self.unit(place);
        let units = u32::from(control[COUNT]) & UNITS_MASK;
        let blocks = units.div_ceil(UNITS_PER_BLOCK);
        let is_malformed = self.is_corrupt || !(1..=MAX_UNITS).contains(&units) || blocks > self.published();
        Request {
            operation: control[OPERATION],
            is_signaled: control[FLAGS] & ALWAYS != 0,
            blocks: if is_malformed { self.published() } else { blocks },
            is_malformed,
            units: Units {
                ring: self,
                place: place.wrapping_add(UNIT_BYTES),
                left: if is_malformed { 0 } else { units - 1 },
            },
        }
    }

    /// The unit at a place, which wraps.
    #[inline]
    fn unit(&self, place: usize) -> [u8; UNIT_BYTES] {
        let place = place & (self.blocks as usize * BLOCK_BYTES - 1);
        let mut unit = [0; UNIT_BYTES];
        for (half, at) in unit.chunks_exact_mut(size_of::<u64>()).zip([place, place + size_of::<u64>()]) {
            half.copy_from_slice(&self.buffer.long(at).load(Ordering::Relaxed).to_ne_bytes());
        }
        unit
    }

    /// The id from which the completion of the next request is made: the queue's index and the request's
    /// counter.
    #[inline]
    pub(crate) fn id(&self) -> u64 {
        u64::from(self.user_index) << u16::BITS | u64::from(self.next as u16)
    }

    #[inline]
    pub(crate) fn advance_by(&mut self, blocks: u32) {
        self.next = self.next.wrapping_add(blocks);
    }
}

impl ClientRing for SendRing {
    fn take(&mut self) -> Option<u64> {
        if !self.has_next() || self.published() == 0 {
            return None;
        }
        let (id, blocks) = (self.id(), self.request().blocks);
        self.advance_by(blocks);
        Some(id)
    }

    fn reset(&mut self) {
        (self.next, self.posted, self.is_corrupt) = (0, 0, false);
    }
}

impl Units<'_> {
    /// Fills `to`, of which the first bytes are in `unit` from `start` on, and the others in the units that
    /// follow it. `None` if the request ends before.
    pub(crate) fn fill(&mut self, unit: &[u8; UNIT_BYTES], start: usize, to: &mut [u8]) -> Option<()> {
        let first = unit.get(start..).unwrap_or_default();
        let (head, tail) = to.split_at_mut(first.len().min(to.len()));
        head.copy_from_slice(&first[..head.len()]);
        for part in tail.chunks_mut(UNIT_BYTES) {
            let unit = self.next()?;
            part.copy_from_slice(&unit[..part.len()]);
        }
        Some(())
    }
}

impl Iterator for Units<'_> {
    type Item = [u8; UNIT_BYTES];

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let unit = self.ring.unit(self.place);
        self.place = self.place.wrapping_add(UNIT_BYTES);
        Some(unit)
    }
}
