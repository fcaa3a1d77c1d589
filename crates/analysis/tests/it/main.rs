//! The integration tests of this crate, one binary: linking each file on its own takes longer than running
//! it.

mod analysis;
mod analysis_corpora;
mod analysis_limits;
mod analysis_support;
mod deciders;
mod diff;
mod diff_corpora;
mod diff_examples;
mod protect;
mod runtime_protection;
mod shadowing_sinks;

/// Whether random policies and packets have ports of SCTP.
const DRAWS_SCTP: bool = true;
