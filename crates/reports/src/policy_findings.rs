//! The findings about a policy and a device model: the report of the compiler, lost and protected packets,
//! room for rules at run time, and the analysis of the rules. `steerd check`, the language server and the
//! playground show them.

use analysis::{Analysis, Reach};
use compiler::Job;
use policy::{Diagnostic, Policy};

use crate::device_room::{DeviceRoom, room_findings};
use crate::lost_exceptions::LostReport;
use crate::protection::ProtectionReport;
use crate::report::{Decided, Report};
use crate::warnings::all_warnings;

/// The findings for a policy without errors in its text.
pub struct PolicyFindings {
    /// Where each rule is decided, and the program.
    pub report: Report,
    /// Packets that the policy leaves to the kernel and that a worker receives.
    pub lost: LostReport,
    /// The outcome of the protected packets.
    pub protection: ProtectionReport,
    /// The room of the device for rules at run time; `None`: there is no program, or none may be there.
    pub room: Option<DeviceRoom>,
    /// Why there is too little room.
    pub room_errors: Vec<Diagnostic>,
    /// `None`: skipped.
    pub analysis: Option<Analysis>,
    /// Warnings of the text, of the program and, after [`analysed`](Self::analysed), of the analysis.
    pub warnings: Vec<Diagnostic>,
}

impl PolicyFindings {
    /// The findings without the analysis. `of_text`: the warnings of the parser. `wants_forms`: whether the
    /// room of each form of rules at run time is needed.
    #[must_use]
    pub fn of(job: &Job<'_>, of_text: Vec<Diagnostic>, wants_forms: bool) -> Self {
        let policy = job.policy;
        let report = Report::of(job).with_written_actions(policy);
        let program = report.program.as_ref();
        let room = program.and_then(|program| DeviceRoom::of(job, program, wants_forms));
        let (room_errors, of_room) = room_findings(room.as_ref(), policy, job.profile);
        Self {
            lost: program.map(|program| LostReport::of(policy, program)).unwrap_or_default(),
            protection: ProtectionReport::of(job, program),
            room,
            room_errors,
            analysis: None,
            warnings: [of_text, of_room].concat(),
            report,
        }
    }

    /// Adds the analysis, if it is not skipped, and all warnings, in text order.
    #[must_use]
    pub fn analysed(mut self, policy: &Policy, analysis: Option<Analysis>) -> Self {
        let of_text = std::mem::take(&mut self.warnings);
        self.warnings = all_warnings(policy, &self.report, analysis.as_ref(), of_text);
        self.analysis = analysis;
        self
    }

    /// Why the policy is refused, with places.
    pub fn problems(&self) -> impl Iterator<Item = &Diagnostic> {
        let of_program = self.report.problems.iter().chain(&self.lost.errors);
        of_program.chain(&self.protection.errors).chain(&self.room_errors)
    }

    /// The number of rules that workers decide at least partly.
    pub fn hybrid(&self) -> usize {
        let is_hybrid = |decided: Decided| matches!(decided, Decided::Hybrid | Decided::PartlyHybrid);
        self.report.rules.iter().filter(|rule| is_hybrid(rule.decided)).count()
    }

    /// The number of rules that no packet reaches, or for which that is not decided.
    pub fn dead(&self) -> usize {
        let rules = self.analysis.iter().flat_map(|analysis| &analysis.rules);
        rules.filter(|rule| rule.is_dead() || matches!(rule.reach, Reach::NotDecided(_))).count()
    }
}
