//! Indirection tables: a power of two of work queues. Created and destroyed, never changed.

use std::ffi::c_int;

use ibverbs_sys::{ibv_context, ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr};

use super::Object;
use super::answer::{EBUSY, EINVAL, ENOMEM, EOPNOTSUPP, Verb, answer_handle, answer_status, known_bits};
use super::wq::SoftWq;
use crate::device::SoftContext;
use crate::state::TableState;

/// An indirection table.
#[repr(C)]
pub(crate) struct SoftTable {
    table: ibv_rwq_ind_table,
    pub(crate) slot: u32,
}

// SAFETY: `repr(C)` with `ibv_rwq_ind_table` first; handed out by `into_native` only.
unsafe impl Object for SoftTable {
    type Native = ibv_rwq_ind_table;
}

impl SoftTable {
    pub(crate) fn context(&self) -> *mut ibv_context {
        self.table.context
    }
}

pub(crate) unsafe extern "C" fn create_rwq_ind_table(
    context: *mut ibv_context,
    attr: *mut ibv_rwq_ind_table_init_attr,
) -> *mut ibv_rwq_ind_table {
    answer_handle(|| {
        // SAFETY: the library passes a live context of this provider.
        let soft = unsafe { SoftContext::of(context) }?;
        // SAFETY: NULL or the application's struct.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        known_bits(attr.comp_mask, 0, EOPNOTSUPP)?;
        let rules = &soft.nic().rules().rss;
        let queues = entries(attr, context, rules.max_entries as usize)?;
        let mut state = soft.nic().control();
        let numbers: Option<Vec<u32>> =
            queues.iter().map(|queue| state.queues.get(*queue).map(|queue| queue.number)).collect();
        let numbers = numbers.ok_or(EINVAL)?;
        if rules.consecutive && numbers.windows(2).any(|pair| pair[1] != pair[0] + 1) {
            return Err(EINVAL);
        }
        let table = TableState { owner: soft.slot, users: 0, queues: queues.clone() };
        let slot = state.tables.insert(table).ok_or(ENOMEM)?;
        for queue in &queues {
            if let Some(queue) = state.queues.get_mut(*queue) {
                queue.users += 1;
            }
        }
        let handle = c_int::try_from(slot).map_err(|_| ENOMEM)?;
        let table = ibv_rwq_ind_table { context, ind_tbl_handle: handle, ind_tbl_num: handle, comp_mask: 0 };
        Ok(SoftTable { table, slot }.into_native())
    })
}

/// The queues' slots, in order.
fn entries(
    attr: &ibv_rwq_ind_table_init_attr,
    context: *mut ibv_context,
    max_entries: usize,
) -> Verb<Box<[u32]>> {
    let length = 1usize.checked_shl(attr.log_ind_tbl_size).ok_or(EINVAL)?;
    if length > max_entries || attr.ind_tbl.is_null() {
        return Err(EINVAL);
    }
    (0..length)
        .map(|index| {
            // SAFETY: the application's array has 2^log_ind_tbl_size entries, by the verb's contract.
            let entry = unsafe { attr.ind_tbl.add(index) };
            // SAFETY: as above.
            let wq = unsafe { entry.read() };
            // SAFETY: NULL or a work queue of this provider, by the verb's contract.
            let wq = unsafe { SoftWq::of(wq) }?;
            if wq.context() == context { Ok(wq.slot) } else { Err(EINVAL) }
        })
        .collect()
}

pub(crate) unsafe extern "C" fn destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int {
    answer_status(|| {
        // SAFETY: NULL or a table of this provider, by the verb's contract.
        let object = unsafe { SoftTable::of(table) }?;
        // SAFETY: the table keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.context()) }?;
        let mut state = soft.nic().control();
        if state.tables.get(object.slot).ok_or(EINVAL)?.users != 0 {
            return Err(EBUSY);
        }
        if let Some(removed) = state.tables.remove(object.slot) {
            for queue in &removed.queues {
                if let Some(queue) = state.queues.get_mut(*queue) {
                    queue.users -= 1;
                }
            }
        }
        // SAFETY: the library drops the handle; `object` is not used any more.
        drop(unsafe { SoftTable::take(table) });
        Ok(())
    })
}
