//! The tables of `steerd top`: columns with a key each, and rows whose cells can be compared.

use std::cmp::Ordering;
use std::fmt::Write as _;

use crate::telemetry::top::{FlowRate, Port, Rule, Sink, Top, Worker};
use crate::terminal::numbers::{bytes, number, rate};
use crate::terminal::table::Grid;

/// The pages, in the order of their keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Page {
    #[default]
    Rules,
    Workers,
    Sinks,
    Ports,
    Flows,
}

impl Page {
    pub(super) const ALL: [Self; 5] = [Self::Rules, Self::Workers, Self::Sinks, Self::Ports, Self::Flows];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rules => "rules",
            Self::Workers => "workers",
            Self::Sinks => "sinks",
            Self::Ports => "ports",
            Self::Flows => "flows",
        }
    }

    /// The text of an empty page.
    pub(super) fn nothing(self) -> &'static str {
        match self {
            Self::Sinks => "the policy has no sinks: packets for workers are counted",
            Self::Flows => "no flow is counted: a sink of kind \"count\" with `top_flows` does it",
            _ => "none",
        }
    }

    /// The column that a page is sorted by at first, descending; `None`: as the daemon lists them.
    pub(super) fn first_sort(self) -> Option<usize> {
        match self {
            Self::Flows => Some(4),
            _ => None,
        }
    }
}

/// A column: its head, and the key that sorts by it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) head: &'static str,
    pub(super) key: char,
    pub(super) is_number: bool,
    /// The weight of the column where columns of text share less width than they need.
    pub(super) share: usize,
}

const fn text_column(head: &'static str, key: char) -> Column {
    Column { head, key, is_number: false, share: 1 }
}

const fn number_column(head: &'static str, key: char) -> Column {
    Column { head, key, is_number: true, share: 1 }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cell {
    pub(super) text: String,
    /// `None`: it is compared as text.
    value: Option<f64>,
}

impl Cell {
    fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), value: None }
    }

    fn of(value: f64, text: String) -> Self {
        Self { text, value: Some(value) }
    }

    #[allow(clippy::cast_precision_loss)]
    fn count(value: u64) -> Self {
        Self::of(value as f64, number(value))
    }

    /// A count of three digits and a prefix.
    #[allow(clippy::cast_precision_loss)]
    fn rounded(value: u64) -> Self {
        Self::rate(value as f64)
    }

    /// A dash if unknown, sorted below all numbers.
    fn known(cell: Option<Self>) -> Self {
        cell.unwrap_or_else(|| Self::of(-1.0, "-".to_owned()))
    }

    #[allow(clippy::cast_precision_loss)]
    fn bytes(value: u64) -> Self {
        Self::of(value as f64, bytes(value))
    }

    fn rate(per_second: f64) -> Self {
        Self::of(per_second, rate(per_second))
    }

    /// Bytes per second as bits per second.
    fn bits(per_second: f64) -> Self {
        Self::rate(8.0 * per_second)
    }

    pub(super) fn compare(&self, other: &Self) -> Ordering {
        match (self.value, other.value) {
            (Some(one), Some(other)) => one.total_cmp(&other),
            _ => self.text.cmp(&other.text),
        }
    }
}

/// The columns and rows of a page.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) columns: &'static [Column],
    pub(super) rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(super) fn of(top: &Top, page: Page) -> Self {
        match page {
            Page::Rules => rules(top),
            Page::Workers => Self { columns: WORKERS, rows: top.workers.iter().map(worker).collect() },
            Page::Sinks => Self { columns: SINKS, rows: top.sinks.iter().map(sink).collect() },
            Page::Ports => Self { columns: PORTS, rows: top.ports.iter().map(port).collect() },
            Page::Flows => Self { columns: FLOWS, rows: top.flows.iter().map(flow).collect() },
        }
    }

    /// Sorts by a column; equal rows keep their order.
    pub(super) fn sort(&mut self, column: usize, is_descending: bool) {
        self.rows.sort_by(|one, other| {
            let order = one.get(column).zip(other.get(column)).map(|(one, other)| one.compare(other));
            let order = order.unwrap_or(Ordering::Equal);
            if is_descending { order.reverse() } else { order }
        });
    }
}

const RULES: &[Column] = &[
    text_column("rule", 'n'),
    text_column("action", 'a'),
    text_column("in", 'i'),
    number_column("packets", 'p'),
    number_column("bytes", 'b'),
    number_column("packets/s", 'r'),
    number_column("bits/s", 't'),
    number_column("policed", 'l'),
];

/// Without the last column if no packet was policed.
fn rules(top: &Top) -> Table {
    let is_policed = top.rules.iter().any(|rule| rule.policed > 0);
    let columns = &RULES[..RULES.len() - usize::from(!is_policed)];
    let row = |of: &Rule| rule(of).into_iter().take(columns.len()).collect();
    Table { columns, rows: top.rules.iter().map(row).collect() }
}

fn rule(rule: &Rule) -> Vec<Cell> {
    let counted = |cell: Cell| Cell::known((!rule.uncounted).then_some(cell));
    vec![
        Cell::text(rule.name.as_str()),
        Cell::text(rule.action.as_str()),
        Cell::text(rule.placement.as_str()),
        counted(Cell::count(rule.packets)),
        Cell::known(rule.bytes.map(Cell::bytes)),
        counted(Cell::rate(rule.packets_per_second)),
        Cell::known(rule.bytes_per_second.map(Cell::bits)),
        Cell::rounded(rule.policed),
    ]
}

const WORKERS: &[Column] = &[
    number_column("worker", 'n'),
    number_column("core", 'c'),
    number_column("packets", 'p'),
    number_column("bytes", 'b'),
    number_column("packets/s", 'r'),
    number_column("bits/s", 't'),
    number_column("lost", 'l'),
    number_column("idle", 'i'),
];

#[allow(clippy::cast_precision_loss)]
fn worker(worker: &Worker) -> Vec<Cell> {
    let stalled = if worker.stalled { " stalled" } else { "" };
    let failed = if worker.failed { " failed" } else { "" };
    vec![
        Cell::of(f64::from(worker.worker), format!("{}{stalled}{failed}", worker.worker)),
        worker
            .core
            .map_or_else(|| Cell::of(-1.0, "any".into()), |core| Cell::of(core as f64, core.to_string())),
        Cell::count(worker.packets),
        Cell::bytes(worker.bytes),
        Cell::rate(worker.packets_per_second),
        Cell::bits(worker.bytes_per_second),
        Cell::count(worker.lost),
        Cell::of(worker.idle, format!("{:.0}%", 100.0 * worker.idle)),
    ]
}

const SINKS: &[Column] = &[
    text_column("sink", 'n'),
    text_column("kind", 'k'),
    number_column("offered", 'p'),
    number_column("delivered", 'v'),
    number_column("dropped", 'd'),
    number_column("sent", 't'),
    number_column("packets/s", 'r'),
];

fn sink(sink: &Sink) -> Vec<Cell> {
    let losing = if sink.losing.is_some() { " (loses all)" } else { "" };
    vec![
        Cell::text(format!("{}{losing}", sink.name)),
        Cell::text(sink.kind.as_str()),
        Cell::count(sink.offered),
        Cell::count(sink.delivered),
        Cell::count(sink.dropped),
        Cell::known(sink.sent.map(Cell::rounded)),
        Cell::rate(sink.packets_per_second),
    ]
}

const PORTS: &[Column] = &[
    number_column("port", 'n'),
    text_column("wire", 'w'),
    number_column("received", 'p'),
    number_column("kernel", 'k'),
    number_column("lost", 'l'),
    number_column("packets/s", 'r'),
];

fn port(port: &Port) -> Vec<Cell> {
    let down = if port.up == Some(false) { " (down)" } else { "" };
    vec![
        Cell::of(f64::from(port.port), format!("{}{down}", port.port)),
        Cell::text(port.wire.as_str()),
        Cell::known(port.received.map(Cell::count)),
        Cell::known(port.kernel.map(Cell::count)),
        Cell::count(port.lost),
        Cell::known(port.packets_per_second.map(Cell::rate)),
    ]
}

const FLOWS: &[Column] = &[
    Column { share: 4, ..text_column("flow", 'n') },
    text_column("sink", 's'),
    number_column("packets", 'p'),
    number_column("bytes", 'b'),
    number_column("packets/s", 'r'),
];

fn flow(flow: &FlowRate) -> Vec<Cell> {
    vec![
        Cell::text(flow.flow.as_str()),
        Cell::text(flow.sink.as_str()),
        Cell::rounded(flow.packets),
        Cell::bytes(flow.bytes),
        Cell::known(flow.packets_per_second.map(Cell::rate)),
    ]
}

/// All tables that are not empty, for a reader that is no terminal.
pub(super) fn text(top: &Top) -> String {
    let mut out = format!("{}\n", head(top));
    for page in Page::ALL {
        let table = Table::of(top, page);
        if table.rows.is_empty() {
            continue;
        }
        let heads: Vec<&str> = table.columns.iter().map(|column| column.head).collect();
        let mut grid = Grid::new(&heads);
        for row in table.rows {
            grid.row(row.into_iter().map(|cell| cell.text).collect());
        }
        let _ = write!(out, "\n{}", grid.text());
    }
    let _ = write!(out, "\nlost: {}\n{}\n", top.lost, top.accounting);
    out
}

/// Version, device, policy and health in one line.
pub(super) fn head(top: &Top) -> String {
    let ready = if top.ready { "ready" } else { "not ready" };
    let degraded = top.degraded.as_ref().map_or_else(String::new, |why| format!(", {why}"));
    let fault = top.device_condition.fault().map_or_else(String::new, |fault| format!(", {fault}"));
    format!(
        "steerd {}  {}  {}  generation {}  {ready}{fault}{degraded}",
        top.version, top.device, top.policy, top.generation
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_of_a_page_sorts_by_one_column() {
        for page in Page::ALL {
            let columns = Table::of(&Top::default(), page).columns;
            for (index, column) in columns.iter().enumerate() {
                assert!(
                    columns[..index].iter().all(|other| other.key != column.key),
                    "{page:?} {}",
                    column.key
                );
                assert!(!"qhjkg".contains(column.key) || column.key == 'k', "{page:?}: a key of the screen");
            }
        }
    }

    #[test]
    fn policed_packets_have_a_column_if_there_are_any() {
        let rule = |policed| Rule { name: "web".into(), packets: 1_820, policed, ..Rule::default() };
        let top = |policed| Top { rules: vec![rule(policed)], ..Top::default() };
        assert!(!text(&top(0)).contains("policed"));
        let text = text(&top(1_268));
        assert!(text.contains("policed\n") && text.contains(" 1.27k\n"), "{text}");
    }

    #[test]
    fn numbers_are_sorted_by_value_and_unknown_ones_are_the_least() {
        let rule = |name: &str, packets, uncounted| Rule {
            name: name.into(),
            packets,
            uncounted,
            ..Rule::default()
        };
        let top = Top {
            rules: vec![rule("a", 900, false), rule("b", 1_000, false), rule("c", 5, true)],
            ..Top::default()
        };
        let mut table = Table::of(&top, Page::Rules);
        table.sort(3, true);
        let names: Vec<&str> = table.rows.iter().map(|row| row[0].text.as_str()).collect();
        assert_eq!(names, ["b", "a", "c"]);
        assert_eq!(table.rows[2][3].text, "-");
    }
}
