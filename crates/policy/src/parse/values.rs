//! Single values: functions from the text of an item of a list, a set or a set file to its value. They do not
//! depend on places or sets.

pub(crate) mod hints;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packet::{EtherType, Field, Flag, Form, IpProtocol, MacAddr};
use program::{ByteSet, Fragments, MaskedMac, Word};

use crate::hint::ProblemHint;
use crate::policy::{MAX_LABEL, MAX_LABEL_CLASS};

/// A text that is not a value of a kind, with a better hint than the kind's own if there is one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused(pub(super) Option<ProblemHint>);

pub(super) type Parsed<T> = Result<T, Refused>;

/// One kind of value.
pub(super) trait Kind {
    /// The parsed form.
    type Value;

    /// The name with its article: `a port`.
    fn name(&self) -> &'static str;
    /// How to write a value.
    fn hint(&self) -> &'static str;
    fn parse(&self, text: &str) -> Parsed<Self::Value>;
    /// A hint for a text that is not a value, if the text suggests what was meant.
    fn hint_for(&self, text: &str) -> Option<ProblemHint>;
}

/// A kind with a function of its own.
pub(super) struct Plain<T> {
    name: &'static str,
    hint: &'static str,
    parse: fn(&str) -> Parsed<T>,
    hint_for: fn(&str) -> Option<ProblemHint>,
}

/// A kind of number, read as inclusive ranges.
pub(super) struct Numbers {
    name: &'static str,
    hint: &'static str,
    /// The largest that the field holds.
    pub(super) most: u32,
    form: Form,
}

/// Combinations of named bits, read as the values that have them.
pub(super) struct Flags {
    name: &'static str,
    hint: &'static str,
    known: &'static [Flag],
    /// The values that the field can have.
    pub(super) all: ByteSet,
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

    fn hint_for(&self, text: &str) -> Option<ProblemHint> {
        (self.hint_for)(text)
    }
}

impl Numbers {
    /// The values of a header field.
    pub(super) fn of(field: Field) -> Self {
        let row = field.row();
        Self { name: row.noun, hint: row.hint, most: field.max() as u32, form: row.form }
    }
}

impl Kind for Numbers {
    type Value = (u32, u32);

    fn name(&self) -> &'static str {
        self.name
    }

    fn hint(&self) -> &'static str {
        self.hint
    }

    fn parse(&self, text: &str) -> Parsed<(u32, u32)> {
        let named = match self.form {
            Form::EtherType => ether_type(text),
            Form::Protocol => protocol(text),
            _ => None,
        };
        if let Some(number) = named {
            return Ok((number, number));
        }
        let (low, high) = range(text, self.most.into())?;
        Ok((u32::narrow(low.into()), u32::narrow(high.into())))
    }

    fn hint_for(&self, text: &str) -> Option<ProblemHint> {
        let of_form = match self.form {
            Form::EtherType => hints::ether_type(text),
            Form::Protocol => hints::protocol(text),
            Form::VlanId => hints::vlan(text),
            Form::Port => hints::port(text),
            _ => None,
        };
        of_form.or_else(|| hints::number(text, self.most.into()))
    }
}

impl Flags {
    /// The values of a header field that has named bits.
    pub(super) fn of(field: Field) -> Option<Self> {
        let row = field.row();
        let Form::Flags(known) = row.form else { return None };
        let all = ByteSet::range(0, u8::narrow(field.max()));
        Some(Self { name: row.noun, hint: row.hint, known, all })
    }
}

impl Kind for Flags {
    type Value = ByteSet;

    fn name(&self) -> &'static str {
        self.name
    }

    fn hint(&self) -> &'static str {
        self.hint
    }

    fn parse(&self, text: &str) -> Parsed<ByteSet> {
        flags(text, self.known).map(|set| set.intersect(&self.all))
    }

    fn hint_for(&self, text: &str) -> Option<ProblemHint> {
        hints::flags(text, self.known)
    }
}

pub(super) const MAC: Plain<MaskedMac> = Plain {
    name: Field::DstMac.row().noun,
    hint: Field::DstMac.row().hint,
    parse: mac,
    hint_for: hints::mac,
};

pub(super) const ADDRESS: Plain<(IpAddr, IpAddr)> = Plain {
    name: Field::SrcV4.row().noun,
    hint: Field::SrcV4.row().hint,
    parse: address,
    hint_for: hints::address,
};

pub(super) const LABEL: Numbers = Numbers {
    name: "an MPLS label",
    hint: "write a number from 0 to 1048575, a range, or a table like { label = 100, bottom = true }",
    most: MAX_LABEL,
    form: Form::Number,
};

pub(super) const TRAFFIC_CLASS: Numbers = Numbers {
    name: "an MPLS traffic class",
    hint: "write a number from 0 to 7 or a range like 5-7",
    most: MAX_LABEL_CLASS,
    form: Form::Number,
};

pub(super) const DSCP: Plain<ByteSet> = Plain {
    name: "a DSCP",
    hint: "write a number from 0 to 63, a range, or a name like ef, af41 or cs6",
    parse: dscp,
    hint_for: hints::dscp,
};

pub(super) const ECN: Plain<ByteSet> = Plain {
    name: "an ECN codepoint",
    hint: "write not_ect, ect1, ect0, ce, a number from 0 to 3, or a range",
    parse: ecn,
    hint_for: hints::ecn,
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
    hint_for: hints::fragment,
};

/// Whether a word is a value of some key; a set may not have such a name.
pub(super) fn is_keyword(name: &str) -> bool {
    matches!(name, "any" | "none" | "all" | "multicast" | "broadcast" | "kernel" | "drop" | "first" | "later")
        || name.parse::<EtherType>().is_ok()
        || name.parse::<IpProtocol>().is_ok()
        || dscp(name).is_ok()
        || ecn(name).is_ok()
        || Field::all().filter_map(Flags::of).any(|kind| kind.parse(name).is_ok())
}

/// A number, decimal or hexadecimal after `0x`. A decimal number with leading zeros is refused: who writes
/// `"0800"` means the IPv4 ethertype.
fn number(text: &str) -> Parsed<u64> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    // `from_str_radix` also accepts a sign.
    if !digits.bytes().all(|digit| char::from(digit).is_digit(radix)) {
        return Err(Refused(None));
    }
    if radix == 10 && digits.len() > 1 && digits.starts_with('0') {
        let plain = digits.trim_start_matches('0');
        let plain = if plain.is_empty() { "0" } else { plain };
        return Err(Refused(Some(format!("write 0x{digits} in hexadecimal, or {plain}").into())));
    }
    u64::from_str_radix(digits, radix).map_err(|_| Refused(None))
}

/// One number or two with a dash, none above `most`.
fn range(text: &str, most: u64) -> Parsed<(u64, u64)> {
    bounded(text, most, number)
}

/// Reads a range as [`range`] does, with another function for the ends.
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
        let right = format!("{high}-{low}");
        return Err(Refused(Some(ProblemHint::word(
            format!("the range is reversed: write {right}"),
            text,
            &right,
        ))));
    }
    Ok((low, high))
}

/// The bytes of a range that is known to fit.
fn bytes(low: u64, high: u64) -> ByteSet {
    ByteSet::range(u8::narrow(low.into()), u8::narrow(high.into()))
}

fn ether_type(text: &str) -> Option<u32> {
    let EtherType(number) = text.parse().ok().filter(|_| !is_number(text))?;
    Some(number.into())
}

fn protocol(text: &str) -> Option<u32> {
    let IpProtocol(number) = text.parse().ok().filter(|_| !is_number(text))?;
    Some(number.into())
}

/// Whether it is a number; the parsers of `packet` accept names and numbers.
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

/// The bytes with the flags of `syn,!ack`: those that are set, and behind `!` those that are not.
fn flags(text: &str, known: &[Flag]) -> Parsed<ByteSet> {
    let (mut value, mut mask) = (0, 0);
    for word in text.split(',').map(str::trim) {
        let (name, set) = match word.strip_prefix('!') {
            Some(name) => (name.trim(), false),
            None => (word, true),
        };
        let found = known.iter().find(|(flag, _)| flag.eq_ignore_ascii_case(name));
        let Some((flag, bit)) = found else { return Err(Refused(None)) };
        if mask & bit != 0 {
            return Err(Refused(Some(format!("{flag} is given twice").into())));
        }
        mask |= bit;
        value |= if set { *bit } else { 0 };
    }
    Ok(ByteSet::pattern(value, mask))
}

fn mac(text: &str) -> Parsed<MaskedMac> {
    let (value, mask) = match text.split_once('/') {
        _ if text == "multicast" => return Ok(MaskedMac::MULTICAST),
        _ if text == "broadcast" => (MacAddr::BROADCAST, MacAddr::BROADCAST),
        None => (mac_address(text)?, MacAddr::BROADCAST),
        Some((value, mask)) => (mac_address(value)?, mac_address(mask)?),
    };
    if (0..6).any(|i| value.0[i] & !mask.0[i] != 0) {
        let kept = MacAddr(std::array::from_fn(|i| value.0[i] & mask.0[i]));
        let right = format!("{kept}/{mask}");
        return Err(Refused(Some(ProblemHint::word(
            format!("it has bits outside its mask: write {right}"),
            text,
            &right,
        ))));
    }
    Ok(MaskedMac { value, mask })
}

fn mac_address(text: &str) -> Parsed<MacAddr> {
    text.parse().map_err(|_| Refused(None))
}

/// An address, a prefix, or a range of addresses, as its first and last address. IPv4-mapped addresses are
/// refused: a list of them is one of IPv4 addresses. The prefix of all of them is not, which lists of invalid
/// addresses contain.
fn address(text: &str) -> Parsed<(IpAddr, IpAddr)> {
    let (first, last) = addresses(text)?;
    match mapped_range(first, last) {
        Some((low, high)) => {
            let right = as_written(text, low, high);
            let words = format!(
                "no packet has an IPv4-mapped address, which stands for IPv4 in programs only: write {right}"
            );
            Err(Refused(Some(ProblemHint::word(words, text, &right))))
        }
        None => Ok((first, last)),
    }
}

/// The IPv4 addresses of a range of IPv4-mapped ones that is refused, so not of all of them.
pub(crate) fn mapped_range(first: IpAddr, last: IpAddr) -> Option<(Ipv4Addr, Ipv4Addr)> {
    let range = (mapped(first)?, mapped(last)?);
    (range != (Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST)).then_some(range)
}

/// The IPv4 address that an IPv4-mapped IPv6 address stands for (RFC 4291, 2.5.5.2). Such addresses are for
/// the interface of programs and not for packets (RFC 6890, 2.2.3, "Forwardable: False").
fn mapped(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(v6) => v6.to_ipv4_mapped(),
    }
}

/// IPv4 addresses in the notation of a text: one, a prefix, or a range.
fn as_written(text: &str, low: Ipv4Addr, high: Ipv4Addr) -> String {
    let hosts = u32::from(low) ^ u32::from(high);
    if low == high {
        low.to_string()
    } else if text.contains('/') {
        format!("{low}/{}", hosts.leading_zeros())
    } else {
        format!("{low}-{high}")
    }
}

fn addresses(text: &str) -> Parsed<(IpAddr, IpAddr)> {
    if let Some((low, high)) = text.split_once('-') {
        let (low, high) = (ip(low.trim())?, ip(high.trim())?);
        return match (low, high) {
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {
                Err(Refused(Some("both ends of a range must be IPv4, or both IPv6".into())))
            }
            _ if low > high => {
                let right = format!("{high}-{low}");
                Err(Refused(Some(ProblemHint::word(
                    format!("the range is reversed: write {right}"),
                    text,
                    &right,
                ))))
            }
            _ => Ok((low, high)),
        };
    }
    let Some((address, length)) = text.split_once('/') else {
        let address = ip(text)?;
        return Ok((address, address));
    };
    let length = number(length).map_err(|_| Refused(None))?;
    let too_long = |most| Err(Refused(Some(format!("a prefix has at most {most} bits").into())));
    let written = ip(address)?;
    let (first, last) = match written {
        IpAddr::V4(_) if length > 32 => return too_long(32),
        IpAddr::V6(_) if length > 128 => return too_long(128),
        IpAddr::V4(v4) => {
            let host =
                u64::from(u32::MAX).checked_shr(u32::narrow(length.into())).map_or(0, |host| host as u32);
            let first = u32::from(v4) & !host;
            (IpAddr::from(Ipv4Addr::from(first)), IpAddr::from(Ipv4Addr::from(first | host)))
        }
        IpAddr::V6(v6) => {
            let host = u128::MAX.checked_shr(u32::narrow(length.into())).unwrap_or(0);
            let first = u128::from(v6) & !host;
            (IpAddr::from(Ipv6Addr::from(first)), IpAddr::from(Ipv6Addr::from(first | host)))
        }
    };
    if written != first {
        let right = format!("{first}/{length}");
        return Err(Refused(Some(ProblemHint::word(
            format!("it has bits beyond its prefix: write {right}"),
            text,
            &right,
        ))));
    }
    Ok((first, last))
}

fn ip(text: &str) -> Parsed<IpAddr> {
    text.parse().map_err(|_| Refused(None))
}
