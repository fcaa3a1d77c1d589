//! Rules at run time on one worker: a hash table that its thread alone reads and writes, and the ring by
//! which another thread changes it.
//!
//! All memory is allocated by the thread that sends the table. A change costs the worker one look into the
//! table; it takes few between two batches of packets, so a flood of changes delays none for long.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use program::{
    Outcome, RUNTIME_FORMS_MAX, RUNTIME_RULES_MAX, RuntimeChange, RuntimeEntry, RuntimeKey, RuntimeSecret,
};
use rtrb::{Consumer, Producer, RingBuffer};

use crate::counter::{Tally, TallyRow, Traffic};

/// The changes that a ring holds.
const RING: usize = 1024;
/// The changes that a worker takes between two batches.
const CHANGES_PER_STEP: usize = 64;
/// Tables on their way back: one is sent at a time, and the sender waits for it.
const RETURNED: usize = 4;

#[derive(Debug)]
enum Message {
    Change(RuntimeChange),
    Replace(Box<RuntimeTable>),
}

/// A search for the rule with a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuntimeProbe {
    key: RuntimeKey,
    hash: u32,
    /// The first bucket that may have it, once the search has begun.
    bucket: u64,
}

impl RuntimeProbe {
    #[inline]
    pub(crate) fn of(key: RuntimeKey, table: &RuntimeTable) -> Self {
        Self { key, hash: table.hash(&key), bucket: 0 }
    }
}

/// The packets whose searches for rules at run time run at the same time.
pub(crate) const GROUP: usize = 32;

/// The searches for rules at run time of a group of packets; never grows.
#[derive(Debug, Default)]
pub(crate) struct RuntimeLookups {
    pub(crate) probes: Vec<RuntimeProbe>,
    pub(crate) undecided: Vec<Undecided>,
}

/// A packet whose searches run.
#[derive(Debug)]
pub(crate) struct Undecided {
    /// The outcome by its class, and the place of its table; `None`: it has been counted as lost.
    pub(crate) outcome: Option<(usize, Outcome)>,
    /// The end of its probes.
    pub(crate) probes_end: usize,
}

impl RuntimeLookups {
    pub(crate) fn new() -> Self {
        let probes = Vec::with_capacity(GROUP * RUNTIME_FORMS_MAX);
        Self { probes, undecided: Vec::with_capacity(GROUP) }
    }
}

/// The rules of one worker by their keys: linear probing over twice as many buckets as rules, without
/// tombstones.
#[derive(Debug)]
pub(crate) struct RuntimeTable {
    /// The lower half of the hash above the slot plus 1; 0 is free.
    buckets: Box<[u64]>,
    /// The rules by slot.
    entries: Box<[Option<(RuntimeKey, u8)>]>,
    rules: usize,
    secret: RuntimeSecret,
    tallies: Arc<TallyRow>,
}

impl RuntimeTable {
    /// An empty table for so many rules.
    fn new(capacity: u32) -> Self {
        let capacity = capacity.clamp(1, RUNTIME_RULES_MAX) as usize;
        Self {
            buckets: vec![0; (2 * capacity).next_power_of_two()].into_boxed_slice(),
            entries: vec![None; capacity].into_boxed_slice(),
            rules: 0,
            secret: RuntimeSecret::random(),
            tallies: Arc::new(TallyRow::new(capacity)),
        }
    }

    #[inline]
    fn hash(&self, key: &RuntimeKey) -> u32 {
        key.hash(&self.secret) as u32
    }

    /// Whether there is no rule.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.rules == 0
    }

    /// Begins the search for the key of a probe. Most time of a search is that of the memory, so several are
    /// begun before the first is ended.
    #[inline]
    fn begin(&self, probe: &mut RuntimeProbe) {
        probe.bucket = self.buckets[probe.hash as usize & (self.buckets.len() - 1)];
    }

    /// Begins all of these searches.
    #[inline]
    pub(crate) fn begin_all(&self, probes: &mut [RuntimeProbe]) {
        probes.iter_mut().for_each(|probe| self.begin(probe));
    }

    /// Counts a packet for the rule with the key of a probe and returns the number of its action.
    #[inline]
    pub(crate) fn find(&self, probe: &RuntimeProbe, bytes: u32) -> Option<u8> {
        let RuntimeProbe { key, hash, mut bucket } = *probe;
        let mask = self.buckets.len() - 1;
        let mut place = hash as usize & mask;
        loop {
            if bucket == 0 {
                return None;
            }
            if (bucket >> 32) as u32 == hash {
                let slot = (bucket as u32 - 1) as usize;
                if let Some(Some((known, action))) = self.entries.get(slot)
                    && *known == key
                {
                    if let Some(tally) = self.tallies.at(slot) {
                        tally.add(1, u64::from(bytes));
                    }
                    return Some(*action);
                }
            }
            place = (place + 1) & mask;
            bucket = self.buckets[place];
        }
    }

    fn apply(&mut self, change: RuntimeChange) {
        match change {
            RuntimeChange::Add(entry) => self.add(entry),
            RuntimeChange::Remove { slot } => self.remove(slot),
        }
    }

    /// Adds a rule in place of the one that had its slot.
    fn add(&mut self, RuntimeEntry { slot, key, action }: RuntimeEntry) {
        if slot as usize >= self.entries.len() {
            return;
        }
        self.remove(slot);
        self.entries[slot as usize] = Some((key, action));
        self.rules += 1;
        let hash = self.hash(&key);
        let mask = self.buckets.len() - 1;
        let mut place = hash as usize & mask;
        // At most half of the buckets are in use.
        while self.buckets[place] != 0 {
            place = (place + 1) & mask;
        }
        self.buckets[place] = u64::from(hash) << 32 | u64::from(slot + 1);
    }

    fn remove(&mut self, slot: u32) {
        let Some((key, _)) = self.entries.get_mut(slot as usize).and_then(Option::take) else { return };
        self.rules -= 1;
        let mask = self.buckets.len() - 1;
        let mut place = self.hash(&key) as usize & mask;
        while self.buckets[place] as u32 != slot + 1 {
            if self.buckets[place] == 0 {
                return;
            }
            place = (place + 1) & mask;
        }
        // Moves back what was pushed beyond this place, so that a search may end at the first free bucket.
        let mut next = place;
        loop {
            next = (next + 1) & mask;
            let bucket = self.buckets[next];
            if bucket == 0 {
                break;
            }
            let home = (bucket >> 32) as usize & mask;
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(place) & mask) {
                self.buckets[place] = bucket;
                place = next;
            }
        }
        self.buckets[place] = 0;
    }
}

/// The worker's end: its table and the changes that wait.
#[derive(Debug)]
pub(crate) struct RuntimeRulesOfWorker {
    table: Option<Box<RuntimeTable>>,
    messages: Consumer<Message>,
    returned: Producer<Box<RuntimeTable>>,
    applied: Arc<AtomicU64>,
    /// While one program replaces another: the changes that wait for packets which came before them.
    draining: Option<Draining>,
}

/// The packets that wait in a worker's completion queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingPackets {
    /// The most that there can be.
    pub(crate) most: u64,
    /// How many the last iteration has taken, and whether it has seen the queue empty.
    pub(crate) taken: u64,
    pub(crate) are_none: bool,
}

/// Changes that wait until the packets are decided that may have come by flows of the program before. Else
/// such a packet could be decided by rules that this program never had.
#[derive(Debug)]
struct Draining {
    /// The changes that were there when it began.
    changes: usize,
    /// The most packets that can still be waiting.
    left: u64,
}

impl RuntimeRulesOfWorker {
    /// The rules, if there are any.
    #[inline]
    pub(crate) fn table(&self) -> Option<&RuntimeTable> {
        self.table.as_deref().filter(|table| !table.is_empty())
    }

    /// Whether changes wait.
    pub(crate) fn is_behind(&self) -> bool {
        !self.messages.is_empty()
    }

    /// Takes some of the changes that wait. `waiting`: the packets that may be of a program that another one
    /// replaces, while one does.
    #[inline]
    pub(crate) fn refresh(&mut self, waiting: impl FnOnce() -> Option<WaitingPackets>) {
        if !self.messages.is_empty() {
            let due = match waiting() {
                Some(waiting) => self.due(&waiting),
                None => {
                    self.draining = None;
                    CHANGES_PER_STEP
                }
            };
            self.take_changes(due);
        }
    }

    /// How many of the changes may be taken while there are packets of two programs. Completions come in
    /// order, so once the queue was seen empty, or as many were taken as it can hold, all are decided that
    /// were waiting when the changes came.
    #[cold]
    fn due(&mut self, waiting: &WaitingPackets) -> usize {
        let Some(draining) = &mut self.draining else {
            self.draining = Some(Draining { changes: self.messages.slots(), left: waiting.most });
            return 0;
        };
        draining.left = match waiting.are_none {
            true => 0,
            false => draining.left.saturating_sub(waiting.taken),
        };
        let due = if draining.left == 0 { draining.changes.min(CHANGES_PER_STEP) } else { 0 };
        draining.changes -= due;
        if draining.changes == 0 {
            self.draining = None;
        }
        due
    }

    #[cold]
    fn take_changes(&mut self, due: usize) {
        let mut taken = 0;
        while taken < due
            && let Ok(message) = self.messages.pop()
        {
            taken += 1;
            match message {
                Message::Change(change) => {
                    if let Some(table) = &mut self.table {
                        table.apply(change);
                    }
                }
                Message::Replace(table) => {
                    if let Some(before) = self.table.replace(table) {
                        // Room is left for it: else it is freed here, which takes long and harms nothing
                        // else.
                        let _ = self.returned.push(before);
                    }
                }
            }
        }
        let applied = self.applied.load(Ordering::Relaxed) + taken as u64;
        // What the worker has counted by the rules before is visible to a thread that sees this.
        self.applied.store(applied, Ordering::Release);
    }
}

/// The other end, of the thread that changes the rules.
#[derive(Debug)]
pub(crate) struct RuntimeFeed {
    messages: Producer<Message>,
    returned: Consumer<Box<RuntimeTable>>,
    applied: Arc<AtomicU64>,
    sent: u64,
    /// The counters of the table that the worker has, or is about to get.
    tallies: Arc<TallyRow>,
    /// The counts by tables before this one, by slot.
    carried: Vec<Traffic>,
    /// The counters of the table that the worker had before, in which it counts until it has taken the one
    /// that was sent.
    before: Option<Arc<TallyRow>>,
}

/// Both ends.
pub(crate) fn runtime_rules() -> (RuntimeFeed, RuntimeRulesOfWorker) {
    let (messages, taken) = RingBuffer::new(RING);
    let (returned, freed) = RingBuffer::new(RETURNED);
    let applied = Arc::<AtomicU64>::default();
    let feed = RuntimeFeed {
        messages,
        returned: freed,
        applied: Arc::clone(&applied),
        sent: 0,
        tallies: Arc::new(TallyRow::new(0)),
        carried: Vec::new(),
        before: None,
    };
    (feed, RuntimeRulesOfWorker { table: None, messages: taken, returned, applied, draining: None })
}

impl RuntimeFeed {
    /// Sends the first of these changes, as many as there is room for; returns their number.
    pub(crate) fn send(&mut self, changes: &[RuntimeChange]) -> usize {
        self.close_before();
        let mut sent = 0;
        for change in changes {
            if self.messages.push(Message::Change(*change)).is_err() {
                break;
            }
            sent += 1;
        }
        self.sent += sent as u64;
        sent
    }

    /// Sends a table with these rules in place of the one that the worker has. The counts of all slots go on.
    /// False: the ring is full, or the worker is yet to take something.
    pub(crate) fn replace(&mut self, capacity: u32, entries: impl Iterator<Item = RuntimeEntry>) -> bool {
        if !self.is_applied() || self.messages.is_full() {
            return false;
        }
        self.close_before();
        let mut table = RuntimeTable::new(capacity);
        entries.for_each(|entry| table.add(entry));
        self.before = Some(std::mem::replace(&mut self.tallies, Arc::clone(&table.tallies)));
        let is_sent = self.messages.push(Message::Replace(Box::new(table))).is_ok();
        debug_assert!(is_sent, "it is not full, and nobody else sends");
        self.sent += 1;
        true
    }

    /// Adds what the table before has counted to what is carried, and frees it, once the worker counts in it
    /// no more.
    fn close_before(&mut self) {
        if !self.is_applied() {
            return;
        }
        if let Some(before) = self.before.take() {
            self.carried.resize(before.all().len().max(self.carried.len()), Traffic::default());
            for (carried, tally) in self.carried.iter_mut().zip(before.all()) {
                *carried += tally.read();
            }
        }
        while self.returned.pop().is_ok() {}
    }

    /// Whether the worker has applied all that was sent.
    pub(crate) fn is_applied(&self) -> bool {
        self.applied.load(Ordering::Acquire) >= self.sent
    }

    /// The packets that all rules which were in a slot have decided; never decreases.
    pub(crate) fn traffic(&self, slot: u32) -> Traffic {
        let read = |row: &Arc<TallyRow>| row.at(slot as usize).map(Tally::read).unwrap_or_default();
        let mut traffic = self.carried.get(slot as usize).copied().unwrap_or_default();
        traffic += self.before.as_ref().map(read).unwrap_or_default();
        traffic += read(&self.tallies);
        traffic
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use program::{ProtocolNumber, RuntimeMatch};
    use proptest::prelude::*;

    use super::*;

    /// The action for a key, found as a worker does it.
    fn find(table: &RuntimeTable, number: u16) -> Option<u8> {
        let mut probes = [RuntimeProbe::of(key(number), table)];
        table.begin_all(&mut probes);
        table.find(&probes[0], 60)
    }

    fn key(number: u16) -> RuntimeKey {
        let protocol = Some(ProtocolNumber(17));
        RuntimeMatch { dst_port: Some(number), protocol, ..RuntimeMatch::default() }
            .key()
            .expect("it has fields")
    }

    /// Small numbers, so that buckets collide and chains are long.
    fn changes() -> impl Strategy<Value = Vec<(bool, u32, u16)>> {
        prop::collection::vec((any::<bool>(), 0u32..24, 0u16..40), 0..400)
    }

    proptest! {
        #[test]
        fn a_table_is_a_map(changes in changes()) {
            let mut table = RuntimeTable::new(24);
            let mut model: HashMap<u32, u16> = HashMap::new();
            for (adds, slot, number) in changes {
                let is_taken = model.iter().any(|(other, known)| *known == number && *other != slot);
                if adds && !is_taken {
                    table.apply(RuntimeChange::Add(RuntimeEntry { slot, key: key(number), action: slot as u8 }));
                    model.insert(slot, number);
                } else {
                    table.apply(RuntimeChange::Remove { slot });
                    model.remove(&slot);
                }
                prop_assert_eq!(table.is_empty(), model.is_empty());
                for number in 0..40 {
                    let known = model.iter().find(|(_, known)| **known == number);
                    prop_assert_eq!(find(&table, number), known.map(|(slot, _)| *slot as u8));
                }
            }
        }
    }

    #[test]
    fn counts_survive_a_larger_table() {
        let (mut feed, mut worker) = runtime_rules();
        let entry = |slot| RuntimeEntry { slot, key: key(slot as u16), action: 0 };
        assert!(feed.replace(2, [entry(0)].into_iter()));
        worker.refresh(|| None);
        assert_eq!(find(worker.table().expect("a rule"), 0), Some(0));
        assert_eq!(feed.send(&[RuntimeChange::Add(entry(1)), RuntimeChange::Add(entry(7))]), 2);
        worker.refresh(|| None);
        assert_eq!(find(worker.table().expect("rules"), 7), None, "beyond the table");
        assert!(feed.replace(8, [entry(0), entry(7)].into_iter()));
        assert!(!feed.is_applied());
        find(worker.table().expect("the table before"), 0);
        assert_eq!(feed.traffic(0).packets, 2, "by a worker that is late");
        assert!(!feed.replace(8, [entry(0)].into_iter()), "one table after the other");
        worker.refresh(|| None);
        assert!(feed.is_applied());
        assert_eq!(feed.traffic(0), Traffic { packets: 2, bytes: 120 });
        find(worker.table().expect("rules"), 7);
        find(worker.table().expect("rules"), 0);
        assert_eq!((feed.traffic(0).packets, feed.traffic(7).packets), (3, 1));
        assert_eq!(feed.send(&[RuntimeChange::Remove { slot: 0 }, RuntimeChange::Add(entry(0))]), 2);
        worker.refresh(|| None);
        assert_eq!(feed.traffic(0).packets, 3, "of both rules");
    }

    /// While one program replaces another, a packet that came by a flow of the one before is decided by the
    /// rules of before.
    #[test]
    fn changes_wait_for_the_packets_of_two_programs() {
        let (mut feed, mut worker) = runtime_rules();
        assert!(feed.replace(4, std::iter::empty()));
        worker.refresh(|| None);
        let entry = |slot| RuntimeEntry { slot, key: key(slot as u16), action: 0 };
        let mut add = |slot| assert_eq!(feed.send(&[RuntimeChange::Add(entry(slot))]), 1);
        let waiting = |taken, are_none| Some(WaitingPackets { most: 100, taken, are_none });
        let count = |worker: &mut RuntimeRulesOfWorker| {
            worker.table().map_or(0, |table| (0..4).filter(|slot| find(table, *slot).is_some()).count())
        };
        add(0);
        worker.refresh(|| waiting(64, true));
        assert_eq!(count(&mut worker), 0, "the queue was empty before the change came");
        add(1);
        worker.refresh(|| waiting(64, false));
        assert_eq!(count(&mut worker), 0, "36 packets can be waiting");
        worker.refresh(|| waiting(36, false));
        assert_eq!(count(&mut worker), 1, "the second change came later than the first");
        worker.refresh(|| waiting(10, false));
        assert_eq!(count(&mut worker), 1);
        worker.refresh(|| waiting(0, true));
        assert_eq!((count(&mut worker), feed.is_applied()), (2, true));
        worker.refresh(|| unreachable!("nothing waits"));
        assert_eq!(feed.send(&[RuntimeChange::Add(entry(2))]), 1);
        worker.refresh(|| None);
        assert_eq!(count(&mut worker), 3, "there is one program");

        worker.refresh(|| unreachable!("nothing waits"));
        assert_eq!(feed.send(&[RuntimeChange::Remove { slot: 2 }]), 1);
        worker.refresh(|| waiting(0, false));
        worker.refresh(|| None);
        assert_eq!(count(&mut worker), 2, "the program before was released");
        assert_eq!(feed.send(&[RuntimeChange::Remove { slot: 1 }]), 1);
        worker.refresh(|| waiting(64, true));
        assert_eq!(count(&mut worker), 2, "the wait of before has ended");
    }

    #[test]
    fn a_flood_of_changes_is_taken_in_parts() {
        let (mut feed, mut worker) = runtime_rules();
        assert!(feed.replace(4, std::iter::empty()));
        let flood = vec![RuntimeChange::Remove { slot: 0 }; 2 * RING];
        assert_eq!(feed.send(&flood), RING - 1);
        let mut steps = 0;
        while !feed.is_applied() {
            worker.refresh(|| None);
            steps += 1;
        }
        assert_eq!(steps, RING / CHANGES_PER_STEP);
        assert!(!worker.is_behind());
    }
}
