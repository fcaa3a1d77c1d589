//! Frames that no receive queue got: dropped by a flow, lost, or left to the kernel. The engine notes them
//! while somebody watches, and never waits for the watcher.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use packet::{DeepKey, FrameHead};
use wire::RxFrame;

use crate::claims::FlowClaims;
use crate::stats::FrameEnd;

/// The most frames that wait to be taken.
const WAITING_MAX: usize = 256;

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
    frames: Vec<WatchedFrame>,
}

impl PortWatch {
    /// Begins to watch; `false`: somebody does already.
    pub(crate) fn begin(&self, filter: WatchFilter, claims: &FlowClaims) -> bool {
        let mut state = self.lock();
        if state.watching.is_some() {
            return false;
        }
        self.missed.store(0, Ordering::Relaxed);
        state.watching = Some(Watching { filter, frames: Vec::with_capacity(WAITING_MAX) });
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
    pub(crate) fn take(&self, frames: &mut Vec<WatchedFrame>) -> u64 {
        frames.clear();
        // The engine finds a vector with room.
        frames.reserve(WAITING_MAX);
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
        let Some(Watching { filter, frames: watched }) = &mut state.watching else { return };
        for (frame, end) in lost() {
            let Some(key) = filter(frame.bytes, *end) else { continue };
            if watched.len() == WAITING_MAX {
                miss(1);
                continue;
            }
            let head = FrameHead::of(frame.bytes);
            watched.push(WatchedFrame { end: *end, key, head, received_ns: now_ns, noted_at });
        }
    }
}
