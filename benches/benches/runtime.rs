//! Rules at run time: what they cost a worker per packet, on packets of a million flows in random order, and
//! how many are added and removed a second at 100,000 rules, from a call to the worker that acts by them;
//! beside it, elements added to and deleted from an nftables set of as many in a namespace of its own. One
//! run, medians.
#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use control::{RuntimeOwner, RuntimeRequest, RuntimeRule, RuntimeStore};
use packet::build::FrameBuilder;
use program::{ProtocolNumber, RuntimeMatch, RuntimeRules};
use softnic::Drive;
use steerd_benches::competitors::nft::Namespace;
use steerd_benches::{Rig, median};

const FLOWS: u32 = 1 << 20;
const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(300);
const PULSE: u64 = 2048;
const PATIENCE: Duration = Duration::from_secs(20);
const OWNER: RuntimeOwner = RuntimeOwner { uid: 0, rules_max: None };
/// Rules while the speed of changes is measured, and how many a call changes.
const KEPT: u32 = 100_000;
const CALL: u32 = 5_000;
const CALLS: u32 = 20;

const POLICY: &str = "version = 1\ndefault = 'kernel'\n[groups.every]\nworkers = 'all'\n\
    [[rules]]\nname = 'ip'\nmatch = { protocol = 'udp' }\naction = { steer = 'every' }\n";
const RUNTIME: &str = "[runtime]\nbefore = 'ip'\nmatches = ['src dst protocol src_port dst_port', 'src']\n\
    actions = ['drop']\nrules = 2_000_000\n";

/// Whether the policy allows rules, and how many there are. All of the last are matched, one packet in 1,049
/// of the first.
const VARIANTS: [(bool, u32); 5] = [(false, 0), (true, 0), (true, 1_000), (true, 100_000), (true, FLOWS)];

fn flow(number: u32) -> RuntimeMatch {
    let [a, b, c, d] = number.wrapping_mul(0x9e37_79b1).to_be_bytes();
    let address = |text: String| text.parse().ok();
    RuntimeMatch {
        src: address(format!("10.{b}.{c}.{d}")),
        dst: address(format!("172.16.{a}.{b}")),
        protocol: Some(ProtocolNumber(17)),
        src_port: Some(1024 + (number % 32_768) as u16),
        dst_port: Some(4000),
        vlan: None,
    }
}

/// A capture of a packet of each flow, in another order than that of the rules.
fn write_capture(path: &Path) -> std::io::Result<()> {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    // pcap(5): microseconds, Ethernet.
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.write_all(&word.to_ne_bytes())?;
    }
    for index in 0..FLOWS {
        let number = index.wrapping_mul(0x0005_1ed5) & (FLOWS - 1);
        let RuntimeMatch { src: Some(src), dst: Some(dst), src_port: Some(port), .. } = flow(number) else {
            continue;
        };
        let (std::net::IpAddr::V4(src), std::net::IpAddr::V4(dst)) = (src.address, dst.address) else {
            continue;
        };
        let frame = FrameBuilder::new().ipv4(src, dst).udp(port, 4000).build();
        let length = frame.len() as u32;
        for word in [0, 0, length, length] {
            file.write_all(&word.to_ne_bytes())?;
        }
        file.write_all(&frame)?;
    }
    file.flush()
}

fn rule(number: u32) -> RuntimeRule {
    RuntimeRule { id: format!("f{number}").into(), matches: flow(number), ..RuntimeRule::default() }
}

fn allowed(rig: &Rig) -> Option<RuntimeRules> {
    rig.plane.controller.installed()?.runtime.clone()
}

fn filled(allowed: &RuntimeRules, rules: u32) -> RuntimeStore {
    let mut store = RuntimeStore::default();
    let requests = (0..rules).map(|number| RuntimeRequest::Add(rule(number))).collect();
    store.apply(requests, allowed, OWNER, Instant::now()).expect("they are allowed");
    store
}

/// Gives the first worker of a rig, which nobody runs, these rules.
fn give(rig: &mut Rig, store: &RuntimeStore) {
    let control = rig.plane.workers[0].control();
    std::thread::scope(|scope| {
        let giving = scope.spawn(|| control.replace_runtime_rules(FLOWS, store.entries(), PATIENCE));
        while !giving.is_finished() {
            rig.plane.workers[0].step();
        }
        giving.join().expect("no panic").expect("in time");
    });
}

fn cost_per_packet(capture: &Path) {
    let mut rigs = VARIANTS.map(|(has_runtime, rules)| {
        let policy = format!("{POLICY}{}", if has_runtime { RUNTIME } else { "" });
        let mut rig = Rig::replaying(capture, &policy, Drive::Manual, None);
        if let Some(allowed) = allowed(&rig).filter(|_| rules > 0) {
            let store = filled(&allowed, rules);
            give(&mut rig, &store);
        }
        (has_runtime, rules, rig, Vec::new(), Vec::new())
    });
    for _ in 0..ROUNDS {
        for (.., rig, worker, engine) in &mut rigs {
            let parts = rig.alternate(PULSE, ROUND);
            worker.push(parts.worker_ns);
            engine.push(parts.engine_ns);
        }
    }
    println!(
        "the worker's and the engine's time for a packet of {FLOWS} flows in random order, {ROUNDS} rounds"
    );
    let mut plain = None;
    for (has_runtime, rules, _rig, worker, engine) in rigs {
        let (worker, engine) = (median(worker), median(engine));
        let plain = *plain.get_or_insert(worker);
        let what = if has_runtime { format!("{rules} rules at run time") } else { "no [runtime]".to_owned() };
        println!("{what:<28} {worker:>7.1} ns  {:>+7.1} ns   engine {engine:>7.1} ns", worker - plain);
    }
}

/// Changes a second, from the store to a running worker without traffic, and the median time of a single
/// change.
fn speed_of_changes(capture: &Path) {
    let mut rig = Rig::replaying(capture, &format!("{POLICY}{RUNTIME}"), Drive::Manual, None);
    let Some(allowed) = allowed(&rig) else { return };
    let mut store = filled(&allowed, KEPT);
    give(&mut rig, &store);
    let worker = rig.plane.workers.remove(0).spawn().expect("a thread");
    let control = worker.control();
    let mut timed = |requests: Vec<RuntimeRequest>| {
        let begun = Instant::now();
        let applied = store.apply(requests, &allowed, OWNER, Instant::now()).expect("they are allowed");
        control.change_runtime_rules(applied.changes(), PATIENCE).expect("in time");
        begun.elapsed()
    };
    let (mut adds, mut deletes, mut single) = (Vec::new(), Vec::new(), Vec::new());
    for call in 0..CALLS {
        let numbers = || KEPT + call * CALL..KEPT + (call + 1) * CALL;
        let per_second = |time: Duration| f64::from(CALL) / time.as_secs_f64();
        adds.push(per_second(timed(numbers().map(|number| RuntimeRequest::Add(rule(number))).collect())));
        let remove = |number| RuntimeRequest::Remove(format!("f{number}").into());
        deletes.push(per_second(timed(numbers().map(remove).collect())));
        single.push(timed(vec![RuntimeRequest::Add(rule(KEPT))]).as_secs_f64());
        timed(vec![remove(KEPT)]);
    }
    println!("\nchanges at {KEPT} rules, {CALL} in a call, {CALLS} calls");
    println!(
        "steerd, in the worker        {:>10.0} adds/s {:>10.0} deletes/s",
        median(adds),
        median(deletes)
    );
    println!("steerd, one rule in a call   {:>10.1} us until the worker acts by it", median(single) * 1e6);
    drop(worker.join());
}

fn neighbour(folder: &Path) -> Result<(), String> {
    let namespace = Namespace::new()?;
    let element = |number: u32| {
        let RuntimeMatch { src: Some(src), dst: Some(dst), src_port: Some(port), .. } = flow(number) else {
            return String::new();
        };
        format!("{src} . {dst} . udp . {port} . 4000")
    };
    let listed = |numbers: std::ops::Range<u32>| numbers.map(element).collect::<Vec<_>>().join(", ");
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).map(|()| path).map_err(|error| error.to_string())
    };
    let mut table = "table netdev t {\n set s {\n type ipv4_addr . ipv4_addr . inet_proto . inet_service . inet_service\n".to_owned();
    let _ = writeln!(table, " elements = {{ {} }}\n }}\n}}", listed(0..KEPT));
    namespace.load(&write("set.nft", table)?)?;
    let (mut adds, mut deletes) = (Vec::new(), Vec::new());
    for _ in 0..CALLS {
        let elements = listed(KEPT..KEPT + CALL);
        let add = write("add.nft", format!("add element netdev t s {{ {elements} }}\n"))?;
        let delete = write("delete.nft", format!("delete element netdev t s {{ {elements} }}\n"))?;
        adds.push(f64::from(CALL) / namespace.change(&add)?.as_secs_f64());
        deletes.push(f64::from(CALL) / namespace.change(&delete)?.as_secs_f64());
    }
    println!(
        "nft -f, elements of a set    {:>10.0} adds/s {:>10.0} deletes/s",
        median(adds),
        median(deletes)
    );
    Ok(())
}

fn main() {
    let folder = tempfile::tempdir().expect("a folder");
    let capture = folder.path().join("flows.pcap");
    write_capture(&capture).expect("written");
    cost_per_packet(&capture);
    speed_of_changes(&capture);
    if let Err(why) = neighbour(folder.path()) {
        println!("nft: NOT RUN: {why}");
    }
}
