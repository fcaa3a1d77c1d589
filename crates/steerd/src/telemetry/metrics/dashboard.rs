//! The Grafana dashboard `deploy/grafana/steerd.json`: an overview, then a row of panels for each scope,
//! with a panel for each metric. It is made from the table of metrics, so that none is missing and none is
//! misspelt.

use prometheus::proto::MetricType;
use serde_json::{Value, json};

use super::{Metric, metrics};

/// The variable that has the test write the file instead of comparing it.
const UPDATE: &str = "STEERD_UPDATE_DASHBOARD";
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/grafana/steerd.json");
/// The JSON model of Grafana 10 and 11 (packages/grafana-schema/src/raw/dashboard of its sources).
const SCHEMA_VERSION: u32 = 39;

/// Titles of rows and the beginnings of the names of their metrics; the last takes the rest.
const SCOPES: [(&str, &str); 6] = [
    ("Rules", "steerd_rule_"),
    ("Ports", "steerd_port_"),
    ("Workers", "steerd_worker_"),
    ("Sinks", "steerd_sink_"),
    ("Policy", "steerd_policy_"),
    ("Daemon and device", ""),
];
/// The rules that a panel shows, those with most packets.
const MOST_RULES: u32 = 20;
const PANELS_IN_A_ROW: usize = 3;
/// In units of the grid, which is 24 wide.
const PANEL: (usize, usize) = (8, 7);
const OVERVIEW: (usize, usize) = (6, 5);

/// The panels of the overview: title, unit, expression, the legend, whether it is a single value.
const OVERVIEW_PANELS: [(&str, &str, &str, &str, bool); 8] = [
    ("Ready", "bool_yes_no", "steerd_ready{instance=~\"$instance\"}", "{{instance}}", true),
    (
        "Every packet is accounted for",
        "bool_yes_no",
        "steerd_accounting_matches{instance=~\"$instance\"}",
        "{{instance}}",
        true,
    ),
    (
        "Last reload succeeded",
        "bool_yes_no",
        "steerd_last_reload_successful{instance=~\"$instance\"}",
        "{{instance}}",
        true,
    ),
    ("Sinks that lose all packets", "short", "sum(steerd_sink_losing{instance=~\"$instance\"})", "", true),
    (
        "Received",
        "pps",
        "sum by (instance, port) (rate(steerd_port_received_packets_total{instance=~\"$instance\"}[$__rate_interval]))",
        "{{instance}} port {{port}}",
        false,
    ),
    (
        "Packets of rules by action",
        "pps",
        "sum by (action) (rate(steerd_rule_packets_total{instance=~\"$instance\"}[$__rate_interval]))",
        "{{action}}",
        false,
    ),
    (
        "Lost by ports",
        "pps",
        "sum by (instance, port, reason) (rate(steerd_port_dropped_packets_total{instance=~\"$instance\"}[$__rate_interval])) > 0",
        "{{instance}} port {{port}} {{reason}}",
        false,
    ),
    (
        "Busy part of workers",
        "percentunit",
        "1 - sum by (instance, worker) (rate(steerd_worker_time_seconds_total{instance=~\"$instance\",regime=\"idle\"}[$__rate_interval]))",
        "{{instance}} worker {{worker}}",
        false,
    ),
];

/// Hands out numbers and places of panels, from left to right and from top to bottom.
#[derive(Default)]
struct Layout {
    panels: Vec<Value>,
    next_id: usize,
    top: usize,
}

impl Layout {
    /// Adds panels of this width and height below the last ones.
    fn add(
        &mut self,
        panels: impl IntoIterator<Item = Value>,
        (width, height): (usize, usize),
        columns: usize,
    ) {
        let mut rows = 0;
        for (index, mut panel) in panels.into_iter().enumerate() {
            self.next_id += 1;
            rows = index / columns + 1;
            panel["id"] = json!(self.next_id);
            panel["gridPos"] = json!({
                "x": index % columns * width, "y": self.top + index / columns * height, "w": width, "h": height
            });
            self.panels.push(panel);
        }
        self.top += rows * height;
    }
}

impl Layout {
    /// Adds a row that is closed: its panels ask for nothing until it is opened.
    fn add_row(&mut self, title: &str, panels: impl IntoIterator<Item = Value>) {
        self.add([json!({ "type": "row", "title": title, "collapsed": true })], (24, 1), 1);
        let (row, top) = (self.panels.len() - 1, self.top);
        self.add(panels, PANEL, PANELS_IN_A_ROW);
        let inside = self.panels.split_off(row + 1);
        self.panels[row]["panels"] = inside.into();
        self.top = top;
    }
}

fn dashboard() -> Value {
    let mut layout = Layout::default();
    let overview = OVERVIEW_PANELS.map(|(title, unit, expression, legend, is_single)| {
        let kind = if is_single { "stat" } else { "timeseries" };
        let mut panel = panel(kind, title, "", unit, &[(expression.to_owned(), legend.to_owned())]);
        if is_single {
            panel["fieldConfig"]["defaults"]["thresholds"] = thresholds(unit);
        }
        panel
    });
    layout.add(overview, OVERVIEW, 4);
    let all: Vec<Metric> = metrics().collect();
    let scope_of = |metric: &Metric| SCOPES.iter().position(|(_, prefix)| metric.name.starts_with(prefix));
    for (index, (title, _)) in SCOPES.iter().enumerate() {
        let own = all.iter().filter(|metric| scope_of(metric) == Some(index));
        layout.add_row(title, own.map(metric_panel));
    }
    json!({
        "uid": "steerd",
        "title": "steerd",
        "description": "Packet steering: rules, ports, workers and sinks, and where packets are lost.",
        "tags": ["steerd"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": true,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": { "from": "now-1h", "to": "now" },
        "templating": { "list": [
            { "name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source" },
            {
                "name": "instance", "type": "query", "label": "Instance", "datasource": data_source(),
                "query": "label_values(steerd_ready, instance)", "refresh": 2, "sort": 1, "multi": true,
                "includeAll": true, "current": { "text": ["All"], "value": ["$__all"] }
            }
        ] },
        "panels": layout.panels,
    })
}

/// Red where 0 means that something is wrong, or where more than 0 does.
fn thresholds(unit: &str) -> Value {
    let (at_zero, from_one) = if unit == "bool_yes_no" { ("red", "green") } else { ("green", "red") };
    let steps = json!([{ "color": at_zero, "value": null }, { "color": from_one, "value": 1 }]);
    json!({ "mode": "absolute", "steps": steps })
}

fn data_source() -> Value {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}

/// A panel with a query for each expression and legend.
fn panel(kind: &str, title: &str, description: &str, unit: &str, queries: &[(String, String)]) -> Value {
    let targets: Vec<Value> = queries
        .iter()
        .zip('A'..)
        .map(|((expression, legend), id)| {
            json!({ "refId": id.to_string(), "datasource": data_source(), "expr": expression, "legendFormat": legend })
        })
        .collect();
    json!({
        "type": kind,
        "title": title,
        "description": description,
        "datasource": data_source(),
        "targets": targets,
        "fieldConfig": { "defaults": { "unit": unit }, "overrides": [] },
        "options": {},
    })
}

fn metric_panel(metric: &Metric) -> Value {
    let Metric { name, help, kind, labels, .. } = *metric;
    let legend: Vec<String> =
        ["instance"].iter().chain(labels).map(|label| format!("{{{{{label}}}}}")).collect();
    let legend = legend.join(" ");
    let by = ["instance"].iter().chain(labels).copied().collect::<Vec<_>>().join(", ");
    let title = name.trim_start_matches("steerd_").trim_end_matches("_total").replace('_', " ");
    let series = format!("{name}{{instance=~\"$instance\"}}");
    match kind {
        MetricType::COUNTER => {
            let rate = format!("sum by ({by}) (rate({series}[$__rate_interval]))");
            let rate = if labels.contains(&"rule") { format!("topk({MOST_RULES}, {rate})") } else { rate };
            panel("timeseries", &title, help, unit_of_rate(name), &[(rate, legend)])
        }
        MetricType::HISTOGRAM => {
            let quantile = |part: &str| {
                let buckets = format!("{name}_bucket{{instance=~\"$instance\"}}");
                let rates = format!("sum by (le, {by}) (rate({buckets}[$__rate_interval]))");
                (format!("histogram_quantile({part}, {rates})"), format!("{legend} p{}", &part[2..]))
            };
            panel("timeseries", &title, help, unit_of(name), &[quantile("0.50"), quantile("0.99")])
        }
        _ if name.ends_with("timestamp_seconds") || name.ends_with("start_time_seconds") => {
            panel("stat", &title, help, "dateTimeAsIso", &[(format!("1000 * {series}"), legend)])
        }
        _ => panel("timeseries", &title, help, unit_of(name), &[(series, legend)]),
    }
}

/// The unit, as Grafana names it, of what a counter counts in a second.
fn unit_of_rate(name: &str) -> &'static str {
    let counted = name.trim_end_matches("_total");
    match () {
        () if counted.ends_with("_packets") || counted.ends_with("_copies") => "pps",
        () if counted.ends_with("_bytes") => "Bps",
        () if counted.ends_with("_seconds") => "percentunit",
        () => "cps",
    }
}

fn unit_of(name: &str) -> &'static str {
    match () {
        () if name.ends_with("_bytes") => "bytes",
        () if name.ends_with("_seconds") => "s",
        () => "short",
    }
}

#[test]
fn the_dashboard_is_that_of_the_metrics() {
    let made = format!("{:#}\n", dashboard());
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(FILE, &made).expect("the file can be written");
    }
    let kept = std::fs::read_to_string(FILE).unwrap_or_default();
    assert!(kept == made, "deploy/grafana/steerd.json is outdated: run this test with {UPDATE}=1");
}

/// The overview's expressions are written by hand.
#[test]
fn the_overview_asks_for_metrics_and_labels_that_exist() {
    let all: Vec<Metric> = metrics().collect();
    for (title, _, expression, legend, _) in OVERVIEW_PANELS {
        let name = expression.split(['(', ' ', '{']).find(|word| word.starts_with("steerd_")).expect(title);
        let metric =
            all.iter().find(|metric| metric.name == name).unwrap_or_else(|| panic!("{title}: {name}"));
        let of_legend = legend.split("{{").skip(1).filter_map(|rest| rest.split("}}").next());
        let by = expression.split("by (").nth(1).and_then(|rest| rest.split(')').next()).unwrap_or_default();
        let compared =
            expression.split(['{', ',']).filter_map(|part| part.split_once("=").map(|(name, _)| name));
        let compared = compared.map(|name| name.trim_end_matches('~'));
        for label in of_legend.chain(by.split(", ").filter(|label| !label.is_empty())).chain(compared) {
            assert!(label == "instance" || metric.labels.contains(&label), "{title}: {label}");
        }
    }
}

#[test]
fn panels_do_not_overlap_and_have_different_numbers() {
    let made = dashboard();
    let rows = made["panels"].as_array().expect("panels");
    let mut numbers = std::collections::BTreeSet::new();
    not_overlapping(rows, &mut numbers);
    for inside in rows.iter().filter_map(|row| row["panels"].as_array()) {
        not_overlapping(inside, &mut numbers);
    }
    assert_eq!(numbers.len(), OVERVIEW_PANELS.len() + SCOPES.len() + metrics().count());
}

fn not_overlapping(panels: &[Value], numbers: &mut std::collections::BTreeSet<Option<u64>>) {
    let mut taken = std::collections::BTreeSet::new();
    for panel in panels {
        let place = |key: &str| panel["gridPos"][key].as_u64().expect("a number");
        assert!(place("x") + place("w") <= 24, "{panel}");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(taken.insert((x, y)), "{panel}");
            }
        }
        assert!(numbers.insert(panel["id"].as_u64()), "{panel}");
    }
}
