//! The share of packets that the device decides alone, estimated with packets drawn from the rules: from each
//! rule equally many, and from all packets that it matches with equal probability as far as the fields of the
//! first IP and transport header are concerned. The same program gives the same numbers.

use std::collections::BTreeMap;

use packet::build::FrameBuilder;
use packet::cube::{
    Cube, DST_HIGH, DST_IPV4, DST_LOW, DST_PORT, HAS_IPV4, HAS_IPV6, HAS_TCP, HAS_UDP, SRC_HIGH, SRC_IPV4,
    SRC_LOW, SRC_PORT, Slot,
};
use packet::{DeepKey, Field, IpProtocol};
use policy::{Policy, Witness};
use program::{Class, Decide, Explanation, Match, Placement, Program, RangeSet, RuleId};
use serde::Serialize;

use device_model::DeviceModel;

use crate::cover::expand::expand;
use crate::flow_groups::FlowGroups;
use crate::traffic::cost::{mean_ns, worker_ps};
use crate::traffic::weights::Weights;

/// How often packets are compared with a flow, at most, to count those decided in hardware once.
pub(crate) const MAX_FLOWS_TRIED: usize = 1 << 22;
/// The most comparisons for the shares that are shown.
const MAX_FLOWS_TRIED_FOR_SHARES: usize = 1 << 26;
/// The most packets drawn from one rule.
const MAX_DRAWN: usize = 16;

/// How packets are decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Share {
    /// How many were drawn.
    pub packets: u64,
    /// The packets that no worker compares with rules.
    pub in_hardware: u64,
    /// The rules that workers compare the others with, one after another, in all.
    pub comparisons: u64,
    /// The time that workers take for all of them, in picoseconds.
    pub worker_ps: u64,
    /// The groups of flows that the packets pass in the device, in all, if it is known how it makes groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups_passed: Option<u64>,
    /// One of the others.
    pub example: Option<Witness>,
}

/// How the packets drawn from a policy's rules are decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Shares {
    /// All of them.
    pub all: Share,
    /// The shares by the rule that decides the packets, the default last.
    #[serde(skip)]
    pub rules: Vec<Share>,
}

impl Share {
    /// The percentage that a worker decides; `None`: no packet was drawn.
    #[must_use]
    pub fn hybrid_percent(&self) -> Option<f64> {
        let hybrid = self.packets - self.in_hardware;
        (self.packets > 0).then(|| 100.0 * hybrid as f64 / self.packets as f64)
    }

    /// How many rules a worker compares a packet with, on average over those that it decides.
    #[must_use]
    pub fn comparisons_per_packet(&self) -> f64 {
        self.comparisons as f64 / (self.packets - self.in_hardware).max(1) as f64
    }

    /// The time that a worker takes for a packet, in nanoseconds, as expected from measurements on the
    /// software NIC: the mean of all packets. Those that reach no worker take none.
    #[must_use]
    pub fn worker_ns_per_packet(&self) -> f64 {
        mean_ns(self.worker_ps, self.packets)
    }

    /// How many groups of flows a packet passes in the device, on average.
    #[must_use]
    pub fn groups_per_packet(&self) -> Option<f64> {
        self.groups_passed.map(|groups| groups as f64 / self.packets.max(1) as f64)
    }

    fn pass(&mut self, groups: Option<u64>) {
        if let Some(groups) = groups {
            *self.groups_passed.get_or_insert(0) += groups;
        }
    }

    fn add(&mut self, key: &DeepKey, frame: &[u8], class: Option<&Class>) {
        self.packets += 1;
        let comparisons = class.and_then(|class| class.comparisons(key));
        self.worker_ps += worker_ps(class, comparisons);
        match comparisons {
            None => self.in_hardware += 1,
            Some(comparisons) => {
                self.comparisons += comparisons;
                self.example.get_or_insert_with(|| Witness { frame: frame.to_vec() });
            }
        }
    }
}

/// Draws packets from the rules of a policy, and finds where its program decides them, on a device with these
/// groups.
#[must_use]
pub fn shares(policy: &Policy, program: &Program, flow_groups: Option<&FlowGroups>) -> Shares {
    let mut shares = Shares { all: Share::default(), rules: vec![Share::default(); program.rules.len()] };
    for Drawn { frame, key, .. } in &Sample::of(policy, program, MAX_FLOWS_TRIED_FOR_SHARES).packets {
        let (explained, class) = decision(program, key);
        let groups = flow_groups.map(|groups| groups.passed(explained.flow));
        let of_rule = shares.rules.get_mut(explained.outcome.rule.index());
        for share in of_rule.into_iter().chain([&mut shares.all]) {
            share.add(key, frame, class);
            share.pass(groups);
        }
    }
    shares
}

/// The decision about a packet, and the class by which a worker makes it.
fn decision<'p>(program: &'p Program, key: &DeepKey) -> (Explanation, Option<&'p Class>) {
    let explained = program.explain_deep(key);
    let class = explained.class.and_then(|class| program.class(class));
    (explained, class)
}

/// Packets drawn from the rules of a policy.
pub(crate) struct Sample {
    packets: Vec<Drawn>,
}

struct Drawn {
    /// The rule from which it was drawn. Another one may decide it.
    rule: RuleId,
    frame: Vec<u8>,
    key: DeepKey,
}

impl Sample {
    /// Draws as many packets as can be looked up in the program with about `most` comparisons with a flow.
    pub(crate) fn of(policy: &Policy, program: &Program, most: usize) -> Self {
        let per_packet = program.flows.len().max(1);
        let rules = policy.rules.len().max(1);
        let drawn = (most / per_packet / rules).clamp(1, MAX_DRAWN);
        // Of very large policies, packets are drawn from some rules only.
        let stride = (per_packet * rules).div_ceil(most).max(1);
        let (mut random, mut packets) = (Random(1), Vec::new());
        let deciding = policy.rules.iter().enumerate().step_by(stride);
        for (index, rule) in deciding.filter(|(_, rule)| rule.action.decides(rule.direction)) {
            let expansion = expand(&rule.matches, rule.direction, &DeviceModel::ideal());
            let Ok(expansion) = expansion else { continue };
            for _ in 0..drawn {
                let Some(cube) = random.one_of(&expansion.cubes) else { break };
                let frame = random.frame(cube, &rule.matches);
                let key = DeepKey::of(&frame);
                packets.push(Drawn { rule: RuleId::of(index), frame, key });
            }
        }
        Self { packets }
    }

    /// The percentage of packets that no worker compares with rules; `None`: there are none. The packets that
    /// a rule decides, of those drawn from it, together count as its weight. A rule that decides none of
    /// them counts by its placement: a hybrid one has no part in hardware. The default, from which no packet
    /// is drawn, does not count.
    pub(crate) fn hardware_percent(&self, program: &Program, weights: &Weights) -> Option<f64> {
        let mut rules: BTreeMap<RuleId, (u64, u64)> = BTreeMap::new();
        for drawn in &self.packets {
            let (explained, class) = decision(program, &drawn.key);
            let (all, in_hardware) = rules.entry(drawn.rule).or_default();
            if explained.outcome.rule == drawn.rule {
                *all += 1;
                *in_hardware += u64::from(class.is_none_or(Class::is_exact));
            }
        }
        let (mut total, mut part) = (0.0, 0.0);
        for (rule, (all, in_hardware)) in rules {
            let weight = weights.of(rule) as f64;
            let placement = program.rules.get(rule.index()).map(|rule| &rule.placement);
            let share = match all {
                0 => f64::from(u8::from(placement == Some(&Placement::Hardware))),
                all => in_hardware as f64 / all as f64,
            };
            total += weight;
            part += weight * share;
        }
        (total > 0.0).then(|| 100.0 * part / total)
    }

    /// The mean time of workers and of the device per packet, in picoseconds. `passed`: the time in the
    /// device of a packet that this flow takes, or none. With weights, the packets drawn from a rule
    /// together count as its weight.
    pub(crate) fn mean_ps(
        &self,
        program: &Program,
        weights: Option<&Weights>,
        passed: impl Fn(Option<usize>) -> u64,
    ) -> f64 {
        let mut rules: BTreeMap<RuleId, (u64, u64)> = BTreeMap::new();
        for drawn in &self.packets {
            let (explained, class) = decision(program, &drawn.key);
            let (packets, ps) = rules.entry(drawn.rule).or_default();
            *packets += 1;
            *ps += worker_ps(class, class.and_then(|class| class.comparisons(&drawn.key)))
                + passed(explained.flow);
        }
        let (mut total, mut sum) = (0.0, 0.0);
        for (rule, (packets, ps)) in rules {
            let weight = weights.map_or(packets as f64, |weights| weights.of(rule) as f64);
            total += weight;
            sum += weight * ps as f64 / packets as f64;
        }
        if total > 0.0 { sum / total } else { 0.0 }
    }
}

/// Whether it is a field of the header behind extension headers.
fn is_behind(field: Field) -> bool {
    field.row().header.is_extended() && field != Field::ExtProtocol
}

/// Whether packets of the match may have the protocol behind extension headers.
fn may_follow(protocol: IpProtocol, matches: &Match) -> bool {
    let is_given = matches.get(Field::ExtProtocol).is_none_or(|set| set.contains(protocol.0.into()));
    let mut fields = matches.values().filter(|(field, _)| is_behind(*field));
    is_given
        && fields.all(|(field, _)| {
            let elsewhere = field.without_extension_headers();
            elsewhere.is_none_or(|field| field.row().header.protocols().contains(&protocol))
        })
}

/// A linear congruential generator (Knuth, MMIX).
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // The upper bits are the better ones.
        self.0 ^ self.0 >> 32
    }

    fn one_of<'c, T>(&mut self, list: &'c [T]) -> Option<&'c T> {
        let count = list.len() as u64;
        list.get((self.next() >> 16).checked_rem(count)? as usize)
    }

    /// A packet of the cube of a match, also in the fields behind extension headers, which no cube has.
    fn frame(&mut self, cube: &Cube, matches: &Match) -> Vec<u8> {
        let cube = self.filled(cube);
        let frame = cube.frame();
        if !matches.needs_extended() || !DeepKey::of(&frame).outer.has_extension_headers() {
            return frame;
        }
        let protocols: Vec<IpProtocol> = (0..=u8::MAX)
            .map(IpProtocol)
            .filter(|protocol| !protocol.is_extension_header() && may_follow(*protocol, matches))
            .collect();
        let Some(protocol) = self.one_of(&protocols) else { return frame };
        let headers: FrameBuilder = cube.headers().protocol(*protocol);
        let [src_port, dst_port] = [self.next() >> 16, self.next() >> 16].map(|port| port as u16);
        let usual = match *protocol {
            IpProtocol::TCP => headers.tcp(src_port, dst_port, 0x10),
            IpProtocol::UDP => headers.udp(src_port, dst_port),
            IpProtocol::ICMPV6 => headers.icmp(128, 0),
            _ => headers,
        };
        let fields = matches.values().filter(|(field, _)| is_behind(*field));
        let set = |frame: FrameBuilder, (field, values): (Field, &RangeSet<u32>)| match self.value_in(values)
        {
            Some(value) => frame.set(field, value.into()),
            None => frame,
        };
        fields.fold(usual, set).build()
    }

    fn value_in(&mut self, values: &RangeSet<u32>) -> Option<u32> {
        let size = |(low, high): &(u32, u32)| u64::from(*high) - u64::from(*low) + 1;
        let count: u64 = values.ranges().iter().map(size).sum();
        let mut place = (self.next() >> 16).checked_rem(count)?;
        for range in values.ranges() {
            if place < size(range) {
                return Some(range.0 + place as u32);
            }
            place -= size(range);
        }
        None
    }

    /// A packet of the cube, with headers that the cube leaves open.
    fn filled(&mut self, cube: &Cube) -> Cube {
        let mut cube = *cube;
        for layers in [[HAS_IPV4, HAS_IPV6], [HAS_TCP, HAS_UDP]] {
            let layer = layers[(self.next() >> 20) as usize % 2];
            let other = if layer == layers[0] { layers[1] } else { layers[0] };
            let with = |layer| cube.layer(layer, true).and_then(Cube::closed);
            cube = with(layer).or_else(|| with(other)).unwrap_or(cube);
        }
        let v4: &[Slot] = &[SRC_IPV4, DST_IPV4];
        let v6: &[Slot] = &[SRC_HIGH, SRC_LOW, DST_HIGH, DST_LOW];
        let addresses = if cube.has(HAS_IPV4) { v4 } else { v6 };
        let ports: &[Slot] = &[SRC_PORT, DST_PORT];
        let has_ip = cube.has(HAS_IPV4) || cube.has(HAS_IPV6);
        let has_ports = cube.has(HAS_TCP) || cube.has(HAS_UDP);
        let slots = [(has_ip, addresses), (has_ports, ports)];
        for slot in slots.into_iter().filter(|(has, _)| *has).flat_map(|(_, slots)| slots) {
            let open = slot.ones() & !cube.mask_of(*slot);
            let value = cube.value_of(*slot) | self.next() & open;
            cube = cube.with(*slot, value, slot.ones()).and_then(Cube::closed).unwrap_or(cube);
        }
        cube
    }
}

#[cfg(test)]
mod tests {
    use policy::{NoFiles, Source};

    use super::*;

    fn shares_of(rules: &str) -> Shares {
        let text = format!("version = 1\n[groups.g]\nworkers = [0]\n{rules}");
        let (policy, _) = policy::parse(&Source::new("p.toml", text), &NoFiles).expect("a policy");
        let program = crate::compile(&policy, &DeviceModel::ideal(), 1).expect("it fits");
        shares(&policy, &program, None)
    }

    #[test]
    fn packets_of_hybrid_rules_are_counted_with_their_comparisons() {
        let rule = |name: &str, keys: &str| {
            format!("[[rules]]\nname = \"{name}\"\nmatch = {{ {keys} }}\naction = {{ steer = \"g\" }}\n")
        };
        let exact = shares_of(&rule("web", "protocol = \"tcp\", dst_port = 80"));
        assert_eq!((exact.all.packets, exact.all.in_hardware), (16, 16));
        let both =
            shares_of(&[rule("syn", "tcp_flags = \"syn\""), rule("dns", "protocol = \"udp\"")].concat());
        assert_eq!(both.all.packets, 32);
        assert_eq!(both.all.in_hardware, 16);
        assert_eq!(both.rules[1].hybrid_percent(), Some(0.0));
        assert!(both.all.example.is_some() && both.all.comparisons >= 16);
    }

    #[test]
    fn packets_behind_extension_headers_are_of_their_rule() {
        let rule = |name: &str, keys: &str| {
            format!(
                "[[rules]]\nname = \"{name}\"\nmatch = {{ {keys} }}\naction = {{ steer = \"g\" }}\nipv6_extensions = \"skip\"\n"
            )
        };
        for keys in [
            "protocol = \"tcp\", dst_port = 22",
            "dst_port = [53, 123]",
            "tcp_flags = \"syn\"",
            "icmpv6_type = 135",
            "protocol = { not = \"udp\" }",
        ] {
            let found = shares_of(&rule("r", keys));
            let behind = &found.rules[found.rules.len() - 2];
            assert_eq!((behind.packets, behind.in_hardware), (16, 0), "{keys}");
        }
    }

    #[test]
    fn a_packet_that_another_rule_decides_has_no_weight() {
        let text = "version = 1\n[groups.g]\nworkers = [0]\n\
            [[rules]]\nname = \"behind\"\nmatch = { ext_dst_port = 22 }\naction = { steer = \"g\" }\n\
            [[rules]]\nname = \"v6\"\nmatch = { family = \"ipv6\" }\naction = { steer = \"g\" }\n";
        let (policy, _) = policy::parse(&Source::new("p.toml", text), &NoFiles).expect("a policy");
        let program = crate::compile(&policy, &DeviceModel::ideal(), 1).expect("it fits");
        let packet = |rule, frame: Vec<u8>| Drawn { rule: RuleId::of(rule), key: DeepKey::of(&frame), frame };
        let v6 = || FrameBuilder::new().ipv6(1.into(), 2.into());
        // The first one was drawn from a rule that does not decide it.
        let other = v6().extension(IpProtocol::HOP_BY_HOP).tcp(1, 80, 2).build();
        let sample = Sample { packets: vec![packet(0, other), packet(1, v6().tcp(1, 80, 2).build())] };
        let percent = |weights: &[u64]| sample.hardware_percent(&program, &Weights::new(weights.to_vec()));
        assert_eq!(percent(&[0, 1, 0]), Some(100.0));
        assert_eq!(percent(&[1, 0, 0]), Some(0.0));
        assert_eq!(percent(&[1, 3, 0]), Some(75.0));
        assert_eq!(percent(&[0, 0, 1]), None);
    }
}
