//! EtherTypes and IP protocol numbers: the names that operators write and read.
//!
//! Policy and the generator read them, metrics and `explain` print them. They are open sets: any number is a
//! value.

use std::fmt;
use std::str::FromStr;

use crate::PacketTextError;

/// A 16-bit EtherType (IANA "IEEE 802 Numbers"); values up to 1500 are 802.3 lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// Internet Protocol version 4.
    pub const IPV4: Self = Self(0x0800);
    /// Address Resolution Protocol.
    pub const ARP: Self = Self(0x0806);
    /// 802.1Q customer tag.
    pub const VLAN: Self = Self(0x8100);
    /// Internet Protocol version 6.
    pub const IPV6: Self = Self(0x86dd);
    /// Ethernet flow control.
    pub const FLOW_CONTROL: Self = Self(0x8808);
    /// Slow protocols (LACP, OAM).
    pub const SLOW: Self = Self(0x8809);
    /// MPLS unicast.
    pub const MPLS: Self = Self(0x8847);
    /// MPLS with an upstream-assigned label.
    pub const MPLS_MULTICAST: Self = Self(0x8848);
    /// PPPoE discovery.
    pub const PPPOE_DISCOVERY: Self = Self(0x8863);
    /// PPPoE session.
    pub const PPPOE_SESSION: Self = Self(0x8864);
    /// Port authentication (802.1X).
    pub const EAPOL: Self = Self(0x888e);
    /// 802.1ad service tag.
    pub const SVLAN: Self = Self(0x88a8);
    /// Link Layer Discovery Protocol.
    pub const LLDP: Self = Self(0x88cc);
    /// MACsec.
    pub const MACSEC: Self = Self(0x88e5);
    /// Precision Time Protocol over Ethernet.
    pub const PTP: Self = Self(0x88f7);
    /// RDMA over Converged Ethernet version 1.
    pub const ROCE: Self = Self(0x8915);
    /// The QinQ tag used before 802.1ad gave it a number.
    pub const QINQ: Self = Self(0x9100);

    /// Whether [`crate::parse`] peels a tag that starts with this value.
    pub const fn is_vlan_tag(self) -> bool {
        matches!(self, Self::VLAN | Self::SVLAN | Self::QINQ)
    }

    /// The name used in policies and metrics, if it has one.
    pub fn name(self) -> Option<&'static str> {
        ETHER_TYPES.iter().find(|(_, number)| *number == self).map(|(name, _)| *name)
    }
}

const ETHER_TYPES: &[(&str, EtherType)] = &[
    ("ipv4", EtherType::IPV4),
    ("arp", EtherType::ARP),
    ("vlan", EtherType::VLAN),
    ("ipv6", EtherType::IPV6),
    ("flow_control", EtherType::FLOW_CONTROL),
    ("slow", EtherType::SLOW),
    ("mpls", EtherType::MPLS),
    ("mpls_multicast", EtherType::MPLS_MULTICAST),
    ("pppoe_discovery", EtherType::PPPOE_DISCOVERY),
    ("pppoe_session", EtherType::PPPOE_SESSION),
    ("eapol", EtherType::EAPOL),
    ("svlan", EtherType::SVLAN),
    ("lldp", EtherType::LLDP),
    ("macsec", EtherType::MACSEC),
    ("ptp", EtherType::PTP),
    ("roce", EtherType::ROCE),
    ("qinq", EtherType::QINQ),
];

impl fmt::Display for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => f.pad(&format!("0x{:04x}", self.0)),
        }
    }
}

impl FromStr for EtherType {
    type Err = PacketTextError;

    /// Reads a name (any case), a decimal number, or a hexadecimal number after `0x`.
    fn from_str(text: &str) -> Result<Self, PacketTextError> {
        named(ETHER_TYPES, text)
            .or_else(|| number(text).and_then(|n| u16::try_from(n).ok()).map(Self))
            .ok_or_else(|| PacketTextError::EtherType { text: text.to_owned() })
    }
}

/// An 8-bit IP protocol or IPv6 next header (IANA "Protocol Numbers").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpProtocol(pub u8);

impl IpProtocol {
    /// The IPv6 extension headers that another header may follow, as in Linux (`ipv6_ext_hdr`).
    pub const EXTENSION_HEADERS: [Self; 5] =
        [Self::HOP_BY_HOP, Self::ROUTING, Self::FRAGMENT, Self::AH, Self::DESTINATION_OPTIONS];

    /// Whether it is one of [`EXTENSION_HEADERS`](Self::EXTENSION_HEADERS).
    #[inline]
    pub const fn is_extension_header(self) -> bool {
        let mut place = 0;
        while place < Self::EXTENSION_HEADERS.len() {
            if Self::EXTENSION_HEADERS[place].0 == self.0 {
                return true;
            }
            place += 1;
        }
        false
    }

    /// IPv6 hop-by-hop options.
    pub const HOP_BY_HOP: Self = Self(0);
    /// ICMP for IPv4.
    pub const ICMP: Self = Self(1);
    /// Internet Group Management Protocol.
    pub const IGMP: Self = Self(2);
    /// IPv4 inside IP.
    pub const IPV4: Self = Self(4);
    /// Transmission Control Protocol.
    pub const TCP: Self = Self(6);
    /// User Datagram Protocol.
    pub const UDP: Self = Self(17);
    /// IPv6 inside IP.
    pub const IPV6: Self = Self(41);
    /// IPv6 routing header.
    pub const ROUTING: Self = Self(43);
    /// IPv6 fragment header.
    pub const FRAGMENT: Self = Self(44);
    /// Generic Routing Encapsulation.
    pub const GRE: Self = Self(47);
    /// Encapsulating Security Payload.
    pub const ESP: Self = Self(50);
    /// Authentication Header.
    pub const AH: Self = Self(51);
    /// ICMP for IPv6.
    pub const ICMPV6: Self = Self(58);
    /// IPv6 without a next header.
    pub const NO_NEXT_HEADER: Self = Self(59);
    /// IPv6 destination options.
    pub const DESTINATION_OPTIONS: Self = Self(60);
    /// Open Shortest Path First.
    pub const OSPF: Self = Self(89);
    /// Virtual Router Redundancy Protocol.
    pub const VRRP: Self = Self(112);
    /// Stream Control Transmission Protocol.
    pub const SCTP: Self = Self(132);

    /// The name used in policies and metrics, if it has one.
    pub fn name(self) -> Option<&'static str> {
        IP_PROTOCOLS.iter().find(|(_, number)| *number == self).map(|(name, _)| *name)
    }
}

const IP_PROTOCOLS: &[(&str, IpProtocol)] = &[
    ("hop_by_hop", IpProtocol::HOP_BY_HOP),
    ("icmp", IpProtocol::ICMP),
    ("igmp", IpProtocol::IGMP),
    ("ipv4", IpProtocol::IPV4),
    ("tcp", IpProtocol::TCP),
    ("udp", IpProtocol::UDP),
    ("ipv6", IpProtocol::IPV6),
    ("routing", IpProtocol::ROUTING),
    ("fragment", IpProtocol::FRAGMENT),
    ("gre", IpProtocol::GRE),
    ("esp", IpProtocol::ESP),
    ("ah", IpProtocol::AH),
    ("icmpv6", IpProtocol::ICMPV6),
    ("no_next_header", IpProtocol::NO_NEXT_HEADER),
    ("destination_options", IpProtocol::DESTINATION_OPTIONS),
    ("ospf", IpProtocol::OSPF),
    ("vrrp", IpProtocol::VRRP),
    ("sctp", IpProtocol::SCTP),
];

impl fmt::Display for IpProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => fmt::Display::fmt(&self.0, f),
        }
    }
}

impl FromStr for IpProtocol {
    type Err = PacketTextError;

    /// Reads a name (any case), a decimal number, or a hexadecimal number after `0x`.
    fn from_str(text: &str) -> Result<Self, PacketTextError> {
        named(IP_PROTOCOLS, text)
            .or_else(|| number(text).and_then(|n| u8::try_from(n).ok()).map(Self))
            .ok_or_else(|| PacketTextError::IpProtocol { text: text.to_owned() })
    }
}

fn named<T: Copy>(names: &[(&str, T)], text: &str) -> Option<T> {
    names.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, value)| *value)
}

/// Unsigned digits only: `u32::from_str_radix` alone would also take a plus sign.
fn number(text: &str) -> Option<u32> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    if digits.starts_with('+') {
        return None;
    }
    u32::from_str_radix(digits, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back_and_is_unique() {
        for (name, value) in ETHER_TYPES {
            assert_eq!(name.parse(), Ok(*value));
            assert_eq!(value.to_string(), *name);
        }
        for (name, value) in IP_PROTOCOLS {
            assert_eq!(name.to_uppercase().parse(), Ok(*value));
            assert_eq!(value.to_string(), *name);
        }
    }

    #[test]
    fn numbers_stand_where_there_is_no_name() {
        assert_eq!(EtherType(0x1234).to_string(), "0x1234");
        assert_eq!("0x1234".parse(), Ok(EtherType(0x1234)));
        assert_eq!("2048".parse(), Ok(EtherType::IPV4));
        assert_eq!(IpProtocol(200).to_string(), "200");
        assert_eq!("200".parse(), Ok(IpProtocol(200)));
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused() {
        for text in ["", "65536", "0x10000", "+5", "0x+5", "-1", "ip v4", "4294967296"] {
            assert_eq!(text.parse::<EtherType>(), Err(PacketTextError::EtherType { text: text.to_owned() }));
        }
        for text in ["", "256", "0x100", "+6", "-1", "tcpp"] {
            assert_eq!(
                text.parse::<IpProtocol>(),
                Err(PacketTextError::IpProtocol { text: text.to_owned() })
            );
        }
    }

    #[test]
    fn tags_are_told_from_types() {
        assert!(
            EtherType::VLAN.is_vlan_tag() && EtherType::SVLAN.is_vlan_tag() && EtherType::QINQ.is_vlan_tag()
        );
        assert!(!EtherType::IPV4.is_vlan_tag());
    }
}
