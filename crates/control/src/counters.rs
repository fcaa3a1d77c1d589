//! Totals of the rules that drop in hardware, by rule name, over all programs that had such a rule.
//! A rule that stays keeps its counter object; one that goes leaves its sum behind. Totals never go
//! backwards. A read asks the device (on real NICs its firmware): callers cache their scrapes.

use std::collections::BTreeMap;

use policy::MAX_RULES;
use verbs::CounterValues;

use crate::Installer;

/// What a rule has dropped in hardware.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropTotals {
    /// The rule's name.
    pub rule: String,
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
    /// Whether the device counts this rule now; if not, the totals stand still.
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
        self.live.insert(rule.to_owned(), Live { counter, last: CounterValues::default() });
    }

    pub(crate) fn counter(&self, rule: &str) -> Option<&C> {
        self.live.get(rule)?.counter.as_ref()
    }

    /// The device does not count this rule after all.
    pub(crate) fn uncount(&mut self, rule: &str) {
        if let Some(live) = self.live.get_mut(rule) {
            live.counter = None;
        }
    }

    /// Names for which `keep` says no.
    pub(crate) fn names_without(&self, keep: impl Fn(&str) -> bool) -> Vec<String> {
        self.live.keys().filter(|name| !keep(name)).cloned().collect()
    }

    /// Reads one rule's counter, so that [`CounterBook::close`] knows at least that much: a device may
    /// forget a counter's readings with its last flow (mlx5 unbinds it).
    pub(crate) fn refresh<I: Installer<Counter = C>>(&mut self, installer: &mut I, rule: &str) {
        let Some(live) = self.live.get_mut(rule) else { return };
        let Some(counter) = &live.counter else { return };
        match installer.read_counter(counter) {
            Ok(values) => {
                live.last.packets = live.last.packets.max(values.packets);
                live.last.bytes = live.last.bytes.max(values.bytes);
            }
            Err(refusal) => tracing::warn!(rule, "cannot read the drop counter: {refusal}"),
        }
    }

    /// The rule is gone from the device: its sum stays.
    pub(crate) fn close<I: Installer<Counter = C>>(&mut self, installer: &mut I, rule: &str) {
        self.refresh(installer, rule);
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
            self.retired.iter().map(|(name, sum)| (name.as_str(), (*sum, false))).collect();
        for (name, live) in &self.live {
            let (sum, counted) = sums.entry(name).or_default();
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
