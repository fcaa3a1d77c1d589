//! What Linux leaves to do on frames that it passes between interfaces and programs: checksums to be
//! completed, and merged frames to be split into the frames that a medium would have carried.
//!
//! Linux passes one frame for several packets of a stream: where the receiving interface merged them (GRO,
//! LRO), and where a local sender left the cutting to an interface that never did it, as a veth or a TAP
//! interface (TSO, GSO, UDP GSO). The header in front of the frame, `virtio_net_hdr`, has the payload bytes
//! of each packet ([`Offload`]). [`Split`] is a pure function over the bytes: segment n of a frame depends on
//! the frame and n alone, so a frame may be split in several steps. Nothing is allocated, and any header with
//! any frame gives segments within the limit or [`Unsplittable`].

use crate::segment::{Segment, Template};
use crate::{IpProtocol, checksum};

/// The bytes of the header (`virtio_net_hdr`, include/uapi/linux/virtio_net.h).
pub const OFFLOAD_HEADER_BYTES: usize = 10;
/// VIRTIO_NET_HDR_F_NEEDS_CSUM.
const NEEDS_CHECKSUM: u8 = 1;
/// Where the checksum of SCTP is in its header: a CRC32c of four bytes, the lowest first (RFC 9260, 6.8 and
/// appendix A).
const SCTP_CHECKSUM_AT: usize = 8;

/// The work that offload left to do on a frame: `virtio_net_hdr`, in the machine's byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// The frame is several packets, merged into one.
    pub merged: Option<Merged>,
    /// The checksum is unfinished: where the bytes that it covers start in the frame, and where in them the
    /// field is. Of a frame whose tag was stripped, without the tag.
    pub unfinished: Option<(usize, usize)>,
}

impl Offload {
    /// Reads it from its header.
    pub fn read(header: &[u8; OFFLOAD_HEADER_BYTES]) -> Self {
        let half = |at: usize| usize::from(u16::from_ne_bytes([header[at], header[at + 1]]));
        let unfinished = (header[0] & NEEDS_CHECKSUM != 0).then(|| (half(6), half(8)));
        let merged = (header[1] != 0).then(|| Merged {
            kind: header[1],
            segment_bytes: u16::from_ne_bytes([header[4], header[5]]),
            stream_at: unfinished.map(|(start, _)| start),
        });
        Self { unfinished, merged }
    }

    /// Completes an unfinished checksum as `skb_checksum_help` does (net/core/dev.c): the field holds the sum
    /// of the pseudo header, and what it covers reaches to the frame's end. By place and not by protocol,
    /// because it may be the inner one of a tunnel. A place of 8 is that of SCTP alone, whose checksum is
    /// made as `skb_crc32c_csum_help` does. Returns whether the frame is now as a wire would carry it.
    pub fn complete_checksum(&self, frame: &mut [u8]) -> bool {
        let Some((start, at)) = self.unfinished else { return false };
        let Some(covered) = frame.get_mut(start..).filter(|covered| at + 2 <= covered.len()) else {
            return false;
        };
        if at == SCTP_CHECKSUM_AT {
            return write_sctp_checksum(covered);
        }
        let checksum = match checksum::ipv4_header(covered) {
            // For UDP a field of 0 means that there is none (RFC 768); the two are equal in ones' complement.
            0 => 0xffff,
            checksum => checksum,
        };
        covered[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        true
    }
}

/// Writes the checksum of an SCTP packet. Returns whether there is room for it.
pub(crate) fn write_sctp_checksum(packet: &mut [u8]) -> bool {
    let place = SCTP_CHECKSUM_AT..SCTP_CHECKSUM_AT + 4;
    let Some(field) = packet.get_mut(place.clone()) else { return false };
    field.fill(0);
    let checksum = crc32c::crc32c(packet).to_le_bytes();
    packet[place].copy_from_slice(&checksum);
    true
}

/// The statements of an offload header about a merged frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merged {
    /// `gso_type`
    pub kind: u8,
    /// `gso_size`: payload bytes of each packet but the last.
    pub segment_bytes: u16,
    /// Where in the frame the header of the stream is, if its checksum is unfinished.
    pub stream_at: Option<usize>,
}

/// VIRTIO_NET_HDR_GSO_TCPV4.
pub const TCP_V4: u8 = 1;
/// VIRTIO_NET_HDR_GSO_TCPV6.
pub const TCP_V6: u8 = 4;
/// VIRTIO_NET_HDR_GSO_UDP_L4.
pub const UDP_L4: u8 = 5;
/// VIRTIO_NET_HDR_GSO_ECN: the first segment may have CWR set, as any may here.
const ECN: u8 = 0x80;

impl Merged {
    /// The protocol of the stream; `None` for kinds that cannot be split, as UDP fragments
    /// (VIRTIO_NET_HDR_GSO_UDP).
    fn protocol(&self) -> Option<IpProtocol> {
        match self.kind & !ECN {
            TCP_V4 | TCP_V6 => Some(IpProtocol::TCP),
            UDP_L4 => Some(IpProtocol::UDP),
            _ => None,
        }
    }
}

/// Why a merged frame cannot be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsplittable {
    /// Neither TCP nor UDP, or without the number of bytes of a segment.
    Kind,
    /// Headers that do not match the kind, or that are not known: too many tunnels, GRE with sequence
    /// numbers, a tunnel whose port is not known and of which the offload header does not name the stream.
    Headers,
    /// The packets that it was merged from are themselves longer than a frame of this interface.
    SegmentTooLong,
}

/// How a frame is split.
#[derive(Clone, Copy, Debug)]
pub struct Split {
    template: Template,
    segment_bytes: usize,
    payload_bytes: usize,
}

impl Split {
    /// Plans it; no segment is longer than `longest` bytes.
    pub fn of(frame: &[u8], merged: &Merged, longest: usize) -> Result<Self, Unsplittable> {
        let segment_bytes = usize::from(merged.segment_bytes);
        let protocol = merged.protocol().filter(|_| segment_bytes > 0).ok_or(Unsplittable::Kind)?;
        let template = Template::of_frame(frame, protocol, merged.stream_at).ok_or(Unsplittable::Headers)?;
        let payload_bytes = frame.len() - template.header_bytes;
        if template.header_bytes + segment_bytes.min(payload_bytes) > longest {
            return Err(Unsplittable::SegmentTooLong);
        }
        Ok(Self { template, segment_bytes, payload_bytes })
    }

    /// How many segments there are: at least one, for a frame without payload.
    pub fn segments(&self) -> usize {
        self.payload_bytes.div_ceil(self.segment_bytes).max(1)
    }

    /// Writes segment `index` of the frame that this was made for to the beginning of `to`, which holds the
    /// longest one; returns its length.
    pub fn write(&self, frame: &[u8], index: usize, to: &mut [u8]) -> usize {
        let headers = self.template.header_bytes;
        let offset = index * self.segment_bytes;
        let payload = &frame[headers..][offset..self.payload_bytes.min(offset + self.segment_bytes)];
        let bytes = headers + payload.len();
        let to = &mut to[..bytes];
        to[..headers].copy_from_slice(&frame[..headers]);
        to[headers..].copy_from_slice(payload);
        let last = offset + payload.len() == self.payload_bytes;
        self.template.complete(to, Segment { index: index as u32, offset: offset as u32, last });
        bytes
    }
}

#[cfg(test)]
mod tests;
