//! The question that every analysis reduces to: does a product contain a packet that is in none of some other
//! products (its covers)? It is decided exactly, by subtracting one cover after the other until a part
//! overlaps no cover or no part remains. The question is NP-hard (satisfiability reduces to it), so the work
//! for one question and for all questions of an analysis or a diff is limited; beyond the limit the answer is
//! "not decided", never a guess.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, Instant};

use policy::Policy;
use program::Match;

use crate::dimensions::Dimensions;
use crate::interval_set::IntervalSet;
use crate::product::Product;
use crate::products::MAX_PRODUCTS;

/// The most comparisons of products for one question: a few seconds.
pub const MAX_COMPARISONS: u64 = 20_000_000;
/// The most comparisons for all questions of one analysis or one diff: about ten seconds.
pub const MAX_COMPARISONS_IN_ALL: u64 = 400_000_000;
/// The comparisons after which a question that is limited in time reads the clock: a part of a second.
const COMPARISONS_PER_CLOCK_READ: u64 = 500_000;
/// The cost of looking for a sparsely covered place, which sorts the ends of the covers, in comparisons per
/// cover.
const PROBE_WEIGHT: u64 = 8;

/// The packet space of some policies: their dimensions, and the comparisons that may still be spent.
pub(super) struct Space {
    pub(super) dimensions: Dimensions,
    left: Cell<u64>,
    /// When the work ends in any case, and how long that is after its begin.
    deadline: Option<(Instant, Duration)>,
}

/// A product whose packets are excluded, and its rule.
#[derive(Clone, Copy)]
pub(super) struct Cover<'c> {
    pub(super) rule: u32,
    pub(super) product: &'c Product,
}

/// The answer.
#[derive(Debug)]
pub(super) enum Free {
    /// This product, which is not empty, is in no cover.
    Product(Product),
    /// Every packet is in a cover.
    None,
    /// A limit was reached.
    NotDecided(Undecided),
}

/// Why a question has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Undecided {
    /// The question takes more than [`MAX_COMPARISONS`].
    OneQuestion,
    /// The question and those before it take more than [`MAX_COMPARISONS_IN_ALL`].
    AllQuestions,
    /// The question and those before it take longer than the caller allows.
    Time(Duration),
    /// The MAC addresses of one match fall into more than [`MAX_PRODUCTS`] parts.
    CrossedMasks,
    /// No packet of a product could be built.
    NoExample,
}

impl fmt::Display for Undecided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OneQuestion => {
                write!(f, "it takes more than {MAX_COMPARISONS} comparisons of header regions")
            }
            Self::AllQuestions => write!(
                f,
                "all questions together take more than {MAX_COMPARISONS_IN_ALL} comparisons of header regions"
            ),
            Self::Time(limit) => write!(f, "the comparison takes more than {} s", limit.as_secs_f64()),
            Self::CrossedMasks => {
                write!(f, "the masks of MAC addresses cross in more than {MAX_PRODUCTS} ways")
            }
            Self::NoExample => f.write_str("no packet of a header region could be built"),
        }
    }
}

impl Space {
    /// The space of some policies together.
    pub(super) fn of(policies: &[&Policy]) -> Self {
        Self::with(policies, std::iter::empty())
    }

    /// The dimensions for questions about other matches, too.
    pub(super) fn with<'m>(policies: &[&'m Policy], others: impl Iterator<Item = &'m Match>) -> Self {
        let matches = policies.iter().flat_map(|policy| &policy.rules).map(|rule| &rule.matches);
        Self::new(Dimensions::of(matches.chain(others)), MAX_COMPARISONS_IN_ALL)
    }

    /// The space of some dimensions, and how many comparisons may be spent in it.
    pub(super) fn new(dimensions: Dimensions, comparisons: u64) -> Self {
        Self { dimensions, left: Cell::new(comparisons), deadline: None }
    }

    /// Returns the space with an end of the work after this time.
    pub(super) fn within(self, time: Option<Duration>) -> Self {
        let end = |time: Duration| Some((Instant::now().checked_add(time)?, time));
        Self { deadline: time.and_then(end), ..self }
    }

    /// Lets as many comparisons be spent as at the beginning.
    pub(super) fn renew(&self) {
        self.left.set(MAX_COMPARISONS_IN_ALL);
    }

    pub(super) fn comparisons_left(&self) -> u64 {
        self.left.get()
    }

    /// The part of all comparisons that is left.
    pub(super) fn share_left(&self) -> f64 {
        self.left.get() as f64 / MAX_COMPARISONS_IN_ALL as f64
    }

    pub(super) fn is_spent(&self) -> bool {
        self.left.get() == 0
    }

    /// The limit that was reached, if [`Space::is_spent`].
    pub(super) fn reached(&self) -> Undecided {
        match self.deadline {
            Some((end, time)) if Instant::now() >= end => Undecided::Time(time),
            _ => Undecided::AllQuestions,
        }
    }

    /// Counts comparisons that were made outside of questions.
    pub(super) fn spend(&self, comparisons: u64) {
        let is_late = self.deadline.is_some_and(|(end, _)| Instant::now() >= end);
        self.left.set(if is_late { 0 } else { self.left.get().saturating_sub(comparisons) });
    }

    /// Whether two products overlap; counted.
    pub(super) fn overlaps(&self, one: &Product, other: &Product) -> bool {
        self.spend(one.effort(other));
        one.overlaps(other, &self.dimensions)
    }

    /// Whether one product contains another; counted.
    pub(super) fn contains(&self, one: &Product, other: &Product) -> bool {
        self.spend(one.effort(other));
        one.contains(other, &self.dimensions)
    }

    /// The intersection of two products; counted.
    pub(super) fn both(&self, one: &Product, other: &Product) -> Product {
        self.spend(one.effort(other));
        one.and(other, &self.dimensions)
    }

    /// Finds packets of `product` that are in no cover. If there are none, the rules of covers that suffice
    /// are added to `takers`.
    pub(super) fn free_of(
        &self,
        product: &Product,
        covers: &[Cover<'_>],
        takers: &mut BTreeSet<u32>,
    ) -> Free {
        if product.is_empty() {
            return Free::None;
        }
        let overlapping = covers.iter().filter(|cover| self.overlaps(product, cover.product)).copied();
        let (rough, exact): (Vec<_>, Vec<_>) = overlapping.partition(|cover| cover.product.is_rough);
        match self.cut(product, &exact, takers) {
            Free::Product(_) if product.is_rough => Free::NotDecided(Undecided::CrossedMasks),
            Free::Product(_) if !rough.is_empty() => {
                // A rough product contains at least its match, so what is outside of it is free for certain.
                let all: Vec<Cover<'_>> = exact.into_iter().chain(rough).collect();
                match self.cut(product, &all, &mut BTreeSet::new()) {
                    Free::None => Free::NotDecided(Undecided::CrossedMasks),
                    found => found,
                }
            }
            found => found,
        }
    }

    /// Cuts the product with covers that all overlap it, rough ones taken as exact.
    fn cut(&self, product: &Product, covers: &[Cover<'_>], takers: &mut BTreeSet<u32>) -> Free {
        if let Some(whole) = covers.iter().find(|cover| cover.product.contains(product, &self.dimensions)) {
            takers.insert(whole.rule);
            return Free::None;
        }
        let most = self.left.get().min(MAX_COMPARISONS);
        let mut search = Search {
            dimensions: &self.dimensions,
            covers,
            left: most,
            deadline: self.deadline.map(|(end, _)| end),
            until_clock: COMPARISONS_PER_CLOCK_READ,
        };
        let found = search.all(product, takers);
        self.spend(most - search.left);
        match found {
            Free::NotDecided(_) if self.is_spent() => Free::NotDecided(self.reached()),
            found => found,
        }
    }
}

/// With at most this many covers, subtracting is as fast as looking for a sparsely covered place first.
const PROBED: usize = 4;

struct Search<'s, 'c> {
    dimensions: &'s Dimensions,
    covers: &'s [Cover<'c>],
    left: u64,
    deadline: Option<Instant>,
    /// The comparisons until the clock is read.
    until_clock: u64,
}

impl Search<'_, '_> {
    /// Counts comparisons; returns whether more may be made.
    fn spend(&mut self, comparisons: u64) -> bool {
        self.left = self.left.saturating_sub(comparisons);
        self.until_clock = self.until_clock.saturating_sub(comparisons);
        if self.until_clock == 0 && self.left > 0 {
            self.until_clock = COMPARISONS_PER_CLOCK_READ;
            return self.deadline.is_none_or(|end| Instant::now() < end);
        }
        self.left > 0
    }

    fn all(&mut self, product: &Product, takers: &mut BTreeSet<u32>) -> Free {
        if self.covers.len() > PROBED {
            let effort: u64 = self.covers.iter().map(|cover| product.effort(cover.product)).sum();
            if !self.spend(PROBE_WEIGHT * effort) {
                return Free::NotDecided(Undecided::OneQuestion);
            }
            let (narrow, some) = self.least_covered(product);
            if let Free::Product(found) = self.run(narrow, some, &mut BTreeSet::new()) {
                return Free::Product(found);
            }
        }
        self.run(product.clone(), (0..self.covers.len() as u32).collect(), takers)
    }

    /// Subtracts covers, the one with the largest share first, from the parts that remain. Each part keeps
    /// the list of covers not yet subtracted from it: the parts of `minus` are disjoint from the cover, so it
    /// need not be looked at again, and the lists get shorter until a part overlaps none (free) or lies
    /// within one (dropped).
    fn run(&mut self, product: Product, covers: Vec<u32>, takers: &mut BTreeSet<u32>) -> Free {
        let mut open = vec![(product, covers)];
        while let Some((product, mut covers)) = open.pop() {
            let effort: u64 = covers.iter().map(|index| product.effort(self.cover(*index).product)).sum();
            if !self.spend(2 * effort + product.weight()) {
                return Free::NotDecided(Undecided::OneQuestion);
            }
            covers.retain(|index| self.cover(*index).product.overlaps(&product, self.dimensions));
            let sizes = product.sizes();
            let mut best: Option<(f64, u32)> = None;
            let mut is_taken = false;
            for index in &covers {
                let cover = self.cover(*index);
                if cover.product.contains(&product, self.dimensions) {
                    takers.insert(cover.rule);
                    is_taken = true;
                    break;
                }
                let share = product.share(&sizes, cover.product);
                if best.is_none_or(|(most, _)| share > most) {
                    best = Some((share, *index));
                }
            }
            if is_taken {
                continue;
            }
            let Some((_, largest)) = best else { return Free::Product(product) };
            let cover = self.cover(largest);
            takers.insert(cover.rule);
            covers.retain(|index| *index != largest);
            open.extend(
                product.minus(cover.product, self.dimensions).into_iter().map(|part| (part, covers.clone())),
            );
        }
        Free::None
    }

    fn cover(&self, index: u32) -> Cover<'_> {
        self.covers[index as usize]
    }

    /// A part of the product that overlaps few covers: on one dimension after the other the segment in the
    /// fewest.
    fn least_covered(&self, product: &Product) -> (Product, Vec<u32>) {
        let mut product = product.clone();
        let mut near: Vec<u32> = (0..self.covers.len() as u32).collect();
        for dimension in 0..self.dimensions.list.len() {
            let covers = near.iter().map(|index| &self.cover(*index).product.sets[dimension]);
            let Some(segment) = least_covered(&product.sets[dimension], covers) else { continue };
            let mut narrow = product.clone();
            narrow.sets[dimension] = IntervalSet::One((segment, segment));
            narrow.stacks = narrow.stacks.and(&self.dimensions.list[dimension].present);
            narrow.close(self.dimensions);
            if !narrow.is_empty() {
                product = narrow;
                near.retain(|index| self.cover(*index).product.overlaps(&product, self.dimensions));
            }
            if near.is_empty() {
                break;
            }
        }
        (product, near)
    }
}

/// The first segment of `set` that is in the fewest covers.
fn least_covered<'c>(set: &IntervalSet, covers: impl Iterator<Item = &'c IntervalSet>) -> Option<u32> {
    let hull = set.hull();
    let mut changes: Vec<(u32, i32)> = Vec::new();
    for (low, high) in covers.flat_map(|cover| cover.reaching_into(hull)) {
        changes.push((*low, 1));
        changes.push((high.saturating_add(1), -1));
    }
    // The starts of the set's intervals are candidates too.
    changes.extend(set.intervals().iter().map(|(low, _)| (*low, 0)));
    // The sets are sorted, so the stable sort merges them.
    changes.sort_by_key(|(place, _)| *place);
    let mut count = 0;
    let mut best: Option<(i32, u32)> = None;
    for same in changes.chunk_by(|a, b| a.0 == b.0) {
        count += same.iter().map(|(_, change)| change).sum::<i32>();
        let place = same[0].0;
        if best.is_none_or(|(least, _)| count < least) && set.has(place) {
            best = Some((count, place));
        }
    }
    best.map(|(_, place)| place)
}

#[cfg(test)]
mod tests {
    use packet::Field;
    use program::{Match, RangeSet};

    use super::*;

    #[test]
    fn a_spent_space_decides_nothing_more() {
        let port = |port| Match::default().with(Field::DstPort, RangeSet::single(port));
        let matches = [port(80), port(443)];
        let space = Space { dimensions: Dimensions::of(matches.iter()), left: Cell::new(3), deadline: None };
        let all = space.dimensions.everything();
        let products: Vec<Product> =
            matches.iter().flat_map(|matches| space.dimensions.products(matches)).collect();
        let covers: Vec<Cover<'_>> =
            (0..).zip(&products).map(|(rule, product)| Cover { rule, product }).collect();
        let found = space.free_of(&all, &covers, &mut BTreeSet::new());
        assert!(matches!(found, Free::NotDecided(Undecided::AllQuestions)), "{found:?}");
        assert!(space.is_spent());
        // What one cover takes whole needs no search.
        assert!(matches!(space.free_of(&products[0], &covers, &mut BTreeSet::new()), Free::None));
    }

    /// A question of more comparisons than are made between two looks at the clock: is all of a long list of
    /// ports in twelve covers with the same list?
    fn ask_long_question(time: Duration) -> (Free, u64) {
        let every_other = RangeSet::of((0..1 << 15).map(|index| (2 * index, 2 * index)).collect());
        let ports = Match::default().with(Field::DstPort, every_other);
        let with_ttl = |ttl| ports.clone().with(Field::Ttl, RangeSet::single(ttl));
        let matches: Vec<Match> = std::iter::once(ports.clone()).chain((0..12).map(with_ttl)).collect();
        let space = Space::new(Dimensions::of(matches.iter()), MAX_COMPARISONS_IN_ALL).within(Some(time));
        let products: Vec<Product> =
            matches.iter().flat_map(|matches| space.dimensions.products(matches)).collect();
        let covers: Vec<Cover<'_>> =
            (0..).zip(&products[1..]).map(|(rule, product)| Cover { rule, product }).collect();
        let found = space.free_of(&products[0], &covers, &mut BTreeSet::new());
        (found, MAX_COMPARISONS_IN_ALL - space.comparisons_left())
    }

    #[test]
    fn a_question_ends_at_the_deadline_only() {
        let (found, spent) = ask_long_question(Duration::from_secs(3600));
        assert!(matches!(found, Free::Product(_)), "{found:?}");
        assert!(spent > 2 * COMPARISONS_PER_CLOCK_READ, "{spent}");
        let (found, _) = ask_long_question(Duration::ZERO);
        assert!(matches!(found, Free::NotDecided(Undecided::Time(Duration::ZERO))), "{found:?}");
    }

    /// How many comparisons it takes to find out that three lists of ports and a port alone have nothing in
    /// common, asked of the first or of the last of them.
    fn comparisons(length: u32, of_last: bool) -> u64 {
        let ports = |ports| Match::default().with(Field::DstPort, ports);
        let every_fifth =
            |from: u32| RangeSet::of((0..length).map(|index| 5 * index + from).map(|at| (at, at)).collect());
        let matches = [every_fifth(0), every_fifth(1), every_fifth(2), RangeSet::single(8)].map(ports);
        let left = Cell::new(MAX_COMPARISONS_IN_ALL);
        let space = Space { dimensions: Dimensions::of(matches.iter()), left, deadline: None };
        let mut products: Vec<Product> =
            matches.iter().flat_map(|matches| space.dimensions.products(matches)).collect();
        let target = products.remove(if of_last { 3 } else { 0 });
        let covers: Vec<Cover<'_>> =
            (0..).zip(&products).map(|(rule, product)| Cover { rule, product }).collect();
        assert!(matches!(space.free_of(&target, &covers, &mut BTreeSet::new()), Free::Product(_)));
        MAX_COMPARISONS_IN_ALL - space.left.get()
    }

    #[test]
    fn what_long_lists_take_is_counted_where_they_are_gone_through() {
        // Lists that meet nowhere are read to their ends to find that out.
        let (short, long) = (comparisons(1_000, false), comparisons(10_000, false));
        assert!(short >= 2 * 2 * 1_000 / 8, "{short}");
        assert!((9 * short..11 * short).contains(&long), "{short} for 1,000 values, {long} for 10,000");
        // Of a list only the part that another one reaches.
        let (short, long) = (comparisons(1_000, true), comparisons(10_000, true));
        assert!(short == long && long < 10, "{short} for 1,000 values, {long} for 10,000");
    }
}
