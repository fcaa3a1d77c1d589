//! What a flow can ask of a device, and how a device refuses it. Part of a program because each rule records why a
//! worker has to finish it; `device-model` lists per device what is refused.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Something that verbs can say and a device may refuse. Fields first, then what flows do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Feature {
    /// The source address of an Ethernet spec.
    SrcMac,
    /// The type of an Ethernet spec.
    EtherType,
    /// The control information of the outer tag.
    Vlan,
    /// An IPv6 spec.
    Ipv6,
    /// The protocol of an IP spec.
    Protocol,
    /// The type of service of an IP spec, the traffic class of IPv6.
    Tos,
    /// The time to live of IPv4.
    Ttl,
    /// The hop limit of IPv6.
    HopLimit,
    /// The flag bits of IPv4.
    IpFlags,
    /// The flow label of IPv6.
    FlowLabel,
    /// An ESP spec.
    Esp,
    /// The sequence number of an ESP spec.
    EspSeq,
    /// A VXLAN spec.
    Vxlan,
    /// A GRE spec.
    Gre,
    /// The C, K and S bits of a GRE spec.
    GreFlags,
    /// A MPLS spec.
    Mpls,
    /// Specs about the packet inside a tunnel.
    Inner,
    /// An ESP spec of no field: what is asked for is the header alone.
    AnyEsp,
    /// The same of VXLAN.
    AnyVxlan,
    /// The same of GRE.
    AnyGre,
    /// The same of MPLS.
    AnyMpls,
    /// The same of TCP and UDP.
    AnyPorts,
    /// A flow tag.
    Tag,
    /// A flow that drops.
    Drop,
    /// A counter on a flow.
    Count,
    /// A flow that copies and lets packets go on (DONT_TRAP).
    Copy,
    /// A flow that copies all of a port (SNIFFER).
    Sniffer,
    /// A flow on what is sent (EGRESS).
    Egress,
    /// Hashing the packet inside a tunnel.
    HashInner,
    /// Hashing the ESP index.
    HashSpi,
}

/// How a device refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Errno {
    /// Invalid argument.
    Einval,
    /// Out of memory, or of a resource.
    Enomem,
    /// No space.
    Enospc,
    /// The same match is there already.
    Eexist,
    /// Not supported.
    Eopnotsupp,
    /// Nothing is said: it is ignored.
    Silent,
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Einval => "EINVAL",
            Self::Enomem => "ENOMEM",
            Self::Enospc => "ENOSPC",
            Self::Eexist => "EEXIST",
            Self::Eopnotsupp => "EOPNOTSUPP",
            Self::Silent => "silently ignored",
        })
    }
}

impl Feature {
    /// In an operator's words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SrcMac => "source MAC addresses",
            Self::EtherType => "ethertypes",
            Self::Vlan => "VLAN tags",
            Self::Ipv6 => "IPv6 headers",
            Self::Protocol => "IP protocols",
            Self::Tos => "types of service",
            Self::Ttl => "IPv4 times to live",
            Self::HopLimit => "IPv6 hop limits",
            Self::IpFlags => "IPv4 flags",
            Self::FlowLabel => "IPv6 flow labels",
            Self::Esp => "ESP headers",
            Self::EspSeq => "ESP sequence numbers",
            Self::Vxlan => "VXLAN headers",
            Self::Gre => "GRE headers",
            Self::GreFlags => "GRE flags",
            Self::Mpls => "MPLS labels",
            Self::Inner => "packets inside tunnels",
            Self::AnyEsp => "an ESP header of any index",
            Self::AnyVxlan => "a VXLAN header of any network",
            Self::AnyGre => "a GRE header of any protocol and key",
            Self::AnyMpls => "a label of any value",
            Self::AnyPorts => "a TCP or UDP header of any ports",
            Self::Tag => "flow tags",
            Self::Drop => "dropping",
            Self::Count => "counting",
            Self::Copy => "copying (DONT_TRAP)",
            Self::Sniffer => "sniffing (SNIFFER)",
            Self::Egress => "rules on sent packets (EGRESS)",
            Self::HashInner => "hashing inner packets",
            Self::HashSpi => "hashing the ESP index",
        }
    }
}
