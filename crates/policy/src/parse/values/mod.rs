//! Single values as the language writes them. Pure functions of text, called for every item of a list, a
//! set or a set file; they know nothing of places or sets. Addresses are in `net`, flags in `flags`.

mod flags;
mod net;
pub(super) mod slips;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use packet::{EtherType, IpProtocol};
use program::{ByteSet, Fragments, MaskedMac, Word};

/// What a text is not, with a better hint than the kind's own where there is one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused(pub(super) Option<String>);

pub(super) type Parsed<T> = Result<T, Refused>;

/// One kind of value.
pub(super) trait Kind {
    /// What one of them becomes.
    type Value;

    /// With its article: `a port`.
    fn name(&self) -> &'static str;
    /// How to write one.
    fn hint(&self) -> &'static str;
    fn parse(&self, text: &str) -> Parsed<Self::Value>;
    /// What to write instead of a text that is none, where that can be told from the text.
    fn slip(&self, text: &str) -> Option<String>;
}

/// A kind with a way of reading of its own.
pub(super) struct Plain<T> {
    name: &'static str,
    hint: &'static str,
    parse: fn(&str) -> Parsed<T>,
    slip: fn(&str) -> Option<String>,
}

/// A kind of number, read as inclusive ranges.
pub(super) struct Numbers<T: 'static> {
    name: &'static str,
    hint: &'static str,
    /// The largest that the field holds.
    pub(super) most: T,
    /// The numbers that have names.
    named: fn(&str) -> Option<T>,
    slip: fn(&str) -> Option<String>,
}

impl<T> Kind for Plain<T> {
    type Value = T;

    fn name(&self) -> &'static str {
        self.name
    }

    fn hint(&self) -> &'static str {
        self.hint
    }

    fn parse(&self, text: &str) -> Parsed<T> {
        (self.parse)(text)
    }

    fn slip(&self, text: &str) -> Option<String> {
        (self.slip)(text)
    }
}

impl<T: Word> Kind for Numbers<T> {
    type Value = (T, T);

    fn name(&self) -> &'static str {
        self.name
    }

    fn hint(&self) -> &'static str {
        self.hint
    }

    fn parse(&self, text: &str) -> Parsed<(T, T)> {
        if let Some(number) = (self.named)(text) {
            return Ok((number, number));
        }
        let most = u64::try_from(self.most.wide()).unwrap_or(u64::MAX);
        let (low, high) = range(text, most)?;
        Ok((T::narrow(low.into()), T::narrow(high.into())))
    }

    fn slip(&self, text: &str) -> Option<String> {
        (self.slip)(text).or_else(|| slips::number(text, self.most.wide()))
    }
}

pub(super) const MAC: Plain<MaskedMac> = Plain {
    name: "a MAC address",
    hint: "write one like 02:00:5e:00:00:01, with a mask like 01:00:5e:00:00:00/ff:ff:ff:80:00:00, or multicast or broadcast",
    parse: net::mac,
    slip: slips::mac,
};

pub(super) const ADDRESS: Plain<(IpAddr, IpAddr)> = Plain {
    name: "an address",
    hint: "write one like 192.0.2.1, 192.0.2.0/24, 2001:db8::/32, or a range like 192.0.2.10-192.0.2.20",
    parse: net::address,
    slip: slips::address,
};

pub(super) const ETHER_TYPE: Numbers<u16> = Numbers {
    name: "an ethertype",
    hint: "write a name like arp, a number like 0x0806, or a range like 0-1500",
    most: u16::MAX,
    named: ether_type,
    slip: slips::ether_type,
};

pub(super) const VLAN_ID: Numbers<u16> = Numbers {
    name: "a VLAN id",
    hint: "write none, any, an id from 0 to 4095, or a range like 100-199",
    most: 0x0fff,
    named: |_| None,
    slip: slips::vlan,
};

pub(super) const VLAN_PRIORITY: Numbers<u8> = Numbers {
    name: "a VLAN priority",
    hint: "write a number from 0 to 7 or a range like 5-7",
    most: 7,
    named: |_| None,
    slip: |_| None,
};

pub(super) const PROTOCOL: Numbers<u8> = Numbers {
    name: "a protocol",
    hint: "write a name like tcp, a number from 0 to 255, or a range of numbers",
    most: u8::MAX,
    named: protocol,
    slip: slips::protocol,
};

pub(super) const TTL: Numbers<u8> = Numbers {
    name: "a time to live",
    hint: "write a number from 0 to 255 or a range like 1-64",
    most: u8::MAX,
    named: |_| None,
    slip: |_| None,
};

pub(super) const FLOW_LABEL: Numbers<u32> = Numbers {
    name: "a flow label",
    hint: "write a number from 0 to 0xfffff or a range",
    most: 0xf_ffff,
    named: |_| None,
    slip: |_| None,
};

pub(super) const PORT: Numbers<u16> = Numbers {
    name: "a port",
    hint: "write a number from 0 to 65535 or a range like 1024-65535",
    most: u16::MAX,
    named: |_| None,
    slip: slips::port,
};

pub(super) const SPI: Numbers<u32> = Numbers {
    name: "a security parameters index",
    hint: "write a number from 0 to 0xffffffff or a range",
    most: u32::MAX,
    named: |_| None,
    slip: |_| None,
};

pub(super) const SEQUENCE: Numbers<u32> = Numbers {
    name: "a sequence number",
    hint: "write a number from 0 to 0xffffffff or a range",
    most: u32::MAX,
    named: |_| None,
    slip: |_| None,
};

pub(super) const VNI: Numbers<u32> = Numbers {
    name: "a VXLAN network identifier",
    hint: "write a number from 0 to 0xffffff or a range like 5000-5999",
    most: 0xff_ffff,
    named: |_| None,
    slip: |_| None,
};

pub(super) const GRE_KEY: Numbers<u32> = Numbers {
    name: "a GRE key",
    hint: "write a number from 0 to 0xffffffff or a range",
    most: u32::MAX,
    named: |_| None,
    slip: |_| None,
};

pub(super) const LABEL: Numbers<u32> = Numbers {
    name: "an MPLS label",
    hint: "write a number from 0 to 1048575, a range, or a table like { label = 100, bottom = true }",
    most: 0xf_ffff,
    named: |_| None,
    slip: |_| None,
};

pub(super) const TRAFFIC_CLASS: Numbers<u8> = Numbers {
    name: "an MPLS traffic class",
    hint: "write a number from 0 to 7 or a range like 5-7",
    most: 7,
    named: |_| None,
    slip: |_| None,
};

pub(super) const TOS: Plain<ByteSet> = Plain {
    name: "a type of service",
    hint: "write a number from 0 to 255 or a range",
    parse: |text| range(text, 255).map(|(low, high)| bytes(low, high)),
    slip: |text| slips::number(text, 255),
};

pub(super) const DSCP: Plain<ByteSet> = Plain {
    name: "a DSCP",
    hint: "write a number from 0 to 63, a range, or a name like ef, af41 or cs6",
    parse: dscp,
    slip: slips::dscp,
};

pub(super) const ECN: Plain<ByteSet> = Plain {
    name: "an ECN codepoint",
    hint: "write not_ect, ect1, ect0, ce, a number from 0 to 3, or a range",
    parse: ecn,
    slip: slips::ecn,
};

pub(super) const FRAGMENT: Plain<Fragments> = Plain {
    name: "a kind of fragment",
    hint: "write any, none, first, later",
    parse: |text| match text {
        "any" => Ok(Fragments::PIECES),
        "none" => Ok(Fragments::WHOLE),
        "first" => Ok(Fragments::FIRST),
        "later" => Ok(Fragments::LATER),
        _ => Err(Refused(None)),
    },
    slip: slips::fragment,
};

pub(super) const TCP_FLAGS: Plain<ByteSet> = Plain {
    name: "a combination of TCP flags",
    hint: "write fin, syn, rst, psh, ack, urg, ece, cwr, with ! for \"not set\": \"syn,!ack\"",
    parse: flags::tcp,
    slip: slips::tcp_flags,
};

pub(super) const IP_FLAGS: Plain<ByteSet> = Plain {
    name: "a combination of IPv4 flags",
    hint: "write df, mf, reserved, with ! for \"not set\": \"df,!mf\"",
    parse: flags::ip,
    slip: slips::ip_flags,
};

pub(super) const GRE_FLAGS: Plain<ByteSet> = Plain {
    name: "a combination of GRE flags",
    hint: "write checksum, key, sequence, with ! for \"not there\": \"key,!checksum\"",
    parse: flags::gre,
    slip: slips::gre_flags,
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

/// A number, decimal or hexadecimal after `0x`. A decimal number with zeros before it is refused: `"0800"` is the
/// IPv4 ethertype to those who write it.
fn number(text: &str) -> Parsed<u64> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    // `from_str_radix` would also take a sign.
    if !digits.bytes().all(|digit| char::from(digit).is_digit(radix)) {
        return Err(Refused(None));
    }
    if radix == 10 && digits.len() > 1 && digits.starts_with('0') {
        let plain = digits.trim_start_matches('0');
        let plain = if plain.is_empty() { "0" } else { plain };
        return Err(Refused(Some(format!("write 0x{digits} in hexadecimal, or {plain}"))));
    }
    u64::from_str_radix(digits, radix).map_err(|_| Refused(None))
}

/// One number or two with a dash, none above `most`.
fn range(text: &str, most: u64) -> Parsed<(u64, u64)> {
    bounded(text, most, number)
}

/// The same with another way of reading the ends.
fn bounded(text: &str, most: u64, read: fn(&str) -> Parsed<u64>) -> Parsed<(u64, u64)> {
    let (low, high) = match text.split_once('-') {
        Some((low, high)) => (read(low.trim())?, read(high.trim())?),
        None => {
            let value = read(text)?;
            (value, value)
        }
    };
    if high > most || low > most {
        return Err(Refused(None));
    }
    if low > high {
        return Err(Refused(Some(format!("the range runs backwards: write {high}-{low}"))));
    }
    Ok((low, high))
}

/// The bytes of a range that is known to fit.
fn bytes(low: u64, high: u64) -> ByteSet {
    ByteSet::range(u8::narrow(low.into()), u8::narrow(high.into()))
}

fn ether_type(text: &str) -> Option<u16> {
    let EtherType(number) = text.parse().ok().filter(|_| !is_number(text))?;
    Some(number)
}

fn protocol(text: &str) -> Option<u8> {
    let IpProtocol(number) = text.parse().ok().filter(|_| !is_number(text))?;
    Some(number)
}

/// Whether it would be one: `packet` reads names and numbers alike.
fn is_number(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_digit())
}

/// A DSCP by number or name (RFC 2474, 2597, 3246) as the TOS values that carry it, whatever the ECN bits.
fn dscp(text: &str) -> Parsed<ByteSet> {
    let (low, high) = bounded(text, 63, dscp_point)?;
    Ok(bytes(low << 2, high << 2 | 3))
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
    let (low, high) = bounded(text, 3, |text| match text {
        "not_ect" => Ok(0),
        "ect1" => Ok(1),
        "ect0" => Ok(2),
        "ce" => Ok(3),
        _ => number(text),
    })?;
    Ok((0..=u8::MAX).filter(|tos| (low..=high).contains(&u64::from(tos & 3))).collect())
}
