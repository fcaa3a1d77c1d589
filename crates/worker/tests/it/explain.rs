//! `Program::explain` agrees with the device and the workers on each packet: tag, class,
//! worker, outcome, or the kernel, or a drop. For random packets, damaged ones included.

use std::cell::RefCell;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::support::Rig;
use packet::build::FrameBuilder;
use packet::{EtherType, FlowKey};
use program::{ClassId, FlowAction};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

pub(crate) const POLICY: &str = r#"
version = 1
default = "kernel"
[groups.a]
workers = [0, 1, 2]
hash = "l3l4"
[groups.b]
weights = { 0 = 1, 2 = 3 }
hash = "l3"
symmetric = true
[groups.c]
workers = [1]
hash = "none"
[[rules]]
name = "blocked"
match = { src = ["10.0.0.1", "2001:db8::1"] }
action = "drop"
[[rules]]
name = "fragments"
match = { family = "ipv4", dst = "10.1.0.0/30", fragment = "any" }
action = { steer = "c" }
[[rules]]
name = "syn"
match = { protocol = "tcp", dst_port = [80, 443], tcp_flags = "syn,!ack" }
action = { steer = "b" }
[[rules]]
name = "web"
match = { protocol = "tcp", dst_port = [80, 443] }
action = { steer = "a" }
[[rules]]
name = "dns"
match = { protocol = "udp", dst_port = 53 }
action = { steer = "a" }
[[rules]]
name = "range"
match = { protocol = "udp", src_port = "1000-1500" }
action = { steer = "b" }
[[rules]]
name = "tagged"
match = { vlan = [5, 6] }
action = { steer = "c" }
[[rules]]
name = "arp"
match = { ethertype = "arp" }
action = "drop"
[[rules]]
name = "six"
match = { family = "ipv6", dst = "2001:db8::/64" }
action = { steer = "b" }
"#;

/// Frames of many kinds, some of them damaged or cut.
pub(crate) fn frames() -> impl Strategy<Value = Vec<u8>> {
    let tag = prop_oneof![
        4 => Just(None),
        1 => (4..8u16).prop_map(|id| Some((EtherType::VLAN, id))),
        1 => (4..8u16).prop_map(|id| Some((EtherType::SVLAN, id))),
    ];
    let source_port = prop_oneof![990..1010u16, 1490..1510u16, any::<u16>()];
    let destination_port = prop_oneof![Just(53u16), Just(80), Just(443), any::<u16>()];
    let fragment = prop_oneof![6 => Just(None), 1 => Just(Some((0u16, true))), 1 => Just(Some((8, false)))];
    let damage = proptest::option::weighted(0.2, (12..60usize, any::<u8>()));
    let cut = proptest::option::weighted(0.1, 14..60usize);
    let shape = (0..6u8, 0..4u8, 0..6u8, any::<u8>());
    (shape, tag, source_port, destination_port, fragment, damage, cut).prop_map(
        |((kind, src, dst, flags), tag, source, destination, fragment, damage, cut)| {
            let mut frame = FrameBuilder::new();
            if let Some((tpid, id)) = tag {
                frame = frame.vlan(tpid, id);
            }
            let v4 = (Ipv4Addr::new(10, 0, 0, src), Ipv4Addr::new(10, 1, 0, dst));
            let v6 = (
                Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(src)),
                Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(dst) << 62),
            );
            let frame = match kind {
                0 => frame.ipv4(v4.0, v4.1).tcp(source, destination, flags),
                1 => frame.ipv4(v4.0, v4.1).udp(source, destination),
                2 => frame.ipv6(v6.0, v6.1).tcp(source, destination, flags),
                3 => frame.ipv6(v6.0, v6.1).udp(source, destination),
                4 => frame.ipv4(v4.0, v4.1).icmp_echo(1, 1),
                _ => frame.arp_request(v4.0, v4.1),
            };
            let frame = match fragment {
                Some((offset, more)) if kind < 2 => frame.fragment(offset, more),
                _ => frame,
            };
            let mut bytes = frame.payload(&[0xab; 24]).build();
            if let Some((at, value)) = damage
                && let Some(byte) = bytes.get_mut(at)
            {
                *byte = value;
            }
            bytes.truncate(cut.unwrap_or(usize::MAX));
            bytes
        },
    )
}

#[test]
fn explain_and_reality_agree_on_random_packets() {
    let mut rig = Rig::new(1, 3);
    let program = rig.install(POLICY);
    let rig = RefCell::new(rig);
    let reached = RefCell::new(std::collections::BTreeMap::<String, u32>::new());
    let mut runner = TestRunner::new(Config { cases: 3000, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&frames(), |frame| {
        let rig = rig.borrow_mut();
        let before = rig.port(1);
        rig.send(1, [frame.clone()]);
        rig.settle();
        let (after, seen) = (rig.port(1), rig.seen());
        let explained = program.explain(&FlowKey::of(&frame));
        let action = explained.flow.map(|flow| program.flows[flow].action);
        let expected = match action {
            None => (1, 0, 0),
            Some(FlowAction::Drop | FlowAction::Pass) => (0, 1, 0),
            Some(FlowAction::Steer { .. }) => (0, 0, 1),
        };
        let actual = (
            after.unmatched - before.unmatched,
            after.flow_dropped - before.flow_dropped,
            after.delivered - before.delivered,
        );
        prop_assert_eq!(actual, expected);
        prop_assert_eq!(seen.len() as u64, expected.2);
        for seen in seen {
            prop_assert_eq!(&seen.bytes, &frame);
            prop_assert_eq!(Some(seen.worker), explained.worker);
            prop_assert_eq!(ClassId::of_tag(seen.tag), explained.class);
            prop_assert_eq!(seen.outcome, explained.outcome);
        }
        let rule = &program.rules[explained.outcome.rule.index()].name;
        *reached.borrow_mut().entry(rule.to_string()).or_default() += 1;
        Ok(())
    });
    outcome.expect("explain and reality agree");
    let reached = reached.into_inner();
    assert_eq!(reached.len(), program.rules.len(), "every rule was met by some packet: {reached:?}");
    rig.into_inner().balance();
}
