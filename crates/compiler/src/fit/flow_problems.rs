//! Flows that the device has no room for, found before the program is written.

use policy::Witness;
use program::RuleId;

use crate::cover::MAX_FLOWS;
use crate::cube::Cube;
use crate::fit::assign_priorities::Assigned;
use crate::job::Job;
use crate::rank::lower::{Candidate, CandidateId, Lowered};
use crate::rank::order::{Ranked, RankedFlows, Ranking};
use crate::specs;

/// Why a policy needs more priorities than there are.
#[derive(Debug)]
pub(crate) enum PriorityCause {
    /// One rank has so many masks that it takes several priorities.
    Masks { masks: usize, priorities: u32 },
    /// The hash variants of one rule overlap.
    Variants,
    /// Rules overlap one another in turn; `above` and `below` are the two between which priorities run out.
    Chain { above: RuleId, below: RuleId, rules: Vec<RuleId>, shared: Option<Witness>, has_variants: bool },
}

/// Flows that the device has no room for.
#[derive(Debug)]
pub(crate) enum FlowProblem {
    /// The rule shows best why there are too few priorities.
    Priorities { rule: RuleId, needed: u32, cause: PriorityCause },
    /// The one table for flows that match only multicast is full at this rule.
    MulticastTable(RuleId),
    /// More flows than the device has for one program on each of its ports; it has no room from this rule on.
    DeviceFlows { rule: RuleId, flows: usize, most: usize },
    /// A flow of the rule has too many specs.
    Specs { rule: RuleId, specs: u32 },
}

/// Finds flows that the device has no room for, before they are written out.
pub(crate) fn flow_problems(job: &Job<'_>, flows: &RankedFlows, assigned: &Assigned) -> Vec<FlowProblem> {
    let RankedFlows { lowered, ranking } = flows;
    let profile = job.profile;
    let mut problems = Vec::new();
    let rule_of = |id: CandidateId| lowered.candidate(id).rule;
    let offered = profile.priorities_per_program();
    if assigned.priorities > offered {
        let (rule, cause) = priority_cause(lowered, ranking, assigned, offered);
        problems.push(FlowProblem::Priorities { rule, needed: assigned.priorities, cause });
    }
    if let Some(id) = assigned.overflow {
        problems.push(FlowProblem::MulticastTable(rule_of(id)));
    }
    let most = profile.flows_per_program().unwrap_or(MAX_FLOWS).min(MAX_FLOWS);
    if let Some(first) = ranking.kept.get(most) {
        let (rule, flows) = (rule_of(first.id), ranking.kept.len());
        problems.push(FlowProblem::DeviceFlows { rule, flows, most });
    }
    let reading = specs::Reading::of(profile);
    let kept = ranking.kept.iter().map(|ranked| lowered.candidate(ranked.id));
    let longest = kept.map(|Candidate { cube, rule, .. }| (specs::spec_count(cube, reading), *rule)).max();
    if let Some((specs, rule)) = longest.filter(|(specs, _)| specs + specs::ACTION_SPECS > profile.max_specs)
    {
        problems.push(FlowProblem::Specs { rule, specs });
    }
    problems
}

/// Why there are too few priorities, and the rule to blame.
fn priority_cause(
    lowered: &Lowered,
    ranking: &Ranking,
    assigned: &Assigned,
    offered: u32,
) -> (RuleId, PriorityCause) {
    let longest = &ranking.longest;
    let ranks = longest.last().map_or(0, |last| last.rank + 1);
    if let Some(widest) = assigned.widest.as_ref().filter(|_| ranks <= offered) {
        let cause = PriorityCause::Masks { masks: widest.masks, priorities: widest.priorities };
        return (lowered.candidate(widest.rarest).rule, cause);
    }
    let candidate = |ranked: &Ranked| lowered.candidate(ranked.id);
    let last = longest.iter().position(|ranked| ranked.rank >= offered).unwrap_or(0);
    let upto = &longest[..longest.len().min(last + 1)];
    // Flows of one rule rank apart as well, by their hash variants.
    let mut pairs = upto.windows(2).rev().map(|pair| (candidate(&pair[0]), candidate(&pair[1])));
    let Some((above, below)) = pairs.find(|(above, below)| above.rule != below.rule) else {
        return (longest.last().map_or(RuleId(0), |last| candidate(last).rule), PriorityCause::Variants);
    };
    let mut rules: Vec<RuleId> = longest.iter().map(|ranked| candidate(ranked).rule).collect();
    rules.dedup();
    let cause = PriorityCause::Chain {
        above: above.rule,
        below: below.rule,
        shared: shared_packet(&above.cube, &below.cube),
        has_variants: rules.len() < longest.len(),
        rules,
    };
    (below.rule, cause)
}

/// An example packet in both cubes. It is checked against the specs of both flows before it is shown.
fn shared_packet(one: &Cube, other: &Cube) -> Option<Witness> {
    let witness = Witness { frame: one.and(other)?.frame() };
    let key = witness.key();
    let takes = |cube: &Cube| specs::chain(cube, specs::Reading::default()).matches(&key);
    (takes(one) && takes(other)).then_some(witness)
}

#[cfg(test)]
mod tests {
    use packet::cube::*;

    use super::shared_packet;

    fn cube(fields: &[(Slot, u64)]) -> Cube {
        let fill = |cube: Cube, (field, value): &(Slot, u64)| cube.with(*field, *value, field.ones());
        fields.iter().try_fold(Cube::ANY, fill).and_then(Cube::closed).expect("some packet")
    }

    #[test]
    fn shared_packets_are_found_for_all_fields() {
        let any = Cube::ANY;
        let inner = HAS_IPV4.inside();
        for cube in [
            cube(&[(HAS_IPV4, 1), (HAS_TCP, 1), (DST_PORT, 22), (TOS, 4), (TTL, 1)]),
            cube(&[(HAS_IPV6, 1), (SRC_HIGH, 5), (FLOW_LABEL, 9), (HAS_UDP, 1), (SRC_PORT, 53)]),
            cube(&[(VLAN_TCI, 0x2007), (ETHER_TYPE, 0x0806), (DST_MAC, 0xffff_ffff_ffff)]),
            cube(&[(HAS_IPV4, 1), (IP_FLAGS, 2), (PROTOCOL, 47)]),
            cube(&[(HAS_IPV4, 1), (HAS_ESP, 1), (ESP_SPI, 7)]),
            cube(&[(HAS_IPV4, 1), (HAS_VXLAN, 1), (VXLAN_VNI, 5), (HAS_INNER, 1), (inner, 1)]),
            cube(&[
                (HAS_IPV6, 1),
                (HAS_GRE, 1),
                (GRE_KEY, 0),
                (GRE_PROTOCOL, 0x0800),
                (HAS_INNER, 1),
                (inner, 1),
            ]),
            cube(&[(ETHER_TYPE, 0x8847), (HAS_MPLS, 1), (MPLS_TOP, 0x0001_0040)]),
            cube(&[(HAS_IPV4, 1), (HAS_UDP, 1), (DST_PORT, 6635), (HAS_MPLS, 1), (HAS_INNER, 1), (inner, 1)]),
            cube(&[(HAS_INNER, 1), (HAS_IPV6.inside(), 1), (HAS_TCP.inside(), 1), (DST_PORT.inside(), 80)]),
            cube(&[(HAS_INNER, 1), (SRC_MAC.inside(), 3)]),
        ] {
            let witness = shared_packet(&cube, &any).unwrap_or_else(|| panic!("{cube:?}"));
            assert!(shared_packet(&any, &cube) == Some(witness));
        }
        let (arp, ipv4) = (cube(&[(ETHER_TYPE, 0x0806)]), cube(&[(HAS_IPV4, 1)]));
        assert_eq!(shared_packet(&arp, &ipv4), None);
    }
}
