//! The choice between short and general paths. The most frequent kinds of frames and requests take a short
//! path, which has the same effects as the general one. Tests compare the two, see `provider::tests::paths`.

/// Whether only the general paths are to be taken.
#[cfg(not(test))]
#[inline(always)]
pub(crate) const fn are_general() -> bool {
    false
}

/// Whether the instructions of x86-64-v3 may be used, where the processor has them.
#[cfg(not(test))]
#[inline(always)]
pub(crate) const fn may_be_v3() -> bool {
    true
}

#[cfg(test)]
pub(crate) use choice::{Paths, are_general, choose, may_be_v3};

#[cfg(test)]
mod choice {
    use std::cell::Cell;

    /// The paths that this thread takes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Paths {
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

    pub(crate) fn choose(paths: Paths) {
        CHOSEN.set(paths);
    }

    pub(crate) fn are_general() -> bool {
        CHOSEN.get() == Paths::General
    }

    pub(crate) fn may_be_v3() -> bool {
        CHOSEN.get() == Paths::Short
    }
}
