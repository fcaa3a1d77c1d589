//! `Program::deciders` of a policy with rules of each kind. That each packet is decided by one of them is a
//! test of `judge`.

use device_model::DeviceModel;
use policy::{NoFiles, Source};
use program::{Decider, HostReception, Program};

const HEAD: &str =
    "version = 1\ndefault = 'kernel'\nallow_lost_exceptions = true\n[groups.g]\nworkers = [0]\n";

fn rule(name: &str, matches: &str, action: &str) -> String {
    format!("[[rules]]\nname = '{name}'\nmatch = {{ {matches} }}\naction = {action}\n")
}

fn compiled(text: &str) -> Program {
    let (policy, _) = policy::parse(&Source::new("p.toml", text), &NoFiles).expect("it parses");
    compiler::compile(&policy, &DeviceModel::ideal(), 1).expect("it compiles")
}

/// A line for each rule.
fn shown(program: &Program) -> Vec<String> {
    let rules = program.rules.iter().zip(program.deciders());
    let lines = rules.map(|(rule, decided)| {
        let deciders: Vec<&str> = decided.decided_by.iter().map(|decider| decider.words()).collect();
        format!("{}: {}; host {}", rule.name, deciders.join(", "), decided.host.words())
    });
    lines.collect()
}

#[test]
fn each_rule_has_its_deciders() {
    let rules = [
        rule("sent", "dst_port = 25, protocol = 'tcp'", "'drop'\ndirection = 'egress'"),
        rule("scan", "src = '198.51.100.0/24'", "'drop'"),
        rule("ssh", "protocol = 'tcp', dst_port = 22", "'kernel'"),
        rule("dns", "protocol = 'udp', dst_port = 53", "{ steer = 'g' }"),
        rule("syn", "protocol = 'tcp', dst_port = 80, tcp_flags = 'syn'", "'drop'"),
        rule("web", "protocol = 'tcp', dst_port = 80", "{ steer = 'g' }"),
    ];
    assert_eq!(
        shown(&compiled(&format!("{HEAD}{}", rules.concat()))),
        [
            "sent: engine; host sent",
            "scan: XDP program; host no",
            "ssh: XDP program; host yes",
            "dns: engine; host no",
            "syn: worker; host no",
            "web: worker; host no",
            "default: XDP program; host yes",
        ]
    );
}

#[test]
fn claims_of_tunnels_and_copies_bring_other_packets_to_the_engine() {
    let tenant = rule("tenant", "vxlan_vni = 5, dst = '10.0.0.0/8'", "{ steer = 'g' }");
    let seen = rule("seen", "protocol = 'udp', dst_port = 53", "{ copy = 'g' }");
    let far = rule("far", "dst = '192.0.2.0/24'", "'drop'");
    let near = rule("near", "dst = '10.1.0.0/16'", "'drop'");
    let icmp = rule("icmp", "protocol = 'icmp', dst = '192.0.2.0/24'", "'kernel'");
    let text = [HEAD, &tenant, &icmp, &far, &near].concat();
    assert_eq!(
        shown(&compiled(&text)),
        [
            "tenant: engine; host no",
            "icmp: XDP program; host yes",
            "far: XDP program; host no",
            "near: XDP program, engine; host no",
            "default: XDP program, engine; host yes",
        ]
    );
    let text = [HEAD, &seen, &icmp, &far].concat();
    assert_eq!(
        shown(&compiled(&text)),
        [
            "seen: engine; host other rules",
            "icmp: XDP program; host yes",
            "far: XDP program, engine; host no",
            "default: XDP program, engine; host yes",
        ]
    );
    let sniffing = compiled(&[HEAD, &rule("ear", "any = true", "{ sniff = 'g' }"), &far].concat());
    let by_engine = |decided: &program::RuleDeciders| decided.decided_by.iter().eq([&Decider::Engine]);
    assert!(sniffing.deciders().iter().all(by_engine), "{:?}", shown(&sniffing));
}

#[test]
fn the_host_loses_what_a_worker_cannot_return() {
    let rules = rule("acks", "protocol = 'tcp', tcp_flags = 'ack'", "'kernel'")
        + &rule("web", "protocol = 'tcp', dst_port = 80", "{ steer = 'g' }");
    let host = |text: &str| compiled(text).deciders().first().map(|acks| acks.host);
    assert_eq!(host(&format!("{HEAD}{rules}")), Some(HostReception::Partly));
    let all = rules
        .replace("dst_port = 80", "src = '0.0.0.0/0'")
        .replace("tcp_flags", "family = 'ipv4', tcp_flags");
    assert_eq!(host(&format!("{HEAD}{all}")), Some(HostReception::No));
    let sink = "[sinks.back]\nkind = 'kernel'\ninterface = 'tap0'\n";
    assert_eq!(host(&format!("{HEAD}{sink}{rules}")), Some(HostReception::Yes));
}
