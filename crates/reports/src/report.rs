//! The report of `steerd check` about a policy and a device: where each rule is decided and why, and what the
//! program needs of the device. It installs and prints nothing.

use std::collections::{BTreeMap, BTreeSet};

use compiler::{Capacity, FlowGroups, Job, Obstacle, Weights, exclusion_remedy};
use device_model::DeviceModel;
use packet::Field;
use policy::{Diagnostic, Policy};
use program::{
    DescriptionText, Errno, Family, Feature, Inseparable, LimitPart, LimitShare, Match, Placement,
    PolicedRule, Policing, Program, RateLimit, RuleId, SourceLimit, UndecidedKey, UndecidedReason, WorkerId,
};
use serde::Serialize;

use crate::check::{Check, RuleCheck};
use crate::share::{Share, Shares, shares};
use crate::written_action::written_action;

/// How many rules a note names.
const SHOWN_NAMES: usize = 4;

/// The report of `steerd check`, whether the policy compiles or not.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The name of the device.
    pub device: String,
    /// One entry per rule, `default` last.
    pub rules: Vec<RuleReport>,
    /// Where packets drawn from the rules are decided; `None` if there is no program.
    pub shares: Option<Shares>,
    /// The capacity that the program needs; `None` if there is no program.
    pub capacity: Option<Capacity>,
    /// The groups that the device makes of the flows, if that is known and there is a program.
    pub flow_groups: Option<FlowGroups>,
    /// Why the policy as a whole is impossible on the device.
    pub obstacles: Vec<Obstacle>,
    /// Why it does not compile, with places.
    pub problems: Vec<Diagnostic>,
    /// Likely mistakes, in the order of the policy.
    pub warnings: Vec<Diagnostic>,
    /// The program itself.
    #[serde(skip)]
    pub program: Option<Program>,
}

/// One rule of a report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RuleReport {
    /// The name of the rule.
    pub name: String,
    /// The line of the rule in the policy.
    pub line: u32,
    /// The text of the policy for people.
    pub description: Option<DescriptionText>,
    /// The action of the rule, in English; empty if unknown.
    pub action: String,
    /// Where it is decided.
    pub decided: Decided,
    /// For a rule that leaves packets to the kernel, the flows that were split for it.
    pub note: Option<String>,
    /// Why the device does not decide it alone.
    pub reason: Option<String>,
    /// The part of its packets that workers let through; `None`: all of them.
    pub policing: Option<PolicingReport>,
    /// The limit that is exceeded.
    pub limit: Option<String>,
    /// The error of the device.
    pub errno: Option<Errno>,
    /// The remedy.
    pub remedy: Option<String>,
    /// How many flows it has.
    pub flows: u32,
    /// The most rules that a worker tests one of its packets for.
    pub steps: u32,
    /// Where packets are decided that were drawn from the rules and belong to this one.
    pub share: Option<Share>,
}

/// The part of the packets of a rule that workers let through.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicingReport {
    /// One of this many packets is let through.
    pub sample: u32,
    /// The limit on the packets that the sample leaves.
    pub limit: Option<RateLimit>,
    /// The memory of the table of sources that each worker of the daemon has, in bytes; `None`: the limit is
    /// not one of sources. While a reload replaces a policy there are the tables of both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_table_bytes: Option<u64>,
    /// The part of the limit that each worker has.
    pub workers: Vec<WorkerLimit>,
}

/// The part of a limit that a worker has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WorkerLimit {
    /// The worker.
    pub worker: u32,
    /// The worker's part of the limit.
    #[serde(flatten)]
    pub limit: LimitPart,
}

impl PolicingReport {
    fn of(rule: &PolicedRule<'_>) -> Self {
        let Policing { sample, limit } = rule.policing;
        let source_table_bytes = rule.policing.per_source().map(SourceLimit::table_bytes);
        let part = |(worker, share): (WorkerId, LimitShare)| {
            Some(WorkerLimit { worker: worker.0, limit: share.of_limit(limit?) })
        };
        Self {
            sample,
            limit,
            source_table_bytes,
            workers: rule.shares().into_iter().filter_map(part).collect(),
        }
    }

    /// The parts of the workers in English; `None`: there is no limit, or one worker has all of it.
    #[must_use]
    pub fn parts(&self) -> Option<String> {
        let [first, others @ ..] = &*self.workers else { return None };
        if others.is_empty() {
            return None;
        }
        if others.iter().all(|other| other.limit == first.limit) {
            return Some(format!("each of {} workers: {}", self.workers.len(), first.limit));
        }
        let shown = self.workers.iter().take(SHOWN_NAMES);
        let mut parts: Vec<String> =
            shown.map(|part| format!("worker {}: {}", part.worker, part.limit)).collect();
        let more = self.workers.len().saturating_sub(SHOWN_NAMES);
        parts.extend((more > 0).then(|| format!("and {more} more")));
        Some(parts.join("; "))
    }
}

/// Where a rule is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Decided {
    /// The device decides alone.
    Hardware,
    /// The device decides, except for packets that flows of an earlier hybrid rule match.
    PartlyHybrid,
    /// The device matches more, a worker decides.
    Hybrid,
    /// Not on this device.
    Impossible,
    /// The policy as a whole is not possible; this rule may well be.
    Unknown,
}

/// The report about a policy for a device, beside the program that is on it.
#[must_use]
pub fn report(policy: &Policy, profile: &DeviceModel, workers: usize, previous: Option<&Program>) -> Report {
    Report::of(&Job::new(policy, profile, workers).beside(previous))
}

impl Report {
    /// Compiles and describes the program, or why there is none.
    #[must_use]
    pub fn of(job: &Job<'_>) -> Self {
        let Job { policy, profile, previous, .. } = *job;
        let device = profile.name.clone();
        match job.program() {
            Ok(program) => {
                let checked = Check::of(job, &program);
                let mut rules = rules_of(policy, &program, &checked);
                let flow_groups = FlowGroups::of(&program, profile);
                let shares = shares(policy, &program, flow_groups.as_ref());
                for (rule, share) in rules.iter_mut().zip(&shares.rules) {
                    rule.share = (share.packets > 0).then(|| share.clone());
                }
                let capacity = Capacity::of(&program, profile, previous);
                Self {
                    rules,
                    shares: Some(shares),
                    capacity: Some(capacity),
                    flow_groups,
                    obstacles: Vec::new(),
                    problems: Vec::new(),
                    warnings: checked.warnings,
                    program: Some(program),
                    device,
                }
            }
            Err(problems) => {
                let (own, whole): (Vec<_>, _) =
                    problems.obstacles(policy, profile).into_iter().partition(|one| one.rule.is_some());
                let mut found: BTreeMap<usize, Obstacle> = BTreeMap::new();
                note(&mut found, own, Some);
                let others = others(job, &mut found);
                Self {
                    rules: impossible(policy, found, others),
                    shares: None,
                    capacity: None,
                    flow_groups: None,
                    obstacles: whole,
                    problems: problems.diagnostics(policy, profile).list,
                    warnings: Vec::new(),
                    program: None,
                    device,
                }
            }
        }
    }
}

impl Report {
    /// The report with the actions as the policy has them.
    #[must_use]
    pub fn with_written_actions(mut self, policy: &Policy) -> Self {
        for (index, rule) in self.rules.iter_mut().enumerate() {
            rule.action = written_action(policy, index);
        }
        self
    }
}

/// Each rule of a program, the default last.
fn rules_of(policy: &Policy, program: &Program, checked: &Check) -> Vec<RuleReport> {
    let tested = tested_by_others(program);
    let policed: BTreeMap<usize, PolicingReport> =
        program.policed_rules().iter().map(|rule| (rule.rule.index(), PolicingReport::of(rule))).collect();
    let rules = checked.rules.iter().enumerate().map(|(index, checked)| RuleReport {
        note: left_out(program, index),
        policing: policed.get(&index).cloned(),
        description: program.rules.get(index).and_then(|rule| rule.description.clone()),
        ..possible(policy, program, index, checked, tested.contains(&index))
    });
    rules.collect()
}

/// The rules that workers test for in the classes of other rules.
fn tested_by_others(program: &Program) -> BTreeSet<usize> {
    let classes = program.classes.iter().flatten();
    let tested = classes.flat_map(|class| {
        let rules = class.decide.outcomes().map(|outcome| outcome.rule);
        rules.filter(|rule| *rule != class.rule).map(RuleId::index)
    });
    tested.collect()
}

fn possible(
    policy: &Policy,
    program: &Program,
    index: usize,
    checked: &RuleCheck,
    is_tested: bool,
) -> RuleReport {
    let undecided = undecided(program, index);
    let (decided, reason) = match &checked.placement {
        Placement::Hybrid { reason } => (Decided::Hybrid, Some(reason.clone())),
        Placement::Hardware if is_tested && checked.flows > 0 => {
            let reason = "packets that flows of another hybrid rule match are decided by a worker".to_owned();
            (Decided::PartlyHybrid, Some(reason))
        }
        Placement::Hardware => (Decided::Hardware, None),
    };
    let matches = policy.rules.get(index).map(|rule| &rule.matches);
    let first = undecided.iter().min_by_key(|note| remoteness(note, matches));
    let limit = first.and_then(|note| match note.why {
        UndecidedReason::TooMany { most, with_lists: false, .. } => {
            Some(format!("{most} combinations of ranges"))
        }
        UndecidedReason::TooMany { most, .. } => Some(format!("{most} combinations of ranges and lists")),
        UndecidedReason::KernelException { inseparable: Inseparable::TooMany { most, .. }, .. } => {
            Some(format!("{most} parts of flows"))
        }
        _ => None,
    });
    let remedy = first.map(|note| remedy(policy, program, note, matches));
    RuleReport {
        name: checked.name.clone(),
        line: checked.line,
        description: None,
        action: checked.action.clone(),
        decided,
        note: None,
        policing: None,
        reason,
        limit,
        errno: undecided.iter().find_map(|note| note.why.errno()),
        remedy,
        flows: checked.flows,
        steps: checked.steps,
        share: None,
    }
}

/// The keys of a rule that workers test.
pub(crate) fn undecided(program: &Program, rule: usize) -> &[UndecidedKey] {
    program.rules.get(rule).map(|rule| &*rule.undecided).unwrap_or_default()
}

/// Orders notes: those that a change of the policy can remove come first.
fn remoteness(note: &UndecidedKey, matches: Option<&Match>) -> u32 {
    let is_written = |field| matches.is_some_and(|keys| keys.has(field));
    match note.why {
        UndecidedReason::Refused { feature: Feature::Tag, .. } => 3,
        // Other keys imply these.
        UndecidedReason::Refused { feature: Feature::EtherType, .. } if !is_written(Field::EtherType) => 2,
        UndecidedReason::Refused { feature: Feature::Protocol, .. } if !is_written(Field::Protocol) => 2,
        UndecidedReason::Refused { feature: Feature::Ipv6, .. } => 1,
        _ => 0,
    }
}

/// Whether a match has no other keys, so that without these there would be none.
pub(crate) fn are_only_keys(matches: &Match, keys: &[&str]) -> bool {
    let named: Vec<Field> =
        matches.values().map(|(field, _)| field).filter(|field| keys.contains(&field.row().name)).collect();
    let mut rest = Match { or_no_ports: false, ..matches.clone() };
    rest.remove(&named);
    for key in keys {
        match *key {
            "fragment" => rest.fragment = None,
            "ip_options" => rest.ip_options = None,
            "vlan" => rest.vlan = None,
            _ => {}
        }
    }
    rest == Match::default()
}

/// The remedy for the first condition that the device does not decide.
fn remedy(policy: &Policy, program: &Program, note: &UndecidedKey, matches: Option<&Match>) -> String {
    match note.why {
        UndecidedReason::Refused { feature: Feature::Tag, .. } => {
            "none in the policy: workers test every packet that they receive from such a device".to_owned()
        }
        UndecidedReason::Refused { feature: Feature::Ipv6, .. }
            if matches.is_none_or(|keys| keys.implied_family() != Some(Family::V6)) =>
        {
            "write family = \"ipv4\", so that the rule excludes IPv6, which the device does not steer"
                .to_owned()
        }
        UndecidedReason::Refused { feature: Feature::Ipv6, .. } => {
            "none in the rule: the device steers no IPv6, and workers look for it in all other packets"
                .to_owned()
        }
        UndecidedReason::NoSpec | UndecidedReason::Refused { .. } => {
            // The header is matched as a whole.
            let key = if note.key.starts_with("gre_") { "gre_..." } else { &note.key };
            if matches.is_some_and(|matches| are_only_keys(matches, &[&*note.key])) {
                return format!("add keys that the device matches, such as `dst`: it does not match `{key}`");
            }
            format!(
                "leave `{key}` out, or add keys that the device matches, so that fewer packets go to a worker"
            )
        }
        UndecidedReason::PresenceIgnored { .. } => {
            format!("name the values that `{}` may have: the device then checks for the header", note.key)
        }
        UndecidedReason::TooMany { .. } => "end ranges at powers of two, or write two rules".to_owned(),
        UndecidedReason::Multicast => {
            "match the IP address of the group instead of its MAC address".to_owned()
        }
        UndecidedReason::NoCapacity => "write fewer rules, prefix lengths and port ranges".to_owned(),
        UndecidedReason::Order { rules: 0, .. } => {
            "narrow rules until fewer of them share packets with those that drop".to_owned()
        }
        UndecidedReason::Order { first, .. } => {
            let name = policy.rules.get(first.index()).map_or("?", |rule| rule.name.as_str());
            format!("narrow this rule or `{name}` until they share no packet")
        }
        UndecidedReason::KernelException { by, inseparable } => {
            let name = policy.rules.get(by.index()).map(|rule| rule.name.as_str());
            // The device matches every frame in place of the rule's IPv6.
            let lacks_ipv6 = undecided(program, by.index()).iter().any(UndecidedKey::lacks_ipv6);
            exclusion_remedy(name, inseparable, lacks_ipv6)
        }
    }
}

/// Which flows were split for a rule that leaves packets to the kernel.
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
        1 => ", split into one more part".to_owned(),
        pieces => format!(", split into {pieces} more parts"),
    };
    (!names.is_empty()).then(|| format!("excluded from the flows of {shown}{pieces}"))
}

/// Notes the first obstacle of each rule; `place` gives a rule's place in the whole policy.
fn note(
    found: &mut BTreeMap<usize, Obstacle>,
    obstacles: Vec<Obstacle>,
    place: impl Fn(usize) -> Option<usize>,
) {
    for obstacle in obstacles {
        if let Some(rule) = obstacle.rule.and_then(|rule| place(rule.index())) {
            found.entry(rule).or_insert(Obstacle { rule: Some(RuleId::of(rule)), ..obstacle });
        }
    }
}

/// How often a policy is compiled again without the rules that were found impossible: without them others may
/// be.
const MAX_ATTEMPTS: usize = 4;

/// The rules that are possible, by their place in the policy, as they are decided in the policy without the
/// impossible ones; the default comes last. Nothing if that policy does not compile for another
/// reason than a rule. Adds the rules that turn out to be impossible only then.
fn others(job: &Job<'_>, found: &mut BTreeMap<usize, Obstacle>) -> BTreeMap<usize, RuleReport> {
    let Job { policy, profile, workers, absent, weights, .. } = *job;
    for _ in 0..MAX_ATTEMPTS {
        let known = found.len();
        if known == 0 {
            break;
        }
        let kept: Vec<usize> = (0..policy.rules.len()).filter(|rule| !found.contains_key(rule)).collect();
        let rules = kept.iter().filter_map(|rule| policy.rules.get(*rule)).cloned().collect();
        let rest = Policy { rules, ..policy.clone() };
        let places: Vec<usize> = kept.iter().copied().chain([policy.rules.len()]).collect();
        let of_places =
            |weights: &Weights| places.iter().map(|place| weights.of(RuleId::of(*place))).collect();
        let weights = weights.map(|weights| Weights::new(of_places(weights)));
        let job = Job::new(&rest, profile, workers).without(absent).weighted(weights.as_ref());
        match job.program() {
            Ok(program) => {
                let checked = Check::of(&job, &program);
                return places.into_iter().zip(rules_of(&rest, &program, &checked)).collect();
            }
            Err(problems) => note(found, problems.obstacles(&rest, profile), |rule| kept.get(rule).copied()),
        }
        if found.len() == known {
            break;
        }
    }
    BTreeMap::new()
}

/// The reports on the rules of a policy that does not compile.
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
        let text = |of: fn(&Obstacle) -> &String| obstacle.as_ref().map(|one| of(one).clone());
        rules.push(RuleReport {
            name: rule.name.clone(),
            line: rule.name_place.line(),
            description: rule.description.clone(),
            action: String::new(),
            decided,
            note: None,
            policing: None,
            reason: text(|one| &one.reason),
            limit: text(|one| &one.limit),
            errno: obstacle.as_ref().and_then(|one| one.errno),
            remedy: text(|one| &one.remedy),
            flows: 0,
            steps: 0,
            share: None,
        });
    }
    rules.extend(others.remove(&policy.rules.len()));
    rules
}
