//! Hugepage arenas: the memory that frames, queues and completion rings live in.
//!
//! A worker maps one [`Arena`] on its NUMA node and carves [`Block`]s from it, for packet frames and for the buffers
//! that a parent domain's allocator hands to the driver. Arenas are mapped and carved while setting up, never on the
//! packet path; they never grow, and never touch the system's hugepage settings: what the kernel refuses becomes a
//! [`Warning`] that says what to change.

mod arena;
mod available;
mod error;
mod free_list;
mod heap;
mod mapping;
mod page_kind;
mod warning;

pub use arena::{Arena, ArenaOptions, Block, MAX_ARENA_BYTES};
pub use error::Error;
pub use free_list::{BLOCK_GRANULE_BYTES, MAX_BLOCKS};
pub use heap::{release_free_heap, use_one_heap};
pub use page_kind::PageKind;
pub use warning::Warning;
