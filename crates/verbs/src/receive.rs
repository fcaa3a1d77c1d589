//! Ways to receive. [`Receive`] has what a polling loop does with a receive queue. [`VerbsReceive`] does it
//! by the functions of `ibv_cq_ex`, on every device; [`DirectReceive`] without them, on mlx5. A
//! [`ReceivePath`] is either of them.
//!
//! A loop hands in a taker, which gets each completion of a poll in order, with its frame. So the compiler
//! makes one loop of the path and the taker, without a call for each completion.

use crate::{
    Completion, CompletionQueue, CompletionStatus, DirectReceive, FlowTag, Frame, FramePool, ReceiveQueue,
    Result,
};

/// The fields of a successful receive that were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Length of the packet, not more than a frame holds.
    pub bytes: u32,
    /// The tag of the flow that steered it.
    pub tag: Option<FlowTag>,
    /// The device's clock when it arrived, in ticks.
    pub timestamp: Option<u64>,
}

/// The receiver of the completions of a poll.
pub trait TakeReceives {
    /// A packet arrived. There is no frame if the completion named none that the device has.
    fn packet(&mut self, arrival: Arrival, frame: Option<Frame>);

    /// A receive failed, or succeeded without a length or with one that exceeds the frame.
    fn rejected(&mut self, status: CompletionStatus, frame: Option<Frame>);
}

/// The result of a poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    /// Completions taken.
    pub completions: usize,
    /// No completion was waiting at the end. False if that is not known, because another thread uses the
    /// queue.
    pub is_empty: bool,
}

/// A receive queue with the completion queue of its receives, used by one polling loop.
pub trait Receive {
    /// Passes the waiting completions to `taker`, at most `limit` of them, which is at least 1. Takes none
    /// while a queue that completes here is changed or destroyed by another thread.
    fn poll(&mut self, pool: &mut FramePool, limit: usize, taker: &mut impl TakeReceives) -> Polled;

    /// Posts frames of `pool` from the end of `frames`, as [`ReceiveQueue::post`].
    fn post(&mut self, pool: &mut FramePool, frames: &mut Vec<Frame>) -> usize;

    /// Asks for one event on the completion queue's channel, as
    /// [`CompletionQueue::request_notification`] for all completions. To be called once for each event.
    ///
    /// # Errors
    /// As there.
    fn request_notification(&mut self) -> Result<()>;

    /// Stops the queue, as [`ReceiveQueue::stop`].
    ///
    /// # Errors
    /// As there.
    fn stop(&mut self) -> Result<()>;

    /// Makes a queue ready anew that has failed, as [`ReceiveQueue::restart`]: `taker` gets the completions
    /// that are waiting, and `frames` those without one. Returns how many these are.
    ///
    /// # Errors
    /// As there.
    fn restart(
        &mut self,
        pool: &mut FramePool,
        frames: &mut Vec<Frame>,
        taker: &mut impl TakeReceives,
    ) -> Result<usize>;
}

/// Receives by the functions that the provider of a device put into its queues.
pub struct VerbsReceive {
    /// Before the completions: queues are destroyed first.
    queue: ReceiveQueue,
    completions: CompletionQueue,
}

impl VerbsReceive {
    /// Receives by `queue`, whose receives complete into `completions`.
    pub fn new(completions: CompletionQueue, queue: ReceiveQueue) -> Self {
        Self { queue, completions }
    }

    /// The completion queue.
    pub fn completions(&self) -> &CompletionQueue {
        &self.completions
    }
}

impl Receive for VerbsReceive {
    // By itself it has enough registers for all that the loop uses.
    #[inline(never)]
    fn poll(&mut self, pool: &mut FramePool, limit: usize, taker: &mut impl TakeReceives) -> Polled {
        let mut open = match self.completions.try_poll() {
            Ok(open) => open,
            Err(errno) => return Polled { completions: 0, is_empty: errno == libc::ENOENT },
        };
        let mut polled = Polled::default();
        let mut next = open.next();
        loop {
            let Some(completion) = next else {
                polled.is_empty = true;
                break;
            };
            polled.completions += 1;
            take(completion, pool, taker);
            if polled.completions >= limit {
                break;
            }
            next = open.next();
        }
        polled
    }

    #[inline]
    fn post(&mut self, pool: &mut FramePool, frames: &mut Vec<Frame>) -> usize {
        self.queue.post(pool, frames)
    }

    fn request_notification(&mut self) -> Result<()> {
        self.completions.request_notification(false)
    }

    fn stop(&mut self) -> Result<()> {
        self.queue.stop()
    }

    fn restart(
        &mut self,
        pool: &mut FramePool,
        frames: &mut Vec<Frame>,
        taker: &mut impl TakeReceives,
    ) -> Result<usize> {
        let Self { queue, completions } = self;
        queue.restart(completions, pool, frames, |completion, pool| take(completion, pool, taker))
    }
}

/// Passes a completion on.
#[inline]
fn take(completion: Completion<'_>, pool: &mut FramePool, taker: &mut impl TakeReceives) {
    let bytes = if completion.succeeded() { completion.byte_len() } else { None };
    if let Some(bytes) = bytes
        && bytes <= pool.frame_bytes()
    {
        let arrival = Arrival { bytes, tag: completion.flow_tag(), timestamp: completion.timestamp() };
        taker.packet(arrival, pool.reclaim(completion).ok());
    } else {
        reject(completion, pool, taker);
    }
}

/// Passes on a completion that is no packet.
#[cold]
fn reject(completion: Completion<'_>, pool: &mut FramePool, taker: &mut impl TakeReceives) {
    let status = completion.status();
    taker.rejected(status, pool.reclaim(completion).ok());
}

/// One of the ways to receive, chosen when a queue is made.
pub enum ReceivePath {
    /// The provider's functions.
    Verbs(VerbsReceive),
    /// The rings themselves.
    Direct(Box<DirectReceive>),
}

impl ReceivePath {
    fn completions(&self) -> &CompletionQueue {
        match self {
            Self::Verbs(path) => path.completions(),
            Self::Direct(path) => path.completions(),
        }
    }

    /// How many entries the completion queue has.
    pub fn completion_entries(&self) -> u32 {
        self.completions().entries()
    }

    /// Whether the rings themselves are used.
    pub fn is_direct(&self) -> bool {
        matches!(self, Self::Direct(_))
    }

    /// How often the completion queue could not be polled; never reset.
    pub fn poll_errors(&self) -> u64 {
        self.completions().poll_errors()
    }
}

impl Receive for ReceivePath {
    #[inline]
    fn poll(&mut self, pool: &mut FramePool, limit: usize, taker: &mut impl TakeReceives) -> Polled {
        match self {
            Self::Verbs(path) => path.poll(pool, limit, taker),
            Self::Direct(path) => path.poll(pool, limit, taker),
        }
    }

    #[inline]
    fn post(&mut self, pool: &mut FramePool, frames: &mut Vec<Frame>) -> usize {
        match self {
            Self::Verbs(path) => path.post(pool, frames),
            Self::Direct(path) => path.post(pool, frames),
        }
    }

    fn request_notification(&mut self) -> Result<()> {
        match self {
            Self::Verbs(path) => path.request_notification(),
            Self::Direct(path) => path.request_notification(),
        }
    }

    fn stop(&mut self) -> Result<()> {
        match self {
            Self::Verbs(path) => path.stop(),
            Self::Direct(path) => path.stop(),
        }
    }

    fn restart(
        &mut self,
        pool: &mut FramePool,
        frames: &mut Vec<Frame>,
        taker: &mut impl TakeReceives,
    ) -> Result<usize> {
        match self {
            Self::Verbs(path) => path.restart(pool, frames, taker),
            Self::Direct(path) => path.restart(pool, frames, taker),
        }
    }
}
