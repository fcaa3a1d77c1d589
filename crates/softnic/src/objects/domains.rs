//! Protection domains, and thread domains, with which a client promises one thread for each queue.

use crate::errno::{EBUSY, EINVAL, ENOMEM, Verb};
use crate::state::{DomainState, State, ThreadDomainState};

/// Makes a protection domain of a context; returns its slot.
///
/// # Errors
/// ENOMEM if the device has no more.
pub fn allocate(state: &mut State, owner: u32) -> Verb<u32> {
    state.domains.insert(DomainState { owner, users: 0 }).ok_or(ENOMEM)
}

/// Returns whether a slot is that of a domain of the context.
#[must_use]
pub fn is_owned(state: &State, owner: u32, slot: u32) -> bool {
    state.domains.get(slot).is_some_and(|domain| domain.owner == owner)
}

/// Removes a domain that nothing uses.
///
/// # Errors
/// EINVAL if there is no such domain, and EBUSY if it is in use.
pub fn free(state: &mut State, slot: u32) -> Verb<()> {
    if state.domains.get(slot).ok_or(EINVAL)?.users != 0 {
        return Err(EBUSY);
    }
    state.domains.remove(slot);
    Ok(())
}

/// Counts an object that uses a domain.
///
/// # Errors
/// EINVAL if there is no such domain.
pub fn use_domain(state: &mut State, slot: u32) -> Verb<()> {
    state.domains.get_mut(slot).ok_or(EINVAL)?.users += 1;
    Ok(())
}

/// Counts an object that uses a domain no more.
pub fn release_domain(state: &mut State, slot: u32) {
    if let Some(domain) = state.domains.get_mut(slot) {
        domain.users -= 1;
    }
}

/// Makes a thread domain of a context; returns its slot.
///
/// # Errors
/// ENOMEM if the device has no more.
pub fn allocate_thread(state: &mut State, owner: u32) -> Verb<u32> {
    state.thread_domains.insert(ThreadDomainState { owner, users: 0 }).ok_or(ENOMEM)
}

/// Removes a thread domain that nothing uses.
///
/// # Errors
/// EINVAL if there is no such thread domain, and EBUSY if it is in use.
pub fn free_thread(state: &mut State, slot: u32) -> Verb<()> {
    if state.thread_domains.get(slot).ok_or(EINVAL)?.users != 0 {
        return Err(EBUSY);
    }
    state.thread_domains.remove(slot);
    Ok(())
}

/// Counts a domain that uses a thread domain.
pub fn use_thread(state: &mut State, slot: u32) {
    if let Some(domain) = state.thread_domains.get_mut(slot) {
        domain.users += 1;
    }
}

/// Counts a domain that uses a thread domain no more.
pub fn release_thread(state: &mut State, slot: u32) {
    if let Some(domain) = state.thread_domains.get_mut(slot) {
        domain.users -= 1;
    }
}
