//! Sends from queues in foreign formats: one request at a time, put together from its parts.
//!
//! A frame begins with the headers that are in the request, and goes on with parts, each an address with a
//! key, or bytes in the request. All of it comes from the client and is checked: keys and addresses as in
//! every queue, lengths against those of the frame; the format checks those of the request.

use arrayvec::ArrayVec;

use super::{Cursor, Outcome, SendMemory, Sent, Way, fill_in, send_stream};
use crate::clock;
use crate::engine::tap::EgressFlows;
use crate::formats::{Offloads, SendFormat, SendParts, SendRequest};
use crate::memory::Regions;
use crate::work::{Cqe, Status, WorkOpcode};

/// Upper bounds of the parts of a stream, and of the bytes of it and of its headers that are in the request.
const MAX_PARTS: usize = 64;
const MAX_INLINE_BYTES: usize = 1024;

/// Sends the next request of a queue, which has one.
pub(super) fn send(
    ring: &mut dyn SendFormat,
    number: u32,
    memory: SendMemory<'_>,
    way: &mut Way<'_>,
    egress: &mut EgressFlows<'_>,
) -> Outcome {
    let SendRequest { id, opcode, is_signaled, offloads } = ring.read_next();
    let regions = memory.regions();
    let sent = offloads.and_then(|offloads| match opcode {
        WorkOpcode::Segments => send_segments(ring, offloads, regions, way, egress),
        _ => send_frame(ring, offloads, regions, way, egress),
    });
    ring.advance();
    match sent {
        Ok(sent) => {
            let mut done = Cqe::new(id, opcode, Status::Success, number);
            if is_signaled {
                done.timestamp_ns = clock::now_ns();
            }
            Outcome::Done(done, sent, is_signaled)
        }
        Err(status) => Outcome::Failed(Cqe::failed(id, opcode, status, number)),
    }
}

/// A frame that is put together.
struct Frame<'r> {
    room: &'r mut [u8],
    end: usize,
    regions: Regions<'r>,
}

impl Frame<'_> {
    /// The next bytes of the frame.
    fn append(&mut self, bytes: usize) -> Result<&mut [u8], Status> {
        let start = self.end;
        self.end = start.saturating_add(bytes);
        self.room.get_mut(start..self.end).ok_or(Status::LocalLength)
    }
}

impl SendParts for Frame<'_> {
    fn inline(
        &mut self,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Result<(), Status>,
    ) -> Result<(), Status> {
        fill(self.append(bytes)?)
    }

    fn memory(&mut self, key: u32, address: u64, bytes: u32) -> Result<(), Status> {
        let from = self.regions.resolve(key, address, bytes).ok_or(Status::LocalProtection)?;
        let part = [(from.cast_const(), bytes as usize)];
        Cursor::new(&part).copy(self.append(bytes as usize)?);
        Ok(())
    }
}

/// Sends a request that is one frame.
fn send_frame(
    ring: &dyn SendFormat,
    offloads: Offloads,
    regions: Regions<'_>,
    way: &mut Way<'_>,
    egress: &mut EgressFlows<'_>,
) -> Result<Sent, Status> {
    let Way { gather, exit } = way;
    let mut gathered = Frame { room: &mut gather[..], end: 0, regions };
    ring.parts(&mut gathered)?;
    let Frame { room, end, .. } = gathered;
    let frame = room.get_mut(..end).ok_or(Status::LocalLength)?;
    if !exit.carries(frame) {
        return Err(Status::LocalLength);
    }
    if offloads.wants_checksums {
        fill_in(frame);
    }
    // A refusal by the wire shows in the port's counters alone.
    exit.transmit(frame, egress);
    Ok(Sent { frames: 1, bytes: frame.len() as u64, is_refused: false })
}

/// A stream that is cut into frames behind its headers.
struct Stream<'r> {
    /// Where the next bytes go that are in the request.
    room: &'r mut [u8],
    /// The first bytes that are in the request.
    headers: Option<&'r [u8]>,
    parts: ArrayVec<(*const u8, usize), MAX_PARTS>,
    bytes: usize,
    regions: Regions<'r>,
}

impl Stream<'_> {
    fn append(&mut self, from: *const u8, bytes: usize) -> Result<(), Status> {
        self.bytes = self.bytes.saturating_add(bytes);
        self.parts.try_push((from, bytes)).map_err(|_| Status::LocalOperation)
    }
}

impl SendParts for Stream<'_> {
    fn inline(
        &mut self,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Result<(), Status>,
    ) -> Result<(), Status> {
        let halves = std::mem::take(&mut self.room).split_at_mut_checked(bytes);
        let (part, rest) = halves.ok_or(Status::LocalOperation)?;
        self.room = rest;
        fill(part)?;
        if self.headers.is_some() {
            return self.append(part.as_ptr(), bytes);
        }
        self.headers = Some(part);
        Ok(())
    }

    fn memory(&mut self, key: u32, address: u64, bytes: u32) -> Result<(), Status> {
        let from = self.regions.resolve(key, address, bytes).ok_or(Status::LocalProtection)?;
        self.append(from.cast_const(), bytes as usize)
    }
}

/// Sends a request that is a TCP stream behind its headers. Checksums are always filled in.
fn send_segments(
    ring: &dyn SendFormat,
    offloads: Offloads,
    regions: Regions<'_>,
    way: &mut Way<'_>,
    egress: &mut EgressFlows<'_>,
) -> Result<Sent, Status> {
    let mut own = [0; MAX_INLINE_BYTES];
    let mut stream = Stream { room: &mut own, headers: None, parts: ArrayVec::new(), bytes: 0, regions };
    ring.parts(&mut stream)?;
    let Stream { headers, parts, bytes, .. } = stream;
    let headers = headers.unwrap_or_default();
    let sent = send_stream(headers, offloads.segment_bytes, &parts, bytes, way, egress)?;
    // A refusal by the wire shows in the port's counters alone.
    Ok(Sent { is_refused: false, ..sent })
}
