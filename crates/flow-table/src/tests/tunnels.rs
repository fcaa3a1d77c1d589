//! Rules about tunnels, and tables beside the one for received frames: what they cost, and the devices that
//! have less room.

use packet::{FlowKey, TunnelKey, TunnelLayers};

use super::asked::Asked;
use crate::*;

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
    assert_eq!(table.shapes_asked(&deep(&vxlan(500))), 1);
    assert_eq!(table.shapes_asked(&deep(&vxlan(5000))), 1, "a rule about ESP is passed over");
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
fn a_full_table_refuses_a_mask_and_accepts_it_once_there_is_space() {
    let groups = Some(device_model::PriorityTable { entries: 4, groups: 1, group_entries: 3 });
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
