//! The device of a report, open, and where test frames come from.
//!
//! All frames of a report are to one MAC address that no station has ([`TEST_MAC`]), and to addresses for
//! benchmarks (RFC 2544: 198.18.0.0/15), which are not routed. Flows match the MAC address and one of these
//! addresses, so a packet of anyone else matches none of them.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use packet::MacAddr;
use softnic::{Drive, Personality, PortConfig, SoftNic, SoftNicConfig};
use verbs::{Context, DeviceList, DevicePort, PortNumber, SYSFS_CLASSES};
use wire::{
    AfPacketConfig, Burst, HandOver, LinkConfig, LinkEnd, MergedFrames, Promiscuous, RxFrame, TransmitError,
    Wire, WireConfig, WireState,
};

use super::ReportError;

/// The destination of all test frames: locally administered and not in use. The cases of the suite have the
/// same.
pub(super) const TEST_MAC: MacAddr = MacAddr([0x02, 0x73, 0x74, 0x65, 0x65, 0x72]);
/// The source of test frames.
pub(super) const SOURCE_MAC: MacAddr = MacAddr([0x02, 0x73, 0x74, 0x65, 0x65, 0x00]);
/// The prefix of a peer that is the end `b` of a link.
pub(super) const LINK: &str = "link:";

pub(super) const SOFT_MTU_BYTES: u32 = 1500;
/// The most frames that one measurement sends.
const SENT_MAX: u64 = 1 << 26;
/// Frames that are sent between two looks at the clock.
const BURST: usize = 64;
/// The pause while the queue to the medium is full.
const FULL_PAUSE: Duration = Duration::from_micros(20);
/// The longest wait for the other end of a link.
const PATIENCE: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(1);
const RING_FRAMES: u32 = 4096;

/// A device that is open for measurements. The context is before the software NIC, so that it is closed
/// before.
pub(super) struct OpenTarget {
    pub(super) context: Arc<Context>,
    pub(super) port: PortNumber,
    pub(super) mtu_bytes: Option<u32>,
    /// Whether the device works only while a queue of it is polled.
    pub(super) polls_drive_device: bool,
    pub(super) source: Option<FrameSource>,
    _nic: Option<SoftNic>,
    /// Lets test frames pass the device's own filter of addresses.
    _promiscuous: Option<Promiscuous>,
}

impl OpenTarget {
    /// Makes and opens a software NIC on a wire in memory.
    pub(super) fn soft(name: &str, personality: Personality) -> Result<Self, ReportError> {
        let feed = Arc::new(SoftFeed::default());
        let wire = FeedWire { feed: Arc::clone(&feed), frame: Vec::new() };
        let ports = vec![PortConfig { wire: Box::new(wire), mtu_bytes: SOFT_MTU_BYTES }];
        let config = SoftNicConfig { name: name.to_owned(), personality, ports, drive: Drive::Inline };
        let nic = SoftNic::create(config).map_err(ReportError::SoftNic)?;
        let listed = DeviceList::of(&nic).map_err(ReportError::Verbs)?;
        let device = listed.find(name).ok_or_else(|| ReportError::NoDevice(name.to_owned()))?;
        Ok(Self {
            context: device.open().map_err(ReportError::Verbs)?,
            port: PortNumber(1),
            mtu_bytes: Some(SOFT_MTU_BYTES),
            polls_drive_device: true,
            source: Some(FrameSource::Generator(feed)),
            _nic: Some(nic),
            _promiscuous: None,
        })
    }

    /// Opens a device of libibverbs' list, and the interface or the link that reaches its port.
    pub(super) fn real(device: &DevicePort, peer: Option<&str>) -> Result<Self, ReportError> {
        let list = DeviceList::system().map_err(ReportError::Verbs)?;
        let listed = list.find(&device.device).ok_or_else(|| ReportError::NoDevice(device.device.clone()))?;
        let context = listed.open().map_err(ReportError::Verbs)?;
        let interface = device.interface(Path::new(SYSFS_CLASSES));
        let is_live = peer.is_some_and(|peer| !peer.starts_with(LINK));
        let promiscuous = interface.as_deref().filter(|_| is_live).map(Promiscuous::hold).transpose();
        Ok(Self {
            context,
            port: device.port,
            mtu_bytes: None,
            polls_drive_device: false,
            source: peer.map(FrameSource::open).transpose()?,
            _nic: None,
            _promiscuous: promiscuous.map_err(ReportError::Peer)?,
        })
    }
}

/// The sender of test frames.
pub(super) enum FrameSource {
    /// Frames from memory, for a software NIC of this process.
    Generator(Arc<SoftFeed>),
    /// An interface or the end of a link.
    Wire { wire: Box<dyn Wire>, name: &'static str },
}

impl FrameSource {
    fn open(peer: &str) -> Result<Self, ReportError> {
        let (config, name) = match peer.strip_prefix(LINK) {
            Some(link) => {
                let link = link.parse().map_err(ReportError::LinkName)?;
                (WireConfig::Link(LinkConfig { name: link, end: LinkEnd::B }), "link")
            }
            None => {
                let config = AfPacketConfig {
                    interface: peer.to_owned(),
                    promiscuous: false,
                    ring_frames: RING_FRAMES,
                    merged: MergedFrames::default(),
                    hand_over: HandOver::default(),
                    busy_poll: false,
                };
                (WireConfig::AfPacket(config), "af_packet")
            }
        };
        let mut wire = config.open().map_err(ReportError::Peer)?;
        let until = Instant::now() + PATIENCE;
        while wire.state() != WireState::Live {
            if Instant::now() > until {
                return Err(ReportError::SilentPeer(peer.to_owned()));
            }
            wire.tend();
            std::thread::sleep(STEP);
        }
        Ok(Self::Wire { wire, name })
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Generator(_) => "generator",
            Self::Wire { name, .. } => name,
        }
    }

    /// Sends a frame again and again for so long, and returns how often it was sent.
    pub(super) fn send_for(&mut self, frame: &[u8], time: Duration, is_stopped: &dyn Fn() -> bool) -> u64 {
        let until = Instant::now() + time;
        match self {
            Self::Generator(feed) => {
                feed.start(frame);
                while Instant::now() < until && !is_stopped() {
                    std::thread::sleep(STEP);
                }
                feed.stop()
            }
            Self::Wire { wire, .. } => send_by(&mut **wire, frame, until, is_stopped),
        }
    }
}

fn send_by(wire: &mut dyn Wire, frame: &[u8], until: Instant, is_stopped: &dyn Fn() -> bool) -> u64 {
    let burst = [frame; BURST];
    let losses = wire.transmit_losses();
    let mut sent = 0;
    while Instant::now() < until && sent < SENT_MAX && !is_stopped() {
        let taken = wire.transmit_burst(&burst);
        sent += taken.frames;
        wire.flush();
        wire.tend();
        if taken.frames == 0 {
            std::thread::sleep(FULL_PAUSE);
        }
    }
    wire.flush();
    sent - (wire.transmit_losses() - losses).min(sent)
}

/// The frame that a [`FeedWire`] hands over again and again while it is open.
#[derive(Debug, Default)]
pub(super) struct SoftFeed(Mutex<FeedState>);

#[derive(Debug, Default)]
struct FeedState {
    frame: Vec<u8>,
    is_open: bool,
    sent: u64,
}

impl SoftFeed {
    fn lock(&self) -> MutexGuard<'_, FeedState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self, frame: &[u8]) {
        *self.lock() = FeedState { frame: frame.to_vec(), is_open: true, sent: 0 };
    }

    /// Returns how many frames were handed over; none follows.
    fn stop(&self) -> u64 {
        let mut state = self.lock();
        state.is_open = false;
        state.sent
    }
}

/// The wire of a software NIC on which one frame always waits while its feed is open.
struct FeedWire {
    feed: Arc<SoftFeed>,
    /// The frame of this burst.
    frame: Vec<u8>,
}

impl Wire for FeedWire {
    fn receive<'w>(&'w mut self, burst: &mut Burst<'w>) {
        let mut state = self.feed.lock();
        if !state.is_open || state.sent >= SENT_MAX {
            return;
        }
        self.frame.clone_from(&state.frame);
        while burst.capacity_left() > 0 && burst.push(RxFrame::new(&self.frame)) {
            state.sent += 1;
        }
    }

    fn transmit(&mut self, _: &[u8]) -> Result<(), TransmitError> {
        Ok(())
    }

    fn describe(&self) -> String {
        "test frames".to_owned()
    }

    fn mtu_bytes(&self) -> u32 {
        SOFT_MTU_BYTES
    }
}
