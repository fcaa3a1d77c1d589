//! Golden tests: policies in, printed programs and diagnostics out, compared with committed snapshots.

use std::collections::BTreeMap;

use device_model::DeviceProfile;
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
    let program = compiler::compile(&policy, &DeviceProfile::ideal(), 4)
        .unwrap_or_else(|problems| panic!("{problems}"));
    let warnings: Vec<String> = warnings
        .iter()
        .chain(&compiler::check(&policy, &program).warnings)
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

/// A device that has little of everything.
fn tight() -> DeviceProfile {
    DeviceProfile {
        name: "tight".to_owned(),
        priorities: 8,
        max_flows: Some(40),
        max_specs: 5,
        max_table: 64,
        max_queues: Some(8),
        ..DeviceProfile::ideal()
    }
}

#[test]
fn a_service_with_everything_in_hardware() {
    insta::assert_snapshot!(program(include_str!("../../policy/tests/policies/service.toml")));
}

#[test]
fn hybrid_rules_go_on_through_the_policy() {
    insta::assert_snapshot!(program(include_str!("../../policy/tests/policies/hybrid.toml")));
}

#[test]
fn link_layer_rules() {
    insta::assert_snapshot!(program(include_str!("../../policy/tests/policies/link.toml")));
}

#[test]
fn rules_that_never_match_are_warned_of() {
    insta::assert_snapshot!(program(include_str!("../../policy/tests/policies/suspicious.toml")));
}

#[test]
fn every_slip_is_reported_at_once() {
    insta::assert_snapshot!(problems(include_str!("../../policy/tests/policies/slips.toml")));
}

#[test]
fn matches_that_contradict_themselves() {
    insta::assert_snapshot!(problems(include_str!("../../policy/tests/policies/contradictions.toml")));
}

#[test]
fn slips_in_the_newer_headers() {
    insta::assert_snapshot!(problems(include_str!("../../policy/tests/policies/header-slips.toml")));
}

#[test]
fn tunnels_that_contradict_themselves() {
    insta::assert_snapshot!(problems(include_str!("../../policy/tests/policies/tunnel-contradictions.toml")));
}

#[test]
fn broken_toml_is_reported_where_it_breaks() {
    insta::assert_snapshot!(problems("version = 1\n[[rules]\nname = \"x\nmatch = { any = tru }\n"));
}

#[test]
fn what_a_device_lacks_is_named() {
    insta::assert_snapshot!(problems(include_str!("../../policy/tests/policies/too-much.toml")));
    insta::assert_snapshot!(problems(include_str!("../../policy/tests/policies/chain.toml")));
    insta::assert_snapshot!(problems(include_str!("../../policy/tests/policies/lists.toml")));
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

fn warnings(text: &str) -> Vec<String> {
    let (policy, _) = policy::parse(&Source::new("policy.toml", text), &files()).expect("a good policy");
    let program = compiler::compile(&policy, &DeviceProfile::ideal(), 4).expect("a policy that fits");
    compiler::check(&policy, &program).warnings.iter().map(ToString::to_string).collect()
}

const SCAN: &str = "[groups.g]\nworkers = [0]\n[[rules]]\nname = \"scan\"\nmatch = { tcp_flags = \"syn,fin\" }\naction = \"drop\"\n";

#[test]
fn host_traffic_that_a_hybrid_rule_takes_is_named() {
    let found = warnings(&format!("version = 1\n{SCAN}"));
    let told = |warning: &&String| warning.contains("takes packets from the kernel");
    let warning = found.iter().find(told).expect("all of TCP leaves the host");
    assert!(warning.contains("`scan`") && warning.contains("`ipv4 | tcp`, `ipv6 | tcp`"), "{warning}");
    // Where nothing is left to the kernel nothing is taken from it.
    let dropping = warnings(&format!("version = 1\ndefault = \"drop\"\n{SCAN}"));
    assert_eq!(dropping.iter().filter(told).count(), 0, "{dropping:?}");
}

#[test]
fn the_rule_that_takes_anothers_packets_is_named() {
    let rule = |name: &str, matches: &str| {
        format!("[[rules]]\nname = \"{name}\"\nmatch = {{ {matches} }}\naction = {{ steer = \"g\" }}\n")
    };
    let text = [
        "version = 1\n[groups.g]\nworkers = [0]\n".to_owned(),
        rule("pieces", "family = \"ipv4\", fragment = \"later\""),
        rule("all", "family = \"ipv4\""),
        rule("again", "family = \"ipv4\""),
        rule("lost", "dst = \"192.0.2.0/24\""),
    ];
    let found = warnings(&text.concat());
    let lost = found.iter().find(|warning| warning.contains("`lost` never matches")).unwrap();
    assert!(lost.contains("go to `all` before it"), "{lost}");
}

#[test]
fn an_exception_that_needs_no_flow_is_not_called_dead() {
    let text = "version = 1\n[[rules]]\nname = \"ssh\"\nmatch = { dst = \"192.0.2.1\", dst_port = 22 }\n\
                action = \"kernel\"\n[[rules]]\nname = \"rest\"\nmatch = { dst = \"198.51.100.0/24\" }\n\
                action = \"drop\"\n";
    assert_eq!(warnings(text), [""; 0]);
}

#[test]
fn rules_that_never_match_are_listed_as_far_as_anyone_reads() {
    let mut text =
        "version = 1\n[[rules]]\nname = \"all\"\nmatch = { any = true }\naction = \"drop\"\n".to_owned();
    for index in 0..policy::MAX_DIAGNOSTICS + 7 {
        text.push_str(&format!(
            "[[rules]]\nname = \"r{index}\"\nmatch = {{ tos = {index} }}\naction = \"drop\"\n"
        ));
    }
    let found = warnings(&text);
    assert_eq!(found.len(), policy::MAX_DIAGNOSTICS + 1);
    assert!(found.last().unwrap().contains("7 more rules never match"), "{found:?}");
}

#[test]
fn the_group_that_a_hybrid_drop_lands_on_is_used_and_named() {
    let text = format!("version = 1\ndefault = \"drop\"\n{SCAN}");
    assert_eq!(warnings(&text), [""; 0]);
    let shown = program(&text);
    assert!(shown.contains("tcp_flags: the device matches more, a worker of `g` decides"), "{shown}");
}

#[test]
fn queues_that_no_flow_leads_to_cost_the_device_nothing() {
    let rule = |name: &str, group: &str| {
        format!(
            "[[rules]]\nname = \"{name}\"\nmatch = {{ any = true }}\naction = {{ steer = \"{group}\" }}\n"
        )
    };
    let groups = "version = 1\n[groups.g]\nworkers = [0]\n[groups.h]\nworkers = [1]\n";
    let text = [groups.to_owned(), rule("a", "g"), rule("b", "h")].concat();
    let (policy, _) = policy::parse(&Source::new("policy.toml", text), &files()).unwrap();
    let profile = DeviceProfile { max_queues: Some(14), ..DeviceProfile::ideal() };
    assert_eq!(compiler::compile(&policy, &profile, 2).unwrap().queues.len(), 7);
}

#[test]
fn hash_variants_are_blamed_for_the_priorities_that_they_take() {
    let text = "version = 1\n[groups.g]\nworkers = [0]\n[[rules]]\nname = \"a\"\nmatch = { any = true }\naction = { steer = \"g\" }\n";
    let (policy, _) = policy::parse(&Source::new("policy.toml", text), &files()).unwrap();
    let profile = DeviceProfile { priorities: 4, ..DeviceProfile::ideal() };
    let problems = compiler::compile(&policy, &profile, 2).unwrap_err().to_string();
    assert!(problems.contains("its hash variants"), "{problems}");
}

/// Slips whose obvious message would lead astray: each gives one error, and the right hint.
#[test]
fn hints_lead_to_what_was_meant() {
    let rule = |matches: &str, action: &str| {
        format!(
            "version = 1\n[sets]\nhosts = [\"192.0.2.1\", \"192.0.2.2\"]\n[[rules]]\nname = \"x\"\nmatch = {{ {matches} }}\naction = {action}\n"
        )
    };
    for (text, hint, line) in [
        ("version = 1\ndefault = \"kernle\"\n".to_owned(), "did you mean `kernel`?", 2),
        (rule("vlan = [\"none\", 5]", "\"drop\""), "write a rule of its own with vlan = \"none\"", 6),
        (rule("dst_port = \"hosts\"", "\"drop\""), "the set begins with `192.0.2.1`", 6),
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
fn weights_leave_no_worker_without_an_entry() {
    let problems = |weights: &str| {
        let text = format!("version = 1\ndefault = \"g\"\n[groups.g]\nweights = {weights}\n");
        let (policy, _) = policy::parse(&Source::new("policy.toml", text), &files()).unwrap();
        compiler::compile(&policy, &DeviceProfile::ideal(), 2).map_err(|problems| problems.to_string())
    };
    let refused = problems("{ 0 = 1000, 1 = 1 }").unwrap_err();
    assert!(refused.contains("worker 1 of weight 1 gets no entry in a table of 128"), "{refused}");
    assert!(refused.contains("write table_size = 512"), "{refused}");
    let refused = problems("{ 0 = 65535, 1 = 1 }").unwrap_err();
    assert!(refused.contains("no table that"), "{refused}");
    assert!(problems("{ 0 = 100, 1 = 1 }").is_ok());
}

#[test]
fn the_questions_of_a_class_are_counted_and_limited() {
    let policy = |rules: usize| {
        let mut text = "version = 1\n[groups.g]\nworkers = [0]\nhash = \"none\"\n".to_owned();
        for index in 0..rules {
            text.push_str(&format!("[[rules]]\nname = \"r{index}\"\nmatch = {{ tcp_flags = \"syn\" }}\naction = {{ steer = \"g\" }}\n"));
        }
        policy::parse(&Source::new("policy.toml", text), &files()).unwrap().0
    };
    let few = policy(3);
    let program = compiler::compile(&few, &DeviceProfile::ideal(), 1).unwrap();
    let steps: Vec<u32> = compiler::check(&few, &program).rules.iter().map(|rule| rule.steps).collect();
    // The flows of the first rule take the packets of all.
    assert_eq!(steps, [3, 0, 0, 0]);

    let problems = compiler::compile(&policy(1025), &DeviceProfile::ideal(), 1).unwrap_err().to_string();
    assert!(problems.contains("`r0` may belong to more than 1024 rules"), "{problems}");
}

/// The reason why the device does not decide the only rule of a policy; empty if it does.
fn hybrid_reason(matches: &str) -> String {
    let text = format!(
        "version = 1\n[groups.g]\nworkers = [0]\nhash = \"none\"\n[[rules]]\nname = \"x\"\nmatch = {{ {matches} }}\naction = {{ steer = \"g\" }}\n"
    );
    let (policy, _) = policy::parse(&Source::new("policy.toml", text), &files()).expect("a good policy");
    let program = compiler::compile(&policy, &DeviceProfile::ideal(), 1).expect("a policy that fits");
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
    let wanted = "dst_port (30 masks: with the rule's other ranges 19800 combinations, more than 4096)";
    assert!(reason.starts_with(wanted), "{reason}");
    // 550 lone addresses and 30 masks are more than a list may take with ranges, and 4,096 is not why.
    let hosts: Vec<String> = (0..550).map(|n| format!("\"10.0.{}.{}\"", n / 100, n % 100 * 2)).collect();
    let reason = hybrid_reason(&format!("{ports}, src = [{}]", hosts.join(", ")));
    let wanted =
        "dst_port (30 masks: with the rule's other ranges and lists 16500 combinations, more than 16384)";
    assert!(reason.starts_with(wanted), "{reason}");
}

/// What the device cannot tell apart needs an order, too, though no packet belongs to both rules.
#[test]
fn flows_that_share_packets_are_shown_one_where_priorities_end() {
    let rule = |name: &str, matches: &str| {
        format!("[[rules]]\nname = \"{name}\"\nmatch = {{ {matches} }}\naction = {{ steer = \"g\" }}\n")
    };
    let text = [
        "version = 1\n[groups.g]\nworkers = [0]\nhash = \"none\"\n".to_owned(),
        rule("syn", "tcp_flags = \"syn\", dst = \"192.0.2.0/24\""),
        rule("rest", "tcp_flags = \"!syn\", src_port = 7"),
    ];
    let (policy, _) = policy::parse(&Source::new("policy.toml", text.concat()), &files()).unwrap();
    let profile = DeviceProfile { priorities: 2, ..DeviceProfile::ideal() };
    let problems = compiler::compile(&policy, &profile, 1).unwrap_err().to_string();
    assert!(problems.contains("policy.toml:11:9: error: the policy needs 2 priorities"), "{problems}");
    let shared = "`syn` goes before `rest`, as both take";
    assert!(problems.contains(shared) && problems.contains("dst = 192.0.2.1, protocol = tcp"), "{problems}");
    assert!(problems.contains("src_port = 7"), "{problems}");
}

#[test]
fn the_parts_of_a_label_are_counted_before_they_multiply() {
    let odd = |count: usize| (0..count).map(|n| (2 * n + 1).to_string()).collect::<Vec<_>>().join(", ");
    // 30 million combinations: held in memory they would take half a gigabyte.
    let matches =
        format!("mpls = [{{ label = [{}], tc = [1, 3, 5, 7], ttl = [{}] }}]", odd(60_000), odd(128));
    let reason = hybrid_reason(&matches);
    let wanted = "mpls (60000 masks: with the rule's other ranges 30720000 combinations, more than 4096)";
    assert!(reason.starts_with(wanted), "{reason}");
}

#[test]
fn masks_beyond_comparison_are_refused_with_the_rule() {
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
    let problems = compiler::compile(&policy, &DeviceProfile::mlx5(), 1).expect_err("too many");
    let wanted = "error: the policy takes more than 16384 different masks up to the rule `r16385`";
    assert!(problems.to_string().contains(wanted), "{problems}");
}

#[test]
fn flows_beyond_all_devices_are_refused_with_the_rule() {
    let hosts: Vec<String> =
        (0..100_000u32).map(|n| format!("\"10.{}.{}.{}\"", n >> 15, n >> 7 & 255, n % 128 * 2)).collect();
    let text = format!(
        "version = 1\n[groups.g]\nworkers = [0]\n[[rules]]\nname = \"many\"\nmatch = {{ src = [{}] }}\naction = {{ steer = \"g\" }}\n",
        hosts.join(", ")
    );
    let (policy, _) = policy::parse(&Source::new("policy.toml", text), &files()).expect("a good policy");
    // Three flows for each: TCP, UDP and other IPv4.
    let problems = compiler::compile(&policy, &DeviceProfile::mlx5(), 1).expect_err("too many").to_string();
    assert!(problems.contains("takes more than 262144 flows up to the rule `many`"), "{problems}");
}

#[test]
fn what_runs_out_names_a_rule_that_needs_it() {
    let rule = |name: &str, matches: &str, action: &str| {
        format!("[[rules]]\nname = \"{name}\"\nmatch = {{ {matches} }}\naction = {action}\n")
    };
    let compiled = |rules: &[String], profile: DeviceProfile| {
        let text = format!("version = 1\n[groups.g]\nworkers = [0]\nhash = \"none\"\n{}", rules.concat());
        let (policy, _) = policy::parse(&Source::new("policy.toml", text), &files()).expect("a good policy");
        compiler::compile(&policy, &profile, 1).expect_err("too much").to_string()
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
    let problems = compiled(&masks, DeviceProfile { max_shapes: Some(1), ..DeviceProfile::ideal() });
    let wanted = "policy.toml:11:9: error: the policy takes 2 mask shapes, `ideal` has 1 (ENOMEM)";
    assert!(problems.contains(wanted), "{problems}");
    let copies: Vec<String> = (1..5)
        .map(|port| {
            rule(
                &format!("r{port}"),
                &format!("dst_port = {port}, protocol = \"udp\", family = \"ipv4\""),
                "{ copy = \"g\" }",
            )
        })
        .collect();
    let problems = compiled(&copies, DeviceProfile { max_copies: Some(2), ..DeviceProfile::ideal() });
    let wanted = "policy.toml:15:9: error: the policy takes 4 flows that copy, `ideal` has 2 (ENOMEM)";
    assert!(problems.contains(wanted), "{problems}");
}
