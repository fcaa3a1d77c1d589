//! The share of packets that the device decides alone, estimated with packets drawn from the rules: from each rule equally
//! many, and from all packets that it matches with equal probability as far as the fields of the first IP and
//! transport header are concerned. The same program gives the same numbers.

use packet::DeepKey;
use packet::cube::{
    Cube, DST_HIGH, DST_IPV4, DST_LOW, DST_PORT, HAS_IPV4, HAS_IPV6, HAS_TCP, HAS_UDP, SRC_HIGH, SRC_IPV4,
    SRC_LOW, SRC_PORT, Slot,
};
use policy::{Policy, Witness};
use program::{Class, Decide, Program, RuleId};
use serde::Serialize;

use device_model::DeviceProfile;

use crate::cost::{mean_ns, worker_ps};
use crate::cover::decides;
use crate::expand::expand;
use crate::weights::Weights;

/// How often packets are compared with a flow, at most, to count those decided in hardware once.
pub(crate) const MAX_FLOWS_TRIED: usize = 1 << 22;
/// The same for the shares that are shown.
const MAX_FLOWS_TRIED_FOR_SHARES: usize = 1 << 26;
/// The most packets drawn from one rule.
const MAX_DRAWN: usize = 16;

/// How packets are decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Share {
    /// How many were drawn.
    pub packets: u64,
    /// Those that no worker compares with rules.
    pub in_hardware: u64,
    /// The rules that workers compare the others with, one after another, in all.
    pub comparisons: u64,
    /// The time that workers take for all of them, in picoseconds.
    pub worker_ps: u64,
    /// One of the others.
    pub example: Option<Witness>,
}

/// How the packets drawn from a policy's rules are decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Shares {
    /// All of them.
    pub all: Share,
    /// By the rule that decides them, the default last.
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

    /// The time that a worker takes for a packet, in nanoseconds, as expected from measurements on the software NIC: the
    /// mean of all packets. Those that reach no worker take none.
    #[must_use]
    pub fn worker_ns_per_packet(&self) -> f64 {
        mean_ns(self.worker_ps, self.packets)
    }

    fn add(&mut self, key: &DeepKey, frame: &[u8], class: Option<&Class>) {
        self.packets += 1;
        let comparisons = comparisons(class, key);
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

/// The rules that a worker compares a packet of a class with; `None`: the device has decided.
pub(crate) fn comparisons(class: Option<&Class>, key: &DeepKey) -> Option<u64> {
    match &class?.decide {
        Decide::Exact(_) => None,
        Decide::Software(steps, _) => {
            let decided = steps.iter().position(|step| step.predicate.matches_deep(key));
            Some(decided.map_or(steps.len(), |place| place + 1) as u64)
        }
    }
}

/// Draws packets from the rules of a policy, and finds where its program decides them.
#[must_use]
pub fn shares(policy: &Policy, program: &Program) -> Shares {
    let mut shares = Shares { all: Share::default(), rules: vec![Share::default(); program.rules.len()] };
    for (frame, key) in &Sample::of(policy, program, MAX_FLOWS_TRIED_FOR_SHARES).packets {
        let (rule, class) = decision(program, key);
        shares.all.add(key, frame, class);
        if let Some(share) = shares.rules.get_mut(rule.index()) {
            share.add(key, frame, class);
        }
    }
    shares
}

/// The rule that decides a packet, and the class by which a worker does.
fn decision<'p>(program: &'p Program, key: &DeepKey) -> (RuleId, Option<&'p Class>) {
    let explained = program.explain_deep(key);
    (explained.outcome.rule, explained.class.and_then(|class| program.class(class)))
}

/// Packets drawn from the rules of a policy.
pub(crate) struct Sample {
    packets: Vec<(Vec<u8>, DeepKey)>,
}

impl Sample {
    /// So many that looking all up in the program takes about `most` comparisons with a flow.
    pub(crate) fn of(policy: &Policy, program: &Program, most: usize) -> Self {
        let per_packet = program.flows.len().max(1);
        let rules = policy.rules.len().max(1);
        let drawn = (most / per_packet / rules).clamp(1, MAX_DRAWN);
        // Of very large policies, packets are drawn from some rules only.
        let stride = (per_packet * rules).div_ceil(most).max(1);
        let (mut random, mut packets) = (Random(1), Vec::new());
        let deciding = policy.rules.iter().step_by(stride);
        for rule in deciding.filter(|rule| decides(rule.direction, rule.action)) {
            let expansion = expand(&rule.matches, rule.direction, &DeviceProfile::ideal());
            let Ok(expansion) = expansion else { continue };
            for _ in 0..drawn {
                let Some(cube) = random.one_of(&expansion.cubes) else { break };
                let frame = random.filled(cube).frame();
                let key = DeepKey::of(&frame);
                packets.push((frame, key));
            }
        }
        Self { packets }
    }

    /// The percentage of the wanted packets that no worker compares with rules; `None`: there are none. Without weights every packet counts 1; with
    /// weights the packets of a rule together count as its weight.
    pub(crate) fn hardware_percent(
        &self,
        program: &Program,
        weights: Option<&Weights>,
        wanted: impl Fn(&DeepKey) -> bool,
    ) -> Option<f64> {
        let mut rules = vec![(0u64, 0u64); program.rules.len()];
        for (_, key) in self.packets.iter().filter(|(_, key)| wanted(key)) {
            let (rule, class) = decision(program, key);
            let (all, in_hardware) = &mut rules[rule.index()];
            *all += 1;
            *in_hardware += u64::from(class.is_none_or(Class::is_exact));
        }
        let (mut total, mut part) = (0.0, 0.0);
        for (index, (all, in_hardware)) in rules.into_iter().enumerate().filter(|(_, (all, _))| *all > 0) {
            let weight = weights.map_or(all as f64, |weights| weights.of(RuleId::of(index)) as f64);
            total += weight;
            part += weight * in_hardware as f64 / all as f64;
        }
        (total > 0.0).then(|| 100.0 * part / total)
    }

    /// By rule, the packets that its flows take to a worker that compares them.
    pub(crate) fn compared(&self, program: &Program) -> Vec<u64> {
        let mut compared = vec![0; program.rules.len()];
        for (_, key) in &self.packets {
            let (_, class) = decision(program, key);
            if let Some(class) = class.filter(|class| !class.is_exact()) {
                compared[class.rule.index()] += 1;
            }
        }
        compared
    }
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

    fn one_of<'c>(&mut self, cubes: &'c [Cube]) -> Option<&'c Cube> {
        let count = cubes.len() as u64;
        cubes.get((self.next() >> 16).checked_rem(count)? as usize)
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
        let program = crate::compile(&policy, &DeviceProfile::ideal(), 1).expect("it fits");
        shares(&policy, &program)
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
}
