//! One anonymous mapping and the calls that shape it: the only file that talks to the kernel's memory manager.
//!
//! The arena makes it, shapes it and keeps it. It never hands out references to its bytes.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::{fs, io, ptr};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::PageKind;
use crate::available::{Available, available};

/// The most NUMA nodes of any Linux kernel (CONFIG_NODES_SHIFT is at most 10).
const MAX_NUMA_NODES: u32 = 1024;

/// Touching once per smallest page of any architecture touches every page.
const SMALLEST_PAGE_BYTES: usize = 4096;

/// An anonymous private mapping, aligned to its kind of page; unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    // Invariant: `base..base + bytes` is mapped readable and writable, and only `Drop` unmaps it.
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and `base` is its only name here.
unsafe impl Send for Mapping {}
// SAFETY: no method reads or writes the bytes through `&self`, except `populate`, which is called before any block of
// it exists.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes`, a multiple of the kind's page size; not yet populated.
    pub(crate) fn new(kind: PageKind, bytes: usize) -> io::Result<Self> {
        match kind {
            PageKind::Huge1G => Self::anonymous(bytes, MapFlags::HUGETLB | MapFlags::HUGE_1GB),
            PageKind::Huge2M => Self::anonymous(bytes, MapFlags::HUGETLB | MapFlags::HUGE_2MB),
            PageKind::Transparent => {
                transparent_allowed()?;
                memory_available(bytes)?;
                let mapping = Self::aligned(bytes, kind.page_bytes())?;
                mapping.advise(Advice::LinuxHugepage)?;
                Ok(mapping)
            }
            PageKind::Plain => {
                memory_available(bytes)?;
                Self::aligned(bytes, kind.page_bytes())
            }
        }
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps the mapping out of forked children: copy-on-write would move pages away under the device
    /// (ibv_fork_init(3), madvise(2)).
    pub(crate) fn dont_fork(&self) -> io::Result<()> {
        self.advise(Advice::LinuxDontFork)
    }

    /// Binds pages that are still to be populated to one NUMA node (mbind(2)).
    pub(crate) fn bind(&self, numa_node: u32) -> io::Result<()> {
        if numa_node >= MAX_NUMA_NODES {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mut nodes = [0_u64; MAX_NUMA_NODES as usize / 64];
        nodes[numa_node as usize / 64] = 1 << (numa_node % 64);
        // The kernel reads one bit less than `maxnode` says (get_nodes in mm/mempolicy.c).
        let max_node = u64::from(MAX_NUMA_NODES) + 1;
        // SAFETY: mbind reads `nodes`, which has MAX_NUMA_NODES bits, and changes only the policy of our own mapping.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base.as_ptr(),
                self.bytes,
                libc::MPOL_BIND,
                nodes.as_ptr(),
                max_node,
                0_u32,
            )
        };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Gives every page its memory now, so that no packet meets a page fault.
    ///
    /// MADV_POPULATE_WRITE says what it cannot populate, where touching would be killed by SIGBUS. Kernels before 5.14
    /// do not know it (EINVAL); there pages are touched, which is safe unless a hugetlb mapping is bound to a node:
    /// mmap reserved its pages, but on any node.
    pub(crate) fn populate(&self, kind: PageKind, bound: bool) -> io::Result<()> {
        let is_hugetlb = matches!(kind, PageKind::Huge1G | PageKind::Huge2M);
        match self.advise(Advice::LinuxPopulateWrite) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && !(is_hugetlb && bound) => {
                self.touch();
                Ok(())
            }
            result => result,
        }
    }

    fn touch(&self) {
        for offset in (0..self.bytes).step_by(SMALLEST_PAGE_BYTES) {
            // SAFETY: `offset` lies inside the mapping.
            let page = unsafe { self.base.add(offset) };
            // SAFETY: mapped writable (invariant of `base`), and no block of the mapping exists yet, so that nothing
            // refers to this byte.
            unsafe { page.write_volatile(0) };
        }
    }

    fn advise(&self, advice: Advice) -> io::Result<()> {
        // SAFETY: none of the advices used here takes away contents, and the range is our own mapping.
        Ok(unsafe { madvise(self.base.as_ptr().cast(), self.bytes, advice) }?)
    }

    fn anonymous(bytes: usize, flags: MapFlags) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without MAP_FIXED the kernel chooses a range that nothing else uses.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), bytes, protection, MapFlags::PRIVATE | flags) }?;
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mmap returned address 0"))?;
        Ok(Self { base, bytes })
    }

    /// Maps more than needed and gives back what is in front of the alignment and behind the end.
    fn aligned(bytes: usize, align: usize) -> io::Result<Self> {
        let roomy = bytes.checked_add(align).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let mut mapping = Self::anonymous(roomy, MapFlags::empty())?;
        let head = mapping.base.as_ptr().align_offset(align);
        mapping.release_head(head)?;
        mapping.release_tail(bytes)?;
        Ok(mapping)
    }

    fn release_head(&mut self, head: usize) -> io::Result<()> {
        if head > 0 {
            // SAFETY: the head is the start of our own mapping, and no block of it exists yet.
            unsafe { munmap(self.base.as_ptr().cast(), head) }?;
            // SAFETY: `head` is at most the alignment, by which the mapping is longer than needed.
            self.base = unsafe { self.base.add(head) };
            self.bytes -= head;
        }
        Ok(())
    }

    fn release_tail(&mut self, keep: usize) -> io::Result<()> {
        if self.bytes > keep {
            // SAFETY: `keep` lies inside the mapping.
            let tail: *mut c_void = unsafe { self.base.add(keep) }.as_ptr().cast();
            // SAFETY: the tail is the end of our own mapping, and no block of it exists yet.
            unsafe { munmap(tail, self.bytes - keep) }?;
            self.bytes = keep;
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the arena drops its mapping only when no block is left, since every block holds the arena.
        if let Err(error) = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) } {
            tracing::error!(bytes = self.bytes, %error, "an arena could not be unmapped and is leaked");
        }
    }
}

/// With `never` the kernel accepts MADV_HUGEPAGE and ignores it (Documentation/admin-guide/mm/transhuge.rst).
fn transparent_allowed() -> io::Result<()> {
    match fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled") {
        Ok(text) if text.contains("[never]") => {
            Err(io::Error::new(io::ErrorKind::Unsupported, "transparent huge pages are switched off"))
        }
        // Without the file madvise itself tells: EINVAL when the kernel has no such pages.
        _ => Ok(()),
    }
}

/// Overcommit lets mmap promise memory that populating would then get by killing processes.
fn memory_available(bytes: usize) -> io::Result<()> {
    let Some(Available { bytes: available, group }) = available().filter(|found| bytes as u64 > found.bytes)
    else {
        return Ok(());
    };
    let whose = group.map_or_else(String::new, |group| format!(" in control group {}", group.display()));
    let reason = format!("only {} MiB are available{whose}", available >> 20);
    Err(io::Error::new(io::ErrorKind::OutOfMemory, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touching_keeps_fresh_pages_zero_and_resident() {
        let mapping = Mapping::new(PageKind::Plain, 1 << 20).unwrap();
        mapping.touch();
        // SAFETY: mapped above, and nothing writes to it any more.
        let bytes = unsafe { std::slice::from_raw_parts(mapping.base().as_ptr(), mapping.bytes()) };
        assert!(bytes.iter().all(|byte| *byte == 0));
    }
}
