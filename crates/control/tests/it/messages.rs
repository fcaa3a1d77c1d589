//! What operators read: refusals, plans, counters and warnings, on a device made of a map.

use std::rc::Rc;
use std::sync::Arc;

use crate::support::*;
use control::{
    ControlError, Controller, Counted, DigestedProgram, DropTotals, Limits, PlacedProgram, PlanStep, plan,
};
use program::{QueueId, RuleId, WorkerId};

fn line(name: &'static str, matches: Match, steer: Option<usize>) -> Line {
    Line { name, matches, steer }
}

#[test]
fn a_refused_flow_names_rule_line_specs_priority_port_and_errno_with_a_remedy() {
    let (mut controller, state) = controller(&[1, 2]);
    let program =
        program(&[line("web", Match::Everything, Some(0)), line("dns", Match::UdpPortTo(7, 53), Some(1))]);
    // 3 tables, 3 queues, the first flow on two ports, the second on port 1.
    let failing = state.borrow().calls + 9;
    state.borrow_mut().fail = Some(Box::new(move |call| (call == failing).then_some(EINVAL)));
    let error = install(&mut controller, &state, &program, false).expect_err("refused").to_string();
    assert_eq!(
        error,
        "rule `dns` (line 2): the device refused the flow [ipv4 dst=192.0.2.7/32 | udp dport=53 | tag 2] at \
         priority 1 of port 2: EINVAL (invalid argument): the device does not take this combination of matches, \
         masks or priority; `steerd check` with its device model shows which rules it can hold"
    );
    assert_eq!(records(&state), []);
}

#[test]
fn a_program_beyond_the_priorities_or_the_workers_is_refused_before_anything_is_touched() {
    let (mut controller, state) = controller(&[1]);
    let calls = state.borrow().calls;
    let mut deep = (*program(&[line("web", Match::Everything, Some(0))])).clone();
    deep.flows[0].priority = PRIORITIES as u16;
    let error = install(&mut controller, &state, &Arc::new(deep), false).expect_err("too deep").to_string();
    assert!(error.contains("needs 65 flow priorities, fake0 gives each program 63"), "{error}");

    let mut wide = (*program(&[line("web", Match::Everything, Some(0))])).clone();
    wide.queues[0].table = vec![WorkerId(9)];
    let error =
        install(&mut controller, &state, &Arc::new(wide), false).expect_err("no worker 9").to_string();
    assert!(error.contains("group `g0` names worker 9, but only workers 0 to 2 run"), "{error}");
    assert_eq!(state.borrow().calls, calls);
}

#[test]
fn drop_totals_live_through_reloads_that_keep_lose_and_bring_back_the_rule() {
    let (mut controller, state) = controller(&[1]);
    let drops = program(&[line("bad", Match::UdpPort(1), None)]);
    let moved = program(&[line("web", Match::UdpPort(2), Some(0)), line("bad", Match::UdpPort(3), None)]);
    let without = program(&[line("web", Match::UdpPort(2), Some(0))]);
    // The fake counts a packet of 60 bytes for each flow as it goes in, and one as it goes out.
    let steps = [(&drops, 1), (&moved, 3), (&without, 4), (&drops, 5)];
    for (step, (program, packets)) in steps.into_iter().enumerate() {
        install(&mut controller, &state, program, false).expect("nothing fails");
        // Nothing of a rule that is gone is missing.
        let totals = DropTotals {
            rule: "bad".to_owned(),
            kind: Counted::Dropped,
            packets,
            bytes: packets * 60,
            counted: true,
        };
        assert_eq!(controller.drop_counters(), [totals], "step {step}");
    }
}

#[test]
fn no_drop_total_goes_backwards_however_many_rules_a_policy_has() {
    const RULES: usize = 17_000;
    let state = Shared::default();
    let limits = Limits { priorities: RULES as u32 + 1, ..limits() };
    let mut controller =
        Controller::over(Fake(Rc::clone(&state)), limits, vec![1], 3).expect("nothing fails");
    state.borrow_mut().forgetful = true;
    let names: Vec<&'static str> =
        (0..RULES).map(|index| &*Box::leak(format!("rule{index}").into_boxed_str())).collect();
    let lines: Vec<Line> = names.iter().map(|&name| line(name, Match::UdpPort(1), None)).collect();
    let (drops, nothing) = (program(&lines), program(&[]));
    for round in 1..=2 {
        install(&mut controller, &state, &drops, false).expect("nothing fails");
        install(&mut controller, &state, &nothing, false).expect("nothing fails");
        let totals = controller.drop_counters();
        assert_eq!(totals.len(), RULES);
        assert!(totals.iter().all(|total| total.packets == 2 * round), "round {round}");
    }
}

#[test]
fn past_rules_are_summed_under_one_name_but_not_those_that_are_kept() {
    let (mut controller, state) = controller(&[1]);
    for name in ["first", "second", "kept", "live"] {
        let lines = [line(name, Match::UdpPort(1), None), line("always", Match::UdpPort(2), None)];
        install(&mut controller, &state, &program(&lines), false).expect("nothing fails");
    }
    let sum = |totals: &[DropTotals]| totals.iter().map(|total| total.packets).sum::<u64>();
    let before = sum(&controller.drop_counters());
    controller.retire_rules(&["kept"].into());
    let totals = controller.drop_counters();
    let names: Vec<&str> = totals.iter().map(|total| total.rule.as_str()).collect();
    assert_eq!(names, [program::RETIRED_RULES, "always", "kept", "live"]);
    assert_eq!((totals[0].packets, sum(&totals)), (4, before), "nothing is lost");
}

#[test]
fn a_device_without_counters_drops_uncounted_and_says_so_once() {
    for at_the_flow in [false, true] {
        let (mut controller, state) = controller(&[1]);
        state.borrow_mut().no_counters = !at_the_flow;
        state.borrow_mut().no_count_action = at_the_flow;
        let program =
            program(&[line("bad", Match::UdpPort(1), None), line("worse", Match::UdpPort(2), None)]);
        install(&mut controller, &state, &program, false).expect("dropping works without counting");
        install(&mut controller, &state, &program, false).expect("again");
        let warnings: Vec<&str> = controller.warnings().collect();
        assert!(matches!(warnings[..], [warning] if warning.contains("cannot count")), "{warnings:?}");
        assert_eq!(records(&state).len(), 2);
        assert!(records(&state).iter().all(|record| record.drop && !record.counted));
        assert!(controller.drop_counters().iter().all(|totals| !totals.counted && totals.packets == 0));
    }
}

#[test]
fn a_program_with_more_tables_than_the_device_gives_it_is_refused_at_once() {
    let state = Shared::default();
    let limits = Limits { tables: Some(2), ..limits() };
    let mut controller =
        Controller::over(Fake(Rc::clone(&state)), limits, vec![1], WORKERS).expect("nothing fails");
    let calls = state.borrow().calls;
    let error = install(&mut controller, &state, &program(&[]), false).expect_err("three").to_string();
    assert!(error.contains("needs 3 indirection tables, fake0 gives each program 2"), "{error}");
    assert_eq!(state.borrow().calls, calls);
}

#[test]
fn nothing_to_steer_with_is_an_error() {
    let fake = || Fake(Shared::default());
    assert!(matches!(
        Controller::over(fake(), limits(), vec![1], 0),
        Err(ControlError::NothingToSteer { workers: 0, ports: 1 })
    ));
    assert!(Controller::over(fake(), limits(), vec![], 1).is_err());
}

#[test]
fn a_plan_installs_before_it_removes() {
    let old = program(&[line("web", Match::UdpPort(1), Some(0)), line("bad", Match::Everything, None)]);
    let new = program(&[line("bad", Match::Ipv4To(1), None)]);
    let limits = limits();
    let old = DigestedProgram::new(old, &limits).expect("a whole program");
    let placed = PlacedProgram { program: &old, levels: &[0, 1] };
    let planned = plan(Some(placed), new, &limits).expect("a good plan");
    let change = planned.plan.plan();
    assert_eq!(planned.program.rules[0].name, "bad");
    let workers = [[0, 1], [1, 2], [2, 0]].map(|table| table.map(WorkerId).to_vec());
    assert_eq!(change.tables(), workers);
    assert_eq!([0, 1, 2].map(|queue| change.table_of(QueueId(queue))), [Some(0), Some(1), Some(2)]);
    assert_eq!(
        change.steps().collect::<Vec<_>>(),
        [
            PlanStep::Begin,
            PlanStep::CreateCounter { rule: RuleId(0), kind: Counted::Dropped },
            PlanStep::InstallFlow { flow: 0 },
            PlanStep::Enforce,
            PlanStep::RemoveFlow { flow: 1 },
            PlanStep::RemoveFlow { flow: 0 },
        ]
    );
    assert_eq!([0, 1, 2].map(|queue| change.kept_queue(QueueId(queue))), [0, 1, 2].map(|q| Some(QueueId(q))));
    let first = plan(None, Arc::clone(old.program()), &limits).expect("a good plan").plan;
    let first = first.plan();
    assert_eq!(
        first.steps().collect::<Vec<_>>(),
        [
            PlanStep::Begin,
            PlanStep::CreateTable { table: 0 },
            PlanStep::CreateTable { table: 1 },
            PlanStep::CreateTable { table: 2 },
            PlanStep::CreateQueue { queue: QueueId(0) },
            PlanStep::CreateQueue { queue: QueueId(1) },
            PlanStep::CreateQueue { queue: QueueId(2) },
            PlanStep::CreateCounter { rule: RuleId(1), kind: Counted::Dropped },
            PlanStep::InstallFlow { flow: 0 },
            PlanStep::InstallFlow { flow: 1 },
            PlanStep::Enforce,
        ]
    );
}
