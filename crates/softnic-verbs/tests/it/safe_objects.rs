//! Attributes and states of objects made through `verbs`, on a soft NIC.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;

use crate::verbs_support::*;
use softnic::Personality;
use verbs::{
    ActionSpec, CompletionQueue, CounterPoint, Counters, EspAction, EspFlags, FlowAction, FlowHandle,
    HashConfig, HashFields, QueuePairKind, QueuePairState, RawQueuePair, ReadFlags, RssQueuePair,
    SharedReceiveQueue, WorkQueueState,
};

#[test]
fn a_queue_pair_reports_the_attributes_it_was_made_with() {
    let rig = Rig::new();
    let cq = CompletionQueue::builder(&rig.context, 64).build().unwrap();
    let idle = RawQueuePair::builder(&rig.domain(), &cq.handle(), &cq.handle())
        .max_sends(10)
        .max_receives(20)
        .max_send_parts(2)
        .max_inline_bytes(64)
        .signal_all(true)
        .token(0xbeef)
        .build()
        .unwrap();
    let handle = idle.handle();
    let caps = handle.caps();
    assert!(caps.max_sends >= 10 && caps.max_receives >= 20, "{caps:?}");
    assert!(caps.max_send_parts >= 2 && caps.max_inline_bytes >= 64, "{caps:?}");
    let attributes = handle.query().unwrap();
    assert_eq!((attributes.state, attributes.kind), (QueuePairState::Reset, QueuePairKind::RawPacket));
    assert_eq!((attributes.caps, attributes.signal_all, attributes.token), (caps, true, 0xbeef));
    let pair = idle.to_rts(PORT).unwrap();
    let attributes = pair.handle().query().unwrap();
    assert_eq!((attributes.state, attributes.port), (QueuePairState::ReadyToSend, PORT));
}

#[test]
fn datagram_queue_pairs_can_be_made_and_asked() {
    let make = |rig: &Rig, kind| {
        let cq = CompletionQueue::builder(&rig.context, 64).build().unwrap();
        RawQueuePair::builder(&rig.domain(), &cq.handle(), &cq.handle()).kind(kind).build()
    };
    for personality in Personality::ALL {
        let rig = Rig::with_personality(personality);
        let pair = make(&rig, QueuePairKind::Datagram).unwrap();
        assert_eq!(pair.handle().query().unwrap().kind, QueuePairKind::Datagram);
        let error = make(&rig, QueuePairKind::Unknown(2)).err().expect("no connections");
        assert_eq!(error.errno(), Some(libc::EOPNOTSUPP), "{error}");
    }
}

#[test]
fn shared_receives_are_not_for_raw_packets() {
    let rig = Rig::new();
    let cq = CompletionQueue::builder(&rig.context, 64).build().unwrap();
    let refusal = match SharedReceiveQueue::new(&rig.domain(), 16, 1) {
        Ok(shared) => {
            let builder = RawQueuePair::builder(&rig.domain(), &cq.handle(), &cq.handle());
            builder.shared_receive_queue(&shared).build().err().expect("refused")
        }
        Err(error) => error,
    };
    assert!(matches!(refusal.errno(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS)), "{refusal}");
}

#[test]
fn a_work_queue_goes_through_its_states() {
    let rig = Rig::new();
    let mut receiver = Receiver::new(&rig.domain(), 8);
    assert_eq!(receiver.queue.state(), WorkQueueState::Ready);
    receiver.queue.to_error().unwrap();
    assert_eq!(receiver.queue.state(), WorkQueueState::Error);
    let mut list = Vec::new();
    receiver.cq.poll_classic(&mut list, 100);
    assert_eq!(list.len(), 8, "what was posted is flushed");
    for completion in list {
        assert_eq!(completion.status(), verbs::CompletionStatus::Flushed);
        receiver.spare.push(receiver.pool.reclaim_classic(completion).expect("a frame"));
    }
    assert_eq!(receiver.receives.post(&mut receiver.pool, &mut receiver.spare), 0, "not in RDY");
    receiver.queue.reset().unwrap();
    receiver.queue.ready().unwrap();
    assert_eq!(receiver.receives.post(&mut receiver.pool, &mut receiver.spare), 8);
}

#[test]
fn rss_refuses_short_keys_and_unknown_functions() {
    let rig = Rig::new();
    let receiver = Receiver::new(&rig.domain(), 8);
    let table = table(&[&receiver.queue]);
    let domain = rig.domain();
    let hash = HashConfig { key: KEY, fields: HashFields::SRC_IPV4 };
    let builder = || RssQueuePair::builder(&domain, &table).hash(&hash).token(5);
    builder().build().unwrap();
    let error = builder().key(&KEY[..16]).build().err().expect("too short");
    assert_eq!(error.errno(), Some(libc::EINVAL));
    let error = builder().function(verbs::HashFunction::Unknown(2)).build().err().expect("no such function");
    assert!(matches!(error.errno(), Some(libc::EINVAL | libc::EOPNOTSUPP)), "{error}");
}

#[test]
fn counters_have_the_points_they_are_given() {
    let rig = Rig::new();
    let receiver = Receiver::new(&rig.domain(), 8);
    let target = single(&rig.domain(), &receiver.queue);
    let points = [CounterPoint::Bytes, CounterPoint::Packets];
    let counters = Counters::with_points(&rig.context, &points).unwrap();
    let attr = udp_flow(53, 1).action(ActionSpec::Count(Arc::clone(&counters)));
    let _flow = FlowHandle::create(&target, &attr).unwrap();
    let (first, second) = (udp(1, 53), udp(2, 53));
    let bytes = (first.len() + second.len()) as u64;
    rig.deliver([first, second]);
    let mut values = [0; 2];
    counters.values(ReadFlags::PREFER_CACHED, &mut values).unwrap();
    assert_eq!(values, [bytes, 2]);
    assert_eq!((counters.read().unwrap().packets, counters.read().unwrap().bytes), (2, bytes));
    assert!(counters.attach(CounterPoint::Packets, 0).is_err(), "a flow counts here already");
    let error = Counters::with_points(&rig.context, &[CounterPoint::Unknown(9)]).expect_err("no such point");
    assert!(matches!(error.errno(), Some(libc::EINVAL | libc::EOPNOTSUPP)), "{error}");
}

#[test]
fn esp_actions_are_refused_as_on_todays_kernels() {
    let rig = Rig::new();
    let action = EspAction {
        spi: 1,
        seq: 0,
        tfc_pad_bytes: 0,
        flags: EspFlags::FULL_OFFLOAD,
        hard_limit_packets: 0,
        esn: None,
        iv: 1,
        salt: 2,
        icv_bytes: 16,
        key: vec![0; 16],
    };
    let error = FlowAction::esp(&rig.context, &action).expect_err("no ESP offload");
    assert_eq!(error.errno(), Some(libc::EOPNOTSUPP), "{error}");
    let error = FlowAction::esp(&rig.context, &EspAction { key: vec![0; 33], ..action }).err().unwrap();
    assert_eq!(error.errno(), Some(libc::EINVAL), "{error}");
}
