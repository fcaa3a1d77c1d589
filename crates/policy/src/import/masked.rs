//! Values under masks as ranges: devices and filter sets mask any bits, the language says ranges.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A mask that takes more ranges than this is not carried over.
const MAX_RANGES: usize = 256;

/// The numbers of `bits` bits that agree with `value` where `matters` has ones, as ranges.
///
/// `None` if they take too many; empty if every number is one.
pub(super) fn ranges(value: u128, matters: u128, bits: u32) -> Option<Vec<(u128, u128)>> {
    let all = u128::MAX.checked_shr(u128::BITS - bits).unwrap_or(0);
    let matters = matters & all;
    if matters == 0 {
        return Some(Vec::new());
    }
    // Free bits at the low end make one range; those further up multiply it.
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
        // The next subset of the holes, in rising order.
        hole = hole.wrapping_sub(holes) & holes;
        if hole == 0 {
            return Some(ranges);
        }
    }
}

/// An address under a mask, as the language writes it; empty if every address is meant.
pub(super) fn addresses(value: IpAddr, matters: IpAddr) -> Option<Vec<String>> {
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
    Some(ranges(value, matters, bits)?.into_iter().map(written).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_become_ranges() {
        assert_eq!(ranges(0x35, 0xffff, 16), Some(vec![(0x35, 0x35)]));
        assert_eq!(ranges(0x1000, 0xf000, 16), Some(vec![(0x1000, 0x1fff)]));
        assert_eq!(ranges(7, 0, 16), Some(vec![]));
        assert_eq!(ranges(2, 2, 3), Some(vec![(2, 3), (6, 7)]));
        assert_eq!(ranges(1, 1, 16), None);
        assert_eq!(ranges(u128::MAX, u128::MAX, 128), Some(vec![(u128::MAX, u128::MAX)]));
    }

    #[test]
    fn addresses_are_prefixes() {
        let list = |value: &str, mask: &str| addresses(value.parse().unwrap(), mask.parse().unwrap());
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
