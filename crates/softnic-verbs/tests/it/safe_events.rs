//! Completion channels, and what else can be asked of a completion queue, on a real soft NIC.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::verbs_support::*;
use verbs::{
    CompletionChannel, CompletionFields, CompletionQueue, CompletionStatus, FlowHandle, WorkCompletion,
};

const SHORT: Option<Duration> = Some(Duration::from_millis(20));

fn receiver_with(rig: &Rig, channel: &Arc<CompletionChannel>, token: usize) -> Receiver {
    let fields = CompletionFields::BYTE_LEN | CompletionFields::FLOW_TAG;
    let cq = CompletionQueue::builder(&rig.context, 64).fields(fields).channel(channel, token);
    Receiver::with_cq(&rig.domain(), cq.build().unwrap(), 16)
}

#[test]
fn an_armed_queue_sends_one_event() {
    let rig = Rig::new();
    let channel = CompletionChannel::new(&rig.context).unwrap();
    let mut receiver = receiver_with(&rig, &channel, 42);
    let _flow = FlowHandle::create(&single(&rig.domain(), &receiver.queue), &udp_flow(53, 1)).unwrap();

    rig.deliver([udp(1, 53)]);
    assert_eq!(channel.event().unwrap(), None, "nobody asked");
    receiver.cq.request_notification(false).unwrap();
    assert_eq!(receiver.drain().len(), 1);
    assert_eq!(channel.wait(SHORT).unwrap(), None, "nothing came after the request");

    rig.deliver([udp(2, 53), udp(3, 53)]);
    assert_eq!(channel.wait(SHORT).unwrap().unwrap().token, 42);
    assert_eq!(channel.event().unwrap(), None, "one request, one event");
    assert_eq!(receiver.drain().len(), 2);
}

#[test]
fn an_event_wakes_a_thread_that_waits() {
    let rig = Rig::new();
    let channel = CompletionChannel::new(&rig.context).unwrap();
    let mut receiver = receiver_with(&rig, &channel, 7);
    let _flow = FlowHandle::create(&single(&rig.domain(), &receiver.queue), &udp_flow(53, 1)).unwrap();
    receiver.cq.request_notification(false).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| channel.wait(Some(Duration::from_secs(30))).unwrap());
        rig.deliver([udp(1, 53)]);
        assert_eq!(waiter.join().unwrap().map(|event| event.token), Some(7));
    });
}

#[test]
fn queues_that_are_gone_leave_no_events_behind() {
    let rig = Rig::new();
    let channel = CompletionChannel::new(&rig.context).unwrap();
    let mut gone = receiver_with(&rig, &channel, 1);
    let flow = FlowHandle::create(&single(&rig.domain(), &gone.queue), &udp_flow(53, 1)).unwrap();
    gone.cq.request_notification(false).unwrap();
    rig.deliver([udp(1, 53)]);
    drop((flow, gone));
    assert_eq!(channel.event().unwrap(), None);
}

#[test]
fn a_queue_grows_and_keeps_what_it_holds() {
    let rig = Rig::new();
    let mut receiver = Receiver::new(&rig.domain(), 16);
    let _flow = FlowHandle::create(&single(&rig.domain(), &receiver.queue), &udp_flow(53, 1)).unwrap();
    rig.deliver([udp(1, 53), udp(2, 53)]);
    let before = receiver.cq.entries();
    receiver.cq.resize(before * 2).unwrap();
    assert!(receiver.cq.entries() >= before * 2);
    assert_eq!(receiver.drain().len(), 2);
    assert_eq!(receiver.cq.resize(0).expect_err("none").errno(), Some(libc::EINVAL));
    assert!(receiver.cq.moderate(16, 100).is_ok(), "the ideal device moderates");
}

#[test]
fn completions_come_by_value_too() {
    let rig = Rig::new();
    let mut receiver = Receiver::new(&rig.domain(), 16);
    let _flow = FlowHandle::create(&single(&rig.domain(), &receiver.queue), &udp_flow(53, 1)).unwrap();
    rig.deliver((0..5).map(|i| udp(i, 53)));
    let mut list: Vec<WorkCompletion> = Vec::new();
    assert_eq!(receiver.cq.poll_classic(&mut list, 3), 3);
    assert_eq!(receiver.cq.poll_classic(&mut list, 100), 2);
    assert_eq!(receiver.cq.poll_classic(&mut list, 100), 0);
    for (i, completion) in list.into_iter().enumerate() {
        assert_eq!(completion.status(), CompletionStatus::Success);
        let bytes = completion.byte_len() as usize;
        let frame = receiver.pool.reclaim_classic(completion).expect("a frame");
        assert_eq!(receiver.pool.bytes(&frame)[..bytes], udp(i as u16, 53));
        receiver.pool.release(frame);
    }
}

#[test]
fn timestamps_become_the_time_of_day() {
    let rig = Rig::new();
    let fields = CompletionFields::COMPLETION_TIMESTAMP | CompletionFields::COMPLETION_TIMESTAMP_WALLCLOCK;
    let cq = CompletionQueue::builder(&rig.context, 64).fields(fields).build().unwrap();
    let mut receiver = Receiver::with_cq(&rig.domain(), cq, 16);
    let _flow = FlowHandle::create(&single(&rig.domain(), &receiver.queue), &udp_flow(53, 1)).unwrap();
    let before = SystemTime::now();
    let clock = rig.context.clock().unwrap();
    rig.deliver([udp(1, 53)]);
    let after = SystemTime::now();
    let mut batch = receiver.cq.poll().expect("one");
    let completion = batch.next().expect("one");
    let at = clock.system_time(completion.timestamp().expect("asked for")).unwrap();
    let wall = SystemTime::UNIX_EPOCH + Duration::from_nanos(completion.wallclock_ns().expect("asked for"));
    // The two clocks are read one after the other, and a shared machine may stop in between.
    let slack = Duration::from_millis(50);
    for time in [at, wall] {
        assert!(time + slack >= before && time <= after + slack, "{before:?} {time:?} {after:?}");
    }
}
