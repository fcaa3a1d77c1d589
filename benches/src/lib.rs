//! Code shared by the benches: a soft NIC fed from memory with a policy and workers, or a daemon of its own
//! process; rule sets and traces; other programs that do the same work; interleaved rounds, tables, pages and
//! plots of their figures. Beside them a simulation of tables that are balanced.
#![forbid(unsafe_code)]

pub mod balancing;
pub mod comparison;
pub mod competitors;
pub mod daemon;
mod dataplane;
mod dice;
pub mod full_queue;
pub mod machine;
pub mod namespace;
pub mod page;
pub mod plot;
pub mod report;
mod rig;
pub mod rules;
pub mod table;
pub mod trace;

pub use dataplane::Dataplane;
pub use rig::{Parts, Rig};

/// The median of an odd number of figures.
#[must_use]
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
