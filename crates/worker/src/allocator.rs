//! Lets the driver put a worker's rings into the worker's own arena (ibv_alloc_parent_domain(3),
//! alloc/free). Called by the library while queues are created, never on the packet path.

use std::sync::{Arc, Mutex, PoisonError};

use hugemem::Arena;
use verbs::{Allocation, AllocationRequest, DomainAllocator};

use crate::Warning;

/// What the arena could not serve, shared with the worker that is being built.
pub(crate) type Shortfalls = Arc<Mutex<Vec<Warning>>>;

/// The parent domain's allocator. Holds the arena for as long as the domain lives.
pub(crate) struct ArenaAllocator {
    arena: Arc<Arena>,
    shortfalls: Shortfalls,
}

impl ArenaAllocator {
    pub(crate) fn new(arena: &Arc<Arena>) -> (Self, Shortfalls) {
        let shortfalls = Shortfalls::default();
        (Self { arena: Arc::clone(arena), shortfalls: Arc::clone(&shortfalls) }, shortfalls)
    }
}

impl DomainAllocator for ArenaAllocator {
    /// A full arena costs locality, not the worker: the driver then uses memory of its own.
    fn allocate(&self, request: &AllocationRequest) -> Allocation {
        match self.arena.carve(request.bytes, request.align) {
            Some(block) => Allocation::Memory(Box::new(block)),
            None => {
                let warning = Warning::OutsideArena { bytes: request.bytes };
                self.shortfalls.lock().unwrap_or_else(PoisonError::into_inner).push(warning);
                Allocation::UseDefault
            }
        }
    }
}
