//! A software NIC underneath the unmodified libibverbs.
//!
//! `SoftNic` is a libibverbs provider that lives wholly in this process: it hands the stock library an
//! `ibv_device` without sysfs, as mlx5 does in VFIO mode, and from there every verb runs through the library
//! into this crate. Frames come from a [`wire::Wire`], pass the flow table and RSS, and are copied into
//! posted receive buffers. `steerd` uses it where there is no RDMA NIC, and every test uses it.
//!
//! The provider is one front end of the NIC. Another one, in a crate of its own, makes and removes objects by
//! the functions of [`objects`], and brings queues by the traits of [`formats`].
//!
//! It never talks to a kernel RDMA driver and never changes the library it sits under.

mod abi;
mod claims;
pub mod clock;
mod device;
mod engine;
pub mod errno;
mod error;
mod events;
mod faults;
mod flow_pace;
pub mod formats;
mod group_pace;
mod lazy_nic;
mod library;
pub mod limits;
mod memory;
mod nic;
pub mod objects;
mod pace;
mod paths;
mod personality;
mod port_tables;
pub mod preload;
mod provider;
mod queue_memory;
mod ring;
mod rss;
mod send_bell;
mod shared;
mod slab;
mod soft_context;
mod state;
mod stats;
mod watch;
mod work;

pub use engine::profile::{EngineProfile, EngineStage};
pub use error::SoftNicError;
pub use faults::{FailedFrames, FaultPlan, FaultPlanError};
pub use limits::PORT_MTU_BYTES;
pub use nic::{Drive, Nic, SoftNic, SoftNicConfig};
pub use personality::{ModelPersonality, Personality, UnknownPersonality};
pub use queue_memory::resource;
pub use shared::PortConfig;
pub use stats::{FrameEnd, PortStats};
pub use watch::{WatchFilter, WatchedFrame, WatchedFrames};
pub use xdp::ClaimReport;
