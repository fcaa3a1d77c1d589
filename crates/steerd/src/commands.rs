//! The commands other than `run`, a module each.

pub(crate) mod capture;
pub(crate) mod check;
pub(crate) mod devices;
pub(crate) mod diff;
pub(crate) mod explain;
pub(crate) mod flows;
pub(crate) mod healthcheck;
pub(crate) mod import;
pub(crate) mod reload;
pub(crate) mod size;
pub(crate) mod status;
pub(crate) mod top;
