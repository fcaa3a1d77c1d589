//! Open vSwitch with the same rules, in a temporary folder and without a kernel module: a switch without
//! ports, into which `ovs-ofctl` loads flows (the `dummy` datapath, which needs no privilege), or one that
//! classifies packets in user space (the `netdev` datapath), of the kernel's interfaces or of DPDK's devices.
//!
//! A switch that classifies does so without its exact-match cache: one entry of it for each flow of a short
//! trace would answer everything. Its wildcard cache, which keeps what earlier packets were decided by, is
//! its classifier.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::machine;
use crate::rules::{Ports, Rule, Verdict};

use super::{TIMEOUT_S, processor_time, run};

const BRIDGE: &str = "bench";
/// The variable with the folder below which the programs are; without it they are installed.
pub(super) const ROOT: &str = "STEERD_OVS_ROOT";
const DAEMON: &str = "usr/lib/openvswitch-switch/ovs-vswitchd";
/// Of Debian's package openvswitch-switch-dpdk.
const DPDK_DAEMON: &str = "usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
/// The longest time until the caches of a switch know a trace.
const PATIENCE: Duration = Duration::from_secs(120);
/// Free huge pages with which it has buffers for at least 131,072 packets, half of its maximum of 262,144; if
/// fewer are free, it gets normal pages.
const HUGE_MIB: u64 = 500;
const NORMAL_MIB: u32 = 1400;
/// The packets looked up for each one that its caches miss, at least, in a window of [`Switch::settle`].
const PACKETS_PER_MISS: u64 = 100_000;
/// No entry of the exact-match cache for any packet.
const NO_CACHE: &str = "other_config:emc-insert-inv-prob=0";

/// How a switch treats packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datapath {
    /// It has no ports.
    Dummy,
    /// It waits for packets of the kernel's interfaces, on this core.
    Kernel(usize),
    /// A thread on the first core polls DPDK's devices; the others run on either.
    Dpdk([usize; 2]),
}

/// A switch, its database and their folder.
pub struct Switch {
    root: PathBuf,
    folder: PathBuf,
    /// The switch is the last one.
    processes: Vec<Child>,
}

impl Switch {
    /// Starts one.
    ///
    /// # Errors
    /// The reason why it cannot be started.
    pub fn new(datapath: Datapath) -> Result<Self, String> {
        let root = std::env::var_os(ROOT).map_or(PathBuf::from("/"), PathBuf::from);
        // Socket paths are limited to 108 bytes (unix(7)); a build folder may be longer.
        let folder = std::env::temp_dir().join(format!("steerd-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let mut switch = Self { root, folder, processes: Vec::new() };
        let schema = switch.root.join("usr/share/openvswitch/vswitch.ovsschema");
        let database = switch.folder.join("conf.db");
        run(switch.command("usr/bin/ovsdb-tool").arg("create").args([&database, &schema]))?;
        let socket = format!("unix:{}", switch.folder.join("db.sock").display());
        let mut server = switch.command("usr/sbin/ovsdb-server");
        switch.spawn(server.arg(&database).arg(format!("--remote=p{socket}")))?;
        switch.wait_for("db.sock")?;
        switch.configure(&format!("--no-wait -- init -- {}", datapath.settings().join(" ")))?;
        let mut daemon = datapath.daemon(&switch)?;
        switch.spawn(daemon.arg(&socket))?;
        let kind = if datapath == Datapath::Dummy { "dummy" } else { "netdev" };
        switch.configure(&format!(
            "add-br {BRIDGE} -- set bridge {BRIDGE} datapath_type={kind} fail-mode=secure"
        ))?;
        switch.wait_for(&format!("{BRIDGE}.mgmt"))?;
        Ok(switch)
    }

    /// The time to load a file of flows into an empty table.
    ///
    /// # Errors
    /// The message of `ovs-ofctl`.
    pub fn load(&self, file: &Path) -> Result<Duration, String> {
        run(self.ofctl("del-flows").arg(self.bridge()))?;
        let started = Instant::now();
        run(self.ofctl("add-flows").arg(self.bridge()).arg(file))?;
        Ok(started.elapsed())
    }

    /// Changes flows by a file, all at once.
    ///
    /// # Errors
    /// The message of `ovs-ofctl`.
    pub fn change(&self, file: &Path) -> Result<(), String> {
        run(self.ofctl("add-flows").arg("--bundle").arg(self.bridge()).arg(file)).map(|_| ())
    }

    /// Adds a port with this number, by the columns of its interface in the database
    /// (ovs-vswitchd.conf.db(5)).
    ///
    /// # Errors
    /// The message of `ovs-vsctl` or of the switch.
    pub fn add_port(&self, name: &str, number: u16, columns: &str) -> Result<(), String> {
        self.configure(&format!(
            "add-port {BRIDGE} {name} -- set interface {name} ofport_request={number} {columns}"
        ))?;
        let error = self.configure(&format!("get interface {name} error"))?;
        if error.trim() == "[]" { Ok(()) } else { Err(format!("Open vSwitch: {}", error.trim())) }
    }

    /// The packets that it has looked up, and those of them that its caches did not know.
    ///
    /// # Errors
    /// It has ended.
    pub fn lookups(&self) -> Result<(u64, u64), String> {
        let id = self.processes.last().map_or(0, Child::id);
        let name = |dpdk: &str| self.folder.join(format!("ovs-vswitchd{dpdk}.{id}.ctl"));
        let target = ["-dpdk", ""].map(name).into_iter().find(|path| path.exists());
        let mut appctl = self.command("usr/bin/ovs-appctl");
        appctl.args(["--timeout", TIMEOUT_S, "--target"]).arg(target.ok_or("Open vSwitch has ended")?);
        let output = run(appctl.arg("dpctl/show"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        lookups(&text).ok_or_else(|| format!("Open vSwitch did not count: {}", text.trim()))
    }

    /// Waits until its caches miss at most one packet in 100,000 for 0.3 s.
    ///
    /// # Errors
    /// They do not, or no packets come.
    pub fn settle(&self) -> Result<(), String> {
        let (deadline, mut before) = (Instant::now() + PATIENCE, (0, 0));
        while Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(300));
            let now = self.lookups()?;
            let (looked_up, missed) = (now.0 - before.0, now.1 - before.1);
            if before.0 > 0 && looked_up > missed * PACKETS_PER_MISS {
                return Ok(());
            }
            before = now;
        }
        let (looked_up, missed) = before;
        Err(format!("Open vSwitch does not come to know the packets: {missed} of {looked_up} were new"))
    }

    /// The time that its threads have had a core.
    #[must_use]
    pub fn processor_time(&self) -> Option<Duration> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.processes.last()?.id())).ok()?;
        Some(tasks.filter_map(|task| processor_time(&task.ok()?.path())).sum())
    }

    /// `ovs-vsctl` with these words. Returns what it writes.
    fn configure(&self, words: &str) -> Result<String, String> {
        let mut configure = self.command("usr/bin/ovs-vsctl");
        configure.arg(format!("--db=unix:{}", self.folder.join("db.sock").display())).arg("--timeout=20");
        // A quoted word contains spaces.
        let words = words.split('"').enumerate().flat_map(|(index, part)| {
            if index % 2 == 1 { vec![part] } else { part.split_whitespace().collect() }
        });
        run(configure.args(words)).map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn bridge(&self) -> String {
        format!("unix:{}", self.folder.join(format!("{BRIDGE}.mgmt")).display())
    }

    fn ofctl(&self, verb: &str) -> Command {
        let mut command = self.command("usr/bin/ovs-ofctl");
        command.args(["--timeout", TIMEOUT_S, verb]);
        command
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.root.join(program));
        self.surround(&mut command);
        command
    }

    /// Libraries and folders of its own.
    fn surround(&self, command: &mut Command) {
        let libraries = ["usr/lib", "lib"].map(|lib| {
            let folder = format!("{lib}/{}-linux-gnu", std::env::consts::ARCH);
            self.root.join(folder).display().to_string()
        });
        if self.root != Path::new("/") {
            command.env("LD_LIBRARY_PATH", libraries.join(":"));
        }
        for name in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
            command.env(name, &self.folder);
        }
    }

    fn spawn(&mut self, command: &mut Command) -> Result<(), String> {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
        self.processes.push(child);
        Ok(())
    }

    fn wait_for(&self, socket: &str) -> Result<(), String> {
        let path = self.folder.join(socket);
        for _ in 0..1000 {
            if path.exists() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(format!("{socket} did not come up"))
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        while let Some(mut process) = self.processes.pop() {
            _ = process.kill();
            _ = process.wait();
        }
        _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Datapath {
    /// What `ovs-vsctl` sets before the switch is started.
    #[must_use]
    pub fn settings(self) -> Vec<String> {
        let mut words = vec![format!("set Open_vSwitch . {NO_CACHE}")];
        if let Self::Dpdk([core, _]) = self {
            let is_enough = machine::free_huge_mib() >= HUGE_MIB;
            // Debian's switch adds --in-memory, which is for huge pages only, unless it finds --legacy-mem.
            let memory =
                if is_enough { String::new() } else { format!("--no-huge --legacy-mem -m {NORMAL_MIB} ") };
            let extra = format!("{memory}--no-pci --no-telemetry --file-prefix=steerd-bench-ovs");
            words.push("other_config:dpdk-init=true".to_owned());
            words.push(format!("\"other_config:dpdk-extra={extra}\""));
            words.push(format!("other_config:pmd-cpu-mask={:#x}", 1 << core));
        }
        words
    }

    fn daemon(self, switch: &Switch) -> Result<Command, String> {
        let (program, cores) = match self {
            Self::Dummy => {
                let mut daemon = switch.command(DAEMON);
                daemon.arg("--enable-dummy");
                return Ok(daemon);
            }
            Self::Kernel(core) => (DAEMON, core.to_string()),
            Self::Dpdk([core, other]) => (DPDK_DAEMON, format!("{core},{other}")),
        };
        let program = switch.root.join(program);
        if !program.exists() {
            return Err(format!("there is no {} (package openvswitch-switch-dpdk)", program.display()));
        }
        // The thread of the bench is pinned, and a process inherits that.
        let mut daemon = Command::new("taskset");
        daemon.args(["-c", &cores]).arg(program);
        switch.surround(&mut daemon);
        Ok(daemon)
    }
}

/// All, and those that were missed, of `  lookups: hit:155266908 missed:1242 lost:19306`; no packet is among
/// two of these.
fn lookups(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("lookups: "))?;
    let count = |name: &str| -> Option<u64> {
        line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix(':')?.parse().ok())
    };
    let missed = count("missed")? + count("lost")?;
    Some((count("hit")? + missed, missed))
}

/// The rules as flows, the first with the highest priority. OpenFlow has no port ranges: they become
/// prefixes. Returns the number of flows, too; `None` if there are more rules than priorities.
#[must_use]
pub fn flows(rules: &[Rule]) -> Option<(String, usize)> {
    let (mut text, mut count) = (String::new(), 0);
    for (index, rule) in rules.iter().enumerate() {
        let priority = u16::MAX.checked_sub(u16::try_from(index).ok()?)?;
        let [sources, targets] = rule.filter.required_ports().map(prefixes);
        for kind in kinds(rule) {
            for source in &sources {
                for target in &targets {
                    flow(&mut text, (priority, &kind), rule, [*source, *target]);
                    count += 1;
                }
            }
        }
    }
    Some((text, count))
}

/// The protocols to match: OpenFlow matches ports of a given protocol only.
fn kinds(rule: &Rule) -> Vec<String> {
    let words: &[&str] = match rule.filter.protocol {
        Some(6) => &["tcp"],
        Some(17) => &["udp"],
        Some(protocol) => return vec![format!("ip,nw_proto={protocol}")],
        None if rule.filter.required_ports().iter().any(Option::is_some) => &["tcp", "udp"],
        None => &["ip"],
    };
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn flow(text: &mut String, (priority, kind): (u16, &str), rule: &Rule, ports: [Option<(u16, u16)>; 2]) {
    let mut word = |word: std::fmt::Arguments<'_>| text.write_fmt(word).expect("writing to a String");
    word(format_args!("priority={priority},{kind}"));
    for (key, (address, length)) in [("nw_src", rule.filter.src), ("nw_dst", rule.filter.dst)] {
        if length > 0 {
            word(format_args!(",{key}={}/{length}", Ipv4Addr::from(address)));
        }
    }
    for (key, ports) in ["tp_src", "tp_dst"].into_iter().zip(ports) {
        if let Some((value, mask)) = ports {
            word(format_args!(",{key}={value:#06x}/{mask:#06x}"));
        }
    }
    if let Some((value, mask)) = rule.filter.tcp_flags() {
        word(format_args!(",tcp_flags={value:#05x}/{mask:#05x}"));
    }
    match rule.verdict {
        Verdict::Drop => word(format_args!(",actions=drop\n")),
        Verdict::Steer(group) => word(format_args!(",actions=output:{}\n", group + 1)),
    }
}

/// A range as values under masks; one `None` for any port.
fn prefixes(ports: Option<Ports>) -> Vec<Option<(u16, u16)>> {
    let Some((low, high)) = ports else { return vec![None] };
    let (mut at, end, mut found) = (u32::from(low), u32::from(high), Vec::new());
    while at <= end {
        let aligned = if at == 0 { 1 << 16 } else { 1 << at.trailing_zeros() };
        let mut size: u32 = aligned;
        while at + size - 1 > end {
            size /= 2;
        }
        found.push(Some((at as u16, !((size - 1) as u16))));
        at += size;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_without_an_answer_are_looked_up_too() {
        let text = "netdev@ovs-netdev:\n  lookups: hit:100 missed:20 lost:3\n  flows: 20\n";
        assert_eq!(lookups(text), Some((123, 23)));
        assert_eq!(lookups("ovs-appctl: no answer"), None);
    }

    #[test]
    fn prefixes_cover_a_range_exactly() {
        for range in [(0, 65_535), (1024, 65_535), (1, 6), (7, 7), (0, 0), (65_535, 65_535), (1500, 1502)] {
            let parts = prefixes(Some(range));
            for port in 0..=u16::MAX {
                let met = parts.iter().flatten().filter(|(value, mask)| port & mask == *value).count();
                assert_eq!(met, usize::from((range.0..=range.1).contains(&port)), "{range:?} {port}");
            }
        }
        assert_eq!(prefixes(Some((1024, 65_535))).len(), 6);
    }
}
