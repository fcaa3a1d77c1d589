//! Packets around a change: two pairs of interfaces, between which each program forwards 500 flows at a
//! steady rate by the rules for them, while other rules change. Beside the daemon (policies and rules at run
//! time) nft at ingress, tc's flower classifier where the kernel has it, and Open vSwitch on DPDK's polling
//! thread, each by the way of its manual to change many rules at once.
//!
//! The interfaces are AF_PACKET's for both that run in user space, so no rate of theirs is that of a NIC: the
//! rows show what a change does to a rate that all of them sustain. A row without a change shows what the
//! machine does to it.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use packet::build::FrameBuilder;
use steerd_benches::comparison::{Case, Ratio};
use steerd_benches::competitors::{Datapath, Switch, load_here, tc_batch};
use steerd_benches::daemon::{Daemon, DaemonOptions, Provider};
use steerd_benches::namespace;
use steerd_benches::table::Row;
use wire::Wire as _;

use super::inputs::Inputs;
use super::{CORE, OTHER_CORE, interface, own_command, pin};

pub(crate) const TABLE: &str = "change";
/// The sender, the program's two interfaces, and the one at which packets arrive.
const SENDER: &str = "changesend";
const IN: &str = "changein";
const OUT: &str = "changeout";
const FAR: &str = "changefar";
const RULES: [usize; 2] = [1_000, 10_000];
const FLOWS: usize = 500;
const PACKETS_PER_MS: usize = 50;
/// The time before a change that its rate is compared with, and the time behind it in any case.
const BEFORE: Duration = Duration::from_millis(300);
const BEHIND: Duration = Duration::from_millis(100);
/// A rate is that of so many milliseconds.
const BIN_MS: usize = 10;
/// The time for packets to arrive once the sender has stopped.
const SETTLES: Duration = Duration::from_millis(200);
const WARM_UP: Duration = Duration::from_millis(300);

/// A rule: packets to an address and a port are forwarded or dropped.
fn rule(index: usize) -> (Ipv4Addr, u16) {
    (Ipv4Addr::from(0x0a00_0000 + index as u32), 1000 + (index % 50) as u16)
}

/// Whether a rule drops its packets once so many rules have changed. The first ones, whose packets flow,
/// never do.
fn drops(index: usize, changed: usize) -> bool {
    index >= FLOWS && (index.is_multiple_of(2) != (index < FLOWS + changed))
}

/// A program under test.
trait Program {
    /// Changes the first so many of the rules without packets, and returns when they are in force.
    fn change(&mut self, changed: usize) -> Result<(), String>;
}

/// The programs, and what starts them with so many rules.
type Start = fn(&Inputs, usize) -> Result<Box<dyn Program>, String>;
const PROGRAMS: [(&str, Start); 5] = [
    ("daemon, reload", |inputs, rules| Ok(Box::new(Reloading::start(inputs, rules)?))),
    ("daemon, rules at run time", |inputs, rules| Ok(Box::new(AtRunTime::start(inputs, rules)?))),
    ("nft -f, a verdict map at ingress", |inputs, rules| Ok(Box::new(Nft::start(inputs, rules)?))),
    ("ovs-ofctl --bundle add-flows, DPDK", |inputs, rules| Ok(Box::new(Ovs::start(inputs, rules)?))),
    ("tc -batch, flower at ingress", |inputs, rules| Ok(Box::new(Tc::start(inputs, rules)?))),
];
/// The daemon's ways among the programs; the others are compared with each.
const OWN: usize = 2;

pub(crate) fn cases(inputs: &Inputs) -> Vec<Case<'_>> {
    let veth = namespace::make_veth(SENDER, IN).and_then(|()| namespace::make_veth(OUT, FAR));
    let mut cases = Vec::new();
    for rules in RULES {
        for (name, start) in PROGRAMS {
            for changed in [0, 1, rules / 10] {
                let veth = veth.clone();
                cases.push(case(name, rules, changed, move || {
                    veth.clone()?;
                    around_a_change(start(inputs, rules)?.as_mut(), changed)
                }));
            }
        }
    }
    cases
}

/// The figures of a change.
struct Around {
    /// The worst rate of 10 ms, in percent of the rate before.
    worst_percent: f64,
    lost: f64,
    took_ms: f64,
}

fn case<'c>(
    name: &str,
    rules: usize,
    changed: usize,
    mut run: impl FnMut() -> Result<Around, String> + 'c,
) -> Case<'c> {
    let what = format!("{name}, {changed} of {rules} rules");
    let kinds = [("worst 10 ms", "% of the rate"), ("packets lost", "packets"), ("time of the change", "ms")];
    let rows = kinds.map(|(kind, unit)| {
        let mut row = Row::new(TABLE, format!("{what}: {kind}"), 0, unit);
        row.command = own_command(TABLE);
        row
    });
    let run = Box::new(move || run().map(|around| vec![around.worst_percent, around.lost, around.took_ms]));
    Case { rows: rows.into(), run }
}

/// How much longer the change of each neighbour takes.
pub(crate) fn ratios(_: &Inputs, rows: &[Row]) -> Vec<Ratio> {
    let times = |name: &str, of: &str| {
        let what = format!("{name}, {of}: time of the change");
        rows.iter().find(|row| row.what == what)
    };
    let sizes =
        RULES.iter().flat_map(|rules| [1, rules / 10].map(|changed| format!("{changed} of {rules} rules")));
    let pair = |of: String, own: usize, other: usize| {
        let (own, other) = (times(PROGRAMS[own].0, &of)?, times(PROGRAMS[other].0, &of)?);
        Some(Ratio::of(own, other))
    };
    let pairs: Vec<(usize, usize)> =
        (0..OWN).flat_map(|own| (OWN..PROGRAMS.len()).map(move |other| (own, other))).collect();
    sizes
        .flat_map(|of| pairs.iter().map(move |(own, other)| pair(of.clone(), *own, *other)))
        .flatten()
        .collect()
}

/// A thread that sends a steady rate.
struct Sending {
    sent: Arc<AtomicU64>,
    stops: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Sending {
    fn start() -> Result<Self, String> {
        let frames: Vec<Vec<u8>> = (0..FLOWS)
            .map(|index| {
                let (to, port) = rule(index);
                FrameBuilder::new().ipv4(Ipv4Addr::new(192, 0, 2, 1), to).udp(7, port).build()
            })
            .collect();
        let mut wire = interface::wire(SENDER)?;
        let (sent, stops) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (counter, stopped) = (Arc::clone(&sent), Arc::clone(&stops));
        let thread = std::thread::spawn(move || {
            pin(OTHER_CORE);
            let begun = Instant::now();
            for (round, burst) in (0..).zip(frames.chunks(PACKETS_PER_MS).cycle()) {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let taken = burst.iter().filter(|frame| wire.transmit(frame).is_ok()).count();
                wire.flush();
                counter.fetch_add(taken as u64, Ordering::Relaxed);
                let next = begun + Duration::from_millis(round + 1);
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
        });
        Ok(Self { sent, stops, thread })
    }

    fn stop(self) -> u64 {
        self.stops.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
        self.sent.load(Ordering::Relaxed)
    }
}

/// The packets that have arrived at the far interface.
fn arrived() -> Result<u64, String> {
    namespace::received_packets(FAR)
}

/// Sends, changes rules, and samples what arrives each millisecond.
fn around_a_change(program: &mut dyn Program, changed: usize) -> Result<Around, String> {
    let sending = Sending::start()?;
    std::thread::sleep(WARM_UP);
    // Packets of before the program was ready do not count as lost.
    let (sent_before, arrived_before) = (sending.sent.load(Ordering::Relaxed), arrived()?);
    let (stops, samples) =
        (Arc::<AtomicBool>::default(), Arc::<std::sync::Mutex<Vec<(Instant, u64)>>>::default());
    let sampling = {
        let (stops, samples) = (Arc::clone(&stops), Arc::clone(&samples));
        std::thread::spawn(move || {
            while !stops.load(Ordering::Relaxed) {
                if let (Ok(count), Ok(mut samples)) = (arrived(), samples.lock()) {
                    samples.push((Instant::now(), count));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        })
    };
    std::thread::sleep(BEFORE);
    let begun = Instant::now();
    let result = if changed == 0 { Ok(()) } else { program.change(changed) };
    let took = begun.elapsed();
    std::thread::sleep(BEHIND + BEHIND);
    stops.store(true, Ordering::Relaxed);
    let _ = sampling.join();
    let sent = sending.stop() - sent_before;
    std::thread::sleep(SETTLES);
    let arrived = arrived()? - arrived_before;
    result?;
    let samples = samples.lock().map_err(|_| "a thread panicked")?;
    let worst_percent = worst(&samples, begun, took).ok_or("too few samples")?;
    // Packets that were on their way when the count began arrive as well.
    let lost = sent.saturating_sub(arrived) as f64;
    Ok(Around { worst_percent, lost, took_ms: took.as_secs_f64() * 1e3 })
}

/// The worst rate around a change in percent of the rate before it.
fn worst(samples: &[(Instant, u64)], begun: Instant, took: Duration) -> Option<f64> {
    let rate = |bin: &[(Instant, u64)]| {
        let (first, last) = (bin.first()?, bin.last()?);
        Some((last.1 - first.1) as f64 / (last.0 - first.0).as_secs_f64())
    };
    let place = |at: Instant| samples.partition_point(|(time, _)| *time < at);
    let before = rate(&samples[..place(begun)])?;
    let around = &samples[place(begun)..place(begun + took + BEHIND)];
    let rates = around.windows(BIN_MS + 1).filter_map(rate);
    Some(100.0 * rates.fold(f64::INFINITY, f64::min) / before).filter(|percent| percent.is_finite())
}

fn wire_of(interface: &str) -> String {
    format!("{{ kind = 'af_packet', interface = '{interface}' }}")
}

/// The daemon, whose policy is replaced.
struct Reloading {
    daemon: Daemon,
    rules: usize,
}

fn policy(rules: usize, changed: usize, runtime: &str) -> String {
    let mut text = format!(
        "version = 1\ndefault = 'kernel'\n{runtime}[sinks.out]\nkind = 'forward'\nport = 2\n\
         [groups.out]\nworkers = 'all'\nsinks = 'out'\n"
    );
    for index in 0..rules {
        let (to, port) = rule(index);
        let action = if drops(index, changed) { "'drop'" } else { "{ steer = 'out' }" };
        let _ = writeln!(
            text,
            "[[rules]]\nname = 'r{index}'\nmatch = {{ dst = '{to}', protocol = 'udp', dst_port = {port} }}\naction = {action}"
        );
    }
    text
}

fn daemon(inputs: &Inputs, policy: &str) -> Result<Daemon, String> {
    let options = DaemonOptions {
        wire: wire_of(IN),
        second_wire: Some(wire_of(OUT)),
        policy,
        personality: "ideal",
        provider: Provider::SoftNic,
        engine_core: CORE,
        worker_core: OTHER_CORE,
    };
    Daemon::start(&inputs.subfolder("change")?, &options)
}

impl Reloading {
    fn start(inputs: &Inputs, rules: usize) -> Result<Self, String> {
        Ok(Self { daemon: daemon(inputs, &policy(rules, 0, ""))?, rules })
    }
}

impl Program for Reloading {
    fn change(&mut self, changed: usize) -> Result<(), String> {
        self.daemon.reload(&policy(self.rules, changed, ""))
    }
}

/// The daemon, to which rules at run time are added. As many as rules are changed.
struct AtRunTime {
    daemon: Daemon,
}

impl AtRunTime {
    fn start(inputs: &Inputs, rules: usize) -> Result<Self, String> {
        let runtime = "[runtime]\nbefore = 'r0'\nmatches = ['dst protocol dst_port']\nactions = ['drop']\n";
        Ok(Self { daemon: daemon(inputs, &policy(rules, 0, runtime))? })
    }
}

impl Program for AtRunTime {
    fn change(&mut self, changed: usize) -> Result<(), String> {
        let add = |index| {
            let (to, port) = rule(index);
            format!(
                r#"{{"id":"{index}","match":{{"dst":"{to}","protocol":"udp","dst_port":{port}}},"action":"drop"}}"#
            )
        };
        let changes: Vec<String> = (FLOWS..FLOWS + changed).map(add).collect();
        self.daemon.change_rules(&format!("{{\"add\":[{}]}}", changes.join(",")))
    }
}

/// The kernel, which forwards at ingress by a verdict map, the fastest lookup of nft.
struct Nft {
    folder: PathBuf,
}

fn element(index: usize, changed: usize) -> String {
    let (to, port) = rule(index);
    let verdict = if drops(index, changed) { "drop" } else { "goto out" };
    format!("{to} . {port} : {verdict}")
}

impl Nft {
    fn start(inputs: &Inputs, rules: usize) -> Result<Self, String> {
        let elements: Vec<String> = (0..rules).map(|index| element(index, 0)).collect();
        let text = format!(
            "flush ruleset\ntable netdev bench {{\nmap verdicts {{\ntype ipv4_addr . inet_service : verdict\n\
             elements = {{ {} }}\n}}\nchain out {{\nfwd to \"{OUT}\"\n}}\nchain classify {{\n\
             type filter hook ingress device \"{IN}\" priority 0; policy drop;\n\
             ip daddr . udp dport vmap @verdicts\n}}\n}}\n",
            elements.join(",\n")
        );
        let nft = Self { folder: inputs.subfolder("change")? };
        nft.load(&text)?;
        Ok(nft)
    }

    fn load(&self, text: &str) -> Result<(), String> {
        let file = self.folder.join("change.nft");
        std::fs::write(&file, text).map_err(|error| error.to_string())?;
        load_here(&file)
    }
}

impl Program for Nft {
    fn change(&mut self, changed: usize) -> Result<(), String> {
        let each = |changed_before| {
            let elements: Vec<_> = (FLOWS..FLOWS + changed).map(|i| element(i, changed_before)).collect();
            elements.join(",\n")
        };
        self.load(&format!(
            "delete element netdev bench verdicts {{ {} }}\nadd element netdev bench verdicts {{ {} }}\n",
            each(0),
            each(changed)
        ))
    }
}

impl Drop for Nft {
    fn drop(&mut self) {
        let _ = self.load("flush ruleset\n");
    }
}

/// The kernel's flower classifier, where a rule is one filter of one priority (tc-flower(8)).
struct Tc {
    folder: PathBuf,
}

fn filter(index: usize, changed: usize) -> String {
    let (to, port) = rule(index);
    let action =
        if drops(index, changed) { "drop".to_owned() } else { format!("mirred egress redirect dev {OUT}") };
    format!(
        "filter replace dev {IN} ingress protocol ip prio 1 handle {} flower ip_proto udp dst_ip {to} dst_port {port} \
         action {action}\n",
        index + 1
    )
}

impl Tc {
    fn start(inputs: &Inputs, rules: usize) -> Result<Self, String> {
        let tc = Self { folder: inputs.subfolder("change")? };
        let filters: String = (0..rules).map(|index| filter(index, 0)).collect();
        tc.load(&format!("qdisc add dev {IN} clsact\n{filters}"))?;
        Ok(tc)
    }

    fn load(&self, text: &str) -> Result<(), String> {
        let file = self.folder.join("change.tc");
        std::fs::write(&file, text).map_err(|error| error.to_string())?;
        tc_batch(&file)
    }
}

impl Program for Tc {
    fn change(&mut self, changed: usize) -> Result<(), String> {
        let filters: String = (FLOWS..FLOWS + changed).map(|index| filter(index, changed)).collect();
        self.load(&filters)
    }
}

impl Drop for Tc {
    fn drop(&mut self) {
        let _ = self.load(&format!("qdisc del dev {IN} clsact\n"));
    }
}

/// Open vSwitch, with a polling thread of DPDK on the interfaces.
struct Ovs {
    switch: Switch,
    folder: PathBuf,
}

fn flow(index: usize, changed: usize) -> String {
    let (to, port) = rule(index);
    let action = if drops(index, changed) { "drop" } else { "output:2" };
    format!("priority=1,udp,nw_dst={to},tp_dst={port},actions={action}\n")
}

impl Ovs {
    fn start(inputs: &Inputs, rules: usize) -> Result<Self, String> {
        let folder = inputs.subfolder("change")?;
        let switch = Switch::new(Datapath::Dpdk([CORE, OTHER_CORE]))?;
        let ovs = Self { switch, folder };
        let text: String = (0..rules).map(|index| flow(index, 0)).collect();
        ovs.switch.load(&ovs.file(&text)?)?;
        for (number, interface) in [(2, OUT), (1, IN)] {
            let device = format!("type=dpdk options:dpdk-devargs=net_af_packet{number},iface={interface}");
            ovs.switch.add_port(&format!("dpdk{number}"), number, &device)?;
        }
        Ok(ovs)
    }

    fn file(&self, text: &str) -> Result<PathBuf, String> {
        let file = self.folder.join("change.flows");
        std::fs::write(&file, text).map_err(|error| error.to_string())?;
        Ok(file)
    }
}

impl Program for Ovs {
    fn change(&mut self, changed: usize) -> Result<(), String> {
        let text: String = (FLOWS..FLOWS + changed).map(|index| flow(index, changed)).collect();
        let file = self.file(&text)?;
        self.switch.change(&file)
    }
}
