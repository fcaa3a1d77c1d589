//! The rules at run time of the running daemon: changes that clients ask for go to the workers at once, and
//! to the device where only that can enforce them or where it pays.
//!
//! One lock is held over each change, whether of rules or of the policy, so a reload finds the rules and a
//! change finds the policy as they are. Nothing here is on the packet path.

mod change;
mod hot;
mod saved;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use control::{RuntimeStore, StoredRule};
use policy::Policy;
use program::{Program, RuntimeChange, RuntimeMatch, RuntimeRules};
use worker::Traffic;

use crate::api::request::Refused;
use crate::api::rules::{RuleBody, RuleList, RuleRow};
use crate::daemon::Error;
use crate::daemon::dataplane::{Cause, Commands};
use crate::daemon::observer::Observer;
use crate::message::chain;
use crate::policy_file::{self, Counters, DeviceRule, Read, Running, quoted};
use crate::state::State;
use hot::Hot;

/// How long a worker may take to apply changes.
const WORKER_PATIENCE: Duration = Duration::from_secs(5);
/// How long a change of rules waits for a reload, or for another change.
const CHANGE_PATIENCE: Duration = Duration::from_secs(10);
/// How long the end waits for a change, which may wait for a device that does not respond.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// The most rules of a list.
const LISTED_MAX: usize = 10_000;

/// The rules, and what is needed to bring them into force.
pub(crate) struct LiveRules {
    observer: Arc<Observer>,
    commands: Commands,
    /// Where they are kept over restarts.
    file: Option<PathBuf>,
    state: Mutex<Rules>,
}

/// The rules under their lock.
#[derive(Default)]
pub(crate) struct Rules {
    pub(crate) store: RuntimeStore,
    /// The room that workers have; 0: they have no table yet.
    capacity: u32,
    /// A worker has not followed a change: all get all rules anew.
    is_out_of_step: bool,
    hot: Hot,
    /// By form, whether no rule of it can take a protected packet; of the policy with that hash.
    safe_forms: Vec<bool>,
    safe_forms_of: String,
    /// The rules have changed since they were saved.
    is_unsaved: bool,
}

impl LiveRules {
    pub(crate) fn new(observer: Arc<Observer>, commands: Commands, file: Option<PathBuf>) -> Self {
        let rules = Self { observer, commands, file, state: Mutex::default() };
        rules.restore();
        rules
    }

    /// The rules, which nobody changes while the guard lives. For reloads, which wait as long as it takes.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Rules> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_soon(&self) -> Result<MutexGuard<'_, Rules>, Refused> {
        let busy = || Refused::new(503, "the policy is being changed (hint: try again later)");
        self.lock_within(CHANGE_PATIENCE).ok_or_else(busy)
    }

    /// `None`: a change takes longer than `patience`.
    fn lock_within(&self, patience: Duration) -> Option<MutexGuard<'_, Rules>> {
        let begun = Instant::now();
        loop {
            match self.state.try_lock() {
                Ok(rules) => return Some(rules),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if begun.elapsed() < patience => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(TryLockError::WouldBlock) => return None,
            }
        }
    }

    /// To be called after a policy was installed, with the lock that was held meanwhile: rules that it does
    /// not allow are removed.
    pub(crate) fn follow_policy(&self, rules: &mut Rules) {
        let in_force = Arc::clone(&self.observer.board.read().policy);
        let allowed = in_force.program.runtime.as_ref();
        let (gone, changes) = rules.store.retain_allowed(allowed);
        if !gone.is_empty() {
            let ids: Vec<&str> = gone.iter().take(5).map(|stored| &*stored.rule.id).collect();
            let count = gone.len();
            tracing::warn!(
                "{count} rules at run time are removed, as the policy does not allow them: {}",
                ids.join(", ")
            );
        }
        rules.is_unsaved |= !gone.is_empty();
        rules.note_device(&in_force.program);
        if let Err(error) = self.tell_workers(rules, allowed, &changes) {
            tracing::error!("rules at run time: {error}");
        }
    }

    /// Brings changes to all workers, or gives them all rules anew.
    fn tell_workers(
        &self,
        rules: &mut Rules,
        allowed: Option<&RuntimeRules>,
        changes: &[RuntimeChange],
    ) -> Result<(), worker::WorkerIsLate> {
        let wanted = allowed.map_or(0, |allowed| allowed.rules_max).max(rules.store.slots());
        let is_renewed = wanted > rules.capacity || rules.is_out_of_step;
        if wanted == 0 || (!is_renewed && changes.is_empty()) {
            return Ok(());
        }
        rules.is_out_of_step = true;
        for entry in &self.observer.workers {
            if is_renewed {
                entry.control.replace_runtime_rules(wanted, rules.store.entries(), WORKER_PATIENCE)?;
            } else {
                entry.control.change_runtime_rules(changes, WORKER_PATIENCE)?;
            }
        }
        rules.is_out_of_step = false;
        rules.capacity = rules.capacity.max(wanted);
        Ok(())
    }

    /// Installs the policy in force with these rules in the device.
    fn install(&self, device_rules: &[DeviceRule]) -> Result<(), String> {
        let in_force = Arc::clone(&self.observer.board.read().policy);
        let Some(policy) = &in_force.policy else { return Err("the policy allows no rules".to_owned()) };
        let workers = self.observer.worker_count();
        let profile = self.observer.opened.profile(workers);
        let read = Read {
            policy: Policy::clone(policy),
            warnings: Vec::new(),
            inputs: Arc::clone(&in_force.inputs),
        };
        let weights = Counters::of_weights(in_force.weights.clone()).weights(policy);
        let running = Running {
            program: &in_force.program,
            counters: None,
            device_rules: &|_policy| device_rules.to_vec(),
            is_same_policy: true,
        };
        let compiled =
            policy_file::compile_weighted(read, weights.as_ref(), &profile, Some(workers), Some(&running));
        let compiled = compiled.and_then(policy_file::Compiled::into_installable);
        let compiled = compiled.map_err(|diagnostics| {
            let first = diagnostics.list.iter().find(|one| one.severity == policy::Severity::Error);
            first.map_or_else(|| policy_file::error_count(&diagnostics), ToString::to_string)
        })?;
        match self.commands.install(compiled, Cause::Rules) {
            Ok(_) => Ok(()),
            Err(error @ Error::Stopping) => Err(error.to_string()),
            Err(error) => Err(chain(&error)),
        }
    }

    /// Has the device enforce these rules and no others.
    fn put_in_device(&self, rules: &mut Rules, ids: &HashSet<Arc<str>>) -> Result<(), String> {
        let chosen: Vec<DeviceRule> = {
            let program = Arc::clone(&self.observer.board.read().policy.program);
            let stored = ids.iter().filter_map(|id| rules.store.get(id));
            let mut chosen: Vec<DeviceRule> =
                stored.filter_map(|stored| device_rule(stored, &program)).collect();
            chosen.sort_by(|a, b| a.id.cmp(&b.id));
            chosen
        };
        self.install(&chosen)?;
        rules.note_device(&self.observer.board.read().policy.program);
        Ok(())
    }

    /// The rules, or one of them, with their counters. `state`: of the daemon, for what the device counts.
    pub(crate) fn list(&self, id: Option<&str>, state: &State) -> Result<RuleList, Refused> {
        let rules = self.lock_soon()?;
        let in_force = Arc::clone(&self.observer.board.read().policy);
        let mut chosen: Vec<&StoredRule> = match id {
            None => rules.store.rules().collect(),
            Some(id) => rules.store.get(id).into_iter().collect(),
        };
        if let Some(id) = id.filter(|_| chosen.is_empty()) {
            return Err(Refused::new(404, format!("there is no rule `{id}` at run time")));
        }
        let count = rules.store.len();
        chosen.sort_unstable_by(|a, b| a.rule.id.cmp(&b.rule.id));
        chosen.truncate(LISTED_MAX);
        let traffic = self.traffic(&chosen, state);
        let (now, allowed) = (Instant::now(), in_force.program.runtime.as_ref());
        let rows = chosen.iter().zip(traffic).map(|(stored, traffic)| row(stored, traffic, allowed, now));
        Ok(RuleList { count, rules: rows.collect() })
    }

    /// The packets of each of these rules, counted by workers and by the device.
    fn traffic(&self, rules: &[&StoredRule], state: &State) -> Vec<Traffic> {
        let mut sums = vec![Traffic::default(); rules.len()];
        for entry in &self.observer.workers {
            let slots = rules.iter().flat_map(|stored| stored.slots());
            let mut counted = entry.control.runtime_traffic(slots).into_iter();
            for (sum, stored) in sums.iter_mut().zip(rules) {
                counted.by_ref().take(stored.slots().count()).for_each(|traffic| *sum += traffic);
            }
        }
        if rules.iter().any(|stored| stored.in_device) {
            let of_rules: HashMap<&str, Traffic> = state
                .rules
                .iter()
                .map(|rule| (rule.name.as_str(), Traffic { packets: rule.packets(), bytes: rule.bytes() }))
                .collect();
            for (sum, stored) in sums.iter_mut().zip(rules).filter(|(_, stored)| stored.in_device) {
                let names = quoted(&stored.rule.id);
                names
                    .iter()
                    .filter_map(|name| of_rules.get(name.as_str()))
                    .for_each(|traffic| *sum += *traffic);
            }
        }
        sums
    }

    /// Once a second: ends rules whose time is over, moves hot rules into the device, saves.
    pub(crate) fn tick(&self) {
        let mut rules = self.lock();
        if !rules.store.is_empty() {
            self.expire(&mut rules);
            self.promote(&mut rules);
        }
        self.save(&mut rules);
    }

    fn expire(&self, rules: &mut Rules) {
        let now = Instant::now();
        if rules.store.next_due().is_none_or(|due| due > now) {
            return;
        }
        // Read once: the counters of the device take a query.
        let has_device =
            rules.store.rules().any(|stored| stored.in_device && stored.rule.idle_timeout.is_some());
        let state = if has_device { self.observer.state() } else { State::default() };
        let packets = |stored: &StoredRule| self.traffic(&[stored], &state)[0].packets;
        let (gone, changes) = rules.store.expire(now, packets);
        if gone.is_empty() {
            return;
        }
        rules.is_unsaved = true;
        let in_force = Arc::clone(&self.observer.board.read().policy);
        if let Err(error) = self.tell_workers(rules, in_force.program.runtime.as_ref(), &changes) {
            tracing::error!("rules at run time that have ended: {error}");
        }
        if gone.iter().any(|stored| stored.in_device) {
            let left = rules.in_device();
            if let Err(why) = self.put_in_device(rules, &left) {
                tracing::error!("rules at run time that have ended stay in the device: {why}");
            }
        }
        tracing::debug!("{} rules at run time have ended", gone.len());
    }
}

impl Rules {
    /// Notes which rules the program on the device has.
    fn note_device(&mut self, program: &Program) {
        let names: HashSet<&str> = program.rules.iter().map(|rule| rule.name.as_str()).collect();
        let ids: Vec<(Arc<str>, bool)> = self
            .store
            .rules()
            .map(|stored| (Arc::clone(&stored.rule.id), names.contains(quoted(&stored.rule.id)[0].as_str())))
            .collect();
        ids.iter().for_each(|(id, in_device)| self.store.set_in_device(id, *in_device));
    }

    /// The rules that act in the device.
    fn in_device(&self) -> HashSet<Arc<str>> {
        let in_device = self.store.rules().filter(|stored| stored.in_device);
        in_device.map(|stored| Arc::clone(&stored.rule.id)).collect()
    }

    /// The rules that are to act in the device under a policy: those that do, and those that only the device
    /// can enforce then. `program`: the one in force, whose actions the rules name by number.
    pub(crate) fn for_device(&self, policy: &Policy, program: &Program) -> Vec<DeviceRule> {
        let Some(runtime) = &policy.runtime else { return Vec::new() };
        let by_workers: Vec<Vec<bool>> =
            runtime.actions.iter().map(|(_, action)| analysis::forms_of_workers(policy, *action)).collect();
        let form_of = |matches: &RuntimeMatch| {
            let fields = matches.fields().ok();
            runtime.forms.iter().position(|form| Some(*form) == fields)
        };
        let needs_device = |rule: &DeviceRule| {
            let Some(action) = runtime.actions.iter().position(|(text, _)| *text == rule.action) else {
                return false;
            };
            let reverse = rule.both_directions.then(|| rule.matches.reversed());
            let mut forms =
                [Some(rule.matches), reverse].into_iter().flatten().filter_map(|one| form_of(&one));
            forms.any(|form| !by_workers[action][form])
        };
        let is_allowed = |rule: &DeviceRule| {
            form_of(&rule.matches).is_some()
                && (!rule.both_directions || form_of(&rule.matches.reversed()).is_some())
        };
        let chosen = self.store.rules().filter_map(|stored| {
            let rule = device_rule(stored, program)?;
            (stored.in_device || needs_device(&rule)).then_some(rule)
        });
        let mut chosen: Vec<DeviceRule> = chosen.filter(is_allowed).collect();
        chosen.sort_by(|a, b| a.id.cmp(&b.id));
        chosen
    }
}

/// Whether workers can enforce a rule without the device.
fn is_by_workers(stored: &StoredRule, allowed: &RuntimeRules) -> bool {
    let rule = &stored.rule;
    allowed.is_enforced_by_workers(rule.action, &rule.matches, rule.both_directions)
}

/// A rule as the policy in force names its action; `None`: that is not allowed any more.
fn device_rule(stored: &StoredRule, program: &Program) -> Option<DeviceRule> {
    let action = program.runtime.as_ref()?.actions.get(usize::from(stored.rule.action))?.as_ref()?;
    Some(DeviceRule {
        id: stored.rule.id.to_string(),
        matches: stored.rule.matches,
        both_directions: stored.rule.both_directions,
        action: action.text.clone(),
    })
}

fn row(stored: &StoredRule, traffic: Traffic, allowed: Option<&RuntimeRules>, now: Instant) -> RuleRow {
    let rule = &stored.rule;
    let by_workers = allowed.is_some_and(|allowed| is_by_workers(stored, allowed));
    let acts_in = match (by_workers, stored.in_device) {
        (true, true) => "both",
        (false, true) => "device",
        (_, false) => "workers",
    };
    RuleRow {
        rule: body(stored, allowed),
        owner: rule.owner,
        acts_in: acts_in.to_owned(),
        packets: traffic.packets,
        bytes: traffic.bytes,
        ends_in_seconds: stored.ends.map(|ends| ends.saturating_duration_since(now).as_secs_f64()),
    }
}

/// A rule as its owner gave it.
fn body(stored: &StoredRule, allowed: Option<&RuntimeRules>) -> RuleBody {
    let rule = &stored.rule;
    let action = allowed.and_then(|allowed| allowed.actions.get(usize::from(rule.action))?.as_ref());
    RuleBody {
        id: Some(rule.id.to_string()),
        matches: rule.matches,
        action: action.map_or_else(String::new, |action| action.text.clone()),
        both: rule.both_directions,
        ttl_seconds: rule.time_to_live.map(|time| time.as_secs_f64()),
        idle_seconds: rule.idle_timeout.map(|time| time.as_secs_f64()),
        comment: rule.comment.clone(),
    }
}
