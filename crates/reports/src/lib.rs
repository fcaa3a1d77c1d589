//! Descriptions of compiled policies for operators: where each rule is decided and why ([`Report`]),
//! likely mistakes ([`Check`]), how the packets of rules ([`shares`]) and of captures ([`TrafficShares`]) are
//! decided, what happens to one packet ([`ExplainedPacket`]), whether the host gets what it must
//! ([`LostReport`], [`ProtectionReport`]), and how many rules at run time a device has room for
//! ([`DeviceRoom`]). [`PolicyFindings`] are all of them for a policy and a device. Nothing here changes a
//! program, except that the packets of a capture can be counted by rule as weights for the compiler
//! ([`RuleCounter`]).
//!
//! It opens no device, reads no file and prints nothing.
//!
//! ```
//! use device_model::DeviceModel;
//! use policy::{NoFiles, Source};
//! use reports::Decided;
//!
//! let text = "version = 1\ndefault = 'kernel'\n[groups.rx]\nworkers = 'all'\n\
//!     [[rules]]\nname = 'syn'\nmatch = { protocol = 'tcp', tcp_flags = 'syn' }\naction = { steer = 'rx' }\n";
//! let (policy, _) = policy::parse(&Source::new("syn.toml", text), &NoFiles)?;
//! let report = reports::report(&policy, &DeviceModel::mlx5(), 4, None);
//! assert_eq!(report.rules[0].decided, Decided::Hybrid);
//! # Ok::<(), policy::Diagnostics>(())
//! ```
#![forbid(unsafe_code)]

mod check;
mod device_room;
mod explained;
mod lost_exceptions;
mod policy_findings;
mod protection;
mod report;
mod rule_counter;
mod share;
mod traffic;
mod warnings;
mod workers;
mod written_action;

pub use compiler::Decision;

pub use check::{Check, RuleCheck};
pub use device_room::{DeviceRoom, FormRoom, room_findings};
pub use explained::{
    ETHERNET_HEADER_BYTES, ExplainedPacket, ReceivedPacket, SentPacket, is_policed, key_of_hex, rule_name,
    sent_action,
};
pub use lost_exceptions::LostReport;
pub use policy_findings::PolicyFindings;
pub use protection::{ProtectedNames, ProtectionReport, protection_warning};
pub use report::{Decided, PolicingReport, Report, RuleReport, WorkerLimit, report};
pub use rule_counter::RuleCounter;
pub use share::{Share, Shares, hardware_percent, shares};
pub use traffic::{Amount, Decisions, TrafficSample, TrafficShare, TrafficShares};
pub use warnings::{all_warnings, rule_names};
pub use workers::{without_workers, workers_named};
pub use written_action::written_action;
