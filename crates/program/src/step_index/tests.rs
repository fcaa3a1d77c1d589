//! The index against the comparison with every step in turn.

use packet::{DeepKey, ExtendedKey, Field, IpProtocol, Layers, MacAddr, TunnelKey, TunnelLayers};
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::matching::{Addresses, Family, Fragments, Macs, MaskedMac, Match};
use crate::outcome::{Outcome, Verdict};
use crate::program::{Class, Decide};
use crate::steps::Steps;
use crate::{GroupId, RangeSet, RuleId};

/// A class whose step `n` has the outcome of rule `n`.
fn class(matches: &[Match]) -> Class {
    let outcome =
        |index: usize| Outcome { rule: RuleId::of(index), verdict: Verdict::Deliver(GroupId::of(0)) };
    let step = |(index, matches): (usize, &Match)| Step {
        rule: RuleId::of(index),
        predicate: Predicate::of(matches),
        outcome: outcome(index),
    };
    let steps: Vec<Step> = matches.iter().enumerate().map(step).collect();
    let steps = Steps::from(steps);
    Class { rule: RuleId::of(0), decide: Decide::Software(steps, outcome(matches.len())) }
}

/// Few values, so that packets match, and some at the ends of the field.
fn word(bits: u32) -> impl Strategy<Value = u32> {
    let most = if bits == 32 { u32::MAX } else { (1 << bits) - 1 };
    prop_oneof![8 => 0..24u32, 1 => Just(most), 1 => Just(most - 1)].prop_map(move |value| value.min(most))
}

fn set(bits: u32) -> impl Strategy<Value = RangeSet<u32>> {
    let range = (word(bits), word(bits)).prop_map(|(one, other)| (one.min(other), one.max(other)));
    let single = word(bits).prop_map(|value| (value, value));
    prop::collection::vec(prop_oneof![3 => single, 1 => range], 1..4).prop_map(RangeSet::of)
}

fn addresses() -> impl Strategy<Value = Addresses> {
    let v6 = set(32).prop_map(|set| {
        let wide =
            |value: u32| if value > 100 { u128::MAX - u128::from(u32::MAX - value) } else { value.into() };
        RangeSet::of(set.ranges().iter().map(|(low, high)| (wide(*low), wide(*high))).collect())
    });
    prop_oneof![
        set(32).prop_map(|v4| Addresses { v4, ..Addresses::default() }),
        v6.prop_map(|v6| Addresses { v6, ..Addresses::default() }),
    ]
}

fn macs() -> impl Strategy<Value = Macs> {
    let one = (0..6u8, any::<bool>()).prop_map(|(last, is_whole)| MaskedMac {
        value: MacAddr([2, 0, 0, 0, 0, last]),
        mask: if is_whole { MacAddr::BROADCAST } else { MacAddr([0xff, 0, 0, 0, 0, 1]) },
    });
    let list = |most| prop::collection::vec(one.clone(), 0..most);
    (list(3), list(2)).prop_map(|(any_of, none_of)| Macs { any_of, none_of })
}

const FIELDS: &[(Field, u32)] = &[
    (Field::Protocol, 8),
    (Field::Ttl, 8),
    (Field::SrcPort, 16),
    (Field::DstPort, 16),
    (Field::TcpFlags, 8),
    (Field::SctpDstPort, 16),
    (Field::EtherType, 16),
    (Field::ExtProtocol, 8),
    (Field::ExtDstPort, 16),
];

fn plain_match() -> impl Strategy<Value = Match> {
    let field = |(field, bits): (Field, u32)| {
        prop::option::weighted(0.3, set(bits)).prop_map(move |values| (field, values))
    };
    let fields: Vec<_> = FIELDS.iter().copied().map(field).collect();
    let rare = || prop::option::weighted(0.2, addresses());
    let family = prop::option::weighted(0.2, prop_oneof![Just(Family::V4), Just(Family::V6)]);
    (fields, rare(), rare(), prop::option::weighted(0.1, macs()), family, 0..8u8).prop_map(
        |(fields, src, dst, dst_mac, family, other)| {
            let mut matches = Match { src, dst, dst_mac, family, ..Match::default() };
            for (field, values) in fields {
                values.into_iter().for_each(|values| matches.set(field, values));
            }
            matches.or_no_ports = other == 0;
            matches.fragment = (other == 1).then_some(Fragments::WHOLE);
            matches
        },
    )
}

fn any_match() -> impl Strategy<Value = Match> {
    let inner = prop::option::weighted(0.2, plain_match());
    (plain_match(), prop::option::weighted(0.2, set(24)), inner).prop_map(|(mut matches, vni, inner)| {
        vni.into_iter().for_each(|vni| matches.set(Field::VxlanVni, vni));
        matches.inner = inner.map(Box::new);
        matches
    })
}

fn key() -> impl Strategy<Value = FlowKey> {
    let numbers = (word(8), word(8), word(16), word(16), word(8), word(16), word(32), word(32));
    (numbers, any::<u8>(), 0..6u8).prop_map(|(numbers, kind, last)| {
        let (protocol, ttl, src_port, dst_port, tcp_flags, ether_type, src, dst) = numbers;
        let is_v6 = kind & 1 != 0;
        let ip = |value: u32| {
            let mut ip = [if is_v6 && value > 100 { 0xff } else { 0 }; 16];
            ip[if is_v6 { 12..16 } else { 0..4 }].copy_from_slice(&value.to_be_bytes());
            ip
        };
        let transport = match kind & 34 {
            34 => Layers::SCTP,
            2 => Layers::TCP,
            _ => Layers::UDP,
        };
        let layers = if is_v6 { Layers::IPV6 } else { Layers::IPV4 };
        let layers = if kind & 12 != 0 { layers | transport } else { layers };
        let layers = if kind & 48 == 48 { layers | Layers::FRAGMENT } else { layers };
        FlowKey {
            layers: if kind & 192 == 192 { Layers::empty() } else { layers },
            dst_mac: MacAddr([2, 0, 0, 0, 0, last]),
            ether_type: ether_type as u16,
            src_ip: ip(src),
            dst_ip: ip(dst),
            protocol: protocol as u8,
            ttl: ttl as u8,
            src_port: src_port as u16,
            dst_port: dst_port as u16,
            tcp_flags: tcp_flags as u8,
            ..FlowKey::default()
        }
    })
}

/// A key of a packet with extension headers, where it is of IPv6.
fn extended_key() -> impl Strategy<Value = FlowKey> {
    (key(), select(IpProtocol::EXTENSION_HEADERS.to_vec()), word(8), word(16), any::<bool>()).prop_map(
        |(key, header, protocol, dst_port, has_ports)| {
            if !key.layers.contains(Layers::IPV6) {
                return key;
            }
            let layers = key.layers - Layers::TCP - Layers::UDP - Layers::SCTP;
            let layers = if has_ports { layers | Layers::EXTENDED_UDP } else { layers };
            let dst_port = if has_ports { dst_port as u16 } else { 0 };
            let extended = ExtendedKey { protocol: protocol as u8, dst_port, ..ExtendedKey::default() };
            FlowKey { layers, protocol: header.0, src_port: 0, dst_port: 0, tcp_flags: 0, extended, ..key }
        },
    )
}

fn deep_key() -> impl Strategy<Value = DeepKey> {
    (prop_oneof![key(), extended_key()], key(), word(24), any::<bool>()).prop_map(
        |(outer, inner, vxlan_vni, is_tunnel)| {
            let layers = TunnelLayers::VXLAN | TunnelLayers::INNER | TunnelLayers::INNER_ETHERNET;
            let tunnel = TunnelKey { layers, vxlan_vni, inner, ..TunnelKey::default() };
            DeepKey { outer, tunnel: if is_tunnel { tunnel } else { TunnelKey::default() } }
        },
    )
}

/// A class of some steps of another.
fn part_of(class: &Class, places: Vec<u32>) -> Class {
    let Decide::Software(steps, otherwise) = &class.decide else { panic!("an exact class") };
    Class { rule: RuleId::of(0), decide: Decide::Software(Steps::of(steps.list(), places), *otherwise) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_index_finds_the_first_step_that_matches(
        matches in prop::collection::vec(any_match(), 9..200),
        keys in prop::collection::vec(deep_key(), 100),
        some in prop::collection::vec(0..200u32, 0..150),
        few in prop::collection::vec(0..200u32, 0..5),
    ) {
        let whole = class(&matches);
        for class in [part_of(&whole, some), part_of(&whole, few), whole] {
            // Classes with few steps are not looked up in the index of the whole list, but could be.
            for key in &keys {
                prop_assert_eq!(class.resolve_deep_by_index(key), class.resolve_deep(key));
                prop_assert_eq!(class.resolve_by_index(&key.outer), class.resolve(&key.outer));
            }
        }
    }
}

fn ports_and_addresses(count: u32) -> Vec<Match> {
    let of = |number: u32| {
        let mut matches = Match::default();
        matches.set(Field::TcpFlags, RangeSet::single(2));
        match number % 3 {
            0 => matches.set(Field::DstPort, RangeSet::single(number)),
            1 => matches.src = Some(Addresses { v4: RangeSet::single(number << 8), ..Addresses::default() }),
            _ => matches.set(Field::Ttl, RangeSet::of(vec![(number % 200, number % 200 + 9)])),
        }
        matches
    };
    (0..count).map(of).collect()
}

/// How many steps of the whole list are compared with a packet, and how many places the index has for them.
fn effort(class: &Class, key: &FlowKey) -> (usize, usize) {
    let Decide::Software(steps, _) = &class.decide else { panic!("an exact class") };
    let index = steps.list().index();
    let compared = std::cell::Cell::new(0);
    let count = |_: u32| {
        compared.set(compared.get() + 1);
        false
    };
    index.first(index.root, END, &|question: Question| question.answer(key, None), &count);
    (compared.get(), index.lists.len() + index.children.len())
}

/// Also where no step matches, and rules test different fields.
#[test]
fn few_steps_are_compared_with_a_packet_however_many_there_are() {
    for count in [60, 300, 1020, 10_000] {
        let class = class(&ports_and_addresses(count));
        let layers = Layers::IPV4 | Layers::TCP;
        let key = FlowKey { layers, dst_port: 30, ttl: 250, tcp_flags: 2, ..FlowKey::default() };
        let (compared, places) = effort(&class, &key);
        assert!(compared <= 3 * LIST_MAX, "{compared} of {count}");
        assert!(places <= 20 * count as usize, "{places} places for {count} steps");
    }
}

#[test]
fn steps_that_cannot_be_told_apart_are_compared_in_turn() {
    let same = vec![Match { fragment: Some(Fragments::WHOLE), ..Match::default() }; 100];
    let class = class(&same);
    assert_eq!(effort(&class, &FlowKey::default()).0, 100);
    let key = FlowKey { layers: Layers::IPV4, ..FlowKey::default() };
    assert_eq!(class.resolve_by_index(&key), class.resolve(&key));
    assert!(class.has_index() && !self::class(&same[..8]).has_index(), "so few are compared as they are");
}

/// The plain tests of a firewall's rule need no look at the predicate; others do.
#[test]
fn outlines_are_exact_where_they_have_all_tests() {
    let exact = |change: &dyn Fn(&mut Match)| {
        let mut matches = Match { family: Some(Family::V4), ..Match::default() };
        matches.set(Field::DstPort, RangeSet::of(vec![(1000, 2000)]));
        matches.set(Field::TcpFlags, RangeSet::of(vec![(2, 3), (6, 7)]));
        matches.src = Some(Addresses { v4: RangeSet::of(vec![(7, 9)]), ..Addresses::default() });
        change(&mut matches);
        let class = class(&[matches]);
        let Decide::Software(steps, _) = &class.decide else { panic!("an exact class") };
        steps.list().index().outlines[0].is_exact
    };
    assert!(exact(&|_| {}));
    assert!(!exact(&|matches| matches.set(Field::DstPort, RangeSet::of(vec![(1, 2), (4, 5)]))));
    assert!(!exact(&|matches| matches.set(Field::TcpFlags, RangeSet::of(vec![(2, 4)]))));
    assert!(!exact(&|matches| matches.set(Field::VxlanVni, RangeSet::single(7))));
    assert!(!exact(&|matches| matches.dst_mac = Some(Macs::default())));
    let long = |matches: &mut Match| {
        matches.family = Some(Family::V6);
        matches.src = Some(Addresses { v6: RangeSet::of(vec![(7, 9)]), ..Addresses::default() });
    };
    assert!(!exact(&long), "outlines have the upper half of an address");
}
