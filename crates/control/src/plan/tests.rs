//! All plans of a small world against a model that decides every packet at every step, and plans that were
//! broken on purpose.

use std::sync::Arc;

use packet::{FlowKey, HashFields, Layers, RssKey};
use program::{
    Class, ClassId, Decide, Flow, FlowAction, FlowKind, FlowSpec, Group, GroupId, HashVariant, Outcome,
    Program, QueueId, RssQueue, Rule, RuleId, SpecChain, Verdict, WorkerId,
};
use verbs::{EthernetMatch, Ipv4Match, PortMatch};

use super::*;

const MATCHES: usize = 5;
const ACTIONS: usize = 3;
/// The line of a program: a match and an action.
type Line = (usize, usize);

fn specs(of: usize) -> Vec<FlowSpec> {
    let any = EthernetMatch::default();
    let ports = |dst_port| PortMatch { src_port: 0, dst_port };
    let udp = |port| FlowSpec::Udp { value: ports(port), mask: ports(u16::MAX) };
    let to = |dst| Ipv4Match { src: 0, dst };
    let ipv4 = FlowSpec::Ipv4 { value: to(1), mask: to(u32::MAX) };
    match of {
        0 => vec![FlowSpec::Ethernet { value: any, mask: any }],
        1 => vec![ipv4],
        2 => vec![udp(1)],
        3 => vec![ipv4, udp(1)],
        _ => vec![udp(2)],
    }
}

/// Packets of every combination of matches.
fn world() -> Vec<FlowKey> {
    let udp = |last: u8, port| {
        let mut key = FlowKey { layers: Layers::IPV4 | Layers::UDP, dst_port: port, ..FlowKey::default() };
        key.dst_ip[3] = last;
        key
    };
    vec![FlowKey::default(), udp(0, 0), udp(1, 0), udp(0, 1), udp(1, 1), udp(0, 2), udp(1, 2)]
}

/// A program of these lines, first match first. The rules of equal matches have equal names and classes, so
/// that a class means something else where the action differs.
fn program(lines: &[Line], limits: &Limits) -> Option<Arc<Program>> {
    let mut priorities: Vec<u16> = Vec::new();
    let shares_packets = |one: usize, other: usize| {
        world()
            .iter()
            .any(|key| [one, other].iter().all(|of| specs(*of).iter().all(|spec| spec.matches(key))))
    };
    for (index, (matched, _)) in lines.iter().enumerate() {
        if lines[..index].iter().any(|(before, _)| before == matched) {
            return None;
        }
        let above = (0..index).filter(|before| shares_packets(lines[*before].0, *matched));
        priorities.push(above.map(|before| priorities[before] + 1).max().unwrap_or(0));
    }
    if priorities.iter().any(|priority| *priority >= limits.last_level()) {
        return None;
    }
    let verdict = |action: usize| match action {
        0 => Verdict::Drop,
        group => Verdict::Deliver(GroupId::of(group - 1)),
    };
    let rules =
        lines.iter().map(|(matched, action)| Rule::in_hardware(format!("r{matched}"), verdict(*action), 1));
    let table = |worker: usize| vec![WorkerId::of(worker)];
    let groups = (0..ACTIONS - 1).map(|worker| Group {
        name: format!("g{worker}"),
        description: None,
        table: table(worker),
        key: RssKey::MICROSOFT,
        fields: HashFields::empty(),
        symmetric: false,
    });
    let queues = (0..ACTIONS - 1).map(|worker| RssQueue {
        group: GroupId::of(worker),
        variant: HashVariant::All,
        fields: HashFields::empty(),
        table: table(worker),
    });
    let mut classes = vec![None; MATCHES];
    for (index, (matched, action)) in lines.iter().enumerate().filter(|(_, (_, action))| *action > 0) {
        let outcome = Outcome { rule: RuleId::of(index), verdict: verdict(*action) };
        classes[*matched] = Some(Class { rule: RuleId::of(index), decide: Decide::Exact(outcome) });
    }
    let flows =
        lines.iter().zip(&priorities).enumerate().map(|(index, ((matched, action), priority))| Flow {
            rule: RuleId::of(index),
            priority: *priority,
            kind: FlowKind::Normal,
            specs: SpecChain::outer(specs(*matched)),
            action: match action.checked_sub(1) {
                None => FlowAction::Drop,
                Some(group) => FlowAction::Steer { queue: QueueId::of(group), class: ClassId::of(*matched) },
            },
        });
    Some(Arc::new(Program {
        rules: rules.collect(),
        groups: groups.collect(),
        sinks: Vec::new(),
        queues: queues.collect(),
        flows: flows.collect(),
        classes,
        untagged: None,
        exceptions: Vec::new(),
        runtime: None,
        recorder: None,
        default: Verdict::Kernel,
        priorities_used: priorities.iter().map(|priority| priority + 1).max().unwrap_or(0),
    }))
}

/// All programs of up to so many lines.
fn programs(most: usize, limits: &Limits) -> Vec<Arc<Program>> {
    let lines: Vec<Line> = (0..MATCHES).flat_map(|of| (0..ACTIONS).map(move |action| (of, action))).collect();
    let mut sequences: Vec<Vec<Line>> = vec![Vec::new()];
    let mut longest = sequences.clone();
    for _ in 0..most {
        longest = longest
            .iter()
            .flat_map(|sequence| lines.iter().map(|line| [sequence.as_slice(), &[*line]].concat()))
            .collect();
        sequences.extend(longest.iter().cloned());
    }
    sequences.iter().filter_map(|sequence| program(sequence, limits)).collect()
}

/// The decision on a packet: the rule and the workers, or that it is dropped or the kernel's.
type Fate = Option<(String, Option<Vec<WorkerId>>)>;

fn fate(program: &Program, flow: &Flow, classes: &Program) -> Fate {
    let rule = |program: &Program, rule: RuleId| program.rules[rule.index()].name.to_string();
    Some(match flow.action {
        FlowAction::Steer { queue, class } => {
            let decided = classes.class(class).map(|class| rule(classes, class.rule));
            (decided.unwrap_or_default(), Some(program.queues[queue.index()].table.clone()))
        }
        FlowAction::Drop | FlowAction::Pass => (rule(program, flow.rule), None),
    })
}

fn intended(program: &Program, key: &FlowKey) -> Fate {
    let matching = program.flows.iter().filter(|flow| flow.specs.iter().all(|spec| spec.matches(key)));
    let first = matching.min_by_key(|flow| flow.priority)?;
    fate(program, first, program)
}

/// Carries a plan out step by step; returns what is wrong with it.
fn follow(plan: &Plan, old: &PlacedProgram<'_>, new: &Program) -> Result<(), String> {
    let before = |index: usize| (&**old.program, &old.program.flows[index], old.levels[index]);
    let after = |index: usize| (new, &new.flows[index], plan.levels[index]);
    let mut there: Vec<(bool, usize)> = (0..old.program.flows.len()).map(|index| (false, index)).collect();
    let mut is_enforced = false;
    for step in plan.steps() {
        match step {
            PlanStep::InstallFlow { flow } => there.push((true, flow)),
            PlanStep::RemoveFlow { flow } => there.retain(|known| *known != (false, flow)),
            PlanStep::Enforce => is_enforced = true,
            _ => {}
        }
        let flows: Vec<_> = there
            .iter()
            .map(|(is_new, index)| if *is_new { after(*index) } else { before(*index) })
            .collect();
        for (place, (_, flow, level)) in flows.iter().enumerate() {
            if flows[..place].iter().any(|(_, other, at)| at == level && other.specs == flow.specs) {
                return Err(format!("{step:?}: a match twice at {level}"));
            }
        }
        let classes = if is_enforced { [new, old.program] } else { [old.program, new] };
        for key in world() {
            let matching = || flows.iter().filter(|(_, flow, _)| flow.specs.iter().all(|s| s.matches(&key)));
            let highest = matching().map(|(_, _, level)| *level).min();
            let fates: Vec<Fate> = match highest {
                None => vec![None],
                Some(highest) => matching()
                    .filter(|(_, _, level)| *level == highest)
                    .map(|(program, flow, _)| {
                        let knows = |known: &&Program| match flow.action {
                            FlowAction::Steer { class, .. } => known.class(class).is_some(),
                            _ => true,
                        };
                        let known = classes.into_iter().find(|known| knows(known));
                        known.and_then(|known| fate(program, flow, known))
                    })
                    .collect(),
            };
            let right = [intended(old.program, &key), intended(new, &key)];
            if let Some(wrong) = fates.iter().find(|fate| !right.contains(fate)) {
                return Err(format!("{step:?}: {wrong:?} is not of {right:?}"));
            }
        }
    }
    let mut left: Vec<_> =
        there.iter().filter(|(is_new, index)| !is_new && !plan.kept.contains(&Some(*index))).collect();
    left.sort_unstable();
    match (left.first(), there.len() == new.flows.len()) {
        (None, true) => Ok(()),
        (left, _) => Err(format!("{left:?} is left, or something is missing")),
    }
}

fn limits() -> Limits {
    Limits {
        device: "small0".to_owned(),
        priorities: 3,
        priority_table: None,
        multicast_ignores_priority: false,
        tables: None,
        reads_idle_counters: true,
        spare_flows: 64,
    }
}

/// The plan of a strategy, whether it keeps the rules or not.
fn made(
    installed: Option<PlacedProgram<'_>>,
    new: &Arc<Program>,
    limits: &Limits,
    strategy: Strategy,
) -> Option<(DigestedProgram, Plan)> {
    let mut new = DigestedProgram::new(Arc::clone(new), limits).expect("a whole program");
    let plan = make(installed, &mut new, limits, strategy).expect("a whole program")?;
    Some((new, plan))
}

/// The levels of a program on the device, after another one was there.
fn placed(first: Option<&Arc<Program>>, program: &Arc<Program>, limits: &Limits) -> PlannedChange {
    let alone = |program: &Arc<Program>| plan(None, Arc::clone(program), limits).expect("it fits alone");
    let Some(first) = first else { return alone(program) };
    let change = plan(Some(alone(first).placed()), Arc::clone(program), limits);
    change.expect("it fits beside any other")
}

/// Every pair of programs of up to two lines, the first also where another one was before, by every strategy
/// in turn, with and without early removals, and the plans that come of each by leaving out a step, swapping
/// two, removing a flow earlier, moving one to another level, or claiming that one stays: none that the check
/// accepts decides any packet wrongly.
#[test]
fn every_packet_of_a_small_world_is_decided_by_one_of_two_programs() {
    let [roomy, tight] = [limits(), Limits { spare_flows: 0, ..limits() }];
    let all = programs(2, &roomy);
    let (mut plans, mut kept, mut early, mut broken, mut caught, mut harmless) = (0, 0, 0, 0, 0, 0);
    for (place, old) in all.iter().enumerate() {
        let first = all.get(place * 7 % all.len()).filter(|_| place % 2 == 1);
        let before = placed(first, old, &roomy);
        let placement = before.placed();
        for wanted in &all {
            plans += 1;
            let limits = if plans % 2 == 0 { &roomy } else { &tight };
            let strategies = Strategy::ALL.iter().cycle().skip(plans).take(Strategy::ALL.len());
            let found =
                strategies.copied().find_map(|strategy| made(Some(placement), wanted, limits, strategy));
            let Some((new, plan)) = found else {
                let change = super::plan(Some(placement), Arc::clone(wanted), limits).expect("it fits");
                assert!(change.compaction.is_some(), "only so it can");
                continue;
            };
            follow(&plan, &placement, &new)
                .unwrap_or_else(|wrong| panic!("{wrong}\n{before:#?}\n{new:#?}\n{plan:#?}"));
            kept += plan.changes().kept;
            let before_workers = plan.steps().take_while(|step| *step != PlanStep::Enforce);
            early += before_workers.filter(|step| matches!(step, PlanStep::RemoveFlow { .. })).count();
            for mutant in mutants(&plan, plans) {
                if mutant == plan {
                    continue;
                }
                let verdict = follow(&mutant, &placement, &new);
                let checked = mutant.clone().check(Some(placement), &new, limits);
                match (verdict, checked) {
                    (Err(wrong), Ok(_)) => panic!("accepted: {wrong}\n{before:#?}\n{new:#?}\n{mutant:#?}"),
                    (Err(_), Err(_)) => (broken, caught) = (broken + 1, caught + 1),
                    (Ok(()), _) => harmless += 1,
                }
            }
            let checked = plan.check(Some(placement), &new, limits);
            assert!(checked.is_ok(), "{checked:?}\n{before:#?}\n{new:#?}");
        }
    }
    println!(
        "{plans} plans, {kept} flows kept, {early} removed early; {caught} of {broken} broken plans caught, {harmless} changes did no harm"
    );
    assert!(plans > 20_000 && kept > 1_000 && early > 1_000 && broken > 40_000);
}

/// A flow of changed action above another one, where the gap that an earlier change left is between them.
#[test]
fn flows_that_find_no_level_do_so_once_the_others_have_moved_together() {
    let limits = limits();
    let of = |lines: &[Line]| program(lines, &limits).expect("it fits");
    let first = placed(Some(&of(&[(3, 1), (1, 0)])), &of(&[(3, 1), (1, 1)]), &limits);
    assert_eq!(first.placed().levels, [0, 2], "the second one has changed");
    let change = plan(Some(first.placed()), of(&[(3, 2), (1, 2)]), &limits).expect("it fits");
    let compaction = change.compaction.as_ref().expect("the gap is between them").plan();
    follow(compaction, &first.placed(), &first.program).expect("every packet keeps its decision");
    let compact = PlacedProgram { levels: compaction.levels(), ..first.placed() };
    assert_eq!(compact.levels, [0, 1]);
    follow(change.plan.plan(), &compact, &change.program).expect("every packet meets one of both");
    assert_eq!(change.placed().levels, [1, 2]);
    let summary = PlanSummary::of(&change, Some(&first.placed()), 1);
    assert_eq!((summary.flows.installed, summary.flow_calls, summary.peak_flows), (3, 6, 4));
}

/// New flows have classes of the program whose numbers fit into a tag.
#[test]
fn a_flow_of_a_class_that_no_packet_can_carry_is_refused() {
    let limits = limits();
    let whole = program(&[(3, 1)], &limits).expect("it fits");
    for class in [ClassId(7), ClassId(program::CLASSES_MAX)] {
        let mut broken = Program::clone(&whole);
        let FlowAction::Steer { class: of_flow, .. } = &mut broken.flows[0].action else {
            panic!("it steers")
        };
        *of_flow = class;
        let fault = plan(None, Arc::new(broken), &limits).map(drop);
        assert_eq!(fault, Err(PlanFault::Dangling(program::DanglingFlow::Class(class))), "{class}");
    }
}

/// Programs that have at most half of the priorities find levels beside any other.
#[test]
fn half_of_the_priorities_always_suffices() {
    let wide = Limits { priorities: 4, ..limits() };
    let all = programs(2, &limits());
    for (place, old) in all.iter().enumerate() {
        let before = placed(all.get(place * 5 % all.len()), old, &wide);
        for wanted in &all {
            let placed = before.placed();
            let wanted = DigestedProgram::new(Arc::clone(wanted), &wide).expect("a whole program");
            let levels = levels::assign(Some(&placed), &wanted, &wide, Strategy::From(0));
            assert!(levels.is_some(), "{before:#?}\n{wanted:#?}");
        }
    }
}

/// Every pair of programs of up to two lines whose flows copy packets, are for sent ones, or match multicast
/// only: what the planner finds, the check accepts.
#[test]
fn flows_of_all_kinds_find_levels_that_the_check_accepts() {
    let limits = Limits { multicast_ignores_priority: true, ..limits() };
    let multicast = || {
        let address = EthernetMatch { dst_mac: [1, 0, 0, 0, 0, 1], ..EthernetMatch::default() };
        SpecChain::outer(vec![FlowSpec::Ethernet { value: address, mask: address }])
    };
    let varied = |program: &Arc<Program>, seed: usize| {
        let mut varied = Program::clone(program);
        for (flow, choice) in varied.flows.iter_mut().zip([seed % 5, seed / 5 % 5]) {
            flow.kind = [FlowKind::Normal, FlowKind::Copy, FlowKind::Egress][choice.min(2)];
            if choice == 4 {
                (flow.kind, flow.specs) = (FlowKind::Normal, multicast());
            }
        }
        Arc::new(varied)
    };
    let all = programs(2, &limits);
    let (mut found, mut kept, mut full) = (0, 0, 0);
    for (place, old) in all.iter().enumerate() {
        let Ok(before) = plan(None, varied(old, place), &limits) else { continue };
        for (number, wanted) in all.iter().enumerate() {
            match plan(Some(before.placed()), varied(wanted, number * 7 + place), &limits) {
                Ok(change) => (found, kept) = (found + 1, kept + change.changes().kept),
                Err(PlanFault::NoLevels) => full += 1,
                Err(fault) => panic!("{fault}\n{before:#?}\n{wanted:#?}"),
            }
        }
    }
    println!("{found} plans, {kept} flows kept, {full} without levels");
    assert!(found > 20_000 && kept > 1_000 && full < found / 10);
}

/// Plans that differ from this one in one place; which ones depends on `seed`.
fn mutants(plan: &Plan, seed: usize) -> Vec<Plan> {
    let mut mutants = Vec::new();
    let mut with = |change: &dyn Fn(&mut Plan)| {
        let mut mutant = plan.clone();
        change(&mut mutant);
        mutants.push(mutant);
    };
    let steps = plan.steps.len();
    with(&|plan| _ = plan.steps.remove(seed % steps));
    with(&|plan| {
        let last = plan.steps.iter().rposition(|step| matches!(step, PlanStep::RemoveFlow { .. }));
        if let Some(last) = last {
            let removal = plan.steps.remove(last);
            plan.steps.insert(1 + seed / 7 % last, removal);
        }
    });
    with(&|plan| plan.steps.swap(seed % steps, (seed / 5 + 1) % steps));
    if let Some(flow) = seed.checked_rem(plan.levels.len()) {
        with(&|plan| plan.levels[flow] = (plan.levels[flow] + 1 + seed as u16 % 2) % 3);
        with(&|plan| plan.kept[flow] = if plan.kept[flow].is_some() { None } else { Some(seed % 2) });
    }
    mutants
}

#[test]
fn an_unchanged_program_needs_no_call() {
    let limits = limits();
    for program in programs(2, &limits) {
        let first = placed(None, &program, &limits);
        let again =
            plan(Some(first.placed()), Arc::clone(first.program.program()), &limits).expect("a good plan");
        assert_eq!(again.plan.plan().steps().collect::<Vec<_>>(), [PlanStep::Begin, PlanStep::Enforce]);
    }
}
