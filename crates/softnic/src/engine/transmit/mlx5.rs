//! Sends from queues in mlx5's format: one request at a time, gathered from its segments.
//!
//! A frame begins with the headers that are in the Ethernet segment, and goes on with the data segments, each
//! an address with a key, or bytes in the request. All of it comes from the client and is checked: keys and
//! addresses as in every queue, lengths against those of the request and of the frame. What the device cannot
//! make sense of is a local operation error.

use arrayvec::ArrayVec;

use super::{Cursor, Outcome, SendMemory, Sent, Way, fill_in, send_stream};
use crate::clock;
use crate::engine::tap::EgressFlows;
use crate::formats::mlx5::sends::{MAX_UNITS, Request, SEGMENTS, SEND, SendRing, UNIT_BYTES, Units};
use crate::memory::Regions;
use crate::work::{Cqe, Opcode, Status};

/// Upper bounds of the data segments of a request, and of the bytes that it contains.
const MAX_SEGMENTS: usize = MAX_UNITS as usize;
const MAX_INLINE_BYTES: usize = MAX_SEGMENTS * UNIT_BYTES;
/// The meaning of a segment with a length of 0; libmlx5 leaves entries without bytes out.
const FULL_BYTES: u32 = 1 << 31;

/// Buffers of a stream, or bytes of its request.
type Parts = ArrayVec<(*const u8, usize), MAX_SEGMENTS>;

/// The Ethernet segment, up to its headers.
struct Ethernet {
    wants_checksums: bool,
    segment_bytes: usize,
    header_bytes: usize,
    /// The unit in which the headers begin.
    unit: [u8; UNIT_BYTES],
}

impl Ethernet {
    /// Where the headers begin.
    const HEADERS: usize = 14;

    fn take(units: &mut Units<'_>) -> Result<Self, Status> {
        /// `MLX5_ETH_WQE_L3_CSUM` and `_L4_CSUM`, which libmlx5 always sets together.
        const CHECKSUMS: u8 = 3 << 6;
        let unit = units.next().ok_or(Status::LocalOperation)?;
        Ok(Self {
            wants_checksums: unit[4] & CHECKSUMS != 0,
            segment_bytes: usize::from(u16::from_be_bytes([unit[6], unit[7]])),
            header_bytes: usize::from(u16::from_be_bytes([unit[12], unit[13]])),
            unit,
        })
    }

    /// Fills `to`, which is as long as the headers, with them.
    fn headers(&self, units: &mut Units<'_>, to: &mut [u8]) -> Result<(), Status> {
        units.fill(&self.unit, Self::HEADERS, to).ok_or(Status::LocalOperation)
    }
}

/// A data segment.
enum Data {
    /// This many bytes stand behind the length, and in the units that follow.
    Inline(usize),
    Address {
        key: u32,
        address: u64,
        bytes: u32,
    },
}

impl Data {
    /// Where the bytes of an inline segment begin.
    const INLINE: usize = 4;

    fn of(unit: &[u8; UNIT_BYTES]) -> Self {
        let [b0, b1, b2, b3, k0, k1, k2, k3, address @ ..] = *unit;
        let bytes = u32::from_be_bytes([b0, b1, b2, b3]);
        // `MLX5_INLINE_SEG` is the highest bit.
        if bytes & FULL_BYTES != 0 {
            return Self::Inline((bytes & !FULL_BYTES) as usize);
        }
        Self::Address {
            key: u32::from_be_bytes([k0, k1, k2, k3]),
            address: u64::from_be_bytes(address),
            bytes: if bytes == 0 { FULL_BYTES } else { bytes },
        }
    }
}

/// Sends the next request of a queue, which has one.
pub(super) fn send(
    ring: &mut SendRing,
    number: u32,
    memory: SendMemory<'_>,
    way: &mut Way<'_>,
    egress: &mut EgressFlows<'_>,
) -> Outcome {
    let id = ring.id();
    let Request { operation, is_signaled, blocks, is_malformed, units } = ring.request();
    let mut regions = memory.regions();
    let (opcode, sent) = match operation {
        _ if is_malformed => (Opcode::Send, Err(Status::LocalOperation)),
        SEND => (Opcode::Send, send_frame(units, &mut regions, way, egress)),
        SEGMENTS => (Opcode::Segments, send_segments(units, &mut regions, way, egress)),
        _ => (Opcode::Send, Err(Status::LocalOperation)),
    };
    ring.advance_by(blocks);
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

/// The next bytes of a frame that is put together in `room` and is `end` bytes long so far.
fn append<'r>(room: &'r mut [u8], end: &mut usize, bytes: usize) -> Result<&'r mut [u8], Status> {
    let start = *end;
    *end = start.saturating_add(bytes);
    room.get_mut(start..*end).ok_or(Status::LocalLength)
}

/// Sends a request that is one frame.
fn send_frame(
    mut units: Units<'_>,
    regions: &mut Regions<'_>,
    way: &mut Way<'_>,
    egress: &mut EgressFlows<'_>,
) -> Result<Sent, Status> {
    let Way { gather: room, exit } = way;
    let ethernet = Ethernet::take(&mut units)?;
    let mut end = 0;
    ethernet.headers(&mut units, append(&mut room[..], &mut end, ethernet.header_bytes)?)?;
    while let Some(unit) = units.next() {
        match Data::of(&unit) {
            Data::Inline(bytes) => {
                let to = append(&mut room[..], &mut end, bytes)?;
                units.fill(&unit, Data::INLINE, to).ok_or(Status::LocalOperation)?;
            }
            Data::Address { key, address, bytes } => {
                let from = regions.resolve(key, address, bytes).ok_or(Status::LocalProtection)?;
                let part = [(from.cast_const(), bytes as usize)];
                Cursor::new(&part).copy(append(&mut room[..], &mut end, bytes as usize)?);
            }
        }
    }
    let frame = room.get_mut(..end).ok_or(Status::LocalLength)?;
    if !exit.carries(frame) {
        return Err(Status::LocalLength);
    }
    if ethernet.wants_checksums {
        fill_in(frame);
    }
    // A refusal by the wire shows in the port's counters alone.
    exit.transmit(frame, egress);
    Ok(Sent { frames: 1, bytes: frame.len() as u64, is_refused: false })
}

/// Sends a request that is a TCP stream behind the headers in the Ethernet segment. Checksums are always
/// filled in.
fn send_segments(
    mut units: Units<'_>,
    regions: &mut Regions<'_>,
    way: &mut Way<'_>,
    egress: &mut EgressFlows<'_>,
) -> Result<Sent, Status> {
    let ethernet = Ethernet::take(&mut units)?;
    // The headers, and behind them the parts of the stream that are in the request.
    let mut own = [0; MAX_INLINE_BYTES];
    let halves = own.split_at_mut_checked(ethernet.header_bytes);
    let (headers, mut rest) = halves.ok_or(Status::LocalOperation)?;
    ethernet.headers(&mut units, headers)?;
    let (mut parts, mut stream_bytes) = (Parts::new(), 0_usize);
    while let Some(unit) = units.next() {
        let (from, bytes) = match Data::of(&unit) {
            Data::Inline(bytes) => {
                let (part, after) = rest.split_at_mut_checked(bytes).ok_or(Status::LocalOperation)?;
                units.fill(&unit, Data::INLINE, part).ok_or(Status::LocalOperation)?;
                rest = after;
                (part.as_ptr(), bytes)
            }
            Data::Address { key, address, bytes } => {
                let from = regions.resolve(key, address, bytes).ok_or(Status::LocalProtection)?;
                (from.cast_const(), bytes as usize)
            }
        };
        stream_bytes = stream_bytes.saturating_add(bytes);
        parts.try_push((from, bytes)).map_err(|_| Status::LocalOperation)?;
    }
    // As above.
    let sent = send_stream(headers, ethernet.segment_bytes, &parts, stream_bytes, way, egress)?;
    Ok(Sent { is_refused: false, ..sent })
}
