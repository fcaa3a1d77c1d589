//! The text format of OpenMetrics 1.0 (<https://prometheus.io/docs/specs/om/open_metrics_spec/>), from the
//! families of the crate `prometheus`, which has no encoder for it.
//!
//! Differences from Prometheus' text format: the name of a family of counters is without `_total`, a gauge
//! `*_info` is of the type info, units are metadata, bounds of buckets are floating-point numbers (`64.0`),
//! and the end is marked. The names of series are the same. There are no `_created` series: Prometheus
//! stores them as series of their own, and counters of rules start at reloads, which are not recorded by
//! rule.

use std::fmt::Write as _;

use prometheus::proto::{Metric, MetricFamily, MetricType};

/// The media type of the answer.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The units of metrics. Packets, files and the like are no units.
const UNITS: [&str; 2] = ["seconds", "bytes"];

/// The types of OpenMetrics that steerd's metrics have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FamilyType {
    Counter,
    Gauge,
    Histogram,
    Info,
}

impl FamilyType {
    fn of(family: &MetricFamily) -> Self {
        match family.get_field_type() {
            MetricType::COUNTER => Self::Counter,
            MetricType::HISTOGRAM => Self::Histogram,
            _ if family.name().ends_with("_info") => Self::Info,
            _ => Self::Gauge,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Info => "info",
        }
    }

    /// The suffix of the names of its series; those of a histogram have several.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Info => "_info",
            Self::Gauge | Self::Histogram => "",
        }
    }
}

/// The text of all families.
pub(crate) fn encode(families: &[MetricFamily]) -> String {
    let mut text = String::new();
    families.iter().for_each(|family| encode_family(&mut text, family));
    text.push_str("# EOF\n");
    text
}

fn encode_family(text: &mut String, family: &MetricFamily) {
    let kind = FamilyType::of(family);
    let name = family.name();
    let name = name.strip_suffix(kind.suffix()).unwrap_or(name);
    let _ = writeln!(text, "# TYPE {name} {}", kind.name());
    let is_in = |unit: &&str| name.strip_suffix(unit).is_some_and(|rest| rest.ends_with('_'));
    if let Some(unit) = UNITS.iter().find(|unit| is_in(unit)) {
        let _ = writeln!(text, "# UNIT {name} {unit}");
    }
    let _ = writeln!(text, "# HELP {name} {}", escaped(family.help()));
    for metric in family.get_metric() {
        match kind {
            FamilyType::Histogram => encode_histogram(text, name, metric),
            FamilyType::Counter => {
                sample(text, &format!("{name}_total"), metric, None, metric.get_counter().get_value());
            }
            FamilyType::Gauge | FamilyType::Info => {
                let name = format!("{name}{}", kind.suffix());
                sample(text, &name, metric, None, metric.get_gauge().get_value());
            }
        }
    }
}

fn encode_histogram(text: &mut String, name: &str, metric: &Metric) {
    let histogram = metric.get_histogram();
    let bucket_name = format!("{name}_bucket");
    for bucket in histogram.get_bucket() {
        let bound = canonical(bucket.upper_bound());
        sample(text, &bucket_name, metric, Some(&bound), bucket.cumulative_count() as f64);
    }
    let count = histogram.get_sample_count() as f64;
    sample(text, &bucket_name, metric, Some("+Inf"), count);
    sample(text, &format!("{name}_count"), metric, None, count);
    sample(text, &format!("{name}_sum"), metric, None, histogram.get_sample_sum());
}

/// A line with a value, and with the upper bound of a bucket.
fn sample(text: &mut String, name: &str, metric: &Metric, bound: Option<&str>, value: f64) {
    text.push_str(name);
    let labels = metric.get_label().iter().map(|label| (label.name(), label.value()));
    let mut before = '{';
    for (name, value) in labels.chain(bound.map(|bound| ("le", bound))) {
        let _ = write!(text, "{before}{name}=\"{}\"", escaped(value));
        before = ',';
    }
    if before == ',' {
        text.push('}');
    }
    let _ = writeln!(text, " {}", number(value));
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"")
}

fn number(value: f64) -> String {
    match value {
        f64::INFINITY => "+Inf".to_owned(),
        f64::NEG_INFINITY => "-Inf".to_owned(),
        value => value.to_string(),
    }
}

/// The form of bounds that the specification asks for ("Canonical Numbers"), as Go prints `%g`: every library
/// shall print the same label for the same bound.
fn canonical(bound: f64) -> String {
    let scientific = format!("{bound:e}");
    let parts = scientific.split_once('e');
    let Some((mantissa, exponent)) = parts.and_then(|(m, e)| Some((m, e.parse::<i32>().ok()?))) else {
        return number(bound);
    };
    if !(-4..6).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    let plain = bound.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}

#[cfg(test)]
mod tests;
