//! What the exact analysis finds, as warnings with places, and beside them those of the text and the program.
//! `check` alone calls it; it judges nothing that `compiler` or `analysis` has not found.

use std::collections::HashSet;

use analysis::{Analysis, Reach, RuleAnalysis};
use compiler::Report;
use policy::{Diagnostic, Policy};
use program::RuleId;

/// So many names are told of a longer list.
const SHOWN_NAMES: usize = 4;

/// All warnings in the order of the text. The compiler, too, sees rules that never match, but not all of them
/// and not always by whom: of a rule that the analysis calls dead it alone speaks.
pub(super) fn warnings(
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
                warnings.push(warn().hint(hint));
            }
            Reach::NotDecided(why) => {
                let message = format!("it is not known whether the rule `{}` ever matches", rule.name);
                warnings.push(rule.name_place.warning(message, "this rule").hint(why.clone()));
            }
        }
    }
    warnings.sort_by(|a, b| (&a.file, a.line, a.column).cmp(&(&b.file, b.line, b.column)));
    warnings
}

fn never_matches(name: &str) -> String {
    format!("the rule `{name}` never matches")
}

/// Whether it could not be told that some packet comes to a rule.
pub(super) fn is_open(rule: &RuleAnalysis) -> bool {
    matches!(rule.reach, Reach::NotDecided(_))
}

/// The first few names of rules, quoted.
pub(super) fn names(policy: &Policy, rules: &[RuleId]) -> String {
    let named = rules.iter().filter_map(|rule| policy.rules.get(rule.index()));
    let shown: Vec<String> = named.take(SHOWN_NAMES).map(|rule| format!("`{}`", rule.name)).collect();
    match rules.len().saturating_sub(SHOWN_NAMES) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
