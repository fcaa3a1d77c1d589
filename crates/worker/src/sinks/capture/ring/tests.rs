use std::collections::{BTreeMap, VecDeque};
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::super::losses::NO_RULE;
use super::*;

fn small(capacity: usize, snap_bytes: usize) -> (Producer, Consumer) {
    ring(capacity, snap_bytes, &Arc::new(Wakeup::new().expect("an eventfd")), &Arc::default())
}

fn captured(rule: u32, timestamp_ns: u64) -> Captured {
    Captured { generation: 7, rule, timestamp_ns, original_bytes: 9000 }
}

/// The fields of each block in some bytes, and its packet.
fn packets(mut blocks: &[u8]) -> Vec<(Packet, Vec<u8>)> {
    let mut packets = Vec::new();
    while let Some((packet, length)) = pcapng::read_packet(blocks) {
        let stored = u32::from_ne_bytes(*blocks[20..].first_chunk().unwrap()) as usize;
        packets.push((packet, blocks[28..28 + stored].to_vec()));
        blocks = &blocks[length..];
    }
    assert!(blocks.is_empty());
    packets
}

/// Takes the whole head.
fn take(consumer: &mut Consumer) -> Option<(Run, Vec<u8>)> {
    let run = *consumer.head()?;
    let start = consumer.take(run.blocks);
    let end = start + run.blocks.bytes as usize;
    let bytes = consumer.taken().slices(start, end).concat();
    Some((run, bytes))
}

#[test]
fn blocks_arrive_in_runs_of_one_rule() {
    let (mut producer, mut consumer) = small(0, 64);
    let mut batch = producer.batch(4, 4 * packet_block_bytes(64));
    assert!(batch.push(&captured(1, 5), b"abc") && batch.push(&captured(1, 6), &[]));
    assert!(batch.push(&captured(2, 7), &[1; 64]));
    assert!(consumer.is_empty(), "before the end of the batch");
    assert_eq!(batch.finish(), 0);
    let (run, bytes) = take(&mut consumer).expect("a run");
    assert_eq!((run.generation, run.rule, run.first_ns, run.last_ns), (7, 1, 5, 6));
    assert_eq!(run.blocks, Blocks { packets: 2, bytes: bytes.len() as u32, original_bytes: 18_000 });
    let packet = |timestamp_ns| Packet { interface: 0, timestamp_ns, original_bytes: 9000 };
    assert_eq!(packets(&bytes), [(packet(5), b"abc".to_vec()), (packet(6), vec![])]);
    let (run, bytes) = take(&mut consumer).expect("another run");
    assert_eq!((run.rule, packets(&bytes)), (2, vec![(packet(7), vec![1; 64])]));
    assert!(consumer.is_empty());
}

#[test]
fn a_run_is_taken_in_parts_by_size_and_by_time() {
    let (mut producer, mut consumer) = small(0, 64);
    let block = packet_block_bytes(4);
    let mut batch = producer.batch(4, 4 * block);
    (1..5).for_each(|time| assert!(batch.push(&captured(1, time), &[0; 4])));
    assert_eq!(batch.finish(), 0);
    let part = |packets: u32| Blocks {
        packets,
        bytes: packets * block as u32,
        original_bytes: 9000 * u64::from(packets),
    };
    assert!(consumer.head().is_some());
    assert_eq!(consumer.first_blocks(u64::MAX, 0), part(1), "at least one");
    assert_eq!(consumer.first_blocks(2 * block as u64 + 3, 9), part(2));
    assert_eq!(consumer.first_blocks(u64::MAX, 3), part(3));
    assert_eq!(consumer.first_blocks(4 * block as u64, 4), part(4));
    assert_eq!(consumer.take(part(3)), 0);
    let rest = *consumer.head().expect("the rest");
    assert_eq!((rest.blocks, rest.first_ns, rest.last_ns), (part(1), 4, 4));
    assert_eq!(consumer.take(rest.blocks), 3 * block);
    assert_eq!(consumer.taken_bytes(), 4 * block);
    consumer.release();
    assert!(consumer.is_empty() && consumer.taken_bytes() == 0);
}

#[test]
fn blocks_have_the_number_that_was_published_and_can_be_corrected() {
    let numbers = Arc::<Numbers>::default();
    let (mut producer, mut consumer) =
        ring(4096, 64, &Arc::new(Wakeup::new().expect("an eventfd")), &numbers);
    numbers.set(3, 8);
    let mut batch = producer.batch(3, 1000);
    for rule in [3, 3 + Numbers::COUNT as u32, 3] {
        assert!(batch.push(&captured(rule, 1), &[0; 5]) && batch.push(&captured(rule, 2), &[]));
    }
    assert_eq!(batch.finish(), 0);
    for (rule, number) in [(3, 8), (3 + Numbers::COUNT as u32, 0), (3, 8)] {
        let run = *consumer.head().expect("a run");
        assert_eq!((run.rule, run.interface), (rule, number));
        consumer.set_interface(run.blocks, 6);
        let (_, bytes) = take(&mut consumer).expect("a run");
        assert!(packets(&bytes).iter().all(|(packet, _)| packet.interface == 6));
    }
}

#[test]
fn losses_are_reported_by_rule_before_the_next_packet() {
    let (mut producer, mut consumer) = small(0, 64);
    let mut batch = producer.batch(usize::MAX >> 1, usize::MAX);
    let pushed = (0..).take_while(|_| batch.push(&captured(1, 1), &[0; 64])).count();
    for rule in [4, 5, 4] {
        assert!(!batch.push(&captured(rule, 1), &[0; 64]));
    }
    assert_eq!(batch.finish(), 4);
    producer.skip(7, 5);
    let mut arrived = 0;
    while let Some((run, _)) = take(&mut consumer) {
        arrived += run.blocks.packets as usize;
    }
    assert_eq!(arrived, pushed);
    consumer.release();

    let mut batch = producer.batch(1, packet_block_bytes(1));
    assert!(batch.push(&captured(6, 1), &[9]));
    assert_eq!(batch.finish(), 0);
    let mut lost = BTreeMap::new();
    while consumer.head().is_some_and(|run| run.blocks.packets == 0) {
        let (run, bytes) = take(&mut consumer).expect("a head");
        assert!(bytes.is_empty() && run.generation == 7);
        lost.insert(run.rule, (run.full, run.skipped));
    }
    assert_eq!(lost, BTreeMap::from([(1, (1, 0)), (4, (2, 0)), (5, (1, 1))]));
    assert_eq!(take(&mut consumer).map(|(run, _)| run.rule), Some(6));
}

#[test]
fn losses_of_more_rules_than_the_table_has_are_counted_for_no_rule() {
    let (mut producer, mut consumer) = small(0, 64);
    let mut batch = producer.batch(0, 0);
    for rule in 0..100 {
        assert!(!batch.push(&captured(rule, 1), &[0; 64]));
    }
    assert_eq!(batch.finish(), 100);
    drop(producer); // leaves what it has
    assert!(consumer.is_abandoned());
    let (mut rules, mut sum) = (0, 0);
    while let Some((run, _)) = take(&mut consumer) {
        rules += u32::from(run.rule != NO_RULE);
        sum += run.full;
    }
    assert_eq!((rules, sum), (63, 100));
}

#[test]
fn a_ring_without_room_for_runs_is_full() {
    let (mut producer, mut consumer) = small(1 << 17, 64);
    let mut full = 0;
    for number in 0..RUNS_MIN as u32 + 10 {
        let mut batch = producer.batch(1, packet_block_bytes(0));
        full += u64::from(!batch.push(&captured(number % 2, 1), &[]));
        let _ = batch.finish();
    }
    assert!((10..13).contains(&full), "{full}");
    while take(&mut consumer).is_some() {}
    consumer.release();
    let mut batch = producer.batch(1, packet_block_bytes(0));
    assert!(batch.push(&captured(1, 1), &[]));
    assert_eq!(batch.finish(), 0);
}

#[test]
fn blocks_cross_threads_in_order() {
    const PACKETS: u32 = 200_000;
    let wakeup = Arc::new(Wakeup::new().expect("an eventfd"));
    let (mut producer, mut consumer) = ring(8192, 128, &wakeup, &Arc::default());
    let reader = thread::spawn(move || {
        let (mut next, mut arrived, mut lost) = (0, 0_u64, 0);
        loop {
            let ended = consumer.is_abandoned();
            while let Some((run, bytes)) = take(&mut consumer) {
                lost += u64::from(run.full);
                for (packet, bytes) in packets(&bytes) {
                    let number = packet.original_bytes;
                    assert!(number >= next && bytes.iter().all(|&byte| byte == number as u8));
                    next = number + 1;
                    arrived += 1;
                }
                if consumer.taken_bytes() > 2000 {
                    consumer.release();
                }
            }
            consumer.release();
            if ended {
                return (arrived, lost);
            }
            wakeup.wait(|| !consumer.is_empty(), Duration::from_secs(20));
        }
    });
    let begun = Instant::now();
    let mut full = 0;
    for first in (0..PACKETS).step_by(16) {
        let mut batch = producer.batch(16, 16 * packet_block_bytes(128));
        for number in first..first + 16 {
            let packet = Captured { original_bytes: number, ..captured(number / 5 % 3, 1) };
            batch.push(&packet, &[number as u8; 128][..number as usize % 129]);
        }
        full += batch.finish();
    }
    drop(producer);
    let (arrived, lost) = reader.join().expect("no assertion failed");
    assert_eq!(arrived + full, u64::from(PACKETS));
    assert!(lost <= full, "the last losses are reported if there is room");
    assert!(begun.elapsed() < Duration::from_secs(20), "a wake-up was lost");
}

#[derive(Clone, Debug)]
enum Step {
    Push { budget: usize, packets: Vec<(u32, usize)> },
    Take { bytes: u64 },
    Release,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let push = (0..3000_usize, prop::collection::vec((0..3_u32, 0..300_usize), 0..20))
        .prop_map(|(budget, packets)| Step::Push { budget, packets });
    let take = (0..1500_u64).prop_map(|bytes| Step::Take { bytes });
    prop::collection::vec(prop_oneof![3 => push, 3 => take, 1 => Just(Step::Release)], 1..80)
}

/// A packet and its number.
type Numbered = (u64, Vec<u8>);

proptest! {
    /// Against a queue: what was taken by the ring comes out in order and is whole until its room is given
    /// back, what was not is reported.
    #[test]
    fn a_ring_is_a_queue_with_losses(capacity in 0..4096_usize, steps in steps()) {
        let (mut producer, mut consumer) = small(capacity, 256);
        let (mut queue, mut full, mut lost, mut number) = (VecDeque::new(), 0, 0, 0);
        let mut held: Vec<(usize, usize, Vec<Numbered>)> = Vec::new();
        let end = [Step::Take { bytes: u64::MAX }, Step::Release, Step::Push { budget: 8192, packets: vec![(0, 1)] }];
        for step in steps.into_iter().chain(end).chain([Step::Take { bytes: u64::MAX }, Step::Release]) {
            match step {
                Step::Push { budget, packets } => {
                    let mut batch = producer.batch(packets.len(), budget);
                    for (rule, length) in packets {
                        number += 1;
                        let bytes = vec![number as u8; length];
                        if batch.push(&captured(rule, number), &bytes) {
                            queue.push_back((number, bytes[..length.min(256)].to_vec()));
                        }
                    }
                    full += batch.finish();
                }
                Step::Take { mut bytes } => {
                    while let Some(run) = consumer.head().copied() {
                        lost += u64::from(run.full);
                        let part = consumer.first_blocks(bytes, u64::MAX);
                        if u64::from(part.bytes) > bytes {
                            break;
                        }
                        bytes -= u64::from(part.bytes);
                        let start = consumer.take(part);
                        let expected = queue.drain(..part.packets as usize).collect();
                        held.push((start, start + part.bytes as usize, expected));
                    }
                }
                Step::Release => {
                    {
                        let taken = consumer.taken();
                        for (start, end, expected) in held.drain(..) {
                            let found = packets(&taken.slices(start, end).concat());
                            let found: Vec<_> = found.into_iter().map(|(packet, bytes)| (packet.timestamp_ns, bytes)).collect();
                            prop_assert_eq!(found, expected);
                        }
                    }
                    consumer.release();
                }
            }
        }
        prop_assert!(queue.is_empty() && consumer.is_empty());
        prop_assert_eq!(lost, full);
    }
}
