//! Rules of which workers let only a part of the packets through: who gets how many, and that all are
//! accounted for.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::support::{Rig, compile};
use hugemem::ArenaForecast;
use packet::FlowKey;
use packet::build::FrameBuilder;
use program::{Program, Verdict, WorkerId};
use worker::{ChangeStage, Deliveries, Disposition, SharedStage, Sink, SinkMap, Slot};

fn udp(src_port: u16, dst_port: u16) -> Vec<u8> {
    FrameBuilder::new()
        .ipv4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(192, 0, 2, 1))
        .udp(src_port, dst_port)
        .payload(b"police")
        .build()
}

fn syn(src_port: u16) -> Vec<u8> {
    FrameBuilder::new()
        .ipv4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(192, 0, 2, 1))
        .tcp(src_port, 80, 2)
        .build()
}

/// Packets per worker, as `explain` spreads them.
fn spread(program: &Program, frames: &[Vec<u8>], workers: u32) -> Vec<u64> {
    let to = |worker| {
        let is_its = |frame: &&Vec<u8>| program.explain(&FlowKey::of(frame)).worker == Some(WorkerId(worker));
        frames.iter().filter(is_its).count() as u64
    };
    (0..workers).map(to).collect()
}

const SAMPLED: &str = r#"
version = 1
default = "kernel"
[groups.main]
workers = "all"
[[rules]]
name = "seen"
match = { protocol = "udp", dst_port = 9 }
action = { copy = "main" }
sample = 4
[[rules]]
name = "some"
match = { protocol = "udp" }
action = "steer main"
sample = 10
[[rules]]
name = "syn"
match = { protocol = "tcp", tcp_flags = "syn" }
action = "steer main"
sample = 5
[[rules]]
name = "tcp"
match = { protocol = "tcp" }
action = "steer main"
"#;

#[test]
fn each_worker_samples_the_first_and_every_nth_packet_of_a_rule() {
    let mut rig = Rig::new(1, 2);
    let program = rig.install(SAMPLED);
    let frames: Vec<Vec<u8>> = (0..500).map(|port| udp(1024 + port, 53)).collect();
    rig.send(1, frames.clone());
    rig.send(1, (0..100).map(syn));
    rig.send(1, (0..40).map(|port| udp(1024 + port, 9)));
    rig.settle();

    let to_nine: Vec<Vec<u8>> = (0..40).map(|port| udp(1024 + port, 9)).collect();
    let counts = [spread(&program, &frames, 2), spread(&program, &to_nine, 2)];
    for (worker, snapshot) in rig.snapshots().iter().enumerate() {
        let received = counts[0][worker] + counts[1][worker];
        assert!(received > 100, "worker {worker} has a share");
        let sampled = received.div_ceil(10);
        assert_eq!(snapshot.rule("some", Disposition::Delivered).packets, sampled);
        assert_eq!(snapshot.rule("some", Disposition::NotSampled).packets, received - sampled);
        let copies = snapshot.rule("seen", Disposition::Delivered).packets;
        assert_eq!(copies, counts[1][worker].div_ceil(4), "copies are sampled on their own");
    }
    let syns = rig.ruled("syn", Disposition::Delivered);
    assert!((20..=21).contains(&syns), "each of two workers takes one in 5 of a hybrid rule: {syns}");
    assert_eq!(syns + rig.ruled("syn", Disposition::NotSampled), 100);
    let seen = rig.seen();
    let dropped = seen.iter().filter(|seen| seen.outcome.verdict == Verdict::Drop).count() as u64;
    let refused = ["some", "seen", "syn"].map(|rule| rig.ruled(rule, Disposition::NotSampled));
    assert_eq!(dropped, refused.iter().sum::<u64>(), "an observer sees them as dropped");
    // Copies are received beside the packets, so that `Rig::balance` does not hold.
    rig.snapshots().iter().for_each(|snapshot| assert_eq!(snapshot.imbalance(), 0, "{snapshot:?}"));
}

const LIMITED: &str = r#"
version = 1
default = "kernel"
[groups.main]
weights = { 0 = 3, 1 = 1 }
table_size = 8
[[rules]]
name = "limited"
match = { protocol = "udp" }
action = "steer main"
limit = "1/s"
burst = 16
[[rules]]
name = "free"
match = { protocol = "tcp" }
action = "steer main"
"#;

#[test]
fn workers_divide_a_limit_by_their_shares() {
    let mut rig = Rig::unwitnessed(1, 2);
    rig.install(LIMITED);
    let begun = std::time::Instant::now();
    rig.send(1, (0..1000).map(|port| udp(port, 53)));
    rig.send(1, (0..100).map(syn));
    rig.settle();

    // What a worker earns meanwhile, at less than one packet per second.
    let more = begun.elapsed().as_secs() + 1;
    for (snapshot, burst) in rig.snapshots().iter().zip([12, 4]) {
        let passed = snapshot.rule("limited", Disposition::Delivered).packets;
        assert!((burst..=burst + more).contains(&passed), "{passed} of worker {}", snapshot.id);
        let limited = snapshot.rule("limited", Disposition::RateLimited);
        assert_eq!(limited.bytes, limited.packets * udp(0, 0).len() as u64);
    }
    let counted = [Disposition::Delivered, Disposition::RateLimited].map(|of| rig.ruled("limited", of));
    assert_eq!(counted.iter().sum::<u64>(), 1000);
    assert_eq!(rig.ruled("free", Disposition::Delivered), 100, "another rule is not limited");
    rig.balance();
}

#[test]
fn packets_without_a_field_to_hash_have_the_whole_limit_on_their_worker() {
    let mut rig = Rig::unwitnessed(1, 4);
    rig.install(
        "version = 1\n[groups.g]\nworkers = 'all'\n[[rules]]\nname = 'arp'\nmatch = { ethertype = 'arp' }\n\
         action = 'steer g'\nlimit = '1/s'\nburst = 20\n",
    );
    let arp = || FrameBuilder::new().ether_type(packet::EtherType::ARP).payload(&[0; 28]).build();
    rig.send(1, (0..100).map(|_| arp()));
    rig.settle();
    let passed = rig.ruled("arp", Disposition::Delivered);
    assert!((20..25).contains(&passed), "{passed}: not a quarter of the burst");
    rig.balance();
}

const OF_SOURCES: &str = r#"
version = 1
default = "kernel"
[groups.main]
workers = [0, 1]
[[rules]]
name = "bits"
match = { protocol = "udp" }
action = "steer main"
limit = "8kbit/s"
burst = "960B"
per = { source_ipv4 = 24, sources = 64 }
"#;

/// A frame of 60 bytes without FCS from a host of a network.
fn of_network(network: u32, host: u8, port: u16) -> Vec<u8> {
    with_payload(network, host, port, &[0; 18])
}

/// A frame with a payload from a host of a network.
fn with_payload(network: u32, host: u8, port: u16, payload: &[u8]) -> Vec<u8> {
    let [_, high, low, _] = (network << 8).to_be_bytes();
    FrameBuilder::new()
        .ipv4(Ipv4Addr::new(10, high, low, host), Ipv4Addr::new(192, 0, 2, 1))
        .udp(port, 53)
        .payload(payload)
        .build()
}

#[test]
fn each_source_has_its_part_of_a_limit_on_each_worker() {
    let mut rig = Rig::unwitnessed(1, 2);
    let program = rig.install(OF_SOURCES);
    let begun = std::time::Instant::now();
    let frames: Vec<Vec<u8>> = (0..200).map(|n| of_network(1, 7, 1024 + n)).collect();
    assert_eq!(frames[0].len(), 60);
    assert!(spread(&program, &frames, 2).iter().all(|count| *count > 20), "both workers receive many");
    rig.send(1, frames);
    rig.settle();
    // Half of 960 bytes are 8 frames; 4 kbit/s are 8.3 frames in a second.
    let more = 9 * (begun.elapsed().as_secs() + 1);
    for snapshot in rig.snapshots() {
        let passed = snapshot.rule("bits", Disposition::Delivered).packets;
        assert!((8..=8 + more).contains(&passed), "{passed} of worker {}", snapshot.id);
        assert!(snapshot.rule("bits", Disposition::RateLimited).packets > 0, "{}", snapshot.id);
    }
    // Another network has a bucket of its own.
    let before = rig.ruled("bits", Disposition::Delivered);
    rig.send(1, (0..6).map(|n| of_network(2, n, 7)));
    rig.settle();
    assert_eq!(rig.ruled("bits", Disposition::Delivered), before + 6);
    rig.balance();
}

#[test]
fn packets_beyond_a_full_table_of_sources_are_counted() {
    let mut rig = Rig::unwitnessed(1, 1);
    rig.install(&OF_SOURCES.replace("[0, 1]", "[0]").replace("960B", "1B"));
    // Far more networks than 128 places, of which each is in debt for 1.5 s; 1500 bytes from each.
    for _ in 0..4 {
        rig.send(1, (0..500).map(|network| with_payload(network, 1, 7, &[0; 1458])));
        rig.settle();
    }
    let [delivered, limited, overflow] =
        [Disposition::Delivered, Disposition::RateLimited, Disposition::SourceOverflow]
            .map(|disposition| rig.ruled("bits", disposition));
    assert_eq!(delivered + limited + overflow, 2000);
    assert!(overflow > 0 && delivered >= 128, "{delivered} {limited} {overflow}");
    rig.balance();
}

struct Counts(Arc<AtomicU64>);

impl Sink for Counts {
    fn run(&mut self, packets: &mut Deliveries<'_>) {
        self.0.fetch_add(packets.iter().count() as u64, Relaxed);
    }
}

#[test]
fn sinks_get_what_is_let_through_and_a_reload_begins_anew() {
    const POLICY: &str = "version = 1\ndefault = 'kernel'\n[sinks.s]\nkind = 'count'\n[groups.g]\nworkers = [0]\n\
        sinks = 's'\n[[rules]]\nname = 'some'\nmatch = { protocol = 'udp' }\naction = 'steer g'\nsample = 10\n";
    let mut rig = Rig::unwitnessed(1, 1);
    let got = Arc::new(AtomicU64::new(0));
    let slot = Slot::of(0).expect("the first");
    let program = compile(POLICY, 1);
    let map = Arc::new(SinkMap::new(1, &program, &[slot]));
    {
        let mut workers = rig.workers.borrow_mut();
        let control = workers[0].control();
        control.place_sink(slot, Some(Box::new(Counts(Arc::clone(&got)))));
        workers[0].step();
    }
    for reloads in 1..=2 {
        let (workers, map) = (std::rc::Rc::clone(&rig.workers), Arc::clone(&map));
        let publish = &mut |stage: &ChangeStage| {
            let mut workers = workers.borrow_mut();
            let publication = workers[0].control().publish_shared(&SharedStage::new(stage, &map));
            while !workers[0].control().acknowledged(publication) {
                workers[0].step();
            }
            Ok(())
        };
        rig.controller.install(Arc::clone(&program), publish).expect("it is installed");
        rig.send(1, (0..25).map(|port| udp(port, 53)));
        rig.settle();
        assert_eq!(got.load(Relaxed), 3 * reloads, "of 25 packets the 1st, 11th and 21st");
    }
    assert_eq!(rig.ruled("some", Disposition::NotSampled), 2 * 22);
    rig.balance();
}

#[test]
fn tables_beyond_the_memory_are_refused() {
    const POLICY: &str = "version = 1\n[groups.g]\nworkers = 'all'\n[[rules]]\nname = 'r'\nmatch = { protocol = 'udp' }\n\
        action = 'steer g'\n";
    const LIMIT: &str = "limit = '1/s'\nper = { sources = 1048576 }\n";
    let forecast = |policy: &str, workers| {
        worker::forecast_tables(&compile(policy, 1), workers, &mut ArenaForecast::default())
    };
    // Petabytes, but no table.
    forecast(POLICY, 1 << 24).expect("it has no table");
    let error = forecast(&format!("{POLICY}{LIMIT}"), 1 << 24).expect_err("no host has so much").to_string();
    assert!(error.contains("MiB on all workers together") && error.contains("`sources`"), "{error}");
    let export = POLICY.replace(
        "workers = 'all'",
        "workers = 'all'\nsinks = ['s']\n[sinks.s]\nkind = 'count'\n\
        export = 'ipfix://127.0.0.1:4739'",
    );
    forecast(&export, 1).expect("it fits");
    forecast(&export, 1 << 24).expect_err("no host has so much");
}
