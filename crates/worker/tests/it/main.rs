//! The integration tests of this crate, one binary: linking each file on its own takes longer than running
//! it.

mod allocations;
mod captures;
mod explain;
mod forward;
mod full_rate;
mod group_costs;
mod inline;
mod interface;
mod measurements;
mod policing;
mod recorder;
mod recovery;
mod reload;
mod runtime;
mod sinks;
mod sleeping;
mod steering;
mod support;
mod threads;
mod tracing;
