//! `steerd-probe`: runs the cases that do not affect other users of a device, prints its answers and writes
//! its device model. With a peer it runs all cases, for `steerd devices --report`. A separate binary, so that
//! `steerd`, which runs it, does not contain the suite.
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, ValueEnum};
use conformance::link::LinkPeer;
use conformance::model::{Bounds, FoundModel};
use conformance::packet_peer::PacketPeer;
use conformance::soft::SoftDevice;
use conformance::{Bench, Peer, Report, Verdict, cases, model, origin, probe, reach, run};
use device_model::{DeviceModel, Origin};
use serde::Serialize;
use softnic::Personality;
use verbs::{Context, DeviceList, DevicePort, PortNumber, SYSFS_CLASSES, SYSFS_DEVICES};

/// The exit code of `steerd` for a device that is missing or cannot be used.
const NO_DEVICE: u8 = 4;
/// The text of a row whose case did what was asked.
const WORKS: &str = "works";
/// The name that stands for the driver of a soft NIC.
const SOFT: &str = "softnic";
/// The progress shows one of so many cases.
const SHOWN_EVERY: usize = 32;
/// The prefix of a peer that is an end of a link.
const LINK: &str = "link:";

/// Tests every field and value of the four verbs on a device, with objects that do not affect other users,
/// prints its answers and writes its device model.
#[derive(Clone, Debug, Parser)]
struct Arguments {
    /// A device of libibverbs' list, or the network interface of one.
    #[arg(value_name = "NAME", required_unless_present = "soft")]
    device: Option<String>,
    /// A soft NIC instead, with the limits of this device.
    #[arg(long, value_name = "ideal|mlx5|mlx4|FILE", conflicts_with = "device")]
    soft: Option<Personality>,
    /// The device's port, unless an interface is named.
    #[arg(long, default_value_t = 1)]
    port: u8,
    /// How to print the answers.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// The file for the device model, which must not exist; "-": print the model and not the answers.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The file for the device model if it can be created; else only the answers are printed, with a notice
    /// on stderr.
    #[arg(long, value_name = "FILE", conflicts_with = "output")]
    default_output: Option<PathBuf>,
    /// The most flows that are created at once. A limit above is not found.
    #[arg(long, value_name = "NUMBER", default_value_t = Bounds::default().flows, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    max_flows: u32,
    /// Print one JSON object for a report: the device model with the answers, the results of all cases, or
    /// whether frames of the peer arrive. The last two need --peer or --soft. The object has `error` alone if
    /// there is one.
    #[arg(long, value_enum, value_name = "probe|suite|peer", conflicts_with_all = ["output", "default_output"])]
    evidence: Option<EvidencePart>,
    /// With --evidence suite and peer: an interface that reaches the device's port, or `link:NAME` for end
    /// `b` of a link. The port must have no traffic of others: some cases take all packets of it for a
    /// moment.
    /// moment.
    #[arg(long, value_name = "INTERFACE", requires = "evidence")]
    peer: Option<String>,
    /// End when standard input ends, as it does when the process that holds its other end is killed.
    #[arg(long, requires = "evidence")]
    until_eof: bool,
}

/// A part of a report that this program finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum EvidencePart {
    Probe,
    Suite,
    Peer,
}

/// The output of `--evidence peer`, if a frame of the peer arrives.
#[derive(Debug, Serialize)]
struct PeerEvidence {
    is_reached: bool,
}

/// The output of a part that cannot be found.
#[derive(Debug, Serialize)]
struct FailedEvidence {
    error: String,
}

/// The output of `--evidence probe`.
#[derive(Debug, Serialize)]
struct ProbeEvidence {
    /// The text of the device model.
    model: String,
    report: Report,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Text,
    Json,
}

type Failed = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    // A write beyond the limit of file sizes fails with EFBIG then, and leaves no temporary file.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    let arguments = Arguments::parse();
    if arguments.until_eof {
        std::thread::spawn(end_at_eof);
    }
    match act(&arguments) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(error) if arguments.evidence.is_some() => {
            let evidence = FailedEvidence { error: chain(&*error) };
            let _ = print(&(serde_json::to_string(&evidence).unwrap_or_default() + "\n"));
        }
        Err(error) => {
            let _ = writeln!(io::stderr(), "steerd-probe: {}", chain(&*error));
        }
    }
    ExitCode::from(NO_DEVICE)
}

/// Waits for the end of standard input and ends the process, without handlers of libraries that other threads
/// are in. The kernel removes its objects (uverbs_destroy_ufile_hw).
fn end_at_eof() {
    let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
    signal_hook::low_level::exit(i32::from(NO_DEVICE));
}

/// The error and those of its sources that its text does not repeat.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let part = error.to_string();
        if !text.contains(&part) {
            let _ = write!(text, ": {part}");
        }
        source = error.source();
    }
    text
}

/// Where the device model goes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Destination {
    Nowhere,
    Stdout,
    /// An absolute path.
    File(PathBuf),
}

impl Destination {
    /// Checks that a file can be created, because the device is tried first, which takes seconds.
    fn of(arguments: &Arguments) -> Result<Self, Failed> {
        match (&arguments.output, &arguments.default_output) {
            (Some(path), _) if path.as_os_str() == "-" => Ok(Self::Stdout),
            (Some(path), _) => Ok(Self::File(creatable(path)?)),
            (None, Some(path)) => Ok(creatable(path).map_or_else(
                |error| {
                    let _ = writeln!(io::stderr(), "steerd-probe: no device model is written: {error}");
                    Self::Nowhere
                },
                Self::File,
            )),
            (None, None) => Ok(Self::Nowhere),
        }
    }
}

/// The absolute path of a file that does not exist, in a folder in which files can be created.
fn creatable(path: &Path) -> Result<PathBuf, Failed> {
    let absolute = std::path::absolute(path)?;
    let temporary = beside(&absolute);
    let created = match fs::symlink_metadata(&absolute) {
        Ok(_) => Err(io::Error::from_raw_os_error(libc::EEXIST)),
        Err(_) => OpenOptions::new().write(true).create_new(true).open(&temporary),
    };
    let hint = "name another file with --output";
    created.map_err(|error| format!("{}: {error} (hint: {hint})", path.display()))?;
    fs::remove_file(&temporary)?;
    Ok(absolute)
}

/// The temporary file for a file.
fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}", std::process::id()))
}

/// Writes a file that must not exist: the whole text, or nothing.
fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let temporary = beside(path);
    let mut file = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
    // Unlike rename(2), link(2) does not replace a file.
    let written = file.write_all(text.as_bytes()).and_then(|()| fs::hard_link(&temporary, path));
    let _ = fs::remove_file(&temporary);
    written
}

fn act(arguments: &Arguments) -> Result<(), Failed> {
    if let Some(part) = arguments.evidence {
        return print(&(evidence(arguments, part)? + "\n"));
    }
    let destination = Destination::of(arguments)?;
    let probed = probed(arguments, destination != Destination::Nowhere)?;
    if destination != Destination::Stdout {
        print(&match arguments.format {
            Format::Text => answers(&probed.report),
            Format::Json => serde_json::to_string_pretty(&probed.report)? + "\n",
        })?;
    }
    let Some(found) = &probed.model else { return Ok(()) };
    let text = model::text(found);
    if let Destination::File(path) = &destination {
        let shown = path.display();
        write_new(path, &text).map_err(|error| format!("{shown}: {error}"))?;
        let _ = writeln!(
            io::stderr(),
            "the device model is in {shown} (steerd check --model {shown} POLICY, device.model = \"{shown}\")"
        );
        return Ok(());
    }
    print(&text)
}

/// The object of a part of a report.
fn evidence(arguments: &Arguments, part: EvidencePart) -> Result<String, Failed> {
    match part {
        EvidencePart::Probe => {
            let Probed { report, model: Some(found) } = probed(arguments, true)? else {
                return Err("no device model was found".into());
            };
            Ok(serde_json::to_string(&ProbeEvidence { model: model::text(&found), report })?)
        }
        EvidencePart::Suite => {
            let report = on_bench(arguments, |bench, personality| Ok(run_all(bench, personality)))?;
            Ok(serde_json::to_string(&report)?)
        }
        EvidencePart::Peer => {
            if !on_bench(arguments, |bench, _| Ok(reach::is_reached(bench)?))? {
                return Err(unreached(arguments).into());
            }
            Ok(serde_json::to_string(&PeerEvidence { is_reached: true })?)
        }
    }
}

/// The message about a peer that is at another end.
fn unreached(arguments: &Arguments) -> String {
    let peer = arguments.peer.as_deref().unwrap_or(SOFT);
    let device = arguments.device.as_deref().unwrap_or(SOFT);
    format!(
        "no frame from the peer {peer} arrives at {device}, port {} (hint: --peer names the interface at the other end of \
         the port's cable, or another function of the NIC; is the link of both up?)",
        arguments.port
    )
}

/// The result of probing a device.
struct Probed {
    report: Report,
    /// Where a file for it is wanted.
    model: Option<FoundModel>,
}

fn probed(arguments: &Arguments, wants_model: bool) -> Result<Probed, Failed> {
    if let Some(personality) = arguments.soft {
        let device = SoftDevice::new(personality)?;
        // What a soft NIC does cannot be found only where it takes too many objects.
        let fallback = DeviceModel::of_base(personality.model().personality);
        let mut probed = tried(device.context(), arguments, wants_model, Some(&device), &fallback, SOFT)?;
        probed.report.device = format!("soft NIC ({personality})");
        return Ok(probed);
    }
    let RealDevice { device, context, driver, fallback } = RealDevice::open(arguments)?;
    let arguments = Arguments { port: device.port.0, ..arguments.clone() };
    tried(&context, &arguments, wants_model, None, &fallback, &driver)
}

/// Calls a function with the device and its peer on a bench.
fn on_bench<T>(
    arguments: &Arguments,
    act: impl FnOnce(&Bench<'_>, Option<Personality>) -> Result<T, Failed>,
) -> Result<T, Failed> {
    if let Some(personality) = arguments.soft {
        let device = SoftDevice::new(personality)?;
        let bench = Bench::new(device.context(), PortNumber(1), Some(&device))?;
        return act(&bench, Some(personality));
    }
    let peer = arguments.peer.as_deref().ok_or("this part needs a peer (hint: --peer INTERFACE)")?;
    let RealDevice { device, context, .. } = RealDevice::open(arguments)?;
    let peer: Box<dyn Peer> = match peer.strip_prefix(LINK) {
        Some(link) => Box::new(LinkPeer::meet(link)?),
        None => {
            let own = device.interface(Path::new(SYSFS_CLASSES));
            let opened = PacketPeer::open(peer, own.as_deref());
            Box::new(opened.map_err(|error| format!("--peer {peer}: {}", chain(&error)))?)
        }
    };
    let bench = Bench::new(&context, device.port, Some(&*peer))?;
    act(&bench, origin::kind(Path::new(SYSFS_DEVICES), &device.device))
}

/// Runs every case and shows the progress.
fn run_all(bench: &Bench<'_>, personality: Option<Personality>) -> Report {
    let (rows, begun) = (cases().len(), Cell::new(0));
    run(bench, personality, |case| {
        begun.set(begun.get() + 1);
        // A log does not get a line for each.
        if begun.get() == rows || begun.get() % SHOWN_EVERY == 1 {
            progress(begun.get(), rows, case.field);
        }
        true
    })
}

/// A device of libibverbs' list that can steer.
struct RealDevice {
    device: DevicePort,
    context: Arc<Context>,
    driver: String,
    /// The model of its driver.
    fallback: DeviceModel,
}

impl RealDevice {
    fn open(arguments: &Arguments) -> Result<Self, Failed> {
        let name = arguments.device.as_deref().unwrap_or_default();
        let device = DevicePort::named(Path::new(SYSFS_CLASSES), name, PortNumber(arguments.port));
        let name = device.device.as_str();
        let list = DeviceList::system().map_err(|error| {
            format!("{error} (hint: modprobe ib_uverbs and the NIC's driver, or try --soft mlx5)")
        })?;
        let listed = list
            .find(name)
            .ok_or_else(|| format!("no device {name} (hint: `steerd devices` lists what there is)"))?;
        let driver = origin::driver(Path::new(SYSFS_DEVICES), name).unwrap_or_default();
        let fallback = DeviceModel::by_driver(&driver).unwrap_or_else(DeviceModel::conservative);
        if !fallback.can_steer() {
            // An RSS queue pair of such a device may take the packets of the whole port.
            let source =
                fallback.refusal(device_model::Feature::Normal).map_or("", |refusal| refusal.source.as_str());
            let message = format!(
                "{name} (driver {driver}) cannot steer, so nothing is tried on it: it has no flows ({source}); its model is {:?}",
                fallback.name
            );
            return Err(message.into());
        }
        let context = listed.open()?;
        Ok(Self { device, context, driver, fallback })
    }
}

/// Tries an open device.
fn tried(
    context: &Arc<Context>,
    arguments: &Arguments,
    wants_model: bool,
    peer: Option<&dyn Peer>,
    fallback: &DeviceModel,
    driver: &str,
) -> Result<Probed, Failed> {
    let found = wants_model.then(|| -> Result<FoundModel, Failed> {
        let bench = Bench::new(context, PortNumber(arguments.port), peer)?;
        let bounds = Bounds { flows: arguments.max_flows, ..Bounds::default() };
        let mut found = model::find(&bench, fallback, bounds, &mut progress)
            .map_err(|failure| format!("the device cannot be tried: {failure:?}"))?;
        let masks_refused = std::mem::take(&mut found.profile.device.masks_refused);
        found.profile.device = Origin { masks_refused, ..origin::origin(context, driver)? };
        Ok(found)
    });
    let model = found.transpose()?;
    // What takes the packets of a port that has no flows is not tried.
    if let Some(found) = model.as_ref().filter(|found| !found.profile.can_steer()) {
        let report = Report { device: found.profile.name.clone(), port: arguments.port, rows: Vec::new() };
        return Ok(Probed { report, model });
    }
    Ok(Probed { report: probe(context, arguments.port)?, model })
}

/// A line for each step; on a terminal all on one line.
fn progress(number: usize, steps: usize, name: &str) {
    let mut err = io::stderr().lock();
    let _ = if err.is_terminal() {
        let end = if number == steps { "\n" } else { "" };
        write!(err, "\r\x1b[Ktrying {number}/{steps}: {name}{end}")
    } else {
        writeln!(err, "trying {number}/{steps}: {name}")
    };
}

fn print(text: &str) -> Result<(), Failed> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        // The reader has closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(format!("cannot write the output: {error}").into()),
        Ok(()) => Ok(()),
    }
}

/// A line for each row and a summary.
fn answers(report: &Report) -> String {
    let mut text = String::new();
    let mut line = |verb: &str, field: &str, value: &str, answer: &str| {
        let _ = writeln!(text, "{verb:<24}  {field:<42}  {value:<46}  {answer}");
    };
    line("verb", "field", "value", "answer");
    for row in &report.rows {
        match row.verdict {
            Verdict::Ok | Verdict::Recorded | Verdict::NotRun => {
                line(&row.verb, row.field, row.value, &row.seen);
            }
            Verdict::Mismatch => line(&row.verb, row.field, row.value, &format!("BROKEN: {}", row.seen)),
        }
    }
    let works = report.rows.iter().filter(|row| row.seen == WORKS).count();
    let broken = report.count(Verdict::Mismatch);
    let _ = writeln!(
        text,
        "\n{}: {works} of {} work, {broken} are promised and not kept, the others are refused",
        report.device,
        report.rows.len()
    );
    text
}
