//! The header fields that a policy, a device or a worker can match: one row each. Code that needs a list of
//! fields iterates over [`FIELDS`]; code that needs a property of a field reads its row. Adding a field takes
//! a row here, its reading in [`parse`](crate::parse()), its encoding for devices (where devices have one)
//! and a line of documentation.
//!
//! Not in the table, because they are no numbers in one place: fragmentation, the presence of IPv4 options
//! and VLAN tags, and label stacks.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::slots::{self, Slot};
use crate::{
    DeepKey, EtherType, FlowKey, GRE_HAS_KEY, IpProtocol, Layers, TunnelKey, TunnelLayers, VXLAN_UDP_PORT,
    mac_address, mac_number,
};

/// The header that a field belongs to. A packet without it does not match, whatever the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// Ethernet; a packet inside a tunnel may lack it.
    Ethernet,
    /// The outer VLAN tag.
    Vlan,
    /// The second VLAN tag.
    InnerVlan,
    /// IPv4 or IPv6.
    Ip,
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// TCP or UDP.
    Ports,
    /// TCP.
    Tcp,
    /// SCTP.
    Sctp,
    /// ICMP.
    Icmp,
    /// ICMPv6.
    Icmpv6,
    /// IPv6 extension headers.
    Extended,
    /// TCP or UDP behind IPv6 extension headers.
    ExtendedPorts,
    /// TCP behind IPv6 extension headers.
    ExtendedTcp,
    /// ICMPv6 behind IPv6 extension headers.
    ExtendedIcmpv6,
    /// ESP right behind the IP header.
    Esp,
    /// VXLAN.
    Vxlan,
    /// GRE, version 0.
    Gre,
    /// GRE with a key.
    GreKey,
}

/// How the values of a field are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A number.
    Number,
    /// A number whose bits have meanings of their own.
    Bits,
    /// A port of TCP, UDP or SCTP.
    Port,
    /// A VLAN identifier.
    VlanId,
    /// A name or number of an EtherType.
    EtherType,
    /// A name or number of an IP protocol.
    Protocol,
    /// Names of bits.
    Flags(&'static [Flag]),
    /// A MAC address.
    Mac,
    /// An IP address.
    Address,
}

/// The row of a field in the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The field.
    pub field: Field,
    /// The key of the field in the policy language.
    pub name: &'static str,
    /// The width of its values.
    pub bits: u32,
    /// The header that it belongs to.
    pub header: Header,
    /// How its values are written.
    pub form: Form,
    /// The place of the field in the packed image ([`crate::cube`]), the most significant word first; none
    /// for fields that no device can match.
    pub slots: &'static [Slot],
    /// Where its value is in a parsed packet.
    read: Read,
    /// The noun for a value, with its article.
    pub noun: &'static str,
    /// How to write a value.
    pub hint: &'static str,
    /// The description of the field.
    pub doc: &'static str,
}

#[derive(Clone, Copy, Debug)]
enum Read {
    Packet(fn(&FlowKey) -> u128),
    Tunnel(fn(&TunnelKey) -> u128),
}

const MAC_HINT: &str = "write one like 02:00:5e:00:00:01, with a mask like 01:00:5e:00:00:00/ff:ff:ff:80:00:00, or multicast or broadcast";
const ADDRESS_HINT: &str =
    "write one like 192.0.2.1, 192.0.2.0/24, 2001:db8::/32, or a range like 192.0.2.10-192.0.2.20";
const ETHER_TYPE_HINT: &str = "write a name like arp, a number like 0x0806, or a range like 0-1500";
const VLAN_HINT: &str = "write none, any, an id from 0 to 4095, or a range like 100-199";
const PORT_HINT: &str = "write a number from 0 to 65535 or a range like 1024-65535";
const PROTOCOL_HINT: &str = "write a name like tcp, a number from 0 to 255, or a range of numbers";
const TCP_FLAGS_HINT: &str =
    "write fin, syn, rst, psh, ack, urg, ece, cwr, with ! for \"not set\": \"syn,!ack\"";
const BYTE_HINT: &str = "write a number from 0 to 255 or a range";
const U32_HINT: &str = "write a number from 0 to 0xffffffff or a range";

/// The rows below as [`Field`] and [`FIELDS`].
macro_rules! fields {
    ($($doc:literal $field:ident: $name:literal, $bits:literal, $header:expr, $form:expr, [$($slot:ident),*], $read:expr;
        $noun:expr, $hint:expr;)*) => {
        /// A header field, in the order in which matches are written. Its discriminant is its place in
        /// [`FIELDS`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Field {
            $(#[doc = $doc] $field,)*
        }

        /// Every field, in the order of [`Field`].
        pub const FIELDS: [Row; [$($name),*].len()] = [$(Row {
            field: Field::$field,
            name: $name,
            bits: $bits,
            header: $header,
            form: $form,
            slots: &[$(slots::$slot),*],
            read: $read,
            noun: $noun,
            hint: $hint,
            doc: $doc,
        }),*];
    };
}

// Each row: what the field is; its key in the policy language, bits, header, how its values are written, its
// slots in the packed image, where its value is in a parsed packet; what a value is called, how to write one.
fields! {
    "Destination MAC, also with a mask, multicast or broadcast."
    DstMac: "dst_mac", 48, Header::Ethernet, Form::Mac, [DST_MAC], Read::Packet(|key| mac_number(key.dst_mac));
        "a MAC address", MAC_HINT;

    "Source MAC, also with a mask."
    SrcMac: "src_mac", 48, Header::Ethernet, Form::Mac, [SRC_MAC], Read::Packet(|key| mac_number(key.src_mac));
        "a MAC address", MAC_HINT;

    "Id of the outermost tag; none or any."
    VlanId: "vlan", 12, Header::Vlan, Form::VlanId, [VLAN_ID], Read::Packet(|key| (key.vlan_tci & 0x0fff).into());
        "a VLAN id", VLAN_HINT;

    "Priority of the outermost tag."
    VlanPriority: "vlan_priority", 3, Header::Vlan, Form::Number, [VLAN_PRIORITY], Read::Packet(|key| (key.vlan_tci >> 13).into());
        "a VLAN priority", "write a number from 0 to 7 or a range like 5-7";

    "Tag protocol of the outermost tag."
    VlanTpid: "vlan_tpid", 16, Header::Vlan, Form::EtherType, [], Read::Packet(|key| key.vlan_tpid.into());
        "an ethertype", ETHER_TYPE_HINT;

    "Id of the second tag; none or any."
    InnerVlanId: "inner_vlan", 12, Header::InnerVlan, Form::VlanId, [], Read::Packet(|key| (key.inner_vlan_tci & 0x0fff).into());
        "a VLAN id", VLAN_HINT;

    "Tag protocol of the second tag."
    InnerVlanTpid: "inner_vlan_tpid", 16, Header::InnerVlan, Form::EtherType, [], Read::Packet(|key| key.inner_vlan_tpid.into());
        "an ethertype", ETHER_TYPE_HINT;

    "The type behind the VLAN tags; up to 1500 the length of an 802.3 frame."
    EtherType: "ethertype", 16, Header::Ethernet, Form::EtherType, [ETHER_TYPE], Read::Packet(|key| key.ether_type.into());
        "an ethertype", ETHER_TYPE_HINT;

    "Source address: address, prefix or range."
    SrcV4: "src", 32, Header::Ipv4, Form::Address, [SRC_IPV4], Read::Packet(|key| u128::from_be_bytes(key.src_ip) >> 96);
        "an address", ADDRESS_HINT;

    "Source address: address, prefix or range."
    SrcV6: "src", 128, Header::Ipv6, Form::Address, [SRC_HIGH, SRC_LOW], Read::Packet(|key| u128::from_be_bytes(key.src_ip));
        "an address", ADDRESS_HINT;

    "Destination address: address, prefix or range."
    DstV4: "dst", 32, Header::Ipv4, Form::Address, [DST_IPV4], Read::Packet(|key| u128::from_be_bytes(key.dst_ip) >> 96);
        "an address", ADDRESS_HINT;

    "Destination address: address, prefix or range."
    DstV6: "dst", 128, Header::Ipv6, Form::Address, [DST_HIGH, DST_LOW], Read::Packet(|key| u128::from_be_bytes(key.dst_ip));
        "an address", ADDRESS_HINT;

    "IPv4 protocol or first IPv6 next header."
    Protocol: "protocol", 8, Header::Ip, Form::Protocol, [PROTOCOL], Read::Packet(|key| key.protocol.into());
        "a protocol", PROTOCOL_HINT;

    "The whole IPv4 type of service or IPv6 traffic class."
    Tos: "tos", 8, Header::Ip, Form::Bits, [TOS], Read::Packet(|key| key.tos.into());
        "a type of service", BYTE_HINT;

    "IPv4 time to live or IPv6 hop limit."
    Ttl: "ttl", 8, Header::Ip, Form::Number, [TTL], Read::Packet(|key| key.ttl.into());
        "a time to live", "write a number from 0 to 255 or a range like 1-64";

    "IPv6 flow label."
    FlowLabel: "flow_label", 20, Header::Ipv6, Form::Number, [FLOW_LABEL], Read::Packet(|key| key.flow_label.into());
        "a flow label", "write a number from 0 to 0xfffff or a range";

    "IPv4 flags that are set, and with ! not set: df, mf, reserved."
    IpFlags: "ip_flags", 3, Header::Ipv4, Form::Flags(&IP_FLAGS), [IP_FLAGS], Read::Packet(|key| key.ip_flags.into());
        "a combination of IPv4 flags", "write df, mf, reserved, with ! for \"not set\": \"df,!mf\"";

    "TCP or UDP source port."
    SrcPort: "src_port", 16, Header::Ports, Form::Port, [SRC_PORT], Read::Packet(|key| key.src_port.into());
        "a port", PORT_HINT;

    "TCP or UDP destination port."
    DstPort: "dst_port", 16, Header::Ports, Form::Port, [DST_PORT], Read::Packet(|key| key.dst_port.into());
        "a port", PORT_HINT;

    "TCP flags that are set, and with ! not set."
    TcpFlags: "tcp_flags", 8, Header::Tcp, Form::Flags(&TCP_FLAGS), [], Read::Packet(|key| key.tcp_flags.into());
        "a combination of TCP flags", TCP_FLAGS_HINT;

    "SCTP source port."
    SctpSrcPort: "sctp_src_port", 16, Header::Sctp, Form::Port, [], Read::Packet(|key| key.src_port.into());
        "a port", PORT_HINT;

    "SCTP destination port."
    SctpDstPort: "sctp_dst_port", 16, Header::Sctp, Form::Port, [], Read::Packet(|key| key.dst_port.into());
        "a port", PORT_HINT;

    "Type of an ICMP message: 8 is an echo request."
    IcmpType: "icmp_type", 8, Header::Icmp, Form::Number, [], Read::Packet(|key| key.icmp_type.into());
        "an ICMP type", BYTE_HINT;

    "Code of an ICMP message."
    IcmpCode: "icmp_code", 8, Header::Icmp, Form::Number, [], Read::Packet(|key| key.icmp_code.into());
        "an ICMP code", BYTE_HINT;

    "Type of an ICMPv6 message: 128 is an echo request."
    Icmpv6Type: "icmpv6_type", 8, Header::Icmpv6, Form::Number, [], Read::Packet(|key| key.icmp_type.into());
        "an ICMP type", BYTE_HINT;

    "Code of an ICMPv6 message."
    Icmpv6Code: "icmpv6_code", 8, Header::Icmpv6, Form::Number, [], Read::Packet(|key| key.icmp_code.into());
        "an ICMP code", BYTE_HINT;

    "Protocol behind IPv6 extension headers."
    ExtProtocol: "ext_protocol", 8, Header::Extended, Form::Protocol, [], Read::Packet(|key| key.extended.protocol.into());
        "a protocol", PROTOCOL_HINT;

    "TCP or UDP source port behind IPv6 extension headers."
    ExtSrcPort: "ext_src_port", 16, Header::ExtendedPorts, Form::Port, [], Read::Packet(|key| key.extended.src_port.into());
        "a port", PORT_HINT;

    "TCP or UDP destination port behind IPv6 extension headers."
    ExtDstPort: "ext_dst_port", 16, Header::ExtendedPorts, Form::Port, [], Read::Packet(|key| key.extended.dst_port.into());
        "a port", PORT_HINT;

    "TCP flags behind IPv6 extension headers that are set, and with ! not set."
    ExtTcpFlags: "ext_tcp_flags", 8, Header::ExtendedTcp, Form::Flags(&TCP_FLAGS), [], Read::Packet(|key| key.extended.tcp_flags.into());
        "a combination of TCP flags", TCP_FLAGS_HINT;

    "Type of an ICMPv6 message behind IPv6 extension headers."
    ExtIcmpv6Type: "ext_icmpv6_type", 8, Header::ExtendedIcmpv6, Form::Number, [], Read::Packet(|key| key.extended.icmp_type.into());
        "an ICMP type", BYTE_HINT;

    "Code of an ICMPv6 message behind IPv6 extension headers."
    ExtIcmpv6Code: "ext_icmpv6_code", 8, Header::ExtendedIcmpv6, Form::Number, [], Read::Packet(|key| key.extended.icmp_code.into());
        "an ICMP code", BYTE_HINT;

    "Security parameters index of ESP."
    EspSpi: "esp_spi", 32, Header::Esp, Form::Number, [ESP_SPI], Read::Tunnel(|key| key.esp_spi.into());
        "a security parameters index", U32_HINT;

    "Sequence number of ESP."
    EspSeq: "esp_seq", 32, Header::Esp, Form::Number, [ESP_SEQ], Read::Tunnel(|key| key.esp_seq.into());
        "a sequence number", U32_HINT;

    "Network identifier of VXLAN."
    VxlanVni: "vxlan_vni", 24, Header::Vxlan, Form::Number, [VXLAN_VNI], Read::Tunnel(|key| key.vxlan_vni.into());
        "a VXLAN network identifier", "write a number from 0 to 0xffffff or a range like 5000-5999";

    "Ethertype of what GRE carries."
    GreProtocol: "gre_protocol", 16, Header::Gre, Form::EtherType, [GRE_PROTOCOL], Read::Tunnel(|key| key.gre_protocol.into());
        "an ethertype", ETHER_TYPE_HINT;

    "Key of GRE; there must be one."
    GreKey: "gre_key", 32, Header::GreKey, Form::Number, [GRE_KEY], Read::Tunnel(|key| key.gre_key.into());
        "a GRE key", U32_HINT;

    "Optional fields of GRE that are there, and with ! not: checksum, key, sequence."
    GreFlags: "gre_flags", 8, Header::Gre, Form::Flags(&GRE_FLAGS), [GRE_FLAGS], Read::Tunnel(|key| (key.gre_flags >> 8).into());
        "a combination of GRE flags", "write checksum, key, sequence, with ! for \"not there\": \"key,!checksum\"";
}

impl Field {
    /// The row of the field in the table.
    #[inline]
    pub const fn row(self) -> &'static Row {
        const ROWS: &[Row; FIELDS.len()] = &FIELDS;
        &ROWS[self as usize]
    }

    /// The key of the field in the policy language.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The source and the destination port right behind this protocol, which has ports.
    pub const fn ports_of(protocol: IpProtocol) -> [Self; 2] {
        match protocol {
            IpProtocol::SCTP => [Self::SctpSrcPort, Self::SctpDstPort],
            _ => [Self::SrcPort, Self::DstPort],
        }
    }

    /// Returns the corresponding field behind IPv6 extension headers, if there is one.
    pub fn behind_extension_headers(self) -> Option<Self> {
        EXTENDED.iter().find(|(field, _)| *field == self).map(|(_, behind)| *behind)
    }

    /// The field without extension headers, if it is one behind them.
    pub fn without_extension_headers(self) -> Option<Self> {
        EXTENDED.iter().find(|(_, behind)| *behind == self).map(|(field, _)| *field)
    }

    /// The largest value.
    pub const fn max(self) -> u128 {
        u128::MAX >> (u128::BITS - self.row().bits)
    }

    /// Every field.
    pub fn all() -> impl Iterator<Item = Self> {
        FIELDS.iter().map(|row| row.field)
    }

    /// Whether its values are numbers of at most 32 bits, not addresses.
    pub const fn is_number(self) -> bool {
        !matches!(self.row().form, Form::Mac | Form::Address)
    }

    /// The value in a packet, inside a tunnel or not; 0 if the packet lacks the header, but for the ports of
    /// TCP, UDP and SCTP, which are those of whichever header is there. Fields of tunnel headers are not in a
    /// packet's own headers.
    #[inline]
    pub fn in_packet(self, key: &FlowKey) -> u128 {
        match self.row().read {
            Read::Packet(read) => read(key),
            Read::Tunnel(_) => 0,
        }
    }

    /// The value in the tunnel headers.
    #[inline]
    pub fn in_tunnel(self, key: &TunnelKey) -> u128 {
        match self.row().read {
            Read::Packet(_) => 0,
            Read::Tunnel(read) => read(key),
        }
    }

    /// A value as people read it: by name where it has one.
    pub fn text(self, value: u128) -> String {
        let word = value as u32;
        match (self.row().form, self.row().bits) {
            (Form::EtherType, _) => EtherType(word as u16).to_string(),
            (Form::Protocol, _) => IpProtocol(word as u8).to_string(),
            (Form::Flags(_), 8) => format!("{word:#04x}"),
            (Form::Mac, _) => mac_address(value as u64).to_string(),
            (Form::Address, 32) => Ipv4Addr::from(word).to_string(),
            (Form::Address, _) => Ipv6Addr::from(value).to_string(),
            _ => value.to_string(),
        }
    }
}

/// The fields that are read behind IPv6 extension headers as well, each with the field there.
const EXTENDED: [(Field, Field); 6] = [
    (Field::Protocol, Field::ExtProtocol),
    (Field::SrcPort, Field::ExtSrcPort),
    (Field::DstPort, Field::ExtDstPort),
    (Field::TcpFlags, Field::ExtTcpFlags),
    (Field::Icmpv6Type, Field::ExtIcmpv6Type),
    (Field::Icmpv6Code, Field::ExtIcmpv6Code),
];

impl Header {
    /// Whether it is Ethernet or a VLAN tag.
    pub const fn is_link(self) -> bool {
        matches!(self, Self::Ethernet | Self::Vlan | Self::InnerVlan)
    }

    /// Whether it is IPv4 or IPv6.
    pub const fn is_ip(self) -> bool {
        matches!(self, Self::Ip | Self::Ipv4 | Self::Ipv6)
    }

    /// The usual name of the header.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ethernet => "Ethernet",
            Self::Vlan => "VLAN",
            Self::InnerVlan => "inner VLAN",
            Self::Ip => "IP",
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
            Self::Ports => "TCP or UDP",
            Self::Tcp => "TCP",
            Self::Sctp => "SCTP",
            Self::Icmp => "ICMP",
            Self::Icmpv6 => "ICMPv6",
            Self::Extended | Self::ExtendedPorts | Self::ExtendedTcp | Self::ExtendedIcmpv6 => {
                "IPv6 extension headers"
            }
            Self::Esp => "ESP",
            Self::Vxlan => "VXLAN",
            Self::Gre | Self::GreKey => "GRE",
        }
    }

    /// The IP version of every packet with the header, if it is one.
    pub const fn version(self) -> Option<Layers> {
        match self {
            Self::Ipv4 | Self::Icmp => Some(Layers::IPV4),
            Self::Ipv6 | Self::Icmpv6 => Some(Layers::IPV6),
            header if header.is_extended() => Some(Layers::IPV6),
            _ => None,
        }
    }

    /// The IP protocols that announce the header; empty if it is not behind an IP header.
    pub const fn protocols(self) -> &'static [IpProtocol] {
        match self {
            Self::Ports => &[IpProtocol::TCP, IpProtocol::UDP],
            Self::Tcp => &[IpProtocol::TCP],
            Self::Sctp => &[IpProtocol::SCTP],
            Self::Icmp => &[IpProtocol::ICMP],
            Self::Icmpv6 => &[IpProtocol::ICMPV6],
            Self::Extended | Self::ExtendedPorts | Self::ExtendedTcp | Self::ExtendedIcmpv6 => {
                &IpProtocol::EXTENSION_HEADERS
            }
            Self::Esp => &[IpProtocol::ESP],
            Self::Vxlan => &[IpProtocol::UDP],
            Self::Gre | Self::GreKey => &[IpProtocol::GRE],
            _ => &[],
        }
    }

    /// The destination port that announces the header, if a UDP port does.
    pub const fn udp_port(self) -> Option<u16> {
        match self {
            Self::Vxlan => Some(VXLAN_UDP_PORT),
            _ => None,
        }
    }

    /// Whether it is behind an IP header, in the packet's own headers.
    pub const fn is_behind_ip(self) -> bool {
        self.needs_ip() && !self.is_ip()
    }

    /// Whether it has ports of TCP or UDP.
    pub const fn has_ports(self) -> bool {
        matches!(self, Self::Ports | Self::ExtendedPorts)
    }

    /// Whether it is an IPv6 extension header or behind one. It is read of the outer packet only.
    pub const fn is_extended(self) -> bool {
        matches!(self, Self::Extended | Self::ExtendedPorts | Self::ExtendedTcp | Self::ExtendedIcmpv6)
    }

    /// Whether a packet inside a tunnel may have it.
    pub const fn is_inside_tunnels(self) -> bool {
        !self.is_tunnel() && !self.is_extended()
    }

    /// Whether it is TCP or UDP.
    pub const fn is_transport(self) -> bool {
        matches!(self, Self::Ports | Self::Tcp)
    }

    /// Whether it is a tunnel's.
    pub const fn is_tunnel(self) -> bool {
        matches!(self, Self::Esp | Self::Vxlan | Self::Gre | Self::GreKey)
    }

    /// Whether it is an IP header or comes right behind one, in the packet's own headers.
    pub const fn needs_ip(self) -> bool {
        !self.is_link() && !self.is_tunnel()
    }

    /// The layers of which a packet has at least one if it has the header; empty if no layer stands for it.
    /// Those of extension headers need a [protocol](Self::protocols) as well.
    pub const fn layers(self) -> Layers {
        match self {
            Self::Vlan => Layers::VLAN,
            Self::InnerVlan => Layers::INNER_VLAN,
            Self::Ip => Layers::IPV4.union(Layers::IPV6),
            Self::Ipv4 => Layers::IPV4,
            Self::Ipv6 => Layers::IPV6,
            Self::Ports => Layers::TCP.union(Layers::UDP),
            Self::Tcp => Layers::TCP,
            Self::Sctp => Layers::SCTP,
            Self::Icmp => Layers::ICMP,
            Self::Icmpv6 => Layers::ICMPV6,
            Self::Extended => Layers::IPV6,
            Self::ExtendedPorts => Layers::EXTENDED_TCP.union(Layers::EXTENDED_UDP),
            Self::ExtendedTcp => Layers::EXTENDED_TCP,
            Self::ExtendedIcmpv6 => Layers::EXTENDED_ICMPV6,
            Self::Ethernet | Self::Esp | Self::Vxlan | Self::Gre | Self::GreKey => Layers::empty(),
        }
    }

    /// The layer of the tunnel that the header belongs to; `None`: it is not a tunnel header.
    pub const fn tunnel_layer(self) -> Option<Slot> {
        match self {
            Self::Esp => Some(slots::HAS_ESP),
            Self::Vxlan => Some(slots::HAS_VXLAN),
            Self::Gre | Self::GreKey => Some(slots::HAS_GRE),
            _ => None,
        }
    }

    /// The tunnel layers that a packet has if it has the header.
    pub const fn tunnel_layers(self) -> TunnelLayers {
        match self {
            Self::Esp => TunnelLayers::ESP,
            Self::Vxlan => TunnelLayers::VXLAN,
            Self::Gre => TunnelLayers::GRE,
            Self::GreKey => TunnelLayers::GRE.union(TunnelLayers::GRE_KEY),
            _ => TunnelLayers::empty(),
        }
    }
}

impl FlowKey {
    /// The fields that the packet has, with their values, in the order of [`FIELDS`].
    pub fn fields(&self, has_ethernet: bool) -> impl Iterator<Item = (Field, u128)> {
        let extended = self.has_extension_headers();
        let has = move |header: Header| match header {
            Header::Ethernet => has_ethernet,
            Header::Extended => extended,
            header => self.layers.intersects(header.layers()),
        };
        let rows = FIELDS.iter().filter(move |row| has(row.header));
        rows.map(|row| (row.field, row.field.in_packet(self)))
    }
}

impl TunnelKey {
    /// The fields that the tunnel has, with their values.
    pub fn fields(&self) -> impl Iterator<Item = (Field, u128)> {
        let rows = FIELDS.iter().filter(|row| row.header.is_tunnel());
        let rows = rows.filter(|row| self.layers.contains(row.header.tunnel_layers()));
        rows.map(|row| (row.field, row.field.in_tunnel(self)))
    }

    /// The MPLS labels from the top, joined by `+`; `None`: there are none.
    pub fn labels(&self) -> Option<String> {
        let depth = usize::from(self.mpls_depth).min(self.mpls.len());
        let labels: Vec<String> = self.mpls[..depth].iter().map(|entry| (entry >> 12).to_string()).collect();
        (!labels.is_empty()).then(|| labels.join("+"))
    }
}

impl DeepKey {
    /// The fields with their names in the policy language: `src=192.0.2.1,protocol=udp,dst_port=53`, those of
    /// the packet inside a tunnel behind `inner.`. Values that nearly all packets have (no flags, flow label
    /// 0) are left out.
    pub fn describe(&self) -> String {
        let mut parts = packet_parts(&self.outer, false, true);
        let tunnel = &self.tunnel;
        parts.extend(tunnel.fields().map(|(field, value)| part(field, value)));
        parts.extend(tunnel.labels().map(|labels| format!("mpls={labels}")));
        if tunnel.layers.contains(TunnelLayers::INNER) {
            let has_ethernet = tunnel.layers.contains(TunnelLayers::INNER_ETHERNET);
            let inner = packet_parts(&tunnel.inner, true, has_ethernet);
            parts.extend(inner.iter().map(|part| format!("inner.{part}")));
        }
        parts.join(",")
    }
}

fn part(field: Field, value: u128) -> String {
    format!("{}={}", field.name(), field.text(value))
}

fn packet_parts(key: &FlowKey, is_inner: bool, has_ethernet: bool) -> Vec<String> {
    let is_ip = key.layers.intersects(Layers::IPV4 | Layers::IPV6);
    let is_first_fragment =
        key.layers.contains(Layers::FRAGMENT) && !key.layers.contains(Layers::LATER_FRAGMENT);
    let is_usual = |field: Field, value: u128| match field {
        Field::VlanTpid | Field::InnerVlanTpid => value == EtherType::VLAN.0.into(),
        // The IP version implies it.
        Field::EtherType => is_ip,
        Field::FlowLabel => value == 0,
        // A first fragment has "more fragments", a later one that is given by its fields has not.
        Field::IpFlags => value == u128::from(is_first_fragment),
        _ => false,
    };
    let may_have = |field: Field| !is_inner || field.row().header.is_inside_tunnels();
    let fields = key.fields(has_ethernet);
    let fields = fields.filter(|(field, value)| may_have(*field) && !is_usual(*field, *value));
    let mut parts: Vec<String> = fields.map(|(field, value)| part(field, value)).collect();
    let has = |layer| key.layers.contains(layer);
    if has(Layers::LATER_FRAGMENT) {
        parts.push("fragment=later".to_owned());
    } else if has(Layers::FRAGMENT) {
        parts.push("fragment=first".to_owned());
    }
    if has(Layers::IP_OPTIONS) {
        parts.push("ip_options=true".to_owned());
    }
    parts
}

/// A flag and its bit, in the order in which the flags are written.
pub type Flag = (&'static str, u8);

/// The flags byte of a TCP header (RFC 9293).
pub const TCP_FLAGS: [Flag; 8] = [
    ("fin", 0x01),
    ("syn", 0x02),
    ("rst", 0x04),
    ("psh", 0x08),
    ("ack", 0x10),
    ("urg", 0x20),
    ("ece", 0x40),
    ("cwr", 0x80),
];

/// The three bits of an IPv4 header as a number (RFC 791).
pub const IP_FLAGS: [Flag; 3] = [("mf", 1), ("df", 2), ("reserved", 4)];

/// The upper byte of a GRE header's first word (RFC 2784 and 2890). A routing field (0x40) is of version 0 no
/// longer.
pub const GRE_FLAGS: [Flag; 3] = [("sequence", 0x10), ("key", GRE_HAS_KEY), ("checksum", 0x80)];

/// The flags of `mask` as a policy has them: those that `value` has by name, the others behind `!`.
///
/// ```
/// assert_eq!(packet::flag_pattern(&packet::TCP_FLAGS, 0x02, 0x12), "syn,!ack");
/// ```
pub fn flag_pattern(known: &[Flag], value: u8, mask: u8) -> String {
    let asked = known.iter().filter(|(_, bit)| mask & bit != 0);
    let words =
        asked.map(|(name, bit)| if value & bit != 0 { (*name).to_owned() } else { format!("!{name}") });
    words.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::FrameBuilder;

    #[test]
    fn a_packet_is_described_by_its_rows() {
        let frame = FrameBuilder::new()
            .ipv6("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap())
            .flow_label(0xbeef)
            .udp(53, 1024)
            .build();
        let text = DeepKey::of(&frame).describe();
        assert!(text.contains("src=2001:db8::1,dst=2001:db8::2,protocol=udp"), "{text}");
        assert!(text.contains("flow_label=48879,src_port=53,dst_port=1024"), "{text}");
    }

    #[test]
    fn slots_hold_the_values() {
        for row in &FIELDS {
            let bits: u32 = row.slots.iter().map(|slot| slot.bits()).sum();
            assert!(row.slots.is_empty() || bits == row.bits, "{}", row.name);
        }
    }
}
