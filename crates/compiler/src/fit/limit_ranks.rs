//! Ranks within a limit, for policies whose overlaps demand more ranks than the device has priorities.
//!
//! Any ranks are right if for each flow F of a rule R and each earlier rule E that shares packets with F one
//! of these holds, because the first rule that matches a packet then decides it, whichever flow the packet
//! meets:
//! - Flows of higher precedence together take all packets that E shares with F: no such packet reaches F.
//! - The class of R compares its packets with E before it decides for R.
//!
//! The first is what [`order`](crate::rank::order) gives to all flows. Here a flow whose rank is too great
//! gets the last rank, and for each earlier flow that does not precede it then, the packets that both match
//! become a *shared flow*: a flow with the action of the earlier rule, at a rank before the last. The
//! shared flow has to precede less than the whole flow that it is cut from, so its rank is usually small;
//! if not, the same is done for the shared flow. Cubes that overlap in pairs share a packet all together,
//! so with enough shared flows the ranks of a policy depend on how many rules match one packet, not on the
//! length of chains of overlapping rules. Where a packet matches more rules than there are ranks, or there
//! would be too many shared flows, the flow is *compared*: a worker compares its packets with the earlier
//! rules.
//!
//! Where there are too few shared flows for all, the flows of which each shared flow keeps most packets from
//! workers come first, by the [`Weights`] of the rules. The flows that such shared flows are cut from have
//! their ranks before any shared flow is made. Ties are decided by the order of the policy, so that equal
//! policies with equal weights give equal programs.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use device_model::DeviceModel;
use program::{GroupId, RssQueue, RuleId};

use crate::cover::MAX_FLOWS;
use crate::cube::Cube;
use crate::except::overlaps::{MAX_STEPS_IN_ALL, TooManySteps};
use crate::except::place::Earlier;
use crate::job::Job;
use crate::mask_index::MaskIndex;
use crate::rank::lower::{ActionId, Candidate, CandidateId, Lowered, LoweredAction, Steering};
use crate::rank::order::{Ranked, RankedFlows, Ranks};
use crate::specs;
use crate::weights::Weights;

/// The most shared flows of one flow, those of its shared flows included.
pub(crate) const MAX_SHARED_OF_FLOW: usize = 1 << 9;
/// The most shared flows of a program: so many, and so many for each flow.
const MAX_SHARED_OF_PROGRAM: usize = 1 << 12;
const SHARED_BY_FLOW: usize = 2;
/// The most masks that are compared to find out which shared flows are needless. Without these comparisons
/// workers compare more packets than they must, and decide the same.
const MAX_LOOKUPS: usize = 1 << 25;
/// The masks of so many flows fit into the processor's caches. With more flows each comparison takes longer,
/// so fewer are made.
const CACHED_FLOWS: usize = 1 << 12;

/// Flows with no more ranks than the limit, and what workers decide for that.
pub(crate) struct Limited {
    pub(crate) flows: RankedFlows,
    pub(crate) earlier: Earlier,
    /// The rules with compared flows, shared flows not counted.
    pub(crate) hybrid: BTreeSet<RuleId>,
    /// How many shared flows were made.
    pub(crate) shared_flows: usize,
}

/// How far the ranking may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) ranks: u32,
    /// The most shared flows of the program, and of one flow, those of its shared flows included.
    pub(crate) shared_flows: usize,
    pub(crate) shared_of_flow: usize,
}

/// Ranks the flows anew, so that they have no more ranks than the limit, with more flows and hybrid rules.
/// They keep more if rules overlap that no worker can decide: those that copy, and those about sent packets.
pub(crate) fn limit_ranks(
    job: &Job<'_>,
    natural: &RankedFlows,
    limits: Limits,
) -> Result<Limited, TooManySteps> {
    let profile = job.profile;
    let most = limits.ranks;
    let mut flows = natural.clone();
    let RankedFlows { lowered, ranking } = &mut flows;
    if ranking.longest.last().is_none_or(|last| last.rank < most) || most == 0 {
        return Ok(Limited { flows, earlier: Earlier::new(), hybrid: BTreeSet::new(), shared_flows: 0 });
    }
    let below = ranks_below(lowered);
    let room = profile.flows_per_program().unwrap_or(MAX_FLOWS).min(MAX_FLOWS);
    let Lowered { candidates, actions, queues, steering, covered, .. } = lowered;
    let kept = ranking.kept.len();
    let mut limiter = Limiter {
        profile,
        actions,
        queues,
        steering,
        covered,
        most,
        kept: Vec::with_capacity(ranking.kept.len()),
        late: Vec::new(),
        ranks: Ranks::default(),
        taken: MaskIndex::default(),
        lookups_left: MAX_LOOKUPS / (1 + kept / CACHED_FLOWS),
        shared_left: 0,
        may_share: false,
        shared_of_flow: limits.shared_of_flow,
        of_flow_left: 0,
        earlier: Earlier::new(),
        hybrid: BTreeSet::new(),
        beyond: None,
        compared: 0,
        is_too_long: false,
    };
    limiter.shared_left =
        room.saturating_sub(kept).min(MAX_SHARED_OF_PROGRAM + SHARED_BY_FLOW * kept).min(limits.shared_flows);
    limiter.may_share = limiter.shared_left > 0;
    let first_shared = candidates.len();
    for ranked in &ranking.kept {
        if let Some(rule) = limiter.beyond {
            return Err(TooManySteps(rule));
        }
        limiter.flow(candidates, *ranked, below[ranked.id.index()]);
    }
    let mut late = std::mem::take(&mut limiter.late);
    sort_by_value(&mut late, candidates, job.weights);
    for flow in late {
        if let Some(rule) = limiter.beyond {
            return Err(TooManySteps(rule));
        }
        limiter.late_flow(candidates, flow);
    }
    limiter.drop_unreachable(candidates, first_shared);
    let Limiter { mut kept, earlier, hybrid, is_too_long, .. } = limiter;
    kept.sort_by_key(|Ranked { id, .. }| (candidates[id.index()].rule, *id));
    ranking.kept = kept;
    // The chain stays for the message if it is still too long.
    if !is_too_long {
        ranking.longest.retain(|ranked| ranked.rank < most);
    }
    let shared_flows = candidates.len() - first_shared;
    Ok(Limited { flows, earlier, hybrid, shared_flows })
}

/// Brings the flows of which most packets are kept from workers by one shared flow to the front, as there may
/// not be enough shared flows for all: the packets of a rule divided by its late flows, and by the earlier
/// flows that each of them overlaps. Without weights the order of the policy stays.
fn sort_by_value(late: &mut [Late], candidates: &[Candidate], weights: Option<&Weights>) {
    let Some(weights) = weights else { return };
    let mut flows: BTreeMap<RuleId, usize> = BTreeMap::new();
    for flow in late.iter() {
        *flows.entry(candidates[flow.id.index()].rule).or_default() += 1;
    }
    late.sort_by_cached_key(|flow| {
        let rule = candidates[flow.id.index()].rule;
        // Products of two numbers of flows, far below 2^64.
        let shared_flows = (flows[&rule] * flow.blockers) as u64;
        let value = (u128::from(weights.of(rule)) << 64) / u128::from(shared_flows.max(1));
        (Reverse(value), flow.id)
    });
}

/// The most ranks that a flow's rule needs after it: there are three kinds of hash variants.
const MAX_BELOW: u32 = 2;

/// The number of ranks that a candidate's rule needs after it: those of more general hash variants.
fn ranks_below(lowered: &Lowered) -> Vec<u32> {
    let candidates = &lowered.candidates;
    let mut below = vec![0; candidates.len()];
    let mut seen: Vec<u32> = Vec::new();
    let mut of = None;
    for (index, candidate) in candidates.iter().enumerate().rev() {
        if of.replace(candidate.rule) != Some(candidate.rule) {
            seen.clear();
        }
        let generality = lowered.generality(candidate);
        if !seen.contains(&generality) {
            seen.push(generality);
        }
        // At most MAX_BELOW.
        below[index] = seen.iter().filter(|other| **other > generality).count() as u32;
    }
    below
}

struct Limiter<'p> {
    profile: &'p DeviceModel,
    actions: &'p [LoweredAction],
    queues: &'p [RssQueue],
    steering: &'p [Steering],
    /// The rules with which workers compare packets that covers match.
    covered: &'p [RuleId],
    most: u32,
    kept: Vec<Ranked>,
    late: Vec<Late>,
    /// All flows but the shared ones, late ones at the last rank.
    ranks: Ranks,
    /// The flows that trap received packets, shared flows included.
    taken: MaskIndex,
    lookups_left: usize,
    shared_left: usize,
    may_share: bool,
    shared_of_flow: usize,
    /// The shared flows that the flow at hand may still get.
    of_flow_left: usize,
    earlier: Earlier,
    hybrid: BTreeSet<RuleId>,
    /// The rule with which workers would compare packets with too many rules in all.
    beyond: Option<RuleId>,
    /// How many entries `earlier` has.
    compared: usize,
    /// Whether some flow needs more ranks, and no worker can decide it.
    is_too_long: bool,
}

/// A flow that earlier ones would precede if there were more ranks.
struct Late {
    id: CandidateId,
    /// The last rank that it can have.
    last: u32,
    /// How many earlier flows with at least this rank it overlaps.
    blockers: usize,
}

/// The packets that earlier candidates share with a flow, as far as no flow before it takes them.
#[derive(Default)]
struct Open {
    /// The rules of these candidates, in ascending order.
    rules: Vec<RuleId>,
    /// The group to which the first of them that steers does so.
    group: Option<GroupId>,
    /// Whether one of them copies: no worker can make up for that.
    is_copy: bool,
}

impl Open {
    fn add(&mut self, rule: RuleId, group: Option<GroupId>) {
        if self.rules.last() != Some(&rule) {
            self.rules.push(rule);
        }
        self.group = self.group.or(group);
    }
}

impl Limiter<'_> {
    /// Ranks one flow. What can be decided by a worker is left for later if there is no rank for it.
    fn flow(&mut self, candidates: &mut Vec<Candidate>, Ranked { id, rank: natural }: Ranked, below: u32) {
        let mut candidate = candidates[id.index()];
        if candidate.comes_last(self.profile) {
            self.kept.push(Ranked { id, rank: 0 });
            return;
        }
        let last = (self.most - 1).saturating_sub(below);
        let mut rank = natural;
        // No flow of a lower rank gets another one, so that is right for those below them, too.
        if natural + MAX_BELOW >= self.most {
            let blockers = self.ranks.overlapping(&candidate.cube, id.index(), last);
            let traps = blockers.iter().all(|(blocker, _)| candidates[*blocker].traps);
            let is_deferred = !blockers.is_empty() && self.may_share;
            if is_deferred && traps && self.can_be_compared(&candidate) {
                // Its final rank is the last one or an earlier one. It counts as of the last rank: later
                // flows that overlap it do not rely on its being before them.
                self.ranks.add(&candidate, Ranked { id, rank: self.most - 1 });
                self.late.push(Late { id, last, blockers: blockers.len() });
                return;
            }
            rank = match blockers.is_empty() {
                true => self.ranks.rank_of(candidates, &candidate, id.index()).0,
                false => self.rank_late(candidates, &mut candidate, id, last, &blockers),
            };
            candidates[id.index()] = candidate;
        }
        let ranked = Ranked { id, rank };
        self.ranks.add(&candidate, ranked);
        self.keep(&candidate, ranked);
    }

    /// Makes the shared flows of a late flow, or has it compared.
    fn late_flow(&mut self, candidates: &mut Vec<Candidate>, Late { id, last, .. }: Late) {
        let mut candidate = candidates[id.index()];
        let blockers = self.ranks.overlapping(&candidate.cube, id.index(), last);
        let rank = self.rank_late(candidates, &mut candidate, id, last, &blockers);
        candidates[id.index()] = candidate;
        self.keep(&candidate, Ranked { id, rank });
    }

    /// The rank of a flow that these earlier ones, with ranks of at least `last`, would otherwise precede.
    fn rank_late(
        &mut self,
        candidates: &mut Vec<Candidate>,
        candidate: &mut Candidate,
        id: CandidateId,
        last: u32,
        blockers: &[(usize, u32)],
    ) -> u32 {
        self.of_flow_left = self.shared_of_flow;
        let open = self.precede(candidates, candidate, last, blockers);
        if open.is_copy || !open.rules.is_empty() && !self.can_be_compared(candidate) {
            self.is_too_long = true;
            return self.ranks.rank_of(candidates, candidate, id.index()).0;
        }
        if open.rules.is_empty() {
            return last;
        }
        candidate.is_compared = true;
        // The packets of covers are compared in any case, which makes nothing of the default's own.
        if !candidate.is_cover {
            self.hybrid.insert(candidate.rule);
        }
        self.compare(candidate.rule, open);
        // Below all flows that it need not precede: those decide their packets in hardware.
        self.most - 1
    }

    /// Keeps a flow, unless one with the same match takes all its packets: a shared flow can be the whole
    /// flow that it is cut from.
    fn keep(&mut self, candidate: &Candidate, Ranked { id, rank }: Ranked) {
        if candidate.traps && self.may_share {
            if self.taken.lowest(&candidate.cube).is_some_and(|lowest| lowest <= rank) {
                return;
            }
            self.taken.add_lowest(&candidate.cube, id.index(), rank);
        }
        self.kept.push(Ranked { id, rank });
    }

    fn compare(&mut self, rule: RuleId, open: Open) {
        let earlier = self.earlier.entry(rule).or_default();
        let before = earlier.len();
        earlier.extend(open.rules);
        earlier.sort();
        earlier.dedup();
        self.compared += earlier.len() - before;
        if self.compared > MAX_STEPS_IN_ALL {
            self.beyond.get_or_insert(rule);
        }
    }

    /// Makes shared flows, so that flows before `rank` take what a cube of a candidate shares with these
    /// earlier ones.
    fn precede(
        &mut self,
        candidates: &mut Vec<Candidate>,
        of: &Candidate,
        rank: u32,
        blockers: &[(usize, u32)],
    ) -> Open {
        let mut open = Open::default();
        for (blocker, own) in blockers.iter().copied() {
            let other = candidates[blocker];
            if !other.traps {
                // A copy may share the rank of a flow that traps the packet, and has no shared flows.
                open.is_copy |= !of.traps || own > rank;
                continue;
            }
            // Hash variants of one rule: their order changes the worker, not the outcome.
            let is_own = other.rule == of.rule && other.is_cover == of.is_cover;
            if is_own {
                continue;
            }
            if other.is_cover {
                self.covered.iter().for_each(|rule| open.add(*rule, self.group(other.action)));
                continue;
            }
            // Comparing with more rules than needed is right.
            let is_known = open.rules.last() == Some(&other.rule);
            if is_known || self.can_be_compared(of) && (rank == 0 || self.is_spent()) {
                open.add(other.rule, self.group(other.action));
                continue;
            }
            let Some(cube) = other.cube.and(&of.cube) else { continue };
            let is_needless = self.ranks.is_part_contained(&cube, blocker, &mut self.lookups_left)
                || self.is_taken(&cube, rank);
            if !is_needless && !self.add_shared(candidates, Candidate { cube, ..other }, blocker, rank) {
                open.add(other.rule, self.group(other.action));
            }
        }
        open
    }

    /// Whether a worker can decide a flow's packets instead: none makes copies or sees what is sent, and
    /// without groups there is none.
    fn can_be_compared(&self, flow: &Candidate) -> bool {
        flow.traps && !flow.is_sent() && !self.steering.is_empty()
    }

    /// Whether nothing more is done to have fewer packets compared.
    fn is_spent(&self) -> bool {
        self.shared_left == 0 || self.of_flow_left == 0 || self.lookups_left == 0
    }

    /// Whether a flow before the rank takes all packets of the cube.
    fn is_taken(&mut self, cube: &Cube, rank: u32) -> bool {
        self.taken.is_contained_above(cube, rank, &mut self.lookups_left)
    }

    /// Adds a shared flow cut from a flow, at a rank before the given one; false: that is not possible.
    fn add_shared(
        &mut self,
        candidates: &mut Vec<Candidate>,
        mut shared: Candidate,
        of: usize,
        rank: u32,
    ) -> bool {
        let has_room = rank > 0 && self.shared_left > 0 && self.of_flow_left > 0;
        if !has_room || !self.is_possible(&shared) {
            return false;
        }
        self.shared_left -= 1;
        self.of_flow_left -= 1;
        shared.is_compared = false;
        let natural = self.ranks.rank_of(candidates, &shared, of).0;
        if natural >= rank {
            let blockers = self.ranks.overlapping(&shared.cube, of, rank - 1);
            let open = self.precede(candidates, &shared, rank - 1, &blockers);
            if open.is_copy {
                return false;
            }
            if !open.rules.is_empty() {
                let Some(action) = self.action_of_worker(&shared, &open) else { return false };
                shared = Candidate { action, is_compared: true, ..shared };
                self.compare(shared.rule, open);
            }
        }
        let id = CandidateId::of(candidates.len());
        candidates.push(shared);
        self.keep(&shared, Ranked { id, rank: natural.min(rank - 1) });
        true
    }

    /// The group to which an action steers.
    fn group(&self, action: ActionId) -> Option<GroupId> {
        match self.actions[action.index()] {
            LoweredAction::Steer(queue) => Some(self.queues[queue.index()].group),
            LoweredAction::Drop | LoweredAction::Pass => None,
        }
    }

    /// An action by which a worker receives the packets of a shared flow; `None`: there is none.
    fn action_of_worker(&self, shared: &Candidate, open: &Open) -> Option<ActionId> {
        if shared.is_sent() {
            return None;
        }
        if self.group(shared.action).is_some() {
            return Some(shared.action);
        }
        let group = open.group.unwrap_or(GroupId(0));
        let serves =
            |steering: &&Steering| steering.group == group && steering.packets.contains(&shared.cube);
        self.steering.iter().find(serves).map(|steering| steering.action)
    }

    /// Whether the device can have this shared flow.
    fn is_possible(&self, shared: &Candidate) -> bool {
        let specs = specs::spec_count(&shared.cube, specs::Reading::of(self.profile));
        !shared.comes_last(self.profile) && specs + specs::ACTION_SPECS <= self.profile.max_specs
    }

    /// Removes flows of which all packets are taken before, as shared flows take them from late flows and
    /// other shared flows.
    fn drop_unreachable(&mut self, candidates: &[Candidate], first_shared: usize) {
        if candidates.len() == first_shared {
            return;
        }
        let kept = std::mem::take(&mut self.kept);
        let reached = |Ranked { id, rank }: &Ranked| {
            let candidate = &candidates[id.index()];
            if candidate.comes_last(self.profile) || !candidate.traps || *rank >= self.most {
                return true;
            }
            if self.taken.lowest(&candidate.cube).is_some_and(|lowest| lowest < *rank) {
                return false;
            }
            // Few others are taken, which is harmless.
            let may_be_taken = id.index() >= first_shared || rank + MAX_BELOW >= self.most;
            !may_be_taken || self.lookups_left == 0 || !self.is_taken(&candidate.cube, *rank)
        };
        self.kept = kept.into_iter().filter(reached).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cube::{DST_PORT, HAS_IPV4, HAS_UDP, SRC_PORT};
    use crate::rank::order::order;

    const FLOWS: usize = 6;
    const RANKS: u32 = 2;

    fn udp(ports: [(u64, u64); 2]) -> Cube {
        let mut cube = Cube::ANY.layer(HAS_IPV4, true).and_then(|cube| cube.layer(HAS_UDP, true)).unwrap();
        for (field, (value, mask)) in [DST_PORT, SRC_PORT].into_iter().zip(ports) {
            cube = cube.with(field, value & mask, mask).unwrap();
        }
        cube.closed().unwrap()
    }

    /// All packets that differ in the upper two bits of the ports.
    fn packets() -> Vec<Cube> {
        (0..16u64).map(|n| udp([(n >> 2 << 14, 0xffff), (n << 14 & 0xffff, 0xffff)])).collect()
    }

    /// How many packets meet a flow that is not compared, or none.
    fn in_hardware(flows: &[(Cube, u32, RuleId, bool)]) -> usize {
        let decided = |packet: &&Cube| {
            let met = flows.iter().filter(|(cube, ..)| cube.contains(packet));
            met.min_by_key(|(_, rank, rule, _)| (*rank, *rule)).is_none_or(|(.., is_compared)| !is_compared)
        };
        packets().iter().filter(decided).count()
    }

    /// The most packets in hardware for any ranks of the whole flows.
    fn best_without_shared_flows(cubes: &[Cube]) -> usize {
        let ranks = |code: u32| -> Vec<u32> {
            (0..cubes.len() as u32).map(|flow| code / RANKS.pow(flow) % RANKS).collect()
        };
        let outcomes = (0..RANKS.pow(cubes.len() as u32)).map(ranks).map(|ranks| {
            let is_compared = |flow: usize| {
                (0..flow).any(|other| ranks[other] >= ranks[flow] && cubes[other].overlaps(&cubes[flow]))
            };
            let flows = cubes.iter().enumerate();
            let flows: Vec<_> =
                flows.map(|(flow, cube)| (*cube, ranks[flow], RuleId::of(flow), is_compared(flow))).collect();
            in_hardware(&flows)
        });
        outcomes.max().unwrap_or(0)
    }

    /// Checks that every packet meets a flow of its first rule, or one that is compared with that rule.
    fn check_decisions(cubes: &[Cube], flows: &[(Cube, u32, RuleId, bool)], earlier: &Earlier) {
        for packet in packets() {
            let first = cubes.iter().position(|cube| cube.contains(&packet)).map(RuleId::of);
            let met: Vec<_> = flows.iter().filter(|(cube, ..)| cube.contains(&packet)).collect();
            let best = met.iter().map(|(_, rank, ..)| *rank).min();
            assert_eq!(best.is_some(), first.is_some());
            // Of flows of one rank that overlap, the device may choose any.
            for (_, rank, rule, is_compared) in met.into_iter().filter(|(_, rank, ..)| Some(*rank) == best) {
                let others = earlier.get(rule).filter(|_| *is_compared);
                let knows = others.is_some_and(|others| first.is_some_and(|first| others.contains(&first)));
                assert!(Some(*rule) == first || knows, "{packet:?}: {rule} at {rank}, not {first:?}");
            }
        }
    }

    fn limited(cubes: &[Cube], shared_of_flow: usize, weights: Option<&Weights>) -> usize {
        let candidate = |(rule, cube): (usize, &Cube)| Candidate {
            cube: *cube,
            rule: RuleId::of(rule),
            action: ActionId(2),
            traps: true,
            is_compared: false,
            is_cover: false,
        };
        let candidates: Vec<Candidate> = cubes.iter().enumerate().map(candidate).collect();
        let queue = RssQueue {
            group: GroupId(0),
            variant: program::HashVariant::All,
            fields: packet::HashFields::empty(),
            table: Vec::new(),
        };
        let actions =
            vec![LoweredAction::Drop, LoweredAction::Pass, LoweredAction::Steer(program::QueueId(0))];
        let mut lowered = Lowered {
            candidates,
            actions,
            steering: Vec::new(),
            queues: vec![queue],
            sniffer: None,
            left: BTreeSet::new(),
            covered: Vec::new(),
        };
        let steering = Steering { group: GroupId(0), packets: Cube::ANY, action: ActionId(2) };
        lowered.steering.push(steering);
        let limits = Limits { ranks: RANKS, shared_flows: usize::MAX, shared_of_flow };
        let (policy, _) = policy::parse(&policy::Source::new("p.toml", "version = 1\n"), &policy::NoFiles)
            .expect("a policy without rules");
        let ideal = DeviceModel::ideal();
        let job = Job::new(&policy, &ideal, 1).weighted(weights);
        let limited = limit_ranks(&job, &order(lowered), limits);
        let Ok(Limited { flows: RankedFlows { lowered, ranking }, earlier, .. }) = limited else {
            panic!("too many steps")
        };
        let flow = |Ranked { id, rank }: &Ranked| {
            let Candidate { cube, rule, is_compared, .. } = *lowered.candidate(*id);
            assert!(*rank < RANKS);
            (cube, *rank, rule, is_compared)
        };
        let flows: Vec<_> = ranking.kept.iter().map(flow).collect();
        check_decisions(cubes, &flows, &earlier);
        in_hardware(&flows)
    }

    /// On small instances the result is compared with the best of all assignments of ranks to whole flows.
    /// Shared flows decide more in hardware on the whole: 4568 packets against 4499 of 4800. In 12 of 300
    /// instances they decide fewer, by up to 10 of 16 packets: a large shared flow is compared because a
    /// small earlier flow overlaps it.
    #[test]
    fn shared_flows_decide_more_in_hardware_than_any_ranks_of_whole_flows() {
        let mut seed = 1u64;
        let mut next = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        let (mut ours, mut best, mut widest, mut worse) = (0, 0, 0, 0);
        for instance in 0..300u64 {
            let cubes: Vec<Cube> = (0..FLOWS)
                .map(|_| udp([(); 2].map(|()| ((next(4) as u64) << 14, [0, 0x8000, 0xc000][next(3)]))))
                .collect();
            let weights = Weights::new((0..FLOWS as u64).map(|rule| instance * (rule + 1) % 7).collect());
            for shared_flows in 0..3 {
                limited(&cubes, shared_flows, None);
                limited(&cubes, shared_flows, Some(&weights));
            }
            let (own, other) = (limited(&cubes, MAX_SHARED_OF_FLOW, None), best_without_shared_flows(&cubes));
            ours += own;
            best += other;
            widest = widest.max(other.saturating_sub(own));
            worse += usize::from(own < other);
        }
        println!("{ours} packets in hardware of {best}; worse in {worse} of 300, by {widest} of 16 at most");
        assert!(ours >= best, "{ours} of {best}");
        assert!(worse <= 15 && widest <= 10, "worse in {worse} of 300, by {widest}");
    }
}
