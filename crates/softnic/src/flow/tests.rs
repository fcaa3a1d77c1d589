//! The flow table against a linear reference, and the single promises of its interface.

use packet::{Layers, MacAddr};
use proptest::prelude::*;

use super::*;

/// One condition of a test rule, kept apart from [`Matcher`] so that the reference shares nothing with it.
#[derive(Clone, Copy, Debug)]
enum Condition {
    Layer(Layers),
    DstMac(u8, u8),
    EtherType(u16, u16),
    Vlan(u16, u16),
    SrcIpv4([u8; 4], [u8; 4]),
    DstIpv6(u8, u8),
    Protocol(u8),
    Tos(u8, u8),
    Ttl(u8),
    FlowLabel(u32, u32),
    SrcPort(u16, u16),
    DstPort(u16, u16),
}

impl Condition {
    fn write(self, matcher: &mut Matcher) {
        match self {
            Self::Layer(layers) => matcher.require(layers),
            Self::DstMac(value, mask) => matcher.dst_mac([value, 0, 0, 0, 0, 0], [mask, 0, 0, 0, 0, 0]),
            Self::EtherType(value, mask) => matcher.ether_type(value, mask),
            Self::Vlan(value, mask) => matcher.vlan_tag(value, mask),
            Self::SrcIpv4(value, mask) => matcher.src_ipv4(value, mask),
            Self::DstIpv6(value, mask) => {
                let (mut address, mut bits) = ([0; 16], [0; 16]);
                (address[15], bits[15]) = (value, mask);
                matcher.dst_ipv6(address, bits)
            }
            Self::Protocol(value) => matcher.protocol(value, 0xff),
            Self::Tos(value, mask) => matcher.tos(value, mask),
            Self::Ttl(value) => matcher.ttl(value, 0xff),
            Self::FlowLabel(value, mask) => matcher.flow_label(value, mask),
            Self::SrcPort(value, mask) => matcher.src_port(value, mask),
            Self::DstPort(value, mask) => matcher.dst_port(value, mask),
        };
    }

    fn holds(self, key: &FlowKey) -> bool {
        match self {
            Self::Layer(layers) => key.layers.contains(layers),
            Self::DstMac(value, mask) => key.dst_mac.0[0] & mask == value & mask,
            Self::EtherType(value, mask) => key.ether_type & mask == value & mask,
            Self::Vlan(_, 0) => true,
            Self::Vlan(value, mask) => {
                key.layers.contains(Layers::VLAN)
                    && key.vlan_tpid == 0x8100
                    && key.vlan_tci & mask == value & mask
            }
            Self::SrcIpv4(value, mask) => (0..4).all(|i| key.src_ip[i] & mask[i] == value[i] & mask[i]),
            Self::DstIpv6(value, mask) => key.dst_ip[15] & mask == value & mask,
            Self::Protocol(value) => key.protocol == value,
            Self::Tos(value, mask) => key.tos & mask == value & mask,
            Self::Ttl(value) => key.ttl == value,
            Self::FlowLabel(value, mask) => key.flow_label & mask == value & mask,
            Self::SrcPort(value, mask) => key.src_port & mask == value & mask,
            Self::DstPort(value, mask) => key.dst_port & mask == value & mask,
        }
    }
}

#[derive(Clone, Debug)]
struct TestRule {
    rule: FlowRule,
    conditions: Vec<Condition>,
}

/// The reference: every rule of the port, one after the other. Answers verdict and sniffers.
fn linear(rules: &[TestRule], port: u8, key: &FlowKey) -> (Vec<u32>, Vec<u32>) {
    let matches = |test: &&TestRule| {
        let rule = &test.rule;
        rule.port == port
            && (rule.kind != FlowKind::MulticastDefault || key.dst_mac.is_multicast())
            && (rule.kind == FlowKind::Sniffer || test.conditions.iter().all(|c| c.holds(key)))
    };
    let mut found: Vec<&TestRule> = rules.iter().filter(matches).collect();
    found.sort_by_key(|test| (test.rule.kind, test.rule.priority, !test.rule.dont_trap, test.rule.order));
    let level = |test: &TestRule| (test.rule.kind, test.rule.priority);
    let trap = found.iter().copied().find(|t| t.rule.kind != FlowKind::Sniffer && !t.rule.dont_trap);
    let (mut verdict, mut sniffers, mut targets) = (vec![], vec![], vec![]);
    for test in found {
        let rule = &test.rule;
        if rule.kind == FlowKind::Sniffer {
            sniffers.push((rule.order, rule.id.0));
        } else if rule.dont_trap {
            if trap.is_none_or(|trap| level(test) <= level(trap)) {
                verdict.push(rule.id.0);
            }
        } else if trap.is_some_and(|trap| level(test) == level(trap) && same_match(test, trap))
            && !targets.contains(&rule.actions.target)
        {
            targets.push(rule.actions.target);
            verdict.push(rule.id.0);
        }
    }
    sniffers.sort_unstable();
    (verdict, sniffers.into_iter().map(|(_, id)| id).collect())
}

/// Equal matches are equal images; whether images are right is what the rest of the test establishes.
fn same_match(a: &TestRule, b: &TestRule) -> bool {
    (a.rule.matcher.value(), a.rule.matcher.mask()) == (b.rule.matcher.value(), b.rule.matcher.mask())
}

fn condition() -> impl Strategy<Value = Condition> {
    let masks = prop::sample::select(vec![0u16, 1, 3, 0xff00, 0xffff]);
    let ports = prop::sample::select(vec![0u16, 1, 2, 3, 53, 443, 0xff01]);
    prop_oneof![
        prop::sample::select(vec![Layers::IPV4, Layers::IPV6, Layers::TCP, Layers::UDP])
            .prop_map(Condition::Layer),
        (0u8..4, 0u8..4).prop_map(|(v, m)| Condition::DstMac(v, m)),
        (prop::sample::select(vec![0x0800u16, 0x86dd, 0x0806]), masks.clone())
            .prop_map(|(v, m)| Condition::EtherType(v, m)),
        (0u16..4, prop::sample::select(vec![0u16, 1, 0x0fff])).prop_map(|(v, m)| Condition::Vlan(v, m)),
        (0u8..4, 0u8..=4).prop_map(|(v, len)| {
            let mask = [[0; 4], [255, 0, 0, 0], [255, 255, 0, 0], [255, 255, 255, 0], [255; 4]];
            Condition::SrcIpv4([10, 0, 0, v], mask[usize::from(len)])
        }),
        (0u8..4, 0u8..4).prop_map(|(v, m)| Condition::DstIpv6(v, m)),
        prop::sample::select(vec![6u8, 17]).prop_map(Condition::Protocol),
        (0u8..4, 0u8..4).prop_map(|(v, m)| Condition::Tos(v, m)),
        (0u8..3).prop_map(Condition::Ttl),
        (0u32..4, 0u32..4).prop_map(|(v, m)| Condition::FlowLabel(v, m)),
        (ports.clone(), masks.clone()).prop_map(|(v, m)| Condition::SrcPort(v, m)),
        (ports, masks).prop_map(|(v, m)| Condition::DstPort(v, m)),
    ]
}

fn key() -> impl Strategy<Value = FlowKey> {
    let layers = prop::sample::select(vec![
        Layers::empty(),
        Layers::IPV4,
        Layers::IPV4 | Layers::TCP,
        Layers::IPV4 | Layers::UDP,
        Layers::IPV6 | Layers::TCP,
        Layers::VLAN | Layers::IPV4 | Layers::UDP,
        Layers::VLAN | Layers::IPV6,
    ]);
    let ports = prop::sample::select(vec![0u16, 1, 2, 3, 53, 443, 0xff01]);
    let lan = (0u8..4, prop::sample::select(vec![0x8100u16, 0x88a8]), 0u16..4);
    (layers, lan, 0u8..4, (0u8..4, 0u8..3, 0u32..4), (ports.clone(), ports)).prop_map(
        |(layers, (mac, tpid, tci), address, (tos, ttl, flow_label), (src_port, dst_port))| {
            let vlan = layers.contains(Layers::VLAN);
            let mut key = FlowKey { layers, tos, ttl, ..FlowKey::default() };
            key.dst_mac = MacAddr([mac, 9, 9, 9, 9, 9]);
            (key.vlan_tpid, key.vlan_tci) = if vlan { (tpid, tci) } else { (0, 0) };
            key.ether_type = if layers.contains(Layers::IPV6) { 0x86dd } else { 0x0800 };
            if layers.contains(Layers::IPV6) {
                key.dst_ip[15] = address;
                key.flow_label = flow_label;
            } else {
                key.src_ip[..4].copy_from_slice(&[10, 0, 0, address]);
            }
            if layers.intersects(Layers::TCP | Layers::UDP) {
                (key.src_port, key.dst_port) = (src_port, dst_port);
            }
            key.protocol = if layers.contains(Layers::TCP) { 6 } else { 17 };
            key
        },
    )
}

#[derive(Clone, Debug)]
enum Step {
    Insert { rule: TestRule, old: bool },
    Remove(prop::sample::Index),
    Lookup(u8, FlowKey),
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        8 => Just(FlowKind::Normal),
        1 => Just(FlowKind::MulticastDefault),
        1 => Just(FlowKind::AllDefault),
        1 => Just(FlowKind::Sniffer),
    ];
    let conditions = prop::collection::vec(condition(), 0..4);
    let rule = (kind, 1u8..3, 0u16..4, prop::bool::weighted(0.2), conditions, 0u32..3).prop_map(
        |(kind, port, priority, dont_trap, conditions, target)| {
            let mut matcher = Matcher::any();
            conditions.iter().for_each(|condition| condition.write(&mut matcher));
            let actions = Actions { tag: None, drop: false, counter: None, target: QpSlot(target) };
            let rule =
                FlowRule { id: FlowId(0), kind, port, priority, dont_trap, order: 0, matcher, actions };
            TestRule { rule, conditions }
        },
    );
    prop_oneof![
        3 => (rule, any::<bool>()).prop_map(|(rule, old)| Step::Insert { rule, old }),
        1 => any::<prop::sample::Index>().prop_map(Step::Remove),
        6 => (1u8..3, key()).prop_map(|(port, key)| Step::Lookup(port, key)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_table_agrees_with_the_linear_reference(steps in prop::collection::vec(step(), 1..120)) {
        let mut table = FlowTable::new();
        let mut rules: Vec<TestRule> = Vec::new();
        let mut matches = Matches::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Insert { rule: mut test, old } => {
                    test.rule.id = FlowId(number as u32);
                    // Age usually grows with insertion; a rule older than those present must be placed right as well.
                    test.rule.order = if old { 10_000 - number as u64 } else { 10_000 + number as u64 };
                    match table.insert(test.rule.clone()) {
                        Ok(()) => rules.push(test),
                        Err(FlowError::Contradiction) => {}
                        Err(FlowError::DontTrapKind) => prop_assert!(test.rule.dont_trap),
                        Err(FlowError::Full { .. }) => {}
                        Err(other) => prop_assert!(false, "{other}"),
                    }
                }
                Step::Remove(index) if !rules.is_empty() => {
                    let gone = rules.swap_remove(index.index(rules.len()));
                    prop_assert!(table.remove(gone.rule.id));
                    prop_assert!(!table.remove(gone.rule.id));
                }
                Step::Remove(_) => {}
                Step::Lookup(port, key) => {
                    table.lookup(port, &key, &mut matches);
                    let ids = |hits: &[FlowHit]| hits.iter().map(|hit| hit.flow.0).collect::<Vec<_>>();
                    let found = (ids(matches.verdict()), ids(matches.sniffers()));
                    prop_assert_eq!(found, linear(&rules, port, &key));
                }
            }
            prop_assert_eq!(table.len(), rules.len());
        }
    }
}

fn rule(id: u32, priority: u16, dst_port: u16, target: u32) -> FlowRule {
    let mut matcher = Matcher::any();
    matcher.require(Layers::UDP).dst_port(dst_port, 0xffff);
    let actions = Actions { tag: Some(id), drop: false, counter: None, target: QpSlot(target) };
    FlowRule {
        id: FlowId(id),
        kind: FlowKind::Normal,
        port: 1,
        priority,
        dont_trap: false,
        order: id.into(),
        matcher,
        actions,
    }
}

fn udp_to(dst_port: u16) -> FlowKey {
    FlowKey { layers: Layers::IPV4 | Layers::UDP, protocol: 17, dst_port, ..FlowKey::default() }
}

fn flows(table: &mut FlowTable, key: &FlowKey) -> Vec<u32> {
    let mut matches = Matches::new();
    table.lookup(1, key, &mut matches);
    matches.as_slice().iter().map(|hit| hit.flow.0).collect()
}

#[test]
fn equal_match_and_priority_replicate_to_each_queue_pair_once() {
    let mut table = FlowTable::new();
    for (id, target) in [(1, 10), (2, 11), (3, 10)] {
        table.insert(rule(id, 0, 53, target)).unwrap();
    }
    assert_eq!(flows(&mut table, &udp_to(53)), [1, 2]);
    assert!(table.remove(FlowId(1)));
    assert_eq!(flows(&mut table, &udp_to(53)), [2, 3], "the younger rule of the queue pair takes over");
    assert_eq!(flows(&mut table, &udp_to(54)), [] as [u32; 0]);
}

#[test]
fn dropping_and_delivering_the_same_match_at_one_priority_conflict() {
    let mut table = FlowTable::new();
    table.insert(rule(1, 0, 53, 1)).unwrap();
    let mut drop = rule(2, 0, 53, 1);
    drop.actions.drop = true;
    assert_eq!(table.insert(drop.clone()), Err(FlowError::Conflict(FlowId(1))));
    drop.priority = 1;
    table.insert(drop).unwrap();
    assert_eq!(flows(&mut table, &udp_to(53)), [1]);
}

#[test]
fn a_refused_flow_changes_nothing() {
    let mut table = FlowTable::new();
    table.insert(rule(1, 3, 53, 1)).unwrap();
    assert_eq!(table.insert(rule(1, 0, 53, 2)), Err(FlowError::DuplicateId(FlowId(1))));
    let mut contradiction = rule(2, 0, 53, 1);
    contradiction.matcher.dst_port(54, 0xffff);
    assert_eq!(table.insert(contradiction), Err(FlowError::Contradiction));
    let mut default = rule(3, 0, 53, 1);
    (default.kind, default.dont_trap) = (FlowKind::AllDefault, true);
    assert_eq!(table.insert(default), Err(FlowError::DontTrapKind));
    assert_eq!(table.len(), 1);
    assert_eq!(flows(&mut table, &udp_to(53)), [1]);
}

#[test]
fn the_limits_keep_every_lookup_within_its_matches() {
    let mut table = FlowTable::new();
    let mut next = 0;
    let mut fill = |change: fn(&mut FlowRule), limit: usize| {
        for attempt in 0..=limit {
            next += 1;
            let mut rule = rule(next, 5, 53, next);
            change(&mut rule);
            let refused = table.insert(rule).is_err();
            assert_eq!(refused, attempt == limit, "attempt {attempt}");
        }
    };
    fill(|_| {}, MAX_REPLICAS);
    fill(|rule| rule.dont_trap = true, MAX_DONT_TRAP);
    fill(|rule| rule.kind = FlowKind::Sniffer, MAX_SNIFFERS);
    assert_eq!(flows(&mut table, &udp_to(53)).len(), MAX_MATCHES);
    assert_eq!(flows(&mut table, &udp_to(54)).len(), MAX_SNIFFERS);
}

#[test]
fn multicast_default_comes_between_normal_and_all_default() {
    let mut table = FlowTable::new();
    for (id, kind) in [(1, FlowKind::AllDefault), (2, FlowKind::MulticastDefault)] {
        let mut default = rule(id, 0, 0, id);
        (default.kind, default.matcher) = (kind, Matcher::any());
        table.insert(default).unwrap();
    }
    table.insert(rule(3, u16::MAX, 53, 3)).unwrap();
    let multicast = |port| FlowKey { dst_mac: MacAddr([1, 0, 0x5e, 0, 0, 1]), ..udp_to(port) };
    assert_eq!(flows(&mut table, &multicast(53)), [3]);
    assert_eq!(flows(&mut table, &multicast(54)), [2]);
    assert_eq!(flows(&mut table, &udp_to(54)), [1]);
}

#[test]
fn a_lookup_visits_no_shape_that_cannot_win() {
    let mut table = FlowTable::new();
    table.insert(rule(1, 0, 53, 1)).unwrap();
    for id in 2..34 {
        let mut other = rule(id, 1, 53, 1);
        other.matcher.src_port(0, 1 << (id % 16)).tos(0, 1 << (id / 16));
        table.insert(other).unwrap();
    }
    assert_eq!(table.ports[1].search(&MatchKey::of(&udp_to(53))).1, 1);
    assert_eq!(table.ports[1].search(&MatchKey::of(&udp_to(54))).1, 33);
}

#[test]
fn shapes_of_layers_that_a_frame_lacks_are_not_asked() {
    let mut table = FlowTable::new();
    for id in 0..32 {
        let mut other = rule(id, 0, 53, 1);
        other
            .matcher
            .require(if id % 2 == 0 { Layers::IPV4 } else { Layers::IPV6 })
            .src_port(0, 1 << (id / 2));
        table.insert(other).unwrap();
    }
    let asked = |layers| {
        let key = FlowKey { layers, src_port: 0xffff, ..udp_to(53) };
        table.ports[1].search(&MatchKey::of(&key)).1
    };
    assert_eq!(asked(Layers::IPV4 | Layers::UDP), 16);
    assert_eq!(asked(Layers::IPV6 | Layers::UDP), 16);
    assert_eq!(asked(Layers::IPV4 | Layers::TCP), 0);
    assert_eq!(asked(Layers::empty()), 0);
}

#[test]
fn different_masks_are_limited_for_each_port() {
    let mut table = FlowTable::new();
    let with_mask = |id: u32| {
        let mut rule = rule(id, 0, 53, 1);
        rule.matcher.src_port(0, id as u16);
        rule
    };
    for id in 0..MAX_SHAPES as u32 {
        table.insert(with_mask(id)).unwrap();
    }
    let one_more = with_mask(MAX_SHAPES as u32);
    let full = FlowError::Full { what: "different masks of flows on this port", limit: MAX_SHAPES };
    assert_eq!(table.insert(one_more.clone()), Err(full));
    assert_eq!(table.len(), MAX_SHAPES);
    let known_mask = FlowRule { priority: 1, id: FlowId(10_000), ..with_mask(5) };
    table.insert(known_mask).unwrap();
    table.insert(FlowRule { port: 2, id: FlowId(10_001), ..one_more.clone() }).unwrap();
    assert!(table.remove(FlowId(7)));
    table.insert(one_more).unwrap();
}

#[test]
fn ids_are_below_the_most_flows() {
    let mut table = FlowTable::new();
    let full = FlowError::Full { what: "flows", limit: MAX_FLOWS };
    assert_eq!(table.insert(rule(MAX_FLOWS as u32, 0, 53, 1)), Err(full));
    assert!(table.is_empty());
    table.insert(rule(MAX_FLOWS as u32 - 1, 0, 53, 1)).unwrap();
    assert!(!table.remove(FlowId(u32::MAX)) && !table.remove(FlowId(0)));
    assert!(table.remove(FlowId(MAX_FLOWS as u32 - 1)) && table.is_empty());
}
