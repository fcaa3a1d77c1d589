//! `make bench ARGS='--bench neighbours'`: steerd beside what a user would take instead, with the same rules
//! and the same packets, in interleaved rounds of one run, on cores 0 and 1. Takes less than half an hour.
//!
//! - `daemon`: a `steerd run` process beside testpmd with `net_memif` and Open vSwitch on DPDK, from core to
//!   core; few flows and many;
//! - `one-core`: engine and worker in turn, and the worker alone, beside testpmd with `net_pcap`;
//! - `lookup`: the flow table beside `dpdk-test-acl`;
//! - `personalities`: that process on a soft NIC with the limits of an mlx5, beside one without limits;
//! - `providers`: its worker on rdma-core's mlx5 provider, beside the soft NIC's own;
//! - `forward`: the sink beside testpmd's `macswap`;
//! - `interface`: AF_PACKET on a veth pair beside its ring alone, tcpdump, nft and Open vSwitch; idle cores;
//!   memory after reloads;
//! - `change`: packets around a change of rules, beside nft and Open vSwitch.
//!
//! These words as arguments select tables. Each round waits for an idle machine; if it does not become idle,
//! the output and the JSON say that the figures are provisional. What cannot run is "not measured", with the
//! reason.
//!
//! `STEERD_CORPORA` names the folder of the real ClassBench sets. `STEERD_BENCH_FOLDER` keeps rules and
//! traces, so that the commands of the rows can be repeated. `STEERD_BENCH_QUICK=1` tests the bench itself
//! with short rounds on any machine. Writes `neighbours.json`, `neighbours.svg` and `measurements.md` to
//! `target/bench`, and, with `STEERD_BENCH_DOCS=1`, the page to `docs/generated` and the plot to
//! `docs/explanation`.
#![forbid(unsafe_code)]

mod change;
mod forward;
mod inputs;
mod interface;
mod lookup;
mod one_core;
mod personalities;
mod providers;
mod switch;
mod whole;

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use steerd_benches::comparison::{Case, Ratio, interleaved};
use steerd_benches::machine::{self, Gate};
use steerd_benches::table::{self, Row};
use steerd_benches::{namespace, page, plot};

use self::inputs::Inputs;

/// The core of the engine, of the sender, and of everything that runs on one core.
const CORE: usize = 0;
/// The core of the worker and of the receiver.
const OTHER_CORE: usize = 1;
const SIZES: [u32; 2] = [64, 1518];
/// Frames received before the worker polls: fewer than its posted buffers.
const PULSE: u64 = 2048;
/// How long the whole run waits for an idle machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A table: its word, its cases and its ratios.
type Table = (&'static str, fn(&Inputs) -> Vec<Case<'_>>, fn(&Inputs, &[Row]) -> Vec<Ratio>);

const TABLES: [Table; 8] = [
    ("daemon", whole::cases, whole::ratios),
    ("one-core", one_core::cases, one_core::ratios),
    ("lookup", lookup::cases, lookup::ratios),
    ("personalities", personalities::cases, personalities::ratios),
    ("providers", providers::cases, providers::ratios),
    ("forward", forward::cases, forward::ratios),
    ("interface", interface::cases, interface::ratios),
    ("change", change::cases, change::ratios),
];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [providers::FULL_QUEUE, rest @ ..] =
        words.iter().map(String::as_str).collect::<Vec<_>>().as_slice()
    {
        providers::run_full_queue(rest);
        return;
    }
    namespace::enter();
    pin(CORE);
    let begun = Instant::now();
    let is_table = |word: &String| TABLES.iter().any(|table| table.0 == word);
    let chosen: Vec<String> = words.into_iter().filter(is_table).collect();
    let inputs = Inputs::new();
    let mut gate = Gate::new(if inputs.is_quick { Duration::ZERO } else { PATIENCE });
    let (mut rows, mut ratios) = (Vec::new(), Vec::new());
    for (word, cases, ratios_of) in TABLES {
        if chosen.is_empty() || chosen.iter().any(|chosen| chosen == word) {
            eprintln!("{word} ...");
            let measured = interleaved(cases(&inputs), inputs.rounds, &mut gate);
            let compared = ratios_of(&inputs, &measured);
            print(&measured, &compared, inputs.rounds);
            rows.extend(measured);
            ratios.extend(compared);
        }
    }
    println!("\n{}\n{}; took {} s", machine::description(), gate.text(), begun.elapsed().as_secs());
    write(&inputs, &rows, &ratios, &gate);
}

fn print(rows: &[Row], ratios: &[Ratio], rounds: usize) {
    let mut table = "";
    for row in rows {
        if row.table != table {
            table = row.table;
            println!("\n{table}: medians of {rounds} interleaved rounds (least to most)");
        }
        println!("{}", row.text());
    }
    println!("how many times as fast, round by round:");
    ratios.iter().for_each(|ratio| println!("{}", ratio.line()));
}

fn write(inputs: &Inputs, rows: &[Row], ratios: &[Ratio], gate: &Gate) {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench");
    std::fs::create_dir_all(&target).expect("target can be written");
    let write =
        |name: &str, text: &str| std::fs::write(target.join(name), text).expect("target can be written");
    let ratios: Vec<_> = ratios.iter().map(Ratio::json).collect();
    let run = json!({
        "machine": machine::description(), "day_and_commit": machine::day_and_commit(), "conditions": gate.json(), "command": own_command(""),
        "rows": table::json(rows), "ratios": ratios, "variables": inputs.variables(),
    });
    write("neighbours.json", &format!("{run:#}\n"));
    let page = page::page(&run);
    let image = plot::bars("Millions of packets per second, from core to core", &bars(rows));
    write("measurements.md", &page);
    write("neighbours.svg", &image);
    println!("in target/bench: neighbours.json, measurements.md, neighbours.svg");
    if std::env::var_os("STEERD_BENCH_DOCS").is_some() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        std::fs::write(docs.join("generated/measurements.md"), &page).expect("docs can be written");
        std::fs::write(docs.join("explanation/neighbours.svg"), &image).expect("docs can be written");
    }
}

/// What the plot shows: name, value, whether it is ours.
fn bars(rows: &[Row]) -> Vec<(String, f64, bool)> {
    let shown = rows.iter().filter(|row| row.table == whole::TABLE && row.frame_bytes == SIZES[0]);
    shown.filter_map(|row| Some((row.what.clone(), row.median()?, !is_other(row)))).collect()
}

/// Whether it is another program's.
fn is_other(row: &Row) -> bool {
    ["testpmd", switch::NAME].iter().any(|name| row.what.starts_with(name))
}

/// The command that measures a table again; all of them without a word.
fn own_command(word: &str) -> String {
    let rest = if word.is_empty() { String::new() } else { format!(" -- {word}") };
    format!("make bench ARGS='--bench neighbours{rest}'")
}

fn pin(core: usize) {
    // Without that core the figures are worse, but valid.
    core_affinity::set_for_current(core_affinity::CoreId { id: core });
}
