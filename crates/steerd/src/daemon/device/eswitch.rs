//! The eswitch of a device, and its consequences for a start. In switchdev mode the packets of the wire meet
//! the rules of the eswitch (FDB) before any flow, and the ports of the RDMA device are representors: the
//! first is not the wire (kernel mlx5 ib_rep.c: port = vport index + 1, the uplink last).

use std::fmt;
use std::io;
use std::path::Path;

use rustix::io::Errno;

use super::devlink;
use super::sysfs::read;

/// The mode of an eswitch, or why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EswitchMode {
    /// The NIC itself distributes packets to its functions, by their MAC addresses.
    Legacy,
    /// The host decides by rules of the eswitch; each function has a representor.
    Switchdev,
    /// The device has no eswitch: a virtual function, or a NIC without SR-IOV.
    Absent,
    /// The kernel has no devlink, or does not answer this user.
    Unknown,
}

impl EswitchMode {
    /// The mode of the device behind an RDMA device. Asks the kernel.
    pub(crate) fn of(handle: Option<&DevlinkHandle>) -> Self {
        handle.and_then(|handle| Self::asked(handle).ok()).unwrap_or(Self::Unknown)
    }

    /// The mode of a device. Asks the kernel.
    ///
    /// # Errors
    /// The kernel has no devlink, does not know the device or the mode, or does not answer this user.
    pub(crate) fn asked(handle: &DevlinkHandle) -> io::Result<Self> {
        Self::answered(devlink::eswitch_mode(&handle.bus, &handle.device))
    }

    /// `answer`: a number of `enum devlink_eswitch_mode` (linux/devlink.h).
    fn answered(answer: io::Result<u16>) -> io::Result<Self> {
        match answer {
            Ok(0) => Ok(Self::Legacy),
            // DEVLINK_ESWITCH_MODE_SWITCHDEV and, on later kernels, SWITCHDEV_INACTIVE.
            Ok(1 | 2) => Ok(Self::Switchdev),
            Ok(mode) => Err(io::Error::other(format!("the kernel reports the unknown mode {mode}"))),
            Err(error) if error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => Ok(Self::Absent),
            Err(error) => Err(error),
        }
    }
}

impl fmt::Display for EswitchMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Legacy => "legacy",
            Self::Switchdev => "switchdev",
            Self::Absent => "none",
            Self::Unknown => "unknown",
        })
    }
}

/// The name of a device for devlink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DevlinkHandle {
    pub(crate) bus: String,
    pub(crate) device: String,
}

impl DevlinkHandle {
    /// The device behind an RDMA device; `None`: there is none. `classes`: the kernel's device classes.
    pub(crate) fn of_rdma(classes: &Path, name: &str) -> Option<Self> {
        let link = classes.join("infiniband").join(name).join("device");
        let last = |path: &Path| {
            let target = std::fs::read_link(path).ok()?;
            Some(target.file_name()?.to_string_lossy().into_owned())
        };
        Some(Self { device: last(&link)?, bus: last(&link.join("subsystem"))? })
    }
}

impl fmt::Display for DevlinkHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.bus, self.device)
    }
}

/// The result of comparing the settings with the mode of the eswitch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EswitchAdvice {
    /// The flows see the packets of the wire.
    Fine,
    /// The device is used, and this is to be known.
    Warning(String),
    /// The device is not used, because the port may not be the wire.
    Refusal(String),
}

/// Judges an RDMA device in this mode. `interface`: the network interface by which the settings name it.
pub(super) fn judge(
    mode: EswitchMode,
    device: &str,
    handle: &DevlinkHandle,
    interface: Option<&str>,
) -> EswitchAdvice {
    if mode != EswitchMode::Switchdev {
        return EswitchAdvice::Fine;
    }
    let remedy = format!("`devlink dev eswitch set {handle} mode legacy`; on a BlueField use NIC mode");
    match interface {
        Some(interface) => EswitchAdvice::Warning(format!(
            "the eswitch of {device} is in switchdev mode: its own rules decide the packets of the wire before the \
             flows of {interface}, and the device refuses flows that copy, sniff or match sent packets with EINVAL \
             (hint: {remedy})"
        )),
        None => EswitchAdvice::Refusal(format!(
            "the eswitch of {device} is in switchdev mode, in which a port of the device is a representor and may \
             not be the wire (hint: set device.name to the network interface of the wire, or {remedy})"
        )),
    }
}

/// The warning about an interface that stands for a function of the NIC and not for the wire.
/// `classes`: the kernel's device classes.
pub(super) fn representor_warning(classes: &Path, interface: &str) -> Option<String> {
    let port_name = read(&classes.join("net").join(interface).join("phys_port_name"))?;
    let function = represented_function(&port_name)?;
    Some(format!(
        "{interface} is the representor of the function {function}, not the wire: its flows meet only packets that the \
         function sends and that no rule of the eswitch decides (hint: set device.name to the interface of the wire, \
         whose phys_port_name is that of a port, as p0)"
    ))
}

/// The function in the name of a port: `pf0vf1`, `c1pf0` and `pf0sf88` are functions, `p0` and `p0s1` the
/// wire (kernel net/devlink/port.c, `__devlink_port_phys_port_name_get`).
fn represented_function(port_name: &str) -> Option<&str> {
    let is_digit = |c: char| c.is_ascii_digit();
    let of_controller = port_name.strip_prefix('c').map(|rest| rest.trim_start_matches(is_digit));
    let function = of_controller.unwrap_or(port_name).strip_prefix("pf")?;
    function.starts_with(is_digit).then_some(port_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn representors_are_known_by_their_port_names() {
        for name in ["pf0", "pf0vf1", "pf12sf88", "c1pf0vf127", "c1pf0"] {
            assert_eq!(represented_function(name), Some(name));
        }
        for name in ["p0", "p1s2", "", "c", "c1", "pf", "pfx", "eth0", "c1p0"] {
            assert_eq!(represented_function(name), None, "{name}");
        }
    }

    #[test]
    fn a_representor_as_device_is_warned_of() {
        let folder = tempfile::tempdir().expect("folder");
        for (interface, port_name) in [("ens1f0np0", "p0\n"), ("ens1f0npf0vf3", "pf0vf3\n")] {
            let path = folder.path().join("net").join(interface);
            std::fs::create_dir_all(&path).expect("made");
            std::fs::write(path.join("phys_port_name"), port_name).expect("written");
        }
        let warning = |interface| representor_warning(folder.path(), interface);
        let text = warning("ens1f0npf0vf3").expect("a representor");
        for part in ["ens1f0npf0vf3 is the representor of the function pf0vf3", "device.name"] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
        assert_eq!(warning("ens1f0np0"), None, "the wire");
        assert_eq!(warning("eth9"), None);
    }

    fn handle() -> DevlinkHandle {
        DevlinkHandle { bus: "pci".to_owned(), device: "0000:c1:00.0".to_owned() }
    }

    #[test]
    fn a_port_in_switchdev_mode_is_refused_unless_its_interface_is_named() {
        let judge = |mode, interface| judge(mode, "rocep193s0f0", &handle(), interface);
        let EswitchAdvice::Refusal(refusal) = judge(EswitchMode::Switchdev, None) else { panic!("refused") };
        for part in
            ["rocep193s0f0 ", "representor", "device.name", "eswitch set pci/0000:c1:00.0 mode legacy"]
        {
            assert!(refusal.contains(part), "no {part:?} in {refusal}");
        }
        let EswitchAdvice::Warning(warning) = judge(EswitchMode::Switchdev, Some("ens1f0np0")) else {
            panic!("warned of")
        };
        for part in ["flows of ens1f0np0", "EINVAL", "mode legacy", "NIC mode"] {
            assert!(warning.contains(part), "no {part:?} in {warning}");
        }
        for mode in [EswitchMode::Legacy, EswitchMode::Absent, EswitchMode::Unknown] {
            assert_eq!(judge(mode, None), EswitchAdvice::Fine, "{mode}");
        }
    }

    #[test]
    fn an_errno_becomes_absent_or_unknown() {
        let error = |errno: Errno| Err(errno.into());
        for (answer, expected) in [
            (Ok(0), EswitchMode::Legacy),
            (Ok(1), EswitchMode::Switchdev),
            (Ok(2), EswitchMode::Switchdev),
            (Ok(9), EswitchMode::Unknown),
            (error(Errno::OPNOTSUPP), EswitchMode::Absent),
            (error(Errno::NOENT), EswitchMode::Unknown),
            (error(Errno::NODEV), EswitchMode::Unknown),
            (error(Errno::PERM), EswitchMode::Unknown),
        ] {
            assert_eq!(EswitchMode::answered(answer).unwrap_or(EswitchMode::Unknown), expected);
        }
        assert_eq!(EswitchMode::of(None), EswitchMode::Unknown);
    }

    #[test]
    fn the_device_behind_an_rdma_device_has_a_bus_and_a_name() {
        let folder = tempfile::tempdir().expect("folder");
        let make = |path: &str| std::fs::create_dir_all(folder.path().join(path)).expect("made");
        let link = |path: &str, target: &str| {
            std::os::unix::fs::symlink(target, folder.path().join(path)).expect("linked");
        };
        make("class/infiniband/rocep193s0f0");
        make("devices/pci0000:c0/0000:c1:00.0");
        make("bus/pci");
        link("class/infiniband/rocep193s0f0/device", "../../../devices/pci0000:c0/0000:c1:00.0");
        link("devices/pci0000:c0/0000:c1:00.0/subsystem", "../../../bus/pci");
        let classes = folder.path().join("class");
        let found = DevlinkHandle::of_rdma(&classes, "rocep193s0f0");
        assert_eq!(found.as_ref().map(ToString::to_string).as_deref(), Some("pci/0000:c1:00.0"));
        assert_eq!(found, Some(handle()));
        assert_eq!(DevlinkHandle::of_rdma(&classes, "softnic0"), None);
    }
}
