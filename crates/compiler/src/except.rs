//! The passes that find what flows and workers do about the packets of earlier rules: `subtract` takes them
//! out of the cubes of a rule where that is possible, `place` decides whether a rule is decided by hardware
//! or by a worker, and `classes` lists the earlier rules that a worker compares.

pub(crate) mod classes;
pub(crate) mod place;
pub(crate) mod subtract;
