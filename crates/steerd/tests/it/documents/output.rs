//! The comparison of an output with what a page shows of it, and its renewal.
//!
//! `...` as a line stands for any number of lines, inside a line for any text. A page may break a long line:
//! the lines that continue it begin with two spaces.

/// The most lines into which a page breaks one.
const MAX_PIECES: usize = 8;
/// The width at which a renewed line is broken.
const COLUMNS: usize = 160;

/// The cost of a line that the page does not show yet.
const INSERTION: usize = 12;
/// Higher than a substitution: a shown line is replaced rather than left to `...` beside it.
const DELETION: usize = 40;
/// A line in place of an entirely different one, which costs less than a deletion.
const SUBSTITUTION: usize = 20;

/// How two lines are compared.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum LineComparison {
    /// Each character.
    Exact,
    /// All but numbers with their units, and blanks.
    WithoutNumbers,
}

/// One step of an alignment of the shown lines with those of the output.
#[derive(Clone, Copy, PartialEq)]
enum AlignmentStep {
    /// So many shown lines stand for one line.
    Keep(usize),
    /// The line `...` stands for one more line.
    Skip,
    /// The line `...` stands for no further line.
    EndSkip,
    Replace,
    Insert,
    Delete,
}

/// The cheapest alignment, from the last line to the first: `costs[shown][actual]` is that of the rest.
struct LineAlignment {
    steps: Vec<AlignmentStep>,
    cost: usize,
}

/// Returns whether the lines are the shown ones.
pub(super) fn is_as_shown(lines: &[&str], shown: &[String], comparison: LineComparison) -> bool {
    align(lines, shown, comparison).cost == 0
}

/// The shown lines with as few changes as make them stand for the output.
pub(super) fn renewed(lines: &[&str], shown: &[String], comparison: LineComparison) -> Vec<String> {
    let (mut result, mut at, mut line) = (Vec::new(), 0, 0);
    for step in align(lines, shown, comparison).steps {
        match step {
            AlignmentStep::Keep(pieces) => {
                result.extend_from_slice(&shown[at..at + pieces]);
                (at, line) = (at + pieces, line + 1);
            }
            AlignmentStep::Skip => line += 1,
            AlignmentStep::EndSkip => {
                result.push(shown[at].clone());
                at += 1;
            }
            AlignmentStep::Replace => {
                result.extend(broken(lines[line]));
                (at, line) = (at + 1, line + 1);
            }
            AlignmentStep::Insert => {
                result.extend(broken(lines[line]));
                line += 1;
            }
            AlignmentStep::Delete => at += 1,
        }
    }
    result
}

fn align(lines: &[&str], shown: &[String], comparison: LineComparison) -> LineAlignment {
    let mut costs = vec![vec![usize::MAX; lines.len() + 1]; shown.len() + 1];
    let mut steps = vec![vec![AlignmentStep::Delete; lines.len() + 1]; shown.len() + 1];
    for at in (0..=shown.len()).rev() {
        for line in (0..=lines.len()).rev() {
            if (at, line) == (shown.len(), lines.len()) {
                costs[at][line] = 0;
                continue;
            }
            let mut best = (usize::MAX, AlignmentStep::Delete);
            let mut consider = |cost: usize, step| {
                if cost < best.0 {
                    best = (cost, step);
                }
            };
            if let Some(text) = shown.get(at) {
                if text.trim() == "..." {
                    consider(costs[at + 1][line], AlignmentStep::EndSkip);
                    if line < lines.len() {
                        consider(costs[at][line + 1], AlignmentStep::Skip);
                    }
                } else {
                    consider(costs[at + 1][line] + DELETION, AlignmentStep::Delete);
                    if let Some(actual) = lines.get(line) {
                        if let Some(pieces) = pieces_of(&shown[at..], actual, comparison) {
                            consider(costs[at + pieces][line + 1], AlignmentStep::Keep(pieces));
                        }
                        let cost = costs[at + 1][line + 1] + difference(text, actual);
                        consider(cost, AlignmentStep::Replace);
                    }
                }
            }
            if line < lines.len() {
                consider(costs[at][line + 1] + INSERTION, AlignmentStep::Insert);
            }
            (costs[at][line], steps[at][line]) = best;
        }
    }
    let (mut path, mut at, mut line) = (Vec::new(), 0, 0);
    while (at, line) != (shown.len(), lines.len()) {
        let step = steps[at][line];
        let (forward, down) = match step {
            AlignmentStep::Keep(pieces) => (pieces, 1),
            AlignmentStep::Skip | AlignmentStep::Insert => (0, 1),
            AlignmentStep::EndSkip | AlignmentStep::Delete => (1, 0),
            AlignmentStep::Replace => (1, 1),
        };
        path.push(step);
        (at, line) = (at + forward, line + down);
    }
    LineAlignment { steps: path, cost: costs[0][0] }
}

/// How many of the first shown lines stand for the line; `None` if they do not.
fn pieces_of(shown: &[String], line: &str, comparison: LineComparison) -> Option<usize> {
    let normal = |text: &str| match comparison {
        LineComparison::Exact => text.trim_end().to_owned(),
        LineComparison::WithoutNumbers => without_numbers(text),
    };
    if stands_for(&normal(&shown[0]), &normal(line)) {
        return Some(1);
    }
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = words(&normal(line));
    let mut joined = shown[0].clone();
    for (at, next) in shown.iter().enumerate().skip(1).take(MAX_PIECES) {
        if !next.starts_with("  ") {
            return None;
        }
        joined.push_str(next);
        if stands_for(&words(&normal(&joined)), &line) {
            return Some(at + 1);
        }
    }
    None
}

/// Returns whether the text is the shown one, in which `...` stands for any text.
fn stands_for(shown: &str, text: &str) -> bool {
    let mut parts = shown.split("...");
    let Some(rest) = text.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    let mut rest = rest;
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// The text with `#` for each number and its unit, and with single blanks.
fn without_numbers(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut result = String::new();
    let mut at = 0;
    let is_digit = |at: usize| chars.get(at).is_some_and(char::is_ascii_digit);
    while at < chars.len() {
        if !is_digit(at) {
            result.push(chars[at]);
            at += 1;
            continue;
        }
        while is_digit(at) || (chars.get(at) == Some(&'.') && is_digit(at + 1)) {
            at += 1;
        }
        for unit in ["KiB", "MiB", "GiB", "TiB", "B", "k", "M", "G"] {
            let end = at + unit.len();
            let is_unit = chars[at..].iter().take(unit.len()).collect::<String>() == unit;
            if is_unit && !chars.get(end).is_some_and(|next| next.is_alphanumeric()) {
                at = end;
                break;
            }
        }
        result.push('#');
    }
    result.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The cost of the one line in place of the other: the smaller, the more words they share.
fn difference(shown: &str, line: &str) -> usize {
    let words: Vec<&str> = shown.split_whitespace().collect();
    let others: Vec<&str> = line.split_whitespace().collect();
    let common = words.iter().filter(|word| others.contains(word)).count();
    let most = words.len().max(others.len()).max(1);
    1 + (SUBSTITUTION - 1) * (most - common.min(most)) / most
}

/// The line as a page has it: broken where it is too wide.
fn broken(line: &str) -> Vec<String> {
    let mut pieces = vec![String::new()];
    if line.chars().count() <= COLUMNS {
        return vec![line.trim_end().to_owned()];
    }
    for word in line.split(' ') {
        let last = pieces.last_mut().expect("one at least");
        let is_first = last.trim().is_empty();
        if !is_first && last.chars().count() + 1 + word.chars().count() > COLUMNS {
            pieces.push(format!("  {word}"));
        } else {
            if !(is_first && last.is_empty()) {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::{LineComparison, is_as_shown, renewed};

    fn owned(lines: &[&str]) -> Vec<String> {
        lines.iter().map(|&line| line.to_owned()).collect()
    }

    #[test]
    fn dots_stand_for_lines_and_text() {
        let is = |lines: &[&str], shown: &[&str]| is_as_shown(lines, &owned(shown), LineComparison::Exact);
        assert!(is(&["a", "b", "c"], &["...", "c"]));
        assert!(is(&["c"], &["...", "c"]));
        assert!(!is(&["a", "b"], &["...", "c"]));
        assert!(!is(&["a", "b", "c"], &["a", "..."][..1]));
        assert!(is(&["up 3 s, ready"], &["up ... s, ready"]));
        assert!(!is(&["up 3 s, failed"], &["up ... s, ready"]));
        assert!(is(&["one two three"], &["one", "  two", "  three"]));
        assert!(!is(&["one two three"], &["one", "two three"]));
        assert!(!is(&["one two three"], &["one", "  two"]));
        assert!(!is(&["one 1"], &["one 2"]));
    }

    #[test]
    fn numbers_may_differ_by_choice() {
        let is =
            |line: &str, shown: &str| is_as_shown(&[line], &owned(&[shown]), LineComparison::WithoutNumbers);
        assert!(is("dns  12    3.4MiB   5.0k", "dns      120    34KiB      50"));
        assert!(is("up 3.6 s at 12:00:01.5", "up 12 s at 07:10:11.25"));
        assert!(!is("dns 12", "web 12"));
        assert!(!is("12 packets", "12Mbytes"));
        assert!(!is("worker -", "worker 5"));
    }

    #[test]
    fn renewed_lines_keep_the_dots() {
        let (shown, lines) =
            (owned(&["first", "...", "rule a 1", "..."]), ["first", "x", "y", "rule a 2", "z"]);
        let new = renewed(&lines, &shown, LineComparison::Exact);
        assert_eq!(new, ["first", "...", "rule a 2", "..."]);
        assert!(is_as_shown(&lines, &new, LineComparison::Exact));
        // All that a page without dots shows, is shown.
        assert_eq!(renewed(&["a", "b"], &owned(&["a", "c"]), LineComparison::Exact), ["a", "b"]);
        let long = "word ".repeat(60);
        let new = renewed(&[&long], &owned(&["other"]), LineComparison::Exact);
        assert!(new.len() == 2 && is_as_shown(&[&long], &new, LineComparison::Exact), "{new:?}");
    }
}
