//! The settings of a link, and what follows from its name alone: the addresses of its ends.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use packet::MacAddr;
use serde::Deserialize;

/// The longest name of a link: what fits into the address of a socket with everything else.
const MAX_NAME_BYTES: usize = 40;

/// One end of a link.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig {
    /// The link's name, the same at both ends.
    pub name: LinkName,
    /// `a` or `b`: the ends differ in nothing else.
    pub end: LinkEnd,
}

/// Which end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum LinkEnd {
    /// The one that listens.
    A,
    /// The one that connects.
    B,
}

impl LinkEnd {
    /// `a` or `b`.
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            Self::A => 'a',
            Self::B => 'b',
        }
    }

    /// The end that the peer takes.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

impl FromStr for LinkEnd {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "a" => Ok(Self::A),
            "b" => Ok(Self::B),
            _ => Err(format!("`{text}` is no end of a link: write `a` or `b`")),
        }
    }
}

impl TryFrom<String> for LinkEnd {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// The name of a link: 1 to 40 letters, digits, `_`, `-` and `.`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct LinkName(String);

impl FromStr for LinkName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        if (1..=MAX_NAME_BYTES).contains(&text.len()) && text.bytes().all(plain) {
            return Ok(Self(text.to_owned()));
        }
        Err(format!(
            "a link's name has 1 to {MAX_NAME_BYTES} letters, digits, `_`, `-` and `.`; `{text}` is none"
        ))
    }
}

impl TryFrom<String> for LinkName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl Deref for LinkName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LinkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl LinkConfig {
    /// The station address of this end: locally administered, of the link's name and the end's letter.
    #[must_use]
    pub fn station(&self) -> MacAddr {
        // FNV-1a, folded: the links of one machine should differ, and a name's addresses stay the same.
        let hash = self
            .name
            .bytes()
            .fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        let [a, b, c, d] = hash.to_be_bytes();
        let end = match self.end {
            LinkEnd::A => 0x0a,
            LinkEnd::B => 0x0b,
        };
        MacAddr([0x02, 0x73, 0x6f, a ^ c, b ^ d, end])
    }
}
