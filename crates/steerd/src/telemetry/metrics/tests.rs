//! What a state looks like in Prometheus' text format.

use program::HostReception;

use super::*;
use crate::port_counters::tests::distinct_stats;
use crate::state::{LatencyState, WorkerThreadState};

pub(super) fn scene() -> State {
    State {
        version: "1.2.3",
        rules: vec![
            RuleState {
                name: "web \"x\"".into(),
                action: "deliver to a".into(),
                current: true,
                ..RuleState::default()
            },
            scan(),
            RuleState {
                name: "uncountable".into(),
                action: "drop".into(),
                effect: Effect::Drop,
                current: true,
                uncounted: true,
                ..RuleState::default()
            },
            RuleState {
                name: "renamed".into(),
                outcomes: [(PacketOutcome::Dropped, Count::of(3, 0))].into(),
                ..RuleState::default()
            },
            RuleState {
                name: "quiet".into(),
                current: true,
                unexported: true,
                outcomes: [(PacketOutcome::Delivered, Count::of(20, 2000))].into(),
                ..RuleState::default()
            },
            RuleState {
                name: "hushed".into(),
                unexported: true,
                outcomes: [
                    (PacketOutcome::Delivered, Count::of(1, 60)),
                    (PacketOutcome::Dropped, Count::of(2, 120)),
                ]
                .into(),
                ..RuleState::default()
            },
            RuleState {
                name: "default".into(),
                effect: Effect::Kernel,
                current: true,
                outcomes: [(PacketOutcome::Kernel, Count { packets: Some(44_284), bytes: None })].into(),
                ..RuleState::default()
            },
            RuleState {
                name: "ear".into(),
                effect: Effect::Sniff,
                placement: "hybrid",
                current: true,
                outcomes: [
                    (PacketOutcome::Delivered, Count::of(4, 0)),
                    (PacketOutcome::Filtered, Count::of(6, 600)),
                ]
                .into(),
                ..RuleState::default()
            },
        ],
        ports: vec![PortState {
            port: 1,
            up: Some(false),
            lost_packets: [("out_of_buffer", 9)].into(),
            ..PortState::default()
        }],
        workers: vec![worker()],
        sinks: vec![sink()],
        ..State::default()
    }
}

/// A rule that drops on a network interface.
fn scan() -> RuleState {
    RuleState {
        name: "scan".into(),
        action: "drop".into(),
        effect: Effect::Drop,
        placement: "hardware",
        current: true,
        deciders: Some(RuleDeciders {
            decided_by: [Decider::XdpProgram, Decider::Engine].into(),
            host: HostReception::No,
        }),
        outcomes: [(PacketOutcome::Dropped, Count::of(7, 0))].into(),
        ..RuleState::default()
    }
}

fn sink() -> SinkState {
    SinkState {
        name: "sizes".into(),
        kind: "count",
        deleted_files: Some(8),
        export: Some(ExportState { flows: 70, lost_flows: 3, ..ExportState::default() }),
        packet_sizes: Some(Buckets { at_most: vec![(64, 3), (127, 4)], count: 4, sum: 300 }),
        workers: vec![SinkTrafficState {
            dropped_packets: [("disk_full", 3)].into(),
            ..SinkTrafficState::default()
        }],
        losing: Some("disk_full"),
        transmit: vec![SinkTrafficState {
            worker: 1,
            offered_packets: 9,
            delivered_packets: 6,
            delivered_bytes: 600,
            dropped_packets: [("too_long", 2)].into(),
            ..SinkTrafficState::default()
        }],
        ..SinkState::default()
    }
}

fn worker() -> WorkerState {
    WorkerState {
        received_packets: 10,
        batches: Buckets { at_most: vec![(1, 4), (3, 6)], count: 7, sum: 20 },
        turn_ns: Buckets { at_most: vec![(1023, 2), (4095, 5)], count: 5, sum: 9000 },
        lost_packets: [("unknown_tag", 1)].into(),
        out_of_buffer_packets: Some(4),
        failed_receives: [("length", 3)].into(),
        poll_errors: 5,
        failed: true,
        queue_recoveries: 2,
        regimes_ns: [("idle", 1_500_000_000), ("sink", 250_000_000)].into(),
        thread: Some(WorkerThreadState {
            cpu_ns: 750_000_000,
            cpu_wait_ns: 500_000_000,
            ..WorkerThreadState::default()
        }),
        latency: Some(LatencyState {
            ns: Buckets { at_most: vec![(1023, 2), (4095, 5)], count: 5, sum: 9000 },
            negative: 1,
            ..LatencyState::default()
        }),
        ..WorkerState::default()
    }
}

fn text() -> String {
    render(&scene()).expect("text")
}

#[test]
fn a_state_becomes_text() {
    let text = text();
    for line in [
        "steerd_build_info{version=\"1.2.3\"} 1",
        "steerd_sink_losing{kind=\"count\",sink=\"sizes\"} 1",
        "steerd_sink_dropped_packets_total{kind=\"count\",reason=\"disk_full\",sink=\"sizes\",worker=\"0\"} 3",
        "steerd_sink_transmit_offered_packets_total{kind=\"count\",sink=\"sizes\",worker=\"1\"} 9",
        "steerd_sink_transmit_sent_packets_total{kind=\"count\",sink=\"sizes\",worker=\"1\"} 6",
        "steerd_sink_transmit_sent_bytes_total{kind=\"count\",sink=\"sizes\",worker=\"1\"} 600",
        "steerd_sink_transmit_dropped_packets_total{kind=\"count\",reason=\"too_long\",sink=\"sizes\",worker=\"1\"} 2",
        "steerd_rule_packets_total{action=\"deliver\",rule=\"web \\\"x\\\"\"} 0",
        "steerd_rule_packets_total{action=\"drop\",rule=\"scan\"} 7",
        "steerd_rule_decided_by{decider=\"xdp_program\",host=\"no\",rule=\"scan\"} 1",
        "steerd_rule_decided_by{decider=\"engine\",host=\"no\",rule=\"scan\"} 1",
        "steerd_rule_placement{placement=\"hardware\",rule=\"scan\"} 1",
        "steerd_policy_reloads_total{result=\"failure\"} 0",
        "steerd_worker_dropped_packets_total{reason=\"unknown_tag\",worker=\"0\"} 1",
        "steerd_worker_poll_errors_total{worker=\"0\"} 5",
        "steerd_worker_queue_failed{worker=\"0\"} 1",
        "steerd_worker_queue_recoveries_total{worker=\"0\"} 2",
        "steerd_device_state{device=\"\",state=\"working\"} 1",
        "steerd_device_state{device=\"\",state=\"gone\"} 0",
        "steerd_worker_out_of_buffer_packets_total{worker=\"0\"} 4",
        "steerd_worker_failed_receives_total{reason=\"length\",worker=\"0\"} 3",
        "steerd_worker_batch_packets_bucket{worker=\"0\",le=\"1\"} 4",
        "steerd_worker_batch_packets_bucket{worker=\"0\",le=\"3\"} 6",
        "steerd_worker_batch_packets_bucket{worker=\"0\",le=\"+Inf\"} 7",
        "steerd_worker_batch_packets_count{worker=\"0\"} 7",
        "steerd_worker_batch_packets_sum{worker=\"0\"} 20",
        "steerd_worker_turn_seconds_bucket{worker=\"0\",le=\"0.000001023\"} 2",
        "steerd_worker_turn_seconds_bucket{worker=\"0\",le=\"0.000004095\"} 5",
        "steerd_worker_turn_seconds_count{worker=\"0\"} 5",
        "steerd_worker_turn_seconds_sum{worker=\"0\"} 0.000009",
        "steerd_worker_time_seconds_total{worker=\"0\",regime=\"idle\"} 1.5",
        "steerd_worker_time_seconds_total{worker=\"0\",regime=\"sink\"} 0.25",
        "steerd_worker_cpu_seconds_total{worker=\"0\"} 0.75",
        "steerd_worker_cpu_wait_seconds_total{worker=\"0\"} 0.5",
        "steerd_worker_latency_seconds_bucket{worker=\"0\",le=\"0.000001023\"} 2",
        "steerd_worker_negative_latencies_total{worker=\"0\"} 1",
        "steerd_sink_deleted_files_total{sink=\"sizes\",kind=\"count\"} 8",
        "steerd_sink_export_flows_total{sink=\"sizes\",kind=\"count\"} 70",
        "steerd_sink_export_lost_flows_total{sink=\"sizes\",kind=\"count\"} 3",
        "steerd_sink_export_connected{sink=\"sizes\",kind=\"count\"} 0",
        "steerd_sink_packet_size_bytes_bucket{sink=\"sizes\",kind=\"count\",le=\"127\"} 4",
        "steerd_sink_packet_size_bytes_sum{sink=\"sizes\",kind=\"count\"} 300",
        "steerd_port_up{port=\"1\"} 0",
        "steerd_port_dropped_packets_total{port=\"1\",reason=\"out_of_buffer\"} 9",
    ] {
        assert!(has(&text, line), "no {line} in:\n{text}");
    }
}

/// Whether the text has the line, its labels in any order.
fn has(text: &str, line: &str) -> bool {
    let sorted = |line: &str| {
        let mut parts: Vec<String> = line.split(['{', ',', '}']).map(ToOwned::to_owned).collect();
        parts.sort();
        parts
    };
    text.lines().any(|found| sorted(found) == sorted(line))
}

#[test]
fn a_rule_of_the_past_has_only_what_it_has_counted() {
    let series = |text: &str| text.matches("rule=\"renamed\"").count();
    let text = text();
    assert_eq!(series(&text), 2, "packets and bytes that it dropped, nothing delivered: {text}");
}

/// The rules are summed, so that a sum over all rules is complete.
#[test]
fn rules_that_are_not_to_be_counted_have_no_series_of_their_own() {
    let text = text();
    assert!(!text.contains("\"quiet\"") && !text.contains("\"hushed\""), "{text}");
    for line in [
        "steerd_rule_packets_total{action=\"deliver\",rule=\"(not exported)\"} 21",
        "steerd_rule_packets_total{action=\"drop\",rule=\"(not exported)\"} 2",
        "steerd_rule_bytes_total{action=\"deliver\",rule=\"(not exported)\"} 2060",
    ] {
        assert!(has(&text, line), "no {line} in:\n{text}");
    }
    assert_eq!(text.matches("(not exported)").count(), 4, "{text}");
}

#[test]
fn copies_that_a_rule_did_not_ask_for_are_not_its_packets() {
    let text = text();
    assert!(has(&text, "steerd_rule_filtered_copies_total{rule=\"ear\"} 6"), "{text}");
    assert!(has(&text, "steerd_rule_packets_total{action=\"deliver\",rule=\"ear\"} 4"), "{text}");
    assert_eq!(text.matches("rule=\"ear\"").count(), 3, "packets, bytes and filtered copies: {text}");
}

#[test]
fn packets_counted_without_their_bytes_have_no_series_of_bytes() {
    let text = text();
    assert!(has(&text, "steerd_rule_packets_total{action=\"kernel\",rule=\"default\"} 44284"), "{text}");
    assert_eq!(text.matches("rule=\"default\"").count(), 1, "{text}");
}

#[test]
fn what_is_not_known_is_absent_and_not_zero() {
    let text = text();
    for absent in [
        "steerd_port_received",
        "steerd_port_kernel",
        "steerd_accounting",
        "steerd_in_flight",
        "rule=\"uncountable\"",
        "# TYPE steerd_port_sent",
    ] {
        assert!(!text.contains(absent), "{absent} in {text}");
    }
}

#[test]
fn the_reference_lists_every_metric() {
    let page = include_str!("../../../../../docs/reference/monitoring.md");
    let row = |metric: Metric| {
        let kind = format!("{:?}", metric.kind).to_lowercase();
        format!("| `{}` | {kind} | {} | {} |", metric.name, metric.labels.join(", "), metric.help)
    };
    let expected: Vec<String> = metrics().map(row).collect();
    let (_, table) = page.split_once("\n## Metrics\n").expect("the section");
    let listed: Vec<&str> = table.lines().filter(|line| line.starts_with("| `")).collect();
    assert_eq!(listed, expected, "the table should be:\n{}", expected.join("\n"));
}

/// An alert about a series that is never exported cannot fire, and its rate is never recorded.
#[test]
fn every_metric_of_the_rules_is_exported() {
    let alerts = include_str!("../../../../../deploy/prometheus/steerd.rules.yml");
    let recorded = include_str!("../../../../../deploy/prometheus/steerd.recording.yml");
    let mut state = scene();
    state.accounting.ports_counted = true;
    state.accounting.matches = Some(false);
    state.ports[0].counters = Some(PortCounters::default());
    state.device.engine_stalled = Some(false);
    let text = render(&state).expect("text");
    // The name of a recorded series has colons.
    let words = |line: &'static str| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    for (rules, example) in
        [(alerts, "steerd_last_reload_successful"), (recorded, "steerd_worker_time_seconds_total")]
    {
        let code = rules.lines().filter(|line| !line.trim_start().starts_with('#'));
        let words = code.flat_map(words).map(|word| word.trim_end_matches(':'));
        let named: Vec<&str> = words.filter(|word| word.starts_with("steerd_")).collect();
        assert!(named.contains(&example), "{named:?}");
        for metric in named {
            assert!(text.contains(&format!("# TYPE {metric} ")), "{metric} is not exported");
        }
    }
}

/// Every name that a recording rule uses or the reference lists is recorded.
#[test]
fn the_reference_lists_the_recorded_series() {
    let rules = include_str!("../../../../../deploy/prometheus/steerd.recording.yml");
    let page = include_str!("../../../../../docs/reference/monitoring.md");
    let recorded: Vec<&str> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("- record: ")).collect();
    let words = |text: &'static str| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    let is_name = |word: &&str| word.contains(":steerd_");
    let used = words(rules).filter(is_name).chain(words(page).filter(is_name));
    for name in used {
        assert!(recorded.contains(&name), "{name} is not recorded");
    }
    for name in recorded {
        let of = name.split(':').next().unwrap_or_default();
        assert!(page.contains(&format!("| `{of}:")), "{name} is not in the reference");
    }
}

#[test]
fn what_ports_count_is_there() {
    let mut state = scene();
    state.accounting.ports_counted = true;
    state.accounting.matches = Some(false);
    state.ports[0].counters = Some(PortCounters { received_packets: 12, ..PortCounters::default() });
    let text = render(&state).expect("text");
    assert!(text.contains("steerd_port_received_packets_total{port=\"1\"} 12"), "{text}");
    assert!(text.contains("\nsteerd_accounting_matches 0"), "{text}");
}

/// Every counter of a port in the metrics and in the state, under the same names as always.
#[test]
fn all_counters_of_a_port_are_in_metrics_and_state() {
    let mut state = scene();
    state.ports[0].counters = Some(PortCounters::from(&distinct_stats()));
    state.ports[0].claims = Some(PortClaims::default());
    state.ports[0].nic_filters = Some(PortFilters::default());
    let text = render(&state).expect("text");
    let lines = text.lines().filter(|line| line.contains("steerd_port_"));
    let json = serde_json::to_string_pretty(&state.ports[0]).expect("JSON");
    insta::assert_snapshot!(lines.chain([json.as_str()]).collect::<Vec<_>>().join("\n"));
}

#[test]
fn soft_nics_that_only_send_have_series_of_their_own() {
    let mut state = scene();
    let counters = PortCounters { sent_packets: 12, send_errors: 3, ..PortCounters::default() };
    let port = PortState { port: 1, up: Some(false), counters: Some(counters), ..PortState::default() };
    let name = "softnic1".to_owned();
    state.other_devices = vec![OtherDeviceState { name, engine_stalled: true, ports: vec![port] }];
    let text = render(&state).expect("text");
    for line in [
        "steerd_engine_stalled{device=\"softnic1\"} 1",
        "steerd_other_port_up{device=\"softnic1\",port=\"1\"} 0",
        "steerd_other_port_sent_packets_total{device=\"softnic1\",port=\"1\"} 12",
        "steerd_other_port_send_errors_total{device=\"softnic1\",port=\"1\"} 3",
    ] {
        assert!(text.contains(&format!("\n{line}\n")), "no {line} in\n{text}");
    }
    assert!(!text.contains("steerd_port_sent_packets_total"), "they are not the workers' ports:\n{text}");
}

#[test]
fn a_name_with_brackets_does_not_shift_the_fields() {
    let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 100 23 13 14 15 16 17 18 19 20 555 22";
    assert_eq!(parse_stat(stat), Some((123, 555)));
    assert_eq!(parse_stat("7 no name"), None);
}

#[test]
fn this_process_uses_memory() {
    let usage = ProcessUsage::read().expect("/proc");
    assert!(usage.resident_bytes > 0 && usage.open_files > 0);
}
