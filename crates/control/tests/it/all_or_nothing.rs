//! After the failure of any call, the device is as before; and at every moment every packet meets the old
//! program or the new one. On a device made of a map, where the n-th call can be made to fail.

use std::sync::Arc;

use crate::support::*;
use control::{Band, ControlError, Limits};
use packet::FlowKey;
use program::{ClassTag, FlowAction, Program, WorkerId};
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

/// The outcome of a packet, as far as the device decides it.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Kernel,
    Dropped,
    Steered { tag: u32, table: Vec<WorkerId> },
}

/// The outcome by the program alone: the first flow that matches.
fn intended(program: Option<(&Program, Band)>, key: &FlowKey) -> Fate {
    let Some((program, band)) = program else { return Fate::Kernel };
    let first = program.flows.iter().find(|flow| flow.specs.iter().all(|spec| spec.matches(key)));
    match first.map(|flow| flow.action) {
        None => Fate::Kernel,
        Some(FlowAction::Drop | FlowAction::Pass) => Fate::Dropped,
        Some(FlowAction::Steer { queue, class }) => Fate::Steered {
            tag: ClassTag { band, class }.encode().expect("few classes"),
            table: program.queues[queue.index()].table.clone(),
        },
    }
}

/// The outcome by the device: the matching flow of the lowest priority number.
fn actual(moment: &Moment, port: u8, key: &FlowKey) -> Fate {
    let matching = moment
        .flows
        .iter()
        .filter(|(record, specs)| record.port == port && specs.iter().all(|spec| spec.matches(key)));
    match matching.min_by_key(|(record, _)| record.priority) {
        None => Fate::Kernel,
        Some((record, _)) if record.drop => Fate::Dropped,
        Some((record, _)) => {
            Fate::Steered { tag: record.tag.expect("steered flows have tags"), table: record.table.clone() }
        }
    }
}

/// Every packet at every moment of the history meets one of the two programs as a whole, and no
/// worker would meet a tag that it does not know.
fn check_history(
    history: &[Moment],
    old: Option<(&Program, Band)>,
    new: (&Program, Band),
    ports: &[u8],
    forward: bool,
) -> Result<(), TestCaseError> {
    for &port in ports {
        for key in world() {
            let (before, after) = (intended(old, &key), intended(Some(new), &key));
            let program_of = |band| if band == new.1 { Some(new.0) } else { old.map(|(program, _)| program) };
            let mut arrived = false;
            for moment in history {
                let now = actual(moment, port, &key);
                prop_assert!(
                    now == before || now == after,
                    "{:?} is neither {:?} nor {:?}",
                    now,
                    before,
                    after
                );
                if let Fate::Steered { tag, .. } = &now {
                    let band = ClassTag::decode(*tag).expect("a tag of ours").band;
                    prop_assert_eq!(
                        moment.published[band.index()].as_deref(),
                        program_of(band),
                        "band {}",
                        band
                    );
                }
                prop_assert!(!forward || !arrived || now == after, "went back to {:?}", now);
                arrived |= now == after;
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Also with more reloads before, so that the new band is above in half of the cases.
    #[test]
    fn every_packet_meets_the_old_program_or_the_new(chain in proptest::collection::vec(programs(), 1..4)) {
        let ports = [1, 2];
        let (mut controller, state) = controller(&ports);
        let mut old: Option<(Arc<Program>, Band)> = None;
        for new in chain {
            state.borrow_mut().history.clear();
            install(&mut controller, &state, &new, false).expect("nothing fails");
            let band = controller.installed().expect("installed").1;
            let history = std::mem::take(&mut state.borrow_mut().history);
            let before = old.as_ref().map(|(program, band)| (&**program, *band));
            check_history(&history, before, (&new, band), &ports, true)?;
            for key in world() {
                let now = actual(history.last().expect("something happened"), 1, &key);
                prop_assert_eq!(now, intended(Some((&new, band)), &key));
            }
            let published = |band: Band| state.borrow().published[band.index()].clone();
            prop_assert_eq!(published(band), Some(Arc::clone(&new)));
            // A packet may still come by a flow that is gone: its classes stay.
            prop_assert_eq!(published(band.other()), old.as_ref().map(|(program, _)| Arc::clone(program)));
            let totals = controller.drop_counters();
            prop_assert_eq!(totals.iter().map(|total| total.packets).sum::<u64>(), state.borrow().counted);
            old = Some((new, band));
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
    ) {
        let ports = [1, 2];
        let (mut controller, state) = controller(&ports);
        if above {
            install(&mut controller, &state, &second, false).expect("nothing fails");
        }
        install(&mut controller, &state, &first, false).expect("nothing fails");
        let (before, band) = (records(&state), controller.installed().expect("installed").1);
        let (generation, totals) = (controller.generation(), controller.drop_counters());

        let calls = state.borrow().calls;
        let failing = [Some(calls + nth.0), nth.1.map(|after| calls + nth.0 + 1 + after)];
        state.borrow_mut().fail = Some(Box::new(move |call| failing.contains(&Some(call)).then_some(ENOMEM)));
        state.borrow_mut().history.clear();
        let outcome = install(&mut controller, &state, &second, false);
        let history = std::mem::take(&mut state.borrow_mut().history);
        let (in_force, its_band) = controller.installed().expect("one of them");
        let (in_force, its_band) = (Arc::clone(in_force), its_band);
        check_history(&history, Some((&first, band)), (&second, band.other()), &ports, false)?;
        match &outcome {
            Err(error) => {
                prop_assert!(error.to_string().contains("ENOMEM") || error.to_string().contains("os error 12"));
                prop_assert!(Arc::ptr_eq(&in_force, &first) && its_band == band);
                prop_assert_eq!(controller.generation(), generation);
                let left = if let ControlError::RollbackFailed { left, .. } = error { *left } else { 0 };
                prop_assert_eq!(records_in_use(&state).len(), before.len() + left);
                prop_assert!(left > 0 || records_in_use(&state) == before);
                prop_assert!(nth.1.is_some() || left == 0, "one failure leaves nothing");
            }
            Ok(installed) => {
                prop_assert!(Arc::ptr_eq(&in_force, &second) && its_band == band.other());
                let left = match &installed.warning {
                    Some(ControlError::OldFlowsLeft { left, .. }) => *left,
                    warning => { prop_assert!(warning.is_none()); 0 }
                };
                prop_assert_eq!(records_in_use(&state).len(), second.flows.len() * ports.len() + left);
                prop_assert!(nth.1.is_some() || installed.warning.is_none(), "one failure is rolled back");
            }
        }
        prop_assert!(records(&state).len() <= records_in_use(&state).len() + 1, "one flow kept a counter");
        let published = state.borrow().published[its_band.index()].clone();
        prop_assert_eq!(published, Some(in_force));
        let now = controller.drop_counters();
        for old in &totals {
            let now = now.iter().find(|now| now.rule == old.rule).expect("names stay");
            prop_assert!(now.packets >= old.packets && now.bytes >= old.bytes);
        }
        check_counted(&mut controller, &state)?;

        state.borrow_mut().fail = None;
        install(&mut controller, &state, &second, false).expect("the faults are over");
        prop_assert_eq!(records(&state).len(), second.flows.len() * ports.len());
        let base = controller.installed().expect("installed").1.index() as u32 * PRIORITIES;
        prop_assert!(records(&state).iter().all(|r| (base..base + PRIORITIES).contains(&u32::from(r.priority))));
        check_counted(&mut controller, &state)?;
    }
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
    // 3 tables, 3 queues, 1 flow in, 1 flow out; from then on the device refuses everything.
    let failing = state.borrow().calls + 8;
    state.borrow_mut().fail = Some(Box::new(move |call| (call >= failing).then_some(EINVAL)));
    let installed = install(&mut controller, &state, &new, false).expect("the new program is in");
    let warning = installed.warning.expect("and something is left");
    assert!(matches!(warning, ControlError::OldFlowsLeft { left: 2, .. }), "{warning}");
    assert!(warning.to_string().contains("the new program is in force, but 2 flows"), "{warning}");
    assert_eq!(controller.installed().expect("the new one").0, &new);
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
    // 3 tables, 3 queues, 2 flows in; the third is refused, and then everything.
    let failing = state.borrow().calls + 8;
    state.borrow_mut().fail = Some(Box::new(move |call| (call >= failing).then_some(EINVAL)));
    let new = program(&[line("web", 2), line("dns", 1), line("ntp", 3)]);
    let error = install(&mut controller, &state, &new, false).expect_err("refused");
    assert!(matches!(error, ControlError::RollbackFailed { left: 2, .. }), "{error}");
    assert!(error.to_string().contains("the program before is in force, but 2 flows"), "{error}");
    assert_eq!(controller.installed().expect("the old one").0, &old);
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
    many.flows.extend((2..50).map(|priority| program::Flow { priority: priority % 16, ..drop.clone() }));
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
    // The setup's two, three tables and queues of each program, 50 flows in and out, and one counter.
    assert_eq!(state.borrow().calls, 2 + 2 * 6 + 2 * 50 + 1);
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
    assert_eq!(state.borrow().published[0].as_ref(), Some(&old));
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
