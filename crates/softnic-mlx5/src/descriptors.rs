//! The command descriptors of a process, and what a mapping of one shows.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_ulong};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use softnic::errno::{ENODEV, VerbErrno, guard};
use softnic::lazy_nic::LazyNic;

use crate::clock_pages::{self, ClockPage};
use crate::context::{Context, MAX_PAGES, PAGE_BYTES};
use crate::{commands, ioctl};

/// Numbers of pages that are no doorbell pages: `MLX5_IB_MMAP_CORE_CLOCK`, and `MLX5_IB_MMAP_CLOCK_INFO` with
/// `MLX5_IB_CLOCK_INFO_V1`, in the bits of a command. Doorbell pages have smaller ones.
const CORE_CLOCK: u32 = 5 << 8;
const CLOCK_INFO: u32 = 7 << 8;
const _: () = assert!(MAX_PAGES < CORE_CLOCK);

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
        if request.bytes != clock_pages::PAGE_BYTES {
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
