//! How much memory this process can still allocate, by the host and by each of its control groups.
//!
//! Mappings ask before overcommit promises memory which populating would then get by killing processes. Nothing here
//! changes a setting; what cannot be read limits nothing.

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

/// The smallest of all limits; `None` when there is nothing to read.
pub(crate) fn available() -> Option<Available> {
    available_by(|path| fs::read_to_string(path).ok())
}

fn available_by(read: impl Fn(&Path) -> Option<String>) -> Option<Available> {
    let meminfo = read(Path::new("/proc/meminfo"));
    let host = meminfo.as_deref().and_then(host_bytes).map(|bytes| Available { bytes, group: None });
    let memberships = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let groups = memberships.lines().filter_map(Hierarchy::of).flat_map(|hierarchy| hierarchy.limits(&read));
    groups.chain(host).min()
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

/// This process's place in the hierarchy that limits memory (cgroups(7)).
struct Hierarchy<'m> {
    root: PathBuf,
    place: &'m str,
    /// Limit, usage, and the line of memory.stat about file pages which the kernel drops before it runs out.
    files: [&'static str; 3],
}

impl<'m> Hierarchy<'m> {
    /// From a line of /proc/self/cgroup: "0::/place" for version 2, "4:memory:/place" for version 1.
    fn of(line: &'m str) -> Option<Self> {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, place) = (parts.next()?, parts.next()?, parts.next()?);
        if controllers.is_empty() {
            let files = ["memory.max", "memory.current", "inactive_file"];
            Some(Self { root: PathBuf::from(GROUPS), place, files })
        } else if controllers.split(',').any(|controller| controller == "memory") {
            let files = ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"];
            Some(Self { root: Path::new(GROUPS).join("memory"), place, files })
        } else {
            None
        }
    }

    /// The room that the group and each of its ancestors leave, as far as they are visible: a container's root is its own group,
    /// whose place elsewhere ("/../x", or a path of the host's) means nothing here.
    fn limits(&self, read: impl Fn(&Path) -> Option<String>) -> Vec<Available> {
        let mut group = self.root.clone();
        let names = Path::new(self.place.trim_start_matches('/')).components().map_while(|part| match part {
            Component::Normal(name) => Some(name),
            _ => None,
        });
        let mut limits: Vec<Available> = self.left(&group, &read).into_iter().collect();
        for name in names {
            group.push(name);
            limits.extend(self.left(&group, &read));
        }
        limits
    }

    /// "max", or no such file as in the root of version 2, is no limit.
    fn left(&self, group: &Path, read: impl Fn(&Path) -> Option<String>) -> Option<Available> {
        let [limit, usage, inactive] = self.files;
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
        available_by(read).map(|found| (found.bytes, found.group.map(|group| group.display().to_string())))
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
