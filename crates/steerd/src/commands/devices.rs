//! `steerd devices`: the devices of libibverbs, and the soft NIC of the settings. Opens none; `--probe` runs
//! `steerd-probe` (crate `conformance`), which must be in the directory of this binary.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nic_filters::{CarveError, InterfaceFilters};
use serde::Serialize;

use crate::cli::{DevicesArgs, Format};
use crate::commands::Error;
use crate::daemon::carving::CarvingError;
use crate::daemon::device;
use crate::settings::{self, Request, Settings};
use crate::terminal::output;
use crate::terminal::table::Grid;

const FIRST_PORT: u8 = 1;
const PROBE: &str = "steerd-probe";

/// Described in docs/reference/commands/devices.md.
#[derive(Debug, Serialize)]
struct Devices<'d> {
    devices: &'d [Row],
}

#[derive(Debug, Serialize)]
struct Row {
    name: String,
    kind: &'static str,
    /// The model whose limits apply, and how it was determined.
    model: String,
    guid: Option<String>,
    ports: Option<usize>,
}

pub(crate) fn run(args: &DevicesArgs) -> Result<(), Error> {
    if let Some(interface) = &args.probe_filters {
        return probe_filters(interface);
    }
    let request = Request { file: args.config.clone(), ..Request::default() };
    let settings = settings::load(&request)?.settings;
    if let Some(name) = &args.probe {
        return probe(&settings, name, args);
    }
    let mut rows: Vec<Row> = device::list()?
        .into_iter()
        .map(|device| Row {
            model: format!("{} ({})", device.model.profile.name, device.model.known),
            name: device.name,
            kind: "rdma",
            guid: (device.guid != 0).then(|| format!("{:016x}", device.guid)),
            ports: None,
        })
        .collect();
    if !settings.softnic.ports.is_empty() {
        let ports = Some(settings.softnic.ports.len());
        let model = settings.softnic.personality.clone();
        rows.push(Row { name: settings.softnic.name, kind: "softnic", model, guid: None, ports });
    }
    match args.format {
        Format::Json => output::print_json(&Devices { devices: &rows })?,
        Format::Text => output::print(&text(&rows))?,
    }
    Ok(())
}

/// Prints the filter model of an interface, found by trying.
fn probe_filters(interface: &str) -> Result<(), Error> {
    let carving = |error: CarvingError| Error::Daemon(error.into());
    let mut nic = InterfaceFilters::open(interface).map_err(|error| carving(error.into()))?;
    let model = nic_filters::probe(&mut nic).map_err(|error| carving(CarveError::from(error).into()))?;
    let text = toml::to_string_pretty(&model).unwrap_or_else(|error| format!("# {error}\n"));
    output::print(&text)?;
    Ok(())
}

/// Replaces this process by `steerd-probe`, which tries what the verbs can express on the device's first
/// port, and writes the device model.
fn probe(settings: &Settings, name: &str, args: &DevicesArgs) -> Result<(), Error> {
    let failed = |program: &Path, source| Error::Probe { program: program.to_owned(), source };
    let own = env::current_exe().map_err(|source| failed(Path::new(PROBE), source))?;
    let program = own.with_file_name(PROBE);
    let mut command = Command::new(&program);
    if args.format == Format::Json {
        command.args(["--format", "json"]);
    }
    match &args.output {
        Some(file) => command.arg("--output").arg(file),
        // A name of libibverbs has no slash.
        None => command.arg("--default-output").arg(format!("{}.toml", name.replace('/', "_"))),
    };
    if name == settings.softnic.name && !settings.softnic.ports.is_empty() {
        command.args(["--soft", settings.softnic.personality.as_str()]);
    } else {
        // An interface has a port of its own, which `steerd-probe` finds.
        let port = settings.device.ports.first().copied().unwrap_or(FIRST_PORT);
        command.args(["--port", &port.to_string(), "--", name]);
    }
    Err(failed(&program, command.exec()))
}

fn text(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "no RDMA device on this machine, no soft NIC in the settings (`steerd run --demo` has one)\n"
            .into();
    }
    let mut grid = Grid::new(&["device", "kind", "model", "guid", "ports"]);
    for row in rows {
        grid.row(vec![
            row.name.clone(),
            row.kind.into(),
            row.model.clone(),
            row.guid.clone().unwrap_or_else(|| "-".into()),
            row.ports.map_or_else(|| "-".into(), |ports| ports.to_string()),
        ]);
    }
    grid.text()
}
