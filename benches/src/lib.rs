//! What the benches share: a soft NIC fed from memory, a policy of some rules, and workers; the plain
//! hand-off that the dataplane is measured against; rule sets, the programs that load the same rules, and the
//! plot of what it costs. Called by the benches only.
#![forbid(unsafe_code)]

mod handoff;
pub mod plot;
pub mod report;
mod rig;
pub mod rivals;
pub mod rules;

pub use handoff::handoff_frames_per_second;
pub use rig::Rig;

/// The middle one of an odd number of figures.
#[must_use]
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
