//! Warnings about a compiled policy, and where each rule of it is decided, for `steerd check`. Prints
//! nothing. Rules that several others hide together are found by `analysis`.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use compiler::{Expansion, Job, cover_match};
use device_model::{Dependence, DeviceModel};
use packet::cube::{Cube, Image};
use policy::policy::{Action, Direction, RecorderDefinition, RuleDefinition};
use policy::{Diagnostic, MAX_DIAGNOSTICS, Policy};
use program::{
    ClassId, Decide, Feature, FlowAction, FlowKind, GroupId, LimitShare, LimitUnit, Placement, Program,
    QueueId, RangeSet, RuleId, Verdict, WorkerId,
};
use serde::Serialize;

/// The findings.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// One line per rule, `default` last.
    pub rules: Vec<RuleCheck>,
    /// Likely mistakes, in the order of the policy.
    pub warnings: Vec<Diagnostic>,
}

/// One rule's line.
#[derive(Clone, Debug, Serialize)]
pub struct RuleCheck {
    /// The name of the rule.
    pub name: String,
    /// The line of the rule in the policy.
    pub line: u32,
    /// The effect of the rule, in English.
    pub action: String,
    /// Where it is decided.
    pub placement: Placement,
    /// How many flows it has.
    pub flows: u32,
    /// The most rules that a worker tests one of its packets for; 0 where the device decides.
    pub steps: u32,
}

impl Check {
    /// Checks the program of a job. On a device without flow tags one class decides all packets; which
    /// packets each flow matches is therefore read from a program that is compiled for the same device with
    /// tags, with the same weights.
    #[must_use]
    pub fn of(job: &Job<'_>, program: &Program) -> Self {
        let Job { policy, profile, .. } = *job;
        let mut dependent = dependences(policy, profile);
        dependent.extend(roce_packets(policy, profile));
        if profile.has_tags() {
            return check_beside(policy, program, program, dependent);
        }
        let others = profile.refusals.iter().filter(|refusal| refusal.feature != Feature::Tag);
        let refusals = others.cloned().collect();
        let tag_bits = DeviceModel::ideal().tag_bits;
        let tagged = DeviceModel { tag_bits, refusals, ..profile.clone() };
        // The previous program has no tags to be kept.
        let tagged = Job { profile: &tagged, previous: None, ..*job }.program();
        check_beside(policy, program, tagged.as_ref().unwrap_or(program), dependent)
    }
}

/// Warns of rules that need a capability which only some devices of the model have, which is known on
/// installation.
fn dependences(policy: &Policy, profile: &DeviceModel) -> Vec<Diagnostic> {
    let warning = |rule: &RuleDefinition| {
        let feature = match rule.action {
            Action::Copy(_) => Feature::Copy,
            Action::Sniff(_) => Feature::Sniffer,
            _ if rule.direction == Direction::Egress => Feature::Egress,
            _ => return None,
        };
        let Dependence { capability, source, .. } = profile.dependence(feature)?;
        let message = format!(
            "whether {} supports {}, which the rule `{}` needs, depends on its firmware",
            profile.name,
            feature.name(),
            rule.name,
        );
        let hint = format!(
            "the driver refuses it with EOPNOTSUPP unless the device has the capability `{capability}` ({source}); \
             it is tried when the policy is installed, and a refusal leaves the device as it was"
        );
        Some(rule.name_place.warning(message, "this rule").hint(hint))
    };
    policy.rules.iter().filter_map(warning).collect()
}

/// A rule with more ports in a row does not mean one of them.
const NAMED_PORTS_MAX: u32 = 16;
const UDP: u32 = 17;

/// Warns of rules for received packets that name the port of RoCE v2, which the device may take for itself.
fn roce_packets(policy: &Policy, profile: &DeviceModel) -> Option<Diagnostic> {
    let port = u32::from(profile.roce_port?);
    let names_it = |rule: &&RuleDefinition| {
        let [protocol, _, dst_port] = rule.matches.transport_fields();
        let is_udp = rule.matches.get(protocol).is_none_or(|protocols| protocols.contains(UDP));
        let ranges = rule.matches.get(dst_port).map(RangeSet::ranges).unwrap_or_default();
        let is_named =
            |(low, high): &(u32, u32)| (*low..=*high).contains(&port) && high - low < NAMED_PORTS_MAX;
        let is_left = matches!(rule.action, Action::Kernel | Action::Pass);
        rule.direction == Direction::Ingress && is_udp && !is_left && ranges.iter().any(is_named)
    };
    let mut rules = policy.rules.iter().filter(names_it);
    let first = rules.next()?;
    let more = rules.count();
    let others = if more > 0 { format!(" and {more} more") } else { String::new() };
    let message = format!(
        "where RoCE is enabled, `{}`{others} may not see UDP packets to port {port} and the own addresses of {}",
        first.name, profile.name,
    );
    let hint = "the NIC may take them for its RDMA transport before any flow: turn RoCE off (`devlink dev param set \
                pci/ADDRESS name enable_roce value false cmode driverinit`, then `devlink dev reload pci/ADDRESS` \
                with the daemon stopped: the reload takes the device away)";
    Some(first.name_place.warning(message, "this rule").hint(hint))
}

fn check_beside(
    policy: &Policy,
    program: &Program,
    tagged: &Program,
    mut warnings: Vec<Diagnostic>,
) -> Check {
    let steps = software_steps(program);
    let rules = program
        .rules
        .iter()
        .enumerate()
        .map(|(index, rule)| RuleCheck {
            name: rule.name.to_string(),
            line: rule.line,
            action: rule.policing.describe(&program.describe(rule.action)),
            placement: rule.placement.clone(),
            flows: rule.flows,
            steps: steps.get(&RuleId::of(index)).copied().unwrap_or(0),
        })
        .collect();
    unreachable_rules(policy, program, &mut warnings);
    foreign_packets(policy, tagged, &mut warnings);
    unused_groups(policy, program, &mut warnings);
    counted_only(policy, program, &mut warnings);
    warnings.extend(unrecorded(policy, program));
    small_bursts(policy, program, &mut warnings);
    exceeded_limits(policy, tagged, &mut warnings);
    warnings.sort_by_key(|warning| (warning.line, warning.column));
    Check { rules, warnings }
}

/// Warns of groups whose packets go to no sink.
fn counted_only(policy: &Policy, program: &Program, warnings: &mut Vec<Diagnostic>) {
    let without = |rule: &&program::Rule| rule.sinks.is_empty();
    let groups: BTreeSet<usize> = program
        .rules
        .iter()
        .filter(without)
        .filter_map(|rule| match rule.action {
            Verdict::Deliver(group) => Some(group.index()),
            Verdict::Drop | Verdict::Kernel | Verdict::Filtered => None,
        })
        .collect();
    let mut groups = groups.into_iter().filter_map(|index| policy.groups.get(index));
    let Some(first) = groups.next() else { return };
    let more = groups.count();
    let others = if more > 0 { format!(" and of {more} more") } else { String::new() };
    let message = format!("packets of the group `{}`{others} end in a counter", first.name);
    let hint =
        "add sinks = [\"NAME\"] and [sinks.NAME]; a sink of kind = \"count\" says that counting is all";
    warnings.push(first.place.warning(message, "no sinks").hint(hint));
}

/// Notes which rules a recorder does not see all packets of: those that the device drops, or leaves to the
/// host, reach no worker.
fn unrecorded(policy: &Policy, program: &Program) -> Option<Diagnostic> {
    let RecorderDefinition { recorder, place } = policy.recorder.as_ref()?;
    let is_recorded =
        |name: &str| recorder.rules.as_ref().is_none_or(|rules| rules.iter().any(|rule| rule == name));
    let drops = |flow: &&program::Flow| flow.action == FlowAction::Drop && flow.kind == FlowKind::Normal;
    let mut unseen: BTreeSet<RuleId> = program.flows.iter().filter(drops).map(|flow| flow.rule).collect();
    // Without a list only drops are named: that others stay with the host is what they are for.
    if recorder.rules.is_some() {
        unseen.extend(program.exceptions.iter().map(|exception| exception.rule));
    }
    let names = unseen.iter().filter_map(|rule| program.rules.get(rule.index()));
    let mut names = names.map(|rule| rule.name.as_str()).filter(|name| is_recorded(name));
    let first = names.next()?;
    let more = names.count();
    let others = if more > 0 { format!(" and of {more} more") } else { String::new() };
    let message = format!(
        "the recorder does not see packets of `{first}`{others} that the device drops or leaves to the host"
    );
    let hint = "they reach no worker: to record them, put a rule with action = { copy = \"GROUP\" } before it, where the \
                device copies";
    Some(place.warning(message, "recorded here").hint(hint))
}

/// Warns of limits whose burst has no packet for each worker, or fewer bytes than a usual frame: one that has
/// paused lets one packet through all the same.
fn small_bursts(policy: &Policy, program: &Program, warnings: &mut Vec<Diagnostic>) {
    for policed in program.policed_rules() {
        let Some(limit) = policed.policing.limit else { continue };
        let shares = policed.shares();
        let one = limit.unit.frame_burst();
        let is_less_than_one = |share: &LimitShare| {
            u128::from(limit.burst) * u128::from(share.parts) < u128::from(one) * u128::from(share.of)
        };
        let Some(rule) = policy.rules.get(policed.rule.index()) else { continue };
        if !shares.values().any(is_less_than_one) {
            continue;
        }
        let enough = shares.values().map(|share| (one * u64::from(share.of)).div_ceil(share.parts.into()));
        let enough = enough.max().unwrap_or(one);
        let (message, written) = match limit.unit {
            LimitUnit::Packets => {
                let together: u64 = shares.values().map(|share| share.of_limit(limit).burst).sum();
                let message = format!(
                    "after a pause {together} packets of `{}` pass at once, not {}: each of its {} workers lets one \
                     through at least",
                    rule.name,
                    limit.burst,
                    shares.len(),
                );
                (message, enough.to_string())
            }
            LimitUnit::Bits => {
                let message = format!(
                    "the burst of `{}` is shorter than a frame on each worker: one frame passes there after a pause",
                    rule.name,
                );
                (message, format!("\"{enough}B\""))
            }
        };
        let hint = format!(
            "write burst = {written} or more, or steer to fewer workers; on average {} are kept",
            limit.rate_text()
        );
        warnings.push(rule.place.warning(message, "this rule").hint(hint));
    }
}

/// Warns of limits beyond which packets pass because workers of other groups receive some, each of which has
/// a part of the limit in addition.
fn exceeded_limits(policy: &Policy, program: &Program, warnings: &mut Vec<Diagnostic>) {
    let limited = program.policed_rules().into_iter().filter(|policed| policed.policing.limit.is_some());
    let limited: BTreeSet<RuleId> = limited.map(|policed| policed.rule).collect();
    let receivers = receivers(program, &limited);
    for policed in program.policed_rules() {
        let (Some(limit), Some(rule)) = (policed.policing.limit, policy.rules.get(policed.rule.index()))
        else {
            continue;
        };
        let own: BTreeSet<WorkerId> = policed.shares().into_keys().collect();
        let Some(receivers) = receivers.get(&policed.rule) else { continue };
        let others: BTreeSet<WorkerId> = receivers.difference(&own).copied().collect();
        if others.is_empty() {
            continue;
        }
        // Rates are below 2^53.
        let most = limit.per_second as f64 * (1.0 + others.len() as f64 / own.len().max(1) as f64);
        let units = match limit.unit {
            LimitUnit::Packets => "packets",
            LimitUnit::Bits => "bits of packets",
        };
        let each = if limit.per_source.is_some() { " from each source" } else { "" };
        let message = format!(
            "up to {most:.0} {units} of `{}`{each} may pass in a second, not {}: {} some of them, too",
            rule.name,
            limit.per_second,
            match others.len() {
                1 => "a worker of another group receives".to_owned(),
                count => format!("{count} workers of other groups receive"),
            },
        );
        let hint = "flows of other rules match packets of this one, and each such worker has a part of the limit in addition: \
                    steer these rules to the same group";
        warnings.push(rule.place.warning(message, "this rule").hint(hint));
    }
}

/// The workers that receive packets which these rules may decide.
fn receivers(program: &Program, rules: &BTreeSet<RuleId>) -> BTreeMap<RuleId, BTreeSet<WorkerId>> {
    if rules.is_empty() {
        return BTreeMap::new();
    }
    let mut queues: BTreeMap<ClassId, BTreeSet<QueueId>> = BTreeMap::new();
    for flow in &program.flows {
        if let FlowAction::Steer { class, queue, .. } = flow.action {
            queues.entry(class).or_default().insert(queue);
        }
    }
    let mut receivers: BTreeMap<RuleId, BTreeSet<WorkerId>> = BTreeMap::new();
    for (class, queues) in queues {
        let Some(class) = program.class(class) else { continue };
        let decided: BTreeSet<RuleId> = class.decide.outcomes().map(|outcome| outcome.rule).collect();
        let queues = queues.into_iter().filter_map(|queue| program.queues.get(queue.index()));
        let workers: BTreeSet<WorkerId> = queues.flat_map(|queue| queue.table.iter().copied()).collect();
        for rule in decided.intersection(rules) {
            receivers.entry(*rule).or_default().extend(&workers);
        }
    }
    receivers
}

/// The steps of the class that each rule's flows lead to.
fn software_steps(program: &Program) -> BTreeMap<RuleId, u32> {
    let steps = program.flows.iter().filter_map(|flow| {
        let FlowAction::Steer { class, .. } = flow.action else { return None };
        match &program.class(class)?.decide {
            Decide::Exact(_) => None,
            Decide::Software(steps, _) => Some((flow.rule, u32::try_from(steps.len()).unwrap_or(u32::MAX))),
        }
    });
    steps.collect()
}

/// Warns of rules that neither a flow nor a software class leads to. Rules that leave packets to the kernel
/// without a flow are in the program's exceptions.
fn unreachable_rules(policy: &Policy, program: &Program, warnings: &mut Vec<Diagnostic>) {
    let mut reached: BTreeSet<RuleId> = program.flows.iter().map(|flow| flow.rule).collect();
    reached.extend(program.exceptions.iter().map(|step| step.rule));
    let classes = program.classes.iter().flatten();
    reached.extend(classes.flat_map(|class| class.decide.outcomes()).map(|outcome| outcome.rule));
    let dead: Vec<usize> =
        (0..policy.rules.len()).filter(|index| !reached.contains(&RuleId::of(*index))).collect();
    if dead.is_empty() {
        return;
    }
    let covers = Covers::of(policy);
    for (shown, index) in dead.iter().enumerate() {
        let Some(rule) = policy.rules.get(*index) else { continue };
        if shown == MAX_DIAGNOSTICS {
            let message = format!("{} more rules never match", dead.len() - shown);
            warnings.push(rule.name_place.warning(message, "from here on"));
            break;
        }
        let message = format!("the rule `{}` never matches", rule.name);
        let warning = rule.name_place.warning(message, "this rule");
        warnings.push(match covers.taken_by(*index) {
            Taken::Impossible => warning.hint("no packet meets all of its keys together"),
            Taken::By(earlier) if earlier.is_empty() => {
                warning.hint("earlier rules together take all its packets")
            }
            Taken::By(earlier) => {
                let names = earlier.iter().filter_map(|earlier| policy.rules.get(*earlier));
                let names: Vec<String> = names.map(|earlier| earlier.name.clone()).collect();
                warning.hint(format!("all its packets go to {} before it", listed(&names)))
            }
        });
    }
}

/// Packets of other rules that the flows of one rule match.
#[derive(Default)]
struct Foreign {
    /// The flows, as text, with packets that should reach the kernel.
    from_kernel: Vec<String>,
    kernel_packets: KernelPackets,
    /// The first rule of another group whose packets are among them.
    elsewhere: Option<Elsewhere>,
}

/// Whose packets the flows of a rule take from the kernel.
#[derive(Clone, Copy, Default)]
struct KernelPackets {
    is_own: bool,
    is_of_others: bool,
}

impl KernelPackets {
    fn of(rule: RuleId, decide: &Decide) -> Self {
        let mut packets = Self::default();
        for outcome in decide.outcomes().filter(|outcome| outcome.verdict == Verdict::Kernel) {
            packets.is_own |= outcome.rule == rule;
            packets.is_of_others |= outcome.rule != rule;
        }
        packets
    }

    /// In a sentence about the rule; `None`: it takes none.
    const fn words(self) -> Option<&'static str> {
        match (self.is_own, self.is_of_others) {
            (false, false) => None,
            (true, false) => Some("its own packets"),
            (true, true) => Some("its own packets and those of other rules"),
            (false, true) => Some("packets of other rules"),
        }
    }
}

/// A rule whose packets are processed by workers of another group.
#[derive(Clone, Copy)]
struct Elsewhere {
    rule: RuleId,
    /// The group that should process them.
    there: GroupId,
    /// The group that does.
    here: GroupId,
}

/// Warns of hybrid rules whose flows match packets that should reach the kernel or another group. Workers
/// cannot pass them to another group, and to the kernel only by a kernel sink.
fn foreign_packets(policy: &Policy, program: &Program, warnings: &mut Vec<Diagnostic>) {
    let returns = program.kernel_sink().is_some();
    let mut found: BTreeMap<RuleId, Foreign> = BTreeMap::new();
    let mut by_class: BTreeMap<(RuleId, ClassId), KernelPackets> = BTreeMap::new();
    for flow in &program.flows {
        let FlowAction::Steer { queue, class: class_id } = flow.action else { continue };
        let (Some(queue), Some(class)) = (program.queues.get(queue.index()), program.class(class_id)) else {
            continue;
        };
        let foreign = found.entry(flow.rule).or_insert_with(|| Foreign {
            elsewhere: elsewhere(&class.decide, queue.group),
            ..Foreign::default()
        });
        if returns {
            continue;
        }
        let of_class = by_class
            .entry((flow.rule, class_id))
            .or_insert_with(|| KernelPackets::of(flow.rule, &class.decide));
        if of_class.words().is_some() {
            foreign.from_kernel.push(flow.to_string());
            foreign.kernel_packets.is_own |= of_class.is_own;
            foreign.kernel_packets.is_of_others |= of_class.is_of_others;
        }
    }
    warnings
        .extend(found.iter().filter_map(|(rule, foreign)| foreign_warning(policy, program, *rule, foreign)));
}

/// The warning about one rule, if its flows match packets of others.
fn foreign_warning(policy: &Policy, program: &Program, id: RuleId, foreign: &Foreign) -> Option<Diagnostic> {
    let flows = listed(&foreign.from_kernel);
    let Some(rule) = policy.rules.get(id.index()) else {
        let message = format!("workers receive packets that the policy leaves to the kernel: {flows}");
        let warning = || policy.default_place.warning(message, "for the host").hint(COVERS);
        return (!foreign.from_kernel.is_empty()).then(warning);
    };
    let other = foreign.elsewhere.map(|Elsewhere { rule, there, here }| {
        let group = |group: GroupId| program.groups.get(group.index()).map_or("?", |group| &*group.name);
        let other = program.rules.get(rule.index()).map_or("?", |rule| &*rule.name);
        (other, group(there), group(here))
    });
    let notes = program.rules.get(id.index()).map(|rule| &*rule.undecided).unwrap_or_default();
    let is_kept = notes.iter().any(|note| note.why.keeps_from_host());
    // Unless the policy allows them, these are lost exceptions, which are errors with an example.
    if is_kept && !policy.allow_lost_exceptions && !foreign.from_kernel.is_empty() {
        return None;
    }
    let whose = foreign.kernel_packets.words().unwrap_or_default();
    let why_lost = if foreign.kernel_packets.is_own { LATER } else { LOST };
    let (message, label, hint) = match (other, foreign.from_kernel.is_empty()) {
        (_, false) if is_kept => (
            format!("packets of `{}` belong to the host, but a worker receives them: {flows}", rule.name),
            "for the host",
            LATER.to_owned(),
        ),
        (None, true) => return None,
        (None, false) => (
            format!("`{}` takes {whose} from the kernel: {flows}", rule.name),
            "decided by the worker",
            why_lost.to_owned(),
        ),
        (Some((other, there, here)), true) => (
            format!(
                "packets of `{}` that turn out to belong to `{other}` stay with the workers of `{here}`",
                rule.name
            ),
            "decided by the worker",
            format!(
                "the device cannot distinguish them, and `{other}` goes to `{there}`: give both rules the same group"
            ),
        ),
        (Some((other, there, here)), false) => (
            format!(
                "`{}` takes {whose} from the kernel: {flows}; those of \
                 `{other}` stay with the workers of `{here}`",
                rule.name
            ),
            "decided by the worker",
            format!("{why_lost}; `{other}` goes to `{there}`: give both rules the same group"),
        ),
    };
    Some(rule.place.warning(message, label).hint(hint))
}

/// Why a worker receives packets of a rule that leaves them to the host.
const LATER: &str = "flows of later rules match such packets and cannot exclude these: `steerd check` shows why, and \
    what to write";

/// Why covers match packets of the host.
const COVERS: &str = "the device has too little room for the flows of all rules, and these flows lead their packets to \
    workers: add a sink of kind \"kernel\", which returns what belongs to the host, or write fewer rules";

/// The loss of unmatched packets that a worker receives.
const LOST: &str = "a worker receives all of these, and the host does not receive those that match no rule: \
    match the rest by a later rule, or add keys that the device matches, so that there are fewer";

/// The first outcome that goes to another group than `here`.
fn elsewhere(decide: &Decide, here: GroupId) -> Option<Elsewhere> {
    decide.outcomes().find_map(|outcome| match outcome.verdict {
        Verdict::Deliver(there) if there != here => Some(Elsewhere { rule: outcome.rule, there, here }),
        _ => None,
    })
}

/// The first few of a list, quoted.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 4;
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect();
    match names.len() {
        count if count > SHOWN => format!("{} and {} more", shown.join(", "), count - SHOWN),
        _ => shown.join(", "),
    }
}

fn unused_groups(policy: &Policy, program: &Program, warnings: &mut Vec<Diagnostic>) {
    for (index, group) in policy.groups.iter().enumerate() {
        let verdict = Verdict::Deliver(GroupId::of(index));
        // A hybrid drop uses the group whose workers do the dropping.
        let receives = program.queues.iter().any(|queue| queue.group == GroupId::of(index));
        let at_run_time = program.runtime.iter().flat_map(|runtime| runtime.actions.iter().flatten());
        let is_named = program.rules.iter().map(|rule| rule.action).any(|action| action == verdict)
            || at_run_time.map(|action| action.verdict).any(|action| action == verdict);
        if !receives && !is_named {
            let message = format!("the group `{}` is never used", group.name);
            warnings
                .push(group.place.warning(message, "defined here").hint("remove it, or steer a rule to it"));
        }
    }
}

/// Up to this number, the cubes of one rule are compared one by one; beyond it with an index.
const FEW_CUBES: usize = 32;
/// The most lookups for one rule. Earlier rules that would need more are not named.
const MAX_LOOKUPS: usize = 1 << 24;

/// Why a rule gets no packets.
enum Taken {
    /// No packet matches it.
    Impossible,
    /// Earlier rules match them all, these among them.
    By(Vec<usize>),
}

/// The cubes of a policy's rules, to find which earlier rules match all packets of a rule; slow, for
/// diagnostics only.
struct Covers(Vec<(Expansion, bool)>);

impl Covers {
    /// Covers every rule of a policy that compiles.
    fn of(policy: &Policy) -> Self {
        let ideal = DeviceModel::ideal();
        let cover = |rule: &RuleDefinition| {
            let expansion = cover_match(&rule.matches, rule.direction, &ideal).unwrap_or_default();
            let claims = !matches!(rule.action, Action::Copy(_) | Action::Sniff(_));
            (expansion, claims)
        };
        Self(policy.rules.iter().map(cover).collect())
    }

    /// Which earlier rules match the packets of a rule that gets none. The cubes of a hybrid rule cover more
    /// than its match, so hybrid rules are not named.
    fn taken_by(&self, rule: usize) -> Taken {
        let mut left = self.0.get(rule).map(|(expansion, _)| expansion.cubes.clone()).unwrap_or_default();
        if left.is_empty() {
            return Taken::Impossible;
        }
        let mut takers = Vec::new();
        let mut lookups_left = MAX_LOOKUPS;
        let deciding = self.0.iter().enumerate().take(rule).filter(|(_, (_, claims))| *claims);
        let exact = deciding.filter(|(_, (other, _))| other.software.is_empty());
        for (earlier, (expansion, _)) in exact {
            let before = left.len();
            take(&mut left, &expansion.cubes, &mut lookups_left);
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

/// Removes the cubes that lie within one of the takers.
fn take(left: &mut Vec<Cube>, takers: &[Cube], lookups_left: &mut usize) {
    if takers.len() <= FEW_CUBES {
        left.retain(|cube| !takers.iter().any(|taker| taker.contains(cube)));
        return;
    }
    let mut values: HashMap<Image, HashSet<Image>> = HashMap::new();
    for Cube { mask, value, .. } in takers {
        values.entry(*mask).or_default().insert(*value);
    }
    let lookups = values.len().saturating_mul(left.len());
    if lookups > *lookups_left {
        return;
    }
    *lookups_left -= lookups;
    let masked = |image: &Image, mask: &Image| std::array::from_fn(|word| image[word] & mask[word]);
    // Cubes of one mask lie within takers of the same masks, and there are few masks.
    let mut wider: HashMap<Image, Vec<(&Image, &HashSet<Image>)>> = HashMap::new();
    left.retain(|cube| {
        let of_mask = wider.entry(cube.mask).or_insert_with(|| {
            values.iter().filter(|(mask, _)| masked(mask, &cube.mask) == **mask).collect()
        });
        !of_mask.iter().any(|(mask, values)| values.contains(&masked(&cube.value, mask)))
    });
}

#[cfg(test)]
mod tests {
    use packet::cube::{SRC_HIGH, SRC_MAC};

    use super::*;

    #[test]
    fn rules_for_the_roce_port_are_warned_of() {
        let found = |profile: &DeviceModel, rules: &[&str]| {
            let rules = (0..).zip(rules);
            let rules = rules.map(|(n, keys)| format!("[[rules]]\nname = \"r{n}\"\n{keys}\n"));
            let text = format!(
                "version = 1\ndefault = \"kernel\"\n[groups.g]\nworkers = [0]\n{}",
                rules.collect::<String>()
            );
            let source = policy::Source::new("p.toml", text);
            let parsed = policy::parse(&source, &policy::NoFiles);
            let (policy, _) = parsed.unwrap_or_else(|problems| panic!("{problems}"));
            roce_packets(&policy, profile).map(|warning| warning.message)
        };
        let steer = |keys: &str| format!("match = {{ {keys} }}\naction = {{ steer = \"g\" }}");
        let roce = steer("protocol = \"udp\", dst_port = 4791");
        let mlx5 = DeviceModel::mlx5();
        assert_eq!(
            found(&mlx5, &[&roce, &roce]).as_deref(),
            Some(
                "where RoCE is enabled, `r0` and 1 more may not see UDP packets to port 4791 and the own addresses of mlx5"
            )
        );
        let few = steer("dst_port = [53, \"4789-4791\"]");
        assert!(found(&mlx5, &[&few]).is_some(), "any protocol, a few ports");
        assert_eq!(found(&DeviceModel::ideal(), &[&roce]), None, "no RoCE");
        for other in [
            steer("protocol = \"udp\", dst_port = 4789"),
            steer("protocol = \"tcp\", dst_port = 4791"),
            steer("protocol = \"udp\", dst_port = \"1024-65535\""),
            steer("protocol = \"udp\", src_port = 4791"),
            steer("protocol = \"udp\""),
            "match = { protocol = \"udp\", dst_port = 4791 }\naction = \"kernel\"".to_owned(),
            "direction = \"egress\"\nmatch = { protocol = \"udp\", dst_port = 4791 }\naction = \"drop\""
                .to_owned(),
        ] {
            assert_eq!(found(&mlx5, &[&other]), None, "{other}");
        }
    }

    #[test]
    fn the_index_and_comparison_of_all_find_the_same() {
        let hosts = |from: u64, count: u64| -> Vec<Cube> {
            let cube = |host| Cube::ANY.with(SRC_HIGH, host, u64::MAX).expect("no other field");
            (from..from + count).map(cube).collect()
        };
        let net = Cube::ANY.with(SRC_HIGH, 0x100, !0xff).expect("no other field");
        for takers in [hosts(0x1f0, 20), [hosts(0x300, 100), vec![net], hosts(0x1f0, 100)].concat()] {
            let left = [hosts(0x80, 0x400), vec![net, Cube::ANY], hosts(0x1f8, 1)].concat();
            let narrowed = |cube: &Cube| cube.with(SRC_MAC, 7, 0xff);
            let left: Vec<Cube> =
                left.iter().chain(&left.iter().filter_map(narrowed).collect::<Vec<_>>()).copied().collect();
            let wanted: Vec<Cube> = left
                .iter()
                .filter(|cube| !takers.iter().any(|taker| taker.contains(cube)))
                .copied()
                .collect();
            let mut taken = left.clone();
            take(&mut taken, &takers, &mut MAX_LOOKUPS.clone());
            assert!(taken == wanted && wanted.len() < left.len());
            let mut untouched = left.clone();
            take(&mut untouched, &takers, &mut 0);
            assert!(untouched == if takers.len() > FEW_CUBES { left } else { wanted });
        }
    }
}
