//! The choice between short and general paths. The most frequent kinds of frames and requests take a short
//! path, which has the same effects as the general one. Tests compare the two, by the feature
//! `choose-paths`: see `provider/tests/paths.rs` of softnic-verbs.

/// Whether only the general paths are to be taken.
#[cfg(not(feature = "choose-paths"))]
#[inline(always)]
pub const fn are_general() -> bool {
    false
}

/// Whether the instructions of x86-64-v3 may be used, where the processor has them.
#[cfg(not(feature = "choose-paths"))]
#[inline(always)]
pub(crate) const fn may_be_v3() -> bool {
    true
}

#[cfg(feature = "choose-paths")]
pub(crate) use choice::may_be_v3;
#[cfg(feature = "choose-paths")]
pub use choice::{Paths, are_general, choose};

#[cfg(feature = "choose-paths")]
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
