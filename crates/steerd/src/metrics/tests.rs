//! What a state looks like in Prometheus' text format.

use super::*;

fn scene() -> State {
    State {
        version: "1.2.3",
        rules: vec![
            RuleState {
                name: "web \"x\"".into(),
                action: "deliver to a".into(),
                current: true,
                ..RuleState::default()
            },
            RuleState {
                name: "scan".into(),
                action: "drop".into(),
                deed: Deed::Drop,
                current: true,
                dropped_packets: 7,
                ..RuleState::default()
            },
            RuleState {
                name: "uncountable".into(),
                action: "drop".into(),
                deed: Deed::Drop,
                current: true,
                uncounted: true,
                ..RuleState::default()
            },
            RuleState { name: "renamed".into(), dropped_packets: 3, ..RuleState::default() },
        ],
        ports: vec![PortState {
            port: 1,
            up: Some(false),
            lost_packets: [("out_of_buffer", 9)].into(),
            ..PortState::default()
        }],
        workers: vec![WorkerState {
            received_packets: 10,
            batches: vec![(1, 4), (3, 2)],
            lost_packets: [("unknown_tag", 1)].into(),
            failed_receives: [("length", 3)].into(),
            poll_errors: 5,
            ..WorkerState::default()
        }],
        ..State::default()
    }
}

fn text() -> String {
    let registry = registry(Arc::new(|| Arc::new(scene()))).expect("registry");
    render(&registry).expect("text")
}

#[test]
fn a_state_becomes_text() {
    let text = text();
    for line in [
        "steerd_build_info{version=\"1.2.3\"} 1",
        "steerd_rule_packets_total{action=\"deliver\",rule=\"web \\\"x\\\"\"} 0",
        "steerd_rule_packets_total{action=\"drop\",rule=\"scan\"} 7",
        "steerd_policy_reloads_total{result=\"failure\"} 0",
        "steerd_worker_dropped_packets_total{reason=\"unknown_tag\",worker=\"0\"} 1",
        "steerd_worker_poll_errors_total{worker=\"0\"} 5",
        "steerd_worker_failed_receives_total{reason=\"length\",worker=\"0\"} 3",
        "steerd_worker_batch_packets_bucket{worker=\"0\",le=\"1\"} 4",
        "steerd_worker_batch_packets_bucket{worker=\"0\",le=\"3\"} 6",
        "steerd_worker_batch_packets_bucket{worker=\"0\",le=\"+Inf\"} 6",
        "steerd_worker_batch_packets_count{worker=\"0\"} 6",
        "steerd_port_up{port=\"1\"} 0",
        "steerd_port_dropped_packets_total{port=\"1\",reason=\"out_of_buffer\"} 9",
    ] {
        let sorted = |line: &str| {
            let mut parts: Vec<String> = line.split(['{', ',', '}']).map(ToOwned::to_owned).collect();
            parts.sort();
            parts
        };
        assert!(text.lines().any(|found| sorted(found) == sorted(line)), "no {line} in:\n{text}");
    }
}

#[test]
fn a_rule_of_the_past_has_only_what_it_has_counted() {
    let series = |text: &str| text.matches("rule=\"renamed\"").count();
    let text = text();
    assert_eq!(series(&text), 2, "packets and bytes that it dropped, nothing delivered: {text}");
}

#[test]
fn what_is_not_known_is_absent_and_not_zero() {
    let text = text();
    for absent in [
        "steerd_port_received",
        "steerd_port_kernel",
        "steerd_books",
        "rule=\"uncountable\"",
        "# TYPE steerd_port_sent",
    ] {
        assert!(!text.contains(absent), "{absent} in {text}");
    }
}

#[test]
fn what_ports_count_is_there() {
    let mut state = scene();
    state.books.ports_counted = true;
    state.ports[0].counters = Some(PortCounters { received_packets: 12, ..PortCounters::default() });
    let state = Arc::new(state);
    let text = render(&registry(Arc::new(move || Arc::clone(&state))).expect("registry")).expect("text");
    assert!(text.contains("steerd_port_received_packets_total{port=\"1\"} 12"), "{text}");
    assert!(text.contains("\nsteerd_books_balanced 0"), "{text}");
}
