//! Random policies, packets at their boundaries, and a linear reference matcher as the oracle. Values come
//! from small pools, so that rules overlap and packets fall on their edges.

#![allow(dead_code, reason = "tests of other crates use a part")]

pub(crate) mod classbench;
pub(crate) mod packets;

use std::collections::BTreeSet;
use std::sync::Arc;

use packet::{DeepKey, Field, HashFields, MacAddr, RssKey};
use policy::policy::{Action, Direction, GroupDefinition, RuleDefinition, Workers};
use policy::{Place, Policy, Source};
use program::{
    Addresses, ByteSet, Family, Fragments, GroupId, Macs, MaskedMac, Match, MplsEntry, Predicate, RangeSet,
};
use proptest::prelude::*;
use proptest::sample::select;

use crate::DRAWS_SCTP;

/// The treatment of a packet: who gets copies, and the outcome with the rule that decides it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Treatment {
    pub(crate) copies: BTreeSet<String>,
    pub(crate) fate: String,
}

/// The oracle: the rules of a direction that a packet reaches, in order; the last one decides.
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

/// The treatment of a packet by rules, without one of them.
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
        let is_sniff = matches!(rule.action, Action::Sniff(_));
        let is_here = rule.direction == direction || is_sniff;
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
        description: None,
        workers: Workers::All,
        has_queues: false,
        fields: HashFields::L3L4,
        key: RssKey::SYMMETRIC,
        symmetric: true,
        table_size: None,
        sinks: Vec::new(),
        place: place.clone(),
    };
    let rule = |(index, (matches, action, direction)): (usize, (Match, Action, Direction))| RuleDefinition {
        name: format!("r{index}"),
        description: None,
        matches,
        action,
        direction,
        priority: 0,
        count: true,
        sinks: None,
        policing: program::Policing::default(),
        multicast_default: false,
        place: place.clone(),
        name_place: place.clone(),
    };
    Policy {
        groups: (0..GROUPS).map(|index| group(format!("g{index}"))).collect(),
        rules: rules.into_iter().enumerate().map(rule).collect(),
        sinks: Vec::new(),
        default,
        default_place: place.clone(),
        default_given: true,
        allow_lost_exceptions: true,
        set_sizes: Vec::new(),
        tests: Vec::new(),
        runtime: None,
        recorder: None,
        protect: None,
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

/// Whether there is a tag, or which ids it may have.
fn vlan() -> impl Strategy<Value = Result<bool, RangeSet<u32>>> {
    prop_oneof![Just(Ok(false)), Just(Ok(true)), ranges(vec![(1u32, 1), (0, 99), (1, 200)]).prop_map(Err),]
}

fn fragments() -> impl Strategy<Value = Fragments> {
    (1u8..8).prop_map(Fragments::from_bits_truncate)
}

fn label() -> impl Strategy<Value = MplsEntry> {
    let labels = ranges(vec![(16u32, 16), (0, 15), (0, 0xf_ffff)]);
    let class = ranges(vec![(0u32, 3), (5, 5)]);
    let ttl = ranges(vec![(0u32, 0), (64, 64), (1, 255)]);
    (often(labels), rare(class), often(any::<bool>()), rare(ttl))
        .prop_map(|(label, tc, bottom, ttl)| MplsEntry { label, tc, bottom, ttl })
}

/// A match of one packet's own headers. Boxed, because other strategies contain it several times, and their
/// values are made on the stack.
#[allow(clippy::too_many_lines, reason = "a value per field")]
fn packet_match() -> BoxedStrategy<Match> {
    let types = ranges(vec![(0x0800u32, 0x0800), (0x0806, 0x0806), (0x8847, 0x8847), (0, 1500), (0, 0xffff)]);
    let tpids = || ranges(vec![(0x8100u32, 0x8100), (0x88a8, 0x88a8), (0x8000, 0xffff)]);
    let link = (rare(macs()), rare(macs()), rare(types), rare(vlan()), rare(ranges(vec![(0u32, 3), (5, 5)])));
    let tags = (rare(tpids()), rare(vlan()), rare(tpids()));
    let network = (
        rare(select(vec![Family::V4, Family::V6])),
        often(addresses()),
        often(addresses()),
        often(ranges(vec![(6u32, 6), (17, 17), (47, 47), (50, 50), (4, 4), (0, 255), (44, 44)])),
        rare(bytes(vec![ByteSet::pattern(0xb8, 0xfc), ByteSet::range(0, 9)])),
    );
    let rest = (
        rare(ranges(vec![(0u32, 1), (64, 255)])),
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
            (53u32, 53),
            (80, 80),
            (0, 1023),
            (1024, 0xffff),
            (4789, 4789),
            (6635, 6635),
            (0, 0xffff),
        ])
    };
    let messages = || rare(ranges(vec![(2u32, 4), (0x10, 0x12), (0, 255)]));
    let sctp = match DRAWS_SCTP {
        true => (rare(ports()), rare(ports())).boxed(),
        false => Just((None, None)).boxed(),
    };
    let transport = (
        often(ports()),
        often(ports()),
        rare(bytes(vec![ByteSet::pattern(2, 0x12), ByteSet::pattern(4, 4)])),
        (messages(), messages(), messages(), messages()),
        sctp,
    );
    (link, tags, network, rest, transport)
        .prop_map(
            |(
                (dst_mac, src_mac, ethertype, vlan, vlan_priority),
                (vlan_tpid, inner_vlan, inner_vlan_tpid),
                network,
                rest,
                transport,
            )| {
                let (family, src, dst, protocol, tos) = network;
                let (ttl, flow_label, ip_flags, fragment, ip_options) = rest;
                let (src_port, dst_port, tcp_flags, icmp, sctp) = transport;
                let mut matches =
                    Match { dst_mac, src_mac, family, src, dst, fragment, ip_options, ..Match::default() };
                let bytes = |set: Option<ByteSet>| set.map(|set| set.ranges());
                // The language refuses a tag's fields beside its absence.
                let has_no_tag = vlan == Some(Ok(false));
                let has_no_second = has_no_tag || inner_vlan == Some(Ok(false));
                let of_tag = |values: Option<RangeSet<u32>>| values.filter(|_| !has_no_tag);
                let ids = |tag: &Option<Result<bool, RangeSet<u32>>>| tag.clone().and_then(Result::err);
                let inner_vlan = inner_vlan.filter(|_| !has_no_tag);
                matches.vlan = vlan.clone().and_then(Result::ok);
                matches.inner_vlan = inner_vlan.clone().and_then(Result::ok);
                set_all(
                    &mut matches,
                    [
                        (Field::EtherType, ethertype),
                        (Field::VlanId, ids(&vlan)),
                        (Field::VlanPriority, of_tag(vlan_priority)),
                        (Field::VlanTpid, of_tag(vlan_tpid)),
                        (Field::InnerVlanId, ids(&inner_vlan)),
                        (Field::InnerVlanTpid, inner_vlan_tpid.filter(|_| !has_no_second)),
                        (Field::Protocol, protocol),
                        (Field::Tos, bytes(tos)),
                        (Field::Ttl, ttl),
                        (Field::FlowLabel, flow_label),
                        (Field::IpFlags, bytes(ip_flags)),
                        (Field::SrcPort, src_port),
                        (Field::DstPort, dst_port),
                        (Field::TcpFlags, bytes(tcp_flags)),
                        (Field::SctpSrcPort, sctp.0),
                        (Field::SctpDstPort, sctp.1),
                        (Field::IcmpType, icmp.0),
                        (Field::IcmpCode, icmp.1),
                        (Field::Icmpv6Type, icmp.2),
                        (Field::Icmpv6Code, icmp.3),
                    ],
                );
                matches
            },
        )
        .boxed()
}

fn set_all<const N: usize>(matches: &mut Match, conditions: [(Field, Option<RangeSet<u32>>); N]) {
    for (field, values) in conditions {
        if let Some(values) = values {
            matches.set(field, values);
        }
    }
}

/// A match of everything.
pub(crate) fn matches() -> impl Strategy<Value = Match> {
    (with_tunnels(), packet_match(), prop::bool::weighted(0.1)).prop_map(|(matches, headers, is_extended)| {
        if is_extended { behind_extension_headers(headers) } else { matches }
    })
}

/// A match with its conditions on protocol and ports behind extension headers.
fn behind_extension_headers(mut matches: Match) -> Match {
    for (field, values) in matches.clone().values() {
        if let Some(behind) = field.behind_extension_headers() {
            matches.remove(&[field]);
            matches.set(behind, values.clone());
        }
    }
    matches.remove(&[Field::IcmpType, Field::IcmpCode, Field::SctpSrcPort, Field::SctpDstPort]);
    matches
}

fn with_tunnels() -> impl Strategy<Value = Match> {
    let numbers = || ranges(vec![(1u32, 1), (0, 7), (7, 100)]);
    let tunnel = (
        rare(numbers()),
        rare(numbers()),
        rare(numbers()),
        rare(ranges(vec![(0x6558u32, 0x6558), (0x0800, 0x0800), (0x8847, 0x8847), (0, 0xffff)])),
        rare(numbers()),
        rare(bytes(vec![ByteSet::pattern(0x20, 0x20), ByteSet::pattern(0, 0xb0)])),
    );
    let labels = rare(prop::collection::vec(label(), 0..4));
    let inner = rare((packet_match(), rare(prop::collection::vec(label(), 0..2))));
    (packet_match(), tunnel, labels, inner).prop_map(|(mut matches, tunnel, labels, inner)| {
        let (spi, sequence, vni, protocol, key, flags) = tunnel;
        set_all(
            &mut matches,
            [
                (Field::EspSpi, spi),
                (Field::EspSeq, sequence),
                (Field::VxlanVni, vni),
                (Field::GreProtocol, protocol),
                (Field::GreKey, key),
                (Field::GreFlags, flags.map(|flags: ByteSet| flags.ranges())),
            ],
        );
        matches.mpls = labels;
        matches.inner = inner.map(|(mut inner, labels)| {
            inner.mpls = labels;
            Box::new(inner)
        });
        matches
    })
}
