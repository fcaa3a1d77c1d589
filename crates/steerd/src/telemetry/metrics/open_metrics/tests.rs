//! The text is read by a parser that accepts nothing beyond the specification.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::port_counters::PortCounters;
use crate::state::State;
use crate::telemetry::metrics::{render, render_open, tests::scene};

/// A family as the parser reads it.
#[derive(Debug, Default)]
struct ParsedFamily {
    kind: String,
    unit: Option<String>,
    help: Option<String>,
    /// The values by the name of the series and its labels.
    series: BTreeMap<(String, BTreeMap<String, String>), f64>,
}

/// Reads a text of OpenMetrics.
fn parse(text: &str) -> Result<BTreeMap<String, ParsedFamily>, String> {
    let lines = text.strip_suffix("# EOF\n").ok_or("the last line is not # EOF")?;
    let mut families = BTreeMap::new();
    let mut current: Option<(String, ParsedFamily)> = None;
    for line in lines.lines() {
        let wrong = |why: &str| Err(format!("{why}: {line}"));
        if let Some(metadata) = line.strip_prefix("# ") {
            let mut words = metadata.splitn(3, ' ');
            let (Some(what), Some(name), Some(value)) = (words.next(), words.next(), words.next()) else {
                return wrong("incomplete metadata");
            };
            if current.as_ref().is_none_or(|(of, _)| of != name) {
                finish(&mut families, current.take())?;
                current = Some((name.to_owned(), ParsedFamily::default()));
            }
            let Some((_, family)) = &mut current else { return wrong("no family") };
            if !family.series.is_empty() {
                return wrong("metadata behind samples");
            }
            match what {
                "TYPE" if family.kind.is_empty() => value.clone_into(&mut family.kind),
                "UNIT" if family.unit.is_none() && name.ends_with(&format!("_{value}")) => {
                    family.unit = Some(value.to_owned());
                }
                "HELP" if family.help.is_none() => family.help = Some(unescape(value)?),
                _ => return wrong("metadata that is unknown, twice or wrong"),
            }
            continue;
        }
        let Some((name, family)) = &mut current else { return wrong("a sample without a type") };
        let (series, labels, value) = sample_of(line)?;
        let suffixes: &[&str] = match &*family.kind {
            "counter" => &["_total"],
            "gauge" => &[""],
            "histogram" => &["_bucket", "_count", "_sum"],
            "info" => &["_info"],
            _ => return wrong("no type"),
        };
        if !suffixes.iter().any(|suffix| series == format!("{name}{suffix}")) {
            return wrong("a sample of another family");
        }
        let is_allowed = match &*family.kind {
            "info" => (value - 1.0).abs() < f64::EPSILON,
            "counter" => value >= 0.0,
            _ => true,
        };
        if !is_allowed {
            return wrong("no value of this type");
        }
        if family.series.insert((series, labels), value).is_some() {
            return wrong("a series twice");
        }
    }
    finish(&mut families, current)?;
    Ok(families)
}

fn finish(
    families: &mut BTreeMap<String, ParsedFamily>,
    ended: Option<(String, ParsedFamily)>,
) -> Result<(), String> {
    let Some((name, family)) = ended else { return Ok(()) };
    if family.kind == "histogram" {
        check_histogram(&name, &family)?;
    }
    match families.insert(name.clone(), family) {
        Some(_) => Err(format!("{name} is there twice, or in pieces")),
        None => Ok(()),
    }
}

/// Buckets are in order, cumulative, and the last one has all values.
fn check_histogram(name: &str, family: &ParsedFamily) -> Result<(), String> {
    let mut buckets: BTreeMap<BTreeMap<String, String>, Vec<(f64, f64)>> = BTreeMap::new();
    for ((series, labels), value) in &family.series {
        if *series == format!("{name}_bucket") {
            let mut labels = labels.clone();
            let bound = labels.remove("le").ok_or("a bucket without a bound")?;
            if bound != "+Inf" && !bound.contains(['.', 'e']) {
                return Err(format!("{name}: {bound} is not a floating-point number"));
            }
            let bound = bound.parse::<f64>().map_err(|error| format!("{bound}: {error}"))?;
            buckets.entry(labels).or_default().push((bound, *value));
        }
    }
    for (labels, mut buckets) in buckets {
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        let is_cumulative = buckets.is_sorted_by(|a, b| a.1 <= b.1);
        let last = buckets.last().copied().unwrap_or_default();
        let count = family.series.get(&(format!("{name}_count"), labels.clone()));
        let has_sum = family.series.contains_key(&(format!("{name}_sum"), labels));
        if !is_cumulative || last.0 != f64::INFINITY || Some(&last.1) != count || !has_sum {
            return Err(format!("{name}: {buckets:?} is no histogram of {count:?} values"));
        }
    }
    Ok(())
}

/// The name, labels and value of a line.
fn sample_of(line: &str) -> Result<(String, BTreeMap<String, String>, f64), String> {
    let name_end = line.find(['{', ' ']).ok_or_else(|| format!("no value: {line}"))?;
    let (name, mut rest) = line.split_at(name_end);
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    if name.is_empty() || !name.chars().all(is_name) {
        return Err(format!("no name: {line}"));
    }
    let mut labels = BTreeMap::new();
    if let Some(mut inside) = rest.strip_prefix('{') {
        loop {
            let (label, behind) = inside.split_once("=\"").ok_or_else(|| format!("no label: {line}"))?;
            let end = end_of_string(behind).ok_or_else(|| format!("a string without an end: {line}"))?;
            if labels.insert(label.to_owned(), unescape(&behind[..end])?).is_some() {
                return Err(format!("a label twice: {line}"));
            }
            rest = &behind[end + 1..];
            match rest.strip_prefix(',') {
                Some(next) => inside = next,
                None => break,
            }
        }
        rest = rest.strip_prefix('}').ok_or_else(|| format!("labels without an end: {line}"))?;
    }
    let value = rest.strip_prefix(' ').ok_or_else(|| format!("no value: {line}"))?;
    let value = value.parse::<f64>().map_err(|error| format!("{line}: {error}"))?;
    Ok((name.to_owned(), labels, value))
}

fn end_of_string(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.char_indices().find_map(|(at, c)| {
        let ends = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        ends.then_some(at)
    })
}

fn unescape(text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, if c == '\\' { chars.next() } else { None }) {
            ('\\', Some('n')) => out.push('\n'),
            ('\\', Some(c @ ('\\' | '"'))) => out.push(c),
            ('\\' | '"', _) => return Err(format!("wrong escape: {text}")),
            (c, _) => out.push(c),
        }
    }
    Ok(out)
}

/// A state in which most metrics have series.
fn full() -> State {
    let mut state = scene();
    state.accounting.ports_counted = true;
    state.accounting.matches = Some(false);
    state.ports[0].counters = Some(PortCounters { received_packets: 12, ..PortCounters::default() });
    state
}

#[test]
fn a_strict_parser_reads_all_families() {
    let text = render_open(&full());
    let families = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert!(families.len() > 40, "{}", families.len());
    for (name, family) in &families {
        assert!(family.help.as_ref().is_some_and(|help| !help.is_empty()), "{name} has no help");
        assert!(!family.series.is_empty(), "{name} has no series");
    }
    let [rules, build] = ["steerd_rule_packets", "steerd_build"].map(|name| &families[name]);
    assert_eq!((&*rules.kind, &*build.kind), ("counter", "info"));
    let quoted = rules.series.keys().any(|(_, labels)| labels["rule"] == "web \"x\"");
    assert!(quoted, "{text}");
    let help = families["steerd_port_dropped_packets"].help.as_deref();
    assert!(help.is_some_and(|help| help.contains("\"wire\"")), "{help:?}");
    for (name, unit) in [
        ("steerd_worker_time_seconds", "seconds"),
        ("steerd_rule_bytes", "bytes"),
        ("steerd_start_time_seconds", "seconds"),
    ] {
        assert_eq!(families[name].unit.as_deref(), Some(unit), "{name}");
    }
    assert_eq!(rules.unit, None);
}

/// Both formats have the same series with the same values, but for the form of bounds.
#[test]
fn both_formats_have_the_same_series() {
    let state = full();
    let (text, open) = (render(&state).expect("text"), render_open(&state));
    // What the process itself uses changes from one to the other.
    let series = |text: &str| -> BTreeSet<String> {
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.starts_with("process_"));
        let normal = |line: &str| {
            let (name, mut labels, value) = sample_of(line).expect("a sample");
            if let Some(bound) = labels.get_mut("le") {
                *bound = format!("{}", bound.parse::<f64>().expect("a number"));
            }
            format!("{name} {labels:?} {value}")
        };
        lines.map(normal).collect()
    };
    let (text, open) = (series(&text), series(&open));
    assert!(text.len() > 60);
    assert_eq!(text.symmetric_difference(&open).collect::<Vec<_>>(), Vec::<&String>::new());
}

#[test]
fn bounds_have_the_form_of_the_specification() {
    let forms = [
        (1.0, "1.0"),
        (0.5, "0.5"),
        (100_000.0, "100000.0"),
        (1e6, "1e+06"),
        (1_048_575.0, "1.048575e+06"),
        (0.0001, "0.0001"),
        (0.000_01, "1e-05"),
        (0.000_001_023, "1.023e-06"),
        (1e-10, "1e-10"),
        (f64::INFINITY, "+Inf"),
    ];
    for (bound, form) in forms {
        assert_eq!(canonical(bound), form);
    }
}

#[test]
fn the_parser_refuses_what_is_not_allowed() {
    let head = "# TYPE a counter\n# HELP a Words.\n";
    assert!(parse(&format!("{head}a_total 1\n# EOF\n")).is_ok());
    for wrong in [
        format!("{head}a_total 1\n"),
        format!("{head}a_total 1\n# EOF\n\n"),
        format!("{head}a 1\n# EOF\n"),
        format!("{head}a_total -1\n# EOF\n"),
        format!("{head}a_total 1\na_total 1\n# EOF\n"),
        format!("{head}a_total{{x=\"1\",x=\"2\"}} 1\n# EOF\n"),
        format!("{head}a_total{{x=\"\\y\"}} 1\n# EOF\n"),
        format!("{head}a_total 1\n# UNIT a b\n# EOF\n"),
        "# TYPE a counter\n# UNIT a bytes\n# EOF\n".to_owned(),
        "# TYPE a counter\na_total 1\n# TYPE b counter\nb_total 1\n# TYPE a counter\n# EOF\n".to_owned(),
        "# TYPE a histogram\na_bucket{le=\"1\"} 1\na_bucket{le=\"+Inf\"} 1\na_count 1\na_sum 1\n# EOF\n"
            .to_owned(),
        "# TYPE a histogram\na_bucket{le=\"1.0\"} 2\na_bucket{le=\"+Inf\"} 1\na_count 1\na_sum 1\n# EOF\n"
            .to_owned(),
    ] {
        assert!(parse(&wrong).is_err(), "{wrong}");
    }
}
