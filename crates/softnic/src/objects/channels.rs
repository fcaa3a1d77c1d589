//! Completion channels.

use std::os::fd::BorrowedFd;

use crate::errno::{EINVAL, ENOMEM, Verb};
pub use crate::events::CompletionEvents;
use crate::state::State;
use crate::state::completion::ChannelState;

/// Adds a channel of a context with the device's end of it; returns its slot. `native` is what the front end
/// knows it by.
///
/// # Errors
/// ENOMEM if the device has no more.
pub fn insert(state: &mut State, owner: u32, native: u64, events: CompletionEvents) -> Verb<u32> {
    state.channels.insert(ChannelState { owner, users: 0, native, events }).ok_or(ENOMEM)
}

/// The slot of the channel of a context that the front end knows by `native`.
///
/// # Errors
/// EINVAL if there is none, or its client has closed its end.
pub fn find(state: &State, owner: u32, native: u64) -> Verb<u32> {
    let is_it =
        |known: &ChannelState| known.owner == owner && known.native == native && !known.events.is_abandoned();
    let found = state.channels.iter().find(|(_, known)| is_it(known));
    found.map(|(slot, _)| slot).ok_or(EINVAL)
}

/// Returns whether the front end knows a channel by `native`.
#[must_use]
pub fn is_known_by(state: &State, slot: u32, native: u64) -> bool {
    state.channels.get(slot).is_some_and(|channel| channel.native == native)
}

/// Removes the channels to which no queue reports and whose clients have closed their ends, or that were
/// known by `native`, by which a new one is about to be known.
pub fn sweep_all(state: &mut State, native: u64) {
    let is_gone = |channel: &ChannelState| {
        channel.users == 0 && (channel.native == native || channel.events.is_abandoned())
    };
    let gone: Vec<u32> =
        state.channels.iter().filter(|(_, channel)| is_gone(channel)).map(|(slot, _)| slot).collect();
    for slot in gone {
        state.channels.remove(slot);
    }
}

/// Returns whether the client has closed its end of a channel; true if there is no such channel.
#[must_use]
pub fn is_abandoned(state: &State, slot: u32) -> bool {
    state.channels.get(slot).is_none_or(|channel| channel.events.is_abandoned())
}

/// Removes a channel whose other end is closed, unless a queue reports to it. Returns whether it is gone.
pub fn sweep(state: &mut State, slot: u32) -> bool {
    let is_gone = is_abandoned(state, slot) && state.channels.get(slot).is_none_or(|known| known.users == 0);
    if is_gone {
        state.channels.remove(slot);
    }
    is_gone
}

/// Takes the unread events of a completion queue back from the client's end of a channel; returns how many.
#[must_use]
pub fn retract(state: &State, slot: u32, end: BorrowedFd<'_>, queue: u64) -> u32 {
    state.channels.get(slot).map_or(0, |channel| channel.events.retract(end, queue))
}

/// The number of all channels.
#[must_use]
pub fn count(state: &State) -> usize {
    state.channels.iter().count()
}
