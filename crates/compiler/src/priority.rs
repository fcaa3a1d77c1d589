//! Order to priorities. A flow must rank below every earlier flow that takes packets from it, and below
//! nothing else: its priority is the length of the longest chain of such flows above it. A flow whose every
//! packet an earlier flow takes is not needed at all, and two flows that share only packets which a third
//! takes before both need no order. A flow that copies takes nothing; those that take what it copies may
//! share its priority, because copies are made first.

use device_model::DeviceProfile;

use super::cube::{Cube, Image};
use super::fit::comes_last;
use super::shape::{ByMask, FRONT, Front, Shape};

/// The most lookups for flows that make an order needless. Without them a program ranks deeper than it must,
/// and is right all the same.
const MAX_LOOKUPS: usize = 1 << 22;

/// A flow before it has a priority. The order of candidates is their precedence.
#[derive(Clone, Copy)]
pub(super) struct Candidate {
    pub(super) cube: Cube,
    /// Index of its rule.
    pub(super) rule: usize,
    /// Flows of one rule with equal actions may rank equal even if they overlap.
    pub(super) action: u32,
    /// Whether packets go no further; otherwise they are copied.
    pub(super) traps: bool,
}

impl Candidate {
    /// Whether the device takes its flow after all others, whatever its priority.
    pub(super) fn comes_last(&self, profile: &DeviceProfile) -> bool {
        self.traps && comes_last(&self.cube, profile)
    }
}

/// What becomes of the candidates.
pub(super) struct Ranking {
    /// The candidates that are kept, by precedence: index and priority.
    pub(super) kept: Vec<(usize, u32)>,
    /// The candidates of the longest chain, first to last, each with its rank.
    pub(super) longest: Vec<(usize, u32)>,
}

/// Ranks the candidates.
pub(super) fn rank(candidates: &[Candidate]) -> Ranking {
    let mut kept = Kept {
        candidates,
        shapes: Vec::new(),
        fronts: Vec::new(),
        by_depth: Vec::new(),
        takers: Takers::default(),
        lookups_left: MAX_LOOKUPS,
    };
    let mut shape_of: ByMask<(Image, bool), usize> = ByMask::default();
    let mut above: Vec<(u32, Option<usize>)> = vec![(0, None); candidates.len()];
    let mut ranking = Ranking { kept: Vec::new(), longest: Vec::new() };
    let mut deepest: Option<(u32, usize)> = None;
    for (index, candidate) in candidates.iter().enumerate() {
        let takers = kept.takers.of(&candidate.cube.mask, &kept.shapes);
        if is_covered(&kept.shapes, takers, &candidate.cube, index) {
            continue;
        }
        above[index] = kept.rank_of(candidate);
        let (rank, _) = above[index];
        let shape = *shape_of.entry((candidate.cube.mask, candidate.traps)).or_insert_with(|| {
            kept.by_depth.push(kept.shapes.len());
            kept.shapes.push(Shape::new(&candidate.cube, candidate.traps));
            kept.fronts.push((Front::of(&candidate.cube), 0));
            kept.shapes.len() - 1
        });
        let deepest_before = kept.shapes[shape].deepest();
        kept.shapes[shape].add(&candidate.cube, index, rank);
        kept.fronts[shape] = (*kept.shapes[shape].front(), kept.shapes[shape].deepest());
        if rank > deepest_before {
            kept.sort_in(shape);
        }
        ranking.kept.push((index, rank));
        if deepest.is_none_or(|(most, _)| rank > most) {
            deepest = Some((rank, index));
        }
    }
    let mut link = deepest.map(|(_, index)| index);
    while let Some(index) = link {
        let (rank, next) = above[index];
        ranking.longest.push((index, rank));
        link = next;
    }
    ranking.longest.reverse();
    ranking
}

/// The candidates that are kept so far.
struct Kept<'c> {
    candidates: &'c [Candidate],
    shapes: Vec<Shape>,
    /// Of each shape what tells most, and the greatest rank.
    fronts: Vec<(Front, u32)>,
    /// The shapes, those with the greatest ranks first: once such a rank is found, the rest cannot matter.
    by_depth: Vec<usize>,
    takers: Takers,
    lookups_left: usize,
}

/// For each mask the shapes that take packets and ask for no more: masks repeat, so each pair is compared
/// once.
#[derive(Default)]
struct Takers {
    of: ByMask<Image, Known>,
    /// Of each shape the words of its mask that tell most.
    fronts: Vec<[u64; FRONT]>,
}

/// What is known of one mask.
#[derive(Default)]
struct Known {
    /// Indices of shapes, ascending.
    shapes: Vec<u32>,
    /// How many shapes have been compared.
    compared: usize,
}

impl Takers {
    fn of(&mut self, mask: &Image, shapes: &[Shape]) -> &[u32] {
        self.fronts.extend(shapes[self.fronts.len()..].iter().map(Shape::front_mask));
        let known = self.of.entry(*mask).or_default();
        let asked = Front::mask(mask);
        let beyond =
            |front: &[u64; FRONT]| (0..FRONT).fold(0, |all, place| all | front[place] & !asked[place]);
        let fronts = self.fronts.iter().enumerate().skip(known.compared);
        for (index, _) in fronts.filter(|(_, front)| beyond(front) == 0) {
            let shape = &shapes[index];
            if shape.traps && shape.asks_no_more_than(mask) {
                // Shapes are no more than flows, which are far fewer than 2^32.
                known.shapes.push(index as u32);
            }
        }
        known.compared = shapes.len();
        &known.shapes
    }
}

impl Kept<'_> {
    /// The rank of a candidate that none of these covers, and the one right above it.
    fn rank_of(&mut self, candidate: &Candidate) -> (u32, Option<usize>) {
        let (mut rank, mut above) = (0, None);
        let mut met = Vec::new();
        // What takes and asks for no more than the candidate, and does not cover it, is disjoint from it.
        let apart = self.takers.of(&candidate.cube.mask, &self.shapes).to_vec();
        let by_depth = std::mem::take(&mut self.by_depth);
        let front = Front::of(&candidate.cube);
        for index in by_depth.iter().copied() {
            let (own_front, deepest) = &self.fronts[index];
            if *deepest < rank {
                break;
            }
            if own_front.differs(&front) {
                continue;
            }
            let shape = &mut self.shapes[index];
            // A copy and what takes the packet after it may share a priority.
            let step = u32::from(shape.traps || !candidate.traps);
            let is_idle = shape.deepest() + step <= rank || !shape.may_meet(&candidate.cube);
            // Shapes are no more than flows, which are far fewer than 2^32.
            if is_idle || apart.binary_search(&(index as u32)).is_ok() {
                continue;
            }
            met.clear();
            shape.entries_that_meet(&candidate.cube, (rank + 1).saturating_sub(step), &mut met);
            for (other, other_rank) in met.iter().copied() {
                if other_rank + step > rank
                    && order_matters(&self.candidates[other], candidate)
                    && !self.is_settled(other, candidate)
                {
                    rank = other_rank + step;
                    above = Some(other);
                }
            }
        }
        self.by_depth = by_depth;
        (rank, above)
    }

    /// Brings a shape that has become deeper to its place.
    fn sort_in(&mut self, shape: usize) {
        let Some(mut place) = self.by_depth.iter().position(|other| *other == shape) else { return };
        while place > 0 && self.shapes[self.by_depth[place - 1]].deepest() < self.shapes[shape].deepest() {
            self.by_depth.swap(place - 1, place);
            place -= 1;
        }
    }

    /// Whether one candidate before both takes all packets that they share. For every packet the first
    /// candidate that it meets stays above all others that it meets: nothing earlier can settle those pairs.
    fn is_settled(&mut self, earlier: usize, candidate: &Candidate) -> bool {
        if self.lookups_left == 0 {
            return false;
        }
        // Cubes whose shared part is empty after all need no order either.
        let Some(shared) = self.candidates[earlier].cube.and(&candidate.cube) else { return true };
        let takers = self.takers.of(&shared.mask, &self.shapes);
        self.lookups_left = self.lookups_left.saturating_sub(takers.len());
        is_covered(&self.shapes, takers, &shared, earlier)
    }
}

fn order_matters(one: &Candidate, other: &Candidate) -> bool {
    one.rule != other.rule || one.action != other.action
}

/// Whether one kept candidate before `limit` alone takes every packet of the cube, whose mask has these
/// takers.
fn is_covered(shapes: &[Shape], takers: &[u32], cube: &Cube, limit: usize) -> bool {
    takers.iter().filter_map(|taker| shapes[*taker as usize].find(cube)).any(|taker| taker < limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cube::{DST_PORT, Field, HAS_IPV4, HAS_UDP, SRC_PORT};

    fn udp(fields: &[(Field, u64, u64)]) -> Cube {
        let mut cube = Cube::ANY.layer(HAS_IPV4, true).and_then(|cube| cube.layer(HAS_UDP, true)).unwrap();
        for (field, value, mask) in fields {
            cube = cube.with(*field, *value, *mask).unwrap();
        }
        cube.closed().unwrap()
    }

    fn ranks(cubes: &[Cube]) -> Vec<(usize, u32)> {
        let candidates: Vec<Candidate> = cubes
            .iter()
            .enumerate()
            .map(|(rule, cube)| Candidate { cube: *cube, rule, action: 0, traps: true })
            .collect();
        rank(&candidates).kept
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
    fn what_is_covered_is_dropped() {
        let wide = udp(&[(DST_PORT, 0, 0xff00)]);
        let narrow = udp(&[(DST_PORT, 7, 0xffff), (SRC_PORT, 9, 0xffff)]);
        assert_eq!(ranks(&[wide, narrow, narrow]), [(0, 0)]);
        assert_eq!(ranks(&[narrow, wide, narrow]), [(0, 0), (1, 1)]);
    }

    #[test]
    fn what_is_taken_before_both_needs_no_order() {
        let both = udp(&[(DST_PORT, 1, 0xffff), (SRC_PORT, 1, 0xffff)]);
        let dst = udp(&[(DST_PORT, 1, 0xffff)]);
        let src = udp(&[(SRC_PORT, 1, 0xffff)]);
        assert_eq!(ranks(&[both, dst, src]), [(0, 0), (1, 1), (2, 1)]);
        // One that comes later settles nothing.
        assert_eq!(ranks(&[dst, both, src]), [(0, 0), (2, 1)]);
    }

    /// Of the flows that a packet meets the first one ranks above all others.
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
            Candidate { cube: udp(&[(DST_PORT, 1, 0xffff)]), rule: 0, action: 3, traps: true },
            Candidate { cube: udp(&[(SRC_PORT, 1, 0xffff)]), rule: 0, action: 3, traps: true },
            Candidate { cube: udp(&[(SRC_PORT, 1, 0x000f)]), rule: 0, action: 4, traps: true },
        ];
        assert_eq!(rank(&candidates).kept, [(0, 0), (1, 0), (2, 1)]);
    }

    #[test]
    fn copies_come_before_what_takes_the_packet_and_after_what_took_it() {
        let flow = |cube, rule, traps| Candidate { cube, rule, action: 0, traps };
        let port = udp(&[(DST_PORT, 1, 0xffff)]);
        let all = udp(&[]);
        let kept = |flows: &[Candidate]| rank(flows).kept;
        assert_eq!(kept(&[flow(all, 0, false), flow(port, 1, true)]), [(0, 0), (1, 0)]);
        assert_eq!(kept(&[flow(port, 0, true), flow(all, 1, false)]), [(0, 0), (1, 1)]);
        // Two copies, then the one that takes; a copy covers nothing, but can be covered.
        let three = [flow(all, 0, false), flow(port, 1, false), flow(port, 2, true), flow(port, 3, false)];
        assert_eq!(kept(&three), [(0, 0), (1, 1), (2, 1)]);
    }
}
