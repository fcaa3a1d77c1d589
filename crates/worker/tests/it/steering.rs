//! Policies on a soft NIC, one kind of rule at a time: where each packet ends up, and that the books
//! balance.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use crate::support::{self, Rig};
use packet::build::FrameBuilder;
use packet::{EtherType, FlowKey};
use program::{ClassId, Program, Verdict, WorkerId};
use worker::{Disposition, Failure, WorkerConfig};

fn udp(dst: [u8; 4], src_port: u16, dst_port: u16) -> Vec<u8> {
    FrameBuilder::new()
        .ipv4(Ipv4Addr::new(10, 0, 0, 1), dst.into())
        .udp(src_port, dst_port)
        .payload(b"steer")
        .build()
}

fn tcp(dst_port: u16, flags: u8) -> Vec<u8> {
    FrameBuilder::new()
        .ipv4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(192, 0, 2, 80))
        .tcp(40_000, dst_port, flags)
        .build()
}

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

#[test]
fn a_worker_has_all_it_asked_for_and_its_rings_in_its_own_arena() {
    let rig = Rig::new(1, 2);
    for worker in rig.workers.borrow().iter() {
        assert_eq!(worker.control().warnings(), [], "worker {}", worker.id());
        assert_eq!(worker.work_queue().state(), verbs::WorkQueueState::Ready);
        let snapshot = worker.control().snapshot();
        assert_eq!(snapshot.posted, u64::from(worker.config().frames), "every frame waits for a packet");
    }
}

#[test]
fn a_steered_rule_reaches_its_groups_workers_with_its_bytes_and_the_rest_the_kernel() {
    let mut rig = Rig::new(1, 3);
    let program = rig.install(
        r#"
        version = 1
        default = "kernel"
        [groups.dns]
        workers = [1, 2]
        hash = "l3l4"
        [[rules]]
        name = "dns"
        match = { protocol = "udp", dst_port = 53 }
        action = { steer = "dns" }
        "#,
    );
    let wanted: Vec<Vec<u8>> = (0..200).map(|port| udp([192, 0, 2, 53], 1024 + port, 53)).collect();
    rig.send(1, wanted.iter().cloned());
    rig.send(1, (0..50).map(|port| udp([192, 0, 2, 53], 1024 + port, 54)));
    rig.settle();

    assert_eq!(rig.ruled("dns", Disposition::Delivered), 200);
    assert_eq!(rig.port(1).unmatched, 50);
    assert_eq!(rig.port(1).rx_frames, 250);
    let bytes: u64 = rig.snapshots().iter().map(|snapshot| snapshot.received.bytes).sum();
    assert_eq!(bytes, wanted.iter().map(|frame| frame.len() as u64).sum::<u64>());
    let seen = rig.seen();
    assert!(seen.iter().all(|seen| matches!(seen.outcome.verdict, Verdict::Deliver(_))));
    let busy = |worker| seen.iter().filter(|seen| seen.worker == WorkerId(worker)).count();
    assert!(busy(0) == 0 && busy(1) > 50 && busy(2) > 50, "{} {} {}", busy(0), busy(1), busy(2));
    for seen in &seen {
        assert!(wanted.contains(&seen.bytes), "a packet arrives as it was sent");
        assert_eq!(program.explain(&FlowKey::of(&seen.bytes)).worker, Some(seen.worker));
    }
    rig.balance();
}

#[test]
fn a_dropping_rule_drops_in_hardware_and_is_counted_there() {
    let mut rig = Rig::new(1, 1);
    rig.install(
        r#"
        version = 1
        default = "kernel"
        [groups.every]
        workers = "all"
        [[rules]]
        name = "bad"
        match = { dst = "192.0.2.66" }
        action = "drop"
        [[rules]]
        name = "good"
        match = { dst = "192.0.2.0/24" }
        action = { steer = "every" }
        "#,
    );
    let bad = udp([192, 0, 2, 66], 1, 1);
    let length = bad.len() as u64;
    rig.send(1, vec![bad; 7]);
    rig.send(1, vec![udp([192, 0, 2, 67], 1, 1); 5]);
    rig.settle();
    let totals = rig.controller.drop_counters();
    assert_eq!((totals[0].rule.as_str(), totals[0].packets, totals[0].bytes), ("bad", 7, 7 * length));
    assert_eq!(rig.ruled("good", Disposition::Delivered), 5);
    assert_eq!(rig.port(1).flow_dropped, 7);
    rig.balance();
}

#[test]
fn a_hybrid_rule_is_finished_in_software_first_match_wins() {
    let mut rig = Rig::new(1, 1);
    let program = rig.install(
        r#"
        version = 1
        default = "kernel"
        [groups.every]
        workers = "all"
        [[rules]]
        name = "syn"
        match = { protocol = "tcp", dst_port = 80, tcp_flags = "syn,!ack" }
        action = "drop"
        [[rules]]
        name = "web"
        match = { protocol = "tcp", dst_port = [80, 443] }
        action = { steer = "every" }
        [[rules]]
        name = "odd"
        match = { protocol = "tcp", dst_port = 22, tcp_flags = "syn" }
        action = { steer = "every" }
        "#,
    );
    rig.send(1, vec![tcp(80, SYN); 3]);
    rig.send(1, vec![tcp(80, SYN | ACK); 4]);
    rig.send(1, vec![tcp(443, SYN); 5]);
    rig.send(1, vec![tcp(22, SYN); 2]);
    rig.send(1, vec![tcp(22, ACK); 6]);
    let mut cut = tcp(80, SYN);
    cut.truncate(14 + 20 + 10);
    rig.send(1, vec![cut]);
    rig.settle();
    assert_eq!(rig.ruled("syn", Disposition::Dropped), 3);
    assert_eq!(rig.ruled("web", Disposition::Delivered), 4 + 5);
    assert_eq!(rig.ruled("odd", Disposition::Delivered), 2);
    assert_eq!(rig.ruled("default", Disposition::LostException), 6, "the kernel's, lost in the worker");
    assert_eq!(rig.port(1).unmatched, 1, "without a whole TCP header it is not TCP");
    for seen in rig.seen() {
        assert_eq!(program.explain(&FlowKey::of(&seen.bytes)).outcome, seen.outcome);
    }
    rig.balance();
}

#[test]
fn anomalies_are_counted_where_a_packet_is_parsed_and_only_there() {
    let mut rig = Rig::new(1, 1);
    let policy = |matches: &str| {
        format!(
            "version = 1\ndefault = \"kernel\"\n[groups.every]\nworkers = \"all\"\n\
             [[rules]]\nname = \"ip\"\nmatch = {matches}\naction = {{ steer = \"every\" }}\n"
        )
    };
    // A total length beyond the frame: a note, not a reason to drop.
    let mut odd = udp([192, 0, 2, 1], 1, 1);
    odd[16..18].copy_from_slice(&2000u16.to_be_bytes());
    let anomalies = |rig: &Rig| rig.snapshots()[0].anomalies.iter().map(|(_, count)| count).sum::<u64>();

    rig.install(&policy(r#"{ family = "ipv4" }"#));
    rig.send(1, vec![odd.clone(); 3]);
    rig.settle();
    assert_eq!((rig.ruled("ip", Disposition::Delivered), anomalies(&rig)), (3, 0), "exact: never parsed");

    rig.install(&policy(r#"{ family = "ipv4", fragment = "none" }"#));
    rig.send(1, vec![odd; 3]);
    rig.settle();
    assert_eq!((rig.ruled("ip", Disposition::Delivered), anomalies(&rig)), (6, 3), "hybrid: parsed");
    rig.balance();
}

#[test]
fn the_default_takes_what_no_rule_claims() {
    let frames = || {
        let arp =
            FrameBuilder::new().arp_request(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)).build();
        let tagged = FrameBuilder::new().vlan(EtherType::VLAN, 7).ether_type(EtherType(0x88b5)).build();
        let six = FrameBuilder::new().ip(IpAddr::V6(1.into()), IpAddr::V6(2.into())).udp(5, 6).build();
        vec![arp, tagged, six, udp([192, 0, 2, 1], 1, 1), vec![0xff; 60]]
    };
    for default in ["kernel", "drop", "steer every"] {
        let mut rig = Rig::new(2, 2);
        rig.install(&format!(
            "version = 1\ndefault = \"{default}\"\n[groups.every]\nworkers = \"all\"\nhash = \"l3l4\"\n"
        ));
        rig.send(1, frames());
        rig.send(2, frames());
        rig.settle();
        for port in [1, 2] {
            let stats = rig.port(port);
            let expected = match default {
                "kernel" => (5, 0, 0),
                "drop" => (0, 5, 0),
                _ => (0, 0, 5),
            };
            assert_eq!((stats.unmatched, stats.flow_dropped, stats.delivered), expected, "{default}");
        }
        let delivered = if default == "steer every" { 10 } else { 0 };
        assert_eq!(rig.ruled("default", Disposition::Delivered), delivered);
        rig.balance();
    }
}

#[test]
fn a_packet_longer_than_its_frame_is_a_failure_and_no_packet_of_the_workers() {
    let short_frames = |id| WorkerConfig { frame_bytes: 129, ..support::small(id) };
    let mut rig = Rig::built_with(1, 1, true, short_frames);
    rig.install("version = 1\ndefault = \"steer every\"\n[groups.every]\nworkers = \"all\"\n");
    let of = |bytes| FrameBuilder::new().udp(1, 2).frame_bytes(bytes).build();
    rig.send(1, [of(60), of(193), of(192), of(1500)]);
    rig.settle();
    assert_eq!((rig.port(1).delivered, rig.port(1).oversize), (2, 2));
    let snapshot = &rig.snapshots()[0];
    assert_eq!((snapshot.received.packets, snapshot.received.bytes), (2, 60 + 192));
    assert_eq!(snapshot.failures[Failure::Length as usize], (Failure::Length, 2));
    assert_eq!(rig.seen().len(), 2);
    rig.balance();
}

#[test]
fn every_port_is_steered_and_tags_carry_the_class() {
    let mut rig = Rig::new(2, 1);
    let policy = "version = 1\ndefault = \"kernel\"\n[groups.every]\nworkers = \"all\"\n\
                  [[rules]]\nname = \"udp\"\nmatch = { protocol = \"udp\" }\naction = { steer = \"every\" }\n";
    let mut last: Option<Arc<Program>> = None;
    for _ in 0..3 {
        let installed = rig.install(policy);
        rig.send(1, vec![udp([192, 0, 2, 1], 1, 1)]);
        rig.send(2, vec![udp([192, 0, 2, 1], 1, 1)]);
        rig.settle();
        let seen = rig.seen();
        assert_eq!(seen.len(), 2);
        assert!(seen.iter().all(|seen| ClassId::of_tag(seen.tag).is_some_and(|class| class == ClassId(0))));
        let worker = &rig.workers.borrow()[0];
        let mut programs = worker.programs();
        assert!(programs.next().is_some_and(|program| Arc::ptr_eq(program, &installed)));
        // A packet may still come by a flow that is gone: its classes stay until the next change.
        let before = last.replace(installed);
        assert!(match (programs.next(), &before) {
            (Some(program), Some(before)) => Arc::ptr_eq(program, before),
            (program, before) => program.is_none() && before.is_none(),
        });
    }
    assert_eq!(rig.ruled("udp", Disposition::Delivered), 6);
    rig.balance();
}

#[test]
fn every_iteration_is_counted_and_in_the_distribution_of_batches() {
    let mut rig = Rig::new(1, 1);
    rig.install("version = 1\ndefault = \"steer every\"\n[groups.every]\nworkers = \"all\"\n");
    let before = rig.snapshots().remove(0);
    rig.send(1, vec![udp([192, 0, 2, 1], 1, 1); 40]);
    while rig.nic.pump(64) > 0 {}
    // Batches of 32: two iterations with packets, then three without.
    let taken: Vec<usize> = (0..5).map(|_| rig.workers.borrow_mut()[0].step()).collect();
    assert_eq!(taken, [32, 8, 0, 0, 0]);
    let after = rig.snapshots().remove(0);
    assert_eq!(after.iterations - before.iterations, 5);
    assert_eq!(after.empty_iterations - before.empty_iterations, 3);
    // Distributions are published after many iterations.
    while rig.snapshots().remove(0).batches.count() == 0 {
        assert!(rig.snapshots().remove(0).iterations < 10_000, "never published");
        rig.workers.borrow_mut()[0].step();
    }
    let all = rig.snapshots().remove(0);
    let batches = &all.batches;
    assert_eq!((batches.count(), batches.sum()), (all.iterations, 40));
    assert_eq!(batches.at_most(0), all.iterations - 2);
    assert_eq!(
        (batches.at_most(8), batches.at_most(31), batches.at_most(32)),
        (all.iterations - 1, all.iterations - 1, all.iterations)
    );
}

#[test]
fn after_clearing_everything_is_the_kernels() {
    let mut rig = Rig::new(1, 1);
    rig.install("version = 1\ndefault = \"steer every\"\n[groups.every]\nworkers = \"all\"\n");
    rig.controller.clear().expect("the soft NIC removes flows");
    rig.send(1, vec![udp([192, 0, 2, 1], 1, 1); 4]);
    rig.settle();
    assert_eq!((rig.port(1).unmatched, rig.port(1).delivered), (4, 0));
    rig.balance();
}
