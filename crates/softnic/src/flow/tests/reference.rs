//! The whole table against a linear reference: every answer to an insert, every lookup.

use packet::FlowKey;
use proptest::prelude::*;

use super::condition::{Condition, condition, key};
use crate::flow::*;

#[derive(Clone, Debug)]
struct TestRule {
    rule: FlowRule,
    conditions: Vec<Condition>,
}

/// The reference: every rule of the port, one after the other. Answers verdict and sniffers.
fn linear(rules: &[TestRule], port: u8, key: &FlowKey) -> (Vec<u32>, Vec<u32>) {
    let matches = |test: &&TestRule| {
        let rule = &test.rule;
        rule.port == port
            && (rule.kind != FlowKind::MulticastDefault || key.dst_mac.is_multicast())
            && (rule.kind == FlowKind::Sniffer || test.conditions.iter().all(|c| c.holds(key)))
    };
    let mut found: Vec<&TestRule> = rules.iter().filter(matches).collect();
    found.sort_by_key(|test| (test.rule.kind, test.rule.priority, !test.rule.dont_trap, test.rule.order));
    let level = |test: &TestRule| (test.rule.kind, test.rule.priority);
    let trap = found.iter().copied().find(|t| t.rule.kind != FlowKind::Sniffer && !t.rule.dont_trap);
    let (mut verdict, mut sniffers, mut targets) = (vec![], vec![], vec![]);
    for test in found {
        let rule = &test.rule;
        if rule.kind == FlowKind::Sniffer {
            sniffers.push((rule.order, rule.id.0));
        } else if rule.dont_trap {
            if trap.is_none_or(|trap| level(test) <= level(trap)) {
                verdict.push(rule.id.0);
            }
        } else if trap.is_some_and(|trap| level(test) == level(trap) && same_match(test, trap))
            && !targets.contains(&rule.actions.target)
        {
            targets.push(rule.actions.target);
            verdict.push(rule.id.0);
        }
    }
    sniffers.sort_unstable();
    (verdict, sniffers.into_iter().map(|(_, id)| id).collect())
}

/// Equal matches are equal images; whether images are right is what the rest of the test establishes.
fn same_match(a: &TestRule, b: &TestRule) -> bool {
    // A multicast default asks for a multicast address besides, a sniffer for nothing.
    let image = |test: &TestRule| {
        let mut matcher = test.rule.matcher;
        match test.rule.kind {
            FlowKind::MulticastDefault => *matcher.dst_mac([1, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]),
            FlowKind::Sniffer => Matcher::any(),
            FlowKind::Normal | FlowKind::AllDefault => matcher,
        }
    };
    image(a) == image(b)
}

/// What inserting a rule has to answer.
fn verdict_on(rules: &[TestRule], test: &TestRule) -> Result<(), FlowError> {
    let rule = &test.rule;
    if rule.dont_trap && matches!(rule.kind, FlowKind::MulticastDefault | FlowKind::AllDefault) {
        return Err(FlowError::DontTrapKind);
    }
    let mut conditions = test.conditions.clone();
    match rule.kind {
        FlowKind::Sniffer => conditions.clear(),
        FlowKind::MulticastDefault => {
            conditions.push(Condition::DstMac([1, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]));
        }
        FlowKind::Normal | FlowKind::AllDefault => {}
    }
    let pairs = conditions.iter().flat_map(|a| conditions.iter().map(move |b| (a, b)));
    if pairs.into_iter().any(|(a, b)| a.contradicts(*b)) {
        return Err(FlowError::Contradiction);
    }
    let on_port = rules.iter().filter(|other| other.rule.port == rule.port);
    let full = |what, limit| Err(FlowError::Full { what, limit });
    let sniffs = |test: &TestRule| test.rule.kind == FlowKind::Sniffer;
    if sniffs(test) {
        let many = on_port.filter(|other| sniffs(other)).count() >= MAX_SNIFFERS;
        return if many { full("sniffers on this port", MAX_SNIFFERS) } else { Ok(()) };
    }
    let passes = |test: &TestRule| test.rule.dont_trap && !sniffs(test);
    if passes(test) {
        let many = on_port.filter(|other| passes(other)).count() >= MAX_DONT_TRAP;
        return if many { full("DONT_TRAP flows on this port", MAX_DONT_TRAP) } else { Ok(()) };
    }
    let level = |test: &TestRule| (test.rule.kind, test.rule.priority);
    let group: Vec<_> = on_port
        .filter(|other| {
            !passes(other) && !sniffs(other) && level(other) == level(test) && same_match(other, test)
        })
        .collect();
    let conflicts = |other: &&&TestRule| other.rule.actions.drop != rule.actions.drop;
    if let Some(other) = group.iter().filter(conflicts).min_by_key(|other| other.rule.order) {
        return Err(FlowError::Conflict(other.rule.id));
    }
    if group.len() >= MAX_REPLICAS {
        return full("flows with this match and priority", MAX_REPLICAS);
    }
    Ok(())
}

#[derive(Clone, Debug)]
enum Step {
    Insert {
        rule: TestRule,
        old: bool,
    },
    Remove(prop::sample::Index),
    Lookup(u8, FlowKey),
    /// Of a frame that meets the conditions of a rule.
    LookupFor(prop::sample::Index, FlowKey),
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        8 => Just(FlowKind::Normal),
        1 => Just(FlowKind::MulticastDefault),
        1 => Just(FlowKind::AllDefault),
        1 => Just(FlowKind::Sniffer),
    ];
    let conditions = prop::collection::vec(condition(), 0..4);
    let ways = (prop::bool::weighted(0.2), prop::bool::weighted(0.2));
    let rule = (kind, 1u8..3, 0u16..4, ways, conditions, 0u32..3).prop_map(
        |(kind, port, priority, (dont_trap, drop), conditions, target)| {
            let mut matcher = Matcher::any();
            conditions.iter().for_each(|condition| condition.write(&mut matcher));
            let actions = Actions { tag: None, drop, counter: None, target: QpSlot(target) };
            let rule = FlowRule {
                id: FlowId(0),
                kind,
                port,
                egress: false,
                priority,
                dont_trap,
                order: 0,
                matcher,
                tunnel: None,
                actions,
            };
            TestRule { rule, conditions }
        },
    );
    prop_oneof![
        3 => (rule, any::<bool>()).prop_map(|(rule, old)| Step::Insert { rule, old }),
        1 => any::<prop::sample::Index>().prop_map(Step::Remove),
        3 => (1u8..3, key()).prop_map(|(port, key)| Step::Lookup(port, key)),
        3 => (any::<prop::sample::Index>(), key()).prop_map(|(rule, key)| Step::LookupFor(rule, key)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_table_agrees_with_the_linear_reference(steps in prop::collection::vec(step(), 1..120)) {
        let mut table = FlowTable::default();
        let mut rules: Vec<TestRule> = Vec::new();
        let mut matches = Matches::new();
        for (number, step) in steps.into_iter().enumerate() {
            let step = match step {
                Step::LookupFor(_, key) if rules.is_empty() => Step::Lookup(1, key),
                Step::LookupFor(index, key) => {
                    let test = index.get(&rules);
                    let key = test.conditions.iter().fold(key, |key, condition| condition.met_by(key));
                    Step::Lookup(test.rule.port, key)
                }
                step => step,
            };
            match step {
                Step::Insert { rule: mut test, old } => {
                    test.rule.id = FlowId(number as u32);
                    // Age usually grows with insertion; a rule older than those present must be placed right as well.
                    test.rule.order = if old { 10_000 - number as u64 } else { 10_000 + number as u64 };
                    let expected = verdict_on(&rules, &test);
                    prop_assert_eq!(table.insert(test.rule.clone()), expected);
                    if expected.is_ok() {
                        rules.push(test);
                    }
                }
                Step::Remove(index) if !rules.is_empty() => {
                    let gone = rules.swap_remove(index.index(rules.len()));
                    prop_assert!(table.remove(gone.rule.id));
                    prop_assert!(!table.remove(gone.rule.id));
                }
                Step::Remove(_) | Step::LookupFor(..) => {}
                Step::Lookup(port, key) => {
                    table.lookup(port, &key, TunnelKey::default, &mut matches);
                    let (sniffers, verdict): (Vec<_>, Vec<_>) =
                        matches.as_slice().iter().partition(|hit| hit.kind == FlowKind::Sniffer);
                    let sniffers_are_last = matches.as_slice().ends_with(&sniffers);
                    prop_assert!(sniffers_are_last);
                    let ids = |hits: Vec<FlowHit>| hits.iter().map(|hit| hit.flow.0).collect::<Vec<_>>();
                    let found = (ids(verdict), ids(sniffers));
                    prop_assert_eq!(found, linear(&rules, port, &key));
                }
            }
            prop_assert_eq!(table.len(), rules.len());
        }
    }
}
