//! A reusable chain of receive work requests, and how frames become one.
//!
//! Owned by a [`ReceiveQueue`](crate::ReceiveQueue) or a [`RawQueuePair`](crate::RawQueuePair); filled anew for each
//! call of the provider. Never allocates after its creation.

use std::ffi::c_int;
use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};

use ibverbs_sys::{ibv_recv_wr, ibv_sge};

use crate::error::errno_of;
use crate::{Frame, FramePool};

/// How many receives one call of the provider takes.
pub(crate) const CHAIN: usize = 64;

/// Receive work requests, each with one scatter entry. The parts point at each other, so they stay behind raw
/// pointers: no Rust reference to one is ever formed while the provider may follow those links.
pub(crate) struct ReceiveChain {
    requests: NonNull<ibv_recv_wr>,
    entries: NonNull<ibv_sge>,
    /// Of the last refusal; 0 before the first.
    errno: c_int,
    /// A frame of another pool was met, and logged.
    met_foreign: bool,
}

impl ReceiveChain {
    pub(crate) fn new() -> Self {
        let requests: Box<[ibv_recv_wr; CHAIN]> = Box::new([ibv_recv_wr::default(); CHAIN]);
        let entries: Box<[ibv_sge; CHAIN]> = Box::new([ibv_sge::default(); CHAIN]);
        Self {
            requests: NonNull::from(Box::leak(requests)).cast(),
            entries: NonNull::from(Box::leak(entries)).cast(),
            errno: 0,
            met_foreign: false,
        }
    }

    /// Posts `frames` from the end through `call`, which hands a chain to the provider. Accepted frames leave the
    /// vector; the others stay, in order, those of other pools among them. Returns how many were accepted. `lkey` is that
    /// of the pool's memory.
    #[inline]
    pub(crate) fn post(
        &mut self,
        (pool, lkey): (&mut FramePool, u32),
        frames: &mut Vec<Frame>,
        mut call: impl FnMut(*mut ibv_recv_wr, &mut *mut ibv_recv_wr) -> c_int,
    ) -> usize {
        let (mut total, mut end) = (0, frames.len());
        while end > 0 {
            let start = end.saturating_sub(CHAIN);
            let filled = self.fill(pool, lkey, &frames[start..end]);
            let accepted = self.hand_over(filled, &mut call);
            if filled == end - start {
                frames.drain(start..start + accepted).for_each(|frame| {
                    pool.posted(&frame);
                });
            } else {
                self.take_out(pool, frames, start..end, accepted);
            }
            total += accepted;
            if accepted < filled {
                break;
            }
            end = start;
        }
        total
    }

    /// Refuses in this crate's own name: nothing was given to the provider.
    #[cold]
    pub(crate) fn refuse(&mut self, errno: c_int) {
        self.errno = errno;
    }

    /// Why receives were refused last.
    pub(crate) fn last_refusal(&self) -> Option<io::Error> {
        (self.errno != 0).then(|| io::Error::from_raw_os_error(self.errno))
    }

    /// Calls the provider with the first `filled` requests; how many of them it has now.
    #[inline]
    fn hand_over(
        &mut self,
        filled: usize,
        call: &mut impl FnMut(*mut ibv_recv_wr, &mut *mut ibv_recv_wr) -> c_int,
    ) -> usize {
        if filled == 0 {
            return 0;
        }
        let head = self.requests.as_ptr();
        let mut bad = ptr::null_mut();
        match call(head, &mut bad) {
            0 => filled,
            code => {
                self.errno = errno_of(code);
                taken_before(head, filled, bad)
            }
        }
    }

    /// Writes one request per frame of `pool`, linked and ended; passes over those of other pools.
    #[inline]
    fn fill(&mut self, pool: &FramePool, lkey: u32, frames: &[Frame]) -> usize {
        let length = pool.frame_bytes();
        let (requests, entries) = (self.requests.as_ptr(), self.entries.as_ptr());
        let mut filled = 0;
        for slot in frames.iter().take(CHAIN).filter_map(|frame| pool.slot(frame)) {
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

    /// Removes the accepted frames, the first of the pool's own in `range`, from among frames of other pools.
    #[cold]
    fn take_out(
        &mut self,
        pool: &mut FramePool,
        frames: &mut Vec<Frame>,
        range: Range<usize>,
        accepted: usize,
    ) {
        if !self.met_foreign {
            self.met_foreign = true;
            tracing::error!("frames were to be posted that are not of the pool given with them; they stay");
        }
        self.errno = libc::EINVAL;
        let (mut at, mut left) = (range.start, accepted);
        while left > 0 && at < frames.len() {
            if pool.posted(&frames[at]) {
                drop(frames.remove(at));
                left -= 1;
            } else {
                at += 1;
            }
        }
    }
}

/// How many of the `count` requests from `first` on a provider has, after it has refused `bad`: the one rule for sends
/// and receives. If it names none of them, it is unknown what was posted, and all count as posted: frames may be lost, but
/// none is handed out that the device may still read or write.
#[cold]
pub(crate) fn taken_before<R>(first: *const R, count: usize, bad: *const R) -> usize {
    let distance = bad.addr().wrapping_sub(first.addr());
    let (index, rest) = (distance / size_of::<R>(), distance % size_of::<R>());
    if index < count && rest == 0 {
        return index;
    }
    tracing::error!(count, "a provider refused requests without saying which; their frames count as posted");
    count
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
        let requests = [ibv_recv_wr::default(); 8];
        assert_eq!(taken_before(&requests[0], 8, &requests[0]), 0);
        assert_eq!(taken_before(&requests[0], 8, &requests[7]), 7);
        assert_eq!(taken_before(&requests[0], 1, &requests[0]), 0);
    }

    #[test]
    fn a_refusal_that_names_no_request_gives_no_frame_back() {
        let requests = [ibv_recv_wr::default(); 9];
        let first = &raw const requests[0];
        for bad in [ptr::null(), first.wrapping_add(8), first.wrapping_byte_add(8), first.wrapping_sub(1)] {
            assert_eq!(taken_before(first, 8, bad), 8);
            assert_eq!(taken_before(first, 1, bad), 1);
        }
    }
}
