//! The rules at run time over restarts: a file in the state folder, replaced as a whole.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use control::{RuntimeOwner, RuntimeRequest, StoredRule};
use program::{RuntimeChange, RuntimeRules};
use serde::{Deserialize, Serialize};

use super::change::runtime_rule;
use super::protect::Compared;
use super::{END_PATIENCE, LiveRules, Rules, TrialStage, body};
use crate::api::rules::{RuleBody, rule_id};
use crate::daemon::board::PolicyInForce;
use crate::daemon::observer::unix_seconds;
use crate::state_file::{self, Saved};

/// A rule outside of the store: in the file, or while a policy on trial does not allow it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SavedRule {
    owner: u32,
    /// When its time to live is over, in Unix time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ends_at_seconds: Option<f64>,
    #[serde(flatten)]
    rule: RuleBody,
}

impl SavedRule {
    /// `allowed`: of the program whose actions the rule names by number.
    pub(super) fn of(stored: &StoredRule, allowed: Option<&RuntimeRules>, now: Instant) -> Self {
        let left = stored.ends.map(|ends| ends.saturating_duration_since(now).as_secs_f64());
        Self {
            owner: stored.rule.owner,
            ends_at_seconds: left.map(|left| unix_seconds() + left),
            rule: body(stored, allowed),
        }
    }
}

/// The content of the file, in messages.
const SAVED: &str = "the list of rules at run time";

#[derive(Debug, Default, Serialize, Deserialize)]
struct SavedRules {
    rules: Vec<SavedRule>,
}

/// Checks that the file can be read, and logs if not.
pub(in crate::daemon) fn check(file: &Path) {
    state_file::check::<SavedRules>(file, SAVED);
}

/// The rest after the rules were saved, in times of its duration.
const REST: u32 = 20;
/// How long after a failure it is tried again.
const FAILURE_REST: Duration = Duration::from_secs(10);

/// The revision that is in the file.
#[derive(Debug, Default)]
pub(super) struct SavedRevision {
    revision: u64,
    rest_until: Option<Instant>,
}

impl LiveRules {
    /// Writes the rules if they have changed; if that fails it is tried again.
    pub(super) fn save(&self) {
        let rules = self.lock();
        let saved = self.saved();
        if saved.rest_until.is_none_or(|until| until <= Instant::now()) {
            self.write(saved, rules);
        }
    }

    /// To be called with the rules locked: a thread that waits for them does not keep others from the file.
    fn saved(&self) -> MutexGuard<'_, SavedRevision> {
        self.saved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `rules` is not held while the file is written.
    fn write(&self, mut saved: MutexGuard<'_, SavedRevision>, rules: MutexGuard<'_, Rules>) {
        let Some(path) = self.file.as_deref().filter(|_| saved.revision != rules.revision) else { return };
        let begun = Instant::now();
        let in_force = Arc::clone(&self.observer.board.read().policy);
        let (allowed, now) = (in_force.program.runtime.as_ref(), Instant::now());
        let stored = rules.store.rules().map(|stored| SavedRule::of(stored, allowed, now));
        let content = SavedRules { rules: stored.chain(rules.set_aside.iter().cloned()).collect() };
        let revision = rules.revision;
        drop(rules);
        match state_file::replace(path, &content) {
            Ok(()) => {
                saved.revision = revision;
                saved.rest_until = Some(Instant::now() + begun.elapsed() * REST);
            }
            Err(error) => {
                saved.rest_until = Some(Instant::now() + FAILURE_REST);
                tracing::error!(
                    "rules at run time are not saved in {}: {error}: it is tried again",
                    path.display()
                );
            }
        }
    }

    /// Writes them at the end; from then on no change is made.
    pub(crate) fn save_last(&self) {
        match self.lock_within(END_PATIENCE, || true) {
            Some(mut rules) => {
                rules.is_ending = true;
                self.forget_confirmed(&mut rules);
                self.write(self.saved(), rules);
            }
            None => tracing::error!("rules at run time are as last saved: a change of them does not end"),
        }
    }

    /// Reads the rules of the run before. Those that the policy does not allow are left out, which is logged.
    pub(super) fn restore(&self) {
        let mut rules = self.lock();
        let in_force = Arc::clone(&self.observer.board.read().policy);
        if let Some(path) = self.file.as_deref() {
            match state_file::read::<SavedRules>(path) {
                Ok(Saved { content, .. }) => rules.take_over(content.rules, &in_force),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::error!("{}", state_file::lost(path, SAVED, &error));
                    state_file::keep_unreadable(path);
                }
            }
        }
        let Compared { taking, open } = rules.compare_all(&in_force);
        rules.open = open;
        self.follow_policy(&mut rules, &taking, &in_force.program, TrialStage::None);
        if let Some(allowed) = &in_force.program.runtime {
            self.put_what_fits(&mut rules, allowed);
        }
        self.observer.health.set_rules_fault(rules.fault());
    }
}

impl Rules {
    fn take_over(&mut self, saved: Vec<SavedRule>, in_force: &PolicyInForce) {
        let count = saved.len();
        let now = unix_seconds();
        let (saved, over): (Vec<SavedRule>, Vec<SavedRule>) =
            saved.into_iter().partition(|saved| saved.ends_at_seconds.is_none_or(|ends| ends > now));
        let taken = self.put_back(saved, in_force).0.len();
        if count > 0 {
            tracing::info!("{taken} rules at run time are in force again");
        }
        if !over.is_empty() {
            tracing::info!("{} rules at run time have ended meanwhile", over.len());
        }
        if taken + over.len() < count {
            tracing::warn!(
                "{} rules at run time are left out, as the policy does not allow them",
                count - taken - over.len()
            );
        }
    }

    /// Adds rules that the policy allows, and that no other rule has taken the place of; returns their ids,
    /// and what workers have to change.
    pub(super) fn put_back(
        &mut self,
        saved: Vec<SavedRule>,
        in_force: &PolicyInForce,
    ) -> (Vec<Arc<str>>, Vec<RuntimeChange>) {
        let (mut taken, mut changes) = (Vec::new(), Vec::new());
        let Some(allowed) = &in_force.program.runtime else { return (taken, changes) };
        let (now, unix_now) = (Instant::now(), unix_seconds());
        for SavedRule { owner, ends_at_seconds, rule } in saved {
            let left = ends_at_seconds.map(|ends| Duration::try_from_secs_f64(ends - unix_now));
            if matches!(left, Some(Err(_))) || self.store.get(&rule_id(&rule)).is_some() {
                continue;
            }
            // An earlier version has taken comments with control characters.
            let comment = rule.comment.replace(char::is_control, " ");
            let Ok(rule) = runtime_rule(RuleBody { comment, ..rule }, owner, allowed) else { continue };
            let id = Arc::clone(&rule.id);
            let requests = vec![RuntimeRequest::Add(rule)];
            let owner = RuntimeOwner { uid: owner, rules_max: None };
            let Ok(applied) = self.store.apply(requests, allowed, owner, now) else { continue };
            changes.extend(applied.changes().iter().copied());
            if let Some(Ok(left)) = left {
                self.store.set_end(&id, now + left.min(crate::api::rules::LONGEST), now);
            }
            taken.push(id);
        }
        (taken, changes)
    }
}
