//! Random policies, packets at their boundaries, and the linear reader of a policy's meaning that judges what
//! is claimed about them. Values come from small pools, so that rules overlap and packets fall on their edges.

#![allow(dead_code, reason = "each test uses its part")]

pub(crate) mod classbench;
pub(crate) mod packets;

use std::collections::BTreeSet;
use std::sync::Arc;

use packet::{DeepKey, HashFields, MacAddr, RssKey};
use policy::policy::{Action, Direction, GroupDefinition, RuleDefinition, Workers};
use policy::{Place, Policy, Source};
use program::{
    Addresses, ByteSet, Family, Fragments, GroupId, Macs, MaskedMac, Match, MplsEntry, Predicate, RangeSet,
    VlanMatch,
};
use proptest::prelude::*;
use proptest::sample::select;

/// What becomes of a packet: who gets copies, and its fate with the rule that decides it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Treatment {
    pub(crate) copies: BTreeSet<String>,
    pub(crate) fate: String,
}

/// The judge: the rules of a direction that a packet comes to, in order; the last one decides.
pub(crate) fn reached(policy: &Policy, direction: Direction, key: &DeepKey) -> Vec<usize> {
    let mut reached = Vec::new();
    for (index, rule) in policy.rules.iter().enumerate() {
        let sniffs = matches!(rule.action, Action::Sniff(_));
        if (rule.direction != direction && !sniffs) || !Predicate::of(&rule.matches).matches_deep(key) {
            continue;
        }
        reached.push(index);
        if !matches!(rule.action, Action::Copy(_) | Action::Sniff(_)) {
            break;
        }
    }
    reached
}

/// What rules do with a packet, without one of them.
pub(crate) fn treatment(
    policy: &Policy,
    direction: Direction,
    key: &DeepKey,
    without: Option<usize>,
) -> Treatment {
    let group = |id: GroupId| {
        let group = &policy.groups[id.index()];
        format!(
            "{} {:?} {:?} {:?} {:?}",
            group.name, group.workers, group.fields, group.key, group.table_size
        )
    };
    let default = if direction == Direction::Egress { Action::Pass } else { policy.default };
    let mut treatment = Treatment { copies: BTreeSet::new(), fate: String::new() };
    for (index, rule) in policy.rules.iter().enumerate() {
        let hears = matches!(rule.action, Action::Sniff(_));
        let is_here = rule.direction == direction || hears;
        if Some(index) == without || !is_here || !Predicate::of(&rule.matches).matches_deep(key) {
            continue;
        }
        match rule.action {
            Action::Sniff(id) => _ = treatment.copies.insert(format!("sniff {}", group(id))),
            _ if !treatment.fate.is_empty() => {}
            Action::Copy(id) => _ = treatment.copies.insert(format!("copy {}", group(id))),
            Action::Steer(id) => treatment.fate = format!("steer {}", group(id)),
            other => treatment.fate = format!("{other:?}"),
        }
    }
    if treatment.fate.is_empty() {
        treatment.fate = match default {
            Action::Steer(id) => format!("steer {}", group(id)),
            other => format!("{other:?}"),
        };
    }
    treatment
}

pub(crate) const GROUPS: usize = 3;

/// A policy of these rules.
pub(crate) fn policy(rules: Vec<(Match, Action, Direction)>, default: Action) -> Policy {
    let source = Arc::new(Source::new("made.toml", ""));
    let place = Place::new(&source, 0..0);
    let group = |name: String| GroupDefinition {
        name,
        workers: Workers::All,
        fields: HashFields::L3L4,
        key: RssKey::SYMMETRIC,
        symmetric: true,
        table_size: None,
        place: place.clone(),
    };
    let rule = |(index, (matches, action, direction)): (usize, (Match, Action, Direction))| RuleDefinition {
        name: format!("r{index}"),
        matches,
        action,
        direction,
        priority: 0,
        count: true,
        multicast_default: false,
        place: place.clone(),
        name_place: place.clone(),
    };
    Policy {
        groups: (0..GROUPS).map(|index| group(format!("g{index}"))).collect(),
        rules: rules.into_iter().enumerate().map(rule).collect(),
        default,
        default_place: place.clone(),
        default_given: true,
        allow_lost_exceptions: true,
        source,
    }
}

pub(crate) fn action() -> impl Strategy<Value = Action> {
    let group = || (0..GROUPS as u32).prop_map(GroupId);
    prop_oneof![
        4 => group().prop_map(Action::Steer),
        3 => Just(Action::Drop),
        1 => Just(Action::Kernel),
        1 => group().prop_map(Action::Copy),
        1 => group().prop_map(Action::Sniff),
    ]
}

pub(crate) fn direction() -> impl Strategy<Value = Direction> {
    prop_oneof![6 => Just(Direction::Ingress), 1 => Just(Direction::Egress)]
}

pub(crate) fn fate() -> impl Strategy<Value = Action> {
    select(vec![Action::Drop, Action::Kernel, Action::Steer(GroupId(0))])
}

pub(crate) fn rules(most: usize) -> impl Strategy<Value = Vec<(Match, Action, Direction)>> {
    prop::collection::vec((matches(), action(), direction()), 0..most)
}

fn ranges<T: program::Word + 'static>(pool: Vec<(T, T)>) -> impl Strategy<Value = RangeSet<T>> {
    let len = pool.len();
    prop::collection::vec(0..len, 1..3)
        .prop_map(move |picks| RangeSet::of(picks.into_iter().map(|pick| pool[pick]).collect()))
}

fn bytes(pool: Vec<ByteSet>) -> impl Strategy<Value = ByteSet> {
    let len = pool.len();
    (0..len, any::<bool>())
        .prop_map(move |(pick, not)| if not { pool[pick].complement() } else { pool[pick] })
}

fn rare<S: Strategy>(of: S) -> impl Strategy<Value = Option<S::Value>> {
    prop::option::weighted(0.06, of)
}

fn often<S: Strategy>(of: S) -> impl Strategy<Value = Option<S::Value>> {
    prop::option::weighted(0.35, of)
}

fn macs() -> impl Strategy<Value = Macs> {
    let mac = |value: [u8; 6], mask: [u8; 6]| MaskedMac { value: MacAddr(value), mask: MacAddr(mask) };
    let pool = vec![
        mac([1, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]),
        mac([2, 0, 0, 0, 0, 1], [0xff; 6]),
        mac([2, 0, 0, 0, 0, 2], [0xff; 6]),
        mac([2, 0, 0, 0, 0, 0], [0xff, 0xff, 0xff, 0, 0, 0]),
        mac([0, 0, 0, 0, 0, 2], [0, 0, 0, 0, 0, 3]),
        MaskedMac::ANY,
    ];
    let some = |least| prop::collection::vec(select(pool.clone()), least..3);
    (some(1), some(0)).prop_map(|(any_of, none_of)| {
        let mut macs = Macs::of(any_of);
        macs.none_of = Macs::of(none_of).any_of;
        macs
    })
}

fn addresses() -> impl Strategy<Value = Addresses> {
    let v4 = |low: [u8; 4], high: [u8; 4]| (u32::from_be_bytes(low), u32::from_be_bytes(high));
    let v4 = vec![
        v4([10, 0, 0, 0], [10, 255, 255, 255]),
        v4([10, 0, 0, 0], [10, 0, 0, 255]),
        v4([10, 0, 0, 1], [10, 0, 0, 1]),
        v4([10, 0, 0, 200], [10, 0, 1, 5]),
        v4([0, 0, 0, 0], [255, 255, 255, 255]),
    ];
    let net = 0x2001_0db8u128 << 96;
    let v6 = vec![(net, net | ((1 << 96) - 1)), (net | 1, net | 1), (0, u128::MAX)];
    prop_oneof![
        4 => ranges(v4.clone()).prop_map(|v4| Addresses { v4, v6: RangeSet::default() }),
        2 => ranges(v6.clone()).prop_map(|v6| Addresses { v4: RangeSet::default(), v6 }),
        1 => (ranges(v4), ranges(v6)).prop_map(|(v4, v6)| Addresses { v4, v6 }),
    ]
}

fn vlan() -> impl Strategy<Value = VlanMatch> {
    prop_oneof![
        Just(VlanMatch::None),
        Just(VlanMatch::Any),
        ranges(vec![(1u16, 1), (0, 99), (1, 200)]).prop_map(VlanMatch::Ids),
    ]
}

fn fragments() -> impl Strategy<Value = Fragments> {
    (1u8..8).prop_map(Fragments::from_bits_truncate)
}

fn label() -> impl Strategy<Value = MplsEntry> {
    let labels = ranges(vec![(16u32, 16), (0, 15), (0, 0xf_ffff)]);
    let class = ranges(vec![(0u8, 3), (5, 5)]);
    let ttl = ranges(vec![(0u8, 0), (64, 64), (1, 255)]);
    (often(labels), rare(class), often(any::<bool>()), rare(ttl))
        .prop_map(|(label, tc, bottom, ttl)| MplsEntry { label, tc, bottom, ttl })
}

/// A match of one packet's own headers.
fn packet_match() -> impl Strategy<Value = Match> {
    let types = ranges(vec![(0x0800u16, 0x0800), (0x0806, 0x0806), (0x8847, 0x8847), (0, 1500), (0, 0xffff)]);
    let tpids = || ranges(vec![(0x8100u16, 0x8100), (0x88a8, 0x88a8), (0x8000, 0xffff)]);
    let link = (rare(macs()), rare(macs()), rare(types), rare(vlan()), rare(ranges(vec![(0u8, 3), (5, 5)])));
    let tags = (rare(tpids()), rare(vlan()), rare(tpids()));
    let network = (
        rare(select(vec![Family::V4, Family::V6])),
        often(addresses()),
        often(addresses()),
        often(ranges(vec![(6u8, 6), (17, 17), (47, 47), (50, 50), (4, 4), (0, 255), (44, 44)])),
        rare(bytes(vec![ByteSet::pattern(0xb8, 0xfc), ByteSet::range(0, 9)])),
    );
    let rest = (
        rare(ranges(vec![(0u8, 1), (64, 255)])),
        rare(ranges(vec![(0u32, 7), (0, 0xf_ffff)])),
        rare(
            bytes(vec![ByteSet::pattern(2, 2), ByteSet::pattern(1, 1)])
                .prop_map(|set| set.intersect(&ByteSet::range(0, 7))),
        ),
        rare(fragments()),
        rare(any::<bool>()),
    );
    let ports = || {
        ranges(vec![
            (53u16, 53),
            (80, 80),
            (0, 1023),
            (1024, 0xffff),
            (4789, 4789),
            (6635, 6635),
            (0, 0xffff),
        ])
    };
    let transport = (
        often(ports()),
        often(ports()),
        rare(bytes(vec![ByteSet::pattern(2, 0x12), ByteSet::pattern(4, 4)])),
    );
    (link, tags, network, rest, transport).prop_map(
        |(
            (dst_mac, src_mac, ethertype, vlan, vlan_priority),
            (vlan_tpid, inner_vlan, inner_vlan_tpid),
            network,
            rest,
            transport,
        )| {
            let (family, src, dst, protocol, tos) = network;
            let (ttl, flow_label, ip_flags, fragment, ip_options) = rest;
            let (src_port, dst_port, tcp_flags) = transport;
            let mut matches = Match {
                dst_mac,
                src_mac,
                ethertype,
                vlan,
                vlan_priority,
                vlan_tpid,
                inner_vlan,
                inner_vlan_tpid,
                family,
                src,
                dst,
                protocol,
                tos,
                ttl,
                flow_label,
                ip_flags,
                src_port,
                dst_port,
                fragment,
                tcp_flags,
                ip_options,
                ..Match::default()
            };
            // The language refuses a tag's fields beside its absence.
            if matches.vlan == Some(VlanMatch::None) {
                (matches.vlan_priority, matches.vlan_tpid) = (None, None);
                (matches.inner_vlan, matches.inner_vlan_tpid) = (None, None);
            }
            if matches.inner_vlan == Some(VlanMatch::None) {
                matches.inner_vlan_tpid = None;
            }
            matches
        },
    )
}

/// A match of everything.
pub(crate) fn matches() -> impl Strategy<Value = Match> {
    let numbers = || ranges(vec![(1u32, 1), (0, 7), (7, 100)]);
    let tunnel = (
        rare(numbers()),
        rare(numbers()),
        rare(numbers()),
        rare(ranges(vec![(0x6558u16, 0x6558), (0x0800, 0x0800), (0x8847, 0x8847), (0, 0xffff)])),
        rare(numbers()),
        rare(bytes(vec![ByteSet::pattern(0x20, 0x20), ByteSet::pattern(0, 0xb0)])),
    );
    let labels = rare(prop::collection::vec(label(), 0..4));
    let inner = rare((packet_match(), rare(prop::collection::vec(label(), 0..2))));
    (packet_match(), tunnel, labels, inner).prop_map(|(mut matches, tunnel, labels, inner)| {
        (matches.esp_spi, matches.esp_seq, matches.vxlan_vni, ..) = tunnel.clone();
        (.., matches.gre_protocol, matches.gre_key, matches.gre_flags) = tunnel;
        matches.mpls = labels;
        matches.inner = inner.map(|(mut inner, labels)| {
            inner.mpls = labels;
            Box::new(inner)
        });
        matches
    })
}
