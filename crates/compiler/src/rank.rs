//! The passes that make candidates for flows (`lower`) and rank them by overlap (`order`).

pub(crate) mod lower;
pub(crate) mod order;
mod variants;
