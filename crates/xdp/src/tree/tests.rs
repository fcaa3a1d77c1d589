use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::*;
use crate::blocks::{BLOCKS_PER_CLAIM, ROOT_WORDS, RULE_WORDS};
use crate::grace::GracePeriod;
use crate::memory::SharedWords;

const REDIRECT: Effect = Effect { precedence: 0, slot: 0 };

/// Counts the grace periods.
struct CountedGrace(Arc<AtomicUsize>);

impl GracePeriod for CountedGrace {
    fn wait(&mut self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        true
    }
}

pub(crate) fn trees(blocks: usize, rules: usize) -> (Trees, Arc<AtomicUsize>) {
    let waits = Arc::new(AtomicUsize::new(0));
    let memory = TreeMemory::new(
        SharedWords::own(ROOT_WORDS),
        SharedWords::own(blocks * BLOCK_ENTRIES),
        SharedWords::own((rules + 1) * RULE_WORDS),
        Box::new(CountedGrace(Arc::clone(&waits))),
    );
    (Trees::new(memory), waits)
}

/// Masks of the kinds that rules have: prefixes of addresses, ports, protocols, tags, and any bits.
pub(crate) fn claim() -> impl Strategy<Value = Claim> {
    let prefix =
        |bits: u32| (0..=bits).prop_map(move |length| !0u64 << (63 - length.min(63)) & !(!0 >> bits));
    let mask = (prefix(32), prefix(32), prop::bool::ANY, prop::bool::ANY, prop::bool::ANY, any::<u64>());
    (mask, any::<[u64; LEVEL_WORDS]>(), 0..12u8).prop_map(
        |((dst, src, sport, dport, protocol, any), value, kind)| {
            let bits = |is_masked: bool, bits: u64| if is_masked { bits } else { 0 };
            let ports = bits(sport, 0xffff_0000) | bits(dport, 0xffff) | bits(protocol, 0xff << 40);
            let mut mask = [1 << 63 | ports, dst, src, 0, 0, 0, 0, 0];
            match kind {
                0 => mask = [0; LEVEL_WORDS],
                1 => mask[6] = 0xfff,
                2 => mask[5] = any,
                _ => {}
            }
            let mut value = value;
            value[0] |= 1 << 63;
            // Few values, so that claims overlap.
            (value[1], value[2]) = (value[1] & 0xff03_0307 << 32, value[2] & 0xff03_0307 << 32);
            value[0] &= 1 << 63 | 0x0007_0007 | 0x3 << 40;
            Claim::new(value, mask)
        },
    )
}

fn image(claims: &[Claim], which: usize, noise: [u64; LEVEL_WORDS]) -> Image {
    let Some(claim) = claims.get(which) else { return noise };
    std::array::from_fn(|word| claim.value[word] | noise[word] & !claim.mask[word])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 64 }, ..ProptestConfig::default() })]

    /// Adds and removes in any order, and compares with all claims one after the other.
    #[test]
    fn trees_decide_as_the_list_of_their_claims(
        claims in prop::collection::vec(claim(), 1..400),
        steps in prop::collection::vec((any::<prop::sample::Index>(), prop::bool::weighted(0.6)), 1..900),
        improved_every in 1..200usize,
        images in prop::collection::vec((0..500usize, any::<[u64; LEVEL_WORDS]>()), 100),
    ) {
        let (mut trees, _) = trees(4096, 1024);
        let mut present: Vec<(Claim, RulePlace)> = Vec::new();
        for (number, (which, adds)) in steps.iter().enumerate() {
            if *adds {
                let claim = claims[which.index(claims.len())];
                present.push((claim, trees.add(&claim, REDIRECT).unwrap()));
            } else if !present.is_empty() {
                let (_, rule) = present.swap_remove(which.index(present.len()));
                trees.remove(rule);
            }
            if number % improved_every == 0 {
                trees.improve();
            }
            if number % 50 == 0 || number + 1 == steps.len() {
                for (which, noise) in &images {
                    let image = image(&claims, *which, *noise);
                    let expected = present.iter().any(|(claim, _)| claim.matches(&image));
                    match trees.memory.decide(&image) {
                        None => prop_assert!(!expected, "a claimed image is passed"),
                        Some(false) => prop_assert!(expected, "an image that no claim matches is redirected"),
                        Some(true) => {}
                    }
                }
            }
        }
        for (_, rule) in present.drain(..) {
            trees.remove(rule);
        }
        if trees.widened() == 0 {
            prop_assert_eq!(trees.memory.used(), (0, 0));
        }
    }

    #[test]
    fn without_room_more_is_redirected_and_never_less(
        claims in prop::collection::vec(claim(), 100..300),
        images in prop::collection::vec((0..300usize, any::<[u64; LEVEL_WORDS]>()), 100),
    ) {
        let (mut trees, _) = trees(8, 512);
        let rules: Vec<RulePlace> = claims.iter().map(|claim| trees.add(claim, REDIRECT).unwrap()).collect();
        for (which, noise) in &images {
            let image = image(&claims, *which, *noise);
            let expected = claims.iter().any(|claim| claim.matches(&image));
            prop_assert!(!expected || trees.memory.decide(&image).is_some());
        }
        for rule in rules {
            trees.remove(rule);
        }
    }
}

fn of_ports(src: u16, dst: u16) -> Claim {
    let ports = u64::from(src) << 16 | u64::from(dst);
    Claim::new([ports, 0, 0, 0, 0, 0, 0, 0], [0xffff_ffff, 0, 0, 0, 0, 0, 0, 0])
}

#[test]
fn memory_is_reused_only_after_a_grace_period() {
    let (mut trees, waits) = trees(64, 8);
    for round in 0..8 {
        let rule = trees.add(&of_ports(round, 1), REDIRECT).unwrap();
        trees.remove(rule);
    }
    assert_eq!(waits.load(Ordering::Relaxed), 0);
    trees.add(&of_ports(9, 1), REDIRECT).unwrap();
    assert_eq!(waits.load(Ordering::Relaxed), 1);
}

#[test]
fn claims_beyond_the_room_for_rules_are_refused() {
    let (mut trees, _) = trees(64, 4);
    let rules: Vec<RulePlace> = (0..4).map(|port| trees.add(&of_ports(port, 1), REDIRECT).unwrap()).collect();
    assert_eq!(trees.add(&of_ports(4, 1), REDIRECT), Err(NoRule));
    trees.remove(rules[0]);
    assert!(trees.add(&of_ports(4, 1), REDIRECT).is_ok());
}

#[test]
fn ten_thousand_claims_of_ports_are_exact_and_need_few_comparisons() {
    let (mut trees, _) = trees(1 << 15, 1 << 14);
    for number in 0..10_000u16 {
        trees.add(&of_ports(number.wrapping_mul(77), number), REDIRECT).unwrap();
    }
    assert_eq!(trees.widened(), 0);
    let image = |src: u64, dst: u64| [src << 16 | dst, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(trees.memory.decide(&image(77, 1)), Some(false));
    assert_eq!(trees.memory.decide(&image(78, 1)), None);
}

/// Rules of the kinds that policies have: services of hosts, networks of both lengths, ports, pairs of hosts.
fn rule_like(number: u32) -> Claim {
    let random = u64::from(number.wrapping_add(1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let (one, other) = (random >> 32, random & 0xffff_ffff);
    let (v4, udp, protocol) = (1 << 63, 17 << 40, 0xff << 40);
    let (host, network) = (0xffff_ffff << 32, 0xffff_f000 << 32);
    let claim = |ports: u64, dst: u64, src: u64| {
        let value = [v4 | udp | other, one << 32, other << 32, 0, 0, 0, 0, 0];
        Claim::new(value, [v4 | protocol | ports, dst, src, 0, 0, 0, 0, 0])
    };
    match number % 8 {
        0..3 => claim(0xffff, host, 0),
        3 => claim(0, network, 0),
        4 => claim(0, 0, host),
        5 => claim(0xffff_ffff, 0, 0),
        _ => claim(0xffff, host, host),
    }
}

/// The claims of all packets but those to one address, for each kind of packet: they differ in any one bit.
#[test]
fn claims_of_all_but_one_address_are_exact_when_improved() {
    const KINDS: u64 = if cfg!(miri) { 1 } else { 4 };
    let (mut trees, _) = trees(1 << 12, 512);
    for bit in 16..64 {
        for kind in (1..=KINDS).map(|kind| kind << 60) {
            let address = !0u64 << bit;
            let value = [kind, 0, 0, 0, 0, address << 1, 0, 0];
            trees.add(&Claim::new(value, [kind, 0, 0, 0, 0, address, 0, 0]), REDIRECT).unwrap();
            assert_eq!(trees.memory.decide(&value), Some(false));
        }
        while trees.improve() {}
        for kind in 0..8 {
            let excepted = [kind << 60, 0, 0, 0, 0, !0 << 16, 0, 0];
            assert_eq!(trees.memory.decide(&excepted), None, "after bit {bit}");
        }
    }
    assert_eq!(trees.widened(), 0);
}

#[test]
fn improved_trees_compare_a_packet_with_few_rules() {
    const CLAIMS: u32 = if cfg!(miri) { 64 } else { 4000 };
    let (mut trees, _) = trees(1 << 16, 1 << 13);
    let claims: Vec<Claim> = (0..CLAIMS).map(rule_like).collect();
    for claim in &claims {
        trees.add(claim, REDIRECT).unwrap();
    }
    let compared = |trees: &Trees| {
        let of_all: usize = claims.iter().map(|claim| trees.memory.compared(&claim.value)).sum();
        of_all as f64 / f64::from(CLAIMS)
    };
    let before = compared(&trees);
    while trees.improve() {}
    let after = compared(&trees);
    println!("{CLAIMS} claims: {before:.1} rules compared, {after:.1} when improved");
    assert!(after <= before && after < 12.0, "{before} -> {after}");
    assert!(!trees.improve(), "nothing has changed");
    assert!(trees.blocks() < BLOCKS_PER_RULE * claims.len(), "{} blocks", trees.blocks());
}

#[test]
fn as_many_claims_as_there_may_be_have_blocks_while_they_change() {
    const LIMIT: usize = if cfg!(miri) { 64 } else { 1 << 16 };
    let mut seen = std::collections::HashSet::new();
    let mut claims = (0..).map(rule_like).filter(move |claim| seen.insert(*claim));
    let (mut trees, _) = trees(LIMIT * BLOCKS_PER_CLAIM as usize, LIMIT);
    let mut present: Vec<_> =
        claims.by_ref().take(LIMIT).map(|claim| trees.add(&claim, REDIRECT).unwrap()).collect();
    println!("{LIMIT} claims: {} blocks, {} widened", trees.memory.used().0, trees.widened());
    assert_eq!(trees.add(&claims.next().unwrap(), REDIRECT), Err(NoRule));
    // All are replaced, some at a time.
    let mut most = 0;
    for (number, claim) in claims.take(2 * LIMIT).enumerate() {
        let at = number.wrapping_mul(7919) % LIMIT;
        trees.remove(present[at]);
        present[at] = trees.add(&claim, REDIRECT).unwrap();
        most = most.max(trees.memory.used().0);
        if number % (LIMIT / 4) == 0 {
            while trees.improve() {}
        }
    }
    println!("later at most {most} blocks, {} widened", trees.widened());
    assert_eq!(trees.widened(), 0);
    present.into_iter().for_each(|rule| trees.remove(rule));
    assert_eq!(trees.memory.used(), (0, 0));
}

#[test]
fn specific_claims_have_the_first_classes() {
    let masked = |bits: u32| !0u64 << (64 - bits);
    let claim = |dst, src| Claim::new([1 << 63, 0, 0, 0, 0, 0, 0, 0], [1 << 63, dst, src, 0, 0, 0, 0, 0]);
    let classes =
        [(32, 24), (16, 8), (8, 24), (1, 1)].map(|(dst, src)| class_of(&claim(masked(dst), masked(src))));
    assert_eq!(classes, [0, 2, 1, 3]);
}
