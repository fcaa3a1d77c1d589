//! Measurements of one run that are compared with each other: taken in turn, round by round, and divided
//! within a round.

use serde_json::{Value, json};

use crate::machine::Gate;
use crate::median;
use crate::table::{Row, digits};

/// One measurement, of one or more rows.
pub struct Case<'c> {
    /// The rows of its figures.
    pub rows: Vec<Row>,
    /// A round: a figure for each row, or why there is none.
    pub run: Box<dyn FnMut() -> Result<Vec<f64>, String> + 'c>,
}

impl<'c> Case<'c> {
    /// A case of one row.
    pub fn new(row: Row, mut run: impl FnMut() -> Result<f64, String> + 'c) -> Self {
        Self { rows: vec![row], run: Box::new(move || run().map(|figure| vec![figure])) }
    }

    /// A case that cannot be measured.
    #[must_use]
    pub fn missing(row: Row, why: &str) -> Self {
        let why = why.to_owned();
        Self::new(row, move || Err(why.clone()))
    }

    fn round(&mut self) {
        if self.rows.iter().any(|row| row.figures.is_err()) {
            return;
        }
        match (self.run)() {
            Ok(figures) => self.rows.iter_mut().zip(figures).for_each(|(row, figure)| row.add(Ok(figure))),
            Err(why) => self.rows.iter_mut().for_each(|row| row.add(Err(why.clone()))),
        }
    }
}

/// All cases in turn, `rounds` times. A case that has failed is not repeated.
pub fn interleaved(mut cases: Vec<Case<'_>>, rounds: usize, gate: &mut Gate) -> Vec<Row> {
    for _ in 0..rounds {
        gate.wait();
        cases.iter_mut().for_each(Case::round);
    }
    cases.into_iter().flat_map(|case| case.rows).collect()
}

/// How much faster one row is than another one.
#[derive(Clone, Debug, PartialEq)]
pub struct Ratio {
    /// What is compared, in words.
    pub text: String,
    /// The median of the rounds, with the least and the greatest; or why there is none. Above 1 the first row
    /// is faster.
    pub figures: Result<(f64, f64, f64), String>,
}

impl Ratio {
    /// `own` beside `other`. Rates are taken as times per packet.
    #[must_use]
    pub fn of(own: &Row, other: &Row) -> Self {
        let length = if own.frame_bytes == 0 { String::new() } else { format!(", {} B", own.frame_bytes) };
        let text = format!("{}: `{}` beside `{}`{length}", own.table, own.what, other.what);
        let times = |row: &Row| -> Result<Vec<f64>, String> {
            let time = |figure: &f64| if row.unit == "Mpps" { 1e3 / figure } else { *figure };
            row.figures.as_ref().map(|figures| figures.iter().map(time).collect()).map_err(Clone::clone)
        };
        let figures = match (times(own), times(other)) {
            (Ok(own), Ok(other)) if !own.is_empty() && own.len() == other.len() => {
                let rounds: Vec<f64> = own.iter().zip(other).map(|(own, other)| other / own).collect();
                let least = rounds.iter().copied().fold(f64::INFINITY, f64::min);
                let most = rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                Ok((median(rounds), least, most))
            }
            (Ok(_), Err(why)) | (Err(why), _) => Err(why),
            _ => Err("no rounds to compare".to_owned()),
        };
        Self { text, figures }
    }

    /// One line of text.
    #[must_use]
    pub fn line(&self) -> String {
        match &self.figures {
            Ok((median, least, most)) => {
                let [median, least, most] = [*median, *least, *most].map(digits);
                format!("{median:>6} times ({least} to {most})  {}", self.text)
            }
            Err(why) => format!("  not measured  {}: {why}", self.text),
        }
    }

    /// For other programs.
    #[must_use]
    pub fn json(&self) -> Value {
        match &self.figures {
            Ok((median, least, most)) => {
                json!({ "what": self.text, "median": median, "least": least, "most": most })
            }
            Err(why) => json!({ "what": self.text, "not_measured": why }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(unit: &'static str, figures: &[f64]) -> Row {
        let mut row = Row::new("table", "row", 64, unit);
        figures.iter().for_each(|figure| row.add(Ok(*figure)));
        row
    }

    #[test]
    fn more_is_better_for_rates_and_for_times() {
        let of = |unit| Ratio::of(&row(unit, &[2.0, 3.0, 8.0]), &row(unit, &[1.0, 1.0, 4.0])).figures;
        assert_eq!(of("Mpps"), Ok((2.0, 2.0, 3.0)));
        assert_eq!(of("ns"), Ok((0.5, 1.0 / 3.0, 0.5)));
        let mixed = Ratio::of(&row("Mpps", &[10.0]), &row("ns", &[50.0]));
        assert_eq!(mixed.figures, Ok((0.5, 0.5, 0.5)));
    }

    #[test]
    fn a_failed_case_has_no_ratio() {
        let mut gate = Gate::new(std::time::Duration::ZERO);
        let mut turns = 0;
        let cases = vec![
            Case::missing(row("ns", &[]), "no program"),
            Case::new(row("ns", &[]), || {
                turns += 1;
                Ok(f64::from(turns))
            }),
        ];
        let rows = interleaved(cases, 3, &mut gate);
        assert_eq!(rows[1].median(), Some(2.0));
        assert_eq!(Ratio::of(&rows[1], &rows[0]).figures, Err("no program".to_owned()));
    }
}
