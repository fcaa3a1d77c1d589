//! The arena and its blocks.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use stable_deref_trait::StableDeref;

use crate::{Error, PageKind, Warning};

/// What to map.
#[derive(Clone, Debug)]
pub struct ArenaOptions {
    /// Least usable size; rounded up to whole pages.
    pub bytes: usize,
    /// Kinds of pages, tried in this order.
    pub pages: Vec<PageKind>,
    /// NUMA node to bind to.
    pub numa_node: Option<u32>,
    /// Who the arena is for, in warnings and errors.
    pub label: String,
}

/// A mapped, prefaulted, zeroed region that blocks are carved from.
#[derive(Debug)]
pub struct Arena {}

impl Arena {
    /// Maps an arena.
    pub fn map(options: &ArenaOptions) -> Result<Arc<Self>, Error> {
        let _ = options;
        todo!()
    }
    /// The kind of pages it got.
    pub fn page_kind(&self) -> PageKind {
        todo!()
    }
    /// Its size.
    pub fn bytes(&self) -> usize {
        todo!()
    }
    /// Who it is for.
    pub fn label(&self) -> &str {
        todo!()
    }
    /// What it could not get.
    pub fn warnings(&self) -> &[Warning] {
        todo!()
    }
    /// Carves a zeroed block; `None` when no free range is long enough.
    pub fn carve(self: &Arc<Self>, bytes: usize, align: usize) -> Option<Block> {
        let _ = (bytes, align);
        todo!()
    }
}

/// A piece of an arena; goes back when dropped.
#[derive(Debug)]
pub struct Block {
    _arena: Arc<Arena>,
}

impl Deref for Block {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        todo!()
    }
}

impl DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [u8] {
        todo!()
    }
}

// SAFETY: a block's bytes lie in the arena's mapping, which `_arena` keeps in place; moving the block moves only the pointer.
unsafe impl StableDeref for Block {}
