//! The list of filters and contexts that are, or may be, ours. It is saved before a filter is inserted, so
//! that the next process finds those of one that was killed. An entry that is not on the interface, or has
//! changed there, means nothing.

use std::io;

use serde::{Deserialize, Serialize};

use crate::filter::Filter;
use crate::nic::ListedFilter;
use crate::wire_format;

/// A filter that may be ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerFilter {
    /// The location; `None`: the driver was about to choose one.
    pub location: Option<u32>,
    /// The filter.
    pub filter: Filter,
}

/// An RSS context that may be ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerContext {
    /// The number.
    pub context: u32,
    /// The indirection table.
    pub table: Vec<u32>,
}

/// The record of the filters and contexts that are, or may be, ours.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// The filters.
    #[serde(with = "filters")]
    pub filters: Vec<LedgerFilter>,
    /// The contexts.
    pub contexts: Vec<LedgerContext>,
}

impl Ledger {
    /// Returns whether nothing is ours.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.filters.is_empty() && self.contexts.is_empty()
    }

    /// Returns whether a filter on the interface is ours and unchanged.
    #[must_use]
    pub fn has(&self, listed: &ListedFilter) -> bool {
        let Ok(filter) = &listed.filter else { return false };
        let is_there = |location: Option<u32>| location.is_none_or(|location| location == listed.location);
        self.filters.iter().any(|ours| is_there(ours.location) && ours.filter == *filter)
    }
}

/// The place where the ledger is kept.
pub trait LedgerStore {
    /// Replaces the ledger as a whole; it is safe when this returns.
    ///
    /// # Errors
    /// It could not be written.
    fn save(&mut self, ledger: &Ledger) -> io::Result<()>;
}

/// Filters as the bytes that the kernel takes: the encoding that is tested, and one that later versions read.
mod filters {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{LedgerFilter, wire_format};

    #[derive(Serialize, Deserialize)]
    struct Entry {
        location: Option<u32>,
        /// The text of the filter, for people.
        filter: String,
        /// `struct ethtool_rxnfc` in hexadecimal.
        block: String,
    }

    pub(super) fn serialize<S: Serializer>(
        filters: &[LedgerFilter],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let entry = |ours: &LedgerFilter| Entry {
            location: ours.location,
            filter: ours.filter.to_string(),
            block: wire_format::encode(&ours.filter, ours.location)
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect(),
        };
        filters.iter().map(entry).collect::<Vec<_>>().serialize(serializer)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(
        deserializer: D,
    ) -> Result<Vec<LedgerFilter>, D::Error> {
        let entries = Vec::<Entry>::deserialize(deserializer)?;
        let filter = |entry: Entry| {
            let byte = |at: usize| u8::from_str_radix(entry.block.get(at * 2..at * 2 + 2)?, 16).ok();
            let mut block = [0; wire::RXNFC_BYTES];
            for (at, place) in block.iter_mut().enumerate() {
                *place = byte(at).ok_or_else(|| D::Error::custom("a filter is no block of bytes"))?;
            }
            let filter = wire_format::decode(&block).map_err(D::Error::custom)?;
            Ok(LedgerFilter { location: entry.location, filter })
        };
        entries.into_iter().map(filter).collect()
    }
}
