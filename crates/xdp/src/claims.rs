//! The claims as their owner sees them: added and removed, any of them several times.
//!
//! # Which packets the program drops itself
//! A claim can be for packets that are dropped and counted. The program finds *a* rule that matches a packet,
//! not the one of highest precedence. So it drops by a claim only if that is right whatever else matches: the
//! claim is *undisputed*, which means that every other claim that shares packets with it drops them too, for
//! the same counter. All others are redirected, as ever, and whoever receives them decides. A claim that was
//! added several times is disputed: nobody says that what is done several times has one effect.
//!
//! Each dropping claim has the number of claims that dispute it. A claim that comes or goes changes the
//! numbers of those that it shares packets with. Before it comes, the rules that it disputes drop nothing
//! any more; after it has gone, those that nothing disputes any more begin to drop.

use std::collections::HashMap;
use std::sync::Arc;

use packet::cube::LEVEL_WORDS;

use crate::XdpError;
use crate::blocks::RulePlace;
use crate::drops::{AllDrops, DropCounter, DropMemory};
use crate::tree::{Claim, Trees};

type Image = [u64; LEVEL_WORDS];

/// The treatment of claimed packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimAction {
    /// They go to the socket of their queue.
    Redirect,
    /// They are dropped and counted: by the program where it can tell, else by whoever gets them.
    Drop(DropCounter),
}

/// The claims that the program looks packets up in. Its owner is any thread, not that of the wire: adding and
/// removing may wait for a grace period of the kernel, some ten milliseconds, when memory runs short.
#[derive(Debug)]
pub struct ClaimTable {
    trees: Trees,
    /// By mask.
    groups: HashMap<Image, Group>,
    len: usize,
    /// How many claims drop.
    dropping: usize,
    drops: Arc<DropMemory>,
    limit: u32,
    /// The number of widened places, unless the trees have changed since it was counted.
    widened: Option<usize>,
}

/// The claims of one mask.
#[derive(Debug, Default)]
struct Group {
    /// Side by side: a claim that comes or goes is compared with all of them.
    values: Vec<Image>,
    /// By place of the value.
    entries: Vec<Entry>,
    places: HashMap<Image, usize>,
}

impl Group {
    fn insert(&mut self, value: Image, entry: Entry) {
        self.places.insert(value, self.values.len());
        self.values.push(value);
        self.entries.push(entry);
    }

    fn get(&mut self, value: &Image) -> Option<&mut Entry> {
        self.entries.get_mut(*self.places.get(value)?)
    }

    fn remove(&mut self, value: &Image) {
        let Some(place) = self.places.remove(value) else { return };
        self.values.swap_remove(place);
        self.entries.swap_remove(place);
        if let Some(moved) = self.values.get(place) {
            self.places.insert(*moved, place);
        }
    }
}

/// A claim.
#[derive(Debug)]
struct Entry {
    rule: RulePlace,
    /// One for each time that it was added.
    actions: Vec<ClaimAction>,
    /// The claims that dispute it; counted only while it drops.
    disputes: usize,
}

impl Entry {
    /// The slot of the packets that are dropped for the claim, if nothing disputes it; 0 if it does not drop.
    fn drop(&self) -> u64 {
        match &*self.actions {
            [ClaimAction::Drop(counter)] => counter.slot(),
            _ => 0,
        }
    }
}

/// The effect of a claim on those that share packets with it: `None` if it is not there, else the slot for
/// which it drops, or 0.
type Effect = Option<u64>;

/// Whether a claim with this effect disputes one that drops for the slot.
fn disputes(effect: Effect, slot: u64) -> bool {
    effect.is_some_and(|other| other != slot)
}

fn drops(effect: Effect) -> bool {
    effect.is_some_and(|slot| slot != 0)
}

/// How exactly the trees represent the claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimReport {
    /// Different claims.
    pub claims: usize,
    /// Claims whose packets the program drops itself.
    pub dropping: usize,
    /// Places of the trees where packets are redirected although no claim may match them.
    pub widened: usize,
}

impl ClaimTable {
    pub(crate) fn new(trees: Trees, drops: Arc<DropMemory>, limit: u32) -> Self {
        Self { trees, groups: HashMap::new(), len: 0, dropping: 0, drops, limit, widened: None }
    }

    /// A counter for [`ClaimAction::Drop`]; `None` if there are no more, or if the kernel lacks what the
    /// program needs for it (Linux 5.18).
    #[must_use]
    pub fn drop_counter(&self) -> Option<DropCounter> {
        self.drops.counter()
    }

    /// All packets that the program drops.
    #[must_use]
    pub fn all_drops(&self) -> AllDrops {
        AllDrops(Arc::clone(&self.drops))
    }

    /// Adds a claim. When this has returned, no packet that arrives and is claimed is passed, and none is
    /// dropped that this claim disputes. A claim that was added twice has to be removed twice.
    ///
    /// # Errors
    /// There are too many claims; nothing has changed.
    pub fn add(&mut self, claim: &Claim, action: ClaimAction) -> Result<(), XdpError> {
        if let Some(entry) = self.entry(claim) {
            let (before, rule) = (entry.drop(), entry.rule);
            entry.actions.push(action);
            self.trees.set_drop(rule, 0);
            self.change(claim, Some(before), Some(0));
            return Ok(());
        }
        self.widened = None;
        let drop = match &action {
            ClaimAction::Redirect => 0,
            ClaimAction::Drop(counter) => counter.slot(),
        };
        let disputes = self.change(claim, None, Some(drop));
        let Ok(rule) = self.trees.add(claim, if disputes == 0 { drop } else { 0 }) else {
            self.change(claim, Some(drop), None);
            return Err(XdpError::Full { limit: self.limit });
        };
        let group = self.groups.entry(*claim.mask()).or_default();
        group.insert(*claim.value(), Entry { rule, actions: vec![action], disputes });
        self.len += 1;
        Ok(())
    }

    /// Takes back an [`add`](Self::add) of a claim with this action. When it was the last, no packet that
    /// arrives after this has returned is redirected or dropped for it, and its counter has all that were
    /// dropped. Returns whether the claim was there.
    pub fn remove(&mut self, claim: &Claim, action: &ClaimAction) -> bool {
        let Some(entry) = self.entry(claim) else { return false };
        let Some(place) = entry.actions.iter().position(|known| known == action) else { return false };
        let (before, rule) = (entry.drop(), entry.rule);
        // It lives until the program counts for it no more.
        let _removed = entry.actions.swap_remove(place);
        let (after, is_last) = (entry.drop(), entry.actions.is_empty());
        if !is_last {
            let disputes = self.change(claim, Some(before), Some(after));
            if let Some(entry) = self.entry(claim) {
                entry.disputes = disputes;
            }
            self.trees.set_drop(rule, if disputes == 0 { after } else { 0 });
            return true;
        }
        self.widened = None;
        // Programs that still find the rule redirect.
        self.trees.set_drop(rule, 0);
        self.trees.remove(rule);
        self.drops.quiesce();
        self.len -= 1;
        if let Some(group) = self.groups.get_mut(claim.mask()) {
            group.remove(claim.value());
            if group.values.is_empty() {
                self.groups.remove(claim.mask());
            }
        }
        self.change(claim, Some(before), None);
        true
    }

    /// How exactly the trees represent the claims. Walks through all of them if they have changed since it
    /// was last asked.
    #[must_use]
    pub fn report(&mut self) -> ClaimReport {
        let widened = *self.widened.get_or_insert_with(|| self.trees.widened());
        let entries = self.groups.values().flat_map(|group| &group.entries);
        let dropping = entries.filter(|entry| entry.drop() != 0 && entry.disputes == 0).count();
        ClaimReport { claims: self.len, dropping, widened }
    }

    fn entry(&mut self, claim: &Claim) -> Option<&mut Entry> {
        self.groups.get_mut(claim.mask())?.get(claim.value())
    }

    /// The effect of a claim on others changes: those that it disputes now drop nothing when this returns,
    /// and those that nothing disputes any more drop. Returns how many dispute this one if it drops now.
    fn change(&mut self, claim: &Claim, before: Effect, after: Effect) -> usize {
        self.dropping -= usize::from(drops(before));
        let is_about_drops = drops(before) || drops(after) || self.dropping > 0;
        self.dropping += usize::from(drops(after));
        if !is_about_drops {
            return 0;
        }
        let mut own_disputes = 0;
        let Self { groups, trees, .. } = self;
        for (mask, group) in groups {
            let mut meet = |entry: &mut Entry| {
                let slot = entry.drop();
                own_disputes += usize::from(Some(slot) != after);
                if slot == 0 {
                    return;
                }
                let former = entry.disputes;
                entry.disputes =
                    former + usize::from(disputes(after, slot)) - usize::from(disputes(before, slot));
                if (former == 0) != (entry.disputes == 0) {
                    trees.set_drop(entry.rule, if entry.disputes == 0 { slot } else { 0 });
                }
            };
            let shared: Image = std::array::from_fn(|word| mask[word] & claim.mask()[word]);
            let is_other = |value: &Image| mask != claim.mask() || value != claim.value();
            if shared == *mask {
                // All claims of this mask that share packets have one value.
                let value: Image = std::array::from_fn(|word| mask[word] & claim.value()[word]);
                group.get(&value).filter(|_| is_other(&value)).map(&mut meet);
                continue;
            }
            for (value, entry) in group.values.iter().zip(&mut group.entries) {
                // Without a branch for each word.
                let differs = (0..LEVEL_WORDS)
                    .fold(0, |bits, word| bits | (value[word] ^ claim.value()[word]) & shared[word]);
                if differs == 0 && is_other(value) {
                    meet(entry);
                }
            }
        }
        self.drops.quiesce();
        own_disputes
    }
}

#[cfg(test)]
mod tests;
