//! The findings about a policy and a device model: the report of the compiler, lost and protected packets,
//! room for rules at run time, tests, and the analysis of the rules. `check` prints them and the language
//! server shows them in an editor, so that both say the same.

use analysis::{Analysis, Reach, RuleAnalysis};
use compiler::Job;
use policy::{Diagnostic, Policy};
use reports::{Decided, DeviceRoom, LostReport, ProtectionReport, Report};

use crate::policy_tests::{RequiredTests, TestSummary};
use crate::settings::PolicySource;

/// The findings for a policy without errors in its text.
pub(crate) struct PolicyFindings {
    pub(crate) report: Report,
    /// Packets that the policy leaves to the kernel and that a worker receives.
    pub(crate) lost: LostReport,
    /// The outcome of the protected packets.
    pub(crate) protection: ProtectionReport,
    /// The room of the device for rules at run time; `None`: there is no program, or none may be there.
    pub(crate) room: Option<DeviceRoom>,
    /// Why there is too little room.
    pub(crate) room_errors: Vec<Diagnostic>,
    /// The error that the settings require tests and there are none.
    pub(crate) requirement: Option<Diagnostic>,
    /// The tests of the policy; `None`: there is no program.
    pub(crate) tests: Option<TestSummary>,
    /// `None`: skipped.
    pub(crate) analysis: Option<Analysis>,
    /// Warnings of the text, of the program and, after [`analysed`](Self::analysed), of the analysis.
    pub(crate) warnings: Vec<Diagnostic>,
}

impl PolicyFindings {
    /// The findings without the analysis. `of_text`: the warnings of the parser. `wants_forms`: whether the
    /// room of each form of rules at run time is needed.
    pub(crate) fn of(
        job: &Job<'_>,
        source: &PolicySource,
        of_text: Vec<Diagnostic>,
        wants_forms: bool,
    ) -> Self {
        let policy = job.policy;
        let report = Report::of(job).with_written_actions(policy);
        let program = report.program.as_ref();
        let room = program.and_then(|program| DeviceRoom::of(job, program, wants_forms));
        let (room_errors, of_room) = reports::room_findings(room.as_ref(), policy, job.profile);
        Self {
            lost: program.map(|program| LostReport::of(policy, program)).unwrap_or_default(),
            protection: ProtectionReport::of(job, program),
            room,
            room_errors,
            requirement: RequiredTests::missing(source, policy),
            tests: program.map(|program| TestSummary::of(policy, &source.folder(), Some(program))),
            analysis: None,
            warnings: [of_text, of_room].concat(),
            report,
        }
    }

    /// Adds the analysis, if it is not skipped, and all warnings, in text order.
    pub(crate) fn analysed(mut self, policy: &Policy, analysis: Option<Analysis>) -> Self {
        let of_text = std::mem::take(&mut self.warnings);
        self.warnings = reports::all_warnings(policy, &self.report, analysis.as_ref(), of_text);
        self.analysis = analysis;
        self
    }

    /// Why the policy is refused, with places.
    pub(crate) fn problems(&self) -> impl Iterator<Item = &Diagnostic> {
        let of_program = self.report.problems.iter().chain(&self.lost.errors);
        let tests = self.tests.iter().flat_map(|tests| &tests.failures);
        of_program
            .chain(&self.protection.errors)
            .chain(&self.room_errors)
            .chain(&self.requirement)
            .chain(tests)
    }

    /// The number of rules that workers decide at least partly.
    pub(crate) fn hybrid(&self) -> usize {
        let is_hybrid = |decided: Decided| matches!(decided, Decided::Hybrid | Decided::PartlyHybrid);
        self.report.rules.iter().filter(|rule| is_hybrid(rule.decided)).count()
    }

    /// The number of rules that no packet reaches, or for which that is not decided.
    pub(crate) fn dead(&self) -> usize {
        let rules = self.analysis.iter().flat_map(|analysis| &analysis.rules);
        rules.filter(|rule| rule.is_dead() || is_open(rule)).count()
    }
}

/// Whether it is not decided that a packet reaches the rule.
fn is_open(rule: &RuleAnalysis) -> bool {
    matches!(rule.reach, Reach::NotDecided(_))
}
