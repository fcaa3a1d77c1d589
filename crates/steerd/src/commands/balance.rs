//! `steerd balance --dry-run`: the moves of entries between workers by which the crate `balance` evens out
//! the load of a capture, step by step, with the loads before and after. The load of an entry is the time
//! that workers take for its packets, by the model of the compiler; no device is used and nothing is moved.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use balance::{
    BalanceLimits, Balancer, EntrySample, GroupSample, GroupStep, MoveOrder, PeriodSample, StepEnd,
    largest_to_mean,
};
use packet::{DeepKey, Toeplitz};
use program::{Group, Program, WorkerId};
use serde::Serialize;

use super::size::{CapturedLoad, Flow, GroupTraffic};
use crate::cli::BalanceArgs;
use crate::commands::Error;
use crate::terminal::numbers::{counted, percent};
use crate::terminal::output;
use crate::terminal::style::{Layout, Style};
use crate::terminal::table::Grid;

/// The time between two steps.
const STEP_NS: u64 = 1_000_000_000;
/// The most steps that are predicted.
const MAX_STEPS: usize = 60;
/// An entry without packets in so much time at the end of the capture is idle.
const IDLE_NS: u64 = 100_000_000;

/// Described in docs/reference/commands/balance.md.
#[derive(Debug, Serialize)]
struct Answer {
    policy: String,
    profile: String,
    traffic: String,
    packets: u64,
    groups: Vec<GroupAnswer>,
}

#[derive(Debug, Serialize)]
struct GroupAnswer {
    group: String,
    table_size: usize,
    packets: u64,
    workers: Vec<WorkerLoad>,
    /// The load of the fullest worker divided by the mean; `null`: no load.
    largest_to_mean_before: Option<f64>,
    largest_to_mean_after: Option<f64>,
    moves: Vec<MoveAnswer>,
    elephants: Vec<ElephantAnswer>,
    end: StepEnd,
    /// How often the table changes.
    table_changes: usize,
    /// The queue pairs and flows that refer to the group's tables: a table of verbs cannot be changed, so
    /// each change replaces them.
    queue_pairs: usize,
    flows: usize,
}

/// Shares of the load of all workers of the group, for all groups.
#[derive(Debug, Serialize)]
struct WorkerLoad {
    worker: WorkerId,
    before: f64,
    after: f64,
}

#[derive(Debug, Serialize)]
struct MoveAnswer {
    /// From 1.
    step: usize,
    entry: usize,
    from: WorkerId,
    to: WorkerId,
    order: MoveOrder,
    /// The share of the load of the group's workers.
    share: f64,
}

#[derive(Debug, Serialize)]
struct ElephantAnswer {
    entry: usize,
    worker: WorkerId,
    /// The load of the flow divided by the mean of the workers.
    of_worker_share: f64,
    /// The first packet of the flow.
    packet: String,
}

pub(crate) fn run(args: &BalanceArgs) -> Result<(), Error> {
    if !args.dry_run {
        let why = "balance: this version moves no entries (hint: --dry-run shows the moves it would make)";
        return Err(Error::NotDecided(why.to_owned()));
    }
    let CapturedLoad { source, device, compiled, collected } = CapturedLoad::of(&args.policy, &args.traffic)?;
    let program = &*compiled.program;
    let duration_ns = collected.intervals.duration_ns;
    let groups = program.groups.iter().zip(&collected.groups);
    let loads: Vec<GroupLoad<'_>> =
        groups.map(|(group, traffic)| GroupLoad::of(group, traffic, duration_ns)).collect();
    let answer = Answer {
        policy: source.to_string(),
        profile: device.profile.name.clone(),
        traffic: args.traffic.display().to_string(),
        packets: collected.totals.packets,
        groups: answers(program, loads),
    };
    if args.policy.printed.is_json() {
        return Ok(output::print_json(&answer)?);
    }
    Ok(output::print(&text(&answer, Layout::stdout()))?)
}

/// A group with the load of its entries.
struct GroupLoad<'p> {
    group: &'p Group,
    packets: u64,
    /// The table after the moves so far.
    table: Vec<WorkerId>,
    workers: Vec<WorkerId>,
    entries: Vec<EntrySample>,
    /// The largest flow of each entry that has packets.
    largest: BTreeMap<usize, &'p Flow>,
}

impl<'p> GroupLoad<'p> {
    fn of(group: &'p Group, traffic: &'p GroupTraffic, duration_ns: u64) -> Self {
        let toeplitz = Toeplitz::new(&group.key);
        let mut entries = vec![EntrySample { is_idle: true, ..EntrySample::default() }; group.table.len()];
        let mut largest: BTreeMap<usize, &Flow> = BTreeMap::new();
        // In the order of their inputs, so that nothing depends on the order of a hash map.
        let mut flows: Vec<_> = traffic.flows.iter().collect();
        flows.sort_unstable_by_key(|(input, _)| **input);
        for (input, flow) in flows {
            // The length of a table is a power of two; packets without hashed fields use the first entry.
            let index = input.hash(&toeplitz) as usize & group.table.len().saturating_sub(1);
            let Some(entry) = entries.get_mut(index) else { continue };
            entry.cost += flow.cost_ps;
            entry.is_idle &= flow.last_ns.saturating_add(IDLE_NS) < duration_ns;
            if flow.cost_ps > entry.largest_flow {
                entry.largest_flow = flow.cost_ps;
                largest.insert(index, flow);
            }
        }
        let workers = traffic.workers.keys().copied().collect();
        Self { group, packets: traffic.all.packets, table: group.table.clone(), workers, entries, largest }
    }

    fn sample(&self) -> GroupSample<'_> {
        GroupSample { table: &self.table, workers: &self.workers, entries: &self.entries }
    }
}

/// The busy time of each worker for the packets of the capture, in picoseconds.
fn busy_times(loads: &[GroupLoad<'_>]) -> BTreeMap<WorkerId, u64> {
    let mut busy = BTreeMap::new();
    for load in loads {
        for (worker, entry) in load.table.iter().zip(&load.entries) {
            *busy.entry(*worker).or_insert(0) += entry.cost;
        }
    }
    busy
}

/// Makes steps until nothing more moves, as if the capture were repeated in each.
fn answers(program: &Program, mut loads: Vec<GroupLoad<'_>>) -> Vec<GroupAnswer> {
    // The capture has no rate of the workers, so that they may be busy enough.
    let mut balancer = Balancer::new(BalanceLimits { least_busy_percent: 0, ..BalanceLimits::default() });
    let mut steps: Vec<Vec<GroupStep>> = Vec::new();
    for step in 1..=MAX_STEPS {
        let busy_ns = busy_times(&loads);
        let samples: Vec<GroupSample<'_>> = loads.iter().map(GroupLoad::sample).collect();
        let now_ns = step as u64 * STEP_NS;
        let period = PeriodSample { now_ns, period_ns: STEP_NS, busy_ns: &busy_ns, groups: &samples };
        let decided = balancer.step(&period);
        for (load, step) in loads.iter_mut().zip(&decided) {
            for moved in &step.moves {
                load.table[moved.entry] = moved.to;
            }
        }
        let goes_on =
            decided.iter().any(|step| matches!(step.end, StepEnd::MovesUsed | StepEnd::MovedLately));
        steps.push(decided);
        if !goes_on {
            break;
        }
    }
    loads.iter().enumerate().filter_map(|(index, load)| group_answer(program, index, load, &steps)).collect()
}

fn group_answer(
    program: &Program,
    index: usize,
    load: &GroupLoad<'_>,
    steps: &[Vec<GroupStep>],
) -> Option<GroupAnswer> {
    let own = || steps.iter().filter_map(|step| step.get(index));
    let (first, last) = (own().next()?, own().next_back()?);
    let all: u64 = first.before_ns.values().sum();
    let share = |part: u64| part as f64 / all.max(1) as f64;
    let workers = load.workers.iter().map(|worker| WorkerLoad {
        worker: *worker,
        before: share(first.before_ns.get(worker).copied().unwrap_or(0)),
        after: share(last.after_ns.get(worker).copied().unwrap_or(0)),
    });
    let moves = own().enumerate().flat_map(|(step, decided)| {
        decided.moves.iter().map(move |moved| MoveAnswer {
            step: step + 1,
            entry: moved.entry,
            from: moved.from,
            to: moved.to,
            order: moved.order,
            share: share(moved.load_ns),
        })
    });
    let elephants = first.elephants.iter().map(|flow| ElephantAnswer {
        entry: flow.entry,
        worker: flow.worker,
        of_worker_share: share(flow.load_ns) * load.workers.len() as f64,
        packet: load.largest.get(&flow.entry).map_or_else(String::new, |flow| {
            policy::short_packet(&DeepKey { outer: flow.first, ..DeepKey::default() })
        }),
    });
    let is_own = |queue: &program::RssQueue| queue.group.index() == index;
    let steers = |flow: &&program::Flow| match flow.action {
        program::FlowAction::Steer { queue, .. } => program.queues.get(queue.index()).is_some_and(is_own),
        program::FlowAction::Drop | program::FlowAction::Pass => false,
    };
    Some(GroupAnswer {
        group: load.group.name.clone(),
        table_size: load.table.len(),
        packets: load.packets,
        workers: workers.collect(),
        largest_to_mean_before: largest_to_mean(&first.before_ns),
        largest_to_mean_after: largest_to_mean(&last.after_ns),
        moves: moves.collect(),
        elephants: elephants.collect(),
        end: last.end,
        table_changes: own().filter(|step| !step.moves.is_empty()).count(),
        queue_pairs: program.queues.iter().filter(|queue| is_own(queue)).count(),
        flows: program.flows.iter().filter(steers).count(),
    })
}

fn text(answer: &Answer, layout: Layout) -> String {
    let title = format!(
        "{}: {}; {} for {}; nothing is moved",
        answer.traffic,
        counted(answer.packets, "packet", "packets"),
        answer.policy,
        answer.profile
    );
    let mut out = format!("{}\n", layout.text(Style::Heading, &title));
    for group in &answer.groups {
        out.push_str(&group_text(group, layout));
    }
    out
}

fn group_text(group: &GroupAnswer, layout: Layout) -> String {
    let title = format!(
        "group {}: {}, table of {}",
        group.group,
        counted(group.packets, "packet", "packets"),
        counted(group.table_size as u64, "entry", "entries")
    );
    let mut out = format!("\n{}\n", layout.text(Style::Heading, &title));
    let (Some(before), Some(after)) = (group.largest_to_mean_before, group.largest_to_mean_after) else {
        out.push_str("no packet of the capture reaches it\n");
        return out;
    };
    let mut grid = Grid::new(&["worker", "load", "after"]);
    for load in &group.workers {
        grid.row(vec![load.worker.0.to_string(), percent(load.before), percent(load.after)]);
    }
    out.push_str(&grid.text());
    let _ =
        writeln!(out, "balance {before:.2}, after {after:.2}: the fullest worker has so many times the mean");
    if !group.moves.is_empty() {
        let mut grid = Grid::new(&["step", "entry", "from", "to", "load", "flows"]);
        for MoveAnswer { step, entry, from, to, order, share } in &group.moves {
            let flows = match order {
                MoveOrder::Idle => "idle",
                MoveOrder::Small => "small",
                MoveOrder::Large => "large",
            };
            let numbers = [step.to_string(), entry.to_string(), from.0.to_string(), to.0.to_string()];
            grid.row(numbers.into_iter().chain([percent(*share), flows.to_owned()]).collect());
        }
        out.push_str(&grid.text());
    }
    for flow in &group.elephants {
        let _ = writeln!(
            out,
            "no table splits the flow of {} of a worker's share in entry {} (worker {}): {}",
            percent(flow.of_worker_share),
            flow.entry,
            flow.worker.0,
            flow.packet
        );
    }
    let _ = writeln!(out, "{}", ended(group.end));
    if group.table_changes > 0 {
        let _ = writeln!(
            out,
            "{}, each with {} and {}",
            counted(group.table_changes as u64, "new table", "new tables"),
            counted(group.queue_pairs as u64, "queue pair", "queue pairs"),
            counted(group.flows as u64, "flow", "flows")
        );
    }
    out
}

fn ended(end: StepEnd) -> &'static str {
    match end {
        StepEnd::Balanced => "balanced: no worker is further above the mean than the limits allow",
        StepEnd::OneWorker => "not balanced: the group has one worker",
        StepEnd::NotBusy => "not balanced: the fullest worker is not busy",
        StepEnd::NotSampled => "not balanced: a full worker has no sampled packets",
        StepEnd::MovesUsed => "more steps follow than are shown",
        StepEnd::MovedLately => "not balanced: the entries that would help have moved lately",
        StepEnd::Elephant => "balanced but for the worker of a flow that no table splits",
        StepEnd::NoGain => "balanced as far as entries allow: no other move makes workers more alike",
    }
}
