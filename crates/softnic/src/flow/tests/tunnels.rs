//! Rules about tunnels: against a linear reference, in both caches, and beside rules that know nothing of tunnels.

use packet::{FlowKey, Layers, TunnelKey, TunnelLayers};
use proptest::prelude::*;

use super::condition::{Condition, condition, key};
use crate::flow::*;

/// One thing that a rule can ask of a tunnel, apart from [`TunnelMatcher`] so that the reference shares nothing with it.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Outer(Condition),
    Inner(Condition),
    Vni(u32, u32),
    Spi(u32, u32),
    GreKey(u32, u32),
    GreProtocol(u16),
    Label(usize, u32, u32),
    InnerLabel(u32),
}

impl Asked {
    fn write(self, matcher: &mut Matcher, tunnel: &mut TunnelMatcher) {
        match self {
            Self::Outer(condition) => condition.write(matcher),
            Self::Inner(condition) => {
                tunnel.require(Presence::INNER);
                condition.write(&mut tunnel.inner);
            }
            Self::Vni(value, mask) => _ = tunnel.require(Presence::VXLAN).vxlan_vni(value, mask),
            Self::Spi(value, mask) => _ = tunnel.require(Presence::ESP).esp((value, mask), (0, 0)),
            Self::GreKey(value, mask) => _ = tunnel.require(Presence::GRE).gre_key(value, mask),
            Self::GreProtocol(value) => _ = tunnel.require(Presence::GRE).gre_protocol(value, 0xffff),
            Self::Label(place, value, mask) => {
                tunnel.require(Presence::MPLS_OVER_ETHERNET).label(place, value, mask);
            }
            Self::InnerLabel(value) => _ = tunnel.require(Presence::INNER_MPLS).inner_label(value, !0),
        }
    }

    fn holds(self, key: &FlowKey, tunnel: &TunnelKey) -> bool {
        let has = |layer| tunnel.layers.contains(layer);
        match self {
            Self::Outer(condition) => condition.holds(key),
            Self::Inner(condition) => has(TunnelLayers::INNER) && condition.holds(&tunnel.inner),
            Self::Vni(value, mask) => has(TunnelLayers::VXLAN) && (tunnel.vxlan_vni ^ value) & mask == 0,
            Self::Spi(value, mask) => has(TunnelLayers::ESP) && (tunnel.esp_spi ^ value) & mask == 0,
            Self::GreKey(value, mask) => {
                has(TunnelLayers::GRE)
                    && (mask == 0 || has(TunnelLayers::GRE_KEY))
                    && (tunnel.gre_key ^ value) & mask == 0
            }
            Self::GreProtocol(value) => has(TunnelLayers::GRE) && tunnel.gre_protocol == value,
            Self::Label(place, value, mask) => {
                let behind_ethernet = !has(TunnelLayers::GRE) && !key.layers.contains(Layers::UDP);
                behind_ethernet
                    && usize::from(tunnel.mpls_depth) > place
                    && (tunnel.mpls[place] ^ value) & mask == 0
            }
            Self::InnerLabel(value) => tunnel.inner_mpls != 0 && tunnel.inner_mpls == value,
        }
    }
}

fn asked() -> impl Strategy<Value = Asked> {
    let mask = || prop::sample::select(vec![0u32, 1, 3, !0]);
    prop_oneof![
        3 => condition().prop_map(Asked::Outer),
        3 => condition().prop_map(Asked::Inner),
        2 => (0u32..4, mask()).prop_map(|(value, mask)| Asked::Vni(value, mask)),
        1 => (0u32..4, mask()).prop_map(|(value, mask)| Asked::Spi(value, mask)),
        1 => (0u32..4, mask()).prop_map(|(value, mask)| Asked::GreKey(value, mask)),
        1 => (0u16..4).prop_map(Asked::GreProtocol),
        1 => (0usize..4, 0u32..4, mask()).prop_map(|(place, value, mask)| Asked::Label(place, value, mask)),
        1 => (1u32..4).prop_map(Asked::InnerLabel),
    ]
}

/// Keys as the parser makes them, as far as the matcher relies on it: what is absent is zero.
fn tunnel() -> impl Strategy<Value = TunnelKey> {
    let inner = || key().prop_map(|inner| (TunnelLayers::INNER, inner));
    let inner = || prop_oneof![Just((TunnelLayers::empty(), FlowKey::default())), inner()];
    prop_oneof![
        2 => Just(TunnelKey::default()),
        2 => (0u32..4, 0u32..4, inner()).prop_map(|(vxlan_vni, inner_mpls, (more, inner))| TunnelKey {
            layers: TunnelLayers::VXLAN | more,
            vxlan_vni,
            inner_mpls,
            inner,
            ..TunnelKey::default()
        }),
        1 => (0u32..4).prop_map(|esp_spi| TunnelKey {
            layers: TunnelLayers::ESP,
            esp_spi,
            ..TunnelKey::default()
        }),
        1 => (prop::option::of(0u32..4), 0u16..4, inner()).prop_map(|(gre_key, gre_protocol, (more, inner))| {
            let with_key = if gre_key.is_some() { TunnelLayers::GRE_KEY } else { TunnelLayers::empty() };
            TunnelKey {
                layers: TunnelLayers::GRE | with_key | more,
                gre_protocol,
                gre_key: gre_key.unwrap_or(0),
                inner,
                ..TunnelKey::default()
            }
        }),
        1 => (prop::array::uniform4(0u32..4), 1u8..5, inner()).prop_map(|(labels, mpls_depth, (more, inner))| {
            let mpls = std::array::from_fn(|at| if at < mpls_depth.into() { labels[at] } else { 0 });
            TunnelKey { layers: TunnelLayers::MPLS | more, mpls, mpls_depth, inner, ..TunnelKey::default() }
        }),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    Insert { priority: u16, dont_trap: bool, asked: Vec<Asked> },
    Remove(prop::sample::Index),
    Lookup(Box<(FlowKey, TunnelKey)>),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0u16..3, prop::bool::weighted(0.1), prop::collection::vec(asked(), 0..4))
            .prop_map(|(priority, dont_trap, asked)| Step::Insert { priority, dont_trap, asked }),
        1 => any::<prop::sample::Index>().prop_map(Step::Remove),
        6 => (key(), tunnel()).prop_map(|frame| Step::Lookup(Box::new(frame))),
    ]
}

fn insert(table: &mut FlowTable, id: u32, priority: u16, dont_trap: bool, asked: &[Asked]) -> bool {
    let (mut matcher, mut tunnel) = (Matcher::any(), TunnelMatcher::default());
    asked.iter().for_each(|asked| asked.write(&mut matcher, &mut tunnel));
    let rule = FlowRule {
        id: FlowId(id),
        kind: FlowKind::Normal,
        port: 1,
        egress: false,
        priority,
        dont_trap,
        order: id.into(),
        matcher,
        tunnel: Some(Box::new(tunnel)),
        actions: Actions { tag: None, drop: false, counter: None, target: QpSlot(id) },
    };
    table.insert(rule).is_ok()
}

/// The best trapping rule, and all DONT_TRAP rules before it, of what a lookup found.
fn found(table: &mut FlowTable, frame: &(FlowKey, TunnelKey), trapping: &[u32]) -> (Option<u32>, Vec<u32>) {
    let mut matches = Matches::new();
    table.lookup(1, &frame.0, || frame.1, &mut matches);
    let ids: Vec<u32> = matches.as_slice().iter().map(|hit| hit.flow.0).collect();
    let trap = ids.iter().copied().find(|id| trapping.contains(id));
    (trap, ids.into_iter().filter(|id| !trapping.contains(id)).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn rules_about_tunnels_agree_with_the_linear_reference(steps in prop::collection::vec(step(), 1..100)) {
        let mut table = FlowTable::default();
        let mut rules: Vec<(u16, bool, u32, Vec<Asked>)> = Vec::new();
        let mut seen = Vec::new();
        let mut next = 0;
        for step in steps {
            match step {
                Step::Insert { priority, dont_trap, asked } => {
                    next += 1;
                    // Contradictions, which the reference for outer packets tells, are not told again.
                    if insert(&mut table, next, priority, dont_trap, &asked) {
                        rules.push((priority, !dont_trap, next, asked));
                    }
                }
                Step::Remove(index) if !rules.is_empty() => {
                    let gone = rules.swap_remove(index.index(rules.len()));
                    prop_assert!(table.remove(FlowId(gone.2)));
                }
                Step::Remove(_) => {}
                Step::Lookup(frame) => seen.push(*frame),
            }
            let trapping: Vec<u32> = rules.iter().filter(|rule| rule.1).map(|rule| rule.2).collect();
            // All frames so far once more: what the caches held must not answer for what has changed.
            for frame in seen.iter().rev().take(12) {
                let mut holding: Vec<_> =
                    rules.iter().filter(|rule| rule.3.iter().all(|asked| asked.holds(&frame.0, &frame.1))).collect();
                holding.sort_by_key(|rule| (rule.0, rule.1, rule.2));
                let trap = holding.iter().find(|rule| rule.1);
                let passing = holding.iter().filter(|rule| !rule.1 && trap.is_none_or(|trap| rule.0 <= trap.0));
                let expected = (trap.map(|rule| rule.2), passing.map(|rule| rule.2).collect());
                prop_assert_eq!(found(&mut table, frame, &trapping), expected);
            }
        }
    }
}

fn vxlan(vni: u32) -> TunnelKey {
    TunnelKey { layers: TunnelLayers::VXLAN, vxlan_vni: vni, ..TunnelKey::default() }
}

#[test]
fn tunnels_are_parsed_only_where_a_rule_asks_for_one() {
    let mut table = FlowTable::default();
    let frame = FlowKey::default();
    let parsed = |table: &mut FlowTable, port| {
        let mut count = 0;
        let mut matches = Matches::new();
        let tunnel = || {
            count += 1;
            vxlan(1)
        };
        table.lookup(port, &frame, tunnel, &mut matches);
        count
    };
    assert!(insert(&mut table, 1, 0, false, &[]), "a rule that asks for nothing is not about tunnels");
    assert_eq!(parsed(&mut table, 1), 0);
    assert!(insert(&mut table, 2, 0, false, &[Asked::Vni(1, !0)]));
    assert_eq!((parsed(&mut table, 1), parsed(&mut table, 2)), (1, 0));
    assert!(table.remove(FlowId(2)));
    assert_eq!(parsed(&mut table, 1), 0);
}

#[test]
fn lookups_of_tunnels_do_not_allocate() {
    let mut table = FlowTable::default();
    for vni in 0..100 {
        assert!(insert(&mut table, vni, 1, false, &[Asked::Vni(vni, !0)]));
    }
    let mut matches = Matches::new();
    let counted = allocation_counter::measure(|| {
        for vni in 0..10_000 {
            table.lookup(1, &FlowKey::default(), || vxlan(vni % 200), &mut matches);
            assert_eq!(matches.as_slice().len(), usize::from(vni % 200 < 100));
        }
    });
    assert_eq!(counted.count_total, 0);
}

#[test]
fn the_cost_is_one_probe_for_each_mask_that_is_possible() {
    let mut table = FlowTable::default();
    for vni in 0..1000 {
        assert!(insert(&mut table, vni, 1, false, &[Asked::Vni(vni, !0)]));
    }
    assert!(insert(&mut table, 1000, 1, false, &[Asked::Spi(1, !0)]));
    let image = MatchKey::of(&FlowKey::default());
    let deep = |tunnel: &TunnelKey| deep::DeepImage::of(image, &FlowKey::default(), tunnel);
    let table = &table.ports[1];
    assert_eq!(table.search(&image, Some(&deep(&vxlan(500)))).1, 1);
    assert_eq!(table.search(&image, Some(&deep(&vxlan(5000)))).1, 1, "a rule about ESP is passed over");
    assert_eq!(table.search(&image, None).1, 0);
}

#[test]
fn sent_frames_have_tables_of_their_own() {
    let mut table = FlowTable::default();
    let mut matches = Matches::new();
    assert!(insert(&mut table, 1, 0, false, &[]));
    assert!(!table.has_egress(1));
    table.lookup_sent(1, &FlowKey::default(), TunnelKey::default, &mut matches);
    assert!(matches.as_slice().is_empty());
    let actions = Actions { tag: None, drop: true, counter: None, target: QpSlot(0) };
    let rule = FlowRule {
        id: FlowId(2),
        kind: FlowKind::Normal,
        port: 1,
        egress: true,
        priority: 0,
        dont_trap: false,
        order: 2,
        matcher: Matcher::any(),
        tunnel: None,
        actions,
    };
    table.insert(rule).unwrap();
    assert!(table.has_egress(1) && !table.has_egress(2));
    table.lookup_sent(1, &FlowKey::default(), TunnelKey::default, &mut matches);
    assert!(matches.as_slice()[0].actions.drop);
    table.lookup(1, &FlowKey::default(), TunnelKey::default, &mut matches);
    assert_eq!(matches.as_slice()[0].flow, FlowId(1), "the cache tells both directions apart");
}

#[test]
fn a_device_with_one_tag_per_match_gives_it_to_all_and_refuses_another() {
    let mut table = FlowTable::new(TableRules { one_tag_per_match: true, ..TableRules::default() });
    let with_tag = |id: u32, tag| {
        let mut rule = super::rule(id, 0, 53, id);
        rule.actions.tag = tag;
        rule
    };
    table.insert(with_tag(1, Some(7))).unwrap();
    assert_eq!(table.insert(with_tag(2, Some(8))), Err(FlowError::Conflict(FlowId(1))));
    table.insert(with_tag(3, Some(7))).unwrap();
    table.insert(with_tag(4, None)).unwrap();
    let mut matches = Matches::new();
    table.lookup(1, &super::udp_to(53), TunnelKey::default, &mut matches);
    let tags: Vec<_> = matches.as_slice().iter().map(|hit| hit.actions.tag).collect();
    assert_eq!(tags, [Some(7); 3]);
}

#[test]
fn a_device_without_room_for_a_mask_says_so_and_takes_it_once_there_is() {
    let groups = Some(GroupLimits { entries: 4, runs: 1, run_entries: 3 });
    let mut table = FlowTable::new(TableRules { groups, ..TableRules::default() });
    for id in 1..=4 {
        table.insert(super::rule(id, 0, id as u16, 1)).unwrap();
    }
    let replica = super::rule(5, 0, 1, 2);
    table.insert(replica).unwrap();
    assert_eq!(table.insert(super::rule(6, 0, 6, 1)), Err(FlowError::NoSpace));
    table.insert(super::rule(6, 1, 6, 1)).unwrap();
    assert!(table.remove(FlowId(1)));
    assert_eq!(table.insert(super::rule(7, 0, 7, 1)), Err(FlowError::NoSpace), "its replica keeps the place");
    assert!(table.remove(FlowId(5)));
    table.insert(super::rule(7, 0, 7, 1)).unwrap();
}
