//! The device below rdma-core's own mlx5 provider: a model of the kernel's command interface and of the
//! queues of a ConnectX, for the unmodified libibverbs and libmlx5 of a process.
//!
//! `softnic-preload` gives this crate the calls that a process makes on its command descriptors. What is
//! behind them is the same state, flow table, RSS, memory keys and engine as below the provider of `softnic`;
//! only the front differs: commands come in the kernel's structures (rdma-core kernel-headers/rdma), and
//! send, receive and completion queues are in mlx5's formats, in memory that libmlx5 allocates. What the
//! kernel and its driver check is modelled from their sources, named at each check; what libmlx5 checks is
//! not repeated.
//!
//! Sends are noticed by polling their doorbell records, because a write to a doorbell page cannot be seen: at
//! once while there is traffic, and after a pause within a nap of the engine, of 50 us to 4 ms
//! (`softnic/src/engine/rest.rs`).
//!
//! Not modelled are datagram queue pairs, raw commands for the firmware (DEVX), striding queues and
//! compressed completions, and the hash of a frame in its completion, which no function of libmlx5 returns.
//!
//! * `descriptors` and `context`: the command descriptors of a process, and what one has opened
//! * `ioctl`: attributes of an ioctl, and the copies from and to the client's memory (`user_memory`)
//! * `commands`: a file per family; they see blocks of bytes (`block`) and no pointer
//! * `rings`: the queues, which the engine uses through the traits of [`softnic::formats`]
//!
//! The pages from which libmlx5 reads the clock are in `clock_pages`.
//!
//! ```
//! use std::sync::LazyLock;
//!
//! use softnic::lazy_nic::{LazyNic, Settings, variable};
//! use softnic_mlx5::{CommandDescriptors, VERBS_IOCTL};
//!
//! static NIC: LazyLock<LazyNic> = LazyLock::new(|| {
//!     let settings = Settings::read(|name| match name {
//!         variable::METHOD => Some("mlx5".to_owned()),
//!         variable::WIRE => Some("null".to_owned()),
//!         _ => None,
//!     });
//!     LazyNic::new(settings.expect("valid settings"))
//! });
//!
//! /// The number of a descriptor that the client has opened.
//! const DESCRIPTOR: i32 = 1_000;
//!
//! let commands = CommandDescriptors::new(&NIC);
//! commands.open(DESCRIPTOR).expect("a NIC");
//! // The client's commands, as ioctl(2) passes them: here one at an address that is not mapped.
//! assert_eq!(commands.ioctl(DESCRIPTOR, VERBS_IOCTL, 8), Err(libc::EFAULT));
//! commands.close(DESCRIPTOR);
//! ```

mod block;
mod clock_pages;
mod commands;
mod context;
mod counters;
mod descriptors;
mod ioctl;
mod rings;
mod user_memory;

pub use context::PAGE_BYTES;
pub use descriptors::{CommandDescriptors, Mapping, MappingRequest};
pub use ioctl::VERBS_IOCTL;
