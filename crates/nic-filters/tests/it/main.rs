//! Filters from policies on modelled NICs, and their encoding against a C compiler.

mod carving;
mod decisions;
mod early_drops;
mod encoding;
mod interface;
mod probing;
mod support;
