//! Ranks to the priorities of one device. Where a priority takes few masks only, the flows of one rank are
//! spread over several priorities: flows of equal rank need no order. What the device takes after all others
//! stands in one priority of its own. Called by `draft`.

use std::collections::BTreeMap;

use device_model::{DeviceProfile, PriorityTable};

use super::cube::{Image, SENT};
use super::priority::Candidate;

/// The flows with their priorities, and what they need.
pub(super) struct Packed {
    /// The kept candidates in the order of installation: index and priority.
    pub(super) flows: Vec<(usize, u32)>,
    /// How many priorities that takes.
    pub(super) priorities: u32,
    /// The rank that takes most priorities, with its number of masks, if one takes several.
    pub(super) widest: Option<Widest>,
    /// The first of the flows after all others that has no room in their one priority.
    pub(super) overflow: Option<usize>,
}

impl Packed {
    /// Whether so many priorities suffice.
    pub(super) fn fits(&self, priorities: u32) -> bool {
        self.priorities <= priorities && self.overflow.is_none()
    }
}

/// A rank that takes several priorities.
pub(super) struct Widest {
    pub(super) priorities: u32,
    pub(super) masks: usize,
    /// The candidate of the mask that has fewest flows.
    pub(super) candidate: usize,
}

/// Gives every kept candidate its priority.
pub(super) fn pack(candidates: &[Candidate], kept: &[(usize, u32)], profile: &DeviceProfile) -> Packed {
    let mut ranked = kept.to_vec();
    // Within a rank, the policy's order stays.
    ranked.sort_by_key(|(index, rank)| (*rank, *index));
    let Some(table) = profile.priority_table else {
        let priorities = ranked.last().map_or(0, |(_, rank)| rank + 1);
        return Packed { flows: ranked, priorities, widest: None, overflow: None };
    };
    let (late, ranked): (Vec<_>, Vec<_>) =
        ranked.into_iter().partition(|(index, _)| candidates[*index].comes_last(profile));
    let mut packed =
        Packed { flows: Vec::with_capacity(kept.len()), priorities: 0, widest: None, overflow: None };
    for rank in ranked.chunk_by(|one, other| one.1 == other.1) {
        let found = pack_rank(candidates, rank, table, &mut packed);
        let most = packed.widest.as_ref().map_or(1, |known| known.priorities);
        packed.widest = found.filter(|found| found.priorities > most).or(packed.widest.take());
    }
    pack_last(candidates, &late, table, &mut packed);
    packed
}

/// What the device takes after all others, in the order of its ranks: where two of these flows meet, the mask
/// that came first is looked at first. The first masks get groups, what comes after them stands alone.
fn pack_last(candidates: &[Candidate], late: &[(usize, u32)], table: PriorityTable, packed: &mut Packed) {
    if late.is_empty() {
        return;
    }
    for direction in [0, 1] {
        let flows = late.iter().map(|(index, _)| *index);
        let flows = flows.filter(|index| candidates[*index].cube.value_of(SENT) == direction);
        let mut groups: Vec<(Image, u32)> = Vec::new();
        let mut alone = 0;
        for index in flows {
            let mask = candidates[index].cube.told().mask;
            packed.flows.push((index, packed.priorities));
            let has_room = |group: &(Image, u32)| group.0 == mask && group.1 < table.group_entries;
            match groups.iter().position(has_room) {
                Some(group) => groups[group].1 += 1,
                None if groups.len() < table.groups as usize => groups.push((mask, 1)),
                None => alone += 1,
            }
            if alone > table.entries.saturating_sub(table.groups * table.group_entries) {
                packed.overflow = packed.overflow.or(Some(index));
            }
        }
    }
    packed.priorities += 1;
}

/// Copies, received and sent packets have tables of their own. Copies come before what takes the packet.
/// Returns who takes several priorities, if anybody does.
fn pack_rank(
    candidates: &[Candidate],
    rank: &[(usize, u32)],
    table: PriorityTable,
    packed: &mut Packed,
) -> Option<Widest> {
    let sent = |index: &usize| candidates[*index].cube.value_of(SENT) == 1;
    let (egress, ingress): (Vec<usize>, Vec<usize>) = rank.iter().map(|(index, _)| *index).partition(sent);
    let (traps, copies): (Vec<usize>, Vec<usize>) =
        ingress.into_iter().partition(|index| candidates[*index].traps);
    let first = packed.priorities;
    let mut next = first;
    let mut widest: Option<Widest> = None;
    let mut place = |flows: &[usize], start: u32| -> u32 {
        let shapes = shapes(candidates, flows);
        let bins = bins(&shapes, table);
        let taken = bins.len() as u32;
        for (bin, flows) in bins.into_iter().enumerate() {
            packed.flows.extend(flows.into_iter().map(|index| (index, start + bin as u32)));
        }
        if taken > widest.as_ref().map_or(1, |widest| widest.priorities) {
            let candidate = shapes.last().and_then(|flows| flows.first()).copied().unwrap_or(0);
            widest = Some(Widest { priorities: taken, masks: shapes.len(), candidate });
        }
        taken
    };
    let copying = place(&copies, first);
    // What takes packets may stand beside the last copies.
    let taking = first + copying.saturating_sub(1);
    next = next.max(first + copying).max(taking + place(&traps, taking)).max(first + place(&egress, first));
    packed.priorities = next;
    let from = packed.flows.partition_point(|(_, priority)| *priority < first);
    packed.flows[from..].sort_by_key(|(_, priority)| *priority);
    widest
}

/// The flows by what a device is told of their masks, most numerous first.
fn shapes(candidates: &[Candidate], flows: &[usize]) -> Vec<Vec<usize>> {
    let mut by_mask: BTreeMap<Image, Vec<usize>> = BTreeMap::new();
    for index in flows {
        by_mask.entry(candidates[*index].cube.told().mask).or_default().push(*index);
    }
    let mut shapes: Vec<Vec<usize>> = by_mask.into_values().collect();
    shapes.sort_by_key(|flows| (std::cmp::Reverse(flows.len()), flows.first().copied()));
    shapes
}

/// Cuts shapes into groups and fills one priority after another; what stands alone fits beside the groups.
fn bins(shapes: &[Vec<usize>], table: PriorityTable) -> Vec<Vec<usize>> {
    let group_entries = table.group_entries.max(1) as usize;
    let groups_per_bin = table.groups.max(1) as usize;
    let singles_per_bin = (table.entries as usize).saturating_sub(groups_per_bin * group_entries);
    let pieces = shapes.iter().flat_map(|flows| flows.chunks(group_entries));
    let (groups, singles): (Vec<&[usize]>, Vec<&[usize]>) = pieces.partition(|flows| flows.len() > 1);
    let mut bins: Vec<Bin> = groups.chunks(groups_per_bin).map(Bin::of).collect();
    let mut filled = 0;
    for single in singles {
        while bins.get(filled).is_some_and(|bin| bin.groups + bin.singles >= groups_per_bin + singles_per_bin)
        {
            filled += 1;
        }
        if filled == bins.len() {
            bins.push(Bin::of(&[]));
        }
        bins[filled].flows.extend_from_slice(single);
        bins[filled].singles += 1;
    }
    bins.into_iter().map(|bin| bin.flows).collect()
}

/// One priority in the making.
struct Bin {
    flows: Vec<usize>,
    groups: usize,
    /// Flows that have a mask for themselves: in a group that is left, or beside all groups.
    singles: usize,
}

impl Bin {
    fn of(groups: &[&[usize]]) -> Self {
        Self { flows: groups.concat(), groups: groups.len(), singles: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: PriorityTable = PriorityTable { entries: 26, groups: 6, group_entries: 4 };

    fn sizes(shapes: &[usize]) -> Vec<usize> {
        let mut flows = 0..;
        let shapes: Vec<Vec<usize>> =
            shapes.iter().map(|count| flows.by_ref().take(*count).collect()).collect();
        bins(&shapes, TABLE).iter().map(Vec::len).collect()
    }

    #[test]
    fn six_masks_share_a_priority_and_single_flows_stand_beside_them() {
        assert_eq!(sizes(&[4, 3, 2]), [9]);
        assert_eq!(sizes(&[2; 7]), [12, 2]);
        assert_eq!(sizes(&[2, 2, 2, 2, 2, 2, 1, 1]), [14]);
        assert_eq!(sizes(&[2, 2, 2, 2, 2, 2, 1, 1, 1]), [14, 1]);
        assert_eq!(sizes(&[1; 9]), [8, 1]);
        // A mask of more flows than a group has is several groups.
        assert_eq!(sizes(&[25]), [25]);
        assert_eq!(sizes(&[26]), [24, 2]);
        assert_eq!(sizes(&[]), [0; 0]);
    }
}
