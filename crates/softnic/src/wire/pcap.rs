//! Recorded captures.

use packet::MacAddr;

use super::{Burst, PcapConfig, TransmitError, Wire, WireError, WireState};

/// A port that replays captures.
#[derive(Debug)]
pub struct PcapWire {}

impl PcapWire {
    /// Loads the captures.
    ///
    /// # Errors
    /// Which file and packet, and why.
    #[allow(clippy::todo, clippy::missing_panics_doc)]
    pub fn open(_config: &PcapConfig) -> Result<Self, WireError> {
        todo!()
    }
}

#[allow(clippy::todo)]
impl Wire for PcapWire {
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
