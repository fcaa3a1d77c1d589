use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::losses::NO_RULE;
use super::*;

fn small(capacity: usize, packet_bytes: usize) -> (Producer, Consumer) {
    ring(capacity, packet_bytes, &Wakeup::new().expect("an eventfd"))
}

fn record(rule: u32) -> Record {
    Record { original_bytes: 9000, timestamp_ns: Some(u64::from(rule) << 33), generation: 7, rule, flags: 5 }
}

fn packets(consumer: &mut Consumer) -> Vec<(Record, Vec<u8>)> {
    let records = consumer.read();
    let found = records
        .iter()
        .filter_map(|item| match item {
            Item::Packet(record, bytes) => Some((record, bytes.to_vec())),
            Item::Lost { .. } => None,
        })
        .collect();
    records.release();
    found
}

#[test]
fn a_record_arrives_as_it_was_pushed() {
    let (mut producer, mut consumer) = small(0, 64);
    let without = Record { timestamp_ns: None, ..record(2) };
    let mut batch = producer.batch(2 * record_bytes(64));
    assert!(batch.push(&record(1), b"abc"));
    assert!(batch.push(&without, &[]));
    assert_eq!(batch.finish(), Pushed { packets: 2, full: 0 });
    assert_eq!(packets(&mut consumer), [(record(1), b"abc".to_vec()), (without, vec![])]);
    assert!(consumer.is_empty());
}

#[test]
fn a_batch_is_visible_at_its_end_only() {
    let (mut producer, mut consumer) = small(0, 64);
    let mut batch = producer.batch(record_bytes(64));
    assert!(batch.push(&record(1), &[1; 64]));
    assert!(consumer.is_empty());
    let _ = batch.finish();
    assert_eq!(packets(&mut consumer).len(), 1);
}

#[test]
fn a_packet_longer_than_the_ring_allows_is_truncated() {
    let (mut producer, mut consumer) = small(0, 64);
    let mut batch = producer.batch(record_bytes(100));
    assert!(batch.push(&record(1), &[1; 100]));
    let _ = batch.finish();
    assert_eq!(packets(&mut consumer), [(record(1), vec![1; 64])]);
}

#[test]
fn an_empty_ring_takes_the_longest_packet_at_every_position() {
    let (mut producer, mut consumer) = small(0, 256);
    for short in 0..400 {
        for bytes in [short % 97, 256] {
            let mut batch = producer.batch(record_bytes(bytes));
            assert!(batch.push(&record(1), &vec![3; bytes]), "after {short} short packets");
            let _ = batch.finish();
            assert_eq!(packets(&mut consumer), [(record(1), vec![3; bytes])]);
        }
    }
}

#[test]
fn losses_are_reported_by_rule_before_the_next_packet() {
    let (mut producer, mut consumer) = small(0, 64);
    let mut batch = producer.batch(usize::MAX);
    let pushed = (0..).take_while(|_| batch.push(&record(1), &[0; 64])).count();
    for rule in [4, 5, 4] {
        assert!(!batch.push(&record(rule), &[0; 64]));
    }
    let expected = Pushed { packets: pushed as u64, full: 4 };
    assert_eq!(batch.finish(), expected);
    consumer.discard();

    let mut batch = producer.batch(record_bytes(1));
    assert!(batch.push(&record(6), &[9]));
    let _ = batch.finish();
    let records = consumer.read();
    let mut items: Vec<_> = records.iter().collect();
    assert_eq!(items.pop(), Some(Item::Packet(record(6), &[9])));
    items.sort_by_key(|item| match item {
        Item::Lost { rule, .. } => *rule,
        Item::Packet(..) => unreachable!("a second packet"),
    });
    let lost = |rule, packets| Item::Lost { generation: 7, rule, packets, skipped: 0 };
    assert_eq!(items, [lost(1, 1), lost(4, 2), lost(5, 1)]);
}

#[test]
fn skipped_packets_are_reported_with_the_next_packet() {
    let (mut producer, mut consumer) = small(0, 64);
    for rule in [1, 2, 1] {
        producer.skip(7, rule);
    }
    assert!(consumer.is_empty());
    let mut batch = producer.batch(record_bytes(1));
    assert!(batch.push(&record(1), &[9]));
    let _ = batch.finish();
    let records = consumer.read();
    let lost = |rule, skipped| Item::Lost { generation: 7, rule, packets: 0, skipped };
    assert_eq!(records.iter().collect::<Vec<_>>(), [lost(1, 2), lost(2, 1), Item::Packet(record(1), &[9])]);
}

#[test]
fn losses_of_more_rules_than_the_table_has_are_counted_for_no_rule() {
    let (mut producer, mut consumer) = small(0, 64);
    let mut batch = producer.batch(0);
    for rule in 0..100 {
        assert!(!batch.push(&record(rule), &[0; 64]));
    }
    let _ = batch.finish();
    drop(producer); // leaves what it can
    let (mut rules, mut sum) = (0, 0);
    let records = consumer.read();
    for item in records.iter() {
        let Item::Lost { rule, packets, .. } = item else { panic!("{item:?}") };
        rules += u32::from(rule != NO_RULE);
        sum += packets;
    }
    assert!(rules > 0 && sum <= 100, "{rules} rules, {sum} packets");
}

#[test]
fn the_consumer_can_give_room_back_in_parts() {
    let (mut producer, mut consumer) = small(0, 64);
    let mut batch = producer.batch(2 * record_bytes(64));
    assert!(batch.push(&record(1), &[1; 8]) && batch.push(&record(2), &[2; 8]));
    let _ = batch.finish();
    let records = consumer.read();
    let mut items = records.iter();
    assert!(items.next().is_some());
    let position = items.position();
    records.release_to(position);
    assert_eq!(packets(&mut consumer), [(record(2), vec![2; 8])]);
}

#[test]
fn the_end_of_the_producer_is_seen_and_its_records_stay() {
    let (mut producer, mut consumer) = small(0, 64);
    let mut batch = producer.batch(record_bytes(1));
    assert!(batch.push(&record(1), &[1]));
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
            for rule in 0..32 {
                let _ = batch.push(&record(rule), &[0; 200]);
            }
            let _ = batch.finish();
            consumer.discard();
        }
    });
    assert_eq!(info.count_total, 0);
}

#[test]
fn a_sleeping_consumer_is_woken_and_an_awake_one_gets_no_event() {
    let wakeup = Wakeup::new().expect("an eventfd");
    wakeup.notify(); // nobody sleeps: no event
    let begun = Instant::now();
    wakeup.wait(|| false, Duration::from_millis(20));
    assert!(begun.elapsed() >= Duration::from_millis(20));

    wakeup.announce_sleep();
    wakeup.notify();
    let mut polled = [rustix::event::PollFd::new(&wakeup, rustix::event::PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut polled, Some(&rustix::event::Timespec::default())), Ok(1));
    wakeup.end_sleep();
    let begun = Instant::now();
    wakeup.wait(|| false, Duration::from_millis(20));
    assert!(begun.elapsed() >= Duration::from_millis(20), "the event was taken");

    wakeup.wake();
    wakeup.wait(|| false, Duration::from_secs(60));
    let begun = Instant::now();
    wakeup.wait(|| false, Duration::from_millis(20));
    assert!(begun.elapsed() >= Duration::from_millis(20), "the event of the control side was taken");
}

#[test]
fn every_packet_crosses_threads_in_order_and_no_wake_up_is_lost() {
    const PACKETS: u32 = 200_000;
    let wakeup = Wakeup::new().expect("an eventfd");
    let (mut producer, mut consumer) = ring(8192, 128, &wakeup);
    let reader = thread::spawn(move || {
        let (mut next, mut lost) = (0, 0);
        let mut longest = Duration::ZERO;
        loop {
            let ended = consumer.is_abandoned();
            let records = consumer.read();
            let mut found = false;
            for item in records.iter() {
                found = true;
                match item {
                    Item::Packet(record, bytes) => {
                        let number = u32::from_ne_bytes(bytes[..4].try_into().unwrap());
                        assert!(number >= next && record.original_bytes == number);
                        assert!(bytes[4..].iter().all(|&byte| byte == number as u8));
                        next = number + 1;
                    }
                    Item::Lost { packets, .. } => lost += u64::from(packets),
                }
            }
            records.release();
            if ended {
                return (lost, longest);
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
            let record = Record { original_bytes: number, ..Record::default() };
            let _ = batch.push(&record, &bytes[..4 + number as usize % 125]);
            number += 1;
        }
        let counts = batch.finish();
        pushed += counts.packets;
        full += counts.full;
        if number.is_multiple_of(4096) {
            thread::sleep(Duration::from_micros(300)); // lets the consumer fall asleep
        }
    }
    // The last packet takes the last losses with it.
    let mut arrived = false;
    while !arrived {
        let mut batch = producer.batch(record_bytes(4));
        arrived =
            batch.push(&Record { original_bytes: PACKETS, ..Record::default() }, &PACKETS.to_ne_bytes());
        let counts = batch.finish();
        pushed += counts.packets;
        full += counts.full;
        number += 1;
    }
    drop(producer);
    let (lost, longest) = reader.join().expect("no assertion failed");
    assert_eq!(pushed + full, u64::from(number));
    assert_eq!(lost, full);
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
    /// Against a queue: what was taken comes out in order, what was not is reported.
    #[test]
    fn a_ring_is_a_queue_with_losses(capacity in 0..4096_usize, steps in steps()) {
        let (mut producer, mut consumer) = small(capacity, 256);
        let (mut queue, mut full, mut lost) = (VecDeque::new(), 0, 0);
        let mut number = 0;
        let steps = steps.into_iter().chain([Step::Read, Step::Push { budget: 8192, lengths: vec![] }, Step::Read]);
        for step in steps {
            match step {
                Step::Push { budget, lengths } => {
                    let mut batch = producer.batch(budget);
                    for length in lengths {
                        number += 1;
                        let bytes = vec![number as u8; length];
                        if batch.push(&record(number % 7), &bytes) {
                            queue.push_back((number % 7, bytes[..length.min(256)].to_vec()));
                        }
                    }
                    full += batch.finish().full;
                }
                Step::Read => {
                    let records = consumer.read();
                    for item in records.iter() {
                        match item {
                            Item::Packet(record, bytes) => {
                                let expected = queue.pop_front();
                                prop_assert_eq!(Some((record.rule, bytes.to_vec())), expected);
                            }
                            Item::Lost { packets, .. } => lost += u64::from(packets),
                        }
                    }
                    records.release();
                }
            }
        }
        prop_assert!(queue.is_empty());
        prop_assert_eq!(lost, full);
    }
}
