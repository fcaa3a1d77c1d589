//! The policies that were in force, the last one first: to go back to, to show, and for a start whose policy
//! file is broken or has a policy that was not confirmed.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::api::model::{ChangedFlows, HistoryEntry};
use crate::policy_file::{Inputs, KEPT_BYTES_MAX, RuleWeights};
use crate::state_file;

/// The content of the file, in messages.
const WHAT: &str = "the history of policies";
/// The most policies that are kept.
const KEPT: usize = 20;
/// The most bytes of text of all of them; that of the last one, and of the last confirmed one, is kept in any
/// case.
const BYTES_MAX: usize = KEPT_BYTES_MAX;

/// A policy that was in force.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PastPolicy {
    /// Counts the policies, over restarts too.
    pub(crate) number: u64,
    pub(crate) at_seconds: f64,
    /// Who asked for it: `start`, `signal`, `watch`, `user 0`, or why it came back.
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

/// The policies, the last one first, and the trial that is about to begin.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Past {
    policies: VecDeque<PastPolicy>,
    /// The policy that is being installed on trial: the daemon may not survive that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    starting_trial: Option<Arc<Inputs>>,
}

/// The policies, and the file that keeps them over restarts.
pub(crate) struct History {
    file: Option<PathBuf>,
    past: Mutex<Past>,
    /// Held while the file is written.
    writing: Mutex<()>,
}

impl History {
    /// Reads the file, if there is one.
    pub(crate) fn open(file: Option<PathBuf>) -> Self {
        let read = file.as_deref().map(|path| (path, state_file::read::<Past>(path)));
        let past = match read {
            None => Past::default(),
            Some((_, Ok(saved))) => saved.content,
            Some((_, Err(error))) if error.kind() == io::ErrorKind::NotFound => Past::default(),
            Some((path, Err(error))) => {
                tracing::error!("{}", state_file::lost(path, WHAT, &error));
                state_file::keep_unreadable(path);
                Past::default()
            }
        };
        Self { file, past: Mutex::new(past), writing: Mutex::default() }
    }

    /// Checks that the file can be read, and logs if not.
    pub(crate) fn check(file: &Path) {
        state_file::check::<Past>(file, WHAT);
    }

    /// Reads the file, if it can be read, and leaves it as it is: nothing is saved.
    pub(crate) fn peek(file: &Path) -> Self {
        let past = state_file::read::<Past>(file).map(|saved| saved.content).unwrap_or_default();
        Self { file: None, past: Mutex::new(past), writing: Mutex::default() }
    }

    /// Adds the policy that is in force now. One that was in force already keeps its number and its place, so
    /// that reloads of the same policy do not remove earlier policies from the history.
    pub(crate) fn add(&self, policy: PastPolicy) {
        {
            let mut past = self.lock();
            past.starting_trial = None;
            past.put(policy);
        }
        self.save_or_log();
    }

    /// Notes that a policy is about to be installed on trial.
    ///
    /// # Errors
    /// The file cannot be written, as for [`History::save`].
    pub(crate) fn start_trial(&self, inputs: &Arc<Inputs>) -> Result<(), String> {
        {
            let mut past = self.lock();
            // A trial of the policy in force can only end with the same policy.
            let is_in_force = past.policies.front().is_some_and(|last| last.inputs == *inputs);
            past.starting_trial = (!is_in_force).then(|| Arc::clone(inputs));
        }
        self.save()
    }

    /// Notes that the policy of [`History::start_trial`] was refused.
    pub(crate) fn drop_trial(&self) {
        self.lock().starting_trial = None;
        self.save_or_log();
    }

    /// Notes that the policy in force is confirmed. [`History::save`] is still to be called, which waits for
    /// the disk.
    pub(crate) fn confirm(&self) {
        if let Some(policy) = self.lock().policies.front_mut() {
            policy.is_unconfirmed = false;
        }
    }

    /// Writes the policies to the file.
    ///
    /// # Errors
    /// Why the file cannot be written.
    pub(crate) fn save(&self) -> Result<(), String> {
        let Some(path) = &self.file else { return Ok(()) };
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        // The list is not locked while the file is written.
        let past = self.lock().clone();
        state_file::replace(path, &past)
            .map_err(|error| format!("the history of policies is not saved in {}: {error}", path.display()))
    }

    fn save_or_log(&self) {
        if let Err(why) = self.save() {
            tracing::error!("{why}");
        }
    }

    /// Notes for which packets the policy in force was compiled.
    pub(crate) fn note_weights(&self, weights: RuleWeights) {
        if let Some(policy) = self.lock().policies.front_mut() {
            policy.weights = weights;
        }
    }

    /// The number of the policy in force.
    pub(crate) fn number(&self) -> Option<u64> {
        self.lock().policies.front().map(|policy| policy.number)
    }

    /// The last policy that was confirmed, or was not on trial.
    pub(crate) fn last_confirmed(&self) -> Option<PastPolicy> {
        self.lock().policies.iter().find(|policy| !policy.is_unconfirmed).cloned()
    }

    /// Whether a policy was not confirmed when it was in force last. If it never was, one of the same text
    /// counts, whose set files had something else.
    pub(crate) fn is_unconfirmed(&self, inputs: &Inputs) -> bool {
        let past = self.lock();
        let known = || {
            let starting = past.starting_trial.iter().map(|known| (&**known, true));
            starting.chain(past.policies.iter().map(|policy| (&*policy.inputs, policy.is_unconfirmed)))
        };
        let same = known().find(|(known, _)| known.sha256 == inputs.sha256);
        let same_text = || known().find(|(known, _)| known.text.is_some() && known.text == inputs.text);
        same.or_else(same_text).is_some_and(|(_, is_unconfirmed)| is_unconfirmed)
    }

    /// The policy that was in force so many policies before the one in force.
    pub(crate) fn back(&self, steps: usize) -> Option<PastPolicy> {
        self.lock().policies.get(steps).cloned()
    }

    pub(crate) fn entries(&self) -> Vec<HistoryEntry> {
        self.entries_with_inputs().into_iter().map(|(entry, _)| entry).collect()
    }

    pub(crate) fn entries_with_inputs(&self) -> Vec<(HistoryEntry, Arc<Inputs>)> {
        let entry = |(back, policy): (usize, &PastPolicy)| {
            let entry = HistoryEntry {
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
            (entry, Arc::clone(&policy.inputs))
        };
        self.lock().policies.iter().enumerate().map(entry).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Past> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Past {
    fn put(&mut self, policy: PastPolicy) {
        match self.policies.front_mut() {
            Some(last) if last.inputs == policy.inputs => {
                last.at_seconds = policy.at_seconds;
                last.by = policy.by;
                // After a trial of the policy in force it is in force anyway.
                last.is_unconfirmed &= policy.is_unconfirmed;
                last.weights = policy.weights;
            }
            _ => self.push(policy),
        }
    }

    fn push(&mut self, policy: PastPolicy) {
        let policies = &mut self.policies;
        let number = policies.front().map_or(1, |last| last.number + 1);
        // Often the same few policies come back: their text is kept once.
        let same = policies.iter().find(|known| known.inputs == policy.inputs);
        let inputs = same.map_or(policy.inputs, |known| Arc::clone(&known.inputs));
        policies.push_front(PastPolicy { number, inputs, ..policy });
        policies.truncate(KEPT);
        let confirmed = policies.iter().position(|policy| !policy.is_unconfirmed).unwrap_or(0);
        let mut bytes = 0;
        for (place, policy) in policies.iter_mut().enumerate() {
            bytes += size(&policy.inputs);
            // The text in force, and that of the policy which comes back if it is not confirmed, are kept.
            if bytes > BYTES_MAX && place > confirmed {
                policy.inputs = Arc::new(policy.inputs.without_texts());
            }
        }
    }
}

fn size(inputs: &Inputs) -> usize {
    let files = inputs.files.values().filter_map(|file| file.text.as_ref());
    inputs.text.iter().chain(files).map(String::len).sum()
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
        let is_unconfirmed = |history: &History, text: &str| history.is_unconfirmed(&policy(text).inputs);
        assert_eq!(
            ["first", "second", "third"].map(|text| is_unconfirmed(&again, text)),
            [false, true, false]
        );
        let later = Inputs { sha256: "with another set".to_owned(), ..(*policy("second").inputs).clone() };
        assert!(again.is_unconfirmed(&later), "the same text");
        let other = History::open(None);
        other.add(on_trial("second"));
        other.add(PastPolicy { inputs: Arc::new(later.clone()), ..policy("second") });
        assert!(!other.is_unconfirmed(&later) && is_unconfirmed(&other, "second"), "each by its hash");
        assert_eq!(again.last_confirmed().map(|last| last.number), Some(1));
        again.confirm();
        again.save().expect("saved");
        let again = History::open(Some(path));
        assert!(!is_unconfirmed(&again, "second"));
        assert_eq!(again.last_confirmed().map(|last| last.number), Some(2));
        again.add(on_trial("second"));
        assert!(!is_unconfirmed(&again, "second"), "it was in force without a trial");
        again.add(on_trial("third"));
        again.add(policy("second"));
        assert!(is_unconfirmed(&again, "third"), "also once the policy before is back");
        again.add(policy("third"));
        assert!(!is_unconfirmed(&again, "third"), "the last time counts");
        again.start_trial(&policy("third").inputs).expect("saved");
        assert!(!is_unconfirmed(&again, "third"), "it is in force");
        again.start_trial(&policy("fourth").inputs).expect("saved");
        let again = History::open(again.file.clone());
        assert!(is_unconfirmed(&again, "fourth"), "the daemon did not survive its installation");
        again.drop_trial();
        assert!(!is_unconfirmed(&again, "fourth"), "it was refused");
    }

    #[test]
    fn texts_of_limited_size_are_kept() {
        let history = History::open(None);
        for text in ["x", "y", "x", "y", "x"] {
            history.add(policy(&text.repeat(KEPT_BYTES_MAX / 3)));
        }
        let kept =
            |history: &History| history.entries().iter().map(|entry| entry.is_kept).collect::<Vec<_>>();
        assert_eq!(kept(&history), [true, true, true, false, false]);
        let [last, before] = [0, 2].map(|back| history.back(back).expect("there").inputs);
        assert!(Arc::ptr_eq(&last, &before), "the same text is kept once");
        // Two of them are too long together, and one of them may have to come back.
        let history = History::open(None);
        for (text, is_unconfirmed) in [("w", false), ("x", false), ("y", true)] {
            history.add(PastPolicy { is_unconfirmed, ..policy(&text.repeat(KEPT_BYTES_MAX * 2 / 3)) });
        }
        assert_eq!(kept(&history), [true, true, false]);
        assert_eq!(history.last_confirmed().map(|policy| policy.number), Some(2));
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
