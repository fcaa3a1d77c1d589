//! Rules that leave packets to the host before rules that match them otherwise: which of them the device
//! decides alone, how they are subtracted from flows, and what is reported if that is impossible.

use std::fmt::Write as _;
use std::time::Duration;

use device_model::DeviceModel;
use packet::{DeepKey, FlowKey};
use policy::{NoFiles, Policy, Source};
use program::{Outcome, Program, RuleId, Verdict};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use reports::{Decided, Report};

use crate::support::clauses::{Clause, clauses};
use crate::support::packets::packet_key;
use crate::support::rules::{Act, Rule};

const WORKERS: usize = 4;
const GROUP: &str = "[groups.main]\nworkers = 'all'\nhash = 'none'\n";

fn parse(text: &str) -> Policy {
    let text = format!("version = 1\n{text}");
    let parsed = policy::parse(&Source::new("exceptions.toml", &text), &NoFiles);
    parsed.unwrap_or_else(|problems| panic!("{problems}\n{text}")).0
}

/// A policy of one group; each rule is its name, its match and its action.
fn policy(default: &str, rules: &[(&str, &str, &str)]) -> Policy {
    let mut text = format!("default = '{default}'\n{GROUP}");
    for (name, matches, action) in rules {
        writeln!(text, "[[rules]]\nname = '{name}'\nmatch = {{ {matches} }}\naction = '{action}'")
            .expect("strings take text");
    }
    parse(&text)
}

fn report(policy: &Policy, profile: &DeviceModel) -> Report {
    reports::report(policy, profile, WORKERS, None)
}

/// The program and what is told of its rules.
fn shown(policy: &Policy, profile: &DeviceModel) -> String {
    let report = report(policy, profile);
    let program = report.program.unwrap_or_else(|| panic!("{:?}", report.problems));
    let mut shown = format!("{program}report\n");
    for rule in &report.rules {
        writeln!(shown, "  {}: {:?}", rule.name, rule.decided).expect("strings take text");
        for told in [&rule.note, &rule.reason, &rule.limit, &rule.remedy].into_iter().flatten() {
            writeln!(shown, "    {told}").expect("strings take text");
        }
    }
    for warning in &report.warnings {
        writeln!(shown, "{warning}").expect("strings take text");
    }
    shown
}

/// Where the first rule is decided, with the reason and the remedy.
fn first(policy: &Policy, profile: &DeviceModel) -> (Decided, String, String) {
    let report = report(policy, profile);
    assert!(report.program.is_some(), "{:?}", report.problems);
    let rule = &report.rules[0];
    (rule.decided, rule.reason.clone().unwrap_or_default(), rule.remedy.clone().unwrap_or_default())
}

fn everywhere() -> [DeviceModel; 2] {
    [DeviceModel::ideal(), DeviceModel::mlx5()]
}

const SSH: (&str, &str, &str) = ("ssh", "dst = '192.0.2.1', protocol = 'tcp', dst_port = 22", "kernel");

#[test]
fn an_address_is_left_out_of_a_prefix() {
    let own = ("own", "dst = '192.0.2.1'", "kernel");
    let prefix = ("prefix", "dst = '192.0.2.0/29'", "steer main");
    insta::assert_snapshot!(shown(&policy("kernel", &[own, prefix]), &DeviceModel::ideal()));
}

#[test]
fn a_frame_type_is_left_out_of_the_default() {
    let arp = ("arp", "ethertype = 'arp'", "kernel");
    insta::assert_snapshot!(shown(&policy("main", &[arp]), &DeviceModel::mlx5()));
}

#[test]
fn exceptions_that_flows_cannot_exclude_are_received_by_a_worker() {
    let ssh = ("ssh", "protocol = 'tcp', dst_port = 22", "kernel");
    let prefix = ("prefix", "dst = '192.0.2.0/24'", "steer main");
    let web = ("web", "dst = '198.51.100.1', protocol = 'tcp', dst_port = '16-23'", "steer main");
    insta::assert_snapshot!(shown(&policy("kernel", &[ssh, prefix, web]), &DeviceModel::ideal()));
    insta::assert_snapshot!(shown(&policy("kernel", &[SSH, prefix]), &DeviceModel::mlx4()));
}

/// The remedies of the report lead to hardware when they are followed.
#[test]
fn remedies_lead_to_hardware() {
    let (ports, others) = ("dst_port = '1-65535'", "protocol = { not = ['tcp', 'udp'] }");
    let not_ip = "ethertype = { not = ['ipv4', 'ipv6', 'arp'] }";
    let prefix = "dst = '192.0.2.0/24'";
    let (of_ports, of_others) = (format!("{prefix}, {ports}"), format!("{prefix}, {others}"));
    for profile in everywhere() {
        let plain = [SSH, ("p", prefix, "steer main")];
        assert_eq!(first(&policy("kernel", &plain), &profile).0, Decided::Hardware, "{}", profile.name);
        let better = [SSH, ("p", &of_ports, "steer main"), ("o", &of_others, "steer main")];
        assert_eq!(first(&policy("kernel", &better), &profile).0, Decided::Hardware, "{}", profile.name);

        let (decided, reason, remedy) = first(&policy("main", &[SSH]), &profile);
        assert_eq!(decided, Decided::Hybrid);
        assert!(reason.contains("`default` also matches packets without an IP header"), "{reason}");
        assert!(remedy.contains(&not_ip.replace('\'', "\"")), "{remedy}");
        let better =
            [SSH, ("p", ports, "steer main"), ("o", others, "steer main"), ("n", not_ip, "steer main")];
        assert_eq!(first(&policy("kernel", &better), &profile).0, Decided::Hardware, "{}", profile.name);

        let own = ("own", "dst = ['192.0.2.1', '2001:db8::1']", "kernel");
        let (decided, _, remedy) = first(&policy("main", &[own]), &profile);
        assert_eq!(decided, Decided::Hybrid);
        assert!(remedy.contains("protocol = \"0-255\"") && !remedy.contains("dst_port"), "{remedy}");
        let better = [own, ("ip", "protocol = '0-255'", "steer main"), ("n", not_ip, "steer main")];
        assert_eq!(first(&policy("kernel", &better), &profile).0, Decided::Hardware, "{}", profile.name);

        let tagged = ("tagged", "vlan = 5", "kernel");
        let (decided, reason, remedy) = first(&policy("main", &[tagged]), &profile);
        assert_eq!(decided, Decided::Hybrid);
        assert!(
            reason.contains("without a tag") && remedy.contains("vlan = \"0-4095\""),
            "{reason} {remedy}"
        );
        let better = [tagged, ("t", "vlan = '0-4095'", "steer main")];
        assert_eq!(first(&policy("kernel", &better), &profile).0, Decided::Hardware, "{}", profile.name);
    }
}

#[test]
fn a_worker_decides_what_the_device_does_not_match_exactly() {
    let syn = ("syn", "dst = '192.0.2.1', tcp_flags = 'syn'", "kernel");
    let web = ("web", "dst_port = '80-95', protocol = 'tcp'", "steer main");
    let (decided, reason, remedy) = first(&policy("kernel", &[syn, web]), &DeviceModel::ideal());
    assert_eq!(decided, Decided::Hybrid);
    assert!(reason.starts_with("tcp_flags, kernel (`web` also matches"), "{reason}");
    assert!(remedy.contains("leave `tcp_flags` out"), "{remedy}");
    // Nobody takes these packets, so nobody needs to see them.
    let other = ("web", "dst = '192.0.2.9', dst_port = '80-95', protocol = 'tcp'", "steer main");
    let report = report(&policy("kernel", &[syn, other]), &DeviceModel::ideal());
    assert_eq!((report.rules[0].decided, report.rules[0].flows), (Decided::Hardware, 0));
}

/// On an mlx5, flows that match only multicast come after all others: such pieces would be in the wrong
/// place.
#[test]
fn multicast_stays_with_the_host_if_unicast_can_be_matched() {
    let mlx5 = DeviceModel::mlx5();
    let multicast = policy("main", &[("multicast", "dst_mac = 'multicast'", "kernel")]);
    assert_eq!(first(&multicast, &mlx5).0, Decided::Hardware);
    let own = policy("main", &[("own", "dst_mac = '02:00:00:00:00:01'", "kernel")]);
    assert_eq!(first(&own, &DeviceModel::ideal()).0, Decided::Hardware);
    let (decided, reason, _) = first(&own, &mlx5);
    assert_eq!(decided, Decided::Hybrid);
    assert!(reason.contains("multicast only"), "{reason}");
}

#[test]
fn a_device_without_tags_excludes_what_it_can_match() {
    let mlx4 = DeviceModel::mlx4();
    let own = ("own", "family = 'ipv4', dst = '192.0.2.1'", "kernel");
    let prefix = ("prefix", "dst = '192.0.2.0/24'", "steer main");
    let report = report(&policy("kernel", &[own, prefix]), &mlx4);
    assert_eq!((report.rules[0].decided, report.rules[0].flows), (Decided::Hardware, 0));
    assert_eq!(
        report.rules[0].note.as_deref(),
        Some("excluded from the flows of `prefix`, split into 7 more parts")
    );
    // It matches no protocols.
    let icmp = ("icmp", "family = 'ipv4', protocol = 'icmp'", "kernel");
    assert_eq!(first(&policy("kernel", &[icmp, prefix]), &mlx4).0, Decided::Hybrid);
}

#[test]
fn exceptions_with_too_many_pieces_stay_hybrid_and_show_the_count() {
    let addresses: Vec<String> =
        (0..400u32).map(|index| format!("'10.{}.{}.1'", index % 200, index / 2)).collect();
    let many = format!("dst = [{}]", addresses.join(", "));
    let all = ("all", "dst = '0.0.0.0/0'", "steer main");
    let report = report(&policy("kernel", &[("many", &many, "kernel"), all]), &DeviceModel::ideal());
    let rule = &report.rules[0];
    assert_eq!((rule.decided, rule.note.as_ref()), (Decided::Hybrid, None));
    let (reason, remedy) = (rule.reason.as_deref().unwrap(), rule.remedy.as_deref().unwrap());
    assert!(reason.contains("more parts, and the limit is 4096"), "{reason}");
    assert_eq!(rule.limit.as_deref(), Some("4096 parts of flows"));
    assert!(remedy.contains("fewer exceptions"), "{remedy}");
    // As if nothing had been tried.
    assert_eq!((rule.flows, report.rules[1].flows), (400, 1));
}

#[test]
fn flows_that_do_not_fit_are_not_split() {
    let own = ("own", "dst = '192.0.2.1'", "kernel");
    let prefix = ("prefix", "dst = '192.0.0.0/16'", "steer main");
    let cut = policy("kernel", &[own, prefix]);
    let small = DeviceModel { max_flows: Some(8), ..DeviceModel::ideal() };
    let (decided, reason, _) = first(&cut, &small);
    assert_eq!(decided, Decided::Hybrid);
    assert!(reason.contains("more flows than fit the device"), "{reason}");
    assert_eq!(first(&cut, &DeviceModel::ideal()).0, Decided::Hardware);
}

#[test]
fn copies_are_split_up_to_the_limit_of_copies() {
    let copied = |own: &str| {
        let text = format!(
            "{GROUP}[[rules]]\nname = 'own'\nmatch = {{ dst = '{own}' }}\naction = 'kernel'\n\
             [[rules]]\nname = 'tap'\nmatch = {{ dst = '192.0.2.0/24' }}\naction = {{ copy = 'main' }}\n"
        );
        report(&parse(&text), &DeviceModel { max_copies: Some(12), ..DeviceModel::ideal() })
    };
    let few = copied("192.0.2.0/28");
    assert_eq!((few.rules[0].decided, few.rules[1].flows), (Decided::Hardware, 4));
    let many = copied("192.0.2.1");
    assert_eq!((many.rules[0].decided, many.rules[1].flows), (Decided::Hybrid, 1));
    assert!(many.rules[0].reason.as_ref().unwrap().contains("more parts"), "{:?}", many.rules[0]);
}

/// An mlx5 does not look for a header of any ports: such a flow takes packets without one as well.
#[test]
fn packets_without_ports_are_excluded_from_rules_on_any_ports() {
    let web = ("web", "src_port = 80, dst_port = 80", "kernel");
    let any = ("any", "dst = '::/0', dst_port = '0-65535'", "steer main");
    let frame =
        packet::build::FrameBuilder::new().ip("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
    let cut = |bytes: usize| FlowKey::of(&frame.clone().udp(80, 80).build()[..bytes]);
    for profile in everywhere() {
        let small = DeviceModel { max_flows: Some(8), ..profile.clone() };
        for profile in [&profile, &small] {
            let program = compiler::compile(&policy("kernel", &[web, any]), profile, WORKERS).unwrap();
            for bytes in [56, 62] {
                let explained = program.explain(&cut(bytes));
                assert_eq!(explained.outcome.rule, RuleId(0), "{bytes} bytes on {}\n{program}", profile.name);
            }
        }
    }
}

/// The flows of an exception that cannot be subtracted match no more than the rules after it.
#[test]
fn an_inexact_exception_keeps_to_the_flows_of_later_rules() {
    let policy = policy(
        "kernel",
        &[("a", "dst_port = 53", "kernel"), ("b", "dst_mac = '02:00:00:00:00:01'", "steer main")],
    );
    for profile in [DeviceModel::mlx4(), DeviceModel::conservative()] {
        let program = compiler::compile(&policy, &profile, WORKERS).expect("it fits");
        let is_narrow = |flow: &program::Flow| flow.to_string().contains("dst=02:00:00:00:00:01");
        assert!(!program.flows.is_empty() && program.flows.iter().all(is_narrow), "{program}");
    }
}

#[test]
fn exceptions_to_exceptions_keep_their_names() {
    let first =
        ("first", "dst = '192.0.2.1', src = '198.51.100.0/24', protocol = 'tcp', dst_port = 80", "kernel");
    let ssh = ("second", "dst = '192.0.2.0/24', protocol = 'tcp', dst_port = '64-95'", "kernel");
    let all = ("all", "dst = '0.0.0.0/0'", "steer main");
    let program =
        compiler::compile(&policy("kernel", &[first, ssh, all]), &DeviceModel::ideal(), WORKERS).unwrap();
    let key = |src: [u8; 4], port| {
        let frame =
            packet::build::FrameBuilder::new().ipv4(src.into(), [192, 0, 2, 1].into()).tcp(9, port, 2);
        FlowKey::of(&frame.build())
    };
    let named = |key: &FlowKey| program.rules[program.explain(key).outcome.rule.index()].name.as_str();
    assert_eq!(named(&key([198, 51, 100, 7], 80)), "first");
    assert_eq!(named(&key([198, 51, 100, 7], 81)), "second");
    assert_eq!(named(&key([203, 0, 113, 7], 80)), "second");
    assert_eq!(named(&key([203, 0, 113, 7], 443)), "all");
}

#[test]
fn a_policy_without_a_group_may_leave_packets_to_the_host() {
    let text = "default = 'drop'\n[[rules]]\nname = 'arp'\nmatch = { ethertype = 'arp' }\naction = 'kernel'\n\
        [[rules]]\nname = 'own'\nmatch = { dst = '192.0.2.1' }\naction = 'kernel'\n";
    let report = report(&parse(text), &DeviceModel::mlx5());
    // The default drops packets without an IP header, too.
    assert_eq!(report.rules[1].decided, Decided::Impossible);
    let text = text.split("[[rules]]\nname = 'own'").next().unwrap();
    assert_eq!(first(&parse(text), &DeviceModel::mlx5()).0, Decided::Hardware);
}

/// Addresses of both families differ in how much of them is asked for: none is cut across another.
#[test]
fn exceptions_by_one_key_add_up() {
    let own = "dst = ['192.0.2.1', '192.0.2.254', '224.0.0.0/24', '224.0.1.129', '2001:db8::1', 'fe80::/10', 'ff02::/16']";
    let rules = [("host", own, "kernel"), ("transit", "protocol = '0-255'", "steer main")];
    for profile in everywhere() {
        let report = report(&policy("kernel", &rules), &profile);
        let program = report.program.expect("it fits");
        let [exception] = &program.exceptions[..] else { panic!("{program}") };
        // No more than there are bits.
        assert!(exception.pieces <= 4 * 32 + 128 + 10 + 16, "{}", exception.pieces);

        assert_eq!(report.rules[0].decided, Decided::Hardware, "{}", profile.name);
    }
}

/// Thousands of exceptions among thousands of rules, left out and not, cost seconds even on a slow machine.
#[test]
fn many_exceptions_among_many_rules_are_compiled_in_time() {
    let rules = |exception: &dyn Fn(usize) -> String, rule: &dyn Fn(usize) -> String| {
        let mut text = GROUP.to_owned();
        for index in 0..1000 {
            let (exception, rule) = (exception(index), rule(index));
            writeln!(text, "[[rules]]\nname = 'e{index}'\nmatch = {{ {exception} }}\naction = 'kernel'")
                .expect("strings take text");
            writeln!(text, "[[rules]]\nname = 'r{index}'\nmatch = {{ {rule} }}\naction = 'steer main'")
                .expect("strings take text");
        }
        parse(&text)
    };
    let prefix = |index: usize| format!("dst = '10.{}.{}.0/24'", index / 250, index % 250);
    let one = |index: usize| format!("dst = '10.{}.{}.1'", (index + 1) / 250, (index + 1) % 250);
    let port = |index: usize| format!("protocol = 'tcp', dst_port = {index}");
    let source = |index: usize| format!("family = 'ipv4', src = '10.{}.{}.1'", index / 250, index % 250);
    // Every exception meets one rule, all of them but cannot be left out, and all of them but soon is too
    // dear.
    for (what, exception) in [("one", &one as &dyn Fn(usize) -> String), ("port", &port), ("source", &source)]
    {
        let policy = rules(exception, &prefix);
        let started = test_support::CpuTime::now();
        let program = compiler::compile(&policy, &DeviceModel::ideal(), WORKERS).expect("it fits");
        let took = started.elapsed();
        let left_out = program.exceptions.iter().filter(|exception| exception.pieces > 0).count();
        println!("{what}: {took:?}, {} flows, {left_out} left out", program.flows.len());
        assert!(took < Duration::from_secs(10), "{what}: {took:?}");
    }
}

const POLICIES: usize = 120;

type Line = (Vec<Clause>, &'static str);

/// The cases that the trial has met, so that an empty one is seen.
#[derive(Debug, Default)]
struct Met {
    programs: usize,
    left_out: usize,
    kept: usize,
    left_by_rules: usize,
    taken: usize,
}

/// Exceptions, rules that ask for one thing less than an exception, and any others.
fn lines() -> impl Strategy<Value = Vec<Line>> {
    let exceptions = prop::collection::vec((clauses(), Just("kernel")), 1..4);
    let action = || prop::sample::select(vec!["steer main", "steer main", "drop", "kernel"]);
    let wider =
        prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), action()), 0..3);
    let others = prop::collection::vec((clauses(), action()), 0..3);
    (exceptions, wider, others).prop_map(|(exceptions, wider, others)| {
        let wider = wider.into_iter().map(|(exception, key, action)| {
            let mut clauses = exceptions[exception.index(exceptions.len())].0.clone();
            if !clauses.is_empty() {
                clauses.remove(key.index(clauses.len()));
            }
            (clauses, action)
        });
        let wider: Vec<Line> = wider.collect();
        let lines = exceptions.into_iter().chain(wider).chain(others);
        lines.filter(|line| can_be_said(std::slice::from_ref(line))).collect()
    })
}

fn trial(profile: &DeviceModel) -> Met {
    let mut runner = TestRunner::deterministic();
    let default = prop::sample::select(vec!["kernel", "kernel", "main", "drop"]);
    let all = (lines(), default, prop::collection::vec(packet_key(), 64));
    let mut met = Met::default();
    for _ in 0..POLICIES {
        let (lines, default, keys) = all.new_tree(&mut runner).expect("nothing is filtered").current();
        let Ok(program) = compiler::compile(&parse(&text(&lines, default)), profile, WORKERS) else {
            continue;
        };
        met.programs += 1;
        met.left_out +=
            program.exceptions.iter().filter(|exception| !exception.left_out_of.is_empty()).count();
        let kernel = |line: &usize| lines[*line].1 == "kernel";
        met.kept += (0..lines.len()).filter(kernel).filter(|line| program.rules[*line].flows > 0).count();
        for key in &keys {
            judge(&program, &lines, key, &mut met);
        }
    }
    met
}

fn text(lines: &[Line], default: &str) -> String {
    let mut text = format!("default = '{default}'\n{GROUP}");
    for (index, (clauses, action)) in lines.iter().enumerate() {
        let keys: Vec<&str> = clauses.iter().map(|clause| clause.text.as_str()).collect();
        let keys = if keys.is_empty() { "any = true".to_owned() } else { keys.join(", ") };
        writeln!(text, "[[rules]]\nname = 'r{index}'\nmatch = {{ {keys} }}\naction = '{action}'")
            .expect("strings take text");
    }
    text
}

fn can_be_said(lines: &[Line]) -> bool {
    let text = format!("version = 1\n{}", text(lines, "kernel"));
    policy::parse(&Source::new("random.toml", text), &NoFiles).is_ok()
}

/// First match wins, read line by line.
fn judge(program: &Program, lines: &[Line], key: &DeepKey, met: &mut Met) {
    let first = lines.iter().position(|(clauses, action)| {
        let act = if *action == "kernel" { Act::Kernel } else { Act::Drop };
        Rule { clauses: clauses.clone(), act }.holds(key)
    });
    let rule = RuleId::of(first.unwrap_or(lines.len()));
    let explained = program.explain_deep(key);
    let verdict = program.rules[rule.index()].action;
    assert_eq!(explained.outcome, Outcome { rule, verdict }, "{key:?}\n{program}");
    let has_no_flow = program.rules[rule.index()].flows == 0;
    if verdict == Verdict::Kernel && first.is_some() {
        let hybrid = program.classes.iter().flatten().any(|class| !class.is_exact());
        assert!(explained.flow.is_none() || !has_no_flow || hybrid, "{key:?}\n{program}");
        met.left_by_rules += usize::from(explained.flow.is_none());
    }
    met.taken += usize::from(explained.flow.is_some());
}

#[test]
fn the_program_decides_as_the_policy() {
    for profile in [DeviceModel::ideal(), DeviceModel::mlx5(), DeviceModel::mlx4()] {
        let met = trial(&profile);
        println!("{}: {met:?}", profile.name);
        assert!(met.programs > 100 && met.left_out > 5 && met.kept > 20, "{}: {met:?}", profile.name);
        assert!(met.left_by_rules > 200 && met.taken > 500, "{}: {met:?}", profile.name);
    }
}

/// A device model refuses of the packet inside a tunnel what it refuses of an outer header.
#[test]
fn refusals_apply_to_the_packet_inside() {
    let fields = [
        ("tos", "tos = 4"),
        ("flow_label", "flow_label = 7"),
        ("hop_limit", "hop_limit = 1"),
        ("src_mac", "src_mac = '02:00:00:00:00:01'"),
        ("protocol", "protocol = 89"),
        ("ipv6", "family = 'ipv6', src_port = 7"),
    ];
    for (feature, inner) in fields {
        let model = format!(
            "name = 'x'\npriorities = 64\nmax_specs = 12\nmax_table = 64\ntag_bits = 24\n\
             refusals = [{{ feature = '{feature}', errno = 'EINVAL', source = 'x' }}]\n"
        );
        let model = DeviceModel::parse("x.toml".as_ref(), &model).expect("a model");
        let policy = policy("drop", &[("a", &format!("vxlan_vni = 5, inner = {{ {inner} }}"), "steer main")]);
        assert_eq!(first(&policy, &model).0, Decided::Hybrid, "{feature}");
        assert_eq!(first(&policy, &DeviceModel::ideal()).0, Decided::Hardware, "{feature}");
    }
}

/// Packets that a worker receives are not copied. Copying before the exception would copy what it excludes.
#[test]
fn a_copy_behind_an_exception_that_a_worker_decides_says_why() {
    let text = format!(
        "{GROUP}[[rules]]\nname = 'own'\nmatch = {{ dst_port = 873 }}\naction = 'kernel'\n\
         [[rules]]\nname = 'tap'\nmatch = {{ any = true }}\naction = {{ copy = 'main' }}\n"
    );
    let problems = compiler::compile(&parse(&text), &DeviceModel::mlx5(), WORKERS).unwrap_err().to_string();
    let (reason, remedy) = (
        "packets that `tap` copies go to the worker by `own` first: kernel: a later rule also matches packets without an IP \
         header, and no flow can match only those",
        "write, in place of `tap`, rules on `protocol = \"0-255\"`",
    );
    assert!(problems.contains(reason) && problems.contains(remedy), "{problems}");
    assert!(
        problems.contains("move `tap` before `own`, if it may copy the packets of `own` as well"),
        "{problems}"
    );
}
