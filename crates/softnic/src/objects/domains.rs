//! Protection domains.

use crate::errno::{EINVAL, Verb};
use crate::state::State;

/// Counts an object that uses a domain.
pub(crate) fn use_domain(state: &mut State, slot: u32) -> Verb<()> {
    state.domains.get_mut(slot).ok_or(EINVAL)?.users += 1;
    Ok(())
}

/// Counts an object that uses a domain no more.
pub(crate) fn release_domain(state: &mut State, slot: u32) {
    if let Some(domain) = state.domains.get_mut(slot) {
        domain.users -= 1;
    }
}
