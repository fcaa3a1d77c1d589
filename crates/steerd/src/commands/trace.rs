//! `steerd trace [MATCH]`: the ways that packets take through the running daemon, each compared with the way
//! that `explain` computes.

mod lines;

use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use program::RUNTIME_RULES;
use steerd_client::api::CaptureNext;

use super::ending::Ending;
use crate::api::model::TraceLine;
use crate::api::request::TraceBody;
use crate::cli::TraceArgs;
use crate::commands::{Error, Outcome, client};
use crate::terminal::numbers::counted;
use crate::terminal::output::{self, OutputError, Priority};
pub(super) use lines::TraceLines;

pub(crate) fn run(args: &TraceArgs) -> Result<Outcome, Error> {
    let client = client::connect(&args.api)?;
    let ending = Ending::after(args.seconds.map(Duration::from_secs))?;
    let body = TraceBody { matches: args.matches.clone(), one_in: args.one_in, dropped: args.dropped };
    let mut shown = Shown { wanted: args.count, is_json: args.output.is_json(), ..Shown::default() };
    let mut lines = TraceLines::default();
    let followed = client.trace(
        &body,
        || ending.is_over(),
        |bytes| lines.take(bytes, |traced, line| shown.packet(&traced, line)),
    )?;
    match followed {
        // Whoever read the pipe has enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        followed => followed.map_err(OutputError)?,
    }
    lines.finish()?;
    let Shown { packets, differing, left_out, .. } = shown;
    let left_out = match left_out {
        0 => String::new(),
        left_out => format!(", {left_out} left out"),
    };
    let (priority, found) = match differing {
        0 => (Priority::Info, "all as computed".to_owned()),
        _ => (Priority::Error, format!("{differing} NOT AS COMPUTED")),
    };
    let traced = counted(packets, "packet", "packets");
    output::print_message(priority, &format!("{traced} traced{left_out}, {found}"));
    Ok(if differing == 0 { Outcome::Success } else { Outcome::Different })
}

/// The packets that were shown.
#[derive(Default)]
struct Shown {
    wanted: u64,
    is_json: bool,
    packets: u64,
    differing: u64,
    left_out: u64,
}

impl Shown {
    fn packet(&mut self, traced: &TraceLine, line: &[u8]) -> io::Result<CaptureNext> {
        self.packets += 1;
        self.left_out += traced.left_out;
        self.differing += u64::from(!traced.differences.is_empty());
        let text = match self.is_json {
            true => format!("{}\n", String::from_utf8_lossy(line)),
            false => text(traced),
        };
        output::print(&text).map_err(|OutputError(error)| error)?;
        Ok(if self.packets >= self.wanted { CaptureNext::Stop } else { CaptureNext::More })
    }
}

/// The text about a packet, of several lines.
fn text(traced: &TraceLine) -> String {
    let bytes = counted(traced.bytes.into(), "byte", "bytes");
    let mut out = format!("{}  {}, {bytes}\n", traced.number, output::plain(&traced.packet));
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "   {name:<8} {}", output::plain(&value));
    };
    let or_none = |number: Option<u64>| number.map_or_else(|| "none".to_owned(), |number| number.to_string());
    let received = traced.received_ns.map(|at| format!("received at {}", clock(at)));
    let decided = traced.decided_ns.map(|at| match traced.received_ns {
        Some(received) => format!("decided {:.1} us later", at.saturating_sub(received) as f64 / 1e3),
        None => format!("decided at {}", clock(at)),
    });
    line("time", received.into_iter().chain(decided).collect::<Vec<_>>().join(", "));
    let copy = if traced.is_copy { ": a copy of the packet" } else { "" };
    let flow = or_none(traced.flow.map(|flow| flow as u64));
    let place = if traced.line > 0 { format!(" (line {})", traced.line) } else { String::new() };
    let rule = format!("{}{place}: {}", traced.rule, traced.action);
    if let Some(worker) = traced.worker {
        let (tag, queue) = (or_none(traced.tag.map(u64::from)), or_none(traced.queue.map(u64::from)));
        line("flow", format!("{flow}, tag {tag}, queue pair {queue}{copy}"));
        line("worker", worker.to_string());
        let by = match traced.compared_rules {
            Some(rules) => {
                format!("decided by the worker, {} compared", counted(rules, "rule", "rules"))
            }
            None if traced.rule == RUNTIME_RULES => "decided by the worker".to_owned(),
            None => "decided by the flow".to_owned(),
        };
        line("rule", format!("{rule}, {by}"));
        line("sinks", if traced.sinks.is_empty() { "none".to_owned() } else { traced.sinks.join(", ") });
    } else {
        line("flow", flow);
        line("rule", format!("{rule}, decided by the device"));
    }
    if let Some(reason) = &traced.dropped {
        line("dropped", reason.clone());
    }
    for difference in &traced.differences {
        line("DIFFERS", difference.to_string());
    }
    out
}

/// The time of day, in UTC.
fn clock(ns: u64) -> String {
    let (seconds, ns) = (ns / 1_000_000_000 % 86_400, ns % 1_000_000_000);
    format!("{:02}:{:02}:{:02}.{:06} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60, ns / 1000)
}
