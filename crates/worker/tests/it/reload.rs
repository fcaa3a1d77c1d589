//! Programs change while packets arrive before every single call to the device: each packet meets
//! one of the two programs as a whole, ends up in exactly one place, and no total goes backwards.

use std::net::Ipv4Addr;
use std::sync::Arc;

use crate::support::{Rig, Seen, compile, compile_beside};
use packet::FlowKey;
use packet::build::FrameBuilder;
use program::{ClassId, Program};
use worker::Disposition;

const RELOADS: usize = 60;
/// Few enough that the workers' queues hold what arrives during one reload.
const FRAMES_PER_CALL: usize = 8;

const FIRST: &str = r#"
version = 1
default = "kernel"
[groups.web]
workers = [0, 1]
hash = "l3l4"
[groups.dns]
workers = [2]
hash = "l3"
[[rules]]
name = "scanner"
match = { src = "10.0.0.7" }
action = "drop"
[[rules]]
name = "syn"
match = { protocol = "tcp", dst_port = 80, tcp_flags = "syn,!ack" }
action = "drop"
[[rules]]
name = "web"
match = { protocol = "tcp", dst_port = 80 }
action = { steer = "web" }
[[rules]]
name = "dns"
match = { protocol = "udp", dst_port = 53 }
action = { steer = "dns" }
"#;

/// Other order, other groups, other classes; shares names with the first.
const SECOND: &str = r#"
version = 1
default = "drop"
[groups.every]
workers = [2, 1, 0]
hash = "l3"
[[rules]]
name = "dns"
match = { protocol = "udp", dst_port = [53, 54] }
action = { steer = "every" }
[[rules]]
name = "web"
match = { protocol = "tcp" }
action = { steer = "every" }
[[rules]]
name = "scanner"
match = { src = "10.0.0.0/29" }
action = "drop"
"#;

fn traffic() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for host in 0..16u8 {
        let base = || FrameBuilder::new().ipv4(Ipv4Addr::new(10, 0, 0, host), Ipv4Addr::new(192, 0, 2, 1));
        for port in [53, 54, 55] {
            frames.push(base().udp(1000 + u16::from(host), port).build());
        }
        for (port, flags) in [(80, 0x02), (80, 0x10), (443, 0x10)] {
            frames.push(base().tcp(2000 + u16::from(host), port, flags).build());
        }
    }
    frames
}

/// Checks that a packet was decided as the last program that was installed decides it, or the one before:
/// rule, verdict, class and worker. Returns the name of the rule.
fn judge<'p>(installed: &'p [Arc<Program>], seen: &Seen) -> &'p str {
    let of = &installed[seen.generation as usize - 1];
    let name = of.rules[seen.outcome.rule.index()].name.as_str();
    let agrees = |program: &&Arc<Program>| {
        let explained = program.explain(&FlowKey::of(&seen.bytes));
        program.rules[explained.outcome.rule.index()].name == name
            && program.describe(explained.outcome.verdict) == of.describe(seen.outcome.verdict)
            && explained.worker == Some(seen.worker)
            && explained.class == ClassId::of_tag(seen.tag)
    };
    assert!(installed.iter().rev().take(2).any(|program| agrees(&program)), "rule {name}: {seen:?}");
    name
}

#[test]
fn reloads_under_traffic_lose_misjudge_and_double_nothing() {
    let programs: [Arc<Program>; 2] = [compile(FIRST, 3), compile(SECOND, 3)];
    let mut rig = Rig::new(2, 3);
    let mut installed: Vec<Arc<Program>> = Vec::new();
    let (mut judged, mut web, mut highest_web, mut highest_dropped) = (0, 0, 0, 0);
    rig.frames_per_call.set(FRAMES_PER_CALL);
    for reload in 0..RELOADS {
        for port in [1, 2] {
            rig.send(port, traffic());
        }
        installed.push(rig.install_program(&programs[reload % 2]).expect("the soft NIC takes it").program);
        for seen in rig.seen() {
            judged += 1;
            web += u64::from(judge(&installed, &seen) == "web");
        }
        let now = rig.ruled("web", Disposition::Delivered);
        assert!(now >= highest_web, "reload {reload}");
        highest_web = now;
        let dropped: u64 = rig.controller.drop_counters().iter().map(|totals| totals.packets).sum();
        assert!(dropped >= highest_dropped, "reload {reload}");
        highest_dropped = dropped;
    }
    rig.settle();
    for seen in rig.seen() {
        judged += 1;
        web += u64::from(judge(&installed, &seen) == "web");
    }
    let sent = (2 * RELOADS * traffic().len()) as u64;
    let ports = [rig.port(1), rig.port(2)];
    let sum = |field: fn(&softnic::PortStats) -> u64| ports.iter().map(field).sum::<u64>();
    assert_eq!(sum(|port| port.rx_frames), sent);
    assert_eq!(sum(|port| port.delivered) + sum(|port| port.flow_dropped) + sum(|port| port.unmatched), sent);
    assert_eq!(sum(|port| port.replicated), 0);
    assert_eq!(sum(|port| port.delivered), judged);
    assert_eq!(rig.ruled("web", Disposition::Delivered), web);
    assert!(web > 0 && highest_dropped > 0 && sum(|port| port.unmatched) > 0);
    rig.balance();
}

#[test]
fn a_refused_program_changes_nothing_for_the_traffic() {
    let mut rig = Rig::new(1, 3);
    let first = rig.install(FIRST);
    let mut broken = (*compile(SECOND, 3)).clone();
    let rule = broken.flows[0].rule;
    // More specs than the kernel takes of one flow, which is 10 (drivers/infiniband/core/uverbs_cmd.c,
    // IB_FLOW_SPEC_SUPPORT_LAYERS).
    let udp = verbs::FlowSpec::Udp { value: Default::default(), mask: Default::default() };
    let specs = program::SpecChain::outer(vec![udp; 40]);
    let (kind, action) = (program::FlowKind::Normal, program::FlowAction::Drop);
    broken.flows.push(program::Flow { rule, priority: 5000, kind, specs, action });
    let error = rig.install_program(&Arc::new(broken)).expect_err("40 specs are too many").to_string();
    assert!(error.starts_with("rule `dns` (line "), "{error}");
    rig.send(1, traffic());
    rig.settle();
    for seen in rig.seen() {
        assert_eq!(first.explain(&FlowKey::of(&seen.bytes)).outcome, seen.outcome);
    }
    assert!(rig.ruled("dns", Disposition::Delivered) > 0);
    rig.balance();
    rig.install(SECOND);
    rig.send(1, traffic());
    rig.settle();
    rig.balance();
}

/// A policy with a copy and a sniffer that stay, and a rule that changes.
fn watched(dns: &str) -> String {
    format!(
        "version = 1\ndefault = \"kernel\"\n[groups.web]\nworkers = [0, 1]\nhash = \"l3l4\"\n\
         [groups.watch]\nworkers = [2]\nhash = \"none\"\n\
         [[rules]]\nname = \"all\"\nmatch = {{ any = true }}\naction = {{ sniff = \"watch\" }}\n\
         [[rules]]\nname = \"tap\"\nmatch = {{ protocol = \"udp\" }}\naction = {{ copy = \"watch\" }}\n\
         [[rules]]\nname = \"dns\"\nmatch = {{ protocol = \"udp\", dst_port = 53 }}\naction = {dns}\n\
         [[rules]]\nname = \"web\"\nmatch = {{ protocol = \"tcp\" }}\naction = {{ steer = \"web\" }}\n"
    )
}

#[test]
fn copies_and_sniffed_packets_of_unchanged_rules_are_exact_over_reloads() {
    let mut rig = Rig::new(1, 3);
    rig.install(&watched("{ steer = \"web\" }"));
    rig.frames_per_call.set(FRAMES_PER_CALL);
    for reload in 0..RELOADS {
        rig.send(1, traffic());
        let action = ["\"drop\"", "{ steer = \"web\" }", "\"kernel\""][reload % 3];
        let installed = rig.controller.installed().map(Arc::clone);
        let program = compile_beside(&watched(action), 3, installed.as_deref());
        let changes = rig.install_program(&program).expect("it fits").changes;
        assert!((1..=4).contains(&(changes.installed + changes.removed)), "{changes:?}");
        rig.settle();
    }
    let frames = (RELOADS * traffic().len()) as u64;
    let udp = (RELOADS * 16 * 3) as u64;
    assert_eq!(rig.ruled("all", Disposition::Delivered), frames);
    assert_eq!(rig.ruled("tap", Disposition::Delivered), udp);
    assert_eq!(rig.ruled("web", Disposition::Delivered), frames - udp);
    // The port counts a packet once, however often it is copied.
    let received: u64 = rig.snapshots().iter().map(|snapshot| snapshot.received.packets).sum();
    assert_eq!(received, rig.port(1).delivered + frames + udp);
    assert!(rig.snapshots().iter().all(|snapshot| snapshot.imbalance() == 0));
}
