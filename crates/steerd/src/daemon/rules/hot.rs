//! Which rules at run time act in the device although workers enforce them: those with most packets. Workers
//! then do not see the packets that the device drops.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use control::StoredRule;
use policy::policy::Action;
use program::{Match, RuntimeFields};

use crate::daemon::board::PolicyInForce;

use super::overtaking::Precedence;
use super::protect::may_share;
use super::{DeviceTraffic, LiveRules, Rules, is_by_workers};

/// A rule with fewer packets per second is not worth a flow.
const LEAST_PER_SECOND: f64 = 1000.0;
/// A rule in the device gives way to one that has more than so many times its packets.
const ADVANTAGE: f64 = 2.0;
/// The shortest time between two moves.
const INTERVAL: Duration = Duration::from_secs(2);
/// The rest after a move, in times of its duration.
const REST: u32 = 20;
/// The rest after the device has refused a move.
const LONG_REST: Duration = Duration::from_secs(120);
/// How long a rule stays in the device whose packets cannot be counted there. Then it goes back to the
/// workers, which count them: it comes again if it is still hot.
const UNCOUNTED_STAY: Duration = Duration::from_secs(600);
/// The weight of the last interval in a rate.
const NEW_SHARE: f64 = 0.5;

/// The rates of rules.
#[derive(Debug, Default)]
pub(super) struct Hot {
    rates: HashMap<Arc<str>, Rate>,
    measured: Option<Instant>,
    rest_until: Option<Instant>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    packets: u64,
    per_second: f64,
    /// Since when the packets cannot be counted; the rate is the last one that was measured.
    uncounted_since: Option<Instant>,
}

impl Rate {
    /// The rate of a rule whose packets cannot be counted now.
    fn uncounted(self, now: Instant) -> Self {
        let since = self.uncounted_since.unwrap_or(now);
        let is_over = now - since >= UNCOUNTED_STAY;
        Self { per_second: if is_over { 0.0 } else { self.per_second }, uncounted_since: Some(since), ..self }
    }

    /// The rate of a rule that had so many packets after some seconds, by its rate before.
    fn counted(self, packets: u64, seconds: f64) -> Self {
        // The packets that were not counted are not known.
        if self.uncounted_since.is_some() {
            return Self { packets, per_second: self.per_second, uncounted_since: None };
        }
        let new = packets.saturating_sub(self.packets) as f64 / seconds;
        let per_second = self.per_second * (1.0 - NEW_SHARE) + new * NEW_SHARE;
        Self { packets, per_second, uncounted_since: None }
    }
}

impl Hot {
    /// Updates the rates by these counts; `None`: the packets of the rule cannot be counted now.
    fn measure(&mut self, counts: impl Iterator<Item = (Arc<str>, Option<u64>)>, now: Instant) {
        let seconds = self.measured.map(|before| (now - before).as_secs_f64());
        self.measured = Some(now);
        let before = std::mem::take(&mut self.rates);
        self.rates = counts
            .map(|(id, packets)| {
                let last = before.get(&id).copied();
                let rate = match (last, packets, seconds) {
                    (last, None, _) => last.unwrap_or_default().uncounted(now),
                    (Some(last), Some(packets), Some(seconds)) if seconds > 0.0 => {
                        last.counted(packets, seconds)
                    }
                    (_, Some(packets), _) => Rate { packets, ..Rate::default() },
                };
                (id, rate)
            })
            .collect();
    }

    /// The rules that are worth a flow, best first; `held` are in the device.
    fn choose(&self, held: &HashSet<Arc<str>>) -> Vec<Arc<str>> {
        let mut ranked: Vec<(f64, &Arc<str>)> = self
            .rates
            .iter()
            .map(|(id, rate)| (rate.per_second * if held.contains(id) { ADVANTAGE } else { 1.0 }, id))
            .filter(|(rate, _)| *rate >= LEAST_PER_SECOND)
            .collect();
        ranked.sort_by(|(a, first), (b, second)| b.total_cmp(a).then_with(|| first.cmp(second)));
        ranked.into_iter().map(|(_, id)| Arc::clone(id)).collect()
    }

    /// These rules, those with most packets first.
    pub(super) fn ranked(&self, mut ids: Vec<Arc<str>>) -> Vec<Arc<str>> {
        let rate = |id: &Arc<str>| self.rates.get(id).map_or(0.0, |rate| rate.per_second);
        ids.sort_by(|a, b| rate(b).total_cmp(&rate(a)).then_with(|| a.cmp(b)));
        ids
    }
}

impl LiveRules {
    /// Moves hot rules into the device and cold ones out of it, if enough have changed.
    pub(super) fn promote(&self, rules: &mut Rules) {
        let in_force = Arc::clone(&self.observer.board.read().policy);
        let Some(allowed) = &in_force.program.runtime else { return };
        let now = Instant::now();
        let is_resting = rules.hot.rest_until.is_some_and(|until| now < until);
        if allowed.device_rules_max == 0 || is_resting {
            return;
        }
        let copied = copied_forms(&in_force);
        let may_move = |stored: &&StoredRule| {
            let fields = stored.rule.matches.fields().ok();
            is_by_workers(stored, allowed) && !stored.is_withheld() && !copied.contains(&fields)
        };
        let candidates: Vec<&StoredRule> = rules.store.rules().filter(may_move).collect();
        let before = rules.in_device();
        let counts: Vec<(Arc<str>, Option<u64>)> = {
            let state = (!before.is_empty()).then(|| self.observer.state());
            let device = DeviceTraffic::of(state.as_ref());
            let traffic = self.traffic(&candidates, &device).into_iter();
            let counted = candidates.iter().zip(traffic).map(|(stored, traffic)| {
                let is_counted = !stored.in_device || device.counts(stored);
                (Arc::clone(&stored.rule.id), is_counted.then_some(traffic.packets))
            });
            counted.collect()
        };
        rules.hot.measure(counts.into_iter(), now);
        let ranked = rules.hot.choose(&before);
        let precedence = Precedence { store: &rules.store, forms: &allowed.forms };
        // Those that were left out when the device had no room for them are tried again elsewhere.
        let mut needed = rules.needed(allowed);
        needed.retain(|id| before.contains(id));
        let chosen = precedence.filled(&needed, &ranked, allowed.device_rules_max as usize);
        if chosen != before {
            match self.put_in_device(rules, &chosen) {
                Ok(()) => tracing::debug!("{} rules at run time act in the device", chosen.len()),
                Err(why) => {
                    tracing::warn!("hot rules at run time stay with the workers: {why}");
                    rules.hot.rest_until = Some(Instant::now() + LONG_REST);
                    return;
                }
            }
        }
        // A look at many rules takes long, too, and holds up changes.
        rules.hot.rest_until = Some(Instant::now() + INTERVAL.max(now.elapsed() * REST));
    }
}

/// The forms of rules that stay with the workers, as a rule of the policy behind them copies packets that
/// they may match: workers copy a packet before they drop it, and the device drops it first.
fn copied_forms(in_force: &PolicyInForce) -> Vec<Option<RuntimeFields>> {
    let Some((policy, runtime)) =
        in_force.policy.as_ref().and_then(|policy| Some((policy, policy.runtime.as_ref()?)))
    else {
        return Vec::new();
    };
    let copies =
        policy.rules.iter().skip(runtime.before).filter(|rule| matches!(rule.action, Action::Copy(_)));
    let copies: Vec<&Match> = copies.map(|rule| &rule.matches).collect();
    let is_copied = |form: &&RuntimeFields| copies.iter().any(|copy| may_share(&form.to_match(), copy));
    runtime.forms.iter().filter(is_copied).map(|form| Some(*form)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hottest_rules_are_chosen_and_stay() {
        let mut hot = Hot::default();
        let begun = Instant::now();
        let count = |hot: &mut Hot, second: u64, counts: [u64; 3]| {
            let ids = ["a", "b", "c"].map(Arc::<str>::from);
            let counts = ids.into_iter().zip(counts.map(Some));
            hot.measure(counts, begun + Duration::from_secs(second));
        };
        let ids = |ids: &[&str]| ids.iter().map(|id| Arc::<str>::from(*id)).collect::<HashSet<_>>();
        count(&mut hot, 0, [0, 0, 0]);
        let chosen = |hot: &Hot, held: &[&str]| {
            hot.choose(&ids(held)).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(chosen(&hot, &[]).is_empty(), "no rate is known");
        count(&mut hot, 1, [10_000, 50_000, 100]);
        assert_eq!(chosen(&hot, &[]), ["b", "a"], "c is not worth a flow");
        count(&mut hot, 2, [90_000, 100_000, 100]);
        // 42,500 and 37,500 packets per second.
        assert_eq!(chosen(&hot, &[]), ["a", "b"]);
        assert_eq!(chosen(&hot, &["b"]), ["b", "a"], "too little for a move");
        assert_eq!(hot.ranked(["c", "b", "a"].map(Arc::from).to_vec()), ["a", "b", "c"].map(Arc::from));
    }

    #[test]
    fn a_rule_whose_packets_the_device_does_not_count_stays_there_for_a_time() {
        let (mut hot, id) = (Hot::default(), Arc::<str>::from("kernel"));
        let begun = Instant::now();
        let held = HashSet::from([Arc::clone(&id)]);
        let mut measure = |second: u64, packets: Option<u64>| {
            hot.measure([(Arc::clone(&id), packets)].into_iter(), begun + Duration::from_secs(second));
            (hot.choose(&HashSet::new()).len(), hot.choose(&held).len())
        };
        assert_eq!(measure(0, Some(0)), (0, 0));
        assert_eq!(measure(2, Some(20_000)), (1, 1), "it is hot");
        for second in (4..600).step_by(2) {
            assert_eq!(measure(second, None), (1, 1), "after {second} s");
        }
        let over = 4 + UNCOUNTED_STAY.as_secs();
        assert_eq!(measure(over, None), (0, 0), "workers are to count it again");
        assert_eq!(measure(over + 2, Some(20_000)), (0, 0), "the packets meanwhile are not known");
        assert_eq!(measure(over + 4, Some(60_000)), (1, 1), "it is still hot");
    }
}
