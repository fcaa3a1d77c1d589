//! The integration tests of this crate, one binary.

mod device_room;
mod placed;
mod warnings;
