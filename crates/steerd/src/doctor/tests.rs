//! Each check on made hosts: one that is set well, and one for each thing that can be wrong, unreadable or
//! malformed.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};

use hugemem::PageKind;

use super::setup::{ExaminedDevice, ExaminedInterface, InterfaceUse, WorkerMemory};
use super::*;
use crate::daemon::device::EswitchMode;
use crate::service_unit::ServiceUnit;
use crate::settings::IdleMode;

/// A host in a folder, the kernel's answers, and a setup.
struct MadeHost {
    folder: tempfile::TempDir,
    answers: MadeAnswers,
    setup: ExaminedSetup,
}

/// The answers of a kernel.
#[derive(Default)]
struct MadeAnswers {
    /// `None`: devlink answers with the errno.
    eswitch: Option<EswitchMode>,
    eswitch_errno: i32,
    /// The features that are on.
    features: Vec<&'static str>,
    filters: usize,
    xdp_program: Option<u32>,
    /// Whether no interface answers.
    is_silent: bool,
}

impl MadeAnswers {
    fn answer<T>(&self, value: T) -> io::Result<T> {
        if self.is_silent { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(value) }
    }
}

impl HostAnswers for MadeAnswers {
    fn eswitch(&self, _: &str) -> io::Result<EswitchMode> {
        self.eswitch.ok_or_else(|| io::Error::from_raw_os_error(self.eswitch_errno))
    }

    fn has_feature(&self, _: &str, feature: &str) -> io::Result<Option<bool>> {
        self.answer(Some(self.features.contains(&feature)))
    }

    fn filters(&self, _: &str) -> io::Result<usize> {
        self.answer(self.filters)
    }

    fn xdp_program(&self, _: u32) -> io::Result<Option<u32>> {
        self.answer(self.xdp_program)
    }
}

const RDMA: &str = "sys/class/infiniband/rocep1s0";
const NET: &str = "sys/class/net/eth0";
const CPUS: &str = "sys/devices/system/cpu";
const POOL: &str = "sys/devices/system/node/node0/hugepages/hugepages-2048kB";
/// All capabilities but CAP_IPC_LOCK.
const CAPABILITIES: u64 = 0x1ff_ffff_ffff & !(1 << 14);

impl MadeHost {
    fn write(&self, path: &str, text: &str) {
        let path = self.folder.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, format!("{text}\n")).expect("written");
    }

    fn link(&self, path: &str, target: &str) {
        let path = self.folder.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        symlink(target, path).expect("linked");
    }

    fn remove(&self, path: &str) {
        let path = self.folder.path().join(path);
        let removed =
            if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        removed.expect("removed");
    }

    /// Puts something in the place of a file that every user, root too, fails to read.
    fn make_unreadable(&self, path: &str) {
        self.remove(path);
        std::fs::create_dir_all(self.folder.path().join(path)).expect("made");
    }

    fn capabilities(&self, effective: u64) {
        self.write("proc/self/status", &format!("Name:\tsteerd\nCapEff:\t{effective:016x}"));
    }

    fn locked_memory(&self, limit: &str) {
        let line = format!("{:26}{limit:21}{limit:21}bytes", "Max locked memory");
        self.write("proc/self/limits", &format!("Limit  Soft Limit  Hard Limit  Units\n{line}"));
    }

    /// A host with two nodes of four cores and an mlx5, which is set well for workers on cores 2 and 3.
    fn rdma() -> Self {
        let host = Self {
            folder: tempfile::tempdir().expect("folder"),
            answers: MadeAnswers { eswitch: Some(EswitchMode::Legacy), ..MadeAnswers::default() },
            setup: setup(ExaminedDevice::Rdma { name: "rocep1s0".to_owned(), by_interface: false }),
        };
        host.write("proc/sys/kernel/osrelease", "6.12.1");
        host.write(&format!("{RDMA}/fw_ver"), "22.35.2000");
        host.write("sys/devices/0000:01:00.0/infiniband_verbs/uverbs0/dev", "231:192");
        host.link(&format!("{RDMA}/device"), "../../../devices/0000:01:00.0");
        host.link("sys/devices/0000:01:00.0/driver", "../../bus/drivers/mlx5_core");
        host.write("dev/infiniband/uverbs0", "");
        let uverbs = host.folder.path().join("dev/infiniband/uverbs0");
        std::fs::set_permissions(uverbs, std::fs::Permissions::from_mode(0o666)).expect("mode");
        host.write_interface();
        host.write_processor();
        host.write_memory();
        host.capabilities(CAPABILITIES);
        host.locked_memory("unlimited");
        host.write("proc/1/comm", "systemd");
        host.write("proc/77/comm", "sshd");
        host.write("proc/swaps", "Filename\tType\tSize\tUsed\tPriority");
        host
    }

    fn write_interface(&self) {
        self.write(&format!("{NET}/flags"), "0x1103");
        self.write(&format!("{NET}/ifindex"), "2");
        self.write(&format!("{NET}/device/numa_node"), "0");
        for (interrupt, cores) in [(40, "0"), (41, "1")] {
            self.write(&format!("{NET}/device/msi_irqs/{interrupt}"), "msix");
            self.write(&format!("proc/irq/{interrupt}/smp_affinity_list"), "0-7");
            self.write(&format!("proc/irq/{interrupt}/effective_affinity_list"), cores);
        }
    }

    fn write_processor(&self) {
        for (node, cores) in [(0, "0-3"), (1, "4-7")] {
            self.write(&format!("sys/devices/system/node/node{node}/cpulist"), cores);
        }
        self.write(&format!("{CPUS}/online"), "0-7");
        self.write(&format!("{CPUS}/isolated"), "2-3");
        self.write(&format!("{CPUS}/nohz_full"), "2-3");
        self.write("proc/cmdline", "BOOT_IMAGE=/vmlinuz isolcpus=2-3 nohz_full=2-3 rcu_nocbs=2-3");
        for core in 0..8 {
            self.write(&format!("{CPUS}/cpu{core}/cpufreq/scaling_governor"), "performance");
            for (state, name, latency_us, disable) in [(0, "POLL", 0, 0), (1, "C1", 2, 0), (2, "C6", 133, 1)]
            {
                let folder = format!("{CPUS}/cpu{core}/cpuidle/state{state}");
                self.write(&format!("{folder}/name"), name);
                self.write(&format!("{folder}/latency"), &latency_us.to_string());
                self.write(&format!("{folder}/disable"), &disable.to_string());
            }
        }
        let clock = "sys/devices/system/clocksource/clocksource0";
        self.write(&format!("{clock}/current_clocksource"), "tsc");
        self.write(&format!("{clock}/available_clocksource"), "tsc hpet acpi_pm");
    }

    fn write_memory(&self) {
        self.write(&format!("{POOL}/nr_hugepages"), "64");
        self.write(&format!("{POOL}/free_hugepages"), "40");
        let transparent = "sys/kernel/mm/transparent_hugepage";
        self.write(&format!("{transparent}/enabled"), "always [madvise] never");
        self.write(&format!("{transparent}/defrag"), "always defer [madvise] never");
    }

    /// The same host for a soft NIC on its interface, by this kind of wire.
    fn soft(usage: InterfaceUse) -> Self {
        let mut host = Self::rdma();
        host.setup.device = ExaminedDevice::Soft;
        host.setup.interfaces[0].usage = usage;
        host
    }

    fn examine(&self) -> HostExamination {
        let files = SystemFiles::below(self.folder.path());
        examine(&HostView { files: &files, answers: &self.answers, setup: &self.setup })
    }
}

fn setup(device: ExaminedDevice) -> ExaminedSetup {
    let memory = WorkerMemory { numa_node: Some(0), bytes: 10 * (2 << 20) };
    ExaminedSetup {
        device,
        interfaces: vec![ExaminedInterface {
            name: "eth0".to_owned(),
            usage: InterfaceUse::Rdma,
            becomes_promiscuous: false,
        }],
        workers: vec![Some(2), Some(3)],
        memory: vec![memory; 2],
        pages: vec![PageKind::Huge2M, PageKind::Transparent, PageKind::Plain],
        model: "auto".to_owned(),
        service: Some(ServiceUnit::of("AmbientCapabilities=cap_net_raw cap_net_admin cap_bpf cap_perfmon")),
        ..ExaminedSetup::default()
    }
}

/// A host on which one thing is wrong: the finding's check, level, and a part of its problem and command.
type Case = (&'static str, FindingLevel, &'static str, &'static str, fn(&mut MadeHost));

/// Requires that each case has this finding and no other, which the host without the change does not have.
fn require_each(host: fn() -> MadeHost, cases: &[Case]) {
    let good = host().examine();
    assert_eq!((&good.findings[..], &good.unread[..]), (&[][..], &[][..]));
    for (id, level, problem, command, change) in cases {
        let mut changed = host();
        change(&mut changed);
        let HostExamination { findings, unread, fine, .. } = changed.examine();
        assert_eq!(unread, [], "{id}: {problem}");
        let [finding] = &findings[..] else { panic!("{id}: {problem}: {findings:#?}") };
        assert_eq!((finding.id, finding.level), (*id, *level), "{finding:#?}");
        assert!(finding.problem.contains(problem), "{finding:#?}");
        assert!(finding.command.contains(command), "{finding:#?}");
        assert!(!fine.contains(id) && good.fine.contains(id), "{id}");
    }
}

#[test]
fn each_fault_of_an_rdma_device_is_found() {
    use FindingLevel::{Must, Note, Should};
    require_each(
        MadeHost::rdma,
        &[
            ("model", Should, "no model", "steerd devices --probe rocep1s0", |host| {
                host.remove("sys/devices/0000:01:00.0/driver");
                host.link("sys/devices/0000:01:00.0/driver", "../../bus/drivers/irdma");
            }),
            ("model", Must, "installs no flows", "run --interface", |host| {
                host.remove("sys/devices/0000:01:00.0/driver");
                host.link("sys/devices/0000:01:00.0/driver", "../../bus/drivers/mana");
            }),
            ("model", Note, "device.model is \"mlx4\"", "device.model = \"auto\"", |host| {
                host.setup.model = "mlx4".to_owned();
            }),
            ("verbs-device", Must, "no verbs device", "modprobe ib_uverbs", |host| {
                host.remove("sys/devices/0000:01:00.0/infiniband_verbs");
            }),
            ("verbs-device", Must, "/dev/infiniband/uverbs0 is not there", "udevadm", |host| {
                host.remove("dev/infiniband/uverbs0");
            }),
            ("verbs-device", Should, "mode 0600", "chmod 0666 /dev/infiniband/uverbs0", |host| {
                let path = host.folder.path().join("dev/infiniband/uverbs0");
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("mode");
            }),
            ("capabilities", Should, "CAP_NET_RAW", "AmbientCapabilities=CAP_NET_RAW", |host| {
                host.capabilities(CAPABILITIES & !(1 << 13));
            }),
            ("eswitch", Must, "switchdev", "devlink dev eswitch set pci/0000:01:00.0 mode legacy", |host| {
                host.answers.eswitch = Some(EswitchMode::Switchdev);
            }),
            ("interface", Must, "eth0 is down", "ip link set dev eth0 up", |host| {
                host.write(&format!("{NET}/flags"), "0x1102");
            }),
            ("mtu", Must, "too small", "auto", |host| {
                host.setup.length_error = Some("frames are too small (hint: \"auto\")".to_owned());
            }),
            ("cores", Must, "core 9", "workers.cores", |host| {
                host.setup.core_error = Some("workers.cores: core 9 does not exist".to_owned());
            }),
        ],
    );
}

#[test]
fn each_slow_part_of_an_rdma_host_is_found() {
    use FindingLevel::{Must, Note, Should};
    require_each(
        MadeHost::rdma,
        &[
            ("memlock", Should, "64.0KiB, and the workers need 40.0MiB", "LimitMEMLOCK=infinity", |host| {
                host.locked_memory("65536");
            }),
            ("hugepages", Should, "need 20 huge_2m pages, and 4 are free", "echo 80 >", |host| {
                host.write(&format!("{POOL}/free_hugepages"), "4");
            }),
            ("hugepages", Must, "no pool of huge_1g pages", "hugepagesz=1024M hugepages=2", |host| {
                host.setup.pages = vec![PageKind::Huge1G];
            }),
            ("transparent", Should, "are off", "echo madvise >", |host| {
                host.write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]");
            }),
            ("transparent", Note, "compacts", "/defrag", |host| {
                host.write("sys/kernel/mm/transparent_hugepage/defrag", "[always] defer madvise never");
            }),
            ("numa", Should, "workers run on cores 2-3", "NUMA node 1: 4-7", |host| {
                host.write(&format!("{NET}/device/numa_node"), "1");
            }),
            ("irqbalance", Should, "irqbalance is running", "IRQBALANCE_BANNED_CPULIST=2-3", |host| {
                host.write("proc/77/comm", "irqbalance");
            }),
            ("isolation", Note, "isolcpus without 3, nohz_full without 2-3", "isolcpus=2-3", |host| {
                host.write(&format!("{CPUS}/isolated"), "2");
                host.write(&format!("{CPUS}/nohz_full"), "(null)");
            }),
            ("isolation", Note, "isolcpus without 3", "leave the system a core", |host| {
                host.write(&format!("{CPUS}/isolated"), "2");
                host.write(&format!("{CPUS}/online"), "2-3");
            }),
            ("isolation", Should, "rcu_nocbs without 2-3", "rcu_nocbs=2-3", |host| {
                host.setup.idle = IdleMode::Spin;
                host.write(&format!("{CPUS}/nohz_full"), "");
                host.write("proc/cmdline", "isolcpus=2-3");
                // A worker that spins is not woken, so interrupts and idle states are other checks.
            }),
            (
                "idle-states",
                Should,
                "cores 3 may enter the idle state C6, which takes 133 us",
                "cpupower -c 3",
                |host| {
                    host.write(&format!("{CPUS}/cpu3/cpuidle/state2/disable"), "0");
                },
            ),
            ("governor", Should, "cores 2 have", "cpupower -c 2 frequency-set", |host| {
                host.write(&format!("{CPUS}/cpu2/cpufreq/scaling_governor"), "powersave");
            }),
            ("clock", Should, "hpet", "echo tsc >", |host| {
                host.write("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet");
            }),
            ("bond", Should, "member of the bond bond0", "nomaster", |host| {
                host.link(&format!("{NET}/master"), "../bond0");
                host.write("sys/class/net/bond0/bonding/mode", "802.3ad 4");
            }),
            ("filters", Note, "3 receive filters", "ethtool -n eth0", |host| host.answers.filters = 3),
            ("swap", Note, "/dev/sda2", "swapoff -a", |host| {
                host.write("proc/swaps", "Filename\tType\n/dev/sda2 partition 1 0 -2");
            }),
        ],
    );
}

#[test]
fn each_fault_below_af_xdp_is_found() {
    use FindingLevel::{Must, Note, Should};
    require_each(
        || MadeHost::soft(InterfaceUse::Xdp),
        &[
            ("capabilities", Should, "CAP_BPF, CAP_PERFMON", "CAP_PERFMON", |host| {
                host.capabilities(CAPABILITIES & !(1 << 38) & !(1 << 39));
            }),
            ("service", Must, "lacks AmbientCapabilities=CAP_BPF CAP_PERFMON, R", "=AF_XDP", |host| {
                host.setup.service = Some(ServiceUnit::of(
                    "User=steerd\nAmbientCapabilities=cap_net_raw cap_net_admin\nRestrictAddressFamilies=AF_UNIX",
                ));
            }),
            ("service", Must, "lacks LimitMEMLOCK=infinity", "systemctl edit steerd", |host| {
                let unit =
                    "CapabilityBoundingSet=cap_net_raw cap_net_admin cap_bpf cap_perfmon\nLimitMEMLOCK=65536";
                host.setup.service = Some(ServiceUnit::of(unit));
            }),
            ("service", Must, "has failed: exit-code, exit status 69", "journalctl", |host| {
                let failed = "ActiveState=failed\nResult=exit-code\nExecMainStatus=69";
                host.setup.service = Some(ServiceUnit::of(failed));
            }),
            ("interface", Must, "there is no interface eth9", "ip -brief link", |host| {
                host.setup.interfaces[0].name = "eth9".to_owned();
            }),
            ("xdp", Must, "XDP program 17", "ip link set dev eth0 xdp off", |host| {
                host.answers.xdp_program = Some(17);
            }),
            ("interrupts", Should, "interrupts 41 of eth0", "for irq in 41; do echo 0-1 >", |host| {
                host.write("proc/irq/41/effective_affinity_list", "3");
            }),
            ("offloads", Note, "lro, rx-gro-hw", "ethtool -K eth0 lro off rx-gro-hw off", |host| {
                host.answers.features = vec!["rx-lro", "rx-gro-hw", "rx-gro"];
            }),
        ],
    );
}

#[test]
fn merged_frames_of_packet_sockets_are_found() {
    require_each(
        || MadeHost::soft(InterfaceUse::Packet),
        &[("offloads", FindingLevel::Should, "merges", "gro off", |host| {
            host.answers.features = vec!["rx-gro"];
        })],
    );
}

#[test]
fn an_interface_for_one_station_is_noted() {
    let host = MadeHost::rdma();
    host.write(&format!("{NET}/flags"), "0x1003");
    let ids = |host: &MadeHost| host.examine().findings.iter().map(|finding| finding.id).collect::<Vec<_>>();
    assert_eq!(ids(&host), ["promiscuous"]);
    let mut filtered = host;
    filtered.answers.features = vec!["rx-vlan-filter"];
    assert_eq!(ids(&filtered), ["vlan-filter", "promiscuous"]);
    filtered.setup.interfaces[0].becomes_promiscuous = true;
    assert_eq!(ids(&filtered), Vec::<&str>::new());
}

#[test]
fn a_host_without_its_device_must_be_changed() {
    let mut host = MadeHost::rdma();
    let first = |host: &MadeHost| host.examine().findings.into_iter().next().expect("a finding");
    host.setup.device = ExaminedDevice::Rdma { name: "mlx5_9".to_owned(), by_interface: false };
    assert_eq!((first(&host).id, first(&host).level), ("device", FindingLevel::Must));
    host.setup.device = ExaminedDevice::Ambiguous(Vec::new());
    host.setup.interfaces.clear();
    assert!(first(&host).command.contains("steerd run --interface"), "{:?}", first(&host));
    host.setup.daemon = Some(77);
    assert!(host.examine().findings.iter().all(|finding| finding.id != "device"), "a daemon has a device");
    host.setup.daemon = None;
    assert!(first(&host).problem.contains("there is no RDMA device"), "{:?}", first(&host));
    host.setup.device = ExaminedDevice::Ambiguous(vec!["mlx5_0".to_owned(), "mlx5_1".to_owned()]);
    assert!(first(&host).command.contains("device.name = \"mlx5_0\""), "{:?}", first(&host));
}

#[test]
fn a_latency_limit_of_the_host_keeps_cores_awake() {
    let host = MadeHost::rdma();
    host.write(&format!("{CPUS}/cpu3/cpuidle/state2/disable"), "0");
    let limit = |us: i32| {
        std::fs::write(host.folder.path().join("dev/cpu_dma_latency"), us.to_ne_bytes()).expect("written");
        host.examine().findings.len()
    };
    assert_eq!((limit(0), limit(2_000_000_000)), (0, 1));
}

#[test]
fn the_running_daemon_is_examined_with_what_it_holds() {
    let mut host = MadeHost::soft(InterfaceUse::Xdp);
    host.setup.daemon = Some(77);
    host.answers.xdp_program = Some(17);
    host.answers.filters = 4;
    host.write("proc/77/status", &format!("CapEff:\t{:016x}", CAPABILITIES & !(1 << 13)));
    host.write("proc/77/limits", "Max locked memory         65536                65536                bytes");
    host.write(&format!("{POOL}/free_hugepages"), "0");
    let examined = host.examine();
    let found: Vec<_> = examined.findings.iter().map(|finding| (finding.id, finding.level)).collect();
    assert_eq!(found, [("capabilities", FindingLevel::Must), ("memlock", FindingLevel::Must)]);
    assert!(examined.findings[0].problem.starts_with("the daemon (process 77) lacks CAP_NET_RAW"));
}

#[test]
fn nothing_is_found_of_what_an_unknown_daemon_may_hold() {
    let mut host = MadeHost::soft(InterfaceUse::Xdp);
    host.setup.daemon_error = Some(UnreadFile {
        path: "status of the daemon".to_owned(),
        why: "Permission denied".to_owned(),
        remedy: "run `steerd doctor` as root".to_owned(),
    });
    host.answers.xdp_program = Some(17);
    host.answers.filters = 4;
    host.write(&format!("{POOL}/free_hugepages"), "0");
    let examined = host.examine();
    let unread = examined.unread.iter().filter(|item| item.item == "status of the daemon");
    let ids: Vec<_> = unread.map(|item| item.id).collect();
    assert_eq!(ids, ["capabilities", "service", "xdp", "memlock", "hugepages", "filters"]);
    assert!(examined.findings.iter().all(|finding| !ids.contains(&finding.id)), "{:?}", examined.findings);
}

#[test]
fn important_findings_come_first() {
    let host = MadeHost::rdma();
    host.write("proc/swaps", "Filename\n/dev/sda2 partition");
    host.write(&format!("{CPUS}/cpu2/cpufreq/scaling_governor"), "powersave");
    host.write(&format!("{NET}/flags"), "0x1102");
    let ids: Vec<_> = host.examine().findings.iter().map(|finding| finding.id).collect();
    assert_eq!(ids, ["interface", "governor", "swap"]);
}

/// Files that a check reads, by its id.
const FILES: &[(&str, &str)] = &[
    ("device", "proc/sys/kernel/osrelease"),
    ("device", "sys/class/infiniband/rocep1s0/fw_ver"),
    ("capabilities", "proc/self/status"),
    ("memlock", "proc/self/limits"),
    ("interface", "sys/class/net/eth0/flags"),
    ("hugepages", "sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages"),
    ("transparent", "sys/kernel/mm/transparent_hugepage/enabled"),
    ("numa", "sys/class/net/eth0/device/numa_node"),
    ("numa", "sys/devices/system/node/node1/cpulist"),
    ("interrupts", "proc/irq/41/effective_affinity_list"),
    ("isolation", "sys/devices/system/cpu/isolated"),
    ("isolation", "sys/devices/system/cpu/nohz_full"),
    ("isolation", "proc/cmdline"),
    ("idle-states", "sys/devices/system/cpu/cpu2/cpuidle/state2/latency"),
    ("governor", "sys/devices/system/cpu/cpu3/cpufreq/scaling_governor"),
    ("clock", "sys/devices/system/clocksource/clocksource0/current_clocksource"),
    ("swap", "proc/swaps"),
];

/// The host whose checks read the file.
fn host_for(id: &str) -> MadeHost {
    if id == "interrupts" { MadeHost::soft(InterfaceUse::Xdp) } else { MadeHost::rdma() }
}

#[test]
fn unreadable_files_are_never_fine() {
    for (id, path) in FILES {
        let host = host_for(id);
        assert!(host.examine().fine.contains(id), "{id}");
        host.make_unreadable(path);
        let HostExamination { unread, fine, findings, .. } = host.examine();
        let item = unread.iter().find(|item| item.id == *id && item.item == format!("/{path}"));
        let item = item.unwrap_or_else(|| panic!("{path}: {unread:#?}"));
        assert!(!item.why.is_empty() && !item.remedy.is_empty(), "{item:#?}");
        assert!(!fine.contains(id), "{path}");
        assert!(findings.iter().all(|finding| finding.id != *id), "{path}: {findings:#?}");
    }
}

#[test]
fn malformed_files_are_never_fine() {
    let free_texts = ["osrelease", "fw_ver", "scaling_governor", "current_clocksource", "swaps", "cmdline"];
    for (id, path) in FILES {
        if free_texts.iter().any(|name| path.ends_with(name)) {
            continue;
        }
        let host = host_for(id);
        host.write(path, "so many as needed");
        let HostExamination { unread, fine, .. } = host.examine();
        assert!(
            unread.iter().any(|item| item.id == *id && item.why.contains("is not")),
            "{path}: {unread:#?}"
        );
        assert!(!fine.contains(id), "{path}");
    }
}

#[test]
fn a_kernel_that_does_not_answer_is_never_fine() {
    let mut host = MadeHost::soft(InterfaceUse::Xdp);
    host.answers.is_silent = true;
    host.write(&format!("{NET}/flags"), "0x1003");
    let examined = host.examine();
    let unread: BTreeSet<&str> = examined.unread.iter().map(|item| item.id).collect();
    assert_eq!(unread, ["filters", "offloads", "vlan-filter", "xdp"].into());
    assert!(examined.unread.iter().all(|item| item.remedy.contains("root")), "{:#?}", examined.unread);
    let mut rdma = MadeHost::rdma();
    for (errno, words, remedy) in [
        (1, "os error 1", "as root"),
        (19, "os error 19", "devlink dev show"),
        (2, "os error 2", "CONFIG_NET_DEVLINK"),
    ] {
        (rdma.answers.eswitch, rdma.answers.eswitch_errno) = (None, errno);
        let [item] = &rdma.examine().unread[..] else { panic!("{errno}") };
        assert!(item.id == "eswitch" && item.why.contains(words) && item.remedy.contains(remedy), "{item:?}");
    }
    // A user that does not see the processes of others.
    rdma.remove("proc/1");
    assert!(rdma.examine().unread.iter().any(|item| item.id == "irqbalance"));
}

#[test]
fn an_empty_host_has_no_fine_device() {
    let mut host = MadeHost::rdma();
    for path in ["sys", "proc", "dev"] {
        host.remove(path);
    }
    let examined = host.examine();
    assert_eq!(examined.findings[0].id, "device");
    assert!(
        !examined.fine.contains(&"device") && !examined.fine.contains(&"governor"),
        "{:?}",
        examined.fine
    );
    host.setup.interfaces.clear();
    host.setup.device = ExaminedDevice::Soft;
    let skipped: Vec<_> = host.examine().inapplicable.iter().map(|skipped| skipped.id).collect();
    for id in ["model", "verbs-device", "capabilities", "eswitch", "interface", "memlock", "clock", "swap"] {
        assert!(skipped.contains(&id), "{id}: {skipped:?}");
    }
}

#[test]
fn every_check_is_on_the_page_with_its_source() {
    let page = include_str!("../../../../docs/reference/commands/doctor.md");
    let (_, section) = page.split_once("\n## Checks\n").expect("the section");
    let rows: Vec<&str> = section
        .lines()
        .take_while(|line| !line.starts_with("## "))
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | ").map(|(id, _)| id))
        .collect();
    let ids: Vec<&str> = CHECKS.iter().map(|check| check.id).collect();
    assert_eq!(rows, ids);
}
