//! A context: what a client has opened through a command descriptor, beside the objects in the state.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsRawFd as _, IntoRawFd as _, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::fstat;
use softnic::errno::{EINVAL, ENOSPC, Verb, VerbErrno};
use softnic::objects::channels::{self, CompletionEvents};
use softnic::objects::contexts::{self, OpenedContext};
use softnic::{Nic, clock};

use crate::clock_pages::ClockPages;

/// Bytes of a doorbell page (`log_uar_size` of 12).
pub const PAGE_BYTES: u32 = 1 << 12;
/// Doorbell pages of a context.
pub(crate) const MAX_PAGES: u32 = 1_024;

/// A command descriptor, and the context that it is for, once GET_CONTEXT has made it.
pub(crate) struct Context {
    pub(crate) nic: Arc<Nic>,
    opened: Mutex<Opened>,
}

/// The part of a context that is not objects in the state.
#[derive(Default)]
pub(crate) struct Opened {
    pub(crate) slot: Option<u32>,
    /// The completion channels, by the descriptors that the client reads from.
    pub(crate) channels: BTreeMap<RawFd, Channel>,
    pub(crate) pages: BTreeSet<u32>,
}

#[derive(Clone, Copy)]
pub(crate) struct Channel {
    pub(crate) slot: u32,
    /// The inode of the client's descriptor: whether that is still the one of the channel.
    pub(crate) inode: u64,
}

/// A doorbell page. What the client writes there is not looked at, because memory cannot report a write:
/// receive queues have none, and for send and completion queues the doorbell record has the same information.
pub(crate) struct Page {
    pub(crate) number: u32,
    pub(crate) bytes: u32,
    pub(crate) offset: u64,
}

impl Context {
    pub(crate) fn new(nic: Arc<Nic>) -> Self {
        Self { nic, opened: Mutex::default() }
    }

    pub(crate) fn opened(&self) -> MutexGuard<'_, Opened> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The context's slot in the state; EINVAL before GET_CONTEXT.
    pub(crate) fn slot(&self) -> Verb<u32> {
        self.opened().slot.ok_or(EINVAL)
    }

    /// Makes the context; returns the descriptor of its asynchronous events.
    pub(crate) fn establish(&self) -> Verb<RawFd> {
        let mut opened = self.opened();
        if opened.slot.is_some() {
            return Err(EINVAL);
        }
        // `open` wakes the engines. Without the pages one may sleep too long for the clock afterwards.
        self.make_clock();
        let OpenedContext { slot, events } = contexts::open(&self.nic)?;
        opened.slot = Some(slot);
        Ok(events.into_raw_fd())
    }

    /// Makes the pages of the clock, for the first context of the device. Without them the clock cannot be
    /// read.
    fn make_clock(&self) {
        if self.nic.clock_view().is_some() {
            return;
        }
        match ClockPages::new(self.nic.clock(), clock::now_ns()) {
            Ok(pages) => self.nic.show_clock(Box::new(pages)),
            Err(error) => tracing::warn!(%error, "the device has no pages for its clock"),
        }
    }

    /// The pages of the clock, if the device has them.
    pub(crate) fn clock_pages(&self) -> Option<&ClockPages> {
        let view: &dyn Any = self.nic.clock_view()?;
        view.downcast_ref()
    }

    /// Makes a completion channel; returns the descriptor of its events.
    pub(crate) fn add_channel(&self) -> Verb<RawFd> {
        let owner = self.slot()?;
        let (events, client) = CompletionEvents::new()?;
        let inode = fstat(&client)?.st_ino;
        let mut opened = self.opened();
        let mut state = self.nic.control();
        // Channels whose descriptor was closed have no other end.
        opened.channels.retain(|_, channel| !channels::sweep(&mut state, channel.slot));
        let native = client.as_raw_fd().cast_unsigned().into();
        let slot = channels::insert(&mut state, owner, native, events)?;
        let descriptor = client.into_raw_fd();
        opened.channels.insert(descriptor, Channel { slot, inode });
        Ok(descriptor)
    }

    /// The slot of the channel that the client reads from `descriptor`.
    pub(crate) fn channel(&self, descriptor: RawFd) -> Verb<u32> {
        let channel = self.opened().channels.get(&descriptor).copied().ok_or(EINVAL)?;
        if channels::is_abandoned(&self.nic.control_without_wakeup(), channel.slot) {
            return Err(EINVAL);
        }
        Ok(channel.slot)
    }

    pub(crate) fn add_page(&self) -> Verb<Page> {
        let mut opened = self.opened();
        let number = (1..=MAX_PAGES).find(|number| !opened.pages.contains(number)).ok_or(ENOSPC)?;
        opened.pages.insert(number);
        let offset = u64::from(number) * u64::from(PAGE_BYTES);
        Ok(Page { number, bytes: PAGE_BYTES, offset })
    }

    pub(crate) fn free_page(&self, number: u64) -> Verb<()> {
        let number = u32::try_from(number).map_err(|_| EINVAL)?;
        if self.opened().pages.remove(&number) { Ok(()) } else { Err(VerbErrno::new(libc::ENOENT)) }
    }

    pub(crate) fn remove(&self) {
        if let Some(slot) = self.opened().slot.take() {
            contexts::close(&self.nic, slot);
        }
    }
}
