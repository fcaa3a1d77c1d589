//! The filters of an interface of the kernel.

use std::io;

use wire::{RuleCommand, RxFilterSocket, WireError};

use crate::filter::Filter;
use crate::nic::{EINVAL, ENOENT, EOPNOTSUPP, ListedFilter, NicError, NicFacts, NicFilters};
use crate::wire_format::{Block, block_of_location, decode, encode, location_of};

/// The filters of an interface of the kernel, by the ethtool ioctl.
#[derive(Debug)]
pub struct InterfaceFilters {
    name: String,
    socket: RxFilterSocket,
}

impl InterfaceFilters {
    /// Opens the filters of an interface that is up.
    ///
    /// # Errors
    /// There is no such interface, it is down, or it is not Ethernet.
    pub fn open(interface: &str) -> Result<Self, WireError> {
        Ok(Self { name: interface.to_owned(), socket: RxFilterSocket::open(interface)? })
    }

    /// The number of the interface in the kernel.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.socket.index()
    }

    /// The name of the driver; "?" if there is none.
    #[must_use]
    pub fn driver(&self) -> String {
        self.socket.driver().unwrap_or_else(|_| "?".to_owned())
    }

    fn error(&self, operation: impl Into<String>, source: io::Error) -> NicError {
        let interface = format!("{} (driver {})", self.name, self.driver());
        NicError { interface, operation: operation.into(), source }
    }
}

impl NicFilters for InterfaceFilters {
    fn facts(&self) -> Result<NicFacts, NicError> {
        let locations = self.socket.locations().map_err(|error| self.error("listing filters", error))?;
        Ok(NicFacts {
            interface: self.name.clone(),
            driver: self.driver(),
            queues: self.socket.queues().ok().filter(|queues| *queues > 0),
            filters: locations.size,
            chooses_locations: locations.takes_special,
            context_entries: self
                .socket
                .rss_sizes(0)
                .ok()
                .map(|sizes| sizes.table)
                .filter(|table| *table > 0),
            is_on: self.socket.is_on().ok().flatten(),
        })
    }

    fn list(&self) -> Result<Vec<ListedFilter>, NicError> {
        let locations = self.socket.locations().map_err(|error| self.error("listing filters", error))?;
        let mut listed = Vec::new();
        for location in locations.used {
            // Others may have removed it meanwhile.
            listed.extend(self.read(location)?);
        }
        listed.sort_by_key(|filter| filter.location);
        Ok(listed)
    }

    fn read(&self, location: u32) -> Result<Option<ListedFilter>, NicError> {
        let mut block = block_of_location(location);
        match self.socket.rule(RuleCommand::Read, &mut block) {
            Ok(()) => Ok(Some(ListedFilter { location, filter: decode(&block) })),
            // Drivers differ in their answer to a free location.
            Err(error) if matches!(error.raw_os_error(), Some(ENOENT | EINVAL)) => Ok(None),
            Err(error) => Err(self.error(format!("reading the filter at location {location}"), error)),
        }
    }

    fn insert(&mut self, location: Option<u32>, filter: &Filter) -> Result<u32, NicError> {
        let mut block: Block = encode(filter, location);
        match self.socket.rule(RuleCommand::Insert, &mut block) {
            Ok(()) => Ok(location.unwrap_or_else(|| location_of(&block))),
            Err(error) => Err(self.error(format!("inserting the filter \"{filter}\""), error)),
        }
    }

    fn remove(&mut self, location: u32) -> Result<(), NicError> {
        let mut block = block_of_location(location);
        let removed = self.socket.rule(RuleCommand::Remove, &mut block);
        removed.map_err(|error| self.error(format!("removing the filter at location {location}"), error))
    }

    fn create_context(&mut self, table: &[u32]) -> Result<u32, NicError> {
        self.socket.create_rss_context(table).map_err(|error| self.error("creating an RSS context", error))
    }

    fn context_table(&self, context: u32) -> Result<Option<Vec<u32>>, NicError> {
        match self.socket.rss_table(context) {
            Ok(table) => Ok(Some(table)),
            Err(error) if matches!(error.raw_os_error(), Some(ENOENT | EINVAL | EOPNOTSUPP)) => Ok(None),
            Err(error) => Err(self.error(format!("reading RSS context {context}"), error)),
        }
    }

    fn remove_context(&mut self, context: u32) -> Result<(), NicError> {
        let removed = self.socket.remove_rss_context(context);
        removed.map_err(|error| self.error(format!("removing RSS context {context}"), error))
    }
}
