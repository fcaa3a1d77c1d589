//! An open device: the parent of every other object, its attributes, and its clock. Not used on the packet
//! path.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::time::{Duration, SystemTime};

use ibverbs_sys::{ibv_comp_channel, ibv_context, ibv_device_attr_ex, ibv_port_attr, ibv_values_ex};

use crate::error::{from_code, last};
use crate::{CreateChannel, DeviceAttributes, PortAttributes, PortNumber, Result, VerbsError, inline, leak};

/// An open device. Every object made from it keeps it open.
pub struct Context {
    raw: NonNull<ibv_context>,
    name: String,
    /// How its provider makes completion channels, if not through the library.
    channel_maker: Option<CreateChannel>,
}

// SAFETY: libibverbs contexts may be used from any thread; the verbs that this crate calls on one lock
// inside.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Takes over a context that `ibv_open_device` returned; closes it if its events could not be read
    /// without waiting.
    pub(crate) fn adopt(
        raw: NonNull<ibv_context>,
        name: &str,
        channel_maker: Option<CreateChannel>,
    ) -> Result<Self> {
        let context = Self { raw, name: name.to_owned(), channel_maker };
        never_wait(context.async_fd())
            .map_err(|source| VerbsError::AsyncEvent { device: name.into(), source })?;
        Ok(context)
    }

    pub(crate) fn raw(&self) -> *mut ibv_context {
        self.raw.as_ptr()
    }

    /// A new completion channel, or NULL with `errno` set.
    ///
    /// # Safety
    /// The caller destroys it before this context is closed.
    pub(crate) unsafe fn create_channel(&self) -> *mut ibv_comp_channel {
        match self.channel_maker {
            // SAFETY: `raw` is open until `drop` and of the provider that gave the function
            // ([`crate::Provider`]).
            Some(create) => unsafe { create(self.raw()) },
            // SAFETY: `raw` is open until `drop`.
            None => unsafe { ibverbs_sys::ibv_create_comp_channel(self.raw()) },
        }
    }

    fn async_fd(&self) -> c_int {
        // SAFETY: `raw` is open until `drop`; the descriptor is set once, while opening.
        unsafe { (*self.raw()).async_fd }
    }

    /// Refuses an object made from `other`, before a provider would look up its number in the wrong table.
    pub(crate) fn same_as(&self, other: &Self) -> Result<()> {
        if ptr::eq(self, other) {
            return Ok(());
        }
        Err(VerbsError::MixedContexts { device: self.name.clone(), other: other.name.clone() })
    }

    /// The device's name, as [`ListedDevice::name`](crate::ListedDevice::name).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many interrupts a completion queue can choose from
    /// ([`completion_vector`](crate::CompletionQueueBuilder::completion_vector)).
    pub fn completion_vectors(&self) -> u32 {
        // SAFETY: `raw` is open until `drop`; the number is set once, while opening.
        u32::try_from(unsafe { (*self.raw()).num_comp_vectors }).unwrap_or(0)
    }

    /// Limits and capabilities (`ibv_query_device_ex`). Asks the device each time.
    pub fn attributes(&self) -> Result<DeviceAttributes> {
        let mut attr = ibv_device_attr_ex::default();
        // SAFETY: `raw` is open until `drop`.
        match unsafe { inline::query_device_ex(self.raw(), &mut attr) } {
            0 => Ok(DeviceAttributes::from(&attr)),
            code => Err(VerbsError::QueryDevice { device: self.name.clone(), source: from_code(code) }),
        }
    }

    /// State and speed of a port (`ibv_query_port`).
    pub fn port(&self, port: PortNumber) -> Result<PortAttributes> {
        let mut attr = ibv_port_attr::default();
        // SAFETY: `raw` is open until `drop`.
        match unsafe { inline::query_port(self.raw(), port.0, &mut attr) } {
            0 => Ok(PortAttributes::from(&attr)),
            code => Err(VerbsError::QueryPort { device: self.name.clone(), port, source: from_code(code) }),
        }
    }

    /// The device's free-running clock, in ticks of `hca_core_clock_khz`: what completion timestamps count.
    pub fn raw_clock(&self) -> Result<u64> {
        let mut values =
            ibv_values_ex { comp_mask: ibverbs_sys::IBV_VALUES_MASK_RAW_CLOCK, ..ibv_values_ex::default() };
        // SAFETY: `raw` is open until `drop`.
        let code = unsafe { inline::query_rt_values_ex(self.raw(), &mut values) };
        let answered = values.comp_mask & ibverbs_sys::IBV_VALUES_MASK_RAW_CLOCK != 0;
        let source = match code {
            // mlx5 puts all 64 bits of the counter into tv_nsec (providers/mlx5/verbs.c,
            // mlx5_query_rt_values).
            0 if answered => {
                let seconds = values.raw_clock.tv_sec.cast_unsigned();
                return Ok(seconds
                    .wrapping_mul(1_000_000_000)
                    .wrapping_add(values.raw_clock.tv_nsec.cast_unsigned()));
            }
            0 => from_code(libc::EOPNOTSUPP),
            code => from_code(code),
        };
        Err(VerbsError::QueryClock { device: self.name.clone(), source })
    }

    /// A conversion of the device's clock, good for timestamps taken around now: the device is asked for its
    /// rate, and its clock is read beside the system's.
    ///
    /// # Errors
    /// As [`Context::raw_clock`] and [`Context::attributes`]; EOPNOTSUPP if the device does not report the
    /// rate of its clock.
    pub fn clock(&self) -> Result<Clock> {
        let attributes = self.attributes()?;
        let (khz, mask) = (attributes.hca_core_clock_khz, attributes.completion_timestamp_mask);
        let (before, raw, after) = (SystemTime::now(), self.raw_clock()?, SystemTime::now());
        let between = before + after.duration_since(before).unwrap_or_default() / 2;
        Clock::new(khz, mask, raw, between).ok_or_else(|| VerbsError::QueryClock {
            device: self.name.clone(),
            source: from_code(libc::EOPNOTSUPP),
        })
    }
}

/// Makes reads of a descriptor answer at once; ibv_get_async_event(3) asks for exactly this. Also shows
/// whether there is a descriptor at all.
pub(crate) fn never_wait(fd: c_int) -> io::Result<()> {
    // SAFETY: asks about a number.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(last());
    }
    // SAFETY: the caller's descriptor, as it is open.
    match unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } {
        0 => Ok(()),
        _ => Err(last()),
    }
}

impl AsFd for Context {
    /// Readable when [`Context::async_event`] has something.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: `adopt` found the descriptor open; it stays so until the context is closed, in `drop`.
        unsafe { BorrowedFd::borrow_raw(self.async_fd()) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: `raw` came from `ibv_open_device`; every object made from it held an `Arc` of this and is
        // gone.
        let code = unsafe { ibverbs_sys::ibv_close_device(self.raw()) };
        leak::log("ibv_close_device", &self.name, code);
    }
}

/// How to read the timestamps of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// Ticks per millisecond (`hca_core_clock`).
    khz: u64,
    /// The bits of a timestamp that count: the rest of a reading is undefined, and the count wraps there.
    mask: u64,
    /// One reading of the device's clock, and the system's time at that moment.
    reference: (u64, SystemTime),
}

impl Clock {
    /// `None` without a rate or without bits that count.
    pub(crate) fn new(khz: u64, mask: u64, raw: u64, at: SystemTime) -> Option<Self> {
        (khz != 0 && mask != 0).then_some(Self { khz, mask, reference: (raw & mask, at) })
    }

    /// How long so many ticks are, in nanoseconds, rounded down; the largest number if it does not fit.
    fn nanos(&self, ticks: u64) -> u64 {
        u64::try_from(u128::from(ticks) * 1_000_000 / u128::from(self.khz)).unwrap_or(u64::MAX)
    }

    /// From the `earlier` timestamp to the `later` one, across at most one turn of the counter.
    pub fn between(&self, earlier: u64, later: u64) -> Duration {
        Duration::from_nanos(self.nanos(later.wrapping_sub(earlier) & self.mask))
    }

    /// The system's time at a timestamp, which is taken to be less than half a turn of the counter away from
    /// when this conversion was made. `None` outside the range of [`SystemTime`].
    pub fn system_time(&self, timestamp: u64) -> Option<SystemTime> {
        let (raw, at) = self.reference;
        let ahead = timestamp.wrapping_sub(raw) & self.mask;
        let behind = raw.wrapping_sub(timestamp) & self.mask;
        if ahead <= behind {
            at.checked_add(Duration::from_nanos(self.nanos(ahead)))
        } else {
            at.checked_sub(Duration::from_nanos(self.nanos(behind)))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri cannot set flags of a descriptor")]
    fn a_descriptor_that_cannot_answer_at_once_is_an_error() {
        let (reader, _writer) = io::pipe().expect("a pipe");
        never_wait(reader.as_raw_fd()).expect("a pipe can");
        let error = io::Read::read(&mut &reader, &mut [0]).expect_err("empty");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(never_wait(-1).expect_err("no descriptor").raw_os_error(), Some(libc::EBADF));
    }

    const AT: SystemTime = SystemTime::UNIX_EPOCH;

    fn clock(khz: u64, mask: u64, raw: u64) -> Clock {
        Clock::new(khz, mask, raw, AT + Duration::from_secs(1000)).expect("a rate and bits")
    }

    #[test]
    fn ticks_become_nanoseconds_without_overflow() {
        let clock = clock(156_250, u64::MAX, 0);
        assert_eq!(clock.nanos(156_250_000), 1_000_000_000);
        assert_eq!(clock.nanos(1), 6, "6.4 ns, rounded down");
        assert_eq!(self::clock(1, u64::MAX, 0).nanos(u64::MAX), u64::MAX);
    }

    #[test]
    fn a_counter_that_wraps_is_followed() {
        let clock = clock(1_000_000, 0xffff, 0xfff0);
        assert_eq!(clock.between(0xfff0, 0x0010), Duration::from_nanos(0x20));
        let made = AT + Duration::from_secs(1000);
        assert_eq!(clock.system_time(0x0010), Some(made + Duration::from_nanos(0x20)));
        assert_eq!(clock.system_time(0xffe0), Some(made - Duration::from_nanos(0x10)));
        assert_eq!(clock.system_time(0xabcd_fff0), Some(made), "bits that do not count");
    }

    #[test]
    fn a_clock_without_a_rate_is_none() {
        assert!(Clock::new(0, u64::MAX, 5, AT).is_none() && Clock::new(5, 0, 5, AT).is_none());
    }
}
