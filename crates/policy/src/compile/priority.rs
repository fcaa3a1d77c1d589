//! Order to priorities. A flow must rank below every earlier flow that takes packets from it, and below
//! nothing else: its priority is the length of the longest chain of such flows above it. A flow whose every
//! packet an earlier flow takes is not needed at all, and two flows that share only packets which a third
//! takes before both need no order.

use std::collections::HashMap;

use super::cube::{Cube, Image, WORDS};

/// The most lookups for flows that make an order needless. Without them a program ranks deeper than it must,
/// and is right all the same.
const MAX_LOOKUPS: usize = 1 << 20;

/// A flow before it has a priority. The order of candidates is their precedence.
pub(super) struct Candidate {
    pub(super) cube: Cube,
    /// Index of its rule.
    pub(super) rule: usize,
    /// Flows of one rule with equal actions may rank equal even if they overlap.
    pub(super) action: u32,
}

/// What becomes of the candidates.
pub(super) struct Ranking {
    /// The candidates that are kept, by precedence: index and priority.
    pub(super) kept: Vec<(usize, u32)>,
    /// The rules of the longest chain, first to last.
    pub(super) longest: Vec<usize>,
}

/// The kept candidates of one mask.
struct Shape {
    mask: Image,
    entries: Vec<Entry>,
    /// The candidate of each value: there is one, another would be covered.
    values: HashMap<Image, usize>,
    deepest: u32,
    /// Bits on which all entries agree: most shapes are told apart from a cube by these alone.
    common: Cube,
}

struct Entry {
    cube: Cube,
    candidate: usize,
    rank: u32,
}

/// Ranks the candidates.
pub(super) fn rank(candidates: &[Candidate]) -> Ranking {
    let mut kept = Kept { candidates, shapes: Vec::new(), lookups_left: MAX_LOOKUPS };
    let mut shape_of: HashMap<Image, usize> = HashMap::new();
    let mut above: Vec<Option<usize>> = vec![None; candidates.len()];
    let mut ranking = Ranking { kept: Vec::new(), longest: Vec::new() };
    let mut deepest: Option<(u32, usize)> = None;
    for (index, candidate) in candidates.iter().enumerate() {
        if is_covered(&kept.shapes, &candidate.cube, index) {
            continue;
        }
        let rank;
        (rank, above[index]) = kept.rank_of(candidate);
        let mask = candidate.cube.mask;
        let shape = *shape_of.entry(mask).or_insert_with(|| {
            kept.shapes.push(Shape::new(&candidate.cube));
            kept.shapes.len() - 1
        });
        kept.shapes[shape].add(Entry { cube: candidate.cube, candidate: index, rank });
        ranking.kept.push((index, rank));
        if deepest.is_none_or(|(most, _)| rank > most) {
            deepest = Some((rank, index));
        }
    }
    let mut link = deepest.map(|(_, index)| index);
    while let Some(index) = link {
        ranking.longest.push(candidates[index].rule);
        link = above[index];
    }
    ranking.longest.reverse();
    ranking.longest.dedup();
    ranking
}

/// The candidates that are kept so far.
struct Kept<'c> {
    candidates: &'c [Candidate],
    shapes: Vec<Shape>,
    lookups_left: usize,
}

impl Kept<'_> {
    /// The rank of a candidate that none of these covers, and the one right above it.
    fn rank_of(&mut self, candidate: &Candidate) -> (u32, Option<usize>) {
        let (mut rank, mut above) = (0, None);
        let Self { candidates, shapes, lookups_left } = self;
        for shape in shapes.iter() {
            // What asks for no more than the candidate, and does not cover it, is disjoint from it.
            if asks_no_more(&shape.mask, &candidate.cube.mask) || !shape.common.overlaps(&candidate.cube) {
                continue;
            }
            for entry in &shape.entries {
                if shape.deepest < rank {
                    break;
                }
                if entry.rank >= rank
                    && entry.cube.overlaps(&candidate.cube)
                    && order_matters(&candidates[entry.candidate], candidate)
                    && !is_settled(shapes, entry, candidate, lookups_left)
                {
                    rank = entry.rank + 1;
                    above = Some(entry.candidate);
                }
            }
        }
        (rank, above)
    }
}

fn order_matters(one: &Candidate, other: &Candidate) -> bool {
    one.rule != other.rule || one.action != other.action
}

/// Whether one candidate before both takes all packets that they share. For every packet the first
/// candidate that it meets stays above all others that it meets: nothing earlier can settle those pairs.
fn is_settled(shapes: &[Shape], entry: &Entry, candidate: &Candidate, lookups_left: &mut usize) -> bool {
    match lookups_left.checked_sub(shapes.len()) {
        Some(left) => *lookups_left = left,
        None => return false,
    }
    // Cubes whose shared part is empty after all need no order either.
    let Some(shared) = entry.cube.and(&candidate.cube) else { return true };
    is_covered(shapes, &shared, entry.candidate)
}

/// Whether one kept candidate before `limit` alone takes every packet of the cube.
fn is_covered(shapes: &[Shape], cube: &Cube, limit: usize) -> bool {
    shapes.iter().filter(|shape| asks_no_more(&shape.mask, &cube.mask)).any(|shape| {
        let value: Image = std::array::from_fn(|i| cube.value[i] & shape.mask[i]);
        shape.values.get(&value).is_some_and(|candidate| *candidate < limit)
    })
}

fn asks_no_more(one: &Image, other: &Image) -> bool {
    (0..WORDS).all(|i| one[i] & !other[i] == 0)
}

impl Shape {
    fn new(cube: &Cube) -> Self {
        Self { mask: cube.mask, entries: Vec::new(), values: HashMap::new(), deepest: 0, common: *cube }
    }

    fn add(&mut self, entry: Entry) {
        for i in 0..WORDS {
            self.common.mask[i] &= !(self.common.value[i] ^ entry.cube.value[i]);
            self.common.value[i] &= self.common.mask[i];
        }
        self.deepest = self.deepest.max(entry.rank);
        self.values.insert(entry.cube.value, entry.candidate);
        self.entries.push(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::cube::{DST_PORT, Field, HAS_IPV4, HAS_UDP, SRC_PORT};

    fn udp(fields: &[(Field, u64, u64)]) -> Cube {
        let mut cube = Cube::ANY.layer(HAS_IPV4, true).and_then(|cube| cube.layer(HAS_UDP, true)).unwrap();
        for (field, value, mask) in fields {
            cube = cube.with(*field, *value, *mask).unwrap();
        }
        cube.closed().unwrap()
    }

    fn ranks(cubes: &[Cube]) -> Vec<(usize, u32)> {
        let candidates: Vec<Candidate> =
            cubes.iter().enumerate().map(|(rule, cube)| Candidate { cube: *cube, rule, action: 0 }).collect();
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
            Candidate { cube: udp(&[(DST_PORT, 1, 0xffff)]), rule: 0, action: 3 },
            Candidate { cube: udp(&[(SRC_PORT, 1, 0xffff)]), rule: 0, action: 3 },
            Candidate { cube: udp(&[(SRC_PORT, 1, 0x000f)]), rule: 0, action: 4 },
        ];
        assert_eq!(rank(&candidates).kept, [(0, 0), (1, 0), (2, 1)]);
    }
}
