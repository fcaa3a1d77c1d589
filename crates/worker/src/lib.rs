//! The pinned polling loop: one thread that owns a completion queue, a receive queue and its frames,
//! and gives every packet that arrives there to the rule that its flow tag names.
//!
//! `steerd` makes one [`Worker`] per configured core, hands its [`verbs::WorkQueue`] to `control` for
//! the indirection tables, and speaks with it through [`WorkerControl`]. A worker shares nothing
//! with its siblings, and never talks to the device's control path once it runs.
//!
//! Invariant: every receive that succeeded, and so every packet that a port calls delivered, is counted
//! in exactly one place: a rule's tally by [`Disposition`], or a [`DropReason`]
//! ([`WorkerSnapshot::imbalance`]). One that failed is counted by its [`Failure`] alone.
#![forbid(unsafe_code)]

mod allocator;
mod assembly;
mod batch;
mod classifier;
mod config;
mod control;
mod counter;
mod distribution;
mod error;
mod mailbox;
mod numa;
mod receiver;
mod sink;
mod snapshot;
mod stats;
mod table;
mod thread;
mod turn;

pub use config::{
    BATCH_MAX, CORE_MAX, FRAME_BYTES_MAX, FRAME_BYTES_MIN, FRAMES_MAX, Idle, PORTS_MAX, SENDS_MAX,
    WorkerConfig,
};
pub use control::{Pulse, WorkerControl};
pub use counter::Traffic;
pub use distribution::Distribution;
pub use error::{Error, Object, Warning};
pub use mailbox::Publication;
pub use program::Band;
pub use sink::{Deliveries, Delivery, Sink};
pub use snapshot::{RuleSnapshot, WorkerSnapshot};
pub use stats::{DropReason, Failure};
pub use table::Disposition;
pub use thread::WorkerHandle;
pub use turn::Worker;

#[cfg(test)]
mod tests;
