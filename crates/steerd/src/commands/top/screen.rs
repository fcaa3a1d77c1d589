//! The screen of `steerd top`: one page at a time, and what keys do.

use std::ops::Range;

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::history::{History, SPAN_SECONDS};
use super::layout::{TableLayout, columns_of, shortened, words_that_fit};
use super::print::{Selection, nothing};
use super::tables::{self, PAGES, Page, Sort, Table};
use crate::telemetry::top::Top;
use crate::terminal::numbers::counted;
use crate::terminal::output::plain;
use crate::terminal::style::broken_at;

/// The most characters of a filter.
const FILTER_MAX: usize = 60;
/// The times that rates can be means of; `None`: between two answers of the daemon.
const WINDOWS: [Option<f64>; 3] = [None, Some(10.0), Some(SPAN_SECONDS)];
/// At most a fifth of the rows, and one in any case, have the health and the losses.
const STATE_PART: usize = 5;

const HELP: &[&str] = &[
    "Tab, Right, Left, 1 to 6   the next page, the one before, a page by its number",
    "arrow keys, Page Up,       scroll; Space is Page Down",
    "Page Down, Home, End",
    "letters of the last line   sort by a column, a second time in reverse",
    "s                          sort by the next column",
    "R                          reverse the order",
    "/                          only rows with a text: Enter keeps it, Esc removes it",
    "h                          rates over about 1 s, 10 s or 60 s",
    "q, Ctrl-C                  quit; Esc, too, if there is no filter",
    "",
    "busy, idle and no core are parts of a worker's time. \"no core\": it was ready to",
    "run, and another program had its core. A dash: not known.",
    "\"last minute\" is the first rate of the row, the newest on the right, in parts of",
    "the most of this row. It is shown where there is room for it.",
    "Columns without room are left out; the line above the last names them.",
    "",
    "Any key goes back.",
];

/// The result of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Draw,
    Quit,
}

/// The meaning of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InputMode {
    Table,
    /// They are the text of the filter.
    Filter,
    Help,
}

pub(super) struct Screen {
    top: Top,
    /// Why the last answer is missing.
    error: Option<String>,
    history: History,
    page: Page,
    /// The order of each page; `None`: the daemon's order.
    sorts: [Option<Sort>; PAGES],
    filter: String,
    mode: InputMode,
    /// An index of [`WINDOWS`].
    window: usize,
    /// The first row that is shown.
    offset: usize,
    /// How many rows were shown last.
    height: usize,
}

impl Screen {
    pub(super) fn new(top: Top, selection: &Selection) -> Self {
        let page = selection.page.unwrap_or_default();
        let mut sorts = Page::ALL.map(Page::first_sort);
        if selection.sort.is_some() {
            sorts[page as usize] = selection.sort;
        }
        let mut history = History::default();
        history.add(&top);
        Self {
            top,
            error: None,
            history,
            page,
            sorts,
            filter: selection.filter.clone(),
            mode: InputMode::Table,
            window: 0,
            offset: 0,
            height: 0,
        }
    }

    /// The last answer stays if there is no new one.
    pub(super) fn update(&mut self, answer: Result<Top, String>) {
        match answer {
            Ok(top) => {
                self.history.add(&top);
                (self.top, self.error) = (top, None);
            }
            Err(error) => self.error = Some(error),
        }
    }

    pub(super) fn key(&mut self, key: KeyEvent) -> Next {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Next::Quit;
        }
        match self.mode {
            InputMode::Table => return self.key_of_table(key.code),
            InputMode::Filter => self.key_of_filter(key),
            InputMode::Help => self.mode = InputMode::Table,
        }
        Next::Draw
    }

    fn key_of_table(&mut self, code: KeyCode) -> Next {
        let page_rows = self.height.max(1);
        match code {
            KeyCode::Esc if !self.filter.is_empty() => self.set_filter(String::new()),
            KeyCode::Char('q') | KeyCode::Esc => return Next::Quit,
            KeyCode::Char('?') => self.mode = InputMode::Help,
            KeyCode::Char('/') => self.mode = InputMode::Filter,
            KeyCode::Char('h') => self.window = (self.window + 1) % WINDOWS.len(),
            KeyCode::Char('s') => self.sort_by_next(),
            KeyCode::Char('R') => self.reverse(),
            KeyCode::Tab | KeyCode::Right => self.turn(1),
            KeyCode::BackTab | KeyCode::Left => self.turn(PAGES - 1),
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

    fn key_of_filter(&mut self, key: KeyEvent) {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Enter => self.mode = InputMode::Table,
            KeyCode::Esc => {
                self.mode = InputMode::Table;
                self.set_filter(String::new());
            }
            KeyCode::Backspace => {
                let mut shorter = self.filter.clone();
                shorter.pop();
                self.set_filter(shorter);
            }
            KeyCode::Char('u') if is_control => self.set_filter(String::new()),
            KeyCode::Char(letter) if !is_control && self.filter.chars().count() < FILTER_MAX => {
                self.set_filter(format!("{}{letter}", self.filter));
            }
            _ => {}
        }
    }

    fn set_filter(&mut self, filter: String) {
        (self.filter, self.offset) = (filter, 0);
    }

    fn turn(&mut self, by: usize) {
        self.show((self.page as usize + by) % PAGES);
    }

    fn show(&mut self, page: usize) {
        if let Some(page) = Page::ALL.get(page) {
            (self.page, self.offset) = (*page, 0);
        }
    }

    fn set_sort(&mut self, sort: Sort) {
        (self.sorts[self.page as usize], self.offset) = (Some(sort), 0);
    }

    /// Sorts by the column of this key; numbers descend at first, and the same key again reverses.
    fn sort_by(&mut self, key: char) {
        let columns = self.page.columns();
        let Some(column) = columns.iter().position(|column| column.key == Some(key)) else { return };
        match self.sorts[self.page as usize] {
            Some(sort) if sort.column == column => self.reverse(),
            _ => self.set_sort(Sort { column, is_descending: columns[column].descends() }),
        }
    }

    /// Sorts by the next column that is shown, the first one after the last.
    fn sort_by_next(&mut self) {
        let table = Table::of(&self.top, self.page);
        let columns = table.columns;
        let current = self.sorts[self.page as usize].map_or(columns.len() - 1, |sort| sort.column);
        let next = (1..=columns.len()).map(|step| (current + step) % columns.len());
        let mut next = next.filter(|column| columns[*column].key.is_some() && table.is_used[*column]);
        if let Some(column) = next.next() {
            self.set_sort(Sort { column, is_descending: columns[column].descends() });
        }
    }

    fn reverse(&mut self) {
        let first = Sort { column: 0, is_descending: self.page.columns()[0].descends() };
        let sort = self.sorts[self.page as usize].unwrap_or(first);
        self.set_sort(Sort { is_descending: !sort.is_descending, ..sort });
    }

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let width = usize::from(frame.area().width);
        let state = self.state(width, (usize::from(frame.area().height) / STATE_PART).max(1));
        let rows = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(u16::try_from(state.len()).unwrap_or(1)),
            Constraint::Length(1),
            Constraint::Min(1),
            Constraint::Length(1),
            Constraint::Length(1),
        ]);
        let [head, health, pages, body, status, keys] = rows.areas(frame.area());
        frame.render_widget(Paragraph::new(self.head(width)).style(Modifier::BOLD), head);
        frame.render_widget(Paragraph::new(state), health);
        frame.render_widget(self.pages(), pages);
        if self.mode == InputMode::Help {
            let lines: Vec<Line<'_>> = HELP.iter().copied().map(Line::from).collect();
            frame.render_widget(Paragraph::new(lines), body);
            return;
        }
        self.body(frame, body, status, keys);
    }

    /// Version, device, policy, generation and whether it is ready; the policy's name is shortened first.
    fn head(&self, width: usize) -> String {
        let ready = match (self.top.ready, &self.top.degraded) {
            (true, None) => "ready",
            (true, Some(_)) => "degraded",
            (false, _) => "not ready",
        };
        let with = |policy: &str| format!("{}  {ready}", tables::heading(&self.top, policy));
        let policy = plain(&self.top.policy);
        let room = width.saturating_sub(columns_of(&with("")));
        shortened(&with(&shortened(&policy, room)), width).into_owned()
    }

    /// The missing answer, why it is not ready or degraded, the accounting and the losses, in at most so many
    /// lines.
    fn state(&self, width: usize, most: usize) -> Vec<Line<'static>> {
        let (plain_style, marked) = (Style::new(), Style::from(Modifier::REVERSED));
        let mut parts: Vec<(String, Style)> = Vec::new();
        if let Some(error) = &self.error {
            parts.push((format!("no answer: {}", plain(error)), marked));
        }
        let problem = tables::problem(&self.top);
        // The port itself names the cause and the remedy.
        let of_ports = if problem.is_some() { tables::port_problems(&self.top) } else { Vec::new() };
        let degraded = self.top.degraded.as_deref().map(|degraded| plain(degraded).into_owned());
        parts.extend(problem.into_iter().chain(degraded).chain(of_ports).map(|text| (text, marked)));
        parts.push((format!("{}; lost: {}", self.top.accounting, plain(&self.top.lost)), plain_style));
        let lines = parts
            .into_iter()
            .flat_map(|(text, style)| broken_at(width, &text).into_iter().map(move |line| (line, style)));
        let mut lines: Vec<(String, Style)> = lines.collect();
        if lines.len() > most {
            lines.truncate(most);
            if let Some((last, _)) = lines.last_mut() {
                last.push_str(" …");
            }
        }
        let shown =
            |(line, style): (String, Style)| Line::styled(shortened(&line, width).into_owned(), style);
        lines.into_iter().map(shown).collect()
    }

    fn pages(&self) -> Paragraph<'static> {
        let names = Page::ALL.iter().enumerate().flat_map(|(index, page)| {
            let style = if *page == self.page { Modifier::REVERSED } else { Modifier::empty() };
            [Span::styled(format!(" {} {} ", index + 1, page.name()), Style::from(style)), Span::raw(" ")]
        });
        Paragraph::new(Line::from_iter(names.chain([Span::raw(" ?=help q=quit")])))
    }

    /// The table of the page, and the two lines below it.
    fn body(&mut self, frame: &mut Frame<'_>, area: Rect, status: Rect, keys: Rect) {
        let mut table = Table::of(&self.top, self.page);
        self.history.write(&mut table, WINDOWS[self.window]);
        table.filter(&self.filter);
        let sort = self.sorts[self.page as usize];
        if let Some(sort) = sort {
            table.sort(sort);
        }
        let width = usize::from(area.width);
        let layout = TableLayout::of(&table, sort, width);
        self.height = usize::from(area.height).saturating_sub(1);
        self.offset = self.offset.min(table.rows.len().saturating_sub(self.height));
        let end = table.rows.len().min(self.offset + self.height);
        if table.rows.is_empty() {
            frame.render_widget(Paragraph::new(nothing(&self.top, self.page, &self.filter)), area);
        } else {
            let head = Line::styled(layout.head(&table), Modifier::BOLD);
            let rows = table.rows[self.offset..end].iter().map(|row| Line::from(layout.row(&table, row)));
            frame.render_widget(Paragraph::new([head].into_iter().chain(rows).collect::<Vec<_>>()), area);
        }
        let below = self.status(&table, &layout, self.offset..end, usize::from(status.width));
        frame.render_widget(Paragraph::new(below).style(Modifier::DIM), status);
        let columns = layout.indices().map(|index| table.columns[index]);
        let sorts = columns.filter_map(|column| Some(format!("{}={}", column.key?, column.head)));
        let words: Vec<String> = ["sort:".to_owned()].into_iter().chain(sorts).collect();
        let line = words_that_fit(&words, usize::from(keys.width));
        frame.render_widget(Paragraph::new(line).style(Modifier::DIM), keys);
    }

    /// The line with the rows that are shown, the time of the rates and the columns without room; or with the
    /// filter while it is typed.
    fn status(&self, table: &Table, layout: &TableLayout, shown: Range<usize>, width: usize) -> String {
        let rows = table.rows.len();
        let mut parts = Vec::new();
        if self.mode == InputMode::Filter {
            parts.push(format!(
                "/{}_  {}; Enter keeps it, Esc: all rows",
                self.filter,
                counted(rows as u64, "row", "rows")
            ));
        } else {
            let first = if rows == 0 { 0 } else { shown.start + 1 };
            parts.push(format!("rows {first}-{} of {rows}", shown.end));
            if !self.filter.is_empty() {
                parts.push(format!("with \"{}\" (Esc: all)", self.filter));
            }
            let seconds = match WINDOWS[self.window] {
                None => format!("{:.1}", self.top.interval_seconds),
                Some(window) => format!("{:.0}", self.history.covered(window)),
            };
            parts.push(format!("rates over {seconds} s"));
            let left_out = layout.left_out(table);
            if !left_out.is_empty() {
                parts.push(format!("no room: {}", left_out.join(", ")));
            }
        }
        shortened(&parts.join("  "), width).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::top::{DropRate, FlowRate, Port, Rule, Sink, Worker};
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
        let (rules, workers) = ((0..50).map(rule).collect(), vec![worker]);
        Screen::new(Top { ready: true, rules, workers, ..Top::default() }, &Selection::default())
    }

    #[test]
    fn all_columns_fit_into_eighty_by_twenty_four() {
        let lines = drawn(&mut fifty_rules(), 80, 24);
        assert!(lines[3].starts_with("rule") && lines[3].ends_with("bits/s"), "{lines:#?}");
        assert!(lines[4].starts_with("rule-00-wi…") && lines[4].ends_with("8.00G"), "{lines:#?}");
        assert!(lines[21].starts_with("rule-17"), "{lines:#?}");
        assert_eq!(lines[22], "rows 1-18 of 50  rates over 0.0 s");
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
        assert!(drawn(&mut screen, 120, 24)[4].starts_with("rule-19"));
        press(&mut screen, KeyCode::End);
        assert!(drawn(&mut screen, 120, 24)[21].starts_with("rule-49"));
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
        press(&mut screen, KeyCode::Char('6'));
        assert!(drawn(&mut screen, 80, 24)[3].contains("no packet was lost"));
        press(&mut screen, KeyCode::Char('3'));
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
        assert!(lines[1].contains("no answer: gone") && lines[5].starts_with("rule-"), "{lines:#?}");
        screen.update(Ok(Top::default()));
        assert!(!drawn(&mut screen, 80, 24)[1].contains("gone"));
    }

    #[test]
    fn tiny_screens_do_no_harm() {
        for (columns, rows) in [(1, 1), (5, 3), (20, 5), (300, 100)] {
            drawn(&mut fifty_rules(), columns, rows);
        }
    }

    /// The names in the first column of the rows that are shown.
    fn names(screen: &mut Screen) -> Vec<String> {
        let lines = drawn(screen, 120, 24);
        let rows = lines[4..22].iter().filter_map(|line| line.split(' ').next());
        rows.filter(|name| !name.is_empty()).map(|name| name.chars().take(7).collect()).collect()
    }

    fn type_text(screen: &mut Screen, text: &str) {
        text.chars().for_each(|letter| assert_eq!(press(screen, KeyCode::Char(letter)), Next::Draw));
    }

    #[test]
    fn a_filter_is_typed_kept_and_removed() {
        let mut screen = fifty_rules();
        press(&mut screen, KeyCode::End);
        // Letters are text now, also those that sort, quit or scroll.
        type_text(&mut screen, "/Rule-1q");
        assert_eq!(drawn(&mut screen, 80, 24)[22], "/Rule-1q_  0 rows; Enter keeps it, Esc: all rows");
        assert_eq!(drawn(&mut screen, 80, 24)[3], "none of 50 rules has the text \"Rule-1q\"");
        press(&mut screen, KeyCode::Backspace);
        press(&mut screen, KeyCode::Enter);
        assert_eq!(names(&mut screen).len(), 10);
        assert!(drawn(&mut screen, 80, 24)[22].starts_with("rows 1-10 of 10  with \"Rule-1\" (Esc: all)"));
        press(&mut screen, KeyCode::Char('p'));
        assert_eq!(names(&mut screen)[..2], ["rule-14", "rule-13"], "48 and 41 of 7 * n % 50");
        assert_eq!(press(&mut screen, KeyCode::Esc), Next::Draw, "it removes the filter first");
        assert_eq!(names(&mut screen)[0], "rule-07");
        type_text(&mut screen, &format!("/{}", "x".repeat(2 * FILTER_MAX)));
        assert_eq!(screen.filter.len(), FILTER_MAX);
        press(&mut screen, KeyCode::Esc);
        assert_eq!((names(&mut screen).len(), press(&mut screen, KeyCode::Esc)), (18, Next::Quit));
    }

    #[test]
    fn the_order_goes_through_the_columns() {
        let mut screen = fifty_rules();
        let mut order = |key| {
            press(&mut screen, KeyCode::Char(key));
            let lines = drawn(&mut screen, 120, 24);
            let head =
                lines[3].split("  ").find(|head| head.ends_with([' ', 'v', '^']) && head.contains(' '));
            (head.map(|head| head.trim().to_owned()), lines[4][..7].to_owned())
        };
        assert_eq!(order('s'), (Some("rule ^".into()), "rule-00".into()));
        assert_eq!(order('R'), (Some("rule v".into()), "rule-49".into()));
        let heads: Vec<_> = (0..7).filter_map(|_| order('s').0).collect();
        let expected = ["action ^", "in ^", "packets v", "bytes v", "packets/s v", "bits/s v", "rule ^"];
        assert_eq!(heads, expected, "the column of policed packets is not shown");
    }

    #[test]
    fn rates_are_shown_over_several_times() {
        let top = |rate| Top {
            ready: true,
            interval_seconds: 1.0,
            rules: vec![Rule { name: "web".into(), packets_per_second: rate, ..Rule::default() }],
            ..Top::default()
        };
        let mut screen = Screen::new(top(0.0), &Selection::default());
        (1..70).for_each(|second| screen.update(Ok(top(f64::from(second)))));
        let mut shown = || {
            let lines = drawn(&mut screen, 120, 24);
            press(&mut screen, KeyCode::Char('h'));
            let words: Vec<&str> = lines[4].split_whitespace().collect();
            (words[3].to_owned(), lines[22].clone())
        };
        assert_eq!(shown(), ("69".into(), "rows 1-1 of 1  rates over 1.0 s".into()));
        assert_eq!(shown(), ("64".into(), "rows 1-1 of 1  rates over 10 s".into()));
        assert_eq!(shown(), ("40".into(), "rows 1-1 of 1  rates over 60 s".into()));
        assert_eq!(shown().0, "69", "the first one again");
        assert!(drawn(&mut screen, 120, 24)[3].ends_with("last minute"));
        assert!(drawn(&mut screen, 120, 24)[4].ends_with('█'), "{:?}", drawn(&mut screen, 120, 24));
    }

    #[test]
    fn the_help_fits_and_goes_away() {
        let mut screen = fifty_rules();
        press(&mut screen, KeyCode::Char('?'));
        let lines = drawn(&mut screen, 80, 24);
        assert!(HELP.iter().all(|line| lines.contains(&(*line).to_owned())), "{lines:#?}");
        assert_eq!(press(&mut screen, KeyCode::Char('q')), Next::Draw, "any key goes back");
        assert!(drawn(&mut screen, 80, 24)[4].starts_with("rule-00"));
    }

    #[test]
    fn why_it_is_not_ready_is_shown() {
        let mut screen = fifty_rules();
        let port = Port {
            port: 1,
            up: Some(false),
            problem: Some("port 1 of mlx5_0 is down: bring the link up".into()),
            ..Port::default()
        };
        let policy = "/etc/steerd/policies/of/this/site/with/a/long/path/policy.toml";
        screen.update(Ok(Top {
            version: "1.2.3".into(),
            device: "mlx5_0".into(),
            policy: policy.into(),
            problem: Some("not ready: port 1 (enp1s0f0np0) is down, worker 0 is stalled".into()),
            degraded: Some("degraded: sink `files` loses all its packets (disk_full)".into()),
            ports: vec![port],
            ..Top::default()
        }));
        let lines = drawn(&mut screen, 80, 24);
        assert!(lines[0].ends_with("generation 0  not ready") && lines[0].contains('…'), "{lines:#?}");
        let expected = [
            "not ready: port 1 (enp1s0f0np0) is down, worker 0 is stalled",
            "degraded: sink `files` loses all its packets (disk_full)",
            "port 1 of mlx5_0 is down: bring the link up",
        ];
        assert_eq!(lines[1..4], expected);
        let narrow = drawn(&mut screen, 40, 10);
        assert!(narrow[2].ends_with('…'), "more than two lines: {narrow:#?}");
    }

    #[test]
    fn the_first_page_is_the_one_asked_for() {
        let sort = Page::Drops.order_by("packets", true).ok();
        let selection =
            Selection { page: Some(Page::Drops), sort, filter: "disk".into(), ..Selection::default() };
        let dropped = |reason: &str, packets| DropRate {
            place: "sink files".into(),
            reason: reason.into(),
            packets,
            ..DropRate::default()
        };
        let drops = vec![dropped("disk_full", 9), dropped("ring_full", 3), dropped("disk_error", 4)];
        let lines = drawn(&mut Screen::new(Top { ready: true, drops, ..Top::default() }, &selection), 80, 24);
        assert!(lines[3].contains("packets ^"), "{lines:#?}");
        assert!(lines[4].contains("disk_error") && lines[5].contains("disk_full"), "{lines:#?}");
    }

    #[test]
    fn a_thousand_rules_page_well() {
        let rule = |number| Rule { name: format!("rule-{number:04}"), ..Rule::default() };
        let rules: Vec<Rule> = (0..1000).map(rule).collect();
        let mut screen = Screen::new(Top { ready: true, rules, ..Top::default() }, &Selection::default());
        let mut seen = Vec::new();
        loop {
            let lines = drawn(&mut screen, 80, 24);
            assert!(lines.iter().all(|line| columns_of(line) <= 80));
            seen.extend(lines[4..22].iter().map(|line| line[..9].to_owned()));
            if lines[22].starts_with("rows 983-1000 of 1000") {
                break;
            }
            assert!(seen.len() <= 1100, "it never reaches the last row: {lines:#?}");
            press(&mut screen, KeyCode::PageDown);
        }
        seen.dedup();
        let unique: std::collections::BTreeSet<&String> = seen.iter().collect();
        assert_eq!(unique.len(), 1000, "each rule is on a page");
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
            dropped_by_reason: [("disk_full".to_owned(), 789_000), ("ring_full".to_owned(), 12)].into(),
            sent,
            packets_per_second: 1_234_567.0,
        };
        let sinks = vec![
            sink("a-sink-with-quite-a-long-name-that-is-cut", "capture", None),
            sink("host", "kernel", Some(98_765_432_109)),
        ];
        let worker = |worker, waiting: f64| Worker {
            worker,
            core: Some(17),
            stalled: worker == 1,
            packets: 123_456_789_012,
            bytes: 98_765_432_100_000,
            packets_per_second: 1_234_567.0,
            bytes_per_second: 1e9,
            lost: 12,
            idle: 0.25,
            busy: 0.75 - waiting,
            waiting: Some(waiting),
            ..Worker::default()
        };
        let workers = vec![worker(0, 0.0), worker(1, 0.5)];
        let dropped = |place: &str, reason: &str, packets_per_second| DropRate {
            place: place.into(),
            reason: reason.into(),
            packets: 789_000,
            packets_per_second,
        };
        let drops = vec![
            dropped("sink a-sink-with-quite-a-long-name-that-is-cut", "disk_full", 1_234.0),
            dropped("port 1", "out_of_buffer", 0.0),
            dropped("rule web", "rate_limited", 98_765.0),
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
            workers,
            drops,
            ..Top::default()
        };
        let mut screen = Screen::new(top, &Selection::default());
        press(&mut screen, KeyCode::Char('5'));
        insta::assert_snapshot!("flows", drawn(&mut screen, 80, 24).join("\n"));
        press(&mut screen, KeyCode::Char('3'));
        insta::assert_snapshot!("sinks", drawn(&mut screen, 80, 24).join("\n"));
        press(&mut screen, KeyCode::Char('2'));
        insta::assert_snapshot!("workers", drawn(&mut screen, 80, 24).join("\n"));
        press(&mut screen, KeyCode::Char('6'));
        insta::assert_snapshot!("drops", drawn(&mut screen, 80, 24).join("\n"));
    }
}
