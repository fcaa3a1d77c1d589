//! Frames on their way to a packet socket: copied into a queue, handed over by one `sendmmsg` per flush.
//!
//! The socket wants to be told before each frame what offload has to do (PACKET_VNET_HDR): nothing, so that is zero.
//! The queue's memory is allocated once. What the socket cannot take for the moment stays queued; what it refuses is
//! dropped and counted.

use std::mem::zeroed;
use std::os::fd::{AsFd, AsRawFd};

use super::ring::OFFLOAD_BYTES;
use crate::wire::{BURST_FRAMES, TransmitError};

/// Frames that can wait for a flush.
const QUEUE_FRAMES: usize = BURST_FRAMES;

/// What became of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flushed {
    /// All queued frames are gone.
    All,
    /// The socket's buffer is full; the rest is still queued.
    Waiting,
    /// The interface is down; the queue was emptied.
    Down,
}

/// The send queue.
#[derive(Debug)]
pub(super) struct Sender {
    /// `QUEUE_FRAMES` places of `place_bytes`. Each begins with a zeroed `virtio_net_hdr`, then comes the frame.
    store: Box<[u8]>,
    place_bytes: usize,
    /// Bytes of each place in use.
    lens: [usize; QUEUE_FRAMES],
    /// The place of the oldest frame.
    first: usize,
    queued: usize,
    losses: u64,
}

impl Sender {
    /// A queue for frames of up to `frame_bytes`.
    pub(super) fn new(frame_bytes: usize) -> Self {
        let place_bytes = OFFLOAD_BYTES + frame_bytes;
        let store = vec![0; QUEUE_FRAMES * place_bytes].into_boxed_slice();
        Self { store, place_bytes, lens: [0; QUEUE_FRAMES], first: 0, queued: 0, losses: 0 }
    }

    /// Makes it a queue for frames of up to `frame_bytes`. What is queued is lost; what was lost stays counted.
    pub(super) fn resize(&mut self, frame_bytes: usize) {
        self.abandon();
        *self = Self { losses: self.losses, ..Self::new(frame_bytes) };
    }

    pub(super) fn is_full(&self) -> bool {
        self.queued == QUEUE_FRAMES
    }

    /// Frames that were queued and refused by the socket.
    pub(super) fn losses(&self) -> u64 {
        self.losses
    }

    pub(super) fn push(&mut self, frame: &[u8]) -> Result<(), TransmitError> {
        if self.is_full() {
            return Err(TransmitError::QueueFull);
        }
        TransmitError::check_length(frame, self.place_bytes - OFFLOAD_BYTES)?;
        let place = (self.first + self.queued) % QUEUE_FRAMES;
        self.store[place * self.place_bytes + OFFLOAD_BYTES..][..frame.len()].copy_from_slice(frame);
        self.lens[place] = OFFLOAD_BYTES + frame.len();
        self.queued += 1;
        Ok(())
    }

    /// Hands the queue to the socket. Without a queue it does nothing.
    pub(super) fn flush(&mut self, socket: &impl AsFd) -> Flushed {
        while self.queued > 0 {
            match self.send(socket) {
                Ok(sent) => self.drop_oldest(sent),
                Err(libc::EAGAIN) => return Flushed::Waiting,
                Err(libc::EINTR) => {}
                Err(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => {
                    self.abandon();
                    return Flushed::Down;
                }
                // Too long for the device, no buffer in the driver: this frame is lost, the others have their turn.
                Err(_) => {
                    self.losses += 1;
                    self.drop_oldest(1);
                }
            }
        }
        Flushed::All
    }

    /// Gives up what is queued, and counts it; answers how many frames that were.
    pub(super) fn abandon(&mut self) -> usize {
        let frames = self.queued;
        self.losses += frames as u64;
        self.drop_oldest(frames);
        frames
    }

    fn drop_oldest(&mut self, frames: usize) {
        let frames = frames.min(self.queued);
        self.first = (self.first + frames) % QUEUE_FRAMES;
        self.queued -= frames;
    }

    /// One `sendmmsg`; the number of frames sent, or the errno that met the oldest one.
    fn send(&mut self, socket: &impl AsFd) -> Result<usize, i32> {
        // SAFETY: all bits zero is a valid array of `iovec`.
        let mut pieces: [libc::iovec; QUEUE_FRAMES] = unsafe { zeroed() };
        // SAFETY: all bits zero is a valid array of `mmsghdr`.
        let mut messages: [libc::mmsghdr; QUEUE_FRAMES] = unsafe { zeroed() };
        for (number, (piece, message)) in pieces.iter_mut().zip(&mut messages).take(self.queued).enumerate() {
            let place = (self.first + number) % QUEUE_FRAMES;
            let frame = &mut self.store[place * self.place_bytes..][..self.lens[place]];
            piece.iov_base = frame.as_mut_ptr().cast();
            piece.iov_len = frame.len();
            message.msg_hdr.msg_iov = piece;
            message.msg_hdr.msg_iovlen = 1;
        }
        let fd = socket.as_fd().as_raw_fd();
        let count = self.queued as libc::c_uint;
        // SAFETY: the first `count` messages point to pieces, and those to frames of the store, all of which outlive the
        // call; the kernel only reads the frames.
        let sent = unsafe { libc::sendmmsg(fd, messages.as_mut_ptr(), count, libc::MSG_DONTWAIT as _) };
        match usize::try_from(sent) {
            Ok(sent) => Ok(sent),
            Err(_) => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
        }
    }
}
