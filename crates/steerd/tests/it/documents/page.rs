//! The blocks of a page, with the comments directly above them:
//!
//! | comment | meaning |
//! |---|---|
//! | `run` | the block is run; any of the following says so, too |
//! | `not run: REASON`, `not checked: REASON` | nobody runs a `console` block, or checks a `toml` block |
//! | `run by: MODULE::TEST` | a test of its own runs the block, or does the same in its own way |
//! | `files: NAME = SOURCE, ...` | files of the scratch folder: `block N` is the N-th `toml` block of the page, `PAGE block N` that of another page, `demo capture` the first packets of the demonstration |
//! | `file: NAME`, then its lines | a file that the page does not show |
//! | `daemon: ARGUMENTS` | `steerd run ARGUMENTS` runs, and the commands find it |
//! | `before: COMMAND` | a command that the page does not show |
//! | `namespace: COMMAND` | the block runs in namespaces of its own, after that command |
//! | `needs: PROGRAM, ...` | programs without which the block cannot run, or `root` |
//! | `until: TEXT` | what a daemon that the block starts has in its log before the next command; "steering on" if left out |
//! | `exit: CODE, ...` | the exit codes of the commands, if one is not 0 |
//! | `with: LINE` | a line of the policy that the page does not show |
//! | `varies: numbers` | numbers and their units differ from run to run, and so the width of columns |

use std::path::{Path, PathBuf};

/// The root of the repository.
pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

/// A Markdown page.
pub(super) struct DocumentPage {
    /// The path below the root.
    pub(super) name: String,
    pub(super) lines: Vec<String>,
    pub(super) blocks: Vec<PageBlock>,
}

/// A fenced block.
pub(super) struct PageBlock {
    pub(super) language: String,
    /// The place of the opening fence among the lines, from 0.
    pub(super) fence: usize,
    /// The lines between the fences.
    pub(super) lines: Vec<String>,
    pub(super) comments: Vec<BlockComment>,
}

/// A comment above a block: its word, and what follows.
pub(super) struct BlockComment {
    pub(super) key: String,
    pub(super) value: String,
}

const KEYS: [&str; 14] = [
    "run",
    "not run",
    "not checked",
    "run by",
    "files",
    "file",
    "daemon",
    "before",
    "namespace",
    "needs",
    "exit",
    "until",
    "varies",
    "with",
];

impl DocumentPage {
    pub(super) fn read(name: &str) -> Self {
        let path = root().join(name);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        Self::parse(name, &text)
    }

    pub(super) fn parse(name: &str, text: &str) -> Self {
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let mut blocks = Vec::new();
        let mut at = 0;
        while at < lines.len() {
            if let Some(language) = lines[at].strip_prefix("```") {
                let end = (at + 1..lines.len()).find(|&line| lines[line] == "```");
                let end = end.unwrap_or_else(|| panic!("{name}:{}: the block has no end", at + 1));
                blocks.push(PageBlock {
                    language: language.to_owned(),
                    fence: at,
                    lines: lines[at + 1..end].to_vec(),
                    comments: comments_above(name, &lines, at),
                });
                at = end;
            }
            at += 1;
        }
        Self { name: name.to_owned(), lines, blocks }
    }

    /// The place of a block, as `file:line`.
    pub(super) fn place(&self, block: &PageBlock) -> String {
        format!("{}:{}", self.name, block.fence + 1)
    }

    /// The text of the `number`-th block of TOML, from 1.
    pub(super) fn toml_block(&self, number: usize) -> String {
        let mut all = self.blocks.iter().filter(|block| block.language == "toml");
        let block = number.checked_sub(1).and_then(|skipped| all.nth(skipped));
        let block = block.unwrap_or_else(|| panic!("{} has no {number} blocks of TOML", self.name));
        block.lines.join("\n") + "\n"
    }
}

/// The comments that end on the line before `fence`, in the order of the page.
fn comments_above(page: &str, lines: &[String], fence: usize) -> Vec<BlockComment> {
    let mut comments = Vec::new();
    let mut end = fence;
    while end > 0 && lines[end - 1].ends_with("-->") {
        let begin = (0..end).rev().find(|&line| lines[line].starts_with("<!-- "));
        let begin = begin.unwrap_or_else(|| panic!("{page}:{end}: the comment has no begin"));
        let text = lines[begin..end].join("\n");
        let text = text.trim_start_matches("<!-- ").trim_end_matches("-->").trim_end();
        let (key, value) = text.split_once(": ").unwrap_or((text, ""));
        assert!(
            KEYS.contains(&key),
            "{page}:{}: a comment above a block begins with one of {KEYS:?}, not with `{key}`",
            begin + 1
        );
        comments.push(BlockComment { key: key.to_owned(), value: value.to_owned() });
        end = begin;
    }
    comments.reverse();
    comments
}

impl PageBlock {
    /// The values of the comments with this key.
    pub(super) fn values<'b>(&'b self, key: &'b str) -> impl Iterator<Item = &'b str> {
        self.comments.iter().filter(move |comment| comment.key == key).map(|comment| &*comment.value)
    }

    pub(super) fn value<'b>(&'b self, key: &'b str) -> Option<&'b str> {
        self.values(key).next()
    }

    /// The parts of a comma-separated value.
    pub(super) fn list<'b>(&'b self, key: &'b str) -> impl Iterator<Item = &'b str> {
        self.values(key).flat_map(|value| value.split(',')).map(str::trim)
    }

    /// The commands of a console block. If the first line begins with `# `, so does each command: they are
    /// for root.
    pub(super) fn commands(&self) -> Vec<ShownCommand> {
        let is_root = self.lines.first().is_some_and(|line| line.starts_with("# "));
        let prompt = if is_root { "# " } else { "$ " };
        let mut all: Vec<ShownCommand> = Vec::new();
        let mut is_open = false;
        for (at, line) in self.lines.iter().enumerate() {
            match (line.strip_prefix(prompt), all.last_mut()) {
                (Some(command), _) if !is_open => {
                    is_open = command.contains("<<'END'") || command.ends_with('\\');
                    let first_line = self.fence + 2 + at;
                    all.push(ShownCommand { command: command.to_owned(), output: Vec::new(), first_line });
                }
                (_, Some(last)) if is_open => {
                    last.command.push_str(&format!("\n{line}"));
                    last.first_line = self.fence + 2 + at;
                    let is_document = last.command.contains("<<'END'");
                    is_open = if is_document { line != "END" } else { line.ends_with('\\') };
                }
                (_, Some(last)) => last.output.push(line.clone()),
                (_, None) => panic!("line {}: a block begins with output: {line}", self.fence + 2),
            }
        }
        all
    }
}

/// A command of a console block, with the lines of a here-document, and what the page shows of its output.
#[derive(Clone, Debug)]
pub(super) struct ShownCommand {
    pub(super) command: String,
    pub(super) output: Vec<String>,
    /// The place of the first line of output among the lines of the page, from 0.
    pub(super) first_line: usize,
}
