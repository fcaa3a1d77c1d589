//! The output of `ethtool`: receive filters (`ethtool -n DEV`; printed by its rxclass.c) and the indirection
//! tables of receive-side scaling (`ethtool -x DEV`), either or both in one text. Queue *n* becomes worker
//! *n*. A filter that the language cannot express exactly is left out, never widened but for the
//! drop-eligible bit of VLAN tags, which gets a note. Filters that a listing counts but does not have are
//! noted.
//!
//! The queues of ethtool are the kernel's, so its filters keep packets with the host; workers take them from
//! it. Each such filter gets a note, unless a sink of kind `kernel` returns the packets.
//!
//! ethtool does not always print the RSS context of a table. It is then taken from a line with the command
//! before the table, as a shell shows it or as a comment: `# ethtool -x eth0 context 1`.

mod filter;
mod rss;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::{
    Imported, Keys, Note, WrongFormat, kernel_sink, line_number, masked_addresses, masked_ranges, quoted,
    rule,
};
use filter::{Filter, Target};
use rss::Spread;

use program::MAX_RULES;

use crate::policy::{MAX_GROUPS, MAX_WORKER};

const TAKEN: &str =
    "# The queues of ethtool are the kernel's. Here the packets of groups leave the kernel for workers.\n";
const RETURNED: &str = "# The queues of ethtool are the kernel's. Here the packets of groups go to workers, and the sink `host` returns them.\n";

/// Converts a listing.
///
/// Unmatched packets stay with the kernel, since `default = "rss"` would disconnect the host. The filters are
/// ordered by location.
///
/// # Errors
/// The text has no filter, no table and no heading of them, or ethtool could not list any.
pub fn ethtool(text: &str) -> Result<Imported, WrongFormat> {
    ethtool_with(text, None)
}

/// Converts a listing as [`ethtool`] does. With a TAP interface, the groups have a sink of kind `kernel`,
/// which returns their packets to the host by it.
///
/// # Errors
/// As [`ethtool`].
pub fn ethtool_with(text: &str, interface: Option<&str>) -> Result<Imported, WrongFormat> {
    let mut listing = Listing::default();
    for (index, line) in text.lines().enumerate() {
        listing.line(line_number(index), line);
    }
    if !listing.is_listing {
        let message = "not a listing of ethtool (hint: use ethtool -n DEV, or ethtool -x DEV)".to_owned();
        return Err(WrongFormat { line: 0, message });
    }
    if let Some(Note { line, message }) =
        listing.failure.take_if(|_| listing.filters.is_empty() && listing.spreads.is_empty())
    {
        return Err(WrongFormat { line, message });
    }
    Ok(listing.finish(interface))
}

/// The sections found so far.
#[derive(Default)]
struct Listing {
    filters: Vec<Filter>,
    spreads: Vec<Spread>,
    notes: Vec<Note>,
    /// Whether a filter, a table or a heading was found.
    is_listing: bool,
    /// The section that the next lines belong to.
    part: Part,
    /// The context of the next table.
    context: u32,
    /// The number of filters that the listing in hand announces.
    announced: Option<Announced>,
    /// The first note on filters that ethtool could not list.
    failure: Option<Note>,
}

/// `Total 3 rules`.
struct Announced {
    line: u32,
    filters: usize,
    /// How many filters were listed before it.
    before: usize,
}

/// A part of a listing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Part {
    #[default]
    None,
    Filter,
    Spread,
    /// The hash fields of a kind of packet (`ethtool -n DEV rx-flow-hash tcp4`).
    HashFields,
}

impl Listing {
    fn line(&mut self, number: u32, line: &str) {
        let text = line.trim();
        let mut note = |message: String| self.notes.push(Note { line: number, message });
        if text.is_empty() {
            // An empty line ends a filter and a list of hash fields; a table contains one.
            if self.part != Part::Spread {
                self.part = Part::None;
            }
        } else if let Some(location) = text.strip_prefix("Filter:") {
            self.part = Part::Filter;
            self.is_listing = true;
            self.filters.push(Filter::new(number, location.trim()));
        } else if text.starts_with("RX flow hash indirection table for") {
            self.part = Part::Spread;
            self.is_listing = true;
            self.spreads.push(Spread::new(number, text, std::mem::take(&mut self.context)));
        } else if let Some((kind, _)) = text.split_once(" flows use these fields for computing Hash flow key")
        {
            self.is_listing = true;
            self.part = Part::HashFields;
            note(format!("the hash fields of {} are left out: set `hash` in a group", quoted(kind)));
        } else if is_command(text) {
            self.part = Part::None;
            self.context = context_of(text).unwrap_or(0);
        } else if let Some(filters) = announced(text) {
            self.part = Part::None;
            self.is_listing = true;
            self.compare_with_announced();
            self.announced = Some(Announced { line: number, filters, before: self.filters.len() });
        } else if let Some(problem) = failure(text) {
            self.part = Part::None;
            self.is_listing = true;
            let message = format!("ethtool could not list all filters: {}", quoted(problem));
            self.failure.get_or_insert_with(|| Note { line: number, message: message.clone() });
            note(message);
        } else if text.ends_with("RX rings available") {
            self.part = Part::None;
            self.is_listing = true;
        } else {
            match self.part {
                Part::Filter => {
                    if let Some(filter) = self.filters.last_mut() {
                        filter.take(text);
                    }
                }
                Part::Spread => {
                    if let Some(problem) = self.spreads.last_mut().and_then(|spread| spread.line(text).err())
                    {
                        note(problem);
                    }
                }
                Part::HashFields => {}
                Part::None => note(format!("not understood: {}", quoted(text))),
            }
        }
    }

    /// Notes filters that a listing announced, but does not have: ethtool prints none of a type that it does
    /// not know.
    fn compare_with_announced(&mut self) {
        let Some(Announced { line, filters, before }) = self.announced.take() else { return };
        let listed = self.filters.len() - before;
        if listed < filters {
            let message =
                format!("the listing announces {filters} filters and has {listed}: the others are left out");
            self.notes.push(Note { line, message });
        }
    }

    fn finish(mut self, interface: Option<&str>) -> Imported {
        self.compare_with_announced();
        // A stable sort: filters with the same location, or without one, stay in the order of the listing.
        self.filters.sort_by_key(|filter| filter.location);
        let mut names = BTreeMap::new();
        let mut rules = String::new();
        let mut queues = BTreeSet::new();
        let mut contexts = BTreeSet::new();
        if let Some(first) = self.filters.get(MAX_RULES) {
            let message = format!("from here on left out: a policy has at most {MAX_RULES} rules");
            self.notes.push(Note { line: first.line, message });
            self.filters.truncate(MAX_RULES);
        }
        for filter in &self.filters {
            match filter.translate(&mut self.notes) {
                Ok((_, target)) if !has_room(target, &queues, &contexts) => {
                    let message = format!(
                        "filter {} is left out: the policy would have too many groups",
                        filter.shown()
                    );
                    self.notes.push(Note { line: filter.line, message });
                }
                Ok((keys, target)) => {
                    if interface.is_none() {
                        self.notes.extend(filter.note_of_leaving(target));
                    }
                    let action = match target {
                        Target::Drop => "\"drop\"".to_owned(),
                        Target::Queue(queue) => {
                            queues.insert(queue);
                            format!("{{ steer = \"queue-{queue}\" }}")
                        }
                        Target::Context(context) => {
                            contexts.insert(context);
                            format!("{{ steer = \"{}\" }}", rss::group_name(context))
                        }
                    };
                    rules.push_str(&rule(&unique(&mut names, filter.location), &keys, &action));
                }
                Err(reason) => {
                    let _ = write!(rules, "\n# Filter {} is left out: {reason}\n", filter.shown());
                    let message = format!("filter {} is left out: {reason}", filter.shown());
                    self.notes.push(Note { line: filter.line, message });
                }
            }
        }
        let sinks = interface.map_or("", |_| "sinks = [\"host\"]\n");
        let mut groups = self.groups(&queues, &contexts, sinks);
        if let Some(interface) = interface {
            groups.push_str(&kernel_sink(interface));
        }
        self.notes.sort_by_key(|note| note.line);
        let kernel = match interface {
            Some(_) => RETURNED,
            None => TAKEN,
        };
        let head = format!(
            "# Converted from the output of ethtool; worker n stands for queue n.\n{kernel}version = 1\ndefault = \"kernel\"\n"
        );
        let hint = match self.spreads.is_empty() {
            true => "",
            false => {
                "# default = \"rss\"              # would take all other traffic from the host, as the table does\n"
            }
        };
        Imported { policy_toml: format!("{head}{hint}{groups}{rules}"), notes: self.notes }
    }

    /// The groups, each with the line `sinks`.
    fn groups(&mut self, queues: &BTreeSet<u32>, contexts: &BTreeSet<u32>, sinks: &str) -> String {
        let mut groups = String::new();
        let mut listed = BTreeSet::new();
        for spread in &self.spreads {
            if listed.contains(&spread.context) {
                let message = match spread.context {
                    0 => {
                        "a second table is left out: write `# context N` before it if it belongs to an RSS context"
                            .to_owned()
                    }
                    context => format!("a second table of RSS context {context} is left out"),
                };
                self.notes.push(Note { line: spread.line, message });
            } else if listed.len() >= MAX_GROUPS / 2 {
                let message = "this table is left out: there are too many".to_owned();
                self.notes.push(Note { line: spread.line, message });
            } else {
                listed.insert(spread.context);
                groups.push_str(&spread.group(&mut self.notes));
                groups.push_str(sinks);
            }
        }
        for context in contexts.difference(&listed) {
            let name = rss::group_name(*context);
            let _ = write!(groups, "\n[groups.{name}]\nworkers = \"all\"\n{sinks}");
            let message =
                format!("the table of RSS context {context} is not listed: `{name}` is all workers");
            self.notes.push(Note { line: 0, message });
        }
        for queue in queues {
            let _ = write!(groups, "\n[groups.queue-{queue}]\nworkers = [{queue}]\n{sinks}");
        }
        groups
    }
}

/// Whether there is a group for the target or room for one; tables have at most half of the groups.
fn has_room(target: Target, queues: &BTreeSet<u32>, contexts: &BTreeSet<u32>) -> bool {
    match target {
        Target::Drop => true,
        Target::Queue(queue) => queues.contains(&queue) || queues.len() < MAX_GROUPS / 4,
        Target::Context(context) => contexts.contains(&context) || contexts.len() < MAX_GROUPS / 4,
    }
}

/// A comment, or a command as a shell shows it.
fn is_command(text: &str) -> bool {
    text.starts_with(['#', '$']) || text.split_whitespace().any(|word| word == "ethtool")
}

/// The number after the word `context`.
fn context_of(text: &str) -> Option<u32> {
    let mut words = text.split_whitespace().skip_while(|word| *word != "context");
    words.nth(1)?.trim_end_matches(':').parse().ok()
}

/// The number of filters in `Total 3 rules`.
fn announced(text: &str) -> Option<usize> {
    text.strip_prefix("Total ")?.strip_suffix(" rules")?.parse().ok()
}

/// The problem in a line that ethtool prints where it cannot list filters, as with tg3.
fn failure(text: &str) -> Option<&str> {
    const RETRIEVAL: &str = "RX classification rule retrieval failed";
    let is_failure = text == RETRIEVAL || text.starts_with("Cannot get RX rings");
    text.strip_prefix("rxclass: ").or(is_failure.then_some(text))
}

/// A name for the rule of a filter; listings of several devices may have the same location twice.
fn unique(names: &mut BTreeMap<u64, u32>, location: u64) -> String {
    let seen = names.entry(location).or_default();
    *seen += 1;
    match *seen {
        1 => format!("filter-{location}"),
        again => format!("filter-{location}.{again}"),
    }
}
