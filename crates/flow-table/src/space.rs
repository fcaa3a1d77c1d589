//! A tuple space: the shapes of one kind of image, in the order in which they can win.
//!
//! [`super::port::PortTable`] has two for its trapping rules, one for rules that look at the outer packet
//! alone and one for rules about tunnels. A space refers to groups by number only; nothing here allocates
//! during a search.
//!
//! Why it is right: within a shape, rules that match have equal masked values, so one hash lookup finds all
//! of them. Shapes are sorted by the best rule that each has, so the search ends at the first shape whose
//! best rule loses to the winner.

use super::key::Image;
use super::shape::{Ranked, Shape};

/// Shapes, best precedence first; none is empty.
#[derive(Debug)]
pub(super) struct Space<I> {
    shapes: Vec<Shape<I>>,
    /// Every bit that some shape looks at.
    relevant: I,
}

impl<I: Image> Default for Space<I> {
    fn default() -> Self {
        Self { shapes: Vec::new(), relevant: I::default() }
    }
}

impl<I: Image> Space<I> {
    /// How many different masks there are.
    pub(super) fn len(&self) -> usize {
        self.shapes.len()
    }

    pub(super) fn relevant(&self) -> &I {
        &self.relevant
    }

    pub(super) fn has_mask(&self, mask: &I) -> bool {
        self.position(mask).is_some()
    }

    /// The group that decides over an image unless `winner` does, and how many shapes had to be asked.
    #[inline]
    pub(super) fn search(&self, image: &I, mut winner: Option<Ranked>) -> (Option<Ranked>, usize) {
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

    /// The group with this match at this kind and priority.
    pub(super) fn group_at(&self, value: &I, mask: &I, level: u64) -> Option<Ranked> {
        self.shapes[self.position(mask)?].group_at(value, level)
    }

    pub(super) fn add(&mut self, value: &I, mask: &I, ranked: Ranked) {
        let at = self.position(mask).unwrap_or_else(|| {
            self.shapes.push(Shape::new(*mask));
            self.relevant = self.relevant.union(mask);
            self.shapes.len() - 1
        });
        self.shapes[at].add(value, ranked);
        self.sort();
    }

    pub(super) fn remove(&mut self, value: &I, mask: &I, ranked: Ranked) {
        let Some(at) = self.position(mask) else { return };
        self.shapes[at].remove(value, ranked);
        if self.shapes[at].best().is_none() {
            self.shapes.remove(at);
            let masks = self.shapes.iter().map(Shape::mask);
            self.relevant = masks.fold(I::default(), |all, mask| all.union(mask));
        }
        self.sort();
    }

    fn position(&self, mask: &I) -> Option<usize> {
        self.shapes.iter().position(|shape| shape.mask() == mask)
    }

    /// Restores the order of the shapes; they are sorted but for one, which the standard sort finds in one
    /// pass.
    fn sort(&mut self) {
        if !self.shapes.is_sorted_by_key(Shape::best) {
            self.shapes.sort_by_key(Shape::best);
        }
    }
}

#[cfg(test)]
mod tests {
    use packet::cube::{DST_PORT, SRC_PORT, Slot, TOS};
    use packet::{FlowKey, Layers};

    use super::super::key::{MatchKey, Matcher};
    use super::super::{FlowKind, shape::Precedence};
    use super::*;

    fn add(space: &mut Space<MatchKey>, group: u32, priority: u16, matcher: &Matcher) -> Ranked {
        let precedence = Precedence::new(FlowKind::Normal, priority, group.into());
        let ranked = Ranked { precedence, group };
        space.add(matcher.value(), matcher.mask(), ranked);
        ranked
    }

    fn with_layers(layers: Layers, fields: &[(Slot, u128, u128)]) -> Matcher {
        let mut matcher = Matcher::any();
        matcher.require(layers);
        for (slot, value, mask) in fields {
            matcher.field(&[*slot], *value, *mask);
        }
        matcher
    }

    fn image(layers: Layers, dst_port: u16, src_port: u16) -> MatchKey {
        MatchKey::of(&FlowKey { layers, dst_port, src_port, ..FlowKey::default() })
    }

    #[test]
    fn a_search_visits_no_shape_that_cannot_win() {
        let mut space = Space::default();
        let udp = Layers::UDP;
        add(&mut space, 1, 0, &with_layers(udp, &[(DST_PORT, 53, 0xffff)]));
        for id in 2..34 {
            let fields = [(DST_PORT, 53, 0xffff), (SRC_PORT, 0, 1 << (id % 16)), (TOS, 0, 1 << (id / 16))];
            add(&mut space, id, 1, &with_layers(udp, &fields));
        }
        assert_eq!(space.search(&image(udp, 53, 0), None).1, 1);
        assert_eq!(space.search(&image(udp, 54, 0), None).1, 33);
    }

    #[test]
    fn a_shape_that_loses_its_best_rule_is_asked_in_its_new_place() {
        let mut space = Space::default();
        let any = Layers::empty();
        let gone = with_layers(any, &[(SRC_PORT, 99, 0xffff)]);
        add(&mut space, 1, 0, &with_layers(any, &[(DST_PORT, 99, 0xffff)]));
        add(&mut space, 2, 2, &with_layers(any, &[(DST_PORT, 53, 0xffff)]));
        let ranked = add(&mut space, 3, 0, &gone);
        add(&mut space, 4, 3, &with_layers(any, &[(SRC_PORT, 98, 0xffff)]));
        add(&mut space, 5, 1, &with_layers(any, &[(TOS, 0, 0xff)]));
        space.remove(gone.value(), gone.mask(), ranked);
        // Behind the shape of ports to, that of ports from would end the search before the rule of priority
        // 1.
        let found = space.search(&image(any, 53, 0), None).0;
        assert_eq!(found.map(|ranked| ranked.group), Some(5));
    }

    #[test]
    fn shapes_of_layers_that_a_frame_lacks_are_not_asked() {
        let mut space = Space::default();
        for id in 0..32 {
            let family = if id % 2 == 0 { Layers::IPV4 } else { Layers::IPV6 };
            add(&mut space, id, 0, &with_layers(family | Layers::UDP, &[(SRC_PORT, 0, 1 << (id / 2))]));
        }
        let asked = |layers| space.search(&image(layers, 53, 0xffff), None).1;
        assert_eq!(asked(Layers::IPV4 | Layers::UDP), 16);
        assert_eq!(asked(Layers::IPV6 | Layers::UDP), 16);
        assert_eq!(asked(Layers::IPV4 | Layers::TCP), 0);
        assert_eq!(asked(Layers::empty()), 0);
    }
}
