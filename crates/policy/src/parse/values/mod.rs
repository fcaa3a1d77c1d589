//! Single values as the language writes them. Pure functions of text, called for every item of a list, a
//! set or a set file; they know nothing of places or sets. Addresses are in `net`, flags in `flags`.

mod flags;
mod net;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use packet::{EtherType, IpProtocol};

use crate::byte_set::ByteSet;
use crate::policy::{Fragments, MaskedMac};

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

/// A kind of number, as inclusive ranges.
pub(super) struct Numbers<T: 'static> {
    pub(super) kind: Kind<(T, T)>,
    /// The largest that the field holds.
    pub(super) most: T,
}

pub(super) const MAC: Kind<MaskedMac> = Kind {
    name: "a MAC address",
    hint: "write one like 02:00:5e:00:00:01, with a mask like 01:00:5e:00:00:00/ff:ff:ff:80:00:00, or multicast or broadcast",
    parse: net::mac,
};

pub(super) const ADDRESS: Kind<(IpAddr, IpAddr)> = Kind {
    name: "an address",
    hint: "write one like 192.0.2.1, 192.0.2.0/24, 2001:db8::/32, or a range like 192.0.2.10-192.0.2.20",
    parse: net::address,
};

pub(super) const ETHER_TYPE: Numbers<u16> = Numbers {
    kind: Kind {
        name: "an ethertype",
        hint: "write a name like arp, a number like 0x0806, or a range like 0-1500",
        parse: ether_type,
    },
    most: u16::MAX,
};

pub(super) const VLAN_ID: Numbers<u16> = Numbers {
    kind: Kind {
        name: "a VLAN id",
        hint: "write none, any, an id from 0 to 4095, or a range like 100-199",
        parse: |text| range(text, 0x0fff),
    },
    most: 0x0fff,
};

pub(super) const VLAN_PRIORITY: Numbers<u8> = Numbers {
    kind: Kind {
        name: "a VLAN priority",
        hint: "write a number from 0 to 7 or a range like 5-7",
        parse: |text| range(text, 7),
    },
    most: 7,
};

pub(super) const PROTOCOL: Numbers<u8> = Numbers {
    kind: Kind {
        name: "a protocol",
        hint: "write a name like tcp, a number from 0 to 255, or a range of numbers",
        parse: protocol,
    },
    most: u8::MAX,
};

pub(super) const TTL: Numbers<u8> = Numbers {
    kind: Kind {
        name: "a time to live",
        hint: "write a number from 0 to 255 or a range like 1-64",
        parse: |text| range(text, 255),
    },
    most: u8::MAX,
};

pub(super) const FLOW_LABEL: Numbers<u32> = Numbers {
    kind: Kind {
        name: "a flow label",
        hint: "write a number from 0 to 0xfffff or a range",
        parse: |text| range(text, 0xf_ffff),
    },
    most: 0xf_ffff,
};

pub(super) const PORT: Numbers<u16> = Numbers {
    kind: Kind {
        name: "a port",
        hint: "write a number from 0 to 65535 or a range like 1024-65535",
        parse: |text| range(text, 0xffff),
    },
    most: u16::MAX,
};

pub(super) const SPI: Numbers<u32> = Numbers {
    kind: Kind {
        name: "a security parameters index",
        hint: "write a number from 0 to 0xffffffff or a range",
        parse: |text| range(text, 0xffff_ffff),
    },
    most: u32::MAX,
};

pub(super) const SEQUENCE: Numbers<u32> = Numbers {
    kind: Kind {
        name: "a sequence number",
        hint: "write a number from 0 to 0xffffffff or a range",
        parse: |text| range(text, 0xffff_ffff),
    },
    most: u32::MAX,
};

pub(super) const VNI: Numbers<u32> = Numbers {
    kind: Kind {
        name: "a VXLAN network identifier",
        hint: "write a number from 0 to 0xffffff or a range like 5000-5999",
        parse: |text| range(text, 0xff_ffff),
    },
    most: 0xff_ffff,
};

pub(super) const GRE_KEY: Numbers<u32> = Numbers {
    kind: Kind {
        name: "a GRE key",
        hint: "write a number from 0 to 0xffffffff or a range",
        parse: |text| range(text, 0xffff_ffff),
    },
    most: u32::MAX,
};

pub(super) const LABEL: Numbers<u32> = Numbers {
    kind: Kind {
        name: "an MPLS label",
        hint: "write a number from 0 to 1048575, a range, or a table like { label = 100, bottom = true }",
        parse: |text| range(text, 0xf_ffff),
    },
    most: 0xf_ffff,
};

pub(super) const TRAFFIC_CLASS: Numbers<u8> = Numbers {
    kind: Kind {
        name: "an MPLS traffic class",
        hint: "write a number from 0 to 7 or a range like 5-7",
        parse: |text| range(text, 7),
    },
    most: 7,
};

pub(super) const TOS: Kind<ByteSet> = Kind {
    name: "a type of service",
    hint: "write a number from 0 to 255 or a range",
    parse: |text| range(text, 255).map(|(low, high)| ByteSet::range(low, high)),
};

pub(super) const DSCP: Kind<ByteSet> = Kind {
    name: "a DSCP",
    hint: "write a number from 0 to 63, a range, or a name like ef, af41 or cs6",
    parse: dscp,
};

pub(super) const ECN: Kind<ByteSet> = Kind {
    name: "an ECN codepoint",
    hint: "write not_ect, ect1, ect0, ce, a number from 0 to 3, or a range",
    parse: ecn,
};

pub(super) const FRAGMENT: Kind<Fragments> = Kind {
    name: "a kind of fragment",
    hint: "write any, none, first, later",
    parse: |text| match text {
        "any" => Ok(Fragments::PIECES),
        "none" => Ok(Fragments::WHOLE),
        "first" => Ok(Fragments::FIRST),
        "later" => Ok(Fragments::LATER),
        _ => Err(Refused(None)),
    },
};

pub(super) const TCP_FLAGS: Kind<ByteSet> = Kind {
    name: "a combination of TCP flags",
    hint: "write fin, syn, rst, psh, ack, urg, ece, cwr, with ! for \"not set\": \"syn,!ack\"",
    parse: flags::tcp,
};

pub(super) const IP_FLAGS: Kind<ByteSet> = Kind {
    name: "a combination of IPv4 flags",
    hint: "write df, mf, reserved, with ! for \"not set\": \"df,!mf\"",
    parse: flags::ip,
};

pub(super) const GRE_FLAGS: Kind<ByteSet> = Kind {
    name: "a combination of GRE flags",
    hint: "write checksum, key, sequence, with ! for \"not there\": \"key,!checksum\"",
    parse: flags::gre,
};

/// Words that are values somewhere; a set may not have such a name.
pub(super) fn is_keyword(name: &str) -> bool {
    matches!(name, "any" | "none" | "all" | "multicast" | "broadcast" | "kernel" | "drop" | "first" | "later")
        || name.parse::<EtherType>().is_ok()
        || name.parse::<IpProtocol>().is_ok()
        || dscp(name).is_ok()
        || ecn(name).is_ok()
        || flags::tcp(name).is_ok()
        || flags::ip(name).is_ok()
        || flags::gre(name).is_ok()
}

/// A number, decimal or hexadecimal after `0x`.
fn number(text: &str) -> Parsed<u64> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    // `from_str_radix` would also take a sign.
    if !digits.bytes().all(|digit| char::from(digit).is_digit(radix)) {
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
fn dscp(text: &str) -> Parsed<ByteSet> {
    let (low, high) = bounded::<u8>(text, 63, dscp_point)?;
    Ok(ByteSet::range(low << 2, high << 2 | 3))
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

/// An ECN codepoint (RFC 3168) as the TOS values that carry it, whatever the DSCP.
fn ecn(text: &str) -> Parsed<ByteSet> {
    let (low, high) = bounded::<u8>(text, 3, |text| match text {
        "not_ect" => Ok(0),
        "ect1" => Ok(1),
        "ect0" => Ok(2),
        "ce" => Ok(3),
        _ => number(text),
    })?;
    Ok((0..=u8::MAX).filter(|tos| (low..=high).contains(&(tos & 3))).collect())
}
