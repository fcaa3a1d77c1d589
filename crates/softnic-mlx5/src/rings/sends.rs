//! mlx5's send queues, as the device sees them: in the client's memory.
//!
//! A send queue is a cyclic array of blocks of 64 bytes. A request (WQE) takes one block or more, can go on
//! at the start of the array, and is made of units of 16 bytes: a control segment with the operation and the
//! number of units, an Ethernet segment with the offloads and the headers that are in the request, and
//! segments of data, by address or in the request. The doorbell record counts the posted blocks modulo 2^16
//! (rdma-core providers/mlx5/{mlx5dv.h,qp.c}; ConnectX Programmer's Reference Manual, "Send WQE
//! Construction"). The write to the doorbell page that follows is not seen: the engine polls the records.
//!
//! No count of the client's is believed: a request ends with the posted blocks, and an index wraps by the
//! size of the array. Each word of a request that decides something is read once.

use std::sync::atomic::Ordering;

use softnic::errno::{EINVAL, Verb};
use softnic::formats::{Offloads, PostedFormat, SendFormat, SendParts, SendRequest};
use softnic::formats::{Status, WorkOpcode};

use super::{ClientMemory, Doorbell, INDEX_MASK};

/// `MLX5_SEND_WQE_BB`.
const BLOCK_BYTES: usize = 64;
/// The most blocks of a queue (`max_send_wqebb`): half of the range of the doorbell's counter, so that a
/// counter that went backwards is not taken for one that ran ahead.
pub(crate) const MAX_BLOCKS: u32 = 1 << 15;
/// A unit, by which the control segment counts.
const UNIT_BYTES: usize = 16;
const UNITS_PER_BLOCK: u32 = (BLOCK_BYTES / UNIT_BYTES) as u32;
/// The bits of a request's length in units, and the longest one: 1024 bytes, as the device states
/// (`max_sq_desc_sz`).
const UNITS_MASK: u32 = 0x7f;
const MAX_UNITS: u32 = 64;
/// `MLX5_INLINE_SEG` in the length of a segment. It is also how many bytes a segment of length 0 has; libmlx5
/// leaves entries without bytes out.
const FULL_BYTES: u32 = 1 << 31;

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
    /// The request that was read last.
    read: Request,
}

/// A request: its control and Ethernet segments, and where the units behind them are.
#[derive(Clone, Copy, Debug, Default)]
struct Request {
    /// Blocks to be consumed with it.
    blocks: u32,
    /// The unit of the Ethernet segment, in which the headers begin.
    ethernet: [u8; UNIT_BYTES],
    header_bytes: usize,
    /// The place of the units behind the Ethernet segment, in bytes; it wraps.
    place: usize,
    /// The number of these units.
    units: u32,
}

/// Where the headers begin in the unit of the Ethernet segment.
const HEADERS_OFFSET: usize = 14;

/// A data segment.
enum Data {
    /// This many bytes stand behind the length, and in the units that follow.
    Inline(usize),
    Address {
        key: u32,
        address: u64,
        bytes: u32,
    },
}

impl Data {
    /// Where the bytes of an inline segment begin.
    const INLINE: usize = 4;

    fn of(unit: &[u8; UNIT_BYTES]) -> Self {
        let [b0, b1, b2, b3, k0, k1, k2, k3, address @ ..] = *unit;
        let bytes = u32::from_be_bytes([b0, b1, b2, b3]);
        if bytes & FULL_BYTES != 0 {
            return Self::Inline((bytes & !FULL_BYTES) as usize);
        }
        Self::Address {
            key: u32::from_be_bytes([k0, k1, k2, k3]),
            address: u64::from_be_bytes(address),
            bytes: if bytes == 0 { FULL_BYTES } else { bytes },
        }
    }
}

/// The units of a request that were not taken yet.
struct Units<'r> {
    ring: &'r SendRing,
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
            read: Request::default(),
        })
    }

    fn published(&self) -> u32 {
        self.posted.wrapping_sub(self.next)
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
    fn id(&self) -> u64 {
        u64::from(self.user_index) << u16::BITS | u64::from(self.next as u16)
    }
}

impl PostedFormat for SendRing {
    fn take(&mut self) -> Option<u64> {
        if !self.has_next() || self.published() == 0 {
            return None;
        }
        let id = self.read_next().id;
        self.advance();
        Some(id)
    }

    /// The client sets the doorbell record to 0 before it leaves RESET.
    fn reset(&mut self) {
        (self.next, self.posted, self.is_corrupt) = (0, 0, false);
    }
}

impl SendFormat for SendRing {
    /// Looks at the doorbell record only if no request is known. A queue whose record makes no sense has one
    /// more, which is malformed.
    fn has_next(&mut self) -> bool {
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

    fn read_next(&mut self) -> SendRequest {
        /// The words of the control segment: opcode; units; when to complete, of which 2 and 3 are always
        /// (`MLX5_WQE_CTRL_CQ_UPDATE`).
        const OPERATION: usize = 3;
        const COUNT: usize = 7;
        const FLAGS: usize = 11;
        const ALWAYS: u8 = 2 << 2;
        /// `MLX5_ETH_WQE_L3_CSUM` and `_L4_CSUM`, which libmlx5 always sets together.
        const CHECKSUMS: u8 = 3 << 6;
        let place = self.next as usize * BLOCK_BYTES;
        let control = self.unit(place);
        let units = u32::from(control[COUNT]) & UNITS_MASK;
        let blocks = units.div_ceil(UNITS_PER_BLOCK);
        // The length makes no sense: it is none, or ends behind what is posted.
        let is_malformed = self.is_corrupt || !(1..=MAX_UNITS).contains(&units) || blocks > self.published();
        let opcode = match control[OPERATION] {
            _ if is_malformed => None,
            SEND => Some(WorkOpcode::Send),
            SEGMENTS => Some(WorkOpcode::Segments),
            _ => None,
        };
        self.read = Request {
            blocks: if is_malformed { self.published() } else { blocks },
            place: place.wrapping_add(2 * UNIT_BYTES),
            units: units.saturating_sub(2),
            ..Request::default()
        };
        let mut offloads = Err(Status::LocalOperation);
        if opcode.is_some() && units >= 2 {
            let unit = self.unit(place.wrapping_add(UNIT_BYTES));
            let header_bytes = usize::from(u16::from_be_bytes([unit[12], unit[13]]));
            (self.read.ethernet, self.read.header_bytes) = (unit, header_bytes);
            offloads = Ok(Offloads {
                wants_checksums: unit[4] & CHECKSUMS != 0,
                segment_bytes: usize::from(u16::from_be_bytes([unit[6], unit[7]])),
            });
        }
        SendRequest {
            id: self.id(),
            opcode: opcode.unwrap_or(WorkOpcode::Send),
            is_signaled: control[FLAGS] & ALWAYS != 0,
            offloads,
        }
    }

    fn parts(&self, to: &mut dyn SendParts) -> Result<(), Status> {
        let Request { ethernet, header_bytes, place, units, .. } = &self.read;
        let mut units = Units { ring: self, place: *place, left: *units };
        to.inline(*header_bytes, &mut |room| units.fill(ethernet, HEADERS_OFFSET, room))?;
        while let Some(unit) = units.next() {
            match Data::of(&unit) {
                Data::Inline(bytes) => {
                    to.inline(bytes, &mut |room| units.fill(&unit, Data::INLINE, room))?;
                }
                Data::Address { key, address, bytes } => to.memory(key, address, bytes)?,
            }
        }
        Ok(())
    }

    fn advance(&mut self) {
        self.next = self.next.wrapping_add(self.read.blocks);
    }
}

impl Units<'_> {
    /// Fills `to`, of which the first bytes are in `unit` from `start` on, and the others in the units that
    /// follow it.
    ///
    /// # Errors
    /// The request ends before.
    fn fill(&mut self, unit: &[u8; UNIT_BYTES], start: usize, to: &mut [u8]) -> Result<(), Status> {
        let first = unit.get(start..).unwrap_or_default();
        let (head, tail) = to.split_at_mut(first.len().min(to.len()));
        head.copy_from_slice(&first[..head.len()]);
        for part in tail.chunks_mut(UNIT_BYTES) {
            let unit = self.next().ok_or(Status::LocalOperation)?;
            part.copy_from_slice(&unit[..part.len()]);
        }
        Ok(())
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
