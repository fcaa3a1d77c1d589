use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

/// A ring of numbers, its two sides, and how far they have published.
struct Ring {
    places: Vec<u32>,
    produced: AtomicU32,
    consumed: AtomicU32,
    producer: ProducerCursor,
    consumer: ConsumerCursor,
}

impl Ring {
    /// A ring whose indices are at `start`, as after a long time.
    fn new(places: u32, start: u32) -> Self {
        let (mut producer, mut consumer) = (ProducerCursor::new(places), ConsumerCursor::new(places));
        (producer.next, producer.consumed_seen) = (start, start);
        (consumer.next, consumer.produced_seen) = (start, start);
        let index = || AtomicU32::new(start);
        Self { places: vec![0; places as usize], produced: index(), consumed: index(), producer, consumer }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Put(u32),
    /// Takes back so many of the unpublished places, modulo their number and one.
    Rewind(usize),
    PublishPut,
    Take,
    PublishTake,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => any::<u32>().prop_map(Step::Put),
        1 => any::<usize>().prop_map(Step::Rewind),
        1 => Just(Step::PublishPut),
        3 => Just(Step::Take),
        1 => Just(Step::PublishTake),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 256 }, ..ProptestConfig::default() })]

    /// The oracle is a queue of what was published, and counts of what each side may still use.
    #[test]
    fn the_cursors_behave_as_a_bounded_queue(
        exponent in 0..5u32,
        start in prop_oneof![Just(0), Just(u32::MAX - 3), any::<u32>()],
        steps in prop::collection::vec(step(), 0..200),
    ) {
        let places = 1 << exponent;
        let mut ring = Ring::new(places, start);
        let (mut written, mut published) = (VecDeque::new(), VecDeque::new());
        // Places that the producer has not got back.
        let (mut out, mut read) = (0, 0);
        for step in steps {
            match step {
                Step::Put(number) => {
                    let has_room = ring.producer.has_room(1, &ring.consumed);
                    prop_assert_eq!(has_room, out < places);
                    if has_room {
                        ring.places[ring.producer.place() as usize] = number;
                        ring.producer.advance_by(1);
                        written.push_back(number);
                        out += 1;
                    }
                }
                Step::Rewind(count) => {
                    let count = count % (written.len() + 1);
                    let position = ring.producer.position();
                    ring.producer.rewind(position.wrapping_sub(count as u32));
                    written.truncate(written.len() - count);
                    out -= count as u32;
                }
                Step::PublishPut => {
                    ring.producer.publish(&ring.produced);
                    published.append(&mut written);
                }
                Step::Take => {
                    let has_next = ring.consumer.has_next(&ring.produced);
                    prop_assert_eq!(has_next, !published.is_empty());
                    if let Some(number) = published.pop_front() {
                        prop_assert_eq!(ring.places[ring.consumer.place() as usize], number);
                        ring.consumer.advance_by(1);
                        read += 1;
                    }
                }
                Step::PublishTake => {
                    ring.consumer.publish(&ring.consumed);
                    out -= read;
                    read = 0;
                }
            }
            prop_assert_eq!(ring.producer.is_drained(&ring.consumed), out == 0 && written.is_empty());
        }
    }
}

#[test]
fn an_index_that_makes_no_sense_is_not_followed() {
    let mut ring = Ring::new(4, 0);
    ring.produced.store(5, Ordering::Relaxed);
    assert!(!ring.consumer.has_next(&ring.produced));
    ring.produced.store(u32::MAX, Ordering::Relaxed);
    assert!(!ring.consumer.has_next(&ring.produced));
    for _ in 0..4 {
        assert!(ring.producer.has_room(1, &ring.consumed));
        ring.producer.advance_by(1);
    }
    ring.consumed.store(5, Ordering::Relaxed);
    assert!(!ring.producer.has_room(1, &ring.consumed));
    ring.consumed.store(1, Ordering::Relaxed);
    assert!(ring.producer.has_room(1, &ring.consumed));
}

#[test]
fn a_look_returns_the_violation() {
    let mut ring = Ring::new(4, u32::MAX - 1);
    ring.produced.store(3, Ordering::Relaxed);
    assert_eq!(ring.consumer.look(&ring.produced), Err(OutsideRing), "five places of four");
    ring.produced.store(2, Ordering::Relaxed);
    assert_eq!((ring.consumer.look(&ring.produced), ring.consumer.published()), (Ok(()), 4));
    ring.produced.store(1, Ordering::Relaxed);
    assert_eq!(ring.consumer.look(&ring.produced), Err(OutsideRing), "less than before");
    assert_eq!(ring.consumer.published(), 4);
    ring.producer.advance_by(2);
    ring.consumed.store(1, Ordering::Relaxed);
    assert_eq!(ring.producer.look(&ring.consumed), Err(OutsideRing), "more than was written");
    ring.consumed.store(0, Ordering::Relaxed);
    assert_eq!(ring.producer.look(&ring.consumed), Ok(()));
    ring.consumed.store(u32::MAX, Ordering::Relaxed);
    assert_eq!(ring.producer.look(&ring.consumed), Err(OutsideRing), "less than before");
}

#[test]
fn a_rewind_takes_back_what_the_consumer_claims_to_have_read() {
    let mut ring = Ring::new(4, u32::MAX);
    ring.producer.advance_by(1);
    ring.producer.publish(&ring.produced);
    let position = ring.producer.position();
    ring.producer.advance_by(3);
    ring.consumed.store(position.wrapping_add(2), Ordering::Relaxed);
    assert_eq!(ring.producer.look(&ring.consumed), Ok(()), "two that were not published");
    ring.producer.rewind(position);
    assert_eq!(ring.producer.room(), 4);
    assert_eq!(ring.producer.look(&ring.consumed), Err(OutsideRing), "beyond what was written");
    assert_eq!(ring.producer.room_for(5, &ring.consumed), 4);
    ring.producer.advance_by(4);
    assert!(!ring.producer.has_room(3, &ring.consumed));
    assert_eq!(ring.producer.room(), 2, "the index was reached");
}

#[test]
fn a_limit_leaves_places_unused() {
    let consumed = AtomicU32::new(0);
    let mut producer = ProducerCursor::with_limit(4, 3);
    assert_eq!(producer.room_for(4, &consumed), 3);
    producer.advance_by(3);
    assert!(!producer.has_room(1, &consumed));
    consumed.store(2, Ordering::Relaxed);
    assert_eq!(producer.room_for(1, &consumed), 2);
}
