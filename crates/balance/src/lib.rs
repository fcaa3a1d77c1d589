//! Decides which entries of the indirection tables of groups move to other workers, so that workers are busy
//! for about the same time. Pure functions of samples: no device, no clock, no randomness.
//!
//! Loads are nanoseconds of a worker's time within a period. The busy time of a worker is measured; a sample
//! of its packets divides it among the entries of its tables (Barbette et al., "RSS++: load and state-aware
//! receive side scaling", CoNEXT 2019, divides it by counters of packets). Unlike RSS++, which computes a new
//! table in each period, [`Balancer`] moves few entries at a time, those first that disturb no flow.
//!
//! ```
//! use balance::{BalanceLimits, Balancer, EntrySample, GroupSample, PeriodSample, StepEnd};
//! use program::WorkerId;
//!
//! let small = EntrySample { cost: 10, largest_flow: 1, is_idle: false };
//! let table = [WorkerId(0), WorkerId(0), WorkerId(0), WorkerId(1)];
//! let group = GroupSample { table: &table, workers: &[WorkerId(0), WorkerId(1)], entries: &[small; 4] };
//! let busy_ns = [(WorkerId(0), 600), (WorkerId(1), 200)].into();
//! let period = PeriodSample { now_ns: 1000, period_ns: 1000, busy_ns: &busy_ns, groups: &[group] };
//! let steps = Balancer::new(BalanceLimits { small_flow_percent: 10, ..BalanceLimits::default() }).step(&period);
//! assert_eq!((steps[0].moves.len(), steps[0].end), (1, StepEnd::Balanced));
//! assert_eq!(steps[0].after_ns[&WorkerId(0)], 400);
//! ```
#![forbid(unsafe_code)]

mod balancer;
mod sample;
mod step;

pub use balancer::{BalanceLimits, Balancer};
pub use sample::{EntrySample, GroupSample, PeriodSample};
pub use step::{ElephantFlow, EntryMove, GroupStep, MoveOrder, StepEnd, largest_to_mean};
