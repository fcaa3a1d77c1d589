//! What the device does for each rule, and how that reads: to which group it delivers, whether it drops, and
//! why a worker has to finish. Called by `compile` before flows are drafted and by `draft` at the end.

use crate::ids::GroupId;
use crate::policy::{Action, Direction, Policy};
use crate::profile::{DeviceProfile, Feature, Limit};
use crate::program::{Class, DEFAULT_RULE, Decide, Placement, Rule, Unfinished, Verdict, Why};

use super::classes::{Claims, Expanded, decide, verdict};
use super::draft::Plan;
use super::findings::{Findings, Obstacle};
use super::fit::{any_cast, is_multicast_only, no_tags};

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

/// Notes what else a worker must see, and widens what the device would put in the wrong place.
pub(super) fn prepare(policy: &Policy, profile: &DeviceProfile, rules: &mut [Expanded]) {
    if profile.multicast_ignores_priority {
        widen_multicast(policy, rules);
    }
    for index in 0..rules.len() {
        if !rules[index].claims() {
            continue;
        }
        if !profile.has_tags() {
            rules[index].notes.push(no_tags(profile));
        }
        match rules[index].action {
            Action::Drop => {
                if let Some(refusal) = profile.refusal(Feature::Drop).filter(|_| profile.has_tags()) {
                    let why = Why::Refused { feature: Feature::Drop, errno: refusal.errno };
                    rules[index].notes.push(Unfinished { key: "drop".to_owned(), why });
                }
            }
            Action::Kernel if somebody_takes(policy, rules, index) => {
                let why = Why::KernelException;
                rules[index].notes.push(Unfinished { key: "kernel".to_owned(), why });
            }
            _ => {}
        }
    }
}

/// Whether something after a rule may take its packets.
fn somebody_takes(policy: &Policy, rules: &[Expanded], index: usize) -> bool {
    let takes = |other: &Expanded| match other.action {
        Action::Kernel => other.is_hybrid(),
        _ => other.claims() || other.copies(),
    };
    policy.default != Action::Kernel
        || rules.iter().skip(index + 1).any(|other| takes(other) && rules[index].meets(other))
}

/// A flow on multicast alone comes after all others, whatever its priority: where that would be wrong, it
/// is made a flow on more.
fn widen_multicast(policy: &Policy, rules: &mut [Expanded]) {
    let is_late = |rule: &Expanded| rule.claims() && rule.expansion.cubes.iter().any(is_multicast_only);
    while let Some(index) = (0..rules.len()).filter(|index| is_late(&rules[*index])).find(|index| {
        let overtakes = rules.iter().enumerate().any(|(other, rule)| {
            let matters = (other > *index && (rule.claims() || rule.copies())) || is_late(rule);
            other != *index && matters && rule.meets(&rules[*index])
        });
        policy.default != Action::Kernel || overtakes
    }) {
        let note = Unfinished { key: "dst_mac".to_owned(), why: Why::Multicast };
        rules[index].widen(note, any_cast);
    }
}

/// What the flows of each rule do, the default's last.
///
/// What a worker must see has to go to some worker. The best is where it goes if the rule does not match.
pub(super) fn place(
    policy: &Policy,
    profile: &DeviceProfile,
    rules: &[Expanded],
    problems: &mut Findings,
) -> Vec<Placing> {
    let default =
        crate::program::Outcome { rule: crate::RuleId::of(rules.len()), verdict: verdict(policy.default) };
    let mut placing = Vec::with_capacity(rules.len() + 1);
    let mut sniffs = 0;
    let claims = Claims::of(rules);
    for (index, rule) in rules.iter().enumerate() {
        allowed(policy, profile, index, rules, &mut sniffs, problems);
        placing.push(match (rule.direction, rule.action) {
            (_, Action::Steer(group)) => Placing::Steer(group),
            (_, Action::Copy(group)) => Placing::Copy(group),
            (_, Action::Sniff(group)) => Placing::Sniff(group),
            (_, Action::Pass) | (Direction::Egress, Action::Kernel) => Placing::Pass,
            (Direction::Egress, Action::Drop) => Placing::Drop,
            (_, Action::Drop) if !rule.needs_worker() => Placing::Drop,
            // Nothing after it takes its packets: they are left anyway.
            (_, Action::Kernel) if rule.notes.iter().all(|note| note.why != Why::KernelException) => {
                Placing::Nothing
            }
            (_, Action::Drop | Action::Kernel) => {
                let next = next_group(&decide(rules, &claims, index, default));
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

/// The first group that a software class may deliver to.
fn next_group(decide: &Decide) -> Option<GroupId> {
    let Decide::Software(steps, otherwise) = decide else { return None };
    steps.iter().map(|step| step.outcome).chain([*otherwise]).find_map(|outcome| match outcome.verdict {
        Verdict::Deliver(group) => Some(group),
        Verdict::Drop | Verdict::Kernel => None,
    })
}

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
        let placement = match reason {
            Some(reason) if plan.placing[index] != Placing::Nothing || asked[index] => {
                Placement::Hybrid { reason }
            }
            _ if flows[index] == 0 && asked[index] => {
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

/// Why a worker finishes a rule, in a line.
fn reason(plan: &Plan<'_>, index: usize, unfinished: &[Unfinished]) -> Option<String> {
    if unfinished.is_empty() {
        return None;
    }
    let told = |note: &Unfinished| match note.why {
        Why::NoWords => note.key.clone(),
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
    let device = if rule.is_hybrid() { "the device matches more, " } else { "" };
    Some(format!("{}: {device}{worker} decides", keys.join(", ")))
}
