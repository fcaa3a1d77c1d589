//! A table of objects named by small numbers, with a limit. Used by `state` for everything the device hands
//! out.

/// Objects by slot. Slots are used again after their object is removed.
pub(crate) struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
    limit: usize,
}

impl<T> Slab<T> {
    /// An empty table of at most `limit` objects.
    pub(crate) fn new(limit: usize) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), limit }
    }

    /// Adds an object; `None` when the table is full.
    pub(crate) fn insert(&mut self, object: T) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = Some(object);
            return Some(slot);
        }
        if self.slots.len() >= self.limit {
            return None;
        }
        let slot = u32::try_from(self.slots.len()).ok()?;
        self.slots.push(Some(object));
        Some(slot)
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        self.slots.get(slot as usize)?.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Option<T> {
        let object = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(object)
    }

    /// The number of slots ever used at once: no slot number reaches it.
    pub(crate) fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// All objects with their slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0u32..).zip(&self.slots).filter_map(|(slot, object)| Some((slot, object.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_reused_and_limited() {
        let mut slab = Slab::new(2);
        assert_eq!(slab.insert('a'), Some(0));
        assert_eq!(slab.insert('b'), Some(1));
        assert_eq!(slab.insert('c'), None);
        assert_eq!(slab.remove(0), Some('a'));
        assert_eq!(slab.remove(0), None);
        assert_eq!(slab.insert('d'), Some(0));
        assert_eq!(slab.iter().collect::<Vec<_>>(), [(0, &'d'), (1, &'b')]);
    }
}
