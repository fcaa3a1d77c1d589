//! The four rings of an AF_XDP socket, in memory that the kernel maps (Documentation/networking/af_xdp.rst).
//!
//! | ring | producer | its places have |
//! |---|---|---|
//! | fill | this process | frames that the kernel may receive into |
//! | receive | the kernel | frames with a packet |
//! | send | this process | frames with a packet to send |
//! | completion | the kernel | frames that were sent |
//!
//! They pass [`UmemFrame`]s, so that a frame is on one side only. [`ring_cursor`] has the protocol; the
//! kernel is trusted, but an index of it that makes no sense is not followed.

use std::ffi::c_void;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use ring_cursor::{ConsumerCursor, ProducerCursor};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::xdp::{XdpDesc, XdpDescOptions, XdpRingFlags, XdpRingOffset};

use super::umem::{PacketPlace, Umem, UmemFrame};

/// The memory of a ring: indices, flags and places.
#[derive(Debug)]
struct RingMemory<T> {
    base: NonNull<u8>,
    bytes: usize,
    offsets: XdpRingOffset,
    places: u32,
    _places: std::marker::PhantomData<T>,
}

// SAFETY: the mapping belongs to this value; indices are accessed atomically, places as the cursors allow.
unsafe impl<T: Copy + Send> Send for RingMemory<T> {}

impl<T: Copy> RingMemory<T> {
    /// Maps a ring that was set up with so many places.
    fn map(socket: impl AsFd, offsets: XdpRingOffset, places: u32, page: u64) -> rustix::io::Result<Self> {
        let bytes = offsets.desc as usize + places as usize * size_of::<T>();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing of ours.
        let base = unsafe {
            mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED | MapFlags::POPULATE, socket, page)
        }?;
        let base = NonNull::new(base.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { base, bytes, offsets, places, _places: std::marker::PhantomData })
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: the kernel's offsets are inside of the ring, whose places follow them.
        let at = unsafe { self.base.add(offset as usize) };
        // SAFETY: `at` is inside of the mapping, which lives as long as `self`; the kernel aligns its words
        // and uses them atomically, as this side does.
        unsafe { at.cast::<AtomicU32>().as_ref() }
    }

    fn produced(&self) -> &AtomicU32 {
        self.word(self.offsets.producer)
    }

    fn consumed(&self) -> &AtomicU32 {
        self.word(self.offsets.consumer)
    }

    /// Whether the kernel has to be woken for the ring. Kernels without the flag (before Linux 5.4) always.
    fn needs_wakeup(&self) -> bool {
        let flag = XdpRingFlags::XDP_RING_NEED_WAKEUP.bits();
        self.offsets.flags.is_none_or(|flags| self.word(flags).load(Ordering::Relaxed) & flag != 0)
    }

    fn place(&self, place: u32) -> NonNull<T> {
        let offset = self.offsets.desc as usize + (place & (self.places - 1)) as usize * size_of::<T>();
        // SAFETY: `map` mapped so many places from this offset on.
        unsafe { self.base.add(offset) }.cast()
    }

    /// Reads a place that the consumer's cursor gave.
    fn read(&self, place: u32) -> T {
        // SAFETY: inside of the mapping and aligned; the producer does not write it before it is given back,
        // by the protocol of the cursors; any bytes are a descriptor or an offset.
        unsafe { self.place(place).read() }
    }

    /// Writes a place that the producer's cursor gave.
    fn write(&self, place: u32, value: T) {
        // SAFETY: inside of the mapping and aligned; the consumer does not read it before it is published.
        unsafe { self.place(place).write(value) };
    }
}

impl<T> Drop for RingMemory<T> {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length; no reference into it is left.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.bytes) };
        if let Err(error) = unmapped {
            tracing::error!(%error, "a ring of an AF_XDP socket could not be unmapped");
        }
    }
}

/// The ring of frames to receive into.
#[derive(Debug)]
pub(super) struct FillRing {
    memory: RingMemory<u64>,
    cursor: ProducerCursor,
}

/// The ring of received packets.
#[derive(Debug)]
pub(super) struct ReceiveRing {
    memory: RingMemory<XdpDesc>,
    cursor: ConsumerCursor,
}

/// The ring of packets to send.
#[derive(Debug)]
pub(super) struct SendRing {
    memory: RingMemory<XdpDesc>,
    cursor: ProducerCursor,
}

/// The ring of frames that were sent.
#[derive(Debug)]
pub(super) struct CompletionRing {
    memory: RingMemory<u64>,
    cursor: ConsumerCursor,
}

/// A constructor of a ring that was set up on a socket.
macro_rules! mapped {
    ($ring:ident, $cursor:ident, $page:ident) => {
        impl $ring {
            /// Maps the ring, which was set up with so many places and never used.
            pub(super) fn map(
                socket: impl AsFd,
                offsets: XdpRingOffset,
                places: u32,
            ) -> rustix::io::Result<Self> {
                let memory = RingMemory::map(socket, offsets, places, rustix::net::xdp::$page)?;
                Ok(Self { memory, cursor: $cursor::new(places) })
            }
        }
    };
}

mapped!(FillRing, ProducerCursor, XDP_UMEM_PGOFF_FILL_RING);
mapped!(CompletionRing, ConsumerCursor, XDP_UMEM_PGOFF_COMPLETION_RING);
mapped!(ReceiveRing, ConsumerCursor, XDP_PGOFF_RX_RING);
mapped!(SendRing, ProducerCursor, XDP_PGOFF_TX_RING);

impl FillRing {
    /// Gives a frame to the kernel, which sees it after [`publish`](Self::publish). The ring has a place for
    /// each frame that is received into; should it have none, the frame is not used again.
    pub(super) fn put(&mut self, umem: &Umem, frame: UmemFrame) {
        if self.cursor.has_room(1, self.memory.consumed()) {
            self.memory.write(self.cursor.place(), umem.give(frame));
            self.cursor.advance_by(1);
        }
    }

    pub(super) fn publish(&self) {
        self.cursor.publish(self.memory.produced());
    }

    pub(super) fn needs_wakeup(&self) -> bool {
        self.memory.needs_wakeup()
    }
}

impl ReceiveRing {
    /// Takes the next packet, with its frame. A descriptor that makes no sense is passed over, with the frame
    /// that it should have named: `Err`.
    pub(super) fn take(&mut self, umem: &Umem) -> Option<Result<PacketPlace, InvalidDescriptor>> {
        if !self.cursor.has_next(self.memory.produced()) {
            return None;
        }
        let XdpDesc { addr, len, options } = self.memory.read(self.cursor.place());
        self.cursor.advance_by(1);
        let is_part = options.contains(XdpDescOptions::XDP_PKT_CONTD);
        let packet = umem.packet_at(addr, len).filter(|_| !is_part);
        Some(packet.ok_or(InvalidDescriptor))
    }

    /// Gives the places of taken packets back; their frames stay with this process.
    pub(super) fn publish(&self) {
        self.cursor.publish(self.memory.consumed());
    }
}

/// The kernel gave a descriptor of a packet that is not inside of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct InvalidDescriptor;

impl SendRing {
    pub(super) fn has_room(&mut self) -> bool {
        self.cursor.has_room(1, self.memory.consumed())
    }

    /// Gives a frame with a packet of so many bytes to the kernel, which sees it after
    /// [`publish`](Self::publish). Without room the frame comes back.
    pub(super) fn put(&mut self, umem: &Umem, frame: UmemFrame, bytes: u32) -> Result<(), UmemFrame> {
        if !self.has_room() {
            return Err(frame);
        }
        let descriptor = XdpDesc { addr: umem.give(frame), len: bytes, options: XdpDescOptions::empty() };
        self.memory.write(self.cursor.place(), descriptor);
        self.cursor.advance_by(1);
        Ok(())
    }

    pub(super) fn publish(&self) {
        self.cursor.publish(self.memory.produced());
    }

    /// Whether the kernel has taken all that was published.
    pub(super) fn is_drained(&self) -> bool {
        self.cursor.is_drained(self.memory.consumed())
    }

    pub(super) fn needs_wakeup(&self) -> bool {
        self.memory.needs_wakeup()
    }
}

impl CompletionRing {
    /// Takes a frame that was sent.
    pub(super) fn take(&mut self, umem: &Umem) -> Option<UmemFrame> {
        while self.cursor.has_next(self.memory.produced()) {
            let offset = self.memory.read(self.cursor.place());
            self.cursor.advance_by(1);
            if let Some(frame) = umem.frame_at(offset) {
                return Some(frame);
            }
        }
        None
    }

    pub(super) fn publish(&self) {
        self.cursor.publish(self.memory.consumed());
    }
}
