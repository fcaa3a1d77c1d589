//! `steerd-probe`: runs the cases that do not affect other users of a device and prints its answers. A separate binary, so
//! that `steerd`, which runs it for `steerd devices --probe`, does not contain the suite.
#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use conformance::soft::SoftDevice;
use conformance::{Report, Verdict, probe};
use softnic::Personality;
use verbs::DeviceList;

/// The exit code of `steerd` for a device that is missing or cannot be used.
const NO_DEVICE: u8 = 4;
/// The text of a row whose case did what was asked.
const WORKS: &str = "works";

/// Tests every field and value of the four verbs on a device, with objects that do not affect other users, and prints its
/// answers.
#[derive(Debug, Parser)]
struct Arguments {
    /// A device of libibverbs' list.
    #[arg(value_name = "NAME", required_unless_present = "soft")]
    device: Option<String>,
    /// A soft NIC instead, with the limits of this device.
    #[arg(long, value_name = "ideal|mlx5|mlx4", conflicts_with = "device")]
    soft: Option<Personality>,
    /// The device's port.
    #[arg(long, default_value_t = 1)]
    port: u8,
    /// How to print the answer.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Text,
    Json,
}

type Failed = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let report = match probed(&arguments) {
        Ok(report) => report,
        Err(error) => {
            let _ = writeln!(io::stderr(), "steerd-probe: {error}");
            return ExitCode::from(NO_DEVICE);
        }
    };
    match print(&report, arguments.format) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "steerd-probe: cannot write the output: {error}");
            ExitCode::FAILURE
        }
    }
}

fn probed(arguments: &Arguments) -> Result<Report, Failed> {
    if let Some(personality) = arguments.soft {
        let device = SoftDevice::new(personality)?;
        let mut report = probe(device.context(), arguments.port)?;
        report.device = format!("soft NIC ({personality})");
        return Ok(report);
    }
    let name = arguments.device.as_deref().unwrap_or_default();
    let list = DeviceList::system().map_err(|error| {
        format!("{error} (hint: modprobe ib_uverbs and the NIC's driver, or try --soft mlx5)")
    })?;
    let device = list
        .find(name)
        .ok_or_else(|| format!("no device {name} (hint: `steerd devices` lists what there is)"))?;
    Ok(probe(&device.open()?, arguments.port)?)
}

fn print(report: &Report, format: Format) -> io::Result<()> {
    let text = match format {
        Format::Text => text(report),
        Format::Json => serde_json::to_string_pretty(report)? + "\n",
    };
    match io::stdout().lock().write_all(text.as_bytes()) {
        // The reader has closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// A line for each row and a summary.
fn text(report: &Report) -> String {
    let mut text = String::new();
    let mut line = |verb: &str, field: &str, value: &str, answer: &str| {
        let _ = writeln!(text, "{verb:<24}  {field:<42}  {value:<46}  {answer}");
    };
    line("verb", "field", "value", "answer");
    for row in &report.rows {
        match row.verdict {
            Verdict::Ok | Verdict::NotRun => line(&row.verb, row.field, row.value, &row.seen),
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
