//! The rules at run time over restarts: a file in the state folder, replaced as a whole.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use control::{RuntimeOwner, RuntimeRequest};
use serde::{Deserialize, Serialize};

use super::change::runtime_rule;
use super::{END_PATIENCE, LiveRules, Rules, body};
use crate::api::rules::RuleBody;

/// The number of the format.
const FORMAT: u32 = 1;

#[derive(Debug, Default, Serialize, Deserialize)]
struct Saved {
    format: u32,
    rules: Vec<SavedRule>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedRule {
    owner: u32,
    /// The time to live that is left.
    #[serde(flatten)]
    rule: RuleBody,
}

impl LiveRules {
    /// Writes the rules if they have changed.
    pub(super) fn save(&self, rules: &mut Rules) {
        let Some(path) = self.file.as_deref().filter(|_| rules.is_unsaved) else { return };
        let in_force = Arc::clone(&self.observer.board.read().policy);
        let (allowed, now) = (in_force.program.runtime.as_ref(), Instant::now());
        let saved = rules.store.rules().map(|stored| {
            let left = stored.ends.map(|ends| ends.saturating_duration_since(now).as_secs_f64());
            SavedRule {
                owner: stored.rule.owner,
                rule: RuleBody { ttl_seconds: left.map(|left| left.max(0.001)), ..body(stored, allowed) },
            }
        });
        let saved = Saved { format: FORMAT, rules: saved.collect() };
        rules.is_unsaved = false;
        if let Err(error) = crate::state_file::replace(path, &saved) {
            tracing::error!("rules at run time are not saved in {}: {error}", path.display());
        }
    }

    /// Writes them at the end.
    pub(crate) fn save_last(&self) {
        match self.lock_within(END_PATIENCE) {
            Some(mut rules) => {
                rules.is_unsaved |= !rules.store.is_empty();
                self.save(&mut rules);
            }
            None => tracing::error!("rules at run time are as last saved: a change of them does not end"),
        }
    }

    /// Reads the rules of the run before. Those that the policy does not allow are left out, which is logged.
    pub(super) fn restore(&self) {
        let mut rules = self.lock();
        if let Some(path) = self.file.as_deref() {
            match read(path) {
                Ok(saved) => self.take_over(&mut rules, saved),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => tracing::error!("rules at run time of {} are lost: {error}", path.display()),
            }
        }
        self.follow_policy(&mut rules);
        let in_force = Arc::clone(&self.observer.board.read().policy);
        if let Err(refused) = self.follow_in_device(&mut rules, &in_force) {
            tracing::error!("rules at run time: {}", refused.why);
        }
    }

    fn take_over(&self, rules: &mut Rules, saved: Saved) {
        let in_force = Arc::clone(&self.observer.board.read().policy);
        let (count, mut taken) = (saved.rules.len(), 0);
        if let Some(allowed) = &in_force.program.runtime {
            for SavedRule { owner, rule } in saved.rules {
                let Ok(rule) = runtime_rule(rule, owner, allowed) else { continue };
                let requests = vec![RuntimeRequest::Add(rule)];
                let owner = RuntimeOwner { uid: owner, rules_max: None };
                taken += usize::from(rules.store.apply(requests, allowed, owner, Instant::now()).is_ok());
            }
        }
        if count > 0 {
            tracing::info!("{taken} rules at run time are in force again");
        }
        if taken < count {
            tracing::warn!(
                "{} rules at run time are left out, as the policy does not allow them",
                count - taken
            );
        }
    }
}

fn read(path: &Path) -> io::Result<Saved> {
    let saved: Saved = serde_json::from_slice(&fs::read(path)?)?;
    match saved.format {
        FORMAT => Ok(saved),
        other => Err(io::Error::other(format!("its format is {other}, this program reads {FORMAT}"))),
    }
}
