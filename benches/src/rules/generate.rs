//! Generated filters that resemble ClassBench's access lists: hosts and prefixes of few sites, mostly any
//! source port, services, ranges, some flags, the more specific filters first. The same count gives the same
//! set on every machine.

use std::cmp::Reverse;
use std::collections::HashSet;

use super::RuleSet;
use super::filter::{Filter, Ports, mask};
use crate::dice::Dice;

/// Percentages of the kinds of filters, as in ClassBench's access lists.
const LENGTHS: [(u32, u32); 8] = [(45, 32), (15, 31), (8, 30), (7, 28), (12, 24), (8, 22), (3, 16), (2, 0)];
const PROTOCOLS: [(u32, Option<u8>); 4] = [(78, Some(6)), (10, Some(17)), (4, Some(1)), (8, None)];
const SERVICES: [u16; 12] = [22, 25, 53, 80, 123, 161, 443, 1433, 1521, 1526, 5555, 14_753];

impl Dice {
    fn share<T: Copy>(&mut self, shares: &[(u32, T)]) -> T {
        let mut left = self.below(shares.iter().map(|(share, _)| share).sum());
        for &(share, value) in shares {
            match left.checked_sub(share) {
                Some(rest) => left = rest,
                None => return value,
            }
        }
        shares[0].1
    }

    /// A prefix within one of the sites.
    fn prefix(&mut self, sites: &[u32]) -> (u32, u32) {
        let length = self.share(&LENGTHS);
        let site = sites[self.below(sites.len() as u32) as usize];
        // A site is a /22.
        ((site | self.below(1 << 10)) & mask(length), length)
    }

    fn service(&mut self) -> Ports {
        match self.below(100) {
            0..25 => (0, u16::MAX),
            25..33 => (1024, u16::MAX),
            33..38 => {
                let low = self.below(60_000) as u16;
                (low, low + 1 + self.below(200) as u16)
            }
            38..80 => {
                let service = SERVICES[self.below(SERVICES.len() as u32) as usize];
                (service, service)
            }
            _ => {
                let port = self.below(32_768) as u16;
                (port, port)
            }
        }
    }

    fn filter(&mut self, sources: &[u32], targets: &[u32]) -> Filter {
        let protocol = self.share(&PROTOCOLS);
        let dst_port = if matches!(protocol, Some(6 | 17)) { self.service() } else { (0, u16::MAX) };
        let flags = match (protocol, self.below(100)) {
            (Some(6), 0..12) => (0x0200, 0x0200),
            (Some(6), 12..22) => (0x1000, 0x1000),
            _ => (0, 0),
        };
        let (src, dst) = (self.prefix(sources), self.prefix(targets));
        Filter { src, dst, src_port: (0, u16::MAX), dst_port, protocol, flags }
    }
}

/// `count` rules.
#[must_use]
pub fn generated(count: usize) -> RuleSet {
    let mut dice = Dice(count as u64);
    let sites = |dice: &mut Dice| -> Vec<u32> {
        (0..count / 20 + 2).map(|_| dice.throw() as u32 & mask(22)).collect()
    };
    let (sources, targets) = (sites(&mut dice), sites(&mut dice));
    let (mut known, mut filters) = (HashSet::new(), Vec::with_capacity(count));
    while filters.len() < count {
        let filter = dice.filter(&sources, &targets);
        if known.insert(filter) {
            filters.push(filter);
        }
    }
    filters.sort_by_key(|filter| {
        let ports = u32::from(filter.dst_port.1 - filter.dst_port.0);
        (Reverse(filter.src.1 + filter.dst.1), ports, filter.protocol.is_none())
    });
    RuleSet::new(&format!("generated {count}"), filters)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Verdict;

    #[test]
    fn the_same_number_gives_the_same_set_and_its_text_reads_back() {
        let set = generated(300);
        assert_eq!(set.rules, generated(300).rules);
        assert_ne!(set.rules[..100], generated(100).rules[..]);
        let read = RuleSet::read("read", &set.filters_text()).expect("filters");
        assert_eq!(read.rules, set.rules);
        assert!(set.rules.iter().any(|rule| rule.verdict == Verdict::Drop));
    }

    #[test]
    fn rewritten_rules_are_more_and_changed_ones_fewer() {
        let set = generated(300);
        assert!(set.written_differently().rules.len() > 300);
        assert_eq!(set.with_few_changes().rules.len(), 299);
    }
}
