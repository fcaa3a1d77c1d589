//! `check` for people: the rules, how they lie to each other, and what they take of the device. Makes text;
//! prints nothing.

mod capacity;
mod rules;

use std::fmt::Write as _;

use analysis::{Analysis, Need, Pair, Reach, Relation};
use compiler::Obstacle;
use program::RuleId;

use super::{Checked, findings};
use crate::describe;
use crate::paint::{Page, Tone};
use crate::table::{counted, number};

/// Of each kind of finding no more than this are listed for people; JSON has all.
const SHOWN_FINDINGS: usize = 12;

pub(super) fn of(checked: &Checked, page: Page) -> String {
    let report = &checked.report;
    let workers = counted(checked.workers as u64, "worker", "workers");
    let title = format!("{} for {} with {workers}", checked.source, report.device);
    let mut out = format!("{}\n\n{}", page.text(Tone::Head, &title), rules::table(report, page));
    out.push_str(&rules::reasons(report, page));
    if !report.obstacles.is_empty() {
        out.push_str(&obstacles(&report.obstacles, page));
    }
    if let Some(analysis) = &checked.analysis {
        out.push_str(&analysed(checked, analysis, page));
    }
    if let Some(capacity) = &report.capacity {
        out.push_str(&capacity::taken(capacity, page));
    }
    let _ = writeln!(out, "\n{}", verdict(checked, page));
    out
}

fn obstacles(obstacles: &[Obstacle], page: Page) -> String {
    let mut out = format!("\n{}\n", page.text(Tone::Head, "impossible as a whole"));
    for obstacle in obstacles {
        let errno = obstacle.errno.map_or_else(String::new, |errno| format!(" ({errno})"));
        out.push_str(&page.lines(Tone::Bad, "  ", &format!("{}{errno}", obstacle.reason)));
        out.push_str(&page.lines(Tone::Plain, "        limit: ", &obstacle.limit));
        out.push_str(&page.lines(Tone::Plain, "        remedy: ", &obstacle.remedy));
    }
    out
}

/// Findings of one kind.
struct Kind {
    name: &'static str,
    /// What one of them is called.
    one: &'static str,
    tone: Tone,
    lines: Vec<String>,
    count: usize,
}

fn analysed(checked: &Checked, analysis: &Analysis, page: Page) -> String {
    let kinds = kinds(checked, analysis);
    let counts = kinds.iter().map(|kind| counted(kind.count as u64, kind.one, kind.name));
    let counts: Vec<String> = counts.collect();
    let open = match analysis.not_decided {
        0 => String::new(),
        rules => {
            format!("; of {} not all was found out in time", counted(rules as u64, "rule", "rules"))
        }
    };
    let head = "rules among themselves: ";
    let mut out =
        format!("\n{}", page.lines_after(Tone::Head, head, "  ", &format!("{}{open}", counts.join(", "))));
    for kind in kinds {
        let name = format!("  {:<11} ", kind.name);
        for line in kind.lines.iter().take(SHOWN_FINDINGS) {
            out.push_str(&page.lines_after(kind.tone, &name, &" ".repeat(name.len()), line));
        }
        let more = kind.lines.len().saturating_sub(SHOWN_FINDINGS);
        if more > 0 {
            let _ = writeln!(out, "{name}and {} more (--format json has all)", number(more as u64));
        }
    }
    out
}

fn kinds(checked: &Checked, analysis: &Analysis) -> [Kind; 5] {
    let kind = |name, tone| Kind { name, one: name, tone, lines: Vec::new(), count: 0 };
    let mut kinds = [
        kind("shadowed", Tone::Bad),
        kind("redundant", Tone::Doubtful),
        kind("conflicting", Tone::Doubtful),
        Kind { one: "exception", ..kind("exceptions", Tone::Aside) },
        kind("overlapping", Tone::Aside),
    ];
    let [shadowed, redundant, conflicting, exceptions, overlapping] = &mut kinds;
    for (index, rule) in analysis.rules.iter().enumerate() {
        let this = place(checked, RuleId::of(index));
        match (&rule.reach, &rule.need) {
            (Reach::Shadowed(takers), _) => {
                let names = findings::names(&checked.policy, takers);
                shadowed.add(format!("{this}: all its packets go to {names} before it"));
            }
            (Reach::Impossible, _) => {
                shadowed.add(format!("{this}: no packet meets all of its keys together"));
            }
            (Reach::Reached(witness), Need::Redundant) => {
                let packet = describe::witness(witness);
                redundant.add(format!("{this}: without it every packet fares the same, even {packet}"));
            }
            _ => {}
        }
        // Of what is never reached the takers have been told.
        if rule.is_dead() {
            continue;
        }
        let pair = |pair: &Pair, words: &str| {
            format!("{this} {words} {}: {}", place(checked, pair.earlier), describe::witness(&pair.witness))
        };
        for found in &rule.conflicts.listed {
            match found.relation {
                Relation::Exception => exceptions.add(pair(found, "but for")),
                _ => conflicting.add(pair(found, "yields to")),
            }
        }
        conflicting.count += rule.conflicts.count - rule.conflicts.listed.len();
        for found in &rule.overlaps.listed {
            overlapping.add(pair(found, "and"));
        }
        overlapping.count += rule.overlaps.count - rule.overlaps.listed.len();
    }
    kinds
}

impl Kind {
    fn add(&mut self, line: String) {
        self.lines.push(line);
        self.count += 1;
    }
}

/// ```text
/// `web` (line 12)
/// ```
fn place(checked: &Checked, rule: RuleId) -> String {
    match checked.policy.rules.get(rule.index()) {
        Some(rule) => format!("`{}` (line {})", rule.name, rule.name_place.line()),
        None => "the default".to_owned(),
    }
}

fn verdict(checked: &Checked, page: Page) -> String {
    let (source, report) = (&checked.source, &checked.report);
    let Some(program) = &report.program else {
        return page.text(Tone::Bad, &format!("{source}: impossible on {}", report.device));
    };
    if !report.problems.is_empty() {
        return page.text(Tone::Bad, &format!("{source}: {}", super::lost_exceptions(report)));
    }
    let hybrid = match checked.hybrid() {
        0 => String::new(),
        rules => format!(", {rules} of {} rules hybrid", report.rules.len()),
    };
    let warnings = match checked.warnings.len() {
        0 => String::new(),
        warnings => format!(", {}", counted(warnings as u64, "warning", "warnings")),
    };
    let doubtful = !hybrid.is_empty() || !warnings.is_empty();
    let tone = if doubtful { Tone::Doubtful } else { Tone::Good };
    let words = format!(
        "{source}: ok on {}: {} on {}, {}{hybrid}{warnings}",
        report.device,
        counted(program.flows.len() as u64, "flow", "flows"),
        counted(program.priorities_used.into(), "priority", "priorities"),
        counted(program.queues.len() as u64, "queue pair", "queue pairs"),
    );
    page.text(tone, &words)
}
