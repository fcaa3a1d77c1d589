//! Checks of placement: workers are on the NUMA node of their interface, and its interrupts are not on the
//! workers' cores.

use std::collections::BTreeMap;

use super::setup::{ExaminedInterface, InterfaceUse};
use super::{CheckNotes, FindingLevel, HostView};
use crate::daemon::placement::{CoreSet, Nodes};
use crate::settings::IdleMode;

/// The NUMA nodes of the host.
const NODES: &str = "/sys/devices/system/node";

/// The folders of the device of an interface, one of which has the interrupts: the device of virtio and some
/// other buses is a child of it.
fn device_folders(interface: &str) -> [String; 2] {
    let device = format!("/sys/class/net/{interface}/device");
    let parent = format!("{device}/..");
    [device, parent]
}

/// The NUMA node of an interface's device; `None`: it has none, or the kernel does not show it.
fn node_of(view: &HostView<'_>, notes: &mut CheckNotes, interface: &str) -> Option<u32> {
    let number = |folder: &String| {
        // -1 stands for none.
        let path = format!("{folder}/numa_node");
        notes.take(view.files.parsed(&path, "a number", |text| text.parse::<i64>().ok()))
    };
    let nodes: Vec<i64> = device_folders(interface).iter().filter_map(number).collect();
    nodes.into_iter().find_map(|node| u32::try_from(node).ok())
}

/// Each worker runs on the NUMA node of the interfaces (Documentation/ABI/testing/sysfs-bus-pci).
pub(super) fn nodes(view: &HostView<'_>, notes: &mut CheckNotes) {
    for node in notes.take(view.files.names(NODES)).unwrap_or_default() {
        if node.strip_prefix("node").is_some_and(|number| number.parse::<u32>().is_ok()) {
            // What cannot be read must not be taken for a core near the interface.
            notes.take(view.files.cores(&format!("{NODES}/{node}/cpulist")));
        }
    }
    let nodes = Nodes::read(view.files.root());
    let mut has_node = false;
    for ExaminedInterface { name, .. } in &view.setup.interfaces {
        let Some(own) = node_of(view, notes, name) else { continue };
        has_node = true;
        let is_far = |core: &&usize| nodes.of_core(**core).is_some_and(|node| node != own);
        let threads = [("workers", &view.setup.workers), ("engine threads", &view.setup.engines)];
        for (threads, cores) in threads {
            let far: CoreSet = cores.iter().flatten().filter(is_far).copied().collect();
            if far.is_empty() {
                continue;
            }
            let setting = if threads == "workers" { "workers.cores" } else { "softnic.cores" };
            notes.find(
                FindingLevel::Should,
                format!("{threads} run on cores {far}, and {name} is on NUMA node {own}"),
                "each packet crosses the link between the nodes",
                format!(
                    "{setting} in the settings, with cores of NUMA node {own}: {}",
                    nodes.cores(Some(own))
                ),
            );
        }
    }
    if !has_node && notes.unread.is_empty() {
        notes.skip("no interface of the settings is on a known NUMA node");
    }
}

/// The cores that each interrupt of an interface's device goes to.
fn interrupts_of(view: &HostView<'_>, notes: &mut CheckNotes, interface: &str) -> BTreeMap<u32, CoreSet> {
    let mut numbers: Vec<u32> = Vec::new();
    for folder in device_folders(interface) {
        let names = notes.take(view.files.names(&format!("{folder}/msi_irqs"))).unwrap_or_default();
        numbers = names.iter().filter_map(|name| name.parse().ok()).collect();
        if !numbers.is_empty() {
            break;
        }
    }
    let mut found = BTreeMap::new();
    for number in numbers {
        // Neither is there for an interrupt without a handler.
        for name in ["effective_affinity_list", "smp_affinity_list"] {
            let before = notes.unread.len();
            let cores = notes.take(view.files.cores(&format!("/proc/irq/{number}/{name}")));
            if let Some(cores) = cores.filter(|cores| !cores.is_empty()) {
                found.insert(number, cores);
                break;
            }
            // The allowed cores are more than those that the interrupt goes to.
            if notes.unread.len() > before {
                break;
            }
        }
    }
    found
}

/// The interrupts of the interfaces do not go to the workers' cores
/// (Documentation/core-api/irq/irq-affinity.rst).
pub(super) fn affinity(view: &HostView<'_>, notes: &mut CheckNotes) {
    let setup = view.setup;
    let mut used = setup.worker_cores();
    used.extend(setup.engines.iter().flatten());
    if used.is_empty() {
        return notes.skip("no thread is pinned to a core");
    }
    // steerd chooses the completion vector whose interrupt goes to the worker's core, to be woken there.
    let wakes = |interface: &&ExaminedInterface| {
        interface.usage == InterfaceUse::Rdma && setup.idle != IdleMode::Spin
    };
    if !setup.interfaces.is_empty() && setup.interfaces.iter().all(|interface| wakes(&interface)) {
        return notes
            .skip("workers that sleep are woken by the interrupts of the RDMA device on their cores");
    }
    let nodes = Nodes::read(view.files.root());
    let mut has_interrupt = false;
    for interface in setup.interfaces.iter().filter(|interface| !wakes(interface)) {
        let name = &interface.name;
        let found = interrupts_of(view, notes, name);
        has_interrupt |= !found.is_empty();
        let meets = |cores: &CoreSet| used.iter().any(|core| cores.contains(*core));
        let met: Vec<u32> =
            found.iter().filter(|(_, cores)| meets(cores)).map(|(number, _)| *number).collect();
        if met.is_empty() {
            continue;
        }
        let near = nodes.cores(node_of(view, notes, name));
        let free: CoreSet = near.iter().filter(|core| !used.contains(core)).collect();
        let numbers = met.iter().map(|number| *number as usize).collect::<CoreSet>();
        let listed: Vec<String> = met.iter().map(ToString::to_string).collect();
        let command = match free.is_empty() {
            true => "workers.cores in the settings, with fewer cores: none is left for interrupts".to_owned(),
            false => format!(
                "for irq in {}; do echo {free} > /proc/irq/$irq/smp_affinity_list; done",
                listed.join(" ")
            ),
        };
        notes.find(
            FindingLevel::Should,
            format!("interrupts {numbers} of {name} go to cores of workers or engine threads"),
            "the network stack runs there for each interrupt, and packets wait meanwhile",
            command,
        );
    }
    if !has_interrupt && notes.unread.is_empty() {
        notes.skip("no interface of the settings has interrupts of its own");
    }
}

/// No irqbalance moves interrupts to the workers' cores (irqbalance(1)).
pub(super) fn balancer(view: &HostView<'_>, notes: &mut CheckNotes) {
    let cores = view.setup.worker_cores();
    if cores.is_empty() || view.setup.interfaces.is_empty() {
        return notes.skip("no worker on a core of its own receives from an interface");
    }
    let names = notes.take(view.files.names("/proc")).unwrap_or_default();
    let processes: Vec<&String> =
        names.iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())).collect();
    // With hidepid= a user sees its own processes only (proc(5)).
    if !processes.iter().any(|process| *process == "1") {
        if notes.unread.is_empty() {
            let hidden = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
            notes.unanswered("/proc: the processes of other users", &hidden);
        }
        return;
    }
    let mut is_running = false;
    for process in processes {
        // A process may have ended since it was listed.
        is_running |= view.files.text(&format!("/proc/{process}/comm")) == Ok(Some("irqbalance".to_owned()));
    }
    if is_running {
        let cores: CoreSet = cores.into_iter().collect();
        notes.find(
            FindingLevel::Should,
            "irqbalance is running",
            "it moves interrupts to the cores of workers",
            format!("systemctl disable --now irqbalance, or IRQBALANCE_BANNED_CPULIST={cores} in /etc/default/irqbalance"),
        );
    }
}
