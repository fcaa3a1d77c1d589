//! Merged frames, split into the frames that a medium would have carried.
//!
//! Linux hands packet sockets one frame for several packets of a stream: where the receiving interface merged them (GRO,
//! LRO), and where a local sender left the cutting to an interface that never did it, as a veth (TSO, GSO, UDP GSO).
//! PACKET_VNET_HDR tells the payload bytes of each packet. [`Split`] is a pure function over the bytes: segment n of a
//! frame depends on the frame and n alone, so a frame may be split over several bursts. Nothing is allocated, and any
//! offload header with any frame gives segments within the limit or [`Unsplittable`].

use packet::IpProtocol;

use crate::segment::{Segment, Template};

/// What an offload header states about a merged frame (`virtio_net_hdr`, include/uapi/linux/virtio_net.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Merged {
    /// `gso_type`
    pub(super) kind: u8,
    /// `gso_size`: payload bytes of each packet but the last.
    pub(super) segment_bytes: u16,
    /// Where in the frame the header of the stream is, if its checksum is unfinished.
    pub(super) stream_at: Option<usize>,
}

/// VIRTIO_NET_HDR_GSO_TCPV4, _TCPV6, _UDP_L4.
pub(super) const TCP_V4: u8 = 1;
pub(super) const TCP_V6: u8 = 4;
pub(super) const UDP_L4: u8 = 5;
/// VIRTIO_NET_HDR_GSO_ECN: the first segment may have CWR set, as any may here.
const ECN: u8 = 0x80;

impl Merged {
    /// The protocol of the stream; `None` for kinds that cannot be split, as UDP fragments (VIRTIO_NET_HDR_GSO_UDP).
    fn protocol(&self) -> Option<IpProtocol> {
        match self.kind & !ECN {
            TCP_V4 | TCP_V6 => Some(IpProtocol::TCP),
            UDP_L4 => Some(IpProtocol::UDP),
            _ => None,
        }
    }
}

/// Why a merged frame is not split. It then counts as oversize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unsplittable {
    /// Longer than a slot of the ring for merged frames: more than an IP header can count (BIG TCP).
    Cut,
    /// Neither TCP nor UDP, or without the number of bytes of a segment.
    Kind,
    /// Headers that do not match the kind, as more than one tunnel or a tunnel with checksums or sequence numbers of its own.
    Headers,
    /// The packets that it was merged from are themselves longer than a frame of this interface.
    SegmentTooLong,
}

impl Unsplittable {
    /// What it is and what to do about it, for the log.
    pub(super) fn advice(self, name: &str) -> String {
        match self {
            Self::Cut => format!(
                "it is longer than 65,535 bytes: `ip link set dev {name} gro_max_size 65536 gro_ipv4_max_size 65536`, and \
                 where the sender is on this machine `gso_max_size 65536 gso_ipv4_max_size 65536` there"
            ),
            Self::Kind => {
                "it is neither TCP nor UDP: switch segmentation offload off at the sender".to_owned()
            }
            Self::Headers => format!(
                "its headers are not those of one stream in at most one known tunnel: `ethtool -K {name} gro off`, and \
                 where the sender is a veth or tap on this machine, `ethtool -K SENDER tso off gso off`"
            ),
            Self::SegmentTooLong => {
                format!(
                    "its packets are longer than the MTU: raise the MTU of {name} to that of its neighbours, 9216 at most"
                )
            }
        }
    }
}

/// How a frame is split.
#[derive(Clone, Copy, Debug)]
pub(super) struct Split {
    template: Template,
    segment_bytes: usize,
    payload_bytes: usize,
}

impl Split {
    /// Plans it; no segment is longer than `longest` bytes.
    pub(super) fn of(frame: &[u8], merged: &Merged, longest: usize) -> Result<Self, Unsplittable> {
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
    pub(super) fn segments(&self) -> usize {
        self.payload_bytes.div_ceil(self.segment_bytes).max(1)
    }

    /// Writes segment `index` of the frame that this was made for to the beginning of `to`, which holds the longest one;
    /// returns its length.
    pub(super) fn write(&self, frame: &[u8], index: usize, to: &mut [u8]) -> usize {
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
