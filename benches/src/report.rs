//! Figures taken in interleaved rounds: kept by case, as a table with targets, as tab-separated values.

use std::fmt::Write as _;
use std::time::Duration;

use crate::median;

/// One thing that is measured again and again.
pub struct Case<'a> {
    /// Its line in the plot, or what it is.
    pub what: &'static str,
    /// Of which rules.
    pub set: String,
    /// How many.
    pub rules: usize,
    /// What it must not exceed, in seconds.
    pub target_s: Option<f64>,
    /// Takes a figure, or says why there is none.
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
    /// The median in seconds, or why there is none.
    pub seconds: Result<f64, String>,
}

/// Runs all cases in turn, `rounds` times; what fails once is not tried again.
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

/// Seconds as people read them.
#[must_use]
pub fn seconds_text(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.0} us", s * 1e6),
        s if s < 0.1 => format!("{:.1} ms", s * 1e3),
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

/// One line of the table: what it took, what it may take, and whether it is met.
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

/// All figures for other programs, a head line first.
#[must_use]
pub fn tab_separated(figures: &[Figure]) -> String {
    let mut text = "what\tset\trules\tseconds\ttarget_s\n".to_owned();
    for Figure { what, set, rules, target_s, seconds } in figures {
        let seconds = seconds.as_ref().map_or("not measured".to_owned(), |seconds| format!("{seconds:.6}"));
        let target = target_s.map_or(String::new(), |target| target.to_string());
        writeln!(text, "{what}\t{set}\t{rules}\t{seconds}\t{target}").expect("a String");
    }
    text
}
