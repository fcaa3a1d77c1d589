//! Protection domains, thread domains and parent domains. A parent domain is a protection domain with an
//! allocator.

use std::ffi::c_int;

use ibverbs_sys::{
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT, ibv_context,
    ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr,
};
use softnic::errno::{EINVAL, EOPNOTSUPP, Verb, VerbErrno, known_bits};
use softnic::objects::domains::{self, release_domain, use_domain};
use softnic::personality::Resources;
use softnic::ring::{Allocator, Ring, RingConsumer, RingMemory, RingProducer};

use super::Object;
use super::answer::{answer_handle, answer_status};
use super::held::Held;
use crate::soft_context::SoftContext;

/// `IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC` (rdma-core 64): queue memory may be shared with
/// the host of a confidential guest. Here all memory is the process's own, so there is nothing to do.
const ALLOW_CC_UNPROTECTED_ALLOC: u32 = 1 << 2;

/// A protection domain or a parent domain.
#[repr(C)]
pub(crate) struct SoftPd {
    pd: ibv_pd,
    /// The slot among the domains.
    pub(crate) slot: u32,
    /// The protection domain that regions and queues are checked against: its own, or the parent's base.
    pub(crate) base: u32,
    parent: Option<Parent>,
}

/// The additions of a parent domain.
struct Parent {
    thread_domain: Option<u32>,
    allocator: Option<Allocator>,
}

// SAFETY: `repr(C)` with `ibv_pd` first; handed out by `into_native` only.
unsafe impl Object for SoftPd {
    type Native = ibv_pd;
}

/// A thread domain.
#[repr(C)]
pub(crate) struct SoftTd {
    td: ibv_td,
    slot: u32,
}

// SAFETY: `repr(C)` with `ibv_td` first; handed out by `into_native` only.
unsafe impl Object for SoftTd {
    type Native = ibv_td;
}

impl SoftPd {
    pub(crate) fn context(&self) -> *mut ibv_context {
        self.pd.context
    }

    /// Whether it is a parent domain: those hold no memory regions of their own.
    pub(crate) fn is_parent(&self) -> bool {
        self.parent.is_some()
    }

    /// Whether the application promised one thread per queue (a thread domain is there).
    pub(crate) fn single_threaded(&self) -> bool {
        self.parent.as_ref().is_some_and(|parent| parent.thread_domain.is_some())
    }
}

/// Makes a ring in the memory that the domain's allocator gives, or in the device's own; see [`RingMemory`].
pub(crate) fn make_ring(
    resources: &Resources,
    domain: Option<&SoftPd>,
    entries: u32,
    slot_bytes: usize,
    resource: u64,
    refusal: VerbErrno,
) -> Verb<(RingProducer, RingConsumer)> {
    let allocator = domain.and_then(|pd| pd.parent.as_ref()).and_then(|parent| parent.allocator.as_ref());
    let memory = RingMemory { allocator, resource, doorbell: resources.doorbell, refusal };
    Ring::make(entries, slot_bytes, memory)
}

pub(crate) unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    answer_handle(|| {
        // SAFETY: the library passes a live context of this provider.
        let soft = unsafe { SoftContext::of(context) }?;
        let slot = domains::allocate(&mut soft.nic().control(), soft.slot)?;
        Ok(SoftPd { pd: ibv_pd { context, handle: slot }, slot, base: slot, parent: None }.into_native())
    })
}

pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    answer_handle(|| {
        // SAFETY: the library passes a live context of this provider.
        let soft = unsafe { SoftContext::of(context) }?;
        // SAFETY: NULL or the application's struct.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        if !soft.nic().object_rules().domain.parent_domains {
            return Err(EOPNOTSUPP);
        }
        let known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
            | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
            | ALLOW_CC_UNPROTECTED_ALLOC;
        known_bits(attr.comp_mask, known, EINVAL)?;
        // SAFETY: NULL or a domain of this provider, by the verb's contract.
        let base = unsafe { SoftPd::of(attr.pd) }?;
        if base.context() != context {
            return Err(EINVAL);
        }
        // Over a parent domain: the protection domain below it, as with mlx5 (rdma-core
        // providers/mlx5/mlx5.h, `to_mpd`). The one between may go before the new one.
        let base = base.base;
        let thread_domain = thread_domain(attr.td, context)?;
        let mut state = soft.nic().control();
        let slot = domains::allocate(&mut state, soft.slot)?;
        let pd = ibv_pd { context, handle: slot };
        let mut object = Held::boxed(SoftPd { pd, slot, base, parent: None });
        // SAFETY: the callbacks are those that the application gave to this verb.
        let allocator = unsafe { allocator(attr, &raw mut object.pd) };
        let Ok(allocator) = allocator else {
            domains::free(&mut state, slot)?;
            return Err(EINVAL);
        };
        use_domain(&mut state, base)?;
        if let Some(thread_domain) = thread_domain {
            domains::use_thread(&mut state, thread_domain);
        }
        object.parent = Some(Parent { thread_domain, allocator });
        Ok(Box::into_raw(object).cast())
    })
}

fn thread_domain(td: *mut ibv_td, context: *mut ibv_context) -> Verb<Option<u32>> {
    if td.is_null() {
        return Ok(None);
    }
    // SAFETY: a thread domain of this provider, by the verb's contract.
    let td = unsafe { SoftTd::of(td) }?;
    if td.td.context == context { Ok(Some(td.slot)) } else { Err(EINVAL) }
}

/// The allocator of the attributes, which receives `domain` at each call: both callbacks or neither.
///
/// # Safety
/// The callbacks may be called as ibv_alloc_parent_domain(3) describes until the parent domain is gone.
unsafe fn allocator(attr: &ibv_parent_domain_init_attr, domain: *mut ibv_pd) -> Verb<Option<Allocator>> {
    if attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS == 0 {
        return Ok(None);
    }
    let (Some(allocate), Some(free)) = (attr.alloc, attr.free) else { return Err(EINVAL) };
    let context = if attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT == 0 {
        std::ptr::null_mut()
    } else {
        attr.pd_context
    };
    // SAFETY: by the contract of this function; queues keep the domain in use until their memory is freed.
    Ok(Some(unsafe { Allocator::new(allocate, free, domain, context) }))
}

pub(crate) unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    answer_status(|| {
        // SAFETY: NULL or a domain of this provider, by the verb's contract.
        let object = unsafe { SoftPd::of(pd) }?;
        // SAFETY: the domain keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.context()) }?;
        let mut state = soft.nic().control();
        domains::free(&mut state, object.slot)?;
        if let Some(parent) = &object.parent {
            release_domain(&mut state, object.base);
            if let Some(thread_domain) = parent.thread_domain {
                domains::release_thread(&mut state, thread_domain);
            }
        }
        // SAFETY: the library drops the handle; `object` is not used any more.
        drop(unsafe { SoftPd::take(pd) });
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    answer_handle(|| {
        // SAFETY: the library passes a live context of this provider.
        let soft = unsafe { SoftContext::of(context) }?;
        // SAFETY: NULL or the application's struct.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        let rules = &soft.nic().object_rules().domain;
        if !rules.parent_domains {
            return Err(EOPNOTSUPP);
        }
        known_bits(attr.comp_mask, 0, rules.thread_domain_refusal)?;
        let slot = domains::allocate_thread(&mut soft.nic().control(), soft.slot)?;
        Ok(SoftTd { td: ibv_td { context }, slot }.into_native())
    })
}

pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    answer_status(|| {
        // SAFETY: NULL or a thread domain of this provider, by the verb's contract.
        let object = unsafe { SoftTd::of(td) }?;
        // SAFETY: the domain keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.td.context) }?;
        domains::free_thread(&mut soft.nic().control(), object.slot)?;
        // SAFETY: the library drops the handle; `object` is not used any more.
        drop(unsafe { SoftTd::take(td) });
        Ok(())
    })
}
