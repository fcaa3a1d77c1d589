//! A reusable chain of receive work requests, and how frames become one.
//!
//! Owned by a [`ReceiveQueue`](crate::ReceiveQueue) or a [`RawQueuePair`](crate::RawQueuePair); filled anew for each
//! call of the provider. Never allocates after its creation.

use std::ffi::c_int;
use std::ptr::{self, NonNull};

use ibverbs_sys::{ibv_recv_wr, ibv_sge};

use crate::frame::Slot;
use crate::{Frame, FramePool};

/// How many receives one call of the provider takes.
pub(crate) const CHAIN: usize = 64;

/// Receive work requests, each with one scatter entry. The parts point at each other, so they stay behind raw
/// pointers: no Rust reference to one is ever formed while the provider may follow those links.
pub(crate) struct ReceiveChain {
    requests: NonNull<ibv_recv_wr>,
    entries: NonNull<ibv_sge>,
    slots: Box<[Slot; CHAIN]>,
}

/// What became of a chain.
struct Posted {
    accepted: usize,
    /// Stop here: the queue is full or refuses, or a frame was of another pool.
    stop: bool,
}

impl ReceiveChain {
    pub(crate) fn new() -> Self {
        let requests: Box<[ibv_recv_wr; CHAIN]> = Box::new([ibv_recv_wr::default(); CHAIN]);
        let entries: Box<[ibv_sge; CHAIN]> = Box::new([ibv_sge::default(); CHAIN]);
        Self {
            requests: NonNull::from(Box::leak(requests)).cast(),
            entries: NonNull::from(Box::leak(entries)).cast(),
            slots: Box::new([Slot { index: 0, wr_id: 0, address: 0 }; CHAIN]),
        }
    }

    /// Posts `frames` from the end through `call`, which hands a chain to the provider. Accepted frames leave the
    /// vector; the others stay, in order. Returns how many were accepted.
    #[inline]
    pub(crate) fn post(
        &mut self,
        pool: &mut FramePool,
        frames: &mut Vec<Frame>,
        mut call: impl FnMut(*mut ibv_recv_wr, &mut *mut ibv_recv_wr) -> c_int,
    ) -> usize {
        let mut total = 0;
        while !frames.is_empty() {
            let start = frames.len().saturating_sub(CHAIN);
            let Posted { accepted, stop } = self.post_some(pool, &frames[start..], &mut call);
            frames.drain(start..start + accepted);
            total += accepted;
            if stop {
                break;
            }
        }
        total
    }

    #[inline]
    fn post_some(
        &mut self,
        pool: &mut FramePool,
        frames: &[Frame],
        call: &mut impl FnMut(*mut ibv_recv_wr, &mut *mut ibv_recv_wr) -> c_int,
    ) -> Posted {
        let filled = self.fill(pool, frames);
        if filled == 0 {
            return Posted { accepted: 0, stop: true };
        }
        let head = self.requests.as_ptr();
        let mut bad = ptr::null_mut();
        let code = call(head, &mut bad);
        let accepted = if code == 0 { filled } else { self.accepted_before(bad, filled) };
        for &slot in &self.slots[..accepted] {
            pool.posted(slot);
        }
        Posted { accepted, stop: accepted < frames.len() }
    }

    /// Writes one request per frame, linked and ended; stops before a frame of another pool.
    #[inline]
    fn fill(&mut self, pool: &FramePool, frames: &[Frame]) -> usize {
        let (length, lkey) = (pool.frame_bytes(), pool.lkey());
        let (requests, entries) = (self.requests.as_ptr(), self.entries.as_ptr());
        let mut filled = 0;
        for (place, frame) in self.slots.iter_mut().zip(frames) {
            let Some(slot) = pool.slot(frame) else { break };
            *place = slot;
            let entry = entries.wrapping_add(filled);
            // SAFETY: `filled` < CHAIN, the length of both arrays, which this chain owns; the provider is done with
            // what an earlier call wrote (work requests are consumed by the call, ibv_post_wq_recv(3)).
            unsafe { entry.write(ibv_sge { addr: slot.address, length, lkey }) };
            let request = ibv_recv_wr {
                wr_id: slot.wr_id,
                next: requests.wrapping_add(filled + 1),
                sg_list: entry,
                num_sge: 1,
            };
            // SAFETY: as for the entry.
            unsafe { requests.wrapping_add(filled).write(request) };
            filled += 1;
        }
        if filled > 0 {
            let last = requests.wrapping_add(filled - 1);
            // SAFETY: as above; ends the chain before what earlier calls left behind it.
            unsafe { (*last).next = ptr::null_mut() };
        }
        filled
    }

    /// How many requests precede the one the provider refused. If it names none of them, nobody knows which
    /// frames it has: all count as posted, which loses frames but never hands out one the device may write to.
    #[cold]
    fn accepted_before(&self, bad: *mut ibv_recv_wr, filled: usize) -> usize {
        let distance = bad.addr().wrapping_sub(self.requests.as_ptr().addr());
        let (index, rest) = (distance / size_of::<ibv_recv_wr>(), distance % size_of::<ibv_recv_wr>());
        if index < filled && rest == 0 {
            return index;
        }
        tracing::error!("a provider refused receives without saying which; their frames are lost");
        filled
    }
}

impl Drop for ReceiveChain {
    fn drop(&mut self) {
        // SAFETY: leaked from a box of this type in `new`, taken back once.
        drop(unsafe { Box::from_raw(self.requests.as_ptr().cast::<[ibv_recv_wr; CHAIN]>()) });
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(self.entries.as_ptr().cast::<[ibv_sge; CHAIN]>()) });
    }
}

// SAFETY: the arrays belong to this chain alone.
unsafe impl Send for ReceiveChain {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refused_request_says_how_many_were_accepted() {
        let chain = ReceiveChain::new();
        let at = |index: usize| chain.requests.as_ptr().wrapping_add(index);
        assert_eq!(chain.accepted_before(at(0), 8), 0);
        assert_eq!(chain.accepted_before(at(7), 8), 7);
    }

    #[test]
    fn a_refusal_that_names_no_request_gives_no_frame_back() {
        let chain = ReceiveChain::new();
        let beyond = chain.requests.as_ptr().wrapping_add(8);
        let inside = chain.requests.as_ptr().wrapping_byte_add(8);
        for bad in [ptr::null_mut(), beyond, inside] {
            assert_eq!(chain.accepted_before(bad, 8), 8);
        }
    }
}
