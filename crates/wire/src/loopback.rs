//! Wires without a medium: the port receives its own frames, or nothing.
//!
//! [`LoopbackWire`] serves programs that test a device against itself; it is one ring of a link with both
//! ends in this process. [`NullWire`] serves ports that only send, and tests of everything but traffic.

use std::sync::Arc;

use super::link::ring::{RingReceiver, RingSender, SharedMemory};
use crate::{BURST_FRAMES, Burst, MAX_FRAME_BYTES, RxFrame, SleepHint, TransmitError, Wire, WireError};

/// A port with a loopback plug.
#[derive(Debug)]
pub struct LoopbackWire {
    sender: RingSender,
    receiver: RingReceiver,
    /// The frames of a burst, copied one after the other.
    frames: Box<[u8]>,
}

impl LoopbackWire {
    /// An empty loopback.
    ///
    /// # Errors
    /// The memory cannot be allocated.
    pub fn open() -> Result<Self, WireError> {
        let (memory, _) = SharedMemory::create("softnic-loopback").map_err(|errno| WireError::Link {
            link: "loopback".to_owned(),
            operation: "memory",
            source: errno.into(),
        })?;
        let memory = Arc::new(memory);
        Ok(Self {
            sender: RingSender::new(Arc::clone(&memory), 0),
            receiver: RingReceiver::new(memory, 0),
            frames: vec![0; BURST_FRAMES * MAX_FRAME_BYTES].into_boxed_slice(),
        })
    }
}

impl Wire for LoopbackWire {
    fn receive<'w>(&'w mut self, burst: &mut Burst<'w>) {
        // No other process writes to the memory, so it is valid.
        let (places, _) = self.receiver.take_burst(&mut self.frames, burst.capacity_left());
        for place in places {
            burst.push(RxFrame::new(&self.frames[place]));
        }
    }

    fn transmit(&mut self, frame: &[u8]) -> Result<(), TransmitError> {
        TransmitError::check_length(frame, MAX_FRAME_BYTES)?;
        match self.sender.put(frame) {
            Ok(true) => Ok(()),
            _ => Err(TransmitError::QueueFull),
        }
    }

    fn has_room(&mut self) -> bool {
        self.sender.takes_longest().unwrap_or(true)
    }

    fn flush(&mut self) {
        self.sender.publish();
    }

    /// All frames are those of this port, and the engine makes another pass after it has sent some.
    fn sleep_hint(&mut self) -> SleepHint {
        SleepHint::NEVER
    }

    fn describe(&self) -> String {
        "loopback".to_owned()
    }
}

/// A port without a peer.
#[derive(Debug, Default)]
pub struct NullWire;

impl Wire for NullWire {
    fn receive<'w>(&'w mut self, _burst: &mut Burst<'w>) {}

    fn transmit(&mut self, frame: &[u8]) -> Result<(), TransmitError> {
        TransmitError::check_length(frame, MAX_FRAME_BYTES)
    }

    fn describe(&self) -> String {
        "null".to_owned()
    }

    fn sleep_hint(&mut self) -> SleepHint {
        SleepHint::NEVER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sent_frames_are_received_in_order_once_flushed() {
        let mut wire = LoopbackWire::open().unwrap();
        let frames: Vec<Vec<u8>> = (0..100u8).map(|number| vec![number; 60 + usize::from(number)]).collect();
        for frame in &frames {
            assert_eq!(wire.transmit(frame), Ok(()));
        }
        let mut take = |flush: bool| -> Vec<Vec<u8>> {
            if flush {
                wire.flush();
            }
            let mut burst = Burst::new();
            wire.receive(&mut burst);
            burst.iter().map(|frame| frame.bytes.to_vec()).collect()
        };
        assert!(take(false).is_empty());
        let received = [take(true), take(false)].concat();
        assert_eq!(received, frames);
    }

    #[test]
    fn a_full_wire_takes_no_more() {
        let mut wire = LoopbackWire::open().unwrap();
        let long = vec![0; MAX_FRAME_BYTES];
        let taken = (0..1000).take_while(|_| wire.transmit(&long).is_ok()).count();
        assert!((400..1000).contains(&taken), "{taken}");
        assert_eq!(wire.transmit(&long), Err(TransmitError::QueueFull));
    }
}
