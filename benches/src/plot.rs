//! Plots as SVG: cost against the number of rules, both axes logarithmic, and bars.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::report::{Figure, seconds_text};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 250.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 60.0;
/// The palette of Okabe and Ito, distinguishable with colour blindness.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"];

/// A logarithmic axis between two powers of ten.
struct Axis {
    low: f64,
    high: f64,
    /// The coordinates of both ends.
    from: f64,
    to: f64,
}

impl Axis {
    fn of(values: impl Iterator<Item = f64> + Clone, from: f64, to: f64) -> Self {
        let low = values.clone().fold(f64::INFINITY, f64::min).log10().floor();
        let high = values.fold(0.0, f64::max).log10().ceil();
        Self { low, high: high.max(low + 1.0), from, to }
    }

    fn at(&self, value: f64) -> f64 {
        self.from + (value.log10() - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    fn decades(&self) -> impl Iterator<Item = f64> + use<> {
        (self.low as i32..=self.high as i32).map(|power| 10_f64.powi(power))
    }
}

/// A line for each `what`; those whose name has a `:` (other programs) are dashed.
#[must_use]
pub fn svg(title: &str, figures: &[Figure]) -> String {
    let mut lines: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    let mut order: Vec<&str> = Vec::new();
    for figure in figures {
        if let Ok(seconds) = figure.seconds {
            if !order.contains(&figure.what) {
                order.push(figure.what);
            }
            lines.entry(figure.what).or_default().push((figure.rules as f64, seconds));
        }
    }
    let points: Vec<(f64, f64)> = lines.values().flatten().copied().collect();
    let x = Axis::of(points.iter().map(|point| point.0), LEFT, WIDTH - RIGHT);
    let y = Axis::of(points.iter().map(|point| point.1), HEIGHT - BOTTOM, TOP);
    let mut text = head(title, (WIDTH, HEIGHT));
    grid(&mut text, &x, &y);
    for (index, what) in order.iter().enumerate() {
        line(&mut text, (index, what), &lines[what], (&x, &y));
    }
    text + "</svg>\n"
}

fn grid(text: &mut String, x: &Axis, y: &Axis) {
    for rules in x.decades() {
        let at = x.at(rules);
        writeln!(
            text,
            "<path d=\"M{at:.1} {:.1}V{:.1}\" stroke=\"#ddd\"/><text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{rules}</text>",
            y.from, y.to, y.from + 20.0
        )
        .expect("a String");
    }
    for seconds in y.decades() {
        let at = y.at(seconds);
        let label = seconds_text(seconds).replace(".0 ", " ").replace(".00 ", " ");
        writeln!(
            text,
            "<path d=\"M{:.1} {at:.1}H{:.1}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            x.from, x.to, x.from - 8.0, at + 4.0
        )
        .expect("a String");
    }
    writeln!(
        text,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">rules</text>",
        (x.from + x.to) / 2.0,
        HEIGHT - 16.0
    )
    .expect("a String");
}

fn line(text: &mut String, (index, what): (usize, &str), points: &[(f64, f64)], (x, y): (&Axis, &Axis)) {
    let colour = COLOURS[index % COLOURS.len()];
    let dash = if what.contains(':') { " stroke-dasharray=\"5 3\"" } else { "" };
    let drawn: Vec<String> =
        points.iter().map(|(rules, seconds)| format!("{:.1},{:.1}", x.at(*rules), y.at(*seconds))).collect();
    let (key_x, key_y) = (WIDTH - RIGHT + 20.0, TOP + 12.0 + 24.0 * index as f64);
    writeln!(
        text,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>\n\
         <path d=\"M{key_x} {key_y}h28\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/><text x=\"{}\" y=\"{}\">{}</text>",
        drawn.join(" "),
        key_x + 36.0,
        key_y + 4.0,
        escaped(what)
    )
    .expect("a String");
}

/// A bar for each name and value, in this order; those that are ours have another colour.
#[must_use]
pub fn bars(title: &str, values: &[(String, f64, bool)]) -> String {
    const ROW: f64 = 26.0;
    const NAMES: f64 = 420.0;
    const SPACE: f64 = 70.0;
    let most = values.iter().map(|(_, value, _)| *value).fold(f64::MIN_POSITIVE, f64::max);
    let height = TOP + ROW * values.len() as f64 + 20.0;
    let mut text = head(title, (WIDTH, height));
    for (index, (name, value, is_own)) in values.iter().enumerate() {
        let top = TOP + ROW * index as f64;
        let (width, base) = (value / most * (WIDTH - NAMES - SPACE), top + ROW * 0.6);
        let colour = COLOURS[usize::from(*is_own) ^ 1];
        writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{base:.1}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{NAMES}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{colour}\"/>\
             <text x=\"{:.1}\" y=\"{base:.1}\">{value:.2}</text>",
            NAMES - 8.0,
            escaped(name),
            ROW * 0.8,
            NAMES + width + 6.0
        )
        .expect("a String");
    }
    text + "</svg>\n"
}

fn head(title: &str, (width, height): (f64, f64)) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"28\" font-size=\"16\">{}</text>\n",
        escaped(title)
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_the_value_is_half_the_bar() {
        let text = bars("rate", &[("ours".to_owned(), 4.0, true), ("a < b".to_owned(), 2.0, false)]);
        assert!(text.contains("width=\"370.0\"") && text.contains("width=\"185.0\""), "{text}");
        assert!(text.contains("a &lt; b"));
    }

    #[test]
    fn a_decade_more_is_a_decade_up_and_to_the_right() {
        let figure = |rules, seconds| Figure {
            what: "nft: a < b",
            set: String::new(),
            rules,
            target_s: None,
            seconds: Ok(seconds),
        };
        let text = svg("cost", &[figure(10, 0.001), figure(100, 0.01)]);
        assert!(text.contains(&format!("{LEFT:.1},{:.1} {:.1},{TOP:.1}", HEIGHT - BOTTOM, WIDTH - RIGHT)));
        assert!(text.contains("nft: a &lt; b") && text.contains("1 ms"));
    }
}
