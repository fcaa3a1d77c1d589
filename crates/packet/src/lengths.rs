//! The bytes of headers without options, for all modules that read or write them.

/// Both addresses of an Ethernet header.
pub const MACS_BYTES: usize = 12;
/// An Ethernet header without tags.
pub(crate) const ETHERNET_BYTES: usize = 14;
/// A VLAN tag: its EtherType and its control information (IEEE 802.1Q, 9.4).
pub const TAG_BYTES: usize = 4;
/// An IPv4 header (RFC 791, 3.1).
pub(crate) const IPV4_BYTES: usize = 20;
/// An IPv6 header (RFC 8200, 3).
pub(crate) const IPV6_BYTES: usize = 40;
/// A TCP header (RFC 9293, 3.1).
pub(crate) const TCP_BYTES: usize = 20;
/// A UDP header (RFC 768).
pub(crate) const UDP_BYTES: usize = 8;
/// The common header of an SCTP packet (RFC 9260, 3.1).
pub(crate) const SCTP_BYTES: usize = 12;
/// A VXLAN header (RFC 7348, 5).
pub(crate) const VXLAN_BYTES: usize = 8;
/// A GRE header without the fields that its flags announce (RFC 2784, 2.1).
pub(crate) const GRE_BYTES: usize = 4;
