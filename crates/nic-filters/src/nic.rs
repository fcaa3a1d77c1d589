//! The filters of an interface, whatever is behind it.

use std::io;

use crate::filter::Filter;

/// The facts that an interface reports about its filters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicFacts {
    /// The name of the interface.
    pub interface: String,
    /// The kernel driver.
    pub driver: String,
    /// How many receive queues it has; `None`: the driver does not report them.
    pub queues: Option<u32>,
    /// The size of the table of filters, if the driver reports it.
    pub filters: Option<u32>,
    /// Whether the driver takes filters without a location.
    pub chooses_locations: bool,
    /// The entries of the table of an RSS context; `None`: there is none.
    pub context_entries: Option<u32>,
    /// Whether the filters are switched on; `None`: it is not known.
    pub is_on: Option<bool>,
}

impl NicFacts {
    /// The room for our filters beside so many of others.
    #[must_use]
    pub fn room(&self, foreign: usize) -> FilterRoom {
        let foreign = u32::try_from(foreign).unwrap_or(u32::MAX);
        FilterRoom {
            queues: self.queues,
            filters: self.filters.map(|filters| filters.saturating_sub(foreign)),
            context_entries: self.context_entries,
        }
    }
}

/// The room that a policy has on an interface; `None`: it is not known, and not checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterRoom {
    /// How many receive queues there are.
    pub queues: Option<u32>,
    /// How many filters the table holds; not known: as the model says. A policy that carves queues may have
    /// half of them, the other half is for a reload.
    pub filters: Option<u32>,
    /// The entries of the table of an RSS context.
    pub context_entries: Option<u32>,
}

/// A filter in the table of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedFilter {
    /// The location.
    pub location: u32,
    /// The filter; else what it has that this crate does not write, in a few words.
    pub filter: Result<Filter, String>,
}

impl std::fmt::Display for ListedFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.filter {
            Ok(filter) => write!(f, "location {}: {filter}", self.location),
            Err(what) => write!(f, "location {}: {what}", self.location),
        }
    }
}

/// A call that failed.
#[derive(Debug, thiserror::Error)]
#[error("{interface}: {operation} failed: {source}{}", hint(source))]
pub struct NicError {
    /// The interface.
    pub interface: String,
    /// The operation, as a noun.
    pub operation: String,
    /// The error.
    pub source: io::Error,
}

impl NicError {
    /// Returns whether the filter or context that the operation was about is not there.
    pub(crate) fn is_absence(&self) -> bool {
        self.source.raw_os_error() == Some(ENOENT)
    }

    /// Returns whether the interface is gone, and its filters with it.
    pub(crate) fn is_of_absent_interface(&self) -> bool {
        self.source.raw_os_error() == Some(ENODEV)
    }

    /// Returns whether the table has no room for one more filter.
    pub(crate) fn is_full(&self) -> bool {
        self.source.raw_os_error() == Some(ENOSPC)
    }

    /// Returns whether a driver has refused a filter because of its contents or its place, and would take
    /// another one.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self.source.raw_os_error(), Some(EINVAL | EOPNOTSUPP | ERANGE | EEXIST | ENOSPC))
    }
}

/// The remedy.
fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(EOPNOTSUPP) => {
            " (hint: the driver has no such filters, or they are off: `ethtool -K INTERFACE ntuple on`; groups with \
             workers need none)"
        }
        Some(EPERM | EACCES) => " (hint: filters need CAP_NET_ADMIN)",
        Some(ENOSPC) => " (hint: the table is full: remove filters of others, or write fewer rules)",
        _ => "",
    }
}

pub(crate) const EPERM: i32 = 1;
pub(crate) const ENOENT: i32 = 2;
pub(crate) const EACCES: i32 = 13;
pub(crate) const EEXIST: i32 = 17;
pub(crate) const ENODEV: i32 = 19;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const ENOSPC: i32 = 28;
pub(crate) const ERANGE: i32 = 34;
pub(crate) const EOPNOTSUPP: i32 = 95;

/// The filters and RSS contexts of one interface.
pub trait NicFilters {
    /// The facts that the interface reports.
    ///
    /// # Errors
    /// It has no filters, or is gone.
    fn facts(&self) -> Result<NicFacts, NicError>;

    /// All filters, also those of others, by location.
    ///
    /// # Errors
    /// The interface is gone, or a driver fails.
    fn list(&self) -> Result<Vec<ListedFilter>, NicError>;

    /// The filter at a location; `None`: there is none.
    ///
    /// # Errors
    /// The interface is gone, or a driver fails.
    fn read(&self, location: u32) -> Result<Option<ListedFilter>, NicError>;

    /// Inserts a filter; returns its location. At a location in use it takes the place of the filter there.
    /// `location`: `None` lets the driver choose.
    ///
    /// # Errors
    /// The driver refuses it.
    fn insert(&mut self, location: Option<u32>, filter: &Filter) -> Result<u32, NicError>;

    /// Removes the filter at a location.
    ///
    /// # Errors
    /// There is none, or the driver fails.
    fn remove(&mut self, location: u32) -> Result<(), NicError>;

    /// Creates an RSS context with this indirection table; returns its number.
    ///
    /// # Errors
    /// There are no contexts, or no more.
    fn create_context(&mut self, table: &[u32]) -> Result<u32, NicError>;

    /// The indirection table of a context; `None`: there is no such context.
    ///
    /// # Errors
    /// The interface is gone, or a driver fails.
    fn context_table(&self, context: u32) -> Result<Option<Vec<u32>>, NicError>;

    /// Removes a context.
    ///
    /// # Errors
    /// There is none, or filters use it.
    fn remove_context(&mut self, context: u32) -> Result<(), NicError>;
}
