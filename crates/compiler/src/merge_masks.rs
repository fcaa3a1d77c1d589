//! Fewer masks, for devices that have room for few different ones: the flows of a rare mask are split into flows of
//! a mask that has more bits and is there anyway. That costs flows and saves masks. It changes no packet's outcome: the
//! parts of a flow are disjoint, together match what it matched, and keep its rank.

use std::collections::BTreeMap;

use device_model::{DeviceProfile, PriorityTable};

use super::assign_priorities::assign_priorities;
use super::cover::MAX_FLOWS;
use super::cube::{Cube, DST_HIGH, DST_LOW, DST_PORT, Image, SRC_HIGH, SRC_LOW, SRC_PORT, TOS, TTL, WORDS};
use super::lower::{Candidate, CandidateId, Lowered};
use super::mask_index::ByMask;
use super::order::{Ranked, Ranking};

/// The most bits by which two masks may differ: a flow becomes two to that power.
const MAX_BITS: u32 = 12;

/// How often merged masks are merged again.
const MAX_ROUNDS: usize = 16;

/// Flows of one mask.
struct Group {
    /// The mask as the device sees it.
    mask: Image,
    /// How many flows it has by now.
    flows: usize,
    /// The group into whose mask its flows are split.
    into: Option<usize>,
}

/// Spends flows to save masks, where the device has too few of these: first over all priorities, then within each.
pub(super) fn merge_masks(profile: &DeviceProfile, lowered: &mut Lowered, ranking: &mut Ranking) {
    let candidates = &mut lowered.candidates;
    let most_flows = profile.max_flows.map_or(MAX_FLOWS, |most| (most as usize / 2).min(MAX_FLOWS));
    let budget = |flows: usize| most_flows.saturating_sub(flows);
    if let Some(most) = profile.max_shapes {
        let flows = ranking.kept.len();
        merge_to(candidates, &mut ranking.kept, most as usize, budget(flows));
        // A reload needs room for the masks of another program beside this one, which is worth some flows.
        let flows = ranking.kept.len();
        let spare = budget(flows).min(flows / 4);
        merge_to(candidates, &mut ranking.kept, most as usize / 2, spare);
    }
    let Some(table) = profile.priority_table else { return };
    let ranks = ranking.kept.iter().map(|ranked| ranked.rank + 1).max().unwrap_or(0);
    let offered = profile.priorities_per_program();
    if ranks <= offered && !assign_priorities(candidates, &ranking.kept, profile).fits(offered) {
        merge_in_ranks(profile, table, candidates, ranking);
    }
}

/// Merges within each rank, as little as the priorities demand: the more of them a rank may spread over, the more masks
/// it keeps.
fn merge_in_ranks(
    profile: &DeviceProfile,
    table: PriorityTable,
    candidates: &mut Vec<Candidate>,
    ranking: &mut Ranking,
) {
    let offered = profile.priorities_per_program();
    let mut by_rank: BTreeMap<Option<u32>, Vec<Ranked>> = BTreeMap::new();
    for ranked in &ranking.kept {
        let own = (!candidates[ranked.id.index()].comes_last(profile)).then_some(ranked.rank);
        by_rank.entry(own).or_default().push(*ranked);
    }
    let before = candidates.len();
    for priorities in (1..=offered).rev() {
        candidates.truncate(before);
        let mut merged = by_rank.clone();
        for (rank, kept) in &mut merged {
            // Flows that the device applies last have one priority.
            let masks = table.groups.saturating_mul(rank.map_or(1, |_| priorities)) as usize;
            let room = masks.saturating_mul(table.group_entries as usize);
            let budget = room.saturating_sub(kept.len());
            merge_to(candidates, kept, masks, budget);
        }
        ranking.kept = merged.into_values().flatten().collect();
        if assign_priorities(candidates, &ranking.kept, profile).fits(offered) {
            break;
        }
    }
    ranking.kept.sort_by_key(|Ranked { id, .. }| (candidates[id.index()].rule, *id));
}

/// Replaces kept candidates until there are at most `most` masks, for at most `budget` flows more. Returns
/// how many masks are left.
fn merge_to(candidates: &mut Vec<Candidate>, kept: &mut Vec<Ranked>, most: usize, budget: usize) -> usize {
    let (mut groups, group_of) = groups(candidates, kept);
    let mut masks = groups.len();
    let mut left = budget;
    let mut families = (masks > most).then(|| Families::of(&groups));
    for _ in 0..MAX_ROUNDS {
        let Some(families) = families.as_mut().filter(|_| masks > most) else { break };
        let merged = merge(&mut groups, families, masks - most, &mut left);
        if merged == 0 {
            break;
        }
        masks -= merged;
    }
    if left < budget {
        split(candidates, kept, &groups, &group_of);
    }
    masks
}

/// The masks, and which of them each kept flow has; those that copy have none.
fn groups(candidates: &[Candidate], kept: &[Ranked]) -> (Vec<Group>, Vec<Option<usize>>) {
    let mut place: ByMask<Image, usize> = ByMask::default();
    let mut groups: Vec<Group> = Vec::new();
    let group_of =
        kept.iter().map(|ranked| &candidates[ranked.id.index()]).map(|Candidate { cube, traps, .. }| {
            let mask = traps.then(|| cube.without_absences().mask)?;
            let group = *place.entry(mask).or_insert_with(|| {
                groups.push(Group { mask, flows: 0, into: None });
                groups.len() - 1
            });
            groups[group].flows += 1;
            Some(group)
        });
    let group_of = group_of.collect();
    (groups, group_of)
}

/// The masks by families: flows can be split into flows of another mask of the family.
struct Families {
    list: Vec<Family>,
    /// By group its family, and its position there.
    of: Vec<(usize, usize)>,
    /// By group the next position to try: a mask that was not suitable will not be later.
    next: Vec<usize>,
}

/// Masks that differ in splittable bits only, in ascending order of their number of bits: the flows of a mask can only be
/// split into those of a later one.
struct Family {
    /// Of each mask the number of its bits, and the group.
    members: Vec<(u32, usize)>,
    /// Of each the splittable words, one mask after another.
    words: Vec<u64>,
    width: usize,
}

impl Families {
    fn of(groups: &[Group]) -> Self {
        let splittable = splittable();
        // Most words are zero in all masks.
        let touched: Vec<usize> =
            (0..WORDS).filter(|word| groups.iter().any(|group| group.mask[*word] != 0)).collect();
        let (cut, fixed): (Vec<usize>, Vec<usize>) = touched.iter().partition(|word| splittable[**word] != 0);
        let all = cut.iter().chain(&fixed).copied();
        let rest = |mask: &Image| all.clone().map(|word| mask[word] & !splittable[word]).collect();
        let mut by_rest: ByMask<Vec<u64>, Vec<(u32, usize)>> = ByMask::default();
        for (group, Group { mask, .. }) in groups.iter().enumerate() {
            let bits = mask.iter().map(|word| word.count_ones()).sum();
            by_rest.entry(rest(mask)).or_default().push((bits, group));
        }
        let mut families = Self { list: Vec::new(), of: vec![(0, 0); groups.len()], next: Vec::new() };
        for mut members in by_rest.into_values() {
            members.sort_unstable();
            let words = |(_, group): &(u32, usize)| {
                cut.iter().map(|word| groups[*group].mask[*word]).collect::<Vec<u64>>()
            };
            let words = members.iter().flat_map(words).collect();
            for (place, (_, group)) in members.iter().enumerate() {
                families.of[*group] = (families.list.len(), place);
            }
            families.list.push(Family { members, words, width: cut.len() });
        }
        families.next = families.of.iter().map(|(_, place)| place + 1).collect();
        families
    }

    /// The mask that a group's flows are split into by the fewest bits, and by how many; none that is split itself.
    fn nearest(&mut self, from: usize, groups: &[Group]) -> Option<(u32, usize)> {
        let (family, place) = self.of[from];
        let family = &self.list[family];
        let bits = family.members[place].0;
        let near = family.members.iter().enumerate().skip(self.next[from]);
        let mut near = near.take_while(|(_, (more, _))| more - bits <= MAX_BITS);
        let found =
            near.find(|(other, (_, into))| groups[*into].into.is_none() && family.is_subset(place, *other));
        self.next[from] = found.map_or(family.members.len(), |(place, _)| place);
        found.map(|(_, (more, into))| (more - bits, *into))
    }
}

impl Family {
    /// Whether every bit of the first mask is one of the second's.
    fn is_subset(&self, one: usize, other: usize) -> bool {
        let [one, other] = [one, other].map(|place| &self.words[place * self.width..][..self.width]);
        one.iter().zip(other).all(|(mask, other)| mask & !other == 0)
    }
}

/// Merges groups into others, cheapest first; a group is not both merged and merged into in one round.
fn merge(groups: &mut [Group], families: &mut Families, wanted: usize, left: &mut usize) -> usize {
    let mut pairs: Vec<(usize, usize, usize)> = Vec::new();
    for (from, group) in groups.iter().enumerate().filter(|(_, group)| group.into.is_none()) {
        // The fewest bits are the least cost.
        let into = families.nearest(from, groups);
        let cost = into.map(|(bits, into)| (group.flows.saturating_mul((1usize << bits) - 1), from, into));
        pairs.extend(cost.filter(|(cost, ..)| *cost <= *left));
    }
    pairs.sort_unstable();
    let mut is_target = vec![false; groups.len()];
    let mut merged = 0;
    for (cost, from, into) in pairs {
        if merged == wanted {
            break;
        }
        if is_target[from] || groups[into].into.is_some() || cost > *left {
            continue;
        }
        *left -= cost;
        groups[into].flows += groups[from].flows + cost;
        groups[from].into = Some(into);
        is_target[into] = true;
        merged += 1;
    }
    merged
}

/// Bits by which a flow may be split: those of numbers that imply nothing about other fields.
fn splittable() -> Image {
    let fields = [SRC_PORT, DST_PORT, TOS, TTL, DST_HIGH, SRC_HIGH, DST_LOW, SRC_LOW];
    fields
        .into_iter()
        .filter_map(|field| Cube::ANY.with(field, 0, field.ones()))
        .fold([0; WORDS], |all, cube| std::array::from_fn(|i| all[i] | cube.mask[i]))
}

fn split(
    candidates: &mut Vec<Candidate>,
    kept: &mut Vec<Ranked>,
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
    for (ranked, group) in kept.iter().zip(group_of) {
        let Some(group) = group.filter(|group| groups[*group].into.is_some()) else {
            cut.push(*ranked);
            continue;
        };
        let whole = candidates[ranked.id.index()];
        for cube in parts(&whole.cube, &groups[last(group)].mask) {
            cut.push(Ranked { id: CandidateId::of(candidates.len()), ..*ranked });
            candidates.push(Candidate { cube, ..whole });
        }
    }
    *kept = cut;
}

/// The cube split by all bits that the mask has beyond its own.
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
    use program::RuleId;

    use super::*;
    use crate::cube::{ETHER_TYPE, HAS_IPV4, HAS_UDP};
    use crate::lower::ActionId;

    fn candidate(cube: Cube, rule: usize) -> Candidate {
        Candidate { cube, rule: RuleId::of(rule), action: ActionId(0), traps: true, is_compared: false }
    }

    /// The first candidates, all of one rank.
    fn ranked(count: usize) -> Vec<Ranked> {
        (0..count).map(|index| Ranked { id: CandidateId::of(index), rank: 0 }).collect()
    }

    fn udp(src: (u64, u64), dst: (u64, u64)) -> Cube {
        let cube = Cube::ANY.layer(HAS_IPV4, true).and_then(|cube| cube.layer(HAS_UDP, true)).unwrap();
        cube.with(SRC_PORT, src.0, src.1).unwrap().with(DST_PORT, dst.0, dst.1).unwrap().closed().unwrap()
    }

    #[test]
    fn flows_split_into_known_masks_match_the_same_packets() {
        let cubes = [
            udp((0, 0), (0x1000, 0xfffe)),
            udp((0, 0), (0x2000, 0xffff)),
            udp((0, 0), (0x3000, 0xfffc)),
            udp((7, 0xffff), (0x4000, 0xff00)),
        ];
        let mut candidates: Vec<Candidate> =
            cubes.iter().enumerate().map(|(rule, cube)| candidate(*cube, rule)).collect();
        let mut kept = ranked(4);
        assert_eq!(merge_to(&mut candidates, &mut kept, 2, 100), 2);
        // Two for the first, one for the second, four for the third; the last has no other mask to go to.
        assert_eq!(kept.len(), 2 + 1 + 4 + 1);
        for port in 0x0ff0..0x5000u64 {
            for source in [7, 8] {
                let packet = udp((source, 0xffff), (port, 0xffff));
                let before = cubes.iter().position(|cube| cube.contains(&packet));
                let met: Vec<usize> = kept
                    .iter()
                    .map(|ranked| &candidates[ranked.id.index()])
                    .filter(|candidate| candidate.cube.contains(&packet))
                    .map(|candidate| candidate.rule.index())
                    .collect();
                assert_eq!(met, before.into_iter().collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn a_flow_is_not_split_by_layers() {
        let frame = Cube::ANY.with(ETHER_TYPE, 0x05dc, 0xffff).and_then(Cube::closed).unwrap();
        let packet = Cube::ANY.layer(HAS_IPV4, true).and_then(Cube::closed).unwrap();
        let mut candidates: Vec<Candidate> = [frame, packet].map(|cube| candidate(cube, 0)).into();
        assert_eq!(merge_to(&mut candidates, &mut ranked(2), 1, usize::MAX), 2);
    }

    #[test]
    fn no_more_flows_are_spent_than_there_are() {
        let cubes = [udp((0, 0), (0x1000, 0xff00)), udp((0, 0), (0x2000, 0xffff))];
        let mut candidates: Vec<Candidate> = cubes.iter().map(|cube| candidate(*cube, 0)).collect();
        let mut kept = ranked(2);
        assert_eq!(merge_to(&mut candidates, &mut kept, 1, 254), 2);
        assert_eq!(merge_to(&mut candidates, &mut kept, 1, 255), 1);
        assert_eq!(kept.len(), 257);
    }
}
