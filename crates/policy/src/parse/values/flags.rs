//! Flag bits by name: those that must be set, and with `!` those that must not.

use packet::{Flag, GRE_FLAGS, IP_FLAGS, TCP_FLAGS};
use program::ByteSet;

use super::{Parsed, Refused};

pub(super) fn tcp(text: &str) -> Parsed<ByteSet> {
    let (value, mask) = pattern(text, &TCP_FLAGS)?;
    Ok(ByteSet::pattern(value, mask))
}

pub(super) fn ip(text: &str) -> Parsed<ByteSet> {
    let (value, mask) = pattern(text, &IP_FLAGS)?;
    Ok(ByteSet::pattern(value, mask).intersect(&ByteSet::range(0, 7)))
}

pub(super) fn gre(text: &str) -> Parsed<ByteSet> {
    let (value, mask) = pattern(text, &GRE_FLAGS)?;
    Ok(ByteSet::pattern(value, mask))
}

/// `syn,!ack` as a value and its mask.
fn pattern(text: &str, known: &[Flag]) -> Parsed<(u8, u8)> {
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
