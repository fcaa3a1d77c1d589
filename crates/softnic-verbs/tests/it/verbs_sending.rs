//! Raw queue pairs of the verbs API on a real soft NIC: sending frames, and receiving without RSS.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::verbs_support::*;
use verbs::{
    CompletionFields, CompletionQueue, CompletionStatus, FlowHandle, FlowTarget, Frame, FramePool, Opcode,
    RawQueuePair, SendFlags,
};

/// A raw queue pair in RTS and what it completes into.
struct Sender {
    pair: RawQueuePair,
    cq: CompletionQueue,
    pool: FramePool,
}

impl Sender {
    fn new(rig: &Rig, max_sends: u32, max_receives: u32) -> Self {
        let domain = rig.domain();
        let fields = CompletionFields::BYTE_LEN | CompletionFields::QP_NUM;
        let cq = CompletionQueue::builder(&rig.context, 256).fields(fields).build().unwrap();
        let pair = RawQueuePair::builder(&domain, &cq.handle(), &cq.handle())
            .max_sends(max_sends)
            .max_receives(max_receives)
            .build()
            .unwrap()
            .to_rts(PORT)
            .unwrap();
        Self { pair, cq, pool: rig.pool(512) }
    }

    fn frame(&mut self, bytes: &[u8]) -> Frame {
        let mut frame = self.pool.take().expect("free");
        self.pool.bytes_mut(&mut frame)[..bytes.len()].copy_from_slice(bytes);
        frame
    }
}

#[test]
fn sent_frames_reach_the_wire_and_come_back_to_the_pool() {
    let rig = Rig::new();
    let mut sender = Sender::new(&rig, 16, 0);
    let number = sender.pair.number();
    for i in 0..3 {
        let bytes = udp(i, 7);
        let frame = sender.frame(&bytes);
        sender.pair.send(&mut sender.pool, frame, bytes.len(), SendFlags::empty()).expect("room");
    }
    assert_eq!(sender.pool.free_count(), 509);
    assert!(sender.cq.poll().is_none(), "nothing completes before the device has run");
    rig.pump();
    assert_eq!(rig.sent(), [udp(0, 7), udp(1, 7), udp(2, 7)]);
    assert_eq!(rig.stats().tx_frames, 3);
    while let Some(mut batch) = sender.cq.poll() {
        while let Some(completion) = batch.next() {
            assert_eq!((completion.status(), completion.opcode()), (CompletionStatus::Success, Opcode::Send));
            assert_eq!(completion.qp_num(), Some(number));
            let frame = sender.pool.reclaim(completion).expect("sent");
            sender.pool.release(frame);
        }
    }
    assert_eq!(sender.pool.free_count(), 512);
}

#[test]
fn a_send_that_cannot_be_gives_its_frame_back() {
    let rig = Rig::new();
    let mut sender = Sender::new(&rig, 4, 0);
    assert!(sender.pair.last_refusal().is_none());
    let frame = sender.frame(&udp(1, 2));
    let too_long = FRAME_BYTES as usize + 1;
    let frame =
        sender.pair.send(&mut sender.pool, frame, too_long, SendFlags::empty()).expect_err("too long");
    assert_eq!(sender.pair.last_refusal().unwrap().raw_os_error(), Some(libc::EINVAL));
    sender.pool.release(frame);

    let mut other = rig.pool(1);
    let foreign = other.take().expect("free");
    let foreign = sender.pair.send(&mut sender.pool, foreign, 60, SendFlags::empty()).expect_err("foreign");
    other.release(foreign);

    let mut sent = 0;
    let refused = loop {
        let frame = sender.frame(&udp(1, 2));
        match sender.pair.send(&mut sender.pool, frame, 60, SendFlags::empty()) {
            Ok(()) => sent += 1,
            Err(frame) => break frame,
        }
    };
    assert!(sent >= 4, "as many as were asked for");
    assert_eq!(sender.pair.last_refusal().unwrap().raw_os_error(), Some(libc::ENOMEM));
    sender.pool.release(refused);
    rig.pump();
    assert_eq!(rig.sent().len(), sent);
    let frame = sender.frame(&udp(1, 2));
    assert!(sender.pair.send(&mut sender.pool, frame, 60, SendFlags::empty()).is_ok(), "there is room again");
}

#[test]
fn checksums_are_filled_in_where_that_is_asked_for() {
    let rig = Rig::new();
    let mut sender = Sender::new(&rig, 4, 0);
    let right = udp(1, 7);
    let mut blank = right.clone();
    blank[24..26].fill(0xee);
    blank[40..42].fill(0xee);
    for flags in [SendFlags::IP_CSUM, SendFlags::empty()] {
        let frame = sender.frame(&blank);
        sender.pair.send(&mut sender.pool, frame, blank.len(), flags).expect("room");
    }
    // Bits without a name are not passed on.
    let frame = sender.frame(&blank);
    let unnamed = SendFlags::from_bits_retain(1 << 30);
    sender.pair.send(&mut sender.pool, frame, blank.len(), unnamed).expect("room");
    rig.pump();
    assert_eq!(rig.sent(), [right, blank.clone(), blank]);
}

#[test]
fn a_raw_queue_pair_receives_what_a_flow_gives_it() {
    let rig = Rig::new();
    let mut sender = Sender::new(&rig, 1, 8);
    let _flow = FlowHandle::create(&FlowTarget::Raw(sender.pair.handle()), &udp_flow(53, 1)).unwrap();
    let mut frames: Vec<_> = (0..8).filter_map(|_| sender.pool.take()).collect();
    assert_eq!(sender.pair.post_receives(&mut sender.pool, &mut frames), 8);
    rig.deliver([udp(9, 53)]);
    let mut batch = sender.cq.poll().expect("a packet");
    let completion = batch.next().expect("a packet");
    assert_eq!(completion.opcode(), Opcode::Receive);
    let len = completion.byte_len().expect("asked for") as usize;
    let frame = sender.pool.reclaim(completion).expect("posted");
    assert_eq!(&sender.pool.bytes(&frame)[..len], udp(9, 53));
    sender.pool.release(frame);
}

#[test]
fn a_queue_pair_is_not_made_ready_on_a_port_that_is_not_there() {
    let rig = Rig::new();
    let cq = CompletionQueue::builder(&rig.context, 16).build().unwrap();
    let idle = RawQueuePair::builder(&rig.domain(), &cq.handle(), &cq.handle()).max_sends(1).build().unwrap();
    let error = idle.to_rts(verbs::PortNumber(3)).err().expect("no such port");
    assert!(error.to_string().contains("to INIT"), "{error}");
}
