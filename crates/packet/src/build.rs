//! A frame builder for tests, benches and the generator wire.
//!
//! [`FrameBuilder::build`] writes the described frame with correct lengths and checksums. It allocates, so it
//! never runs on the packet path; a sender builds once and replays. Frames that are meant to be wrong are
//! built right and then damaged.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::lengths::SCTP_BYTES;
use crate::tunnel::VNI_VALID;
use crate::{
    BOTTOM_OF_STACK, EtherType, Field, FlowKey, GRE_HAS_KEY, IpProtocol, Layers, MPLS_UDP_PORT, MacAddr,
    Parsed, VXLAN_UDP_PORT, checksum, mac_address, offload,
};

/// The largest total length of an IP packet; longer payloads are cut to it.
pub const MAX_PACKET_BYTES: usize = 65_535;

/// The most bytes of options that fit an IPv4 header.
pub const MAX_IP_OPTION_BYTES: usize = 40;

/// Describes a frame. Without further calls it is an empty Ethernet frame of type 0x88b5 (local experiments).
#[derive(Clone, Debug)]
pub struct FrameBuilder {
    dst_mac: MacAddr,
    src_mac: MacAddr,
    tags: Vec<(EtherType, u16)>,
    ether_type: Option<EtherType>,
    network: Network,
    protocol: Option<IpProtocol>,
    tos: u8,
    ttl: u8,
    ip_flags: u8,
    extensions: Vec<IpProtocol>,
    fragment: Option<Fragment>,
    flow_label: u32,
    ip_options: Vec<u8>,
    transport: Transport,
    payload: Vec<u8>,
    frame_bytes: usize,
}

#[derive(Clone, Copy, Debug)]
enum Network {
    None,
    Arp { sender: Ipv4Addr, target: Ipv4Addr },
    V4 { src: Ipv4Addr, dst: Ipv4Addr },
    V6 { src: Ipv6Addr, dst: Ipv6Addr },
}

#[derive(Clone, Copy, Debug)]
enum Transport {
    None,
    Tcp {
        src_port: u16,
        dst_port: u16,
        flags: u8,
    },
    Udp {
        src_port: u16,
        dst_port: u16,
    },
    Sctp {
        src_port: u16,
        dst_port: u16,
    },
    /// Without a type an echo request.
    Icmp {
        icmp_type: Option<u8>,
        code: u8,
        rest: u32,
    },
}

#[derive(Clone, Copy, Debug)]
struct Fragment {
    offset: u16,
    more: bool,
}

impl Default for FrameBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl FrameBuilder {
    /// A frame from 02:00:00:00:00:01 to 02:00:00:00:00:02.
    pub fn new() -> Self {
        Self {
            dst_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            tags: Vec::new(),
            ether_type: None,
            network: Network::None,
            protocol: None,
            tos: 0,
            ttl: 64,
            ip_flags: 0,
            extensions: Vec::new(),
            fragment: None,
            flow_label: 0,
            ip_options: Vec::new(),
            transport: Transport::None,
            payload: Vec::new(),
            frame_bytes: 0,
        }
    }

    /// Sets the Ethernet addresses.
    pub fn ethernet(mut self, dst: MacAddr, src: MacAddr) -> Self {
        (self.dst_mac, self.src_mac) = (dst, src);
        self
    }

    /// Adds a VLAN tag inside those already added.
    pub fn vlan(mut self, tpid: EtherType, tci: u16) -> Self {
        self.tags.push((tpid, tci));
        self
    }

    /// Overrides the type after the tags, which otherwise follows from the network layer; up to 1500 a
    /// length.
    pub fn ether_type(mut self, ether_type: EtherType) -> Self {
        self.ether_type = Some(ether_type);
        self
    }

    /// An IPv4 packet.
    pub fn ipv4(mut self, src: Ipv4Addr, dst: Ipv4Addr) -> Self {
        self.network = Network::V4 { src, dst };
        self
    }

    /// An IPv6 packet.
    pub fn ipv6(mut self, src: Ipv6Addr, dst: Ipv6Addr) -> Self {
        self.network = Network::V6 { src, dst };
        self
    }

    /// An IP packet of the addresses' family; a mixed pair becomes IPv6 with a mapped address (RFC 4291,
    /// 2.5.5.2).
    pub fn ip(self, src: IpAddr, dst: IpAddr) -> Self {
        let v6 = |address| match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => self.ipv4(src, dst),
            _ => self.ipv6(v6(src), v6(dst)),
        }
    }

    /// An ARP request of `sender` for `target` (RFC 826).
    pub fn arp_request(mut self, sender: Ipv4Addr, target: Ipv4Addr) -> Self {
        self.network = Network::Arp { sender, target };
        self
    }

    /// Overrides the IPv4 protocol or last IPv6 next header, which otherwise follows from the transport (253
    /// without).
    pub fn protocol(mut self, protocol: IpProtocol) -> Self {
        self.protocol = Some(protocol);
        self
    }

    /// IPv4 type of service or IPv6 traffic class.
    pub fn tos(mut self, tos: u8) -> Self {
        self.tos = tos;
        self
    }

    /// IPv4 time to live or IPv6 hop limit; 64 if not given.
    pub fn ttl(mut self, ttl: u8) -> Self {
        self.ttl = ttl;
        self
    }

    /// The three IPv4 flag bits: reserved 4, don't fragment 2, more fragments 1.
    pub fn ip_flags(mut self, ip_flags: u8) -> Self {
        self.ip_flags = ip_flags & 7;
        self
    }

    /// IPv6 flow label, 20 bits.
    pub fn flow_label(mut self, flow_label: u32) -> Self {
        self.flow_label = flow_label & 0x000f_ffff;
        self
    }

    /// Sets a field of the packet's own headers. A field whose header the frame lacks is ignored.
    pub fn set(mut self, field: Field, value: u128) -> Self {
        let (byte, word) = (value as u8, value as u16);
        match field {
            Field::DstMac => self.dst_mac = mac_address(value as u64),
            Field::SrcMac => self.src_mac = mac_address(value as u64),
            Field::VlanId => self.set_tag(0, |tag| tag.1 = tag.1 & 0xf000 | word & 0x0fff),
            Field::VlanPriority => self.set_tag(0, |tag| tag.1 = tag.1 & 0x1fff | word << 13),
            Field::VlanTpid => self.set_tag(0, |tag| tag.0 = EtherType(word)),
            Field::InnerVlanId => self.set_tag(1, |tag| tag.1 = tag.1 & 0xf000 | word & 0x0fff),
            Field::InnerVlanTpid => self.set_tag(1, |tag| tag.0 = EtherType(word)),
            Field::EtherType => self.ether_type = Some(EtherType(word)),
            Field::SrcV4 | Field::DstV4 | Field::SrcV6 | Field::DstV6 => self.set_address(field, value),
            Field::Protocol => match self.extensions.first_mut() {
                Some(first) => *first = IpProtocol(byte),
                None => self.protocol = Some(IpProtocol(byte)),
            },
            Field::ExtProtocol => self.protocol = Some(IpProtocol(byte)),
            Field::Tos => self.tos = byte,
            Field::Ttl => self.ttl = byte,
            Field::FlowLabel => return self.flow_label(value as u32),
            Field::IpFlags => return self.ip_flags(byte),
            Field::SrcPort | Field::DstPort | Field::ExtSrcPort | Field::ExtDstPort => {
                let (Transport::Tcp { src_port, dst_port, .. } | Transport::Udp { src_port, dst_port }) =
                    &mut self.transport
                else {
                    return self;
                };
                let is_src = matches!(field, Field::SrcPort | Field::ExtSrcPort);
                *if is_src { src_port } else { dst_port } = word;
            }
            Field::SctpSrcPort | Field::SctpDstPort => {
                if let Transport::Sctp { src_port, dst_port } = &mut self.transport {
                    *if field == Field::SctpSrcPort { src_port } else { dst_port } = word;
                }
            }
            Field::TcpFlags | Field::ExtTcpFlags => {
                if let Transport::Tcp { flags, .. } = &mut self.transport {
                    *flags = byte;
                }
            }
            Field::IcmpType | Field::Icmpv6Type | Field::ExtIcmpv6Type => {
                if let Transport::Icmp { icmp_type, .. } = &mut self.transport {
                    *icmp_type = Some(byte);
                }
            }
            Field::IcmpCode | Field::Icmpv6Code | Field::ExtIcmpv6Code => {
                if let Transport::Icmp { code, .. } = &mut self.transport {
                    *code = byte;
                }
            }
            Field::EspSpi
            | Field::EspSeq
            | Field::VxlanVni
            | Field::GreProtocol
            | Field::GreKey
            | Field::GreFlags => {}
        }
        self
    }

    fn set_tag(&mut self, place: usize, change: impl Fn(&mut (EtherType, u16))) {
        if let Some(tag) = self.tags.get_mut(place) {
            change(tag);
        }
    }

    fn set_address(&mut self, field: Field, value: u128) {
        match (&mut self.network, field) {
            (Network::V4 { src, .. }, Field::SrcV4) => *src = Ipv4Addr::from(value as u32),
            (Network::V4 { dst, .. }, Field::DstV4) => *dst = Ipv4Addr::from(value as u32),
            (Network::V6 { src, .. }, Field::SrcV6) => *src = Ipv6Addr::from(value),
            (Network::V6 { dst, .. }, Field::DstV6) => *dst = Ipv6Addr::from(value),
            _ => {}
        }
    }

    /// Adds an IPv6 extension header of 8 bytes behind those already added; the header of a
    /// [fragment](Self::fragment) is the last.
    pub fn extension(mut self, header: IpProtocol) -> Self {
        self.extensions.push(header);
        self
    }

    /// A fragment at `offset` units of 8 bytes (13 bits); IPv6 gets a fragment header. A later fragment is
    /// payload only; a first fragment has a transport header, whose lengths and checksum cover this fragment
    /// alone.
    pub fn fragment(mut self, offset: u16, more: bool) -> Self {
        self.fragment = Some(Fragment { offset: offset & 0x1fff, more });
        // It takes the place of a header of a whole packet.
        self.extensions.pop_if(|last| *last == IpProtocol::FRAGMENT);
        self
    }

    /// IPv4 options, padded with zeros to whole words and cut after [`MAX_IP_OPTION_BYTES`].
    pub fn ip_options(mut self, options: &[u8]) -> Self {
        self.ip_options = options.iter().copied().take(MAX_IP_OPTION_BYTES).collect();
        self.ip_options.resize(self.ip_options.len().next_multiple_of(4), 0);
        self
    }

    /// A TCP segment with these flags.
    pub fn tcp(mut self, src_port: u16, dst_port: u16, flags: u8) -> Self {
        self.transport = Transport::Tcp { src_port, dst_port, flags };
        self
    }

    /// A UDP datagram.
    pub fn udp(mut self, src_port: u16, dst_port: u16) -> Self {
        self.transport = Transport::Udp { src_port, dst_port };
        self
    }

    /// An SCTP packet whose chunks are the payload.
    pub fn sctp(mut self, src_port: u16, dst_port: u16) -> Self {
        self.transport = Transport::Sctp { src_port, dst_port };
        self
    }

    /// An ICMP or ICMPv6 echo request.
    pub fn icmp_echo(mut self, identifier: u16, sequence: u16) -> Self {
        let rest = u32::from(identifier) << 16 | u32::from(sequence);
        self.transport = Transport::Icmp { icmp_type: None, code: 0, rest };
        self
    }

    /// An ICMP or ICMPv6 message whose header ends with zeros.
    pub fn icmp(mut self, icmp_type: u8, code: u8) -> Self {
        self.transport = Transport::Icmp { icmp_type: Some(icmp_type), code, rest: 0 };
        self
    }

    /// Sets the bytes that follow the headers.
    pub fn payload(mut self, payload: &[u8]) -> Self {
        self.payload = payload.to_vec();
        self
    }

    /// Lengthens the payload with zeros until the frame has this many bytes, not counting the frame check
    /// sequence. A frame that is longer already stays as it is.
    pub fn frame_bytes(mut self, frame_bytes: usize) -> Self {
        self.frame_bytes = frame_bytes;
        self
    }

    /// Writes the frame.
    pub fn build(&self) -> Vec<u8> {
        let header_bytes = 14 + 4 * self.tags.len() + self.network_bytes() + self.transport_bytes();
        let most = MAX_PACKET_BYTES.saturating_sub(self.network_bytes() + self.transport_bytes());
        let mut payload = self.payload.clone();
        payload.resize(payload.len().max(self.frame_bytes.saturating_sub(header_bytes)).min(most), 0);

        let mut frame = Vec::with_capacity(header_bytes + payload.len());
        frame.extend(self.dst_mac.0);
        frame.extend(self.src_mac.0);
        for (tpid, tci) in &self.tags {
            frame.extend(tpid.0.to_be_bytes());
            frame.extend(tci.to_be_bytes());
        }
        frame.extend(self.network_type().0.to_be_bytes());
        match self.network {
            Network::None => frame.extend(payload),
            Network::Arp { sender, target } => {
                self.write_arp(&mut frame, sender, target);
                frame.extend(payload);
            }
            Network::V4 { src, dst } => {
                let segment = self.segment(&payload);
                self.write_ipv4(&mut frame, src, dst, segment.len());
                frame.extend(segment);
            }
            Network::V6 { src, dst } => {
                let segment = self.segment(&payload);
                self.write_ipv6(&mut frame, src, dst, segment.len());
                frame.extend(segment);
            }
        }
        checksum::fill(&mut frame, &self.laid_out());
        frame
    }

    fn network_type(&self) -> EtherType {
        self.ether_type.unwrap_or(match self.network {
            Network::None => EtherType(0x88b5),
            Network::Arp { .. } => EtherType::ARP,
            Network::V4 { .. } => EtherType::IPV4,
            Network::V6 { .. } => EtherType::IPV6,
        })
    }

    /// The IPv6 extension headers.
    fn extension_headers(&self) -> impl Iterator<Item = IpProtocol> {
        self.extensions.iter().copied().chain(self.fragment.map(|_| IpProtocol::FRAGMENT))
    }

    fn network_bytes(&self) -> usize {
        match self.network {
            Network::None => 0,
            Network::Arp { .. } => 28,
            Network::V4 { .. } => 20 + self.ip_options.len(),
            Network::V6 { .. } => 40 + 8 * self.extension_headers().count(),
        }
    }

    /// Whether there is a transport header to write.
    fn starts_transport(&self) -> bool {
        let has_ip = matches!(self.network, Network::V4 { .. } | Network::V6 { .. });
        has_ip && self.fragment.is_none_or(|fragment| fragment.offset == 0)
    }

    fn transport_bytes(&self) -> usize {
        match self.transport {
            _ if !self.starts_transport() => 0,
            Transport::None => 0,
            Transport::Tcp { .. } => 20,
            Transport::Udp { .. } | Transport::Icmp { .. } => 8,
            Transport::Sctp { .. } => SCTP_BYTES,
        }
    }

    fn ip_protocol(&self) -> IpProtocol {
        self.protocol.unwrap_or(match (self.transport, self.network) {
            (Transport::Tcp { .. }, _) => IpProtocol::TCP,
            (Transport::Udp { .. }, _) => IpProtocol::UDP,
            (Transport::Sctp { .. }, _) => IpProtocol::SCTP,
            (Transport::Icmp { .. }, Network::V6 { .. }) => IpProtocol::ICMPV6,
            (Transport::Icmp { .. }, _) => IpProtocol::ICMP,
            // For experiments and tests (RFC 3692).
            (Transport::None, _) => IpProtocol(253),
        })
    }

    /// The transport header and the payload. Checksums of ICMP and SCTP are right; others are still zero.
    fn segment(&self, payload: &[u8]) -> Vec<u8> {
        if !self.starts_transport() {
            return payload.to_vec();
        }
        let mut segment = Vec::with_capacity(20 + payload.len());
        match self.transport {
            Transport::None => {}
            Transport::Tcp { src_port, dst_port, flags } => {
                segment.extend(src_port.to_be_bytes());
                segment.extend(dst_port.to_be_bytes());
                segment.extend([0, 0, 0, 1, 0, 0, 0, 0, 5 << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
            }
            Transport::Udp { src_port, dst_port } => {
                segment.extend(src_port.to_be_bytes());
                segment.extend(dst_port.to_be_bytes());
                segment.extend(((8 + payload.len()) as u16).to_be_bytes());
                segment.extend([0, 0]);
            }
            Transport::Sctp { src_port, dst_port } => {
                segment.extend(src_port.to_be_bytes());
                segment.extend(dst_port.to_be_bytes());
                // A verification tag, and the checksum.
                segment.extend([0, 0, 0, 1, 0, 0, 0, 0]);
            }
            Transport::Icmp { icmp_type, code, rest } => {
                let echo_request = if matches!(self.network, Network::V6 { .. }) { 128 } else { 8 };
                segment.extend([icmp_type.unwrap_or(echo_request), code, 0, 0]);
                segment.extend(rest.to_be_bytes());
            }
        }
        segment.extend(payload);
        if let Transport::Sctp { .. } = self.transport {
            offload::write_sctp_checksum(&mut segment);
        }
        if let Transport::Icmp { .. } = self.transport {
            let checksum = match self.network {
                Network::V6 { src, dst } => {
                    checksum::l4(src.into(), dst.into(), IpProtocol::ICMPV6, &segment)
                }
                _ => checksum::ipv4_header(&segment),
            };
            segment[2..4].copy_from_slice(&checksum.to_be_bytes());
        }
        segment
    }

    /// Where [`FrameBuilder::build`] puts what has a checksum. A parse would not find all of it: not behind a
    /// third tag or an overridden type or protocol, nor in fragments.
    fn laid_out(&self) -> Parsed {
        let l3_offset = 14 + 4 * self.tags.len();
        let mut key = FlowKey::default();
        match self.network {
            Network::None | Network::Arp { .. } => {}
            Network::V4 { src, dst } => {
                key.layers = Layers::IPV4;
                key.src_ip[..4].copy_from_slice(&src.octets());
                key.dst_ip[..4].copy_from_slice(&dst.octets());
            }
            Network::V6 { src, dst } => {
                key.layers = Layers::IPV6;
                (key.src_ip, key.dst_ip) = (src.octets(), dst.octets());
            }
        }
        key.layers |= match self.transport {
            Transport::Tcp { .. } if self.starts_transport() => Layers::TCP,
            Transport::Udp { .. } if self.starts_transport() => Layers::UDP,
            _ => Layers::empty(),
        };
        let l4_offset = l3_offset + self.network_bytes();
        Parsed { key, l3_offset: l3_offset as u16, l4_offset: l4_offset as u16, anomaly: None }
    }

    fn write_ipv4(&self, frame: &mut Vec<u8>, src: Ipv4Addr, dst: Ipv4Addr, segment_bytes: usize) {
        let header_bytes = 20 + self.ip_options.len();
        let mut flags_and_offset = u16::from(self.ip_flags) << 13;
        if let Some(Fragment { offset, more }) = self.fragment {
            flags_and_offset |= offset | u16::from(more) << 13;
        }
        frame.extend([0x40 | (header_bytes / 4) as u8, self.tos]);
        frame.extend(((header_bytes + segment_bytes) as u16).to_be_bytes());
        frame.extend([0, 0]);
        frame.extend(flags_and_offset.to_be_bytes());
        frame.extend([self.ttl, self.ip_protocol().0, 0, 0]);
        frame.extend(src.octets());
        frame.extend(dst.octets());
        frame.extend(&self.ip_options);
    }

    fn write_ipv6(&self, frame: &mut Vec<u8>, src: Ipv6Addr, dst: Ipv6Addr, segment_bytes: usize) {
        let first_word = 6 << 28 | u32::from(self.tos) << 20 | self.flow_label;
        let headers: Vec<IpProtocol> = self.extension_headers().chain([self.ip_protocol()]).collect();
        frame.extend(first_word.to_be_bytes());
        frame.extend(((self.network_bytes() - 40 + segment_bytes) as u16).to_be_bytes());
        frame.extend([headers[0].0, self.ttl]);
        frame.extend(src.octets());
        frame.extend(dst.octets());
        for pair in headers.windows(2) {
            frame.extend([pair[1].0, 0]);
            frame.extend(match pair[0] {
                // Four octets of padding.
                IpProtocol::HOP_BY_HOP | IpProtocol::DESTINATION_OPTIONS => [1, 4, 0, 0, 0, 0],
                _ => [0, 0, 0, 0, 0, 1],
            });
        }
        if let Some(Fragment { offset, more }) = self.fragment {
            let at = frame.len() - 6;
            frame[at..at + 2].copy_from_slice(&(offset << 3 | u16::from(more)).to_be_bytes());
        }
    }

    fn write_arp(&self, frame: &mut Vec<u8>, sender: Ipv4Addr, target: Ipv4Addr) {
        // Ethernet (1) and IPv4, addresses of 6 and 4 bytes, operation request (1).
        frame.extend([0, 1, 0x08, 0x00, 6, 4, 0, 1]);
        frame.extend(self.src_mac.0);
        frame.extend(sender.octets());
        frame.extend([0; 6]);
        frame.extend(target.octets());
    }
}

/// The source port of UDP tunnels, which is free to choose (RFC 7348, 5; RFC 7510, 3).
const ENTROPY_PORT: u16 = 49_152;

/// How many bits of a label stack entry the traffic class, the S bit and the TTL take.
const LABEL_SHIFT: u32 = 12;

/// A label stack entry with TTL 64; [`FrameBuilder::mpls`] marks the bottom.
pub fn mpls_label(label: u32, traffic_class: u8) -> u32 {
    (label & 0x000f_ffff) << LABEL_SHIFT | u32::from(traffic_class & 7) << 9 | 64
}

/// The bytes of a label stack, top first with its last entry marked, before the packet `inner`.
pub fn label_stack(entries: &[u32], inner: &[u8]) -> Vec<u8> {
    let mut stack = Vec::with_capacity(4 * entries.len() + inner.len());
    for (place, entry) in entries.iter().enumerate() {
        let bottom = if place + 1 == entries.len() { BOTTOM_OF_STACK } else { 0 };
        stack.extend((entry & !BOTTOM_OF_STACK | bottom).to_be_bytes());
    }
    stack.extend(inner);
    stack
}

/// Frames inside frames: the packet inside is bytes, so that tunnels nest, and takes the place of the
/// payload. The outer lengths and checksums are right even if it is malformed.
impl FrameBuilder {
    /// VXLAN: the frame `inner` in a UDP datagram, with a valid network identifier of 24 bits. Needs an IP
    /// layer.
    pub fn vxlan(self, vni: u32, inner: &[u8]) -> Self {
        let [_, n0, n1, n2] = vni.to_be_bytes();
        let mut payload = vec![VNI_VALID, 0, 0, 0, n0, n1, n2, 0];
        payload.extend(inner);
        self.udp(ENTROPY_PORT, VXLAN_UDP_PORT).payload(&payload)
    }

    /// GRE version 0 with an optional key: `inner` is of the type `protocol`. Needs an IP layer.
    pub fn gre(self, protocol: EtherType, key: Option<u32>, inner: &[u8]) -> Self {
        let mut payload = vec![if key.is_some() { GRE_HAS_KEY } else { 0 }, 0];
        payload.extend(protocol.0.to_be_bytes());
        payload.extend(key.map(u32::to_be_bytes).into_iter().flatten());
        payload.extend(inner);
        self.protocol(IpProtocol::GRE).payload(&payload)
    }

    /// A label stack, top first, before the packet `inner`; see [`mpls_label`]. Without an IP layer behind
    /// Ethernet, with one in a UDP datagram. In GRE: give [`label_stack`] to [`FrameBuilder::gre`].
    pub fn mpls(self, entries: &[u32], inner: &[u8]) -> Self {
        let payload = label_stack(entries, inner);
        match self.network {
            Network::None => self.ether_type(EtherType::MPLS).payload(&payload),
            _ => self.udp(ENTROPY_PORT, MPLS_UDP_PORT).payload(&payload),
        }
    }

    /// ESP: index, sequence number, and what is encrypted. Needs an IP layer.
    pub fn esp(self, spi: u32, sequence: u32, encrypted: &[u8]) -> Self {
        let mut payload = spi.to_be_bytes().to_vec();
        payload.extend(sequence.to_be_bytes());
        payload.extend(encrypted);
        self.protocol(IpProtocol::ESP).payload(&payload)
    }

    /// IP in IP: `inner` is the packet inside, of the version in its first nibble. Needs an IP layer.
    pub fn ip_in_ip(self, inner: &[u8]) -> Self {
        let is_v6 = inner.first().is_some_and(|first| first >> 4 == 6);
        self.protocol(if is_v6 { IpProtocol::IPV6 } else { IpProtocol::IPV4 }).payload(inner)
    }

    /// The frame without its Ethernet header and tags: a packet to put inside another.
    pub fn build_packet(&self) -> Vec<u8> {
        self.build().split_off(14 + 4 * self.tags.len())
    }
}

#[cfg(test)]
mod tests;
