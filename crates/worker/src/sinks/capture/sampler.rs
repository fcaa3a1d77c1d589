//! Which packets a capture takes: one in N, and the first N of each flow.
//!
//! A flow is one direction of a conversation: addresses, protocol and ports of IP packets, otherwise MAC
//! addresses and EtherType. Each worker has a table of its own, so a flow that is spread over several workers
//! is counted on each. The table has a fixed size. Where more flows meet in a set than it has places, the
//! flow that was seen longest ago loses its place, and is taken for a new one if it comes again; the same
//! happens after [`IDLE_SECONDS`] without a packet. So a capture can have more packets of a flow than asked
//! for, never fewer, except that two flows of the same 64-bit hash, which is keyed at random, are counted as
//! one.

use std::hash::{BuildHasher, Hasher, RandomState};

use packet::{FlowKey, Layers};
use program::CaptureSink;

use crate::policer::OneIn;
use crate::sink::SinkDrop;

/// Places of a set, and sets: 65536 flows in 1 MiB.
const WAYS: usize = 4;
const SETS: usize = 1 << 14;
/// A flow that was not seen for longer is new.
const IDLE_SECONDS: u32 = 120;

#[derive(Debug)]
pub(super) struct Sampler {
    one_in: OneIn,
    flows: Option<Flows>,
}

impl Sampler {
    /// `None` if every packet is taken.
    pub(super) fn new(options: &CaptureSink) -> Option<Self> {
        let flows = (options.first_of_flow > 0).then(|| Flows::new(options.first_of_flow));
        let one_in = options.one_in.max(1);
        (one_in > 1 || flows.is_some()).then(|| Self { one_in: OneIn::new(one_in), flows })
    }

    /// Whether the packet is taken; else the reason. The first of a flow are chosen among all packets, and
    /// one in N among those that are left.
    #[inline]
    pub(super) fn choose(&mut self, bytes: &[u8], now_seconds: u32) -> Result<(), SinkDrop> {
        if let Some(flows) = &mut self.flows
            && !flows.is_first(&FlowKey::of(bytes), now_seconds)
        {
            return Err(SinkDrop::Limit);
        }
        if self.one_in.take() { Ok(()) } else { Err(SinkDrop::Sampled) }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    /// 0: the place is free.
    hash: u64,
    packets: u32,
    seen_seconds: u32,
}

#[derive(Debug)]
struct Flows {
    limit: u32,
    sets: Box<[[Flow; WAYS]]>,
    keys: RandomState,
}

impl Flows {
    fn new(limit: u32) -> Self {
        Self { limit, sets: vec![[Flow::default(); WAYS]; SETS].into(), keys: RandomState::new() }
    }

    fn is_first(&mut self, key: &FlowKey, now_seconds: u32) -> bool {
        let hash = self.hash(key);
        let set = &mut self.sets[hash as usize % SETS];
        let known = set.iter().position(|flow| flow.hash == hash);
        let place = known.unwrap_or_else(|| {
            let oldest = (0..WAYS).min_by_key(|place| (set[*place].hash != 0, set[*place].seen_seconds));
            oldest.unwrap_or(0)
        });
        let flow = &mut set[place];
        if known.is_none() || now_seconds.saturating_sub(flow.seen_seconds) > IDLE_SECONDS {
            *flow = Flow { hash, packets: 0, seen_seconds: now_seconds };
        }
        flow.seen_seconds = now_seconds;
        flow.packets = flow.packets.saturating_add(1);
        flow.packets <= self.limit
    }

    fn hash(&self, key: &FlowKey) -> u64 {
        let mut hasher = self.keys.build_hasher();
        if key.layers.intersects(Layers::IPV4 | Layers::IPV6) {
            hasher.write(&key.src_ip);
            hasher.write(&key.dst_ip);
            hasher.write_u8(key.protocol);
            if !key.layers.contains(Layers::FRAGMENT) {
                hasher.write_u32(u32::from(key.src_port) << 16 | u32::from(key.dst_port));
            }
        } else {
            hasher.write(&key.src_mac.0);
            hasher.write(&key.dst_mac.0);
            hasher.write_u16(key.ether_type);
        }
        hasher.finish().max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::build::FrameBuilder;

    fn udp(port: u16) -> Vec<u8> {
        FrameBuilder::new().ipv4([192, 0, 2, 1].into(), [198, 51, 100, 7].into()).udp(port, 53).build()
    }

    fn sampler(one_in: u32, first_of_flow: u32) -> Option<Sampler> {
        Sampler::new(&CaptureSink { one_in, first_of_flow, ..CaptureSink::default() })
    }

    #[test]
    fn without_options_there_is_nothing_to_choose() {
        assert!(sampler(1, 0).is_none() && sampler(0, 0).is_none());
    }

    #[test]
    fn one_in_n_takes_the_first_and_then_every_nth() {
        let mut sampler = sampler(3, 0).unwrap();
        let taken: Vec<bool> = (0..7).map(|_| sampler.choose(&udp(1), 0).is_ok()).collect();
        assert_eq!(taken, [true, false, false, true, false, false, true]);
    }

    #[test]
    fn each_flow_has_its_first_packets_taken() {
        let mut sampler = sampler(1, 2).unwrap();
        for port in 1..1000 {
            for packet in 0..4 {
                let expected = if packet < 2 { Ok(()) } else { Err(SinkDrop::Limit) };
                assert_eq!(sampler.choose(&udp(port), 0), expected, "packet {packet} of port {port}");
            }
        }
        assert_eq!(sampler.choose(b"no IP", 0), Ok(()));
    }

    #[test]
    fn a_flow_is_new_after_a_silence_but_not_while_it_lasts() {
        let mut sampler = sampler(1, 1).unwrap();
        let times = [(0, true), (100, false), (200, false), (200 + IDLE_SECONDS, false)];
        for (now, taken) in times.into_iter().chain([(401 + IDLE_SECONDS, true)]) {
            assert_eq!(sampler.choose(&udp(9), now).is_ok(), taken, "at {now} s");
        }
    }

    #[test]
    fn more_flows_than_places_lead_to_more_packets_never_to_fewer() {
        let mut flows = Flows::new(1);
        let key = |number: u32| FlowKey {
            layers: Layers::IPV4,
            src_ip: std::array::from_fn(|at| number.to_ne_bytes()[at % 4]),
            ..FlowKey::default()
        };
        for number in 0..(2 * WAYS * SETS) as u32 {
            assert!(flows.is_first(&key(number), number / 1000), "flow {number} is new");
        }
    }
}
