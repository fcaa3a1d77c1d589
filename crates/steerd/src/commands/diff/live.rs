//! `diff --live NEW`: how many packets that the daemon receives each change would move. The packets are those
//! of a trace; both policies are compiled and compared here, and nothing is installed.

mod estimate;
mod report;
mod tally;
#[cfg(test)]
mod tests;
mod text;

use std::cell::RefCell;
use std::time::{Duration, Instant};

use analysis::{Diff, Progress};
use device_model::DeviceModel;
use policy::policy::Direction;
use steerd_client::api::{ApiClient, CaptureNext};

use super::{NamedPolicy, RunningPolicy, refused};
use crate::api::model::Status;
use crate::api::request::TraceBody;
use crate::cli::DiffArgs;
use crate::commands::ending::Ending;
use crate::commands::trace::TraceLines;
use crate::commands::{Error, client};
use crate::policy_file::Compiled;
use crate::telemetry::pages;
use crate::telemetry::top::Top;
use crate::terminal::output::{self, OutputError};
pub(super) use report::LiveReport;
use report::SampleFacts;
use tally::Tally;
pub(super) use text::of as text;

/// The packets per second that are sampled: enough for shares of a thousandth within half a minute, and few
/// enough for a trace of a large policy.
const SAMPLED_PER_SECOND: f64 = 1000.0;
/// The longest time of which averages are taken for the rates of now.
const RATES_SECONDS: f64 = 10.0;

/// The sample of a daemon that has the old policy in force. `None`: no received packet can move.
pub(super) fn sample(
    args: &DiffArgs,
    [old, new]: [&NamedPolicy; 2],
    running: &RunningPolicy,
    found: &Diff,
) -> Result<Option<LiveReport>, Error> {
    if found.is_whole() && found.pairs.iter().all(|pair| pair.direction == Direction::Egress) {
        return Ok(None);
    }
    let client = client::connect(&args.api)?;
    let status: Status = client.get("/v1/status")?;
    let model = model(args, &status)?;
    let workers = args.workers.map_or(status.workers, |workers| workers as usize);
    let [old_compiled, new_compiled] = [compiled(old, &model, workers)?, compiled(new, &model, workers)?];
    let one_in = match args.one_in {
        Some(one_in) => one_in,
        None => one_in(&rates(&client)?, status.device.soft),
    };
    let policies = [&old.read.policy, &new.read.policy];
    let programs = [&*old_compiled.program, &*new_compiled.program];
    let mut tally = Tally::new(policies, programs, running.generation);
    let (seconds, ended_early) = follow(&client, args.sample_time, one_in, &mut tally)?;
    // A rule at run time that moves into the device makes a generation, too, of the same policy.
    let now = client.get::<Status>("/v1/status");
    let is_same = |now: &Status| {
        now.policy.sha256 == running.sha256 && now.policy.reloads_succeeded == status.policy.reloads_succeeded
    };
    if now.as_ref().is_ok_and(is_same) {
        tally.merge_later();
    }
    let generation = running.generation;
    let facts = SampleFacts { seconds, ended_early, one_in, generation, traced: status.traced };
    Ok(Some(LiveReport::of(facts, &tally, found, policies[0])))
}

/// The model of the daemon's device, unless the arguments give one.
fn model(args: &DiffArgs, status: &Status) -> Result<DeviceModel, Error> {
    let ports = status.device.ports.len();
    if let Some(model) = &args.model {
        return Ok(model.clone().on_ports(ports));
    }
    // `softnic0 (mlx5)`
    let name = status.device.profile.as_str();
    let name = name.rsplit_once('(').map_or(name, |(_, model)| model.trim_end_matches(')'));
    let unknown = || {
        let why = "which this program does not have (hint: name its file by --model)";
        Error::NotDecided(format!("the daemon's device has the model `{name}`, {why}"))
    };
    let model = DeviceModel::by_name(name).ok_or_else(unknown)?;
    Ok(if status.device.soft { model.in_software() } else { model }.on_ports(ports))
}

fn compiled(policy: &NamedPolicy, model: &DeviceModel, workers: usize) -> Result<Compiled, Error> {
    let compiled = policy.read.clone().compile(None, model, Some(workers), None, &[], false);
    compiled.map_err(|diagnostics| refused(&policy.name, &diagnostics))
}

/// The rates of a daemon now. Its first answer may have averages since its start, or since somebody asked
/// long ago.
fn rates(client: &ApiClient) -> Result<Top, Error> {
    let top: Top = client.get("/v1/top")?;
    if top.interval_seconds <= RATES_SECONDS {
        return Ok(top);
    }
    std::thread::sleep(2 * pages::LIFE);
    Ok(client.get("/v1/top")?)
}

/// The number of packets of which one is sampled, by the rates that the daemon shows. The ports of a NIC also
/// count packets that no worker receives, and these are in no trace.
fn one_in(top: &Top, is_soft: bool) -> u32 {
    let ports: Option<f64> = top.ports.iter().map(|port| port.packets_per_second).sum();
    let workers = || top.workers.iter().map(|worker| worker.packets_per_second).sum::<f64>();
    let rate = ports.filter(|_| is_soft).unwrap_or_else(workers);
    (rate / SAMPLED_PER_SECOND).ceil().max(1.0) as u32
}

/// Counts the packets of a trace of this time, which a signal ends earlier. Returns how long it took in
/// seconds, and whether the daemon ended it.
fn follow(
    client: &ApiClient,
    time: Duration,
    one_in: u32,
    tally: &mut Tally<'_>,
) -> Result<(f64, bool), Error> {
    let body = TraceBody { one_in: Some(one_in), ..TraceBody::default() };
    let ending = Ending::after(Some(time))?;
    let begun = Instant::now();
    let progress = RefCell::new(output::Progress::new());
    let is_over = || {
        let (done, total) = (begun.elapsed().as_secs() as usize, time.as_secs() as usize);
        progress.borrow_mut().show(Progress { stage: "sampling, second", done, total });
        ending.is_over()
    };
    let mut lines = TraceLines::default();
    let followed = client.trace(&body, is_over, |bytes| {
        lines.take(bytes, |line, _| {
            tally.add(&line, begun.elapsed());
            Ok(CaptureNext::More)
        })
    })?;
    followed.map_err(OutputError)?;
    lines.finish()?;
    Ok((begun.elapsed().as_secs_f64(), !ending.is_over()))
}
