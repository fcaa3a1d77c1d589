//! `steerd devices`: libibverbs' list, and the soft NIC that the settings describe. Opens nothing, unless it is asked to
//! probe a device: then it makes objects there that disturb nobody, and says what the device makes of each.

use conformance::{Report, Verdict};
use serde::Serialize;

use crate::cli::{DevicesArgs, Format};
use crate::error::Error;
use crate::settings::{self, Request, Settings};
use crate::table::Grid;
use crate::{output, plant};

const FIRST_PORT: u8 = 1;
/// What a row of a report says that did what was asked.
const WORKS: &str = "works";

#[derive(Debug, Serialize)]
struct Row {
    name: String,
    kind: &'static str,
    guid: Option<String>,
    ports: Option<usize>,
}

pub(crate) fn run(args: &DevicesArgs) -> Result<(), Error> {
    let request = Request { file: args.config.clone(), ..Request::default() };
    let settings = settings::load(&request).map_err(Error::Settings)?.settings;
    if let Some(name) = &args.probe {
        return probe(settings, name, args.format);
    }
    let mut rows: Vec<Row> = plant::list()?
        .into_iter()
        .map(|device| Row {
            name: device.name,
            kind: "rdma",
            guid: (device.guid != 0).then(|| format!("{:016x}", device.guid)),
            ports: None,
        })
        .collect();
    if !settings.softnic.ports.is_empty() {
        let ports = Some(settings.softnic.ports.len());
        rows.push(Row { name: settings.softnic.name, kind: "softnic", guid: None, ports });
    }
    match args.format {
        Format::Json => output::print_json(&rows),
        Format::Text => output::print(&text(&rows)),
    }
}

/// Tries on a device, its first port, what the verbs can say.
fn probe(mut settings: Settings, name: &str, format: Format) -> Result<(), Error> {
    name.clone_into(&mut settings.device.name);
    let opened = plant::open(&settings)?;
    let port = opened.ports.first().copied().unwrap_or(FIRST_PORT);
    let report = conformance::probe(opened.device.context(), port);
    let report = report.map_err(|error| Error::NoDevice(format!("{name} cannot be probed: {error}")))?;
    match format {
        Format::Json => output::print_json(&report),
        Format::Text => output::print(&capabilities(&report)),
    }
}

fn capabilities(report: &Report) -> String {
    let mut grid = Grid::new(&["verb", "field", "value", "answer"]);
    for row in &report.rows {
        let value = match row.verdict {
            Verdict::Ok | Verdict::NotRun => row.seen.clone(),
            Verdict::Mismatch => format!("BROKEN: {}", row.seen),
        };
        grid.row(vec![row.verb.clone(), row.field.into(), row.value.into(), value]);
    }
    let works = report.rows.iter().filter(|row| row.seen == WORKS).count();
    let broken = report.count(Verdict::Mismatch);
    format!(
        "{}\n{}: {works} of {} work, {broken} are promised and not kept, the others are refused\n",
        grid.text(),
        report.device,
        report.rows.len()
    )
}

fn text(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "no RDMA device on this machine, no soft NIC in the settings (`steerd run --demo` brings one)\n"
            .into();
    }
    let mut grid = Grid::new(&["device", "kind", "guid", "ports"]);
    for row in rows {
        grid.row(vec![
            row.name.clone(),
            row.kind.into(),
            row.guid.clone().unwrap_or_else(|| "-".into()),
            row.ports.map_or_else(|| "-".into(), |ports| ports.to_string()),
        ]);
    }
    grid.text()
}
