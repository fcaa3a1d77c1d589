//! Packet frames: registered memory cut into equal pieces, each with one owner at a time.
//!
//! A frame is free (in the pool), held (someone has its [`Frame`]), posted or sent (the device has it). Only
//! a completion that names a posted frame turns it back into a held one, and a sent one comes back by its
//! queue pair, which knows of which completions it is a part. So no frame ever has two owners. Used by the
//! polling loop: nothing here allocates after [`FramePool::new`], and every step is a bounds check and a
//! byte.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::{Completion, Domain, MemoryRegion, VerbsError, WorkCompletion};

/// Most frames of one pool: at the usual 2 KiB, 32 GiB.
pub(crate) const MAX_FRAMES: usize = 1 << 24;

/// A bit of work request ids that no index has. It marks sends without a signal: such a send may have a
/// completion all the same, and its frame comes back by a later one as well, so that a pool must not take
/// what the first one names.
pub(crate) const UNSIGNALLED: u32 = 1 << 31;
const _: () = assert!(MAX_FRAMES <= UNSIGNALLED as usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum State {
    Free,
    Held,
    /// Posted to receive into; comes back by the completion that names it, or with the others of its queue
    /// ([`FramePool::take_back_posted`]).
    Posted,
    /// Sent with a signal; comes back by the completion that names it.
    Signalled,
    /// Comes back by the completion of its send or of a later one of the same queue pair, which keeps the
    /// order.
    Sent,
}

impl State {
    #[inline]
    fn of_send(is_signalled: bool) -> Self {
        if is_signalled { Self::Signalled } else { Self::Sent }
    }

    /// Whether the completion that names the frame gives it back.
    #[inline]
    fn comes_back_by_name(self) -> bool {
        matches!(self, Self::Posted | Self::Signalled)
    }
}

/// A frame that is neither free nor posted: its bytes belong to the owner of this. Dropping it instead of
/// releasing it loses the frame until the pool goes.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a frame that is neither posted nor released is lost to its pool"]
pub struct Frame {
    /// The work request id that names it: the id of its pool, and below its index, which is less than the
    /// pool's count. Only [`Ledger`] makes frames. Never 0, so that an `Option<Frame>` is no larger than a
    /// frame.
    wr_id: NonZeroU64,
}

const _: () = assert!(size_of::<Option<Frame>>() == 8);

impl Frame {
    #[inline]
    fn new(index: u32, pool: NonZeroU32) -> Self {
        const PLACE: NonZeroU64 = NonZeroU64::new(1 << u32::BITS).unwrap();
        Self { wr_id: NonZeroU64::from(pool).saturating_mul(PLACE) | u64::from(index) }
    }

    /// The work request id that names it.
    #[inline]
    pub(crate) fn wr_id(&self) -> u64 {
        self.wr_id.get()
    }
}

/// The index of the frame that a work request id names, if that is one of the pool with this id; otherwise
/// beyond all indices.
#[inline]
fn index_of(pool: NonZeroU32, wr_id: u64) -> usize {
    const { assert!(usize::BITS >= u64::BITS, "the pool's id must not be cut off") };
    (wr_id ^ Frame::new(0, pool).wr_id()) as usize
}

/// Where each frame of a pool is, apart from the memory itself.
pub(crate) struct Ledger {
    /// Unique in this process, so that frames and work request ids of other pools are recognised.
    id: NonZeroU32,
    states: Box<[State]>,
    /// The free ones, last freed first out: the warmest in cache. Its capacity is the frame count.
    free: Vec<u32>,
}

impl Ledger {
    pub(crate) fn new(id: NonZeroU32, count: u32) -> Self {
        Self {
            id,
            states: vec![State::Free; count as usize].into_boxed_slice(),
            free: (0..count).rev().collect(),
        }
    }

    /// Unique in this process.
    #[inline]
    pub(crate) fn id(&self) -> NonZeroU32 {
        self.id
    }

    #[inline]
    pub(crate) fn take(&mut self) -> Option<Frame> {
        let index = self.free.pop()?;
        self.states[index as usize] = State::Held;
        Some(Frame::new(index, self.id))
    }

    /// The frame's index, if it is one of this ledger's.
    #[inline]
    fn index(&self, frame: &Frame) -> Option<u32> {
        self.named(frame.wr_id())
    }

    /// Takes a held frame back; false if it belongs to another pool.
    #[inline]
    pub(crate) fn release(&mut self, frame: &Frame) -> bool {
        let Some(index) = self.index(frame) else { return false };
        debug_assert_eq!(self.states[index as usize], State::Held, "a frame exists only while it is held");
        self.states[index as usize] = State::Free;
        self.free.push(index);
        true
    }

    /// Notes that the device has it now. The caller gives up its [`Frame`].
    #[inline]
    fn posted(&mut self, index: u32) {
        self.states[index as usize] = State::Posted;
    }

    /// Takes [`Ledger::posted`] or [`Ledger::sent`] back: the device has refused the frame, and the caller
    /// keeps its [`Frame`].
    pub(crate) fn refused(&mut self, index: u32) {
        self.states[index as usize] = State::Held;
    }

    /// Notes that the device has this frame for a send. It comes back by [`Taker::take_back`]; with
    /// `is_signalled` also by [`Ledger::reclaim`]. Returns its index; `None` for a frame of another pool. The
    /// caller gives up its [`Frame`].
    #[inline]
    pub(crate) fn sent(&mut self, frame: &Frame, is_signalled: bool) -> Option<u32> {
        let index = self.index(frame)?;
        self.states[index as usize] = State::of_send(is_signalled);
        Some(index)
    }

    /// The send of this frame has a signal after all. Returns the id of its request.
    #[inline]
    pub(crate) fn signalled(&mut self, index: u32) -> u64 {
        self.states[index as usize] = State::Signalled;
        Frame::new(index, self.id).wr_id()
    }

    /// Takes [`Ledger::sent`] back: the device never had the frame, which is free now.
    pub(crate) fn withdrawn(&mut self, index: u32) {
        self.states[index as usize] = State::Free;
        self.free.push(index);
    }

    /// The index that `wr_id` has, perhaps with [`UNSIGNALLED`], if it names a frame of this ledger.
    #[inline]
    pub(crate) fn named(&self, wr_id: u64) -> Option<u32> {
        ((wr_id >> 32) as u32 == self.id.get()).then_some(wr_id as u32)
    }

    /// The frame that `wr_id` names, if this ledger has lent it to a device.
    #[inline]
    fn reclaim(&mut self, wr_id: u64) -> Option<Frame> {
        let state = self.states.get_mut(index_of(self.id, wr_id))?;
        if !state.comes_back_by_name() {
            return None;
        }
        *state = State::Held;
        // SAFETY: `index_of` has found it to be of this pool, so its upper half is the pool's id, which is
        // not 0.
        Some(Frame { wr_id: unsafe { NonZeroU64::new_unchecked(wr_id) } })
    }

    /// Takes all frames back that are posted to receive into; returns how many.
    #[cold]
    fn take_back_posted(&mut self, frames: &mut Vec<Frame>) -> usize {
        let before = frames.len();
        for (index, state) in (0..).zip(&mut self.states) {
            if *state == State::Posted {
                *state = State::Held;
                frames.push(Frame::new(index, self.id));
            }
        }
        frames.len() - before
    }

    /// For loops that take frames back.
    #[inline]
    pub(crate) fn taker(&mut self) -> Taker<'_> {
        Taker { id: self.id, states: &mut self.states }
    }

    #[cfg(test)]
    pub(crate) fn free_count(&self) -> usize {
        self.free.len()
    }
}

/// Takes frames of a ledger back from a device.
pub(crate) struct Taker<'l> {
    id: NonZeroU32,
    states: &'l mut [State],
}

impl Taker<'_> {
    /// The frame with this index, if the device has it for a send with the same `is_signalled`.
    #[inline]
    pub(crate) fn take_back(&mut self, index: u32, is_signalled: bool) -> Option<Frame> {
        let state = self.states.get_mut(index as usize)?;
        if *state != State::of_send(is_signalled) {
            return None;
        }
        *state = State::Held;
        Some(Frame::new(index, self.id))
    }
}

/// A memory region cut into frames.
pub struct FramePool {
    /// Shared with the queues that frames were posted to.
    region: Arc<MemoryRegion>,
    pub(crate) ledger: Ledger,
    frame_bytes: u32,
    receivers: Receivers,
}

/// The queues that frames of a pool were posted to, to receive into them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Receivers {
    None,
    One(QueueKey),
    Several,
}

/// A number that a queue of this process has alone, also after it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueKey(u64);

impl QueueKey {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A frame as work requests name it.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    pub(crate) wr_id: u64,
    pub(crate) address: u64,
}

impl FramePool {
    /// Cuts `region` into as many frames of `frame_bytes` as fit; what is left over is not used.
    pub fn new(region: MemoryRegion, frame_bytes: u32) -> crate::Result<Self> {
        // Its last value is given to no pool: it marks the ids of sends without a frame.
        static NEXT_ID: AtomicU32 = AtomicU32::new(1);
        let count = frame_count(region.bytes(), frame_bytes)?;
        let id = NEXT_ID.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |id| id.checked_add(1));
        let id = id.ok().and_then(NonZeroU32::new).ok_or(VerbsError::FramePoolIds)?;
        let (region, ledger) = (Arc::new(region), Ledger::new(id, count));
        Ok(Self { region, ledger, frame_bytes, receivers: Receivers::None })
    }

    /// A free frame, now held. Its bytes are unchanged since the last use.
    #[inline]
    pub fn take(&mut self) -> Option<Frame> {
        self.ledger.take()
    }

    /// Gives a frame back. One of another pool is logged and lost, because its own pool is not known here.
    #[inline]
    #[allow(clippy::needless_pass_by_value)] // the frame ends here
    pub fn release(&mut self, frame: Frame) {
        if !self.ledger.release(&frame) {
            foreign(&frame);
        }
    }

    /// The bytes of a held frame; none for a frame of another pool.
    #[inline]
    pub fn bytes<'a>(&'a self, frame: &'a Frame) -> &'a [u8] {
        let Some(start) = self.address(frame) else { return &[] };
        // SAFETY: `address` is in the region and `frame_bytes` long, initialised by its owner; the frame is
        // held, so neither the device nor another `Frame` covers it, and posting it needs the `Frame`
        // borrowed here.
        unsafe { std::slice::from_raw_parts(start, self.frame_bytes as usize) }
    }

    /// The bytes of a held frame, to be written; none for a frame of another pool.
    #[inline]
    pub fn bytes_mut<'a>(&'a mut self, frame: &'a mut Frame) -> &'a mut [u8] {
        let Some(start) = self.address(frame) else { return &mut [] };
        // SAFETY: as for `bytes`; the exclusive borrow of the only `Frame` for these bytes makes it
        // exclusive.
        unsafe { std::slice::from_raw_parts_mut(start, self.frame_bytes as usize) }
    }

    /// The frame that a completion gives back, whatever its status. The completion comes back instead if it
    /// names one of another pool, one that the device does not have, or one that was sent without a signal
    /// ([`RawQueuePair::reclaim`](crate::RawQueuePair::reclaim)).
    ///
    /// A completion gives one frame, once. It still names that frame when the frame has been posted anew, so
    /// it is used up here; read the other fields of the completion before:
    ///
    /// ```
    /// fn take(pool: &mut verbs::FramePool, completion: verbs::Completion<'_>) -> Option<verbs::Frame> {
    ///     let _length = completion.byte_len();
    ///     pool.reclaim(completion).ok()
    /// }
    /// ```
    /// ```compile_fail,E0382
    /// fn twice(pool: &mut verbs::FramePool, completion: verbs::Completion<'_>) {
    ///     let _first = pool.reclaim(completion);
    ///     let _second = pool.reclaim(completion);
    /// }
    /// ```
    #[inline]
    pub fn reclaim<'c>(&mut self, completion: Completion<'c>) -> Result<Frame, Completion<'c>> {
        self.ledger.reclaim(completion.wr_id()).ok_or(completion)
    }

    /// Reclaims a frame as [`FramePool::reclaim`] does, for a completion by value.
    pub fn reclaim_classic(&mut self, completion: WorkCompletion) -> Result<Frame, WorkCompletion> {
        self.ledger.reclaim(completion.wr_id()).ok_or(completion)
    }

    /// Reclaims a frame as [`FramePool::reclaim`] does, by its work request id.
    #[inline]
    pub(crate) fn reclaim_id(&mut self, wr_id: u64) -> Option<Frame> {
        self.ledger.reclaim(wr_id)
    }

    /// How many frames there are.
    pub fn frame_count(&self) -> usize {
        self.ledger.states.len()
    }

    /// How many of them are free.
    #[inline]
    pub fn free_count(&self) -> usize {
        self.ledger.free.len()
    }

    /// Size of each.
    #[inline]
    pub fn frame_bytes(&self) -> u32 {
        self.frame_bytes
    }

    /// Unique in this process.
    #[inline]
    pub(crate) fn id(&self) -> NonZeroU32 {
        self.ledger.id
    }

    /// The memory of its frames, as it is registered; for threads other than that of the pool.
    pub fn registered(&self) -> RegisteredFrames {
        RegisteredFrames { pool: self.id(), region: Arc::clone(&self.region) }
    }

    #[inline]
    pub(crate) fn address(&self, frame: &Frame) -> Option<*mut u8> {
        let index = self.ledger.index(frame)?;
        // Within the region: `new` fits the count to it and frames carry indices below the count.
        Some(self.region.start().as_ptr().wrapping_add(index as usize * self.frame_bytes as usize))
    }

    /// How a work request names this frame; `None` for a frame of another pool.
    #[inline]
    pub(crate) fn slot(&self, frame: &Frame) -> Option<Slot> {
        let address = self.address(frame)?.addr() as u64;
        Some(Slot { wr_id: frame.wr_id(), address })
    }

    /// Notes that frames are posted to this queue from now on, to receive into them.
    #[cold]
    pub(crate) fn note_receiver(&mut self, queue: QueueKey) {
        self.receivers = match self.receivers {
            Receivers::None => Receivers::One(queue),
            Receivers::One(known) if known == queue => self.receivers,
            Receivers::One(_) | Receivers::Several => Receivers::Several,
        };
    }

    /// Takes all frames back that this queue has, if frames of the pool were posted to no other queue: which
    /// queue has a frame is not known. Returns how many. The device must have given them up, and no
    /// completion that names one may be waiting.
    #[cold]
    pub(crate) fn take_back_posted(&mut self, queue: QueueKey, frames: &mut Vec<Frame>) -> usize {
        if self.receivers == Receivers::One(queue) { self.ledger.take_back_posted(frames) } else { 0 }
    }

    /// Notes that the device has this frame; the caller gives up its [`Frame`].
    #[inline]
    pub(crate) fn posted(&mut self, frame: &Frame) {
        if let Some(index) = self.ledger.index(frame) {
            self.ledger.posted(index);
        }
    }

    /// Passes to `each` how a work request names a frame, for those of `frames` that are of this pool. They
    /// count as posted from now on.
    #[inline]
    pub(crate) fn post_each(&mut self, frames: &[Frame], mut each: impl FnMut(Slot)) {
        // Copies of what stays the same, which the compiler cannot know behind the states that are written.
        let (start, frame_bytes) = (self.region.start().as_ptr().addr() as u64, u64::from(self.frame_bytes));
        let Ledger { id, states, .. } = &mut self.ledger;
        let (id, states) = (*id, &mut **states);
        for frame in frames {
            let index = index_of(id, frame.wr_id());
            if let Some(state) = states.get_mut(index) {
                *state = State::Posted;
                each(Slot { wr_id: frame.wr_id(), address: start + index as u64 * frame_bytes });
            }
        }
    }

    /// For a loop that sends frames.
    #[inline]
    pub(crate) fn lender(&mut self) -> Lender<'_> {
        let (start, frame_bytes) = (self.region.start().as_ptr().addr() as u64, u64::from(self.frame_bytes));
        let Ledger { id, states, .. } = &mut self.ledger;
        Lender { id: *id, states, start, frame_bytes }
    }

    /// Takes [`FramePool::post_each`] back: the device has refused the frame.
    pub(crate) fn refused(&mut self, frame: &Frame) {
        if let Some(index) = self.ledger.index(frame) {
            self.ledger.refused(index);
        }
    }

    /// Whether the frame is of this pool.
    #[inline]
    pub(crate) fn owns(&self, frame: &Frame) -> bool {
        self.ledger.index(frame).is_some()
    }
}

/// Lends frames of a pool to a device, for sends. Has copies of what stays the same, as in
/// [`FramePool::post_each`].
pub(crate) struct Lender<'p> {
    id: NonZeroU32,
    states: &'p mut [State],
    start: u64,
    frame_bytes: u64,
}

impl Lender<'_> {
    /// Notes that the device has this frame for a send without a signal, as [`Ledger::sent`]. Returns how a
    /// work request names it; `None` for a frame of another pool.
    #[inline]
    pub(crate) fn send(&mut self, frame: &Frame) -> Option<Slot> {
        let index = index_of(self.id, frame.wr_id());
        *self.states.get_mut(index)? = State::Sent;
        Some(Slot { wr_id: frame.wr_id(), address: self.start + index as u64 * self.frame_bytes })
    }
}

/// The memory of a pool's frames, as it is registered in one protection domain. A queue pair in another
/// domain sends frames of the pool after [`RawQueuePair::admit`](crate::RawQueuePair::admit).
#[derive(Clone)]
pub struct RegisteredFrames {
    /// The pool's id.
    pool: NonZeroU32,
    region: Arc<MemoryRegion>,
}

impl RegisteredFrames {
    /// Registers the same memory in `domain`, which may be of another device. Its queues can send the frames,
    /// but not receive into them.
    pub fn register(&self, domain: &Domain) -> crate::Result<Self> {
        let region = Arc::new(MemoryRegion::register_again(domain, &self.region)?);
        Ok(Self { pool: self.pool, region })
    }

    pub(crate) fn pool(&self) -> NonZeroU32 {
        self.pool
    }

    pub(crate) fn region(&self) -> &Arc<MemoryRegion> {
        &self.region
    }
}

fn frame_count(bytes: usize, frame_bytes: u32) -> crate::Result<u32> {
    let count = bytes.checked_div(frame_bytes as usize).unwrap_or(0);
    match u32::try_from(count) {
        Ok(fits) if (1..=MAX_FRAMES).contains(&count) => Ok(fits),
        _ => Err(VerbsError::FrameSize { bytes, frame_bytes, most: MAX_FRAMES }),
    }
}

#[cold]
fn foreign(frame: &Frame) {
    tracing::error!(?frame, "a frame was given to a pool it does not belong to; it is lost");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ledger(id: u32, count: u32) -> Ledger {
        Ledger::new(NonZeroU32::new(id).expect("not 0"), count)
    }

    fn index(frame: &Frame) -> u32 {
        frame.wr_id() as u32
    }

    fn wr_id(ledger: &Ledger, index: u32) -> u64 {
        Frame::new(index, ledger.id).wr_id()
    }

    #[test]
    fn a_frame_goes_round_free_held_posted_held_free() {
        let mut ledger = ledger(7, 2);
        let frame = ledger.take().expect("free");
        let wr_id = frame.wr_id();
        assert_eq!(ledger.reclaim(wr_id), None, "held, not posted");
        ledger.posted(index(&frame));
        ledger.refused(index(&frame));
        assert_eq!(ledger.reclaim(wr_id), None, "held again, as the device refused it");
        ledger.posted(index(&frame));
        let back = ledger.reclaim(wr_id).expect("posted");
        assert_eq!(back, frame);
        assert_eq!(ledger.reclaim(wr_id), None, "a second completion of one frame gives nothing");
        assert!(ledger.release(&back));
        assert_eq!(ledger.reclaim(wr_id), None, "free, not posted");
        assert_eq!(ledger.free.len(), 2);
    }

    #[test]
    fn a_frame_that_comes_back_with_a_later_send_is_not_the_completions() {
        let mut ledger = ledger(7, 2);
        let frame = ledger.take().expect("free");
        let wr_id = frame.wr_id();
        let index = ledger.named(wr_id).expect("of this ledger");
        ledger.states[index as usize] = State::Sent;
        assert_eq!(ledger.reclaim(wr_id), None);
        assert_eq!(ledger.taker().take_back(index, true), None);
        assert_eq!(ledger.taker().take_back(index, false), Some(frame));
        assert_eq!(ledger.taker().take_back(index, false), None, "once");
        ledger.withdrawn(index);
        assert_eq!(ledger.free.len(), 2);
        assert_eq!((ledger.named(8 << 32), ledger.taker().take_back(2, false)), (None, None));
    }

    #[test]
    fn frames_posted_to_receive_come_back_together() {
        let mut ledger = ledger(7, 6);
        let frames: Vec<Frame> = std::iter::from_fn(|| ledger.take()).collect();
        let [posted, signalled, sent, reclaimed, held, also_posted] = &frames[..] else { unreachable!() };
        for frame in [posted, reclaimed, also_posted] {
            ledger.posted(index(frame));
        }
        assert!(ledger.sent(signalled, true).is_some() && ledger.sent(sent, false).is_some());
        assert!(ledger.reclaim(reclaimed.wr_id()).is_some());
        let mut back = Vec::new();
        assert_eq!(ledger.take_back_posted(&mut back), 2);
        assert!(back.contains(posted) && back.contains(also_posted));
        assert_eq!(ledger.take_back_posted(&mut back), 0, "once");
        assert_eq!(ledger.reclaim(posted.wr_id()), None, "nor by a completion");
        assert!(ledger.reclaim(signalled.wr_id()).is_some(), "the device has this one");
        assert_eq!(ledger.reclaim(held.wr_id()), None);
    }

    #[test]
    fn other_pools_frames_and_wild_ids_are_not_taken() {
        let (mut ours, mut theirs) = (ledger(1, 4), ledger(2, 4));
        let frame = theirs.take().expect("free");
        assert!(!ours.release(&frame));
        theirs.posted(index(&frame));
        assert_eq!(ours.reclaim(frame.wr_id()), None);
        assert_eq!(ours.reclaim(1 << 32 | 4), None, "one past the last frame");
        assert_eq!(ours.reclaim(u64::MAX), None);
        assert_eq!(ours.free.len(), 4);
    }

    #[test]
    fn regions_are_cut_into_whole_frames() {
        assert_eq!(frame_count(10_000, 2048).ok(), Some(4));
        for (bytes, frame_bytes) in [(2047, 2048), (4096, 0), (0, 64), (MAX_FRAMES + 1, 1)] {
            let error = frame_count(bytes, frame_bytes).expect_err("no frames or too many");
            assert_eq!(error.errno(), Some(libc::EINVAL));
        }
    }

    proptest! {
        /// In any order of operations, each frame is in exactly one place.
        #[test]
        fn every_frame_is_in_one_place(steps in prop::collection::vec((0u8..4, any::<u32>()), 0..200)) {
            const COUNT: u32 = 8;
            let mut ledger = ledger(3, COUNT);
            let mut held: Vec<Frame> = Vec::new();
            let mut posted: Vec<u32> = Vec::new();
            for (step, pick) in steps {
                match step {
                    0 => held.extend(ledger.take()),
                    1 if !held.is_empty() => {
                        let frame = held.swap_remove(pick as usize % held.len());
                        prop_assert!(ledger.release(&frame));
                    }
                    2 if !held.is_empty() => {
                        let frame = held.swap_remove(pick as usize % held.len());
                        ledger.posted(index(&frame));
                        posted.push(index(&frame));
                    }
                    _ => {
                        let index = pick % (COUNT + 1);
                        let expected = posted.iter().position(|&p| p == index);
                        let frame = ledger.reclaim(wr_id(&ledger, index));
                        prop_assert_eq!(frame.is_some(), expected.is_some());
                        expected.map(|at| posted.swap_remove(at));
                        held.extend(frame);
                    }
                }
                prop_assert_eq!(ledger.free.len() + held.len() + posted.len(), COUNT as usize);
                let mut all: Vec<u32> = ledger.free.clone();
                all.extend(held.iter().map(index));
                all.extend(&posted);
                all.sort_unstable();
                prop_assert!(all.into_iter().eq(0..COUNT));
            }
        }
    }
}
