//! mlx5's receive queue and completion queue, as a driver sees them (rdma-core providers/mlx5/{mlx5dv.h,cq.c,
//! qp.c}; ConnectX Programmer's Reference Manual, "Work Queue Structure" and "Completion Queues").
//!
//! A receive request is a scatter entry of 16 bytes; a completion has 64 bytes, the last of which shows by
//! its owner bit in which turn of the ring it was written. Counters of both queues run modulo 2^32; their
//! doorbell records hold the lower bits, as those that the device reads.
//!
//! Nothing that the device writes is used as an index: receives complete in the order in which they were
//! posted, so the frame of a completion is known before it is read. The counter of the request in the
//! completion has to be that of this order; a completion that is of another request, or in a format that this
//! file does not know, ends the queue.

use super::memory::{DeviceMemory, DeviceRing};
use crate::{Arrival, CompletionStatus, FlowTag, Frame, FramePool, Polled, TakeReceives};

/// Bytes of a completion and of a request; those of other sizes are not for this file.
pub(crate) const CQE_BYTES: usize = 64;
pub(crate) const REQUEST_BYTES: usize = 16;
/// Bytes of a doorbell record.
pub(crate) const RECORD_BYTES: usize = 8;
/// Bytes of the registers by which a completion queue is armed, and the one for that (`MLX5_CQ_DOORBELL`).
pub(crate) const DOORBELL_BYTES: usize = 64;
const ARM_DOORBELL: usize = 0x20;

/// Bytes of a doorbell record: of a receive queue the number of posted requests, of a completion queue the
/// consumer's index and the word that arms it (`MLX5_RCV_DBR`, `MLX5_CQ_SET_CI`, `MLX5_CQ_ARM_DB`).
const POSTED: usize = 0;
const CONSUMED: usize = 0;
const ARMED: usize = 4;

/// Words of a completion (`struct mlx5_cqe64`), and of a failed one (`struct mlx5_err_cqe`).
const BYTE_COUNT: usize = 44;
const TIMESTAMP: usize = 48;
const SYNDROMES: usize = 52;
/// The tag of the flow, the request's counter, the signature, and the byte with opcode and owner.
const TAG_AND_OWNER: usize = 56;

/// The lower 24 bits of a word: an index of completions, or a flow tag.
const LOW_24: u32 = 0x00ff_ffff;

/// Completions that are looked at together; the next as many are fetched meanwhile.
const GROUP: u32 = 4;

/// Opcodes, and the bits of the byte beside the owner bit and that of a solicited event: where data is in
/// the completion itself, or it is a compressed one (`mlx5_get_cqe_format`).
const RESPONDER_SEND: u8 = 2;
const RESPONDER_ERROR: u8 = 14;
const INVALID: u8 = 15;
const FORMAT_BITS: u8 = 0x0c;

/// The last word of a completion.
#[derive(Clone, Copy)]
struct TagAndOwner(u64);

impl TagAndOwner {
    fn op_own(self) -> u8 {
        self.0 as u8
    }

    fn opcode(self) -> u8 {
        self.op_own() >> 4
    }

    /// The lower bits of the request's number.
    fn request(self) -> u16 {
        (self.0 >> 16) as u16
    }

    fn tag(self) -> FlowTag {
        FlowTag((self.0 >> 32) as u32 & LOW_24)
    }

    fn is_plain(self) -> bool {
        self.op_own() & (0xf0 | FORMAT_BITS) == RESPONDER_SEND << 4
    }
}

/// The scatter entry of a frame but for its address.
#[derive(Clone, Copy)]
pub(crate) struct EntryShape {
    pub(crate) bytes: u32,
    pub(crate) lkey: u32,
}

/// Memory of a receive queue with its completion queue.
pub(crate) struct QueueMemory<M: DeviceMemory> {
    pub(crate) completions: M::Ring<CQE_BYTES>,
    pub(crate) completion_record: M::Ring<RECORD_BYTES>,
    pub(crate) requests: M::Ring<REQUEST_BYTES>,
    pub(crate) request_record: M::Ring<RECORD_BYTES>,
    pub(crate) doorbell: M::Ring<DOORBELL_BYTES>,
}

/// The numbers of entries, powers of two, and the completion queue's number.
#[derive(Clone, Copy)]
pub(crate) struct QueueSizes {
    pub(crate) completions: u32,
    pub(crate) requests: u32,
    pub(crate) completion_queue: u32,
    /// Completions carry a time.
    pub(crate) timestamps: bool,
}

/// A receive queue with the completion queue of its receives, and of nothing else.
pub(crate) struct DirectRings<M: DeviceMemory> {
    memory: QueueMemory<M>,
    sizes: QueueSizes,
    /// Completions taken.
    consumed: u32,
    /// Requests posted, and those of them that completed.
    posted: u32,
    completed: u32,
    /// How often the completion queue was armed.
    arms: u32,
    /// The work request ids of the requests in the ring.
    wr_ids: Box<[u64]>,
    /// The last word of a completion that this file cannot read; nothing is taken after it.
    unreadable: Option<u64>,
}

impl<M: DeviceMemory> DirectRings<M> {
    /// Takes over queues that are empty and were not used yet.
    pub(crate) fn new(memory: QueueMemory<M>, sizes: QueueSizes) -> Self {
        Self {
            memory,
            sizes,
            consumed: 0,
            posted: 0,
            completed: 0,
            arms: 0,
            wr_ids: vec![0; sizes.requests as usize].into(),
            unreadable: None,
        }
    }

    /// Whether the queue ended at a completion that cannot be read.
    pub(crate) fn is_ended(&self) -> bool {
        self.unreadable.is_some()
    }

    /// Whether nothing was posted since the queue began.
    pub(crate) fn is_unused(&self) -> bool {
        self.posted == 0 && self.completed == 0
    }

    /// How many completions the queue holds.
    pub(crate) fn completion_entries(&self) -> usize {
        self.sizes.completions as usize
    }

    /// Passes at most `limit` completions to `taker`.
    #[inline(never)]
    pub(crate) fn poll(
        &mut self,
        pool: &mut FramePool,
        limit: usize,
        taker: &mut impl TakeReceives,
    ) -> Polled {
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        let mut taken = 0;
        let mut is_empty = self.is_ended();
        while taken < limit && !is_empty {
            let wanted = GROUP.min(limit - taken);
            let mut words = [TagAndOwner(0); GROUP as usize];
            let ready = self.look(&mut words, wanted);
            is_empty = ready < wanted;
            if ready == 0 {
                break;
            }
            for nth in 0..GROUP {
                self.memory.completions.prefetch(self.consumed.wrapping_add(GROUP + nth));
            }
            // The other words of a completion, and the packet, were written before its last word.
            self.memory.completions.acquire_from_device();
            for word in words.iter().take(ready as usize) {
                if !self.take(*word, pool, taker) {
                    is_empty = true;
                    break;
                }
                taken += 1;
            }
        }
        if taken > 0 {
            // The device may overwrite what was read.
            self.memory.completions.acquire_from_device();
            self.memory.completion_record.store_u32::<CONSUMED>(0, self.consumed & LOW_24);
        }
        Polled { completions: taken as usize, is_empty }
    }

    /// The last words of the next completions that are there, at most `wanted`; returns how many.
    #[inline]
    fn look(&self, words: &mut [TagAndOwner; GROUP as usize], wanted: u32) -> u32 {
        for (nth, word) in (0..wanted).zip(&mut *words) {
            let index = self.consumed.wrapping_add(nth);
            let found = TagAndOwner(self.memory.completions.load_u64::<TAG_AND_OWNER>(index));
            let turn = u8::from(index & self.sizes.completions != 0);
            if found.op_own() & 1 != turn || found.opcode() == INVALID {
                return nth;
            }
            *word = found;
        }
        wanted
    }

    /// Passes on the next completion, whose last word is `word`. False: it is none that this file can read.
    #[inline]
    fn take(&mut self, word: TagAndOwner, pool: &mut FramePool, taker: &mut impl TakeReceives) -> bool {
        let index = self.consumed;
        if !word.is_plain() || word.request() != self.completed as u16 {
            return self.take_other(word, pool, taker);
        }
        let bytes = self.memory.completions.load_u32::<BYTE_COUNT>(index);
        let timestamp = self.sizes.timestamps.then(|| self.memory.completions.load_u64::<TIMESTAMP>(index));
        let frame = self.next_frame(pool);
        if bytes <= pool.frame_bytes() {
            taker.packet(Arrival { bytes, tag: Some(word.tag()), timestamp }, frame);
        } else {
            taker.rejected(CompletionStatus::Success, frame);
        }
        true
    }

    /// Passes on a failure.
    #[cold]
    #[inline(never)]
    fn take_other(&mut self, word: TagAndOwner, pool: &mut FramePool, taker: &mut impl TakeReceives) -> bool {
        if word.opcode() != RESPONDER_ERROR || word.request() != self.completed as u16 {
            let (completion, expected) = (format!("{:#x}", word.0), self.completed as u16);
            tracing::error!(completion, expected, "a completion of an unknown format or another request");
            self.unreadable = Some(word.0);
            return false;
        }
        let syndromes = self.memory.completions.load_u32::<SYNDROMES>(self.consumed);
        let frame = self.next_frame(pool);
        taker.rejected(status_of(syndromes as u8), frame);
        true
    }

    /// Takes the frame of the oldest request back.
    #[inline]
    fn next_frame(&mut self, pool: &mut FramePool) -> Option<Frame> {
        let slot = (self.completed & (self.sizes.requests - 1)) as usize;
        self.consumed = self.consumed.wrapping_add(1);
        if self.completed == self.posted {
            // A completion of nothing: there is no frame for it.
            return None;
        }
        self.completed = self.completed.wrapping_add(1);
        self.wr_ids.get(slot).and_then(|wr_id| pool.reclaim_id(*wr_id))
    }

    /// Posts frames from the end of `frames` as far as there is room, and removes them; passes over those of
    /// other pools. Returns how many.
    #[inline(never)]
    pub(crate) fn post(&mut self, pool: &mut FramePool, shape: EntryShape, frames: &mut Vec<Frame>) -> usize {
        let room = self.sizes.requests.saturating_sub(self.posted.wrapping_sub(self.completed));
        let start = frames.len().saturating_sub(room as usize);
        let first = self.posted;
        let (requests, mask, wr_ids) = (&self.memory.requests, self.sizes.requests - 1, &mut *self.wr_ids);
        let counts = u64::from(shape.bytes) << 32 | u64::from(shape.lkey);
        let mut posted = first;
        pool.post_each(&frames[start..], |slot| {
            requests.store_u64::<0>(posted, counts);
            requests.store_u64::<8>(posted, slot.address);
            if let Some(wr_id) = wr_ids.get_mut((posted & mask) as usize) {
                *wr_id = slot.wr_id;
            }
            posted = posted.wrapping_add(1);
        });
        self.posted = posted;
        let count = posted.wrapping_sub(first) as usize;
        if count == 0 {
            return 0;
        }
        // The device reads the requests after the record.
        self.memory.requests.release_to_device();
        self.memory.request_record.store_u32::<POSTED>(0, self.posted & 0xffff);
        if count == frames.len() - start {
            frames.truncate(start);
        } else {
            remove_own(pool, frames, start);
        }
        count
    }

    /// Begins anew with a receive queue that was in RESET: nothing is posted, and the first request is at the
    /// start of the ring. The completion queue goes on.
    pub(crate) fn restart(&mut self) {
        (self.posted, self.completed) = (0, 0);
    }

    /// Arms the completion queue: the next completion raises an event. To be called once for each event, as
    /// libmlx5 counts events, modulo 4, in the word (`mlx5_cq_event`), and here the calls are counted.
    pub(crate) fn arm(&mut self) {
        let word = (self.arms & 3) << 28 | self.consumed & LOW_24;
        self.arms = self.arms.wrapping_add(1);
        self.memory.completion_record.store_u32::<ARMED>(0, word);
        self.memory.completion_record.flush_to_device();
        let bell = u64::from(word) << 32 | u64::from(self.sizes.completion_queue);
        self.memory.doorbell.store_u64::<ARM_DOORBELL>(0, bell);
        self.memory.doorbell.flush_to_device();
    }
}

/// Removes the frames of `pool` from `start` on, which were posted.
#[cold]
fn remove_own(pool: &FramePool, frames: &mut Vec<Frame>, start: usize) {
    let rest = frames.split_off(start);
    frames.extend(rest.into_iter().filter(|frame| !pool.owns(frame)));
}

/// The status for a syndrome of a failed receive (rdma-core providers/mlx5/cq.c, `mlx5_handle_error_cqe`).
fn status_of(syndrome: u8) -> CompletionStatus {
    use ibverbs_sys::ibv_wc_status as raw;
    let status = match syndrome {
        0x01 => raw::IBV_WC_LOC_LEN_ERR,
        0x02 => raw::IBV_WC_LOC_QP_OP_ERR,
        0x04 => raw::IBV_WC_LOC_PROT_ERR,
        0x05 => raw::IBV_WC_WR_FLUSH_ERR,
        0x06 => raw::IBV_WC_MW_BIND_ERR,
        0x10 => raw::IBV_WC_BAD_RESP_ERR,
        0x11 => raw::IBV_WC_LOC_ACCESS_ERR,
        0x12 => raw::IBV_WC_REM_INV_REQ_ERR,
        0x13 => raw::IBV_WC_REM_ACCESS_ERR,
        0x14 => raw::IBV_WC_REM_OP_ERR,
        0x15 => raw::IBV_WC_RETRY_EXC_ERR,
        0x16 => raw::IBV_WC_RNR_RETRY_EXC_ERR,
        0x22 => raw::IBV_WC_REM_ABORT_ERR,
        _ => raw::IBV_WC_GENERAL_ERR,
    };
    CompletionStatus::from(status)
}

#[cfg(test)]
mod tests;
