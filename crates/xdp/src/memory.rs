//! Memory that is shared with the XDP program: arrays of words that both access atomically. With
//! [`crate::map_in_map`] the only module of the crate with `unsafe` code.

use std::ops::Deref;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A word of shared memory: an atomic integer, for which any bytes are a value, and which others may change
/// through a shared reference to it.
pub(crate) trait SharedWord: sealed::AtomicWord + Default {}

impl SharedWord for AtomicU32 {}
impl SharedWord for AtomicU64 {}

mod sealed {
    use super::{AtomicU32, AtomicU64};

    /// Keeps other modules from more words.
    pub(crate) trait AtomicWord: Sync + Send {}

    impl AtomicWord for AtomicU32 {}
    impl AtomicWord for AtomicU64 {}
}

/// Words that the program reads, or no program does.
#[derive(Debug)]
pub(crate) enum SharedWords<W> {
    /// An array map with `BPF_F_MMAPABLE`.
    Mapped(Mapping<W>),
    /// Memory of this process alone.
    Own(Box<[W]>),
}

/// The elements of an array map, mapped.
#[derive(Debug)]
pub(crate) struct Mapping<W> {
    base: NonNull<W>,
    words: usize,
}

// SAFETY: the mapping belongs to this value, and is only accessed through atomic words.
unsafe impl<W: SharedWord> Send for Mapping<W> {}
// SAFETY: all access through a shared reference is to atomic words.
unsafe impl<W: SharedWord> Sync for Mapping<W> {}

impl<W: SharedWord> SharedWords<W> {
    /// Maps the elements of an array map, which are `words` words.
    pub(crate) fn map(array: impl AsFd, words: usize) -> rustix::io::Result<Self> {
        // The kernel rounds it up to pages.
        let bytes = words * size_of::<W>();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses. The kernel refuses more bytes than the
        // array has (`array_map_mmap`), so all words are inside.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, array, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self::Mapped(Mapping { base, words }))
    }

    /// Words that no program reads.
    pub(crate) fn own(words: usize) -> Self {
        Self::Own((0..words).map(|_| W::default()).collect())
    }
}

impl<W: SharedWord> Deref for SharedWords<W> {
    type Target = [W];

    #[inline]
    fn deref(&self) -> &[W] {
        match self {
            // SAFETY: `map` mapped at least so many words, page-aligned, which stay until `drop`; the
            // kernel's programs and this process change them atomically only (`SharedWord`).
            Self::Mapped(mapping) => unsafe {
                std::slice::from_raw_parts(mapping.base.as_ptr(), mapping.words)
            },
            Self::Own(words) => words,
        }
    }
}

impl<W> Drop for Mapping<W> {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length; no reference into it is left. Should it fail, the mapping
        // stays.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.words * size_of::<W>()) };
    }
}
