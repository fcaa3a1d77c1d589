//! A wire whose other end is the fuzz target.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use packet::MacAddr;
use wire::{Burst, RxFrame, TransmitError, Wire, WireState};

/// Frames that the device has not received yet.
pub type Inbox = Arc<Mutex<VecDeque<Vec<u8>>>>;

/// The device's end.
#[derive(Default)]
pub struct FuzzWire {
    pub inbox: Inbox,
    pub current: Vec<Vec<u8>>,
}

impl Wire for FuzzWire {
    fn receive<'w>(&'w mut self, burst: &mut Burst<'w>) {
        let mut inbox = self.inbox.lock().expect("one thread");
        let count = inbox.len().min(burst.capacity_left());
        self.current = inbox.drain(..count).collect();
        for frame in &self.current {
            assert!(burst.push(RxFrame::new(frame)));
        }
    }

    fn transmit(&mut self, frame: &[u8]) -> Result<(), TransmitError> {
        // Reads every byte, for the sanitizer.
        std::hint::black_box(frame.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)));
        Ok(())
    }

    fn flush(&mut self) {}

    fn state(&self) -> WireState {
        WireState::Live
    }

    fn describe(&self) -> String {
        "fuzz".to_owned()
    }

    fn mac(&self) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, 1])
    }

    fn mtu_bytes(&self) -> u32 {
        1500
    }
}
