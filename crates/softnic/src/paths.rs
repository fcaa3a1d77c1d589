//! The choice between short and general paths. The most frequent kinds of frames and requests take a short
//! path, which has the same effects as the general one. With debug assertions a thread can choose, for the
//! test that compares them, `provider/tests/paths.rs` of softnic-verbs; without them the choice is a
//! constant.

/// Whether only the general paths are to be taken.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub const fn are_general() -> bool {
    false
}

/// Whether the instructions of x86-64-v3 may be used, where the processor has them.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub(crate) const fn may_be_v3() -> bool {
    true
}

#[cfg(debug_assertions)]
pub(crate) use choice::may_be_v3;
#[cfg(debug_assertions)]
pub use choice::{Paths, are_general, choose};

#[cfg(debug_assertions)]
mod choice {
    use std::cell::Cell;

    /// The paths that this thread takes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Paths {
        /// Short ones, in the form for this processor.
        Short,
        /// Short ones, in the form for any processor.
        Portable,
        /// General ones alone.
        General,
    }

    thread_local! {
        static CHOSEN: Cell<Paths> = const { Cell::new(Paths::Short) };
    }

    /// Has this thread take these paths.
    pub fn choose(paths: Paths) {
        CHOSEN.set(paths);
    }

    /// Whether only the general paths are to be taken.
    pub fn are_general() -> bool {
        CHOSEN.get() == Paths::General
    }

    /// Whether the instructions of x86-64-v3 may be used, where the processor has them.
    pub(crate) fn may_be_v3() -> bool {
        CHOSEN.get() == Paths::Short
    }
}
