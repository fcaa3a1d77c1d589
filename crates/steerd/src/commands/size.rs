//! `steerd size`: how the packets of a capture load the workers of each group under its table and its hash
//! key, which key and weights are more even, how many workers a rate needs, and what is lost at a rate. No
//! device is used.
//!
//! The worker of each packet is that of the compiled program, as `explain` shows it. Rates and the time of a
//! packet are given, not measured.

mod balance;
mod collected;
mod text;

use std::path::Path;

use packet::DeepKey;
use program::{Group, Program, WorkerId};
use reports::Amount;
use serde::Serialize;

use self::balance::{Found, Input, Spread};
use super::target::Target;
use crate::cli::{Format, PolicyArgs, SizeArgs};
use crate::commands::Error;
use crate::daemon::device::TargetDevice;
use crate::policy_file::{self, Compiled, PolicyErrors};
use crate::settings::{PolicySource, Traffic};
use crate::terminal::output;
use crate::terminal::style::Layout;
use crate::traffic::Totals;
use collected::{Collected, Intervals};
pub(super) use collected::{Flow, GroupTraffic};

/// The largest flows that are listed for each group.
const LISTED_FLOWS: usize = 5;
const NS_PER_S: f64 = 1e9;

/// Described in docs/reference/commands/size.md.
#[derive(Debug, Serialize)]
struct Answer {
    policy: String,
    profile: String,
    traffic: String,
    packets: u64,
    bytes: u64,
    runts: u64,
    /// From the first packet to the last; `null`: the capture has no times.
    seconds: Option<f64>,
    /// Packets per second that the port receives; `null`: not known.
    rate: Option<f64>,
    /// Packets per second that a worker takes; `null`: not given.
    worker_capacity: Option<f64>,
    max_load_percent: u32,
    groups: Vec<GroupAnswer>,
    workers: Vec<WorkerAnswer>,
    /// The share of all packets that workers receive that exceeds their capacity; `null`: not known.
    expected_loss: Option<f64>,
    /// Within which packets exceed the capacity or do not.
    interval_ms: u64,
}

#[derive(Debug, Serialize)]
struct GroupAnswer {
    group: String,
    #[serde(flatten)]
    all: Amount,
    table_size: usize,
    key: String,
    workers: Vec<Share>,
    /// The packets of the busiest worker divided by the mean; 1 is perfectly even. `null`: no packet.
    largest_to_mean: Option<f64>,
    /// The ratio if all but the largest flow were spread evenly: no key and no equal weights are better.
    least_possible: Option<f64>,
    flows: usize,
    /// Packets of flows beyond the limit, which have no part in what is recommended.
    untracked_packets: u64,
    largest_flows: Vec<FlowAnswer>,
    /// `null`: no packet.
    recommended: Option<Recommended>,
}

#[derive(Debug, Serialize)]
struct Share {
    worker: WorkerId,
    #[serde(flatten)]
    amount: Amount,
    /// The share of the group's packets.
    share: f64,
}

#[derive(Debug, Serialize)]
struct FlowAnswer {
    packets: u64,
    /// The share of the group's packets.
    share: f64,
    /// The share of the packets that each worker would receive if all received equally many. More than 1: no
    /// hash can split it.
    of_worker_share: f64,
    /// Whether there is nothing to hash in its packets, so that no key moves it.
    unhashed: bool,
    /// The first packet of the flow.
    packet: String,
}

#[derive(Debug, Serialize)]
struct Recommended {
    /// `null`: none of the keys is better than that of the group.
    key: Option<String>,
    /// With the key and the group's table.
    largest_to_mean: f64,
    keys_compared: usize,
    /// `null`: none are better than the group's table.
    weights: Option<Vec<Weight>>,
    /// With the weights.
    weighted_largest_to_mean: Option<f64>,
    /// The least number of workers with equal weights that the rate needs; `null`: not known, or no number is
    /// enough.
    workers: Option<usize>,
    /// Whether no number of workers is enough, because the busiest receives too much.
    too_much_for_any: bool,
}

#[derive(Debug, Serialize)]
struct Weight {
    worker: u32,
    weight: u32,
}

#[derive(Debug, Serialize)]
struct WorkerAnswer {
    worker: WorkerId,
    /// The packets of all groups, copies included.
    packets: u64,
    /// Packets per second.
    rate: Option<f64>,
    /// The rate divided by the capacity.
    load: Option<f64>,
    /// The share of its packets that exceeds its capacity.
    expected_loss: Option<f64>,
}

pub(crate) fn run(args: &SizeArgs) -> Result<(), Error> {
    let CapturedLoad { source, device, compiled, collected } = CapturedLoad::of(&args.policy, &args.traffic)?;
    let program = &*compiled.program;
    let load = Load::of(args, &collected);
    let consecutive = device.profile.table_consecutive;
    let groups = program.groups.iter().zip(&collected.groups);
    let answer = Answer {
        policy: source.to_string(),
        profile: device.profile.name.clone(),
        traffic: args.traffic.display().to_string(),
        packets: collected.totals.packets,
        bytes: collected.totals.bytes,
        runts: collected.totals.runts,
        seconds: load.seconds,
        rate: load.rate,
        worker_capacity: load.capacity,
        max_load_percent: args.max_load,
        groups: groups.map(|(group, traffic)| group_answer(group, traffic, &load, consecutive)).collect(),
        expected_loss: load.expected_loss(&collected.intervals),
        workers: load.workers(program, &collected.intervals),
        interval_ms: collected.intervals.length_ns / 1_000_000,
    };
    match args.policy.printed.format() {
        Format::Json => output::print_json(&answer)?,
        Format::Text => output::print(&text::of(&answer, Layout::stdout()))?,
    }
    Ok(())
}

/// A policy that is compiled for a capture, and the packets of the capture under it.
pub(super) struct CapturedLoad {
    pub(super) source: PolicySource,
    pub(super) device: TargetDevice,
    pub(super) compiled: Compiled,
    pub(super) collected: Collected,
}

impl CapturedLoad {
    pub(super) fn of(policy: &PolicyArgs, traffic: &Path) -> Result<Self, Error> {
        let Target { source, device, workers, .. } = Target::of(policy)?;
        let refused = |diagnostics| {
            output::print_diagnostics(&diagnostics);
            PolicyErrors::of(&source, &diagnostics)
        };
        let mut read = policy_file::load(&source).map_err(refused)?;
        let weights = read.weights(Some(&Traffic::Capture(traffic.to_owned())), None)?;
        let compiled =
            read.compile(weights.as_ref(), &device.profile, workers, None, &[], false).map_err(refused)?;
        let collected = Collected::of(&compiled.program, traffic)?;
        Ok(Self { source, device, compiled, collected })
    }
}

/// The rate at which the packets of the capture are taken to arrive, and what a worker takes.
struct Load {
    totals: Totals,
    seconds: Option<f64>,
    rate: Option<f64>,
    capacity: Option<f64>,
    max_load: f64,
    keys: usize,
}

impl Load {
    fn of(args: &SizeArgs, collected: &Collected) -> Self {
        let duration_ns = collected.intervals.duration_ns;
        let seconds = (duration_ns > 0).then(|| duration_ns as f64 / NS_PER_S);
        let of_capture = seconds.map(|seconds| collected.totals.packets as f64 / seconds);
        Self {
            totals: collected.totals,
            seconds,
            rate: args.rate.or(of_capture).map(|rate| rate * args.times),
            capacity: args.ns_per_packet.map(|ns| NS_PER_S / ns),
            max_load: f64::from(args.max_load) / 100.0,
            keys: args.keys as usize,
        }
    }

    /// The rate of so many packets of the capture.
    fn rate_of(&self, packets: u64) -> Option<f64> {
        Some(self.rate? * packets as f64 / self.totals.packets.max(1) as f64)
    }

    /// The packets of each worker that exceed its capacity.
    fn excess(&self, intervals: &Intervals) -> Option<std::collections::BTreeMap<WorkerId, f64>> {
        let seconds = self.totals.packets as f64 / self.rate?;
        Some(intervals.excess(self.capacity?, seconds))
    }

    fn expected_loss(&self, intervals: &Intervals) -> Option<f64> {
        // Not `sum`, which is -0 of nothing.
        let lost = self.excess(intervals)?.values().fold(0.0, |all, lost| all + lost);
        let received: u64 = intervals.packets().values().sum();
        Some(lost / received.max(1) as f64)
    }

    /// All workers of the program's groups.
    fn workers(&self, program: &Program, intervals: &Intervals) -> Vec<WorkerAnswer> {
        let mut packets = intervals.packets();
        for worker in program.groups.iter().flat_map(|group| &group.table) {
            packets.entry(*worker).or_default();
        }
        let excess = self.excess(intervals);
        let answer = |(worker, packets): (WorkerId, u64)| {
            let rate = self.rate_of(packets);
            let lost = excess.as_ref().map(|excess| excess.get(&worker).copied().unwrap_or(0.0));
            WorkerAnswer {
                worker,
                packets,
                rate,
                load: rate.zip(self.capacity).map(|(rate, capacity)| rate / capacity),
                expected_loss: lost.map(|lost| lost / packets.max(1) as f64),
            }
        };
        packets.into_iter().map(answer).collect()
    }
}

fn group_answer(group: &Group, traffic: &GroupTraffic, load: &Load, consecutive: bool) -> GroupAnswer {
    let all = traffic.all.packets;
    let share = |packets: u64| packets as f64 / all.max(1) as f64;
    let loads = traffic.workers.iter().map(|(worker, amount)| (*worker, amount.packets)).collect();
    // In the order of their inputs, so that nothing depends on the order of a hash map.
    let mut flows: Vec<(Input, u64)> =
        traffic.flows.iter().map(|(input, flow)| (*input, flow.packets)).collect();
    flows.sort_unstable();
    let spread = Spread {
        table: &group.table,
        key: &group.key,
        symmetric: group.symmetric,
        takes_weights: !consecutive,
    };
    let found = balance::search(&flows, spread, load.keys);
    let mut largest = flows;
    largest.sort_by_key(|(_, packets)| std::cmp::Reverse(*packets));
    let workers = traffic.workers.len() as f64;
    let listed = largest.iter().take(LISTED_FLOWS).map(|(input, packets)| FlowAnswer {
        packets: *packets,
        share: share(*packets),
        of_worker_share: share(*packets) * workers,
        unhashed: input.is_empty(),
        packet: traffic.flows.get(input).map_or_else(String::new, |flow| {
            policy::short_packet(&DeepKey { outer: flow.first, ..DeepKey::default() })
        }),
    });
    let workers_of = |(worker, amount): (&WorkerId, &Amount)| Share {
        worker: *worker,
        amount: *amount,
        share: share(amount.packets),
    };
    GroupAnswer {
        group: group.name.clone(),
        all: traffic.all,
        table_size: group.table.len(),
        key: group.key.to_string(),
        workers: traffic.workers.iter().map(workers_of).collect(),
        largest_to_mean: balance::largest_to_mean(&loads),
        least_possible: largest.first().map(|(_, packets)| (share(*packets) * workers).max(1.0)),
        flows: largest.len(),
        untracked_packets: traffic.other_packets,
        largest_flows: listed.collect(),
        recommended: found.map(|found| recommended(group, &found, load.rate_of(all), load, consecutive)),
    }
}

/// The key and table that are better than the group's.
fn recommended(
    group: &Group,
    found: &Found,
    rate: Option<f64>,
    load: &Load,
    consecutive: bool,
) -> Recommended {
    let weights = found.weights.as_ref();
    let workers = rate.zip(load.capacity).map(|(rate, capacity)| {
        let most = capacity * load.max_load;
        balance::workers_for(&found.hashes, group.table.len(), rate, most, consecutive)
    });
    Recommended {
        key: (found.key != group.key).then(|| found.key.to_string()),
        largest_to_mean: found.largest_to_mean,
        keys_compared: found.keys,
        weights: weights.map(|(weights, _)| {
            weights.iter().map(|(worker, weight)| Weight { worker: *worker, weight: *weight }).collect()
        }),
        weighted_largest_to_mean: weights.map(|(_, even)| *even),
        workers: workers.flatten(),
        too_much_for_any: workers == Some(None),
    }
}
