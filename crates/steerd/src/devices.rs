//! `steerd devices`: libibverbs' list, and the soft NIC that the settings describe. Opens nothing.

use serde::Serialize;

use crate::cli::{DevicesArgs, Format};
use crate::error::Error;
use crate::settings::{self, Request};
use crate::table::Grid;
use crate::{output, plant};

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
