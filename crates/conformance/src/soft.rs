//! A soft NIC on a wire in memory, as the device under test and its peer.
//!
//! Used by the binaries and the tests.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use packet::MacAddr;
use softnic::{Drive, Personality, PortConfig, SoftNicConfig};
use softnic_verbs::SoftNic;
use verbs::{Context, DeviceList};
use wire::{Burst, RxFrame, TransmitError, Wire, WireState};

use crate::Peer;

const NAME: &str = "softnic0";
const MTU_BYTES: u32 = 1500;

/// Why there is no device under test.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Error {
    #[error("cannot make a soft NIC")]
    SoftNic(#[from] softnic_verbs::ProviderError),
    #[error("cannot open the soft NIC")]
    Verbs(#[from] verbs::VerbsError),
    #[error("the soft NIC does not list itself")]
    NotListed,
}

type Shared<T> = Arc<Mutex<T>>;

fn lock<T>(shared: &Shared<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A wire whose other end is [`SoftDevice`].
struct MemoryWire {
    inbox: Shared<VecDeque<Vec<u8>>>,
    current: Vec<Vec<u8>>,
    sent: Shared<Vec<Vec<u8>>>,
}

impl Wire for MemoryWire {
    fn receive<'w>(&'w mut self, burst: &mut Burst<'w>) {
        let mut inbox = lock(&self.inbox);
        let count = inbox.len().min(burst.capacity_left());
        self.current = inbox.drain(..count).collect();
        for frame in &self.current {
            burst.push(RxFrame::new(frame));
        }
    }

    fn transmit(&mut self, frame: &[u8]) -> Result<(), TransmitError> {
        lock(&self.sent).push(frame.to_vec());
        Ok(())
    }

    fn flush(&mut self) {}

    fn state(&self) -> WireState {
        WireState::Live
    }

    fn describe(&self) -> String {
        "memory".into()
    }

    fn mac(&self) -> MacAddr {
        MacAddr(crate::bench::OTHER_MAC)
    }

    fn mtu_bytes(&self) -> u32 {
        MTU_BYTES
    }
}

/// A soft NIC, opened, and the other end of its port.
pub struct SoftDevice {
    nic: SoftNic,
    context: Arc<Context>,
    inbox: Shared<VecDeque<Vec<u8>>>,
    sent: Shared<Vec<Vec<u8>>>,
}

impl SoftDevice {
    /// One with this personality.
    ///
    /// # Errors
    /// Those of the soft NIC.
    pub fn new(personality: Personality) -> Result<Self, Error> {
        let (inbox, sent) = (Shared::default(), Shared::default());
        let wire = MemoryWire { inbox: Arc::clone(&inbox), current: Vec::new(), sent: Arc::clone(&sent) };
        let ports = vec![PortConfig { wire: Box::new(wire), mtu_bytes: MTU_BYTES }];
        let config = SoftNicConfig { name: NAME.into(), personality, ports, drive: Drive::Manual };
        let nic = SoftNic::create(config)?;
        let context = DeviceList::of(&nic)?.find(NAME).ok_or(Error::NotListed)?.open()?;
        Ok(Self { nic, context, inbox, sent })
    }

    /// The open device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Peer for SoftDevice {
    fn deliver(&self, frames: Vec<Vec<u8>>) {
        lock(&self.inbox).extend(frames);
        while self.nic.pump(64) > 0 {}
    }

    fn sent(&self) -> Option<Vec<Vec<u8>>> {
        Some(std::mem::take(&mut *lock(&self.sent)))
    }
}
