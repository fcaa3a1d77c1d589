//! Counter sets: points attached before the flows, read at any time.

use std::ffi::c_int;

use ibverbs_sys::{
    IBV_COUNTER_BYTES, IBV_COUNTER_PACKETS, ibv_context, ibv_counter_attach_attr, ibv_counters,
    ibv_counters_init_attr, ibv_flow,
};
use softnic::errno::{EINVAL, EOPNOTSUPP, known_bits};
use softnic::objects::counters::{self, CounterPoint};

use super::Object;
use super::answer::{answer_handle, answer_status};
use crate::soft_context::SoftContext;

/// `IBV_READ_COUNTERS_ATTR_PREFER_CACHED`: these counters are always at hand, so it changes nothing.
const PREFER_CACHED: u32 = 1;

/// A counter set.
#[repr(C)]
pub(crate) struct SoftCounters {
    counters: ibv_counters,
    pub(crate) slot: u32,
}

// SAFETY: `repr(C)` with `ibv_counters` first; handed out by `into_native` only.
unsafe impl Object for SoftCounters {
    type Native = ibv_counters;
}

impl SoftCounters {
    pub(crate) fn context(&self) -> *mut ibv_context {
        self.counters.context
    }
}

pub(crate) unsafe extern "C" fn create_counters(
    context: *mut ibv_context,
    attr: *mut ibv_counters_init_attr,
) -> *mut ibv_counters {
    answer_handle(|| {
        // SAFETY: the library passes a live context of this provider.
        let soft = unsafe { SoftContext::of(context) }?;
        counters::check_supported(soft.nic())?;
        // SAFETY: NULL or the application's struct.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        known_bits(attr.comp_mask, 0, EOPNOTSUPP)?;
        let slot = counters::create(&mut soft.nic().control(), soft.slot)?;
        Ok(SoftCounters { counters: ibv_counters { context }, slot }.into_native())
    })
}

pub(crate) unsafe extern "C" fn attach_counters_point_flow(
    set: *mut ibv_counters,
    attr: *mut ibv_counter_attach_attr,
    flow: *mut ibv_flow,
) -> c_int {
    answer_status(|| {
        // SAFETY: NULL or a set of this provider, by the verb's contract.
        let object = unsafe { SoftCounters::of(set) }?;
        // SAFETY: NULL or the application's struct.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        if !flow.is_null() {
            // As mlx5: counters are bound statically, by a COUNT action at the flow's creation.
            return Err(EOPNOTSUPP);
        }
        known_bits(attr.comp_mask, 0, EOPNOTSUPP)?;
        let point = match attr.counter_desc {
            IBV_COUNTER_PACKETS => CounterPoint::Packets,
            IBV_COUNTER_BYTES => CounterPoint::Bytes,
            _ => return Err(EOPNOTSUPP),
        };
        // SAFETY: the set keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.context()) }?;
        counters::attach(&mut soft.nic().control(), object.slot, attr.index, point)
    })
}

pub(crate) unsafe extern "C" fn read_counters(
    set: *mut ibv_counters,
    values: *mut u64,
    count: u32,
    flags: u32,
) -> c_int {
    answer_status(|| {
        // SAFETY: NULL or a set of this provider, by the verb's contract.
        let object = unsafe { SoftCounters::of(set) }?;
        known_bits(flags, PREFER_CACHED, EINVAL)?;
        // SAFETY: the set keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.context()) }?;
        let state = soft.nic().control_without_wakeup();
        if values.is_null() {
            return Err(EINVAL);
        }
        let read = counters::values(soft.nic(), &state, object.slot, count as usize)?;
        // The kernel (uverbs_std_types_counters.c) returns the whole array, with zeros where no point is.
        // SAFETY: the application gave `count` values; bytes, so their alignment does not matter.
        unsafe { values.cast::<u8>().copy_from_nonoverlapping(read.as_ptr().cast(), size_of_val(&*read)) };
        // SAFETY: as above, of which `read` fills the beginning.
        let rest = unsafe { values.add(read.len()) };
        // SAFETY: as above.
        unsafe { rest.cast::<u8>().write_bytes(0, (count as usize - read.len()) * size_of::<u64>()) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn destroy_counters(set: *mut ibv_counters) -> c_int {
    answer_status(|| {
        // SAFETY: NULL or a set of this provider, by the verb's contract.
        let object = unsafe { SoftCounters::of(set) }?;
        // SAFETY: the set keeps the context it was made with.
        let soft = unsafe { SoftContext::of(object.context()) }?;
        counters::destroy(&mut soft.nic().control(), object.slot)?;
        // SAFETY: the library drops the handle; `object` is not used any more.
        drop(unsafe { SoftCounters::take(set) });
        Ok(())
    })
}
