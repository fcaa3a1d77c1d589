//! The way back: what the host sends by the TAP interface is read into frames of the thread's own and sent by the port.
//! While all frames are in flight nothing is read, so that the queue of the interface (`txqueuelen`) fills and the
//! kernel counts what does not fit as dropped there.

use std::sync::Arc;

use hugemem::{Arena, ArenaOptions, PageKind};
use verbs::{
    Access, Context, Domain, Errno, Frame, FramePool, MemoryRegion, ParentDomain, PortNumber,
    ProtectionDomain, SendFlags, ThreadDomain,
};

use super::pump::Report;
use super::tap::{HEADER_BYTES, MTU_DEFAULT, Queue, TAG_BYTES, TAGS_MAX};
use crate::transmitter::{Pieces, Transmitter};

/// Frames in flight of one queue.
const SENDS: u32 = 256;
/// Frames that are read before the rings of the workers have their turn.
const BATCH: usize = 64;
/// Frames start at multiples of this.
const FRAME_ALIGN: usize = 64;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Sends frames of one queue by a port.
pub(super) struct Back {
    /// Released before the frames that it has in flight.
    transmitter: Transmitter,
    pool: FramePool,
}

impl Back {
    /// Frames for this MTU, and a queue pair.
    pub(super) fn open(context: &Arc<Context>, port: u8, mtu: u16, label: &str) -> Result<Self, Failure> {
        // One byte more than the longest frame: one that fills it has been truncated.
        let longest = usize::from(mtu.max(MTU_DEFAULT)) + HEADER_BYTES + TAGS_MAX * TAG_BYTES;
        let frame_bytes = (longest + 1).next_multiple_of(FRAME_ALIGN);
        let bytes = frame_bytes * SENDS as usize;
        let options = ArenaOptions { pages: vec![PageKind::Plain], ..ArenaOptions::new(label, bytes) };
        let arena = Arena::map(&options)?;
        let block = arena.carve(bytes, FRAME_ALIGN).ok_or("the memory of the frames is too small")?;
        let domain = domain(context)?;
        let region = MemoryRegion::register(&domain, block, Access::LOCAL_WRITE)?;
        let pool = FramePool::new(region, u32::try_from(frame_bytes)?)?;
        let transmitter = Transmitter::open(context, &domain, PortNumber(port), SENDS)?;
        Ok(Self { transmitter, pool })
    }

    /// Whether a frame of the host could be sent now.
    pub(super) fn has_room(&self) -> bool {
        self.pool.free_count() > 0 && self.transmitter.room() > 0 && !self.transmitter.has_failed()
    }

    /// Whether sends are in flight.
    pub(super) fn is_busy(&self) -> bool {
        self.transmitter.held() > 0
    }

    /// Sends what the host has queued, as far as there is room; returns whether there was something.
    pub(super) fn run(&mut self, queue: &Queue, report: &Report) -> bool {
        self.reap(report);
        if self.transmitter.has_failed() {
            // A refusal leaves it failed; the next call tries again.
            let _ = self.transmitter.recover();
        }
        let mut read = 0;
        while read < BATCH && self.has_room() {
            let Some(mut frame) = self.pool.take() else { break };
            let room = self.pool.bytes_mut(&mut frame);
            let whole = room.len();
            let Some(bytes) = queue.read(room) else {
                self.pool.release(frame);
                break;
            };
            read += 1;
            if bytes == whole {
                self.fail(frame, report);
                continue;
            }
            if let Err((frame, _)) = self.transmitter.queue(frame, Pieces::one(0..bytes), SendFlags::empty())
            {
                self.fail(frame, report);
            }
        }
        self.flush(report);
        read > 0
    }

    fn flush(&mut self, report: &Report) {
        let mut refused = [const { None::<Frame> }; SENDS as usize];
        let mut count = 0;
        self.transmitter.flush(&mut self.pool, |frame, _| {
            refused[count] = Some(frame);
            count += 1;
        });
        refused.into_iter().take(count).flatten().for_each(|frame| self.fail(frame, report));
    }

    fn reap(&mut self, report: &Report) {
        let mut back = [const { None::<Frame> }; SENDS as usize];
        let mut count = 0;
        self.transmitter.reap(&mut self.pool, |completed| {
            if completed.is_sent {
                report.sent.add(1, completed.bytes.into());
            } else {
                report.not_sent.add(1);
            }
            back[count] = Some(completed.frame);
            count += 1;
        });
        back.into_iter().take(count).flatten().for_each(|frame| self.pool.release(frame));
    }

    fn fail(&mut self, frame: Frame, report: &Report) {
        self.pool.release(frame);
        report.not_sent.add(1);
    }
}

/// A domain that only this thread uses, without locks where the device has thread domains (mlx4 has none).
fn domain(context: &Arc<Context>) -> Result<Domain, verbs::Error> {
    let protection = ProtectionDomain::new(context)?;
    match ThreadDomain::new(context) {
        Ok(thread) => Ok(Domain::from(&ParentDomain::new(&protection, Some(&thread), None)?)),
        Err(error) if error.errno() == Some(Errno::EOPNOTSUPP.0) => Ok(Domain::from(protection)),
        Err(error) => Err(error),
    }
}
