//! Changes of a policy, one at a time, that its tests should notice: a rule removed, its action swapped, a
//! condition dropped, or two neighbours exchanged. A change after which every packet is treated as before is
//! left out. The exact difference of the policies decides that, and gives a packet for each change that no
//! test notices.

use std::path::Path;
use std::time::{Duration, Instant};

use analysis::{Detail, Progress, diff_in_detail};
use compiler::Job;
use device_model::DeviceModel;
use packet::Field;
use policy::policy::{Action, Direction, RuleDefinition};
use policy::{Policy, Witness};
use program::Match;

use super::{TestBench, needs_program};

/// The longest time for the difference of one change.
const DIFFERENCE_TIME: Duration = Duration::from_secs(5);

/// The outcome of all changes.
#[derive(Default)]
pub(crate) struct Mutations {
    pub(crate) noticed: usize,
    /// The changes that no test notices.
    pub(crate) survivors: Vec<Survivor>,
    /// Changes after which every packet is treated as before.
    pub(crate) without_effect: usize,
    /// Changes whose effect is not known within the limits of the analysis.
    pub(crate) not_decided: usize,
    /// Changes for which there was no time.
    pub(crate) not_tried: usize,
}

/// The device that changed policies are compiled for, without weights of traffic: they count the packets of
/// the rules as they are.
pub(crate) struct TestedDevice<'d> {
    pub(crate) profile: &'d DeviceModel,
    pub(crate) workers: usize,
}

/// A change that no test notices.
pub(crate) struct Survivor {
    pub(crate) line: u32,
    /// The change in words.
    pub(crate) change: String,
    /// A packet that is treated differently.
    pub(crate) witness: Witness,
}

/// A change of one rule.
enum Mutation {
    Remove,
    Act(Action),
    Widen(Condition),
    /// Exchange it with the next rule that decides packets of the same direction.
    Swap(usize),
}

/// A condition of a match that can be dropped.
#[derive(Clone, Copy)]
enum Condition {
    Field(Field),
    Named(&'static str, DropCondition),
}

type DropCondition = fn(&mut Match);

/// Tries the changes of a policy whose tests all pass, until `time` is over.
pub(crate) fn mutations(
    policy: &Policy,
    folder: &Path,
    device: &TestedDevice<'_>,
    time: Duration,
    progress: &mut dyn FnMut(Progress),
) -> Mutations {
    let begun = Instant::now();
    let all: Vec<(usize, Mutation)> = (0..policy.rules.len())
        .flat_map(|index| of_rule(policy, index).into_iter().map(move |mutation| (index, mutation)))
        .collect();
    let mut found = Mutations::default();
    for (done, (index, mutation)) in all.iter().enumerate() {
        progress(Progress { stage: "changes", done, total: all.len() });
        let left = time.saturating_sub(begun.elapsed());
        if left.is_zero() {
            found.not_tried = all.len() - done;
            break;
        }
        let changed = mutation.applied(policy, *index);
        if notices(&changed, folder, device) {
            found.noticed += 1;
            continue;
        }
        let detail = Detail { regions_per_pair: 1, regions: 1, time: Some(left.min(DIFFERENCE_TIME)) };
        let difference = diff_in_detail(policy, &changed, detail, &mut |_| {});
        match difference.pairs.first() {
            Some(pair) => found.survivors.push(Survivor {
                line: policy.rules[*index].name_place.line(),
                change: mutation.text(policy, *index),
                witness: pair.witness.clone(),
            }),
            None if difference.is_empty() => found.without_effect += 1,
            None => found.not_decided += 1,
        }
    }
    found
}

/// Whether a test of a changed policy fails.
fn notices(changed: &Policy, folder: &Path, device: &TestedDevice<'_>) -> bool {
    let program = match needs_program(changed) && !changed.carves_queues() {
        true => match Job::new(changed, device.profile, device.workers).compile() {
            Ok(program) => Some(program),
            // The operator would see an error.
            Err(_) => return true,
        },
        false => None,
    };
    let mut bench = TestBench::of(changed, folder, program.as_ref());
    changed.tests.iter().any(|test| !bench.failures(test).is_empty())
}

const fn is_final(action: Action) -> bool {
    !matches!(action, Action::Copy(_) | Action::Sniff(_))
}

/// The changes of a rule. Copies are not tested, so their rules are not changed.
fn of_rule(policy: &Policy, index: usize) -> Vec<Mutation> {
    let rule = &policy.rules[index];
    if !is_final(rule.action) {
        return Vec::new();
    }
    let mut all = vec![Mutation::Remove];
    all.extend(match (rule.action, rule.direction) {
        (Action::Drop, Direction::Ingress) => Some(Mutation::Act(Action::Kernel)),
        (Action::Drop, Direction::Egress) => Some(Mutation::Act(Action::Pass)),
        (Action::Kernel | Action::Pass, _) => Some(Mutation::Act(Action::Drop)),
        _ => None,
    });
    all.extend(conditions(&rule.matches).into_iter().map(Mutation::Widen));
    let is_neighbour = |other: &&RuleDefinition| other.direction == rule.direction && is_final(other.action);
    let neighbour = policy.rules.iter().enumerate().skip(index + 1).find(|(_, other)| is_neighbour(other));
    // The default for multicast is the last rule in any case.
    all.extend(neighbour.filter(|(_, other)| !other.multicast_default).map(|(next, _)| Mutation::Swap(next)));
    all
}

fn conditions(matches: &Match) -> Vec<Condition> {
    let mut all: Vec<Condition> = matches.values().map(|(field, _)| Condition::Field(field)).collect();
    let named: [(bool, &'static str, DropCondition); 9] = [
        (matches.src.is_some(), "src", |matches| matches.src = None),
        (matches.dst.is_some(), "dst", |matches| matches.dst = None),
        (matches.src_mac.is_some(), "src_mac", |matches| matches.src_mac = None),
        (matches.dst_mac.is_some(), "dst_mac", |matches| matches.dst_mac = None),
        (matches.family.is_some(), "family", |matches| matches.family = None),
        (matches.fragment.is_some(), "fragment", |matches| matches.fragment = None),
        (matches.ip_options.is_some(), "ip_options", |matches| matches.ip_options = None),
        (matches.mpls.is_some(), "mpls", |matches| matches.mpls = None),
        (matches.inner.is_some(), "inner", |matches| matches.inner = None),
    ];
    let given = named.into_iter().filter(|(is_given, ..)| *is_given);
    all.extend(given.map(|(_, name, drop)| Condition::Named(name, drop)));
    if matches.vlan.is_some() && !matches.has(Field::VlanId) {
        all.push(Condition::Named("vlan", |matches| matches.vlan = None));
    }
    all
}

impl Mutation {
    fn applied(&self, policy: &Policy, index: usize) -> Policy {
        let mut changed = policy.clone();
        match self {
            Self::Remove => _ = changed.rules.remove(index),
            Self::Act(action) => {
                changed.rules[index].action = *action;
                changed.rules[index].sinks = None;
            }
            Self::Widen(Condition::Field(field)) => changed.rules[index].matches.remove(&[*field]),
            Self::Widen(Condition::Named(_, drop)) => drop(&mut changed.rules[index].matches),
            Self::Swap(next) => changed.rules.swap(index, *next),
        }
        changed
    }

    fn text(&self, policy: &Policy, index: usize) -> String {
        let name = |index: usize| policy.rules.get(index).map_or("?", |rule| rule.name.as_str());
        let this = name(index);
        match self {
            Self::Remove => format!("remove the rule `{this}`"),
            Self::Act(action) => {
                let action = match action {
                    Action::Drop => "drop",
                    Action::Pass => "pass",
                    _ => "kernel",
                };
                format!("give the rule `{this}` the action \"{action}\"")
            }
            Self::Widen(condition) => {
                let key = match condition {
                    Condition::Field(field) => field.name(),
                    Condition::Named(name, _) => name,
                };
                format!("drop `{key}` from the match of the rule `{this}`")
            }
            Self::Swap(next) => format!("move the rule `{this}` behind `{}`", name(*next)),
        }
    }
}
