//! The two pages from which libmlx5 reads the device's clock, without a system call: the clock itself, for
//! `ibv_query_rt_values_ex`, and the relation of its ticks to UTC, for completions with the wall clock
//! (rdma-core mlx5.c, `mlx5_map_internal_clock` and `mlx5_map_clock_info`; kernel hw/mlx5/main.c,
//! `mlx5_ib_mmap`).
//!
//! The engine writes the time to the page after each pass, so the time in it is that of the last pass.
//! Without traffic it is up to 4 ms old, the longest sleep of the engine between two passes. It is never in
//! the future.
//!
//! Invariants: the pages are mapped as long as this value exists, and are written through atomics only,
//! because the client reads them at any time. The client cannot write: its descriptors of the file cannot be
//! mapped writable. Where the kernel cannot ensure this (before 5.1), there are no pages and the device has
//! no clock.

use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use softnic::clock::{ClockRules, ClockView};

/// Bytes of a page. Kernels with larger ones do not show the clock.
pub(crate) const PAGE_BYTES: usize = 1 << 12;
const BYTES: usize = 2 * PAGE_BYTES;

/// Members of `struct mlx5_ib_clock_info`, by their offsets in the second page.
const SIGN: usize = PAGE_BYTES;
const NANOSECONDS: usize = PAGE_BYTES + 8;
const CYCLES: usize = PAGE_BYTES + 16;
const MULTIPLIER: usize = PAGE_BYTES + 32;
const SHIFT: usize = PAGE_BYTES + 36;
const MASK: usize = PAGE_BYTES + 40;
const OVERFLOW_PERIOD: usize = PAGE_BYTES + 48;

/// `MLX5_IB_CLOCK_INFO_KERNEL_UPDATING`: the members are being written.
const UPDATING: u32 = 1;
/// Binary digits behind the point of the multiplier.
const SHIFT_BITS: u32 = 23;
/// How often the relation is written anew. At any rate the product of ticks and multiplier overflows after
/// 2^41 ns, more than half an hour; and the error of the multiplier, less than one part in 10^7, is less than
/// 0.1 us in this time.
const INFO_PERIOD_NS: u64 = 1_000_000_000;

/// Which of the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClockPage {
    /// The clock.
    Core,
    /// The relation of the clock to UTC.
    Info,
}

/// Both pages.
#[derive(Debug)]
pub(crate) struct ClockPages {
    address: NonNull<u8>,
    file: OwnedFd,
    clock: ClockRules,
    /// When the relation was written; only the engine looks at it.
    written_ns: AtomicU64,
}

// SAFETY: the mapping is this value's, and is used through atomics.
unsafe impl Send for ClockPages {}
// SAFETY: as above.
unsafe impl Sync for ClockPages {}

impl ClockPages {
    pub(crate) fn new(clock: ClockRules, now_ns: u64) -> rustix::io::Result<Self> {
        let file = memfd_create("softnic-clock", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, BYTES as u64)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let address = unsafe { mmap(std::ptr::null_mut(), BYTES, protection, MapFlags::SHARED, &file, 0) }?;
        let address = NonNull::new(address.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        let pages = Self { address, file, clock, written_ns: AtomicU64::new(0) };
        // From here on it cannot be mapped writable. Kernels before 5.1 do not know that seal.
        fcntl_add_seals(&pages.file, SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW)?;
        pages.short(MULTIPLIER).store(multiplier(clock), Ordering::Relaxed);
        pages.short(SHIFT).store(SHIFT_BITS, Ordering::Relaxed);
        pages.long(MASK).store(clock.mask, Ordering::Relaxed);
        pages.long(OVERFLOW_PERIOD).store(2 * INFO_PERIOD_NS, Ordering::Relaxed);
        pages.update(now_ns);
        Ok(pages)
    }

    /// The file, and where a page is in it.
    pub(crate) fn place(&self, page: ClockPage) -> (RawFd, i64) {
        let offset = if page == ClockPage::Core { 0 } else { PAGE_BYTES };
        (self.file.as_raw_fd(), offset as i64)
    }

    fn short(&self, offset: usize) -> &AtomicU32 {
        let place = self.address.as_ptr().wrapping_add(offset).cast();
        // SAFETY: within the mapping and aligned, by the constants above; all uses are atomic.
        unsafe { AtomicU32::from_ptr(place) }
    }

    fn long(&self, offset: usize) -> &AtomicU64 {
        let place = self.address.as_ptr().wrapping_add(offset).cast();
        // SAFETY: as in `short`.
        unsafe { AtomicU64::from_ptr(place) }
    }
}

impl ClockView for ClockPages {
    /// Writes the time to the pages. The caller is the first engine's thread, or the one that makes them.
    fn update(&self, now_ns: u64) {
        let ticks = self.clock.ticks(now_ns);
        // One store of two words in network byte order, of which the client reads the first one twice.
        self.long(0).store(ticks.to_be(), Ordering::Release);
        // Also if the clock of the system was set back.
        if now_ns.abs_diff(self.written_ns.load(Ordering::Relaxed)) < INFO_PERIOD_NS {
            return;
        }
        self.written_ns.store(now_ns, Ordering::Relaxed);
        let sign = self.short(SIGN);
        let before = sign.load(Ordering::Relaxed);
        sign.store(before | UPDATING, Ordering::Relaxed);
        fence(Ordering::Release);
        self.long(NANOSECONDS).store(now_ns, Ordering::Relaxed);
        self.long(CYCLES).store(ticks, Ordering::Relaxed);
        sign.store(before.wrapping_add(2 * UPDATING), Ordering::Release);
    }
}

impl Drop for ClockPages {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this size; no reference into it outlives this value.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), BYTES) };
    }
}

/// Nanoseconds of a tick, with [`SHIFT_BITS`] digits behind the point, to the nearest.
fn multiplier(clock: ClockRules) -> u32 {
    let kilohertz = clock.kilohertz.max(1);
    let nanoseconds = ((1_000_000_u64 << SHIFT_BITS) + kilohertz / 2) / kilohertz;
    u32::try_from(nanoseconds).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOCK: ClockRules = ClockRules { kilohertz: 156_250, mask: 0x7fff_ffff_ffff_ffff };
    const NOW_NS: u64 = 1_800_000_000_123_456_789;

    /// Converts ticks as libmlx5 does (mlx5dv.h, `mlx5dv_ts_to_ns`).
    fn nanoseconds(pages: &ClockPages, ticks: u64) -> u64 {
        let read = |offset| pages.long(offset).load(Ordering::Relaxed);
        let (last, mask) = (read(CYCLES), read(MASK));
        let convert = |ticks: u64| {
            let multiplier = u64::from(pages.short(MULTIPLIER).load(Ordering::Relaxed));
            ticks.checked_mul(multiplier).unwrap() >> pages.short(SHIFT).load(Ordering::Relaxed)
        };
        let ahead = ticks.wrapping_sub(last) & mask;
        if ahead > mask / 2 {
            read(NANOSECONDS) - convert(last.wrapping_sub(ticks) & mask)
        } else {
            read(NANOSECONDS) + convert(ahead)
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd_create(2)")]
    fn the_pages_have_the_clock_and_its_relation_to_the_time_of_day() {
        let pages = ClockPages::new(CLOCK, NOW_NS).unwrap();
        assert_eq!(u64::from_be(pages.long(0).load(Ordering::Relaxed)), CLOCK.ticks(NOW_NS));
        assert_eq!(pages.short(SIGN).load(Ordering::Relaxed), 2, "written once, and not being written");
        for apart_ns in [0, 64, 1_000_000, 2_000_000_000] {
            for at_ns in [NOW_NS + apart_ns, NOW_NS - apart_ns] {
                let error_ns = nanoseconds(&pages, CLOCK.ticks(at_ns)).abs_diff(at_ns);
                assert!(error_ns <= 32, "{error_ns} ns off, {apart_ns} ns away");
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd_create(2)")]
    fn the_relation_is_written_once_a_second_and_when_the_clock_was_set() {
        let pages = ClockPages::new(CLOCK, NOW_NS).unwrap();
        let sign = |now_ns| {
            pages.update(now_ns);
            pages.short(SIGN).load(Ordering::Relaxed)
        };
        assert_eq!(sign(NOW_NS + INFO_PERIOD_NS - 1), 2);
        assert_eq!(sign(NOW_NS + INFO_PERIOD_NS), 4);
        assert_eq!(sign(NOW_NS - INFO_PERIOD_NS), 6);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd_create(2)")]
    fn clients_cannot_write() {
        let pages = ClockPages::new(CLOCK, NOW_NS).unwrap();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, which must fail.
        let mapped =
            unsafe { mmap(std::ptr::null_mut(), PAGE_BYTES, protection, MapFlags::SHARED, &pages.file, 0) };
        assert_eq!(mapped.err(), Some(rustix::io::Errno::PERM));
    }

    #[test]
    fn the_multiplier_is_a_ticks_time() {
        let at = |kilohertz| multiplier(ClockRules { kilohertz, mask: u64::MAX });
        assert_eq!(at(1_000_000), 1 << SHIFT_BITS);
        assert_eq!(at(78_125), (12.8 * f64::from(1 << SHIFT_BITS)).round() as u32);
        assert_eq!((at(0), at(1)), (u32::MAX, u32::MAX), "slower than any device");
    }
}
