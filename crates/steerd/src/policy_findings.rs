//! The findings about a policy and a device model: the report of the compiler, lost and protected packets,
//! room for rules at run time, tests, and the analysis of the rules. `check` prints them and the language
//! server shows them in an editor, so that both say the same.

use std::collections::HashSet;

use analysis::{Analysis, Reach, RuleAnalysis};
use compiler::Job;
use policy::{Diagnostic, Policy};
use program::RuleId;
use reports::{Decided, DeviceRoom, Report};

use crate::lost_exceptions::Lost;
use crate::policy_tests::{RequiredTests, TestSummary};
use crate::protection::{self, Protection};
use crate::settings::PolicySource;
use crate::{effects, policy_file};

/// The findings for a policy without errors in its text.
pub(crate) struct PolicyFindings {
    pub(crate) report: Report,
    /// Packets that the policy leaves to the kernel and that a worker receives.
    pub(crate) lost: Lost,
    /// The outcome of the protected packets.
    pub(crate) protection: Protection,
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
        let report = report_of(job);
        let program = report.program.as_ref();
        let room = program.and_then(|program| DeviceRoom::of(job, program, wants_forms));
        let (room_errors, of_room) = policy_file::of_room(room.as_ref(), policy, job.profile);
        Self {
            lost: program.map(|program| Lost::of(policy, program)).unwrap_or_default(),
            protection: Protection::of(policy, program),
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
        self.warnings = all_warnings(policy, &self.report, analysis.as_ref(), of_text);
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

/// The report with the actions as the policy has them.
fn report_of(job: &Job<'_>) -> Report {
    let mut report = Report::of(job);
    for (index, rule) in report.rules.iter_mut().enumerate() {
        rule.action = effects::written(job.policy, index);
    }
    report
}

/// The most names that are listed.
const SHOWN_NAMES: usize = 4;

/// All warnings in text order. The compiler, too, finds rules that never match, but not all of them; if the
/// analysis finds such a rule, the compiler's warning is left out.
fn all_warnings(
    policy: &Policy,
    report: &Report,
    analysis: Option<&Analysis>,
    of_text: Vec<Diagnostic>,
) -> Vec<Diagnostic> {
    let mut warnings = of_text;
    let rules: Vec<&RuleAnalysis> = analysis.iter().flat_map(|analysis| &analysis.rules).collect();
    let dead = policy.rules.iter().zip(&rules).filter(|(_, found)| found.is_dead());
    let dead: HashSet<String> = dead.map(|(rule, _)| never_matches(&rule.name)).collect();
    warnings.extend(report.warnings.iter().filter(|warning| !dead.contains(&warning.message)).cloned());
    for (rule, found) in policy.rules.iter().zip(rules) {
        let warn = || rule.name_place.warning(never_matches(&rule.name), "this rule");
        match &found.reach {
            Reach::Reached(_) => {}
            Reach::Impossible => warnings.push(warn().hint("no packet meets all of its keys together")),
            Reach::Shadowed(takers) => {
                let hint = format!("all its packets go to {} before it", names(policy, takers));
                let takers = takers.iter().filter_map(|taker| policy.rules.get(taker.index()));
                let takers = takers.take(SHOWN_NAMES);
                let warning = takers.fold(warn().hint(hint), |warning, taker| {
                    warning.related(&taker.name_place, format!("`{}` takes its packets", taker.name))
                });
                warnings.push(warning);
            }
            Reach::NotDecided(why) => {
                let message = format!("it is not known whether the rule `{}` ever matches", rule.name);
                warnings.push(rule.name_place.warning(message, "this rule").hint(why.clone()));
            }
        }
    }
    warnings.extend(protection::warning(policy));
    warnings.sort_by(|a, b| (&a.file, a.line, a.column).cmp(&(&b.file, b.line, b.column)));
    warnings
}

fn never_matches(name: &str) -> String {
    format!("the rule `{name}` never matches")
}

/// Whether it is not decided that a packet reaches the rule.
fn is_open(rule: &RuleAnalysis) -> bool {
    matches!(rule.reach, Reach::NotDecided(_))
}

/// The first names, quoted.
pub(crate) fn names(policy: &Policy, rules: &[RuleId]) -> String {
    let named = rules.iter().filter_map(|rule| policy.rules.get(rule.index()));
    let shown: Vec<String> = named.take(SHOWN_NAMES).map(|rule| format!("`{}`", rule.name)).collect();
    match rules.len().saturating_sub(SHOWN_NAMES) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
