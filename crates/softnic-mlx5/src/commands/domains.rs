//! Protection domains and memory regions. Thread and parent domains are libmlx5's own.

use softnic::errno::{EINVAL, Verb};
use softnic::objects::State;
use softnic::objects::domains::{self, release_domain};
use softnic::objects::regions::{self, RegionRequest};

use super::{Call, ENOENT};
use crate::context::Context;

/// A handle of one of the context's domains.
pub(super) fn check(state: &State, owner: u32, domain: u32) -> Verb<()> {
    if domains::is_owned(state, owner, domain) { Ok(()) } else { Err(EINVAL) }
}

/// ALLOC_PD.
pub(super) fn allocate(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    let owner = context.slot()?;
    let slot = domains::allocate(&mut context.nic.control(), owner)?;
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
    domains::free(&mut state, slot)
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
    let address = usize::try_from(start).map_err(|_| EINVAL)?;
    let request = RegionRequest {
        owner,
        domain,
        address: std::ptr::with_exposed_provenance_mut(address),
        bytes: usize::try_from(bytes).map_err(|_| EINVAL)?,
        virtual_address,
        access: access.cast_signed(),
    };
    // SAFETY: the client gives the memory to the device, as with ibv_reg_mr(3).
    let region = unsafe { regions::prepare(&request) }?;
    let mut state = context.nic.control();
    check(&state, owner, domain)?;
    let key = regions::insert(&mut state, region, domain)?;
    for at in [0, 4, 8] {
        call.reply.put_u32(at, key);
    }
    Ok(())
}

/// DEREG_MR.
pub(super) fn deregister_memory(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    let (owner, key) = (context.slot()?, call.core.u32(0));
    let mut state = context.nic.control();
    if !regions::is_owned(&state, owner, key) {
        return Err(ENOENT);
    }
    let domain = regions::remove(&mut state, key)?;
    release_domain(&mut state, domain);
    Ok(())
}
