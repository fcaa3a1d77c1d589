//! A parent domain whose queues live in an arena, watched from outside.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use hugemem::{Arena, ArenaOptions, PageKind};
use verbs::{
    Allocation, AllocationRequest, Domain, DomainAllocator, ParentDomain, ProtectionDomain, ThreadDomain,
};

/// Answers from an arena, and notes what was asked.
struct ArenaAllocator {
    arena: Arc<Arena>,
    asked: Arc<Mutex<Vec<AllocationRequest>>>,
    refusing: Arc<AtomicBool>,
    /// Lives as long as the allocator, that is, as the parent domain.
    _alive: Arc<()>,
}

impl DomainAllocator for ArenaAllocator {
    fn allocate(&self, request: &AllocationRequest) -> Allocation {
        self.asked.lock().unwrap().push(*request);
        if self.refusing.load(Ordering::Relaxed) {
            return Allocation::Refused;
        }
        match self.arena.carve(request.bytes, request.align) {
            Some(block) => Allocation::Memory(Box::new(block)),
            None => Allocation::Refused,
        }
    }
}

/// A parent domain over an arena, and what can be seen of it from outside.
pub(crate) struct ArenaDomain {
    pub(crate) parent: Arc<ParentDomain>,
    pub(crate) arena: Arc<Arena>,
    pub(crate) asked: Arc<Mutex<Vec<AllocationRequest>>>,
    pub(crate) refusing: Arc<AtomicBool>,
    pub(crate) alive: Weak<()>,
}

impl ArenaDomain {
    pub(crate) fn new(pd: &Arc<ProtectionDomain>, thread: Option<&Arc<ThreadDomain>>) -> Self {
        let options = ArenaOptions { pages: vec![PageKind::Plain], ..ArenaOptions::new("test", 4 << 20) };
        let arena = Arena::map(&options).unwrap();
        let (asked, refusing, alive) = (Arc::default(), Arc::default(), Arc::new(()));
        let weak = Arc::downgrade(&alive);
        let allocator = ArenaAllocator {
            arena: Arc::clone(&arena),
            asked: Arc::clone(&asked),
            refusing: Arc::clone(&refusing),
            _alive: alive,
        };
        let parent = ParentDomain::new(pd, thread, Some(Box::new(allocator))).unwrap();
        Self { parent, arena, asked, refusing, alive: weak }
    }

    pub(crate) fn domain(&self) -> Domain {
        Domain::from(&self.parent)
    }
}
