//! Facts that the kernel knows about an RDMA device, for `steerd devices`: its place on the host, its links,
//! its firmware and the mode of its eswitch (Documentation/ABI/stable/sysfs-class-infiniband). Opens no
//! device.

use std::path::Path;

use serde::Serialize;
use verbs::DevicePort;

use super::eswitch::{DevlinkHandle, EswitchMode};
use super::sysfs::read;

/// An RDMA device on this host. `None` and "unknown": the kernel does not show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct DeviceFacts {
    /// The address on its bus, `0000:c1:00.0`.
    pub(crate) pci_address: Option<String>,
    pub(crate) numa_node: Option<u32>,
    /// `legacy`, `switchdev`, `none` or `unknown`.
    pub(crate) eswitch: String,
    pub(crate) firmware: Option<String>,
    pub(crate) links: Vec<LinkFacts>,
}

/// A port of the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LinkFacts {
    pub(crate) port: u8,
    /// The network interface.
    pub(crate) interface: Option<String>,
    /// `active`, `down`, ...
    pub(crate) state: Option<String>,
    /// `100 Gb/sec`
    pub(crate) rate: Option<String>,
}

impl DeviceFacts {
    /// Reads the files of a device below the kernel's device classes. `eswitch`: asks devlink for the mode.
    pub(crate) fn read(
        classes: &Path,
        device: &str,
        eswitch: impl FnOnce(Option<&DevlinkHandle>) -> EswitchMode,
    ) -> Self {
        let folder = classes.join("infiniband").join(device);
        let handle = DevlinkHandle::of_rdma(classes, device);
        let link = |port: &DevicePort| {
            let file = |name: &str| read(&folder.join(format!("ports/{}/{name}", port.port.0)));
            // `4: ACTIVE` and `100 Gb/sec (4X EDR)`.
            let state = file("state").map(|text| text.rsplit(": ").next().unwrap_or_default().to_lowercase());
            let rate = file("rate").map(|text| text.split(" (").next().unwrap_or_default().to_owned());
            LinkFacts { port: port.port.0, interface: port.interface(classes), state, rate }
        };
        Self {
            eswitch: eswitch(handle.as_ref()).to_string(),
            pci_address: handle.map(|handle| handle.device),
            // -1 stands for none.
            numa_node: read(&folder.join("device/numa_node")).and_then(|node| node.parse().ok()),
            firmware: read(&folder.join("fw_ver")).filter(|version| !version.is_empty()),
            links: DevicePort::of_device(classes, device).iter().map(link).collect(),
        }
    }
}

impl LinkFacts {
    /// The state and, of a link that is up, the rate.
    pub(crate) fn text(&self) -> String {
        match (self.state.as_deref(), self.rate.as_deref()) {
            (Some("active"), Some(rate)) => rate.to_owned(),
            (Some(state), _) => state.to_owned(),
            (None, _) => "-".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_facts_of_a_device_are_those_of_its_files() {
        let folder = tempfile::tempdir().expect("folder");
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, format!("{text}\n")).expect("written");
        };
        let link = |path: &str, target: &str| {
            std::os::unix::fs::symlink(target, folder.path().join(path)).expect("linked");
        };
        let rdma = "class/infiniband/rocep193s0f0";
        write(&format!("{rdma}/fw_ver"), "22.35.2000");
        write(&format!("{rdma}/ports/1/state"), "4: ACTIVE");
        write(&format!("{rdma}/ports/1/rate"), "100 Gb/sec (4X EDR)");
        write(&format!("{rdma}/ports/1/gid_attrs/ndevs/0"), "ens1f0np0");
        write(&format!("{rdma}/ports/2/state"), "1: DOWN");
        write(&format!("{rdma}/ports/2/rate"), "40 Gb/sec (4X QDR)");
        write("devices/0000:c1:00.0/numa_node", "1");
        write("bus/pci/x", "");
        link("devices/0000:c1:00.0/subsystem", "../../bus/pci");
        link(&format!("{rdma}/device"), "../../../devices/0000:c1:00.0");
        let classes = folder.path().join("class");
        let facts = DeviceFacts::read(&classes, "rocep193s0f0", |handle| {
            assert_eq!(handle.map(ToString::to_string).as_deref(), Some("pci/0000:c1:00.0"));
            EswitchMode::Legacy
        });
        assert_eq!(facts.pci_address.as_deref(), Some("0000:c1:00.0"));
        assert_eq!((facts.numa_node, facts.eswitch.as_str()), (Some(1), "legacy"));
        assert_eq!(facts.firmware.as_deref(), Some("22.35.2000"));
        let links: Vec<(u8, Option<&str>, String)> =
            facts.links.iter().map(|link| (link.port, link.interface.as_deref(), link.text())).collect();
        assert_eq!(links, [(1, Some("ens1f0np0"), "100 Gb/sec".into()), (2, None, "down".into())]);
        let unknown = DeviceFacts::read(&classes, "mlx5_9", EswitchMode::of);
        let nothing = DeviceFacts {
            pci_address: None,
            numa_node: None,
            eswitch: "unknown".to_owned(),
            firmware: None,
            links: Vec::new(),
        };
        assert_eq!(unknown, nothing);
    }
}
