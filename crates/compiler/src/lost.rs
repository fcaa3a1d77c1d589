//! Packets that a policy leaves to the host but that a worker receives. Without a sink of kind `kernel`, workers
//! cannot give them back, so they are lost.
//! They are searched by building frames at the limits of rules and computing their outcome with `explain`. Every reported
//! packet is therefore lost; packets that the search does not try may be lost as well.

use std::collections::BTreeSet;

use device_model::DeviceProfile;
use packet::build::FrameBuilder;
use packet::{
    DeepKey, EtherType, Field, Header, IpProtocol, Layers, MPLS_UDP_PORT, TunnelLayers, VXLAN_UDP_PORT,
};
use policy::{Diagnostic, Diagnostics, Policy, Witness};
use program::{FlowAction, FlowKind, Program, RangeSet, RuleId, UndecidedReason, Verdict};
use serde::Serialize;

use super::Job;
use super::classes::outcomes;
use super::cover::{CoveredRule, cover, everything};
use super::cube::{Cube, ETHER_TYPE, HAS_IPV4, HAS_IPV6, HAS_TCP, HAS_UDP, Slot, VLAN_TCI};
use super::diagnostics::Problems;

/// The most frames that are tried for one policy.
const MAX_FRAMES: usize = 1 << 15;
/// The most comparisons of a frame with a flow.
const MAX_FLOWS_TRIED: usize = 1 << 27;
/// The most cubes of one rule, and the most later rules, that are tried.
const MAX_CUBES: usize = 8;
const MAX_LATER: usize = 64;
/// The most values of a key that are tried.
const MAX_VALUES: usize = 12;

/// A packet that the policy leaves to the host and that a worker receives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LostException {
    /// The rule that leaves it to the host, or the default.
    pub rule: RuleId,
    /// The rule whose flow matches it.
    pub taken_by: RuleId,
    /// The packet.
    pub witness: Witness,
}

/// One lost packet for each rule that leaves packets to the host, the default among them, as far as one is found:
/// what `check`, start and reload refuse unless the policy allows it.
#[must_use]
pub fn lost_exceptions(policy: &Policy, profile: &DeviceProfile, program: &Program) -> Vec<LostException> {
    let (suspects, open) = may_be_lost(program);
    // With a kernel sink, workers give these packets back.
    if open.is_empty() || program.kernel_sink().is_some() {
        return Vec::new();
    }
    // Each frame is compared with every flow.
    let frames_left = MAX_FRAMES.min(MAX_FLOWS_TRIED / program.flows.len().max(1));
    let job = Job::new(policy, profile, 0);
    let rules = cover(&job, &mut Problems::default());
    let mut search = Search { program, open, found: Vec::new(), frames_left };
    for index in suspects {
        match rules.get(index.index()) {
            Some(rule) => search.rule(policy, &rules, index.index(), rule),
            None => search.cubes(policy, None, everything().as_slice()),
        }
    }
    search.found.sort_by_key(|lost| lost.rule);
    search.found
}

/// The lost exceptions as errors, unless the policy allows them: `check` warns in both cases.
#[must_use]
pub fn refuse_lost_exceptions(policy: &Policy, program: &Program, lost: &[LostException]) -> Diagnostics {
    let diagnostic = |lost: &LostException| -> Diagnostic {
        let name = |rule: RuleId| program.rules.get(rule.index()).map_or("?", |rule| rule.name.as_str());
        let rule = name(lost.rule);
        let place = policy.rules.get(lost.taken_by.index()).or_else(|| policy.rules.get(lost.rule.index()));
        let place = place.map_or(&policy.default_place, |rule| &rule.place);
        let LostExceptionReason { later, reason, remedy } = lost_exception_reason(program, lost.taken_by);
        let message = format!(
            "packets that `{rule}` leaves to the kernel are lost: flows of `{later}` take them, and a worker cannot give \
             them back, for example {}",
            lost.witness.fields()
        );
        let hint = format!(
            "{reason}: {remedy} (`steerd check` shows more), or add [sinks.host] with kind = \"kernel\" so that workers give such packets back, or write \
             allow_lost_exceptions = true at the top of the policy"
        );
        place.error(message, "the host would not see these").hint(hint)
    };
    if policy.allow_lost_exceptions {
        return Diagnostics::default();
    }
    Diagnostics::from(lost.iter().map(diagnostic).collect::<Vec<_>>())
}

/// Why flows of a rule take packets that belong to the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostExceptionReason {
    /// The rule that takes packets like these: this one, or a later one of which the device cannot exclude them.
    pub later: String,
    /// What the device cannot do.
    pub reason: String,
    /// What to change.
    pub remedy: String,
}

/// Why flows of a rule take packets that belong to the host, from what the compiler noted about the rule.
#[must_use]
pub fn lost_exception_reason(program: &Program, rule: RuleId) -> LostExceptionReason {
    let name = |rule: RuleId| program.rules.get(rule.index()).map_or("?", |rule| rule.name.as_str());
    let reasons = program.rules.get(rule.index()).map(|rule| &*rule.undecided).unwrap_or_default();
    let kept = reasons.iter().find_map(|note| match note.why {
        UndecidedReason::KernelException { by, inseparable } => Some((by, inseparable)),
        _ => None,
    });
    if let Some((by, inseparable)) = kept {
        let later = name(by).to_owned();
        let reason = format!("`{later}` {}", inseparable.words());
        let remedy = format!("narrow `{later}` until it does not match them");
        return LostExceptionReason { later, reason, remedy };
    }
    let later = name(rule).to_owned();
    let keys: Vec<String> =
        reasons.iter().map(|note| format!("{} ({})", note.key, note.why.words())).collect();
    let reason = format!("the device does not decide {}", keys.join(", "));
    let remedy =
        format!("leave these keys of `{later}` out, or steer or drop the other packets by a later rule");
    LostExceptionReason { later, reason, remedy }
}

/// The rules whose flows lead to a class that may leave packets to the host, and the rules, the default among them,
/// by which it does.
fn may_be_lost(program: &Program) -> (BTreeSet<RuleId>, BTreeSet<RuleId>) {
    let (mut suspects, mut leaving) = (BTreeSet::new(), BTreeSet::new());
    let mut seen = BTreeSet::new();
    for flow in program.flows.iter().filter(|flow| flow.kind == FlowKind::Normal) {
        let FlowAction::Steer { class: id, .. } = flow.action else { continue };
        let Some(class) = program.class(id).filter(|_| seen.insert((flow.rule, id))) else { continue };
        let to_host = outcomes(&class.decide).filter(|outcome| outcome.verdict == Verdict::Kernel);
        let to_host: Vec<RuleId> = to_host.map(|outcome| outcome.rule).collect();
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
    fn rule(&mut self, policy: &Policy, rules: &[CoveredRule], index: usize, rule: &CoveredRule) {
        if !rule.decides() {
            return;
        }
        let own = few(&rule.expansion.cubes);
        let later = rules.iter().enumerate().skip(index + 1).filter(|(_, later)| later.decides());
        for (other, later) in later.filter(|(_, later)| later.may_overlap_with(rule)).take(MAX_LATER) {
            let theirs = few(&later.expansion.cubes);
            let shared: Vec<Cube> =
                own.iter().flat_map(|own| theirs.iter().filter_map(move |their| own.and(their))).collect();
            self.cubes(policy, Some(index), &few(&shared));
            self.cubes(policy, Some(other), &few(&shared));
        }
        self.cubes(policy, Some(index), &own);
    }

    /// Tries packets of these cubes, with values of one rule's keys and others.
    fn cubes(&mut self, policy: &Policy, rule: Option<usize>, cubes: &[Cube]) {
        let values = rule.and_then(|rule| policy.rules.get(rule)).map(Values::of).unwrap_or_default();
        for cube in cubes {
            if self.open.is_empty() || self.frames_left == 0 {
                return;
            }
            for cube in values.around(cube) {
                self.variants(&cube, &values);
            }
        }
    }

    /// One packet of a cube, and variants of it in fields that flows cannot match.
    fn variants(&mut self, cube: &Cube, values: &Values) {
        let frame = cube.frame();
        let builder = cube.headers();
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
            let flags = [0x02, 0x12, 0x01, 0x04, 0x00];
            frames.extend(flags.map(|flags| builder.clone().set(Field::TcpFlags, flags).build()));
        }
        if DeepKey::of(&frame).outer.has_extension_headers() {
            frames.extend(values.behind_extension_headers(&builder));
        }
        if cube.mask_of(VLAN_TCI) == 0 {
            let tagged = |tpid| builder.clone().vlan(EtherType(tpid), 5);
            frames.extend([0x8100, 0x88a8].map(|tpid| tagged(tpid).build()));
            frames.push(tagged(0x8100).vlan(EtherType(0x8100), 7).build());
        } else {
            frames.push(builder.clone().vlan(EtherType(0x8100), 7).build());
        }
        for frame in frames {
            self.try_frame(frame);
        }
    }

    fn try_frame(&mut self, frame: Vec<u8>) {
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

/// Whether every header that another one announces is complete. The host could not use other frames either.
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
        _ if outer.has_extension_headers() => IpProtocol(outer.extended.protocol).is_extension_header(),
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

/// The first cube of each mask, those with the fewest bits first, because they match most packets.
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
    list: Vec<(Slot, Vec<u64>)>,
    /// Of the fields behind extension headers, which no cube has. The first value of each is in the rule.
    extended: Vec<(Field, Vec<u64>)>,
}

impl Values {
    fn of(rule: &policy::policy::RuleDefinition) -> Self {
        // VLAN tags and tunnel headers are left out: `variants` adds tags, and cubes of tunnels are few.
        let is_tried = |header: Header| header.needs_ip() || header == Header::Ethernet;
        let values = rule.matches.values().filter(|(field, _)| is_tried(field.row().header));
        let list = values
            .filter_map(|(field, set)| Some((*field.row().slots.first()?, edges(set, field.row().bits))))
            .collect();
        let extended = rule.matches.values().filter(|(field, _)| field.row().header.is_extended());
        let extended = extended.map(|(field, set)| {
            let first = set.ranges().first().map(|(low, _)| u64::from(*low));
            (field, first.into_iter().chain(edges(set, field.row().bits)).collect())
        });
        Self { list, extended: extended.collect() }
    }

    /// Frames with these headers, the last of which is an extension header, and with TCP, UDP, ICMPv6 or other protocols
    /// behind it: with usual values, with the first values of the rule, and with one field set to one value.
    fn behind_extension_headers(&self, headers: &FrameBuilder) -> Vec<Vec<u8>> {
        let (protocols, others): (Vec<_>, Vec<_>) =
            self.extended.iter().partition(|(field, _)| *field == Field::ExtProtocol);
        let mut frames = Vec::new();
        // The headers have the number of what follows them.
        let before = |protocol| headers.clone().protocol(protocol);
        for usual in [
            before(IpProtocol::TCP).tcp(1024, 9, 0x02),
            before(IpProtocol::UDP).udp(1024, 9),
            before(IpProtocol::ICMPV6).icmp(128, 0),
        ] {
            let firsts = others.iter().filter_map(|(field, values)| Some((*field, *values.first()?)));
            let first =
                firsts.fold(usual.clone(), |builder, (field, value)| builder.set(field, value.into()));
            frames.push(usual.build());
            for (field, values) in &others {
                frames.extend(values.iter().map(|value| first.clone().set(*field, (*value).into()).build()));
            }
        }
        // Packets of these need a header, but later fragments do not have one.
        let with_header = [IpProtocol::TCP, IpProtocol::UDP, IpProtocol::ICMPV6];
        let given = protocols.into_iter().flat_map(|(_, values)| values);
        let others = given.map(|value| IpProtocol(*value as u8)).filter(|other| !with_header.contains(other));
        for protocol in others {
            frames.push(before(protocol).build());
        }
        let fragment = headers.clone().fragment(8, false);
        frames.extend(with_header.map(|protocol| fragment.clone().protocol(protocol).build()));
        // A value may be one of several edges, and headers do not have all of the fields.
        let mut seen = BTreeSet::new();
        frames.retain(|frame| seen.insert(frame.clone()));
        frames
    }

    /// The cube, its parts with one field set to one value, and its parts with each header that it does not exclude.
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
fn edges(set: &RangeSet<u32>, bits: u32) -> Vec<u64> {
    let most = (1u64 << bits) - 1;
    let mut values = BTreeSet::new();
    for (low, high) in set.ranges().iter().take(MAX_VALUES / 4) {
        let (low, high) = (u64::from(*low), u64::from(*high));
        values.extend([low, high, low.saturating_sub(1), (high + 1).min(most)]);
    }
    values.extend([0, most]);
    values.into_iter().collect()
}
