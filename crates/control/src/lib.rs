//! Puts a compiled program on a device, all or nothing.
//!
//! `steerd` opens a [`Device`], compiles a policy for its [`Device::profile`], and passes each program to a
//! [`Controller`], which creates indirection tables and RSS queue pairs for groups and an `ibv_flow` on every
//! port for each flow. A change is make before break: see [`plan()`]. Nothing here reads a packet or runs on
//! a worker's thread.
//!
//! ```
//! use std::sync::Arc;
//!
//! use control::{Controller, Device, DeviceSelector};
//! use program::{Program, Rule, Verdict};
//! use wire::NullWire;
//! use softnic::{Drive, Personality, PortConfig, SoftNicConfig};
//! use softnic_verbs::SoftNic;
//! use verbs::{CompletionQueue, Domain, ProtectionDomain, WorkQueue};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let ports = vec![PortConfig { wire: Box::new(NullWire), mtu_bytes: 1500 }];
//! let (name, personality, drive) = ("soft0".to_owned(), Personality::Ideal, Drive::Manual);
//! let nic = SoftNic::create(SoftNicConfig { name, personality, ports, drive })?;
//! let device = Device::open(&DeviceSelector::default(), Some(&nic))?;
//!
//! // The receive queue of one worker.
//! let domain = Domain::from(ProtectionDomain::new(device.context())?);
//! let completions = CompletionQueue::builder(device.context(), 64).build()?;
//! let (queue, _receives) = WorkQueue::builder(&domain, &completions.handle()).build()?;
//!
//! // The program of a policy without rules leaves all packets to the kernel.
//! let default = Rule { flows: 0, ..Rule::in_hardware(program::DEFAULT_RULE, Verdict::Kernel, 0) };
//! let program = Program {
//!     rules: vec![default],
//!     groups: Vec::new(),
//!     sinks: Vec::new(),
//!     queues: Vec::new(),
//!     flows: Vec::new(),
//!     classes: Vec::new(),
//!     untagged: None,
//!     exceptions: Vec::new(),
//!     runtime: None,
//!     recorder: None,
//!     default: Verdict::Kernel,
//!     priorities_used: 0,
//! };
//! let mut controller = Controller::new(&device, vec![1], vec![queue])?;
//! let installed = controller.install(Arc::new(program), &mut |_stage| Ok(()))?;
//! assert_eq!(installed.generation.0, 1);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod classes;
mod controller;
mod counters;
mod device;
mod digested;
mod error;
mod installer;
mod model;
mod plan;
mod plan_fault;
mod priorities;
mod progress;
mod runtime;
mod tables;

pub use controller::{Controller, Generation, Installed, Publish};
pub use counters::{Counted, DropTotals};
pub use device::{Device, DeviceSelector, DeviceSummary, Limits};
pub use digested::DigestedProgram;
pub use error::{ControlError, DeviceRefusal};
pub use installer::{FlowRequest, Installer, VerbsInstaller};
pub use model::{Known, Model, kernel_driver};
pub use plan::{CheckedPlan, FlowChanges, PlacedProgram, Plan, PlanStep, PlanSummary, PlannedChange, plan};
pub use plan_fault::PlanFault;
pub use priorities::{FewerPriorities, UntriedPriorities, UntriedReason, can_try_priorities, unused_target};
pub use program::ChangeStage;
pub use progress::{ChangeProgress, ChangedSoFar};
pub use runtime::{
    AppliedRequests, RUNTIME_COMMENT_BYTES_MAX, RUNTIME_ID_BYTES_MAX, RUNTIME_REFUSALS_MAX, RuntimeOwner,
    RuntimeRefusal, RuntimeRequest, RuntimeRule, RuntimeStore, StoredRule,
};
pub use verbs::{AsyncEvent, EventKind, EventSource};
