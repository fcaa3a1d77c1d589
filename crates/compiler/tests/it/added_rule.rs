//! Programs that are extended by rules decide packets as the compiled policy with these rules does.

use std::collections::HashSet;

use compiler::{AddedRules, Job};
use device_model::DeviceModel;
use packet::DeepKey;
use packet::build::FrameBuilder;
use policy::policy::{Action, InsertedRule};
use policy::{NoFiles, Policy, Source};
use program::{Program, RuleId, RuntimeMatch};
use proptest::prelude::*;

fn policy(rules: &[(usize, usize)], before: usize, default: usize) -> Policy {
    let matches = [
        "src = '10.0.0.0/8'",
        "src = '10.0.0.0/24', protocol = 'tcp'",
        "protocol = 'udp', dst_port = 53",
        "protocol = 'tcp', dst_port = [22, 80]",
        "dst_port = '50-60'",
        "protocol = 'icmp'",
        "family = 'ipv4'",
        "src = '10.0.0.1'",
        "src = '172.16.0.0/12'",
    ];
    let actions = ["'drop'", "{ steer = 'g' }", "'kernel'"];
    let runtime = if before < rules.len() { format!("before = 'r{before}'") } else { String::new() };
    let mut text = format!(
        "version = 1\ndefault = {}\nallow_lost_exceptions = true\n[groups.g]\nworkers = 'all'\n[runtime]\n{runtime}\n\
         matches = ['src dst_port', 'protocol dst_port', 'src']\nactions = ['drop']\n",
        ["'kernel'", "'drop'", "'g'"][default]
    );
    for (number, (of, action)) in rules.iter().enumerate() {
        text += &format!(
            "[[rules]]\nname = 'r{number}'\nmatch = {{ {} }}\naction = {}\n",
            matches[*of], actions[*action]
        );
    }
    policy::parse(&Source::new("p.toml", &text), &NoFiles).unwrap_or_else(|found| panic!("{found}\n{text}")).0
}

/// A rule of a form.
fn matches(form: usize, host: u8, port: u16) -> RuntimeMatch {
    let src = format!("10.0.{}.{host}", host % 2).parse().ok();
    let none = RuntimeMatch::default();
    match form {
        0 => RuntimeMatch { src, dst_port: Some(port), ..none },
        1 => RuntimeMatch { protocol: Some(program::ProtocolNumber(17)), dst_port: Some(port), ..none },
        _ => RuntimeMatch { src, ..none },
    }
}

/// The index of the form in the policy's list, where an address without a length is one of IPv4 and one of
/// IPv6.
const FORM: [usize; 3] = [0, 2, 3];

fn frames() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for host in 0..4u8 {
        let ip = || FrameBuilder::new().ipv4([10, 0, host % 2, host].into(), [192, 0, 2, 1].into());
        for port in [22, 53, 55, 80, 99] {
            frames.push(ip().tcp(1000, port, 0x10).build());
            frames.push(ip().udp(1000, port).build());
        }
    }
    frames
}

/// The fate of a packet, and the name of the rule.
fn fate(program: &Program, key: &DeepKey) -> (String, bool) {
    let explained = program.explain_deep(key);
    (program.rules[explained.rule.index()].name.to_string(), explained.reaches_host())
}

/// One rule, and the number that it gets.
fn one(rule: InsertedRule, place: usize) -> AddedRules {
    AddedRules { rules: vec![rule], place: RuleId::of(place) }
}

fn without_added_rule(program: &Program, name: &str) -> Option<Program> {
    compiler::without_added_rules(program, &HashSet::from([name]))
}

fn inserted(number: usize, of: &RuntimeMatch) -> InsertedRule {
    InsertedRule { name: format!("({number})"), matches: *of, action: Action::Drop }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn an_extended_program_decides_as_the_compiled_one(
        rules in prop::collection::vec((0usize..8, 0usize..3), 0..6),
        before in 0usize..7,
        default in 0usize..3,
        added in prop::collection::vec((0usize..3, 0u8..4, prop::sample::select(vec![53u16, 55, 80]), 1u8..4), 1..5),
        first in 0usize..4,
        is_mlx5 in any::<bool>(),
    ) {
        let own = policy(&rules, before, default);
        let device = if is_mlx5 { DeviceModel::mlx5() } else { DeviceModel::ideal() };
        let job = Job::new(&own, &device, 2);
        let mut program = job.compile().expect("it compiles");
        let mut known: Vec<(usize, RuntimeMatch)> = Vec::new();
        let place = own.runtime.as_ref().expect("[runtime]").before;
        for (form, host, port, count) in added {
            let mut rules: Vec<RuntimeMatch> = (host..host + count).map(|host| matches(form, host, port)).collect();
            rules.dedup();
            rules.retain(|rule| known.iter().all(|(_, other)| other != rule));
            if rules.is_empty() {
                continue;
            }
            let index = known.iter().filter(|(other, _)| *other <= form).count();
            for rule in &rules {
                prop_assert_eq!(own.runtime.as_ref().expect("[runtime]").forms.get(FORM[form]).copied(), rule.fields().ok());
            }
            let named = (known.len()..).zip(&rules).map(|(number, rule)| inserted(number, rule)).collect();
            let rules_added = AddedRules { rules: named, place: RuleId::of(place + index) };
            let Some(extended) = job.with_added_rules(&program, &rules_added) else { break };
            known.extend(rules.into_iter().map(|rule| (form, rule)));
            let mut whole = own.clone();
            whole.insert_at_run_time(known.iter().enumerate().map(|(number, (_, rule))| inserted(number, rule)).collect());
            let compiled = Job::new(&whole, &device, 2).compile().expect("it compiles");
            for frame in frames() {
                let key = DeepKey::of(&frame);
                prop_assert_eq!(fate(&extended, &key), fate(&compiled, &key), "{} of {:?}", key.describe(), known);
            }
            let names = |program: &Program| program.rules.iter().map(|rule| rule.name.clone()).collect::<Vec<_>>();
            prop_assert_eq!(names(&extended).len(), names(&compiled).len());
            let subject = |program: &Program| program.runtime.as_ref().map(|runtime| runtime.subject.clone());
            prop_assert_eq!(subject(&extended), subject(&compiled));
            program = extended;
        }
        // They go again, in an order that is not that of their coming, first two at once.
        if known.len() > 4 {
            let [one, other] = [known.len() - 1, first].map(|number| format!("({number})"));
            let both = compiler::without_added_rules(&program, &HashSet::from([one.as_str(), other.as_str()]));
            let in_turn = without_added_rule(&program, &one).and_then(|left| without_added_rule(&left, &other));
            prop_assert_eq!(both, in_turn);
        }
        let mut left: Vec<(usize, usize, RuntimeMatch)> =
            known.into_iter().enumerate().map(|(number, (form, rule))| (number, form, rule)).collect();
        while !left.is_empty() {
            let (gone, ..) = left.remove(first % left.len());
            let name = format!("({gone})");
            let splits = |exception: &program::Exception| {
                exception.left_out_of.iter().any(|rule| program.rules[rule.index()].name == name)
            };
            let is_split = program.exceptions.iter().any(splits);
            let reduced = without_added_rule(&program, &name);
            prop_assert_eq!(reduced.is_none(), is_split, "{}", name);
            let Some(reduced) = reduced else { break };
            let mut whole = own.clone();
            whole.insert_at_run_time(left.iter().map(|(number, _, rule)| inserted(*number, rule)).collect());
            let compiled = Job::new(&whole, &device, 2).compile().expect("it compiles");
            for frame in frames() {
                let key = DeepKey::of(&frame);
                prop_assert_eq!(fate(&reduced, &key), fate(&compiled, &key), "{} of {:?}", key.describe(), left);
            }
            prop_assert_eq!(reduced.rules.len(), compiled.rules.len());
            prop_assert_eq!(reduced.runtime.as_ref().map(|runtime| &runtime.subject), compiled.runtime.as_ref().map(|runtime| &runtime.subject));
            program = reduced;
        }
    }
}

#[test]
fn rules_that_share_no_packet_with_hybrid_ones_are_added_one_by_one() {
    let own = policy(&[(3, 2), (0, 1)], 1, 0);
    let device = DeviceModel::ideal();
    let job = Job::new(&own, &device, 2);
    let mut program = job.compile().expect("it compiles");
    let own_priorities = program.priorities_used;
    for host in 0..200u8 {
        let rule = inserted(host.into(), &matches(2, host, 0));
        let added = one(rule, 1 + usize::from(host));
        program = job.with_added_rules(&program, &added).expect("there is nothing in its way");
    }
    assert_eq!(
        program.priorities_used,
        own_priorities + 1,
        "all of them have one, before the rule behind them"
    );
    let exceptions = &program.exceptions[0];
    assert_eq!(exceptions.left_out_of.len(), 201, "SSH is left out of each");
    assert_eq!(without_added_rule(&program, "(7)"), None, "what SSH would look like without it is not known");
    let rules = (0..200u8).map(|host| inserted(host.into(), &matches(2, host, 0))).collect();
    let added = AddedRules { rules, place: RuleId::of(1) };
    let at_once = job.with_added_rules(&job.compile().expect("it compiles"), &added);
    assert_eq!(at_once, Some(program), "all at once too");
}

/// The first rule has to come before all flows of a rule behind it, the second one behind most of them.
#[test]
fn rules_of_several_priorities_are_added_at_once() {
    let own = policy(&[(1, 0), (0, 1), (8, 1), (6, 0)], 2, 0);
    let device = DeviceModel::ideal();
    let job = Job::new(&own, &device, 2);
    let before = job.compile().expect("it compiles");
    let rules = ["172.16.0.1", "10.0.0.7"].into_iter().enumerate().map(|(number, src)| {
        inserted(number, &RuntimeMatch { src: src.parse().ok(), ..RuntimeMatch::default() })
    });
    let added = AddedRules { rules: rules.clone().collect(), place: RuleId::of(2) };
    let extended = job.with_added_rules(&before, &added).expect("each has room");
    assert_eq!(extended.priorities_used, before.priorities_used + 2, "a priority is inserted for each");
    let mut whole = own.clone();
    whole.insert_at_run_time(rules.collect());
    let compiled = Job::new(&whole, &device, 2).compile().expect("it compiles");
    let mut decided_by_new = 0;
    for src in [[172, 16, 0, 1], [172, 16, 0, 2], [10, 0, 0, 7], [10, 0, 0, 8], [10, 1, 0, 7], [192, 0, 2, 9]]
    {
        let ip = || FrameBuilder::new().ipv4(src.into(), [192, 0, 2, 1].into());
        for frame in [ip().tcp(1000, 22, 0x10).build(), ip().udp(1000, 53).build()] {
            let key = DeepKey::of(&frame);
            assert_eq!(fate(&extended, &key), fate(&compiled, &key), "{}", key.describe());
            decided_by_new += usize::from(fate(&extended, &key).0.starts_with('('));
        }
    }
    assert_eq!(decided_by_new, 2, "the packets from 172.16.0.1");
}

#[test]
fn all_others_are_as_before_once_an_added_rule_goes() {
    let own = policy(&[(0, 1), (6, 0)], 0, 0);
    let device = DeviceModel::ideal();
    let job = Job::new(&own, &device, 2);
    let before = job.compile().expect("it compiles");
    let added = one(inserted(0, &matches(2, 1, 0)), 0);
    let with = job.with_added_rules(&before, &added).expect("there is nothing in its way");
    assert!(with.flows.len() > before.flows.len() && with.rules.len() == before.rules.len() + 1);
    let mut again = without_added_rule(&with, "(0)").expect("it was added");
    assert_eq!(without_added_rule(&again, "(0)"), None, "it is not there any more");
    // The priorities of later flows have made room, which stays.
    let priorities = |program: &Program| program.flows.iter().map(|flow| flow.priority).collect::<Vec<_>>();
    let room = again.priorities_used - before.priorities_used;
    let of_before = priorities(&before);
    let behind =
        of_before.iter().zip(priorities(&again)).filter(|(was, is)| **was != *is).map(|(was, _)| *was);
    let first = behind.min().unwrap_or(u16::MAX);
    let expected = of_before.iter().map(|was| if *was >= first { was + room } else { *was });
    assert_eq!(priorities(&again), expected.collect::<Vec<_>>());
    again.flows.iter_mut().zip(of_before).for_each(|(flow, priority)| flow.priority = priority);
    again.priorities_used = before.priorities_used;
    assert_eq!(again, before);
}
