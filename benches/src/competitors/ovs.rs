//! `ovs-ofctl add-flows` with the same rules, into a userspace switch without ports that is started in a temporary folder
//! (Open vSwitch's `dummy` datapath: no kernel module, no interface, no privilege).

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::rules::{Ports, Rule, Verdict};

use super::{TIMEOUT_S, run};

const BRIDGE: &str = "bench";

/// A switch, its database and their folder.
pub struct Switch {
    root: PathBuf,
    folder: PathBuf,
    processes: Vec<Child>,
}

impl Switch {
    /// Starts one with the programs under `root`, which is `/` where the package is installed.
    ///
    /// # Errors
    /// The reason why it cannot be started.
    pub fn new(root: &Path) -> Result<Self, String> {
        // Socket paths are limited to 108 bytes (unix(7)); a build folder may be longer.
        let folder = std::env::temp_dir().join(format!("steerd-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let mut switch = Self { root: root.to_owned(), folder, processes: Vec::new() };
        let schema = switch.root.join("usr/share/openvswitch/vswitch.ovsschema");
        let database = switch.folder.join("conf.db");
        run(switch.command("usr/bin/ovsdb-tool").arg("create").args([&database, &schema]))?;
        let socket = switch.folder.join("db.sock").display().to_string();
        let mut server = switch.command("usr/sbin/ovsdb-server");
        switch.spawn(server.arg(&database).arg(format!("--remote=punix:{socket}")))?;
        let mut daemon = switch.command("usr/lib/openvswitch-switch/ovs-vswitchd");
        switch.wait_for("db.sock")?;
        switch.spawn(daemon.arg("--enable-dummy").arg(format!("unix:{socket}")))?;
        let bridge = ["add-br", BRIDGE, "--", "set", "bridge", BRIDGE, "datapath_type=dummy"];
        let mut configure = switch.command("usr/bin/ovs-vsctl");
        configure.arg(format!("--db=unix:{socket}")).arg("--timeout=20").args(bridge);
        run(&mut configure)?;
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
        command
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

/// The rules as flows, the first with the highest priority. OpenFlow has no port ranges: they become prefixes.
/// Returns the number of flows, too; `None` if there are more rules than priorities.
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
