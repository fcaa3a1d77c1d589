//! Memory regions: what work requests may name.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use ibverbs_sys::{
    IBV_REREG_MR_CHANGE_ACCESS, IBV_REREG_MR_CHANGE_PD, IBV_REREG_MR_CHANGE_TRANSLATION,
    IBV_REREG_MR_FLAGS_SUPPORTED, ibv_mr, ibv_pd,
};
use softnic::errno::{EINVAL, known_bits};
use softnic::objects::domains::{release_domain, use_domain};
use softnic::objects::regions::{self, RegionChange, RegionRequest};

use super::Object;
use super::answer::{answer_handle, answer_status};
use super::pd::SoftPd;
use crate::abi::VerbsMr;
use crate::soft_context::SoftContext;

/// A region.
#[repr(C)]
struct SoftMr {
    mr: VerbsMr,
    /// The domain it is registered with, for its users; changed under the device's mutex.
    domain: AtomicU32,
}

// SAFETY: `repr(C)` with `verbs_mr` first, which begins with `ibv_mr`; handed out by `into_native` only.
unsafe impl Object for SoftMr {
    type Native = VerbsMr;
}

pub(crate) unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    address: *mut c_void,
    bytes: usize,
    virtual_address: u64,
    access: c_int,
) -> *mut ibv_mr {
    answer_handle(|| {
        // SAFETY: NULL or a domain of this provider, by the verb's contract.
        let object = unsafe { SoftPd::of(pd) }?;
        // SAFETY: the domain keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.context()) }?;
        let (owner, domain) = (soft.slot, object.base);
        let request = RegionRequest { owner, domain, address, bytes, virtual_address, access };
        // SAFETY: the application gives the memory to the device, by the verb's contract.
        let region = unsafe { regions::prepare(&request) }?;
        let key = regions::insert(&mut soft.nic().control(), region, object.slot)?;
        let ibv_mr = ibv_mr {
            context: object.context(),
            pd,
            addr: address,
            length: bytes,
            handle: key,
            lkey: key,
            rkey: key,
        };
        let mr = VerbsMr { ibv_mr, mr_type: 0, access };
        Ok(SoftMr { mr, domain: AtomicU32::new(object.slot) }.into_native().cast())
    })
}

/// Changes a region in place, all of what is asked or nothing, so that the old one stays valid when it fails.
/// Its key stays as well: requests that are posted mean the new region. The library checks the flags, and
/// writes address, length and domain to the handle.
pub(crate) unsafe extern "C" fn rereg_mr(
    mr: *mut VerbsMr,
    flags: c_int,
    pd: *mut ibv_pd,
    address: *mut c_void,
    bytes: usize,
    access: c_int,
) -> c_int {
    answer_status(|| {
        // SAFETY: NULL or a region of this provider, by the verb's contract.
        let object = unsafe { SoftMr::of(mr) }?;
        // SAFETY: the region keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.mr.ibv_mr.context) }?;
        let flags = flags.cast_unsigned();
        // The kernel (ib_uverbs_rereg_mr): no flags, and unknown ones.
        known_bits(flags, IBV_REREG_MR_FLAGS_SUPPORTED, EINVAL)?;
        if flags == 0 {
            return Err(EINVAL);
        }
        let key = object.mr.ibv_mr.lkey;
        let region = regions::find(&soft.nic().control(), key)?;
        let given = |bit: u32| flags & bit != 0;
        let change = RegionChange {
            translation: given(IBV_REREG_MR_CHANGE_TRANSLATION).then_some((address, bytes)),
            access: given(IBV_REREG_MR_CHANGE_ACCESS).then_some(access),
        };
        // SAFETY: the application gives the memory to the device, by the verb's contract.
        let region = unsafe { regions::prepare_change(region, change) }?;
        let domain = if given(IBV_REREG_MR_CHANGE_PD) {
            // SAFETY: NULL or a domain of this provider, by the verb's contract.
            let domain = unsafe { SoftPd::of(pd) }?;
            if domain.context() != object.mr.ibv_mr.context {
                return Err(EINVAL);
            }
            Some(domain)
        } else {
            None
        };
        let mut state = soft.nic().control();
        let old = object.domain.load(Ordering::Relaxed);
        let new = domain.map_or(old, |domain| domain.slot);
        use_domain(&mut state, new)?;
        release_domain(&mut state, old);
        object.domain.store(new, Ordering::Relaxed);
        regions::replace(&mut state, key, region, domain.map(|domain| domain.base));
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn dereg_mr(mr: *mut VerbsMr) -> c_int {
    answer_status(|| {
        // SAFETY: NULL or a region of this provider, by the verb's contract.
        let object = unsafe { SoftMr::of(mr) }?;
        // SAFETY: the region keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.mr.ibv_mr.context) }?;
        let mut state = soft.nic().control();
        regions::remove(&mut state, object.mr.ibv_mr.lkey)?;
        release_domain(&mut state, object.domain.load(Ordering::Relaxed));
        // SAFETY: the library drops the handle; `object` is not used any more.
        drop(unsafe { SoftMr::take(mr) });
        Ok(())
    })
}
