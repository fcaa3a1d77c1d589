//! The rules of a policy, a line each, and below them each reason once why a device does not decide alone, and each
//! remedy with the rules that it is for: on a device that lacks something, all rules have the same reasons.

use std::fmt::Write as _;

use compiler::{Decided, Report, RuleReport};

use crate::paint::{Page, Tone};
use crate::table::{Grid, counted};

/// So many rules are named behind a remedy.
const SHOWN_RULES: usize = 8;

/// A line for each rule.
pub(super) fn table(report: &Report, page: Page) -> String {
    let mut grid = Grid::new(&["line", "rule", "action", "flows", "decided in"]);
    for rule in &report.rules {
        grid.row(vec![
            if rule.line > 0 { rule.line.to_string() } else { "-".into() },
            rule.name.clone(),
            rule.action.clone(),
            rule.flows.to_string(),
            String::new(),
        ]);
    }
    let text = grid.text();
    let mut lines = text.lines();
    let head = lines.next().unwrap_or_default();
    let mut out = format!("{}\n", page.text(Tone::Head, head));
    let width = head.chars().count().saturating_sub("decided in".len());
    for (index, (line, rule)) in lines.zip(&report.rules).enumerate() {
        let (tone, words) = decided(report, index, rule);
        let before = format!("{line}{}", " ".repeat(width.saturating_sub(line.chars().count())));
        out.push_str(&page.lines(tone, &before, &words));
        // How it shows in others' flows is a matter of this rule alone.
        if let Some(note) = &rule.note {
            out.push_str(&page.lines(Tone::Aside, "        ", note));
        }
    }
    out
}

/// Where a rule is decided, and the keys that keep it from being decided by the device alone.
fn decided(report: &Report, index: usize, rule: &RuleReport) -> (Tone, String) {
    match rule.decided {
        Decided::Hardware => (Tone::Good, "hardware".to_owned()),
        Decided::PartlyHybrid => (Tone::Doubtful, "hardware, partly hybrid".to_owned()),
        Decided::Hybrid => {
            let keys: Vec<&str> = notes(report, index).map(|(key, _)| key).collect();
            let mut words = "hybrid".to_owned();
            if !keys.is_empty() {
                let _ = write!(words, ": {}", keys.join(", "));
            }
            if rule.steps > 1 {
                let _ = write!(words, " (up to {})", counted(rule.steps.into(), "question", "questions"));
            }
            (Tone::Doubtful, words)
        }
        Decided::Impossible => (Tone::Bad, "impossible".to_owned()),
        Decided::Unknown => (Tone::Aside, "not known".to_owned()),
    }
}

/// Key and reason of all that workers finish of a rule.
fn notes(report: &Report, index: usize) -> impl Iterator<Item = (&str, String)> {
    let rules = report.program.iter().filter_map(move |program| program.rules.get(index));
    rules.flat_map(|rule| &rule.unfinished).map(|note| (note.key.as_str(), note.why.words()))
}

/// Everything that the table names without saying why.
pub(super) fn reasons(report: &Report, page: Page) -> String {
    let mut reasons: Vec<(String, String)> = Vec::new();
    let mut remedies: Vec<(String, Vec<&str>)> = Vec::new();
    for (index, rule) in report.rules.iter().enumerate() {
        for (name, words) in told(report, index, rule) {
            if !reasons.contains(&(name.clone(), words.clone())) {
                reasons.push((name, words));
            }
        }
        let Some(remedy) = &rule.remedy else { continue };
        match remedies.iter_mut().find(|(known, _)| known == remedy) {
            Some((_, names)) => names.push(&rule.name),
            None => remedies.push((remedy.clone(), vec![&rule.name])),
        }
    }
    if reasons.is_empty() {
        return String::new();
    }
    let title = if report.program.is_some() { "why workers decide" } else { "why not" };
    let mut out = format!("\n{}\n", page.text(Tone::Head, title));
    let width = reasons.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    for (name, words) in &reasons {
        out.push_str(&page.lines(Tone::Plain, &format!("  {name:<width$}  "), words));
    }
    for (remedy, names) in remedies {
        let more = names.len().saturating_sub(SHOWN_RULES);
        let mut of: Vec<String> = names.iter().take(SHOWN_RULES).map(|name| format!("`{name}`")).collect();
        of.extend((more > 0).then(|| format!("{more} more")));
        out.push_str(&page.lines(Tone::Plain, "  remedy: ", &format!("{remedy} ({})", of.join(", "))));
    }
    out
}

/// What there is to say of one rule: by key, or else by what the table says of it.
fn told(report: &Report, index: usize, rule: &RuleReport) -> Vec<(String, String)> {
    let reason = rule.reason.clone();
    match rule.decided {
        Decided::Hardware | Decided::Unknown => Vec::new(),
        Decided::PartlyHybrid => {
            reason.map(|reason| ("partly hybrid".to_owned(), reason)).into_iter().collect()
        }
        Decided::Impossible => {
            let name = format!("`{}` ", rule.name);
            let words = |reason: String| {
                let errno = rule.errno.map(|errno| format!(" ({errno})")).unwrap_or_default();
                let limit = rule.limit.as_ref().map(|limit| format!("; limit: {limit}")).unwrap_or_default();
                format!("{}{errno}{limit}", reason.strip_prefix(&name).unwrap_or(&reason))
            };
            reason.map(|reason| (rule.name.clone(), words(reason))).into_iter().collect()
        }
        Decided::Hybrid => {
            let notes: Vec<_> = notes(report, index).map(|(key, words)| (key.to_owned(), words)).collect();
            match notes.is_empty() {
                true => reason.map(|reason| ("hybrid".to_owned(), reason)).into_iter().collect(),
                false => notes,
            }
        }
    }
}
