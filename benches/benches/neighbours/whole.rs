//! The whole daemon on two cores: a capture replayed by the soft NIC's engine on one, received by the worker
//! on the other, beside two testpmd that hand packets from one core to the other through `net_memif`, which
//! copies them.
//!
//! testpmd's `txonly` sends one packet over and over; its `io` sends the same capture as the daemon gets,
//! from `net_pcap`, which copies it as well. Neither parses, looks up or hashes. Open vSwitch on DPDK gets
//! that capture in the same way, looks packets up by the same rules, and hands them to a testpmd.

use std::path::Path;
use std::time::{Duration, Instant};

use softnic::Drive;
use steerd_benches::Rig;
use steerd_benches::comparison::{Case, Ratio};
use steerd_benches::competitors::{Testpmd, TestpmdOptions};
use steerd_benches::daemon::{Daemon, DaemonOptions, Provider};
use steerd_benches::rules::RuleSet;
use steerd_benches::table::Row;

use super::inputs::{Inputs, Replay, Traffic, looped, one_rule};
use super::{CORE, OTHER_CORE, SIZES, own_command, switch};

pub(crate) const TABLE: &str = "daemon";
const OWN: &str = "daemon";
const TXONLY: &str = "testpmd txonly, net_memif, testpmd rxonly";
const IO: &str = "testpmd io (net_pcap), net_memif, testpmd rxonly";
const FEW: Traffic = Traffic::Flows(1000);
const MILLISECONDS: u64 = 500;
/// Until caches are warm.
const WARM_UP: Duration = Duration::from_millis(150);
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn cases(inputs: &Inputs) -> Vec<Case<'_>> {
    let mut cases = Vec::new();
    let lists = inputs.set("acl1_1k");
    for bytes in SIZES {
        match &lists {
            Ok(lists) => {
                cases.extend(daemons(inputs, lists, bytes));
                let traffic = inputs.replay(lists, FEW, bytes);
                cases.extend([TXONLY, IO].map(|what| pair(inputs, what, &traffic, bytes)));
            }
            Err(why) => cases.push(Case::missing(row("daemon, acl1_1k", bytes), why)),
        }
    }
    match inputs.set("acl1_10k") {
        Ok(large) => {
            let traffics = [FEW, Traffic::Flows(100_000)];
            cases.extend(traffics.map(|traffic| daemon(inputs, &large, (&large, traffic), SIZES[0])));
            cases.extend(traffics.map(|traffic| switch(inputs, &large, (&large, traffic))));
        }
        Err(why) => cases.push(Case::missing(row("daemon, acl1_10k", SIZES[0]), &why)),
    }
    cases
}

/// The daemon with one rule, ten and all, with more flows, and within this process.
fn daemons<'i>(inputs: &'i Inputs, lists: &RuleSet, bytes: u32) -> Vec<Case<'i>> {
    let ten = lists.sample(9);
    let mut cases = vec![
        daemon(inputs, &one_rule(), (lists, FEW), bytes),
        daemon(inputs, &RuleSet { name: "10 rules".to_owned(), ..ten.clone() }, (&ten, FEW), bytes),
        daemon(inputs, lists, (lists, FEW), bytes),
    ];
    if bytes == SIZES[0] {
        let more = [Traffic::Flows(100_000), Traffic::Flows(1_000_000), Traffic::Random(100_000)];
        cases.extend(more.map(|traffic| daemon(inputs, lists, (lists, traffic), bytes)));
        cases.extend([&one_rule(), lists].map(|rules| in_process(inputs, rules, lists, bytes)));
        let few = [(one_rule(), lists), (RuleSet { name: "10 rules".to_owned(), ..ten.clone() }, &ten)];
        cases.extend(few.map(|(rules, from)| switch(inputs, &rules, (from, FEW))));
        let traffics = [FEW, Traffic::Flows(100_000), Traffic::Random(100_000)];
        cases.extend(traffics.map(|traffic| switch(inputs, lists, (lists, traffic))));
    }
    cases
}

fn row(what: impl Into<String>, bytes: u32) -> Row {
    let mut row = Row::new(TABLE, what, bytes, "Mpps");
    row.command = own_command(TABLE);
    row
}

fn what(kind: &str, rules: &RuleSet, traffic: Traffic) -> String {
    format!("{kind}, {}, {}", rules.name, traffic.name())
}

/// A daemon with these rules; the traffic is drawn from a rule set.
fn daemon<'i>(
    inputs: &'i Inputs,
    rules: &RuleSet,
    (from, traffic): (&RuleSet, Traffic),
    bytes: u32,
) -> Case<'i> {
    let mut row = row(what(OWN, rules, traffic), bytes);
    let replay = match inputs.replay(from, traffic, bytes) {
        Ok(replay) => replay,
        Err(why) => return Case::missing(row, &why),
    };
    row.note = format!("{} flows", replay.flows);
    let policy = rules.delivering().policy_text();
    Case::new(row, move || {
        let options = DaemonOptions {
            wire: looped(&replay.capture),
            second_wire: None,
            policy: &policy,
            personality: "ideal",
            provider: Provider::SoftNic,
            engine_core: CORE,
            worker_core: OTHER_CORE,
        };
        let daemon = Daemon::start(&inputs.subfolder("daemon")?, &options)?;
        std::thread::sleep(WARM_UP);
        daemon.rate(inputs.round(MILLISECONDS)).map(|rate| rate / 1e6)
    })
}

/// The same engine and worker as threads of this process, without API, control loop and metrics.
fn in_process<'i>(inputs: &'i Inputs, rules: &RuleSet, from: &RuleSet, bytes: u32) -> Case<'i> {
    let row = row(what("engine and worker in the bench", rules, FEW), bytes);
    let replay = match inputs.replay(from, FEW, bytes) {
        Ok(replay) => replay,
        Err(why) => return Case::missing(row, &why),
    };
    let policy = rules.delivering().policy_text();
    Case::new(row, move || {
        let rig =
            Rig::replaying(&replay.capture, &policy, Drive::Thread { core: Some(CORE) }, Some(OTHER_CORE));
        Ok(rig.rate(inputs.round(MILLISECONDS)) / 1e6)
    })
}

/// Open vSwitch with the same rules and traffic.
fn switch<'i>(inputs: &'i Inputs, rules: &RuleSet, (from, traffic): (&RuleSet, Traffic)) -> Case<'i> {
    let row = row(what(switch::NAME, rules, traffic), SIZES[0]);
    switch::on_dpdk(inputs, rules, (from, traffic), row)
}

fn pair<'i>(inputs: &'i Inputs, what: &str, replay: &Result<Replay, String>, bytes: u32) -> Case<'i> {
    let mut row = Row::new(TABLE, what, bytes, "Mpps");
    let started = replay.clone().and_then(|replay| {
        let source = (what == IO).then_some(&replay);
        Pair::start(&inputs.folder, source, bytes)
    });
    match started {
        Ok(mut pair) => {
            row.command.clone_from(&pair.command);
            Case::new(row, move || pair.rate(inputs.round(MILLISECONDS)).map(|rate| rate / 1e6))
        }
        Err(why) => Case::missing(row, &why),
    }
}

/// Two testpmd. They wait between rounds, which takes no processor time.
struct Pair {
    sender: Testpmd,
    receiver: Testpmd,
    command: String,
}

impl Pair {
    /// The sender makes packets, or gets them from a capture.
    fn start(folder: &Path, source: Option<&Replay>, bytes: u32) -> Result<Self, String> {
        let kind = if source.is_some() { "io" } else { "txonly" };
        let socket = folder.join(format!("{kind}-{bytes}.sock"));
        // Of an earlier run whose files were kept.
        let _ = std::fs::remove_file(&socket);
        let memif = |role: &str| {
            format!("net_memif0,role={role},id=0,socket={},socket-abstract=no,rsize=12", socket.display())
        };
        let capture = source.map(|source| super::one_core::replayed(&source.capture));
        let devices: Vec<String> = [memif("server")].into_iter().chain(capture).collect();
        let sending = TestpmdOptions {
            devices: &devices,
            mode: kind,
            core: CORE,
            prompt_core: OTHER_CORE,
            packet_bytes: bytes,
            stored_packets: source.map_or(0, |source| source.flows as u32 + 4096),
            queues: 1,
        };
        let devices = [memif("client")];
        let receiving = TestpmdOptions::receiver(&devices, (OTHER_CORE, CORE), bytes);
        let command = format!("{} & {}", sending.command(), receiving.command());
        let mut pair =
            Self { sender: Testpmd::start(&sending)?, receiver: Testpmd::start(&receiving)?, command };
        pair.flow(true);
        let deadline = Instant::now() + PATIENCE;
        while pair.receiver.received()? == 0 {
            if Instant::now() > deadline {
                return Err("no packets arrive".to_owned());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        pair.flow(false);
        Ok(pair)
    }

    fn flow(&mut self, is_on: bool) {
        let word = if is_on { "start" } else { "stop" };
        self.receiver.command(word);
        self.sender.command(word);
    }

    fn rate(&mut self, time: Duration) -> Result<f64, String> {
        self.flow(true);
        std::thread::sleep(WARM_UP);
        let rate = self.receiver.rate(time);
        self.flow(false);
        rate
    }
}

/// The daemon beside both pairs and the switch, and with many flows beside few.
pub(crate) fn ratios(inputs: &Inputs, rows: &[Row]) -> Vec<Ratio> {
    let mut ratios = Vec::new();
    // Without ClassBench the set has another name.
    let large = inputs.set("acl1_10k").map_or_else(|_| "acl1_10k".to_owned(), |set| set.name);
    let large = format!("{OWN}, {large}");
    let rows: Vec<&Row> = rows.iter().filter(|row| row.table == TABLE).collect();
    let find = |what: &str, bytes| rows.iter().find(|row| row.what == what && row.frame_bytes == bytes);
    for own in rows.iter().filter(|row| row.what.starts_with(OWN)) {
        let pairs = if own.what.starts_with(&large) { &[][..] } else { &[TXONLY, IO] };
        let switch = own.what.replacen(OWN, switch::NAME, 1);
        let others =
            pairs.iter().copied().chain([switch.as_str()]).filter_map(|what| find(what, own.frame_bytes));
        ratios.extend(others.map(|other| Ratio::of(own, other)));
    }
    let many_and_few =
        [Traffic::Flows(100_000), FEW].map(|traffic| find(&format!("{large}, {}", traffic.name()), SIZES[0]));
    if let [Some(many), Some(few)] = many_and_few {
        ratios.push(Ratio::of(many, few));
    }
    ratios
}
