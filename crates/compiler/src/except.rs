//! The passes that find what flows and workers do about the packets of earlier rules: `subtract` takes them
//! out of the cubes of a rule where that is possible, and `place` decides whether a rule is decided by
//! hardware or by a worker, by the later rules that `overlaps` finds.

pub(crate) mod overlaps;
pub(crate) mod place;
pub(crate) mod subtract;
