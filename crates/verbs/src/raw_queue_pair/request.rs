//! What one send says: which memory, with which flags, cut into segments or not.
//!
//! Made on the stack for one call of the provider. Ranges are checked here, against the frame they are of.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use ibverbs_sys::{
    ibv_send_flags, ibv_send_wr__bindgen_ty_4, ibv_send_wr__bindgen_ty_4__bindgen_ty_2, ibv_sge,
};

use crate::{Frame, FramePool};

/// Most pieces of memory of one send: the list stands on the stack. Devices say what they take in
/// [`QueuePairCaps::max_send_parts`](crate::QueuePairCaps::max_send_parts).
pub const MAX_SEND_PARTS: usize = 16;

bitflags::bitflags! {
    /// `ibv_send_flags`, as far as raw packets have a use for them.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SendFlags: u32 {
        /// The device computes the IPv4 header and L4 checksums.
        const IP_CSUM = ibv_send_flags::IBV_SEND_IP_CSUM.0;
        /// No completion (C says so by leaving `IBV_SEND_SIGNALED` out), unless the queue pair signals all. Only for data
        /// that the queue copies; a frame comes back by its completion, so this is ignored for frames. The place in the
        /// send queue is free again once a later send has completed.
        const UNSIGNALLED = 1 << 31;
    }
}

impl SendFlags {
    /// For C, and always with a completion. Unknown bits would make the library read the request or the frame in ways not
    /// meant here.
    #[inline]
    pub(super) fn for_frame(self) -> u32 {
        self.intersection(Self::IP_CSUM).bits() | ibv_send_flags::IBV_SEND_SIGNALED.0
    }

    /// For C, for data without a frame.
    #[inline]
    pub(super) fn for_copy(self) -> u32 {
        let signal = if self.contains(Self::UNSIGNALLED) { 0 } else { ibv_send_flags::IBV_SEND_SIGNALED.0 };
        self.intersection(Self::IP_CSUM).bits() | signal
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
    pub(super) fn whole(pool: &FramePool, frame: &Frame, bytes: usize) -> Result<Self, c_int> {
        Self::of(pool, frame, std::slice::from_ref(&(0..bytes)))
    }
}

impl<const N: usize> Parts<N> {
    /// These bytes, in this order. EINVAL: none, too many, not in the frame, or another pool's.
    #[inline]
    pub(super) fn of(pool: &FramePool, frame: &Frame, parts: &[Range<usize>]) -> Result<Self, c_int> {
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
            *entry = ibv_sge { addr: slot.address + start, length, lkey: pool.lkey() };
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
}

/// How a stream is cut: headers in front of the frame, and bytes of stream per segment.
#[derive(Clone, Copy)]
pub(super) struct Segments {
    pub(super) header: *mut c_void,
    pub(super) header_bytes: u16,
    pub(super) mss: u16,
}

impl Segments {
    /// The headers, and what follows them up to `bytes`. EINVAL: that is not in the frame, or the frame is another pool's.
    pub(super) fn of(
        pool: &FramePool,
        frame: &Frame,
        header_bytes: u16,
        bytes: usize,
        mss: u16,
    ) -> Result<(Self, Parts<1>), c_int> {
        let stream = usize::from(header_bytes)..bytes;
        let parts = Parts::of(pool, frame, std::slice::from_ref(&stream))?;
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

    #[test]
    fn a_frame_is_always_signalled_and_a_copy_as_asked() {
        let (signal, csum) = (ibv_send_flags::IBV_SEND_SIGNALED.0, ibv_send_flags::IBV_SEND_IP_CSUM.0);
        let all = SendFlags::from_bits_retain(u32::MAX);
        assert_eq!(all.for_frame(), signal | csum);
        assert_eq!(all.for_copy(), csum);
        assert_eq!(SendFlags::empty().for_copy(), signal);
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
