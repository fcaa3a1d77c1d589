//! Frames that no receive queue got: dropped by a flow, lost, or left to the kernel. The engine notes them
//! while somebody watches, and never waits for the watcher.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use packet::{DeepKey, FrameHead};
use wire::RxFrame;

use crate::claims::FlowClaims;
use crate::stats::FrameEnd;

/// The most frames that wait to be taken, and the most bytes of them.
const WAITING_MAX: usize = 256;
const WAITING_BYTES: usize = 1 << 20;

/// A frame that no receive queue got.
#[derive(Clone, Copy, Debug)]
pub struct WatchedFrame {
    /// The end of the frame.
    pub end: FrameEnd,
    /// The header fields of the whole frame.
    pub key: DeepKey,
    /// The first bytes of the frame.
    pub head: FrameHead,
    /// The time at which the engine had it, in nanoseconds since 1970.
    pub received_ns: u64,
    /// A time after its flow was looked up, by a clock that cannot be set.
    pub noted_at: Instant,
}

/// Frames that were watched, with their bytes.
#[derive(Debug, Default)]
pub struct WatchedFrames {
    /// The frames in their order.
    list: Vec<WatchedFrame>,
    /// The bytes of all frames, and where those of each end.
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl WatchedFrames {
    /// The frames in their order, each with as many of its bytes as
    /// [`OwnedNic::watch`](crate::OwnedNic::watch) was asked to keep.
    pub fn iter(&self) -> impl Iterator<Item = (&WatchedFrame, &[u8])> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let bytes =
            starts.zip(&self.ends).map(|(start, end)| self.bytes.get(start..*end).unwrap_or_default());
        self.list.iter().zip(bytes)
    }

    /// Forgets the frames.
    pub fn clear(&mut self) {
        self.list.clear();
        self.bytes.clear();
        self.ends.clear();
    }

    /// Makes room, so that the engine finds it.
    fn reserve(&mut self, frame_bytes: u32) {
        self.list.reserve(WAITING_MAX);
        self.ends.reserve(WAITING_MAX);
        self.bytes.reserve((frame_bytes as usize).saturating_mul(WAITING_MAX).min(WAITING_BYTES));
    }

    /// Adds a frame with its first bytes; `false`: there is no room.
    fn add(&mut self, frame: WatchedFrame, bytes: &[u8]) -> bool {
        if self.list.len() == WAITING_MAX || self.bytes.capacity() - self.bytes.len() < bytes.len() {
            return false;
        }
        self.list.push(frame);
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len());
        true
    }
}

/// Chooses the frames to watch, by their bytes and by what became of them, and returns their header fields.
/// It is called by the engine, so it must not block.
pub type WatchFilter = Box<dyn FnMut(&[u8], FrameEnd) -> Option<DeepKey> + Send>;

/// The frames of a port that are watched.
#[derive(Default)]
pub(crate) struct PortWatch {
    is_on: AtomicBool,
    /// Frames that had no place, or that the filter was not asked about.
    missed: AtomicU64,
    state: Mutex<WatchState>,
}

#[derive(Default)]
struct WatchState {
    watching: Option<Watching>,
    /// The owner of the device wants the wire to drop no frames for flows.
    forbids_drops: bool,
}

impl WatchState {
    /// Lets the wire drop frames by itself, unless the owner forbids it or somebody watches: the watcher
    /// would not see them.
    fn apply(&self, claims: &FlowClaims) {
        claims.allow_drops(!self.forbids_drops && self.watching.is_none());
    }
}

struct Watching {
    filter: WatchFilter,
    /// The most bytes of a frame that are kept.
    frame_bytes: u32,
    frames: WatchedFrames,
}

impl PortWatch {
    /// Begins to watch, and to keep so many bytes of each frame; `false`: somebody does already.
    pub(crate) fn begin(&self, filter: WatchFilter, frame_bytes: u32, claims: &FlowClaims) -> bool {
        let mut state = self.lock();
        if state.watching.is_some() {
            return false;
        }
        self.missed.store(0, Ordering::Relaxed);
        let mut frames = WatchedFrames::default();
        frames.reserve(frame_bytes);
        state.watching = Some(Watching { filter, frame_bytes, frames });
        state.apply(claims);
        self.is_on.store(true, Ordering::Release);
        true
    }

    /// Ends the watch.
    pub(crate) fn end(&self, claims: &FlowClaims) {
        self.is_on.store(false, Ordering::Release);
        let mut state = self.lock();
        state.watching = None;
        state.apply(claims);
    }

    /// Lets the wire drop frames for flows while nobody watches, or not.
    pub(crate) fn allow_drops(&self, is_allowed: bool, claims: &FlowClaims) {
        let mut state = self.lock();
        state.forbids_drops = !is_allowed;
        state.apply(claims);
    }

    /// Puts the frames since the last call into `frames`, and returns how many others were missed.
    pub(crate) fn take(&self, frames: &mut WatchedFrames) -> u64 {
        frames.clear();
        let frame_bytes = self.lock().watching.as_ref().map_or(0, |watching| watching.frame_bytes);
        frames.reserve(frame_bytes);
        if let Some(watching) = &mut self.lock().watching {
            std::mem::swap(&mut watching.frames, frames);
        }
        self.missed.swap(0, Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, WatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether frames are to be noted; costs one load.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    /// Notes the frames of a burst that no queue got.
    #[cold]
    pub(crate) fn note(&self, frames: &[RxFrame<'_>], ends: &[FrameEnd], now_ns: u64) {
        let noted_at = Instant::now();
        let lost = || frames.iter().zip(ends).filter(|(_, end)| **end != FrameEnd::Delivered);
        let miss = |frames: usize| _ = self.missed.fetch_add(frames as u64, Ordering::Relaxed);
        let Ok(mut state) = self.state.try_lock() else { return miss(lost().count()) };
        let Some(Watching { filter, frame_bytes, frames: watched }) = &mut state.watching else { return };
        for (frame, end) in lost() {
            let Some(key) = filter(frame.bytes, *end) else { continue };
            let head = FrameHead::of(frame.bytes);
            let kept = frame.bytes.get(..*frame_bytes as usize).unwrap_or(frame.bytes);
            let noted = WatchedFrame { end: *end, key, head, received_ns: now_ns, noted_at };
            if !watched.add(noted, kept) {
                miss(1);
            }
        }
    }
}
