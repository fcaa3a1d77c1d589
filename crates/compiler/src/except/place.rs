//! The pass that decides what the flows of each rule do: to which group they deliver, whether they drop, or
//! that there are none. Rules whose kind of flow the device does not have are refused here.

use std::collections::BTreeMap;

use device_model::DeviceModel;
use policy::policy::{Action, Direction};
use program::{Errno, Feature, Group, GroupId, RuleId, UndecidedKey};

use crate::cover::CoveredRule;
use crate::cover::legalize::is_multicast_only;
use crate::except::subtract::Exceptions;
use crate::job::Job;

/// The most flows of one rule that copies: each is compared with all others.
const MAX_COPIED_CUBES: usize = 1 << 12;

/// The action of a rule's flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// There are none.
    Nothing,
    Drop,
    Pass,
    Steer(GroupId),
    Copy(GroupId),
    Sniff(GroupId),
}

/// A reason why the device cannot have the flows of a policy.
#[derive(Debug)]
pub(crate) enum PlaceProblem {
    Rule(RuleId, RuleProblem),
    DefaultCannotDrop,
}

/// An ability that the device lacks for one rule.
#[derive(Debug)]
pub(crate) enum RuleProblem {
    /// A worker would have to see these packets, and there is no group.
    NeedsWorker {
        keys: Vec<String>,
        errno: Option<Errno>,
    },
    /// The device has no flows of this kind.
    UnsupportedFlow(Feature),
    SecondSniffer,
    /// A rule on sent packets that the device cannot decide: no worker sees them.
    HybridEgress {
        keys: Vec<String>,
        errno: Option<Errno>,
    },
    /// This earlier hybrid rule takes packets that the rule would copy.
    HiddenCopy {
        earlier: RuleId,
        /// The first key that the device does not decide.
        why: Option<UndecidedKey>,
    },
    /// The flows of a rule that copies overlap.
    CopiedTwice,
    /// The device applies flows that match only multicast last, so this later rule overtakes the rule.
    OvertakenMulticast(RuleId),
}

/// The rules of a policy before it is decided what their flows do.
pub(crate) struct Prepared {
    pub(crate) groups: Vec<Group>,
    pub(crate) rules: Vec<CoveredRule>,
    pub(crate) exceptions: Exceptions,
    /// The group where a packet most likely goes if a worker finds that a rule that steers to no group does
    /// not match it, by rule.
    pub(crate) next_groups: BTreeMap<RuleId, GroupId>,
}

impl Prepared {
    /// The number of the default, which is after all rules.
    pub(crate) fn default(&self) -> RuleId {
        RuleId::of(self.rules.len())
    }
}

/// The earlier rules with which a worker compares packets of a rule's compared flows, in ascending order; by
/// rule, the default's at the end.
pub(crate) type Earlier = BTreeMap<RuleId, Vec<RuleId>>;

/// The first of the earlier rules that a rule's packets are compared with, and how many there are, by rule
/// that is hybrid because the device has too few priorities, the default's at the end.
pub(crate) type ByOrder = BTreeMap<RuleId, (RuleId, usize)>;

/// Chooses the action of each rule's flows, the default's last. `earlier` and `by_order` are what limiting
/// the ranks has found so far.
pub(crate) fn place(
    job: &Job<'_>,
    prepared: &Prepared,
    earlier: &Earlier,
    by_order: &ByOrder,
) -> Result<Vec<Placement>, Vec<PlaceProblem>> {
    let Prepared { rules, exceptions, next_groups, .. } = prepared;
    let mut problems = refuse_overtaken_multicast(job.profile, rules);
    let mut placements = Vec::with_capacity(rules.len() + 1);
    let mut sniffs = 0;
    for (index, rule) in rules.iter().enumerate() {
        let id = RuleId::of(index);
        refuse_kind_of_flow(job.profile, rules, id, &mut sniffs, &mut problems);
        placements.push(match (rule.direction, rule.action) {
            (_, Action::Steer(group)) => Placement::Steer(group),
            (_, Action::Copy(group)) => Placement::Copy(group),
            (_, Action::Sniff(group)) => Placement::Sniff(group),
            (_, Action::Pass) | (Direction::Egress, Action::Kernel) => Placement::Pass,
            (Direction::Egress, Action::Drop) => Placement::Drop,
            (_, Action::Drop) if !rule.needs_worker() && !by_order.contains_key(&id) => Placement::Drop,
            // Its packets stay with the kernel because no flow matches them.
            (_, Action::Kernel) if exceptions.needs_no_flow(id) => Placement::Nothing,
            // A worker must receive its packets. The best one is in the group that gets them if the rule does
            // not match.
            (_, Action::Drop | Action::Kernel) => {
                let before = earlier.get(&id).and_then(|earlier| first_group(rules, earlier));
                let next = before.or_else(|| next_groups.get(&id).copied());
                match next.or_else(|| any_group(job)) {
                    Some(group) => Placement::Steer(group),
                    None => {
                        let keys = rule.undecided().map(|note| note.key.clone()).collect();
                        let errno = rule.undecided().find_map(|note| note.why.errno());
                        problems.push(PlaceProblem::Rule(id, RuleProblem::NeedsWorker { keys, errno }));
                        Placement::Nothing
                    }
                }
            }
        });
    }
    placements.push(match job.policy.default {
        Action::Steer(group) => Placement::Steer(group),
        Action::Drop
            if job.profile.has_tags()
                && job.profile.allows(Feature::Drop)
                && !by_order.contains_key(&RuleId::of(rules.len())) =>
        {
            Placement::Drop
        }
        Action::Drop => any_group(job).map_or_else(
            || {
                problems.push(PlaceProblem::DefaultCannotDrop);
                Placement::Nothing
            },
            Placement::Steer,
        ),
        _ => Placement::Nothing,
    });
    if problems.is_empty() { Ok(placements) } else { Err(problems) }
}

/// The first group to which one of these rules steers.
fn first_group(rules: &[CoveredRule], earlier: &[RuleId]) -> Option<GroupId> {
    earlier.iter().find_map(|rule| match rules[rule.index()].action {
        Action::Steer(group) => Some(group),
        _ => None,
    })
}

fn any_group(job: &Job<'_>) -> Option<GroupId> {
    (!job.policy.groups.is_empty()).then_some(GroupId(0))
}

/// Refuses rules on multicast that the host sends, if the device would give their packets to a later rule:
/// flows that match only multicast come last on such a device, and workers do not receive sent packets, so
/// they cannot correct it. For received packets, `subtract` widens such flows instead.
fn refuse_overtaken_multicast(profile: &DeviceModel, rules: &[CoveredRule]) -> Vec<PlaceProblem> {
    let mut problems = Vec::new();
    if !profile.multicast_ignores_priority {
        return problems;
    }
    let is_late = |rule: &CoveredRule| rule.expansion.cubes.iter().any(is_multicast_only);
    let sent = |rule: &CoveredRule| rule.direction == Direction::Egress;
    for (index, rule) in rules.iter().enumerate().filter(|(_, rule)| sent(rule) && is_late(rule)) {
        let mut later = rules.iter().enumerate().skip(index + 1);
        let by = later.find(|(_, other)| sent(other) && !is_late(other) && rule.meets(other));
        if let Some((by, _)) = by {
            let problem = RuleProblem::OvertakenMulticast(RuleId::of(by));
            problems.push(PlaceProblem::Rule(RuleId::of(index), problem));
        }
    }
    problems
}

/// Refuses a rule whose kind of flow the device does not support, or not for this match.
fn refuse_kind_of_flow(
    profile: &DeviceModel,
    rules: &[CoveredRule],
    id: RuleId,
    sniffs: &mut usize,
    problems: &mut Vec<PlaceProblem>,
) {
    let rule = &rules[id.index()];
    let mut refuse = |problem| problems.push(PlaceProblem::Rule(id, problem));
    let feature = match rule.action {
        Action::Copy(_) => Feature::Copy,
        Action::Sniff(_) => Feature::Sniffer,
        _ if rule.direction == Direction::Egress => Feature::Egress,
        _ => return,
    };
    if profile.refusal(feature).is_some() {
        refuse(RuleProblem::UnsupportedFlow(feature));
        return;
    }
    if feature == Feature::Sniffer {
        *sniffs += 1;
        if *sniffs > 1 {
            refuse(RuleProblem::SecondSniffer);
        }
    }
    if feature == Feature::Egress && rule.is_hybrid() {
        let software = &rule.expansion.software;
        let keys = software.iter().map(|note| note.key.clone()).collect();
        let errno = software.iter().find_map(|note| note.why.errno());
        refuse(RuleProblem::HybridEgress { keys, errno });
    }
    if feature == Feature::Copy {
        let hides = |earlier: &CoveredRule| earlier.decides() && earlier.is_hybrid() && earlier.meets(rule);
        if let Some(earlier) = rules[..id.index()].iter().position(hides) {
            let why = rules[earlier].expansion.software.first().cloned();
            refuse(RuleProblem::HiddenCopy { earlier: RuleId::of(earlier), why });
        }
        let cubes = &rule.expansion.cubes;
        let mut pairs = cubes.iter().enumerate();
        if cubes.len() > MAX_COPIED_CUBES
            || pairs.any(|(at, cube)| cubes[at + 1..].iter().any(|other| other.overlaps(cube)))
        {
            refuse(RuleProblem::CopiedTwice);
        }
    }
}
