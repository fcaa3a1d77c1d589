//! Flow tags over reloads, the flows of copies, sniffers and tunnels, and reproducible programs.

use std::fmt::Write as _;
use std::io::Write as _;

use compiler::{compile, compile_with};
use device_model::DeviceModel;
use flow_spec::SpecKind;
use packet::build::FrameBuilder;
use packet::{DeepKey, EtherType, IpProtocol};
use policy::{NoFiles, Policy, Source};
use program::{Decide, FlowAction, FlowKind, FlowSpec, Placement, Program, Verdict};

const HEAD: &str = "version = 1\n[groups.g]\nworkers = [0, 1]\n[groups.h]\nworkers = [1]\nhash = \"none\"\n";

fn rule(name: &str, matches: &str, action: &str) -> String {
    format!("[[rules]]\nname = \"{name}\"\nmatch = {{ {matches} }}\naction = {action}\n")
}

fn parse(rules: &[String]) -> Policy {
    let text = format!("{HEAD}{}", rules.concat());
    let parsed = policy::parse(&Source::new("tags.toml", text), &NoFiles);
    parsed.unwrap_or_else(|problems| panic!("{problems}")).0
}

fn program(rules: &[String], profile: &DeviceModel) -> Program {
    compile(&parse(rules), profile, 2).unwrap_or_else(|problems| panic!("{problems}"))
}

fn class_of(program: &Program, name: &str) -> Option<usize> {
    program
        .classes
        .iter()
        .position(|class| class.as_ref().is_some_and(|class| program.rules[class.rule.index()].name == name))
}

#[test]
fn a_rule_keeps_its_class_and_a_free_one_waits_for_the_next_program() {
    let steer = |name: &str, port: u16| rule(name, &format!("dst_port = {port}"), "{ steer = \"g\" }");
    let ideal = DeviceModel::ideal();
    let first = program(&[steer("a", 1), steer("b", 2), steer("c", 3)], &ideal);
    let classes = |program: &Program| ["a", "b", "c", "d", "e"].map(|name| class_of(program, name));
    assert_eq!(classes(&first), [Some(0), Some(1), Some(2), None, None]);
    let next = |rules: &[String], before: &Program| {
        compile_with(&parse(rules), &ideal, 2, Some(before)).unwrap_or_else(|problems| panic!("{problems}"))
    };
    let second = next(&[steer("d", 4), steer("c", 3), steer("a", 1)], &first);
    assert_eq!(classes(&second), [Some(0), None, Some(2), Some(3), None]);
    assert_eq!(second.classes[1], None);
    let third = next(&[steer("e", 5), steer("d", 4), steer("c", 3), steer("a", 1)], &second);
    assert_eq!(classes(&third), [Some(0), None, Some(2), Some(3), Some(1)]);
    // Every flow leads to the class of its rule.
    for flow in &third.flows {
        let FlowAction::Steer { class, .. } = flow.action else { panic!("{flow:?}") };
        assert_eq!(third.class(class).expect("no hole").rule, flow.rule);
    }
}

/// Rules of every kind that some device takes, and so many ports and prefixes that masks are merged.
fn all_features() -> Vec<String> {
    let mut rules = vec![
        rule("tap", "family = \"ipv4\", protocol = \"udp\", dst_port = 4739", "{ copy = \"h\" }"),
        rule("all", "any = true", "{ sniff = \"h\" }"),
        rule("tenant", "vxlan_vni = 7, inner = { dst_port = 80 }", "{ steer = \"g\" }"),
        rule("gre", "gre_protocol = 0x0800, gre_key = 9", "{ steer = \"h\" }"),
        rule("esp", "esp_spi = 4096", "{ steer = \"g\" }"),
        rule("syn", "tcp_flags = \"syn,!ack\"", "{ steer = \"g\" }"),
        rule("near", "family = \"ipv4\", ttl = { not = 64 }", "{ steer = \"g\" }"),
        rule("host", "family = \"ipv4\", protocol = \"tcp\", dst_port = 22", "\"kernel\""),
        rule("label", "flow_label = \"1-9\"", "{ steer = \"h\" }"),
        rule("macs", "src_mac = \"02:00:00:00:00:00/ff:00:00:00:00:00\"", "{ steer = \"h\" }"),
    ];
    rules.extend((0..40).map(|n| {
        let ports = format!("dst_port = \"{n}-{}\", src_port = \"1-{}\"", n * 7 + 1, n * 10 + 9);
        rule(&format!("ports{n}"), &ports, "\"drop\"")
    }));
    rules.extend((0..200u32).map(|n| {
        let (from, to) = (1 + n % 31, 2 + n * 5 % 30);
        let address = |net: u32, length: u32| std::net::Ipv4Addr::from(net >> (32 - length) << (32 - length));
        let (src, dst) = (address(0x0a00_0000 | n << 16, from), address(0xac10_0000 | n << 8, to));
        let prefixes = format!("src = \"{src}/{from}\", dst = \"{dst}/{to}\"");
        rule(&format!("net{n}"), &prefixes, "{ steer = \"g\" }")
    }));
    rules
}

/// The program that every profile makes of them, or the diagnostics.
fn compiled() -> String {
    let policies = [all_features(), all_features().split_off(10)];
    let profiles = DeviceModel::NAMES.map(|name| DeviceModel::by_name(name).expect("it is listed"));
    let mut text = String::new();
    for (rules, profile) in policies.iter().flat_map(|rules| profiles.iter().map(move |one| (rules, one))) {
        match compile(&parse(rules), profile, 2) {
            Ok(program) => writeln!(text, "{program}\n{program:?}"),
            Err(problems) => writeln!(text, "{problems}"),
        }
        .expect("strings take text");
    }
    text
}

/// In one process, and in another: hash maps have other seeds there.
#[test]
fn the_same_policy_gives_the_same_bytes() {
    const ONLY_PRINT: &str = "POLICY_TEST_PRINTS";
    let text = compiled();
    if std::env::var_os(ONLY_PRINT).is_some() {
        std::io::stdout().write_all(text.as_bytes()).expect("the parent listens");
        return;
    }
    let ideal = DeviceModel::ideal();
    assert!(compile(&parse(&all_features()), &ideal, 2).is_ok(), "{text}");
    assert_eq!(compiled(), text);
    let child = std::process::Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "tags::the_same_policy_gives_the_same_bytes", "--nocapture", "--test-threads=1"])
        .env(ONLY_PRINT, "1")
        .output()
        .expect("it starts again");
    assert!(child.status.success());
    let printed = String::from_utf8(child.stdout).expect("text");
    assert!(printed.contains(&text), "the other process prints something else");
}

#[test]
fn copies_go_before_and_leave_the_packet_to_the_later_rules() {
    let rules = [
        rule("first", "dst_port = 7", "\"drop\""),
        rule("tap", "family = \"ipv4\", protocol = \"udp\"", "{ copy = \"h\" }"),
        rule("dns", "family = \"ipv4\", protocol = \"udp\", dst_port = 53", "{ steer = \"g\" }"),
    ];
    let program = program(&rules, &DeviceModel::mlx5());
    let copies: Vec<_> = program.flows.iter().filter(|flow| flow.kind == FlowKind::Copy).collect();
    assert_eq!(copies.len(), 1);
    let explain = |port: u16| {
        let frame =
            FrameBuilder::new().ipv4([192, 0, 2, 1].into(), [192, 0, 2, 2].into()).udp(1000, port).build();
        program.explain_deep(&DeepKey::of(&frame))
    };
    for (port, copied, verdict) in
        [(7, 0, Verdict::Drop), (53, 1, Verdict::Deliver(program::GroupId(0))), (99, 1, Verdict::Kernel)]
    {
        let explained = explain(port);
        assert_eq!((explained.copies.len(), explained.outcome.verdict), (copied, verdict), "port {port}");
        assert!(explained.copies.iter().all(|copy| copy.worker == Some(program::WorkerId(1))));
    }
}

#[test]
fn devices_without_tags_have_one_class_with_all_rules() {
    let rules = [
        rule("web", "family = \"ipv4\", protocol = \"tcp\", dst_port = [80, 443]", "{ steer = \"g\" }"),
        rule("six", "family = \"ipv6\"", "\"drop\""),
    ];
    let program = program(&rules, &DeviceModel::mlx4());
    assert_eq!(program.untagged, Some(program::ClassId(0)));
    assert_eq!(program.classes.len(), 1);
    assert!(program.flows.iter().all(|flow| matches!(flow.action, FlowAction::Steer { .. })));
    assert!(program.rules[..2].iter().all(|rule| matches!(rule.placement, Placement::Hybrid { .. })));
    let specs = program.flows.iter().flat_map(|flow| flow.specs.iter());
    assert!(specs.clone().all(|spec| !matches!(spec, FlowSpec::Ipv6 { .. })), "{program}");
    let Some(Decide::Software(steps, _)) = program.classes[0].as_ref().map(|class| &class.decide) else {
        panic!("{program}")
    };
    assert_eq!(steps.len(), 2);
}

#[test]
fn a_refused_field_is_not_matched() {
    let rules = [rule("near", "family = \"ipv4\", ttl = 255", "{ steer = \"g\" }")];
    let ideal = program(&rules, &DeviceModel::ideal());
    assert_eq!(ideal.rules[0].placement, Placement::Hardware);
    let mlx5 = program(&rules, &DeviceModel::mlx5());
    let Placement::Hybrid { reason } = &mlx5.rules[0].placement else { panic!("{mlx5}") };
    assert!(reason.contains("ttl") && reason.contains("EOPNOTSUPP"), "{reason}");
    for flow in &mlx5.flows {
        let asks = |spec: &FlowSpec| matches!(spec, FlowSpec::Ipv4Ext { mask, .. } if mask.ttl != 0);
        assert!(!flow.specs.iter().any(asks), "{}", flow);
    }
}

#[test]
fn tunnel_flows_match_the_headers_that_devices_do_not_imply() {
    let inner = "vxlan_vni = 7, inner = { dst = \"10.0.0.0/8\" }";
    let rules = [rule("tenant", inner, "{ steer = \"h\" }"), rule("sa", "esp_spi = 9", "{ steer = \"h\" }")];
    let program = program(&rules, &DeviceModel::mlx5());
    for flow in &program.flows {
        let words = flow.to_string();
        match flow.rule.index() {
            0 => assert!(
                words.contains("udp dport=4789 | vxlan vni=0x7 | inner ipv4 dst=10.0.0.0/8"),
                "{words}"
            ),
            1 => assert!(words.contains("proto=esp | esp spi=0x9"), "{words}"),
            _ => {}
        }
        assert!(flow.specs.inner_from() <= flow.specs.len());
    }
    assert!(program.rules[..2].iter().all(|rule| rule.placement == Placement::Hardware), "{program}");
}

#[test]
fn an_exception_needs_a_worker_only_if_a_later_rule_matches_it() {
    let keep = rule("ssh", "family = \"ipv4\", protocol = \"tcp\", dst_port = 22", "\"kernel\"");
    let alone = program(std::slice::from_ref(&keep), &DeviceModel::ideal());
    assert!(alone.flows.is_empty() && alone.rules[0].placement == Placement::Hardware);
    let frame = FrameBuilder::new().ipv4([192, 0, 2, 1].into(), [192, 0, 2, 2].into()).tcp(1, 22, 0).build();
    assert_eq!(alone.explain_deep(&DeepKey::of(&frame)).outcome.rule.index(), 0);
    let all = rule("all", "any = true", "{ steer = \"g\" }");
    let taken = program(&[keep, all], &DeviceModel::ideal());
    assert!(matches!(taken.rules[0].placement, Placement::Hybrid { .. }), "{taken}");
    let outcome = taken.explain_deep(&DeepKey::of(&frame)).outcome;
    assert_eq!((outcome.rule.index(), outcome.verdict), (0, Verdict::Kernel));
}

/// Devices number DF and MF and know no third flag: a flow that asked for it would be refused when it is
/// installed.
#[test]
fn the_reserved_ip_flag_is_tested_by_a_worker() {
    for (flags, in_hardware) in [("[\"df,!mf\"]", 6), ("[\"df,reserved\"]", 2), ("[\"!reserved\"]", 0)] {
        let matches = format!("ip_flags = {flags}");
        let program = program(&[rule("odd", &matches, "{ steer = \"g\" }")], &DeviceModel::ideal());
        for flow in &program.flows {
            let masks = flow
                .specs
                .iter()
                .map(|spec| if let FlowSpec::Ipv4Ext { mask, .. } = spec { mask.flags } else { 0 });
            assert_eq!(masks.fold(0, |all, mask| all | mask), in_hardware, "{flags}: {flow:?}");
        }
        assert!(!program.flows.is_empty(), "{flags}");
        let frame = |flags| {
            let frame = FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
            DeepKey::of(&frame.ip_flags(flags).udp(1, 2).build())
        };
        let taken: Vec<u8> = (0..8)
            .filter(|flags| {
                matches!(program.explain_deep(&frame(*flags)).outcome.verdict, Verdict::Deliver(_))
            })
            .collect();
        let meant: &[u8] = match in_hardware {
            6 => &[2, 6],
            2 => &[6, 7],
            _ => &[0, 1, 2, 3],
        };
        assert_eq!(taken, meant, "{flags}");
    }
}

/// An mlx5 reads a spec of no field as none, and would take what only announces the header.
#[test]
fn header_presence_is_tested_by_a_worker_if_the_device_ignores_it() {
    let v4 = || FrameBuilder::new().ipv4([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
    let protocol = |protocol, payload: &[u8]| v4().protocol(IpProtocol(protocol)).payload(payload).build();
    let udp = |port, payload: &[u8]| v4().udp(7, port).payload(payload).build();
    let label = FrameBuilder::new().ether_type(EtherType::MPLS);
    let vxlan = [8, 0, 0, 0, 0, 0, 7, 0];
    for (matches, key, whole, cut) in [
        ("esp_spi = '0-0xffffffff'", "esp_spi", protocol(50, &[1; 8]), protocol(50, &[1; 7])),
        ("esp_seq = '0-0xffffffff'", "esp_seq", protocol(50, &[1; 8]), protocol(50, &[1; 7])),
        ("vxlan_vni = '0-0xffffff'", "vxlan_vni", udp(4789, &vxlan), udp(4789, &vxlan[1..])),
        ("gre_protocol = '0-0xffff'", "gre_protocol", protocol(47, &[0; 4]), protocol(47, &[0; 3])),
        ("mpls = 'any'", "mpls", udp(6635, &[0; 4]), udp(6635, &[0; 3])),
        ("mpls = 'any'", "mpls", label.clone().payload(&[0; 4]).build(), label.payload(&[0; 3]).build()),
        (
            "dst_port = '0-65535'",
            "dst_port",
            v4().udp(1, 2).build(),
            v4().fragment(9, false).udp(1, 2).build(),
        ),
    ] {
        let rules = [rule("any", matches, "{ steer = \"g\" }")];
        let ideal = program(&rules, &DeviceModel::ideal());
        assert_eq!(ideal.rules[0].placement, Placement::Hardware, "{matches}");
        let mlx5 = program(&rules, &DeviceModel::mlx5());
        let Placement::Hybrid { reason } = &mlx5.rules[0].placement else { panic!("{mlx5}") };
        assert!(reason.starts_with(&format!("{key} (the device does not check for a")), "{reason}");
        assert_eq!(mlx5.rules[0].undecided.iter().find_map(|note| note.why.errno()), None);
        for program in [&ideal, &mlx5] {
            let taken = |frame: &[u8]| program.explain_deep(&DeepKey::of(frame)).outcome.rule.index();
            assert_eq!((taken(&whole), taken(&cut)), (0, 1), "{matches}: {program}");
        }
        // What such a device takes is what its flows say: none asks for a header that it does not look for.
        let is_bare = |spec: &FlowSpec| {
            [SpecKind::Esp, SpecKind::VxlanTunnel, SpecKind::Gre, SpecKind::Mpls]
                .map(FlowSpec::any)
                .contains(&spec.shape())
        };
        assert!(!mlx5.flows.iter().flat_map(|flow| flow.specs.iter()).any(is_bare), "{mlx5}");
    }
    // Asked for a value, or for the packet inside, it looks.
    for matches in ["esp_spi = '1-0xffff'", "vxlan_vni = '0-0xffffff', inner = { family = 'ipv4' }"] {
        let mlx5 = program(&[rule("some", matches, "{ steer = \"g\" }")], &DeviceModel::mlx5());
        assert_eq!(mlx5.rules[0].placement, Placement::Hardware, "{mlx5}");
    }
}
