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
fn writable(access: c_int) -> Verb<bool> {
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
fn range(address: *mut c_void, bytes: usize, virtual_address: u64) -> Verb<u64> {
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

/// The region of a key.
///
/// # Errors
/// EINVAL if there is none.
pub fn find(state: &State, key: u32) -> Verb<MemoryRegion> {
    state.memory.get(MemoryKey(key)).copied().ok_or(EINVAL)
}

/// The changes of a region that is registered again (ibv_rereg_mr(3)); `None` leaves a part as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct RegionChange {
    /// The memory, by its start and its length. Work requests use the start as the first address.
    pub translation: Option<(*mut c_void, usize)>,
    /// Bits of `enum ibv_access_flags`.
    pub access: Option<c_int>,
}

/// The region as changed, with its pages there. Not to be called with the state locked.
///
/// # Errors
/// The errors of [`prepare`].
///
/// # Safety
/// The contract of [`prepare`] holds for the memory and the rights of the changed region.
pub unsafe fn prepare_change(mut region: MemoryRegion, change: RegionChange) -> Verb<MemoryRegion> {
    if let Some((address, bytes)) = change.translation {
        let virtual_address = u64::try_from(address.addr()).map_err(|_| EINVAL)?;
        region.bytes = range(address, bytes, virtual_address)?;
        (region.address, region.virtual_address) = (address.cast(), virtual_address);
    }
    if let Some(access) = change.access {
        region.writable = writable(access)?;
    }
    if change.translation.is_some() || change.access.is_some() {
        let bytes = usize::try_from(region.bytes).map_err(|_| EINVAL)?;
        populate(region.address.cast(), bytes, region.writable)?;
    }
    Ok(region)
}

/// Puts a changed region in the place of the one with its key. `domain` is the protection domain whose queues
/// may name it from now on, if it changes.
pub fn replace(state: &mut State, key: u32, mut region: MemoryRegion, domain: Option<u32>) {
    region.domain = domain.unwrap_or(region.domain);
    state.memory.replace(MemoryKey(key), region);
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
