//! `steerd plan`: what it would cost to put a policy in the place of the one that runs, or of another one.

use std::fmt::Write as _;
use std::path::Path;

use control::{Limits, PlanSummary};
use steerd_client::api::LONG;

use super::target;
use crate::api::model::PlanReport;
use crate::api::request::PolicyBody;
use crate::cli::PlanArgs;
use crate::commands::{Error, client};
use crate::policy_file::{self, Compiled, PolicyChange, PolicyErrors, Read, Running};
use crate::settings::PolicySource;
use crate::terminal::numbers::{counted, number, percent};
use crate::terminal::output;

pub(crate) fn run(args: &PlanArgs) -> Result<(), Error> {
    let report = match &args.from {
        Some(old) => offline(args, old)?,
        None => online(args)?,
    };
    if args.output.is_json() {
        return Ok(output::print_json(&report)?);
    }
    Ok(output::print(&text(&args.new.display().to_string(), &report))?)
}

/// Asks the running daemon, which has the old policy and its counters.
fn online(args: &PlanArgs) -> Result<PlanReport, Error> {
    let (source, read) = read(args, &args.new)?;
    let inputs = &read.inputs;
    let files = inputs.files.iter().filter_map(|(name, file)| Some((name.clone(), file.text.clone()?)));
    let Some(text) = inputs.text.clone() else {
        return Err(Error::NotDecided(format!("{source}: the policy is too long to be sent to the daemon")));
    };
    let body = PolicyBody {
        name: source.to_string(),
        text,
        files: files.collect(),
        variables: (!args.variables.set.is_empty()).then(|| args.variables.set.iter().cloned().collect()),
        all: false,
    };
    Ok(client::connect(&args.api)?.post("/v1/plan", &body, LONG)?)
}

/// Plans for a device model.
fn offline(args: &PlanArgs, old: &Path) -> Result<PlanReport, Error> {
    let ((old_source, old), (new_source, new)) = (read(args, old)?, read(args, &args.new)?);
    let named = || policy_file::workers_named(&old.policy).max(policy_file::workers_named(&new.policy));
    let workers = args.workers.map_or_else(named, |workers| workers as usize);
    let difference = PolicyChange::between(&old.policy, &new.policy).words();
    let limits = Limits::of_model(&args.model);
    let (old, new_read) = (compiled(&old_source, old, args, workers, None)?, new);
    let no_rules = |_: &policy::Policy| Vec::new();
    let running = Running {
        program: &old.program,
        absent: &[],
        counters: None,
        device_rules: &no_rules,
        proves_room: true,
    };
    let new = compiled(&new_source, new_read, args, workers, Some(&running))?;
    let failed = |fault: control::PlanFault| Error::NotDecided(fault.to_string());
    let first = control::plan(None, old.program, &limits).map_err(failed)?;
    let placed = first.placed();
    let change = control::plan(Some(placed), new.program, &limits).map_err(failed)?;
    let summary = PlanSummary::of(&change, Some(&placed), 1);
    Ok(PlanReport { difference: Some(difference), ..PlanReport::of(&summary, &args.model) })
}

fn read(args: &PlanArgs, path: &Path) -> Result<(PolicySource, Read), Error> {
    let source = target::source(path, args.variables.set.iter().cloned().collect())?;
    let read = policy_file::load(&source).map_err(|diagnostics| {
        output::print_diagnostics(&diagnostics);
        PolicyErrors::of(&source, &diagnostics)
    })?;
    Ok((source, read))
}

fn compiled(
    source: &PolicySource,
    read: Read,
    args: &PlanArgs,
    workers: usize,
    running: Option<&Running<'_>>,
) -> Result<Compiled, Error> {
    let compiled = policy_file::compile_read(read, None, &args.model, Some(workers), running);
    let compiled = compiled.and_then(Compiled::into_installable).map_err(|diagnostics| {
        output::print_diagnostics(&diagnostics);
        PolicyErrors::of(source, &diagnostics)
    })?;
    Ok(compiled)
}

/// The report for people.
pub(crate) fn text(name: &str, report: &PlanReport) -> String {
    let mut text = format!("{name}: nothing was done; the change would be:\n");
    if let Some(difference) = &report.difference {
        let _ = writeln!(text, "policy    {difference}");
    }
    if let Some(share) = report.touched_share {
        let _ = writeln!(
            text,
            "packets   {} of those counted so far are of rules that are removed or changed",
            percent(share)
        );
    }
    let PlanReport { flows, flows_before, flows_after, peak_flows, priorities, masks, .. } = report;
    let _ = writeln!(
        text,
        "flows     {flows}; {} before, {} after, at most {} at once on a port",
        number(*flows_before as u64),
        number(*flows_after as u64),
        number(*peak_flows as u64)
    );
    let _ = writeln!(
        text,
        "device    {} and {} of both policies together; new: {}, {}, {}",
        counted(*priorities as u64, "priority", "priorities"),
        counted(*masks as u64, "mask", "masks"),
        counted(report.indirection_tables as u64, "indirection table", "indirection tables"),
        counted(report.queue_pairs as u64, "queue pair", "queue pairs"),
        counted(report.counters as u64, "counter", "counters"),
    );
    let copies = match report.changed_copies {
        0 => "every copy and sniffed packet exactly once".to_owned(),
        changed => format!(
            "{changed} copying flows change: while both are there a packet is copied twice, and between two sniffers none is sniffed"
        ),
    };
    let _ = writeln!(text, "copies    {copies}");
    let time = match report.seconds {
        Some(seconds) if seconds < 1.0 => format!("about {:.0} ms by the device's model", seconds * 1e3),
        Some(seconds) => format!("about {seconds:.1} s by the device's model"),
        None => "the device's model has no rate".to_owned(),
    };
    let _ = writeln!(
        text,
        "calls     {}, {} of them for flows: {time}",
        number(report.calls as u64),
        number(report.flow_calls as u64)
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::model::ChangedFlows;

    #[test]
    fn a_report_tells_cost_and_time() {
        let report = PlanReport {
            flows: ChangedFlows { installed: 2, removed: 2, kept: 15_276 },
            flows_before: 15_278,
            flows_after: 15_278,
            peak_flows: 15_280,
            priorities: 5,
            masks: 7,
            flow_calls: 4,
            calls: 4,
            seconds: Some(0.0008),
            touched_share: Some(0.031),
            difference: Some("1 rule changed (a)".to_owned()),
            ..PlanReport::default()
        };
        let text = text("p.toml", &report);
        for line in ["3.1% of those counted", "at most 15280 at once", "4 of them for flows: about 1 ms"] {
            assert!(text.contains(line), "{text}");
        }
    }
}
