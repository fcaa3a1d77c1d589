//! Fewer masks, for devices that have room for few different ones: the flows of a rare mask are split into
//! flows of a mask that has more bits and is there anyway. That costs flows and saves masks. It changes no
//! packet's outcome: the parts of a flow are disjoint, together match what it matched, and keep its rank.

use std::collections::BTreeMap;

use device_model::{DeviceModel, PriorityTable};

use crate::cover::MAX_FLOWS;
use crate::cube::{Cube, Image, WORDS};
use crate::fit::mask_key::{MAX_BITS, MaskKey, flows_by_mask, parts, splittable};
use crate::fit::packing::priorities_for;
use crate::flow_groups::most_split_flows;
use crate::mask_index::ByMask;
use crate::rank::lower::{Candidate, CandidateId};
use crate::rank::order::{Ranked, RankedFlows, Ranking};
use crate::specs::Reading;

/// How often merged masks are merged again.
const MAX_ROUNDS: usize = 16;

/// Spends flows to save masks, where the device has too few of these: first over all priorities, then within
/// each. No two flows of a rank are equal in the end.
pub(crate) fn merge_masks(profile: &DeviceModel, mut flows: RankedFlows) -> RankedFlows {
    let RankedFlows { lowered, ranking } = &mut flows;
    merge(profile, &mut lowered.candidates, ranking);
    drop_equal(Reading::of(profile), &lowered.candidates, &mut ranking.kept);
    flows
}

/// Devices refuse a flow whose match is installed at its priority already. So of flows of one rank with equal
/// matches only the first is kept, except that all copies are kept, because each copies the packet.
///
/// That is right: each flow that traps packets is right for every packet that reaches it (see
/// [`limit_ranks`](crate::fit::limit_ranks); pairs settled in [`order`](crate::rank::order) share no packet that reaches
/// them). Equal flows of one rank are reached by the same packets, so any one of them is enough.
///
/// Flows are equal because their rules are, because they were split into flows of one mask, or because the
/// device matches no TCP or UDP header of any ports.
fn drop_equal(reading: Reading, candidates: &[Candidate], kept: &mut Vec<Ranked>) {
    let mut known: ByMask<(u32, Image, Image), ()> = ByMask::default();
    kept.retain(|Ranked { id, rank }| {
        let Candidate { cube, traps, .. } = &candidates[id.index()];
        let Cube { value, mask, .. } = reading.as_matched(cube);
        !traps || known.insert((*rank, value, mask), ()).is_none()
    });
}

fn merge(profile: &DeviceModel, candidates: &mut Vec<Candidate>, ranking: &mut Ranking) {
    let most_flows = profile.flows_per_program().unwrap_or(MAX_FLOWS).min(MAX_FLOWS);
    let budget = |flows: usize| most_flows.min(most_split_flows(profile, flows)).saturating_sub(flows);
    let reading = Reading::of(profile);
    if let Some(most) = profile.max_shapes {
        let flows = ranking.kept.len();
        merge_to(reading, candidates, &mut ranking.kept, most as usize, budget(flows));
        // A reload needs room for the masks of another program beside this one, which is worth some flows.
        let flows = ranking.kept.len();
        let spare = budget(flows).min(flows / 4);
        merge_to(reading, candidates, &mut ranking.kept, most as usize / 2, spare);
    }
    let Some(table) = profile.flow_table() else { return };
    let offered = profile.priorities_per_program();
    if ranking.ranks() <= offered {
        let budget = budget(ranking.kept.len());
        merge_in_ranks(profile, table, candidates, ranking, budget);
    }
}

/// The flows of one rank, or those that the device applies last.
struct RankMasks {
    /// `None`: those that it applies last.
    rank: Option<u32>,
    kept: Vec<Ranked>,
    masks: Masks,
    /// How many copies each mask has.
    copies: Vec<usize>,
}

impl RankMasks {
    fn of(candidates: &[Candidate], rank: Option<u32>, kept: Vec<Ranked>, reading: Reading) -> Self {
        let own = kept.iter().map(|ranked| &candidates[ranked.id.index()]);
        let copies = flows_by_mask(own.filter(|candidate| !candidate.traps), reading);
        let masks = Masks::of(candidates, &kept, reading);
        Self { rank, kept, masks, copies: copies.into_values().collect() }
    }

    /// How many priorities the flows take once these masks are merged.
    fn priorities(&self, merging: &Merging, table: PriorityTable) -> u32 {
        let [received, sent] = [false, true].map(|is_sent| {
            let groups = self.masks.groups.iter().zip(merging.into.iter().zip(&merging.flows));
            let left = groups.filter(|(group, (into, _))| group.key.is_sent == is_sent && into.is_none());
            priorities_for(left.map(|(_, (_, flows))| *flows), table)
        });
        let copying = priorities_for(self.copies.iter().copied(), table);
        // Flows that trap packets may share the priority of the last copies.
        sent.max(copying.saturating_sub(1) + received).max(copying)
    }
}

/// Merges within each rank, as little as the priorities demand: the more of them a rank may spread over, the
/// more masks it keeps. The number of flows of each mask is enough to find out how many priorities a rank
/// takes, so flows are split once that is known.
fn merge_in_ranks(
    profile: &DeviceModel,
    table: PriorityTable,
    candidates: &mut Vec<Candidate>,
    ranking: &mut Ranking,
    budget: usize,
) {
    let reading = Reading::of(profile);
    let mut by_rank: BTreeMap<Option<u32>, Vec<Ranked>> = BTreeMap::new();
    for ranked in &ranking.kept {
        let own = (!candidates[ranked.id.index()].comes_last(profile)).then_some(ranked.rank);
        by_rank.entry(own).or_default().push(*ranked);
    }
    let ranks = by_rank.into_iter().map(|(rank, kept)| RankMasks::of(candidates, rank, kept, reading));
    let ranks: Vec<RankMasks> = ranks.collect();
    let offered = profile.priorities_per_program();
    // At most so many priorities for one rank.
    let merged = |most: u32| {
        let (mut left, mut taken) = (budget, 0);
        let merge = |rank: &RankMasks| {
            let merging = rank.merged(rank.rank.map_or(1, |_| most), table, &mut left);
            taken += rank.priorities(&merging, table);
            merging
        };
        let merged: Vec<Merging> = ranks.iter().map(merge).collect();
        (merged, taken <= offered)
    };
    let (mut fits, mut fails) = (1, offered + 1);
    while fails - fits > 1 {
        let most = u32::midpoint(fits, fails);
        *(if merged(most).1 { &mut fits } else { &mut fails }) = most;
    }
    let (merged, _) = merged(fits);
    let split = ranks
        .into_iter()
        .zip(merged)
        .map(|(RankMasks { kept, masks, .. }, merging)| split(candidates, kept, &masks, &merging));
    ranking.kept = split.collect::<Vec<_>>().concat();
    ranking.kept.sort_by_key(|Ranked { id, .. }| (candidates[id.index()].rule, *id));
}

impl RankMasks {
    /// Merges masks until the flows take at most so many priorities; `left` is lowered by the flows that this
    /// adds.
    fn merged(&self, most: u32, table: PriorityTable, left: &mut usize) -> Merging {
        let merging = Merging::of(&self.masks);
        if self.priorities(&merging, table) <= most {
            return merging;
        }
        let masks = table.groups.saturating_mul(most) as usize;
        let room = masks.saturating_mul(table.group_entries as usize).saturating_sub(self.kept.len());
        merging.to(&self.masks, masks, room.min(*left), left)
    }
}

/// Replaces kept candidates until there are at most `most` masks, for at most `budget` flows more. Returns
/// how many masks are left.
fn merge_to(
    reading: Reading,
    candidates: &mut Vec<Candidate>,
    kept: &mut Vec<Ranked>,
    most: usize,
    budget: usize,
) -> usize {
    let masks = Masks::of(candidates, kept, reading);
    let merging = Merging::of(&masks).to(&masks, most, budget, &mut { budget });
    *kept = split(candidates, std::mem::take(kept), &masks, &merging);
    merging.into.iter().filter(|into| into.is_none()).count()
}

/// The masks of some flows.
struct Masks {
    groups: Vec<MaskGroup>,
    /// The group of each flow; those that copy have none.
    of: Vec<Option<usize>>,
    families: Families,
}

/// Flows of one mask.
struct MaskGroup {
    key: MaskKey,
    flows: usize,
}

impl Masks {
    fn of(candidates: &[Candidate], kept: &[Ranked], reading: Reading) -> Self {
        let mut place: ByMask<MaskKey, usize> = ByMask::default();
        let mut groups: Vec<MaskGroup> = Vec::new();
        let own = kept.iter().map(|ranked| &candidates[ranked.id.index()]);
        let of = own.map(|candidate| {
            let key = candidate.traps.then(|| MaskKey::of(candidate, reading))?;
            let group = *place.entry(key).or_insert_with(|| {
                groups.push(MaskGroup { key, flows: 0 });
                groups.len() - 1
            });
            groups[group].flows += 1;
            Some(group)
        });
        let of = of.collect();
        Self { families: Families::of(&groups, reading), groups, of }
    }
}

/// Which masks are merged into others.
struct Merging {
    /// The number of flows that each group has by now.
    flows: Vec<usize>,
    /// The group into whose mask a group's flows are split, by group.
    into: Vec<Option<usize>>,
    /// The next position of each group in its family to try: a mask that was not suitable will not be later.
    next: Vec<usize>,
}

impl Merging {
    /// None is merged yet.
    fn of(masks: &Masks) -> Self {
        Self {
            flows: masks.groups.iter().map(|group| group.flows).collect(),
            into: vec![None; masks.groups.len()],
            next: masks.families.of.iter().map(|(_, place)| place + 1).collect(),
        }
    }

    /// Merges until there are at most `most` masks, for at most `budget` flows more, by which `left` is
    /// lowered.
    fn to(mut self, masks: &Masks, most: usize, budget: usize, left: &mut usize) -> Self {
        let (mut count, mut budget_left) = (masks.groups.len(), budget);
        for _ in 0..MAX_ROUNDS {
            if count <= most {
                break;
            }
            let merged = self.merge(masks, count - most, &mut budget_left);
            if merged == 0 {
                break;
            }
            count -= merged;
        }
        *left -= budget - budget_left;
        self
    }

    /// Merges groups into others, cheapest first; a group is not both merged and merged into in one round.
    fn merge(&mut self, masks: &Masks, wanted: usize, left: &mut usize) -> usize {
        let mut pairs: Vec<(usize, usize, usize)> = Vec::new();
        for from in (0..masks.groups.len()).filter(|from| self.into[*from].is_none()).collect::<Vec<_>>() {
            // The fewest bits are the least cost.
            let into = self.nearest(&masks.families, from);
            let cost =
                into.map(|(bits, into)| (self.flows[from].saturating_mul((1usize << bits) - 1), from, into));
            pairs.extend(cost.filter(|(cost, ..)| *cost <= *left));
        }
        pairs.sort_unstable();
        let mut is_target = vec![false; masks.groups.len()];
        let mut merged = 0;
        for (cost, from, into) in pairs {
            if merged == wanted {
                break;
            }
            if is_target[from] || self.into[into].is_some() || cost > *left {
                continue;
            }
            *left -= cost;
            self.flows[into] += self.flows[from] + cost;
            self.into[from] = Some(into);
            is_target[into] = true;
            merged += 1;
        }
        merged
    }

    /// The mask that a group's flows are split into by the fewest bits, and by how many; none that is split
    /// itself.
    fn nearest(&mut self, families: &Families, from: usize) -> Option<(u32, usize)> {
        let (family, place) = families.of[from];
        let family = &families.list[family];
        let bits = family.members[place].0;
        let near = family.members.iter().enumerate().skip(self.next[from]);
        let mut near = near.take_while(|(_, (more, _))| more - bits <= MAX_BITS);
        let found =
            near.find(|(other, (_, into))| self.into[*into].is_none() && family.is_subset(place, *other));
        self.next[from] = found.map_or(family.members.len(), |(place, _)| place);
        found.map(|(_, (more, into))| (more - bits, *into))
    }

    /// The group whose mask the flows of a group have in the end.
    fn last(&self, mut group: usize) -> usize {
        while let Some(into) = self.into[group] {
            group = into;
        }
        group
    }
}

/// The masks by families: flows can be split into flows of another mask of the family.
struct Families {
    list: Vec<Family>,
    /// The family of each group, and the group's position there.
    of: Vec<(usize, usize)>,
}

/// Masks that differ in splittable bits only, in ascending order of their number of bits: the flows of a mask
/// can only be split into those of a later one.
struct Family {
    /// The number of bits of each mask, and the group.
    members: Vec<(u32, usize)>,
    /// The splittable words, one mask after another.
    words: Vec<u64>,
    width: usize,
}

impl Families {
    fn of(groups: &[MaskGroup], reading: Reading) -> Self {
        let splittable = splittable();
        let cut: Vec<usize> = (0..WORDS).filter(|word| splittable[*word] != 0).collect();
        let mut by_rest: ByMask<Vec<u64>, Vec<(u32, usize)>> = ByMask::default();
        for (index, MaskGroup { key, .. }) in groups.iter().enumerate() {
            by_rest.entry(key.family(&splittable, reading)).or_default().push((key.bits(), index));
        }
        let mut families = Self { list: Vec::new(), of: vec![(0, 0); groups.len()] };
        for mut members in by_rest.into_values() {
            members.sort_unstable();
            let words = |(_, group): &(u32, usize)| {
                cut.iter().map(|word| groups[*group].key.mask[*word]).collect::<Vec<u64>>()
            };
            let words = members.iter().flat_map(words).collect();
            for (place, (_, group)) in members.iter().enumerate() {
                families.of[*group] = (families.list.len(), place);
            }
            families.list.push(Family { members, words, width: cut.len() });
        }
        families
    }
}

impl Family {
    /// Whether every bit of the first mask is one of the second's.
    fn is_subset(&self, one: usize, other: usize) -> bool {
        let [one, other] = [one, other].map(|place| &self.words[place * self.width..][..self.width]);
        one.iter().zip(other).all(|(mask, other)| mask & !other == 0)
    }
}

/// The kept candidates, those of merged masks split.
fn split(
    candidates: &mut Vec<Candidate>,
    kept: Vec<Ranked>,
    masks: &Masks,
    merging: &Merging,
) -> Vec<Ranked> {
    if merging.into.iter().all(Option::is_none) {
        return kept;
    }
    let mut cut = Vec::with_capacity(kept.len());
    for (ranked, group) in kept.into_iter().zip(&masks.of) {
        let Some(group) = group.filter(|group| merging.into[*group].is_some()) else {
            cut.push(ranked);
            continue;
        };
        let whole = candidates[ranked.id.index()];
        for cube in parts(&whole.cube, &masks.groups[merging.last(group)].key.mask) {
            cut.push(Ranked { id: CandidateId::of(candidates.len()), ..ranked });
            candidates.push(Candidate { cube, ..whole });
        }
    }
    cut
}

#[cfg(test)]
mod tests {
    use program::RuleId;

    use super::*;
    use crate::cube::{DST_PORT, ETHER_TYPE, HAS_IPV4, HAS_UDP, SRC_PORT};
    use crate::rank::lower::ActionId;

    fn candidate(cube: Cube, rule: usize) -> Candidate {
        Candidate {
            cube,
            rule: RuleId::of(rule),
            action: ActionId(0),
            traps: true,
            is_compared: false,
            is_cover: false,
        }
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
        assert_eq!(merge_to(Reading::default(), &mut candidates, &mut kept, 2, 100), 2);
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
    fn of_equal_parts_of_one_rank_the_first_is_kept() {
        let cubes = [
            udp((0x2000, 0xff00), (0x1000, 0xfffe)),
            udp((0x2000, 0xfffe), (0x1000, 0xfffe)),
            udp((0x2000, 0xfffe), (0x1000, 0xffff)),
            udp((0x2000, 0xfffe), (0x1001, 0xffff)),
        ];
        let mut candidates: Vec<Candidate> =
            cubes.iter().enumerate().map(|(rule, cube)| candidate(*cube, rule)).collect();
        let mut kept = ranked(4);
        assert_eq!(merge_to(Reading::default(), &mut candidates, &mut kept, 1, 1 << 20), 1);
        let matches = |kept: &[Ranked], candidates: &[Candidate], packet: &Cube| -> Vec<usize> {
            let own = kept.iter().map(|ranked| &candidates[ranked.id.index()]);
            own.filter(|flow| flow.cube.contains(packet)).map(|flow| flow.rule.index()).collect()
        };
        let shared = udp((0x2001, 0xffff), (0x1001, 0xffff));
        assert_eq!(matches(&kept, &candidates, &shared), [0, 1, 3]);
        // Another rank is another priority.
        let other = Ranked { rank: 1, ..kept[0] };
        kept.push(other);
        drop_equal(Reading::default(), &candidates, &mut kept);
        assert_eq!(matches(&kept, &candidates, &shared), [0]);
        assert_eq!(matches(&kept, &candidates, &udp((0x2080, 0xffff), (0x1000, 0xffff))), [0]);
        assert!(kept.iter().any(|ranked| ranked.rank == other.rank));
    }

    #[test]
    fn a_flow_is_not_split_by_layers() {
        let frame = Cube::ANY.with(ETHER_TYPE, 0x05dc, 0xffff).and_then(Cube::closed).unwrap();
        let packet = Cube::ANY.layer(HAS_IPV4, true).and_then(Cube::closed).unwrap();
        let mut candidates: Vec<Candidate> = [frame, packet].map(|cube| candidate(cube, 0)).into();
        assert_eq!(merge_to(Reading::default(), &mut candidates, &mut ranked(2), 1, usize::MAX), 2);
    }

    #[test]
    fn no_more_flows_are_spent_than_there_are() {
        let cubes = [udp((0, 0), (0x1000, 0xff00)), udp((0, 0), (0x2000, 0xffff))];
        let mut candidates: Vec<Candidate> = cubes.iter().map(|cube| candidate(*cube, 0)).collect();
        let mut kept = ranked(2);
        assert_eq!(merge_to(Reading::default(), &mut candidates, &mut kept, 1, 254), 2);
        assert_eq!(merge_to(Reading::default(), &mut candidates, &mut kept, 1, 255), 1);
        assert_eq!(kept.len(), 257);
    }
}
