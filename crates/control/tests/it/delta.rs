//! What a change costs: calls to the device, and time.

use std::sync::Arc;
use std::time::Instant;

use crate::support::*;
use control::{FlowChanges, PlanSummary, plan};
use program::{
    Class, ClassId, Decide, Flow, FlowAction, FlowKind, FlowSpec, GroupId, Outcome, Program, QueueId, RuleId,
    SpecChain, Verdict,
};
use verbs::{Ipv4Match, PortMatch};

const RULES: u16 = 10_000;

/// One flow for each rule, for an address and a port; `steer` gives the queue pair of each.
fn large(steer: impl Fn(u16) -> Option<usize>) -> Arc<Program> {
    let mut large = (*program(&[])).clone();
    let default = large.rules.pop().expect("the default");
    for rule in 0..RULES {
        let to = |dst| Ipv4Match { src: 0, dst };
        let ports = |dst_port| PortMatch { src_port: 0, dst_port };
        let specs = vec![
            FlowSpec::Ipv4 { value: to(0x0a00_0000 + u32::from(rule)), mask: to(u32::MAX) },
            FlowSpec::Udp { value: ports(rule), mask: ports(u16::MAX) },
        ];
        let id = RuleId::of(usize::from(rule));
        let class = ClassId::of(usize::from(rule));
        let group = steer(rule);
        let verdict = group.map_or(Verdict::Drop, |group| Verdict::Deliver(GroupId::of(group)));
        large.rules.push(program::Rule {
            name: format!("rule {rule}").into(),
            action: verdict,
            ..default.clone()
        });
        let action =
            group.map_or(FlowAction::Drop, |group| FlowAction::Steer { queue: QueueId::of(group), class });
        let (priority, kind) = (rule % 4, FlowKind::Normal);
        large.flows.push(Flow { rule: id, priority, kind, specs: SpecChain::outer(specs), action });
        let decide = Decide::Exact(Outcome { rule: id, verdict });
        large.classes.push(group.map(|_| Class { rule: id, decide }));
    }
    large.rules.push(default);
    large.flows.sort_by_key(|flow| flow.priority);
    large.priorities_used = 4;
    Arc::new(large)
}

#[test]
fn a_changed_rule_of_ten_thousand_costs_a_few_calls_and_an_unchanged_program_none() {
    let (mut controller, state) = controller(&[1]);
    state.borrow_mut().forgetful = true;
    let mut calls = |steer: &dyn Fn(u16) -> Option<usize>| {
        let before = state.borrow().calls;
        let changes = install(&mut controller, &state, &large(steer), false).expect("it fits").changes;
        (changes, state.borrow().calls - before)
    };
    let all = usize::from(RULES);
    let changes = |installed, removed, kept| FlowChanges { installed, removed, kept };
    assert_eq!(calls(&|_| Some(0)), (changes(all, 0, 0), all + 6));
    assert_eq!(calls(&|_| Some(0)), (changes(0, 0, all), 0));
    // To another queue pair: a flow in, and one out.
    assert_eq!(calls(&|rule| Some(usize::from(rule == 7_000))), (changes(1, 1, all - 1), 2));
    // Dropped instead, with a counter, and no longer: the same.
    assert_eq!(calls(&|rule| (rule != 7_000).then_some(0)), (changes(1, 1, all - 1), 3));
    // Two more for a flow that keeps the counter readable.
    assert_eq!(calls(&|_| Some(0)), (changes(1, 1, all - 1), 4));
    let (changed, made) = calls(&|rule| Some(usize::from(rule % 2 == 0)));
    assert_eq!((changed, made), (changes(all / 2, all / 2, all / 2), all));
}

#[test]
fn a_change_of_all_flows_needs_little_more_room_than_the_larger_program() {
    let limits = limits();
    let first = plan(None, large(|_| Some(0)), &limits).expect("a good plan");
    let change = plan(Some(first.placed()), large(|_| Some(1)), &limits).expect("a good plan");
    let there = PlanSummary::of(&change, Some(&first.placed()), 1);
    let back = plan(Some(change.placed()), large(|_| Some(0)), &limits).expect("a good plan");
    let back = PlanSummary::of(&back, Some(&change.placed()), 1);
    let all = usize::from(RULES);
    for summary in [there, back] {
        assert_eq!((summary.flows.installed, summary.flows.removed), (all, all));
        assert!(summary.peak_flows * 10 <= all * 11, "{summary:?}");
    }
}

/// The goal is 2 ms for one rule of these, of a release build.
#[test]
fn planning_and_examining_a_small_change_takes_little_time() {
    let limits = limits();
    let first = plan(None, large(|_| Some(0)), &limits).expect("a good plan");
    let mut times: Vec<_> = (0..9)
        .map(|_| {
            let new = large(|rule| Some(usize::from(rule == 7_000)));
            let begun = Instant::now();
            let planned = plan(Some(first.placed()), new, &limits).expect("a good plan");
            let took = begun.elapsed();
            assert_eq!(planned.plan.plan().changes().installed, 1);
            took
        })
        .collect();
    times.sort();
    println!("one changed rule of {RULES}: planned and examined in {:?} (median)", times[4]);
    assert!(times[0].as_millis() < 100, "{times:?}");
}
