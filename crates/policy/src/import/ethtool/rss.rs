//! Receive-side scaling as `ethtool -x` lists it: the indirection table, the hash key and the hash function.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use packet::RSS_KEY_BYTES;

use super::{Note, quoted};
use crate::policy::{MAX_TABLE_SIZE, MAX_WEIGHT, MAX_WORKER};

/// One table with its key and function.
pub(super) struct Spread {
    pub(super) line: u32,
    /// The RSS context; 0 for the default one.
    pub(super) context: u32,
    /// How many entries each queue has.
    entries: BTreeMap<u32, u32>,
    key: Option<String>,
    /// The hash functions that are on.
    functions: Vec<String>,
    part: Part,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Table,
    Key,
    Function,
    /// `RSS input transformation`, which changes the input of the hash.
    Input,
}

/// The group of a context.
pub(super) fn group_name(context: u32) -> String {
    match context {
        0 => "rss".to_owned(),
        context => format!("rss-{context}"),
    }
}

impl Spread {
    /// From the first line of a table; `context` is used if the line has none.
    pub(super) fn new(line: u32, heading: &str, context: u32) -> Self {
        let own = heading
            .rsplit_once("context ")
            .and_then(|(_, number)| number.trim_end_matches(':').trim().parse().ok());
        Self {
            line,
            context: own.unwrap_or(context),
            entries: BTreeMap::new(),
            key: None,
            functions: Vec::new(),
            part: Part::Table,
        }
    }

    pub(super) fn line(&mut self, text: &str) -> Result<(), String> {
        let odd = || Err(format!("not understood: {}", quoted(text)));
        match text {
            "RSS hash key:" => self.part = Part::Key,
            "RSS hash function:" => self.part = Part::Function,
            "RSS input transformation:" => self.part = Part::Input,
            "Operation not supported" => {}
            _ if self.part == Part::Table => return self.entries(text),
            _ if self.part == Part::Key => self.key = Some(text.to_owned()),
            _ => {
                let Some((name, state)) = text.split_once(':') else { return odd() };
                if state.trim() == "on" {
                    match self.part {
                        Part::Input => {
                            return Err(format!("the input transformation {} is left out", quoted(name)));
                        }
                        _ => self.functions.push(name.trim().to_owned()),
                    }
                }
            }
        }
        Ok(())
    }

    /// `   8:      0     1     2 ...`.
    fn entries(&mut self, text: &str) -> Result<(), String> {
        let odd = || format!("not understood: {}", quoted(text));
        let (_, queues) = text.split_once(':').ok_or_else(odd)?;
        for queue in queues.split_whitespace() {
            let queue = queue.parse().ok().filter(|queue| *queue <= MAX_WORKER).ok_or_else(odd)?;
            let entries = self.entries.entry(queue).or_default();
            *entries = (*entries + 1).min(MAX_WEIGHT);
        }
        Ok(())
    }

    /// The table as a group.
    pub(super) fn group(&self, notes: &mut Vec<Note>) -> String {
        let name = group_name(self.context);
        let mut note = |message: String| notes.push(Note { line: self.line, message });
        let mut group = format!("\n[groups.{name}]\n");
        let even = self.entries.values().collect::<std::collections::BTreeSet<_>>().len() <= 1;
        let size: usize = self.entries.values().map(|count| *count as usize).sum();
        if self.entries.is_empty() {
            note(format!("the table is empty: `{name}` is all workers"));
            group.push_str("workers = \"all\"\n");
        } else if even {
            let queues: Vec<String> = self.entries.keys().map(ToString::to_string).collect();
            let _ = writeln!(group, "workers = [{}]", queues.join(", "));
        } else {
            let shares: Vec<String> =
                self.entries.iter().map(|(queue, share)| format!("{queue} = {share}")).collect();
            let _ = writeln!(group, "weights = {{ {} }}", shares.join(", "));
        }
        if size.is_power_of_two() && size <= MAX_TABLE_SIZE as usize {
            let _ = writeln!(group, "table_size = {size}");
        } else if size > 0 {
            note(format!("the table's size is left out: {size} is not a power of two"));
        }
        if size > 0 {
            note(format!("`{name}` keeps each queue's share, not the order of the table's entries"));
        }
        self.key_line(&mut group, &mut note);
        for function in self.functions.iter().filter(|function| *function != "toeplitz") {
            note(format!(
                "the hash function {} is left out: a policy always uses Toeplitz",
                quoted(function)
            ));
        }
        group
    }

    fn key_line(&self, group: &mut String, note: &mut dyn FnMut(String)) {
        let Some(key) = &self.key else { return };
        let bytes: Option<Vec<u8>> = key
            .split(':')
            .map(|byte| (byte.len() == 2).then(|| u8::from_str_radix(byte, 16).ok()).flatten())
            .collect();
        match bytes {
            Some(bytes) if bytes.len() == RSS_KEY_BYTES => {
                let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                let _ = writeln!(group, "key = \"{hex}\"");
            }
            Some(bytes) if bytes.len() > RSS_KEY_BYTES => {
                let hex: String = bytes[..RSS_KEY_BYTES].iter().map(|byte| format!("{byte:02x}")).collect();
                let _ = writeln!(group, "key = \"{hex}\"");
                note(format!(
                    "only the first {RSS_KEY_BYTES} of the hash key's {} bytes are kept, all that hashing IP packets reads",
                    bytes.len()
                ));
            }
            _ => note(format!("the hash key is left out: {}", quoted(key))),
        }
    }
}
