//! Memory that a device may read and write.
//!
//! A region owns its memory, and nothing else can reach it: only a [`FramePool`](crate::FramePool) hands out
//! parts, and only those the device does not hold. Queues that parts were posted to keep it as well: it is
//! deregistered once they and the pool are dropped, and the memory is released after that, never before. The
//! same memory can be registered once more in another domain, so that another device can send from it; that
//! region keeps the first one.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys::{ibv_access_flags, ibv_mr};

use crate::error::{created, from_code};
use crate::{Domain, Result, StableMemory, VerbsError, leak};

bitflags::bitflags! {
    /// The accesses that a device has to registered memory besides reading it for sends (`ibv_access_flags`).
    /// There is no remote access here: raw packets have no use for it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// Write received packets.
        const LOCAL_WRITE = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
        /// The device's writes may reach memory out of order within a packet; dropped where not supported.
        const RELAXED_ORDERING = ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;
    }
}

/// The owner of a region's memory.
#[allow(dead_code)] // held, not used
enum Owner {
    /// Never touched through this owner while registered.
    Memory(Box<dyn StableMemory>),
    /// The region that has the same memory.
    Region(Arc<MemoryRegion>),
}

/// Registered memory.
pub struct MemoryRegion {
    raw: NonNull<ibv_mr>,
    domain: Domain,
    /// Released only once deregistered.
    owner: ManuallyDrop<Owner>,
    start: NonNull<u8>,
    bytes: usize,
    lkey: u32,
    /// The device may write received packets to it.
    is_writable: bool,
}

// SAFETY: the memory is `Send`, and deregistration may happen on any thread.
unsafe impl Send for MemoryRegion {}
// SAFETY: through a shared reference there are only numbers, and an address that only a pool with all its
// frames reads.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// `ibv_reg_mr` over all of `memory`, which the region keeps. Registering with a parent domain is
    /// registering with its protection domain. Access that has no name in [`Access`] is refused with EINVAL.
    pub fn register(domain: &Domain, memory: impl StableMemory + 'static, access: Access) -> Result<Self> {
        let mut memory: Box<dyn StableMemory> = Box::new(memory);
        let slice: &mut [u8] = &mut memory;
        let bytes = slice.len();
        let start = NonNull::from(slice).cast::<u8>();
        Self::register_range(domain, Owner::Memory(memory), start, bytes, access)
    }

    /// `ibv_reg_mr` over the memory of another region, which is kept, for sends only.
    pub(crate) fn register_again(domain: &Domain, region: &Arc<Self>) -> Result<Self> {
        let owner = Owner::Region(Arc::clone(region));
        Self::register_range(domain, owner, region.start, region.bytes, Access::empty())
    }

    /// The `bytes` bytes from `start` on are all of the memory that `owner` keeps.
    fn register_range(
        domain: &Domain,
        owner: Owner,
        start: NonNull<u8>,
        bytes: usize,
        access: Access,
    ) -> Result<Self> {
        let address = start.as_ptr();
        let failed =
            |source| VerbsError::RegisterMemory { device: domain.context().name().into(), bytes, source };
        // Bits that have no name here may open the memory to the network.
        if !Access::all().contains(access) {
            return Err(failed(from_code(libc::EINVAL)));
        }
        // SAFETY: the domain is live and `owner` keeps the memory of the range. This is what the header's
        // macro calls when the flags are not constant; the library drops optional flags the kernel lacks.
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
        let is_writable = access.contains(Access::LOCAL_WRITE);
        let (domain, owner) = (domain.clone(), ManuallyDrop::new(owner));
        Ok(Self { raw, domain, owner, start, bytes, lkey, is_writable })
    }

    /// The key by which work requests name this region.
    pub(crate) fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Whether the device may write received packets to it.
    pub(crate) fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// The length of the region in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn domain(&self) -> &Domain {
        &self.domain
    }

    /// The address of the first byte; valid for `bytes` bytes until `drop`.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: `raw` came from a registration and is deregistered only here.
        let code = unsafe { ibverbs_sys::ibv_dereg_mr(self.raw.as_ptr()) };
        leak::keep("ibv_dereg_mr", self.domain.context().name(), code, || self.domain.clone());
        if code == 0 {
            // SAFETY: dropped once, here; the device can no longer reach it. A refused deregistration leaks
            // it.
            unsafe { ManuallyDrop::drop(&mut self.owner) };
        }
    }
}
