//! `check` for people: the rules, how they lie to each other, and what they take of the device. Makes text;
//! prints nothing.

use std::fmt::Write as _;

use policy::space::{Analysis, Need, Pair, Reach, Relation};
use policy::{Capacity, CapacityRow, Decided, Obstacle, RuleId, RuleReport};

use super::{Checked, findings};
use crate::describe;
use crate::paint::{Paint, Tone};
use crate::table::{Grid, counted, number};

/// Of each kind of finding no more than this are listed for people; JSON has all.
const SHOWN_FINDINGS: usize = 12;
/// As many priorities are listed one by one.
const SHOWN_PRIORITIES: usize = 16;

pub(super) fn of(checked: &Checked, paint: Paint) -> String {
    let report = &checked.report;
    let workers = counted(checked.workers as u64, "worker", "workers");
    let title = format!("{} for {} with {workers}", checked.source, report.device);
    let mut out = format!("{}\n\n{}", paint.text(Tone::Head, &title), rules(&report.rules, paint));
    if !report.obstacles.is_empty() {
        out.push_str(&obstacles(&report.obstacles, paint));
    }
    if let Some(analysis) = &checked.analysis {
        out.push_str(&analysed(checked, analysis, paint));
    }
    if let Some(capacity) = &report.capacity {
        out.push_str(&taken(capacity, paint));
    }
    let _ = writeln!(out, "\n{}", verdict(checked, paint));
    out
}

fn rules(rules: &[RuleReport], paint: Paint) -> String {
    let mut grid = Grid::new(&["line", "rule", "action", "flows", "decided in"]);
    for rule in rules {
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
    let mut out = format!("{}\n", paint.text(Tone::Head, lines.next().unwrap_or_default().trim_end()));
    let width = text.lines().next().map_or(0, |head| head.len() - "decided in".len());
    for (line, rule) in lines.zip(rules) {
        let (tone, words) = match rule.decided {
            Decided::Hardware => (Tone::Good, "hardware"),
            Decided::PartlyHybrid => (Tone::Doubtful, "hardware, partly hybrid"),
            Decided::Hybrid => (Tone::Doubtful, "hybrid"),
            Decided::Impossible => (Tone::Bad, "impossible"),
            Decided::Unknown => (Tone::Aside, "not known"),
        };
        let _ = writeln!(out, "{line:<width$}{}", paint.text(tone, words));
        for detail in details(rule) {
            let _ = writeln!(out, "        {}", paint.text(Tone::Aside, &detail));
        }
    }
    out
}

/// How a rule shows in others' flows; why it is not the device's alone, how the device would say so, and what
/// to do.
fn details(rule: &RuleReport) -> Vec<String> {
    let mut lines: Vec<String> = rule.note.iter().cloned().collect();
    if let Some(reason) = &rule.reason {
        let mut line = reason.clone();
        // Most reasons name it already.
        if let Some(errno) = rule.errno.map(|errno| errno.to_string()).filter(|name| !reason.contains(name)) {
            let _ = write!(line, " ({errno})");
        }
        if rule.steps > 1 {
            let _ = write!(line, "; a worker asks up to {} questions per packet", number(rule.steps.into()));
        }
        lines.push(line);
    }
    lines.extend(rule.limit.as_ref().map(|limit| format!("limit: {limit}")));
    lines.extend(rule.remedy.as_ref().map(|remedy| format!("remedy: {remedy}")));
    lines
}

fn obstacles(obstacles: &[Obstacle], paint: Paint) -> String {
    let mut out = format!("\n{}\n", paint.text(Tone::Head, "impossible as a whole"));
    for obstacle in obstacles {
        let errno = obstacle.errno.map_or_else(String::new, |errno| format!(" ({errno})"));
        let _ = writeln!(out, "  {}{errno}", paint.text(Tone::Bad, &obstacle.reason));
        let _ = writeln!(out, "        limit: {}", obstacle.limit);
        let _ = writeln!(out, "        remedy: {}", obstacle.remedy);
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

fn analysed(checked: &Checked, analysis: &Analysis, paint: Paint) -> String {
    let kinds = kinds(checked, analysis);
    let counts = kinds.iter().map(|kind| counted(kind.count as u64, kind.one, kind.name));
    let counts: Vec<String> = counts.collect();
    let open = match analysis.not_decided {
        0 => String::new(),
        rules => {
            format!("; of {} not all was found out in time", counted(rules as u64, "rule", "rules"))
        }
    };
    let mut out =
        format!("\n{} {}{open}\n", paint.text(Tone::Head, "rules among themselves:"), counts.join(", "));
    for kind in kinds {
        for line in kind.lines.iter().take(SHOWN_FINDINGS) {
            let _ = writeln!(out, "  {} {line}", paint.text(kind.tone, &format!("{:<11}", kind.name)));
        }
        let more = kind.lines.len().saturating_sub(SHOWN_FINDINGS);
        if more > 0 {
            let _ =
                writeln!(out, "  {:<11} and {} more (--format json has all)", kind.name, number(more as u64));
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
                let words = "without it all would be treated alike";
                redundant.add(format!("{this}: {words}, also {}", describe::witness(witness)));
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

fn taken(capacity: &Capacity, paint: Paint) -> String {
    let mut grid = Grid::new(&[&format!("taken of {}", capacity.device), "used", "of", ""]);
    let rows = capacity.rows.iter().filter(|row| row.used > 0 || row.exceeds());
    for row in rows {
        let most = row.most.map_or_else(|| "-".to_owned(), number);
        grid.row(vec![row.what.to_owned(), number(row.used), most, remark(row)]);
    }
    let text = grid.text();
    let (head, rest) = text.split_once('\n').unwrap_or((&text, ""));
    let rest: String = rest.lines().map(|line| format!("{}\n", line.trim_end())).collect();
    let mut out = format!("\n{}\n{rest}", paint.text(Tone::Head, head.trim_end()));
    if capacity.priorities.iter().all(|priority| priority.most.is_none()) {
        return out;
    }
    let mut grid = Grid::new(&["priority", "flows", "masks", "largest mask", "of"]);
    for priority in capacity.priorities.iter().take(SHOWN_PRIORITIES) {
        let most = priority.most.map_or_else(String::new, |(masks, flows)| {
            format!("{masks} masks of {} flows", number(flows.into()))
        });
        grid.row(vec![
            priority.priority.to_string(),
            number(priority.flows),
            number(priority.shapes),
            number(priority.largest_shape),
            most,
        ]);
    }
    let more = capacity.priorities.len().saturating_sub(SHOWN_PRIORITIES);
    let _ = write!(out, "\n{}", grid.text());
    if more > 0 {
        let _ = writeln!(out, "and {more} more");
    }
    out
}

fn remark(row: &CapacityRow) -> String {
    if row.exceeds() {
        format!("too many: {}", row.errno)
    } else if row.blocks_a_reload() {
        format!("no room for a reload: {}", row.errno)
    } else if row.most.is_some_and(|most| row.used > most) {
        format!("not all: {}", row.errno)
    } else {
        String::new()
    }
}

fn verdict(checked: &Checked, paint: Paint) -> String {
    let (source, report) = (&checked.source, &checked.report);
    let Some(program) = &report.program else {
        return paint.text(Tone::Bad, &format!("{source}: impossible on {}", report.device));
    };
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
    paint.text(tone, &words)
}
