//! The part of a rule's packets that workers let through to its sinks: one in N, and at most so many packets
//! or bits per second, of the rule or of each source.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// The part of a rule's packets that is let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Policing {
    /// One of this many packets is let through; 1: all of them.
    pub sample: u32,
    /// The limit on the packets that the sample leaves.
    pub limit: Option<RateLimit>,
}

impl Default for Policing {
    fn default() -> Self {
        Self { sample: 1, limit: None }
    }
}

impl Policing {
    /// Whether every packet is let through.
    #[must_use]
    pub fn passes_all(&self) -> bool {
        self.sample <= 1 && self.limit.is_none()
    }

    /// The limit of each source, if the limit is one of sources.
    #[must_use]
    pub fn per_source(&self) -> Option<SourceLimit> {
        self.limit.and_then(|limit| limit.per_source)
    }

    /// An action with what is added to it: `deliver to dns, 1 in 100, at most 10k/s`.
    #[must_use]
    pub fn describe(&self, action: &str) -> String {
        if self.passes_all() { action.to_owned() } else { format!("{action}, {self}") }
    }
}

/// `1 in 100, at most 10k/s`
impl fmt::Display for Policing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.sample, self.limit) {
            (0 | 1, None) => f.write_str("all"),
            (0 | 1, Some(limit)) => write!(f, "at most {limit}"),
            (sample, None) => write!(f, "1 in {sample}"),
            (sample, Some(limit)) => write!(f, "1 in {sample}, at most {limit}"),
        }
    }
}

/// The unit of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LimitUnit {
    /// Packets; bursts are packets, too.
    Packets,
    /// Bits of frames, as a worker receives them: from the destination MAC address to the end of the
    /// payload, without frame check sequence, preamble and gap. Bursts are bytes.
    Bits,
}

impl LimitUnit {
    /// The rates that there are, in units per second.
    #[must_use]
    pub const fn rates(self) -> RangeInclusive<u64> {
        match self {
            Self::Packets => 1..=1_000_000_000,
            Self::Bits => 8_000..=1_000_000_000_000,
        }
    }

    /// The bursts that there are, in packets or bytes.
    #[must_use]
    pub const fn bursts(self) -> RangeInclusive<u64> {
        match self {
            Self::Packets => 1..=1_000_000_000,
            Self::Bits => 1..=1_000_000_000_000,
        }
    }

    /// The burst of a low rate that has none of its own.
    const fn usual_burst(self) -> u64 {
        match self {
            Self::Packets => 64,
            Self::Bits => 65_536,
        }
    }

    /// How many units of the rate one unit of the burst is.
    #[must_use]
    pub const fn per_burst_unit(self) -> u64 {
        match self {
            Self::Packets => 1,
            Self::Bits => 8,
        }
    }

    /// The part of a burst that lets a frame of the usual length through whole: one packet, or the bytes of a
    /// frame with an MTU of 1,500 and two VLAN tags.
    #[must_use]
    pub const fn frame_burst(self) -> u64 {
        match self {
            Self::Packets => 1,
            Self::Bits => 1_522,
        }
    }

    /// The word behind a rate in text.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Packets => "/s",
            Self::Bits => "bit/s",
        }
    }

    /// A burst in text: `500`, `64kB`.
    #[must_use]
    pub fn burst_text(self, burst: u64) -> String {
        match self {
            Self::Packets => burst.to_string(),
            Self::Bits => format!("{}B", scaled(burst)),
        }
    }
}

/// A number with the largest decimal prefix that leaves it whole: `1500`, `10k`, `3M`.
fn scaled(number: u64) -> String {
    let units = [(1_000_000_000_000, "T"), (1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")];
    match units.into_iter().find(|(unit, _)| number > 0 && number.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{}{name}", number / unit),
        None => number.to_string(),
    }
}

/// The most packets or bits of a rule that pass per second, over all its workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RateLimit {
    /// The unit that the limit counts.
    pub unit: LimitUnit,
    /// Units per second, on average.
    pub per_second: u64,
    /// How many packets or bytes may pass at once after a pause.
    pub burst: u64,
    /// For a limit of each source; `None`: the limit is one of all packets together.
    pub per_source: Option<SourceLimit>,
}

impl RateLimit {
    /// A burst is at most what the rate lets through in 208 days: workers count time in parts of nanoseconds,
    /// of which `u64` has room for so many.
    pub const LONGEST_BURST_SECONDS: u64 = 208 * 24 * 3600;

    /// A limit on packets with the usual burst: the packets of a tenth of a second, but at least 64.
    #[must_use]
    pub fn of_packets(per_second: u32) -> Self {
        Self::of(LimitUnit::Packets, per_second.into())
    }

    /// A limit with the usual burst: what passes in a tenth of a second, but at least 64 packets or 65,536
    /// bytes.
    #[must_use]
    pub fn of(unit: LimitUnit, per_second: u64) -> Self {
        let burst = (per_second / unit.per_burst_unit() / 10).max(unit.usual_burst());
        Self { unit, per_second, burst, per_source: None }
    }

    /// The longest burst that workers can count.
    #[must_use]
    pub fn longest_burst(self) -> u64 {
        self.per_second.saturating_mul(Self::LONGEST_BURST_SECONDS) / self.unit.per_burst_unit()
    }

    /// The text form of a policy: `10k/s`, `100Mbit/s`.
    #[must_use]
    pub fn rate_text(self) -> String {
        format!("{}{}", scaled(self.per_second), self.unit.suffix())
    }

    /// The text form of the burst: `500`, `64kB`.
    #[must_use]
    pub fn burst_text(self) -> String {
        self.unit.burst_text(self.burst)
    }
}

/// `10k/s`, `100Mbit/s per source`, `10k/s per source (IPv4 /24, IPv6 /56)`
impl fmt::Display for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rate_text())?;
        self.per_source.map_or(Ok(()), |sources| write!(f, " per source{}", sources.prefix_text()))
    }
}

/// `packets_per_second` and `burst_packets`, or `bits_per_second` and `burst_bytes`; with `per_source` if the
/// limit is one of sources.
impl Serialize for RateLimit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let (rate, burst) = key_names(self.unit);
        map.serialize_entry(rate, &self.per_second)?;
        map.serialize_entry(burst, &self.burst)?;
        if let Some(sources) = &self.per_source {
            map.serialize_entry("per_source", sources)?;
        }
        map.end()
    }
}

/// The names of rate and burst in JSON.
fn key_names(unit: LimitUnit) -> (&'static str, &'static str) {
    match unit {
        LimitUnit::Packets => ("packets_per_second", "burst_packets"),
        LimitUnit::Bits => ("bits_per_second", "burst_bytes"),
    }
}

/// The meaning of a source, and the number of sources that each worker distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct SourceLimit {
    /// The leading bits of an IPv4 source address that are compared; others are the same source.
    pub ipv4_bits: u8,
    /// The leading bits of an IPv6 source address that are compared.
    pub ipv6_bits: u8,
    /// How many sources a worker has room for.
    pub sources: u32,
}

impl Default for SourceLimit {
    /// A source is an IPv4 address, or the 64 bits of an IPv6 address that a host cannot choose.
    fn default() -> Self {
        Self { ipv4_bits: 32, ipv6_bits: 64, sources: 16_384 }
    }
}

/// The key of a source in a table: what of its address is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourceKey {
    /// Packets without an IP header; together they are one source.
    NoAddress,
    /// The leading bits of an IPv4 address, followed by zeros.
    Ipv4(u32),
    /// The leading bits of an IPv6 address, followed by zeros.
    Ipv6(u128),
}

impl SourceLimit {
    /// The numbers of sources that a table may have.
    pub const SOURCES: RangeInclusive<u32> = 64..=1 << 20;
    /// The most sources of all rules of a policy.
    pub const TOTAL_MAX: u64 = 1 << 22;
    /// The places of a set. A source has a place in one set of a table, chosen by its address and a secret.
    pub const SET_PLACES: usize = 16;
    /// The bytes of a place: the fingerprint of a source, and its bucket.
    pub const PLACE_BYTES: usize = 24;
    /// The bytes of the bucket that the sources of a set without a place share.
    pub const SHARED_BYTES: usize = 16;

    /// The sets of a table: with two places for each source, rounded up to a power of two. Where half of the
    /// places are in use, one source in 1,200 finds its set full.
    #[must_use]
    pub fn sets(self) -> usize {
        (2 * self.sources as usize).div_ceil(Self::SET_PLACES).next_power_of_two()
    }

    /// The memory of a table, in bytes.
    #[must_use]
    pub fn table_bytes(self) -> u64 {
        (self.sets() * (Self::SET_PLACES * Self::PLACE_BYTES + Self::SHARED_BYTES)) as u64
    }

    /// The source that a packet with this source address is of.
    #[must_use]
    pub fn key(self, address: Option<IpAddr>) -> SourceKey {
        match address {
            None => SourceKey::NoAddress,
            Some(IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.ipv4_bits.min(32))).unwrap_or(0);
                SourceKey::Ipv4(address.to_bits() & mask)
            }
            Some(IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.ipv6_bits.min(128))).unwrap_or(0);
                SourceKey::Ipv6(address.to_bits() & mask)
            }
        }
    }

    /// The source of a packet in text: `192.0.2.0/24`, or `packets without an IP address`.
    #[must_use]
    pub fn source_text(self, address: Option<IpAddr>) -> String {
        match self.key(address) {
            SourceKey::NoAddress => "packets without an IP address".to_owned(),
            SourceKey::Ipv4(bits) if self.ipv4_bits >= 32 => Ipv4Addr::from_bits(bits).to_string(),
            SourceKey::Ipv4(bits) => format!("{}/{}", Ipv4Addr::from_bits(bits), self.ipv4_bits),
            SourceKey::Ipv6(bits) if self.ipv6_bits >= 128 => Ipv6Addr::from_bits(bits).to_string(),
            SourceKey::Ipv6(bits) => format!("{}/{}", Ipv6Addr::from_bits(bits), self.ipv6_bits),
        }
    }

    /// Empty for whole IPv4 addresses and the usual prefix of IPv6: ` (IPv4 /24, IPv6 /56)`.
    fn prefix_text(self) -> String {
        let Self { ipv4_bits, ipv6_bits, .. } = self;
        match Self::default() {
            usual if (usual.ipv4_bits, usual.ipv6_bits) == (ipv4_bits, ipv6_bits) => String::new(),
            _ => format!(" (IPv4 /{ipv4_bits}, IPv6 /{ipv6_bits})"),
        }
    }
}

/// The value of `per` in a policy: `source`, or what is not usual about the sources.
impl fmt::Display for SourceLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (usual, mut keys) = (Self::default(), Vec::new());
        if self.ipv4_bits != usual.ipv4_bits {
            keys.push(format!("source_ipv4 = {}", self.ipv4_bits));
        }
        if self.ipv6_bits != usual.ipv6_bits {
            keys.push(format!("source_ipv6 = {}", self.ipv6_bits));
        }
        if self.sources != usual.sources {
            keys.push(format!("sources = {}", self.sources));
        }
        if keys.is_empty() { f.write_str("source") } else { write!(f, "{{ {} }}", keys.join(", ")) }
    }
}

/// The most packets or bits of a rule that one worker lets through.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimitPart {
    /// The unit that the limit counts.
    pub unit: LimitUnit,
    /// Units per second, on average; the parts of the rule's workers add up to the limit.
    pub per_second: f64,
    /// How many packets or bytes may pass at once after a pause: rounded up to a whole number.
    pub burst: u64,
}

/// `1250/s, burst 125`, or below one packet per second `1 in 8 s, burst 8`
impl fmt::Display for LimitPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unit, per_second: rate, burst } = *self;
        let decimals = |value: f64| usize::from(value.fract() != 0.0);
        match rate {
            // A part is at most the limit, which is below 2^53.
            _ if rate >= 1.0 && rate.fract() == 0.0 => {
                write!(f, "{}{}", scaled(rate as u64), unit.suffix())?;
            }
            _ if rate >= 1.0 => write!(f, "{rate:.1}{}", unit.suffix())?,
            _ => write!(f, "1 in {:.*} s", decimals(rate.recip()), rate.recip())?,
        }
        write!(f, ", burst {}", unit.burst_text(burst))
    }
}

/// The keys of [`RateLimit`], with a fraction where the limit cannot be divided.
impl Serialize for LimitPart {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let (rate, burst) = key_names(self.unit);
        map.serialize_entry(rate, &self.per_second)?;
        map.serialize_entry(burst, &self.burst)?;
        map.end()
    }
}

/// A worker's share of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitShare {
    /// The worker's parts.
    pub parts: u32,
    /// All parts.
    pub of: u32,
}

impl LimitShare {
    /// The worker's part of a limit.
    #[must_use]
    pub fn of_limit(self, limit: RateLimit) -> LimitPart {
        let of = self.of.max(1);
        let burst = (u128::from(limit.burst) * u128::from(self.parts)).div_ceil(of.into());
        LimitPart {
            unit: limit.unit,
            // Rates are below 2^53, which `f64` has exactly.
            per_second: limit.per_second as f64 * f64::from(self.parts) / f64::from(of),
            burst: u64::try_from(burst).unwrap_or(limit.burst).max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_written_as_in_a_policy() {
        let text = |rate| RateLimit::of_packets(rate).to_string();
        assert_eq!(
            [1, 1500, 10_000, 3_000_000, 1_000_000_000].map(text),
            ["1/s", "1500/s", "10k/s", "3M/s", "1G/s"]
        );
        let bits = |rate| RateLimit::of(LimitUnit::Bits, rate);
        assert_eq!(
            [64_000, 1_500_000, 100_000_000].map(bits).map(RateLimit::rate_text),
            ["64kbit/s", "1500kbit/s", "100Mbit/s"]
        );
        assert_eq!([64_000, 100_000_000].map(bits).map(RateLimit::burst_text), ["65536B", "1250kB"]);
        let policing = Policing { sample: 100, limit: Some(RateLimit::of_packets(10_000)) };
        assert_eq!(policing.describe("deliver to dns"), "deliver to dns, 1 in 100, at most 10k/s");
        assert_eq!(Policing::default().describe("drop"), "drop");
    }

    #[test]
    fn a_source_is_the_prefix_of_an_address() {
        let usual = SourceLimit::default();
        let nets = SourceLimit { ipv4_bits: 24, ipv6_bits: 56, sources: 100 };
        let text = |limit: SourceLimit, address: &str| limit.source_text(address.parse().ok());
        assert_eq!(text(usual, "192.0.2.77"), "192.0.2.77");
        assert_eq!(text(nets, "192.0.2.77"), "192.0.2.0/24");
        assert_eq!(text(usual, "2001:db8::1:2:3:4"), "2001:db8::/64");
        assert_eq!(text(nets, "2001:db8:0:1ff::1"), "2001:db8:0:100::/56");
        assert_eq!(text(nets, "none"), "packets without an IP address");
        assert_eq!(
            [usual, nets].map(|limit| limit.to_string()),
            ["source", "{ source_ipv4 = 24, source_ipv6 = 56, sources = 100 }"]
        );
        let limit = RateLimit { per_source: Some(nets), ..RateLimit::of_packets(10) };
        assert_eq!(limit.to_string(), "10/s per source (IPv4 /24, IPv6 /56)");
        let least = SourceLimit { ipv4_bits: 0, ipv6_bits: 0, ..usual };
        assert_eq!(least.key("192.0.2.1".parse().ok()), SourceKey::Ipv4(0));
    }

    #[test]
    fn a_table_has_two_places_for_each_source() {
        let bytes = |sources| SourceLimit { sources, ..SourceLimit::default() }.table_bytes();
        assert_eq!([64, 65, 16_384].map(bytes), [8 * 400, 16 * 400, 2048 * 400]);
    }

    #[test]
    fn limits_have_their_unit_in_json() {
        let json = |limit: RateLimit| serde_json::to_string(&limit).expect("plain data");
        let packets = RateLimit::of_packets(10_000);
        assert_eq!(json(packets), "{\"packets_per_second\":10000,\"burst_packets\":1000}");
        let bits =
            RateLimit { per_source: Some(SourceLimit::default()), ..RateLimit::of(LimitUnit::Bits, 8000) };
        let expected = "{\"bits_per_second\":8000,\"burst_bytes\":65536,\
            \"per_source\":{\"ipv4_bits\":32,\"ipv6_bits\":64,\"sources\":16384}}";
        assert_eq!(json(bits), expected);
        let part = LimitShare { parts: 1, of: 2 }.of_limit(bits);
        assert_eq!(part.to_string(), "4kbit/s, burst 32768B");
        let part = serde_json::to_string(&part).expect("plain data");
        assert_eq!(part, "{\"bits_per_second\":4000.0,\"burst_bytes\":32768}");
    }
}
