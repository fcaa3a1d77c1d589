//! The result of a decision, by group.

use std::collections::BTreeMap;

use program::WorkerId;
use serde::Serialize;

/// The way in which a move may disturb flows. Entries of an earlier kind move first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveOrder {
    /// No packet of the entry waits in a queue, so all flows stay in order.
    Idle,
    /// Packets of small flows may overtake others of their flow.
    Small,
    /// Packets of a flow that is not small may do so.
    Large,
}

/// An entry that moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct EntryMove {
    /// The place in the table.
    pub entry: usize,
    /// The worker before.
    pub from: WorkerId,
    /// The worker after.
    pub to: WorkerId,
    /// The load that moves with it, in nanoseconds of a period.
    pub load_ns: u64,
    /// The way in which it may disturb flows.
    pub order: MoveOrder,
}

/// A flow that needs more of a worker's time than balanced workers have, so that no table balances the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ElephantFlow {
    /// The entry that has the flow as its largest.
    pub entry: usize,
    /// The worker of the entry before the step.
    pub worker: WorkerId,
    /// The load of the flow, in nanoseconds of a period.
    pub load_ns: u64,
}

/// The reason why no more entries move in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StepEnd {
    /// The fullest worker is not further above the mean than the limits allow.
    Balanced,
    /// The group has one worker.
    OneWorker,
    /// The fullest worker is less busy than the limits ask for.
    NotBusy,
    /// Nothing was sampled of the entries of a worker that is too full.
    NotSampled,
    /// The most moves of a step, or of a second, are made.
    MovesUsed,
    /// Every entry whose move would help has moved lately.
    MovedLately,
    /// A worker is too full because of a flow that no table splits.
    Elephant,
    /// No move of an entry makes the difference of two workers smaller by the least gain.
    NoGain,
}

/// The decision about a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStep {
    /// The moves in their order; all can be made in one change of the table.
    pub moves: Vec<EntryMove>,
    /// The load of each worker of the group, for all groups, in nanoseconds of a period.
    pub before_ns: BTreeMap<WorkerId, u64>,
    /// The loads after the moves of all groups, if the traffic stays as it is.
    pub after_ns: BTreeMap<WorkerId, u64>,
    /// The flows that no table splits, in the order of their entries.
    pub elephants: Vec<ElephantFlow>,
    /// The reason why there are no more moves.
    pub end: StepEnd,
}

/// The load of the fullest worker divided by the mean; 1 is perfectly even. `None`: there is no load.
#[must_use]
pub fn largest_to_mean(loads: &BTreeMap<WorkerId, u64>) -> Option<f64> {
    let sum: u128 = loads.values().map(|load| u128::from(*load)).sum();
    let largest = *loads.values().max()?;
    (sum > 0).then(|| largest as f64 * loads.len() as f64 / sum as f64)
}
