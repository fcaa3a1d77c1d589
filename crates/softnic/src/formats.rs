//! The formats of receive, send and completion queues: this crate's own rings, or mlx5's queues in the
//! client's memory.
//!
//! The format is chosen when a queue is made and never changes. The engine looks at it once per queue and
//! burst; what both formats share (failing, flushing, counting) uses the methods here. A queue and its
//! completion queue always have the same format, because both belong to one context.

pub(crate) mod mlx5;

use self::mlx5::sends::SendRing;
use self::mlx5::{CompletionRing, ReceiveRing};
use crate::ring::{Consumer, Producer};
use crate::work::{Cqe, Status};

/// The least number of the smallest requests that share a line, in either format.
const REQUESTS_PER_LINE: usize = 2;

/// The engine's end of the queue that requests are posted to; `R` is one in mlx5's format.
pub(crate) enum Posted<R> {
    /// The queue pair does not have this side.
    None,
    Own(Consumer),
    Mlx5(R),
}

/// The requests of a receive queue.
pub(crate) type Requests = Posted<ReceiveRing>;

/// The requests of a send queue.
pub(crate) type Sends = Posted<SendRing>;

/// The operations by which a queue in mlx5's format is flushed and reset.
pub(crate) trait ClientRing {
    /// Takes the next request; returns what identifies it in a completion.
    fn take(&mut self) -> Option<u64>;

    /// Forgets what is posted, as in RESET: the client sets the doorbell record to 0 before it leaves that
    /// state.
    fn reset(&mut self);
}

impl<R: ClientRing> Posted<R> {
    /// Takes the next request to be flushed; returns what identifies it in a completion.
    pub(crate) fn take(&mut self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Own(consumer) => take_own(consumer),
            Self::Mlx5(ring) => ring.take(),
        }
    }

    /// Gives the consumed requests back to who posts them. With mlx5 the completions do that.
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
            Self::Mlx5(ring) => ring.reset(),
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
            Self::Mlx5(ring) => ring.refresh(wanted),
        }
    }

    /// How many requests are posted, by the last look.
    #[inline]
    pub(crate) fn published(&self) -> u32 {
        match self {
            Self::None => 0,
            Self::Own(consumer) => consumer.published(),
            Self::Mlx5(ring) => ring.published(),
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
            Self::Mlx5(ring) => {
                ring.refresh(wanted);
                for ahead in (0..wanted).step_by(REQUESTS_PER_LINE) {
                    ring.prefetch(ahead);
                }
            }
        }
    }
}

/// Takes the next request out of a ring of this crate's, whatever it is; returns its id.
fn take_own(consumer: &mut Consumer) -> Option<u64> {
    if !consumer.has_next() {
        return None;
    }
    // SAFETY: the slot was published, so it is this side's, and slots of requests begin with the request's
    // id.
    let wr_id = unsafe { consumer.slot().cast::<u64>().read() };
    consumer.advance();
    Some(wr_id)
}

impl Sends {
    /// Whether something is posted. A queue in mlx5's format is looked at in the client's memory.
    #[inline]
    pub(crate) fn has_next(&mut self) -> bool {
        match self {
            Self::None => false,
            Self::Own(consumer) => consumer.has_next(),
            Self::Mlx5(ring) => ring.has_next(),
        }
    }

    /// Whether a post to it does not wake the engine.
    pub(crate) fn is_polled(&self) -> bool {
        matches!(self, Self::Mlx5(_))
    }
}

/// The engine's end of a completion queue.
pub(crate) enum Completions {
    Own(Producer),
    Mlx5(CompletionRing),
}

impl Completions {
    /// Whether `wanted` completions can be written.
    #[inline]
    pub(crate) fn has_room(&mut self, wanted: u32) -> bool {
        match self {
            Self::Own(producer) => producer.has_room(wanted),
            Self::Mlx5(ring) => ring.room_for(wanted) >= wanted,
        }
    }

    /// Writes a completion and counts it. There must be room.
    #[inline]
    pub(crate) fn write(&mut self, cqe: &Cqe) {
        match self {
            Self::Own(producer) => {
                // SAFETY: there is room, so the slot is the producer's; completion slots are `Cqe`s, aligned
                // with the ring.
                unsafe { producer.slot().cast::<Cqe>().write(*cqe) };
                producer.advance();
            }
            Self::Mlx5(ring) => ring.write(cqe, false),
        }
    }

    /// Shows the application what was written. With mlx5 each completion shows itself.
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
            Self::Mlx5(ring) => ring.position(),
        }
    }

    /// Whether the completion at `index` raises an event for who waits for solicited ones only. It was
    /// written, and not yet a ring ago.
    pub(crate) fn is_solicited(&self, index: u32) -> bool {
        match self {
            Self::Own(producer) => {
                // SAFETY: filled by this side, which alone writes to it; the slots are aligned `Cqe`s.
                let cqe = unsafe { producer.peek(index).cast::<Cqe>().as_ref() };
                cqe.status() != u32::from(Status::Success as u8) || cqe.is_solicited()
            }
            Self::Mlx5(ring) => ring.is_error(index),
        }
    }
}
