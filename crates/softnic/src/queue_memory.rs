//! Where queues live: memory from the application's parent-domain allocator, or the device's own.
//!
//! Called by a front end when a queue is made; the memory goes back to where it came from when the queue's
//! last end is dropped. Never called by the engine.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_void;
use std::ptr::NonNull;

use ibverbs_sys::ibv_pd;

/// The use of an allocation: the `resource_type` that a parent domain's allocator receives.
///
/// The upper half is this device's mark (`SN`), as mlx5 puts its driver id there.
pub mod resource {
    const SOFTNIC: u64 = 0x534e << 32;
    /// The slots of a completion queue.
    pub const COMPLETION_QUEUE: u64 = SOFTNIC | 1;
    /// The slots of a work queue.
    pub const WORK_QUEUE: u64 = SOFTNIC | 2;
    /// The slots of either side of a queue pair.
    pub const QUEUE_PAIR: u64 = SOFTNIC | 3;
    /// A doorbell record: the producer's and the consumer's index of one queue.
    pub const DOORBELL: u64 = SOFTNIC | 4;
}

/// The function of a parent domain that gives memory (`ibv_parent_domain_init_attr.alloc`).
type AllocateFn = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void;
/// The function of a parent domain that takes memory back (`ibv_parent_domain_init_attr.free`).
type FreeFn = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64);

/// `IBV_ALLOCATOR_USE_DEFAULT`.
const USE_DEFAULT: *mut c_void = std::ptr::without_provenance_mut(usize::MAX);

/// The allocator that an application gave to a parent domain.
#[derive(Clone, Copy)]
pub struct Allocator {
    allocate: AllocateFn,
    free: FreeFn,
    domain: *mut ibv_pd,
    context: *mut c_void,
}

impl Allocator {
    /// The allocator of two functions, which both receive `domain` and `context`.
    ///
    /// # Safety
    /// The functions may be called from any thread, as ibv_alloc_parent_domain(3) describes, while the
    /// allocator or memory from it is used. `allocate` returns NULL, `IBV_ALLOCATOR_USE_DEFAULT` or as many
    /// bytes as were asked for, which belong to this device alone until they are given to `free`.
    #[must_use]
    pub unsafe fn new(allocate: AllocateFn, free: FreeFn, domain: *mut ibv_pd, context: *mut c_void) -> Self {
        Self { allocate, free, domain, context }
    }

    /// Zeroed memory for `resource`; `None` when the application refuses, or returns misaligned memory.
    pub(crate) fn allocate(&self, bytes: usize, align: usize, resource: u64) -> Option<QueueMemory> {
        // SAFETY: the function may be called with these arguments, by the contract of `new`.
        let answer = unsafe { (self.allocate)(self.domain, self.context, bytes, align, resource) };
        if answer == USE_DEFAULT {
            return QueueMemory::own(bytes, align);
        }
        let address = NonNull::new(answer.cast::<u8>())?;
        let memory = QueueMemory { address, bytes, owner: Owner::Application { allocator: *self, resource } };
        if !address.as_ptr().addr().is_multiple_of(align) {
            tracing::error!(bytes, align, "the parent domain's allocator answered with misaligned memory");
            return None;
        }
        // SAFETY: the function returned at least `bytes` bytes for the device's sole use, by the contract of
        // `new`.
        unsafe { address.as_ptr().write_bytes(0, bytes) };
        Some(memory)
    }
}

enum Owner {
    Device { layout: Layout },
    Application { allocator: Allocator, resource: u64 },
}

/// One piece of zeroed queue memory.
pub(crate) struct QueueMemory {
    address: NonNull<u8>,
    bytes: usize,
    owner: Owner,
}

impl QueueMemory {
    /// Memory of the device's own.
    pub(crate) fn own(bytes: usize, align: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes, align).ok().filter(|layout| layout.size() > 0)?;
        // SAFETY: the layout's size is not zero.
        let address = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { address, bytes, owner: Owner::Device { layout } })
    }

    #[inline]
    pub(crate) fn address(&self) -> NonNull<u8> {
        self.address
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for QueueMemory {
    fn drop(&mut self) {
        match &self.owner {
            // SAFETY: allocated in `own` with this layout, freed only here.
            Owner::Device { layout } => unsafe { dealloc(self.address.as_ptr(), *layout) },
            Owner::Application { allocator, resource } => {
                let memory = self.address.as_ptr().cast();
                // SAFETY: the memory came from this allocator's `allocate` with this resource and goes back
                // once.
                unsafe { (allocator.free)(allocator.domain, allocator.context, memory, *resource) };
            }
        }
    }
}
