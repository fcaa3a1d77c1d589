//! Sends: one request ([`SendFlags`], its parts and segments), and several requests in one batch through
//! the queue pair's own functions (ibv_wr_post(3)).
//!
//! Ranges are checked here, against the frame they are of. A batch is opened by [`RawQueuePair::start_send`];
//! nothing is sent before [`SendBatch::complete`], and a batch that is dropped is aborted. A frame belongs to
//! the batch from its request on: to the device once the batch is complete, to its pool again if it is not.

use std::ffi::{c_int, c_void};
use std::io;
use std::marker::PhantomData;
use std::ops::Range;

use ibverbs_sys::{
    ibv_data_buf, ibv_send_flags, ibv_send_wr__bindgen_ty_4, ibv_send_wr__bindgen_ty_4__bindgen_ty_2, ibv_sge,
};

use super::{RawQueuePair, wr_id_of};
use crate::error::from_code;
use crate::frame::UNSIGNALLED;
use crate::inline::SendFunctions;
use crate::{Frame, FramePool};

/// An open batch of sends. As long as it is open, nothing else can be posted to queues that complete where
/// this one does, and the completion queue cannot be polled.
///
/// ```
/// use verbs::{Frame, FramePool, RawQueuePair, SendFlags};
///
/// fn answer(pair: &mut RawQueuePair, pool: &mut FramePool, first: Frame, second: Frame) -> std::io::Result<usize> {
///     let Some(mut batch) = pair.start_send(pool) else { return Ok(0) };
///     for frame in [first, second] {
///         // A frame comes back if the request makes no sense or the batch is full.
///         if let Err(frame) = batch.send(SendFlags::IP_CSUM).frame(frame, 60) {
///             batch.release(frame);
///         }
///     }
///     batch.send(SendFlags::UNSIGNALLED).inline(7, &[0xff; 60]);
///     batch.complete()
/// }
/// ```
#[must_use = "a batch that is not completed is aborted"]
pub struct SendBatch<'q> {
    pair: &'q mut RawQueuePair,
    pool: &'q mut FramePool,
    /// The local key of the pool's memory.
    lkey: u32,
    functions: SendFunctions,
    requests: usize,
    /// Where its sends begin among those in flight.
    start: u32,
    open: bool,
    /// Ends on the thread it was opened on: the provider may hold a lock.
    _not_send: PhantomData<*const ()>,
}

impl<'q> SendBatch<'q> {
    /// The caller has entered the queue pair's send gates, and leaves that to the batch.
    pub(super) fn open(
        pair: &'q mut RawQueuePair,
        pool: &'q mut FramePool,
        lkey: u32,
        functions: SendFunctions,
    ) -> Self {
        // SAFETY: the queue pair is live and exclusively borrowed, and the gates keep others out; an earlier
        // batch has ended before its gates were left.
        unsafe { functions.start() };
        let start = pair.in_flight.position();
        Self { pair, pool, lkey, functions, requests: 0, start, open: true, _not_send: PhantomData }
    }

    /// A packet (`ibv_wr_send`).
    #[inline]
    pub fn send(&mut self, flags: SendFlags) -> SendRequest<'_, 'q> {
        SendRequest { batch: self, flags, segments: None }
    }

    /// A TCP stream in segments of `mss` bytes, each behind the first `header_bytes` bytes of the frame,
    /// which the device completes (`ibv_wr_send_tso`).
    pub fn tso(&mut self, flags: SendFlags, header_bytes: u16, mss: u16) -> SendRequest<'_, 'q> {
        SendRequest { batch: self, flags, segments: Some((header_bytes, mss)) }
    }

    /// How many requests it has.
    pub fn len(&self) -> usize {
        self.requests
    }

    /// Returns whether the batch has no requests yet.
    pub fn is_empty(&self) -> bool {
        self.requests == 0
    }

    /// Gives back to the pool a frame that a request refused.
    pub fn release(&mut self, frame: Frame) {
        self.pool.release(frame);
    }

    /// Sends everything (`ibv_wr_complete`). Returns how many requests; the frames come back by their
    /// completions.
    ///
    /// # Errors
    /// Nothing was sent, and all frames are back in the pool: ENOMEM for more requests than the queue holds,
    /// EINVAL for one that the device does not take.
    pub fn complete(mut self) -> io::Result<usize> {
        self.open = false;
        // SAFETY: opened in `open`, by this thread, as a batch is not `Send`; closed here, once.
        let code = unsafe { self.functions.complete() };
        if code == 0 {
            self.start = self.pair.in_flight.position();
            return Ok(self.requests);
        }
        let error = from_code(code);
        self.pair.errno = error.raw_os_error().unwrap_or(libc::EIO);
        Err(error)
    }

    /// Sends nothing (`ibv_wr_abort`); all frames are back in the pool. Dropping the batch does the same.
    pub fn abort(self) {}
}

impl Drop for SendBatch<'_> {
    fn drop(&mut self) {
        if self.open {
            // SAFETY: as for `complete`.
            unsafe { self.functions.abort() };
        }
        self.pair.in_flight.withdraw(&mut self.pool.ledger, self.start);
        self.pair.send_gates.leave();
    }
}

/// A send that lacks its data; without any, it is not part of the batch.
#[must_use = "a request without data is not sent"]
pub struct SendRequest<'b, 'q> {
    batch: &'b mut SendBatch<'q>,
    flags: SendFlags,
    /// Bytes of headers, and of stream per segment.
    segments: Option<(u16, u16)>,
}

impl SendRequest<'_, '_> {
    /// The first `bytes` bytes of a frame (`ibv_wr_set_sge`), Ethernet header first. The frame comes back if
    /// it has not so many or is of another pool, if the batch has as many frames as the queue holds, or if
    /// the queue pair was not made for this operation ([`RawQueuePair::last_refusal`]).
    #[inline]
    pub fn frame(self, frame: Frame, bytes: usize) -> Result<(), Frame> {
        let start = self.segments.map_or(0, |(header_bytes, _)| usize::from(header_bytes));
        self.put::<1>(frame, std::slice::from_ref(&(start..bytes)))
    }

    /// These bytes of a frame, one after the other (`ibv_wr_set_sge_list` if they are several), at most
    /// [`MAX_SEND_PARTS`]; for segments, the stream. Otherwise as [`SendRequest::frame`].
    #[inline]
    pub fn gather(self, frame: Frame, parts: &[Range<usize>]) -> Result<(), Frame> {
        // Lists of the usual lengths need no room for the longest.
        match parts.len() {
            1 => self.put::<1>(frame, parts),
            2 => self.put::<2>(frame, parts),
            _ => self.put::<MAX_SEND_PARTS>(frame, parts),
        }
    }

    /// A copy of `data` (`ibv_wr_set_inline_data`), as [`RawQueuePair::send_inline`]. False: refused, as
    /// segments are.
    #[inline]
    pub fn inline(self, token: u32, data: &[u8]) -> bool {
        self.put_copy(token, &[buffer_of(data)])
    }

    /// A copy of these pieces, one after the other (`ibv_wr_set_inline_data_list` if they are several), at
    /// most [`MAX_SEND_PARTS`].
    pub fn inline_list(self, token: u32, pieces: &[&[u8]]) -> bool {
        let mut buffers = [buffer_of(&[]); MAX_SEND_PARTS];
        let Some(list) = buffers.get_mut(..pieces.len()).filter(|list| !list.is_empty()) else {
            self.batch.pair.errno = libc::EINVAL;
            return false;
        };
        list.iter_mut().zip(pieces).for_each(|(buffer, piece)| *buffer = buffer_of(piece));
        self.put_copy(token, list)
    }

    /// `buffers` are of slices that the caller borrows.
    #[inline]
    fn put_copy(self, token: u32, buffers: &[ibv_data_buf]) -> bool {
        let batch = self.batch;
        if self.segments.is_some() {
            batch.pair.errno = libc::EINVAL;
            return false;
        }
        // SAFETY: the batch is open, by this thread.
        if !unsafe { batch.functions.build(wr_id_of(token), self.flags.for_batch(), None) } {
            batch.pair.errno = libc::EOPNOTSUPP;
            return false;
        }
        // SAFETY: just built; the slices are readable during the call, which copies them and does not write
        // to them.
        unsafe { batch.functions.set_inline(buffers) };
        batch.requests += 1;
        true
    }

    #[inline]
    fn put<const N: usize>(mut self, frame: Frame, parts: &[Range<usize>]) -> Result<(), Frame> {
        match self.add::<N>(&frame, parts) {
            Ok(bytes) => {
                let SendBatch { pair, pool, requests, .. } = self.batch;
                pair.in_flight.push(&mut pool.ledger, &frame, bytes, self.flags.is_signalled());
                *requests += 1;
                Ok(())
            }
            Err(errno) => {
                self.batch.pair.errno = errno;
                Err(frame)
            }
        }
    }

    /// Hands the request to the provider; the frame is the batch's after that. Returns the bytes to be sent,
    /// without the header of segments. An errno: nothing was handed over.
    #[inline]
    fn add<const N: usize>(&mut self, frame: &Frame, parts: &[Range<usize>]) -> Result<u32, i32> {
        let batch = &mut *self.batch;
        let list = Parts::<N>::of(batch.pool, batch.lkey, frame, parts)?;
        if !batch.pair.in_flight.has_room(batch.start) {
            return Err(libc::ENOMEM);
        }
        let segments = match self.segments {
            Some((header_bytes, mss)) => {
                let all = batch.pool.frame_bytes() as usize;
                Some(Segments::of(batch.pool, batch.lkey, frame, header_bytes, all, mss)?.0)
            }
            None => None,
        };
        let segments = segments.map(|segments| (segments.header, segments.header_bytes, segments.mss));
        let wr_id = self.flags.mark(list.wr_id());
        // SAFETY: the batch is open, by this thread; the header is in the frame, which nothing touches from
        // here on until it is completed, or back in the pool after the batch has failed.
        if !unsafe { batch.functions.build(wr_id, self.flags.for_batch(), segments) } {
            return Err(libc::EOPNOTSUPP);
        }
        // SAFETY: just built; as for the header, and `regions` keeps the memory registered.
        unsafe { batch.functions.set_sge(list.entries()) };
        Ok(list.bytes())
    }
}

fn buffer_of(data: &[u8]) -> ibv_data_buf {
    ibv_data_buf { addr: data.as_ptr().cast_mut().cast(), length: data.len() }
}

/// Most pieces of memory of one send: the list is on the stack. The device's limit is
/// [`QueuePairCaps::max_send_parts`](crate::QueuePairCaps::max_send_parts).
pub const MAX_SEND_PARTS: usize = 16;

bitflags::bitflags! {
    /// `ibv_send_flags`, as far as raw packets have a use for them.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SendFlags: u32 {
        /// The device computes the IPv4 header and L4 checksums.
        const IP_CSUM = ibv_send_flags::IBV_SEND_IP_CSUM.0;
        /// No completion (in C, `IBV_SEND_SIGNALED` is not set), unless the queue pair signals all or the
        /// send fails. The place in the send queue is free again, and a frame comes back
        /// ([`RawQueuePair::reclaim`]), once a later send has completed. Ignored for frames that are not sent
        /// in a batch.
        const UNSIGNALLED = 1 << 31;
    }
}

impl SendFlags {
    /// For C, and always with a completion. Unknown bits would make the library read the request or the frame
    /// in ways not meant here.
    #[inline]
    pub(super) fn for_frame(self) -> u32 {
        self.intersection(Self::IP_CSUM).bits() | ibv_send_flags::IBV_SEND_SIGNALED.0
    }

    /// For C, for requests of a batch and for data without a frame.
    #[inline]
    pub(super) fn for_batch(self) -> u32 {
        let signal = if self.is_signalled() { ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
        self.intersection(Self::IP_CSUM).bits() | signal
    }

    /// The id of a request of a batch for the frame that `wr_id` names.
    #[inline]
    pub(super) fn mark(self, wr_id: u64) -> u64 {
        if self.is_signalled() { wr_id } else { wr_id | u64::from(UNSIGNALLED) }
    }

    #[inline]
    pub(super) fn is_signalled(self) -> bool {
        !self.contains(Self::UNSIGNALLED)
    }
}

/// At most `N` pieces of one frame, as a list that C can follow.
pub(super) struct Parts<const N: usize> {
    wr_id: u64,
    entries: [ibv_sge; N],
    count: usize,
}

impl Parts<1> {
    /// The first `bytes` bytes. EINVAL: the frame has not so many, or is another pool's.
    #[inline]
    pub(super) fn whole(pool: &FramePool, lkey: u32, frame: &Frame, bytes: usize) -> Result<Self, c_int> {
        Self::of(pool, lkey, frame, std::slice::from_ref(&(0..bytes)))
    }
}

impl<const N: usize> Parts<N> {
    /// These bytes, in this order, of a frame of a pool whose memory has this key. EINVAL: none, too many,
    /// not in the frame, or another pool's.
    #[inline]
    pub(super) fn of(
        pool: &FramePool,
        lkey: u32,
        frame: &Frame,
        parts: &[Range<usize>],
    ) -> Result<Self, c_int> {
        let slot = pool.slot(frame).ok_or(libc::EINVAL)?;
        if !(1..=N).contains(&parts.len()) {
            return Err(libc::EINVAL);
        }
        let mut entries = [ibv_sge { addr: 0, length: 0, lkey: 0 }; N];
        for (entry, part) in entries.iter_mut().zip(parts) {
            if part.start > part.end || part.end > pool.frame_bytes() as usize {
                return Err(libc::EINVAL);
            }
            // Both fit: the end is at most `frame_bytes`, a u32.
            let (start, length) = (part.start as u64, (part.end - part.start) as u32);
            *entry = ibv_sge { addr: slot.address + start, length, lkey };
        }
        Ok(Self { wr_id: slot.wr_id, entries, count: parts.len() })
    }

    #[inline]
    pub(super) fn wr_id(&self) -> u64 {
        self.wr_id
    }

    /// For a work request, which reads it during its call.
    #[inline]
    pub(super) fn list(&mut self) -> (*mut ibv_sge, c_int) {
        (self.entries.as_mut_ptr(), self.count as c_int)
    }

    #[inline]
    pub(super) fn entries(&self) -> &[ibv_sge] {
        &self.entries[..self.count]
    }

    /// The length of all of them.
    #[inline]
    pub(super) fn bytes(&self) -> u32 {
        self.entries().iter().fold(0, |bytes, entry| bytes.wrapping_add(entry.length))
    }
}

/// How a stream is cut: headers in front of the frame, and bytes of stream per segment.
#[derive(Clone, Copy)]
pub(super) struct Segments {
    pub(super) header: *mut c_void,
    pub(super) header_bytes: u16,
    pub(super) mss: u16,
}

impl Segments {
    /// The headers, and what follows them up to `bytes`. EINVAL: that is not in the frame, or the frame is
    /// another pool's.
    pub(super) fn of(
        pool: &FramePool,
        lkey: u32,
        frame: &Frame,
        header_bytes: u16,
        bytes: usize,
        mss: u16,
    ) -> Result<(Self, Parts<1>), c_int> {
        let stream = usize::from(header_bytes)..bytes;
        let parts = Parts::of(pool, lkey, frame, std::slice::from_ref(&stream))?;
        let header = pool.address(frame).ok_or(libc::EINVAL)?.cast();
        Ok((Self { header, header_bytes, mss }, parts))
    }
}

impl From<Segments> for ibv_send_wr__bindgen_ty_4 {
    fn from(Segments { header: hdr, header_bytes: hdr_sz, mss }: Segments) -> Self {
        Self { tso: ibv_send_wr__bindgen_ty_4__bindgen_ty_2 { hdr, hdr_sz, mss } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_not_send;

    assert_not_send!(SendBatch<'static>);

    #[test]
    fn a_frame_alone_is_always_signalled_and_a_request_of_a_batch_as_asked() {
        let (signal, csum) = (ibv_send_flags::IBV_SEND_SIGNALED.0, ibv_send_flags::IBV_SEND_IP_CSUM.0);
        let all = SendFlags::from_bits_retain(u32::MAX);
        assert_eq!(all.for_frame(), signal | csum);
        assert_eq!(all.for_batch(), csum);
        assert_eq!(SendFlags::empty().for_batch(), signal);
    }

    #[test]
    fn segments_stand_where_the_header_has_them() {
        let segments = Segments { header: std::ptr::null_mut(), header_bytes: 54, mss: 1460 };
        let raw: ibv_send_wr__bindgen_ty_4 = segments.into();
        // SAFETY: just written.
        let tso = unsafe { raw.tso };
        assert_eq!((tso.hdr_sz, tso.mss), (54, 1460));
    }
}
