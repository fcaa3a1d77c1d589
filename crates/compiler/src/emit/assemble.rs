//! The last pass: assigned candidates written out as a program. Only what a kept flow uses gets a queue or a
//! class, because each costs every worker; a rule keeps the class number, which is its flow tag, that it had
//! in the previous program.

use std::collections::{BTreeSet, HashMap, HashSet};

use policy::policy::Action;
use program::{
    CLASSES_MAX, Class, ClassId, DEFAULT_RULE, Decide, Flow, FlowAction, FlowKind, Outcome, Policing,
    Program, QueueId, Rule, RuleId, SpecChain, UndecidedKey, UndecidedReason,
};

use crate::cover::CoveredRule;
use crate::emit::classes::{Deciding, decide};
use crate::emit::reasons::{BY_EARLIER_RULES, NO_DROP, ORDER, hybrid_reason, order_reason};
use crate::emit::runtime;
use crate::except::overlaps::{MAX_STEPS_IN_ALL, Overlaps, TooManySteps};
use crate::except::place::{ByOrder, Earlier, Placement, Prepared};
use crate::fit::assign_priorities::{Assigned, Prioritized};
use crate::job::Job;
use crate::rank::lower::{Candidate, Lowered, LoweredAction};
use crate::specs;

/// The results of the passes from which a program is written.
pub(crate) struct Placed<'p> {
    pub(crate) prepared: &'p Prepared,
    pub(crate) earlier: &'p Earlier,
    pub(crate) by_order: &'p ByOrder,
    pub(crate) placements: &'p [Placement],
    /// The rules of which some flow has no room.
    pub(crate) left: &'p BTreeSet<RuleId>,
}

/// Writes the program.
pub(crate) fn assemble(
    job: &Job<'_>,
    placed: &Placed<'_>,
    overlaps: Overlaps,
    lowered: Lowered,
    assigned: &Assigned,
) -> Result<Program, TooManySteps> {
    let used = used_queues(&lowered, assigned);
    let mut next = 0..;
    let queue_of: Vec<Option<QueueId>> =
        used.iter().map(|used| used.then(|| next.next().map(QueueId)).flatten()).collect();
    let (class_of, classes) = number_classes(job, placed, overlaps, &lowered, assigned)?;
    let flows = flows(job, &lowered, assigned, &queue_of, &class_of);
    let mut flow_counts = vec![0u32; placed.prepared.rules.len() + 1];
    flows.iter().for_each(|flow| flow_counts[flow.rule.index()] += 1);
    let untagged = match lowered.sniffer {
        Some((rule, _)) if job.profile.has_tags() => class_of[rule.index()][0],
        _ if job.profile.has_tags() => None,
        _ => class_of[placed.prepared.rules.len()][0],
    };
    let queues = lowered.queues.into_iter().zip(&queue_of);
    Ok(Program {
        rules: rules(job, placed, &flow_counts, &class_of, &classes),
        exceptions: placed.prepared.exceptions.list(&placed.prepared.rules),
        runtime: runtime::rules(job),
        recorder: job.policy.recorder.as_ref().map(|definition| definition.recorder.clone()),
        default: default_outcome(job, placed).verdict,
        groups: placed.prepared.groups.clone(),
        sinks: job.policy.sinks.iter().map(|definition| definition.sink.clone()).collect(),
        queues: queues.filter(|(_, id)| id.is_some()).map(|(queue, _)| queue).collect(),
        priorities_used: assigned.flows.last().map_or(0, |last| hardware_priority(last.priority) + 1),
        flows,
        classes,
        untagged,
    })
}

fn default_outcome(job: &Job<'_>, placed: &Placed<'_>) -> Outcome {
    Outcome { rule: RuleId::of(placed.prepared.rules.len()), verdict: job.policy.default.verdict() }
}

/// Whether some kept flow leads to each queue.
fn used_queues(lowered: &Lowered, assigned: &Assigned) -> Vec<bool> {
    let mut used = vec![false; lowered.queues.len()];
    for Prioritized { id, .. } in &assigned.flows {
        if let LoweredAction::Steer(queue) = lowered.action(*id) {
            used[queue.index()] = true;
        }
    }
    if let Some((_, queue)) = lowered.sniffer {
        used[queue.index()] = true;
    }
    used
}

/// The assigned flows in their order, and the sniffer's. Where a device has one match for several hash
/// variants of a rule, only the first becomes a flow: a second would match no packet, or match each packet
/// again.
fn flows(
    job: &Job<'_>,
    lowered: &Lowered,
    assigned: &Assigned,
    queue_of: &[Option<QueueId>],
    class_of: &[ClassesOfRule],
) -> Vec<Flow> {
    let reading = specs::Reading::of(job.profile);
    let mut flows = Vec::with_capacity(assigned.flows.len() + 1);
    let mut seen = HashSet::new();
    flows.extend(assigned.flows.iter().filter_map(|Prioritized { id, priority }| {
        let candidate @ Candidate { cube, rule, traps, is_compared, .. } = lowered.candidate(*id);
        let action = match (lowered.action(*id), class_of[rule.index()][usize::from(*is_compared)]) {
            (LoweredAction::Steer(queue), Some(class)) => {
                FlowAction::Steer { queue: queue_of[queue.index()].unwrap_or(queue), class }
            }
            (LoweredAction::Pass, _) => FlowAction::Pass,
            _ => FlowAction::Drop,
        };
        let kind = match (candidate.is_sent(), traps) {
            (true, _) => FlowKind::Egress,
            (false, true) => FlowKind::Normal,
            (false, false) => FlowKind::Copy,
        };
        let specs = specs::chain(cube, reading);
        if reading.is_ambiguous() && !seen.insert((*rule, kind, specs.clone())) {
            return None;
        }
        Some(Flow { rule: *rule, priority: hardware_priority(*priority), kind, specs, action })
    }));
    if let Some((rule, queue)) = lowered.sniffer
        && let (Some(queue), Some(class)) = (queue_of[queue.index()], class_of[rule.index()][0])
    {
        let action = FlowAction::Steer { queue, class };
        let (kind, specs) = (FlowKind::Sniffer, SpecChain::outer(Vec::new()));
        flows.push(Flow { rule, priority: 0, kind, specs, action });
    }
    flows
}

/// Below the device's priorities, or the program is refused; no program has more than 2^15 of them.
fn hardware_priority(priority: u32) -> u16 {
    u16::try_from(priority).unwrap_or(u16::MAX - 1)
}

/// The class of a rule's flows, and that of its compared flows.
type ClassesOfRule = [Option<ClassId>; 2];

/// The classes of each rule, the default's last, and the classes by number; numbers without a class are
/// `None`.
type Numbered = (Vec<ClassesOfRule>, Vec<Option<Class>>);

/// The classes of each rule with a flow to a worker, and all classes.
fn number_classes(
    job: &Job<'_>,
    placed: &Placed<'_>,
    overlaps: Overlaps,
    lowered: &Lowered,
    assigned: &Assigned,
) -> Result<Numbered, TooManySteps> {
    let default = placed.prepared.rules.len();
    let has_tags = job.profile.has_tags();
    let mut steers = vec![[false; 2]; default + 1];
    for Prioritized { id, .. } in &assigned.flows {
        let Candidate { rule, is_compared, .. } = lowered.candidate(*id);
        steers[rule.index()][usize::from(*is_compared)] |=
            matches!(lowered.action(*id), LoweredAction::Steer(_));
    }
    if let Some((rule, _)) = lowered.sniffer {
        steers[rule.index()][0] = true;
    }
    if !has_tags {
        // The one class of all packets is the default's.
        let any = steers.iter().flatten().any(|steers| *steers);
        steers.fill([false; 2]);
        steers[default][0] = any;
    }
    let decided = decide_rules(job, placed, overlaps, &steers)?;
    let name = |rule: RuleId| job.policy.rules.get(rule.index()).map_or(DEFAULT_RULE, |rule| &*rule.name);
    let names: Vec<ClassName<'_>> =
        decided.iter().map(|(class, compares)| (name(class.rule), *compares)).collect();
    let ids = stable_numbers(&names, has_tags, job.previous);
    let mut class_of = vec![[None; 2]; default + 1];
    let length = ids.iter().map(|id| id.index() + 1).max().unwrap_or(0);
    let mut classes: Vec<Option<Class>> = vec![None; length];
    for ((class, compares), id) in decided.into_iter().zip(ids) {
        class_of[class.rule.index()][usize::from(compares)] = Some(id);
        classes[id.index()] = Some(class);
    }
    if !has_tags && let only @ Some(_) = class_of[default][0] {
        class_of = vec![[only; 2]; default + 1];
    }
    Ok((class_of, classes))
}

/// The rule of a class, and whether its packets are compared with earlier rules.
type ClassName<'n> = (&'n str, bool);

/// A number for each of these classes.
fn stable_numbers(names: &[ClassName<'_>], has_tags: bool, previous: Option<&Program>) -> Vec<ClassId> {
    let before: HashMap<ClassName<'_>, u32> =
        previous.map(|previous| classes_by_name(previous, has_tags)).unwrap_or_default();
    let mut taken: HashSet<u32> = before.values().copied().collect();
    let mut next = 0..CLASSES_MAX;
    let mut fresh = move || {
        let id = next.by_ref().find(|id| !taken.contains(id)).unwrap_or(CLASSES_MAX);
        taken.insert(id);
        id
    };
    names.iter().map(|name| ClassId(before.get(name).copied().unwrap_or_else(&mut fresh))).collect()
}

fn classes_by_name(program: &Program, has_tags: bool) -> HashMap<ClassName<'_>, u32> {
    let classes = program.classes.iter().enumerate();
    let named = classes.filter_map(|(index, class)| {
        let class = class.as_ref()?;
        let rule = program.rules.get(class.rule.index())?;
        let first = if let Decide::Software(steps, _) = &class.decide { steps.iter().next() } else { None };
        // Without tags there is one class, of the default, for all packets.
        let compares = has_tags && first.is_some_and(|step| step.rule < class.rule);
        Some(((rule.name.as_str(), compares), ClassId::of(index).0))
    });
    named.collect()
}

/// The classes of flows that lead to a worker, each with whether its packets are compared with earlier rules.
fn decide_rules(
    job: &Job<'_>,
    placed: &Placed<'_>,
    mut overlaps: Overlaps,
    steers: &[[bool; 2]],
) -> Result<Vec<(Class, bool)>, TooManySteps> {
    let default = default_outcome(job, placed);
    let mut decided = Vec::new();
    let deciding = Deciding::of(&placed.prepared.rules);
    let mut steps_in_all = 0;
    let both = steers.iter().enumerate().flat_map(|(rule, steers)| {
        [false, true].into_iter().zip(steers).filter(|(_, steers)| **steers).map(move |(of, _)| (rule, of))
    });
    for (rule, compares) in both.map(|(rule, compares)| (RuleId::of(rule), compares)) {
        let earlier = placed.earlier.get(&rule).filter(|_| compares);
        let decide = match job.profile.has_tags() {
            true => decide(&placed.prepared.rules, &deciding, &mut overlaps, rule, earlier, default),
            false => deciding.decide_all(default),
        };
        steps_in_all += if let Decide::Software(steps, _) = &decide { steps.len() } else { 0 };
        if steps_in_all > MAX_STEPS_IN_ALL {
            return Err(TooManySteps(rule));
        }
        decided.push((Class { rule, decide }, compares));
    }
    Ok(decided)
}

/// The rules of the program, with where each is decided; the default's last.
fn rules(
    job: &Job<'_>,
    placed: &Placed<'_>,
    flows: &[u32],
    class_of: &[ClassesOfRule],
    classes: &[Option<Class>],
) -> Vec<Rule> {
    let Placed { prepared: Prepared { rules, .. }, placements, left, .. } = placed;
    let mut tested = vec![false; rules.len() + 1];
    for class in classes.iter().flatten() {
        if let Decide::Software(steps, otherwise) = &class.decide {
            let known = steps.iter().map(|step| step.rule).chain([otherwise.rule]);
            known.for_each(|rule| tested[rule.index()] = true);
        }
    }
    let mut listed: Vec<Rule> = Vec::with_capacity(rules.len() + 1);
    for (index, (definition, rule)) in job.policy.rules.iter().zip(rules).enumerate() {
        let order = order_note(job, placed, RuleId::of(index), class_of);
        let room = left.contains(&RuleId::of(index)).then(no_capacity);
        let undecided: Vec<UndecidedKey> = rule.undecided().cloned().chain(order).chain(room).collect();
        let has_flows = placements[index] != Placement::Nothing;
        // Without tags, workers test for all rules; a rule without flows gets packets only from the flows of
        // earlier hybrid rules, and from covers.
        let has_packets = || has_flows || !left.is_empty() || is_brought(&rules[..index], rule);
        let is_tested = tested[index] && (job.profile.has_tags() || has_packets());
        let placement = if !undecided.is_empty() && (has_flows || is_tested) {
            program::Placement::Hybrid {
                reason: hybrid_reason(job.policy, rule, placements[index], &undecided),
            }
        } else if flows[index] == 0 && is_tested {
            program::Placement::Hybrid { reason: BY_EARLIER_RULES.to_owned() }
        } else {
            program::Placement::Hardware
        };
        listed.push(Rule {
            name: definition.name.as_str().into(),
            description: definition.description.clone(),
            action: definition.action.verdict(),
            line: definition.name_place.line(),
            placement,
            count: definition.count,
            flows: flows[index],
            undecided,
            sinks: job.policy.sinks_of(definition.action, definition.sinks.as_deref()).to_vec(),
            policing: definition.policing,
        });
    }
    let order = match left.is_empty() {
        true => order_note(job, placed, RuleId::of(rules.len()), class_of),
        false => Some(no_capacity()),
    };
    let by_worker =
        job.policy.default == Action::Drop && matches!(placements.last(), Some(Placement::Steer(_)));
    listed.push(Rule {
        name: DEFAULT_RULE.into(),
        description: None,
        action: default_outcome(job, placed).verdict,
        line: if job.policy.default_given { job.policy.default_place.line() } else { 0 },
        placement: match (by_worker, &order) {
            (_, Some(note)) => program::Placement::Hybrid { reason: order_reason(job.policy, note) },
            (true, None) => program::Placement::Hybrid { reason: NO_DROP.to_owned() },
            (false, None) => program::Placement::Hardware,
        },
        count: true,
        flows: flows[rules.len()],
        undecided: order.into_iter().collect(),
        sinks: job.policy.sinks_of(job.policy.default, None).to_vec(),
        policing: Policing::default(),
    });
    listed
}

/// Notes that the device has too little room for flows.
fn no_capacity() -> UndecidedKey {
    UndecidedKey { key: "match".to_owned(), why: UndecidedReason::NoCapacity }
}

/// Notes that a rule is hybrid because the device has too few priorities: workers compare packets of some of
/// its flows (shared flows included) with earlier rules, or have to drop all of them.
fn order_note(
    job: &Job<'_>,
    placed: &Placed<'_>,
    rule: RuleId,
    class_of: &[ClassesOfRule],
) -> Option<UndecidedKey> {
    let [_, compared] = class_of[rule.index()];
    let action = job.policy.rules.get(rule.index()).map_or(job.policy.default, |rule| rule.action);
    let is_steered = matches!(placed.placements[rule.index()], Placement::Steer(_));
    let (first, rules) = match placed.earlier.get(&rule) {
        _ if !job.profile.has_tags() => return None,
        Some(earlier) if compared.is_some() => (*earlier.first()?, earlier.len()),
        _ if action == Action::Drop && is_steered => *placed.by_order.get(&rule)?,
        _ => return None,
    };
    let why = UndecidedReason::Order { first, rules };
    Some(UndecidedKey { key: ORDER.to_owned(), why })
}

/// Whether flows of an earlier hybrid rule may match packets of the rule.
fn is_brought(earlier: &[CoveredRule], rule: &CoveredRule) -> bool {
    earlier.iter().any(|earlier| earlier.decides() && earlier.is_hybrid() && earlier.meets(rule))
}
