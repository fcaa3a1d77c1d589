//! What the daemon reports about itself: the packet accounting, metrics, the HTTP server and the log.

pub(crate) mod accounting;
pub(crate) mod carving;
pub(crate) mod http;
mod live;
pub(crate) mod logging;
pub(crate) mod metrics;
pub(crate) mod pages;
pub(crate) mod top;
