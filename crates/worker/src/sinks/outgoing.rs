//! Packets that a sink sends from memory of its own: each is written into a frame of the pool, queued on a
//! [`Transmitter`], and its frame comes back when the send has completed. Used on one thread.
//!
//! Every packet is counted as offered, and then as delivered when the device has sent it, or as dropped by a
//! reason. While all frames are in flight, or after a failed send, there is no room: what is to be sent stays
//! where it is.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hugemem::{Arena, ArenaOptions, PageKind};
use verbs::{Access, CompletionStatus, Context, Domain, Frame, FramePool, MemoryRegion, Pieces, PortNumber};

use super::Failure;
use super::forward;
use super::port::{ETHERNET_BYTES, TAGS_BYTES};
use crate::assembly::spread_bytes;
use crate::sink::{POLL_INTERVAL, SinkCounters, SinkDrop};
use crate::transmitter::Transmitter;

/// Packets in flight.
const SENDS: u32 = 256;
/// How soon completions are looked for, and how often that time is doubled for a port that does not send.
const FIRST_LOOK: Duration = Duration::from_micros(50);
const DOUBLINGS: u32 = 6;
/// How long the end waits for sends in flight. Never on a worker's thread.
pub(super) const END_PATIENCE: Duration = Duration::from_millis(200);
/// Frames start at multiples of this.
const FRAME_ALIGN: usize = 64;

/// The result of filling a frame.
pub(super) enum Filled {
    /// A packet of this length.
    Packet(usize),
    /// A packet of this length or more cannot be sent; the frame has a part of it at most.
    Refused(usize, SinkDrop),
    Nothing,
}

/// A packet that was to be queued.
pub(super) struct Attempt {
    pub(super) bytes: usize,
    /// Why it is not queued; `None` if it is.
    pub(super) dropped: Option<SinkDrop>,
}

/// Sends packets by a port.
pub(super) struct Outgoing {
    /// Released before the frames that it has in flight. `None` while another thread repairs it.
    pub(super) transmitter: Option<Box<Transmitter>>,
    pool: FramePool,
    /// The longest packet behind the Ethernet header.
    mtu_bytes: usize,
    pub(super) counters: Arc<SinkCounters>,
    /// Frames on their way to the pool; never grows.
    returned: Vec<Frame>,
    /// Calls of [`Outgoing::next_look`] since a send has completed.
    looks: Cell<u32>,
    /// [`END_PATIENCE`]; tests have another.
    pub(super) end_patience: Duration,
}

impl Outgoing {
    /// A queue pair in `domain`, and frames for packets of this MTU.
    ///
    /// # Errors
    /// The memory cannot be had, or the device refuses it or the queue pair.
    pub(super) fn open(
        context: &Arc<Context>,
        domain: &Domain,
        port: u8,
        mtu_bytes: usize,
        label: &str,
    ) -> Result<Self, Failure> {
        // One byte more than the longest frame: one that fills it may have been truncated.
        let frame_bytes = spread_bytes(u32::try_from(mtu_bytes + ETHERNET_BYTES + TAGS_BYTES + 1)?);
        let bytes = frame_bytes as usize * SENDS as usize;
        let options = ArenaOptions { pages: vec![PageKind::Plain], ..ArenaOptions::new(label, bytes) };
        let arena = Arena::map(&options)?;
        let block = arena.carve(bytes, FRAME_ALIGN).ok_or("the memory of the frames is too small")?;
        let region = MemoryRegion::register(domain, block, Access::LOCAL_WRITE)?;
        let pool = FramePool::new(region, frame_bytes)?;
        let transmitter = Transmitter::open(context, domain, PortNumber(port), SENDS)?;
        Ok(Self {
            transmitter: Some(Box::new(transmitter)),
            pool,
            mtu_bytes,
            counters: Arc::default(),
            returned: Vec::with_capacity(SENDS as usize),
            looks: Cell::new(0),
            end_patience: END_PATIENCE,
        })
    }

    /// Whether a packet can be queued now.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        let sender = self.transmitter.as_ref();
        self.pool.free_count() > 0 && sender.is_some_and(|sender| sender.room() > 0 && !sender.has_failed())
    }

    /// How long a thread that sleeps may put off [`Outgoing::reap`]; `None` if nothing is in flight. A port
    /// that sends has new room soon; the time grows with each call, for one that stalls.
    pub(super) fn next_look(&self) -> Option<Duration> {
        if !self.is_busy() {
            return None;
        }
        let looks = self.looks.get();
        self.looks.set(looks.saturating_add(1));
        Some((FIRST_LOOK * 2u32.pow(looks.min(DOUBLINGS))).min(POLL_INTERVAL))
    }

    /// Whether sends are queued or in flight.
    #[inline]
    pub(super) fn is_busy(&self) -> bool {
        self.transmitter.as_ref().is_some_and(|sender| sender.held() > 0)
    }

    /// Whether a send has failed, and the transmitter holds no frame any more: it is to be repaired.
    #[inline]
    pub(super) fn is_broken(&self) -> bool {
        self.transmitter.as_ref().is_some_and(|sender| sender.has_failed() && sender.held() == 0)
    }

    /// Queues what `fill` writes into a frame, unless `refused` has a reason not to. To be called while
    /// [`Outgoing::has_room`]. `None`: nothing was written.
    #[inline]
    pub(super) fn queue(
        &mut self,
        refused: Option<SinkDrop>,
        fill: impl FnOnce(&mut [u8]) -> Filled,
    ) -> Option<Attempt> {
        let Self { transmitter, pool, mtu_bytes, counters, .. } = self;
        let mut frame = pool.take()?;
        let room = pool.bytes_mut(&mut frame);
        let (bytes, pieces) = match fill(room) {
            Filled::Nothing => {
                pool.release(frame);
                return None;
            }
            Filled::Refused(bytes, reason) => (bytes, Err(reason)),
            Filled::Packet(bytes) => {
                let packet = room.get(..bytes).unwrap_or(room);
                let checked = forward::check(*mtu_bytes, packet, packet.len());
                (bytes, checked.map(|()| Pieces::one(0..packet.len())))
            }
        };
        counters.offered(1, bytes as u64);
        let pieces = refused.map_or(pieces, Err);
        let queued = match (pieces, transmitter) {
            (Ok(pieces), Some(sender)) => sender.queue(frame, pieces),
            (Ok(_), None) => Err((frame, SinkDrop::TxFailed)),
            (Err(reason), _) => Err((frame, reason)),
        };
        let dropped = queued.err().map(|(frame, reason)| {
            pool.release(frame);
            counters.worker.dropped(reason, 1);
            reason
        });
        Some(Attempt { bytes, dropped })
    }

    /// Posts what is queued.
    #[inline]
    pub(super) fn flush(&mut self) {
        let Self { transmitter, pool, counters, returned, .. } = self;
        let Some(sender) = transmitter else { return };
        sender.flush(pool, |frame, reason| {
            counters.worker.dropped(reason, 1);
            returned.push(frame);
        });
        returned.drain(..).for_each(|frame| pool.release(frame));
    }

    /// Takes back and counts what the device has sent.
    #[inline]
    pub(super) fn reap(&mut self) {
        let Self { transmitter, pool, counters, returned, looks, .. } = self;
        let Some(sender) = transmitter else { return };
        let (mut packets, mut bytes, mut failed) = (0, 0, 0);
        sender.reap(pool, |completed| {
            if completed.status == CompletionStatus::Success {
                packets += 1;
                bytes += u64::from(completed.bytes);
            } else {
                failed += 1;
            }
            returned.push(completed.frame);
        });
        if !returned.is_empty() {
            looks.set(0);
        }
        returned.drain(..).for_each(|frame| pool.release(frame));
        if packets > 0 {
            counters.worker.delivered(packets, bytes);
        }
        if failed > 0 {
            counters.worker.dropped(SinkDrop::TxFailed, failed);
        }
    }
}

impl Drop for Outgoing {
    /// Waits for sends in flight, for a limited time. Those that have not completed then are not counted as
    /// sent.
    fn drop(&mut self) {
        let deadline = Instant::now() + self.end_patience;
        self.reap();
        while self.is_busy() && Instant::now() < deadline {
            std::thread::sleep(FIRST_LOOK);
            self.reap();
        }
        if let Some(sender) = &self.transmitter {
            self.counters.worker.dropped(SinkDrop::TxFailed, sender.held() as u64);
        }
    }
}
