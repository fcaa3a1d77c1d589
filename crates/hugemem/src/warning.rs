//! What an arena could not get, and what to do about it.
//!
//! The arena collects these while mapping; workers and `steerd` print them. Nothing here is logged or fatal.

use std::{fmt, io};

use crate::PageKind;

/// Something that was asked for and not given. `Display` names the remedy.
#[derive(Debug)]
pub enum Warning {
    /// A page kind was tried and refused; the next in the list was tried.
    Refused {
        /// Who the arena is for.
        label: String,
        /// The kind that was refused.
        kind: PageKind,
        /// The arena's size in that kind of page.
        bytes: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// The arena is not bound to its NUMA node.
    NumaBind {
        /// Who the arena is for.
        label: String,
        /// The node that was asked for.
        numa_node: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// A forked child would share the arena with the device until it execs.
    Fork {
        /// Who the arena is for.
        label: String,
        /// What the kernel said.
        source: io::Error,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { label, kind, bytes, source } => {
                write!(f, "arena {label}: no {kind} pages for {} ({source}): ", Size(*bytes))?;
                remedy(f, *kind, bytes.div_ceil(kind.page_bytes()), source)
            }
            Self::NumaBind { label, numa_node, source } => write!(
                f,
                "arena {label}: not bound to NUMA node {numa_node} ({source}): name a node of \
                 /sys/devices/system/node/online, and in a container allow mbind (CAP_SYS_NICE)"
            ),
            Self::Fork { label, source } => write!(
                f,
                "arena {label}: MADV_DONTFORK was refused ({source}): do not start programs from this process"
            ),
        }
    }
}

fn remedy(f: &mut fmt::Formatter<'_>, kind: PageKind, pages: usize, source: &io::Error) -> fmt::Result {
    match kind {
        // mmap(2): EINVAL is a page size that this kernel does not have.
        PageKind::Huge1G | PageKind::Huge2M if source.raw_os_error() == Some(libc::EINVAL) => {
            write!(f, "this machine has no such pages; leave {kind} out")
        }
        PageKind::Huge1G | PageKind::Huge2M if source.kind() == io::ErrorKind::Unsupported => {
            write!(f, "run a newer kernel, or name no NUMA node")
        }
        PageKind::Huge1G => write!(
            f,
            "boot with hugepagesz=1G hugepages={pages}, or raise \
             /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages by {pages}"
        ),
        PageKind::Huge2M => write!(
            f,
            "raise vm.nr_hugepages by {pages}: \
             sysctl -w vm.nr_hugepages=$(( $(sysctl -n vm.nr_hugepages) + {pages} ))"
        ),
        PageKind::Transparent => {
            write!(f, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, and have the memory free")
        }
        PageKind::Plain => {
            write!(
                f,
                "have that much memory free, within the control group (memory.max) too, or ask for fewer frames"
            )
        }
    }
}

/// A size in the largest unit that shows it well.
pub(crate) struct Size(pub(crate) usize);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const GIB: usize = 1 << 30;
        const MIB: usize = 1 << 20;
        match self.0 {
            bytes if bytes >= GIB && bytes.is_multiple_of(GIB) => write!(f, "{} GiB", bytes / GIB),
            bytes if bytes >= MIB => write!(f, "{} MiB", bytes.div_ceil(MIB)),
            bytes => write!(f, "{} KiB", bytes.div_ceil(1024)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(kind: PageKind, bytes: usize, errno: i32) -> String {
        let source = io::Error::from_raw_os_error(errno);
        Warning::Refused { label: "worker3".to_owned(), kind, bytes, source }.to_string()
    }

    #[test]
    fn bound_hugepages_that_cannot_be_populated_are_not_called_absent() {
        let refused = io::Error::from_raw_os_error(libc::EINVAL);
        let source = crate::mapping::may_touch(refused, PageKind::Huge2M, true).unwrap_err();
        let (kind, bytes) = (PageKind::Huge2M, 2 << 20);
        let text = Warning::Refused { label: "worker3".to_owned(), kind, bytes, source }.to_string();
        assert!(text.contains("5.14") && text.contains("name no NUMA node"), "{text}");
        assert!(!text.contains("no such pages") && !text.contains("raise"), "{text}");
    }

    #[test]
    fn refusals_name_the_arena_the_size_and_the_remedy() {
        let text = refused(PageKind::Huge2M, 64 << 20, libc::ENOMEM);
        assert!(text.contains("worker3") && text.contains("64 MiB"), "{text}");
        assert!(text.contains("vm.nr_hugepages by 32"), "{text}");
        let text = refused(PageKind::Huge1G, 2 << 30, libc::ENOMEM);
        assert!(text.contains("hugepagesz=1G hugepages=2") && text.contains("2 GiB"), "{text}");
        let text = refused(PageKind::Huge1G, 1 << 30, libc::EINVAL);
        assert!(text.contains("leave huge_1g out") && !text.contains("boot"), "{text}");
        assert!(
            refused(PageKind::Transparent, 2 << 20, libc::EINVAL).contains("transparent_hugepage/enabled")
        );
        assert!(refused(PageKind::Plain, 65_536, libc::ENOMEM).contains("64 KiB"));
    }
}
