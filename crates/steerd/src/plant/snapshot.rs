//! A `State` from the counters of everything that counts: workers, drop counters, ports.
//! Called through `Plant::state` and at the end; it only reads.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use policy::{DEFAULT_RULE, Placement, Program};
use softnic::PortStats;
use worker::{Disposition, Histogram, WorkerSnapshot};

use super::{Plant, WorkerSeat};
use crate::books;
use crate::state::{DeviceState, PolicyState, PortState, Reasons, RuleState, State, WorkerState};

/// Batches are never larger; the histogram's buckets end here.
const LARGEST_BATCH: u64 = 511;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    Running,
    /// No flow, no running worker: every packet must be accounted for.
    Ended,
}

pub(super) fn of(plant: &Plant, moment: Moment) -> State {
    let received_before = received(plant);
    let snapshots: Vec<WorkerSnapshot> = plant.workers.iter().map(|seat| seat.control.snapshot()).collect();
    // While a program is being installed the device's own part of the drops is not to be had: what was
    // counted before stands in, and there is nothing that ports could be held against.
    let (drops, drops_are_fresh) = plant.drop_totals(moment);
    let ports = ports(plant);
    let received_meanwhile = received(plant).saturating_sub(received_before);
    let program = plant.policy().program.clone();

    let mut rules = Rules::of(&program);
    snapshots.iter().for_each(|snapshot| rules.add_worker(snapshot));
    for drop in drops {
        let rule = rules.named(&drop.rule);
        rule.dropped_packets += drop.packets;
        rule.dropped_bytes += drop.bytes;
    }
    // What no flow took is what the default leaves to the kernel; the device does not count its bytes.
    let unmatched: u64 = ports.iter().map(|port| port.kernel_packets).sum();
    rules.named(DEFAULT_RULE).kernel_packets += unmatched;
    let rules = rules.0;
    let workers: Vec<WorkerState> =
        plant.workers.iter().zip(&snapshots).map(|(seat, snapshot)| worker(seat, snapshot)).collect();
    let slack = match moment {
        Moment::Running => plant.frames + received_meanwhile,
        Moment::Ended => 0,
    };
    State {
        version: env!("CARGO_PKG_VERSION"),
        started_at_seconds: plant.started_at_seconds,
        uptime_seconds: plant.started.elapsed().as_secs_f64(),
        ready: plant.ready.load(Ordering::Acquire),
        device: DeviceState {
            name: plant.opened.device.name().to_owned(),
            soft: plant.opened.soft.is_some(),
            ports: plant.opened.ports.clone(),
        },
        policy: policy(plant, &program),
        books: books::add_up(&ports, &rules, &workers, drops_are_fresh, slack),
        rules,
        workers,
        ports,
    }
}

fn policy(plant: &Plant, program: &Program) -> PolicyState {
    let policy = plant.policy();
    PolicyState {
        source: policy.source.to_string(),
        generation: policy.generation,
        loaded_at_seconds: policy.loaded_at_seconds,
        // Without the pseudo rule for the default.
        rules: program.rules.len().saturating_sub(1),
        flows: program.flows.len(),
        reloads_succeeded: plant.reloads_succeeded.load(Ordering::Relaxed),
        reloads_failed: plant.reloads_failed.load(Ordering::Relaxed),
        warnings: policy.warnings.clone(),
        last_error: policy.last_error.clone(),
    }
}

/// The rules in force in their order, then earlier ones that have counted something.
struct Rules(Vec<RuleState>);

impl Rules {
    fn of(program: &Program) -> Self {
        let rule = |rule: &policy::Rule| RuleState {
            name: rule.name.clone(),
            action: program.describe(rule.action),
            placement: match rule.placement {
                Placement::Hardware => "hardware",
                Placement::Hybrid { .. } => "hybrid",
            },
            line: rule.line,
            current: true,
            ..RuleState::default()
        };
        Self(program.rules.iter().map(rule).collect())
    }

    fn named(&mut self, name: &str) -> &mut RuleState {
        let found = self.0.iter().position(|rule| rule.name == name);
        let index = found.unwrap_or_else(|| {
            self.0.push(RuleState { name: name.to_owned(), ..RuleState::default() });
            self.0.len() - 1
        });
        &mut self.0[index]
    }

    fn add_worker(&mut self, snapshot: &WorkerSnapshot) {
        for counted in &snapshot.rules {
            let rule = self.named(&counted.name);
            let (packets, bytes) = match counted.disposition {
                Disposition::Delivered => (&mut rule.delivered_packets, &mut rule.delivered_bytes),
                Disposition::Dropped => (&mut rule.dropped_packets, &mut rule.dropped_bytes),
                Disposition::Kernel => (&mut rule.kernel_packets, &mut rule.kernel_bytes),
            };
            *packets += counted.traffic.packets;
            *bytes += counted.traffic.bytes;
        }
    }
}

fn worker(seat: &WorkerSeat, snapshot: &WorkerSnapshot) -> WorkerState {
    WorkerState {
        worker: snapshot.id.0,
        core: seat.core,
        warnings: seat.control.warnings().iter().map(ToString::to_string).collect(),
        received_packets: snapshot.received.packets,
        received_bytes: snapshot.received.bytes,
        delivered_packets: snapshot.total(Disposition::Delivered).packets,
        dropped_packets: snapshot.total(Disposition::Dropped).packets,
        kernel_packets: snapshot.total(Disposition::Kernel).packets,
        lost_packets: snapshot.dropped.iter().map(|(reason, count)| (reason.name(), *count)).collect(),
        failed_receives: snapshot.failures.iter().map(|(failure, count)| (failure.name(), *count)).collect(),
        failed: seat.control.has_failed(),
        poll_errors: snapshot.poll_errors,
        anomalies: snapshot
            .anomalies
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(anomaly, count)| (anomaly.name(), *count))
            .collect(),
        polls: snapshot.polls(),
        empty_polls: snapshot.empty_polls(),
        batches: batches(&snapshot.batches),
    }
}

fn batches(histogram: &Histogram) -> Vec<(u64, u64)> {
    let buckets = histogram.buckets.iter().enumerate();
    let mut sizes = BTreeMap::new();
    for (bucket, count) in buckets {
        *sizes.entry(Histogram::upper_bound(bucket).min(LARGEST_BATCH)).or_default() += count;
    }
    sizes.into_iter().collect()
}

fn received(plant: &Plant) -> u64 {
    let Some(nic) = plant.soft_nic() else { return 0 };
    plant.opened.ports.iter().map(|port| nic.port_stats(*port).rx_frames).sum()
}

fn ports(plant: &Plant) -> Vec<PortState> {
    let Some(soft) = &plant.opened.soft else { return Vec::new() };
    let wire = |port: u8| soft.wires.get(usize::from(port).saturating_sub(1)).cloned().unwrap_or_default();
    plant
        .opened
        .ports
        .iter()
        .map(|number| port(*number, wire(*number), &soft.nic.port_stats(*number)))
        .collect()
}

fn port(port: u8, wire: String, stats: &PortStats) -> PortState {
    PortState {
        port,
        wire,
        received_packets: stats.rx_frames,
        received_bytes: stats.rx_bytes,
        delivered_packets: stats.delivered,
        replicated_packets: stats.replicated,
        rule_dropped_packets: stats.flow_dropped,
        kernel_packets: stats.unmatched,
        lost_packets: Reasons::from([
            ("out_of_buffer", stats.out_of_buffer),
            ("cq_overrun", stats.cq_overrun),
            ("oversize", stats.oversize),
            ("runt", stats.runt),
            ("queue_not_ready", stats.queue_not_ready),
            ("memory_fault", stats.memory_fault),
        ]),
        sent_packets: stats.tx_frames,
        sent_bytes: stats.tx_bytes,
        send_errors: stats.tx_errors,
    }
}
