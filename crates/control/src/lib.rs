//! Puts a compiled program on a device, all or nothing.
//!
//! `steerd` opens a [`Device`], compiles a policy for its [`Device::profile`], and hands each program
//! to a [`Controller`], which turns groups into indirection tables and RSS queue pairs and flows into
//! `ibv_flow`s on every port. A change goes make before break: see [`plan()`]. Nothing here looks at a
//! packet, and nothing here runs on a worker's thread.
#![forbid(unsafe_code)]

mod controller;
mod counters;
mod device;
mod errno;
mod error;
mod installer;
mod model;
mod multicast;
mod plan;
mod transaction;
mod translate;

pub use controller::{Controller, Generation, Installed, Publish};
pub use counters::{Counted, DropTotals, Reading};
pub use device::{Device, DeviceSelector, DeviceSummary, Limits};
pub use error::{Error, Refusal};
pub use installer::{FlowRequest, Installer, VerbsInstaller};
pub use model::{Known, Model};
pub use plan::{Plan, Step, plan};
pub use program::Band;
pub use translate::SpecChain;
pub use verbs::{AsyncEvent, EventKind, EventSource};
