//! The export of flows to a collector by IPFIX (RFC 7011, RFC 7012).
//!
//! Each worker keeps its flows ([`cache`]) and passes those that have ended by a ring to a thread of the
//! sink, which puts them into messages ([`message`]) and sends them ([`session`]). A worker never waits: what
//! finds no room in the ring is counted as not sent, as is what cannot be sent. The collector is told how
//! much that is (RFC 7011, 4.3).
//!
//! The observation domain is the whole daemon: the flows of all workers are in one sequence of messages.

mod cache;
mod message;
mod session;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking::Wakeup;
use program::{FlowCollector, FlowExport, Program, RuleId, SinkKind, Verdict};

pub(super) use self::cache::FlowCache;
pub(crate) use self::cache::cache_bytes;
use self::message::{FlowContext, FlowSums, MessageBuilder, Template, encode_flow, encode_not_sent};
use self::session::{Sent, Session};
use super::super::clock::now_ns;
use super::super::{SinkMap, SinkStatus};
use super::flow::Packed;
use crate::counter::Counter;

/// The records that a ring from a worker has room for.
const RING_RECORDS: usize = 8192;
/// The time between two passes of the thread. A full ring in this time is 160,000 flows a second and worker.
const PASS_INTERVAL: Duration = Duration::from_millis(50);
/// The time between two attempts to connect, and how soon templates are sent again after a refusal.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// The least time between two reports of flows that were not sent.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// The time for which closing the sink waits for its thread.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// The most programs whose rules are known by name.
const PROGRAMS_MAX: usize = 64;
/// The time for which the names of a program are kept beyond the time in which its flows become idle.
const NAMES_MARGIN: Duration = Duration::from_secs(10);
/// An interval that is longer than the daemon runs.
const FOREVER: Duration = Duration::from_secs(1 << 32);
/// The error if the collector's host has answered that the port is not open.
const REFUSED: &str = "connection refused: is the collector running at this address?";
/// The usual cause of a refusal by the system itself, and the remedy.
const DENIED_HINT: &str =
    "IPAddressAllow= of the systemd unit, or a firewall of this host, must allow the collector";
/// The name of a rule that is not known.
const UNKNOWN_RULE: &str = "(unknown)";

/// The reason for which a flow was exported (`flowEndReason` of IANA's registry).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum FlowEndReason {
    IdleTimeout = 1,
    ActiveTimeout = 2,
    EndOfFlow = 3,
    ForcedEnd = 4,
    LackOfResources = 5,
}

/// The rule that has decided the packets of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RuleOfFlow {
    /// The program that the rule is of.
    pub(super) generation: u64,
    /// The index of the rule.
    pub(super) rule: u32,
    /// Whether the packets were dropped.
    pub(super) is_dropped: bool,
}

/// A flow that has ended, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlowRecord {
    flow: Packed,
    rule: RuleOfFlow,
    packets: u64,
    octets: u64,
    /// The times of the first and the last packet, since the origin of the sink.
    first_ms: u64,
    last_ms: u64,
    control_bits: u8,
    end_reason: FlowEndReason,
}

/// The flows that one thread could not pass on.
#[derive(Debug, Default)]
pub(super) struct NotSent {
    flows: Counter,
    packets: Counter,
    octets: Counter,
}

impl NotSent {
    /// Adds flows that could not be passed on. Only the owning thread may call this.
    fn add(&self, sums: FlowSums) {
        self.flows.add(sums.flows);
        self.packets.add(sums.packets);
        self.octets.add(sums.octets);
    }

    fn read(&self) -> FlowSums {
        FlowSums { flows: self.flows.read(), packets: self.packets.read(), octets: self.octets.read() }
    }
}

/// The export of a sink so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportStatistics {
    /// Whether messages can be sent to the collector now.
    pub is_connected: bool,
    /// The messages that were sent.
    pub messages: u64,
    /// The flows in them.
    pub flows: u64,
    /// The flows that were not sent, because a ring was full or the collector could not be reached.
    pub lost_flows: u64,
    /// The packets of these.
    pub lost_packets: u64,
    /// Connections and messages that failed.
    pub errors: u64,
}

/// The rules of a program, for the records of their flows.
struct ProgramNames {
    generation: u64,
    /// The name of each rule, the status of its delivered packets, and that of those that it drops.
    rules: Vec<RuleNames>,
    /// The time since which no packets of the program can arrive.
    released: Option<Instant>,
}

struct RuleNames {
    name: String,
    delivered_status: u8,
    dropped_status: u8,
}

/// Values of `forwardingStatus` (RFC 7270, 4.12).
mod forwarding_status {
    /// Forwarded, to a port.
    pub(super) const FORWARDED: u8 = 64;
    /// Dropped by a rule.
    pub(super) const ACL_DROP: u8 = 130;
    /// Dropped beyond the limit of a rule, or by its sampling.
    pub(super) const POLICER: u8 = 138;
    /// Consumed, by other sinks.
    pub(super) const CONSUMED: u8 = 192;
}

impl ProgramNames {
    fn of(generation: u64, program: &Program) -> Self {
        let forwards = |id: &program::SinkId| {
            program.sink(*id).is_some_and(|sink| matches!(sink.kind, SinkKind::Forward(_)))
        };
        let rule = |rule: &program::Rule| {
            use forwarding_status::{ACL_DROP, CONSUMED, FORWARDED, POLICER};
            let is_delivered = matches!(rule.action, Verdict::Deliver(_));
            RuleNames {
                name: rule.name.to_string(),
                delivered_status: if rule.sinks.iter().any(forwards) { FORWARDED } else { CONSUMED },
                dropped_status: if is_delivered { POLICER } else { ACL_DROP },
            }
        };
        // Packets that rules at run time decide have the number behind the rules of the policy.
        let at_run_time = program.runtime.iter().map(|_| RuleNames {
            name: program::RUNTIME_RULES.to_owned(),
            delivered_status: forwarding_status::CONSUMED,
            dropped_status: forwarding_status::ACL_DROP,
        });
        Self {
            generation,
            rules: program.rules.iter().map(rule).chain(at_run_time).collect(),
            released: None,
        }
    }
}

/// The state that the thread shares with the hub.
struct Shared {
    stop: AtomicBool,
    names: Mutex<VecDeque<ProgramNames>>,
    is_connected: AtomicBool,
    messages: AtomicU64,
    flows: AtomicU64,
    errors: AtomicU64,
    /// The address in use, and why messages do not arrive, if that is known.
    state: Mutex<SessionState>,
}

#[derive(Clone, Default)]
struct SessionState {
    address: Option<String>,
    error: Option<String>,
}

impl Shared {
    fn names(&self) -> MutexGuard<'_, VecDeque<ProgramNames>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks up the collector's host, which may take seconds.
pub(super) fn look_up(collector: &FlowCollector) -> io::Result<()> {
    session::addresses(collector).map(drop)
}

/// The hub's part: the owner of the thread.
pub(super) struct ExportHub {
    options: FlowExport,
    shared: Arc<Shared>,
    not_sent: Vec<Arc<NotSent>>,
    wakeup: Arc<Wakeup>,
    thread: Option<JoinHandle<()>>,
}

/// Starts the thread that exports flows; returns its owner, and the cache of each worker.
pub(super) fn start(
    sink: &str,
    options: &FlowExport,
    ingress_interface: u32,
    workers: usize,
) -> io::Result<(ExportHub, Vec<FlowCache>)> {
    let origin = Instant::now();
    let wakeup = Arc::new(Wakeup::new()?);
    let (mut caches, mut rings) = (Vec::new(), Vec::new());
    // Those of the workers, and behind them that of the thread.
    let not_sent: Vec<Arc<NotSent>> = (0..=workers).map(|_| Arc::default()).collect();
    for not_sent in &not_sent[..workers] {
        let (producer, consumer) = rtrb::RingBuffer::new(RING_RECORDS);
        caches.push(FlowCache::new(options, origin, producer, Arc::clone(not_sent))?);
        rings.push(consumer);
    }
    let shared = Arc::new(Shared {
        stop: AtomicBool::new(false),
        names: Mutex::default(),
        is_connected: AtomicBool::new(false),
        messages: AtomicU64::new(0),
        flows: AtomicU64::new(0),
        errors: AtomicU64::new(0),
        state: Mutex::default(),
    });
    let exporter = Exporter {
        sink: sink.to_owned(),
        options: options.clone(),
        origin,
        ingress_interface,
        rings,
        not_sent: not_sent.clone(),
        shared: Arc::clone(&shared),
        wakeup: Arc::clone(&wakeup),
        session: None,
        retry_at: origin,
        templates_at: origin,
        refused_at: None,
        reported: FlowSums::default(),
        report_at: origin,
        builder: MessageBuilder::new(options.observation_domain),
        pending: FlowSums::default(),
        record: Vec::new(),
    };
    // The name of a thread has at most 15 octets (pthread_setname_np(3)).
    let thread = std::thread::Builder::new().name("ipfix".to_owned()).spawn(move || exporter.run())?;
    let hub = ExportHub { options: options.clone(), shared, not_sent, wakeup, thread: Some(thread) };
    Ok((hub, caches))
}

impl ExportHub {
    /// Notes the names of the rules of a program, before its packets arrive.
    pub(super) fn announce(&self, map: &SinkMap, program: &Program) {
        let names = ProgramNames::of(map.generation(), program);
        let mut known = self.shared.names();
        // One of the same generation was not installed.
        known.retain(|known| known.generation != names.generation);
        known.push_back(names);
        if known.len() > PROGRAMS_MAX {
            known.pop_front();
        }
    }

    /// Notes that packets of other programs no longer arrive. Their flows become idle.
    pub(super) fn release_others(&self, map: &SinkMap) {
        let now = Instant::now();
        for known in self.shared.names().iter_mut() {
            known.released =
                if known.generation == map.generation() { None } else { known.released.or(Some(now)) };
        }
    }

    pub(super) fn statistics(&self) -> ExportStatistics {
        let mut lost = FlowSums::default();
        self.not_sent.iter().for_each(|not_sent| lost += not_sent.read());
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        ExportStatistics {
            is_connected: self.shared.is_connected.load(Relaxed),
            messages: read(&self.shared.messages),
            flows: read(&self.shared.flows),
            lost_flows: lost.flows,
            lost_packets: lost.packets,
            errors: read(&self.shared.errors),
        }
    }

    pub(super) fn status(&self) -> SinkStatus {
        let SessionState { address, error } = self.shared.state().clone();
        let ExportStatistics { is_connected, messages, flows, lost_flows, lost_packets, errors } =
            self.statistics();
        let state = match (is_connected, &error) {
            (true, _) => "sending",
            (false, None) => "connecting",
            (false, Some(_)) => "failing",
        };
        SinkStatus::default()
            .with("collector", self.options.collector.to_string())
            .with_some("address", address)
            .with("state", state)
            .with("exported_flows", flows)
            .with("messages", messages)
            .with("lost_flows", lost_flows)
            .with("lost_packets", lost_packets)
            .with("errors", errors)
            .with_some("error", error)
    }
}

impl Drop for ExportHub {
    fn drop(&mut self) {
        self.shared.stop.store(true, Release);
        self.wakeup.wake();
        if let Some(thread) = self.thread.take() {
            let _ = parking::join_within(thread, END_TIMEOUT);
        }
        let lost_flows = self.statistics().lost_flows;
        if lost_flows > 0 {
            let collector = &self.options.collector;
            tracing::warn!("the export to {collector} has ended; {lost_flows} flows in all were not sent");
        }
    }
}

/// The thread.
struct Exporter {
    sink: String,
    options: FlowExport,
    /// The origin of the times of records.
    origin: Instant,
    ingress_interface: u32,
    /// The rings, one from each worker.
    rings: Vec<rtrb::Consumer<FlowRecord>>,
    /// The flows that were not sent, by worker, and behind them those of this thread.
    not_sent: Vec<Arc<NotSent>>,
    shared: Arc<Shared>,
    wakeup: Arc<Wakeup>,
    /// The session; `None` until it is opened, and after a failure.
    session: Option<Session>,
    retry_at: Instant,
    templates_at: Instant,
    /// The time of the last answer that the port is not open.
    refused_at: Option<Instant>,
    /// The sums of the last report of flows that were not sent.
    reported: FlowSums,
    report_at: Instant,
    builder: MessageBuilder,
    /// The flows in the message that is being made.
    pending: FlowSums,
    record: Vec<u8>,
}

impl Exporter {
    fn run(mut self) {
        loop {
            let is_last = self.shared.stop.load(Acquire);
            self.pass(is_last);
            if is_last {
                return;
            }
            self.wakeup.wait(|| self.shared.stop.load(Acquire), PASS_INTERVAL);
        }
    }

    /// Sends what has come since the last pass. The last one sends what is left, and connects no more.
    fn pass(&mut self, is_last: bool) {
        let now = Instant::now();
        if self.session.is_none() && !is_last && now >= self.retry_at {
            self.connect(now);
        }
        if now >= self.templates_at && self.session.is_some() {
            self.send_templates(now);
        }
        self.drain(now);
        self.send_pending(now);
        if self.session.is_some() && (now >= self.report_at || is_last) {
            self.report(now);
        }
    }

    fn connect(&mut self, now: Instant) {
        match Session::open(&self.options.collector) {
            Ok(session) => {
                self.builder.begin_session(session.message_bytes_max());
                self.shared.state().address = Some(session.peer().to_string());
                self.session = Some(session);
                self.templates_at = now;
            }
            Err(error) => self.failed(&error),
        }
    }

    /// Closes the session after a failure. It is opened anew later, which also looks up the host again.
    fn failed(&mut self, error: &io::Error) {
        self.session = None;
        // Connecting may have taken seconds, so the present time counts, not that of the pass.
        self.retry_at = Instant::now() + RETRY_INTERVAL;
        match error.kind() {
            io::ErrorKind::PermissionDenied => self.note_error(&format!("{error}: {DENIED_HINT}")),
            io::ErrorKind::ConnectionRefused => self.note_error(REFUSED),
            _ => self.note_error(&error.to_string()),
        }
    }

    fn note_error(&self, error: &str) {
        self.shared.errors.fetch_add(1, Relaxed);
        self.shared.is_connected.store(false, Relaxed);
        let before = self.shared.state().error.replace(error.to_owned());
        if before.is_none() {
            let (sink, collector) = (&self.sink, &self.options.collector);
            tracing::warn!("sink `{sink}`: flows are not exported to {collector}: {error}");
        }
    }

    fn note_success(&mut self, now: Instant) {
        let was_refused =
            self.refused_at.is_some_and(|at| now.saturating_duration_since(at) < RETRY_INTERVAL);
        if was_refused || self.shared.is_connected.swap(true, Relaxed) {
            return;
        }
        if self.shared.state().error.take().is_some() {
            let (sink, collector) = (&self.sink, &self.options.collector);
            tracing::info!("sink `{sink}`: flows are exported to {collector} again");
        }
    }

    /// Sends the templates in a message of their own, and after it a report.
    fn send_templates(&mut self, now: Instant) {
        let Some(session) = &self.session else { return };
        self.builder.limit(session.message_bytes_max());
        let repeats = session.forgets_templates();
        let interval = Duration::from_secs(u64::from(self.options.template_seconds));
        self.templates_at = now + if repeats { interval } else { FOREVER };
        for template in Template::ALL {
            let (set, bytes) = template.encode();
            self.builder.add(set, &bytes);
        }
        self.send_pending(now);
        self.reported = FlowSums::default();
        self.report_at = now;
        self.report(now);
    }

    /// Reports the flows that were not sent, if there are more than at the last report, or with templates.
    fn report(&mut self, now: Instant) {
        let mut sums = FlowSums::default();
        self.not_sent.iter().for_each(|not_sent| sums += not_sent.read());
        if sums == self.reported && now != self.report_at {
            return;
        }
        self.reported = sums;
        self.report_at = now + REPORT_INTERVAL;
        let mut record = std::mem::take(&mut self.record);
        let set = encode_not_sent(std::process::id(), sums, &mut record);
        self.add(now, set, &record, FlowSums::default());
        self.record = record;
        self.send_pending(now);
    }

    /// Puts the records of all workers into messages.
    fn drain(&mut self, now: Instant) {
        let origin_epoch_ms = now_ns() / 1_000_000;
        let origin_epoch_ms = origin_epoch_ms.saturating_sub(self.origin.elapsed().as_millis() as u64);
        self.forget_names(now);
        let shared = Arc::clone(&self.shared);
        let mut record_bytes = std::mem::take(&mut self.record);
        for worker in 0..self.rings.len() {
            // Not what comes meanwhile, so that a pass ends.
            for _ in 0..self.rings[worker].slots() {
                let Ok(record) = self.rings[worker].pop() else { break };
                let set = {
                    let names = shared.names();
                    let context = self.context(&names, &record, origin_epoch_ms);
                    encode_flow(&record, &context, &mut record_bytes)
                };
                let sums = FlowSums { flows: 1, packets: record.packets, octets: record.octets };
                self.add(now, set, &record_bytes, sums);
            }
        }
        self.record = record_bytes;
    }

    fn forget_names(&self, now: Instant) {
        let kept = Duration::from_secs(u64::from(self.options.idle_seconds)) + NAMES_MARGIN;
        let is_old = |released: Instant| now.saturating_duration_since(released) > kept;
        self.shared.names().retain(|known| !known.released.is_some_and(is_old));
    }

    fn context<'n>(
        &self,
        names: &'n VecDeque<ProgramNames>,
        record: &FlowRecord,
        origin_epoch_ms: u64,
    ) -> FlowContext<'n> {
        let RuleOfFlow { generation, rule, is_dropped } = record.rule;
        let program = names.iter().rev().find(|names| names.generation == generation);
        let known = program.and_then(|program| program.rules.get(RuleId(rule).index()));
        let (rule, forwarding_status) = match known {
            Some(known) if is_dropped => (&*known.name, known.dropped_status),
            Some(known) => (&*known.name, known.delivered_status),
            None if is_dropped => (UNKNOWN_RULE, forwarding_status::ACL_DROP),
            None => (UNKNOWN_RULE, forwarding_status::CONSUMED),
        };
        FlowContext { rule, forwarding_status, ingress_interface: self.ingress_interface, origin_epoch_ms }
    }

    /// Adds a record to the message; sends the message first if there is no room.
    fn add(&mut self, now: Instant, set: u16, record: &[u8], sums: FlowSums) {
        if !self.builder.has_room(set, record) {
            self.send_pending(now);
        }
        self.builder.add(set, record);
        self.pending += sums;
    }

    /// Sends the message if it is not empty.
    fn send_pending(&mut self, now: Instant) {
        let Some(message) = self.builder.finish((now_ns() / 1_000_000_000) as u32) else { return };
        let sent = match &mut self.session {
            Some(session) => session.send(message).map_err(Some),
            None => Err(None),
        };
        self.builder.begin_next(sent.is_ok());
        let pending = std::mem::take(&mut self.pending);
        match sent {
            Ok(sent) => {
                self.shared.messages.fetch_add(1, Relaxed);
                self.shared.flows.fetch_add(pending.flows, Relaxed);
                if sent == Sent::AfterRefusal {
                    self.refused_at = Some(now);
                    // A collector that starts later has no templates.
                    self.templates_at = self.templates_at.min(now + RETRY_INTERVAL);
                    self.note_error(REFUSED);
                } else {
                    self.note_success(now);
                }
            }
            Err(error) => {
                if let Some(not_sent) = self.not_sent.last() {
                    not_sent.add(pending);
                }
                if let Some(error) = error {
                    self.failed(&error);
                }
            }
        }
    }
}
