//! Policers at chosen times: their rates and bursts, against a model on random arrivals, and with more
//! sources than a table has room for.

use std::collections::HashMap;

use packet::build::FrameBuilder;
use proptest::prelude::*;

use super::*;

const WHOLE: LimitShare = LimitShare { parts: 1, of: 1 };

fn packets(per_second: u32, burst: u64) -> RateLimit {
    RateLimit { burst, ..RateLimit::of_packets(per_second) }
}

fn bits(per_second: u64, burst: u64) -> RateLimit {
    RateLimit { burst, ..RateLimit::of(LimitUnit::Bits, per_second) }
}

fn limited(limit: RateLimit, share: LimitShare) -> Policer {
    Policer::new(Policing { sample: 1, limit: Some(limit) }, share)
}

/// A packet of so many bytes that nobody reads.
fn of_bytes(bytes: u32) -> PolicedPacket<'static> {
    PolicedPacket { bytes, frame: &[] }
}

/// How many packets pass of so many at each of these times.
fn passed(policer: &Policer, times_ns: impl Iterator<Item = u64>, each: usize) -> usize {
    let passes = |ns: u64| policer.refuses(&of_bytes(64), &mut || ns).is_none();
    times_ns.map(|ns| (0..each).filter(|_| passes(ns)).count()).sum()
}

#[test]
fn one_in_n_is_the_first_and_then_every_nth() {
    let policer = Policer::new(Policing { sample: 3, limit: None }, WHOLE);
    let mut clock = || panic!("a sample needs no clock");
    let chosen: Vec<bool> = (0..7).map(|_| policer.refuses(&of_bytes(64), &mut clock).is_none()).collect();
    assert_eq!(chosen, [true, false, false, true, false, false, true]);
}

#[test]
fn a_burst_passes_at_once_and_then_the_rate() {
    let policer = limited(packets(1000, 10), WHOLE);
    assert_eq!(passed(&policer, [5].into_iter(), 100), 10, "a burst");
    assert_eq!(passed(&policer, [5].into_iter(), 100), 0);
    // 3 s in steps of 1 us, with more packets than pass: 1000 of each second.
    let steps = (1..=3_000_000u64).map(|us| 5 + us * 1000);
    assert_eq!(passed(&policer, steps, 2), 3000);
    assert_eq!(passed(&policer, [3_600 * NS_PER_SECOND].into_iter(), 100), 10, "never more than a burst");
}

#[test]
fn slow_traffic_is_not_limited() {
    let policer = limited(packets(1000, 1), WHOLE);
    let steps = (0..2000u64).map(|ms| ms * 1_000_000);
    assert_eq!(passed(&policer, steps, 1), 2000);
    // 1,500 bytes each 12 ms are 1 Mbit/s.
    let policer = limited(bits(1_000_000, 1500), WHOLE);
    let at = |step: u64| policer.refuses(&of_bytes(1500), &mut || step * 12_000_001);
    assert_eq!((0..2000).filter_map(at).count(), 0);
}

#[test]
fn shares_of_workers_add_up_to_no_more_than_the_limit() {
    let shares = [(1, 7), (2, 7), (4, 7)].map(|(parts, of)| LimitShare { parts, of });
    let second = || (0..=100_000u64).map(|step| step * 10_000);
    let all: usize = shares.iter().map(|share| passed(&limited(packets(1000, 7), *share), second(), 1)).sum();
    assert!((1000..=1007).contains(&all), "{all}");
    // 64 bytes are 512 bits, so 1000 packets in a second.
    let all: usize =
        shares.iter().map(|share| passed(&limited(bits(512_000, 7 * 64), *share), second(), 1)).sum();
    assert!((1000..=1007).contains(&all), "{all}");
    let fastest = limited(packets(1_000_000_000, 1_000_000_000), WHOLE);
    assert_eq!(passed(&fastest, [0].into_iter(), 1000), 1000);
    let slowest = limited(packets(1, 1), LimitShare { parts: 1, of: 1 << 16 });
    let first_day = (0..86_400).map(|second| second * NS_PER_SECOND);
    assert_eq!(passed(&slowest, first_day, 1), 2, "one, and one after 65,536 s");
}

#[test]
fn the_extremes_of_rates_and_bursts_have_costs() {
    for unit in [LimitUnit::Packets, LimitUnit::Bits] {
        for rate in [*unit.rates().start(), *unit.rates().end()] {
            for share in [WHOLE, LimitShare { parts: 1, of: 1 << 16 }] {
                let least = Meter::new(RateLimit { burst: 1, ..RateLimit::of(unit, rate) }, share);
                assert!(least.cost(64) > 0 && least.cost(64) < u64::MAX, "{least:?}");
                let usual = RateLimit::of(unit, rate);
                let longest = usual.longest_burst().min(*unit.bursts().end());
                let meter = Meter::new(RateLimit { burst: longest, ..usual }, share);
                // Of the smallest share the burst is rounded up, beyond what there is room for.
                assert!(meter.full < u64::MAX || share != WHOLE, "{unit:?} {rate}: {meter:?}");
            }
        }
    }
}

#[test]
fn a_frame_longer_than_the_burst_passes_a_full_bucket() {
    // 8 Mbit/s are a byte each microsecond.
    let policer = limited(bits(8_000_000, 1000), WHOLE);
    let passes = |bytes, us: u64| policer.refuses(&of_bytes(bytes), &mut || us * 1000).is_none();
    assert!(passes(9000, 0), "the bucket is full");
    assert!(!passes(64, 8_000), "the debt is longer than a burst");
    assert!(passes(64, 8_100), "900 bytes of debt, and 64");
    assert!(!passes(9000, 8_200) && passes(9000, 9_100));
}

#[test]
fn a_clock_that_jumps_back_repays_nothing_twice() {
    let policer = limited(packets(1000, 1), WHOLE);
    let second = NS_PER_SECOND;
    assert_eq!(passed(&policer, [second].into_iter(), 1), 1);
    let jumps = (0..100).flat_map(|_| [0, second]);
    assert_eq!(passed(&policer, jumps, 1), 0);
    assert_eq!(passed(&policer, [second + 1_000_001].into_iter(), 2), 1);
}

#[test]
fn a_limit_counts_what_the_sample_leaves() {
    let policer = Policer::new(Policing { sample: 10, limit: Some(packets(1, 5)) }, WHOLE);
    let refused: Vec<_> = (0..100).map(|_| policer.refuses(&of_bytes(64), &mut || 0)).collect();
    let count = |wanted| refused.iter().filter(|refused| **refused == wanted).count();
    assert_eq!((count(None), count(Some(Disposition::NotSampled))), (5, 90));
    assert_eq!(count(Some(Disposition::RateLimited)), 5);
}

/// A frame with this source address.
fn from(source: &str) -> Vec<u8> {
    let source: IpAddr = source.parse().expect("an address");
    let other = if source.is_ipv4() { "192.0.2.1" } else { "2001:db8::1" };
    FrameBuilder::new()
        .ip(source, other.parse().expect("an address"))
        .udp(1, 53)
        .payload(b"per source")
        .build()
}

#[test]
fn each_source_has_a_limit_of_its_own() {
    let nets = SourceLimit { ipv4_bits: 24, ipv6_bits: 64, sources: 64 };
    let limit = RateLimit { per_source: Some(nets), ..packets(1, 3) };
    let policer = limited(limit, WHOLE);
    let passed = |frame: &[u8]| {
        let packet = PolicedPacket { bytes: frame.len() as u32, frame };
        (0..10).filter(|_| policer.refuses(&packet, &mut || 0).is_none()).count()
    };
    assert_eq!(passed(&from("10.0.0.1")), 3);
    assert_eq!(passed(&from("10.0.0.2")), 0, "the same network");
    assert_eq!(passed(&from("10.0.1.1")), 3);
    assert_eq!(passed(&from("2001:db8:0:1::1")), 3);
    assert_eq!(passed(&from("2001:db8:0:1:ffff::1")), 0, "the same network");
    assert_eq!(passed(&from("2001:db8:0:2::1")), 3);
    let arp = FrameBuilder::new().ether_type(packet::EtherType::ARP).payload(&[0; 28]).build();
    assert_eq!(passed(&arp), 3);
    assert_eq!(passed(&[0; 10]), 0, "packets without an IP header are one source");
}

/// A table that is full of busy sources: others share a bucket, and the busy ones keep theirs.
#[test]
fn sources_without_a_place_share_one_limit() {
    let meter = Meter::new(packets(1000, 2), WHOLE);
    let table = SourceTable::with_sets(SourceLimit::default(), 1);
    let source = |number: u32| Some(IpAddr::from(number.to_be_bytes()));
    let refuses = |number, ns| table.refuses(&meter, source(number), 64, ns);
    let places = SourceLimit::SET_PLACES as u32;
    assert!((0..places).all(|number| refuses(number, 1).is_none()), "each has a place");
    let others: Vec<_> = (100..200).map(|number| refuses(number, 1)).collect();
    assert_eq!(others.iter().filter(|refused| refused.is_none()).count(), 2, "the burst of one source");
    assert!(others[2..].iter().all(|refused| *refused == Some(Disposition::SourceOverflow)), "and counted");
    assert!((0..places).all(|number| refuses(number, 1).is_none()), "the second packet of a burst");
    assert_eq!(refuses(0, 1), Some(Disposition::RateLimited));
    // After 2 ms all buckets are full, and each place can have another source.
    let ms = 1_000_000;
    assert!((300..300 + places).all(|number| refuses(number, 2 * ms + 1).is_none()));
    assert!(refuses(0, 2 * ms + 1).is_none(), "the shared bucket is full again");
}

/// A new place begins with the debt of the bucket that its source may have shared.
#[test]
fn a_place_does_not_add_a_burst() {
    let meter = Meter::new(packets(1000, 10), WHOLE);
    let table = SourceTable::with_sets(SourceLimit::default(), 1);
    let source = |number: u32| Some(IpAddr::from(number.to_be_bytes()));
    let passes = |number, ns| table.refuses(&meter, source(number), 64, ns).is_none();
    for number in 0..SourceLimit::SET_PLACES as u32 {
        assert!(passes(number, 1));
    }
    let shared = (0..20).filter(|_| passes(99, 1)).count();
    // After 1 ms the places are full again, and the shared bucket has repaid one packet.
    let own = (0..20).filter(|_| passes(99, 1_000_001)).count();
    assert_eq!((shared, own), (10, 1), "not a second burst");
}

/// One packet of a trial.
#[derive(Clone, Debug)]
struct Arrival {
    /// Nanoseconds since the last one; the clock jumps back where negative.
    step_ns: i64,
    bytes: u32,
    source: u8,
}

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let step = prop_oneof![
        6 => Just(0i64),
        6 => 0..2_000_000i64,
        2 => 0..200_000_000i64,
        1 => -500_000_000..0i64,
        1 => Just(10_000_000_000_000i64),
    ];
    let arrival = (step, 60..=9000u32, any::<u8>()).prop_map(|(step_ns, bytes, source)| Arrival {
        step_ns,
        bytes,
        source,
    });
    prop::collection::vec(arrival, 1..400)
}

fn limits() -> impl Strategy<Value = RateLimit> {
    let of_packets = (1..100_000u32, 1..50u64).prop_map(|(rate, burst)| packets(rate, burst));
    let of_bits = (8_000..1_000_000_000u64, 1..100_000u64).prop_map(|(rate, burst)| bits(rate, burst));
    prop_oneof![of_packets, of_bits]
}

/// The times of arrivals, by a clock that begins at a second.
fn times(arrivals: &[Arrival]) -> Vec<u64> {
    let mut now = NS_PER_SECOND;
    let mut advance = |arrival: &Arrival| {
        now = now.saturating_add_signed(arrival.step_ns);
        now
    };
    arrivals.iter().map(&mut advance).collect()
}

/// One source of the model: an exact token bucket, in units of 1/10^9 of a packet or of a bit.
#[derive(Clone, Copy)]
struct ModelBucket {
    /// Below zero after a frame that is longer than a burst.
    tokens: i128,
    at_ns: u64,
}

/// A straightforward limiter: every source has a bucket, in a map without bounds.
struct Model {
    limit: RateLimit,
    buckets: HashMap<u8, ModelBucket>,
    latest_ns: u64,
}

impl Model {
    fn new(limit: RateLimit) -> Self {
        Self { limit, buckets: HashMap::new(), latest_ns: 0 }
    }

    fn full(&self) -> i128 {
        i128::from(self.limit.burst * self.limit.unit.per_burst_unit()) * i128::from(NS_PER_SECOND)
    }

    /// The tokens that a packet takes, and those that are there, of a burst.
    fn tokens(&mut self, arrival: &Arrival, now_ns: u64) -> (i128, i128) {
        let (full, rate) = (self.full(), i128::from(self.limit.per_second));
        self.latest_ns = self.latest_ns.max(now_ns);
        let latest_ns = self.latest_ns;
        let fresh = ModelBucket { tokens: full, at_ns: latest_ns };
        let bucket = self.buckets.entry(arrival.source).or_insert(fresh);
        let earned = i128::from(latest_ns - bucket.at_ns) * rate;
        *bucket = ModelBucket { tokens: (bucket.tokens + earned).min(full), at_ns: latest_ns };
        (cost(self.limit, arrival), bucket.tokens)
    }

    fn pay(&mut self, source: u8, cost: i128) {
        if let Some(bucket) = self.buckets.get_mut(&source) {
            bucket.tokens -= cost;
        }
    }
}

/// What a packet takes, in the units of [`ModelBucket`].
fn cost(limit: RateLimit, arrival: &Arrival) -> i128 {
    let units = match limit.unit {
        LimitUnit::Packets => 1,
        LimitUnit::Bits => 8 * i128::from(arrival.bytes),
    };
    units * i128::from(NS_PER_SECOND)
}

/// Checks that what passes in any window is at most what the rate gives in that time, and a burst or the
/// longest packet.
fn check_windows(limit: RateLimit, passed: &[(u64, i128)]) -> Result<(), TestCaseError> {
    let full = Model::new(limit).full();
    let most = passed.iter().map(|(_, cost)| *cost).max().unwrap_or(0).max(full);
    for (first, (begin_ns, _)) in passed.iter().enumerate() {
        let mut sum = 0;
        for (end_ns, cost) in &passed[first..] {
            sum += cost;
            let allowed = most + i128::from(end_ns - begin_ns) * i128::from(limit.per_second);
            prop_assert!(sum <= allowed, "{limit}: {sum} of {allowed} from {begin_ns} to {end_ns}");
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The limiter decides as the model does, except within a rounding of the limit.
    #[test]
    fn a_limit_of_sources_is_that_of_a_model(limit in limits(), arrivals in arrivals()) {
        // 256 sources in 512 sets: two rarely share one, 17 never.
        let table = SourceTable::with_sets(SourceLimit::default(), 512);
        let meter = Meter::new(limit, WHOLE);
        let mut model = Model::new(limit);
        let full = model.full();
        for (arrival, now_ns) in arrivals.iter().zip(times(&arrivals)) {
            let address = Some(IpAddr::from([10, 0, 0, arrival.source]));
            let refused = table.refuses(&meter, address, arrival.bytes, now_ns);
            prop_assert_ne!(refused, Some(Disposition::SourceOverflow));
            let (cost, tokens) = model.tokens(arrival, now_ns);
            let may_pass = tokens >= cost || tokens == full;
            // Costs are rounded up, by less than a packet in 1,000 arrivals.
            let slack = full / 1000 + cost / 100;
            let must_pass = tokens >= cost + slack;
            prop_assert!(refused.is_some() || may_pass, "{limit}: {arrival:?} passes with {tokens} of {cost}");
            prop_assert!(refused.is_none() || !must_pass, "{limit}: {arrival:?} is refused with {tokens} of {cost}");
            if refused.is_none() {
                model.pay(arrival.source, cost);
            }
        }
    }

    /// With more sources than places no source passes more than its limit, in any window.
    #[test]
    fn no_source_exceeds_its_limit_in_a_full_table(limit in limits(), arrivals in arrivals()) {
        let table = SourceTable::with_sets(SourceLimit::default(), 1);
        let meter = Meter::new(limit, WHOLE);
        let mut passed: HashMap<u8, Vec<(u64, i128)>> = HashMap::new();
        let mut latest_ns = 0;
        for (arrival, now_ns) in arrivals.iter().zip(times(&arrivals)) {
            latest_ns = now_ns.max(latest_ns);
            // Few enough that each is seen often, more than there are places.
            let source = arrival.source % 40;
            let address = Some(IpAddr::from([10, 0, 0, source]));
            if table.refuses(&meter, address, arrival.bytes, now_ns).is_none() {
                passed.entry(source).or_default().push((latest_ns, cost(limit, arrival)));
            }
        }
        for of_source in passed.values() {
            check_windows(limit, of_source)?;
        }
    }

    /// A limit on all packets, for a part of it.
    #[test]
    fn a_limit_holds_in_every_window(limit in limits(), arrivals in arrivals()) {
        let policer = limited(limit, WHOLE);
        let mut passed = Vec::new();
        let mut latest_ns = 0;
        for (arrival, now_ns) in arrivals.iter().zip(times(&arrivals)) {
            latest_ns = now_ns.max(latest_ns);
            if policer.refuses(&of_bytes(arrival.bytes), &mut || now_ns).is_none() {
                passed.push((latest_ns, cost(limit, arrival)));
            }
        }
        check_windows(limit, &passed)?;
    }
}
