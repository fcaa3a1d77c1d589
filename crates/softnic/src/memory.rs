//! The memory the device may touch: regions by key, checked for every scatter and gather.
//!
//! Front ends register and remove regions under the device's mutex; the engine checks each buffer under
//! the same mutex, so a region that was deregistered is never touched again.

use std::ffi::c_void;

use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

use crate::errno::{EFAULT, EIO, Verb};
use crate::limits::MAX_REGIONS;

/// A region's key: slot and generation, so that a key of a region that is gone does not name its successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryKey(pub(crate) u32);

const GENERATION_BITS: u32 = 8;

impl MemoryKey {
    fn new(slot: usize, generation: u8) -> Option<Self> {
        let slot = u32::try_from(slot).ok().filter(|slot| *slot < 1 << (32 - GENERATION_BITS))?;
        Some(Self(slot << GENERATION_BITS | u32::from(generation)))
    }

    #[inline]
    fn slot(self) -> usize {
        (self.0 >> GENERATION_BITS) as usize
    }
}

/// A registered region, or one to be.
#[derive(Clone, Copy, Debug)]
pub struct MemoryRegion {
    /// The protection domain's slot.
    pub(crate) domain: u32,
    /// The context's slot.
    pub(crate) owner: u32,
    /// Whether the device may write to it.
    pub(crate) writable: bool,
    /// The first address that work requests use for it.
    pub(crate) virtual_address: u64,
    /// Where it really is.
    pub(crate) address: *mut u8,
    /// The length of the region in bytes.
    pub(crate) bytes: u64,
}

// SAFETY: the pointer is only followed by the engine after a check under the device's mutex.
unsafe impl Send for MemoryRegion {}

struct Entry {
    key: u32,
    region: Option<MemoryRegion>,
}

/// All regions of a device.
pub(crate) struct MemoryTable {
    entries: Vec<Entry>,
    free: Vec<usize>,
}

impl MemoryTable {
    pub(crate) fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }

    /// Adds a region; `None` when the table is full.
    pub(crate) fn insert(&mut self, region: MemoryRegion) -> Option<MemoryKey> {
        if let Some(slot) = self.free.pop() {
            let entry = &mut self.entries[slot];
            // Generation 0 is never used, so no key is 0 and no key of slot 0 looks like a small number.
            let generation = (entry.key.to_le_bytes()[0]).checked_add(1).unwrap_or(1);
            let key = MemoryKey::new(slot, generation)?;
            *entry = Entry { key: key.0, region: Some(region) };
            return Some(key);
        }
        if self.entries.len() >= MAX_REGIONS {
            return None;
        }
        let key = MemoryKey::new(self.entries.len(), 1)?;
        self.entries.push(Entry { key: key.0, region: Some(region) });
        Some(key)
    }

    /// The region of a key.
    #[inline]
    pub(crate) fn get(&self, key: MemoryKey) -> Option<&MemoryRegion> {
        self.entries.get(key.slot()).filter(|entry| entry.key == key.0)?.region.as_ref()
    }

    /// Puts another region in the place of one that is there.
    pub(crate) fn replace(&mut self, key: MemoryKey, region: MemoryRegion) {
        if let Some(entry) = self.entries.get_mut(key.slot()).filter(|entry| entry.key == key.0) {
            entry.region = Some(region);
        }
    }

    /// Removes the region of a key.
    pub(crate) fn remove(&mut self, key: MemoryKey) -> Option<MemoryRegion> {
        let entry = self.entries.get_mut(key.slot()).filter(|entry| entry.key == key.0)?;
        let region = entry.region.take()?;
        self.free.push(key.slot());
        Some(region)
    }

    /// Removes every region of a context.
    pub(crate) fn remove_owned(&mut self, owner: u32) {
        for (slot, entry) in self.entries.iter_mut().enumerate() {
            if entry.region.is_some_and(|region| region.owner == owner) {
                entry.region = None;
                self.free.push(slot);
            }
        }
    }

    /// The regions of a domain, to be read or, with `write`, to be written.
    #[inline]
    pub(crate) fn of_domain(&self, domain: u32, write: bool) -> Regions<'_> {
        Regions { table: self, domain, write, found: Found::NOTHING }
    }
}

/// The regions that the requests of one queue may name. The table cannot change while it exists, so the
/// region found last is used again without a look at the table: most queues name one.
pub(crate) struct Regions<'m> {
    table: &'m MemoryTable,
    domain: u32,
    write: bool,
    found: Found,
}

/// The region found last; its domain and its access were checked.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    key: u64,
    start: u64,
    bytes: u64,
    address: *mut u8,
}

impl Found {
    /// No request can name it: keys have 32 bits.
    const NOTHING: Self = Self { key: u64::MAX, start: 0, bytes: 0, address: std::ptr::null_mut() };

    /// Where `bytes` at `address` really are, if `key` names this region and it holds them.
    #[inline]
    pub(crate) fn resolve(&self, key: u32, address: u64, bytes: u32) -> Option<*mut u8> {
        let offset = address.wrapping_sub(self.start);
        let end = offset.checked_add(u64::from(bytes))?;
        // An address below the start is an offset beyond the end: no region reaches as far.
        let holds = u64::from(key) == self.key && end <= self.bytes;
        holds.then(|| self.address.wrapping_add(offset as usize))
    }

    /// For buffers of `bytes` bytes, if `key` names this region and it holds such.
    #[inline]
    pub(crate) fn window(&self, key: u32, bytes: u32) -> Option<Window> {
        let last = self.bytes.checked_sub(bytes.into())?;
        (u64::from(key) == self.key).then_some(Window { start: self.start, last, address: self.address })
    }
}

/// Where buffers of one length begin that a region holds.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    start: u64,
    /// The last place, counted from the start.
    last: u64,
    address: *mut u8,
}

impl Window {
    /// Where a buffer at `address` really is, if the region holds it. The same as [`Found::resolve`].
    #[inline]
    pub(crate) fn resolve(&self, address: u64) -> Option<*mut u8> {
        // An address below the start is an offset beyond the last place: no region reaches as far.
        let offset = address.wrapping_sub(self.start);
        (offset <= self.last).then(|| self.address.wrapping_add(offset as usize))
    }
}

impl Regions<'_> {
    /// Where `bytes` at `address` really are, if `key` names a region of the domain that holds them and
    /// allows it.
    #[inline]
    pub(crate) fn resolve(&mut self, key: u32, address: u64, bytes: u32) -> Option<*mut u8> {
        if u64::from(key) != self.found.key {
            self.find(key)?;
        }
        self.found.resolve(key, address, bytes)
    }

    /// The place that the last [`resolve`](Self::resolve) found.
    #[inline]
    pub(crate) fn last(&self) -> Found {
        self.found
    }

    fn find(&mut self, key: u32) -> Option<()> {
        let region = self.table.get(MemoryKey(key))?;
        if region.domain != self.domain || (self.write && !region.writable) {
            return None;
        }
        let MemoryRegion { virtual_address: start, bytes, address, .. } = *region;
        self.found = Found { key: u64::from(key), start, bytes, address };
        Some(())
    }
}

/// Has the pages of a range there, as pinning them would.
///
/// # Errors
/// EFAULT for memory that is not mapped, or not with the rights that the device needs: it is not a crash when
/// a frame arrives.
pub fn populate(address: *mut c_void, bytes: usize, writable: bool) -> Verb<()> {
    // SAFETY: takes a number and returns one.
    let page_bytes = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).map_err(|_| EIO)?;
    let start = address.map_addr(|address| address & !(page_bytes - 1));
    let length = address.addr() - start.addr() + bytes;
    let advice = if writable { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
    let populate = |bytes| {
        // SAFETY: these two kinds of advice fault pages in and change no byte of them.
        unsafe { madvise(start, bytes, advice) }
    };
    match populate(length) {
        Ok(()) => Ok(()),
        // Kernels before 5.14 do not know it, not even for nothing: there the application is believed.
        Err(Errno::INVAL) if populate(0).is_err() => Ok(()),
        // madvise(2): not mapped; poisoned; without the rights, or special, which the kernel does not pin
        // either.
        Err(Errno::NOMEM | Errno::FAULT | Errno::INVAL) => Err(EFAULT),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(domain: u32, writable: bool) -> MemoryRegion {
        MemoryRegion {
            domain,
            owner: 0,
            writable,
            virtual_address: 0x1000,
            address: std::ptr::without_provenance_mut(0x8000),
            bytes: 100,
        }
    }

    #[test]
    fn bounds_are_exact() {
        let mut table = MemoryTable::new();
        let key = table.insert(region(3, true)).unwrap().0;
        let at = |address, bytes| table.of_domain(3, true).resolve(key, address, bytes).map(<*mut u8>::addr);
        assert_eq!(at(0x1000, 100), Some(0x8000));
        assert_eq!(at(0x1063, 1), Some(0x8063));
        assert_eq!(at(0x1064, 0), Some(0x8064));
        assert_eq!(at(0x1064, 1), None);
        assert_eq!(at(0x1000, 101), None);
        assert_eq!(at(0x0fff, 1), None);
        assert_eq!(at(u64::MAX, u32::MAX), None);
    }

    #[test]
    fn a_window_holds_the_same_buffers_as_the_region() {
        let mut table = MemoryTable::new();
        let key = table.insert(region(3, true)).unwrap().0;
        let mut regions = table.of_domain(3, true);
        assert!(regions.last().window(key, 1).is_none(), "no region was found yet");
        assert!(regions.resolve(key, 0x1000, 1).is_some());
        let found = regions.last();
        for bytes in [0, 1, 99, 100] {
            let window = found.window(key, bytes).unwrap();
            for address in [0, 0xfff, 0x1000, 0x1001, 0x1063, 0x1064, 0x1065, u64::MAX] {
                assert_eq!(window.resolve(address), found.resolve(key, address, bytes), "{address} {bytes}");
            }
        }
        assert!(found.window(key, 101).is_none());
        assert!(found.window(key ^ 1, 1).is_none());
    }

    #[test]
    fn domain_and_access_are_checked() {
        let mut table = MemoryTable::new();
        let key = table.insert(region(3, false)).unwrap().0;
        assert!(table.of_domain(3, false).resolve(key, 0x1000, 1).is_some());
        assert!(table.of_domain(3, true).resolve(key, 0x1000, 1).is_none(), "no local write access");
        assert!(table.of_domain(4, false).resolve(key, 0x1000, 1).is_none(), "another domain");
    }

    #[test]
    fn a_stale_key_does_not_name_the_next_region() {
        let mut table = MemoryTable::new();
        let old = table.insert(region(1, true)).unwrap();
        assert!(table.remove(old).is_some());
        assert!(table.remove(old).is_none());
        let new = table.insert(region(1, true)).unwrap();
        assert_ne!(old, new);
        let mut regions = table.of_domain(1, true);
        assert!(regions.resolve(old.0, 0x1000, 1).is_none());
        assert!(regions.resolve(0, 0, 0).is_none(), "no region was found yet");
        assert!(regions.resolve(new.0, 0x1000, 1).is_some());
        assert!(regions.resolve(0, 0x1000, 1).is_none());
        assert!(regions.resolve(u32::MAX, 0x1000, 1).is_none());
    }

    #[test]
    fn each_region_is_checked_also_after_another_one() {
        let mut table = MemoryTable::new();
        let mine = table.insert(region(1, true)).unwrap();
        let foreign = table.insert(region(2, true)).unwrap();
        let mut regions = table.of_domain(1, true);
        for _ in 0..2 {
            assert!(regions.resolve(mine.0, 0x1000, 100).is_some());
            assert!(regions.resolve(mine.0, 0x1000, 101).is_none());
            assert!(regions.resolve(foreign.0, 0x1000, 1).is_none());
        }
    }
}
