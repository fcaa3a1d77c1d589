//! The quantities that flow counters count.

use std::fmt;

use ibverbs_sys::{self as sys, ibv_counter_description};

/// A counted quantity (`ibv_counter_description`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CounterPoint {
    /// Packets that matched.
    Packets,
    /// The bytes of matching packets.
    Bytes,
    /// Something this crate has no name for, by its number.
    Unknown(u32),
}

impl CounterPoint {
    pub(crate) fn raw(self) -> ibv_counter_description {
        match self {
            Self::Packets => sys::IBV_COUNTER_PACKETS,
            Self::Bytes => sys::IBV_COUNTER_BYTES,
            Self::Unknown(raw) => raw,
        }
    }
}

impl fmt::Display for CounterPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packets => f.write_str("packets"),
            Self::Bytes => f.write_str("bytes"),
            Self::Unknown(raw) => write!(f, "number {raw}"),
        }
    }
}
