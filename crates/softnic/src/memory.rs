//! The memory the device may touch: regions by key, checked for every scatter and gather.
//!
//! The provider registers and removes regions under the device's mutex; the engine checks each buffer under the same
//! mutex, so a region that was deregistered is never touched again.

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

/// One registered region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
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
    /// Its length.
    pub(crate) bytes: u64,
}

// SAFETY: the pointer is only followed by the engine after a check under the device's mutex.
unsafe impl Send for Region {}

struct Entry {
    key: u32,
    region: Option<Region>,
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
    pub(crate) fn insert(&mut self, region: Region) -> Option<MemoryKey> {
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
    pub(crate) fn get(&self, key: MemoryKey) -> Option<Region> {
        self.entries.get(key.slot()).filter(|entry| entry.key == key.0)?.region
    }

    /// Puts another region in the place of one that is there.
    pub(crate) fn replace(&mut self, key: MemoryKey, region: Region) {
        if let Some(entry) = self.entries.get_mut(key.slot()).filter(|entry| entry.key == key.0) {
            entry.region = Some(region);
        }
    }

    /// Removes the region of a key.
    pub(crate) fn remove(&mut self, key: MemoryKey) -> Option<Region> {
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

    /// Where `bytes` at `address` really are, if `key` names a region of `domain` that holds them and allows it.
    #[inline]
    pub(crate) fn resolve(
        &self,
        key: u32,
        domain: u32,
        address: u64,
        bytes: u32,
        write: bool,
    ) -> Option<*mut u8> {
        let entry = self.entries.get(MemoryKey(key).slot())?;
        if entry.key != key {
            return None;
        }
        let region = entry.region.as_ref()?;
        let offset = address.checked_sub(region.virtual_address)?;
        let fits = offset <= region.bytes && u64::from(bytes) <= region.bytes - offset;
        if region.domain != domain || !fits || (write && !region.writable) {
            return None;
        }
        Some(region.address.wrapping_add(usize::try_from(offset).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(domain: u32, writable: bool) -> Region {
        Region {
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
        let at = |address, bytes| table.resolve(key, 3, address, bytes, true).map(<*mut u8>::addr);
        assert_eq!(at(0x1000, 100), Some(0x8000));
        assert_eq!(at(0x1063, 1), Some(0x8063));
        assert_eq!(at(0x1064, 0), Some(0x8064));
        assert_eq!(at(0x1064, 1), None);
        assert_eq!(at(0x1000, 101), None);
        assert_eq!(at(0x0fff, 1), None);
        assert_eq!(at(u64::MAX, u32::MAX), None);
    }

    #[test]
    fn domain_and_access_are_checked() {
        let mut table = MemoryTable::new();
        let key = table.insert(region(3, false)).unwrap().0;
        assert!(table.resolve(key, 3, 0x1000, 1, false).is_some());
        assert!(table.resolve(key, 3, 0x1000, 1, true).is_none(), "no local write access");
        assert!(table.resolve(key, 4, 0x1000, 1, false).is_none(), "another domain");
    }

    #[test]
    fn a_stale_key_does_not_name_the_next_region() {
        let mut table = MemoryTable::new();
        let old = table.insert(region(1, true)).unwrap();
        assert!(table.remove(old).is_some());
        assert!(table.remove(old).is_none());
        let new = table.insert(region(1, true)).unwrap();
        assert_ne!(old, new);
        assert!(table.resolve(old.0, 1, 0x1000, 1, true).is_none());
        assert!(table.resolve(new.0, 1, 0x1000, 1, true).is_some());
        assert!(table.resolve(0, 1, 0x1000, 1, true).is_none());
        assert!(table.resolve(u32::MAX, 1, 0x1000, 1, true).is_none());
    }
}
