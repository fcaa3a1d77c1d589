//! The other end of a link as the peer of a device that runs on its own: of one below rdma-core's mlx5
//! provider (`softnic exec --method mlx5 --wire link:NAME:a`), with an MTU of 1,500 bytes.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use wire::{Burst, LinkConfig, LinkEnd, LinkWire, Wire, WireError, WireState};

use crate::Peer;

/// The longest wait for the device's end.
const PATIENCE: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(1);
/// Longer than the device's MTU allows: it drops such a frame before it looks for flows.
const MARKER: [u8; 4_000] = [0; 4_000];

/// Why there is no peer.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum LinkError {
    #[error("{0}")]
    Name(String),
    #[error("cannot open the link")]
    Wire(#[from] WireError),
    #[error("no device answers at the other end of link `{0}`")]
    Silent(String),
}

/// End `b` of a link.
pub struct LinkPeer(Mutex<LinkPeerEnd>);

struct LinkPeerEnd {
    wire: LinkWire,
    /// The frames that the device has sent since the last call.
    sent: Vec<Vec<u8>>,
}

impl LinkPeer {
    /// Meets the device at end `a`, which is open.
    ///
    /// # Errors
    /// There is no such link, or no device at its other end.
    pub fn meet(name: &str) -> Result<Self, LinkError> {
        let config = LinkConfig { name: name.parse().map_err(LinkError::Name)?, end: LinkEnd::B };
        let mut wire = LinkWire::open(&config)?;
        let until = Instant::now() + PATIENCE;
        while wire.state() != WireState::Live {
            if Instant::now() > until {
                return Err(LinkError::Silent(name.to_owned()));
            }
            wire.tend();
            std::thread::sleep(STEP);
        }
        Ok(Self(Mutex::new(LinkPeerEnd { wire, sent: Vec::new() })))
    }
}

impl LinkPeerEnd {
    /// Sends what was queued, and waits until the device has received it.
    fn settle(&mut self) {
        self.wire.flush();
        let until = Instant::now() + PATIENCE;
        while !self.wire.is_taken() && Instant::now() < until {
            std::thread::sleep(STEP);
        }
    }

    /// Takes what the device has sent.
    fn collect(&mut self) {
        receive_all(&mut self.wire, |frame| self.sent.push(frame.to_vec()));
    }
}

/// Passes the frames that wait at a wire to `each`, until there is none.
pub(crate) fn receive_all(wire: &mut impl Wire, mut each: impl FnMut(&[u8])) {
    loop {
        let mut burst = Burst::new();
        wire.receive(&mut burst);
        if burst.is_empty() {
            return;
        }
        burst.iter().for_each(|frame| each(frame.bytes));
    }
}

impl Peer for LinkPeer {
    fn deliver(&self, frames: Vec<Vec<u8>>) {
        let mut end = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for frame in &frames {
            // What does not go out is missed by the case.
            let _ = end.wire.transmit(frame);
        }
        end.settle();
        // The device receives the next burst when it has processed the last one, and everything of that when
        // it looks for another: two passes. In each of them it also sends what was posted before.
        for _ in 0..2 {
            let _ = end.wire.transmit(&MARKER);
            end.settle();
        }
        end.collect();
    }

    fn sent(&self) -> Option<Vec<Vec<u8>>> {
        let mut end = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        end.collect();
        Some(std::mem::take(&mut end.sent))
    }
}
