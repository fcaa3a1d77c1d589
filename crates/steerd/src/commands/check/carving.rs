//! `check` of a policy that carves queues: which filters each rule takes, or why the NIC cannot carry it out.

use std::fmt::Write as _;

use nic_filters::{CarveError, FilterModel, FilterRoom, InterfaceFilters, NicFilters, WantedFilters};
use policy::Diagnostic;
use program::RuleId;
use serde::Serialize;

use crate::carving::CarvedPolicy;
use crate::cli::{CheckArgs, Deny, Format, NicFilterUse};
use crate::commands::Error;
use crate::daemon;
use crate::daemon::carving::{CarvingError, noted};
use crate::policy_file::Read;
use crate::policy_tests::{TestCounts, TestSummary};
use crate::settings::{PolicySource, Settings};
use crate::terminal::numbers::counted;
use crate::terminal::output;
use crate::terminal::style::{Layout, Style};
use crate::terminal::table::Grid;

/// Described in docs/reference/commands/check.md.
#[derive(Serialize)]
struct Answer<'c> {
    policy: String,
    sha256: &'c str,
    filter_model: &'c str,
    /// Whether the NIC can carry out the policy.
    ok: bool,
    denied: Vec<String>,
    rules: Vec<RuleLine>,
    /// The filters that the policy needs; `null`: it is refused.
    filters: Option<usize>,
    /// The most that a policy may have; `null`: it is not known.
    filters_max: Option<usize>,
    rss_contexts: usize,
    tests: TestCounts,
    diagnostics: Vec<&'c Diagnostic>,
}

#[derive(Serialize)]
struct RuleLine {
    name: String,
    action: String,
    /// The filters, as people read them.
    filters: Vec<String>,
    /// Why the NIC cannot carry it out.
    reason: Option<String>,
    remedy: Option<&'static str>,
}

/// Checks a policy. `settings`: those of the daemon, whose folder has the record of its filters.
pub(super) fn run(
    args: &CheckArgs,
    source: &PolicySource,
    settings: Option<&Settings>,
    read: &Read,
) -> Result<(), Error> {
    if args.nic_filters == Some(NicFilterUse::Drop) {
        return Err(Error::Daemon(daemon::Error::QueuesAndDrops));
    }
    let (model, room) = target(args, settings)?;
    let carved = CarvedPolicy::of(read, &model, room);
    let rules = rule_lines(read, &carved);
    let filters = carved.filters.as_ref().ok();
    let tests = TestSummary::of(&read.policy, &source.folder(), None);
    let is_possible = filters.is_some() && !carved.problems.has_errors();
    let is_ok = is_possible && tests.failed == 0;
    let denies_warnings = args.deny.contains(&Deny::Warnings) && !carved.warnings.is_empty();
    let denied: Vec<String> = denies_warnings
        .then(|| format!("warnings: {} (denied)", carved.warnings.len()))
        .into_iter()
        .collect();
    let filters_max = model.device(room).flows_per_program();
    match args.policy.printed.format() {
        Format::Json => output::print_json(&Answer {
            policy: source.to_string(),
            sha256: &read.inputs.sha256,
            filter_model: &model.name,
            ok: is_ok,
            denied: denied.clone(),
            rules,
            filters: filters.map(|filters| filters.filters.len()),
            filters_max,
            rss_contexts: filters.map_or(0, |filters| filters.groups.len()),
            tests: TestCounts::from(&tests),
            diagnostics: carved.problems.list.iter().chain(&tests.failures).chain(&carved.warnings).collect(),
        })?,
        Format::Text => {
            let warnings = carved.warnings.iter().filter(|_| !args.quiet);
            let errors = carved.problems.list.iter().chain(&tests.failures);
            let all: Vec<Diagnostic> = errors.chain(warnings).cloned().collect();
            output::print_diagnostics(&all.into());
            if !args.quiet {
                let title = format!("{source} for the filters of {}", model.name);
                output::print(&text(&title, &rules, filters, filters_max, Layout::stdout()))?;
            }
        }
    }
    let found = match is_ok {
        false if is_possible => tests.to_string(),
        false => format!("impossible with the filters of {}", model.name),
        true if denied.is_empty() => return Ok(()),
        true => denied.join(", "),
    };
    Err(Error::Denied { file: source.to_string(), found })
}

/// The filter model and the room of the interface.
fn target(args: &CheckArgs, settings: Option<&Settings>) -> Result<(FilterModel, FilterRoom), Error> {
    let given = args.filter_model.clone();
    let Some(interface) = &args.interface else {
        let model = given.unwrap_or_else(|| FilterModel::by_driver(""));
        return Ok((model, FilterRoom::default()));
    };
    let failed = |error: CarvingError| Error::Daemon(error.into());
    let nic = InterfaceFilters::open(interface).map_err(|error| failed(error.into()))?;
    let of_nic = |error: nic_filters::NicError| failed(CarveError::from(error).into());
    let facts = nic.facts().map_err(of_nic)?;
    let folder = settings.and_then(|settings| settings.state.folder());
    let ours = noted(folder, interface, nic.index());
    let foreign = nic.list().map_err(of_nic)?.iter().filter(|listed| !ours.has(listed)).count();
    Ok((given.unwrap_or_else(|| FilterModel::by_driver(&facts.driver)), facts.room(foreign)))
}

fn rule_lines(read: &Read, carved: &CarvedPolicy) -> Vec<RuleLine> {
    let Some(program) = &carved.program else { return Vec::new() };
    let line = |(index, rule): (usize, &program::Rule)| {
        let id = RuleId::of(index);
        let refused = carved.filters.as_ref().err().and_then(|refused| refused.rules.get(&id));
        let (reason, remedy) = refused.map(|why| why.explain(program)).unzip();
        let own =
            carved.filters.iter().flat_map(|filters| &filters.filters).filter(|wanted| wanted.rule == id);
        RuleLine {
            name: rule.name.to_string(),
            action: reports::written_action(&read.policy, index),
            filters: own.map(|wanted| wanted.matches.to_string()).collect(),
            reason,
            remedy,
        }
    };
    program.rules.iter().enumerate().map(line).collect()
}

fn text(
    title: &str,
    rules: &[RuleLine],
    filters: Option<&WantedFilters>,
    most: Option<usize>,
    layout: Layout,
) -> String {
    let mut grid = Grid::new(&["rule", "action", "filters"]);
    for rule in rules {
        let count = match &rule.reason {
            Some(_) => "impossible".to_owned(),
            None => rule.filters.len().to_string(),
        };
        grid.row(vec![rule.name.clone(), rule.action.clone(), count]);
    }
    let mut out = format!("{}\n\n{}", layout.text(Style::Heading, title), grid.text());
    for rule in rules {
        for filter in &rule.filters {
            let _ = writeln!(out, "  {}: {filter}", rule.name);
        }
        if let (Some(reason), Some(remedy)) = (&rule.reason, rule.remedy) {
            out.push_str(&layout.lines(Style::Bad, &format!("  {}: ", rule.name), reason));
            out.push_str(&layout.lines(Style::Plain, "        remedy: ", remedy));
        }
    }
    let verdict = match filters {
        Some(filters) => {
            let needed = counted(filters.filters.len() as u64, "filter", "filters");
            let contexts = counted(filters.groups.len() as u64, "RSS context", "RSS contexts");
            let limit = most.map_or_else(|| "a number that is not known".to_owned(), |most| most.to_string());
            format!("{needed} of {limit}, {contexts}: the NIC can carry out the policy")
        }
        None => "the NIC cannot carry out the policy".to_owned(),
    };
    let _ = writeln!(out, "\n{verdict}");
    out
}
