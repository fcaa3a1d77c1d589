//! The rules at run time of the running daemon: changes that clients ask for go to the workers at once, and
//! to the device where only that can enforce them or where it pays.
//!
//! One lock is held over each change, whether of rules or of the policy, so a reload finds the rules and a
//! change finds the policy as they are. Nothing here is on the packet path.

mod change;
mod choice;
mod extend;
mod hot;
mod overtaking;
mod protect;
mod saved;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use control::{RuntimeStore, StoredRule};
use policy::Policy;
use program::{Program, RuntimeChange, RuntimeEntry, RuntimeRules};
use worker::Traffic;

use crate::api::request::Refused;
use crate::api::rules::{RuleBody, RuleList, RuleRow};
use crate::daemon::Error;
use crate::daemon::dataplane::{Cause, Commands};
use crate::daemon::observer::Observer;
use crate::message::chain;
use crate::policy_file::{self, Counters, DeviceRule, Read, Running, id_of, is_quoted, quoted};
use crate::state::{RuleState, State};
pub(crate) use choice::{DeviceChoice, FormFacts};
use hot::Hot;
use overtaking::Precedence;
use protect::{Compared, KnownProtection};
pub(super) use saved::check as check_saved;
use saved::{SavedRevision, SavedRule};

/// How long a worker may take to apply changes.
const WORKER_PATIENCE: Duration = Duration::from_secs(5);
/// How long a change of rules waits for a reload, or for another change.
const CHANGE_PATIENCE: Duration = Duration::from_secs(10);
/// How long the end waits for a change, which may wait for a device that does not respond.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// How long a worker that was late, which changes wait for, may take at the next attempts.
const LATE_PATIENCE: Duration = Duration::from_millis(500);
/// How long after a refusal the device is asked again, at first and at most.
const DEVICE_REST: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(120)];
/// The most rules of a list.
const LISTED_MAX: usize = 10_000;
/// The most ids of a list in the log.
const LOGGED_MAX: usize = 5;

/// The rules, and what is needed to bring them into force.
pub(crate) struct LiveRules {
    observer: Arc<Observer>,
    commands: Commands,
    /// Where they are kept over restarts.
    file: Option<PathBuf>,
    state: Mutex<Rules>,
    /// How many changes wait for the lock: lists let them go first.
    changes_waiting: AtomicUsize,
    /// The policy on trial was confirmed since the lock was last held.
    is_confirmed: AtomicBool,
    /// Held while the file is written.
    saved: Mutex<SavedRevision>,
}

/// The stage of a trial at a change of the policy, which decides about the rules that it does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrialStage {
    /// The policy is on trial: the rules come back with the one before.
    Begins,
    /// The policy before comes back.
    Ends,
    /// There is no trial.
    None,
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
    protection: KnownProtection,
    /// The rules that are still to be compared with the protected packets of the policy in force.
    open: Vec<Arc<str>>,
    /// Counts the changes of the rules, for the file.
    revision: u64,
    /// The rules that the policy on trial does not allow.
    set_aside: Vec<SavedRule>,
    /// The device has other rules than it should; when it is asked again.
    device_fault: Option<DeviceFault>,
    /// The rules were saved for the last time.
    is_ending: bool,
}

#[derive(Debug)]
struct DeviceFault {
    why: String,
    rest: Duration,
    next: Instant,
}

impl LiveRules {
    pub(crate) fn new(observer: Arc<Observer>, commands: Commands, file: Option<PathBuf>) -> Self {
        let rules = Self {
            observer,
            commands,
            file,
            state: Mutex::default(),
            changes_waiting: AtomicUsize::new(0),
            is_confirmed: AtomicBool::new(false),
            saved: Mutex::default(),
        };
        rules.restore();
        rules
    }

    /// The rules, which nobody changes while the guard lives. For reloads, which wait as long as it takes.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Rules> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a change that a client asks for.
    pub(super) fn lock_soon(&self) -> Result<MutexGuard<'_, Rules>, Refused> {
        self.changes_waiting.fetch_add(1, Ordering::Relaxed);
        let rules = self.lock_within(CHANGE_PATIENCE, || true);
        self.changes_waiting.fetch_sub(1, Ordering::Relaxed);
        rules.ok_or_else(busy)
    }

    /// `None`: a change takes longer than `patience`. `may_try`: nobody else goes first.
    fn lock_within(&self, patience: Duration, may_try: impl Fn() -> bool) -> Option<MutexGuard<'_, Rules>> {
        let begun = Instant::now();
        loop {
            match may_try().then(|| self.state.try_lock()) {
                Some(Ok(rules)) => return Some(rules),
                Some(Err(TryLockError::Poisoned(poisoned))) => return Some(poisoned.into_inner()),
                Some(Err(TryLockError::WouldBlock)) | None if begun.elapsed() < patience => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Some(Err(TryLockError::WouldBlock)) | None => return None,
            }
        }
    }

    /// The analyses of a policy that [`Rules::choose`] needs; `None`: it does not, as there are no rules.
    /// They take long, so they are made before the rules are locked.
    pub(crate) fn facts(&self, policy: &Policy, is_only_planned: bool) -> Option<FormFacts> {
        let in_force = Arc::clone(&self.observer.board.read().policy);
        let rules = self.lock();
        if policy.runtime.is_none() || rules.store.is_empty() {
            return None;
        }
        let is_compared = !is_only_planned
            && !in_force.policy.as_ref().is_some_and(|before| protect::protects_alike(before, policy));
        let takers = is_compared.then(|| protect::takers(&rules.store, in_force.program.runtime.as_ref()));
        drop(rules);
        Some(FormFacts::of(policy, takers.as_deref()))
    }

    /// Notes that the policy on trial stays. Does not wait for changes.
    pub(crate) fn confirm(&self) {
        self.is_confirmed.store(true, Ordering::Release);
    }

    fn forget_confirmed(&self, rules: &mut Rules) {
        if self.is_confirmed.swap(false, Ordering::Acquire) && !rules.set_aside.is_empty() {
            rules.set_aside.clear();
            rules.revision += 1;
        }
    }

    /// To be called after a policy was installed, with the lock that was held meanwhile: removes the rules
    /// that it does not allow, and those that were left out, each with the reason. `before`: the program of
    /// the policy before.
    pub(crate) fn follow_policy(
        &self,
        rules: &mut Rules,
        left_out: &HashMap<Arc<str>, String>,
        before: &Program,
        stage: TrialStage,
    ) {
        self.forget_confirmed(rules);
        let in_force = Arc::clone(&self.observer.board.read().policy);
        let allowed = in_force.program.runtime.as_ref();
        let (mut gone, mut changes) = rules.store.retain_allowed(allowed);
        log_removed(&gone, "as the policy does not allow them", left_out);
        let (others, more) = rules.store.remove_rules(left_out.keys());
        log_removed(&others, "as the policy has precedence", left_out);
        gone.extend(others);
        changes.extend(more);
        rules.revision += u64::from(!gone.is_empty());
        if stage == TrialStage::Begins {
            let (now, allowed) = (Instant::now(), before.runtime.as_ref());
            rules.set_aside = gone.iter().map(|stored| SavedRule::of(stored, allowed, now)).collect();
        }
        rules.note_device(&in_force.program);
        if stage == TrialStage::Ends {
            let back = std::mem::take(&mut rules.set_aside);
            let count = back.len();
            let (added, more) = rules.put_back(back, &in_force);
            self.set_bases(rules, &added);
            let taken = added.len();
            changes.extend(more);
            // The policy that comes back need not be the one under which they were added.
            let Compared { taking: protected, open } =
                if taken > 0 { rules.compare_all(&in_force) } else { Compared::default() };
            rules.open.extend(open);
            let (taking, more) = rules.store.remove_rules(protected.keys());
            log_removed(&taking, "as they may take protected packets", &protected);
            changes.extend(more);
            if count > 0 {
                tracing::info!(
                    "{taken} of {count} rules at run time are back with the policy that allows them"
                );
                rules.revision += 1;
            }
        }
        let withheld = rules.withhold_open();
        let later: HashSet<u32> = withheld.iter().map(RuntimeChange::slot).collect();
        changes.retain(|change| !later.contains(&change.slot()));
        changes.extend(withheld);
        if let Err(error) = self.send_to_workers(rules, allowed, &changes, &[]) {
            tracing::error!("rules at run time: {error}: it is tried again");
        }
        // Rules that came back, or that the device had no room for beside the policy before.
        if let Some(allowed) = allowed
            && (stage == TrialStage::Ends || rules.device_fault.is_some())
        {
            self.put_what_fits(rules, allowed);
        }
    }

    /// Brings changes to all workers, or gives them all rules anew, with those that are `leaving` and have
    /// not left yet.
    fn send_to_workers(
        &self,
        rules: &mut Rules,
        allowed: Option<&RuntimeRules>,
        changes: &[RuntimeChange],
        leaving: &[RuntimeEntry],
    ) -> Result<(), worker::WorkerIsLate> {
        let wanted = allowed.map_or(0, |allowed| allowed.rules_max).max(rules.store.slots());
        let was_late = rules.is_out_of_step;
        let is_renewed = wanted > rules.capacity || was_late;
        if !was_late && (wanted == 0 || (!is_renewed && changes.is_empty())) {
            return Ok(());
        }
        rules.is_out_of_step = true;
        let mut late = None;
        // All of them, however late one is.
        for entry in &self.observer.workers {
            let patience = if was_late || late.is_some() { LATE_PATIENCE } else { WORKER_PATIENCE };
            let sent = if is_renewed {
                let entries = rules.store.entries().chain(leaving.iter().copied());
                entry.control.replace_runtime_rules(wanted, entries, patience)
            } else {
                entry.control.change_runtime_rules(changes, patience)
            };
            if let Err(error) = sent {
                late.get_or_insert(error);
            }
        }
        if is_renewed {
            rules.capacity = wanted;
        }
        if let Some(error) = late {
            return Err(error);
        }
        rules.is_out_of_step = false;
        Ok(())
    }

    /// Installs the policy in force with these rules in the device.
    fn install(&self, device_rules: &[DeviceRule]) -> Result<(), String> {
        let in_force = Arc::clone(&self.observer.board.read().policy);
        let Some(policy) = &in_force.policy else { return Err("the policy allows no rules".to_owned()) };
        let set = Arc::clone(&self.observer.board.read().workers);
        let profile = self.observer.opened.profile(self.observer.worker_count());
        let read = Read {
            policy: Policy::clone(policy),
            warnings: Vec::new(),
            inputs: Arc::clone(&in_force.inputs),
        };
        let weights = Counters::of_weights(in_force.weights.clone()).weights(policy);
        let running = Running {
            program: &in_force.program,
            absent: &set.absent(),
            counters: None,
            device_rules: &|_policy| device_rules.to_vec(),
            proves_room: false,
        };
        let compiled = policy_file::compile_weighted(
            read,
            weights.as_ref(),
            &profile,
            Some(set.known()),
            Some(&running),
        );
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

    /// Has the device enforce the rules that it should, or as many of them as it takes. What is missing is
    /// tried again later.
    fn put_what_fits(&self, rules: &mut Rules, allowed: &RuntimeRules) {
        let in_force = Arc::clone(&self.observer.board.read().policy);
        let room = allowed.device_rules_max as usize;
        let needed = rules.needed(allowed);
        let mut tried = {
            let precedence = Precedence { store: &rules.store, forms: &allowed.forms };
            let ranked = rules.hot.ranked(rules.in_device().into_iter().collect());
            if needed.len() <= room { precedence.filled(&needed, &ranked, room) } else { needed.clone() }
        };
        // Those that are there stay before others come.
        let mut ids: Vec<Arc<str>> = needed.iter().cloned().collect();
        let is_absent = |id: &Arc<str>| rules.store.get(id).is_none_or(|stored| !stored.in_device);
        ids.sort_by_cached_key(|id| (is_absent(id), Arc::clone(id)));
        let present = ids.partition_point(|id| !is_absent(id));
        let mut why = None;
        if ids.len() > room {
            ids.truncate(room);
            tried = Precedence { store: &rules.store, forms: &allowed.forms }
                .closed(ids.iter().cloned().collect());
            why = Some(format!("[runtime] allows {room} of them in the device"));
        }
        while change::differs(&tried, rules, &in_force)
            && let Err(refused) = self.put_in_device(rules, &tried)
        {
            why = Some(refused);
            if tried.is_empty() {
                break;
            }
            // First without the hot ones, then with fewer and fewer of those that are not there, then of all.
            if tried.iter().all(|id| needed.contains(id)) {
                let kept = if ids.len() > present { present } else { 0 };
                ids.truncate(usize::midpoint(kept, ids.len()));
            }
            let precedence = Precedence { store: &rules.store, forms: &allowed.forms };
            tried = precedence.closed(ids.iter().cloned().collect());
        }
        match why {
            Some(why) if rules.missing(allowed) > 0 => rules.note_missing(allowed, &why),
            Some(why) if change::differs(&tried, rules, &in_force) => {
                rules.note_fault(format!("the device has other rules at run time than it should: {why}"));
            }
            _ => rules.device_fault = None,
        }
    }

    /// Has the device enforce these rules and no others.
    fn put_in_device(&self, rules: &mut Rules, ids: &HashSet<Arc<str>>) -> Result<(), String> {
        if self.extend_device(rules, ids)? {
            rules.note_device(&self.observer.board.read().policy.program);
            self.take_left_device(rules);
            return Ok(());
        }
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
        self.take_left_device(rules);
        Ok(())
    }

    /// Adds to the counts of rules what the device has counted for them until they left it.
    fn take_left_device(&self, rules: &mut Rules) {
        for (name, counted) in self.observer.take_left_device() {
            if let Some(id) = id_of(&name) {
                rules.store.carry(id, counted.into());
            }
        }
    }

    /// The rules, or one of them, with their counters. `state`: of the daemon, for what the device counts.
    pub(crate) fn list(&self, id: Option<&str>, state: &State) -> Result<RuleList, Refused> {
        let is_first = || self.changes_waiting.load(Ordering::Relaxed) == 0;
        let mut rules = self.lock_within(CHANGE_PATIENCE, is_first).ok_or_else(busy)?;
        self.take_left_device(&mut rules);
        let in_force = Arc::clone(&self.observer.board.read().policy);
        // A rule that has left the device since that reading would count twice.
        let is_old = state.policy.generation != in_force.generation;
        let newer = is_old.then(|| self.observer.state());
        let state = newer.as_ref().unwrap_or(state);
        let mut chosen: Vec<&StoredRule> = match id {
            None => rules.store.rules().collect(),
            Some(id) => rules.store.get(id).into_iter().collect(),
        };
        if let Some(id) = id.filter(|_| chosen.is_empty()) {
            return Err(Refused::new(404, format!("there is no rule `{id}` at run time")));
        }
        let count = rules.store.len();
        if chosen.len() > LISTED_MAX {
            chosen.select_nth_unstable_by(LISTED_MAX, |a, b| a.rule.id.cmp(&b.rule.id));
            chosen.truncate(LISTED_MAX);
        }
        let traffic = self.traffic(&chosen, &DeviceTraffic::of(Some(state)));
        let (now, allowed) = (Instant::now(), in_force.program.runtime.as_ref());
        let rows = chosen.iter().zip(traffic).map(|(stored, traffic)| row(stored, traffic, allowed, now));
        let mut rows: Vec<RuleRow> = rows.collect();
        drop(rules);
        rows.sort_unstable_by(|a, b| a.rule.id.cmp(&b.rule.id));
        Ok(RuleList { count, rules: rows })
    }

    /// The packets of each of these rules, counted by workers and by the device.
    fn traffic(&self, rules: &[&StoredRule], device: &DeviceTraffic<'_>) -> Vec<Traffic> {
        let mut sums = self.counted_by_workers(rules);
        for (sum, stored) in sums.iter_mut().zip(rules) {
            *sum += stored.carried.into();
            let names = quoted(&stored.rule.id);
            names
                .iter()
                .filter_map(|name| device.counted.get(name.as_str()))
                .for_each(|traffic| *sum += *traffic);
        }
        sums
    }

    /// The packets of each of these rules that workers have counted at run time.
    fn counted_by_workers(&self, rules: &[&StoredRule]) -> Vec<Traffic> {
        let slots = rules.iter().flat_map(|stored| stored.slots());
        let mut counted = self.counted_in(slots).into_iter();
        let of_rule = |stored: &&StoredRule| {
            let mut sum = Traffic::default();
            counted.by_ref().take(stored.slots().count()).for_each(|traffic| sum += traffic);
            since(sum, stored.base.into())
        };
        rules.iter().map(of_rule).collect()
    }

    /// The packets that all workers have ever counted in each of these slots.
    fn counted_in(&self, slots: impl Iterator<Item = u32>) -> Vec<Traffic> {
        let slots: Vec<u32> = slots.collect();
        let mut sums = vec![Traffic::default(); slots.len()];
        for entry in &self.observer.workers {
            let counted = entry.control.runtime_traffic(slots.iter().copied());
            sums.iter_mut().zip(counted).for_each(|(sum, traffic)| *sum += traffic);
        }
        sums
    }

    /// Lets rules that were just added begin to count.
    fn set_bases(&self, rules: &mut Rules, added: &[Arc<str>]) {
        let slots_of = |id: &Arc<str>| rules.store.get(id).into_iter().flat_map(StoredRule::slots);
        let mut counted = self.counted_in(added.iter().flat_map(slots_of)).into_iter();
        for id in added {
            let slots = rules.store.get(id).map_or(0, |stored| stored.slots().count());
            let mut base = Traffic::default();
            counted.by_ref().take(slots).for_each(|traffic| base += traffic);
            rules.store.set_base(id, base.into());
        }
    }

    /// Once a second: ends rules whose time is over, brings to workers and the device what they have not
    /// taken, moves hot rules into the device, saves.
    pub(crate) fn tick(&self) {
        let mut rules = self.lock();
        self.forget_confirmed(&mut rules);
        self.take_left_device(&mut rules);
        if !rules.store.is_empty() {
            self.expire(&mut rules);
        }
        if !rules.open.is_empty() {
            self.compare_open(&mut rules);
        }
        self.catch_up(&mut rules);
        if !rules.store.is_empty() {
            self.promote(&mut rules);
        }
        self.observer.health.set_rules_fault(rules.fault());
        drop(rules);
        self.save();
    }

    fn expire(&self, rules: &mut Rules) {
        let now = Instant::now();
        if rules.store.next_due().is_none_or(|due| due > now) {
            return;
        }
        // Read once: the counters of the device take a query.
        let has_device =
            rules.store.rules().any(|stored| stored.in_device && stored.rule.idle_timeout.is_some());
        let state = has_device.then(|| self.observer.state());
        let device = DeviceTraffic::of(state.as_ref());
        let packets = |stored: &StoredRule| {
            let is_counted = !stored.in_device || device.counts(stored);
            is_counted.then(|| self.traffic(&[stored], &device)[0].packets)
        };
        let (gone, changes) = rules.store.expire(now, packets);
        if gone.is_empty() {
            return;
        }
        self.follow_removal(rules, &gone, &changes);
        tracing::debug!("{} rules at run time have ended", gone.len());
    }

    /// Takes rules that are gone away from workers and the device.
    fn follow_removal(&self, rules: &mut Rules, gone: &[StoredRule], changes: &[RuntimeChange]) {
        rules.revision += u64::from(!gone.is_empty());
        let in_force = Arc::clone(&self.observer.board.read().policy);
        if let Err(error) = self.send_to_workers(rules, in_force.program.runtime.as_ref(), changes, &[]) {
            tracing::error!("rules at run time that have ended: {error}: it is tried again");
        }
        if gone.iter().any(|stored| stored.in_device) {
            let left = rules.in_device();
            if let Err(why) = self.put_in_device(rules, &left) {
                rules.note_fault(format!("rules at run time that have ended are still in the device: {why}"));
            }
        }
    }

    /// Brings to workers and the device what they have not taken before.
    fn catch_up(&self, rules: &mut Rules) {
        let in_force = Arc::clone(&self.observer.board.read().policy);
        let allowed = in_force.program.runtime.as_ref();
        if rules.is_out_of_step
            && let Ok(()) = self.send_to_workers(rules, allowed, &[], &[])
        {
            tracing::info!("all workers have the rules at run time again");
        }
        let is_due = rules.device_fault.as_ref().is_some_and(|fault| fault.next <= Instant::now());
        if is_due && let Some(allowed) = allowed {
            self.put_what_fits(rules, allowed);
            if rules.device_fault.is_none() {
                tracing::info!("the device has the rules at run time again");
            }
        }
    }
}

/// The counters of the device, by the names of rules in the program.
struct DeviceTraffic<'s> {
    counted: HashMap<&'s str, Traffic>,
    /// The rules of which the device counts no packet, or not all.
    uncounted: HashSet<&'s str>,
}

impl<'s> DeviceTraffic<'s> {
    /// `None`: nothing is known, or no rule is there.
    fn of(state: Option<&'s State>) -> Self {
        let rules = state.into_iter().flat_map(|state| &state.rules);
        let at_run_time: Vec<_> = rules.filter(|rule| is_quoted(&rule.name)).collect();
        let traffic = |rule: &RuleState| Traffic { packets: rule.packets(), bytes: rule.bytes() };
        let uncounted = at_run_time.iter().filter(|rule| rule.uncounted).map(|rule| rule.name.as_str());
        Self {
            uncounted: uncounted.collect(),
            counted: at_run_time.iter().map(|rule| (rule.name.as_str(), traffic(rule))).collect(),
        }
    }

    /// Whether the device counts all packets of a rule that acts there.
    fn counts(&self, stored: &StoredRule) -> bool {
        quoted(&stored.rule.id).iter().all(|name| !self.uncounted.contains(name.as_str()))
    }
}

/// The packets that were counted after `before`.
fn since(now: Traffic, before: Traffic) -> Traffic {
    Traffic {
        packets: now.packets.saturating_sub(before.packets),
        bytes: now.bytes.saturating_sub(before.bytes),
    }
}

fn busy() -> Refused {
    Refused::new(503, "the policy is being changed (hint: try again later)")
}

/// Logs the rules that a policy has removed: the first few, with the reason.
fn log_removed(gone: &[StoredRule], why: &str, reasons: &HashMap<Arc<str>, String>) {
    if gone.is_empty() {
        return;
    }
    let named = gone.iter().take(LOGGED_MAX).map(|stored| {
        let id = &stored.rule.id;
        reasons.get(id).map_or_else(|| id.to_string(), |reason| format!("{id} ({reason})"))
    });
    let named: Vec<String> = named.collect();
    tracing::warn!("{} rules at run time are removed, {why}: {}", gone.len(), named.join(", "));
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

    /// The rules that only the device can enforce, without those that are withheld.
    fn only_in_device(&self, allowed: &RuntimeRules) -> HashSet<Arc<str>> {
        let mut actions = allowed.actions.iter().flatten();
        let all_forms = vec![true; allowed.forms.len()];
        if actions.all(|action| action.by_workers == all_forms) {
            return HashSet::new();
        }
        let is_only = |stored: &&StoredRule| !stored.is_withheld() && !is_by_workers(stored, allowed);
        let only = self.store.rules().filter(is_only);
        only.map(|stored| Arc::clone(&stored.rule.id)).collect()
    }

    /// The rules that only the device can enforce, with those that they would overtake.
    fn needed(&self, allowed: &RuntimeRules) -> HashSet<Arc<str>> {
        Precedence { store: &self.store, forms: &allowed.forms }.closed(self.only_in_device(allowed))
    }

    /// How many rules the device should have and has not.
    fn missing(&self, allowed: &RuntimeRules) -> usize {
        let is_absent = |id: &Arc<str>| self.store.get(id).is_some_and(|stored| !stored.in_device);
        self.needed(allowed).iter().filter(|id| is_absent(id)).count()
    }

    fn note_missing(&mut self, allowed: &RuntimeRules, why: &str) {
        let missing = self.missing(allowed);
        self.note_fault(format!(
            "{missing} rules at run time that only the device can enforce are not in force: {why}"
        ));
    }

    /// Forgets a fault after the device has taken rules, if none is missing there.
    fn forget_fault_without_missing(&mut self, allowed: &RuntimeRules) {
        if self.missing(allowed) == 0 {
            self.device_fault = None;
        }
    }

    /// Notes that the device has not taken rules, which is tried again later and later.
    fn note_fault(&mut self, why: String) {
        let [first, longest] = DEVICE_REST;
        let last = self.device_fault.as_ref();
        if last.is_none_or(|last| last.why != why) {
            tracing::error!("{why}: it is tried again");
        }
        let rest = last.map_or(first, |last| (last.rest * 2).min(longest));
        self.device_fault = Some(DeviceFault { why, rest, next: Instant::now() + rest });
    }

    /// Why rules do not act as they should, for the status.
    fn fault(&self) -> Option<String> {
        let workers =
            self.is_out_of_step.then(|| "a worker is late with changes of rules at run time".to_owned());
        let device = self.device_fault.as_ref().map(|fault| fault.why.clone());
        let open = (!self.open.is_empty()).then(|| {
            format!(
                "{} rules at run time are not in force until they are compared with [protect]",
                self.open.len()
            )
        });
        let faults: Vec<String> = workers.into_iter().chain(device).chain(open).collect();
        (!faults.is_empty()).then(|| faults.join(", "))
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
    let acts_in = match (by_workers && !stored.is_withheld(), stored.in_device) {
        (true, true) => "both",
        (false, true) => "device",
        (true, false) => "workers",
        (false, false) => "nowhere",
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
