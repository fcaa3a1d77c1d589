//! How evenly hashes spread flows over the workers of a group, and a search for a key and for weights that
//! spread them more evenly. Pure functions; the same flows give the same result.

use std::collections::{BTreeMap, BTreeSet};

use packet::{HASH_INPUT_BYTES, RSS_KEY_BYTES, RssKey, Toeplitz};
use policy::spread::{all_workers, entries_for, spread};
use program::WorkerId;

/// The most hashes that the search for a key computes.
const MAX_HASHES: usize = 1 << 26;
/// The most entries that the search for weights fills, counted for each worker.
const MAX_ENTRIES: usize = 1 << 26;
/// The most tables that the search for weights tries.
const MAX_TABLES: usize = 256;
/// The most moves of a unit of weight that are considered for a step.
const MAX_MOVES: usize = 64;
/// The weight that each worker has when the search for weights begins: one unit less is a few percent less.
const FIRST_WEIGHT: u32 = 16;
/// Less than this is no improvement.
const LEAST_IMPROVEMENT: f64 = 0.01;
/// The most workers that are recommended.
pub(super) const MAX_WORKERS: usize = 64;

/// The input of a packet's hash. Packets with equal inputs have equal hashes under every key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Input {
    bytes: [u8; HASH_INPUT_BYTES],
    length: u8,
}

impl Input {
    /// The first `length` bytes.
    pub(crate) fn new(mut bytes: [u8; HASH_INPUT_BYTES], length: usize) -> Self {
        bytes[length..].fill(0);
        Self { bytes, length: length as u8 }
    }

    /// The hash under a key.
    pub(crate) fn hash(&self, toeplitz: &Toeplitz) -> u32 {
        toeplitz.hash(&self.bytes[..self.length.into()])
    }

    /// Whether no key changes its hash.
    pub(super) fn is_empty(&self) -> bool {
        self.length == 0
    }
}

/// Hashes with the packets that have them.
pub(super) type Hashes = Vec<(u32, u64)>;

/// The hashes of flows under a key.
pub(super) fn hashes(flows: &[(Input, u64)], key: &RssKey) -> Hashes {
    let toeplitz = Toeplitz::new(key);
    flows.iter().map(|(input, packets)| (input.hash(&toeplitz), *packets)).collect()
}

/// The packets of each worker of a table.
pub(super) fn loads(hashes: &Hashes, table: &[WorkerId]) -> BTreeMap<WorkerId, u64> {
    // The length of a table is a power of two: the low bits of the hash are the index.
    let mut entries = vec![0; table.len()];
    for (hash, packets) in hashes {
        if let Some(entry) = entries.get_mut(*hash as usize & table.len().saturating_sub(1)) {
            *entry += packets;
        }
    }
    let mut loads = BTreeMap::new();
    for (worker, packets) in table.iter().zip(entries) {
        *loads.entry(*worker).or_insert(0) += packets;
    }
    loads
}

/// The packets of the busiest worker divided by the mean; 1 is perfectly even. `None`: there are no packets.
pub(super) fn largest_to_mean(loads: &BTreeMap<WorkerId, u64>) -> Option<f64> {
    let (largest, sum) = (loads.values().max()?, loads.values().sum::<u64>());
    (sum > 0).then(|| *largest as f64 * loads.len() as f64 / sum as f64)
}

/// A key and weights, and how even they are.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Found {
    pub(super) key: RssKey,
    pub(super) hashes: Hashes,
    /// With the table of the group.
    pub(super) largest_to_mean: f64,
    /// Other weights, and how even they are with this key; `None`: none are better.
    pub(super) weights: Option<(Vec<(u32, u32)>, f64)>,
    /// The keys that were compared, that of the group included.
    pub(super) keys: usize,
}

/// A group as far as the search needs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread<'g> {
    pub(super) table: &'g [WorkerId],
    pub(super) key: &'g RssKey,
    /// Whether another key must be symmetric as well.
    pub(super) symmetric: bool,
    /// Whether the device accepts tables of any workers, and so weights.
    pub(super) takes_weights: bool,
}

/// The best of so many keys besides that of the group, and weights that improve it. `None`: there are no
/// packets.
pub(super) fn search(flows: &[(Input, u64)], group: Spread<'_>, keys: usize) -> Option<Found> {
    let keys = keys.min(MAX_HASHES / flows.len().max(1));
    let mut best: Option<Found> = None;
    let others = (0..keys).map(|number| candidate(number as u64, group.symmetric));
    for key in [*group.key].into_iter().chain(others) {
        let hashes = hashes(flows, &key);
        let largest_to_mean = largest_to_mean(&loads(&hashes, group.table))?;
        // Of equal ones the first: the key of the group stays if no other is better.
        let is_better = |best: &Found| {
            let least = if best.key == *group.key { LEAST_IMPROVEMENT } else { 0.0 };
            largest_to_mean < best.largest_to_mean - least
        };
        if best.as_ref().is_none_or(is_better) {
            best = Some(Found { key, hashes, largest_to_mean, weights: None, keys: keys + 1 });
        }
    }
    let mut best = best?;
    if group.takes_weights {
        best.weights = weights(&best.hashes, group.table, best.largest_to_mean - LEAST_IMPROVEMENT);
    }
    Some(best)
}

/// A key that depends on its number alone: random bytes, or two of them repeated, which is symmetric.
fn candidate(number: u64, symmetric: bool) -> RssKey {
    let mut key = [0; RSS_KEY_BYTES];
    for (at, chunk) in key.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&mixed(number << 8 | at as u64).to_le_bytes()[..chunk.len()]);
    }
    if symmetric {
        // Without ones every hash is 0.
        let pair = [key[0] | 1, key[1]];
        key.iter_mut().zip(pair.iter().cycle()).for_each(|(octet, of)| *octet = *of);
    }
    RssKey(key)
}

/// The mixing function of splitmix64 (Steele, Lea and Flood, 2014).
fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Weights with which the table is more even than `best`, in steps: each takes a unit from the busiest worker
/// and gives it to the least busy one. A large flow may change its worker with a step, so that the next step
/// would undo it; as no weights are tried twice, the search goes on in the same direction then. A worker
/// keeps an entry of the table.
fn weights(hashes: &Hashes, table: &[WorkerId], mut best: f64) -> Option<(Vec<(u32, u32)>, f64)> {
    let workers = loads(hashes, table);
    let mut shares: Vec<(u32, u32)> = workers.keys().map(|worker| (worker.0, FIRST_WEIGHT)).collect();
    let tables = MAX_TABLES.min(MAX_ENTRIES / (table.len() * shares.len()).max(1));
    let mut tried = BTreeSet::new();
    let mut found = None;
    for _ in 0..tables {
        let loads = loads(hashes, &spread(&shares, table.len()));
        if loads.len() == shares.len() {
            let even = largest_to_mean(&loads)?;
            if even < best {
                best = even;
                found = Some((shares.clone(), even));
            }
        }
        tried.insert(shares.clone());
        let packets = |place: &usize| loads.get(&WorkerId(shares[*place].0)).copied().unwrap_or(0);
        let mut idlest_first: Vec<usize> = (0..shares.len()).collect();
        idlest_first.sort_by_key(packets);
        let moves = idlest_first.iter().rev().flat_map(|from| idlest_first.iter().map(|to| (*from, *to)));
        let moved = |(from, to): (usize, usize)| {
            let mut moved = shares.clone();
            moved[from].1 -= 1;
            moved[to].1 += 1;
            moved
        };
        let mut next =
            moves.filter(|(from, to)| from != to && shares[*from].1 > 1).map(moved).take(MAX_MOVES);
        match next.find(|moved| !tried.contains(moved)) {
            Some(moved) => shares = moved,
            None => break,
        }
    }
    found
}

/// The least number of workers of equal weights of which none receives more than `most_per_second` packets,
/// if all receive `per_second`.
pub(super) fn workers_for(
    hashes: &Hashes,
    table_size: usize,
    per_second: f64,
    most_per_second: f64,
    consecutive: bool,
) -> Option<usize> {
    let all: u64 = hashes.iter().map(|(_, packets)| packets).sum();
    (1..=MAX_WORKERS).filter(|count| !consecutive || count.is_power_of_two()).find(|count| {
        let size = if consecutive { *count } else { table_size.max(entries_for(*count) as usize) };
        let loads = loads(hashes, &spread(&all_workers(*count), size));
        let largest = loads.values().max().copied().unwrap_or(0);
        largest as f64 / all.max(1) as f64 * per_second <= most_per_second
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(port: u16, packets: u64) -> (Input, u64) {
        let mut bytes = [0; HASH_INPUT_BYTES];
        bytes[..8].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        bytes[8..10].copy_from_slice(&port.to_be_bytes());
        (Input::new(bytes, 12), packets)
    }

    fn group<'g>(table: &'g [WorkerId], key: &'g RssKey) -> Spread<'g> {
        Spread { table, key, symmetric: false, takes_weights: true }
    }

    /// The hash is linear: with a key that ignores the ports, all flows have one hash.
    #[test]
    fn flows_that_collide_under_a_key_are_spread_by_another() {
        let mut key = RssKey::MICROSOFT;
        key.0[8..].fill(0);
        let table = spread(&all_workers(4), 128);
        let flows: Vec<_> = (0..64).map(|port| flow(port, 10)).collect();
        let before = loads(&hashes(&flows, &key), &table);
        assert_eq!(largest_to_mean(&before), Some(4.0), "{before:?}");
        let found = search(&flows, group(&table, &key), 64).expect("packets");
        assert!(found.largest_to_mean < 1.3 && found.key != key, "{found:?}");
        assert_eq!(largest_to_mean(&loads(&found.hashes, &table)), Some(found.largest_to_mean));
        assert_eq!(search(&flows, group(&table, &key), 64), Some(found), "deterministic");
    }

    #[test]
    fn another_key_of_a_symmetric_group_is_symmetric() {
        for number in 0..100 {
            let RssKey(key) = candidate(number, true);
            assert!(key.chunks(2).all(|pair| pair == &key[..2]) && key[..2] != [0, 0], "{number}");
        }
        assert_ne!(candidate(1, true), candidate(2, true));
    }

    #[test]
    fn weights_even_out_what_keys_cannot() {
        let key = RssKey::MICROSOFT;
        let table = spread(&all_workers(2), 128);
        // A flow with a third of the packets, and many small ones.
        let flows: Vec<_> = (0..1000).map(|port| flow(port, if port == 0 { 500 } else { 1 })).collect();
        let found = search(&flows, group(&table, &key), 0).expect("packets");
        let (weights, even) = found.weights.expect("better weights");
        assert!(found.largest_to_mean > 1.2 && even < 1.1, "{weights:?} {even}");
        let again = loads(&found.hashes, &spread(&weights, 128));
        assert_eq!(largest_to_mean(&again), Some(even));
        let fixed = Spread { takes_weights: false, ..group(&table, &key) };
        assert_eq!(search(&flows, fixed, 0).expect("packets").weights, None);
    }

    #[test]
    fn as_many_workers_as_the_busiest_one_needs() {
        let flows: Vec<_> = (0..4096).map(|port| flow(port, 1)).collect();
        let even = hashes(&flows, &RssKey::MICROSOFT);
        let count = workers_for(&even, 128, 1000.0, 300.0, false).expect("enough workers");
        assert!((4..=5).contains(&count), "{count}");
        assert_eq!(workers_for(&even, 128, 1000.0, 300.0, true), Some(4));
        // Half of the packets are one flow, which no number of workers splits.
        let elephant = hashes(&[flow(1, 4096), flow(2, 4096)], &RssKey::MICROSOFT);
        assert_eq!(workers_for(&elephant, 128, 1000.0, 300.0, false), None);
    }
}
