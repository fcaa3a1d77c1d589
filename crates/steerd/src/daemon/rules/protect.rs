//! Whether rules at run time take packets that `[protect]` leaves to the host: asked of each rule that is
//! added, and of all rules when another policy comes into force.

use std::collections::HashMap;
use std::sync::Arc;

use analysis::Protected;
use control::{RUNTIME_REFUSALS_MAX, RuntimeStore};
use policy::Policy;
use program::{Match, Program, RuntimeMatch};

use crate::api::rules::{ChangesRefused, RefusedRule, RuleBody, rule_id};
use crate::daemon::board::PolicyInForce;
use crate::daemon::rules::Rules;
use crate::describe;

/// The most rules of one call that are compared exactly with protected packets, which takes up to
/// milliseconds each; most rules share no value with them and are not compared.
const COMPARED_MAX: usize = 256;
/// The most rules that are compared exactly when another policy comes into force, which holds up changes of
/// rules meanwhile.
const RECHECKED_MAX: usize = 4096;

/// Why a rule may take protected packets.
enum Taken {
    /// With an example, or why that is not known.
    Packets { why: String, witness: Option<String> },
    /// The limit of exact comparisons.
    TooMany(usize),
}

/// Compares rules at run time with the protected packets of a policy.
struct ProtectedPackets<'p> {
    policy: &'p Policy,
    /// Whether no rule of a form can take a protected packet.
    safe_forms: &'p [bool],
    /// How many rules may still be compared exactly.
    left: usize,
    max: usize,
}

impl<'p> ProtectedPackets<'p> {
    /// `None`: the policy protects nothing, or allows no rules at run time.
    fn of(policy: &'p Policy, safe_forms: &'p [bool], max: usize) -> Option<Self> {
        let protects = policy.protect.as_ref().is_some_and(|protected| !protected.is_empty());
        (protects && policy.runtime.is_some()).then_some(Self { policy, safe_forms, left: max, max })
    }

    fn is_safe(&self, matches: &RuntimeMatch) -> bool {
        let fields = matches.fields().ok();
        let mut forms = self.policy.runtime.iter().flat_map(|runtime| &runtime.forms);
        let form = forms.position(|form| Some(*form) == fields);
        form.is_none_or(|form| self.safe_forms.get(form).copied().unwrap_or(false))
    }

    /// Compares a rule that takes packets from the host.
    fn check(&mut self, matches: RuntimeMatch, both_directions: bool) -> Result<(), Taken> {
        let reverse = both_directions.then(|| matches.reversed());
        for matches in [Some(matches), reverse].into_iter().flatten() {
            if self.is_safe(&matches) {
                continue;
            }
            let wide = matches.to_match();
            let protected = self.policy.protect.as_deref().unwrap_or_default();
            if protected.iter().all(|protected| !may_share(&wide, &protected.matches)) {
                continue;
            }
            self.left = self.left.checked_sub(1).ok_or(Taken::TooMany(self.max))?;
            if let Some(taken) = taken(self.policy, wide) {
                return Err(taken);
            }
        }
        Ok(())
    }
}

impl Rules {
    /// Refuses rules that take packets which `[protect]` leaves to the host, each with such a packet.
    pub(super) fn check_protected(
        &mut self,
        policy: &Policy,
        sha256: &str,
        added: &[RuleBody],
    ) -> Result<(), ChangesRefused> {
        if self.safe_forms_of != sha256 {
            self.safe_forms = analysis::forms_without_protected(policy);
            sha256.clone_into(&mut self.safe_forms_of);
        }
        let Some(mut packets) = ProtectedPackets::of(policy, &self.safe_forms, COMPARED_MAX) else {
            return Ok(());
        };
        let mut refused = Vec::new();
        for (place, body) in added.iter().enumerate().filter(|(_, body)| body.action != KERNEL) {
            let Err(taken) = packets.check(body.matches, body.both) else { continue };
            let (error, witness) = match taken {
                Taken::Packets { why, witness } => (format!("rule `{}` {why}", rule_id(body)), witness),
                Taken::TooMany(max) => {
                    let why = format!(
                        "more than {max} rules have fields in common with [protect] (hint: add fewer at a \
                         time, or let `before` of [runtime] name a rule behind those that leave the protected \
                         packets to the host)"
                    );
                    (why, None)
                }
            };
            refused.push(RefusedRule { add: Some(place), remove: None, id: rule_id(body), error, witness });
            if refused.len() == RUNTIME_REFUSALS_MAX {
                break;
            }
        }
        if refused.is_empty() {
            return Ok(());
        }
        Err(ChangesRefused::of_rules(409, refused, |rule| rule.error.clone()))
    }
}

impl Rules {
    /// The rules that may take protected packets of the policy in force, each with the reason.
    pub(super) fn taking_protected(&self, in_force: &PolicyInForce) -> HashMap<Arc<str>, String> {
        let Some(policy) = in_force.policy.as_deref().filter(|_| !self.store.is_empty()) else {
            return HashMap::new();
        };
        let safe_forms = analysis::forms_without_protected(policy);
        taking_protected(&self.store, policy, &safe_forms, &in_force.program)
    }
}

/// The action that leaves packets to the host.
const KERNEL: &str = "kernel";

/// The rules of a store that may take protected packets of a policy, each with the reason. `program`: of
/// which the rules name the actions.
pub(super) fn taking_protected(
    store: &RuntimeStore,
    policy: &Policy,
    safe_forms: &[bool],
    program: &Program,
) -> HashMap<Arc<str>, String> {
    let Some(mut packets) = ProtectedPackets::of(policy, safe_forms, RECHECKED_MAX) else {
        return HashMap::new();
    };
    let actions = program.runtime.as_ref().map(|runtime| runtime.actions.as_slice()).unwrap_or_default();
    let is_kernel = |action: u8| {
        actions
            .get(usize::from(action))
            .is_some_and(|action| action.as_ref().is_some_and(|one| one.text == KERNEL))
    };
    let taking = store.rules().filter(|stored| !is_kernel(stored.rule.action)).filter_map(|stored| {
        let rule = &stored.rule;
        let why = match packets.check(rule.matches, rule.both_directions) {
            Ok(()) => return None,
            Err(Taken::Packets { why, .. }) => why,
            Err(Taken::TooMany(max)) => {
                format!("has fields in common with [protect], and more than {max} rules have")
            }
        };
        Some((Arc::clone(&rule.id), why))
    });
    taking.collect()
}

/// Whether packets of a rule are protected, by the exact analysis of a policy that has it behind the rules
/// before it: in words, with a packet.
fn taken(policy: &Policy, matches: Match) -> Option<Taken> {
    let found = analysis::protection_from_rule(policy, matches);
    policy.protect.iter().flatten().zip(found).find_map(|(protected, found)| {
        let name = format!("`{}` (line {})", protected.name, protected.place.line());
        let (why, witness) = match found {
            Protected::Safe => return None,
            Protected::Missed(missed) => {
                let witness = describe::witness(&missed.witness);
                let why = format!(
                    "takes packets that [protect] leaves to the host by {name}, for example {witness}"
                );
                (why, Some(witness))
            }
            Protected::NotDecided(why) => {
                (format!("may take packets of {name} of [protect], which is not known: {why}"), None)
            }
        };
        Some(Taken::Packets { why, witness })
    })
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
