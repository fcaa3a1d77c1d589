//! The part of a personality's table that is about flows: what `provider::flow_attr` asks while it reads a block.

use ibverbs_sys::ibv_flow_spec_type;

use crate::flow::TableRules;
use crate::provider::answer::Errno;

use super::Known;

/// Flows.
pub(crate) struct FlowRules {
    /// Whether the calling thread needs CAP_NET_RAW, else EPERM.
    pub(crate) needs_net_raw: bool,
    /// What an unknown `ibv_flow_attr.type` is answered.
    pub(crate) kind_refusal: Errno,
    /// The last priority there is, and what a later one is answered.
    pub(crate) max_priority: u16,
    pub(crate) priority_refusal: Errno,
    /// `ibv_flow_attr.flags`, of those that the verbs API knows.
    pub(crate) flags: Known,
    /// What is answered to DONT_TRAP with SNIFFER, if it is refused: it would change nothing.
    pub(crate) dont_trap_sniffer_refusal: Option<Errno>,
    /// What is answered to DONT_TRAP with EGRESS, if it is refused.
    pub(crate) dont_trap_egress_refusal: Option<Errno>,
    /// Whether DONT_TRAP is only for priority 0 and at most one Ethernet filter, of the multicast bit.
    pub(crate) dont_trap_is_promiscuous: bool,
    /// Whether NORMAL flows for multicast only come after all others of their kind, whatever their priority.
    pub(crate) multicast_comes_last: bool,
    /// Whether the specs of defaults and sniffers are checked and then forgotten. Otherwise filters on them are EINVAL and
    /// actions work.
    pub(crate) forgets_specs_of_defaults: bool,
    /// Whether defaults of one kind all have the same priority, whatever they say.
    pub(crate) forgets_priority_of_defaults: bool,
    /// Whether sniffers also get what is sent.
    pub(crate) sniffs_sent: bool,
    pub(crate) filters: FilterRules,
    pub(crate) actions: ActionRules,
    pub(crate) table: TableRules,
}

/// What can be matched.
pub(crate) struct FilterRules {
    /// The filters that there are, and what another one is answered.
    pub(crate) types: &'static [ibv_flow_spec_type],
    pub(crate) type_refusal: Errno,
    /// Whether they can be about the packet inside a tunnel.
    pub(crate) inner: bool,
    /// Fields whose mask must be zero, and what is answered if it is not.
    pub(crate) fields: FieldRules,
    pub(crate) field_refusal: Errno,
    /// Whether a value may have no bits outside its mask, EINVAL.
    pub(crate) values_within_masks: bool,
    /// Whether the source address and the type of an Ethernet filter are forgotten.
    pub(crate) ethernet_is_destination: bool,
    /// Whether an EtherType beside an IP filter must be matched whole and be that of the filter, EINVAL.
    pub(crate) whole_ether_type_beside_ip: bool,
    /// Whether a protocol beside a filter that implies one must be matched whole, EINVAL.
    pub(crate) whole_protocol_beside_transport: bool,
    /// Whether a filter whose masks are zero asks for no header: a TCP, UDP or GRE filter only for the protocol, which the
    /// IP header names, and an ESP, VXLAN, MPLS or inner Ethernet filter for nothing.
    pub(crate) empty_masks_ask_for_no_header: bool,
    /// How many labels of a stack can be matched, EOPNOTSUPP.
    pub(crate) max_labels: usize,
}

/// Fields that a device may not be able to match.
#[derive(Clone, Copy)]
pub(crate) struct FieldRules {
    pub(crate) ipv4_ttl: bool,
    pub(crate) ipv4_flags: bool,
    pub(crate) ipv4_protocol_and_tos: bool,
    pub(crate) ipv6_hop_limit: bool,
    pub(crate) esp_sequence: bool,
    pub(crate) gre_flags: bool,
}

impl FieldRules {
    pub(super) const ALL: Self = Self {
        ipv4_ttl: true,
        ipv4_flags: true,
        ipv4_protocol_and_tos: true,
        ipv6_hop_limit: true,
        esp_sequence: true,
        gre_flags: true,
    };
}

/// What can be done with what matches.
pub(crate) struct ActionRules {
    /// The actions that there are, and what another one is answered.
    pub(crate) types: &'static [ibv_flow_spec_type],
    pub(crate) refusal: Errno,
    /// The last tag there is, EINVAL.
    pub(crate) max_tag: u32,
    /// Whether counters can be read while no flow is bound to them, else EINVAL.
    pub(crate) reads_idle_counters: bool,
}
