//! Facts that sysfs shows of a real device: the network interfaces of its ports and its out_of_buffer
//! counters. Only reads.
//!
//! A NIC receives packets to its own address, broadcasts and joined groups, and drops the others before they
//! reach a flow, unless the interface is promiscuous (netdevice(7), IFF_PROMISC).

use std::fs;
use std::path::{Path, PathBuf};

use packet::MacAddr;
use program::{Flow, FlowKind, FlowSpec, Program};
use verbs::{DevicePort, PortNumber};

/// linux/if.h.
const IFF_PROMISC: u32 = 0x100;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Netdev {
    pub(super) name: String,
    /// The address of the interface.
    pub(super) mac: Option<MacAddr>,
    pub(super) mtu_bytes: Option<u32>,
    /// The index of the interface (`ifindex`).
    pub(super) index: Option<u32>,
    promiscuous: bool,
}

impl Netdev {
    /// The interface of a port.
    pub(super) fn of_port(sysfs: &Path, device: &str, port: u8) -> Option<Self> {
        let port = DevicePort { device: device.to_owned(), port: PortNumber(port) };
        let name = port.interface(sysfs)?;
        let folder = sysfs.join("net").join(&name);
        let flags = read(&folder.join("flags"))?;
        let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).ok()?;
        let mac = read(&folder.join("address")).and_then(|text| text.parse().ok());
        let mtu_bytes = read(&folder.join("mtu")).and_then(|text| text.parse().ok());
        let index = read(&folder.join("ifindex")).and_then(|text| text.parse().ok());
        Some(Self { name, mac, mtu_bytes, index, promiscuous: flags & IFF_PROMISC != 0 })
    }

    /// A warning if the program has flows for packets that this interface does not receive.
    pub(super) fn reception_warning(&self, program: &Program) -> Option<String> {
        if self.promiscuous {
            return None;
        }
        let named = program.flows.iter().find(|flow| self.matches(flow) == Foreign::Address);
        let open = || program.flows.iter().find(|flow| self.matches(flow) == Foreign::Any);
        let (flow, what) = match named {
            Some(flow) => (flow, "matches a destination MAC address that is not its own"),
            None => (open()?, "matches packets to any destination MAC address"),
        };
        let rule = program.rules.get(flow.rule.index()).map_or("?", |rule| rule.name.as_str());
        let own = self.mac.map_or_else(String::new, |mac| format!(" ({mac})"));
        Some(format!(
            "{} is not promiscuous: packets to MAC addresses other than its own{own}, broadcast and joined groups do not \
             reach the flows, and the rule `{rule}` {what} (hint: device.promiscuous = true, or ip link set dev {} \
             promisc on)",
            self.name, self.name
        ))
    }

    fn matches(&self, flow: &Flow) -> Foreign {
        if flow.kind == FlowKind::Egress {
            return Foreign::None;
        }
        let ethernet = flow.specs.iter().take(flow.specs.inner_from()).find_map(|spec| match spec {
            FlowSpec::Ethernet { value, mask } => Some((value.dst_mac, mask.dst_mac)),
            _ => None,
        });
        let Some((value, mask)) = ethernet else { return Foreign::Any };
        // Group addresses: other programs join them.
        if mask[0] & 1 != 0 && value[0] & 1 != 0 {
            return Foreign::None;
        }
        match mask {
            [0, 0, 0, 0, 0, 0] => Foreign::Any,
            // A group address without its group bit: how the compiler keeps a flow out of mlx5's table for
            // multicast.
            [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff] => Foreign::None,
            [0xff, 0xff, 0xff, 0xff, 0xff, 0xff] if self.mac.is_none_or(|own| own.0 == value) => {
                Foreign::None
            }
            _ => Foreign::Address,
        }
    }
}

/// The packets that a flow matches beyond those that a NIC receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Foreign {
    None,
    Any,
    /// Packets to another address, which the policy names.
    Address,
}

fn read_count(path: &Path) -> Option<u64> {
    read(path)?.parse().ok()
}

pub(super) fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Packets of each port that found no posted receive buffer: the only loss that a real NIC counts by its
/// reason.
#[derive(Debug)]
pub(in crate::daemon) struct OutOfBuffer(Vec<(PathBuf, Option<u64>)>);

impl OutOfBuffer {
    /// The device counts since its driver was loaded; the present value is the start.
    pub(in crate::daemon) fn of(sysfs: &Path, device: &str, ports: &[u8]) -> Self {
        let file = |port: &u8| {
            sysfs.join("infiniband").join(device).join(format!("ports/{port}/hw_counters/out_of_buffer"))
        };
        Self(ports.iter().map(file).map(|path| (path.clone(), read_count(&path))).collect())
    }

    /// The count since the start of the port with this index; `None`: the device has no such counter.
    pub(in crate::daemon) fn since_start(&self, index: usize) -> Option<u64> {
        let (path, start) = self.0.get(index)?;
        Some(read_count(path)?.saturating_sub((*start)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sysfs of one RDMA device with one interface; `gid`: the first GID's interface, where it has one.
    fn sysfs(flags: &str, gid: Option<&str>) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("folder");
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        for (name, port) in [("eth0", "0\n"), ("eth1", "1\n")] {
            write(&format!("net/{name}/flags"), flags);
            write(&format!("net/{name}/address"), "02:00:00:00:00:01\n");
            write(&format!("net/{name}/dev_port"), port);
            write(&format!("infiniband/mlx5_0/device/net/{name}/ifindex"), "2\n");
        }
        if let Some(name) = gid {
            write("infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0", &format!("{name}\n"));
        }
        folder
    }

    fn program(rules: &str) -> Program {
        let text = format!("version = 1\ndefault = \"kernel\"\n[groups.g]\nworkers = [0]\n{rules}");
        let source = policy::Source::new("test", text.as_str());
        let options = policy::LoadOptions::default();
        let (policy, _) = policy::parse_with(&source, &policy::NoFiles, &options).expect("a policy");
        compiler::compile_with(&policy, &device_model::DeviceModel::mlx5(), 1, None).expect("a program")
    }

    #[test]
    fn the_interface_of_a_port_is_found_by_gid_or_by_number() {
        let name = |sysfs: &tempfile::TempDir, port| {
            Netdev::of_port(sysfs.path(), "mlx5_0", port).map(|netdev| netdev.name)
        };
        let plain = sysfs("0x1003\n", None);
        assert_eq!(name(&plain, 1).as_deref(), Some("eth0"));
        assert_eq!(name(&plain, 2).as_deref(), Some("eth1"));
        assert_eq!(name(&plain, 3), None);
        assert_eq!(name(&sysfs("0x1003\n", Some("eth1")), 1).as_deref(), Some("eth1"));
        assert_eq!(Netdev::of_port(plain.path(), "mlx5_9", 1), None);
    }

    #[test]
    fn packets_that_do_not_reach_the_flows_are_warned_of_unless_promiscuous() {
        let netdev =
            |flags: &str| Netdev::of_port(sysfs(flags, None).path(), "mlx5_0", 1).expect("an interface");
        let steer = |keys: &str| {
            format!("[[rules]]\nname = \"r\"\nmatch = {{ {keys} }}\naction = {{ steer = \"g\" }}")
        };
        let warned = |flags: &str, keys: &str| netdev(flags).reception_warning(&program(&steer(keys)));
        let own = warned("0x1003", "dst_mac = \"02:00:00:00:00:01\"");
        assert_eq!(own, None, "its own address");
        assert_eq!(warned("0x1003", "dst_mac = \"01:00:5e:00:00:01\""), None, "a group");
        let other = warned("0x1003", "dst_mac = \"02:00:00:00:00:02\"").expect("another address");
        assert!(
            other.contains("the rule `r` matches a destination MAC address that is not its own"),
            "{other}"
        );
        assert!(other.contains("device.promiscuous = true"), "{other}");
        let any = warned("0x1003", "protocol = \"udp\"").expect("any address");
        assert!(any.contains("packets to any destination MAC address"), "{any}");
        assert_eq!(warned("0x1103", "protocol = \"udp\""), None, "promiscuous");
    }

    #[test]
    fn losses_are_counted_from_the_start_and_missing_counters_are_unknown() {
        let sysfs = tempfile::tempdir().expect("folder");
        let counters = sysfs.path().join("infiniband/mlx5_0/ports/1/hw_counters");
        std::fs::create_dir_all(&counters).expect("made");
        std::fs::write(counters.join("out_of_buffer"), "70\n").expect("written");
        let out_of_buffer = OutOfBuffer::of(sysfs.path(), "mlx5_0", &[1, 2]);
        assert_eq!(out_of_buffer.since_start(0), Some(0), "counted before the start");
        std::fs::write(counters.join("out_of_buffer"), "75\n").expect("written");
        assert_eq!(out_of_buffer.since_start(0), Some(5));
        assert_eq!(out_of_buffer.since_start(1), None, "no such file");
        std::fs::write(counters.join("out_of_buffer"), "N/A\n").expect("written");
        assert_eq!(out_of_buffer.since_start(0), None);
        assert_eq!(OutOfBuffer::of(sysfs.path(), "softnic0", &[1]).since_start(0), None);
    }
}
