//! Checks of the RDMA device: it is there, its model can steer, and its eswitch lets its flows see the wire.

use device_model::DeviceModel;
use rustix::io::Errno;

use super::setup::ExaminedDevice;
use super::{CheckNotes, FindingLevel, HostView, UnreadItem, system_files};
use crate::daemon::device::EswitchMode;
use crate::settings::AUTO_DEVICE;

/// Where the settings leave the model to the driver.
const AUTO_MODEL: &str = AUTO_DEVICE;

/// The name of the RDMA device that the settings choose; `None`: the check of the device has the reason.
fn rdma<'h>(view: &HostView<'h>, notes: &mut CheckNotes) -> Option<&'h str> {
    match &view.setup.device {
        ExaminedDevice::Soft => notes.skip("the device is a software NIC"),
        ExaminedDevice::Ambiguous(_) => notes.skip("the settings choose no device of this host"),
        ExaminedDevice::Rdma { name, .. } => return Some(name),
    }
    None
}

fn folder(device: &str) -> String {
    format!("/sys/class/infiniband/{device}")
}

/// The device exists. Its driver, firmware and the release of the kernel are facts.
pub(super) fn presence(view: &HostView<'_>, notes: &mut CheckNotes) {
    if let Some(release) = notes.take(view.files.text("/proc/sys/kernel/osrelease")) {
        notes.fact("kernel", release);
    }
    let reason = "steerd has no device to put the policy on";
    match &view.setup.device {
        ExaminedDevice::Soft => notes.fact("device", "software NIC"),
        ExaminedDevice::Ambiguous(names) if names.is_empty() && view.setup.daemon.is_some() => {
            notes.skip(
                "the running daemon has a device that these settings do not name: --config is its file",
            );
        }
        ExaminedDevice::Ambiguous(names) if names.is_empty() => {
            // An unreadable folder is no host without devices.
            let before = notes.unread.len();
            notes.take(view.files.names("/sys/class/infiniband"));
            if notes.unread.len() == before {
                notes.find(
                    FindingLevel::Must,
                    "there is no RDMA device, and the settings have no port of a software NIC",
                    reason,
                    "modprobe ib_uverbs mlx5_ib; on an Ethernet interface: steerd run --interface NAME, or [[softnic.ports]] with \
                     the wire af_xdp in the settings",
                );
            }
        }
        ExaminedDevice::Ambiguous(names) => notes.find(
            FindingLevel::Must,
            format!("device.name is \"auto\", and there are several RDMA devices: {}", names.join(", ")),
            reason,
            format!("device.name = \"{}\" in the settings", names[0]),
        ),
        ExaminedDevice::Rdma { name, .. } => {
            let is_there = notes.take(view.files.exists(&folder(name)).map(Some));
            if is_there == Some(false) {
                notes.find(
                    FindingLevel::Must,
                    format!("there is no RDMA device {name}"),
                    reason,
                    "steerd devices, and device.name = \"NAME\" in the settings",
                );
                return;
            }
            notes.fact("device", name.clone());
            let driver = notes.take(view.files.link_name(&format!("{}/device/driver", folder(name))));
            notes.fact("driver", driver.unwrap_or_else(|| "unknown".to_owned()));
            let firmware = notes.take(view.files.text(&format!("{}/fw_ver", folder(name))));
            let firmware = firmware.filter(|version| !version.is_empty());
            notes.fact("firmware", firmware.unwrap_or_else(|| "unknown".to_owned()));
        }
    }
}

/// The model of the device is that of its driver, and can steer.
pub(super) fn model(view: &HostView<'_>, notes: &mut CheckNotes) {
    let Some(name) = rdma(view, notes) else { return };
    let driver = notes.take(view.files.link_name(&format!("{}/device/driver", folder(name))));
    let Some(driver) = driver else {
        if notes.unread.is_empty() {
            notes.skip(format!("the kernel shows no driver of {name}"));
        }
        return;
    };
    let by_driver = DeviceModel::by_driver(&driver);
    match (&by_driver, view.setup.model.as_str()) {
        (Some(model), _) if !model.can_steer() => notes.find(
            FindingLevel::Must,
            format!("the driver {driver} of {name} installs no flows"),
            "the device refuses every flow of ibv_create_flow(3)",
            "steerd run --interface NAME POLICY, which enforces the policy by AF_XDP",
        ),
        (None, AUTO_MODEL) => notes.find(
            FindingLevel::Should,
            format!("the driver {driver} of {name} has no model, so its limits are those of `conservative`"),
            "fewer rules are decided in hardware than the device may be able to",
            format!("steerd devices --probe {name}, and device.model = \"./{name}.toml\" in the settings"),
        ),
        (Some(model), named)
            if named != AUTO_MODEL && !DeviceModel::is_path(named) && named != model.name =>
        {
            notes.find(
                FindingLevel::Note,
                format!(
                    "device.model is \"{named}\", and the model of the driver {driver} is `{}`",
                    model.name
                ),
                "a policy may be compiled to flows that the device refuses",
                "device.model = \"auto\" in the settings",
            );
        }
        _ => {}
    }
}

/// The flows of the device see the packets of the wire.
pub(super) fn eswitch(view: &HostView<'_>, notes: &mut CheckNotes) {
    let Some(name) = rdma(view, notes) else { return };
    let by_interface = matches!(view.setup.device, ExaminedDevice::Rdma { by_interface: true, .. });
    let mode = view.answers.eswitch(name);
    notes.fact("eswitch", mode.as_ref().unwrap_or(&EswitchMode::Unknown).to_string());
    match mode {
        Ok(EswitchMode::Switchdev) => {
            let link = notes.take(view.files.link_name(&format!("{}/device", folder(name))));
            let address = link.unwrap_or_else(|| "ADDRESS".to_owned());
            let level = if by_interface { FindingLevel::Should } else { FindingLevel::Must };
            notes.find(
                level,
                format!("the eswitch of {name} is in switchdev mode"),
                "rules of the eswitch decide the packets of the wire before any flow, and ports may be representors",
                format!("devlink dev eswitch set pci/{address} mode legacy; on a BlueField use NIC mode"),
            );
        }
        Ok(_) => {}
        Err(error) => notes.unread.push(UnreadItem {
            id: notes.id,
            item: format!("devlink: eswitch of {name}"),
            remedy: match Errno::from_io_error(&error) {
                Some(Errno::NOENT) => "the kernel has no devlink (CONFIG_NET_DEVLINK)".to_owned(),
                Some(Errno::NODEV) => "`devlink dev show` lists the devices that devlink knows".to_owned(),
                _ => system_files::remedy(&error),
            },
            why: error.to_string(),
        }),
    }
}
