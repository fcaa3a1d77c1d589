//! `steerd devices`: the devices of libibverbs, and the soft NIC of the settings. The list opens none;
//! `--probe` and `--report` run `steerd-probe` (crate `conformance`), which must be in the directory of this
//! binary.

mod report;

use std::env;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nic_filters::{CarveError, InterfaceFilters};
use serde::Serialize;

use crate::cli::{DevicesArgs, Format};
use crate::commands::Error;
use crate::daemon::carving::CarvingError;
use crate::daemon::device::{self, DeviceFacts, LinkFacts};
use crate::hardware_report::{FIRST_PORT, PROBE};
use crate::settings::{self, Request, Settings};
use crate::terminal::output;
use crate::terminal::table::Grid;

/// The most ports of a device that are shown.
const SHOWN: usize = 4;

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
    /// The place and the links of an RDMA device.
    #[serde(flatten)]
    facts: Option<DeviceFacts>,
}

pub(crate) fn run(args: &DevicesArgs) -> Result<(), Error> {
    if let Some(interface) = &args.probe_filters {
        return probe_filters(interface);
    }
    if !args.validate_report.is_empty() {
        return report::validate(&args.validate_report);
    }
    let request = Request { file: args.config.clone(), ..Request::default() };
    let settings = settings::load(&request)?.settings;
    if let Some(name) = &args.probe {
        return probe(&settings, name, args);
    }
    if let Some(name) = &args.report {
        return report::run(&settings, name, args);
    }
    let mut rows: Vec<Row> = device::list()?
        .into_iter()
        .map(|device| {
            let facts = device::facts(&device.name);
            Row {
                model: format!("{} ({})", device.model.profile.name, device.model.known),
                name: device.name,
                kind: "rdma",
                guid: (device.guid != 0).then(|| format!("{:016x}", device.guid)),
                ports: Some(facts.links.len()).filter(|ports| *ports > 0),
                facts: Some(facts),
            }
        })
        .collect();
    if !settings.softnic.ports.is_empty() {
        let ports = Some(settings.softnic.ports.len());
        let model = settings.softnic.personality.clone();
        let name = settings.softnic.name;
        rows.push(Row { name, kind: "softnic", model, guid: None, ports, facts: None });
    }
    match args.printed.format() {
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
    if args.printed.format() == Format::Json {
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
    let heads = [
        "device",
        "kind",
        "model",
        "guid",
        "ports",
        "interface",
        "pci",
        "link",
        "node",
        "eswitch",
        "firmware",
    ];
    let mut grid = Grid::new(&heads);
    for row in rows {
        let facts = row.facts.as_ref();
        let links = facts.map_or(&[][..], |facts| facts.links.as_slice());
        let interfaces: Vec<String> = links.iter().filter_map(|link| link.interface.clone()).collect();
        let states: Vec<String> = links.iter().map(LinkFacts::text).collect();
        grid.row(vec![
            row.name.clone(),
            row.kind.into(),
            row.model.clone(),
            or_dash(row.guid.clone()),
            or_dash(row.ports),
            some_of(&interfaces),
            or_dash(facts.and_then(|facts| facts.pci_address.clone())),
            some_of(&states),
            or_dash(facts.and_then(|facts| facts.numa_node)),
            or_dash(facts.map(|facts| facts.eswitch.clone())),
            or_dash(facts.and_then(|facts| facts.firmware.clone())),
        ]);
    }
    grid.text()
}

fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".into(), |value| value.to_string())
}

/// The first values, and how many more there are: in switchdev mode a device has a port for each function.
fn some_of(values: &[String]) -> String {
    let shown: Vec<&str> = values.iter().take(SHOWN).map(String::as_str).collect();
    match values.len().saturating_sub(SHOWN) {
        _ if values.is_empty() => "-".into(),
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_shows_where_a_device_is() {
        let link = |port: u8, state: &str| LinkFacts {
            port,
            interface: Some(format!("ens1f{port}")),
            state: Some(state.to_owned()),
            rate: Some("100 Gb/sec".to_owned()),
        };
        let row = |links: Vec<LinkFacts>| Row {
            name: "rocep193s0f0".to_owned(),
            kind: "rdma",
            model: "mlx5 (driver mlx5_core)".to_owned(),
            guid: None,
            ports: Some(links.len()),
            facts: Some(DeviceFacts {
                pci_address: Some("0000:c1:00.0".to_owned()),
                numa_node: Some(1),
                eswitch: "legacy".to_owned(),
                firmware: None,
                links,
            }),
        };
        let text = text(&[row(vec![link(1, "active"), link(2, "down")]), row(Vec::new())]);
        let words = |line: usize| -> Vec<&str> {
            let line = text.lines().nth(line).expect("a line");
            line.split("  ").map(str::trim).filter(|word| !word.is_empty()).collect()
        };
        assert_eq!(words(0).len(), 11, "{text}");
        assert_eq!(
            words(1),
            [
                "rocep193s0f0",
                "rdma",
                "mlx5 (driver mlx5_core)",
                "-",
                "2",
                "ens1f1, ens1f2",
                "0000:c1:00.0",
                "100 Gb/sec, down",
                "1",
                "legacy",
                "-"
            ],
            "{text}"
        );
        assert_eq!(words(2)[5], "-", "{text}");
        let six: Vec<String> = (1..=6).map(|number| number.to_string()).collect();
        assert_eq!(some_of(&six), "1, 2, 3, 4 and 2 more");
    }

    #[test]
    fn the_facts_are_keys_of_a_device() {
        let row = Row {
            name: "softnic0".to_owned(),
            kind: "softnic",
            model: "ideal".to_owned(),
            guid: None,
            ports: Some(1),
            facts: None,
        };
        let json = serde_json::to_value(&row).expect("plain data");
        assert!(json.get("eswitch").is_none(), "{json}");
        let facts = device::facts("mlx5_9");
        let json = serde_json::to_value(Row { facts: Some(facts), ..row }).expect("plain data");
        assert_eq!(json["eswitch"], "unknown");
        assert!(json["links"].as_array().is_some_and(Vec::is_empty), "{json}");
    }
}
