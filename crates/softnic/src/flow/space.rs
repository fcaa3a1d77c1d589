//! A tuple space: the shapes of one kind of image, in the order in which they can win.
//!
//! [`super::port::PortTable`] has two for its trapping rules, one for rules that look at the outer packet alone and one for
//! rules about tunnels. A space refers to groups by number only; nothing here allocates during a search.
//!
//! Why it is right: within a shape, rules that match have equal masked values, so one hash lookup finds all of them. Shapes
//! are sorted by the best rule that each has, so the search ends at the first shape whose best rule loses to the winner.

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

    /// Restores the order of the shapes; they are sorted but for one, which the standard sort finds in one pass.
    fn sort(&mut self) {
        if !self.shapes.is_sorted_by_key(Shape::best) {
            self.shapes.sort_by_key(Shape::best);
        }
    }
}
