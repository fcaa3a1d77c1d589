//! The judge: random policies and packets at their rules' boundaries, decided by the compiled program and
//! by a linear reader of the policy's meaning. The reader shares nothing with the compiler: every clause
//! carries, beside its text, what it means for a packet.

mod support;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use packet::{FlowKey, Toeplitz};
use policy::{Decide, DeviceProfile, FlowAction, GroupId, Outcome, Program, RuleId, Source, Verdict};
use proptest::prelude::*;

use support::clauses::{Clause, clauses};
use support::packets::packet_key;

const WORKERS: usize = 4;
/// Devices from this number on may lack what a policy takes.
const FIRST_REAL: usize = 2;
/// What they then say.
const REFUSALS: [&str; 1] = ["priorities, `mlx5` has"];
/// What random ranges and negations together may be too many for, on every device.
const TOO_MANY: [&str; 2] = ["combinations", "mask shapes"];

fn profile(device: usize) -> DeviceProfile {
    match device {
        0 => DeviceProfile::ideal(),
        1 => DeviceProfile { hash_field_exclusive: false, ..DeviceProfile::ideal() },
        2 => DeviceProfile::mlx5(),
        _ => DeviceProfile::mlx4(),
    }
}

const GROUPS: [&str; 3] = ["spread", "addresses", "single"];
const GROUP_TEXT: &str = r#"
[groups.spread]
workers = "all"
[groups.addresses]
workers = [2, 1]
hash = "l3"
symmetric = false
[groups.single]
workers = [1]
hash = "none"
"#;

#[derive(Clone, Debug)]
enum Act {
    Steer(usize),
    Drop,
    Kernel,
}

impl Act {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Steer(group) => Verdict::Deliver(GroupId(*group as u32)),
            Self::Drop => Verdict::Drop,
            Self::Kernel => Verdict::Kernel,
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Steer(group) => format!("{{ steer = \"{}\" }}", GROUPS[*group]),
            Self::Drop => "\"drop\"".to_owned(),
            Self::Kernel => "\"kernel\"".to_owned(),
        }
    }
}

type RandomRule = (Vec<Clause>, Act);

/// First match wins: the whole meaning of a policy.
fn reference(rules: &[RandomRule], default: &Act, key: &FlowKey) -> Outcome {
    for (index, (clauses, act)) in rules.iter().enumerate() {
        if clauses.iter().all(|clause| (clause.holds)(key)) {
            return Outcome { rule: RuleId(index as u32), verdict: act.verdict() };
        }
    }
    Outcome { rule: RuleId(rules.len() as u32), verdict: default.verdict() }
}

fn text(rules: &[RandomRule], default: &Act) -> String {
    let mut text = format!("version = 1\ndefault = {}\n{GROUP_TEXT}", default.text());
    for (index, (clauses, act)) in rules.iter().enumerate() {
        let keys: Vec<&str> = clauses.iter().map(|clause| clause.text.as_str()).collect();
        let keys = if keys.is_empty() { "any = true".to_owned() } else { keys.join(", ") };
        let action = act.text();
        writeln!(text, "[[rules]]\nname = \"r{index}\"\nmatch = {{ {keys} }}\naction = {action}")
            .expect("strings take text");
    }
    text
}

fn parse(text: &str) -> Result<policy::Policy, policy::Diagnostics> {
    policy::parse(&Source::new("random.toml", text), &policy::NoFiles).map(|(policy, _)| policy)
}

/// Whether a rule alone is beyond the limit; then it must be refused for nothing else.
fn explodes(rule: &RandomRule) -> bool {
    let policy = parse(&text(std::slice::from_ref(rule), &Act::Kernel)).expect("filtered by the caller");
    match policy::compile(&policy, &DeviceProfile::ideal(), WORKERS) {
        Ok(_) => false,
        Err(problems) => {
            assert!(problems.list.iter().all(is_too_much), "{problems}");
            true
        }
    }
}

fn is_too_much(problem: &policy::Diagnostic) -> bool {
    TOO_MANY.iter().any(|words| problem.message.contains(words))
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![3 => (0..GROUPS.len()).prop_map(Act::Steer), 1 => Just(Act::Drop)]
}

fn default_act() -> impl Strategy<Value = Act> {
    prop_oneof![1 => act(), 1 => Just(Act::Kernel)]
}

/// The flows that a device might pick: those of the best priority that match. They must all say the same.
fn device_agrees(program: &Program, key: &FlowKey, chosen: usize) -> Result<(), TestCaseError> {
    let best = &program.flows[chosen];
    for flow in program.flows.iter().filter(|flow| flow.priority == best.priority) {
        if flow.specs.iter().all(|spec| spec.matches(key)) {
            prop_assert_eq!((flow.rule, flow.action), (best.rule, best.action), "a tie that matters");
        }
    }
    Ok(())
}

fn judge(program: &Program, rules: &[RandomRule], default: &Act, key: &FlowKey) -> Result<(), TestCaseError> {
    let wanted = reference(rules, default, key);
    let explained = program.explain(key);
    prop_assert_eq!(explained.outcome, wanted, "{:?}\n{}", key, program);
    let Some(flow) = explained.flow else {
        prop_assert_eq!(wanted.verdict, Verdict::Kernel);
        return Ok(());
    };
    device_agrees(program, key, flow)?;
    match program.flows[flow].action {
        FlowAction::Drop | FlowAction::Pass => prop_assert_eq!(explained.worker, None),
        FlowAction::Steer { queue, class } => {
            let queue = &program.queues[queue.index()];
            let group = &program.groups[queue.group.index()];
            // However the group is cut into queues, it must spread as one with all its fields would.
            let hash = Toeplitz::new(&group.key).hash_key(key, group.fields);
            let worker = group.table[hash as usize % group.table.len()];
            prop_assert_eq!((explained.hash, explained.worker), (Some(hash), Some(worker)));
            if let (Decide::Exact(_), Verdict::Deliver(wanted)) =
                (&program.class(class).expect("a class").decide, wanted.verdict)
            {
                prop_assert_eq!(queue.group, wanted);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 384, ..ProptestConfig::default() })]

    #[test]
    fn the_program_decides_as_the_policy_reads(
        rules in prop::collection::vec((clauses(), act()), 0..9),
        default in default_act(),
        keys in prop::collection::vec(packet_key(), 64),
        device in 0..4usize,
    ) {
        // A rule that is refused for contradicting itself must be one that no packet meets.
        let (rules, refused): (Vec<_>, Vec<_>) = rules
            .into_iter()
            .partition(|rule| parse(&text(std::slice::from_ref(rule), &Act::Kernel)).is_ok());
        for (clauses, _) in &refused {
            for key in &keys {
                prop_assert!(!clauses.iter().all(|clause| (clause.holds)(key)), "{clauses:?} meets {key:?}");
            }
        }
        let rules: Vec<_> = rules.into_iter().filter(|rule| !explodes(rule)).collect();
        let text = text(&rules, &default);
        let policy = parse(&text).map_err(|problems| TestCaseError::fail(format!("{problems}\n{text}")))?;
        let profile = profile(device);
        let program = match policy::compile(&policy, &profile, WORKERS) {
            Ok(program) => program,
            Err(problems) => {
                let said = |problem: &policy::Diagnostic| {
                    REFUSALS.iter().any(|words| problem.message.contains(words))
                };
                let is_known = problems
                    .list
                    .iter()
                    .all(|problem| is_too_much(problem) || (device >= FIRST_REAL && said(problem)));
                prop_assert!(is_known, "{problems}\n{text}");
                return Ok(());
            }
        };
        for key in &keys {
            judge(&program, &rules, &default, key)?;
        }
        let again = policy::compile(&parse(&text).unwrap(), &profile, WORKERS).unwrap();
        prop_assert_eq!(&again, &program);
        prop_assert_eq!(again.to_string(), program.to_string());
    }

    /// A rule that `check` calls unreachable is never the outcome.
    #[test]
    fn unreachable_rules_are_not_reached(
        rules in prop::collection::vec((clauses(), act()), 2..7),
        keys in prop::collection::vec(packet_key(), 32),
    ) {
        let rules: Vec<_> = rules
            .into_iter()
            .filter(|rule| parse(&text(std::slice::from_ref(rule), &Act::Kernel)).is_ok())
            .filter(|rule| !explodes(rule))
            .collect();
        let policy = parse(&text(&rules, &Act::Kernel)).unwrap();
        let program = match policy::compile(&policy, &DeviceProfile::ideal(), WORKERS) {
            Ok(program) => program,
            Err(problems) => {
                prop_assert!(problems.list.iter().all(is_too_much), "{problems}");
                return Ok(());
            }
        };
        let mut dead = BTreeMap::new();
        for warning in policy::check(&policy, &program).warnings {
            if warning.message.ends_with("never matches") {
                let line = program.rules.iter().position(|rule| rule.line == warning.line).unwrap();
                dead.insert(RuleId(line as u32), warning.message);
            }
        }
        for key in &keys {
            let outcome = reference(&rules, &Act::Kernel, key);
            prop_assert!(!dead.contains_key(&outcome.rule), "{:?}", dead.get(&outcome.rule));
        }
    }
}
