//! What the XDP program of a network interface does with a received packet, computed from the flows alone. It
//! shares no code with the decision trees of the `xdp` crate, so that tests can compare the two.

use std::fmt;

use flow_spec::SpecKind;
use packet::{DeepKey, IpProtocol};
use serde::Serialize;

use crate::program::{Flow, FlowAction, FlowKind, Program};

/// The verdict of the XDP program on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum XdpVerdict {
    /// The host receives the packet.
    Pass,
    /// The program drops and counts it.
    Drop,
    /// The engine of the port gets it, and decides by the flows. What no flow takes it gives back to the
    /// host.
    Redirect,
}

/// The name as in JSON, such as `redirect`.
impl fmt::Display for XdpVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pass => "pass",
            Self::Drop => "drop",
            Self::Redirect => "redirect",
        })
    }
}

/// Whether the outer headers of a packet match the flow; the program reads nothing else. Of the matches of
/// tunnels only that of GRE constrains an outer header: the IP protocol.
fn claims(flow: &Flow, key: &DeepKey) -> bool {
    let mut outer = flow.specs.iter().take(flow.specs.inner_from());
    flow.kind != FlowKind::Egress
        && outer.all(|spec| match spec.kind() {
            SpecKind::Gre => IpProtocol(key.outer.protocol) == IpProtocol::GRE,
            kind => kind.is_tunnel() || spec.matches(&key.outer),
        })
}

impl Flow {
    /// Returns whether the XDP program may drop what the flow claims: the outer headers are all that it asks
    /// for.
    #[must_use]
    pub fn xdp_may_drop(&self) -> bool {
        self.kind == FlowKind::Normal && self.action == FlowAction::Drop && !self.is_of_tunnel()
    }
}

impl Program {
    /// The XDP program's verdict on a received packet, if the program was installed on a device without
    /// another one, the device honours the priorities of all flows, and the kernel and the trees have room
    /// for all flows and counters. Otherwise more packets may be redirected, and those of rules with
    /// conditions on tunnels may be in another order with those of rules that drop.
    #[must_use]
    pub fn xdp_verdict(&self, key: &DeepKey) -> XdpVerdict {
        // A sniffer gets its copy whatever comes first.
        let precedence = |flow: &Flow| match flow.kind {
            FlowKind::Sniffer => None,
            FlowKind::Normal | FlowKind::Copy | FlowKind::Egress => Some(flow.priority),
        };
        let claiming: Vec<&Flow> = self.flows.iter().filter(|flow| claims(flow, key)).collect();
        let Some(first) = claiming.iter().map(|flow| precedence(flow)).min() else { return XdpVerdict::Pass };
        let mut first = claiming.into_iter().filter(|flow| precedence(flow) == first);
        if first.all(Flow::xdp_may_drop) { XdpVerdict::Drop } else { XdpVerdict::Redirect }
    }
}
