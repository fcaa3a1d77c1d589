//! The Toeplitz hash of receive-side scaling, and its key.
//!
//! softnic prepares one [`Toeplitz`] per RSS queue pair and hashes with it on the packet path. `explain` of
//! `program` shares only the key: it predicts queues by a hash of its own, bit by bit, so that a mistake here
//! cannot hide in both. It knows nothing of indirection tables: those belong to who owns the queues.

use std::fmt;
use std::str::FromStr;

use crate::{DeepKey, FlowKey, HASH_INPUT_BYTES, HashFields, PacketTextError};

/// Length of an RSS key: enough for the 32-bit window at the last bit of the longest input.
pub const RSS_KEY_BYTES: usize = HASH_INPUT_BYTES + 4;

/// The key of a Toeplitz hash. Written as hexadecimal digits, with or without colons between octets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RssKey(pub [u8; RSS_KEY_BYTES]);

impl RssKey {
    /// The key of Microsoft's verification suite ("Verifying the RSS hash calculation", Windows driver
    /// documentation).
    pub const MICROSOFT: Self = Self([
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ]);

    /// 0x6d5a repeated: a key of period 16 bits hashes both directions of a connection alike, because
    /// swapping addresses or ports moves bits by multiples of 16 (Woo and Park, "Scalable TCP Session
    /// Monitoring", 2012).
    pub const SYMMETRIC: Self = {
        let mut octets = [0x6d; RSS_KEY_BYTES];
        let mut i = 1;
        while i < RSS_KEY_BYTES {
            octets[i] = 0x5a;
            i += 2;
        }
        Self(octets)
    };
}

impl Default for RssKey {
    fn default() -> Self {
        Self::MICROSOFT
    }
}

impl fmt::Display for RssKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|octet| write!(f, "{octet:02x}"))
    }
}

impl fmt::Debug for RssKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RssKey({self})")
    }
}

impl FromStr for RssKey {
    type Err = PacketTextError;

    fn from_str(text: &str) -> Result<Self, PacketTextError> {
        let fail = |reason: String| PacketTextError::RssKey { reason };
        let mut key = Self([0; RSS_KEY_BYTES]);
        let mut digits = text.bytes();
        for (i, octet) in key.0.iter_mut().enumerate() {
            // Either all colons are there or none, as the first gap decides.
            if i > 0 && text.as_bytes().get(2) == Some(&b':') && digits.next() != Some(b':') {
                return Err(fail(format!("a colon is missing after octet {i}")));
            }
            let (Some(high), Some(low)) = (digits.next(), digits.next()) else {
                return Err(fail(format!("this one ends after octet {i}")));
            };
            *octet = digit(high)
                .zip(digit(low))
                .map(|(high, low)| high << 4 | low)
                .ok_or_else(|| fail(format!("octet {} is not two hexadecimal digits", i + 1)))?;
        }
        match digits.len() {
            0 => Ok(key),
            extra => Err(fail(format!("this one goes on for {extra} characters more"))),
        }
    }
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

/// A key prepared for hashing: one table of 256 partial hashes per byte of input (36 KiB, of which an IPv4
/// packet touches 12 KiB). Measured against bitwise, nibble-table and carry-less-multiply forms, this is the
/// fastest for the 12 bytes of an IPv4 packet.
#[derive(Clone)]
pub struct Toeplitz {
    tables: Box<[[u32; 256]; HASH_INPUT_BYTES]>,
}

impl Toeplitz {
    /// Prepares `key`.
    pub fn new(key: &RssKey) -> Self {
        let mut tables = Box::new([[0; 256]; HASH_INPUT_BYTES]);
        for (table, window) in tables.iter_mut().zip(key.0.windows(5)) {
            let key_bits = window.iter().fold(0_u64, |bits, octet| bits << 8 | u64::from(*octet));
            for byte in 1..table.len() {
                // The partial hash of a byte is that of the byte without its lowest set bit, and the window
                // there.
                let place = byte.trailing_zeros();
                table[byte] = table[byte & (byte - 1)] ^ (key_bits >> (place + 1)) as u32;
            }
        }
        Self { tables }
    }

    /// The hash of `input`, 0 if that is empty. Bytes beyond the 36th do not count: the key has no 32 bits
    /// left there.
    #[inline]
    pub fn hash(&self, input: &[u8]) -> u32 {
        self.tables.iter().zip(input).fold(0, |hash, (table, byte)| hash ^ table[usize::from(*byte)])
    }

    /// The hash of those fields of `key` that `fields` selects and the packet has; 0 when it has none of
    /// them.
    #[inline]
    pub fn hash_key(&self, key: &FlowKey, fields: HashFields) -> u32 {
        let mut input = [0; HASH_INPUT_BYTES];
        let length = key.hash_input(fields, &mut input);
        self.hash_first(&input, length)
    }

    /// Hashes a packet as [`Toeplitz::hash_key`] does, with the fields that need a look into tunnels.
    pub fn hash_deep(&self, key: &DeepKey, fields: HashFields) -> u32 {
        let mut input = [0; HASH_INPUT_BYTES];
        let length = key.hash_input(fields, &mut input);
        self.hash_first(&input, length)
    }

    #[inline]
    fn hash_first(&self, input: &[u8; HASH_INPUT_BYTES], length: usize) -> u32 {
        // Constant lengths let the compiler unroll the usual cases.
        match length {
            8 => self.hash(&input[..8]),
            12 => self.hash(&input[..12]),
            32 => self.hash(&input[..32]),
            36 => self.hash(input),
            _ => self.hash(input.get(..length).unwrap_or_default()),
        }
    }
}

impl fmt::Debug for Toeplitz {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Toeplitz").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
