//! Memory that a device may read and write.
//!
//! A region owns its memory and nobody else can reach it: only a [`FramePool`](crate::FramePool) hands out parts,
//! and only those the device does not hold. Queues that parts were posted to keep it as well: it is deregistered once
//! they and the pool are gone, and the memory goes after that, never before.

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::ops::DerefMut;
use std::ptr::{self, NonNull};

use ibverbs_sys::{self as sys, ibv_access_flags, ibv_mr};

use crate::error::{created, forget_last, from_code, last};
use crate::{Domain, Error, Result, StableMemory, leak};

bitflags::bitflags! {
    /// What the device may do with registered memory besides reading it for sends (`ibv_access_flags`). There is no
    /// remote access here: raw packets have no use for it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// Write received packets.
        const LOCAL_WRITE = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
        /// The memory is in huge pages, so the driver may use fewer translations.
        const HUGETLB = ibv_access_flags::IBV_ACCESS_HUGETLB.0;
        /// The device's writes may reach memory out of order within a packet; dropped where not supported.
        const RELAXED_ORDERING = ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;
    }
}

/// What is to change about a registration ([`MemoryRegion::reregister`]).
#[derive(Default)]
#[must_use]
pub struct Reregistration {
    domain: Option<Domain>,
    memory: Option<Box<dyn StableMemory>>,
    access: Option<Access>,
}

impl Reregistration {
    /// Nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// The protection domain (`IBV_REREG_MR_CHANGE_PD`).
    pub fn domain(mut self, domain: &Domain) -> Self {
        self.domain = Some(domain.clone());
        self
    }

    /// The memory (`IBV_REREG_MR_CHANGE_TRANSLATION`).
    pub fn memory(mut self, memory: impl StableMemory + 'static) -> Self {
        self.memory = Some(Box::new(memory));
        self
    }

    /// What the device may do with it (`IBV_REREG_MR_CHANGE_ACCESS`).
    pub fn access(mut self, access: Access) -> Self {
        self.access = Some(access);
        self
    }
}

/// Registered memory.
pub struct MemoryRegion {
    raw: NonNull<ibv_mr>,
    /// Deregistered in the domain it was registered in.
    domain: Domain,
    /// Never touched through this owner while registered; unmapped only once deregistered.
    memory: ManuallyDrop<Box<dyn StableMemory>>,
    start: NonNull<u8>,
    bytes: usize,
    lkey: u32,
    access: Access,
    /// What a failed change may have left registered as well; then the region is of no more use.
    stranded: Option<(Domain, Option<Box<dyn StableMemory>>)>,
}

// SAFETY: the memory is `Send`, and deregistration may happen on any thread.
unsafe impl Send for MemoryRegion {}
// SAFETY: through a shared reference there are only numbers, and an address that only a pool with all its frames reads.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// `ibv_reg_mr` over all of `memory`, which the region keeps. Registering with a parent domain is registering with
    /// its protection domain. Access that has no name in [`Access`] is refused with EINVAL.
    pub fn register(domain: &Domain, memory: impl StableMemory + 'static, access: Access) -> Result<Self> {
        let mut memory: Box<dyn StableMemory> = Box::new(memory);
        let slice: &mut [u8] = &mut memory;
        let bytes = slice.len();
        let start = NonNull::from(slice).cast::<u8>();
        let address = start.as_ptr();
        let failed = |source| Error::RegisterMemory { device: domain.context().name().into(), bytes, source };
        // Bits that have no name here may open the memory to the network.
        if !Access::all().contains(access) {
            return Err(failed(from_code(libc::EINVAL)));
        }
        // SAFETY: the domain is live and `memory` covers the range. This is what the header's macro calls when the
        // flags are not constant; the library drops optional flags the kernel lacks.
        let create = || unsafe {
            ibverbs_sys::ibv_reg_mr_iova2(
                domain.protection(),
                address.cast(),
                bytes,
                address.addr() as u64,
                access.bits(),
            )
        };
        let raw = created(create).map_err(failed)?;
        // SAFETY: `raw` was just made by the library, which fills in the key.
        let lkey = unsafe { (*raw.as_ptr()).lkey };
        Ok(Self {
            raw,
            domain: domain.clone(),
            memory: ManuallyDrop::new(memory),
            start,
            bytes,
            lkey,
            access,
            stranded: None,
        })
    }

    /// `ibv_rereg_mr`: changes what `change` says and leaves the rest. Returns the memory that was replaced, if it was. No
    /// frame can have been made of the region yet.
    ///
    /// # Errors
    /// EINVAL for arguments that make no sense, after which the region is as before; what the device says, with
    /// EOPNOTSUPP where it cannot, after which the region is of no more use ([`Error::UnusableRegion`]), as the manual page
    /// has it. New memory that was refused is gone with the region at the latest.
    pub fn reregister(&mut self, change: Reregistration) -> Result<Option<Box<dyn StableMemory>>> {
        let Reregistration { domain, mut memory, access } = change;
        let context = self.domain.context();
        let bytes = memory.as_ref().map_or(self.bytes, |memory| memory.len());
        let failed = |source| Error::ReregisterMemory { device: context.name().into(), bytes, source };
        if let Some(domain) = &domain {
            context.same_as(domain.context())?;
        }
        if self.stranded.is_some() {
            return Err(Error::UnusableRegion { device: context.name().into() });
        }
        if access.is_some_and(|access| !Access::all().contains(access)) {
            return Err(failed(from_code(libc::EINVAL)));
        }
        let mut flags = 0;
        let mut flag = |on: bool, flag: sys::ibv_rereg_mr_flags| flags |= if on { flag } else { 0 };
        flag(memory.is_some(), sys::IBV_REREG_MR_CHANGE_TRANSLATION);
        flag(domain.is_some(), sys::IBV_REREG_MR_CHANGE_PD);
        flag(access.is_some(), sys::IBV_REREG_MR_CHANGE_ACCESS);
        let start = memory.as_mut().map(|memory| NonNull::from(memory.deref_mut().deref_mut()).cast::<u8>());
        forget_last();
        // SAFETY: region and domains are live; memory that the flags name covers the range given; nothing was lent to a queue,
        // as the region is exclusively borrowed and pools keep theirs.
        let code = unsafe {
            sys::ibv_rereg_mr(
                self.raw.as_ptr(),
                flags as c_int,
                domain.as_ref().map_or(ptr::null_mut(), Domain::protection),
                start.map_or(ptr::null_mut(), |start| start.as_ptr().cast()),
                if start.is_some() { bytes } else { 0 },
                access.map_or(0, |access| access.bits() as c_int),
            )
        };
        match code {
            // In the second case only what a child of `fork` sees of the old memory is not as it should be.
            0 | sys::IBV_REREG_MR_ERR_DO_FORK_OLD => {}
            sys::IBV_REREG_MR_ERR_INPUT | sys::IBV_REREG_MR_ERR_DONT_FORK_NEW => return Err(failed(last())),
            _ => {
                let error = failed(last());
                self.stranded = Some((domain.unwrap_or_else(|| self.domain.clone()), memory));
                return Err(error);
            }
        }
        // SAFETY: the region is live; the library or the provider has filled in the key.
        self.lkey = unsafe { (*self.raw.as_ptr()).lkey };
        self.domain = domain.unwrap_or_else(|| self.domain.clone());
        self.access = access.unwrap_or(self.access);
        let (Some(start), Some(memory)) = (start, memory) else { return Ok(None) };
        (self.start, self.bytes) = (start, bytes);
        let old = std::mem::replace(&mut self.memory, ManuallyDrop::new(memory));
        Ok(Some(ManuallyDrop::into_inner(old)))
    }

    /// What the device may do with it.
    pub fn access(&self) -> Access {
        self.access
    }

    /// It can be cut into frames: no change of it has failed halfway.
    pub(crate) fn usable(&self) -> Result<()> {
        match self.stranded {
            None => Ok(()),
            Some(_) => Err(Error::UnusableRegion { device: self.domain.context().name().into() }),
        }
    }

    /// The key by which work requests name this region.
    pub(crate) fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Its first byte; valid for `bytes` bytes until `drop`.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: `raw` came from a registration and is deregistered only here.
        let code = unsafe { ibverbs_sys::ibv_dereg_mr(self.raw.as_ptr()) };
        leak::keep("ibv_dereg_mr", self.domain.context().name(), code, || self.domain.clone());
        if code != 0 {
            std::mem::forget(self.stranded.take());
        } else {
            // SAFETY: dropped once, here; the device can no longer reach it. A refused deregistration leaks it.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}
