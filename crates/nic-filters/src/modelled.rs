//! A NIC for tests that has the filters of a model and behaves as its driver does: it refuses masks, kinds
//! and destinations that the model lacks, keeps the filters of others, is full at some point, and decides
//! packets.
//!
//! Clones are the same NIC, so one of them can go as a process that is killed does, without removing a
//! filter.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use packet::{Field, FlowKey};

use crate::filter::{Destination, Filter, FilterMatch};
use crate::model::{FilterModel, FilterOrder};
use crate::nic::{EEXIST, EINVAL, ENOENT, ENOSPC, EOPNOTSUPP, ListedFilter, NicError, NicFacts, NicFilters};

/// The decision of a NIC about a packet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NicDecision {
    /// No filter matches: the queues of the interface, and the kernel.
    Kernel,
    /// Dropped.
    Drop,
    /// One of these queues.
    Queues(BTreeSet<u32>),
}

/// The filters of a NIC by location.
pub(crate) type FilterTable = BTreeMap<u32, Filter>;

/// A NIC for tests.
#[derive(Clone, Debug)]
pub struct ModelledNic {
    state: Arc<Mutex<NicState>>,
}

#[derive(Debug)]
struct NicState {
    model: FilterModel,
    facts: NicFacts,
    filters: FilterTable,
    contexts: BTreeMap<u32, Vec<u32>>,
    /// The tables of all contexts that there ever were: a number is given once.
    tables: BTreeMap<u32, Vec<u32>>,
    /// The field whose bits the driver takes and does not compare.
    ignored: Option<Field>,
    /// Calls that change something are counted, and these fail.
    calls: usize,
    failing: BTreeSet<usize>,
    /// The table after each call that changed it.
    history: Vec<FilterTable>,
}

/// The size of the table of a model that has none.
const FILTERS: u32 = 64;
const CONTEXT_ENTRIES: u32 = 128;
/// The most contexts.
const CONTEXTS: usize = 8;

impl ModelledNic {
    /// A NIC of a model, with so many queues.
    #[must_use]
    pub fn new(model: FilterModel, queues: u32) -> Self {
        let facts = NicFacts {
            interface: "modelled0".to_owned(),
            driver: model.drivers.first().cloned().unwrap_or_default(),
            queues: Some(queues),
            filters: Some(model.filters.unwrap_or(FILTERS)),
            chooses_locations: model.driver_chooses_location,
            context_entries: model.has_contexts.then_some(CONTEXT_ENTRIES),
            is_on: Some(true),
        };
        let state = NicState {
            model,
            facts,
            filters: FilterTable::new(),
            contexts: BTreeMap::new(),
            tables: BTreeMap::new(),
            ignored: None,
            calls: 0,
            failing: BTreeSet::new(),
            history: Vec::new(),
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    fn lock(&self) -> MutexGuard<'_, NicState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a filter of somebody else there, past all checks; `None` removes it.
    pub fn place(&self, location: u32, filter: Option<Filter>) {
        let mut state = self.lock();
        match filter {
            Some(filter) => state.filters.insert(location, filter),
            None => state.filters.remove(&location),
        };
    }

    /// Loses all filters and contexts, as a driver does that is reset.
    pub fn reset(&self) {
        let mut state = self.lock();
        state.filters.clear();
        state.contexts.clear();
    }

    /// Changes the number of receive queues, as `ethtool -L` does.
    pub fn set_queues(&self, queues: u32) {
        self.lock().facts.queues = Some(queues);
    }

    /// Lets calls that change something fail: the n-th from now on, from 0.
    pub fn fail(&self, calls: impl IntoIterator<Item = usize>) {
        let mut state = self.lock();
        state.calls = 0;
        state.failing = calls.into_iter().collect();
    }

    /// Lets the driver take a field without comparing it.
    pub fn ignore(&self, field: Field) {
        self.lock().ignored = Some(field);
    }

    /// The number of calls that change something since [`ModelledNic::fail`].
    #[must_use]
    pub fn calls(&self) -> usize {
        self.lock().calls
    }

    /// The filters by location.
    #[must_use]
    pub fn filters(&self) -> BTreeMap<u32, Filter> {
        self.lock().filters.clone()
    }

    /// The tables of the RSS contexts.
    #[must_use]
    pub fn contexts(&self) -> BTreeMap<u32, Vec<u32>> {
        self.lock().contexts.clone()
    }

    /// The filters after each call that changed them, since the last time that this was asked.
    #[must_use]
    pub fn take_history(&self) -> Vec<BTreeMap<u32, Filter>> {
        std::mem::take(&mut self.lock().history)
    }

    /// The decisions that are possible for a packet under a table of filters: several where filters that
    /// match it differ and the NIC has no order.
    #[must_use]
    pub fn decisions(&self, filters: &BTreeMap<u32, Filter>, key: &FlowKey) -> BTreeSet<NicDecision> {
        let state = self.lock();
        let mut matching = filters.values().filter(|filter| filter.matches.matches(key)).peekable();
        let decision = |filter: &Filter| match filter.destination {
            Destination::Drop => NicDecision::Drop,
            Destination::Queue(queue) => NicDecision::Queues(BTreeSet::from([queue])),
            Destination::Context(context) => {
                NicDecision::Queues(state.tables.get(&context).into_iter().flatten().copied().collect())
            }
        };
        match (matching.peek(), state.model.order) {
            (None, _) => BTreeSet::from([NicDecision::Kernel]),
            (Some(first), FilterOrder::Location) => BTreeSet::from([decision(first)]),
            (Some(_), FilterOrder::None) => matching.map(decision).collect(),
        }
    }
}

impl NicState {
    fn error(&self, operation: &str, errno: i32) -> NicError {
        NicError {
            interface: self.facts.interface.clone(),
            operation: operation.to_owned(),
            source: io::Error::from_raw_os_error(errno),
        }
    }

    /// Counts a call, and fails if it is to fail.
    fn call(&mut self, operation: &str) -> Result<(), NicError> {
        const EIO: i32 = 5;
        self.calls += 1;
        if self.failing.contains(&(self.calls - 1)) { Err(self.error(operation, EIO)) } else { Ok(()) }
    }

    /// Returns whether the driver takes a filter for a location; the errno if it does not.
    fn check(&self, location: Option<u32>, filter: &Filter) -> Result<(), i32> {
        let model = &self.model;
        let matches = &filter.matches;
        if location.is_none() != model.driver_chooses_location {
            return Err(EINVAL);
        }
        if !model.kinds.contains(&matches.kind()) {
            return Err(EOPNOTSUPP);
        }
        for bits in matches.fields() {
            let row = model.row(bits.field).filter(|_| model.has_field(matches.kind(), bits.field));
            if !row.is_some_and(|row| row.mask.allows(bits)) {
                return Err(EOPNOTSUPP);
            }
        }
        let others = self.filters.iter().filter(|(at, _)| Some(**at) != location).map(|(_, filter)| filter);
        for other in others {
            if !model.takes_equal_matches && other.matches == *matches {
                return Err(EEXIST);
            }
            if model.one_mask && other.matches.shared_masks() != matches.shared_masks() {
                return Err(EINVAL);
            }
        }
        match filter.destination {
            Destination::Drop if !model.drops => Err(EOPNOTSUPP),
            Destination::Queue(queue) if self.facts.queues.is_some_and(|queues| queue >= queues) => {
                Err(EINVAL)
            }
            Destination::Context(context) if !self.contexts.contains_key(&context) => Err(EINVAL),
            _ => Ok(()),
        }
    }
}

impl NicFilters for ModelledNic {
    fn facts(&self) -> Result<NicFacts, NicError> {
        Ok(self.lock().facts.clone())
    }

    fn list(&self) -> Result<Vec<ListedFilter>, NicError> {
        let listed = |(location, filter): (u32, Filter)| ListedFilter { location, filter: Ok(filter) };
        Ok(self.filters().into_iter().map(listed).collect())
    }

    fn read(&self, location: u32) -> Result<Option<ListedFilter>, NicError> {
        Ok(self.list()?.into_iter().find(|listed| listed.location == location))
    }

    fn insert(&mut self, location: Option<u32>, filter: &Filter) -> Result<u32, NicError> {
        let mut state = self.lock();
        let operation = format!("inserting the filter \"{filter}\"");
        state.call(&operation)?;
        state.check(location, filter).map_err(|errno| state.error(&operation, errno))?;
        let size = state.facts.filters.unwrap_or(FILTERS);
        // Like fbnic, from the end.
        let chosen = || (0..size).rev().find(|location| !state.filters.contains_key(location));
        let location = location.filter(|location| *location < size).or_else(chosen);
        let location = location.ok_or_else(|| state.error(&operation, ENOSPC))?;
        let kept = filter.matches.fields().iter().filter(|bits| Some(bits.field) != state.ignored).copied();
        let matches = FilterMatch::new(filter.matches.kind(), kept);
        let taken = Filter { matches, destination: filter.destination };
        state.filters.insert(location, taken);
        let table = state.filters.clone();
        state.history.push(table);
        Ok(location)
    }

    fn remove(&mut self, location: u32) -> Result<(), NicError> {
        let mut state = self.lock();
        let operation = format!("removing the filter at location {location}");
        state.call(&operation)?;
        if state.filters.remove(&location).is_none() {
            return Err(state.error(&operation, ENOENT));
        }
        let table = state.filters.clone();
        state.history.push(table);
        Ok(())
    }

    fn create_context(&mut self, table: &[u32]) -> Result<u32, NicError> {
        let mut state = self.lock();
        let operation = "creating an RSS context";
        state.call(operation)?;
        let queues = state.facts.queues.unwrap_or(u32::MAX);
        if state.facts.context_entries != Some(table.len() as u32)
            || table.iter().any(|queue| *queue >= queues)
        {
            return Err(state.error(operation, EINVAL));
        }
        if state.contexts.len() == CONTEXTS {
            return Err(state.error(operation, ENOSPC));
        }
        let context = state.tables.len() as u32 + 1;
        state.contexts.insert(context, table.to_vec());
        state.tables.insert(context, table.to_vec());
        Ok(context)
    }

    fn context_table(&self, context: u32) -> Result<Option<Vec<u32>>, NicError> {
        Ok(self.lock().contexts.get(&context).cloned())
    }

    fn remove_context(&mut self, context: u32) -> Result<(), NicError> {
        let mut state = self.lock();
        let operation = format!("removing RSS context {context}");
        state.call(&operation)?;
        const EBUSY: i32 = 16;
        if state.filters.values().any(|filter| filter.destination == Destination::Context(context)) {
            return Err(state.error(&operation, EBUSY));
        }
        let removed = state.contexts.remove(&context);
        removed.map(|_| ()).ok_or_else(|| state.error(&operation, ENOENT))
    }
}
