//! What `steerd check` tells of a policy and a device: for each rule where it is decided and why, and what the
//! whole takes of the device. Compiles; installs and prints nothing.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::capacity::Capacity;
use crate::check::{Check, RuleCheck, check};
use crate::compile::{Obstacle, attempt};
use crate::diagnostics::Diagnostic;
use crate::ids::RuleId;
use crate::policy::Policy;
use crate::profile::{DeviceProfile, Errno};
use crate::program::{Decide, Placement, Program, Rule, Why};

/// What `steerd check` shows of a policy and a device: built before anything is installed, whether it
/// compiles or not.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What the device is called.
    pub device: String,
    /// One entry per rule, `default` last.
    pub rules: Vec<RuleReport>,
    /// What the program takes of the device; `None` if there is no program.
    pub capacity: Option<Capacity>,
    /// What stands in the way of the policy as a whole.
    pub obstacles: Vec<Obstacle>,
    /// Why it does not compile, with places.
    pub problems: Vec<Diagnostic>,
    /// What the operator may not have meant, in the order of the policy.
    pub warnings: Vec<Diagnostic>,
    /// The program itself.
    #[serde(skip)]
    pub program: Option<Program>,
}

/// One rule of a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuleReport {
    /// Its name.
    pub name: String,
    /// Its line in the policy.
    pub line: u32,
    /// What it does, in words; empty if there is no program.
    pub action: String,
    /// Where it is decided.
    pub decided: Decided,
    /// Why not by the device alone.
    pub reason: Option<String>,
    /// What there is at most.
    pub limit: Option<String>,
    /// What the device would have answered.
    pub errno: Option<Errno>,
    /// What to do.
    pub remedy: Option<String>,
    /// How many flows it takes.
    pub flows: u32,
    /// How many questions a worker asks of one of its packets at most.
    pub steps: u32,
}

/// Where a rule is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Decided {
    /// By the device alone.
    Hardware,
    /// By the device, but for packets that an earlier hybrid rule brings to a worker.
    PartlyHybrid,
    /// The device matches more, a worker decides.
    Hybrid,
    /// Not on this device.
    Impossible,
    /// Another rule is; this one may well be possible.
    Unknown,
}

/// Compiles a policy for a device, beside the program that is on it, and tells all about it.
#[must_use]
pub fn report(
    policy: &Policy,
    profile: &DeviceProfile,
    workers: usize,
    previous: Option<&Program>,
) -> Report {
    let device = profile.name.clone();
    match attempt(policy, profile, workers, previous) {
        Ok(program) => {
            let Check { rules, mut warnings } = check(policy, &program);
            let asked = asked_by_others(&program);
            let rules = rules.iter().zip(&program.rules).enumerate();
            let rules = rules.map(|(index, (checked, rule))| possible(checked, rule, asked.contains(&index)));
            let capacity = Capacity::of(&program, profile, previous);
            warnings.extend(capacity.rows.iter().filter(|row| row.blocks_a_reload()).map(|row| {
                let message = format!(
                    "a reload will not find room: {} {} of {} that `{device}` has",
                    row.used,
                    row.what,
                    row.most.unwrap_or(0)
                );
                let hint =
                    format!("the old and the new program are there at once, or it ends in {}", row.errno);
                policy.default_place.warning(message, "more than half").hint(hint)
            }));
            Report {
                rules: rules.collect(),
                capacity: Some(capacity),
                obstacles: Vec::new(),
                problems: Vec::new(),
                warnings,
                program: Some(program),
                device,
            }
        }
        Err(findings) => {
            let (own, whole) = findings.obstacles.into_iter().partition(|one| one.rule.is_some());
            Report {
                rules: impossible(policy, own),
                capacity: None,
                obstacles: whole,
                problems: findings.diagnostics.list,
                warnings: Vec::new(),
                program: None,
                device,
            }
        }
    }
}

/// The rules about which workers ask in classes that other rules' flows lead to.
fn asked_by_others(program: &Program) -> BTreeSet<usize> {
    let classes = program.classes.iter().flatten();
    let asked = classes.flat_map(|class| {
        let Decide::Software(steps, otherwise) = &class.decide else { return Vec::new() };
        let rules = steps.iter().map(|step| step.rule).chain([otherwise.rule]);
        rules.filter(|rule| *rule != class.rule).map(RuleId::index).collect()
    });
    asked.collect()
}

fn possible(checked: &RuleCheck, rule: &Rule, asked: bool) -> RuleReport {
    let (decided, reason) = match &checked.placement {
        Placement::Hybrid { reason } => (Decided::Hybrid, Some(reason.clone())),
        Placement::Hardware if asked && rule.flows > 0 => {
            let reason = "packets that an earlier hybrid rule takes are decided by its worker".to_owned();
            (Decided::PartlyHybrid, Some(reason))
        }
        Placement::Hardware => (Decided::Hardware, None),
    };
    let first = rule.unfinished.first();
    let limit = first.and_then(|note| match note.why {
        Why::TooMany { most, with_lists: false, .. } => Some(format!("{most} combinations of ranges")),
        Why::TooMany { most, .. } => Some(format!("{most} combinations of ranges and lists")),
        _ => None,
    });
    let remedy = first.map(|note| match note.why {
        Why::NoWords | Why::Refused { .. } => {
            format!(
                "leave `{}` out, or add keys that the device matches, so that fewer packets go to a worker",
                note.key
            )
        }
        Why::Unseen { .. } => {
            format!("name the values that `{}` may have: the device looks for the header then", note.key)
        }
        Why::TooMany { .. } => "end ranges at powers of two, or write two rules".to_owned(),
        Why::Multicast => "match the IP address of the group instead of its MAC address".to_owned(),
        Why::KernelException => "narrow the later rules, so that none takes these packets".to_owned(),
    });
    RuleReport {
        name: checked.name.clone(),
        line: checked.line,
        action: checked.action.clone(),
        decided,
        reason,
        limit,
        errno: rule.unfinished.iter().find_map(|note| note.why.errno()),
        remedy,
        flows: checked.flows,
        steps: checked.steps,
    }
}

/// What is known of the rules of a policy that does not compile.
fn impossible(policy: &Policy, obstacles: Vec<Obstacle>) -> Vec<RuleReport> {
    let mut found: BTreeMap<usize, Obstacle> = BTreeMap::new();
    for obstacle in obstacles {
        found.entry(obstacle.rule.unwrap_or(usize::MAX)).or_insert(obstacle);
    }
    let rules = policy.rules.iter().enumerate().map(|(index, rule)| {
        let obstacle = found.remove(&index);
        let decided = if obstacle.is_some() { Decided::Impossible } else { Decided::Unknown };
        let told = |of: fn(&Obstacle) -> &String| obstacle.as_ref().map(|one| of(one).clone());
        RuleReport {
            name: rule.name.clone(),
            line: rule.name_place.line(),
            action: String::new(),
            decided,
            reason: told(|one| &one.reason),
            limit: told(|one| &one.limit),
            errno: obstacle.as_ref().and_then(|one| one.errno),
            remedy: told(|one| &one.remedy),
            flows: 0,
            steps: 0,
        }
    });
    rules.collect()
}
