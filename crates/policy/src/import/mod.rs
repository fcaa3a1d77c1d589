//! Rules of other tools, written as a policy: ClassBench filter sets ([`classbench`]), and what `ethtool -n`
//! and `ethtool --show-rxfh` list ([`ethtool`]). Pure functions of text: they read no device and no file, and
//! whatever they are given, what comes out is a policy. What does not carry over is told with its line.

mod classbench;
mod ethtool;
mod masked;

use std::fmt;

use packet::EtherType;
use program::Word;

pub use classbench::{ClassBench, classbench, classbench_with};
pub use ethtool::ethtool;

/// A policy made of something else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The policy's text.
    pub policy_toml: String,
    /// What did not carry over, in the order of the input.
    pub notes: Vec<Note>,
}

/// Something that the policy says otherwise than the input, or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The line of the input, from 1.
    pub line: u32,
    /// What became of it, and why.
    pub message: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

/// The keys of one match, in the order of the language's table.
#[derive(Default)]
struct Keys(Vec<String>);

impl Keys {
    /// A key with a value that is TOML already.
    fn push(&mut self, key: &str, value: impl fmt::Display) {
        self.0.push(format!("{key} = {value}"));
    }

    /// A key with a string.
    fn text(&mut self, key: &str, value: impl fmt::Display) {
        self.0.push(format!("{key} = \"{value}\""));
    }

    /// A key with numbers; nothing if there is no bound.
    fn ranges(&mut self, key: &str, ranges: &[(u128, u128)]) {
        let range = |(low, high): &(u128, u128)| match low == high {
            true => low.to_string(),
            false => format!("\"{low}-{high}\""),
        };
        match ranges {
            [] => {}
            [one] => self.push(key, range(one)),
            _ => {
                let list: Vec<String> = ranges.iter().map(range).collect();
                self.push(key, format!("[{}]", list.join(", ")));
            }
        }
    }

    /// Ethertypes by name, or as people know them.
    fn ether_types(&mut self, ranges: &[(u128, u128)]) {
        let shown = |number: u128| EtherType(u16::narrow(number)).to_string();
        match ranges {
            [(low, high)] if low == high => self.text("ethertype", shown(*low)),
            _ => self.ranges("ethertype", ranges),
        }
    }

    /// The whole match; of every packet if no key is in it.
    fn table(&self) -> String {
        match self.0.is_empty() {
            true => "{ any = true }".to_owned(),
            false => format!("{{ {} }}", self.0.join(", ")),
        }
    }
}

fn rule(name: &str, keys: &Keys, action: &str) -> String {
    format!("\n[[rules]]\nname = \"{name}\"\nmatch = {}\naction = {action}\n", keys.table())
}

/// A piece of the input as a comment or a message shows it.
fn quoted(text: &str) -> String {
    const SHOWN: usize = 60;
    text.chars().take(SHOWN).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn line_number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX).saturating_add(1)
}
