//! The steps by which the flows of a policy are reduced to those that a device has room for, cheapest first.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::graph::{Graph, ItemSet, Items};
use super::{Choice, FlowPrice, Room};
use crate::fit::mask_key::{MAX_BITS, MaskKey, splittable};
use crate::mask_index::ByMask;
use crate::specs::Reading;

/// How often flows are looked for that have room in the end.
const MAX_REFILLS: usize = 4;

/// Flows of one mask.
#[derive(Clone)]
pub(super) struct MaskClass {
    key: MaskKey,
    bits: u32,
    /// The classes into which these flows can be split, with the number of bits, fewest first.
    finer: Vec<(u32, u32)>,
    /// The place in `finer` from which on a class may be left.
    next: usize,
    /// The chosen items of the class.
    members: Vec<usize>,
    /// The flows of these.
    flows: usize,
    /// Whether flows without a choice have the mask, so that it costs nothing.
    is_free: bool,
}

impl MaskClass {
    /// The masks of all items.
    pub(super) fn all(items: &Items, reading: Reading) -> Vec<Self> {
        let mut places: ByMask<MaskKey, usize> = ByMask::default();
        let mut classes: Vec<Self> = Vec::new();
        for (item, found) in items.list.iter().enumerate() {
            let key = found.key;
            let place = *places.entry(key).or_insert_with(|| {
                let is_free = items.fixed_masks.contains(&key);
                classes.push(Self {
                    key,
                    bits: key.bits(),
                    finer: Vec::new(),
                    next: 0,
                    members: Vec::new(),
                    flows: 0,
                    is_free,
                });
                classes.len() - 1
            });
            classes[place].members.push(item);
            classes[place].flows += 1;
        }
        link(&mut classes, reading);
        classes
    }

    fn is_there(&self) -> bool {
        self.is_free || !self.members.is_empty()
    }
}

/// Finds for each class those into which it can be split.
fn link(classes: &mut [MaskClass], reading: Reading) {
    let splittable = splittable();
    let mut families: ByMask<Vec<u64>, Vec<u32>> = ByMask::default();
    for (place, class) in classes.iter().enumerate() {
        families.entry(class.key.family(&splittable, reading)).or_default().push(place as u32);
    }
    for family in families.into_values() {
        for one in &family {
            let own = &classes[*one as usize];
            let is_finer = |other: &&u32| {
                let other = &classes[**other as usize];
                let more = other.bits.saturating_sub(own.bits);
                let is_subset =
                    || own.key.mask.iter().zip(&other.key.mask).all(|(own, other)| own & !other == 0);
                (1..=MAX_BITS).contains(&more) && is_subset()
            };
            let finer = family.iter().filter(is_finer);
            let mut finer: Vec<(u32, u32)> =
                finer.map(|other| (classes[*other as usize].bits - own.bits, *other)).collect();
            finer.sort_unstable();
            classes[*one as usize].finer = finer;
        }
    }
}

/// A step that saves a mask.
#[derive(Clone, Copy)]
enum Step {
    /// The flows are split into those of another class.
    Split { into: usize, bits: u32 },
    /// The flows are left to workers.
    Leave,
}

/// The choice so far: at first all flows.
pub(super) struct Reduction<'r> {
    items: &'r Items,
    graph: &'r Graph,
    classes: Vec<MaskClass>,
    price: FlowPrice,
    chosen: ItemSet,
    pinned: ItemSet,
    /// The class of each item, and the flows into which it is split.
    class_of: Vec<usize>,
    pieces: Vec<usize>,
    masks: usize,
    flows: usize,
    /// The cheapest step of each class and its cost; `None`: not known.
    steps: Vec<Option<(f64, Option<Step>)>>,
}

impl<'r> Reduction<'r> {
    pub(super) fn new(items: &'r Items, graph: &'r Graph, classes: Vec<MaskClass>, price: FlowPrice) -> Self {
        let count = items.list.len();
        let (mut chosen, mut pinned) = (ItemSet::empty(count), ItemSet::empty(count));
        (0..count).for_each(|item| chosen.add(item));
        // An item before a pinned one is pinned.
        for item in (0..count).rev() {
            if items.list[item].is_pinned || graph.after[item].meets(&pinned) {
                pinned.add(item);
            }
        }
        let mut class_of = vec![0; count];
        for (place, class) in classes.iter().enumerate() {
            class.members.iter().for_each(|item| class_of[*item] = place);
        }
        let masks = items.fixed_masks.len() + classes.iter().filter(|class| !class.is_free).count();
        let (flows, steps) = (count + items.fixed_flows(), vec![None; classes.len()]);
        let pieces = vec![1; count];
        Self { items, graph, classes, price, chosen, pinned, class_of, pieces, masks, flows, steps }
    }

    /// Reduces the flows until they fit; `None`: they cannot.
    pub(super) fn choose(mut self, room: Room) -> Option<Choice> {
        let count = self.items.list.len();
        let mut deep = ItemSet::empty(count);
        for item in (0..count).filter(|item| self.items.list[*item].rank >= room.ranks) {
            let after = &self.graph.after[item];
            if !after.meets(&self.pinned) {
                deep.add_all(after);
            }
        }
        self.leave(&deep);
        while self.masks > room.masks {
            let (class, step) = self.cheapest_step()?;
            self.take(class, step);
        }
        self.leave_flows(room.flows)?;
        self.refill(room, &deep);
        let into =
            (0..count).map(|item| self.chosen.has(item).then(|| self.classes[self.class_of[item]].key.mask));
        let value = self.value(&self.chosen) - self.price.install * self.flows as f64;
        Some(Choice { into: into.collect(), value })
    }

    fn value(&self, set: &ItemSet) -> f64 {
        set.items().map(|item| self.items.list[item].value).sum()
    }

    fn cheapest_step(&mut self) -> Option<(usize, Step)> {
        let mut best: Option<(f64, usize, Step)> = None;
        for class in 0..self.classes.len() {
            if self.classes[class].is_free || self.classes[class].members.is_empty() {
                continue;
            }
            let known = self.steps[class];
            let (cost, step) = known.unwrap_or_else(|| self.step(class));
            self.steps[class] = Some((cost, step));
            let Some(step) = step else { continue };
            if best.is_none_or(|(least, ..)| cost < least) {
                best = Some((cost, class, step));
            }
        }
        best.map(|(_, class, step)| (class, step))
    }

    /// The cheapest step for a class.
    fn step(&mut self, class: usize) -> (f64, Option<Step>) {
        let found = self.nearest(class);
        let own = &self.classes[class];
        let split = found.map(|(bits, into)| {
            let more = own.flows.saturating_mul((1 << bits) - 1);
            (self.price.sum() * more as f64, Some(Step::Split { into, bits }))
        });
        let left = self.left_with(own.members.iter().copied());
        let leave = (!left.meets(&self.pinned)).then(|| {
            let saved: usize = left.items().map(|item| self.pieces[item]).sum();
            (self.value(&left) - self.price.sum() * saved as f64, Some(Step::Leave))
        });
        let steps = leave.into_iter().chain(split);
        let cheaper = |one: (f64, Option<Step>), other: (f64, Option<Step>)| {
            if other.0 < one.0 { other } else { one }
        };
        steps.reduce(cheaper).unwrap_or((f64::INFINITY, None))
    }

    /// The class into which the flows of a class are split by the fewest bits.
    fn nearest(&mut self, class: usize) -> Option<(u32, usize)> {
        let own = &self.classes[class];
        let found =
            own.finer.iter().skip(own.next).position(|(_, other)| self.classes[*other as usize].is_there());
        let next = found.map_or(own.finer.len(), |place| own.next + place);
        let found = own.finer.get(next).map(|(bits, other)| (*bits, *other as usize));
        self.classes[class].next = next;
        found
    }

    /// The chosen items that are left to workers together with these.
    fn left_with(&self, items: impl Iterator<Item = usize>) -> ItemSet {
        let mut left = ItemSet::empty(self.items.list.len());
        items.for_each(|item| left.add_all(&self.graph.after[item]));
        left.keep(&self.chosen);
        left
    }

    fn take(&mut self, class: usize, step: Step) {
        match step {
            Step::Leave => {
                let left = self.left_with(self.classes[class].members.iter().copied());
                self.leave(&left);
            }
            Step::Split { into, bits } => {
                let members = std::mem::take(&mut self.classes[class].members);
                let flows = std::mem::take(&mut self.classes[class].flows);
                let split = flows.saturating_mul(1 << bits);
                for item in &members {
                    self.class_of[*item] = into;
                    self.pieces[*item] = self.pieces[*item].saturating_mul(1 << bits);
                }
                self.flows += split - flows;
                self.classes[into].flows += split;
                self.classes[into].members.extend(members);
                self.masks -= 1;
                self.steps[into] = None;
                self.forget_splits_into(class);
            }
        }
    }

    /// The steps of classes that would be split into this one, which is gone.
    fn forget_splits_into(&mut self, class: usize) {
        for step in &mut self.steps {
            if matches!(step, Some((_, Some(Step::Split { into, .. }))) if *into == class) {
                *step = None;
            }
        }
    }

    /// Leaves items to workers; returns those that were chosen.
    fn take_out(&mut self, left: &ItemSet) -> Vec<usize> {
        let open: Vec<usize> = left.items().filter(|item| self.chosen.has(*item)).collect();
        for item in open.iter().copied() {
            self.chosen.remove(item);
            let class = self.class_of[item];
            let own = &mut self.classes[class];
            own.members.retain(|member| *member != item);
            own.flows -= self.pieces[item];
            self.flows -= self.pieces[item];
            self.steps[class] = None;
            if own.members.is_empty() && !own.is_free {
                self.masks -= 1;
                self.forget_splits_into(class);
            }
        }
        open
    }

    /// Leaves items to workers while there are too many masks.
    fn leave(&mut self, left: &ItemSet) {
        let mut open = self.take_out(left);
        // It has become cheaper to leave the items before these.
        let mut seen = left.clone();
        while let Some(item) = open.pop() {
            for before in self.graph.before[item].iter().map(|before| *before as usize) {
                if !seen.has(before) {
                    seen.add(before);
                    open.push(before);
                    self.steps[self.class_of[before]] = None;
                }
            }
        }
    }

    /// Leaves single items until there are few enough flows; `None`: too many have to be chosen.
    fn leave_flows(&mut self, most: usize) -> Option<()> {
        if self.flows <= most {
            return Some(());
        }
        let count = self.items.list.len();
        let open = (0..count).filter(|item| self.chosen.has(*item) && !self.pinned.has(*item));
        let mut heap: BinaryHeap<Reverse<Cost>> = open
            .collect::<Vec<_>>()
            .into_iter()
            .map(|item| Reverse(self.cost(item, self.flows - most)))
            .collect();
        while self.flows > most {
            let Reverse(Cost { item, .. }) = heap.pop()?;
            if !self.chosen.has(item) {
                continue;
            }
            // Others may have been left since.
            let cost = self.cost(item, self.flows - most);
            if heap.peek().is_some_and(|Reverse(next)| *next < cost) {
                heap.push(Reverse(cost));
                continue;
            }
            let left = self.left_with([item].into_iter());
            // No step of masks follows, for which others would have become cheaper.
            self.take_out(&left);
        }
        Some(())
    }

    /// The value that is lost for each flow that leaving an item saves, of those that have to be saved.
    fn cost(&self, item: usize, excess: usize) -> Cost {
        let left = self.left_with([item].into_iter());
        let flows: usize = left.items().map(|item| self.pieces[item]).sum();
        Cost { per_flow: self.value(&left) / flows.clamp(1, excess) as f64, item }
    }

    /// Chooses items again for which there is room.
    fn refill(&mut self, room: Room, deep: &ItemSet) {
        let count = self.items.list.len();
        let mut left: Vec<usize> =
            (0..count).filter(|item| !self.chosen.has(*item) && !deep.has(*item)).collect();
        let value = |item: &usize| self.items.list[*item].value;
        left.sort_by(|one, other| value(other).total_cmp(&value(one)));
        for _ in 0..MAX_REFILLS {
            let before = left.len();
            left.retain(|item| !self.refill_item(*item, room));
            if left.len() == before {
                break;
            }
        }
    }

    /// Whether an item has room, and is chosen.
    fn refill_item(&mut self, item: usize, room: Room) -> bool {
        if !self.graph.before[item].iter().all(|before| self.chosen.has(*before as usize)) {
            return false;
        }
        let places = self.classes.iter().position(|class| class.key == self.items.list[item].key);
        let Some(own) = places else { return false };
        let is_there = |class: usize| self.classes[class].is_there();
        let finer = self.classes[own].finer.iter().map(|(bits, class)| (*bits, *class as usize));
        let own_class = (is_there(own) || self.masks < room.masks).then_some((0, own));
        let found = own_class.or_else(|| finer.into_iter().find(|(_, class)| is_there(*class)));
        let Some((bits, class)) = found else { return false };
        let pieces = 1usize << bits;
        let splitting = self.price.install * (pieces - 1) as f64;
        if self.flows + pieces > room.flows || self.items.list[item].value < splitting {
            return false;
        }
        self.masks += usize::from(!is_there(class));
        self.flows += pieces;
        self.chosen.add(item);
        self.class_of[item] = class;
        self.pieces[item] = pieces;
        self.classes[class].flows += pieces;
        self.classes[class].members.push(item);
        true
    }
}

/// The cost of leaving an item, and all that are left with it.
#[derive(Clone, Copy, PartialEq)]
struct Cost {
    per_flow: f64,
    item: usize,
}

impl Eq for Cost {}

impl Ord for Cost {
    fn cmp(&self, other: &Self) -> Ordering {
        // Of equal costs the later item is left first.
        self.per_flow.total_cmp(&other.per_flow).then(other.item.cmp(&self.item))
    }
}

impl PartialOrd for Cost {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
