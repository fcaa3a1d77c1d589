//! Protection domains and memory regions. Thread and parent domains are libmlx5's own.

use super::{Call, ENOENT};
use crate::errno::{EBUSY, EINVAL, ENOMEM, Verb};
use crate::memory::populate;
use crate::memory::{MemoryKey, Region};
use crate::mlx5::Context;
use crate::objects::domains::{release_domain, use_domain};
use crate::objects::regions::{range, writable};
use crate::state::{DomainState, State};

/// A handle of one of the context's domains.
pub(super) fn check(state: &State, owner: u32, domain: u32) -> Verb<()> {
    let known = state.domains.get(domain).filter(|domain| domain.owner == owner);
    known.map(|_| ()).ok_or(EINVAL)
}

/// ALLOC_PD.
pub(super) fn allocate(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    let domain = DomainState { owner: context.slot()?, users: 0 };
    let slot = context.nic.control().domains.insert(domain).ok_or(ENOMEM)?;
    call.reply.put_u32(0, slot);
    // `pdn`.
    call.driver_reply.put_u32(0, slot);
    Ok(())
}

/// DEALLOC_PD.
pub(super) fn free(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    let (owner, slot) = (context.slot()?, call.core.u32(0));
    let mut state = context.nic.control();
    check(&state, owner, slot).map_err(|_| ENOENT)?;
    if state.domains.get(slot).is_some_and(|domain| domain.users != 0) {
        return Err(EBUSY);
    }
    state.domains.remove(slot);
    Ok(())
}

/// REG_MR: `struct ib_uverbs_reg_mr`.
pub(super) fn register_memory(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    /// The kernel's pages: the two addresses must be at the same place in one (`ib_uverbs_reg_mr`).
    const PAGE_OFFSET: u64 = 0xfff;
    let owner = context.slot()?;
    let (start, bytes, virtual_address) = (call.core.u64(8), call.core.u64(16), call.core.u64(24));
    let (domain, access) = (call.core.u32(32), call.core.u32(36));
    if start & PAGE_OFFSET != virtual_address & PAGE_OFFSET {
        return Err(EINVAL);
    }
    let writable = writable(access.cast_signed())?;
    let address = usize::try_from(start).map_err(|_| EINVAL)?;
    let address = std::ptr::with_exposed_provenance_mut::<u8>(address);
    let length = usize::try_from(bytes).map_err(|_| EINVAL)?;
    range(address.cast(), length, virtual_address)?;
    populate(address.cast(), length, writable)?;
    let region = Region { domain, owner, writable, virtual_address, address, bytes };
    let mut state = context.nic.control();
    check(&state, owner, domain)?;
    let key = state.memory.insert(region).ok_or(ENOMEM)?;
    use_domain(&mut state, domain)?;
    for at in [0, 4, 8] {
        call.reply.put_u32(at, key.0);
    }
    Ok(())
}

/// DEREG_MR.
pub(super) fn deregister_memory(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    let (owner, key) = (context.slot()?, MemoryKey(call.core.u32(0)));
    let mut state = context.nic.control();
    state.memory.get(key).filter(|region| region.owner == owner).ok_or(ENOENT)?;
    if let Some(region) = state.memory.remove(key) {
        release_domain(&mut state, region.domain);
    }
    Ok(())
}
