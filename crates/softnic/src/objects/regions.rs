//! Memory regions: what work requests may name.

use std::ffi::{c_int, c_void};

use ibverbs_sys::ibv_access_flags;

use crate::errno::{EFAULT, EINVAL, EOPNOTSUPP, Verb, known_bits};

/// `IBV_ACCESS_OPTIONAL_RANGE`: flags that a device may ignore.
const OPTIONAL_ACCESS: u32 = 0x3ff0_0000;

/// Whether a region with these flags can be written to by the device.
pub(crate) fn writable(access: c_int) -> Verb<bool> {
    let flags = access.cast_unsigned();
    let local = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
    let remote_write =
        ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0 | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
    let remote_read = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
    known_bits(flags, local | remote_write | remote_read | OPTIONAL_ACCESS, EOPNOTSUPP)?;
    // The kernel (ib_check_mr_access): remote write needs local write.
    if flags & remote_write != 0 && flags & local == 0 {
        return Err(EINVAL);
    }
    Ok(flags & local != 0)
}

/// Neither a range nor its image in the device's address space may be empty or wrap. Returns its length.
pub(crate) fn range(address: *mut c_void, bytes: usize, virtual_address: u64) -> Verb<u64> {
    if address.is_null() || bytes == 0 {
        return Err(EINVAL);
    }
    let length = u64::try_from(bytes).map_err(|_| EINVAL)?;
    address.addr().checked_add(bytes).ok_or(EFAULT)?;
    virtual_address.checked_add(length).ok_or(EINVAL)?;
    Ok(length)
}
