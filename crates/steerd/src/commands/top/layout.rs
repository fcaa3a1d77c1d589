//! Lines of a table for a width: which columns fit, and how long their texts are.
//!
//! A number is shown as a whole or not at all, because a number that is cut looks like another one. Texts are
//! shortened visibly, by an ellipsis. Columns that do not fit are left out by their ranks, and the screen
//! names them.

use std::borrow::Cow;

use ratatui::text::Span;

use super::history::BARS;
use super::tables::{Cell, ColumnKind, Sort, Table, TableRow};

/// Between two columns.
const GAP: usize = 2;
/// The place of what is left out of a text.
const ELLIPSIS: char = '…';

/// The columns that are shown, from left to right, with their widths.
#[derive(Debug)]
pub(super) struct TableLayout {
    shown: Vec<ShownColumn>,
    heads: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
struct ShownColumn {
    index: usize,
    width: usize,
}

impl TableLayout {
    /// The columns for lines of at most `width`, as wide as their widest cell where there is room, also for
    /// rows that are not in view, so that scrolling moves no column.
    pub(super) fn of(table: &Table, sort: Option<Sort>, width: usize) -> Self {
        let heads: Vec<String> = (0..table.columns.len()).map(|index| head(table, index, sort)).collect();
        let widest = |index: usize| {
            let cells = table.rows.iter().filter_map(|row| row.cells.get(index));
            let cells = cells.map(|cell| columns_of(&cell.text)).max().unwrap_or(0);
            let least = if table.columns[index].kind == ColumnKind::Graph { BARS } else { 0 };
            cells.max(columns_of(&heads[index])).max(least)
        };
        let used = (0..table.columns.len()).filter(|index| table.is_used[*index]);
        let mut shown: Vec<ShownColumn> =
            used.map(|index| ShownColumn { index, width: widest(index) }).collect();
        let least = |shown: &ShownColumn| match table.columns[shown.index].kind {
            ColumnKind::Text { least, .. } => least.min(shown.width),
            ColumnKind::Number | ColumnKind::Graph => shown.width,
        };
        while shown.len() > 1 && with_gaps(shown.iter().map(least)) > width {
            // Of equal ranks the last one; the first column names the row.
            let last = (1..shown.len()).max_by_key(|place| (table.columns[shown[*place].index].rank, *place));
            shown.remove(last.unwrap_or(shown.len() - 1));
        }
        shorten_columns(table, &mut shown, width);
        Self { shown, heads }
    }

    /// The heads of columns that have something to show and no room.
    pub(super) fn left_out(&self, table: &Table) -> Vec<&'static str> {
        let is_shown = |index: usize| self.shown.iter().any(|shown| shown.index == index);
        let columns = table.columns.iter().enumerate();
        let left_out = columns.filter(|(index, column)| {
            table.is_used[*index] && column.kind != ColumnKind::Graph && !is_shown(*index)
        });
        left_out.map(|(_, column)| column.head).collect()
    }

    /// The indices of the columns that are shown.
    pub(super) fn indices(&self) -> impl Iterator<Item = usize> + '_ {
        self.shown.iter().map(|shown| shown.index)
    }

    pub(super) fn head(&self, table: &Table) -> String {
        self.line(table, |index| &self.heads[index])
    }

    pub(super) fn row(&self, table: &Table, row: &TableRow) -> String {
        self.line(table, |index| row.cells.get(index).map_or("", |Cell { text, .. }| text))
    }

    fn line<'t>(&self, table: &Table, text: impl Fn(usize) -> &'t str) -> String {
        let mut line = String::new();
        for (place, ShownColumn { index, width }) in self.shown.iter().enumerate() {
            let text = shortened(text(*index), *width);
            let blanks = " ".repeat(width.saturating_sub(columns_of(&text)));
            // The first column names the row, whatever it is.
            let is_right = place > 0 && table.columns[*index].is_number();
            if place > 0 {
                line.push_str(&" ".repeat(GAP));
            }
            line.extend(if is_right { [&*blanks, &*text] } else { [&*text, &*blanks] });
        }
        line.truncate(line.trim_end().len());
        line
    }
}

/// Takes the missing width from columns of text, from the one that is the widest for its share, again and
/// again. The first column of a very narrow screen is shortened below its least width.
fn shorten_columns(table: &Table, shown: &mut [ShownColumn], width: usize) {
    while with_gaps(shown.iter().map(|column| column.width)) > width {
        let part = |column: &ShownColumn| match table.columns[column.index].kind {
            ColumnKind::Text { least, share } if column.width > least => Some(column.width / share),
            _ => None,
        };
        let widest = (0..shown.len()).filter(|place| part(&shown[*place]).is_some());
        match widest.max_by_key(|place| part(&shown[*place])) {
            Some(place) => shown[place].width -= 1,
            None => {
                let others: usize = with_gaps(shown.iter().skip(1).map(|column| column.width));
                let first = width.saturating_sub(if shown.len() > 1 { others + GAP } else { 0 });
                return shown.iter_mut().take(1).for_each(|column| column.width = column.width.min(first));
            }
        }
    }
}

fn with_gaps(widths: impl Iterator<Item = usize>) -> usize {
    let (columns, width) = widths.fold((0_usize, 0), |(columns, sum), width| (columns + 1, sum + width));
    width + GAP * columns.saturating_sub(1)
}

/// The head of a column, marked if the rows are sorted by it.
fn head(table: &Table, index: usize, sort: Option<Sort>) -> String {
    let mark = match sort {
        Some(Sort { column, is_descending: true }) if column == index => " v",
        Some(Sort { column, is_descending: false }) if column == index => " ^",
        _ => "",
    };
    format!("{}{mark}", table.columns[index].head)
}

/// The columns of a terminal that a text takes.
pub(super) fn columns_of(text: &str) -> usize {
    Span::raw(text).width()
}

/// The text in at most `width` columns. What is left out is in the middle, because names that belong together
/// differ at the end, and is shown by an ellipsis.
pub(super) fn shortened(text: &str, width: usize) -> Cow<'_, str> {
    if columns_of(text) <= width {
        return Cow::Borrowed(text);
    }
    let Some(room) = width.checked_sub(1) else { return Cow::Borrowed("") };
    let end = room / 3;
    let tail: String = fitting(text.chars().rev(), end).chars().rev().collect();
    let head = fitting(text.chars(), room - end);
    Cow::Owned(format!("{head}{ELLIPSIS}{tail}"))
}

/// The first characters, as many as fit.
fn fitting(chars: impl Iterator<Item = char>, width: usize) -> String {
    let mut used = 0;
    let fits = |char: &char| {
        used += columns_of(char.encode_utf8(&mut [0; 4]));
        used <= width
    };
    chars.take_while(fits).collect()
}

/// Words in at most `width` columns, and an ellipsis in place of those that do not fit.
pub(super) fn words_that_fit(words: &[String], width: usize) -> String {
    let all = words.join(" ");
    if columns_of(&all) <= width {
        return all;
    }
    let mut line = String::new();
    for word in words {
        if columns_of(&line) + columns_of(word) + 2 > width {
            break;
        }
        line.push_str(word);
        line.push(' ');
    }
    line.push(ELLIPSIS);
    shortened(&line, width).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_map, vec};
    use proptest::option;
    use proptest::prelude::*;

    use super::super::tables::Page;
    use super::*;
    use crate::telemetry::top::{DropRate, FlowRate, Port, Rule, Sink, Top, Worker};

    #[test]
    fn long_texts_are_shortened_visibly() {
        assert_eq!(shortened("abcdef", 6), "abcdef");
        assert_eq!(shortened("abcdefghij", 7), "abcd…ij");
        assert_eq!(
            (shortened("abc", 2), shortened("abc", 1), shortened("abc", 0)),
            ("a…".into(), "…".into(), "".into())
        );
        // Wide characters take two columns.
        assert_eq!(shortened("漢字漢字", 5), "漢…");
        assert!(columns_of(&shortened("漢字漢字漢字漢字", 8)) <= 8);
    }

    #[test]
    fn words_are_shown_as_a_whole() {
        let words: Vec<String> = ["n=rule", "p=packets", "b=bytes"].map(str::to_owned).into();
        assert_eq!(words_that_fit(&words, 24), "n=rule p=packets b=bytes");
        assert_eq!(words_that_fit(&words, 23), "n=rule p=packets …");
        assert_eq!(words_that_fit(&words, 7), "…");
    }

    fn name() -> impl Strategy<Value = String> {
        "[a-z]{1,8}(-[a-z0-9]{1,12}){0,5}"
    }

    fn per_second() -> impl Strategy<Value = f64> {
        prop_oneof![Just(0.0), 0.0..2_000.0, 0.0..1e12]
    }

    fn rule() -> impl Strategy<Value = Rule> {
        let counts = (any::<u64>(), option::of(any::<u64>()), any::<u64>(), per_second(), any::<bool>());
        (name(), name(), counts).prop_map(|(name, action, (packets, bytes, policed, rate, uncounted))| Rule {
            name,
            action: format!("deliver to {action}"),
            placement: "hardware".into(),
            uncounted,
            packets,
            policed,
            bytes,
            packets_per_second: rate,
            bytes_per_second: bytes.map(|_| 100.0 * rate),
        })
    }

    fn worker() -> impl Strategy<Value = Worker> {
        let times = (0.0..1.0, option::of(0.0..1.0)).prop_map(|(idle, waiting)| (idle, 1.0 - idle, waiting));
        let counts = (any::<u64>(), any::<u64>(), per_second(), any::<u64>());
        let state = (0..1024_u32, option::of(0..4096_usize), any::<bool>(), any::<bool>());
        (state, counts, times).prop_map(|(state, (packets, bytes, rate, lost), (idle, busy, waiting))| {
            Worker {
                worker: state.0,
                core: state.1,
                stalled: state.2,
                failed: state.3,
                packets,
                bytes,
                packets_per_second: rate,
                bytes_per_second: 100.0 * rate,
                lost,
                idle,
                busy,
                waiting,
                ..Worker::default()
            }
        })
    }

    fn sink() -> impl Strategy<Value = Sink> {
        let counts = (any::<u64>(), any::<u64>(), option::of(any::<u64>()), per_second());
        let reasons = btree_map(name(), any::<u32>().prop_map(u64::from), 0..4);
        let sink = (name(), option::of(name()), counts, reasons);
        sink.prop_map(|(name, losing, (offered, delivered, sent, rate), reasons)| Sink {
            name,
            kind: "capture".into(),
            offered,
            delivered,
            dropped: reasons.values().sum(),
            dropped_by_reason: reasons,
            losing,
            sent,
            packets_per_second: rate,
        })
    }

    fn port() -> impl Strategy<Value = Port> {
        let counts =
            (option::of(any::<u64>()), option::of(any::<u64>()), any::<u64>(), option::of(per_second()));
        (any::<u8>(), name(), option::of(any::<bool>()), counts).prop_map(
            |(port, wire, up, (received, kernel, lost, packets_per_second))| Port {
                port,
                wire,
                up,
                received,
                kernel,
                lost,
                packets_per_second,
                ..Port::default()
            },
        )
    }

    fn flow() -> impl Strategy<Value = FlowRate> {
        let flow =
            "\\[2001:db8(:[0-9a-f]{1,4}){6}\\]:[0-9]{1,5} > \\[2001:db8(:[0-9a-f]{1,4}){6}\\]:[0-9]{1,5} tcp";
        (flow, name(), any::<u64>(), any::<u64>(), option::of(per_second())).prop_map(
            |(flow, sink, packets, bytes, packets_per_second)| FlowRate {
                flow,
                sink,
                packets,
                bytes,
                packets_per_second,
            },
        )
    }

    fn dropped() -> impl Strategy<Value = DropRate> {
        (name(), name(), any::<u64>(), per_second()).prop_map(
            |(place, reason, packets, packets_per_second)| DropRate {
                place: format!("sink {place}, sending"),
                reason,
                packets,
                packets_per_second,
            },
        )
    }

    prop_compose! {
        fn top()(
            rules in vec(rule(), 0..8),
            workers in vec(worker(), 0..8),
            sinks in vec(sink(), 0..8),
            ports in vec(port(), 0..4),
            flows in vec(flow(), 0..8),
            drops in vec(dropped(), 0..8),
        ) -> Top {
            Top { rules, workers, sinks, ports, flows, drops, ..Top::default() }
        }
    }

    /// The words of a line, which the texts of numbers are, but for the marks behind the number of a worker.
    fn has_number(line: &str, number: &str) -> bool {
        line.split("  ").any(|part| part.trim() == number)
    }

    proptest! {
        #[test]
        fn lines_fit_and_numbers_are_whole(top in top(), sorted in any::<prop::sample::Index>(), extra in 0..120_usize) {
            for page in Page::ALL {
                let table = Table::of(&top, page);
                let sort = Some(Sort { column: sorted.index(table.columns.len()), is_descending: true });
                for width in [80, 80 + extra, 30 + extra] {
                    let layout = TableLayout::of(&table, sort, width);
                    let shown: Vec<usize> = layout.indices().collect();
                    prop_assert_eq!(shown.first(), Some(&0), "the names of rows");
                    let head = layout.head(&table);
                    prop_assert!(columns_of(&head) <= width, "{}", head);
                    for index in &shown {
                        let column = table.columns[*index];
                        prop_assert!(width < 80 || head.contains(column.head), "{}: {}", column.head, head);
                    }
                    for row in &table.rows {
                        let line = layout.row(&table, row);
                        prop_assert!(columns_of(&line) <= width, "{}", line);
                        let numbers = shown.iter().filter(|index| table.columns[**index].is_number());
                        for index in numbers {
                            let number = &row.cells[*index].text;
                            prop_assert!(width < 80 || has_number(&line, number), "{} in {}", number, line);
                        }
                    }
                }
                // What a page is for fits into 80 columns, unless counters are near their end.
                if top.rules.iter().all(|rule| rule.packets < 1 << 50) && page == Page::Rules {
                    let layout = TableLayout::of(&table, None, 80);
                    let essential = table.columns.iter().enumerate().filter(|(_, column)| column.rank == 0);
                    for (index, column) in essential {
                        prop_assert!(layout.indices().any(|shown| shown == index), "{}", column.head);
                    }
                }
            }
        }
    }

    #[test]
    fn columns_are_left_out_by_rank() {
        let rule = Rule {
            name: "a-rule-with-quite-a-long-name-that-is-shortened".into(),
            action: "deliver to everybody".into(),
            placement: "hardware".into(),
            packets: 123_456_789_012,
            policed: 7,
            bytes: Some(1 << 50),
            packets_per_second: 1_234_567.0,
            bytes_per_second: Some(1e9),
            ..Rule::default()
        };
        let table = Table::of(&Top { rules: vec![rule], ..Top::default() }, Page::Rules);
        let left_out = |width| TableLayout::of(&table, None, width).left_out(&table).join(" ");
        let steps = [
            (200, ""),
            (80, "bytes"),
            (70, "in bytes"),
            (60, "in bytes bits/s"),
            (48, "action in bytes bits/s policed"),
        ];
        assert_eq!(
            steps.map(|(width, _)| (width, left_out(width))),
            steps.map(|(width, heads)| (width, heads.to_owned()))
        );
        let layout = TableLayout::of(&table, None, 80);
        let line = layout.row(&table, &table.rows[0]);
        assert!(line.starts_with("a-rule-wit…tened ") && line.contains(" 123456789012 "), "{line}");
    }
}
