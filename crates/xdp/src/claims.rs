//! The claims as their owner sees them: added and removed, any of them several times.
//!
//! # Which packets the program drops itself
//! A claim can be for packets that are dropped and counted. Claims have a precedence, by which whoever
//! receives redirected packets decides between those that match; the program finds *some* rule that matches a
//! packet and drops, if there is one. So a claim drops only if all of its packets are to be dropped for its
//! counter: it is *undisputed*, which means that every other claim that shares packets with it comes after
//! it, or drops them too, for the same counter. All others are redirected, as ever, and so are the packets of
//! a claim that was added several times.
//!
//! Each claim that is to drop has the number of claims that dispute it. A claim that comes or goes changes
//! the numbers of those that it shares packets with. Before a claim comes, the rules that it disputes drop
//! nothing any more; after it has gone, those that nothing disputes any more begin to drop.

use std::collections::HashMap;
use std::sync::Arc;

use packet::cube::LEVEL_WORDS;

use crate::XdpError;
use crate::blocks::RulePlace;
use crate::drops::{AllDrops, DropCounter, DropMemory};
use crate::tree::{Claim, Image, Trees};

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
    /// The claims by their masks.
    groups: HashMap<Image, MaskGroup>,
    len: usize,
    drops: Arc<DropMemory>,
    limit: u32,
    /// The number of widened places, unless the trees have changed since it was counted.
    widened: Option<usize>,
}

/// The claims of one mask.
#[derive(Debug, Default)]
struct MaskGroup {
    /// Side by side: a claim that comes or goes is compared with all of them.
    values: Vec<Image>,
    /// The states of the claims, in the order of the values.
    claims: Vec<ClaimState>,
    places: HashMap<Image, usize>,
    /// How many of them are to drop.
    dropping: usize,
}

impl MaskGroup {
    fn insert(&mut self, value: Image, claim: ClaimState) {
        self.dropping += usize::from(claim.effect().slot() != 0);
        self.places.insert(value, self.values.len());
        self.values.push(value);
        self.claims.push(claim);
    }

    fn get(&mut self, value: &Image) -> Option<&mut ClaimState> {
        self.claims.get_mut(*self.places.get(value)?)
    }

    /// Changes the actions of a claim. Returns its effect before and after.
    fn change(
        &mut self,
        value: &Image,
        change: impl FnOnce(&mut Vec<(u32, ClaimAction)>),
    ) -> Option<[Effect; 2]> {
        let claim = self.claims.get_mut(*self.places.get(value)?)?;
        let before = claim.effect();
        change(&mut claim.actions);
        let after = claim.effect();
        self.dropping += usize::from(after.slot() != 0);
        self.dropping -= usize::from(before.slot() != 0);
        Some([before, after])
    }

    fn remove(&mut self, value: &Image) {
        let Some(place) = self.places.remove(value) else { return };
        self.values.swap_remove(place);
        self.dropping -= usize::from(self.claims.swap_remove(place).effect().slot() != 0);
        if let Some(moved) = self.values.get(place) {
            self.places.insert(*moved, place);
        }
    }
}

/// A claim that is in the trees.
#[derive(Debug)]
struct ClaimState {
    rule: RulePlace,
    /// One for each time that it was added, with its precedence.
    actions: Vec<(u32, ClaimAction)>,
    /// The claims that dispute it; counted only while it is to drop.
    disputes: usize,
}

impl ClaimState {
    fn effect(&self) -> Effect {
        match &*self.actions {
            [] => Effect::Absent,
            [(precedence, action)] => Effect::of(*precedence, action),
            several => Effect::Redirect(several.iter().map(|(precedence, _)| *precedence).min().unwrap_or(0)),
        }
    }
}

/// What a claim means for those that share packets with it. The lowest precedence comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// It is not there.
    Absent,
    /// Its packets are redirected.
    Redirect(u32),
    /// It drops its packets, of a precedence, for a slot.
    Drop(u32, u64),
}

impl Effect {
    fn of(precedence: u32, action: &ClaimAction) -> Self {
        match action {
            ClaimAction::Redirect => Self::Redirect(precedence),
            ClaimAction::Drop(counter) => Self::Drop(precedence, counter.slot()),
        }
    }

    /// The slot of what it drops; 0: it drops nothing.
    fn slot(self) -> u64 {
        match self {
            Self::Drop(_, slot) => slot,
            Self::Absent | Self::Redirect(_) => 0,
        }
    }

    /// Whether it disputes another one, which is to drop.
    fn disputes(self, other: Self) -> bool {
        let Self::Drop(precedence, slot) = other else { return false };
        match self {
            Self::Absent => false,
            Self::Redirect(own) => own <= precedence,
            Self::Drop(own, own_slot) => own <= precedence && own_slot != slot,
        }
    }
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
        Self { trees, groups: HashMap::new(), len: 0, drops, limit, widened: None }
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
    /// dropped by a claim that this one disputes. Of claims that match a packet the one of the lowest
    /// `precedence` decides. A claim that was added twice has to be removed twice.
    ///
    /// # Errors
    /// There are too many claims; nothing has changed.
    pub fn add(&mut self, claim: &Claim, precedence: u32, action: ClaimAction) -> Result<(), XdpError> {
        if let Some(state) = self.state(claim) {
            let rule = state.rule;
            self.trees.set_drop(rule, 0);
            self.drops.quiesce();
            self.change_actions(claim, |actions| actions.push((precedence, action)));
            return Ok(());
        }
        self.widened = None;
        let effect = Effect::of(precedence, &action);
        let disputes = self.settle(claim, Effect::Absent, effect);
        let slot = if disputes == 0 { effect.slot() } else { 0 };
        let may_drop = effect.slot() != 0;
        let Ok(rule) = self.trees.add(claim, may_drop.then_some(slot)) else {
            self.settle(claim, effect, Effect::Absent);
            return Err(XdpError::Full { limit: self.limit });
        };
        let group = self.groups.entry(*claim.mask()).or_default();
        group.insert(*claim.value(), ClaimState { rule, actions: vec![(precedence, action)], disputes });
        self.len += 1;
        Ok(())
    }

    /// Takes back an [`add`](Self::add) of a claim with this precedence and action. When it was the last, no
    /// packet that arrives after this has returned is redirected or dropped for it, and its counter has all
    /// that were dropped. Returns whether the claim was there.
    pub fn remove(&mut self, claim: &Claim, precedence: u32, action: &ClaimAction) -> bool {
        let Some(state) = self.state(claim) else { return false };
        let is_it = |(of, known): &(u32, ClaimAction)| *of == precedence && known == action;
        let Some(place) = state.actions.iter().position(is_it) else { return false };
        let (rule, is_last) = (state.rule, state.actions.len() == 1);
        if !is_last {
            self.change_actions(claim, |actions| _ = actions.swap_remove(place));
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
        self.settle(claim, Effect::of(precedence, action), Effect::Absent);
        true
    }

    /// Changes the actions of a claim that is there before and after.
    fn change_actions(&mut self, claim: &Claim, change: impl FnOnce(&mut Vec<(u32, ClaimAction)>)) {
        let group = self.groups.get_mut(claim.mask());
        let Some([before, after]) = group.and_then(|group| group.change(claim.value(), change)) else {
            return;
        };
        let disputes = self.settle(claim, before, after);
        let slot = if disputes == 0 { after.slot() } else { 0 };
        let Some(state) = self.state(claim) else { return };
        state.disputes = disputes;
        let rule = state.rule;
        if (before.slot() != 0) != (after.slot() != 0) {
            // The trees of claims that may drop are others. Without room the rule stays where it is.
            let moved = self.trees.add(claim, (after.slot() != 0).then_some(slot));
            if let (Ok(moved), Some(state)) = (moved, self.state(claim)) {
                state.rule = moved;
                self.trees.set_drop(rule, 0);
                self.trees.remove(rule);
                return;
            }
        }
        self.trees.set_drop(rule, slot);
    }

    /// How exactly the trees represent the claims. Walks through all of them if they have changed since it
    /// was last asked.
    #[must_use]
    pub fn report(&mut self) -> ClaimReport {
        let widened = *self.widened.get_or_insert_with(|| self.trees.widened());
        let claims = self.groups.values().filter(|group| group.dropping > 0).flat_map(|group| &group.claims);
        let dropping = claims.filter(|claim| claim.effect().slot() != 0 && claim.disputes == 0).count();
        ClaimReport { claims: self.len, dropping, widened }
    }

    fn state(&mut self, claim: &Claim) -> Option<&mut ClaimState> {
        self.groups.get_mut(claim.mask())?.get(claim.value())
    }

    /// Has the claims that share packets with one follow a change of its effect: those that it disputes now
    /// drop nothing when this returns, and those that nothing disputes any more drop. Returns how many
    /// dispute this one, if it is to drop.
    fn settle(&mut self, claim: &Claim, before: Effect, after: Effect) -> usize {
        let mut disputes = 0;
        let (is_to_drop, mut is_silenced) = (after.slot() != 0, false);
        let Self { groups, trees, .. } = self;
        // What drops nothing has an effect only on what is to drop.
        let met =
            groups.iter_mut().filter(|(_, group)| before != after && (is_to_drop || group.dropping > 0));
        for (mask, group) in met {
            let mut meet = |other: &mut ClaimState| {
                let effect = other.effect();
                disputes += usize::from(effect.disputes(after));
                if effect.slot() == 0 {
                    return;
                }
                let former = other.disputes;
                let (came, went) = (after.disputes(effect), before.disputes(effect));
                other.disputes = former + usize::from(came) - usize::from(went);
                if (former == 0) != (other.disputes == 0) {
                    trees.set_drop(other.rule, if other.disputes == 0 { effect.slot() } else { 0 });
                    is_silenced |= former == 0;
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
            for (value, other) in group.values.iter().zip(&mut group.claims) {
                // Without a branch for each word.
                let differs = (0..LEVEL_WORDS)
                    .fold(0, |bits, word| bits | (value[word] ^ claim.value()[word]) & shared[word]);
                if differs == 0 && is_other(value) {
                    meet(other);
                }
            }
        }
        if is_silenced {
            self.drops.quiesce();
        }
        disputes
    }
}

#[cfg(test)]
mod tests;
