//! The share of packets that the device decides alone, estimated with packets drawn from the rules. The same
//! program gives the same numbers.

use std::collections::BTreeMap;

use compiler::{Decision, DrawnPacket, FlowGroups, MAX_FLOWS_TRIED, PS_PER_NS, Weights, draw_packets};
use policy::{Policy, Witness};
use program::{Placement, Program, RuleId};
use serde::Serialize;

/// The most comparisons for the shares that are shown.
const MAX_FLOWS_TRIED_FOR_SHARES: usize = 1 << 26;

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

    fn add(&mut self, frame: &[u8], decision: &Decision) {
        self.packets += 1;
        self.worker_ps += decision.worker_ps;
        match decision.comparisons {
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
    for DrawnPacket { frame, key, .. } in &draw_packets(policy, program, MAX_FLOWS_TRIED_FOR_SHARES) {
        let decision = Decision::of(program, key);
        let groups = flow_groups.map(|groups| groups.passed(decision.explained.flow));
        let of_rule = shares.rules.get_mut(decision.explained.outcome.rule.index());
        for share in of_rule.into_iter().chain([&mut shares.all]) {
            share.add(frame, &decision);
            share.pass(groups);
        }
    }
    shares
}

/// The percentage of packets that the device decides, if each rule decides as many as its weight; `None`: no
/// rule with drawn packets has a weight. It is estimated with packets drawn from the rules; those of the
/// default do not count.
#[must_use]
pub fn hardware_percent(policy: &Policy, program: &Program, weights: &Weights) -> Option<f64> {
    percent_of_drawn(&draw_packets(policy, program, MAX_FLOWS_TRIED), program, weights)
}

/// The mean time per packet in nanoseconds; 0 if there are no packets.
pub(crate) fn mean_ns(ps: u64, packets: u64) -> f64 {
    ps as f64 / PS_PER_NS as f64 / packets.max(1) as f64
}

/// The percentage of drawn packets that no worker compares with rules; `None`: no rule with drawn packets has
/// a weight. The packets that a rule decides, of those drawn from it, together count as its weight. A rule
/// that decides none of them counts by its placement: a hybrid one has no part in hardware. The default, from
/// which no packet is drawn, does not count.
fn percent_of_drawn(packets: &[DrawnPacket], program: &Program, weights: &Weights) -> Option<f64> {
    let mut rules: BTreeMap<RuleId, (u64, u64)> = BTreeMap::new();
    for drawn in packets {
        let Decision { explained, comparisons, .. } = Decision::of(program, &drawn.key);
        let (all, in_hardware) = rules.entry(drawn.rule).or_default();
        if explained.outcome.rule == drawn.rule {
            *all += 1;
            *in_hardware += u64::from(comparisons.is_none());
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

#[cfg(test)]
mod tests {
    use device_model::DeviceModel;
    use packet::build::FrameBuilder;
    use packet::{DeepKey, IpProtocol};
    use policy::{NoFiles, Source};

    use super::*;

    fn shares_of(rules: &str) -> Shares {
        let text = format!("version = 1\n[groups.g]\nworkers = [0]\n{rules}");
        let (policy, _) = policy::parse(&Source::new("p.toml", text), &NoFiles).expect("a policy");
        let program = compiler::compile(&policy, &DeviceModel::ideal(), 1).expect("it fits");
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
        let program = compiler::compile(&policy, &DeviceModel::ideal(), 1).expect("it fits");
        let packet =
            |rule, frame: Vec<u8>| DrawnPacket { rule: RuleId::of(rule), key: DeepKey::of(&frame), frame };
        let v6 = || FrameBuilder::new().ipv6(1.into(), 2.into());
        // The first one was drawn from a rule that does not decide it.
        let other = v6().extension(IpProtocol::HOP_BY_HOP).tcp(1, 80, 2).build();
        let packets = [packet(0, other), packet(1, v6().tcp(1, 80, 2).build())];
        let percent = |weights: &[u64]| percent_of_drawn(&packets, &program, &Weights::new(weights.to_vec()));
        assert_eq!(percent(&[0, 1, 0]), Some(100.0));
        assert_eq!(percent(&[1, 0, 0]), Some(0.0));
        assert_eq!(percent(&[1, 3, 0]), Some(75.0));
        assert_eq!(percent(&[0, 0, 1]), None);
    }
}
