//! Contexts.

use flow_table::FlowId;

use crate::nic::Nic;
use crate::state::owned;

/// Takes away a context and all that it owns, flows first.
pub(crate) fn remove_owned(nic: &Nic, owner: u32) {
    let mut flows = nic.flow_writer();
    let slots = owned(&nic.control_without_wakeup().flow_objects, |flow| flow.owner == owner);
    flows.change(|table| {
        for slot in &slots {
            table.remove(FlowId(*slot));
        }
    });
    let mut state = nic.control();
    slots.into_iter().for_each(|slot| state.remove_flow(slot));
    state.remove_owned(owner);
}
