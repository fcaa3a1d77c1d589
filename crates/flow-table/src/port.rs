//! The rules of one port and direction: trees and a tuple space for the rules that trap, short lists for the
//! few that only take copies.
//!
//! [`super::FlowTable`] owns them. Rules with equal match, kind and priority form a group whose copies are
//! laid out when the group changes, so that a lookup ends with one slice. Nothing here allocates during a
//! lookup.

use std::sync::{Mutex, MutexGuard, PoisonError};

use arrayvec::ArrayVec;

use super::cache::{ExactCache, Verdict};
use super::capacity::{Capacity, Place, TableKey};
use super::deep::{DeepImage, TunnelMatcher};
use super::key::{Image, MatchKey};
use super::shape::{Precedence, Ranked};
use super::space::Space;
use super::tree::{Trees, Winners};
use super::{
    Actions, CounterId, FlowError, FlowHit, FlowId, FlowKind, FlowRule, MAX_DONT_TRAP, MAX_FLOWS,
    MAX_REPLICAS, MAX_SNIFFERS, Matcher, Matches, QpSlot, TableRules,
};
use device_model::Limit;
use packet::DeepKey;

use hugemem::prefetch_read;

/// Rules that differ only in age, queue pair and tag. The oldest is in the [`Outcome`]; most groups have no
/// other, and those allocate nothing.
#[derive(Debug, Default)]
struct Group {
    /// The age of the oldest rule.
    order: u64,
    younger: Option<Box<Younger>>,
    /// Where the match is on a device of limited capacity.
    place: Option<Place>,
}

/// The rules of a group after the oldest; at least one.
#[derive(Debug, Default)]
struct Younger {
    /// Oldest first.
    rules: Vec<(u64, FlowHit)>,
    /// The deliveries of a matching frame besides the [`Outcome`]: the oldest rule of each further queue
    /// pair.
    replicas: Vec<FlowHit>,
}

/// The delivery of a frame that matches a group: the oldest rule, if there is one. Apart from the groups and
/// packed, so that lookups touch one cache line, which four share.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(16))]
struct Outcome {
    /// The flow, and above its bits what the constants of this type name.
    flow: u32,
    tag: u32,
    counter: u32,
    target: u32,
}

/// Bits of a flow's name.
const FLOW_BITS: u32 = 24;
const _: () = assert!(MAX_FLOWS <= 1 << FLOW_BITS, "an outcome has room for any flow");

impl Outcome {
    /// There is a rule.
    const EXISTS: u32 = 1 << FLOW_BITS;
    const COPIES: u32 = 1 << (FLOW_BITS + 1);
    const DROPS: u32 = 1 << (FLOW_BITS + 2);
    const TAGS: u32 = 1 << (FLOW_BITS + 3);
    const COUNTS: u32 = 1 << (FLOW_BITS + 4);
    /// The group has replicas.
    const REPLICATES: u32 = 1 << (FLOW_BITS + 5);
    /// Where the kind is.
    const KIND_SHIFT: u32 = FLOW_BITS + 6;
    const KINDS: [FlowKind; 4] =
        [FlowKind::Normal, FlowKind::MulticastDefault, FlowKind::AllDefault, FlowKind::Sniffer];

    fn new(first: Option<FlowHit>, is_replicated: bool) -> Self {
        let Some(FlowHit { flow, kind, is_copy, actions }) = first else { return Self::default() };
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        Self {
            flow: flow.0
                | Self::EXISTS
                | flag(is_copy, Self::COPIES)
                | flag(actions.drop, Self::DROPS)
                | flag(actions.tag.is_some(), Self::TAGS)
                | flag(actions.counter.is_some(), Self::COUNTS)
                | flag(is_replicated, Self::REPLICATES)
                | (kind as u32) << Self::KIND_SHIFT,
            tag: actions.tag.unwrap_or(0),
            counter: actions.counter.map_or(0, |counter| counter.0),
            target: actions.target.0,
        }
    }

    fn has(&self, flag: u32) -> bool {
        self.flow & flag != 0
    }

    #[inline]
    fn is_replicated(&self) -> bool {
        self.has(Self::REPLICATES)
    }

    /// There is one rule, and it delivers and does nothing else.
    #[inline]
    fn is_plain(&self) -> bool {
        const OTHERS: u32 = Outcome::COPIES | Outcome::DROPS | Outcome::COUNTS | Outcome::REPLICATES;
        self.flow & (Self::EXISTS | OTHERS) == Self::EXISTS
    }

    /// The oldest rule.
    #[inline]
    fn first(&self) -> Option<FlowHit> {
        self.has(Self::EXISTS).then(|| FlowHit {
            flow: FlowId(self.flow & (Self::EXISTS - 1)),
            kind: Self::KINDS[(self.flow >> Self::KIND_SHIFT) as usize],
            is_copy: self.has(Self::COPIES),
            actions: Actions {
                tag: self.has(Self::TAGS).then_some(self.tag),
                drop: self.has(Self::DROPS),
                counter: self.has(Self::COUNTS).then_some(CounterId(self.counter)),
                target: QpSlot(self.target),
            },
        })
    }
}

impl Group {
    fn replicas(&self) -> &[FlowHit] {
        self.younger.as_ref().map_or(&[], |younger| &younger.replicas)
    }

    /// Adds a rule to those that the group has, of which `first` is the oldest. Returns the oldest and
    /// whether the new one is the youngest.
    fn insert(&mut self, first: FlowHit, order: u64, hit: FlowHit) -> (FlowHit, bool) {
        let rules = &mut self.younger.get_or_insert_default().rules;
        if order < self.order {
            rules.insert(0, (std::mem::replace(&mut self.order, order), first));
            return (hit, false);
        }
        let place = rules.partition_point(|(other, _)| *other < order);
        let youngest = place == rules.len();
        rules.insert(place, (order, hit));
        (first, youngest)
    }

    /// Removes a rule of those that the group has, of which `first` is the oldest. Returns the oldest that is
    /// left.
    fn remove(&mut self, first: FlowHit, flow: FlowId) -> Option<FlowHit> {
        let Some(younger) = &mut self.younger else { return (first.flow != flow).then_some(first) };
        let mut oldest = first;
        if first.flow == flow {
            (self.order, oldest) = younger.rules.remove(0);
        } else {
            younger.rules.retain(|(_, hit)| hit.flow != flow);
        }
        self.younger.take_if(|younger| younger.rules.is_empty());
        Some(oldest)
    }

    /// Chooses the replicas; `first` is the oldest rule.
    fn lay_out(&mut self, first: Option<FlowHit>) -> Outcome {
        let Some(younger) = &mut self.younger else { return Outcome::new(first, false) };
        younger.replicas.clear();
        let mut copies: ArrayVec<FlowHit, MAX_REPLICAS> = first.into_iter().collect();
        for (_, hit) in &younger.rules {
            if !copies.iter().any(|copy| copy.actions.target == hit.actions.target) {
                copies.push(*hit);
                younger.replicas.push(*hit);
            }
        }
        Outcome::new(first, !younger.replicas.is_empty())
    }
}

/// A rule that takes a copy and lets the frame go on.
#[derive(Clone, Debug)]
struct CopyRule {
    precedence: Precedence,
    matcher: Matcher,
    tunnel: Option<Box<TunnelMatcher>>,
    hit: FlowHit,
    /// Where the match is on a device of limited capacity; `None` as well for all but one rule of an entry.
    place: Option<Place>,
}

impl CopyRule {
    /// Whether a device with one entry for each match would have both in the same.
    fn shares_entry(&self, other: &Self) -> bool {
        self.precedence.level() == other.precedence.level()
            && self.matcher == other.matcher
            && self.tunnel == other.tunnel
    }

    /// Whether a rule takes a copy besides another one of its level that takes one: on a device where a frame
    /// meets one entry of each priority, and every queue pair once.
    fn copies_beside(&self, other: &Self) -> bool {
        self.shares_entry(other) && self.hit.actions.target != other.hit.actions.target
    }

    #[inline]
    fn matches(&self, image: &MatchKey, deep: Option<&DeepImage>) -> bool {
        match (&self.tunnel, deep) {
            (None, _) => self.matcher.matches(image),
            (Some(tunnel), Some(deep)) => {
                deep.masked(&tunnel.mask(&self.matcher)) == tunnel.value(&self.matcher)
            }
            (Some(_), None) => false,
        }
    }
}

/// The rules of one port and direction.
#[derive(Debug, Default)]
pub struct PortTable {
    rules: TableRules,
    /// Trapping rules about the outer packet alone, and those about tunnels.
    plain: Trees,
    deep: Space<DeepImage>,
    groups: Vec<Group>,
    /// The outcomes, by group.
    outcomes: Vec<Outcome>,
    /// Indices into `groups` that are not in use.
    vacant: Vec<u32>,
    /// In order of precedence.
    dont_trap: Vec<CopyRule>,
    /// Oldest first.
    sniffers: Vec<CopyRule>,
    /// Every bit that any rule looks at; nothing while no rule is about tunnels.
    deep_relevant: Option<DeepImage>,
    /// The results of the last lookups of frames with tunnels; made with the first rule about tunnels. One
    /// engine looks up the frames of a port, so that nobody waits for the lock.
    recent: Option<Box<Mutex<ExactCache<DeepImage>>>>,
    capacity: Capacity,
}

impl PortTable {
    pub(super) fn new(rules: TableRules) -> Self {
        Self { rules, ..Self::default() }
    }

    /// The part of the image of a frame with a tunnel that is kept; `None` if no rule is about tunnels.
    #[inline]
    pub(super) fn deep_relevant(&self) -> Option<&DeepImage> {
        self.deep_relevant.as_ref()
    }

    /// The results of the last lookups of frames with tunnels; `None` if there never was a rule about
    /// tunnels.
    pub(super) fn recent(&self) -> Option<MutexGuard<'_, ExactCache<DeepImage>>> {
        self.recent.as_ref().map(|recent| recent.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether there is nothing to look up.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.plain.masks() == 0
            && self.deep.len() == 0
            && self.dont_trap.is_empty()
            && self.sniffers.is_empty()
    }

    pub(super) fn sniffer_count(&self) -> usize {
        self.sniffers.len()
    }

    /// The result of the rules for an image; `deep` is there if the frame has a tunnel and some rule asks for
    /// one.
    pub(super) fn classify(&self, image: &MatchKey, deep: Option<&DeepImage>) -> Verdict {
        let mut winner = self.plain.search(image);
        if let Some(deep) = deep {
            winner = self.deep.search(deep, winner).0;
        }
        self.verdict(image, deep, winner)
    }

    /// The results for up to [`BURST`] frames without tunnels that some rule asks for.
    #[inline]
    pub(super) fn classify_burst(&self, images: &[MatchKey], verdicts: &mut [Verdict]) {
        let mut winners = Winners::NONE;
        self.plain.search_burst(images, &mut winners);
        // `Winners` has `Verdict::NO_GROUP` where there is none.
        for (verdict, &group) in verdicts.iter_mut().zip(&winners.groups) {
            *verdict = Verdict { group, dont_trap: 0 };
            if let Some(outcome) = self.outcomes.get(group as usize) {
                prefetch_read((&raw const *outcome).cast());
            }
        }
        if !self.dont_trap.is_empty() {
            for (at, (verdict, image)) in verdicts.iter_mut().zip(images).enumerate() {
                *verdict = self.verdict(image, None, winners.ranked(at));
            }
        }
    }

    /// The result for an image when it is known which group decides.
    #[inline]
    fn verdict(&self, image: &MatchKey, deep: Option<&DeepImage>, winner: Option<Ranked>) -> Verdict {
        let is_late = |rule: &CopyRule| {
            winner.is_some_and(|winner| winner.precedence.level() < rule.precedence.level())
        };
        // Which of them take a copy is found again if it is asked: of most frames it is not.
        let in_time = self.dont_trap.iter().take_while(|rule| !is_late(rule));
        let last = in_time.enumerate().filter(|(_, rule)| rule.matches(image, deep)).last();
        let dont_trap = last.map_or(0, |(position, _)| position as u32 + 1);
        Verdict { group: winner.map_or(Verdict::NO_GROUP, |winner| winner.group), dont_trap }
    }

    /// Lists the copies that DONT_TRAP rules take, of the first so many.
    fn copy(&self, count: u32, image: &MatchKey, deep: Option<&DeepImage>, matches: &mut Matches) {
        // Those of the same level that take a copy, which has the first of them that matches.
        let mut taken: ArrayVec<&CopyRule, MAX_DONT_TRAP> = ArrayVec::new();
        for rule in self.dont_trap.iter().take(count as usize).filter(|rule| rule.matches(image, deep)) {
            if self.rules.one_copy_per_priority {
                if taken.last().is_some_and(|last| last.precedence.level() != rule.precedence.level()) {
                    taken.clear();
                }
                if taken.iter().any(|other| !rule.copies_beside(other)) {
                    continue;
                }
                taken.push(rule);
            }
            matches.add(rule.hit);
        }
    }

    /// How many shapes about tunnels have to be asked for an image.
    #[cfg(test)]
    pub(super) fn shapes_asked(&self, deep: &DeepImage) -> usize {
        self.deep.search(deep, self.plain.search(&deep.outer)).1
    }

    /// How many groups of equal masks a frame with this verdict passes on a device that has them, the last
    /// one that of its match; all where no match decides. 0 without [`TableRules::groups`].
    #[must_use]
    pub fn groups_passed(&self, verdict: Verdict) -> u64 {
        let place = self.groups.get(verdict.group as usize).and_then(|group| group.place);
        place.map_or_else(|| self.capacity.groups(), |place| self.capacity.passed(place))
    }

    /// Whether a verdict names all the flows that a frame meets: there are no sniffers.
    pub fn decides_alone(&self) -> bool {
        self.sniffers.is_empty()
    }

    /// The queue pair and the tag of the flow that a verdict represents, if it represents one, which only
    /// delivers: so it is for most frames.
    #[inline]
    pub fn plain(&self, verdict: Verdict) -> Option<(QpSlot, u32)> {
        let outcome = self.outcomes.get(verdict.group as usize)?;
        (verdict.dont_trap == 0 && outcome.is_plain()).then_some((QpSlot(outcome.target), outcome.tag))
    }

    /// Puts the flows that a verdict on a frame represents into `matches`, in place of what was there. No
    /// flow may have been inserted or removed since. `parse` parses the frame and its tunnel, and is asked
    /// only if some flow of the port is about tunnels.
    pub fn expand(
        &self,
        verdict: Verdict,
        image: &MatchKey,
        parse: impl FnOnce() -> DeepKey,
        matches: &mut Matches,
    ) {
        matches.clear();
        if verdict.dont_trap > 0 {
            let deep = self.deep_relevant.as_ref().and_then(|relevant| {
                let DeepKey { outer, tunnel } = parse();
                DeepImage::of_tunnel(image, &outer, &tunnel, relevant)
            });
            let image = deep.as_ref().map_or(image, |deep| &deep.outer);
            self.copy(verdict.dont_trap, image, deep.as_ref(), matches);
        }
        if let Some(outcome) = self.outcomes.get(verdict.group as usize) {
            outcome.first().into_iter().for_each(|hit| matches.add(hit));
            if outcome.is_replicated() {
                let replicas = self.groups[verdict.group as usize].replicas();
                replicas.iter().for_each(|hit| matches.add(*hit));
            }
        }
        self.sniff(matches);
    }

    /// Lists the sniffers.
    #[inline]
    pub(super) fn sniff(&self, matches: &mut Matches) {
        for sniffer in &self.sniffers {
            matches.add(sniffer.hit);
        }
    }

    pub(super) fn insert(&mut self, rule: &FlowRule) -> Result<(), FlowError> {
        let precedence = Precedence::new(rule.kind, rule.priority, rule.order);
        let is_copy = rule.dont_trap || rule.kind == FlowKind::Sniffer;
        let hit = FlowHit { flow: rule.id, kind: rule.kind, is_copy, actions: rule.actions };
        let (matcher, tunnel) = (rule.matcher, rule.tunnel.clone());
        let copy_rule = CopyRule { precedence, matcher, tunnel, hit, place: None };
        if rule.kind == FlowKind::Sniffer {
            if self.sniffers.len() >= MAX_SNIFFERS {
                let what = "sniffers on this port";
                return Err(FlowError::Full { what, limit: MAX_SNIFFERS, of: Limit::Sniffers });
            }
            add_copy_rule(&mut self.sniffers, copy_rule);
            return Ok(());
        }
        if rule.dont_trap {
            self.insert_copying(rule, copy_rule)?;
        } else {
            self.insert_trapping(rule, precedence, hit)?;
        }
        self.recount_relevant();
        Ok(())
    }

    pub(super) fn remove(&mut self, rule: &FlowRule) {
        if rule.kind == FlowKind::Sniffer {
            return self.sniffers.retain(|sniffer| sniffer.hit.flow != rule.id);
        }
        if rule.dont_trap {
            self.remove_copying(rule.id);
        } else {
            self.remove_trapping(rule);
        }
        self.recount_relevant();
    }

    fn insert_copying(&mut self, rule: &FlowRule, mut copy_rule: CopyRule) -> Result<(), FlowError> {
        let sharing = self.dont_trap.iter().find(|other| other.shares_entry(&copy_rule));
        if let Some(other) = sharing {
            self.rules.agree(&mut copy_rule.hit, &other.hit)?;
        }
        let limit = self.rules.max_copies;
        if self.dont_trap.len() >= limit {
            let what = "DONT_TRAP flows on this port";
            return Err(FlowError::Full { what, limit, of: Limit::Copies });
        }
        if let Some(limits) = self.rules.groups.filter(|_| sharing.is_none()) {
            let key = TableKey { level: copy_rule.precedence.level(), traps: false };
            copy_rule.place = self.capacity.take(limits, key, &whole_mask(rule));
            if copy_rule.place.is_none() {
                return Err(FlowError::NoSpace);
            }
        }
        add_copy_rule(&mut self.dont_trap, copy_rule);
        Ok(())
    }

    fn remove_copying(&mut self, id: FlowId) {
        let Some(at) = self.dont_trap.iter().position(|rule| rule.hit.flow == id) else { return };
        let removed = self.dont_trap.remove(at);
        let Some(place) = removed.place else { return };
        match self.dont_trap.iter_mut().find(|other| other.shares_entry(&removed)) {
            Some(other) => other.place = Some(place),
            None => self.capacity.give_back(place),
        }
    }

    fn insert_trapping(
        &mut self,
        rule: &FlowRule,
        precedence: Precedence,
        hit: FlowHit,
    ) -> Result<(), FlowError> {
        if let Some(ranked) = self.group_of(rule, precedence.level()) {
            return self.join(rule, hit, ranked);
        }
        let limit = self.rules.max_shapes;
        if !self.has_mask_of(rule) && self.plain.masks() + self.deep.len() >= limit {
            let what = "different masks of flows on this port";
            return Err(FlowError::Full { what, limit, of: Limit::Shapes });
        }
        let mut place = None;
        if let Some(limits) = self.rules.groups.filter(|_| rule.kind == FlowKind::Normal) {
            let key = TableKey { level: precedence.level(), traps: true };
            place = self.capacity.take(limits, key, &whole_mask(rule));
            if place.is_none() {
                return Err(FlowError::NoSpace);
            }
        }
        let number = self.vacant.pop().unwrap_or_else(|| {
            self.groups.push(Group::default());
            self.outcomes.push(Outcome::default());
            // Flows are limited to MAX_FLOWS, far below NO_GROUP.
            (self.groups.len() - 1) as u32
        });
        self.groups[number as usize] = Group { order: rule.order, younger: None, place };
        self.outcomes[number as usize] = Outcome::new(Some(hit), false);
        self.add_group(rule, Ranked { precedence, group: number });
        Ok(())
    }

    /// Adds a rule to those with the same match, kind and priority.
    fn join(&mut self, rule: &FlowRule, mut hit: FlowHit, ranked: Ranked) -> Result<(), FlowError> {
        let at = ranked.group as usize;
        let Some(first) = self.outcomes[at].first() else { return Ok(()) };
        // All of a group agree with its first.
        if first.actions.drop != hit.actions.drop {
            return Err(FlowError::Conflict(first.flow));
        }
        self.rules.agree(&mut hit, &first)?;
        // Flows on one queue pair share its copy, as mlx5 counts the uses of a rule (fs_core.c,
        // `add_rule_fte`).
        let replicas = self.groups[at].replicas();
        let mut copies = std::iter::once(&first).chain(replicas);
        let new_target = !copies.any(|copy| copy.actions.target == hit.actions.target);
        if new_target && replicas.len() + 1 >= MAX_REPLICAS {
            return Err(FlowError::Full {
                what: "queue pairs of this match and priority",
                limit: MAX_REPLICAS,
                of: Limit::Flows,
            });
        }
        let (oldest, youngest) = self.groups[at].insert(first, rule.order, hit);
        // Otherwise nothing changes for packets, and many flows on one queue pair cost no more than one.
        if new_target || !youngest {
            self.settle(rule, ranked, Some(oldest));
        }
        Ok(())
    }

    fn remove_trapping(&mut self, rule: &FlowRule) {
        let level = Precedence::new(rule.kind, rule.priority, rule.order).level();
        let Some(ranked) = self.group_of(rule, level) else { return };
        let Some(first) = self.outcomes[ranked.group as usize].first() else { return };
        let oldest = self.groups[ranked.group as usize].remove(first, rule.id);
        self.settle(rule, ranked, oldest);
    }

    /// Puts the group of `rule`, which stood at `before`, where its rules, of which `oldest` is the first,
    /// now place it.
    fn settle(&mut self, rule: &FlowRule, before: Ranked, oldest: Option<FlowHit>) {
        let group = &mut self.groups[before.group as usize];
        self.outcomes[before.group as usize] = group.lay_out(oldest);
        let oldest = oldest.map(|_| Precedence::new(rule.kind, rule.priority, group.order));
        if oldest == Some(before.precedence) {
            return;
        }
        self.remove_group(rule, before);
        match oldest {
            Some(precedence) => self.add_group(rule, Ranked { precedence, group: before.group }),
            None => {
                if let Some(place) = self.groups[before.group as usize].place.take() {
                    self.capacity.give_back(place);
                }
                self.vacant.push(before.group);
            }
        }
    }

    fn group_of(&self, rule: &FlowRule, level: u64) -> Option<Ranked> {
        let outer = &rule.matcher;
        match &rule.tunnel {
            None => self.plain.group_at(outer.value(), outer.mask(), level),
            Some(tunnel) => self.deep.group_at(&tunnel.value(outer), &tunnel.mask(outer), level),
        }
    }

    fn has_mask_of(&self, rule: &FlowRule) -> bool {
        match &rule.tunnel {
            None => self.plain.has_mask(rule.matcher.mask()),
            Some(tunnel) => self.deep.has_mask(&tunnel.mask(&rule.matcher)),
        }
    }

    fn add_group(&mut self, rule: &FlowRule, ranked: Ranked) {
        let outer = &rule.matcher;
        match &rule.tunnel {
            None => self.plain.add(outer.value(), outer.mask(), ranked),
            Some(tunnel) => self.deep.add(&tunnel.value(outer), &tunnel.mask(outer), ranked),
        }
    }

    fn remove_group(&mut self, rule: &FlowRule, ranked: Ranked) {
        let outer = &rule.matcher;
        match &rule.tunnel {
            None => self.plain.remove(outer.value(), outer.mask(), ranked),
            Some(tunnel) => self.deep.remove(&tunnel.value(outer), &tunnel.mask(outer), ranked),
        }
    }

    /// To be called after each change of the rules that decide.
    fn recount_relevant(&mut self) {
        let mut deep = (self.deep.len() > 0).then(|| *self.deep.relevant());
        for rule in &self.dont_trap {
            if let Some(tunnel) = &rule.tunnel {
                deep = Some(deep.unwrap_or_default().union(&tunnel.mask(&rule.matcher)));
            }
        }
        self.deep_relevant = deep.map(|deep| {
            let copies = self.dont_trap.iter().filter(|rule| rule.tunnel.is_none());
            let plain = copies.fold(*self.plain.relevant(), |all, rule| all.union(rule.matcher.mask()));
            deep.union(&DeepImage::outside(plain))
        });
        if self.deep_relevant.is_some() {
            self.recent.get_or_insert_default();
        }
        if let Some(recent) = &mut self.recent {
            recent.get_mut().unwrap_or_else(PoisonError::into_inner).invalidate();
        }
    }
}

impl TableRules {
    /// Gives a flow the tag of one that has the same match and priority, if they must agree.
    fn agree(&self, hit: &mut FlowHit, other: &FlowHit) -> Result<(), FlowError> {
        if self.one_tag_per_match {
            let tag = other.actions.tag.unwrap_or(0);
            if hit.actions.tag.is_some_and(|own| own != tag) {
                return Err(FlowError::Conflict(other.flow));
            }
            hit.actions.tag = Some(tag);
        }
        Ok(())
    }
}

fn whole_mask(rule: &FlowRule) -> DeepImage {
    match &rule.tunnel {
        None => DeepImage::outside(*rule.matcher.mask()),
        Some(tunnel) => tunnel.mask(&rule.matcher),
    }
}

/// Adds a rule to a list in order of precedence.
fn add_copy_rule(rules: &mut Vec<CopyRule>, rule: CopyRule) {
    let place = rules.partition_point(|other| other.precedence < rule.precedence);
    rules.insert(place, rule);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_holds_every_part_of_a_hit() {
        for kind in Outcome::KINDS {
            for flags in 0..32u32 {
                let is = |flag: u32| flags >> flag & 1 == 1;
                let hit = FlowHit {
                    flow: FlowId(MAX_FLOWS as u32 - 1),
                    kind,
                    is_copy: is(0),
                    actions: Actions {
                        tag: is(1).then_some(u32::MAX),
                        drop: is(2),
                        counter: is(3).then_some(CounterId(u32::MAX)),
                        target: QpSlot(7),
                    },
                };
                let outcome = Outcome::new(Some(hit), is(4));
                assert_eq!((outcome.first(), outcome.is_replicated()), (Some(hit), is(4)));
            }
        }
        assert_eq!(Outcome::default().first(), None);
    }
}
