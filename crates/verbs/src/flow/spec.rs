//! What a flow can say: where it stands, what it matches and what it does.
//!
//! Plain data in host byte order, written by whoever installs a program; [`super::block`] turns it into C. Nothing
//! here judges it: a device that cannot do it says so when the flow is created.

use std::sync::Arc;

use ibverbs_sys::{self as sys, ibv_flow_attr_type};

use super::action::FlowAction;
use crate::{Counters, FlowTag, PortNumber};

/// Most specs of one flow, actions included: the count is a byte. The kernel takes ten (uverbs_cmd.c).
pub const MAX_SPECS: usize = u8::MAX as usize;

/// What kind of flow it is (`ibv_flow_attr_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowKind {
    /// Packets that match the specs.
    Normal,
    /// Packets that no normal flow took.
    AllDefault,
    /// Multicast packets that no normal flow took.
    MulticastDefault,
    /// A copy of every packet.
    Sniffer,
}

impl FlowKind {
    pub(super) fn raw(self) -> ibv_flow_attr_type {
        match self {
            Self::Normal => sys::IBV_FLOW_ATTR_NORMAL,
            Self::AllDefault => sys::IBV_FLOW_ATTR_ALL_DEFAULT,
            Self::MulticastDefault => sys::IBV_FLOW_ATTR_MC_DEFAULT,
            Self::Sniffer => sys::IBV_FLOW_ATTR_SNIFFER,
        }
    }
}

/// Fields of an Ethernet header, as values or as a mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub struct EthernetMatch {
    pub dst_mac: [u8; 6],
    pub src_mac: [u8; 6],
    /// After the VLAN tags.
    pub ether_type: u16,
    /// Tag control information: priority 3 bits, DEI 1, VLAN id 12. Any mask asks for an 802.1Q tag.
    pub vlan_tag: u16,
}

/// The addresses of an IPv4 header, as values or as masks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub struct Ipv4Match {
    pub src: u32,
    pub dst: u32,
}

/// Fields of an IPv4 header, as values or as a mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub struct Ipv4ExtMatch {
    pub src: u32,
    pub dst: u32,
    pub proto: u8,
    pub tos: u8,
    pub ttl: u8,
    /// Don't fragment 2, more fragments 4: the numbers of `enum ib_ipv4_flags` (rdma/ib_verbs.h of the kernel; the
    /// manual is silent), which are not those of the header, and which have none for its reserved bit.
    pub flags: u8,
}

/// Fields of an IPv6 header, as values or as a mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub struct Ipv6Match {
    pub src: [u8; 16],
    pub dst: [u8; 16],
    /// 20 bits.
    pub flow_label: u32,
    /// The first next header.
    pub next_hdr: u8,
    pub traffic_class: u8,
    pub hop_limit: u8,
}

/// TCP or UDP ports, as values or as masks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub struct PortMatch {
    pub src_port: u16,
    pub dst_port: u16,
}

/// Fields of an ESP header (RFC 4303), as values or as a mask. IP protocol 50 is for the flow to ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EspMatch {
    /// Security parameter index.
    pub spi: u32,
    /// Sequence number. mlx5 cannot match it (drivers/infiniband/hw/mlx5/fs.c).
    pub seq: u32,
}

/// The network identifier of a VXLAN header (RFC 7348), as a value or as a mask. UDP port 4789 is for the flow to ask
/// for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VxlanMatch {
    /// 24 bits; the kernel refuses more with EINVAL (uverbs_cmd.c).
    pub vni: u32,
}

/// Fields of a GRE header (RFC 2784, RFC 2890), as values or as a mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct GreMatch {
    /// The first 16 bits: checksum, key and sequence flags, reserved bits, version.
    pub c_ks_res0_ver: u16,
    /// EtherType of the payload.
    pub protocol: u16,
    /// The key, where the header has one.
    pub key: u32,
}

/// The top entry of an MPLS label stack (RFC 3032), as a value or as a mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MplsMatch {
    /// The whole entry: label 20 bits, traffic class 3, bottom of stack 1, time to live 8.
    pub label: u32,
}

/// Something a packet must have, or something that is done with it. A bit counts where the mask has it; where the mask has it
/// not, the value must be 0 on mlx5 (EINVAL; drivers/net/ethernet/mellanox/mlx5/core/fs_core.c, `check_valid_spec`).
#[derive(Clone, Debug)]
#[allow(missing_docs)] // of those that are named as in verbs.h; all of them are in ibv_create_flow(3)
#[non_exhaustive]
pub enum FlowSpec {
    Ethernet {
        value: EthernetMatch,
        mask: EthernetMatch,
    },
    Ipv4 {
        value: Ipv4Match,
        mask: Ipv4Match,
    },
    Ipv4Ext {
        value: Ipv4ExtMatch,
        mask: Ipv4ExtMatch,
    },
    Ipv6 {
        value: Ipv6Match,
        mask: Ipv6Match,
    },
    Tcp {
        value: PortMatch,
        mask: PortMatch,
    },
    Udp {
        value: PortMatch,
        mask: PortMatch,
    },
    /// An ESP header.
    Esp {
        value: EspMatch,
        mask: EspMatch,
    },
    /// A VXLAN header; specs of the encapsulated packet are inner ones.
    VxlanTunnel {
        value: VxlanMatch,
        mask: VxlanMatch,
    },
    /// A GRE header; specs of the encapsulated packet are inner ones.
    Gre {
        value: GreMatch,
        mask: GreMatch,
    },
    /// An MPLS label, at its place among the specs; after it come inner ones.
    Mpls {
        value: MplsMatch,
        mask: MplsMatch,
    },
    /// Completions carry this tag.
    Tag(FlowTag),
    /// Matching packets go nowhere.
    Drop,
    /// Matching packets are counted there.
    Count(Arc<Counters>),
    /// Matching packets are treated like that.
    Handle(Arc<FlowAction>),
}

impl FlowSpec {
    /// Something that is done, not something a packet must have.
    pub fn is_action(&self) -> bool {
        matches!(self, Self::Tag(_) | Self::Drop | Self::Count(_) | Self::Handle(_))
    }
}

/// A spec and the packet it is about.
#[derive(Clone, Debug)]
pub struct PlacedSpec {
    /// What is asked for or done.
    pub spec: FlowSpec,
    /// About the encapsulated packet (`IBV_FLOW_SPEC_INNER`). Actions have no place; for them it is false.
    pub inner: bool,
}

/// A flow to be.
#[derive(Clone, Debug)]
#[must_use]
pub struct FlowAttr {
    pub(super) kind: FlowKind,
    pub(super) port: PortNumber,
    pub(super) priority: u16,
    pub(super) dont_trap: bool,
    pub(super) egress: bool,
    pub(super) specs: Vec<PlacedSpec>,
}

impl FlowAttr {
    /// A flow on `port` at the highest priority, 0, without specs.
    pub fn new(kind: FlowKind, port: PortNumber) -> Self {
        Self { kind, port, priority: 0, dont_trap: false, egress: false, specs: Vec::new() }
    }

    /// Smaller goes first.
    pub fn priority(mut self, priority: u16) -> Self {
        self.priority = priority;
        self
    }

    /// Packets go on to further flows as well (`IBV_FLOW_ATTR_FLAGS_DONT_TRAP`). Not for the kinds that take what is
    /// left: EINVAL.
    pub fn dont_trap(mut self, on: bool) -> Self {
        self.dont_trap = on;
        self
    }

    /// The flow is about packets that are sent (`IBV_FLOW_ATTR_FLAGS_EGRESS`): its target only says on which device. Not
    /// for the kinds that take what is left: EINVAL.
    pub fn egress(mut self, on: bool) -> Self {
        self.egress = on;
        self
    }

    /// Adds an action, or a spec of the outermost packet. Matches go from the outermost header inwards.
    pub fn spec(mut self, spec: FlowSpec) -> Self {
        self.specs.push(PlacedSpec { spec, inner: false });
        self
    }

    /// Adds a spec of the encapsulated packet, after those of the outer one. An action is the same here as in
    /// [`FlowAttr::spec`]. Tunnel headers have no inner form: the kernel answers EINVAL (uverbs_cmd.c).
    pub fn inner(mut self, spec: FlowSpec) -> Self {
        let inner = !spec.is_action();
        self.specs.push(PlacedSpec { spec, inner });
        self
    }

    /// The port it is for.
    pub fn port(&self) -> PortNumber {
        self.port
    }

    /// The priority it is for.
    pub fn priority_level(&self) -> u16 {
        self.priority
    }

    /// Its specs, in the order they were added.
    pub fn specs(&self) -> &[PlacedSpec] {
        &self.specs
    }

    pub(super) fn counters(&self) -> impl Iterator<Item = &Arc<Counters>> {
        self.specs.iter().filter_map(|placed| match &placed.spec {
            FlowSpec::Count(counters) => Some(counters),
            _ => None,
        })
    }

    pub(super) fn actions(&self) -> impl Iterator<Item = &Arc<FlowAction>> {
        self.specs.iter().filter_map(|placed| match &placed.spec {
            FlowSpec::Handle(action) => Some(action),
            _ => None,
        })
    }
}
