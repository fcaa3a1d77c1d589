//! Queues refuse rings that are not of their entries.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};

use super::completion_queues::{OwnCompletionQueue, Wish};
use super::queue_pairs::OwnSends;
use super::work_queues::OwnReceives;
use super::{completion_queues, domains, queue_pairs, work_queues};
use crate::errno::{EINVAL, ENOMEM, Verb};
use crate::formats::Cqe;
use crate::nic::{Drive, Nic, OwnedNic, SoftNicConfig};
use crate::personality::Personality;
use crate::ring::{Ring, RingConsumer, RingMemory, RingProducer};
use crate::shared::PortConfig;
use crate::state::{FrameEdits, State};
use crate::work::{SendShape, receive_slot_bytes};

const CQE_BYTES: usize = size_of::<Cqe>();

fn nic() -> OwnedNic {
    OwnedNic::create(SoftNicConfig {
        name: "slots0".to_owned(),
        personality: Personality::Ideal,
        ports: vec![PortConfig { wire: Box::new(wire::NullWire), mtu_bytes: 1500 }],
        drive: Drive::Manual,
    })
    .unwrap()
}

fn ring(slot_bytes: usize) -> (RingProducer, RingConsumer) {
    let memory = RingMemory { allocator: None, resource: 0, doorbell: 0, refusal: ENOMEM };
    Ring::make(4, slot_bytes, memory).unwrap()
}

fn insert_cq(nic: &Nic, state: &mut State, producer: RingProducer) -> Verb<u32> {
    let queue = OwnCompletionQueue {
        owner: 0,
        producer,
        vector: 0,
        ignore_overrun: false,
        wants_checksums: Arc::new(AtomicBool::new(false)),
        wish: Wish::default(),
        channel: None,
        domain: None,
        native: 0,
    };
    completion_queues::insert(nic, state, queue)
}

fn receives(domain: u32, cq: u32, max_sge: u32, slot_bytes: usize) -> OwnReceives {
    OwnReceives {
        owner: 0,
        domain,
        cq,
        consumer: ring(slot_bytes).1,
        max_sge,
        edits: FrameEdits::default(),
        native_state: Arc::new(AtomicU32::new(0)),
        native: 0,
    }
}

#[test]
fn completion_queues_take_rings_of_completions_alone() {
    let owned = nic();
    let nic = owned.nic();
    let mut state = nic.control();
    for slot_bytes in [8, CQE_BYTES - 8, CQE_BYTES + 1, 2 * CQE_BYTES] {
        assert_eq!(insert_cq(nic, &mut state, ring(slot_bytes).0), Err(EINVAL), "{slot_bytes}");
    }
    let (producer, mut old) = ring(CQE_BYTES);
    let cq = insert_cq(nic, &mut state, producer).unwrap();
    let mut exchange = |old: &mut RingConsumer, producer_bytes, consumer_bytes| {
        let (mut producer, mut consumer) = (ring(producer_bytes).0, ring(consumer_bytes).1);
        completion_queues::exchange(&mut state, cq, Some(old), &mut producer, &mut consumer)
    };
    assert_eq!(exchange(&mut old, 8, CQE_BYTES), Err(EINVAL));
    assert_eq!(exchange(&mut old, CQE_BYTES, 8), Err(EINVAL));
    assert_eq!(exchange(&mut ring(8).1, CQE_BYTES, CQE_BYTES), Err(EINVAL));
    assert_eq!(exchange(&mut old, CQE_BYTES, CQE_BYTES), Ok(()));
}

#[test]
fn receive_queues_take_rings_of_their_requests_alone() {
    let owned = nic();
    let nic = owned.nic();
    let mut state = nic.control();
    let domain = domains::allocate(&mut state, 0).unwrap();
    let cq = insert_cq(nic, &mut state, ring(CQE_BYTES).0).unwrap();
    let mut insert = |max_sge, slot_bytes| {
        let queue = receives(domain, cq, max_sge, slot_bytes);
        work_queues::insert(nic, &mut state, queue, domain).map(|_| ())
    };
    assert_eq!(insert(2, receive_slot_bytes(1)), Err(EINVAL));
    assert_eq!(insert(1, receive_slot_bytes(2)), Err(EINVAL));
    assert_eq!(insert(0, receive_slot_bytes(0)), Err(EINVAL), "the engine reads the first element");
    assert_eq!(insert(2, receive_slot_bytes(2)), Ok(()));
}

#[test]
fn queue_pairs_take_rings_of_their_requests_alone() {
    let owned = nic();
    let nic = owned.nic();
    let mut state = nic.control();
    let domain = domains::allocate(&mut state, 0).unwrap();
    let cq = insert_cq(nic, &mut state, ring(CQE_BYTES).0).unwrap();
    let shape = SendShape { max_sge: 1, max_inline: 64, max_tso_header: 0, datagram: true };
    let mut insert = |receive_bytes, send_bytes| {
        let (consumer, bell) = (ring(send_bytes).1, nic.send_bell());
        let sends = OwnSends { cq, consumer, signal_all: false, shape, bell };
        let receives = receives(domain, cq, 1, receive_bytes);
        queue_pairs::insert(&mut state, receives, sends, domain).map(|_| ())
    };
    let raw_bytes = SendShape { datagram: false, ..shape }.slot_bytes();
    assert_eq!(insert(receive_slot_bytes(1), raw_bytes), Err(EINVAL), "no room for the envelope");
    assert_eq!(insert(receive_slot_bytes(2), shape.slot_bytes()), Err(EINVAL));
    assert_eq!(insert(receive_slot_bytes(1), shape.slot_bytes()), Ok(()));
}
