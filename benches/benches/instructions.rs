//! `make budgets`: the instructions that a packet costs on the hot paths, counted by valgrind, beside the
//! budgets in `benches/budgets.tsv`. Counts do not depend on the load of the machine, so that this can run
//! with the tests; they say nothing about caches, branches and vector widths.
//!
//! The engine parses 64 packets at a time, finds their rules, and copies them into posted buffers; the worker
//! takes them, finds their classes, counts them and posts the buffers again; with the sink `forward` it also
//! queues them to be sent, which the engine does; with the recorder it copies their first octets. valgrind
//! offers AVX2, not AVX-512, so what is counted is the path of processors without it. A budget is the count
//! when it was set, and a tenth more. `make budgets UPDATE=1` sets them anew.
//!
//! `make budgets-mlx5` counts the worker on rdma-core's provider for an mlx5 (`softnic exec --method mlx5`):
//! with that provider's functions, which post and poll, and directly (`device.receive`). The provider is the
//! machine's, so there are no budgets for these counts.
//!
//! The crate `rustix` looks for the vDSO, which valgrind hides: the feature `valgrind` makes it ask libc
//! instead.
#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use program::{ForwardSink, RecorderRing, SinkKind};
use softnic::Drive;
use steerd_benches::Rig;
use steerd_benches::daemon::Provider;
use steerd_benches::full_queue::{BackloggedWorker, run_client};
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
/// The line with the number of packets begins with it.
const TAKEN: &str = "packets taken:";
/// Until an engine that valgrind runs has filled a queue.
const FILL_TIME: Duration = Duration::from_millis(100);
/// Until it has delivered all packets.
const PATIENCE: Duration = Duration::from_secs(120);

/// A hot path.
struct HotPath {
    /// Its name in the table.
    name: &'static str,
    rules: usize,
    flows: usize,
    /// Where the packets go.
    target: Target,
    provider: Provider,
    /// The function of this program in which instructions are counted.
    counted: &'static str,
}

/// Where the packets of a path go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    /// They are counted only.
    Counters,
    /// They are sent again, by the sink `forward`.
    Forward,
    /// The recorder keeps them.
    Recorder,
}

const PATHS: [HotPath; 7] = [
    HotPath::new("engine, 1 rule, 10^3 flows", 0, 1000, "run_engine"),
    HotPath::new("engine, 1000 rules, 10^3 flows", 1000, 1000, "run_engine"),
    HotPath::new("engine, 1000 rules, 10^5 flows", 1000, 100_000, "run_engine"),
    HotPath::new("worker", 0, 1000, "run_worker"),
    HotPath::forwarding("engine, sink forward", "run_engine"),
    HotPath::forwarding("worker, sink forward", "run_worker"),
    HotPath { target: Target::Recorder, ..HotPath::new("worker, recorder", 0, 0, "run_worker") },
];

/// With this argument, those of [`MLX5_PATHS`].
const MLX5: &str = "mlx5";
const MLX5_PATHS: [HotPath; 4] = [
    HotPath::new("worker, mlx5", 0, 1000, "run_backlogged_worker").on(Provider::Mlx5),
    HotPath::new("worker, mlx5, direct", 0, 1000, "run_backlogged_worker").on(Provider::Mlx5Direct),
    HotPath::forwarding("worker, mlx5, sink forward", "run_backlogged_worker").on(Provider::Mlx5),
    HotPath::forwarding("worker, mlx5, direct, sink forward", "run_backlogged_worker")
        .on(Provider::Mlx5Direct),
];

impl HotPath {
    const fn new(name: &'static str, rules: usize, flows: usize, counted: &'static str) -> Self {
        Self { name, rules, flows, target: Target::Counters, provider: Provider::SoftNic, counted }
    }

    const fn forwarding(name: &'static str, counted: &'static str) -> Self {
        Self { target: Target::Forward, ..Self::new(name, 0, 0, counted) }
    }

    const fn on(self, provider: Provider) -> Self {
        Self { provider, ..self }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == RUN) {
        let [name, folder] = [1, 2].map(|next| arguments.get(at + next).map_or("", String::as_str));
        let path = PATHS.iter().chain(&MLX5_PATHS).find(|path| path.name == name).expect("a path");
        run(path, Path::new(folder));
        return ExitCode::SUCCESS;
    }
    let done = if arguments.iter().any(|argument| argument == MLX5) {
        MLX5_PATHS
            .iter()
            .try_for_each(|path| count(path).map(|count| println!("{:<34} {count:>12}", path.name)))
    } else {
        let counts: Result<Vec<u64>, String> = PATHS.iter().map(count).collect();
        counts.and_then(|counts| compare(&counts))
    };
    match done {
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
    let words = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"].map(str::to_owned);
    let mut words = Vec::from(words);
    words.push(format!("--toggle-collect=*{}*", path.counted));
    words.extend(
        [&program, Path::new(RUN), Path::new(path.name), folder.path()]
            .map(|word| word.display().to_string()),
    );
    let text = run_client(path.provider, FRAME_BYTES, &[0, 1], &words)
        .map_err(|error| format!("{error} (hint: `make deps-test` installs valgrind)"))?;
    let number = |before| text.lines().find_map(|line| line.split_once(before)?.1.trim().parse::<u64>().ok());
    // `==123== Collected : 456`
    match (number("Collected :"), number(TAKEN)) {
        (Some(collected), Some(packets)) if collected > 0 && packets > 0 => Ok(collected / packets),
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

/// Runs a path under valgrind, and prints the number of packets; the captures of its packets are written to
/// `folder`.
fn run(path: &HotPath, folder: &Path) {
    if path.provider != Provider::SoftNic {
        run_backlogs(path);
        return;
    }
    println!("{TAKEN} {PACKETS}");
    if path.target == Target::Recorder {
        let mut rig = Rig::new(FRAME_BYTES, 1, Drive::Manual, None);
        let _opened = rig.plane.record(RecorderRing { memory_bytes: 1 << 20, snap_bytes: 128 });
        run_pulses(&mut rig);
        return;
    }
    if path.target == Target::Forward {
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

/// A worker whose device works on its own: it takes what has arrived while it slept.
fn run_backlogs(path: &HotPath) {
    let mut worker = BackloggedWorker::on(path.provider, FRAME_BYTES, 0, FILL_TIME);
    if path.target == Target::Forward {
        worker = worker.forwarding();
    }
    let taken = |worker: &mut BackloggedWorker, most: usize, run: fn(&mut BackloggedWorker) -> usize| {
        let (mut taken, begun) = (0, Instant::now());
        while taken < most {
            assert!(begun.elapsed() < PATIENCE, "{taken} of {most} packets");
            worker.wait();
            taken += run(worker);
        }
        taken
    };
    taken(&mut worker, WARM_UP, BackloggedWorker::drain);
    println!("{TAKEN} {}", taken(&mut worker, PACKETS, run_backlogged_worker));
    assert_eq!(worker.dropped(), 0, "all packets were sent");
}

/// Counted as well.
#[inline(never)]
fn run_backlogged_worker(worker: &mut BackloggedWorker) -> usize {
    worker.drain()
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
