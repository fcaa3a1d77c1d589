//! The results of `steerd test` as text and as JSON, described in docs/reference/commands/test.md.

use std::fmt::Write as _;

use policy::Diagnostic;
use serde::Serialize;

use super::more::MoreFindings;
use crate::policy_tests::{TestResult, TestSummary, title};
use crate::terminal::output::{self, OutputError};

/// The tests of one policy.
#[derive(Serialize)]
pub(super) struct PolicyReport {
    pub(super) policy: String,
    /// Why the policy cannot be tested, or not to the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    pub(super) passed: usize,
    pub(super) failed: usize,
    pub(super) tests: Vec<TestLine>,
    /// The coverage and the changes, where they were asked for.
    #[serde(flatten)]
    pub(super) more: MoreFindings,
}

/// One test.
#[derive(Serialize)]
pub(super) struct TestLine {
    /// The name, or the packets in words.
    pub(super) name: String,
    pub(super) file: String,
    pub(super) line: u32,
    pub(super) passed: bool,
    pub(super) failures: Vec<Diagnostic>,
    pub(super) seconds: f64,
}

impl TestLine {
    pub(super) fn of(result: TestResult<'_>) -> Self {
        let place = &result.test.place;
        Self {
            name: title(result.test),
            file: place.file().to_owned(),
            line: place.line(),
            passed: result.has_passed(),
            seconds: result.took.as_secs_f64(),
            failures: result.failures,
        }
    }
}

impl PolicyReport {
    pub(super) fn of(policy: String, tests: Vec<TestLine>) -> Self {
        let passed = tests.iter().filter(|test| test.passed).count();
        Self {
            policy,
            error: None,
            passed,
            failed: tests.len() - passed,
            tests,
            more: MoreFindings::default(),
        }
    }

    /// The report on a policy that cannot be tested, or not to the end.
    pub(super) fn broken(policy: String, tests: Vec<TestLine>, error: String) -> Self {
        Self { error: Some(error), ..Self::of(policy, tests) }
    }

    pub(super) fn failed(&self) -> usize {
        self.failed
    }

    /// A line for each test, and their numbers.
    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        for test in &self.tests {
            let verdict = if test.passed { "ok" } else { "FAILED" };
            let name = output::plain(&test.name);
            // Strings take text.
            let _ = writeln!(out, "{verdict:<6}  {}:{}  {name}", test.file, test.line);
        }
        let summary = TestSummary { passed: self.passed, failed: self.failed, failures: Vec::new() };
        let _ = writeln!(out, "{}: {summary}", self.policy);
        out.push_str(&self.more.text());
        out
    }
}

#[derive(Serialize)]
struct Answer<'r> {
    policies: &'r [PolicyReport],
}

pub(super) fn print_json(policies: &[PolicyReport]) -> Result<(), OutputError> {
    output::print_json(&Answer { policies })
}
