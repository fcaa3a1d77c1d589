//! After the failure of any call, the device is as before; and at every moment every packet meets the old
//! program or the new one. On a device made of a map, where the n-th call can be made to fail.

use std::sync::Arc;

use crate::support::Match::{Everything, Ipv4To, UdpPort, UdpPortTo};
use crate::support::*;
use control::{ControlError, Limits};
use packet::FlowKey;
use program::{FlowAction, Program, WorkerId};
use proptest::prelude::*;

const NAMES: [&str; 7] = ["web", "dns", "ntp", "ssh", "bulk", "voice", "rest"];

fn matches() -> impl Strategy<Value = Match> {
    prop_oneof![
        Just(Match::Everything),
        (0..3u8).prop_map(Match::Ipv4To),
        (0..4u16).prop_map(Match::UdpPort),
        (0..3u8, 0..4u16).prop_map(|(last, port)| Match::UdpPortTo(last, port)),
    ]
}

fn programs() -> impl Strategy<Value = Arc<Program>> {
    let line = (matches(), proptest::option::of(0..WORKERS));
    (proptest::collection::vec(line, 0..6), Just(NAMES.to_vec()).prop_shuffle()).prop_map(|(lines, names)| {
        let lines: Vec<Line> = lines
            .into_iter()
            .zip(names)
            .map(|((matches, steer), name)| Line { name, matches, steer })
            .collect();
        program(&lines)
    })
}

/// The outcome of a packet: by the device, and by the workers' class of its tag.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Kernel,
    Dropped,
    Steered { rule: Option<String>, table: Vec<WorkerId> },
}

/// The outcome by the program alone: the first flow that matches.
fn intended(program: Option<&Program>, key: &FlowKey) -> Fate {
    let Some(program) = program else { return Fate::Kernel };
    let first = program.flows.iter().find(|flow| flow.specs.iter().all(|spec| spec.matches(key)));
    match first.map(|flow| (flow.action, &program.rules[flow.rule.index()].name)) {
        None => Fate::Kernel,
        Some((FlowAction::Drop | FlowAction::Pass, _)) => Fate::Dropped,
        Some((FlowAction::Steer { queue, .. }, rule)) => {
            Fate::Steered { rule: Some(rule.to_string()), table: program.queues[queue.index()].table.clone() }
        }
    }
}

/// The outcomes that the device may choose: of the matching flows of the lowest priority number.
fn actual(moment: &Moment, port: u8, key: &FlowKey) -> Vec<Fate> {
    let matching = || {
        let flows = moment.flows.iter().filter(|(record, _)| record.port == port);
        flows.filter(|(_, specs)| specs.iter().all(|spec| spec.matches(key))).map(|(record, _)| record)
    };
    let Some(first) = matching().map(|record| record.priority).min() else { return vec![Fate::Kernel] };
    let at_first = matching().filter(|record| record.priority == first);
    let fate = |record: &Record| match record.drop {
        true => Fate::Dropped,
        false => Fate::Steered {
            rule: moment.published.rule(record.tag.expect("steered flows have tags")),
            table: record.table.clone(),
        },
    };
    at_first.map(fate).collect()
}

/// Every packet at every moment of the history meets one of the two programs as a whole, and no
/// worker would meet a tag that it does not know.
fn check_history(
    history: &[Moment],
    old: Option<&Program>,
    new: &Program,
    ports: &[u8],
    forward: bool,
) -> Result<(), TestCaseError> {
    for moment in history {
        let mut places: Vec<_> = moment.flows.iter().map(|(r, _)| (r.port, r.priority, &r.specs)).collect();
        places.sort();
        prop_assert!(places.windows(2).all(|pair| pair[0] != pair[1]), "a match twice at a priority");
    }
    for &port in ports {
        for key in world() {
            let (before, after) = (intended(old, &key), intended(Some(new), &key));
            let mut arrived = false;
            for moment in history {
                let all = actual(moment, port, &key);
                for now in &all {
                    prop_assert!(
                        *now == before || *now == after,
                        "{:?} is neither {:?} nor {:?}",
                        now,
                        before,
                        after
                    );
                }
                let is_new = all.iter().all(|now| *now == after);
                prop_assert!(!forward || !arrived || is_new, "went back to {:?}", all);
                arrived |= is_new;
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn every_packet_meets_the_old_program_or_the_new(chain in proptest::collection::vec(programs(), 1..5)) {
        let ports = [1, 2];
        let (mut controller, state) = controller(&ports);
        let mut old: Option<Arc<Program>> = None;
        for new in chain {
            state.borrow_mut().history.clear();
            let new = install(&mut controller, &state, &new, false).expect("nothing fails").program;
            let history = std::mem::take(&mut state.borrow_mut().history);
            check_history(&history, old.as_deref(), &new, &ports, true)?;
            for key in world() {
                let now = actual(history.last().expect("something happened"), 1, &key);
                prop_assert_eq!(now, [intended(Some(&new), &key)]);
            }
            prop_assert_eq!(records(&state).len(), new.flows.len() * ports.len());
            let published = state.borrow().published.clone();
            // A packet may still come by a flow that is gone: its classes stay.
            prop_assert_eq!(published.in_order(), [Some(&new), old.as_ref()]);
            let totals = controller.drop_counters();
            prop_assert_eq!(totals.iter().map(|total| total.packets).sum::<u64>(), state.borrow().counted);
            old = Some(new);
        }
    }

    /// One call fails, or two, whichever; then the same change is tried again and succeeds. With two, the
    /// rollback may fail: then flows of the other program may be left, but each packet still meets one of
    /// the two as a whole, and the controller reports which is in force.
    #[test]
    fn after_any_failure_one_program_is_in_force_as_a_whole(
        first in programs(),
        second in programs(),
        nth in (0..60usize, proptest::option::of(0..12usize)),
        above in any::<bool>(),
        spare_flows in prop_oneof![Just(0), Just(64)],
    ) {
        change_with_failures(&[first, second], nth, above, spare_flows)?;
    }
}

/// Installs the first program, and then the second one while the calls with these numbers fail, the second
/// number counted from the first. `above`: the second program was there before the first. `spare_flows`: as
/// in [`Limits`]. Returns how many calls the change made.
fn change_with_failures(
    [first, second]: &[Arc<Program>; 2],
    nth: (usize, Option<usize>),
    above: bool,
    spare_flows: usize,
) -> Result<usize, TestCaseError> {
    let ports = [1, 2];
    let (mut controller, state) = controller_of(Limits { spare_flows, ..limits() }, &ports);
    if above {
        install(&mut controller, &state, second, false).expect("nothing fails");
    }
    let first = install(&mut controller, &state, first, false).expect("nothing fails").program;
    let before = records(&state);
    let (generation, totals) = (controller.generation(), controller.drop_counters());

    let calls = state.borrow().calls;
    let failing = [Some(calls + nth.0), nth.1.map(|after| calls + nth.0 + 1 + after)];
    state.borrow_mut().fail = Some(Box::new(move |call| failing.contains(&Some(call)).then_some(ENOMEM)));
    state.borrow_mut().history.clear();
    let outcome = install(&mut controller, &state, second, false);
    let made = state.borrow().calls - calls;
    let history = std::mem::take(&mut state.borrow_mut().history);
    let in_force = Arc::clone(controller.installed().expect("one of them"));
    check_history(&history, Some(&first), second, &ports, false)?;
    match &outcome {
        Err(error) => {
            prop_assert!(error.to_string().contains("ENOMEM") || error.to_string().contains("os error 12"));
            prop_assert!(Arc::ptr_eq(&in_force, &first));
            prop_assert_eq!(controller.generation(), generation);
            let (left, missing) = match error {
                ControlError::RollbackFailed { left, missing, .. } => (*left, *missing),
                _ => (0, 0),
            };
            prop_assert_eq!(records_in_use(&state).len(), before.len() + left - missing);
            prop_assert!(left + missing > 0 || records_in_use(&state) == before);
            prop_assert!(nth.1.is_some() || left + missing == 0, "one failure leaves nothing");
        }
        Ok(installed) => {
            prop_assert!(Arc::ptr_eq(&in_force, &installed.program));
            let left = match &installed.warning {
                Some(ControlError::OldFlowsLeft { left, .. }) => *left,
                warning => {
                    prop_assert!(warning.is_none());
                    0
                }
            };
            prop_assert_eq!(records_in_use(&state).len(), second.flows.len() * ports.len() + left);
            prop_assert!(nth.1.is_some() || installed.warning.is_none(), "one failure is rolled back");
        }
    }
    prop_assert!(records(&state).len() <= records_in_use(&state).len() + 1, "one flow kept a counter");
    let published = state.borrow().published.clone();
    prop_assert_eq!(published.in_order()[0], Some(&in_force));
    let now = controller.drop_counters();
    for old in &totals {
        let now = now.iter().find(|now| now.rule == old.rule).expect("names stay");
        prop_assert!(now.packets >= old.packets && now.bytes >= old.bytes);
    }
    check_counted(&mut controller, &state)?;

    state.borrow_mut().fail = None;
    install(&mut controller, &state, second, false).expect("the faults are over");
    prop_assert_eq!(records(&state).len(), second.flows.len() * ports.len());
    prop_assert!(records(&state).iter().all(|record| u32::from(record.priority) < PRIORITIES));
    check_counted(&mut controller, &state)?;
    Ok(made)
}

/// Changes of every kind: another worker, a drop instead, rules that change places, more and fewer rules, all
/// of them.
const CHANGES: [[&[Line]; 2]; 6] = [
    [&[line("web", UdpPort(1), Some(0))], &[line("web", UdpPort(1), Some(1))]],
    [
        &[line("web", UdpPort(1), Some(0)), line("rest", Everything, None)],
        &[line("web", UdpPort(1), None), line("rest", Everything, Some(2))],
    ],
    [
        &[
            line("web", UdpPort(1), Some(0)),
            line("ssh", Ipv4To(1), Some(1)),
            line("rest", Everything, Some(2)),
        ],
        &[line("ssh", Ipv4To(1), Some(0)), line("web", UdpPort(1), None), line("rest", Everything, Some(2))],
    ],
    [&[], &[line("web", UdpPort(1), Some(0)), line("dns", UdpPort(2), None)]],
    [&[line("web", UdpPort(1), None), line("dns", UdpPort(2), Some(1))], &[]],
    [
        &[
            line("web", UdpPort(1), Some(0)),
            line("dns", UdpPort(2), Some(0)),
            line("bulk", UdpPort(3), Some(0)),
        ],
        &[line("voice", UdpPortTo(1, 1), None), line("dns", UdpPort(2), Some(0))],
    ],
];

const fn line(name: &'static str, matches: Match, steer: Option<usize>) -> Line {
    Line { name, matches, steer }
}

/// Every single call of each change failed, and every pair of calls, those of the rollback included.
#[test]
fn any_call_may_fail_and_any_two() {
    let (mut single, mut pairs) = (0, 0);
    for [first, second] in CHANGES {
        let programs = [program(first), program(second)];
        for (above, spare_flows) in [(false, 64), (true, 64), (false, 0), (true, 0)] {
            let trial = |nth| {
                change_with_failures(&programs, nth, above, spare_flows).unwrap_or_else(|fault| {
                    panic!("call {nth:?} from {first:?} to {second:?}, above {above}, {spare_flows} spare flows: {fault}")
                })
            };
            let all = trial((usize::MAX / 2, None));
            assert!(all > 0);
            for nth in 0..all {
                let made = trial((nth, None));
                single += 1;
                // The calls after the failure are those of the rollback.
                for second in 0..made.saturating_sub(nth + 1) {
                    trial((nth, Some(second)));
                    pairs += 1;
                }
            }
        }
    }
    println!("{single} calls failed alone, {pairs} pairs");
    assert!(single > 50 && pairs > 200);
}

/// The device's flows but for those that no packet matches, sorted.
fn records_in_use(state: &Shared) -> Vec<Record> {
    let mut records: Vec<Record> = state
        .borrow()
        .flows
        .values()
        .filter(|(_, specs)| matches_something(specs))
        .map(|(record, _)| record.clone())
        .collect();
    records.sort();
    records
}

/// Every packet that the device has counted is in a total, but for the last one of each flow whose counter it
/// refused to keep.
fn check_counted(controller: &mut control::Controller<Fake>, state: &Shared) -> Result<(), TestCaseError> {
    let totals: u64 = controller.drop_counters().iter().map(|total| total.packets).sum();
    let missing = state.borrow().counted.checked_sub(totals);
    prop_assert!(missing.is_some_and(|missing| missing <= controller.early_readings()), "{:?}", missing);
    Ok(())
}

#[test]
fn without_a_way_back_the_new_program_is_in_force_and_the_next_install_cleans_up() {
    let (mut controller, state) = controller(&[1]);
    let line = |name, port| Line { name, matches: Match::UdpPort(port), steer: Some(0) };
    let old = program(&[line("web", 1), line("dns", 2), line("ntp", 3)]);
    install(&mut controller, &state, &old, false).expect("nothing fails");
    let new = program(&[line("web", 2)]);
    // 1 flow in, 1 flow out; from then on the device refuses everything.
    let failing = state.borrow().calls + 2;
    state.borrow_mut().fail = Some(Box::new(move |call| (call >= failing).then_some(EINVAL)));
    let installed = install(&mut controller, &state, &new, false).expect("the new program is in");
    let warning = installed.warning.expect("and something is left");
    assert!(matches!(warning, ControlError::OldFlowsLeft { left: 2, .. }), "{warning}");
    assert!(warning.to_string().contains("the new program is in force, but 2 flows"), "{warning}");
    assert_eq!(controller.installed().expect("the new one"), &installed.program);
    assert_eq!((installed.generation.0, controller.generation().0), (2, 2));
    assert_eq!(records(&state).len(), 3, "the new flow and two that should have gone");

    state.borrow_mut().fail = None;
    install(&mut controller, &state, &old, false).expect("the device is well again");
    assert_eq!(records(&state).len(), 3);
    assert!(records(&state).iter().all(|record| u32::from(record.priority) < PRIORITIES));
}

#[test]
fn with_flows_left_of_a_refused_program_the_old_one_is_in_force() {
    let (mut controller, state) = controller(&[1]);
    let line = |name, port| Line { name, matches: Match::UdpPort(port), steer: Some(0) };
    let old = program(&[line("web", 1)]);
    install(&mut controller, &state, &old, false).expect("nothing fails");
    // 2 flows in; the third is refused, and then everything.
    let failing = state.borrow().calls + 2;
    state.borrow_mut().fail = Some(Box::new(move |call| (call >= failing).then_some(EINVAL)));
    let new = program(&[line("web", 2), line("dns", 1), line("ntp", 3)]);
    let error = install(&mut controller, &state, &new, false).expect_err("refused");
    assert!(matches!(error, ControlError::RollbackFailed { left: 2, .. }), "{error}");
    assert!(error.to_string().contains("the program before is in force, but 2 flows"), "{error}");
    assert_eq!(controller.installed().expect("the old one"), &old);
    assert_eq!((controller.generation().0, records(&state).len()), (1, 3));

    state.borrow_mut().fail = None;
    install(&mut controller, &state, &new, false).expect("the device is well again");
    assert_eq!(records(&state).len(), 3);
}

/// A drop rule with 49 flows, replaced by no rule.
fn removed(controller: &mut control::Controller<Fake>, state: &Shared) {
    let many = program(&[
        Line { name: "bad", matches: Match::UdpPort(1), steer: None },
        Line { name: "web", matches: Match::UdpPort(2), steer: Some(0) },
    ]);
    let mut many = (*many).clone();
    let drop = many.flows[0].clone();
    many.flows.extend((2..50).map(|priority| program::Flow { priority, ..drop.clone() }));
    install(controller, state, &Arc::new(many), false).expect("nothing fails");
    install(controller, state, &program(&[]), false).expect("nothing fails");
}

#[test]
fn a_rules_counter_is_read_once_after_its_last_flow_was_removed() {
    let (mut controller, state) = controller(&[1, 2]);
    removed(&mut controller, &state);
    assert_eq!(controller.drop_counters()[0].packets, 2 * 2 * 49);
    assert_eq!((state.borrow().reads, controller.early_readings()), (1, 0));
    assert_eq!(records(&state), [], "the flow that kept the counter is removed as well");
}

#[test]
fn a_counter_that_can_be_read_without_a_flow_needs_none() {
    let (mut controller, state) = controller_of(Limits { reads_idle_counters: true, ..limits() }, &[1]);
    state.borrow_mut().keeps_counters = true;
    removed(&mut controller, &state);
    assert_eq!(controller.drop_counters()[0].packets, 2 * 49);
    // The setup's two, three tables and queues of both programs, 50 flows in and out, and one counter.
    assert_eq!(state.borrow().calls, 2 + 6 + 2 * 50 + 1);
}

#[test]
fn where_a_counter_cannot_be_kept_the_loss_is_known() {
    let (mut controller, state) = controller(&[1]);
    state.borrow_mut().no_unmatched = true;
    removed(&mut controller, &state);
    assert_eq!((controller.drop_counters()[0].packets, controller.early_readings()), (2 * 49 - 1, 1));
}

#[test]
fn a_flow_that_kept_a_counter_and_was_not_removed_goes_with_the_next_change() {
    let (mut controller, state) = controller(&[1]);
    state.borrow_mut().keeps_unmatched = true;
    removed(&mut controller, &state);
    assert_eq!((records(&state).len(), records_in_use(&state).len()), (1, 0));
    assert_eq!((controller.drop_counters()[0].packets, controller.early_readings()), (2 * 49, 0));

    // It still stays, so no other is installed: the next counter is read early.
    removed(&mut controller, &state);
    assert_eq!((records(&state).len(), records_in_use(&state).len()), (1, 0));
    assert_eq!((controller.drop_counters()[0].packets, controller.early_readings()), (2 * 2 * 49 - 1, 1));

    state.borrow_mut().keeps_unmatched = false;
    state.borrow_mut().history.clear();
    install(&mut controller, &state, &program(&[]), false).expect("nothing fails");
    let first = state.borrow().history[0].flows.len();
    assert_eq!((first, records(&state).len()), (0, 0), "it is removed first");
}

#[test]
fn a_flow_that_kept_a_counter_goes_when_the_device_is_cleared() {
    let (mut controller, state) = controller(&[1]);
    state.borrow_mut().keeps_unmatched = true;
    removed(&mut controller, &state);
    assert_eq!(records(&state).len(), 1);
    state.borrow_mut().keeps_unmatched = false;
    controller.clear().expect("nothing fails");
    assert_eq!(records(&state), []);
}

#[test]
fn a_counter_that_cannot_be_read_at_the_end_is_a_known_loss() {
    for (no_counters, losses) in [(false, 1), (true, 0)] {
        let (mut controller, state) = controller(&[1]);
        state.borrow_mut().no_counters = no_counters;
        let drops = program(&[Line { name: "bad", matches: Match::UdpPort(1), steer: None }]);
        install(&mut controller, &state, &drops, false).expect("nothing fails");
        state.borrow_mut().no_reads = true;
        install(&mut controller, &state, &program(&[]), false).expect("removing flows needs no readings");
        assert_eq!(controller.early_readings(), losses, "no counters: {no_counters}");
    }
}

#[test]
fn a_counter_without_a_flow_is_released_unread() {
    let (mut controller, state) = controller(&[1]);
    // 3 tables, 3 queues and the counter; the flow is refused.
    let failing = state.borrow().calls + 7;
    state.borrow_mut().fail = Some(Box::new(move |call| (call == failing).then_some(EINVAL)));
    let drops = program(&[Line { name: "bad", matches: Match::UdpPort(1), steer: None }]);
    let error = install(&mut controller, &state, &drops, false).expect_err("refused");
    assert!(matches!(error, ControlError::InstallFlow { .. }), "{error}");
    assert_eq!((state.borrow().reads, controller.early_readings()), (0, 0));
    assert_eq!(controller.drop_counters(), []);
}

#[test]
fn a_counter_that_cannot_be_read_keeps_its_last_reading() {
    let (mut controller, state) = controller(&[1]);
    let drops = program(&[Line { name: "bad", matches: Match::UdpPort(1), steer: None }]);
    install(&mut controller, &state, &drops, false).expect("nothing fails");
    assert_eq!(controller.drop_counters()[0].packets, 1);
    state.borrow_mut().no_reads = true;
    assert_eq!(controller.drop_counters()[0].packets, 1);
    controller.clear().expect("removing flows needs no readings");
    assert_eq!(controller.drop_counters()[0].packets, 1);
}

#[test]
fn workers_that_do_not_answer_undo_the_change() {
    let (mut controller, state) = controller(&[1]);
    let old = program(&[Line { name: "web", matches: Match::Everything, steer: Some(1) }]);
    install(&mut controller, &state, &old, false).expect("nothing fails");
    let before = records(&state);
    let error = install(&mut controller, &state, &program(&[]), true).expect_err("asleep");
    assert_eq!(error.to_string(), "the workers did not take the program: asleep");
    assert_eq!(records(&state), before);
    assert_eq!(state.borrow().published.in_order()[0], Some(&old));
}

#[test]
fn clearing_removes_the_lowest_precedence_first() {
    let (mut controller, state) = controller(&[1]);
    let lines = [
        Line { name: "web", matches: Match::UdpPort(1), steer: Some(1) },
        Line { name: "rest", matches: Match::Everything, steer: None },
    ];
    install(&mut controller, &state, &program(&lines), false).expect("nothing fails");
    state.borrow_mut().history.clear();
    controller.clear().expect("nothing fails");
    let priorities = |moment: &Moment| -> Vec<u16> {
        let matching = moment.flows.iter().filter(|(_, specs)| matches_something(specs));
        matching.map(|(record, _)| record.priority).collect()
    };
    let mut left: Vec<Vec<u16>> = state.borrow().history.iter().map(priorities).collect();
    left.dedup();
    assert_eq!(left, [vec![0, 1], vec![0], vec![]]);
}
