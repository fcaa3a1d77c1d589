//! The claims as their owner sees them: added and removed, any of them several times.
//!
//! # Which packets the program drops itself
//! Claims have a precedence. A packet is dropped by the program if the claims of the lowest precedence that
//! match it drop, and counted for one of them, except as in [`crate`]. For that, the rule of a claim has its
//! [`Effect`]. The program searches the claims that may drop until no other can come first, and then those of
//! the others whose precedence is as low or lower: if one of these matches, the packet is redirected.
//!
//! A claim that was added several times has one rule for those that drop and one for the others. Each has the
//! effect of the lowest precedence among them, and stays in its tree. If those of the lowest precedence drop
//! for different counters, the packets are redirected.

use std::collections::HashMap;
use std::sync::Arc;

use packet::cube::LEVEL_WORDS;

use crate::XdpError;
use crate::blocks::{Effect, RulePlace};
use crate::drops::{AllDrops, DropCounter, DropMemory};
use crate::tree::{Claim, Trees};

/// The treatment of claimed packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimAction {
    /// They go to the socket of their queue.
    Redirect,
    /// They are dropped and counted: by the program if it can decide, else by the receiver.
    Drop(DropCounter),
}

impl ClaimAction {
    /// The slot where packets are counted that are dropped; 0: they are redirected.
    fn slot(&self) -> u32 {
        match self {
            Self::Redirect => 0,
            Self::Drop(counter) => counter.slot(),
        }
    }
}

/// The claims that the program looks packets up in. Its owner is any thread, not that of the wire: adding and
/// removing may wait for a grace period of the kernel, some ten milliseconds, when memory runs short.
#[derive(Debug)]
pub struct ClaimTable {
    trees: Trees,
    /// The claims that are in the trees. The key has the claim and whether it drops.
    claims: HashMap<(Claim, bool), ClaimState>,
    drops: Arc<DropMemory>,
    limit: u32,
    /// The number of widened places, unless the trees have changed since it was counted.
    widened: Option<usize>,
}

/// A claim that is in the trees.
#[derive(Debug)]
struct ClaimState {
    rule: RulePlace,
    /// One for each time that it was added, with its precedence.
    actions: Vec<(u32, ClaimAction)>,
}

/// The effect of a claim with these precedences and actions, all of which drop, or none.
fn effect_of(actions: &[(u32, ClaimAction)]) -> Effect {
    let precedence = actions.iter().map(|(precedence, _)| *precedence).min().unwrap_or(u32::MAX);
    let mut first = actions.iter().filter(|(of, _)| *of == precedence).map(|(_, action)| action.slot());
    let slot = first.next().filter(|slot| first.all(|other| other == *slot)).unwrap_or(0);
    Effect { precedence, slot }
}

/// How exactly the trees represent the claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimReport {
    /// Different claims, those that drop and others.
    pub claims: usize,
    /// The claims that drop: the program drops their packets itself, unless a claim that comes first matches
    /// them.
    pub dropping: usize,
    /// Places of the trees where packets are redirected although no claim may match them.
    pub widened: usize,
}

impl ClaimTable {
    pub(crate) fn new(trees: Trees, drops: Arc<DropMemory>, limit: u32) -> Self {
        Self { trees, claims: HashMap::new(), drops, limit, widened: None }
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
    /// dropped for a claim that comes after this one. Of claims that match a packet the one of the lowest
    /// `precedence` decides. A claim that was added twice has to be removed twice.
    ///
    /// # Errors
    /// There are too many claims; nothing has changed.
    pub fn add(&mut self, claim: &Claim, precedence: u32, action: ClaimAction) -> Result<(), XdpError> {
        let key = (*claim, action.slot() != 0);
        if let Some(state) = self.claims.get_mut(&key) {
            state.actions.push((precedence, action));
            self.follow(&key);
            return Ok(());
        }
        self.widened = None;
        let actions = vec![(precedence, action)];
        let added = self.trees.add(claim, effect_of(&actions));
        let rule = added.map_err(|_| XdpError::Full { limit: self.limit })?;
        self.claims.insert(key, ClaimState { rule, actions });
        Ok(())
    }

    /// Takes back an [`add`](Self::add) of a claim with this precedence and action. When it was the last, no
    /// packet that arrives after this has returned is redirected or dropped for it, and its counter has all
    /// that were dropped. Returns whether the claim was there.
    pub fn remove(&mut self, claim: &Claim, precedence: u32, action: &ClaimAction) -> bool {
        let key = (*claim, action.slot() != 0);
        let Some(state) = self.claims.get_mut(&key) else { return false };
        let is_it = |(of, known): &(u32, ClaimAction)| *of == precedence && known == action;
        let Some(place) = state.actions.iter().position(is_it) else { return false };
        state.actions.swap_remove(place);
        let (rule, is_gone) = (state.rule, state.actions.is_empty());
        // A program that still finds a rule without a slot redirects.
        self.follow(&key);
        if is_gone {
            self.widened = None;
            self.trees.remove(rule);
            self.claims.remove(&key);
        }
        true
    }

    /// Gives the rule of a claim the effect of its actions. When this returns, nothing is counted any more
    /// for the effect before.
    fn follow(&mut self, key: &(Claim, bool)) {
        let Some(state) = self.claims.get(key) else { return };
        self.trees.set_effect(state.rule, effect_of(&state.actions));
        if key.1 {
            self.drops.quiesce();
        }
    }

    /// Builds a tree anew that has changed since it was built, so that the program needs less time for a
    /// packet; some milliseconds for thousands of claims. Returns whether there was one: then there may be
    /// more.
    pub fn improve(&mut self) -> bool {
        let has_improved = self.trees.improve();
        if has_improved {
            self.widened = None;
        }
        has_improved
    }

    /// Returns whether [`ClaimTable::improve`] has something to do.
    #[must_use]
    pub fn can_improve(&self) -> bool {
        self.trees.can_improve()
    }

    /// The blocks of the trees, of 64 bytes each.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.trees.blocks()
    }

    /// Returns whether a tree leads a packet with this image to a widened place. Then it may be redirected
    /// although no claim asks for that; a claim that comes first can still decide it.
    #[must_use]
    pub fn leads_beyond(&self, image: &[u64; LEVEL_WORDS]) -> bool {
        self.trees.leads_beyond(image)
    }

    /// How exactly the trees represent the claims. Walks through all of them if they have changed since it
    /// was last asked.
    #[must_use]
    pub fn report(&mut self) -> ClaimReport {
        let widened = *self.widened.get_or_insert_with(|| self.trees.widened());
        let dropping = self.claims.keys().filter(|(_, drops)| *drops).count();
        ClaimReport { claims: self.claims.len(), dropping, widened }
    }
}

#[cfg(test)]
mod tests;
