//! Golden tests: policies in, printed programs and diagnostics out, compared with committed snapshots.

use std::collections::BTreeMap;

use device_model::DeviceModel;
use policy::Source;
use program::Placement;

fn files() -> BTreeMap<String, String> {
    BTreeMap::from([
        (
            "blocked.txt".to_owned(),
            "# from the abuse desk\n203.0.113.0/25\n203.0.113.128/25 # merges\n\n2001:db8:bad::/48\n"
                .to_owned(),
        ),
        ("broken.txt".to_owned(), "192.0.2.1\n192.0.2.256\n\t10.0.0.1/8\n".to_owned()),
    ])
}

fn program(text: &str) -> String {
    let (policy, warnings) = policy::parse(&Source::new("policy.toml", text), &files())
        .unwrap_or_else(|problems| panic!("{problems}"));
    let program =
        compiler::compile(&policy, &DeviceModel::ideal(), 4).unwrap_or_else(|problems| panic!("{problems}"));
    let warnings: Vec<String> = warnings
        .iter()
        .chain(&reports::Check::of(&compiler::Job::new(&policy, &DeviceModel::ideal(), 4), &program).warnings)
        .map(ToString::to_string)
        .collect();
    format!("{program}warnings\n  {}\n", warnings.join("\n  "))
}

fn problems(text: &str) -> String {
    let source = Source::new("policy.toml", text);
    match policy::parse(&source, &files()) {
        Err(problems) => problems.to_string(),
        Ok((policy, _)) => match compiler::compile(&policy, &tight(), 2) {
            Err(problems) => problems.to_string(),
            Ok(program) => panic!("nothing wrong with it:\n{program}"),
        },
    }
}

/// A device that has little of everything; a program may use half of the flows and queue pairs.
fn tight() -> DeviceModel {
    DeviceModel {
        name: "tight".to_owned(),
        priorities: 5,
        max_flows: Some(80),
        max_specs: 5,
        max_table: 64,
        max_queues: Some(16),
        ..DeviceModel::ideal()
    }
}

#[test]
fn a_service_with_everything_in_hardware() {
    insta::assert_snapshot!(program(include_str!("../../../policy/tests/policies/service.toml")));
}

#[test]
fn hybrid_rules_continue_with_later_rules() {
    insta::assert_snapshot!(program(include_str!("../../../policy/tests/policies/hybrid.toml")));
}

/// The device decides packets without extension headers, and a worker the others.
#[test]
fn rules_that_skip_extension_headers_have_flows_of_their_own_for_them() {
    insta::assert_snapshot!(program(include_str!("../../../policy/tests/policies/extensions.toml")));
}

#[test]
fn link_layer_rules() {
    insta::assert_snapshot!(program(include_str!("../../../policy/tests/policies/link.toml")));
}

#[test]
fn rules_that_never_match_cause_warnings() {
    insta::assert_snapshot!(program(include_str!("../../../policy/tests/policies/suspicious.toml")));
}

#[test]
fn all_mistakes_are_reported_at_once() {
    insta::assert_snapshot!(problems(include_str!("../../../policy/tests/policies/slips.toml")));
}

#[test]
fn contradictory_matches() {
    insta::assert_snapshot!(problems(include_str!("../../../policy/tests/policies/contradictions.toml")));
}

#[test]
fn mistakes_in_tunnel_keys() {
    insta::assert_snapshot!(problems(include_str!("../../../policy/tests/policies/header-slips.toml")));
}

#[test]
fn contradictory_tunnels() {
    insta::assert_snapshot!(problems(include_str!(
        "../../../policy/tests/policies/tunnel-contradictions.toml"
    )));
}

#[test]
fn toml_errors_have_positions() {
    insta::assert_snapshot!(problems("version = 1\n[[rules]\nname = \"x\nmatch = { any = tru }\n"));
}

#[test]
fn missing_device_features_are_named() {
    insta::assert_snapshot!(problems(include_str!("../../../policy/tests/policies/too-much.toml")));
}

#[test]
fn flows_are_widened_where_the_device_has_too_few() {
    let text = include_str!("../../../policy/tests/policies/lists.toml");
    let (policy, _) = policy::parse(&Source::new("policy.toml", text), &files()).unwrap();
    let program = compiler::compile(&policy, &tight(), 2).unwrap();
    assert!(program.flows.len() <= 40, "{program}");
    let reasons = program.rules.iter().filter_map(|rule| match &rule.placement {
        program::Placement::Hybrid { reason } => Some(reason),
        program::Placement::Hardware => None,
    });
    let wanted = "match (the device has too few flows or masks for all rules)";
    assert!(
        reasons.clone().count() > 0 && reasons.clone().all(|reason| reason.contains(wanted)),
        "{program}"
    );
}

#[test]
fn a_chain_longer_than_the_priorities_is_completed_by_a_worker() {
    let text = include_str!("../../../policy/tests/policies/chain.toml");
    let (policy, _) = policy::parse(&Source::new("policy.toml", text), &files()).unwrap();
    insta::assert_snapshot!(compiler::compile(&policy, &tight(), 2).unwrap().to_string());
}

#[test]
fn reports_show_the_text() {
    let text = "version = 1\n[[rules]]\nname = \"dns\"\nmatch = { dst_prot = 53 }\naction = \"drop\"\n";
    let problems = policy::parse(&Source::new("policy.toml", text), &files()).unwrap_err();
    let mut shown = String::new();
    let handler = miette::GraphicalReportHandler::new_themed(miette::GraphicalTheme::none()).with_width(100);
    for report in problems.report() {
        handler.render_report(&mut shown, report.as_ref()).unwrap();
    }
    insta::assert_snapshot!(shown);
}

#[test]
fn diagnostics_serialize_for_machines() {
    let text = "version = 1\ndefault = \"kernle\"\n";
    let problems = policy::parse(&Source::new("policy.toml", text), &files()).unwrap_err();
    insta::assert_snapshot!(serde_json::to_string_pretty(&problems).unwrap());
}

#[test]
fn queues_without_flows_are_not_created() {
    let rule = |name: &str, group: &str| {
        format!(
            "[[rules]]\nname = \"{name}\"\nmatch = {{ any = true }}\naction = {{ steer = \"{group}\" }}\n"
        )
    };
    let groups = "version = 1\n[groups.g]\nworkers = [0]\n[groups.h]\nworkers = [1]\n";
    let text = [groups.to_owned(), rule("a", "g"), rule("b", "h")].concat();
    let (policy, _) = policy::parse(&Source::new("policy.toml", text), &files()).unwrap();
    let profile = DeviceModel { max_queues: Some(14), ..DeviceModel::ideal() };
    assert_eq!(compiler::compile(&policy, &profile, 2).unwrap().queues.len(), 7);
}

#[test]
fn hash_variants_share_priorities_where_there_are_too_few() {
    let text = "version = 1\n[groups.g]\nworkers = [0]\n[[rules]]\nname = \"a\"\nmatch = { any = true }\naction = { steer = \"g\" }\n";
    let (policy, _) = policy::parse(&Source::new("policy.toml", text), &files()).unwrap();
    let profile = DeviceModel { priorities: 3, ..DeviceModel::ideal() };
    let program = compiler::compile(&policy, &profile, 2).unwrap();
    assert_eq!((program.priorities_used, program.flows.len(), program.classes.len()), (2, 7, 1));
}

/// Slips whose obvious message would lead astray: each gives one error, and the right hint.
#[test]
fn hints_name_similar_keys() {
    let rule = |matches: &str, action: &str| {
        format!(
            "version = 1\n[sets]\nhosts = [\"192.0.2.1\", \"192.0.2.2\"]\n[[rules]]\nname = \"x\"\nmatch = {{ {matches} }}\naction = {action}\n"
        )
    };
    for (text, hint, line) in [
        ("version = 1\ndefault = \"kernle\"\n".to_owned(), "did you mean `kernel`?", 2),
        (rule("vlan = [\"none\", 5]", "\"drop\""), "write a separate rule with vlan = \"none\"", 6),
        (rule("dst_port = \"hosts\"", "\"drop\""), "its first item is `192.0.2.1`", 6),
        (rule("any = true", "{ drop = true }"), "write \"drop\", without braces", 7),
        (rule("vlan_tpid = 0x1234", "\"drop\""), "write 0x8100, 0x88a8 or 0x9100", 6),
    ] {
        let problems = policy::parse(&Source::new("policy.toml", text), &files()).unwrap_err();
        let errors: Vec<_> =
            problems.list.iter().filter(|problem| problem.severity == policy::Severity::Error).collect();
        assert_eq!(errors.len(), 1, "{problems}");
        assert!(errors[0].to_string().contains(hint), "{problems}");
        assert_eq!(errors[0].line, line, "{problems}");
    }
}

#[test]
fn every_worker_has_a_table_entry() {
    let problems = |weights: &str| {
        let text = format!("version = 1\ndefault = \"g\"\n[groups.g]\nweights = {weights}\n");
        let (policy, _) = policy::parse(&Source::new("policy.toml", text), &files()).unwrap();
        compiler::compile(&policy, &DeviceModel::ideal(), 2).map_err(|problems| problems.to_string())
    };
    let refused = problems("{ 0 = 1000, 1 = 1 }").unwrap_err();
    assert!(refused.contains("worker 1 of weight 1 gets no entry in a table of 128"), "{refused}");
    assert!(refused.contains("write table_size = 512"), "{refused}");
    let refused = problems("{ 0 = 65535, 1 = 1 }").unwrap_err();
    assert!(refused.contains("no table that"), "{refused}");
    assert!(problems("{ 0 = 100, 1 = 1 }").is_ok());
}

/// The reason why the device does not decide the only rule of a policy; empty if it does.
fn hybrid_reason(matches: &str) -> String {
    let text = format!(
        "version = 1\n[groups.g]\nworkers = [0]\nhash = \"none\"\n[[rules]]\nname = \"x\"\nmatch = {{ {matches} }}\naction = {{ steer = \"g\" }}\n"
    );
    let (policy, _) = policy::parse(&Source::new("policy.toml", text), &files()).expect("a good policy");
    let program = compiler::compile(&policy, &DeviceModel::ideal(), 1).expect("a policy that fits");
    match &program.rules[0].placement {
        Placement::Hybrid { reason } => reason.clone(),
        Placement::Hardware => String::new(),
    }
}

#[test]
fn the_limit_that_leaves_a_range_to_a_worker_is_named_with_the_count() {
    let ports = "protocol = \"tcp\", family = \"ipv4\", dst_port = \"1-65534\"";
    // 30 masks, 30 masks and 4 of them are few enough.
    assert_eq!(hybrid_reason(&format!("{ports}, src_port = \"1-65534\", vlan = \"1-15\"")), "");
    let reason = hybrid_reason(&format!("{ports}, src_port = \"1-65534\", vlan = \"1-4094\""));
    let wanted = "dst_port (it takes 30 masks, 19800 combinations with the rule's other ranges, and the limit is 4096)";
    assert!(reason.starts_with(wanted), "{reason}");
    // 550 lone addresses and 30 masks are more than a list may take with ranges, and 4,096 is not why.
    let hosts: Vec<String> = (0..550).map(|n| format!("\"10.0.{}.{}\"", n / 100, n % 100 * 2)).collect();
    let reason = hybrid_reason(&format!("{ports}, src = [{}]", hosts.join(", ")));
    let wanted = "dst_port (it takes 30 masks, 16500 combinations with the rule's other ranges and lists, and the limit is 16384)";
    assert!(reason.starts_with(wanted), "{reason}");
}

/// Packets that the device cannot tell apart need an order, too, though no packet belongs to both rules.
#[test]
fn without_priorities_a_worker_compares_with_earlier_rules() {
    let rule = |name: &str, matches: &str| {
        format!("[[rules]]\nname = \"{name}\"\nmatch = {{ {matches} }}\naction = {{ steer = \"g\" }}\n")
    };
    let text = [
        "version = 1\n[groups.g]\nworkers = [0]\nhash = \"none\"\n".to_owned(),
        rule("syn", "tcp_flags = \"syn\", dst = \"192.0.2.0/24\""),
        rule("rest", "tcp_flags = \"!syn\", src_port = 7"),
    ];
    let (policy, _) = policy::parse(&Source::new("policy.toml", text.concat()), &files()).unwrap();
    let profile = DeviceModel { priorities: 2, ..DeviceModel::ideal() };
    let program = compiler::compile(&policy, &profile, 1).unwrap();
    let program::Placement::Hybrid { reason } = &program.rules[1].placement else { panic!("{program}") };
    assert!(reason.contains("order (the device has too few priorities to put `syn` before it)"), "{reason}");
    let compared: Vec<Vec<u32>> = program
        .classes
        .iter()
        .flatten()
        .filter(|class| class.rule == program::RuleId(1))
        .filter_map(|class| match &class.decide {
            program::Decide::Software(steps, _) => Some(steps.iter().map(|step| step.rule.0).collect()),
            program::Decide::Exact(_) => None,
        })
        .collect();
    // IPv6 shares nothing with `syn`.
    assert_eq!(compared, [vec![1], vec![0, 1]]);
}

#[test]
fn the_parts_of_a_label_are_counted_before_they_multiply() {
    let odd = |count: usize| (0..count).map(|n| (2 * n + 1).to_string()).collect::<Vec<_>>().join(", ");
    // 30 million combinations: held in memory they would take half a gigabyte.
    let matches =
        format!("mpls = [{{ label = [{}], tc = [1, 3, 5, 7], ttl = [{}] }}]", odd(60_000), odd(128));
    let reason = hybrid_reason(&matches);
    let wanted = "mpls (it takes 60000 masks, 30720000 combinations with the rule's other ranges, and the limit is 4096)";
    assert!(reason.starts_with(wanted), "{reason}");
}

#[test]
fn too_many_masks_are_refused_with_the_rule() {
    let mut text = "version = 1\n".to_owned();
    for index in 1..=16_385u64 {
        let bytes = index.to_be_bytes();
        let mask: Vec<String> = bytes[2..].iter().map(|byte| format!("{byte:02x}")).collect();
        text.push_str(&format!(
            "[[rules]]\nname = \"r{index}\"\nmatch = {{ src_mac = \"00:00:00:00:00:00/{}\" }}\naction = \"drop\"\n",
            mask.join(":")
        ));
    }
    let (policy, _) = policy::parse(&Source::new("policy.toml", text), &files()).expect("a good policy");
    let problems = compiler::compile(&policy, &DeviceModel::mlx5(), 1).expect_err("too many");
    let wanted = "error: the policy needs more than 16384 different masks up to the rule `r16385`";
    assert!(problems.to_string().contains(wanted), "{problems}");
}

#[test]
fn too_many_flows_are_refused_with_the_rule() {
    let hosts: Vec<String> =
        (0..100_000u32).map(|n| format!("\"10.{}.{}.{}\"", n >> 15, n >> 7 & 255, n % 128 * 2)).collect();
    let text = format!(
        "version = 1\n[groups.g]\nworkers = [0]\n[[rules]]\nname = \"many\"\nmatch = {{ src = [{}] }}\naction = {{ steer = \"g\" }}\n",
        hosts.join(", ")
    );
    let (policy, _) = policy::parse(&Source::new("policy.toml", text), &files()).expect("a good policy");
    // Three flows for each: TCP, UDP and other IPv4.
    let problems = compiler::compile(&policy, &DeviceModel::mlx5(), 1).expect_err("too many").to_string();
    assert!(problems.contains("needs more than 262144 flows up to the rule `many`"), "{problems}");
}

#[test]
fn an_exceeded_limit_names_a_rule() {
    let rule = |name: &str, matches: &str, action: &str| {
        format!("[[rules]]\nname = \"{name}\"\nmatch = {{ {matches} }}\naction = {action}\n")
    };
    let compiled = |rules: &[String], profile: DeviceModel| {
        let text = format!("version = 1\n[groups.g]\nworkers = [0]\nhash = \"none\"\n{}", rules.concat());
        let (policy, _) = policy::parse(&Source::new("policy.toml", text), &files()).expect("a good policy");
        compiler::compile(&policy, &profile, 1).map_err(|problems| problems.to_string())
    };
    // Masks that cannot be cut into one another, of three flows and of one.
    let masks = [
        rule(
            "many",
            "dst_mac = [\"02:00:00:00:00:01\", \"02:00:00:00:00:02\", \"02:00:00:00:00:03\"]",
            "\"drop\"",
        ),
        rule("rare", "flow_label = 7", "\"drop\""),
    ];
    let one_mask = DeviceModel { max_shapes: Some(1), ..DeviceModel::ideal() };
    let widened = compiled(&masks, one_mask).expect("a worker decides both");
    assert_eq!(widened.flows.len(), 1, "{widened}");
    let copies: Vec<String> = (1..5)
        .map(|port| {
            rule(
                &format!("r{port}"),
                &format!("dst_port = {port}, protocol = \"udp\", family = \"ipv4\""),
                "{ copy = \"g\" }",
            )
        })
        .collect();
    let two_copies = DeviceModel { max_copies: Some(4), ..DeviceModel::ideal() };
    let problems = compiled(&copies, two_copies).expect_err("too much");
    let wanted = "policy.toml:15:9: error: the policy needs 4 flows that copy, `ideal` has 2 for it (ENOMEM)";
    assert!(problems.contains(wanted), "{problems}");
}

/// No flow spec has the ports of SCTP: flows match the protocol, and a worker decides.
#[test]
fn sctp_ports_are_decided_by_workers() {
    let program = program(
        "version = 1
default = 'kernel'
[groups.one]
workers = [0]
[[rules]]
name = 'signalling'
match = { sctp_dst_port = [2905, '36412-36422'], dst = '192.0.2.0/24' }
action = { steer = 'one' }
[[rules]]
name = 'rest'
match = { protocol = 'sctp' }
action = 'drop'
",
    );
    for part in ["hybrid (sctp_dst_port: the device matches more", "ipv4 dst=192.0.2.0/24 proto=sctp"] {
        assert!(program.contains(part), "no {part} in {program}");
    }
}

/// No flow spec has the type of an ICMP message: flows match the protocol, and a worker decides.
#[test]
fn icmp_types_are_decided_by_workers() {
    insta::assert_snapshot!(program(
        "version = 1
default = 'kernel'
[groups.one]
workers = [0]
[[rules]]
name = 'ping'
match = { icmp_type = 8, dst = '192.0.2.0/24' }
action = 'drop'
[[rules]]
name = 'neighbours'
match = { icmpv6_type = '135-136', icmpv6_code = 0 }
action = { steer = 'one' }
[[rules]]
name = 'rest'
match = { protocol = ['icmp', 'icmpv6'] }
action = { steer = 'one' }
"
    ));
}
