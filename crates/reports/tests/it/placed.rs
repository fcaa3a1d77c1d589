//! The report on the other rules where one rule is impossible.

use device_model::DeviceModel;
use policy::{NoFiles, Source};
use reports::{Decided, Report};

fn report(rules: &str) -> Report {
    let text = format!("version = 1\n[groups.g]\nworkers = [0, 1]\n{rules}");
    let (policy, _) = policy::parse(&Source::new("p.toml", text), &NoFiles).expect("a policy");
    reports::report(&policy, &DeviceModel::ideal(), 2, None)
}

fn rule(name: &str, matches: &str, rest: &str) -> String {
    format!("[[rules]]\nname = \"{name}\"\nmatch = {{ {matches} }}\n{rest}\n")
}

fn decided(report: &Report) -> Vec<(&str, Decided)> {
    report.rules.iter().map(|rule| (rule.name.as_str(), rule.decided)).collect()
}

const STEER: &str = "action = { steer = \"g\" }";
const SNIFF: &str = "action = { sniff = \"g\" }";
/// No worker sees what is sent, so none can decide by flags.
const SENT: &str = "direction = \"egress\"\naction = \"drop\"";

#[test]
fn the_other_rules_keep_their_places() {
    let web = rule("web", "protocol = \"tcp\", dst_port = 80, dst = \"192.0.2.1\"", STEER);
    let syn = rule("syn", "tcp_flags = \"syn\", dst = \"192.0.2.2\"", STEER);
    let sent = rule("sent", "tcp_flags = \"rst\"", SENT);
    let broken = report(&format!("{web}{sent}{syn}"));
    assert!(broken.program.is_none());
    let expected = [
        ("web", Decided::Hardware),
        ("sent", Decided::Impossible),
        ("syn", Decided::Hybrid),
        ("default", Decided::Hardware),
    ];
    assert_eq!(decided(&broken), expected);
    // As they would be without it, but for the lines.
    let whole = report(&format!("{web}{syn}"));
    let known = |report: &Report| -> Vec<_> {
        let rules = report.rules.iter().filter(|rule| rule.decided != Decided::Impossible);
        rules
            .map(|rule| (rule.name.clone(), rule.action.clone(), rule.reason.clone(), rule.flows, rule.steps))
            .collect()
    };
    assert_eq!(known(&broken), known(&whole));
}

#[test]
fn several_impossible_rules_are_all_found() {
    let sniff = |name: &str| rule(name, "any = true", SNIFF);
    let web = rule("web", "protocol = \"tcp\", dst_port = 80", STEER);
    let sent = rule("sent", "tcp_flags = \"rst\"", SENT);
    let broken = report(&format!("{}{}{sent}{web}", sniff("first"), sniff("second")));
    let told = decided(&broken);
    assert_eq!(
        told[1..4],
        [("second", Decided::Impossible), ("sent", Decided::Impossible), ("web", Decided::Hardware)]
    );
}

#[test]
fn a_policy_that_is_impossible_as_a_whole_has_unknown_rules() {
    let text = "version = 1\n[groups.g]\nworkers = [0, 7]\n[[rules]]\nname = \"web\"\nmatch = { dst_port = 80 }\naction = { steer = \"g\" }\n";
    let (policy, _) = policy::parse(&Source::new("p.toml", text), &NoFiles).expect("a policy");
    let report = reports::report(&policy, &DeviceModel::ideal(), 2, None);
    assert_eq!(decided(&report), [("web", Decided::Unknown)]);
}

#[test]
fn drop_rules_without_a_group_are_refused_for_the_priorities() {
    // One packet matches all of them.
    let nested = |index: u32| format!("src = \"10.0.0.0/{}\"", 32 - index);
    let drop = |index: u32| rule(&format!("r{index}"), &nested(index), "action = \"drop\"");
    let text = |count| format!("version = 1\n{}", (0..count).map(drop).collect::<String>());
    let compile = |count| {
        let (policy, _) = policy::parse(&Source::new("p.toml", text(count)), &NoFiles).expect("a policy");
        compiler::compile(&policy, &DeviceModel::mlx5(), 0)
    };
    assert_eq!(compile(15).map(|program| program.priorities_used).ok(), Some(15));
    let problems = compile(16).expect_err("a program has fifteen").to_string();
    let told = ["needs 16 priorities, `mlx5` has 15", "(ENOMEM)", "`r14` must precede `r15`", "r0, r1, r2"];
    assert!(told.iter().all(|part| problems.contains(part)), "{problems}");
}
