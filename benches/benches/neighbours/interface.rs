//! A veth pair, whose one end sends as fast as the kernel lets it and whose other end is received by the
//! daemon (AF_PACKET, frame by frame and in blocks), by the daemon's receive ring alone, and by tcpdump; and
//! what the daemon takes when it has nothing to do.
//!
//! The ring alone is the soft NIC's wire (a ring of TPACKET_V2) in a loop that only counts frames: no parser,
//! no flow table and no worker. tcpdump reads blocks of TPACKET_V3 by libpcap and writes the packets to
//! /dev/null. Open vSwitch reads an AF_PACKET socket by recvmmsg(2). The kernel receives on the sender's
//! core, so the rates are mostly the sender's.

mod af_xdp;

use std::any::Any;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use steerd_benches::comparison::{Case, Ratio};
use steerd_benches::competitors::{CaptureTool, ingress, load_here};
use steerd_benches::daemon::{Daemon, DaemonOptions, Provider, ThreadTimes};
use steerd_benches::namespace;
use steerd_benches::rules::{Rule, RuleSet, Verdict};
use steerd_benches::table::Row;
use steerd_benches::trace::Trace;
use wire::{AfPacketConfig, AfPacketWire, Burst, HandOver, MergedFrames, Wire};

use super::inputs::{Inputs, one_rule};
use super::{CORE, OTHER_CORE, own_command, pin, switch};

pub(crate) const TABLE: &str = "interface";
pub(crate) const FOOTPRINT: &str = "footprint";
const OWN: &str = "daemon, AF_PACKET";
/// After `OWN`, of a daemon that gets its frames in blocks.
const BLOCKS: &str = " in blocks (TPACKET_V3)";
const RING: &str = "ring of the daemon (TPACKET_V2), only counted";
const TCPDUMP: &str = "tcpdump -w /dev/null (TPACKET_V3)";
/// After the name of a row.
const PROCESSOR_TIME: &str = ", processor time";
const PER_PACKET: &str = ", processor time per packet";
const SENDER: &str = "benchsend";
const RECEIVER: &str = "benchrecv";
const SIZES: [u32; 2] = [60, 1514];
const FLOWS: usize = 1000;
const MILLISECONDS: u64 = 500;
const WARM_UP: Duration = Duration::from_millis(150);
const RELOADS: usize = 10;

pub(crate) fn cases(inputs: &Inputs) -> Vec<Case<'_>> {
    let veth = namespace::make_veth(SENDER, RECEIVER);
    let mut cases = Vec::new();
    for bytes in SIZES {
        let counts: &[usize] = if bytes == SIZES[0] { &[1, usize::MAX] } else { &[1] };
        for hand_over in [HandOver::Frames, HandOver::Blocks] {
            cases.extend(
                counts.iter().map(|count| by_daemon(inputs, (*count, hand_over), bytes, veth.clone())),
            );
        }
        for what in [RING, TCPDUMP] {
            let veth = veth.clone();
            cases.push(receiver(what, bytes, move || {
                veth.clone()?;
                if what == RING { by_ring(inputs, bytes) } else { by_tcpdump(inputs, bytes) }
            }));
        }
    }
    for count in [0, 10, usize::MAX] {
        cases.push(by_nft(inputs, count, veth.clone()));
    }
    for count in [1, 10, usize::MAX] {
        cases.push(by_switch(inputs, count, veth.clone()));
    }
    cases.extend(af_xdp::cases(inputs, &veth));
    cases.extend(idle(inputs, &veth));
    cases.push(reloads(inputs));
    cases
}

/// What a receiver got.
struct Received {
    packets_per_second: f64,
    /// The share of one core.
    core_share: f64,
}

/// A case with three rows: packets, processor time, and processor time per received packet.
fn receiver<'c>(
    what: &str,
    bytes: u32,
    mut receive: impl FnMut() -> Result<Received, String> + 'c,
) -> Case<'c> {
    let rows = [("", "Mpps"), (PROCESSOR_TIME, "% of a core"), (PER_PACKET, "ns")].map(|(suffix, unit)| {
        let mut row = Row::new(TABLE, format!("{what}{suffix}"), bytes, unit);
        row.command = own_command(TABLE);
        row
    });
    let run = Box::new(move || {
        let Received { packets_per_second, core_share } = receive()?;
        if packets_per_second <= 0.0 {
            return Err("no packet was received".to_owned());
        }
        let per_packet_ns = core_share * 1e9 / packets_per_second;
        Ok(vec![packets_per_second / 1e6, core_share * 100.0, per_packet_ns])
    });
    Case { rows: rows.into(), run }
}

pub(super) fn wire(interface: &str) -> Result<AfPacketWire, String> {
    let config = AfPacketConfig {
        interface: interface.to_owned(),
        promiscuous: false,
        ring_frames: 4096,
        merged: MergedFrames::Split,
        busy_poll: false,
        hand_over: HandOver::Frames,
    };
    AfPacketWire::open(&config).map_err(|error| error.to_string())
}

/// A thread on the other core that sends without pause.
struct Sending {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sending {
    fn start(inputs: &Inputs, bytes: u32) -> Result<Self, String> {
        Self::of(&inputs.set("acl1_1k")?.rules, bytes)
    }

    /// Sends packets of these rules.
    fn of(rules: &[Rule], bytes: u32) -> Result<Self, String> {
        let frames: Vec<Vec<u8>> = Trace::of(rules, FLOWS).frames(bytes).collect();
        let mut wire = wire(SENDER)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            pin(OTHER_CORE);
            for burst in frames.chunks(32).cycle() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                // A full ring is flushed with what it has.
                let _ = burst.iter().try_for_each(|frame| wire.transmit(frame));
                wire.flush();
            }
        });
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn options(policy: &str, wire: String) -> DaemonOptions<'_> {
    DaemonOptions {
        wire,
        second_wire: None,
        policy,
        personality: "ideal",
        provider: Provider::SoftNic,
        engine_core: CORE,
        worker_core: CORE,
    }
}

fn af_packet(hand_over: HandOver) -> String {
    let hand_over = if hand_over == HandOver::Blocks { "blocks" } else { "frames" };
    format!("{{ kind = 'af_packet', interface = '{RECEIVER}', hand_over = '{hand_over}' }}")
}

/// The daemon with so many rules of acl1_1k, or all. Its processor time is that of the engine and of the
/// worker.
fn by_daemon(
    inputs: &Inputs,
    (count, hand_over): (usize, HandOver),
    bytes: u32,
    veth: Result<(), String>,
) -> Case<'_> {
    let (name, rules) = delivered_rules(inputs, count);
    let policy = rules.map(|rules| rules.delivering().policy_text());
    let kind = if hand_over == HandOver::Blocks { BLOCKS } else { "" };
    receiver(&format!("{OWN}{kind}, {name}"), bytes, move || {
        veth.clone()?;
        received_by_daemon(inputs, &policy.clone()?, af_packet(hand_over), bytes)
    })
}

fn received_by_daemon(inputs: &Inputs, policy: &str, wire: String, bytes: u32) -> Result<Received, String> {
    let daemon = Daemon::start(&inputs.subfolder("interface")?, &options(policy, wire))?;
    let _sending = Sending::start(inputs, bytes)?;
    std::thread::sleep(WARM_UP);
    let (before, begun) = (daemon.thread_times()?, Instant::now());
    let packets_per_second = daemon.rate(inputs.round(MILLISECONDS))?;
    let [engine, worker] = shares(before, daemon.thread_times()?, begun.elapsed());
    Ok(Received { packets_per_second, core_share: engine + worker })
}

/// Of the engine and of the worker.
fn shares(before: ThreadTimes, after: ThreadTimes, time: Duration) -> [f64; 2] {
    [after.engine.saturating_sub(before.engine), after.worker.saturating_sub(before.worker)]
        .map(|used| used.as_secs_f64() / time.as_secs_f64())
}

fn by_ring(inputs: &Inputs, bytes: u32) -> Result<Received, String> {
    counted_by_wire(inputs, &mut wire(RECEIVER)?, bytes)
}

fn counted_by_wire(inputs: &Inputs, wire: &mut impl Wire, bytes: u32) -> Result<Received, String> {
    let _sending = Sending::start(inputs, bytes)?;
    count(wire, WARM_UP);
    let time = inputs.round(MILLISECONDS);
    let (before, begun) = (own_time(), Instant::now());
    let counted = count(wire, time);
    let seconds = begun.elapsed().as_secs_f64();
    let used = own_time().saturating_sub(before).as_secs_f64();
    Ok(Received { packets_per_second: counted as f64 / seconds, core_share: used / seconds })
}

/// Counts the frames of a wire, and sleeps a little while there are none.
fn count(wire: &mut impl Wire, time: Duration) -> u64 {
    let (end, mut counted) = (Instant::now() + time, 0);
    while Instant::now() < end {
        let mut burst = Burst::new();
        wire.receive(&mut burst);
        counted += burst.len() as u64;
        if burst.is_empty() {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    counted
}

/// The processor time of this thread.
fn own_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0))
}

fn by_tcpdump(inputs: &Inputs, bytes: u32) -> Result<Received, String> {
    let tool = CaptureTool::Tcpdump;
    let capture = tool.start(CORE, RECEIVER, Path::new("/dev/null"), (256, 8))?;
    let before = capture.processor_time();
    let begun = Instant::now();
    let sending = Sending::start(inputs, bytes)?;
    std::thread::sleep(WARM_UP + inputs.round(MILLISECONDS));
    drop(sending);
    let seconds = begun.elapsed().as_secs_f64();
    std::thread::sleep(tool.settles());
    let used = capture.processor_time().zip(before).map(|(after, before)| after.saturating_sub(before));
    let messages = capture.stop()?;
    let captured =
        messages.iter().find_map(|line| line.strip_suffix(" packets captured")?.parse::<u64>().ok());
    let captured = captured.ok_or_else(|| format!("tcpdump did not count: {}", messages.join(" / ")))?;
    let used = used.ok_or("no time in /proc")?.as_secs_f64();
    Ok(Received { packets_per_second: captured as f64 / seconds, core_share: used / seconds })
}

/// So many rules of acl1_1k, or all, and their name.
fn some_rules(inputs: &Inputs, count: usize) -> (String, Result<RuleSet, String>) {
    let set = inputs.set("acl1_1k");
    let name = match (count, &set) {
        (usize::MAX, Ok(set)) => set.name.clone(),
        (usize::MAX, Err(_)) => "acl1_1k".to_owned(),
        (count, _) => format!("{count} rules"),
    };
    let some = set.map(|set| if count < set.rules.len() { set.sample(count) } else { set });
    (name, some)
}

/// The same, with the last rule for all other packets, which [`RuleSet::delivering`] adds, among `count`.
fn delivered_rules(inputs: &Inputs, count: usize) -> (String, Result<RuleSet, String>) {
    match count {
        1 => (one_rule().name, Ok(one_rule())),
        usize::MAX => some_rules(inputs, count),
        count => (format!("{count} rules"), some_rules(inputs, count - 1).1),
    }
}

/// A row of short frames.
fn row(what: String, unit: &'static str) -> Row {
    let mut row = Row::new(TABLE, what, SIZES[0], unit);
    row.command = own_command(TABLE);
    row
}

/// The kernel itself, with the rules before its network stack.
fn by_nft(inputs: &Inputs, count: usize, veth: Result<(), String>) -> Case<'_> {
    let (name, rules) = some_rules(inputs, count);
    Case::new(row(format!("nft ingress, {name}"), "Mpps"), move || {
        veth.clone()?;
        at_ingress(inputs, &rules.clone()?.rules)
    })
}

/// The rate of the interface while nft has these rules at its ingress.
fn at_ingress(inputs: &Inputs, rules: &[Rule]) -> Result<f64, String> {
    let load = |name: &str, text: &str| {
        let file = inputs.folder.join(name);
        std::fs::write(&file, text).map_err(|error| error.to_string())?;
        load_here(&file)
    };
    load("ingress.nft", &ingress(rules, RECEIVER))?;
    let rate = kernel_rate(inputs);
    load("empty.nft", "flush ruleset\n")?;
    rate
}

/// Open vSwitch on the interface, which looks packets up and drops them. Its processor time is that of all
/// its threads.
fn by_switch(inputs: &Inputs, count: usize, veth: Result<(), String>) -> Case<'_> {
    let (name, rules) = delivered_rules(inputs, count);
    receiver(&format!("{}, {name}", switch::NAME), SIZES[0], move || {
        veth.clone()?;
        let send = || Ok(Box::new(Sending::start(inputs, SIZES[0])?) as Box<dyn Any>);
        let (packets_per_second, core_share) = switch::on_interface(inputs, &rules.clone()?, RECEIVER, send)?;
        Ok(Received { packets_per_second, core_share })
    })
}

/// Millions of packets per second that the interface receives.
fn kernel_rate(inputs: &Inputs) -> Result<f64, String> {
    let read = || namespace::received_packets(RECEIVER);
    let _sending = Sending::start(inputs, SIZES[0])?;
    std::thread::sleep(WARM_UP);
    let (before, begun) = (read()?, Instant::now());
    std::thread::sleep(inputs.round(MILLISECONDS));
    Ok((read()? - before) as f64 / begun.elapsed().as_secs_f64() / 1e6)
}

/// The daemon on an interface without traffic.
fn idle<'i>(inputs: &'i Inputs, veth: &Result<(), String>) -> Vec<Case<'i>> {
    let rows = ["engine", "worker"].map(|thread| {
        let mut row =
            Row::new(FOOTPRINT, format!("idle {thread}, AF_PACKET without traffic"), 0, "% of a core");
        row.command = own_command(TABLE);
        row
    });
    let veth = veth.clone();
    let policy = one_rule().delivering().policy_text();
    let run = Box::new(move || {
        veth.clone()?;
        let daemon =
            Daemon::start(&inputs.subfolder("idle")?, &options(&policy, af_packet(HandOver::Frames)))?;
        std::thread::sleep(inputs.round(500));
        let (before, begun) = (daemon.thread_times()?, Instant::now());
        std::thread::sleep(inputs.round(1000));
        let shares = shares(before, daemon.thread_times()?, begun.elapsed());
        Ok(shares.map(|share| share * 100.0).into())
    });
    vec![Case { rows: rows.into(), run }]
}

/// The memory of one daemon, which reloads some more times in every round.
fn reloads(inputs: &Inputs) -> Case<'_> {
    let set = inputs.set("acl1_10k");
    let name = set
        .as_ref()
        .map_or_else(|_| "acl1_10k".to_owned(), |set| format!("{}, {} rules", set.name, set.rules.len()));
    let every = format!("memory with {name}, every {RELOADS} reloads");
    let rows = [format!("memory with {name}, at start"), every].map(|what| {
        let mut row = Row::new(FOOTPRINT, what, 0, "MB");
        row.command = own_command(TABLE);
        row
    });
    let mut running: Option<(Daemon, f64)> = None;
    let run = Box::new(move || {
        let set = set.clone()?;
        let policies = [set.policy_text(), set.with_few_changes().policy_text()];
        if running.is_none() {
            let folder = inputs.subfolder("reloads")?;
            let daemon = Daemon::start(&folder, &options(&policies[0], "{ kind = 'null' }".to_owned()))?;
            let at_start = daemon.resident_megabytes()?;
            running = Some((daemon, at_start));
        }
        let (daemon, at_start) = running.as_ref().ok_or("no daemon")?;
        let count = if inputs.is_quick { 2 } else { RELOADS };
        for turn in 0..count {
            daemon.reload(&policies[(turn + 1) % 2])?;
        }
        Ok(vec![*at_start, daemon.resident_megabytes()?])
    });
    Case { rows: rows.into(), run }
}

/// The daemon beside the others: packets, and processor time per packet. Open vSwitch is beside the daemon
/// with the same rules; the ring and tcpdump, which look nothing up, are beside the daemon with one rule.
pub(crate) fn ratios(_: &Inputs, rows: &[Row]) -> Vec<Ratio> {
    let mut ratios = Vec::new();
    let one_rule = format!("{OWN}, {}", one_rule().name);
    for bytes in SIZES {
        let find = |what: &str| rows.iter().find(|row| row.what == what && row.frame_bytes == bytes);
        for (suffix, unit) in [("", "Mpps"), (PER_PACKET, "ns")] {
            let is_own =
                |row: &&Row| row.what.starts_with(OWN) && row.frame_bytes == bytes && row.unit == unit;
            for own in rows.iter().filter(is_own) {
                let by_frame = own.what.replacen(BLOCKS, "", 1);
                let mut others = vec![by_frame.replacen(OWN, switch::NAME, 1)];
                if by_frame == format!("{one_rule}{suffix}") {
                    let ring = (own.what == by_frame).then_some(RING);
                    others.extend(ring.into_iter().chain([TCPDUMP]).map(|what| format!("{what}{suffix}")));
                }
                ratios.extend(others.iter().filter_map(|what| find(what)).map(|other| Ratio::of(own, other)));
            }
        }
    }
    ratios.extend(af_xdp::ratios(rows));
    ratios
}
