//! Few and large products for the packets of a target that are in no cover, so that an exception becomes one
//! `not` and not many small regions around it. As in two-level logic minimization (Espresso: Brayton et al.,
//! 1984): expand around a free packet, repeat until nothing is left, then remove redundant products and join
//! neighbours.
//!
//! Every expanded product is within the target and overlaps no cover, and expansion goes on until the
//! products and the covers contain the whole target; so, unless a limit stops it, the products together are
//! exactly the free packets.

use std::collections::{BTreeSet, HashSet};

use packet::stack::Coordinate;
use packet::{Field, Form};

use crate::dimensions::Dimensions;
use crate::product::Product;
use crate::region;
use crate::search::{Cover, Free, Space};

/// With more products than this, redundant ones are not removed and neighbours not joined.
const MAX_MINIMIZED: usize = 32;

/// The cost of joining two products, in comparisons.
const JOIN_WEIGHT: u64 = 8;

/// The number of products that are wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// The most that are listed; the last may stand for all others.
    pub(super) listed: usize,
    /// The most that are counted.
    pub(super) counted: usize,
}

/// The free packets of a product.
#[derive(Clone, Debug, Default)]
pub(super) struct Expanded {
    /// Products of one match each, which may overlap. If not all packets of one are free, some free ones of
    /// it.
    pub(super) products: Vec<(Product, Option<Product>)>,
    /// The number of products that are not listed.
    pub(super) more: usize,
    /// Whether there may be more.
    pub(super) is_open: bool,
}

impl Expanded {
    pub(super) fn add(&mut self, other: Self) {
        self.products.extend(other.products);
        self.more += other.more;
        self.is_open |= other.is_open;
    }
}

/// The packets of `target` that are in no cover; `first` are some of them.
pub(super) fn regions_of(
    space: &Space,
    target: &Product,
    covers: &[Cover<'_>],
    first: Product,
    wanted: Wanted,
) -> Expanded {
    let near: Vec<Cover<'_>> =
        covers.iter().filter(|cover| cover.product.overlaps(target, &space.dimensions)).copied().collect();
    let mut expanded = Expanded::default();
    let mut products: Vec<Product> = Vec::new();
    let mut next = Free::Product(first);
    while let Free::Product(free) = &next {
        if products.len() >= wanted.counted {
            expanded.is_open = true;
            break;
        }
        products.push(around(&space.dimensions, target, &near, free));
        next = space.free_of(target, &with(&near, &products), &mut BTreeSet::new());
    }
    expanded.is_open |= matches!(next, Free::NotDecided(_));
    let mut products = matches_of(&space.dimensions, &products);
    remove_redundant(space, &mut products);
    join(space, &mut products);
    let sizes = target.sizes();
    products.sort_by(|one, other| target.share(&sizes, other).total_cmp(&target.share(&sizes, one)));
    if products.len() > wanted.listed || expanded.is_open {
        let shown = wanted.listed.saturating_sub(1).min(products.len());
        expanded.more = products.len() - shown;
        products.truncate(shown);
        let rest = parts_with_more(space, target, &with(&near, &products));
        expanded.products.extend(products.into_iter().map(|product| (product, None)));
        expanded.products.extend(rest.into_iter().map(|(part, some)| (part, Some(some))));
    } else {
        expanded.products.extend(products.into_iter().map(|product| (product, None)));
    }
    expanded
}

fn with<'c>(covers: &[Cover<'c>], products: &'c [Product]) -> Vec<Cover<'c>> {
    covers.iter().copied().chain(products.iter().map(|product| Cover { rule: u32::MAX, product })).collect()
}

/// The parts of some products that are one match each, without duplicates.
fn matches_of(dimensions: &Dimensions, products: &[Product]) -> Vec<Product> {
    let mut seen = HashSet::new();
    let parts = products.iter().flat_map(|product| region::parts(dimensions, product));
    parts.filter(|part| seen.insert(part.clone())).collect()
}

/// Joins products whose union is as well expressed as the two.
fn join(space: &Space, products: &mut Vec<Product>) {
    if products.len() > MAX_MINIMIZED {
        return;
    }
    let mut place = 0;
    while let Some(one) = products.get(place) {
        let mut others = (place + 1..products.len()).rev();
        let joined = others.find_map(|other| {
            space.spend(JOIN_WEIGHT * (one.weight() + products[other].weight()));
            let both = (!space.is_spent()).then(|| region::joined(&space.dimensions, one, &products[other]));
            Some((other, both.flatten()?))
        });
        match joined {
            Some((other, both)) => {
                products[place] = both;
                products.remove(other);
            }
            None => place += 1,
        }
    }
}

/// Removes products that the others contain.
fn remove_redundant(space: &Space, products: &mut Vec<Product>) {
    if products.len() > MAX_MINIMIZED {
        return;
    }
    for place in (0..products.len()).rev() {
        let product = products.remove(place);
        let others = with(&[], products);
        let is_redundant = matches!(space.free_of(&product, &others, &mut BTreeSet::new()), Free::None);
        if !is_redundant {
            products.insert(place, product);
        }
    }
}

/// The parts of a product that are one match each and have free packets, with some of those.
fn parts_with_more(space: &Space, target: &Product, taken: &[Cover<'_>]) -> Vec<(Product, Product)> {
    let parts = region::parts(&space.dimensions, target).into_iter();
    let free = parts.filter_map(|part| match space.free_of(&part, taken, &mut BTreeSet::new()) {
        Free::Product(free) => Some((part, free)),
        Free::NotDecided(_) | Free::None => None,
    });
    free.collect()
}

/// A large part of `target` that contains a free packet and overlaps no cover.
fn around(dimensions: &Dimensions, target: &Product, covers: &[Cover<'_>], free: &Product) -> Product {
    // A single stack: then the packet is outside of each cover by one field, or by its stack.
    let free = free.plainest(dimensions);
    let mut wide = target.clone();
    for cover in covers {
        if cover.product.overlaps(&wide, dimensions) {
            keep_out(dimensions, &mut wide, &free, cover.product);
        }
    }
    wide
}

/// Restricts `wide` by the one condition that excludes the cover, keeps `free`, and loses the smallest share.
fn keep_out(dimensions: &Dimensions, wide: &mut Product, free: &Product, cover: &Product) {
    let mut best: Option<(f64, Product)> = None;
    for (index, dimension) in dimensions.list.iter().enumerate() {
        if !dimension.present.contains(&free.stacks) || cover.sets[index].overlaps(&free.sets[index]) {
            continue;
        }
        let mut part = wide.clone();
        part.sets[index] = wide.sets[index].minus(&cover.sets[index]);
        // The condition does not exclude packets of the cover that lack the field.
        let mut lacking = cover.stacks.without(&dimension.present);
        if let Some(other) = other_version(dimension.field).and_then(|field| dimensions.position(field, 0)) {
            lacking = lacking.without(&dimensions.list[other].present);
            if cover.stacks.overlaps(&dimensions.list[other].present) {
                part.sets[other] = wide.sets[other].minus(&cover.sets[other]);
            }
        }
        part.stacks = wide.stacks.and(&region::of_key(dimension.field)).without(&lacking);
        part.close(dimensions);
        let share = part.sets[index].len() as f64 / wide.sets[index].len().max(1) as f64;
        let share = share * f64::from(part.stacks.len()) / f64::from(wide.stacks.len().max(1));
        if !part.is_empty() && best.as_ref().is_none_or(|(most, _)| share > *most) {
            best = Some((share, part));
        }
    }
    let part = best.map(|(_, part)| part).or_else(|| other_stacks(dimensions, wide, free, cover));
    *wide = part.unwrap_or_else(|| free.clone());
}

/// The packets of `wide` with other stacks than a cover, among them the free ones; preferably a named set of
/// stacks.
fn other_stacks(dimensions: &Dimensions, wide: &Product, free: &Product, cover: &Product) -> Option<Product> {
    let named = region::named(&free.stacks, &cover.stacks).map(|(_, kinds)| kinds.and(&wide.stacks));
    let others = wide.stacks.minus(&cover.stacks).find(|part| part.contains(&free.stacks));
    named.or(others).map(|part| wide.within(part, dimensions))
}

/// The corresponding address of the other IP version; both are one key of a match.
fn other_version(coordinate: Coordinate) -> Option<Coordinate> {
    let Coordinate::Field(field, level) = coordinate else { return None };
    let is_other = |other: &Field| *other != field && other.name() == field.name();
    (field.row().form == Form::Address)
        .then(|| Field::all().find(is_other))?
        .map(|other| Coordinate::Field(other, level))
}
