//! The properties of the device: attributes, ports, clock; and the end of a context.

use std::ffi::c_int;
use std::mem::offset_of;

use ibverbs_sys::{
    IBV_VALUES_MASK_RAW_CLOCK, ibv_context, ibv_device_attr, ibv_device_attr_ex, ibv_port_attr,
    ibv_query_device_ex_input, ibv_values_ex, timespec,
};
use softnic::clock;
use softnic::errno::{EINVAL, Verb, guard, known_bits};
use softnic::objects::{attributes, contexts};
use softnic::personality::ClockRules;

use super::answer::answer_status;
use crate::library::Library;
use crate::soft_context::{SoftContext, VERBS_CONTEXT_OFFSET};

pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_bytes: usize,
) -> c_int {
    answer_status(|| {
        // SAFETY: the library passes a live context of this provider.
        let context = unsafe { SoftContext::of(context) }?;
        // SAFETY: NULL or the application's struct.
        if let Some(input) = unsafe { input.as_ref() } {
            known_bits(input.comp_mask, 0, EINVAL)?;
        }
        if attr.is_null() || attr_bytes < size_of::<ibv_device_attr>() {
            return Err(EINVAL);
        }
        let full = attributes::device(context.nic());
        let known = attr_bytes.min(size_of::<ibv_device_attr_ex>());
        // SAFETY: the application gave `attr_bytes` bytes.
        unsafe { attr.cast::<u8>().write_bytes(0, attr_bytes) };
        // SAFETY: `known` bytes are within both, and they do not overlap.
        unsafe { attr.cast::<u8>().copy_from_nonoverlapping((&raw const full).cast(), known) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    number: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    /// Releases before 54 know the struct without `active_speed_ex`, so that is never written.
    const COMMON_BYTES: usize = offset_of!(ibv_port_attr, active_speed_ex);

    answer_status(|| {
        // SAFETY: the library passes a live context of this provider.
        let context = unsafe { SoftContext::of(context) }?;
        let full = attributes::port(context.nic(), number, context.tables.gids, context.tables.pkeys)?;
        if attr.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: the library gives at least the struct of its own release, which begins with these bytes.
        unsafe { attr.cast::<u8>().copy_from_nonoverlapping((&raw const full).cast(), COMMON_BYTES) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    answer_status(|| {
        // SAFETY: the library passes a live context of this provider.
        let soft = unsafe { SoftContext::of(context) }?;
        // SAFETY: NULL or the application's struct.
        let values = unsafe { values.as_mut() }.ok_or(EINVAL)?;
        raw_clock(&soft.nic().clock(), values)
    })
}

/// `comp_mask` comes in as what is asked for and goes out as what was answered (ibv_query_rt_values_ex(3)).
fn raw_clock(rules: &ClockRules, values: &mut ibv_values_ex) -> Verb<()> {
    known_bits(values.comp_mask, IBV_VALUES_MASK_RAW_CLOCK, EINVAL)?;
    if values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK != 0 {
        // As mlx5 and mlx4: seconds 0, and the ticks in the place of nanoseconds.
        let ticks = rules.ticks(clock::now_ns());
        values.raw_clock = timespec { tv_sec: 0, tv_nsec: ticks.cast_signed() };
    }
    Ok(())
}

/// Called by `ibv_close_device`.
pub(crate) unsafe extern "C" fn free_context(context: *mut ibv_context) {
    guard((), || {
        let (Some(base), Some(library)) = (SoftContext::base(context), Library::loaded()) else { return };
        // SAFETY: the head was written in `alloc_context`; the library closes a context once.
        let head = unsafe { base.read() };
        let slot = head.slot;
        // SAFETY: the library closes the context, which is not used after that.
        let nic = unsafe { head.into_nic() };
        contexts::close(&nic, slot);
        let verbs_context = base.cast::<u8>().wrapping_add(VERBS_CONTEXT_OFFSET);
        // SAFETY: initialised by the library and not yet uninitialised; closes both descriptors.
        unsafe { (library.uninit_context)(verbs_context.cast()) };
        // SAFETY: the library calloc'ed it, and leaves freeing to the provider.
        unsafe { libc::free(base.cast()) };
    });
}
