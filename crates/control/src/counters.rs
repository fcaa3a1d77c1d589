//! Totals of the rules that drop in hardware, by rule name, over all programs that had such a rule.
//! A rule keeps its counter object while it has a flow on the device, and then leaves its sum behind.
//! Totals never go backwards. A read asks the device (on real NICs its firmware): callers cache their scrapes.

use std::collections::BTreeMap;

use program::MAX_RULES;
use verbs::CounterValues;

use crate::{Installer, Refusal};

/// What a rule has dropped in hardware.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropTotals {
    /// The rule's name.
    pub rule: String,
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
    /// Whether these are all: not while the rule drops on a device that cannot count it.
    pub counted: bool,
}

/// Rules that are gone, whose sums are kept: as many as a whole policy can have. Beyond, they are
/// summed under [`FORGOTTEN`].
const RETIRED_MAX: usize = MAX_RULES;
const FORGOTTEN: &str = "(retired rules)";

pub(crate) struct CounterBook<C> {
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

impl<C> Default for CounterBook<C> {
    fn default() -> Self {
        Self { live: BTreeMap::new(), retired: BTreeMap::new() }
    }
}

impl<C> CounterBook<C> {
    /// Whether a rule of this name has its place.
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
    pub(crate) fn flow_came(&mut self, rule: &str) {
        if let Some(live) = self.live.get_mut(rule) {
            live.flows += 1;
        }
    }

    /// A flow of the rule is about to go. Before the last one the counter is read, because a device may
    /// forget its readings with that flow (mlx5 unbinds it).
    pub(crate) fn flow_goes<I: Installer<Counter = C>>(&mut self, installer: &mut I, rule: &str) {
        if self.live.get(rule).is_some_and(|live| live.flows == 1) {
            self.refresh(installer, rule);
        }
    }

    /// A flow of the rule is gone. With the last one the counter ends and its sum stays: a device that
    /// forgets would count from zero again if the same counter were given to another flow.
    pub(crate) fn flow_went<I: Installer<Counter = C>>(&mut self, installer: &mut I, rule: &str) {
        let Some(live) = self.live.get_mut(rule) else { return };
        live.flows = live.flows.saturating_sub(1);
        if live.flows == 0 {
            self.close(installer, rule);
        }
    }

    /// The device does not count this rule after all.
    pub(crate) fn uncount<I: Installer<Counter = C>>(&mut self, installer: &mut I, rule: &str) {
        self.refresh(installer, rule);
        if let Some(live) = self.live.get_mut(rule) {
            live.counter = None;
        }
    }

    /// Ends the counters that no flow has come to use.
    pub(crate) fn close_unused<I: Installer<Counter = C>>(&mut self, installer: &mut I) {
        let unused = self.live.iter().filter(|(_, live)| live.flows == 0);
        let unused: Vec<String> = unused.map(|(rule, _)| rule.clone()).collect();
        unused.iter().for_each(|rule| self.close(installer, rule));
    }

    /// Reads one rule's counter, so that at least that much is known from now on.
    fn refresh<I: Installer<Counter = C>>(&mut self, installer: &mut I, rule: &str) {
        if let Err(refusal) = self.read(installer, rule) {
            tracing::warn!(rule, "cannot read the drop counter: {refusal}");
        }
    }

    fn read<I: Installer<Counter = C>>(&mut self, installer: &mut I, rule: &str) -> Result<(), Refusal> {
        let Some(live) = self.live.get_mut(rule) else { return Ok(()) };
        let Some(counter) = &live.counter else { return Ok(()) };
        let values = installer.read_counter(counter)?;
        live.last.packets = live.last.packets.max(values.packets);
        live.last.bytes = live.last.bytes.max(values.bytes);
        Ok(())
    }

    /// What was counted while the last flow went is read from a device that still knows it.
    fn close<I: Installer<Counter = C>>(&mut self, installer: &mut I, rule: &str) {
        if let Err(refusal) = self.read(installer, rule) {
            tracing::debug!(rule, "the drop counter is gone with its last flow: {refusal}");
        }
        let Some(live) = self.live.remove(rule) else { return };
        // What nothing was counted for needs no memory.
        if live.last.packets == 0 {
            return;
        }
        let known = self.retired.len() < RETIRED_MAX || self.retired.contains_key(rule);
        let sum = self.retired.entry(if known { rule } else { FORGOTTEN }.to_owned()).or_default();
        sum.packets += live.last.packets;
        sum.bytes += live.last.bytes;
    }

    pub(crate) fn totals<I: Installer<Counter = C>>(&mut self, installer: &mut I) -> Vec<DropTotals> {
        let names: Vec<String> = self.live.keys().cloned().collect();
        names.iter().for_each(|name| self.refresh(installer, name));
        let mut sums: BTreeMap<&str, (CounterValues, bool)> =
            self.retired.iter().map(|(name, sum)| (name.as_str(), (*sum, true))).collect();
        for (name, live) in &self.live {
            let (sum, counted) = sums.entry(name).or_insert((CounterValues::default(), true));
            sum.packets += live.last.packets;
            sum.bytes += live.last.bytes;
            *counted = live.counter.is_some();
        }
        sums.into_iter()
            .map(|(rule, (sum, counted))| DropTotals {
                rule: rule.to_owned(),
                packets: sum.packets,
                bytes: sum.bytes,
                counted,
            })
            .collect()
    }
}
