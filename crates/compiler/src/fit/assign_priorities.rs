//! Ranks to priorities, from 0 for each program; `control` (`plan/levels.rs`) chooses those of the device.
//! Where a priority has room for few masks only, the flows of one rank are spread over several priorities,
//! which is safe because flows of equal rank need no order. Flows that the device applies after all others
//! share one priority of their own.

use device_model::{DeviceModel, PriorityTable, TableFill};

use crate::fit::mask_key::MaskKey;
use crate::fit::packing::bins;
use crate::mask_index::ByMask;
use crate::rank::lower::{Candidate, CandidateId};
use crate::rank::order::{Ranked, RankedFlows};
use crate::specs::Reading;

/// A kept candidate and its priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prioritized {
    pub(crate) id: CandidateId,
    pub(crate) priority: u32,
}

/// The flows with their priorities, and what they need.
pub(crate) struct Assigned {
    /// The kept candidates in the order of installation.
    pub(crate) flows: Vec<Prioritized>,
    /// How many priorities are used.
    pub(crate) priorities: u32,
    /// The rank that needs most priorities, if one needs several.
    pub(crate) widest: Option<Widest>,
    /// The first multicast-only flow that does not fit into the last priority.
    pub(crate) overflow: Option<CandidateId>,
}

/// A rank that needs several priorities.
pub(crate) struct Widest {
    pub(crate) priorities: u32,
    pub(crate) masks: usize,
    /// A candidate of the mask that has fewest flows.
    pub(crate) rarest: CandidateId,
}

/// Gives every kept candidate its priority.
pub(crate) fn assign_priorities(profile: &DeviceModel, flows: &RankedFlows) -> Assigned {
    let (candidates, kept) = (&*flows.lowered.candidates, &*flows.ranking.kept);
    let mut ranked = kept.to_vec();
    // Within a rank, the policy's order stays.
    ranked.sort_by_key(|Ranked { id, rank }| (*rank, candidates[id.index()].rule, *id));
    let Some(table) = profile.flow_table() else {
        let priorities = ranked.last().map_or(0, |last| last.rank + 1);
        let flows =
            ranked.into_iter().map(|Ranked { id, rank }| Prioritized { id, priority: rank }).collect();
        return Assigned { flows, priorities, widest: None, overflow: None };
    };
    let (late, ranked): (Vec<_>, Vec<_>) =
        ranked.into_iter().partition(|ranked| candidates[ranked.id.index()].comes_last(profile));
    let mut assigned =
        Assigned { flows: Vec::with_capacity(kept.len()), priorities: 0, widest: None, overflow: None };
    for rank in ranked.chunk_by(|one, other| one.rank == other.rank) {
        let found = assign_rank(candidates, rank, table, Reading::of(profile), &mut assigned);
        let most = assigned.widest.as_ref().map_or(1, |known| known.priorities);
        assigned.widest = found.filter(|found| found.priorities > most).or(assigned.widest.take());
    }
    assign_last(candidates, &late, table, Reading::of(profile), &mut assigned);
    assigned
}

/// Flows that the device applies after all others, in the order of their ranks: where two of these overlap,
/// the device looks first at the mask that was installed first.
fn assign_last(
    candidates: &[Candidate],
    late: &[Ranked],
    limits: PriorityTable,
    reading: Reading,
    assigned: &mut Assigned,
) {
    if late.is_empty() {
        return;
    }
    for is_sent in [false, true] {
        let mut table: TableFill<MaskKey> = TableFill::new(limits);
        let flows = late.iter().map(|ranked| (ranked.id, &candidates[ranked.id.index()]));
        for (id, candidate) in flows.filter(|(_, candidate)| candidate.is_sent() == is_sent) {
            assigned.flows.push(Prioritized { id, priority: assigned.priorities });
            if !table.add(&MaskKey::of(candidate, reading)) {
                assigned.overflow = assigned.overflow.or(Some(id));
            }
        }
    }
    assigned.priorities += 1;
}

/// Flows for copies, received and sent packets have tables of their own. Copies precede the flows that trap
/// the packet. Returns which of the tables needs most priorities, if one needs several.
///
/// Flows of one rank need no order, so any distribution over the priorities of the rank is right. Filling the
/// most numerous masks first is the usual first-fit-decreasing heuristic of bin packing.
fn assign_rank(
    candidates: &[Candidate],
    rank: &[Ranked],
    table: PriorityTable,
    reading: Reading,
    assigned: &mut Assigned,
) -> Option<Widest> {
    let candidate = |id: &CandidateId| &candidates[id.index()];
    let (egress, ingress): (Vec<CandidateId>, Vec<CandidateId>) =
        rank.iter().map(|ranked| ranked.id).partition(|id| candidate(id).is_sent());
    let (traps, copies): (Vec<CandidateId>, Vec<CandidateId>) =
        ingress.into_iter().partition(|id| candidate(id).traps);
    let first = assigned.priorities;
    let mut next = first;
    let mut widest: Option<Widest> = None;
    let mut place = |flows: &[CandidateId], start: u32| -> u32 {
        let shapes = shapes(candidates, flows, reading);
        let bins = bins(&shapes, table);
        let taken = bins.len() as u32;
        for (bin, flows) in bins.into_iter().enumerate() {
            let priority = start + bin as u32;
            assigned.flows.extend(flows.into_iter().map(|id| Prioritized { id, priority }));
        }
        if taken > widest.as_ref().map_or(1, |widest| widest.priorities) {
            let rarest = shapes.last().and_then(|flows| flows.first()).copied().unwrap_or(CandidateId(0));
            widest = Some(Widest { priorities: taken, masks: shapes.len(), rarest });
        }
        taken
    };
    let copying = place(&copies, first);
    // Flows that trap packets may share the priority of the last copies.
    let taking = first + copying.saturating_sub(1);
    next = next.max(first + copying).max(taking + place(&traps, taking)).max(first + place(&egress, first));
    assigned.priorities = next;
    let from = assigned.flows.partition_point(|flow| flow.priority < first);
    assigned.flows[from..].sort_by_key(|flow| flow.priority);
    widest
}

/// The flows by their masks as the device sees them, most numerous first.
fn shapes(candidates: &[Candidate], flows: &[CandidateId], reading: Reading) -> Vec<Vec<CandidateId>> {
    let mut by_mask: ByMask<MaskKey, Vec<CandidateId>> = ByMask::default();
    for id in flows {
        by_mask.entry(MaskKey::of(&candidates[id.index()], reading)).or_default().push(*id);
    }
    let mut shapes: Vec<Vec<CandidateId>> = by_mask.into_values().collect();
    shapes.sort_by_key(|flows| (std::cmp::Reverse(flows.len()), flows.first().copied()));
    shapes
}

#[cfg(test)]
mod tests {
    use policy::{NoFiles, Source};

    use super::*;

    /// The priorities that rules with these keys take on an mlx5 whose priorities have room for one mask.
    fn priorities(rules: &[&str]) -> Result<u16, String> {
        let table = PriorityTable { entries: 8, groups: 1, group_entries: 8 };
        let mlx5 = DeviceModel { priority_table: Some(table), ..DeviceModel::mlx5() };
        let rule = |(index, keys): (usize, &&str)| {
            format!("[[rules]]\nname = 'r{index}'\nmatch = {{ {keys} }}\naction = {{ steer = 'g' }}\n")
        };
        let rules: String = rules.iter().enumerate().map(rule).collect();
        let text = format!("version = 1\n[groups.g]\nworkers = [0]\nhash = 'none'\n{rules}");
        let (policy, _) = policy::parse(&Source::new("p.toml", text), &NoFiles).expect("a policy");
        let program = crate::compile(&policy, &mlx5, 1).map_err(|problems| problems.to_string())?;
        Ok(program.priorities_used)
    }

    #[test]
    fn protocols_without_ports_have_one_mask() {
        let tcp = "family = 'ipv4', protocol = 'tcp'";
        let udp = "family = 'ipv4', protocol = 'udp'";
        assert_eq!(priorities(&[tcp, udp]), Ok(1));
        let with_port = |keys: &str| format!("{keys}, dst_port = 53");
        assert_eq!(priorities(&[&with_port(tcp), &with_port(udp)]), Ok(2));
    }

    #[test]
    fn the_last_priority_has_room_for_protocols_of_one_mask() {
        let multicast =
            |keys: &str| priorities(&[&format!("dst_mac = 'multicast', family = 'ipv4', {keys}")]);
        assert_eq!(multicast("protocol = ['tcp', 'udp']"), Ok(1));
        let refused = multicast("protocol = ['tcp', 'udp'], dst_port = 53").expect_err("two masks");
        assert!(refused.contains("no room for all flows that match only multicast"), "{refused}");
    }
}
