//! Warnings that need the whole policy: valid, but probably not what its author wants.

use std::collections::BTreeSet;

use packet::HashFields;
use program::{Fragments, GroupId};

use crate::diagnostics::Place;
use crate::policy::{Action, GroupDefinition, Policy, RuleDefinition, Workers};

use super::reader::Reader;

/// The hash fields that fragments do not have.
const PORTS: HashFields = HashFields::TCP.union(HashFields::UDP);

/// Warns of groups that part what belongs together.
pub(super) fn warn(reader: &mut Reader, policy: &Policy, symmetry_asked: &BTreeSet<GroupId>) {
    let mut warned: Option<&Place> = None;
    for rule in &policy.rules {
        // The parts of a rule that skips extension headers follow one another.
        if warned == Some(&rule.place) {
            continue;
        }
        let (Action::Steer(group) | Action::Copy(group)) = rule.action else { continue };
        let is_symmetric = symmetry_asked.contains(&group);
        let Some(group) = policy.groups.get(group.index()).filter(|group| has_choice(group)) else {
            continue;
        };
        if let Some((message, hint)) = parted(rule, group, is_symmetric) {
            reader.push(rule.place.warning(message, "these packets").hint(hint));
            warned = Some(&rule.place);
        }
    }
}

/// Whether packets of the group can reach different workers, and ports are among what decides.
fn has_choice(group: &GroupDefinition) -> bool {
    let has_workers = match &group.workers {
        Workers::All => true,
        Workers::Listed(listed) => listed.iter().filter(|share| share.weight > 0).count() > 1,
    };
    has_workers && group.fields.intersects(PORTS)
}

/// Warns of packets of the rule that the group parts from the rest of their flow. Only of rules that are
/// about such packets: most groups hash ports, and most traffic is neither fragmented nor tunnelled. The
/// source ports of VXLAN and of MPLS over UDP differ between the directions of a connection inside (RFC 7348,
/// 5; RFC 7510, 3), which matters where the text asks for symmetry.
fn parted(
    rule: &RuleDefinition,
    group: &GroupDefinition,
    is_symmetric: bool,
) -> Option<(String, &'static str)> {
    let (matches, name) = (&rule.matches, &group.name);
    let with_fragments = |set: Fragments| !set.is_all() && set.intersects(Fragments::PIECES);
    if matches.fragment.is_some_and(with_fragments) {
        let message = format!(
            "the group `{name}` hashes ports, which fragments do not have: they may reach another worker than the rest \
             of their flow"
        );
        return Some((message, "write hash = \"l3\" in the group, so that addresses alone decide"));
    }
    let has = |header| matches.values().any(|(field, _)| field.row().header == header);
    // MPLS can also be right behind Ethernet, or in GRE.
    let is_elsewhere = matches.get(packet::Field::EtherType).is_some() || has(packet::Header::Gre);
    let is_mpls_in_udp = matches.mpls.is_some() && !is_elsewhere;
    if is_symmetric && (has(packet::Header::Vxlan) || is_mpls_in_udp) {
        let message = format!(
            "the group `{name}` is symmetric, but hashes the ports of the tunnel: both directions of a connection inside \
             may reach different workers"
        );
        return Some((message, "write hash = \"l3\", so that all packets of a tunnel reach one worker"));
    }
    None
}
