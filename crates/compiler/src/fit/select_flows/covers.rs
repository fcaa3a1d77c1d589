//! Covers: wide flows by which workers receive the packets of flows that were not chosen. They are as narrow
//! as there is room for, because they also match packets that the policy leaves to the kernel.
//!
//! All packets of the kernel pass the groups of the covers, on devices that have groups. So narrow covers may
//! take no more priorities than were kept free for covers, and where groups cost time, no more of it than a
//! worker takes for a packet that it would receive by a wide one. Time is no reason to widen covers of a
//! policy whose host may miss no packets.

use std::collections::{BTreeMap, BTreeSet};

use device_model::{PriorityTable, TableFill};
use policy::policy::Action;
use program::{GroupId, RuleId};

use super::graph::{Item, Items};
use super::{COVER_PART, Choice, Room};
use crate::cost::saved_ps;
use crate::cover::{CoveredRule, everything};
use crate::cube::{Cube, DST_HIGH, DST_IPV4, DST_LOW, HAS_IPV4, HAS_IPV6, SRC_HIGH, SRC_IPV4, SRC_LOW, Slot};
use crate::fit::mask_key::{MaskKey, parts};
use crate::fit::packing::priorities_for;
use crate::job::Job;
use crate::mask_index::MaskIndex;
use crate::rank::lower::{ActionId, Candidate, Lowered, LoweredAction, Steering};
use crate::rank::order::RankedFlows;
use crate::specs::{self, Reading};

/// The part of a flow's match that its cover has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    /// The addresses and the IP version; the lengths of prefixes are rounded down to multiples.
    Addresses {
        multiple: u32,
    },
    /// The IP version.
    Family,
    Everything,
}

/// From narrow to wide.
const WIDTHS: [Width; 5] = [
    Width::Addresses { multiple: 1 },
    Width::Addresses { multiple: 8 },
    Width::Addresses { multiple: 16 },
    Width::Family,
    Width::Everything,
];

/// The room to keep free for covers: at least for those of the fewest masks.
pub(super) fn reserve(job: &Job<'_>, lowered: &Lowered, items: &Items, room: Room) -> Room {
    let nothing = Choice::nothing(items);
    let reading = Reading::of(job.profile);
    let needed = [Width::Family, Width::Everything].map(|width| {
        let covers = covers(job, lowered, items, &nothing, width);
        let masks: BTreeSet<MaskKey> = covers.iter().map(|cover| MaskKey::of(cover, reading)).collect();
        (masks.len(), covers.len())
    });
    let (masks, flows) = needed[0].min(needed[1]);
    let behind: BTreeSet<u32> = items.behind.iter().map(|ranked| ranked.rank).collect();
    // There are far fewer ranks than 2^32.
    let ranks = ranks_within(lowered, room) + behind.len() as u32;
    let masks = if room.masks == usize::MAX { 0 } else { masks.max(room.masks / COVER_PART) };
    Room { masks, flows: flows.max(room.flows / COVER_PART), ranks }
}

/// The chosen flows with the narrowest covers for which there is room.
pub(super) fn cover_flows(
    job: &Job<'_>,
    rules: &[CoveredRule],
    flows: &RankedFlows,
    items: &Items,
    choice: &Choice,
    room: Room,
) -> Option<Lowered> {
    let has_room = |lowered: &Lowered| {
        let reading = Reading::of(job.profile);
        let masks: BTreeSet<MaskKey> =
            lowered.candidates.iter().map(|candidate| MaskKey::of(candidate, reading)).collect();
        lowered.candidates.len() <= room.flows && masks.len() <= room.masks
    };
    let of_width = |width: &Width| {
        let lowered = covered(job, rules, flows, items, choice, *width);
        // There are none that have fewer groups.
        let is_widest = *width == Width::Everything;
        (has_room(&lowered) && (is_widest || has_groups(job, &lowered, room))).then_some(lowered)
    };
    WIDTHS.iter().find_map(of_width)
}

/// The most priorities that covers take, of those of the room.
fn ranks_within(lowered: &Lowered, room: Room) -> u32 {
    ranks(lowered).min(room.ranks / 2)
}

/// Whether covers take few enough groups, on a device that has groups.
fn has_groups(job: &Job<'_>, lowered: &Lowered, room: Room) -> bool {
    let Some(table) = job.profile.flow_table() else { return true };
    let reading = Reading::of(job.profile);
    // Covers of one group of workers and equally specific variants need no order.
    let mut ranks: BTreeMap<(u32, Option<GroupId>), BTreeMap<MaskKey, usize>> = BTreeMap::new();
    for cover in lowered.candidates.iter().filter(|candidate| candidate.is_cover) {
        let rank = (lowered.generality(cover), group(lowered, cover.action));
        *ranks.entry(rank).or_default().entry(MaskKey::of(cover, reading)).or_default() += 1;
    }
    let masks: Vec<Vec<usize>> = ranks.values().map(|masks| masks.values().copied().collect()).collect();
    let ns_per_group = job.profile.ns_per_group.filter(|_| job.may_take_from_host());
    CoverGroups::of(&masks, table).fit(ranks_within(lowered, room), ns_per_group.unwrap_or(0))
}

/// The groups that a device makes of covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CoverGroups {
    /// How many ranks the covers have, at most.
    ranks: u32,
    /// How many priorities these take.
    priorities: u32,
    groups: u64,
}

impl CoverGroups {
    /// The groups of covers with so many flows of each mask, by rank.
    fn of(ranks: &[Vec<usize>], table: PriorityTable) -> Self {
        let mut made = Self { ranks: ranks.len() as u32, priorities: 0, groups: 0 };
        for masks in ranks {
            made.priorities += priorities_for(masks.iter().copied(), table);
            let mut fill = TableFill::new(table);
            for mask in masks.iter().enumerate().flat_map(|(mask, flows)| std::iter::repeat_n(mask, *flows)) {
                if !fill.add(&mask) {
                    made.groups += u64::from(fill.groups());
                    fill = TableFill::with(table, [mask]);
                }
            }
            made.groups += u64::from(fill.groups());
        }
        made
    }

    /// Whether the covers take no more priorities than were kept free, and a packet passes them in no more
    /// time than a worker takes for it.
    fn fit(self, kept_free: u32, ns_per_group: u32) -> bool {
        let ps = self.groups.saturating_mul(u64::from(ns_per_group) * 1000);
        self.priorities <= self.ranks.max(kept_free) && ps <= saved_ps(true)
    }
}

/// The group of workers to which an action leads.
fn group(lowered: &Lowered, action: ActionId) -> Option<GroupId> {
    match lowered.actions[action.index()] {
        LoweredAction::Steer(queue) => Some(lowered.queues[queue.index()].group),
        LoweredAction::Drop | LoweredAction::Pass => None,
    }
}

/// The chosen flows with a cover of everything.
pub(super) fn cover_everything(
    job: &Job<'_>,
    rules: &[CoveredRule],
    flows: &RankedFlows,
    items: &Items,
    choice: &Choice,
) -> Lowered {
    covered(job, rules, flows, items, choice, Width::Everything)
}

/// The chosen flows, those that have no choice, and covers of this width between them and the last flows.
fn covered(
    job: &Job<'_>,
    rules: &[CoveredRule],
    flows: &RankedFlows,
    items: &Items,
    choice: &Choice,
    width: Width,
) -> Lowered {
    let Lowered { candidates, actions, steering, queues, sniffer, .. } = &flows.lowered;
    let mut made: Vec<Candidate> = Vec::with_capacity(candidates.len());
    for (item, into) in items.list.iter().zip(&choice.into) {
        let whole = candidates[item.id.index()];
        // The order of these flows among those without a choice does not matter, but for copies.
        let cubes = into.map(|mask| parts(&whole.cube, &mask));
        made.extend(cubes.into_iter().flatten().map(|cube| Candidate { cube, ..whole }));
    }
    made.extend(items.fixed.iter().map(|id| candidates[id.index()]));
    made.sort_by_key(|candidate| candidate.rule);
    let left: BTreeSet<RuleId> = choice.left(items).map(|item| item.rule).collect();
    let covers = covers(job, &flows.lowered, items, choice, width);
    made.extend(covers);
    made.extend(items.behind.iter().map(|ranked| candidates[ranked.id.index()]));
    let has_flows: BTreeSet<RuleId> = candidates.iter().map(|candidate| candidate.rule).collect();
    // Covers also match packets of the rules behind them, and those that a rule leaves to the kernel: such a
    // rule has no flows, or has them for a part of its packets. A chosen flow that comes last on the device,
    // whatever its priority, comes after the covers.
    let last = made.iter().filter(|made| made.comes_last(job.profile)).map(|made| made.rule);
    let behind = items.behind.iter().map(|ranked| candidates[ranked.id.index()].rule);
    let behind: BTreeSet<RuleId> = behind.chain(last).collect();
    let leaves = |rule: RuleId| job.policy.rules[rule.index()].action == Action::Kernel;
    let is_covered = |rule: &RuleId| {
        left.contains(rule)
            || behind.contains(rule)
            || rules[rule.index()].decides() && (!has_flows.contains(rule) || leaves(*rule))
    };
    let covered = (0..rules.len()).map(RuleId::of).filter(|rule| !left.is_empty() && is_covered(rule));
    let covered = covered.collect();
    Lowered {
        candidates: made,
        actions: actions.clone(),
        steering: steering.clone(),
        queues: queues.clone(),
        sniffer: *sniffer,
        left,
        covered,
    }
}

/// The covers of the flows that are left to workers, specific hash variants first. All have one class, so
/// that their order changes the worker of a packet and nothing else.
fn covers(job: &Job<'_>, lowered: &Lowered, items: &Items, choice: &Choice, width: Width) -> Vec<Candidate> {
    let own_group = |item: &Item| group(lowered, lowered.candidate(item.id).action);
    let usual = choice.left(items).find_map(own_group).unwrap_or(GroupId(0));
    let may_differ = ranks(lowered) <= job.profile.priorities_per_program() / 2;
    let (mut known, mut made) = (MaskIndex::default(), Vec::new());
    for item in choice.left(items) {
        let cube = widened(&lowered.candidate(item.id).cube, width);
        if known.is_contained(&cube, usize::MAX, &mut 0) {
            continue;
        }
        known.add(&cube, true, made.len(), 0);
        let group = own_group(item).filter(|_| may_differ).unwrap_or(usual);
        made.extend(variants(job, lowered, &cube, group));
    }
    made.sort_by_key(|cover: &Candidate| (lowered.generality(cover), cover.action.index()));
    made
}

/// The most ranks that covers take: for each group those of its hash variants.
fn ranks(lowered: &Lowered) -> u32 {
    let groups: BTreeSet<GroupId> = lowered.steering.iter().map(|steering| steering.group).collect();
    let degrees: BTreeSet<u32> = lowered
        .steering
        .iter()
        .filter_map(|steering| match lowered.actions[steering.action.index()] {
            LoweredAction::Steer(queue) => Some(lowered.variant_generality(queue)),
            LoweredAction::Drop | LoweredAction::Pass => None,
        })
        .collect();
    // There are far fewer than 2^32.
    (groups.len() * degrees.len()) as u32
}

/// A cover by the hash variants of a group.
fn variants(job: &Job<'_>, lowered: &Lowered, cube: &Cube, group: GroupId) -> Vec<Candidate> {
    let reading = Reading::of(job.profile);
    let rule = RuleId::of(job.policy.rules.len());
    let mut made = Vec::new();
    for Steering { packets, action, .. } in lowered.steering.iter().filter(|own| own.group == group) {
        let Some(part) = cube.and(packets) else { continue };
        // More general variants have the packets of one for which a flow has too few specs.
        if specs::spec_count(&part, reading) + specs::ACTION_SPECS <= job.profile.max_specs {
            let (traps, is_compared, is_cover) = (true, true, true);
            made.push(Candidate { cube: part, rule, action: *action, traps, is_compared, is_cover });
        }
        if packets.contains(cube) {
            break;
        }
    }
    made
}

/// The cube with a part of its conditions.
fn widened(cube: &Cube, width: Width) -> Cube {
    let any = everything().unwrap_or(Cube::ANY);
    let v4: &[Slot] = &[SRC_IPV4, DST_IPV4];
    let v6: &[Slot] = &[SRC_HIGH, SRC_LOW, DST_HIGH, DST_LOW];
    let family = [(HAS_IPV4, v4), (HAS_IPV6, v6)].into_iter().find(|(layer, _)| cube.has(*layer));
    let Some((layer, addresses)) = family.filter(|_| width != Width::Everything) else { return any };
    let multiple = if let Width::Addresses { multiple } = width { Some(multiple) } else { None };
    let with = |wide: Cube, slot: &Slot| {
        let mask = multiple.map_or(0, |multiple| rounded(cube.mask_of(*slot), *slot, multiple));
        wide.with(*slot, cube.value_of(*slot) & mask, mask)
    };
    let wide = any.layer(layer, true).and_then(|wide| addresses.iter().try_fold(wide, with));
    wide.and_then(Cube::closed).unwrap_or(any)
}

/// The mask of an address with the length of its prefix rounded down to a multiple.
fn rounded(mask: u64, slot: Slot, multiple: u32) -> u64 {
    if multiple == 1 {
        return mask;
    }
    let width = slot.ones().count_ones();
    let prefix = (mask << (64 - width)).leading_ones().min(width);
    let kept = prefix - prefix % multiple;
    slot.ones() & !slot.ones().checked_shr(kept).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn covers_are_counted_against_groups() {
        // Two masks a priority, each with up to four flows, and nothing beside.
        let table = PriorityTable { entries: 8, groups: 2, group_entries: 4 };
        let narrow = CoverGroups::of(&[vec![1; 5], vec![3]], table);
        assert_eq!(narrow, CoverGroups { ranks: 2, priorities: 4, groups: 6 });
        assert!(narrow.fit(4, 0) && !narrow.fit(3, 0));
        // A worker takes 80 ns.
        assert!(narrow.fit(4, 13) && !narrow.fit(4, 14));
        let wide = CoverGroups::of(&[vec![1], vec![1]], table);
        assert!(wide.fit(0, 40) && !wide.fit(0, 41));
    }

    #[test]
    fn single_covers_are_groups_of_their_own() {
        let table = PriorityTable { entries: 100, groups: 1, group_entries: 50 };
        let covers = CoverGroups::of(&[vec![20, 10]], table);
        assert_eq!(covers, CoverGroups { ranks: 1, priorities: 1, groups: 11 });
    }
}
