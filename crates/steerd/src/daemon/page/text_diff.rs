//! The difference between the texts of two policies, line by line, as `diff -u` prints it.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;
use similar::TextDiff;

use crate::policy_file::Inputs;

/// How long the shortest difference of two texts is looked for; after that a longer one is good enough.
const TIME: Duration = Duration::from_millis(20);
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
    /// How many lines more there are.
    omitted_lines: usize,
}

impl TextDifference {
    /// `None`: the text of one of them is not kept.
    pub(super) fn between(old: &Inputs, new: &Inputs) -> Option<Self> {
        let mut found = Self { lines: Vec::new(), omitted_lines: 0 };
        found.add(&new.name, old.text.as_deref()?, new.text.as_deref()?);
        let names: BTreeSet<&String> = old.files.keys().chain(new.files.keys()).collect();
        for name in names {
            found.add(name, file_text(old, name)?, file_text(new, name)?);
        }
        found.add("variables", &variables(old), &variables(new));
        Some(found)
    }

    fn add(&mut self, name: &str, old: &str, new: &str) {
        if old == new {
            return;
        }
        let diff = TextDiff::configure().timeout(TIME).diff_lines(old, new);
        let text = diff.unified_diff().context_radius(CONTEXT_LINES).header(name, name).to_string();
        for line in text.lines() {
            match self.lines.len() < LINES_MAX {
                true => self.lines.push(shortened(line)),
                false => self.omitted_lines += 1,
            }
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
    use super::*;
    use crate::policy_file::InputFile;

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
        let found = TextDifference::between(&old, &new).expect("texts");
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
        assert_eq!(found, TextDifference { lines: expected.map(str::to_owned).into(), omitted_lines: 0 });
        assert!(TextDifference::between(&old, &old).expect("texts").lines.is_empty());
        assert_eq!(TextDifference::between(&old.without_texts(), &new), None, "unknown is not equal");
    }

    #[test]
    fn long_differences_are_cut() {
        let many = |word: &str| (0..1000).map(|line| format!("{word} {line}\n")).collect::<String>();
        let found = TextDifference::between(&inputs(&many("old"), &[]), &inputs(&many("new"), &[]));
        let found = found.expect("texts");
        assert_eq!((found.lines.len(), found.omitted_lines), (LINES_MAX, 2003 - LINES_MAX));
        let wide = "ä".repeat(10_000);
        let found = TextDifference::between(&inputs("", &[]), &inputs(&wide, &[])).expect("texts");
        assert!(found.lines.iter().all(|line| line.chars().count() <= COLUMNS_MAX + 1), "{found:?}");
    }
}
