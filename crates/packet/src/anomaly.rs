//! Malformed headers that [`crate::parse`] found. They are counted only: an anomaly never makes a frame
//! undeliverable.

use std::fmt;

/// The outermost malformation of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Anomaly {
    /// Fewer than 14 bytes: nothing can be read.
    EthernetTruncated,
    /// The frame ends inside a VLAN tag, which is then not peeled.
    VlanTruncated,
    /// Fewer bytes than the IPv4 header length (or fewer than 20).
    Ipv4Truncated,
    /// EtherType IPv4, but the version is not 4: the layer counts as absent.
    Ipv4Version,
    /// A header length below five words: the layer counts as absent.
    Ipv4HeaderLength,
    /// The total length is shorter than the header (the layer counts as absent) or longer than the frame.
    Ipv4TotalLength,
    /// Fewer than 40 bytes of IPv6 header, or a fragment header that is cut.
    Ipv6Truncated,
    /// EtherType IPv6, but the version is not 6: the layer counts as absent.
    Ipv6Version,
    /// The payload length is longer than the frame.
    Ipv6PayloadLength,
    /// Fewer than 20 bytes of TCP.
    TcpTruncated,
    /// A data offset below five words or beyond the packet.
    TcpDataOffset,
    /// Fewer than 8 bytes of UDP.
    UdpTruncated,
    /// A UDP length below 8 or beyond the packet.
    UdpLength,
}

impl Anomaly {
    /// Every anomaly, in the order of [`Anomaly::index`].
    pub const ALL: &'static [Self] = &[
        Self::EthernetTruncated,
        Self::VlanTruncated,
        Self::Ipv4Truncated,
        Self::Ipv4Version,
        Self::Ipv4HeaderLength,
        Self::Ipv4TotalLength,
        Self::Ipv6Truncated,
        Self::Ipv6Version,
        Self::Ipv6PayloadLength,
        Self::TcpTruncated,
        Self::TcpDataOffset,
        Self::UdpTruncated,
        Self::UdpLength,
    ];

    /// How many there are: the length of an array of counters.
    pub const COUNT: usize = Self::ALL.len();

    /// A dense index below [`Anomaly::COUNT`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The metric label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::EthernetTruncated => "ethernet_truncated",
            Self::VlanTruncated => "vlan_truncated",
            Self::Ipv4Truncated => "ipv4_truncated",
            Self::Ipv4Version => "ipv4_version",
            Self::Ipv4HeaderLength => "ipv4_header_length",
            Self::Ipv4TotalLength => "ipv4_total_length",
            Self::Ipv6Truncated => "ipv6_truncated",
            Self::Ipv6Version => "ipv6_version",
            Self::Ipv6PayloadLength => "ipv6_payload_length",
            Self::TcpTruncated => "tcp_truncated",
            Self::TcpDataOffset => "tcp_data_offset",
            Self::UdpTruncated => "udp_truncated",
            Self::UdpLength => "udp_length",
        }
    }
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_dense_and_names_unique() {
        let mut names = std::collections::HashSet::new();
        for (index, anomaly) in Anomaly::ALL.iter().enumerate() {
            assert_eq!(anomaly.index(), index);
            assert!(names.insert(anomaly.name()), "{anomaly} is listed twice");
        }
        assert_eq!(names.len(), Anomaly::COUNT);
    }
}
