//! A change of the rules at run time: checked as a whole, then given to the workers and, where it must be, to
//! the device; taken back everywhere if one of them does not take it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use control::{AppliedRequests, RUNTIME_REFUSALS_MAX, RuntimeOwner, RuntimeRequest, RuntimeRule, StoredRule};
use policy::Policy;
use program::RuntimeRules;
use worker::Traffic;

use super::overtaking::Precedence;
use super::{LiveRules, Rules, since};
use crate::api::request::Refused;
use crate::api::rules::{
    Caller, ChangesRefused, RefusedRule, RuleBody, RuleChanges, RulesChanged, rule_id, rule_times,
};
use crate::daemon::board::PolicyInForce;
use crate::policy_file::{is_quoted, quoted};

impl LiveRules {
    /// Refuses a caller who may change no rule. Does not wait for changes.
    pub(crate) fn may_change(&self, caller: Caller) -> Result<(), Refused> {
        let in_force = Arc::clone(&self.observer.board.read().policy);
        match &in_force.policy {
            Some(policy) => owner(caller, policy).map(|_| ()),
            None if caller.is_admin => Ok(()),
            None => Err(not_allowed()),
        }
    }

    /// Makes all of the changes or none. When it returns, workers act by them, and so does the device where
    /// only that can.
    pub(crate) fn change(
        &self,
        caller: Caller,
        changes: RuleChanges,
    ) -> Result<RulesChanged, ChangesRefused> {
        let begun = Instant::now();
        let mut rules = self.lock_soon()?;
        if rules.is_ending {
            return Err(Refused::new(503, "the daemon is ending").into());
        }
        let in_force = Arc::clone(&self.observer.board.read().policy);
        let (Some(allowed), Some(policy)) = (&in_force.program.runtime, &in_force.policy) else {
            return Err(not_allowed().into());
        };
        let owner = owner(caller, policy)?;
        self.take_left_device(&mut rules);
        rules.check_protected(policy, &in_force.inputs.sha256, &changes.add)?;
        let has_times = changes.add.iter().any(|body| body.ttl_seconds.is_some());
        let Requests { list: requests, flushed, to_remove } = requests(&rules, owner, changes, allowed)?;
        let ids: Vec<Arc<str>> = requests.iter().map(|request| Arc::clone(request.id())).collect();
        let needed_before = rules.needed(allowed).len();
        let applied = rules.store.apply(requests, allowed, owner, Instant::now()).map_err(|refused| {
            let rules = refused.iter().map(|(place, why)| RefusedRule {
                add: place.checked_sub(flushed + to_remove),
                remove: place.checked_sub(flushed).filter(|place| *place < to_remove),
                id: ids[*place].to_string(),
                error: why.to_string(),
                witness: None,
            });
            let sentences = refused.iter().map(|(place, why)| format!("change {place}: {why}"));
            ChangesRefused::with_sentences(409, rules.collect(), sentences.collect())
        })?;
        let added: Vec<Arc<str>> = applied.added_ids().cloned().collect();
        let left_slots = self.begin_counts(&mut rules, &applied);
        let summary = RulesChanged {
            added: applied.added,
            unchanged: applied.unchanged,
            removed: applied.removed,
            absent: applied.absent,
            ..RulesChanged::default()
        };
        // What is added comes into force before what is removed leaves, wherever each acts.
        let sent = self.send_to_workers(&mut rules, Some(allowed), applied.additions(), &applied.leaving());
        if let Err(error) = sent {
            self.take_back(&mut rules, allowed, applied);
            return Err(Refused::new(503, error.to_string()).into());
        }
        if let Err(refused) = self.follow_in_device(&mut rules, &in_force, needed_before, &added) {
            self.take_back(&mut rules, allowed, applied);
            return Err(refused.into());
        }
        // All that are added were compared with what is protected, those that were there already included.
        let compared: HashSet<&Arc<str>> = ids.iter().skip(flushed + to_remove).collect();
        rules.open.retain(|id| !compared.contains(id));
        let mut last_changes = rules.withhold_open();
        last_changes.extend(applied.removals());
        let removed = self.send_to_workers(&mut rules, Some(allowed), &last_changes, &[]);
        self.end_counts(&mut rules, &left_slots);
        let is_changed = summary.added + summary.removed > 0 || (has_times && summary.unchanged > 0);
        rules.revision += u64::from(is_changed);
        removed.map_err(|error| {
            Refused::new(
                503,
                format!("the rules are changed, but {error}: it removes rules when it responds"),
            )
        })?;
        let microseconds = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        let in_device = rules.in_device().len();
        Ok(RulesChanged { rules: rules.store.len(), in_device, microseconds, ..summary })
    }

    /// Lets rules that were added count from 0, or go on where one of their id has counted. Returns the slots
    /// that replaced rules leave, in which they count until workers have removed them.
    fn begin_counts(&self, rules: &mut Rules, applied: &AppliedRequests) -> Vec<LeftSlot> {
        let added: Vec<Arc<str>> = applied.added_ids().cloned().collect();
        self.set_bases(rules, &added);
        let replaced: Vec<&StoredRule> = applied.replaced().collect();
        let counted = self.counted_by_workers(&replaced);
        for (stored, counted) in replaced.iter().zip(counted) {
            rules.store.carry(&stored.rule.id, counted.into());
        }
        let mut left = Vec::new();
        for stored in &replaced {
            let stays: Vec<u32> =
                rules.store.get(&stored.rule.id).into_iter().flat_map(StoredRule::slots).collect();
            left.extend(
                stored.slots().filter(|slot| !stays.contains(slot)).map(|slot| (&stored.rule.id, slot)),
            );
        }
        let counts = self.counted_in(left.iter().map(|(_, slot)| *slot));
        left.into_iter()
            .zip(counts)
            .map(|((id, slot), counted)| LeftSlot { id: Arc::clone(id), slot, counted })
            .collect()
    }

    /// Adds what was counted in slots since [`LiveRules::begin_counts`].
    fn end_counts(&self, rules: &mut Rules, left: &[LeftSlot]) {
        let counts = self.counted_in(left.iter().map(|left| left.slot));
        for (LeftSlot { id, counted, .. }, now) in left.iter().zip(counts) {
            rules.store.carry(id, since(now, *counted).into());
        }
    }

    fn take_back(&self, rules: &mut Rules, allowed: &RuntimeRules, applied: AppliedRequests) {
        let changes = rules.store.undo(applied);
        if let Err(error) = self.send_to_workers(rules, Some(allowed), &changes, &[]) {
            tracing::error!("rules at run time: {error}: it is tried again");
        }
    }

    /// Gives the device the rules that only it can enforce, and takes away those that are gone. Rules that it
    /// should have had before the change are tried with it, and do not hold it up. `needed_before`: how many
    /// only it could enforce before the change; `added`: the rules that the change adds.
    fn follow_in_device(
        &self,
        rules: &mut Rules,
        in_force: &PolicyInForce,
        needed_before: usize,
        added: &[Arc<str>],
    ) -> Result<(), Refused> {
        let Some(allowed) = &in_force.program.runtime else { return Ok(()) };
        let max = allowed.device_rules_max as usize;
        let needed = rules.needed(allowed).len();
        // There may be more than a later policy allows; these can still be changed and removed.
        if needed > max && needed > needed_before {
            let why = format!(
                "only the device can enforce these rules, and [runtime] allows {max} of them in the device (hint: \
                 device_rules, or a default that steers packets to workers)"
            );
            return Err(Refused::new(409, why));
        }
        let DeviceAttempts { whole, own } = rules.device_attempts(allowed, added);
        if !differs(&own, rules, in_force) {
            return Ok(());
        }
        if let Some(whole) = whole {
            match self.put_in_device(rules, &whole) {
                Ok(()) => {
                    rules.forget_fault_without_missing(allowed);
                    return Ok(());
                }
                Err(why) if rules.device_fault.is_none() => rules.note_missing(allowed, &why),
                Err(_) => {}
            }
        }
        if !differs(&own, rules, in_force) {
            return Ok(());
        }
        self.put_in_device(rules, &own).map_err(|why| {
            Refused::new(
                409,
                format!("the device cannot enforce these rules, and workers do not see their packets: {why}"),
            )
        })
    }
}

/// The rules that the device is to have after a change.
#[derive(Debug, PartialEq, Eq)]
struct DeviceAttempts {
    /// With rules that it should have had before the change; `None`: there are none, or no room for any.
    whole: Option<HashSet<Arc<str>>>,
    /// Without them.
    own: HashSet<Arc<str>>,
}

/// A slot that a replaced rule leaves.
struct LeftSlot {
    id: Arc<str>,
    slot: u32,
    /// The count that is carried already.
    counted: Traffic,
}

impl Rules {
    /// `added`: the rules that a change adds, which the device must have if only it can enforce them.
    fn device_attempts(&self, allowed: &RuntimeRules, added: &[Arc<str>]) -> DeviceAttempts {
        let max = allowed.device_rules_max as usize;
        let precedence = Precedence { store: &self.store, forms: &allowed.forms };
        let held = self.in_device();
        let (own, mut missing): (HashSet<Arc<str>>, Vec<Arc<str>>) = {
            let is_own = |id: &Arc<str>| held.contains(id) || added.contains(id);
            let (own, missing): (Vec<_>, Vec<_>) = self.only_in_device(allowed).into_iter().partition(is_own);
            (precedence.closed(own.into_iter().collect()), missing)
        };
        let with_held = |needed: &HashSet<Arc<str>>| {
            let wanted: HashSet<Arc<str>> = needed.union(&held).cloned().collect();
            if wanted.len() > max.max(needed.len()) || !precedence.is_closed_with(&wanted, added) {
                let ranked = self.hot.ranked(held.iter().cloned().collect());
                precedence.filled(needed, &ranked, max)
            } else {
                wanted
            }
        };
        missing.retain(|id| !own.contains(id));
        missing.sort_unstable();
        missing.truncate(max.saturating_sub(own.len()));
        let all = own.iter().cloned().chain(missing.iter().cloned()).collect();
        let all = (!missing.is_empty()).then(|| precedence.closed(all)).filter(|all| all.len() <= max);
        DeviceAttempts { whole: all.map(|all| with_held(&all)), own: with_held(&own) }
    }
}

/// Whether the device's rules are other ones than these. A rule that was replaced is not marked as in the
/// device.
pub(super) fn differs(wanted: &HashSet<Arc<str>>, rules: &Rules, in_force: &PolicyInForce) -> bool {
    let installed = in_force.program.rules.iter().filter(|rule| is_quoted(&rule.name));
    let installed: HashSet<&str> = installed.map(|rule| rule.name.as_str()).collect();
    let mut names = HashSet::new();
    for id in wanted {
        let Some(stored) = rules.store.get(id) else { continue };
        if !stored.in_device {
            return true;
        }
        let [forward, reverse] = quoted(id);
        names.insert(forward);
        names.extend(stored.rule.both_directions.then_some(reverse));
    }
    installed.len() != names.len() || installed.iter().any(|name| !names.contains(*name))
}

fn not_allowed() -> Refused {
    Refused::new(409, "the policy in force allows no rules at run time (hint: add [runtime] to it)")
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

/// The changes as requests to the store: `flushed` of them remove rules by `flush`, then `to_remove` by their
/// ids, and the others add rules.
struct Requests {
    list: Vec<RuntimeRequest>,
    flushed: usize,
    to_remove: usize,
}

fn requests(
    rules: &Rules,
    owner: RuntimeOwner,
    changes: RuleChanges,
    allowed: &RuntimeRules,
) -> Result<Requests, ChangesRefused> {
    let mut requests = Vec::with_capacity(changes.remove.len() + changes.add.len());
    if changes.flush {
        let of = changes.owner.or(owner.rules_max.map(|_| owner.uid));
        let flushed = rules.store.rules().filter(|stored| of.is_none_or(|uid| stored.rule.owner == uid));
        requests.extend(flushed.map(|stored| RuntimeRequest::Remove(Arc::clone(&stored.rule.id))));
    }
    let (flushed, to_remove) = (requests.len(), changes.remove.len());
    requests.extend(changes.remove.iter().map(|id| RuntimeRequest::Remove(id.as_str().into())));
    let (mut refused, mut status) = (Vec::new(), 400);
    for (place, body) in changes.add.into_iter().enumerate() {
        let id = rule_id(&body);
        match runtime_rule(body, owner.uid, allowed) {
            Ok(rule) => requests.push(RuntimeRequest::Add(rule)),
            Err(why) => {
                status = why.status;
                let error = why.why;
                refused.push(RefusedRule { add: Some(place), remove: None, id, error, witness: None });
                if refused.len() == RUNTIME_REFUSALS_MAX {
                    break;
                }
            }
        }
    }
    if !refused.is_empty() {
        return Err(ChangesRefused::of_rules(status, refused));
    }
    Ok(Requests { list: requests, flushed, to_remove })
}

/// A rule with the number of its action.
pub(super) fn runtime_rule(
    body: RuleBody,
    owner: u32,
    allowed: &RuntimeRules,
) -> Result<RuntimeRule, Refused> {
    let id = rule_id(&body);
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
    let times = rule_times(&body);
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

#[cfg(test)]
mod tests {
    use control::RuntimeRequest;
    use program::{RuleId, RuntimeAction, RuntimeFields, RuntimeForm, RuntimeMatch, Verdict};

    use super::*;

    /// Rules on a source, which only the device can enforce, of which it has some.
    fn rules(ids: &[&str], in_device: &[&str], device_rules_max: u32) -> (Rules, RuntimeRules) {
        let action = RuntimeAction {
            text: "drop".to_owned(),
            verdict: Verdict::Drop,
            sinks: Vec::new(),
            by_workers: vec![false],
        };
        let form = RuntimeFields { src: 32, is_v6: Some(false), ..RuntimeFields::default() };
        let allowed = RuntimeRules {
            before: RuleId(0),
            forms: vec![RuntimeForm::of(form)],
            actions: vec![Some(action)],
            subject: Vec::new(),
            rules_max: 100,
            device_rules_max,
        };
        let mut rules = Rules::default();
        for (number, id) in ids.iter().enumerate() {
            let src = format!("192.0.2.{number}").parse().expect("an address");
            let rule = RuntimeRule {
                id: Arc::from(*id),
                matches: RuntimeMatch { src: Some(src), ..RuntimeMatch::default() },
                ..RuntimeRule::default()
            };
            let owner = RuntimeOwner { uid: 0, rules_max: None };
            rules
                .store
                .apply(vec![RuntimeRequest::Add(rule)], &allowed, owner, Instant::now())
                .expect("it is allowed");
        }
        in_device.iter().for_each(|id| rules.store.set_in_device(id, true));
        (rules, allowed)
    }

    fn set(ids: &[&str]) -> HashSet<Arc<str>> {
        ids.iter().copied().map(Arc::from).collect()
    }

    #[test]
    fn a_rule_that_is_missing_in_the_device_does_not_hold_up_changes() {
        let (all, allowed) = rules(&["a", "b", "new"], &["a"], 10);
        let attempts = all.device_attempts(&allowed, &[Arc::from("new")]);
        assert_eq!(
            attempts,
            DeviceAttempts { whole: Some(set(&["a", "b", "new"])), own: set(&["a", "new"]) }
        );
        // Of too little room the change has precedence, then the first ones.
        let (all, allowed) = rules(&["a", "b", "c", "new"], &["a"], 3);
        let attempts = all.device_attempts(&allowed, &[Arc::from("new")]);
        assert_eq!(
            attempts,
            DeviceAttempts { whole: Some(set(&["a", "b", "new"])), own: set(&["a", "new"]) }
        );
        let (all, allowed) = rules(&["a", "b", "new"], &["a"], 2);
        let attempts = all.device_attempts(&allowed, &[Arc::from("new")]);
        assert_eq!(attempts, DeviceAttempts { whole: None, own: set(&["a", "new"]) });
        // Those that are there stay beyond a smaller limit.
        let (all, allowed) = rules(&["a", "b"], &["a", "b"], 1);
        let attempts = all.device_attempts(&allowed, &[]);
        assert_eq!(attempts, DeviceAttempts { whole: None, own: set(&["a", "b"]) });
    }
}
