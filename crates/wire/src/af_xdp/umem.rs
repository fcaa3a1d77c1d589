//! The memory of the frames of an AF_XDP socket, in frames of equal size.
//!
//! Invariant: a frame belongs to the kernel or to this process. [`UmemFrame`] stands for one that belongs to
//! this process: there is one for each at most. The fill ring and the send ring take it, the receive ring and
//! the completion ring give it back. So the bytes of a frame are only touched while the kernel does not.

use std::ptr::NonNull;

use hugemem::{Arena, ArenaOptions, Block, HugememError};

/// The bytes that the kernel leaves before the frames that it receives (XDP_PACKET_HEADROOM).
const HEADROOM_BYTES: usize = 256;
/// The sizes of a frame: the kernel wants a power of two up to a page.
const FRAME_SIZES: [usize; 2] = [2048, 4096];
/// The alignment of the memory: a page.
const PAGE_BYTES: usize = 4096;

/// The size of the UMEM frames that packets of this length fit into; `None` for longer ones, which would take
/// several.
pub(super) fn umem_frame_bytes(packet_bytes: usize) -> Option<usize> {
    FRAME_SIZES.into_iter().find(|bytes| HEADROOM_BYTES + packet_bytes <= *bytes)
}

/// The longest packet that fits into the largest UMEM frame.
pub(super) const MAX_PACKET_BYTES: usize = FRAME_SIZES[1] - HEADROOM_BYTES;

/// A frame that belongs to this process, by its number.
#[derive(Debug)]
pub(super) struct UmemFrame(u32);

/// The part of a frame that has a packet.
#[derive(Debug)]
pub(super) struct PacketPlace {
    pub(super) frame: UmemFrame,
    offset: usize,
    bytes: usize,
}

/// The memory.
#[derive(Debug)]
pub(super) struct Umem {
    /// Keeps the memory, which is accessed through `base` only.
    _block: Block,
    base: NonNull<u8>,
    frame_bytes: usize,
    frames: u32,
}

// SAFETY: the memory is this value's own, and which part of it is accessed follows from frames, which are not
// shared either.
unsafe impl Send for Umem {}

impl Umem {
    /// Maps memory, and returns all its frames.
    pub(super) fn map(
        label: &str,
        frame_bytes: usize,
        frames: u32,
    ) -> Result<(Self, Vec<UmemFrame>), HugememError> {
        let bytes = frame_bytes * frames as usize;
        let arena = Arena::map(&ArenaOptions::new(label, bytes))?;
        for warning in arena.warnings() {
            tracing::debug!("{warning}");
        }
        let mut block = arena
            .carve(bytes, PAGE_BYTES)
            .ok_or_else(|| HugememError::Size { label: label.to_owned(), bytes })?;
        let base = NonNull::from(&mut *block).cast();
        Ok((Self { _block: block, base, frame_bytes, frames }, (0..frames).map(UmemFrame).collect()))
    }

    /// Where it is, for the kernel.
    pub(super) fn address(&self) -> u64 {
        self.base.as_ptr().expose_provenance() as u64
    }

    /// How many bytes it has, for the kernel.
    pub(super) fn bytes(&self) -> usize {
        self.frame_bytes * self.frames as usize
    }

    /// Bytes of a frame.
    pub(super) fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    /// Gives a frame up: its offset, as rings have it.
    #[expect(clippy::needless_pass_by_value, reason = "nobody has the frame afterwards")]
    pub(super) fn give(&self, frame: UmemFrame) -> u64 {
        let UmemFrame(number) = frame;
        u64::from(number) * self.frame_bytes as u64
    }

    fn offset_of(&self, frame: &UmemFrame) -> u64 {
        u64::from(frame.0) * self.frame_bytes as u64
    }

    /// The frame that the kernel gives back with this offset into it; `None` if there is none.
    pub(super) fn frame_at(&self, offset: u64) -> Option<UmemFrame> {
        let number = u32::try_from(offset / self.frame_bytes as u64).ok()?;
        (number < self.frames).then_some(UmemFrame(number))
    }

    /// The packet that the kernel put into a frame; `None` if it would not be inside of one.
    pub(super) fn packet_at(&self, offset: u64, bytes: u32) -> Option<PacketPlace> {
        let frame = self.frame_at(offset)?;
        let start = (offset - self.offset_of(&frame)) as usize;
        let bytes = bytes as usize;
        (start + bytes <= self.frame_bytes).then_some(PacketPlace { frame, offset: start, bytes })
    }

    /// The bytes of a received packet.
    pub(super) fn packet(&self, place: &PacketPlace) -> &[u8] {
        let start = self.offset_of(&place.frame) as usize + place.offset;
        // SAFETY: `packet_at` checked that it is inside of the frame, and so of the block.
        let start = unsafe { self.base.add(start) };
        // SAFETY: the packet is inside of the frame; the frame belongs to this process while there is a
        // `UmemFrame` (the module's invariant), and is not written while `place` and so its frame are
        // borrowed by the caller.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), place.bytes) }
    }

    /// Copies a packet of at most [`frame_bytes`](Self::frame_bytes) to the start of a frame.
    pub(super) fn write(&mut self, frame: &mut UmemFrame, packet: &[u8]) {
        assert!(packet.len() <= self.frame_bytes, "the caller checks the length");
        // SAFETY: the frame is inside of the block.
        let start = unsafe { self.base.add(self.offset_of(frame) as usize) };
        // SAFETY: `start` is that of a frame, into which the packet fits, and the frame belongs to this
        // process. `packet` is not in it: `&mut self` excludes slices of the memory.
        unsafe { start.as_ptr().copy_from_nonoverlapping(packet.as_ptr(), packet.len()) };
    }
}
