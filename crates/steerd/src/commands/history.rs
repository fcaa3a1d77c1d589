//! `steerd history`: the policies that were in force.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::api::model::{History, HistoryEntry};
use crate::cli::HistoryArgs;
use crate::commands::{Error, client};
use crate::terminal::numbers::duration;
use crate::terminal::output;

pub(crate) fn run(args: &HistoryArgs) -> Result<(), Error> {
    let history: History = client::connect(&args.api)?.get("/v1/history")?;
    if args.output.is_json() {
        return Ok(output::print_json(&history)?);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    let mut text = String::new();
    for entry in &history.policies {
        let _ = write!(text, "{}", lines(entry, now));
    }
    Ok(output::print(&text)?)
}

fn lines(entry: &HistoryEntry, now: f64) -> String {
    let HistoryEntry {
        back,
        number,
        at_seconds,
        by,
        sha256,
        is_kept,
        difference,
        milliseconds,
        flows,
        is_unconfirmed,
    } = entry;
    let ago = duration(Duration::from_secs_f64((now - at_seconds).max(0.0)));
    let place = if *back == 0 { "in force".to_owned() } else { format!("rollback {back}") };
    let flows = flows.map_or_else(String::new, |flows| format!(", {flows}"));
    let kept = if *is_kept { "" } else { ", text not kept" };
    let unconfirmed = if *is_unconfirmed { ", not confirmed" } else { "" };
    let mut text = format!(
        "{place}: policy {number}, {ago} ago by {}, {milliseconds} ms{flows}, sha256 {}{kept}{unconfirmed}\n",
        output::plain(by),
        sha256.get(..12).unwrap_or(sha256)
    );
    if !difference.is_empty() {
        let _ = writeln!(text, "    {}", output::plain(difference));
    }
    text
}
