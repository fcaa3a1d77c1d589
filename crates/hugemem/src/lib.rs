//! Memory arenas of the largest pages available, for packet frames and for the rings of drivers.
//!
//! A worker maps one [`Arena`] on its NUMA node and carves [`Block`]s from it, for packet frames and for the
//! buffers that a driver asks for (`ibv_alloc_parent_domain(3)`). Arenas are never mapped or carved on the
//! packet path, and do not grow. They change no setting of the system: if the kernel refuses a kind of page,
//! a [`HugememWarning`] names the setting to change. An [`ArenaForecast`] finds the refusals without mapping
//! anything. [`prefetch_read`] and [`prefetch_write`] fetch cache lines of such memory before they are used.
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
mod forecast;
mod free_list;
mod mapping;
mod page_kind;
mod prefetch;

pub use arena::{Arena, ArenaOptions, AtomicWords, Block};
pub use error::{HugememError, HugememWarning};
pub use forecast::ArenaForecast;
pub use page_kind::{PageKind, UnknownPageKind};
pub use prefetch::{prefetch_read, prefetch_write};
