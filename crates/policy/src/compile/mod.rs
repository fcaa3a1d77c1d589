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

use crate::diagnostics::{Diagnostic, Diagnostics};
use crate::ids::{GroupId, RuleId};
use crate::policy::{Action, Direction, Policy, RuleDefinition};
use crate::predicate::Predicate;
use crate::profile::DeviceProfile;
use crate::program::{Decide, Outcome, Program, Verdict};

use classes::{Expanded, decide, verdict};
use draft::{Draft, MAX_FLOWS, too_many_flows};
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
    draft.finish(policy, groups, &rules, &ranking)
}

/// Covers every rule, as far as the flows suffice: what is beyond them is not even held in memory.
fn expand_rules(policy: &Policy, problems: &mut Diagnostics) -> Vec<Expanded> {
    let mut rules = Vec::with_capacity(policy.rules.len());
    let mut cubes = 0;
    for rule in &policy.rules {
        refuse_unknown(rule, problems);
        let expansion = expand(&rule.matches).unwrap_or_else(|explosion| {
            problems.push(too_many_combinations(rule, &explosion));
            Expansion { cubes: Vec::new(), software: Vec::new() }
        });
        cubes += expansion.cubes.len();
        if cubes > MAX_FLOWS {
            problems.push(too_many_flows(&rule.place));
            break;
        }
        rules.push(Expanded { expansion, predicate: Predicate::of(&rule.matches), action: rule.action });
    }
    rules
}

/// What the language says and this compiler does not know yet.
fn refuse_unknown(rule: &RuleDefinition, problems: &mut Diagnostics) {
    let what = match rule.action {
        Action::Kernel => "a rule that leaves packets to the kernel",
        Action::Copy(_) | Action::Sniff(_) | Action::Pass => "this action",
        _ if rule.direction == Direction::Egress => "a rule on what the host sends",
        _ if rule.matches.needs_tunnel() => "a match on a tunnel",
        _ => return,
    };
    problems.push(rule.place.error(format!("{what} cannot be compiled yet"), "this rule"));
}

fn too_many_combinations(rule: &RuleDefinition, Explosion { combinations, keys }: &Explosion) -> Diagnostic {
    let keys: Vec<String> = keys.iter().take(3).map(|(key, count)| format!("`{key}` ({count})")).collect();
    let message = format!("the rule `{}` takes up to {combinations} combinations", rule.name);
    let label = format!("a rule may take {MAX_CUBES_PER_RULE}");
    let hint = format!(
        "most come from {}, ranges counted as their prefixes: write fewer values, or end ranges at powers of two",
        keys.join(" times "),
    );
    rule.place.error(message, label).hint(hint)
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
        _ => None,
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
    /// Earlier rules take them all, these among them.
    By(Vec<usize>),
}

/// The covers of a policy's rules, to find who takes whose packets; slow, for diagnostics only.
pub(crate) struct Covers(Vec<Expansion>);

impl Covers {
    /// Covers every rule of a policy that compiles.
    pub(crate) fn of(policy: &Policy) -> Self {
        let nothing = |_| Expansion { cubes: Vec::new(), software: Vec::new() };
        Self(policy.rules.iter().map(|rule| expand(&rule.matches).unwrap_or_else(nothing)).collect())
    }

    /// Which earlier rules take the packets of a rule that gets none. A hybrid rule takes for certain only
    /// what its other keys leave open, so none of those is named.
    pub(crate) fn taken_by(&self, rule: usize) -> Taken {
        let mut left = self.0.get(rule).map(|expansion| expansion.cubes.clone()).unwrap_or_default();
        if left.is_empty() {
            return Taken::Impossible;
        }
        let mut takers = Vec::new();
        for (earlier, expansion) in
            self.0.iter().enumerate().take(rule).filter(|(_, other)| other.software.is_empty())
        {
            let before = left.len();
            left.retain(|cube| !expansion.cubes.iter().any(|taker| taker.contains(cube)));
            if left.len() < before {
                takers.push(earlier);
            }
            if left.is_empty() {
                break;
            }
        }
        Taken::By(takers)
    }
}
