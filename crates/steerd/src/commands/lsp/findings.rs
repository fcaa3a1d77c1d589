//! The findings of `check` for an editor: errors and warnings as they are, and at the rules that they are
//! about the lines that `check` prints in its tables.

use analysis::{Analysis, Need, Reach, Relation};
use policy::{Diagnostic, Diagnostics, MAX_DIAGNOSTICS, Policy, Severity};
use policy_lsp::{CheckedPolicy, FindingLevel, PolicyFinding};
use reports::{Decided, PolicyFindings};

use super::rule_notes::rule_notes;
use crate::carving::CarvedPolicy;
use crate::commands::check::reasons_of;
use crate::policy_tests::{TestFindings, TestSummary};

/// The problems of a text, its includes and its sets.
pub(super) fn errors_in_text(problems: &Diagnostics) -> CheckedPolicy {
    let findings = problems.list.iter().map(|problem| finding("text", problem.clone())).collect();
    CheckedPolicy { findings, omitted: problems.omitted, ..CheckedPolicy::default() }
}

/// The warnings of a text without errors.
pub(super) fn warnings_of_text(warnings: &[Diagnostic]) -> CheckedPolicy {
    let findings = warnings.iter().map(|warning| finding("text", warning.clone())).collect();
    CheckedPolicy { findings, ..CheckedPolicy::default() }
}

/// The findings of a policy that carves queues.
pub(super) fn of_carved(carved: &CarvedPolicy, tests: &TestSummary) -> CheckedPolicy {
    let problems = carved.problems.list.iter().map(|problem| finding("device", problem.clone()));
    let failed = tests.failures.iter().map(|failure| finding("test", failure.clone()));
    let warnings = carved.warnings.iter().map(|warning| finding("warning", warning.clone()));
    limited(problems.chain(failed).chain(warnings).collect(), carved.problems.omitted)
}

/// The findings of a policy for a device.
pub(super) fn of_policy(policy: &Policy, found: &PolicyFindings, tests: &TestFindings) -> CheckedPolicy {
    let problems =
        found.problems().chain(&tests.requirement).map(|problem| finding("device", problem.clone()));
    let failed = tests.failures().map(|failure| finding("test", failure.clone()));
    let warnings = found.warnings.iter().map(|warning| finding("warning", warning.clone()));
    let mut findings: Vec<PolicyFinding> = problems.chain(failed).chain(warnings).collect();
    findings.extend(hybrid_rules(policy, found).take(MAX_DIAGNOSTICS));
    if let Some(analysis) = &found.analysis {
        findings.extend(conflicts(policy, analysis).take(MAX_DIAGNOSTICS));
        findings.extend(redundant_rules(policy, analysis).take(MAX_DIAGNOSTICS));
    }
    let rules = rule_notes(policy, found);
    CheckedPolicy { rules, ..limited(findings, 0) }
}

/// The first findings, which are the most serious ones; the others are counted.
fn limited(mut findings: Vec<PolicyFinding>, omitted: usize) -> CheckedPolicy {
    /// An editor shows them all at once.
    const MAX_FINDINGS: usize = 4 * MAX_DIAGNOSTICS;
    let more = findings.len().saturating_sub(MAX_FINDINGS);
    findings.truncate(MAX_FINDINGS);
    CheckedPolicy { findings, omitted: omitted + more, ..CheckedPolicy::default() }
}

fn finding(code: &'static str, diagnostic: Diagnostic) -> PolicyFinding {
    let level = match diagnostic.severity {
        Severity::Error => FindingLevel::Error,
        Severity::Warning => FindingLevel::Warning,
    };
    PolicyFinding { level, code, diagnostic }
}

/// The rules that workers decide, with the reasons and the remedy.
fn hybrid_rules<'p>(
    policy: &'p Policy,
    found: &'p PolicyFindings,
) -> impl Iterator<Item = PolicyFinding> + 'p {
    let report = &found.report;
    let rules = policy.rules.iter().zip(&report.rules).enumerate();
    let hybrid = rules.filter(|(_, (_, of_rule))| of_rule.decided == Decided::Hybrid);
    hybrid.map(move |(index, (rule, of_rule))| {
        let reasons = reasons_of(report, index, of_rule).into_iter();
        let reasons: Vec<String> = reasons.map(|(key, words)| format!("{key}: {words}")).collect();
        let message = format!("workers decide packets of `{}`: {}", rule.name, reasons.join("; "));
        let diagnostic = rule.name_place.warning(message, "this rule");
        let diagnostic = of_rule.remedy.iter().fold(diagnostic, Diagnostic::hint);
        PolicyFinding { level: FindingLevel::Information, code: "hybrid", diagnostic }
    })
}

/// The rules that earlier ones with another action take packets from, unless these are exceptions.
fn conflicts<'p>(policy: &'p Policy, analysis: &'p Analysis) -> impl Iterator<Item = PolicyFinding> + 'p {
    let rules = policy.rules.iter().zip(&analysis.rules).filter(|(_, found)| !found.is_dead());
    rules.flat_map(move |(rule, found)| {
        let pairs = found.conflicts.listed.iter().filter(|pair| pair.relation != Relation::Exception);
        pairs.filter_map(move |pair| {
            let earlier = policy.rules.get(pair.earlier.index())?;
            let message = format!("`{}` is overridden by `{}`: {}", rule.name, earlier.name, pair.witness);
            let diagnostic = rule.name_place.warning(message, "this rule");
            let diagnostic =
                diagnostic.related(&earlier.name_place, format!("`{}` takes such packets", earlier.name));
            Some(PolicyFinding { level: FindingLevel::Information, code: "conflict", diagnostic })
        })
    })
}

/// The rules without which every packet is treated the same.
fn redundant_rules<'p>(
    policy: &'p Policy,
    analysis: &'p Analysis,
) -> impl Iterator<Item = PolicyFinding> + 'p {
    let rules = policy.rules.iter().zip(&analysis.rules);
    rules.filter_map(|(rule, found)| match (&found.reach, &found.need) {
        (Reach::Reached(witness), Need::Redundant) => {
            let message = format!("without `{}` every packet is treated the same, e.g. {witness}", rule.name);
            let diagnostic = rule.name_place.warning(message, "this rule");
            Some(PolicyFinding { level: FindingLevel::Unnecessary, code: "redundant", diagnostic })
        }
        _ => None,
    })
}
