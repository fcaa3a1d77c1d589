//! Indirection tables.

use softnic::errno::{EINVAL, EOPNOTSUPP, Verb};
use softnic::objects::{State, tables};

use super::{Call, ENOENT, queues};
use crate::context::Context;

/// Where the work queues' handles begin in `struct ib_uverbs_ex_create_rwq_ind_table`.
const HANDLES: usize = 8;

/// One of the context's tables.
pub(super) fn check(state: &State, owner: u32, table: u32) -> Verb<()> {
    if tables::is_owned(state, owner, table) { Ok(()) } else { Err(EINVAL) }
}

/// The extended CREATE_RWQ_IND_TBL (kernel core/uverbs_cmd.c, `ib_uverbs_ex_create_rwq_ind_table`).
pub(super) fn create_table(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    let owner = context.slot()?;
    if call.core.u32(0) != 0 {
        return Err(EOPNOTSUPP);
    }
    let entries = 1_usize.checked_shl(call.core.u32(4)).ok_or(EINVAL)?;
    let bytes = entries.checked_mul(size_of::<u32>()).ok_or(EINVAL)?;
    if entries > context.nic.max_table_entries() as usize || call.core.len() < HANDLES + bytes {
        return Err(EINVAL);
    }
    let slots: Vec<u32> =
        (0..entries).map(|entry| call.core.u32(HANDLES + entry * size_of::<u32>())).collect();
    let mut state = context.nic.control();
    for slot in &slots {
        queues::check_queue(&state, owner, *slot)?;
    }
    let table = tables::insert(&context.nic, &mut state, owner, &slots)?;
    let reply = &mut call.reply;
    reply.put_u32(4, reply.length(16));
    reply.put_u32(8, table);
    reply.put_u32(12, table);
    call.driver_reply.put_u32(0, call.driver_reply.length(8));
    Ok(())
}

/// The extended DESTROY_RWQ_IND_TBL.
pub(super) fn destroy_table(context: &Context, call: &mut Call<'_>) -> Verb<()> {
    let (owner, slot) = (context.slot()?, call.core.u32(4));
    if call.core.u32(0) != 0 {
        return Err(EOPNOTSUPP);
    }
    let mut state = context.nic.control();
    check(&state, owner, slot).map_err(|_| ENOENT)?;
    tables::remove(&mut state, slot)
}
