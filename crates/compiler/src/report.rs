//! What `steerd check` tells of a policy and a device: for each rule where it is decided and why, and what the
//! whole takes of the device. Compiles; installs and prints nothing.

use std::collections::{BTreeMap, BTreeSet};

use device_model::DeviceProfile;
use policy::{Diagnostic, Policy};
use program::{Decide, Errno, Family, Feature, Match, Placement, Program, RuleId, Unfinished, Untold, Why};
use serde::Serialize;

use crate::capacity::Capacity;
use crate::check::{Check, RuleCheck, check_for};
use crate::together::together;
use crate::{LostException, Obstacle, attempt, lost_exceptions, refuse_lost_exceptions};

/// So many rules are named in a note.
const SHOWN_NAMES: usize = 4;

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
    /// Why it does not compile, or why its program may not be installed, with places.
    pub problems: Vec<Diagnostic>,
    /// Packets that the policy leaves to the kernel and that a worker receives; problems unless the policy allows them.
    pub lost_exceptions: Vec<LostException>,
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
    /// What it does, in words; empty where that is not known.
    pub action: String,
    /// Where it is decided.
    pub decided: Decided,
    /// How, where that shows in the flows of other rules.
    pub note: Option<String>,
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
    /// The policy as a whole is not possible; this rule may well be.
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
            let checked = check_for(policy, profile, workers, &program);
            let rules = rules_of(policy, &program, &checked);
            let mut warnings = checked.warnings;
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
            warnings.extend(
                together(&program, &program, profile).map(|obstacle| never_reloads(policy, obstacle)),
            );
            let lost = lost_exceptions(policy, profile, &program);
            let problems = refuse_lost_exceptions(policy, &program, &lost).list;
            Report {
                rules,
                capacity: Some(capacity),
                obstacles: Vec::new(),
                problems,
                lost_exceptions: lost,
                warnings,
                program: Some(program),
                device,
            }
        }
        Err(findings) => {
            let (own, whole): (Vec<_>, _) =
                findings.obstacles.into_iter().partition(|one| one.rule.is_some());
            let mut found: BTreeMap<usize, Obstacle> = BTreeMap::new();
            note(&mut found, own, Some);
            let others = others(policy, profile, workers, &mut found);
            Report {
                rules: impossible(policy, found, others),
                capacity: None,
                obstacles: whole,
                problems: findings.diagnostics.list,
                lost_exceptions: Vec::new(),
                warnings: Vec::new(),
                program: None,
                device,
            }
        }
    }
}

/// Each rule of a program, the default last.
fn rules_of(policy: &Policy, program: &Program, checked: &Check) -> Vec<RuleReport> {
    let asked = asked_by_others(program);
    let rules = checked.rules.iter().enumerate().map(|(index, checked)| RuleReport {
        note: left_out(program, index),
        ..possible(policy, program, index, checked, asked.contains(&index))
    });
    rules.collect()
}

/// A program that not even the same one can take the place of.
fn never_reloads(policy: &Policy, obstacle: Obstacle) -> Diagnostic {
    let place = obstacle.rule.and_then(|rule| policy.rules.get(rule)).map(|rule| &rule.place);
    let errno = obstacle.errno.map_or_else(String::new, |errno| format!(" ({errno})"));
    let message =
        format!("a reload that keeps this is refused: {}: {}{errno}", obstacle.reason, obstacle.limit);
    place.unwrap_or(&policy.default_place).warning(message, "here").hint(obstacle.remedy)
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

fn possible(
    policy: &Policy,
    program: &Program,
    index: usize,
    checked: &RuleCheck,
    asked: bool,
) -> RuleReport {
    let unfinished = unfinished(program, index);
    let (decided, reason) = match &checked.placement {
        Placement::Hybrid { reason } => (Decided::Hybrid, Some(reason.clone())),
        Placement::Hardware if asked && checked.flows > 0 => {
            let reason = "packets that an earlier hybrid rule takes are decided by its worker".to_owned();
            (Decided::PartlyHybrid, Some(reason))
        }
        Placement::Hardware => (Decided::Hardware, None),
    };
    let matches = policy.rules.get(index).map(|rule| &rule.matches);
    let first = unfinished.iter().min_by_key(|note| remoteness(note, matches));
    let limit = first.and_then(|note| match note.why {
        Why::TooMany { most, with_lists: false, .. } => Some(format!("{most} combinations of ranges")),
        Why::TooMany { most, .. } => Some(format!("{most} combinations of ranges and lists")),
        Why::KernelException { untold: Untold::TooMany { most, .. }, .. } => Some(format!("{most} pieces")),
        _ => None,
    });
    let remedy = first.map(|note| remedy(policy, program, note, matches));
    RuleReport {
        name: checked.name.clone(),
        line: checked.line,
        action: checked.action.clone(),
        decided,
        note: None,
        reason,
        limit,
        errno: unfinished.iter().find_map(|note| note.why.errno()),
        remedy,
        flows: checked.flows,
        steps: checked.steps,
    }
}

/// What workers finish of a rule.
fn unfinished(program: &Program, rule: usize) -> &[Unfinished] {
    program.rules.get(rule).map(|rule| &*rule.unfinished).unwrap_or_default()
}

/// How far a note is from what the operator wrote: what the policy can change goes first.
fn remoteness(note: &Unfinished, matches: Option<&Match>) -> u32 {
    let is_written = |of: fn(&Match) -> bool| matches.is_some_and(of);
    match note.why {
        Why::Refused { feature: Feature::Tag, .. } => 3,
        // Other keys imply these.
        Why::Refused { feature: Feature::EtherType, .. } if !is_written(|keys| keys.ethertype.is_some()) => 2,
        Why::Refused { feature: Feature::Protocol, .. } if !is_written(|keys| keys.protocol.is_some()) => 2,
        Why::Refused { feature: Feature::Ipv6, .. } => 1,
        _ => 0,
    }
}

/// What to do about the first thing that the device does not decide.
fn remedy(policy: &Policy, program: &Program, note: &Unfinished, matches: Option<&Match>) -> String {
    match note.why {
        Why::Refused { feature: Feature::Tag, .. } => {
            "none in the policy: workers look at every packet that such a device brings them".to_owned()
        }
        Why::Refused { feature: Feature::Ipv6, .. }
            if matches.is_none_or(|keys| keys.implied_family() != Some(Family::V6)) =>
        {
            "write family = \"ipv4\", and IPv6 stays out of the rule; the device steers none".to_owned()
        }
        Why::Refused { feature: Feature::Ipv6, .. } => {
            "none in the rule: the device steers no IPv6, and workers look for it in all that is left"
                .to_owned()
        }
        Why::NoWords | Why::Refused { .. } => {
            // One key stands for the whole header.
            let key = if note.key.starts_with("gre_") { "gre_..." } else { &note.key };
            format!(
                "leave `{key}` out, or add keys that the device matches, so that fewer packets go to a worker"
            )
        }
        Why::Unseen { .. } => {
            format!("name the values that `{}` may have: the device looks for the header then", note.key)
        }
        Why::TooMany { .. } => "end ranges at powers of two, or write two rules".to_owned(),
        Why::Multicast => "match the IP address of the group instead of its MAC address".to_owned(),
        Why::KernelException { by, untold } => left_out_after_all(policy, program, by, untold),
    }
}

/// Which flows were cut for a rule that leaves packets to the host.
fn left_out(program: &Program, rule: usize) -> Option<String> {
    let found = program.exceptions.binary_search_by_key(&rule, |exception| exception.rule.index()).ok()?;
    let exception = program.exceptions.get(found)?;
    let names = exception.left_out_of.iter().filter_map(|other| program.rules.get(other.index()));
    let names: Vec<String> = names.map(|other| format!("`{}`", other.name)).collect();
    let (first, more) = (names.iter().take(SHOWN_NAMES), names.len().saturating_sub(SHOWN_NAMES));
    let shown =
        first.cloned().chain((more > 0).then(|| format!("{more} more"))).collect::<Vec<_>>().join(", ");
    let pieces = match exception.pieces {
        0 => String::new(),
        1 => ", cut into one piece more".to_owned(),
        pieces => format!(", cut into {pieces} pieces more"),
    };
    (!names.is_empty()).then(|| format!("left out of the flows of {shown}{pieces}"))
}

/// What to do so that flows of a later rule can leave out what is the host's.
fn left_out_after_all(policy: &Policy, program: &Program, by: RuleId, untold: Untold) -> String {
    let name = policy.rules.get(by.index()).map(|rule| rule.name.as_str());
    let later = name.map_or("the default".to_owned(), |name| format!("`{name}`"));
    let (ports, others) = ("`dst_port = \"1-65535\"`", "`protocol = { not = [\"tcp\", \"udp\"] }`");
    let not_ip = "`ethertype = { not = [\"ipv4\", \"ipv6\"] }`";
    let in_place = match name {
        Some(_) => format!("write, in place of {later},"),
        None => "make the default \"kernel\" and write, in its place,".to_owned(),
    };
    let lacks_ipv6 = |note: &Unfinished| matches!(note.why, Why::Refused { feature: Feature::Ipv6, .. });
    match untold {
        // Not what the rule asks for, but what the device takes in place of IPv6.
        Untold::Header { .. } if unfinished(program, by.index()).iter().any(lacks_ipv6) => {
            format!("write family = \"ipv4\" in {later}: for its IPv6 the device takes every frame")
        }
        Untold::Header { ip: true, ports: true } => {
            format!("{in_place} rules on {ports}, on {others} and on {not_ip}: no fragments, no broken headers")
        }
        Untold::Header { ip: true, .. } => {
            format!("{in_place} rules on `protocol = \"0-255\"` and on {not_ip}: no broken headers")
        }
        Untold::Header { .. } => {
            format!("{in_place} two rules with its keys, one on {ports}, one on {others}: no fragments")
        }
        Untold::Tag => format!("{in_place} a rule on `vlan = \"0-4095\"`: no untagged frames"),
        Untold::Tunnel => format!("{in_place} a rule that asks for the same headers"),
        Untold::TooMany { .. } | Untold::NoRoom => {
            "write fewer exceptions, on wider values, and all on the same keys: those on different keys multiply"
                .to_owned()
        }
        Untold::Inexact | Untold::NoWords | Untold::Refused { .. } | Untold::Multicast => {
            format!("narrow {later}, so that it does not take these packets")
        }
    }
}

/// Notes the first obstacle of each rule; `place` gives a rule's place in the whole policy.
fn note(
    found: &mut BTreeMap<usize, Obstacle>,
    obstacles: Vec<Obstacle>,
    place: impl Fn(usize) -> Option<usize>,
) {
    for obstacle in obstacles {
        if let Some(rule) = obstacle.rule.and_then(&place) {
            found.entry(rule).or_insert(Obstacle { rule: Some(rule), ..obstacle });
        }
    }
}

/// How often a policy is compiled again without the rules that were found impossible: without them others may be.
const MAX_ATTEMPTS: usize = 4;

/// The rules that are possible, by their place in the policy, as they are decided in the policy without the
/// impossible ones; the default is behind the last rule. Nothing if that policy does not compile for another
/// reason than a rule. Adds the rules that turn out to be impossible only then.
fn others(
    policy: &Policy,
    profile: &DeviceProfile,
    workers: usize,
    found: &mut BTreeMap<usize, Obstacle>,
) -> BTreeMap<usize, RuleReport> {
    for _ in 0..MAX_ATTEMPTS {
        let known = found.len();
        if known == 0 {
            break;
        }
        let kept: Vec<usize> = (0..policy.rules.len()).filter(|rule| !found.contains_key(rule)).collect();
        let rules = kept.iter().filter_map(|rule| policy.rules.get(*rule)).cloned().collect();
        let rest = Policy { rules, ..policy.clone() };
        match attempt(&rest, profile, workers, None) {
            Ok(program) => {
                let places = kept.into_iter().chain([policy.rules.len()]);
                let checked = check_for(&rest, profile, workers, &program);
                return places.zip(rules_of(&rest, &program, &checked)).collect();
            }
            Err(findings) => note(found, findings.obstacles, |rule| kept.get(rule).copied()),
        }
        if found.len() == known {
            break;
        }
    }
    BTreeMap::new()
}

/// What is known of the rules of a policy that does not compile.
fn impossible(
    policy: &Policy,
    mut found: BTreeMap<usize, Obstacle>,
    mut others: BTreeMap<usize, RuleReport>,
) -> Vec<RuleReport> {
    let mut rules: Vec<RuleReport> = Vec::with_capacity(policy.rules.len() + 1);
    for (index, rule) in policy.rules.iter().enumerate() {
        if let Some(placed) = others.remove(&index) {
            rules.push(placed);
            continue;
        }
        let obstacle = found.remove(&index);
        let decided = if obstacle.is_some() { Decided::Impossible } else { Decided::Unknown };
        let told = |of: fn(&Obstacle) -> &String| obstacle.as_ref().map(|one| of(one).clone());
        rules.push(RuleReport {
            name: rule.name.clone(),
            line: rule.name_place.line(),
            action: String::new(),
            decided,
            note: None,
            reason: told(|one| &one.reason),
            limit: told(|one| &one.limit),
            errno: obstacle.as_ref().and_then(|one| one.errno),
            remedy: told(|one| &one.remedy),
            flows: 0,
            steps: 0,
        });
    }
    rules.extend(others.remove(&policy.rules.len()));
    rules
}
