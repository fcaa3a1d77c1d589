//! Packets through the verbs API on a real soft NIC: receiving, steering, spreading and counting.

use std::time::SystemTime;

use crate::verbs_support::*;
use packet::build::FrameBuilder;
use verbs::{
    CompletionFields, CompletionQueue, Domain, EventKind, EventSource, FlowAttr, FlowHandle, FlowKind,
    FlowTag, Frame, FramePool, Opcode, ParentDomain, RawQueuePair, SendFlags, ThreadDomain, WorkQueue,
};

fn taken(pool: &mut FramePool) -> Vec<Frame> {
    std::iter::from_fn(|| pool.take()).collect()
}

#[test]
fn a_packet_arrives_whole_with_its_tag() {
    let rig = Rig::new();
    let mut receiver = Receiver::new(&rig.domain(), 8);
    let target = single(&rig.domain(), &receiver.queue);
    let _flow = FlowHandle::create(&target, &udp_flow(53, 0xab_cdef)).unwrap();
    rig.deliver([udp(1000, 53), udp(1000, 54)]);
    assert_eq!(receiver.drain(), [Received { bytes: udp(1000, 53), tag: 0xab_cdef }]);
    let stats = rig.stats();
    assert_eq!((stats.delivered, stats.unmatched), (1, 1));
}

#[test]
fn fields_that_were_asked_for_are_there_and_the_others_are_not() {
    let rig = Rig::new();
    let domain = rig.domain();
    for fields in [CompletionFields::empty(), all_fields()] {
        let cq = CompletionQueue::builder(&rig.context, 64).fields(fields).build().unwrap();
        let mut receiver = Receiver::with_cq(&domain, cq, 4);
        let _flow = FlowHandle::create(&single(&domain, &receiver.queue), &udp_flow(53, 7)).unwrap();
        let tagged = FrameBuilder::new().vlan(packet::EtherType::VLAN, 0x6123).ipv4(v4(1), v4(2)).udp(1, 53);
        let tagged = tagged.build();
        let (ticks, wallclock) = (rig.context.raw_clock().unwrap(), wallclock_ns());
        rig.deliver([tagged.clone()]);
        let (ticks, wallclock) = (ticks..=rig.context.raw_clock().unwrap(), wallclock..=wallclock_ns());
        let asked = fields == all_fields();
        let mut batch = receiver.cq.poll().expect("a packet");
        let completion = batch.next().expect("a packet");
        assert_eq!(completion.status(), verbs::CompletionStatus::Success);
        assert_eq!(completion.opcode(), Opcode::Receive);
        assert_eq!(completion.byte_len(), asked.then_some(tagged.len() as u32));
        assert_eq!(completion.flow_tag(), asked.then_some(FlowTag(7)));
        assert_eq!(completion.cvlan(), asked.then_some(0x6123));
        assert_eq!(completion.qp_num(), asked.then_some(receiver.queue.number()));
        assert_eq!(completion.wallclock_ns().is_some(), asked);
        assert!(completion.wallclock_ns().is_none_or(|ns| wallclock.contains(&ns)), "{wallclock:?}");
        assert_eq!(completion.timestamp().is_some(), asked);
        assert!(completion.timestamp().is_none_or(|stamp| ticks.contains(&stamp)), "{ticks:?}");
        assert_eq!(completion.vendor_error(), 0);
        assert!(batch.next().is_none() && batch.next().is_none());
    }
}

/// A provider may look into the completion queue when it is posted to: with its lock a post would wait for
/// ever for the batch that is open on the same thread, without it both would be inside.
#[test]
fn nothing_is_posted_while_completions_are_being_read() {
    let rig = Rig::new();
    let (thread, domain) = (ThreadDomain::new(&rig.context).unwrap(), rig.domain());
    let threaded = Domain::from(&ParentDomain::new(&rig.pd, Some(&thread), None).unwrap());
    for (domain, independent) in [(&domain, true), (&threaded, false)] {
        let [mut ours, mut others] = [0, 1].map(|_| Receiver::new(domain, 8));
        let mut pair = RawQueuePair::builder(domain, &ours.cq.handle(), &ours.cq.handle())
            .max_sends(4)
            .max_receives(4)
            .build()
            .unwrap()
            .to_rts(PORT)
            .unwrap();
        let _flow = FlowHandle::create(&single(domain, &ours.queue), &udp_flow(53, 1)).unwrap();
        let _other = FlowHandle::create(&single(domain, &others.queue), &udp_flow(54, 1)).unwrap();
        rig.deliver([udp(1, 53), udp(1, 54)]);
        let mut batch = ours.cq.poll().expect("a packet");
        let frame = ours.pool.reclaim(batch.next().expect("a packet")).expect("posted");
        let mut frames = vec![frame];
        assert_eq!(ours.receives.post(&mut ours.pool, &mut frames), 0);
        assert_eq!(pair.post_receives(&mut ours.pool, &mut frames), 0);
        let busy = |refusal: Option<std::io::Error>| refusal.unwrap().raw_os_error() == Some(libc::EBUSY);
        assert!(busy(ours.receives.last_refusal()) && busy(pair.last_receive_refusal()));
        let frame = frames.pop().expect("still held");
        let frame = pair.send(&mut ours.pool, frame, 60, SendFlags::empty()).expect_err("a batch is open");
        assert!(busy(pair.last_refusal()));
        frames.push(frame);
        // Under a thread domain everything is for one user at a time; otherwise queues are independent.
        assert_eq!(others.drain().len(), usize::from(independent));
        drop(batch);
        assert_eq!(ours.receives.post(&mut ours.pool, &mut frames), 1);
        assert_eq!(others.drain().len(), usize::from(!independent));
    }
}

fn wallclock_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    u64::try_from(since.as_nanos()).expect("before 2554")
}

#[test]
fn right_and_wrong_checksums_are_distinguished() {
    let rig = Rig::new();
    let mut receiver = Receiver::new(&rig.domain(), 16);
    let _flow = FlowHandle::create(&single(&rig.domain(), &receiver.queue), &ipv4_flow()).unwrap();
    let right = udp(1, 53);
    let (mut wrong_header, mut wrong_payload) = (right.clone(), right.clone());
    wrong_header[24] ^= 1;
    *wrong_payload.last_mut().unwrap() ^= 1;
    // A device may begin to check when it is first asked.
    for first in [true, false] {
        rig.deliver([right.clone(), wrong_header.clone(), wrong_payload.clone()]);
        let mut verdicts = Vec::new();
        let mut batch = receiver.cq.poll().expect("packets");
        while let Some(completion) = batch.next() {
            verdicts.push(completion.checksum_ok());
        }
        assert!(first || verdicts == [Some(true), Some(false), Some(false)], "{verdicts:?}");
        assert_eq!(verdicts.len(), 3);
    }
}

#[test]
fn an_empty_queue_gives_no_batch_and_no_error() {
    let rig = Rig::new();
    let mut receiver = Receiver::new(&rig.domain(), 4);
    for _ in 0..3 {
        assert!(receiver.cq.poll().is_none());
    }
    assert_eq!(receiver.cq.poll_errors(), 0);
}

#[test]
fn a_batch_left_half_way_goes_on_in_the_next() {
    let rig = Rig::new();
    let mut receiver = Receiver::new(&rig.domain(), 8);
    let _flow = FlowHandle::create(&single(&rig.domain(), &receiver.queue), &udp_flow(53, 1)).unwrap();
    rig.deliver((0..5).map(|i| udp(i, 53)));
    {
        let mut batch = receiver.cq.poll().expect("packets");
        for _ in 0..2 {
            let completion = batch.next().expect("a packet");
            let frame = receiver.pool.reclaim(completion).expect("posted");
            receiver.pool.release(frame);
        }
    }
    let rest: Vec<_> = receiver.drain().into_iter().map(|packet| packet.bytes).collect();
    assert_eq!(rest, [udp(2, 53), udp(3, 53), udp(4, 53)]);
}

#[test]
fn nothing_is_posted_before_the_queue_is_ready() {
    let rig = Rig::new();
    let domain = rig.domain();
    let cq = CompletionQueue::builder(&rig.context, 64).build().unwrap();
    let (queue, mut receives) = WorkQueue::builder(&domain, &cq.handle()).max_receives(8).build().unwrap();
    let mut pool = rig.pool(4);
    let mut frames = taken(&mut pool);
    assert!(receives.last_refusal().is_none());
    assert_eq!(receives.post(&mut pool, &mut frames), 0);
    assert_eq!(receives.last_refusal().unwrap().raw_os_error(), Some(libc::EINVAL));
    assert_eq!(frames.len(), 4);
    queue.ready().unwrap();
    assert_eq!(receives.post(&mut pool, &mut frames), 4);
    assert!(frames.is_empty());
}

#[test]
fn frames_that_do_not_fit_stay_with_their_owner() {
    let rig = Rig::new();
    let domain = rig.domain();
    let cq = CompletionQueue::builder(&rig.context, 1024).build().unwrap();
    let (queue, mut receives) = WorkQueue::builder(&domain, &cq.handle()).max_receives(100).build().unwrap();
    queue.ready().unwrap();
    assert!(receives.max_receives() >= 100);
    let mut pool = rig.pool(1000);
    let mut frames = taken(&mut pool);
    let posted = receives.post(&mut pool, &mut frames);
    assert!((100..1000).contains(&posted), "a full queue takes no more: {posted}");
    assert_eq!(frames.len(), 1000 - posted);
    assert_eq!(receives.last_refusal().unwrap().raw_os_error(), Some(libc::ENOMEM));
    assert_eq!(receives.post(&mut pool, &mut frames), 0);
    frames.into_iter().for_each(|frame| pool.release(frame));
    assert_eq!(pool.free_count(), 1000 - posted);
}

#[test]
fn frames_of_another_pool_are_neither_posted_nor_read() {
    let rig = Rig::new();
    let mut receiver = Receiver::new(&rig.domain(), 4);
    let mut other = rig.pool(2);
    let mut frames = taken(&mut other);
    assert_eq!(receiver.receives.post(&mut receiver.pool, &mut frames), 0);
    assert_eq!(frames.len(), 2);
    assert!(receiver.pool.bytes(&frames[0]).is_empty());
    assert!(receiver.pool.bytes_mut(&mut frames[0]).is_empty());
    assert_eq!(other.bytes(&frames[0]).len(), FRAME_BYTES as usize);
}

#[test]
fn frames_of_another_pool_do_not_block_others() {
    let rig = Rig::new();
    let domain = rig.domain();
    let cq = CompletionQueue::builder(&rig.context, 1024).build().unwrap();
    let (queue, mut receives) = WorkQueue::builder(&domain, &cq.handle()).max_receives(256).build().unwrap();
    queue.ready().unwrap();
    let (mut pool, mut other) = (rig.pool(150), rig.pool(150));
    // Alternating, with more than one call's worth of foreign frames at the end, where posting begins.
    let mut frames = Vec::new();
    for _ in 0..50 {
        frames.extend([pool.take(), other.take(), pool.take()].into_iter().flatten());
    }
    frames.extend(taken(&mut other));
    assert_eq!(receives.post(&mut pool, &mut frames), 100);
    assert_eq!(frames.len(), 150);
    assert_eq!(receives.last_refusal().unwrap().raw_os_error(), Some(libc::EINVAL));
    let in_order: Vec<_> = frames.iter().map(|frame| other.bytes(frame).as_ptr().addr()).collect();
    assert!(in_order.is_sorted());
    frames.into_iter().for_each(|frame| other.release(frame));
    assert_eq!(other.free_count(), 150);
}

#[test]
fn a_completion_gives_its_frame_back_once_and_to_its_own_pool_only() {
    let rig = Rig::new();
    let mut receiver = Receiver::new(&rig.domain(), 4);
    let mut other = rig.pool(4);
    let _flow = FlowHandle::create(&single(&rig.domain(), &receiver.queue), &udp_flow(53, 1)).unwrap();
    rig.deliver([udp(1, 53)]);
    let mut batch = receiver.cq.poll().expect("a packet");
    let completion = batch.next().expect("a packet");
    let completion = other.reclaim(completion).expect_err("the frame is not one of this pool");
    let frame = receiver.pool.reclaim(completion).expect("posted");
    receiver.pool.release(frame);
}

#[test]
fn a_queue_without_buffers_counts_drops() {
    let rig = Rig::new();
    let mut receiver = Receiver::new(&rig.domain(), 2);
    let posted = receiver.pool.frame_count();
    let _flow = FlowHandle::create(&single(&rig.domain(), &receiver.queue), &udp_flow(53, 1)).unwrap();
    rig.deliver((0..6).map(|i| udp(i, 53)));
    let stats = rig.stats();
    assert_eq!((stats.delivered, stats.out_of_buffer), (posted as u64, 6 - posted as u64));
    assert_eq!(receiver.drain().len(), posted);
    rig.deliver([udp(9, 53)]);
    assert_eq!(receiver.drain().len(), 1);
}

#[test]
fn drops_are_counted_for_the_queue_that_has_no_buffers() {
    let rig = Rig::new();
    let domain = rig.domain();
    let (ample, scarce) = (Receiver::new(&domain, 64), Receiver::new(&domain, 2));
    let numbers = [&ample, &scarce].map(|receiver| receiver.queue.number().0);
    let lost = || numbers.map(|number| rig.nic.out_of_buffer(number));
    assert_eq!((lost(), rig.nic.out_of_buffer(numbers[1] + 1)), ([Some(0), Some(0)], None));
    let flows = [(&ample, 53), (&scarce, 54)].map(|(receiver, port)| {
        FlowHandle::create(&single(&domain, &receiver.queue), &udp_flow(port, 1)).unwrap()
    });
    let posted = scarce.pool.frame_count() as u64;
    rig.deliver((0..10).flat_map(|i| [udp(i, 53), udp(i, 54)]));
    assert_eq!(lost(), [Some(0), Some(10 - posted)]);
    assert_eq!(rig.stats().out_of_buffer, 10 - posted);
    // A copy that is lost is the queue's loss, and not an outcome of its frame.
    let sniffer =
        FlowHandle::create(&single(&domain, &scarce.queue), &FlowAttr::new(FlowKind::Sniffer, PORT));
    rig.deliver([udp(1, 53)]);
    assert_eq!(lost(), [Some(0), Some(11 - posted)]);
    assert_eq!((rig.stats().out_of_buffer, rig.stats().copies_lost), (10 - posted, 1));
    drop((sniffer, flows, scarce));
    assert_eq!(lost(), [Some(0), None], "the queue is gone");
}

/// Bursts of frames for several queues, of many lengths, until every ring has started again more than once.
#[test]
fn each_queue_gets_its_frames_whole_and_in_the_order_of_their_arrival() {
    let rig = Rig::new();
    let domain = rig.domain();
    // Rings that start again at different places.
    let mut receivers = [16, 32, 64].map(|frames| Receiver::new(&domain, frames));
    let ports = [53, 54, 55];
    let flows = receivers.each_ref().map(|receiver| {
        let port = ports[receiver.pool.frame_count().ilog2() as usize - 4];
        FlowHandle::create(&single(&domain, &receiver.queue), &udp_flow(port, u32::from(port))).unwrap()
    });
    for round in 0..20usize {
        let frames: Vec<(usize, Vec<u8>)> = (0..40usize)
            .map(|index| {
                let which = [0, 1, 2, 2, 2, 1][(round * 7 + index * (round % 5 + 1)) % 6];
                let payload = vec![index as u8; (index * 97 + round * 31) % 1400];
                let frame = FrameBuilder::new().ipv4(v4(1), v4(2)).udp(index as u16, ports[which]);
                (which, frame.payload(&payload).build())
            })
            .collect();
        // No more for a queue than it has buffers.
        for part in frames.chunks(16) {
            rig.deliver(part.iter().map(|(_, frame)| frame.clone()));
            for (which, receiver) in receivers.iter_mut().enumerate() {
                let expected = part.iter().filter(|(queue, _)| *queue == which);
                let expected: Vec<Received> = expected
                    .map(|(_, frame)| Received { bytes: frame.clone(), tag: ports[which].into() })
                    .collect();
                assert_eq!(receiver.drain(), expected, "round {round}, queue {which}");
            }
        }
    }
    assert_eq!(rig.stats().delivered, 800);
    drop(flows);
}

/// An event points to its object: it must not be read after that is gone.
#[test]
fn an_event_goes_with_its_queue() {
    let rig = Rig::new();
    let domain = rig.domain();
    let cq = CompletionQueue::builder(&rig.context, 4).build().unwrap();
    let receiver = Receiver::with_cq(&domain, cq, 64);
    let flow = FlowHandle::create(&single(&domain, &receiver.queue), &ipv4_flow()).unwrap();
    rig.deliver((0..64).map(|i| udp(i, 53)));
    assert!(rig.stats().cq_overrun > 0 && readable(&rig.context));
    drop((flow, receiver));
    assert_eq!(rig.context.async_event().unwrap(), None);
    assert!(!readable(&rig.context));
}

#[test]
fn an_overrun_completion_queue_raises_an_event_unless_overruns_are_ignored() {
    for ignored in [false, true] {
        let rig = Rig::new();
        let domain = rig.domain();
        let cq = CompletionQueue::builder(&rig.context, 4)
            .fields(CompletionFields::BYTE_LEN)
            .ignore_overrun(ignored)
            .build()
            .unwrap();
        let entries = cq.entries() as usize;
        let receiver = Receiver::with_cq(&domain, cq, 64);
        let _flow = FlowHandle::create(&single(&domain, &receiver.queue), &ipv4_flow()).unwrap();
        assert!(entries < 64);
        rig.deliver((0..64).map(|i| udp(i, 53)));
        assert!(rig.stats().cq_overrun > 0);
        assert_eq!(readable(&rig.context), !ignored);
        let event = rig.context.async_event().unwrap();
        let kind = event.map(|event| event.kind);
        assert_eq!(kind, (!ignored).then_some(EventKind::CompletionQueueError));
        assert!(ignored || matches!(event.unwrap().source, EventSource::CompletionQueue { .. }));
    }
}
