//! Which clients are connected, as workers see it, and which flows each gets.
//!
//! The server's thread makes a new [`Roster`] whenever a client comes or goes and puts it into the
//! [`RosterSlot`] of every worker. A worker looks into its slot once per iteration, which is a read of an
//! atomic, and gives the previous roster back through the same slot. So rosters, clients and mappings are
//! always dropped by the server's thread, when no worker has them any more.

use std::sync::Arc;

use crossbeam::queue::ArrayQueue;
use packet::{FlowKey, Layers};
use program::APP_CLIENTS_MAX;

use super::client::Client;

/// Parts into which flows are divided; a client gets whole parts.
pub(super) const BUCKETS: usize = 1024;
/// The most clients of one sink.
pub(super) const CLIENTS_MAX: usize = APP_CLIENTS_MAX as usize;

const _: () = assert!(CLIENTS_MAX <= u8::MAX as usize && CLIENTS_MAX <= BUCKETS);

/// A worker's place among all workers of the sink, by which it finds the rings that it reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkerPosition {
    pub(super) index: usize,
    /// The number of workers.
    pub(super) count: usize,
}

/// The connected clients at one moment.
#[derive(Debug)]
pub(super) struct Roster {
    pub(super) clients: Vec<Arc<Client>>,
    /// For each bucket the index of its client; without meaning if there is none.
    pub(super) buckets: [u8; BUCKETS],
    /// For each client the number of rings that clients before it have. So all rings from clients have
    /// numbers, and worker `w` of `n` reads the numbers `w`, `w + n` and so on.
    rings_before: Vec<usize>,
}

impl Roster {
    pub(super) fn new(clients: Vec<Arc<Client>>, buckets: [u8; BUCKETS]) -> Self {
        let mut rings = 0;
        let before = |client: &Arc<Client>| {
            rings += client.rings_back();
            rings - client.rings_back()
        };
        let rings_before = clients.iter().map(before).collect();
        Self { clients, buckets, rings_before }
    }

    /// The rings from a client that this worker reads, each once, the one with number `first` (modulo how
    /// many there are) first.
    #[inline]
    pub(super) fn rings_of(
        &self,
        client: usize,
        worker: WorkerPosition,
        first: usize,
    ) -> impl ExactSizeIterator<Item = usize> + use<> {
        let WorkerPosition { index, count: workers } = worker;
        let rings = self.clients.get(client).map_or(0, |client| client.rings_back());
        let before = self.rings_before.get(client).copied().unwrap_or_default();
        let least = (index + workers - before % workers) % workers;
        let count = rings.saturating_sub(least).div_ceil(workers);
        (0..count).map(move |number| least + (first + number) % count * workers)
    }

    /// The client that gets a frame.
    #[inline]
    pub(super) fn client_of(&self, frame: &[u8]) -> u8 {
        self.buckets[flow_hash(frame) as usize % BUCKETS]
    }
}

/// Between the server's thread and one worker.
#[derive(Debug)]
pub(super) struct RosterSlot {
    /// The latest roster that the worker has not taken.
    latest: ArrayQueue<Arc<Roster>>,
    /// The rosters that the worker has replaced.
    returned: ArrayQueue<Arc<Roster>>,
}

impl Default for RosterSlot {
    fn default() -> Self {
        Self { latest: ArrayQueue::new(1), returned: ArrayQueue::new(4) }
    }
}

impl RosterSlot {
    /// Replaces a roster that the worker has not taken.
    pub(super) fn publish(&self, roster: Arc<Roster>) {
        self.release();
        drop(self.latest.force_push(roster));
    }

    /// Drops what the worker has given back.
    pub(super) fn release(&self) {
        while self.returned.pop().is_some() {}
    }

    /// Called by the worker: replaces `roster` if there is a newer one.
    #[inline]
    pub(super) fn refresh(&self, roster: &mut Option<Arc<Roster>>) {
        if !self.latest.is_empty() {
            self.exchange(roster);
        }
    }

    #[cold]
    fn exchange(&self, roster: &mut Option<Arc<Roster>>) {
        // With no place for the old one the worker keeps it for now, so that it never drops one.
        if self.returned.is_full() {
            return;
        }
        if let Some(new) = self.latest.pop() {
            self.give_back(roster.replace(new));
        }
    }

    /// Called by the worker, also when its endpoint is closed.
    pub(super) fn give_back(&self, roster: Option<Arc<Roster>>) {
        if let Some(roster) = roster {
            let _ = self.returned.push(roster);
        }
    }
}

/// The owner of each bucket, by client id. A client that comes takes buckets only from those that have most,
/// and the buckets of one that goes are given to those that have fewest, so no other flow changes its client,
/// and the numbers of buckets differ by at most one.
#[derive(Debug)]
pub(super) struct Shares {
    owners: Vec<u64>,
}

/// The owner of buckets without a client.
const NOBODY: u64 = 0;

impl Default for Shares {
    fn default() -> Self {
        Self { owners: vec![NOBODY; BUCKETS] }
    }
}

impl Shares {
    /// Divides the buckets among these clients.
    pub(super) fn divide(&mut self, clients: &[u64]) {
        if clients.is_empty() {
            self.owners.fill(NOBODY);
            return;
        }
        let mut counts = vec![0usize; clients.len()];
        let index_of = |owner: u64| clients.iter().position(|client| *client == owner);
        let mut orphans = Vec::new();
        for (bucket, owner) in self.owners.iter().enumerate() {
            match index_of(*owner) {
                Some(client) => counts[client] += 1,
                None => orphans.push(bucket),
            }
        }
        // The first `more` clients, those with most buckets now, may have one more than the others.
        let (least, more) = (BUCKETS / clients.len(), BUCKETS % clients.len());
        let mut by_count: Vec<usize> = (0..clients.len()).collect();
        by_count.sort_by_key(|&client| std::cmp::Reverse(counts[client]));
        let mut wanted = vec![least; clients.len()];
        by_count.iter().take(more).for_each(|&client| wanted[client] += 1);
        for (bucket, owner) in self.owners.iter().enumerate() {
            if let Some(client) = index_of(*owner)
                && counts[client] > wanted[client]
            {
                counts[client] -= 1;
                orphans.push(bucket);
            }
        }
        let mut takers = (0..clients.len())
            .flat_map(|client| std::iter::repeat_n(client, wanted[client].saturating_sub(counts[client])));
        for bucket in orphans {
            if let Some(client) = takers.next() {
                self.owners[bucket] = clients[client];
            }
        }
    }

    /// The index of each bucket's client among `clients`.
    pub(super) fn table(&self, clients: &[u64]) -> [u8; BUCKETS] {
        let index = |owner: u64| clients.iter().position(|client| *client == owner).unwrap_or_default();
        // Below `CLIENTS_MAX`.
        std::array::from_fn(|bucket| index(self.owners[bucket]) as u8)
    }
}

/// A hash that is equal for all packets of a flow in both directions: of addresses, protocol and ports.
/// Fragments have no ports after the first, so the ports of none are used; packets without IP are divided by
/// their MAC addresses and type.
#[inline]
pub(super) fn flow_hash(frame: &[u8]) -> u32 {
    let key = FlowKey::of(frame);
    let (src, dst, rest) = if key.layers.intersects(Layers::IPV4 | Layers::IPV6) {
        let ports =
            key.layers.intersects(Layers::TCP | Layers::UDP) && !key.layers.contains(Layers::FRAGMENT);
        let (src_port, dst_port) = if ports { (key.src_port, key.dst_port) } else { (0, 0) };
        (endpoint(&key.src_ip, src_port), endpoint(&key.dst_ip, dst_port), u64::from(key.protocol))
    } else {
        let [src, dst] = [key.src_mac, key.dst_mac].map(|mac| {
            let [a, b, c, d, e, f] = mac.0;
            mix(u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
        });
        (src, dst, u64::from(key.ether_type) | 1 << 32)
    };
    // The sum is the same for both directions.
    (mix(src.wrapping_add(dst) ^ rest) >> 32) as u32
}

#[inline]
fn endpoint(ip: &[u8; 16], port: u16) -> u64 {
    let [high, low] = [ip.first_chunk::<8>(), ip.last_chunk::<8>()]
        .map(|half| half.map_or(0, |half| u64::from_be_bytes(*half)));
    mix(mix(high) ^ low.rotate_left(17) ^ u64::from(port) << 48 ^ u64::from(port))
}

/// The finalizer of MurmurHash3 for 64 bits: each bit of the input changes each bit of the output with
/// probability 1/2.
#[inline]
fn mix(mut word: u64) -> u64 {
    word ^= word >> 33;
    word = word.wrapping_mul(0xff51_afd7_ed55_8ccd);
    word ^= word >> 33;
    word = word.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ word >> 33
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use packet::build::FrameBuilder;
    use proptest::prelude::*;

    use super::*;

    fn counts(shares: &Shares) -> BTreeMap<u64, usize> {
        let mut counts = BTreeMap::new();
        shares.owners.iter().for_each(|owner| *counts.entry(*owner).or_default() += 1);
        counts
    }

    proptest! {
        #[test]
        fn buckets_are_divided_evenly_and_only_necessary_ones_move(
            changes in proptest::collection::vec((any::<bool>(), 0usize..64), 1..60),
        ) {
            let (mut shares, mut clients, mut next) = (Shares::default(), Vec::new(), 1);
            for (comes, which) in changes {
                let before = shares.owners.clone();
                let mut moved_by_need = 0;
                if comes && clients.len() < CLIENTS_MAX {
                    clients.push(next);
                    next += 1;
                    moved_by_need = BUCKETS.div_ceil(clients.len());
                } else if !clients.is_empty() {
                    let gone = clients.swap_remove(which % clients.len());
                    moved_by_need = before.iter().filter(|owner| **owner == gone).count();
                }
                shares.divide(&clients);
                let counts = counts(&shares);
                if !clients.is_empty() {
                    prop_assert_eq!(counts.keys().copied().collect::<Vec<_>>(), {
                        let mut sorted = clients.clone();
                        sorted.sort_unstable();
                        sorted
                    });
                    let (least, most) = (counts.values().min().unwrap(), counts.values().max().unwrap());
                    prop_assert!(most - least <= 1, "{counts:?}");
                }
                let moved = shares.owners.iter().zip(&before).filter(|(now, then)| now != then).count();
                prop_assert!(moved <= moved_by_need, "{} moved, {} needed", moved, moved_by_need);
            }
        }
    }

    #[test]
    fn both_directions_of_a_flow_have_one_hash_and_flows_spread() {
        let mut buckets = vec![0u32; 16];
        for host in 0..4096u32 {
            let [a, b, c, d] = (0x0a00_0000 + host).to_be_bytes();
            let (src, dst) = ([a, b, c, d].into(), [192, 0, 2, 1].into());
            let there = FrameBuilder::new().ipv4(src, dst).udp(1024, 53).build();
            let back = FrameBuilder::new().ipv4(dst, src).udp(53, 1024).build();
            assert_eq!(flow_hash(&there), flow_hash(&back));
            buckets[flow_hash(&there) as usize % 16] += 1;
        }
        assert!(buckets.iter().all(|count| (180..340).contains(count)), "{buckets:?}");
    }

    #[test]
    fn any_frame_has_a_hash() {
        for bytes in 0..64 {
            let _ = flow_hash(&vec![0x45; bytes]);
        }
    }
}
