//! Totals of the rules whose packets no worker sees, by rule name, over all programs that had such a rule.
//!
//! A rule keeps its counter object while it has a flow on the device; after that only its sum is kept, until
//! the rule is retired. The last reading of a counter comes after the removal of its last flow, so that it
//! has every packet; where a device reads no counter without a flow, the controller keeps one on it until
//! then, and counts the last readings that fail. No total ever decreases, nor does the sum over all names.
//! Reading queries the device (a real NIC's firmware), so callers cache the readings.

use std::collections::{BTreeMap, HashSet};

use program::{Flow, FlowAction, FlowKind, RETIRED_RULES};
use verbs::CounterValues;

use crate::{DeviceRefusal, Installer};

/// A quantity that a device counts for a rule, because no worker sees the packets. A name with different
/// kinds in different programs has a total of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Counted {
    /// Received and dropped.
    Dropped,
    /// Sent by the host and dropped.
    SentDropped,
    /// Sent by the host and let out by an exception.
    SentPassed,
}

impl Counted {
    /// All of them, in the order of their indices.
    pub const ALL: [Self; 3] = [Self::Dropped, Self::SentDropped, Self::SentPassed];

    /// The quantity that the device counts of a flow's packets, if it does.
    #[must_use]
    pub fn of(flow: &Flow) -> Option<Self> {
        match (flow.kind, flow.action) {
            (_, FlowAction::Steer { .. }) => None,
            (FlowKind::Egress, FlowAction::Pass) => Some(Self::SentPassed),
            (FlowKind::Egress, FlowAction::Drop) => Some(Self::SentDropped),
            (_, FlowAction::Drop | FlowAction::Pass) => Some(Self::Dropped),
        }
    }
}

/// The totals that a device has counted for a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropTotals {
    /// The rule's name.
    pub rule: String,
    /// The counted quantity.
    pub kind: Counted,
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
    /// Whether these are all: not while the rule drops on a device that cannot count it.
    pub counted: bool,
}

/// The counters of one kind.
pub(crate) struct RuleCounters<C> {
    live: BTreeMap<String, Live<C>>,
    retired: BTreeMap<String, CounterValues>,
}

struct Live<C> {
    /// `None` where the device cannot count.
    counter: Option<C>,
    /// The highest reading so far.
    last: CounterValues,
    /// The rule's flows on the device, of whichever program.
    flows: usize,
}

impl<C> Default for RuleCounters<C> {
    fn default() -> Self {
        Self { live: BTreeMap::new(), retired: BTreeMap::new() }
    }
}

impl<C> RuleCounters<C> {
    /// Whether a rule of this name has a counter here.
    pub(crate) fn has(&self, rule: &str) -> bool {
        self.live.contains_key(rule)
    }

    pub(crate) fn open(&mut self, rule: &str, counter: Option<C>) {
        self.live.insert(rule.to_owned(), Live { counter, last: CounterValues::default(), flows: 0 });
    }

    pub(crate) fn counter(&self, rule: &str) -> Option<&C> {
        self.live.get(rule)?.counter.as_ref()
    }

    /// A flow of the rule is on the device.
    pub(crate) fn flow_installed(&mut self, rule: &str) {
        if let Some(live) = self.live.get_mut(rule) {
            live.flows += 1;
        }
    }

    /// The counter of a rule that has one flow left.
    pub(crate) fn of_last_flow(&self, rule: &str) -> Option<&C> {
        self.live.get(rule).filter(|live| live.flows == 1)?.counter.as_ref()
    }

    /// A flow of the rule was removed. With the last one the counter is released and its sum kept: a device
    /// that forgets readings would count from zero again if the same counter were given to another flow.
    ///
    /// # Errors
    /// The refusal of the last reading: the packets since the one before are in no total.
    pub(crate) fn flow_removed<I: Installer<Counter = C>>(
        &mut self,
        installer: &mut I,
        rule: &str,
    ) -> Result<(), DeviceRefusal> {
        let Some(live) = self.live.get_mut(rule) else { return Ok(()) };
        live.flows = live.flows.saturating_sub(1);
        if live.flows > 0 {
            return Ok(());
        }
        let read = self.read(installer, rule);
        self.close(rule);
        read
    }

    /// The device cannot count this rule.
    pub(crate) fn uncount<I: Installer<Counter = C>>(&mut self, installer: &mut I, rule: &str) {
        self.refresh(installer, rule);
        if let Some(live) = self.live.get_mut(rule) {
            live.counter = None;
        }
    }

    /// Releases the counters that no flow uses. None of them has ever had a flow, because the removal of the
    /// last one releases its counter: they have counted nothing.
    pub(crate) fn close_unused(&mut self) {
        self.live.retain(|_, live| live.flows > 0);
    }

    /// Reads one rule's counter into its last value.
    pub(crate) fn refresh<I: Installer<Counter = C>>(&mut self, installer: &mut I, rule: &str) {
        if let Err(refusal) = self.read(installer, rule) {
            tracing::warn!(rule, "cannot read the drop counter: {refusal}");
        }
    }

    fn read<I: Installer<Counter = C>>(
        &mut self,
        installer: &mut I,
        rule: &str,
    ) -> Result<(), DeviceRefusal> {
        let Some(live) = self.live.get_mut(rule) else { return Ok(()) };
        let Some(counter) = &live.counter else { return Ok(()) };
        let values = installer.read_counter(counter)?;
        live.last.packets = live.last.packets.max(values.packets);
        live.last.bytes = live.last.bytes.max(values.bytes);
        Ok(())
    }

    /// Releases a counter that counts no more packets, after its last reading.
    fn close(&mut self, rule: &str) {
        let Some(live) = self.live.remove(rule) else { return };
        // A count of zero needs no memory.
        if live.last.packets == 0 {
            return;
        }
        let sum = self.retired.entry(rule.to_owned()).or_default();
        sum.packets += live.last.packets;
        sum.bytes += live.last.bytes;
    }

    /// Sums up what rules have counted that are neither in `keep` nor on the device, under one name; returns
    /// their totals.
    pub(crate) fn retire(&mut self, keep: &HashSet<&str>, kind: Counted) -> Vec<DropTotals> {
        let mut sum = CounterValues::default();
        let live = &self.live;
        let mut gone = Vec::new();
        self.retired.retain(|name, values| {
            let kept = name == RETIRED_RULES || keep.contains(name.as_str()) || live.contains_key(name);
            if !kept {
                sum.packets += values.packets;
                sum.bytes += values.bytes;
                let CounterValues { packets, bytes } = *values;
                gone.push(DropTotals { rule: name.clone(), kind, packets, bytes, counted: true });
            }
            kept
        });
        if sum.packets > 0 {
            let all = self.retired.entry(RETIRED_RULES.to_owned()).or_default();
            all.packets += sum.packets;
            all.bytes += sum.bytes;
        }
        gone
    }

    /// Reads all counters into their last values.
    pub(crate) fn read_all<I: Installer<Counter = C>>(&mut self, installer: &mut I) {
        let names: Vec<String> = self.live.keys().cloned().collect();
        names.iter().for_each(|name| self.refresh(installer, name));
    }

    /// The totals as last read.
    pub(crate) fn totals(&self, kind: Counted) -> impl Iterator<Item = DropTotals> {
        let mut sums: BTreeMap<&str, (CounterValues, bool)> =
            self.retired.iter().map(|(name, sum)| (name.as_str(), (*sum, true))).collect();
        for (name, live) in &self.live {
            let (sum, counted) = sums.entry(name).or_insert((CounterValues::default(), true));
            sum.packets += live.last.packets;
            sum.bytes += live.last.bytes;
            *counted = live.counter.is_some();
        }
        sums.into_iter().map(move |(rule, (sum, counted))| DropTotals {
            rule: rule.to_owned(),
            kind,
            packets: sum.packets,
            bytes: sum.bytes,
            counted,
        })
    }
}
