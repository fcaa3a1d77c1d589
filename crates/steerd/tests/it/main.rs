//! The integration tests of this crate, one binary: linking each file on its own takes longer than running
//! it.

#[path = "../../../analysis/tests/it/analysis_support/mod.rs"]
mod analysis_support;
mod api;
mod apps;
mod capture_sink;
mod captures;
mod changes;
mod chaos;
mod commands;
mod counters;
mod crate_lists;
mod daemon;
mod documents;
mod examples;
mod forward;
mod history;
mod install;
mod kernel_sink;
mod libmlx5;
mod links;
mod liveness;
mod load;
mod logging;
mod lost_exceptions;
mod namespaces;
mod personalities;
mod policies;
mod protect;
mod refusals;
mod rules;
mod rulesets;
mod support;
mod terminal;
mod trace;
mod trial;
