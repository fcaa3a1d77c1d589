//! Memory regions: what work requests may name.

use std::ffi::{c_int, c_void};

use ibverbs_sys::ibv_access_flags;

use super::domains::use_domain;
use crate::errno::{EFAULT, EINVAL, ENOMEM, EOPNOTSUPP, Verb, known_bits};
use crate::memory::MemoryKey;
pub use crate::memory::{MemoryRegion, populate};
use crate::state::State;

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

/// A request for a region.
#[derive(Clone, Copy, Debug)]
pub struct RegionRequest {
    /// The context.
    pub owner: u32,
    /// The protection domain whose queues may name the region.
    pub domain: u32,
    /// The start of the memory.
    pub address: *mut c_void,
    /// The length of the memory.
    pub bytes: usize,
    /// The first address that work requests use for it.
    pub virtual_address: u64,
    /// Bits of `enum ibv_access_flags`.
    pub access: c_int,
}

/// Checks a request for a region, and has its pages there. Not to be called with the state locked: many pages
/// may have to be there.
///
/// # Errors
/// EINVAL or EOPNOTSUPP for a range or rights that no region can have, and EFAULT if the memory is not mapped
/// with the rights that the region gives.
///
/// # Safety
/// The client gives the memory to the device, as with ibv_reg_mr(3): until the region is removed, the device
/// may read it at any time and, if the rights allow it, write to it.
pub unsafe fn prepare(request: &RegionRequest) -> Verb<MemoryRegion> {
    let RegionRequest { owner, domain, address, bytes, virtual_address, access } = *request;
    let writable = writable(access)?;
    let length = range(address, bytes, virtual_address)?;
    populate(address, bytes, writable)?;
    Ok(MemoryRegion { domain, owner, writable, virtual_address, address: address.cast(), bytes: length })
}

/// Adds a region, and counts the use of the domain that it was registered in; returns its key.
///
/// # Errors
/// ENOMEM if the device has no more, and EINVAL if there is no such domain.
pub fn insert(state: &mut State, region: MemoryRegion, domain: u32) -> Verb<u32> {
    let key = state.memory.insert(region).ok_or(ENOMEM)?;
    use_domain(state, domain)?;
    Ok(key.0)
}

/// Returns whether a key is that of a region of the context.
#[must_use]
pub fn is_owned(state: &State, owner: u32, key: u32) -> bool {
    state.memory.get(MemoryKey(key)).is_some_and(|region| region.owner == owner)
}

/// Removes a region; returns the protection domain whose queues could name it. The domain that it was
/// registered in is still in use.
///
/// # Errors
/// EINVAL if there is no such region.
pub fn remove(state: &mut State, key: u32) -> Verb<u32> {
    state.memory.remove(MemoryKey(key)).map(|region| region.domain).ok_or(EINVAL)
}
