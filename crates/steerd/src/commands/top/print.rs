//! The output of `steerd top` where it prints once: tables as text, or the same rows as JSON.

use std::fmt::Write as _;
use std::io::IsTerminal;

use super::layout::TableLayout;
use super::tables::{Page, Sort, Table, head};
use crate::telemetry::top::Top;
use crate::terminal::output::plain;

/// The rows that are asked for, and their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Selection {
    /// `None`: all.
    pub(super) page: Option<Page>,
    /// The order of that page; `None`: that of the daemon, or of the page.
    pub(super) sort: Option<Sort>,
    /// Empty: all rows.
    pub(super) filter: String,
    /// The most rows of a page.
    pub(super) rows: Option<usize>,
}

impl Selection {
    fn has(&self, page: Page) -> bool {
        self.page.is_none_or(|wanted| wanted == page)
    }

    /// The table of a page with the rows that are asked for.
    fn table(&self, top: &Top, page: Page) -> Table {
        let mut table = Table::of(top, page);
        table.filter(&self.filter);
        if let Some(sort) = self.sort {
            table.sort(sort);
        }
        table.rows.truncate(self.rows.unwrap_or(usize::MAX));
        table
    }
}

/// The width of stdout if it is a terminal; `None`: lines are not cut, for programs that read them.
pub(super) fn width_of_stdout() -> Option<usize> {
    let stdout = std::io::stdout();
    let size = stdout.is_terminal().then(|| rustix::termios::tcgetwinsize(&stdout).ok()).flatten();
    // A terminal of unknown width reports 0.
    size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// The page that is asked for alone; or all that are not empty, with health, losses and the accounting.
pub(super) fn text(top: &Top, selection: &Selection, width: Option<usize>) -> String {
    let rows = |page: Page| {
        let table = selection.table(top, page);
        let layout = TableLayout::of(&table, None, width.unwrap_or(usize::MAX));
        let lines = table.rows.iter().map(|row| layout.row(&table, row));
        let lines: Vec<String> = [layout.head(&table)].into_iter().chain(lines).collect();
        (!table.rows.is_empty()).then(|| lines.join("\n") + "\n")
    };
    if let Some(page) = selection.page {
        return rows(page).unwrap_or_else(|| format!("{}\n", nothing(top, page, &selection.filter)));
    }
    let mut out = format!("{}\n", head(top));
    for table in Page::ALL.into_iter().filter_map(rows) {
        let _ = write!(out, "\n{table}");
    }
    let _ = write!(out, "\nlost: {}\n{}\n", plain(&top.lost), plain(&top.accounting));
    out
}

/// Why a page has no rows.
pub(super) fn nothing(top: &Top, page: Page, filter: &str) -> String {
    match Table::of(top, page).rows.len() {
        0 => page.nothing().to_owned(),
        rows => format!("none of {rows} {} has the text \"{filter}\"", page.name()),
    }
}

/// The answer with the lists as they are asked for: their rows, in the order of the table. The lists of other
/// pages are empty.
pub(super) fn selected(mut top: Top, selection: &Selection) -> Top {
    if *selection == Selection::default() {
        return top;
    }
    let kept = Page::ALL.map(|page| {
        let rows = if selection.has(page) { selection.table(&top, page).rows } else { Vec::new() };
        rows.iter().map(|row| row.source).collect::<Vec<usize>>()
    });
    for (page, kept) in Page::ALL.into_iter().zip(kept) {
        match page {
            Page::Rules => keep(&mut top.rules, &kept),
            Page::Workers => keep(&mut top.workers, &kept),
            Page::Sinks => keep(&mut top.sinks, &kept),
            Page::Ports => keep(&mut top.ports, &kept),
            Page::Flows => keep(&mut top.flows, &kept),
            Page::Drops => keep(&mut top.drops, &kept),
        }
    }
    top
}

fn keep<T: Clone>(list: &mut Vec<T>, kept: &[usize]) {
    *list = kept.iter().filter_map(|index| list.get(*index)).cloned().collect();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::top::{DropRate, Rule, Worker};

    fn top() -> Top {
        let rule = |name: &str, packets, policed| Rule {
            name: name.into(),
            action: "drop".into(),
            placement: "hardware".into(),
            packets,
            policed,
            ..Rule::default()
        };
        let drops = vec![DropRate {
            place: "sink files".into(),
            reason: "disk_full".into(),
            packets: 7,
            packets_per_second: 3.0,
        }];
        Top {
            version: "1.2.3".into(),
            ready: false,
            problem: Some("not ready: port 1 (eth0) is down".into()),
            lost: "none".into(),
            accounting: "packet accounting matches".into(),
            rules: vec![rule("web", 1_820, 0), rule("dns", 9_000, 0), rule("web-tls", 20, 0)],
            workers: vec![Worker { idle: 1.0, ..Worker::default() }],
            drops,
            ..Top::default()
        }
    }

    #[test]
    fn all_tables_are_printed_with_the_health() {
        let text = text(&top(), &Selection::default(), None);
        assert!(
            text.starts_with("steerd 1.2.3 ") && text.contains("not ready: port 1 (eth0) is down\n"),
            "{text}"
        );
        for part in
            ["\nrule     action  in        packets", "\nworker  core", "\nplace       reason     packets"]
        {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
        assert!(!text.contains("\nsink  kind"), "no sinks: {text}");
        assert!(text.ends_with("\nlost: none\npacket accounting matches\n"), "{text}");
    }

    #[test]
    fn policed_packets_have_a_column_if_there_are_any() {
        let mut top = top();
        let printed = |top: &Top| text(top, &Selection::default(), None);
        assert!(!printed(&top).contains("policed"));
        top.rules[0].policed = 1_268;
        assert!(
            printed(&top).contains("policed\n") && printed(&top).contains(" 1.27k\n"),
            "{}",
            printed(&top)
        );
    }

    #[test]
    fn one_page_is_sorted_filtered_and_limited() {
        let order = |name, is_reversed| Page::Rules.order_by(name, is_reversed).ok();
        let selection = |sort, filter: &str, rows| Selection {
            page: Some(Page::Rules),
            sort,
            filter: filter.into(),
            rows,
        };
        let names = |selection: &Selection| -> Vec<String> {
            let text = text(&top(), selection, None);
            let names = text.lines().skip(1).filter_map(|line| line.split(' ').next());
            let names: Vec<String> = names.map(str::to_owned).collect();
            let json = selected(top(), selection);
            assert_eq!(json.rules.iter().map(|rule| rule.name.clone()).collect::<Vec<_>>(), names);
            assert!(json.workers.is_empty() && json.drops.is_empty());
            assert!(text.starts_with("rule"), "the table alone: {text}");
            names
        };
        assert_eq!(names(&selection(order("packets", false), "", None)), ["dns", "web", "web-tls"]);
        assert_eq!(names(&selection(order("packets", true), "", Some(1))), ["web-tls"]);
        assert_eq!(names(&selection(order("packets", false), "WEB", Some(9))), ["web", "web-tls"]);
        let none = selection(None, "mail", None);
        assert_eq!(text(&top(), &none, None), "none of 3 rules has the text \"mail\"\n");
        assert_eq!(selected(top(), &none).rules, []);
        assert_eq!(selected(top(), &Selection::default()), top());
    }

    #[test]
    fn a_terminal_gets_lines_that_fit() {
        let mut top = top();
        top.rules[0].name = "a-very-long-name-of-a-rule-".repeat(4);
        let page = Selection { page: Some(Page::Rules), ..Selection::default() };
        assert!(text(&top, &page, Some(80)).lines().all(|line| line.chars().count() <= 80));
        assert!(text(&top, &page, None).contains(&top.rules[0].name), "programs read names as a whole");
    }
}
