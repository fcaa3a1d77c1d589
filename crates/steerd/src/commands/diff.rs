//! `steerd diff OLD NEW`, or `--running NEW` for the policy that a daemon has in force: the traffic that two
//! policies treat differently, as regions of packets in the language with an example of each, and changes
//! inside groups. With `--model` or `--workers` also the rules that a device decides elsewhere
//! ([`Placement`]), with `--live` how many packets of the daemon each change would move. The exit codes are
//! those of diff(1).

mod live;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::slice::Iter;

use analysis::{Change, Diff, Effect, GroupChange, Names, PairSummary, ShareChange};
use device_model::DeviceModel;
use policy::policy::Direction;
use policy::{Diagnostics, Policy, Source, Witness};
use reports::{Decided, RuleReport};
use serde::Serialize;

use super::target;
use crate::api::model::PolicyText;
use crate::cli::{Cli, DiffArgs, Format};
use crate::commands::{Error, Outcome, client};
use crate::policy_diff::{self, Report, sinks};
use crate::policy_file::{self, PolicyErrors, Read, descriptions};
use crate::settings::PolicySource;
use crate::terminal::numbers::{counted, number, percent, shares};
use crate::terminal::output::{self, Progress};
use crate::terminal::style::{Colors, Style};
use crate::terminal::table::Grid;
use live::LiveReport;

/// A longer region is not shown; the match that contains it is shown instead.
const MAX_LINE_BYTES: usize = 320;
/// The most names that are listed.
const SHOWN_NAMES: usize = 8;
/// The number of values that are shown of a list that is longer than twice that.
const SHOWN_VALUES: usize = 6;

pub(crate) fn run(args: &DiffArgs) -> Result<Outcome, Error> {
    compare(args).map_err(|error| match error {
        error @ (Error::Policy(_) | Error::NotDecided(_)) => Error::Compare(Box::new(error)),
        other => other,
    })
}

fn compare(args: &DiffArgs) -> Result<Outcome, Error> {
    let Compared { old, new, running } = match &args.new {
        Some(new) => two_files(args, new)?,
        None => running_and_file(args)?,
    };
    let (old_policy, new_policy) = (&old.read.policy, &new.read.policy);
    let found = {
        let mut progress = Progress::new();
        let detail = policy_diff::detail(args.all);
        analysis::diff_in_detail(old_policy, new_policy, detail, &mut |at| progress.show(at))
    };
    let named = || policy_file::workers_named(old_policy).max(policy_file::workers_named(new_policy));
    let workers = args.workers.map_or_else(named, |workers| workers as usize);
    let groups = analysis::changed_groups(old_policy, new_policy, workers);
    let sinks = sinks::changes(old_policy, new_policy);
    let described = descriptions::changes(old_policy, new_policy);
    let placement = (args.model.is_some() || args.workers.is_some()).then(|| {
        let profile = args.model.clone().unwrap_or_default();
        Placement::of(old_policy, new_policy, &profile, workers)
    });
    let live = match running.filter(|_| args.live) {
        Some(running) => live::sample(args, [&old, &new], &running, &found)?,
        None => None,
    };
    let names = [old.name, new.name];
    match args.printed.format() {
        Format::Json => {
            let placement = placement.as_ref();
            let report = Report::of(names, &found, &groups, &sinks, &described, placement);
            output::print_json(&WithLive { report, live: live.as_ref() })?;
        }
        Format::Text => {
            let (is_delivery_equal, colors) = (sinks.is_empty(), Colors::stdout());
            let page = Page { found: &found, groups: &groups, is_delivery_equal, all: args.all, colors };
            let placement = placement.as_ref().map(Placement::text).unwrap_or_default();
            let (sinks, described) = (sinks::text(&sinks), descriptions::text(&described));
            let live = live.map_or_else(
                || if args.live { NOTHING_SAMPLED.to_owned() } else { String::new() },
                |live| live::text(&live, args.all),
            );
            output::print(&format!("{}{sinks}{described}{placement}{live}", page.text(&names)))?;
        }
    }
    let is_moved = placement.is_some_and(|placement| !placement.is_same());
    match (found.pairs.is_empty() && sinks.is_empty() && !is_moved, found.is_whole()) {
        (false, _) => Ok(Outcome::Different),
        (true, true) => Ok(Outcome::Success),
        (true, false) => Err(Error::NotDecided(doubts(&found).join("; "))),
    }
}

const NOTHING_SAMPLED: &str = "no received packet would move: no live traffic was sampled\n";

/// The JSON of the command.
#[derive(Serialize)]
struct WithLive<'d> {
    #[serde(flatten)]
    report: Report<'d, Placement>,
    /// `null`: not asked for, or no received packet would move.
    live: Option<&'d LiveReport>,
}

/// Two policies to compare.
struct Compared {
    old: NamedPolicy,
    new: NamedPolicy,
    /// `None`: the old one is of a file.
    running: Option<RunningPolicy>,
}

/// A policy and its name in the output.
struct NamedPolicy {
    name: String,
    read: Read,
}

/// The policy that a daemon has in force, by number and hash.
struct RunningPolicy {
    generation: u64,
    sha256: String,
}

fn two_files(args: &DiffArgs, new: &Path) -> Result<Compared, Error> {
    if [&*args.old, new].iter().all(|path| policy_file::is_standard_input(path)) {
        let message = "only one of the two policies can come from standard input";
        let mut command = <Cli as clap::CommandFactory>::command();
        command.error(clap::error::ErrorKind::ArgumentConflict, message).exit();
    }
    let variables = || args.variables.set.iter().cloned().collect();
    let sources = [target::source(&args.old, variables())?, target::source(new, variables())?];
    // Both are read before an error is returned, so that all problems are printed at once.
    let [old, new] = sources.each_ref().map(read);
    Ok(Compared { old: old?, new: new?, running: None })
}

/// The policy that a daemon has in force, and the file with the daemon's variables unless --set gives others.
fn running_and_file(args: &DiffArgs) -> Result<Compared, Error> {
    let running: PolicyText = client::connect(&args.api)?.get("/v1/policy")?;
    let mut variables = running.variables.clone();
    variables.extend(args.variables.set.iter().cloned());
    let source = target::source(&args.old, variables)?;
    let new = read(&source);
    let name = format!("{} (running, generation {})", running.source, running.generation);
    let Some(text) = running.text else {
        let why = format!("{name}: its text is too large to be kept by the daemon");
        return Err(Error::NotDecided(why));
    };
    let files = running.files.into_iter().filter_map(|(name, file)| Some((name, file.text?)));
    let files: BTreeMap<String, String> = files.collect();
    let old = policy_file::parse(&Source::new(name.as_str(), text), &files, &running.variables);
    let read = old.map_err(|diagnostics| refused(&name, &diagnostics))?;
    let running = RunningPolicy { generation: running.generation, sha256: running.sha256 };
    Ok(Compared { old: NamedPolicy { name, read }, new: new?, running: Some(running) })
}

fn read(source: &PolicySource) -> Result<NamedPolicy, Error> {
    let name = source.to_string();
    match policy_file::load(source) {
        Ok(read) => Ok(NamedPolicy { name, read }),
        Err(diagnostics) => Err(refused(&name, &diagnostics)),
    }
}

/// Prints the diagnostics of a policy that cannot be compared.
fn refused(name: &str, diagnostics: &Diagnostics) -> Error {
    output::print_diagnostics(diagnostics);
    PolicyErrors::of(name, diagnostics).into()
}

/// The questions that were not decided, and why.
fn doubts(found: &Diff) -> Vec<String> {
    let pairs = found.open.iter().map(|open| {
        format!("not decided: {} => {}: {}", effect(&open.before), after(&open.before, &open.after), open.why)
    });
    let mut doubts: Vec<String> = pairs.collect();
    let more = found.not_decided - found.open.len();
    if more > 0 {
        let pairs = counted(more as u64, "more pair of rules was", "more pairs of rules were");
        doubts.push(format!("{pairs} not decided"));
    }
    doubts.extend(found.stopped.iter().map(|why| format!("not all rules were compared: {why}")));
    doubts
}

/// The text output.
struct Page<'d> {
    found: &'d Diff,
    groups: &'d [GroupChange],
    /// Whether sinks, limits and samples are equal.
    is_delivery_equal: bool,
    all: bool,
    colors: Colors,
}

impl Page<'_> {
    fn text(&self, [old, new]: &[String; 2]) -> String {
        if self.found.pairs.is_empty() {
            return match (self.found.is_whole(), self.is_delivery_equal) {
                (true, true) => format!("{old} and {new} treat every packet alike\n"),
                (true, false) => format!("{old} and {new}: no packet moves to another rule or group\n"),
                (false, _) => String::new(),
            };
        }
        let colors = self.colors;
        let mut out = colors.text(Style::Bad, &format!("--- {old}"));
        let _ = writeln!(out, "\n{}", colors.text(Style::Good, &format!("+++ {new}")));
        let mut regions = self.found.regions.iter();
        let mut is_short = false;
        for pair in &self.found.pairs {
            is_short |= self.pair(pair, &mut regions, &mut out);
        }
        for change in self.groups {
            let head = format!("group `{}`", change.name);
            let _ = writeln!(out, "\n{}\n{}", self.colors.text(Style::Heading, &head), group(change));
        }
        out.push_str(&self.summary());
        if is_short {
            let words = "--all shows the packets of each pair region by region, without exceptions";
            let _ = writeln!(out, "\n{}", colors.text(Style::Dim, words));
        }
        for doubt in doubts(self.found) {
            let _ = writeln!(out, "\n{doubt}");
        }
        out
    }

    /// Writes one pair of rules; returns whether its regions are not shown one by one.
    fn pair(&self, pair: &PairSummary, regions: &mut Iter<'_, Change>, out: &mut String) -> bool {
        let told: Vec<&Change> = regions.take(pair.regions + pair.rest).collect();
        // The last pairs of very many have a row in the table only.
        if told.is_empty() && pair.within.is_empty() {
            return false;
        }
        let head = format!("{} => {}", effect(&pair.before), after(&pair.before, &pair.after));
        let _ = writeln!(out, "\n{}", self.colors.text(Style::Heading, &head));
        let sent = if pair.direction == Direction::Egress { "sent: " } else { "" };
        let is_exact = match told[..] {
            [one] => {
                let is_whole = one.region.only.is_none() && pair.more == 0 && !pair.is_open;
                is_whole && one.region.to_string().len() <= MAX_LINE_BYTES
            }
            _ => false,
        };
        if is_exact || self.all {
            for change in told {
                let _ = writeln!(out, "  {sent}{}", change.region);
                self.example(&change.witness, out);
            }
            return false;
        }
        for region in &pair.within {
            let _ = writeln!(out, "  {sent}{}", shortened(&region.to_string()));
        }
        if pair.but_for.count > 0 {
            let verb = if pair.but_for.count == 1 { "takes" } else { "take" };
            let _ = writeln!(out, "      except packets that {} {verb} first", names(&pair.but_for));
        }
        self.example(&pair.witness, out);
        true
    }

    fn example(&self, packet: &Witness, out: &mut String) {
        let _ = writeln!(out, "      {}", self.colors.text(Style::Dim, &format!("e.g. {packet}")));
    }

    fn summary(&self) -> String {
        let mut grid = Grid::new(&["before", "after", "regions"]);
        for pair in &self.found.pairs {
            grid.row(vec![effect(&pair.before), after(&pair.before, &pair.after), regions(pair)]);
        }
        format!("\n{}", grid.text())
    }
}

/// The changes inside a group, and the share of each worker.
fn group(change: &GroupChange) -> String {
    let mut grid = Grid::new(&["", "before", "after"]);
    for key in &change.changes {
        grid.row(vec![key.key.to_owned(), key.before.clone(), key.after.clone()]);
    }
    let column = |of: fn(&ShareChange) -> f64| {
        let parts: Vec<f64> = change.shares.iter().map(of).collect();
        shares(&parts, parts.iter().sum(), 1)
    };
    let columns = column(|share| share.before).into_iter().zip(column(|share| share.after));
    for (share, (before, after)) in change.shares.iter().zip(columns) {
        grid.row(vec![format!("worker {}", share.worker), before, after]);
    }
    let moved = match change.moved {
        None => "the hashes differ: any connection may move to another worker".to_owned(),
        Some(moved) => format!("connections with {} of the hashes move to another worker", percent(moved)),
    };
    let lines: String = grid.text().lines().map(|line| format!("  {}\n", line.trim_end())).collect();
    format!("{lines}  {moved}")
}

/// The number of regions of a pair, or a lower bound.
fn regions(pair: &PairSummary) -> String {
    let count = number((pair.regions + pair.more) as u64);
    if pair.is_open { format!("at least {count}") } else { count }
}

/// The first names, quoted.
fn names(names: &Names) -> String {
    let shown: Vec<String> = names.listed.iter().take(SHOWN_NAMES).map(|name| format!("`{name}`")).collect();
    match names.count - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// `web: steer to web`
fn effect(effect: &Effect) -> String {
    match effect.name.as_str() {
        "" => effect.action.clone(),
        name => format!("{name}: {}", effect.action),
    }
}

/// The effect of the new policy. Where its text is that of the old one, the workers of the group or their
/// shares differ.
fn after(before: &Effect, after: &Effect) -> String {
    match effect(before) == effect(after) {
        true => "the same, spread in another way".to_owned(),
        false => effect(after),
    }
}

/// A match with long lists shortened.
fn shortened(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    // Lists within lists are short; long lists contain no other list.
    while let Some(open) = rest.find('[') {
        let (before, from) = rest.split_at(open + 1);
        let end = from.find(['[', ']']).unwrap_or(from.len());
        let (list, after) = from.split_at(end);
        out.push_str(before);
        let values: Vec<&str> = list.split(", ").collect();
        if after.starts_with(']') && values.len() > 2 * SHOWN_VALUES {
            let more = number((values.len() - SHOWN_VALUES) as u64);
            let _ = write!(out, "{}, and {more} more", values[..SHOWN_VALUES].join(", "));
        } else {
            out.push_str(list);
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Described in docs/reference/commands/diff.md.
#[derive(Serialize)]
struct Placement {
    profile: String,
    workers: usize,
    before: Whole,
    after: Whole,
    rules: Vec<Moved>,
}

/// Whether the device can run a policy, and why not.
#[derive(PartialEq, Eq, Serialize)]
struct Whole {
    ok: bool,
    /// Reasons other than impossible rules.
    obstacles: Vec<String>,
}

/// A rule that is decided elsewhere, or that only one of the policies has. Rules are the same if their names
/// are.
#[derive(Serialize)]
struct Moved {
    rule: String,
    /// `null`: the policy has no such rule.
    before: Option<Placed>,
    after: Option<Placed>,
}

#[derive(Serialize)]
struct Placed {
    decided: Decided,
    reason: Option<String>,
}

impl Placement {
    fn of(old: &Policy, new: &Policy, profile: &DeviceModel, workers: usize) -> Self {
        let [before, after] = [old, new].map(|policy| reports::report(policy, profile, workers, None));
        Self {
            profile: profile.name.clone(),
            workers,
            rules: moved(&before, &after),
            before: Whole::of(&before),
            after: Whole::of(&after),
        }
    }

    /// Whether nothing differs.
    fn is_same(&self) -> bool {
        self.rules.is_empty() && self.before == self.after
    }

    fn text(&self) -> String {
        let workers = if self.workers == 1 { "worker" } else { "workers" };
        let mut out = format!("\non {} with {} {workers}:", self.profile, self.workers);
        if self.is_same() {
            out.push_str(" every rule is decided where it was\n");
            return out;
        }
        out.push('\n');
        for (side, whole) in [("before", &self.before), ("after", &self.after)] {
            if !whole.ok {
                let obstacles = whole.obstacles.iter().map(|obstacle| format!(": {obstacle}"));
                out.push_str(&format!("{side}: impossible{}\n", obstacles.collect::<String>()));
            }
        }
        let mut grid = Grid::new(&["rule", "before", "after", "why"]);
        for moved in &self.rules {
            let reason = moved.after.as_ref().and_then(|placed| placed.reason.clone());
            let placed =
                |placed: &Option<Placed>| placed.as_ref().map_or("-", |placed| words(placed.decided));
            grid.row(vec![
                moved.rule.clone(),
                placed(&moved.before).to_owned(),
                placed(&moved.after).to_owned(),
                reason.unwrap_or_default(),
            ]);
        }
        if !self.rules.is_empty() {
            out.push_str(&grid.text());
        }
        out
    }
}

impl Whole {
    fn of(report: &reports::Report) -> Self {
        let obstacles =
            report.obstacles.iter().map(|obstacle| format!("{}: {}", obstacle.reason, obstacle.limit));
        Self { ok: report.program.is_some(), obstacles: obstacles.collect() }
    }
}

fn words(decided: Decided) -> &'static str {
    match decided {
        Decided::Hardware => "hardware",
        Decided::PartlyHybrid => "partly hybrid",
        Decided::Hybrid => "hybrid",
        Decided::Impossible => "impossible",
        Decided::Unknown => "not known",
    }
}

/// In the order of the new policy; rules that are gone come last.
fn moved(before: &reports::Report, after: &reports::Report) -> Vec<Moved> {
    let old: BTreeMap<&str, &RuleReport> =
        before.rules.iter().map(|rule| (rule.name.as_str(), rule)).collect();
    let new: BTreeSet<&str> = after.rules.iter().map(|rule| rule.name.as_str()).collect();
    let placed = |rule: &RuleReport| Placed { decided: rule.decided, reason: rule.reason.clone() };
    let changed = after.rules.iter().filter_map(|rule| {
        let before = old.get(rule.name.as_str());
        let is_changed = before.is_none_or(|before| before.decided != rule.decided);
        is_changed.then(|| Moved {
            rule: rule.name.clone(),
            before: before.map(|before| placed(before)),
            after: Some(placed(rule)),
        })
    });
    let gone = before.rules.iter().filter(|rule| !new.contains(rule.name.as_str())).map(|rule| Moved {
        rule: rule.name.clone(),
        before: Some(placed(rule)),
        after: None,
    });
    changed.chain(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_shortened_and_short_ones_are_not() {
        let short =
            "{ src = [\"0.0.0.0/0\", { not = [\"10.0.0.0/8\", \"192.0.2.1\"] }], dst_port = [80, 443] }";
        assert_eq!(shortened(short), short);
        let ports: Vec<String> = (0..1200).map(|port| (2 * port).to_string()).collect();
        let long = format!("{{ src = [\"a\", {{ not = [{}] }}], dst_port = 1 }}", ports.join(", "));
        let expected = "{ src = [\"a\", { not = [0, 2, 4, 6, 8, 10, and 1194 more] }], dst_port = 1 }";
        assert_eq!(shortened(&long), expected);
    }
}
