//! A context of this provider: what stands before the library's part of it.

use std::ffi::c_int;
use std::sync::Arc;

use ibverbs_sys::ibv_context;
use softnic::Nic;
use softnic::errno::{EINVAL, Verb};

/// How many entries of a port's tables the library can answer: from sysfs, or from `preload`.
#[derive(Clone, Copy)]
pub(crate) struct PortTables {
    pub(crate) gids: c_int,
    pub(crate) pkeys: u16,
}

/// A context: this head, then the library's `verbs_context` with slack behind it, in memory the library
/// calloc'ed.
#[repr(C)]
pub(crate) struct SoftContext {
    /// From `Arc::into_raw` in `new`, taken back in `into_nic`.
    nic: *const Nic,
    /// The slot in the device's state.
    pub(crate) slot: u32,
    pub(crate) tables: PortTables,
}

/// Where the library's part begins, aligned as calloc aligns.
pub(crate) const VERBS_CONTEXT_OFFSET: usize = size_of::<SoftContext>().next_multiple_of(16);

impl SoftContext {
    /// A head that holds a count of the NIC until [`SoftContext::into_nic`].
    pub(crate) fn new(nic: Arc<Nic>, slot: u32, tables: PortTables) -> Self {
        Self { nic: Arc::into_raw(nic), slot, tables }
    }

    /// The count of the NIC that the head holds.
    ///
    /// # Safety
    /// The context is closed: neither this head nor another copy of it is used any more.
    pub(crate) unsafe fn into_nic(self) -> Arc<Nic> {
        // SAFETY: from `Arc::into_raw` in `new`, and taken back once, by the contract of this function.
        unsafe { Arc::from_raw(self.nic) }
    }

    /// The context behind the library's handle; EIO once the device has failed for good.
    ///
    /// # Safety
    /// `context` is NULL or came from this provider's `alloc_context` and was not closed.
    pub(crate) unsafe fn of<'a>(context: *mut ibv_context) -> Verb<&'a Self> {
        let base = Self::base(context).ok_or(EINVAL)?;
        // SAFETY: `base` is where the head was written in `alloc_context`; it is not changed after that.
        let context = unsafe { &*base };
        context.nic().check_alive()?;
        Ok(context)
    }

    /// The start of the allocation, by the context's self-description (`sz`, the word before it, is the size
    /// of `verbs_context`, which `ibv_context` ends).
    pub(crate) fn base(context: *mut ibv_context) -> Option<*mut Self> {
        if context.is_null() {
            return None;
        }
        let word = context.cast::<usize>().wrapping_sub(1);
        // SAFETY: an `ibv_context` of the library lies inside a `verbs_context`, behind its `sz`.
        let sz = unsafe { word.read() };
        let verbs_context = context.cast::<u8>().wrapping_sub(sz.checked_sub(size_of::<ibv_context>())?);
        Some(verbs_context.wrapping_sub(VERBS_CONTEXT_OFFSET).cast::<Self>())
    }

    pub(crate) fn nic(&self) -> &Nic {
        // SAFETY: the pointer holds one count of the `Arc` until `into_nic`, and contexts are not used after
        // it.
        unsafe { &*self.nic }
    }
}
