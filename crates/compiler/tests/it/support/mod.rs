//! Random policies and packets for `judge`.

pub(crate) mod clauses;
pub(crate) mod packets;
pub(crate) mod rules;
pub(crate) mod tunnels;
pub(crate) mod universe;
