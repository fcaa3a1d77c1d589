//! Open vSwitch in user space, which classifies packets by the same rules without its exact-match cache: on
//! DPDK, from a capture on one core to testpmd on the other, as the daemon from its engine to its worker; and
//! on an interface of the kernel.
//!
//! On DPDK `net_pcap` copies each packet of the capture into a buffer, a polling thread parses it and looks
//! it up, and `net_memif` copies it for a testpmd that only receives. A round starts the switch anew, since
//! that thread never waits.

use std::time::{Duration, Instant};

use steerd_benches::comparison::Case;
use steerd_benches::competitors::{Datapath, Switch, Testpmd, TestpmdOptions, flows};
use steerd_benches::rules::RuleSet;
use steerd_benches::table::Row;

use super::inputs::{Inputs, Traffic};
use super::{CORE, OTHER_CORE};

pub(crate) const NAME: &str = "Open vSwitch, EMC off";
const MILLISECONDS: u64 = 500;
/// OpenFlow numbers: flows send to the first.
const OUT: u16 = 1;
const IN: u16 = 3;
const DELIVER: &str = "actions=output:1";

/// From core to core.
pub(crate) fn on_dpdk<'i>(
    inputs: &'i Inputs,
    rules: &RuleSet,
    (from, traffic): (&RuleSet, Traffic),
    mut row: Row,
) -> Case<'i> {
    let (replay, loaded) = match (inputs.replay(from, traffic, row.frame_bytes), file(inputs, rules, DELIVER))
    {
        (Ok(replay), Ok(loaded)) => (replay, loaded),
        (Err(why), _) | (_, Err(why)) => return Case::missing(row, &why),
    };
    let socket = inputs.folder.join("switch.sock");
    let memif = |role: &str| {
        format!("net_memif0,role={role},id=0,socket={},socket-abstract=no,rsize=12", socket.display())
    };
    let ports = [("in", IN, super::one_core::replayed(&replay.capture)), ("out", OUT, memif("client"))]
        .map(|(name, number, device)| (name, number, format!("type=dpdk options:dpdk-devargs={device}")));
    let datapath = Datapath::Dpdk([CORE, OTHER_CORE]);
    row.command = commands(datapath, &ports, &loaded);
    let (bytes, devices) = (row.frame_bytes, [memif("server")]);
    Case::new(row, move || {
        // Of an earlier round.
        let _ = std::fs::remove_file(&socket);
        let mut receiver = Testpmd::start(&TestpmdOptions {
            // The switch has a queue for each of its threads, of which one sends.
            queues: 2,
            ..TestpmdOptions::receiver(&devices, (OTHER_CORE, CORE), bytes)
        })?;
        receiver.command("start");
        let switch = Switch::new(datapath)?;
        switch.load(std::path::Path::new(&loaded))?;
        // First the port that flows send to: the caches keep where they sent.
        for (name, number, columns) in ports.iter().rev() {
            switch.add_port(name, *number, columns)?;
        }
        switch.settle()?;
        match receiver.rate(inputs.round(MILLISECONDS))? {
            0.0 => Err("testpmd received no packet".to_owned()),
            rate => Ok(rate / 1e6),
        }
    })
}

/// Packets per second and the share of one core, with packets that the caller sends.
pub(crate) fn on_interface(
    inputs: &Inputs,
    rules: &RuleSet,
    interface: &str,
    send: impl FnOnce() -> Result<Box<dyn std::any::Any>, String>,
) -> Result<(f64, f64), String> {
    let switch = Switch::new(Datapath::Kernel(CORE))?;
    switch.load(std::path::Path::new(&file(inputs, rules, "actions=drop")?))?;
    switch.add_port(interface, IN, "type=system")?;
    let _sending = send()?;
    switch.settle()?;
    let used = || switch.processor_time().ok_or("no time in /proc".to_owned());
    let (before, used_before, begun) = (switch.lookups()?.0, used()?, Instant::now());
    std::thread::sleep(inputs.round(MILLISECONDS));
    let (after, used_after, time) = (switch.lookups()?.0, used()?, begun.elapsed());
    let share = |part: Duration| part.as_secs_f64() / time.as_secs_f64();
    let rate = (after - before) as f64 / time.as_secs_f64();
    Ok((rate, share(used_after.saturating_sub(used_before))))
}

/// The rules for `ovs-ofctl`, all of whose packets are treated the same. Returns its path.
fn file(inputs: &Inputs, rules: &RuleSet, action: &str) -> Result<String, String> {
    let set = rules.delivering();
    let (text, _) =
        flows(&set.rules).ok_or_else(|| format!("more rules than OpenFlow has priorities: {}", set.name))?;
    let kind = if action == DELIVER { "deliver" } else { "drop" };
    let path = inputs.folder.join(format!("{}-{kind}.flows", set.name).replace(' ', "-"));
    std::fs::write(&path, text.replace(DELIVER, action)).map_err(|error| error.to_string())?;
    Ok(path.display().to_string())
}

/// What the case does, for a shell in which the switch's programs run.
fn commands(datapath: Datapath, ports: &[(&str, u16, String)], file: &str) -> String {
    let mut parts: Vec<String> =
        datapath.settings().into_iter().map(|words| words.trim_matches('"').to_owned()).collect();
    parts = vec![format!("ovs-vsctl {}", parts.join(" "))];
    parts.push(format!("ovs-ofctl add-flows bench {file}"));
    parts.extend(ports.iter().map(|(name, number, columns)| {
        format!("ovs-vsctl add-port bench {name} -- set interface {name} ofport_request={number} {columns}")
    }));
    parts.join("; ")
}
