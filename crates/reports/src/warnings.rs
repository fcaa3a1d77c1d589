//! The warnings of `steerd check`: of the text, of the compiled program and of the analysis in one list.

use std::collections::HashSet;

use analysis::{Analysis, Reach, RuleAnalysis};
use policy::{Diagnostic, Policy};
use program::RuleId;

use crate::protection::protection_warning;
use crate::report::Report;

/// The most names that are listed.
const SHOWN_NAMES: usize = 4;

/// All warnings about a policy on a device, in text order: of its text, of the report and of the analysis.
/// The compiler, too, finds rules that never match, but not all of them; if the
/// analysis finds such a rule, the compiler's warning is left out.
#[must_use]
pub fn all_warnings(
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
                let hint = format!("all its packets go to {} before it", rule_names(policy, takers));
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
    warnings.extend(protection_warning(policy));
    warnings.sort_by(|a, b| (&a.file, a.line, a.column).cmp(&(&b.file, b.line, b.column)));
    warnings
}

fn never_matches(name: &str) -> String {
    format!("the rule `{name}` never matches")
}

/// The first names of rules, quoted.
#[must_use]
pub fn rule_names(policy: &Policy, rules: &[RuleId]) -> String {
    let named = rules.iter().filter_map(|rule| policy.rules.get(rule.index()));
    let shown: Vec<String> = named.take(SHOWN_NAMES).map(|rule| format!("`{}`", rule.name)).collect();
    match rules.len().saturating_sub(SHOWN_NAMES) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
