//! The last minute of a table's rates: means over some seconds, and bars.
//!
//! Memory is bounded: at most [`ROWS_MAX`] rows of a page, [`SAMPLES_MAX`] samples of a row, and nothing of
//! rows that are gone.

use std::collections::{HashMap, VecDeque};

use super::tables::{Cell, ColumnKind, PAGES, Page, Table, TableRow};
use crate::telemetry::top::Top;

/// How far back it reaches.
pub(super) const SPAN_SECONDS: f64 = 60.0;
/// An answer with a longer interval is the mean of a time in which nobody watched.
const LONGEST_INTERVAL: f64 = 10.0;
const SAMPLES_MAX: usize = 64;
const ROWS_MAX: usize = 10_000;
/// The number of bars of a graph.
pub(super) const BARS: usize = 20;
/// A bar for none, and those up to the most of the row.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

#[derive(Debug, Default)]
pub(super) struct History {
    /// The samples of each row, by page and by the key of the row.
    pages: [HashMap<String, RowHistory>; PAGES],
    /// The time of the samples in seconds.
    covered: VecDeque<f32>,
}

/// The samples of a row, the oldest first.
#[derive(Debug, Default)]
struct RowHistory {
    /// Each sample is its interval in seconds, then the value of each cell that is averaged
    /// ([`Cell::is_averaged`]), NaN if unknown.
    samples: VecDeque<f32>,
    /// The length of a sample, one for all rows of a page.
    length: usize,
}

/// A value of a row, and how long it lasted.
#[derive(Clone, Copy, Debug)]
struct Sample {
    seconds: f32,
    value: f32,
}

impl History {
    /// Adds the rates of an answer.
    pub(super) fn add(&mut self, top: &Top) {
        if !(f64::MIN_POSITIVE..=LONGEST_INTERVAL).contains(&top.interval_seconds) {
            return;
        }
        let seconds = top.interval_seconds as f32;
        self.covered.push_back(seconds);
        while self.covered.len() > SAMPLES_MAX {
            self.covered.pop_front();
        }
        for page in Page::ALL {
            let known = &mut self.pages[page as usize];
            let mut kept = HashMap::with_capacity(known.len());
            for row in Table::of(top, page).rows.into_iter().take(ROWS_MAX) {
                let mut history = known.remove(&row.key).unwrap_or_default();
                history.push(seconds, &row);
                kept.insert(row.key, history);
            }
            *known = kept;
        }
    }

    /// The seconds that means over this window are of: fewer, until it is that old.
    pub(super) fn covered(&self, window_seconds: f64) -> f64 {
        self.covered.iter().map(|seconds| f64::from(*seconds)).sum::<f64>().min(window_seconds)
    }

    /// Replaces the rates of a table by their means over a time; `None`: leaves them. Fills in the bars.
    pub(super) fn write(&self, table: &mut Table, window_seconds: Option<f64>) {
        let rows = &self.pages[table.page as usize];
        let graph = table.columns.iter().position(|column| column.kind == ColumnKind::Graph);
        for row in &mut table.rows {
            let Some(history) = rows.get(&row.key) else { continue };
            if let Some(graph) = graph.and_then(|graph| row.cells.get_mut(graph)) {
                graph.text = history.bars();
            }
            if let Some(window) = window_seconds {
                let averaged = row.cells.iter_mut().filter(|cell| cell.is_averaged());
                averaged.enumerate().for_each(|(place, cell)| cell.set_mean(history.mean(place, window)));
            }
        }
        if let Some(graph) = graph.filter(|_| self.covered.len() > 1) {
            table.is_used[graph] = true;
        }
        table.write_shares();
    }
}

impl RowHistory {
    fn push(&mut self, seconds: f32, row: &TableRow) {
        let value = |cell: &Cell| cell.known_value().map_or(f32::NAN, |value| value as f32);
        let before = self.samples.len();
        self.samples.push_back(seconds);
        self.samples.extend(row.cells.iter().filter(|cell| cell.is_averaged()).map(value));
        self.length = self.samples.len() - before;
        let outdated = self.samples.len().saturating_sub(SAMPLES_MAX * self.length);
        self.samples.drain(..outdated);
    }

    /// The values of the cell at this place among those that are averaged, the newest first.
    fn values(&self, place: usize) -> impl Iterator<Item = Sample> + '_ {
        let count = self.samples.len().checked_div(self.length).unwrap_or(0);
        (0..count).rev().map(move |sample| {
            let first = sample * self.length;
            Sample { seconds: self.samples[first], value: self.samples[first + 1 + place] }
        })
    }

    /// The mean of the last samples up to a time; `None`: no value is known.
    fn mean(&self, place: usize, window_seconds: f64) -> Option<f64> {
        let (mut passed, mut known, mut sum) = (0.0, 0.0, 0.0);
        for Sample { seconds, value } in self.values(place) {
            // A sample that is half within the window is in it.
            if passed > 0.0 && passed + f64::from(seconds) / 2.0 > window_seconds {
                break;
            }
            passed += f64::from(seconds);
            if !value.is_nan() {
                known += f64::from(seconds);
                sum += f64::from(value) * f64::from(seconds);
            }
        }
        (known > 0.0).then(|| sum / known)
    }

    /// The first value that is averaged, from [`SPAN_SECONDS`] ago until now, in parts of the row's most.
    fn bars(&self) -> String {
        let bar_seconds = SPAN_SECONDS / BARS as f64;
        // The time and the sum of the values of each bar, the newest first.
        let mut bars = [(0.0, 0.0); BARS];
        let mut passed = 0.0;
        for Sample { seconds, value } in self.values(0) {
            let (begin, end) = (passed, passed + f64::from(seconds));
            passed = end;
            for (index, (known, sum)) in bars.iter_mut().enumerate().filter(|_| !value.is_nan()) {
                let bar = index as f64 * bar_seconds;
                let overlap = (end.min(bar + bar_seconds) - begin.max(bar)).max(0.0);
                *known += overlap;
                *sum += overlap * f64::from(value);
            }
        }
        let means = bars.map(|(known, sum)| (known > 0.0).then(|| sum / known));
        let most = means.iter().flatten().copied().fold(0.0, f64::max);
        let level = |mean: f64| match mean > 0.0 {
            // At least the second level, and the last one for the most.
            true => 1 + (mean / most * (LEVELS.len() - 2) as f64).round() as usize,
            false => 0,
        };
        let bar = |mean: Option<f64>| mean.map_or(' ', |mean| LEVELS[level(mean).min(LEVELS.len() - 1)]);
        means.into_iter().rev().map(bar).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::top::{Rule, Worker};

    fn top(interval_seconds: f64, rates: &[(&str, f64)]) -> Top {
        let rule = |(name, packets_per_second): &(&str, f64)| Rule {
            name: (*name).to_owned(),
            packets_per_second: *packets_per_second,
            ..Rule::default()
        };
        Top { interval_seconds, rules: rates.iter().map(rule).collect(), ..Top::default() }
    }

    fn written(history: &History, top: &Top, window: Option<f64>) -> Table {
        let mut table = Table::of(top, Page::Rules);
        history.write(&mut table, window);
        table
    }

    #[test]
    fn rates_are_means_over_the_window() {
        let mut history = History::default();
        for second in 0..70 {
            history.add(&top(1.0, &[("a", f64::from(second))]));
        }
        let now = top(1.0, &[("a", 69.0)]);
        let rate = |window: Option<f64>| written(&history, &now, window).rows[0].cells[5].text.clone();
        assert_eq!((rate(None), rate(Some(1.0)), rate(Some(10.0))), ("69".into(), "69".into(), "64".into()));
        assert_eq!(rate(Some(60.0)), "40", "from 10 to 69 is 39.5 in the mean");
        assert_eq!((history.covered(10.0), history.covered(60.0)), (10.0, 60.0));
    }

    #[test]
    fn samples_count_by_their_time() {
        let mut history = History::default();
        history.add(&top(3600.0, &[("a", 1e6)]));
        assert_eq!(history.covered(60.0), 0.0, "nobody watched");
        history.add(&top(3.0, &[("a", 100.0)]));
        history.add(&top(1.0, &[("a", 500.0)]));
        let table = written(&history, &top(1.0, &[("a", 500.0)]), Some(60.0));
        assert_eq!((table.rows[0].cells[5].text.as_str(), history.covered(60.0)), ("200", 4.0));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut history = History::default();
        for _ in 0..3 * SAMPLES_MAX {
            history.add(&top(1.0, &[("a", 1.0), ("b", 2.0)]));
        }
        history.add(&top(1.0, &[("b", 2.0), ("c", 3.0)]));
        let rules = &history.pages[Page::Rules as usize];
        let mut keys: Vec<&str> = rules.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["b", "c"], "rules that are gone");
        assert_eq!((rules["b"].samples.len(), rules["c"].samples.len()), (3 * SAMPLES_MAX, 3));
        let names: Vec<String> = (0..ROWS_MAX + 5).map(|number| number.to_string()).collect();
        let many: Vec<(&str, f64)> = names.iter().map(|name| (name.as_str(), 1.0)).collect();
        history.add(&top(1.0, &many));
        assert_eq!(history.pages[Page::Rules as usize].len(), ROWS_MAX);
    }

    #[test]
    fn bars_show_the_last_minute() {
        let mut history = History::default();
        for second in 0..30 {
            let rate = match second {
                0..15 => 0.0,
                15..27 => 70.0,
                _ => 10.0,
            };
            history.add(&top(1.0, &[("a", rate)]));
        }
        let table = written(&history, &top(1.0, &[("a", 10.0)]), None);
        let graph = &table.rows[0].cells[8].text;
        assert_eq!(graph, "          ▁▁▁▁▁████▃", "nothing is known of the time before");
        assert_eq!(graph.chars().count(), BARS);
        assert!(table.is_used[8]);
    }

    #[test]
    fn parts_of_time_are_averaged_together() {
        let worker = |idle, busy, waiting| Worker { idle, busy, waiting, ..Worker::default() };
        let top = |worker| Top { interval_seconds: 1.0, workers: vec![worker], ..Top::default() };
        let mut history = History::default();
        history.add(&top(worker(1.0, 0.0, None)));
        history.add(&top(worker(0.0, 0.5, Some(0.5))));
        let mut table = Table::of(&top(worker(0.0, 0.5, Some(0.5))), Page::Workers);
        history.write(&mut table, Some(10.0));
        let texts: Vec<&str> = table.rows[0].cells[7..10].iter().map(|cell| cell.text.as_str()).collect();
        // Of the first second it is not known, so the parts are those of 1.25 s.
        assert_eq!(texts, ["20%", "40%", "40%"]);
    }
}
