//! The rules at run time of a daemon, as plain data: which there are, whose they are, and when they end.
//!
//! A [`RuntimeStore`] checks and makes changes, each batch whole or not at all, and returns what workers have
//! to change. It touches neither worker nor device, so a batch that one of them does not take is
//! [undone](RuntimeStore::undo).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use program::{RuntimeChange, RuntimeEntry, RuntimeKey, RuntimeMatch, RuntimeMatchError, RuntimeRules};
use verbs::CounterValues;

/// The most bytes of an id.
pub const RUNTIME_ID_BYTES_MAX: usize = 128;
/// The most bytes of a comment.
pub const RUNTIME_COMMENT_BYTES_MAX: usize = 256;
/// The most refusals of a batch that are described.
pub const RUNTIME_REFUSALS_MAX: usize = 1024;
/// In so many parts of its idle time-out a rule is looked at.
const IDLE_LOOKS: u32 = 8;
const SHORTEST_LOOK: Duration = Duration::from_millis(100);

/// A rule as its owner gives it. The default has no id, which has to be set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeRule {
    /// Unique among all rules.
    pub id: Arc<str>,
    /// The packets.
    pub matches: RuntimeMatch,
    /// Whether it applies to the other direction of the connection too.
    pub both_directions: bool,
    /// The number of the action ([`RuntimeRules::action`]).
    pub action: u8,
    /// The user id of the owner.
    pub owner: u32,
    /// Any text.
    pub comment: String,
    /// How long after it was added it ends.
    pub time_to_live: Option<Duration>,
    /// How long after its last packet it ends, or later by an eighth of that; never while its packets cannot
    /// be counted.
    pub idle_timeout: Option<Duration>,
}

/// A value for each direction of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Directions<T> {
    forward: T,
    reverse: Option<T>,
}

impl<T> Directions<T> {
    fn iter(&self) -> impl Iterator<Item = &T> {
        [Some(&self.forward), self.reverse.as_ref()].into_iter().flatten()
    }
}

/// A rule of the store.
#[derive(Clone, Debug)]
pub struct StoredRule {
    /// The rule.
    pub rule: RuntimeRule,
    /// The slots of its one or two directions.
    slots: Directions<u32>,
    /// When it ends if it has a time to live.
    pub ends: Option<Instant>,
    /// When it is looked at next.
    due: Option<Instant>,
    /// The packets that it had when it was looked at last, and when they had changed last.
    seen_packets: u64,
    /// When packets were last seen, or the rule was added.
    pub active: Instant,
    /// Whether it acts in the device.
    pub in_device: bool,
    /// The packets that it has had where they are not counted any more: in the device before it left that,
    /// and as the rule of the same id that it replaces.
    pub carried: CounterValues,
    /// The counts of its slots when it got them: those of other rules.
    pub base: CounterValues,
    /// Whether it is [kept from workers](RuntimeStore::withhold).
    is_withheld: bool,
}

impl StoredRule {
    /// The slots of its counters.
    pub fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        self.slots.iter().copied()
    }

    /// Whether it is [kept from workers](RuntimeStore::withhold).
    #[must_use]
    pub fn is_withheld(&self) -> bool {
        self.is_withheld
    }

    fn slot_count(&self) -> u32 {
        1 + u32::from(self.slots.reverse.is_some())
    }
}

/// A change that a caller asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeRequest {
    /// Adds a rule. One with the same id is replaced, or has its times renewed if it is the same rule.
    Add(RuntimeRule),
    /// Removes a rule. One that is not there is no error.
    Remove(Arc<str>),
}

impl RuntimeRequest {
    /// The id of the rule.
    #[must_use]
    pub fn id(&self) -> &Arc<str> {
        match self {
            Self::Add(rule) => &rule.id,
            Self::Remove(id) => id,
        }
    }
}

/// The rights of the owner of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuntimeOwner {
    /// The user id.
    pub uid: u32,
    /// The most rules, one for both directions counting twice; `None`: as many as the policy allows, and
    /// those of others may be replaced and removed.
    pub rules_max: Option<u32>,
}

/// Why a change is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeRefusal {
    /// The match is none.
    #[error(transparent)]
    Match(#[from] RuntimeMatchError),
    /// The policy does not list these fields.
    #[error("the policy does not allow rules that compare {fields}: its [runtime] lists {listed}")]
    Form {
        /// The fields of the rule.
        fields: String,
        /// The forms of the policy.
        listed: String,
    },
    /// Another rule has the same packets.
    #[error("the rule `{id}` has the same packets{direction} (hint: remove it, or use its id)")]
    SamePackets {
        /// The id of the other rule.
        id: Arc<str>,
        /// In which direction.
        direction: &'static str,
    },
    /// Both directions are one.
    #[error("both directions of the match are the same packets (hint: leave `both` out)")]
    OneDirection,
    /// There is no room.
    #[error(
        "[runtime] allows {max} rules, one for both directions counting twice, and there is no room for more"
    )]
    Full {
        /// The limit.
        max: u32,
    },
    /// The owner has no room.
    #[error(
        "[runtime] allows user {uid} {max} rules, one for both directions counting twice: there is no room"
    )]
    OwnerFull {
        /// The owner.
        uid: u32,
        /// The limit.
        max: u32,
    },
    /// The rule is another user's.
    #[error("the rule is of user {uid}")]
    NotYours {
        /// The owner.
        uid: u32,
    },
    /// The id is not one.
    #[error("an id has from 1 to {RUNTIME_ID_BYTES_MAX} printable characters without blanks and brackets")]
    Id,
    /// The comment is none.
    #[error("a comment has at most {RUNTIME_COMMENT_BYTES_MAX} bytes and no control characters")]
    Comment,
    /// A time is zero.
    #[error("a time to live or idle time-out is more than 0")]
    NoTime,
}

/// The changes of a batch that was made.
#[derive(Debug, Default)]
pub struct AppliedRequests {
    /// For each worker, in this order: a packet that arrives between two of them meets the rules as they were
    /// before the batch or as they are after it. Additions come before removals.
    changes: Vec<RuntimeChange>,
    /// The rules that are new or differ from what they were.
    pub added: usize,
    /// The rules that were there already; their times are renewed.
    pub unchanged: usize,
    /// The rules that are gone.
    pub removed: usize,
    /// The rules to remove that were not there.
    pub absent: usize,
    undo: Vec<Undo>,
    /// The place of its form among those of the policy for each entry that the batch adds or removes, by
    /// slot.
    forms: HashMap<u32, usize>,
}

impl AppliedRequests {
    /// All changes for each worker: the additions, then the removals.
    #[must_use]
    pub fn changes(&self) -> &[RuntimeChange] {
        &self.changes
    }

    /// The changes that come before those of the device.
    #[must_use]
    pub fn additions(&self) -> &[RuntimeChange] {
        self.changes.split_at(self.removals_begin()).0
    }

    /// The changes that come after those of the device: a packet of a rule that is removed may be one of a
    /// rule that only the device enforces, which must be there first.
    #[must_use]
    pub fn removals(&self) -> &[RuntimeChange] {
        self.changes.split_at(self.removals_begin()).1
    }

    fn removals_begin(&self) -> usize {
        self.changes.partition_point(|change| matches!(change, RuntimeChange::Add(_)))
    }

    /// The entries that the removals remove, which workers have until then.
    #[must_use]
    pub fn leaving(&self) -> Vec<RuntimeEntry> {
        let slots: HashSet<u32> = self.removals().iter().map(RuntimeChange::slot).collect();
        // Not those that the batch itself has added.
        let mut added: HashSet<&Arc<str>> = HashSet::new();
        let mut leaving = Vec::new();
        for undo in &self.undo {
            match undo {
                Undo::Added(id) => _ = added.insert(id),
                Undo::Removed(stored) | Undo::Replaced(stored) => {
                    if !stored.is_withheld && !added.contains(&stored.rule.id) {
                        leaving.extend(entries(stored).filter(|entry| slots.contains(&entry.slot)));
                    }
                }
                Undo::Renewed { .. } => {}
            }
        }
        leaving
    }

    /// The ids of the rules that are new or differ from what they were.
    pub fn added_ids(&self) -> impl Iterator<Item = &Arc<str>> {
        self.undo.iter().filter_map(|undo| match undo {
            Undo::Added(id) => Some(id),
            Undo::Removed(_) | Undo::Replaced(_) | Undo::Renewed { .. } => None,
        })
    }

    /// The rules in whose places others of their ids are, as they were before the batch.
    pub fn replaced(&self) -> impl Iterator<Item = &StoredRule> {
        let mut changed: HashSet<&Arc<str>> = HashSet::new();
        self.undo.iter().filter_map(move |undo| match undo {
            Undo::Replaced(stored) => changed.insert(&stored.rule.id).then_some(&**stored),
            Undo::Added(id) => {
                changed.insert(id);
                None
            }
            Undo::Removed(_) | Undo::Renewed { .. } => None,
        })
    }
}

#[derive(Debug)]
enum Undo {
    Added(Arc<str>),
    Removed(Box<StoredRule>),
    /// A rule in whose place one of the same id is added next.
    Replaced(Box<StoredRule>),
    /// The times of a rule as they were before they began again.
    Renewed {
        id: Arc<str>,
        ends: Option<Instant>,
        active: Instant,
        due: Option<Instant>,
    },
}

/// The rules at run time.
#[derive(Clone, Debug, Default)]
pub struct RuntimeStore {
    rules: HashMap<Arc<str>, StoredRule>,
    ids: HashMap<RuntimeKey, Arc<str>>,
    /// The slots of the rules of each owner.
    by_owner: HashMap<u32, u32>,
    due: BTreeSet<(Instant, Arc<str>)>,
    /// Slots below `next` without a rule; the last one is used first.
    free: Vec<u32>,
    /// The slots of rules that a batch removes, which are free after it. Until then only an entry with the
    /// same key may have one.
    leaving: HashMap<RuntimeKey, u32>,
    next: u32,
}

impl RuntimeStore {
    /// How many rules there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// How many slots a worker's table needs at least.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.next
    }

    /// A rule by its id.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<&StoredRule> {
        self.rules.get(id)
    }

    /// All rules, in no order.
    pub fn rules(&self) -> impl Iterator<Item = &StoredRule> {
        self.rules.values()
    }

    /// Notes where a rule acts.
    pub fn set_in_device(&mut self, id: &str, in_device: bool) {
        if let Some(stored) = self.rules.get_mut(id) {
            stored.in_device = in_device;
        }
    }

    /// Adds packets of a rule that are not counted any more where they were.
    pub fn carry(&mut self, id: &str, counted: CounterValues) {
        if let Some(stored) = self.rules.get_mut(id) {
            stored.carried.packets += counted.packets;
            stored.carried.bytes += counted.bytes;
        }
    }

    /// Sets what the slots of a rule have counted before it got them.
    pub fn set_base(&mut self, id: &str, base: CounterValues) {
        if let Some(stored) = self.rules.get_mut(id) {
            stored.base = base;
        }
    }

    /// The rules as workers have them.
    pub fn entries(&self) -> impl Iterator<Item = RuntimeEntry> + '_ {
        self.rules.values().filter(|stored| !stored.is_withheld).flat_map(entries)
    }

    /// Keeps exactly these rules from workers; returns what workers have to change.
    pub fn withhold(&mut self, ids: &HashSet<Arc<str>>) -> Vec<RuntimeChange> {
        let mut changes = Vec::new();
        for stored in self.rules.values_mut() {
            let is_withheld = ids.contains(&stored.rule.id);
            if is_withheld == std::mem::replace(&mut stored.is_withheld, is_withheld) {
                continue;
            }
            changes.extend(entries(stored).map(|entry| match is_withheld {
                true => RuntimeChange::Remove { slot: entry.slot },
                false => RuntimeChange::Add(entry),
            }));
        }
        changes
    }

    /// Makes all of these changes, or none.
    ///
    /// # Errors
    /// Why which requests are refused, by their place in the list; the first few of them.
    pub fn apply(
        &mut self,
        requests: Vec<RuntimeRequest>,
        allowed: &RuntimeRules,
        owner: RuntimeOwner,
        now: Instant,
    ) -> Result<AppliedRequests, Vec<(usize, RuntimeRefusal)>> {
        let mut applied = AppliedRequests::default();
        let mut refused = Vec::new();
        for (place, request) in requests.into_iter().enumerate() {
            let done = match request {
                RuntimeRequest::Add(rule) => self.add(rule, allowed, owner, now, &mut applied),
                RuntimeRequest::Remove(id) => self.remove(&id, owner, &mut applied),
            };
            if let Err(refusal) = done {
                refused.push((place, refusal));
                if refused.len() == RUNTIME_REFUSALS_MAX {
                    break;
                }
            }
        }
        self.free_leaving();
        applied.forms = self.forms_of(&applied.undo, allowed);
        applied.changes = in_order(std::mem::take(&mut applied.changes), &applied.forms);
        if refused.is_empty() {
            return Ok(applied);
        }
        self.undo(applied);
        Err(refused)
    }

    /// Takes a batch back; returns the changes for each worker that has made the batch's
    /// [additions](AppliedRequests::additions), and none of its removals.
    pub fn undo(&mut self, applied: AppliedRequests) -> Vec<RuntimeChange> {
        let not_removed: HashSet<u32> = applied.removals().iter().map(RuntimeChange::slot).collect();
        let mut changes = Vec::new();
        for undo in applied.undo.into_iter().rev() {
            match undo {
                Undo::Added(id) => {
                    self.take(&id, &mut changes);
                }
                Undo::Removed(stored) | Undo::Replaced(stored) => {
                    self.free_leaving();
                    stored.slots().for_each(|slot| self.take_slot(slot));
                    self.insert(*stored, &mut changes);
                }
                Undo::Renewed { id, ends, active, due } => {
                    self.set_times(&id, |stored| {
                        (stored.ends, stored.active, stored.due) = (ends, active, due);
                    });
                }
            }
        }
        self.free_leaving();
        changes.retain(|change| !not_removed.contains(&change.slot()));
        in_order(changes, &applied.forms)
    }

    /// Returns the forms of the entries of these rules, by slot.
    fn forms_of(&self, undo: &[Undo], allowed: &RuntimeRules) -> HashMap<u32, usize> {
        let form = |matches: &RuntimeMatch| {
            let fields = matches.fields().ok();
            allowed.forms.iter().position(|form| Some(form.fields()) == fields).unwrap_or(usize::MAX)
        };
        let rules = undo.iter().filter_map(|undo| match undo {
            Undo::Added(id) => self.rules.get(id),
            Undo::Removed(stored) | Undo::Replaced(stored) => Some(&**stored),
            Undo::Renewed { .. } => None,
        });
        rules
            .flat_map(|stored| {
                let Directions { forward, reverse } = stored.slots;
                let reverse = reverse.map(|slot| (slot, form(&stored.rule.matches.reversed())));
                [Some((forward, form(&stored.rule.matches))), reverse].into_iter().flatten()
            })
            .collect()
    }

    /// Removes the rules that a policy does not allow any more; returns them with what workers have to
    /// change. Their number is not limited: rules that are there stay beyond a smaller `rules_max`.
    pub fn retain_allowed(
        &mut self,
        allowed: Option<&RuntimeRules>,
    ) -> (Vec<StoredRule>, Vec<RuntimeChange>) {
        let is_allowed = |stored: &StoredRule| {
            allowed.is_some_and(|allowed| {
                let action = allowed.actions.get(usize::from(stored.rule.action));
                action.is_some_and(Option::is_some) && check_forms(&stored.rule, allowed).is_ok()
            })
        };
        let gone: Vec<Arc<str>> = self
            .rules
            .values()
            .filter(|stored| !is_allowed(stored))
            .map(|stored| Arc::clone(&stored.rule.id))
            .collect();
        self.remove_all(&gone)
    }

    /// Removes these rules, whoever owns them; returns them with what workers have to change.
    pub fn remove_rules<'i>(
        &mut self,
        ids: impl Iterator<Item = &'i Arc<str>>,
    ) -> (Vec<StoredRule>, Vec<RuntimeChange>) {
        self.remove_all(&ids.cloned().collect::<Vec<_>>())
    }

    /// Lets a rule with a time to live end then instead, as it did before it was lost.
    pub fn set_end(&mut self, id: &Arc<str>, ends: Instant, now: Instant) {
        self.set_times(id, |stored| {
            stored.ends = Some(ends);
            stored.due = next_look(stored, now);
        });
    }

    /// Removes the rules whose time is over. `packets`: how many a rule has had; `None`: that cannot be
    /// counted now, so that the rule does not end for want of packets, and its idle time begins again.
    pub fn expire(
        &mut self,
        now: Instant,
        packets: impl Fn(&StoredRule) -> Option<u64>,
    ) -> (Vec<StoredRule>, Vec<RuntimeChange>) {
        let mut over = Vec::new();
        while let Some((due, _)) = self.due.first()
            && *due <= now
            && let Some((_, id)) = self.due.pop_first()
        {
            let Some(stored) = self.rules.get_mut(&id) else { continue };
            stored.due = None;
            match packets(stored) {
                Some(seen) if seen == stored.seen_packets => {}
                seen => {
                    stored.seen_packets = seen.unwrap_or(stored.seen_packets);
                    stored.active = now;
                }
            }
            let is_idle = stored.rule.idle_timeout.is_some_and(|idle| now - stored.active >= idle);
            if is_idle || stored.ends.is_some_and(|ends| ends <= now) {
                over.push(id);
            } else {
                stored.due = next_look(stored, now);
                self.due.extend(stored.due.map(|due| (due, id)));
            }
        }
        self.remove_all(&over)
    }

    /// The time of the next call of [`RuntimeStore::expire`] that can remove a rule.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    fn remove_all(&mut self, ids: &[Arc<str>]) -> (Vec<StoredRule>, Vec<RuntimeChange>) {
        let mut changes = Vec::new();
        let gone = ids.iter().filter_map(|id| self.take(id, &mut changes)).collect();
        self.free_leaving();
        (gone, changes)
    }

    fn add(
        &mut self,
        rule: RuntimeRule,
        allowed: &RuntimeRules,
        owner: RuntimeOwner,
        now: Instant,
        applied: &mut AppliedRequests,
    ) -> Result<(), RuntimeRefusal> {
        check_forms(&rule, allowed)?;
        check_text(&rule)?;
        let keys = keys(&rule)?;
        if keys.reverse == Some(keys.forward) {
            return Err(RuntimeRefusal::OneDirection);
        }
        for (key, direction) in keys.iter().zip(["", " in the other direction"]) {
            if let Some(id) = self.ids.get(key).filter(|id| **id != rule.id) {
                return Err(RuntimeRefusal::SamePackets { id: Arc::clone(id), direction });
            }
        }
        let before = self.rules.get(&rule.id);
        if let Some(before) = before {
            check_owner(before, owner)?;
        }
        self.check_room(before, &keys, &rule, allowed, owner)?;
        if let Some(before) = before.map(|before| before.rule.clone())
            && (RuntimeRule { owner: before.owner, ..rule.clone() }) == before
        {
            applied.undo.extend(self.renew(&rule.id, now));
            applied.unchanged += 1;
            return Ok(());
        }
        let mut carried = CounterValues::default();
        if let Some(before) = self.take(&rule.id.clone(), &mut applied.changes) {
            carried = before.carried;
            applied.undo.push(Undo::Replaced(Box::new(before)));
        }
        applied.undo.push(Undo::Added(Arc::clone(&rule.id)));
        let slots =
            Directions { forward: self.slot(keys.forward), reverse: keys.reverse.map(|key| self.slot(key)) };
        let ends = rule.time_to_live.map(|time| now + time);
        let mut stored = StoredRule {
            rule,
            slots,
            ends,
            due: None,
            seen_packets: 0,
            active: now,
            in_device: false,
            carried,
            base: CounterValues::default(),
            is_withheld: false,
        };
        stored.due = next_look(&stored, now);
        self.insert(stored, &mut applied.changes);
        applied.added += 1;
        Ok(())
    }

    fn remove(
        &mut self,
        id: &Arc<str>,
        owner: RuntimeOwner,
        applied: &mut AppliedRequests,
    ) -> Result<(), RuntimeRefusal> {
        let Some(stored) = self.rules.get(id) else {
            applied.absent += 1;
            return Ok(());
        };
        check_owner(stored, owner)?;
        if let Some(stored) = self.take(id, &mut applied.changes) {
            applied.undo.push(Undo::Removed(Box::new(stored)));
            applied.removed += 1;
        }
        Ok(())
    }

    /// Checks that there is room for a rule in place of the one that it replaces. Both limits count slots,
    /// so a rule for both directions counts twice.
    fn check_room(
        &self,
        before: Option<&StoredRule>,
        keys: &Directions<RuntimeKey>,
        rule: &RuntimeRule,
        allowed: &RuntimeRules,
        owner: RuntimeOwner,
    ) -> Result<(), RuntimeRefusal> {
        let needed = 1 + u32::from(keys.reverse.is_some());
        let freed = before.map_or(0, StoredRule::slot_count);
        let unused = self.free.len() + self.leaving.len();
        let used = self.next - u32::try_from(unused).unwrap_or(u32::MAX);
        // There may be more than a later policy allows; these can still be replaced.
        if needed > freed && used + (needed - freed) > allowed.rules_max {
            return Err(RuntimeRefusal::Full { max: allowed.rules_max });
        }
        let is_theirs = before.is_some_and(|before| before.rule.owner == rule.owner);
        let freed = if is_theirs { freed } else { 0 };
        let used = self.by_owner.get(&rule.owner).copied().unwrap_or(0);
        match owner.rules_max {
            Some(max) if needed > freed && used + (needed - freed) > max => {
                Err(RuntimeRefusal::OwnerFull { uid: rule.owner, max })
            }
            _ => Ok(()),
        }
    }

    /// Lets a rule's times begin again; returns how they were.
    fn renew(&mut self, id: &Arc<str>, now: Instant) -> Option<Undo> {
        let StoredRule { ends, active, due, .. } = *self.rules.get(id)?;
        self.set_times(id, |stored| {
            stored.active = now;
            stored.ends = stored.rule.time_to_live.map(|time| now + time);
            stored.due = next_look(stored, now);
        });
        Some(Undo::Renewed { id: Arc::clone(id), ends, active, due })
    }

    /// Changes when a rule ends.
    fn set_times(&mut self, id: &Arc<str>, change: impl FnOnce(&mut StoredRule)) {
        let Some(stored) = self.rules.get_mut(id) else { return };
        if let Some(due) = stored.due {
            self.due.remove(&(due, Arc::clone(id)));
        }
        change(stored);
        self.due.extend(stored.due.map(|due| (due, Arc::clone(id))));
    }

    fn insert(&mut self, stored: StoredRule, changes: &mut Vec<RuntimeChange>) {
        let id = Arc::clone(&stored.rule.id);
        for entry in entries(&stored) {
            self.ids.insert(entry.key, Arc::clone(&id));
            if !stored.is_withheld {
                changes.push(RuntimeChange::Add(entry));
            }
        }
        self.due.extend(stored.due.map(|due| (due, Arc::clone(&id))));
        *self.by_owner.entry(stored.rule.owner).or_default() += stored.slot_count();
        self.rules.insert(id, stored);
    }

    fn take(&mut self, id: &Arc<str>, changes: &mut Vec<RuntimeChange>) -> Option<StoredRule> {
        let stored = self.rules.remove(id)?;
        for entry in entries(&stored) {
            self.ids.remove(&entry.key);
            changes.push(RuntimeChange::Remove { slot: entry.slot });
            self.leaving.insert(entry.key, entry.slot);
        }
        if let Some(due) = stored.due {
            self.due.remove(&(due, Arc::clone(id)));
        }
        if let Some(count) = self.by_owner.get_mut(&stored.rule.owner) {
            *count -= stored.slot_count();
            if *count == 0 {
                self.by_owner.remove(&stored.rule.owner);
            }
        }
        Some(stored)
    }

    /// Returns a slot for an entry: that of the entry with this key which the batch has removed, so that the
    /// new one takes its place in one step, or a free one.
    fn slot(&mut self, key: RuntimeKey) -> u32 {
        self.leaving.remove(&key).or_else(|| self.free.pop()).unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }

    fn free_leaving(&mut self) {
        let mut slots: Vec<u32> = self.leaving.drain().map(|(_, slot)| slot).collect();
        // The lowest one is used first.
        slots.sort_unstable_by_key(|slot| std::cmp::Reverse(*slot));
        self.free.append(&mut slots);
    }

    /// Takes this free slot.
    fn take_slot(&mut self, slot: u32) {
        if let Some(place) = self.free.iter().rposition(|free| *free == slot) {
            self.free.remove(place);
        }
    }
}

/// The changes of a batch in an order in which each packet meets the rules as they were or as they will be,
/// whenever it arrives. The first form with an entry for a packet decides, and entries of a form have
/// different keys. Entries are added from the first form to the last, then others are removed from the last
/// form to the first; an entry in the slot of one with the same key replaces it in one step.
///
/// While entries are added: if the first entry that matches a packet is a new one, all new ones of earlier
/// forms are there and do not match, so it decides afterwards too. If it is an old one, no entry of an
/// earlier form matches, of which none is gone, so it decided before. While entries are removed, the same
/// holds with before and afterwards exchanged.
fn in_order(changes: Vec<RuntimeChange>, forms: &HashMap<u32, usize>) -> Vec<RuntimeChange> {
    // The last change of a slot is what becomes of it.
    let mut last: BTreeMap<u32, RuntimeChange> = BTreeMap::new();
    for change in changes {
        last.insert(change.slot(), change);
    }
    let form = |slot: &u32| forms.get(slot).copied().unwrap_or(usize::MAX);
    let (mut added, mut removed): (Vec<_>, Vec<_>) =
        last.into_iter().partition(|(_, change)| matches!(change, RuntimeChange::Add(_)));
    added.sort_by_key(|(slot, _)| form(slot));
    removed.sort_by_key(|(slot, _)| std::cmp::Reverse(form(slot)));
    added.into_iter().chain(removed).map(|(_, change)| change).collect()
}

/// The keys of a rule that was checked.
fn keys(rule: &RuntimeRule) -> Result<Directions<RuntimeKey>, RuntimeMatchError> {
    let reverse = rule.both_directions.then(|| rule.matches.reversed().key()).transpose()?;
    Ok(Directions { forward: rule.matches.key()?, reverse })
}

/// The rule as workers have it.
fn entries(stored: &StoredRule) -> impl Iterator<Item = RuntimeEntry> + use<> {
    let (slots, action) = (stored.slots, stored.rule.action);
    let keys = keys(&stored.rule).ok();
    let forward = keys.map(|keys| RuntimeEntry { slot: slots.forward, key: keys.forward, action });
    let reverse =
        keys.and_then(|keys| Some(RuntimeEntry { slot: slots.reverse?, key: keys.reverse?, action }));
    [forward, reverse].into_iter().flatten()
}

fn check_text(rule: &RuntimeRule) -> Result<(), RuntimeRefusal> {
    let is_good = |c: char| c.is_ascii_graphic() && !"()[]{}\"'\\".contains(c);
    if rule.id.is_empty() || rule.id.len() > RUNTIME_ID_BYTES_MAX || !rule.id.chars().all(is_good) {
        return Err(RuntimeRefusal::Id);
    }
    // A comment of one user is shown on the terminal of another.
    if rule.comment.len() > RUNTIME_COMMENT_BYTES_MAX || rule.comment.chars().any(char::is_control) {
        return Err(RuntimeRefusal::Comment);
    }
    if [rule.time_to_live, rule.idle_timeout].contains(&Some(Duration::ZERO)) {
        return Err(RuntimeRefusal::NoTime);
    }
    Ok(())
}

/// Whether the policy allows the form of a rule, in both directions if it has both.
fn check_forms(rule: &RuntimeRule, allowed: &RuntimeRules) -> Result<(), RuntimeRefusal> {
    check_form(&rule.matches, allowed)?;
    if rule.both_directions { check_form(&rule.matches.reversed(), allowed) } else { Ok(()) }
}

fn check_form(matches: &RuntimeMatch, allowed: &RuntimeRules) -> Result<(), RuntimeRefusal> {
    let fields = matches.fields()?;
    if allowed.forms.iter().any(|form| form.fields() == fields) {
        return Ok(());
    }
    let listed: Vec<String> = allowed.forms.iter().map(|form| form.fields().to_string()).collect();
    Err(RuntimeRefusal::Form { fields: fields.to_string(), listed: listed.join(", ") })
}

fn check_owner(stored: &StoredRule, owner: RuntimeOwner) -> Result<(), RuntimeRefusal> {
    let is_theirs = owner.rules_max.is_none() || stored.rule.owner == owner.uid;
    if is_theirs { Ok(()) } else { Err(RuntimeRefusal::NotYours { uid: stored.rule.owner }) }
}

/// When a rule is looked at next.
fn next_look(stored: &StoredRule, now: Instant) -> Option<Instant> {
    let look = |idle: Duration| {
        let over = stored.active + idle;
        over.min(now + (idle / IDLE_LOOKS).max(SHORTEST_LOOK)).max(now + SHORTEST_LOOK)
    };
    let idle = stored.rule.idle_timeout.map(look);
    [stored.ends, idle].into_iter().flatten().min()
}

#[cfg(test)]
mod tests;
