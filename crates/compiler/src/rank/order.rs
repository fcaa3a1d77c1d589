//! Ranks candidates by overlap, into as few ranks as their order demands.
//!
//! A candidate must rank below every earlier one that traps packets it matches too, and below nothing else,
//! so its rank is the length of the longest chain of such candidates above it: fewer ranks would give two of
//! a chain the same priority, where the device may choose either. Two exceptions save ranks and change no
//! packet's outcome:
//! - A candidate that an earlier one contains is left out, because no packet reaches it.
//! - Two candidates need no order if an earlier candidate takes every packet that both match. For every
//!   packet, the first candidate that matches it still ranks above all others that do, as nothing earlier can
//!   settle those pairs.
//!
//! A candidate that copies traps nothing. Candidates that trap the copied packets may share its rank, because
//! within a priority copies are made first.

use crate::cube::Cube;
use crate::mask_index::{Front, MaskId, MaskIndex};
use crate::rank::lower::{Candidate, CandidateId, Lowered};

/// The most masks that are compared or looked up for candidates that make an order needless. Without them a
/// program has more ranks than it must, and is correct all the same.
const MAX_LOOKUPS: usize = 1 << 25;

/// A candidate that is kept, and its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ranked {
    pub(crate) id: CandidateId,
    pub(crate) rank: u32,
}

/// The candidates that are kept, with their ranks.
#[derive(Clone)]
pub(crate) struct Ranking {
    /// The kept candidates, by precedence.
    pub(crate) kept: Vec<Ranked>,
    /// A longest chain, first to last.
    pub(crate) longest: Vec<Ranked>,
}

impl Ranking {
    /// How many ranks there are.
    pub(crate) fn ranks(&self) -> u32 {
        self.kept.iter().map(|ranked| ranked.rank + 1).max().unwrap_or(0)
    }
}

/// Flows with their ranks.
#[derive(Clone)]
pub(crate) struct RankedFlows {
    /// All candidates, those that are not kept included.
    pub(crate) lowered: Lowered,
    pub(crate) ranking: Ranking,
}

/// Ranks the candidates.
pub(crate) fn order(lowered: Lowered) -> RankedFlows {
    let ranking = ranking(&lowered.candidates);
    RankedFlows { lowered, ranking }
}

/// The ranks of candidates, and those that are kept.
fn ranking(candidates: &[Candidate]) -> Ranking {
    let mut ranks = Ranks::default();
    let mut above: Vec<(u32, Option<CandidateId>)> = vec![(0, None); candidates.len()];
    let mut kept = Vec::new();
    let mut deepest: Option<Ranked> = None;
    for (index, candidate) in candidates.iter().enumerate() {
        if ranks.is_contained(&candidate.cube, index) {
            continue;
        }
        above[index] = ranks.rank_of(candidates, candidate, index);
        let ranked = Ranked { id: CandidateId::of(index), rank: above[index].0 };
        ranks.add(candidate, ranked);
        kept.push(ranked);
        if deepest.is_none_or(|deepest| ranked.rank > deepest.rank) {
            deepest = Some(ranked);
        }
    }
    let mut longest = Vec::new();
    let mut link = deepest.map(|ranked| ranked.id);
    while let Some(id) = link {
        let (rank, next) = above[id.index()];
        longest.push(Ranked { id, rank });
        link = next;
    }
    longest.reverse();
    Ranking { kept, longest }
}

/// The candidates that are kept so far.
pub(crate) struct Ranks {
    index: MaskIndex,
    /// The masks, those with the greatest ranks first: once such a rank is found, the rest cannot matter.
    by_depth: Vec<MaskId>,
    lookups_left: usize,
}

impl Default for Ranks {
    fn default() -> Self {
        Self { index: MaskIndex::default(), by_depth: Vec::new(), lookups_left: MAX_LOOKUPS }
    }
}

impl Ranks {
    pub(crate) fn add(&mut self, candidate: &Candidate, Ranked { id, rank }: Ranked) {
        let (mask, deepest_before) = self.index.add(&candidate.cube, candidate.traps, id.index(), rank);
        if deepest_before.is_none() {
            self.by_depth.push(mask);
        }
        if rank > deepest_before.unwrap_or(0) {
            self.move_forward(mask);
        }
    }

    /// Brings a mask whose greatest rank has grown to its place.
    fn move_forward(&mut self, mask: MaskId) {
        let Some(mut place) = self.by_depth.iter().position(|other| *other == mask) else { return };
        while place > 0 && self.index.deepest(self.by_depth[place - 1]) < self.index.deepest(mask) {
            self.by_depth.swap(place - 1, place);
            place -= 1;
        }
    }

    /// Whether one candidate before `limit` that traps packets contains the cube.
    fn is_contained(&mut self, cube: &Cube, limit: usize) -> bool {
        self.index.is_contained(cube, limit, &mut 0)
    }

    /// Returns whether the packets that two candidates share are contained; `cost` is lowered by the masks
    /// compared.
    pub(crate) fn is_part_contained(&self, part: &Cube, limit: usize, cost: &mut usize) -> bool {
        self.index.is_contained_once(part, limit, cost)
    }

    /// The candidates before `limit` that overlap the cube and have at least this rank, in their order, with
    /// their ranks.
    pub(crate) fn overlapping(&mut self, cube: &Cube, limit: usize, rank: u32) -> Vec<(usize, u32)> {
        let mut met = Vec::new();
        let front = Front::of(cube);
        for mask in &self.by_depth {
            if self.index.deepest(*mask) < rank {
                break;
            }
            if !self.index.differs(*mask, &front) && self.index.may_overlap(*mask, cube) {
                self.index.overlapping_from(*mask, cube, rank, &mut met);
            }
        }
        met.retain(|(other, _)| *other < limit);
        met.sort_unstable();
        met
    }

    /// The rank that a candidate takes below those before `limit`, none of which contains it, and the one
    /// right above it.
    pub(crate) fn rank_of(
        &mut self,
        candidates: &[Candidate],
        candidate: &Candidate,
        limit: usize,
    ) -> (u32, Option<CandidateId>) {
        let (mut rank, mut above) = (0, None);
        let mut met = Vec::new();
        let by_depth = std::mem::take(&mut self.by_depth);
        let front = Front::of(&candidate.cube);
        for mask in by_depth.iter().copied() {
            let deepest = self.index.deepest(mask);
            if deepest < rank {
                break;
            }
            if self.index.differs(mask, &front) {
                continue;
            }
            // A copy and a later flow that traps the packet may share a priority.
            let step = u32::from(self.index.traps(mask) || !candidate.traps);
            let is_idle = deepest + step <= rank || !self.index.may_overlap(mask, &candidate.cube);
            // No entry contains the candidate.
            if is_idle || self.index.contains_or_differs(mask, &candidate.cube.mask) {
                continue;
            }
            met.clear();
            self.index.overlapping_from(mask, &candidate.cube, (rank + 1).saturating_sub(step), &mut met);
            for (other, other_rank) in met.iter().copied() {
                if other_rank + step > rank
                    && other < limit
                    && order_matters(&candidates[other], candidate)
                    && !self.is_settled(candidates, other, candidate)
                {
                    rank = other_rank + step;
                    above = Some(CandidateId::of(other));
                }
            }
        }
        self.by_depth = by_depth;
        (rank, above)
    }

    /// Whether one candidate before both traps all packets that they share.
    fn is_settled(&mut self, candidates: &[Candidate], earlier: usize, candidate: &Candidate) -> bool {
        if self.lookups_left == 0 {
            return false;
        }
        // Cubes whose shared part is empty need no order either.
        let shared: Option<Cube> = candidates[earlier].cube.and(&candidate.cube);
        shared.is_none_or(|shared| self.index.is_contained(&shared, earlier, &mut self.lookups_left))
    }
}

/// Flows of one rule with equal actions may overlap at one rank, but for covers and flows of the default.
pub(crate) fn order_matters(one: &Candidate, other: &Candidate) -> bool {
    one.rule != other.rule || one.action != other.action || one.is_cover != other.is_cover
}

#[cfg(test)]
mod tests {
    use program::RuleId;

    use super::*;
    use crate::cube::{DST_PORT, HAS_IPV4, HAS_UDP, SRC_PORT, Slot};
    use crate::rank::lower::ActionId;

    fn udp(fields: &[(Slot, u64, u64)]) -> Cube {
        let mut cube = Cube::ANY.layer(HAS_IPV4, true).and_then(|cube| cube.layer(HAS_UDP, true)).unwrap();
        for (field, value, mask) in fields {
            cube = cube.with(*field, *value, *mask).unwrap();
        }
        cube.closed().unwrap()
    }

    fn candidate(cube: Cube, rule: usize, action: u32, traps: bool) -> Candidate {
        Candidate {
            cube,
            rule: RuleId::of(rule),
            action: ActionId(action),
            traps,
            is_compared: false,
            is_cover: false,
        }
    }

    fn kept(candidates: &[Candidate]) -> Vec<(usize, u32)> {
        ranking(candidates).kept.iter().map(|ranked| (ranked.id.index(), ranked.rank)).collect()
    }

    fn ranks(cubes: &[Cube]) -> Vec<(usize, u32)> {
        let candidates: Vec<Candidate> =
            cubes.iter().enumerate().map(|(rule, cube)| candidate(*cube, rule, 0, true)).collect();
        kept(&candidates)
    }

    #[test]
    fn disjoint_flows_share_a_priority() {
        let port = |port| udp(&[(DST_PORT, port, 0xffff)]);
        assert_eq!(ranks(&[port(1), port(2), port(3)]), [(0, 0), (1, 0), (2, 0)]);
    }

    #[test]
    fn a_chain_counts_overlaps_not_rules() {
        let dst = udp(&[(DST_PORT, 1, 0xffff)]);
        let src = udp(&[(SRC_PORT, 1, 0xffff)]);
        let other_dst = udp(&[(DST_PORT, 2, 0xffff)]);
        assert_eq!(ranks(&[dst, src, other_dst, Cube::ANY]), [(0, 0), (1, 1), (2, 2), (3, 3)]);
        assert_eq!(ranks(&[dst, other_dst, src, Cube::ANY]), [(0, 0), (1, 0), (2, 1), (3, 2)]);
    }

    #[test]
    fn covered_candidates_are_left_out() {
        let wide = udp(&[(DST_PORT, 0, 0xff00)]);
        let narrow = udp(&[(DST_PORT, 7, 0xffff), (SRC_PORT, 9, 0xffff)]);
        assert_eq!(ranks(&[wide, narrow, narrow]), [(0, 0)]);
        assert_eq!(ranks(&[narrow, wide, narrow]), [(0, 0), (1, 1)]);
    }

    #[test]
    fn an_earlier_candidate_makes_an_order_needless() {
        let both = udp(&[(DST_PORT, 1, 0xffff), (SRC_PORT, 1, 0xffff)]);
        let dst = udp(&[(DST_PORT, 1, 0xffff)]);
        let src = udp(&[(SRC_PORT, 1, 0xffff)]);
        assert_eq!(ranks(&[both, dst, src]), [(0, 0), (1, 1), (2, 1)]);
        // One that comes later settles nothing.
        assert_eq!(ranks(&[dst, both, src]), [(0, 0), (2, 1)]);
    }

    /// The first of the flows that a packet meets ranks above all others.
    #[test]
    fn the_first_flow_that_a_packet_meets_ranks_highest() {
        let prefixes = [0u64, 0x8000, 0xc000, 0xe000];
        let mut seed = 1u64;
        let mut next = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        for _ in 0..500 {
            let cubes: Vec<Cube> = (0..12)
                .map(|_| {
                    let ports = [DST_PORT, SRC_PORT].map(|field| {
                        let mask = prefixes[next(4)];
                        (field, (next(8) as u64) << 13 & mask, mask)
                    });
                    udp(&ports)
                })
                .collect();
            let kept = ranks(&cubes);
            for packet in 0..64u64 {
                let packet =
                    udp(&[(DST_PORT, packet >> 3 << 13, 0xffff), (SRC_PORT, packet << 13 & 0xffff, 0xffff)]);
                let met: Vec<_> = kept.iter().filter(|(index, _)| cubes[*index].contains(&packet)).collect();
                let Some((first, others)) = met.split_first() else { continue };
                assert!(others.iter().all(|other| other.1 > first.1), "{met:?} of {cubes:?}");
            }
        }
    }

    #[test]
    fn one_rule_overlapping_itself_needs_no_order() {
        let candidates = [
            candidate(udp(&[(DST_PORT, 1, 0xffff)]), 0, 3, true),
            candidate(udp(&[(SRC_PORT, 1, 0xffff)]), 0, 3, true),
            candidate(udp(&[(SRC_PORT, 1, 0x000f)]), 0, 4, true),
        ];
        assert_eq!(kept(&candidates), [(0, 0), (1, 0), (2, 1)]);
    }

    #[test]
    fn copies_rank_between_earlier_and_later_traps() {
        let flow = |cube, rule, traps| candidate(cube, rule, 0, traps);
        let port = udp(&[(DST_PORT, 1, 0xffff)]);
        let all = udp(&[]);
        assert_eq!(kept(&[flow(all, 0, false), flow(port, 1, true)]), [(0, 0), (1, 0)]);
        assert_eq!(kept(&[flow(port, 0, true), flow(all, 1, false)]), [(0, 0), (1, 1)]);
        // Two copies, then the one that takes; a copy covers nothing, but can be covered.
        let three = [flow(all, 0, false), flow(port, 1, false), flow(port, 2, true), flow(port, 3, false)];
        assert_eq!(kept(&three), [(0, 0), (1, 1), (2, 1)]);
    }
}
