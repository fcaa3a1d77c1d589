//! Indirection tables: a power of two of work queues. Created and destroyed, never changed.

use device_model::Limit;

use crate::errno::{EINVAL, Verb};
use crate::personality::HashRules;
use crate::state::{State, TableState};

/// Adds a table of a context, and counts the use of its queues.
pub(crate) fn insert_table(state: &mut State, owner: u32, queues: &[u32], rules: &HashRules) -> Verb<u32> {
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

/// Removes a table that nothing uses.
pub(crate) fn remove_table(state: &mut State, slot: u32) {
    let Some(removed) = state.tables.remove(slot) else { return };
    for queue in &removed.queues {
        if let Some(queue) = state.queues.get_mut(*queue) {
            queue.users -= 1;
        }
    }
}
