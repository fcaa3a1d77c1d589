//! Processors with AVX2 and MOVBE, as all of x86-64-v3 are: the engine's two longest loops are compiled a
//! second time for them, and copy frames without a call of `memcpy`. Such a call costs as much as the copy of
//! a short frame, and makes the loop keep its variables on the stack.

/// The proof that this processor has AVX2 and MOVBE.
#[derive(Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(super) struct Avx2Movbe(());

impl Avx2Movbe {
    /// `None`: it lacks one of them.
    pub(super) fn detect() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        if crate::paths::may_be_v3()
            && std::arch::is_x86_feature_detected!("avx2")
            && std::arch::is_x86_feature_detected!("movbe")
        {
            return Some(Self(()));
        }
        None
    }
}

/// How frames are copied.
pub(super) trait Copies {
    /// Copies a frame; `false` if it is of a length that this does not copy.
    ///
    /// # Safety
    /// As for [`std::ptr::copy_nonoverlapping`].
    unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) -> bool;
}

/// Copies by [`copy`].
pub(super) struct Portable;

impl Copies for Portable {
    #[inline(always)]
    unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) -> bool {
        // SAFETY: by the contract of this function.
        unsafe { copy(from, to, bytes) };
        true
    }
}

/// Copies by moves of fixed size, without a call. For functions with AVX2, of which one moves 32 bytes.
#[cfg(any(test, target_arch = "x86_64"))]
pub(super) struct Inline;

#[cfg(any(test, target_arch = "x86_64"))]
impl Inline {
    /// Bytes of a step of long copies.
    const STEP: usize = 128;
}

#[cfg(any(test, target_arch = "x86_64"))]
impl Copies for Inline {
    #[inline(always)]
    unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) -> bool {
        match bytes {
            // SAFETY: by the contract of this function; there are as many bytes as one move takes.
            32..=64 => unsafe { copy_ends::<32>(from, to, bytes) },
            // SAFETY: as above.
            65..=128 => unsafe { copy_ends::<64>(from, to, bytes) },
            // SAFETY: as above.
            16..=31 => unsafe { copy_ends::<16>(from, to, bytes) },
            0..=15 => return false,
            _ => {
                let last = bytes - Self::STEP;
                let mut at = 0;
                while at < last {
                    let (from, to) = (from.wrapping_add(at), to.wrapping_add(at));
                    // SAFETY: as above: there are more than `STEP` bytes from here on.
                    unsafe { to.copy_from_nonoverlapping(from, Self::STEP) };
                    at += Self::STEP;
                }
                let (from, to) = (from.wrapping_add(last), to.wrapping_add(last));
                // SAFETY: as above: the last bytes, of which some may have been copied already.
                unsafe { to.copy_from_nonoverlapping(from, Self::STEP) };
            }
        }
        true
    }
}

/// Copies a frame. Short ones by two moves of fixed size that may overlap.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`].
#[inline]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    match bytes {
        // SAFETY: by the contract of this function; there are as many bytes as one move takes.
        32..=64 => unsafe { copy_ends::<32>(from, to, bytes) },
        // SAFETY: as above.
        65..=128 => unsafe { copy_ends::<64>(from, to, bytes) },
        // SAFETY: by the contract of this function.
        _ => unsafe { to.copy_from_nonoverlapping(from, bytes) },
    }
}

/// Copies the first and the last `MOVE` bytes of `bytes`: all of them, if they are at most twice as many.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`], and `bytes` is not less than `MOVE`.
#[inline(always)]
unsafe fn copy_ends<const MOVE: usize>(from: *const u8, to: *mut u8, bytes: usize) {
    let last = bytes - MOVE;
    // SAFETY: by the contract of this function.
    unsafe { to.copy_from_nonoverlapping(from, MOVE) };
    // SAFETY: as above: the move ends with the last byte.
    unsafe { to.wrapping_add(last).copy_from_nonoverlapping(from.wrapping_add(last), MOVE) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_all_lengths_are_whole_and_touch_nothing_else() {
        let from: Vec<u8> = (0..1600u32).map(|at| (at * 7 + 1) as u8 | 1).collect();
        for bytes in 0..from.len() {
            for copy in [Portable::copy, Inline::copy] {
                let mut to = vec![0; bytes + 64];
                // SAFETY: both have as many bytes, and are apart.
                let copied = unsafe { copy(from.as_ptr(), to.as_mut_ptr(), bytes) };
                let expected = if copied { &from[..bytes] } else { &[] };
                assert_eq!(&to[..expected.len()], expected);
                assert!(to[expected.len()..].iter().all(|byte| *byte == 0), "{bytes}");
                assert!(copied || bytes < 16);
            }
        }
    }
}
