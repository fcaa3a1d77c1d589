//! `steerd reload`, `confirm` and `rollback`: change the policy of the running daemon, and wait for its
//! verdict.

use std::fmt::Write as _;
use std::io::IsTerminal;

use steerd_client::api::LONG;

use crate::api::model::{History, Verdict};
use crate::api::request::{ReloadBody, RollbackBody};
use crate::cli::{ConfirmArgs, OutputArgs, ReloadArgs, RollbackArgs};
use crate::commands::{Error, client, plan};
use crate::terminal::output;

pub(crate) fn run(args: &ReloadArgs) -> Result<(), Error> {
    let confirm_seconds = args.confirm.map(|time| time.as_secs_f64());
    let asked = ReloadBody { confirm_seconds, dry_run: args.dry_run, force: args.force };
    let verdict = client::connect(&args.api)?.post("/v1/reload", &asked, LONG)?;
    let verdict = accepted(verdict, args.output)?;
    if args.output.is_json() {
        return Ok(());
    }
    if let Some(report) = &verdict.plan {
        return Ok(output::print(&plan::text(&verdict.source, report))?);
    }
    Ok(output::print(&in_force(&verdict))?)
}

pub(crate) fn confirm(args: &ConfirmArgs) -> Result<(), Error> {
    let verdict = client::connect(&args.api)?.post("/v1/confirm", &(), LONG)?;
    let verdict = accepted(verdict, args.output)?;
    if !args.output.is_json() {
        output::print(&format!("{}: confirmed, generation {}\n", verdict.source, verdict.generation))?;
    }
    Ok(())
}

pub(crate) fn rollback(args: &RollbackArgs) -> Result<(), Error> {
    let client = client::connect(&args.api)?;
    let history: History = client.get("/v1/history")?;
    let seen = history.policies.first().map(|policy| policy.number);
    let asked = RollbackBody { back: args.back, in_force: seen };
    let verdict = client.post("/v1/rollback", &asked, LONG)?;
    let verdict = accepted(verdict, args.output)?;
    if !args.output.is_json() {
        output::print(&in_force(&verdict))?;
        output::print("the file still has the later policy: the next reload reads it\n")?;
    }
    Ok(())
}

/// Prints a verdict as JSON, or its diagnostics.
fn accepted(verdict: Verdict, output: OutputArgs) -> Result<Verdict, Error> {
    if output.is_json() {
        output::print_json(&verdict)?;
    } else {
        print_diagnostics(&verdict);
    }
    if verdict.accepted {
        return Ok(verdict);
    }
    let why = verdict.error.unwrap_or_default();
    Err(Error::ReloadRefused { policy: verdict.source, why })
}

fn in_force(verdict: &Verdict) -> String {
    let Verdict { source, generation, milliseconds, flows, difference, confirm_seconds, .. } = verdict;
    let flows = flows.map_or_else(String::new, |flows| format!("; {flows}"));
    let mut text = format!("{source}: in force after {milliseconds} ms, generation {generation}{flows}\n");
    if let Some(difference) = difference {
        let _ = writeln!(text, "{difference}");
    }
    if let Some(seconds) = confirm_seconds {
        let _ = writeln!(text, "the policy before comes back in {seconds} s unless `steerd confirm` comes");
    }
    text
}

/// Prints diagnostics as `check` does.
fn print_diagnostics(verdict: &Verdict) {
    let text = if std::io::stderr().is_terminal() { &verdict.excerpts } else { &verdict.text };
    if !text.is_empty() {
        output::print_error(text.trim_end());
    }
}
