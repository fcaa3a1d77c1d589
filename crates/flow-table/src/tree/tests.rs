//! The trees against every rule in turn: with masks of all kinds, while rules come and go and trees are built
//! anew.

mod classbench;
mod cost;
mod linear;

use packet::Layers;
use packet::cube::{
    DST_HIGH, DST_IPV4, DST_LOW, DST_PORT, PROTOCOL, SRC_HIGH, SRC_IPV4, SRC_LOW, SRC_PORT, Slot,
};
use proptest::prelude::*;

use super::super::key::Matcher;
use super::*;
use linear::Linear;

/// A prefix or an arbitrary mask over one of the addresses or ports; few values, so that rules and frames
/// often meet.
fn narrowing() -> impl Strategy<Value = (Vec<Slot>, u128, u128)> {
    let v4 = prop::sample::select(vec![vec![SRC_IPV4], vec![DST_IPV4]]);
    let v6 = prop::sample::select(vec![vec![SRC_HIGH, SRC_LOW], vec![DST_HIGH, DST_LOW]]);
    let port = prop::sample::select(vec![vec![SRC_PORT], vec![DST_PORT]]);
    let few = || prop::sample::select(vec![0u128, 1, 2, 0x80, 0x0a00_0000, 0x0a00_0001, 0xffff]);
    let prefix = |bits: u32| {
        (0..=bits).prop_map(move |length| {
            let all = u128::MAX >> (128 - bits);
            all & !all.checked_shr(length).unwrap_or(0)
        })
    };
    prop_oneof![
        4 => (v4.clone(), few(), prefix(32)),
        1 => (v4, few(), any::<u32>().prop_map(u128::from)),
        1 => (v6.clone(), few(), prefix(128)),
        1 => (v6, any::<u128>(), any::<u128>()),
        2 => (port, few(), prefix(16)),
        1 => (Just(vec![PROTOCOL]), prop::sample::select(vec![6u128, 17]), Just(0xff)),
    ]
}

fn matcher() -> impl Strategy<Value = Matcher> {
    let layers = prop_oneof![
        4 => Just(Layers::IPV4),
        2 => Just(Layers::IPV6),
        1 => Just(Layers::empty()),
        1 => Just(Layers::UDP),
    ];
    (layers, prop::collection::vec(narrowing(), 0..4)).prop_map(|(layers, fields)| {
        let mut matcher = Matcher::any();
        matcher.require(layers);
        for (slots, value, mask) in fields {
            matcher.field(&slots, value, mask);
        }
        matcher
    })
}

#[derive(Clone, Debug)]
enum Step {
    Add(Matcher, u16),
    /// Many rules at once that differ in one field, so that leaves overflow.
    AddMany(Matcher, u16),
    Remove(prop::sample::Index),
    /// Builds all trees anew.
    Rebuild,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (matcher(), 0u16..4).prop_map(|(matcher, priority)| Step::Add(matcher, priority)),
        2 => (matcher(), 0u16..4).prop_map(|(matcher, priority)| Step::AddMany(matcher, priority)),
        6 => any::<prop::sample::Index>().prop_map(Step::Remove),
        2 => Just(Step::Rebuild),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn the_trees_agree_with_the_linear_reference(
        steps in prop::collection::vec(step(), 1..200),
        noise in prop::collection::vec(any::<[u64; 8]>(), 8),
    ) {
        let mut both = Linear::default();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Add(matcher, priority) => both.add(&matcher, priority),
                Step::AddMany(matcher, priority) => {
                    for port in 0..20 {
                        let mut matcher = matcher;
                        matcher.field(&[SRC_PORT], port, 0xffff);
                        if !matcher.is_contradictory() {
                            both.add(&matcher, priority);
                        }
                    }
                }
                Step::Remove(index) if !both.is_empty() => both.remove(index.index(both.len())),
                Step::Remove(_) => {}
                Step::Rebuild => both.rebuild(),
            }
            if number % 8 == 7 {
                both.check(&noise);
            }
        }
        both.check(&noise);
        while !both.is_empty() {
            both.remove(0);
        }
        both.check(&noise);
        prop_assert_eq!(both.trees.masks(), 0);
    }
}

/// Rules with masks that no bit separates: most are in the tuple space, and all are found.
#[test]
fn masks_without_a_common_bit_overflow_and_are_found() {
    let mut both = Linear::default();
    for number in 0..400u32 {
        let mut matcher = Matcher::any();
        let mask = number.wrapping_mul(0x9e37_79b9) & number.wrapping_mul(0x85eb_ca6b);
        matcher.require(Layers::IPV4).field(&[SRC_IPV4], 0xffff_ffff, mask.into());
        both.add(&matcher, (number % 7) as u16);
    }
    both.check(&[[0; 8], [!0; 8]]);
    both.rebuild();
    assert!(both.trees.families[IPV4].overflow.len() > 0);
    assert!(both.trees.families[IPV4].pool.blocks() < Family::max_blocks(400) * 2);
    both.check(&[[0; 8], [!0; 8]]);
    // Full leaves are split, or their new rules are in the tuple space; no rule of theirs is lost.
    for number in 0..200u32 {
        let mut matcher = Matcher::any();
        let free = 1u32.checked_shl(number).unwrap_or(0) | number.wrapping_mul(0x27d4_eb2f) & 0x0101_0101;
        matcher.require(Layers::IPV4).field(&[SRC_IPV4], 0xffff_ffff, (!free).into());
        both.add(&matcher, (number % 9) as u16);
        both.check(&[[!0; 8]]);
    }
}

/// The rules are too many that no bit separates well: half of them leave the source port open, the others the
/// destination port.
#[test]
fn more_rules_about_either_port_than_16_bits_count_are_built() {
    const RULES: u32 = 40_000;
    let rule = |group: u32, slot: Slot| {
        let mut matcher = Matcher::any();
        matcher.require(Layers::IPV4).field(&[slot], (group % RULES).into(), 0xffff);
        let precedence =
            super::super::shape::Precedence::new(super::super::FlowKind::Normal, 0, group.into());
        (*matcher.value(), *matcher.mask(), Ranked { precedence, group })
    };
    let sources = (0..RULES).map(|group| rule(group, SRC_PORT));
    let rules = sources.chain((RULES..2 * RULES).map(|group| rule(group, DST_PORT))).collect();
    let mut trees = Trees::default();
    trees.families[IPV4] = Family::build(IPV4, rules);
    for (source, destination, group) in
        [(7, 50_000, 7), (50_000, 7, RULES + 7), (39_999, 8, 39_999), (50_000, 39_999, 2 * RULES - 1)]
    {
        let mut image = Matcher::any();
        image.require(Layers::IPV4).field(&[SRC_PORT], source, 0xffff).field(
            &[DST_PORT],
            destination,
            0xffff,
        );
        assert_eq!(trees.search(image.value()).map(|ranked| ranked.group), Some(group));
    }
}

/// Rules about both addresses, and then rules about one: their tree is not left as the first few of them made
/// it.
#[test]
fn a_tree_that_grows_is_built_anew_though_its_family_does_not_grow_much() {
    let mut both = Linear::default();
    let add = |both: &mut Linear, slots: &[Slot], number: u32| {
        let mut matcher = Matcher::any();
        matcher.require(Layers::IPV4);
        for slot in slots {
            let address = number.wrapping_mul(0x9e37_79b9).rotate_left(slot.shift() / 2);
            matcher.field(&[*slot], address.into(), 0xffff_fff0);
        }
        both.add(&matcher, (number % 5) as u16);
    };
    (0..1500).for_each(|number| add(&mut both, &[SRC_IPV4, DST_IPV4], number));
    (0..600).for_each(|number| add(&mut both, &[DST_IPV4], number));
    let family = &both.trees.families[IPV4];
    assert!(family.built < 1700, "the family was built when it had {} rules", family.built);
    let tree = family.trees.iter().find(|tree| tree.class == 1).expect("the rules have a tree of their own");
    assert_eq!(tree.len, 600);
    assert!(tree.built > 350, "it was built when it had {} rules", tree.built);
    both.check(&[[0; 8]]);
    let nodes = both.trees.families[IPV4].pool.bytes();
    // Rules that replace others: the trees are built anew in the nodes and blocks that they have.
    for number in 600..3600 {
        both.remove(1500);
        add(&mut both, &[DST_IPV4], number);
    }
    assert!(both.trees.families[IPV4].pool.bytes() < nodes * 3 / 2);
    both.check(&[[!0; 8]]);
}

/// However the trees came to be, they take a bounded number of blocks.
#[test]
fn replaced_rules_do_not_make_the_trees_grow() {
    let mut both = Linear::default();
    let rule = |number: u32| {
        let mut matcher = Matcher::any();
        matcher.require(Layers::IPV4).field(
            &[DST_IPV4],
            number.wrapping_mul(0x9e37_79b9).into(),
            0xffff_ff00,
        );
        matcher
    };
    (0..1000).for_each(|number| both.add(&rule(number), 0));
    both.rebuild();
    let before = both.trees.families[IPV4].pool.bytes();
    for number in 1000..5000 {
        both.remove(0);
        both.add(&rule(number), 0);
        both.rebuild();
    }
    both.check(&[]);
    assert!(both.trees.families[IPV4].pool.bytes() < 2 * before);
}
