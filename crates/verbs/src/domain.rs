//! Protection, thread and parent domains: who may reach which memory, from how many threads, in whose memory.
//!
//! Made once per worker, at start-up. A domain is kept alive by everything made in it.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use ibverbs_sys::{ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};

use crate::allocator::{self, AllocatorState, DomainAllocator};
use crate::error::created;
use crate::pause::Gate;
use crate::{Context, Result, VerbsError, inline, leak};

/// A protection domain: queues reach only memory registered in their own.
pub struct ProtectionDomain {
    raw: NonNull<ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: verbs on a protection domain may be called from any thread; the structure is never written after it
// was made.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// `ibv_alloc_pd`.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>> {
        // SAFETY: the context is open.
        let raw = created(|| unsafe { ibverbs_sys::ibv_alloc_pd(context.raw()) })
            .map_err(|source| VerbsError::AllocProtectionDomain { device: context.name().into(), source })?;
        Ok(Arc::new(Self { raw, context: Arc::clone(context) }))
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: `raw` came from `ibv_alloc_pd`; what was made in it held an `Arc` of this and is gone.
        let code = unsafe { ibverbs_sys::ibv_dealloc_pd(self.raw.as_ptr()) };
        leak::keep("ibv_dealloc_pd", self.context.name(), code, || Arc::clone(&self.context));
    }
}

/// A thread domain: what is made under it (through a [`ParentDomain`]) has no locks in the library and may
/// share a doorbell, so it is for one thread at a time (ibv_alloc_td(3)). This crate holds everybody to that:
/// while one of its queues is polled (as long as the batch is open), posted to or sent on, all of them turn
/// other users away, on any thread.
pub struct ThreadDomain {
    raw: NonNull<ibv_td>,
    context: Arc<Context>,
    gate: Arc<Gate>,
}

// SAFETY: only passed on when a parent domain is made; never written after it was made.
unsafe impl Send for ThreadDomain {}
// SAFETY: as above.
unsafe impl Sync for ThreadDomain {}

impl ThreadDomain {
    /// `ibv_alloc_td`.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>> {
        let mut attr = ibv_td_init_attr::default();
        // SAFETY: the context is open.
        let raw = created(|| unsafe { inline::alloc_td(context.raw(), &mut attr) })
            .map_err(|source| VerbsError::AllocThreadDomain { device: context.name().into(), source })?;
        Ok(Arc::new(Self { raw, context: Arc::clone(context), gate: Arc::default() }))
    }
}

impl Drop for ThreadDomain {
    fn drop(&mut self) {
        // SAFETY: `raw` came from `alloc_td`; parent domains over it held an `Arc` of this and are gone.
        let code = unsafe { inline::dealloc_td(self.context.raw(), self.raw.as_ptr()) };
        leak::keep("ibv_dealloc_td", self.context.name(), code, || Arc::clone(&self.context));
    }
}

/// A parent domain: a protection domain whose queues belong to one thread domain and live in an allocator's
/// memory.
pub struct ParentDomain {
    raw: NonNull<ibv_pd>,
    protection: Arc<ProtectionDomain>,
    thread: Option<Arc<ThreadDomain>>,
    /// The provider's `pd_context`. In an `Arc`, so that its address outlasts moves of this structure.
    allocator: Option<Arc<AllocatorState>>,
}

// SAFETY: as a protection domain; the allocator behind the callbacks is `Send + Sync` and its list of
// allocations is locked.
unsafe impl Send for ParentDomain {}
// SAFETY: as above.
unsafe impl Sync for ParentDomain {}

impl ParentDomain {
    /// `ibv_alloc_parent_domain`. The allocator serves the queues, never packet memory; with one, both bits
    /// of the `comp_mask` are set (`..._ALLOCATORS`, `..._PD_CONTEXT`), and `pd_context` is the allocator
    /// itself. Without one and without a thread domain, a parent domain is another name of its protection
    /// domain.
    ///
    /// # Errors
    /// EINVAL for domains of two contexts, EOPNOTSUPP where a provider has no parent domains, ENOMEM. Nothing
    /// is allocated yet: a refusal of the allocator fails the verb that needs memory, with ENOMEM.
    pub fn new(
        domain: &Arc<ProtectionDomain>,
        thread: Option<&Arc<ThreadDomain>>,
        allocator: Option<Box<dyn DomainAllocator>>,
    ) -> Result<Arc<Self>> {
        let context = &domain.context;
        if let Some(thread) = thread {
            context.same_as(&thread.context)?;
        }
        let allocator = allocator.map(|allocator| Arc::new(AllocatorState::new(allocator)));
        let mut attr = ibv_parent_domain_init_attr {
            pd: domain.raw.as_ptr(),
            td: thread.map_or(ptr::null_mut(), |thread| thread.raw.as_ptr()),
            ..ibv_parent_domain_init_attr::default()
        };
        if let Some(state) = &allocator {
            attr.comp_mask = ibverbs_sys::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
                | ibverbs_sys::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
            attr.alloc = Some(allocator::alloc);
            attr.free = Some(allocator::free);
            attr.pd_context = Arc::as_ptr(state).cast_mut().cast::<c_void>();
        }
        // SAFETY: the context is open, both domains are live, and `pd_context` lives as long as the parent
        // domain.
        let raw = created(|| unsafe { inline::alloc_parent_domain(context.raw(), &mut attr) })
            .map_err(|source| VerbsError::AllocParentDomain { device: context.name().into(), source })?;
        Ok(Arc::new(Self { raw, protection: Arc::clone(domain), thread: thread.map(Arc::clone), allocator }))
    }

    /// How many of its allocator's buffers are in use by queues.
    pub fn outstanding_allocations(&self) -> usize {
        self.allocator.as_ref().map_or(0, |state| state.outstanding())
    }
}

impl Drop for ParentDomain {
    fn drop(&mut self) {
        let context = &self.protection.context;
        // SAFETY: `raw` came from `alloc_parent_domain`; what was made in it held an `Arc` of this and is
        // gone.
        let code = unsafe { ibverbs_sys::ibv_dealloc_pd(self.raw.as_ptr()) };
        leak::keep("ibv_dealloc_pd (parent domain)", context.name(), code, || {
            (Arc::clone(&self.protection), self.thread.clone(), self.allocator.clone())
        });
        if code == 0 && self.outstanding_allocations() > 0 {
            let count = self.outstanding_allocations();
            tracing::error!(
                device = context.name(),
                count,
                "a provider kept memory of a parent domain that is gone"
            );
            std::mem::forget(self.allocator.clone());
        }
    }
}

/// Either kind of domain, wherever a verb takes a protection domain.
#[derive(Clone)]
pub enum Domain {
    /// A protection domain alone.
    Protection(Arc<ProtectionDomain>),
    /// A parent domain.
    Parent(Arc<ParentDomain>),
}

impl Domain {
    /// The device it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        match self {
            Self::Protection(domain) => &domain.context,
            Self::Parent(domain) => &domain.protection.context,
        }
    }

    /// Replaces the locks that a thread domain removes.
    pub(crate) fn gate(&self) -> Option<&Arc<Gate>> {
        match self {
            Self::Protection(_) => None,
            Self::Parent(domain) => domain.thread.as_ref().map(|thread| &thread.gate),
        }
    }

    pub(crate) fn raw(&self) -> *mut ibv_pd {
        match self {
            Self::Protection(domain) => domain.raw.as_ptr(),
            Self::Parent(domain) => domain.raw.as_ptr(),
        }
    }

    /// The protection domain that memory is registered in: a parent domain adds nothing to a registration,
    /// and not every provider takes one there.
    pub(crate) fn protection(&self) -> *mut ibv_pd {
        match self {
            Self::Protection(domain) => domain.raw.as_ptr(),
            Self::Parent(domain) => domain.protection.raw.as_ptr(),
        }
    }
}

impl From<Arc<ProtectionDomain>> for Domain {
    fn from(domain: Arc<ProtectionDomain>) -> Self {
        Self::Protection(domain)
    }
}

impl From<Arc<ParentDomain>> for Domain {
    fn from(domain: Arc<ParentDomain>) -> Self {
        Self::Parent(domain)
    }
}

impl From<&Arc<ProtectionDomain>> for Domain {
    fn from(domain: &Arc<ProtectionDomain>) -> Self {
        Self::Protection(Arc::clone(domain))
    }
}

impl From<&Arc<ParentDomain>> for Domain {
    fn from(domain: &Arc<ParentDomain>) -> Self {
        Self::Parent(Arc::clone(domain))
    }
}
