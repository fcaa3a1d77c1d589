//! The pinned polling loop: one thread that owns a completion queue, a receive queue and its frames, and
//! classifies every packet that arrives there by its flow tag.
//!
//! `steerd` creates one [`Worker`] per configured core, passes its [`verbs::WorkQueue`] to `control` for the
//! indirection tables, and controls it through [`WorkerControl`]. Workers share nothing, and a running worker
//! calls the device's control path only to make its own receive queue ready anew after a failure.
//!
//! Invariant: every successful receive, and so every packet that a port counts as delivered, is counted in
//! exactly one place: for a rule by [`Disposition`], or for a [`DropReason`] ([`WorkerSnapshot::imbalance`]).
//! A failed receive is counted by its [`Failure`] only.
//!
//! ```
//! use program::WorkerId;
//! use wire::NullWire;
//! use softnic::{Drive, Personality, PortConfig, SoftNicConfig};
//! use softnic_verbs::SoftNic;
//! use worker::{Worker, WorkerConfig};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let ports = vec![PortConfig { wire: Box::new(NullWire), mtu_bytes: 1500 }];
//! let (name, personality, drive) = ("soft0".to_owned(), Personality::Ideal, Drive::Manual);
//! let nic = SoftNic::create(SoftNicConfig { name, personality, ports, drive })?;
//! let context = verbs::DeviceList::of(&nic)?.find("soft0").expect("it is listed").open()?;
//!
//! let mut worker = Worker::new(&context, WorkerConfig { frames: 64, ..WorkerConfig::new(WorkerId(0)) })?;
//! assert_eq!(worker.step(), 0, "nothing was received");
//! let snapshot = worker.control().snapshot();
//! assert_eq!((snapshot.iterations, snapshot.posted, snapshot.imbalance()), (1, 64, 0));
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod assembly;
mod batch;
mod class_map;
mod class_table;
mod classifier;
mod config;
mod control;
mod counter;
mod disposition;
mod distribution;
mod error;
mod idle;
mod labels;
mod latency;
mod mailbox;
mod policer;
mod receiver;
mod recovery;
mod regime;
mod runtime_rules;
mod sink;
pub mod sinks;
mod stats;
mod thread_activity;
mod transmitter;
mod worker;

pub use assembly::{forecast_memory, forecast_tables};
pub use class_table::SharedStage;
pub use config::{
    BATCH_MAX, CORE_MAX, FRAME_BYTES_MAX, FRAME_BYTES_MIN, FRAMES_MAX, PORTS_MAX, ReceiveKind, ServedPort,
    WorkerConfig,
};
pub use control::{SinkChange, WorkerControl, WorkerIsLate, WorkerProgress};
pub use counter::Traffic;
pub use disposition::Disposition;
pub use distribution::Distribution;
pub use error::{Error, Object, Warning};
pub use idle::Idle;
pub use latency::{ClockRelation, DeviceClock};
pub use mailbox::Publication;
pub use program::ChangeStage;
pub use recovery::{RECOVERIES_MAX, RECOVERY_WINDOW};
pub use regime::{Regime, WorkerProfile};
pub use sink::{
    Deliveries, Delivery, FrameBudget, FramesBack, Sink, SinkCounters, SinkDrop, SinkMap, SinkSide,
    SinkTraffic, Slot, SlotSet, Taken, TakenRun,
};
pub use stats::{DropReason, Failure, GivenUp, Latency, ReceiveQueueHealth, RuleSnapshot, WorkerSnapshot};
pub use thread_activity::ThreadActivity;
pub use transmitter::{SENDS_MAX, Transmitter, TransmitterError};
pub use worker::{Worker, WorkerHandle};

#[cfg(test)]
mod tests;
