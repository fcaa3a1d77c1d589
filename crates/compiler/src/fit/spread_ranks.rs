//! Flows of ranks that a priority has no room for, moved to later ranks. A rank is the first that a flow can
//! have; most flows overlap few others and could have a later one. Where ranks of many masks take several
//! priorities, there would be fewer ranks otherwise, and more packets for workers.
//!
//! Why it is right: of two flows that overlap and have different ranks, the same one has the lower rank
//! afterwards. Flows of equal rank need no order.

use std::cmp::Reverse;

use device_model::{DeviceModel, PriorityTable};

use crate::fit::mask_key::{MaskKey, flows_by_mask};
use crate::fit::packing::priorities_for;
use crate::mask_index::{ByMask, MaskIndex};
use crate::rank::lower::Candidate;
use crate::rank::order::{Ranked, RankedFlows, Ranking};
use crate::specs::Reading;

/// Moves flows until each rank fits into one priority, as far as that is possible.
pub(crate) fn spread_ranks(profile: &DeviceModel, mut flows: RankedFlows) -> RankedFlows {
    if let Some(table) = profile.flow_table() {
        spread(profile, table, &flows.lowered.candidates, &mut flows.ranking);
    }
    flows
}

fn spread(profile: &DeviceModel, table: PriorityTable, candidates: &[Candidate], ranking: &mut Ranking) {
    let reading = Reading::of(profile);
    let is_received = |candidate: &Candidate| !candidate.is_sent() && !candidate.comes_last(profile);
    let mut ranks: Vec<Vec<usize>> = vec![Vec::new(); ranking.ranks() as usize];
    for (place, Ranked { id, rank }) in ranking.kept.iter().enumerate() {
        if is_received(&candidates[id.index()]) {
            ranks[*rank as usize].push(place);
        }
    }
    let of_place = |kept: &[Ranked], place: usize| &candidates[kept[place].id.index()];
    let of_rank =
        |places: &Vec<usize>| masks(places.iter().map(|place| of_place(&ranking.kept, *place)), reading);
    let masks: Vec<Vec<(MaskKey, usize)>> = ranks.iter().map(of_rank).collect();
    let mut single: Vec<usize> = masks.iter().map(|masks| single_flows(masks, table)).collect();
    let taken = masks.iter().map(|masks| priorities_for(masks.iter().map(|(_, flows)| *flows), table));
    let priorities: u32 = taken.sum();
    if priorities <= profile.priorities_per_program() {
        return;
    }
    let most = table.single_entries() as usize;
    let (mut later, mut met) = (MaskIndex::default(), Vec::new());
    for rank in (0..ranks.len()).rev() {
        let mask = |place: usize| MaskKey::of(of_place(&ranking.kept, place), reading);
        for place in rarest(&ranks[rank], mask, &masks[rank], table) {
            if single[rank] <= most {
                break;
            }
            let candidate = of_place(&ranking.kept, place);
            later.overlapping(&candidate.cube, &mut met);
            let next = met.drain(..).map(|other: usize| ranking.kept[other].rank as usize).min();
            let free = rank + 1..next.unwrap_or(ranks.len());
            let emptiest = free.min_by_key(|rank| single[*rank]).filter(|rank| single[*rank] < most);
            if let Some(emptiest) = emptiest.filter(|_| candidate.traps) {
                single[rank] -= 1;
                single[emptiest] += 1;
                ranking.kept[place].rank = emptiest as u32;
            }
        }
        for place in &ranks[rank] {
            let Candidate { cube, traps, .. } = of_place(&ranking.kept, *place);
            later.add(cube, *traps, *place, ranking.kept[*place].rank);
        }
    }
}

/// The masks of flows as the device sees them, most numerous first.
fn masks<'c>(flows: impl Iterator<Item = &'c Candidate>, reading: Reading) -> Vec<(MaskKey, usize)> {
    let mut masks: Vec<(MaskKey, usize)> = flows_by_mask(flows, reading).into_iter().collect();
    masks.sort_by_key(|(mask, flows)| (Reverse(*flows), *mask));
    masks
}

/// How many flows have no place in the groups of one priority.
fn single_flows(masks: &[(MaskKey, usize)], table: PriorityTable) -> usize {
    let all: usize = masks.iter().map(|(_, flows)| flows).sum();
    let groups = masks.iter().take(table.groups as usize);
    all - groups.map(|(_, flows)| (*flows).min(table.group_entries as usize)).sum::<usize>()
}

/// The flows of a rank whose masks get no group, those of the rarest masks first. `masks` has the masks
/// of the rank, most numerous first.
fn rarest(
    places: &[usize],
    mask: impl Fn(usize) -> MaskKey,
    masks: &[(MaskKey, usize)],
    table: PriorityTable,
) -> Vec<usize> {
    let numbers = masks.iter().enumerate().skip(table.groups as usize);
    let numbers: ByMask<MaskKey, usize> = numbers.map(|(number, (mask, _))| (*mask, number)).collect();
    let number = |place: usize| Some((Reverse(*numbers.get(&mask(place))?), place));
    let mut rarest: Vec<(Reverse<usize>, usize)> = places.iter().copied().filter_map(number).collect();
    rarest.sort_unstable();
    rarest.into_iter().map(|(_, place)| place).collect()
}
