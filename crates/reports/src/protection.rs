//! `[protect]` for operators: the results of the analysis as diagnostics. `check`, start and reload refuse a
//! policy under which a protected packet may miss the host, and a policy for which that is not decided.

use analysis::{Missed, Protected, UnreachableKind};
use compiler::Job;
use packet::Field;
use policy::policy::RuleDefinition;
use policy::protect::ProtectedMatch;
use policy::{Diagnostic, Policy};
use program::{DEFAULT_RULE, Match, Predicate, Program, RangeSet, RuleId, UndecidedReason};

use crate::lost_exceptions::{TakenReason, taken_reason};

/// The longest match that a remedy quotes, in bytes.
const MAX_QUOTED: usize = 400;

/// The most flows that a remedy may cost while there is no search for a cheaper one that leaves more packets
/// to the host.
const FEW_FLOWS: usize = 1000;

/// The most errors whose remedies have a cost: each takes up to two compilations.
const MAX_PRICED: usize = 4;

/// The outcome of the protected packets.
pub struct ProtectionReport {
    /// The results, by protected match of the policy.
    pub found: Vec<Protected>,
    /// Why the policy is refused.
    pub errors: Vec<Diagnostic>,
}

impl ProtectionReport {
    /// `program`: what a device would run for the job, if its policy compiles.
    #[must_use]
    pub fn of(job: &Job<'_>, program: Option<&Program>) -> Self {
        let policy = job.policy;
        let by_policy = analysis::protection(policy);
        let found = match program {
            Some(program) => analysis::protection_on_device(policy, program, &by_policy),
            None => by_policy.clone(),
        };
        let protected = policy.protect.iter().flatten().zip(by_policy.iter().zip(&found));
        let mut priced = 0;
        let errors = protected.filter_map(|(protected, found)| match found {
            (Protected::Missed(missed), _) => {
                priced += 1;
                let program = program.filter(|_| priced <= MAX_PRICED);
                Some(taken_by_policy(job, program, protected, missed))
            }
            (Protected::NotDecided(why), _) | (Protected::Safe, Protected::NotDecided(why)) => {
                Some(not_decided(protected, why))
            }
            (Protected::Safe, Protected::Missed(missed)) => {
                program.map(|program| taken_on_device(policy, program, protected, missed))
            }
            (Protected::Safe, Protected::Safe) => None,
        });
        Self { errors: errors.collect(), found }
    }
}

/// The warning about a policy without `[protect]` that takes all packets of a kind which hosts need, in one
/// for all kinds.
#[must_use]
pub fn protection_warning(policy: &Policy) -> Option<Diagnostic> {
    if policy.protect.is_some() {
        return None;
    }
    let kinds = analysis::unreachable_kinds(policy);
    let first = kinds.first()?;
    let (place, ..) = named(policy, policy.rules.get(first.missed.taken_by.index()));
    let examples = kinds.iter().map(|UnreachableKind { kind, missed }| {
        let (_, taker, _) = named(policy, policy.rules.get(missed.taken_by.index()));
        format!("{} ({taker} takes, for example, {})", kind.title, missed.witness)
    });
    let message =
        format!("the host receives none of these packets: {}", examples.collect::<Vec<_>>().join("; "));
    let hint = "write rules with action = \"kernel\" before these for those that the host needs and list them in [protect], \
        so that they stay with the host; or write protocols = [] in [protect] if it needs none";
    Some(place.warning(message, "takes them").hint(hint))
}

/// The protected matches of a policy as predicates, for `explain`.
#[derive(Debug)]
pub struct ProtectedNames(Vec<(String, Predicate)>);

impl ProtectedNames {
    /// The matches of a policy.
    #[must_use]
    pub fn of(policy: &Policy) -> Self {
        let name = |protected: &ProtectedMatch| (listed_as(protected), Predicate::of(&protected.matches));
        Self(policy.protect.iter().flatten().map(name).collect())
    }

    /// The entries of `[protect]` that protect a packet.
    #[must_use]
    pub fn of_packet(&self, key: &packet::DeepKey) -> Vec<String> {
        let protecting = self.0.iter().filter(|(_, predicate)| predicate.matches_deep(key));
        protecting.map(|(name, _)| name.clone()).collect()
    }
}

/// ```text
/// `ports` (line 3)
/// ```
fn listed_as(protected: &ProtectedMatch) -> String {
    format!("`{}` (line {})", protected.name, protected.place.line())
}

fn taken_by_policy(
    job: &Job<'_>,
    program: Option<&Program>,
    protected: &ProtectedMatch,
    missed: &Missed,
) -> Diagnostic {
    let policy = job.policy;
    let rule = policy.rules.get(missed.taken_by.index());
    let (place, taker, before) = named(policy, rule);
    let message = format!(
        "{taker} takes packets that [protect] leaves to the host by {}, for example {}",
        listed_as(protected),
        missed.witness
    );
    let (matches, cost) = cheapest(job, program, missed.taken_by.index(), &protected.matches);
    let matches = analysis::match_text(&matches);
    let remedy = match matches.len() {
        0..=MAX_QUOTED => format!("add a rule{before} with match = {matches} and action = \"kernel\""),
        _ => format!("add a rule{before} with action = \"kernel\" that matches them"),
    };
    let remedy = match cost {
        None => remedy,
        Some(Ok(flows)) => format!("{remedy}, for {flows} more flows"),
        Some(Err(TakenReason { reason, remedy, .. })) => {
            format!("with a rule{before} that leaves these packets to the host, {reason}: {remedy}")
        }
    };
    place
        .error(message, "the host would not receive these")
        .hint(format!("{remedy}, or protect fewer packets"))
}

/// The flows that a device has more with a rule, or why it cannot take its packets out of other flows.
type RuleCost = Result<usize, TakenReason>;

/// The match of a rule that leaves the packets to the host, with its cost: that of the packets if that takes
/// few flows, else without addresses if that takes fewer. `None`: the cost is not known.
fn cheapest(
    job: &Job<'_>,
    program: Option<&Program>,
    before: usize,
    matches: &Match,
) -> (Match, Option<RuleCost>) {
    let exact = matched_by_devices(matches);
    let any_host = Match { src: None, dst: None, ..exact.clone() };
    let candidates = match exact != any_host && any_host.values().next().is_some() {
        true => vec![exact, any_host],
        false => vec![exact],
    };
    let costs = candidates.into_iter().map(|matches| {
        let cost = program.and_then(|program| cost(job, program, before, &matches));
        (matches, cost)
    });
    let rank = |cost: &Option<RuleCost>| match cost {
        Some(Ok(..=FEW_FLOWS)) => (0, 0),
        Some(Ok(flows)) => (0, *flows),
        None => (1, 0),
        Some(Err(_)) => (2, 0),
    };
    costs.min_by_key(|(_, cost)| rank(cost)).unwrap_or_else(|| (matches.clone(), None))
}

/// The cost of a rule before the one of this index, by compiling with it; `None`: the policy then does not
/// compile.
fn cost(job: &Job<'_>, program: &Program, before: usize, matches: &Match) -> Option<RuleCost> {
    let mut policy = job.policy.clone();
    let place = policy.default_place.clone();
    let before = before.min(policy.rules.len());
    policy.rules.insert(before, RuleDefinition::for_host(matches.clone(), place));
    // Rules at run time stay before the same rule.
    if let Some(runtime) = policy.runtime.as_mut().filter(|runtime| runtime.before >= before) {
        runtime.before += 1;
    }
    let with_rule = Job { policy: &policy, previous: None, weights: None, ..*job }.compile().ok()?;
    let undecided = &with_rule.rules.get(before)?.undecided;
    let is_kept = undecided.iter().any(|note| matches!(note.why, UndecidedReason::KernelException { .. }));
    Some(match is_kept {
        true => Err(taken_reason(&policy, &with_rule, RuleId::of(before))),
        false => Ok(with_rule.flows.len().saturating_sub(program.flows.len())),
    })
}

/// The match without the conditions that no device can match, so that a device can leave all of its packets
/// to the host: of an ICMPv6 message it matches the protocol, not the type.
fn matched_by_devices(matches: &Match) -> Match {
    let unmatched: Vec<Field> =
        matches.values().map(|(field, _)| field).filter(|field| field.row().slots.is_empty()).collect();
    let mut wider = matches.clone();
    for field in &unmatched {
        if let [protocol] = field.row().header.protocols() {
            wider.set(Field::Protocol, RangeSet::single(protocol.0.into()));
        }
    }
    wider.remove(&unmatched);
    wider
}

fn taken_on_device(
    policy: &Policy,
    program: &Program,
    protected: &ProtectedMatch,
    missed: &Missed,
) -> Diagnostic {
    let (place, ..) = named(policy, policy.rules.get(missed.taken_by.index()));
    let taken_by = taken_reason(policy, program, missed.taken_by);
    let flows = taken_by.flows();
    let TakenReason { reason, remedy, .. } = taken_by;
    let message = format!(
        "packets that [protect] leaves to the host by {} miss it on this device: {flows} take them, and a worker \
         cannot give them back, for example {}",
        listed_as(protected),
        missed.witness
    );
    let hint = format!(
        "{reason}: {remedy} (`steerd check` shows more), or add [sinks.host] with kind = \"kernel\", by which workers give them back; allow_lost_exceptions does not apply to protected packets"
    );
    place.error(message, "the host would not receive these").hint(hint)
}

fn not_decided(protected: &ProtectedMatch, why: &str) -> Diagnostic {
    let message = format!(
        "it is not known whether all packets of {} of [protect] reach the host",
        listed_as(protected)
    );
    let hint =
        format!("{why}: move the rules that leave them to the host to the top, or protect fewer packets");
    protected.place.error(message, "refused, because it is not known").hint(hint)
}

/// The place of a rule or of the default, its name in a sentence, and where to add a rule before it.
fn named<'p>(policy: &'p Policy, rule: Option<&'p RuleDefinition>) -> (&'p policy::Place, String, String) {
    match rule {
        Some(rule) => (&rule.place, format!("the rule `{}`", rule.name), format!(" before `{}`", rule.name)),
        None => (&policy.default_place, format!("the {DEFAULT_RULE}"), String::new()),
    }
}

#[cfg(test)]
mod tests {
    use device_model::DeviceModel;
    use policy::{NoFiles, Source};

    use super::*;

    /// The flows of a policy on mlx5 and the remedies for its protected packets.
    fn flows_and_remedies(text: &str) -> (usize, Vec<String>) {
        let (policy, _) = policy::parse(&Source::new("p.toml", text), &NoFiles).expect("a policy");
        let profile = DeviceModel::mlx5();
        let job = Job::new(&policy, &profile, 1);
        let program = job.compile().expect("it fits");
        let errors = ProtectionReport::of(&job, Some(&program)).errors;
        let hints = errors.iter().map(|error| error.hint.clone().expect("a hint"));
        (program.flows.len(), hints.collect())
    }

    /// The policy takes a segment, so neighbour discovery of all its hosts.
    #[test]
    fn the_remedy_states_its_flows() {
        let text = |protect: &str, rule: &str| {
            format!(
                "version = 1\n[protect]\nprotocols = ['nd']\n{protect}\n[groups.g]\nworkers = [0]\n{rule}\
                 [[rules]]\nname = 'segment'\nmatch = {{ dst = ['2001:db8:1::/64', 'ff02::/16'] }}\naction = 'steer g'\n"
            )
        };
        for protect in ["", "own_addresses = ['2001:db8:1::7', 'fe80::7']"] {
            let (before, remedies) = flows_and_remedies(&text(protect, ""));
            let [remedy] = &remedies[..] else { panic!("{remedies:?}") };
            let (_, rest) = remedy.split_once("with match = ").expect("a match");
            let (matches, rest) = rest.split_once(" and action").expect("an action");
            let (_, cost) = rest.split_once(", for ").unwrap_or_else(|| panic!("{remedy}"));
            let rule = format!("[[rules]]\nname = 'kept'\nmatch = {matches}\naction = 'kernel'\n");
            let (after, none) = flows_and_remedies(&text(protect, &rule));
            assert_eq!(none, [""; 0]);
            assert!(
                cost.starts_with(&format!("{} more flows", after - before)),
                "{after} - {before}: {remedy}"
            );
            assert!(after - before <= FEW_FLOWS, "{remedy}");
        }
    }
}
