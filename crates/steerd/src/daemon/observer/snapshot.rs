//! Makes a `State` from the counters of workers, drop rules and ports.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use control::{ChangedSoFar, Counted, Device, DropTotals};
use program::{DEFAULT_RULE, Placement, Program, RUNTIME_RULES, RuleDeciders, RuleId, SinkId, WorkerId};
use softnic::PortStats;
use worker::sinks::{ExportStatistics, PacketSizes, TopFlow};
use worker::{Distribution, SinkTraffic, ThreadActivity, WorkerSnapshot};

use super::{Observer, WorkerEntry, stage_times};
use crate::api::model;
use crate::daemon::board::Published;
use crate::daemon::device::OtherSoft;
use crate::daemon::health::Part;
use crate::daemon::nic_drops::{self, PublishedDrops};
use crate::daemon::sinks::SinkView;
use crate::effects::Effect;
use crate::message::chain;
use crate::outcome::{self, Count, PacketOutcome, WorkerOutcomes};
use crate::port_counters::PortCounters;
use crate::state::{
    Buckets, DeviceState, ExportState, LOST_ON_WIRE, LatencyState, OtherDeviceState, PolicyState, PortClaims,
    PortState, Reasons, RecordsState, RuleState, SinkState, SinkTrafficState, State, TOP_FLOWS_MAX,
    TopFlowState, WorkerPlace, WorkerState, WorkerThreadState,
};
use crate::telemetry::accounting::{self, InFlight};
use crate::telemetry::http::Probes;

/// Bucket bounds of batch sizes, and of the times of iterations in nanoseconds (255 ns to 1 s). A worker's
/// distributions are exact at powers of two minus one.
const BATCH_BOUNDS: [u64; 10] = [0, 1, 3, 7, 15, 31, 63, 127, 255, 511];
const TURN_BOUNDS_NS: [u64; 12] = {
    let (mut bounds, mut index) = ([0; 12], 0);
    while index < bounds.len() {
        bounds[index] = (1 << (8 + 2 * index)) - 1;
        index += 1;
    }
    bounds
};

/// How long the engine may be interrupted between delivering a burst and counting it.
const ENGINE_TIMEOUT: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::daemon) enum Moment {
    Running,
    /// No flow and no worker is left: every packet must be accounted for.
    Ended,
}

/// `drops`: the counters of drop rules, if they have been read for this state.
pub(super) fn of(observer: &Observer, drops: Option<Arc<[DropTotals]>>, moment: Moment) -> State {
    let before = Before::look(observer);
    // Counters are read in the opposite order of the packets' path, so that an earlier read is never ahead of
    // a later one.
    let snapshots: Vec<WorkerSnapshot> =
        observer.workers.iter().map(|entry| entry.control.snapshot()).collect();
    let (drops, drops_are_fresh) = drops.map_or_else(|| observer.drop_totals(), |drops| (Some(drops), true));
    let stats = caught_up(observer, &snapshots, drops.as_deref().unwrap_or_default());
    let ports = ports(observer, stats.as_deref());
    let published = observer.board.read();
    let mut rules = Rules::in_force(observer, &published);
    snapshots.iter().for_each(|snapshot| rules.add_worker(snapshot));
    match &drops {
        Some(drops) => drops.iter().for_each(|drop| rules.add_drops(drop)),
        None => rules.drops_are_unknown(),
    }
    rules.add_unmatched(stats.as_deref());
    let mut rules = rules.list;
    let unexported = &published.policy.unexported;
    rules.iter_mut().for_each(|rule| rule.unexported = unexported.contains(&rule.name));
    let stalled = observer.health.stalled();
    let workers: Vec<WorkerState> = observer
        .workers
        .iter()
        .zip(&snapshots)
        .map(|(entry, snapshot)| WorkerState {
            place: published.workers.place(snapshot.id),
            stalled: stalled.contains(&Part::Worker(snapshot.id.0)),
            out_of_buffer_packets: observer.soft_nic().and_then(|nic| nic.out_of_buffer(entry.queue)),
            ..worker(entry, snapshot)
        })
        .collect();
    let problem = observer.health.ready().err();
    let uncounted_drops = published.uncounted_drops;
    let in_flight = match moment {
        Moment::Ended => InFlight { uncounted_drops, ..InFlight::default() },
        Moment::Running => InFlight {
            uncounted_drops,
            handed_over: observer.frames + rx_frames(stats.as_deref()).saturating_sub(before.received),
            dropped: dropped(stats.as_deref()).saturating_sub(before.dropped),
            sent_dropped: sent_dropped(stats.as_deref()).saturating_sub(before.sent_dropped),
            unclassified: unclassified(&before, &snapshots),
            drops_unknown: !drops_are_fresh,
        },
    };
    State {
        version: env!("CARGO_PKG_VERSION"),
        started_at_seconds: observer.started_at_seconds,
        uptime_seconds: observer.started.elapsed().as_secs_f64(),
        ready: problem.is_none(),
        problem,
        device: device(observer, &stalled),
        other_devices: other_devices(observer, &stalled),
        policy: policy(&published),
        log_lines_dropped: observer.log.dropped_lines(),
        traced_packets: observer.traces.packets(),
        trace_differences: observer.traces.differing(),
        records: RecordsState {
            written: observer.records.written(),
            suppressed: observer.records.suppressed(),
            failed: observer.records.failed(),
            last_file: observer.records.last_file(),
        },
        accounting: accounting::check(&ports, &rules, &workers, &in_flight),
        profile: stage_times::of(observer.soft_nic(), &snapshots),
        rules,
        workers,
        sinks: sinks(observer, &published),
        degraded: observer.health.degraded(),
        ports,
    }
}

/// The rules in force, without counts: nothing here asks the device.
pub(super) fn rules(observer: &Observer, published: &Published) -> Vec<RuleState> {
    Rules::in_force(observer, published).list
}

/// The state without counters: nothing here asks the device.
pub(super) fn status(observer: &Observer) -> model::Status {
    let (ready, alive) = (observer.health.ready(), observer.health.alive());
    let published = observer.board.read();
    model::Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        uptime_seconds: observer.started.elapsed().as_secs_f64(),
        device: device(observer, &observer.health.stalled()),
        workers: published.workers.serving().count(),
        descriptions: model::Described::all(&published.policy.program),
        policy: policy(&published),
        health: model::Health {
            ready: ready.is_ok(),
            alive: alive.is_ok(),
            problem: ready.err().or(alive.err()),
            degraded: observer.health.degraded(),
        },
        change: observer
            .change
            .read()
            .map(|ChangedSoFar { done, total }| model::ChangeState { done_flows: done, flows: total }),
        sinks: published.sinks.view().into_iter().map(sink_status).collect(),
        // The servers know it.
        http: None,
        wires: observer.opened.wires().to_vec(),
        traced: model::TracedPackets {
            kernel: observer.soft_nic().is_some() && !observer.opened.has_xdp_program(),
            // Filters of a NIC drop before its port receives.
            dropped: observer.soft_nic().is_some() && published.nic_drops.is_empty(),
        },
    }
}

fn sink_status(view: SinkView) -> model::Sink {
    model::Sink {
        kind: view.kind().to_owned(),
        name: view.definition.name,
        attached_to: view.attached_to.map(|packets| packets.name().to_owned()),
        status: view.status,
    }
}

fn device(observer: &Observer, stalled: &[Part]) -> DeviceState {
    DeviceState {
        name: observer.opened.device.name().to_owned(),
        soft: observer.opened.is_soft(),
        condition: observer.health.device(),
        events: observer.events.read(),
        engine_stalled: observer.opened.engine_stalled(stalled),
        profile: observer.opened.device.profile(observer.workers.len()).name,
        ports: observer.opened.ports.clone(),
    }
}

/// Counters from before the others are read: packets beyond them arrived meanwhile.
struct Before {
    received: u64,
    dropped: u64,
    sent_dropped: u64,
    taken: Vec<u64>,
}

impl Before {
    fn look(observer: &Observer) -> Self {
        let stats = observer.port_stats();
        Self {
            received: rx_frames(stats.as_deref()),
            dropped: dropped(stats.as_deref()),
            sent_dropped: sent_dropped(stats.as_deref()),
            taken: observer.workers.iter().map(|entry| entry.control.progress().received_packets).collect(),
        }
    }
}

/// How many packets a worker may have received and not classified: it classifies a batch after it has counted
/// it.
fn unclassified(before: &Before, snapshots: &[WorkerSnapshot]) -> Vec<u64> {
    let meanwhile = |(before, snapshot): (&u64, &WorkerSnapshot)| {
        snapshot.received.packets.saturating_sub(*before) + worker::BATCH_MAX as u64
    };
    before.taken.iter().zip(snapshots).map(meanwhile).collect()
}

/// The ports' counters once they have caught up with workers and drop rules: the engine delivers a burst and
/// then counts it, so others may be ahead of the ports while it is interrupted in between.
fn caught_up(
    observer: &Observer,
    snapshots: &[WorkerSnapshot],
    drops: &[DropTotals],
) -> Option<Vec<PortStats>> {
    let taken: u64 = snapshots.iter().map(|snapshot| snapshot.received.packets).sum();
    let received = drops.iter().filter(|drop| drop.kind == Counted::Dropped);
    let counted: u64 = received.map(|drop| drop.packets).sum();
    let deadline = Instant::now() + ENGINE_TIMEOUT;
    loop {
        let stats = observer.port_stats()?;
        let handed_over: u64 = stats.iter().map(|port| port.delivered + port.replicated).sum();
        let dropped = dropped(Some(&stats));
        if (handed_over >= taken && dropped >= counted) || Instant::now() >= deadline {
            return Some(stats);
        }
        std::thread::sleep(ENGINE_TIMEOUT / 50);
    }
}

fn rx_frames(stats: Option<&[PortStats]>) -> u64 {
    stats.unwrap_or_default().iter().map(|port| port.rx_frames).sum()
}

pub(in crate::daemon) fn dropped(stats: Option<&[PortStats]>) -> u64 {
    stats.unwrap_or_default().iter().map(|port| port.flow_dropped).sum()
}

pub(in crate::daemon) fn sent_dropped(stats: Option<&[PortStats]>) -> u64 {
    stats.unwrap_or_default().iter().map(|port| port.tx_flow_dropped).sum()
}

fn policy(published: &Published) -> PolicyState {
    let Published { policy, reloads, .. } = published;
    PolicyState {
        source: policy.source.to_string(),
        sha256: policy.inputs.sha256.clone(),
        past: policy.past,
        generation: policy.generation,
        loaded_at_seconds: policy.loaded_at_seconds,
        // Without the pseudo rule for the default action.
        rules: policy.program.rules.len().saturating_sub(1),
        flows: policy.program.flows.len(),
        reloads_succeeded: reloads.succeeded,
        reloads_failed: reloads.failed,
        warning_count: policy.warnings.count,
        warnings: policy.warnings.listed.clone(),
        last_error: reloads.last_error.clone(),
        last_reload_successful: reloads.last_successful,
    }
}

/// The rules in force in policy order, then earlier rules with counts: those of the previous policy by name,
/// all others as one.
struct Rules {
    list: Vec<RuleState>,
    /// The index of each name in the list.
    places: HashMap<String, usize>,
}

impl Rules {
    /// The rules in force, without counts.
    fn in_force(observer: &Observer, published: &Published) -> Self {
        let deciders = observer.opened.has_xdp_program().then(|| published.policy.deciders());
        let mut deciders = deciders.map(<[RuleDeciders]>::to_vec).unwrap_or_default();
        nic_drops::add_deciders(&mut deciders, &published.nic_drops);
        Self::of(&published.policy.program, &deciders)
    }

    /// `deciders`: by rule, on a network interface.
    fn of(program: &Program, deciders: &[RuleDeciders]) -> Self {
        let exceptions: BTreeSet<RuleId> = program.exceptions.iter().map(|step| step.rule).collect();
        let rule = |(index, (rule, effect)): (usize, (&program::Rule, Effect))| RuleState {
            name: rule.name.to_string(),
            description: rule.description.clone(),
            action: rule.policing.describe(&effect.words(program, rule.action)),
            effect,
            placement: match rule.placement {
                Placement::Hardware => "hardware",
                Placement::Hybrid { .. } => "hybrid",
            },
            line: rule.line,
            current: true,
            // Such a rule has neither flow nor worker: its packets cannot be told from the default's.
            uncounted: exceptions.contains(&RuleId::of(index)),
            deciders: deciders.get(index).cloned(),
            ..RuleState::default()
        };
        let mut list: Vec<RuleState> =
            program.rules.iter().zip(Effect::all(program)).enumerate().map(rule).collect();
        if let Some(runtime) = &program.runtime {
            let at_run_time = RuleState {
                name: RUNTIME_RULES.to_owned(),
                action: "at run time".to_owned(),
                placement: "hybrid",
                current: true,
                ..RuleState::default()
            };
            list.insert(runtime.before.index().min(list.len()), at_run_time);
        }
        let places = list.iter().enumerate().map(|(place, rule)| (rule.name.clone(), place)).collect();
        Self { list, places }
    }

    fn named(&mut self, name: &str) -> &mut RuleState {
        let place = self.places.get(name).copied().unwrap_or_else(|| {
            self.places.insert(name.to_owned(), self.list.len());
            self.list.push(RuleState { name: name.to_owned(), ..RuleState::default() });
            self.list.len() - 1
        });
        &mut self.list[place]
    }

    /// Adds what the device counts by rule. A current rule that the device does not count is marked as
    /// uncounted.
    fn add_drops(&mut self, drops: &DropTotals) {
        let rule = self.named(&drops.rule);
        rule.outcomes[PacketOutcome::of_device(drops.kind)].add(Count::of(drops.packets, drops.bytes));
        rule.uncounted |= is_counted_by_device(rule) && !drops.counted;
    }

    /// No counter of the device has been read yet: the rules that have one are marked as uncounted.
    fn drops_are_unknown(&mut self) {
        for rule in self.list.iter_mut().filter(|rule| is_counted_by_device(rule)) {
            rule.uncounted = true;
            outcome::of_device().for_each(|outcome| rule.outcomes[outcome] = Count::UNKNOWN);
        }
    }

    /// Unmatched packets are those that the default leaves to the kernel. The device does not count their
    /// bytes, and a real one not even the packets.
    fn add_unmatched(&mut self, stats: Option<&[PortStats]>) {
        let default = self.named(DEFAULT_RULE);
        let left = stats.map(|stats| stats.iter().map(|port| port.unmatched).sum::<u64>());
        let kernel = &mut default.outcomes[PacketOutcome::Kernel];
        if default.effect == Effect::Kernel || left.is_some_and(|packets| packets > 0) {
            kernel.bytes = None;
        }
        match left {
            Some(packets) => kernel.packets = kernel.packets.map(|sum| sum + packets),
            None => default.uncounted |= default.effect == Effect::Kernel,
        }
    }

    fn add_worker(&mut self, snapshot: &WorkerSnapshot) {
        for counted in &snapshot.rules {
            let worker::Traffic { packets, bytes } = counted.traffic;
            let outcome = PacketOutcome::of_worker(counted.disposition);
            self.named(&counted.name).outcomes[outcome].add(Count::of(packets, bytes));
        }
    }
}

/// Whether the packets of a current rule meet no worker, so that only the device counts them.
fn is_counted_by_device(rule: &RuleState) -> bool {
    let counted_there = matches!(rule.effect, Effect::Drop | Effect::DropSent | Effect::PassSent);
    rule.current && counted_there && rule.placement == "hardware"
}

fn worker(entry: &WorkerEntry, snapshot: &WorkerSnapshot) -> WorkerState {
    let mut outcomes = WorkerOutcomes::default();
    for (outcome, disposition) in outcome::of_workers() {
        outcomes[outcome] = snapshot.total(disposition).packets;
    }
    WorkerState {
        worker: snapshot.id.0,
        place: WorkerPlace::default(),
        receive: entry.receive.name(),
        warnings: entry.control.warnings().iter().map(ToString::to_string).collect(),
        received_packets: snapshot.received.packets,
        received_bytes: snapshot.received.bytes,
        outcomes,
        lost_packets: snapshot.dropped.iter().map(|(reason, count)| (reason.name(), *count)).collect(),
        failed_receives: snapshot.failures.iter().map(|(failure, count)| (failure.name(), *count)).collect(),
        out_of_buffer_packets: None,
        failed: snapshot.receive_queue.is_failed,
        queue_recoveries: snapshot.receive_queue.recoveries,
        stalled: false,
        poll_errors: snapshot.poll_errors,
        anomalies: snapshot
            .anomalies
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(anomaly, count)| (anomaly.name(), *count))
            .collect(),
        polls: snapshot.iterations,
        empty_polls: snapshot.empty_iterations,
        batches: buckets(&snapshot.batches, &BATCH_BOUNDS),
        turn_ns: buckets(&snapshot.iteration_ns, &TURN_BOUNDS_NS),
        regimes_ns: snapshot.regimes.iter().map(|(regime, ns)| (regime.name(), *ns)).collect(),
        thread: entry.control.thread_activity().map(thread),
        latency: snapshot.latency.as_ref().map(latency),
    }
}

fn thread(activity: ThreadActivity) -> WorkerThreadState {
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let ThreadActivity { is_runnable, cpu, cpu_wait } = activity;
    WorkerThreadState { cpu_ns: ns(cpu), cpu_wait_ns: ns(cpu_wait), is_runnable }
}

fn latency(latency: &worker::Latency) -> LatencyState {
    let quantile = |part| Some(latency.ns.quantile(part)).filter(|_| latency.ns.count() > 0);
    LatencyState {
        ns: buckets(&latency.ns, &TURN_BOUNDS_NS),
        p50_ns: quantile(0.5),
        p99_ns: quantile(0.99),
        max_ns: quantile(1.0),
        negative: latency.negative,
    }
}

fn packet_sizes(sizes: &PacketSizes) -> Buckets {
    let mut packets = 0;
    let at_most = sizes.classes.iter().map(|(bound, count)| {
        packets += count;
        (*bound, packets)
    });
    Buckets { at_most: at_most.collect(), count: sizes.packets(), sum: sizes.bytes }
}

fn top_flow(flow: &TopFlow) -> TopFlowState {
    TopFlowState { flow: flow.flow.to_string(), packets: flow.packets, error: flow.error, bytes: flow.bytes }
}

fn sinks(observer: &Observer, published: &Published) -> Vec<SinkState> {
    let state = |view: SinkView| {
        let losing =
            view.attached_to.is_none().then(|| observer.health.loses(&view.definition.name)).flatten();
        SinkState { losing, ..sink(&published.policy.program, view) }
    };
    published.sinks.view().into_iter().map(state).collect()
}

fn sink(program: &Program, view: SinkView) -> SinkState {
    let kind = view.kind();
    let SinkView { definition, attached_to, counted, status, deleted_files, export, sizes, top_flows } = view;
    let id = program.sinks.iter().position(|sink| *sink == definition).map(SinkId::of);
    let gets = |rule: &&program::Rule| match &attached_to {
        Some(packets) => packets.has(program, rule),
        None => id.is_some_and(|id| rule.sinks.contains(&id)),
    };
    SinkState {
        kind,
        rules: program.rules.iter().filter(gets).map(|rule| rule.name.to_string()).collect(),
        workers: sink_traffic(&counted.traffic),
        transmit: sink_traffic(&counted.transmit),
        name: definition.name,
        attached_to: attached_to.map(|packets| packets.name().to_owned()),
        losing: None,
        status,
        deleted_files,
        export: export.map(export_state),
        packet_sizes: sizes.as_ref().map(packet_sizes),
        top_flows: top_flows.map(|flows| flows.iter().take(TOP_FLOWS_MAX).map(top_flow).collect()),
    }
}

fn export_state(statistics: ExportStatistics) -> ExportState {
    let ExportStatistics { is_connected, messages, flows, lost_flows, lost_packets, errors } = statistics;
    ExportState { connected: is_connected, messages, flows, lost_flows, lost_packets, errors }
}

fn sink_traffic(by_worker: &[SinkTraffic]) -> Vec<SinkTrafficState> {
    let of = |(index, traffic): (usize, &SinkTraffic)| SinkTrafficState {
        worker: WorkerId::of(index).0,
        offered_packets: traffic.offered.packets,
        offered_bytes: traffic.offered.bytes,
        delivered_packets: traffic.delivered.packets,
        delivered_bytes: traffic.delivered.bytes,
        dropped_packets: traffic
            .dropped
            .iter()
            .filter(|(_, packets)| *packets > 0)
            .map(|(reason, packets)| (reason.name(), *packets))
            .collect(),
        in_flight_packets: i64::try_from(traffic.in_flight()).unwrap_or(i64::MAX),
    };
    by_worker.iter().enumerate().map(of).collect()
}

fn buckets(distribution: &Distribution, bounds: &[u64]) -> Buckets {
    Buckets {
        at_most: bounds.iter().map(|bound| (*bound, distribution.at_most(*bound))).collect(),
        count: distribution.count(),
        sum: distribution.sum(),
    }
}

fn ports(observer: &Observer, stats: Option<&[PortStats]>) -> Vec<PortState> {
    let device = &observer.opened.device;
    let published = observer.board.read();
    let filters = |drops: &PublishedDrops| drops.state(&published.policy.program);
    let state = |(index, number): (usize, &u8)| {
        let wires = observer.opened.wires();
        let stats = stats.and_then(|stats| stats.get(index));
        let out_of_buffer = || observer.out_of_buffer.since_start(index);
        let lost_packets = || out_of_buffer().map(|packets| ("out_of_buffer", packets)).into_iter().collect();
        PortState {
            lost_packets: stats.map_or_else(lost_packets, losses),
            claims: observer.soft_nic().and_then(|nic| nic.port_claims(*number)).map(PortClaims::of),
            nic_filters: published.nic_drops.iter().find(|drops| drops.port == *number).map(filters),
            ..port(device, wires, *number, stats)
        }
    };
    observer.opened.ports.iter().enumerate().map(state).collect()
}

/// Without its losses.
fn port(device: &Device, wires: &[String], number: u8, stats: Option<&PortStats>) -> PortState {
    let wire = wires.get(usize::from(number).saturating_sub(1));
    let checked = device.check_port(number);
    PortState {
        port: number,
        wire: wire.cloned().unwrap_or_default(),
        up: match &checked {
            Ok(()) => Some(true),
            Err(control::ControlError::PortDown { .. }) => Some(false),
            Err(_) => None,
        },
        problem: checked.err().map(|error| chain(&error)),
        counters: stats.map(PortCounters::from),
        claims: None,
        nic_filters: None,
        lost_packets: Reasons::new(),
    }
}

fn other_devices(observer: &Observer, stalled: &[Part]) -> Vec<OtherDeviceState> {
    let state = |OtherSoft { device, soft }: &OtherSoft| OtherDeviceState {
        name: soft.name.to_string(),
        engine_stalled: soft.is_among(stalled),
        ports: (1..)
            .zip(&soft.wires)
            .map(|(number, _)| {
                let stats = soft.nic.port_stats(number);
                PortState { lost_packets: losses(&stats), ..port(device, &soft.wires, number, Some(&stats)) }
            })
            .collect(),
    };
    observer.opened.others.iter().map(state).collect()
}

fn losses(stats: &PortStats) -> Reasons {
    stats.losses().chain([(LOST_ON_WIRE, stats.wire_lost)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_counters_of_the_device_are_not_zero() {
        let rule = |name: &str, effect| RuleState {
            name: name.to_owned(),
            effect,
            placement: "hardware",
            current: true,
            ..RuleState::default()
        };
        let mut rules = Rules {
            list: vec![
                rule("scan", Effect::Drop),
                rule("web", Effect::Deliver),
                rule("mail", Effect::DropSent),
            ],
            places: HashMap::new(),
        };
        rules.drops_are_unknown();
        let [scan, web, mail] = &rules.list[..] else { panic!("three rules") };
        assert_eq!((scan.uncounted, scan.outcomes[PacketOutcome::Dropped]), (true, Count::UNKNOWN));
        assert_eq!((mail.uncounted, mail.outcomes[PacketOutcome::SentDropped].packets), (true, None));
        let of_worker = web.outcomes[PacketOutcome::Dropped].packets;
        assert_eq!((web.uncounted, of_worker), (false, Some(0)), "a worker counts it");
        let json = serde_json::to_value(scan).expect("JSON");
        assert!(json["dropped_packets"].is_null(), "{json:#}");
    }

    #[test]
    fn the_losses_of_a_port_are_listed_by_reason() {
        let stats =
            PortStats { wire_lost: 1, oversize: 2, not_given_back_too_long: 3, ..PortStats::default() };
        let expected = [
            ("cq_overrun", 0),
            ("memory_fault", 0),
            ("not_given_back_generic", 0),
            ("not_given_back_refused", 0),
            ("not_given_back_too_long", 3),
            ("out_of_buffer", 0),
            ("oversize", 2),
            ("queue_not_ready", 0),
            ("runt", 0),
            ("wire", 1),
        ];
        assert_eq!(losses(&stats), Reasons::from(expected));
    }

    /// A search through all names for each would be twelve times as many searches as they are compared with
    /// here, on the same machine at the same time.
    #[test]
    fn many_rules_are_found_without_a_search() {
        const NAMES: usize = 60_000;
        let drops: Vec<DropTotals> = (0..NAMES)
            .map(|index| DropTotals {
                rule: format!("rule-with-a-name-as-long-as-others-{index}"),
                kind: Counted::ALL[index % 3],
                packets: 1,
                bytes: 64,
                counted: true,
            })
            .collect();
        let mut took = Duration::MAX;
        let mut rules = Rules { list: Vec::new(), places: HashMap::new() };
        for _ in 0..3 {
            rules = Rules { list: Vec::new(), places: HashMap::new() };
            let begun = Instant::now();
            drops.iter().chain(&drops).for_each(|drop| rules.add_drops(drop));
            took = took.min(begun.elapsed());
        }
        assert_eq!(rules.list.len(), NAMES);
        assert!(rules.list.iter().all(|rule| rule.packets() == 2));
        let begun = Instant::now();
        let searched = drops.iter().step_by(NAMES / 10_000);
        let found = searched.filter(|drop| rules.list.iter().any(|rule| rule.name == drop.rule)).count();
        let searches = begun.elapsed();
        assert!(took < searches, "{took:?} for all, {searches:?} for {found} searches");
    }
}
