//! The integration tests of this crate, one binary: linking each file on its own takes longer than running
//! it.

#[path = "../../../analysis/tests/it/analysis_support/mod.rs"]
mod analysis_support;
mod api;
mod apps;
mod capture_sink;
mod captures;
mod carving;
mod changes;
mod chaos;
mod commands;
mod counters;
mod crate_lists;
mod daemon;
mod diff_live;
mod documents;
mod examples;
mod faults;
mod feeds;
mod fleets;
mod forward;
mod history;
mod install;
mod ipfix;
mod kernel_sink;
mod language_server;
mod libmlx5;
mod links;
mod live;
mod liveness;
mod load;
mod logging;
mod lost_exceptions;
mod namespaces;
mod page;
mod personalities;
mod playground;
mod policies;
mod preflight;
mod protect;
mod recorder;
mod refusals;
mod required_tests;
mod rules;
mod rulesets;
mod settings_errors;
mod support;
mod terminal;
mod top;
mod trace;
mod tracepoints;
mod traces;
mod trial;
mod watch;
mod workers;

/// No random policy has ports of SCTP: with them the draws find a reload that the model of an mlx5 refuses,
/// in a policy without SCTP.
const DRAWS_SCTP: bool = false;
