//! The setting `policy.require_tests`: a policy is put in force only if it has tests and all of them pass.
//! Tests that no device decides run before the policy is compiled, the others on the program that is to be
//! installed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use policy::policy_test::PolicyTest;
use policy::{Diagnostic, Diagnostics, Place, Policy};
use program::Program;

use super::{TestBench, TestSummary, TimeLimit, is_of_device};
use crate::policy_file::Read;
use crate::settings::PolicySource;

/// The longest time for all tests of a policy. A reload waits for them.
const TEST_TIME: Duration = Duration::from_secs(10);

/// The tests of a policy that are still to pass.
pub(crate) struct RequiredTests {
    /// `None`: no test is left.
    policy: Option<Policy>,
    /// The directory of captures.
    folder: PathBuf,
    /// The time that is left.
    left: Duration,
}

impl RequiredTests {
    /// Runs the tests that no device decides, if the settings require tests.
    ///
    /// # Errors
    /// The tests that fail, or that there are none.
    pub(crate) fn of(source: &PolicySource, read: &Read) -> Result<Self, Diagnostics> {
        let mut tests = Self { policy: None, folder: source.folder(), left: TEST_TIME };
        if !source.requires_tests {
            return Ok(tests);
        }
        let policy = &read.policy;
        if let Some(error) = Self::missing(source, policy) {
            return Err(vec![error].into());
        }
        let begun = Instant::now();
        tests.run(policy, None, |test| !is_of_device(test))?;
        tests.left = tests.left.saturating_sub(begun.elapsed());
        tests.policy = super::needs_program(policy).then(|| policy.clone());
        Ok(tests)
    }

    /// The error that the settings require tests and the policy has none.
    pub(crate) fn missing(source: &PolicySource, policy: &Policy) -> Option<Diagnostic> {
        (source.requires_tests && policy.tests.is_empty()).then(|| {
            let place = Place::new(&Arc::clone(&policy.source), 0..0);
            let error = place.error(
                "the policy has no tests, and the setting policy.require_tests asks for them",
                "this policy",
            );
            error.hint("write [[tests]]; `steerd test --coverage` proposes some")
        })
    }

    /// Runs the other tests. `program`: the one that is to be installed; `None` where there are no workers.
    ///
    /// # Errors
    /// The tests that fail.
    pub(crate) fn finish(&self, program: Option<&Program>) -> Result<(), Diagnostics> {
        self.policy.as_ref().map_or(Ok(()), |policy| self.run(policy, program, is_of_device))
    }

    fn run(
        &self,
        policy: &Policy,
        program: Option<&Program>,
        is_chosen: impl Fn(&PolicyTest) -> bool,
    ) -> Result<(), Diagnostics> {
        let limit = TimeLimit { whole: TEST_TIME, end: Instant::now() + self.left };
        let bench = TestBench::of(policy, &self.folder, program).within(limit);
        let summary = TestSummary::run(bench, is_chosen);
        match summary.failed {
            0 => Ok(()),
            _ => Err(summary.failures.into()),
        }
    }
}
