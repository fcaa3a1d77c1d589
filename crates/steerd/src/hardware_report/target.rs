//! The device of a report, open, and where test frames come from.
//!
//! The frames of the receive rate are to one MAC address that no station has ([`TEST_MAC`]), and to addresses
//! for benchmarks (RFC 2544: 198.18.0.0/15), which are not routed. The flows of this process match the MAC
//! address and one of these addresses, so a packet of anyone else matches none of them. The probe and the
//! suite have flows and frames of their own (`conformance::bench`).

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use packet::MacAddr;
use softnic::{Drive, Personality, PortConfig, SoftNicConfig};
use softnic_verbs::SoftNic;
use verbs::{Context, DeviceList, DevicePort, PortNumber, SYSFS_CLASSES};
use wire::{
    AfPacketConfig, Burst, HandOver, LinkConfig, LinkEnd, MergedFrames, Promiscuous, RxFrame, TransmitError,
    Wire, WireConfig, WireState,
};

use super::ReportError;

/// The destination of all test frames: locally administered and not in use.
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
/// The share of the sent frames from which the sender counts as the limit, in percent.
pub(super) const LIMITED_PERCENT: u64 = 99;
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
    /// The device's own network interface.
    interface: Option<String>,
    _nic: Option<SoftNic>,
    /// Lets test frames pass the device's own filter of addresses.
    promiscuous: Option<Promiscuous>,
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
            interface: None,
            _nic: Some(nic),
            promiscuous: None,
        })
    }

    /// Opens a device of libibverbs' list.
    pub(super) fn real(device: &DevicePort) -> Result<Self, ReportError> {
        let list = DeviceList::system().map_err(ReportError::Verbs)?;
        let listed = list.find(&device.device).ok_or_else(|| ReportError::NoDevice(device.device.clone()))?;
        Ok(Self {
            context: listed.open().map_err(ReportError::Verbs)?,
            port: device.port,
            mtu_bytes: None,
            polls_drive_device: false,
            source: None,
            interface: device.interface(Path::new(SYSFS_CLASSES)),
            _nic: None,
            promiscuous: None,
        })
    }

    /// Opens the interface or the link that reaches the port.
    pub(super) fn connect(&mut self, peer: Option<&str>) -> Result<(), ReportError> {
        let Some(peer) = peer else { return Ok(()) };
        self.source = Some(FrameSource::open(peer)?);
        let own = self.interface.as_deref().filter(|_| !peer.starts_with(LINK));
        self.promiscuous = own.map(Promiscuous::hold).transpose().map_err(ReportError::Peer)?;
        Ok(())
    }
}

/// How long frames are sent: the rates are those after the warm-up.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendTimes {
    pub(super) warm_up: Duration,
    pub(super) measured: Duration,
}

/// The frames of one measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentFrames {
    /// All that were sent, with those of the warm-up.
    pub(super) total: u64,
    /// Sent and received after the warm-up, in the time of `elapsed`.
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) elapsed: Duration,
    pub(super) is_sender_limited: bool,
}

/// The counts of a sender so far.
#[derive(Clone, Copy, Debug, Default)]
struct SenderCount {
    sent: u64,
    bursts: u64,
    /// Bursts of which no frame found room.
    full_bursts: u64,
}

/// The state at one end of the measured time.
#[derive(Clone, Copy, Debug)]
struct WindowMark {
    at: Instant,
    count: SenderCount,
    received: u64,
}

/// The sender of test frames.
pub(super) enum FrameSource {
    /// Frames from memory, for a software NIC of this process.
    Generator(Arc<SoftFeed>),
    /// An interface or the end of a link.
    Wire { wire: Box<dyn Wire>, peer: String },
}

impl FrameSource {
    fn open(peer: &str) -> Result<Self, ReportError> {
        let config = match peer.strip_prefix(LINK) {
            Some(link) => {
                let link = link.parse().map_err(ReportError::LinkName)?;
                WireConfig::Link(LinkConfig { name: link, end: LinkEnd::B })
            }
            None => WireConfig::AfPacket(AfPacketConfig {
                interface: peer.to_owned(),
                promiscuous: false,
                ring_frames: RING_FRAMES,
                merged: MergedFrames::default(),
                hand_over: HandOver::default(),
                busy_poll: false,
            }),
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
        Ok(Self::Wire { wire, peer: peer.to_owned() })
    }

    /// The kind of source, as the report has it.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Generator(_) => "generator",
            Self::Wire { peer, .. } if peer.starts_with(LINK) => "link",
            Self::Wire { .. } => "af_packet",
        }
    }

    /// The peer as the caller has named it.
    pub(super) fn peer(&self) -> &str {
        match self {
            Self::Generator(_) => self.name(),
            Self::Wire { peer, .. } => peer,
        }
    }

    /// Sends a frame again and again. `received`: the count of the receiver.
    pub(super) fn send(
        &mut self,
        frame: &[u8],
        times: SendTimes,
        received: &dyn Fn() -> u64,
        is_stopped: &dyn Fn() -> bool,
    ) -> SentFrames {
        let name = self.name();
        let mut sender: Box<dyn FrameSender + '_> = match self {
            Self::Generator(feed) => {
                feed.start(frame);
                Box::new(FeedSender(feed))
            }
            Self::Wire { wire, .. } => Box::new(WireSender {
                burst: [frame; BURST],
                losses_before: wire.transmit_losses(),
                wire: &mut **wire,
                count: SenderCount::default(),
            }),
        };
        let begun = Instant::now();
        let mark = |count| WindowMark { at: Instant::now(), count, received: received() };
        let mut first = None;
        while sender.send_some() && begun.elapsed() < times.warm_up + times.measured && !is_stopped() {
            if first.is_none() && begun.elapsed() >= times.warm_up {
                first = Some(mark(sender.count()));
            }
        }
        let last = mark(sender.count());
        window(name, first.unwrap_or(last), last, sender.stop())
    }
}

/// The frames between two marks of a source.
fn window(source: &str, first: WindowMark, last: WindowMark, total: u64) -> SentFrames {
    let sent = last.count.sent.saturating_sub(first.count.sent);
    let received = last.received - first.received;
    let full_bursts = last.count.full_bursts - first.count.full_bursts;
    let keeps_up = sent > 0 && received * 100 >= sent * LIMITED_PERCENT;
    let is_sender_limited = match source {
        "af_packet" => keeps_up,
        // A link that is full waits for its receiver.
        "link" => keeps_up && full_bursts * 100 < last.count.bursts - first.count.bursts,
        // The generator has a frame for each that the device asks for.
        _ => false,
    };
    SentFrames { total, sent, received, elapsed: last.at - first.at, is_sender_limited }
}

/// A sender while it sends.
trait FrameSender {
    /// Sends for a moment; returns whether more may be sent.
    fn send_some(&mut self) -> bool;

    fn count(&mut self) -> SenderCount;

    /// Sends no more, and returns how many frames were sent.
    fn stop(&mut self) -> u64;
}

struct FeedSender<'f>(&'f SoftFeed);

impl FrameSender for FeedSender<'_> {
    fn send_some(&mut self) -> bool {
        std::thread::sleep(STEP);
        self.0.lock().sent < SENT_MAX
    }

    fn count(&mut self) -> SenderCount {
        SenderCount { sent: self.0.lock().sent, ..SenderCount::default() }
    }

    fn stop(&mut self) -> u64 {
        self.0.stop()
    }
}

struct WireSender<'w> {
    wire: &'w mut dyn Wire,
    burst: [&'w [u8]; BURST],
    /// The losses of the wire when the measurement began.
    losses_before: u64,
    /// The counts without regard to losses.
    count: SenderCount,
}

impl FrameSender for WireSender<'_> {
    fn send_some(&mut self) -> bool {
        let taken = self.wire.transmit_burst(&self.burst);
        self.count.sent += taken.frames;
        self.count.bursts += 1;
        self.wire.flush();
        self.wire.tend();
        if taken.frames == 0 {
            self.count.full_bursts += 1;
            std::thread::sleep(FULL_PAUSE);
        }
        self.count.sent < SENT_MAX
    }

    fn count(&mut self) -> SenderCount {
        let losses = self.wire.transmit_losses() - self.losses_before;
        SenderCount { sent: self.count.sent.saturating_sub(losses), ..self.count }
    }

    fn stop(&mut self) -> u64 {
        self.wire.flush();
        self.count().sent
    }
}

/// The frame that a [`FeedWire`] gives to the device repeatedly while its feed is open.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_the_sender_or_not() {
        let at = Instant::now();
        let mark = |sent, full_bursts, bursts, received| WindowMark {
            at,
            count: SenderCount { sent, bursts, full_bursts },
            received,
        };
        let first = mark(1000, 0, 100, 900);
        let is_limited = |source, last| window(source, first, last, 0).is_sender_limited;
        assert!(is_limited("af_packet", mark(2000, 50, 200, 1890)));
        assert!(!is_limited("af_packet", mark(2000, 0, 200, 1889)), "98.9 %");
        assert!(!is_limited("af_packet", mark(1000, 0, 100, 900)), "nothing was sent");
        assert!(is_limited("link", mark(2000, 0, 200, 1900)));
        assert!(!is_limited("link", mark(2000, 1, 200, 1900)), "the receiver was waited for");
        assert!(!is_limited("generator", mark(2000, 0, 0, 1900)));
        assert_eq!(window("link", first, mark(2000, 0, 200, 1700), 2000).received, 800);
    }
}
