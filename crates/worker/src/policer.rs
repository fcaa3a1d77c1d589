//! Which packets of a rule with `sample` or `limit` a worker lets through ([`program::Policing`]).
//!
//! The state is allocated with the class table of a program and written by one worker only. It is shared as
//! atomics without locked instructions, as counters are, because the table is. A reload begins with full
//! buckets and new samples.

use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crossbeam::utils::CachePadded;
use program::{LimitShare, LimitUnit, Outcome, Policing, Program, RateLimit, SourceLimit, Verdict, WorkerId};

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

/// Parts of a nanosecond: at 10 million packets per second the error of the rate is below 0.001 %.
const PARTS_OF_NS: u64 = 1024;
const NS_PER_SECOND: u64 = 1_000_000_000;
/// Fractions of such a part, in which the cost of a byte is kept: the error of 1 Tbit/s is below 0.001 %.
const BYTE_COST_BITS: u32 = 16;

/// A token bucket, in time: a packet costs the time between two such packets at the rate, and time that
/// passes repays debt. So nothing is lost to rounding, however often the bucket is filled. Without debt the
/// bucket is full.
#[derive(Debug, Default)]
struct Bucket {
    /// The debt that is not yet repaid, in [`PARTS_OF_NS`].
    debt: AtomicU64,
    at_ns: AtomicU64,
}

impl Bucket {
    /// The debt at this time. A time before the last one counts as the last one: a clock that jumps back
    /// repays nothing twice.
    #[inline]
    fn debt(&self, now_ns: u64) -> u64 {
        let elapsed_ns = now_ns.saturating_sub(self.at_ns.load(Relaxed));
        self.debt.load(Relaxed).saturating_sub(elapsed_ns.saturating_mul(PARTS_OF_NS))
    }

    /// Sets the debt at this time.
    #[inline]
    fn set(&self, debt: u64, now_ns: u64) {
        self.debt.store(debt, Relaxed);
        self.at_ns.store(self.at_ns.load(Relaxed).max(now_ns), Relaxed);
    }
}

/// A worker's part of a limit: what packets cost, and how much debt a bucket may have.
#[derive(Debug)]
struct Meter {
    /// The cost of a packet, whatever its length; 0 for a limit on bits.
    packet_cost: u64,
    /// The cost of a byte in fractions of a part; 0 for a limit on packets.
    byte_cost: u64,
    /// The cost of a burst.
    full: u64,
}

impl Meter {
    /// The share of a limit. Costs are rounded up, so that the rate is not exceeded.
    fn new(limit: RateLimit, share: LimitShare) -> Self {
        let burst = share.of_limit(limit).burst;
        let second = u128::from(NS_PER_SECOND * PARTS_OF_NS) * u128::from(share.of);
        let rate = u128::from(limit.per_second.max(1)) * u128::from(share.parts.max(1));
        let fitting = |cost: u128| u64::try_from(cost).unwrap_or(u64::MAX);
        match limit.unit {
            LimitUnit::Packets => {
                let packet_cost = fitting(second.div_ceil(rate));
                Self { packet_cost, byte_cost: 0, full: packet_cost.saturating_mul(burst) }
            }
            LimitUnit::Bits => {
                let byte_cost = fitting(((second * 8) << BYTE_COST_BITS).div_ceil(rate));
                let full = fitting((u128::from(byte_cost) * u128::from(burst)) >> BYTE_COST_BITS);
                Self { packet_cost: 0, byte_cost, full }
            }
        }
    }

    /// The cost of a packet of so many bytes.
    #[inline]
    fn cost(&self, bytes: u32) -> u64 {
        if self.byte_cost == 0 {
            return self.packet_cost;
        }
        let fractions = u128::from(self.byte_cost) * u128::from(bytes) + ((1 << BYTE_COST_BITS) - 1);
        u64::try_from(fractions >> BYTE_COST_BITS).unwrap_or(u64::MAX)
    }

    /// Whether the packet passes, for which the bucket then pays. A full bucket lets every packet pass, also
    /// one that costs more than a burst; otherwise the debt stays within the cost of a burst. So what passes
    /// in any time costs no more than that time, and a burst or the longest packet.
    #[inline]
    fn take(&self, bucket: &Bucket, bytes: u32, now_ns: u64) -> bool {
        let (debt, cost) = (bucket.debt(now_ns), self.cost(bytes));
        let after = debt.checked_add(cost).filter(|after| debt == 0 || *after <= self.full);
        bucket.set(after.unwrap_or(debt), now_ns);
        after.is_some()
    }
}

/// A limit with the state of its buckets.
#[derive(Debug)]
enum Limiter {
    /// One bucket for all packets.
    Whole(Meter, Bucket),
    /// A bucket for each source.
    Sources(Meter, SourceTable),
}

impl Limiter {
    fn new(limit: RateLimit, share: LimitShare) -> Self {
        let meter = Meter::new(limit, share);
        match limit.per_source {
            None => Self::Whole(meter, Bucket::default()),
            Some(sources) => Self::Sources(meter, SourceTable::new(sources)),
        }
    }

    fn refuses(&self, packet: &PolicedPacket<'_>, now_ns: u64) -> Option<Disposition> {
        match self {
            Self::Whole(meter, bucket) => {
                (!meter.take(bucket, packet.bytes, now_ns)).then_some(Disposition::RateLimited)
            }
            Self::Sources(meter, table) => {
                let address = packet::parse(packet.frame).key.src_addr();
                table.refuses(meter, address, packet.bytes, now_ns)
            }
        }
    }
}

/// The buckets of sources. A source has a place in one *set*, which a hash of its address chooses by a
/// secret, so that nobody can aim at the set of another source.
///
/// A place is given to another source only once its bucket is full: then nothing is forgotten. The sources of
/// a set without a place share one more bucket, with the limit of a single source, until a place of the set
/// is free. So no source passes more than its limit, whatever the others do, and a source that has a place is
/// not affected by them. The argument: take a bucket that only this source pays for. Its debt is never more
/// than that of the bucket by which the source is decided: not while the source has a place, not while it
/// shares a bucket, for which others pay, too; a new place begins with the debt of the shared bucket, and a
/// place is taken away without debt. So what these buckets let pass, that one does.
#[derive(Debug)]
struct SourceTable {
    limit: SourceLimit,
    secret: RandomState,
    /// Set after set; the number of sets is a power of two.
    places: Box<[SourcePlace]>,
    /// For each set, the bucket of the sources without a place.
    shared: Box<[Bucket]>,
    /// The latest time of all packets: the argument compares buckets, so all of them have one clock, which
    /// does not go back.
    latest_ns: AtomicU64,
}

/// The bucket of one source.
#[derive(Debug, Default)]
struct SourcePlace {
    /// 64 bits of the hash stand for the source: two sources have the same with a probability of 2^-64, and
    /// then share a bucket. 0: no source has had the place.
    fingerprint: AtomicU64,
    bucket: Bucket,
}

const _: () = assert!(size_of::<SourcePlace>() == SourceLimit::PLACE_BYTES, "`check` shows the memory");
const _: () = assert!(size_of::<Bucket>() == SourceLimit::SHARED_BYTES, "`check` shows the memory");

impl SourceTable {
    fn new(limit: SourceLimit) -> Self {
        Self::with_sets(limit, limit.sets())
    }

    fn with_sets(limit: SourceLimit, sets: usize) -> Self {
        debug_assert!(sets.is_power_of_two());
        Self {
            limit,
            secret: RandomState::new(),
            places: (0..sets * SourceLimit::SET_PLACES).map(|_| SourcePlace::default()).collect(),
            shared: (0..sets).map(|_| Bucket::default()).collect(),
            latest_ns: AtomicU64::new(0),
        }
    }

    /// Why a packet with this source address does not pass; `None`: it does.
    fn refuses(
        &self,
        meter: &Meter,
        address: Option<IpAddr>,
        bytes: u32,
        now_ns: u64,
    ) -> Option<Disposition> {
        let now_ns = now_ns.max(self.latest_ns.load(Relaxed));
        self.latest_ns.store(now_ns, Relaxed);
        let fingerprint = self.secret.hash_one(self.limit.key(address)).max(1);
        let set = (fingerprint >> 32) as usize & (self.shared.len() - 1);
        let shared = &self.shared[set];
        let places = &self.places[set * SourceLimit::SET_PLACES..][..SourceLimit::SET_PLACES];
        let mut free = None;
        for place in places {
            if place.fingerprint.load(Relaxed) == fingerprint {
                return (!meter.take(&place.bucket, bytes, now_ns)).then_some(Disposition::RateLimited);
            }
            if free.is_none() && place.bucket.debt(now_ns) == 0 {
                free = Some(place);
            }
        }
        let Some(place) = free else {
            return (!meter.take(shared, bytes, now_ns)).then_some(Disposition::SourceOverflow);
        };
        place.fingerprint.store(fingerprint, Relaxed);
        place.bucket.set(shared.debt(now_ns), now_ns);
        (!meter.take(&place.bucket, bytes, now_ns)).then_some(Disposition::RateLimited)
    }
}

/// The facts about a packet that a limit needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PolicedPacket<'p> {
    /// The length of the frame.
    pub(crate) bytes: u32,
    /// The frame, read by limits of sources only.
    pub(crate) frame: &'p [u8],
}

/// The state of one rule.
#[derive(Debug)]
pub(crate) struct Policer {
    /// `None`: all packets.
    sample: Option<OneIn>,
    limiter: Option<Limiter>,
}

impl Policer {
    fn new(policing: Policing, share: LimitShare) -> Self {
        Self {
            sample: (policing.sample > 1).then(|| OneIn::new(policing.sample)),
            limiter: policing.limit.map(|limit| Limiter::new(limit, share)),
        }
    }

    /// Why the packet is not let through; `None`: it is. The limit applies to what the sample leaves.
    pub(crate) fn refuses(
        &self,
        packet: &PolicedPacket<'_>,
        now: &mut dyn FnMut() -> u64,
    ) -> Option<Disposition> {
        if self.sample.as_ref().is_some_and(|sample| !sample.take()) {
            return Some(Disposition::NotSampled);
        }
        self.limiter.as_ref().and_then(|limiter| limiter.refuses(packet, now()))
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
mod tests;
