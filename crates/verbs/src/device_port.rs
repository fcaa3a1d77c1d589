//! Ports of devices and their network interfaces, as sysfs and the netlink of RDMA show them. Only reads.
//!
//! The name of an interface is what administrators know: udev renames RDMA devices, and in switchdev mode the
//! wire's port has another number on each host.
//!
//! The interface of a port is the one of its first GID, which of a bond is the bond's. Ports in switchdev
//! mode have no GIDs; the kernel names their interfaces by netlink only. Where it does not answer, the number
//! of the port decides if it can.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::{PortNumber, rdma_netlink};

/// The kernel's device classes (Documentation/ABI/stable/sysfs-class-infiniband,
/// Documentation/ABI/testing/sysfs-class-net).
pub const SYSFS_CLASSES: &str = "/sys/class";
/// The folder in which the kernel lists the RDMA devices (Documentation/ABI/stable/sysfs-class-infiniband).
pub const SYSFS_DEVICES: &str = "/sys/class/infiniband";

/// A port of a device of libibverbs' list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePort {
    /// The name of the device.
    pub device: String,
    /// The number of the port.
    pub port: PortNumber,
}

impl DevicePort {
    /// The port that a name stands for: that of a network interface, else this port of the device of that
    /// name, which need not exist. `classes`: [`SYSFS_CLASSES`], or the tree of a test.
    #[must_use]
    pub fn named(classes: &Path, name: &str, port: PortNumber) -> Self {
        Self::of_interface(classes, name).unwrap_or_else(|| Self { device: name.to_owned(), port })
    }

    /// The port of a network interface; `None`: the interface has no RDMA device, or the name is a device's.
    #[must_use]
    pub fn of_interface(classes: &Path, interface: &str) -> Option<Self> {
        PortLookup::of(classes).port(interface)
    }

    /// The ports of a device, by their numbers.
    #[must_use]
    pub fn of_device(classes: &Path, device: &str) -> Vec<Self> {
        let folder = classes.join("infiniband").join(device).join("ports");
        let mut numbers: Vec<u8> = names(&folder).iter().filter_map(|name| name.parse().ok()).collect();
        numbers.sort_unstable();
        numbers.into_iter().map(|port| Self { device: device.to_owned(), port: PortNumber(port) }).collect()
    }

    /// The network interface of the port. `None`: there is none, or there are several that it could be.
    #[must_use]
    pub fn interface(&self, classes: &Path) -> Option<String> {
        PortLookup::of(classes).interface(self)
    }

    fn folder(&self, classes: &Path) -> PathBuf {
        classes.join("infiniband").join(&self.device)
    }
}

/// The sources of what is known about ports.
struct PortLookup<'l> {
    /// The kernel's device classes.
    classes: &'l Path,
    /// The interface of a port, as the kernel knows it.
    kernel: &'l dyn Fn(&DevicePort) -> io::Result<Option<String>>,
}

impl<'l> PortLookup<'l> {
    /// The kernel is asked only about its own classes, not about the tree of a test.
    fn of(classes: &'l Path) -> Self {
        match classes == Path::new(SYSFS_CLASSES) {
            true => Self { classes, kernel: &by_netlink },
            false => Self { classes, kernel: &|_| Err(io::ErrorKind::Unsupported.into()) },
        }
    }

    fn port(&self, interface: &str) -> Option<DevicePort> {
        let is_name = !interface.is_empty() && !interface.starts_with('.') && !interface.contains('/');
        if !is_name || self.classes.join("infiniband").join(interface).exists() {
            return None;
        }
        let devices = names(&self.classes.join("net").join(interface).join("device/infiniband"));
        let ports = devices.into_iter().flat_map(|device| DevicePort::of_device(self.classes, &device));
        let ports: Vec<DevicePort> = ports.collect();
        let find = |name: &dyn Fn(&DevicePort) -> Option<String>| {
            ports.iter().find(|port| name(port).as_deref() == Some(interface)).cloned()
        };
        // The GIDs of a bonded interface belong to the bond.
        find(&|port| self.interface(port)).or_else(|| find(&|port| self.interface_by_number(port)))
    }

    fn interface(&self, port: &DevicePort) -> Option<String> {
        let gid = read(&port.folder(self.classes).join(format!("ports/{}/gid_attrs/ndevs/0", port.port.0)));
        let by_answer = || (self.kernel)(port).unwrap_or_else(|_| self.interface_by_number(port));
        gid.filter(|name| !name.is_empty()).or_else(by_answer)
    }

    /// The only interface of the PCI device with the port's number: in switchdev mode the representors have
    /// the same.
    fn interface_by_number(&self, port: &DevicePort) -> Option<String> {
        let number = u32::from(port.port.0).checked_sub(1)?;
        let has_number = |name: &String| {
            let text = read(&self.classes.join("net").join(name).join("dev_port"));
            text.and_then(|text| text.parse().ok()) == Some(number)
        };
        let mut found = names(&port.folder(self.classes).join("device/net")).into_iter().filter(has_number);
        found.next().filter(|_| found.next().is_none())
    }
}

fn by_netlink(port: &DevicePort) -> io::Result<Option<String>> {
    rdma_netlink::interface_of_port(&port.device, port.port.0)
}

/// The names in a folder, in order.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host with a PF in switchdev mode, `rocep1s0f0`, whose wire is port 3, a device with two ports and no
    /// GIDs, and an interface without RDMA.
    fn classes() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("folder");
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, format!("{text}\n")).expect("written");
        };
        for (port, interface) in [("1", "pf0hpf"), ("2", "pf0vf0"), ("3", "ens1f0np0"), ("10", "pf0vf7")] {
            write(&format!("infiniband/rocep1s0f0/ports/{port}/gid_attrs/ndevs/0"), interface);
            write(&format!("net/{interface}/dev_port"), "0");
            write(&format!("net/{interface}/device/infiniband/rocep1s0f0/fw_ver"), "16.35.2000");
        }
        for (port, interface) in [("1", "eth0"), ("2", "eth1")] {
            write(&format!("infiniband/mlx4_0/ports/{port}/state"), "4: ACTIVE");
            write(&format!("infiniband/mlx4_0/device/net/{interface}/ifindex"), "2");
            write(&format!("net/{interface}/dev_port"), if port == "1" { "0" } else { "1" });
            write(&format!("net/{interface}/device/infiniband/mlx4_0/fw_ver"), "2.42");
        }
        write("net/lo/dev_port", "0");
        folder
    }

    fn port(device: &str, port: u8) -> DevicePort {
        DevicePort { device: device.to_owned(), port: PortNumber(port) }
    }

    #[test]
    fn an_interface_stands_for_its_port() {
        let folder = classes();
        let found = |name| DevicePort::of_interface(folder.path(), name);
        assert_eq!(found("ens1f0np0"), Some(port("rocep1s0f0", 3)), "by the GID");
        assert_eq!(found("pf0vf7"), Some(port("rocep1s0f0", 10)));
        assert_eq!(found("eth1"), Some(port("mlx4_0", 2)), "by the number");
        for name in ["lo", "eth9", "rocep1s0f0", "", "..", "net/eth0"] {
            assert_eq!(found(name), None, "{name}");
        }
        let named = |name| DevicePort::named(folder.path(), name, PortNumber(2));
        assert_eq!(named("ens1f0np0"), port("rocep1s0f0", 3));
        assert_eq!(named("mlx4_0"), port("mlx4_0", 2));
    }

    #[test]
    fn the_kernel_names_ports_without_gids() {
        let folder = tempfile::tempdir().expect("folder");
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        let add = |device: &str, interface: &str| {
            write(&format!("infiniband/{device}/device/net/{interface}/ifindex"), "2");
            write(&format!("net/{interface}/dev_port"), "0");
            write(&format!("net/{interface}/device/infiniband/{device}/fw_ver"), "16.35");
        };
        // Representors without GIDs, of which any may be port 1.
        for number in ["1", "2", "3"] {
            write(&format!("infiniband/rocep1s0f0/ports/{number}/state"), "4: ACTIVE");
        }
        for interface in ["ens1f0np0", "ens1f0npf0vf0", "ens1f0npf0vf1"] {
            add("rocep1s0f0", interface);
        }
        for interface in ["ens1f0np0", "ens1f0npf0vf0"] {
            assert_eq!(DevicePort::of_interface(folder.path(), interface), None, "{interface}");
        }
        assert_eq!(port("rocep1s0f0", 1).interface(folder.path()), None);
        // The kernel tells them apart: the wire is the last one.
        let kernel = |port: &DevicePort| {
            let names = ["ens1f0npf0vf0", "ens1f0npf0vf1", "ens1f0np0"];
            Ok(names.get(usize::from(port.port.0) - 1).map(|name| (*name).to_owned()))
        };
        let lookup = PortLookup { classes: folder.path(), kernel: &kernel };
        assert_eq!(lookup.port("ens1f0np0"), Some(port("rocep1s0f0", 3)));
        assert_eq!(lookup.port("ens1f0npf0vf0"), Some(port("rocep1s0f0", 1)));
        assert_eq!(lookup.interface(&port("rocep1s0f0", 3)).as_deref(), Some("ens1f0np0"));
        add("rocep3s0f0", "ens3f0");
        assert_eq!(
            port("rocep3s0f0", 1).interface(folder.path()).as_deref(),
            Some("ens3f0"),
            "by the number"
        );
        let lookup = PortLookup { classes: folder.path(), kernel: &|_| Ok(None) };
        assert_eq!(
            lookup.interface(&port("rocep3s0f0", 1)),
            None,
            "the kernel's answer goes before the number"
        );
        // A member of a bond, whose GIDs are those of the bond.
        write("infiniband/rocep2s0f0/ports/1/gid_attrs/ndevs/0", "bond0");
        add("rocep2s0f0", "ens2f0");
        assert_eq!(DevicePort::of_interface(folder.path(), "ens2f0"), Some(port("rocep2s0f0", 1)));
    }

    #[test]
    fn ports_are_in_the_order_of_their_numbers() {
        let folder = classes();
        let numbers: Vec<u8> =
            DevicePort::of_device(folder.path(), "rocep1s0f0").iter().map(|port| port.port.0).collect();
        assert_eq!(numbers, [1, 2, 3, 10]);
        assert_eq!(DevicePort::of_device(folder.path(), "mlx5_9"), []);
        assert_eq!(port("mlx4_0", 3).interface(folder.path()), None);
        assert_eq!(port("mlx4_0", 0).interface(folder.path()), None, "there is no port 0");
    }
}
