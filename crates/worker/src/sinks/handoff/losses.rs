//! How many packets of which rule did not fit into the ring since the last report to the consumer. A fixed number of rules;
//! what exceeds it is counted for no rule.

/// Rules that have losses at once. Those of further rules are reported with [`NO_RULE`].
const RULES: usize = 64;
/// The rule of losses that exceed the table.
pub(super) const NO_RULE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Losses {
    /// Generation, rule, packets; the first `len` are used.
    entries: [(u64, u32, u32); RULES],
    len: usize,
}

impl Default for Losses {
    fn default() -> Self {
        Self { entries: [(0, 0, 0); RULES], len: 0 }
    }
}

impl Losses {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn add(&mut self, generation: u64, rule: u32) {
        // The last entry is for the rules that exceed the table.
        let (generation, rule) = match self.find(generation, rule) {
            None if self.len >= RULES - 1 => (0, NO_RULE),
            _ => (generation, rule),
        };
        if let Some(at) = self.find(generation, rule) {
            self.entries[at].2 = self.entries[at].2.saturating_add(1);
        } else if let Some(entry) = self.entries.get_mut(self.len) {
            *entry = (generation, rule, 1);
            self.len += 1;
        }
    }

    pub(super) fn first(&self) -> Option<(u64, u32, u32)> {
        self.entries[..self.len].first().copied()
    }

    /// The others keep no order: all of them lie between the same two packets.
    pub(super) fn remove_first(&mut self) {
        if self.len > 0 {
            self.len -= 1;
            self.entries.swap(0, self.len);
        }
    }

    fn find(&self, generation: u64, rule: u32) -> Option<usize> {
        self.entries[..self.len].iter().position(|entry| (entry.0, entry.1) == (generation, rule))
    }
}
