//! ClassBench rule sets as policies.

use std::path::Path;

use packet::Field;
use policy::Policy;
use policy::policy::{Action, Direction};
use program::{Addresses, ByteSet, Family, GroupId, Match, RangeSet};

/// A set as a policy: every third rule drops, the others go to two groups.
pub(crate) fn read(set: &Path) -> Policy {
    let lines = std::fs::read_to_string(set).expect("the set can be read");
    let rules = lines.lines().enumerate().map(|(index, line)| {
        let action = match index % 3 {
            2 => Action::Drop,
            group => Action::Steer(GroupId(group as u32)),
        };
        (rule(line), action, Direction::Ingress)
    });
    super::policy(rules.collect(), Action::Kernel)
}

/// A line, `@src dst lo : hi lo : hi proto/mask flags/mask`. The upper byte of the flags is never asked about
/// for what is TCP.
fn rule(line: &str) -> Match {
    let columns: Vec<&str> = line.trim_start_matches('@').split_whitespace().collect();
    let address = |text: &str| {
        let (address, length) = text.split_once('/').expect("a prefix");
        let address = u32::from(address.parse::<std::net::Ipv4Addr>().expect("an address"));
        let host = u32::MAX.checked_shr(length.parse().expect("a length")).unwrap_or(0);
        Addresses { v4: RangeSet::of(vec![(address & !host, address | host)]), v6: RangeSet::default() }
    };
    let ports = |low: &str, high: &str| match (low, high) {
        ("0", "65535") => None,
        (low, high) => {
            Some(RangeSet::of(vec![(low.parse().expect("a port"), high.parse().expect("a port"))]))
        }
    };
    let hex = |text: &str| u16::from_str_radix(text.trim_start_matches("0x"), 16).expect("a number");
    let pair =
        |text: &str| text.split_once('/').map(|(value, mask)| (hex(value), hex(mask))).expect("a mask");
    let protocol = match pair(columns[8]) {
        (protocol, 0xff) => Some(protocol as u8),
        _ => None,
    };
    let flags = pair(columns[9]);
    let mut matches = Match {
        family: Some(Family::V4),
        src: (!columns[0].ends_with("/0")).then(|| address(columns[0])),
        dst: (!columns[1].ends_with("/0")).then(|| address(columns[1])),
        ..Match::default()
    };
    let mut set = |field, values: Option<RangeSet<u32>>| {
        if let Some(values) = values {
            matches.set(field, values);
        }
    };
    set(Field::SrcPort, ports(columns[2], columns[4]));
    set(Field::DstPort, ports(columns[5], columns[7]));
    set(Field::Protocol, protocol.map(|protocol| RangeSet::single(protocol.into())));
    let has_flags = protocol == Some(6) && flags.1 & 0xff != 0;
    set(Field::TcpFlags, has_flags.then(|| ByteSet::pattern(flags.0 as u8, flags.1 as u8).ranges()));
    matches
}
