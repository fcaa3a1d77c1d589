//! The packing of flows into priorities: each priority has room for few masks, so flows of many masks take
//! several.

use std::collections::VecDeque;

use device_model::PriorityTable;

/// Returns the number of priorities that flows need; `masks` has the number of flows of each mask.
#[must_use]
pub fn priorities_for(masks: impl Iterator<Item = usize>, table: PriorityTable) -> u32 {
    let shapes: Vec<Vec<()>> = masks.map(|flows| vec![(); flows]).collect();
    // No more than flows, which are far fewer than 2^32.
    bins(&shapes, table).len() as u32
}

/// Fills one priority after another: the most numerous masks left get its groups, and flows of the rarest
/// masks its single entries. The device gives groups to the masks that come first, so those of groups precede
/// the others.
pub(crate) fn bins<F: Copy>(shapes: &[Vec<F>], table: PriorityTable) -> Vec<Vec<F>> {
    let group_entries = table.group_entries.max(1) as usize;
    let groups_per_bin = table.groups.max(1) as usize;
    let singles_per_bin = (table.entries as usize).saturating_sub(groups_per_bin * group_entries);
    let mut left: Vec<&[F]> = shapes.iter().flat_map(|flows| flows.chunks(group_entries)).collect();
    left.sort_by_key(|flows| std::cmp::Reverse(flows.len()));
    let mut left = VecDeque::from(left);
    let mut bins = Vec::new();
    while !left.is_empty() {
        let groups = left.len().min(groups_per_bin);
        let mut bin: Vec<F> = left.drain(..groups).flatten().copied().collect();
        let (mut singles, mut rare) = (singles_per_bin, Vec::new());
        while let Some(flows) = left.pop_back() {
            let (now, later) = flows.split_at(flows.len().min(singles));
            rare.push(now);
            singles -= now.len();
            if !later.is_empty() {
                left.push_back(later);
                break;
            }
        }
        bin.extend(rare.into_iter().rev().flatten());
        bins.push(bin);
    }
    bins
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: PriorityTable = PriorityTable { entries: 26, groups: 6, group_entries: 4 };

    fn sizes(shapes: &[usize]) -> Vec<usize> {
        let mut flows = 0..;
        let shapes: Vec<Vec<u32>> =
            shapes.iter().map(|count| flows.by_ref().take(*count).collect()).collect();
        bins(&shapes, TABLE).iter().map(Vec::len).collect()
    }

    #[test]
    fn six_masks_and_single_flows_share_a_priority() {
        assert_eq!(sizes(&[4, 3, 2]), [9]);
        assert_eq!(sizes(&[2; 7]), [14]);
        assert_eq!(sizes(&[2; 8]), [14, 2]);
        assert_eq!(sizes(&[3; 7]), [20, 1]);
        assert_eq!(sizes(&[2, 2, 2, 2, 2, 2, 1, 1]), [14]);
        assert_eq!(sizes(&[2, 2, 2, 2, 2, 2, 1, 1, 1]), [14, 1]);
        assert_eq!(sizes(&[1; 9]), [8, 1]);
        // A mask of more flows than a group has is several groups.
        assert_eq!(sizes(&[25]), [25]);
        assert_eq!(sizes(&[26]), [26]);
        assert_eq!(sizes(&[29]), [26, 3]);
        assert_eq!(sizes(&[]), [0; 0]);
    }
}
