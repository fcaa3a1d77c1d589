//! The difference between the texts of two policies, line by line, as `diff -u` prints it.

use std::collections::BTreeSet;
use std::time::Instant;

use serde::Serialize;
use similar::TextDiff;

use crate::policy_file::Inputs;

/// The lines around a change.
const CONTEXT_LINES: usize = 2;
/// The most lines of a difference, and the most characters of each.
const LINES_MAX: usize = 200;
const COLUMNS_MAX: usize = 240;

/// The lines that differ.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct TextDifference {
    /// Each begins as in a unified diff.
    lines: Vec<String>,
    /// Whether there may be more lines: they are too many, or the time was over.
    is_cut: bool,
}

impl TextDifference {
    /// `None`: the text of one of them is not kept. After `end` no text is compared any more, and the
    /// difference of the one that is being compared may be longer than the shortest.
    pub(super) fn between(old: &Inputs, new: &Inputs, end: Instant) -> Option<Self> {
        let mut found = Self { lines: Vec::new(), is_cut: false };
        found.add(&new.name, old.text.as_deref()?, new.text.as_deref()?, end);
        let names: BTreeSet<&String> = old.files.keys().chain(new.files.keys()).collect();
        for name in names {
            found.add(name, file_text(old, name)?, file_text(new, name)?, end);
        }
        found.add("variables", &variables(old), &variables(new), end);
        Some(found)
    }

    fn add(&mut self, name: &str, old: &str, new: &str, end: Instant) {
        if self.is_cut || old == new {
            return;
        }
        if Instant::now() >= end {
            self.is_cut = true;
            return;
        }
        let diff = TextDiff::configure().deadline(end).diff_lines(old, new);
        self.push(&format!("--- {name}"));
        self.push(&format!("+++ {name}"));
        for hunk in diff.unified_diff().context_radius(CONTEXT_LINES).iter_hunks() {
            self.push(&hunk.header().to_string());
            for change in hunk.iter_changes() {
                if self.is_cut {
                    return;
                }
                self.push(&format!("{}{}", change.tag(), change.value().trim_end_matches('\n')));
                if change.missing_newline() {
                    self.push("\\ No newline at end of file");
                }
            }
        }
    }

    fn push(&mut self, line: &str) {
        match self.lines.len() < LINES_MAX {
            true => self.lines.push(shortened(line)),
            false => self.is_cut = true,
        }
    }
}

/// The text of a file, which is empty if the policy does not name it; `None`: it is not kept.
fn file_text<'i>(inputs: &'i Inputs, name: &str) -> Option<&'i str> {
    inputs.files.get(name).map_or(Some(""), |file| file.text.as_deref())
}

fn shortened(line: &str) -> String {
    match line.char_indices().nth(COLUMNS_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

/// The variables that settings and flags give, a line each.
fn variables(inputs: &Inputs) -> String {
    inputs.variables.iter().map(|(name, value)| format!("{name} = {value:?}\n")).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::policy_file::InputFile;

    /// The difference without an end of the time.
    fn between(old: &Inputs, new: &Inputs) -> Option<TextDifference> {
        TextDifference::between(old, new, Instant::now() + Duration::from_secs(3600))
    }

    fn inputs(text: &str, files: &[(&str, &str)]) -> Inputs {
        let file = |text: &str| InputFile { sha256: String::new(), text: Some(text.to_owned()) };
        Inputs {
            name: "p.toml".to_owned(),
            text: Some(text.to_owned()),
            files: files.iter().map(|(name, text)| ((*name).to_owned(), file(text))).collect(),
            ..Inputs::default()
        }
    }

    #[test]
    fn changed_lines_have_the_form_of_a_unified_diff() {
        let old = inputs("a\nb\nc\nd\ne\nf\n", &[("set.txt", "1\n"), ("same.txt", "x\n")]);
        let new = inputs("a\nb\nc\nd\nE\nf\n", &[("set.txt", "1\n2\n"), ("same.txt", "x\n")]);
        let found = between(&old, &new).expect("texts");
        let expected = [
            "--- p.toml",
            "+++ p.toml",
            "@@ -3,4 +3,4 @@",
            " c",
            " d",
            "-e",
            "+E",
            " f",
            "--- set.txt",
            "+++ set.txt",
            "@@ -1 +1,2 @@",
            " 1",
            "+2",
        ];
        assert_eq!(found, TextDifference { lines: expected.map(str::to_owned).into(), is_cut: false });
        assert!(between(&old, &old).expect("texts").lines.is_empty());
        assert_eq!(between(&old.without_texts(), &new), None, "unknown is not equal");
    }

    #[test]
    fn long_differences_are_cut() {
        let many = |word: &str| (0..1000).map(|line| format!("{word} {line}\n")).collect::<String>();
        let files = [("set.txt", "1\n")];
        let found = between(&inputs(&many("old"), &[]), &inputs(&many("new"), &files)).expect("texts");
        assert_eq!((found.lines.len(), found.is_cut), (LINES_MAX, true));
        let wide = "ä".repeat(10_000);
        let found = between(&inputs("", &[]), &inputs(&wide, &[])).expect("texts");
        assert!(found.lines.iter().all(|line| line.chars().count() <= COLUMNS_MAX + 1), "{found:?}");
    }

    #[test]
    fn a_difference_without_time_is_not_taken_for_none() {
        let found = TextDifference::between(&inputs("a\n", &[]), &inputs("b\n", &[]), Instant::now());
        assert_eq!(found, Some(TextDifference { lines: Vec::new(), is_cut: true }));
    }
}
