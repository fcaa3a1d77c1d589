//! The screen of `steerd top`: one page at a time, and what keys do.

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table as Widget};

use super::tables::{self, Page, Table};
use crate::telemetry::top::Top;

/// The least width of a column of text that is cut.
const LEAST_TEXT: usize = 6;
/// Between two columns.
const GAP: usize = 2;

/// The result of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Draw,
    Quit,
}

/// The order of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sort {
    column: usize,
    is_descending: bool,
}

pub(super) struct Screen {
    top: Top,
    /// Why the last answer is missing.
    error: Option<String>,
    page: Page,
    /// The order of each page; `None`: the daemon's order.
    sorts: [Option<Sort>; Page::ALL.len()],
    /// The first row that is shown.
    offset: usize,
    /// How many rows were shown last.
    height: usize,
}

impl Screen {
    pub(super) fn new(top: Top) -> Self {
        let sort = |page: Page| page.first_sort().map(|column| Sort { column, is_descending: true });
        let sorts = Page::ALL.map(sort);
        Self { top, error: None, page: Page::default(), sorts, offset: 0, height: 0 }
    }

    /// The last answer stays if there is no new one.
    pub(super) fn update(&mut self, answer: Result<Top, String>) {
        match answer {
            Ok(top) => (self.top, self.error) = (top, None),
            Err(error) => self.error = Some(error),
        }
    }

    pub(super) fn key(&mut self, key: KeyEvent) -> Next {
        let page_rows = self.height.max(1);
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Next::Quit,
            KeyCode::Char('q') | KeyCode::Esc => return Next::Quit,
            KeyCode::Tab | KeyCode::Right => self.turn(1),
            KeyCode::BackTab | KeyCode::Left => self.turn(Page::ALL.len() - 1),
            KeyCode::Down => self.offset = self.offset.saturating_add(1),
            KeyCode::Up => self.offset = self.offset.saturating_sub(1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.offset = self.offset.saturating_add(page_rows),
            KeyCode::PageUp => self.offset = self.offset.saturating_sub(page_rows),
            KeyCode::Home => self.offset = 0,
            KeyCode::End => self.offset = usize::MAX,
            KeyCode::Char(digit @ '1'..='9') => self.show(digit as usize - '1' as usize),
            KeyCode::Char(letter) => self.sort_by(letter),
            _ => {}
        }
        Next::Draw
    }

    fn turn(&mut self, by: usize) {
        self.show((self.page as usize + by) % Page::ALL.len());
    }

    fn show(&mut self, page: usize) {
        if let Some(page) = Page::ALL.get(page) {
            (self.page, self.offset) = (*page, 0);
        }
    }

    /// Sorts by the column of this key; numbers descend at first, and the same key again reverses.
    fn sort_by(&mut self, key: char) {
        let columns = Table::of(&self.top, self.page).columns;
        let Some(column) = columns.iter().position(|column| column.key == key) else { return };
        let sort = &mut self.sorts[self.page as usize];
        *sort = Some(match *sort {
            Some(sort) if sort.column == column => Sort { is_descending: !sort.is_descending, ..sort },
            _ => Sort { column, is_descending: columns[column].is_number },
        });
        self.offset = 0;
    }

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let rows = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Min(1),
            Constraint::Length(1),
        ]);
        let [head, state, pages, body, keys] = rows.areas(frame.area());
        let line = |text: String| Paragraph::new(text);
        frame.render_widget(line(tables::head(&self.top)).style(Modifier::BOLD), head);
        frame.render_widget(self.state(), state);
        frame.render_widget(self.pages(), pages);
        self.table(frame, body);
        frame.render_widget(Paragraph::new(self.keys()).style(Modifier::DIM), keys);
    }

    fn state(&self) -> Paragraph<'_> {
        match &self.error {
            Some(error) => Paragraph::new(format!("no answer: {error}")).style(Modifier::REVERSED),
            None => Paragraph::new(format!("{}; lost: {}", self.top.accounting, self.top.lost)),
        }
    }

    fn pages(&self) -> Paragraph<'static> {
        let names = Page::ALL.iter().enumerate().flat_map(|(index, page)| {
            let style = if *page == self.page { Modifier::REVERSED } else { Modifier::empty() };
            [Span::styled(format!(" {} {} ", index + 1, page.name()), Style::from(style)), Span::raw(" ")]
        });
        Paragraph::new(Line::from_iter(names.chain([Span::raw(" q=quit tab=page arrows=scroll")])))
    }

    fn keys(&self) -> String {
        let columns = Table::of(&self.top, self.page).columns;
        let columns: Vec<String> =
            columns.iter().map(|column| format!("{}={}", column.key, column.head)).collect();
        format!("sort: {}", columns.join(" "))
    }

    fn table(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let mut table = Table::of(&self.top, self.page);
        let sort = self.sorts[self.page as usize];
        if let Some(sort) = sort {
            table.sort(sort.column, sort.is_descending);
        }
        if table.rows.is_empty() {
            return frame.render_widget(Paragraph::new(self.page.nothing()), area);
        }
        self.height = usize::from(area.height).saturating_sub(1);
        self.offset = self.offset.min(table.rows.len().saturating_sub(self.height));
        let heads: Vec<String> =
            table.columns.iter().enumerate().map(|(index, _)| head(&table, index, sort)).collect();
        let widths = widths(&table, &heads, area.width.into());
        let aligned = |index: usize, text: String| {
            let is_right = table.columns[index].is_number && index > 0;
            let alignment = if is_right { Alignment::Right } else { Alignment::Left };
            Cell::from(Text::from(text).alignment(alignment))
        };
        let header = Row::new(heads.into_iter().enumerate().map(|(index, head)| aligned(index, head)));
        let shown = table.rows.iter().skip(self.offset).take(self.height);
        let rows = shown.map(|row| {
            Row::new(row.iter().enumerate().map(|(index, cell)| aligned(index, cell.text.clone())))
        });
        let widths = widths.iter().map(|width| Constraint::Length(u16::try_from(*width).unwrap_or(u16::MAX)));
        let widget = Widget::new(rows, widths)
            .column_spacing(GAP as u16)
            .header(header.style(Style::from(Modifier::BOLD)));
        frame.render_widget(widget, area);
    }
}

/// The head of a column, marked if the rows are sorted by it.
fn head(table: &Table, index: usize, sort: Option<Sort>) -> String {
    let mark = match sort {
        Some(sort) if sort.column == index => {
            if sort.is_descending {
                " v"
            } else {
                " ^"
            }
        }
        _ => "",
    };
    format!("{}{mark}", table.columns[index].head)
}

/// The widths of the columns: that of the widest cell. If that is too wide for the screen, the widest column
/// of text for its share is cut, again and again.
fn widths(table: &Table, heads: &[String], screen: usize) -> Vec<usize> {
    let widest = |index: usize| {
        let cells = table.rows.iter().filter_map(|row| row.get(index)).map(|cell| cell.text.chars().count());
        cells.max().unwrap_or(0).max(heads[index].chars().count())
    };
    let mut widths: Vec<usize> = (0..table.columns.len()).map(widest).collect();
    let gaps = GAP * table.columns.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > screen {
        let texts = (0..widths.len()).filter(|index| !table.columns[*index].is_number);
        let Some(index) = texts
            .max_by_key(|index| widths[*index] / table.columns[*index].share)
            .filter(|index| widths[*index] > LEAST_TEXT)
        else {
            break;
        };
        widths[index] -= 1;
    }
    widths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::top::{FlowRate, Rule, Sink, Worker};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn drawn(screen: &mut Screen, columns: u16, rows: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("a terminal");
        terminal.draw(|frame| screen.draw(frame)).expect("drawn");
        let buffer = terminal.backend().buffer();
        let line = |row: u16| (0..columns).map(|column| buffer[(column, row)].symbol()).collect::<String>();
        (0..rows).map(|row| line(row).trim_end().to_owned()).collect()
    }

    fn press(screen: &mut Screen, code: KeyCode) -> Next {
        screen.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn fifty_rules() -> Screen {
        let rule = |n: u64| Rule {
            name: format!("rule-{n:02}-with-quite-a-long-name-{}", "x".repeat(30)),
            action: "deliver to everybody-who-wants-it".into(),
            placement: "hardware".into(),
            packets: 1_000_000_000 * ((n * 7) % 50),
            bytes: Some(u64::MAX / 2),
            packets_per_second: 12_345.0,
            bytes_per_second: Some(1e9),
            ..Rule::default()
        };
        let worker = Worker { worker: 3, ..Worker::default() };
        Screen::new(Top { rules: (0..50).map(rule).collect(), workers: vec![worker], ..Top::default() })
    }

    #[test]
    fn all_columns_fit_into_eighty_by_twenty_four() {
        let lines = drawn(&mut fifty_rules(), 80, 24);
        assert!(lines[3].starts_with("rule") && lines[3].ends_with("bits/s"), "{lines:#?}");
        assert!(lines[4].starts_with("rule-0") && lines[4].ends_with("8.00G"), "{lines:#?}");
        assert!(lines[22].starts_with("rule-1"), "{lines:#?}");
        assert!(
            lines[23] == "sort: n=rule a=action i=in p=packets b=bytes r=packets/s t=bits/s",
            "{lines:#?}"
        );
    }

    #[test]
    fn rows_scroll_to_the_last_one() {
        let mut screen = fifty_rules();
        drawn(&mut screen, 80, 24);
        press(&mut screen, KeyCode::Down);
        assert!(drawn(&mut screen, 120, 24)[4].starts_with("rule-01"));
        press(&mut screen, KeyCode::PageDown);
        assert!(drawn(&mut screen, 120, 24)[4].starts_with("rule-20"));
        press(&mut screen, KeyCode::End);
        assert!(drawn(&mut screen, 120, 24)[22].starts_with("rule-49"));
        press(&mut screen, KeyCode::Home);
        assert!(drawn(&mut screen, 120, 24)[4].starts_with("rule-00"));
    }

    #[test]
    fn the_key_of_a_column_sorts_and_reverses() {
        let mut screen = fifty_rules();
        press(&mut screen, KeyCode::Char('p'));
        let lines = drawn(&mut screen, 120, 24);
        assert!(lines[3].contains("packets v"), "{lines:#?}");
        assert!(lines[4].starts_with("rule-07"), "7 * 7 = 49 is the most: {lines:#?}");
        press(&mut screen, KeyCode::Char('p'));
        assert!(drawn(&mut screen, 120, 24)[4].starts_with("rule-00"));
    }

    #[test]
    fn pages_turn_and_q_quits() {
        let mut screen = fifty_rules();
        press(&mut screen, KeyCode::Tab);
        assert!(drawn(&mut screen, 80, 24)[3].starts_with("worker"));
        press(&mut screen, KeyCode::Char('3'));
        assert!(drawn(&mut screen, 80, 24)[3].contains("no sinks"));
        press(&mut screen, KeyCode::Left);
        assert!(drawn(&mut screen, 80, 24)[3].starts_with("worker"));
        assert_eq!(press(&mut screen, KeyCode::Char('q')), Next::Quit);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(screen.key(interrupt), Next::Quit);
    }

    #[test]
    fn a_daemon_that_does_not_answer_is_shown_and_its_last_figures_stay() {
        let mut screen = fifty_rules();
        screen.update(Err("gone".into()));
        let lines = drawn(&mut screen, 80, 24);
        assert!(lines[1].contains("no answer: gone") && lines[4].starts_with("rule-"), "{lines:#?}");
        screen.update(Ok(Top::default()));
        assert!(!drawn(&mut screen, 80, 24)[1].contains("gone"));
    }

    #[test]
    fn tiny_screens_do_no_harm() {
        for (columns, rows) in [(1, 1), (5, 3), (20, 5), (300, 100)] {
            drawn(&mut fifty_rules(), columns, rows);
        }
    }

    #[test]
    fn flows_and_sinks_fit_into_eighty_by_twenty_four() {
        let flow = |number: u64| FlowRate {
            flow: match number {
                4 => "[2001:db8:1:2:3:4:5:6]:443 > [2001:db8:a:b:c:d:e:f]:50000 tcp".into(),
                _ => format!("192.0.2.{number}:5353 > 198.51.100.7:{} udp", 50_000 + number),
            },
            sink: "everything-that-is-counted".into(),
            packets: 123_456_789 * (40 - number),
            bytes: 98_765_432_100 * (40 - number),
            packets_per_second: (!number.is_multiple_of(3)).then_some(12_345.6 * number as f64),
        };
        let sink = |name: &str, kind: &str, sent| Sink {
            name: name.into(),
            kind: kind.into(),
            losing: None,
            offered: 123_456_789_012,
            delivered: 123_456_000_000,
            dropped: 789_012,
            dropped_by_reason: [("disk_full".to_owned(), 789_012)].into(),
            sent,
            packets_per_second: 1_234_567.0,
        };
        let sinks = vec![
            sink("a-sink-with-quite-a-long-name-that-is-cut", "capture", None),
            sink("host", "kernel", Some(98_765_432_109)),
        ];
        let top = Top {
            version: "1.2.3".into(),
            device: "softnic0".into(),
            policy: "policy.toml".into(),
            generation: 7,
            ready: true,
            accounting: "packet accounting matches".into(),
            lost: "none".into(),
            flows: (0..30).map(flow).collect(),
            sinks,
            ..Top::default()
        };
        let mut screen = Screen::new(top);
        press(&mut screen, KeyCode::Char('5'));
        insta::assert_snapshot!("flows", drawn(&mut screen, 80, 24).join("\n"));
        press(&mut screen, KeyCode::Char('3'));
        insta::assert_snapshot!("sinks", drawn(&mut screen, 80, 24).join("\n"));
    }
}
