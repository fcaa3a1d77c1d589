//! Memory that another process maps too: a memfd that cannot shrink.
//!
//! Invariants:
//! - Every access is checked against the size of the mapping, and every word against its alignment.
//! - The file is sealed against shrinking before it is mapped. Otherwise the other process could truncate it,
//!   and the next access would raise SIGBUS.
//! - No reference to the contents exists except to atomics, because the other process writes whenever it
//!   wants.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate, memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The magic number of tmpfs in statfs(2). A memfd of huge pages has another one: a page of it that was
/// released with fallocate(2) cannot always be allocated again, and then an access raises SIGBUS although the
/// size is sealed.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Why memory was not created or not accepted.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// A system call failed.
    #[error("shared memory of {bytes} bytes: {operation} failed")]
    System {
        /// The system call.
        operation: &'static str,
        /// The size that was asked for.
        bytes: u64,
        /// The reason.
        #[source]
        source: Errno,
    },
    /// The file is not a memfd of normal pages.
    #[error("shared memory must be a memfd of normal pages, created with MFD_ALLOW_SEALING")]
    Kind,
    /// The file could be truncated while it is used.
    #[error("shared memory must be sealed with F_SEAL_SHRINK")]
    NotSealed,
    /// The file is smaller than announced, or empty.
    #[error("shared memory of {file} bytes was announced as {announced} bytes")]
    Size {
        /// The size of the file.
        file: u64,
        /// The size in the message.
        announced: u64,
    },
}

/// A mapping of shared memory.
#[derive(Debug)]
pub struct Memory {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: this value owns the mapping; its contents are only accessed through atomics and raw copies, which
// allow concurrent writes by another process.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Creates memory of `bytes` bytes, all zero, and returns its file, which another process can map.
    ///
    /// # Errors
    /// A system call failed.
    pub fn create(name: &str, bytes: usize) -> Result<(Self, OwnedFd), MemoryError> {
        let failed = |operation| move |source| MemoryError::System { operation, bytes: bytes as u64, source };
        let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(failed("memfd_create"))?;
        ftruncate(&file, bytes as u64).map_err(failed("ftruncate"))?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(failed("fcntl(F_ADD_SEALS)"))?;
        Ok((Self::map(&file, bytes as u64)?, file))
    }

    /// Maps the first `bytes` bytes of a file that another process created, and allocates its pages, so that
    /// accesses do not usually fault. The seal does not prevent it: the other process can release pages
    /// whenever it wants (fallocate(2), FALLOC_FL_PUNCH_HOLE), and the next access to such a page waits until
    /// the kernel has allocated another one. It reads zeros then, which is checked like any other contents.
    ///
    /// # Errors
    /// The file is not a memfd of normal pages, could shrink, is smaller than `bytes`, or cannot be mapped.
    pub fn map(file: impl AsFd, bytes: u64) -> Result<Self, MemoryError> {
        let failed = |operation| move |source| MemoryError::System { operation, bytes, source };
        // Other kinds of files have no seals and fail with EINVAL.
        let seals = fcntl_get_seals(&file).map_err(|_| MemoryError::Kind)?;
        if fstatfs(&file).map_err(failed("fstatfs"))?.f_type != TMPFS_MAGIC {
            return Err(MemoryError::Kind);
        }
        if !seals.contains(SealFlags::SHRINK) {
            return Err(MemoryError::NotSealed);
        }
        // After the seals: from here on the size can only grow.
        let size = fstat(&file).map_err(failed("fstat"))?.st_size;
        let size = u64::try_from(size).unwrap_or_default();
        let mapped = usize::try_from(bytes).ok().filter(|&mapped| mapped > 0 && bytes <= size);
        let mapped = mapped.ok_or(MemoryError::Size { file: size, announced: bytes })?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { mmap(std::ptr::null_mut(), mapped, protection, flags, file, 0) };
        let base = NonNull::new(base.map_err(failed("mmap"))?.cast());
        Ok(Self { base: base.ok_or(failed("mmap")(Errno::NOMEM))?, bytes: mapped })
    }

    /// The size of the mapping.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of `len` bytes at offset `at`, if they are inside the mapping.
    #[inline]
    fn place(&self, at: usize, len: usize) -> Option<*mut u8> {
        let inside = at <= self.bytes && len <= self.bytes - at;
        inside.then(|| self.base.as_ptr().wrapping_add(at))
    }

    /// Returns a place as [`Memory::place`] does, for a word, which must be aligned. The mapping itself is
    /// aligned to a page.
    #[inline]
    fn word<T>(&self, at: usize) -> Option<*mut T> {
        let aligned = at.is_multiple_of(align_of::<T>());
        self.place(at, size_of::<T>()).filter(|_| aligned).map(<*mut u8>::cast)
    }

    /// The 16-bit word at offset `at`.
    #[inline]
    pub(crate) fn u16_at(&self, at: usize) -> Option<&AtomicU16> {
        // SAFETY: `word` checked that it is inside the mapping and aligned; the mapping lives as long as
        // `self`, and this process accesses the words of rings by atomic operations only.
        self.word(at).map(|word| unsafe { AtomicU16::from_ptr(word) })
    }

    /// The 32-bit word at offset `at`.
    #[inline]
    pub(crate) fn u32_at(&self, at: usize) -> Option<&AtomicU32> {
        // SAFETY: as in `u16_at`.
        self.word(at).map(|word| unsafe { AtomicU32::from_ptr(word) })
    }

    /// The 64-bit word at offset `at`.
    #[inline]
    pub(crate) fn u64_at(&self, at: usize) -> Option<&AtomicU64> {
        // SAFETY: as in `u16_at`.
        self.word(at).map(|word| unsafe { AtomicU64::from_ptr(word) })
    }

    /// Copies `from` to offset `at`; returns whether it is inside the mapping. Otherwise nothing is written.
    #[inline]
    #[must_use]
    pub fn write(&self, at: usize, from: &[u8]) -> bool {
        let Some(to) = self.place(at, from.len()) else { return false };
        // SAFETY: `place` checked that the destination is inside the mapping, and `from` is private memory of
        // this process. Another process may access the destination meanwhile, which changes values only: no
        // reference to it exists, and nothing is decided from what was written.
        unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        true
    }

    /// Copies the bytes at offset `at` to `to`; returns whether they are inside the mapping. Otherwise
    /// nothing is copied.
    #[inline]
    #[must_use]
    pub fn read(&self, at: usize, to: &mut [u8]) -> bool {
        let Some(from) = self.place(at, to.len()) else { return false };
        // SAFETY: `place` checked that the source is inside the mapping, and `to` is private memory of this
        // process. Another process may write the source meanwhile; callers use the copy and never read the
        // original again.
        unsafe { to.as_mut_ptr().copy_from_nonoverlapping(from, to.len()) };
        true
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length; references to words borrow `self`, so none is left.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(flags: MemfdFlags, bytes: u64, seals: SealFlags) -> OwnedFd {
        let file = memfd_create("test", flags).unwrap();
        ftruncate(&file, bytes).unwrap();
        if !seals.is_empty() {
            fcntl_add_seals(&file, seals).unwrap();
        }
        file
    }

    #[test]
    fn a_file_that_can_shrink_is_refused() {
        let unsealed = file(MemfdFlags::ALLOW_SEALING, 4096, SealFlags::empty());
        assert!(matches!(Memory::map(&unsealed, 4096), Err(MemoryError::NotSealed)));
        let grows_not = file(MemfdFlags::ALLOW_SEALING, 4096, SealFlags::GROW);
        assert!(matches!(Memory::map(&grows_not, 4096), Err(MemoryError::NotSealed)));
        let sealed = file(MemfdFlags::ALLOW_SEALING, 4096, SealFlags::SHRINK);
        assert_eq!(Memory::map(&sealed, 4096).unwrap().bytes(), 4096);
        assert!(ftruncate(&sealed, 0).is_err(), "the seal holds");
    }

    #[test]
    fn files_of_other_kinds_are_refused() {
        let plain = tempfile::tempfile().unwrap();
        plain.set_len(4096).unwrap();
        assert!(matches!(Memory::map(&plain, 4096), Err(MemoryError::Kind)));
        let (reader, _writer) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(matches!(Memory::map(&reader, 4096), Err(MemoryError::Kind)));
        let huge = memfd_create("test", MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB);
        if let Ok(huge) = huge {
            fcntl_add_seals(&huge, SealFlags::SHRINK).unwrap();
            assert!(matches!(Memory::map(&huge, 4096), Err(MemoryError::Kind)));
        }
    }

    #[test]
    fn a_file_smaller_than_announced_is_refused() {
        let sealed = file(MemfdFlags::ALLOW_SEALING, 4096, SealFlags::SHRINK);
        for announced in [0, 4097, 1 << 40, u64::MAX] {
            assert!(matches!(Memory::map(&sealed, announced), Err(MemoryError::Size { .. })), "{announced}");
        }
    }

    #[test]
    fn a_file_sealed_against_writing_is_an_error() {
        let sealed = file(MemfdFlags::ALLOW_SEALING, 4096, SealFlags::SHRINK | SealFlags::WRITE);
        assert!(matches!(Memory::map(&sealed, 4096), Err(MemoryError::System { operation: "mmap", .. })));
    }

    #[test]
    fn accesses_outside_the_mapping_and_unaligned_words_are_refused() {
        let (memory, _file) = Memory::create("test", 4096).unwrap();
        assert!(memory.write(4090, &[1; 6]) && !memory.write(4091, &[1; 6]));
        assert!(memory.write(4096, &[]) && !memory.write(4097, &[]) && !memory.write(usize::MAX, &[1]));
        let mut to = [0; 6];
        assert!(memory.read(4090, &mut to) && to == [1; 6]);
        assert!(!memory.read(4091, &mut to) && !memory.read(usize::MAX - 2, &mut to));
        assert!(memory.u64_at(4088).is_some() && memory.u64_at(4089).is_none());
        assert!(memory.u64_at(4096).is_none() && memory.u64_at(4).is_none());
        assert!(memory.u32_at(4).is_some() && memory.u16_at(2).is_some() && memory.u16_at(3).is_none());
    }
}
