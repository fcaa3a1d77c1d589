//! The flows to choose from, and which of them have to be left to workers together.

use std::collections::{BTreeMap, BTreeSet};

use program::RuleId;

use crate::cost::saved_ps;
use crate::cube::{Cube, DST_MAC, HAS_IPV4, HAS_IPV6, Image, PROTOCOL, SRC_MAC, WORDS};
use crate::fit::mask_key::{MaskKey, splittable};
use crate::job::Job;
use crate::mask_index::{ByMask, MaskIndex};
use crate::rank::lower::{Candidate, CandidateId};
use crate::rank::order::{Ranked, RankedFlows, order_matters};
use crate::specs::Reading;

/// The most flows to choose from: the memory for what has to be left with each is quadratic, 128 MiB for so
/// many. Those after them are left to workers, which forces no earlier one to be left.
const MAX_ITEMS: usize = 1 << 15;

/// The most pairs of flows that have to be left together, 64 MiB. Flows that have more with earlier ones, and
/// all after them, are left to workers.
const MAX_PAIRS: usize = 1 << 24;

/// The most masks that are compared to find out which pairs of flows need not be left together. Without them
/// more flows are left to workers than must be.
const MAX_LOOKUPS: usize = 1 << 25;

/// A flow to choose or to leave to workers.
pub(super) struct Item {
    pub(super) id: CandidateId,
    pub(super) rule: RuleId,
    pub(super) key: MaskKey,
    pub(super) rank: u32,
    /// The time of workers that it saves, in proportion.
    pub(super) value: f64,
    /// Whether it has to be chosen: no worker can make up for it.
    pub(super) is_pinned: bool,
}

/// The flows of a program by what can be done with them.
pub(super) struct Items {
    /// The flows to choose from, by precedence.
    pub(super) list: Vec<Item>,
    /// The flows after them, which are too many to choose from.
    pub(super) beyond: Vec<Item>,
    /// The flows that copy, or are about sent packets, which no worker can decide.
    pub(super) fixed: Vec<CandidateId>,
    /// The flows behind the covers: the default's, and of rules at the end that match by headers alone.
    pub(super) behind: Vec<Ranked>,
    /// The masks of the two.
    pub(super) fixed_masks: BTreeSet<MaskKey>,
}

impl Items {
    pub(super) fn of(job: &Job<'_>, flows: &RankedFlows) -> Self {
        let RankedFlows { lowered, ranking } = flows;
        let default = RuleId::of(job.policy.rules.len());
        let candidate = |ranked: &Ranked| lowered.candidate(ranked.id);
        let is_last = |ranked: &&Ranked| {
            let Candidate { cube, rule, traps, .. } = candidate(ranked);
            *rule == default || *traps && !candidate(ranked).is_sent() && matches_headers_only(cube)
        };
        let behind = ranking.kept.iter().rev().take_while(is_last).count();
        let (kept, behind) = ranking.kept.split_at(ranking.kept.len() - behind);
        let is_open = |candidate: &Candidate| candidate.traps && !candidate.is_sent();
        let reading = Reading::of(job.profile);
        let mut volumes: BTreeMap<RuleId, f64> = BTreeMap::new();
        for candidate in kept.iter().map(candidate).filter(|candidate| is_open(candidate)) {
            *volumes.entry(candidate.rule).or_default() += volume(&candidate.cube);
        }
        let item = |ranked: &Ranked| {
            let Candidate { cube, rule, .. } = candidate(ranked);
            // A rule without packets is still worth more in hardware than nothing.
            let weight = job.weights.map_or(1.0, |weights| weights.of(*rule) as f64 + 1e-6);
            let saved = saved_ps(lowered.is_dropped(ranked.id)) as f64;
            let key = MaskKey::of(candidate(ranked), reading);
            let value = weight * saved * volume(cube) / volumes[rule];
            Item { id: ranked.id, rule: *rule, key, rank: ranked.rank, value, is_pinned: false }
        };
        // The device gives the first of equal matches of a rule all their packets.
        let mut seen: ByMask<(RuleId, Image, Image), ()> = ByMask::default();
        let is_first = |ranked: &&Ranked| {
            let Candidate { cube, rule, .. } = candidate(ranked);
            let Cube { value, mask, .. } = reading.as_matched(cube);
            !reading.is_ambiguous() || seen.insert((*rule, value, mask), ()).is_none()
        };
        let open = kept.iter().filter(|ranked| is_open(candidate(ranked))).filter(is_first);
        let fixed: Vec<CandidateId> =
            kept.iter().filter(|ranked| !is_open(candidate(ranked))).map(|ranked| ranked.id).collect();
        let own = fixed.iter().chain(behind.iter().map(|ranked| &ranked.id));
        let fixed_masks = own.map(|id| MaskKey::of(lowered.candidate(*id), reading)).collect();
        let mut items = Self {
            list: open.map(item).collect(),
            beyond: Vec::new(),
            fixed,
            behind: behind.to_vec(),
            fixed_masks,
        };
        items.pin(flows);
        items
    }

    /// The flows to choose from.
    pub(super) fn candidates<'f>(&self, flows: &'f RankedFlows) -> Vec<&'f Candidate> {
        self.list.iter().map(|item| flows.lowered.candidate(item.id)).collect()
    }

    /// Leaves all but the first so many flows to workers. Returns whether that is possible: a pinned one has
    /// to be chosen.
    pub(super) fn keep_first(&mut self, count: usize) -> bool {
        let is_possible = self.list.iter().skip(count).all(|item| !item.is_pinned);
        if is_possible {
            self.beyond = self.list.split_off(self.list.len().min(count));
        }
        is_possible
    }

    /// How many flows have no choice.
    pub(super) fn fixed_flows(&self) -> usize {
        self.fixed.len() + self.behind.len()
    }

    /// Pins the flows that overlap later ones that copy. Their packets would be copied.
    fn pin(&mut self, flows: &RankedFlows) {
        let candidate = |id: CandidateId| flows.lowered.candidate(id);
        let mut copies = MaskIndex::default();
        for id in self.fixed.iter().filter(|id| !candidate(**id).traps) {
            copies.add(&candidate(*id).cube, false, id.index(), 0);
        }
        if copies.len() == 0 {
            return;
        }
        for item in &mut self.list {
            let cube = candidate(item.id).cube;
            item.is_pinned = copies.any_overlapping(&cube, |copy| copy > item.id.index());
        }
    }
}

/// The part of a rule's packets that a flow of it gets, in proportion. Nearly all packets have a TCP or UDP
/// header, for which a rule on any protocol has flows of its own.
fn volume(cube: &Cube) -> f64 {
    const OTHER_PROTOCOLS: f64 = 1.0 / 16.0;
    let numbers = splittable();
    let bits: u32 = (0..WORDS).map(|word| (cube.mask[word] & numbers[word]).count_ones()).sum();
    let is_usual = cube.mask_of(PROTOCOL) != 0 || !(cube.has(HAS_IPV4) || cube.has(HAS_IPV6));
    (-f64::from(bits)).exp2() * if is_usual { 1.0 } else { OTHER_PROTOCOLS }
}

/// Whether a cube has conditions on headers and their types alone.
fn matches_headers_only(cube: &Cube) -> bool {
    let numbers = splittable();
    let addresses = [DST_MAC, SRC_MAC].iter().all(|slot| cube.mask_of(*slot) == 0);
    addresses && (0..WORDS).all(|word| cube.mask[word] & numbers[word] == 0)
}

/// A set of items.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct ItemSet(Vec<u64>);

impl ItemSet {
    pub(super) fn empty(items: usize) -> Self {
        Self(vec![0; items.div_ceil(64)])
    }

    pub(super) fn add(&mut self, item: usize) {
        self.0[item / 64] |= 1 << (item % 64);
    }

    pub(super) fn remove(&mut self, item: usize) {
        self.0[item / 64] &= !(1 << (item % 64));
    }

    pub(super) fn has(&self, item: usize) -> bool {
        self.0[item / 64] >> (item % 64) & 1 == 1
    }

    pub(super) fn add_all(&mut self, others: &Self) {
        self.0.iter_mut().zip(&others.0).for_each(|(own, other)| *own |= other);
    }

    pub(super) fn keep(&mut self, others: &Self) {
        self.0.iter_mut().zip(&others.0).for_each(|(own, other)| *own &= other);
    }

    pub(super) fn meets(&self, others: &Self) -> bool {
        self.0.iter().zip(&others.0).any(|(own, other)| own & other != 0)
    }

    pub(super) fn items(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(word, bits)| {
            let mut left = *bits;
            std::iter::from_fn(move || {
                let bit = left.checked_ilog2()?;
                left &= !(1 << bit);
                Some(word * 64 + bit as usize)
            })
        })
    }
}

/// The limits of the memory of a graph.
#[derive(Clone, Copy)]
pub(super) struct GraphLimits {
    items: usize,
    pairs: usize,
}

impl GraphLimits {
    pub(super) const MOST: Self = Self { items: MAX_ITEMS, pairs: MAX_PAIRS };
}

/// Which items share packets that no earlier one takes.
pub(super) struct Graph {
    /// The earlier ones of such pairs, by the later one.
    pub(super) before: Vec<Vec<u32>>,
    /// Each item with all that have to be left with it: the later ones of such pairs, and those of these.
    pub(super) after: Vec<ItemSet>,
}

impl Graph {
    /// The graph of as many of the first candidates as the limits allow.
    pub(super) fn of(candidates: &[&Candidate], limits: GraphLimits) -> Self {
        let candidates = &candidates[..candidates.len().min(limits.items)];
        let (mut index, mut met, mut lookups_left) = (MaskIndex::default(), Vec::new(), MAX_LOOKUPS);
        let mut before: Vec<Vec<u32>> = Vec::with_capacity(candidates.len());
        let mut pairs_left = limits.pairs;
        for (later, candidate) in candidates.iter().enumerate() {
            index.overlapping(&candidate.cube, &mut met);
            met.sort_unstable();
            let mut is_pair = |earlier: &usize| {
                let other = candidates[*earlier];
                if !order_matters(other, candidate) {
                    return false;
                }
                let shared = other.cube.and(&candidate.cube);
                shared.is_some_and(|shared| {
                    lookups_left == 0 || !index.is_contained_once(&shared, *earlier, &mut lookups_left)
                })
            };
            // Items are flows, of which there are far fewer than 2^32.
            let own: Vec<u32> =
                met.drain(..).filter(|earlier| is_pair(earlier)).map(|item| item as u32).collect();
            let Some(left) = pairs_left.checked_sub(own.len()) else { break };
            pairs_left = left;
            before.push(own);
            index.add(&candidate.cube, true, later, 0);
        }
        let count = before.len();
        let mut after: Vec<ItemSet> = vec![ItemSet::empty(count); count];
        for item in (0..count).rev() {
            after[item].add(item);
            let own = std::mem::replace(&mut after[item], ItemSet(Vec::new()));
            before[item].iter().for_each(|earlier| after[*earlier as usize].add_all(&own));
            after[item] = own;
        }
        Self { before, after }
    }

    /// How many candidates there was room for.
    pub(super) fn len(&self) -> usize {
        self.before.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cube::DST_PORT;
    use crate::rank::lower::ActionId;

    /// Flows of different rules that all overlap, of which no one contains another.
    fn candidates() -> Vec<Candidate> {
        let cube = |bit: usize| Cube::ANY.with(DST_PORT, 0, 1 << bit).expect("a bit of the port");
        let candidate = |rule: usize| Candidate {
            cube: cube(rule),
            rule: RuleId::of(rule),
            action: ActionId(0),
            traps: true,
            is_compared: false,
            is_cover: false,
        };
        (0..8).map(candidate).collect()
    }

    fn graph(items: usize, pairs: usize) -> Graph {
        let candidates = candidates();
        Graph::of(&candidates.iter().collect::<Vec<_>>(), GraphLimits { items, pairs })
    }

    #[test]
    fn a_graph_keeps_within_its_limits() {
        // Each flow is a pair with all before it.
        for (items, pairs, kept) in [(9, 28, 8), (9, 27, 7), (9, 3, 3), (5, 28, 5), (9, 0, 1), (0, 28, 0)] {
            let graph = graph(items, pairs);
            assert_eq!((graph.len(), graph.after.len()), (kept, kept), "{items} items, {pairs} pairs");
            assert!(graph.after.iter().enumerate().all(|(item, after)| after.items().count() == kept - item));
        }
    }

    #[test]
    fn pinned_flows_are_not_left_beyond_the_limits() {
        let reading = Reading::default();
        let item = |(place, candidate): (usize, &Candidate)| Item {
            id: CandidateId::of(place),
            rule: candidate.rule,
            key: MaskKey::of(candidate, reading),
            rank: 0,
            value: 1.0,
            is_pinned: place == 5,
        };
        let items = || Items {
            list: candidates().iter().enumerate().map(item).collect(),
            beyond: Vec::new(),
            fixed: Vec::new(),
            behind: Vec::new(),
            fixed_masks: BTreeSet::new(),
        };
        for (count, is_possible) in [(5, false), (6, true), (9, true)] {
            let mut items = items();
            assert_eq!(items.keep_first(count), is_possible, "{count}");
            let kept = if is_possible { count.min(8) } else { 8 };
            assert_eq!((items.list.len(), items.beyond.len()), (kept, 8 - kept));
        }
    }
}
