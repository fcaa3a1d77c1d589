//! One anonymous mapping of pages of a kind, with its system calls. The arena owns the mapping, which
//! returns no references to its bytes.

use std::ffi::c_void;
use std::path::Path;
use std::ptr::NonNull;
use std::{io, ptr};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::PageKind;
use crate::available::{Available, available, text_of};

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
// SAFETY: no method reads or writes the bytes through `&self`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes`, a multiple of the kind's page size; not yet populated.
    pub(crate) fn new(kind: PageKind, bytes: usize) -> io::Result<Self> {
        match kind {
            PageKind::Huge1G => Self::anonymous(bytes, MapFlags::HUGETLB | MapFlags::HUGE_1GB),
            PageKind::Huge2M => Self::anonymous(bytes, MapFlags::HUGETLB | MapFlags::HUGE_2MB),
            PageKind::Transparent => {
                transparent_allowed(text_of)?;
                memory_available(available(text_of), bytes)?;
                let mapping = Self::aligned(bytes, kind.page_bytes())?;
                mapping.advise(Advice::LinuxHugepage)?;
                Ok(mapping)
            }
            PageKind::Plain => {
                memory_available(available(text_of), bytes)?;
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
        // The kernel reads one bit less than `maxnode` (get_nodes in mm/mempolicy.c).
        let max_node = u64::from(MAX_NUMA_NODES) + 1;
        // SAFETY: mbind reads `nodes`, which has MAX_NUMA_NODES bits, and changes only the policy of our own
        // mapping.
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

    /// Gives every page its memory now, so that packets do not wait for first faults. Nothing is locked here:
    /// that pages stay is up to the device, which pins what is registered with it.
    ///
    /// MADV_POPULATE_WRITE returns an error where touching would be killed by SIGBUS.
    pub(crate) fn populate(&mut self, kind: PageKind, bound: bool) -> io::Result<()> {
        self.advise(Advice::LinuxPopulateWrite).or_else(|error| {
            may_touch(error, kind, bound)?;
            self.touch();
            Ok(())
        })
    }

    fn touch(&mut self) {
        for offset in (0..self.bytes).step_by(SMALLEST_PAGE_BYTES) {
            // SAFETY: `offset` lies inside the mapping.
            let page = unsafe { self.base.add(offset) };
            // SAFETY: mapped writable (invariant of `base`), and no block of the mapping exists yet, so that
            // nothing refers to this byte.
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

/// Whether to touch the pages after MADV_POPULATE_WRITE was refused: kernels before 5.14 do not know it
/// (EINVAL). Touching is safe unless a hugetlb mapping is bound to a node: mmap reserved its pages, but on
/// any node.
pub(crate) fn may_touch(refused: io::Error, kind: PageKind, bound: bool) -> io::Result<()> {
    let is_hugetlb = matches!(kind, PageKind::Huge1G | PageKind::Huge2M);
    match refused.raw_os_error() {
        Some(libc::EINVAL) if is_hugetlb && bound => {
            let reason = "hugepages of one NUMA node are safe to populate only from Linux 5.14 on";
            Err(io::Error::new(io::ErrorKind::Unsupported, reason))
        }
        Some(libc::EINVAL) => Ok(()),
        _ => Err(refused),
    }
}

/// With `never` the kernel accepts MADV_HUGEPAGE and ignores it (Documentation/admin-guide/mm/transhuge.rst).
pub(crate) fn transparent_allowed(read: impl Fn(&Path) -> Option<String>) -> io::Result<()> {
    match read(Path::new("/sys/kernel/mm/transparent_hugepage/enabled")) {
        Some(text) if text.contains("[never]") => {
            Err(io::Error::new(io::ErrorKind::Unsupported, "transparent huge pages are switched off"))
        }
        // Without the file, madvise fails with EINVAL if the kernel has no such pages.
        _ => Ok(()),
    }
}

/// Overcommit lets mmap promise memory that populating would then get by killing processes.
pub(crate) fn memory_available(found: Option<Available>, bytes: usize) -> io::Result<()> {
    let Some(Available { bytes: available, group }) = found.filter(|found| bytes as u64 > found.bytes) else {
        return Ok(());
    };
    let whose = group.map_or_else(String::new, |group| format!(" in control group {}", group.display()));
    let reason = format!("only {} MiB are available{whose}", available >> 20);
    Err(io::Error::new(io::ErrorKind::OutOfMemory, reason))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn page_bytes() -> usize {
        // SAFETY: sysconf reads no memory of ours.
        usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap()
    }

    /// How many of a mapping's base pages have memory (mincore(2)).
    pub(crate) fn resident_pages(mapping: &Mapping) -> usize {
        let mut pages = vec![0_u8; mapping.bytes / page_bytes()];
        // SAFETY: the range is our own mapping, and `pages` has a byte for each of its pages.
        let rc = unsafe { libc::mincore(mapping.base.as_ptr().cast(), mapping.bytes, pages.as_mut_ptr()) };
        assert_eq!(rc, 0, "{}", io::Error::last_os_error());
        pages.iter().filter(|page| **page & 1 == 1).count()
    }

    #[test]
    fn populating_and_touching_give_every_page_its_memory() {
        let ways: [fn(&mut Mapping); 2] =
            [|mapping| mapping.populate(PageKind::Plain, false).unwrap(), Mapping::touch];
        for give in ways {
            let mut mapping = Mapping::new(PageKind::Plain, 1 << 20).unwrap();
            assert_eq!(resident_pages(&mapping), 0);
            give(&mut mapping);
            assert_eq!(resident_pages(&mapping), (1 << 20) / page_bytes());
            // SAFETY: mapped above, and nothing writes to it any more.
            let bytes = unsafe { std::slice::from_raw_parts(mapping.base.as_ptr(), mapping.bytes) };
            assert!(bytes.iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn dropped_mappings_are_unmapped() {
        let virtual_bytes = || -> usize {
            let statm = text_of(Path::new("/proc/self/statm")).unwrap();
            statm.split(' ').next().unwrap().parse::<usize>().unwrap() * page_bytes()
        };
        let before = virtual_bytes();
        for _ in 0..64 {
            // Far more than what other tests map meanwhile; never populated.
            drop(Mapping::new(PageKind::Plain, 64 << 20).unwrap());
        }
        assert!(virtual_bytes() < before + (1 << 30), "4 GiB were mapped and should be gone");
    }

    #[test]
    fn kernels_without_populate_touch_unless_that_could_kill() {
        let refused = |errno, kind, bound| may_touch(io::Error::from_raw_os_error(errno), kind, bound);
        assert!(refused(libc::EINVAL, PageKind::Plain, true).is_ok());
        assert!(refused(libc::EINVAL, PageKind::Huge2M, false).is_ok());
        let error = refused(libc::EINVAL, PageKind::Huge2M, true).unwrap_err();
        assert!(error.kind() == io::ErrorKind::Unsupported && error.to_string().contains("5.14"), "{error}");
        assert_eq!(
            refused(libc::EFAULT, PageKind::Plain, false).unwrap_err().raw_os_error(),
            Some(libc::EFAULT)
        );
    }
}
