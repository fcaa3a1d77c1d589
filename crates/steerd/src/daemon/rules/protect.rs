//! Whether rules at run time take packets that `[protect]` leaves to the host: asked of each rule that is
//! added, and of all rules when a policy comes into force that protects other packets, or has other rules
//! before them. Each policy is indexed once.
//!
//! That a comparison takes long is no reason to remove a rule. When a policy comes into force, rules are
//! compared before they are locked, and for [`LOCKED_FOR`] while they are; those that are left are withheld
//! from workers and the device, and compared in the seconds after it.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use analysis::{Protected, RuntimeProtection};
use control::{RUNTIME_REFUSALS_MAX, RuntimeStore, StoredRule};
use policy::Policy;
use policy::policy::{Action, RuleDefinition};
use program::{Match, Program, RuntimeChange, RuntimeMatch, RuntimeRules};

use super::{LOGGED_MAX, LiveRules, Rules, log_removed};
use crate::api::request::Refused;
use crate::api::rules::{ChangesRefused, RefusedRule, RuleBody, rule_id};
use crate::daemon::board::PolicyInForce;

/// How long the rules of one call may be compared, which holds up other changes.
const CALL_FOR: Duration = Duration::from_secs(2);
/// How long rules are compared with a policy before it is compiled.
const BEFORE_FOR: Duration = Duration::from_secs(10);
/// How long they are compared while nobody can change them.
pub(super) const LOCKED_FOR: Duration = Duration::from_millis(500);
/// How long they are compared in each second afterwards.
const SLICE: Duration = Duration::from_millis(50);

/// The action that leaves packets to the host.
const KERNEL: &str = "kernel";

/// The index of the policy with a hash.
#[derive(Default)]
pub(super) struct KnownProtection {
    sha256: String,
    /// `None`: it protects nothing.
    index: Option<RuntimeProtection>,
}

impl KnownProtection {
    fn of(&mut self, policy: &Policy, sha256: &str) -> Option<&RuntimeProtection> {
        if self.sha256 != sha256 {
            *self = Self { sha256: sha256.to_owned(), index: RuntimeProtection::of(policy) };
        }
        self.index.as_ref()
    }
}

/// The rules that were compared with protected packets.
#[derive(Debug, Default)]
pub(super) struct Compared {
    /// The rules that may take some, each with the reason.
    pub(super) taking: HashMap<Arc<str>, String>,
    /// The rules for which there was no time.
    pub(super) open: Vec<Arc<str>>,
}

impl Rules {
    /// Refuses rules that take packets which `[protect]` leaves to the host, the first ones with such a
    /// packet.
    pub(super) fn check_protected(
        &mut self,
        policy: &Policy,
        sha256: &str,
        added: &[RuleBody],
    ) -> Result<(), ChangesRefused> {
        let Some(index) = self.protection.of(policy, sha256) else { return Ok(()) };
        let begun = Instant::now();
        let mut refused = Vec::new();
        for (place, body) in added.iter().enumerate().filter(|(_, body)| body.action != KERNEL) {
            if let Some((matches, protected)) = taken_by(index, body.matches, body.both) {
                // An example takes an analysis of its own.
                let is_shown = refused.len() < LOGGED_MAX;
                let taken =
                    if is_shown { taken(policy, &matches, protected) } else { named(policy, protected) };
                let error = format!("rule `{}` {taken}", rule_id(body));
                let witness = taken.witness;
                refused.push(RefusedRule {
                    add: Some(place),
                    remove: None,
                    id: rule_id(body),
                    error,
                    witness,
                });
            }
            if refused.len() == RUNTIME_REFUSALS_MAX {
                break;
            }
            if begun.elapsed() > CALL_FOR {
                let why = format!(
                    "the rules cannot be compared with [protect] within {} s (hint: add fewer at a time, or let \
                     `before` of [runtime] name a rule behind those that leave the protected packets to the host)",
                    CALL_FOR.as_secs()
                );
                return Err(Refused::new(409, why).into());
            }
        }
        if refused.is_empty() {
            return Ok(());
        }
        Err(ChangesRefused::of_rules(409, refused))
    }

    /// Compares all rules with the protected packets of the policy in force.
    pub(super) fn compare_all(&mut self, in_force: &PolicyInForce) -> Compared {
        let Some(policy) = in_force.policy.as_deref().filter(|_| !self.store.is_empty()) else {
            return Compared::default();
        };
        let index = self.protection.of(policy, &in_force.inputs.sha256);
        compare(self.store.rules(), policy, index, &in_force.program, LOCKED_FOR)
    }

    /// Withholds the rules that are still to be compared, and no others; returns what workers have to change.
    pub(super) fn withhold_open(&mut self) -> Vec<RuntimeChange> {
        self.store.withhold(&self.open.iter().cloned().collect())
    }

    /// Uses the index of a policy that is in force now; `None`: the index that is there is kept.
    pub(crate) fn set_protection(&mut self, index: Option<RuntimeProtection>, in_force: &PolicyInForce) {
        if index.is_some() {
            self.protection = KnownProtection { sha256: in_force.inputs.sha256.clone(), index };
        }
    }
}

impl LiveRules {
    /// Compares rules that a policy was put in force without, for a short time: those that may take protected
    /// packets are removed, the others come into force.
    pub(super) fn compare_open(&self, rules: &mut Rules) {
        let in_force = Arc::clone(&self.observer.board.read().policy);
        let (open, Some(policy)) = (std::mem::take(&mut rules.open), &in_force.policy) else { return };
        let stored = open.iter().filter_map(|id| rules.store.get(id));
        let index = rules.protection.of(policy, &in_force.inputs.sha256);
        let Compared { taking, open } = compare(stored, policy, index, &in_force.program, SLICE);
        rules.open = open;
        let (gone, mut changes) = rules.store.remove_rules(taking.keys());
        log_removed(&gone, "as they may take protected packets", &taking);
        let released = rules.withhold_open();
        let is_released = !released.is_empty();
        changes.extend(released);
        self.follow_removal(rules, &gone, &changes);
        // Rules that only the device can enforce, or that others in the device would overtake.
        if is_released && let Some(allowed) = &in_force.program.runtime {
            self.put_what_fits(rules, allowed);
        }
    }
}

/// Whether two policies give the same answer for each rule at run time: they protect the same packets, and
/// decide the same packets before rules at run time.
pub(super) fn protects_alike(a: &Policy, b: &Policy) -> bool {
    let earlier = |policy: &Policy| {
        let before = policy.runtime.as_ref().map_or(0, |runtime| runtime.before);
        before.min(policy.rules.len())
    };
    let protected = |policy: &Policy| policy.protect.as_ref().map_or(0, Vec::len);
    let is_final = |rule: &RuleDefinition| !matches!(rule.action, Action::Copy(_) | Action::Sniff(_));
    let is_same = |a: &RuleDefinition, b: &RuleDefinition| {
        is_final(a) == is_final(b) && a.direction == b.direction && a.matches == b.matches
    };
    earlier(a) == earlier(b)
        && protected(a) == protected(b)
        && a.rules.iter().zip(&b.rules).take(earlier(a)).all(|(a, b)| is_same(a, b))
        && a.protect.iter().flatten().zip(b.protect.iter().flatten()).all(|(a, b)| a.matches == b.matches)
}

/// Indexes a policy and compares rules with it, so that the answers are known when they are asked for again.
pub(super) fn index_for(policy: &Policy, rules: &[(RuntimeMatch, bool)]) -> Option<RuntimeProtection> {
    let index = RuntimeProtection::of(policy)?;
    let begun = Instant::now();
    let in_time = rules.iter().take_while(|_| begun.elapsed() < BEFORE_FOR);
    in_time.for_each(|(matches, both_directions)| _ = taken_by(&index, *matches, *both_directions));
    Some(index)
}

/// The rules of a store that take packets from the host, as [`index_for`] compares them. `allowed`: the
/// actions that the rules name.
pub(super) fn takers(store: &RuntimeStore, allowed: Option<&RuntimeRules>) -> Vec<(RuntimeMatch, bool)> {
    let taking = store.rules().filter(|stored| !leaves_to_host(stored, allowed));
    taking.map(|stored| (stored.rule.matches, stored.rule.both_directions)).collect()
}

/// Compares rules with the protected packets of a policy. `program`: of which the rules name the actions.
pub(super) fn compare<'r>(
    rules: impl Iterator<Item = &'r StoredRule>,
    policy: &Policy,
    index: Option<&RuntimeProtection>,
    program: &Program,
    patience: Duration,
) -> Compared {
    let mut compared = Compared::default();
    let Some(index) = index else { return compared };
    let begun = Instant::now();
    for stored in rules.filter(|stored| !leaves_to_host(stored, program.runtime.as_ref())) {
        let rule = &stored.rule;
        if begun.elapsed() > patience {
            compared.open.push(Arc::clone(&rule.id));
            continue;
        }
        if let Some((matches, place)) = taken_by(index, rule.matches, rule.both_directions) {
            // An example takes an analysis of its own.
            let is_shown = compared.taking.len() < LOGGED_MAX;
            let why = if is_shown { taken(policy, &matches, place) } else { named(policy, place) };
            compared.taking.insert(Arc::clone(&rule.id), why.to_string());
        }
    }
    compared
}

fn leaves_to_host(stored: &StoredRule, allowed: Option<&RuntimeRules>) -> bool {
    let action = allowed.and_then(|allowed| allowed.actions.get(usize::from(stored.rule.action))?.as_ref());
    action.is_some_and(|action| action.text == KERNEL)
}

/// The direction of a rule that may take packets of a protected match, and the index of that.
fn taken_by(
    index: &RuntimeProtection,
    matches: RuntimeMatch,
    both_directions: bool,
) -> Option<(RuntimeMatch, usize)> {
    let reverse = both_directions.then(|| matches.reversed());
    [Some(matches), reverse]
        .into_iter()
        .flatten()
        .find_map(|matches| Some((matches, index.taken_by(&matches)?)))
}

/// The sentence that a rule may take packets of a protected match, and an example.
struct TakenPackets {
    why: String,
    witness: Option<String>,
}

impl fmt::Display for TakenPackets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)?;
        self.witness.iter().try_for_each(|witness| write!(f, ", for example {witness}"))
    }
}

fn named(policy: &Policy, place: usize) -> TakenPackets {
    let protected = policy.protect.iter().flatten().nth(place);
    let name = protected.map(|one| format!("`{}` (line {})", one.name, one.place.line())).unwrap_or_default();
    TakenPackets { why: format!("takes packets that [protect] leaves to the host by {name}"), witness: None }
}

/// The sentence with an example, by the exact analysis of a policy that has the rule behind the rules before
/// it.
fn taken(policy: &Policy, matches: &RuntimeMatch, place: usize) -> TakenPackets {
    let found = analysis::protection_from_rule(policy, matches.to_match());
    let taken = named(policy, place);
    match found.get(place) {
        Some(Protected::Missed(missed)) => {
            TakenPackets { witness: Some(missed.witness.to_string()), ..taken }
        }
        Some(Protected::NotDecided(undecided)) => {
            TakenPackets { why: format!("{taken}, as far as is known: {undecided}"), witness: None }
        }
        Some(Protected::Safe) | None => taken,
    }
}

/// `false`: no packet can match both.
pub(super) fn may_share(a: &Match, b: &Match) -> bool {
    let shares_values = a
        .values()
        .all(|(field, values)| b.get(field).is_none_or(|others| !values.intersect(others).is_empty()));
    let shares_addresses = a.addresses().iter().zip(b.addresses()).all(|((_, a), (_, b))| match (a, b) {
        (Some(a), Some(b)) => !a.v4.intersect(&b.v4).is_empty() || !a.v6.intersect(&b.v6).is_empty(),
        _ => true,
    });
    // A packet with an IP header has the ethertype of one.
    let is_ip = |ether_type: u32| matches!(ether_type, 0x0800 | 0x86dd);
    let ether_types = b.get(packet::Field::EtherType);
    let needs_other = ether_types
        .is_some_and(|types| ![0x0800u32, 0x86dd].into_iter().any(|one| is_ip(one) && types.contains(one)));
    shares_values && shares_addresses && !(a.needs_ip() && needs_other)
}

#[cfg(test)]
mod tests {
    use control::{RuntimeOwner, RuntimeRequest, RuntimeRule};
    use device_model::DeviceModel;
    use policy::{NoFiles, Source};

    use super::*;

    fn policy(sources: &str) -> Policy {
        let text = format!(
            "version = 1\n[protect]\nports = '22/tcp'\nprotocols = []\n{sources}\n[runtime]\nbefore = 'ssh'\n\
             matches = ['protocol dst_port', 'src']\nactions = ['drop']\nrules = 10_000\n\
             [[rules]]\nname = 'ssh'\nmatch = {{ protocol = 'tcp', dst_port = 22 }}\naction = 'kernel'\n"
        );
        policy::parse(&Source::new("p.toml", text), &NoFiles).expect("a policy").0
    }

    #[test]
    fn many_rules_are_compared_and_none_is_removed_for_want_of_time() {
        let policy = policy("sources = '10.3.0.7'");
        let program = compiler::compile(&policy, &DeviceModel::ideal(), 1).expect("it compiles");
        let allowed = program.runtime.as_ref().expect("[runtime]");
        let udp = |port: u16| RuntimeMatch {
            protocol: Some(program::ProtocolNumber(17)),
            dst_port: Some(port),
            ..RuntimeMatch::default()
        };
        let taker = RuntimeMatch { src: "10.3.0.7".parse().ok(), ..RuntimeMatch::default() };
        let mut store = RuntimeStore::default();
        for (number, matches) in (1..=5000).map(udp).chain([taker]).enumerate() {
            let rule = RuntimeRule { id: format!("r{number}").into(), matches, ..RuntimeRule::default() };
            let owner = RuntimeOwner { uid: 0, rules_max: None };
            store
                .apply(vec![RuntimeRequest::Add(rule)], allowed, owner, Instant::now())
                .expect("it is allowed");
        }
        let index = index_for(&policy, &takers(&store, Some(allowed)));
        let compared = |patience| compare(store.rules(), &policy, index.as_ref(), &program, patience);
        let all = compared(Duration::from_secs(60));
        assert_eq!((all.taking.len(), all.open.len()), (1, 0));
        assert!(all.taking["r5000"].contains("for example 10.3.0.7"), "{:?}", all.taking);
        let none = compared(Duration::ZERO);
        assert_eq!((none.taking.len(), none.open.len()), (0, 5001));
    }

    #[test]
    fn policies_protect_alike_if_their_earlier_rules_and_protected_packets_are_the_same() {
        let one = policy("sources = '10.3.0.7'");
        assert!(protects_alike(&one, &policy("sources = '10.3.0.7'")));
        assert!(!protects_alike(&one, &policy("sources = '10.3.0.8'")));
    }
}
