//! Which rules at run time act in the device although workers enforce them: those with most packets. Workers
//! then do not see the packets that the device drops.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use control::StoredRule;

use super::{LiveRules, Rules, is_by_workers};
use crate::state::State;

/// A rule with fewer packets per second is not worth a flow.
const LEAST_PER_SECOND: f64 = 1000.0;
/// A rule in the device gives way to one that has more than so many times its packets.
const ADVANTAGE: f64 = 2.0;
/// The shortest time between two moves.
const INTERVAL: Duration = Duration::from_secs(2);
/// So many times as long as a move took nothing is moved.
const REST: u32 = 20;
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
}

impl Hot {
    /// Updates the rates by these counts.
    fn measure(&mut self, counts: impl Iterator<Item = (Arc<str>, u64)>, now: Instant) {
        let seconds = self.measured.map(|before| (now - before).as_secs_f64());
        self.measured = Some(now);
        let before = std::mem::take(&mut self.rates);
        self.rates = counts
            .map(|(id, packets)| {
                let last = before.get(&id).copied();
                let per_second = match (last, seconds) {
                    (Some(last), Some(seconds)) if seconds > 0.0 => {
                        let new = packets.saturating_sub(last.packets) as f64 / seconds;
                        last.per_second * (1.0 - NEW_SHARE) + new * NEW_SHARE
                    }
                    _ => 0.0,
                };
                (id, Rate { packets, per_second })
            })
            .collect();
    }

    /// The rules that are to be in the device: `held` are there, `room` of them there may be.
    fn choose(&self, held: &HashSet<Arc<str>>, room: usize) -> HashSet<Arc<str>> {
        let mut ranked: Vec<(f64, &Arc<str>)> = self
            .rates
            .iter()
            .map(|(id, rate)| (rate.per_second * if held.contains(id) { ADVANTAGE } else { 1.0 }, id))
            .filter(|(rate, _)| *rate >= LEAST_PER_SECOND)
            .collect();
        ranked.sort_by(|(a, first), (b, second)| b.total_cmp(a).then_with(|| first.cmp(second)));
        ranked.into_iter().take(room).map(|(_, id)| Arc::clone(id)).collect()
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
        let (candidates, fixed): (Vec<&StoredRule>, Vec<&StoredRule>) =
            rules.store.rules().partition(|stored| is_by_workers(stored, allowed));
        let held: HashSet<Arc<str>> = candidates
            .iter()
            .filter(|stored| stored.in_device)
            .map(|stored| Arc::clone(&stored.rule.id))
            .collect();
        let fixed: HashSet<Arc<str>> = fixed.iter().map(|stored| Arc::clone(&stored.rule.id)).collect();
        let state = if held.is_empty() { State::default() } else { self.observer.state() };
        let traffic = self.traffic(&candidates, &state);
        let ids: Vec<Arc<str>> = candidates.iter().map(|stored| Arc::clone(&stored.rule.id)).collect();
        rules.hot.measure(ids.into_iter().zip(traffic.iter().map(|traffic| traffic.packets)), now);
        let room = (allowed.device_rules_max as usize).saturating_sub(fixed.len());
        let chosen = rules.hot.choose(&held, room);
        rules.hot.rest_until = Some(now + INTERVAL);
        if chosen == held {
            return;
        }
        let all = fixed.union(&chosen).cloned().collect();
        match self.put_in_device(rules, &all) {
            Ok(()) => {
                tracing::debug!("{} hot rules at run time act in the device", chosen.len());
            }
            Err(why) => tracing::warn!("hot rules at run time stay with the workers: {why}"),
        }
        rules.hot.rest_until = Some(Instant::now() + INTERVAL.max(now.elapsed() * REST));
    }
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
            hot.measure(ids.into_iter().zip(counts), begun + Duration::from_secs(second));
        };
        let ids = |ids: &[&str]| ids.iter().map(|id| Arc::<str>::from(*id)).collect::<HashSet<_>>();
        count(&mut hot, 0, [0, 0, 0]);
        assert!(hot.choose(&ids(&[]), 2).is_empty(), "no rate is known");
        count(&mut hot, 1, [10_000, 50_000, 100]);
        assert_eq!(hot.choose(&ids(&[]), 3), ids(&["a", "b"]), "c is not worth a flow");
        assert_eq!(hot.choose(&ids(&[]), 1), ids(&["b"]));
        count(&mut hot, 2, [90_000, 100_000, 100]);
        // 42,500 and 37,500 packets per second.
        assert_eq!(hot.choose(&ids(&[]), 1), ids(&["a"]));
        assert_eq!(hot.choose(&ids(&["b"]), 1), ids(&["b"]), "too little for a move");
    }
}
