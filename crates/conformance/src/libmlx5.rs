//! What rows answer on rdma-core's mlx5 provider over the model of the kernel and of the device (`softnic
//! exec --method mlx5`). `make conformance-libmlx5` writes the record, the document shows it, and a test runs
//! the rows again.

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::{Case, Report, Row, Verdict};

/// The committed record.
pub const RECORD: &str = include_str!("libmlx5.tsv");
const HEAD: &str = "# Written by `make conformance-libmlx5`; see docs/generated/conformance.md.\n";

/// The mark of a feature that the model does not have: it refuses those with EOPNOTSUPP.
const NOT_MODELLED: &str = "not modelled";

/// A row's name in the record.
fn name([verb, field, value, offered]: [&str; 4]) -> String {
    [verb, field, value, offered].join("\t")
}

/// The answer of a row that was run. How an answer differs may depend on the time, and is left out.
fn answer(row: &Row) -> Option<&str> {
    let is_mismatch = row.verdict == Verdict::Mismatch;
    match row.seen.as_str() {
        _ if row.verdict == Verdict::NotRun => None,
        "refused: EOPNOTSUPP" if is_mismatch => Some(NOT_MODELLED),
        seen => Some(seen.split(':').next().filter(|seen| *seen == "differs").unwrap_or(seen)),
    }
}

/// The record of a report: a line per row that was run.
#[must_use]
pub fn record(report: &Report) -> String {
    let mut text = HEAD.to_owned();
    for row in &report.rows {
        if let Some(answer) = answer(row) {
            let _ = writeln!(text, "{}\t{answer}", name([&row.verb, row.field, row.value, row.offered]));
        }
    }
    text
}

/// The answers of the committed record, by the names of their rows.
pub(crate) fn answers() -> HashMap<&'static str, &'static str> {
    RECORD.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once('\t')).collect()
}

/// How the answer of rdma-core's mlx5 provider to a case is known.
pub(crate) fn column(case: &Case, answers: &HashMap<&str, &str>) -> String {
    let verb = case.verb.to_string();
    match answers.get(name([&verb, case.field, case.value, case.offered]).as_str()) {
        Some(&NOT_MODELLED) => NOT_MODELLED.to_owned(),
        Some(answer) => format!("run: {answer}"),
        None if case.expected.source.contains("inferred") || case.expected.source.is_empty() => {
            "inferred".to_owned()
        }
        None => "read".to_owned(),
    }
}
