//! The packets of a match as products.

use std::collections::BTreeMap;

use packet::stack::Coordinate;
use program::{Macs, MaskedMac, Match};

use crate::conditions::{Condition, conditions};
use crate::dimensions::Dimensions;
use crate::interval_set::{Interval, IntervalSet};
use crate::product::Product;
use crate::stack_set;

/// The most products for one match; lists of MAC addresses whose masks neither include nor exclude each other
/// may need more. Such a match is then a single rough product, and questions about it may remain undecided.
pub const MAX_PRODUCTS: usize = 512;
/// The longest list of such addresses that is attempted.
const MAX_CROSSED_MACS: usize = 8192;

impl Dimensions {
    /// Every packet.
    pub(super) fn everything(&self) -> Product {
        let mut product = Product {
            stacks: *stack_set::ANY,
            sets: self.list.iter().map(|dimension| dimension.all.clone()).collect(),
            is_rough: false,
            intervals: 0,
        };
        product.close(self);
        product
    }

    /// The packets of a match, as disjoint products: one, unless MAC addresses need several; or one rough
    /// product.
    pub(super) fn products(&self, matches: &Match) -> Vec<Product> {
        let mut product = self.everything();
        let mut lists = Vec::new();
        for condition in conditions(matches) {
            match condition {
                Condition::Only(stacks) => product.stacks = product.stacks.and(&stacks),
                Condition::Ranges(field, ranges) => {
                    let Some(index) = self.position(field, 0) else { continue };
                    product.sets[index] = product.sets[index].and(&self.list[index].set(&ranges));
                }
                Condition::Macs(field, macs) => lists.push((field, macs)),
            }
        }
        product.close(self);
        let mut products = vec![product.clone()];
        for (field, macs) in lists {
            match self.with_macs(&products, field, macs) {
                Some(parts) => products = parts,
                None => products = vec![Product { is_rough: true, ..product.clone() }],
            }
        }
        products.retain(|product| !product.is_empty());
        products
    }

    /// The parts of some products with these addresses; `None` if there are too many.
    fn with_macs(&self, products: &[Product], field: Coordinate, macs: &Macs) -> Option<Vec<Product>> {
        let (Some(layout), Some(first)) = (self.layout(field), self.position(field, 0)) else {
            // Every list contains all addresses or none.
            let is_any = !macs.any_of.is_empty() && macs.none_of.is_empty();
            return Some(if is_any { products.to_vec() } else { Vec::new() });
        };
        let dimensions = first..first + layout.parts.len();
        if dimensions.len() > 1 && macs.any_of.len() + macs.none_of.len() > MAX_CROSSED_MACS {
            return None;
        }
        let of = |mac: &MaskedMac| -> Vec<IntervalSet> {
            let intervals = layout.intervals(mac);
            let set = |(dimension, (low, high)): (usize, &(u64, u64))| {
                self.list[dimension].set(&[(u128::from(*low), u128::from(*high))])
            };
            dimensions.clone().zip(&intervals).map(set).collect()
        };
        let boxes = |macs: &[MaskedMac]| {
            let mut boxes: Vec<Vec<IntervalSet>> = macs.iter().map(of).collect();
            merge(&mut boxes, dimensions.len());
            boxes
        };
        let put = |product: &Product, sets: &[IntervalSet]| {
            let mut product = product.clone();
            for (dimension, set) in dimensions.clone().zip(sets) {
                product.sets[dimension] = product.sets[dimension].and(set);
            }
            product.close(self);
            product
        };
        let mut wanted: Vec<Product> = Vec::new();
        for sets in boxes(&macs.any_of) {
            let mut parts: Vec<Product> = products.iter().map(|product| put(product, &sets)).collect();
            // Masks may overlap; the products must not.
            for earlier in &wanted {
                parts = self.without(&parts, earlier)?;
            }
            wanted.extend(parts.into_iter().filter(|part| !part.is_empty()));
            if wanted.len() > MAX_PRODUCTS {
                return None;
            }
        }
        for sets in boxes(&macs.none_of) {
            wanted = self.without(&wanted, &put(&self.everything(), &sets))?;
        }
        Some(wanted)
    }

    /// Returns the products without another; `None` if there are too many.
    fn without(&self, products: &[Product], hole: &Product) -> Option<Vec<Product>> {
        let mut left = Vec::new();
        for product in products {
            left.extend(product.minus(hole, self));
            if left.len() > MAX_PRODUCTS {
                return None;
            }
        }
        Some(left)
    }
}

/// Joins boxes that differ in one dimension only, last dimension first, until none is left; what lists of
/// addresses with the same mask become is then one part_sets.
fn merge(boxes: &mut Vec<Vec<IntervalSet>>, dimensions: usize) {
    for dimension in (0..dimensions).rev() {
        let mut joined: BTreeMap<Vec<Vec<Interval>>, Vec<Interval>> = BTreeMap::new();
        for part_sets in boxes.iter() {
            let others = part_sets.iter().enumerate().filter(|(index, _)| *index != dimension);
            let key = others.map(|(_, set)| set.intervals().to_vec()).collect();
            joined.entry(key).or_default().extend(part_sets[dimension].intervals());
        }
        let rebuilt = joined.into_iter().map(|(others, mut own)| {
            own.sort_unstable();
            let mut sets: Vec<IntervalSet> = others.into_iter().map(IntervalSet::of).collect();
            sets.insert(dimension, IntervalSet::of(own));
            sets
        });
        *boxes = rebuilt.collect();
    }
}
