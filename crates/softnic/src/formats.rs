//! The formats of receive, send and completion queues: this crate's own rings, or the queues of another
//! device, for clients that know only those. A front end brings such *foreign* formats.
//!
//! The format is chosen when a queue is made and never changes. The engine looks at it once per queue and
//! burst; what all formats share (failing, flushing, counting) uses the methods here. The queues of
//! one context are all own or all foreign.

use std::any::Any;
use std::ptr::NonNull;

use crate::limits::MAX_SGE;
use crate::ring::{RingConsumer, RingProducer};
pub use crate::work::{Cqe, Element, Status, WorkOpcode};
use crate::work::{RECEIVE_HEADER_BYTES, receive_slot_bytes};

/// The least number of the smallest requests that share a line, in any format.
const REQUESTS_PER_LINE: usize = 2;

/// The engine's end of the queue that requests are posted to.
pub(crate) enum Posted<R: ?Sized> {
    /// The queue pair does not have this side.
    None,
    Own(RingConsumer),
    Foreign(Box<R>),
}

/// The requests of a receive queue.
pub(crate) type Requests = Posted<dyn ReceiveFormat>;

/// The requests of a send queue.
pub(crate) type Sends = Posted<dyn SendFormat>;

/// A queue of requests in a foreign format, in memory of the client's. No count that the client wrote is
/// believed.
pub trait PostedFormat: Any + Send {
    /// Takes the next request to be flushed; returns what identifies it in a completion.
    fn take(&mut self) -> Option<u64>;

    /// Forgets what is posted, as a queue does that enters RESET.
    fn reset(&mut self);
}

/// A receive queue in a foreign format.
pub trait ReceiveFormat: PostedFormat {
    /// Looks at how many requests are posted, unless `wanted` are known to be.
    fn refresh(&mut self, wanted: u32);

    /// How many requests are posted, by the last look.
    fn published(&self) -> u32;

    /// Whether the client wrote an index that makes no sense: the queue then fails.
    fn is_corrupt(&self) -> bool;

    /// Fetches the request `ahead` of the next one, if it is known to be there.
    fn prefetch(&self, ahead: u32);

    /// The request `nth` behind the next one; it must be posted.
    fn read(&self, nth: u32) -> ReceiveRequest;

    /// Counts requests as consumed.
    fn advance_by(&mut self, requests: u32);
}

/// A receive request, in the form in which the engine scatters frames.
#[repr(C)]
pub struct ReceiveRequest {
    /// The number that identifies it in a completion.
    pub id: u64,
    /// Up to [`Element::END`].
    pub elements: [Element; MAX_SGE as usize],
}

const _: () = assert!(size_of::<ReceiveRequest>() == receive_slot_bytes(MAX_SGE));
const _: () = assert!(std::mem::offset_of!(ReceiveRequest, elements) == RECEIVE_HEADER_BYTES);

impl ReceiveRequest {
    /// The request as a slot of this crate's own format, with `MAX_SGE` elements.
    #[inline]
    pub(crate) fn as_slot(&self) -> NonNull<u8> {
        NonNull::from(self).cast()
    }
}

/// A send queue in a foreign format.
pub trait SendFormat: PostedFormat {
    /// Whether there is a posted request, or one that makes no sense.
    fn has_next(&mut self) -> bool;

    /// Reads the next request; there must be one.
    fn read_next(&mut self) -> SendRequest;

    /// Hands out the bytes of the request that was read: the headers in one piece, which may be empty, then
    /// the parts behind them.
    ///
    /// # Errors
    /// The first one of `to`, or that the request ends too early.
    fn parts(&self, to: &mut dyn SendParts) -> Result<(), Status>;

    /// Counts the request that was read as consumed.
    fn advance(&mut self);
}

/// The next send request of a queue.
#[derive(Clone, Copy)]
pub struct SendRequest {
    /// The number that identifies it in a completion.
    pub id: u64,
    /// [`WorkOpcode::Send`] or [`WorkOpcode::Segments`].
    pub opcode: WorkOpcode,
    /// Whether it has a completion.
    pub is_signaled: bool,
    /// Why it cannot be sent, if it cannot.
    pub offloads: Result<Offloads, Status>,
}

/// The work on a request that the client leaves to the device.
#[derive(Clone, Copy)]
pub struct Offloads {
    /// Whether the checksums of IPv4 and of TCP or UDP are to be filled in.
    pub wants_checksums: bool,
    /// The bytes of a stream in each frame; of no use for a request that is one frame.
    pub segment_bytes: usize,
}

/// Takes the bytes of a send request, in order.
pub trait SendParts {
    /// Bytes that are in the request, and that `fill` copies.
    ///
    /// # Errors
    /// There is no room, or `fill` fails.
    fn inline(
        &mut self,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Result<(), Status>,
    ) -> Result<(), Status>;

    /// Bytes in memory of the client's.
    ///
    /// # Errors
    /// There is no room, or the key does not allow it.
    fn memory(&mut self, key: u32, address: u64, bytes: u32) -> Result<(), Status>;
}

/// A completion queue in a foreign format.
pub trait CompletionFormat: Any + Send {
    /// How many completions can be written; looks at the client's index only if they are fewer than
    /// `wanted`.
    fn room_for(&mut self, wanted: u32) -> u32;

    /// Writes a completion and shows it; there must be room. `is_ipv4`: the frame that was received is.
    fn write(&mut self, cqe: &Cqe, is_ipv4: bool);

    /// The index of the next completion.
    fn position(&self) -> u32;

    /// Whether the completion at `index` is an error. It was written, and not yet a ring ago.
    fn is_error(&self, index: u32) -> bool;

    /// Takes the client's demand for an event, if there is a new one since the last look.
    fn take_arm(&self) -> Option<Arm>;
}

/// A client's demand for an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arm {
    /// Whether only a failed completion, or one that its sender wants noticed, raises the event.
    pub solicited_only: bool,
    /// The index of the first completion that counts.
    pub from: u32,
}

impl<R: PostedFormat + ?Sized> Posted<R> {
    /// Takes the next request to be flushed; returns what identifies it in a completion.
    pub(crate) fn take(&mut self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Own(consumer) => take_own(consumer),
            Self::Foreign(ring) => ring.take(),
        }
    }

    /// Gives the consumed requests back to who posts them. In a foreign format the completions do that.
    #[inline]
    pub(crate) fn publish(&self) {
        if let Self::Own(consumer) = self {
            consumer.publish();
        }
    }

    /// Forgets what is posted, as a queue does that enters RESET.
    pub(crate) fn discard(&mut self) {
        match self {
            Self::None => {}
            Self::Own(consumer) => consumer.discard(),
            Self::Foreign(ring) => ring.reset(),
        }
    }
}

impl Requests {
    /// Looks at how many requests are posted, unless `wanted` are known to be.
    #[inline]
    pub(crate) fn refresh(&mut self, wanted: u32) {
        match self {
            Self::None => {}
            Self::Own(consumer) => consumer.refresh(wanted),
            Self::Foreign(ring) => ring.refresh(wanted),
        }
    }

    /// How many requests are posted, by the last look.
    #[inline]
    pub(crate) fn published(&self) -> u32 {
        match self {
            Self::None => 0,
            Self::Own(consumer) => consumer.published(),
            Self::Foreign(ring) => ring.published(),
        }
    }

    /// Refreshes as [`refresh`](Self::refresh) does, and fetches up to `wanted` of the posted requests.
    #[inline]
    pub(crate) fn fetch(&mut self, wanted: u32) {
        match self {
            Self::None => {}
            Self::Own(consumer) => {
                consumer.refresh(wanted);
                for ahead in (0..wanted).step_by(REQUESTS_PER_LINE) {
                    consumer.prefetch(ahead);
                }
            }
            Self::Foreign(ring) => {
                ring.refresh(wanted);
                for ahead in (0..wanted).step_by(REQUESTS_PER_LINE) {
                    ring.prefetch(ahead);
                }
            }
        }
    }
}

/// Takes the next request out of a ring of this crate's, whatever it is; returns its id.
fn take_own(consumer: &mut RingConsumer) -> Option<u64> {
    if !consumer.has_next() {
        return None;
    }
    // SAFETY: the slot was published, so it is this side's, and slots of requests begin with the request's
    // id (`check_slots` in `work_queues` and `queue_pairs`).
    let wr_id = unsafe { consumer.slot().cast::<u64>().read() };
    consumer.advance();
    Some(wr_id)
}

impl Sends {
    /// Whether something is posted. A queue in a foreign format is looked at in the client's memory.
    #[inline]
    pub(crate) fn has_next(&mut self) -> bool {
        match self {
            Self::None => false,
            Self::Own(consumer) => consumer.has_next(),
            Self::Foreign(ring) => ring.has_next(),
        }
    }

    /// Whether a post to it does not wake the engine.
    pub(crate) fn is_polled(&self) -> bool {
        matches!(self, Self::Foreign(_))
    }
}

/// The engine's end of a completion queue.
pub(crate) enum Completions {
    Own(RingProducer),
    Foreign(Box<dyn CompletionFormat>),
}

impl Completions {
    /// Whether `wanted` completions can be written.
    #[inline]
    pub(crate) fn has_room(&mut self, wanted: u32) -> bool {
        match self {
            Self::Own(producer) => producer.has_room(wanted),
            Self::Foreign(ring) => ring.room_for(wanted) >= wanted,
        }
    }

    /// Writes a completion and counts it. There must be room.
    #[inline]
    pub(crate) fn write(&mut self, cqe: &Cqe) {
        match self {
            Self::Own(producer) => {
                // SAFETY: there is room, so the slot is the producer's; completion slots are `Cqe`s, aligned
                // with the ring (`check_slots` in `completion_queues`).
                unsafe { producer.slot().cast::<Cqe>().write(*cqe) };
                producer.advance();
            }
            Self::Foreign(ring) => ring.write(cqe, false),
        }
    }

    /// Shows the application what was written. In a foreign format each completion shows itself.
    #[inline]
    pub(crate) fn publish(&self) {
        if let Self::Own(producer) = self {
            producer.publish();
        }
    }

    /// The index of the next completion.
    #[inline]
    pub(crate) fn position(&self) -> u32 {
        match self {
            Self::Own(producer) => producer.position(),
            Self::Foreign(ring) => ring.position(),
        }
    }

    /// Whether the completion at `index` raises an event for who waits for solicited ones only. It was
    /// written, and not yet a ring ago.
    pub(crate) fn is_solicited(&self, index: u32) -> bool {
        match self {
            Self::Own(producer) => {
                // SAFETY: filled by this side, which alone writes to it; the slots are aligned `Cqe`s
                // (`check_slots` in `completion_queues`).
                let cqe = unsafe { producer.peek(index).cast::<Cqe>().as_ref() };
                cqe.status() != u32::from(Status::Success as u8) || cqe.is_solicited()
            }
            Self::Foreign(ring) => ring.is_error(index),
        }
    }
}
