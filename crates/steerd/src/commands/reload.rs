//! `steerd reload`: lets the running daemon read its policy again, and waits for its verdict.

use std::io::IsTerminal;

use crate::api::client::{Client, LONG};
use crate::api::model::Verdict;
use crate::cli::ReloadArgs;
use crate::commands::Error;
use crate::terminal::output;

pub(crate) fn run(args: &ReloadArgs) -> Result<(), Error> {
    let client = Client::new(&args.api)?;
    let verdict: Verdict = client.post("/v1/reload", &(), LONG)?;
    if args.output.is_json() {
        output::print_json(&verdict)?;
    } else {
        print_diagnostics(&verdict);
    }
    if !verdict.accepted {
        let why = verdict.error.unwrap_or_default();
        return Err(Error::ReloadRefused { policy: verdict.source, why });
    }
    if !args.output.is_json() {
        let Verdict { source, generation, milliseconds, flows, .. } = verdict;
        let flows = flows.map_or_else(String::new, |flows| format!("; {flows}"));
        output::print(&format!(
            "{source}: in force after {milliseconds} ms, generation {generation}{flows}\n"
        ))?;
    }
    Ok(())
}

/// Prints diagnostics as `check` does.
fn print_diagnostics(verdict: &Verdict) {
    let text = if std::io::stderr().is_terminal() { &verdict.excerpts } else { &verdict.text };
    if !text.is_empty() {
        output::print_error(text.trim_end());
    }
}
