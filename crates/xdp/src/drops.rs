//! The packets that the program drops, counted for each purpose and processor in memory that it shares with
//! this process.
//!
//! Why no count is missed or added to another one: the program makes the first word of its processor odd,
//! reads the effect of the rule once more, counts in its slot if it is the same, and makes the word even
//! again, with full barriers around. Once a rule names a slot no more, [`DropMemory::quiesce`] waits until it
//! has seen each of these words even or changed. Then every program that read the old effect while its word
//! was odd has counted. A program that makes the word odd later reads the new effect and does not count. So a
//! slot is free as soon as no rule names it.
//!
//! A packet is counted among all before it is counted for its purpose. On processors that keep the order of
//! stores the sum of the purposes is never more than what is read of all afterwards.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::memory::SharedWords;

/// Words of the program's `struct drops`.
pub(crate) const DROP_WORDS: usize = 2;

/// The slots that have no purpose: one whose first word is odd while the program counts, and whose second is
/// not 0 while nothing is to be dropped; and that of all dropped packets.
const RESERVED_SLOTS: usize = 2;
const TOTAL_SLOT: usize = 1;

/// How often a program that counts is looked at before a nap, in which a program of less priority may run.
const SPINS: usize = 1000;
const NAP: Duration = Duration::from_micros(50);

/// Dropped packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Packets.
    pub packets: u64,
    /// Bytes of the frames, without FCS.
    pub bytes: u64,
}

/// The slots of all processors.
#[derive(Debug)]
pub(crate) struct DropMemory {
    /// By processor and slot.
    words: SharedWords<AtomicU64>,
    /// The slots of each processor.
    slots: usize,
    free: Mutex<Vec<usize>>,
}

impl DropMemory {
    /// Takes memory of some processors, with so many slots each.
    pub(crate) fn new(words: SharedWords<AtomicU64>, slots: usize) -> Arc<Self> {
        Arc::new(Self { words, slots, free: Mutex::new((RESERVED_SLOTS..slots).rev().collect()) })
    }

    /// A counter at zero; `None` if there are no more.
    pub(crate) fn counter(self: &Arc<Self>) -> Option<DropCounter> {
        let slot = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        let before = self.read(slot);
        Some(DropCounter(Arc::new(Slot { memory: Arc::clone(self), slot, before })))
    }

    /// The counts of a slot since the memory was made.
    fn read(&self, slot: usize) -> Dropped {
        let processors = self.words.chunks_exact(self.slots.max(1) * DROP_WORDS);
        processors.fold(Dropped::default(), |sum, of_processor| {
            let word = |word: usize| of_processor[slot * DROP_WORDS + word].load(Ordering::Relaxed);
            Dropped { packets: sum.packets + word(0), bytes: sum.bytes + word(1) }
        })
    }

    /// Waits for all programs that are counting now. This takes less than a microsecond, unless a hypervisor
    /// has suspended the processor of one.
    pub(crate) fn quiesce(&self) {
        fence(Ordering::SeqCst);
        for of_processor in self.words.chunks_exact(self.slots.max(1) * DROP_WORDS) {
            let begun = of_processor[0].load(Ordering::SeqCst);
            let is_counting = || begun % 2 == 1 && of_processor[0].load(Ordering::SeqCst) == begun;
            let mut spins = 0;
            while is_counting() {
                spins += 1;
                if spins < SPINS { std::hint::spin_loop() } else { std::thread::sleep(NAP) }
            }
        }
    }
}

/// All packets that a program drops.
#[derive(Clone, Debug)]
pub struct AllDrops(pub(crate) Arc<DropMemory>);

impl AllDrops {
    /// Lets the program drop packets, or redirect those too. When this has returned, and none is to be
    /// dropped, all that were are counted.
    pub fn allow(&self, is_allowed: bool) {
        for of_processor in self.0.words.chunks_exact(self.0.slots.max(1) * DROP_WORDS) {
            of_processor[1].store(u64::from(!is_allowed), Ordering::SeqCst);
        }
        self.0.quiesce();
    }

    /// The packets that the program has dropped so far.
    #[must_use]
    pub fn read(&self) -> Dropped {
        if self.0.slots > TOTAL_SLOT { self.0.read(TOTAL_SLOT) } else { Dropped::default() }
    }
}

/// A purpose of dropping packets, with their number. Clones count together; the last one gives the counter's
/// place back.
#[derive(Clone, Debug)]
pub struct DropCounter(Arc<Slot>);

#[derive(Debug)]
struct Slot {
    memory: Arc<DropMemory>,
    slot: usize,
    /// The counts of the purposes before.
    before: Dropped,
}

impl DropCounter {
    /// The packets that the program has dropped for it.
    #[must_use]
    pub fn read(&self) -> Dropped {
        let Slot { memory, slot, before } = &*self.0;
        let now = memory.read(*slot);
        Dropped { packets: now.packets - before.packets, bytes: now.bytes - before.bytes }
    }

    /// The number of its slot, which is not 0.
    pub(crate) fn slot(&self) -> u32 {
        self.0.slot as u32
    }
}

impl PartialEq for DropCounter {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for DropCounter {}

impl Drop for Slot {
    fn drop(&mut self) {
        self.memory.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_is_used_again_begins_at_zero() {
        let memory = DropMemory::new(SharedWords::own(2 * 4 * DROP_WORDS), 4);
        let count = |processor: usize, slot: usize, packets: u64| {
            let at = (processor * 4 + slot) * DROP_WORDS;
            memory.words[at].fetch_add(packets, Ordering::Relaxed);
            memory.words[at + 1].fetch_add(60 * packets, Ordering::Relaxed);
        };
        let (first, second) = (memory.counter().expect("free"), memory.counter().expect("free"));
        assert!(memory.counter().is_none(), "the first two slots have no purpose");
        count(0, 2, 2);
        count(1, 2, 3);
        count(1, 3, 1);
        assert_eq!(first.read(), Dropped { packets: 5, bytes: 300 });
        let same = first.clone();
        drop(first);
        assert!(memory.counter().is_none(), "a clone counts");
        drop(same);
        let third = memory.counter().expect("given back");
        assert_eq!((third.slot(), third.read()), (2, Dropped::default()));
        count(0, 2, 1);
        assert_eq!((third.read().packets, second.read().packets), (1, 1));
    }

    #[test]
    fn a_program_that_counts_is_waited_for() {
        let memory = DropMemory::new(SharedWords::own(DROP_WORDS), 1);
        memory.words[0].store(7, Ordering::Relaxed);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| memory.quiesce());
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!waiting.is_finished());
            memory.words[0].store(8, Ordering::Relaxed);
        });
    }
}
