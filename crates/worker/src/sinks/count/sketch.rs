//! The flows with the most packets, in fixed memory: the algorithm Space-Saving with its Stream-Summary
//! structure (Metwally, Agrawal, El Abbadi: "Efficient Computation of Frequent and Top-k Elements in Data
//! Streams", ICDT 2005).
//!
//! A sketch has `m` counters. A packet of a flow with a counter increments it. Any other packet takes over
//! the counter with the lowest count `min`, which becomes `min + 1` with an error of `min`. Why this is
//! right, for `n` packets: the counts add up to `n`, as each packet adds one to one counter, so `min <= n /
//! m`. A flow without a counter has at most `min` packets, as it had at most the count of its counter when it
//! lost it, and `min` never decreases. So `packets - error <= true <= packets`, and every flow with more than
//! `n / m` packets has a counter.
//!
//! Counters of equal count are in a bucket, buckets are in a list by count: an increment moves a counter to
//! the next bucket, in constant time. A hash table finds the counter of a flow; its hash has a secret key, so
//! that senders cannot choose flows that collide.
//!
//! One thread, the worker, updates the sketch and never waits. Others read the counters while it does: each
//! has a version that is odd while it changes its flow (a sequence lock as in Boehm, "Can Seqlocks Get Along
//! With Programming Language Memory Models?", MSPC 2012).

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use super::flow::{FlowHasher, Packed, WORDS};

/// The counters, shared with readers.
#[derive(Debug)]
pub(super) struct Counters(Box<[Slot]>);

#[derive(Debug, Default)]
struct Slot {
    /// Odd while the flow changes.
    version: AtomicU64,
    flow: [AtomicU64; WORDS],
    /// 0: not in use.
    packets: AtomicU64,
    error: AtomicU64,
    /// The bytes of the packets since the flow has the counter.
    bytes: AtomicU64,
}

/// A counter as read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) flow: Packed,
    /// At least the packets of the flow, at most `error` more.
    pub(super) packets: u64,
    pub(super) error: u64,
    /// At most the bytes of the flow.
    pub(super) bytes: u64,
}

impl Slot {
    #[inline]
    fn holds(&self, flow: &Packed) -> bool {
        self.flow.iter().zip(flow).all(|(word, wanted)| word.load(Relaxed) == *wanted)
    }

    fn take_over(&self, flow: &Packed, packets: u64, error: u64, bytes: u64) {
        let version = self.version.load(Relaxed);
        self.version.store(version.wrapping_add(1), Relaxed);
        // A reader that sees any of the stores below sees the odd version, too.
        fence(Release);
        self.flow.iter().zip(flow).for_each(|(word, value)| word.store(*value, Relaxed));
        self.packets.store(packets, Relaxed);
        self.error.store(error, Relaxed);
        self.bytes.store(bytes, Relaxed);
        self.version.store(version.wrapping_add(2), Release);
    }

    #[inline]
    fn add(&self, bytes: u64) {
        self.packets.store(self.packets.load(Relaxed) + 1, Relaxed);
        self.bytes.store(self.bytes.load(Relaxed).wrapping_add(bytes), Relaxed);
    }

    /// `None` if the flow changed meanwhile.
    fn try_read(&self) -> Option<Counted> {
        let before = self.version.load(Acquire);
        let read = Counted {
            flow: std::array::from_fn(|index| self.flow[index].load(Relaxed)),
            packets: self.packets.load(Relaxed),
            error: self.error.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
        };
        fence(Acquire);
        (before.is_multiple_of(2) && self.version.load(Relaxed) == before).then_some(read)
    }
}

/// Attempts to read a counter. The flow of a counter that changes during all of them is one of the least.
const ATTEMPTS: usize = 64;

impl Counters {
    /// The counters in use, in no order.
    pub(super) fn read(&self) -> Vec<Counted> {
        let read = |slot: &Slot| (0..ATTEMPTS).find_map(|_| slot.try_read());
        self.0.iter().filter_map(read).filter(|counted| counted.packets > 0).collect()
    }

    /// The number of counters.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// No counter, no bucket.
const NONE: u32 = u32::MAX;

/// The worker's side.
pub(super) struct Sketch {
    counters: Arc<Counters>,
    /// The nodes, one for each counter.
    nodes: Box<[Node]>,
    buckets: Box<[Bucket]>,
    /// The bucket of the lowest count.
    lowest: u32,
    /// The first unused bucket; `higher` leads to the next.
    free: u32,
    /// Counters in use.
    used: u32,
    table: Table,
    hasher: FlowHasher,
}

/// The place of a counter in the circular list of its bucket.
#[derive(Clone, Copy)]
struct Node {
    hash: u64,
    bucket: u32,
    previous: u32,
    next: u32,
}

/// The counters of one count, the one that has been there longest first.
#[derive(Clone, Copy)]
struct Bucket {
    count: u64,
    first: u32,
    lower: u32,
    higher: u32,
}

impl Sketch {
    /// With `len` counters, at least one; nothing is allocated later.
    pub(super) fn new(len: u32) -> Self {
        let len = len.clamp(1, NONE / 4);
        let slots = (0..len).map(|_| Slot::default()).collect();
        let node = Node { hash: 0, bucket: NONE, previous: NONE, next: NONE };
        let bucket = |index| Bucket {
            count: 0,
            first: NONE,
            lower: NONE,
            higher: if index + 1 < len { index + 1 } else { NONE },
        };
        Self {
            counters: Arc::new(Counters(slots)),
            nodes: vec![node; len as usize].into(),
            // There are never more buckets than counters.
            buckets: (0..len).map(bucket).collect(),
            lowest: NONE,
            free: 0,
            used: 0,
            table: Table::new(len as usize),
            hasher: FlowHasher::new(),
        }
    }

    /// Returns the counters, for readers.
    pub(super) fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// A packet of a flow.
    #[inline]
    pub(super) fn count(&mut self, flow: &Packed, bytes: u64) {
        let hash = self.hasher.hash(flow);
        let slots = &self.counters.0;
        match self.table.find(hash, |counter| slots[counter as usize].holds(flow)) {
            Some(counter) => {
                slots[counter as usize].add(bytes);
                self.increment(counter);
            }
            None => self.admit(flow, hash, bytes),
        }
    }

    fn admit(&mut self, flow: &Packed, hash: u64, bytes: u64) {
        if (self.used as usize) < self.nodes.len() {
            let counter = self.used;
            self.used += 1;
            self.counters.0[counter as usize].take_over(flow, 1, 0, bytes);
            self.set_flow(counter, hash);
            if self.lowest == NONE || self.buckets[self.lowest as usize].count > 1 {
                self.lowest = self.new_bucket(1, NONE, self.lowest);
            }
            self.append(counter, self.lowest);
        } else {
            let Bucket { count, first: counter, .. } = self.buckets[self.lowest as usize];
            self.table.remove(self.nodes[counter as usize].hash, counter, &self.nodes);
            self.counters.0[counter as usize].take_over(flow, count + 1, count, bytes);
            self.set_flow(counter, hash);
            self.increment(counter);
        }
    }

    fn set_flow(&mut self, counter: u32, hash: u64) {
        self.nodes[counter as usize].hash = hash;
        self.table.insert(hash, counter);
    }

    /// Moves a counter to the bucket of the next count.
    #[inline]
    fn increment(&mut self, counter: u32) {
        let node = self.nodes[counter as usize];
        let Bucket { count, higher, lower, .. } = self.buckets[node.bucket as usize];
        let joins = higher != NONE && self.buckets[higher as usize].count == count + 1;
        let is_alone = node.next == counter;
        match (joins, is_alone) {
            // Nothing has this count any more: the bucket stays where it is, with the next.
            (false, true) => self.buckets[node.bucket as usize].count += 1,
            (false, false) => {
                self.detach(counter, node);
                let bucket = self.new_bucket(count + 1, node.bucket, higher);
                self.append(counter, bucket);
            }
            (true, false) => {
                self.detach(counter, node);
                self.append(counter, higher);
            }
            (true, true) => {
                self.buckets[higher as usize].lower = lower;
                match lower {
                    NONE => self.lowest = higher,
                    lower => self.buckets[lower as usize].higher = higher,
                }
                self.buckets[node.bucket as usize].higher = self.free;
                self.free = node.bucket;
                self.append(counter, higher);
            }
        }
    }

    /// Takes a counter out of its bucket, which has others.
    fn detach(&mut self, counter: u32, node: Node) {
        self.nodes[node.previous as usize].next = node.next;
        self.nodes[node.next as usize].previous = node.previous;
        let bucket = &mut self.buckets[node.bucket as usize];
        if bucket.first == counter {
            bucket.first = node.next;
        }
    }

    /// Adds a counter to a bucket as the last.
    fn append(&mut self, counter: u32, bucket: u32) {
        let first = self.buckets[bucket as usize].first;
        let (previous, next) = if first == NONE {
            self.buckets[bucket as usize].first = counter;
            (counter, counter)
        } else {
            let last = self.nodes[first as usize].previous;
            self.nodes[last as usize].next = counter;
            self.nodes[first as usize].previous = counter;
            (last, first)
        };
        let node = &mut self.nodes[counter as usize];
        (node.bucket, node.previous, node.next) = (bucket, previous, next);
    }

    /// Takes an unused bucket. There is one: the caller's counter is in none, or in one with others.
    fn new_bucket(&mut self, count: u64, lower: u32, higher: u32) -> u32 {
        let index = self.free;
        let bucket = &mut self.buckets[index as usize];
        self.free = bucket.higher;
        *bucket = Bucket { count, first: NONE, lower, higher };
        if lower != NONE {
            self.buckets[lower as usize].higher = index;
        }
        if higher != NONE {
            self.buckets[higher as usize].lower = index;
        }
        index
    }
}

/// From hashes to counters: open addressing with linear probing, at most half full. Removal moves later
/// entries back (Knuth, "The Art of Computer Programming" 3, 6.4, algorithm R), so there are no tombstones
/// and no rehashing.
struct Table {
    /// The upper half of the hash and the counter, or [`EMPTY`].
    entries: Box<[u64]>,
    mask: usize,
}

const EMPTY: u64 = u64::MAX;

impl Table {
    fn new(len: usize) -> Self {
        let places = (2 * len).next_power_of_two();
        Self { entries: vec![EMPTY; places].into(), mask: places - 1 }
    }

    fn entry(hash: u64, counter: u32) -> u64 {
        hash & !u64::from(u32::MAX) | u64::from(counter)
    }

    #[inline]
    fn find(&self, hash: u64, holds: impl Fn(u32) -> bool) -> Option<u32> {
        let mut place = hash as usize & self.mask;
        loop {
            let entry = self.entries[place];
            if entry == EMPTY {
                return None;
            }
            let counter = entry as u32;
            if entry == Self::entry(hash, counter) && holds(counter) {
                return Some(counter);
            }
            place = (place + 1) & self.mask;
        }
    }

    fn insert(&mut self, hash: u64, counter: u32) {
        let mut place = hash as usize & self.mask;
        while self.entries[place] != EMPTY {
            place = (place + 1) & self.mask;
        }
        self.entries[place] = Self::entry(hash, counter);
    }

    /// The entry must be there; `nodes` have the hashes of all others.
    fn remove(&mut self, hash: u64, counter: u32, nodes: &[Node]) {
        let mut hole = hash as usize & self.mask;
        while self.entries[hole] as u32 != counter {
            hole = (hole + 1) & self.mask;
        }
        let mut place = hole;
        loop {
            place = (place + 1) & self.mask;
            let entry = self.entries[place];
            if entry == EMPTY {
                break;
            }
            // An entry may move to the hole unless its home is behind it.
            let home = nodes[entry as u32 as usize].hash as usize & self.mask;
            if place.wrapping_sub(home) & self.mask >= place.wrapping_sub(hole) & self.mask {
                self.entries[hole] = entry;
                hole = place;
            }
        }
        self.entries[hole] = EMPTY;
    }
}

#[cfg(test)]
mod tests;
