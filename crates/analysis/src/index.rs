//! Which cells may overlap a given one, without asking all: they are sorted along the axis that tells them
//! apart best, in blocks that know how far they reach. Answers too many, never too few.

use super::axes::Axes;
use super::cell::Cell;

const BLOCK: usize = 32;

/// The cells of one policy.
pub(super) struct Index {
    axis: Option<usize>,
    /// First and last segment on the axis, and the cell's number; sorted.
    entries: Vec<(u32, u32, u32)>,
    /// The furthest segment of each block.
    reach: Vec<u32>,
}

impl Index {
    pub(super) fn of(axes: &Axes, cells: &[&Cell]) -> Self {
        let sorted = |axis: usize| {
            let hulls = (0u32..).zip(cells).map(|(number, cell)| {
                let (low, high) = hull(axes, axis, cell);
                (low, high, number)
            });
            let mut entries: Vec<_> = hulls.collect();
            entries.sort_unstable();
            entries
        };
        let best =
            (0..axes.list.len()).map(|axis| (apart(&sorted(axis)), axis)).max_by_key(|(apart, _)| *apart);
        let axis = best.map(|(_, axis)| axis);
        let entries = match axis {
            Some(axis) => sorted(axis),
            None => (0..cells.len() as u32).map(|number| (0, 0, number)).collect(),
        };
        let reach = entries.chunks(BLOCK).map(|block| block.iter().map(|entry| entry.1).max().unwrap_or(0));
        Self { axis, reach: reach.collect(), entries }
    }

    /// The numbers of the cells that may overlap this one, sorted.
    pub(super) fn near(&self, axes: &Axes, cell: &Cell) -> Vec<u32> {
        let (low, high) = self.axis.map_or((0, 0), |axis| hull(axes, axis, cell));
        let mut near = Vec::new();
        for (block, reach) in self.entries.chunks(BLOCK).zip(&self.reach) {
            if block[0].0 > high {
                break;
            }
            if *reach >= low {
                near.extend(
                    block.iter().filter(|entry| entry.0 <= high && low <= entry.1).map(|entry| entry.2),
                );
            }
        }
        near.sort_unstable();
        near
    }
}

/// From where to where the cell goes; everywhere, if some of its packets do not have the field.
fn hull(axes: &Axes, axis: usize, cell: &Cell) -> (u32, u32) {
    let of = &axes.list[axis];
    if of.present.contains(&cell.structure) { cell.sets[axis].hull() } else { of.all.hull() }
}

/// How many pairs the axis tells apart.
fn apart(entries: &[(u32, u32, u32)]) -> u64 {
    let mut ends: Vec<u32> = entries.iter().map(|entry| entry.1).collect();
    ends.sort_unstable();
    entries.iter().map(|entry| ends.partition_point(|end| *end < entry.0) as u64).sum()
}
