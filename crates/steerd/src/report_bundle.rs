//! The bundle of `steerd report`: everything that a bug report needs, without what identifies a network.
//! docs/reference/commands/report.md describes it for users.
//!
//! Invariants: every text passes the [`Redactor`] exactly once, in [`ReportBundle::of`], so that an address
//! has one replacement in all files; a part that is not there is named in the manifest with the reason; the
//! bundle is bounded; and the file appears whole or not at all, for its owner alone.

mod address_map;
mod archive;
mod collect;
mod policy_text;
mod redactor;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;

use serde::Serialize;

use crate::policy_file::Inputs;
use crate::terminal::numbers::bytes;
pub(crate) use archive::write;
pub(crate) use collect::{BundleSources, collect};
use policy_text::RedactedFile;
use redactor::Redactor;

/// The name of the list of parts.
const MANIFEST: &str = "manifest.txt";
/// The most bytes of a part, and of all parts together.
const PART_BYTES_MAX: usize = 16 << 20;
const BUNDLE_BYTES_MAX: usize = 64 << 20;

/// Why there is no bundle.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BundleError {
    #[error("{} exists (hint: name another file with -o, or replace it with --force)", .0.display())]
    Exists(PathBuf),
    #[error("{} cannot be written: {source} (hint: name another file with -o)", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("{} is not the name of a file (hint: -o FILE)", .0.display())]
    NoName(PathBuf),
    #[error("the system gives no random numbers for the names of addresses: {0}")]
    Random(#[source] io::Error),
}

/// A part before anything is replaced.
#[derive(Debug)]
enum RawPart {
    Text(String),
    Json(serde_json::Value),
    /// The policy with its files.
    Policy(Box<Inputs>),
    /// A settings file.
    Settings(String),
    /// The reason why it is not there.
    Absent(String),
}

/// The parts of a bundle by their names, and what is replaced in them.
struct RawBundle {
    parts: Vec<(String, RawPart)>,
    redactor: Redactor,
}

/// A file of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct BundlePart {
    pub(crate) name: String,
    pub(crate) bytes: usize,
    /// Why it is not there, or what was left out of it.
    pub(crate) remark: Option<String>,
    /// `None`: it is not there.
    #[serde(skip)]
    text: Option<String>,
}

/// A bundle without what identifies a network, unless it is to have it.
#[derive(Debug)]
pub(crate) struct ReportBundle {
    /// The manifest is the first.
    pub(crate) parts: Vec<BundlePart>,
    pub(crate) is_redacted: bool,
}

impl ReportBundle {
    /// Redacts the parts, and makes the manifest.
    fn of(raw: RawBundle) -> Self {
        let RawBundle { parts: raw, redactor } = raw;
        let mut parts = Vec::new();
        let mut left = BUNDLE_BYTES_MAX;
        for (name, part) in raw {
            for mut part in redacted(name, part, &redactor) {
                if part.bytes > left {
                    let why = format!("the bundle would have more than {}", size(BUNDLE_BYTES_MAX));
                    part = BundlePart::absent(part.name, why);
                }
                left -= part.bytes;
                parts.push(part);
            }
        }
        let is_redacted = redactor.replaces_addresses();
        let manifest = manifest(&parts, is_redacted);
        let manifest = RedactedFile { name: MANIFEST.to_owned(), text: manifest, left_out: None };
        parts.insert(0, BundlePart::of(manifest));
        Self { parts, is_redacted }
    }

    /// The files that are there.
    fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.parts.iter().filter_map(|part| Some((part.name.as_str(), part.text.as_deref()?)))
    }
}

impl BundlePart {
    /// The part of a file; one that is too long is cut off behind a line.
    fn of(file: RedactedFile) -> Self {
        let RedactedFile { name, mut text, left_out } = file;
        let mut remark = left_out.map(|what| format!("left out: {what}"));
        if text.len() > PART_BYTES_MAX {
            let whole = text.len();
            let cut = (0..=PART_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            let end = text[..cut].rfind('\n').map_or(cut, |line| line + 1);
            text.truncate(end);
            remark = Some(format!("cut off: it has {}", size(whole)));
        }
        Self { name, bytes: text.len(), remark, text: Some(text) }
    }

    fn absent(name: String, why: String) -> Self {
        Self { name, bytes: 0, remark: Some(why), text: None }
    }

    /// Whether it is in the bundle.
    pub(crate) fn is_present(&self) -> bool {
        self.text.is_some()
    }
}

/// The files of a part.
fn redacted(name: String, part: RawPart, redactor: &Redactor) -> Vec<BundlePart> {
    let file = |name: String, text: String| vec![BundlePart::of(RedactedFile { name, text, left_out: None })];
    let absent = |name: String, why: &str| vec![BundlePart::absent(name, redactor.text(why))];
    match part {
        RawPart::Text(text) => file(name, redactor.text(&text)),
        RawPart::Json(value) => match serde_json::to_string_pretty(&redactor.json(value)) {
            Ok(text) => file(name, text + "\n"),
            Err(error) => absent(name, &error.to_string()),
        },
        RawPart::Policy(inputs) => match policy_text::of_inputs(&inputs, redactor) {
            Some(files) => files.into_iter().map(BundlePart::of).collect(),
            None => absent(name, "its texts are too long to be kept"),
        },
        RawPart::Settings(text) => match policy_text::settings(&text, redactor) {
            Ok(text) => file(name, text),
            Err(why) => absent(name, &why),
        },
        RawPart::Absent(why) => absent(name, &why),
    }
}

/// The list of the parts, with what is to be known before the bundle is sent.
fn manifest(parts: &[BundlePart], is_redacted: bool) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!("steerd {version}: report\n\n");
    text += match is_redacted {
        true => {
            "IP and MAC addresses, GUIDs and names of hosts are replaced, each by the same other one in all files.\n\
             Prefix lengths, ports, names of rules, groups, sinks, sets and interfaces, and paths are kept.\n\
             Comments, descriptions and secrets are removed.\n\n"
        }
        false => {
            "NOT redacted: this has the addresses and names of the network. Only secrets are removed.\n\n"
        }
    };
    for part in parts {
        let remark = part.remark.as_deref().map_or_else(String::new, |remark| format!("  ({remark})"));
        let length = if part.is_present() { size(part.bytes) } else { "absent".to_owned() };
        let _ = writeln!(text, "{length:>8}  {}{remark}", part.name);
    }
    text
}

fn size(length: usize) -> String {
    bytes(length as u64)
}
