//! Hugepage arenas: the memory of packet frames, queues and completion rings.
//!
//! A worker maps one [`Arena`] on its NUMA node and carves [`Block`]s from it, for packet frames and for the
//! buffers that a parent domain's allocator gives to the driver. Arenas are mapped and carved at start-up,
//! never on the packet path. They do not grow and do not change the system's hugepage settings: what the
//! kernel refuses becomes a [`HugememWarning`] with the setting to change. [`prefetch_read`] and
//! [`prefetch_write`] fetch lines of such memory into the cache before they are used.
//!
//! ```
//! use hugemem::{Arena, ArenaOptions, PageKind};
//!
//! let options = ArenaOptions { pages: vec![PageKind::Plain], ..ArenaOptions::new("example", 1 << 20) };
//! let arena = Arena::map(&options)?;
//! let mut block = arena.carve(4096, 64).expect("the arena has room");
//! block[..5].copy_from_slice(b"frame");
//! assert!(block.as_ptr().addr().is_multiple_of(64));
//! # Ok::<(), hugemem::HugememError>(())
//! ```

mod arena;
mod available;
mod error;
mod free_list;
mod mapping;
mod page_kind;
mod prefetch;

pub use arena::{Arena, ArenaOptions, Block};
pub use error::{HugememError, HugememWarning};
pub use page_kind::{PageKind, UnknownPageKind};
pub use prefetch::{prefetch_read, prefetch_write};
