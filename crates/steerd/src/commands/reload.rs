//! `steerd reload`, `confirm` and `rollback`: change the policy of the running daemon, and wait for its
//! verdict.

use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use serde::Serialize;
use steerd_client::api::LONG;

use crate::api::model::{ChangeState, History, Status, Verdict};
use crate::api::request::{ReloadBody, RollbackBody};
use crate::cli::{ApiArgs, ConfirmArgs, OutputArgs, ReloadArgs, RollbackArgs};
use crate::commands::{Error, client, plan};
use crate::message::NoThread;
use crate::terminal::output::{self, Priority, Progress};

/// How often a change that goes on is looked at.
const WATCHED_EVERY: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &ReloadArgs) -> Result<(), Error> {
    let confirm_seconds = args.confirm.map(|time| time.as_secs_f64());
    let asked = ReloadBody { confirm_seconds, dry_run: args.dry_run, force: args.force };
    let verdict = changed(&args.api, "/v1/reload", &asked)?;
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
    let verdict = accepted(verdict, args.output).map_err(|error| match error {
        Error::ReloadRefused { why, .. } => Error::NotConfirmed(why),
        error => error,
    })?;
    if !args.output.is_json() {
        output::print(&format!("{}: confirmed, generation {}\n", verdict.source, verdict.generation))?;
    }
    Ok(())
}

pub(crate) fn rollback(args: &RollbackArgs) -> Result<(), Error> {
    let history: History = client::connect(&args.api)?.get("/v1/history")?;
    let seen = history.policies.first().map(|policy| policy.number);
    let asked = RollbackBody { back: args.back, in_force: seen };
    let verdict = changed(&args.api, "/v1/rollback", &asked)?;
    let verdict = accepted(verdict, args.output)?;
    if !args.output.is_json() {
        output::print(&in_force(&verdict))?;
        output::print("the file still has the later policy: the next reload reads it\n")?;
    }
    Ok(())
}

/// Asks for a change, and shows on a terminal how far it is until the verdict comes.
fn changed(api: &ApiArgs, path: &str, asked: &(impl Serialize + Sync)) -> Result<Verdict, Error> {
    let client = client::connect(api)?;
    let mut progress = Progress::new();
    // Without a second connection the change is made all the same.
    let Some(watching) = progress.is_terminal().then(|| client::connect(api).ok()).flatten() else {
        return Ok(client.post(path, asked, LONG)?);
    };
    std::thread::scope(|scope| {
        let (sender, verdict) = mpsc::channel();
        let thread = std::thread::Builder::new().name("verdict".into());
        thread
            .spawn_scoped(scope, move || drop(sender.send(client.post(path, asked, LONG))))
            .map_err(NoThread)?;
        loop {
            match verdict.recv_timeout(WATCHED_EVERY) {
                Ok(verdict) => {
                    drop(progress);
                    return Ok(verdict?);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(NoThread(io::ErrorKind::Other.into()).into());
                }
            }
            if let Ok(Status { change: Some(change), .. }) = watching.get("/v1/status") {
                let ChangeState { done_flows, flows } = change;
                progress.show(analysis::Progress { stage: "flows", done: done_flows, total: flows });
            }
        }
    })
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
    if io::stderr().is_terminal() {
        if !verdict.excerpts.is_empty() {
            output::print_error(verdict.excerpts.trim_end());
        }
        return;
    }
    // A line for each; one more counts those that are left out.
    for (index, line) in verdict.text.lines().enumerate() {
        let is_warning = match verdict.diagnostics.get(index) {
            Some(diagnostic) => diagnostic["severity"] == "warning",
            None => verdict.accepted,
        };
        output::print_message(if is_warning { Priority::Warning } else { Priority::Error }, line);
    }
}
