//! What the API answers, as plain data, for both sides. docs/reference/api.md describes the keys.

use std::collections::BTreeMap;
use std::fmt;

use control::{FlowChanges, PlanSummary};
use device_model::DeviceModel;
use program::{DescriptionText, Program};
use serde::{Deserialize, Serialize};
use worker::sinks::SinkStatus;

use crate::state::{DeviceState, PolicyState, WorkerPlace};

/// GET /v1/status.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) version: String,
    pub(crate) pid: u32,
    pub(crate) uptime_seconds: f64,
    pub(crate) device: DeviceState,
    pub(crate) workers: usize,
    pub(crate) policy: PolicyState,
    pub(crate) health: Health,
    /// The rules and groups of the policy in force that have a description.
    #[serde(default)]
    pub(crate) descriptions: Vec<Described>,
    /// The change of the device that goes on.
    #[serde(default)]
    pub(crate) change: Option<ChangeState>,
    pub(crate) sinks: Vec<Sink>,
    /// The address of the pages for monitoring, if they are served.
    #[serde(default)]
    pub(crate) http: Option<String>,
    /// The wires of the soft NIC's ports, in their order.
    #[serde(default)]
    pub(crate) wires: Vec<String>,
    #[serde(default)]
    pub(crate) traced: TracedPackets,
}

/// The packets that no worker receives, as far as a trace shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TracedPackets {
    /// Whether it shows packets that the device leaves to the kernel.
    pub(crate) kernel: bool,
    /// Whether it shows packets that the device drops.
    pub(crate) dropped: bool,
}

/// A rule or a group with its description.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Described {
    /// "rule" or "group".
    pub(crate) of: String,
    pub(crate) name: String,
    /// Lines, separated by line feeds.
    pub(crate) description: String,
}

impl Described {
    /// The descriptions of a program: of rules in their order, then of groups.
    pub(crate) fn all(program: &Program) -> Vec<Self> {
        let rules = program.rules.iter().map(|rule| ("rule", rule.name.as_str(), &rule.description));
        let groups = program.groups.iter().map(|group| ("group", group.name.as_str(), &group.description));
        let described = |(of, name, text): (&str, &str, &Option<DescriptionText>)| {
            let description = text.as_ref()?.to_string();
            Some(Self { of: of.to_owned(), name: name.to_owned(), description })
        };
        rules.chain(groups).filter_map(described).collect()
    }
}

/// How many flows a change of the device creates and destroys, on all ports.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ChangeState {
    pub(crate) done_flows: usize,
    pub(crate) flows: usize,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Health {
    /// The answer of /readyz: whether packets are steered.
    pub(crate) ready: bool,
    /// The answer of /healthz: whether all parts make progress.
    pub(crate) alive: bool,
    /// Why not.
    pub(crate) problem: Option<String>,
    /// The fault, although packets are steered: sinks that lose all their packets.
    #[serde(default)]
    pub(crate) degraded: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Sink {
    pub(crate) name: String,
    pub(crate) kind: String,
    /// The rule that it was attached to while the daemon runs; `null`: the policy names it.
    pub(crate) attached_to: Option<String>,
    /// The state that the sink reports about itself; its keys depend on the kind.
    pub(crate) status: SinkStatus,
}

/// GET /v1/policy.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PolicyText {
    pub(crate) source: String,
    pub(crate) generation: u64,
    pub(crate) sha256: String,
    /// `null`: it is too large to be kept.
    pub(crate) text: Option<String>,
    /// Included files and set files, by the name in the policy.
    pub(crate) files: BTreeMap<String, File>,
    /// The variables that the settings and flags give.
    pub(crate) variables: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct File {
    pub(crate) sha256: String,
    pub(crate) text: Option<String>,
}

/// POST /v1/reload: the daemon's verdict.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Verdict {
    pub(crate) accepted: bool,
    pub(crate) source: String,
    /// The generation of the policy that is in force now.
    pub(crate) generation: u64,
    pub(crate) sha256: String,
    pub(crate) milliseconds: u64,
    /// The flows that the device got and lost; `None`: the policy is refused, or nothing was to be done.
    #[serde(default)]
    pub(crate) flows: Option<ChangedFlows>,
    /// Nothing was done; `plan` tells what would be.
    #[serde(default)]
    pub(crate) dry_run: bool,
    #[serde(default)]
    pub(crate) plan: Option<PlanReport>,
    /// The difference from the policy before, in words.
    #[serde(default)]
    pub(crate) difference: Option<String>,
    /// The policy before comes back after this time unless the new one is confirmed.
    #[serde(default)]
    pub(crate) confirm_seconds: Option<f64>,
    /// Why it is refused, in one line.
    pub(crate) error: Option<String>,
    /// The keys of `check --format json`.
    pub(crate) diagnostics: serde_json::Value,
    pub(crate) omitted_diagnostics: usize,
    /// The diagnostics as text, a line each.
    pub(crate) text: String,
    /// The diagnostics with excerpts of the policy.
    pub(crate) excerpts: String,
}

/// A line of the answer of POST /v1/traces: the way that a packet took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct TraceLine {
    /// The number in this trace, from 1.
    pub(crate) number: u64,
    /// At most so many packets were left out since the last line: they came faster than lines are written, or
    /// it is not known by which program they came.
    pub(crate) left_out: u64,
    /// The header fields, for people.
    pub(crate) packet: String,
    pub(crate) bytes: u32,
    /// The first bytes in hexadecimal.
    pub(crate) head: String,
    /// The program that decided.
    pub(crate) generation: u64,
    /// The time of reception in nanoseconds since the epoch, if the device's clock tells it.
    pub(crate) received_ns: Option<u64>,
    /// The time of the worker's decision; `None`: no worker received it.
    pub(crate) decided_ns: Option<u64>,
    /// The worker that received it.
    pub(crate) worker: Option<u32>,
    /// The tag of its flow; `None`: it had none.
    pub(crate) tag: Option<u32>,
    /// The flow, by its place in the program, and its queue pair, as computed: devices report neither.
    pub(crate) flow: Option<usize>,
    pub(crate) queue: Option<u32>,
    /// Whether it is a copy of a packet that other rules decide.
    pub(crate) is_copy: bool,
    pub(crate) rule: String,
    pub(crate) line: u32,
    pub(crate) action: String,
    /// `flow`: a flow drops it; `worker`: a rule in a worker drops it; `policed`: it is beyond the limit or
    /// sample of its rule; `lost_exception`; or the reason of a loss, as in the state of ports. `None`: not
    /// dropped; a sink may still drop it.
    pub(crate) dropped: Option<String>,
    /// The rules that the worker compared it with; `None`: its flow decided.
    pub(crate) compared_rules: Option<u64>,
    pub(crate) sinks: Vec<String>,
    /// Where `explain` computes something else.
    pub(crate) differences: Vec<TraceDifference>,
}

/// A part of a packet's way that is not as computed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TraceDifference {
    /// `class`, `worker`, `decision`, `sinks` or `device`.
    pub(crate) what: String,
    pub(crate) seen: String,
    pub(crate) computed: String,
}

impl fmt::Display for TraceDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}, computed {}", self.what, self.seen, self.computed)
    }
}

/// POST /v1/plan, and a reload that is only tried: the cost of a change.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PlanReport {
    /// The flows that it touches, on each port.
    pub(crate) flows: ChangedFlows,
    pub(crate) flows_before: usize,
    pub(crate) flows_after: usize,
    /// The most flows of a port at once.
    pub(crate) peak_flows: usize,
    /// The device's priorities and the masks that both policies have together.
    pub(crate) priorities: usize,
    pub(crate) masks: usize,
    /// What is created.
    pub(crate) indirection_tables: usize,
    pub(crate) queue_pairs: usize,
    pub(crate) counters: usize,
    /// Copying flows and sniffers that change: meanwhile a packet may be copied twice, and none be sniffed.
    pub(crate) changed_copies: usize,
    /// Calls that create or destroy a flow, on all ports, and all calls.
    pub(crate) flow_calls: usize,
    pub(crate) calls: usize,
    /// The time of the flow calls by the rate of the device's model; `None`: the model has none.
    pub(crate) seconds: Option<f64>,
    /// The share of the packets counted so far whose rules are removed or changed; `None`: not known.
    pub(crate) touched_share: Option<f64>,
    pub(crate) difference: Option<String>,
}

impl PlanReport {
    /// The cost of a plan on a device with this model.
    pub(crate) fn of(summary: &PlanSummary, model: &DeviceModel) -> Self {
        let FlowChanges { installed, removed, kept } = summary.flows;
        let seconds = |rate: u32| summary.flow_calls as f64 / f64::from(rate.max(1));
        Self {
            flows: ChangedFlows { installed, removed, kept },
            flows_before: summary.flows_before,
            flows_after: summary.flows_after,
            peak_flows: summary.peak_flows,
            priorities: summary.priorities,
            masks: summary.masks,
            indirection_tables: summary.tables,
            queue_pairs: summary.queue_pairs,
            counters: summary.counters,
            changed_copies: summary.changed_copies,
            flow_calls: summary.flow_calls,
            calls: summary.calls,
            seconds: model.flows_per_second.map(seconds),
            touched_share: None,
            difference: None,
        }
    }
}

/// GET /v1/history.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct History {
    pub(crate) policies: Vec<HistoryEntry>,
}

/// A policy that was in force.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct HistoryEntry {
    /// For `steerd rollback`; 0 is the one in force.
    pub(crate) back: usize,
    pub(crate) number: u64,
    /// Unix time.
    pub(crate) at_seconds: f64,
    /// Who asked for it.
    pub(crate) by: String,
    pub(crate) sha256: String,
    /// Whether its text is kept, so that it can come back.
    pub(crate) is_kept: bool,
    pub(crate) difference: String,
    pub(crate) milliseconds: u64,
    pub(crate) flows: Option<ChangedFlows>,
    /// Whether it came into force on trial and nobody has confirmed it.
    #[serde(default)]
    pub(crate) is_unconfirmed: bool,
}

/// The flows of a reload, on each port.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ChangedFlows {
    pub(crate) installed: usize,
    pub(crate) removed: usize,
    pub(crate) kept: usize,
}

impl fmt::Display for ChangedFlows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { installed, removed, kept } = *self;
        write!(f, "{installed} flows installed, {removed} removed, {kept} kept")
    }
}

/// GET /v1/workers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct WorkerList {
    pub(crate) workers: Vec<WorkerRow>,
}

/// A worker of the list.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct WorkerRow {
    pub(crate) worker: u32,
    #[serde(flatten)]
    pub(crate) place: WorkerPlace,
    /// The groups whose tables have an entry for it.
    pub(crate) groups: Vec<String>,
    /// Since the start of the daemon.
    pub(crate) received_packets: u64,
}

/// POST /v1/workers/changes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct WorkersChanged {
    pub(crate) worker: u32,
    #[serde(flatten)]
    pub(crate) place: WorkerPlace,
    pub(crate) flows: ChangedFlows,
    pub(crate) milliseconds: u64,
}

impl fmt::Display for WorkersChanged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { worker, place, flows, milliseconds } = self;
        write!(f, "worker {worker} {place} after {milliseconds} ms; {flows}")
    }
}

/// GET /v1/flows.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Flows {
    pub(crate) generation: u64,
    /// How many flows there are; if a rule was asked for, those that can have packets of it.
    pub(crate) count: usize,
    /// The first of them, highest precedence first.
    pub(crate) flows: Vec<Flow>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Flow {
    /// The rule that the flow is of.
    pub(crate) rule: String,
    /// The text of the policy for people about that rule; `null`: there is none.
    #[serde(default)]
    pub(crate) description: Option<String>,
    /// The first rules that can decide its packets: several where a worker compares the packets with them.
    #[serde(default)]
    pub(crate) rules: Vec<String>,
    /// The number of these rules.
    #[serde(default)]
    pub(crate) rule_count: usize,
    /// "normal", "copy", "sniffer" or "egress".
    pub(crate) kind: String,
    /// A lower number wins.
    pub(crate) priority: u16,
    /// The match: the headers and their fields.
    pub(crate) specs: String,
    /// "steer", "drop" or "pass".
    pub(crate) action: String,
    /// The RSS queue pair; `null`: the flow has none.
    pub(crate) queue: Option<usize>,
    /// The packets that the queue pair receives.
    pub(crate) variant: Option<String>,
    pub(crate) group: Option<String>,
    /// The packets of the flow, or of its rules: see `counted`.
    pub(crate) packets: u64,
    /// "flow": the packets of this flow alone. "rule": of all flows of the rule. "rules": of all flows of its
    /// rules. "none": the device does not count them.
    pub(crate) counted: String,
}
