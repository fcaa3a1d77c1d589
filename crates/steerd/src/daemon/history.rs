//! The policies that were in force, the last one first: to go back to, to show, and for a start whose policy
//! file is broken.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::api::model::{ChangedFlows, HistoryEntry};
use crate::policy_file::{Inputs, KEPT_BYTES_MAX};

/// The most policies that are kept.
const KEPT: usize = 20;
/// The most bytes of text of all of them; the last one is kept in any case.
const BYTES_MAX: usize = KEPT_BYTES_MAX;
/// The number of the file's format.
const FORMAT: u32 = 1;

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
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Saved {
    format: u32,
    policies: VecDeque<PastPolicy>,
}

/// The policies, and the file that keeps them over restarts.
pub(crate) struct History {
    file: Option<PathBuf>,
    policies: Mutex<VecDeque<PastPolicy>>,
}

impl History {
    /// Reads the file, if there is one.
    pub(crate) fn open(file: Option<PathBuf>) -> Self {
        let policies = file.as_deref().map(read).unwrap_or_else(|| Ok(VecDeque::new()));
        let policies = policies.unwrap_or_else(|error| {
            let path = file.as_deref().unwrap_or(Path::new("")).display();
            if error.kind() != io::ErrorKind::NotFound {
                tracing::error!("the history of policies in {path} is lost: {error}");
            }
            VecDeque::new()
        });
        Self { file, policies: Mutex::new(policies) }
    }

    /// Adds the policy that is in force now.
    pub(crate) fn add(&self, policy: PastPolicy) {
        let mut policies = self.lock();
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
        if let Some(path) = &self.file
            && let Err(error) = write(path, &policies)
        {
            tracing::error!("the history of policies is not saved in {}: {error}", path.display());
        }
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

fn read(path: &Path) -> io::Result<VecDeque<PastPolicy>> {
    let saved: Saved = serde_json::from_slice(&fs::read(path)?)?;
    match saved.format {
        FORMAT => Ok(saved.policies),
        other => Err(io::Error::other(format!("its format is {other}, this program reads {FORMAT}"))),
    }
}

#[derive(Serialize)]
struct Saving<'p> {
    format: u32,
    policies: &'p VecDeque<PastPolicy>,
}

fn write(path: &Path, policies: &VecDeque<PastPolicy>) -> io::Result<()> {
    crate::state_file::replace(path, &Saving { format: FORMAT, policies })
}

#[cfg(test)]
mod tests {
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
    fn texts_of_limited_size_are_kept() {
        let history = History::open(None);
        for _ in 0..4 {
            history.add(policy(&"x".repeat(KEPT_BYTES_MAX / 2)));
        }
        assert_eq!(history.entries().len(), 2);
        let [last, before] = [0, 1].map(|back| history.back(back).expect("there").inputs);
        assert!(Arc::ptr_eq(&last, &before), "the same text is kept once");
    }
}
