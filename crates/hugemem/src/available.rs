//! How much memory this process can still allocate, by the host and by each of its control groups, and
//! whether a group limits hugepages.
//!
//! Mappings ask before overcommit promises memory which populating would then get by killing processes.
//! Nothing here changes a setting; what cannot be read limits nothing.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// Where systemd and container engines mount control groups; version 1 has a folder of its own for memory.
const GROUPS: &str = "/sys/fs/cgroup";

/// An amount of memory, and what limits it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Available {
    pub(crate) bytes: u64,
    /// The control group that leaves no more; `None` when the host has no more.
    pub(crate) group: Option<PathBuf>,
}

/// The text of a file of this host; `None` if it cannot be read.
pub(crate) fn text_of(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// The smallest of all limits; `None` when there is nothing to read. `read`: [`text_of`], or that of another
/// host.
pub(crate) fn available(read: impl Fn(&Path) -> Option<String>) -> Option<Available> {
    let meminfo = read(Path::new("/proc/meminfo"));
    let host = meminfo.as_deref().and_then(host_bytes).map(|bytes| Available { bytes, group: None });
    let memberships = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let hierarchies = memberships.lines().filter_map(|line| Hierarchy::of(line, "memory"));
    let groups = hierarchies.flat_map(|hierarchy| hierarchy.limits(&read));
    groups.chain(host).min()
}

/// A limit of a control group on hugepages of one size (Documentation/admin-guide/cgroup-v2.rst, HugeTLB).
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HugepageLimit {
    /// The bytes that it leaves.
    pub(crate) bytes: u64,
    /// The file with the limit.
    pub(crate) file: PathBuf,
}

/// The tightest limit of the groups of this process that leaves less than so many bytes of hugepages.
pub(crate) fn hugepage_limit(
    page_bytes: usize,
    bytes: usize,
    read: impl Fn(&Path) -> Option<String>,
) -> Option<HugepageLimit> {
    let size = if page_bytes >= 1 << 30 {
        format!("{}GB", page_bytes >> 30)
    } else {
        format!("{}MB", page_bytes >> 20)
    };
    let memberships = read(Path::new("/proc/self/cgroup"))?;
    let mut found = Vec::new();
    for hierarchy in memberships.lines().filter_map(|line| Hierarchy::of(line, "hugetlb")) {
        for group in hierarchy.groups() {
            // Pages that are mapped, and those that are promised.
            for kind in ["", "rsvd."] {
                let file = |name: &str| group.join(format!("hugetlb.{size}.{kind}{name}"));
                let number = |name: &str| read(&file(name))?.trim().parse::<u64>().ok();
                let [limit, usage] = hierarchy.of_hugepages();
                if let Some((most, used)) = number(limit).zip(number(usage)) {
                    found.push(HugepageLimit { bytes: most.saturating_sub(used), file: file(limit) });
                }
            }
        }
    }
    found.into_iter().filter(|limit| limit.bytes < bytes as u64).min()
}

fn host_bytes(meminfo: &str) -> Option<u64> {
    field(meminfo, "MemAvailable:")?.checked_mul(1024)
}

/// The number behind a name that begins a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut parts = line.split_whitespace();
        (parts.next()? == name).then(|| parts.next()?.parse().ok())?
    })
}

/// The place of this process in the hierarchy of a controller (cgroups(7)).
struct Hierarchy<'m> {
    root: PathBuf,
    place: &'m str,
    /// Version 1 has a hierarchy of its own for the controller.
    is_version_1: bool,
}

impl<'m> Hierarchy<'m> {
    /// From a line of /proc/self/cgroup: "0::/place" for version 2, "4:memory:/place" for version 1.
    fn of(line: &'m str, controller: &str) -> Option<Self> {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, place) = (parts.next()?, parts.next()?, parts.next()?);
        if controllers.is_empty() {
            Some(Self { root: PathBuf::from(GROUPS), place, is_version_1: false })
        } else if controllers.split(',').any(|one| one == controller) {
            Some(Self { root: Path::new(GROUPS).join(controller), place, is_version_1: true })
        } else {
            None
        }
    }

    /// The group and each of its ancestors, as far as they are visible: a container's root is its own group,
    /// whose place elsewhere ("/../x", or a path of the host's) means nothing here.
    fn groups(&self) -> Vec<PathBuf> {
        let names = Path::new(self.place.trim_start_matches('/')).components().map_while(|part| match part {
            Component::Normal(name) => Some(name),
            _ => None,
        });
        let mut groups = vec![self.root.clone()];
        for name in names {
            groups.push(groups[groups.len() - 1].join(name));
        }
        groups
    }

    /// The memory that each group leaves.
    fn limits(&self, read: impl Fn(&Path) -> Option<String>) -> Vec<Available> {
        self.groups().iter().filter_map(|group| self.left(group, &read)).collect()
    }

    /// Limit, usage, and the line of memory.stat about file pages which the kernel drops before it runs out.
    fn of_memory(&self) -> [&'static str; 3] {
        match self.is_version_1 {
            true => ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"],
            false => ["memory.max", "memory.current", "inactive_file"],
        }
    }

    /// The ends of the names of the files with the limit of hugepages and with their usage.
    fn of_hugepages(&self) -> [&'static str; 2] {
        match self.is_version_1 {
            true => ["limit_in_bytes", "usage_in_bytes"],
            false => ["max", "current"],
        }
    }

    /// "max", or no such file as in the root of version 2, is no limit.
    fn left(&self, group: &Path, read: impl Fn(&Path) -> Option<String>) -> Option<Available> {
        let [limit, usage, inactive] = self.of_memory();
        let number = |file: &str| read(&group.join(file))?.trim().parse::<u64>().ok();
        let (limit, usage) = (number(limit)?, number(usage)?);
        let stat = read(&group.join("memory.stat")).unwrap_or_default();
        let used = usage.saturating_sub(field(&stat, inactive).unwrap_or(0));
        Some(Available { bytes: limit.saturating_sub(used), group: Some(group.to_owned()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: (&str, &str) = ("/proc/meminfo", "MemTotal: 24684016 kB\nMemAvailable:   23003424 kB\n");
    const HOST_BYTES: u64 = 23_003_424 * 1024;

    fn among(files: &[(&str, &str)]) -> Option<(u64, Option<String>)> {
        let read = |path: &Path| {
            let (_, text) = files.iter().find(|(name, _)| Path::new(name) == path)?;
            Some((*text).to_owned())
        };
        available(read).map(|found| (found.bytes, found.group.map(|group| group.display().to_string())))
    }

    #[test]
    fn a_group_that_limits_hugepages_is_found() {
        let limit = |files: &[(&str, &str)], page_bytes, bytes| {
            let read = |path: &Path| {
                let (_, text) = files.iter().find(|(name, _)| Path::new(name) == path)?;
                Some((*text).to_owned())
            };
            let found = hugepage_limit(page_bytes, bytes, read)?;
            Some((found.bytes >> 20, found.file.display().to_string()))
        };
        let version_2 = [
            ("/proc/self/cgroup", "0::/a/b\n"),
            ("/sys/fs/cgroup/a/hugetlb.2MB.max", "16777216\n"),
            ("/sys/fs/cgroup/a/hugetlb.2MB.current", "4194304\n"),
            ("/sys/fs/cgroup/a/b/hugetlb.2MB.max", "max\n"),
            ("/sys/fs/cgroup/a/b/hugetlb.2MB.current", "0\n"),
            ("/sys/fs/cgroup/a/b/hugetlb.2MB.rsvd.max", "8388608\n"),
            ("/sys/fs/cgroup/a/b/hugetlb.2MB.rsvd.current", "0\n"),
        ];
        let file = |name: &str| format!("/sys/fs/cgroup/a/{name}");
        let of_pages = |mib: usize| limit(&version_2, 2 << 20, mib << 20);
        assert_eq!(of_pages(10), Some((8, file("b/hugetlb.2MB.rsvd.max"))));
        assert_eq!(of_pages(8), None);
        assert_eq!(limit(&version_2[..3], 2 << 20, 16 << 20), Some((12, file("hugetlb.2MB.max"))));
        assert_eq!(limit(&version_2, 1 << 30, 1 << 30), None, "of another size");
        let version_1 = [
            ("/proc/self/cgroup", "7:hugetlb:/x\n4:memory:/y\n0::/\n"),
            ("/sys/fs/cgroup/hugetlb/x/hugetlb.1GB.limit_in_bytes", "0\n"),
            ("/sys/fs/cgroup/hugetlb/x/hugetlb.1GB.usage_in_bytes", "0\n"),
        ];
        let file = "/sys/fs/cgroup/hugetlb/x/hugetlb.1GB.limit_in_bytes".to_owned();
        assert_eq!(limit(&version_1, 1 << 30, 1 << 30), Some((0, file)));
    }

    #[test]
    fn the_host_is_read_in_kib() {
        assert_eq!(among(&[MEMINFO]), Some((HOST_BYTES, None)));
        assert_eq!(among(&[("/proc/meminfo", "MemTotal: 1 kB\n")]), None);
        assert_eq!(among(&[("/proc/meminfo", "MemAvailable: many kB\n")]), None);
    }

    #[test]
    fn the_tightest_ancestor_of_version_2_decides() {
        let files = [
            MEMINFO,
            ("/proc/self/cgroup", "0::/a.slice/b.service\n"),
            ("/sys/fs/cgroup/a.slice/memory.max", "1000000\n"),
            ("/sys/fs/cgroup/a.slice/memory.current", "900000\n"),
            ("/sys/fs/cgroup/a.slice/memory.stat", "anon 1\ninactive_file 50000\nactive_file 7\n"),
            ("/sys/fs/cgroup/a.slice/b.service/memory.max", "max\n"),
            ("/sys/fs/cgroup/a.slice/b.service/memory.current", "800000\n"),
        ];
        assert_eq!(among(&files), Some((150_000, Some("/sys/fs/cgroup/a.slice".to_owned()))));
    }

    #[test]
    fn the_group_itself_may_be_the_tightest_and_over_its_limit() {
        let files = [
            MEMINFO,
            ("/proc/self/cgroup", "0::/a/b\n"),
            ("/sys/fs/cgroup/a/memory.max", "1000"),
            ("/sys/fs/cgroup/a/memory.current", "1"),
            ("/sys/fs/cgroup/a/b/memory.max", "500"),
            ("/sys/fs/cgroup/a/b/memory.current", "600"),
        ];
        assert_eq!(among(&files), Some((0, Some("/sys/fs/cgroup/a/b".to_owned()))));
    }

    #[test]
    fn version_1_limits_beside_a_version_2_without_memory() {
        let files = [
            MEMINFO,
            ("/proc/self/cgroup", "9:name=systemd:/x\n4:cpu,memory:/pod:1/c\n2:cpuacct:/\n0::/\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "8543313920\n"),
            ("/sys/fs/cgroup/memory/pod:1/c/memory.limit_in_bytes", "4096000\n"),
            ("/sys/fs/cgroup/memory/pod:1/c/memory.usage_in_bytes", "4000000\n"),
            ("/sys/fs/cgroup/memory/pod:1/c/memory.stat", "inactive_file 9\ntotal_inactive_file 4000\n"),
        ];
        assert_eq!(among(&files), Some((100_000, Some("/sys/fs/cgroup/memory/pod:1/c".to_owned()))));
    }

    #[test]
    fn a_place_outside_the_container_leaves_its_root() {
        let files = [
            MEMINFO,
            ("/proc/self/cgroup", "0::/../other\n"),
            ("/sys/fs/cgroup/memory.max", "3000"),
            ("/sys/fs/cgroup/memory.current", "1000"),
            ("/sys/fs/cgroup/other/memory.max", "1"),
            ("/sys/fs/cgroup/other/memory.current", "1"),
        ];
        assert_eq!(among(&files), Some((2000, Some("/sys/fs/cgroup".to_owned()))));
    }

    #[test]
    fn groups_without_limits_leave_the_host() {
        let files = [
            MEMINFO,
            ("/proc/self/cgroup", "nonsense\n0::/a\n"),
            ("/sys/fs/cgroup/a/memory.max", "max"),
            ("/sys/fs/cgroup/a/memory.current", "5"),
        ];
        assert_eq!(among(&files), Some((HOST_BYTES, None)));
    }
}
