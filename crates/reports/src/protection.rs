//! `[protect]` for operators: the results of the analysis as diagnostics. `check`, start and reload refuse a
//! policy under which a protected packet may miss the host, and a policy for which that is not decided.

use analysis::{Missed, Protected, UnreachableKind};
use packet::Field;
use policy::policy::RuleDefinition;
use policy::protect::ProtectedMatch;
use policy::{Diagnostic, Policy};
use program::{DEFAULT_RULE, Match, Predicate, Program, RangeSet};

use crate::lost_exceptions::{TakenReason, taken_reason};

/// The longest match that a remedy quotes, in bytes.
const MAX_QUOTED: usize = 400;

/// The outcome of the protected packets.
pub struct ProtectionReport {
    /// The results, by protected match of the policy.
    pub found: Vec<Protected>,
    /// Why the policy is refused.
    pub errors: Vec<Diagnostic>,
}

impl ProtectionReport {
    /// `program`: what a device would run, if the policy compiles for it.
    #[must_use]
    pub fn of(policy: &Policy, program: Option<&Program>) -> Self {
        let by_policy = analysis::protection(policy);
        let found = match program {
            Some(program) => analysis::protection_on_device(policy, program, &by_policy),
            None => by_policy.clone(),
        };
        let protected = policy.protect.iter().flatten().zip(by_policy.iter().zip(&found));
        let errors = protected.filter_map(|(protected, found)| match found {
            (Protected::Missed(missed), _) => Some(taken_by_policy(policy, protected, missed)),
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

fn taken_by_policy(policy: &Policy, protected: &ProtectedMatch, missed: &Missed) -> Diagnostic {
    let rule = policy.rules.get(missed.taken_by.index());
    let (place, taker, before) = named(policy, rule);
    let message = format!(
        "{taker} takes packets that [protect] leaves to the host by {}, for example {}",
        listed_as(protected),
        missed.witness
    );
    let matches = analysis::match_text(&matched_by_devices(&protected.matches));
    let remedy = match matches.len() {
        0..=MAX_QUOTED => format!("add a rule{before} with match = {matches} and action = \"kernel\""),
        _ => format!("add a rule{before} with action = \"kernel\" that matches them"),
    };
    place
        .error(message, "the host would not receive these")
        .hint(format!("{remedy}, or protect fewer packets"))
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
