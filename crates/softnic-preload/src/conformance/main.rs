//! `softnic-conformance`: existing clients on the soft NIC, as one table.
//!
//! Run by `make conformance`. rdma-core's own tests and tools run on this crate's provider and on rdma-core's
//! own mlx5 provider; perftest runs between two processes joined by a link. Every row contains the
//! measurement; a row that fails makes the exit code 1. Arguments pick rows by a part of their name. The
//! table goes to stdout, the same as JSON into `target/conformance`.

#![forbid(unsafe_code)]

mod method;
mod process;
mod pyverbs;
mod raw_ethernet;
mod rdmasniff;
mod tools;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The result of a row: what was measured, or what went wrong.
type Outcome = Result<String, String>;

/// One thing to show.
struct Case {
    /// `raw_ethernet_bw: UDP`.
    name: String,
    run: Box<dyn Fn(&Path) -> Outcome>,
}

impl Case {
    fn new(name: impl Into<String>, run: impl Fn(&Path) -> Outcome + 'static) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }
}

struct Row {
    name: String,
    outcome: Outcome,
    took: Duration,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut report = PathBuf::from("target/conformance");
    let mut wanted = Vec::new();
    while let Some(argument) = arguments.next() {
        match &*argument {
            "--report" => report = arguments.next().map_or(report, PathBuf::from),
            "--help" | "-h" => {
                println!("softnic-conformance [--report FOLDER] [PART-OF-A-NAME ..]");
                return ExitCode::SUCCESS;
            }
            _ => wanted.push(argument),
        }
    }
    match run(&report, &wanted) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(problem) => {
            let _ = writeln!(io::stderr(), "softnic-conformance: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the wanted rows; answers how many missed.
fn run(report: &Path, wanted: &[String]) -> Result<usize, String> {
    let launcher = launcher()?;
    std::fs::create_dir_all(report).map_err(|error| format!("{}: {error}", report.display()))?;
    let mut cases = tools::cases();
    cases.extend(raw_ethernet::cases());
    cases.extend(rdmasniff::cases());
    cases.extend(pyverbs::cases(report));
    let picked =
        |case: &Case| wanted.is_empty() || wanted.iter().any(|part| case.name.contains(part.as_str()));
    cases.retain(picked);
    if cases.is_empty() {
        return Err("no row has such a name".to_owned());
    }
    let width = cases.iter().map(|case| case.name.len()).max().unwrap_or(0);
    let mut rows = Vec::new();
    for case in cases {
        let started = Instant::now();
        let outcome = (case.run)(&launcher);
        let row = Row { name: case.name, outcome, took: started.elapsed() };
        // As it goes: a row may take a minute.
        print_row(&row, width).map_err(|error| error.to_string())?;
        rows.push(row);
    }
    let missed = rows.iter().filter(|row| row.outcome.is_err()).count();
    println!("{} of {} rows as they should be", rows.len() - missed, rows.len());
    write_json(&report.join("results.json"), &rows)?;
    Ok(missed)
}

/// The launcher of the same build.
fn launcher() -> Result<PathBuf, String> {
    let exe = std::env::current_exe().map_err(|error| error.to_string())?;
    let launcher = exe.with_file_name("softnic");
    if launcher.is_file() { Ok(launcher) } else { Err(format!("{} is missing", launcher.display())) }
}

fn print_row(row: &Row, width: usize) -> io::Result<()> {
    let (mark, text) = match &row.outcome {
        Ok(measured) => ("ok  ", measured),
        Err(problem) => ("MISS", problem),
    };
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    let mut out = io::stdout().lock();
    writeln!(out, "{mark}  {:<width$}  {:>6.1} s  {first}", row.name, row.took.as_secs_f64())?;
    for line in lines {
        writeln!(out, "          {line}")?;
    }
    out.flush()
}

fn write_json(path: &Path, rows: &[Row]) -> Result<(), String> {
    let rows: Vec<_> = rows
        .iter()
        .map(|row| {
            let text = row.outcome.as_ref().unwrap_or_else(|problem| problem);
            serde_json::json!({
                "name": row.name,
                "ok": row.outcome.is_ok(),
                "text": text,
                "seconds": row.took.as_secs_f64(),
            })
        })
        .collect();
    let text = serde_json::to_string_pretty(&rows).map_err(|error| error.to_string())?;
    std::fs::write(path, text + "\n").map_err(|error| format!("{}: {error}", path.display()))
}
