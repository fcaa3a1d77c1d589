//! Which packets of a rule with `sample` or `limit` a worker lets through ([`program::Policing`]).
//!
//! The state is allocated with the class table of a program and written by one worker only. It is shared as
//! atomics without locked instructions, as counters are, because the table is. A reload begins with full
//! buckets and new samples.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crossbeam::utils::CachePadded;
use program::{LimitShare, Outcome, Policing, Program, RateLimit, Verdict, WorkerId};

use crate::Disposition;

/// Chooses one packet of so many: the first, and then every N-th.
#[derive(Debug)]
pub(crate) struct OneIn {
    every: u32,
    /// Packets until the next that is chosen.
    left: AtomicU32,
}

impl OneIn {
    pub(crate) fn new(every: u32) -> Self {
        Self { every: every.max(1), left: AtomicU32::new(0) }
    }

    /// Whether the packet is chosen; only one thread may call this.
    #[inline]
    pub(crate) fn take(&self) -> bool {
        let left = self.left.load(Relaxed);
        self.left.store(left.checked_sub(1).unwrap_or(self.every - 1), Relaxed);
        left == 0
    }
}

/// A token bucket, in time: a packet costs the time between two packets at the rate, and time that passes is
/// credit. So nothing is lost to rounding, however often the bucket is filled.
#[derive(Debug)]
struct Bucket {
    /// The cost of one packet, in [`PARTS_OF_NS`]; rounded up, so that the rate is not exceeded.
    cost: u64,
    /// The most credit: the cost of a burst.
    full: u64,
    credit: AtomicU64,
    filled_at_ns: AtomicU64,
}

/// Parts of a nanosecond: at 10 million packets per second the error of the rate is below 0.001 %.
const PARTS_OF_NS: u64 = 1024;
const NS_PER_SECOND: u64 = 1_000_000_000;

impl Bucket {
    /// A full bucket for this share of a limit.
    fn new(limit: RateLimit, share: LimitShare) -> Self {
        let second = u128::from(NS_PER_SECOND * PARTS_OF_NS) * u128::from(share.of);
        let rate = u128::from(limit.packets_per_second.max(1)) * u128::from(share.parts.max(1));
        let cost = u64::try_from(second.div_ceil(rate)).unwrap_or(u64::MAX);
        let full = cost.saturating_mul(share.of_limit(limit).burst_packets.into());
        Self { cost, full, credit: AtomicU64::new(full), filled_at_ns: AtomicU64::new(0) }
    }

    /// Whether there is credit for a packet at this time, which never goes backwards.
    fn take(&self, now_ns: u64) -> bool {
        let elapsed_ns = now_ns.saturating_sub(self.filled_at_ns.load(Relaxed));
        self.filled_at_ns.store(now_ns, Relaxed);
        let earned = elapsed_ns.saturating_mul(PARTS_OF_NS);
        let credit = self.credit.load(Relaxed).saturating_add(earned).min(self.full);
        let left = credit.checked_sub(self.cost);
        self.credit.store(left.unwrap_or(credit), Relaxed);
        left.is_some()
    }
}

/// The state of one rule.
#[derive(Debug)]
pub(crate) struct Policer {
    /// `None`: all packets.
    sample: Option<OneIn>,
    bucket: Option<Bucket>,
}

impl Policer {
    fn new(policing: Policing, share: LimitShare) -> Self {
        Self {
            sample: (policing.sample > 1).then(|| OneIn::new(policing.sample)),
            bucket: policing.limit.map(|limit| Bucket::new(limit, share)),
        }
    }

    /// Why the next packet is not let through; `None`: it is. The limit applies to what the sample leaves.
    pub(crate) fn refuses(&self, now: &mut dyn FnMut() -> u64) -> Option<Disposition> {
        if self.sample.as_ref().is_some_and(|sample| !sample.take()) {
            return Some(Disposition::NotSampled);
        }
        let has_room = self.bucket.as_ref().is_none_or(|bucket| bucket.take(now()));
        (!has_room).then_some(Disposition::RateLimited)
    }
}

/// The policers of a program on one worker.
#[derive(Debug, Default)]
pub(crate) struct Policers {
    /// The place in the list or [`NONE`], by rule; empty if there are no places.
    places: Box<[u32]>,
    /// Padded, so that workers write to different cache lines.
    list: Box<[CachePadded<Policer>]>,
}

const NONE: u32 = u32::MAX;

impl Policers {
    pub(crate) fn of(program: &Program, worker: WorkerId) -> Self {
        let policed = program.policed_rules();
        if policed.is_empty() {
            return Self::default();
        }
        let mut places = vec![NONE; program.rules.len()];
        for (place, rule) in policed.iter().enumerate() {
            // There are at most 2^16 rules.
            places[rule.rule.index()] = place as u32;
        }
        let policer = |rule: &program::PolicedRule<'_>| Policer::new(rule.policing, rule.share(worker));
        let list = policed.iter().map(|rule| CachePadded::new(policer(rule))).collect();
        Self { places: places.into(), list }
    }

    /// The policer of packets that are delivered for a rule.
    #[inline]
    pub(crate) fn of_outcome(&self, outcome: &Outcome) -> Option<&Policer> {
        let place = *self.places.get(outcome.rule.index())?;
        let policer = self.list.get(place as usize)?;
        matches!(outcome.verdict, Verdict::Deliver(_)).then_some(policer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: LimitShare = LimitShare { parts: 1, of: 1 };

    fn limited(packets_per_second: u32, burst_packets: u32, share: LimitShare) -> Policer {
        let limit = Some(RateLimit { packets_per_second, burst_packets });
        Policer::new(Policing { sample: 1, limit }, share)
    }

    /// How many packets pass of so many at each of these times.
    fn passed(policer: &Policer, times_ns: impl Iterator<Item = u64>, each: usize) -> usize {
        let at = |ns: u64| (0..each).filter(move |_| policer.refuses(&mut || ns).is_none()).count();
        times_ns.map(at).sum()
    }

    #[test]
    fn one_in_n_is_the_first_and_then_every_nth() {
        let policer = Policer::new(Policing { sample: 3, limit: None }, WHOLE);
        let mut clock = || panic!("a sample needs no clock");
        let chosen: Vec<bool> = (0..7).map(|_| policer.refuses(&mut clock).is_none()).collect();
        assert_eq!(chosen, [true, false, false, true, false, false, true]);
    }

    #[test]
    fn a_burst_passes_at_once_and_then_the_rate() {
        let policer = limited(1000, 10, WHOLE);
        assert_eq!(passed(&policer, [5].into_iter(), 100), 10, "a burst");
        assert_eq!(passed(&policer, [5].into_iter(), 100), 0);
        // 3 s in steps of 1 us, with more packets than pass: 1000 of each second.
        let steps = (1..=3_000_000u64).map(|us| 5 + us * 1000);
        assert_eq!(passed(&policer, steps, 2), 3000);
        assert_eq!(passed(&policer, [3_600 * NS_PER_SECOND].into_iter(), 100), 10, "never more than a burst");
    }

    #[test]
    fn slow_traffic_is_not_limited() {
        let policer = limited(1000, 1, WHOLE);
        let steps = (0..2000u64).map(|ms| ms * 1_000_000);
        assert_eq!(passed(&policer, steps, 1), 2000);
    }

    #[test]
    fn shares_of_workers_add_up_to_no_more_than_the_limit() {
        let shares = [(1, 7), (2, 7), (4, 7)].map(|(parts, of)| LimitShare { parts, of });
        let second = || (0..=100_000u64).map(|step| step * 10_000);
        let all: usize = shares.iter().map(|share| passed(&limited(1000, 7, *share), second(), 1)).sum();
        assert!((1000..=1007).contains(&all), "{all}");
        let fastest = limited(1_000_000_000, 1_000_000_000, WHOLE);
        assert_eq!(passed(&fastest, [0].into_iter(), 1000), 1000);
        let slowest = limited(1, 1, LimitShare { parts: 1, of: 1 << 16 });
        let first_day = (0..86_400).map(|second| second * NS_PER_SECOND);
        assert_eq!(passed(&slowest, first_day, 1), 2, "one, and one after 65,536 s");
    }

    #[test]
    fn a_limit_counts_what_the_sample_leaves() {
        let limit = Some(RateLimit { packets_per_second: 1, burst_packets: 5 });
        let policer = Policer::new(Policing { sample: 10, limit }, WHOLE);
        let refused: Vec<_> = (0..100).map(|_| policer.refuses(&mut || 0)).collect();
        let count = |wanted| refused.iter().filter(|refused| **refused == wanted).count();
        assert_eq!((count(None), count(Some(Disposition::NotSampled))), (5, 90));
        assert_eq!(count(Some(Disposition::RateLimited)), 5);
    }
}
