//! Single values as the language writes them: ports, addresses, MACs, protocol names. Pure functions of
//! text, called for every item of a list, a set or a set file; they know nothing of places or sets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packet::{EtherType, IpProtocol, MacAddr};

use crate::byte_set::ByteSet;
use crate::policy::MaskedMac;

/// What a text is not, with a better hint than the kind's own where there is one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused(pub(super) Option<String>);

pub(super) type Parsed<T> = Result<T, Refused>;

/// One kind of value.
pub(super) struct Kind<T> {
    /// With its article: `a port`.
    pub(super) name: &'static str,
    /// How to write one.
    pub(super) hint: &'static str,
    pub(super) parse: fn(&str) -> Parsed<T>,
}

pub(super) const MAC: Kind<MaskedMac> = Kind {
    name: "a MAC address",
    hint: "write one like 02:00:5e:00:00:01, with a mask like 01:00:5e:00:00:00/ff:ff:ff:80:00:00, or multicast or broadcast",
    parse: mac,
};

pub(super) const ETHER_TYPE: Kind<(u16, u16)> = Kind {
    name: "an ethertype",
    hint: "write a name like arp, a number like 0x0806, or a range like 0-1500",
    parse: ether_type,
};

pub(super) const VLAN_ID: Kind<(u16, u16)> = Kind {
    name: "a VLAN id",
    hint: "write none, any, an id from 0 to 4095, or a range like 100-199",
    parse: |text| range(text, 0x0fff),
};

pub(super) const VLAN_PRIORITY: Kind<(u8, u8)> = Kind {
    name: "a VLAN priority",
    hint: "write a number from 0 to 7 or a range like 5-7",
    parse: |text| range(text, 7),
};

pub(super) const ADDRESS: Kind<(IpAddr, IpAddr)> = Kind {
    name: "an address",
    hint: "write one like 192.0.2.1, 192.0.2.0/24, 2001:db8::/32, or a range like 192.0.2.10-192.0.2.20",
    parse: address,
};

pub(super) const PROTOCOL: Kind<(u8, u8)> = Kind {
    name: "a protocol",
    hint: "write a name like tcp, a number from 0 to 255, or a range of numbers",
    parse: protocol,
};

pub(super) const TOS: Kind<(u8, u8)> = Kind {
    name: "a type of service",
    hint: "write a number from 0 to 255 or a range",
    parse: |text| range(text, 255),
};

pub(super) const DSCP: Kind<(u8, u8)> = Kind {
    name: "a DSCP",
    hint: "write a number from 0 to 63, a range, or a name like ef, af41 or cs6",
    parse: dscp,
};

pub(super) const PORT: Kind<(u16, u16)> = Kind {
    name: "a port",
    hint: "write a number from 0 to 65535 or a range like 1024-65535",
    parse: |text| range(text, 0xffff),
};

/// Words that are values somewhere; a set may not have such a name.
pub(super) fn is_keyword(name: &str) -> bool {
    matches!(name, "any" | "none" | "all" | "multicast" | "broadcast" | "kernel" | "drop")
        || name.parse::<EtherType>().is_ok()
        || name.parse::<IpProtocol>().is_ok()
        || dscp(name).is_ok()
}

/// A number, decimal or hexadecimal after `0x`.
fn number(text: &str) -> Parsed<u64> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    // `from_str_radix` would also take a sign.
    if !digits.chars().all(|digit| digit.is_digit(radix)) {
        return Err(Refused(None));
    }
    u64::from_str_radix(digits, radix).map_err(|_| Refused(None))
}

/// One number or two with a dash, none above `max`.
fn range<T: TryFrom<u64>>(text: &str, max: u64) -> Parsed<(T, T)> {
    bounded(text, max, number)
}

/// The same with another way of reading the ends.
fn bounded<T: TryFrom<u64>>(text: &str, max: u64, read: fn(&str) -> Parsed<u64>) -> Parsed<(T, T)> {
    let (low, high) = match text.split_once('-') {
        Some((low, high)) => (read(low.trim())?, read(high.trim())?),
        None => {
            let value = read(text)?;
            (value, value)
        }
    };
    if high > max || low > max {
        return Err(Refused(None));
    }
    if low > high {
        return Err(Refused(Some(format!("the range runs backwards: write {high}-{low}"))));
    }
    let narrow = |value| T::try_from(value).map_err(|_| Refused(None));
    Ok((narrow(low)?, narrow(high)?))
}

fn ether_type(text: &str) -> Parsed<(u16, u16)> {
    match text.parse::<EtherType>() {
        Ok(EtherType(number)) => Ok((number, number)),
        Err(_) => range(text, 0xffff),
    }
}

fn protocol(text: &str) -> Parsed<(u8, u8)> {
    match text.parse::<IpProtocol>() {
        Ok(IpProtocol(number)) => Ok((number, number)),
        Err(_) => range(text, 0xff),
    }
}

/// A DSCP by number or name (RFC 2474, 2597, 3246) as the TOS values that carry it, whatever the ECN bits.
fn dscp(text: &str) -> Parsed<(u8, u8)> {
    let (low, high) = bounded::<u8>(text, 63, dscp_point)?;
    Ok((low << 2, high << 2 | 3))
}

fn dscp_point(text: &str) -> Parsed<u64> {
    let digit = |byte: u8, most: u8| (b'0'..=b'0' + most).contains(&byte).then(|| u64::from(byte - b'0'));
    let named = match *text.to_ascii_lowercase().as_bytes() {
        [b'e', b'f'] => Some(46),
        [b'c', b's', class] => digit(class, 7).map(|class| class * 8),
        [b'a', b'f', class, drop] => match (digit(class, 4), digit(drop, 3)) {
            (Some(class @ 1..), Some(drop @ 1..)) => Some(class * 8 + drop * 2),
            _ => None,
        },
        _ => None,
    };
    named.map_or_else(|| number(text), Ok)
}

fn mac(text: &str) -> Parsed<MaskedMac> {
    const GROUP_BIT: MacAddr = MacAddr([1, 0, 0, 0, 0, 0]);
    let (value, mask) = match text.split_once('/') {
        _ if text == "multicast" => (GROUP_BIT, GROUP_BIT),
        _ if text == "broadcast" => (MacAddr::BROADCAST, MacAddr::BROADCAST),
        None => (mac_address(text)?, MacAddr::BROADCAST),
        Some((value, mask)) => (mac_address(value)?, mac_address(mask)?),
    };
    if (0..6).any(|i| value.0[i] & !mask.0[i] != 0) {
        let kept = MacAddr(std::array::from_fn(|i| value.0[i] & mask.0[i]));
        return Err(Refused(Some(format!("it has bits outside its mask: write {kept}/{mask}"))));
    }
    Ok(MaskedMac { value, mask })
}

fn mac_address(text: &str) -> Parsed<MacAddr> {
    text.parse().map_err(|_| Refused(None))
}

/// An address, a prefix, or a range of addresses, as its first and last address.
fn address(text: &str) -> Parsed<(IpAddr, IpAddr)> {
    if let Some((low, high)) = text.split_once('-') {
        let (low, high) = (ip(low.trim())?, ip(high.trim())?);
        return match (low, high) {
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {
                Err(Refused(Some("both ends of a range must be IPv4, or both IPv6".to_owned())))
            }
            _ if low > high => Err(Refused(Some(format!("the range runs backwards: write {high}-{low}")))),
            _ => Ok((low, high)),
        };
    }
    let Some((address, length)) = text.split_once('/') else {
        let address = ip(text)?;
        return Ok((address, address));
    };
    let length = number(length).map_err(|_| Refused(None))?;
    let too_long = |most| Err(Refused(Some(format!("a prefix here has at most {most} bits"))));
    let (first, last) = match ip(address)? {
        IpAddr::V4(_) if length > 32 => return too_long(32),
        IpAddr::V6(_) if length > 128 => return too_long(128),
        IpAddr::V4(v4) => {
            let host = u64::from(u32::MAX).checked_shr(length as u32).map_or(0, |host| host as u32);
            let first = u32::from(v4) & !host;
            (IpAddr::from(Ipv4Addr::from(first)), IpAddr::from(Ipv4Addr::from(first | host)))
        }
        IpAddr::V6(v6) => {
            let host = u128::MAX.checked_shr(length as u32).unwrap_or(0);
            let first = u128::from(v6) & !host;
            (IpAddr::from(Ipv6Addr::from(first)), IpAddr::from(Ipv6Addr::from(first | host)))
        }
    };
    if ip(address)? != first {
        return Err(Refused(Some(format!("it has bits beyond its prefix: write {first}/{length}"))));
    }
    Ok((first, last))
}

fn ip(text: &str) -> Parsed<IpAddr> {
    text.parse().map_err(|_| Refused(None))
}

/// The bits of the TCP header's flags byte, RFC 9293 order.
const TCP_FLAGS: [&str; 8] = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"];

/// `syn,!ack`: flags that must be set, and with `!` flags that must not.
pub(super) fn tcp_flags(text: &str) -> Parsed<ByteSet> {
    let (mut value, mut mask) = (0, 0);
    for word in text.split(',').map(str::trim) {
        let (name, set) = match word.strip_prefix('!') {
            Some(name) => (name.trim(), false),
            None => (word, true),
        };
        let Some(bit) = TCP_FLAGS.iter().position(|flag| flag.eq_ignore_ascii_case(name)) else {
            return Err(Refused(None));
        };
        if mask & 1 << bit != 0 {
            return Err(Refused(Some(format!("{} is named twice", TCP_FLAGS[bit]))));
        }
        mask |= 1 << bit;
        value |= u8::from(set) << bit;
    }
    Ok(ByteSet::pattern(value, mask))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_first_and_last() {
        assert_eq!(address("10.0.0.0/8"), Ok((v4("10.0.0.0"), v4("10.255.255.255"))));
        assert_eq!(address("0.0.0.0/0"), Ok((v4("0.0.0.0"), v4("255.255.255.255"))));
        assert_eq!(address("10.1.2.3/32"), Ok((v4("10.1.2.3"), v4("10.1.2.3"))));
        assert_eq!(address("::/0"), Ok((v4("::"), IpAddr::from([0xffu8; 16]))));
        assert_eq!(address("fe80::/10").unwrap().1, v4("febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff"));
        assert_eq!(address("10.0.0.9-10.0.0.12"), Ok((v4("10.0.0.9"), v4("10.0.0.12"))));
    }

    #[test]
    fn bad_addresses_say_why() {
        let why = |text| address(text).unwrap_err().0.unwrap_or_default();
        assert_eq!(why("10.0.0.1/8"), "it has bits beyond its prefix: write 10.0.0.0/8");
        assert_eq!(why("10.0.0.0/33"), "a prefix here has at most 32 bits");
        assert_eq!(why("10.0.0.2-10.0.0.1"), "the range runs backwards: write 10.0.0.1-10.0.0.2");
        assert_eq!(why("10.0.0.2-::1"), "both ends of a range must be IPv4, or both IPv6");
        for text in ["", "10.0.0", "10.0.0.0/", "10.0.0.0/+8", "/8", "-", "10.0.0.0/8/8", "example.org"] {
            assert_eq!(address(text), Err(Refused(None)), "{text}");
        }
    }

    #[test]
    fn numbers_stay_in_their_fields() {
        assert_eq!((PORT.parse)("1024 - 65535"), Ok((1024, 65535)));
        assert_eq!((PORT.parse)("0x35"), Ok((53, 53)));
        assert_eq!((VLAN_ID.parse)("4096"), Err(Refused(None)));
        for text in ["", "-", "65536", "+5", "-5", "5-", "1-2-3", "99999999999999999999", "0x", "٥"] {
            assert_eq!((PORT.parse)(text), Err(Refused(None)), "{text}");
        }
    }

    #[test]
    fn code_points_have_names() {
        assert_eq!(dscp("ef"), Ok((46 << 2, 46 << 2 | 3)));
        assert_eq!(dscp("af41"), Ok((34 << 2, 34 << 2 | 3)));
        assert_eq!(dscp("cs1-cs2"), Ok((8 << 2, 16 << 2 | 3)));
        assert_eq!(dscp("af14"), Err(Refused(None)));
        assert_eq!(dscp("64"), Err(Refused(None)));
    }

    #[test]
    fn masks_hold_their_macs() {
        assert_eq!(mac("multicast").unwrap().mask.to_string(), "01:00:00:00:00:00");
        assert!(mac("02:00:5e:00:00:01/ff:ff:00:00:00:00").is_err());
        assert!(mac("02:00:00:00:00:00/ff:ff:00:00:00:00").is_ok());
    }

    #[test]
    fn flags_are_set_or_clear() {
        assert_eq!(tcp_flags("syn, !ACK"), Ok(ByteSet::pattern(0x02, 0x12)));
        assert_eq!(tcp_flags("syn,!syn"), Err(Refused(Some("syn is named twice".to_owned()))));
        assert_eq!(tcp_flags(""), Err(Refused(None)));
    }
}
