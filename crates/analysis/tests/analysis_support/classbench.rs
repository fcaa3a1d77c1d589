//! ClassBench rule sets as policies, and where they are.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use policy::Policy;
use policy::policy::{Action, Direction};
use program::{Addresses, ByteSet, Family, GroupId, Match, RangeSet};

/// The folder of rule sets, or `None` after saying that there is none.
pub(crate) fn sets() -> Option<PathBuf> {
    let Some(corpora) = std::env::var_os("STEERD_CORPORA") else {
        assert!(std::env::var_os("CI").is_none(), "STEERD_CORPORA must name the corpora where CI is set");
        // Past the test harness, which swallows what `eprintln!` says of a test that passes.
        _ = writeln!(std::io::stderr(), "NOT RUN: set STEERD_CORPORA to the folder of the corpora");
        return None;
    };
    Some(Path::new(&corpora).join("rules"))
}

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
    Match {
        family: Some(Family::V4),
        src: (!columns[0].ends_with("/0")).then(|| address(columns[0])),
        dst: (!columns[1].ends_with("/0")).then(|| address(columns[1])),
        src_port: ports(columns[2], columns[4]),
        dst_port: ports(columns[5], columns[7]),
        protocol: protocol.map(RangeSet::single),
        tcp_flags: (protocol == Some(6) && flags.1 & 0xff != 0)
            .then(|| ByteSet::pattern(flags.0 as u8, flags.1 as u8)),
        ..Match::default()
    }
}
