//! A [`Policy`] to a [`Program`] for one device. Each rule is covered by cubes (`expand`), those are cut by
//! hash variant (`tables`), ranked (`priority`) and written as specs (`emit`); what the device cannot
//! decide becomes a software class (`classes`). Deterministic: no step depends on a hash map's order.

mod classes;
mod cube;
mod draft;
mod emit;
mod expand;
mod priority;
mod tables;

use crate::diagnostics::Diagnostics;
use crate::ids::{GroupId, RuleId};
use crate::policy::{Action, Policy};
use crate::predicate::Predicate;
use crate::profile::DeviceProfile;
use crate::program::{Decide, Outcome, Program, Verdict};

use classes::{Expanded, decide, verdict};
use draft::Draft;
use expand::{Expansion, Explosion, MAX_CUBES_PER_RULE, expand};

/// Compiles a policy for a device and a number of workers.
///
/// # Errors
/// All that does not fit: workers out of range, tables, flows or priorities beyond the device's limits.
pub fn compile(policy: &Policy, profile: &DeviceProfile, workers: usize) -> Result<Program, Diagnostics> {
    let mut problems = Diagnostics::default();
    let groups = tables::groups(policy, profile, workers, &mut problems);
    let rules = expand_rules(policy, &mut problems);
    let landing = landing_groups(policy, &rules, &mut problems);
    if problems.has_errors() {
        problems.sort();
        return Err(problems);
    }
    let draft = Draft::new(policy, profile, &groups, &rules, &landing, &mut problems);
    if problems.has_errors() {
        return Err(problems);
    }
    let ranking = priority::rank(&draft.candidates);
    draft.check_fits(policy, profile, &ranking, &mut problems);
    if problems.has_errors() {
        problems.sort();
        return Err(problems);
    }
    Ok(draft.finish(policy, groups, &rules, &ranking))
}

fn expand_rules(policy: &Policy, problems: &mut Diagnostics) -> Vec<Expanded> {
    let mut rules = Vec::with_capacity(policy.rules.len());
    for rule in &policy.rules {
        let expansion = expand(&rule.matches).unwrap_or_else(|Explosion { combinations, keys }| {
            let keys: Vec<String> =
                keys.iter().take(3).map(|(key, count)| format!("`{key}` ({count})")).collect();
            let message = format!("the rule `{}` takes up to {combinations} combinations", rule.name);
            let label = format!("a rule may take {MAX_CUBES_PER_RULE}");
            let hint =
                format!("most come from {}: use fewer, aligned to powers of two", keys.join(" times "));
            problems.push(rule.place.error(message, label).hint(hint));
            Expansion { cubes: Vec::new(), software: Vec::new() }
        });
        rules.push(Expanded { expansion, predicate: Predicate::of(&rule.matches), action: rule.action });
    }
    rules
}

/// The group to which the device delivers a rule's packets, and the default's last; `None` where it does
/// not deliver.
///
/// A hybrid drop must go to some worker. The best is where its packets go if they are not to be dropped.
fn landing_groups(policy: &Policy, rules: &[Expanded], problems: &mut Diagnostics) -> Vec<Option<GroupId>> {
    let default = Outcome { rule: RuleId::of(rules.len()), verdict: verdict(policy.default) };
    let mut landing = Vec::with_capacity(rules.len() + 1);
    for (index, (rule, definition)) in rules.iter().zip(&policy.rules).enumerate() {
        landing.push(match (rule.action, rule.is_hybrid()) {
            (Action::Steer(group), _) => Some(group),
            (_, false) => None,
            (_, true) => {
                let next = next_group(&decide(rules, index, default));
                let group = next.or_else(|| (!policy.groups.is_empty()).then_some(GroupId(0)));
                if group.is_none() {
                    let keys = rule.expansion.software.join(", ");
                    let message = format!("`{}` drops by {keys}, which takes a worker", definition.name);
                    let error = definition.place.error(message, "the device cannot match this alone");
                    problems.push(error.hint("add a group: its workers look at these packets and drop them"));
                }
                group
            }
        });
    }
    landing.push(match policy.default {
        Action::Steer(group) => Some(group),
        Action::Drop | Action::Kernel => None,
    });
    landing
}

/// The first group that a software class may deliver to.
fn next_group(decide: &Decide) -> Option<GroupId> {
    let Decide::Software(steps, otherwise) = decide else { return None };
    steps.iter().map(|step| step.outcome).chain([*otherwise]).find_map(|outcome| match outcome.verdict {
        Verdict::Deliver(group) => Some(group),
        Verdict::Drop | Verdict::Kernel => None,
    })
}

/// Why a rule gets no packets.
pub(crate) enum Taken {
    /// No packet meets it.
    Impossible,
    /// These earlier rules take them all.
    By(Vec<usize>),
}

/// Which earlier rules take the packets of a rule that gets none; slow, for diagnostics only.
pub(crate) fn taken_by(policy: &Policy, rule: usize) -> Taken {
    let cover = |index: usize| policy.rules.get(index).and_then(|rule| expand(&rule.matches).ok());
    let mut left = cover(rule).map(|expansion| expansion.cubes).unwrap_or_default();
    if left.is_empty() {
        return Taken::Impossible;
    }
    let mut takers = Vec::new();
    for earlier in 0..rule {
        let Some(expansion) = cover(earlier) else { continue };
        let before = left.len();
        left.retain(|cube| !expansion.cubes.iter().any(|taker| taker.contains(cube)));
        if left.len() < before {
            takers.push(earlier);
        }
    }
    Taken::By(takers)
}
