//! The sketch against exact counts.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;

use super::*;

fn flow(number: u64) -> Packed {
    [number, 0, 7, 0, number << 32]
}

fn by_flow(sketch: &Sketch) -> HashMap<Packed, Counted> {
    let read = sketch.counters().read();
    let len = read.len();
    let map: HashMap<_, _> = read.into_iter().map(|counted| (counted.flow, counted)).collect();
    assert_eq!(map.len(), len, "no flow has two counters");
    map
}

/// The lists are as the algorithm needs them: buckets in order, each counter in the bucket of its count.
fn check_structure(sketch: &Sketch) {
    let (mut counters, mut last, mut bucket, mut lower) = (0, 0, sketch.lowest, NONE);
    while bucket != NONE {
        let Bucket { count, first, lower: back, higher } = sketch.buckets[bucket as usize];
        assert!(count > last && first != NONE && back == lower, "bucket {bucket} of {count} after {last}");
        let mut counter = first;
        loop {
            let node = sketch.nodes[counter as usize];
            assert_eq!(node.bucket, bucket);
            assert_eq!(sketch.nodes[node.next as usize].previous, counter);
            assert_eq!(sketch.counters.0[counter as usize].packets.load(Relaxed), count);
            let flow =
                std::array::from_fn(|word| sketch.counters.0[counter as usize].flow[word].load(Relaxed));
            let found = sketch.table.find(sketch.hasher.hash(&flow), |other| other == counter);
            assert_eq!(found, Some(counter));
            counters += 1;
            counter = node.next;
            if counter == first {
                break;
            }
        }
        (last, lower, bucket) = (count, bucket, higher);
    }
    assert_eq!(counters, sketch.used);
    assert_eq!(sketch.table.entries.iter().filter(|entry| **entry != EMPTY).count(), counters as usize);
}

/// Checks what the algorithm promises for these packets.
fn check_promises(sketch: &Sketch, packets: &[(u64, u64)]) {
    let mut exact: HashMap<Packed, (u64, u64)> = HashMap::new();
    for (number, bytes) in packets {
        let truth = exact.entry(flow(*number)).or_default();
        *truth = (truth.0 + 1, truth.1 + bytes);
    }
    let (counted, counters) = (by_flow(sketch), sketch.nodes.len() as u64);
    let total = packets.len() as u64;
    assert_eq!(counted.values().map(|counted| counted.packets).sum::<u64>(), total);
    for (flow, (packets, bytes)) in &exact {
        let Some(counted) = counted.get(flow) else {
            assert!(*packets <= total / counters, "{packets} of {total} packets and no counter");
            continue;
        };
        assert!(counted.packets - counted.error <= *packets && *packets <= counted.packets, "{counted:?}");
        assert!(counted.error <= total / counters && counted.bytes <= *bytes, "{counted:?} {bytes}");
        if counted.error == 0 {
            assert_eq!((counted.packets, counted.bytes), (*packets, *bytes));
        }
    }
    assert!(counted.keys().all(|flow| exact.contains_key(flow)));
}

proptest! {
    #[test]
    fn heavy_flows_are_present_and_counts_are_within_their_errors(
        counters in 1_u32..40,
        packets in prop::collection::vec((0_u64..60, 60_u64..1500), 0..2000),
        skew in 0_u32..3,
    ) {
        // A few flows have most of the packets.
        let packets: Vec<(u64, u64)> =
            packets.into_iter().map(|(flow, bytes)| (flow >> (flow as u32 % (skew + 1)), bytes)).collect();
        let mut sketch = Sketch::new(counters);
        for (number, bytes) in &packets {
            sketch.count(&flow(*number), *bytes);
        }
        check_structure(&sketch);
        check_promises(&sketch, &packets);
    }

    #[test]
    fn the_structure_is_right_after_every_packet(
        counters in 1_u32..6,
        packets in prop::collection::vec(0_u64..10, 0..60),
    ) {
        let mut sketch = Sketch::new(counters);
        for number in packets {
            sketch.count(&flow(number), 60);
            check_structure(&sketch);
        }
    }
}

#[test]
fn few_flows_are_counted_exactly() {
    let mut sketch = Sketch::new(8);
    for round in 0..100 {
        (0..8).filter(|number| round % (number + 1) == 0).for_each(|number| sketch.count(&flow(number), 100));
    }
    let counted = by_flow(&sketch);
    for number in 0..8 {
        let packets = 100_u64.div_ceil(number + 1);
        let expected = Counted { flow: flow(number), packets, error: 0, bytes: packets * 100 };
        assert_eq!(counted[&flow(number)], expected);
    }
}

/// All flows have the same low bits of the hash, so that every entry is displaced and removals move entries.
#[test]
fn colliding_flows_are_found_after_others_are_removed() {
    let mut table = Table::new(8);
    let mut nodes = vec![Node { hash: 0, bucket: 0, previous: 0, next: 0 }; 8];
    for (counter, node) in nodes.iter_mut().enumerate() {
        // Homes 14, 15 and 0: the chain goes around the end.
        node.hash = ((counter as u64) << 40) | ((14 + counter as u64 % 3) & 15);
        table.insert(node.hash, counter as u32);
    }
    for removed in [3, 0, 5, 1, 7, 2, 6, 4_u32] {
        table.remove(nodes[removed as usize].hash, removed, &nodes);
        assert_eq!(table.find(nodes[removed as usize].hash, |counter| counter == removed), None);
        nodes[removed as usize].bucket = NONE;
        for (counter, node) in nodes.iter().enumerate().filter(|(_, node)| node.bucket == 0) {
            let counter = counter as u32;
            assert_eq!(table.find(node.hash, |other| other == counter), Some(counter));
        }
    }
    assert!(table.entries.iter().all(|entry| *entry == EMPTY));
}

/// Flow `n` only ever has packets of `n` bytes, so a mixture of two flows would show.
#[test]
fn readers_never_see_a_mixture_of_two_flows() {
    let mut sketch = Sketch::new(4);
    let counters = sketch.counters();
    let done = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&done);
    let reader = std::thread::spawn(move || {
        let mut reads = 0_u64;
        while !ended.load(Relaxed) || reads == 0 {
            for counted in counters.read() {
                reads += 1;
                let number = counted.flow[0];
                assert_eq!(counted.flow, flow(number));
                assert!(number > 0 && counted.bytes.is_multiple_of(number), "{counted:?}");
            }
        }
        reads
    });
    let packets: u64 = if cfg!(miri) { 200 } else { 200_000 };
    for packet in 0..packets {
        let number = 1 + packet * 7 % 11;
        sketch.count(&flow(number), number);
    }
    done.store(true, Relaxed);
    assert!(reader.join().expect("no mixture") > 0);
}
