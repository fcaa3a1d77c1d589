//! `conformance`: runs the suite on a soft NIC or on a device and prints the rows. It fails on any mismatch,
//! and where nothing is expected of the device.
#![forbid(unsafe_code)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use clap::Parser;
use conformance::link::LinkPeer;
use conformance::soft::SoftDevice;
use conformance::{Bench, Peer, Report, libmlx5, markdown, model, origin, run};
use softnic::Personality;
use verbs::{DeviceList, DevicePort, PortNumber, SYSFS_CLASSES, SYSFS_DEVICES};

/// Tests every field and enum value of the four verbs and prints the results.
#[derive(Debug, Parser)]
struct Arguments {
    /// A device of libibverbs' list, or the network interface of one, instead of the soft NIC
    /// [env: STEERD_TEST_DEVICE].
    #[arg(long, value_name = "NAME", env = "STEERD_TEST_DEVICE", hide_env = true)]
    device: Option<String>,
    /// The port of the device, unless an interface is named.
    #[arg(long, default_value_t = 1)]
    port: u8,
    /// With --device: the link at whose end `a` the device is; its end `b` is the peer.
    #[arg(long, value_name = "NAME", requires = "device")]
    link: Option<String>,
    /// The personality of the soft NIC [default: each in turn]; with --device, whose answers are expected
    /// [default: by the device's driver; other devices' answers are only recorded].
    #[arg(long, value_name = "ideal|mlx5|mlx4")]
    personality: Option<Personality>,
    /// Print JSON, a report per device.
    #[arg(long)]
    json: bool,
    /// Print rows that are as expected, too.
    #[arg(long)]
    verbose: bool,
    /// With --link: write the answers to this file instead, as the document's column of rdma-core's mlx5
    /// provider.
    #[arg(long, value_name = "FILE", requires = "link")]
    record: Option<PathBuf>,
    /// Write docs/generated/conformance.md and config/device-model-probed.toml instead of running anything.
    #[arg(long)]
    write_docs: bool,
}

type Failed = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match act(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(io::stderr(), "conformance: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all is as expected.
fn act(arguments: &Arguments) -> Result<bool, Failed> {
    if arguments.write_docs {
        fs::write(document(), markdown())?;
        fs::write(example(), model::example()?)?;
        return Ok(true);
    }
    let reports = match arguments.device.as_deref().filter(|name| !name.is_empty()) {
        Some(name) => vec![on_device(name, arguments)?],
        None => {
            let one = arguments.personality.map(|personality| vec![personality]);
            let personalities = one.unwrap_or_else(|| Personality::ALL.to_vec());
            personalities.into_iter().map(on_soft_nic).collect::<Result<_, _>>()?
        }
    };
    if let (Some(file), [report]) = (&arguments.record, reports.as_slice()) {
        fs::write(file, libmlx5::record(report))?;
        return Ok(true);
    }
    print(&reports, arguments)?;
    Ok(reports.iter().all(Report::passed))
}

fn on_soft_nic(personality: Personality) -> Result<Report, Failed> {
    let device = SoftDevice::new(personality)?;
    let bench = Bench::new(device.context(), PortNumber(1), Some(&device))?;
    let mut report = run(&bench, Some(personality), |_| true);
    report.device = format!("softnic0 ({personality})");
    Ok(report)
}

fn on_device(name: &str, arguments: &Arguments) -> Result<Report, Failed> {
    let named = DevicePort::named(Path::new(SYSFS_CLASSES), name, PortNumber(arguments.port));
    let name = named.device.as_str();
    let list = DeviceList::system()?;
    let device = list.find(name).ok_or_else(|| format!("no device {name}"))?;
    let context = device.open()?;
    let peer = arguments.link.as_deref().map(LinkPeer::meet).transpose()?;
    let peer = peer.as_ref().map(|peer| peer as &dyn Peer);
    let bench = Bench::new(&context, named.port, peer)?;
    let kind = arguments.personality.or_else(|| origin::kind(Path::new(SYSFS_DEVICES), name));
    Ok(run(&bench, kind, |_| true))
}

fn print(reports: &[Report], arguments: &Arguments) -> Result<(), Failed> {
    let mut out = io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(reports)?)?;
        return Ok(());
    }
    for report in reports {
        write!(out, "{}", report.text(arguments.verbose))?;
    }
    Ok(())
}

/// A device model that was found by trying.
fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/device-model-probed.toml")
}

/// In the repository this binary was built from.
fn document() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/generated/conformance.md")
}
