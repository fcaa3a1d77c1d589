//! The soft NIC as its owner sees it: created from a configuration, pumped or self-driven, asked for its books.
#![allow(clippy::todo)]

use std::ffi::c_int;

use ibverbs_sys::ibv_device;

use crate::wire::Wire;
use crate::{Error, PortStats};

/// What the device refuses, and how it orders flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Personality {
    /// Takes whatever the verbs API can say.
    #[default]
    Ideal,
}

/// Who runs the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drive {
    /// A thread of the device's own.
    Thread {
        /// The core the thread is pinned to.
        core: Option<usize>,
    },
    /// The owner, by [`SoftNic::pump`].
    Manual,
}

/// One port of the device.
pub struct PortConfig {
    /// Where its frames come from and go to.
    pub wire: Box<dyn Wire>,
    /// Payload bytes of the largest frame (without the Ethernet header and VLAN tags).
    pub mtu_bytes: u32,
}

/// What a soft NIC is made from.
pub struct SoftNicConfig {
    /// The device's name, e.g. `softnic0`.
    pub name: String,
    /// What it accepts.
    pub personality: Personality,
    /// Its ports; port numbers count from 1 in this order.
    pub ports: Vec<PortConfig>,
    /// Who runs its engine.
    pub drive: Drive,
}

/// A software NIC. Dropping it stops the engine; open contexts stay valid and see no more traffic.
pub struct SoftNic {
    _private: (),
}

impl SoftNic {
    /// Makes the device and, with [`Drive::Thread`], starts its engine.
    ///
    /// # Errors
    /// A configuration out of range, or a libibverbs whose private layout is not known.
    pub fn create(_config: SoftNicConfig) -> Result<Self, Error> {
        todo!()
    }

    /// Runs one engine pass over all ports on the caller's thread: at most `max_frames` received frames, and
    /// whatever is in the send rings. Returns the frames handled, received and sent. 0 with [`Drive::Thread`].
    pub fn pump(&self, _max_frames: usize) -> usize {
        todo!()
    }

    /// The books of a port (from 1); all zero for a port that does not exist.
    #[must_use]
    pub fn port_stats(&self, _port: u8) -> PortStats {
        todo!()
    }

    /// Whether every wire has come to its end and everything received was handled.
    #[must_use]
    pub fn wires_finished(&self) -> bool {
        todo!()
    }

    /// Stops the engine for good. Open contexts stay valid.
    pub fn stop(&self) {
        todo!()
    }

    #[allow(dead_code)]
    fn device_list_raw(&self, _count: &mut c_int) -> *mut *mut ibv_device {
        todo!()
    }
}
