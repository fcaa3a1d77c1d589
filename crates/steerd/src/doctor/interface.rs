//! Checks of the network interfaces: they are up, their packets arrive whole and unmerged, and no other
//! program takes them first.

use super::setup::{ExaminedInterface, InterfaceUse};
use super::{CheckNotes, FindingLevel, HostView};
use crate::terminal::numbers::counted;

/// Flags of an interface (linux/if.h).
const IFF_UP: u32 = 0x1;
const IFF_PROMISC: u32 = 0x100;
/// The features that merge received packets, by the kernel's names, and the names of `ethtool -K`.
const MERGING: [(&str, &str); 3] = [("rx-lro", "lro"), ("rx-gro-hw", "rx-gro-hw"), ("rx-gro", "gro")];
/// The feature by which a NIC drops packets of VLANs that the host has not configured.
const VLAN_FILTER: &str = "rx-vlan-filter";

fn folder(interface: &str) -> String {
    format!("/sys/class/net/{interface}")
}

/// The interfaces; skips the check if there are none of these uses.
fn used<'h>(
    view: &HostView<'h>,
    notes: &mut CheckNotes,
    uses: &[InterfaceUse],
) -> Vec<&'h ExaminedInterface> {
    let is_meant = |interface: &&ExaminedInterface| uses.contains(&interface.usage);
    let found: Vec<_> = view.setup.interfaces.iter().filter(is_meant).collect();
    if found.is_empty() {
        notes.skip("no port is such a network interface");
    }
    found
}

const ANY_USE: [InterfaceUse; 3] = [InterfaceUse::Rdma, InterfaceUse::Xdp, InterfaceUse::Packet];

fn flags(view: &HostView<'_>, notes: &mut CheckNotes, interface: &str) -> Option<u32> {
    let hexadecimal = |text: &str| u32::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    notes.take(view.files.parsed(
        &format!("{}/flags", folder(interface)),
        "flags in hexadecimal",
        hexadecimal,
    ))
}

/// Each interface is there and up.
pub(super) fn state(view: &HostView<'_>, notes: &mut CheckNotes) {
    for ExaminedInterface { name, .. } in used(view, notes, &ANY_USE) {
        let before = notes.unread.len();
        match flags(view, notes, name) {
            Some(flags) if flags & IFF_UP == 0 => notes.find(
                FindingLevel::Must,
                format!("{name} is down"),
                "no packet arrives",
                format!("ip link set dev {name} up"),
            ),
            Some(_) => {}
            None if notes.unread.len() > before => {}
            None => notes.find(
                FindingLevel::Must,
                format!("there is no interface {name} in this network namespace"),
                "the port has nothing to receive from",
                "ip -brief link, and the name in the settings",
            ),
        }
    }
}

/// No other program has its XDP program on an interface that needs one (bpf(2), ip-link(8)).
pub(super) fn xdp_program(view: &HostView<'_>, notes: &mut CheckNotes) {
    if view.setup.daemon.is_some() {
        return notes.skip("the running daemon has its program there");
    }
    let interfaces = used(view, notes, &[InterfaceUse::Xdp]);
    if interfaces.is_empty() || !notes.knows_daemon(view.setup) {
        return;
    }
    for ExaminedInterface { name, .. } in interfaces {
        let index = |text: &str| text.parse::<u32>().ok();
        let index = notes.take(view.files.parsed(&format!("{}/ifindex", folder(name)), "a number", index));
        let Some(index) = index else { continue };
        match view.answers.xdp_program(index) {
            Ok(Some(program)) => notes.find(
                FindingLevel::Must,
                format!("{name} has the XDP program {program} of another program"),
                "an interface has one XDP program, and steerd does not replace it",
                format!(
                    "bpftool prog show id {program}, end its owner, and if it stays: ip link set dev {name} xdp off"
                ),
            ),
            Ok(None) => {}
            Err(error) => notes.unanswered(format!("rtnetlink: XDP program of {name}"), &error),
        }
    }
}

/// The frames of the workers hold the longest packet of the ports.
pub(super) fn lengths(view: &HostView<'_>, notes: &mut CheckNotes) {
    let Some(error) = &view.setup.length_error else { return };
    let hint = error.split_once(" (hint: ");
    let (problem, command) = hint
        .map_or((error.as_str(), "steerd check --config FILE"), |(problem, hint)| {
            (problem, hint.trim_end_matches(')'))
        });
    notes.find(FindingLevel::Must, problem, "longer packets are lost as oversize", command);
}

/// No interface is a port of a bond or a bridge (Documentation/networking/bonding.rst).
pub(super) fn bond(view: &HostView<'_>, notes: &mut CheckNotes) {
    for ExaminedInterface { name, .. } in used(view, notes, &ANY_USE) {
        let Some(master) = notes.take(view.files.link_name(&format!("{}/master", folder(name)))) else {
            continue;
        };
        let is_bond = notes.take(view.files.exists(&format!("{}/bonding", folder(&master))).map(Some));
        let (kind, reason) = match is_bond {
            Some(true) => {
                ("bond", "packets that arrive by the other members of the bond do not meet the policy")
            }
            _ => ("bridge or team", "packets that the policy takes do not reach the interface above"),
        };
        notes.find(
            FindingLevel::Should,
            format!("{name} is a member of the {kind} {master}"),
            reason,
            format!("ip link set dev {name} nomaster, or a port in the settings for each member"),
        );
    }
}

/// The kernel or the NIC merges no packets before steerd gets them (ethtool(8), `-K`;
/// Documentation/networking/segmentation-offloads.rst).
pub(super) fn offloads(view: &HostView<'_>, notes: &mut CheckNotes) {
    for ExaminedInterface { name, usage, .. } in used(view, notes, &[InterfaceUse::Xdp, InterfaceUse::Packet])
    {
        let mut merging: Vec<&str> = Vec::new();
        for (feature, option) in MERGING {
            // XDP comes before GRO of the kernel.
            if feature == "rx-gro" && *usage == InterfaceUse::Xdp {
                continue;
            }
            match view.answers.has_feature(name, feature) {
                Ok(is_on) => merging.extend(is_on.filter(|is_on| *is_on).map(|_| option)),
                Err(error) => {
                    notes.unanswered(format!("ethtool: {feature} of {name}"), &error);
                    break;
                }
            }
        }
        if merging.is_empty() {
            continue;
        }
        let (level, reason) = match usage {
            InterfaceUse::Packet => {
                (FindingLevel::Should, "merged packets are split again, which takes time")
            }
            _ => (
                FindingLevel::Note,
                "steerd switches them off when it starts, which may take the link down for a moment",
            ),
        };
        let options: Vec<String> = merging.iter().map(|option| format!("{option} off")).collect();
        notes.find(
            level,
            format!("{name} merges received packets: {}", merging.join(", ")),
            reason,
            format!("ethtool -K {name} {}", options.join(" ")),
        );
    }
}

/// No receive filters of other programs take packets of an interface (ethtool(8), `-N`).
pub(super) fn filters(view: &HostView<'_>, notes: &mut CheckNotes) {
    if view.setup.daemon.is_some() {
        return notes.skip("filters of the running daemon are not told apart from others");
    }
    let interfaces = used(view, notes, &ANY_USE);
    if interfaces.is_empty() || !notes.knows_daemon(view.setup) {
        return;
    }
    for ExaminedInterface { name, .. } in interfaces {
        match view.answers.filters(name) {
            Ok(0) => {}
            Ok(count) => notes.find(
                FindingLevel::Note,
                format!("{name} has {}", counted(count as u64, "receive filter", "receive filters")),
                "the NIC may drop packets by them, or move them to other queues, before the policy",
                format!("ethtool -n {name}, then ethtool -N {name} delete NUMBER"),
            ),
            Err(error) => notes.unanswered(format!("ethtool: filters of {name}"), &error),
        }
    }
}

/// Whether an interface gets packets to other stations: it is promiscuous, or will be.
fn is_promiscuous(
    view: &HostView<'_>,
    notes: &mut CheckNotes,
    interface: &ExaminedInterface,
) -> Option<bool> {
    Some(interface.becomes_promiscuous || flags(view, notes, &interface.name)? & IFF_PROMISC != 0)
}

/// The NIC receives packets of all VLANs (ethtool(8), `rx-vlan-filter`).
pub(super) fn vlan_filter(view: &HostView<'_>, notes: &mut CheckNotes) {
    for interface in used(view, notes, &ANY_USE) {
        // A promiscuous interface receives them in any case.
        if is_promiscuous(view, notes, interface) != Some(false) {
            continue;
        }
        let name = &interface.name;
        match view.answers.has_feature(name, VLAN_FILTER) {
            Ok(Some(true)) => notes.find(
                FindingLevel::Note,
                format!("{name} receives packets of those VLANs only that the host has configured"),
                "tagged packets of other VLANs are dropped before any flow",
                format!("ethtool -K {name} {VLAN_FILTER} off"),
            ),
            Ok(_) => {}
            Err(error) => notes.unanswered(format!("ethtool: {VLAN_FILTER} of {name}"), &error),
        }
    }
}

/// The NIC receives packets to other stations (netdevice(7), IFF_PROMISC).
pub(super) fn promiscuous(view: &HostView<'_>, notes: &mut CheckNotes) {
    for interface in used(view, notes, &ANY_USE) {
        if is_promiscuous(view, notes, interface) != Some(false) {
            continue;
        }
        let name = &interface.name;
        let setting = match interface.usage {
            InterfaceUse::Rdma => "device.promiscuous = true",
            InterfaceUse::Xdp | InterfaceUse::Packet => "promiscuous = true of the wire",
        };
        notes.find(
            FindingLevel::Note,
            format!("{name} is not promiscuous"),
            "packets to other MAC addresses than its own do not reach the flows",
            format!("{setting} in the settings, or ip link set dev {name} promisc on"),
        );
    }
}
