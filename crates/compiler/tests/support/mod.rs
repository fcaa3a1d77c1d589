//! What the judge is made of.

pub(crate) mod clauses;
pub(crate) mod packets;
pub(crate) mod rules;
pub(crate) mod tunnels;
