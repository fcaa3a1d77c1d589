//! `make bench`: what packets cost beyond the worker's loop, beside other programs that do the same work in
//! the same run: the worker's cost with each kind of sink, the hand-off to a process beside `net_memif`, and
//! the rate of captures without loss beside dumpcap, tcpdump and netsniff-ng. Every figure is the median of
//! interleaved rounds: compare ratios, not runs. Forwarding beside testpmd is in the bench `neighbours`.
//!
//! It runs in a network namespace of its own (it starts itself by `unshare`), on two cores: what is measured
//! on core 0, the other side on core 1. A program or privilege that is missing makes its rows "not measured".
//! Takes about four minutes; `cost`, `handoff` and `capture` as arguments select tables. Writes
//! `target/bench/sinks.json`.
#![forbid(unsafe_code)]

mod capture;
mod cost;
mod handoff;

use std::path::{Path, PathBuf};

use program::AppSink;
use steerd_benches::namespace;
use steerd_benches::table::{self, Row};

/// The core of the worker, or of what takes its place.
const CORE: usize = 0;
/// The core of clients, writers and capture programs.
const OTHER_CORE: usize = 1;
const SIZES: [u32; 2] = [64, 1514];
/// Frames received before the worker polls: fewer than its sinks may have in flight.
const PULSE: u64 = 512;
/// Frames of one pass of the engine, which sends as many.
const BURST: usize = 64;
/// A file system in memory.
const TMPFS: &str = "/dev/shm";

fn main() {
    namespace::enter();
    let tables = ["cost", "handoff", "capture"];
    let chosen: Vec<String> = std::env::args().filter(|word| tables.contains(&word.as_str())).collect();
    let is_chosen = |table: &str| chosen.is_empty() || chosen.iter().any(|word| word == table);
    let folder = tempfile::Builder::new().prefix("steerd-bench").tempdir().expect("a temporary folder");
    let memory = tempfile::Builder::new().prefix("steerd-bench").tempdir_in(TMPFS);
    let memory: Result<&Path, String> = match &memory {
        Ok(folder) => Ok(folder.path()),
        Err(error) => Err(format!("{TMPFS}: {error}")),
    };
    let mut rows = Vec::new();
    if is_chosen("cost") {
        rows.extend(cost_rows(folder.path(), &memory));
    }
    if is_chosen("handoff") {
        rows.extend(handoff::rows(folder.path()));
    }
    if is_chosen("capture") {
        rows.extend(capture::rows(&memory));
    }
    print(&rows);
    print_goals(&rows);
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench");
    std::fs::create_dir_all(&target).expect("target can be written");
    std::fs::write(target.join("sinks.json"), format!("{:#}\n", table::json(&rows)))
        .expect("target can be written");
}

fn cost_rows(folder: &Path, memory: &Result<&Path, String>) -> Vec<Row> {
    const ROUNDS: usize = 5;
    // Threads that sinks start get the affinity of the thread that opens them.
    pin(OTHER_CORE);
    let mut cost = cost::Table::new(folder, memory);
    pin(CORE);
    for _ in 0..ROUNDS {
        cost.round();
    }
    cost.rows().collect()
}

fn pin(core: usize) {
    // Without that core the figures are worse, but valid.
    core_affinity::set_for_current(core_affinity::CoreId { id: core });
}

/// The socket that a sink of kind `app` listens on in this folder.
fn app(folder: &Path, name: &str) -> (PathBuf, AppSink) {
    let socket = folder.join(name);
    (socket.clone(), AppSink::new(socket))
}

fn print(rows: &[Row]) {
    let mut table = "";
    for row in rows {
        if row.table != table {
            table = row.table;
            println!(
                "\n{table}: median of {} rounds (least to most)",
                row.figures.as_ref().map_or(0, Vec::len)
            );
        }
        println!("{}", row.text());
    }
}

/// The rows that the goals are about.
fn print_goals(rows: &[Row]) {
    println!();
    let find = |what: &str, bytes| {
        rows.iter().find(|row| row.what == what && row.frame_bytes == bytes).and_then(Row::median)
    };
    for bytes in SIZES {
        let own = find(handoff::OWN, bytes);
        for reference in [handoff::TXONLY, handoff::IO] {
            if let (Some(own), Some(other)) = (own, find(reference, bytes)) {
                goal(
                    &format!("hand-off, {bytes} B, rate at least that of `{reference}`"),
                    own / other,
                    own >= other,
                );
            }
        }
    }
    for bytes in SIZES {
        // Measured beside measured, computed beside computed, and measured beside what dumpcap could do with
        // a faster generator.
        let computed = (capture::by_time(capture::OWN), capture::by_time("dumpcap"));
        let own = capture::OWN.to_owned();
        let pairs = [(own.clone(), "dumpcap".to_owned()), computed.clone(), (own, computed.1)];
        for (own, reference) in pairs {
            if let (Some(rate), Some(other)) = (find(&own, bytes), find(&reference, bytes)) {
                let text = format!("capture, {bytes} B, `{own}` at 3 times the rate of `{reference}`");
                goal(&text, rate / other, rate >= 3.0 * other);
            }
        }
    }
}

fn goal(text: &str, ratio: f64, is_met: bool) {
    println!("{text}: ratio {ratio:.2}, {}", if is_met { "met" } else { "MISSED" });
}
