//! `make bench`: the cost of reading, compiling, analysing and comparing policies on one core, compared with
//! the targets, by number of rules, and compared with other programs that load the same rules. Every figure
//! is the median of interleaved rounds of one run: compare ratios, not runs.
//!
//! `STEERD_CORPORA` names the folder of the real ClassBench sets; without it generated sets are used.
//! Writes `target/bench/policy.tsv` and, with `STEERD_BENCH_PLOT=1`, `docs/explanation/policy-cost.svg`.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use analysis::{analyse, diff};
use compiler::{compile, compile_with};
use control::{DigestedProgram, FlowChanges};
use device_model::DeviceModel;
use policy::policy::Action;
use policy::{NoFiles, Policy, SetLoader, Source};
use softnic::{Drive, Personality};
use steerd_benches::competitors::{self, Datapath, Namespace, Switch};
use steerd_benches::report::{Case, Figure, interleaved, tab_separated, target_line};
use steerd_benches::rules::{RuleSet, generated};
use steerd_benches::{Rig, median, plot};

const ROUNDS: usize = 5;
const WORKERS: usize = 4;
const COUNTS: [usize; 7] = [10, 32, 100, 316, 1000, 3162, 10_000];
/// The sets of 1k rules with targets, and the one of 10k.
const SETS: [&str; 4] = ["acl1_1k", "fw1_1k", "ipc1_1k", "acl5_1k"];
const LARGE_SET: &str = "acl1_10k";
const SET_ENTRIES: u32 = 100_000;
const MEGABYTES_MAX: f64 = 500.0;
/// The rate of a firmware (Linux, pull request `mlx5-updates-2019-09-01`: 5 K/s for TC rules by firmware).
const FIRMWARE_FLOWS_PER_SECOND: u32 = 5_000;
/// The core of all measurements; child processes inherit the affinity.
const CORE: usize = 1;

/// The allocator of the daemon.
#[global_allocator]
static HEAP: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// With this argument the program compiles its standard input and prints the peak of its memory.
const PEAK: &str = "--peak-memory-of";
/// With this one only a small change is measured.
const ONLY_CHANGE: &str = "change";

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == PEAK) {
        return print_peak(arguments.get(at + 1).map_or("", String::as_str));
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench");
    std::fs::create_dir_all(&folder).expect("target can be written");
    // The virtual switch may use all cores; it is started before this one is chosen.
    let switch = Switch::new(Datapath::Dummy);
    core_affinity::set_for_current(core_affinity::CoreId { id: CORE });
    let namespace = Namespace::new();
    let (sets, large) = sets();
    if arguments.iter().any(|argument| argument == ONLY_CHANGE) {
        return print_small_change(&large);
    }
    print_targets(&sets, &large);
    print_small_change(&large);
    let figures = curve(&folder, &namespace, &switch);
    print_curve(&figures);
    let real = beside(&folder, &large, &namespace, &switch);
    println!("\nloading {}, {} rules, side by side, {ROUNDS} rounds", large.name, large.rules.len());
    for figure in &real {
        println!("{}", target_line(figure));
    }
    let all: Vec<Figure> = figures.iter().chain(&real).cloned().collect();
    std::fs::write(folder.join("policy.tsv"), tab_separated(&all)).expect("target can be written");
    if std::env::var_os("STEERD_BENCH_PLOT").is_some() {
        let image = plot::svg("What rules cost to load and to look at, one core", &figures);
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/explanation/policy-cost.svg");
        std::fs::write(docs, image).expect("docs can be written");
    }
}

/// Small sets and a large one: real ones if available.
fn sets() -> (Vec<RuleSet>, RuleSet) {
    let Some(corpora) = std::env::var_os("STEERD_CORPORA") else {
        return (vec![generated(1000)], generated(10_000));
    };
    let read = |name: &str| {
        let text = std::fs::read_to_string(Path::new(&corpora).join("rules").join(name)).expect("a rule set");
        RuleSet::read(name, &text).expect("ClassBench filters")
    };
    (SETS.map(read).into(), read(LARGE_SET))
}

fn parsed(text: &str) -> Policy {
    policy::parse(&Source::new("bench.toml", text), &NoFiles).expect("a policy").0
}

/// The time that a closure takes; its result is dropped after the measurement.
fn timed<T>(work: impl FnOnce() -> T) -> Duration {
    let started = Instant::now();
    let made = std::hint::black_box(work());
    let elapsed = started.elapsed();
    drop(made);
    elapsed
}

/// Parses and compiles; the time of a refusal counts, too.
fn loads(text: &str, profile: &DeviceModel) -> Duration {
    timed(|| {
        let policy = parsed(text);
        let program = compile(&policy, profile, WORKERS);
        (policy, program)
    })
}

/// Parses and compiles; `Err`: why the device refuses the policy.
fn compiles(text: &str, files: &dyn SetLoader, profile: &DeviceModel) -> Result<Duration, String> {
    let started = Instant::now();
    let (policy, _) = policy::parse(&Source::new("bench.toml", text), files).expect("a policy");
    let program = compile(&policy, profile, WORKERS);
    let elapsed = started.elapsed();
    program.map(|_| elapsed).map_err(|problems| first_line(&problems.to_string()).to_owned())
}

fn case<'a>(
    what: &'static str,
    set: &RuleSet,
    target_s: Option<f64>,
    mut run: impl FnMut() -> Duration + 'a,
) -> Case<'a> {
    let (set, rules) = (set.name.clone(), set.rules.len());
    Case { what, set, rules, target_s, run: Box::new(move || Ok(run())) }
}

fn print_targets(sets: &[RuleSet], large: &RuleSet) {
    println!("policies on one core, {ROUNDS} interleaved rounds, with targets");
    let texts: Vec<String> = sets.iter().map(RuleSet::policy_text).collect();
    let (ideal, mlx5) = (DeviceModel::ideal(), DeviceModel::mlx5());
    let text = large.policy_text();
    let filters = large.filters_text();
    let [policy, changed, rewritten] = [large.clone(), large.with_few_changes(), large.written_differently()]
        .map(|set| parsed(&set.policy_text()));
    let blocked = BTreeMap::from([("blocked.txt".to_owned(), block_list())]);
    let entries = RuleSet { name: format!("{SET_ENTRIES} entries"), rules: Vec::new() };
    let mut cases = Vec::new();
    for (set, text) in sets.iter().zip(&texts) {
        cases.push(case("parse and compile for ideal", set, Some(0.030), || loads(text, &ideal)));
        cases.push(case("parse and compile (or refuse) for mlx5", set, None, || loads(text, &mlx5)));
    }
    cases.push(case("import", large, None, || timed(|| policy::import::classbench(&filters))));
    cases.push(case("parse", large, None, || timed(|| parsed(&text))));
    cases.push(case("parse and compile for ideal", large, Some(0.500), || loads(&text, &ideal)));
    cases.push(case("parse and compile (or refuse) for mlx5", large, None, || loads(&text, &mlx5)));
    cases.push(case("full analysis", large, Some(10.0), || timed(|| analyse(&policy, &mut |_| ()))));
    cases.push(case("diff with a dozen changes", large, Some(10.0), || {
        timed(|| diff(&policy, &changed, &mut |_| ()))
    }));
    cases.push(case("diff with the same, written differently", large, Some(10.0), || {
        timed(|| assert!(diff(&policy, &rewritten, &mut |_| ()).is_empty(), "they say the same"))
    }));
    cases.push(case("parse a set file", &entries, Some(0.500), || {
        timed(|| policy::parse(&Source::new("bench.toml", BLOCK_LIST), &blocked).expect("a policy"))
    }));
    cases.push(Case {
        what: "parse a set file and compile for ideal",
        run: Box::new(|| compiles(BLOCK_LIST, &blocked, &ideal)),
        ..case("", &entries, Some(0.500), || Duration::ZERO)
    });
    for figure in interleaved(cases, ROUNDS) {
        println!("{}", target_line(&figure));
    }
    for profile in ["ideal", "mlx5"] {
        match peak_megabytes(profile, &text) {
            Ok(peak) => {
                let met = if peak <= MEGABYTES_MAX { "met" } else { "MISSED" };
                let what = format!("peak memory of parse and compile for {profile}");
                println!("{what:<44} {:<16} {peak:>7.0} MB   <= {MEGABYTES_MAX} MB   {met}", large.name);
            }
            Err(why) => println!("peak memory for {profile}: not measured: {why}"),
        }
    }
}

/// One rule of many changes its action, and changes back. Prints the time to make the indexes of the compiled
/// policy for workers, and the time until its flows, workers and counters are in force, in the slower
/// direction: planned, examined and carried out on the soft NIC without cost for a flow, and at the rate of a
/// firmware.
fn print_small_change(set: &RuleSet) {
    const CHANGES: usize = 14;
    println!("\none changed rule of {}, {} rules, {CHANGES} changes in turn", set.name, set.rules.len());
    let policy = parsed(&set.policy_text());
    let mut changed = policy.clone();
    let middle = changed.rules.len() / 2;
    changed.rules[middle].action = match changed.rules[middle].action {
        Action::Drop => Action::Kernel,
        _ => Action::Drop,
    };
    for (personality, flow_rate, target_ms) in [
        (Personality::Ideal, 0, 2.0),
        (Personality::Mlx5, 0, 2.0),
        (Personality::Mlx5, FIRMWARE_FLOWS_PER_SECOND, 20.0),
    ] {
        let model = personality.model();
        let mut rig = Rig::of(personality, WORKERS as u32);
        let mut preparing = Vec::new();
        let mut compiled = |policy, rig: &Rig| {
            let before = rig.plane.controller.installed().map(Arc::as_ref);
            let program = Arc::new(compile_with(policy, &model, WORKERS, before).expect("it fits"));
            // What the thread that compiles does for the one that changes the device.
            let begun = Instant::now();
            program.make_indexes();
            let digested =
                DigestedProgram::new(program, rig.plane.controller.limits()).expect("a whole program");
            preparing.push(begun.elapsed().as_secs_f64() * 1e3);
            digested
        };
        rig.plane.install_digested(compiled(&policy, &rig));
        rig.nic.set_flow_rate(flow_rate);
        let (mut times, mut flows) = ([const { Vec::new() }; 2], 0);
        // No change frees a program: the daemon does it after its answer.
        let mut programs = Vec::new();
        for (number, policy) in [&changed, &policy].into_iter().cycle().take(CHANGES).enumerate() {
            let program = compiled(policy, &rig);
            let begun = Instant::now();
            let FlowChanges { installed, removed, .. } = rig.plane.install_digested(program.clone());
            times[number % 2].push(begun.elapsed().as_secs_f64() * 1e3);
            programs.push(program);
            flows = flows.max(installed + removed);
        }
        // The two directions take different times.
        let (time, preparing) = (times.map(median).into_iter().fold(0.0, f64::max), median(preparing));
        let rate = if flow_rate > 0 { "5,000 flows/s" } else { "no cost of a flow" };
        let met = if time <= target_ms { "met" } else { "MISSED" };
        let what = format!("in force, {personality}, {rate}");
        println!(
            "{what:<44} {flows:>4} flows {time:>9.2} ms   <= {target_ms} ms   {met}; indexes and digests before {preparing:.0} ms"
        );
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

const BLOCK_LIST: &str = "version = 1\n[sets]\nblocked = { file = \"blocked.txt\" }\n[[rules]]\nname = \"x\"\n\
    match = { family = \"ipv4\", src = \"blocked\" }\naction = \"drop\"\n";

/// Addresses that do not merge into prefixes.
fn block_list() -> String {
    (0..SET_ENTRIES).fold(String::new(), |mut text, index| {
        let address = std::net::Ipv4Addr::from(0x0a00_0000 | index.wrapping_mul(0x9e37) << 1 & 0xff_ffff);
        writeln!(text, "{address}").expect("a String");
        text
    })
}

/// The peak memory of a process that parses and compiles a policy: code, heap and stack.
fn peak_megabytes(profile: &str, text: &str) -> Result<f64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut child = Command::new(program)
        .args([PEAK, profile])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    child
        .stdin
        .take()
        .map_or(Ok(()), |mut input| input.write_all(text.as_bytes()))
        .map_err(|e| e.to_string())?;
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    let kilobytes: f64 = String::from_utf8_lossy(&output.stdout).trim().parse().map_err(|_| "no figure")?;
    Ok(kilobytes * 1024.0 / 1e6)
}

fn print_peak(profile: &str) {
    let profile = DeviceModel::by_name(profile).expect("a profile");
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).expect("a policy");
    _ = loads(&text, &profile);
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    println!("{}", peak.trim().trim_end_matches(" kB"));
}

/// The cases for generated sets of every size, with the competitors.
fn curve(
    folder: &Path,
    namespace: &Result<Namespace, String>,
    switch: &Result<Switch, String>,
) -> Vec<Figure> {
    let sets: Vec<RuleSet> = COUNTS.map(generated).into();
    let mut figures = Vec::new();
    for set in &sets {
        let text = set.policy_text();
        let [policy, rewritten] =
            [set.clone(), set.written_differently()].map(|set| parsed(&set.policy_text()));
        let ideal = DeviceModel::ideal();
        let mut cases = vec![
            case("parse", set, None, || timed(|| parsed(&text))),
            case("parse, compile", set, None, || loads(&text, &ideal)),
            case("full analysis", set, None, || timed(|| analyse(&policy, &mut |_| ()))),
            case("diff, written differently", set, None, || timed(|| diff(&policy, &rewritten, &mut |_| ()))),
        ];
        cases.extend(loading(folder, set, &text, namespace, switch));
        figures.extend(interleaved(cases, ROUNDS));
    }
    figures
}

/// The load times of one set by all programs.
fn beside(
    folder: &Path,
    set: &RuleSet,
    namespace: &Result<Namespace, String>,
    switch: &Result<Switch, String>,
) -> Vec<Figure> {
    let text = set.policy_text();
    interleaved(loading(folder, set, &text, namespace, switch), ROUNDS)
}

/// From the text to installed rules: by this project into the soft NIC, by the others into their own
/// datapath.
fn loading<'a>(
    folder: &Path,
    set: &'a RuleSet,
    text: &'a str,
    namespace: &'a Result<Namespace, String>,
    switch: &'a Result<Switch, String>,
) -> Vec<Case<'a>> {
    let mut cases = vec![case("parse, compile, install", set, None, || installs(text))];
    let mut competitor = |what: &'static str, file: PathBuf, load: Load<'a>| {
        let run = Box::new(move || load(&file));
        cases.push(Case { what, set: set.name.clone(), rules: set.rules.len(), target_s: None, run });
    };
    let write = |name: &str, text: &str| {
        let file = folder.join(name);
        std::fs::write(&file, text).expect("target can be written");
        file
    };
    let count = set.rules.len();
    let nft: Load<'a> = Box::new(move |file| namespace.as_ref().map_err(Clone::clone)?.load(file));
    competitor(
        "nft: a rule each",
        write(&format!("linear-{count}.nft"), &competitors::linear(&set.rules)),
        nft,
    );
    let (mapped, in_map) = competitors::mapped(&set.rules);
    let nft: Load<'a> = Box::new(move |file| namespace.as_ref().map_err(Clone::clone)?.load(file));
    println!("{}: {in_map} of {count} rules are in nft's verdict map, the others after it", set.name);
    competitor("nft: verdict map and rules", write(&format!("mapped-{count}.nft"), &mapped), nft);
    if let Some((flows, in_all)) = competitors::flows(&set.rules) {
        let ovs: Load<'a> = Box::new(move |file| switch.as_ref().map_err(Clone::clone)?.load(file));
        println!("{}: {in_all} flows for ovs-ofctl, which has no port ranges", set.name);
        competitor("ovs-ofctl: add-flows", write(&format!("{count}.flows"), &flows), ovs);
    }
    cases
}

type Load<'a> = Box<dyn Fn(&Path) -> Result<Duration, String> + 'a>;

/// The time from a policy's text to flows of the soft NIC; the NIC and its workers exist before.
fn installs(text: &str) -> Duration {
    let mut rig = Rig::bare(64, WORKERS as u32, Drive::Manual, None);
    timed(|| {
        let program = compile(&parsed(text), &DeviceModel::ideal(), WORKERS).expect("a program");
        rig.plane.install(&Arc::new(program));
    })
}

/// One row for each number of rules, one column for each case.
fn print_curve(figures: &[Figure]) {
    println!("\ncost against the number of generated rules, {ROUNDS} interleaved rounds");
    let mut order: Vec<&str> = Vec::new();
    let mut rows: BTreeMap<usize, BTreeMap<&str, String>> = BTreeMap::new();
    for figure in figures {
        if !order.contains(&figure.what) {
            order.push(figure.what);
        }
        let text = match &figure.seconds {
            Ok(seconds) => steerd_benches::report::seconds_text(*seconds),
            Err(_) => "not measured".to_owned(),
        };
        rows.entry(figure.rules).or_default().insert(figure.what, text);
    }
    for (index, what) in order.iter().enumerate() {
        println!("  {}: {what}", index + 1);
    }
    let head: Vec<String> = (1..=order.len()).map(|index| format!("{index:>12}")).collect();
    println!("{:>6} {}", "rules", head.join(" "));
    for (rules, row) in &rows {
        let cells: Vec<String> =
            order.iter().map(|what| format!("{:>12}", row.get(what).map_or("", String::as_str))).collect();
        println!("{rules:>6} {}", cells.join(" "));
    }
    for figure in figures {
        if let Err(why) = &figure.seconds {
            println!("not measured: {} of {}: {why}", figure.what, figure.set);
        }
    }
}
