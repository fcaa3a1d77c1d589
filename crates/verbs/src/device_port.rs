//! Ports of devices and their network interfaces, as sysfs shows them. Only reads.
//!
//! The name of an interface is what administrators know: udev renames RDMA devices, and in switchdev mode the
//! wire's port has another number on each host.

use std::fs;
use std::path::Path;

use crate::PortNumber;

/// The kernel's device classes (Documentation/ABI/stable/sysfs-class-infiniband,
/// Documentation/ABI/testing/sysfs-class-net).
pub const SYSFS_CLASSES: &str = "/sys/class";

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
        let is_name = !interface.is_empty() && !interface.starts_with('.') && !interface.contains('/');
        if !is_name || classes.join("infiniband").join(interface).exists() {
            return None;
        }
        let devices = names(&classes.join("net").join(interface).join("device/infiniband"));
        let ports = devices.into_iter().flat_map(|device| Self::of_device(classes, &device));
        ports.into_iter().find(|port| port.interface(classes).as_deref() == Some(interface))
    }

    /// The ports of a device, by their numbers.
    #[must_use]
    pub fn of_device(classes: &Path, device: &str) -> Vec<Self> {
        let folder = classes.join("infiniband").join(device).join("ports");
        let mut numbers: Vec<u8> = names(&folder).iter().filter_map(|name| name.parse().ok()).collect();
        numbers.sort_unstable();
        numbers.into_iter().map(|port| Self { device: device.to_owned(), port: PortNumber(port) }).collect()
    }

    /// The network interface of the port: the one that its first GID belongs to, else the PCI device's
    /// interface with the port's number.
    #[must_use]
    pub fn interface(&self, classes: &Path) -> Option<String> {
        let (rdma, port) = (classes.join("infiniband").join(&self.device), self.port.0);
        let of_gid = read(&rdma.join(format!("ports/{port}/gid_attrs/ndevs/0")));
        of_gid.filter(|name| !name.is_empty()).or_else(|| {
            let has_port = |name: &String| {
                let number = read(&classes.join("net").join(name).join("dev_port"));
                number.and_then(|number| number.parse().ok()) == u32::from(port).checked_sub(1)
            };
            names(&rdma.join("device/net")).into_iter().find(has_port)
        })
    }
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
