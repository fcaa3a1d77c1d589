//! Flows about what is sent, through the verbs API on a real soft NIC: dropped, counted, and seen by
//! sniffers.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;

use crate::verbs_support::*;
use softnic::Personality;
use verbs::{
    ActionSpec, CompletionQueue, CompletionStatus, Counters, FlowAttr, FlowHandle, FlowKind, FlowTarget,
    FramePool, RawQueuePair, SendFlags,
};

/// A raw queue pair in RTS and what it completes into.
struct Sender {
    pair: RawQueuePair,
    cq: CompletionQueue,
    pool: FramePool,
}

impl Sender {
    fn new(rig: &Rig) -> Self {
        let cq = CompletionQueue::builder(&rig.context, 256).build().unwrap();
        let pair = RawQueuePair::builder(&rig.domain(), &cq.handle(), &cq.handle()).max_sends(128);
        let pair = pair.build().unwrap().to_rts(PORT).unwrap();
        Self { pair, cq, pool: rig.pool(256) }
    }

    /// Sends frames, lets the device work, and answers how many sends succeeded.
    fn send(&mut self, rig: &Rig, frames: &[Vec<u8>]) -> usize {
        for bytes in frames {
            let mut frame = self.pool.take().expect("free");
            self.pool.bytes_mut(&mut frame)[..bytes.len()].copy_from_slice(bytes);
            self.pair.send(&mut self.pool, frame, bytes.len(), SendFlags::empty()).expect("room");
        }
        rig.pump();
        let mut succeeded = 0;
        while let Some(mut batch) = self.cq.poll() {
            while let Some(completion) = batch.next() {
                assert_eq!(completion.status(), CompletionStatus::Success);
                let frame = self.pool.reclaim(completion).expect("sent");
                self.pool.release(frame);
                succeeded += 1;
            }
        }
        succeeded
    }

    fn target(&self) -> FlowTarget {
        FlowTarget::Raw(self.pair.handle())
    }
}

#[test]
fn egress_flows_drop_and_count_before_the_wire() {
    let rig = Rig::new();
    let mut sender = Sender::new(&rig);
    let (dropped, counted) = (Counters::new(&rig.context).unwrap(), Counters::new(&rig.context).unwrap());
    let count = |counters: &Arc<Counters>| ActionSpec::Count(Arc::clone(counters));
    let drop_dns = udp_flow(53, 1).egress(true).action(ActionSpec::Drop).action(count(&dropped));
    let dropping = FlowHandle::create(&sender.target(), &drop_dns).unwrap();
    let _counting =
        FlowHandle::create(&sender.target(), &ipv4_flow().priority(1).egress(true).action(count(&counted)))
            .unwrap();
    let frames = [udp(1, 53), udp(1, 80), udp(2, 53)];
    assert_eq!(sender.send(&rig, &frames), 3, "the device did its part");
    assert_eq!(rig.sent(), frames[1..2]);
    let stats = rig.stats();
    assert_eq!((stats.tx_frames, stats.tx_flow_dropped, stats.tx_errors), (1, 2, 0));
    assert_eq!((dropped.read().unwrap().packets, counted.read().unwrap().packets), (2, 1));
    drop(dropping);
    sender.send(&rig, &frames[..1]);
    assert_eq!(rig.sent(), frames[..1]);
    assert_eq!(counted.read().unwrap().packets, 2);
}

#[test]
fn both_directions_keep_to_themselves() {
    let rig = Rig::new();
    let mut sender = Sender::new(&rig);
    let mut receiver = Receiver::new(&rig.domain(), 16);
    let target = single(&rig.domain(), &receiver.queue);
    let _received = FlowHandle::create(&target, &udp_flow(53, 7)).unwrap();
    let _sent = FlowHandle::create(&target, &udp_flow(53, 8).egress(true).action(ActionSpec::Drop)).unwrap();
    rig.deliver([udp(1, 53)]);
    assert_eq!(receiver.drain().iter().map(|packet| packet.tag).collect::<Vec<_>>(), [7]);
    sender.send(&rig, &[udp(1, 53), udp(1, 54)]);
    assert_eq!(rig.sent(), [udp(1, 54)]);
    assert!(receiver.drain().is_empty(), "the queue pair of a flow about what is sent gets nothing");
}

#[test]
fn sniffers_see_sent_frames() {
    for personality in [Personality::Ideal, Personality::Mlx5] {
        let rig = Rig::with_personality(personality);
        let mut sender = Sender::new(&rig);
        let mut sniffer = Receiver::new(&rig.domain(), 128);
        let attr = FlowAttr::new(FlowKind::Sniffer, PORT);
        let copies = FlowHandle::create(&single(&rig.domain(), &sniffer.queue), &attr).unwrap();
        let frames: Vec<_> = (0..100).map(|port| udp(port, 53)).collect();
        sender.send(&rig, &frames);
        rig.deliver([udp(200, 53)]);
        let seen: Vec<_> = sniffer.drain().into_iter().map(|packet| packet.bytes).collect();
        assert_eq!(seen.len(), 101, "{personality}");
        assert!(seen.iter().take(100).eq(&frames) && seen[100] == udp(200, 53), "{personality}");
        assert_eq!(rig.sent(), frames);
        assert_eq!((rig.stats().replicated, rig.stats().unmatched), (101, 1));
        drop(copies);
        sender.send(&rig, &frames[..1]);
        assert!(sniffer.drain().is_empty());
    }
}
