//! The policies that were in force, the last one first: to go back to, to show, and for a start whose policy
//! file is broken.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::api::model::{ChangedFlows, HistoryEntry};
use crate::policy_file::{Inputs, KEPT_BYTES_MAX, RuleWeights};
use crate::state_file;

/// The most policies that are kept.
const KEPT: usize = 20;
/// The most bytes of text of all of them; the last one is kept in any case.
const BYTES_MAX: usize = KEPT_BYTES_MAX;

/// A policy that was in force.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PastPolicy {
    /// Counts the policies, over restarts too.
    pub(crate) number: u64,
    pub(crate) at_seconds: f64,
    /// Who asked for it: `start`, `signal`, `user 0`, or why it came back.
    pub(crate) by: String,
    pub(crate) inputs: Arc<Inputs>,
    /// The difference from the one before, in words.
    pub(crate) difference: String,
    pub(crate) milliseconds: u64,
    pub(crate) flows: Option<ChangedFlows>,
    /// Whether it came into force on trial and nobody has confirmed it.
    #[serde(default)]
    pub(crate) is_unconfirmed: bool,
    /// The weights for which it was compiled, so that its way back does not need the capture; empty after a
    /// restart.
    #[serde(skip)]
    pub(crate) weights: RuleWeights,
}

#[derive(Debug, Default, Deserialize)]
struct SavedPolicies {
    policies: VecDeque<PastPolicy>,
}

/// The policies, and the file that keeps them over restarts.
pub(crate) struct History {
    file: Option<PathBuf>,
    policies: Mutex<VecDeque<PastPolicy>>,
    /// Held while the file is written.
    writing: Mutex<()>,
}

impl History {
    /// Reads the file, if there is one.
    pub(crate) fn open(file: Option<PathBuf>) -> Self {
        let read = file.as_deref().map(|path| (path, state_file::read::<SavedPolicies>(path)));
        let policies = match read {
            None => VecDeque::new(),
            Some((_, Ok(saved))) => saved.content.policies,
            Some((_, Err(error))) if error.kind() == io::ErrorKind::NotFound => VecDeque::new(),
            Some((path, Err(error))) => {
                tracing::error!("the history of policies in {} is lost: {error}", path.display());
                state_file::keep_unreadable(path);
                VecDeque::new()
            }
        };
        Self { file, policies: Mutex::new(policies), writing: Mutex::default() }
    }

    /// Adds the policy that is in force now. One that was in force already keeps its number and its place, so
    /// that reloads of the same policy do not remove earlier policies from the history.
    pub(crate) fn add(&self, policy: PastPolicy) {
        Self::put(&mut self.lock(), policy);
        self.save();
    }

    /// Notes that the policy in force is confirmed. [`History::save`] is still to be called, which waits for
    /// the disk.
    pub(crate) fn confirm(&self) {
        if let Some(policy) = self.lock().front_mut() {
            policy.is_unconfirmed = false;
        }
    }

    /// Writes the policies to the file.
    pub(crate) fn save(&self) {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        // The list is not locked while the file is written.
        let policies = self.lock().clone();
        if let Some(path) = &self.file
            && let Err(error) = state_file::replace(path, &SavingPolicies { policies: &policies })
        {
            tracing::error!("the history of policies is not saved in {}: {error}", path.display());
        }
    }

    fn put(policies: &mut VecDeque<PastPolicy>, policy: PastPolicy) {
        match policies.front_mut() {
            Some(last) if last.inputs == policy.inputs => {
                last.at_seconds = policy.at_seconds;
                last.by = policy.by;
                // A trial of the policy that is in force anyway can have one end only.
                last.is_unconfirmed &= policy.is_unconfirmed;
                last.weights = policy.weights;
            }
            _ => Self::push(policies, policy),
        }
    }

    fn push(policies: &mut VecDeque<PastPolicy>, policy: PastPolicy) {
        let number = policies.front().map_or(1, |last| last.number + 1);
        // Often the same few policies come back: their text is kept once.
        let same = policies.iter().find(|known| known.inputs == policy.inputs);
        let inputs = same.map_or(policy.inputs, |known| Arc::clone(&known.inputs));
        policies.push_front(PastPolicy { number, inputs, ..policy });
        let mut bytes = 0;
        let fits = |policy: &PastPolicy| {
            bytes += size(&policy.inputs);
            bytes <= BYTES_MAX
        };
        let kept = policies.iter().map(fits).take_while(|fits| *fits).count().clamp(1, KEPT);
        policies.truncate(kept);
    }

    /// Notes for which packets the policy in force was compiled.
    pub(crate) fn note_weights(&self, weights: RuleWeights) {
        if let Some(policy) = self.lock().front_mut() {
            policy.weights = weights;
        }
    }

    /// The number of the policy in force.
    pub(crate) fn number(&self) -> Option<u64> {
        self.lock().front().map(|policy| policy.number)
    }

    /// The last policy that was in force and did not wait for a confirmation in vain.
    pub(crate) fn last_confirmed(&self) -> Option<PastPolicy> {
        self.lock().iter().find(|policy| !policy.is_unconfirmed).cloned()
    }

    /// Whether a policy of this hash was not confirmed when it was in force last.
    pub(crate) fn is_unconfirmed(&self, sha256: &str) -> bool {
        self.lock()
            .iter()
            .find(|policy| policy.inputs.sha256 == sha256)
            .is_some_and(|last| last.is_unconfirmed)
    }

    /// The policy that was in force so many policies before the one in force.
    pub(crate) fn back(&self, steps: usize) -> Option<PastPolicy> {
        self.lock().get(steps).cloned()
    }

    pub(crate) fn entries(&self) -> Vec<HistoryEntry> {
        let entry = |(back, policy): (usize, &PastPolicy)| HistoryEntry {
            back,
            number: policy.number,
            at_seconds: policy.at_seconds,
            by: policy.by.clone(),
            sha256: policy.inputs.sha256.clone(),
            is_kept: policy.inputs.text.is_some(),
            difference: policy.difference.clone(),
            milliseconds: policy.milliseconds,
            flows: policy.flows,
            is_unconfirmed: policy.is_unconfirmed,
        };
        self.lock().iter().enumerate().map(entry).collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<PastPolicy>> {
        self.policies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn size(inputs: &Inputs) -> usize {
    let files = inputs.files.values().filter_map(|file| file.text.as_ref());
    inputs.text.iter().chain(files).map(String::len).sum()
}

#[derive(Serialize)]
struct SavingPolicies<'p> {
    policies: &'p VecDeque<PastPolicy>,
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn policy(text: &str) -> PastPolicy {
        let inputs = Inputs { text: Some(text.to_owned()), sha256: text.to_owned(), ..Inputs::default() };
        PastPolicy {
            number: 0,
            at_seconds: 1.0,
            by: "start".to_owned(),
            inputs: Arc::new(inputs),
            difference: String::new(),
            milliseconds: 3,
            flows: None,
            is_unconfirmed: false,
            weights: RuleWeights::new(),
        }
    }

    #[test]
    fn policies_are_numbered_over_restarts_and_the_oldest_go() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history.json");
        let history = History::open(Some(path.clone()));
        for number in 0..KEPT + 3 {
            history.add(policy(&number.to_string()));
        }
        let again = History::open(Some(path.clone()));
        let entries = again.entries();
        assert_eq!((entries.len(), entries[0].number), (KEPT, KEPT as u64 + 3));
        assert_eq!(again.back(1).expect("there").inputs.text.as_deref(), Some("21"));
        assert!(again.back(KEPT).is_none());
        fs::write(&path, "{").expect("written");
        assert!(History::open(Some(path)).entries().is_empty(), "a broken file is no reason not to start");
    }

    #[test]
    fn the_end_of_a_trial_is_kept_over_restarts() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history.json");
        let history = History::open(Some(path.clone()));
        let on_trial = |text| PastPolicy { is_unconfirmed: true, ..policy(text) };
        [policy("first"), on_trial("second")].into_iter().for_each(|policy| history.add(policy));
        let again = History::open(Some(path.clone()));
        assert_eq!(["first", "second", "third"].map(|sha| again.is_unconfirmed(sha)), [false, true, false]);
        assert_eq!(again.last_confirmed().map(|last| last.number), Some(1));
        again.confirm();
        again.save();
        let again = History::open(Some(path));
        assert!(!again.is_unconfirmed("second"));
        assert_eq!(again.last_confirmed().map(|last| last.number), Some(2));
        again.add(on_trial("second"));
        assert!(!again.is_unconfirmed("second"), "it was in force without a trial");
        again.add(on_trial("third"));
        again.add(policy("second"));
        assert!(again.is_unconfirmed("third"), "after the way back too");
        again.add(policy("third"));
        assert!(!again.is_unconfirmed("third"), "the last time counts");
    }

    #[test]
    fn texts_of_limited_size_are_kept() {
        let history = History::open(None);
        for text in ["x", "y", "x", "y", "x"] {
            history.add(policy(&text.repeat(KEPT_BYTES_MAX / 3)));
        }
        assert_eq!(history.entries().len(), 3);
        let [last, before] = [0, 2].map(|back| history.back(back).expect("there").inputs);
        assert!(Arc::ptr_eq(&last, &before), "the same text is kept once");
    }

    #[test]
    fn a_policy_that_is_reloaded_stays_one_entry() {
        let history = History::open(None);
        for text in ["first", "second", "second", "second"] {
            history.add(policy(text));
        }
        history.add(PastPolicy { by: "signal".to_owned(), at_seconds: 9.0, ..policy("second") });
        let entries = history.entries();
        assert_eq!((entries.len(), entries[0].number, entries[0].at_seconds), (2, 2, 9.0));
        assert_eq!(entries[0].by, "signal");
        assert_eq!(history.back(1).expect("there").inputs.text.as_deref(), Some("first"), "the way back");
    }
}
