//! Completion channels. The library's own `ibv_create_comp_channel` asks the kernel, so this stands in its place: in
//! process as [`verbs::Provider::channel_maker`], elsewhere behind a door. Everything after it is the library's:
//! `ibv_get_cq_event` reads 8-byte records from the channel's descriptor, and `ibv_destroy_comp_channel` closes it and
//! frees the struct without telling the provider.

use std::os::fd::{BorrowedFd, IntoRawFd};

use ibverbs_sys::{ibv_comp_channel, ibv_context};

use super::answer::{EINVAL, ENOMEM, Verb, answer_handle};
use crate::completion::ChannelState;
use crate::device::SoftContext;
use crate::events::CompletionEvents;
use crate::state::State;

/// Makes a completion channel of a context of this provider.
///
/// # Safety
/// `context` is NULL or a live context of this provider.
pub(crate) unsafe extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    answer_handle(|| {
        // SAFETY: by the contract of this function.
        let soft = unsafe { SoftContext::of(context) }?;
        let (events, application) = CompletionEvents::new()?;
        // SAFETY: plain malloc; the library frees it.
        let channel = unsafe { libc::malloc(size_of::<ibv_comp_channel>()) }.cast::<ibv_comp_channel>();
        if channel.is_null() {
            return Err(ENOMEM);
        }
        let native = channel.addr() as u64;
        let mut state = soft.nic().control();
        sweep(&mut state, native);
        let entry = ChannelState { owner: soft.slot, users: 0, native, events };
        if state.channels.insert(entry).is_none() {
            // SAFETY: allocated above and handed to no one.
            unsafe { libc::free(channel.cast()) };
            return Err(ENOMEM);
        }
        drop(state);
        // SAFETY: allocated above with the size of the struct.
        unsafe { channel.write(ibv_comp_channel { context, fd: application.into_raw_fd(), refcnt: 0 }) };
        Ok(channel)
    })
}

/// Forgets the channels that the library has destroyed: it closed their descriptor, or its place in memory is that of a
/// new one (a child process may still hold the descriptor).
fn sweep(state: &mut State, new: u64) {
    let is_gone = |channel: &ChannelState| {
        channel.users == 0 && (channel.native == new || channel.events.is_abandoned())
    };
    let gone: Vec<u32> =
        state.channels.iter().filter(|(_, channel)| is_gone(channel)).map(|(slot, _)| slot).collect();
    for slot in gone {
        state.channels.remove(slot);
    }
}

/// The slot of a channel that a queue of the context `owner` is to report to; `None` for NULL. It must be one of
/// [`create_comp_channel`], of the same context, and not destroyed.
pub(super) fn find(state: &State, owner: u32, channel: *mut ibv_comp_channel) -> Verb<Option<u32>> {
    if channel.is_null() {
        return Ok(None);
    }
    let native = channel.addr() as u64;
    let is_it =
        |known: &ChannelState| known.owner == owner && known.native == native && !known.events.is_abandoned();
    let found = state.channels.iter().find(|(_, known)| is_it(known));
    found.map(|(slot, _)| Some(slot)).ok_or(EINVAL)
}

/// Takes the unread events of a queue back; answers how many there were.
///
/// # Safety
/// `channel` is the live channel of `entry`.
pub(super) unsafe fn retract(entry: &ChannelState, channel: *const ibv_comp_channel, cq: u64) -> u32 {
    // SAFETY: by the contract of this function; the descriptor never changes.
    let fd = unsafe { (*channel).fd };
    if fd < 0 {
        return 0;
    }
    // SAFETY: the channel keeps its descriptor open until it is destroyed.
    entry.events.retract(unsafe { BorrowedFd::borrow_raw(fd) }, cq)
}
