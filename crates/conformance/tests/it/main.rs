//! The integration tests of this crate, one binary: linking each file on its own takes longer than running
//! it.

mod header;
mod libmlx5;
mod model;
mod packet_peer;
mod probe;
mod suite;
