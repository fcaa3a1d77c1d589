//! `make budgets`: the instructions that a packet costs on the hot paths, counted by valgrind, beside the
//! budgets in `benches/budgets.tsv`. Counts do not depend on the load of the machine, so that this can run
//! with the tests; they say nothing about caches, branches and vector widths.
//!
//! The engine parses 64 packets at a time, finds their rules, and copies them into posted buffers; the worker
//! takes them, finds their classes, counts them and posts the buffers again; with the sink `forward` it also
//! queues them to be sent, which the engine does. valgrind offers AVX2, not AVX-512, so what is counted is
//! the path of processors without it. A budget is the count when it was set, and a tenth more. `make budgets
//! UPDATE=1` sets them anew.
//!
//! The crate `rustix` looks for the vDSO, which valgrind hides: the feature `valgrind` makes it ask libc
//! instead.
#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use program::{ForwardSink, SinkKind};
use softnic::Drive;
use steerd_benches::Rig;
use steerd_benches::rules::{RuleSet, generated};
use steerd_benches::trace::Trace;

/// With this argument the program runs one path.
const RUN: &str = "--run-path";
/// Packets of a path, a whole number of pulses.
const PACKETS: usize = 32 * PULSE;
/// Before counting.
const WARM_UP: usize = 4 * PULSE;
const PULSE: usize = 1024;
const BURST: usize = 64;
const FRAME_BYTES: u32 = 64;

/// A hot path.
struct HotPath {
    /// Its name in the table.
    name: &'static str,
    rules: usize,
    flows: usize,
    /// Whether the packets are sent again, by the sink `forward`.
    forwards: bool,
    /// The function of this program in which instructions are counted.
    counted: &'static str,
}

const PATHS: [HotPath; 6] = [
    HotPath::new("engine, 1 rule, 10^3 flows", 0, 1000, "run_engine"),
    HotPath::new("engine, 1000 rules, 10^3 flows", 1000, 1000, "run_engine"),
    HotPath::new("engine, 1000 rules, 10^5 flows", 1000, 100_000, "run_engine"),
    HotPath::new("worker", 0, 1000, "run_worker"),
    HotPath::forwarding("engine, sink forward", "run_engine"),
    HotPath::forwarding("worker, sink forward", "run_worker"),
];

impl HotPath {
    const fn new(name: &'static str, rules: usize, flows: usize, counted: &'static str) -> Self {
        Self { name, rules, flows, forwards: false, counted }
    }

    const fn forwarding(name: &'static str, counted: &'static str) -> Self {
        Self { name, rules: 0, flows: 0, forwards: true, counted }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == RUN) {
        let [name, folder] = [1, 2].map(|next| arguments.get(at + next).map_or("", String::as_str));
        let path = PATHS.iter().find(|path| path.name == name).expect("a path");
        run(path, Path::new(folder));
        return ExitCode::SUCCESS;
    }
    let counts: Result<Vec<u64>, String> = PATHS.iter().map(count).collect();
    match counts.and_then(|counts| compare(&counts)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// The instructions of a path per packet.
fn count(path: &HotPath) -> Result<u64, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(format!("--toggle-collect=*{}*", path.counted))
        .arg(program)
        .args([RUN, path.name])
        .arg(folder.path())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("valgrind: {error} (hint: `make deps-test` installs it)"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    // `==123== Collected : 456`
    let collected =
        text.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse::<u64>().ok());
    match collected {
        Some(collected) if output.status.success() && collected > 0 => Ok(collected / PACKETS as u64),
        _ => Err(format!("`{}` does not run under valgrind:\n{text}", path.name)),
    }
}

/// Prints the table; an error if a budget is exceeded.
fn compare(counts: &[u64]) -> Result<(), String> {
    let file = budgets_file();
    if std::env::var_os("STEERD_UPDATE_BUDGETS").is_some() {
        let text =
            PATHS.iter().zip(counts).fold("path\tinstructions\n".to_owned(), |mut text, (path, count)| {
                writeln!(text, "{}\t{}", path.name, count + count.div_ceil(10)).expect("a String");
                text
            });
        std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut exceeded = Vec::new();
    println!("{:<34} {:>12} {:>8}   instructions per packet", "path", "counted", "budget");
    for (path, count) in PATHS.iter().zip(counts) {
        let budget = budget(&text, path.name)
            .ok_or_else(|| format!("{}: no budget for `{}`", file.display(), path.name))?;
        let verdict = if *count <= budget { "" } else { "   EXCEEDED" };
        println!("{:<34} {count:>12} {budget:>8}{verdict}", path.name);
        if *count > budget {
            exceeded.push(format!(
                "`{}` takes {count} instructions per packet, more than its budget of {budget}",
                path.name
            ));
        }
    }
    if exceeded.is_empty() {
        return Ok(());
    }
    let hint = "hint: if that is worth it, `make budgets UPDATE=1` writes benches/budgets.tsv anew; commit it with the reason";
    Err(format!("{}\n{hint}", exceeded.join("\n")))
}

fn budgets_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("budgets.tsv")
}

fn budget(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.split_once('\t').filter(|(path, _)| *path == name)?.1.parse().ok())
}

/// Runs a path under valgrind; the captures of its packets are written to `folder`.
fn run(path: &HotPath, folder: &Path) {
    if path.forwards {
        let mut rig = Rig::new(FRAME_BYTES, 1, Drive::Manual, None);
        let options = ForwardSink { port: Some(1), swap_macs: true, ..ForwardSink::default() };
        let _opened = rig.plane.open_sink(SinkKind::Forward(options));
        run_pulses(&mut rig);
        // All but those of the last pulses: the engine sends in one what the worker has queued in earlier
        // ones.
        let sent = (WARM_UP + PACKETS - 3 * PULSE) as u64;
        assert!(rig.port().tx_frames >= sent, "fewer than {sent}: {:?}", rig.port());
        return;
    }
    let set = generated(1000);
    let rules =
        if path.rules == 0 { RuleSet { name: String::new(), rules: Vec::new() } } else { set.clone() };
    let capture = folder.join("trace.pcap");
    Trace::of(&set.rules, path.flows).write_pcap(&capture, FRAME_BYTES).expect("a capture");
    run_pulses(&mut Rig::replaying(&capture, &rules.delivering().policy_text(), Drive::Manual, None));
}

fn run_pulses(rig: &mut Rig) {
    let pulses = |rig: &mut Rig, count: usize, engine: fn(&Rig), worker: fn(&mut Rig)| {
        for _ in 0..count {
            engine(rig);
            worker(rig);
        }
    };
    pulses(rig, WARM_UP / PULSE, engine, worker);
    pulses(rig, PACKETS / PULSE, run_engine, run_worker);
    let port = rig.port();
    assert_eq!(port.delivered, port.rx_frames, "every frame was delivered: {port:?}");
    assert_eq!(port.rx_frames, (WARM_UP + PACKETS) as u64);
}

/// The number of frames is checked at the end: reading the port's counters would be counted, too.
fn engine(rig: &Rig) {
    for _ in 0..PULSE / BURST {
        rig.nic.pump(BURST);
    }
}

fn worker(rig: &mut Rig) {
    while rig.plane.workers[0].step() > 0 {}
}

/// Counted: its name is an argument of valgrind.
#[inline(never)]
fn run_engine(rig: &Rig) {
    engine(rig);
}

/// Counted, as well.
#[inline(never)]
fn run_worker(rig: &mut Rig) {
    worker(rig);
}
