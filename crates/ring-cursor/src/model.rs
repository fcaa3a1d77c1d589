//! The two cursors in every order of their steps that the memory model allows, by loom.

use loom::cell::Cell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;
use loom::thread;

use super::*;

impl SharedIndex for AtomicU32 {
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }

    fn store(&self, index: u32, order: Ordering) {
        self.store(index, order);
    }
}

/// The ring. Its places are cells of loom, which fails a run in which both sides touch a cell without an
/// order between them.
struct Shared {
    produced: AtomicU32,
    consumed: AtomicU32,
    places: Vec<Cell<u64>>,
}

fn shared(places: u32) -> Arc<Shared> {
    Arc::new(Shared {
        produced: AtomicU32::new(0),
        consumed: AtomicU32::new(0),
        places: (0..places).map(|_| Cell::new(u64::MAX)).collect(),
    })
}

#[test]
fn every_place_is_read_once_after_it_was_written_round_the_ring() {
    const COUNT: u64 = 3;
    loom::model(|| {
        let ring = shared(2);
        let theirs = Arc::clone(&ring);
        let producer = thread::spawn(move || {
            let mut cursor = ProducerCursor::new(2);
            for number in 0..COUNT {
                while !cursor.has_room(1, &theirs.consumed) {
                    thread::yield_now();
                }
                theirs.places[cursor.place() as usize].set(number);
                cursor.advance_by(1);
                cursor.publish(&theirs.produced);
            }
        });
        let mut cursor = ConsumerCursor::new(2);
        for expected in 0..COUNT {
            while !cursor.has_next(&ring.produced) {
                thread::yield_now();
            }
            let number = ring.places[cursor.place() as usize].get();
            assert_eq!(number, expected);
            cursor.advance_by(1);
            cursor.publish(&ring.consumed);
        }
        producer.join().unwrap();
        assert!(!cursor.has_next(&ring.produced));
    });
}
