//! The device below rdma-core's own mlx5 provider: a model of the kernel's command interface and of the
//! queues of a ConnectX, for the unmodified libibverbs and libmlx5 of a process.
//!
//! `softnic-preload` gives this crate the calls that a process makes on its command descriptors. What is
//! behind them is the same state, flow table, RSS, memory keys and engine as below the provider of `softnic`;
//! only the front differs: commands come in the kernel's structures (rdma-core kernel-headers/rdma), and
//! send, receive and completion queues are in mlx5's formats, in memory that libmlx5 allocates. What the
//! kernel and its driver check is modelled from their sources, named at each check; what libmlx5 checks is
//! not repeated.
//!
//! Sends are noticed by polling their doorbell records, because a write to a doorbell page cannot be seen: at
//! once while there is traffic, and after a pause within a nap of the engine, of 50 us to 4 ms
//! (`softnic/src/engine/rest.rs`).
//!
//! Not modelled are datagram queue pairs, raw commands for the firmware (DEVX), striding queues and
//! compressed completions, and the hash of a frame in its completion, which no function of libmlx5 returns.
//!
//! * `ioctl`: attributes of an ioctl, and the copies from and to the client's memory (`user_memory`)
//! * `commands`: a file per family; they see blocks of bytes (`block`) and no pointer
//! * `rings`: the queues, which the engine uses through the traits of [`softnic::formats`]
//!
//! The pages from which libmlx5 reads the clock are in `clock_pages`.

mod block;
mod clock_pages;
mod commands;
mod counters;
mod ioctl;
mod rings;
mod user_memory;

pub use ioctl::VERBS_IOCTL;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_ulong};
use std::os::fd::{AsRawFd as _, IntoRawFd as _, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::fstat;
use softnic::Nic;
use softnic::clock;
use softnic::errno::{EINVAL, ENODEV, ENOSPC, Verb, VerbErrno, guard};
use softnic::objects::channels::{self, CompletionEvents};
use softnic::objects::contexts::{self, OpenedContext};
use softnic::preload::LazyNic;

use crate::clock_pages::{ClockPage, ClockPages};

/// Bytes of a doorbell page (`log_uar_size` of 12).
pub const PAGE_BYTES: u32 = 1 << 12;
/// Doorbell pages of a context.
const MAX_PAGES: u32 = 1_024;

/// The command descriptors of a process.
pub struct CommandDescriptors {
    nic: &'static LazyNic,
    contexts: Mutex<BTreeMap<RawFd, Arc<Context>>>,
}

impl CommandDescriptors {
    /// None is open yet; the NIC is made when the first one is.
    #[must_use]
    pub const fn new(nic: &'static LazyNic) -> Self {
        Self { nic, contexts: Mutex::new(BTreeMap::new()) }
    }

    fn contexts(&self) -> MutexGuard<'_, BTreeMap<RawFd, Arc<Context>>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The numbers of the commands that there are (`enum ib_uverbs_write_cmds`).
    pub fn numbers() -> impl Iterator<Item = u32> {
        commands::numbers()
    }

    /// Makes `descriptor`, which was just opened, a command descriptor.
    ///
    /// # Errors
    /// ENODEV if the NIC cannot be made; the reason was written to stderr.
    pub fn open(&self, descriptor: RawFd) -> Result<(), c_int> {
        let nic = self.nic.nic().ok_or(ENODEV.number())?;
        let before = self.contexts().insert(descriptor, Arc::new(Context::new(nic)));
        if let Some(before) = before {
            // Its descriptor was closed by other means, or it could not be given away again.
            guard((), || before.remove());
        }
        Ok(())
    }

    /// Carries out an ioctl(2) of a command descriptor.
    ///
    /// # Errors
    /// The errno of the kernel's answer.
    pub fn ioctl(&self, descriptor: RawFd, request: c_ulong, address: usize) -> Result<(), c_int> {
        let context = self.contexts().get(&descriptor).map(Arc::clone).ok_or(libc::EBADF)?;
        let answer =
            guard(Err(VerbErrno::new(libc::EIO)), || ioctl::carry_out(&context, request, address as u64));
        answer.map_err(VerbErrno::number)
    }

    /// Returns what a mapping of a command descriptor at `offset` shows (kernel hw/mlx5/main.c,
    /// `mlx5_ib_mmap`).
    ///
    /// # Errors
    /// EINVAL if there is no such page or no context, and EPERM if one would be written that is only to be
    /// read.
    pub fn mapping(&self, descriptor: RawFd, request: &MappingRequest) -> Result<Mapping, c_int> {
        let context = self.contexts().get(&descriptor).map(Arc::clone).ok_or(libc::EBADF)?;
        context.slot().map_err(VerbErrno::number)?;
        let number = u64::try_from(request.offset).map_err(|_| libc::EINVAL)? / u64::from(PAGE_BYTES);
        let number = u32::try_from(number).map_err(|_| libc::EINVAL)?;
        if context.opened().pages.contains(&number) {
            return Ok(Mapping::Doorbell);
        }
        let page = match number {
            CORE_CLOCK => ClockPage::Core,
            CLOCK_INFO => ClockPage::Info,
            _ => return Err(libc::EINVAL),
        };
        if request.bytes != crate::clock_pages::PAGE_BYTES {
            return Err(libc::EINVAL);
        }
        if request.is_written {
            return Err(libc::EPERM);
        }
        let (file, offset) = context.clock_pages().ok_or(libc::EOPNOTSUPP)?.place(page);
        Ok(Mapping::Clock { file, offset })
    }

    /// The descriptor is about to be closed: everything that was made through it goes.
    pub fn close(&self, descriptor: RawFd) {
        let context = self.contexts().remove(&descriptor);
        if let Some(context) = context {
            guard((), || context.remove());
        }
    }
}

/// Numbers of pages that are no doorbell pages: `MLX5_IB_MMAP_CORE_CLOCK`, and `MLX5_IB_MMAP_CLOCK_INFO` with
/// `MLX5_IB_CLOCK_INFO_V1`, in the bits of a command. Doorbell pages have smaller ones.
const CORE_CLOCK: u32 = 5 << 8;
const CLOCK_INFO: u32 = 7 << 8;
const _: () = assert!(MAX_PAGES < CORE_CLOCK);

/// A request for a mapping.
#[derive(Clone, Copy, Debug)]
pub struct MappingRequest {
    /// The place in the command descriptor.
    pub offset: i64,
    /// How much.
    pub bytes: usize,
    /// Whether it may be written or executed.
    pub is_written: bool,
}

/// The contents of a mapping of a command descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// A doorbell page: it is written to and nothing more.
    Doorbell,
    /// A page of the clock, which another file has. That stays open as long as the process runs.
    Clock {
        /// The file.
        file: RawFd,
        /// The place in it.
        offset: i64,
    },
}

/// A command descriptor, and the context that it is for, once GET_CONTEXT has made it.
pub(crate) struct Context {
    nic: Arc<Nic>,
    opened: Mutex<Opened>,
}

/// The part of a context that is not objects in the state.
#[derive(Default)]
struct Opened {
    slot: Option<u32>,
    /// The completion channels, by the descriptors that the client reads from.
    channels: BTreeMap<RawFd, Channel>,
    pages: BTreeSet<u32>,
}

#[derive(Clone, Copy)]
struct Channel {
    slot: u32,
    /// The inode of the client's descriptor: whether that is still the one of the channel.
    inode: u64,
}

/// A doorbell page. What the client writes there is not looked at, because memory cannot report a write:
/// receive queues have none, and for send and completion queues the doorbell record has the same information.
struct Page {
    number: u32,
    bytes: u32,
    offset: u64,
}

impl Context {
    fn new(nic: Arc<Nic>) -> Self {
        Self { nic, opened: Mutex::default() }
    }

    fn opened(&self) -> MutexGuard<'_, Opened> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The context's slot in the state; EINVAL before GET_CONTEXT.
    fn slot(&self) -> Verb<u32> {
        self.opened().slot.ok_or(EINVAL)
    }

    /// Makes the context; returns the descriptor of its asynchronous events.
    fn establish(&self) -> Verb<RawFd> {
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
    fn clock_pages(&self) -> Option<&ClockPages> {
        let view: &dyn Any = self.nic.clock_view()?;
        view.downcast_ref()
    }

    /// Makes a completion channel; returns the descriptor of its events.
    fn add_channel(&self) -> Verb<RawFd> {
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
    fn channel(&self, descriptor: RawFd) -> Verb<u32> {
        let channel = self.opened().channels.get(&descriptor).copied().ok_or(EINVAL)?;
        if channels::is_abandoned(&self.nic.control_without_wakeup(), channel.slot) {
            return Err(EINVAL);
        }
        Ok(channel.slot)
    }

    fn add_page(&self) -> Verb<Page> {
        let mut opened = self.opened();
        let number = (1..=MAX_PAGES).find(|number| !opened.pages.contains(number)).ok_or(ENOSPC)?;
        opened.pages.insert(number);
        let offset = u64::from(number) * u64::from(PAGE_BYTES);
        Ok(Page { number, bytes: PAGE_BYTES, offset })
    }

    fn free_page(&self, number: u64) -> Verb<()> {
        let number = u32::try_from(number).map_err(|_| EINVAL)?;
        if self.opened().pages.remove(&number) { Ok(()) } else { Err(VerbErrno::new(libc::ENOENT)) }
    }

    fn remove(&self) {
        if let Some(slot) = self.opened().slot.take() {
            contexts::close(&self.nic, slot);
        }
    }
}
