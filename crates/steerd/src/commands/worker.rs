//! `steerd worker`: adds, drains and lists workers of the running daemon.

use std::fmt::Write as _;

use steerd_client::api::LONG;

use crate::api::model::{WorkerList, WorkerRow, WorkersChanged};
use crate::api::request::WorkerChange;
use crate::cli::{WorkerArgs, WorkerCommand};
use crate::commands::{Error, client};
use crate::terminal::output;

pub(crate) fn run(args: &WorkerArgs) -> Result<(), Error> {
    match args.command {
        WorkerCommand::Add { core } => change(args, WorkerChange::Add { core }),
        WorkerCommand::Drain { worker } => change(args, WorkerChange::Drain { worker }),
        WorkerCommand::List => list(args),
    }
}

fn change(args: &WorkerArgs, change: WorkerChange) -> Result<(), Error> {
    let changed: WorkersChanged = client::connect(&args.api)?.post("/v1/workers/changes", &change, LONG)?;
    if args.output.is_json() {
        return Ok(output::print_json(&changed)?);
    }
    Ok(output::print(&format!("{changed}\n"))?)
}

fn list(args: &WorkerArgs) -> Result<(), Error> {
    let list: WorkerList = client::connect(&args.api)?.get("/v1/workers")?;
    if args.output.is_json() {
        return Ok(output::print_json(&list)?);
    }
    let mut text = String::new();
    for WorkerRow { worker, place, groups, received_packets } in &list.workers {
        let groups = if groups.is_empty() { "no group".to_owned() } else { groups.join(", ") };
        let _ = writeln!(text, "worker {worker} {place}: {groups}, {received_packets} packets");
    }
    Ok(output::print(&text)?)
}
