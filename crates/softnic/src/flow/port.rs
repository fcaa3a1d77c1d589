//! The rules of one port: a tuple space for the rules that trap, short lists for the few that only take copies.
//!
//! [`super::FlowTable`] owns one per port. Rules with equal match, kind and priority form a group whose copies are laid
//! out when the group changes, so that a lookup ends with one slice. Nothing here allocates during a lookup.

use arrayvec::ArrayVec;

use super::cache::Verdict;
use super::key::MatchKey;
use super::shape::{Precedence, Ranked, Shape};
use super::{
    FlowError, FlowHit, FlowId, FlowKind, FlowRule, MAX_DONT_TRAP, MAX_REPLICAS, MAX_SHAPES, MAX_SNIFFERS,
    Matcher, Matches,
};

/// Rules that differ only in age, queue pair and tag.
#[derive(Debug, Default)]
struct Group {
    /// Oldest first.
    rules: Vec<(u64, FlowHit)>,
    /// What a matching frame gets: the oldest rule of each queue pair.
    copies: Vec<FlowHit>,
}

impl Group {
    fn lay_out(&mut self) {
        self.copies.clear();
        self.copies.reserve_exact(self.rules.len().min(1));
        for (_, hit) in &self.rules {
            if !self.copies.iter().any(|copy| copy.actions.target == hit.actions.target) {
                self.copies.push(*hit);
            }
        }
    }
}

/// A rule that takes a copy and lets the frame go on.
#[derive(Clone, Debug)]
struct CopyRule {
    precedence: Precedence,
    matcher: Matcher,
    hit: FlowHit,
}

const _: () = assert!(MAX_DONT_TRAP <= u16::BITS as usize, "a verdict names DONT_TRAP rules by bit");

/// The rules of one port.
#[derive(Debug, Default)]
pub(super) struct PortTable {
    /// Best precedence first; none is empty.
    shapes: Vec<Shape>,
    groups: Vec<Group>,
    /// Indices into `groups` that are not in use.
    vacant: Vec<u32>,
    /// In order of precedence.
    dont_trap: ArrayVec<CopyRule, MAX_DONT_TRAP>,
    /// Oldest first.
    sniffers: ArrayVec<CopyRule, MAX_SNIFFERS>,
    /// Every bit that some rule looks at.
    relevant: MatchKey,
}

impl PortTable {
    pub(super) fn relevant(&self) -> &MatchKey {
        &self.relevant
    }

    /// What the rules say about an image, which may be masked to [`relevant`](Self::relevant).
    pub(super) fn classify(&self, image: &MatchKey) -> Verdict {
        let (winner, _) = self.search(image);
        let mut dont_trap = 0;
        for (position, rule) in self.dont_trap.iter().enumerate() {
            if winner.is_some_and(|winner| winner.precedence.level() < rule.precedence.level()) {
                break;
            }
            if rule.matcher.matches(image) {
                dont_trap |= 1 << position;
            }
        }
        Verdict { group: winner.map_or(Verdict::NO_GROUP, |winner| winner.group), dont_trap }
    }

    /// The group that decides over an image, and how many shapes had to be asked.
    pub(super) fn search(&self, image: &MatchKey) -> (Option<Ranked>, usize) {
        let mut winner: Option<Ranked> = None;
        let mut asked = 0;
        for shape in &self.shapes {
            if let (Some(winner), Some(best)) = (winner, shape.best())
                && winner.precedence < best
            {
                break;
            }
            if !shape.is_possible(image) {
                continue;
            }
            asked += 1;
            if let Some(found) = shape.find(image)
                && winner.is_none_or(|winner| found < winner)
            {
                winner = Some(found);
            }
        }
        (winner, asked)
    }

    /// Lists the flows that a verdict stands for.
    #[inline]
    pub(super) fn expand(&self, verdict: Verdict, matches: &mut Matches) {
        let mut positions = verdict.dont_trap;
        while positions != 0 {
            matches.add(self.dont_trap[positions.trailing_zeros() as usize].hit);
            positions &= positions - 1;
        }
        if let Some(group) = self.groups.get(verdict.group as usize) {
            group.copies.iter().for_each(|copy| matches.add(*copy));
        }
        for sniffer in &self.sniffers {
            matches.add(sniffer.hit);
        }
    }

    pub(super) fn insert(&mut self, rule: &FlowRule) -> Result<(), FlowError> {
        let precedence = Precedence::new(rule.kind, rule.priority, rule.order);
        let hit = FlowHit { flow: rule.id, kind: rule.kind, actions: rule.actions };
        let copy_rule = CopyRule { precedence, matcher: rule.matcher, hit };
        if rule.kind == FlowKind::Sniffer {
            return add_copy_rule(&mut self.sniffers, copy_rule, "sniffers on this port");
        }
        if rule.dont_trap {
            add_copy_rule(&mut self.dont_trap, copy_rule, "DONT_TRAP flows on this port")?;
        } else {
            self.insert_trapping(rule, precedence, hit)?;
        }
        self.relevant = self.relevant.union(rule.matcher.mask());
        Ok(())
    }

    pub(super) fn remove(&mut self, rule: &FlowRule) {
        if rule.kind == FlowKind::Sniffer {
            return remove_copy_rule(&mut self.sniffers, rule.id);
        }
        if rule.dont_trap {
            remove_copy_rule(&mut self.dont_trap, rule.id);
            self.recount_relevant();
        } else {
            self.remove_trapping(rule);
        }
    }

    fn insert_trapping(
        &mut self,
        rule: &FlowRule,
        precedence: Precedence,
        hit: FlowHit,
    ) -> Result<(), FlowError> {
        let (value, mask) = (rule.matcher.value(), rule.matcher.mask());
        let shape = self.shapes.iter().position(|shape| shape.mask() == mask);
        let existing = shape.and_then(|at| self.shapes[at].group_at(value, precedence.level()));
        if let Some(ranked) = existing {
            let rules = &mut self.groups[ranked.group as usize].rules;
            if let Some((_, other)) = rules.iter().find(|(_, other)| other.actions.drop != hit.actions.drop) {
                return Err(FlowError::Conflict(other.flow));
            }
            if rules.len() >= MAX_REPLICAS {
                return Err(FlowError::Full {
                    what: "flows with this match and priority",
                    limit: MAX_REPLICAS,
                });
            }
            let place = rules.partition_point(|(order, _)| *order < rule.order);
            rules.insert(place, (rule.order, hit));
            self.settle(rule, ranked);
            return Ok(());
        }
        if shape.is_none() && self.shapes.len() >= MAX_SHAPES {
            return Err(FlowError::Full { what: "different masks of flows on this port", limit: MAX_SHAPES });
        }
        let shape = shape.unwrap_or_else(|| {
            self.shapes.push(Shape::new(*mask));
            self.shapes.len() - 1
        });
        let group = self.vacant.pop().unwrap_or_else(|| {
            self.groups.push(Group::default());
            // Flows are limited to MAX_FLOWS, far below NO_GROUP.
            (self.groups.len() - 1) as u32
        });
        let rules = &mut self.groups[group as usize].rules;
        // Most groups stay alone; room for more would be most of the table's memory.
        rules.reserve_exact(1);
        rules.push((rule.order, hit));
        self.groups[group as usize].lay_out();
        self.shapes[shape].add(value, Ranked { precedence, group });
        self.sort_shapes();
        Ok(())
    }

    fn remove_trapping(&mut self, rule: &FlowRule) {
        let level = Precedence::new(rule.kind, rule.priority, rule.order).level();
        let (value, mask) = (rule.matcher.value(), rule.matcher.mask());
        let shape = self.shapes.iter().find(|shape| shape.mask() == mask);
        let Some(ranked) = shape.and_then(|shape| shape.group_at(value, level)) else { return };
        self.groups[ranked.group as usize].rules.retain(|(_, hit)| hit.flow != rule.id);
        self.settle(rule, ranked);
    }

    /// Puts the group of `rule`, which stood at `before`, where its rules now place it.
    fn settle(&mut self, rule: &FlowRule, before: Ranked) {
        let group = &mut self.groups[before.group as usize];
        group.lay_out();
        let oldest = group.rules.first().map(|(order, _)| Precedence::new(rule.kind, rule.priority, *order));
        if oldest == Some(before.precedence) {
            return;
        }
        let mask = rule.matcher.mask();
        let Some(at) = self.shapes.iter().position(|shape| shape.mask() == mask) else { return };
        let shape = &mut self.shapes[at];
        shape.remove(rule.matcher.value(), before);
        match oldest {
            Some(precedence) => shape.add(rule.matcher.value(), Ranked { precedence, group: before.group }),
            None => self.vacant.push(before.group),
        }
        if shape.best().is_none() {
            self.shapes.remove(at);
            self.recount_relevant();
        }
        self.sort_shapes();
    }

    /// Restores the order of the shapes; they are sorted but for one, which the standard sort finds in one pass.
    fn sort_shapes(&mut self) {
        if !self.shapes.is_sorted_by_key(Shape::best) {
            self.shapes.sort_by_key(Shape::best);
        }
    }

    fn recount_relevant(&mut self) {
        let shapes = self.shapes.iter().map(Shape::mask);
        let copies = self.dont_trap.iter().map(|rule| rule.matcher.mask());
        self.relevant = shapes.chain(copies).fold(MatchKey::default(), |all, mask| all.union(mask));
    }
}

fn add_copy_rule<const LIMIT: usize>(
    rules: &mut ArrayVec<CopyRule, LIMIT>,
    rule: CopyRule,
    what: &'static str,
) -> Result<(), FlowError> {
    let place = rules.partition_point(|other| other.precedence < rule.precedence);
    rules.try_insert(place, rule).map_err(|_| FlowError::Full { what, limit: LIMIT })
}

fn remove_copy_rule<const LIMIT: usize>(rules: &mut ArrayVec<CopyRule, LIMIT>, id: FlowId) {
    rules.retain(|rule| rule.hit.flow != id);
}
