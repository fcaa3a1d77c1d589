//! The crate's error type, and the warnings of an arena: what the kernel refused, and the remedy. An arena
//! collects warnings while it is mapped; workers and `steerd` print them.

use std::path::PathBuf;
use std::{fmt, io};

use crate::PageKind;

/// The size of the largest arena: more is a mistake in the settings.
pub(crate) const MAX_ARENA_BYTES: usize = 1 << 40;

/// Why there is no arena.
#[derive(Debug, thiserror::Error)]
pub enum HugememError {
    /// A size of 0 or beyond 1 TiB.
    #[error("arena {label}: a size of {bytes} bytes is not between 1 and {MAX_ARENA_BYTES}")]
    Size {
        /// The owner's name.
        label: String,
        /// The size that was asked for.
        bytes: usize,
    },
    /// No page kind was allowed.
    #[error("arena {label}: the list of page kinds is empty; `plain` is always there to be tried last")]
    NoPageKind {
        /// The owner's name.
        label: String,
    },
    /// Every allowed page kind was refused.
    #[error("arena {label}: none of the allowed page kinds gives {}:{}", Size(*.bytes), listed(.refused))]
    Map {
        /// The owner's name.
        label: String,
        /// The size that was asked for.
        bytes: usize,
        /// Each refusal with its remedy and the kernel's error, in the order tried.
        refused: Vec<HugememWarning>,
    },
}

fn listed(warnings: &[HugememWarning]) -> String {
    warnings.iter().map(|warning| format!("\n  {warning}")).collect()
}

/// A refusal that is not fatal. `Display` names the remedy.
#[derive(Debug)]
pub enum HugememWarning {
    /// A page kind was tried and refused; the next in the list was tried.
    Refused {
        /// The owner's name.
        label: String,
        /// The kind that was refused.
        kind: PageKind,
        /// The arena's size in that kind of page.
        bytes: usize,
        /// The node that was asked for.
        numa_node: Option<u32>,
        /// The limit of a control group that leaves too few hugepages, and the bytes that it leaves.
        group_limit: Option<(PathBuf, u64)>,
        /// The kernel's error.
        source: io::Error,
    },
    /// The arena is not bound to its NUMA node.
    NumaBind {
        /// The owner's name.
        label: String,
        /// The node that was asked for.
        numa_node: u32,
        /// The kernel's error.
        source: io::Error,
    },
    /// A forked child would share the arena with the device until it execs.
    Fork {
        /// The owner's name.
        label: String,
        /// The kernel's error.
        source: io::Error,
    },
}

impl HugememWarning {
    /// Whether more free memory would help: the system gives such pages, and has too few.
    #[must_use]
    pub fn is_shortage(&self) -> bool {
        matches!(self, Self::Refused { source, .. } if source.kind() == io::ErrorKind::OutOfMemory)
    }
}

impl fmt::Display for HugememWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { label, kind, bytes, numa_node, group_limit, source } => {
                write!(f, "arena {label}: no {kind} pages for {} ({source}): ", Size(*bytes))?;
                if let Some((file, left)) = group_limit {
                    // More pages in the pool would not help: the group could not use them.
                    let missing = (*bytes as u64).saturating_sub(*left);
                    return write!(
                        f,
                        "a control group leaves {}: raise {} by {missing} bytes at least (in a unit of systemd or a \
                         container, by its settings)",
                        Size(usize::try_from(*left).unwrap_or(usize::MAX)),
                        file.display()
                    );
                }
                remedy(f, *kind, bytes.div_ceil(kind.page_bytes()), *numa_node, source)
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

fn remedy(
    f: &mut fmt::Formatter<'_>,
    kind: PageKind,
    pages: usize,
    numa_node: Option<u32>,
    source: &io::Error,
) -> fmt::Result {
    match kind {
        // mmap(2): EINVAL is a page size that this kernel does not have.
        PageKind::Huge1G | PageKind::Huge2M if source.raw_os_error() == Some(libc::EINVAL) => {
            write!(f, "this machine has no such pages; leave {kind} out")
        }
        PageKind::Huge1G | PageKind::Huge2M if source.kind() == io::ErrorKind::Unsupported => {
            write!(f, "run a newer kernel, or name no NUMA node")
        }
        PageKind::Huge1G | PageKind::Huge2M => {
            let pool = pool(kind, numa_node);
            write!(f, "raise {pool} by {pages}: echo $(( $(cat {pool}) + {pages} )) > {pool}")?;
            if kind == PageKind::Huge1G {
                write!(
                    f,
                    ", or while memory is still in one piece boot with hugepagesz=1G hugepages={pages}"
                )?;
            }
            Ok(())
        }
        PageKind::Transparent => {
            write!(f, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, and have the memory free")
        }
        PageKind::Plain => write!(
            f,
            "have that much memory free, within the control group (memory.max) too, or ask for fewer frames"
        ),
    }
}

/// The file with the number of reserved pages of this size (Documentation/admin-guide/mm/hugetlbpage.rst).
/// The sysctl vm.nr_hugepages is only that of the default size, and any node's pages do not help a bound
/// arena.
fn pool(kind: PageKind, numa_node: Option<u32>) -> String {
    format!("{}/nr_hugepages", pool_folder(kind, numa_node))
}

/// The folder of the files about reserved pages of this size.
pub(crate) fn pool_folder(kind: PageKind, numa_node: Option<u32>) -> String {
    let size = format!("hugepages-{}kB", kind.page_bytes() >> 10);
    match numa_node {
        Some(node) => format!("/sys/devices/system/node/node{node}/hugepages/{size}"),
        None => format!("/sys/kernel/mm/hugepages/{size}"),
    }
}

/// A size in the largest unit that shows it well.
struct Size(usize);

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

    fn refused(kind: PageKind, bytes: usize, numa_node: Option<u32>, source: io::Error) -> String {
        let label = "worker3".to_owned();
        HugememWarning::Refused { label, kind, bytes, numa_node, group_limit: None, source }.to_string()
    }

    #[test]
    fn a_control_group_that_limits_hugepages_is_named() {
        let file = "/sys/fs/cgroup/a/hugetlb.2MB.max";
        let text = HugememWarning::Refused {
            label: "worker3".to_owned(),
            kind: PageKind::Huge2M,
            bytes: 64 << 20,
            numa_node: None,
            group_limit: Some((file.into(), 16 << 20)),
            source: errno(libc::ENOMEM),
        }
        .to_string();
        assert!(text.contains(&format!("leaves 16 MiB: raise {file} by 50331648 bytes")), "{text}");
        assert!(!text.contains("nr_hugepages"), "{text}");
    }

    fn errno(errno: i32) -> io::Error {
        io::Error::from_raw_os_error(errno)
    }

    #[test]
    fn bound_hugepages_that_cannot_be_populated_are_not_called_absent() {
        let source = crate::mapping::may_touch(errno(libc::EINVAL), PageKind::Huge2M, true).unwrap_err();
        let text = refused(PageKind::Huge2M, 2 << 20, Some(1), source);
        assert!(text.contains("5.14") && text.contains("name no NUMA node"), "{text}");
        assert!(!text.contains("no such pages") && !text.contains("raise"), "{text}");
    }

    #[test]
    fn hugepage_remedies_name_the_pool_of_their_size_and_node() {
        let text = refused(PageKind::Huge2M, 64 << 20, None, errno(libc::ENOMEM));
        assert!(text.contains("worker3") && text.contains("64 MiB"), "{text}");
        let pool = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
        assert!(
            text.contains(&format!("raise {pool} by 32: echo $(( $(cat {pool}) + 32 )) > {pool}")),
            "{text}"
        );
        let text = refused(PageKind::Huge2M, 64 << 20, Some(3), errno(libc::EFAULT));
        let pool = "/sys/devices/system/node/node3/hugepages/hugepages-2048kB/nr_hugepages";
        assert!(text.contains(&format!("raise {pool} by 32: ")), "{text}");
        let text = refused(PageKind::Huge1G, 2 << 30, None, errno(libc::ENOMEM));
        assert!(text.contains("hugepages-1048576kB/nr_hugepages by 2: ") && text.contains("2 GiB"), "{text}");
        assert!(text.contains("hugepagesz=1G hugepages=2"), "{text}");
    }

    #[test]
    fn other_remedies_fit_their_kind() {
        let text = refused(PageKind::Huge1G, 1 << 30, None, errno(libc::EINVAL));
        assert!(text.contains("leave huge_1g out") && !text.contains("boot"), "{text}");
        let text = refused(PageKind::Transparent, 2 << 20, None, errno(libc::EINVAL));
        assert!(text.contains("transparent_hugepage/enabled"), "{text}");
        assert!(refused(PageKind::Plain, 65_536, None, errno(libc::ENOMEM)).contains("64 KiB"));
    }
}
