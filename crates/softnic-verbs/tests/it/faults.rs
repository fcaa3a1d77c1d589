//! Faults made on purpose, on a real soft NIC: a failed work queue restarts with its flow in place, a link
//! goes down and comes up, and a device that is gone refuses everything.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;

use crate::verbs_support::*;
use softnic::FailedFrames;
use verbs::{
    AsyncEvent, CompletionStatus, EventKind, EventSource, FlowHandle, Frame, PortState, ProtectionDomain,
    WorkQueueState,
};

const FRAMES: u32 = 16;

/// The results of a restart: frames without a completion, and the status of each completion before.
fn restart(receiver: &mut Receiver) -> (usize, Vec<CompletionStatus>) {
    let mut statuses = Vec::new();
    let Receiver { receives, cq, pool, spare, .. } = receiver;
    let mut flushed: Vec<Frame> = Vec::new();
    let taken = receives
        .restart(cq, pool, spare, |completion, pool| {
            statuses.push(completion.status());
            flushed.extend(pool.reclaim(completion).ok());
        })
        .unwrap();
    spare.append(&mut flushed);
    (taken, statuses)
}

#[test]
fn a_failed_queue_restarts_in_place() {
    for frames in [FailedFrames::Flushed, FailedFrames::Kept] {
        let rig = Rig::new();
        let mut receiver = Receiver::new(&rig.domain(), FRAMES);
        let _flow = FlowHandle::create(&single(&rig.domain(), &receiver.queue), &udp_flow(53, 1)).unwrap();
        rig.deliver([udp(1, 53), udp(2, 53)]);
        let number = receiver.queue.number();
        assert!(rig.nic.fail_work_queue(number.0, frames));
        assert!(!rig.nic.fail_work_queue(number.0, frames), "once");
        let event = AsyncEvent { kind: EventKind::WorkQueueFatal, source: EventSource::WorkQueue { number } };
        assert_eq!(rig.context.async_event().unwrap(), Some(event));
        rig.deliver([udp(3, 53)]);
        assert_eq!(rig.stats().queue_not_ready, 1, "a queue in error has no buffer");

        let (taken, statuses) = restart(&mut receiver);
        let received = statuses.iter().filter(|status| **status == CompletionStatus::Success).count();
        let flushed = statuses.iter().filter(|status| **status == CompletionStatus::Flushed).count();
        assert_eq!(received, 2, "what came before the failure is not lost");
        let kept = FRAMES as usize - 2;
        let expected = if frames == FailedFrames::Flushed { (0, kept) } else { (kept, 0) };
        assert_eq!((taken, flushed), expected);
        assert_eq!(receiver.spare.len(), FRAMES as usize, "each frame came back once");
        assert_eq!(receiver.queue.state(), WorkQueueState::Ready);

        receiver.fill();
        assert_eq!(receiver.spare.len(), 0);
        // Twice through all frames.
        for round in 0..2 {
            rig.deliver((0..FRAMES as u16).map(|port| udp(port, 53)));
            assert_eq!(receiver.drain().len(), FRAMES as usize, "round {round}");
        }
        assert_eq!(rig.context.async_event().unwrap(), None);
    }
}

#[test]
fn a_queue_that_works_can_be_restarted_too() {
    let rig = Rig::new();
    let mut receiver = Receiver::new(&rig.domain(), FRAMES);
    let _flow = FlowHandle::create(&single(&rig.domain(), &receiver.queue), &udp_flow(53, 1)).unwrap();
    rig.deliver([udp(1, 53)]);
    assert_eq!(restart(&mut receiver), (FRAMES as usize - 1, vec![CompletionStatus::Success]));
    receiver.fill();
    rig.deliver([udp(1, 53)]);
    assert_eq!(receiver.drain().len(), 1);
}

#[test]
fn frames_of_two_queues_are_not_taken_back() {
    let rig = Rig::new();
    let (mut first, mut second) = (Receiver::new(&rig.domain(), 8), Receiver::new(&rig.domain(), 8));
    assert_eq!(restart(&mut first).0, 8);
    assert_eq!(restart(&mut second).0, 8);
    // Which queue has a frame of the first pool is not known from now on.
    second.receives.post(&mut first.pool, &mut vec![first.spare.pop().unwrap()]);
    first.fill();
    assert_eq!(restart(&mut first).0, 0);
    let Receiver { receives, pool, spare, .. } = &mut first;
    let wrong = receives.restart(&mut second.cq, pool, spare, |_, _| {});
    assert_eq!(wrong.expect_err("another completion queue").errno(), Some(libc::EINVAL));
}

#[test]
fn a_link_goes_down_and_up() {
    let rig = Rig::new();
    let mut receiver = Receiver::new(&rig.domain(), FRAMES);
    let _flow = FlowHandle::create(&single(&rig.domain(), &receiver.queue), &udp_flow(53, 1)).unwrap();
    let event = |kind| Some(AsyncEvent { kind, source: EventSource::Port(PORT) });
    assert!(rig.nic.set_link(1, false) && !rig.nic.set_link(2, false));
    rig.deliver([]);
    rig.deliver([udp(1, 53)]);
    assert_eq!(rig.context.async_event().unwrap(), event(EventKind::PortError));
    assert_eq!(rig.context.port(PORT).unwrap().state, PortState::Down);
    assert_eq!(rig.stats().rx_frames, 0);
    assert!(rig.nic.set_link(1, true));
    rig.deliver([]);
    rig.pump();
    assert_eq!(rig.context.async_event().unwrap(), event(EventKind::PortActive));
    assert_eq!(rig.context.port(PORT).unwrap().state, PortState::Active);
    assert_eq!(receiver.drain().len(), 1, "it waited on the wire");
}

#[test]
fn a_device_that_is_gone_refuses_everything() {
    let rig = Rig::new();
    let mut receiver = Receiver::new(&rig.domain(), FRAMES);
    let target = single(&rig.domain(), &receiver.queue);
    let flow = FlowHandle::create(&target, &udp_flow(53, 1)).unwrap();
    rig.nic.fail_device();
    let event = rig.context.async_event().unwrap().unwrap();
    assert_eq!((event.kind, event.source), (EventKind::DeviceFatal, EventSource::Device));
    assert!(rig.context.async_event().is_err(), "no event comes any more");
    rig.deliver([udp(1, 53)]);
    assert_eq!(rig.stats().rx_frames, 0);
    let eio = Some(libc::EIO);
    assert_eq!(ProtectionDomain::new(&rig.context).map(drop).expect_err("gone").errno(), eio);
    assert_eq!(FlowHandle::create(&target, &udp_flow(54, 1)).map(drop).expect_err("gone").errno(), eio);
    assert_eq!(rig.context.port(PORT).expect_err("gone").errno(), eio);
    let Receiver { receives, cq, pool, spare, .. } = &mut receiver;
    assert_eq!(receives.restart(cq, pool, spare, |_, _| {}).expect_err("gone").errno(), eio);
    assert!(spare.is_empty(), "the frames are not taken back, as the queue was not stopped");
    // What cannot be destroyed stays, and its memory too.
    drop((flow, target, receiver));
    drop(Arc::clone(&rig.context));
}

#[test]
fn planned_faults_are_made_after_their_frames() {
    let rig = Rig::new();
    rig.nic.plan_faults("queue@2/2,device@6".parse().unwrap());
    let mut receiver = Receiver::new(&rig.domain(), FRAMES);
    let _flow = FlowHandle::create(&single(&rig.domain(), &receiver.queue), &udp_flow(53, 1)).unwrap();
    let kind = |rig: &Rig| rig.context.async_event().unwrap().map(|event| event.kind);
    rig.deliver([udp(1, 53)]);
    assert_eq!(kind(&rig), None);
    for _ in 0..2 {
        rig.deliver([udp(2, 53)]);
        rig.pump();
        assert_eq!(kind(&rig), Some(EventKind::WorkQueueFatal));
        restart(&mut receiver);
        receiver.fill();
        rig.deliver([udp(3, 53)]);
    }
    rig.deliver([udp(4, 53)]);
    rig.pump();
    assert_eq!(kind(&rig), Some(EventKind::WorkQueueFatal));
    assert_eq!(kind(&rig), Some(EventKind::DeviceFatal));
}
