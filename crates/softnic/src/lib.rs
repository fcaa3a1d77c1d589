//! A software NIC: state, memory, rings, engine and statistics.
//!
//! Frames come from a [`wire::Wire`], pass the flow table and RSS, and are copied into posted receive
//! buffers. `steerd` uses it where there is no RDMA NIC, and every test uses it.
//!
//! Programs reach the NIC by a front end, in a crate of its own: `softnic-verbs` is a provider below the
//! unmodified libibverbs, `softnic-mlx5` the kernel and the queues of a ConnectX below rdma-core's mlx5
//! provider. A front end makes and removes [`objects`], checks attributes by the rules of the
//! [`personality`], and brings queues by the traits of [`formats`], or uses this crate's own: a [`ring`] of
//! requests or completions as in [`work`].
//!
//! It never talks to a kernel RDMA driver.

mod claims;
pub mod clock;
mod engine;
pub mod errno;
mod error;
mod events;
mod faults;
mod flow_pace;
pub mod formats;
mod group_pace;
pub mod lazy_nic;
pub mod limits;
mod memory;
mod nic;
pub mod objects;
mod pace;
pub mod paths;
pub mod personality;
mod port_tables;
mod queue_memory;
pub mod ring;
mod rss;
mod send_bell;
mod shared;
mod slab;
mod state;
mod stats;
mod watch;
pub mod work;

pub use engine::profile::{EngineProfile, EngineStage};
pub use error::SoftNicError;
pub use faults::{FailedFrames, FaultPlan, FaultPlanError};
pub use limits::PORT_MTU_BYTES;
pub use nic::{Drive, Nic, OwnedNic, SoftNicConfig};
pub use personality::{ModelPersonality, Personality, UnknownPersonality};
pub use queue_memory::resource;
pub use shared::PortConfig;
pub use stats::{FrameEnd, PortStats};
pub use watch::{WatchFilter, WatchedFrame, WatchedFrames};
pub use xdp::ClaimReport;
