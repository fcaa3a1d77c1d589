//! Figures measured in interleaved rounds: by case, as a table with targets, and as tab-separated values.

use std::fmt::Write as _;
use std::time::Duration;

use crate::median;

/// One measured operation.
pub struct Case<'a> {
    /// Its name, also that of its line in the plot.
    pub what: &'static str,
    /// The rule set.
    pub set: String,
    /// The number of rules.
    pub rules: usize,
    /// The limit in seconds.
    pub target_s: Option<f64>,
    /// Measures once; `Err`: why that is not possible.
    pub run: Box<dyn FnMut() -> Result<Duration, String> + 'a>,
}

/// A case after its rounds.
#[derive(Clone, Debug)]
pub struct Figure {
    /// As in [`Case`].
    pub what: &'static str,
    /// As in [`Case`].
    pub set: String,
    /// As in [`Case`].
    pub rules: usize,
    /// As in [`Case`].
    pub target_s: Option<f64>,
    /// The median in seconds, or why it was not measured.
    pub seconds: Result<f64, String>,
}

/// Runs all cases in turn, `rounds` times; a case that has failed is not repeated.
#[must_use]
pub fn interleaved(mut cases: Vec<Case<'_>>, rounds: usize) -> Vec<Figure> {
    let mut taken: Vec<Result<Vec<f64>, String>> = cases.iter().map(|_| Ok(Vec::new())).collect();
    for _ in 0..rounds {
        for (case, taken) in cases.iter_mut().zip(&mut taken) {
            let Ok(figures) = taken else { continue };
            match (case.run)() {
                Ok(time) => figures.push(time.as_secs_f64()),
                Err(why) => *taken = Err(why),
            }
        }
    }
    let figure = |(case, taken): (Case<'_>, Result<Vec<f64>, String>)| Figure {
        what: case.what,
        set: case.set,
        rules: case.rules,
        target_s: case.target_s,
        seconds: taken.map(median),
    };
    cases.into_iter().zip(taken).map(figure).collect()
}

/// Seconds in a readable unit.
#[must_use]
pub fn seconds_text(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.0} us", s * 1e6),
        s if s < 0.1 => format!("{:.1} ms", s * 1e3),
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

/// One line of the table: the time, the target, and whether it is met.
#[must_use]
pub fn target_line(figure: &Figure) -> String {
    let Figure { what, set, target_s, seconds, .. } = figure;
    let took = match seconds {
        Ok(seconds) => seconds_text(*seconds),
        Err(why) => return format!("{what:<44} {set:<16} not measured: {why}"),
    };
    let verdict = match (target_s, seconds) {
        (Some(target), Ok(seconds)) => {
            let met = if seconds <= target { "met" } else { "MISSED" };
            format!("<= {:<8} {met}", seconds_text(*target))
        }
        _ => String::new(),
    };
    format!("{what:<44} {set:<16} {took:>10}   {verdict}").trim_end().to_owned()
}

/// All figures for other programs, with a header line.
#[must_use]
pub fn tab_separated(figures: &[Figure]) -> String {
    let mut text = "what\tset\trules\tseconds\ttarget_s\n".to_owned();
    for Figure { what, set, rules, target_s, seconds } in figures {
        let seconds = seconds.as_ref().map_or("not measured".to_owned(), |seconds| format!("{seconds:.6}"));
        let target = target_s.map_or(String::new(), |target| target.to_string());
        writeln!(text, "{what}\t{set}\t{rules}\t{seconds}\t{target}").expect("writing to a String");
    }
    text
}
