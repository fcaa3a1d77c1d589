//! The time that a worker takes for a packet, by how the packet is decided. The numbers were measured on the
//! software NIC, on two cores of an AMD EPYC; no NIC was measured. They compare policies with one another and
//! do not predict the rate of a machine, for which `steerd run --stage-times` measures.

use std::collections::BTreeMap;

use packet::DeepKey;
use program::{Class, ClassId, Decide, Explanation, Program, RuleId, WorkerId};

use crate::drawn_packets::DrawnPacket;
use crate::flow_groups::FlowGroups;
use crate::job::Job;

/// The picoseconds of a nanosecond.
pub const PS_PER_NS: u64 = 1000;

/// Picoseconds, so that sums are exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CostModel {
    /// To take a packet from the completion queue, find its class, count it and post its buffer again.
    /// `make bench ARGS='--bench neighbours -- one-core'`, "worker alone".
    receive: u64,
    /// To parse a packet of a hybrid class. This and the following numbers are printed by
    /// `cargo test --release -p compiler --test it -- --ignored --nocapture costs_of_decisions`.
    parse: u64,
    /// To compare a packet with one rule, in a class of few rules.
    compare: u64,
    /// To find the rule of a packet by an index, in a class of many rules.
    search: u64,
}

const MEASURED: CostModel = CostModel { receive: 10_600, parse: 14_400, compare: 9_200, search: 55_000 };

/// The time that a worker takes for a packet of a class, in picoseconds. `comparisons` is the number of rules
/// that the packet is compared with, if it is known. Packets without a class reach no worker.
fn worker_ps(class: Option<&Class>, comparisons: Option<u64>) -> u64 {
    let CostModel { receive, parse, compare, search } = MEASURED;
    match class {
        None => 0,
        Some(Class { decide: Decide::Exact(_), .. }) => receive,
        Some(class) if class.has_index() => receive + parse + search,
        Some(_) => receive + parse + compare * comparisons.unwrap_or(0),
    }
}

/// The decision of a program on a packet.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The flow, the worker and the rule.
    pub explained: Explanation,
    /// The number of rules that a worker compares the packet with; `None`: no worker decides it.
    pub comparisons: Option<u64>,
    /// The time that a worker takes for it, in picoseconds.
    pub worker_ps: u64,
}

impl Decision {
    /// The time of a worker for a packet that it compares with no rule, in picoseconds.
    pub const RECEIVE_PS: u64 = MEASURED.receive;

    /// The decision of the program on a received packet.
    #[must_use]
    pub fn of(program: &Program, key: &DeepKey) -> Self {
        let explained = program.explain_deep(key);
        let class = explained.class.and_then(|class| program.class(class));
        let comparisons = class.and_then(|class| class.comparisons(key));
        Self { worker_ps: worker_ps(class, comparisons), comparisons, explained }
    }

    /// The workers that receive the packet or a copy of it, each with the time that it takes, in picoseconds.
    pub fn worker_times(&self, program: &Program, key: &DeepKey) -> impl Iterator<Item = (WorkerId, u64)> {
        let time = |class: Option<ClassId>| {
            let class = class.and_then(|class| program.class(class));
            worker_ps(class, class.and_then(|class| class.comparisons(key)))
        };
        let copies = self.explained.copies.iter().map(move |copied| (copied.worker, time(copied.class)));
        let received = (self.explained.worker, self.worker_ps);
        std::iter::once(received).chain(copies).filter_map(|(worker, ps)| Some((worker?, ps)))
    }
}

/// The time of a worker that is saved if the device decides a packet instead of a class of many rules, in
/// picoseconds. A worker also receives packets that the device steers to it.
pub(crate) fn saved_ps(is_dropped: bool) -> u64 {
    let CostModel { receive, parse, search, .. } = MEASURED;
    parse + search + if is_dropped { receive } else { 0 }
}

/// The seconds for which a policy is expected to stay on a device. It is the exchange rate between time to
/// install and time per packet: while a policy is installed, its packets count as if workers decided all of
/// them, and that time is spread over the packets of so many seconds.
const POLICY_STAYS_SECONDS: f64 = 60.0;

/// The time per packet, in picoseconds, that so many seconds to install are worth: some 1.2 ns for each.
pub(crate) fn install_ps(seconds: f64) -> f64 {
    seconds * saved_ps(false) as f64 / POLICY_STAYS_SECONDS
}

/// The time that a program costs a packet, in picoseconds: of workers, of the groups of flows that it passes,
/// and of installing the program. The mean of the drawn packets; with weights, those drawn from a rule
/// together count as its weight.
pub(crate) fn program_ps(job: &Job<'_>, packets: &[DrawnPacket], program: &Program) -> f64 {
    let groups = FlowGroups::of(program, job.profile);
    let ps_per_group = u64::from(job.profile.ns_per_group.unwrap_or(0)) * PS_PER_NS;
    let passed = |flow| groups.as_ref().map_or(0, |groups| groups.passed(flow)) * ps_per_group;
    let mut rules: BTreeMap<RuleId, (u64, u64)> = BTreeMap::new();
    for DrawnPacket { rule, key, .. } in packets {
        let Decision { explained, worker_ps, .. } = Decision::of(program, key);
        let (packets, ps) = rules.entry(*rule).or_default();
        *packets += 1;
        *ps += worker_ps + passed(explained.flow);
    }
    let (mut total, mut sum) = (0.0, 0.0);
    for (rule, (packets, ps)) in rules {
        let weight = job.weights.map_or(packets as f64, |weights| weights.of(rule) as f64);
        total += weight;
        sum += weight * ps as f64 / packets as f64;
    }
    let per_packet = if total > 0.0 { sum / total } else { 0.0 };
    let seconds = groups.as_ref().and_then(|groups| groups.install_seconds).unwrap_or(0.0);
    per_packet + install_ps(seconds)
}
