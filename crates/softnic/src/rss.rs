//! Receive-side scaling: which receive queue of an RSS queue pair a frame goes to.
//!
//! The provider makes one [`Rss`] per RSS queue pair; the engine asks it once per delivery. It holds a copy of the
//! indirection table, which can only be created and destroyed, so a selection follows no pointer but its own. It never
//! looks at frame bytes and knows nothing of the state of the queues.

use packet::{FlowKey, HashFields, RssKey, Toeplitz};

/// The most entries of an indirection table.
pub(crate) const MAX_INDIRECTION_ENTRIES: usize = 1 << 11;

/// Why an RSS queue pair cannot be made: all of it is `EINVAL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RssError {
    /// The table's length is not a power of two in range.
    #[error("an indirection table has a power of two of up to {MAX_INDIRECTION_ENTRIES} entries, not {0}")]
    TableLength(usize),
    /// There is nothing to spread the frames by.
    #[error("a table of {0} entries needs at least one hash field")]
    NoFields(usize),
}

/// The hash and the indirection table of one RSS queue pair. `Q` names a receive queue.
#[derive(Clone)]
pub(crate) struct Rss<Q> {
    toeplitz: Toeplitz,
    fields: HashFields,
    /// Its length is a power of two.
    table: Box<[Q]>,
}

impl<Q: Copy> Rss<Q> {
    /// Prepares the hash for a table of queues.
    ///
    /// # Errors
    /// A table whose length is not a power of two in range, or one of several entries without hash fields.
    pub(crate) fn new(key: &RssKey, fields: HashFields, table: &[Q]) -> Result<Self, RssError> {
        let entries = table.len();
        if !entries.is_power_of_two() || entries > MAX_INDIRECTION_ENTRIES {
            return Err(RssError::TableLength(entries));
        }
        if fields.is_empty() && entries > 1 {
            return Err(RssError::NoFields(entries));
        }
        Ok(Self { toeplitz: Toeplitz::new(key), fields, table: table.into() })
    }

    /// The hash of a frame, 0 if it has none of the fields, and the queue that the hash points to.
    #[inline]
    pub(crate) fn select(&self, key: &FlowKey) -> (u32, Q) {
        let hash = self.toeplitz.hash_key(key, self.fields);
        (hash, self.table[hash as usize & (self.table.len() - 1)])
    }

    /// The indirection table.
    pub(crate) fn table(&self) -> &[Q] {
        &self.table
    }
}
