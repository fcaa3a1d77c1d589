//! The flow of a packet, and its text: the beginning of the short notation of packets.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::flow_key::{FlowKey, Layers};
use crate::mac::MacAddr;
use crate::numbers::{EtherType, IpProtocol};

/// A flow: the packets with the same addresses, protocol and ports. Tags and tunnels are not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PacketFlow {
    /// Packets of IP.
    Ip {
        /// The source address.
        src: IpAddr,
        /// The destination address.
        dst: IpAddr,
        /// The protocol, or the first next header of IPv6.
        protocol: u8,
        /// Source and destination, of TCP, UDP and SCTP only. Later fragments have none.
        ports: Option<(u16, u16)>,
    },
    /// All other packets.
    Ethernet {
        /// The source address.
        src: MacAddr,
        /// The destination address.
        dst: MacAddr,
        /// The EtherType behind the tags.
        ether_type: u16,
    },
}

impl PacketFlow {
    /// The flow of a packet.
    #[must_use]
    pub fn of(key: &FlowKey) -> Self {
        let (Some(src), Some(dst)) = (key.src_addr(), key.dst_addr()) else {
            return Self::Ethernet { src: key.src_mac, dst: key.dst_mac, ether_type: key.ether_type };
        };
        let has_ports = key.layers.intersects(Layers::TCP | Layers::UDP | Layers::SCTP);
        let ports = has_ports.then_some((key.src_port, key.dst_port));
        Self::Ip { src, dst, protocol: key.protocol, ports }
    }
}

/// `192.0.2.1:53 > 198.51.100.7:4242 udp`, `192.0.2.1 > 198.51.100.7 icmp`
impl fmt::Display for PacketFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Ip { src, dst, protocol, ports: None } => {
                write!(f, "{src} > {dst} {}", IpProtocol(protocol))
            }
            Self::Ip { src, dst, protocol, ports: Some((src_port, dst_port)) } => {
                let [from, to] = [(src, src_port), (dst, dst_port)].map(SocketAddr::from);
                write!(f, "{from} > {to} {}", IpProtocol(protocol))
            }
            Self::Ethernet { src, dst, ether_type } => {
                write!(f, "{src} > {dst} ethertype {}", EtherType(ether_type))
            }
        }
    }
}
