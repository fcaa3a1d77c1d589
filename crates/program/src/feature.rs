//! The features of flows that a device may refuse, and the errors that it refuses them with. They are part of
//! a program because each rule records why a worker has to decide it; `device-model` lists what each device
//! refuses.

use std::fmt;

use packet::Field;
use serde::{Deserialize, Serialize};

/// A feature of a flow that verbs can express and a device may refuse. Fields first, then what flows do.
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
    /// Specs of the packet inside a tunnel.
    Inner,
    /// An ESP spec with an empty mask, which matches the presence of the header.
    AnyEsp,
    /// VXLAN with any values.
    AnyVxlan,
    /// GRE with any values.
    AnyGre,
    /// MPLS with any values.
    AnyMpls,
    /// TCP or UDP with any values.
    AnyPorts,
    /// A flow that matches packets (NORMAL). A device that refuses it cannot steer.
    Normal,
    /// A flow tag.
    Tag,
    /// A flow that drops.
    Drop,
    /// A counter on a flow.
    Count,
    /// A flow that copies packets, which then meet later flows (DONT_TRAP).
    Copy,
    /// A flow that copies all packets of a port (SNIFFER).
    Sniffer,
    /// A flow on sent packets (EGRESS).
    Egress,
    /// Hashing fields of the packet inside a tunnel.
    HashInner,
    /// Hashing the ESP security parameters index.
    HashSpi,
}

/// The error that a device refuses a feature with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Errno {
    /// Invalid argument.
    Einval,
    /// Out of memory, or of a resource.
    Enomem,
    /// No space.
    Enospc,
    /// A flow with the same match exists.
    Eexist,
    /// Not supported.
    Eopnotsupp,
    /// Not implemented.
    Enosys,
    /// In use.
    Ebusy,
    /// The device failed.
    Eio,
    /// Protocol error: the device refused what its driver asked for.
    Eproto,
    /// The firmware refused what its driver asked for.
    Eremoteio,
    /// No error: the device ignores the feature.
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
            Self::Enosys => "ENOSYS",
            Self::Ebusy => "EBUSY",
            Self::Eio => "EIO",
            Self::Eproto => "EPROTO",
            Self::Eremoteio => "EREMOTEIO",
            Self::Silent => "silently ignored",
        })
    }
}

impl Feature {
    /// All of them.
    pub const ALL: [Self; 31] = [
        Self::SrcMac,
        Self::EtherType,
        Self::Vlan,
        Self::Ipv6,
        Self::Protocol,
        Self::Tos,
        Self::Ttl,
        Self::HopLimit,
        Self::IpFlags,
        Self::FlowLabel,
        Self::Esp,
        Self::EspSeq,
        Self::Vxlan,
        Self::Gre,
        Self::GreFlags,
        Self::Mpls,
        Self::Inner,
        Self::AnyEsp,
        Self::AnyVxlan,
        Self::AnyGre,
        Self::AnyMpls,
        Self::AnyPorts,
        Self::Normal,
        Self::Tag,
        Self::Drop,
        Self::Count,
        Self::Copy,
        Self::Sniffer,
        Self::Egress,
        Self::HashInner,
        Self::HashSpi,
    ];

    /// The feature that a condition on a field of an IP spec needs; not for the protocol, which other specs
    /// imply.
    #[must_use]
    pub const fn of_ip_field(field: Field, is_ipv6: bool) -> Option<Self> {
        match field {
            Field::Tos => Some(Self::Tos),
            Field::Ttl => Some(if is_ipv6 { Self::HopLimit } else { Self::Ttl }),
            Field::IpFlags => Some(Self::IpFlags),
            Field::FlowLabel => Some(Self::FlowLabel),
            _ => None,
        }
    }

    /// A description for messages.
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
            Self::AnyMpls => "an MPLS label of any value",
            Self::AnyPorts => "a TCP or UDP header of any ports",
            Self::Normal => "flows that match packets (NORMAL)",
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
