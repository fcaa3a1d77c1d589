//! The summary of a capture: packets by rule and by worker, and how evenly the workers of each group are
//! loaded.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use packet::DeepKey;
use policy::policy::Direction;
use program::{Copied, FlowAction, FlowKind, Program, QueueId, RssQueue, Verdict, WorkerId, XdpVerdict};
use reports::{is_policed, rule_name, sent_action};
use serde::Serialize;

use crate::terminal::numbers::{bytes, counted, number, shares};
use crate::terminal::table::Grid;

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Sum {
    packets: u64,
    bytes: u64,
}

impl Sum {
    fn add(&mut self, bytes: u64) {
        self.packets += 1;
        self.bytes += bytes;
    }
}

/// How evenly a group's table distributes its packets.
#[derive(Clone, Debug, Default, Serialize)]
struct Balance {
    workers: BTreeMap<u32, u64>,
    /// The packets of the busiest worker divided by the mean; 1 is perfectly even. `null`: no packet.
    largest_to_mean: Option<f64>,
}

/// Described in docs/reference/commands/explain.md.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    direction: &'static str,
    pub(super) packets: u64,
    /// Frames without an Ethernet header, which every port drops.
    pub(super) runts: u64,
    /// The sums by rule name and action; copies have actions of their own.
    rules: BTreeMap<String, BTreeMap<&'static str, Sum>>,
    /// Sent packets that no rule matches: they are sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_rule: Option<Sum>,
    /// The packets that workers receive, copies included.
    workers: BTreeMap<u32, Sum>,
    balance: BTreeMap<String, Balance>,
    pub(super) anomalies: BTreeMap<&'static str, u64>,
    /// The sums by verdict of the XDP program, if that was asked for.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    xdp: BTreeMap<XdpVerdict, Sum>,
    /// The names of the rules in policy order.
    #[serde(skip)]
    order: Vec<String>,
}

impl Summary {
    pub(super) fn of(program: &Program, direction: Direction) -> Self {
        let is_sent = direction == Direction::Egress;
        let mut summary = Self {
            direction: if is_sent { "egress" } else { "ingress" },
            packets: 0,
            runts: 0,
            rules: BTreeMap::new(),
            no_rule: is_sent.then(Sum::default),
            workers: BTreeMap::new(),
            balance: BTreeMap::new(),
            anomalies: BTreeMap::new(),
            xdp: BTreeMap::new(),
            order: program.rules.iter().map(|rule| rule.name.to_string()).collect(),
        };
        // Of sent packets, workers receive the sniffers' copies.
        let sniffers = program.flows.iter().filter(|flow| flow.kind == FlowKind::Sniffer);
        let heard: Vec<FlowAction> = sniffers.map(|flow| flow.action).collect();
        let is_heard =
            |id| heard.iter().any(|action| matches!(action, FlowAction::Steer { queue, .. } if *queue == id));
        for (index, queue) in program.queues.iter().enumerate() {
            if !is_sent || is_heard(QueueId::of(index)) {
                summary.expect(program, queue);
            }
        }
        summary
    }

    /// Lists the workers of a queue, whether they receive packets or not.
    fn expect(&mut self, program: &Program, queue: &RssQueue) {
        let Some(group) = program.groups.get(queue.group.index()) else { return };
        let members: BTreeSet<WorkerId> = queue.table.iter().copied().collect();
        let balance = self.balance.entry(group.name.clone()).or_default();
        for worker in members {
            balance.workers.entry(worker.0).or_default();
            self.workers.entry(worker.0).or_default();
        }
    }

    pub(super) fn add(&mut self, program: &Program, key: &DeepKey, bytes: u64) {
        if self.no_rule.is_some() {
            self.add_sent(program, key, bytes);
        } else {
            self.add_received(program, key, bytes);
        }
    }

    pub(super) fn add_xdp(&mut self, verdict: XdpVerdict, bytes: u64) {
        self.xdp.entry(verdict).or_default().add(bytes);
    }

    fn add_received(&mut self, program: &Program, key: &DeepKey, bytes: u64) {
        let explained = program.explain_deep(key);
        let action = match explained.outcome.verdict {
            Verdict::Deliver(_) if is_policed(program, explained.outcome.rule) => "deliver in part",
            Verdict::Deliver(_) => "deliver",
            Verdict::Drop => "drop",
            Verdict::Kernel if explained.is_lost_exception() => "lost exception",
            Verdict::Kernel => "kernel",
            Verdict::Filtered => "filtered out",
        };
        self.count(rule_name(program, explained.outcome.rule), action, bytes);
        if let (Some(worker), Some(group)) = (explained.worker, explained.group) {
            self.receive(program, worker, group, bytes);
        }
        self.add_copies(program, &explained.copies, bytes);
    }

    fn add_sent(&mut self, program: &Program, key: &DeepKey, bytes: u64) {
        let explained = program.explain_sent(key);
        match (explained.rule, &mut self.no_rule) {
            (Some(rule), _) => self.count(rule_name(program, rule), sent_action(&explained), bytes),
            (None, Some(sum)) => sum.add(bytes),
            (None, None) => {}
        }
        self.add_copies(program, &explained.copies, bytes);
    }

    fn add_copies(&mut self, program: &Program, copies: &[Copied], bytes: u64) {
        for copied in copies {
            let filtered = copied.outcome.verdict == Verdict::Filtered;
            let action = match filtered {
                true => "copy filtered out",
                false if is_policed(program, copied.outcome.rule) => "copy in part",
                false => "copy",
            };
            self.count(rule_name(program, copied.outcome.rule), action, bytes);
            let queue = program.queues.get(copied.queue.index());
            if let (Some(worker), Some(queue)) = (copied.worker, queue) {
                self.receive(program, worker, queue.group, bytes);
            }
        }
    }

    fn count(&mut self, rule: String, action: &'static str, bytes: u64) {
        self.rules.entry(rule).or_default().entry(action).or_default().add(bytes);
    }

    fn receive(&mut self, program: &Program, worker: WorkerId, group: program::GroupId, bytes: u64) {
        self.workers.entry(worker.0).or_default().add(bytes);
        if let Some(group) = program.groups.get(group.index()) {
            let balance = self.balance.entry(group.name.clone()).or_default();
            *balance.workers.entry(worker.0).or_default() += 1;
        }
    }

    /// Must be called after the last packet.
    pub(super) fn finish(&mut self) {
        self.balance.values_mut().for_each(|balance| balance.largest_to_mean = balance.evenness());
    }

    /// Leaves what the policy alone decides.
    pub(super) fn leave_out_device(&mut self) {
        self.workers.clear();
        self.balance.clear();
    }

    pub(super) fn text(&self) -> String {
        let mut rules = Grid::new(&["rule", "action", "packets", "bytes"]);
        let met = self.order.iter().filter_map(|name| self.rules.get_key_value(name));
        for (rule, actions) in met {
            for (action, sum) in actions {
                rules.row(vec![rule.clone(), (*action).into(), number(sum.packets), bytes(sum.bytes)]);
            }
        }
        if let Some(sum) = self.no_rule.filter(|sum| sum.packets > 0) {
            rules.row(vec!["(no egress rule)".into(), "pass".into(), number(sum.packets), bytes(sum.bytes)]);
        }
        let received: u64 = self.workers.values().map(|sum| sum.packets).sum();
        let mut workers = Grid::new(&["worker", "packets", "bytes", "share"]);
        for ((worker, sum), share) in self.workers.iter().zip(shares_of(self.workers.values(), received)) {
            workers.row(vec![worker.to_string(), number(sum.packets), bytes(sum.bytes), share]);
        }
        let mut groups = Grid::new(&["group", "workers", "packets", "largest/mean"]);
        for (group, balance) in &self.balance {
            let packets: u64 = balance.workers.values().sum();
            let evenness = balance.largest_to_mean.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"));
            groups.row(vec![group.clone(), balance.workers.len().to_string(), number(packets), evenness]);
        }
        let sent = if self.no_rule.is_some() { ", sent by the host" } else { "" };
        let mut out = format!("{}{sent}\n", counted(self.packets, "packet", "packets"));
        if self.packets == 0 {
            return out;
        }
        let _ = write!(out, "\n{}", rules.text());
        if !self.xdp.is_empty() {
            let mut verdicts = Grid::new(&["XDP program", "packets", "bytes", "share"]);
            let parsed = self.packets - self.runts;
            for ((verdict, sum), share) in self.xdp.iter().zip(shares_of(self.xdp.values(), parsed)) {
                verdicts.row(vec![verdict.to_string(), number(sum.packets), bytes(sum.bytes), share]);
            }
            let _ = write!(out, "\n{}", verdicts.text());
        }
        if !self.workers.is_empty() {
            let _ = write!(out, "\n{}\n{}", workers.text(), groups.text());
        }
        if self.runts > 0 {
            let _ = writeln!(out, "\nwithout an Ethernet header: {}", number(self.runts));
        }
        if !self.anomalies.is_empty() {
            let list: Vec<String> =
                self.anomalies.iter().map(|(name, packets)| format!("{name} {}", number(*packets))).collect();
            let _ = writeln!(out, "\nmalformed: {}", list.join(", "));
        }
        out
    }
}

#[allow(clippy::cast_precision_loss)]
fn shares_of<'s>(sums: impl Iterator<Item = &'s Sum>, whole: u64) -> Vec<String> {
    let parts: Vec<f64> = sums.map(|sum| sum.packets as f64).collect();
    shares(&parts, whole as f64, 0)
}

impl Balance {
    #[allow(clippy::cast_precision_loss)]
    fn evenness(&self) -> Option<f64> {
        let sum: u64 = self.workers.values().sum();
        let largest = self.workers.values().copied().max().filter(|largest| *largest > 0)?;
        Some(largest as f64 * self.workers.len() as f64 / sum as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evenness_is_the_largest_over_the_mean() {
        let of = |packets: &[u64]| Balance {
            workers: (0..).zip(packets.iter().copied()).collect(),
            largest_to_mean: None,
        };
        assert_eq!(of(&[5, 5]).evenness(), Some(1.0));
        assert_eq!(of(&[30, 10, 20]).evenness(), Some(1.5));
        assert_eq!(of(&[7, 0]).evenness(), Some(2.0));
        assert_eq!(of(&[0, 0]).evenness(), None);
    }
}
