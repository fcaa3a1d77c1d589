//! Memory regions: what work requests may name.

use std::ffi::{c_int, c_void};

use ibverbs_sys::{ibv_access_flags, ibv_mr, ibv_pd};

use super::Object;
use super::answer::{EFAULT, EINVAL, ENOMEM, EOPNOTSUPP, answer_handle, answer_status, known_bits};
use super::pd::{SoftPd, release_domain, use_domain};
use crate::abi::VerbsMr;
use crate::device::SoftContext;
use crate::memory::{MemoryKey, Region};

/// `IBV_ACCESS_OPTIONAL_RANGE`: flags that a device may ignore.
const OPTIONAL_ACCESS: u32 = 0x3ff0_0000;

/// A region.
#[repr(C)]
struct SoftMr {
    mr: VerbsMr,
    /// The domain it was registered with.
    domain: u32,
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
        let flags = access.cast_unsigned();
        let local = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
        let remote = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
            | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
            | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
        known_bits(flags, local | remote | OPTIONAL_ACCESS, EOPNOTSUPP)?;
        let remote_write =
            ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0 | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
        // The kernel (ib_check_mr_access): remote write needs local write.
        if flags & remote_write != 0 && flags & local == 0 {
            return Err(EINVAL);
        }
        if address.is_null() || bytes == 0 {
            return Err(EINVAL);
        }
        let length = u64::try_from(bytes).map_err(|_| EINVAL)?;
        // Neither the range nor its image in the device's address space may wrap.
        address.addr().checked_add(bytes).ok_or(EFAULT)?;
        virtual_address.checked_add(length).ok_or(EINVAL)?;
        // SAFETY: the domain keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.context()) }?;
        let region = Region {
            domain: object.base,
            owner: soft.slot,
            writable: flags & local != 0,
            virtual_address,
            address: address.cast(),
            bytes: length,
        };
        let mut state = soft.nic().control();
        let key = state.memory.insert(region).ok_or(ENOMEM)?;
        use_domain(&mut state, object.slot)?;
        let ibv_mr = ibv_mr {
            context: object.context(),
            pd,
            addr: address,
            length: bytes,
            handle: key.0,
            lkey: key.0,
            rkey: key.0,
        };
        let mr = VerbsMr { ibv_mr, mr_type: 0, access };
        Ok(SoftMr { mr, domain: object.slot }.into_native().cast())
    })
}

pub(crate) unsafe extern "C" fn dereg_mr(mr: *mut VerbsMr) -> c_int {
    answer_status(|| {
        // SAFETY: NULL or a region of this provider, by the verb's contract.
        let object = unsafe { SoftMr::of(mr) }?;
        // SAFETY: the region keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.mr.ibv_mr.context) }?;
        let mut state = soft.nic().control();
        state.memory.remove(MemoryKey(object.mr.ibv_mr.lkey)).ok_or(EINVAL)?;
        release_domain(&mut state, object.domain);
        // SAFETY: the library drops the handle; `object` is not used any more.
        drop(unsafe { SoftMr::take(mr) });
        Ok(())
    })
}
