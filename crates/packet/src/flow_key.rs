//! The flow key: everything about a frame that a policy or a device can match, as plain values.
//!
//! [`crate::parse`] makes one per packet; softnic's flow table, the worker's software matcher and policy's
//! `explain` read it. It never borrows from the frame.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::slots::{
    DST_MAC, DST_PORT, ETHER_TYPE, FLOW_LABEL, HAS_C_TAG, HAS_IPV4, HAS_IPV6, HAS_TCP, HAS_UDP, IP_FLAGS,
    LEVEL_WORDS, PROTOCOL, SRC_MAC, SRC_PORT, Slot, TOS, TTL, VLAN_TCI,
};
use crate::{EtherType, IpProtocol, MacAddr, mac_number};

bitflags::bitflags! {
    /// Which layers a frame has. TCP, UDP and SCTP mean that the whole fixed header is there, ports included.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct Layers: u16 {
        /// At least one VLAN tag.
        const VLAN = 1;
        /// A second VLAN tag.
        const INNER_VLAN = 1 << 1;
        /// A well-formed fixed IPv4 header.
        const IPV4 = 1 << 2;
        /// A well-formed fixed IPv6 header.
        const IPV6 = 1 << 3;
        /// An IPv4 header longer than 20 bytes.
        const IP_OPTIONS = 1 << 4;
        /// Any fragment: IPv4, or IPv6 whose first extension header is the fragment header, except "atomic"
        /// fragments (RFC 6946), which are whole packets.
        const FRAGMENT = 1 << 5;
        /// A fragment that is not the first.
        const LATER_FRAGMENT = 1 << 6;
        /// A TCP header.
        const TCP = 1 << 7;
        /// A UDP header.
        const UDP = 1 << 8;
        /// The common part of an ICMP header: type, code, checksum (RFC 792).
        const ICMP = 1 << 9;
        /// The common part of an ICMPv6 header (RFC 4443, 2.1).
        const ICMPV6 = 1 << 10;
        /// A TCP header behind IPv6 extension headers.
        const EXTENDED_TCP = 1 << 11;
        /// A UDP header behind IPv6 extension headers.
        const EXTENDED_UDP = 1 << 12;
        /// The common part of an ICMPv6 header behind IPv6 extension headers.
        const EXTENDED_ICMPV6 = 1 << 13;
        /// The common header of an SCTP packet right behind the IP header (RFC 9260, 3.1).
        const SCTP = 1 << 14;
    }
}

/// The matchable fields of a frame, in host byte order; zero where the layer is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct FlowKey {
    /// Which layers were found; a field means something only if its layer is here.
    pub layers: Layers,
    /// Destination address of the frame.
    pub dst_mac: MacAddr,
    /// Source address of the frame.
    pub src_mac: MacAddr,
    /// The EtherType behind the peeled VLAN tags; up to 1500 an 802.3 length.
    pub ether_type: u16,
    /// Tag protocol of the outer tag.
    pub vlan_tpid: u16,
    /// Priority (3 bits), drop eligibility (1 bit) and identifier (12 bits) of the outer tag.
    pub vlan_tci: u16,
    /// Tag protocol of the second tag.
    pub inner_vlan_tpid: u16,
    /// Control information of the second tag.
    pub inner_vlan_tci: u16,
    /// Source address; IPv4 in the first four bytes, then zeros.
    pub src_ip: [u8; 16],
    /// Destination address; IPv4 in the first four bytes, then zeros.
    pub dst_ip: [u8; 16],
    /// IPv4 protocol, or the first next header of IPv6.
    pub protocol: u8,
    /// IPv4 type of service or IPv6 traffic class, all eight bits.
    pub tos: u8,
    /// IPv4 time to live or IPv6 hop limit.
    pub ttl: u8,
    /// The three IPv4 flag bits as a number: reserved 4, don't fragment 2, more fragments 1.
    pub ip_flags: u8,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
    /// Source port of TCP, UDP or SCTP, whichever layer is here.
    pub src_port: u16,
    /// Destination port of TCP, UDP or SCTP, whichever layer is here.
    pub dst_port: u16,
    /// TCP flags, CWR (0x80) to FIN (0x01).
    pub tcp_flags: u8,
    /// Type of an ICMP or ICMPv6 message.
    pub icmp_type: u8,
    /// Code of an ICMP or ICMPv6 message.
    pub icmp_code: u8,
    /// The headers behind the extension headers of an IPv6 packet.
    pub extended: ExtendedKey,
}

/// The matchable fields behind IPv6 extension headers; zero where the layer is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct ExtendedKey {
    /// The number of the first header that is no extension header, or of the extension header that is not
    /// read because it is cut off, behind the header of a later fragment, or one too many.
    pub protocol: u8,
    /// TCP or UDP source port.
    pub src_port: u16,
    /// TCP or UDP destination port.
    pub dst_port: u16,
    /// TCP flags.
    pub tcp_flags: u8,
    /// Type of an ICMPv6 message.
    pub icmp_type: u8,
    /// Code of an ICMPv6 message.
    pub icmp_code: u8,
}

impl FlowKey {
    /// Source address, if there is an IP layer.
    pub fn src_addr(&self) -> Option<IpAddr> {
        self.address(&self.src_ip)
    }

    /// Destination address, if there is an IP layer.
    pub fn dst_addr(&self) -> Option<IpAddr> {
        self.address(&self.dst_ip)
    }

    /// Whether it is an IPv6 packet with extension headers, so that [`extended`](Self::extended) is about it.
    #[inline]
    pub fn has_extension_headers(&self) -> bool {
        self.layers.contains(Layers::IPV6) && IpProtocol(self.protocol).is_extension_header()
    }

    /// VLAN identifier of the outer tag, if there is one.
    pub fn vlan_id(&self) -> Option<u16> {
        self.layers.contains(Layers::VLAN).then_some(self.vlan_tci & 0x0fff)
    }

    fn address(&self, octets: &[u8; 16]) -> Option<IpAddr> {
        if self.layers.contains(Layers::IPV4) {
            let [a, b, c, d, ..] = *octets;
            Some(Ipv4Addr::new(a, b, c, d).into())
        } else if self.layers.contains(Layers::IPV6) {
            Some(Ipv6Addr::from(*octets).into())
        } else {
            None
        }
    }
}

impl FlowKey {
    /// The words of the packed image of one packet's headers. Straight-line code: softnic makes one per
    /// frame.
    #[inline]
    pub fn image(&self) -> [u64; LEVEL_WORDS] {
        let layer = |layer, slot: Slot| u64::from(self.layers.contains(layer)) << slot.shift;
        let place = |value: u64, slot: Slot| (value & slot.ones()) << slot.shift;
        // Devices match no ports of SCTP.
        let is_sctp = self.layers.contains(Layers::SCTP);
        let [src_port, dst_port] = if is_sctp { [0, 0] } else { [self.src_port, self.dst_port] };
        let is_c_tag = self.layers.contains(Layers::VLAN) && self.vlan_tpid == EtherType::VLAN.0;
        let tci = if is_c_tag { self.vlan_tci } else { 0 };
        let [dst, src] = [self.dst_ip, self.src_ip].map(u128::from_be_bytes);
        [
            layer(Layers::IPV4, HAS_IPV4)
                | layer(Layers::IPV6, HAS_IPV6)
                | layer(Layers::TCP, HAS_TCP)
                | layer(Layers::UDP, HAS_UDP)
                | place(self.ip_flags.into(), IP_FLAGS)
                | place(self.ttl.into(), TTL)
                | place(self.protocol.into(), PROTOCOL)
                | place(self.tos.into(), TOS)
                | place(src_port.into(), SRC_PORT)
                | place(dst_port.into(), DST_PORT),
            (dst >> u64::BITS) as u64,
            (src >> u64::BITS) as u64,
            dst as u64,
            src as u64,
            place(mac_number(self.dst_mac) as u64, DST_MAC) | place(self.ether_type.into(), ETHER_TYPE),
            place(mac_number(self.src_mac) as u64, SRC_MAC) | place(tci.into(), VLAN_TCI),
            place(self.flow_label.into(), FLOW_LABEL) | place(is_c_tag.into(), HAS_C_TAG),
        ]
    }
}
