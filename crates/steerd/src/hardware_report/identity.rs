//! The facts that the kernel shows of the device and its host, without addresses.

use std::fs;
use std::path::Path;

use device_model::Origin;
use verbs::{DevicePort, SYSFS_CLASSES};

use super::{DeviceIdentity, FunctionKind, PCIE_WIDTHS, PcieLink, PortIdentity};
use crate::daemon::device::{self, LinkFacts};

/// The vendor number of Mellanox and NVIDIA, and the device numbers of BlueField 1, 2, 3 and 4 with the
/// virtual functions of the first (kernel: mellanox/mlx5/core/main.c, `mlx5_core_pci_table`).
const MELLANOX: &str = "15b3";
const BLUEFIELD: [&str; 5] = ["a2d2", "a2d3", "a2d6", "a2dc", "a2df"];
const ARM: &str = "aarch64";
/// The platform devices of this host, and the beginning of the names of those that only the Arm system of a
/// BlueField has (kernel: drivers/platform/mellanox/mlxbf-bootctl.c, `mlxbf_bootctl_acpi_ids`).
const PLATFORM_DEVICES: &str = "/sys/bus/platform/devices";
const BLUEFIELD_SOC: &str = "MLNXBF";
/// In the text of a known link speed (kernel: drivers/pci/probe.c, `pci_speed_string`).
const LINK_SPEED: &str = "GT/s";
/// For a fact that is not shown.
const UNKNOWN: &str = "unknown";

/// Describes an RDMA device of this host. `origin`: what its device model says of it.
pub(super) fn of_device(device: &DevicePort, origin: &Origin) -> DeviceIdentity {
    let name = device.device.as_str();
    let mut facts = device::facts(name);
    if facts.links.is_empty() {
        // The kernel shows none of a model below libmlx5.
        facts.links.push(LinkFacts { port: device.port.0, interface: None, state: None, rate: None });
    }
    let folder = Path::new(SYSFS_CLASSES).join("infiniband").join(name).join("device");
    let ports = facts.links.into_iter().map(|link| PortIdentity {
        port: link.port,
        state: link.state.unwrap_or_else(unknown),
        rate: link.rate.unwrap_or_else(unknown),
    });
    DeviceIdentity {
        ports: ports.collect(),
        eswitch: facts.eswitch,
        numa_node: facts.numa_node,
        pci_id: pci_id(&folder),
        function: function(&folder, std::env::consts::ARCH, has_bluefield_soc(Path::new(PLATFORM_DEVICES))),
        pcie: pcie_link(&folder),
        ..of_host(name, origin)
    }
}

/// Describes a software NIC in this process.
pub(super) fn of_soft_nic(name: &str, origin: &Origin, mtu_bytes: u32) -> DeviceIdentity {
    let rate = format!("none: a software NIC, MTU {mtu_bytes}");
    DeviceIdentity {
        function: FunctionKind::Software,
        ports: vec![PortIdentity { port: 1, state: "active".to_owned(), rate }],
        ..of_host(name, origin)
    }
}

fn of_host(name: &str, origin: &Origin) -> DeviceIdentity {
    let or_unknown = |text: &str| if text.is_empty() { unknown() } else { text.to_owned() };
    DeviceIdentity {
        device: name.to_owned(),
        driver: or_unknown(&origin.driver),
        firmware: or_unknown(&origin.firmware),
        kernel: read(Path::new("/proc/sys/kernel/osrelease")).unwrap_or_else(unknown),
        libibverbs: or_unknown(&origin.libibverbs),
        architecture: std::env::consts::ARCH.to_owned(),
        processor: processor(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
        eswitch: UNKNOWN.to_owned(),
        function: FunctionKind::Unknown,
        numa_node: None,
        pci_id: None,
        pcie: None,
        ports: Vec::new(),
    }
}

fn unknown() -> String {
    UNKNOWN.to_owned()
}

fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// The name of the first processor; Arm kernels show the numbers of its implementer and part only.
fn processor(cpuinfo: &str) -> String {
    let value = |key: &str| {
        let line =
            cpuinfo.lines().find(|line| line.split(':').next().is_some_and(|head| head.trim() == key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let arm = || Some(format!("Arm {} part {}", value("CPU implementer")?, value("CPU part")?));
    value("model name").or_else(arm).unwrap_or_else(unknown)
}

/// `15b3:101d`, of the folder of a PCI device.
fn pci_id(folder: &Path) -> Option<String> {
    let number = |name: &str| Some(read(&folder.join(name))?.trim_start_matches("0x").to_owned());
    Some(format!("{}:{}", number("vendor")?, number("device")?))
}

/// Returns whether this host is the Arm system of a BlueField.
fn has_bluefield_soc(platform_devices: &Path) -> bool {
    let names = fs::read_dir(platform_devices).into_iter().flatten().flatten();
    names.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with(BLUEFIELD_SOC))
}

/// A virtual function has a link to its physical one. The Arm cores of a BlueField see functions with the
/// numbers of the BlueField, as any host does, which may have Arm cores too.
fn function(folder: &Path, architecture: &str, has_bluefield_soc: bool) -> FunctionKind {
    let id = pci_id(folder).unwrap_or_default();
    let is_bluefield =
        id.split_once(':').is_some_and(|(vendor, device)| vendor == MELLANOX && BLUEFIELD.contains(&device));
    match () {
        () if id.is_empty() => FunctionKind::Unknown,
        () if folder.join("physfn").exists() => FunctionKind::Virtual,
        () if is_bluefield && architecture == ARM && has_bluefield_soc => FunctionKind::Dpu,
        () if is_bluefield && architecture == ARM => FunctionKind::Unknown,
        () => FunctionKind::Physical,
    }
}

/// The link; `None` if a fact is missing or unknown. The link registers of a virtual function are zero, which
/// the kernel shows as an unknown speed and width 0 (drivers/pci/pci-sysfs.c, `current_link_width_show`).
fn pcie_link(folder: &Path) -> Option<PcieLink> {
    let text = |name: &str| read(&folder.join(name));
    let width = |name: &str| text(name)?.parse().ok().filter(|width| PCIE_WIDTHS.contains(width));
    let speed = |name: &str| text(name).filter(|speed| speed.contains(LINK_SPEED));
    Some(PcieLink {
        speed: speed("current_link_speed")?,
        width: width("current_link_width")?,
        max_speed: speed("max_link_speed")?,
        max_width: width("max_link_width")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_facts_are_those_of_the_files() {
        let folder = tempfile::tempdir().expect("folder");
        let write = |name: &str, text: &str| {
            fs::write(folder.path().join(name), format!("{text}\n")).expect("written");
        };
        let of_host = |folder: &Path| function(folder, "x86_64", false);
        assert_eq!(of_host(folder.path()), FunctionKind::Unknown);
        assert_eq!(pcie_link(folder.path()), None);
        write("vendor", "0x15b3");
        write("device", "0x101d");
        write("current_link_speed", "16.0 GT/s PCIe");
        write("current_link_width", "8");
        write("max_link_speed", "16.0 GT/s PCIe");
        assert_eq!(pcie_link(folder.path()), None, "a fact is missing");
        write("max_link_width", "16");
        let link = pcie_link(folder.path()).expect("a link");
        assert_eq!((link.speed.as_str(), link.width, link.max_width), ("16.0 GT/s PCIe", 8, 16));
        assert_eq!(pci_id(folder.path()).as_deref(), Some("15b3:101d"));
        for (name, unknown) in
            [("current_link_width", "0"), ("current_link_speed", "Unknown"), ("max_link_width", "255")]
        {
            let known = read(&folder.path().join(name)).expect("written");
            write(name, unknown);
            assert_eq!(pcie_link(folder.path()), None, "{name}");
            write(name, &known);
        }
        assert_eq!(of_host(folder.path()), FunctionKind::Physical);
        write("physfn", "");
        assert_eq!(of_host(folder.path()), FunctionKind::Virtual);
    }

    #[test]
    fn only_arm_systems_of_bluefields_are_dpus() {
        let folder = tempfile::tempdir().expect("folder");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
        write("vendor", "0x15b3");
        write("device", "0xa2dc");
        assert_eq!(function(folder.path(), "x86_64", true), FunctionKind::Physical);
        assert_eq!(function(folder.path(), ARM, false), FunctionKind::Unknown, "an Arm host, or the DPU");
        assert_eq!(function(folder.path(), ARM, true), FunctionKind::Dpu);
        assert!(!has_bluefield_soc(folder.path()));
        write("MLNXBF04:00", "");
        assert!(has_bluefield_soc(folder.path()));
        write("physfn", "");
        assert_eq!(function(folder.path(), ARM, true), FunctionKind::Virtual);
    }

    #[test]
    fn processors_have_names_or_numbers() {
        assert_eq!(processor("processor\t: 0\nmodel name\t: AMD EPYC 7543\n"), "AMD EPYC 7543");
        let arm = "processor : 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd42\n";
        assert_eq!(processor(arm), "Arm 0x41 part 0xd42");
        assert_eq!(processor(""), "unknown");
    }
}
