//! Whose memory a parent domain's queues live in: the safe trait, and the C callbacks in front of it.
//!
//! The provider calls these from the thread that creates or destroys a queue. A panic of the allocator never
//! crosses into C; memory the provider was given stays alive until the provider frees it.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ops::DerefMut;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use ibverbs_sys::ibv_pd;
use stable_deref_trait::StableDeref;

/// Memory that stays in its place when its owner is moved, such as `Box<[u8]>`, `Vec<u8>` or a block of an
/// arena.
pub trait StableMemory: StableDeref + DerefMut<Target = [u8]> + Send {}

impl<T: StableDeref + DerefMut<Target = [u8]> + Send> StableMemory for T {}

/// A request to a parent domain's allocator (ibv_alloc_parent_domain(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AllocationRequest {
    /// At least so much.
    pub bytes: usize,
    /// A power of two; the first byte's address must be a multiple of it.
    pub align: usize,
    /// The use of the memory, as the provider numbers its resources (mlx5dv.h: `MLX5DV_RES_TYPE_*`).
    pub resource_type: u64,
}

impl AllocationRequest {
    /// Whose numbering the resource type is, the upper half: `enum rdma_driver_id` of ib_user_ioctl_verbs.h
    /// (mlx5 is 1).
    pub fn driver_id(&self) -> u32 {
        (self.resource_type >> 32) as u32
    }

    /// The lower half of the resource type (mlx5dv.h: 1 queue pair, 2 receive work queue, 3
    /// doorbell record, 4 shared receive queue, 5 completion queue).
    pub fn vendor_code(&self) -> u32 {
        self.resource_type as u32
    }
}

/// The answer to an [`AllocationRequest`].
pub enum Allocation {
    /// This memory, until the provider is done with it.
    Memory(Box<dyn StableMemory>),
    /// The provider's own allocation (`IBV_ALLOCATOR_USE_DEFAULT`).
    UseDefault,
    /// Nothing: the verb that needed it fails with ENOMEM.
    Refused,
}

/// Gives a parent domain's queues their memory: the `alloc`, `free` and `pd_context` of
/// ibv_alloc_parent_domain(3) in one. What `free` would have to release is dropped instead, once the provider
/// is done with it.
///
/// Because devices write to it, the memory should not be shared with a child after `fork`. It need not be
/// zeroed: that is done before the provider sees it, since mlx5 relies on it (providers/mlx5/verbs.c,
/// `mlx5_alloc_qp_buf`, zeroes its own buffers and leaves custom ones as they are).
pub trait DomainAllocator: Send + Sync {
    /// Called once per buffer that the provider needs, never for 0 bytes. Memory that is too small or
    /// misaligned counts as refused.
    fn allocate(&self, request: &AllocationRequest) -> Allocation;
}

/// `IBV_ALLOCATOR_USE_DEFAULT`, verbs.h.
const USE_DEFAULT: usize = usize::MAX;

/// An allocator and what it has given out: the `pd_context` of a parent domain.
pub(crate) struct AllocatorState {
    allocator: Box<dyn DomainAllocator>,
    /// The memory that was given out, by the address of its first byte.
    given: Mutex<HashMap<usize, Box<dyn StableMemory>>>,
}

impl AllocatorState {
    pub(crate) fn new(allocator: Box<dyn DomainAllocator>) -> Self {
        Self { allocator, given: Mutex::new(HashMap::new()) }
    }

    fn allocate(&self, request: &AllocationRequest) -> *mut c_void {
        // mlx5 asks for both halves of a RAW_PACKET queue pair, one of which is empty if it only sends or
        // only receives; it takes NULL for that half and passes it to `free` later (providers/mlx5/buf.c,
        // `mlx5_alloc_buf_custom`).
        if request.bytes == 0 {
            return ptr::null_mut();
        }
        let mut memory = match self.allocator.allocate(request) {
            Allocation::Memory(memory) => memory,
            Allocation::UseDefault => return ptr::without_provenance_mut(USE_DEFAULT),
            Allocation::Refused => return ptr::null_mut(),
        };
        let bytes: &mut [u8] = &mut memory;
        let (start, len) = (bytes.as_mut_ptr(), bytes.len());
        let aligned = request.align == 0 || start.addr().is_multiple_of(request.align);
        if len < request.bytes || len == 0 || !aligned {
            tracing::error!(?request, len, address = ?start, "an allocator gave unfit memory; refused");
            return ptr::null_mut();
        }
        bytes.fill(0);
        // Taken again: the pointer that the library gets must not be older than the last use of `bytes`.
        let start = bytes.as_mut_ptr();
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        given.insert(start.addr(), memory);
        start.cast()
    }

    fn free(&self, start: *mut c_void, resource_type: u64) {
        if start.is_null() {
            return;
        }
        let memory = self.given.lock().unwrap_or_else(PoisonError::into_inner).remove(&start.addr());
        match memory {
            Some(memory) => drop(memory),
            None => {
                tracing::error!(address = ?start, resource_type, "a provider freed memory it was not given");
            }
        }
    }

    /// How many buffers the provider holds.
    pub(crate) fn outstanding(&self) -> usize {
        self.given.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// `ibv_parent_domain_init_attr.alloc`.
///
/// # Safety
/// `pd_context` points to a live [`AllocatorState`].
pub(crate) unsafe extern "C" fn alloc(
    _pd: *mut ibv_pd,
    pd_context: *mut c_void,
    bytes: usize,
    align: usize,
    resource_type: u64,
) -> *mut c_void {
    // SAFETY: the parent domain keeps the state alive as long as the provider can call back.
    let state = unsafe { &*pd_context.cast::<AllocatorState>() };
    let request = AllocationRequest { bytes, align, resource_type };
    catch_unwind(AssertUnwindSafe(|| state.allocate(&request))).unwrap_or_else(|_| {
        tracing::error!(?request, "an allocator panicked; refused");
        ptr::null_mut()
    })
}

/// `ibv_parent_domain_init_attr.free`.
///
/// # Safety
/// As [`alloc`]; the provider no longer uses the memory at `start`.
pub(crate) unsafe extern "C" fn free(
    _pd: *mut ibv_pd,
    pd_context: *mut c_void,
    start: *mut c_void,
    resource_type: u64,
) {
    // SAFETY: as in `alloc`.
    let state = unsafe { &*pd_context.cast::<AllocatorState>() };
    if catch_unwind(AssertUnwindSafe(|| state.free(start, resource_type))).is_err() {
        tracing::error!(resource_type, "releasing a provider's memory panicked");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Memory that counts its own releases.
    struct Counted(Vec<u64>, Arc<AtomicUsize>);
    impl std::ops::Deref for Counted {
        type Target = [u8];
        fn deref(&self) -> &[u8] {
            // SAFETY: initialised memory of that many bytes.
            unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * 8) }
        }
    }
    impl DerefMut for Counted {
        fn deref_mut(&mut self) -> &mut [u8] {
            // SAFETY: as above, and exclusive.
            unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len() * 8) }
        }
    }
    // SAFETY: the bytes are on the heap.
    unsafe impl StableDeref for Counted {}
    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct Scripted<F>(F);
    impl<F: Fn(&AllocationRequest) -> Allocation + Send + Sync> DomainAllocator for Scripted<F> {
        fn allocate(&self, request: &AllocationRequest) -> Allocation {
            (self.0)(request)
        }
    }

    fn state(
        answer: impl Fn(&AllocationRequest) -> Allocation + Send + Sync + 'static,
    ) -> Arc<AllocatorState> {
        Arc::new(AllocatorState::new(Box::new(Scripted(answer))))
    }

    fn ask(state: &Arc<AllocatorState>, bytes: usize, align: usize) -> *mut c_void {
        // SAFETY: `state` outlives the call.
        unsafe { alloc(ptr::null_mut(), Arc::as_ptr(state).cast_mut().cast(), bytes, align, 5) }
    }

    fn give_back(state: &Arc<AllocatorState>, start: *mut c_void) {
        // SAFETY: as above.
        unsafe { free(ptr::null_mut(), Arc::as_ptr(state).cast_mut().cast(), start, 5) }
    }

    #[test]
    fn memory_lives_from_alloc_to_free() {
        let released = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&released);
        let state = state(move |request| {
            assert_eq!(*request, AllocationRequest { bytes: 64, align: 8, resource_type: 5 });
            Allocation::Memory(Box::new(Counted(vec![0; 8], Arc::clone(&counter))))
        });
        let (first, second) = (ask(&state, 64, 8), ask(&state, 64, 8));
        assert!(!first.is_null() && first != second);
        assert_eq!(state.outstanding(), 2);
        give_back(&state, first);
        assert_eq!((state.outstanding(), released.load(Ordering::Relaxed)), (1, 1));
        give_back(&state, first);
        assert_eq!(released.load(Ordering::Relaxed), 1, "a second free of one buffer releases nothing");
        drop(state);
        assert_eq!(released.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn default_and_refusal_reach_c_as_the_header_says() {
        assert_eq!(ask(&state(|_| Allocation::UseDefault), 64, 8).addr(), usize::MAX);
        assert!(ask(&state(|_| Allocation::Refused), 64, 8).is_null());
    }

    #[test]
    fn unfit_memory_is_refused_and_released() {
        let released = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&released);
        let state = state(move |_| Allocation::Memory(Box::new(Counted(vec![0; 8], Arc::clone(&counter)))));
        assert!(ask(&state, 65, 8).is_null(), "too small");
        assert!(ask(&state, 64, 1 << 40).is_null(), "misaligned");
        assert_eq!((state.outstanding(), released.load(Ordering::Relaxed)), (0, 2));
    }

    #[test]
    fn an_empty_request_is_answered_without_the_allocator_and_its_null_may_be_freed() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        let state = state(move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
            Allocation::UseDefault
        });
        let events = crate::testing::events_logged(|| {
            assert!(ask(&state, 0, 4096).is_null());
            give_back(&state, ptr::null_mut());
        });
        assert_eq!((asked.load(Ordering::Relaxed), events), (0, 0));
    }

    #[test]
    fn memory_is_zeroed_before_the_provider_has_it() {
        let state = state(|_| Allocation::Memory(Box::new(vec![0xa5; 64])));
        let start = ask(&state, 64, 1);
        // SAFETY: 64 bytes that stay until they are given back.
        let bytes = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), 64) };
        assert_eq!(bytes, [0; 64]);
        give_back(&state, start);
    }

    #[test]
    fn a_panic_is_a_refusal() {
        assert!(ask(&state(|_| panic!("no")), 64, 8).is_null());
    }
}
