//! Real ClassBench filter sets: the trees against every rule in turn, and what a lookup costs.

use std::path::Path;

use packet::Layers;
use packet::cube::{DST_IPV4, DST_PORT, PROTOCOL, SRC_IPV4, SRC_PORT, Slot};

use super::super::super::key::Matcher;
use super::linear::Linear;

/// The value and the mask of a column like `0x06/0xFF`.
fn pair(column: &str) -> (u128, u128) {
    let number = |text: &str| u128::from_str_radix(text.trim_start_matches("0x"), 16).expect("a number");
    let (value, mask) = column.split_once('/').expect("a value and a mask");
    (number(value), number(mask))
}

/// The value and the mask of a column like `10.0.0.0/8`.
fn prefix(column: &str) -> (u128, u128) {
    let (address, length) = column.split_once('/').expect("an address and a length");
    let address: std::net::Ipv4Addr = address.parse().expect("an address");
    let length: u32 = length.parse().expect("a length");
    (u32::from(address).into(), u128::from(u32::MAX.checked_shl(32 - length).unwrap_or(0)))
}

/// The values and masks that a range of ports is made of.
fn ports(low: &str, high: &str) -> Vec<(u128, u128)> {
    let (mut low, high): (u32, u32) = (low.parse().expect("a port"), high.parse().expect("a port"));
    let mut parts = Vec::new();
    while low <= high {
        let fits = |bits: &u32| low % (1 << bits) == 0 && low + (1 << bits) - 1 <= high;
        let bits = (0..=16).rev().find(fits).expect("a single port fits");
        parts.push((low.into(), u128::from(0xffff & !0u32 << bits)));
        low += 1 << bits;
    }
    parts
}

/// The rules of a set with their priorities, ranges of ports cut into masks.
pub(super) fn rules(set: &Path) -> Vec<(Matcher, u16)> {
    let text = std::fs::read_to_string(set).expect("the set can be read");
    let mut rules = Vec::new();
    for (line, priority) in text.lines().zip(0..) {
        let columns: Vec<&str> = line.trim_start_matches('@').split_whitespace().collect();
        let (protocol, protocol_mask) = pair(columns[8]);
        for src_port in ports(columns[2], columns[4]) {
            for dst_port in ports(columns[5], columns[7]) {
                let mut matcher = Matcher::any();
                matcher.require(Layers::IPV4).field(&[PROTOCOL], protocol, protocol_mask);
                let has_ports = src_port.1 | dst_port.1 != 0;
                match protocol {
                    6 if has_ports => _ = matcher.require(Layers::TCP),
                    17 if has_ports => _ = matcher.require(Layers::UDP),
                    _ => {}
                }
                let mut narrow = |slot: Slot, (value, mask)| _ = matcher.field(&[slot], value, mask);
                narrow(SRC_IPV4, prefix(columns[0]));
                narrow(DST_IPV4, prefix(columns[1]));
                narrow(SRC_PORT, src_port);
                narrow(DST_PORT, dst_port);
                rules.push((matcher, priority));
            }
        }
    }
    rules
}

/// A generator of numbers that are the same in each run.
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    pub(super) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

fn noise(numbers: &mut Numbers) -> Vec<[u64; 8]> {
    (0..16).map(|_| std::array::from_fn(|_| numbers.draw())).collect()
}

#[test]
fn real_sets_agree_with_the_linear_reference() {
    let Some(folder) = test_support::corpora("rules") else { return };
    for set in ["acl1_1k", "acl5_1k", "fw1_1k", "ipc1_1k"] {
        let mut numbers = Numbers(1);
        let mut both = Linear::default();
        let rules = rules(&folder.join(set));
        let half = rules.len() / 2;
        rules[..half].iter().for_each(|(matcher, priority)| both.add(matcher, *priority));
        both.rebuild();
        rules[half..].iter().for_each(|(matcher, priority)| both.add(matcher, *priority));
        both.check(&noise(&mut numbers));
        both.rebuild();
        for _ in 0..half {
            both.remove(numbers.draw() as usize % both.len());
        }
        both.check(&noise(&mut numbers));
        assert_eq!(both.trees.families[super::IPV4].overflow.len(), 0, "{set}: all rules are in the trees");
    }
}
