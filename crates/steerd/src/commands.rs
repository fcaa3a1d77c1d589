//! The commands other than `run`, a module each.

pub(crate) mod balance;
pub(crate) mod capture;
pub(crate) mod check;
mod client;
pub(crate) mod devices;
pub(crate) mod diff;
pub(crate) mod doctor;
mod ending;
mod error;
pub(crate) mod explain;
pub(crate) mod flows;
pub(crate) mod healthcheck;
pub(crate) mod history;
pub(crate) mod import;
pub(crate) mod lsp;
pub(crate) mod plan;
pub(crate) mod record;
pub(crate) mod reload;
pub(crate) mod report;
pub(crate) mod rule;
pub(crate) mod size;
pub(crate) mod status;
mod target;
pub(crate) mod test;
pub(crate) mod top;
pub(crate) mod trace;
pub(crate) mod worker;

pub(crate) use error::Error;

/// The exit code of a command that did its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Outcome {
    Success = 0,
    /// `diff` or `trace` found a difference.
    Different = 1,
}
