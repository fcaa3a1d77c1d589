//! The Toeplitz hash of receive-side scaling, and its key.

use std::str::FromStr;

use crate::{Error, FlowKey, HASH_INPUT_BYTES, HashFields};

/// Length of an RSS key.
pub const RSS_KEY_BYTES: usize = 40;

/// The secret of a Toeplitz hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RssKey(pub [u8; RSS_KEY_BYTES]);

impl RssKey {
    /// The key of Microsoft's verification suite.
    pub const MICROSOFT: Self = Self([0; 40]);
    /// 0x6d5a repeated.
    pub const SYMMETRIC: Self = Self([0; 40]);
}

impl FromStr for RssKey {
    type Err = Error;
    fn from_str(_text: &str) -> Result<Self, Error> {
        todo!()
    }
}

impl std::fmt::Display for RssKey {
    fn fmt(&self, _f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        todo!()
    }
}

/// A key, prepared for hashing.
#[derive(Clone)]
pub struct Toeplitz {
    tables: Box<[[u32; 256]; HASH_INPUT_BYTES]>,
}

impl Toeplitz {
    /// Prepares `key`.
    pub fn new(key: &RssKey) -> Self {
        let _ = key;
        todo!()
    }
    /// The hash of `input`.
    pub fn hash(&self, input: &[u8]) -> u32 {
        let _ = (&self.tables, input);
        todo!()
    }
    /// The hash of the selected fields of `key`.
    pub fn hash_key(&self, key: &FlowKey, fields: HashFields) -> u32 {
        let _ = (key, fields);
        todo!()
    }
}
