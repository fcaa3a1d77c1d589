//! Code shared by the benches: a soft NIC fed from memory with a policy and workers; the plain hand-off between cores
//! that the dataplane is compared with; rule sets, other programs that do the same work, tables and the plot of the cost.
#![forbid(unsafe_code)]

pub mod competitors;
mod handoff;
pub mod plot;
pub mod report;
mod rig;
pub mod rules;
pub mod table;

pub use handoff::handoff_frames_per_second;
pub use rig::Rig;

/// The median of an odd number of figures.
#[must_use]
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
