//! The configuration of a worker and its limits. It does not change while the worker runs.

use std::fs::DirEntry;
use std::path::Path;

use hugemem::{ArenaOptions, PageKind};
use program::WorkerId;

use crate::error::Error;
use crate::idle::Idle;

/// Most completions that one iteration of the loop may take.
pub const BATCH_MAX: usize = 512;
/// Most frames that one worker may own. Also the bound on its receive queue.
pub const FRAMES_MAX: u32 = 1 << 20;
/// Smallest frame: the shortest legal Ethernet frame.
pub const FRAME_BYTES_MIN: u32 = 64;
/// Largest frame: beyond every jumbo frame in use.
pub const FRAME_BYTES_MAX: u32 = 1 << 16;
/// The highest core that a thread can be pinned to (sched_setaffinity(2), CPU_SETSIZE).
pub const CORE_MAX: usize = 1023;
/// Most ports of one device (their numbers are bytes, from 1).
pub const PORTS_MAX: usize = 255;

/// A port that a worker serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServedPort {
    /// The number of the port, from 1.
    pub number: u8,
    /// The MTU of the port's network interface; `None`: it is not known, and the one of the verbs counts,
    /// which is at most 4096.
    pub mtu_bytes: Option<u32>,
}

/// How a worker receives ([`verbs::ReceivePath`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReceiveKind {
    /// The worker calls the functions of the device's provider.
    #[default]
    Verbs,
    /// The worker reads and writes the queues' memory, on a device of libmlx5; on others it receives as
    /// [`ReceiveKind::Verbs`], with a warning.
    Direct,
}

impl ReceiveKind {
    /// The name of the setting's value.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Verbs => "verbs",
            Self::Direct => "direct",
        }
    }
}

/// The configuration of one worker.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// Which worker this is: its place in the program's tables.
    pub id: WorkerId,
    /// Which of the device's interrupts wakes it (`comp_vector`); `None` spreads workers over all of them by
    /// their numbers.
    pub completion_vector: Option<u32>,
    /// The core its thread is pinned to; `None` leaves it to the scheduler.
    pub core: Option<usize>,
    /// The device's ports that it serves: frames are to hold the largest packet of any.
    pub ports: Vec<ServedPort>,
    /// Frames in its pool; all of them are posted while the worker is idle.
    pub frames: u32,
    /// Bytes per frame, rounded up to an odd number of cache lines; a longer packet is refused by the device.
    pub frame_bytes: u32,
    /// Completions taken per iteration, at most [`BATCH_MAX`].
    pub batch: usize,
    /// Kinds of pages, tried in this order.
    pub pages: Vec<PageKind>,
    /// NUMA node of its memory; `None` takes that of `core`.
    pub numa_node: Option<u32>,
    /// The behaviour without work.
    pub idle: Idle,
    /// The device works only when it is polled, as a software NIC without a thread: an idle worker then
    /// sleeps for at most four milliseconds at a time.
    pub polls_drive_device: bool,
    /// Ask the device not to check for completion queue overruns, which cannot happen. Devices without the
    /// flag check.
    pub ignore_overrun: bool,
    /// Let the device's writes to frames overtake each other (`IBV_ACCESS_RELAXED_ORDERING`). A device or
    /// kernel that cannot ignores it.
    pub relaxed_ordering: bool,
    /// How it takes completions and posts frames.
    pub receive: ReceiveKind,
    /// Have completions carry the device's timestamp (for latencies and captures).
    pub timestamps: bool,
    /// Measure the time of stages ([`crate::WorkerProfile`]).
    pub profile: bool,
}

impl WorkerConfig {
    /// A worker with the defaults of `steerd.toml`.
    #[must_use]
    pub fn new(id: WorkerId) -> Self {
        Self {
            id,
            completion_vector: None,
            core: None,
            ports: vec![ServedPort { number: 1, mtu_bytes: None }],
            frames: 4096,
            frame_bytes: 2048,
            batch: 64,
            pages: vec![PageKind::Huge2M, PageKind::Transparent, PageKind::Plain],
            numa_node: None,
            idle: Idle::default(),
            polls_drive_device: false,
            ignore_overrun: true,
            relaxed_ordering: false,
            receive: ReceiveKind::default(),
            timestamps: false,
            profile: false,
        }
    }

    /// The NUMA node for its memory; `None` leaves it to the kernel.
    #[must_use]
    pub fn memory_node(&self) -> Option<u32> {
        self.numa_node.or_else(|| self.core.and_then(node_of))
    }

    /// An arena of so many bytes, of the kinds of pages of the worker and on its NUMA node.
    #[must_use]
    pub fn arena(&self, bytes: usize) -> ArenaOptions {
        ArenaOptions {
            bytes,
            pages: self.pages.clone(),
            numa_node: self.memory_node(),
            label: format!("worker {}", self.id.0),
        }
    }

    /// The interrupt for its completion queue, on a device with so many.
    pub(crate) fn completion_vector_of(&self, vectors: u32) -> u32 {
        self.completion_vector.unwrap_or_else(|| self.id.0 % vectors.max(1))
    }

    /// Checks that all settings are in range.
    ///
    /// # Errors
    /// [`Error::Setting`] names the setting, its value and its range.
    pub fn check(&self) -> Result<(), Error> {
        if let Some(core) = self.core {
            in_range("core", core as u64, 0, CORE_MAX as u64)?;
        }
        in_range("ports", self.ports.len() as u64, 1, PORTS_MAX as u64)?;
        in_range("frames", u64::from(self.frames), 1, u64::from(FRAMES_MAX))?;
        in_range(
            "frame_bytes",
            u64::from(self.frame_bytes),
            u64::from(FRAME_BYTES_MIN),
            u64::from(FRAME_BYTES_MAX),
        )?;
        in_range("batch", self.batch as u64, 1, BATCH_MAX as u64)?;
        Ok(())
    }
}

fn in_range(setting: &'static str, value: u64, least: u64, most: u64) -> Result<(), Error> {
    if (least..=most).contains(&value) { Ok(()) } else { Err(Error::Setting { setting, value, least, most }) }
}

/// Kernel: Documentation/ABI/stable/sysfs-devices-node; a core's directory links to its node.
const CORES: &str = "/sys/devices/system/cpu";

/// The node of a core; `None` if the kernel has no NUMA nodes, or no such core.
fn node_of(core: usize) -> Option<u32> {
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
    fn memory_is_on_the_node_of_the_core_unless_said_otherwise() {
        let node = |core, numa_node| {
            WorkerConfig { core, numa_node, ..WorkerConfig::new(WorkerId(0)) }.memory_node()
        };
        assert_eq!(node(Some(0), Some(7)), Some(7));
        assert_eq!(node(Some(0), None), node_of(0));
        assert_eq!(node(None, None), None);
    }

    #[test]
    fn settings_outside_their_range_are_named() {
        type Damage = fn(&mut WorkerConfig);
        let broken: [(&str, Damage); 5] = [
            ("core", |c| c.core = Some(CORE_MAX + 1)),
            ("ports", |c| c.ports.clear()),
            ("frames", |c| c.frames = 0),
            ("frame_bytes", |c| c.frame_bytes = 63),
            ("batch", |c| c.batch = BATCH_MAX + 1),
        ];
        for (name, damage) in broken {
            let mut config = WorkerConfig::new(WorkerId(0));
            damage(&mut config);
            let error = config.check().expect_err(name);
            assert!(error.to_string().contains(name), "{error}");
        }
    }

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
