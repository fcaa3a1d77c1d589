//! The arena and its blocks. Workers and the parent domain's allocator carve blocks; the packet path only
//! uses them. An arena stays mapped until its last block is dropped, so that memory which a device may still
//! write to is never unmapped.

use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stable_deref_trait::StableDeref;

use crate::available::{hugepage_limit, text_of};
use crate::error::MAX_ARENA_BYTES;
use crate::free_list::FreeList;
use crate::mapping::Mapping;
use crate::{HugememError, HugememWarning, PageKind};

/// The size and the pages of an arena to be mapped.
#[derive(Clone, Debug)]
pub struct ArenaOptions {
    /// Least usable size; rounded up to whole pages of the kind that is found.
    pub bytes: usize,
    /// Kinds of pages, tried in this order.
    pub pages: Vec<PageKind>,
    /// NUMA node to bind to; failing to is a warning.
    pub numa_node: Option<u32>,
    /// The owner's name in warnings and errors.
    pub label: String,
}

/// The limit of a control group that refuses so many bytes of hugepages, and the bytes that it leaves.
fn group_limit(kind: PageKind, bytes: usize) -> Option<(PathBuf, u64)> {
    if !matches!(kind, PageKind::Huge1G | PageKind::Huge2M) {
        return None;
    }
    hugepage_limit(kind.page_bytes(), bytes, text_of).map(|limit| (limit.file, limit.bytes))
}

impl ArenaOptions {
    /// An arena of 2 MiB pages if there are any, otherwise transparent, otherwise plain ones, on any node.
    pub fn new(label: impl Into<String>, bytes: usize) -> Self {
        let pages = vec![PageKind::Huge2M, PageKind::Transparent, PageKind::Plain];
        Self { bytes, pages, numa_node: None, label: label.into() }
    }
}

/// A mapped, populated region that blocks are carved from. Not shared with forked children.
#[derive(Debug)]
pub struct Arena {
    mapping: Mapping,
    page_kind: PageKind,
    warnings: Vec<HugememWarning>,
    // Invariant: a range is in the list or in exactly one `Block`, never in both.
    free: Mutex<FreeList>,
}

impl Arena {
    /// Maps, binds and populates an arena of the first page kind that the system gives.
    ///
    /// # Errors
    /// A size out of range, an empty list of kinds, or [`HugememError::Map`] when every kind was refused.
    pub fn map(options: &ArenaOptions) -> Result<Arc<Self>, HugememError> {
        let (page_kind, mut warnings, (mapping, unmet)) =
            first_kind(options, |page_kind, bytes| populated(options, page_kind, bytes))?;
        warnings.extend(unmet);
        let free = Mutex::new(FreeList::new(mapping.bytes()));
        Ok(Arc::new(Self { mapping, page_kind, warnings, free }))
    }

    /// The kind of pages that it is made of.
    pub fn page_kind(&self) -> PageKind {
        self.page_kind
    }

    /// The whole size in bytes: what was asked for, rounded up to pages.
    pub fn bytes(&self) -> usize {
        self.mapping.bytes()
    }

    /// Bytes that are not carved, not necessarily contiguous.
    pub fn free_bytes(&self) -> usize {
        self.free_list().free_bytes()
    }

    /// The refusals of the kernel, with remedies.
    pub fn warnings(&self) -> &[HugememWarning] {
        &self.warnings
    }

    /// Carves a zeroed block that starts at a multiple of `align`.
    ///
    /// `None` when no free range is long enough, `bytes` is 0, `align` is not a power of two, or
    /// 65,536 blocks are in use.
    pub fn carve(self: &Arc<Self>, bytes: usize, align: usize) -> Option<Block> {
        let range = self.free_list().take(bytes, align, self.mapping.base().addr().get())?;
        // SAFETY: the free list only ever holds offsets inside the mapping.
        let start = unsafe { self.mapping.base().add(range.start) };
        // SAFETY: the range is mapped writable, and since it was in the free list, no block refers to it.
        unsafe { start.write_bytes(0, range.len()) };
        Some(Block { start, bytes, range, arena: Arc::clone(self) })
    }

    /// Carves so many words of 0, which threads may read and write at the same time.
    ///
    /// `None` for the reasons of [`Arena::carve`].
    pub fn carve_words(self: &Arc<Self>, words: usize) -> Option<AtomicWords> {
        let bytes = words.checked_mul(size_of::<AtomicU64>())?;
        self.carve(bytes, WORDS_ALIGN).map(AtomicWords)
    }

    /// A panic elsewhere cannot leave the list half changed: it has no panicking step between its changes.
    fn free_list(&self) -> MutexGuard<'_, FreeList> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first kind of pages that gives so many bytes, what it gives, and the refusals of those before it.
pub(crate) fn first_kind<M>(
    options: &ArenaOptions,
    mut give: impl FnMut(PageKind, usize) -> io::Result<M>,
) -> Result<(PageKind, Vec<HugememWarning>, M), HugememError> {
    let label = options.label.clone();
    if options.bytes == 0 || options.bytes > MAX_ARENA_BYTES {
        return Err(HugememError::Size { label, bytes: options.bytes });
    }
    let mut refused = Vec::new();
    for &kind in &options.pages {
        let bytes = options.bytes.next_multiple_of(kind.page_bytes());
        match give(kind, bytes) {
            Ok(given) => return Ok((kind, refused, given)),
            Err(source) => refused.push(HugememWarning::Refused {
                label: label.clone(),
                kind,
                bytes,
                numa_node: options.numa_node,
                group_limit: group_limit(kind, bytes),
                source,
            }),
        }
    }
    if refused.is_empty() {
        return Err(HugememError::NoPageKind { label });
    }
    Err(HugememError::Map { label, bytes: options.bytes, refused })
}

/// Maps `bytes` of one kind of page; refusals that are not fatal are returned as warnings.
fn populated(
    options: &ArenaOptions,
    page_kind: PageKind,
    bytes: usize,
) -> io::Result<(Mapping, Vec<HugememWarning>)> {
    let mut mapping = Mapping::new(page_kind, bytes)?;
    let mut unmet = Vec::new();
    if let Err(source) = mapping.dont_fork() {
        unmet.push(HugememWarning::Fork { label: options.label.clone(), source });
    }
    let mut bound = false;
    if let Some(numa_node) = options.numa_node {
        match mapping.bind(numa_node) {
            Ok(()) => bound = true,
            Err(source) => {
                unmet.push(HugememWarning::NumaBind { label: options.label.clone(), numa_node, source });
            }
        }
    }
    mapping.populate(page_kind, bound)?;
    Ok((mapping, unmet))
}

/// A part of an arena, returned to it on drop. A forgotten block keeps its arena mapped for ever.
#[derive(Debug)]
pub struct Block {
    start: NonNull<u8>,
    bytes: usize,
    // Invariant: taken from the arena's free list by `carve`, given back only by `Drop`; `start..start +
    // bytes` lies inside it.
    range: Range<usize>,
    arena: Arc<Arena>,
}

// SAFETY: the bytes belong to this block alone (invariant of `range`), and its arena may be used from any
// thread.
unsafe impl Send for Block {}

// SAFETY: the bytes lie in the arena's mapping, which `arena` keeps in place; moving a block moves only its
// pointer.
unsafe impl StableDeref for Block {}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes are mapped as long as `arena` lives, were zeroed by `carve`, and only this block
        // names them.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.arena.free_list().give_back(self.range.clone());
    }
}

/// Words begin at a cache line.
const WORDS_ALIGN: usize = 64;
const _: () = assert!(WORDS_ALIGN.is_multiple_of(align_of::<AtomicU64>()));

/// A block as a row of atomic words, for one thread that writes while others read.
#[derive(Debug)]
pub struct AtomicWords(Block);

// SAFETY: the only access to the block's bytes through `&self` is by `AtomicU64`, which any thread may use.
unsafe impl Sync for AtomicWords {}

impl Deref for AtomicWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        let Self(block) = self;
        let words = block.bytes / size_of::<AtomicU64>();
        // SAFETY: `carve_words` carved `block` with a start that is aligned to `WORDS_ALIGN`, and all of its
        // bytes are initialised, in place and only this value's until it is dropped. Nothing makes a
        // reference to plain bytes of the block: it is private, and `carve` has written it before.
        unsafe { std::slice::from_raw_parts(block.start.as_ptr().cast(), words) }
    }
}

#[cfg(test)]
mod tests;
