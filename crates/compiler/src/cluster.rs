//! Fewer masks: where a device has room for few different ones, the flows of a rare mask are cut into the
//! flows of a mask that asks for more and is there anyway. That costs flows and saves masks, and no packet
//! meets anything else. Called by `draft` between ranks and priorities.

use super::cube::{Cube, DST_HIGH, DST_LOW, DST_PORT, Image, SRC_HIGH, SRC_LOW, SRC_PORT, TOS, TTL, WORDS};
use super::priority::Candidate;
use super::shape::ByMask;

/// The most bits by which two masks may differ: a flow becomes two to that power.
const MAX_BITS: u32 = 12;

/// How often merged masks are weighed again.
const MAX_ROUNDS: usize = 16;

/// Flows of one mask.
struct Group {
    /// The mask as a device is told it.
    told: Image,
    /// How many flows it has by now.
    flows: usize,
    /// The group into whose mask its flows are cut.
    into: Option<usize>,
}

/// Replaces kept candidates until there are at most `most` masks, for at most `budget` flows more. Returns
/// how many masks are left.
pub(super) fn cluster(
    candidates: &mut Vec<Candidate>,
    kept: &mut Vec<(usize, u32)>,
    most: usize,
    budget: usize,
) -> usize {
    let (mut groups, group_of) = groups(candidates, kept);
    let mut masks = groups.len();
    let mut left = budget;
    let mut kinships = (masks > most).then(|| Kinships::of(&groups));
    for _ in 0..MAX_ROUNDS {
        let Some(kinships) = kinships.as_mut().filter(|_| masks > most) else { break };
        let merged = merge(&mut groups, kinships, masks - most, &mut left);
        if merged == 0 {
            break;
        }
        masks -= merged;
    }
    if left < budget {
        cut(candidates, kept, &groups, &group_of);
    }
    masks
}

/// The masks, and which of them each kept flow has; those that copy have none.
fn groups(candidates: &[Candidate], kept: &[(usize, u32)]) -> (Vec<Group>, Vec<Option<usize>>) {
    let mut place: ByMask<Image, usize> = ByMask::default();
    let mut groups: Vec<Group> = Vec::new();
    let group_of =
        kept.iter().map(|(index, _)| &candidates[*index]).map(|Candidate { cube, traps, .. }| {
            let told = traps.then(|| cube.told().mask)?;
            let group = *place.entry(told).or_insert_with(|| {
                groups.push(Group { told, flows: 0, into: None });
                groups.len() - 1
            });
            groups[group].flows += 1;
            Some(group)
        });
    let group_of = group_of.collect();
    (groups, group_of)
}

/// The masks by which flows can be cut into others: where each stands among those from which it differs in
/// splittable bits only.
struct Kinships {
    kin: Vec<Kin>,
    /// By group its kin, and its place there.
    of: Vec<(usize, usize)>,
    /// By group how far it was looked for a mask to go into: what did not serve will not serve later.
    looked: Vec<usize>,
}

/// Masks that differ in splittable bits only, by the number of bits that they ask for: what a mask can be cut
/// into comes after it, and not far.
struct Kin {
    /// Of each mask the number of its bits, and the group.
    members: Vec<(u32, usize)>,
    /// Of each the splittable words, one mask after another.
    words: Vec<u64>,
    width: usize,
}

impl Kinships {
    fn of(groups: &[Group]) -> Self {
        let splittable = splittable();
        // Most words are zero in all masks.
        let touched: Vec<usize> =
            (0..WORDS).filter(|word| groups.iter().any(|group| group.told[*word] != 0)).collect();
        let (cut, fixed): (Vec<usize>, Vec<usize>) = touched.iter().partition(|word| splittable[**word] != 0);
        let all = cut.iter().chain(&fixed).copied();
        let rest = |told: &Image| all.clone().map(|word| told[word] & !splittable[word]).collect();
        let mut by_rest: ByMask<Vec<u64>, Vec<(u32, usize)>> = ByMask::default();
        for (group, Group { told, .. }) in groups.iter().enumerate() {
            let bits = told.iter().map(|word| word.count_ones()).sum();
            by_rest.entry(rest(told)).or_default().push((bits, group));
        }
        let mut kinships = Self { kin: Vec::new(), of: vec![(0, 0); groups.len()], looked: Vec::new() };
        for mut members in by_rest.into_values() {
            members.sort_unstable();
            let words = |(_, group): &(u32, usize)| {
                cut.iter().map(|word| groups[*group].told[*word]).collect::<Vec<u64>>()
            };
            let words = members.iter().flat_map(words).collect();
            for (place, (_, group)) in members.iter().enumerate() {
                kinships.of[*group] = (kinships.kin.len(), place);
            }
            kinships.kin.push(Kin { members, words, width: cut.len() });
        }
        kinships.looked = kinships.of.iter().map(|(_, place)| place + 1).collect();
        kinships
    }

    /// The mask that a group's flows are cut into by the fewest bits, and by how many; none that is cut itself.
    fn nearest(&mut self, from: usize, groups: &[Group]) -> Option<(u32, usize)> {
        let (kin, place) = self.of[from];
        let kin = &self.kin[kin];
        let bits = kin.members[place].0;
        let near = kin.members.iter().enumerate().skip(self.looked[from]);
        let mut near = near.take_while(|(_, (more, _))| more - bits <= MAX_BITS);
        let found =
            near.find(|(other, (_, into))| groups[*into].into.is_none() && kin.asks_no_more(place, *other));
        self.looked[from] = found.map_or(kin.members.len(), |(place, _)| place);
        found.map(|(_, (more, into))| (more - bits, *into))
    }
}

impl Kin {
    /// Whether every bit of the first mask is one of the second's.
    fn asks_no_more(&self, one: usize, other: usize) -> bool {
        let [one, other] = [one, other].map(|place| &self.words[place * self.width..][..self.width]);
        one.iter().zip(other).all(|(mask, other)| mask & !other == 0)
    }
}

/// Cuts groups into others, cheapest first; none of those cut takes in another in the same round.
fn merge(groups: &mut [Group], kinships: &mut Kinships, wanted: usize, left: &mut usize) -> usize {
    let mut pairs: Vec<(usize, usize, usize)> = Vec::new();
    for (from, group) in groups.iter().enumerate().filter(|(_, group)| group.into.is_none()) {
        // The fewest bits are the least cost.
        let into = kinships.nearest(from, groups);
        let cost = into.map(|(bits, into)| (group.flows.saturating_mul((1usize << bits) - 1), from, into));
        pairs.extend(cost.filter(|(cost, ..)| *cost <= *left));
    }
    pairs.sort_unstable();
    let mut takes_in = vec![false; groups.len()];
    let mut merged = 0;
    for (cost, from, into) in pairs {
        if merged == wanted {
            break;
        }
        if takes_in[from] || groups[into].into.is_some() || cost > *left {
            continue;
        }
        *left -= cost;
        groups[into].flows += groups[from].flows + cost;
        groups[from].into = Some(into);
        takes_in[into] = true;
        merged += 1;
    }
    merged
}

/// Bits that a flow may be cut by: those of numbers that say nothing about other fields.
fn splittable() -> Image {
    let fields = [SRC_PORT, DST_PORT, TOS, TTL, DST_HIGH, SRC_HIGH, DST_LOW, SRC_LOW];
    fields
        .into_iter()
        .filter_map(|field| Cube::ANY.with(field, 0, field.ones()))
        .fold([0; WORDS], |all, cube| std::array::from_fn(|i| all[i] | cube.mask[i]))
}

fn cut(
    candidates: &mut Vec<Candidate>,
    kept: &mut Vec<(usize, u32)>,
    groups: &[Group],
    group_of: &[Option<usize>],
) {
    let last = |mut group: usize| {
        while let Some(into) = groups[group].into {
            group = into;
        }
        group
    };
    let mut cut = Vec::with_capacity(kept.len());
    for ((index, rank), group) in kept.iter().zip(group_of) {
        let Some(group) = group.filter(|group| groups[*group].into.is_some()) else {
            cut.push((*index, *rank));
            continue;
        };
        let Candidate { cube, rule, action, traps } = candidates[*index];
        for cube in parts(&cube, &groups[last(group)].told) {
            cut.push((candidates.len(), *rank));
            candidates.push(Candidate { cube, rule, action, traps });
        }
    }
    *kept = cut;
}

/// The cube cut by all bits that the mask has beyond its own.
fn parts(cube: &Cube, mask: &Image) -> Vec<Cube> {
    let mut parts = vec![*cube];
    for (word, mask) in mask.iter().enumerate() {
        let mut extra = mask & !cube.mask[word];
        while extra != 0 {
            let bit = 1u64 << extra.trailing_zeros();
            extra &= !bit;
            for at in 0..parts.len() {
                parts[at].mask[word] |= bit;
                let mut other = parts[at];
                other.value[word] |= bit;
                parts.push(other);
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cube::{ETHER_TYPE, HAS_IPV4, HAS_UDP};

    fn udp(src: (u64, u64), dst: (u64, u64)) -> Cube {
        let cube = Cube::ANY.layer(HAS_IPV4, true).and_then(|cube| cube.layer(HAS_UDP, true)).unwrap();
        cube.with(SRC_PORT, src.0, src.1).unwrap().with(DST_PORT, dst.0, dst.1).unwrap().closed().unwrap()
    }

    #[test]
    fn flows_are_cut_into_the_masks_that_are_there_and_meet_the_same_packets() {
        let cubes = [
            udp((0, 0), (0x1000, 0xfffe)),
            udp((0, 0), (0x2000, 0xffff)),
            udp((0, 0), (0x3000, 0xfffc)),
            udp((7, 0xffff), (0x4000, 0xff00)),
        ];
        let mut candidates: Vec<Candidate> = cubes
            .iter()
            .enumerate()
            .map(|(rule, cube)| Candidate { cube: *cube, rule, action: 0, traps: true })
            .collect();
        let mut kept: Vec<(usize, u32)> = (0..4).map(|index| (index, 0)).collect();
        assert_eq!(cluster(&mut candidates, &mut kept, 2, 100), 2);
        // Two for the first, one for the second, four for the third; the last has no other mask to go to.
        assert_eq!(kept.len(), 2 + 1 + 4 + 1);
        for port in 0x0ff0..0x5000u64 {
            for source in [7, 8] {
                let packet = udp((source, 0xffff), (port, 0xffff));
                let before = cubes.iter().position(|cube| cube.contains(&packet));
                let met: Vec<usize> = kept
                    .iter()
                    .filter(|(i, _)| candidates[*i].cube.contains(&packet))
                    .map(|(i, _)| candidates[*i].rule)
                    .collect();
                assert_eq!(met, before.into_iter().collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn a_flow_is_not_cut_by_layers() {
        let frame = Cube::ANY.with(ETHER_TYPE, 0x05dc, 0xffff).and_then(Cube::closed).unwrap();
        let packet = Cube::ANY.layer(HAS_IPV4, true).and_then(Cube::closed).unwrap();
        let mut candidates: Vec<Candidate> =
            [frame, packet].map(|cube| Candidate { cube, rule: 0, action: 0, traps: true }).into();
        assert_eq!(cluster(&mut candidates, &mut vec![(0, 0), (1, 0)], 1, usize::MAX), 2);
    }

    #[test]
    fn no_more_flows_are_spent_than_there_are() {
        let cubes = [udp((0, 0), (0x1000, 0xff00)), udp((0, 0), (0x2000, 0xffff))];
        let mut candidates: Vec<Candidate> =
            cubes.iter().map(|cube| Candidate { cube: *cube, rule: 0, action: 0, traps: true }).collect();
        let mut kept = vec![(0, 0), (1, 0)];
        assert_eq!(cluster(&mut candidates, &mut kept, 1, 254), 2);
        assert_eq!(cluster(&mut candidates, &mut kept, 1, 255), 1);
        assert_eq!(kept.len(), 257);
    }
}
