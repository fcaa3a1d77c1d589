//! The placement of network interfaces beside the cores of workers and engines: the NUMA node of an
//! interface's device, the cores that its interrupts go to, and those that the kernel moves its packets to
//! (RPS); with the command that mends a bad placement. Reads files of sysfs and procfs below a root, so that
//! tests have their own (Documentation/ABI/testing/sysfs-class-net, sysfs-class-net-queues, sysfs-bus-pci,
//! Documentation/core-api/irq/irq-affinity.rst).

mod cores;
#[cfg(test)]
mod tests;
mod vectors;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use verbs::SYSFS_DEVICES;
use wire::AF_XDP_MAX_QUEUES;

use crate::settings::{AUTO_DEVICE, Settings, SoftNicMode};
use crate::terminal::numbers::{counted, percent};
pub(crate) use cores::CoreSet;
pub(crate) use vectors::completion_vectors;

/// The most interrupts or queues with a line of their own.
const SHOWN: usize = 16;

/// The interfaces of the settings, the cores of steerd's threads, and what is wrong about them.
#[derive(Debug, Serialize)]
pub(crate) struct Placement {
    pub(crate) interfaces: Vec<InterfacePlacement>,
    pub(crate) threads: Vec<ThreadPlacement>,
    /// The bad placements, each with its remedy.
    pub(crate) problems: Vec<PlacementProblem>,
}

/// A network interface.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(crate) struct InterfacePlacement {
    pub(crate) interface: String,
    /// Whether there is such an interface.
    pub(crate) present: bool,
    /// Whether it belongs to a device; a virtual interface has none.
    pub(crate) has_device: bool,
    /// The NUMA node of the device; `None`: it has none, or it is not known.
    pub(crate) numa_node: Option<u32>,
    pub(crate) receive_queues: u32,
    /// How often each queue is in the RSS table; `None`: the interface has no table.
    pub(crate) rss: Option<BTreeMap<u32, u32>>,
    pub(crate) interrupts: Vec<InterruptPlacement>,
    /// The queues whose packets the kernel moves to other cores.
    pub(crate) rps: Vec<RpsPlacement>,
}

/// An interrupt of an interface's device.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct InterruptPlacement {
    pub(crate) interrupt: u32,
    /// The cores that it goes to.
    pub(crate) cores: CoreSet,
}

/// A receive queue with RPS.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct RpsPlacement {
    pub(crate) queue: u32,
    pub(crate) cores: CoreSet,
}

/// A thread that handles packets.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct ThreadPlacement {
    /// `worker 0`, `engine`, ...
    pub(crate) thread: String,
    /// `None`: any.
    pub(crate) core: Option<usize>,
    pub(crate) numa_node: Option<u32>,
}

/// A bad placement.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct PlacementProblem {
    pub(crate) problem: String,
    pub(crate) remedy: String,
}

impl Placement {
    /// The placement of the interfaces on which an XDP program enforces the policy, with workers on these
    /// cores; `None`: there is no such interface.
    pub(crate) fn of(settings: &Settings, workers: &[Option<usize>]) -> Option<Self> {
        let ports = settings.xdp_ports();
        let read = |name: &String| {
            let rss = wire::rss_table(name);
            InterfacePlacement::read(Path::new("/"), name, rss.as_deref())
        };
        let interfaces: Vec<InterfacePlacement> = ports.iter().map(|port| read(&port.interface)).collect();
        let engines = match settings.softnic.mode {
            SoftNicMode::Dedicated => settings.softnic.engine_threads(),
            SoftNicMode::Inline => Vec::new(),
        };
        (!interfaces.is_empty())
            .then(|| Self::beside(interfaces, &Nodes::read(Path::new("/")), workers, &engines))
    }

    fn beside(
        interfaces: Vec<InterfacePlacement>,
        nodes: &Nodes,
        workers: &[Option<usize>],
        engines: &[Option<usize>],
    ) -> Self {
        let thread = |thread: String, core: &Option<usize>| ThreadPlacement {
            thread,
            core: *core,
            numa_node: core.and_then(|core| nodes.of_core(core)),
        };
        let worker = |(index, core)| thread(format!("worker {index}"), core);
        let engine = |(index, core)| match engines.len() {
            1 => thread("engine".to_owned(), core),
            _ => thread(format!("engine {index}"), core),
        };
        let workers = workers.iter().enumerate().map(worker);
        let threads: Vec<ThreadPlacement> = workers.chain(engines.iter().enumerate().map(engine)).collect();
        let problems = interfaces.iter().flat_map(|interface| problems(interface, nodes, &threads)).collect();
        Self { interfaces, threads, problems }
    }

    /// A line for each interface and one for the threads.
    pub(crate) fn lines(&self) -> Vec<String> {
        let core = |thread: &ThreadPlacement| match (thread.core, thread.numa_node) {
            (Some(core), Some(node)) => format!("{} on core {core} (NUMA node {node})", thread.thread),
            (Some(core), None) => format!("{} on core {core}", thread.thread),
            (None, _) => format!("{} on any core", thread.thread),
        };
        let threads: Vec<String> = self.threads.iter().take(SHOWN).map(core).collect();
        let more = more(self.threads.len());
        let interfaces = self.interfaces.iter().map(InterfacePlacement::line);
        interfaces.chain([format!("{}{more}", threads.join(", "))]).collect()
    }

    /// Logs the placement once, with a warning for each of the first problems.
    pub(crate) fn log(&self) {
        self.lines().iter().for_each(|line| tracing::info!("{line}"));
        self.warn();
    }

    /// Logs a warning for each of the first problems.
    pub(crate) fn warn(&self) {
        for PlacementProblem { problem, remedy } in self.problems.iter().take(SHOWN) {
            tracing::warn!("{problem} (hint: {remedy})");
        }
    }

    /// The queues that no socket can be opened for, with the packets that would be missed.
    pub(crate) fn unserved_queues(&self) -> Vec<String> {
        self.interfaces.iter().filter_map(InterfacePlacement::unserved_queues).collect()
    }
}

impl InterfacePlacement {
    /// Reads the placement of an interface below a root. `rss`: the queue of each entry of its table.
    fn read(root: &Path, name: &str, rss: Option<&[u32]>) -> Self {
        let folder = root.join("sys/class/net").join(name);
        let mut placement = Self { interface: name.to_owned(), ..Self::default() };
        if name.is_empty() || name.contains('/') || name.starts_with('.') || !folder.exists() {
            return placement;
        }
        let device = folder.join("device");
        placement.present = true;
        placement.has_device = device.exists();
        // That of virtio and some other buses is a child of the device that has the interrupts. The parent of
        // a PCI function is a bridge.
        let bus = std::fs::read_link(device.join("subsystem")).ok();
        let is_pci = bus.is_some_and(|bus| bus.file_name().is_some_and(|name| name == "pci"));
        let parent = (!is_pci).then(|| device.join(".."));
        let devices: Vec<_> = [device].into_iter().chain(parent).collect();
        let nodes = devices.iter().filter_map(|device| read(&device.join("numa_node")));
        // -1 stands for none.
        placement.numa_node = nodes.filter_map(|node| node.parse().ok()).next();
        let interrupts = devices.iter().map(|device| numbers(&device.join("msi_irqs"), ""));
        let interrupts = interrupts.into_iter().find(|found| !found.is_empty()).unwrap_or_default();
        placement.interrupts = interrupts.into_iter().filter_map(|irq| interrupt(root, irq)).collect();
        let queues = numbers(&folder.join("queues"), "rx-");
        placement.receive_queues = queues.len() as u32;
        let rps = |queue: u32| {
            let cores = CoreSet::of_mask(&read(&folder.join(format!("queues/rx-{queue}/rps_cpus")))?)?;
            (!cores.is_empty()).then_some(RpsPlacement { queue, cores })
        };
        placement.rps = queues.into_iter().filter_map(rps).collect();
        placement.rss = rss.map(|table| {
            let mut entries = BTreeMap::new();
            table.iter().for_each(|queue| *entries.entry(*queue).or_default() += 1);
            entries
        });
        placement
    }

    fn line(&self) -> String {
        let name = &self.interface;
        if !self.present {
            return format!("{name} is not on this host: its NUMA node, queues and interrupts are not known");
        }
        let device = match (self.has_device, self.numa_node) {
            (false, _) => "has no device, and so no NUMA node and no interrupts".to_owned(),
            (true, Some(node)) => format!("is on NUMA node {node}"),
            (true, None) => "is on no known NUMA node".to_owned(),
        };
        let rss = match &self.rss {
            None => "no RSS table".to_owned(),
            Some(rss) => {
                let entries =
                    counted(rss.values().map(|entries| u64::from(*entries)).sum(), "entry", "entries");
                let queues: CoreSet = rss.keys().map(|queue| *queue as usize).collect();
                format!("an RSS table of {entries} for queues {queues}")
            }
        };
        let queues = counted(self.receive_queues.into(), "receive queue", "receive queues");
        let mut line = format!("{name} {device}; {queues}, {rss}");
        if self.has_device {
            let of = |irq: &InterruptPlacement| format!("{} on {}", irq.interrupt, irq.cores);
            let interrupts: Vec<String> = self.interrupts.iter().take(SHOWN).map(of).collect();
            match interrupts.is_empty() {
                true => line.push_str("; interrupts not known"),
                false => {
                    line += &format!("; interrupts {}{}", interrupts.join(", "), more(self.interrupts.len()));
                }
            }
        }
        let rps: Vec<String> =
            self.rps.iter().take(SHOWN).map(|rps| format!("queue {} to {}", rps.queue, rps.cores)).collect();
        match rps.is_empty() {
            true => line + "; RPS off",
            false => format!("{line}; RPS of {}{}", rps.join(", "), more(self.rps.len())),
        }
    }

    fn unserved_queues(&self) -> Option<String> {
        let (queues, most) = (self.receive_queues, AF_XDP_MAX_QUEUES);
        if queues <= most {
            return None;
        }
        let missed = match &self.rss {
            None => "it is not known which part of the packets they get".to_owned(),
            Some(rss) => {
                let sum = |entries: &mut dyn Iterator<Item = (&u32, &u32)>| {
                    entries.map(|(_, entries)| f64::from(*entries)).sum::<f64>()
                };
                let missed = sum(&mut rss.range(most..)) / sum(&mut rss.iter()).max(1.0);
                format!("they have {} of the RSS table", percent(missed))
            }
        };
        let name = &self.interface;
        Some(format!(
            "{name} has {queues} receive queues, and there are sockets for {most} at most: packets of queues {most} to {} \
             would be missed; {missed} (hint: `ethtool -L {name} combined {most}`)",
            queues - 1
        ))
    }
}

/// The NUMA nodes of a host, with their cores.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    cores: BTreeMap<u32, CoreSet>,
    /// The cores of a host that names no nodes.
    online: CoreSet,
}

impl Nodes {
    /// Reads the nodes below a root.
    pub(crate) fn read(root: &Path) -> Self {
        let folder = root.join("sys/devices/system/node");
        let node =
            |node: u32| Some((node, CoreSet::of_list(&read(&folder.join(format!("node{node}/cpulist")))?)?));
        let online = read(&root.join("sys/devices/system/cpu/online"));
        Self {
            cores: numbers(&folder, "node").into_iter().filter_map(node).collect(),
            online: online.and_then(|list| CoreSet::of_list(&list)).unwrap_or_default(),
        }
    }

    /// The node of a core; `None`: it is not known.
    pub(crate) fn of_core(&self, core: usize) -> Option<u32> {
        self.cores.iter().find(|(_, cores)| cores.contains(core)).map(|(node, _)| *node)
    }

    /// The cores of a node, or all if it is not known.
    pub(crate) fn cores(&self, node: Option<u32>) -> CoreSet {
        let of_node = node.and_then(|node| self.cores.get(&node)).cloned();
        of_node.unwrap_or_else(|| match self.cores.is_empty() {
            true => self.online.clone(),
            false => self.cores.values().flat_map(CoreSet::iter).collect(),
        })
    }
}

/// The folder of RDMA devices below a root.
fn rdma_devices(root: &Path) -> PathBuf {
    root.join(SYSFS_DEVICES.trim_start_matches('/'))
}

/// The cores on the NUMA node of an RDMA device (Documentation/ABI/testing/sysfs-bus-pci); of "auto", those
/// of the only one. `None`: they are not known.
pub(crate) fn device_cores(root: &Path, device: &str) -> Option<CoreSet> {
    let folder = rdma_devices(root);
    let name = match device {
        AUTO_DEVICE => {
            let mut entries = fs::read_dir(&folder).ok()?.flatten();
            let only = entries.next()?.file_name();
            entries.next().is_none().then_some(only)?
        }
        name => name.into(),
    };
    CoreSet::of_list(&read(&folder.join(name).join("device/local_cpulist"))?)
}

/// The threads of the physical core that a core is of (Documentation/admin-guide/cputopology.rst).
pub(crate) fn thread_siblings(root: &Path, core: usize) -> Option<CoreSet> {
    let topology = root.join(format!("sys/devices/system/cpu/cpu{core}/topology"));
    CoreSet::of_list(&read(&topology.join("thread_siblings_list"))?)
}

/// The bad placements of an interface, with remedies.
fn problems(
    interface: &InterfacePlacement,
    nodes: &Nodes,
    threads: &[ThreadPlacement],
) -> Vec<PlacementProblem> {
    let name = &interface.interface;
    let mut found = Vec::new();
    let used: BTreeMap<usize, &str> =
        threads.iter().filter_map(|thread| Some((thread.core?, thread.thread.as_str()))).collect();
    let near = nodes.cores(interface.numa_node);
    if let Some(own) = interface.numa_node {
        for thread in threads {
            let (Some(core), Some(node)) = (thread.core, thread.numa_node.filter(|node| *node != own)) else {
                continue;
            };
            let setting = if thread.thread.starts_with("worker") { "workers.cores" } else { "softnic.cores" };
            found.push(PlacementProblem {
                problem: format!(
                    "{} is on core {core} of NUMA node {node}, and {name} on NUMA node {own}",
                    thread.thread
                ),
                remedy: format!("{setting} with cores of NUMA node {own}: {near}"),
            });
        }
    }
    let free: CoreSet = near.iter().filter(|core| !used.contains_key(core)).collect();
    let taken_by = |cores: &CoreSet| cores.iter().find_map(|core| Some((core, *used.get(&core)?)));
    for InterruptPlacement { interrupt, cores } in &interface.interrupts {
        let is_far = interface.numa_node.is_some()
            && !cores.is_empty()
            && cores.iter().all(|core| !near.contains(core));
        let problem = match taken_by(cores) {
            Some((core, thread)) => {
                format!("interrupt {interrupt} of {name} goes to core {core}, where {thread} runs")
            }
            None if is_far => {
                format!("interrupt {interrupt} of {name} goes to cores of another NUMA node: {cores}")
            }
            None => continue,
        };
        found.push(PlacementProblem {
            problem,
            remedy: match free.is_empty() {
                false => {
                    format!("`echo {free} > /proc/irq/{interrupt}/smp_affinity_list` (and no irqbalance)")
                }
                true => "workers.cores with fewer cores: there is none left for interrupts".to_owned(),
            },
        });
    }
    for RpsPlacement { queue, cores } in &interface.rps {
        let Some((core, thread)) = taken_by(cores) else { continue };
        let others: CoreSet = cores.iter().filter(|core| !used.contains_key(core)).collect();
        found.push(PlacementProblem {
            problem: format!(
                "RPS moves packets of queue {queue} of {name} to core {core}, where {thread} runs"
            ),
            remedy: format!("`echo {} > /sys/class/net/{name}/queues/rx-{queue}/rps_cpus`", others.mask()),
        });
    }
    found
}

/// The cores that an interrupt goes to; `None`: it has no handler.
fn interrupt(root: &Path, interrupt: u32) -> Option<InterruptPlacement> {
    let folder: PathBuf = root.join("proc/irq").join(interrupt.to_string());
    let list = |name: &str| CoreSet::of_list(&read(&folder.join(name))?).filter(|cores| !cores.is_empty());
    let cores = list("effective_affinity_list").or_else(|| list("smp_affinity_list"))?;
    Some(InterruptPlacement { interrupt, cores })
}

/// The numbers in the names of a folder's entries that begin so, in order.
fn numbers(folder: &Path, beginning: &str) -> BTreeSet<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_prefix(beginning)?.parse().ok();
    entries.filter_map(number).collect()
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// The number of those that are not shown.
fn more(count: usize) -> String {
    match count.saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    }
}
