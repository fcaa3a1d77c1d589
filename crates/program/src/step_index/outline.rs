//! The outline of a step: its most common tests as bounds and masks, side by side in one cache line. A leaf
//! compares outlines, and reads the predicate, which is in several places of the memory, only of steps that
//! have other tests, too.

use packet::{FlowKey, Layers};

use crate::predicate::{Outlined, Predicate};
use crate::question::{Question, Ranges, Value, alignment};

/// Fields beyond addresses, ports and protocol that outlines have.
pub(super) const COLUMNS_MAX: usize = 8;
/// Bits of such a field.
const COLUMN_BITS: u32 = 8;
/// Beside the bits of [`Layers`]: the packet has an IP header, as every one of SCTP has, whose bit it is; a
/// TCP or UDP header.
const HAS_IP: u16 = 1 << 14;
const HAS_PORTS: u16 = 1 << 15;
const IP: Layers = Layers::IPV4.union(Layers::IPV6);
const PORTS: Layers = Layers::TCP.union(Layers::UDP);
const _: () = assert!(Layers::SCTP.bits() == HAS_IP && Layers::all().bits() < HAS_PORTS);

/// Fields of at most eight bits that steps of the list test; each has a byte of [`OutlineKey::columns`].
pub(super) type Columns = Vec<Value>;

/// The part of a packet that outlines look at.
pub(super) struct OutlineKey {
    src: u64,
    dst: u64,
    columns: u64,
    src_port: u16,
    dst_port: u16,
    layers: u16,
    protocol: u8,
}

impl OutlineKey {
    #[inline]
    pub(super) fn of(key: &FlowKey, columns: &Columns) -> Self {
        let byte = |value: &Value| (value.of(key) >> (u128::BITS - COLUMN_BITS)) as u64;
        Self {
            src: upper(u128::from_be_bytes(key.src_ip)),
            dst: upper(u128::from_be_bytes(key.dst_ip)),
            columns: columns.iter().fold(0, |all, value| all << COLUMN_BITS | byte(value)),
            src_port: key.src_port,
            dst_port: key.dst_port,
            layers: key.layers.bits()
                | if key.layers.intersects(IP) { HAS_IP } else { 0 }
                | if key.layers.intersects(PORTS) { HAS_PORTS } else { 0 },
            protocol: key.protocol,
        }
    }
}

#[inline]
fn upper(value: u128) -> u64 {
    (value >> u64::BITS) as u64
}

/// Values from `low` on, as many as `span` and one more.
#[derive(Clone, Copy, Debug)]
struct Bounds<T> {
    low: T,
    span: T,
}

macro_rules! bounds {
    ($($word:ty),*) => {$(
        impl Bounds<$word> {
            const ALL: Self = Self { low: 0, span: <$word>::MAX };

            /// The bounds of ranges that are aligned to the left, and whether they are the ranges.
            fn of(ranges: &Ranges) -> (Self, bool) {
                let (Some((low, _)), Some((_, high))) = (ranges.first(), ranges.last()) else {
                    return (Self::ALL, false);
                };
                let shift = u128::BITS - <$word>::BITS;
                let [lowest, highest] = [low, high].map(|value| (value >> shift) as $word);
                let is_exact = ranges.len() == 1 && low.trailing_zeros() >= shift && high.trailing_ones() >= shift;
                (Self { low: lowest, span: highest - lowest }, is_exact)
            }

            #[inline]
            fn contains(self, value: $word) -> bool {
                value.wrapping_sub(self.low) <= self.span
            }
        }
    )*};
}
bounds!(u8, u16, u64);

/// Bounds of what a step matches.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Outline {
    src: Bounds<u64>,
    dst: Bounds<u64>,
    /// Value and mask.
    columns: (u64, u64),
    src_port: Bounds<u16>,
    dst_port: Bounds<u16>,
    protocol: Bounds<u8>,
    /// The packet has all of these, and none of the others.
    has: u16,
    lacks: u16,
    /// A packet that passes the outline matches.
    pub(super) is_exact: bool,
}

/// The columns for steps with these tests: what most steps test first.
pub(super) fn columns<'t>(tests: impl Iterator<Item = &'t (Question, Ranges)>) -> Columns {
    let mut counts: Vec<(usize, Value)> = Vec::new();
    for (question, _) in tests {
        let Question::Packet(value) = *question else { continue };
        let Value::Field(field) = value else { continue };
        if alignment(field) < u128::BITS - COLUMN_BITS || value == Value::PROTOCOL {
            continue;
        }
        match counts.iter_mut().find(|(_, known)| *known == value) {
            Some((count, _)) => *count += 1,
            None => counts.push((1, value)),
        }
    }
    counts.sort_unstable_by(|one, other| other.cmp(one));
    counts.into_iter().take(COLUMNS_MAX).map(|(_, value)| value).collect()
}

/// A value and a mask of eight bits that match the values of these ranges and no others, if there are such.
fn masked(ranges: &Ranges) -> Option<(u64, u64)> {
    let byte = |value: u128| (value >> (u128::BITS - COLUMN_BITS)) as u8;
    let (low, _) = ranges.first()?;
    let values = || ranges.iter().flat_map(|(low, high)| byte(*low)..=byte(*high));
    let differ = values().fold(0, |differ, value| differ | (value ^ byte(*low)));
    let is_whole = values().count() == 1 << differ.count_ones();
    is_whole.then(|| (u64::from(byte(*low) & !differ), u64::from(!differ)))
}

impl Outline {
    pub(super) fn of(predicate: &Predicate, tests: &[(Question, Ranges)], columns: &Columns) -> Self {
        let Outlined { has, has_any, lacks, is_complete } = predicate.outlined();
        let mut outline = Self {
            src: Bounds::<u64>::ALL,
            dst: Bounds::<u64>::ALL,
            columns: (0, 0),
            src_port: Bounds::<u16>::ALL,
            dst_port: Bounds::<u16>::ALL,
            protocol: Bounds::<u8>::ALL,
            has: has.bits(),
            lacks: lacks.bits(),
            // Its bit is that of any IP header.
            is_exact: is_complete && !has.contains(Layers::SCTP),
        };
        for layers in has_any {
            match layers {
                IP => outline.has |= HAS_IP,
                PORTS => outline.has |= HAS_PORTS,
                _ => outline.is_exact = false,
            }
        }
        for (number, (question, ranges)) in tests.iter().enumerate() {
            let is_first = tests.iter().take(number).all(|(earlier, _)| earlier != question);
            outline.is_exact &= match question {
                Question::Packet(value) if is_first => outline.bound(*value, ranges, columns),
                _ => false,
            };
        }
        outline
    }

    /// Adds a test; whether the outline then has all of it.
    fn bound(&mut self, value: Value, ranges: &Ranges, columns: &Columns) -> bool {
        let is_exact;
        match value {
            Value::Src => (self.src, is_exact) = Bounds::<u64>::of(ranges),
            Value::Dst => (self.dst, is_exact) = Bounds::<u64>::of(ranges),
            Value::SRC_PORT => (self.src_port, is_exact) = Bounds::<u16>::of(ranges),
            Value::DST_PORT => (self.dst_port, is_exact) = Bounds::<u16>::of(ranges),
            Value::PROTOCOL => (self.protocol, is_exact) = Bounds::<u8>::of(ranges),
            other => {
                let place = columns.iter().rev().position(|column| *column == other);
                let (Some(place), Some((value, mask))) = (place, masked(ranges)) else { return false };
                let shift = place as u32 * COLUMN_BITS;
                self.columns.0 |= value << shift;
                self.columns.1 |= mask << shift;
                is_exact = true;
            }
        }
        is_exact
    }

    /// Whether the step may match; all conditions together, because each alone is hard to predict.
    #[inline]
    pub(super) fn may_match(&self, sight: &OutlineKey) -> bool {
        self.src.contains(sight.src)
            & self.dst.contains(sight.dst)
            & self.src_port.contains(sight.src_port)
            & self.dst_port.contains(sight.dst_port)
            & self.protocol.contains(sight.protocol)
            & (sight.columns & self.columns.1 == self.columns.0)
            & (sight.layers & (self.has | self.lacks) == self.has)
    }
}
