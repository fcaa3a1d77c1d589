//! Random policies, and packets at the boundaries of their rules, decided by the compiled program and by a
//! linear reference matcher. The matcher shares no code with the compiler: every clause has, beside its text,
//! its own predicate.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use compiler::{Job, Weights};
use device_model::DeviceModel;
use packet::{DeepKey, Toeplitz};
use program::{
    ClassId, Copied, Decide, Decider, Explanation, Flow, FlowAction, FlowKind, FlowSpec, GroupId,
    HostReception, Outcome, Placement, Program, RuleDeciders, RuleId, Verdict, WorkerId,
};
use proptest::prelude::*;
use proptest::test_runner::{TestRunner, contextualize_config};

use crate::support::packets::packet_key;
use crate::support::rules::{Act, Rule, Rules, parse, policy, rules, text};

const WORKERS: usize = 4;
const CASES: u32 = 256;
const KEYS: usize = 64;

/// The meaning of a policy for a packet: who gets a copy, and the rule that decides.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Meaning {
    copies: Vec<(RuleId, GroupId)>,
    last: Option<RuleId>,
    act: Option<Act>,
}

/// First match wins; copies go on. A sniffer hears what passes the port, so not what may not leave.
fn reference(rules: &[Rule], sent: bool, key: &DeepKey) -> Meaning {
    let mut meaning = Meaning { copies: Vec::new(), last: None, act: None };
    for (index, rule) in rules.iter().enumerate() {
        let id = RuleId(index as u32);
        if !rule.holds(key) {
            continue;
        }
        match rule.act {
            Act::Sniff(group) => meaning.copies.push((id, group)),
            _ if meaning.last.is_some() || rule.act.is_about_sent() != sent => {}
            Act::Copy(group) => meaning.copies.push((id, group)),
            act => (meaning.last, meaning.act) = (Some(id), Some(act)),
        }
    }
    if meaning.act == Some(Act::DropSent) {
        meaning.copies.clear();
    }
    meaning
}

/// A case: what was compiled and for which device.
struct Case<'c> {
    rules: &'c [Rule],
    default: Act,
    profile: &'c DeviceModel,
    program: &'c Program,
    deciders: &'c [RuleDeciders],
}

impl Case<'_> {
    fn received(&self, key: &DeepKey) -> Result<(), TestCaseError> {
        let program = self.program;
        let meant = reference(self.rules, false, key);
        let wanted = Outcome {
            rule: meant.last.unwrap_or(RuleId(self.rules.len() as u32)),
            verdict: meant.act.unwrap_or(self.default).verdict(),
        };
        let explained = program.explain_deep(key);
        prop_assert_eq!(explained.outcome, wanted, "{:?}\n{}", key, program);
        self.copies(&meant, &explained.copies, explained.flow, key)?;
        self.deciders_agree(key, &explained)?;
        self.device_agrees(FlowKind::Normal, key, explained.flow)?;
        let Some(flow) = explained.flow else {
            prop_assert_eq!(wanted.verdict, Verdict::Kernel);
            return Ok(());
        };
        // Hash variants may lack an order where there are fewest priorities beside those of copies, and where
        // a worker compares.
        let is_exact = program.rules[program.flows[flow].rule.index()].placement == Placement::Hardware;
        let copies = self.rules.iter().filter(|rule| matches!(rule.act, Act::Copy(_))).count();
        if self.is_tight() && !(is_exact && self.profile.priorities_per_program() as usize >= 5 + copies) {
            return Ok(());
        }
        let FlowAction::Steer { queue, class } = program.flows[flow].action else {
            prop_assert_eq!(explained.worker, None);
            return Ok(());
        };
        let queue = &program.queues[queue.index()];
        let group = &program.groups[queue.group.index()];
        // However the group is cut into queues, it must spread as one with all its fields would.
        let hash = Toeplitz::new(&group.key).hash_deep(key, group.fields);
        let worker = group.table[hash as usize % group.table.len()];
        prop_assert_eq!(
            (explained.hash, explained.worker),
            (Some(hash), Some(worker)),
            "{:?}\n{}",
            key,
            program
        );
        if let (Decide::Exact(_), Verdict::Deliver(wanted)) =
            (&program.class(class).expect("a class").decide, wanted.verdict)
        {
            prop_assert_eq!(queue.group, wanted);
        }
        Ok(())
    }

    /// On an interface the packet and its copies are decided by some of the deciders of their rules, and the
    /// host receives the packet if it does so for the rule. The device must honour all priorities.
    fn deciders_agree(&self, key: &DeepKey, explained: &Explanation) -> Result<(), TestCaseError> {
        if self.profile.multicast_ignores_priority && key.outer.dst_mac.0[0] & 1 == 1 {
            return Ok(());
        }
        let of_rule = |outcome: &Outcome| &self.deciders[outcome.rule.index()];
        let RuleDeciders { decided_by, host } = of_rule(&explained.outcome);
        let decider = self.program.decider(key);
        prop_assert!(decided_by.contains(&decider), "{decider:?} {:?} {key:?}\n{}", explained, self.program);
        let may_reach = match host {
            HostReception::Yes => explained.reaches_host(),
            HostReception::No => !explained.reaches_host(),
            HostReception::Partly => true,
            HostReception::OtherRules | HostReception::Sent => false,
        };
        prop_assert!(may_reach, "{host:?} {:?} {key:?}\n{}", explained, self.program);
        for copied in &explained.copies {
            let is_exact = |class: ClassId| self.program.class(class).is_some_and(program::Class::is_exact);
            let decider = if copied.class.is_some_and(is_exact) { Decider::Engine } else { Decider::Worker };
            let RuleDeciders { decided_by, host } = of_rule(&copied.outcome);
            prop_assert!(decided_by.contains(&decider), "{decider:?} {copied:?} {key:?}\n{}", self.program);
            prop_assert_eq!(*host, HostReception::OtherRules);
        }
        Ok(())
    }

    fn sent(&self, key: &DeepKey) -> Result<(), TestCaseError> {
        let meant = reference(self.rules, true, key);
        let explained = self.program.explain_sent(key);
        let leaves = meant.act != Some(Act::DropSent);
        prop_assert_eq!(
            (explained.rule, explained.leaves),
            (meant.last, leaves),
            "{:?}\n{}",
            key,
            self.program
        );
        let heard = wanted_of(&explained.copies);
        prop_assert_eq!(heard, rules_of(&meant.copies), "heard of {:?}\n{}", key, self.program);
        self.device_agrees(FlowKind::Egress, key, explained.flow)
    }

    /// The flows that a device might let decide, which must all say the same as the one that `explain` names.
    fn device_agrees(
        &self,
        kind: FlowKind,
        key: &DeepKey,
        chosen: Option<usize>,
    ) -> Result<(), TestCaseError> {
        let is_last = |flow: &Flow| self.profile.multicast_ignores_priority && is_for_multicast_only(flow);
        if self.is_tight() {
            return self.device_decides(kind, key, chosen);
        }
        // Flows of one rule that all come last are of one priority: which queue pair then takes it is open.
        let says = |flow: &Flow| match flow.action {
            FlowAction::Steer { class, .. } if is_last(flow) => (flow.rule, Some(class), None),
            action => (flow.rule, None, Some(action)),
        };
        let chosen = chosen.map(|index| says(&self.program.flows[index]));
        let met: Vec<&Flow> =
            self.program.flows.iter().filter(|flow| flow.kind == kind && flow.matches(key)).collect();
        let rank = |flow: &Flow| (is_last(flow), if is_last(flow) { 0 } else { flow.priority });
        let best = met.iter().map(|flow| rank(flow)).min();
        prop_assert_eq!(best.is_some(), chosen.is_some());
        for flow in met.into_iter().filter(|flow| Some(rank(flow)) == best) {
            prop_assert_eq!(
                Some(says(flow)),
                chosen,
                "the device decides otherwise: {:?}\n{}",
                key,
                self.program
            );
        }
        Ok(())
    }

    /// Whether it has fewer priorities than policies may need, so that flows of one priority may overlap.
    fn is_tight(&self) -> bool {
        self.profile.priorities < DeviceModel::mlx5().priorities
    }

    /// Where flows of one priority overlap, their classes must decide the same.
    fn device_decides(
        &self,
        kind: FlowKind,
        key: &DeepKey,
        chosen: Option<usize>,
    ) -> Result<(), TestCaseError> {
        let program = self.program;
        let is_last = |flow: &Flow| self.profile.multicast_ignores_priority && is_for_multicast_only(flow);
        let rank = |flow: &Flow| (is_last(flow), flow.priority);
        let decides = |flow: &Flow| match flow.action {
            FlowAction::Steer { class, .. } => program.class(class).expect("a class").resolve_deep(key),
            FlowAction::Drop => Outcome { rule: flow.rule, verdict: Verdict::Drop },
            FlowAction::Pass => Outcome { rule: flow.rule, verdict: Verdict::Kernel },
        };
        let met: Vec<&Flow> =
            program.flows.iter().filter(|flow| flow.kind == kind && flow.matches(key)).collect();
        let best = met.iter().map(|flow| rank(flow)).min();
        let chosen = chosen.map(|index| decides(&program.flows[index]));
        for flow in met.into_iter().filter(|flow| Some(rank(flow)) == best) {
            prop_assert_eq!(Some(decides(flow)), chosen, "{:?}\n{}", key, program);
        }
        Ok(())
    }

    /// Who hears of a received packet: by the device's copies, each once, whose workers are of the group.
    fn copies(
        &self,
        meant: &Meaning,
        copied: &[Copied],
        taken: Option<usize>,
        key: &DeepKey,
    ) -> Result<(), TestCaseError> {
        let program = self.program;
        let last = taken.map_or(u16::MAX, |index| program.flows[index].priority);
        let made = program.flows.iter().filter(|flow| match flow.kind {
            FlowKind::Copy => flow.priority <= last && flow.matches(key),
            FlowKind::Sniffer => true,
            FlowKind::Normal | FlowKind::Egress => false,
        });
        let mut made: Vec<RuleId> = made.map(|flow| flow.rule).collect();
        let mut told: Vec<RuleId> = copied.iter().map(|copy| copy.rule).collect();
        made.sort_unstable();
        told.sort_unstable();
        prop_assert_eq!(&told, &made, "the device copies otherwise");
        prop_assert!(made.windows(2).all(|pair| pair[0] != pair[1]), "copied twice: {made:?}");
        prop_assert_eq!(wanted_of(copied), rules_of(&meant.copies), "copies of {:?}\n{}", key, program);
        for copy in copied {
            let group = program.queues[copy.queue.index()].group;
            let members: &[WorkerId] = &program.groups[group.index()].table;
            prop_assert!(copy.worker.is_some_and(|worker| members.contains(&worker)), "{copy:?}");
            let own = self.rules[copy.rule.index()].act;
            prop_assert!(own == Act::Copy(group) || own == Act::Sniff(group), "{own:?} to {group:?}");
        }
        Ok(())
    }
}

fn rules_of(copies: &[(RuleId, GroupId)]) -> Vec<RuleId> {
    copies.iter().map(|(rule, _)| *rule).collect()
}

/// The rules whose copies are wanted, without those that the device has made in excess.
fn wanted_of(copied: &[Copied]) -> Vec<RuleId> {
    let wanted = copied.iter().filter(|copy| matches!(copy.outcome.verdict, Verdict::Deliver(_)));
    let mut rules: Vec<RuleId> = wanted.map(|copy| copy.outcome.rule).collect();
    rules.sort_unstable();
    rules
}

/// Returns whether the flow is on multicast alone as the driver of mlx5 sees it: by the first spec (kernel
/// fs.c, `flow_is_multicast_only`).
fn is_for_multicast_only(flow: &Flow) -> bool {
    match flow.specs.first() {
        _ if flow.specs.inner_from() == 0 || flow.kind == FlowKind::Copy => false,
        Some(FlowSpec::Ethernet { value, mask }) => value.dst_mac[0] & mask.dst_mac[0] & 1 == 1,
        Some(FlowSpec::Ipv4 { value, .. }) => value.dst >> 28 == 0xe,
        Some(FlowSpec::Ipv4Ext { value, .. }) => value.dst >> 28 == 0xe,
        _ => false,
    }
}

/// The refusals of a device, and their number.
#[derive(Debug, Default)]
struct Tally {
    policies: usize,
    refused: usize,
    packets: usize,
    copied: usize,
    by_sent_rules: usize,
    why: BTreeMap<String, usize>,
}

/// How a policy is compiled.
type Compile = dyn Fn(&policy::Policy, &DeviceModel) -> Result<Program, policy::Diagnostics>;

/// Tries policies on a device; of a hundred at most so many may be refused.
fn trial(profile: &DeviceModel, most_refused: usize) {
    trial_with(&|policy, profile| compiler::compile(policy, profile, WORKERS), profile, most_refused);
}

fn trial_with(compile: &Compile, profile: &DeviceModel, most_refused: usize) {
    let tally = RefCell::new(Tally::default());
    let config = ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() };
    let cases = (rules(8), prop::collection::vec(packet_key(), KEYS));
    let outcome = TestRunner::new(contextualize_config(config)).run(&cases, |(rules, keys)| {
        one(compile, profile, rules.on(profile), &keys, &mut tally.borrow_mut())
    });
    let tally = tally.into_inner();
    println!("{}: {tally:#?}", profile.name);
    outcome.unwrap_or_else(|failure| panic!("{}: {failure}", profile.name));
    assert!(tally.packets > 0 && tally.packets == (tally.policies - tally.refused) * KEYS, "{tally:#?}");
    assert!(tally.refused * 100 <= tally.policies * most_refused, "{tally:#?}");
}

fn one(
    compile: &Compile,
    profile: &DeviceModel,
    Rules { rules, default }: Rules,
    keys: &[DeepKey],
    tally: &mut Tally,
) -> Result<(), TestCaseError> {
    // A rule that is refused for contradicting itself must be one that no packet meets.
    let (rules, refused): (Vec<Rule>, Vec<Rule>) =
        rules.into_iter().partition(|rule| policy(std::slice::from_ref(rule), Act::Kernel).is_ok());
    for Rule { clauses, .. } in &refused {
        for key in keys {
            prop_assert!(!clauses.iter().all(|clause| clause.holds(key)), "{clauses:?} meets {key:?}");
        }
    }
    let text = text(&rules, default);
    let policy = parse(&text).map_err(|problems| TestCaseError::fail(format!("{problems}\n{text}")))?;
    tally.policies += 1;
    let program = match compile(&policy, profile) {
        Ok(program) => program,
        Err(problems) => {
            tally.refused += 1;
            for problem in &problems.list {
                let is_so = is_too_much(&problem.message, &policy, profile);
                prop_assert!(is_so, "refused without need: {problems}\n{text}");
                *tally.why.entry(problem.message.clone()).or_default() += 1;
            }
            return Ok(());
        }
    };
    let mut told = BTreeSet::new();
    for flow in program.flows.iter().filter(|flow| flow.kind != FlowKind::Sniffer) {
        let is_new = told.insert(format!(
            "{} {:?} {} {:?}",
            flow.rule,
            flow.kind,
            flow.specs.inner_from(),
            flow.specs
        ));
        prop_assert!(is_new, "two flows of one rule are the same match: {program}\n{text}");
    }
    let deciders = program.deciders();
    let case = Case { rules: &rules, default, profile, program: &program, deciders: &deciders };
    for key in keys {
        case.received(key)?;
        case.sent(key)?;
        tally.packets += 1;
        tally.copied += program.explain_deep(key).copies.len();
        tally.by_sent_rules += usize::from(program.explain_sent(key).rule.is_some());
    }
    if profile.has_tags() {
        check_placements(&program)?;
    }
    let again = compile(&parse(&text).expect("as before"), profile).expect("as before");
    prop_assert_eq!(&again, &program);
    prop_assert_eq!(again.to_string(), program.to_string());
    Ok(())
}

/// A rule of which a worker receives packets to decide or to drop them is not listed as decided in hardware.
fn check_placements(program: &Program) -> Result<(), TestCaseError> {
    let received = program.flows.iter().filter(|flow| flow.kind == FlowKind::Normal);
    for flow in received {
        let FlowAction::Steer { class, .. } = flow.action else { continue };
        let is_exact = program.class(class).expect("a class").is_exact();
        let rule = &program.rules[flow.rule.index()];
        let is_decided = is_exact && matches!(rule.action, Verdict::Deliver(_));
        prop_assert!(is_decided || rule.placement != Placement::Hardware, "{flow}\n{program}");
    }
    Ok(())
}

/// Whether a refusal is of what really cannot be: everything else that is drawn must compile.
fn is_too_much(message: &str, policy: &policy::Policy, profile: &DeviceModel) -> bool {
    if message.contains("go to the worker by") {
        // A worker makes no copies: some rule before it, alone, must be a worker's.
        return hybrid_alone(policy, profile) || cannot_leave_out(policy, profile);
    }
    let limits = ["priorities, `", "mask shapes, `", "flows, `"];
    if profile.priorities < DeviceModel::mlx5().priorities
        && limits.iter().any(|limit| message.contains(limit))
    {
        // For copies and sent packets no worker can make up; flows for multicast alone, which come last, have
        // a priority of their own.
        let has_last = profile.multicast_ignores_priority && profile.priorities_per_program() == 1;
        return policy.rules.iter().any(|rule| {
            rule.direction == policy::policy::Direction::Egress
                || matches!(rule.action, policy::policy::Action::Copy(_))
                || has_last && rule.matches.dst_mac.is_some()
        });
    }
    let Some(program) = without_limits(policy, profile) else { return false };
    let masks: BTreeSet<String> = program.flows.iter().map(|flow| format!("{:?}", flow.shape())).collect();
    match (profile.max_shapes, profile.priority_table) {
        (Some(most), _) => message.contains("mask shapes") && masks.len() > most as usize,
        (_, Some(_)) => message.contains("priorities, `mlx5` has") && priorities(&program) > 15,
        _ => false,
    }
}

fn hybrid_alone(policy: &policy::Policy, profile: &DeviceModel) -> bool {
    let received = |index: &usize| policy.rules[*index].direction == policy::policy::Direction::Ingress;
    (0..policy.rules.len()).filter(received).any(|index| {
        // Where it leaves or drops all alone, the device may do that; what is steered shows what its match
        // takes.
        let action = policy::policy::Action::Steer(GroupId(0));
        let rules = vec![policy::policy::RuleDefinition { action, ..policy.rules[index].clone() }];
        let alone = policy::Policy { rules, ..policy.clone() };
        // What such a device looks at last is told it more widely where another rule is about it, too.
        if profile.multicast_ignores_priority && policy.rules[index].matches.dst_mac.is_some() {
            return true;
        }
        let program = compiler::compile(&alone, profile, WORKERS);
        program.is_ok_and(|program| matches!(program.rules[0].placement, Placement::Hybrid { .. }))
    })
}

/// Whether some rule that leaves packets to the kernel has to be a worker's where a later rule steers: what
/// is copied cannot leave these out either.
fn cannot_leave_out(policy: &policy::Policy, profile: &DeviceModel) -> bool {
    let steer = |rule: &policy::policy::RuleDefinition| match rule.action {
        policy::policy::Action::Copy(group) => {
            policy::policy::RuleDefinition { action: policy::policy::Action::Steer(group), ..rule.clone() }
        }
        _ => rule.clone(),
    };
    let steering = policy::Policy { rules: policy.rules.iter().map(steer).collect(), ..policy.clone() };
    let program = compiler::compile(&steering, profile, WORKERS).ok();
    program.or_else(|| without_limits(&steering, profile)).is_some_and(|program| {
        let mut rules = policy.rules.iter().zip(&program.rules);
        rules.any(|(rule, placed)| {
            rule.action == policy::policy::Action::Kernel
                && matches!(placed.placement, Placement::Hybrid { .. })
        })
    })
}

/// The program for a device that does the same and has room for all.
fn without_limits(policy: &policy::Policy, profile: &DeviceModel) -> Option<Program> {
    let roomy = DeviceModel {
        priorities: 1 << 16,
        priority_table: None,
        max_shapes: None,
        max_flows: None,
        ..profile.clone()
    };
    compiler::compile(policy, &roomy, WORKERS).ok()
}

/// How many priorities it takes if six masks that several flows have fit into one, and what comes after all
/// others has one of its own.
fn priorities(program: &Program) -> usize {
    let mut masks: BTreeMap<(u16, FlowKind), BTreeMap<String, usize>> = BTreeMap::new();
    let (late, others): (Vec<&Flow>, Vec<&Flow>) =
        program.flows.iter().partition(|flow| is_for_multicast_only(flow));
    for flow in others {
        let own = masks.entry((flow.priority, flow.kind)).or_default();
        *own.entry(format!("{:?}", flow.shape())).or_default() += 1;
    }
    let mut needed: BTreeMap<u16, usize> = BTreeMap::new();
    for ((priority, _), shapes) in masks {
        let groups = shapes.values().filter(|flows| **flows > 1).count().div_ceil(6).max(1);
        let most = needed.entry(priority).or_default();
        *most = (*most).max(groups);
    }
    needed.values().sum::<usize>() + usize::from(!late.is_empty())
}

#[test]
fn a_program_for_an_ideal_device_decides_as_the_policy() {
    trial(&DeviceModel::ideal(), 5);
}

#[test]
fn a_program_without_hash_variants_decides_as_the_policy() {
    trial(&DeviceModel { hash_field_exclusive: false, ..DeviceModel::ideal() }, 5);
}

#[test]
fn a_program_for_an_mlx5_decides_as_the_policy() {
    trial(&DeviceModel::mlx5(), 10);
}

#[test]
fn a_program_for_an_mlx4_decides_as_the_policy() {
    trial(&DeviceModel::mlx4(), 0);
}

#[test]
fn a_program_for_few_priorities_decides_as_the_policy() {
    for priorities in [1, 2, 3, 5, 7] {
        let few = |profile| DeviceModel { priorities: priorities + 1, ..profile };
        trial(&few(DeviceModel::mlx5()), 40);
        trial(&few(DeviceModel::ideal()), 40);
    }
}

/// Where shared flows run out in the middle of a flow.
#[test]
fn a_program_with_few_shared_flows_decides_as_the_policy() {
    for shared_flows in 0..3 {
        let compile = move |policy: &policy::Policy, profile: &DeviceModel| {
            compiler::compile_with_shared_flows(policy, profile, WORKERS, shared_flows)
        };
        trial_with(&compile, &DeviceModel { priorities: 4, ..DeviceModel::mlx5() }, 40);
        trial_with(&compile, &DeviceModel { priorities: 3, ..DeviceModel::ideal() }, 40);
    }
}

/// The weights of the rules decide which shared flows are made, and no packet.
#[test]
fn a_program_for_traffic_decides_as_the_policy() {
    let compile = |policy: &policy::Policy, profile: &DeviceModel| {
        let weights = Weights::new((0..policy.rules.len() as u64).map(|rule| rule * 5 % 7).collect());
        Job::new(policy, profile, WORKERS).weighted(Some(&weights)).compile()
    };
    trial_with(&compile, &DeviceModel { priorities: 4, ..DeviceModel::mlx5() }, 40);
    let few = DeviceModel { priorities: 3, max_flows: Some(24), ..DeviceModel::ideal() };
    trial_with(&compile, &few, 40);
}

#[test]
fn a_program_for_few_flows_or_masks_decides_as_the_policy() {
    let few = |priorities: u32| DeviceModel { priorities: priorities + 1, ..DeviceModel::ideal() };
    trial(&DeviceModel { max_flows: Some(20), ..few(7) }, 30);
    trial(&DeviceModel { max_shapes: Some(8), ..few(7) }, 30);
    trial(&DeviceModel { max_flows: Some(16), max_shapes: Some(8), ..few(2) }, 40);
}

/// On a device that applies multicast last and reads headers without ports by their protocol.
#[test]
fn a_program_for_a_small_mlx5_decides_as_the_policy() {
    let mlx5 = || DeviceModel { priorities: 12, ..DeviceModel::mlx5() };
    trial(&DeviceModel { max_flows: Some(40), max_shapes: Some(12), ..mlx5() }, 40);
    trial(&DeviceModel { max_flows: Some(60), max_shapes: Some(20), ..mlx5() }, 40);
    trial(&DeviceModel { max_groups: Some(8), ..mlx5() }, 40);
    trial(&DeviceModel { ns_per_group: Some(20), ..mlx5() }, 40);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// A rule that `check` calls unreachable is never the outcome.
    #[test]
    fn unreachable_rules_are_not_reached(
        rules in rules(7),
        keys in prop::collection::vec(packet_key(), 32),
    ) {
        let Rules { rules, .. } = rules.on(&DeviceModel::mlx4());
        let rules: Vec<Rule> =
            rules.into_iter().filter(|rule| policy(std::slice::from_ref(rule), Act::Kernel).is_ok()).collect();
        let policy = policy(&rules, Act::Kernel).expect("each is");
        let ideal = DeviceModel::ideal();
        let program = match compiler::compile(&policy, &ideal, WORKERS) {
            Ok(program) => program,
            Err(problems) => {
                let is_so = |problem: &policy::Diagnostic| is_too_much(&problem.message, &policy, &ideal);
                prop_assert!(problems.list.iter().all(is_so), "{problems}");
                return Ok(());
            }
        };
        let mut dead = BTreeMap::new();
        for warning in reports::Check::of(&compiler::Job::new(&policy, &ideal, WORKERS), &program).warnings {
            if warning.message.ends_with("never matches") {
                let line = program.rules.iter().position(|rule| rule.line == warning.line).expect("its rule");
                dead.insert(RuleId(line as u32), warning.message);
            }
        }
        for key in &keys {
            let last = reference(&rules, false, key).last;
            prop_assert!(last.is_none_or(|last| !dead.contains_key(&last)), "{last:?} {dead:?}");
        }
    }
}
