//! Flow counters: packets and bytes, summed over the flows that share them.
//!
//! Made before the flows that count into them; read at scrape time, as a read may cost a firmware query.

use std::ffi::c_int;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use ibverbs_sys::{
    self as sys, ibv_counter_attach_attr, ibv_counter_description, ibv_counters, ibv_counters_init_attr,
};

use crate::error::{from_code, last};
use crate::{Context, Error, Result, inline, leak};

/// The counter points, each at the index it has in a reading. Devices take points only before a flow is bound.
const POINTS: [(&str, ibv_counter_description); 2] =
    [("packets", sys::IBV_COUNTER_PACKETS), ("bytes", sys::IBV_COUNTER_BYTES)];

/// A counters object with a packet and a byte point.
pub struct Counters {
    raw: NonNull<ibv_counters>,
    context: Arc<Context>,
}

// SAFETY: the verbs on counters may be called from any thread; the structure is never written after it was made.
unsafe impl Send for Counters {}
// SAFETY: as above.
unsafe impl Sync for Counters {}

/// A reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterValues {
    /// Packets that matched.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Counters {
    /// `ibv_create_counters`, with both points attached.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>> {
        let mut attr = ibv_counters_init_attr::default();
        // SAFETY: the context is open.
        let raw = unsafe { inline::create_counters(context.raw(), &mut attr) };
        let raw = NonNull::new(raw)
            .ok_or_else(|| Error::CreateCounters { device: context.name().into(), source: last() })?;
        let counters = Self { raw, context: Arc::clone(context) };
        for (index, (counter, counter_desc)) in (0..).zip(POINTS) {
            match counters.attach(counter_desc, index) {
                0 => {}
                code => {
                    let device = context.name().into();
                    return Err(Error::AttachCounters { device, counter, source: from_code(code) });
                }
            }
        }
        Ok(Arc::new(counters))
    }

    fn attach(&self, counter_desc: ibv_counter_description, index: u32) -> c_int {
        let mut attr = ibv_counter_attach_attr { counter_desc, index, comp_mask: 0 };
        // SAFETY: context and counters are live; without a flow, the point serves every flow bound later.
        unsafe {
            inline::attach_counters_point_flow(self.context.raw(), self.raw(), &mut attr, ptr::null_mut())
        }
    }

    /// The totals since the object was made.
    pub fn read(&self) -> Result<CounterValues> {
        let mut values = [0; POINTS.len()];
        let (count, flags) = (POINTS.len() as u32, 0);
        // SAFETY: context and counters are live; the array has `count` entries.
        let code = unsafe {
            inline::read_counters(self.context.raw(), self.raw(), values.as_mut_ptr(), count, flags)
        };
        match code {
            0 => Ok(CounterValues { packets: values[0], bytes: values[1] }),
            code => Err(Error::ReadCounters { device: self.context.name().into(), source: from_code(code) }),
        }
    }

    pub(crate) fn raw(&self) -> *mut ibv_counters {
        self.raw.as_ptr()
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counters").field("device", &self.context.name()).finish_non_exhaustive()
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        // SAFETY: `raw` came from `create_counters`; flows that count here held an `Arc` of this and are gone.
        let code = unsafe { inline::destroy_counters(self.context.raw(), self.raw()) };
        leak::keep("ibv_destroy_counters", self.context.name(), code, || Arc::clone(&self.context));
    }
}
