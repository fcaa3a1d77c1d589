//! The decision, in steps of few moves.
//!
//! Each move takes an entry of load `l` from the fullest worker to the emptiest one, whose loads differ by
//! more than `l`. The sum of the squares of all loads becomes smaller by `2 l (difference - l)`, which is
//! positive, so no sequence of moves comes back to a table that was there before while the traffic stays the
//! same. Where it changes, or a sample is by chance uneven, three limits keep entries from going to and fro:
//! moves begin at a higher threshold than the one at which they end, a move has a least gain, and an entry
//! that has moved stays for a while.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use program::WorkerId;

use crate::sample::{GroupSample, PeriodSample, part_of};
use crate::step::{ElephantFlow, EntryMove, GroupStep, MoveOrder, StepEnd};

const NS_PER_S: u64 = 1_000_000_000;

/// Limits of a [`Balancer`]. Percentages are of the mean load of the workers of a group, unless they are said
/// to be of something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BalanceLimits {
    /// Moves begin when the fullest worker is further above the mean.
    pub start_percent: u32,
    /// Moves go on until the fullest worker is not further above the mean.
    pub stop_percent: u32,
    /// Nothing moves while the fullest worker is busy for a smaller part of the period.
    pub least_busy_percent: u32,
    /// The least part by which a move makes the difference of two workers smaller.
    pub least_gain_percent: u32,
    /// The largest load of a flow that is small ([`MoveOrder::Small`]).
    pub small_flow_percent: u32,
    /// An entry that has moved stays for this time.
    pub cooldown_ns: u64,
    /// The most moves of a step, for all groups.
    pub moves_per_step: u32,
    /// The most moves in a second, on average; what was not used is kept for a second.
    pub moves_per_second: u32,
}

impl Default for BalanceLimits {
    fn default() -> Self {
        Self {
            start_percent: 20,
            stop_percent: 5,
            least_busy_percent: 20,
            least_gain_percent: 2,
            small_flow_percent: 5,
            cooldown_ns: 10 * NS_PER_S,
            moves_per_step: 16,
            moves_per_second: 16,
        }
    }
}

/// Decides the moves of all groups, period by period. A policy with other groups or tables needs another one.
#[derive(Clone, Debug)]
pub struct Balancer {
    limits: BalanceLimits,
    groups: Vec<GroupHistory>,
    /// The time for which moves were not used, and when that was.
    unused_ns: u64,
    at_ns: Option<u64>,
    /// The group that is next to be the first.
    first: usize,
}

/// Former decisions about a group.
#[derive(Clone, Debug, Default)]
struct GroupHistory {
    /// Moves have begun, and the loads are not even yet.
    is_balancing: bool,
    /// The time at which each entry moved last.
    moved_ns: Vec<Option<u64>>,
}

impl Balancer {
    /// A balancer that has moved nothing.
    #[must_use]
    pub fn new(limits: BalanceLimits) -> Self {
        Self { limits, groups: Vec::new(), unused_ns: NS_PER_S, at_ns: None, first: 0 }
    }

    /// Decides the moves after a period, by group. They count as made. Groups take turns in who is first to
    /// use the moves of a step.
    pub fn step(&mut self, period: &PeriodSample<'_>) -> Vec<GroupStep> {
        let count = period.groups.len();
        self.groups.resize_with(count, GroupHistory::default);
        let elapsed_ns = period.now_ns.saturating_sub(self.at_ns.unwrap_or(period.now_ns));
        self.at_ns = Some(period.now_ns);
        self.unused_ns = self.unused_ns.saturating_add(elapsed_ns).min(NS_PER_S);
        let move_ns = NS_PER_S.checked_div(self.limits.moves_per_second.into()).map(|ns| ns.max(1));
        let moves = move_ns.map_or(0, |move_ns| self.unused_ns / move_ns);
        let allowed = moves.min(self.limits.moves_per_step.into());
        let mut left = allowed;
        let mut loads = period.busy_ns.clone();
        let entry_loads = period.entry_loads();
        let mut steps = BTreeMap::new();
        for index in (0..count).map(|turn| (turn + self.first) % count) {
            let history = &mut self.groups[index];
            history.moved_ns.resize(period.groups[index].table.len(), None);
            let group = &period.groups[index];
            let decision = GroupDecision {
                limits: &self.limits,
                period,
                group,
                entry_loads: &entry_loads[index],
                table: group.table.to_vec(),
                history,
            };
            steps.insert(index, decision.step(&mut loads, &mut left));
        }
        self.first = (self.first + 1) % count.max(1);
        self.unused_ns -= (allowed - left) * move_ns.unwrap_or(0);
        let mut steps: Vec<GroupStep> = steps.into_values().collect();
        for (step, group) in steps.iter_mut().zip(period.groups) {
            step.after_ns = loads_of(group, &loads);
        }
        steps
    }
}

/// The loads of the workers of a group.
fn loads_of(group: &GroupSample<'_>, loads: &BTreeMap<WorkerId, u64>) -> BTreeMap<WorkerId, u64> {
    group.workers.iter().map(|worker| (*worker, loads.get(worker).copied().unwrap_or(0))).collect()
}

/// The part of a load.
fn percent_of(load: u64, percent: u32) -> u64 {
    part_of(load, percent.into(), 100)
}

/// A group while its moves are decided.
struct GroupDecision<'d> {
    limits: &'d BalanceLimits,
    period: &'d PeriodSample<'d>,
    group: &'d GroupSample<'d>,
    entry_loads: &'d [u64],
    /// The table after the moves so far.
    table: Vec<WorkerId>,
    history: &'d mut GroupHistory,
}

impl GroupDecision<'_> {
    /// Moves entries until a limit is reached, and changes `loads` accordingly. A worker from which nothing
    /// can move is set aside: the others can still be balanced among themselves.
    fn step(mut self, loads: &mut BTreeMap<WorkerId, u64>, left: &mut u64) -> GroupStep {
        let before_ns = loads_of(self.group, loads);
        let mean = mean_of(before_ns.values().copied());
        let elephants = self.elephants(mean);
        let mut moves = Vec::new();
        let mut open: Vec<WorkerId> = before_ns.keys().copied().collect();
        let mut obstacle = None;
        let end = loop {
            let load = |worker: &WorkerId| loads.get(worker).copied().unwrap_or(0);
            open.sort_by_key(|worker| (load(worker), *worker));
            let (&[emptiest, .., fullest], open_mean) = (&open[..], mean_of(open.iter().map(load))) else {
                break obstacle.unwrap_or(StepEnd::OneWorker);
            };
            if load(&fullest) < percent_of(self.period.period_ns, self.limits.least_busy_percent) {
                break obstacle.unwrap_or(StepEnd::NotBusy);
            }
            let is_begun = self.history.is_balancing;
            let percent = if is_begun { self.limits.stop_percent } else { self.limits.start_percent };
            if load(&fullest) <= open_mean.saturating_add(percent_of(open_mean, percent)) {
                break obstacle.unwrap_or(StepEnd::Balanced);
            }
            let difference = load(&fullest) - load(&emptiest);
            match self.best_move(fullest, emptiest, difference, mean, &elephants) {
                Ok(_) if *left == 0 => break StepEnd::MovesUsed,
                Ok(best) => {
                    *loads.entry(best.from).or_default() -= best.load_ns;
                    *loads.entry(best.to).or_default() += best.load_ns;
                    *left -= 1;
                    self.table[best.entry] = best.to;
                    self.history.moved_ns[best.entry] = Some(self.period.now_ns);
                    self.history.is_balancing = true;
                    moves.push(best);
                }
                Err(why) => {
                    obstacle.get_or_insert(why);
                    open.pop();
                }
            }
        };
        // Other ends do not pass by themselves: moves begin again at the higher threshold.
        self.history.is_balancing = matches!(end, StepEnd::MovesUsed | StepEnd::MovedLately);
        GroupStep { moves, after_ns: before_ns.clone(), before_ns, elephants, end }
    }

    /// The flows with more load than the workers have when they are balanced.
    fn elephants(&self, mean: u64) -> Vec<ElephantFlow> {
        let most = mean.saturating_add(percent_of(mean, self.limits.stop_percent));
        let flow = |(entry, worker): (usize, &WorkerId)| {
            let load_ns = self.largest_flow(entry);
            (load_ns > most).then_some(ElephantFlow { entry, worker: *worker, load_ns })
        };
        self.group.table.iter().enumerate().filter_map(flow).collect()
    }

    /// The load of the largest flow of an entry.
    fn largest_flow(&self, entry: usize) -> u64 {
        let (Some(sample), Some(load)) = (self.group.entries.get(entry), self.entry_loads.get(entry)) else {
            return 0;
        };
        part_of(*load, sample.largest_flow.into(), sample.cost.into())
    }

    /// The move from one worker to the other, whose loads differ by `difference`, that disturbs flows least;
    /// of equal ones that which makes the difference smallest. `Err`: the reason why there is none.
    fn best_move(
        &self,
        from: WorkerId,
        to: WorkerId,
        difference: u64,
        mean: u64,
        elephants: &[ElephantFlow],
    ) -> Result<EntryMove, StepEnd> {
        let least_gain = percent_of(mean, self.limits.least_gain_percent).max(1);
        let small = percent_of(mean, self.limits.small_flow_percent);
        let (mut best, mut has_load, mut has_moved_lately) = (None, false, false);
        for (entry, load) in self.entry_loads.iter().copied().enumerate() {
            if self.table[entry] != from {
                continue;
            }
            has_load |= load > 0;
            // The difference becomes |difference - 2 load|.
            let gain = 2 * load.min(difference.saturating_sub(load));
            if gain < least_gain {
                continue;
            }
            let stays_until =
                self.history.moved_ns[entry].map(|at| at.saturating_add(self.limits.cooldown_ns));
            if stays_until.is_some_and(|until| self.period.now_ns < until) {
                has_moved_lately = true;
                continue;
            }
            let order = match self.group.entries[entry].is_idle {
                true => MoveOrder::Idle,
                false if self.largest_flow(entry) <= small => MoveOrder::Small,
                false => MoveOrder::Large,
            };
            let rank = (order, Reverse(gain), entry);
            if best.is_none_or(|(found, _)| rank < found) {
                best = Some((rank, EntryMove { entry, from, to, load_ns: load, order }));
            }
        }
        let has_elephant = || elephants.iter().any(|flow| self.table[flow.entry] == from);
        best.map(|(_, found)| found).ok_or_else(|| match () {
            () if has_moved_lately => StepEnd::MovedLately,
            () if !has_load => StepEnd::NotSampled,
            () if has_elephant() => StepEnd::Elephant,
            () => StepEnd::NoGain,
        })
    }
}

/// The mean, rounded down; 0 of nothing.
fn mean_of(loads: impl Iterator<Item = u64>) -> u64 {
    let (sum, count) = loads.fold((0u128, 0u128), |(sum, count), load| (sum + u128::from(load), count + 1));
    sum.checked_div(count).map_or(0, |mean| u64::try_from(mean).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
