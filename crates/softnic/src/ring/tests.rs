//! A ring, one end after the other, and both at once in two threads.

use super::*;

fn ring(entries: u32) -> (RingProducer, RingConsumer) {
    let (bytes, capacity) = Ring::shape(entries, 8).unwrap();
    let slots = QueueMemory::own(bytes, RING_ALIGN).unwrap();
    let doorbell = QueueMemory::own(DOORBELL_BYTES, RING_ALIGN).unwrap();
    Ring::ends(slots, doorbell, 8, capacity, entries)
}

fn push(producer: &mut RingProducer, value: u64) -> bool {
    if !producer.has_room(1) {
        return false;
    }
    // SAFETY: there is room, so the slot is this side's; it is 8 aligned bytes.
    unsafe { producer.slot().cast::<u64>().write(value) };
    producer.advance();
    true
}

fn pop(consumer: &mut RingConsumer) -> Option<u64> {
    if !consumer.has_next() {
        return None;
    }
    // SAFETY: the slot was published, so it is this side's; it is 8 aligned bytes.
    let value = unsafe { consumer.slot().cast::<u64>().read() };
    consumer.advance();
    Some(value)
}

#[test]
fn nothing_is_seen_before_it_is_published() {
    let (mut producer, mut consumer) = ring(4);
    assert!(push(&mut producer, 7));
    assert_eq!(pop(&mut consumer), None);
    producer.publish();
    assert_eq!(pop(&mut consumer), Some(7));
}

#[test]
fn a_full_ring_takes_no_more_until_slots_come_back() {
    let (mut producer, mut consumer) = ring(4);
    assert!((0..4).all(|value| push(&mut producer, value)));
    producer.publish();
    assert!(!push(&mut producer, 4));
    assert_eq!(pop(&mut consumer), Some(0));
    assert!(!push(&mut producer, 4), "the consumer has not given it back yet");
    consumer.publish();
    assert!(push(&mut producer, 4));
}

#[test]
fn a_run_ends_where_the_memory_or_what_was_published_ends() {
    let (mut producer, mut consumer) = ring(4);
    assert_eq!(consumer.run().1, 0);
    assert!((0..3).all(|value| push(&mut producer, value)));
    producer.publish();
    assert_eq!(consumer.run(), (consumer.slot(), 3));
    consumer.advance_by(3);
    consumer.publish();
    assert!((3..6).all(|value| push(&mut producer, value)));
    producer.publish();
    assert_eq!(consumer.run().1, 1, "the last slot in memory");
    assert_eq!(pop(&mut consumer), Some(3));
    assert_eq!(consumer.run().1, 2);
    assert_eq!((pop(&mut consumer), pop(&mut consumer)), (Some(4), Some(5)));
}

#[test]
fn the_limit_is_the_requested_size() {
    let (mut producer, _consumer) = ring(5);
    assert_eq!((0..8).filter(|value| push(&mut producer, *value)).count(), 5);
    let (mut none, _consumer) = ring(0);
    assert!(!push(&mut none, 0));
}

#[test]
fn an_invalid_index_is_ignored() {
    let (producer, mut consumer) = ring(4);
    producer.ring.indices.produced().store(1000, Ordering::Release);
    assert_eq!(pop(&mut consumer), None);
}

#[test]
fn shapes_are_powers_of_two_within_the_limit() {
    assert_eq!(Ring::shape(0, 32), Some((64, 2)));
    assert_eq!(Ring::shape(1000, 32), Some((32768, 1024)));
    assert_eq!(Ring::shape(MAX_SLOTS + 1, 32), None);
    assert_eq!(Ring::shape(u32::MAX, 32), None);
}

#[test]
fn two_threads_pass_everything_in_order() {
    const COUNT: u64 = if cfg!(miri) { 200 } else { 200_000 };
    let (mut producer, mut consumer) = ring(64);
    let sender = std::thread::spawn(move || {
        for value in 0..COUNT {
            while !push(&mut producer, value) {
                producer.publish();
                std::thread::yield_now();
            }
            if value % 7 == 0 {
                producer.publish();
            }
        }
        producer.publish();
    });
    for expected in 0..COUNT {
        let value = loop {
            if let Some(value) = pop(&mut consumer) {
                break value;
            }
            consumer.publish();
            std::thread::yield_now();
        };
        assert_eq!(value, expected);
    }
    sender.join().unwrap();
}
