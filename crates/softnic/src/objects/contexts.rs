//! Contexts.

use std::os::fd::OwnedFd;

use flow_table::FlowId;

use crate::errno::{ENOMEM, Verb};
use crate::events::EventChannel;
use crate::nic::Nic;
use crate::state::{ContextState, owned};

/// A context that was opened.
pub struct OpenedContext {
    /// The slot, which the objects of the context name as their owner.
    pub slot: u32,
    /// The descriptor from which the client reads its asynchronous events.
    pub events: OwnedFd,
}

/// Opens a context.
///
/// # Errors
/// ENOMEM if the device has no more, EIO if it has failed, and the errno of socketpair(2).
pub fn open(nic: &Nic) -> Verb<OpenedContext> {
    nic.check_alive()?;
    let (events, client) = EventChannel::new()?;
    let slot = nic.control().contexts.insert(ContextState { events }).ok_or(ENOMEM)?;
    Ok(OpenedContext { slot, events: client })
}

/// Closes a context: takes it away with all that it owns, flows first.
pub fn close(nic: &Nic, owner: u32) {
    let mut flows = nic.flow_writer();
    let slots = owned(&nic.control_without_wakeup().flow_objects, |flow| flow.owner == owner);
    // Those that drop first: without the flows before them they would drop what these want.
    let (drop, others): (Vec<u32>, Vec<u32>) = slots.iter().partition(|slot| nic.may_drop(FlowId(**slot)));
    drop.iter().chain(&others).for_each(|slot| nic.withdraw_claims(FlowId(*slot)));
    flows.change(|table| {
        for slot in &slots {
            table.remove(FlowId(*slot));
        }
    });
    let mut state = nic.control();
    slots.into_iter().for_each(|slot| state.remove_flow(slot));
    state.remove_owned(owner);
}
