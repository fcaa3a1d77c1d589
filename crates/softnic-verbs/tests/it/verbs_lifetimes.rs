//! What keeps what alive in the verbs API on a real soft NIC: dropping in any order, leaking what is refused,
//! and memory that stays as long as the device may reach it.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::verbs_support::*;
use hugemem::{Arena, ArenaOptions, PageKind};
use verbs::{
    Access, ActionSpec, CompletionQueue, Counters, Domain, FlowHandle, FlowTarget, FramePool, HashConfig,
    HashFields, MemoryRegion, ParentDomain, ProtectionDomain, Provider, RawQueuePair, RssQueuePair,
    SendFlags, ThreadDomain, WorkQueue,
};

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

/// Both completion queues of a pair are kept still while it is changed or destroyed; those of one thread
/// domain share what that takes.
#[test]
fn a_queue_pair_between_two_completion_queues_of_one_thread_domain_can_be_destroyed() {
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let rig = Rig::new();
        let thread = ThreadDomain::new(&rig.context).unwrap();
        let parent = ParentDomain::new(&rig.pd, Some(&thread), None).unwrap();
        let [sent, received] = [(); 2]
            .map(|()| CompletionQueue::builder(&rig.context, 16).domain(&parent).build().unwrap().handle());
        let domain = Domain::from(&parent);
        let pair = RawQueuePair::builder(&domain, &sent, &received).max_receives(4).build().unwrap();
        let mut pair = pair.to_rts(PORT).unwrap();
        pair.to_error().unwrap();
        drop(pair);
        // Destroyed, not leaked: what it was made of can go.
        let alive = Arc::downgrade(&sent);
        drop(sent);
        done.send(alive.strong_count()).unwrap();
    });
    assert_eq!(ended.recv_timeout(Duration::from_secs(20)), Ok(0));
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
    let attr = udp_flow(53, 9).action(ActionSpec::Count(Arc::clone(&counters)));
    let flow = FlowHandle::create(&FlowTarget::Rss(Arc::clone(&pair)), &attr).unwrap();
    let raw = RawQueuePair::builder(&domain, &cq.handle(), &cq.handle())
        .max_sends(4)
        .max_receives(4)
        .build()
        .unwrap()
        .to_rts(PORT)
        .unwrap();
    let raw_flow = FlowHandle::create(&FlowTarget::Raw(raw.handle()), &udp_flow(54, 9)).unwrap();
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
fn objects_that_cannot_be_destroyed_are_leaked_with_their_parents() {
    let rig = Rig::new();
    let home = ArenaDomain::new(&rig.pd, None);
    let domain = home.domain();
    let Receiver { mut cq, queue, receives, pool, spare } = Receiver::new(&domain, 4);
    let (later, _) = WorkQueue::builder(&domain, &cq.handle()).max_receives(4).build().unwrap();
    let flow = FlowHandle::create(&single(&domain, &queue), &ipv4_flow()).unwrap();
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
        (FlowHandle::create(&target, &ipv4_flow()).unwrap(), receiver.pool.frame_count())
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
fn another_device_sends_frames_of_a_pool_and_keeps_their_memory() {
    let (rig, other) = (Rig::new(), Rig::new());
    let domain = other.domain();
    let mut cq = CompletionQueue::builder(&other.context, 8).build().unwrap();
    let builder = RawQueuePair::builder(&domain, &cq.handle(), &cq.handle()).max_sends(4).max_receives(4);
    let mut pair = builder.build().unwrap().to_rts(PORT).unwrap();
    let (mut pool, memory) = watched_pool(&rig.domain());
    let mut frame = pool.take().unwrap();
    let packet = udp(1, 2);
    pool.bytes_mut(&mut frame)[..packet.len()].copy_from_slice(&packet);
    let frame = pair.send(&mut pool, frame, packet.len(), SendFlags::empty()).expect_err("not its memory");
    assert!(pair.admit(&pool.registered()).is_err(), "registered for the first device only");
    let registered = pool.registered().register(&domain).unwrap();
    pair.admit(&registered).unwrap();
    pair.send(&mut pool, frame, packet.len(), SendFlags::empty()).expect("room");
    other.pump();
    assert_eq!((other.sent(), rig.sent()), (vec![packet], vec![]));
    let mut batch = cq.poll().expect("a completion");
    let completion = batch.next().expect("of the send");
    assert_eq!(completion.status(), verbs::CompletionStatus::Success);
    let frame = pool.reclaim(completion).expect("the frame was sent");
    drop(batch);
    // The other device cannot write to it.
    assert_eq!(pair.post_receives(&mut pool, &mut vec![frame]), 0);
    let refusal = pair.last_receive_refusal().and_then(|error| error.raw_os_error());
    assert_eq!(refusal, Some(libc::EINVAL));
    drop((pool, registered));
    assert!(memory.upgrade().is_some(), "the queue pair keeps it");
    drop(pair);
    assert!(memory.upgrade().is_none());
}

#[test]
fn frames_that_the_device_may_not_write_to_are_sent_but_not_received_into() {
    let rig = Rig::new();
    let domain = rig.domain();
    let cq = CompletionQueue::builder(&rig.context, 8).build().unwrap();
    let (queue, mut receives) = WorkQueue::builder(&domain, &cq.handle()).max_receives(4).build().unwrap();
    queue.ready().unwrap();
    let builder = RawQueuePair::builder(&domain, &cq.handle(), &cq.handle()).max_sends(4).max_receives(4);
    let mut pair = builder.build().unwrap().to_rts(PORT).unwrap();
    let region = MemoryRegion::register(&domain, vec![0; 2 * FRAME_BYTES as usize], Access::empty()).unwrap();
    let mut pool = FramePool::new(region, FRAME_BYTES).unwrap();
    let mut frames = vec![pool.take().unwrap()];
    let errno = |refusal: Option<std::io::Error>| refusal.and_then(|error| error.raw_os_error());
    assert_eq!(receives.post(&mut pool, &mut frames), 0);
    assert_eq!(errno(receives.last_refusal()), Some(libc::EINVAL));
    let sent = pool.take().unwrap();
    // Before the pair knows the pool, and after.
    assert_eq!(pair.post_receives(&mut pool, &mut frames), 0);
    assert_eq!(errno(pair.last_receive_refusal()), Some(libc::EINVAL));
    pair.send(&mut pool, sent, 60, SendFlags::empty()).expect("room");
    assert_eq!(pair.post_receives(&mut pool, &mut frames), 0);
    assert_eq!(errno(pair.last_receive_refusal()), Some(libc::EINVAL));
    assert_eq!(frames.len(), 1, "the frame stays with its owner");
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
    assert!(FlowHandle::create(&target, &ipv4_flow()).is_ok());
}
