//! The policies and settings that pages show: whole ones, and fragments that a rule makes whole.

use std::process::Stdio;

use super::page::{DocumentPage, PageBlock};
use super::session::PageSession;
use crate::support::{stderr, steerd};

/// The tables that only settings have.
const SETTINGS: [&str; 10] =
    ["[policy", "[workers", "[device", "[softnic", "[[softnic", "[http", "[log", "[health", "[state", "[api"];
/// The tables that only policies have.
const POLICY: [&str; 10] = [
    "[[rules",
    "[groups",
    "[sinks",
    "[sets",
    "[protect",
    "[runtime",
    "[recorder",
    "[variables",
    "[[tests",
    "default =",
];

/// The kind of a block of TOML.
#[derive(Clone, Copy, Debug, PartialEq)]
enum TomlKind {
    Policy,
    /// Lines of a policy, to which the version is added.
    PolicyFragment,
    /// Settings; those that are left out have their defaults.
    Settings,
    Other,
}

fn kind(block: &PageBlock) -> TomlKind {
    let begins =
        |starts: &[&str]| block.lines.iter().any(|line| starts.iter().any(|start| line.starts_with(start)));
    if begins(&["version = 1"]) {
        TomlKind::Policy
    } else if begins(&SETTINGS) {
        TomlKind::Settings
    } else if begins(&POLICY) {
        TomlKind::PolicyFragment
    } else {
        TomlKind::Other
    }
}

/// The problem of a block of TOML.
pub(super) fn problem(page: &DocumentPage, block: &PageBlock, session: &PageSession<'_>) -> Option<String> {
    if block.value("not checked").is_some() {
        return None;
    }
    session.write_files(block);
    let mut text = block.lines.join("\n") + "\n";
    if kind(block) == TomlKind::PolicyFragment {
        text.insert_str(0, "version = 1\n");
    }
    // Behind the first line, where keys are those of the policy.
    for line in block.values("with") {
        text = text.replacen('\n', &format!("\n{line}\n"), 1);
    }
    let mut command = steerd();
    command.args(["check", "--quiet"]).stdin(Stdio::null());
    match kind(block) {
        TomlKind::Policy | TomlKind::PolicyFragment => {
            command.arg(session.write("policy.toml", text.as_bytes()))
        }
        TomlKind::Settings => command
            .args(["--offline", "--model", "ideal", "config/examples/demo.toml", "--config"])
            .arg(session.write("steerd.toml", text.as_bytes())),
        TomlKind::Other => {
            return Some(format!(
                "{}: neither a policy nor settings: write <!-- not checked: REASON --> above the block",
                page.place(block)
            ));
        }
    };
    if block.lines.iter().any(|line| line.starts_with("queues = ")) {
        command.args(["--filter-model", "mlx5"]);
    }
    let output = command.current_dir(session.path()).output().expect("it runs");
    (!output.status.success()).then(|| format!("{}: {}", page.place(block), stderr(&output)))
}
