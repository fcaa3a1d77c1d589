//! What a real NIC counts of its own accord: /sys/class/infiniband/DEV/ports/N/hw_counters (kernel:
//! Documentation/ABI/stable/sysfs-class-infiniband). A file is read when a state is made; nothing is ever
//! written, and where there is no file nothing is known.

use std::path::{Path, PathBuf};

/// Where the kernel shows RDMA devices.
pub(super) const SYSFS: &str = "/sys/class/infiniband";

/// Packets that found no posted buffer, per port: the only loss on a real NIC that has a name.
#[derive(Debug)]
pub(super) struct OutOfBuffer(Vec<(PathBuf, Option<u64>)>);

impl OutOfBuffer {
    /// The device has counted since its driver was loaded; what it shows now is the start.
    pub(super) fn of(sysfs: &Path, device: &str, ports: &[u8]) -> Self {
        let file = |port: &u8| {
            sysfs.join(device).join("ports").join(port.to_string()).join("hw_counters/out_of_buffer")
        };
        Self(ports.iter().map(file).map(|path| (path.clone(), read(&path))).collect())
    }

    /// Since the start, of the port at that place in the list; `None`: the device does not say.
    pub(super) fn since_start(&self, index: usize) -> Option<u64> {
        let (path, start) = self.0.get(index)?;
        Some(read(path)?.saturating_sub((*start)?))
    }
}

fn read(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lost_since_the_start_is_told_and_what_is_not_shown_is_unknown() {
        let sysfs = tempfile::tempdir().expect("folder");
        let counters = sysfs.path().join("mlx5_0/ports/1/hw_counters");
        std::fs::create_dir_all(&counters).expect("made");
        std::fs::write(counters.join("out_of_buffer"), "70\n").expect("written");
        let out_of_buffer = OutOfBuffer::of(sysfs.path(), "mlx5_0", &[1, 2]);
        assert_eq!(out_of_buffer.since_start(0), Some(0), "that was before our time");
        std::fs::write(counters.join("out_of_buffer"), "75\n").expect("written");
        assert_eq!(out_of_buffer.since_start(0), Some(5));
        assert_eq!(out_of_buffer.since_start(1), None, "no such file");
        std::fs::write(counters.join("out_of_buffer"), "N/A\n").expect("written");
        assert_eq!(out_of_buffer.since_start(0), None);
        assert_eq!(OutOfBuffer::of(sysfs.path(), "softnic0", &[1]).since_start(0), None);
    }
}
