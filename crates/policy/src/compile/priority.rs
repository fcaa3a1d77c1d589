//! Order to priorities. A flow must rank below every earlier flow that it shares packets with, and below
//! nothing else: its priority is the length of the longest chain of overlapping flows above it. A flow
//! whose every packet an earlier flow takes is not needed at all.

use std::collections::{HashMap, HashSet};

use super::cube::{Cube, Image, WORDS};

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
    values: HashSet<Image>,
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
    let mut shapes: Vec<Shape> = Vec::new();
    let mut shape_of: HashMap<Image, usize> = HashMap::new();
    let mut above: Vec<Option<usize>> = vec![None; candidates.len()];
    let mut ranking = Ranking { kept: Vec::new(), longest: Vec::new() };
    let mut deepest: Option<(u32, usize)> = None;
    for (index, candidate) in candidates.iter().enumerate() {
        if is_covered(&shapes, &candidate.cube) {
            continue;
        }
        let mut rank = 0;
        for shape in &shapes {
            if shape.deepest < rank || !shape.common.overlaps(&candidate.cube) {
                continue;
            }
            for entry in &shape.entries {
                if entry.rank >= rank
                    && entry.cube.overlaps(&candidate.cube)
                    && order_matters(&candidates[entry.candidate], candidate)
                {
                    rank = entry.rank + 1;
                    above[index] = Some(entry.candidate);
                }
            }
        }
        let mask = candidate.cube.mask;
        let shape = *shape_of.entry(mask).or_insert_with(|| {
            shapes.push(Shape::new(&candidate.cube));
            shapes.len() - 1
        });
        shapes[shape].add(Entry { cube: candidate.cube, candidate: index, rank });
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

fn order_matters(one: &Candidate, other: &Candidate) -> bool {
    one.rule != other.rule || one.action != other.action
}

/// Whether one kept candidate alone takes every packet of the cube.
fn is_covered(shapes: &[Shape], cube: &Cube) -> bool {
    shapes.iter().filter(|shape| (0..WORDS).all(|i| shape.mask[i] & !cube.mask[i] == 0)).any(|shape| {
        let value: Image = std::array::from_fn(|i| cube.value[i] & shape.mask[i]);
        shape.values.contains(&value)
    })
}

impl Shape {
    fn new(cube: &Cube) -> Self {
        Self { mask: cube.mask, entries: Vec::new(), values: HashSet::new(), deepest: 0, common: *cube }
    }

    fn add(&mut self, entry: Entry) {
        for i in 0..WORDS {
            self.common.mask[i] &= !(self.common.value[i] ^ entry.cube.value[i]);
            self.common.value[i] &= self.common.mask[i];
        }
        self.deepest = self.deepest.max(entry.rank);
        self.values.insert(entry.cube.value);
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
    fn one_rule_overlapping_itself_needs_no_order() {
        let candidates = [
            Candidate { cube: udp(&[(DST_PORT, 1, 0xffff)]), rule: 0, action: 3 },
            Candidate { cube: udp(&[(SRC_PORT, 1, 0xffff)]), rule: 0, action: 3 },
            Candidate { cube: udp(&[(SRC_PORT, 1, 0x000f)]), rule: 0, action: 4 },
        ];
        assert_eq!(rank(&candidates).kept, [(0, 0), (1, 0), (2, 1)]);
    }
}
