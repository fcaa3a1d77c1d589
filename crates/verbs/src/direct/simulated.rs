//! Memory whose readers see what a processor and a bus may show them, for tests.
//!
//! All writes are in one log. A reader of a word gets any of its versions that is not older than one that it
//! has seen, and not older than what its last barrier made visible. A barrier makes visible what was written
//! before a word that the reader has read: of a device everything, as a bus keeps the order of its writes; of
//! the processor what it wrote before its own last barrier. This is more than x86 does, and no less than what
//! AArch64 does with loads that are executed early and stores that are visible late.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::memory::{DeviceMemory, DeviceRing};

/// Who reads and writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Processor,
    Device,
}

/// Barriers of the processor that do nothing.
#[derive(Clone, Copy, Default)]
pub(super) struct MissingBarriers {
    pub(super) from_device: bool,
    pub(super) to_device: bool,
}

/// A word of 8 bytes: its ring, and its number in there.
type WordPlace = (u32, u64);

#[derive(Clone, Copy)]
struct WordVersion {
    /// Where in the log it was written.
    at: u64,
    value: u64,
    writer: Side,
    /// All that comes before this place in the log is visible to a reader of this version, behind a barrier.
    released: u64,
}

/// The knowledge that one side has of the log.
#[derive(Default)]
struct SideView {
    /// Everything before is visible.
    visible: u64,
    /// Everything before becomes visible with the next barrier.
    acquired: u64,
    seen: HashMap<WordPlace, u64>,
}

/// The log of all writes.
pub(super) struct SharedLog {
    words: HashMap<WordPlace, Vec<WordVersion>>,
    length: u64,
    /// The end of the log at the processor's last barrier.
    released: u64,
    views: [SideView; 2],
    missing: MissingBarriers,
    random: u64,
    rings: u32,
}

impl SharedLog {
    pub(super) fn new(seed: u64, missing: MissingBarriers) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self {
            words: HashMap::new(),
            length: 1,
            released: 0,
            views: Default::default(),
            missing,
            random: seed,
            rings: 0,
        }))
    }

    /// A number below `end` (splitmix64).
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % end
    }

    fn load(&mut self, side: Side, place: WordPlace) -> u64 {
        let view = &self.views[side as usize];
        let least = view.seen.get(&place).copied().unwrap_or(0);
        let versions = self.words.get(&place).cloned().unwrap_or_default();
        let is_settled = |version: &WordVersion| {
            version.at <= least || version.at <= view.visible || version.writer == side
        };
        let first = versions.iter().rposition(is_settled);
        // Before the first write the word is 0.
        let choices = versions.len() as u64 + u64::from(first.is_none()) - first.unwrap_or(0) as u64;
        let choice = if self.below(2) == 0 { choices - 1 } else { self.below(choices) } as usize;
        let index = first.map_or(choice.checked_sub(1), |first| Some(first + choice));
        let Some(version) = index.map(|index| versions[index]) else { return 0 };
        let view = &mut self.views[side as usize];
        view.seen.insert(place, version.at);
        view.acquired = view.acquired.max(version.released);
        version.value
    }

    fn store(&mut self, side: Side, place: WordPlace, change: impl FnOnce(u64) -> u64) {
        let at = self.length;
        self.length += 1;
        let released = if side == Side::Device { at } else { self.released };
        let versions = self.words.entry(place).or_default();
        let value = change(versions.last().map_or(0, |version| version.value));
        versions.push(WordVersion { at, value, writer: side, released });
    }

    fn acquire(&mut self, side: Side) {
        if side == Side::Device || !self.missing.from_device {
            let view = &mut self.views[side as usize];
            view.visible = view.visible.max(view.acquired);
        }
    }

    fn release(&mut self, side: Side) {
        if side == Side::Processor && !self.missing.to_device {
            self.released = self.length;
        }
    }
}

/// The kind of memory that is simulated.
pub(super) enum SimulatedMemory {}

impl DeviceMemory for SimulatedMemory {
    type Ring<const ENTRY: usize> = SimulatedRing<ENTRY>;
}

/// One side's end of a ring.
pub(super) struct SimulatedRing<const ENTRY: usize> {
    log: Rc<RefCell<SharedLog>>,
    side: Side,
    number: u32,
    mask: u32,
}

impl<const ENTRY: usize> SimulatedRing<ENTRY> {
    /// A ring that is all 0.
    pub(super) fn new(log: &Rc<RefCell<SharedLog>>, entries: u32) -> Self {
        let number = log.borrow().rings;
        log.borrow_mut().rings += 1;
        Self { log: Rc::clone(log), side: Side::Processor, number, mask: entries - 1 }
    }

    /// The other end of it.
    pub(super) fn of_device(&self) -> Self {
        Self { log: Rc::clone(&self.log), side: Side::Device, ..*self }
    }

    fn place(&self, index: u32, at: usize) -> WordPlace {
        (self.number, u64::from(index & self.mask) * (ENTRY / 8) as u64 + (at / 8) as u64)
    }
}

impl<const ENTRY: usize> DeviceRing for SimulatedRing<ENTRY> {
    fn load_u64<const AT: usize>(&self, index: u32) -> u64 {
        self.log.borrow_mut().load(self.side, self.place(index, AT))
    }

    fn load_u32<const AT: usize>(&self, index: u32) -> u32 {
        let word = self.log.borrow_mut().load(self.side, self.place(index, AT));
        if AT.is_multiple_of(8) { (word >> 32) as u32 } else { word as u32 }
    }

    fn store_u64<const AT: usize>(&self, index: u32, value: u64) {
        self.log.borrow_mut().store(self.side, self.place(index, AT), |_| value);
    }

    fn store_u32<const AT: usize>(&self, index: u32, value: u32) {
        self.log.borrow_mut().store(self.side, self.place(index, AT), |word| {
            let value = u64::from(value);
            if AT.is_multiple_of(8) { value << 32 | word & 0xffff_ffff } else { word >> 32 << 32 | value }
        });
    }

    fn prefetch(&self, _index: u32) {}

    fn acquire_from_device(&self) {
        self.log.borrow_mut().acquire(self.side);
    }

    fn release_to_device(&self) {
        self.log.borrow_mut().release(self.side);
    }

    fn flush_to_device(&self) {
        self.release_to_device();
    }
}
