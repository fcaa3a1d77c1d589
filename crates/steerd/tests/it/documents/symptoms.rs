//! The page about troubleshooting names messages that the program has.

use std::path::Path;

use super::page::{DocumentPage, root};

/// The shortest piece of a message that is looked for.
const SHORTEST: usize = 4;

/// Adds the text of every source file below a folder that is no test.
fn add_sources(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let is_test = path.file_stem().is_some_and(|stem| stem == "tests");
        if path.is_dir() && !is_test {
            add_sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !is_test {
            text.push_str(&std::fs::read_to_string(&path).expect("a source"));
        }
    }
}

/// The sources of all crates, in which a string literal of several lines is one line.
fn sources() -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(root().join("crates")).expect("crates/") {
        let folder = entry.expect("an entry").path().join("src");
        if folder.is_dir() {
            add_sources(&folder, &mut text);
        }
    }
    let mut joined = String::new();
    for line in text.lines() {
        match line.trim_start().strip_suffix('\\') {
            Some(begin) => joined.push_str(begin),
            None => {
                joined.push_str(line.trim_start());
                joined.push('\n');
            }
        }
    }
    joined
}

#[test]
fn symptoms_are_messages_of_the_program() {
    let page = DocumentPage::read("docs/how-to/troubleshooting.md");
    let sources = sources();
    let (mut looked_for, mut unknown) = (0, Vec::new());
    for (number, line) in page.lines.iter().enumerate() {
        let Some(symptom) = line.strip_prefix("| ").and_then(|row| row.split(" | ").next()) else { continue };
        // The odd pieces are those in backquotes.
        for message in symptom.split('`').skip(1).step_by(2) {
            // Paths of the HTTP server, and names that systemd gives exit codes.
            if message.starts_with('/') || message.chars().all(|char| char.is_ascii_uppercase()) {
                continue;
            }
            looked_for += 1;
            let pieces = message.split("...").map(str::trim).filter(|piece| piece.len() >= SHORTEST);
            let pieces: Vec<_> = pieces.collect();
            if pieces.is_empty() || !pieces.iter().all(|piece| sources.contains(piece)) {
                unknown.push(format!("{}:{}: {message}", page.name, number + 1));
            }
        }
    }
    assert!(looked_for > 30, "the tables have another form: {looked_for} messages");
    assert!(unknown.is_empty(), "the program has no such messages:\n{}", unknown.join("\n"));
}
