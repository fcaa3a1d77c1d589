//! The wire with nothing at its other end: no frame arrives, sent frames vanish.
//!
//! For ports that only send, and for tests of everything but traffic. It never finishes and is never down.

use packet::MacAddr;

use super::{Burst, MAX_FRAME_BYTES, SOFT_MAC, TransmitError, Wire, WireState};

/// A port without a peer.
#[derive(Debug, Default)]
pub struct NullWire;

impl Wire for NullWire {
    fn receive<'w>(&'w mut self, _burst: &mut Burst<'w>) {}

    fn transmit(&mut self, frame: &[u8]) -> Result<(), TransmitError> {
        TransmitError::check_length(frame, MAX_FRAME_BYTES)
    }

    fn flush(&mut self) {}

    fn state(&self) -> WireState {
        WireState::Live
    }

    fn describe(&self) -> String {
        "null".to_owned()
    }

    fn mac(&self) -> MacAddr {
        SOFT_MAC
    }

    fn mtu_bytes(&self) -> u32 {
        9_216
    }
}
