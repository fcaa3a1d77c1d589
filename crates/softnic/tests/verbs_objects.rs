//! Objects of the verbs API on a real soft NIC through the unmodified libibverbs: what they answer, whose memory they
//! live in, and that they can be dropped in any order.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod verbs_support;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use hugemem::{Arena, ArenaOptions, PageKind};
use verbs::{
    Access, Allocation, AllocationRequest, CompletionQueue, Counters, DeviceList, Domain, DomainAllocator,
    Error, Flow, FlowSpec, FlowTarget, FramePool, Guid, HashConfig, HashFields, IndirectionTable, LinkLayer,
    MemoryRegion, ParentDomain, PortNumber, PortState, ProtectionDomain, Provider, RawQueuePair,
    RssQueuePair, SendFlags, ThreadDomain, WorkQueue,
};
use verbs_support::*;

#[test]
fn a_provider_lists_its_device_and_the_context_outlives_the_list() {
    let rig = Rig::new();
    let list = DeviceList::of(&rig.nic).unwrap();
    let names: Vec<_> = list.iter().map(|device| device.name().to_owned()).collect();
    assert_eq!(names, ["softnic0"]);
    assert!(list.find("softnic1").is_none());
    let device = list.find("softnic0").unwrap();
    assert_eq!(device.guid(), Guid(0), "without sysfs there is no GUID");
    let context = device.open().unwrap();
    drop(list);
    assert_eq!(context.name(), "softnic0");
    assert!(context.attributes().is_ok());
}

#[test]
fn the_systems_own_devices_are_those_of_the_kernel() {
    let in_kernel: Vec<String> = std::fs::read_dir("/sys/class/infiniband")
        .map(|entries| entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect())
        .unwrap_or_default();
    match DeviceList::system() {
        Ok(list) => {
            let listed: Vec<_> = list.iter().map(|device| device.name().to_owned()).collect();
            assert!(listed.iter().all(|name| in_kernel.contains(name)), "{listed:?} of {in_kernel:?}");
            assert_eq!(listed.is_empty(), in_kernel.is_empty(), "{in_kernel:?}");
        }
        Err(error) => {
            assert!(in_kernel.is_empty(), "{error} with {in_kernel:?}");
            assert_eq!(error.errno(), Some(libc::ENOSYS));
            assert!(error.to_string().contains("the kernel has no RDMA support loaded"), "{error}");
        }
    }
}

#[test]
fn the_device_says_what_it_can_do() {
    let attributes = Rig::new().context.attributes().unwrap();
    assert!(attributes.fw_ver.starts_with("softnic"), "{}", attributes.fw_ver);
    assert_eq!(attributes.physical_ports, 1);
    assert!(attributes.rss_caps.raw_packet && attributes.rss_caps.toeplitz);
    assert!(attributes.rss_caps.max_table_size >= 128);
    assert!(attributes.rss_caps.fields.contains(HashFields::SRC_IPV4 | HashFields::DST_PORT_UDP));
    assert!(attributes.max_wq_type_rq > 0 && attributes.max_cqe > 0 && attributes.hca_core_clock_khz > 0);
    assert_ne!(attributes.completion_timestamp_mask, 0);
}

#[test]
fn a_port_has_a_state_and_a_missing_port_an_error() {
    let rig = Rig::new();
    let port = rig.context.port(PORT).unwrap();
    assert_eq!((port.state, port.link_layer), (PortState::Active, LinkLayer::Ethernet));
    assert_eq!(port.active_mtu_bytes, Some(1024));
    let error = rig.context.port(PortNumber(9)).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EINVAL));
    assert!(error.to_string().contains("port 9 of softnic0"), "{error}");
    assert!(error.to_string().ends_with("the device has no such port"), "{error}");
}

#[test]
fn the_clock_runs() {
    let rig = Rig::new();
    let before = rig.context.raw_clock().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(2));
    assert!(rig.context.raw_clock().unwrap() > before);
}

#[test]
fn a_quiet_device_has_no_events_and_nobody_waits_for_one() {
    let rig = Rig::new();
    assert_eq!(rig.context.async_event().unwrap(), None);
    assert!(!readable(&rig.context));
}

#[test]
fn queues_live_in_their_parent_domains_memory_and_give_it_back() {
    let rig = Rig::new();
    let thread = ThreadDomain::new(&rig.context).unwrap();
    let home = ArenaDomain::new(&rig.pd, Some(&thread));
    let domain = home.domain();
    let empty = home.arena.free_bytes();

    let cq =
        CompletionQueue::builder(&rig.context, 64).single_threaded(true).domain(&domain).build().unwrap();
    let (queue, receives) = WorkQueue::builder(&domain, &cq.handle()).max_receives(32).build().unwrap();
    let raw = RawQueuePair::builder(&domain, &cq.handle(), &cq.handle()).max_sends(16).build().unwrap();
    let asked = home.asked.lock().unwrap().clone();
    let kinds: Vec<u64> = asked.iter().map(|request| request.resource_type).collect();
    for kind in [
        softnic::resource::COMPLETION_QUEUE,
        softnic::resource::WORK_QUEUE,
        softnic::resource::SEND_QUEUE,
        softnic::resource::DOORBELL,
    ] {
        assert!(kinds.contains(&kind), "{kinds:x?} lacks {kind:x}");
    }
    assert!(asked.iter().all(|request| request.bytes > 0 && request.align.is_power_of_two()), "{asked:?}");
    assert_eq!(home.parent.outstanding_allocations(), asked.len());
    assert!(home.arena.free_bytes() < empty);

    drop((raw, queue, receives, cq));
    assert_eq!(home.parent.outstanding_allocations(), 0);
    assert_eq!(home.arena.free_bytes(), empty);
}

#[test]
fn memory_is_not_opened_to_the_network() {
    let rig = Rig::new();
    let remote_write = Access::from_bits_retain(2);
    let error = MemoryRegion::register(&rig.domain(), vec![0u8; 4096], Access::LOCAL_WRITE | remote_write);
    assert_eq!(error.err().and_then(|error| error.errno()), Some(libc::EINVAL));
    let access = Access::LOCAL_WRITE | Access::RELAXED_ORDERING;
    assert!(MemoryRegion::register(&rig.domain(), vec![0u8; 4096], access).is_ok());
}

#[test]
fn packet_memory_does_not_come_from_the_queues_allocator() {
    let rig = Rig::new();
    let home = ArenaDomain::new(&rig.pd, None);
    let pool = pool(&home.domain(), 8, 2048);
    assert_eq!(pool.frame_count(), 8);
    assert_eq!(home.asked.lock().unwrap().len(), 0);
}

#[test]
fn a_refused_allocation_fails_the_verb_with_enomem_and_leaves_nothing() {
    let rig = Rig::new();
    let home = ArenaDomain::new(&rig.pd, None);
    let domain = home.domain();
    let cq = CompletionQueue::builder(&rig.context, 64).domain(&domain).build().unwrap();
    let before = home.parent.outstanding_allocations();
    home.refusing.store(true, Ordering::Relaxed);

    let errors: Vec<Error> = [
        CompletionQueue::builder(&rig.context, 64).domain(&domain).build().err(),
        WorkQueue::builder(&domain, &cq.handle()).max_receives(8).build().err(),
        RawQueuePair::builder(&domain, &cq.handle(), &cq.handle()).max_sends(8).build().err(),
    ]
    .into_iter()
    .map(|error| error.expect("refused"))
    .collect();
    for error in errors {
        assert_eq!(error.errno(), Some(libc::ENOMEM), "{error}");
        assert!(error.to_string().contains("the domain's allocator refused"), "{error}");
    }
    assert_eq!(home.parent.outstanding_allocations(), before);
    home.refusing.store(false, Ordering::Relaxed);
    assert!(WorkQueue::builder(&domain, &cq.handle()).max_receives(8).build().is_ok());
}

/// An allocator that answers always alike.
struct Always(fn() -> Allocation);

impl DomainAllocator for Always {
    fn allocate(&self, _: &AllocationRequest) -> Allocation {
        (self.0)()
    }
}

#[test]
fn the_providers_own_memory_serves_where_the_allocator_says_so() {
    let rig = Rig::new();
    let allocator = Always(|| Allocation::UseDefault);
    let parent = ParentDomain::new(&rig.pd, None, Some(Box::new(allocator))).unwrap();
    let domain = Domain::from(&parent);
    let mut receiver = Receiver::new(&domain, 8);
    let target = single(&domain, &receiver.queue);
    let _flow = Flow::create(&target, &ipv4_flow()).unwrap();
    rig.deliver([udp(1, 2)]);
    assert_eq!(receiver.drain().len(), 1);
    assert_eq!(parent.outstanding_allocations(), 0);
}

#[test]
fn unfit_memory_and_a_panicking_allocator_are_refusals() {
    let rig = Rig::new();
    let answers: [fn() -> Allocation; 2] =
        [|| Allocation::Memory(Box::new(vec![0u8; 1])), || panic!("an allocator of the application")];
    for answer in answers {
        let parent = ParentDomain::new(&rig.pd, None, Some(Box::new(Always(answer)))).unwrap();
        let domain = Domain::from(&parent);
        let error = CompletionQueue::builder(&rig.context, 64).domain(&domain).build().err().unwrap();
        assert_eq!(error.errno(), Some(libc::ENOMEM));
        assert_eq!(parent.outstanding_allocations(), 0);
    }
}

#[test]
fn limits_are_the_devices_or_this_crates() {
    let rig = Rig::new();
    let domain = rig.domain();
    let cq = CompletionQueue::builder(&rig.context, 16).build().unwrap();
    assert!(cq.entries() >= 16);
    for entries in [0, verbs::MAX_COMPLETIONS + 1] {
        let error = CompletionQueue::builder(&rig.context, entries).build().err().unwrap();
        assert_eq!(error.errno(), Some(libc::EINVAL));
    }
    for max in [0, verbs::MAX_RECEIVES + 1] {
        let error = WorkQueue::builder(&domain, &cq.handle()).max_receives(max).build().err().unwrap();
        assert_eq!(error.errno(), Some(libc::EINVAL));
    }
    let (queue, _receives) = WorkQueue::builder(&domain, &cq.handle()).max_receives(8).build().unwrap();
    let three = vec![Arc::clone(&queue); 3];
    let error = IndirectionTable::new(&rig.context, &three).err().unwrap();
    assert!(error.to_string().contains("not 3; repeat queues"), "{error}");
    assert!(IndirectionTable::new(&rig.context, &[]).is_err());
    assert_eq!(IndirectionTable::new(&rig.context, &three[..2]).unwrap().size(), 2);
}

#[test]
fn objects_of_two_devices_do_not_mix() {
    let (one, other) = (Rig::new(), Rig::new());
    let receiver = Receiver::new(&one.domain(), 8);
    let hash = HashConfig { key: KEY, fields: HashFields::empty() };
    let counters = Counters::new(&other.context).unwrap();
    let target = single(&one.domain(), &receiver.queue);
    let errors = [
        IndirectionTable::new(&other.context, &[Arc::clone(&receiver.queue)]).err(),
        RssQueuePair::new(&other.domain(), &table(&[&receiver.queue]), &hash).err(),
        Flow::create(&target, &ipv4_flow().spec(FlowSpec::Count(counters))).err(),
    ];
    for error in errors {
        let error = error.expect("refused");
        assert!(matches!(error, Error::MixedContexts { .. }), "{error}");
        assert_eq!(error.errno(), Some(libc::EINVAL));
    }

    // Two contexts of one device do not mix either.
    let again = DeviceList::of(&one.nic).unwrap().find("softnic0").unwrap().open().unwrap();
    let pd = ProtectionDomain::new(&again).unwrap();
    let thread = ThreadDomain::new(&again).unwrap();
    let parent = ParentDomain::new(&pd, Some(&thread), None).unwrap();
    let (domain, cq) = (Domain::from(&pd), receiver.cq.handle());
    let theirs = CompletionQueue::builder(&again, 16).build().unwrap().handle();
    let errors = [
        ParentDomain::new(&one.pd, Some(&thread), None).err(),
        CompletionQueue::builder(&one.context, 16).domain(&Domain::from(&parent)).build().err(),
        WorkQueue::builder(&domain, &cq).max_receives(8).build().err(),
        RawQueuePair::builder(&domain, &cq, &theirs).max_sends(1).build().err(),
        RawQueuePair::builder(&domain, &theirs, &cq).max_sends(1).build().err(),
    ];
    for (place, error) in errors.into_iter().enumerate() {
        assert!(matches!(error, Some(Error::MixedContexts { .. })), "{place}: {error:?}");
    }
}

#[test]
fn a_queue_does_not_become_ready_while_its_completions_are_being_read() {
    let rig = Rig::new();
    let domain = rig.domain();
    let mut receiver = Receiver::new(&domain, 8);
    let (late, _receives) =
        WorkQueue::builder(&domain, &receiver.cq.handle()).max_receives(8).build().unwrap();
    let target = single(&domain, &receiver.queue);
    let _flow = Flow::create(&target, &ipv4_flow()).unwrap();
    rig.deliver([udp(1, 2)]);
    let batch = receiver.cq.poll().expect("a packet");
    let error = late.ready().unwrap_err();
    assert_eq!(error.errno(), Some(libc::EBUSY));
    assert!(error.to_string().contains("something else still uses it"), "{error}");
    drop(batch);
    late.ready().unwrap();
    late.ready().unwrap();
}

/// The library itself, without this crate's ownership: a parent in use is refused with EBUSY.
#[test]
fn the_library_refuses_to_destroy_a_parent_in_use() {
    let rig = Rig::new();
    let mut count = 0;
    let list = rig.nic.device_list(&mut count);
    assert_eq!(count, 1);
    // SAFETY: a list of one device.
    let device = unsafe { *list };
    // SAFETY: the device is live while its list is.
    let context = unsafe { ibverbs_sys::ibv_open_device(device) };
    assert!(!context.is_null());
    // SAFETY: opened, so no longer needed.
    unsafe { ibverbs_sys::ibv_free_device_list(list) };
    // SAFETY: an open context.
    let pd = unsafe { ibverbs_sys::ibv_alloc_pd(context) };
    let mut memory = vec![0u8; 4096];
    // SAFETY: a live domain, and memory that outlives the region.
    let mr = unsafe { ibverbs_sys::ibv_reg_mr(pd, memory.as_mut_ptr().cast(), memory.len(), 1) };
    assert!(!mr.is_null());
    // SAFETY: a live domain.
    assert_eq!(unsafe { ibverbs_sys::ibv_dealloc_pd(pd) }, libc::EBUSY);
    // SAFETY: a live region.
    assert_eq!(unsafe { ibverbs_sys::ibv_dereg_mr(mr) }, 0);
    // SAFETY: a live domain without children.
    assert_eq!(unsafe { ibverbs_sys::ibv_dealloc_pd(pd) }, 0);
    // SAFETY: an open context without objects.
    assert_eq!(unsafe { ibverbs_sys::ibv_close_device(context) }, 0);
}

/// Everything a worker and a program own, each droppable on its own.
fn everything(rig: &Rig) -> (Vec<Box<dyn Send>>, Weak<()>) {
    let thread = ThreadDomain::new(&rig.context).unwrap();
    let home = ArenaDomain::new(&rig.pd, Some(&thread));
    let domain = home.domain();
    let Receiver { cq, queue, receives, pool, spare } = Receiver::new(&domain, 16);
    let table = table(&[&queue]);
    let hash = HashConfig { key: KEY, fields: HashFields::empty() };
    let pair = RssQueuePair::new(&domain, &table, &hash).unwrap();
    let counters = Counters::new(&rig.context).unwrap();
    let attr = udp_flow(53, 9).spec(FlowSpec::Count(Arc::clone(&counters)));
    let flow = Flow::create(&FlowTarget::Rss(Arc::clone(&pair)), &attr).unwrap();
    let raw = RawQueuePair::builder(&domain, &cq.handle(), &cq.handle())
        .max_sends(4)
        .max_receives(4)
        .build()
        .unwrap()
        .to_rts(PORT)
        .unwrap();
    let raw_flow = Flow::create(&FlowTarget::Raw(raw.handle()), &udp_flow(54, 9)).unwrap();
    let alive = home.alive.clone();
    let parts: Vec<Box<dyn Send>> = vec![
        Box::new(home),
        Box::new(thread),
        Box::new(domain),
        Box::new(cq),
        Box::new(queue),
        Box::new(receives),
        Box::new((pool, spare)),
        Box::new(table),
        Box::new(pair),
        Box::new(counters),
        Box::new(flow),
        Box::new(raw),
        Box::new(raw_flow),
    ];
    (parts, alive)
}

#[test]
fn objects_can_be_dropped_in_any_order() {
    let rig = Rig::new();
    let count = everything(&rig).0.len();
    for turn in 0..count {
        for reversed in [false, true] {
            let (mut parts, alive) = everything(&rig);
            parts.rotate_left(turn);
            if reversed {
                parts.reverse();
            }
            parts.into_iter().for_each(drop);
            // A refused destruction would keep the parent domain, and with it the allocator, for good.
            assert!(alive.upgrade().is_none(), "turn {turn}, reversed {reversed}");
        }
    }
}

#[test]
fn what_cannot_be_destroyed_is_leaked_with_what_it_needs() {
    let rig = Rig::new();
    let home = ArenaDomain::new(&rig.pd, None);
    let domain = home.domain();
    let Receiver { mut cq, queue, receives, pool, spare } = Receiver::new(&domain, 4);
    let (later, _) = WorkQueue::builder(&domain, &cq.handle()).max_receives(4).build().unwrap();
    let flow = Flow::create(&single(&domain, &queue), &ipv4_flow()).unwrap();
    rig.deliver([udp(1, 2)]);
    let batch = cq.poll().expect("a packet");
    // A queue cannot go while its completions are being read, and this thread would wait for itself.
    drop(later);
    drop(batch);
    let alive = home.alive.clone();
    drop((flow, receives, queue, pool, spare, cq, domain, home));
    assert!(alive.upgrade().is_some(), "the leaked queue keeps its domain and its memory");
}

#[test]
fn a_flow_alone_keeps_everything_under_it_alive() {
    let rig = Rig::new();
    let (flow, receives_posted) = {
        let receiver = Receiver::new(&rig.domain(), 4);
        let target = single(&rig.domain(), &receiver.queue);
        (Flow::create(&target, &ipv4_flow()).unwrap(), receiver.pool.frame_count())
    };
    assert_eq!(receives_posted, 4);
    // The pool is gone, the queue is not, and with it the memory that the device still writes to.
    rig.deliver([udp(1, 2)]);
    let stats = rig.stats();
    assert_eq!((stats.memory_fault, stats.delivered, stats.unmatched), (0, 1, 0), "{stats:?}");
    drop(flow);
    rig.deliver([udp(1, 2)]);
    assert_eq!(rig.stats().unmatched, 1);
}

/// A pool of four frames, and whether its memory is still there.
fn watched_pool(domain: &Domain) -> (FramePool, Weak<Arena>) {
    let bytes = 4 * FRAME_BYTES as usize;
    let options = ArenaOptions { pages: vec![PageKind::Plain], ..ArenaOptions::new("test", bytes) };
    let arena = Arena::map(&options).unwrap();
    let region =
        MemoryRegion::register(domain, arena.carve(bytes, 64).unwrap(), Access::LOCAL_WRITE).unwrap();
    (FramePool::new(region, FRAME_BYTES).unwrap(), Arc::downgrade(&arena))
}

#[test]
fn a_pools_memory_stays_until_the_queues_it_was_posted_to_are_gone() {
    let rig = Rig::new();
    let domain = rig.domain();
    let cq = CompletionQueue::builder(&rig.context, 64).build().unwrap();
    let (queue, mut receives) = WorkQueue::builder(&domain, &cq.handle()).max_receives(8).build().unwrap();
    queue.ready().unwrap();
    let mut pair = RawQueuePair::builder(&domain, &cq.handle(), &cq.handle())
        .max_sends(4)
        .max_receives(4)
        .build()
        .unwrap()
        .to_rts(PORT)
        .unwrap();
    let (mut first, first_memory) = watched_pool(&domain);
    let (mut second, second_memory) = watched_pool(&domain);
    let (unused, unused_memory) = watched_pool(&domain);
    let mut frames = vec![first.take().unwrap()];
    assert_eq!(receives.post(&mut first, &mut frames), 1);
    let frame = second.take().unwrap();
    pair.send(&mut second, frame, 60, SendFlags::empty()).expect("room");
    frames.extend(second.take());
    assert_eq!(pair.post_receives(&mut second, &mut frames), 1);
    drop((first, second, unused));
    assert!(unused_memory.upgrade().is_none(), "nothing of it was posted");
    drop((receives, pair.handle()));
    assert!(first_memory.upgrade().is_some() && second_memory.upgrade().is_some());
    drop(queue);
    assert!(first_memory.upgrade().is_none() && second_memory.upgrade().is_some());
    drop(pair);
    assert!(second_memory.upgrade().is_none());
}

#[test]
fn a_queue_takes_frames_of_its_own_domain_and_of_so_many_pools() {
    let (rig, other) = (Rig::new(), Rig::new());
    let cq = CompletionQueue::builder(&rig.context, 256).build().unwrap();
    let (queue, mut receives) =
        WorkQueue::builder(&rig.domain(), &cq.handle()).max_receives(128).build().unwrap();
    queue.ready().unwrap();
    let mut posted_from = |domain: &Domain| {
        let mut pool = pool(domain, 1, FRAME_BYTES);
        let mut frames = vec![pool.take().unwrap()];
        let posted = receives.post(&mut pool, &mut frames);
        assert_eq!(posted + frames.len(), 1);
        posted
    };
    let elsewhere = ProtectionDomain::new(&rig.context).unwrap();
    assert_eq!(posted_from(&other.domain()) + posted_from(&Domain::from(&elsewhere)), 0);
    let posted: usize = (0..verbs::MAX_POOLS + 1).map(|_| posted_from(&rig.domain())).sum();
    assert_eq!(posted, verbs::MAX_POOLS);
}

#[test]
fn a_context_works_on_after_its_device_is_gone() {
    let Rig { nic, context, pd, .. } = Rig::new();
    drop(nic);
    let domain = Domain::from(&pd);
    let receiver = Receiver::new(&domain, 4);
    assert!(context.attributes().is_ok());
    drop((pd, context));
    let target = single(&domain, &receiver.queue);
    assert!(Flow::create(&target, &ipv4_flow()).is_ok());
}
