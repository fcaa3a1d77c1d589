//! Which NUMA node a core belongs to, so that a pinned worker's memory is its own node's. Asked once,
//! while a worker is built; reads sysfs, sets nothing.

use std::fs::DirEntry;
use std::path::Path;

/// Kernel: Documentation/ABI/stable/sysfs-devices-node; a core's directory links to its node.
const CORES: &str = "/sys/devices/system/cpu";

/// The node of a core; `None` where the kernel knows no nodes, or no such core.
pub(crate) fn node_of(core: usize) -> Option<u32> {
    node_in(&Path::new(CORES).join(format!("cpu{core}")))
}

fn node_in(core: &Path) -> Option<u32> {
    core.read_dir().ok()?.flatten().find_map(|entry| node_number(&entry))
}

fn node_number(entry: &DirEntry) -> Option<u32> {
    entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cores_node_is_the_link_in_its_directory() {
        let cores = tempfile::tempdir().expect("a directory");
        for (core, link) in [("cpu0", Some("node3")), ("cpu1", Some("nodes")), ("cpu2", None)] {
            let core = cores.path().join(core);
            std::fs::create_dir_all(core.join("topology")).expect("a core");
            if let Some(link) = link {
                std::fs::create_dir(core.join(link)).expect("a link");
            }
        }
        let nodes = ["cpu0", "cpu1", "cpu2", "cpu3"].map(|core| node_in(&cores.path().join(core)));
        assert_eq!(nodes, [Some(3), None, None, None]);
    }
}
