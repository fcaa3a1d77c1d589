//! Posting the sends of several frames in one call: [`RawQueuePair::send_each`], and the chain of requests
//! that it fills.
//!
//! One completion is asked for per chain, for its last request: the frames of a chain come back together
//! ([`RawQueuePair::reclaim`]). The chain is owned by the queue pair and filled anew for each call of the
//! provider. Nothing here allocates after its creation.

use std::ffi::c_int;
use std::ops::Range;
use std::ptr::{self, NonNull};

use ibverbs_sys::{ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode};

use super::RawQueuePair;
use super::in_flight::InFlight;
use crate::chain::taken_before;
use crate::error::errno_of;
use crate::{Frame, FramePool, inline};

/// How many sends one call of the provider takes at most, which have one completion.
pub const SENDS_PER_COMPLETION: usize = 32;

/// The most pieces of one packet: a new header and the rest.
const PIECES_MAX: usize = 2;

/// The bytes of a frame that are sent, in at most two pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces {
    pub(super) first: Piece,
    /// Empty for a packet in one piece.
    pub(super) second: Piece,
}

/// A part of a frame, whose lengths fit 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    start: u32,
    pub(super) bytes: u32,
}

impl Piece {
    const EMPTY: Self = Self { start: 0, bytes: 0 };

    /// The part of a frame in this range; a range beyond 32 bits becomes a part that no frame has.
    #[inline]
    fn of(range: &Range<usize>) -> Self {
        let bytes = range.end.checked_sub(range.start).and_then(|bytes| u32::try_from(bytes).ok());
        match (u32::try_from(range.start), bytes) {
            (Ok(start), Some(bytes)) => Self { start, bytes },
            _ => Self { start: u32::MAX, bytes: u32::MAX },
        }
    }

    #[inline]
    fn is_within(self, frame_bytes: u32) -> bool {
        self.bytes <= frame_bytes && self.start <= frame_bytes - self.bytes
    }
}

impl Pieces {
    /// One piece.
    #[must_use]
    #[inline]
    #[allow(clippy::needless_pass_by_value)] // as ranges are written
    pub fn one(piece: Range<usize>) -> Self {
        Self { first: Piece::of(&piece), second: Piece::EMPTY }
    }

    /// The first bytes.
    #[must_use]
    #[inline]
    pub fn start(bytes: u32) -> Self {
        Self { first: Piece { start: 0, bytes }, second: Piece::EMPTY }
    }

    /// Two pieces, sent one after the other.
    #[must_use]
    #[inline]
    #[allow(clippy::needless_pass_by_value)] // as for `one`
    pub fn two(first: Range<usize>, second: Range<usize>) -> Self {
        Self { first: Piece::of(&first), second: Piece::of(&second) }
    }

    /// The length of the packet.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> usize {
        self.first.bytes as usize + self.second.bytes as usize
    }

    /// Both; the second is empty for a packet in one piece.
    #[must_use]
    pub fn ranges(&self) -> [Range<usize>; PIECES_MAX] {
        [self.first, self.second].map(|Piece { start, bytes }| {
            let start = start as usize;
            start..start + bytes as usize
        })
    }

    /// Whether a frame of this length has both.
    #[inline]
    pub(super) fn are_within(self, frame_bytes: u32) -> bool {
        self.first.is_within(frame_bytes) && (self.second.bytes == 0 || self.second.is_within(frame_bytes))
    }
}

/// A packet to be sent by [`RawQueuePair::send_each`].
#[derive(Debug)]
pub struct QueuedSend {
    /// Where its bytes are.
    pub frame: Frame,
    /// Which of them.
    pub pieces: Pieces,
}

/// A request and its list, of which one entry is used for most packets.
#[repr(C, align(64))]
#[derive(Clone, Copy, Default)]
struct SendSlot {
    request: ibv_send_wr,
    entries: [ibv_sge; PIECES_MAX],
}

/// Send work requests. The parts point at each other, so they stay behind raw pointers: no Rust reference to
/// one is ever formed while the provider may follow those links.
///
/// Between two calls of the provider every request but the last links to the next one, and to its own list;
/// none is signalled. Providers only read requests (ibv_post_send(3)).
pub(super) struct SendChain {
    sends: NonNull<SendSlot>,
    /// The key in all entries: that of the frames of one pool.
    lkey: u32,
}

impl SendChain {
    pub(super) fn new() -> Self {
        let sends: Box<[SendSlot; SENDS_PER_COMPLETION]> =
            Box::new([SendSlot::default(); SENDS_PER_COMPLETION]);
        let sends: NonNull<SendSlot> = NonNull::from(Box::leak(sends)).cast();
        for index in 0..SENDS_PER_COMPLETION {
            let send = sends.as_ptr().wrapping_add(index);
            // SAFETY: `index` is below the length of the array, which was just made.
            let list = unsafe { &raw mut (*send).entries };
            let request = ibv_send_wr {
                next: link(sends, index),
                sg_list: list.cast(),
                opcode: ibv_wr_opcode::IBV_WR_SEND,
                ..ibv_send_wr::default()
            };
            // SAFETY: as above.
            unsafe { (*send).request = request };
        }
        Self { sends, lkey: 0 }
    }

    /// Writes the key of a pool's memory into all entries.
    #[cold]
    fn change_key(&mut self, lkey: u32) {
        for index in 0..SENDS_PER_COMPLETION {
            let send = self.sends.as_ptr().wrapping_add(index);
            // SAFETY: `index` is below the length of the array, which this chain owns, outside of any call.
            unsafe { (*send).entries = [ibv_sge { addr: 0, length: 0, lkey }; PIECES_MAX] };
        }
        self.lkey = lkey;
    }

    /// Writes requests for the first of `packets`, and counts them as in flight. Returns for how many: fewer
    /// than there are if the chain or the queue has no room for more, at the end of the ring of sends in
    /// flight, or before one that is not in a frame of `pool`.
    // By itself it has enough registers for all that the loop uses.
    #[inline(never)]
    fn fill(
        &mut self,
        pool: &mut FramePool,
        lkey: u32,
        in_flight: &mut InFlight,
        packets: &[QueuedSend],
    ) -> usize {
        if self.lkey != lkey {
            self.change_key(lkey);
        }
        let packets = &packets[..packets.len().min(SENDS_PER_COMPLETION)];
        let mut send = self.sends.as_ptr();
        in_flight.push_each(pool, packets, |wr_id, start, pieces| {
            // SAFETY: `push_each` passes at most as many as `packets` has, so it is one of the array, which
            // this chain owns; the provider is done with what an earlier call wrote (work requests are
            // consumed by the call, ibv_post_send(3)).
            unsafe { (*send).request.wr_id = wr_id };
            let Pieces { first, second } = pieces;
            // SAFETY: as above.
            unsafe { (*send).entries[0].addr = start + u64::from(first.start) };
            // SAFETY: as above.
            unsafe { (*send).entries[0].length = first.bytes };
            let mut count = 1;
            if second.bytes > 0 {
                // SAFETY: as above.
                unsafe { (*send).entries[1].addr = start + u64::from(second.start) };
                // SAFETY: as above.
                unsafe { (*send).entries[1].length = second.bytes };
                count = 2;
            }
            // SAFETY: as above.
            unsafe { (*send).request.num_sge = count };
            send = send.wrapping_add(1);
        })
    }

    /// Calls the provider with the first `filled` requests, of which the last is signalled as `wr_id`.
    /// Returns how many it has now, and its answer.
    #[inline]
    fn hand_over(
        &mut self,
        filled: usize,
        wr_id: u64,
        call: impl FnOnce(*mut ibv_send_wr, &mut *mut ibv_send_wr) -> c_int,
    ) -> (usize, c_int) {
        let head: *mut SendSlot = self.sends.as_ptr();
        let last = head.wrapping_add(filled - 1);
        // SAFETY: `filled` is at least 1 and at most the length of the array, which this chain owns.
        unsafe { (*last).request.next = ptr::null_mut() };
        // SAFETY: as above.
        unsafe { (*last).request.wr_id = wr_id };
        // SAFETY: as above.
        unsafe { (*last).request.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0 };
        let mut bad = ptr::null_mut();
        // A send begins with its request.
        let code = call(head.cast(), &mut bad);
        // SAFETY: as above; the provider is done with the requests when the call returns (ibv_post_send(3)).
        unsafe { (*last).request.send_flags = 0 };
        // SAFETY: as above.
        unsafe { (*last).request.next = link(self.sends, filled - 1) };
        match code {
            0 => (filled, 0),
            code => (taken_before(head.cast_const(), filled, bad.cast()), errno_of(code)),
        }
    }
}

/// Returns the request that request `index` links to: the next one.
#[inline]
fn link(sends: NonNull<SendSlot>, index: usize) -> *mut ibv_send_wr {
    if index + 1 < SENDS_PER_COMPLETION {
        sends.as_ptr().wrapping_add(index + 1).cast()
    } else {
        ptr::null_mut()
    }
}

impl Drop for SendChain {
    fn drop(&mut self) {
        // SAFETY: leaked from a box of this type in `new`, taken back once.
        drop(unsafe { Box::from_raw(self.sends.as_ptr().cast::<[SendSlot; SENDS_PER_COMPLETION]>()) });
    }
}

// SAFETY: the array belongs to this chain alone.
unsafe impl Send for SendChain {}

impl RawQueuePair {
    /// Sends packets of `pool`, in order, with a completion for at most [`SENDS_PER_COMPLETION`] and for the
    /// last one; their frames come back by [`RawQueuePair::reclaim`]. Those that the device has leave the
    /// vector; the others stay, in order, and [`RawQueuePair::last_refusal`] is why the first of them was
    /// refused: EBUSY while another thread uses the completion queue or the thread domain, ENOMEM for a full
    /// queue, EINVAL for pieces that its frame does not have or a frame of another pool. Returns how many
    /// left.
    ///
    /// A device that takes only a part of what it was given in one call has asked for no completion of that
    /// part: its frames come back with the next send that completes. Which pools there may be is as for
    /// [`RawQueuePair::start_send`].
    ///
    /// ```
    /// use verbs::{Frame, FramePool, Pieces, QueuedSend, RawQueuePair};
    ///
    /// fn send(pair: &mut RawQueuePair, pool: &mut FramePool, frames: Vec<Frame>) -> usize {
    ///     let mut packets: Vec<_> =
    ///         frames.into_iter().map(|frame| QueuedSend { frame, pieces: Pieces::start(60) }).collect();
    ///     let sent = pair.send_each(pool, &mut packets);
    ///     packets.into_iter().for_each(|refused| pool.release(refused.frame));
    ///     sent
    /// }
    /// ```
    #[inline]
    pub fn send_each(&mut self, pool: &mut FramePool, packets: &mut Vec<QueuedSend>) -> usize {
        let sent = match self.key(pool) {
            Ok(lkey) if self.in_flight.use_pool(&pool.ledger) => self.send_chains(pool, lkey, packets),
            Ok(_) => Err(libc::EBUSY),
            Err(errno) => Err(errno),
        };
        let sent = sent.unwrap_or_else(|errno| {
            self.errno = errno;
            0
        });
        // What left is the queue pair's now: a `Frame` has nothing to drop.
        packets.drain(..sent);
        sent
    }

    fn send_chains(
        &mut self,
        pool: &mut FramePool,
        lkey: u32,
        packets: &[QueuedSend],
    ) -> Result<usize, c_int> {
        let Self { handle, send_gates, in_flight, sends, errno, .. } = self;
        let _entered = send_gates.enter().ok_or(libc::EBUSY)?;
        let mut total = 0;
        while total < packets.len() {
            let position = in_flight.position();
            // After a part of a chain the device may have only sends without a signal, and no room for a
            // whole chain with one: then nothing would ever complete. A chain of one send is taken with its
            // signal or not at all.
            let most = if in_flight.ends_unsignalled() { 1 } else { SENDS_PER_COMPLETION };
            let chain = &packets[total..];
            let filled = sends.fill(pool, lkey, in_flight, &chain[..chain.len().min(most)]);
            if filled == 0 {
                let has_room = in_flight.has_room(position);
                *errno = if has_room { libc::EINVAL } else { libc::ENOMEM };
                break;
            }
            let wr_id = in_flight.signal_last(&mut pool.ledger);
            let qp = handle.raw();
            let (accepted, code) = sends.hand_over(filled, wr_id, |head, bad| {
                // SAFETY: the queue pair is live and in RTS or ERR and this is its only poster, alone behind
                // the gates. The frames are held, their memory stays registered because `regions` owns the
                // registration, and they are marked as sent, so nothing touches them until the device has
                // completed them.
                unsafe { inline::post_send(qp, head, bad) }
            });
            total += accepted;
            if accepted < filled {
                in_flight.refused(&mut pool.ledger, position.wrapping_add(accepted as u32));
                *errno = code;
                break;
            }
        }
        Ok(total)
    }
}
