//! The rules of one direction of a policy as products with their actions, and an index of those that may
//! overlap a product. Shadowing and diff both work on it.

use std::collections::{BTreeMap, BTreeSet};

use policy::Policy;
use policy::policy::{Action, Direction, RuleDefinition};
use program::{GroupId, RuleId};

use crate::dimensions::Dimensions;
use crate::product::Product;
use crate::search::{Cover, Free, Space};

/// Whether no later rule sees the packet.
pub(super) const fn is_final(action: Action) -> bool {
    !matches!(action, Action::Copy(_) | Action::Sniff(_))
}

/// The action with the number of its group.
pub(super) fn with_group(action: Action, rule: Option<&RuleDefinition>, group: &GroupOf<'_>) -> Action {
    match action {
        Action::Steer(id) => Action::Steer(group(id, rule)),
        Action::Copy(id) => Action::Copy(group(id, rule)),
        Action::Sniff(id) => Action::Sniff(group(id, rule)),
        Action::Drop | Action::Kernel | Action::Pass => action,
    }
}

/// The group that stands for the group of a rule, or of the default, and for what the rule does otherwise
/// with the packets: actions are compared by it.
pub(super) type GroupOf<'g> = dyn Fn(GroupId, Option<&RuleDefinition>) -> GroupId + 'g;

/// Part of a rule.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) rule: u32,
    pub(super) action: Action,
    pub(super) product: Product,
}

impl Entry {
    pub(super) fn cover(&self) -> Cover<'_> {
        Cover { rule: self.rule, product: &self.product }
    }
}

/// The rules of one direction in order, then the default. Sniff rules are kept apart, because their order has
/// no effect.
pub(super) struct RuleList {
    pub(super) entries: Vec<Entry>,
    pub(super) sniffers: Vec<Entry>,
    index: Index,
}

impl RuleList {
    /// The rules of a direction, with actions of the groups that `group` gives.
    pub(super) fn of(
        dimensions: &Dimensions,
        policy: &Policy,
        direction: Direction,
        group: &GroupOf<'_>,
    ) -> Self {
        let mut entries = Vec::new();
        let mut sniffers = Vec::new();
        for (number, rule) in (0u32..).zip(&policy.rules) {
            let action = with_group(rule.action, Some(rule), group);
            // Sniff rules get both directions; they are reported with the first.
            let is_here = match action {
                Action::Sniff(_) => direction == Direction::Ingress,
                _ => rule.direction == direction,
            };
            if !is_here {
                continue;
            }
            let list = if matches!(action, Action::Sniff(_)) { &mut sniffers } else { &mut entries };
            list.extend(dimensions.products(&rule.matches).into_iter().map(|product| Entry {
                rule: number,
                action,
                product,
            }));
        }
        let default = with_group(default_of(policy, direction), None, group);
        let number = policy.rules.len() as u32;
        entries.push(Entry { rule: number, action: default, product: dimensions.everything() });
        let products: Vec<&Product> = entries.iter().map(|entry| &entry.product).collect();
        Self { index: Index::of(dimensions, &products), entries, sniffers }
    }

    /// The entries that overlap a product, in order.
    pub(super) fn near(&self, space: &Space, product: &Product) -> Vec<&Entry> {
        let near = self.index.near(&space.dimensions, product).into_iter();
        let near = near.filter_map(|number| self.entries.get(number as usize));
        near.filter(|entry| space.overlaps(product, &entry.product)).collect()
    }
}

/// The action for unmatched packets. Packets that the host sends and no rule matches are sent.
pub(super) const fn default_of(policy: &Policy, direction: Direction) -> Action {
    match direction {
        Direction::Ingress => policy.default,
        Direction::Egress => Action::Pass,
    }
}

/// Whether all of `product` is in these entries; `None` if that was not decided.
pub(super) fn is_within(space: &Space, product: &Product, products: &[&Entry]) -> Option<bool> {
    let covers: Vec<Cover<'_>> = products.iter().map(|entry| entry.cover()).collect();
    match space.free_of(product, &covers, &mut BTreeSet::new()) {
        Free::Product(_) => Some(false),
        Free::None => Some(true),
        Free::NotDecided(_) => None,
    }
}

/// The entries of each rule.
pub(super) fn by_rule(entries: &[Entry]) -> BTreeMap<u32, Vec<&Entry>> {
    let mut rules: BTreeMap<u32, Vec<&Entry>> = BTreeMap::new();
    for entry in entries {
        rules.entry(entry.rule).or_default().push(entry);
    }
    rules
}

/// The id of a rule by its number.
pub(super) const fn id(rule: u32) -> RuleId {
    RuleId(rule)
}

/// The number of entries whose furthest end is known together.
const BLOCK: usize = 32;

/// The products of one policy, sorted by their first segment on the dimension that separates most pairs of
/// them. It finds all products that may overlap a given one: those that start behind its end, and blocks that
/// end before its start, are skipped.
struct Index {
    dimension: Option<usize>,
    /// First and last segment on the dimension, and the product's number; sorted.
    entries: Vec<(u32, u32, u32)>,
    /// The last segment of each block.
    reach: Vec<u32>,
}

impl Index {
    fn of(dimensions: &Dimensions, products: &[&Product]) -> Self {
        let sorted = |dimension: usize| {
            let hulls = (0u32..).zip(products).map(|(number, product)| {
                let (low, high) = hull(dimensions, dimension, product);
                (low, high, number)
            });
            let mut entries: Vec<_> = hulls.collect();
            entries.sort_unstable();
            entries
        };
        let best = (0..dimensions.list.len())
            .map(|dimension| (separated(&sorted(dimension)), dimension))
            .max_by_key(|(pairs, _)| *pairs);
        let dimension = best.map(|(_, dimension)| dimension);
        let entries = match dimension {
            Some(dimension) => sorted(dimension),
            None => (0..products.len() as u32).map(|number| (0, 0, number)).collect(),
        };
        let reach = entries.chunks(BLOCK).map(|block| block.iter().map(|entry| entry.1).max().unwrap_or(0));
        Self { dimension, reach: reach.collect(), entries }
    }

    /// The numbers of the products that may overlap this one, sorted.
    fn near(&self, dimensions: &Dimensions, product: &Product) -> Vec<u32> {
        let (low, high) = self.dimension.map_or((0, 0), |dimension| hull(dimensions, dimension, product));
        let mut near = Vec::new();
        for (block, reach) in self.entries.chunks(BLOCK).zip(&self.reach) {
            if block[0].0 > high {
                break;
            }
            if *reach >= low {
                near.extend(
                    block.iter().filter(|entry| entry.0 <= high && low <= entry.1).map(|entry| entry.2),
                );
            }
        }
        near.sort_unstable();
        near
    }
}

/// The hull of a product on a dimension; the whole dimension if some of its packets lack the field.
fn hull(dimensions: &Dimensions, dimension: usize, product: &Product) -> (u32, u32) {
    let of = &dimensions.list[dimension];
    if of.present.contains(&product.stacks) { product.sets[dimension].hull() } else { of.all.hull() }
}

/// The number of pairs that do not overlap on the dimension.
fn separated(entries: &[(u32, u32, u32)]) -> u64 {
    let mut ends: Vec<u32> = entries.iter().map(|entry| entry.1).collect();
    ends.sort_unstable();
    entries.iter().map(|entry| ends.partition_point(|end| *end < entry.0) as u64).sum()
}
