//! `ibv_alloc_parent_domain` and `ibv_alloc_td`: the memory of queues.

use std::sync::{Arc, Mutex, PoisonError};

use hugemem::{Arena, ArenaOptions, PageKind};
use verbs::{
    Allocation, AllocationRequest, CompletionFields, CompletionQueue, Domain, DomainAllocator, ParentDomain,
    RawQueuePair, ThreadDomain, WorkQueue, WorkQueueFlags,
};

use crate::bench::{udp, unprepared};
use crate::endpoints::Receiver;
use crate::{Answer, Bench, Case, Expected, Failure, Needs, Outcome, Verb};

/// More than the queues of any case take.
const ARENA_BYTES: usize = 4 << 20;

const NONE: Answer = Answer::Refused(libc::EOPNOTSUPP);
const WHERE_THERE_ARE: Expected =
    Expected::WORKS.mlx4(NONE).because("rdma-core mlx4.c sets neither `alloc_parent_domain` nor `alloc_td`");

pub(crate) fn cases() -> Vec<Case> {
    use Verb::AllocParentDomain as V;
    let case = |row, run| Case::new(V, row, run).expect(WHERE_THERE_ARE);
    let new = "verbs::ParentDomain::new";
    let allocate = "verbs::DomainAllocator::allocate";
    vec![
        case(
            ["ibv_parent_domain_init_attr.pd", "a protection domain", new, "queues are created in it"],
            plain,
        ),
        case(
            [
                "ibv_td_init_attr.comp_mask",
                "0",
                "verbs::ThreadDomain::new",
                "the object is created and destroyed",
            ],
            thread,
        ),
        case(
            ["ibv_parent_domain_init_attr.td", "a thread domain", new, "queues are created in it"],
            threaded,
        ),
        case(["ibv_parent_domain_init_attr.td", "NULL", new, "queues are created without one"], plain),
        case(
            [
                "ibv_parent_domain_init_attr.comp_mask",
                "IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS",
                allocate,
                "the driver takes queue memory from the allocator",
            ],
            asked,
        ),
        case(
            [
                "ibv_parent_domain_init_attr.pd_context",
                "IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT",
                "verbs::DomainAllocator",
                "each of two domains uses its own allocator",
            ],
            context_comes_back,
        ),
        case(
            [
                "ibv_parent_domain_init_attr.alloc",
                "size",
                "verbs::AllocationRequest::bytes",
                "the requested size grows with the queue",
            ],
            sizes,
        ),
        case(
            [
                "ibv_parent_domain_init_attr.alloc",
                "alignment",
                "verbs::AllocationRequest::align",
                "a power of two each time",
            ],
            alignments,
        ),
        case(
            [
                "ibv_parent_domain_init_attr.alloc",
                "resource_type",
                "verbs::AllocationRequest::resource_type",
                "completion queue, work queue and queue pair differ in type, with the same driver id",
            ],
            resource_types,
        ),
        case(
            [
                "ibv_parent_domain_init_attr.alloc",
                "IBV_ALLOCATOR_USE_DEFAULT",
                "verbs::Allocation::UseDefault",
                "the provider uses its own memory; free is not called",
            ],
            use_default,
        ),
        case(
            [
                "ibv_parent_domain_init_attr.alloc",
                "NULL: a completion queue",
                "verbs::Allocation::Refused",
                "the queue is not created: ENOMEM",
            ],
            refuse_cq,
        )
        .expect(SILENT),
        case(
            [
                "ibv_parent_domain_init_attr.alloc",
                "NULL: a work queue",
                "verbs::Allocation::Refused",
                "the queue is not created: ENOMEM",
            ],
            refuse_wq,
        )
        .expect(REFUSED),
        case(
            [
                "ibv_parent_domain_init_attr.alloc",
                "NULL: a queue pair",
                "verbs::Allocation::Refused",
                "the queue pair is not created: ENOMEM",
            ],
            refuse_qp,
        )
        .expect(SILENT),
        case(
            [
                "ibv_parent_domain_init_attr.free",
                "each queue",
                "verbs::ParentDomain::outstanding_allocations",
                "all memory is returned, once, when the queue is destroyed",
            ],
            freed,
        ),
        case(
            [
                "ibv_parent_domain_init_attr.pd",
                "raw packets received in its memory",
                "verbs::CompletionQueueBuilder::domain",
                "a packet is received through queues in the allocator's memory",
            ],
            traffic,
        )
        .needs(Needs::Frames),
        case(
            [
                "ibv_parent_domain_init_attr.pd",
                "destroyed while in use (EBUSY in C)",
                "verbs::Domain",
                "a queue keeps its domain: memory is not returned until the queue is destroyed",
            ],
            kept,
        ),
    ]
}

/// The allocator's refusal is the verb's ENOMEM (ibv_alloc_parent_domain(3)).
const REFUSED: Expected =
    Expected::refused(libc::ENOMEM, "ibv_alloc_parent_domain(3): NULL fails the verb; mlx4 has none at all")
        .mlx4(NONE);

const SILENT: Expected = REFUSED
    .mlx5(Answer::Differs)
    .because("ibv_alloc_parent_domain(3): NULL fails the verb; rdma-core mlx5 verbs.c, `create_cq` and `create_qp`: refused without an errno; mlx4 has none at all");

/// The answer that an allocator is to give.
enum Give {
    /// Memory like that of the workers' queues: zeroed, and not shared with a child after `fork`.
    Memory(Arc<Arena>),
    Default,
    Nothing,
}

impl Give {
    fn memory() -> Result<Self, Failure> {
        let options =
            ArenaOptions { pages: vec![PageKind::Plain], ..ArenaOptions::new("conformance", ARENA_BYTES) };
        Arena::map(&options).map(Self::Memory).map_err(|error| Failure::Differs(format!("no arena: {error}")))
    }
}

/// A parent domain, and what was asked of its allocator.
struct Watched {
    domain: Arc<ParentDomain>,
    asked: Arc<Mutex<Vec<AllocationRequest>>>,
}

struct Watching {
    give: Give,
    asked: Arc<Mutex<Vec<AllocationRequest>>>,
}

impl DomainAllocator for Watching {
    fn allocate(&self, request: &AllocationRequest) -> Allocation {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(*request);
        match &self.give {
            Give::Nothing => Allocation::Refused,
            Give::Default => Allocation::UseDefault,
            Give::Memory(arena) => match arena.carve(request.bytes, request.align) {
                Some(block) => Allocation::Memory(Box::new(block)),
                None => Allocation::Refused,
            },
        }
    }
}

impl Watched {
    fn new(bench: &Bench<'_>, give: Give) -> Result<Self, Failure> {
        let asked = Arc::default();
        let watching = Watching { give, asked: Arc::clone(&asked) };
        let domain = ParentDomain::new(&bench.pd, None, Some(Box::new(watching)))?;
        Ok(Self { domain, asked })
    }

    fn giving(bench: &Bench<'_>) -> Result<Self, Failure> {
        Self::new(bench, Give::memory()?)
    }

    fn domain(&self) -> Domain {
        Domain::from(&self.domain)
    }

    /// The requests since the last call.
    fn asked(&self) -> Vec<AllocationRequest> {
        std::mem::take(&mut self.asked.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn completion_queue(&self, bench: &Bench<'_>, entries: u32) -> verbs::Result<CompletionQueue> {
        CompletionQueue::builder(&bench.context, entries).domain(&self.domain).build()
    }
}

fn plain(bench: &Bench<'_>) -> Outcome {
    let domain = ParentDomain::new(&bench.pd, None, None)?;
    let cq = CompletionQueue::builder(&bench.context, 16).build().map_err(unprepared)?;
    queues_in(&Domain::from(&domain), &cq)
}

/// A work queue and a queue pair.
fn queues_in(domain: &Domain, cq: &CompletionQueue) -> Outcome {
    WorkQueue::builder(domain, &cq.handle()).build()?;
    RawQueuePair::builder(domain, &cq.handle(), &cq.handle()).build()?;
    Ok(())
}

fn thread(bench: &Bench<'_>) -> Outcome {
    ThreadDomain::new(&bench.context)?;
    Ok(())
}

fn threaded(bench: &Bench<'_>) -> Outcome {
    let thread = ThreadDomain::new(&bench.context)?;
    let domain = ParentDomain::new(&bench.pd, Some(&thread), None)?;
    let cq = CompletionQueue::builder(&bench.context, 16).domain(&domain).build()?;
    queues_in(&Domain::from(&domain), &cq)
}

fn asked(bench: &Bench<'_>) -> Outcome {
    let watched = Watched::giving(bench)?;
    let cq = watched.completion_queue(bench, 64)?;
    ensure!(!watched.asked().is_empty(), "nothing was asked for a completion queue");
    WorkQueue::builder(&watched.domain(), &cq.handle()).max_receives(64).build()?;
    ensure!(!watched.asked().is_empty(), "nothing was asked for a work queue");
    RawQueuePair::builder(&watched.domain(), &cq.handle(), &cq.handle()).build()?;
    ensure!(!watched.asked().is_empty(), "nothing was asked for a queue pair");
    Ok(())
}

fn context_comes_back(bench: &Bench<'_>) -> Outcome {
    let (one, other) = (Watched::giving(bench)?, Watched::giving(bench)?);
    let _cq = one.completion_queue(bench, 64)?;
    ensure!(!one.asked().is_empty() && other.asked().is_empty(), "the wrong allocator was asked");
    let _cq = other.completion_queue(bench, 64)?;
    ensure!(one.asked().is_empty() && !other.asked().is_empty(), "the wrong allocator was asked");
    Ok(())
}

fn sizes(bench: &Bench<'_>) -> Outcome {
    let watched = Watched::giving(bench)?;
    let largest = |entries| -> Result<usize, Failure> {
        watched.completion_queue(bench, entries)?;
        Ok(watched.asked().iter().map(|request| request.bytes).max().unwrap_or(0))
    };
    let (small, large) = (largest(64)?, largest(4096)?);
    ensure!(small > 0 && large > small, "{small} bytes for 64 entries, {large} for 4096");
    Ok(())
}

fn alignments(bench: &Bench<'_>) -> Outcome {
    let watched = Watched::giving(bench)?;
    let cq = watched.completion_queue(bench, 64)?;
    queues_in(&watched.domain(), &cq)?;
    for request in watched.asked() {
        ensure!(request.align.is_power_of_two(), "{request:?}");
    }
    Ok(())
}

fn resource_types(bench: &Bench<'_>) -> Outcome {
    let watched = Watched::giving(bench)?;
    let cq = watched.completion_queue(bench, 64)?;
    let for_cq = watched.asked();
    let _wq = WorkQueue::builder(&watched.domain(), &cq.handle()).max_receives(64).build()?;
    let for_wq = watched.asked();
    let _qp = RawQueuePair::builder(&watched.domain(), &cq.handle(), &cq.handle()).build()?;
    let for_qp = watched.asked();
    // Doorbell records are a resource of their own, which every kind of queue has.
    let largest = |asked: &[AllocationRequest]| asked.iter().max_by_key(|request| request.bytes).copied();
    let (Some(cq), Some(wq), Some(qp)) = (largest(&for_cq), largest(&for_wq), largest(&for_qp)) else {
        return Err(Failure::Differs("some queue asked for nothing".into()));
    };
    let codes = [cq.vendor_code(), wq.vendor_code(), qp.vendor_code()];
    let distinct = codes[0] != codes[1] && codes[1] != codes[2] && codes[0] != codes[2];
    ensure!(distinct, "the codes are {codes:?}");
    let drivers = [cq.driver_id(), wq.driver_id(), qp.driver_id()];
    ensure!(drivers.iter().all(|driver| *driver == drivers[0]), "the drivers are {drivers:?}");
    Ok(())
}

fn use_default(bench: &Bench<'_>) -> Outcome {
    let watched = Watched::new(bench, Give::Default)?;
    let cq = watched.completion_queue(bench, 64)?;
    queues_in(&watched.domain(), &cq)?;
    ensure!(!watched.asked().is_empty(), "the allocator was not called");
    ensure!(watched.domain.outstanding_allocations() == 0, "something was given");
    Ok(())
}

fn refuse_cq(bench: &Bench<'_>) -> Outcome {
    Watched::new(bench, Give::Nothing)?.completion_queue(bench, 64)?;
    Ok(())
}

/// A domain whose allocator has nothing, and a completion queue that did not need it.
fn empty(bench: &Bench<'_>) -> Result<(Watched, CompletionQueue), Failure> {
    let watched = Watched::new(bench, Give::Nothing)?;
    let cq = CompletionQueue::builder(&bench.context, 64).build().map_err(unprepared)?;
    Ok((watched, cq))
}

fn refuse_wq(bench: &Bench<'_>) -> Outcome {
    let (watched, cq) = empty(bench)?;
    WorkQueue::builder(&watched.domain(), &cq.handle()).build()?;
    Ok(())
}

fn refuse_qp(bench: &Bench<'_>) -> Outcome {
    let (watched, cq) = empty(bench)?;
    RawQueuePair::builder(&watched.domain(), &cq.handle(), &cq.handle()).build()?;
    Ok(())
}

fn freed(bench: &Bench<'_>) -> Outcome {
    let watched = Watched::giving(bench)?;
    let count = || watched.domain.outstanding_allocations();
    let cq = watched.completion_queue(bench, 64)?;
    let with_cq = count();
    let wq = WorkQueue::builder(&watched.domain(), &cq.handle()).build()?;
    let qp = RawQueuePair::builder(&watched.domain(), &cq.handle(), &cq.handle()).build()?;
    ensure!(with_cq > 0 && count() > with_cq, "{with_cq} blocks, then {}", count());
    drop((wq, qp));
    ensure!(count() == with_cq, "{} blocks are left instead of {with_cq}", count());
    drop(cq);
    ensure!(count() == 0, "{} blocks are left", count());
    Ok(())
}

fn traffic(bench: &Bench<'_>) -> Outcome {
    let watched = Watched::giving(bench)?;
    let cq = CompletionQueue::builder(&bench.context, 128).fields(CompletionFields::BYTE_LEN);
    let cq = cq.domain(&watched.domain).build()?;
    let mut receiver = Receiver::with(bench, &watched.domain(), cq, WorkQueueFlags::empty())?;
    let _flow = receiver.flow(&bench.flow())?;
    let sent = [udp(1, 2), udp(3, 4)];
    bench.deliver(sent.clone());
    let came = receiver.frames()?;
    ensure!(came == sent, "{} frames came, or others", came.len());
    Ok(())
}

fn kept(bench: &Bench<'_>) -> Outcome {
    let Watched { domain, asked } = Watched::giving(bench)?;
    let cq = CompletionQueue::builder(&bench.context, 64).domain(&domain).build()?;
    let weak = Arc::downgrade(&domain);
    drop(domain);
    ensure!(weak.upgrade().is_some(), "the domain went before its queue");
    drop(cq);
    ensure!(weak.upgrade().is_none(), "the domain stayed behind its queue");
    ensure!(Arc::strong_count(&asked) == 1, "the allocator stayed behind its domain");
    Ok(())
}
