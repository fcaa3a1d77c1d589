//! The integration tests of this crate, one binary: linking each file on its own takes longer than running
//! it.

mod import;
mod import_nft;
mod language;
mod nft_differential;
mod nft_evaluator;
mod policy_tests;
mod schema;
mod set_files;
mod sinks;
mod speed;
mod wrong;
