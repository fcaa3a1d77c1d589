//! The single promises of the flow table's interface; the whole of it is held against a reference beside this
//! file.

mod asked;
mod condition;
mod reference;
mod tunnels;

use packet::cube::{DST_PORT, SRC_PORT};
use packet::{Layers, MacAddr};

use super::*;

fn rule(id: u32, priority: u16, dst_port: u16, target: u32) -> FlowRule {
    let mut matcher = Matcher::any();
    matcher.require(Layers::UDP).field(&[DST_PORT], dst_port.into(), 0xffff);
    let actions = Actions { tag: Some(id), drop: false, counter: None, target: QpSlot(target) };
    FlowRule {
        id: FlowId(id),
        kind: FlowKind::Normal,
        port: 1,
        priority,
        egress: false,
        dont_trap: false,
        order: id.into(),
        matcher,
        tunnel: None,
        actions,
    }
}

fn udp_to(dst_port: u16) -> FlowKey {
    FlowKey { layers: Layers::IPV4 | Layers::UDP, protocol: 17, dst_port, ..FlowKey::default() }
}

fn flows(table: &mut FlowTable, key: &FlowKey) -> Vec<u32> {
    let mut matches = Matches::new();
    table.lookup(1, key, TunnelKey::default, &mut matches);
    matches.as_slice().iter().map(|hit| hit.flow.0).collect()
}

#[test]
fn equal_match_and_priority_replicate_to_each_queue_pair_once() {
    let mut table = FlowTable::default();
    for (id, target) in [(1, 10), (2, 11), (3, 10)] {
        table.insert(rule(id, 0, 53, target)).unwrap();
    }
    assert_eq!(flows(&mut table, &udp_to(53)), [1, 2]);
    assert!(table.remove(FlowId(1)));
    assert_eq!(flows(&mut table, &udp_to(53)), [2, 3], "the younger rule of the queue pair takes over");
    assert_eq!(flows(&mut table, &udp_to(54)), [] as [u32; 0]);
}

#[test]
fn a_group_stays_right_from_its_first_rule_to_its_last() {
    let mut table = FlowTable::default();
    let at = |id, target, order| FlowRule { order, ..rule(id, 0, 53, target) };
    table.insert(at(1, 10, 5)).unwrap();
    assert_eq!(flows(&mut table, &udp_to(53)), [1]);
    table.insert(at(2, 11, 6)).unwrap();
    assert_eq!(flows(&mut table, &udp_to(53)), [1, 2]);
    assert!(table.remove(FlowId(1)));
    assert_eq!(flows(&mut table, &udp_to(53)), [2], "the second is the first now");
    table.insert(at(3, 12, 4)).unwrap();
    assert_eq!(flows(&mut table, &udp_to(53)), [3, 2], "an older one comes before it");
    table.insert(at(4, 13, 5)).unwrap();
    assert_eq!(flows(&mut table, &udp_to(53)), [3, 4, 2], "and one in between");
    assert!(table.remove(FlowId(2)) && table.remove(FlowId(4)));
    assert_eq!(flows(&mut table, &udp_to(53)), [3]);
    assert!(table.remove(FlowId(3)));
    assert_eq!(flows(&mut table, &udp_to(53)), [] as [u32; 0]);
    table.insert(at(5, 10, 7)).unwrap();
    assert_eq!(flows(&mut table, &udp_to(53)), [5], "nothing is left of the rules before");
}

#[test]
fn the_age_of_a_group_is_that_of_its_oldest_rule() {
    let mut table = FlowTable::default();
    // The same frames and priority, but another match: the older group decides.
    let wide = FlowRule { matcher: *Matcher::any().require(Layers::UDP), order: 5, ..rule(9, 0, 53, 20) };
    table.insert(wide).unwrap();
    table.insert(FlowRule { order: 6, ..rule(1, 0, 53, 10) }).unwrap();
    assert_eq!(flows(&mut table, &udp_to(53)), [9]);
    table.insert(FlowRule { order: 4, ..rule(2, 0, 53, 11) }).unwrap();
    assert_eq!(flows(&mut table, &udp_to(53)), [2, 1]);
    assert!(table.remove(FlowId(2)));
    assert_eq!(flows(&mut table, &udp_to(53)), [9]);
}

#[test]
fn dropping_and_delivering_the_same_match_at_one_priority_conflict() {
    let mut table = FlowTable::default();
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
    let mut table = FlowTable::default();
    table.insert(rule(1, 3, 53, 1)).unwrap();
    assert_eq!(table.insert(rule(1, 0, 53, 2)), Err(FlowError::DuplicateId(FlowId(1))));
    let mut contradiction = rule(2, 0, 53, 1);
    contradiction.matcher.field(&[DST_PORT], 54, 0xffff);
    assert_eq!(table.insert(contradiction), Err(FlowError::Contradiction));
    let mut default = rule(3, 0, 53, 1);
    (default.kind, default.dont_trap) = (FlowKind::AllDefault, true);
    assert_eq!(table.insert(default), Err(FlowError::DontTrapKind));
    assert_eq!(table.len(), 1);
    assert_eq!(flows(&mut table, &udp_to(53)), [1]);
}

#[test]
fn flows_that_let_frames_go_on_all_take_a_copy_before_the_one_that_traps() {
    let mut table = FlowTable::default();
    for (id, priority, target) in [(1, 1, 10), (2, 0, 11), (3, 1, 10), (4, 2, 12)] {
        table.insert(FlowRule { dont_trap: true, ..rule(id, priority, 53, target) }).unwrap();
    }
    assert_eq!(flows(&mut table, &udp_to(53)), [2, 1, 3, 4]);
    table.insert(rule(5, 1, 53, 13)).unwrap();
    assert_eq!(flows(&mut table, &udp_to(53)), [2, 1, 3, 5], "what would come after it gets nothing");
}

#[test]
fn a_device_may_have_one_copy_per_priority() {
    let rules = TableRules { one_tag_per_match: true, one_copy_per_priority: true, ..TableRules::default() };
    let mut table = FlowTable::new(rules);
    let passing = |id, priority, target, tag: u32, is_wide: bool| {
        let mut rule = FlowRule { dont_trap: true, ..rule(id, priority, 53, target) };
        rule.actions.tag = Some(tag);
        if is_wide {
            rule.matcher = *Matcher::any().require(Layers::UDP);
        }
        rule
    };
    table.insert(passing(1, 0, 10, 7, true)).unwrap();
    table.insert(passing(2, 0, 11, 8, false)).unwrap();
    table.insert(passing(3, 1, 12, 9, false)).unwrap();
    table.insert(rule(4, 1, 53, 13)).unwrap();
    assert_eq!(flows(&mut table, &udp_to(53)), [1, 3, 4], "another match of the first priority gets nothing");
    assert_eq!(table.insert(passing(5, 0, 14, 8, true)), Err(FlowError::Conflict(FlowId(1))), "another tag");
    table.insert(passing(5, 0, 14, 7, true)).unwrap();
    table.insert(passing(6, 0, 10, 7, true)).unwrap();
    assert_eq!(flows(&mut table, &udp_to(53)), [1, 5, 3, 4], "each queue pair of the match gets one copy");
    for id in [1, 5, 6] {
        assert!(table.remove(FlowId(id)));
    }
    assert_eq!(flows(&mut table, &udp_to(53)), [2, 3, 4]);
}

/// One group of two flows at each priority, and one flow that is a group of its own.
fn table_with_groups() -> FlowTable {
    let groups = Some(PriorityTable { entries: 6, groups: 1, group_entries: 2 });
    FlowTable::new(TableRules { groups, ..TableRules::default() })
}

fn copying(id: u32, dst_port: u16, target: u32) -> FlowRule {
    FlowRule { dont_trap: true, ..rule(id, 0, dst_port, target) }
}

#[test]
fn copies_fill_their_own_table() {
    let mut table = table_with_groups();
    let mut id = 0;
    let full = (1..10).find(|port| {
        id += 1;
        table.insert(copying(id, *port, id)).is_err()
    });
    let full = full.expect("the table has few entries");
    assert!(full > 2, "a group has two entries");
    assert_eq!(table.insert(copying(20, 20, 20)), Err(FlowError::NoSpace));
    table.insert(rule(21, 0, 20, 21)).expect("flows that trap have another table");
    assert!(table.remove(FlowId(1)));
    table.insert(copying(20, 20, 20)).expect("the entry is free again");
}

#[test]
fn equal_copies_share_an_entry() {
    let mut table = table_with_groups();
    for id in 1..=9 {
        table.insert(copying(id, 53, id)).expect("the entry is there");
    }
    let nothing = Verdict::NOTHING;
    let groups = |table: &FlowTable| table.of_port(1).expect("the port").groups_passed(nothing);
    assert_eq!(groups(&table), 1);
    table.insert(copying(10, 54, 10)).expect("the second entry of the group");
    assert_eq!(groups(&table), 1);
}

#[test]
fn removed_copies_hand_their_entry_on() {
    let mut table = table_with_groups();
    for id in [1, 2] {
        table.insert(copying(id, 53, id)).expect("the entry is there");
    }
    let groups = |table: &FlowTable| table.of_port(1).map_or(0, |port| port.groups_passed(Verdict::NOTHING));
    assert!(table.remove(FlowId(1)));
    assert_eq!((groups(&table), flows(&mut table, &udp_to(53))), (1, vec![2]));
    assert!(table.remove(FlowId(2)));
    assert_eq!(groups(&table), 0);
}

#[test]
fn the_limits_keep_every_lookup_within_its_matches() {
    let mut table = FlowTable::default();
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
fn equal_flows_on_one_queue_pair_are_not_limited_and_the_next_oldest_takes_over() {
    let mut table = FlowTable::default();
    let last = 4 * MAX_REPLICAS as u32;
    for id in 1..=last {
        table.insert(rule(id, 5, 53, 7)).unwrap_or_else(|error| panic!("flow {id}: {error}"));
    }
    assert_eq!(flows(&mut table, &udp_to(53)), [1]);
    for id in 1..last {
        assert!(table.remove(FlowId(id)));
        assert_eq!(flows(&mut table, &udp_to(53)), [id + 1]);
    }
    assert!(table.remove(FlowId(last)));
    assert_eq!(flows(&mut table, &udp_to(53)), [0; 0]);
}

#[test]
fn multicast_default_comes_between_normal_and_all_default() {
    let mut table = FlowTable::default();
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
fn a_device_may_give_multicast_to_both_defaults() {
    let mut table = FlowTable::new(TableRules { all_default_is_two: true, ..TableRules::default() });
    let default = |id, kind, target| FlowRule { kind, matcher: Matcher::any(), ..rule(id, 0, 0, target) };
    let multicast = FlowKey { dst_mac: MacAddr([1, 0, 0x5e, 0, 0, 1]), ..udp_to(53) };
    table.insert(default(1, FlowKind::MulticastDefault, 10)).unwrap();
    table.insert(default(2, FlowKind::AllDefault, 11)).unwrap();
    table.insert(default(3, FlowKind::AllDefault, 10)).unwrap();
    assert_eq!(flows(&mut table, &multicast), [1, 2], "each queue pair once");
    assert_eq!(flows(&mut table, &udp_to(53)), [2, 3]);
    assert!(table.remove(FlowId(1)));
    assert_eq!(flows(&mut table, &multicast), [2, 3]);
    let mut drop = default(4, FlowKind::MulticastDefault, 10);
    drop.actions.drop = true;
    assert_eq!(table.insert(drop.clone()), Err(FlowError::Conflict(FlowId(2))));
    assert!(table.remove(FlowId(2)) && table.remove(FlowId(3)));
    table.insert(drop).unwrap();
    let refused = table.insert(default(5, FlowKind::AllDefault, 10));
    assert_eq!(refused, Err(FlowError::Conflict(FlowId(4))), "one half has no place");
    assert_eq!(flows(&mut table, &udp_to(53)), [] as [u32; 0], "and so neither is there");
}

#[test]
fn different_masks_are_limited_for_each_port() {
    let mut table = FlowTable::default();
    let with_mask = |id: u32| {
        let mut rule = rule(id, 0, 53, 1);
        rule.matcher.field(&[SRC_PORT], 0, id.into());
        rule
    };
    for id in 0..MAX_SHAPES as u32 {
        table.insert(with_mask(id)).unwrap();
    }
    let one_more = with_mask(MAX_SHAPES as u32);
    let full = FlowError::Full {
        what: "different masks of flows on this port",
        limit: MAX_SHAPES,
        of: Limit::Shapes,
    };
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
    let mut table = FlowTable::default();
    let full = FlowError::Full { what: "flows", limit: MAX_FLOWS, of: Limit::Flows };
    assert_eq!(table.insert(rule(MAX_FLOWS as u32, 0, 53, 1)), Err(full));
    assert!(table.len() == 0);
    table.insert(rule(MAX_FLOWS as u32 - 1, 0, 53, 1)).unwrap();
    assert!(!table.remove(FlowId(u32::MAX)) && !table.remove(FlowId(0)));
    assert!(table.remove(FlowId(MAX_FLOWS as u32 - 1)) && table.len() == 0);
}
