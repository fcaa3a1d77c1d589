//! The tables of `steerd top`: pages, columns with a key each, and rows whose cells can be compared.

use std::cmp::Ordering;

use crate::telemetry::top::{DropRate, FlowRate, Port, Rule, Sink, Top, Worker};
use crate::terminal::numbers::{bytes, number, rate, shares};
use crate::terminal::output::plain;
use crate::terminal::table::NO_CORE;

pub(super) use crate::cli::TopPage as Page;

/// The number of pages.
pub(super) const PAGES: usize = Page::ALL.len();

impl Page {
    pub(super) const ALL: [Self; 6] =
        [Self::Rules, Self::Workers, Self::Sinks, Self::Ports, Self::Flows, Self::Drops];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rules => "rules",
            Self::Workers => "workers",
            Self::Sinks => "sinks",
            Self::Ports => "ports",
            Self::Flows => "flows",
            Self::Drops => "drops",
        }
    }

    /// The text of an empty page.
    pub(super) fn nothing(self) -> &'static str {
        match self {
            Self::Sinks => "the policy has no sinks: packets for workers are counted",
            Self::Flows => "no flow is counted: a sink of kind \"count\" with `top_flows` does it",
            Self::Drops => "no packet was lost, or dropped by a limit, a sample or a sink",
            _ => "none",
        }
    }

    /// The order of a page at first; `None`: as the daemon lists the rows.
    pub(super) fn first_sort(self) -> Option<Sort> {
        let column = match self {
            Self::Flows => 4,
            Self::Drops => 3,
            _ => return None,
        };
        Some(Sort { column, is_descending: true })
    }

    pub(super) fn columns(self) -> &'static [Column] {
        match self {
            Self::Rules => RULES,
            Self::Workers => WORKERS,
            Self::Sinks => SINKS,
            Self::Ports => PORTS,
            Self::Flows => FLOWS,
            Self::Drops => DROPS,
        }
    }

    /// The order by the column of this name, numbers from the largest and texts from A.
    ///
    /// # Errors
    /// The page has no such column.
    pub(super) fn order_by(self, name: &str, is_reversed: bool) -> Result<Sort, UnknownColumn> {
        let plain = |name: &str| name.trim().to_lowercase().replace(['-', '_'], " ");
        let sortable = || self.columns().iter().filter(|column| column.key.is_some());
        let wanted = plain(name);
        let column = self.columns().iter().position(|column| column.key.is_some() && column.head == wanted);
        let Some(column) = column else {
            let heads: Vec<&str> = sortable().map(|column| column.head).collect();
            return Err(UnknownColumn {
                page: self.name(),
                name: name.to_owned(),
                near: policy::nearest(&wanted, heads.iter().copied()),
                columns: heads.join(", "),
            });
        };
        Ok(Sort { column, is_descending: self.columns()[column].descends() != is_reversed })
    }
}

/// A page has no column of that name.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the page `{page}` has no column `{}` (hint: {}its columns are {columns})",
    plain(name),
    near.map(|near| format!("did you mean `{near}`? ")).unwrap_or_default()
)]
pub(crate) struct UnknownColumn {
    page: &'static str,
    name: String,
    /// The column that was probably meant.
    near: Option<&'static str>,
    columns: String,
}

/// The order of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sort {
    pub(super) column: usize,
    pub(super) is_descending: bool,
}

/// A column: its head, the key that sorts by it, and what becomes of it where the width is short.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) head: &'static str,
    /// `None`: rows cannot be sorted by it.
    pub(super) key: Option<char>,
    pub(super) kind: ColumnKind,
    /// Columns of greater rank are left out first; rank 0 has what the page is for.
    pub(super) rank: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnKind {
    /// A text that may be shortened.
    Text {
        /// The least width of a shortened text.
        least: usize,
        /// The weight where several columns share less width than they need.
        share: usize,
    },
    /// A number, which is shown as a whole or not at all.
    Number,
    /// The rate over the last minute, as bars.
    Graph,
}

impl Column {
    pub(super) fn is_number(self) -> bool {
        self.kind == ColumnKind::Number
    }

    /// Whether the order by it descends at first.
    pub(super) fn descends(self) -> bool {
        self.is_number()
    }
}

const fn text_column(head: &'static str, key: char, rank: u8, least: usize) -> Column {
    Column { head, key: Some(key), kind: ColumnKind::Text { least, share: 1 }, rank }
}

const fn number_column(head: &'static str, key: char, rank: u8) -> Column {
    Column { head, key: Some(key), kind: ColumnKind::Number, rank }
}

/// The last column of each page that has rates.
const GRAPH: Column = Column { head: "last minute", key: None, kind: ColumnKind::Graph, rank: u8::MAX };

/// The form of a value as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CellUnit {
    /// A text, or a number that stands for itself.
    Fixed,
    /// Units per second, which can be averaged.
    Rate,
    /// A part of the whole of its row, which can be averaged; the parts of a row add up to 100 %.
    Share,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cell {
    pub(super) text: String,
    /// `None`: it is compared as text.
    value: Option<f64>,
    unit: CellUnit,
}

/// The value of an unknown number, below all others.
const UNKNOWN: f64 = -1.0;

impl Cell {
    fn text(text: &str) -> Self {
        Self { text: plain(text).into_owned(), value: None, unit: CellUnit::Fixed }
    }

    fn of(value: f64, text: String) -> Self {
        Self { text, value: Some(value), unit: CellUnit::Fixed }
    }

    fn graph() -> Self {
        Self::text("")
    }

    #[allow(clippy::cast_precision_loss)]
    fn count(value: u64) -> Self {
        Self::of(value as f64, number(value))
    }

    /// A count of three digits and a prefix.
    #[allow(clippy::cast_precision_loss)]
    fn rounded(value: u64) -> Self {
        Self::of(value as f64, rate(value as f64))
    }

    /// A dash if unknown, sorted below all numbers.
    fn known(cell: Option<Self>) -> Self {
        cell.unwrap_or_else(|| Self::of(UNKNOWN, "-".to_owned()))
    }

    #[allow(clippy::cast_precision_loss)]
    fn bytes(value: u64) -> Self {
        Self::of(value as f64, bytes(value))
    }

    /// Units per second; a dash if unknown.
    fn rate(per_second: Option<f64>) -> Self {
        let value = per_second.unwrap_or(UNKNOWN);
        let text = per_second.map_or_else(|| "-".to_owned(), rate);
        Self { text, value: Some(value), unit: CellUnit::Rate }
    }

    /// Bytes per second as bits per second.
    fn bits(per_second: Option<f64>) -> Self {
        Self::rate(per_second.map(|bytes| 8.0 * bytes))
    }

    /// A part of 1; [`Table::write_shares`] writes its text.
    fn share(part: Option<f64>) -> Self {
        Self { text: "-".to_owned(), value: Some(part.unwrap_or(UNKNOWN)), unit: CellUnit::Share }
    }

    /// Whether means over several samples replace the value.
    pub(super) fn is_averaged(&self) -> bool {
        matches!(self.unit, CellUnit::Rate | CellUnit::Share)
    }

    /// The number, if it is one that is known.
    pub(super) fn known_value(&self) -> Option<f64> {
        self.value.filter(|value| *value >= 0.0)
    }

    /// Replaces a value that is averaged by a mean; `None`: unknown.
    pub(super) fn set_mean(&mut self, mean: Option<f64>) {
        *self = match self.unit {
            CellUnit::Rate => Self::rate(mean),
            CellUnit::Share => Self::share(mean),
            CellUnit::Fixed => return,
        };
    }

    pub(super) fn compare(&self, other: &Self) -> Ordering {
        match (self.value, other.value) {
            (Some(one), Some(other)) => one.total_cmp(&other),
            _ => self.text.cmp(&other.text),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct TableRow {
    /// The name of what the row is about, by which it is found in the next answer.
    pub(super) key: String,
    /// The index in the list of the answer.
    pub(super) source: usize,
    /// A cell for each column.
    pub(super) cells: Vec<Cell>,
}

/// The columns and rows of a page.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) page: Page,
    pub(super) columns: &'static [Column],
    /// Whether a column has something to show, by column.
    pub(super) is_used: Vec<bool>,
    pub(super) rows: Vec<TableRow>,
}

impl Table {
    pub(super) fn of(top: &Top, page: Page) -> Self {
        let mut table = match page {
            Page::Rules => Self::made(page, &top.rules, |rule| rule.name.clone(), rule),
            Page::Workers => Self::made(page, &top.workers, |one| one.worker.to_string(), worker),
            Page::Sinks => Self::made(page, &top.sinks, |sink| sink.name.clone(), sink),
            Page::Ports => Self::made(page, &top.ports, |port| port.port.to_string(), port),
            Page::Flows => Self::made(page, &top.flows, |one| format!("{} {}", one.flow, one.sink), flow),
            Page::Drops => {
                Self::made(page, &top.drops, |one| format!("{} {}", one.place, one.reason), dropped)
            }
        };
        table.write_shares();
        table.leave_out_unused(top);
        table
    }

    fn made<T>(page: Page, list: &[T], key: fn(&T) -> String, cells: fn(&T) -> Vec<Cell>) -> Self {
        let row = |(source, of)| TableRow { key: key(of), source, cells: cells(of) };
        let columns = page.columns();
        let rows = list.iter().enumerate().map(row).collect();
        Self { page, columns, is_used: vec![true; columns.len()], rows }
    }

    /// Leaves out columns of what this daemon does not have, and the graph, which needs a history.
    fn leave_out_unused(&mut self, top: &Top) {
        for (is_used, column) in self.is_used.iter_mut().zip(self.columns) {
            *is_used = match (self.page, column.head) {
                (Page::Rules, "policed") => top.rules.iter().any(|rule| rule.policed > 0),
                (Page::Workers, NO_CORE) => top.workers.iter().any(|worker| worker.waiting.is_some()),
                (Page::Sinks, "sent") => top.sinks.iter().any(|sink| sink.sent.is_some()),
                (Page::Sinks, "because") => top.sinks.iter().any(|sink| sink.dropped > 0),
                _ => column.kind != ColumnKind::Graph,
            };
        }
    }

    /// Writes the parts of each row in percent, so that they add up to 100.
    pub(super) fn write_shares(&mut self) {
        for row in &mut self.rows {
            let is_share = |cell: &Cell| cell.unit == CellUnit::Share && cell.known_value().is_some();
            let parts: Vec<f64> =
                row.cells.iter().filter(|cell| is_share(cell)).filter_map(Cell::known_value).collect();
            let texts = shares(&parts, parts.iter().sum(), 0);
            let cells = row.cells.iter_mut().filter(|cell| is_share(cell));
            cells.zip(texts).for_each(|(cell, text)| cell.text = text);
        }
    }

    /// Sorts by a column; equal rows keep their order.
    pub(super) fn sort(&mut self, Sort { column, is_descending }: Sort) {
        self.rows.sort_by(|one, other| {
            let cells = one.cells.get(column).zip(other.cells.get(column));
            let order = cells.map_or(Ordering::Equal, |(one, other)| one.compare(other));
            if is_descending { order.reverse() } else { order }
        });
    }

    /// Leaves the rows that have this text in the first column or in one of text, in capitals or not.
    pub(super) fn filter(&mut self, text: &str) {
        let (columns, text) = (self.columns, text.to_lowercase());
        let is_searched = |index: usize| index == 0 || matches!(columns[index].kind, ColumnKind::Text { .. });
        self.rows.retain(|row| {
            let mut searched = row.cells.iter().enumerate().filter(|(index, _)| is_searched(*index));
            searched.any(|(_, cell)| cell.text.to_lowercase().contains(&text))
        });
    }
}

const RULES: &[Column] = &[
    text_column("rule", 'n', 0, 16),
    text_column("action", 'a', 2, 8),
    text_column("in", 'i', 4, 6),
    number_column("packets", 'p', 0),
    number_column("bytes", 'b', 5),
    number_column("packets/s", 'r', 0),
    number_column("bits/s", 't', 3),
    number_column("policed", 'l', 1),
    GRAPH,
];

fn rule(rule: &Rule) -> Vec<Cell> {
    let counted = |cell: Cell| Cell::known((!rule.uncounted).then_some(cell));
    vec![
        Cell::text(&rule.name),
        Cell::text(&rule.action),
        Cell::text(&rule.placement),
        counted(Cell::count(rule.packets)),
        Cell::known(rule.bytes.map(Cell::bytes)),
        Cell::rate((!rule.uncounted).then_some(rule.packets_per_second)),
        Cell::bits(rule.bytes_per_second),
        Cell::rounded(rule.policed),
        Cell::graph(),
    ]
}

const WORKERS: &[Column] = &[
    number_column("worker", 'n', 0),
    number_column("core", 'c', 2),
    number_column("packets", 'p', 3),
    number_column("bytes", 'b', 5),
    number_column("packets/s", 'r', 0),
    number_column("bits/s", 't', 4),
    number_column("lost", 'l', 1),
    number_column("busy", 'u', 0),
    number_column("idle", 'i', 0),
    number_column(NO_CORE, 'w', 0),
    GRAPH,
];

#[allow(clippy::cast_precision_loss)]
fn worker(worker: &Worker) -> Vec<Cell> {
    let stalled = if worker.stalled { " stalled" } else { "" };
    let failed = if worker.failed { " failed" } else { "" };
    let is_known = worker.idle + worker.busy + worker.waiting.unwrap_or(0.0) > 0.0;
    let share = |part: Option<f64>| Cell::share(part.filter(|_| is_known));
    vec![
        Cell::of(f64::from(worker.worker), format!("{}{stalled}{failed}", worker.worker)),
        worker
            .core
            .map_or_else(|| Cell::of(UNKNOWN, "any".into()), |core| Cell::of(core as f64, core.to_string())),
        Cell::count(worker.packets),
        Cell::bytes(worker.bytes),
        Cell::rate(Some(worker.packets_per_second)),
        Cell::bits(Some(worker.bytes_per_second)),
        Cell::count(worker.lost),
        share(Some(worker.busy)),
        share(Some(worker.idle)),
        share(worker.waiting),
        Cell::graph(),
    ]
}

const SINKS: &[Column] = &[
    text_column("sink", 'n', 0, 16),
    text_column("kind", 'k', 4, 6),
    number_column("offered", 'p', 1),
    number_column("delivered", 'v', 2),
    number_column("dropped", 'd', 0),
    number_column("sent", 't', 5),
    number_column("packets/s", 'r', 0),
    text_column("because", 'y', 3, 12),
    GRAPH,
];

fn sink(sink: &Sink) -> Vec<Cell> {
    let losing = if sink.losing.is_some() { " (loses all)" } else { "" };
    let mut reasons: Vec<(&String, &u64)> = sink.dropped_by_reason.iter().collect();
    reasons.sort_by_key(|(_, packets)| std::cmp::Reverse(**packets));
    // Without their packets, which the page of drops has: a number that is cut looks like another one.
    let because: Vec<&str> = reasons.iter().map(|(reason, _)| reason.as_str()).collect();
    vec![
        Cell::text(&format!("{}{losing}", sink.name)),
        Cell::text(&sink.kind),
        Cell::count(sink.offered),
        Cell::count(sink.delivered),
        Cell::count(sink.dropped),
        Cell::known(sink.sent.map(Cell::rounded)),
        Cell::rate(Some(sink.packets_per_second)),
        Cell::text(&because.join(", ")),
        Cell::graph(),
    ]
}

const PORTS: &[Column] = &[
    number_column("port", 'n', 0),
    text_column("state", 'u', 0, 10),
    text_column("wire", 'w', 2, 10),
    number_column("received", 'p', 0),
    number_column("kernel", 'k', 1),
    number_column("lost", 'l', 0),
    number_column("packets/s", 'r', 0),
    GRAPH,
];

fn port(port: &Port) -> Vec<Cell> {
    let state = match port.up {
        Some(true) => "up",
        Some(false) => "down",
        None => "unknown",
    };
    vec![
        Cell::of(f64::from(port.port), port.port.to_string()),
        Cell::text(state),
        Cell::text(&port.wire),
        Cell::known(port.received.map(Cell::count)),
        Cell::known(port.kernel.map(Cell::count)),
        Cell::count(port.lost),
        Cell::rate(port.packets_per_second),
        Cell::graph(),
    ]
}

const FLOWS: &[Column] = &[
    Column { kind: ColumnKind::Text { least: 24, share: 8 }, ..text_column("flow", 'n', 0, 24) },
    text_column("sink", 'k', 1, 6),
    number_column("packets", 'p', 0),
    number_column("bytes", 'b', 2),
    number_column("packets/s", 'r', 0),
    GRAPH,
];

fn flow(flow: &FlowRate) -> Vec<Cell> {
    vec![
        Cell::text(&flow.flow),
        Cell::text(&flow.sink),
        Cell::rounded(flow.packets),
        Cell::bytes(flow.bytes),
        Cell::rate(flow.packets_per_second),
        Cell::graph(),
    ]
}

const DROPS: &[Column] = &[
    text_column("place", 'n', 0, 16),
    text_column("reason", 'y', 0, 16),
    number_column("packets", 'p', 0),
    number_column("packets/s", 'r', 0),
    GRAPH,
];

fn dropped(dropped: &DropRate) -> Vec<Cell> {
    vec![
        Cell::text(&dropped.place),
        Cell::text(&dropped.reason),
        Cell::count(dropped.packets),
        Cell::rate(Some(dropped.packets_per_second)),
        Cell::graph(),
    ]
}

/// Version, device, policy and health in one line.
pub(super) fn head(top: &Top) -> String {
    format!("{}  {}", heading(top, &plain(&top.policy)), health(top))
}

/// Version, device, policy and its generation.
pub(super) fn heading(top: &Top, policy: &str) -> String {
    let (version, device) = (plain(&top.version), plain(&top.device));
    format!("steerd {version}  {device}  {policy}  generation {}", top.generation)
}

/// `ready`, or why it is not, and what is degraded.
pub(super) fn health(top: &Top) -> String {
    let degraded = top.degraded.as_ref().map_or_else(String::new, |why| format!(", {}", plain(why)));
    format!("{}{degraded}", problem(top).unwrap_or_else(|| "ready".to_owned()))
}

/// Why it is not ready, if it is not. A daemon of version 0.1 names only the condition of the device.
pub(super) fn problem(top: &Top) -> Option<String> {
    let known = top.problem.as_deref().map(|problem| plain(problem).into_owned());
    let by_device = || match top.device_condition.fault() {
        Some(fault) => format!("not ready: {fault}"),
        None => "not ready".to_owned(),
    };
    (!top.ready).then(|| known.unwrap_or_else(by_device))
}

/// Why ports are not up, or why that is unknown.
pub(super) fn port_problems(top: &Top) -> Vec<String> {
    let problems = top.ports.iter().filter_map(|port| port.problem.as_deref());
    problems.map(|problem| plain(problem).into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_sorts_by_one_column() {
        for page in Page::ALL {
            let columns = Table::of(&Top::default(), page).columns;
            for (index, column) in columns.iter().enumerate() {
                let Some(key) = column.key else { continue };
                assert!(columns[..index].iter().all(|other| other.key != Some(key)), "{page:?} {key}");
                assert!(!"qhsR/?".contains(key) && !key.is_ascii_digit(), "{page:?}: {key} is of the screen");
            }
            let cells = Table::of(&filled(), page).rows.remove(0).cells;
            assert_eq!(cells.len(), columns.len(), "{page:?}");
            assert_eq!(page as usize, Page::ALL.iter().position(|one| *one == page).expect("listed"));
        }
    }

    /// An answer with a row on each page.
    fn filled() -> Top {
        Top {
            rules: vec![Rule::default()],
            workers: vec![Worker::default()],
            sinks: vec![Sink::default()],
            ports: vec![Port::default()],
            flows: vec![FlowRate::default()],
            drops: vec![DropRate::default()],
            ..Top::default()
        }
    }

    #[test]
    fn numbers_are_sorted_by_value() {
        let rule = |name: &str, packets, uncounted| Rule {
            name: name.into(),
            packets,
            uncounted,
            ..Rule::default()
        };
        let rules = vec![rule("a", 900, false), rule("b", 1_000, false), rule("c", 5, true)];
        let mut table = Table::of(&Top { rules, ..Top::default() }, Page::Rules);
        table.sort(Page::Rules.order_by("packets", false).expect("a column"));
        let keys: Vec<&str> = table.rows.iter().map(|row| row.key.as_str()).collect();
        assert_eq!(keys, ["b", "a", "c"], "an unknown number is the least");
        assert_eq!(table.rows[2].cells[3].text, "-");
    }

    #[test]
    fn columns_are_found_by_their_heads() {
        let by = |page: Page, name, reverse| page.order_by(name, reverse).map_err(|error| error.to_string());
        assert_eq!(by(Page::Rules, "Packets/S", false), Ok(Sort { column: 5, is_descending: true }));
        assert_eq!(by(Page::Rules, "rule", true), Ok(Sort { column: 0, is_descending: true }));
        assert_eq!(by(Page::Workers, "no-core", true), Ok(Sort { column: 9, is_descending: false }));
        let message = by(Page::Drops, "packtes", false).expect_err("misspelt");
        let expected = "the page `drops` has no column `packtes` (hint: did you mean `packets`? its columns are \
                        place, reason, packets, packets/s)";
        assert_eq!(message, expected);
        let message = by(Page::Ports, "\u{1b}[2J", false).expect_err("no column");
        assert!(message.contains("(hint: its columns are port, state,") && !message.contains('\u{1b}'));
        assert!(by(Page::Ports, "last minute", false).is_err(), "bars have no order");
    }

    #[test]
    fn a_filter_searches_columns_of_text() {
        let rule = |name: &str, action: &str| Rule {
            name: name.into(),
            action: action.into(),
            packets: 53,
            ..Rule::default()
        };
        let rules = vec![rule("dns-53", "drop"), rule("web", "deliver to DNS"), rule("mail", "drop")];
        let top = Top { rules, ..Top::default() };
        let found = |text: &str| {
            let mut table = Table::of(&top, Page::Rules);
            table.filter(text);
            table.rows.iter().map(|row| row.source).collect::<Vec<_>>()
        };
        assert_eq!((found("Dns"), found("53"), found("")), (vec![0, 1], vec![0], vec![0, 1, 2]));
        let workers = [3, 13, 4].map(|worker| Worker { worker, ..Worker::default() });
        let mut table = Table::of(&Top { workers: workers.into(), ..Top::default() }, Page::Workers);
        table.filter("3");
        assert_eq!(table.rows.len(), 2, "the number of a worker is its name");
    }

    #[test]
    fn parts_of_a_worker_add_up() {
        let worker = |idle, busy, waiting| Worker { idle, busy, waiting, ..Worker::default() };
        let shares = |worker: Worker| {
            let table = Table::of(&Top { workers: vec![worker], ..Top::default() }, Page::Workers);
            table.rows[0].cells[7..10].iter().map(|cell| cell.text.clone()).collect::<Vec<_>>()
        };
        assert_eq!(shares(worker(0.333, 0.333, Some(0.334))), ["33%", "33%", "34%"]);
        assert_eq!(shares(worker(1.0, 0.0, None)), ["0%", "100%", "-"]);
        assert_eq!(shares(worker(0.0, 0.0, Some(1.0))), ["0%", "0%", "100%"]);
        assert_eq!(shares(worker(0.0, 0.0, Some(0.0))), ["-", "-", "-"], "nothing is known");
    }

    #[test]
    fn the_health_is_explained() {
        let mut top = Top { ready: true, ..Top::default() };
        assert_eq!((health(&top), problem(&top)), ("ready".to_owned(), None));
        top.degraded = Some("degraded: sink `a`".into());
        assert_eq!(health(&top), "ready, degraded: sink `a`");
        top.ready = false;
        assert_eq!(problem(&top).as_deref(), Some("not ready"), "an earlier daemon does not say why");
        top.problem = Some("not ready: worker 1 is stalled".into());
        assert_eq!(health(&top), "not ready: worker 1 is stalled, degraded: sink `a`");
        let port = |problem: Option<&str>| Port { problem: problem.map(str::to_owned), ..Port::default() };
        top.ports = vec![port(None), port(Some("port 2 of a is down"))];
        assert_eq!(port_problems(&top), ["port 2 of a is down"]);
    }
}
