//! Packets drawn from the rules of a policy, by which programs are compared: from each rule equally many, and
//! from all packets that it matches with equal probability as far as the fields of the first IP and transport
//! header are concerned. The same program gives the same packets.

use device_model::DeviceModel;
use packet::build::FrameBuilder;
use packet::{DeepKey, Field, IpProtocol};
use policy::Policy;
use program::{Match, Program, RangeSet, RuleId};

use crate::cover::expand::expand;
use crate::cube::{
    Cube, DST_HIGH, DST_IPV4, DST_LOW, DST_PORT, HAS_IPV4, HAS_IPV6, HAS_TCP, HAS_UDP, SRC_HIGH, SRC_IPV4,
    SRC_LOW, SRC_PORT, Slot,
};

/// How often drawn packets are compared with a flow, at most, to look each of them up once in a program.
pub const MAX_FLOWS_TRIED: usize = 1 << 22;

/// The most packets drawn from one rule.
const MAX_DRAWN: usize = 16;

/// A packet drawn from a rule of a policy.
#[derive(Clone, Debug)]
pub struct DrawnPacket {
    /// The rule from which it was drawn. Another one may decide it.
    pub rule: RuleId,
    /// The packet.
    pub frame: Vec<u8>,
    /// The header fields of the packet.
    pub key: DeepKey,
}

/// Draws as many packets from the rules of a policy as can be looked up in the program with about `most`
/// comparisons with a flow.
#[must_use]
pub fn draw_packets(policy: &Policy, program: &Program, most: usize) -> Vec<DrawnPacket> {
    let per_packet = program.flows.len().max(1);
    let rules = policy.rules.len().max(1);
    let drawn = (most / per_packet / rules).clamp(1, MAX_DRAWN);
    // Of very large policies, packets are drawn from some rules only.
    let stride = (per_packet * rules).div_ceil(most).max(1);
    let (mut random, mut packets) = (RandomSequence::new(1), Vec::new());
    let deciding = policy.rules.iter().enumerate().step_by(stride);
    for (index, rule) in deciding.filter(|(_, rule)| rule.action.decides(rule.direction)) {
        let expansion = expand(&rule.matches, rule.direction, &DeviceModel::ideal());
        let Ok(expansion) = expansion else { continue };
        for _ in 0..drawn {
            let Some(cube) = random.one_of(&expansion.cubes) else { break };
            let frame = random.frame(cube, &rule.matches);
            let key = DeepKey::of(&frame);
            packets.push(DrawnPacket { rule: RuleId::of(index), frame, key });
        }
    }
    packets
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

/// A linear congruential generator (Knuth, MMIX): the same seed gives the same numbers everywhere.
#[derive(Debug)]
pub struct RandomSequence(u64);

impl RandomSequence {
    /// A sequence that begins behind the seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number, of which the upper bits are the better ones.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // The upper bits are the better ones.
        self.0 ^ self.0 >> 32
    }

    fn one_of<'c, T>(&mut self, list: &'c [T]) -> Option<&'c T> {
        let count = list.len() as u64;
        list.get((self.draw() >> 16).checked_rem(count)? as usize)
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
        let [src_port, dst_port] = [self.draw() >> 16, self.draw() >> 16].map(|port| port as u16);
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
        let mut place = (self.draw() >> 16).checked_rem(count)?;
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
            let layer = layers[(self.draw() >> 20) as usize % 2];
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
            let value = cube.value_of(*slot) | self.draw() & open;
            cube = cube.with(*slot, value, slot.ones()).and_then(Cube::closed).unwrap_or(cube);
        }
        cube
    }
}
