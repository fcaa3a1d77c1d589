//! The claims of the flows of a port, for a wire that receives only claimed frames ([`wire::Wire::claims`]).
//!
//! A flow claims the frames that its matcher matches; its conditions on tunnels are left to the flow table,
//! so more may be claimed than the flow gets. A claim is made after the flow is in the flow table and
//! withdrawn before it leaves it: a frame that the wire takes finds its flow, but for those on their way when
//! the flow is destroyed. Flows of sent frames claim nothing.
//!
//! The lock is taken with that of `flows` held, and no other while it is held. Engines never take it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use flow_table::{FlowId, FlowRule};
use xdp::{Claim, ClaimReport, ClaimTable, XdpError};

/// The claims of a port; nothing for wires that receive all frames.
#[derive(Debug, Default)]
pub(crate) struct FlowClaims(Option<Mutex<ClaimedFlows>>);

#[derive(Debug)]
struct ClaimedFlows {
    table: ClaimTable,
    of_flow: HashMap<FlowId, Claim>,
}

impl FlowClaims {
    /// No flow claims anything yet.
    pub(crate) fn new(table: Option<ClaimTable>) -> Self {
        Self(table.map(|table| Mutex::new(ClaimedFlows { table, of_flow: HashMap::new() })))
    }

    /// Claims the frames of a flow, if it is one of received frames. When this has returned, the wire leaves
    /// none of them to the host.
    ///
    /// # Errors
    /// The wire takes no more claims.
    pub(crate) fn claim(&self, rule: &FlowRule) -> Result<(), XdpError> {
        let Some(mut flows) = self.lock().filter(|_| !rule.egress) else { return Ok(()) };
        let claim = Claim::new(*rule.matcher.value().words(), *rule.matcher.mask().words());
        flows.table.add(&claim)?;
        flows.of_flow.insert(rule.id, claim);
        Ok(())
    }

    /// Withdraws the claim of a flow, if it has one. Of frames that arrive when this has returned, the wire
    /// takes none for this flow.
    pub(crate) fn withdraw(&self, flow: FlowId) {
        let Some(mut flows) = self.lock() else { return };
        if let Some(claim) = flows.of_flow.remove(&flow) {
            flows.table.remove(&claim);
        }
    }

    /// How exactly the wire represents the claims; `None` for wires that receive all frames.
    pub(crate) fn report(&self) -> Option<ClaimReport> {
        Some(self.lock()?.table.report())
    }

    fn lock(&self) -> Option<MutexGuard<'_, ClaimedFlows>> {
        self.0.as_ref().map(|flows| flows.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
