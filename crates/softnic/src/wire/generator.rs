//! Generated traffic.

use packet::MacAddr;

use super::{Burst, GeneratorConfig, TransmitError, Wire, WireError, WireState};

/// A port that receives generated traffic.
#[derive(Debug)]
pub struct GeneratorWire {}

impl GeneratorWire {
    /// Builds the frames and the schedule.
    ///
    /// # Errors
    /// Which flow cannot be built and why.
    #[allow(clippy::todo, clippy::missing_panics_doc)]
    pub fn open(_config: &GeneratorConfig) -> Result<Self, WireError> {
        todo!()
    }
}

#[allow(clippy::todo)]
impl Wire for GeneratorWire {
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
