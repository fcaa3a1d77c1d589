//! Figures of interleaved rounds with their spread, as text and as JSON.

use serde_json::{Value, json};

use crate::median;

/// A row: one thing measured.
pub struct Row {
    /// The table that it is in.
    pub table: &'static str,
    /// What was measured.
    pub what: String,
    /// The length of frames.
    pub frame_bytes: u32,
    /// Of the figures.
    pub unit: &'static str,
    /// One for each round, or why there is none.
    pub figures: Result<Vec<f64>, String>,
    /// What a reader has to know.
    pub note: String,
    /// The command that reproduces it; empty for what `make bench` alone does.
    pub command: String,
}

impl Row {
    /// A row without figures yet.
    #[must_use]
    pub fn new(table: &'static str, what: impl Into<String>, frame_bytes: u32, unit: &'static str) -> Self {
        let (figures, note, command) = (Ok(Vec::new()), String::new(), String::new());
        Self { table, what: what.into(), frame_bytes, unit, figures, note, command }
    }

    /// The figure of another round, unless an earlier round has failed.
    pub fn add(&mut self, figure: Result<f64, String>) {
        match (&mut self.figures, figure) {
            (Ok(figures), Ok(figure)) => figures.push(figure),
            (figures @ Ok(_), Err(why)) => *figures = Err(why),
            (Err(_), _) => {}
        }
    }

    /// The median; `None` if it was not run.
    #[must_use]
    pub fn median(&self) -> Option<f64> {
        self.figures
            .as_ref()
            .ok()
            .filter(|figures| !figures.is_empty())
            .map(|figures| median(figures.clone()))
    }

    /// The least and the greatest figure.
    #[must_use]
    pub fn spread(&self) -> (f64, f64) {
        let figures = self.figures.as_deref().unwrap_or_default().iter().copied();
        (figures.clone().fold(f64::INFINITY, f64::min), figures.fold(f64::NEG_INFINITY, f64::max))
    }

    /// Why there is no figure.
    #[must_use]
    pub fn reason(&self) -> &str {
        self.figures.as_ref().err().map_or("no round", String::as_str)
    }

    /// One line of text. A row without a length of frames has 0.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { what, frame_bytes, unit, note, .. } = self;
        let length = if *frame_bytes == 0 { String::new() } else { format!("{frame_bytes} B") };
        let head = format!("{what:<60} {length:>6}");
        let Some(median) = self.median() else {
            return format!("{head}   not measured: {}", self.reason());
        };
        let (least, most) = self.spread();
        let [median, least, most] = [median, least, most].map(digits);
        format!("{head} {median:>9} {unit} ({least} to {most}) {note}").trim_end().to_owned()
    }

    fn json(&self) -> Value {
        let Self { table, what, frame_bytes, unit, figures, note, command } = self;
        let mut value = json!({ "table": table, "what": what, "frame_bytes": frame_bytes, "unit": unit });
        match figures {
            Ok(figures) => {
                let (least, most) = self.spread();
                value["median"] = json!(self.median());
                value["least"] = json!(least);
                value["most"] = json!(most);
                value["rounds"] = json!(figures);
            }
            Err(why) => value["not_measured"] = json!(why),
        }
        if !note.is_empty() {
            value["note"] = json!(note);
        }
        if !command.is_empty() {
            value["command"] = json!(command);
        }
        value
    }
}

/// Three digits, as many as measurements are worth.
#[must_use]
pub fn digits(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// All rows for other programs.
#[must_use]
pub fn json(rows: &[Row]) -> Value {
    rows.iter().map(Row::json).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_failed_once_has_no_figure() {
        let mut row = Row::new("cost", "nothing", 64, "ns");
        row.add(Ok(3.0));
        row.add(Ok(1.0));
        row.add(Ok(2.0));
        assert_eq!(row.median(), Some(2.0));
        assert!(row.text().contains("2.00 ns (1.00 to 3.00)"), "{}", row.text());
        row.add(Err("it is missing".to_owned()));
        row.add(Ok(2.0));
        assert_eq!(row.median(), None);
        assert!(row.text().contains("not measured: it is missing"));
        assert!(json(&[row])[0]["not_measured"] == "it is missing");
    }
}
