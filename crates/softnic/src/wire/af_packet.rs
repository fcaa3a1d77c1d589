//! A live interface.

use packet::MacAddr;

use super::{AfPacketConfig, Burst, TransmitError, Wire, WireError, WireState};

/// A port that is a live interface.
#[derive(Debug)]
pub struct AfPacketWire {}

impl AfPacketWire {
    /// Opens the packet socket.
    ///
    /// # Errors
    /// Which interface, and why.
    #[allow(clippy::todo, clippy::missing_panics_doc)]
    pub fn open(_config: &AfPacketConfig) -> Result<Self, WireError> {
        todo!()
    }
}

#[allow(clippy::todo)]
impl Wire for AfPacketWire {
    fn receive<'w>(&'w mut self, _burst: &mut Burst<'w>) {
        todo!()
    }

    fn transmit(&mut self, _frame: &[u8]) -> Result<(), TransmitError> {
        todo!()
    }

    fn flush(&mut self) {}

    fn state(&self) -> WireState {
        todo!()
    }

    fn describe(&self) -> String {
        todo!()
    }

    fn mac(&self) -> MacAddr {
        todo!()
    }

    fn mtu_bytes(&self) -> u32 {
        todo!()
    }
}
