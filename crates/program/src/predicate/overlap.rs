//! Whether a predicate and a cube may share packets, by the outer headers.

use packet::Layers;
use packet::cube::{Cube, DST_HIGH, DST_LOW, HAS_IPV4, HAS_IPV6, HAS_TCP, HAS_UDP, SRC_HIGH, SRC_LOW, Slot};

use super::{Predicate, Test};
use crate::question::{Value, alignment};

/// The layers that a cube has bits for.
const LAYERS: [(Layers, Slot); 4] =
    [(Layers::IPV4, HAS_IPV4), (Layers::IPV6, HAS_IPV6), (Layers::TCP, HAS_TCP), (Layers::UDP, HAS_UDP)];

impl Predicate {
    /// Whether a packet of a closed cube may match. `false` is certain: some test of the predicate excludes
    /// all packets of the cube.
    pub(crate) fn may_match_in(&self, cube: &Cube) -> bool {
        self.outer.iter().all(|test| may_pass(test, cube))
    }
}

/// Whether a packet of the cube may pass a test.
fn may_pass(test: &Test, cube: &Cube) -> bool {
    let known = |is_it: &dyn Fn(Slot) -> bool| -> Layers {
        LAYERS.iter().filter(|(_, slot)| is_it(*slot)).map(|(layer, _)| *layer).collect()
    };
    match test {
        Test::Has(layers) => !known(&|slot| cube.lacks(slot)).intersects(*layers),
        Test::HasAny(layers) => !known(&|slot| cube.lacks(slot)).contains(*layers),
        Test::Lacks(layers) => !known(&|slot| cube.has(slot)).intersects(*layers),
        _ => {
            let Some((value, ranges)) = test.ranges() else { return true };
            let (low, high) = bounds(value, cube);
            ranges.iter().any(|(from, to)| low <= *to && *from <= high)
        }
    }
}

/// The least and the largest of a cube's values, aligned to the left.
fn bounds(value: Value, cube: &Cube) -> (u128, u128) {
    let (slots, shift): (&[Slot], u32) = match value {
        // An IPv4 address is the upper half of the first word.
        Value::Src => (&[SRC_HIGH, SRC_LOW], 0),
        Value::Dst => (&[DST_HIGH, DST_LOW], 0),
        Value::Field(field) => (field.row().slots, alignment(field)),
    };
    let number = |part: &dyn Fn(Slot) -> u64| {
        slots.iter().fold(0u128, |number, slot| number << slot.bits() | u128::from(part(*slot))) << shift
    };
    let low = number(&|slot| cube.value_of(slot));
    (low, low | !number(&|slot| cube.mask_of(slot)))
}
