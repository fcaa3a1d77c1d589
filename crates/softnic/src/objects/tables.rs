//! Indirection tables: a power of two of work queues. Created and destroyed, never changed.

use device_model::Limit;

use crate::errno::{EBUSY, EINVAL, Verb};
use crate::nic::Nic;
use crate::state::{State, TableState};

/// Adds a table of a context, and counts the use of its queues; returns its slot.
///
/// # Errors
/// EINVAL if there is no such queue or the device cannot combine them, and the errno of the device if it has
/// no more tables.
pub fn insert(nic: &Nic, state: &mut State, owner: u32, queues: &[u32]) -> Verb<u32> {
    let rules = &nic.rules().hash;
    let numbers: Option<Vec<u32>> =
        queues.iter().map(|queue| state.queues.get(*queue).map(|queue| queue.number)).collect();
    let numbers = numbers.ok_or(EINVAL)?;
    if rules.consecutive && numbers.windows(2).any(|pair| pair[1] != pair[0] + 1) {
        return Err(EINVAL);
    }
    let table = TableState { owner, users: 0, queues: queues.into() };
    let full = state.limits.of(Limit::Tables);
    let slot = state.tables.insert(table).ok_or(full)?;
    for queue in queues {
        if let Some(queue) = state.queues.get_mut(*queue) {
            queue.users += 1;
        }
    }
    Ok(slot)
}

/// Returns whether a slot is that of a table of the context.
#[must_use]
pub fn is_owned(state: &State, owner: u32, slot: u32) -> bool {
    state.tables.get(slot).is_some_and(|table| table.owner == owner)
}

/// Removes a table that nothing uses.
///
/// # Errors
/// EINVAL if there is no such table, and EBUSY if it is in use.
pub fn remove(state: &mut State, slot: u32) -> Verb<()> {
    if state.tables.get(slot).ok_or(EINVAL)?.users != 0 {
        return Err(EBUSY);
    }
    let removed = state.tables.remove(slot).ok_or(EINVAL)?;
    for queue in &removed.queues {
        if let Some(queue) = state.queues.get_mut(*queue) {
            queue.users -= 1;
        }
    }
    Ok(())
}
