//! A [`Policy`] to a [`Program`] for one device, as a sequence of passes that `driver` runs: `cover` makes
//! cubes of matches, `except` takes out the packets of earlier rules, `rank` makes candidates for flows and
//! ranks them, `fit` makes them fit on the device, `emit` writes the program. The limits of the device are
//! checked in `capacity`. Each pass has its own type of error; `problem` joins them, and only
//! `diagnostics` contains their English text. No pass depends on the order of a hash map, so equal input
//! gives an equal program.
//!
//! It opens no device, reads no file and prints nothing. [`Capacity`] counts what a program needs of a
//! device, [`reload_conflict()`] finds why two programs cannot be installed at once. The crate `reports`
//! describes programs to operators.
//!
//! ```
//! use device_model::DeviceModel;
//! use policy::{NoFiles, Source};
//!
//! let text = "version = 1\ndefault = 'kernel'\n[groups.rx]\nworkers = 'all'\n\
//!     [[rules]]\nname = 'dns'\nmatch = { protocol = 'udp', dst_port = 53 }\naction = { steer = 'rx' }\n";
//! let (policy, _) = policy::parse(&Source::new("dns.toml", text), &NoFiles)?;
//! let program = compiler::compile(&policy, &DeviceModel::mlx5(), 4)?;
//! let flows: Vec<String> = program.flows.iter().map(ToString::to_string).collect();
//! assert_eq!(flows, ["ipv4 | udp dport=53", "ipv6 | udp dport=53"]);
//! # Ok::<(), policy::Diagnostics>(())
//! ```
#![forbid(unsafe_code)]

mod added_rule;
mod capacity;
mod cost;
mod cover;
mod diagnostics;
mod drawn_packets;
mod driver;
mod emit;
mod except;
mod fit;
mod flow_groups;
mod groups;
mod job;
mod mask_index;
mod problem;
mod rank;
mod specs;
mod weights;

use device_model::DeviceModel;
use packet::cube;
use policy::{Diagnostics, Policy};
use program::Program;

pub use added_rule::{AddedRules, without_added_rules};
pub use capacity::{Capacity, CapacityRow, PriorityUse};
pub use cost::{Decision, PS_PER_NS};
pub use cover::legalize::Expansion;
pub use cover::{MAX_FLOWS, cover_match};
pub use diagnostics::{Obstacle, exclusion_remedy, reload_conflict};
pub use drawn_packets::{DrawnPacket, MAX_FLOWS_TRIED, RandomSequence, draw_packets};
pub use fit::packing::priorities_for;
pub use flow_groups::FlowGroups;
pub use job::Job;
pub use problem::Problems;
pub use weights::Weights;

/// Compiles a policy for a device and a number of workers.
///
/// # Errors
/// Everything that does not fit: workers that do not exist, tables, flows or priorities beyond the device's
/// limits.
pub fn compile(policy: &Policy, profile: &DeviceModel, workers: usize) -> Result<Program, Diagnostics> {
    Job::new(policy, profile, workers).compile()
}

/// Like [`compile`], [beside](Job::beside) the program that is on the device.
///
/// # Errors
/// As [`compile`].
pub fn compile_with(
    policy: &Policy,
    profile: &DeviceModel,
    workers: usize,
    previous: Option<&Program>,
) -> Result<Program, Diagnostics> {
    Job::new(policy, profile, workers).beside(previous).compile()
}

/// Like [`compile`], with at most so many shared flows for one flow: for tests of what happens where they run
/// out.
///
/// # Errors
/// As [`compile`].
#[doc(hidden)]
pub fn compile_with_shared_flows(
    policy: &Policy,
    profile: &DeviceModel,
    workers: usize,
    shared_of_flow: usize,
) -> Result<Program, Diagnostics> {
    let compiled = Job::new(policy, profile, workers).program_within(shared_of_flow);
    compiled.map_err(|problems| problems.diagnostics(policy, profile))
}

impl Job<'_> {
    /// Compiles the policy; the problems are diagnostics with their places in the policy.
    ///
    /// # Errors
    /// As [`compile`].
    pub fn compile(&self) -> Result<Program, Diagnostics> {
        self.program().map_err(|problems| problems.diagnostics(self.policy, self.profile))
    }
}
