//! A [`Policy`] to a [`Program`] for one device. Each rule is covered by cubes (`expand`, `tunnel`), as far as
//! the device takes them (`fit`); those are cut by hash variant (`tables`), ranked (`priority`), packed into
//! the device's priorities (`pack`) and written as specs (`emit`); what the device cannot decide becomes a
//! software class (`classes`), and what is the host's is left out of all flows (`exceptions`).
//! Deterministic: no step depends on a hash map's order.
//!
//! It opens no device, reads no file and prints nothing. `check` and [`report()`] describe the result to an operator,
//! [`Capacity`] counts what a program takes of a device, [`together()`] says whether two programs can be on it at once.
//!
//! ```
//! use device_model::DeviceProfile;
//! use policy::{NoFiles, Source};
//!
//! let text = "version = 1\ndefault = 'kernel'\n[groups.rx]\nworkers = 'all'\n\
//!     [[rules]]\nname = 'dns'\nmatch = { protocol = 'udp', dst_port = 53 }\naction = { steer = 'rx' }\n";
//! let (policy, _) = policy::parse(&Source::new("dns.toml", text), &NoFiles)?;
//! let program = compiler::compile(&policy, &DeviceProfile::mlx5(), 4)?;
//! let flows: Vec<String> = program.flows.iter().map(|flow| flow.words()).collect();
//! assert_eq!(flows, ["ipv4 | udp dport=53", "ipv6 | udp dport=53"]);
//! # Ok::<(), policy::Diagnostics>(())
//! ```
#![forbid(unsafe_code)]

mod capacity;
mod check;
mod claims;
mod classes;
mod cluster;
mod covers;
mod cube;
mod draft;
mod emit;
mod exceptions;
mod expand;
mod findings;
mod fit;
mod lost;
mod multicast;
mod number;
mod pack;
mod placing;
mod priority;
mod report;
mod shape;
mod tables;
mod together;
mod tunnel;
mod witness;

use device_model::DeviceProfile;
use policy::policy::{Action, RuleDefinition};
use policy::{Diagnostics, Policy};
use program::{Predicate, Program, Unfinished, Why};

use claims::Claims;
use classes::Expanded;
use draft::{Draft, MAX_FLOWS, Plan, too_many_flows};
use expand::{Excess, Expansion, Explosion, expand};

pub use capacity::{Capacity, CapacityRow, PriorityUse};
pub use check::{Check, RuleCheck, check, check_for};
pub(crate) use covers::{Covers, Taken};
pub(crate) use findings::Findings;
pub use findings::Obstacle;
pub use lost::{LostException, lost_exceptions, refuse_lost_exceptions};
pub use report::{Decided, Report, RuleReport, report};
pub(crate) use shape::ByMask;
pub use together::together;

/// Compiles a policy for a device and a number of workers.
///
/// # Errors
/// All that does not fit: workers out of range, tables, flows or priorities beyond the device's limits.
pub fn compile(policy: &Policy, profile: &DeviceProfile, workers: usize) -> Result<Program, Diagnostics> {
    compile_with(policy, profile, workers, None)
}

/// The same for a device that runs a program already: a rule that stays keeps its class, which is its flow
/// tag, and the device must have room for both programs at once.
///
/// # Errors
/// As [`compile`].
pub fn compile_with(
    policy: &Policy,
    profile: &DeviceProfile,
    workers: usize,
    previous: Option<&Program>,
) -> Result<Program, Diagnostics> {
    attempt(policy, profile, workers, previous).map_err(|findings| findings.diagnostics)
}

/// The program, or why there is none. One that does not fit because its flows leave out what is the host's
/// is made once more without that.
pub(crate) fn attempt(
    policy: &Policy,
    profile: &DeviceProfile,
    workers: usize,
    previous: Option<&Program>,
) -> Result<Program, Findings> {
    let make = |may_cut: bool| {
        let mut findings = Findings::default();
        let plan = plan(policy, profile, workers, previous, may_cut, &mut findings);
        let has_cut = plan.as_ref().map(|plan| plan.exceptions.has_cut);
        let made = plan.and_then(|plan| steps(plan, &mut findings)).filter(|_| !findings.has_errors());
        made.ok_or((findings, has_cut))
    };
    let made = make(true).or_else(|refused| match refused {
        // What stands in the way of the other plan is no reason for want of room in this one.
        (_, Some(true)) => make(false).map_err(|again| if again.1.is_some() { again } else { refused }),
        _ => Err(refused),
    });
    made.map_err(|(mut findings, _)| {
        findings.diagnostics.sort();
        findings
    })
}

/// What is known of the rules before there are flows; `may_cut`: whether flows may be cut for what is the
/// host's.
fn plan<'p>(
    policy: &'p Policy,
    profile: &'p DeviceProfile,
    workers: usize,
    previous: Option<&'p Program>,
    may_cut: bool,
    problems: &mut Findings,
) -> Option<Plan<'p>> {
    let groups = tables::groups(policy, profile, workers, problems);
    let mut rules = expand_rules(policy, profile, problems);
    if rules.len() < policy.rules.len() {
        return None;
    }
    let exceptions = placing::prepare(policy, profile, &mut rules, may_cut);
    multicast::sent_in_order(policy, profile, &rules, problems);
    let mut claims = Claims::of(&rules);
    let placing = placing::place(policy, profile, &rules, &exceptions, &mut claims, problems);
    let plan = Plan { policy, profile, groups, rules, placing, exceptions, claims, previous };
    (!problems.has_errors()).then_some(plan)
}

/// One step after the other; each ends it if there are problems.
fn steps(plan: Plan<'_>, problems: &mut Findings) -> Option<Program> {
    let Plan { policy, profile, previous, .. } = plan;
    let mut draft = Draft::new(plan, problems);
    if problems.has_errors() {
        return None;
    }
    let mut ranking = priority::rank(&draft.candidates);
    draft.save_masks(&mut ranking);
    let packed = draft.pack(&ranking, problems);
    if problems.has_errors() {
        return None;
    }
    let program = draft.finish(&packed, problems)?;
    for (obstacle, label) in Capacity::obstacles(&program, profile, previous) {
        let rule = obstacle.rule.and_then(|rule| policy.rules.get(rule));
        problems.refuse(rule.map_or(&policy.default_place, |rule| &rule.place), label, obstacle);
    }
    Some(program)
}

/// Covers every rule, as far as the flows suffice: what is beyond them is not even held in memory.
fn expand_rules(policy: &Policy, profile: &DeviceProfile, problems: &mut Findings) -> Vec<Expanded> {
    let mut rules = Vec::with_capacity(policy.rules.len());
    let mut cubes = 0;
    for (index, rule) in policy.rules.iter().enumerate() {
        let mut expansion = expand(&rule.matches, rule.direction, profile).unwrap_or_else(|explosion| {
            too_many_combinations(index, rule, &explosion, problems);
            Expansion::NOTHING
        });
        let everything = exceptions::everything();
        if matches!(rule.action, Action::Sniff(_)) && expansion.cubes.first().copied() != everything {
            expansion.software = vec![Unfinished { key: "match".to_owned(), why: Why::NoWords }];
        }
        cubes += expansion.cubes.len();
        if cubes > MAX_FLOWS {
            too_many_flows(policy, index, problems);
            break;
        }
        let predicate = Predicate::of(&rule.matches);
        rules.push(Expanded::new(expansion, predicate, rule.action, rule.direction));
    }
    rules
}

fn too_many_combinations(
    index: usize,
    rule: &RuleDefinition,
    Explosion { excess: Excess { combinations, most, .. }, keys }: &Explosion,
    problems: &mut Findings,
) {
    let keys: Vec<String> = keys.iter().take(3).map(|(key, count)| format!("`{key}` ({count})")).collect();
    let remedy = format!(
        "most come from {}, ranges counted as their prefixes: write fewer values, or end ranges at powers of two",
        keys.join(" times "),
    );
    let obstacle = Obstacle {
        rule: Some(index),
        reason: format!("the rule `{}` takes up to {combinations} combinations", rule.name),
        limit: format!("a rule may take {most}"),
        errno: None,
        remedy,
    };
    problems.refuse(&rule.place, "", obstacle);
}
