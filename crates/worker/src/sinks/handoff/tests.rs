use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

fn small(capacity: usize, packet_bytes: usize) -> (Producer, Consumer) {
    ring(capacity, packet_bytes, &Arc::new(Wakeup::new().expect("an eventfd")))
}

fn packets(consumer: &mut Consumer) -> Vec<Vec<u8>> {
    let records = consumer.read();
    let found = records.iter().map(<[u8]>::to_vec).collect();
    records.release();
    found
}

#[test]
fn packets_arrive_as_they_were_pushed() {
    let (mut producer, mut consumer) = small(0, 64);
    let mut batch = producer.batch(2 * record_bytes(64));
    assert!(batch.push(b"abc"));
    assert!(batch.push(&[]));
    assert_eq!(batch.finish(), Pushed { packets: 2, full: 0 });
    assert_eq!(packets(&mut consumer), [b"abc".to_vec(), vec![]]);
    assert!(consumer.is_empty());
}

#[test]
fn a_batch_is_visible_at_its_end_only() {
    let (mut producer, mut consumer) = small(0, 64);
    let mut batch = producer.batch(record_bytes(64));
    assert!(batch.push(&[1; 64]));
    assert!(consumer.is_empty());
    let _ = batch.finish();
    assert_eq!(packets(&mut consumer).len(), 1);
}

#[test]
fn a_packet_longer_than_the_ring_allows_is_truncated() {
    let (mut producer, mut consumer) = small(0, 64);
    let mut batch = producer.batch(record_bytes(100));
    assert!(batch.push(&[1; 100]));
    let _ = batch.finish();
    assert_eq!(packets(&mut consumer), [vec![1; 64]]);
}

#[test]
fn an_empty_ring_takes_the_longest_packet_at_every_position() {
    let (mut producer, mut consumer) = small(0, 256);
    for short in 0..400 {
        for bytes in [short % 97, 256] {
            let mut batch = producer.batch(record_bytes(bytes));
            assert!(batch.push(&vec![3; bytes]), "after {short} short packets");
            let _ = batch.finish();
            assert_eq!(packets(&mut consumer), [vec![3; bytes]]);
        }
    }
}

#[test]
fn what_does_not_fit_is_counted_and_the_rest_arrives() {
    let (mut producer, mut consumer) = small(0, 64);
    let mut batch = producer.batch(usize::MAX);
    let pushed = (0..).take_while(|_| batch.push(&[0; 64])).count();
    assert!(!batch.push(&[0; 64]));
    assert_eq!(batch.finish(), Pushed { packets: pushed as u64, full: 2 });
    assert_eq!(packets(&mut consumer).len(), pushed);
}

#[test]
fn the_consumer_can_give_room_back_in_parts() {
    let (mut producer, mut consumer) = small(0, 64);
    let mut batch = producer.batch(2 * record_bytes(64));
    assert!(batch.push(&[1; 8]) && batch.push(&[2; 8]));
    let _ = batch.finish();
    let records = consumer.read();
    let mut items = records.iter();
    assert!(items.next().is_some());
    let position = items.position();
    records.release_to(position);
    assert_eq!(packets(&mut consumer), [vec![2; 8]]);
}

#[test]
fn the_end_of_the_producer_is_seen_and_its_records_stay() {
    let (mut producer, mut consumer) = small(0, 64);
    let mut batch = producer.batch(record_bytes(1));
    assert!(batch.push(&[1]));
    let _ = batch.finish();
    assert!(!consumer.is_abandoned());
    drop(producer);
    assert!(consumer.is_abandoned());
    assert_eq!(packets(&mut consumer).len(), 1);
}

#[test]
fn pushing_allocates_nothing() {
    let (mut producer, mut consumer) = small(4096, 256);
    let info = allocation_counter::measure(|| {
        for _ in 0..1000 {
            let mut batch = producer.batch(32 * record_bytes(200));
            for _ in 0..32 {
                let _ = batch.push(&[0; 200]);
            }
            let _ = batch.finish();
            consumer.discard();
        }
    });
    assert_eq!(info.count_total, 0);
}

#[test]
fn every_packet_crosses_threads_in_order_and_no_wake_up_is_lost() {
    const PACKETS: u32 = 200_000;
    let wakeup = Arc::new(Wakeup::new().expect("an eventfd"));
    let (mut producer, mut consumer) = ring(8192, 128, &wakeup);
    let reader = thread::spawn(move || {
        let (mut next, mut arrived) = (0, 0);
        let mut longest = Duration::ZERO;
        loop {
            let ended = consumer.is_abandoned();
            let records = consumer.read();
            let mut found = false;
            for bytes in records.iter() {
                found = true;
                let number = u32::from_ne_bytes(bytes[..4].try_into().unwrap());
                assert!(number >= next && bytes[4..].iter().all(|&byte| byte == number as u8));
                next = number + 1;
                arrived += 1;
            }
            records.release();
            if ended {
                return (arrived, longest);
            }
            if !found {
                let begun = Instant::now();
                wakeup.wait(|| !consumer.is_empty(), Duration::from_secs(20));
                longest = longest.max(begun.elapsed());
            }
        }
    });
    let (mut pushed, mut full) = (0, 0);
    let mut number = 0_u32;
    while number < PACKETS {
        let mut batch = producer.batch(16 * record_bytes(128));
        for _ in 0..16 {
            let mut bytes = [number as u8; 128];
            bytes[..4].copy_from_slice(&number.to_ne_bytes());
            let _ = batch.push(&bytes[..4 + number as usize % 125]);
            number += 1;
        }
        let counts = batch.finish();
        pushed += counts.packets;
        full += counts.full;
        if number.is_multiple_of(4096) {
            thread::sleep(Duration::from_micros(300)); // lets the consumer fall asleep
        }
    }
    drop(producer);
    let (arrived, longest) = reader.join().expect("no assertion failed");
    assert_eq!(pushed + full, u64::from(number));
    assert_eq!(arrived, pushed);
    assert!(longest < Duration::from_secs(10), "slept {longest:?} although packets came");
}

#[derive(Clone, Debug)]
enum Step {
    Push { budget: usize, lengths: Vec<usize> },
    Read,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let push = (0..2000_usize, prop::collection::vec(0..300_usize, 0..20))
        .prop_map(|(budget, lengths)| Step::Push { budget, lengths });
    prop::collection::vec(prop_oneof![push, Just(Step::Read)], 1..60)
}

proptest! {
    /// Against a queue: what was taken comes out in order.
    #[test]
    fn a_ring_is_a_queue(capacity in 0..4096_usize, steps in steps()) {
        let (mut producer, mut consumer) = small(capacity, 256);
        let mut queue = VecDeque::new();
        let mut number = 0_u32;
        for step in steps.into_iter().chain([Step::Read]) {
            match step {
                Step::Push { budget, lengths } => {
                    let mut batch = producer.batch(budget);
                    for length in lengths {
                        number += 1;
                        let bytes = vec![number as u8; length];
                        if batch.push(&bytes) {
                            queue.push_back(bytes[..length.min(256)].to_vec());
                        }
                    }
                    let _ = batch.finish();
                }
                Step::Read => {
                    for bytes in packets(&mut consumer) {
                        prop_assert_eq!(queue.pop_front(), Some(bytes));
                    }
                }
            }
        }
        prop_assert!(queue.is_empty());
    }
}
