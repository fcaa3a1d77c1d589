//! What `diff --live` found, as its JSON. Described in docs/reference/commands/diff.md.

use std::collections::BTreeMap;

use analysis::{Diff, Effect};
use policy::Policy;
use policy::policy::{Action, Direction};
use program::WorkerId;
use reports::Amount;
use serde::Serialize;

use super::estimate::{Estimate, RULE_OF_THREE};
use super::tally::{ChangeKey, ChangedPackets, Tally, WorkerLoad};
use crate::api::model::TracedPackets;
use crate::policy_diff::way;

const PS_PER_S: f64 = 1e12;

/// A sample of live packets under two policies.
#[derive(Debug, Serialize)]
pub(in crate::commands::diff) struct LiveReport {
    /// The time of the packets that were compared.
    pub(super) seconds: f64,
    /// The daemon ended the sample before its time.
    pub(super) ended_early: bool,
    /// One of so many packets was taken.
    pub(super) one_in: u32,
    /// The generation of the policy that was compared.
    pub(super) generation: u64,
    /// The packets that were compared.
    #[serde(flatten)]
    pub(super) compared: Amount,
    /// The rate of all packets that they stand for.
    pub(super) packets_per_second: f64,
    /// The packets for which something changes.
    pub(super) moved: Amount,
    /// `null`: no packet was compared.
    pub(super) moved_share: Option<Estimate>,
    /// The most packets that were too fast for the sample.
    pub(super) left_out: u64,
    pub(super) not_compared: NotCompared,
    /// The packets that could be sampled at all.
    pub(super) traced: TracedPackets,
    /// The changes that are most frequent first.
    pub(super) changes: Vec<LiveChange>,
    pub(super) workers: Vec<LiveWorker>,
    /// The shares of the packets that workers compare with rules; `null`: no packet was compared.
    pub(super) compared_by_workers: Option<Sides<f64>>,
}

/// Packets of the sample that were not compared.
#[derive(Debug, Serialize)]
pub(super) struct NotCompared {
    /// The packets under a policy that came into force meanwhile.
    pub(super) other_generations: u64,
    pub(super) copies: u64,
    pub(super) at_run_time: u64,
    pub(super) unreadable: u64,
    pub(super) differing: u64,
}

/// A figure under the old and under the new policy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Sides<T> {
    pub(super) before: T,
    pub(super) after: T,
}

/// The packets of a pair of effects.
#[derive(Debug, Serialize)]
pub(super) struct LiveChange {
    pub(super) direction: &'static str,
    pub(super) before: Effect,
    pub(super) after: Effect,
    #[serde(flatten)]
    pub(super) amount: Amount,
    pub(super) other_worker: u64,
    /// The reason why packets of it are missing in the sample; `null`: they are not.
    pub(super) not_seen: Option<Unseen>,
    /// The share of the packets that were compared; `null`: not known.
    pub(super) share: Option<Estimate>,
    pub(super) packets_per_second: Option<Estimate>,
    /// With 95 % there were fewer packets than this in the time of the sample; `null`: some were met, or that
    /// is not known.
    pub(super) fewer_than: Option<u64>,
    /// `null`: no packet was met.
    pub(super) example: Option<String>,
}

/// The reason why the daemon's sample lacks packets of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Unseen {
    /// The host sends them.
    Sent,
    /// They stay in the kernel.
    Kernel,
    /// The device drops them.
    Dropped,
    /// The packets themselves may be such ones, whatever becomes of their copies.
    Copies,
}

/// The load of a worker.
#[derive(Debug, Serialize)]
pub(super) struct LiveWorker {
    pub(super) worker: WorkerId,
    pub(super) before: LiveLoad,
    pub(super) after: LiveLoad,
}

#[derive(Debug, Serialize)]
pub(super) struct LiveLoad {
    /// The packets of the sample, copies included.
    pub(super) packets: u64,
    pub(super) packets_per_second: f64,
    /// The part of its time, by the model of costs.
    pub(super) load: f64,
}

/// The facts of a sample that are not in its packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampleFacts {
    pub(super) seconds: f64,
    pub(super) ended_early: bool,
    pub(super) one_in: u32,
    pub(super) generation: u64,
    pub(super) traced: TracedPackets,
}

impl LiveReport {
    /// `found`: the differences of the policies, `old`: the old one.
    pub(super) fn of(facts: SampleFacts, tally: &Tally<'_>, found: &Diff, old: &Policy) -> Self {
        let own = &tally.own;
        // From later generations on, packets are not counted.
        let seconds = tally.later_since.map_or(facts.seconds, |at| at.as_secs_f64());
        // The packets that one of the sample stands for.
        let weight = f64::from(facts.one_in) * (1.0 + tally.left_out as f64 / tally.lines.max(1) as f64);
        let per_second = weight / seconds.max(1e-9);
        let whole = own.all.packets;
        let fewer_than = (whole > 0 || tally.lines == 0).then(|| (RULE_OF_THREE * weight).ceil() as u64);
        let row = |(direction, [before, after], packets): (Direction, ChangeKey, ChangedPackets)| {
            let not_seen = unseen(direction, &before, old, facts.traced);
            let is_met = packets.amount.packets > 0;
            let share = Estimate::of_share(packets.amount.packets, whole).filter(|_| not_seen.is_none());
            LiveChange {
                direction: way(direction),
                before,
                after,
                amount: packets.amount,
                other_worker: packets.other_worker,
                not_seen,
                share,
                packets_per_second: share.map(|share| share.times(whole as f64 * per_second)),
                fewer_than: fewer_than.filter(|_| !is_met && not_seen.is_none()),
                example: is_met.then_some(packets.example),
            }
        };
        let mut changes: Vec<LiveChange> = changes(found, own.changes.clone()).into_iter().map(row).collect();
        changes.sort_by_key(|change| std::cmp::Reverse(change.amount.packets));
        let load = |load: WorkerLoad| LiveLoad {
            packets: load.packets,
            packets_per_second: load.packets as f64 * per_second,
            load: load.picoseconds as f64 / PS_PER_S * per_second,
        };
        let workers = own.workers.iter().map(|(worker, [before, after])| LiveWorker {
            worker: *worker,
            before: load(*before),
            after: load(*after),
        });
        let [before, after] = own.by_workers.map(|packets| packets as f64 / whole.max(1) as f64);
        let later = &tally.later;
        Self {
            seconds,
            ended_early: facts.ended_early,
            one_in: facts.one_in,
            generation: facts.generation,
            compared: own.all,
            packets_per_second: whole as f64 * per_second,
            moved: own.moved,
            moved_share: Estimate::of_share(own.moved.packets, whole),
            left_out: tally.left_out,
            not_compared: NotCompared {
                other_generations: later.all.packets + later.at_run_time + later.unreadable + later.differing,
                copies: tally.copies,
                at_run_time: own.at_run_time,
                unreadable: own.unreadable,
                differing: own.differing,
            },
            traced: facts.traced,
            changes,
            workers: workers.collect(),
            compared_by_workers: (whole > 0).then_some(Sides { before, after }),
        }
    }
}

/// The pairs of the policies with their packets. Where not all pairs were found, packets may have others.
fn changes(
    found: &Diff,
    mut met: BTreeMap<ChangeKey, ChangedPackets>,
) -> Vec<(Direction, ChangeKey, ChangedPackets)> {
    let mut changes = Vec::new();
    for pair in &found.pairs {
        let key = [pair.before.clone(), pair.after.clone()];
        let packets = match pair.direction {
            Direction::Ingress => met.remove(&key).unwrap_or_default(),
            Direction::Egress => ChangedPackets::default(),
        };
        changes.push((pair.direction, key, packets));
    }
    changes.extend(met.into_iter().map(|(key, packets)| (Direction::Ingress, key, packets)));
    changes
}

/// Returns why the sample lacks packets of a change, by the old policy's rule.
fn unseen(direction: Direction, before: &Effect, old: &Policy, traced: TracedPackets) -> Option<Unseen> {
    let TracedPackets { kernel, dropped } = traced;
    let rule = before.rule.map(|rule| old.rules.get(rule.index()));
    let action = rule.map(|rule| rule.map_or(old.default, |rule| rule.action));
    match (direction, action) {
        (Direction::Egress, _) => Some(Unseen::Sent),
        (Direction::Ingress, Some(Action::Kernel)) => (!kernel).then_some(Unseen::Kernel),
        (Direction::Ingress, Some(Action::Drop)) => (!dropped).then_some(Unseen::Dropped),
        (Direction::Ingress, Some(Action::Steer(_) | Action::Pass)) => None,
        (Direction::Ingress, None | Some(Action::Copy(_) | Action::Sniff(_))) => {
            (!(kernel && dropped)).then_some(Unseen::Copies)
        }
    }
}
