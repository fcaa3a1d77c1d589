//! What becomes of one packet that the host sends, in names, as `explain --direction egress` prints it. Asks the
//! program; decides nothing.

use std::fmt::Write as _;

use packet::DeepKey;
use program::{Program, SentExplanation};
use serde::Serialize;

use super::fate::{Copy, line, name, placed};
use crate::describe::describe;

/// Described in docs/commands.md.
#[derive(Debug, Serialize)]
pub(super) struct SentFate {
    direction: &'static str,
    packet: String,
    /// The rule that decides; without one, the packet leaves.
    rule: Option<String>,
    line: Option<u32>,
    action: &'static str,
    leaves: bool,
    copies: Vec<Copy>,
}

impl SentFate {
    pub(super) fn of(program: &Program, key: &DeepKey) -> Self {
        let explained = program.explain_sent(key);
        Self {
            direction: "egress",
            packet: describe(key),
            rule: explained.rule.map(|rule| name(program, rule)),
            line: explained.rule.map(|rule| line(program, rule)),
            action: action(&explained),
            leaves: explained.leaves,
            copies: explained.copies.iter().map(|copied| Copy::of(program, copied)).collect(),
        }
    }

    pub(super) fn text(&self) -> String {
        let rule = match (&self.rule, self.line) {
            (Some(rule), line) => format!("{}: {}", placed(rule, line.unwrap_or_default()), self.action),
            (None, _) => "none: it leaves, as no egress rule is about it".to_owned(),
        };
        let mut out = format!("{:<8} {}\n", "packet", self.packet);
        // Strings take text.
        let _ = writeln!(out, "{:<8} {rule}", "rule");
        for copy in &self.copies {
            let _ = writeln!(out, "{:<8} {}", copy.kind, copy.text());
        }
        out
    }

    pub(super) fn line(&self, packet_number: u64) -> String {
        let rule = self.rule.as_deref().unwrap_or("-");
        let copies: String = self.copies.iter().map(Copy::short).collect();
        format!("{packet_number}  rule={rule} action={}{copies}  {}", self.action, self.packet)
    }
}

/// In the words of rules.
pub(super) fn action(explained: &SentExplanation) -> &'static str {
    if explained.leaves { "pass" } else { "drop" }
}
