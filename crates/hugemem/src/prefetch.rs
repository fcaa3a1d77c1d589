//! Fetching cache lines ahead of their use: lines that another core wrote last are the most expensive part of
//! a packet's way. A prefetch never faults and changes nothing but time.

/// Fetches the line at `address` to be read.
#[inline]
pub fn prefetch_read(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Fetches the line at `address` to be written, away from any other core.
#[inline]
pub fn prefetch_write(address: *mut u8) {
    // `_mm_prefetch` with the write hint falls back to a read prefetch on the baseline target, which leaves
    // the line shared and the write waiting. Processors without PREFETCHW take it for a no-op.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address, and changes no register or flag.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
