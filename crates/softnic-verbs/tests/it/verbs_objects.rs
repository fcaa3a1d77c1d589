//! Objects of the verbs API on a real soft NIC through the unmodified libibverbs: what they answer, whose
//! memory they live in, and that they can be dropped in any order.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::verbs_support::*;
use verbs::{
    Access, ActionSpec, Allocation, AllocationRequest, CompletionQueue, Counters, DeviceList, Domain,
    DomainAllocator, FlowHandle, Guid, HashConfig, HashFields, IndirectionTable, LinkLayer, MemoryRegion,
    ParentDomain, PortNumber, PortState, ProtectionDomain, RawQueuePair, RssQueuePair, ThreadDomain,
    VerbsError, WorkQueue,
};

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
fn the_device_reports_its_limits() {
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
fn reading_events_of_an_idle_device_does_not_block() {
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

    let cq = CompletionQueue::builder(&rig.context, 64)
        .single_threaded(true)
        .domain(&home.parent)
        .build()
        .unwrap();
    let (queue, receives) = WorkQueue::builder(&domain, &cq.handle()).max_receives(32).build().unwrap();
    let raw = RawQueuePair::builder(&domain, &cq.handle(), &cq.handle()).max_sends(16).build().unwrap();
    let asked = home.asked.lock().unwrap().clone();
    let kinds: Vec<u64> = asked.iter().map(|request| request.resource_type).collect();
    for kind in [
        softnic::resource::COMPLETION_QUEUE,
        softnic::resource::WORK_QUEUE,
        softnic::resource::QUEUE_PAIR,
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
    let cq = CompletionQueue::builder(&rig.context, 64).domain(&home.parent).build().unwrap();
    let before = home.parent.outstanding_allocations();
    home.refusing.store(true, Ordering::Relaxed);

    let errors: Vec<VerbsError> = [
        CompletionQueue::builder(&rig.context, 64).domain(&home.parent).build().err(),
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
fn the_provider_allocates_if_the_allocator_asks_for_it() {
    let rig = Rig::new();
    let allocator = Always(|| Allocation::UseDefault);
    let parent = ParentDomain::new(&rig.pd, None, Some(Box::new(allocator))).unwrap();
    let domain = Domain::from(&parent);
    let mut receiver = Receiver::new(&domain, 8);
    let target = single(&domain, &receiver.queue);
    let _flow = FlowHandle::create(&target, &ipv4_flow()).unwrap();
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
        let error = CompletionQueue::builder(&rig.context, 64).domain(&parent).build().err().unwrap();
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
        FlowHandle::create(&target, &ipv4_flow().action(ActionSpec::Count(counters))).err(),
    ];
    for error in errors {
        let error = error.expect("refused");
        assert!(matches!(error, VerbsError::MixedContexts { .. }), "{error}");
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
        CompletionQueue::builder(&one.context, 16).domain(&parent).build().err(),
        WorkQueue::builder(&domain, &cq).max_receives(8).build().err(),
        RawQueuePair::builder(&domain, &cq, &theirs).max_sends(1).build().err(),
        RawQueuePair::builder(&domain, &theirs, &cq).max_sends(1).build().err(),
    ];
    for (place, error) in errors.into_iter().enumerate() {
        assert!(matches!(error, Some(VerbsError::MixedContexts { .. })), "{place}: {error:?}");
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
    let _flow = FlowHandle::create(&target, &ipv4_flow()).unwrap();
    rig.deliver([udp(1, 2)]);
    let batch = receiver.cq.poll().expect("a packet");
    let error = late.ready().unwrap_err();
    assert_eq!(error.errno(), Some(libc::EBUSY));
    assert!(error.to_string().contains("something else still uses it"), "{error}");
    drop(batch);
    late.ready().unwrap();
    late.ready().unwrap();
}
