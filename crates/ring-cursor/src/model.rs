//! The two cursors in every order of their steps that the memory model allows, by loom.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;
use loom::thread;

use super::*;

impl SharedIndex for AtomicU32 {
    fn load_acquire(&self) -> u32 {
        self.load(Ordering::Acquire)
    }

    fn store_release(&self, index: u32) {
        self.store(index, Ordering::Release);
    }
}

/// The ring: loom fails a run in which both sides touch a place without an order between them.
struct Shared {
    produced: AtomicU32,
    consumed: AtomicU32,
    places: Vec<UnsafeCell<u64>>,
}

// SAFETY: loom itself checks that the cells are not used by two threads at once; that is what is tested.
unsafe impl Sync for Shared {}
// SAFETY: loom itself checks which thread uses a cell.
unsafe impl Send for Shared {}

fn shared(places: u32) -> Arc<Shared> {
    Arc::new(Shared {
        produced: AtomicU32::new(0),
        consumed: AtomicU32::new(0),
        places: (0..places).map(|_| UnsafeCell::new(u64::MAX)).collect(),
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
                theirs.places[cursor.place() as usize].with_mut(|place| {
                    // SAFETY: loom checks it.
                    unsafe { place.write(number) };
                });
                cursor.advance_by(1);
                cursor.publish(&theirs.produced);
            }
        });
        let mut cursor = ConsumerCursor::new(2);
        for expected in 0..COUNT {
            while !cursor.has_next(&ring.produced) {
                thread::yield_now();
            }
            // SAFETY: loom checks it.
            let number = ring.places[cursor.place() as usize].with(|place| unsafe { place.read() });
            assert_eq!(number, expected);
            cursor.advance_by(1);
            cursor.publish(&ring.consumed);
        }
        producer.join().unwrap();
        assert!(!cursor.has_next(&ring.produced));
    });
}
