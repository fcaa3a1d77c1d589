//! How many packets of which rule are not in the ring since the last report to the thread. A fixed number of
//! rules; what exceeds it is counted for no rule.

/// Rules that have losses at once. Those of further rules are reported with [`NO_RULE`].
const RULES: usize = 64;
/// The rule of losses that exceed the table.
pub(super) const NO_RULE: u32 = u32::MAX;

/// Packets of one rule.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Loss {
    pub(super) generation: u64,
    pub(super) rule: u32,
    pub(super) full: u32,
    pub(super) skipped: u32,
}

#[derive(Debug)]
pub(super) struct Losses {
    /// The first `len` are used.
    entries: [Loss; RULES],
    len: usize,
    /// The entry that was used last.
    last: usize,
}

impl Default for Losses {
    fn default() -> Self {
        Self { entries: [Loss::default(); RULES], len: 0, last: 0 }
    }
}

impl Losses {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn full(&mut self, generation: u64, rule: u32) {
        let entry = self.entry(generation, rule);
        entry.full = entry.full.saturating_add(1);
    }

    #[inline]
    pub(super) fn skip(&mut self, generation: u64, rule: u32) {
        let entry = self.entry(generation, rule);
        entry.skipped = entry.skipped.saturating_add(1);
    }

    pub(super) fn first(&self) -> Option<Loss> {
        self.entries[..self.len].first().copied()
    }

    /// The others keep no order: all of them lie between the same two packets.
    pub(super) fn remove_first(&mut self) {
        if self.len > 0 {
            self.len -= 1;
            self.entries.swap(0, self.len);
        }
    }

    #[inline]
    fn entry(&mut self, generation: u64, rule: u32) -> &mut Loss {
        let is_it = |entry: &Loss| (entry.generation, entry.rule) == (generation, rule);
        if self.last >= self.len || !is_it(&self.entries[self.last]) {
            self.last = self.find_or_add(generation, rule);
        }
        &mut self.entries[self.last]
    }

    fn find_or_add(&mut self, generation: u64, rule: u32) -> usize {
        let of = |entries: &[Loss], generation, rule| {
            entries.iter().position(|entry| (entry.generation, entry.rule) == (generation, rule))
        };
        let used = &self.entries[..self.len];
        if let Some(place) = of(used, generation, rule) {
            return place;
        }
        // The last entry is for the rules that exceed the table.
        if self.len == RULES {
            return RULES - 1;
        }
        let is_last = self.len == RULES - 1;
        let (generation, rule) = if is_last { (0, NO_RULE) } else { (generation, rule) };
        self.entries[self.len] = Loss { generation, rule, full: 0, skipped: 0 };
        self.len += 1;
        self.len - 1
    }
}
