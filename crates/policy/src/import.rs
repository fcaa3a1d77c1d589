//! Conversion of the rules of other tools into a policy: ClassBench filter sets ([`classbench`]), the output
//! of `ethtool -n` and `ethtool --show-rxfh` ([`ethtool`]), and rule sets of nftables ([`nft`]). Pure
//! functions of text whose result is a valid policy; unsupported input is left out and noted with its line.
//! Text of another format is an error.

mod classbench;
mod ethtool;
mod nft;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packet::EtherType;
use program::Word;

pub use classbench::{ClassBench, classbench, classbench_with};
pub use ethtool::{ethtool, ethtool_with};
pub use nft::{NftOptions, nft};

/// A policy converted from something else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The policy's text.
    pub policy_toml: String,
    /// Differences from the input, in its order.
    pub notes: Vec<Note>,
}

/// The text is not of the format, so that there is no policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongFormat {
    /// The line of the input, from 1; 0 if it is not in a line.
    pub line: u32,
    /// The problem, and how the format is made.
    pub message: String,
}

/// A part of the input that the policy has in another form, or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The line of the input, from 1; 0 if the message names the place itself, as a line would not.
    pub line: u32,
    /// The difference and the reason.
    pub message: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            return f.write_str(&self.message);
        }
        write!(f, "line {}: {}", self.line, self.message)
    }
}

impl fmt::Display for WrongFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.message),
            line => write!(f, "line {line}: {}", self.message),
        }
    }
}

/// The keys of one match, in the order of the language's table.
#[derive(Default)]
struct Keys(Vec<String>);

impl Keys {
    /// Adds a key with a value in TOML.
    fn push(&mut self, key: &str, value: impl fmt::Display) {
        self.0.push(format!("{key} = {value}"));
    }

    /// Adds a key with a string.
    fn text(&mut self, key: &str, value: impl fmt::Display) {
        self.0.push(format!("{key} = \"{value}\""));
    }

    /// Adds a key with numbers, unless the list is empty, which means any number.
    fn ranges(&mut self, key: &str, ranges: &[(u128, u128)]) {
        let range = |(low, high): &(u128, u128)| match low == high {
            true => low.to_string(),
            false => format!("\"{low}-{high}\""),
        };
        match ranges {
            [] => {}
            [one] => self.push(key, range(one)),
            _ => {
                let list: Vec<String> = ranges.iter().map(range).collect();
                self.push(key, format!("[{}]", list.join(", ")));
            }
        }
    }

    /// Adds ethertypes, a single one by name.
    fn ether_types(&mut self, ranges: &[(u128, u128)]) {
        let shown = |number: u128| EtherType(u16::narrow(number)).to_string();
        match ranges {
            [(low, high)] if low == high => self.text("ethertype", shown(*low)),
            _ => self.ranges("ethertype", ranges),
        }
    }

    /// The match as TOML; without keys, that of every packet.
    fn table(&self) -> String {
        match self.0.is_empty() {
            true => "{ any = true }".to_owned(),
            false => format!("{{ {} }}", self.0.join(", ")),
        }
    }
}

fn rule(name: &str, keys: &Keys, action: &str) -> String {
    format!("\n[[rules]]\nname = \"{name}\"\nmatch = {}\naction = {action}\n", keys.table())
}

/// The sink `host` of kind `kernel`, with its TAP interface.
#[must_use]
pub fn kernel_sink(interface: &str) -> String {
    format!("\n[sinks.host]\nkind = \"kernel\"\ninterface = \"{interface}\"\n")
}

/// A part of the input for a comment or a message: truncated, without control characters.
fn quoted(text: &str) -> String {
    const SHOWN: usize = 60;
    text.chars().take(SHOWN).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn line_number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX).saturating_add(1)
}

/// A mask that takes more ranges than this is not converted.
const MAX_RANGES: usize = 256;

/// The numbers of `bits` bits that equal `value` in the bits of `matters`, as ranges in rising order.
///
/// `None` if they take too many ranges; empty if every number is one of them.
fn masked_ranges(value: u128, matters: u128, bits: u32) -> Option<Vec<(u128, u128)>> {
    let all = u128::MAX.checked_shr(u128::BITS - bits).unwrap_or(0);
    let matters = matters & all;
    if matters == 0 {
        return Some(Vec::new());
    }
    // The free bits below the lowest bit that matters make one range; every combination of the other free
    // bits, the holes, gives a range of its own.
    let low_bits = matters.trailing_zeros();
    let block = (1u128 << low_bits) - 1;
    let holes = all & !matters & !block;
    if holes.count_ones() > MAX_RANGES.ilog2() {
        return None;
    }
    let first = value & matters;
    let mut ranges = Vec::new();
    let mut hole = 0u128;
    loop {
        ranges.push((first | hole, first | hole | block));
        // The next subset of the holes in rising order: subtracting all of them carries through the bits
        // between.
        hole = hole.wrapping_sub(holes) & holes;
        if hole == 0 {
            return Some(ranges);
        }
    }
}

/// An address under a mask as addresses and prefixes of the language; empty if every address matches.
fn masked_addresses(value: IpAddr, matters: IpAddr) -> Option<Vec<String>> {
    let (value, matters, bits) = match (value, matters) {
        (IpAddr::V4(value), IpAddr::V4(matters)) => (u32::from(value).into(), u32::from(matters).into(), 32),
        (IpAddr::V6(value), IpAddr::V6(matters)) => (u128::from(value), u128::from(matters), 128),
        _ => return None,
    };
    let address = |number: u128| match bits {
        32 => IpAddr::V4(Ipv4Addr::from(u32::try_from(number).unwrap_or(u32::MAX))),
        _ => IpAddr::V6(Ipv6Addr::from(number)),
    };
    let written = |(low, high): (u128, u128)| {
        let length = bits - (high - low).count_ones();
        match length == bits {
            true => address(low).to_string(),
            false => format!("{}/{length}", address(low)),
        }
    };
    Some(masked_ranges(value, matters, bits)?.into_iter().map(written).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_become_ranges() {
        assert_eq!(masked_ranges(0x35, 0xffff, 16), Some(vec![(0x35, 0x35)]));
        assert_eq!(masked_ranges(0x1000, 0xf000, 16), Some(vec![(0x1000, 0x1fff)]));
        assert_eq!(masked_ranges(7, 0, 16), Some(vec![]));
        assert_eq!(masked_ranges(2, 2, 3), Some(vec![(2, 3), (6, 7)]));
        assert_eq!(masked_ranges(1, 1, 16), None);
        assert_eq!(masked_ranges(u128::MAX, u128::MAX, 128), Some(vec![(u128::MAX, u128::MAX)]));
    }

    #[test]
    fn addresses_are_prefixes() {
        let list = |value: &str, mask: &str| masked_addresses(value.parse().unwrap(), mask.parse().unwrap());
        assert_eq!(list("10.1.2.3", "255.0.0.0"), Some(vec!["10.0.0.0/8".to_owned()]));
        assert_eq!(list("10.1.2.3", "255.255.255.255"), Some(vec!["10.1.2.3".to_owned()]));
        assert_eq!(list("10.1.2.3", "0.0.0.0"), Some(vec![]));
        assert_eq!(
            list("0.0.0.4", "255.255.254.255").map(|list| list.join(" ")),
            Some("0.0.0.4 0.0.1.4".to_owned())
        );
        assert_eq!(list("2001:db8::1", "ffff:ffff::"), Some(vec!["2001:db8::/32".to_owned()]));
        assert_eq!(list("10.0.0.1", "ffff::"), None);
    }
}
