//! The facts about a rule for an editor, from the report and the analysis.

use std::fmt::Write as _;

use analysis::{Analysis, Reach};
use compiler::Capacity;
use device_model::Limit;
use policy::Policy;
use policy_lsp::RuleNote;
use program::Flow;
use reports::{PolicyFindings, Report, RuleReport};

use crate::commands::check::{decided_words, reasons_of};
use crate::terminal::numbers::{counted, number};

/// The most flows that the details of a rule list.
const SHOWN_FLOWS: usize = 8;

/// The facts about every rule.
pub(super) fn rule_notes(policy: &Policy, found: &PolicyFindings) -> Vec<RuleNote> {
    let report = &found.report;
    let mut flows: Vec<Vec<&Flow>> = vec![Vec::new(); policy.rules.len()];
    for flow in report.program.iter().flat_map(|program| &program.flows) {
        flows.get_mut(flow.rule.index()).into_iter().for_each(|of_rule| of_rule.push(flow));
    }
    let rules = report.rules.iter().zip(&flows).enumerate();
    let note = |(index, (rule, flows)): (usize, (&RuleReport, &Vec<&Flow>))| RuleNote {
        name: rule.name.clone(),
        label: label(report, index, rule),
        details: details(policy, found, index, flows),
    };
    rules.map(note).collect()
}

/// `3 flows, hardware`
fn label(report: &Report, index: usize, rule: &RuleReport) -> String {
    let decided = decided_words(report, index, rule);
    match report.program {
        Some(_) => format!("{}, {decided}", counted(rule.flows.into(), "flow", "flows")),
        None => decided,
    }
}

/// The details in Markdown: a line for each fact, and the flows as code.
fn details(policy: &Policy, found: &PolicyFindings, index: usize, flows: &[&Flow]) -> String {
    let report = &found.report;
    let Some(rule) = report.rules.get(index) else { return String::new() };
    let mut text = format!("on {}: {}", report.device, rule.action);
    if let Some(definition) = policy.rules.get(index) {
        let _ = write!(text, "\n\n```toml\n{}\n```", analysis::match_text(&definition.matches));
    }
    for (key, words) in reasons_of(report, index, rule) {
        let _ = write!(text, "\n\n{key}: {words}");
    }
    for line in rule.note.iter().cloned().chain(rule.remedy.iter().map(|remedy| format!("remedy: {remedy}")))
    {
        let _ = write!(text, "\n\n{line}");
    }
    if let Some(share) = &rule.share {
        let hardware = 100.0 - share.hybrid_percent().unwrap_or(0.0);
        let ns = share.worker_ns_per_packet();
        let _ = write!(
            text,
            "\n\n{hardware:.1}% of {} drawn from the rule are decided in hardware; expected {ns:.0} ns of a worker per \
             packet",
            counted(share.packets, "packet", "packets")
        );
    }
    if let Some(packet) = example(found.analysis.as_ref(), index) {
        let _ = write!(text, "\n\nexample: `{packet}`");
    }
    if !flows.is_empty() {
        let _ = write!(text, "\n\n```text");
        for flow in flows.iter().take(SHOWN_FLOWS) {
            let _ = write!(text, "\npriority {}: {flow}", flow.priority);
        }
        let more = flows.len().saturating_sub(SHOWN_FLOWS);
        if more > 0 {
            let _ = write!(text, "\nand {} more", number(more as u64));
        }
        text.push_str("\n```");
    }
    text.push_str(&report.capacity.as_ref().and_then(capacity).unwrap_or_default());
    text
}

/// A packet that reaches the rule.
fn example(analysis: Option<&Analysis>, index: usize) -> Option<String> {
    match &analysis?.rules.get(index)?.reach {
        Reach::Reached(witness) => Some(policy::short_packet(&witness.key())),
        Reach::Impossible | Reach::Shadowed(_) | Reach::NotDecided(_) => None,
    }
}

/// The flows of the whole policy against the limit of the device.
fn capacity(capacity: &Capacity) -> Option<String> {
    let row = capacity.rows.iter().find(|row| row.limit == Limit::Flows)?;
    let most = row.most.map_or_else(String::new, |most| format!(" of {}", number(most)));
    Some(format!("\n\nthe policy: {}{most} flows on {}", number(row.used), capacity.device))
}
