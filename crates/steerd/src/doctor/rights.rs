//! Checks of the rights of the process: its capabilities, and the character device of the verbs.

use std::os::unix::fs::PermissionsExt;

use super::setup::{ExaminedDevice, ExaminedSetup, InterfaceUse};
use super::{CheckNotes, FindingLevel, HostView};

/// The capability for flows and packet sockets, and that for memory that is locked without a limit, by their
/// numbers (linux/capability.h).
const CAP_NET_RAW: (&str, u32) = ("CAP_NET_RAW", 13);
pub(super) const CAP_IPC_LOCK: u32 = 14;
/// Reading and writing for everybody, as the rules of rdma-core set it.
const ALL_READ_WRITE: u32 = 0o666;

/// The effective capabilities of the process that is examined, a bit each (proc_pid_status(5)).
pub(super) fn effective(view: &HostView<'_>, notes: &mut CheckNotes) -> Option<u64> {
    let path = format!("{}/status", view.setup.process_folder());
    let line = |text: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        u64::from_str_radix(line.trim(), 16).ok()
    };
    let found = notes.take(view.files.parsed(&path, "a status with a line CapEff", line));
    if found.is_none() && notes.unread.is_empty() {
        notes.skip(format!("{path} is not there"));
    }
    found
}

/// The capabilities that the ports need, with their numbers.
fn needed_capabilities(setup: &ExaminedSetup) -> &'static [(&'static str, u32)] {
    if setup.uses(InterfaceUse::Xdp) {
        &xdp::CAPABILITIES
    } else if setup.is_rdma() || setup.uses(InterfaceUse::Packet) {
        &[CAP_NET_RAW]
    } else {
        &[]
    }
}

/// The process may make raw packet queue pairs, packet sockets and XDP programs.
pub(super) fn capabilities(view: &HostView<'_>, notes: &mut CheckNotes) {
    let setup = view.setup;
    let needed = needed_capabilities(setup);
    if needed.is_empty() {
        return notes.skip("no port needs a capability");
    }
    if !notes.knows_daemon(setup) {
        return;
    }
    let Some(effective) = effective(view, notes) else { return };
    let missing: Vec<&str> =
        needed.iter().filter(|(_, bit)| effective >> bit & 1 == 0).map(|(name, _)| *name).collect();
    if missing.is_empty() {
        return;
    }
    let names = missing.join(" ");
    notes.find(
        of_process(view),
        format!("{} lacks {}", setup.process_name(), missing.join(", ")),
        "the kernel refuses flows, packet sockets or XDP programs without them",
        format!(
            "systemctl edit steerd: [Service] AmbientCapabilities={names} CapabilityBoundingSet={names}; by hand: sudo"
        ),
    );
}

/// The unit of the service permits what the settings need, and the service has not failed.
pub(super) fn service(view: &HostView<'_>, notes: &mut CheckNotes) {
    let setup = view.setup;
    let Some(unit) = &setup.service else {
        return notes.skip("there is no unit steerd.service, or --config does not name its settings");
    };
    if setup.daemon.is_some() {
        return notes.skip("the process of the running daemon is examined");
    }
    if !notes.knows_daemon(setup) {
        return;
    }
    let mut lacks = unit.lacks(needed_capabilities(setup), setup.uses(InterfaceUse::Xdp));
    let needed: u64 = setup.memory.iter().map(|worker| worker.bytes).sum();
    // The limit does not apply to a process with the capability.
    let is_limited = !unit.lacks(&[("CAP_IPC_LOCK", CAP_IPC_LOCK)], false).is_empty();
    if setup.pins_memory() && is_limited && !unit.may_lock(needed) {
        lacks.push("LimitMEMLOCK=infinity".to_owned());
    }
    if !lacks.is_empty() {
        notes.find(
            FindingLevel::Must,
            format!("the unit steerd.service lacks {}", lacks.join(", ")),
            "the service cannot start with these settings, even if a shell of root can",
            format!("systemctl edit steerd: [Service] {}", lacks.join(" ")),
        );
    }
    if let Some(problem) = unit.problem() {
        notes.find(
            FindingLevel::Must,
            format!("the service steerd has failed: {problem}"),
            "packets are not steered",
            "journalctl -u steerd -p err, then systemctl restart steerd",
        );
    }
}

/// The level of a finding about the process: a shell may have other rights than the service.
pub(super) fn of_process(view: &HostView<'_>) -> FindingLevel {
    if view.setup.daemon.is_some() { FindingLevel::Must } else { FindingLevel::Should }
}

/// The character device of the verbs is there, and open for the user of the daemon.
pub(super) fn verbs_device(view: &HostView<'_>, notes: &mut CheckNotes) {
    let ExaminedDevice::Rdma { name, .. } = &view.setup.device else {
        return notes.skip("the settings choose no RDMA device of this host");
    };
    let folder = format!("/sys/class/infiniband/{name}/device/infiniband_verbs");
    let reason = "libibverbs opens the device by this file";
    let Some(names) = notes.take(view.files.names(&folder)) else {
        if notes.unread.is_empty() {
            notes.find(
                FindingLevel::Must,
                format!("the kernel has no verbs device of {name}"),
                reason,
                "modprobe ib_uverbs",
            );
        }
        return;
    };
    for uverbs in names {
        let path = format!("/dev/infiniband/{uverbs}");
        let is_there = notes.take(view.files.exists(&path).map(Some));
        if is_there == Some(false) {
            notes.find(
                FindingLevel::Must,
                format!("{path} is not there"),
                reason,
                format!(
                    "udevadm trigger --subsystem-match=infiniband_verbs; in a container: --device {path}"
                ),
            );
            continue;
        }
        let Ok(metadata) = view.files.place(&path).metadata() else { continue };
        let mode = metadata.permissions().mode() & 0o777;
        if mode & ALL_READ_WRITE != ALL_READ_WRITE {
            notes.find(
                FindingLevel::Should,
                format!(
                    "{path} has the mode {mode:04o}, and the user of the service may not be able to open it"
                ),
                reason,
                format!("chmod 0666 {path}, or the udev rules of rdma-core"),
            );
        }
    }
}
