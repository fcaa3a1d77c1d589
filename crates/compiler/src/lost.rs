//! Packets that a policy leaves to the host and that a worker receives all the same: no worker can give them back,
//! so they are lost. Looked for in what was compiled, by frames that are made at the edges of rules and then judged by
//! `explain`: a packet that is named here really is lost. Called by `report` and whoever installs a program.

use std::collections::BTreeSet;

use device_model::DeviceProfile;
use packet::{DeepKey, EtherType, IpProtocol, Layers, MPLS_UDP_PORT, TunnelLayers, VXLAN_UDP_PORT};
use policy::{Diagnostic, Diagnostics, Policy, Witness};
use program::{Decide, FlowAction, FlowKind, Program, RangeSet, RuleId, Verdict, Why};
use serde::Serialize;

use super::classes::Expanded;
use super::cube::{
    Cube, DST_PORT, ETHER_TYPE, FLOW_LABEL, Field, HAS_IPV4, HAS_IPV6, HAS_TCP, HAS_UDP, IP_FLAGS, PROTOCOL,
    SRC_PORT, TOS, TTL, VLAN_TCI,
};
use super::findings::Findings;
use super::witness;

/// The most frames that are judged for one policy.
const MAX_FRAMES: usize = 1 << 15;
/// The most comparisons of a frame with a flow.
const MAX_COMPARISONS: usize = 1 << 27;
/// The most cubes of one rule that are looked at, and the most later rules.
const MAX_CUBES: usize = 8;
const MAX_LATER: usize = 64;
/// The most values of a key that are tried.
const MAX_VALUES: usize = 12;

/// A packet that the policy leaves to the host and that a worker receives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LostException {
    /// The rule that leaves it to the host, or the default.
    pub rule: RuleId,
    /// The rule whose flow takes it.
    pub taken_by: RuleId,
    /// The packet.
    pub witness: Witness,
}

/// One lost packet for each rule that leaves packets to the host, the default among them, as far as one is found:
/// what `check`, start and reload refuse unless the policy allows it.
#[must_use]
pub fn lost_exceptions(policy: &Policy, profile: &DeviceProfile, program: &Program) -> Vec<LostException> {
    let (suspects, open) = may_be_lost(program);
    if open.is_empty() {
        return Vec::new();
    }
    // Each frame is held against every flow.
    let frames_left = MAX_FRAMES.min(MAX_COMPARISONS / program.flows.len().max(1));
    let mut problems = Findings::default();
    let rules = super::expand_rules(policy, profile, &mut problems);
    let mut search = Search { program, open, found: Vec::new(), frames_left };
    for index in suspects {
        match rules.get(index.index()) {
            Some(rule) => search.rule(policy, &rules, index.index(), rule),
            None => search.cubes(policy, None, super::exceptions::everything().as_slice()),
        }
    }
    search.found.sort_by_key(|lost| lost.rule);
    search.found
}

/// The lost exceptions as errors, unless the policy allows them: `check` warns of the rules that take them either way.
#[must_use]
pub fn refuse_lost_exceptions(policy: &Policy, program: &Program, lost: &[LostException]) -> Diagnostics {
    let diagnostic = |lost: &LostException| -> Diagnostic {
        let name = |rule: RuleId| program.rules.get(rule.index()).map_or("?", |rule| rule.name.as_str());
        let (rule, taker) = (name(lost.rule), name(lost.taken_by));
        let place = policy.rules.get(lost.taken_by.index()).or_else(|| policy.rules.get(lost.rule.index()));
        let place = place.map_or(&policy.default_place, |rule| &rule.place);
        let reasons =
            program.rules.get(lost.taken_by.index()).map(|rule| &*rule.unfinished).unwrap_or_default();
        let kept = reasons.iter().find_map(|note| match note.why {
            Why::KernelException { by, untold } => Some((by, untold)),
            _ => None,
        });
        let (reason, later) = match kept {
            Some((by, untold)) => (format!("`{}` {}", name(by), untold.words()), name(by)),
            None => {
                let keys: Vec<String> =
                    reasons.iter().map(|note| format!("{} ({})", note.key, note.why.words())).collect();
                (format!("the device does not decide {}", keys.join(", ")), taker)
            }
        };
        let message = format!(
            "packets that `{rule}` leaves to the kernel are lost: flows of `{later}` take them, and a worker cannot give \
             them back, for example {}",
            lost.witness.fields()
        );
        let remedy = match kept {
            Some(_) => format!("narrow `{later}` until it does not take them"),
            None => format!(
                "leave these keys of `{later}` out, or steer or drop the other packets by a later rule"
            ),
        };
        let hint = format!(
            "{reason}: {remedy} (`steerd check` says more), or write allow_lost_exceptions = true at the top of the policy"
        );
        place.error(message, "the host would not see these").hint(hint)
    };
    if policy.allow_lost_exceptions {
        return Diagnostics::default();
    }
    Diagnostics::from(lost.iter().map(diagnostic).collect::<Vec<_>>())
}

/// The rules whose flows lead to a class that may leave packets to the host, and the rules, the default among them,
/// by which it does.
fn may_be_lost(program: &Program) -> (BTreeSet<RuleId>, BTreeSet<RuleId>) {
    let (mut suspects, mut leaving) = (BTreeSet::new(), BTreeSet::new());
    let mut seen = BTreeSet::new();
    for flow in program.flows.iter().filter(|flow| flow.kind == FlowKind::Normal) {
        let FlowAction::Steer { class: id, .. } = flow.action else { continue };
        let Some(class) = program.class(id).filter(|_| seen.insert((flow.rule, id))) else { continue };
        let (steps, last): (&[_], _) = match &class.decide {
            Decide::Exact(outcome) => (&[], outcome),
            Decide::Software(steps, last) => (steps, last),
        };
        let outcomes = steps.iter().map(|step| step.outcome).chain([*last]);
        let to_host: Vec<RuleId> = outcomes
            .filter(|outcome| outcome.verdict == Verdict::Kernel)
            .map(|outcome| outcome.rule)
            .collect();
        if !to_host.is_empty() {
            suspects.insert(flow.rule);
        }
        leaving.extend(to_host);
    }
    (suspects, leaving)
}

struct Search<'p> {
    program: &'p Program,
    /// The rules of which no packet is known to be lost yet.
    open: BTreeSet<RuleId>,
    found: Vec<LostException>,
    frames_left: usize,
}

impl Search<'_> {
    /// Looks among the packets of one rule's cubes, and of what they share with later rules.
    fn rule(&mut self, policy: &Policy, rules: &[Expanded], index: usize, rule: &Expanded) {
        if !rule.claims() {
            return;
        }
        let own = few(&rule.expansion.cubes);
        let later = rules.iter().enumerate().skip(index + 1).filter(|(_, later)| later.claims());
        for (other, later) in later.filter(|(_, later)| later.agrees_with(rule)).take(MAX_LATER) {
            let theirs = few(&later.expansion.cubes);
            let shared: Vec<Cube> =
                own.iter().flat_map(|own| theirs.iter().filter_map(move |their| own.and(their))).collect();
            self.cubes(policy, Some(index), &few(&shared));
            self.cubes(policy, Some(other), &few(&shared));
        }
        self.cubes(policy, Some(index), &own);
    }

    /// Judges packets of these cubes, by the values of one rule's keys and by others.
    fn cubes(&mut self, policy: &Policy, rule: Option<usize>, cubes: &[Cube]) {
        let values = rule.and_then(|rule| policy.rules.get(rule)).map(Values::of).unwrap_or_default();
        for cube in cubes {
            if self.open.is_empty() || self.frames_left == 0 {
                return;
            }
            for cube in values.around(cube) {
                self.variants(&cube);
            }
        }
    }

    /// One packet of a cube, and the same with what no flow asks for.
    fn variants(&mut self, cube: &Cube) {
        let frame = witness::frame(cube);
        let builder = witness::headers(cube, &|field| field);
        let mut frames = vec![frame.clone()];
        if cube.has(HAS_IPV4) || cube.has(HAS_IPV6) {
            frames.extend(
                [(0, true), (8, true), (8, false)]
                    .map(|(at, more)| builder.clone().fragment(at, more).build()),
            );
        }
        if cube.has(HAS_IPV4) {
            frames.push(builder.clone().ip_options(&[1, 1, 1, 0]).build());
        }
        if cube.has(HAS_TCP) {
            let ports = |field| witness::value(cube, field, field) as u16;
            let flags = [0x02, 0x12, 0x01, 0x04, 0x00];
            frames.extend(
                flags.map(|flags| builder.clone().tcp(ports(SRC_PORT), ports(DST_PORT), flags).build()),
            );
        }
        if cube.mask_of(VLAN_TCI) == 0 {
            let tagged = |tpid| builder.clone().vlan(EtherType(tpid), 5);
            frames.extend([0x8100, 0x88a8].map(|tpid| tagged(tpid).build()));
            frames.push(tagged(0x8100).vlan(EtherType(0x8100), 7).build());
        } else {
            frames.push(builder.clone().vlan(EtherType(0x8100), 7).build());
        }
        for frame in frames {
            self.judge(frame);
        }
    }

    fn judge(&mut self, frame: Vec<u8>) {
        if self.frames_left == 0 {
            return;
        }
        self.frames_left -= 1;
        if !is_whole(&frame) {
            return;
        }
        let explained = self.program.explain_deep(&DeepKey::of(&frame));
        if explained.is_lost_exception() && self.open.remove(&explained.outcome.rule) {
            let (rule, taken_by) = (explained.outcome.rule, explained.rule);
            self.found.push(LostException { rule, taken_by, witness: Witness { frame } });
        }
    }
}

/// Whether all headers are there that others announce: with anything else the host could do nothing either.
fn is_whole(frame: &[u8]) -> bool {
    let key = DeepKey::of(frame);
    let (outer, tunnel) = (&key.outer, key.tunnel.layers);
    let is_cut = match EtherType(outer.ether_type) {
        EtherType::IPV4 => !outer.layers.contains(Layers::IPV4),
        EtherType::IPV6 => !outer.layers.contains(Layers::IPV6),
        EtherType::MPLS | EtherType::MPLS_MULTICAST => !tunnel.contains(TunnelLayers::MPLS),
        _ => false,
    };
    let is_ip = outer.layers.intersects(Layers::IPV4 | Layers::IPV6);
    let lacks = match IpProtocol(outer.protocol) {
        _ if !is_ip || outer.layers.contains(Layers::LATER_FRAGMENT) => false,
        IpProtocol::TCP => !outer.layers.contains(Layers::TCP),
        IpProtocol::UDP => {
            let announced = match outer.dst_port {
                VXLAN_UDP_PORT => TunnelLayers::VXLAN,
                MPLS_UDP_PORT => TunnelLayers::MPLS,
                _ => TunnelLayers::empty(),
            };
            !outer.layers.contains(Layers::UDP) || !tunnel.contains(announced)
        }
        IpProtocol::GRE => {
            let is_labelled =
                matches!(EtherType(key.tunnel.gre_protocol), EtherType::MPLS | EtherType::MPLS_MULTICAST);
            !tunnel.contains(TunnelLayers::GRE) || is_labelled && !tunnel.contains(TunnelLayers::MPLS)
        }
        IpProtocol::ESP => !tunnel.contains(TunnelLayers::ESP),
        _ => false,
    };
    !is_cut && !lacks && packet::parse(frame).anomaly.is_none()
}

/// The first of each mask, those with the fewest bits first: these take the most.
fn few(cubes: &[Cube]) -> Vec<Cube> {
    let mut masks = BTreeSet::new();
    let mut few: Vec<Cube> = cubes.iter().filter(|cube| masks.insert(cube.mask)).copied().collect();
    few.sort_by_key(|cube| cube.mask.iter().map(|word| word.count_ones()).sum::<u32>());
    few.truncate(MAX_CUBES);
    few
}

/// Values at the edges of a rule's keys, by field.
#[derive(Default)]
struct Values {
    list: Vec<(Field, Vec<u64>)>,
}

impl Values {
    fn of(rule: &policy::policy::RuleDefinition) -> Self {
        let keys = &rule.matches;
        let mut list = vec![
            (SRC_PORT, edges(keys.src_port.as_ref(), 16)),
            (DST_PORT, edges(keys.dst_port.as_ref(), 16)),
            (PROTOCOL, edges(keys.protocol.as_ref(), 8)),
            (TTL, edges(keys.ttl.as_ref(), 8)),
            (TOS, edges(keys.tos.map(|set| set.ranges()).as_ref(), 8)),
            (IP_FLAGS, edges(keys.ip_flags.map(|set| set.ranges()).as_ref(), 3)),
            (FLOW_LABEL, edges(keys.flow_label.as_ref(), 20)),
            (ETHER_TYPE, edges(keys.ethertype.as_ref(), 16)),
        ];
        list.retain(|(_, values)| !values.is_empty());
        Self { list }
    }

    /// The cube, with one field or the next at each of its values, and within each kind of header it leaves open.
    fn around(&self, cube: &Cube) -> Vec<Cube> {
        let mut cubes = vec![*cube];
        for (field, values) in &self.list {
            cubes.extend(values.iter().filter_map(|value| cube.with(*field, *value, field.ones())?.closed()));
        }
        for (ip, transport) in
            [(HAS_IPV4, HAS_TCP), (HAS_IPV4, HAS_UDP), (HAS_IPV6, HAS_TCP), (HAS_IPV6, HAS_UDP)]
        {
            let with = |cube: &Cube| cube.layer(ip, true)?.layer(transport, true)?.closed();
            cubes.extend(with(cube).filter(|more| more != cube));
        }
        let arp = |cube: &Cube| cube.with(ETHER_TYPE, 0x0806, ETHER_TYPE.ones())?.closed();
        cubes.extend(arp(cube).filter(|more| more != cube));
        cubes
    }
}

/// The ends of the first ranges, and the values beside them.
fn edges<T: Copy + Into<u64> + program::Word>(set: Option<&RangeSet<T>>, bits: u32) -> Vec<u64> {
    let most = (1u64 << bits) - 1;
    let mut values = BTreeSet::new();
    let Some(set) = set else { return Vec::new() };
    for (low, high) in set.ranges().iter().take(MAX_VALUES / 4) {
        let (low, high): (u64, u64) = ((*low).into(), (*high).into());
        values.extend([low, high, low.saturating_sub(1), (high + 1).min(most)]);
    }
    values.extend([0, most]);
    values.into_iter().collect()
}
