//! Flag bits by name: those that must be set, and with `!` those that must not.

use crate::byte_set::ByteSet;

use super::{Parsed, Refused};

/// The bits of the TCP header's flags byte, RFC 9293 order.
const TCP: [(&str, u8); 8] = [
    ("fin", 0x01),
    ("syn", 0x02),
    ("rst", 0x04),
    ("psh", 0x08),
    ("ack", 0x10),
    ("urg", 0x20),
    ("ece", 0x40),
    ("cwr", 0x80),
];
/// The three bits of an IPv4 header as a number, RFC 791.
const IP: [(&str, u8); 3] = [("mf", 1), ("df", 2), ("reserved", 4)];
/// The upper byte of a GRE header's first word, RFC 2784 and 2890. A routing field (0x40) is of version 0 no longer.
const GRE: [(&str, u8); 3] = [("sequence", 0x10), ("key", 0x20), ("checksum", 0x80)];

pub(super) fn tcp(text: &str) -> Parsed<ByteSet> {
    let (value, mask) = pattern(text, &TCP)?;
    Ok(ByteSet::pattern(value, mask))
}

pub(super) fn ip(text: &str) -> Parsed<ByteSet> {
    let (value, mask) = pattern(text, &IP)?;
    Ok(ByteSet::pattern(value, mask).intersect(&ByteSet::range(0, 7)))
}

pub(super) fn gre(text: &str) -> Parsed<ByteSet> {
    let (value, mask) = pattern(text, &GRE)?;
    Ok(ByteSet::pattern(value, mask))
}

/// `syn,!ack` as a value and its mask.
fn pattern(text: &str, known: &[(&'static str, u8)]) -> Parsed<(u8, u8)> {
    let (mut value, mut mask) = (0, 0);
    for word in text.split(',').map(str::trim) {
        let (name, set) = match word.strip_prefix('!') {
            Some(name) => (name.trim(), false),
            None => (word, true),
        };
        let found = known.iter().find(|(flag, _)| flag.eq_ignore_ascii_case(name));
        let Some((flag, bit)) = found else { return Err(Refused(None)) };
        if mask & bit != 0 {
            return Err(Refused(Some(format!("{flag} is named twice"))));
        }
        mask |= bit;
        value |= if set { *bit } else { 0 };
    }
    Ok((value, mask))
}
