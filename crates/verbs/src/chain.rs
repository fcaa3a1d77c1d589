//! A reusable chain of receive work requests, and how frames become one.
//!
//! Owned by a [`ReceiveQueue`](crate::ReceiveQueue) or a [`RawQueuePair`](crate::RawQueuePair); filled anew
//! for each call of the provider. Never allocates after its creation.

use std::ffi::c_int;
use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};

use ibverbs_sys::{ibv_recv_wr, ibv_sge};

use crate::error::errno_of;
use crate::{Frame, FramePool};

/// How many receives one call of the provider takes.
pub(crate) const CHAIN: usize = 64;

/// A request and its one scatter entry, in a cache line.
#[repr(C, align(64))]
#[derive(Clone, Copy, Default)]
struct Receive {
    request: ibv_recv_wr,
    entry: ibv_sge,
}

/// The length and the key of the scatter entries for frames of one pool.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct EntryShape {
    length: u32,
    lkey: u32,
}

/// Receive work requests, each with one scatter entry. The parts point at each other, so they stay behind raw
/// pointers: no Rust reference to one is ever formed while the provider may follow those links.
///
/// Between two calls of the provider every request but the last links to the next one, and to its own entry,
/// so that a frame takes two words to write. Providers only read requests (ibv_post_wq_recv(3)).
pub(crate) struct ReceiveChain {
    receives: NonNull<Receive>,
    /// The shape of all entries: that of the frames of one pool.
    shape: EntryShape,
    /// The errno of the last refusal; 0 before the first.
    errno: c_int,
    /// A frame of another pool was met, and logged.
    met_foreign: bool,
}

impl ReceiveChain {
    pub(crate) fn new() -> Self {
        let receives: Box<[Receive; CHAIN]> = Box::new([Receive::default(); CHAIN]);
        let receives: NonNull<Receive> = NonNull::from(Box::leak(receives)).cast();
        for index in 0..CHAIN {
            let receive = receives.as_ptr().wrapping_add(index);
            // SAFETY: `index` < CHAIN, the length of the array, which was just made.
            unsafe { (*receive).request.next = link(receives, index) };
            // SAFETY: as above.
            let entry = unsafe { &raw mut (*receive).entry };
            // SAFETY: as above.
            unsafe { (*receive).request.sg_list = entry };
            // SAFETY: as above.
            unsafe { (*receive).request.num_sge = 1 };
        }
        Self { receives, shape: EntryShape::default(), errno: 0, met_foreign: false }
    }

    /// Posts `frames` from the end through `call`, which hands a chain to the provider. Accepted frames leave
    /// the vector; the others stay, in order, those of other pools among them. Returns how many were
    /// accepted. `lkey` is that of the pool's memory.
    #[inline]
    pub(crate) fn post(
        &mut self,
        pool: &mut FramePool,
        lkey: u32,
        frames: &mut Vec<Frame>,
        mut call: impl FnMut(*mut ibv_recv_wr, &mut *mut ibv_recv_wr) -> c_int,
    ) -> usize {
        let (mut total, mut end) = (0, frames.len());
        while end > 0 {
            let start = end.saturating_sub(CHAIN);
            let filled = self.fill(pool, lkey, &frames[start..end]);
            let accepted = self.hand_over(filled, &mut call);
            if accepted == end - start {
                frames.truncate(start);
            } else {
                self.take_out(pool, frames, start..end, filled, accepted);
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
        let head = self.receives.as_ptr();
        let last = head.wrapping_add(filled - 1);
        // SAFETY: `filled` <= CHAIN, the length of the array, which this chain owns.
        unsafe { (*last).request.next = ptr::null_mut() };
        let mut bad = ptr::null_mut();
        // A receive begins with its request.
        let code = call(head.cast(), &mut bad);
        // SAFETY: as above; the provider is done with the requests when the call returns
        // (ibv_post_wq_recv(3)).
        unsafe { (*last).request.next = link(self.receives, filled - 1) };
        match code {
            0 => filled,
            code => {
                self.errno = errno_of(code);
                taken_before(head.cast_const(), filled, bad.cast())
            }
        }
    }

    /// Writes the frames of `pool` into the first requests, and marks them as posted; passes over those of
    /// other pools. Returns how many there were.
    // By itself it has enough registers for all that the loop uses.
    #[inline(never)]
    fn fill(&mut self, pool: &mut FramePool, lkey: u32, frames: &[Frame]) -> usize {
        let shape = EntryShape { length: pool.frame_bytes(), lkey };
        if self.shape != shape {
            self.reshape(shape);
        }
        let (mut filled, mut receive) = (0, self.receives.as_ptr());
        pool.post_each(&frames[..frames.len().min(CHAIN)], |slot| {
            // SAFETY: `filled` < CHAIN, the length of the array, which this chain owns; the provider is done
            // with what an earlier call wrote (work requests are consumed by the call, ibv_post_wq_recv(3)).
            unsafe { (*receive).entry.addr = slot.address };
            // SAFETY: as above.
            unsafe { (*receive).request.wr_id = slot.wr_id };
            receive = receive.wrapping_add(1);
            filled += 1;
        });
        filled
    }

    /// Writes the length and the key of a pool's frames into all entries.
    #[cold]
    fn reshape(&mut self, shape: EntryShape) {
        let EntryShape { length, lkey } = shape;
        for index in 0..CHAIN {
            let receive = self.receives.as_ptr().wrapping_add(index);
            // SAFETY: `index` < CHAIN, the length of the array, which this chain owns, outside of any call.
            unsafe { (*receive).entry = ibv_sge { addr: 0, length, lkey } };
        }
        self.shape = shape;
    }

    /// Removes the accepted frames, the first of the pool's own in `range`; the others are not posted after
    /// all. `filled` of the range are the pool's.
    #[cold]
    fn take_out(
        &mut self,
        pool: &mut FramePool,
        frames: &mut Vec<Frame>,
        range: Range<usize>,
        filled: usize,
        accepted: usize,
    ) {
        if filled < range.len() {
            self.refuse_foreign();
        }
        let (mut at, mut end, mut left) = (range.start, range.end, accepted);
        while at < end {
            let is_own = pool.owns(&frames[at]);
            if is_own && left > 0 {
                drop(frames.remove(at));
                (end, left) = (end - 1, left - 1);
                continue;
            }
            if is_own {
                pool.refused(&frames[at]);
            }
            at += 1;
        }
    }

    fn refuse_foreign(&mut self) {
        if !self.met_foreign {
            self.met_foreign = true;
            tracing::error!("frames were to be posted that are not of the pool given with them; they stay");
        }
        self.errno = libc::EINVAL;
    }
}

/// Returns the request that request `index` links to: the next one.
#[inline]
fn link(receives: NonNull<Receive>, index: usize) -> *mut ibv_recv_wr {
    if index + 1 < CHAIN { receives.as_ptr().wrapping_add(index + 1).cast() } else { ptr::null_mut() }
}

/// How many of the `count` requests from `first` on a provider has, after it has refused `bad`: the one rule
/// for sends and receives. If it names none of them, it is unknown what was posted, and all count as posted:
/// frames may be lost, but none is handed out that the device may still read or write.
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
        drop(unsafe { Box::from_raw(self.receives.as_ptr().cast::<[Receive; CHAIN]>()) });
    }
}

// SAFETY: the array belongs to this chain alone.
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
