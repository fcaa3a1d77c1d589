//! The integration tests of this crate, one binary: linking each file on its own takes longer than running
//! it.

mod all_or_nothing;
mod delta;
mod device;
mod messages;
mod support;
