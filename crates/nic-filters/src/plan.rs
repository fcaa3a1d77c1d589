//! The steps from the filters on an interface to others.
//!
//! New filters are inserted first, those of the lowest rank first, then old ones are removed from the highest
//! location to the lowest. With it every packet meets the old filters or the new ones after each step, if new
//! filters are at locations in the order of their ranks:
//!
//! - While filters are inserted all old ones are there. Take the first filter that matches a packet. If it is
//!   an old one, the packet meets the old filters, of which it is the first. If it is a new one, those of
//!   lower ranks were inserted before it, and none of them matches: it is the first of the new ones.
//! - While filters are removed all new ones are there. If the first filter that matches is a new one, it is
//!   the first of the new ones. If it is an old one, those at lower locations are still there, and none of
//!   them matches: it is the first of the old ones.
//!
//! New and old filters need no order between them. On a NIC that has no order, all filters of a program that
//! match a packet have the same destination, so whichever it takes is right for one of the two.
//!
//! There are two exceptions. A NIC may not take two filters with the same match: there a filter whose
//! destination changes is replaced, and its packets meet neither for the time of a call. And a NIC whose
//! filters all have the same masks refuses those with other masks while one is there: if a change is to other
//! masks, all old filters are removed first, and their packets meet neither until the new ones are there.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::filter::{Filter, FilterMatch};
use crate::model::{FilterModel, FilterOrder};

/// A filter on the interface that is ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InstalledFilter {
    pub(crate) location: u32,
    pub(crate) filter: Filter,
}

/// A wanted filter with its destination on the interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RankedFilter {
    pub(crate) rank: u16,
    pub(crate) filter: Filter,
}

/// One call, or two for a replacement where the driver chooses locations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Inserts a filter at a free location; `None`: the driver chooses it.
    Insert { location: Option<u32>, filter: Filter },
    /// Replaces a filter by one with the same match.
    Replace { location: u32, old: Filter, new: Filter },
    /// Removes a filter.
    Remove { location: u32, filter: Filter },
}

/// The steps, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    /// The filters that stay as they are.
    pub(crate) kept: Vec<InstalledFilter>,
    /// The number of steps at the beginning that remove filters with other masks.
    pub(crate) removed_first: usize,
}

/// Why there is no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// There are too few free locations.
    #[error(
        "{needed} filters have to be inserted before others are removed, and the table of {size} has {free} free \
         locations (hint: write fewer rules, or remove filters of others)"
    )]
    NoRoom {
        /// The filters.
        needed: usize,
        /// The free locations.
        free: usize,
        /// The size of the table.
        size: u32,
    },
}

/// The table of an interface.
pub(crate) struct Table<'t> {
    pub(crate) model: &'t FilterModel,
    /// Our filters.
    pub(crate) installed: &'t [InstalledFilter],
    /// The locations of others.
    pub(crate) occupied: &'t BTreeSet<u32>,
    /// How many locations there are; `None`: it is not known.
    pub(crate) size: Option<u32>,
}

/// The plan to these filters, which are in the order of their ranks and have different matches.
pub(crate) fn plan(table: &Table<'_>, wanted: &[RankedFilter]) -> Result<Plan, PlanError> {
    let masks =
        wanted.first().filter(|_| table.model.one_mask).map(|wanted| wanted.filter.matches.shared_masks());
    let has_others = |ours: &InstalledFilter| {
        masks.as_ref().is_some_and(|masks| *masks != ours.filter.matches.shared_masks())
    };
    let (first, others): (Vec<InstalledFilter>, Vec<_>) =
        table.installed.iter().cloned().partition(has_others);
    // The locations of filters that are removed first are free afterwards.
    let mut plan = plan_beside(&Table { installed: &others, ..*table }, wanted)?;
    plan.removed_first = first.len();
    plan.steps.splice(0..0, removals(&first));
    Ok(plan)
}

/// The removals of filters, from the highest location to the lowest.
fn removals<'f>(filters: impl IntoIterator<Item = &'f InstalledFilter>) -> Vec<Step> {
    let mut removed: Vec<&InstalledFilter> = filters.into_iter().collect();
    removed.sort_by_key(|ours| std::cmp::Reverse(ours.location));
    let removal =
        |ours: &InstalledFilter| Step::Remove { location: ours.location, filter: ours.filter.clone() };
    removed.into_iter().map(removal).collect()
}

/// The plan to filters that can be inserted beside those that are there.
fn plan_beside(table: &Table<'_>, wanted: &[RankedFilter]) -> Result<Plan, PlanError> {
    let index: HashMap<&Filter, usize> =
        wanted.iter().enumerate().map(|(at, wanted)| (&wanted.filter, at)).collect();
    let mut same: Vec<(u32, usize)> = table
        .installed
        .iter()
        .filter_map(|ours| index.get(&ours.filter).map(|at| (ours.location, *at)))
        .collect();
    same.sort_unstable();
    same.dedup_by_key(|(_, at)| *at);
    let is_ordered = table.model.order == FilterOrder::Location;
    let mut kept = longest_in_order(&same, |at| if is_ordered { wanted[at].rank } else { 0 });
    let replaced = replacements(table, wanted, &kept);
    let mut plan = Plan::default();
    let locations = if table.model.driver_chooses_location {
        let inserted = (0..wanted.len()).filter(|at| !kept.contains_key(at) && !replaced.contains_key(at));
        inserted.map(|at| (at, None)).collect()
    } else {
        assign(table, wanted, &mut kept, &replaced)?
    };
    for (at, wanted) in wanted.iter().enumerate() {
        if let Some(location) = locations.get(&at) {
            plan.steps.push(Step::Insert { location: *location, filter: wanted.filter.clone() });
        }
    }
    for (at, ours) in &replaced {
        let (location, old) = (ours.location, ours.filter.clone());
        plan.steps.push(Step::Replace { location, old, new: wanted[*at].filter.clone() });
    }
    let stays: BTreeSet<u32> =
        kept.values().copied().chain(replaced.values().map(|ours| ours.location)).collect();
    plan.steps.extend(removals(table.installed.iter().filter(|ours| !stays.contains(&ours.location))));
    let is_kept = |ours: &&InstalledFilter| kept.values().any(|location| *location == ours.location);
    plan.kept = table.installed.iter().filter(is_kept).cloned().collect();
    Ok(plan)
}

/// The most filters that can stay: those of a longest sequence in which ranks do not decrease with the
/// location. By the index of the wanted filter, with their locations.
fn longest_in_order(same: &[(u32, usize)], rank: impl Fn(usize) -> u16) -> BTreeMap<usize, u32> {
    // Patience sorting: `ends[n]` is the end of a sequence of n + 1 filters that has the lowest last rank.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = vec![None; same.len()];
    for (at, (_, wanted)) in same.iter().enumerate() {
        let longer = ends.partition_point(|end| rank(same[*end].1) <= rank(*wanted));
        before[at] = longer.checked_sub(1).map(|shorter| ends[shorter]);
        match ends.get_mut(longer) {
            Some(end) => *end = at,
            None => ends.push(at),
        }
    }
    let mut kept = BTreeMap::new();
    let mut next = ends.last().copied();
    while let Some(at) = next {
        kept.insert(same[at].1, same[at].0);
        next = before[at];
    }
    kept
}

/// The old filters that have to go before a new one with the same match comes.
fn replacements(
    table: &Table<'_>,
    wanted: &[RankedFilter],
    kept: &BTreeMap<usize, u32>,
) -> BTreeMap<usize, InstalledFilter> {
    if table.model.takes_equal_matches {
        return BTreeMap::new();
    }
    let by_match: HashMap<&FilterMatch, &InstalledFilter> =
        table.installed.iter().map(|ours| (&ours.filter.matches, ours)).collect();
    let new = wanted.iter().enumerate().filter(|(at, _)| !kept.contains_key(at));
    new.filter_map(|(at, wanted)| Some((at, (*by_match.get(&wanted.filter.matches)?).clone()))).collect()
}

/// Locations for the filters that are inserted. Where there is no room between those that stay, more of them
/// are moved.
fn assign(
    table: &Table<'_>,
    wanted: &[RankedFilter],
    kept: &mut BTreeMap<usize, u32>,
    replaced: &BTreeMap<usize, InstalledFilter>,
) -> Result<BTreeMap<usize, Option<u32>>, PlanError> {
    let used: BTreeSet<u32> =
        table.installed.iter().map(|ours| ours.location).chain(table.occupied.iter().copied()).collect();
    let size = table.size.unwrap_or_else(|| {
        let above = used.last().map_or(0, |last| last + 1);
        above.saturating_add(u32::try_from(wanted.len()).unwrap_or(u32::MAX))
    });
    let free: Vec<u32> = (0..size).filter(|location| !used.contains(location)).collect();
    let inserted = |kept: &BTreeMap<usize, u32>| -> Vec<usize> {
        (0..wanted.len()).filter(|at| !kept.contains_key(at) && !replaced.contains_key(at)).collect()
    };
    if table.model.order == FilterOrder::None {
        let new = inserted(kept);
        if new.len() > free.len() {
            return Err(PlanError::NoRoom { needed: new.len(), free: free.len(), size });
        }
        return Ok(new.into_iter().zip(free.into_iter().map(Some)).collect());
    }
    loop {
        match assign_in_order(wanted, kept, &free) {
            Ok(locations) => return Ok(locations),
            Err(Some(next)) => {
                kept.remove(&next);
            }
            Err(None) => {
                return Err(PlanError::NoRoom { needed: inserted(kept).len(), free: free.len(), size });
            }
        }
    }
}

/// Locations in the order of ranks.
///
/// # Errors
/// A filter that stays and borders too small a gap; `None`: none stays, and there is no room.
fn assign_in_order(
    wanted: &[RankedFilter],
    kept: &BTreeMap<usize, u32>,
    free: &[u32],
) -> Result<BTreeMap<usize, Option<u32>>, Option<usize>> {
    // Those that stay come first in their rank, in the order of their locations.
    let mut sequence: Vec<usize> = (0..wanted.len()).collect();
    sequence.sort_by_key(|at| {
        (wanted[*at].rank, kept.get(at).map_or(u64::MAX, |location| u64::from(*location)), *at)
    });
    let mut locations = BTreeMap::new();
    let (mut run, mut last, mut low): (Vec<usize>, Option<usize>, usize) = (Vec::new(), None, 0);
    for at in sequence.into_iter().map(Some).chain([None]) {
        let bound = match at {
            Some(at) => match kept.get(&at) {
                None => {
                    run.push(at);
                    continue;
                }
                Some(location) => free.partition_point(|free| free < location),
            },
            None => free.len(),
        };
        let (gap, count) = (&free[low..bound], run.len());
        if count > gap.len() {
            return Err(at.or(last));
        }
        // Evenly, which leaves room for later filters.
        for (place, new) in run.drain(..).enumerate() {
            locations.insert(new, Some(gap[(2 * place + 1) * gap.len() / (2 * count)]));
        }
        (low, last) = (bound, at);
    }
    Ok(locations)
}

#[cfg(test)]
mod tests {
    use packet::Field;

    use super::*;
    use crate::filter::{Destination, FieldBits, FilterKind};

    fn filter(port: u16, queue: u32) -> Filter {
        let bits = FieldBits { field: Field::DstPort, value: port.into(), mask: 0xffff };
        Filter { matches: FilterMatch::new(FilterKind::Udp4, [bits]), destination: Destination::Queue(queue) }
    }

    fn ranked(filters: &[(u16, u16)]) -> Vec<RankedFilter> {
        filters.iter().map(|(rank, port)| RankedFilter { rank: *rank, filter: filter(*port, 1) }).collect()
    }

    fn installed(filters: &[(u32, u16)]) -> Vec<InstalledFilter> {
        filters.iter().map(|(at, port)| InstalledFilter { location: *at, filter: filter(*port, 1) }).collect()
    }

    fn planned(
        model: &str,
        ours: &[InstalledFilter],
        wanted: &[RankedFilter],
        size: u32,
    ) -> Result<Plan, PlanError> {
        let model = FilterModel::by_name(model).expect("built in");
        let occupied = BTreeSet::from([0]);
        plan(&Table { model: &model, installed: ours, occupied: &occupied, size: Some(size) }, wanted)
    }

    fn inserted(plan: &Plan) -> Vec<u32> {
        let at = |step: &Step| match step {
            Step::Insert { location, .. } => *location,
            _ => None,
        };
        plan.steps.iter().filter_map(at).collect()
    }

    #[test]
    fn filters_that_stay_are_not_touched_and_new_ones_come_between_them() {
        let ours = installed(&[(3, 53), (6, 80)]);
        let plan = planned("mlx4", &ours, &ranked(&[(0, 53), (1, 123), (2, 80)]), 8).expect("room");
        assert_eq!(plan.kept, ours);
        assert_eq!(inserted(&plan), [5]);
        assert_eq!(plan.steps.len(), 1);
    }

    #[test]
    fn a_gap_that_is_too_small_moves_a_neighbour() {
        let ours = installed(&[(3, 53), (4, 80)]);
        let plan = planned("mlx4", &ours, &ranked(&[(0, 53), (1, 123), (2, 80)]), 8).expect("room");
        assert_eq!(plan.kept, installed(&[(3, 53)]));
        let locations = inserted(&plan);
        assert!(locations.is_sorted() && locations.iter().all(|at| *at > 4), "{locations:?}");
        assert!(matches!(plan.steps.last(), Some(Step::Remove { location: 4, .. })));
    }

    #[test]
    fn an_order_that_changes_moves_as_few_as_possible() {
        let ours = installed(&[(1, 1), (2, 2), (3, 3), (4, 4)]);
        let plan = planned("mlx4", &ours, &ranked(&[(0, 4), (1, 1), (2, 2), (3, 3)]), 16).expect("room");
        assert_eq!(
            (plan.kept.len(), inserted(&plan).len()),
            (0, 4),
            "location 0 is taken, so nothing fits before 1"
        );
        let plan = planned("mlx4", &ours, &ranked(&[(0, 1), (1, 2), (2, 4), (3, 3)]), 16).expect("room");
        assert_eq!(plan.kept.len(), 3);
    }

    #[test]
    fn a_full_table_is_refused() {
        let ours = installed(&[(1, 1), (2, 2)]);
        let refused = planned("mlx4", &ours, &ranked(&[(0, 5), (1, 6)]), 4).expect_err("one is free");
        assert_eq!(refused, PlanError::NoRoom { needed: 2, free: 1, size: 4 });
    }

    #[test]
    fn a_destination_changes_in_place_where_equal_matches_are_refused() {
        let ours = installed(&[(1, 53)]);
        let wanted = [RankedFilter { rank: 0, filter: filter(53, 2) }];
        let plan = planned("ixgbe", &ours, &wanted, 8).expect("room");
        assert_eq!(plan.steps, [Step::Replace { location: 1, old: filter(53, 1), new: filter(53, 2) }]);
        let plan = planned("mlx4", &ours, &wanted, 8).expect("room");
        assert!(matches!(plan.steps[..], [Step::Insert { .. }, Step::Remove { location: 1, .. }]));
    }
}
