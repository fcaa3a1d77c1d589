//! The state of the dataplane as its thread last published it: the policy in force, the sinks, and the last
//! reading of the drop rules' counters. Threads that only read take it from here and wait for nobody.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use control::DropTotals;
use policy::Policy;
use policy::policy::SetSize;
use program::{Program, RuleDeciders};
use reports::ProtectedNames;

use crate::api::InForce;
use crate::daemon::nic_drops::PublishedDrops;
use crate::daemon::sinks::SinkList;
use crate::daemon::worker_set::WorkerSet;
use crate::policy_file::{Inputs, RuleWeights};
use crate::settings::PolicySource;

/// The last publication. Nobody holds the lock for longer than it takes to copy or to replace one.
#[derive(Debug)]
pub(crate) struct Board(Mutex<Arc<Published>>);

/// A publication. An installed policy and its sinks are published together.
#[derive(Clone, Debug)]
pub(crate) struct Published {
    pub(crate) policy: Arc<PolicyInForce>,
    /// The workers that policies may name, and those that are spare.
    pub(crate) workers: Arc<WorkerSet>,
    pub(crate) reloads: Reloads,
    pub(crate) sinks: Arc<SinkList>,
    /// The filters of NICs that drop packets of the policy's drop rules, by port.
    pub(crate) nic_drops: Arc<[PublishedDrops]>,
    /// The counters of drop rules; `None`: they were not read yet.
    pub(crate) drops: Option<Arc<[DropTotals]>>,
    /// The most dropped packets that are in no counter, because counters could not be read after the removal
    /// of their flows.
    pub(crate) uncounted_drops: u64,
    /// Counts the changes of policy and reloads: a state from before one is outdated.
    pub(crate) changes: u64,
}

#[derive(Debug)]
pub(crate) struct PolicyInForce {
    pub(crate) source: PolicySource,
    pub(crate) inputs: Arc<Inputs>,
    pub(crate) program: Arc<Program>,
    /// The policy without rules at run time, if it allows any.
    pub(crate) policy: Option<Arc<Policy>>,
    /// The protected packets of the policy.
    pub(crate) protected: Arc<ProtectedNames>,
    /// The number in the history of the policy that came back; `None`: it was read from its source.
    pub(crate) past: Option<u64>,
    pub(crate) set_sizes: Vec<SetSize>,
    /// The weights for which the program was compiled.
    pub(crate) weights: RuleWeights,
    /// The names of rules at run time that were put into the program without compiling the whole policy.
    pub(crate) extended_by: HashSet<String>,
    /// The names of rules with `count = false`, of this policy and the one before.
    pub(crate) unexported: HashSet<String>,
    /// The number of the program; 0: none has been installed yet.
    pub(crate) generation: u64,
    pub(crate) loaded_at_seconds: f64,
    pub(crate) warnings: Warnings,
    /// Who decides the packets of each rule on a network interface, computed when it is first asked for.
    pub(crate) deciders: OnceLock<Vec<RuleDeciders>>,
}

/// The outcomes of reloads.
#[derive(Clone, Debug)]
pub(crate) struct Reloads {
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
    /// The error of the last reload that failed, kept until a reload succeeds.
    pub(crate) last_error: Option<String>,
    /// The start counts as a successful reload.
    pub(crate) last_successful: bool,
}

/// Warnings about the policy in force: of its text and program, then of features that the device lacks or
/// emulates. Only the first are kept as text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Warnings {
    pub(crate) count: usize,
    pub(crate) listed: Vec<String>,
}

impl Warnings {
    pub(super) fn of(policy: &[policy::Diagnostic], device: impl Iterator<Item = String>) -> Self {
        let mut warnings = Self::default();
        for warning in policy.iter().map(ToString::to_string).chain(device) {
            warnings.count += 1;
            if warnings.listed.len() < policy::MAX_DIAGNOSTICS {
                warnings.listed.push(warning);
            }
        }
        warnings
    }
}

impl Board {
    /// Makes a board on which the first program of `policy` is not installed yet.
    pub(super) fn new(policy: PolicyInForce, workers: WorkerSet) -> Self {
        Self(Mutex::new(Arc::new(Published {
            policy: Arc::new(policy),
            workers: Arc::new(workers),
            reloads: Reloads { succeeded: 0, failed: 0, last_error: None, last_successful: true },
            sinks: Arc::default(),
            nic_drops: Arc::new([]),
            drops: None,
            uncounted_drops: 0,
            changes: 0,
        })))
    }

    pub(crate) fn read(&self) -> Arc<Published> {
        Arc::clone(&self.last())
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut Published)) {
        change(Arc::make_mut(&mut self.last()));
    }

    pub(crate) fn reload_succeeded(&self) {
        self.update(|published| {
            published.reloads.succeeded += 1;
            published.changes += 1;
        });
    }

    pub(crate) fn reload_failed(&self, error: &str) {
        self.update(|published| {
            let reloads = &mut published.reloads;
            reloads.failed += 1;
            reloads.last_error = Some(error.lines().next().unwrap_or_default().to_owned());
            reloads.last_successful = false;
            published.changes += 1;
        });
    }

    fn last(&self) -> MutexGuard<'_, Arc<Published>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PolicyInForce {
    /// Who decides the packets of each rule on a network interface.
    pub(crate) fn deciders(&self) -> &[RuleDeciders] {
        self.deciders.get_or_init(|| self.program.deciders())
    }

    pub(crate) fn for_api(&self) -> InForce {
        InForce {
            source: self.source.to_string(),
            generation: self.generation,
            inputs: Arc::clone(&self.inputs),
            program: Arc::clone(&self.program),
        }
    }
}
