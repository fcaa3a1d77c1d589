//! Flow counters: packets and bytes, summed over the flows that share them.
//!
//! Made before the flows that count into them; read at scrape time, as a read may cost a firmware query.

use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use ibverbs_sys::{self as sys, ibv_counter_attach_attr, ibv_counters, ibv_counters_init_attr};

use crate::error::{created, from_code};
use crate::{Context, CounterPoint, Result, VerbsError, inline, leak};

bitflags::bitflags! {
    /// `ibv_read_counters_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ReadFlags: u32 {
        /// A reading that the driver has kept will do, if it keeps any.
        const PREFER_CACHED = sys::IBV_READ_COUNTERS_ATTR_PREFER_CACHED;
        const _ = !0;
    }
}

/// A counters object, which several flows can count into.
pub struct Counters {
    raw: NonNull<ibv_counters>,
    context: Arc<Context>,
    /// The points that it was made with, each at the index it has in a reading.
    points: Box<[CounterPoint]>,
}

// SAFETY: the verbs on counters may be called from any thread; the structure is never written after it was
// made.
unsafe impl Send for Counters {}
// SAFETY: as above.
unsafe impl Sync for Counters {}

/// A reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterValues {
    /// Packets that matched.
    pub packets: u64,
    /// The bytes of these packets.
    pub bytes: u64,
}

impl Counters {
    /// Packets and bytes; what most want.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>> {
        Self::with_points(context, &[CounterPoint::Packets, CounterPoint::Bytes])
    }

    /// `ibv_create_counters`, with these points attached for every flow bound later, each at its index in a
    /// reading.
    ///
    /// # Errors
    /// EOPNOTSUPP where a device has no counters, EINVAL for a point it does not count, ENOMEM.
    pub fn with_points(context: &Arc<Context>, points: &[CounterPoint]) -> Result<Arc<Self>> {
        let mut attr = ibv_counters_init_attr::default();
        // SAFETY: the context is open.
        let raw = created(|| unsafe { inline::create_counters(context.raw(), &mut attr) })
            .map_err(|source| VerbsError::CreateCounters { device: context.name().into(), source })?;
        let counters = Self { raw, context: Arc::clone(context), points: points.into() };
        (0..).zip(points).try_for_each(|(index, &point)| counters.attach(point, index))?;
        Ok(Arc::new(counters))
    }

    /// `ibv_attach_counters_point_flow`, without a flow: the point goes to `index` of a reading. An index can
    /// be used for several points, whose sum it then is (ibv_attach_counters_point_flow(3)).
    ///
    /// # Errors
    /// EINVAL for a point the device does not count; EINVAL or EBUSY once a flow counts here.
    pub fn attach(&self, counter: CounterPoint, index: u32) -> Result<()> {
        let mut attr = ibv_counter_attach_attr { counter_desc: counter.raw(), index, comp_mask: 0 };
        // SAFETY: context and counters are live; without a flow, the point serves every flow bound later.
        let code = unsafe {
            inline::attach_counters_point_flow(self.context.raw(), self.raw(), &mut attr, ptr::null_mut())
        };
        match code {
            0 => Ok(()),
            code => {
                let device = self.context.name().into();
                Err(VerbsError::AttachCounters { device, counter, source: from_code(code) })
            }
        }
    }

    /// The totals since the object was made; 0 for a point it was not made with.
    ///
    /// # Errors
    /// As for [`Counters::values`].
    pub fn read(&self) -> Result<CounterValues> {
        let mut values = vec![0; self.points.len()];
        self.values(ReadFlags::empty(), &mut values)?;
        let sum = |wanted| {
            let pairs = self.points.iter().zip(&values);
            pairs
                .filter(|(point, _)| **point == wanted)
                .fold(0, |sum: u64, (_, value)| sum.wrapping_add(*value))
        };
        Ok(CounterValues { packets: sum(CounterPoint::Packets), bytes: sum(CounterPoint::Bytes) })
    }

    /// `ibv_read_counters`: the totals by index, as many as fit in `values`.
    ///
    /// # Errors
    /// EINVAL for fewer or, on some devices, more values than there are points, and before a flow counts
    /// here; EOPNOTSUPP for a flag the device does not know; EIO when the device does not answer.
    pub fn values(&self, flags: ReadFlags, values: &mut [u64]) -> Result<()> {
        let count = u32::try_from(values.len()).unwrap_or(u32::MAX);
        // SAFETY: context and counters are live; the array has at least `count` entries.
        let code = unsafe {
            inline::read_counters(self.context.raw(), self.raw(), values.as_mut_ptr(), count, flags.bits())
        };
        match code {
            0 => Ok(()),
            code => {
                Err(VerbsError::ReadCounters { device: self.context.name().into(), source: from_code(code) })
            }
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
        // SAFETY: `raw` came from `create_counters`; flows that count here held an `Arc` of this and are
        // gone.
        let code = unsafe { inline::destroy_counters(self.context.raw(), self.raw()) };
        leak::keep("ibv_destroy_counters", self.context.name(), code, || Arc::clone(&self.context));
    }
}
