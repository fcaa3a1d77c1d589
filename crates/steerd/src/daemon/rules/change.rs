//! A change of the rules at run time: checked as a whole, then given to the workers and, where it must be, to
//! the device; taken back everywhere if one of them does not take it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use analysis::Protected;
use control::{AppliedRequests, RuntimeOwner, RuntimeRequest, RuntimeRule, StoredRule};
use policy::Policy;
use program::{Match, RuntimeMatch, RuntimeRules};

use super::{LiveRules, Rules, is_by_workers};
use crate::api::request::Refused;
use crate::api::rules::{Caller, RuleBody, RuleChanges, RulesChanged};
use crate::daemon::board::PolicyInForce;
use crate::describe;

/// The most rules of one call that are compared exactly with protected packets, which takes up to
/// milliseconds each; most rules share no value with them and are not compared.
const COMPARED_MAX: usize = 256;
/// The most refusals that an answer lists.
const SHOWN: usize = 5;

impl LiveRules {
    /// Makes all of the changes or none. When it returns, workers act by them, and so does the device where
    /// only that can.
    pub(crate) fn change(&self, caller: Caller, changes: RuleChanges) -> Result<RulesChanged, Refused> {
        let begun = Instant::now();
        let mut rules = self.lock_soon()?;
        let in_force = Arc::clone(&self.observer.board.read().policy);
        let (Some(allowed), Some(policy)) = (&in_force.program.runtime, &in_force.policy) else {
            let why = "the policy in force allows no rules at run time (hint: add [runtime] to it)";
            return Err(Refused::new(409, why));
        };
        let owner = owner(caller, policy)?;
        rules.check_protected(&in_force, &changes.add)?;
        let requests = requests(&rules, owner, changes, allowed)?;
        let mut applied = rules.store.apply(requests, allowed, owner, Instant::now()).map_err(|refused| {
            let first = refused.iter().take(SHOWN);
            let listed: Vec<String> = first.map(|(place, why)| format!("change {place}: {why}")).collect();
            Refused::new(409, listed.join("; "))
        })?;
        let summary = RulesChanged {
            added: applied.added,
            unchanged: applied.unchanged,
            removed: applied.removed,
            absent: applied.absent,
            ..RulesChanged::default()
        };
        let workers_changes = std::mem::take(&mut applied.changes);
        if let Err(error) = self.tell_workers(&mut rules, Some(allowed), &workers_changes) {
            self.take_back(&mut rules, allowed, applied);
            return Err(Refused::new(503, error.to_string()));
        }
        if let Err(refused) = self.follow_in_device(&mut rules, &in_force) {
            self.take_back(&mut rules, allowed, applied);
            return Err(refused);
        }
        rules.is_unsaved |= summary.added + summary.removed > 0;
        let microseconds = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        let in_device = rules.in_device().len();
        Ok(RulesChanged { rules: rules.store.len(), in_device, microseconds, ..summary })
    }

    fn take_back(&self, rules: &mut Rules, allowed: &RuntimeRules, applied: AppliedRequests) {
        let changes = rules.store.undo(applied);
        if let Err(error) = self.tell_workers(rules, Some(allowed), &changes) {
            // The next change gives all rules anew.
            tracing::error!("rules at run time: {error}");
        }
    }

    /// Gives the device the rules that only it can enforce, and takes away those that are gone.
    pub(super) fn follow_in_device(
        &self,
        rules: &mut Rules,
        in_force: &PolicyInForce,
    ) -> Result<(), Refused> {
        let Some(allowed) = &in_force.program.runtime else { return Ok(()) };
        let needs_device = |stored: &StoredRule| !is_by_workers(stored, allowed);
        let wanted: HashSet<Arc<str>> = rules
            .store
            .rules()
            .filter(|stored| stored.in_device || needs_device(stored))
            .map(|stored| Arc::clone(&stored.rule.id))
            .collect();
        let must = rules.store.rules().filter(|stored| needs_device(stored)).count();
        if must > allowed.device_rules_max as usize {
            let max = allowed.device_rules_max;
            let why = format!(
                "only the device can enforce these rules, and [runtime] allows {max} of them in the device (hint: \
                 device_rules, or a default that steers packets to workers)"
            );
            return Err(Refused::new(409, why));
        }
        if !differs(&wanted, rules, in_force) {
            return Ok(());
        }
        self.put_in_device(rules, &wanted).map_err(|why| {
            Refused::new(
                409,
                format!("the device cannot enforce these rules, and workers do not see their packets: {why}"),
            )
        })
    }
}

/// Whether the device's rules are other ones than these, or have another match or action.
fn differs(wanted: &HashSet<Arc<str>>, rules: &Rules, in_force: &PolicyInForce) -> bool {
    let installed = in_force.program.rules.iter().filter(|rule| rule.name.starts_with('('));
    let installed: HashSet<&str> = installed.map(|rule| rule.name.as_str()).collect();
    let mut names = HashSet::new();
    for id in wanted {
        let Some(stored) = rules.store.get(id) else { continue };
        if !stored.in_device {
            return true;
        }
        let [forward, reverse] = crate::policy_file::quoted(id);
        names.insert(forward);
        names.extend(stored.rule.both_directions.then_some(reverse));
    }
    installed.len() != names.len() || installed.iter().any(|name| !names.contains(*name))
}

/// The caller as the owner of rules.
fn owner(caller: Caller, policy: &Policy) -> Result<RuntimeOwner, Refused> {
    let Caller { uid, is_admin } = caller;
    if is_admin {
        return Ok(RuntimeOwner { uid, rules_max: None });
    }
    let runtime = policy.runtime.as_ref();
    match runtime.and_then(|runtime| runtime.owners.get(&uid)) {
        Some(max) => Ok(RuntimeOwner { uid, rules_max: Some(*max) }),
        None => Err(Refused::new(
            403,
            format!(
                "user id {uid} may not change rules (hint: owners of [runtime], or api.admins in the settings)"
            ),
        )),
    }
}

/// The changes as requests to the store.
fn requests(
    rules: &Rules,
    owner: RuntimeOwner,
    changes: RuleChanges,
    allowed: &RuntimeRules,
) -> Result<Vec<RuntimeRequest>, Refused> {
    let mut requests = Vec::with_capacity(changes.remove.len() + changes.add.len());
    if changes.flush {
        let of = changes.owner.or(owner.rules_max.map(|_| owner.uid));
        let flushed = rules.store.rules().filter(|stored| of.is_none_or(|uid| stored.rule.owner == uid));
        requests.extend(flushed.map(|stored| RuntimeRequest::Remove(Arc::clone(&stored.rule.id))));
    }
    requests.extend(changes.remove.iter().map(|id| RuntimeRequest::Remove(id.as_str().into())));
    for body in changes.add {
        requests.push(RuntimeRequest::Add(runtime_rule(body, owner.uid, allowed)?));
    }
    Ok(requests)
}

/// A rule with the number of its action.
pub(super) fn runtime_rule(
    body: RuleBody,
    owner: u32,
    allowed: &RuntimeRules,
) -> Result<RuntimeRule, Refused> {
    let id = body.id();
    let action = body.action.split_whitespace().collect::<Vec<_>>().join(" ");
    let number = allowed.action(&action).ok_or_else(|| {
        let known: Vec<&str> = allowed.actions.iter().flatten().map(|action| action.text.as_str()).collect();
        let shown: String = action.chars().take(60).collect();
        Refused::new(
            409,
            format!(
                "rule `{id}`: [runtime] does not allow the action `{shown}` (it allows {})",
                known.join(", ")
            ),
        )
    })?;
    let times = body.times();
    let [time_to_live, idle_timeout] = times
        .ok_or_else(|| Refused::new(400, format!("rule `{id}`: a time is a positive number of seconds")))?;
    Ok(RuntimeRule {
        id: id.into(),
        matches: body.matches,
        both_directions: body.both,
        action: number,
        owner,
        comment: body.comment,
        time_to_live,
        idle_timeout,
    })
}

impl Rules {
    /// Refuses rules that take packets which `[protect]` leaves to the host, with such a packet.
    fn check_protected(&mut self, in_force: &PolicyInForce, added: &[RuleBody]) -> Result<(), Refused> {
        let Some(policy) = &in_force.policy else { return Ok(()) };
        let protected = policy.protect.as_deref().unwrap_or_default();
        let Some(runtime) = policy.runtime.as_ref().filter(|_| !protected.is_empty()) else { return Ok(()) };
        if self.safe_forms_of != in_force.inputs.sha256 {
            self.safe_forms = analysis::forms_without_protected(policy);
            self.safe_forms_of.clone_from(&in_force.inputs.sha256);
        }
        let is_safe = |matches: &RuntimeMatch| {
            let fields = matches.fields().ok();
            let form = runtime.forms.iter().position(|form| Some(*form) == fields);
            form.is_none_or(|form| self.safe_forms.get(form).copied().unwrap_or(false))
        };
        let mut compared = 0;
        for body in added.iter().filter(|body| body.action != "kernel") {
            let reverse = body.both.then(|| body.matches.reversed());
            for matches in [Some(body.matches), reverse].into_iter().flatten().filter(|one| !is_safe(one)) {
                let wide = matches.to_match();
                if protected.iter().all(|protected| !may_share(&wide, &protected.matches)) {
                    continue;
                }
                compared += 1;
                if compared > COMPARED_MAX {
                    let why = format!(
                        "more than {COMPARED_MAX} rules have fields in common with [protect] (hint: add fewer at a time, or \
                         let `before` of [runtime] name a rule behind those that leave the protected packets to the host)"
                    );
                    return Err(Refused::new(409, why));
                }
                refuse_taking(policy, &body.id(), wide)?;
            }
        }
        Ok(())
    }
}

/// Refuses a rule by the exact analysis of a policy that has it behind the rules before it.
fn refuse_taking(policy: &Policy, id: &str, matches: Match) -> Result<(), Refused> {
    let found = analysis::protection_from_rule(policy, matches);
    for (protected, found) in policy.protect.iter().flatten().zip(found) {
        let name = format!("`{}` (line {})", protected.name, protected.place.line());
        match found {
            Protected::Safe => {}
            Protected::Missed(missed) => {
                let witness = describe::witness(&missed.witness);
                let why = format!(
                    "rule `{id}` takes packets that [protect] leaves to the host by {name}, for example {witness}"
                );
                return Err(Refused::new(409, why));
            }
            Protected::NotDecided(why) => {
                let why = format!(
                    "rule `{id}`: it is not known whether packets of {name} of [protect] reach the host: {why}"
                );
                return Err(Refused::new(409, why));
            }
        }
    }
    Ok(())
}

/// `false`: no packet can match both.
fn may_share(a: &Match, b: &Match) -> bool {
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
