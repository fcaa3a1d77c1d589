//! The ring's two ends in every order of their steps that the memory model allows, by loom.
//!
//! Loom does not see memory behind raw pointers, so each slot has a cell beside it that is read and written
//! with the slot: loom fails a run in which a cell is touched by both sides without an order between them.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::*;

/// The slots.
struct Cells(Vec<UnsafeCell<u64>>);

// SAFETY: loom itself checks that the cells are not used by two threads at once; that is what is tested.
unsafe impl Sync for Cells {}
// SAFETY: as above.
unsafe impl Send for Cells {}

impl Cells {
    fn at(&self, position: u32) -> &UnsafeCell<u64> {
        &self.0[position as usize % self.0.len()]
    }
}

fn ring(limit: u32) -> (RingProducer, RingConsumer, Arc<Cells>) {
    let (bytes, capacity) = Ring::shape(limit, 8).unwrap();
    let slots = QueueMemory::own(bytes, RING_ALIGN).unwrap();
    let doorbell = QueueMemory::own(DOORBELL_BYTES, RING_ALIGN).unwrap();
    let (producer, consumer) = Ring::ends(slots, doorbell, 8, capacity, limit);
    let cells = Cells((0..capacity).map(|_| UnsafeCell::new(u64::MAX)).collect());
    (producer, consumer, Arc::new(cells))
}

fn push(producer: &mut RingProducer, cells: &Cells, value: u64) {
    while !producer.has_room(1) {
        thread::yield_now();
    }
    cells.at(producer.position()).with_mut(|cell| {
        // SAFETY: loom checks it.
        unsafe { cell.write(value) };
    });
    producer.advance();
}

fn pop(consumer: &mut RingConsumer, cells: &Cells) -> Option<u64> {
    if !consumer.has_next() {
        return None;
    }
    // SAFETY: loom checks it.
    let value = cells.at(consumer.position()).with(|cell| unsafe { cell.read() });
    consumer.advance();
    Some(value)
}

#[test]
fn everything_comes_once_and_in_order_round_the_ring() {
    // Once round the ring, and one more.
    const COUNT: u64 = 3;
    loom::model(|| {
        let (mut producer, mut consumer, cells) = ring(2);
        let theirs = Arc::clone(&cells);
        let sender = thread::spawn(move || {
            for value in 0..COUNT {
                push(&mut producer, &theirs, value);
                producer.publish();
            }
        });
        for expected in 0..COUNT {
            let value = loop {
                match pop(&mut consumer, &cells) {
                    Some(value) => break value,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(value, expected);
            consumer.publish();
        }
        sender.join().unwrap();
        assert_eq!(pop(&mut consumer, &cells), None);
    });
}

#[test]
fn a_batch_is_seen_whole_or_not_at_all() {
    loom::model(|| {
        let (mut producer, mut consumer, cells) = ring(4);
        let theirs = Arc::clone(&cells);
        let sender = thread::spawn(move || {
            for value in 0..3 {
                push(&mut producer, &theirs, value);
            }
            producer.publish();
        });
        let seen = consumer.available();
        assert!(seen == 0 || seen == 3, "{seen} of a batch of 3");
        for expected in 0..u64::from(seen) {
            assert_eq!(pop(&mut consumer, &cells), Some(expected));
        }
        sender.join().unwrap();
        assert_eq!(consumer.available(), 3 - seen);
    });
}

#[test]
fn a_run_is_read_in_place_and_given_back_at_once() {
    loom::model(|| {
        let (mut producer, mut consumer, cells) = ring(2);
        let theirs = Arc::clone(&cells);
        let sender = thread::spawn(move || {
            for value in 0..3 {
                push(&mut producer, &theirs, value);
                producer.publish();
            }
        });
        let mut expected = 0;
        while expected < 3 {
            let (_, run) = consumer.run();
            for _ in 0..run {
                // SAFETY: loom checks it.
                let value = cells.at(consumer.position()).with(|cell| unsafe { cell.read() });
                assert_eq!(value, expected);
                consumer.advance();
                expected += 1;
            }
            consumer.publish();
            if run == 0 {
                thread::yield_now();
            }
        }
        sender.join().unwrap();
        assert_eq!(consumer.run().1, 0);
    });
}

#[test]
fn slots_given_back_in_a_batch_are_not_filled_before() {
    loom::model(|| {
        let (mut producer, mut consumer, cells) = ring(2);
        for value in 0..2 {
            push(&mut producer, &cells, value);
        }
        producer.publish();
        let theirs = Arc::clone(&cells);
        let sender = thread::spawn(move || {
            push(&mut producer, &theirs, 2);
            producer.publish();
        });
        assert_eq!(pop(&mut consumer, &cells), Some(0));
        assert_eq!(pop(&mut consumer, &cells), Some(1));
        consumer.publish();
        sender.join().unwrap();
        assert_eq!(pop(&mut consumer, &cells), Some(2));
    });
}
