//! What `steerd check` tells about a compiled policy: where each rule is decided and what in it is
//! suspicious. `report` calls it; it prints nothing. Which rules several others take together it leaves to
//! `analysis`.

use std::collections::{BTreeMap, BTreeSet};

use device_model::{Dependence, DeviceProfile};
use policy::policy::{Action, Direction, RuleDefinition};
use policy::{Diagnostic, MAX_DIAGNOSTICS, Policy};
use program::{Decide, Feature, FlowAction, GroupId, Placement, Program, RuleId, Verdict};
use serde::Serialize;

use crate::{Covers, Taken, attempt};

/// The findings.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// One line per rule, `default` last.
    pub rules: Vec<RuleCheck>,
    /// What the operator may not have meant, in the order of the policy.
    pub warnings: Vec<Diagnostic>,
}

/// One rule's line.
#[derive(Clone, Debug, Serialize)]
pub struct RuleCheck {
    /// Its name.
    pub name: String,
    /// Its line in the policy.
    pub line: u32,
    /// What it does, in words.
    pub action: String,
    /// Where it is decided.
    pub placement: Placement,
    /// How many flows it takes.
    pub flows: u32,
    /// How many questions a worker asks of one of its packets at most; 0 where the device decides.
    pub steps: u32,
}

/// Looks over a compiled policy; `program` must have been compiled from `policy`.
#[must_use]
pub fn check(policy: &Policy, program: &Program) -> Check {
    check_beside(policy, program, program, Vec::new())
}

/// The same for the device and the number of workers that it was compiled for. Where a device has no flow tags one
/// class is about all packets: which of them a flow can bring is seen in what it would run if it had tags.
#[must_use]
pub fn check_for(policy: &Policy, profile: &DeviceProfile, workers: usize, program: &Program) -> Check {
    let dependent = dependences(policy, profile);
    if profile.has_tags() {
        return check_beside(policy, program, program, dependent);
    }
    let others = profile.refusals.iter().filter(|refusal| refusal.feature != Feature::Tag);
    let refusals = others.cloned().collect();
    let tag_bits = DeviceProfile::ideal().tag_bits;
    let tagged = attempt(policy, &DeviceProfile { tag_bits, refusals, ..profile.clone() }, workers, None);
    check_beside(policy, program, tagged.as_ref().unwrap_or(program), dependent)
}

/// Rules that ask for what only some devices of the kind do: whether this one does is known when it is tried.
fn dependences(policy: &Policy, profile: &DeviceProfile) -> Vec<Diagnostic> {
    let warning = |rule: &RuleDefinition| {
        let feature = match rule.action {
            Action::Copy(_) => Feature::Copy,
            Action::Sniff(_) => Feature::Sniffer,
            _ if rule.direction == Direction::Egress => Feature::Egress,
            _ => return None,
        };
        let Dependence { capability, source, .. } = profile.dependence(feature)?;
        let message = format!(
            "whether {} does what the rule `{}` asks for, {}, depends on its firmware",
            profile.name,
            rule.name,
            feature.name()
        );
        let hint = format!(
            "the driver refuses it with EOPNOTSUPP unless the device has the capability `{capability}` ({source}); \
             it is tried when the policy is installed, and a refusal leaves the device as it was"
        );
        Some(rule.name_place.warning(message, "this rule").hint(hint))
    };
    policy.rules.iter().filter_map(warning).collect()
}

fn check_beside(
    policy: &Policy,
    program: &Program,
    tagged: &Program,
    mut warnings: Vec<Diagnostic>,
) -> Check {
    let steps = software_steps(program);
    let rules = program
        .rules
        .iter()
        .enumerate()
        .map(|(index, rule)| RuleCheck {
            name: rule.name.clone(),
            line: rule.line,
            action: program.describe(rule.action),
            placement: rule.placement.clone(),
            flows: rule.flows,
            steps: steps.get(&RuleId::of(index)).copied().unwrap_or(0),
        })
        .collect();
    unreachable_rules(policy, program, &mut warnings);
    strangers(policy, tagged, &mut warnings);
    unused_groups(policy, program, &mut warnings);
    warnings.sort_by_key(|warning| (warning.line, warning.column));
    Check { rules, warnings }
}

/// The steps of the class that each rule's flows lead to.
fn software_steps(program: &Program) -> BTreeMap<RuleId, u32> {
    let steps = program.flows.iter().filter_map(|flow| {
        let FlowAction::Steer { class, .. } = flow.action else { return None };
        match &program.class(class)?.decide {
            Decide::Exact(_) => None,
            Decide::Software(steps, _) => Some((flow.rule, u32::try_from(steps.len()).unwrap_or(u32::MAX))),
        }
    });
    steps.collect()
}

/// Rules that neither a flow nor a software class ever comes to. What leaves packets to the kernel, and needs
/// no flow for that, may well be reached.
fn unreachable_rules(policy: &Policy, program: &Program, warnings: &mut Vec<Diagnostic>) {
    let mut reached: BTreeSet<RuleId> = program.flows.iter().map(|flow| flow.rule).collect();
    reached.extend(program.exceptions.iter().map(|step| step.rule));
    for class in program.classes.iter().flatten() {
        match &class.decide {
            Decide::Exact(_) => {}
            Decide::Software(steps, otherwise) => {
                reached.extend(steps.iter().map(|step| step.rule));
                reached.insert(otherwise.rule);
            }
        }
    }
    let dead: Vec<usize> =
        (0..policy.rules.len()).filter(|index| !reached.contains(&RuleId::of(*index))).collect();
    if dead.is_empty() {
        return;
    }
    let covers = Covers::of(policy);
    for (told, index) in dead.iter().enumerate() {
        let Some(rule) = policy.rules.get(*index) else { continue };
        if told == MAX_DIAGNOSTICS {
            let message = format!("{} more rules never match", dead.len() - told);
            warnings.push(rule.name_place.warning(message, "from here on"));
            break;
        }
        let message = format!("the rule `{}` never matches", rule.name);
        let warning = rule.name_place.warning(message, "this rule");
        warnings.push(match covers.taken_by(*index) {
            Taken::Impossible => warning.hint("no packet meets all of its keys together"),
            Taken::By(earlier) if earlier.is_empty() => {
                warning.hint("earlier rules together take all its packets")
            }
            Taken::By(earlier) => {
                let names = earlier.iter().filter_map(|earlier| policy.rules.get(*earlier));
                let names: Vec<String> = names.map(|earlier| earlier.name.clone()).collect();
                warning.hint(format!("all its packets go to {} before it", listed(&names)))
            }
        });
    }
}

/// What one rule's flows bring to its workers that is not its own.
#[derive(Default)]
struct Strangers {
    /// In words, the flows with packets that no rule claims, or that a rule leaves to the host.
    from_kernel: Vec<String>,
    /// The first rule of another group whose packets are among them.
    elsewhere: Option<Elsewhere>,
}

/// A rule whose packets come to workers of another group.
#[derive(Clone, Copy)]
struct Elsewhere {
    rule: RuleId,
    /// Whose they should be.
    there: GroupId,
    /// Where they stay.
    here: GroupId,
}

/// Hybrid rules that bring packets to a worker which belong to the host, and never come back to it, or which
/// belong to another group, and stay where they are.
fn strangers(policy: &Policy, program: &Program, warnings: &mut Vec<Diagnostic>) {
    let mut found: BTreeMap<RuleId, Strangers> = BTreeMap::new();
    for flow in &program.flows {
        let FlowAction::Steer { queue, class } = flow.action else { continue };
        let (Some(queue), Some(class)) = (program.queues.get(queue.index()), program.class(class)) else {
            continue;
        };
        let strangers = found.entry(flow.rule).or_insert_with(|| Strangers {
            elsewhere: elsewhere(&class.decide, queue.group),
            ..Strangers::default()
        });
        if may_end_in_kernel(&class.decide) {
            strangers.from_kernel.push(flow.words());
        }
    }
    let told = found.iter().filter_map(|(rule, strangers)| told(policy, program, *rule, strangers));
    warnings.extend(told);
}

/// The warning of one rule, if there is something to warn of.
fn told(policy: &Policy, program: &Program, id: RuleId, strangers: &Strangers) -> Option<Diagnostic> {
    let rule = policy.rules.get(id.index())?;
    let flows = listed(&strangers.from_kernel);
    let other = strangers.elsewhere.map(|Elsewhere { rule, there, here }| {
        let group = |group: GroupId| program.groups.get(group.index()).map_or("?", |group| &*group.name);
        let other = program.rules.get(rule.index()).map_or("?", |rule| &*rule.name);
        (other, group(there), group(here))
    });
    let notes = program.rules.get(id.index()).map(|rule| &*rule.unfinished).unwrap_or_default();
    let is_kept = notes.iter().any(|note| note.why.keeps_from_host());
    let (message, label, hint) = match (other, strangers.from_kernel.is_empty()) {
        (_, false) if is_kept => (
            format!("packets of `{}` come to a worker, not to the host: {flows}", rule.name),
            "for the host",
            "flows of later rules take such packets and cannot leave these out: `steerd check` says why, and what \
             to write"
                .to_owned(),
        ),
        (None, true) => return None,
        (None, false) => (
            format!("`{}` takes packets from the kernel that are not its own: {flows}", rule.name),
            "decided by the worker",
            LOST.to_owned(),
        ),
        (Some((other, there, here)), true) => (
            format!(
                "packets of `{}` that turn out to belong to `{other}` stay with the workers of `{here}`",
                rule.name
            ),
            "decided by the worker",
            format!(
                "the device cannot tell them apart, and `{other}` goes to `{there}`: give both rules the same group"
            ),
        ),
        (Some((other, there, here)), false) => (
            format!(
                "`{}` takes packets from the kernel that are not its own: {flows}; what of them belongs to \
                 `{other}` stays with the workers of `{here}`",
                rule.name
            ),
            "decided by the worker",
            format!("{LOST}; `{other}` goes to `{there}`: give both rules the same group"),
        ),
    };
    Some(rule.place.warning(message, label).hint(hint))
}

/// What happens to packets that a worker gets and nobody claims.
const LOST: &str = "the device brings all of these to a worker, and what no rule claims there is lost to the host: \
    claim the rest by a later rule, or add keys that the device matches, so that there is less of it";

/// The first outcome that goes to another group than `here`.
fn elsewhere(decide: &Decide, here: GroupId) -> Option<Elsewhere> {
    let Decide::Software(steps, otherwise) = decide else { return None };
    let mut outcomes = steps.iter().map(|step| step.outcome).chain([*otherwise]);
    outcomes.find_map(|outcome| match outcome.verdict {
        Verdict::Deliver(there) if there != here => Some(Elsewhere { rule: outcome.rule, there, here }),
        _ => None,
    })
}

fn may_end_in_kernel(decide: &Decide) -> bool {
    match decide {
        Decide::Exact(outcome) => outcome.verdict == Verdict::Kernel,
        Decide::Software(steps, otherwise) => {
            let outcomes = steps.iter().map(|step| step.outcome).chain([*otherwise]);
            outcomes.map(|outcome| outcome.verdict).any(|verdict| verdict == Verdict::Kernel)
        }
    }
}

/// The first few of a list, quoted.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 4;
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect();
    match names.len() {
        count if count > SHOWN => format!("{} and {} more", shown.join(", "), count - SHOWN),
        _ => shown.join(", "),
    }
}

fn unused_groups(policy: &Policy, program: &Program, warnings: &mut Vec<Diagnostic>) {
    for (index, group) in policy.groups.iter().enumerate() {
        let verdict = Verdict::Deliver(GroupId::of(index));
        // A hybrid drop uses the group whose workers do the dropping.
        let receives = program.queues.iter().any(|queue| queue.group == GroupId::of(index));
        if !receives && !program.rules.iter().any(|rule| rule.action == verdict) {
            let message = format!("the group `{}` is never used", group.name);
            warnings
                .push(group.place.warning(message, "defined here").hint("remove it, or steer a rule to it"));
        }
    }
}
