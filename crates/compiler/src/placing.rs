//! What the device does for each rule, and how that reads: to which group it delivers, whether it drops, and
//! why a worker has to finish. Called by `compile` before flows are drafted and by `draft` at the end.

use std::collections::BTreeSet;

use device_model::{DeviceProfile, Limit};
use policy::Policy;
use policy::policy::{Action, Direction};
use program::{Class, DEFAULT_RULE, Decide, Feature, GroupId, Placement, Rule, Unfinished, Why};

use super::claims::Claims;
use super::classes::{Expanded, next_group, verdict};
use super::draft::Plan;
use super::exceptions::{Exceptions, leave_out};
use super::findings::{Findings, Obstacle};
use super::fit::{any_cast, is_multicast_only, no_tags, tellable};

/// What the flows of a rule do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placing {
    /// There are none.
    Nothing,
    Drop,
    Pass,
    Steer(GroupId),
    Copy(GroupId),
    Sniff(GroupId),
}

/// Leaves out of flows what is the host's, notes what else a worker must see, and widens what the device
/// would put in the wrong place. `may_cut`: whether flows may be cut for what is the host's.
pub(super) fn prepare(
    policy: &Policy,
    profile: &DeviceProfile,
    rules: &mut [Expanded],
    may_cut: bool,
) -> Exceptions {
    let exceptions = loop {
        let exceptions = leave_out(policy, profile, rules, may_cut);
        if !profile.multicast_ignores_priority || !widen_multicast(policy, rules, &exceptions) {
            break exceptions;
        }
    };
    for (index, rule) in rules.iter_mut().enumerate().filter(|(_, rule)| rule.claims()) {
        let has_flow = rule.action != Action::Kernel || !exceptions.keeps_nothing(index);
        if !profile.has_tags() && has_flow {
            rule.notes.push(no_tags(profile));
        }
        if rule.action == Action::Drop
            && let Some(refusal) = profile.refusal(Feature::Drop).filter(|_| profile.has_tags())
        {
            let why = Why::Refused { feature: Feature::Drop, errno: refusal.errno };
            rule.notes.push(Unfinished { key: "drop".to_owned(), why });
        }
        match exceptions.note(index) {
            Some(note) if exceptions.is_coarse(index) => rule.widen(note, |cube| tellable(cube, profile)),
            note => rule.notes.extend(note),
        }
    }
    exceptions
}

/// A flow on multicast alone comes after all others, whatever its priority: where that would be wrong, it
/// is made a flow on more. Tells whether there were such.
fn widen_multicast(policy: &Policy, rules: &mut [Expanded], exceptions: &Exceptions) -> bool {
    let flows = |index: usize| match rules[index].claims() || rules[index].copies() {
        true => exceptions.flow_cubes(rules, index),
        false => &[],
    };
    let comes: Vec<bool> = (0..rules.len()).map(|index| !flows(index).is_empty()).collect();
    let is_late = |index: &usize| rules[*index].claims() && flows(*index).iter().any(is_multicast_only);
    let mut late: BTreeSet<usize> = (0..rules.len()).filter(is_late).collect();
    let mut widened = Vec::new();
    for index in late.clone() {
        let overtakes = (0..rules.len()).any(|other| {
            let matters = (other > index && comes[other]) || late.contains(&other);
            other != index && matters && rules[other].meets(&rules[index])
        });
        if policy.default != Action::Kernel || overtakes {
            late.remove(&index);
            widened.push(index);
            widen(&mut rules[index]);
        }
    }
    let any = !widened.is_empty();
    // Wider than it was, one may be what an earlier one overtakes.
    while let Some(index) = widened.pop() {
        let meets = |other: &usize| rules[index].meets(&rules[*other]);
        for other in late.range(..index).copied().filter(meets).collect::<Vec<_>>() {
            late.remove(&other);
            widened.push(other);
            widen(&mut rules[other]);
        }
    }
    any
}

fn widen(rule: &mut Expanded) {
    rule.widen(Unfinished { key: "dst_mac".to_owned(), why: Why::Multicast }, any_cast);
}

/// What the flows of each rule do, the default's last.
///
/// What a worker must see has to go to some worker. The best is where it goes if the rule does not match.
pub(super) fn place(
    policy: &Policy,
    profile: &DeviceProfile,
    rules: &[Expanded],
    exceptions: &Exceptions,
    claims: &mut Claims,
    problems: &mut Findings,
) -> Vec<Placing> {
    let mut placing = Vec::with_capacity(rules.len() + 1);
    let mut sniffs = 0;
    for (index, rule) in rules.iter().enumerate() {
        allowed(policy, profile, index, rules, &mut sniffs, problems);
        placing.push(match (rule.direction, rule.action) {
            (_, Action::Steer(group)) => Placing::Steer(group),
            (_, Action::Copy(group)) => Placing::Copy(group),
            (_, Action::Sniff(group)) => Placing::Sniff(group),
            (_, Action::Pass) | (Direction::Egress, Action::Kernel) => Placing::Pass,
            (Direction::Egress, Action::Drop) => Placing::Drop,
            (_, Action::Drop) if !rule.needs_worker() => Placing::Drop,
            // No flow takes its packets.
            (_, Action::Kernel) if exceptions.keeps_nothing(index) => Placing::Nothing,
            (_, Action::Drop | Action::Kernel) => {
                let next = next_group(rules, claims, index, policy.default);
                let group = next.or_else(|| (!policy.groups.is_empty()).then_some(GroupId(0)));
                if group.is_none() {
                    needs_a_group(policy, index, rule, problems);
                }
                group.map_or(Placing::Nothing, Placing::Steer)
            }
        });
    }
    placing.push(match policy.default {
        Action::Steer(group) => Placing::Steer(group),
        Action::Drop if profile.has_tags() && profile.allows(Feature::Drop) => Placing::Drop,
        Action::Drop if !policy.groups.is_empty() => Placing::Steer(GroupId(0)),
        Action::Drop => {
            let errno = profile.refusal(Feature::Drop).map(|refusal| refusal.errno);
            let obstacle = Obstacle {
                rule: None,
                reason: format!("the default drops, which `{}` cannot", profile.name),
                limit: "no flow drops".to_owned(),
                errno,
                remedy: "add a group: its workers drop what no rule claims".to_owned(),
            };
            problems.refuse(&policy.default_place, "", obstacle);
            Placing::Nothing
        }
        _ => Placing::Nothing,
    });
    placing
}

fn needs_a_group(policy: &Policy, index: usize, rule: &Expanded, problems: &mut Findings) {
    let definition = &policy.rules[index];
    let notes = rule.expansion.software.iter().chain(&rule.notes);
    let keys: Vec<&str> = notes.clone().map(|note| note.key.as_str()).collect();
    let does = if rule.action == Action::Drop { "drops" } else { "leaves packets to the host" };
    let obstacle = Obstacle {
        rule: Some(index),
        reason: format!("`{}` {does} by {}, which takes a worker", definition.name, keys.join(", ")),
        limit: "the device cannot match this alone".to_owned(),
        errno: notes.clone().find_map(|note| note.why.errno()),
        remedy: "add a group: its workers look at these packets and drop them".to_owned(),
    };
    problems.refuse(&definition.place, "", obstacle);
}

/// Refuses a rule whose kind of flow the device does not have, or not like this.
fn allowed(
    policy: &Policy,
    profile: &DeviceProfile,
    index: usize,
    rules: &[Expanded],
    sniffs: &mut usize,
    problems: &mut Findings,
) {
    let (rule, definition) = (&rules[index], &policy.rules[index]);
    let (name, device) = (&definition.name, &profile.name);
    let feature = match rule.action {
        Action::Copy(_) => Feature::Copy,
        Action::Sniff(_) => Feature::Sniffer,
        _ if rule.direction == Direction::Egress => Feature::Egress,
        _ => return,
    };
    let mut refuse = |reason: String, limit: &str, errno, remedy: &str| {
        let (limit, remedy) = (limit.to_owned(), remedy.to_owned());
        problems.refuse(&definition.place, "", Obstacle { rule: Some(index), reason, limit, errno, remedy });
    };
    if let Some(refusal) = profile.refusal(feature) {
        let reason = format!("`{name}` takes {}, which `{device}` does not do", feature.name());
        refuse(reason, "no such flows", Some(refusal.errno), "remove the rule, or use another device");
        return;
    }
    if feature == Feature::Sniffer {
        *sniffs += 1;
        if *sniffs > 1 {
            let reason = format!("`{name}` is a second rule that sniffs");
            let errno = Some(profile.errno(Limit::Sniffers));
            let remedy = "what a sniffer hears carries no tag, so two cannot be told apart: use one rule";
            refuse(reason, "one sniffer", errno, remedy);
        }
    }
    if feature == Feature::Egress && rule.is_hybrid() {
        let keys: Vec<&str> = rule.expansion.software.iter().map(|note| note.key.as_str()).collect();
        let reason = format!("`{name}` matches what the host sends by {}", keys.join(", "));
        let errno = rule.expansion.software.iter().find_map(|note| note.why.errno());
        refuse(reason, "no worker sees what is sent", errno, "leave these keys out");
    }
    if feature == Feature::Copy {
        let earlier = rules.iter().zip(&policy.rules).take(index);
        let hidden = earlier
            .clone()
            .find(|(earlier, _)| earlier.claims() && earlier.is_hybrid() && earlier.meets(rule));
        if let Some((_, earlier)) = hidden {
            let reason = format!("packets that `{name}` copies go to the worker by `{}` first", earlier.name);
            let remedy = format!("move `{name}` before `{}`: a worker makes no copies", earlier.name);
            refuse(reason, "copies are made by the device", None, &remedy);
        }
        let cubes = &rule.expansion.cubes;
        let own =
            |(at, cube): (usize, &super::cube::Cube)| cubes.iter().skip(at + 1).any(|c| c.overlaps(cube));
        if cubes.len() > MAX_COPIED_CUBES || cubes.iter().enumerate().any(own) {
            let reason = format!("`{name}` covers some packets more than once, and would copy them twice");
            refuse(reason, "one copy per rule", None, "write addresses and masks that do not overlap");
        }
    }
}

/// The most flows of one rule that copies: each is compared with all others.
const MAX_COPIED_CUBES: usize = 1 << 12;

/// The rules of the finished program.
pub(super) fn placements(plan: &Plan<'_>, flows: &[u32], classes: &[Option<Class>]) -> Vec<Rule> {
    let Plan { policy, rules, .. } = plan;
    let mut asked = vec![false; rules.len() + 1];
    for class in classes.iter().flatten() {
        if let Decide::Software(steps, otherwise) = &class.decide {
            let known = steps.iter().map(|step| step.rule).chain([otherwise.rule]);
            known.for_each(|rule| asked[rule.index()] = true);
        }
    }
    let mut listed: Vec<Rule> = Vec::with_capacity(rules.len() + 1);
    for (index, (rule, expanded)) in policy.rules.iter().zip(rules).enumerate() {
        let unfinished: Vec<Unfinished> =
            expanded.expansion.software.iter().chain(&expanded.notes).cloned().collect();
        let reason = reason(plan, index, &unfinished);
        // Without tags, workers ask about all rules; what is left to the host comes to none.
        let is_asked = asked[index]
            && (plan.profile.has_tags()
                || plan.placing[index] != Placing::Nothing
                || is_brought(rules, index));
        let placement = match reason {
            Some(reason) if plan.placing[index] != Placing::Nothing || is_asked => {
                Placement::Hybrid { reason }
            }
            _ if flows[index] == 0 && is_asked => {
                Placement::Hybrid { reason: "earlier hybrid rules take its packets to the worker".to_owned() }
            }
            _ => Placement::Hardware,
        };
        listed.push(Rule {
            name: rule.name.clone(),
            action: verdict(rule.action),
            line: rule.name_place.line(),
            placement,
            count: rule.count,
            flows: flows[index],
            unfinished,
        });
    }
    let drops = plan.placing.last().is_some_and(|last| matches!(last, Placing::Steer(_)));
    let by_worker = policy.default == Action::Drop && drops;
    listed.push(Rule {
        name: DEFAULT_RULE.to_owned(),
        action: plan.default().verdict,
        line: if policy.default_given { policy.default_place.line() } else { 0 },
        placement: match by_worker {
            true => Placement::Hybrid { reason: "the device cannot drop, a worker does".to_owned() },
            false => Placement::Hardware,
        },
        count: true,
        flows: flows[rules.len()],
        unfinished: Vec::new(),
    });
    listed
}

/// Whether an earlier hybrid rule may bring packets of a rule to a worker.
fn is_brought(rules: &[Expanded], index: usize) -> bool {
    let mut hybrid = rules[..index].iter().filter(|rule| rule.claims() && rule.is_hybrid());
    hybrid.any(|rule| rule.meets(&rules[index]))
}

/// Why a worker finishes a rule, in a line.
fn reason(plan: &Plan<'_>, index: usize, unfinished: &[Unfinished]) -> Option<String> {
    if unfinished.is_empty() {
        return None;
    }
    let told = |note: &Unfinished| match note.why {
        Why::NoWords => note.key.clone(),
        Why::KernelException { by, untold } => {
            format!("{} (`{}` {})", note.key, plan.name(by.index()), untold.words())
        }
        why => format!("{} ({})", note.key, why.words()),
    };
    let keys: Vec<String> = unfinished.iter().map(told).collect();
    let rule = &plan.rules[index];
    let worker = match plan.placing[index] {
        Placing::Steer(group) if matches!(rule.action, Action::Drop | Action::Kernel) => {
            let name = plan.policy.groups.get(group.index()).map_or("?", |group| group.name.as_str());
            format!("a worker of `{name}`")
        }
        _ => "the worker".to_owned(),
    };
    let does = match rule.action {
        _ if rule.is_hybrid() => format!("the device matches more, {worker} decides"),
        Action::Kernel => format!("its packets come to {worker}"),
        _ => format!("{worker} decides"),
    };
    Some(format!("{}: {does}", keys.join(", ")))
}
