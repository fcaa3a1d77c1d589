//! What the benches share: a soft NIC fed from memory, a policy of some rules, and workers; and the plain
//! hand-off that the dataplane is measured against. Called by the benches only.
#![forbid(unsafe_code)]

mod handoff;
mod rig;

pub use handoff::handoff_frames_per_second;
pub use rig::Rig;

/// The middle one of an odd number of figures.
#[must_use]
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
