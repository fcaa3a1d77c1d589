//! Where the packets of real traffic are decided: by the device, by workers, or by nobody but the host.
//! Packets are given one by one; equal ones are decided once.

use std::collections::HashMap;

use compiler::{Decision, RandomSequence};
use packet::DeepKey;
use program::Program;
use serde::Serialize;

use crate::share::mean_ns;

/// The most packets whose decisions are kept.
const MAX_KEPT: usize = 1 << 16;

/// Packets, and their bytes on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Amount {
    /// The packets.
    pub packets: u64,
    /// The bytes of these packets.
    pub bytes: u64,
}

impl Amount {
    /// Adds a packet.
    pub fn add(&mut self, bytes: u64) {
        self.packets += 1;
        self.bytes += bytes;
    }
}

/// The decisions of a program, of which the latest are kept.
#[derive(Debug)]
pub struct Decisions<'p> {
    program: &'p Program,
    kept: HashMap<DeepKey, Decision>,
}

impl<'p> Decisions<'p> {
    /// The decisions of a program, none yet.
    #[must_use]
    pub fn new(program: &'p Program) -> Self {
        Self { program, kept: HashMap::new() }
    }

    /// The decision of the program on a received packet.
    pub fn of(&mut self, key: &DeepKey) -> &Decision {
        if self.kept.len() >= MAX_KEPT && !self.kept.contains_key(key) {
            self.kept.clear();
        }
        self.kept.entry(*key).or_insert_with(|| Decision::of(self.program, key))
    }
}

/// How packets of a capture are decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TrafficShare {
    /// All of them.
    pub all: Amount,
    /// The device delivers or drops them, and no worker compares them with rules.
    pub in_hardware: Amount,
    /// Workers compare them with rules.
    pub by_workers: Amount,
    /// The device leaves them to the host.
    pub left: Amount,
    /// The rules that workers compare packets with, in all.
    pub comparisons: u64,
    /// The time that workers take for all of them, in picoseconds.
    pub worker_ps: u64,
}

impl TrafficShare {
    fn add(&mut self, decided: &Decision, bytes: u64) {
        self.all.add(bytes);
        self.worker_ps += decided.worker_ps;
        match decided.comparisons {
            Some(comparisons) => {
                self.by_workers.add(bytes);
                self.comparisons += comparisons;
            }
            None if decided.explained.reaches_host() && decided.explained.queue.is_none() => {
                self.left.add(bytes);
            }
            None => self.in_hardware.add(bytes),
        }
    }

    /// The percentage of packets that workers decide; `None`: there are no packets.
    #[must_use]
    pub fn hybrid_percent(&self) -> Option<f64> {
        let (part, all) = (self.by_workers.packets, self.all.packets);
        (all > 0).then(|| 100.0 * part as f64 / all as f64)
    }

    /// The nanoseconds of workers, as in [`Share::worker_ns_per_packet`](crate::Share::worker_ns_per_packet).
    #[must_use]
    pub fn worker_ns_per_packet(&self) -> f64 {
        mean_ns(self.worker_ps, self.all.packets)
    }

    /// The rules that a packet is compared with, on average over those that workers decide.
    #[must_use]
    pub fn comparisons_per_packet(&self) -> f64 {
        self.comparisons as f64 / self.by_workers.packets.max(1) as f64
    }
}

/// The most packets of a capture that are all decided.
const MAX_DECIDED: u64 = 1 << 20;

/// Chooses packets of a capture: all of up to 2^20, of more between half and all of so many, at random. Equal
/// captures give equal packets.
#[derive(Debug)]
pub struct TrafficSample {
    one_in: u64,
    random: RandomSequence,
}

impl TrafficSample {
    /// The shares of a capture of this many packets.
    #[must_use]
    pub fn of(packets: u64) -> Self {
        Self { one_in: packets.div_ceil(MAX_DECIDED).max(1), random: RandomSequence::new(1) }
    }

    /// Whether the next packet is chosen.
    pub fn takes(&mut self) -> bool {
        self.one_in == 1 || (self.random.draw() >> 16).is_multiple_of(self.one_in)
    }
}

/// How the packets of a capture are decided, by the rule that decides them. Copies are not counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TrafficShares {
    /// The packets of the capture. Of long ones a sample is decided, see [`TrafficSample`].
    pub capture_packets: u64,
    /// All that are decided.
    pub all: TrafficShare,
    /// The shares by rule, the default last.
    pub rules: Vec<TrafficShare>,
}

impl TrafficShares {
    /// For the rules of a program and a capture of so many packets, none of them decided yet.
    #[must_use]
    pub fn new(program: &Program, capture_packets: u64) -> Self {
        let rules = vec![TrafficShare::default(); program.rules.len()];
        Self { capture_packets, all: TrafficShare::default(), rules }
    }

    /// Adds a packet.
    pub fn add(&mut self, decided: &Decision, bytes: u64) {
        self.all.add(decided, bytes);
        if let Some(rule) = self.rules.get_mut(decided.explained.outcome.rule.index()) {
            rule.add(decided, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use device_model::DeviceModel;
    use packet::build::FrameBuilder;
    use policy::{NoFiles, Source};

    use super::*;

    #[test]
    fn of_long_captures_a_sample_is_chosen() {
        let chosen = |packets: u64| {
            let mut sample = TrafficSample::of(packets);
            (0..packets).filter(|_| sample.takes()).count() as u64
        };
        assert_eq!(chosen(MAX_DECIDED), MAX_DECIDED);
        let some = chosen(3 * MAX_DECIDED);
        assert!(
            (MAX_DECIDED - some.min(MAX_DECIDED)) < MAX_DECIDED / 100 && some < MAX_DECIDED * 101 / 100,
            "{some}"
        );
    }

    #[test]
    fn packets_count_where_they_are_decided() {
        let rule = |name: &str, keys: &str, action: &str| {
            format!("[[rules]]\nname = \"{name}\"\nmatch = {{ {keys} }}\naction = {action}\n")
        };
        let text = [
            "version = 1\n[groups.g]\nworkers = [0]\n".to_owned(),
            rule("dns", "protocol = \"udp\", dst_port = 53", "{ steer = \"g\" }"),
            rule("no", "protocol = \"udp\", dst_port = 54", "\"drop\""),
            rule("syn", "protocol = \"tcp\", tcp_flags = \"syn\"", "\"drop\""),
            rule("tcp", "protocol = \"tcp\"", "{ steer = \"g\" }"),
        ];
        let (policy, _) = policy::parse(&Source::new("p.toml", text.concat()), &NoFiles).expect("a policy");
        let program = compiler::compile(&policy, &DeviceModel::ideal(), 1).expect("it fits");
        let ip = || FrameBuilder::new().ip(IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let mut shares = TrafficShares::new(&program, 5);
        let mut decisions = Decisions::new(&program);
        for frame in
            [ip().udp(1, 53), ip().udp(1, 54), ip().udp(1, 55), ip().tcp(1, 80, 2), ip().tcp(1, 80, 16)]
        {
            shares.add(decisions.of(&DeepKey::of(&frame.build())), 100);
        }
        let amount = |packets| Amount { packets, bytes: 100 * packets };
        let all = &shares.all;
        assert_eq!((all.all, all.in_hardware), (amount(5), amount(2)));
        assert_eq!((all.by_workers, all.left), (amount(2), amount(1)));
        assert_eq!(all.hybrid_percent(), Some(40.0));
        assert!(all.comparisons >= 2, "{all:?}");
        let by_rule: Vec<u64> = shares.rules.iter().map(|rule| rule.all.packets).collect();
        assert_eq!(by_rule, [1, 1, 1, 1, 1], "the default last");
    }
}
