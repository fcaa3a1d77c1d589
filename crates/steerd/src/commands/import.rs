//! `steerd import`: converts rules of other tools to a policy. Unsupported lines are reported on stderr and
//! stay in the policy as comments. The policy is checked for an ideal device; if that refuses it, the end of
//! the output says what to add. Reads files and standard input; no device is used.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use device_model::DeviceModel;
use policy::import::{Imported, NftOptions, Note, classbench, ethtool_with, kernel_sink, nft};
use policy::{Diagnostics, NoFiles, Policy, Source};
use serde::Serialize;

use crate::cli::{Cli, Format, Import, ImportArgs};
use crate::commands::Error;
use crate::policy_file::{self, Compiled, STANDARD_INPUT};
use crate::terminal::output::{self, Priority};

/// The most input, as much as a policy may have.
const MAX_INPUT_BYTES: u64 = policy::MAX_FILE_BYTES;
/// Names of additions that are proposed.
const GROUP: &str = "workers";
const INTERFACE: &str = "host0";

/// Described in docs/reference/commands/import.md.
#[derive(Serialize)]
struct Answer<'a> {
    policy: &'a str,
    notes: Vec<Unsupported>,
}

/// A line that is not supported.
#[derive(Serialize)]
struct Unsupported {
    file: String,
    /// `None`: the message names the place.
    line: Option<u32>,
    message: String,
}

pub(crate) fn run(args: &ImportArgs) -> Result<(), Error> {
    let options = NftOptions {
        chain: args.chain.clone(),
        interface: args.interface.clone(),
        addresses: args.address.clone(),
        is_syn_new: args.syn_is_new,
    };
    if args.kind != Import::Nft && options != NftOptions::default() {
        let kind = clap::error::ErrorKind::ArgumentConflict;
        let message = "--chain, --interface, --address and --syn-is-new are for rule sets of nft";
        <Cli as clap::CommandFactory>::command().error(kind, message).exit();
    }
    let mut input = Input::default();
    args.files.iter().try_for_each(|path| input.add(path))?;
    let imported = match args.kind {
        Import::Classbench => classbench(&input.text),
        Import::Ethtool => ethtool_with(&input.text, args.kernel_sink.as_deref()),
        Import::Nft => nft(&input.text, &options),
    };
    let Imported { mut policy_toml, mut notes } = imported.map_err(|wrong| {
        let (file, line) = input.place(wrong.line);
        let message = match wrong.line {
            0 => wrong.message,
            _ => format!("line {line}: {}", wrong.message),
        };
        Error::Import { path: file.into(), message }
    })?;
    let has_rules = complete(&mut policy_toml, &mut notes, args)?;
    if args.printed.format() == Format::Json {
        let place = |note: &Note| {
            let (file, line) = input.place(note.line);
            let line = (note.line > 0).then_some(line);
            Unsupported { file: file.to_owned(), line, message: note.message.clone() }
        };
        let answer = Answer { policy: &policy_toml, notes: notes.iter().map(place).collect() };
        return Ok(output::print_json(&answer)?);
    }
    for note in &notes {
        let (file, line) = input.place(note.line);
        let text = match note.line {
            0 => format!("{file}: {}", note.message),
            _ => format!("{file}:{line}: {}", note.message),
        };
        output::print_message(Priority::Warning, &text);
    }
    match &args.output {
        None => Ok(output::print(&policy_toml)?),
        Some(path) => replace(path, &policy_toml, has_rules),
    }
}

/// Appends what the arguments ask for, and checks the policy. Returns whether it has rules or groups.
///
/// # Errors
/// The names in the arguments are not those of a group or an interface.
fn complete(policy_toml: &mut String, notes: &mut Vec<Note>, args: &ImportArgs) -> Result<bool, Error> {
    let parse = |text: &str| policy_file::parse(&Source::new("policy", text), &NoFiles, &BTreeMap::new());
    let given =
        format!("version = 1\n{}", additions(None, args.group.as_deref(), args.kernel_sink.as_deref()));
    parse(&given).map_err(|problems| {
        let given = [("--group", &args.group), ("--kernel-sink", &args.kernel_sink)];
        let given =
            given.into_iter().filter_map(|(option, name)| Some(format!("{option} {}", name.as_ref()?)));
        let message = format!("{}: {}", given.collect::<Vec<_>>().join(" "), first_of(&problems));
        Error::Import { path: "-".into(), message }
    })?;
    let mut note = |message: String| notes.push(Note { line: 0, message });
    let policy = match parse(policy_toml) {
        Ok(read) => read.policy,
        Err(problems) => {
            note(format!("check refuses this policy: {}", first_of(&problems)));
            return Ok(true);
        }
    };
    policy_toml.push_str(&additions(Some(&policy), args.group.as_deref(), args.kernel_sink.as_deref()));
    if policy.rules.is_empty() && policy.groups.is_empty() {
        note("the policy has no active rule".to_owned());
        return Ok(false);
    }
    let Err(problems) = check(policy_toml) else { return Ok(true) };
    let group = args.group.is_none().then_some(GROUP);
    let sink = args.kernel_sink.is_none().then_some(INTERFACE);
    for (group, sink) in [(group, None), (None, sink), (group, sink)] {
        let added = additions(Some(&policy), group, sink);
        if added.is_empty() || check(&format!("{policy_toml}{added}")).is_err() {
            continue;
        }
        let mut options = String::new();
        group.into_iter().for_each(|name| options.push_str(&format!(" --group {name}")));
        sink.into_iter().for_each(|name| options.push_str(&format!(" --kernel-sink {name}")));
        let _ = write!(policy_toml, "\n# `steerd check` accepts this policy with the following lines:\n");
        for line in added.lines().filter(|line| !line.is_empty()) {
            let _ = writeln!(policy_toml, "# {line}");
        }
        note(format!(
            "check refuses this policy, but not with the commented lines at its end (hint: import with{options}): {}",
            first_of(&problems)
        ));
        return Ok(true);
    }
    note(format!("check refuses this policy: {}", first_of(&problems)));
    Ok(true)
}

/// The tables of a group and of a sink for a policy that lacks them.
fn additions(policy: Option<&Policy>, group: Option<&str>, interface: Option<&str>) -> String {
    let has_group =
        |name: &str| policy.is_some_and(|policy| policy.groups.iter().any(|known| known.name == name));
    let has_sink = policy.is_some_and(|policy| !policy.sinks.is_empty());
    let mut text = String::new();
    if let Some(name) = group.filter(|name| !has_group(name)) {
        let _ = write!(text, "\n[groups.{name}]\nworkers = \"all\"\n");
    }
    if let Some(interface) = interface.filter(|_| !has_sink) {
        text.push_str(&kernel_sink(interface));
    }
    text
}

/// Whether an ideal device can run the policy; the same question as that of `steerd check`.
fn check(policy_toml: &str) -> Result<(), Diagnostics> {
    let read = policy_file::parse(&Source::new("policy", policy_toml), &NoFiles, &BTreeMap::new())?;
    let compiled = read.compile(None, &DeviceModel::ideal(), None, None, &[], false)?;
    Compiled::into_installable(compiled).map(|_| ())
}

/// The first error of several.
fn first_of(problems: &Diagnostics) -> String {
    let mut errors = problems.list.iter().filter(|problem| problem.severity == policy::Severity::Error);
    let first = errors.next().map(|problem| problem.message.clone()).unwrap_or_default();
    match errors.count() {
        0 => first,
        more => format!("{first} (and {more} more)"),
    }
}

/// Writes a file as a whole or not at all, and no policy without rules over one that is there.
fn replace(path: &Path, text: &str, has_rules: bool) -> Result<(), Error> {
    let refused = |message: String| Error::Import { path: path.to_owned(), message };
    let known = fs::metadata(path).ok();
    if !has_rules && known.as_ref().is_some_and(|known| known.len() > 0) {
        return Err(refused("left as it is, because the new policy has no active rule".to_owned()));
    }
    let written = match known {
        Some(known) if !known.is_file() => fs::write(path, text),
        known => replace_file(path, text, known),
    };
    written.map_err(|error| refused(format!("cannot write: {error}")))
}

fn replace_file(path: &Path, text: &str, known: Option<fs::Metadata>) -> io::Result<()> {
    // A link stays, and what it names is replaced.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut name = target.file_name().map(std::ffi::OsStr::to_owned).unwrap_or_default();
    name.push(format!(".{}.new", std::process::id()));
    let new = target.with_file_name(name);
    let write = || {
        let mut file = fs::File::create_new(&new)?;
        file.write_all(text.as_bytes())?;
        if let Some(known) = known {
            file.set_permissions(known.permissions())?;
        }
        file.sync_all()?;
        fs::rename(&new, &target)
    };
    write().inspect_err(|_| drop(fs::remove_file(&new)))
}

/// The input files as one text, and the line at which each begins.
#[derive(Default)]
struct Input {
    text: String,
    /// Names and first lines, counted from 1.
    files: Vec<(String, u32)>,
}

impl Input {
    fn add(&mut self, path: &Path) -> Result<(), Error> {
        let refused = |message: String| Error::Import { path: path.to_owned(), message };
        let is_stdin = path == Path::new("-");
        let left = MAX_INPUT_BYTES.saturating_sub(self.text.len() as u64);
        let read = match is_stdin {
            true => regular_file::read_bounded(std::io::stdin(), left),
            false => regular_file::read(path, left),
        };
        let bytes = read.map_err(|error| match error {
            regular_file::FileError::TooLarge(_) => {
                refused(format!("more than {MAX_INPUT_BYTES} bytes in all"))
            }
            regular_file::FileError::NotRegular(_) => {
                refused(format!("cannot read: {error} (hint: - is standard input)"))
            }
            error => refused(format!("cannot read: {error}")),
        })?;
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push('\n');
        }
        let line = u32::try_from(self.text.lines().count()).unwrap_or(u32::MAX).saturating_add(1);
        let name = if is_stdin { STANDARD_INPUT.to_owned() } else { path.display().to_string() };
        self.files.push((name, line));
        // Bytes that are not UTF-8 are in comments, or make the line unsupported.
        self.text.push_str(&String::from_utf8_lossy(&bytes));
        Ok(())
    }

    /// The file of a line, and the line number in it.
    fn place(&self, line: u32) -> (&str, u32) {
        // Line 0 is none of a file; with several files, that of the first.
        let file = self.files.iter().rev().find(|(_, first)| *first <= line.max(1));
        file.map_or(("", line), |(name, first)| (name, (line + 1).saturating_sub(*first)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_located_in_its_own_file() {
        let folder = tempfile::tempdir().expect("folder");
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        fs::write(&a, "one\ntwo").expect("written");
        fs::write(&b, "three\n").expect("written");
        let mut input = Input::default();
        input.add(&a).expect("read");
        input.add(&b).expect("read");
        assert_eq!(input.text, "one\ntwo\nthree\n");
        assert_eq!(input.place(2), (a.display().to_string().as_str(), 2));
        assert_eq!(input.place(3), (b.display().to_string().as_str(), 1));
    }
}
