//! `check --format text`: tables of the rules and of the capacity, with reasons, remedies and findings.

use std::fmt::Write as _;
use std::time::Duration;

use analysis::{Analysis, Need, Pair, Reach, Relation};
use compiler::{Capacity, CapacityRow, FlowGroups, Obstacle};
use device_model::Limit;
use program::{Decider, RuleId, SinkId};
use reports::{Amount, Decided, DeviceRoom, Report, RuleReport, rule_names};
use xdp::ClaimReport;

use super::Checked;
use super::interface::{DecidedPackets, DecidedTraffic, OnInterface};
use crate::daemon::placement::Placement;

use crate::terminal::numbers::{bytes, counted, duration, number, percent_of};
use crate::terminal::style::{Layout, Style};
use crate::terminal::table::Grid;

/// The most findings of each kind that are listed; JSON has all.
const SHOWN_FINDINGS: usize = 12;

pub(super) fn of(checked: &Checked, layout: Layout) -> String {
    let report = &checked.findings.report;
    let workers = counted(checked.workers as u64, "worker", "workers");
    let title = format!("{} for {} with {workers}", checked.source, report.device);
    let mut out = format!("{}\n\n{}", layout.text(Style::Heading, &title), rules_table(report, layout));
    if let Some(interface) = &checked.interface {
        out.push_str(&on_interface(checked, interface, layout));
    }
    out.push_str(&sinks_table(checked, layout));
    out.push_str(&reasons(report, layout));
    out.push_str(&shares(report, layout));
    out.push_str(&traffic(checked, layout));
    out.push_str(&counted_packets(checked, layout));
    if !report.obstacles.is_empty() {
        out.push_str(&obstacles(&report.obstacles, layout));
    }
    if let Some(analysis) = &checked.findings.analysis {
        out.push_str(&analysed(checked, analysis, layout));
    }
    if let Some(capacity) = &report.capacity {
        out.push_str(&capacity_table(report, capacity, layout));
    }
    if let Some(room) = &checked.findings.room {
        out.push_str(&room_table(room, layout));
    }
    let _ = writeln!(out, "\n{}", verdict(checked, layout));
    out
}

fn obstacles(obstacles: &[Obstacle], layout: Layout) -> String {
    let mut out = format!("\n{}\n", layout.text(Style::Heading, "the policy as a whole is impossible"));
    for obstacle in obstacles {
        let errno = obstacle.errno.map_or_else(String::new, |errno| format!(" ({errno})"));
        out.push_str(&layout.lines(Style::Bad, "  ", &format!("{}{errno}", obstacle.reason)));
        out.push_str(&layout.lines(Style::Plain, "        limit: ", &obstacle.limit));
        out.push_str(&layout.lines(Style::Plain, "        remedy: ", &obstacle.remedy));
    }
    out
}

/// Findings of one kind.
struct Kind {
    name: &'static str,
    /// The singular of `name`.
    one: &'static str,
    tone: Style,
    lines: Vec<String>,
    count: usize,
}

fn analysed(checked: &Checked, analysis: &Analysis, layout: Layout) -> String {
    let kinds = kinds(checked, analysis);
    let counts = kinds.iter().map(|kind| counted(kind.count as u64, kind.one, kind.name));
    let counts: Vec<String> = counts.collect();
    let open = match analysis.not_decided {
        0 => String::new(),
        rules => {
            format!("; {} not completely analysed in time", counted(rules as u64, "rule", "rules"))
        }
    };
    let head = "rule interactions: ";
    let mut out = format!(
        "\n{}",
        layout.lines_after(Style::Heading, head, "  ", &format!("{}{open}", counts.join(", ")))
    );
    for kind in kinds {
        let name = format!("  {:<11} ", kind.name);
        for line in kind.lines.iter().take(SHOWN_FINDINGS) {
            out.push_str(&layout.lines_after(kind.tone, &name, &" ".repeat(name.len()), line));
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
        kind("shadowed", Style::Bad),
        kind("redundant", Style::Warning),
        kind("conflicting", Style::Warning),
        Kind { one: "exception", ..kind("exceptions", Style::Dim) },
        kind("overlapping", Style::Dim),
    ];
    let [shadowed, redundant, conflicting, exceptions, overlapping] = &mut kinds;
    for (index, rule) in analysis.rules.iter().enumerate() {
        let this = place(checked, RuleId::of(index));
        match (&rule.reach, &rule.need) {
            (Reach::Shadowed(takers), _) => {
                let names = rule_names(&checked.policy, takers);
                shadowed.add(format!("{this}: all its packets go to {names} before it"));
            }
            (Reach::Impossible, _) => {
                shadowed.add(format!("{this}: no packet meets all of its keys together"));
            }
            (Reach::Reached(witness), Need::Redundant) => {
                redundant.add(format!("{this}: without it every packet is treated the same, e.g. {witness}"));
            }
            _ => {}
        }
        // A shadowed rule is not listed again as conflicting or overlapping.
        if rule.is_dead() {
            continue;
        }
        let pair = |pair: &Pair, words: &str| {
            format!("{this} {words} {}: {}", place(checked, pair.earlier), pair.witness)
        };
        for found in &rule.conflicts.listed {
            match found.relation {
                Relation::Exception => exceptions.add(pair(found, "except for")),
                _ => conflicting.add(pair(found, "is overridden by")),
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

fn verdict(checked: &Checked, layout: Layout) -> String {
    let (source, report) = (&checked.source, &checked.findings.report);
    let Some(program) = &report.program else {
        return layout.text(Style::Bad, &format!("{source}: impossible on {}", report.device));
    };
    if !checked.is_installable() {
        return layout.text(Style::Bad, &format!("{source}: {}", checked.refusal()));
    }
    let errors = checked.start.as_ref().map_or(0, |start| start.errors.len());
    if errors > 0 {
        let errors = counted(errors as u64, "error", "errors");
        return layout.text(Style::Bad, &format!("{source}: {errors} of a start with the settings"));
    }
    let hybrid = match checked.findings.hybrid() {
        0 => String::new(),
        rules => format!(", {rules} of {} rules hybrid", report.rules.len()),
    };
    let warnings = match checked.warning_count() {
        0 => String::new(),
        warnings => format!(", {}", counted(warnings as u64, "warning", "warnings")),
    };
    let tests = match checked.tests.tests.as_ref().filter(|tests| tests.passed > 0) {
        Some(tests) => format!(", {tests}"),
        None => String::new(),
    };
    let doubtful = !hybrid.is_empty() || !warnings.is_empty();
    let tone = if doubtful { Style::Warning } else { Style::Good };
    let words = format!(
        "{source}: ok on {}: {} on {}, {}{hybrid}{warnings}{tests}",
        report.device,
        counted(program.flows.len() as u64, "flow", "flows"),
        counted(program.priorities_used.into(), "priority", "priorities"),
        counted(program.queues.len() as u64, "queue pair", "queue pairs"),
    );
    layout.text(tone, &words)
}

/// The most rules that are named after a remedy.
const SHOWN_RULES: usize = 8;

/// A line for each rule. A device that lacks a feature has the same reason for many rules: `reasons` lists
/// each once.
fn rules_table(report: &Report, layout: Layout) -> String {
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
    let mut out = format!("{}\n", layout.text(Style::Heading, head));
    let width = head.chars().count().saturating_sub("decided in".len());
    for (index, (line, rule)) in lines.zip(&report.rules).enumerate() {
        let (tone, words) = decided(report, index, rule);
        let before = format!("{line}{}", " ".repeat(width.saturating_sub(line.chars().count())));
        out.push_str(&layout.lines(tone, &before, &words));
        if let Some(parts) = rule.policing.as_ref().and_then(reports::PolicingReport::parts) {
            out.push_str(&layout.lines(Style::Dim, "        ", &parts));
        }
        if let Some(sources) = rule.policing.as_ref().and_then(source_tables) {
            out.push_str(&layout.lines(Style::Dim, "        ", &sources));
        }
        for line in rule.description.iter().flat_map(|text| text.lines()) {
            out.push_str(&layout.lines(Style::Dim, "        ", line));
        }
        // The note about how other rules' flows leave out its packets.
        if let Some(note) = &rule.note {
            out.push_str(&layout.lines(Style::Dim, "        ", note));
        }
    }
    out
}

/// The tables of sources that the limit of a rule takes, if it is one of sources.
fn source_tables(policing: &reports::PolicingReport) -> Option<String> {
    let (limit, each) = (policing.limit?.per_source?, policing.source_table_bytes?);
    let sources = counted(limit.sources.into(), "source", "sources");
    Some(format!("room for {sources} on each worker of the daemon: {} of memory each", bytes(each)))
}

/// Who decides the packets of each rule on a network interface, and how exactly the XDP program represents
/// what the flows claim.
fn on_interface(checked: &Checked, on: &OnInterface, layout: Layout) -> String {
    let names: Vec<&str> = on.ports.iter().map(|port| port.interface.as_str()).collect();
    let title = format!("on {}, enforced by an XDP program", names.join(", "));
    let mut grid = Grid::new(&["rule", "decided by", "host receives"]);
    for (index, rule) in on.rules.iter().enumerate() {
        let deciders: Vec<&str> = rule.decided_by.iter().map(|decider| decider.words()).collect();
        let deciders = if deciders.is_empty() { "-".to_owned() } else { deciders.join(", ") };
        grid.row(vec![
            checked.rule_name(RuleId::of(index)).to_owned(),
            deciders,
            rule.host.words().to_owned(),
        ]);
    }
    let mut out = format!("\n{}\n{}", layout.text(Style::Heading, &title), headed(&grid, layout));
    let alone = |decider: Decider| {
        let rules = on.rules.iter().filter(|rule| rule.decided_by.iter().eq([&decider])).count();
        format!("{} alone: {}", decider.words(), counted(rules as u64, "rule", "rules"))
    };
    let mut totals = vec![alone(Decider::XdpProgram), alone(Decider::Engine), alone(Decider::Worker)];
    let several = on.rules.iter().filter(|rule| rule.decided_by.len() > 1).count();
    totals.push(format!("several of them: {}", counted(several as u64, "rule", "rules")));
    out.push_str(&layout.lines(Style::Plain, "  ", &totals.join("; ")));
    match &on.claims {
        Ok(report) => out.push_str(&claims(*report, layout)),
        Err(error) => out.push_str(&layout.lines(Style::Bad, "  claims: ", &error.to_string())),
    }
    on.nic_drops.iter().for_each(|of_port| out.push_str(&of_port.text(layout)));
    if let Some(traffic) = &on.traffic {
        out.push_str(&decided_traffic(checked, traffic, !on.nic_drops.is_empty(), layout));
    }
    if let Some(placement) = &on.placement {
        out.push_str(&placed(placement, layout));
    }
    out
}

/// Where interrupts and packets of the interfaces go, beside the cores of workers and engines.
fn placed(placement: &Placement, layout: Layout) -> String {
    let mut out = format!("\n{}\n", layout.text(Style::Heading, "placement"));
    for line in placement.lines() {
        out.push_str(&layout.lines(Style::Plain, "  ", &line));
    }
    for found in placement.problems.iter().take(SHOWN_FINDINGS) {
        out.push_str(&layout.lines(Style::Warning, "  ", &found.problem));
        out.push_str(&layout.lines(Style::Plain, "        remedy: ", &found.remedy));
    }
    let more = placement.problems.len().saturating_sub(SHOWN_FINDINGS);
    if more > 0 {
        let _ = writeln!(out, "  and {more} more (--format json has all)");
    }
    out
}

/// The claims of the flows, and the places where the XDP program redirects more than that.
fn claims(report: ClaimReport, layout: Layout) -> String {
    let ClaimReport { claims, dropping, widened } = report;
    let claims = number(claims as u64);
    let dropping = format!("{} of them dropped by the XDP program", number(dropping as u64));
    let (tone, exactness) = match widened {
        0 => (Style::Plain, "no other packets are redirected".to_owned()),
        places => {
            let places = counted(places as u64, "place", "places");
            let words = format!(
                "at {places} of its decision trees every packet is redirected; the engine gives back those that no flow takes"
            );
            (Style::Warning, words)
        }
    };
    layout.lines(tone, "  claims: ", &format!("{claims}, {dropping}; {exactness}"))
}

/// Who decides the packets of a capture. `has_filters`: a NIC may be among them.
fn decided_traffic(checked: &Checked, traffic: &DecidedTraffic, has_filters: bool, layout: Layout) -> String {
    let packets = counted(traffic.all.packets, "packet", "packets");
    let title = match traffic.one_in {
        1 => format!("who decides the capture's {packets}"),
        one_in => format!("who decides {packets} of the capture, one of {}", number(one_in)),
    };
    let heads = ["rule", "packets", "XDP program", "engine", "worker", "host receives", "NIC"];
    let columns = if has_filters { heads.len() } else { heads.len() - 1 };
    let mut grid = Grid::new(&heads[..columns]);
    let rules = traffic.rules.iter().enumerate().filter(|(_, decided)| decided.packets > 0);
    let rules = rules.map(|(index, decided)| (checked.rule_name(RuleId::of(index)), decided));
    for (name, decided) in rules.chain([("all", &traffic.all)]) {
        let DecidedPackets { packets, nic, xdp_program, engine, worker, host } = *decided;
        let shares = [xdp_program, engine, worker, host, nic].map(|part| percent_of(part, packets));
        grid.row([name.to_owned(), number(packets)].into_iter().chain(shares).take(columns).collect());
    }
    let mut out = format!("\n{}\n{}", layout.text(Style::Heading, &title), headed(&grid, layout));
    if traffic.beyond_claims > 0 {
        let packets = counted(traffic.beyond_claims, "packet", "packets");
        let words = format!(
            "up to {packets} that the XDP program could pass or drop are redirected, at places of its trees where all are"
        );
        out.push_str(&layout.lines(Style::Warning, "  ", &words));
    }
    out
}

/// The sinks with the rules whose packets they get; nothing without sinks.
fn sinks_table(checked: &Checked, layout: Layout) -> String {
    let Some(program) = checked.findings.report.program.as_ref().filter(|program| !program.sinks.is_empty())
    else {
        return String::new();
    };
    let mut grid = Grid::new(&["sink", "kind", "packets of"]);
    for (index, sink) in program.sinks.iter().enumerate() {
        let names: Vec<&str> = checked.rules_of_sink(program, SinkId::of(index)).collect();
        let more = names.len().saturating_sub(SHOWN_RULES);
        let mut of = names[..names.len() - more].join(", ");
        if more > 0 {
            let _ = write!(of, " and {more} more");
        }
        if program.kernel_sink() == Some(SinkId::of(index)) {
            of.push_str(if of.is_empty() { "" } else { ", " });
            of.push_str("the kernel that workers receive");
        }
        grid.row(vec![sink.name.clone(), sink.kind.name().to_owned(), of]);
    }
    format!("\n{}", headed(&grid, layout))
}

/// Where a rule is decided, and the keys that a worker must check, in words.
pub(in crate::commands) fn decided_words(report: &Report, index: usize, rule: &RuleReport) -> String {
    decided(report, index, rule).1
}

/// Where a rule is decided, and the keys that a worker must check.
fn decided(report: &Report, index: usize, rule: &RuleReport) -> (Style, String) {
    match rule.decided {
        Decided::Hardware => (Style::Good, "hardware".to_owned()),
        Decided::PartlyHybrid => (Style::Warning, "hardware, partly hybrid".to_owned()),
        Decided::Hybrid => {
            let keys: Vec<&str> = notes(report, index).map(|(key, _)| key).collect();
            let mut words = "hybrid".to_owned();
            if !keys.is_empty() {
                let _ = write!(words, ": {}", keys.join(", "));
            }
            if rule.steps > 1 {
                let _ = write!(words, " (up to {})", counted(rule.steps.into(), "rule tried", "rules tried"));
            }
            (Style::Warning, words)
        }
        Decided::Impossible => (Style::Bad, "impossible".to_owned()),
        Decided::Unknown => (Style::Dim, "not known".to_owned()),
    }
}

/// The keys of a rule that workers check, with the reasons.
fn notes(report: &Report, index: usize) -> impl Iterator<Item = (&str, String)> {
    let rules = report.program.iter().filter_map(move |program| program.rules.get(index));
    rules.flat_map(|rule| &rule.undecided).map(|note| (note.key.as_str(), note.why.words()))
}

/// How many of the packets drawn from the rules the device decides, and the rules of which it decides the
/// fewest; nothing if it decides all.
fn shares(report: &Report, layout: Layout) -> String {
    let Some(all) = report.shares.as_ref().map(|shares| &shares.all) else { return String::new() };
    let Some(percent) = all.hybrid_percent().filter(|percent| *percent > 0.0) else { return String::new() };
    let drawn = counted(all.packets, "packet", "packets");
    let title = format!(
        "decided in hardware: {:.1}% of {drawn} drawn from the rules; workers compare the others with {:.1} rules on \
         average; expected {:.0} ns of a worker per packet",
        100.0 - percent,
        all.comparisons_per_packet(),
        all.worker_ns_per_packet(),
    );
    let mut out = format!("\n{}", layout.lines_after(Style::Heading, "", "  ", &title));
    let percent = |rule: &RuleReport| rule.share.as_ref().and_then(reports::Share::hybrid_percent);
    let mut rules: Vec<(f64, &RuleReport)> =
        report.rules.iter().filter_map(|rule| Some((percent(rule)?, rule))).collect();
    rules.retain(|(percent, _)| *percent > 0.0);
    rules.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    for (percent, rule) in rules.iter().take(SHOWN_FINDINGS) {
        let Some(share) = &rule.share else { continue };
        let example = share.example.as_ref().map_or_else(String::new, |packet| format!(", e.g. {}", packet));
        let words = format!(
            "{:.0}% in hardware, {:.1} rules compared{example}",
            100.0 - percent,
            share.comparisons_per_packet()
        );
        out.push_str(&layout.lines(Style::Plain, &format!("  `{}` ", rule.name), &words));
    }
    let more = rules.len().saturating_sub(SHOWN_FINDINGS);
    if more > 0 {
        let _ = writeln!(out, "  and {} more (--format json has all)", number(more as u64));
    }
    out
}

/// Where the packets of a capture are decided, in all and by the rules that have packets of it.
fn traffic(checked: &Checked, layout: Layout) -> String {
    let Some(traffic) = &checked.traffic else { return String::new() };
    let (packets, decided) = (traffic.capture_packets, traffic.all.all.packets);
    let drawn = (decided < packets).then(|| format!(", of which {} were drawn at random", number(decided)));
    let title =
        format!("of the capture's {}{}", counted(packets, "packet", "packets"), drawn.unwrap_or_default());
    let heads = ["rule", "packets", "bytes", "in hardware", "by workers", "left", "compared", "worker ns"];
    let mut grid = Grid::new(&heads);
    let rules = traffic.rules.iter().enumerate();
    let rows = rules.map(|(index, share)| (checked.rule_name(RuleId::of(index)), share));
    for (name, share) in rows.filter(|(_, share)| share.all.packets > 0).chain([("all", &traffic.all)]) {
        grid.row(vec![
            name.to_owned(),
            number(share.all.packets),
            bytes(share.all.bytes),
            parts(share.in_hardware, share.all),
            parts(share.by_workers, share.all),
            parts(share.left, share.all),
            format!("{:.1}", share.comparisons_per_packet()),
            format!("{:.0}", share.worker_ns_per_packet()),
        ]);
    }
    format!("\n{}\n{}", layout.text(Style::Heading, &title), headed(&grid, layout))
}

/// Where the packets that a daemon has counted would be decided.
fn counted_packets(checked: &Checked, layout: Layout) -> String {
    let Some(share) = &checked.counted else { return String::new() };
    let title = format!("of the {} that the daemon has counted", counted(share.packets, "packet", "packets"));
    let mut out = format!("\n{}\n", layout.text(Style::Heading, &title));
    let words = match share.in_hardware_percent {
        Some(percent) => format!("about {percent:.1}% would be decided in hardware"),
        None if share.packets == 0 => "without packets the order of the policy decides".to_owned(),
        None => "-".to_owned(),
    };
    out.push_str(&layout.lines(Style::Plain, "  ", &words));
    if share.rules_without_counter > 0 && share.in_hardware_percent.is_some() {
        let one = "rule has no counter and is not part of this share";
        let several = "rules have no counter and are not part of this share";
        let words = counted(share.rules_without_counter as u64, one, several);
        out.push_str(&layout.lines(Style::Plain, "  ", &words));
    }
    out
}

/// The percentages of the packets and of the bytes.
fn parts(part: Amount, all: Amount) -> String {
    format!("{} ({} B)", percent_of(part.packets, all.packets), percent_of(part.bytes, all.bytes))
}

/// The reasons of hybrid and impossible rules, and the remedies, each once.
fn reasons(report: &Report, layout: Layout) -> String {
    let mut reasons: Vec<(String, String)> = Vec::new();
    let mut remedies: Vec<(String, Vec<&str>)> = Vec::new();
    for (index, rule) in report.rules.iter().enumerate() {
        for (name, words) in reasons_of(report, index, rule) {
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
    let title = if report.program.is_some() { "why workers decide" } else { "why impossible" };
    let mut out = format!("\n{}\n", layout.text(Style::Heading, title));
    let width = reasons.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    for (name, words) in &reasons {
        out.push_str(&layout.lines(Style::Plain, &format!("  {name:<width$}  "), words));
    }
    for (remedy, names) in remedies {
        let more = names.len().saturating_sub(SHOWN_RULES);
        let mut of: Vec<String> = names.iter().take(SHOWN_RULES).map(|name| format!("`{name}`")).collect();
        of.extend((more > 0).then(|| format!("{more} more")));
        out.push_str(&layout.lines(Style::Plain, "  remedy: ", &format!("{remedy} ({})", of.join(", "))));
    }
    out
}

/// The reasons of one rule, by key, or else by what the table shows for it.
pub(in crate::commands) fn reasons_of(
    report: &Report,
    index: usize,
    rule: &RuleReport,
) -> Vec<(String, String)> {
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

/// The most priorities that are listed.
const SHOWN_PRIORITIES: usize = 16;

fn capacity_table(report: &Report, capacity: &Capacity, layout: Layout) -> String {
    let mut grid = Grid::new(&[&format!("capacity of {}", capacity.device), "used", "of", ""]);
    let rows = capacity.rows.iter().filter(|row| row.used > 0 || row.exceeds());
    for row in rows {
        let most = row.most.map_or_else(|| "-".to_owned(), number);
        grid.row(vec![row.what.to_owned(), number(row.used), most, remark(row)]);
    }
    let mut out = format!("\n{}", headed(&grid, layout));
    // A device limits all priorities alike, or none.
    if let Some((masks, flows)) = capacity.priorities.iter().find_map(|priority| priority.most) {
        out.push_str(&priorities(capacity, report.flow_groups.as_ref(), layout));
        let flows = number(flows.into());
        let room = format!(
            "each priority has {masks} groups of up to {flows} flows of one mask, and room for one flow of each further mask"
        );
        out.push_str(&layout.lines(Style::Dim, "", &room));
    }
    for line in report.flow_groups.iter().flat_map(|groups| flow_group_lines(groups, report)) {
        out.push_str(&layout.lines(Style::Plain, "", &line));
    }
    for line in report.flow_groups.iter().filter_map(unknown_limit) {
        out.push_str(&layout.lines(Style::Warning, "", &line));
    }
    out
}

/// A cautious number of flow groups of a priority that a NIC accepts: the limit of an mlx5's firmware is not
/// known.
const CAUTIOUS_GROUPS: u64 = 128;

/// The warning about groups of flows of which the device may have too few.
fn unknown_limit(groups: &FlowGroups) -> Option<String> {
    let (priority, most) = groups.by_priority.iter().max_by_key(|(_, groups)| **groups)?;
    (groups.max_groups.is_none() && *most > CAUTIOUS_GROUPS).then(|| {
        format!(
            "priority {priority} needs {} flow groups; the kernel driver accepts them, but the NIC may refuse the program: \
             its limit is not known (write max_groups = {CAUTIOUS_GROUPS}, which is cautious, into a file of the model, \
             check with --model FILE, and run with device.model = \"FILE\")",
            number(*most)
        )
    })
}

/// The cost of flow groups for packets, and the time in which the device makes them.
fn flow_group_lines(groups: &FlowGroups, report: &Report) -> Vec<String> {
    let mean = report.shares.as_ref().and_then(|shares| shares.all.groups_per_packet());
    let mean = mean.map_or_else(String::new, |mean| {
        format!("; packets drawn from the rules pass {} on average", number(mean.round() as u64))
    });
    let passed = format!(
        "packets without a flow pass {} in {}{mean} (not measured on a NIC)",
        counted(groups.groups, "flow group", "flow groups"),
        counted(groups.tables, "table", "tables"),
    );
    let installed = groups.install_seconds.map(|seconds| {
        let time = match seconds {
            ..0.1 => "less than 0.1 s".to_owned(),
            // It is cut off, not rounded.
            _ => format!("about {}", duration(Duration::from_secs_f64(seconds + 0.05))),
        };
        format!("the device makes flows and groups in {time}, by the rate of its model")
    });
    [passed].into_iter().chain(installed).collect()
}

/// The table of what rules at run time need in the device, by form, and with the policy.
fn room_table(room: &DeviceRoom, layout: Layout) -> String {
    let mut grid = Grid::new(&["rules at run time in the device", "rules", "flows", "masks", "priorities"]);
    for form in &room.forms {
        grid.row(vec![
            form.form.clone(),
            number(form.rules),
            number(form.flows),
            number(form.masks),
            number(form.priorities),
        ]);
    }
    let of_limit = |limit: Limit| {
        let row = room.rows.iter().find(|row| row.limit == limit);
        row.map_or_else(String::new, |row| {
            let most = row.most.map_or_else(String::new, |most| format!(" of {}", number(most)));
            format!("{}{most}", number(row.used))
        })
    };
    let whole = [Limit::Flows, Limit::Shapes, Limit::Priorities].map(of_limit);
    let row = ["all forms, with the policy".to_owned(), number(room.rules.into())].into_iter().chain(whole);
    grid.row(row.collect());
    let room = match room.fit {
        fit if fit == room.rules => String::new(),
        fit => layout.lines(Style::Bad, "", &format!("there is room for {}", number(fit.into()))),
    };
    format!("\n{}{room}", headed(&grid, layout))
}

fn priorities(capacity: &Capacity, groups: Option<&FlowGroups>, layout: Layout) -> String {
    let mut grid = Grid::new(&["priority", "flows", "masks", "largest mask", "flow groups"]);
    for priority in capacity.priorities.iter().take(SHOWN_PRIORITIES) {
        grid.row(vec![
            priority.priority.to_string(),
            number(priority.flows),
            number(priority.shapes),
            number(priority.largest_shape),
            number(
                groups.and_then(|groups| groups.by_priority.get(&priority.priority)).copied().unwrap_or(0),
            ),
        ]);
    }
    let more = capacity.priorities.len().saturating_sub(SHOWN_PRIORITIES);
    let rest = if more > 0 { format!("and {more} more\n") } else { String::new() };
    format!("\n{}{rest}", headed(&grid, layout))
}

/// A table with a styled head.
fn headed(grid: &Grid, layout: Layout) -> String {
    let text = grid.text();
    let (head, rest) = text.split_once('\n').unwrap_or((&text, ""));
    format!("{}\n{rest}", layout.text(Style::Heading, head))
}

fn remark(row: &CapacityRow) -> String {
    if row.exceeds() {
        format!("too many: {}", row.errno)
    } else if row.most.is_some_and(|most| row.used > most) {
        format!("not all: {}", row.errno)
    } else {
        String::new()
    }
}
